#!/usr/bin/env bash
# dtplan compare: check_compare.sh DTPLAN SOURCE_TREE. Every planted difference is named first, and nothing where nothing was
# planted: of records that make_records.py makes up, and of those of an H200 (reports/h200/compare).
set -uo pipefail
# shellcheck source=tests/cli/says.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/says.sh"

enter "$@"
export COLUMNS=160

# first CAUSE ARGUMENTS: of dtplan compare; "" for none
first() {
    local cause=$1 found
    shift
    expect 0 compare "$@"
    found=$(sed -n '/^LIKELY CAUSES/{n;p;}' out)
    if [[ $cause ]]; then
        [[ $found == "  $cause, "* ]] || failed "'$cause' is not the first cause of $*: $(sed -n '/^LIKELY/,$p' out)"
    else
        says 'None is seen in these files.' out
    fi
}

python3 "$source/tests/cli/make_records.py" . || exit 1
small=(--layers 4 --hidden 256 --heads 4 --ffn 1024 --vocab 1024 --gpu h200 --strategy ddp --gpus 1 --seq 512 --micro-batch 2)
# with kernels so long that none waits for its launch
sharded=("${small[@]}" --gpus 4 --strategy full_shard --hidden 2048 --heads 16 --ffn 5504 --seq 2048 --micro-batch 8)

# ---- made up -----------------------------------------------------------------------------------------------------------

first '' none.json
first 'another attention kernel' attention.json
ln -s none.json "the same.json"
expect 2 compare none.json attention.json "the same.json"
says 'the same.json: compare: is the file none.json, which is named already'
first 'logits in fp32' fp32_logits.json
first 'matmuls in fp32' fp32_matmuls.json
first 'the optimizer is not fused' optimizer.json
first 'the GPU waits for its input' stall.json
first 'the GPU waits for its input' loader.json
says "inside PyTorch's DataLoader" <(tr -s ' \n' ' ' <out)
first 'weights are not gathered ahead' no_prefetch.json
first '' gathered.json
first 'weights are not gathered ahead' no_prefetch.json "${sharded[@]}"
first 'a slow rank' rank0.json rank1.json rank2.json rank3.json
says 'kernels of rank2.json take' <(tr -s ' \n' ' ' <out)
first '' even0.json even1.json even2.json even3.json
first 'activations are not checkpointed' none.json "${small[@]}" --checkpointing full
first 'activations are checkpointed' checkpointed.json "${small[@]}"
first 'gradients are reduced in every micro-step' every.json "${small[@]}" --gpus 2 --accumulate 4
expect 0 compare lazy.json "${small[@]}" --gpus 2 --accumulate 4
! grep -q 'in every micro-step' out || failed "reductions of the last micro-step are no cause"
# What the plan means to do is none.
for flags in '--attention math' '--precision fp32'; do
    # shellcheck disable=SC2086 # words
    expect 0 compare attention.json "${small[@]}" $flags
    [[ $flags != *math* ]] || ! grep -q 'another attention' out || failed "$flags: attention"
done
expect 0 compare fp32_matmuls.json "${small[@]}" --precision fp32
! grep -q 'matmuls in fp32,' out || failed "a plan in fp32 has them"
expect 0 compare optimizer.json "${small[@]}" --optimizer adamw-foreach
! grep -q 'not fused' out || failed "a plan without a fused optimizer"

first 'tensors that are never freed' leak.pickle
says '6 tensors made in remember (train.py:77) are never freed, 8.0 MiB each' <(tr -s ' \n' ' ' <out)
# Where 24,000 others are not freed either, of fewer bytes together.
first 'tensors that are never freed' many.pickle
says '6 tensors made in remember (train.py:77) are never freed, 8.0 MiB each' <(tr -s ' \n' ' ' <out)
first '' kept.pickle
first 'another attention kernel' scores.pickle "${small[@]}"
says '4 tensors of 2 x 4 x 512 x 512 scores' <(tr -s ' \n' ' ' <out)
first 'logits in fp32' logits.pickle "${small[@]}" --compile
expect 0 compare titan.log megatron.log
grep -qE 'tokens/s of a GPU +6236' out || failed "the median behind two steps: $(grep tokens out)"
grep -qE 'step, ms +717' out || failed "the median behind two steps: $(grep 'step,' out)"
grep -qE 'memory, GiB +34\.05' out || failed "memory: $(grep memory out)"
says 'A log says how fast a run is, not why' out
expect 0 compare titan.log "${small[@]}"
grep -qE 'memory, GiB +[0-9.]+ +34\.050 +\+[0-9.]+ +\+[0-9]+\.[0-9]$' out || failed "how far off: $(grep memory out)"
expect 0 compare nsys.csv
grep -qE '^ +matmul +30\.000' out || failed "nsys: $(grep matmul out)"

