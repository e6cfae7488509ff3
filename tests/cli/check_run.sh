#!/usr/bin/env bash
# dtplan run as its users call it, on the host device: check_run.sh DTPLAN SOURCE_TREE
set -uo pipefail
# shellcheck source=tests/cli/says.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/says.sh"
export COLUMNS=200 # phrases are looked for in lines

enter "$@"
verb=(run)

tiny=(--layers 1 --hidden 32 --heads 2 --ffn 64 --vocab 300 --seq 16 --gpus 1 --strategy ddp --device host --threads 1)

# ---- what works --------------------------------------------------------------------------------------------------------

expect 0 "${tiny[@]}" --steps 6 --log log.csv --trace trace.json --timeline timeline.csv
for heading in MEMORY 'STEP TIME' PHASES OPERATIONS LOSS 'entropy of the data'; do
    says "$heading" out
done
grep -qE '^  arena +([0-9.]+) +\1 +1\.000$' out || failed "the arena is not what was predicted: $(grep arena out)"
says 'step 6/6' # on standard error
[[ $(wc -l <log.csv) == 7 ]] || failed "the log has $(wc -l <log.csv) lines"
program_digest=$(sed -n 's/^program  \([0-9a-f]\{16\}\): [0-9]* operations.*/\1/p' out)
[[ $program_digest && $(cut -d, -f8 log.csv | sort -u) == "$(printf '%s\n' "$program_digest" program | sort)" ]] ||
    failed "the log does not say which program ran: $(grep ^program out), $(tail -n 1 log.csv)"
[[ $(head -c 1 trace.json) == '{' && $(tail -n 1 trace.json) == '],"otherData":'*'}}' ]] || failed "the trace is cut short"
grep -q '^[0-9]*,compute,matmul,matmul,head,' timeline.csv || failed "no head in the timeline"
expect 0 "${tiny[@]}" --steps 6 --loss-beside log.csv
grep -qE ' there, here [+-]0[.]0000, [+-]0[.]00 %' out || failed "a run beside its own log: $(grep beside out)"
for other in '--seed 2:same model, --data and --seed' '--lr 1e-2:a learning rate of' '--micro-batch 2:is of steps of 16 tokens' \
    '--steps 7:has not all of step 1 and the last 7'; do
    # shellcheck disable=SC2086
    expect 2 "${tiny[@]}" --steps 6 --loss-beside log.csv ${other%%:*}
    says "${other#*:}"
done
expect 2 "${tiny[@]}" --loss-beside timeline.csv
says 'timeline.csv:1: is no log of dtplan run'
expect 0 "${tiny[@]}" --steps 3 --json
says '"schema": "dtplan.run/1"' out
! grep -qiE '\b(nan|inf|infinity)\b' out || failed "--json: a number that is none"
expect 0 "${tiny[@]}" --steps 3 --gpus 2 --strategy full_shard --micro-batch 2
grep -qE '^  all_gather +([0-9.]+) +\1 +1\.000$' out || failed "bytes sent are not what was predicted: $(grep all_ out)"

