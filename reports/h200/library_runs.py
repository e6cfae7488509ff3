"""Transformers' Trainer (with peft and bitsandbytes) and DeepSpeed's engine, measured: what scenarios/library_runs.csv was made of.

    RANKS=2 python3 library_runs.py library_runs.json OUT.jsonl [SECONDS]

runs every configuration of so many ranks, each rank a process forked from one that has imported all, and appends one JSON line a
rank: times of steps (between two synchronisations), peaks of PyTorch's allocator and of the driver behind the first two steps, with
"peak" the tensors that are live at the peak with the lines that made them, with "prof" kernels and operators of one step more. "fake":
[WORLD, RANK, ...] runs these ranks one after the other on one GPU beside a fake process group, whose collectives do nothing: memory
alone is of use then. ONLY=a,b runs these alone. Plain models are those of torch_reference.py, which stands beside the measured
tables of PyTorch."""

import gc, json, os, sys, time, traceback, tempfile, signal

os.environ.setdefault("DS_SKIP_CUDA_CHECK", "1")
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
import torch, torch.nn as nn

CPU = os.environ.get("DS_ACCELERATOR") == "cpu"
DEV = "cpu" if CPU else "cuda"
_cap, _prop = torch.cuda.get_device_capability, torch.cuda.get_device_properties
if not CPU:
    torch.cuda.get_device_capability = lambda d=None: (
        9,
        0,
    )  # bitsandbytes asks at its import: CUDA must not be opened before the fork
import transformers
from transformers import Trainer, TrainingArguments, TrainerCallback, AutoConfig, AutoModelForCausalLM
from transformers.models.llama import modeling_llama

try:
    import deepspeed
except Exception as e:
    deepspeed = None
    print("no deepspeed:", repr(e)[:300], flush=True)
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))


torch.cuda.get_device_capability = _cap


def sync():
    if not CPU:
        torch.cuda.synchronize()


class Tokens(torch.utils.data.Dataset):
    def __init__(s, n, seq, vocab):
        s.n, s.seq, s.vocab = n, seq, vocab

    def __len__(s):
        return s.n

    def __getitem__(s, i):
        t = torch.randint(0, s.vocab, (s.seq,), generator=torch.Generator().manual_seed(i))
        return {"input_ids": t, "labels": t.clone()}


def peak_of(trace, base):
    live, cur, best, at = {}, base, base, 0
    for i, e in enumerate(trace):
        if e["action"] == "alloc":
            cur += e["size"]
            if cur > best:
                best, at = cur, i
        elif e["action"] == "free_completed":
            cur -= e["size"]
    for e in trace[: at + 1]:
        if e["action"] == "alloc":
            live[e["addr"]] = e
        elif e["action"] == "free_completed":
            live.pop(e["addr"], None)
    rows = {}
    for e in live.values():
        fr = [f for f in e.get("frames", [])]
        own = [
            f"{os.path.basename(f['filename'])}:{f['line']}:{f['name']}"
            for f in fr
            if "site-packages/torch/" not in f["filename"] or "autograd" in f["filename"]
        ][:4]
        k = f"{e['size']} {' < '.join(own)}"
        rows[k] = rows.get(k, 0) + 1
    return {
        "base": base,
        "peak": best,
        "rows": sorted(((k, v) for k, v in rows.items()), key=lambda r: -int(r[0].split()[0]) * r[1])[:60],
    }


