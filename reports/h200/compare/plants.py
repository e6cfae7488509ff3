"""Runs that differ from their plan by one planted thing, for dtplan compare: traces and memory histories of PyTorch's.

python3 plants.py --plan DIR --out DIR [--device host] [--only NAME,...]: DIR/plan.json and DIR/plan_full.json as dtplan
plan --json prints them, of the same model without and with full checkpointing. run_torch.py must be found on PYTHONPATH.
Each plant changes the program, never the plan.
"""
import argparse
import gzip
import json
import os
import shutil
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


def nothing(run):
    pass


def math_only(choices):
    choices.attention = "math"


def no_checkpointing(choices):
    choices.checkpointing = "none"


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
}


def measure(name, arguments, device):
    plan, choose, change = PLANTS[name]
    shape, choices = parts(os.path.join(arguments.plan, plan + ".json"))
    if choose:
        choose(choices)
    arguments.steps, arguments.seed, arguments.lr, arguments.log = 6, 1, 3e-4, None
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.memory._record_memory_history(max_entries=200000, stacks="python")
    run = run_torch.Run(arguments, shape, choices, 1, 0, device)
    change(run)
    seconds = [run.step(False)[0] for _ in range(arguments.steps)]
    base = os.path.join(arguments.out, name)
    said = {"name": name, "plan": plan, "step_s": sorted(seconds[2:])[2], **run.memory()}
    if cuda:
        torch.cuda.memory._dump_snapshot(base + ".pickle")
        torch.cuda.memory._record_memory_history(enabled=None)
    run_torch.traced(run, base + ".json")
    print(json.dumps(said), flush=True)
    with open(os.path.join(arguments.out, "plants.jsonl"), "a", encoding="utf-8") as file:
        file.write(json.dumps(said) + "\n")
    torch.backends.cuda.matmul.allow_tf32 = False
    for ending in (".pickle", ".json"):
        if os.path.exists(base + ending):
            with open(base + ending, "rb") as plain, gzip.open(base + ending + ".gz", "wb", 6) as packed:
                shutil.copyfileobj(plain, packed)
            os.remove(base + ending)


def main():
    parser = argparse.ArgumentParser()
    for flag in ("--plan", "--out"):
        parser.add_argument(flag, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", default=",".join(PLANTS))
    arguments = parser.parse_args()
    device = torch.device("cpu") if arguments.device == "host" else torch.device("cuda", 0)
    for name in arguments.only.split(","):
        try:
            measure(name, arguments, device)
        except Exception as wrong:  # noqa: BLE001: one plant must not cost the others
            print(json.dumps({"name": name, "error": repr(wrong)[:500]}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
