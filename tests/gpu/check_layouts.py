#!/usr/bin/env python3
"""Every layout that the executor runs learns on GPUs what one GPU learns, and holds and sends what was predicted:
check_layouts.py DTPLAN SOURCE_TREE [--device host] [--out FOLDER] [--seconds N] [--only WORD,...]
    [--ranks N] [--case-seconds N] [--seq TOKENS] [--lr RATE] [--debugger]

Where there are fewer GPUs than ranks they share them (dtplan run --share-gpu), so that one GPU is enough; nothing here
is a time. Losses of 50 steps are compared step by step with those of one rank that takes the same sequences: within
0.05 %. Sums of gradients are made in another order, and of tensor parallel ranks sums of products too.

FOLDER gets layouts.csv, a row a case, and losses.csv, a row a step of a case. 77: no GPU here."""
import argparse
import csv
import filecmp
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

STEPS = 50
WITHIN = 5e-4

# As 7B: as many heads for k and v as for q, ffn 2.7 times hidden; and grouped heads. Wider or deeper ones go through a
# spike of the loss at this learning rate, where a last digit grows a thousandfold in two steps, on cores as on GPUs.
MODELS = {
    "mha": "--hidden 128 --heads 4 --ffn 352 --vocab 512",
    "gqa": "--hidden 128 --heads 8 --kv-heads 4 --ffn 448 --vocab 509",
}
# Of ranks that divide experts, beside the two: eight of them and one for all tokens.
EXPERTS = "--experts 8 --experts-per-token 2 --expert-ffn 128 --shared-expert-ffn 64 --router-norm"
DENSE_FIRST = "--dense-layers 1"
SEQUENCES = 8  # of a step, whatever the layout

SCHEDULES = ["1f1b", "zb-h1", "dualpipe", "zb-v", "interleaved", "dualpipev", "gpipe", "zb-h2", "zb-1p", "zb-2p", "v-half", "v-min"]


def share(ranks, micro=1):
    """The step's sequences divided among data parallel ranks."""
    return f"--micro-batch {micro} --accumulate {SEQUENCES // ranks // micro}"


