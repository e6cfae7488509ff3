#!/usr/bin/env bash
# Elastic runs that other launchers start again: check_restarts.sh DTPLAN_EXEC SOURCE_TREE KIND. A rank is killed in each, and the run ends
# with the loss of one that nothing happened to. Skipped, exit status 77, where the launcher is not installed; srun and mpirun also
# without DTPLAN_TEST_LAUNCHERS: whether a rank is still there to be killed is a race between daemons and a run of seconds.
#   torchrun   PyTorch's own (TORCHRUN names it), which starts all ranks again
#   srun       four tasks of a job under a Slurm of the test's own (private_slurm.sh); the job asks to be requeued, and Slurm starts it again
#   mpirun     four ranks by Open MPI, whose command is given once more, with --resume
#   variables  two ranks by what Slurm sets alone: the same SLURM_JOB_ID, SLURM_RESTART_COUNT 1 when requeued (sbatch(1), --requeue)
set -uo pipefail
# shellcheck source=tests/cli/says.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/says.sh"
# shellcheck source=tests/cli/private_slurm.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/private_slurm.sh"

program=$1
source=$2
kind=$3
scratch=$(mktemp -d)
trap 'stop_private_slurm; rm -rf -- "$scratch"' EXIT

torchrun=${TORCHRUN:-torchrun}
ranks=2
case $kind in
    torchrun)
        command -v "$torchrun" >/dev/null || { echo "skipped: no torchrun here; TORCHRUN=PATH names one" && exit 77; }
        ;;
    srun)
        wants_launchers || exit 77
        missing=$(has_private_slurm) || { echo "skipped: no $missing here" && exit 77; }
        PATH=$PATH:/usr/sbin
        ranks=4
        ;;
    mpirun)
        wants_launchers || exit 77
        mpirun --version 2>/dev/null | grep -q 'Open MPI' || { echo "skipped: no Open MPI here" && exit 77; }
        export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 # of a container's tests
        ranks=4
        ;;
esac

job=(--data-directory "$source/scenarios" --device host --threads 1 --lr 1e-3 --elastic "$ranks:$ranks" --on-loss wait
    --snapshot-every 10 --set runtime=dtplan --set precision=fp32 --set "gpus=$ranks" --set strategy=full_shard --set layers=2
    --set hidden=32 --set heads=2 --set ffn=64 --set vocab=64 --set seq=16 --set micro_batch=2)

# Mean loss of the last ten steps of a file of events.
last_losses() {
    grep '"event":"step"' "$1" | tail -n 10 | sed -n 's/.*"loss":\([-+.0-9e]*\).*/\1/p' | awk '{ sum += $1 } END { printf "%.6f", sum / NR }'
}

