"""What PyTorch's communication hooks make of gradients: what tests/exec/test_hooks_golden.c holds ours against.

    pip install torch numpy; python3 tests/golden/make_hooks.py

Two processes (gloo) have a module each of the tensors of one block (hidden 16, two heads of 8, gated MLP of 32) in one bucket of
DistributedDataParallel, whose gradients and first Q are whole numbers hashed, as in the test. Writes hooks.golden beside this script: a line
a hook and step, its name and every fifth element of what the hook returns, tensor behind tensor.
"""
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook, quantization_hooks

RANKS, STEPS, EVERY = 2, 3, 5
SHAPES = [(16,), (48, 16), (16, 16), (16,), (64, 16), (16, 32)]
HOOKS = ["fp16", "bf16", "powersgd 2", "powersgd 4", "int8"]
BEFORE = 2  # the least of start_powerSGD_iter with error feedback


def drawn(seed, count):
    """Numbers from -0.5 to 0.5, multiples of 2^-24."""
    numbers = (torch.arange(count, dtype=torch.int64) * 2654435761 + seed * 40503 + 12345) % 2 ** 32
    numbers = (numbers ^ (numbers >> 15)) * 2246822519 % 2 ** 32
    numbers = (numbers ^ (numbers >> 13)) % 2 ** 24
    return (numbers.to(torch.float64) / 2 ** 24 - 0.5).to(torch.float32)


def gradient(rank, step, which):
    count = torch.Size(SHAPES[which]).numel()
    return drawn(1000 * (which + 1) + 10 * step + rank, count).view(SHAPES[which])


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tensors = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES])

    def forward(self, rank, step):
        return sum((p * gradient(rank, step, i)).sum() for i, p in enumerate(self.tensors))


class InOrder:
    """A bucket whose tensors follow each other as ours do: runs that share a range are then the same."""

    def __init__(self, gradients):
        self.flat = torch.cat([g.reshape(-1) for g in gradients])

    def buffer(self):
        return self.flat


def perchannel(model):
    def hook(_, bucket):
        places = [next(i for i, p in enumerate(model.tensors) if p is q) for q in bucket.parameters()]
        sizes = [torch.Size(shape).numel() for shape in SHAPES]
        given = dict(zip(places, bucket.gradients()))
        future = quantization_hooks.quantization_perchannel_hook(None, InOrder([given[i] for i in range(len(SHAPES))]))

        def back(done):
            pieces = done.value().split(sizes)
            return torch.cat([pieces[i] for i in places])

        return future.then(back)

    return hook


def hook_of(name, ddp, model):
    if name == "int8":
        ddp.register_comm_hook(None, perchannel(model))
        return
    if name in ("fp16", "bf16"):
        ddp.register_comm_hook(None, getattr(default_hooks, name + "_compress_hook"))
        return
    rank = int(name.split()[1])
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=BEFORE)
    plain = torch.randn

    def hook(state, bucket):
        """The first Q of each matrix that is factored, in the bucket's order, in place of what would be drawn."""
        places = [next(i for i, p in enumerate(model.tensors) if p is q) for q in bucket.parameters()]
        factored = [i for i in places if len(SHAPES[i]) == 2 and
                    sum(SHAPES[i]) * rank * 2 < SHAPES[i][0] * SHAPES[i][1]]
        first = iter(factored)
        torch.randn = lambda *shape, **_: drawn(77 + next(first), shape[-1] * shape[-2]).view(shape[-1], shape[-2]).T[None]
        future = powerSGD_hook.powerSGD_hook(state, bucket)
        torch.randn = plain
        return future

    ddp.register_comm_hook(state, hook)


def work(rank, name, results):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29731")
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    model = Block()
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    hook_of(name, ddp, model)
    before = BEFORE if name.startswith("powersgd") else 0
    for step in range(-before, STEPS):
        ddp.zero_grad()
        ddp(rank, step).backward()
        if step >= 0 and rank == 0:
            values = torch.cat([p.grad.reshape(-1) for p in model.tensors])[::EVERY]
            results.append((name, values.tolist()))
    dist.destroy_process_group()


if __name__ == "__main__":
    folder = os.path.dirname(os.path.abspath(__file__))
    with mp.Manager() as manager, open(os.path.join(folder, "hooks.golden"), "w") as file:
        for name in HOOKS:
            results = manager.list()
            mp.spawn(work, args=(name, results), nprocs=RANKS)
            for kind, values in results:
                file.write(" ".join([kind.replace(" ", "_")] + [f"{v:.7g}" for v in values]) + "\n")
