"""Measures this machine by PyTorch's own kernels, for dtplan probe --runtime torch.

Steps of models of two layers are trained as run_torch.py trains them, and PyTorch's profiler says what each matmul and each
attention of them took on the device: with the library, the algorithms and, since whole steps run one after the other, the
power that a training has. Kernels that pass over memory are as fast as what they compute lets them be (AdamW over two
layers and large ends is 10 to 20 % slower than over a whole model), and are left to the catalogue, or to dtplan compare
--output. What comes out goes as JSON lines to descriptor 3, rows of a machine file.

python3 probe_torch.py [--device cuda|host] [--seconds-each S]: on the cores of a host the mechanics run, over two tiny models.
"""
import argparse
import json
import math
import os
import signal
import sys
import time
import types

import run_torch  # which says what is missing where PyTorch is
import torch

# ---- what is trained ---------------------------------------------------------------------------------------------------

# Widths of models that one GPU trains: hidden, heads, kv_heads, ffn, vocab, gated. Of shapes between them fits tell.
GPT_2 = (768, 12, 12, 3072, 50304, False)
GPT_2_XL = (1600, 25, 25, 6400, 50257, False)
LLAMA_1B = (2048, 16, 16, 5504, 32000, True)
LLAMA_3B = (3072, 24, 8, 8192, 128256, True)
LLAMA_7B = (4096, 32, 32, 11008, 32000, True)
LLAMA_8B = (4096, 32, 8, 14336, 128256, True)
LLAMA_13B = (5120, 40, 40, 13824, 32000, True)
# Of one: widths, sequence, micro-batches, precision.
LINES = (
    (LLAMA_1B, 2048, (1, 2, 4, 8), "bf16-mixed"),
    (LLAMA_1B, 4096, (2, 4), "bf16-mixed"),
    (LLAMA_7B, 2048, (1, 2, 4), "bf16-pure"),
    (LLAMA_7B, 4096, (2,), "bf16-pure"),
    (LLAMA_7B, 8192, (1,), "bf16-pure"),
    (LLAMA_3B, 2048, (2, 4), "bf16-mixed"),
    (LLAMA_3B, 4096, (1,), "bf16-mixed"),
    (LLAMA_8B, 4096, (1,), "bf16-pure"),
    (LLAMA_13B, 2048, (1, 2), "bf16-pure"),
    (GPT_2, 1024, (4, 16, 32), "bf16-mixed"),
    (GPT_2_XL, 1024, (4, 8), "bf16-mixed"),
)
TINY = (((64, 4, 2, 160, 96, True), 32, (2,), "bf16-mixed"), ((64, 4, 4, 192, 96, False), 32, (3,), "bf16-mixed"))
PACKED = (False, True)  # q, k, v and gate, up as matmuls of their own and as one
LAYERS = 2
PERIOD_S = 1.0  # of a GPU's power at its limit, as steps show it
WARM_UP = 3  # steps of a profiler, and of what is timed without one
STEPS = 2  # profiled
HOST_MOMENTS = 4  # spread over the probe, at which launches are timed


def shape_of(widths, layers=LAYERS):
    hidden, heads, kv_heads, ffn, vocab, gated = widths
    return types.SimpleNamespace(
        layers=layers, hidden=hidden, heads=heads, kv_heads=kv_heads, head_dim=hidden // heads, ffn=ffn, vocab=vocab,
        positions=0 if gated else 1024, norm_bias=not gated, qkv_bias=not gated, attention_output_bias=not gated,
        mlp_bias=not gated, head_bias=False, tied_head=not gated, norm_eps=1e-5, norm="rms_norm" if gated else "layer_norm",
        activation="swiglu" if gated else "gelu", position="rope" if gated else "learned", gated=gated, params=None)


def choices_of(sequence, micro_batch, precision, packed, attention):
    params = "bf16" if precision == "bf16-pure" else "fp32"
    return types.SimpleNamespace(
        compile=False, compile_loss=False, shard_group=1, micro_batch=micro_batch, accumulate=1, accumulate_sync=False,
        reshard_after_forward=False, keep_root=False, wrap_ends=False, ddp_bucket_mib=25, ddp_bucket_view=False,
        process_group=False, wrap_layers=1, fused_qkv=packed, fused_gate_up=packed, rope_fp32=False,
        norm_chain=False, expandable_segments=False, launch_blocking=False, prefetch_depth=1, sequence=sequence,
        strategy="ddp", params=params, compute="bf16", reduce=params, checkpointing="none",
        attention=attention, loss="eager", optimizer="adamw", comm_hook="none", sharded=False, mixed=params == "fp32")


