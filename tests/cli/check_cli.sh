#!/usr/bin/env bash
# The program as its users call it: check_cli.sh DTPLAN SOURCE_TREE
#
# Exit statuses, streams, colours, encodings, careless and hostile lines. The words of errors and of help are compared
# with tests/golden/cli_*.txt; DTPLAN_UPDATE=1 ./test.sh -R command_line rewrites them.
set -uo pipefail
# shellcheck source=tests/cli/says.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/says.sh"
export COLUMNS=100 # phrases are looked for in lines

enter "$@"
golden=$source/tests/golden
unset NO_COLOR

declare -A ran # how each line ended

# run ARGUMENTS: leaves out, err and status behind.
run() {
    "$program" "$@" >out 2>err </dev/null
    status=$?
    ran["dtplan $*"]=$status
}

# expect STATUS ARGUMENTS: and every line on stderr starts with "dtplan: ", and an error leaves stdout empty.
expect() {
    local wanted=$1
    shift
    run "$@"
    [[ $status == "$wanted" ]] || failed "exit status $status, not $wanted: dtplan $*: $(head -c 300 err)"
    ! grep -qv '^dtplan: ' err || failed "stderr: dtplan $*: $(grep -v '^dtplan: ' err | head -c 300)"
    if ((wanted >= 2)); then
        [[ -s err ]] || failed "no message: dtplan $*"
        [[ ! -s out ]] || failed "output beside an error: dtplan $*"
    fi
}

# says TEXT: the last run's stderr holds it.
says() {
    grep -qF -e "$1" err || failed "stderr lacks '$1': $(head -c 500 err)"
}

# compare NAME: the file NAME against the golden one.
compare() {
    [[ -n ${DTPLAN_UPDATE:-} ]] && cp -- "$1" "$golden/$1"
    diff -u -- "$golden/$1" "$1" || failed "golden/$1 differs; DTPLAN_UPDATE=1 rewrites it"
}

# ---- what works --------------------------------------------------------------------------------------------------------

seven=(--params 7e9 --gpus 8 --strategy full_shard)
expect 0
expect 0 "${seven[@]}"
grep -q 'FITS' out || failed "no verdict"
expect 0 plan "${seven[@]}"
expect 0 --params=7B --gpus=8 --strategy=full-shard --compile --no-prefetch
expect 0 "${seven[@]}" --json
grep -q '"schema": "dtplan.plan/1"' out || failed "schema of --json"
! grep -qiE '\b(nan|inf|infinity)\b' out || failed "--json: a number that is none"
expect 0 "${seven[@]}" --csv
[[ $(wc -l <out) == 2 ]] || failed "--csv: a header and a row"
expect 0 explain "${seven[@]}"
expect 0 explain "${seven[@]}" --json
expect 0 explain "${seven[@]}" --accumulate 4 --program
expect 0 explain "${seven[@]}" --program --json
expect 0 plan "${seven[@]}" --fidelity simulated
grep -q 'simulated; the closed form says' out || failed "plan does not say that it simulates"
expect 0 plan "${seven[@]}" --fidelity simulated --json
grep -q '"fidelity": "simulated"' out || failed "plan --json does not say that it simulates"
expect 0 plan "${seven[@]}" --fidelity closed --json
grep -q '"fidelity": "closed"' out || failed "plan --json does not say that it does not simulate"
expect 2 plan "${seven[@]}" --fidelity simulate
expect 2 plan "${seven[@]}" --fidelity simulated --min-gpus
expect 0 plan "${seven[@]}" --strategy all --fidelity simulated
expect 0 whatif "${seven[@]}" --fidelity simulated
expect 0 simulate "${seven[@]}" --trace trace.json --timeline timeline.csv --memory memory.csv
for file in trace.json timeline.csv memory.csv; do
    [[ -s $file ]] || failed "simulate: no $file"