# ---- refused -----------------------------------------------------------------------------------------------------------

expect 2 compare
says 'no record of a run is named'
printf 'SQLite format 3\0' >profile.sqlite
expect 2 compare profile.sqlite
grep -qE 'no database of nsys that can be read|built without libsqlite3' err || failed "a broken database: $(cat err)"
python3 -c 'import os, pickle
class Evil:
    def __reduce__(self): return (os.system, ("touch obeyed",))
pickle.dump({"device_traces": [Evil()]}, open("evil.pickle", "wb"))'
expect 2 compare evil.pickle
says 'would import, call or build something'
[[ ! -e obeyed ]] || failed "a pickle was obeyed"
head -c 3000 leak.pickle >cut.pickle
expect 2 compare cut.pickle
says 'was the file copied whole?'
echo '{"traceEvents": [' >cut.json
expect 2 compare cut.json
says 'is no JSON of a profiler'
echo 'hello' >other.txt
expect 2 compare other.txt
says 'is none of what is read'
echo "{'loss': 2.1, 'epoch': 0.1}" >trainer.log
expect 2 compare trainer.log
says 'is none of what is read'
expect 2 compare there-is-none.json
python3 -c 'import pickle
pickle.dump({"segments": [], "device_traces": [[{"action": "free_completed", "addr": 256, "size": 512}]]}, open("idle.pickle", "wb"))'
expect 2 compare idle.pickle
says 'its history allocates nothing'
# A record is no scenario, also where the line is refused for something else.
expect 2 compare none.json --jsn
[[ $(wc -l <err) == 1 ]] || failed "more than what matters: $(cat err)"
gzip -k none.json
expect 2 compare none.json.gz
says 'gunzip it first'

# ---- of an H200 --------------------------------------------------------------------------------------------------------

recorded=$source/reports/h200/compare
plan=(--layers 4 --hidden 2048 --heads 16 --ffn 5504 --vocab 32000 --gpu h200 --gpus 1 --seq 2048 --micro-batch 8 --strategy ddp)
while read -r name ending checkpointing cause; do
    gunzip -c "$recorded/$name.$ending.gz" >"$name.$ending" || failed "$name.$ending.gz"
    first "$cause" "$name.$ending" "${plan[@]}" --checkpointing "$checkpointing"
done <<'END'
none json none
full json full
math_attention json none another attention kernel
fp32_logits json none logits in fp32
fp32_matmuls json none matmuls in fp32
optimizer_not_fused json none the optimizer is not fused
checkpointing_off json full activations are not checkpointed
dataloader json none the GPU waits for its input
flash2 json none another attention kernel
none pickle none
full pickle full
leak pickle none tensors that are never freed
math_attention pickle none another attention kernel
checkpointing_off pickle full activations are not checkpointed
END
for name in compiled not_compiled; do
    gunzip -c "$recorded/$name.json.gz" >"$name.json" || failed "$name.json.gz"
done
first '' compiled.json "${plan[@]}" --compile
first 'the model is not compiled' not_compiled.json "${plan[@]}" --compile
first '' flash2.json "${plan[@]}" --attention flash2
# Of two ranks, which shared one GPU and talked over loopback sockets, one waits for its input, whichever is named first.
two=("${plan[@]}" --gpus 2 --gpus-per-node 1 --network sockets --network-gbit-per-s 10 --strategy full_shard)
for rank in 0 1; do
    gunzip -c "$recorded/stalled_rank$rank.json.gz" >"stalled_rank$rank.json" || failed "stalled_rank$rank.json.gz"
done
first 'the GPU waits for its input' stalled_rank0.json stalled_rank1.json "${two[@]}"
says 'the GPU of stalled_rank1.json is idle for 52' <(tr -s ' \n' ' ' <out)
# Of two ranks on cores over gloo: operators stand for kernels, and the plan's times, a GPU's, are compared with none of theirs.
cores=(--layers 4 --hidden 256 --heads 4 --ffn 704 --vocab 1024 --seq 256 --micro-batch 4 --precision fp32 --gpu h200 --gpus 2)
for file in "$recorded"/cores_*.gz; do
    gunzip -c "$file" >"$(basename "${file%.gz}")" || failed "$file"