def cases():
    """(name, ranks, layers, words), those first that say most. Stages take as many micro-batches as there are
    sequences; tensor parallel ranks wait in each, so that they take few."""
    stages = [(f"{s} pp {n}", n, 8, f"--pp {n} --schedule {s} {share(1)}") for s in SCHEDULES for n in (2, 4)]
    tensor = [
        ("tp 2", 2, 4, f"--tp 2 {share(1, 4)}"),
        ("tp 4", 4, 4, f"--tp 4 {share(1, 4)}"),
        ("tp 2 pp 2", 4, 4, f"--tp 2 --pp 2 --schedule 1f1b {share(1, 2)}"),
        ("tp 2 full_shard 2", 4, 4, f"--tp 2 --strategy full_shard {share(2, 4)}"),
        ("tp 2 checkpointing", 2, 4, f"--tp 2 --checkpointing full {share(1, 4)}"),
        ("tp 2 pp 2 zb-v", 4, 4, f"--tp 2 --pp 2 --schedule zb-v {share(1, 2)}"),
        ("tp 2 zero1 2", 4, 4, f"--tp 2 --strategy zero1 {share(2, 4)}"),
    ]
    replicas = [("ddp 2", 2, 4, f"--strategy ddp {share(2)}"),
                ("full_shard 2", 2, 4, f"--strategy full_shard {share(2, 2)}"),
                ("ddp 4", 4, 4, f"--strategy ddp {share(4)}"),
                ("zero3 4", 4, 4, f"--strategy zero3 {share(4, 2)}"),
                ("hybrid_shard 2x2", 4, 4, f"--strategy hybrid_shard --shard-group 2 {share(4, 2)}"),
                ("ddp 2 sums in bf16", 2, 4, f"--strategy ddp --comm-hook bf16 {share(2)}"),
                ("zero1 2", 2, 4, f"--strategy zero1 {share(2)}"),
                ("zero2 4", 4, 4, f"--strategy zero2 {share(4)}"),
                ("pp 2 zero1 2 zb-h1", 4, 8, f"--pp 2 --schedule zb-h1 --strategy zero1 {share(2)}"),
                ("full_shard 4", 4, 4, f"--strategy full_shard {share(4, 2)}"),
                ("zero3 checkpointing 2", 2, 4, f"--strategy zero3 --checkpointing full {share(2, 2)}"),
                ("shard_grad_op 2", 2, 4, f"--strategy shard_grad_op {share(2, 2)}"),
                ("pp 2 ddp 2 1f1b", 4, 8, f"--pp 2 --schedule 1f1b --strategy ddp {share(2)}"),
                ("1f1b pp 2 checkpointing", 2, 8, f"--pp 2 --schedule 1f1b --checkpointing full {share(1)}"),
                ("zero1 4", 4, 4, f"--strategy zero1 {share(4)}"), ("zero2 2", 2, 4, f"--strategy zero2 {share(2)}"),
                ("zero3 2", 2, 4, f"--strategy zero3 {share(2, 2)}"),
                ("ddp 4 sums in fp16", 4, 4, f"--strategy ddp --comm-hook fp16 {share(4)}"),
                ("shard_grad_op 4", 4, 4, f"--strategy shard_grad_op {share(4, 2)}")]
    context = [("cp 2 ring", 2, 4, f"--cp 2 {share(1, 4)}"),
               ("cp 2 a2a", 2, 4, f"--cp 2 --cp-comm a2a {share(1, 4)}"),
               ("cp 4 ring", 4, 4, f"--cp 4 {share(1, 4)}"),
               ("cp 4 a2a", 4, 4, f"--cp 4 --cp-comm a2a {share(1, 4)}"),
               ("cp 2 tp 2", 4, 4, f"--cp 2 --tp 2 {share(1, 4)}"),
               ("cp 2 pp 2 zb-h1", 4, 8, f"--cp 2 --pp 2 --schedule zb-h1 {share(1)}"),
               ("cp 2 full_shard 2", 4, 4, f"--cp 2 --strategy full_shard {share(2, 4)}"),
               ("cp 2 checkpointing", 2, 4, f"--cp 2 --checkpointing full {share(1, 4)}")]
    experts = [("experts ep 2", 2, 4, f"--ep 2 --strategy ddp {EXPERTS} {share(2, 2)}"),
               ("experts ep 4", 4, 4, f"--ep 4 --strategy ddp {EXPERTS} {share(4, 2)}"),
               ("experts ddp 2", 2, 4, f"--strategy ddp {EXPERTS} {share(2, 2)}"),
               ("experts ep 2 full_shard 4", 4, 4, f"--ep 2 --strategy full_shard {EXPERTS} {share(4, 2)}"),
               ("experts full_shard 2", 2, 4, f"--strategy full_shard {EXPERTS} {share(2, 2)}"),
               ("experts ep 2 ddp 4", 4, 4, f"--ep 2 --strategy ddp {EXPERTS} {share(4)}"),
               ("experts ep 2 checkpointing", 2, 4,
                f"--ep 2 --strategy full_shard --checkpointing full {EXPERTS} {share(2, 2)}"),
               ("experts ep 2 zero1 4", 4, 4, f"--ep 2 --strategy zero1 {EXPERTS} {share(4)}"),
               ("experts ep 4 full_shard 4", 4, 4, f"--ep 4 --strategy full_shard {EXPERTS} {share(4, 2)}"),
               ("experts ep 2 shard_grad_op 4", 4, 4, f"--ep 2 --strategy shard_grad_op {EXPERTS} {share(4)}")]
    # Stages whose ranks divide experts, by every schedule; ranks that share sequences; layers of two kinds.
    divided = [(f"experts ep 2 {s} pp 2", 4, 4, f"--ep 2 --pp 2 --schedule {s} {EXPERTS} {share(2)}")
               for s in SCHEDULES]
    divided += [(f"experts {s} pp 2", 2, 4, f"--pp 2 --schedule {s} {EXPERTS} {share(1)}") for s in SCHEDULES]
    divided += [("experts ep 2 tp 2", 2, 4, f"--ep 2 --tp 2 --strategy ddp {EXPERTS} {share(1, 4)}"),
                ("experts ep 4 tp 2 full_shard 2", 4, 4,
                 f"--ep 4 --tp 2 --strategy full_shard {EXPERTS} {share(2, 2)}"),
                ("experts ep 2 tp 4 overlap", 4, 4, f"--ep 2 --tp 4 --tp-overlap {EXPERTS} {share(1, 4)}"),
                ("experts ep 2 tp 2 pp 2", 4, 4, f"--ep 2 --tp 2 --pp 2 --schedule 1f1b {EXPERTS} {share(1)}")]
    divided += [("experts ep 2 cp 2 ring", 2, 4, f"--ep 2 --cp 2 {EXPERTS} {share(1, 4)}"),
                ("experts ep 2 cp 2 a2a", 2, 4, f"--ep 2 --cp 2 --cp-comm a2a {EXPERTS} {share(1, 4)}"),
                ("experts ep 4 cp 2 full_shard 4", 4, 4,
                 f"--ep 4 --cp 2 --strategy full_shard {EXPERTS} {share(2, 4)}"),
                ("experts in the last layers, 1f1b pp 2", 2, 4,
                 f"--pp 2 --schedule 1f1b {DENSE_FIRST} {EXPERTS} {share(1)}"),
                ("experts in the last layers, zb-v pp 2", 2, 4,
                 f"--pp 2 --schedule zb-v {DENSE_FIRST} {EXPERTS} {share(1)}"),
                ("experts in the last layers, ep 2 full_shard 2", 2, 4,
                 f"--ep 2 --strategy full_shard {DENSE_FIRST} {EXPERTS} {share(2)}"),
                ("experts in the last layers, ep 4 zero1 4", 4, 4,
                 f"--ep 4 --strategy zero1 {DENSE_FIRST} {EXPERTS} {share(4)}")]
    every = []
    while stages or tensor or replicas or context or experts or divided:
        every += divided[:2] + stages[:2] + replicas[:2] + tensor[:1] + context[:1] + experts[:1]
        stages, replicas, divided = stages[2:], replicas[2:], divided[2:]
        tensor, context, experts = tensor[1:], context[1:], experts[1:]
    return every


