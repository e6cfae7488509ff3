#!/usr/bin/env bash
# PowerSGD between two pretended nodes, predicted by a probe of their link and measured: powersgd_nodes.sh BINARIES OUTPUT
#
#   BINARIES   the folder of dtplan and dtplan-exec (with CUDA)
#   OUTPUT     a folder: rows.csv, the machine files, and what each run said
#
# Two GPUs, each a node, that talk by loopback sockets: a GPU alone is probed, then sums between the two, then ddp of LLaMA
# 1.3B trains without a hook and with PowerSGD of rank 4, both predicted with the machine file. A run that fails is a row
# with its status. The environment may say
#   MODEL      flags of the model (LLaMA 1.3B, 1 x 2048)      HOOKS    comm_hooks, each with its flags behind colons
#   STEPS      of each run (30)                               LIMIT_S  seconds of one command (300)
#   GPU_KEY    their catalogue key (h200)                  MACHINE  a machine file of one such GPU, instead of its probe
#   DEVICE     cuda, or host to try the script: ranks of a host meet in its memory, whatever nodes are pretended of them
set -uo pipefail

(($# == 2)) || { sed -n '2,5p' "${BASH_SOURCE[0]}" >&2 && exit 2; }
program=$(realpath -- "$1/dtplan")
mkdir -p -- "$2" || exit 3
output=$(realpath -- "$2")
[[ -x $program ]] || { echo "powersgd_nodes.sh: $program: there is no such program" >&2 && exit 2; }
model=${MODEL:---layers 24 --hidden 2048 --heads 16 --ffn 5504 --vocab 32000 --seq 2048 --micro-batch 1}
hooks=${HOOKS:-none powersgd:--powersgd-rank:4}
steps=${STEPS:-30}
limit_s=${LIMIT_S:-300}
device=${DEVICE:-cuda}
machine=$output/two_nodes.csv
rows=$output/rows.csv

# Flags of both nodes' ranks, and of who they are.
if [[ $device == cuda ]]; then
    nodes=(--gpus-per-node 1 --pretend-nodes)
    job=(--gpu "${GPU_KEY:-h200}" --network sockets)
else
    nodes=()
    job=(--threads 1 --precision fp32)
fi

# probe NAME.csv FLAGS...
probe() {
    local file=$1
    shift
    timeout "$limit_s" "$program" probe --device "$device" "$@" -o "$output/$file" >"$output/${file%.csv}.txt" 2>&1 && return
    echo "powersgd_nodes.sh: the probe failed: $(tail -n 1 "$output/${file%.csv}.txt")" >&2
    exit 3
}
# shellcheck disable=SC2086 # words of MODEL
if [[ $device == cuda ]]; then
    [[ -n ${MACHINE-} ]] || probe one.csv --gpus 1 --gpu "${GPU_KEY:-h200}" --runtime dtplan $model
    probe two_nodes.csv --machine "${MACHINE:-$output/one.csv}" --gpus 2 "${nodes[@]}"
else
    probe two_nodes.csv --gpus 2
fi

echo 'hook,steps,predicted_step_s,measured_step_s,off,sent_bytes,predicted_sent_bytes,first_loss,last_loss,status' >"$rows"
for hook in $hooks; do
    name=${hook%%:*}
    # shellcheck disable=SC2086 # words of MODEL, and of the hook
    timeout "$limit_s" "$program" run --device "$device" $model --runtime dtplan --strategy ddp --gpus 2 "${nodes[@]}" "${job[@]}" \
        --machine "$machine" --comm-hook ${hook//:/ } --steps "$steps" --seed 1 --log "$output/$name.losses.csv" --json \
        >"$output/$name.json" 2>"$output/$name.txt" </dev/null
    status=$?
    python3 - "$name" "$steps" "$status" "$output/$name.json" >>"$rows" <<'END'
import csv, json, sys

name, steps, status, path = sys.argv[1:]
try:
    with open(path) as file:
        run = json.load(file)
except (OSError, ValueError):
    run = {}
time, loss, sent = run.get("time", {}), run.get("loss", {}), run.get("communication", {}).get("all_reduce", {})
predicted, measured = time.get("predicted_step_s"), time.get("measured_step_s")
off = predicted / measured - 1 if predicted and measured else ""
csv.writer(sys.stdout, lineterminator="\n").writerow(
    [name, steps, predicted, measured, off, sent.get("measured_bytes"), sent.get("predicted_bytes"), loss.get("first"), loss.get("last"), status])
END
done
cat "$rows"
