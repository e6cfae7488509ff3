"""Runs that differ from their plan by one planted thing, for dtplan compare: traces and memory histories of PyTorch's.

python3 plants.py --plan DIR --out DIR [--device host] [--only NAME,...], for plants of two ranks under torchrun: DIR has
the plans that PLANTS names, NAME.json as dtplan plan --json prints it, all of the same model. run_torch.py must be found on
PYTHONPATH. Each plant changes the program, never the plan. A file is NAME.json.gz or NAME.pickle.gz, of two ranks
NAME_rank0.json.gz and NAME_rank1.json.gz; traces are cut to names, kinds and times. two_ranks.sh records those of two
ranks on the cores of a host.
"""
import argparse
import gc
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import run_torch
import torch
import torch.nn.functional as F


class Quiet:
    def say(self, kind, **fields):
        pass


def parts(path):
    with open(path, encoding="utf-8") as file:
        whole = json.load(file)
    choices = run_torch.Choices(run_torch.Part("plan", whole["plan"]))
    return run_torch.Shape(run_torch.Part("model", whole["model"]), choices.sequence), choices


def leak(run):
    kept, before = [], run.micro_step

    def micro_step(i):
        loss = before(i)
        kept.append(torch.empty(64 << 20, dtype=torch.uint8, device=run.device))  # of each step, for ever
        return loss

    run.micro_step = micro_step


def wide_logits(run):
    def forward(x, head=run.model.head):
        with torch.autocast(run.device.type, enabled=False):
            return F.linear(x.float(), head.weight.float())

    run.model.head.forward = forward


def slow_optimizer(run):
    run.optimizer = torch.optim.AdamW(run.model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, foreach=False,
                                      fused=False)


def stall(run):
    before = run.micro_step

    def micro_step(i):
        time.sleep(0.05)  # a loader that is slower than the step
        return before(i)

    run.micro_step = micro_step


def wide(run):
    run.autocast = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.enable_mem_efficient_sdp(True)  # which takes fp32


def empty_cache(run):
    before = run.optimizer.step

    def step():
        before()
        torch.cuda.empty_cache()

    run.optimizer.step = step


def reads_losses(run):
    """A number that the host asks for behind every layer, as of a norm that is logged."""
    seen = []
    for layer in run.model.layers:
        layer.register_forward_hook(lambda _module, _inputs, result: seen.append(result.float().norm().item()))


def ahead(run):
    """On cores fully_shard waits for each gather where it starts it, unless it is told otherwise: so that a unit is gathered
    beside the one before, as PyTorch does on GPUs."""
    if run.cuda:
        return
    layers = list(run.model.layers)
    run.model._set_unshard_async_op(True)
    for i, layer in enumerate(layers):
        layer._set_unshard_async_op(True)
        layer.set_modules_to_forward_prefetch(layers[i + 1:i + 2])
    run.model.set_modules_to_forward_prefetch(layers[:1])


def not_ahead(run):
    """No unit is gathered before its own turn, and whoever computes waits for it."""
    def wait(*_):
        torch.cuda.synchronize()

    for layer in run.model.layers:
        layer.set_modules_to_backward_prefetch([layer])
        if run.cuda:
            layer.register_forward_pre_hook(wait)
            layer.register_full_backward_pre_hook(wait)


BURN = """
import torch
a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
while True:
    for _ in range(20):
        b = a @ a
    torch.cuda.synchronize()
"""
IDLE_LOOP = "while True: pass"