class Bench:
    def __init__(self, arguments):
        self.a = arguments
        self.began = time.monotonic()
        self.host = arguments.device == "host"
        self.folder = arguments.out or tempfile.mkdtemp()
        os.makedirs(self.folder, exist_ok=True)
        self.scratch = tempfile.mkdtemp()
        self.gpus = 0 if self.host else count_gpus()
        self.rows, self.failures, self.skipped = [], 0, 0
        self.references = {}
        self.words = self.arenas = self.sent = ""
        self.losses = open(os.path.join(self.folder, "losses.csv"), "w", newline="")
        self.loss_writer = csv.writer(self.losses)
        self.loss_writer.writerow(["case", "model", "precision", "step", "loss", "loss_of_one_rank"])

    def left(self):
        return self.a.seconds - (time.monotonic() - self.began)

    def run(self, name, model, precision, ranks, layers, words, more="", steps=STEPS):
        """One run: exit status, losses, its JSON, what it said."""
        log = os.path.join(self.scratch, "log.csv")
        if os.path.exists(log):
            os.remove(log)
        shape = [*MODELS[model].split(), "--seq", str(self.a.seq), "--layers", str(layers), "--precision", precision]
        line = [self.a.dtplan, "run", *shape,
                "--gpu", "h200", "--gpus", str(ranks), "--steps", str(steps), "--lr", self.a.lr, "--min-lr", self.a.lr,
                "--log", log, "--json", *words.split(), *more.split()]
        line += ["--device", "host", "--threads", "1"] if self.host else ["--device", "cuda", "--untimed-matmuls"]
        if not self.host and ranks > self.gpus:
            line.append("--share-gpu")
        if "--strategy" not in words:
            line += ["--strategy", "ddp"]
        began = time.monotonic()
        limit = max(5, min(self.a.case_seconds, self.left()))
        try:
            with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                  start_new_session=True, stdin=subprocess.DEVNULL) as process:
                try:
                    out, err = process.communicate(timeout=limit)
                    status = process.returncode
                except subprocess.TimeoutExpired:
                    self.look_where(process.pid)
                    os.killpg(process.pid, 15)
                    try:
                        out, err = process.communicate(timeout=10)
                    except subprocess.TimeoutExpired:
                        os.killpg(process.pid, 9)
                        out, err = process.communicate()
                    status = 124
        except OSError as error:
            out, err, status = "", str(error), 127
        self.wall_s = time.monotonic() - began
        self.words = keys_of([*shape, "--gpus", str(ranks), *words.split(),
                              *([] if "--strategy" in words else ["--strategy", "ddp"])])
        with open(os.path.join(self.folder, "said.txt"), "a") as file:
            file.write(f"== {name}, {model}, {precision}: {' '.join(line)}\n-- exit status {status}\n{err[-3000:]}\n")
        losses = []
        if os.path.exists(log):
            with open(log, newline="") as file:
                losses = [float(row["loss"]) for row in csv.DictReader(file)]
        try:
            told = json.loads(out)
        except ValueError:
            told = {}
        self.arenas, self.sent = bytes_of(told)
        return status, losses, told, err.strip().splitlines()

    def look_where(self, group):
        """What stands on the stacks of the ranks of a run that hangs, once: the debugger takes seconds, and ends ranks
        that only were slow (signal 11) where it cannot attach to CUDA."""
        path = os.path.join(self.folder, "hangs.txt")
        if self.host or not self.a.debugger or os.path.exists(path) or not shutil.which("cuda-gdb"):
            return
        with open(path, "w") as file:
            for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
                try:
                    if os.getpgid(pid) != group or b"RANK=" not in open(f"/proc/{pid}/environ", "rb").read():
                        continue
                    done = subprocess.run(["cuda-gdb", "-p", str(pid), "-batch", "-ex", "thread apply all bt 12"],
                                          capture_output=True, text=True, timeout=12, check=False)
                    file.write(f"== {pid}\n{done.stdout[-12000:]}\n")
                except (OSError, subprocess.TimeoutExpired):
                    file.write(f"== {pid}: no stack\n")

    def reference(self, model, precision, layers, more=""):
        key = (model, precision, layers, more)
        if key not in self.references:
            status, losses, _, said = self.run("one rank", model, precision, 1, layers, f"{share(1)} --strategy ddp {more}")
            self.references[key] = losses
            bad = status != 0 or len(losses) != STEPS or not losses[-1] < losses[0] - 0.1
            self.note(f"one rank, {layers} layers{', experts' if more else ''}", model, precision, 1, status, losses, None,
                      None, said if bad else [], bad)
        return self.references[key]

    def note(self, name, model, precision, ranks, status, losses, apart, exact, said, bad):
        self.failures += bool(bad)
        at = max(range(len(apart)), key=lambda i: apart[i]) if apart else -1
        self.rows.append([name, model, precision, ranks, status, len(losses), f"{apart[at]:.3e}" if apart else "",
                          at + 1 if apart else "", "" if exact is None else int(exact), f"{self.wall_s:.1f}",
                          losses[0] if losses else "", losses[-1] if losses else "", self.words, self.arenas, self.sent,
                          " | ".join(said[-3:])[:400]])
        verdict = "FAILED" if bad else "ok"
        print(f"{verdict:6} {name:24} {model} {precision:10} {ranks} ranks: {len(losses)} steps"
              f"{f', at most {apart[at]:.1e} apart' if apart else ''}"
              f"{'' if exact is None else ', bytes equal' if exact else ', BYTES DIFFER'} ({self.wall_s:.0f} s)"
              f"{': ' + ' | '.join(said[-2:])[:300] if bad else ''}", flush=True)
        with open(os.path.join(self.folder, "layouts.csv"), "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["case", "model", "precision", "ranks", "status", "steps", "largest_apart", "at_step",
                             "bytes_equal", "wall_s", "first_loss", "last_loss", "keys", "arena_bytes",
                             "sent_bytes_a_step", "said"])
            writer.writerows(self.rows)

    def compare(self, name, model, precision, ranks, layers, words):
        one = self.reference(model, precision, layers, " ".join(part for part in (EXPERTS, DENSE_FIRST) if part in words))
        status, losses, told, said = self.run(name, model, precision, ranks, layers, words)
        apart = [abs(x - y) / abs(y) for x, y in zip(losses, one)]
        for step, (x, y) in enumerate(zip(losses, one)):
            self.loss_writer.writerow([name, model, precision, step + 1, repr(x), repr(y)])
        self.losses.flush()
        exact = bytes_equal(told)
        bad = status != 0 or len(losses) != STEPS or not apart or max(apart) > WITHIN or exact is not True
        self.note(name, model, precision, ranks, status, losses, apart, exact, said if bad else [], bad)


