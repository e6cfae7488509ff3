"""Predictions by a framework's own files beside what it took: check_runs_by_file.py DTPLAN SOURCE_TREE torchtitan|megatron

Prints a line a run of reports/h200/NAME_runs.json, and fails where memory is further off than it was when they were read.
"""

import json, os, statistics, subprocess, sys, tempfile

# runs refused at most; of allocated so many within 0.3 %, and the most; medians of reserved and of tokens/s
LIMITS = {
    "torchtitan": {"refused": 2, "close": 55, "most": 7, "reserved": 0.8, "tokens/s": 5},
    "megatron": {"refused": 2, "close": 15, "most": 1.2, "reserved": 4, "tokens/s": 35},
}
dtplan, source = map(os.path.abspath, sys.argv[1:3])
name = sys.argv[3]
runs = json.load(open(os.path.join(source, f"reports/h200/{name}_runs.json")))
errors, refused = {"allocated": [], "reserved": [], "tokens/s": []}, []
os.chdir(tempfile.mkdtemp())


def off(predicted, measured):
    return (predicted / measured - 1) * 100


def compare(memory, measured):
    said = ""
    for kind, key in (("allocated", "allocated_peak_bytes"), ("reserved", "reserved_peak_bytes")):
        errors[kind].append(off(memory[key], measured[kind + "_bytes"]))
        said += f"  {kind} {measured[kind + '_bytes'] / 2**30:7.3f} GiB {errors[kind][-1]:+6.2f} %"
    return said


def memories(plan, run):
    """Pairs of what is predicted and measured: of each rank's stage, which are Megatron's outermost groups, else of the
    fullest rank."""
    stages = plan.get("stages", [])
    if name == "megatron" and len(stages) > 1:
        each = run["gpus"] // len(stages)
        return [(stages[rank["rank"] // each]["memory"], rank) for rank in run["measured"]]
    fullest = {key: max(rank[key] for rank in run["measured"]) for key in ("allocated_bytes", "reserved_bytes")}
    return [(plan["memory"], fullest)]


for run in runs:
    with open("job", "w") as out:
        out.write(run["file"])
    command = [dtplan, "plan", "--from", "job", "--gpu", "h200-sxm", "--gpus", str(run["gpus"]), "--json"]
    said = subprocess.run(command + run["typed"], capture_output=True, text=True)
    if said.returncode == 2:
        refused.append(run["id"])
        print(f"{run['id']:15} refused: {' '.join(said.stderr.split())[:150]}")
        continue
    plan = json.loads(said.stdout)
    line = f"{run['id']:15}" + "".join(compare(*pair) for pair in memories(plan, run))
    if not run.get("fake"):
        step_s = max(rank["step_s"] for rank in run["measured"])
        errors["tokens/s"].append(off(step_s, plan["time"]["step_s"]))
        line += f"  step {step_s * 1e3:7.1f} ms, tokens/s {errors['tokens/s'][-1]:+6.1f} %"
    print(line)
for kind, values in errors.items():
    sizes = [abs(v) for v in values]
    print(
        f"{kind}: {len(sizes)} figures, median {statistics.median(sizes):.2f} %, mean {statistics.mean(sizes):.2f}, "
        f"most {max(sizes):.1f}"
    )
print(f"refused: {len(refused)}: {' '.join(refused)}")
allocated, limits = [abs(v) for v in errors["allocated"]], LIMITS[name]
assert len(refused) <= limits["refused"], refused
assert sum(v < 0.3 for v in allocated) >= limits["close"], sorted(allocated)
assert max(allocated) < limits["most"], max(allocated)
assert statistics.median(map(abs, errors["reserved"])) < limits["reserved"]
assert statistics.median(map(abs, errors["tokens/s"])) < limits["tokens/s"]