# ---- what came of it ---------------------------------------------------------------------------------------------------

class Rows:
    """Samples of each row, by what it is of."""

    def __init__(self):
        self.samples = {}

    def add(self, measurement, what, seconds, dtype="", **shape):
        if seconds > 0:
            self.samples.setdefault((measurement, what, dtype, tuple(sorted(shape.items()))), []).append(seconds)

    def has(self, *row):
        return any(key[:2] == row for key in self.samples)

    def say(self, events):
        for (measurement, what, dtype, shape), samples in self.samples.items():
            samples.sort()
            count = len(samples)
            events.say("row", measurement=measurement, what=what, dtype=dtype, text="", **dict(shape),
                       seconds=samples[count // 2], low_s=samples[count // 4],
                       high_s=samples[(3 * count) // 4], samples=count)


def device_us(event):
    return sum(kernel.duration for kernel in event.kernels)


def above(event, part):
    while event is not None:
        if part in event.name:
            return True
        event = event.cpu_parent
    return False


class Harvest:
    """Rows of the operators of a profiled step. Forward multiplies [tokens, in] by [in, out]; of the two products of its
    backward the engine makes the weight's gradient first, over tokens, [out, tokens] by [tokens, in]
    (torch/csrc/autograd/generated/Functions.cpp: MmBackward0; derivatives.yaml: mm_mat2_grad)."""

    def __init__(self, rows, run, shape, headroom, lighter_power):
        self.rows, self.shape, self.choices, self.headroom = rows, shape, run.choices, headroom
        self.lighter_power = lighter_power
        self.tokens = self.choices.sequence * self.choices.micro_batch
        self.took = device_us if run.cuda else (lambda event: event.self_cpu_time_total)
        self.first = {}  # the first product of a backward: which node's

    def matmul(self, event):
        """Which product it is: m, n, k and the pass."""
        left, right = event.input_shapes[-2:] if event.name == "aten::mm" else event.input_shapes[1:3]
        if len(left) != 2 or len(right) != 2:
            return None
        what = "forward"
        if above(event, "Backward"):
            parent = event.cpu_parent
            clash = self.tokens in (left[0], right[1]) and left[1] == self.tokens
            if clash:
                what = "input_gradient" if id(parent) in self.first else "weight_gradient"
                self.first[id(parent)] = True
            else:
                what = "weight_gradient" if left[1] == self.tokens else "input_gradient"
        return what, left[0], right[1], left[1]

    @staticmethod
    def has_odd_rows(what, m, n, k):
        """As dtp_matmul_has_odd_rows has it of 16 bits: older kernels multiply them, which draw less."""
        return n % 2 == 1 or (m if what == "weight_gradient" else k) % 2 == 1

    def take(self, events, step_s, settled):
        """step_s: of one; settled: how much longer its kernels take on average than the profiled ones. What tensor cores do
        is 1 + headroom * (1 - their share) times as fast as beside nothing but matmuls, attention and products of odd rows
        counted by the power they draw of a matmul's (dtp_matmul_speedup)."""
        products, tensor_s, lighter_s, busy_s, whole = [], 0, 0, 0, {}  # of each attention its kernels, whoever starts them
        for event in events:
            seconds, outer = self.took(event) / 1e6, self.attention_above(event)
            busy_s += seconds
            if outer is not None:
                whole.setdefault(id(outer), [outer, 0])[1] += seconds
                tensor_s, lighter_s = tensor_s + seconds, lighter_s + seconds
            elif event.name in ("aten::mm", "aten::addmm"):
                product = self.matmul(event)
                if product:
                    products.append((product, seconds))
                tensor_s += seconds
                lighter_s += seconds if product and self.has_odd_rows(*product) else 0
        longer = self.longer(tensor_s, busy_s, settled)
        share = min(1, longer * (tensor_s - (1 - self.lighter_power) * lighter_s) / (STEPS * step_s))
        slower = (1 + self.headroom * (1 - share)) * longer
        for (what, m, n, k), seconds in products:
            self.rows.add("matmul", what, slower * seconds, "bf16", m=m, n=n, k=k)
        for outer, seconds in whole.values():
            self.rows.add("attention", "backward" if "backward" in outer.name else "forward", slower * seconds, "bf16",
                          m=self.choices.micro_batch, sequence=self.choices.sequence, heads=self.shape.heads,
                          kv_heads=self.shape.kv_heads, head_dim=self.shape.head_dim)

    @staticmethod
    def longer(tensor_s, busy_s, settled):
        """The same of what tensor cores do alone: kernels that pass over memory keep their times."""
        return 1 + (settled - 1) * busy_s / tensor_s if tensor_s > 0 else 1

    @staticmethod
    def attention_above(event):
        """The outermost operator of attention that an event is of."""
        found = None
        while event is not None:
            if event.name.startswith("aten::") and "dot_product" in event.name:
                found = event
            event = event.cpu_parent
        return found


# ---- steps -------------------------------------------------------------------------------------------------------------

def kernels_us(events):
    """On the device's lanes lie spans of steps and of the optimizer too."""
    return sum(event.time_range.elapsed_us() for event in events
               if event.device_type == torch.autograd.DeviceType.CUDA and not event.name.startswith(("ProfilerStep", "Optimizer.")))


def beneath(run, least_s):
    """Steps for `least_s` seconds, whose kernels alone are written down, which leaves the host as it is: seconds of one, and
    of its kernels."""
    from torch.profiler import ProfilerActivity, profile
    count, began = 0, time.perf_counter()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        while count == 0 or time.perf_counter() - began < least_s:
            run.step(False)
            count += 1
        took_s = time.perf_counter() - began
    return took_s / count, kernels_us(profiler.events()) / 1e6 / count


def profiled(run, load_s):
    """The operators of STEPS steps; seconds of one, undisturbed; and how much longer its kernels take on average than in
    these. A GPU at its power limit slows down in the first second and then once a second or so for a fifth of it
    (reports/h200/single_gpu_steps.csv), which two steps see or not: so the mean is one of a whole period, behind load_s
    seconds of load."""
    from torch.profiler import ProfilerActivity, profile, schedule
    step_s, busy_s, found = min(run.step(False)[0] for _ in range(3)), None, []
    if run.cuda:
        for _ in range(math.ceil(load_s / step_s)):
            run.step(False)
        step_s, busy_s = beneath(run, PERIOD_S)
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if run.cuda else [])
    with profile(activities=activities, record_shapes=True, on_trace_ready=lambda p: found.extend(p.events()),
                 schedule=schedule(wait=0, warmup=WARM_UP, active=STEPS, repeat=1)) as profiler:
        for _ in range(WARM_UP + STEPS):
            run.step(False)
            profiler.step()
    return found, step_s, busy_s * STEPS / (kernels_us(found) / 1e6) if run.cuda else 1


def at_power_limit(device):
    """Hopper; what dtplan knows of (model/cost/op_cost.c: dtp_matmul_speedup)."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9


def measure_steps(arguments, rows, device, widths, line, packed):
    sequence, micro_batch, precision = line
    shape, choices = shape_of(widths), choices_of(sequence, micro_batch, precision, packed, arguments.attention)
    run = ProbeRun(types.SimpleNamespace(seed=1, lr=1e-4), shape, choices, 1, 0, device)
    headroom = arguments.power_headroom if at_power_limit(device) else 0
    Harvest(rows, run, shape, headroom, arguments.attention_power).take(*profiled(run, arguments.seconds_each))
    del run
    if device.type == "cuda":
        torch.cuda.empty_cache()


class ProbeRun(run_torch.Run):
    def count_is_right(self, count, shape):
        return True


def measure_host(arguments, rows, device, net):
    """What the host needs for each kernel that dtplan's program of a net counts: it is so narrow that nothing else sets
    its step. Of steps on a core that nothing disturbs, at several moments: hosts that are shared are slow for seconds on
    end (run_torch.HostCore); where all of a moment are disturbed it says nothing."""
    of = {key: int(value) for key, value in (pair.split("=") for pair in net.split(","))}
    widths = tuple(of[key] for key in ("hidden", "heads", "kv_heads", "ffn", "vocab")) + (of["gated"] == 1,)
    choices = choices_of(of["sequence"], of["micro_batch"], "bf16-mixed", False, arguments.attention)
    run = ProbeRun(types.SimpleNamespace(seed=1, lr=1e-4), shape_of(widths, of["layers"]), choices, 1, 0, device)
    for _ in range(WARM_UP):  # from the first of which on autograd has a thread
        run.step(False)
    host = run_torch.HostCore(run)
    until = time.perf_counter() + (arguments.seconds_each if host.cores else 0)
    while True:
        seconds, _, calm = host.step(run)
        if calm or not host.cores:  # no core can be chosen, or these are the mechanics on cores
            rows.add("step", "launch_pytorch", seconds / of["kernels"])
        if time.perf_counter() > until:
            break


# ---- all of it ----------------------------------------------------------------------------------------------------------

def processor():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for text in file:
                if text.startswith("model name"):
                    return text.split(":", 1)[1].strip()
    except OSError:
        pass
    return "unknown"


def say_machine(events, device):
    cuda = device.type == "cuda"
    events.say("start", gpu=cuda)
    about = {
        "gpu": torch.cuda.get_device_name(device) if cuda else "cores of this machine",
        "gpu_memory_bytes": str(torch.cuda.get_device_properties(device).total_memory if cuda else 1 << 30),
        "device": "cuda" if cuda else "host",
        "libraries": run_torch.libraries(cuda) + (f", CUDA {torch.version.cuda}" if cuda else ""),
        "host_cpu": processor(),
        "host_cores": str(len(os.sched_getaffinity(0))),
    }
    if at_power_limit(device):
        about["power"] = "sustained"
    for what, text in about.items():
        events.say("row", measurement="about", what=what, text=text)


def probe(arguments, events, stopped):
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise run_torch.Lacking("PyTorch sees no GPU here; --device host runs the mechanics on cores, whose times say nothing")
    device = torch.device("cuda", 0) if arguments.device == "cuda" else torch.device("cpu")
    rows, lines = Rows(), LINES if device.type == "cuda" else TINY
    jobs = [(widths, (sequence, micro_batch, precision), packed) for widths, sequence, micro_batches, precision in lines
            for micro_batch in micro_batches for packed in PACKED
            if not packed or micro_batch == micro_batches[-1]]
    say_machine(events, device)
    count = len(jobs)
    memory = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None
    for done, (widths, line, packed) in enumerate(jobs):
        if stopped:
            break
        if done % (count // HOST_MOMENTS + 1) == 0:
            events.say("progress", done=done, count=count, words="what the host takes to launch")
            for net in arguments.host_net:
                measure_host(arguments, rows, device, net)
        events.say("progress", done=done, count=count, words=f"width {widths[0]}, {line[1]} x {line[0]} tokens")
        try:
            measure_steps(arguments, rows, device, widths, line, packed)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            events.say("warning", words=f"width {widths[0]}, {line[1]} x {line[0]} tokens does not fit into "
                                        f"{memory / 2 ** 30:.0f} GiB and was left out")
    if device.type == "cuda" and not rows.has("step", "launch_pytorch"):
        events.say("warning", words="others used this host's cores at each of several moments, so that what a launch takes was not "
                                    "measured; the catalogue's stays: probe again when it is quiet")
    rows.say(events)
    events.say("end", interrupted=bool(stopped))


def main():
    parser = argparse.ArgumentParser(prog="probe_torch.py", description=__doc__.split("\n", 1)[0], allow_abbrev=False)
    parser.add_argument("--device", choices=("cuda", "host"), default="cuda")
    parser.add_argument("--seconds-each", type=float, default=0.8, help="of load before a second is measured")
    parser.add_argument("--power-headroom", type=float, required=True,
                        help="how much faster matmuls run where they are none of a step: dtplan's matmul_power_headroom")
    parser.add_argument("--attention-power", type=float, required=True,
                        help="what attention and products of odd rows draw of a matmul's power: dtplan's attention_power")
    parser.add_argument("--attention", choices=("flash", "flash2"), default="flash")
    parser.add_argument("--host-net", action="append", default=[],
                        help="a net whose steps wait for the host, in key=N,...: widths, layers and the kernels dtplan counts")
    arguments = parser.parse_args()
    events, stopped = run_torch.Events(0), []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.append(True))
    try:
        probe(arguments, events, stopped)
        return 0
    except (run_torch.Refused, run_torch.Lacking) as lacking:
        events.say("fault", words=str(lacking))
        print(f"dtplan: {lacking}", file=sys.stderr)
        return 3


if __name__ == "__main__":
    sys.exit(main())