def keys_of(flags):
    """Flags, as keys of a scenario; those without a value are true."""
    keys = []
    for flag in flags:
        if flag.startswith("--"):
            keys.append([flag[2:].replace("-", "_"), "true"])
        else:
            keys[-1][1] = flag
    return " ".join("=".join(key) for key in keys)


def bytes_of(told):
    """What was measured of each rank, or of the first where all run one program: its arena, and what it sent in a step."""
    if "ranks" in told:
        arenas = [rank["measured_arena_bytes"] for rank in told["ranks"]]
        sent = [sum(rank["sent_bytes_in_all_steps"].values()) // told["steps"] for rank in told["ranks"]]
    elif "communication" in told:
        arenas = [told["memory"]["arena"]["measured_bytes"]]
        kinds = [kind for kind in told["communication"] if not kind.endswith(("_device", "_host"))]
        sent = [sum(told["communication"][kind]["measured_bytes"] for kind in kinds)]
    else:
        return "", ""
    return ";".join(map(str, arenas)), ";".join(map(str, sent))


def bytes_equal(told):
    """Of arenas and of what was sent; None: the run did not say. Rows that go to experts are as many as the router has it:
    of these what is predicted is expected alone."""
    if "bytes_as_predicted" in told:
        return told["bytes_as_predicted"]
    if "communication" not in told:
        return None
    pairs = [told["memory"]["arena"], *told["communication"].values()]
    return all(p["predicted_bytes"] == p["measured_bytes"] for p in pairs if not p.get("expected"))


def count_gpus():
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if seen is not None:
        return len([gpu for gpu in seen.split(",") if gpu])
    try:
        out = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=False).stdout
    except OSError:
        return 0
    return sum(line.startswith("GPU") for line in out.splitlines())


