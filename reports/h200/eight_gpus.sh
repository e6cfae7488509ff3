#!/usr/bin/env bash
# The handshake on all GPUs of this machine, eight being meant: eight_gpus.sh BINARIES REFERENCE.py OUTPUT
#
#   BINARIES   the folder of dtplan and dtplan-exec (with CUDA)
#   REFERENCE  a PyTorch script as side_by_side.sh takes it
#   OUTPUT     a folder, which may be one of an earlier call: what is there is not measured again
#
# Probes the machine, runs the jobs of validate_eight.scenarios, predicts them again by that probe, runs 7B beside PyTorch, and says which of
# the lines asked of eight GPUs hold (OUTPUT/lines.txt). Exit status 1 where one does not or was not measured. The environment may say
#   PARTS      which of probe, validate, beside and lines (all)      BUDGET_S   seconds of all parts together (570)
#   JOBS       the list of jobs (validate_eight.scenarios)           GPU_KEY    their catalogue key (h200)
#   DEVICE     cuda, or host to try the script                       LIBRARIES  folders that dtplan finds its libraries in first
set -uo pipefail

(($# == 3)) || { sed -n '2,6p' "${BASH_SOURCE[0]}" >&2 && exit 2; }
here=$(CDPATH='' cd -P -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
binaries=$(realpath -- "$1")
program=$binaries/dtplan
reference=$(realpath -- "$2")
jobs=$(realpath -- "${JOBS:-$here/validate_eight.scenarios}")
for file in "$program" "$reference" "$jobs"; do
    [[ -r $file ]] || { echo "eight_gpus.sh: $file: there is no such file" >&2 && exit 2; }
done
mkdir -p -- "$3" || exit 3
cd -- "$3" || exit 3
device=${DEVICE:-cuda}
gpu=${GPU_KEY:-h200}
budget_s=${BUDGET_S:-570}
export LD_LIBRARY_PATH=${LIBRARIES:+$LIBRARIES:}${LD_LIBRARY_PATH-}
machine=()
[[ $device == cuda ]] && machine=(--matmul-choices choices.txt --atomic-attention --no-gradient-norm)

wanted() {
    [[ " ${PARTS:-probe validate beside lines} " == *" $1 "* ]]
}

# timed NAME COMMAND...: within what is left of the time, its words in NAME.out and NAME.err.
timed() {
    local name=$1 left=$((budget_s - SECONDS)) status
    shift
    ((left > 5)) || { echo "$name: no time was left" && return; }
    timeout -k 5 "$left" "$@" >"$name.out" 2>"$name.err" </dev/null
    status=$?
    printf '%3d s  %s: exit status %d\n' "$SECONDS" "$name" "$status"
}

if wanted probe && [[ ! -s machine.csv ]]; then
    timed probe "$program" probe --device "$device" --gpu "$gpu" -o machine.csv
fi
if wanted validate; then
    timed validate "$program" validate "$jobs" --gpu "$gpu" --device "$device" "${machine[@]}" --tolerance 10% --resume -o validate.csv
    # The same measured rows beside what the probe predicts: a copy, since rows keep the prediction they were written with.
    if [[ -s machine.csv && -s validate.csv ]]; then
        cp -- validate.csv validate_probed.csv
        timed validate_probed "$program" validate "$jobs" --gpu "$gpu" --device "$device" "${machine[@]}" --machine machine.csv \
            --tolerance 5% --resume -o validate_probed.csv
    fi
fi
if wanted beside; then
    grep -E '^#|LLaMA 7B full_shard, 8 x 2048' "$here/side_by_side.jobs" >beside.jobs
    BUDGET_S=$((budget_s - SECONDS)) LIMIT_S=${LIMIT_S:-90} timed beside "$here/side_by_side.sh" "$binaries" "$reference" beside beside.jobs
fi
wanted lines || exit 0
# The operations that a share of the peak counts are the plan's of the job that it is asked of; the time is the measured one.
"$program" plan --runtime dtplan --gpu "$gpu" --gpus 8 --layers 32 --hidden 4096 --heads 32 --ffn 11008 --vocab 32000 --seq 2048 \
    --strategy full_shard --micro-batch 8 --json >plan.json
python3 "$here/eight_gpus_lines.py" plan.json validate.csv validate_probed.csv beside/rows.csv | tee lines.txt
exit "${PIPESTATUS[0]}"
