#!/usr/bin/env bash
# Every command at several widths of the terminal: no line is wider, whatever is printed: check_width.sh DTPLAN SOURCE
set -uo pipefail
# shellcheck source=tests/cli/says.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/says.sh"

enter "$@"
export LC_ALL=C.UTF-8 TERM=dumb
unset NO_COLOR

# Lines of `out` that are wider than $1 columns and are no single word, which cannot be broken.
too_wide() {
    local line
    [[ $(wc -L <out) -gt $1 ]] || return 0 # no line needs a look
    while IFS= read -r line; do # a shell counts characters, awk not always
        [[ ${#line} -le $1 || ${line#"${line%%[! ]*}"} != *' '* ]] || echo "${#line}: $line"
    done <out
}

# fits WIDTH ARGUMENT...: runs it with that many columns; its status may be any but a crash's.
fits() {
    local width=$1 status wide
    shift
    COLUMNS=$width "$program" "$@" >out 2>err </dev/null
    status=$?
    [[ $status -le 1 ]] || failed "$width columns: dtplan $*: exit status $status: $(head -c 300 err)"
    [[ -s out ]] || failed "$width columns: dtplan $* prints nothing"
    wide=$(too_wide "$width" | head -n 3)
    [[ -z $wide ]] || failed "$width columns: dtplan $*: wider: $wide"
    ! grep -q '[[:cntrl:]]' out || failed "$width columns: dtplan $* prints what is no text"
    ! grep -q ' $' out || failed "$width columns: dtplan $*: blanks end a line"
}

job=(--model gpt2 --gpu a100-80-sxm --gpus 8)
"$program" sweep "${job[@]}" --gpus 8..64x2 --strategy ddp,full_shard -o scaling.csv >/dev/null || failed "sweep"
"$program" sweep "${job[@]}" --strategy ddp,full_shard --micro-batch 1..16x2 -o micro-batch.csv >/dev/null || failed "sweep"
"$program" sweep "${job[@]}" --strategy all -o strategies.csv >/dev/null || failed "sweep"
"$program" simulate "${job[@]}" --memory memory.csv --timeline timeline.csv >/dev/null || failed "simulate"
head -n 60 "$source/scenarios/h200_torch_runs.csv" >runs.csv
"$program" backtest runs.csv -o backtest.csv >/dev/null || failed "backtest"
"$program" backtest "$source/tests/data/sweep.csv" -o decisions.csv >/dev/null || failed "backtest of a sweep"
cp strategies.csv step.csv
cp scaling.csv pareto.csv
cp "$source/tests/data/synthetic_machine.csv" bandwidth.csv
"$program" catalog measured bandwidth.csv --csv >machine-residuals.csv || failed "catalog measured"
"$program" schedule --stages 4 --micro-batches 8 --schedule zb-v --passes schedule.csv >/dev/null || failed "schedule"
kinds=(memory timeline strategies step)
! command -v gnuplot >/dev/null || kinds+=(schedule micro-batch scaling pareto backtest decisions bandwidth machine-residuals)

for width in 40 60 80 100 120 160; do
    fits "$width" plan --params 7e9 --gpus 8 --strategy full_shard --tokens 1T
    fits "$width" plan --params 70e9 --gpus 8 --strategy zero2 --runtime deepspeed --offload optimizer
    fits "$width" plan --params 7e9 --gpus 8 --max-micro-batch
    fits "$width" plan "${job[@]}" --strategy all
    fits "$width" explain "${job[@]}"
    fits "$width" explain "${job[@]}" --program
    fits "$width" simulate "${job[@]}"
    fits "$width" whatif "${job[@]}"
    fits "$width" sweep "${job[@]}" --strategy ddp,full_shard -o "a-name-that-is-not-short-$width.csv"
    fits "$width" search --params 1B --gpu a100-80-sxm --gpus 8 --tokens 20B --budget 5k
    fits "$width" search --params 1B --gpu a10 --gpus 2 --tokens 20T --budget 5
    fits "$width" backtest runs.csv
    fits "$width" backtest --leave-one-out "$source/tests/data/runs.csv" runs.csv
    fits "$width" schedule --stages 8 --micro-batches 20 --times 29.7,29.4,19.9,0.53
    fits "$width" schedule --stages 8 --micro-batches 21 --schedule dualpipe,interleaved,gpipe --sends blocking
    fits "$width" doctor
    fits "$width" schedule --stages 8 --micro-batches 20 --schedule dualpipe
    fits "$width" schedule --stages 8 --micro-batches 20 --schedule zb-h1 --layers 61 --head 2 --layout best
    fits "$width" catalog gpus
    fits "$width" catalog machines
    fits "$width" catalog models
    fits "$width" catalog constants runs.csv
    fits "$width" catalog gpus h100-sxm gb200
    fits "$width" catalog machines dgx-h100
    fits "$width" catalog models llama-3-8b
    fits "$width" catalog measured bandwidth.csv
    fits "$width" report "${job[@]}" -o "a-name-that-is-not-short-either-$width.html"
    for kind in "${kinds[@]}"; do
        fits "$width" chart "$kind" "$kind.csv"
    done
    fits "$width" help
    for command in plan explain simulate whatif sweep search backtest chart report run validate probe catalog help; do
        fits "$width" help "$command"
        ((width < 60)) || [[ $(wc -L <out) -le $width ]] || failed "$width columns: help $command: $(wc -L <out)" # choices too
    done
done

# What the executor measures, on this machine's cores.
small=(--layers 2 --hidden 64 --heads 2 --vocab 300 --seq 64 --gpus 1 --strategy ddp --device host)
for width in 40 80; do
    fits "$width" run "${small[@]}" --steps 6
    fits "$width" validate "${small[@]}"
done

# Without a width and a terminal: 80 columns. Nonsense in COLUMNS is no width.
for columns in '' 0 -5 wide 99999999999999999999; do
    COLUMNS=$columns "$program" plan --params 7e9 --gpus 8 >out 2>err </dev/null || failed "COLUMNS='$columns': $(cat err)"
    [[ $columns == 9* ]] || [[ -z $(too_wide 80) ]] || failed "COLUMNS='$columns': $(too_wide 80 | head -n 1)"
done
env -u COLUMNS "$program" plan --params 7e9 --gpus 8 >out || failed "without COLUMNS"
[[ -z $(too_wide 80) ]] || failed "without COLUMNS: $(too_wide 80 | head -n 1)"
env -u COLUMNS "$program" chart strategies strategies.csv >out || failed "a chart without COLUMNS"
[[ -z $(too_wide 80) ]] || failed "a chart without COLUMNS: $(too_wide 80 | head -n 1)"

# What programs read is not broken, whatever the width.
for arguments in 'catalog gpus h100-sxm --csv' 'catalog gpus --json' 'plan --params 7e9 --gpus 8 --csv' 'whatif --model gpt2 --gpus 2 --csv'; do
    read -ra words <<<"$arguments"
    COLUMNS=40 "$program" "${words[@]}" >narrow 2>err </dev/null
    COLUMNS=1000 "$program" "${words[@]}" >wide 2>err </dev/null
    cmp -s narrow wide || failed "$arguments differs between widths"
    [[ -s wide ]] || failed "$arguments prints nothing"
done

# A command that is printed over several lines is one command.
COLUMNS=60 "$program" search --params 1B --gpu a100-80-sxm --gpus 8 --tokens 20B --budget 5k >out 2>err </dev/null
# shellcheck disable=SC2016
sed -n '/^  command /,/[^\\]$/p' out | sed 's/^  command *//; s/^dtplan /"$program" /' >typed
grep -q '\\$' typed || failed "the command fits into one line of 60 columns: $(cat typed)"
eval "$(cat typed)" >planned 2>err </dev/null || failed "the command of a search is refused: $(cat err)"
[[ -s planned ]] || failed "the command of a search plans nothing"

# Examples of help and man pages, pasted whole, are comments and commands of dtplan, as many at any width.
pasted() {
    printf 'dtplan() { echo "$# words: $*"; }\n' | cat - "$1" | bash -e 2>&1
}
for command in plan explain simulate whatif sweep search backtest chart report launch run validate compare probe catalog \
    doctor schedule; do
    for width in 40 80 300; do
        COLUMNS=$width "$program" help "$command" | sed -n '/^EXAMPLES/,/^$/p' | sed 1d >typed
        pasted typed >"pasted.$width"
    done
    "$program" __man "$command" | sed -n '/^\.nf/,/^\.fi/p' | sed '/^\./d; s/\\-/-/g; s/\\e/\\/g' >typed
    pasted typed >pasted.man
    [[ $(wc -L <typed) -le 73 ]] || failed "man page of $command: an example of $(wc -L <typed) columns"
    grep -q . pasted.300 || failed "help $command: no example"
    for other in 40 80 man; do
        cmp -s pasted.300 "pasted.$other" || failed "examples of $command at $other: $(diff pasted.300 "pasted.$other")"
    done
    ! grep -v '^[0-9]* words: ' pasted.300 || failed "help $command: an example is no command of dtplan"
done

# Each owner and each kind of operation has a letter of its own, and the longest operation of a cell shows.
COLUMNS=100 "$program" chart strategies strategies.csv >out
for words in 'P = parameters' 'O = optimizer state' 'A = activations'; do
    grep -q -e "$words" out || failed "the chart of strategies does not tell '$words'"
done
[[ $(grep -o '[A-Za-z] = ' out | sort | uniq -d) == '' ]] || failed "one letter means two owners: $(tail -n 4 out)"
COLUMNS=100 "$program" chart timeline timeline.csv >out
grep '^  compute |' out | grep -q M || failed "the timeline shows no matmul: $(cat out)"
{
    echo op,stream,kind,class,name,layer,micro_step,issued_s,start_s,end_s
    echo 0,compute,matmul,matmul,a,0,0,0,0,0.9
    for i in 0 1 2 3 4 5 6 7 8 9; do
        echo "$i,compute,norm,memory,b,0,0,0,0.9$i,0.9$((i + 1 > 9 ? 9 : i + 1))"
    done
} >long-and-short.csv
COLUMNS=80 "$program" chart timeline long-and-short.csv >out || failed "a timeline of long and short"
grep '^  compute |' out | grep -q 'MMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMM' || failed "short kernels hide a long matmul: $(cat out)"
exit $((failures > 0))
