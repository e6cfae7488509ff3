#!/usr/bin/env bash
# Whether what --json prints is what its schemas say: check_json.sh DTPLAN SOURCE_TREE [tables]
#
# Every schema is used; with `tables`, those that ask of the shipped run tables, which take long. Exit status 77,
# skipped, where Python has no jsonschema.
set -uo pipefail

program=$1
source=$2
schemas=$source/reports/schemas
export DTPLAN_DATA=$source/scenarios LC_ALL=C.UTF-8
python3 -c 'import jsonschema' 2>/dev/null || { echo "no python3-jsonschema here: skipped" && exit 77; }
scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT
cd -- "$scratch" || exit 1
failures=0
count=0

# holds SCHEMA ARGUMENTS: what dtplan prints of them with --json.
holds() {
    local schema=$1
    shift
    count=$((count + 1))
    "$program" "$@" --json >"$schema.$count.json" 2>err </dev/null || [[ $? == 1 ]] || {
        echo "FAILED: dtplan $*: $(head -c 300 err)"
        failures=$((failures + 1))
    }
}

if [[ ${3-} == tables ]]; then
    holds dtplan.backtest-1 backtest "$source/scenarios/holdout_torch_runs.csv"
    holds dtplan.leave_one_out-2 backtest --leave-one-out "$source/tests/data/runs.csv" "$source/scenarios/h200_torch_runs.csv"
    holds dtplan.catalog_constants-1 catalog constants
    python3 "$source/tests/cli/check_json.py" "$schemas" dtplan.backtest-1 dtplan.backtest-1.*.json -- \
        dtplan.leave_one_out-2 dtplan.leave_one_out-2.*.json -- dtplan.catalog_constants-1 dtplan.catalog_constants-1.*.json || failures=1
    exit $((failures > 0))
fi

tiny=(--layers 1 --hidden 64 --heads 2 --vocab 64 --seq 32 --strategy ddp --device host --threads 1 --steps 3)
holds dtplan.plan-1 --model llama-2-7b --nodes 2 --strategy zero2 --offload cpu --batch-size 2
holds dtplan.plan-1 --model gpt-2 --gpus 1 --runtime dtplan --strategy ddp --tokens 1e9 --budget 10
configuration=$source/tests/data/configs/torchtitan/llama3_8b.toml
holds dtplan.plan-1 --from "$configuration" --gpu h100-sxm --gpus 8 --micro-batch 2
holds dtplan.whatif-1 whatif --from "$configuration" --gpu h100-sxm --gpus 8 --fidelity bounds
holds dtplan.plan-1 --model gpt-2 --gpus 1 --runtime dtplan --strategy ddp --precision bf16-mixed --attention math # no step program
grep -q '"is_bound": true' "dtplan.plan-1.$count.json" || { echo "FAILED: a bound does not say that it is one" && failures=1; }
holds dtplan.plan-1 --params 3e9 --gpu a10 --gpus 4 --strategy zero1
holds dtplan.plan-1 --model llama-2-13b --gpus 64 --runtime megatron --strategy zero1 --tp 4 --pp 2 --accumulate 8
holds dtplan.plan-1 --params 7B --gpus 8 --max-seq
holds dtplan.plan-1 --params 7B --reshard-after-forward=4 --gpus 16 --machine "$source/tests/data/synthetic_machine.csv"
holds dtplan.compare-1 --params 7B --gpus 16 --strategy all
holds dtplan.explain-1 explain --params 3e9 --gpus 4 --strategy zero1 --runtime deepspeed
holds dtplan.program-1 explain --model gpt-2 --gpus 2 --strategy full_shard --program
gunzip -c "$source/reports/h200/compare/none.json.gz" >recorded.json
holds dtplan.beside-1 compare recorded.json --layers 4 --hidden 2048 --heads 16 --ffn 5504 --vocab 32000 --gpu h200 --gpus 1 --seq 2048 --micro-batch 8 --strategy ddp
holds dtplan.beside-1 compare recorded.json
holds dtplan.simulation-1 simulate --params 1e9 --gpus 16 --strategy hybrid_shard
# What plan and simulate call alike means one thing in both; where the time went adds up.
holds dtplan.plan-1 plan --params 1e9 --gpus 16 --strategy hybrid_shard --no-advice
python3 - dtplan.simulation-1.$((count - 1)).json dtplan.plan-1.$count.json <<'END' || { echo "FAILED: times of plan and simulate" && failures=1; }
import json, sys
simulated, planned = (json.load(open(name)) for name in sys.argv[1:])
def near(a, b):
    return abs(a - b) <= 1e-9 * abs(b) + 1e-12
shared = [key for key, value in simulated["time"].items() if key in planned["time"]]
assert {"compute_s", "exposed_communication_s", "optimizer_s"} <= set(shared), shared
for key in shared:
    assert near(simulated["time"][key], planned["time"][key]), key
