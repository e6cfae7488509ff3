"""Losses of thirty steps by PyTorch in each recipe: what tests/exec/test_goldens.c holds ours against.

    pip install torch torchao numpy; python3 tests/golden/make_steps.py

The model of trained.golden (make_goldens.py), of adapted.golden for lora, its one batch again and again, AdamW as PyTorch has it (betas 0.9 and
0.95, decay 0.1 of matrices alone). Writes trained.steps beside this script: a line a recipe, its name and losses.

fp32: double throughout. bf16 and fp16: fp32 parameters, cast for use, as autocast casts weights; fp16 under
torch.amp.GradScaler from 1024 on, where nothing overflows. fp8: the same in bf16 with the blocks' projections by torchao's tensorwise recipe, emulated: what
its Float8Linear computes where there are no tensor cores for it.
"""
import os

import torch
import torch.nn.functional as F
from torchao.float8.config import Float8LinearConfig
from torchao.float8.float8_linear import Float8Linear
from torchao.optim import AdamW8bit

import make_goldens

STEPS, RATE, SGD_RATE = 30, 1e-3, 0.1
plain_linear = F.linear


class Trained:
    """The parameters of a model that was made, in order, again for each step: leaves of one type, cast to another."""

    def __init__(self, made, stored, used):
        self.leaves = [values.detach().clone().to(stored).requires_grad_(values.requires_grad)
                       for _, _, values in made.list]
        self.used, self.next = used, 0

    def make(self, *_, **__):
        self.next += 1
        return self.leaves[(self.next - 1) % len(self.leaves)].to(self.used)


def linear_fp8(inputs, weight, bias=None):
    module = Float8Linear(weight.shape[1], weight.shape[0], bias=bias is not None,
                          config=Float8LinearConfig(emulate=True))
    values = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
    return torch.func.functional_call(module, values, (inputs,))


def adamw(leaves):
    groups = [{"params": [p for p in leaves if p.dim() > 1], "weight_decay": 0.1},
              {"params": [p for p in leaves if p.dim() == 1], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95), eps=1e-8)


def sgd(leaves):
    groups = [{"params": [p for p in leaves if p.dim() > 1], "weight_decay": 0.1},
              {"params": [p for p in leaves if p.dim() == 1], "weight_decay": 0.0}]
    return torch.optim.SGD(groups, lr=SGD_RATE)


def adam8bit(leaves):
    torch.compile = lambda function, **_: function  # which would want a compiler for these few numbers
    groups = [{"params": [p for p in leaves if p.dim() > 1], "weight_decay": 0.1},
              {"params": [p for p in leaves if p.dim() == 1], "weight_decay": 0.0}]
    return AdamW8bit(groups, lr=RATE, betas=(0.9, 0.95), eps=1e-8)


def train(shape, made, tokens, targets, used, stored=torch.float32, optimizer=adamw, linear=plain_linear):
    p = Trained(made, stored, used)
    update = optimizer([leaf for leaf in p.leaves if leaf.requires_grad])
    scaler = torch.amp.GradScaler("cpu", init_scale=1024, enabled=used == torch.float16)
    losses = []
    F.linear = linear
    for _ in range(STEPS):
        loss = make_goldens.loss_of(shape, p, tokens, targets)
        update.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(update)
        scaler.update()
        losses.append(loss.item())
    F.linear = plain_linear
    return losses


if __name__ == "__main__":
    models = {name: (shape, *make_goldens.make(name, shape))
              for name, shape in (("trained", make_goldens.TRAINED), ("biased", make_goldens.BIASED),
                                  ("adapted", make_goldens.ADAPTED))}
    recipes = {
        "fp32": dict(used=torch.float64, stored=torch.float64),
        "bf16": dict(used=torch.bfloat16),
        "fp16": dict(used=torch.float16),
        "fp8": dict(used=torch.bfloat16, linear=linear_fp8),
        "fp8_biased": dict(model="biased", used=torch.bfloat16, linear=linear_fp8),
        "sgd": dict(used=torch.float64, stored=torch.float64, optimizer=sgd),
        "adam8bit": dict(used=torch.float32, optimizer=adam8bit),
        "lora": dict(model="adapted", used=torch.float64, stored=torch.float64),
        "lora_bf16": dict(model="adapted", used=torch.bfloat16),
    }
    folder = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(folder, "trained.steps"), "w") as file:
        for name, how in recipes.items():
            losses = train(*models[how.pop("model", "trained")], **how)
            file.write(" ".join([name] + [f"{loss:.9g}" for loss in losses]) + "\n")
