#!/usr/bin/env bash
# Whether the constants of the model stand in its one table: check_constants.sh SOURCE_TREE [planted]
#
# model/cost has no number besides 0, 1 and 2 elsewhere than in constants.def, and what predicts by it (model/closed,
# model/runtime, sim) no fraction, unless a line below says why it is no constant of the model: mathematics, a count by
# hand that a test holds, a tolerance of a solver. Whoever writes to the table is named below as well. Sizes that
# runtimes set stand in one file each.
set -euo pipefail

cd -- "$1"
scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT

# FILE NUMBER reason
cat >"$scratch/allowed" <<'END'
model/cost/attention_workspace.c 128 what cuDNN's fused kernel takes: multiples of sequences, widest head
model/cost/attention_workspace.c 8 what it takes: multiples of the head's width
model/cost/attention_workspace.c 256 bytes it asks for, read off and exact
model/cost/attention_workspace.h 256u alignment of what our executor lays out
model/cost/attention_workspace.h 30 a bound that our executor sets itself
model/cost/cluster_cost.c 1024 a shape to ask a machine file with
model/cost/grouped_matmul.c 128 an edge of two tiles that PyTorch's kernel has
model/cost/grouped_matmul.c 256 an edge of two tiles that PyTorch's kernel has
model/cost/mma_attention.c 32 tile of our kernels on tensor cores, heads wider than 128
model/cost/mma_attention.c 64 their tile and their blocks; widths that they are made for
model/cost/mma_attention.c 96 widths that they are made for
model/cost/mma_attention.c 128 widths that they are made for
model/cost/mma_attention.c 192 widths that they are made for
model/cost/mma_attention.c 256 widths that they are made for
model/cost/op_cost.c 128 tiles that cuBLAS has
model/cost/op_cost.c 192 tiles that cuBLAS has
model/cost/op_cost.c 256 tiles that cuBLAS has
model/cost/op_cost.c 4 bytes and passes of a parameter, counted by hand
model/cost/op_cost.c 10 passes of foreach AdamW over a state, counted by hand
model/cost/op_cost.c 5 passes of foreach SGD over its momentum, counted by hand
model/cost/op_cost.c 3 passes of Adafactor over parameters and over gradients, counted by hand
model/cost/op_cost.c 11 passes of Adafactor over its estimate, of Adam-mini over what it makes, counted by hand
model/cost/op_cost.c 16 passes of a loop of AdamW over its moments and what it makes of them, counted by hand
model/cost/op_cost.c 0.375 Blom's approximation
model/cost/op_cost.c 0.25 Blom's approximation
model/cost/plain_attention.c 64 tile of our kernel, forward; widths that it is made for
model/cost/plain_attention.c 32 its tile, backward
model/cost/plain_attention.c 128 widths that it is made for
model/cost/plain_attention.c 16 threads along an edge of a tile; columns of the widest
model/cost/plain_attention.c 8 its warps; columns
model/cost/plain_attention.c 4 products, counted by hand; columns
model/cost/plain_attention.c 3 products, counted by hand
model/closed/block_work.c 2.5 passes of a norm's backward, counted by hand
model/runtime/deepspeed/deepspeed_hooks.c 0.5 bytes of an int4
model/runtime/deepspeed/lower_infinity.c 28.0 bytes of AdamW on the host, counted by hand
model/runtime/dtplan/executor_work.c 4.0 bytes, counted by hand
model/runtime/dtplan/executor_block_traffic.c 4.0 bytes, counted by hand
model/runtime/dtplan/executor_latent_work.c 4.0 bytes, counted by hand
sim/noise.c 0.1 the slowest that a draw may make a GPU
sim/noise.c 0.50 a quantile
sim/noise.c 0.95 a quantile
sim/noise.c 0.99 a quantile
sim/noise.c 2.5 where a curve over normal deviates is computed
sim/noise.c 3.5 where a curve over normal deviates is computed
sim/noise.c 5.5 where a curve over normal deviates is computed
sim/search.c 8000.0 how much a search may cost
sim/search.c 60000.0 how much a search may cost
sim/search.c 16000.0 how much work a search spends on pipelines
sim/search.c 120000.0 how much more it spends once it is known who comes first
sim/search.h 0.05 a search's margin
sim/search.h 365.0 days
sim/search_scan.h 0.15 a search's margin
sim/share.c 1e300 infinity
sim/miniature_time.c 1e-4 tolerance of a check
sim/miniature_time.c 1e-5 tolerance of a check
sim/simulate.h 0.003 tolerance of an iteration
sim/trace.c 1e6 microseconds
sim/trace.c 0.01 where an arrow of a picture begins
sim/beside/causes.c 0.02 a share below which nobody looks for a cause
sim/beside/causes.c 0.5 half of the kernels, of a share
sim/beside/causes.c 0.7 most of a collective
sim/beside/causes.c 1.05 ranks that differ by as much are alike
sim/beside/causes.c 1.25 kernels forward for one backward: between one and two
sim/beside/causes.c 1.5 how much of a share is a stall
sim/beside/causes.c 1.75 kernels forward for one backward: between one and two
sim/beside/causes.c 1e3 milliseconds
sim/beside/causes.c 3.6 bytes of a logit, nine tenths of fp32's four
sim/simulated.c 0.9 which stages' allocators are worth a replay: those whose tensors come so near to the largest
END

