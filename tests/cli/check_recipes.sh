#!/usr/bin/env bash
# reports/h200/recipes.sh with a small model on the host: check_recipes.sh DTPLAN SOURCE_TREE
set -uo pipefail
# shellcheck source=tests/cli/says.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/says.sh"

enter "$@"

recipes() {
    DEVICE=host STEPS=10 SEEDS=1 MODEL="--layers 1 --hidden 32 --heads 2 --ffn 48 --vocab 256 --seq 32 --micro-batch 1" \
        RECIPES=$1 ALLOWED=$2 "$source/reports/h200/recipes.sh" "$(dirname -- "$program")" "$source/CHANGES" out >said 2>&1
}

recipes "bf16=--precision bf16-mixed;fp32=--precision fp32" 0.5 || failed "two recipes that are near each other: $(cat said)"
[[ $(wc -l <out/rows.csv) == 3 && $(grep -c ',1,10,[0-9.]*,ok$' out/rows.csv) == 2 ]] || failed "rows: $(cat out/rows.csv)"
[[ $(sed -n 2p out/recipes.csv) == bf16,1,*,0.000 ]] || failed "recipes: $(cat out/recipes.csv)"

# One that hardly learns is further away than is allowed; one that cannot run has a reason.
recipes "bf16=--precision bf16-mixed;sgd=--precision bf16-mixed --optimizer sgd" 0.001 && failed "all was well: $(cat said)"
grep -q '^sgd,1,[0-9.]*,[0-9]' out/recipes.csv || failed "recipes: $(cat out/recipes.csv)"
recipes "bf16=--precision bf16-mixed;none=--precision fp9" 0.5 && failed "all was well: $(cat said)"
grep -q '^none,1,10,,..*precision' out/rows.csv || failed "no reason: $(cat out/rows.csv)"

((failures == 0)) && echo "recipes.sh: all as wanted"
exit $((failures > 0))
