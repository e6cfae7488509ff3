"""Megatron-LM's own pretrain_gpt.py, measured by the flags that it reads: what megatron_runs.json was made of.

    PYTHONPATH=MEGATRON_LM RANKS=1 python3 megatron_runs.py megatron_runs.json OUT.jsonl [SECONDS]

runs every configuration, each rank a process forked from one that has imported all, and appends one JSON line a rank: times of steps
(between two synchronisations), peaks of PyTorch's allocator and of the driver behind the first steps; with LIVE=1 the tensors that are
live at the peak with the lines that made them, with PROFILE=1 a step's kernels. "fake": [WORLD, RANK, ...] runs these ranks one after
the other on one GPU with --fake-process-group, whose collectives do nothing: memory alone is of use then, of ranks that read the batch
(the first of their tensor parallel group). ONLY=a,b runs these alone. Tokens are Megatron-LM's mock data.
"""

import json, os, shlex, signal, sys, tempfile, time, traceback

for name, value in (("CUDA_DEVICE_MAX_CONNECTIONS", "1"), ("PYTORCH_NVML_BASED_CUDA_CHECK", "1")):
    os.environ.setdefault(name, value)
import torch

# imports ask which GPU there is, which would open CUDA before processes are forked
asked = torch.cuda.get_device_name, torch.cuda.get_device_capability, torch.cuda.get_device_properties


class H200:
    name, major, minor, total_memory, multi_processor_count = "NVIDIA H200", 9, 0, 150109880320, 132


torch.cuda.get_device_name = lambda *_: H200.name
torch.cuda.get_device_capability = lambda *_: (H200.major, H200.minor)
torch.cuda.get_device_properties = lambda *_: H200
import transformer_engine.pytorch
import pretrain_gpt
import megatron.core.datasets.utils as datasets
import megatron.training.training as training

torch.cuda.get_device_name, torch.cuda.get_device_capability, torch.cuda.get_device_properties = asked
SOURCE = open(pretrain_gpt.__file__).read()
OURS = ("megatron", "transformer_engine", "autograd", "optim")


def live_at_peak(trace, base):
    now, most, at = base, base, 0
    for i, event in enumerate(trace):
        now += {"alloc": event["size"], "free_completed": -event["size"]}.get(event["action"], 0)
        if now > most:
            most, at = now, i
    live = {}
    for event in trace[: at + 1]:
        if event["action"] == "alloc":
            live[event["addr"]] = event
        elif event["action"] == "free_completed":
            live.pop(event["addr"], None)
    rows = {}
    for event in live.values():
        lines = [
            f"{os.path.basename(f['filename'])}:{f['line']}:{f['name']}"
            for f in event.get("frames", [])
            if any(word in f["filename"] for word in OURS)
        ][:4]
        key = f"{event['size']} {' < '.join(lines)}"
        rows[key] = rows.get(key, 0) + 1
    return {"base": base, "peak": most, "rows": sorted(rows.items(), key=lambda r: -int(r[0].split()[0]) * r[1])[:90]}


def kernels_of(step):
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiled:
        step()
        torch.cuda.synchronize()
    kernels = {}
    for event in profiled.events():
        if str(event.device_type).endswith("CUDA"):
            row = kernels.setdefault(event.name[:140], [0, 0.0])
            row[0] += 1
            row[1] += event.device_time
    return sorted(([name, *row] for name, row in kernels.items()), key=lambda row: -row[2])


class Done(Exception):
    pass


def train(run, out):
    warm, steps = (2, 2) if run.get("fake") else (3, 5)
    times, count, train_step = [], [0], training.train_step

    def step(*args, **keys):
        index, base = count[0], torch.cuda.memory_allocated()
        count[0] += 1
        last = index == warm + steps - 1
        if index == warm:
            torch.cuda.reset_peak_memory_stats()
        if last and os.environ.get("LIVE"):
            torch.cuda.memory._record_memory_history(
                enabled="all", context="alloc", stacks="python", max_entries=2000000
            )
        torch.cuda.synchronize()
        begin = time.perf_counter()
        result = train_step(*args, **keys)
        torch.cuda.synchronize()
        if index >= warm:
            times.append(time.perf_counter() - begin)
        if not last:
            return result
        free, total = torch.cuda.mem_get_info()
        out.update(
            allocated_bytes=torch.cuda.max_memory_allocated(),
            reserved_bytes=torch.cuda.max_memory_reserved(),
            device_bytes=total - free,
        )
        if os.environ.get("LIVE"):
            out["live"] = live_at_peak(torch.cuda.memory._snapshot()["device_traces"][0], base)
            torch.cuda.memory._record_memory_history(enabled=None)
        if os.environ.get("PROFILE"):
            out["kernels"] = kernels_of(lambda: train_step(*args, **keys))
        raise Done

    training.train_step = step
    datasets.compile_helpers = lambda: None  # they are compiled beforehand
    flags = shlex.split(run["file"].replace("\\\n", " "))
    sys.argv = flags[flags.index("pretrain_gpt.py") :] + (["--fake-process-group"] if run.get("fake") else [])
    try:
        exec(
            compile(SOURCE, pretrain_gpt.__file__, "exec"), {"__name__": "__main__", "__file__": pretrain_gpt.__file__}
        )
    except Done:
        pass
    out.update(times=times, step_s=sorted(times)[len(times) // 2])


def child(run, rank, world, port, path):
    out, fake = {"id": run["id"], "rank": rank, "world": world}, bool(run.get("fake"))
    try:
        os.environ.update(run.get("environment", {}))
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK="0" if fake else str(rank))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), LOCAL_WORLD_SIZE="1" if fake else str(world))
        os.chdir(tempfile.mkdtemp())
        train(run, out)
    except BaseException:
        out["error"] = traceback.format_exc()[-1800:]
    with open(path, "a") as lines:
        lines.write(json.dumps(out) + "\n")
    print(out["id"], rank, {k: out[k] for k in ("step_s", "allocated_bytes", "reserved_bytes", "error") if k in out})
    sys.stdout.flush()
    os._exit(0)


def main():
    runs, path = json.load(open(sys.argv[1])), os.path.abspath(sys.argv[2])
    end = time.time() + float(sys.argv[3] if len(sys.argv) > 3 else 500)
    ranks, only, port = int(os.environ.get("RANKS", "1")), os.environ.get("ONLY"), 29700
    for run in runs:
        if (only and run["id"] not in only.split(",")) or (not run.get("fake") and run["gpus"] != ranks):
            continue
        if time.time() > end:
            sys.exit(f"out of time before {run['id']}")
        world = run["gpus"]
        for together in [[r] for r in run["fake"][1:]] if run.get("fake") else [list(range(ranks))]:
            port, pids = port + 1, []
            for rank in together:
                pid = os.fork()
                if pid == 0:
                    child(run, rank, world, port, path)
                pids.append(pid)
            begin = time.time()
            while pids and time.time() - begin < run.get("limit_s", 100):
                pids = [pid for pid in pids if not os.waitpid(pid, os.WNOHANG)[0]]
                time.sleep(0.05)
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                print("killed", run["id"])


if __name__ == "__main__":
    main()
