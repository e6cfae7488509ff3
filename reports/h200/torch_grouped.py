"""Seconds of torch._grouped_mm on one GPU: the three products of experts' matrices, rows evenly and unevenly divided.

python3 torch_grouped.py OUT.csv: a row for each shape, product and division; the median of 20 calls of bf16 behind each
other, after 5. forward [rows, in] x [experts, in, out], input [rows, out] x [experts, out, in], weight [in, rows] x
[rows, out] of each expert.
"""
import csv
import sys

import torch

SHAPES = [  # experts, hidden, ffn of an expert, rows
    (8, 4096, 14336, 8192), (8, 4096, 14336, 16384), (8, 2048, 4096, 16384), (8, 2048, 4096, 32768),
    (64, 2048, 1024, 32768), (64, 2048, 1024, 65536), (64, 2048, 1024, 131072), (32, 2048, 1024, 65536),
    (32, 1024, 512, 65536), (128, 2048, 768, 65536), (64, 2048, 1408, 24576), (60, 2048, 1408, 16384),
    (16, 4096, 6400, 8192), (4, 4096, 14336, 8192), (16, 2048, 1024, 65536)]


def division(experts, rows, kind):
    if kind == "even":
        counts = torch.full((experts,), rows // experts, dtype=torch.int64)
    else:
        generator = torch.Generator().manual_seed(7)
        weights = torch.exp(torch.randn(experts, generator=generator) * (0.5 if kind == "uneven" else 1.0))
        counts = (weights / weights.sum() * rows).floor().to(torch.int64)
    counts[experts - 1] += rows - counts.sum()
    return counts


def seconds(call):
    for _ in range(5):
        call()
    times = []
    for _ in range(20):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        times.append((begin, end))
    torch.cuda.synchronize()
    return sorted(b.elapsed_time(e) for b, e in times)[10] * 1e-3


with open(sys.argv[1], "w", newline="") as file:
    out = csv.writer(file)
    out.writerow(["experts", "in", "out", "rows", "division", "most_rows", "product", "seconds", "tflops"])
    for experts, hidden, ffn, rows in SHAPES:
        for inner, outer in ((hidden, ffn), (ffn, hidden)):
            x = torch.randn(rows, inner, device="cuda", dtype=torch.bfloat16)
            g = torch.randn(rows, outer, device="cuda", dtype=torch.bfloat16)
            w = torch.randn(experts, inner, outer, device="cuda", dtype=torch.bfloat16)
            for kind in ("even", "uneven", "skewed"):
                counts = division(experts, rows, kind)
                ends = counts.cumsum(0).to(torch.int32).cuda()
                for name, call in (("forward", lambda: torch._grouped_mm(x, w, offs=ends)),
                                   ("input", lambda: torch._grouped_mm(g, w.transpose(-2, -1), offs=ends)),
                                   ("weight", lambda: torch._grouped_mm(x.t(), g, offs=ends))):
                    try:
                        s = seconds(call)
                        out.writerow([experts, inner, outer, rows, kind, int(counts.max()), name, f"{s:.9f}",
                                      f"{2.0 * rows * inner * outer / s * 1e-12:.1f}"])
                    except Exception as error:
                        out.writerow([experts, inner, outer, rows, kind, int(counts.max()), name, "", repr(error)[:80]])
            file.flush()
            del x, g, w
