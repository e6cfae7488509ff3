#!/usr/bin/env bash
# dtplan schedule as a user meets it: tables, picture, files, refusals: check_schedule.sh DTPLAN SOURCE
set -uo pipefail
# shellcheck source=tests/cli/says.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/says.sh"
export COLUMNS=100 # phrases are looked for in lines

enter "$@"

# says TEXT: it stands in what was printed or said.
says() {
    grep -qF -- "$1" out err || failed "not said: $1; but: $(cat out err)"
}

# Several: a row each, by the figures of the papers; what is not possible is refused below with the nearest choice.
expect 0 schedule --stages 4 --micro-batches 12
grep -qE '^ *1f1b +45 +9 +20\.0 +9 +1 to 4 +1 ' out || failed "1f1b: $(cat out)"
grep -qE '^ *zb-h2 +39 +3 +7\.7 +0 +1 to 7 +1 ' out || failed "zb-h2: $(cat out)"
grep -qE '^ *dualpipe +38 +2 +5\.3 +2 +5 +2 ' out || failed "dualpipe: $(cat out)"
expect 0 schedule --stages 8 --micro-batches 14 --schedule 1f1b,interleaved,dualpipe
says "dualpipe takes two micro-batches for each rank or more: 16, not 14"
says "the nearest are 8 and 16"
expect 0 schedule --stages 4 --micro-batches 8 --sends blocking
says "sends: zb-v needs sends that do not hold the sender, rendezvous or buffered"

# One: a row a rank, and its picture.
expect 0 schedule --stages 4 --micro-batches 8 --schedule 1f1b
says "bubble 9 (27.3 %), by formula (p-1)(F+B+W) = 9"
says "rank 3        F0B0--F1B1--F2B2--F3B3--F4B4--F5B5--F6B6--F7B7--"
expect 0 schedule --stages 4 --micro-batches 12 --schedule interleaved --virtual-stages 4 --times 1,1,1
says "0 4 8 12"
says "bubble 2.25"
expect 0 schedule --stages 64 --micro-batches 500 --schedule 1f1b
says "Its picture is too long"

# What is too small to print is none of the times that it takes; one is one.
expect 2 schedule --stages 4 --micro-batches 8 --times 1e-320,1e-320,1e-320
says "times of 0 or from 1e-06"
expect 0 schedule --stages 1 --micro-batches 1
says "1 rank in a pipeline, 1 micro-batch a step"

# Searched for their times, within a limit: the idle time of the longest span is that of the paper's table 5.
expect 0 schedule --schedule zb1p,zb_2p --stages 8 --micro-batches 24 --times 29.718,29.444,19.927,0.527 --kept-for-weights 0.432
grep -qE '^ *zb-1p +2188 +289.4 +13.2 +289.4 +1 to 8 ' out || failed "zb-1p: $(cat out)"
grep -qE '^ *zb-2p +2110 +211.7 +10.0 +5.46 +1 to 15 ' out || failed "zb-2p: $(cat out)"
expect 2 schedule --stages 4 --micro-batches 8 --kept-for-weights 1.5
says "--kept-for-weights: '1.5' is no number from 0 to 1"

# Layers cut into stages: a head of two layers makes the last of four even stages the slowest, 9.5 of 7.5; cut best it is 8.
expect 0 schedule --stages 4 --micro-batches 8 --schedule 1f1b --layers 30 --head 2 --layout best
says "stages of 6 to 8 layers: Et*8|t*8|t*8|t*6L"
says "step 35.2, bubble 9.6"
expect 0 schedule --stages 4 --micro-batches 8 --schedule 1f1b --layers 30 --head 2 --layout counted
says "Et*7|t*8|t*8|t*7L"
expect 0 schedule --stages 4 --micro-batches 8 --schedule 1f1b --layers 16 --head 3 --layout cost
says "Et*5|t*5|t*5|tL"
expect 0 schedule --stages 4 --micro-batches 8 --schedule zb-v --layers 30 --head 2 --layout 'E(t*4|)*6t*4|ttL' --csv
[[ $(sed -n 2p out | cut -d , -f 21) == 6 && $(tail -n 1 out | cut -d , -f 21) == 8 ]] || failed "layers: $(cat out)"
expect 0 schedule --stages 4 --micro-batches 8 --layers 32 --layout 'E(t*8|)*3t*8L'
says "layout: has 4 stages, but zb-v on 4 ranks takes 8"
expect 0 schedule --stages 4 --micro-batches 8 --layers 32 --head 2.5 --layout step
expect 2 schedule --stages 4 --micro-batches 8 --schedule 1f1b --layers 30
says "30 layers do not divide evenly into 4 stages; the nearest numbers are 28 and 32"
expect 2 schedule --stages 4 --micro-batches 8 --schedule 1f1b --layers 30 --layout 'Et*|L'
says "layout: character 4: a number is missing behind '*'"
expect 2 schedule --stages 4 --micro-batches 8 --schedule 1f1b --layers 3 --layout best
says "3 layers are cut into 1 to 3 stages, not 4"
expect 2 schedule --stages 4 --micro-batches 8 --head 2
says "--layers is missing"
expect 2 schedule --stages 4 --micro-batches 8 --layers 300000
expect 2 schedule --stages 4 --micro-batches 8 --layers 32 --head -1