done
expect 0 simulate "${seven[@]}" --json
! grep -qiE '\b(nan|inf|infinity)\b' out || failed "simulate --json: a number that is none"
expect 1 simulate --params 70e9 --gpus 1
expect 2 simulate "${seven[@]}" --accumulate 1000000
expect 3 simulate "${seven[@]}" --trace /nonexistent/trace.json
! ls -- *.tmp 2>/dev/null || failed "simulate leaves temporary files"
expect 0 whatif "${seven[@]}"
expect 0 whatif "${seven[@]}" --json
! grep -qiE '\b(nan|inf|infinity)\b' out || failed "whatif --json: a number that is none"
grep -q '"fidelity": "simulated"' out || failed "whatif does not simulate what has a step program"
expect 0 whatif "${seven[@]}" --csv
[[ $(awk -F, 'NR == 1 {print NF}' out) == 14 ]] || failed "whatif --csv: columns"
expect 0 whatif --params 70e9 --gpus 1
expect 0 catalog gpus
expect 0 catalog gpus h100-sxm a100
expect 0 catalog machines --csv
expect 0 catalog models --json
# Every constant is there: each row of the model's table, and the rate of each GPU. None is counted by hand.
runs=$source/scenarios/h200_torch_runs.csv
expect 0 catalog constants
grep -q '^flash1_hopper_forward .* 66 *0$' out || failed "catalog constants: $(grep flash1 out)"
grep -q 'scenarios/published_runs.csv: github:mosaicml/llm-foundry' out || failed "catalog constants: what was fitted on"
expect 0 catalog constants "$runs" --csv
constants=$(grep -c '^DTP_CONSTANT(' "$source/model/cost/constants.def")
gpus=$(grep -c ',matmul_fraction,' "$source/scenarios/gpus.csv")
[[ $(wc -l <out) == $((constants + gpus + 1)) ]] || failed "catalog constants --csv: not $constants + $gpus rows"
grep -q '^flash1_hopper_forward,0.265,1,fitted,.*,0,0,35$' out || failed "catalog constants RUNS.csv: $(grep flash1 out)"
awk 'FNR <= 7' "$runs" >few_runs.csv # each constant of each run is a simulation
expect 0 catalog constants few_runs.csv --fidelity simulated --csv
grep -q '^simulated_rank_deviation,[0-9.]*,.*,[1-9][0-9]*,0,6$' out || failed "catalog constants --fidelity simulated"
grep -q '^rank_speed_deviation,[0-9.]*,.*,0,0,6$' out || failed "catalog constants --fidelity simulated"
expect 2 catalog constants nothing.csv
expect 2 catalog gpus --fidelity simulated
says "predicts nothing"
# plan simulates, or says why it does not; a solver's answer is the closed form's.
expect 0 --params 7e9 --gpus 8
grep -q "simulated; the closed form says" out || failed "plan: does not simulate"
expect 0 --params 7e9 --gpus 8 --fidelity closed
grep -q "by the closed form" out || failed "plan --fidelity closed: does not say so"
expect 0 --params 7e9 --gpus 8 --accumulate 10000
grep -q "not simulated: .*operations" out || failed "plan: does not say why it did not simulate"
expect 0 --params 7e9 --gpus 8 --accumulate 10000 --json
if ! grep -q '"fidelity": "closed"' out || ! grep -q '"not_simulated_because": ' out; then
    failed "plan --json: does not say why it did not simulate"
