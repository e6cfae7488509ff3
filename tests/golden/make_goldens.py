"""Losses and gradients of small models by PyTorch's autograd, in double: what tests/exec/test_goldens.c holds ours against.

    pip install torch numpy; python3 tests/golden/make_goldens.py

Writes one file per model beside this script: a line of text per tensor ("tensor MODULE ROWS COLUMNS NAME", names and
modules as in model/net/parameter_layout.h) followed by its weights and then its gradients as little-endian fp32. Weights are
numbers that bf16 holds exactly, so that one file serves both number formats.
"""
import math
import os

import torch
import torch.nn.functional as F

SEQUENCE, BATCH, VOCAB, HIDDEN, HEADS, HEAD_DIM, FFN, LAYERS = 8, 2, 50, 16, 2, 8, 40, 2
EPSILON = 1e-5


class Parameters:
    """Tensors in the order in which they are made, each a leaf in double."""

    def __init__(self):
        self.list = []

    def make(self, module, name, *shape, mean=0.0, deviation=0.15):
        values = (mean + deviation * torch.randn(*shape)).to(torch.bfloat16).double().requires_grad_()
        self.list.append((module, name, values))
        return values


def norm(x, weight, bias, layer_norm):
    if layer_norm:
        return F.layer_norm(x, x.shape[-1:], weight, bias, EPSILON)
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPSILON) * weight


def rotate(x):
    """(a, b) -> (a cos - b sin, a sin + b cos), a and b the halves of a head: [batch, heads, sequence, head_dim]."""
    half = x.shape[-1] // 2
    angle = torch.arange(SEQUENCE).double()[:, None] * 10000.0 ** (-torch.arange(half).double() / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


def split_heads(x, heads):
    return x.view(BATCH, SEQUENCE, heads, HEAD_DIM).transpose(1, 2)


def block(p, module, x, kv_heads, gpt):
    width, kv_width = HEADS * HEAD_DIM, kv_heads * HEAD_DIM

    def linear(name, inputs, out):
        weight = p.make(module, name, out, inputs.shape[-1])
        return F.linear(inputs, weight, p.make(module, name + " bias", out) if gpt else None)

    def normed(name, inputs):
        weight = p.make(module, name, HIDDEN, mean=1.0)
        return norm(inputs, weight, p.make(module, name + " bias", HIDDEN) if gpt else None, gpt)

    qkv = linear("qkv", normed("norm 1", x), width + 2 * kv_width)
    q, k, v = qkv.split([width, kv_width, kv_width], -1)
    q, k, v = split_heads(q, HEADS), split_heads(k, kv_heads), split_heads(v, kv_heads)
    if not gpt:
        q, k = rotate(q), rotate(k)
    k, v = (t.repeat_interleave(HEADS // kv_heads, 1) for t in (k, v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(HEAD_DIM)
    mask = torch.ones(SEQUENCE, SEQUENCE, dtype=torch.bool).tril()
    core = scores.masked_fill(~mask, -math.inf).softmax(-1) @ v
    x = x + linear("output", core.transpose(1, 2).reshape(BATCH, SEQUENCE, width), HIDDEN)
    up = linear("up", normed("norm 2", x), FFN if gpt else 2 * FFN)
    if gpt:
        product = F.gelu(up, approximate="tanh")
    else:
        gate, value = up.split(FFN, -1)
        product = F.silu(gate) * value
    return x + linear("down", product, HIDDEN)


def make(name, kv_heads, tied, gpt):
    torch.manual_seed(1)
    p = Parameters()
    tokens = torch.randint(VOCAB, (BATCH, SEQUENCE))
    targets = torch.randint(VOCAB, (BATCH, SEQUENCE))
    table = p.make(0, "embedding", VOCAB, HIDDEN)
    x = table[tokens]
    if gpt:
        x = x + p.make(0, "position", SEQUENCE, HIDDEN)
    for layer in range(LAYERS):
        x = block(p, layer + 1, x, kv_heads, gpt)
    weight = p.make(LAYERS + 1, "final norm", HIDDEN, mean=1.0)
    x = norm(x, weight, p.make(LAYERS + 1, "final norm bias", HIDDEN) if gpt else None, gpt)
    head = table if tied else p.make(LAYERS + 1, "head", VOCAB, HIDDEN)
    loss = F.cross_entropy((x @ head.T).view(-1, VOCAB), targets.view(-1))
    loss.backward()
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name + ".golden")
    with open(path, "wb") as file:
        file.write(f"golden 1 loss {loss.item():.17g}\n".encode())
        for words, values in (("tokens", tokens), ("targets", targets)):
            file.write(f"{words} {' '.join(str(v) for v in values.flatten().tolist())}\n".encode())
        for module, tensor, values in p.list:
            rows, columns = (1, values.shape[0]) if values.dim() == 1 else values.shape
            file.write(f"tensor {module} {rows} {columns} {tensor}\n".encode())
            for numbers in (values.detach(), values.grad):
                file.write(numbers.float().numpy().astype("<f4").tobytes())
        file.write(b"end\n")


make("llama_gqa", kv_heads=1, tied=False, gpt=False)
make("llama_tied", kv_heads=2, tied=True, gpt=False)
make("gpt2", kv_heads=2, tied=True, gpt=True)
