"""Records of runs as other tools write them, each with one thing planted: make_records.py FOLDER. Numbers are made up in
the manner of a step of 100 ms on one or several GPUs; names of kernels are those of H200 traces and of NCCL."""
import json
import os
import pickle
import sys

FOLDER = sys.argv[1]
FLASH_F, FLASH_B = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16<128>", "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16<128>"
MATMUL, WIDE = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT", "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8"
SMALL, SOFTMAX = "vectorized_elementwise_kernel<8, silu>", "softmax_warp_forward<float, float, float, 11>"
FUSED = "multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor<float>>"
GATHER, SCATTER, REDUCE = ("ncclDevKernel_%s_RING_LL" % name for name in
                           ("AllGather", "ReduceScatter_Sum_f32", "AllReduce_Sum_f32"))
LAYERS = 4


class Trace:
    def __init__(self):
        self.events, self.now = [], 0.0

    def event(self, category, name, start, length, thread=1):
        self.events.append({"ph": "X", "cat": category, "name": name, "pid": 0, "tid": thread, "ts": 1e6 * start,
                            "dur": 1e6 * length, "args": {}})

    def kernel(self, name, ms, beside=None):
        """`beside`: a collective that runs while it does."""
        if beside:
            self.event("kernel", beside[0], self.now, 1e-3 * beside[1], thread=9)
        self.event("kernel", name, self.now, 1e-3 * ms, thread=7)
        self.now += 1e-3 * ms

    def step(self, number, make):
        begin = self.now
        make(self)
        self.event("user_annotation", f"ProfilerStep#{number}", begin, self.now - begin)

    def host(self, ms):
        self.event("cpu_op", "aten::mm", self.now, 1e-3 * ms)

    def save(self, name):
        with open(os.path.join(FOLDER, name), "w", encoding="utf-8") as file:
            json.dump({"schemaVersion": 1, "traceEvents": self.events}, file)


def step(matmul=MATMUL, attention=(FLASH_F, FLASH_B), optimizer=((FUSED, 3.0),), again=0, micro_steps=1, head=MATMUL, slow=1.0,
         gathers=None, reduces=None, stall=0.0, loader=False):
    """gathers: None, or True where compute runs beside them; reduces: a kernel in each of `reduces[1]` micro-steps."""
    def make(trace):
        if stall:
            if loader:
                trace.event("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", trace.now,
                            1e-3 * stall)
            trace.now += 1e-3 * stall
        trace.host(100.0 * micro_steps)
        for micro in range(micro_steps):
            passes = [("f", again + 1)] + [("b", 1)]
            for which, times in passes:
                for _ in range(times):
                    for _ in range(LAYERS):
                        if gathers is False:
                            trace.kernel(GATHER, 3.0)
                        trace.kernel(matmul, 3.0 * slow, (GATHER, 2.5) if gathers else None)
                        if attention:
                            trace.kernel(attention[which == "b"], 1.0 * slow)
                        else:
                            trace.kernel(WIDE, 4.0)
                            if which == "f":
                                trace.kernel(SOFTMAX, 2.0)
                        trace.kernel(SMALL, 2.0 * slow)
            for _ in range(3):
                trace.kernel(head, 2.0 if head == MATMUL else 20.0)
            if reduces and (micro == micro_steps - 1 or reduces[1]):
                for _ in range(LAYERS):
                    trace.kernel(SMALL, 0.5, (reduces[0], 0.4))
        for name, ms in optimizer:
            start = trace.now
            trace.kernel(name, ms)
            trace.event("gpu_user_annotation", "Optimizer.step#AdamW.step", start, 1e-3 * ms, thread=7)
    return make


def trace(name, **how):
    made = Trace()
    for number in range(1, 3):
        made.step(number, step(**how))
    made.save(name)