fi
expect 0 --params 7e9 --gpus 8 --max-micro-batch --json
grep -q '"fidelity": "closed"' out || failed "plan --max-micro-batch: not by the closed form"
expect 0 backtest "$source/scenarios/h200_torch_runs.csv"
grep -q '^TOKENS PER SECOND.*fidelity: bounds$' out || failed "backtest: not by the word of --fidelity: $(head -n 1 out)"
sed '2,$s/,h100-sxm,/,h1000,/' "$source/tests/data/runs.csv" >unknown.csv
expect 0 backtest unknown.csv --only b-
expect 1 backtest unknown.csv --only a- --json
grep -q '"scored": 0,' out || failed "backtest: a row on an unknown GPU was scored"
expect 0 backtest "$source/scenarios/h200_torch_runs.csv" --fidelity simulated --json
grep -q '"fidelity": "simulated"' out || failed "backtest --fidelity simulated --json: does not say so"
expect 0 backtest --leave-one-out "$source/scenarios/published_runs.csv" "$source/scenarios/h200_torch_runs.csv"
grep -q 'flash1_hopper_forward *0.265 *0.301 *believed' out || failed "backtest --leave-one-out: $(grep flash1 out)"
expect 0 backtest --leave-one-out "$source/tests/data/runs.csv" "$source/scenarios/h200_torch_runs.csv" --csv
grep -q '^measured with PyTorch[^,]*,35,.*nccl_one_rank_bytes=5.85e+08 kept' out || failed "backtest --leave-one-out --csv: $(cat out)"
expect 2 backtest "$source/scenarios/h200_torch_runs.csv" --csv
says "only with --leave-one-out"
expect 2 backtest --leave-one-out "$source/scenarios/h200_torch_runs.csv"
expect 2 backtest --leave-one-out "$source/scenarios/h200_torch_runs.csv" -o rows.csv
# By a machine file those runs that were on its GPU, whatever the length of its name.
deep=$(printf 'a%.0s' {1..150})
mkdir "$deep"
cp -- "$source/tests/data/synthetic_machine.csv" "$deep/machine.csv"
expect 0 backtest "$source/scenarios/h200_torch_runs.csv" --json
grep -q '"machine_file": null' out || failed "backtest: a machine file that was not given"
grep '"median_abs_error_pct"' out | head -n 1 >catalogued
expect 0 backtest "$source/scenarios/h200_torch_runs.csv" --machine "$deep/machine.csv" --json
grep -q '"by_machine_file": 35' out || failed "backtest --machine: $(grep by_machine out)"
! grep '"median_abs_error_pct"' out | head -n 1 | cmp -s catalogued || failed "backtest --machine predicts as without"
expect 0 backtest "$source/scenarios/h200_torch_runs.csv" --machine "$deep/machine.csv"
tr -s '\n ' '  ' <out | grep -q '35 of 35 runs by aaa' || failed "backtest --machine does not say what it was used for"
expect 2 backtest "$source/scenarios/published_runs.csv" --machine "$deep/machine.csv"
says "was on its GPU"
expect 2 backtest "$source/scenarios/h200_torch_runs.csv" --machine dgx-h200
says "is no machine file"
expect 2 backtest --leave-one-out "$source/scenarios/h200_torch_runs.csv" --machine "$deep/machine.csv"
says "leave out --machine"
cp -- "$deep/machine.csv" kept.csv
expect 2 backtest "$source/scenarios/h200_torch_runs.csv" --machine "$deep/machine.csv" -o "$deep/machine.csv"
cmp -s "$deep/machine.csv" kept.csv || failed "backtest -o wrote over the machine file"
expect 2 backtest "$source/scenarios/h200_torch_runs.csv" --gpus 4
says "they stand in its table"
expect 2 backtest --leave-one-out
expect 0 backtest "$source/scenarios/h200_torch_runs.csv" -o rows.csv --json
[[ $(wc -l <rows.csv) == $(wc -l <"$source/scenarios/h200_torch_runs.csv") ]] || failed "backtest -o: a row a run"
expect 0 --version
for command in '' plan explain simulate whatif backtest catalog schedule help; do
    expect 0 help ${command:+"$command"}
    expect 0 ${command:+"$command"} --help
done
for scenario in "$source"/scenarios/*.ini; do
    run plan "$scenario" --json
    ((status <= 1)) || failed "shipped scenario $scenario: $(cat err)"
done

# The examples of --help run as they stand (the file of one of them is the reader's).
examples=0
for command in plan explain backtest catalog schedule help; do
    while read -r _ line; do
        [[ $line == *path/to/* ]] && continue
        read -ra words <<<"$line"
        words=("${words[@]//scenarios\//$source/scenarios/}")
        status=${ran["dtplan ${words[*]}"]-}
        [[ -n $status ]] || run "${words[@]}" # some were asked above, and take seconds
        ((status <= 1)) || failed "example of help $command: $line: $(cat err)"
        examples=$((examples + 1))
    done < <("$program" help "$command" | sed ':join; /\\$/ { N; s/ *\\\n */ /; b join; }' | sed -n 's/^  \(dtplan .*\)/\1/p')
done
((examples >= 12)) || failed "only $examples examples in the help"

expect 0 "${seven[@]}" --network sockets
grep -q 'one node needs no network: network sockets changes nothing' out || failed "plan: a network without use passes in silence"