# numbers FILE: "FILE NUMBER" for each number of its code; comments, strings and characters are none.
numbers() {
    awk -v file="$1" '
        {
            line = $0
            gsub(/"([^"\\]|\\.)*"|'"'"'([^'"'"'\\]|\\.)*'"'"'/, " ", line)
            while (1) {
                if (inside) {
                    end = index(line, "*/")
                    if (!end) { line = ""; break }
                    line = " " substr(line, end + 2)
                    inside = 0
                }
                start = index(line, "/*")
                if (!start) break
                rest = substr(line, start + 2)
                end = index(rest, "*/")
                if (end) line = substr(line, 1, start - 1) " " substr(rest, end + 2)
                else { line = substr(line, 1, start - 1); inside = 1; break }
            }
            while (match(line, /[A-Za-z_0-9.]+([eEpP][-+][0-9]+)?/)) {
                word = substr(line, RSTART, RLENGTH)
                line = substr(line, RSTART + RLENGTH)
                if (word ~ /^[.]?[0-9]/) print file, word
            }
        }' "$1"
}

find model/cost -name '*.[ch]' -print | sort >"$scratch/cost"
find model/closed model/runtime sim -name '*.[ch]' -print | sort >"$scratch/others"
while read -r file; do
    numbers "$file" | awk '$2 !~ /^([012]u?|0x[0-9a-fA-F]+u?|[01]\.0)$/'
done <"$scratch/cost" >"$scratch/found"
while read -r file; do
    numbers "$file" | awk '$2 !~ /^0x/ && $2 ~ /[.eE]/ && $2 !~ /^[012]\.0$/'
done <"$scratch/others" >>"$scratch/found"
sort -u "$scratch/found" >"$scratch/sorted"
cut -d' ' -f1,2 "$scratch/allowed" | sort -u >"$scratch/keys"

failures=0
while read -r file number; do
    echo "FAILED: $file: $number stands in the code; a constant of the model belongs into model/cost/constants.def"
    failures=$((failures + 1))
done < <(comm -23 "$scratch/sorted" "$scratch/keys")
while read -r file number; do
    echo "FAILED: $file: there is no $number any more; take it off the list in tests/check_constants.sh"
    failures=$((failures + 1))
done < <(comm -13 "$scratch/sorted" "$scratch/keys")

# The table is written by its own functions, and these are called by what asks what constants are worth.
if grep -rnE 'dtp_calibration\.[a-z0-9_]+ *([-+*/]?=[^=]|\+\+|--)' --include='*.[ch]' model sim exec reports cli; then
    echo "FAILED: a constant of the model is written to; dtp_calibration_set does that" && failures=$((failures + 1))
fi
if grep -rlE 'dtp_calibration_(set|restore)\(' --include='*.[ch]' model sim exec reports cli |
    grep -vE '^model/(cost/calibration|runs/(constant_effects|leave_one_out|constant_fit))\.[ch]$'; then
    echo "FAILED: only backtests set constants of the model" && failures=$((failures + 1))
fi

# A size stands once among what lowers a step and what counts its bytes: two files that write 512 MiB by themselves can
# come to differ.
mapfile -t counting < <(find model/plan model/bounds model/closed model/lower model/runtime -name '*.[ch]' -print | sort)
while read -r line; do
    echo "FAILED: a size stands in several files, $line; say it once, as in model/plan/runtime_sizes.h"
    failures=$((failures + 1))
done < <(awk '
    match($0, /(UINT64_C\([0-9]+\)|[0-9]+u?) << (20|30|40)/) {
        size = substr($0, RSTART, RLENGTH)
        gsub(/UINT64_C|[()u]/, "", size)
        if (!seen[size, FILENAME]++) { files[size] = files[size] " " FILENAME; count[size]++ }
    }
    END { for (size in count) if (count[size] > 1) print size ":" files[size] }' "${counting[@]}")

# A check that takes anything would hold nothing: a number planted in a copy is found.
if [[ ${2-} != planted && $failures == 0 ]]; then
    cp -r --parents model sim exec reports cli tests/check_constants.sh "$scratch"
    echo 'static const double planted = 0.57; /* 0.58 */' >>"$scratch/model/cost/op_cost.c"
    echo 'static const uint64_t planted_bytes = UINT64_C(512) << 20;' >>"$scratch/model/plan/plan.c"
    if found=$("$scratch/tests/check_constants.sh" "$scratch" planted); then
        echo "FAILED: a constant outside the table is not found" && failures=$((failures + 1))
    elif [[ $found != *"op_cost.c: 0.57 "* || $found == *0.58* || $found != *"several files, 512 << 20: "* ]]; then
        echo "FAILED: $found" && failures=$((failures + 1))
    fi
fi
exit $((failures > 0))