def check_split(bench, precision):
    """Backward in two changes no bit: losses, norms and all state of stages after ten steps are those of 1f1b."""
    folders = {}
    for schedule in ("1f1b", "zb-h1"):
        folders[schedule] = os.path.join(bench.scratch, f"split-{precision}-{schedule}")
        status, losses, _, said = bench.run(f"split {schedule}", "gqa", precision, 2, 8,
                                            f"--pp 2 --schedule {schedule} {share(1)}",
                                            f"--checkpoint {folders[schedule]}", 10)
        if status != 0:
            bench.note("split", "gqa", precision, 2, status, losses, None, None, said, True)
            return
    same, differ = compare_folders(*folders.values())
    bench.note("zb-h1 to the bit of 1f1b", "gqa", precision, 2, 0, losses, None, not differ and same > 0,
               [f"{same} files equal, differ: {', '.join(differ)}"], bool(differ) or same == 0)


def compare_folders(a, b):
    same, differ = 0, []
    for where, _, names in os.walk(a):
        for name in names:
            path = os.path.join(where, name)
            other = os.path.join(b, os.path.relpath(path, a))
            if name.endswith((".json", ".txt")):
                continue
            if os.path.exists(other) and filecmp.cmp(path, other, shallow=False):
                same += 1
            else:
                differ.append(os.path.relpath(path, a))
    return same, differ