# What our executor is told beyond its defaults is said, in words and to programs.
own=(--params 1e9 --gpus 4 --runtime dtplan --gather-engine copy --gradient-stream --matmul-sms 120 --collective-ctas 8
    --symmetric-windows --clip-norm 0.5)
expect 0 "${own[@]}"
tr -s '\n ' '  ' <out >words
for choice in 'gather_engine copy' gradient_stream 'matmul_sms 120' 'collective_ctas 8' symmetric_windows 'clip_norm 0.5'; do
    grep -q ", ${choice}[,;]" words || failed "plan does not say $choice"
done
! grep -q 'cuda_graph\|loss_chunk' words || failed "plan says what is the default"
expect 0 "${own[@]}" --json
for choice in '"gather_engine": "copy"' '"gradient_stream": true' '"matmul_sms": 120' '"collective_ctas": 8' \
    '"symmetric_windows": true' '"clip_norm": 0.5' '"cuda_graph": false'; do
    grep -qF "$choice" out || failed "plan --json lacks $choice"
done
expect 0 "${seven[@]}" --json
grep -qF '"gather_engine": "sm"' out || failed "plan --json lacks a field that every plan has"

# ---- the answer is no --------------------------------------------------------------------------------------------------

expect 1 --params 70e9 --gpus 1
grep -q 'OUT OF MEMORY' out || failed "a plan that does not fit is still printed"
expect 1 --params 70e9 --gpus 1 --json
grep -q '"verdict": "oom"' out || failed "verdict of --json"
expect 1 --params 70e9 --strategy ddp --min-gpus
expect 1 --params 70e9 --gpus 8 --strategy ddp,zero1
expect 0 --params 7e9 --gpus 8 --strategy all
grep -q '▶' out || failed "best strategy not marked"

# ---- flags over files --------------------------------------------------------------------------------------------------

printf '[model]\nparams = 7B\n[cluster]\ngpus = 8\n[plan]\nmicro_batch = 2\nstrategy = ddp,full_shard\n' >job.ini
expect 0 job.ini
expect 0 job.ini --strategy full_shard --micro-batch 3 --json
grep -q '"micro_batch": 3' out || failed "a flag overrides the file"
expect 0 --micro-batch 3 job.ini --strategy full_shard --json
grep -q '"micro_batch": 3' out || failed "a flag overrides the file, whatever the order"

# ---- five careless uses ------------------------------------------------------------------------------------------------

printf -- '--model gpt-2 --gpus 1\n--gpus 2\n' >no-model.scenarios
printf '[training]\nlocal_batch_size = 1\n' >titan.toml
{
    careless() {
        echo "\$ dtplan $*"
        run "$@"
        sed "s|$source|SOURCE|g" err
        echo "exit status $status"
    }
    careless paln --params 7e9
    careless --params 7e9 --gpus 0 --gpu h10 --micro-bacth 3 --strategy ful_shard
    careless --gpus 8
    careless validate # no table of refusals where no combination names a model
    careless sweep --gpus 8,16
    careless search --tokens 1T
    careless validate no-model.scenarios
    careless --params 7e9 --gpus 12
    careless --params 7e9 --heads 33
    # Words that other programs have for it.
    careless --params 7e9 --strategy fsdp2
    careless --params 7e9 --runtime axolotl --checkpointing on
    careless --params 7e9 --qlora
    careless --params 7e9 --lora
    careless --params 7e9 --tp 2,4 --seq 1k..8k
    careless --params 7e9 --precision bf16,fp8 --micro-batch 1,x,
    careless compare --tokens-per-s 3100
    careless --model Qwen/Qwen3-32B
    careless --model qwen9-32b
    careless titan.toml
    careless --params
    careless simulate --params 7e9 --trace=
    careless --params 7e9 --max-seq --min-gpus --json --csv
    careless --params 7e9 --no-gpus
    careless job.in
    careless catalog
    careless catalog gpus h1000
    careless backtest
    careless help foo
    careless explain --csv
    # The value of a flag of another command is no scenario file; a switch takes none behind a blank; lists stay lists.
    careless simulate --params 7e9 --steps 3
    careless --params 7e9 --compile true
    careless --params 7e9 --wrap-ends auto
    careless sweep --params 7e9 --wrap-ends true,false,auto
    careless --params 7e9 --reshard-after-forward 4
    careless --params 7e9 --compile twice
    careless --params 7e9 --compile=-1
    careless sweep --params 7e9 --seq 128,256 --json
    for command in sweep simulate run validate probe; do
        careless "$command" --params 7e9 --csv
    done
    careless simulate --params 7e9 --accumulate 70000
    careless --params 7e9 --optimizer adam8bit --moment-dtype bf16
    careless --params 7e9 --zero 3 --dtype bf16
    careless plan llama-7b --gpus 8
    careless plan --params 7e9 --output plan.json
    careless --params 7e9 --optimizer paged-adam8bit
    careless --params 7e9 --lora 8 --moment-dtype fp32
    careless --params 7e9 --runtime deepspeed --strategy zero2 --moment-dtype bf16
    careless --params 7e9 --runtime megatron --strategy zero1 --moment-dtype bf16
    careless --model gpt-2 --runtime megatron --strategy ddp --unfused-rope
    careless --model llama-3.1-8b --runtime megatron --strategy ddp --unfused-rope --fused-qkv-rope
} >cli_errors.txt
compare cli_errors.txt
# What there is fits a screen or two; the rest is said of each command.
run help
(($(wc -l <out) <= 70)) || failed "help: $(wc -l <out) lines"
run help catalog
cp out cli_help_catalog.txt
compare cli_help_catalog.txt