def traces():
    trace("none.json")
    trace("checkpointed.json", again=1)
    trace("attention.json", attention=None)
    trace("fp32_logits.json", head=WIDE)
    trace("fp32_matmuls.json", matmul=WIDE, head=WIDE)
    trace("optimizer.json", optimizer=[(SMALL, 0.1)] * 90)
    trace("stall.json", stall=30.0)
    trace("loader.json", stall=30.0, loader=True)
    trace("gathered.json", gathers=True, reduces=(SCATTER, False))
    trace("no_prefetch.json", gathers=False, reduces=(SCATTER, False))
    trace("lazy.json", micro_steps=4, reduces=(REDUCE, False))
    trace("every.json", micro_steps=4, reduces=(REDUCE, True))
    for rank in range(4):
        trace(f"rank{rank}.json", gathers=True, slow=1.4 if rank == 2 else 1.0)
        trace(f"even{rank}.json", gathers=True, slow=1.0 + 0.005 * rank)
    with open(os.path.join(FOLDER, "nsys.csv"), "w", encoding="utf-8") as file:
        file.write("Start (ns),Duration (ns),CorrId,GrdX,Device,Strm,Name\n")
        for number in range(3):
            at = 50_000_000 * number
            file.write(f'{at},30000000,1,1,0,7,"{MATMUL}"\n{at + 30_000_000},10000000,1,1,0,7,"{FUSED}"\n')


def frame(name, line, file="/home/user/train.py"):
    return {"name": name, "filename": file, "line": line}


class History:
    """A step of layers that keep `kept` tensors each; weights and optimizer state before."""

    def __init__(self):
        self.events, self.address = [], 1 << 32

    def alloc(self, size, *frames):
        self.address += 1 << 30
        self.events.append({"action": "alloc", "addr": self.address, "size": size, "stream": 0, "frames": list(frames)})
        return self.address, size

    def free(self, block):
        for action in ("free_requested", "free_completed"):
            self.events.append({"action": action, "addr": block[0], "size": block[1], "stream": 0, "frames": []})

    def save(self, name):
        with open(os.path.join(FOLDER, name), "wb") as file:
            pickle.dump({"segments": [{"total_size": 1 << 30, "active_size": 0, "blocks": []}], "device_traces": [self.events],
                         "allocator_settings": {}}, file)


FORWARD, OPTIM = frame("forward", 10), frame("_init_group", 5, "/site-packages/torch/optim/adamw.py")


def history(name, sizes, leak=0, crumbs=0, scores=0, steps=6, layers=LAYERS, weights=(1 << 20,) * LAYERS, logits=()):
    made = History()
    for size in weights:
        made.alloc(size, frame("to_empty", 3))
    for number in range(steps):
        alive = [made.alloc(size, FORWARD) for _ in range(layers) for size in sizes]
        alive += [made.alloc(scores, frame("core", 12), FORWARD) for _ in range(layers) if scores]
        alive += [made.alloc(size, frame("cross_entropy", 30)) for size in logits]
        if leak:
            made.alloc(leak, frame("remember", 77))
        for _ in range(crumbs):
            made.alloc(512, frame("note", 80))
        for block in reversed(alive):
            made.free(block)
        if number == 0:
            for size in weights:
                made.alloc(2 * size, OPTIM)
    made.save(name)


def histories():
    # a model of 4 layers, hidden 256, 4 heads, sequence 512, micro batch 2, vocabulary 1024: T = 1024 tokens
    width = 1024 * 256 * 2
    history("leak.pickle", (width, width), leak=8 << 20)
    history("many.pickle", (width, width), leak=8 << 20, crumbs=4000)
    history("kept.pickle", (width, width))
    history("scores.pickle", (width, width), scores=2 * 4 * 512 * 512 * 4)
    history("logits.pickle", (width,), logits=(1024 * 1024 * 4,) * 3)


def logs():
    with open(os.path.join(FOLDER, "titan.log"), "w", encoding="utf-8") as file:
        for number in range(1, 8):
            file.write(f"[rank0]:\x1b[32m[titan] 2026-01-01 - root - INFO - \x1b[31mstep: {number:2}  \x1b[32mloss:  7.9  "
                       f"\x1b[33mmemory: 34.05GiB(35.84%)  \x1b[34mtps: {5 if number < 3 else 6231 + number:,}  "
                       "\x1b[36mtflops: 361.1\n")
    with open(os.path.join(FOLDER, "megatron.log"), "w", encoding="utf-8") as file:
        for number in range(1, 8):
            file.write(f" iteration {number:8}/ 100 | consumed samples: 8 | elapsed time per iteration (ms): "
                       f"{9000.0 if number < 3 else 712.0 + number} | learning rate: 1.0E-04 | global batch size: 8 |\n")


if __name__ == "__main__":
    traces()
    histories()
    logs()