def cores_of(rank, ranks):
    """Two of a host's cores, one for gloo's threads, or as many as there are."""
    every = sorted(os.sched_getaffinity(0))
    each = max(1, min(2, len(every) // ranks))
    return every[rank * each:(rank + 1) * each]


def slow(run):
    """Other processes work where the second rank computes."""
    if run.rank == 1 and run.cuda:
        devices = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")
        run.beside = [subprocess.Popen([sys.executable, "-c", BURN], env={**os.environ, "CUDA_VISIBLE_DEVICES": devices[1]})]
        time.sleep(8)
    elif run.rank == 1:
        run.beside = [subprocess.Popen([sys.executable, "-c", IDLE_LOOP]) for _ in os.sched_getaffinity(0)]
    torch.distributed.barrier()


def slow_ahead(run):
    ahead(run)
    slow(run)


def sync_always(choices):
    choices.accumulate_sync = True


def stall_of_one(run):
    ahead(run)
    if run.rank == 1:
        stall(run)


def nothing(run):
    pass


def math_only(choices):
    choices.attention = "math"


def no_checkpointing(choices):
    choices.checkpointing = "none"


def flash2(choices):
    choices.attention = "flash2"


def eager(choices):
    choices.compile, choices.compile_loss, choices.loss = False, False, "eager"


def half(choices):
    choices.micro_batch //= 2


# name: (plan, change of the choices before it is built, change of the run)
PLANTS = {
    "none": ("plan", None, nothing),
    "full": ("plan_full", None, nothing),
    "math_attention": ("plan", math_only, nothing),
    "leak": ("plan", None, leak),
    "fp32_logits": ("plan", None, wide_logits),
    "optimizer_not_fused": ("plan", None, slow_optimizer),
    "checkpointing_off": ("plan_full", no_checkpointing, nothing),
    "fp32_matmuls": ("plan", None, wide),
    "dataloader": ("plan", None, stall),
    "flash2": ("plan", flash2, nothing),
    "half": ("plan", half, nothing),
    "empty_cache": ("plan", None, empty_cache),
    "reads_losses": ("plan", None, reads_losses),
    "pure": ("plan_pure", None, nothing),
    "compiled": ("plan_compiled", None, nothing),
    "not_compiled": ("plan_compiled", eager, nothing),
}
OF_TWO = {
    "sharded": ("plan_sharded", None, ahead),
    "not_ahead": ("plan_sharded", None, not_ahead),
    "slow_rank": ("plan_sharded", None, slow_ahead),
    "stalled_rank": ("plan_sharded", None, stall_of_one),
    "accumulated": ("plan_accumulated", None, ahead),
    "every_micro_step": ("plan_accumulated", sync_always, ahead),
    "replicated": ("plan_replicated", None, nothing),
    "replicated_every_micro_step": ("plan_replicated", sync_always, nothing),
}


def traced(run, path):
    """Two more steps of each rank, behind one that warms the profiler up."""
    from torch.profiler import ProfilerActivity, profile, schedule
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if run.cuda else [])
    with profile(activities=activities, schedule=schedule(wait=0, warmup=1, active=2),
                 on_trace_ready=lambda profiler: profiler.export_chrome_trace(path)) as profiler:
        for _ in range(3):
            run.step(False)
            profiler.step()


KEPT = ("ph", "cat", "name", "pid", "tid", "ts", "dur")


def cut(path):
    """Names, kinds and times of a trace, which begins at 0; of cores in whole microseconds, without operators of fewer than
    20, which are the time of those around them then."""
    with open(path, encoding="utf-8") as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X" and event.get("cat") != "Trace"]
    first, cores = min(event["ts"] for event in events), not any(event["cat"] == "kernel" for event in events)
    kept = []
    for event in events:
        small = cores and event["cat"] == "cpu_op" and event["dur"] < 20 and not event["name"].startswith("c10d::")
        event["ts"], event["dur"] = (round(value, 0 if cores else 3) for value in (event["ts"] - first, event["dur"]))
        if not small:
            kept.append({key: event[key] for key in KEPT if key in event})
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"traceEvents": kept}, file)


def packed(path):
    if os.path.exists(path):
        if path.endswith(".json"):
            cut(path)
        with open(path, "rb") as plain, gzip.open(path + ".gz", "wb", 9) as file:
            shutil.copyfileobj(plain, file)
        os.remove(path)


def measure(name, arguments, ranks, rank, device):
    plan, choose, change = (OF_TWO if ranks > 1 else PLANTS)[name]
    shape, choices = parts(os.path.join(arguments.plan, plan + ".json"))
    if choose:
        choose(choices)
    arguments.steps, arguments.seed, arguments.lr, arguments.log = 6, 1, 3e-4, None
    cuda = device.type == "cuda"
    history = cuda and ranks == 1
    torch.backends.cuda.matmul.allow_tf32 = False
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    if history:
        torch.cuda.memory._record_memory_history(max_entries=200000, stacks="python")
    run = run_torch.Run(arguments, shape, choices, ranks, rank, device)
    run.beside = []
    base = os.path.join(arguments.out, name + (f"_rank{rank}" if ranks > 1 else ""))
    try:
        change(run)
        seconds = [run.step(False)[0] for _ in range(arguments.steps)]
        said = {"name": name, "plan": plan, "rank": rank, "step_s": sorted(seconds[2:])[2], **run.memory()}
        if history:
            torch.cuda.memory._dump_snapshot(base + ".pickle")
            torch.cuda.memory._record_memory_history(enabled=None)
        traced(run, base + ".json")
    finally:
        for other in run.beside:
            other.send_signal(signal.SIGKILL)
            other.wait()
    print(json.dumps(said), flush=True)
    with open(os.path.join(arguments.out, "plants.jsonl"), "a", encoding="utf-8") as file:
        file.write(json.dumps(said) + "\n")
    for ending in (".pickle", ".json"):
        packed(base + ending)


def main():
    parser = argparse.ArgumentParser()
    for flag in ("--plan", "--out"):
        parser.add_argument(flag, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only")
    arguments = parser.parse_args()
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    device = torch.device("cpu") if arguments.device == "host" else torch.device("cuda", rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    elif ranks > 1:  # before gloo's threads, which are where their process is
        os.sched_setaffinity(0, cores_of(rank, ranks))
        torch.set_num_threads(1)
    if ranks > 1:
        torch.distributed.init_process_group("gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl")
    for name in arguments.only.split(",") if arguments.only else OF_TWO if ranks > 1 else PLANTS:
        try:
            measure(name, arguments, ranks, rank, device)
        except Exception as wrong:  # noqa: BLE001: one plant must not cost the others
            print(json.dumps({"name": name, "rank": rank, "error": repr(wrong)[:500]}), flush=True)
        gc.collect()  # hooks and runs refer to each other
    if ranks > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