# One of a thing is no plural.
for command in plan explain; do
    expect 0 "$command" --layers 2 --hidden 64 --heads 1 --vocab 100 --experts 4 --experts-per-token 1 --expert-ffn 64 \
        --dense-layers 1 --gpus 2 --gpus-per-node 1 --pp 2 --runtime megatron --strategy ddp
    ! tr -s ' \n' ' ' <out | grep -oE '.{20} 1 (heads|layers|experts|GPUs|nodes|operations|forwards|copies) ' ||
        failed "$command: one of many"
done

# What is not set is not said; one value is asked for where sweep takes several.
expect 0 "${seven[@]}" --final-softcap 30
tr -s ' \n' ' ' <out | grep -q 'soft cap 30 of logits' || failed "a soft cap of logits alone: $(head -n 4 out)"
! grep -q 'of scores' out || failed "a soft cap that nobody set"
expect 2 plan --params 1e9 --gpu a10,h200
says "'a10,h200' are several, and this takes one GPU; dtplan sweep and dtplan search compare lists of them"

# All faults of a file at once, each with its line.
printf '[model]\nmodel = lama-2-7b\nfoo = 3\n[cluster]\ngpu = h10\ngpus = -1\n[plan]\nmicro_batch = x\n' >bad.ini
expect 2 plan bad.ini
for line in 2 3 5 6 8; do
    says "bad.ini:$line: "
done

# A GPU of one's own with NVLink and no machine: PCIe is not assumed silently.
(head -n 1 <(grep -v '^#' "$source/scenarios/gpus.csv") && grep '^h100-sxm,' "$source/scenarios/gpus.csv") |
    sed 's/^h100-sxm,/mine,/' >mine.csv
expect 2 --params 1e9 --gpus 8 --gpu mine --catalog mine.csv
says "give machine pcie-box to use PCIe"
expect 0 --params 1e9 --gpus 8 --gpu mine --machine pcie-box --catalog mine.csv
# A model as its hub calls it.
expect 2 --model meta-llama/Llama-3.1-8B
says "'Llama-3.1-8B' without a folder is a preset"
expect 2 --model meta-llama/Llama-2-7b-hf
says "did you mean 'llama-2-7b'"
# A file, or a path to none, is no name of a hub: one fault.
echo '{"a":' >llama-2-7b
for file in ./llama-2-7b ./llama-3-8b "$PWD/llama-2-7b" folder/of/llama-2-7b; do
    expect 2 --model "$file"
    [[ $(wc -l <err) == 1 ]] || failed "--model $file: $(cat err)"
