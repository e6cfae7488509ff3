"""Memory and host time of PyTorch's tensor and pipeline parallel ranks, on one GPU that stands for a rank:
host_layouts.py SCRIPT CONFIGS RESULTS.

SCRIPT is the one that measured h200_parallel_runs.csv; CONFIGS a list of its configurations of one number of ranks, with
"rank" of which one the GPU is (0), the same in all. Of those with "live" the tensors are listed that were made in the
measured steps and live when memory peaks, with where they were made; of those with "saved" each tensor that autograd
saves in a step's forward is counted; those with "host" take next to no time on the device. All other ranks are those of
torch.distributed's fake process group, which sends nothing and returns at once: what a rank allocates is what it
allocates beside real ones, but for compiled context parallelism (README.md, What ranks of four and eight hold).
"""

import collections
import gc
import importlib.util
import json
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile
from torch.testing._internal.distributed.fake_pg import FakeStore

WARM = "        if it == warm and CUDA:\n"
BEFORE = "    info = dict(times=times, losses=losses,"
MORE = """    observe(c, step, opt)
"""


class OwnStore(dict):
    """The rendezvous of one rank: whoever asks for another's line gets its own."""

    def set(self, key, value):
        self[key] = value

    def get(self, key):
        return self[key] if key in self else list(self.values())[-1]


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def saved_by(step):
    counts, seen, kept = collections.Counter(), set(), []

    def pack(tensor):
        part = local(tensor)
        storage = part.untyped_storage()
        if part.is_cuda and storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            counts[f"{part.dtype} {list(part.shape)}"] += 1
        kept.append(tensor)  # or its place would be another's
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        step()
    return dict(counts)


def record(config):
    if config.get("live"):
        torch.cuda.memory._record_memory_history(context="alloc", stacks="python", max_entries=4_000_000)


def where(event):
    frames = [f for f in event["frames"] if not f["filename"].endswith((".cpp", ".h"))]
    return " < ".join(f"{os.path.basename(f['filename'])}:{f['line']}:{f['name']}" for f in frames[:7])


def live_at_peak():
    """[bytes, tensors, bytes of each, where] of what was made since `record` and lives when that is most."""
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(enabled=None)
    sizes = {"alloc": 1, "free_completed": -1}
    now = most = peak = 0
    for place, event in enumerate(trace):
        now += sizes.get(event["action"], 0) * event["size"]
        if now > most:
            most, peak = now, place
    live = {}
    for event in trace[: peak + 1]:
        if event["action"] == "alloc":
            live[event["addr"]] = event
        elif event["action"] == "free_completed":
            live.pop(event["addr"], None)
    counts = collections.Counter((event["size"], where(event)) for event in live.values())
    return sorted(([n * size, n, size, at] for (size, at), n in counts.items()), reverse=True)


def kernels_of(step):
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        step()
        torch.cuda.synchronize()
    events = [e for e in profiled.events() if str(e.device_type).endswith("CUDA")]
    return {"kernels": len(events), "kernels_ms": sum(e.device_time for e in events) / 1e3}


def load(path, observed):
    """The script with a line before it gathers what ranks measured, and without losses, which no other rank has."""
    text = open(path).read()
    assert text.count(BEFORE) == 1, "not the script of h200_parallel_runs.csv"
    assert text.count(WARM) == 1, "not the script of h200_parallel_runs.csv"
    text = text.replace(BEFORE, MORE + BEFORE).replace(WARM, WARM + "            record(c)\n")
    text = text.replace("losses.append(sum(", "losses.append(None and sum(").replace(
        "return sum(v) / len(v)", "return 0.0"
    )

    def observe(config, step, optimizer):
        observed.clear()
        if config.get("live"):
            observed["live"] = live_at_peak()
        if config.get("saved"):
            observed["saved"] = saved_by(step)
        if config.get("host"):
            observed.update(kernels_of(step))
        optimizer.zero_grad(set_to_none=True)

    spec = importlib.util.spec_from_loader("layouts", loader=None)
    module = importlib.util.module_from_spec(spec)
    module.observe, module.record = observe, record
    exec(compile(text, path, "exec"), module.__dict__)
    return module


def main(script, configs, results):
    observed = {}
    layouts = load(script, observed)
    configs = json.load(open(configs))
    places = {(c["tp"] * c["pp"] * c["cp"] * c["dp"], c.get("rank", 0)) for c in configs}
    assert len(places) == 1, "configurations of one number of ranks, and of one of them"
    world, rank = places.pop()
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    torch.backends.cuda.enable_math_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    for number, config in enumerate(configs):
        store = OwnStore()
        layouts.run(dict(config), rank, world, device, store, number, False)
        line = json.loads(store[f"info/{number}/{rank}"])
        with open(results, "a") as out:
            print(json.dumps({**line, **observed, "config": config}), file=out, flush=True)
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main(*sys.argv[1:4])