def check_checkpoints(bench, precision):
    """What one layout wrote after ten steps another goes on from, to the step 20 of one rank that never stopped."""
    layouts = [("one rank", 1, share(1)), ("tp 2", 2, f"--tp 2 {share(1, 4)}"),
               ("pp 2", 2, f"--pp 2 --schedule zb-v {share(1)}"),
               ("full_shard 2", 2, f"--strategy full_shard {share(2)}"), ("tp 2 pp 2", 4, f"--tp 2 --pp 2 {share(1, 2)}")]
    one = bench.reference("gqa", precision, 4)
    for i, (name, ranks, words) in enumerate(layouts):
        then, ranks_then, words_then = layouts[(i + 1) % len(layouts)]
        if bench.left() < 30:
            bench.skipped += 1
            continue
        folder = os.path.join(bench.scratch, f"kept-{precision}-{i}")
        status, losses, _, said = bench.run(f"{name}, kept", "gqa", precision, ranks, 4, words, f"--checkpoint {folder}", 10)
        if status == 0:
            status, losses, _, said = bench.run(f"{then}, goes on", "gqa", precision, ranks_then, 4, words_then,
                                                f"--checkpoint {folder} --resume", 20)
        apart = [abs(x - y) / abs(y) for x, y in zip(losses[-10:], one[10:20])]
        bad = status != 0 or len(apart) < 10 or max(apart) > WITHIN
        bench.note(f"{name} -> {then}", "gqa", precision, ranks_then, status, losses, apart, None, said if bad else [], bad)
        shutil.rmtree(folder, ignore_errors=True)


def check_refusals(bench):
    """Sharing is asked for by name, and a GPU that does not hold all ranks says so before it is filled."""
    tries = [("not asked for", f"{MODELS['mha']} --seq 64 --layers 4 --strategy ddp --gpus 2", [], 2, "--share-gpu"),
             ("too large together", "--model llama-2-7b --seq 2048 --micro-batch 2 --strategy full_shard --gpus 4",
              ["--share-gpu"], 1, "share")]
    for name, words, more, wanted, phrase in tries:
        line = [bench.a.dtplan, "run", "--gpu", "h200", "--device", "cuda", "--steps", "2", *words.split(), *more]
        done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL)
        bench.wall_s = 0
        good = done.returncode == wanted and phrase in done.stderr
        bench.note(f"refused: {name}", "mha", "bf16-mixed", 0, done.returncode, [], None, None,
                   done.stderr.strip().splitlines(), not good)
        print("       ", done.stderr.strip()[-400:])


def picked(only, ranks):
    """The cases whose names have one of these words, in the order of the words; all without. Of so many ranks, if given."""
    every = [case for case in cases() if ranks in (None, case[1])]
    return list(dict.fromkeys(case for word in only for case in every if word in case[0])) if only else every


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dtplan")
    parser.add_argument("source")
    parser.add_argument("--device", default="cuda", choices=["cuda", "host"])
    parser.add_argument("--out")
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--case-seconds", type=float, default=120)
    parser.add_argument("--seq", type=int, default=64, help="tokens of a sequence: of 8 a step")
    parser.add_argument("--lr", default="1e-3", help="learning rate, constant")
    parser.add_argument("--debugger", action="store_true", help="where a case takes too long, what its ranks' stacks hold")
    parser.add_argument("--only", help="parts of names of cases, comma between")
    parser.add_argument("--ranks", type=int, help="cases of so many ranks alone")
    parser.add_argument("--precisions", default="fp32,bf16-mixed")
    parser.add_argument("--models", default="gqa,mha")
    parser.add_argument("--parts", default="refusals,layouts,split,checkpoints")
    arguments = parser.parse_args()
    os.environ.setdefault("DTPLAN_DATA", os.path.join(arguments.source, "scenarios"))
    bench = Bench(arguments)
    if not bench.host and bench.gpus == 0:
        print("no GPU: nothing to compare")
        return 77
    parts = arguments.parts.split(",")
    only = arguments.only.split(",") if arguments.only else None
    if "refusals" in parts and bench.gpus == 1:
        check_refusals(bench)
    for precision in arguments.precisions.split(","):
        if "split" in parts:
            check_split(bench, precision)
        for name, ranks, layers, words in picked(only, arguments.ranks) if "layouts" in parts else []:
            for model in arguments.models.split(","):
                if bench.left() < 20:
                    bench.skipped += 1
                    continue
                bench.compare(name, model, precision, ranks, layers, words)
        if "checkpoints" in parts:
            check_checkpoints(bench, precision)
    print(f"{len(bench.rows)} cases, {bench.failures} failed, {bench.skipped} left out for want of time")
    shutil.rmtree(bench.scratch, ignore_errors=True)
    return bench.failures > 0


if __name__ == "__main__":
    sys.exit(main())
