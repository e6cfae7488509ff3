#!/usr/bin/env bash
# dtplan simulate and run --program-file, on the host device: check_program_file.sh DTPLAN SOURCE_TREE
set -uo pipefail
# shellcheck source=tests/cli/says.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/says.sh"

enter "$@"

# Two stages learn what one rank does, and each says how long it computed.
DEVICE=host "$source/tests/gpu/check_two_stages.sh" "$program" "$source" >stages 2>&1 ||
    failed "two stages: $(cat stages)"
set=$source/scenarios/two-stages.set

# ---- simulated ---------------------------------------------------------------------------------------------------------

expect 0 simulate --program-file "$set" --trace trace.json --timeline timeline.csv
says 'first stage' out
says 'STEP TIME  predicted' out
python3 - <<'END' || failed "the trace has no process for each role, or no arrow between them"
import json

events = json.load(open("trace.json"))["traceEvents"]
names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
assert names == {0: "first stage", 1: "last stage"}, names
ends = {}
for e in events:
    if e["ph"] in "sf":
        ends.setdefault(e["id"], []).append(e["pid"])
assert sorted(map(tuple, ends.values())).count((0, 1)) == 1, ends
assert sorted(map(tuple, ends.values())).count((1, 0)) == 1, ends
END
[[ $(grep -c ',"last stage"$' timeline.csv) == 42 ]] || failed "the timeline has $(grep -c ',"last stage"$' timeline.csv) rows"
expect 0 simulate --program-file "$set" --trace trace.json --timeline timeline.csv # its own may be replaced

# A job's program, written, is read again: the same, and as long.
expect 0 simulate --model gpt-2 --gpus 1 --strategy ddp --runtime dtplan --write-program step.txt --json
cp out job.json
for _ in once again; do # a set of programs, too, is dtplan's own to replace; what stands there otherwise is not
    expect 0 simulate --model gpt-2 --gpus 2 --strategy ddp --runtime dtplan --pp 2 --write-program stages.set
done
echo 'set terminal png' >stages.set
expect 2 simulate --model gpt-2 --gpus 2 --strategy ddp --runtime dtplan --pp 2 --write-program stages.set
expect 3 simulate --model gpt-2 --gpus 1 --strategy ddp --runtime dtplan --write-program /dev/full
says '/dev/full'
expect 0 simulate --program-file step.txt --json
python3 - <<'END' || failed "a program alone takes another time than its job: $(grep step_s out job.json)"
import json

job, alone = json.load(open("job.json")), json.load(open("out"))
assert abs(alone["predicted_step_s"] / job["time"]["step_s"] - 1) < 1e-9
END

# ---- refused -----------------------------------------------------------------------------------------------------------

expect 2 run --program-file "$set" --device host --layers 3 --seq 8
says 'layers: is what the program of --program-file says itself'
says 'seq: is what the program'
expect 2 run --program-file "$set" --device host --gpus 3
says 'has 2 ranks, and the cluster 3 GPUs'
expect 2 run --program-file "$set" --device host --checkpoint there
says '--checkpoint'
expect 2 simulate --program-file "$set" --memory m.csv
says '--memory: not of a program file'
expect 2 simulate --program-file "$source/scenarios/gpus.csv"
says 'gpus.csv:'
expect 2 simulate --program-file missing.set
says 'missing.set'
sed 's/tag 2/tag 3/' "$set" | sed '0,/tag 3/s//tag 2/' >tags.set
expect 2 run --program-file tags.set --device host
grep -q 'tag' err || failed "no word of tags: $(cat err)"
sed 's/form swiglu/form gelu/' "$set" >form.set
expect 0 simulate --program-file form.set
sed 's/n 40 bytes 7680/n 41 bytes 7680/' "$set" >wide.set
expect 2 run --program-file wide.set --device host --threads 1 --steps 2
says 'activation "activation" (operation 11) has no operand'
# Tables that the run itself fills, smaller than what it writes, and read by nobody who would miss the rest.
sed '0,/^role 1/{s/ 11:tables/ 0:tables/;s/bytes 256 owner/bytes 64 owner/
s/^op 2 mark compute/op 2 zero compute writes 11:result bytes 64/}' "$set" >tables.set
expect 2 run --program-file tables.set --device host --threads 1 --steps 2
says "buffer of tables has no room"
# Groups that the ranks cannot form; what is overwritten before it was read, also where dtplan-exec is called by itself.
sed 's/^group 0 ranks 2/group 0 ranks 4294967295/' "$set" >group.set
expect 2 simulate --program-file group.set
says "group 0 of 4294967295 ranks 1 apart does not divide the set's 2 ranks"
sed 's/^\(op 3 embedding .*\) after 1 /\1 /' "$set" >overwrites.set
"$(dirname -- "$program")/dtplan-exec" --data-directory "$source/scenarios" --device host --threads 1 --steps 2 --program overwrites.set \
    --program-alone --set gpus=2 >out 2>err
[[ $? == 2 ]] || failed "a damaged program: $(cat err out)"
cat err out >both
says 'would overwrite what it still needs; nothing was run' both
! grep -q 'mistake of dtplan' both || failed "a damaged program is called a mistake of dtplan: $(cat both)"
# Row numbers that are not tokens.
sed '0,/reads 7:input/s//reads 0:input/' "$set" >batch.set
expect 2 run --program-file batch.set --device host --threads 1 --steps 2
says 'upload "batch" (operation 1) has no operand'

((failures == 0)) && echo "all held" && exit 0
exit 1
