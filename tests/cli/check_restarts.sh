#!/usr/bin/env bash
# Elastic runs that other launchers start again: check_restarts.sh DTPLAN_EXEC SOURCE_TREE [KIND]. KIND torchrun: PyTorch's own, where
# it is installed (TORCHRUN names it; skipped, exit status 77, where it is not); a rank is killed, torchrun starts all again. KIND srun,
# the default: ranks as Slurm starts them, by its variables, and again when the job is requeued (same SLURM_JOB_ID, SLURM_RESTART_COUNT
# 1; sbatch(1), --requeue). Both end with the loss of the run that nothing happened to.
set -uo pipefail
# shellcheck source=tests/cli/says.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/says.sh"

program=$1
source=$2
kind=${3:-srun}
scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT

torchrun=${TORCHRUN:-torchrun}
if [[ $kind == torchrun ]] && ! command -v "$torchrun" >/dev/null; then
    echo "skipped: no torchrun here; TORCHRUN=PATH names one"
    exit 77
fi

job=(--data-directory "$source/scenarios" --device host --threads 1 --steps 300 --lr 1e-3 --elastic 2:2 --on-loss wait
    --snapshot-every 10 --set runtime=dtplan --set precision=fp32 --set gpus=2 --set strategy=full_shard --set layers=2
    --set hidden=32 --set heads=2 --set ffn=64 --set vocab=64 --set seq=16 --set micro_batch=2)

# Mean loss of the last ten steps of a file of events.
last_losses() {
    grep '"event":"step"' "$1" | tail -n 10 | sed -n 's/.*"loss":\([-+.0-9e]*\).*/\1/p' | awk '{ sum += $1 } END { printf "%.6f", sum / NR }'
}

# rank_of PROCESS: of its descendants the one that is rank 1 of the job.
rank_of() {
    local child children
    read -ra children <"/proc/$1/task/$1/children"
    for child in "${children[@]}"; do
        if [[ $(readlink "/proc/$child/exe") == "$(readlink -f "$program")" ]]; then
            tr '\0' '\n' <"/proc/$child/environ" | grep -qxE 'RANK=1|SLURM_PROCID=1' && echo "$child"
        else
            rank_of "$child"
        fi
    done
}

# Until FILE has an event of step NUMBER or a later one; false when nobody comes there.
await_step() {
    local tries last
    for ((tries = 0; tries < 600; tries++)); do
        last=$(grep -o '"event":"step","step":[0-9]*' "$1" 2>/dev/null | tail -n 1)
        ((${last##*:} + 0 >= $2)) && return
        sleep 0.05
    done
    return 1
}

# Two ranks of one task each, as srun starts them; all end when one does, as with --kill-on-bad-exit.
start_srun() {
    local rank
    for rank in 0 1; do
        SLURM_JOB_ID=$((1000 + $$)) SLURM_PROCID=$rank SLURM_NTASKS=2 SLURM_LOCALID=$rank SLURM_TASKS_PER_NODE=2 SLURM_NTASKS_PER_NODE=2 \
            SLURM_STEP_NUM_TASKS=2 SLURM_NNODES=1 SLURM_STEP_ID=0 SLURM_RESTART_COUNT=$2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$3 \
            timeout 60 "$program" "${job[@]}" --snapshots "$scratch/$1" >>"$scratch/$1.$rank" 2>>"$scratch/$1.err" </dev/null &
        pids[rank]=$!
    done
}

start_torchrun() {
    timeout 60 "$torchrun" --nproc-per-node 2 --max-restarts 2 --master-port "$2" --no-python "$program" "${job[@]}" \
        --snapshots "$scratch/$1" >"$scratch/$1.0" 2>"$scratch/$1.err" </dev/null &
    pids=("$!")
}

finish() {
    local pid status=0
    for pid in "${pids[@]}"; do
        wait "$pid" || status=$?
    done
    return "$status"
}

port=$((20000 + $$ % 20000))
if [[ $kind == torchrun ]]; then
    start_torchrun calm $port
    finish || { tail -n 5 "$scratch/calm.err" && echo "FAILED: the undisturbed run" && exit 1; }
    start_torchrun struck $((port + 1))
    await_step "$scratch/struck.0" 30 || failed "no step 30: $(tail -n 5 "$scratch/struck.err")"
    kill -9 "$(rank_of "${pids[0]}")" || failed "no rank 1 to kill"
    finish || failed "torchrun did not end well: $(tail -n 8 "$scratch/struck.err")"
else
    start_srun calm 0 $port
    finish || { tail -n 5 "$scratch/calm.err" && echo "FAILED: the undisturbed run" && exit 1; }
    start_srun struck 0 $((port + 1))
    await_step "$scratch/struck.0" 30 || failed "no step 30: $(tail -n 5 "$scratch/struck.err")"
    kill -9 "$(rank_of "${pids[1]}")" || failed "no rank 1 to kill"
    finish && failed "ranks that lost one ended as if nothing had happened"
    start_srun struck 1 $((port + 2))
    finish || failed "the requeued job: $(tail -n 8 "$scratch/struck.err")"
fi

calm=$(last_losses "$scratch/calm.0")
struck=$(last_losses "$scratch/struck.0")
[[ $calm == "$struck" ]] || failed "the loss is $struck, undisturbed $calm: $(tail -n 8 "$scratch/struck.err")"
grep -q '"event":"step","step":300[,}]' "$scratch/struck.0" || failed "step 300 is missing: $(tail -n 2 "$scratch/struck.0")"
grep -q '"from":"snapshot"' "$scratch/struck.0" || failed "nothing went on from a snapshot: $(grep '"begin"' "$scratch/struck.0")"
[[ $(grep -c '"event":"start"' "$scratch/struck.0") == 2 ]] || failed "ranks did not begin twice"
if ((failures)); then
    echo "$failures failed"
    exit 1
fi
echo "$kind: loss $struck after a rank was killed and started again, undisturbed $calm"
