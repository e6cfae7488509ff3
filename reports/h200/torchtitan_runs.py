"""torchtitan's own Trainer (release 0.2.2), measured by the files that it reads: what torchtitan_runs.json was made of.

    RANKS=2 python3 torchtitan_runs.py torchtitan_runs.json OUT.jsonl [SECONDS]

runs every configuration of so many GPUs, each rank a process forked from one that has imported all, and appends one JSON line a
rank: times of steps (between two synchronisations), peaks of PyTorch's allocator and of the driver behind the first steps, and with
LIVE=1 the tensors that are live at the peak with the lines that made them. "fake": [WORLD, RANK, ...] runs these ranks one after the
other on one GPU beside a fake process group, whose collectives do nothing: memory alone is of use then. ONLY=a,b runs these alone.
Tokens are random ones; "cut" replaces fields of the flavor "cut_from". With CPU=1 it runs debug models without a GPU.
"""

import copy, importlib.machinery, json, os, signal, sys, tempfile, time, traceback, types

os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")  # as run_train.sh has it


class Nothing:
    def __init__(self, *_, **__):
        pass

    def __getattr__(self, _):
        return lambda *_, **__: None


def stand_in(name, **fields):  # for packages that neither memory nor time depends on
    module = types.ModuleType(name)
    module.__dict__.update(fields)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    sys.modules[name] = module


stand_in("tensorboard", __version__="2.20")
stand_in("torch.utils.tensorboard", SummaryWriter=Nothing)
stand_in("datasets", Dataset=Nothing, load_dataset=None)
stand_in("datasets.distributed", split_dataset_by_node=None)
import torch
import torch.distributed as dist

CPU = os.environ.get("CPU") == "1"
if CPU:
    import torch._utils

    torch._utils._get_available_device_type = lambda: "cpu"
    torch.cpu.set_device = torch.cpu.reset_peak_memory_stats = torch.cpu.empty_cache = lambda *_: None
    torch.cpu.get_device_name = lambda *_: "cpu"
    torch.cpu.get_device_properties = lambda *_: types.SimpleNamespace(total_memory=1 << 40)
    torch.cpu.memory_stats = lambda *_: __import__("collections").defaultdict(int)
import torchtitan.distributed.expert_parallel as expert_parallel
import torchtitan.protocols.train_spec as train_spec
import torchtitan.train
from torchtitan.config import ConfigManager

if CPU:
    import torchtitan.distributed.utils

    torchtitan.distributed.utils.set_determinism = lambda *_, **__: None


def live_at_peak(trace, base):
    live, now, best, at = {}, base, base, 0
    for i, event in enumerate(trace):
        if event["action"] == "alloc":
            now += event["size"]
            if now > best:
                best, at = now, i
        elif event["action"] == "free_completed":
            now -= event["size"]
    for event in trace[: at + 1]:
        if event["action"] == "alloc":
            live[event["addr"]] = event
        elif event["action"] == "free_completed":
            live.pop(event["addr"], None)
    rows, told = {}, ("torchtitan", "fsdp", "autograd", "optim", "pipelining", "checkpoint")
    for event in live.values():
        frames = [f for f in event.get("frames", []) if any(word in f["filename"] for word in told)]
        lines = [f"{os.path.basename(f['filename'])}:{f['line']}:{f['name']}" for f in frames[:4]]
        key = f"{event['size']} {' < '.join(lines)}"
        rows[key] = rows.get(key, 0) + 1
    return {"base": base, "peak": best, "rows": sorted(rows.items(), key=lambda r: -int(r[0].split()[0]) * r[1])[:60]}


class Tokens:
    def __init__(self, batch, seq, vocab):
        self.shape, self.vocab, self.generator = (batch, seq + 1), vocab, torch.Generator().manual_seed(1)

    def __iter__(self):
        while True:
            tokens = torch.randint(0, self.vocab, self.shape, generator=self.generator)
            yield {"input": tokens[:, :-1].contiguous()}, tokens[:, 1:].contiguous()

    def state_dict(self):
        return {}

    def load_state_dict(self, _):
        pass


def pretend(job, config, args):
    """What a fake process group does not return: rows of experts as every rank routes them, shapes of the stage before."""
    real = expert_parallel.all_to_all_single

    def exchange(x, *rest, **named):
        result = real(x, *rest, **named)
        return x.clone() if tuple(result.shape) == tuple(x.shape) else result

    def receive(objects, **_):
        p = config.parallelism
        rows = config.training.seq_len // p.tensor_parallel_degree // p.context_parallel_degree
        shape = (p.pipeline_parallel_microbatch_size, rows, args.dim)
        objects[0] = (torch.empty(shape, device="meta", dtype=torch.bfloat16),)

    expert_parallel.all_to_all_single = exchange
    dist.recv_object_list = receive