parts = {key: value for key, value in simulated["step_parts"].items() if key.endswith("_s")}
assert near(sum(parts.values()), simulated["time"]["step_s"]), parts
assert near(sum(simulated["step_parts"]["waiting_by_collective"].values()), parts["waiting_communication_s"])
END
# By formulas collectives wait, but the step may take longer than the sum of its parts; simulated it is the sum.
holds dtplan.plan-1 plan --model llama-7b --gpus 8 --gpu h200 --strategy full_shard --fidelity bounds
holds dtplan.plan-1 plan --model llama-7b --gpus 8 --gpu h200 --strategy full_shard --fidelity simulated
python3 - dtplan.plan-1.$((count - 1)).json dtplan.plan-1.$count.json <<'END' || { echo "FAILED: parts of a step by formulas and simulated" && failures=1; }
import json, sys
bounds, simulated = (json.load(open(name))["time"] for name in sys.argv[1:])
def parts(time):
    return sum(time[key] or 0 for key in ("compute_s", "optimizer_s", "exposed_communication_s", "exposed_offload_s", "bubble_s"))
assert parts(bounds) < 0.99 * bounds["step_s"], (parts(bounds), bounds["step_s"])
assert abs(parts(simulated) - simulated["step_s"]) <= 1e-9 * simulated["step_s"], (parts(simulated), simulated["step_s"])
END
holds dtplan.simulation-1 simulate --model llama-2-7b --gpus 8 --runtime megatron --strategy zero1 --pp 4 --accumulate 8
# A rank whose critical path begins before its first pass.
holds dtplan.simulation-1 simulate --model deepseek-v3 --gpus 256 --runtime megatron --strategy zero1 --pp 16 --ep 16 --accumulate 16
holds dtplan.plan-1 plan --model llama-2-7b --gpus 8 --runtime megatron --strategy zero1 --tp 2 --pp 2 --accumulate 8
holds dtplan.whatif-1 whatif --params 3e9 --gpus 16 --accumulate 2
holds dtplan.whatif-1 whatif --model gpt-2 --gpus 8 --strategy ddp --fidelity closed
holds dtplan.search-1 search --params 1B --gpus 2,4 --gpu a10 --tokens 200M --budget 20 --strategy full_shard,ddp
holds dtplan.search-1 search --params 1B --gpus 2 --gpu a10 --tokens 200B --deadline 1h --strategy full_shard
holds dtplan.backtest-1 backtest "$source/tests/data/runs.csv"
holds dtplan.leave_one_out-2 backtest --leave-one-out "$source/tests/data/runs.csv"
holds dtplan.run-1 run "${tiny[@]}" --gpus 1
holds dtplan.roles-1 simulate --program-file "$source/scenarios/two-stages.set"
holds dtplan.roles-1 run --program-file "$source/scenarios/two-stages.set" --device host --threads 1 --steps 5
holds dtplan.stages-1 run "${tiny[@]}" --layers 2 --gpus 2 --pp 2 --accumulate 2 --schedule zb-h1
grep -q '"bytes_as_predicted": true' "dtplan.stages-1.$count.json" || { echo "FAILED: bytes of stages" && failures=1; }
holds dtplan.stages-1 run "${tiny[@]}" --layers 2 --gpus 4 --pp 2 --ep 2 --accumulate 2 --experts 4 --experts-per-token 2 --expert-ffn 16
grep -q '"experts": ' "dtplan.stages-1.$count.json" || { echo "FAILED: experts of stages" && failures=1; }
holds dtplan.validate-1 validate "${tiny[@]}" --gpus 1,2
holds dtplan.doctor-1 doctor
holds dtplan.doctor-1 doctor plan chart
holds dtplan.doctor-1 doctor run --device host
holds dtplan.catalog_gpus-1 catalog gpus
holds dtplan.catalog_machines-1 catalog machines
holds dtplan.catalog_models-1 catalog models
holds dtplan.catalog_quantities-1 catalog gpus a10
holds dtplan.catalog_measured-1 catalog measured "$source/tests/data/synthetic_machine.csv"

all=() # in one call, for Python takes longest to begin
for schema in "$schemas"/*.json; do
    name=$(basename "$schema" .json)
    if compgen -G "$name.*.json" >/dev/null; then
        all+=(${all[0]:+--} "$name" "$name".*.json)
    elif [[ $name != dtplan.catalog_constants-1 && $name != dtplan.from-1 ]]; then # held with `tables`; within others
        echo "FAILED: nothing is held against $name" && failures=$((failures + 1))
    fi
done
python3 "$source/tests/cli/check_json.py" "$schemas" "${all[@]}" || failures=$((failures + 1))
# A schema that took anything would hold everything.
printf '{"schema": "dtplan.whatif/1", "fidelity": 3}' >wrong.json
! python3 "$source/tests/cli/check_json.py" "$schemas" dtplan.whatif-1 wrong.json >/dev/null || failures=$((failures + 1))
exit $((failures > 0))