# Of the processes of this test the one that is rank 1 of the job.
rank_1() {
    local process
    for process in /proc/[0-9]*; do
        if [[ $(readlink "$process/exe" 2>/dev/null) == "$(readlink -f "$program")" ]] && grep -qzF "$scratch" "$process/cmdline" &&
            tr '\0' '\n' <"$process/environ" | grep -qxE 'RANK=1|SLURM_PROCID=1|OMPI_COMM_WORLD_RANK=1'; then
            echo "${process#/proc/}"
            return
        fi
    done
    return 1
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
start_variables() {
    local rank
    for rank in 0 1; do
        SLURM_JOB_ID=$((1000 + $$)) SLURM_PROCID=$rank SLURM_NTASKS=2 SLURM_LOCALID=$rank SLURM_TASKS_PER_NODE=2 SLURM_NTASKS_PER_NODE=2 \
            SLURM_STEP_NUM_TASKS=2 SLURM_NNODES=1 SLURM_STEP_ID=0 SLURM_RESTART_COUNT=$2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$3 \
            timeout 600 "$program" "${job[@]}" --steps "$steps" --snapshots "$scratch/$1" >>"$scratch/$1.$rank" 2>>"$scratch/$1.err" </dev/null &
        pids[rank]=$!
    done
}

start_torchrun() {
    timeout 600 "$torchrun" --nproc-per-node 2 --max-restarts 2 --master-port "$3" --no-python "$program" "${job[@]}" --steps "$steps" \
        --snapshots "$scratch/$1" >"$scratch/$1.0" 2>"$scratch/$1.err" </dev/null &
    pids=("$!")
}

start_mpirun() {
    local again=()
    (($2)) && again=(--resume)
    MASTER_PORT=$3 timeout 600 mpirun -np "$ranks" --oversubscribe -x MASTER_PORT "$program" "${job[@]}" --steps "$steps" "${again[@]}" \
        --snapshots "$scratch/$1" >>"$scratch/$1.0" 2>>"$scratch/$1.err" </dev/null &
    pids=("$!")
}

# A job that asks Slurm for another turn when its ranks did not end well, once.
start_srun() {
    cat >"$scratch/$1.sh" <<SCRIPT
#!/usr/bin/env bash
srun --ntasks=$ranks --kill-on-bad-exit=1 $(printf '%q ' "$program" "${job[@]}" --steps "$steps" --snapshots "$scratch/$1") && exit
[[ \${SLURM_RESTART_COUNT:-0} == 0 ]] && scontrol requeue "\$SLURM_JOB_ID" && sleep 30
exit 1
SCRIPT
    job_id=$(sbatch --parsable --requeue --open-mode=append --ntasks="$ranks" --chdir="$scratch" --output="$scratch/$1.0" \
        --error="$scratch/$1.err" "$scratch/$1.sh")
    pids=()
}

finish() {
    local pid status=0 tries state
    for pid in "${pids[@]}"; do
        wait "$pid" || status=$?
    done
    for ((tries = 0; tries < 600 && ${#pids[@]} == 0; tries++)); do
        state=$(scontrol show job --oneliner "$job_id" | sed -n 's/.* JobState=\([A-Z_]*\) .*/\1/p')
        case $state in
            COMPLETED) return 0 ;;
            PENDING | RUNNING | COMPLETING | CONFIGURING | REQUEUED) sleep 0.1 ;;
            *) return 1 ;;
        esac
    done
    return "$status"
}

# Kills rank 1 of a run once 30 steps were made. False where it had ended by then.
strike() {
    local victim
    await_step "$scratch/struck.0" 1
    victim=$(rank_1) || return # looked for before, for 300 steps take a second or two
    await_step "$scratch/struck.0" 30 || failed "no step 30: $(tail -n 5 "$scratch/struck.err")"
    kill -9 "$victim" 2>/dev/null
}

port=$((20000 + $$ % 20000))
if [[ $kind == srun ]] && ! start_private_slurm "$scratch/slurm" "$ranks"; then
    echo "FAILED: Slurm does not come up: $(tail -n 3 "$scratch"/slurm/*.out)" && exit 1
fi
# Where others have the cores, this script may not get one until all steps are made: then once more, with more of them.
for steps in 300 1500 7500 none; do
    [[ $steps != none ]] || { echo "FAILED: rank 1 had ended before it was killed, each time" && exit 1; }
    rm -rf "$scratch"/calm* "$scratch"/struck*
    "start_$kind" calm 0 "$port"
    finish || { tail -n 5 "$scratch/calm.err" && echo "FAILED: the undisturbed run" && exit 1; }
    "start_$kind" struck 0 "$((port + 1))"
    ! strike || break
    finish || { tail -n 5 "$scratch/struck.err" && echo "FAILED: a run that nobody struck" && exit 1; }
    port=$((port + 2))
done
if [[ $kind == variables || $kind == mpirun ]]; then # which start nobody again
    finish && failed "ranks that lost one ended as if nothing had happened"
    "start_$kind" struck 1 "$((port + 2))"
fi
finish || failed "the ranks that were started again: $(tail -n 8 "$scratch/struck.err")"

calm=$(last_losses "$scratch/calm.0")
struck=$(last_losses "$scratch/struck.0")
[[ $calm == "$struck" ]] || failed "the loss is $struck, undisturbed $calm: $(tail -n 8 "$scratch/struck.err")"
grep -q "\"event\":\"step\",\"step\":${steps}[,}]" "$scratch/struck.0" || failed "step $steps is missing: $(tail -n 2 "$scratch/struck.0")"
grep -q '"from":"snapshot"' "$scratch/struck.0" || failed "nothing went on from a snapshot: $(tail -n 8 "$scratch/struck.err")"
[[ $(grep -c '"event":"start"' "$scratch/struck.0") == 2 ]] || failed "ranks did not begin twice"
if ((failures)); then
    echo "$failures failed"
    exit 1
fi
echo "$kind: loss $struck after a rank was killed and started again, undisturbed $calm"
