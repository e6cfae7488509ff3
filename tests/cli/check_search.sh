#!/usr/bin/env bash
# dtplan search and the training of plan as their users call them: check_search.sh DTPLAN SOURCE_TREE
set -uo pipefail
# shellcheck source=tests/cli/says.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/says.sh"
export COLUMNS=100 # phrases are looked for in lines

enter "$@"

# expect STATUS ARGUMENTS: leaves out, err and status behind.
expect() {
    local wanted=$1
    shift
    "$program" "$@" >out 2>err </dev/null
    status=$?
    [[ $status == "$wanted" ]] || failed "exit status $status, not $wanted: dtplan $*: $(head -c 300 err)"
    ! grep -qv '^dtplan: ' err || failed "stderr: $(grep -v '^dtplan: ' err | head -c 300)"
    ! grep -qiE '\b(nan|inf|-inf)\b' out || failed "a number that is none: dtplan $*"
}

# What the page says, wherever its lines break.
page_says() {
    local words
    words=$(tr -s ' \n' ' ' <out)
    [[ $words == *"$1"* ]]
}

small=(search --model llama-2-7b --gpu h100-sxm --gpus "8,16" --global-batch 64 --tokens 10B)

# ---- what is found, and its command ----------------------------------------------------------------------------------------

expect 0 "${small[@]}"
for heading in RECOMMENDED FRONT RUNNER-UP SEARCHED; do
    grep -q "^$heading" out || failed "no $heading"
done
expect 0 "${small[@]}" --json
grep -q '"schema": "dtplan.search/1"' out || failed "schema"
command=$(sed -n '/"recommended"/,/"command"/s/.*"command": "\(.*\)".*/\1/p' out | tail -1)
found_s=$(sed -n '/"recommended"/,$p' out | sed -n 's/.*"closed_step_s": \([0-9.e-]*\).*/\1/p' | head -1)
read -ra words <<<"$command"
[[ ${words[0]} == dtplan ]] || failed "no command: $command"
expect 0 "${words[@]:1}" --fidelity closed --json
planned_s=$(sed -n 's/.*"step_s": \([0-9.e-]*\).*/\1/p' out | head -1)
[[ -n $found_s && $planned_s == "$found_s" ]] || failed "the command predicts $planned_s, the search $found_s"
expect 0 "${small[@]}" --csv
[[ $(awk -F, 'NR == 1 {print $1 $2 $6}' out) == rankrecommendedcommand ]] || failed "--csv: $(head -c 100 out)"
expect 0 "${small[@]}" --fidelity closed
page_says '; 0 candidates simulated' || failed "--fidelity closed simulates"
expect 0 "${small[@]}" --strategy zero3 --runtime deepspeed --micro-batch 1,2
expect 1 "${small[@]}" --budget 100
grep -q 'NO PLAN' out || failed "no plan: $(head -c 200 out)"
grep -q -- '--budget' out || failed "which limit to move: $(head -c 300 out)"
expect 1 search --model llama-3-70b --gpu rtx-4090 --gpus 1 --tokens 1B
grep -q 'lacks' out || failed "what memory lacks"
expect 1 search --model llama-2-7b --gpu h100-sxm --gpus 8 --global-batch 7 --tokens 1B
grep -q 'refused' out || failed "why all is refused"

# What divides layers is tried where a runtime has it, cp where the sequence is long enough; else it is said.
experts=(search --model qwen3-30b-a3b --gpu h800 --gpus 64 --runtime megatron --strategy zero1 --precision bf16-mixed
    --micro-batch 1 --accumulate 8 --checkpointing full --offload none --virtual-stages 1 --tokens 10B --fidelity bounds)
expect 0 "${experts[@]}"
page_says 'SEARCHED 140 combinations' || failed "a short sequence: $(grep -A1 SEARCHED out)"
expect 0 "${experts[@]}" --seq 8k
page_says 'SEARCHED 280 combinations' || failed "a long sequence: $(grep -A1 SEARCHED out)"
expect 1 search --model deepseek-v3 --gpu h800 --gpus 256 --tokens 1T
page_says 'no layer was divided: with --runtime megatron' || failed "what was not tried: $(cat out)"
expect 1 plan --model deepseek-v3 --gpu h800 --gpus 256
page_says 'no layer was divided: dtplan search --runtime megatron' || failed "what helps: $(tail -n 3 out)"