# What no shape of a LLaMA has, by the program that is handed over: one rank and two lose the same, stage by stage and
# shard by shard. Heads are planned for the host, whose attention takes values that are narrower than keys.
two=("${tiny[@]}" --layers 2 --precision fp32 --steps 4)
latent=(--kv-latent 16 --rope-head-dim 8 --value-head-dim 8)
experts=(--experts 4 --experts-per-token 2 --expert-ffn 16)
for kind in "${latent[*]}: --gpus 2 --pp 2 --accumulate 2" "${latent[*]} ${experts[*]} --dense-layers 1: --gpus 2 --strategy full_shard" \
    "--position alibi --embedding-norm --norm layer_norm: --gpus 2 --strategy zero1"; do
    # shellcheck disable=SC2086
    expect 0 "${two[@]}" ${kind%%:*} --accumulate 2 --log one.csv
    # shellcheck disable=SC2086
    expect 0 "${two[@]}" ${kind%%:*} ${kind#*:} --loss-beside one.csv
    grep -qE 'there, here [+-]0[.]0000' out || failed "${kind#*:} of ${kind%%:*}: $(grep beside out)"
done

# Experts that get tokens in turns get as many each, and the run says that these were no routes of a router.
expect 0 "${two[@]}" "${experts[@]}" --gpus 2 --ep 2 --strategy full_shard --force-load-balance
grep -qE '^ +1 +1[.]00 +1[.]00 +([0-9]+) \1 \1 \1$' out || failed "in turns: $(grep -A4 EXPERTS out)"
says 'to experts in' out
expect 2 "${two[@]}" --gpus 2 --strategy full_shard --force-load-balance
says '--force-load-balance: the model has no experts'

# A scenario of a runtime that nobody runs is refused for that, in one line, and not for what follows from it.
expect 2 "$2/scenarios/llama3-8b-8xh100.ini" --runtime megatron --device host
says 'runtime: is megatron, but only plans of --runtime dtplan and torch are run'
[[ $(wc -l <err) == 1 ]] || failed "more than what matters: $(cat err)"

# Nothing is started of what no machine holds.
expect 2 "${tiny[@]}" --steps 3 --gpus 2048
says '2048 ranks are asked for, the host device has at most 1024'
expect 2 "${tiny[@]}" --steps 3 --resume .
says 'is a folder, no scenario file'
expect 2 "${tiny[@]}" --steps 3 --lora 8 --base int8
says 'base: int8 is not run under runtime dtplan yet; use nf4 or none'
expect 2 "${tiny[@]}" --steps 3 --lora 3
says 'kernels read rows; use 8'
expect 2 "${tiny[@]}" --steps 3 --optimizer sgd --momentum 0.9
says '--momentum: is of optimizers momentum and muon'

# ---- what is left behind, and what is said early -----------------------------------------------------------------------

# Killed without a chance to clean up, a run leaves no file of its own.
mkdir spare
TMPDIR=$PWD/spare "$program" run "${tiny[@]}" --steps 100000 >out 2>err </dev/null &
killed=$!
for _ in $(seq 100); do
    grep -q '^step ' err && break
    sleep 0.1
done
kill -9 "$killed"
wait "$killed" 2>/dev/null
[[ $(ls -A spare) == '' ]] || failed "a killed run leaves $(ls -A spare)"

# A log that cannot be opened is found before anything runs, by whoever starts the ranks.
expect 3 "${tiny[@]}" --steps 3 --gpus 2 --log nowhere/log.csv
says 'nowhere/log.csv'
! grep -q 'rank 1' err || failed "ranks were started: $(cat err)"

# Beyond the limit on a file's size a write fails and is said; nothing dies of a signal.
(ulimit -f 24 && timeout 300 "$program" run "${tiny[@]}" --steps 800 --log limited.csv >out 2>err </dev/null)
status=$?
[[ $status == 3 ]] || failed "exit status $status of a run with a full log: $(head -c 600 err)"
says 'limited.csv: the log could not be written'

"${program%/*}/dtplan-exec" --help >out 2>err || failed "dtplan-exec --help: $(cat err)"
says 'usage: dtplan-exec' out
says '--checkpoint-every N' out

# ---- data --------------------------------------------------------------------------------------------------------------

for _ in {1..40}; do echo 'to be, or not to be, that is the question'; done >text.txt
expect 0 "${tiny[@]}" --steps 3 --data text.txt
says '(bytes), ' out
expect 2 "${tiny[@]}" --steps 3 --data text.txt --data-type uint16
says 'beyond the model'
expect 2 "${tiny[@]}" --steps 3 --data text.txt --vocab 200
says '--vocab 256'
printf 'short' >short.txt
expect 2 "${tiny[@]}" --steps 3 --data short.txt
says 'less than one sample'
expect 2 "${tiny[@]}" --steps 3 --data nowhere.bin
expect 2 "${tiny[@]}" --steps 3 --data .

# ---- checkpoints -------------------------------------------------------------------------------------------------------

expect 0 "${tiny[@]}" --steps 8 --log whole.csv
expect 0 "${tiny[@]}" --steps 8 --log cut.csv --checkpoint saved --checkpoint-every 4
expect 0 "${tiny[@]}" --steps 8 --log cut.csv --checkpoint saved --resume-previous
cmp -s <(cut -d, -f1-4 whole.csv) <(cut -d, -f1-4 cut.csv) || failed "a resumed run's log is another"
printf 'x' | dd of=saved/step-00000008/rank-0000.bin bs=1 seek=100 conv=notrunc 2>/dev/null
expect 2 "${tiny[@]}" --steps 9 --checkpoint saved --resume
says 'have another sum'
says '--resume-previous'
expect 2 "${tiny[@]}" --steps 9 --checkpoint nowhere --resume
timeout --preserve-status -s INT 3 "$program" run "${tiny[@]}" --steps 1000000 --checkpoint stopped --trace stopped.json \
    >out 2>err
status=$?
[[ $status == 3 ]] || failed "SIGINT: exit status $status: $(cat err)"
says 'stopped by a signal after step '
says 'with --resume goes on from there'
says 'stopped.json is not written: operations are timed in the last two steps'
says 'interrupted' out
compgen -G 'stopped/step-*/manifest.json' >/dev/null || failed "SIGINT wrote no checkpoint"

# ---- what cannot be ----------------------------------------------------------------------------------------------------

expect 2 "${tiny[@]}" --steps 0
expect 2 "${tiny[@]}" --steps 3 --warmup 5
expect 2 "${tiny[@]}" --lr -1
expect 2 "${tiny[@]}" --device tpu
expect 2 "${tiny[@]}" --checkpoint-every 3
expect 2 "${tiny[@]}" --bogus 3
expect 2 "${tiny[@]}" --runtime megatron --no-gradient-norm
says 'runtime dtplan'
expect 3 "${tiny[@]}" --steps 3 --log /dev/full
says 'its whole lines stay'
expect 3 "${tiny[@]}" --steps 3 --checkpoint /proc/nowhere
for option in --trace --timeline; do
    expect 3 "${tiny[@]}" --steps 3 "$option" nowhere/file
    says 'nowhere/file: cannot be written'
    ! grep -q 'step ' err || failed "$option: it ran for a file that no folder takes"
done
expect 2 "${tiny[@]}" --gpus 2 --data nowhere.txt
[[ $(wc -l <err) == 1 ]] || failed "two ranks do not say once what both find wrong: $(cat err)"
if [[ ! -e /dev/nvidiactl ]]; then
    expect 3 "${tiny[@]}" --gpus 2 --device cuda
    [[ $(wc -l <err) == 1 ]] || failed "two ranks say what one process can: $(cat err)"
fi
expect 1 --model llama-2-70b --gpus 1 --strategy ddp --device host # before anything is allocated
says 'nothing was allocated'
[[ -e /dev/nvidiactl ]] || expect 3 "${tiny[@]}" --device cuda
# The file that carries the program has no name that anybody knows.
said=$(trap '' XFSZ && ulimit -f 0 && "$program" run "${tiny[@]}" --steps 2 2>&1 </dev/null | cat)
[[ $said == *"step program could not be handed"* && $said != */dev/fd* ]] || failed "no room for the program: $said"
expect 1 "${tiny[@]}" --steps 50 --lr 1e6 --weight-decay 1000 --precision fp32
says 'the run stopped'

((failures == 0)) || { echo "$failures failed" && exit 1; }
