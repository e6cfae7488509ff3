#!/usr/bin/env bash
# dtplan run and validate with --runtime torch: check_run_torch.sh DTPLAN SOURCE_TREE. What starts, what is handed over and
# what is said, by a program in the place of Python's; what of a plan the real one takes, by a stub of PyTorch; and, where
# PyTorch is installed (DTPLAN_TEST_TORCH=1 asks for it), the real one on cores.
set -uo pipefail
# shellcheck source=tests/cli/says.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/says.sh"

enter "$@"
reason=.
export COLUMNS=100

tiny=(--layers 2 --hidden 64 --heads 4 --kv-heads 2 --ffn 128 --vocab 128 --gpu h200 --gpus 1 --seq 32 --micro-batch 2
    --strategy ddp)

# ---- a program in the place of Python's --------------------------------------------------------------------------------

cat >python <<'END'
#!/usr/bin/env bash
printf '%s\n' "$*" >line
while (($#)); do [[ $1 == --plan ]] && cat "$2" >plan.json; shift; done
cat >&3 <<EVENTS
{"event":"start","device":"A GPU","libraries":"PyTorch 9","gpu":true,"data":"random tokens","first_step":0,"steps":4}
{"event":"step","step":1,"tokens":64,"step_s":9,"loss":5,"mode":"plain"}
{"event":"step","step":2,"tokens":64,"step_s":9,"loss":5,"mode":"plain"}
{"event":"step","step":3,"tokens":64,"step_s":0.5,"loss":4,"mode":"plain"}
{"event":"step","step":4,"tokens":64,"step_s":0.5,"loss":4,"mode":"plain"}
{"event":"memory","used_bytes":2097152000,"total_bytes":150000000000,"after_init_bytes":1048576,"allocated_bytes":${ALLOCATED:-68600000},"reserved_bytes":69206016,"parameter_bytes":361728,"gradient_bytes":361728,"optimizer_bytes":723456}
EVENTS
[[ ${FAULT:-} ]] && echo "{\"event\":\"fault\",\"words\":\"$FAULT\"}" >&3
echo '{"event":"end","interrupted":false}' >&3
exit "${STATUS:-0}"
END
chmod +x python
export DTPLAN_PYTHON=$PWD/python

expect 0 run --runtime torch "${tiny[@]}" --steps 4 --seed 3
says 'A GPU; PyTorch 9' out
says 'run_torch.py, which read the plan as JSON' out
grep -qE '^ +parameters +0\.345 +0\.345 +1\.000$' out || failed "parameters: $(grep parameters out)"
grep -qE '^ +allocated, peak +[0-9.]+ +65\.422 ' out || failed "allocated: $(grep allocated out)"
grep -qE 'step, ms +[0-9.]+ +500\.000' out || failed "the median of the steps behind two: $(grep 'step,' out)"
! grep -q arena out || failed "there is no arena"
grep -qF "$source/scenarios/run_torch.py --plan /proc/" line || failed "the line: $(cat line)"
says '--steps 4 --seed 3' line
"$program" plan --runtime torch "${tiny[@]}" --fidelity bounds --json >asked.json
cmp -s <(python3 -c 'import json,sys; d=json.load(open("plan.json")); print(json.dumps([d["model"],d["plan"],d["cluster"]],sort_keys=1))') \
    <(python3 -c 'import json,sys; d=json.load(open("asked.json")); print(json.dumps([d["model"],d["plan"],d["cluster"]],sort_keys=1))') ||
    failed "another plan was handed over than dtplan plan prints"
expect 0 run --runtime torch "${tiny[@]}" --steps 4 --json
python3 -c '
import json
run = json.load(open("out"))
reference = run["memory"]["reference"]
assert reference["allocated_peak"]["measured_bytes"] == 68600000, reference
assert reference["parameters"] == {"predicted_bytes": 361728, "measured_bytes": 361728}, reference
assert run["time"]["measured_step_s"] == 0.5 and run["memory"]["arena"]["measured_bytes"] == 0, run
' || failed "--json: $(head -c 600 out)"

# Steps on undisturbed cores, where the program says some, are what predictions are held against.
sed '/"step":[34],/s/"step_s":0.5/"undisturbed_s":0.4,&/' python >calm
chmod +x calm
DTPLAN_PYTHON=$PWD/calm expect 0 run --runtime torch "${tiny[@]}" --steps 4
grep -qE 'step, ms +[0-9.]+ +500\.000' out || failed "the median of all steps: $(grep 'step,' out)"
grep -qE 'on undisturbed cores +[0-9.]+ +400\.000' out || failed "the median of undisturbed ones: $(grep 'undisturbed' out)"
DTPLAN_PYTHON=$PWD/calm expect 1 validate --runtime torch "${tiny[@]}" -o calm.csv
says '400.00 on undisturbed cores'

# Several ranks are torchrun's.
expect 0 run --runtime torch "${tiny[@]}" --gpus 4 --strategy full_shard --steps 4 --log l.csv --trace t.json --snapshot s.pickle
says '-m torch.distributed.run --standalone --nproc-per-node 4' line
says '--log l.csv --trace t.json --snapshot s.pickle' line

# What goes wrong is said once, with the status of who said it.
FAULT='out of memory: much' STATUS=3 expect 3 run --runtime torch "${tiny[@]}" --steps 4
STATUS=1 expect 3 run --runtime torch "${tiny[@]}" --steps 4
says 'run_torch.py failed; what went wrong stands above'
DTPLAN_PYTHON=/there/is/none expect 3 run --runtime torch "${tiny[@]}"
says 'install Python with PyTorch, or name an interpreter in DTPLAN_PYTHON'
expect 2 run --runtime torch "${tiny[@]}" --warmup 3
says "--warmup: is of dtplan's own executor"
expect 2 run --runtime torch "${tiny[@]}" --timeline x.csv
says '--timeline: the executor times operations'
expect 2 run --device host --layers 1 --hidden 32 --heads 2 --ffn 64 --vocab 300 --seq 16 --snapshot x.pickle
says '--snapshot: PyTorch writes it'
[[ ! -e x.csv && ! -e x.pickle ]] || failed "a refused run left files"

# probe: rows that PyTorch's own kernels gave make a machine file, of the catalogue's row that the driver's name says.
cat >prober <<'END'
#!/usr/bin/env bash
printf '%s\n' "$*" >line
cat >&3 <<EVENTS
{"event":"start","gpu":${GPU:-true}}
{"event":"row","measurement":"about","what":"gpu","text":"${NAME:-NVIDIA H200}"}
{"event":"row","measurement":"about","what":"gpu_memory_bytes","text":"150109880320"}
{"event":"row","measurement":"about","what":"device","text":"cuda"}
{"event":"row","measurement":"about","what":"power","text":"sustained"}
{"event":"progress","done":0,"count":1,"words":"steps"}
{"event":"row","measurement":"matmul","what":"forward","dtype":"bf16","text":"","m":8192,"n":2048,"k":2048,"seconds":1e-4,"low_s":1e-4,"high_s":1e-4,"samples":3}
{"event":"row","measurement":"attention","what":"forward","dtype":"bf16","text":"","m":4,"sequence":2048,"heads":16,"kv_heads":16,"head_dim":128,"seconds":2e-4,"low_s":2e-4,"high_s":2e-4,"samples":3}
{"event":"row","measurement":"kernel","what":"${WORD:-streaming}","dtype":"","text":"","bytes":4e8,"seconds":2e-4,"low_s":2e-4,"high_s":2e-4,"samples":1}
{"event":"row","measurement":"step","what":"launch_pytorch","dtype":"","text":"","seconds":2e-5,"low_s":2e-5,"high_s":3e-5,"samples":9}
{"event":"end","interrupted":false}
EVENTS
END
chmod +x prober
prober=$PWD/prober
DTPLAN_PYTHON=$prober expect 0 probe --runtime torch -o m.csv
net=layers=24,hidden=256,heads=4,kv_heads=4
[[ $(cat line) == "$source/scenarios/probe_torch.py --power-headroom 0.27 --attention-power 0.47 --host-net gated=1,$net,ffn=704,"*,kernels=*" --host-net gated=0,$net,ffn=1024,"*,kernels=* ]] ||
    failed "the line: $(cat line)"
for row in about,gpu_key,,,,,,,,,,,,,,,,,,h200-sxm about,machine_key,,,,,,,,,,,,,,,,,,dgx-h200 about,runtime,,,,,,,,,,,,,,,,,,torch \
    about,gpus,,,,,,,,,,,,,,,,,,1 'kernel,streaming,,,,,,,,,,400000000,,,,0.0002,0.0002,0.0002,1,'; do
    says "$row" m.csv
done
# Matmuls of the sustained rate run faster in a step of other kernels; those measured in a step are taken as they are.
predicted_s() {
    "$program" simulate --machine "$1" --model llama-1.3b --gpus 1 --strategy ddp --json |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["time"]["step_s"])'
}
# A host that needs a tenth of a millisecond for each launch is what the step waits for; runtimes of their own have their own.
sed '/^about,rows/d; s/^step,launch_pytorch,.*/step,launch_pytorch,,,,,,,,,,,,,,1e-4,1e-4,1e-4,9,/' m.csv >slow_host.csv
python3 -c "import sys; sys.exit(not $(predicted_s slow_host.csv) > 1.5 * $(predicted_s m.csv))" || failed 'a slow host is not waited for'
sed '/^about,power/d; /^about,rows/d' m.csv >in_steps.csv
python3 -c "import sys; sys.exit(not 0.9 < $(predicted_s m.csv) / $(predicted_s in_steps.csv) < 0.99)" ||
    failed "sustained $(predicted_s m.csv) s, in steps $(predicted_s in_steps.csv) s"
rm m.csv
NAME='A GPU' DTPLAN_PYTHON=$prober expect 2 probe --runtime torch -o m.csv
says 'A GPU is no GPU that the catalogue has a row of'
NAME='A GPU' DTPLAN_PYTHON=$prober expect 0 probe --runtime torch --gpu h100 -o m.csv --force
says 'about,gpu_key,,,,,,,,,,,,,,,,,,h100-sxm' m.csv
GPU=false DTPLAN_PYTHON=$prober expect 2 probe --runtime torch --device host -o m2.csv
says '--device host: probe_torch.py only shows on cores'
WORD=nothing DTPLAN_PYTHON=$prober expect 3 probe --runtime torch -o m2.csv
says "'nothing' is nothing that is measured of kernel"
expect 2 probe --runtime torch --gpus 4 -o m2.csv
says 'dtplan probe --machine m2.csv'
expect 2 probe --runtime torch --model llama-1.3b -o m2.csv
says 'model: PyTorch'
expect 2 probe --runtime torch --seconds 3 -o m2.csv
says '--seconds: is of dtplan'
expect 2 probe --runtime megatron -o m2.csv
says 'is megatron, whose kernels no program that ships measures'
[[ ! -e m2.csv ]] || failed "a refused probe left a file"

# validate: bounds of what PyTorch's allocator says, no arena, no bytes sent; rows are read again.
peak=$(python3 -c 'import json; print(json.load(open("asked.json"))["memory"]["allocated_peak_bytes"])')
ALLOCATED=$peak expect 1 validate --runtime torch "${tiny[@]}" -o v.csv
says 'step' out # 0.5 s is far from what a GPU takes
ALLOCATED=$((peak * 11 / 10)) expect 1 validate --runtime torch "${tiny[@]}" --json
says 'allocated memory -9.1 %' out
python3 - <<'END' || failed "v.csv: $(head -c 600 v.csv)"
import csv
row = next(csv.DictReader(open("v.csv")))
assert row["runtime"] == "torch" and abs(int(row["measured_allocated_bytes"]) / int(row["predicted_allocated_bytes"]) - 1) < 1e-3, row
assert "allocated" not in row["outside"] and "arena" not in row["outside"] and "reduce" not in row["outside"], row
END
ALLOCATED=$peak expect 1 validate --runtime torch "${tiny[@]}" -o v.csv --resume
# Columns that came later are empty in files of before.
python3 - <<'END'
import csv
rows = list(csv.reader(open("v.csv")))
short = rows[0].index("program")
csv.writer(open("old.csv", "w"), lineterminator="\n").writerows(row[:short] for row in rows)
END
expect 1 validate --runtime torch "${tiny[@]}" -o old.csv --resume
[[ $(head -n 1 old.csv) == "$(head -n 1 v.csv)" ]] || failed "old rows were not widened"

# ---- what the real program takes of a plan -----------------------------------------------------------------------------

# real takes|refuses WORD FLAGS
real() {
    local how=$1 word=$2
    shift 2
    "$program" plan --runtime torch "${tiny[@]}" "$@" --fidelity bounds --json >plan.json 2>err ||
        failed "no plan: $* $(head -c 300 err)"
    PYTHONPATH=$source/tests/cli/torch_stub PYTHONDONTWRITEBYTECODE=1 python3 "$source/tests/cli/check_run_torch.py" \
        "$source/scenarios" plan.json "$how" "$word" 2>err || failed "$how $*: $(tail -n 1 err)"
}

for flags in '' '--compile' '--checkpointing full' '--checkpointing every-2' '--checkpointing selective' \
    '--checkpointing selective-attention' '--accumulate 4' '--gpus 2 --accumulate 4 --accumulate-sync' '--precision fp32' \
    '--precision bf16-pure' '--gpus 4 --strategy full_shard' '--gpus 4 --strategy shard_grad_op' \
    '--gpus 4 --strategy hybrid_shard --shard-group 2' '--gpus 2 --strategy zero1' '--gpus 2 --comm-hook bf16' \
    '--attention math' '--attention flash2' '--loss fused --compile' '--optimizer adamw-foreach' \
    '--fused-qkv --fused-gate-up --rope-fp32' '--gpus 2 --ddp-bucket-view' '--tied-head' \
    '--norm layer_norm --activation gelu --position learned --positions 64 --bias' '--expandable-segments' '--norm-chain'; do
    # shellcheck disable=SC2086 # words
    real takes none $flags
done
real refuses precision --precision bf16
real refuses loss --loss chunked
real refuses optimizer --optimizer lion
real refuses lora --lora 8
real refuses tp --gpus 2 --strategy full_shard --tp 2
real refuses offload --gpus 2 --strategy full_shard --offload params
real refuses experts --experts 4 --experts-per-token 2 --expert-ffn 64
real refuses sliding_window --sliding-window 16
real refuses qk_norm --qk-norm
real refuses prefetch --gpus 2 --strategy full_shard --no-prefetch
real refuses fsdp1 --gpus 2 --strategy full_shard --fsdp1

PYTHONPATH=$source/tests/cli/torch_stub PYTHONDONTWRITEBYTECODE=1 python3 "$source/tests/cli/check_host_core.py" \
    "$source/scenarios" 2>err || failed "the core that launches: $(tail -n 3 err)"

# ---- the real program --------------------------------------------------------------------------------------------------

if [[ ${DTPLAN_TEST_TORCH:-} ]]; then
    export DTPLAN_PYTHON=$DTPLAN_TEST_TORCH
    for flags in '' '--gpus 2 --strategy full_shard --accumulate 2' '--gpus 2 --strategy zero1' '--gpus 4 --strategy hybrid_shard --shard-group 2'; do
        # shellcheck disable=SC2086 # words
        expect 0 run --runtime torch "${tiny[@]}" --device host --steps 4 $flags
        for what in parameters 'optimizer state'; do
            grep -qE "^ +$what +([0-9.]+) +[0-9.]+ +(1\.000|0\.99.)$" out || failed "$flags: $what: $(grep "$what" out)"
        done
        says 'neither peaks nor times are compared' <(tr -s ' \n' ' ' <out)
    done
fi

if ((failures)); then
    echo "$failures failed"
    exit 1
fi