# ---- stopped ---------------------------------------------------------------------------------------------------------------

# Some ten seconds of two cores; a signal is sent once dtplan, no longer the shell it comes from, catches it: bit 2 of
# SIGINT, 15 of SIGTERM, counted from 1.
catches() { # SIGNAL PROCESS
    [[ $(readlink "/proc/$2/exe") == "$(readlink -f "$program")" ]] &&
        (($((16#$(sed -n 's/^SigCgt:[[:space:]]*//p' "/proc/$2/status"))) >> ($1 - 1) & 1))
}
for signal in 2 15; do
    setsid env --default-signal=INT "$program" search --model llama-3-8b --tokens 2T --gpu any --gpus 1..1024 >out 2>err \
        </dev/null &
    pid=$!
    until catches "$signal" "$pid"; do sleep 0.01; done
    started=$SECONDS
    kill "-$signal" "$pid"
    wait "$pid"
    status=$?
    [[ $status == 3 ]] || failed "signal $signal: exit status $status: $(cat err)"
    grep -qE '^dtplan: stopped after [0-9,]+ of 19,595,520 combinations, ' err || failed "signal $signal: $(cat err)"
    [[ ! -s out ]] || failed "signal $signal: part of an answer: $(head -c 300 out)"
    ((SECONDS - started < 10)) || failed "signal $signal: $((SECONDS - started)) s to stop"
done

# ---- tight ------------------------------------------------------------------------------------------------------------------

# The cheapest by far, but only its tensors fit: marked, and behind what fits.
tight=(search --model tinyllama-1.1b --gpus 2 --strategy zero1 --precision bf16-mixed --micro-batch 1 --accumulate 1
    --checkpointing none --offload none --compile=false --tokens 10B)
expect 0 "${tight[@]}" --gpu a10
page_says 'TIGHT: the tensors fit once the allocator gives its cache back' || failed "tight is not marked: $(head -9 out)"
expect 0 "${tight[@]}" --gpus 2,8 --gpu rtx-4090 --json
sed -n "/\"recommended\"/,/\"gpus\"/p" out | grep -q "\"gpus\": 8," || failed "a tight plan wins"
expect 0 plan --model tinyllama-1.1b --gpu a10 --gpus 2 --strategy zero1 --json
grep -q '"verdict": "tight"' out || failed "it is tight"
grep -q '"shortage": "allocator_cache"' out || failed "why it is tight"

# ---- without limits ---------------------------------------------------------------------------------------------------------

expect 0 search --model llama-2-7b --gpu h100-sxm --gpus 1..8x2 --micro-batch 1,2 --tokens 1
! grep -q 'NO PLAN' out || failed "one token is a plan: $(head -3 out)"
expect 0 search --model llama-2-7b --gpu h100-sxm --gpus 1..64x2 --micro-batch 1,2 --tokens 500B
grep -q 'ends within a year' out || failed "no limits: $(head -3 out)"
expect 1 search --model llama-2-7b --gpu h100-sxm --gpus 8 --micro-batch 1 --tokens 1B --gpu-mtbf 1min --storage 1MB
grep -q 'gets ahead of its failures' out || failed "hopeless: $(head -3 out)"
expect 0 plan --model llama-2-7b --gpus 8 --tokens 1
! grep -q 'never' out || failed "one step does not get ahead: $(grep wall out)"

# ---- which machines ---------------------------------------------------------------------------------------------------------

narrow=(search --model llama-2-7b --tokens 10B --deadline 30d --strategy full_shard --micro-batch 1 --accumulate 1
    --checkpointing full --offload none --compile=true --precision bf16-mixed)
expect 0 "${narrow[@]}" --gpus 1..1024 --gpu any --fidelity closed
grep -q '^RECOMMENDED' out || failed "any number of any GPU: $(head -3 out)"
expect 0 "${narrow[@]}" --gpu "NVIDIA H100 80GB HBM3,l40s" --exclude-gpu l40s --max-nodes 2 --csv
! grep -q 'l40s' out || failed "--exclude-gpu leaves l40s in"
! grep -qE -- '--gpus (32|64|128)' out || failed "--max-nodes 2 leaves 4 nodes in"
expect 2 "${narrow[@]}" --gpu l40s --exclude-gpu l40s
says 'no GPU is left'
expect 2 "${narrow[@]}" --exclude-gpu h9000
says "unknown GPU 'h9000'"
expect 2 "${narrow[@]}" --machine dgx-h100 --exclude-gpu l40s
expect 2 "${narrow[@]}" --max-nodes 0
# Nor are GPUs that were given more than --max-gpus.
expect 0 "${narrow[@]}" --gpus 8,16,32 --max-gpus 16 --csv
! grep -qE -- '--gpus 32' out || failed "--max-gpus 16 leaves 32 in"
expect 2 "${narrow[@]}" --gpus 16,32 --max-gpus 8
grep -q 'max-gpus: is 8, and --gpus names more alone' err || failed "--max-gpus below all: $(cat err)"

# ---- a model file -----------------------------------------------------------------------------------------------------------

# Read once: a second reading of a pipe would wait for ever.
mkfifo pipe.json
cat "$source/tests/fixtures/hf/llama-2-7b.json" >pipe.json &
expect 0 "${small[@]:0:1}" --model pipe.json "${small[@]:3}" --fidelity closed
wait
grep -q 'not used of the file: ' out || failed "what is not used is not said: $(head -5 out)"

# ---- bad input --------------------------------------------------------------------------------------------------------------

expect 2 search --model llama-2-7b
says '--tokens'
for value in 0 -1 nan 1e400 many ''; do
    expect 2 search --model llama-2-7b --gpus 8 --tokens="$value"
    expect 2 search --model llama-2-7b --gpus 8 --tokens 1B --budget="$value"
    expect 2 search --model llama-2-7b --gpus 8 --tokens 1B --deadline="$value"
    expect 2 search --model llama-2-7b --gpus 8 --tokens 1B --max-gpus="$value"
done
expect 2 search --model llama-2-7b --tokens 1B --deadline 30
says 'with its unit'
expect 2 search --model llama-2-7b --tokens 1B --micro-batch 1..100000 --accumulate 1..100000
says 'combinations'
expect 2 search --model llama-2-7b --tokens 1B --gpu h9000
expect 2 plan --params 1B --global-batch-tokens 1000 --seq 2k
expect 2 plan --params 1B --global-batch-tokens 4k --global-batch 2 --seq 2k

# ---- a name that is quoted ----------------------------------------------------------------------------------------------------

expect 0 "${small[@]}" --name "it's; touch pwned" --csv
grep -qF "'it'\\''s; touch pwned'" out || failed "a name is not quoted: $(sed -n 2p out | cut -c1-300)"

# ---- plan ----------------------------------------------------------------------------------------------------------------------

seven=(plan --params 7B --gpus 64 --micro-batch 2 --compile)
expect 0 "${seven[@]}" --tokens 100B
grep -q '^TRAINING' out || failed "plan without a training"
expect 1 "${seven[@]}" --tokens 100B --deadline 1h
grep -q 'misses the deadline' out || failed "a deadline missed"
expect 1 "${seven[@]}" --tokens 100B --budget 1
grep -q 'exceeds the budget' out || failed "a budget exceeded"
expect 0 "${seven[@]}" --tokens 100B --gpu-mtbf 1min --storage 1MB
grep -q 'never' out || failed "a job that never ends"
expect 0 "${seven[@]}" --tokens 1e18 --gpu-mtbf 1e9h --json
expect 2 "${seven[@]}" --tokens 1B --storage 0
expect 2 "${seven[@]}" --tokens 1B --gpu-mtbf 0h
exit $((failures > 0))
