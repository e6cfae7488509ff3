"""What disturbed cores of a host cost PyTorch's steps, on one GPU: host_pace.py [SECONDS] >host_pace.csv.

In turn the threads that launch are bound to the last core, or to the one that did a loop fastest just before, or free: a loop
on that core, five steps of a net that waits for the host (their median), ten of GPT-2 1.5B at 4 x 1024 tokens, the loop again.
"""
import csv
import os
import statistics
import sys
import time
import types

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scenarios"))
import probe_torch  # noqa: E402
import run_torch  # noqa: E402
import torch  # noqa: E402

NARROW = (256, 4, 4, 1024, 1024, False)
HOW = ("last", "best", "last", "free")
CALM = 1.15


def made(widths, layers, sequence, micro_batch):
    choices = probe_torch.choices_of(sequence, micro_batch, "bf16-mixed", False, "flash")
    run = probe_torch.ProbeRun(types.SimpleNamespace(seed=1, lr=1e-4), probe_torch.shape_of(widths, layers), choices, 1, 0,
                               torch.device("cuda", 0))
    for _ in range(3):
        run.step(False)
    return run


def launching():
    for thread in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{thread}/comm", encoding="utf-8") as file:
            if int(thread) == os.getpid() or file.read().startswith("pt_autograd"):
                yield int(thread)


def loop_us():
    took = []
    for _ in range(7):
        began, total = time.perf_counter(), 0
        for i in range(8000):
            total += i
        took.append(1e6 * (time.perf_counter() - began))
    return min(took)


def loop_on(core):
    os.sched_setaffinity(0, {core})
    return loop_us()


def main():
    limit_s, began = float(sys.argv[1]) if len(sys.argv) > 1 else 80, time.perf_counter()
    cores = sorted(os.sched_getaffinity(0))
    wide, narrow = made(probe_torch.GPT_2_XL, 48, 1024, 4), made(NARROW, 24, 64, 1)
    out, number, least_us = csv.writer(sys.stdout, lineterminator="\n"), 0, loop_us()
    out.writerow(["since_start_s", "threads", "core", "calm_cores", "loop_before_us", "loop_after_us", "narrow_step_ms"]
                 + [f"step_{i}_ms" for i in range(1, 11)])
    while time.perf_counter() - began < limit_s:
        how, core, calm = HOW[number % 4] if number >= 4 else "last", cores[-1], ""
        if how == "best":
            loops_us = {each: loop_on(each) for each in cores}
            core = min(loops_us, key=loops_us.get)
            least_us = min(least_us, loops_us[core])
            calm = sum(each <= CALM * least_us for each in loops_us.values())
        for thread in launching():
            os.sched_setaffinity(thread, cores if how == "free" else {core})
        before_us = loop_us()
        narrow_ms = statistics.median(1e3 * narrow.step(False)[0] for _ in range(5))
        steps_ms = [1e3 * wide.step(False)[0] for _ in range(10)]
        out.writerow([f"{time.perf_counter() - began:.1f}", how, core, calm, f"{before_us:.0f}", f"{loop_us():.0f}", f"{narrow_ms:.1f}"]
                     + [f"{ms:.1f}" for ms in steps_ms])
        number += 1


if __name__ == "__main__":
    main()
