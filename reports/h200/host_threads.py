"""Steps of PyTorch with the threads that launch free and bound to one core, on one GPU: host_threads.py >host_threads.csv.

Two nets of 24 narrow layers, whose steps wait for the host, in turn, the median of seven steps a round; then GPT-2 1.5B at
4 x 1024 tokens for 2.5 s, free and then bound, each step.
"""
import os
import statistics
import sys
import time
import types

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scenarios"))
import probe_torch  # noqa: E402
import run_torch  # noqa: E402
import torch  # noqa: E402

DEVICE = torch.device("cuda", 0)
NARROW = {"gpt-2 narrow": (256, 4, 4, 1024, 1024, False), "llama narrow": (256, 4, 4, 704, 1024, True)}
ROUNDS, STEPS, WARM_UP, LONG_S = 6, 7, 5, 2.5


def made(widths, layers, sequence, micro_batch):
    choices = probe_torch.choices_of(sequence, micro_batch, "bf16-mixed", False, "flash")
    run = probe_torch.ProbeRun(types.SimpleNamespace(seed=1, lr=1e-4), probe_torch.shape_of(widths, layers), choices, 1, 0, DEVICE)
    for _ in range(WARM_UP):
        run.step(False)
    return run


def free():
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), range(os.cpu_count()))


def main():
    print("net,threads,round,step_ms")
    runs = {name: made(widths, 24, 64, 1) for name, widths in NARROW.items()}
    for number in range(1, ROUNDS + 1):
        for threads in ("free", "bound"):
            for name, run in runs.items():
                free() if threads == "free" else run_torch.HostCore(run).bind()
                step_ms = statistics.median(1e3 * run.step(False)[0] for _ in range(STEPS))
                print(f"{name},{threads},{number},{step_ms:.1f}")
    runs.clear()
    free()
    run = made(probe_torch.GPT_2_XL, 48, 1024, 4)
    for threads in ("free", "bound"):
        if threads == "bound":
            run_torch.HostCore(run).bind()
        number, began = 0, time.perf_counter()
        while time.perf_counter() - began < LONG_S:
            number += 1
            print(f"gpt-2-xl 4x1024,{threads},{number},{1e3 * run.step(False)[0]:.2f}")


if __name__ == "__main__":
    main()