# Tables.
expect 0 schedule --stages 4 --micro-batches 6 --csv
[[ $(wc -l <out) == $((1 + 4 * 10 + 4)) ]] || failed "--csv: rows of 10 schedules and 4 refusals: $(wc -l <out)"
[[ $(awk -F'"' '{ print gsub(/,/, ",", $1) }' out | sort -un | wc -l) == 1 ]] || failed "--csv: rows of other lengths"
expect 0 schedule --stages 4 --micro-batches 8 --schedule zb-v --passes passes.csv
[[ $(wc -l <passes.csv) == $((1 + 4 * 2 * 8 * 3)) ]] || failed "--passes: $(wc -l <passes.csv) lines"
grep -q '^zb-v,3,4,1,0,F,2,2.5,false$' passes.csv || failed "--passes: $(head -n 3 passes.csv)"
expect 0 schedule --stages 4 --micro-batches 8 --schedule zb-v --passes passes.csv # it is ours
echo mine >passes.csv
expect 2 schedule --stages 4 --micro-batches 8 --schedule zb-v --passes passes.csv
[[ $(cat passes.csv) == mine ]] || failed "--passes replaced what was not its own"

# Refusals.
expect 2 schedule
says "--stages is missing"
expect 2 schedule --stages 4
says "--micro-batches is missing"
expect 2 schedule --stages 4 --micro-batches 10 --schedule interleaved
says "the nearest are 8 and 12"
expect 2 schedule --stages 5 --micro-batches 10 --schedule dualpipe
says "the nearest to 5 is 6"
expect 2 schedule --stages 4 --micro-batches 8 --schedule 1f1
says "there is no schedule '1f1'; did you mean '1f1b'"
expect 2 schedule --stages 4 --micro-batches 8 --schedule 1f1b --virtual-stages 2
says "1f1b has 1 chunk a rank, not 2"
expect 2 schedule --stages 0 --micro-batches 8
expect 2 schedule --stages 70000 --micro-batches 8
expect 2 schedule --stages 60000 --micro-batches 16000000
says "none of the schedules is possible"
for times in 1 1,1 1,1,x 1,1,-1 0,0,0 1,1,1,1,1 nan,1,1 1e300,1,1 ',,,' ''; do
    expect 2 schedule --stages 4 --micro-batches 8 --times "$times"
done
says "--times"
expect 2 schedule --stages 4 --micro-batches 8 --sends late
expect 2 schedule --stages 4 --micro-batches 8 --pair 2
expect 2 schedule --stages 4 --micro-batches 8 --chart x.png
says "--chart: draws one schedule"
expect 2 schedule --stages 4 --micro-batches 8 job.ini
expect 2 schedule --stages 4 --micro-batches 8 --gpus 8
says "a key of jobs, of which 'schedule' takes none"
expect 2 schedule --stages 4 --micro-batches 8 --json
expect 0 schedule --stages 1 --micro-batches 1

# Drawn.
if command -v gnuplot >/dev/null; then
    expect 0 schedule --stages 8 --micro-batches 20 --schedule dualpipe --times 1,1,1,0.1 --chart dual.png
    [[ $(head -c 4 dual.png | tail -c 3) == PNG && -s dual.gp && -s dual.data.csv ]] || failed "--chart: no picture"
    expect 0 schedule --stages 4 --micro-batches 8 --passes all.csv
    expect 2 chart schedule all.csv -o all.png
    says "choose with --where schedule=NAME"
    expect 0 chart schedule all.csv -o all.png --where schedule=v-half
    [[ ! -s err ]] || failed "chart schedule: gnuplot says $(cat err)"
fi