done
# Advice beside a simulated plan is by formulas, and says so.
expect 0 --params 1e9 --gpus 8 --gpu h100 --strategy full_shard
grep -q '^  by formulas, .*dtplan whatif simulates' out || failed "advice without its method: $(tail -n 4 out)"
expect 0 --params 1e9 --gpus 8 --gpu h100 --strategy full_shard --fidelity bounds
! grep -q '^  by formulas' out || failed "advice of an estimated plan: $(tail -n 4 out)"
# A runtime without adapters is refused as that, not for its defaults too, which nobody typed.
expect 2 --model llama-2-7b --lora 16 --runtime nanotron --strategy zero1 --gpus 8 --precision bf16-mixed
says "lora: is not modelled under runtime nanotron"
[[ $(wc -l <err) == 1 ]] || failed "adapters under nanotron: $(cat err)"
expect 2 --model ./
says "name the config.json in it"
# Measurements are not written over.
cp -- rows.csv same.csv
ln -s same.csv also-same.csv
expect 2 backtest same.csv -o also-same.csv
says "--output would write over a file that is read, same.csv"
cmp -s rows.csv same.csv || failed "backtest -o wrote over the table of runs"

# ---- five hostile uses -------------------------------------------------------------------------------------------------

# Escape sequences and line ends in arguments do not reach the terminal.
expect 2 $'pl\e[31man\n'
expect 2 --gpu $'\e]0;owned\a\nh100' --params 7e9
! grep -q $'\e' err || failed "an escape sequence got through"
# Numbers that are none, or too large for any type.
for number in nan inf -inf 1e400 -1 0 0x10 1e18 99999999999999999999999999 '' ' ' 7e9x $'7e9\n' --; do
    expect 2 --params "$number" --gpus 8
    expect 2 --params 7e9 --gpus "$number"
    expect 2 --params 7e9 --gpus 8 --micro-batch "$number"
done
expect 2 --params 7e9 --gpus 8 --price nan
# The largest of everything the parser lets pass: an answer, and finite.
run --params 1e14 --gpus 1000000 --gpus-per-node 1000000 --micro-batch 1000000 --seq 100000000 --accumulate 1000000 --json
((status <= 2)) || failed "largest plan: status $status"
! grep -qE '\b(nan|inf)\b|: -[0-9]' out || failed "largest plan: $(grep -E '\b(nan|inf)\b|: -[0-9]' out | head -3)"
# Files that are none of ours: binary, endless lines, directories, nothing.
head -c 100000 /dev/urandom >random
head -c 2000000 /dev/zero >zeros
printf 'a%.0s' {1..100000} >long
: >empty
for file in random zeros long empty / /nonexistent; do
    expect 2 plan "./$file"
    expect 2 --params 7e9 --gpus 8 --catalog "$file"
    expect 2 backtest "$file"
done
expect 2 --model "$scratch/random" --gpus 8
# Thousands of arguments.
mapfile -t many < <(for i in {1..5000}; do echo "--nonsense-$i"; done)
expect 2 --params 7e9 "${many[@]}"
says "and "
mapfile -t many < <(for i in {1..5000}; do echo "--gpus=8"; done)
expect 0 --params 7e9 "${many[@]}"

small=(--model gpt2 --gpus 8 --strategy full_shard)

# ---- chance ------------------------------------------------------------------------------------------------------------

expect 2 simulate "${small[@]}" --samples 0
expect 2 simulate "${small[@]}" --samples 1e30
expect 2 simulate "${small[@]}" --rank-deviation nan
expect 2 simulate "${small[@]}" --straggler 0.5
expect 2 simulate "${small[@]}" --straggler 2 --rank-deviation 0.1
expect 0 simulate "${small[@]}" --straggler 2
expect 0 simulate "${small[@]}" --samples 100 --seed 7 --json

# ---- charts ------------------------------------------------------------------------------------------------------------

