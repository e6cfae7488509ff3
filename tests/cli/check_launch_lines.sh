#!/usr/bin/env bash
# What `dtplan launch` writes for two nodes is started by a real srun: check_launch_lines.sh DTPLAN SOURCE_TREE. Slurm is the test's own, of
# two nodes that are this machine (private_slurm.sh; skipped, exit status 77, where it is not installed or DTPLAN_TEST_LAUNCHERS is empty); torchrun, accelerate and tune are
# stand-ins that write down where they were started and with which words.
set -uo pipefail
# shellcheck source=tests/cli/says.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/says.sh"
# shellcheck source=tests/cli/private_slurm.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/private_slurm.sh"

program=$1
export DTPLAN_DATA=$2/scenarios
wants_launchers || exit 77
missing=$(has_private_slurm) || { echo "skipped: no $missing here" && exit 77; }
PATH=$PATH:/usr/sbin
scratch=$(mktemp -d)
trap 'stop_private_slurm; rm -rf -- "$scratch"' EXIT
if ! start_private_slurm "$scratch/slurm" 4 2; then
    echo "FAILED: Slurm does not come up: $(tail -n 3 "$scratch"/slurm/*.out)" && exit 1
fi

mkdir "$scratch/stubs"
cat >"$scratch/stubs/torchrun" <<STUB
#!/usr/bin/env bash
{ printf '%s\n' "\${0##*/}" "\$@"; } >"$scratch/started.\$SLURM_NODEID"
STUB
chmod +x "$scratch/stubs/torchrun"
ln -s torchrun "$scratch/stubs/accelerate"
ln -s torchrun "$scratch/stubs/tune"
PATH=$scratch/stubs:$PATH
touch "$scratch/train.py"

# lines PROGRAM FIRST_WORD [KEYS ...]
lines() {
    local to=$1 first=$2
    shift 2
    "$program" launch --to "$to" "$@" --gpu h100-sxm --gpus 16 --seq 4k -o "$scratch/$to" >"$scratch/out" 2>"$scratch/err" ||
        { failed "launch --to $to: $(tail -n 2 "$scratch/err")" && return; }
    rm -f "$scratch"/started.*
    TRAIN=$scratch/train.py MASTER_ADDR=first timeout 30 "$scratch/$to/launch.sh" >"$scratch/out" 2>"$scratch/err" ||
        failed "launch.sh of $to: $(tail -n 3 "$scratch/err")"
    [[ -s $scratch/started.0 && -s $scratch/started.1 ]] || failed "$to was not started on both nodes: $(tail -n 3 "$scratch/err")"
    [[ $(head -n 1 "$scratch/started.0") == "$first" ]] || failed "$to was started as $(head -n 1 "$scratch/started.0")"
    grep -q 'first' "$scratch/started.1" || failed "the second node of $to does not know the first: $(cat "$scratch/started.1")"
    # Each node has its number where it is told one, and every other word is the same.
    diff "$scratch/started.0" "$scratch/started.1" | grep '^[<>]' | grep -qv '^[<>] [01]$' && failed "nodes of $to were started unlike"
    [[ $first != accelerate || $(grep -A1 -x -e --machine_rank "$scratch/started.1" | tail -n 1) == 1 ]] ||
        failed "accelerate's second node is none: $(cat "$scratch/started.1")"
}
lines torchtitan torchrun --model llama-3-8b --compile --checkpointing selective
lines accelerate accelerate --model llama-2-7b --reduce-dtype bf16 --checkpointing full --fsdp1
lines deepspeed torchrun --model llama-2-7b --runtime deepspeed --strategy zero2 --accumulate 4
lines megatron torchrun --model llama-3-8b --runtime megatron --strategy zero1 --tp 2 --pp 2 --accumulate 8
lines bridge torchrun --model llama-3-8b --runtime megatron --strategy zero1 --tp 2
lines nemo torchrun --model llama-3-8b --runtime megatron --strategy zero1 --tp 2
lines nanotron torchrun --model llama-3-8b --runtime nanotron --strategy zero1 --tp 2
lines torchtune tune --model llama-3.1-8b --strategy full_shard --precision bf16-pure --lora 16 --lora-alpha 32 --base nf4 --checkpointing full
lines peft accelerate --model llama-2-7b --strategy ddp --precision bf16-mixed --lora 16 --lora-alpha 32 --lora-dtype fp32 --runtime peft \
    --checkpointing full
if ((failures)); then
    echo "$failures failed"
    exit 1
fi
echo "seven programs were started on two nodes by srun"
