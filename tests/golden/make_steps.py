"""Losses of steps by PyTorch in each recipe: what tests/exec/test_goldens.c holds ours against.

    pip install torch torchao numpy; python3 tests/golden/make_steps.py [trained] [followed]

Thirty of the model of trained.golden (make_goldens.py), of adapted.golden for lora, its one batch again and again, AdamW as PyTorch has it (betas
0.9 and 0.95, decay 0.1 of matrices alone): trained.steps beside this script, a line a recipe, its name and losses. Two hundred of followed.golden's
model on new tokens in each step, of a chain where each is followed by one of four: followed.steps.

fp32: double throughout. bf16 and fp16: fp32 parameters, cast for use, as autocast casts weights; fp16 under
torch.amp.GradScaler from 1024 on, where nothing overflows. fp8: the same in bf16 with the blocks' projections by torchao's tensorwise recipe, emulated: what
its Float8Linear computes where there are no tensor cores for it; fp8_rowwise and fp8_gw_hp by its rowwise and rowwise_with_gw_hp.
fp8_blockwise: as Transformer Engine's Float8BlockScaling has it, whose kernels run on Hopper alone, so made here of its description: scales of 1 x 128
of inputs and gradients, of 128 x 128 of weights, powers of two, all in E4M3. fp8_delayed: its DelayedScaling, E4M3 and
gradients in E5M2 by the largest of the last 1024 steps before this one. Twelve steps of these four.
"""
import dataclasses
import itertools
import os
import sys

import torch
import torch.nn.functional as F
from torchao.float8.config import Float8LinearConfig
from torchao.float8.float8_linear import Float8Linear
from torchao.optim import AdamW8bit

import make_goldens

STEPS, FEW_STEPS, RATE = 30, 12, 1e-3
FOLLOWED_STEPS, FOLLOWED_RATE, FOLLOWED_SGD_RATE = 200, 3e-3, 0.3
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


def linear_fp8(inputs, weight, bias=None, recipe="tensorwise"):
    config = dataclasses.replace(Float8LinearConfig.from_recipe_name(recipe), emulate=True)
    module = Float8Linear(weight.shape[1], weight.shape[0], bias=bias is not None, config=config)
    values = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
    return torch.func.functional_call(module, values, (inputs,))


def linear_rowwise(inputs, weight, bias=None):
    return linear_fp8(inputs, weight, bias, "rowwise")


def linear_gw_hp(inputs, weight, bias=None):
    return linear_fp8(inputs, weight, bias, "rowwise_with_gw_hp")


