"""Rings of NCCL over loopback sockets between two pretended nodes: one of all ranks, one of a pair, two pairs at once.

python3 -m torch.distributed.run --standalone --nproc_per_node=4 socket_rings.py > rings.jsonl

One line of JSON for each collective and size: the median of five, of the slowest rank, and what each ring moved. NCCL opens
one socket a ring by itself; NCCL_SOCKET_NTHREADS and NCCL_NSOCKS_PERTHREAD open more. socket_rings.csv holds both.
"""
import json
import os
import time

import torch
import torch.distributed as dist

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
half = world // 2
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
os.environ.update(NCCL_HOSTID=f"node{rank // half}", NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1")
dist.init_process_group("cpu:gloo,cuda:nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
pairs = [dist.new_group([i, i + half]) for i in range(half)]
mine = pairs[rank % half]


def issue(collective, whole, part, group):
    if collective == "all_reduce":
        dist.all_reduce(whole, group=group)
    elif collective == "reduce_scatter":
        dist.reduce_scatter_tensor(part, whole, group=group)
    else:
        dist.all_gather_into_tensor(whole, part, group=group)


def measure(rings, collective, group, active, whole_bytes, samples=5):
    ranks = 2 if group else world
    whole = torch.randn(whole_bytes // 4, device="cuda")
    part = torch.empty(whole_bytes // 4 // ranks, device="cuda")
    seconds = []
    for _ in range(samples + 1):
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        if active:
            issue(collective, whole, part, group)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    slowest = torch.tensor([sorted(seconds[1:])[samples // 2]], device="cuda")
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    sent = whole_bytes * (ranks - 1) / ranks * (2 if collective == "all_reduce" else 1)
    if rank == 0:
        print(json.dumps(dict(rings=rings, ranks=ranks, collective=collective, whole_bytes=whole_bytes, sent_bytes=sent,
                              seconds=slowest.item(), gbit_per_s_of_each_ring=sent * 8 / slowest.item() / 1e9,
                              threads=os.environ.get("NCCL_SOCKET_NTHREADS", "default"),
                              sockets_per_thread=os.environ.get("NCCL_NSOCKS_PERTHREAD", "default"))), flush=True)


for collective, sizes in (("all_reduce", (1 << 24, 1 << 27, 1 << 29)), ("reduce_scatter", (1 << 28,)), ("all_gather", (1 << 28,))):
    for whole_bytes in sizes:
        measure("world", collective, None, True, whole_bytes)
        measure("two_pairs", collective, mine, True, whole_bytes)
        measure("one_pair", collective, mine, rank % half == 0, whole_bytes)
dist.destroy_process_group()