# The same of a job's own pipeline, simulated: ranks in text, passes as a table and drawn, a process a rank in the trace.
job=(--model llama-2-7b --gpus 8 --runtime megatron --strategy zero1 --pp 4 --accumulate 8)
expect 0 plan "${job[@]}"
says "PIPELINE  1f1b, 4 ranks"
grep -qE '^ *0 \* +E\+8 +4 ' out || failed "the first rank keeps 4 micro-batches and most memory: $(cat out)"
grep -qE '^ *3 +8\+head +1 ' out || failed "the last rank keeps one: $(cat out)"
expect 0 simulate "${job[@]}" --virtual-stages 2 --passes ranks.csv --trace trace.json --timeline operations.csv
says "PIPELINE  interleaved, 4 ranks"
[[ $(wc -l <ranks.csv) == 129 ]] || failed "4 ranks x 2 chunks x 8 micro-batches x 2 ways: $(wc -l <ranks.csv)"
[[ $(grep -c '"process_name"' trace.json) == 4 ]] || failed "the trace has no process for each rank"
python3 - trace.json <<'EOF' || failed "an arrow of the trace leads back in time, or none leads to another rank"
import json, sys
events = json.load(open(sys.argv[1]))["traceEvents"]
begins = {e["id"]: e for e in events if e["ph"] == "s"}
ends = [e for e in events if e["ph"] == "f"]
assert all(begins[e["id"]]["ts"] <= e["ts"] for e in ends)
assert sum(begins[e["id"]]["pid"] != e["pid"] for e in ends) >= 2 * 7 * 8
EOF
[[ $(tail -n +2 operations.csv | sed 's/.*,//' | sort -u | wc -l) == 4 ]] || failed "the timeline does not name 4 ranks"
expect 0 simulate "${job[@]}" --ranks table.csv --json
[[ $(wc -l <table.csv) == 5 && $(head -n 1 table.csv | tr ',' '\n' | sort | uniq -d) == "" ]] ||
    failed "--ranks: no row a rank, or a column twice: $(cat table.csv)"
python3 - out table.csv <<'EOF' || failed "--ranks differs from stages in the JSON"
import csv, json, sys
def leaves(value):
    for key, inner in value.items():
        yield from leaves(inner) if isinstance(inner, dict) else [(key, inner)]
rows = list(csv.DictReader(open(sys.argv[2])))
for rank, row in zip(json.load(open(sys.argv[1]))["stages"], rows, strict=True):
    time = rank["time"]
    idle = sum(time[when + "_idle_s"] for when in ("warm_up", "steady", "drain"))
    assert abs(idle - sum(v for k, v in time.items() if k.startswith("idle_for_"))) < 1e-9
    for key, value in leaves(rank):
        text = row.pop(key)
        assert (abs(float(text) - value) < 1e-8 if isinstance(value, float) else text.lower() == str(value).lower()), key
    assert not row
EOF
expect 0 simulate "${job[@]}" --ranks table.csv # it is ours
echo mine >table.csv
expect 2 simulate "${job[@]}" --ranks table.csv
[[ $(cat table.csv) == mine ]] || failed "--ranks replaced what was not its own"
expect 0 plan "${job[@]}" --stages step
layout=$(sed -n 's/.*stages \(Et[^)]*L\)).*/\1/p' out)
step=$(grep '= step' out)
[[ $layout && $step ]] || failed "--stages step names no layout: $(cat out)"
expect 0 plan "${job[@]}" --stages "$layout"
says "$step"
expect 0 explain "${job[@]}" --tp 2
for group in "PARAMETERS OF A RANK" "DEVICE MEMORY BY RANK" "all_gather, tensor parallel" "fill and drain of equal stages" \
    "PIPELINE  1f1b, 4 ranks"; do
    says "$group"
done
expect 2 simulate --model gpt2-124m --ranks none.csv
says "--ranks: shows the ranks of a pipeline, and this job has none (pp 1)"
expect 0 whatif "${job[@]}"
for change in '--tp 2' '--pp 2' '--virtual-stages 2' '--stages counted'; do
    says "$change"
done
expect 0 whatif --model gpt2-124m --gpus 8 --strategy zero3 --runtime deepspeed
! grep -q -e '--tp' out || failed "zero3 of runtime deepspeed is offered --tp: $(cat out)"
# Chunks that are asked for are of every schedule that takes any number.
expect 0 schedule --stages 4 --micro-batches 8 --virtual-stages 3 --schedule looped-bfs,interleaved,zb-interleaved
for row in 'interleaved +27 +3' 'looped-bfs +27 +3' 'zb-interleaved +25 +1'; do
    grep -qE "^ *$row " out || failed "three chunks: no row $row: $(cat out)"
done
expect 2 simulate --model gpt2-124m --passes none.csv
says "--passes: shows the passes of a pipeline, and this job has none (pp 1)"
expect 2 simulate "${job[@]}" --timeline operations.csv --charts
says "--chart FIGURE draws their passes"
if command -v gnuplot >/dev/null; then
    expect 0 simulate "${job[@]}" --chart pipeline.svg
    grep -q 'rank 3' pipeline.svg || failed "--chart: no lane of rank 3"
fi

((failures == 0)) || exit 1
echo "schedules say what they take"
