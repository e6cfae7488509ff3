#!/usr/bin/env bash
# What dtplan run reports of lost ranks, on the host device: check_elastic.sh DTPLAN SOURCE_TREE. One rank is killed, then one is stopped; how
# each was noticed and when stands beside what was predicted, and so do stalls for checkpoints.
set -uo pipefail
# shellcheck source=tests/cli/says.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/says.sh"

enter "$@"
words=(run --layers 2 --hidden 64 --heads 2 --ffn 128 --vocab 300 --seq 8 --gpus 4 --strategy full_shard --device host --threads 1 --steps 600
    --elastic 4:4 --on-loss wait --snapshot-every 10 --snapshots "$scratch/memory" --checkpoint "$scratch/saved" --checkpoint-every 100
    --async-checkpoints --json)

# rank NUMBER: the process that is that rank of this run, at a time when it is there.
rank() {
    local process tries
    for ((tries = 0; tries < 100; tries++)); do
        for process in /proc/[0-9]*; do
            if grep -qzF "$scratch/memory" "$process/cmdline" 2>/dev/null &&
                tr '\0' '\n' <"$process/environ" 2>/dev/null | grep -qx "RANK=$1"; then
                echo "${process#/proc/}"
                return
            fi
        done
        sleep 0.05
    done
    return 1
}

# await COMMAND: until it succeeds, while the run runs.
await() {
    until "$@"; do
        kill -0 "$run" 2>/dev/null || { failed "the run ended before '$*': $(head -c 900 err)" && return 1; }
        sleep 0.02
    done
}
# shellcheck disable=SC2317 # called by await
logged() { [[ $(wc -l 2>/dev/null <log.csv) -ge $1 ]]; }

timeout 300 "$program" "${words[@]}" --log log.csv >out 2>err </dev/null &
run=$!
await logged 20 && kill -KILL "$(rank 2)"
await grep -qF 'generation 1 goes on with 4 ranks' err && sleep 0.5 && kill -STOP "$(rank 1)"
wait "$run" || failed "the run ended with $?: $(head -c 900 err)"

# Of each failure: how it was noticed, when by prediction and measured, and when all ranks had ended.
python3 - out <<'END' || failures=$((failures + 1))
import json, os, sys
run = json.load(open(sys.argv[1]))
late = 180 if os.getloadavg()[0] > (os.cpu_count() or 1) else 1.5 # a machine with other work is late, never early
wrong = []
failures = run["elastic"]["each_failure"]
if [f["noticed_by"] for f in failures] != ["connection", "silence"]:
    wrong.append("noticed by other signs")
for f in failures:
    for what in ("noticed_s", "ended_s"):
        predicted, measured = f["expected_" + what], f[what]
        if not predicted - 1.5 < measured < predicted + late:
            wrong.append(f"{f['why']}: {what} {measured}, predicted {predicted}")
if len(failures) == 2 and not 9.5 < failures[1]["expected_noticed_s"] < 11:
    wrong.append("ten seconds of silence are not predicted")
if not run["async_checkpoints"]["count"] >= 4 or not run["async_checkpoints"]["measured_stall_s"] > 0 or not run["snapshots"]["count"] > 20:
    wrong.append("stalls are missing")
for what in ("async_checkpoints", "snapshots"):
    if not abs(run[what]["host_bytes"] / run[what]["predicted_host_bytes"] - 1) < 0.05: # shards of so small a model are padded by 2.7 %
        wrong.append(f"{what}: {run[what]['host_bytes']} B of the host's memory, predicted {run[what]['predicted_host_bytes']}")
if wrong:
    print("FAILED:", "; ".join(wrong), json.dumps(run["elastic"]))
sys.exit(bool(wrong))
END
exit $((failures > 0))