def blocks(values, rows, columns=128):
    """What of a matrix is left in E4M3 with a scale for each rows x columns of it, in fp32."""
    height, width = values.shape
    padded = F.pad(values.float(), (0, -width % columns, 0, -height % rows))
    tiles = padded.reshape(padded.shape[0] // rows, rows, padded.shape[1] // columns, columns)
    largest = tiles.abs().amax(dim=(1, 3), keepdim=True)
    scale = torch.where(largest > 0, torch.exp2(torch.floor(torch.log2(448.0 / largest.double()))), 1.0).float()
    cast = (tiles * scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() / scale
    return cast.reshape(padded.shape)[:height, :width]


class Blockwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx, inputs, weight):
        ctx.save_for_backward(inputs, weight)
        rows = inputs.reshape(-1, inputs.shape[-1])
        return (blocks(rows, 1) @ blocks(weight, 128).t()).to(inputs.dtype).reshape(*inputs.shape[:-1], -1)

    @staticmethod
    def backward(ctx, gradient):
        inputs, weight = ctx.saved_tensors
        rows, above = inputs.reshape(-1, inputs.shape[-1]), gradient.reshape(-1, gradient.shape[-1])
        of_inputs = (blocks(above, 1) @ blocks(weight, 128)).to(inputs.dtype).reshape(inputs.shape)
        return of_inputs, (blocks(above.t(), 1) @ blocks(rows.t(), 1).t()).to(weight.dtype)


def linear_blockwise(inputs, weight, bias=None):
    made = Blockwise.apply(inputs, weight)
    return made if bias is None else made + bias


def delayed():
    """A linear whose operands are scaled by what was largest in earlier steps: the n-th call of a step has the n-th histories. No step is as
    long as 1024."""
    histories, called = [], [0]

    class Delayed(torch.autograd.Function):
        @staticmethod
        def cast(values, history, kind):
            values = values.float()
            factor = torch.finfo(kind).max / history[0] if history[0] > 0 else torch.tensor(1.0)
            history[1] = torch.maximum(history[1], values.abs().max())
            most = torch.finfo(kind).max
            return (values * factor).clamp(-most, most).to(kind).float() * (1 / factor)

        @staticmethod
        def forward(ctx, inputs, weight, own):
            rows = Delayed.cast(inputs.reshape(-1, inputs.shape[-1]), own[0], torch.float8_e4m3fn)
            cast = Delayed.cast(weight, own[1], torch.float8_e4m3fn)
            ctx.save_for_backward(rows, cast)
            ctx.own, ctx.shape, ctx.used = own, inputs.shape, inputs.dtype
            return (rows @ cast.t()).to(inputs.dtype).reshape(*inputs.shape[:-1], -1)

        @staticmethod
        def backward(ctx, gradient):
            rows, cast = ctx.saved_tensors
            above = Delayed.cast(gradient.reshape(-1, gradient.shape[-1]), ctx.own[2], torch.float8_e5m2)
            return (above @ cast).to(ctx.used).reshape(ctx.shape), (above.t() @ rows).to(ctx.used), None

    def linear(inputs, weight, bias=None):
        if called[0] == len(histories):
            histories.append([[torch.tensor(0.0), torch.tensor(0.0)] for _ in range(3)])
        called[0] += 1
        made = Delayed.apply(inputs, weight, histories[called[0] - 1])
        return made if bias is None else made + bias

    def next_step():
        called[0] = 0
        for history in itertools.chain.from_iterable(histories):
            history[0], history[1] = torch.maximum(history[0], history[1]), torch.tensor(0.0)

    linear.next_step = next_step
    return linear


def decayed(leaves):
    return [{"params": [p for p in leaves if p.dim() > 1], "weight_decay": 0.1},
            {"params": [p for p in leaves if p.dim() == 1], "weight_decay": 0.0}]


def adamw(leaves, rate=RATE):
    return torch.optim.AdamW(decayed(leaves), lr=rate, betas=(0.9, 0.95), eps=1e-8)


def sgd(leaves, rate):
    return torch.optim.SGD(decayed(leaves), lr=rate)


def momentum(leaves, rate):
    return torch.optim.SGD(decayed(leaves), lr=rate, momentum=0.95)


def adam8bit(leaves, rate=RATE):
    torch.compile = lambda function, **_: function  # which would want a compiler for these few numbers
    return AdamW8bit(decayed(leaves), lr=rate, betas=(0.9, 0.95), eps=1e-8)


class Muon:
    """Of blocks' matrices; AdamW of vectors, embedding and head, which are first and last."""

    def __init__(self, leaves, rate=RATE):
        inner = [p for p in leaves[1:-1] if p.dim() > 1]
        self.parts = [torch.optim.Muon(inner, lr=rate, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
                      adamw([leaves[0], leaves[-1]] + [p for p in leaves if p.dim() == 1], rate)]

    def zero_grad(self):
        for part in self.parts:
            part.zero_grad()

    def step(self):
        for part in self.parts:
            part.step()


def chain(shape):
    """Tokens and targets of one step after the other."""
    state = 1
    while True:
        rows = []
        for _ in range(shape.batch):
            row = []
            for i in range(shape.sequence + 1):
                state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
                row.append((5 * row[-1] + 1 + (state >> 33) % 4 if i else state >> 33) % shape.vocab)
            rows.append(row)
        rows = torch.tensor(rows)
        yield rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def train(shape, made, tokens, targets, used, stored=torch.float32, optimizer=adamw, linear=plain_linear, rate=None, steps=STEPS):
    p = Trained(made, stored, used)
    leaves = [leaf for leaf in p.leaves if leaf.requires_grad]
    update = optimizer(leaves, rate) if rate else optimizer(leaves)
    batches = chain(shape) if rate else itertools.repeat((tokens, targets))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024, enabled=used == torch.float16)
    losses = []
    F.linear = linear
    for tokens, targets in itertools.islice(batches, FOLLOWED_STEPS if rate else steps):
        loss = make_goldens.loss_of(shape, p, tokens, targets)
        update.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(update) if scaler.is_enabled() else update.step()
        scaler.update()
        getattr(linear, "next_step", lambda: None)()
        losses.append(loss.item())
    F.linear = plain_linear
    return losses


if __name__ == "__main__":
    files = sys.argv[1:] or ["trained", "followed"]
    models = {name: (shape, *make_goldens.make(name, shape))
              for name, shape in (("trained", make_goldens.TRAINED), ("biased", make_goldens.BIASED),
                                  ("adapted", make_goldens.ADAPTED), ("followed", make_goldens.FOLLOWED))}
    recipes = {
        "fp32": dict(used=torch.float64, stored=torch.float64),
        "bf16": dict(used=torch.bfloat16),
        "fp16": dict(used=torch.float16),
        "fp8": dict(used=torch.bfloat16, linear=linear_fp8),
        "fp8_rowwise": dict(used=torch.bfloat16, linear=linear_rowwise, steps=FEW_STEPS),
        "fp8_gw_hp": dict(used=torch.bfloat16, linear=linear_gw_hp, steps=FEW_STEPS),
        "fp8_blockwise": dict(used=torch.bfloat16, linear=linear_blockwise, steps=FEW_STEPS),
        "fp8_delayed": dict(used=torch.bfloat16, linear=delayed(), steps=FEW_STEPS),
        "fp8_biased": dict(model="biased", used=torch.bfloat16, linear=linear_fp8),
        "adam8bit": dict(used=torch.float32, optimizer=adam8bit),
        "lora": dict(model="adapted", used=torch.float64, stored=torch.float64),
        "lora_bf16": dict(model="adapted", used=torch.bfloat16),
    }
    followed = {
        "fp16": dict(used=torch.float16, rate=FOLLOWED_RATE),
        "adam8bit": dict(used=torch.float32, optimizer=adam8bit, rate=FOLLOWED_RATE),
        "sgd": dict(used=torch.float32, optimizer=sgd, rate=FOLLOWED_SGD_RATE),
        "momentum": dict(used=torch.float32, optimizer=momentum, rate=FOLLOWED_SGD_RATE / 20),
        "muon": dict(used=torch.float32, optimizer=Muon, rate=FOLLOWED_RATE),
        "muon_bf16": dict(used=torch.bfloat16, optimizer=Muon, rate=FOLLOWED_RATE),
    }
    folder = os.path.dirname(os.path.abspath(__file__))
    for file_name, trained in (("trained", recipes), ("followed", followed)):
        if file_name not in files:
            continue
        with open(os.path.join(folder, file_name + ".steps"), "w") as file:
            for name, how in trained.items():
                losses = train(*models[how.pop("model", file_name)], **how)
                file.write(" ".join([name] + [f"{loss:.9g}" for loss in losses]) + "\n")