class Meter:
    def __init__(s, c):
        s.c, s.times, s.i, s.extra = c, [], 0, {}

    def begin(s):
        c = s.c
        if s.i == c.get("warm", 2) and not CPU:
            torch.cuda.reset_peak_memory_stats()
        if s.i == c.get("warm", 2) + c.get("steps", 5) - 1 and c.get("peak") and not CPU:
            s.base = torch.cuda.memory_allocated()
            torch.cuda.memory._record_memory_history(
                enabled="all", context="alloc", stacks="python", max_entries=2000000
            )
        if s.i == c.get("warm", 2) + c.get("steps", 5) and c.get("prof"):
            if c.get("peak") and not CPU:
                s.snap = torch.cuda.memory._snapshot()
                torch.cuda.memory._record_memory_history(enabled=None)
            s.peaks = (torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
            from torch.profiler import profile, ProfilerActivity

            s.p = profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU])
            sync()
            s.p.__enter__()
        sync()
        s.t = time.perf_counter()

    def end(s):
        sync()
        t = time.perf_counter() - s.t
        if s.i == s.c.get("warm", 2) + s.c.get("steps", 5) and s.c.get("prof"):
            s.p.__exit__(None, None, None)
            ks, ops, run = {}, {}, {}
            for e in s.p.events():
                cu = str(e.device_type).endswith("CUDA")
                n = e.name[:140]
                d = ks if cu else ops
                k = d.setdefault(n, [0, 0.0])
                k[0] += 1
                k[1] += e.device_time if cu else e.self_cpu_time_total
            s.extra["prof"] = dict(
                wall=t,
                kernels=sorted(([k, *v] for k, v in ks.items()), key=lambda r: -r[2])[:70],
                ops=sorted(([k, *v] for k, v in ops.items()), key=lambda r: -r[2])[:60],
            )
            s.i += 1
            return
        if s.i >= s.c.get("warm", 2):
            s.times.append(t)
        s.i += 1

    def figures(s):
        if CPU:
            return dict(times=s.times)
        free, total = torch.cuda.mem_get_info()
        if hasattr(s, "peaks"):
            s.extra.update(zip(("peak_alloc", "peak_reserved"), s.peaks))
        r = dict(
            times=s.times,
            step_s=sorted(s.times)[len(s.times) // 2] if s.times else 0,
            **{
                **dict(
                    peak_alloc=torch.cuda.max_memory_allocated(),
                    peak_reserved=torch.cuda.max_memory_reserved(),
                    dev_used=total - free,
                ),
                **s.extra,
            },
        )
        if s.c.get("peak"):
            snap = getattr(s, "snap", None) or torch.cuda.memory._snapshot()
            torch.cuda.memory._record_memory_history(enabled=None)
            r["live"] = peak_of(snap["device_traces"][0], s.base)
        return r


def fill(m):
    for p in m.parameters():
        with torch.no_grad():
            if p.is_floating_point():
                p.normal_(0, 0.02) if p.dim() > 1 else p.fill_(1.0)


def hf_model(c):
    import peft

    cfg = AutoConfig.for_model(**c["config"])
    cfg._attn_implementation = c.get("attn", "sdpa")
    dt = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp16": torch.float16}[c.get("dtype", "bf16")]
    torch.set_default_dtype(dt)
    with torch.device(DEV):
        m = AutoModelForCausalLM.from_config(cfg, attn_implementation=c.get("attn", "sdpa"))
    torch.set_default_dtype(torch.float32)
    m = m.to(dt)
    m.config.use_cache = False
    if c.get("base", "none") != "none":
        import bitsandbytes as bnb

        for blk in m.model.layers:
            for name, l in list(blk.named_modules()):
                if isinstance(l, nn.Linear):
                    par = blk.get_submodule(name.rpartition(".")[0])
                    if c["base"] == "int8":
                        q = bnb.nn.Linear8bitLt(
                            l.in_features, l.out_features, bias=l.bias is not None, has_fp16_weights=False
                        )
                        q.weight = bnb.nn.Int8Params(l.weight.data.cpu(), requires_grad=False, has_fp16_weights=False)
                    else:
                        q = bnb.nn.Linear4bit(
                            l.in_features,
                            l.out_features,
                            bias=l.bias is not None,
                            compute_dtype=torch.bfloat16,
                            quant_type="nf4",
                            compress_statistics=c["base"] == "nf4-double",
                        )
                        q.weight = bnb.nn.Params4bit(
                            l.weight.data.cpu(),
                            requires_grad=False,
                            quant_type="nf4",
                            compress_statistics=c["base"] == "nf4-double",
                        )
                    if l.bias is not None:
                        q.bias = nn.Parameter(l.bias.data, requires_grad=False)
                    setattr(par, name.rpartition(".")[2], q.to(DEV))
        m.is_loaded_in_4bit = c["base"] != "int8"
        m.is_loaded_in_8bit = c["base"] == "int8"
        gc.collect()
        torch.cuda.empty_cache()
        if c.get("prepare", 1):
            m = peft.prepare_model_for_kbit_training(m, use_gradient_checkpointing=False)
    if c.get("lora"):
        m = peft.get_peft_model(m, peft.LoraConfig(task_type="CAUSAL_LM", **c["lora"]))
    return m


def trainer(c, rank, world, tmp):
    a = dict(
        output_dir=tmp,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        max_steps=c.get("warm", 2) + c.get("steps", 5) + (1 if c.get("prof") else 0),
        logging_steps=c.get("logging_steps", 500),
        dataloader_num_workers=0,
        seed=1,
        **c["args"],
    )
    if c.get("ds"):
        f = tmp + "/ds.json"
        json.dump(c["ds"], open(f, "w"))
        a["deepspeed"] = f
    args = TrainingArguments(**a)
    m = hf_model(c)
    mt = Meter(c)

    class CB(TrainerCallback):
        def on_step_begin(s, *a, **k):
            mt.begin()

        def on_optimizer_step(s, *a, **k):
            pass

        def on_step_end(s, *a, **k):
            mt.end()

    class Offloading(Trainer):
        """As TRL's SFTTrainer does with activation_offloading."""

        def training_step(s, *a, **k):
            with s.offloaded:
                return super().training_step(*a, **k)

    kind = Offloading if c.get("activation_offloading") else Trainer
    t = kind(model=m, args=args, train_dataset=Tokens(4096, c["seq"], c["config"]["vocab_size"]), callbacks=[CB()])
    if c.get("activation_offloading"):
        from activation_offloading import get_act_offloading_ctx_manager  # trl/models/activation_offloading.py

        t.offloaded = get_act_offloading_ctx_manager(model=t.model)
    if not CPU:
        mt.extra["after_init"] = torch.cuda.memory_allocated()
    mt.extra["optimizer"] = None
    t.train()
    mt.extra["optimizer"] = (
        type(t.optimizer).__name__ + "/" + type(getattr(t.optimizer, "optimizer", t.optimizer)).__name__
    )
    mt.extra["trained"] = sum(getattr(p, "ds_numel", p.numel()) for p in m.parameters() if p.requires_grad)
    return mt.figures()


def engine(c, rank, world, tmp):
    import torch_reference as tr
    from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus

    mc = c["plain"]
    ds = c["ds"]
    if os.environ.get("DS_TORCH_ADAM"):
        ds["optimizer"]["params"]["torch_adam"] = True
        ds["zero_allow_untested_optimizer"] = True
    fp32 = not ds.get("bf16", {}).get("enabled") and not ds.get("fp16", {}).get("enabled")
    with torch.device("meta"):
        m = tr.Model(mc)
    m = (m if fp32 else m.to(torch.bfloat16)).to_empty(device=DEV)
    fill(m)
    if c.get("ac"):
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper, CheckpointImpl

        for i in range(len(m.blocks)):
            m.blocks[i] = checkpoint_wrapper(m.blocks[i], checkpoint_impl=CheckpointImpl.NO_REENTRANT)
    if c.get("compile"):
        for b in m.blocks:
            b.compile()
    lf = torch.compile(tr.loss_fn) if c.get("compile") else tr.loss_fn
    kw = {}
    eng, opt, _, _ = deepspeed.initialize(
        model=m, model_parameters=[p for p in m.parameters() if p.requires_grad], config=ds, **kw
    )
    hd = mc["d"] // mc["h"]
    f = 1.0 / (10000 ** (torch.arange(0, hd, 2, device=DEV).float() / hd))
    ang = torch.outer(torch.arange(mc["seq"], device=DEV).float(), f)
    cos, sin = ang.cos(), ang.sin()
    acc = ds.get("gradient_accumulation_steps", 1)
    mb = ds["train_micro_batch_size_per_gpu"]
    data = torch.randint(0, mc["vocab"], (acc, mb, mc["seq"] + 1), device=DEV)
    mt = Meter(c)
    if not CPU:
        mt.extra["after_init"] = torch.cuda.memory_allocated()
    mt.extra["optimizer"] = type(opt).__name__ + "/" + type(getattr(opt, "optimizer", opt)).__name__
    for it in range(c.get("warm", 2) + c.get("steps", 5) + (1 if c.get("prof") else 0)):
        mt.begin()
        for a in range(acc):
            x = data[a]
            lg = eng(x[:, :-1], cos, sin)
            l = lf(lg, x[:, 1:])
            del lg
            eng.backward(l)
            eng.step()
        mt.end()
    mt.extra["loss"] = float(l.detach())
    return mt.figures()


def child(c, rank, world, port, out):
    r = dict(id=c["id"], rank=rank, world=world)
    t = time.time()
    try:
        os.environ.update(
            RANK=str(rank),
            WORLD_SIZE=str(world),
            LOCAL_RANK="0" if c.get("fake") else str(rank),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            LOCAL_WORLD_SIZE=str(world),
        )
        if not CPU:
            torch.cuda.set_device(0 if c.get("fake") else rank)
        if c.get("fake"):
            import torch.distributed as dist
            from torch.testing._internal.distributed.fake_pg import FakeStore

            dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
            import deepspeed.runtime.zero.stage3 as s3, deepspeed.runtime.zero.utils as zu, deepspeed.runtime.zero.partitioned_param_coordinator as co, deepspeed.runtime.zero.partition_parameters as pp

            for mod in (s3, zu, co, pp):
                for n in ("assert_lst_len_same_as_other_ranks", "assert_ints_same_as_other_ranks", "assert_in_sync"):
                    if hasattr(mod, n):
                        setattr(mod, n, lambda *a, **k: None)
        elif c.get("ds") and "plain" in c:
            import torch.distributed as dist

            dist.init_process_group(
                "gloo" if CPU else "cpu:gloo,cuda:nccl", **({} if CPU else dict(device_id=torch.device("cuda", rank)))
            )
        elif world == 1 and not c.get("ds"):
            for k in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "LOCAL_WORLD_SIZE"):
                os.environ.pop(k)
        tmp = tempfile.mkdtemp()
        r.update((engine if "plain" in c else trainer)(c, rank, world, tmp))
    except BaseException as e:
        r["error"] = traceback.format_exc()[-1800:]
    r["wall"] = time.time() - t
    open(out, "a").write(json.dumps(r) + "\n")
    if rank == 0 or c.get("fake"):
        print(
            r["id"],
            rank,
            world,
            round(r["wall"], 1),
            "ms",
            [round(x * 1e3, 1) for x in r.get("times", [])],
            "GiB",
            *(round(r.get(k, 0) / 2**30, 3) for k in ("after_init", "peak_alloc", "peak_reserved", "dev_used")),
            r.get("optimizer"),
            r.get("error", "")[-400:],
            flush=True,
        )
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    if len(sys.argv) > 3 and sys.argv[3] == "child":
        c = next(x for x in json.load(open(sys.argv[1])) if x["id"] == sys.argv[4])
        child(c, int(sys.argv[5]), int(sys.argv[6]), int(sys.argv[7]), sys.argv[2])
    bad = not CPU and torch.cuda.is_initialized()
    print("CUDA opened by imports:", bad, flush=True)
    cs = json.load(open(sys.argv[1]))
    out = sys.argv[2]
    end = time.time() + float(sys.argv[3] if len(sys.argv) > 3 else 500)
    ranks = int(os.environ.get("RANKS", "1"))
    port = 29600
    only = os.environ.get("ONLY")
    for c in cs:
        if (only and c["id"] not in only.split(",")) or c.get("ranks", 1) != ranks:
            continue
        if time.time() > end:
            print("out of time before", c["id"])
            break
        if c.get("fake"):
            jobs = [[(r, c["fake"][0])] for r in c["fake"][1:]]
        else:
            jobs = [[(r, ranks) for r in range(ranks)]]
        for j in jobs:
            port += 1
            pids = []
            for r, w in j:
                if bad:
                    import subprocess

                    pids.append(
                        subprocess.Popen(
                            [sys.executable, sys.argv[0], sys.argv[1], out, "child", c["id"], str(r), str(w), str(port)]
                        ).pid
                    )
                    continue
                p = os.fork()
                if p == 0:
                    child(c, r, w, port, out)
                pids.append(p)
            t0 = time.time()
            while pids and time.time() - t0 < c.get("limit", 120):
                for p in list(pids):
                    if os.waitpid(p, os.WNOHANG)[0]:
                        pids.remove(p)
                time.sleep(0.05)
            for p in pids:
                os.kill(p, signal.SIGKILL)
                os.waitpid(p, 0)
                print("killed", c["id"], flush=True)