expect 2 simulate "${small[@]}" --charts
says "no table to draw"
: >target.csv
ln -s target.csv link.csv
expect 2 simulate "${small[@]}" --charts --memory /dev/null
says "gnuplot needs a table in a plain file" # and not that nothing can be written beside it, to who may not
# A link is written through, not replaced: /dev/stdout is one.
expect 0 simulate "${small[@]}" --memory link.csv
[[ -L link.csv && -s target.csv ]] || failed "a link was replaced"
# Without gnuplot: the table, the script, and what to do.
env PATH=/nonexistent "$program" simulate "${small[@]}" --charts --memory alone.csv >out 2>err </dev/null
status=$?
[[ $status == 0 ]] || failed "charts without gnuplot: exit status $status"
says "there is no gnuplot here"
[[ -s alone.csv && -s alone.gp && ! -e alone.png ]] || failed "charts without gnuplot"
cat "$source/reports/chart/terminal.gp" "$source/reports/chart/memory.gp" | cmp -s - <(head -n -1 alone.gp) || failed "the script written is not the script kept"
# A gnuplot that fails: its words, no chart, and nothing left over.
mkdir broken
printf '#!/bin/sh\necho "no such terminal" >&2\nexit 1\n' >broken/gnuplot
chmod +x broken/gnuplot
PATH=$PWD/broken:$PATH expect 3 simulate "${small[@]}" --charts --memory alone.csv
says "no such terminal"
! ls -- *.tmp 2>/dev/null || failed "a failed chart leaves temporary files"
if command -v gnuplot >/dev/null; then
    # No name is a command to gnuplot or to a shell, whatever it holds.
    mkdir hostile
    cd hostile || exit 1
    # shellcheck disable=SC2016
    for name in plain.csv '<touch pwned' '|touch pwned' '| touch pwned.csv' '`touch pwned`.csv' '$(touch pwned).csv' \
        "';touch pwned;'.csv" '"; system("touch pwned"); "' '@touch.csv' '~root.csv' $'a\nsystem("touch pwned")' '+' '++'; do
        "$program" simulate "${small[@]}" --charts "--memory=$name" --name '"`touch pwned`{/=99 x' >out 2>err </dev/null ||
            failed "chart of $name: $(cat err)"
        [[ $(head -c 4 -- "${name%.csv}.png" | tail -c 3) == PNG ]] || failed "no chart of $name"
    done
    expect 0 simulate "${small[@]}" --charts --timeline t.csv
    [[ $(head -c 4 t.png | tail -c 3) == PNG ]] || failed "no chart of the timeline"
    ! compgen -G '*pwned' | grep -qx pwned || failed "a name was run as a command"
    [[ ! -e pwned && ! -e pwned.csv ]] || failed "a name was run as a command"
    cd .. || exit 1
else
    echo "no gnuplot here: charts are not drawn"
fi

# ---- output that cannot be written -------------------------------------------------------------------------------------

if [[ -w /dev/full ]]; then
    "$program" "${seven[@]}" >/dev/full 2>err
    status=$?
    [[ $status == 3 ]] || failed "full disk: exit status $status"
    says 'standard output'
    expect 3 backtest "$source/scenarios/h200_torch_runs.csv" -o /dev/full/rows.csv
fi
"$program" "${seven[@]}" >&- 2>err
status=$?
[[ $status == 3 ]] || failed "closed standard output: exit status $status"
{
    sleep 0.3
    "$program" "${seven[@]}" 2>err
    echo $? >piped
} | true
[[ $(cat piped) == 3 ]] || failed "closed pipe: exit status $(cat piped)"
says 'standard output'
DTPLAN_DATA=$scratch expect 3 "${seven[@]}"
says DTPLAN_DATA

# ---- colours and encodings ---------------------------------------------------------------------------------------------

run "${seven[@]}"
! grep -q $'\e' out || failed "colour without a terminal"
LC_ALL=C run "${seven[@]}"
! LC_ALL=C grep -q '[^ -~]' out || failed "bytes beyond ASCII in the C locale"
if script -qec true /dev/null </dev/null >/dev/null 2>&1; then # where there are terminals: a bare root may have no /dev/pts
    export TERM=xterm
    line=$(printf '%q ' "$program" "${seven[@]}")
    script -qec "$line" /dev/null </dev/null >out 2>&1
    grep -q $'\e\[' out || failed "no colour on a terminal"
    NO_COLOR=1 script -qec "$line" /dev/null </dev/null >out 2>&1
    ! grep -q $'\e\[' out || failed "colour in spite of NO_COLOR"
    TERM=dumb script -qec "$line" /dev/null </dev/null >out 2>&1
    ! grep -q $'\e\[' out || failed "colour on a dumb terminal"
fi

exit $((failures > 0))
