"""Predictions by torchtitan's own files beside what its Trainer took: check_torchtitan_runs.py DTPLAN SOURCE_TREE

Prints a line a run of reports/h200/torchtitan_runs.json, and fails where memory is further off than it was when they were read.
"""

import json, os, statistics, subprocess, sys, tempfile

dtplan, source = map(os.path.abspath, sys.argv[1:])
runs = json.load(open(os.path.join(source, "reports/h200/torchtitan_runs.json")))
errors, refused = {"allocated": [], "reserved": [], "tokens/s": []}, []
os.chdir(tempfile.mkdtemp())


def off(predicted, measured):
    return (predicted / measured - 1) * 100


for run in runs:
    with open("job.toml", "w") as out:
        out.write(run["file"])
    command = [dtplan, "plan", "--from", "job.toml", "--gpu", "h200-sxm", "--gpus", str(run["gpus"]), "--json"]
    said = subprocess.run(command + run["typed"], capture_output=True, text=True)
    if said.returncode == 2:
        refused.append(run["id"])
        print(f"{run['id']:15} refused: {' '.join(said.stderr.split())[:150]}")
        continue
    plan = json.loads(said.stdout)
    line = f"{run['id']:15}"
    for name, key in (("allocated", "allocated_peak_bytes"), ("reserved", "reserved_peak_bytes")):
        measured = max(rank[name + "_bytes"] for rank in run["measured"])
        errors[name].append(off(plan["memory"][key], measured))
        line += f"  {name} {measured / 2**30:7.3f} GiB {errors[name][-1]:+6.2f} %"
    if not run.get("fake"):
        step_s = max(rank["step_s"] for rank in run["measured"])
        errors["tokens/s"].append(off(step_s, plan["time"]["step_s"]))
        line += f"  step {step_s * 1e3:7.1f} ms, tokens/s {errors['tokens/s'][-1]:+6.1f} %"
    print(line)
for name, values in errors.items():
    sizes = [abs(v) for v in values]
    print(
        f"{name}: {len(sizes)} runs, median {statistics.median(sizes):.2f} %, mean {statistics.mean(sizes):.2f}, "
        f"most {max(sizes):.1f}"
    )
print(f"refused: {len(refused)}: {' '.join(refused)}")
allocated = [abs(v) for v in errors["allocated"]]
assert len(refused) <= 1, refused
assert sum(v < 0.05 for v in allocated) >= 36, sorted(allocated)
assert max(allocated) < 7, max(allocated)
assert statistics.median(map(abs, errors["reserved"])) < 0.8
assert statistics.median(map(abs, errors["tokens/s"])) < 5
