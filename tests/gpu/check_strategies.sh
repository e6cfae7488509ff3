#!/usr/bin/env bash
# Every strategy, offload, checkpointing and way of carrying collectives learns on several GPUs what one GPU learns, as far
# as bf16 goes: check_strategies.sh DTPLAN SOURCE_TREE. 77: fewer than two GPUs here. DEVICE=host tries it on the host.
#
# The same sequences, divided otherwise: sums of gradients are rounded in another order and, bf16 having 8 bits, weights part
# by some 2^-9 of a step. Losses of 50 steps stay within 2 % of one GPU's at every step and 0.5 % over the last ten.
set -uo pipefail

program=$1
export DTPLAN_DATA=$2/scenarios LC_ALL=C.UTF-8
device=${DEVICE:-cuda}
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
[[ $device == cuda ]] || gpus=4
((gpus >= 2)) || { echo "fewer than two GPUs: nothing to compare" && exit 77; }
scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT
cd -- "$scratch" || exit 1
ranks=$((gpus >= 4 ? 4 : 2))
each=$((8 / ranks))

model=(--layers 3 --hidden 256 --heads 4 --ffn 512 --vocab 512 --seq 128 --steps 50 --lr 1e-3 --device "$device" --gpu h200
    --matmul-choices choices.txt)
at_once=4 # small models leave room
[[ $device == cuda ]] || { model+=(--threads 1 --hidden 32 --ffn 64 --seq 32) && at_once=1; }

# learn NAME KEYS: losses of each step in NAME.csv
learn() {
    local name=$1
    shift
    timeout 120 "$program" run "${model[@]}" "$@" --log "$name.csv" >"$name.out" 2>"$name.err" </dev/null
    echo $? >"$name.status"
}

learn alone --gpus 1 --strategy ddp --micro-batch 8
[[ $(cat alone.status) == 0 ]] || { echo "FAILED: one GPU: $(cat alone.err)" && exit 1; }

jobs=(
    "ddp|--strategy ddp"
    "zero1|--strategy zero1 --gradient-stream"
    "zero2, accumulated|--strategy zero2 --micro-batch 1 --accumulate $each"
    "zero3, checkpointing|--strategy zero3 --checkpointing full"
    "full_shard|--strategy full_shard --prefetch-depth 2"
    "shard_grad_op|--strategy shard_grad_op --checkpointing selective-attention"
    "hybrid_shard|--strategy hybrid_shard --shard-group 2"
    "parameters on the host|--strategy full_shard --offload params --checkpointing full"
    "optimizer on the host|--strategy zero1 --offload optimizer"
    "bf16 gradients|--strategy full_shard --reduce-dtype bf16"
)
if [[ $device == cuda ]]; then
    jobs+=(
        "updated in backward|--strategy full_shard --update-in-backward --no-gradient-norm"
        "gathers by copies|--strategy full_shard --gather-engine copy"
        "all by copies|--strategy shard_grad_op --gather-engine copy --reduce-engine copy"
        "bf16 by copies|--strategy full_shard --gather-engine copy --reduce-engine copy --reduce-dtype bf16"
        "symmetric windows|--strategy full_shard --symmetric-windows"
        "few thread blocks|--strategy zero2 --collective-ctas 4"
        "one graph|--strategy full_shard --cuda-graph"
    )
fi

for i in "${!jobs[@]}"; do
    words=${jobs[i]#*|}
    [[ $words == *--micro-batch* ]] || words+=" --micro-batch $each"
    read -ra keys <<<"$words"
    learn "job$i" --gpus "$ranks" "${keys[@]}" &
    (((i + 1) % at_once == 0)) && wait
done
wait

failures=0
for i in "${!jobs[@]}"; do
    name=${jobs[i]%%|*}
    if [[ $(cat "job$i.status") != 0 ]]; then
        echo "FAILED: $name: exit status $(cat "job$i.status"): $(tail -n 5 "job$i.err")"
        failures=$((failures + 1))
        continue
    fi
    awk -F, -v name="$name" '
        FNR == 1 { for (i = 1; i <= NF; i++) if ($i == "loss") at = i; next }
        NR == FNR { alone[FNR] = $at; next }
        { apart = ($at - alone[FNR]) / alone[FNR]; if (apart < 0) apart = -apart
          if (apart > worst) worst = apart
          if (FNR > 41) { sum += $at; sum_alone += alone[FNR] }
          steps++ }
        END { last = sum / sum_alone - 1
              printf "%-24s %d steps, at most %.2f %% apart, %+.3f %% over the last ten\n", name, steps, 100 * worst, 100 * last
              exit !(steps == 50 && worst < 0.02 && last < 0.005 && last > -0.005) }' alone.csv "job$i.csv" ||
        { echo "FAILED: $name learns otherwise" && failures=$((failures + 1)); }
done
awk -F, 'FNR == 1 { for (i = 1; i <= NF; i++) if ($i == "loss") at = i; next } FNR == 2 { first = $at } { last = $at }
         END { exit !(last < first - 0.1) }' alone.csv || { echo "FAILED: nothing is learned" && failures=$((failures + 1)); }
exit $((failures > 0))
