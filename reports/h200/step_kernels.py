"""What the kernels of a step take, from torch.profiler's trace of it: step_kernels.py NAME TRACE.json... >>step_kernels.csv.

One row for each kind of kernel and stream: `compute` is the stream of most kernels. Kinds are told by names that PyTorch 2.11,
its compiler, cuBLAS, cuDNN and NCCL give their kernels.
"""

import collections
import csv
import json
import sys

KINDS = (
    ("nccl", ("nccl",)),
    ("matmul", ("nvjet", "gemm", "cutlass")),
    ("attention", ("cudnn", "flash")),
    ("optimizer", ("FusedOptimizer",)),
    ("gradients into the reduce-scatter's input", ("chunk_cat",)),
    ("weights out of the gathered buffer", ("split_with_sizes",)),
    ("compiled", ("triton",)),
    ("foreach", ("multi_tensor",)),
)


def kind_of(name):
    return next((kind for kind, words in KINDS if any(word in name for word in words)), "other")


def main(name, *traces):
    rows = csv.writer(sys.stdout, lineterminator="\n")
    for trace in traces:
        with open(trace, encoding="utf-8") as file:
            events = [e for e in json.load(file)["traceEvents"] if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
        streams = collections.Counter(e["args"]["stream"] for e in events)
        compute = streams.most_common(1)[0][0]
        sums = collections.defaultdict(lambda: [0, 0.0])
        for event in events:
            total = sums[kind_of(event["name"]), "compute" if event["args"]["stream"] == compute else "beside"]
            total[0] += 1
            total[1] += event["dur"]
        for (kind, stream), (count, us) in sorted(sums.items()):
            rows.writerow([name, kind, stream, count, round(us, 1)])


if __name__ == "__main__":
    main(*sys.argv[1:])