def trainer_of(job):
    with open("job.toml", "w") as out:
        out.write(job["file"])
    config = ConfigManager().parse_args(["--job.config_file", "job.toml"])
    spec = train_spec.get_train_spec(config.model.name)
    if job.get("cut"):
        spec.model_args[config.model.flavor] = copy.deepcopy(spec.model_args[job["cut_from"]])
        for key, value in job["cut"].items():
            setattr(spec.model_args[config.model.flavor], key, value)
    args = spec.model_args[config.model.flavor]
    training = config.training
    spec.build_dataloader_fn = lambda **_: Tokens(training.local_batch_size, training.seq_len, args.vocab_size)
    spec.build_tokenizer_fn = lambda _: types.SimpleNamespace(eos_id=0)
    spec.state_dict_adapter = None
    torchtitan.train.train_spec_module.get_train_spec = lambda _: spec
    if job.get("fake"):
        pretend(job, config, args)
    return torchtitan.train.Trainer(config)


def measure(job):
    trainer, live = trainer_of(job), os.environ.get("LIVE") and not CPU
    warm, timed = (2, 2) if job.get("fake") else (3, 6)
    batches, times, base = trainer.batch_generator(trainer.dataloader), [], 0
    for i in range(warm + timed):
        if not CPU and i == warm:
            torch.cuda.reset_peak_memory_stats()
        if live and i == warm + timed - 1:
            base = torch.cuda.memory_allocated()
            torch.cuda.memory._record_memory_history(context="alloc", stacks="python", max_entries=2000000)
        CPU or torch.cuda.synchronize()
        start = time.perf_counter()
        trainer.step += 1
        trainer.gc_handler.run(trainer.step)
        trainer.train_step(batches)
        CPU or torch.cuda.synchronize()
        times += [time.perf_counter() - start] if i >= warm else []
    result = {"step_s": sorted(times)[len(times) // 2], "times": times}
    if not CPU:
        free, total = torch.cuda.mem_get_info()
        result["allocated_bytes"] = torch.cuda.max_memory_allocated()
        result["reserved_bytes"] = torch.cuda.max_memory_reserved()
        result["device_bytes"] = total - free
    if live:
        trace = torch.cuda.memory._snapshot()["device_traces"][0]
        torch.cuda.memory._record_memory_history(enabled=None)
        result["live"] = live_at_peak(trace, base)
    return result


def child(job, rank, world, port, path):
    line = {"id": job["id"], "rank": rank, "world": world}
    try:
        device = 0 if job.get("fake") else rank
        values = {
            "RANK": rank,
            "WORLD_SIZE": world,
            "LOCAL_RANK": device,
            "MASTER_PORT": port,
            "LOCAL_WORLD_SIZE": world,
        }
        os.environ.update({k: str(v) for k, v in values.items()}, MASTER_ADDR="127.0.0.1")
        CPU or torch.cuda.set_device(device)
        if job.get("fake"):
            from torch.testing._internal.distributed.fake_pg import FakeStore

            dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
        elif CPU:
            dist.init_process_group("gloo")
        os.chdir(tempfile.mkdtemp())
        line.update(measure(job))
    except BaseException:
        line["error"] = traceback.format_exc()[-1800:]
    with open(path, "a") as out:
        out.write(json.dumps(line) + "\n")
    told = {k: line[k] for k in ("step_s", "allocated_bytes", "reserved_bytes", "error") if k in line}
    print(job["id"], rank, world, told, flush=True)
    os._exit(0)


def run(job, ranks, world, port, path):
    children = []
    for rank in ranks:
        pid = os.fork()
        if pid == 0:
            child(job, rank, world, port, path)
        children.append(pid)
    end = time.time() + job.get("limit_s", 100)
    while children and time.time() < end:
        children = [pid for pid in children if not os.waitpid(pid, os.WNOHANG)[0]]
        time.sleep(0.05)
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        print("stopped", job["id"], flush=True)


def main():
    jobs, path = json.load(open(sys.argv[1])), os.path.abspath(sys.argv[2])
    end = time.time() + float(sys.argv[3] if len(sys.argv) > 3 else 3600)
    gpus, only = int(os.environ.get("RANKS", "1")), os.environ.get("ONLY")
    port = int(os.environ.get("PORT", "29600"))
    for job in jobs:
        if only and job["id"] not in only.split(","):
            continue
        if time.time() > end:
            print("out of time before", job["id"])
            return
        fake = job.get("fake")
        if not fake and job["gpus"] != gpus:
            continue
        for ranks in [[rank] for rank in fake[1:]] if fake else [range(gpus)]:
            port += 1
            run(job, ranks, fake[0] if fake else gpus, port, path)


if __name__ == "__main__":
    main()
