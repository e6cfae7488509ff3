#!/usr/bin/env bash
# A program set of two stages on two GPUs, transfers over NCCL, learns what one GPU learns that has the whole model:
# check_two_stages.sh DTPLAN SOURCE_TREE. 77: fewer than two GPUs here. DEVICE=host tries it on the host, where losses are
# the same to the digit; on GPUs both compute the same kernels on the same operands, so that they may differ by one in the
# last digit that fp32 has.
set -uo pipefail

program=$1
source=$2
export DTPLAN_DATA=$source/scenarios LC_ALL=C.UTF-8
device=${DEVICE:-cuda}
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
[[ $device == host ]] || ((gpus >= 2)) || { echo "fewer than two GPUs: nothing to compare" && exit 77; }
scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT
cd -- "$scratch" || exit 1

how=(--device "$device" --steps 20 --lr 1e-2)
[[ $device == cuda ]] && how+=(--matmul-choices choices.txt)
[[ $device == host ]] && how+=(--threads 1)
model=(--layers 2 --hidden 16 --heads 2 --head-dim 8 --ffn 40 --vocab 50 --seq 8 --micro-batch 2 --precision fp32
    --no-gradient-norm --strategy ddp --gpus 1)

fail() {
    echo "FAILED: $*"
    exit 1
}

timeout 300 "$program" run "${model[@]}" "${how[@]}" --log one.csv >one.out 2>one.err </dev/null ||
    fail "one rank: $(cat one.err)"
timeout 300 "$program" run --program-file "$source/scenarios/two-stages.set" "${how[@]}" --log two.csv >two.out 2>two.err \
    </dev/null || fail "two stages: $(cat two.err)"
[[ $(grep -c '^  \(first\|last\) stage .*%$' two.out) == 2 ]] || fail "no times of the stages: $(cat two.out)"
paste -d, <(cut -d, -f1,2 one.csv) <(cut -d, -f1,2 two.csv) | awk -F, -v exact="$([[ $device == host ]] && echo 1)" '
    NR == 1 { next }
    {
        off = ($2 - $4) / $2
        off = off < 0 ? -off : off
        if ($1 != $3 || off > (exact ? 0 : 1e-6)) {
            printf "step %s: loss %s of one rank, %s of two stages\n", $1, $2, $4
            bad = 1
        }
    }
    END { exit bad || NR != 21 }' || fail "losses differ"
cat two.out
