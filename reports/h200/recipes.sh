#!/usr/bin/env bash
# Loss of a small model on real text in each recipe beside bf16's: recipes.sh BINARIES TEXT OUTPUT
#
#   BINARIES   the folder of dtplan and dtplan-exec (with CUDA)
#   TEXT       any text of some megabytes: its bytes are the tokens
#   OUTPUT     a folder: rows.csv (a row a run: recipe, seed, steps, mean loss of the last tenth), recipes.csv (a row a recipe: its mean over
#              the seeds, and how far it is from bf16's with the same seeds, in percent), the log of each run
#
# A run that fails is a row with its reason, and the next is run; the exit status is 1 then, or where a recipe is further from bf16 than is
# allowed. The environment may say
#   RECIPES    flags of each, by its name (below)    SEEDS     (1 2 3)
#   STEPS      of a run (2000)                       ALLOWED   percent (0.5)
#   JOBS       seeds of a recipe at once (3)
#   DEVICE     cuda, or host to try the script       GPU_KEY   its catalogue key (h200)
#   MODEL      flags of the model and its batch (4 layers of 256, 8 x 256 tokens)
#   LIBRARIES  folders that dtplan finds its libraries in first
set -uo pipefail

(($# == 3)) || { sed -n '2,7p' "${BASH_SOURCE[0]}" >&2 && exit 2; }
program=$(realpath -- "$1/dtplan")
text=$(realpath -- "$2")
for file in "$program" "$text"; do
    [[ -r $file ]] || { echo "recipes.sh: $file: there is no such file" >&2 && exit 2; }
done
mkdir -p -- "$3" || exit 3
output=$(realpath -- "$3")
steps=${STEPS:-2000}
model=${MODEL:---layers 4 --hidden 256 --heads 4 --ffn 688 --vocab 256 --seq 256 --micro-batch 8}
recipes=${RECIPES:-bf16=--precision bf16-mixed;fp16=--precision fp16-mixed;fp8-tensorwise=--precision fp8-tensorwise;fp8-rowwise=--precision fp8-rowwise;fp8-rowwise-gw-hp=--precision fp8-rowwise-gw-hp;fp8-blockwise=--precision fp8-blockwise;adam8bit=--precision bf16-mixed --optimizer adam8bit}
rows=$output/rows.csv
echo 'recipe,seed,steps,loss,status' >"$rows"

# run RECIPE FLAGS SEED: the mean of the last tenth of its losses, of its log. Flags and models are words.
run() {
    local log=$output/$1-$3.csv status=ok loss
    rm -f -- "$log"
    # shellcheck disable=SC2086
    LD_LIBRARY_PATH=${LIBRARIES:+$LIBRARIES:}${LD_LIBRARY_PATH-} "$program" run $model $2 --gpu "${GPU_KEY:-h200}" --gpus 1 --strategy ddp \
        --device "${DEVICE:-cuda}" --data "$text" --data-type bytes --seed "$3" --steps "$steps" --warmup $((steps / 20)) --lr 1e-3 \
        --log "$log" >"$output/$1-$3.txt" 2>"$output/$1-$3.err"
    loss=$(awk -F, -v last=$((steps - steps / 10)) 'NR > 1 && $1 > last { sum += $2; n++ } END { if (n) printf "%.6f", sum / n }' "$log" 2>/dev/null)
    [[ $(tail -n 1 -- "$log" 2>/dev/null) == "$steps,"* ]] || status=$(tail -n 1 -- "$output/$1-$3.err" | tr ',"' '; ')
    echo "$1,$3,$steps,$loss,${status:-ended early}" >>"$rows"
}

while IFS='=' read -r -d ';' recipe flags; do
    for seed in ${SEEDS:-1 2 3}; do
        while (($(jobs -rp | wc -l) >= ${JOBS:-3})); do
            wait -n
        done
        run "$recipe" "$flags" "$seed" &
    done
    wait
done <<<"$recipes;"

# The first recipe is what the others stand beside.
awk -F, -v allowed="${ALLOWED:-0.5}" '
    NR == 1 { print "recipe,seeds,loss,apart_percent"; next }
    $5 != "ok" { failed = 1; next }
    !($1 in seeds) { order[++count] = $1 }
    { of[$1, $2] = $4; sum[$1] += $4; seeds[$1]++; known[$2] = 1 }
    END {
        for (i = 1; i <= count; i++) {
            r = order[i]; apart = n = 0
            for (s in known) if ((r, s) in of && (order[1], s) in of) { apart += of[r, s] / of[order[1], s] - 1; n++ }
            apart = n ? 100 * apart / n : 0
            printf "%s,%d,%.6f,%.3f\n", r, seeds[r], sum[r] / seeds[r], apart
            if (apart > allowed || !n) failed = 1
        }
        exit failed
    }' "$rows" | tee "$output/recipes.csv"