done
while read -r name ranks strategy accumulate cause; do
    files=("cores_${name}_rank0.json")
    [[ $ranks == 1 ]] || files+=("cores_${name}_rank1.json")
    first "$cause" "${files[@]}" "${cores[@]}" --strategy "$strategy" --accumulate "$accumulate"
done <<'END'
sharded 2 full_shard 1
not_ahead 2 full_shard 1 weights are not gathered ahead
not_ahead 1 full_shard 1 weights are not gathered ahead
slow_rank 2 full_shard 1 a slow rank
stalled_rank 2 full_shard 1 the GPU waits for its input
accumulated 1 full_shard 4
every_micro_step 1 full_shard 4 gradients are reduced in every micro-step
replicated 1 ddp 4
replicated_every_micro_step 1 ddp 4 gradients are reduced in every micro-step
END
first 'a slow rank' cores_slow_rank_rank1.json cores_slow_rank_rank0.json
says 'kernels of cores_slow_rank_rank1.json take 1783.7 ms a step, those of the other ranks 1031' <(tr -s ' \n' ' ' <out)
expect 0 compare cores_sharded_rank0.json
grep -qF 'operators of a host' out || failed "of what the trace is: $(grep TIME out)"
expect 2 compare cores_sharded_rank0.json "${cores[@]}" --strategy full_shard -o other.csv
says "--output: the trace is of a host's operators"
expect 0 compare math_attention.json math_attention.pickle "${plan[@]}" --json
python3 -c 'import json
d = json.load(open("out"))
assert d["schema"] == "dtplan.beside/1" and len(d["files"]) == 2, d
assert [c["cause"] for c in d["causes"]][:2] == 2 * ["another attention kernel"], d["causes"]' || failed "--json: $(head -c 900 out)"

# ---- a machine file fitted to it ---------------------------------------------------------------------------------------

# What the plan takes by the file is what the run took before it was traced (plants.jsonl), within 2 %; under the profiler GPUs
# idle longer between steps. Of the compiled run 2 ms of 53 are idle, which no row of a file says: 3.5 %. Attention's rows
# are of the kernel that was planned.
step_ms() {
    "$program" simulate "$@" --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["time"]["step_s"] * 1e3)'
}
while read -r name ran within flags; do
    read -ra more <<<"$flags"
    expect 0 compare "$name.json" "${plan[@]}" "${more[@]}" -o fit.csv --force
    says 'REFIT  fit.csv' out
    python3 -c "import sys; sys.exit(not abs($(step_ms "${plan[@]}" "${more[@]}" --machine fit.csv) / $ran - 1) < $within)" ||
        failed "$name: the step by the file: $(step_ms "${plan[@]}" "${more[@]}" --machine fit.csv) ms, not $ran"
done <<'END'
full 80.57 0.02 --checkpointing full
compiled 53.23 0.04 --compile
none 66.33 0.02 --checkpointing none
END
grep -qE '^ +matmul +x [01]\.[0-9]+  \(34\.15 ms' out || failed "matmuls: $(grep ' x ' out)"
grep -qE '^ +attention forward +x [01]\.[0-9]+  \(1\.11 ms' out || failed "attention: $(grep ' x ' out)"
[[ $(grep -c ^attention fit.csv) == 2 && $(grep '^kernel,' fit.csv | cut -d, -f2 | xargs) == 'eager streaming' ]] ||
    failed "rows: $(cut -d, -f1-3 fit.csv)"
expect 0 compare none.json "${plan[@]}" --attention flash2 -o fit.csv --force
says 'attention forward            left as it was' out
expect 2 compare none.json -o other.csv
says "--output: a machine file is fitted to what a plan does; add the keys of the run's"
expect 2 compare leak.pickle "${plan[@]}" -o other.csv
says '--output: a machine file is fitted to a trace'
expect 2 compare none.json "${plan[@]}" --runtime dtplan -o other.csv
says 'dtplan validate --refit fits a machine file'
expect 2 compare none.json "${plan[@]}" --experts 4 --experts-per-token 2 --expert-ffn 1024 -o other.csv
says '--output: matmuls of experts are of no one shape'
python3 -c 'import json
d = json.load(open("none.json"))
for e in d["traceEvents"]: e["dur"] = e["dur"] / 1000 if e.get("cat") == "kernel" else e.get("dur", 0)
json.dump(d, open("fast.json", "w"))'
expect 2 compare fast.json "${plan[@]}" -o other.csv
says 'gpu_key or the row is wrong'
[[ ! -e other.csv ]] || failed "a refused fit left a file"

if ((failures)); then
    echo "$failures failed"
    exit 1
fi
