#!/usr/bin/env bash
# Two ranks of PyTorch on the cores of a host, over gloo, each run with one thing planted (plants.py), for dtplan compare:
#   two_ranks.sh OUT [NAME,...]
# DTPLAN (dtplan) makes the plans, PYTHON (python3) has PyTorch. Four cores that nothing else uses, a minute or two.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
out=$1 dtplan=${DTPLAN:-dtplan}
plans=$(mktemp -d)
trap 'rm -rf -- "$plans"' EXIT
mkdir -p -- "$out"
job=(--layers 4 --hidden 256 --heads 4 --ffn 704 --vocab 1024 --seq 256 --micro-batch 4 --precision fp32 --gpu h200 --gpus 2)
"$dtplan" plan "${job[@]}" --strategy full_shard --json >"$plans/plan_sharded.json"
"$dtplan" plan "${job[@]}" --strategy full_shard --accumulate 4 --json >"$plans/plan_accumulated.json"
"$dtplan" plan "${job[@]}" --strategy ddp --accumulate 4 --json >"$plans/plan_replicated.json"
export PYTHONPATH=$here/../../../scenarios OMP_NUM_THREADS=1
"${PYTHON:-python3}" -m torch.distributed.run --standalone --nproc-per-node=2 "$here/plants.py" --plan "$plans" --out "$out" \
    --device host ${2:+--only "$2"}
