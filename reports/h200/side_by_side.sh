#!/usr/bin/env bash
# dtplan and PyTorch on the same GPUs, one after the other, twice through: side_by_side.sh BINARIES REFERENCE.py OUTPUT [JOBS]
#
#   BINARIES   the folder of dtplan and dtplan-exec (with CUDA)
#   REFERENCE  a PyTorch script: --configs FILE --out FILE.jsonl, a configuration as in side_by_side.jobs, a line of JSON with
#              step_s, tok_s_gpu and dev_used or error; FAKE_NODES=2 splits its ranks into two hosts
#   OUTPUT     a folder: rows.csv, and what each run said
#   JOBS       default: side_by_side.jobs beside this script
#
# A job that fails is a row with its reason, and the next is run. The environment may say
#   GPUS       how many to use (all)             BUDGET_S  seconds after which no run begins (300 on one GPU, 420)
#   GPU_KEY    their catalogue key (h200)        LIMIT_S   seconds of one run (75: the first times matmul algorithms)
#   CHOICES    file of matmul algorithms (OUTPUT/choices.txt)
#   LIBRARIES  folders that dtplan finds its libraries in first, PyTorch not
#   DEVICE     cuda, or host to try the script   TORCH_RUN what starts the reference's ranks (torch.distributed.run)
set -uo pipefail

(($# == 3 || $# == 4)) || { sed -n '2,5p' "${BASH_SOURCE[0]}" >&2 && exit 2; }
here=$(CDPATH='' cd -P -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
program=$(realpath -- "$1/dtplan")
reference=$(realpath -- "$2")
mkdir -p -- "$3" || exit 3
output=$(realpath -- "$3")
jobs=${4:-$here/side_by_side.jobs}
for file in "$program" "$reference" "$jobs"; do
    [[ -r $file ]] || { echo "side_by_side.sh: $file: there is no such file" >&2 && exit 2; }
done
device=${DEVICE:-cuda}
gpus=${GPUS:-$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')}
((gpus >= 1)) || { echo "side_by_side.sh: there is no GPU here" >&2 && exit 3; }
limit_s=${LIMIT_S:-75}
budget_s=${BUDGET_S:-$((gpus == 1 ? 300 : 420))}
choices=${CHOICES:-$output/choices.txt}
torch_run=${TORCH_RUN:-python3 -m torch.distributed.run --standalone --nproc_per_node=$gpus}
rows=$output/rows.csv
echo 'round,program,job,gpus,nodes,reduce_dtype,environment,step_s,predicted_step_s,tokens_per_s_per_gpu,device_bytes,predicted_device_bytes,wall_s,status' >"$rows"

# add_row PROGRAM WALL_S EXIT_STATUS RESULT.json: of the job in hand.
add_row() {
    python3 - "$round" "$1" "$name" "$gpus" "$nodes" "$reduce" "$environment" "$2" "$3" "$4" >>"$rows" <<'END'
import csv, json, sys

round_, program, job, gpus, nodes, reduce, environment, wall, status, path = sys.argv[1:]
try:
    with open(path) as file:
        result = json.load(file)
except (OSError, ValueError):
    result = {}
if program == "PyTorch":
    figures = [result.get("step_s", ""), "", result.get("tok_s_gpu", ""), result.get("dev_used", ""), ""]
    status = result["error"].strip().splitlines()[-1] if "error" in result else status
else:
    time, memory = result.get("time", {}), result.get("memory", {}).get("device", {})
    tokens = time.get("tokens_per_s")
    figures = [time.get("measured_step_s", ""), time.get("predicted_step_s", ""), tokens / int(gpus) if tokens else "",
               memory.get("measured_bytes", ""), memory.get("predicted_bytes", "")]
if status in ("0", "1") and figures[0] != "":
    status = "ok"  # 1: ran, though it was predicted not to fit
elif status == "124":
    status = "ran out of its time"
elif status.isdigit():
    status = "exit status " + status
csv.writer(sys.stdout, lineterminator="\n").writerow(
    [round_, program, job, gpus, nodes, reduce, environment, *figures, wall, status])
END
}

# run_timed PROGRAM COMMAND...: under the job's environment, its words in OUTPUT/tag.out and .err.
run_timed() {
    local who=$1 tag status started=$SECONDS settings
    shift
    tag=$(printf 'round%s_job%02d_%s' "$round" "$number" "$who")
    if ((SECONDS + 15 > budget_s)); then
        add_row "$who" 0 "no time was left" /dev/null
        return
    fi
    result=$output/$tag.json
    rm -f -- "$result"
    read -ra settings <<<"$environment"
    printf '%3d s  %s: %s, %s\n' "$SECONDS" "$who" "$name" "$reduce"
    env "${settings[@]}" RESULT="$result" timeout -k 5 "$limit_s" "$@" >"$output/$tag.out" 2>"$output/$tag.err" </dev/null
    status=$?
    [[ $who != dtplan ]] || cp -- "$output/$tag.out" "$result"
    add_row "$who" $((SECONDS - started)) "$status" "$result"
    tail -n 1 "$rows"
}

run_ours() {
    local words=(run --device "$device" --gpu "${GPU_KEY:-h200}" --gpus "$gpus" --steps 12 --json --no-gradient-norm --atomic-attention)
    read -ra keys <<<"$ours"
    [[ $reduce == fp32 ]] || words+=(--reduce-dtype "$reduce")
    [[ $device == host ]] || words+=(--matmul-choices "$choices")
    ((nodes == 1)) || words+=(--gpus-per-node $((gpus / nodes)) --pretend-nodes --network sockets --network-gbit-per-s 59)
    local before=${LD_LIBRARY_PATH-}
    [[ -z ${LIBRARIES-} ]] || export LD_LIBRARY_PATH=$LIBRARIES${before:+:$before}
    run_timed dtplan "$program" "${words[@]}" "${keys[@]}"
    [[ -z ${LIBRARIES-} ]] || export LD_LIBRARY_PATH=$before
}

run_torch() {
    local launch config=$output/config_$number.json
    read -ra launch <<<"$torch_run"
    printf '[{"id":"job%s","world":%s,"accum":1,"ac":"none","compile":1,"steps":8,"warm":3,%s}]\n' "$number" "$gpus" "$torch" |
        python3 -c 'import json, sys; json.dump(json.loads(sys.stdin.read(), object_pairs_hook=dict), sys.stdout)' >"$config"
    FAKE_NODES=$nodes run_timed PyTorch "${launch[@]}" "$here/torch_beside.py" "$reduce" "$reference" --configs "$config" \
        --out "$output/round${round}_job$(printf %02d "$number")_PyTorch.json"
}

for round in 1 2; do
    number=0
    while IFS='|' read -r name least nodes reduce environment torch ours; do
        [[ -n $name && $name != '#'* ]] || continue
        number=$((number + 1))
        for field in name least nodes reduce environment torch ours; do # blanks around the bars go
            declare "$field=$(sed 's/^ *//; s/ *$//' <<<"${!field}")"
        done
        [[ $least == "$((gpus == 1 ? 1 : 2))" || ($least == 2+ && gpus -gt 1) ]] || continue
        run_ours
        run_torch
    done <"$jobs"
done
echo "$rows: $(grep -c ',ok$' "$rows") of $(($(wc -l <"$rows") - 1)) runs, $SECONDS s"
