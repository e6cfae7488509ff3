"""Host seconds of blocks of PyTorch's models, where kernels take next to nothing, and what their forwards save.

host_blocks.py FOLDER CONFIGS.json OUT.jsonl [SECONDS]

FOLDER has torch_more.py and torch_reference.py, the scripts that measured h200_more_runs.csv, which are not kept here;
CONFIGS.json configurations of theirs. Each is run with 64 tokens, threads free and then bound to the fastest core: milliseconds until
forward, backward, clipping and the optimizer have been issued (least and median of twelve), how long a loop of Python
takes beside them, and how many kernels a pass launches. Those with "saved": 1 print the tensors that autograd saves
instead.
"""

import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper

sys.path.insert(0, sys.argv[1])
import torch_more as t  # noqa: E402
from host_pace import loop_us  # noqa: E402


def prepared(c):
    dev = torch.device("cuda", 0)
    torch.manual_seed(0)
    m = t.build(c, 1)
    if c.get("ac", "none") != "none":
        for i in range(len(m.blocks)):
            m.blocks[i] = checkpoint_wrapper(m.blocks[i], checkpoint_impl=CheckpointImpl.NO_REENTRANT)
    if c["compile"] and c["mode"] == "moe":
        torch._dynamo.config.capture_scalar_outputs = True
        cmm = torch.compile(t.experts_mm, fullgraph=True)
        for b in m.blocks:
            b = t.inner(b)
            for s in (b.n1, b.attn, b.n2, b.ffn, b.moe and b.moe.router, b.moe and b.moe.shared):
                if s is not None:
                    s.compile(fullgraph=True)
            if b.moe is not None:
                b.moe.experts.mm = cmm
    elif c["compile"]:
        for b in m.blocks:
            b.compile()
    lf = torch.compile(t.loss_fn) if c["compile"] else t.loss_fn
    if c["strategy"] == "full_shard":
        t.shard(m, c, 1, c["precision"] == "mixed")
    m.to_empty(device=dev)
    with torch.no_grad():
        for n, p in m.named_parameters():
            q = p.to_local() if hasattr(p, "to_local") else p
            q.normal_(0, 0.02) if p.dim() > 1 else q.fill_(1.0)
        for b in m.buffers():
            b.zero_()
    if c["mode"] == "lora" and c.get("nf4"):
        from torchao.dtypes.nf4tensor import to_nf4

        for s in m.modules():
            if isinstance(s, t.LoRALinear):
                s.weight, s.nf4 = torch.nn.Parameter(to_nf4(s.weight.data), requires_grad=False), True
    hd = c.get("hd") or c["d"] // c["h"]
    f = 1.0 / (10000 ** (torch.arange(0, hd, 2, device=dev).float() / hd))
    ang = torch.outer(torch.arange(c["seq"], device=dev).float(), f)
    data = torch.randint(0, c["vocab"], (c["mb"], c["seq"] + 1), device=dev)
    auto = lambda: torch.autocast(
        "cuda", torch.bfloat16, enabled=c["precision"] == "mixed" and c["mode"] != "lora" and c["strategy"] == "single"
    )
    tr = [p for p in m.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(tr, lr=1e-4, fused=True)
    return m, lf, ang.cos(), ang.sin(), data, auto, opt, tr


def host_times(c, out):
    m, lf, cos, sin, data, auto, opt, tr = prepared(c)
    sync, now = torch.cuda.synchronize, time.perf_counter

    def step():
        sync()
        a = now()
        with auto():
            lg = m(data[:, :-1], cos, sin)
        b = now()
        sync()
        b2 = now()
        l = lf(lg, data[:, 1:])
        l1 = now()
        l.backward()
        e = now()
        sync()
        e2 = now()
        torch.nn.utils.clip_grad_norm_(tr, 1.0)
        f = now()
        sync()
        f2 = now()
        opt.step()
        opt.zero_grad(set_to_none=True)
        g = now()
        sync()
        return [1e3 * x for x in (b - a, b2 - a, l1 - b2, e - l1, e2 - l1, f - e2, g - f2)]

    for _ in range(4):
        step()
    for how in ("free", "bound"):
        if how == "bound":
            cores = sorted(os.sched_getaffinity(0))
            best = None
            for k in cores:
                os.sched_setaffinity(0, {k})
                u = loop_us()
                best = min(best or (u, k), (u, k))
            for thread in os.listdir("/proc/self/task"):
                comm = open(f"/proc/self/task/{thread}/comm").read()
                os.sched_setaffinity(
                    int(thread),
                    {best[1]} if int(thread) == os.getpid() or comm.startswith("pt_autograd") else set(cores),
                )
        rows, loops = [], []
        for _ in range(12):
            loops.append(loop_us())
            rows.append(step())
        r = dict(id=c["id"], how=how, loop_us=[round(min(loops)), round(statistics.median(loops))])
        for i, k in enumerate(("fwd_host", "fwd", "loss_host", "bwd_host", "bwd", "clip_host", "opt_host")):
            v = sorted(x[i] for x in rows)
            r[k] = [round(v[0], 3), round(v[len(v) // 2], 3)]
        out.append(r)
        print(json.dumps(r), flush=True)
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), set(cores))
    from torch.profiler import profile, ProfilerActivity

    for what in ("fwd", "bwd"):
        with auto():
            lg = m(data[:, :-1], cos, sin) if what == "bwd" else None
        l = lf(lg, data[:, 1:]) if what == "bwd" else None
        sync()
        with profile(activities=[ProfilerActivity.CUDA]) as p:
            if what == "fwd":
                with auto():
                    m(data[:, :-1], cos, sin)
            else:
                l.backward()
            sync()
        r[what + "_kernels"] = sum(1 for e in p.events() if e.device_type == torch.autograd.DeviceType.CUDA)
        opt.zero_grad(set_to_none=True)
    print(c["id"], r["fwd_kernels"], r["bwd_kernels"], flush=True)


def saved(c):
    m, lf, cos, sin, data, auto, opt, tr = prepared(c)
    seen, rows = {}, []
    known = {p.untyped_storage().data_ptr() for p in m.parameters() if not hasattr(p, "get_original_weight")}

    def pack(x):
        try:
            s = x.untyped_storage()
            if s.data_ptr() not in known:
                first = s.data_ptr() not in seen
                seen[s.data_ptr()] = s.nbytes()
                rows.append((tuple(x.shape), str(x.dtype)[6:], s.nbytes() if first else 0))
        except Exception as e:
            rows.append((type(x).__name__, str(e)[:40], 0))
        return x

    for k in range(3):
        seen.clear()
        rows.clear()
        with auto(), torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            lg = m(data[:, :-1], cos, sin)
        torch.cuda.synchronize()
        alive = torch.cuda.memory_allocated()
        lf(lg, data[:, 1:]).backward()
        opt.step()
        opt.zero_grad(set_to_none=True)
        del lg
        torch.cuda.synchronize()
        base = torch.cuda.memory_allocated()
    print("SAVED", c["id"], "alive after forward", alive - base, "unique saved", sum(seen.values()), flush=True)
    for x in rows:
        print("   ", x)


def main():
    torch.cuda.set_device(0)
    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", "29511")
    dist.init_process_group("cpu:gloo,cuda:nccl", rank=0, world_size=1, device_id=torch.device("cuda", 0))
    torch._dynamo.config.cache_size_limit = 64
    limit, began, out = float(sys.argv[4]) if len(sys.argv) > 4 else 300, time.time(), []
    for c in json.load(open(sys.argv[2])):
        if time.time() - began > limit:
            print("no time for", c["id"])
            continue
        if c.get("saved"):
            saved(c)
        else:
            host_times(dict(c, mb=1, seq=64), out)
        torch._dynamo.reset()
        torch.cuda.empty_cache()
    json.dump(out, open(sys.argv[3], "w"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
