#!/usr/bin/env bash
# Without a GPU: this machine's cores probed, then predictions by that file against runs: check_host_loop.sh DTPLAN SOURCE_TREE
#
# DTPLAN_TEST_HOST_TOLERANCE (100%) is how far off a step may be; the aim is 15% on an idle machine, with DTPLAN_TEST_HOST_SECONDS=60.
# Where something else runs, a probe and a run a second apart see two machines: the best of three rounds counts.
set -uo pipefail

program=$1
source=$2
tolerance=${DTPLAN_TEST_HOST_TOLERANCE:-100%}
seconds=${DTPLAN_TEST_HOST_SECONDS:-2}
export DTPLAN_DATA=$source/scenarios LC_ALL=C.UTF-8
scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT
cd -- "$scratch" || exit 1

cat >jobs.scenarios <<'END'
--gpus 1 --strategy ddp --precision fp32,bf16-mixed
--gpus 2 --strategy ddp,full_shard,zero2
--gpus 2 --strategy full_shard --accumulate 2 --checkpointing full --precision fp32
END
job=(--layers 2 --hidden 128 --heads 4 --ffn 352 --vocab 512 --seq 64 --micro-batch 2 --device host)

for round in 1 2 3; do
    timeout 300 "$program" probe --device host --gpus 2 --seconds "$seconds" -o here.csv --force >out 2>err </dev/null ||
        { cat out err && exit 1; }
    timeout 200 "$program" validate jobs.scenarios "${job[@]}" --machine here.csv --tolerance "$tolerance" --steps 16 \
        >out 2>err </dev/null
    status=$?
    if ((status == 0)); then
        grep -q "step time of 6: |error| median" out || { echo "FAILED: steps were not compared" && cat out && exit 1; }
        echo "dtplan probe, then validate on the host: all as it should be (round $round)"
        exit 0
    fi
    ((status == 1)) || break
done
cat out err
exit 1
