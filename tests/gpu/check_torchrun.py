#!/usr/bin/env python3
"""Ranks that torchrun starts: check_torchrun.py DTPLAN_EXEC SOURCE_TREE [--device host] [--out FOLDER]

Two of them share what GPUs there are and learn what one rank learns. Four train elastically; one is killed, torchrun starts all
again, and they go on from the snapshot in memory to the loss of a run that nothing happened to. 77: no torchrun here."""
import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

MODEL = ("runtime=dtplan precision=fp32 layers=2 hidden=32 heads=2 ffn=64 vocab=64 seq=16 gradient_norm=true "
         "strategy=full_shard").split()
STEPS, STRIKE = 80, 35


def line_of(a, words, more):
    line = [a.exec, "--data-directory", os.path.join(a.source, "scenarios"), "--steps", str(STEPS), "--lr", "1e-3"]
    line += ["--device", "host", "--threads", "1"] if a.device == "host" else ["--device", "cuda", "--untimed-matmuls"]
    for word in MODEL + words.split():
        line += ["--set", word]
    return line + more


def torchrun(ranks, line, restarts=0):
    return [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", str(ranks),
            "--max-restarts", str(restarts), "--master-port", "29611", "--no-python", *line]


def read(path):
    events = []
    with open(path, encoding="utf-8", errors="replace") as file:
        for text in file:
            at = text.find("{\"event\"")
            try:
                events.append(json.loads(text[at:])) if at >= 0 else None
            except ValueError:
                pass  # being written
    return events


def losses(events):
    return {e["step"]: e["loss"] for e in events if e.get("event") == "step"}


class Run:
    def __init__(self, out, name, line):
        self.path, self.said = os.path.join(out, f"{name}.events"), os.path.join(out, f"{name}.err")
        self.files = open(self.path, "w"), open(self.said, "w")
        self.process = subprocess.Popen(line, stdout=self.files[0], stderr=self.files[1], stdin=subprocess.DEVNULL,
                                        start_new_session=True)

    def wait(self, seconds):
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            return 124

    def tail(self):
        with open(self.said, encoding="utf-8", errors="replace") as file:
            return file.read()[-800:]


def rank_process(parent, rank):
    """The worker with that number, by its environment."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                words = file.read().split(b"\0")
            with open(f"/proc/{name}/stat", encoding="utf-8") as file:
                of = int(file.read().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
        if of == parent and f"RANK={rank}".encode() in words:
            return int(name)
    return 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("exec")
    parser.add_argument("source")
    parser.add_argument("--device", default="cuda", choices=["cuda", "host"])
    parser.add_argument("--out")
    a = parser.parse_args()
    if subprocess.run([sys.executable, "-c", "import torch.distributed.run"], capture_output=True, check=False).returncode:
        print("no torchrun: nothing to start ranks with")
        return 77
    out = a.out or tempfile.mkdtemp()
    os.makedirs(out, exist_ok=True)
    shares = [] if a.device == "host" else ["--share-gpu"]
    failures = 0

    def judge(name, good, words):
        nonlocal failures
        failures += not good
        print(f"{'ok' if good else 'FAILED':6} {name}: {words}", flush=True)

    one = Run(out, "one", line_of(a, "gpus=1 micro_batch=1 accumulate=12", []))
    status = one.wait(120)
    alone = losses(read(one.path))
    judge("one rank", status == 0 and len(alone) == STEPS, f"status {status}, {len(alone)} steps {one.tail() if status else ''}")
    two = Run(out, "two", torchrun(2, line_of(a, "gpus=2 micro_batch=1 accumulate=6", shares)))
    status = two.wait(120)
    both = losses(read(two.path))
    apart = max((abs(both[s] - alone[s]) / alone[s] for s in both if s in alone), default=1)
    judge("two ranks by torchrun", status == 0 and len(both) == STEPS and apart < 5e-4,
          f"status {status}, {len(both)} steps, at most {apart:.1e} apart {two.tail() if status else ''}")

    memory = os.path.join("/dev/shm", f"dtplan-check-{os.getpid()}")
    shutil.rmtree(memory, ignore_errors=True)
    more = ["--elastic", "4:4", "--on-loss", "wait", "--snapshot-every", "10", "--snapshots", memory] + shares
    four = Run(out, "four", torchrun(4, line_of(a, "gpus=4 micro_batch=1 accumulate=3", more), restarts=3))
    struck, began = 0, time.monotonic()
    while four.process.poll() is None and time.monotonic() - began < 100 and not struck:
        steps = losses(read(four.path))
        pid = rank_process(four.process.pid, 2) if steps and max(steps) >= STRIKE else 0
        if pid:
            os.kill(pid, signal.SIGKILL)
            struck = max(steps)
        time.sleep(0.05)
    status = four.wait(150)
    events = read(four.path)
    begins = [(e["ranks"], e["from"]) for e in events if e.get("event") == "begin"]
    all_four = losses(events)
    last = [sum(x[s] for s in range(STEPS - 9, STEPS + 1)) / 10 if len(x) == STEPS else 0 for x in (all_four, alone)]
    judge("killed, started again by torchrun",
          status == 0 and struck and len(begins) == 2 and begins[1] == (4, "snapshot") and
          abs(last[0] - last[1]) < 0.01 * last[1],
          f"status {status}, killed after step {struck}, began {begins}, last ten {last[0]:.5f} of one rank's {last[1]:.5f} "
          f"{four.tail() if status or len(begins) != 2 else ''}")
    shutil.rmtree(memory, ignore_errors=True)
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
