"""Trains the plan that dtplan hands over with PyTorch alone, and says what steps and memory it takes.

dtplan run --runtime torch starts this: python3 run_torch.py --plan FILE, for several ranks under torchrun. FILE is the
JSON object of dtplan plan --json (schema dtplan.plan/1): model and plan are read from there and asked nowhere else.
Every key of it is used, or means nothing to this program (LET_BE says why), or is refused with the reason. What happens
goes as JSON lines to descriptor 3: events start, step, memory, end and fault, as dtplan-exec's.

The net is the one that dtplan predicts: its matmuls, its norms, its rotary embedding. On a GPU memory is what PyTorch's
allocator and the driver say. On the cores of a host (--device host) the mechanics run, over gloo; times say nothing there.
"""
import argparse
import csv
import json
import math
import os
import signal
import sys
import time

try:
    import torch
    import torch.nn.functional as F
    from torch import nn
except ImportError as missing:
    words = f"PyTorch is not installed for {sys.executable} ({missing}); install it (python3 -m pip install torch), " \
            "or name an interpreter that has it in DTPLAN_PYTHON"
    try:
        os.write(3, (json.dumps({"event": "fault", "words": words}) + "\n").encode())
    except OSError:
        pass
    print(f"dtplan: {words}", file=sys.stderr)
    sys.exit(3)

WARM_UP_STEPS = 2  # compilation, the optimizer's state: steps and peaks behind them count
SETTLING_S = 1.0  # of more steps between, that none counts: until then a GPU at its power limit is faster than it stays
PACE_ROUNDS = 5000  # of a loop: some 0.1 ms
DISTURBED = 1.15  # of the least that the loop took: between a core of one's own and a half of one (reports/h200/host_pace.csv)
TRIES = 5  # of a step, until one was undisturbed


class Refused(Exception):
    """What of the plan this program does not do."""


class Lacking(Exception):
    """What this machine lacks."""


# ---- the plan --------------------------------------------------------------------------------------------------------

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

# Keys of the plan that change nothing here: what they are of.
LET_BE = {
    "model": {
        "derived or said elsewhere": "name params active_params flops_per_token shape_note note bias max_seq "
                                     "max_sequence config",
        "of experts, which are refused": "experts_per_token expert_ffn shared_expert_ffn shared_expert_gate dense_layers "
                                         "expert_layer_step router router_norm router_scale router_on_input router_bias expert_bias "
                                         "expert_groups groups_per_token",
        "of latent attention, which is refused": "q_latent rope_head_dim value_head_dim",
        "of norms of q and k, which are refused": "qk_norm_wide qk_layer_norm qk_norm_bias qk_norm_weight",
        "of windows, which are refused": "sliding_window_pattern",
    },
    "plan": {
        "derived or said elsewhere": "runtime global_batch global_batch_tokens precision dtypes trained_params "
                                     "frozen_params frozen_bytes note master_dtype price_per_gpu_hour",
        "of tensor, context, expert and pipeline parallel ranks, which are refused":
            "layout_order sequence_parallel tp_overlap cp_comm schedule virtual_stages microbatch_group stages "
            "post_validation expert_imbalance etp expert_room gathered_logits",
        "of Megatron": "bf16_first_layers bf16_last_layers fp8_attention fp8_head "
                       "fp8_param_gather precision_aware_optimizer megatron_overlap "
                       "megatron_scatter_gather flex_dispatcher "
                       "unfused_permute unfused_rope fused_qkv_rope "
                       "capacity_factor pad_to_capacity shared_expert_overlap "
                       "avoid_record_streams expert_overlap recompute_modules cuda_graph_modules",
        "of DeepSpeed": "megatron_layers bf16_optimizer deepspeed_overlap reduce_bucket_size stage3_max_live_parameters "
                        "stage3_max_reuse_distance stage3_prefetch_bucket_size stage3_param_persistence_threshold "
                        "transformers_layers autoep drop_tokens seq_parallel_communication_data_type zero_hpz_partition_size zero_quantized_weights "
                        "zero_quantized_gradients",
        "of dtplan's executor": "gradient_norm loss_chunk gelu_epilogue activation_fp8_input_store stochastic_rounding gradient_stream delay_wgrad "
                                "update_in_backward cuda_graph atomic_attention matmul_sms collective_ctas "
                                "symmetric_windows gather_engine reduce_engine cp_chunks tp_chunks",
        "of adapters, which are refused": "lora_targets lora_parameters lora_dtype lora_dropout lora_alpha dora base train_ends",
        "of FSDP1, which is refused": "limit_all_gathers",
        "of formats in 8 bits, which are refused": "fp8_recipe fp8_all_gather bf16_linears",
        "of PowerSGD, which is refused": "powersgd_rank powersgd_start_step",
        "of GaLore and APOLLO, which are refused": "projection_rank",
        "of runtime peft": "autocast fast_kernels grouped_experts gptq_operators shifted_logits narrow_logits unread_loss fused_activation prepare_kbit fp32_ends checkpoint_within",
    },
}


class Part:
    """An object of the plan. Whoever takes a key has dealt with it; what nobody took is refused."""

    def __init__(self, name, values):
        self.name, self.values = name, values
        self.left = set(values) - {key for keys in LET_BE[name].values() for key in keys.split()}

    def take(self, key, *among):
        value = self.values.get(key)
        self.left.discard(key)
        if among and value not in among:
            words = " or ".join(str(choice).lower() if isinstance(choice, bool) else str(choice) for choice in among)
            raise Refused(f"{key}: {value} is not run under runtime torch, only predicted; take {words}")
        return value

    def none(self, key, what):
        value = self.values.get(key)
        self.left.discard(key)
        if value not in (None, False, 0, 1 if key in ("tp", "pp", "cp", "ep") else 0, "none"):
            raise Refused(f"{key}: {value}: {what} is not run under runtime torch, only predicted; leave it out")

    def all_taken(self):
        if self.left:
            raise Refused(f"{self.name}: keys that this version of run_torch.py does not know: "
                          + ", ".join(sorted(self.left)))


class Shape:
    """The net."""

    def __init__(self, m, sequence):
        for key in "layers hidden heads kv_heads head_dim ffn vocab positions norm_bias qkv_bias attention_output_bias " \
                   "mlp_bias head_bias tied_head norm_eps params".split():
            setattr(self, key, m.take(key))
        self.norm = m.take("norm", "layer_norm", "rms_norm")
        self.activation = m.take("activation", "gelu", "gelu_new", "relu", "swiglu", "geglu")
        self.position = m.take("position", "learned", "rope", "none")
        m.take("parallel_block", "none")
        m.take("norm_place", "before")
        m.take("seq")
        window = m.take("sliding_window")
        if window and window < sequence:
            raise Refused(f"sliding_window: {window}: attention in windows is not run under runtime torch, only predicted")
        for key, what in (("embedding_norm", "a norm behind the embedding"), ("qk_norm", "a norm of q and k"),
                          ("norm_unit_offset", "a norm's weight beside 1"), ("embedding_scale", "a scaled embedding"),
                          ("attention_softcap", "a soft cap"), ("final_softcap", "a soft cap"),
                          ("norm_without_weight", "a norm without weight"), ("experts", "a layer of experts"),
                          ("chunked_attention", "attention in chunks"), ("attention_sinks", "attention with sinks"),
                          ("kv_latent", "latent attention"), ("mtp_layers", "prediction further ahead")):
            m.none(key, what)
        m.all_taken()
        self.gated = self.activation in ("swiglu", "geglu")


class Choices:
    """The plan."""

    def __init__(self, p):
        for key in "compile compile_loss shard_group micro_batch accumulate accumulate_sync reshard_after_forward " \
                   "keep_root wrap_ends ddp_bucket_mib ddp_bucket_view process_group wrap_layers fused_qkv fused_gate_up " \
                   "rope_fp32 norm_chain expandable_segments launch_blocking prefetch_depth".split():
            setattr(self, key, p.take(key))
        self.sequence = p.take("seq")
        self.strategy = p.take("strategy", "ddp", "zero1", "full_shard", "shard_grad_op", "hybrid_shard", "zero3")
        self.params = p.take("param_dtype", *DTYPES)
        self.compute = p.take("compute_dtype", *DTYPES)
        self.reduce = p.take("reduce_dtype", *DTYPES)
        if p.take("moment_dtype") != self.params:
            raise Refused("precision: torch.optim keeps moments in the parameters' format; take bf16-pure, bf16-mixed or "
                          "fp32")
        self.checkpointing = p.take("checkpointing")
        self.attention = p.take("attention", "flash", "flash2", "math")
        self.loss = p.take("loss", "eager", "fused")
        self.optimizer = p.take("optimizer", "adamw", "adamw-foreach")
        self.clip_norm = p.take("clip_norm") or 0
        self.comm_hook = p.take("comm_hook", "none", "fp16", "bf16")
        self.sharded = self.strategy in ("full_shard", "shard_grad_op", "hybrid_shard", "zero3")
        if self.sharded and p.values.get("prefetch") is False:
            raise Refused("prefetch: fully_shard always gathers the next unit beside the current one; leave it out")
        p.take("prefetch")
        for key, what in (("fsdp1", "FullyShardedDataParallel"), ("offload", "offload"), ("dropout", "dropout"),
                          ("tp", "tensor parallelism"), ("pp", "a pipeline"), ("cp", "context parallelism"),
                          ("ep", "expert parallelism"), ("lora", "an adapter"), ("hold_logits", "a loop that holds logits"),
                          ("activation_offload", "checkpoints on the host")):
            p.none(key, what)
        p.all_taken()
        self.mixed = self.params == "fp32" and self.compute == "bf16"
        if not self.mixed and self.params != self.compute:
            raise Refused(f"compute_dtype: {self.compute} of parameters in {self.params} is not run under runtime torch")


# ---- the net ---------------------------------------------------------------------------------------------------------

class RMSNorm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(width))

    def forward(self, x):
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class ChainedRMSNorm(RMSNorm):
    """In operators on a copy in fp32, as before PyTorch 2.8: dtplan's norm_chain."""

    def forward(self, x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).type_as(x) * self.weight


def make_norm(shape, choices):
    if shape.norm == "rms_norm":
        return (ChainedRMSNorm if choices.norm_chain else RMSNorm)(shape.hidden, shape.norm_eps)
    return nn.LayerNorm(shape.hidden, shape.norm_eps, bias=bool(shape.norm_bias))


def turned_by_halves(x, angles):
    """x [..., tokens, head_dim]; angles [2, tokens, head_dim / 2], cosines and sines. Both halves in fp32, joined by a
    cat: dtplan's rope_fp32."""
    first, second = x.float().chunk(2, dim=-1)
    cosine, sine = angles[0], angles[1]
    return torch.cat((first * cosine - second * sine, first * sine + second * cosine), dim=-1).to(x.dtype)


def turned_as_complex(x, angles):
    """x [batch, tokens, heads, head_dim]; angles [tokens, head_dim / 2], complex: pairs of neighbours times a number of
    length 1, as torchtitan's apply_rotary_emb has it."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * angles[None, :, None, :]).flatten(-2).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, shape, choices):
        super().__init__()
        self.heads, self.kv_heads, self.width = shape.heads, shape.kv_heads, shape.head_dim
        self.sizes = [self.heads * self.width, self.kv_heads * self.width, self.kv_heads * self.width]
        self.rope, self.halves, self.compiled = shape.position == "rope", choices.rope_fp32, choices.compile
        self.core_again = choices.checkpointing == "selective-attention"
        if choices.fused_qkv:
            self.qkv = nn.Linear(shape.hidden, sum(self.sizes), bias=shape.qkv_bias)
        else:
            self.q, self.k, self.v = (nn.Linear(shape.hidden, size, bias=shape.qkv_bias) for size in self.sizes)
        self.fused = choices.fused_qkv
        self.out = nn.Linear(self.sizes[0], shape.hidden, bias=shape.attention_output_bias)

    def core(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)

    def forward(self, x, angles):
        batch, tokens, _ = x.shape
        made = self.qkv(x).split(self.sizes, dim=-1) if self.fused else (self.q(x), self.k(x), self.v(x))
        q, k, v = (part.view(batch, tokens, -1, self.width) for part in made)
        if self.rope and not self.halves and not self.compiled:
            q, k = turned_as_complex(q, angles), turned_as_complex(k, angles)
        elif self.rope and not self.halves:  # inductor leaves complex numbers alone
            beside = angles[:, :, None, :]
            q, k = turned_by_halves(q, beside), turned_by_halves(k, beside)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if self.rope and self.halves:
            q, k = turned_by_halves(q, angles), turned_by_halves(k, angles)
        if self.core_again:
            from torch.utils.checkpoint import checkpoint
            mixed = checkpoint(self.core, q, k, v, use_reentrant=False, preserve_rng_state=False)
        else:
            mixed = self.core(q, k, v)
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, -1))


class MLP(nn.Module):
    def __init__(self, shape, choices):
        super().__init__()
        self.kind, self.gated, self.fused = shape.activation, shape.gated, shape.gated and choices.fused_gate_up
        if self.gated and not self.fused:
            self.gate = nn.Linear(shape.hidden, shape.ffn, bias=shape.mlp_bias)
        self.up = nn.Linear(shape.hidden, (2 if self.fused else 1) * shape.ffn, bias=shape.mlp_bias)
        self.down = nn.Linear(shape.ffn, shape.hidden, bias=shape.mlp_bias)

    def act(self, x):
        if self.kind == "swiglu":
            return F.silu(x)
        return F.relu(x) if self.kind == "relu" else F.gelu(x, approximate="tanh")

    def forward(self, x):
        if not self.gated:
            return self.down(self.act(self.up(x)))
        gate, up = self.up(x).chunk(2, dim=-1) if self.fused else (self.gate(x), self.up(x))
        return self.down(self.act(gate) * up)


class Layer(nn.Module):
    def __init__(self, shape, choices):
        super().__init__()
        self.norm1, self.attention = make_norm(shape, choices), Attention(shape, choices)
        self.norm2, self.mlp = make_norm(shape, choices), MLP(shape, choices)

    def forward(self, x, angles):
        x = x + self.attention(self.norm1(x), angles)
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    def __init__(self, shape, choices):
        super().__init__()
        self.embedding = nn.Embedding(shape.vocab, shape.hidden)
        self.positions = nn.Embedding(shape.positions, shape.hidden) if shape.position == "learned" else None
        self.layers = nn.ModuleList(Layer(shape, choices) for _ in range(shape.layers))
        self.norm = make_norm(shape, choices)
        self.head = nn.Linear(shape.hidden, shape.vocab, bias=bool(shape.head_bias))
        if shape.tied_head:
            self.head.weight = self.embedding.weight

    def forward(self, tokens, angles):
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x, angles)
        return self.head(self.norm(x))


def cross_entropy(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


# ---- checkpointing, compiling, sharding ------------------------------------------------------------------------------

def every_second_matmul():
    """torchtitan's selective checkpointing: attention's result and every second matmul's are kept."""
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
    aten, kept = torch.ops.aten, set()
    for name in ("_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
                 "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_flash_attention_for_cpu"):
        if hasattr(aten, name):
            kept.add(getattr(aten, name).default)
    matmuls = {aten.mm.default, aten.addmm.default}
    seen = {False: 0, True: 0}  # forward, its replay

    def policy(context, operator, *_, **__):
        if operator in matmuls:
            seen[context.is_recompute] += 1
            keep = seen[context.is_recompute] % 2 == 1
        else:
            keep = operator in kept
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    def contexts():
        seen[False] = seen[True] = 0
        return create_selective_checkpoint_contexts(policy)

    return contexts


def checkpointed(model, choices):
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
    how = choices.checkpointing
    every = 1 if how in ("full", "selective") else int(how[len("every-"):]) if how.startswith("every-") else 0
    if not every and how not in ("none", "selective-attention"):
        raise Refused(f"checkpointing: {how} is not run under runtime torch, only predicted")
    more = {"context_fn": every_second_matmul()} if how == "selective" else {}
    for i in range(len(model.layers)):
        if every and i % every == 0:
            model.layers[i] = checkpoint_wrapper(model.layers[i], checkpoint_impl=CheckpointImpl.NO_REENTRANT,
                                                 preserve_rng_state=False, **more)


def fully_sharded(model, choices, device, ranks):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    policy = MixedPrecisionPolicy(param_dtype=DTYPES[choices.compute], reduce_dtype=DTYPES[choices.reduce]) \
        if choices.mixed or choices.reduce != choices.params else MixedPrecisionPolicy()
    group = choices.shard_group
    mesh = init_device_mesh(device.type, (ranks // group, group), mesh_dim_names=("replicas", "shards")) \
        if group < ranks else init_device_mesh(device.type, (ranks,), mesh_dim_names=("shards",))
    shared = {"mesh": mesh, "mp_policy": policy}
    units, layers, size = [], list(model.layers), choices.wrap_layers
    for first in range(0, len(layers), size) if size else []:
        unit = layers[first:first + size]
        fully_shard(unit if len(unit) > 1 else unit[0], reshard_after_forward=choices.reshard_after_forward, **shared)
        units.append(unit[0])
    if choices.wrap_ends:
        fully_shard(model.embedding, reshard_after_forward=choices.reshard_after_forward, **shared)
        fully_shard([model.norm, model.head], reshard_after_forward=False, **shared)
    fully_shard(model, reshard_after_forward=None if choices.keep_root else choices.reshard_after_forward, **shared)
    ahead = choices.prefetch_depth
    for i, unit in enumerate(units):
        if ahead > 1:
            unit.set_modules_to_forward_prefetch(units[i + 1:i + 1 + ahead])
            unit.set_modules_to_backward_prefetch(units[max(0, i - ahead):i][::-1])


def local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def fill(model, device, seed):
    """Weights as small random numbers, of norms ones; made where they will stand."""
    numbers = torch.Generator(device=device).manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                local(parameter).normal_(0, 0.02, generator=numbers)
            else:
                local(parameter).fill_(0.0 if name.endswith("bias") else 1.0)


def replicated(model, choices, device, ranks):
    if ranks == 1:
        return None
    said = choices.ddp_bucket_mib != 25  # a size that is said is the first bucket's too, which otherwise has 1 MiB
    ddp = nn.parallel.DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None,
                                              bucket_cap_mb=choices.ddp_bucket_mib if said else None,
                                              gradient_as_bucket_view=choices.ddp_bucket_view)
    if choices.comm_hook != "none":
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
        hook = default_hooks.fp16_compress_hook if choices.comm_hook == "fp16" else default_hooks.bf16_compress_hook
        ddp.register_comm_hook(None, hook)
    return ddp


def make_optimizer(model, choices, ranks, rate):
    how = {"fused": True} if choices.optimizer == "adamw" else {"foreach": True}
    how.update(lr=rate, betas=(0.9, 0.95), weight_decay=0.1)
    if choices.strategy == "zero1" and ranks > 1:
        from torch.distributed.optim import ZeroRedundancyOptimizer
        return ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, **how)
    return torch.optim.AdamW(model.parameters(), **how)


def expected_attention(choices, shape, device):
    """The backend that a plan means, as torch.nn.attention.SDPBackend names it. flash is the fastest fused kernel of the
    GPU: cuDNN's from Hopper on, in 16 bits, where heads are no wider than 128; PyTorch itself would take FlashAttention 2
    first (aten/src/ATen/Context.h: sdp_priority_order), which is what flash2 means."""
    if device.type != "cuda":
        return None
    if choices.attention == "math":
        return "MATH"
    if choices.compute == "fp32":
        return "EFFICIENT_ATTENTION"
    hopper = torch.cuda.get_device_capability(device)[0] >= 9
    return "CUDNN_ATTENTION" if choices.attention == "flash" and hopper and shape.head_dim <= 128 else "FLASH_ATTENTION"


def choose_attention(choices, shape, device):
    """That one first, and FlashAttention 2 where it takes no such shape; says which it is. PyTorch by itself falls back to
    the next kernel, down to math, without a word."""
    wanted = expected_attention(choices, shape, device)
    if wanted is None:
        return "of the host"
    from torch.nn.attention import SDPBackend
    order = [getattr(SDPBackend, wanted)] + [SDPBackend.FLASH_ATTENTION] * (wanted == "CUDNN_ATTENTION")
    for name, switch in (("MATH", torch.backends.cuda.enable_math_sdp),
                         ("FLASH_ATTENTION", torch.backends.cuda.enable_flash_sdp),
                         ("EFFICIENT_ATTENTION", torch.backends.cuda.enable_mem_efficient_sdp),
                         ("CUDNN_ATTENTION", torch.backends.cuda.enable_cudnn_sdp)):
        switch(getattr(SDPBackend, name) in order)
    before = torch._C._get_sdp_priority_order()
    torch._C._set_sdp_priority_order([int(one) for one in order] + [one for one in before if one not in map(int, order)])
    sizes = ((shape.heads, shape.head_dim), (shape.kv_heads, shape.head_dim))
    q, k = (torch.empty(choices.micro_batch, heads, choices.sequence, width, device=device, dtype=DTYPES[choices.compute],
                        requires_grad=True) for heads, width in sizes)
    try:
        chosen = SDPBackend(torch._fused_sdp_choice(q, k, k, is_causal=True, enable_gqa=shape.heads != shape.kv_heads))
    except RuntimeError:  # none that is switched on takes it
        chosen = None
    if chosen not in order:
        raise Refused(f"attention: {choices.attention}: {wanted} does not take {choices.micro_batch} x {choices.sequence} "
                      f"tokens in heads of {shape.head_dim} on this GPU; take math" + (" or flash2" if choices.compute == "bf16" else ""))
    return chosen.name.lower().replace("_", " ")


# ---- events ----------------------------------------------------------------------------------------------------------

class Events:
    """To descriptor 3; torchrun closes it to its children, but has it open itself."""

    def __init__(self, rank):
        self.file = None
        if rank != 0:
            return
        path = f"/proc/{os.getppid()}/fd/3" if "TORCHELASTIC_RUN_ID" in os.environ else "/proc/self/fd/3"
        try:
            self.file = open(path, "w", encoding="utf-8")  # noqa: SIM115: open as long as the program runs
        except OSError:
            self.file = sys.stdout

    def say(self, kind, **fields):
        if self.file:
            self.file.write(json.dumps({"event": kind, **fields}) + "\n")
            self.file.flush()


def bytes_of(tensors):
    """Whole storages, each once: a sharded parameter is a view of its unit's. Scalars, such as steps counted, aside."""
    storages = {}
    for tensor in tensors:
        tensor = local(tensor)
        if tensor.dim():
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def state_tensors(optimizer):
    inner = getattr(optimizer, "optim", optimizer)
    return [value for state in inner.state.values() for value in state.values() if torch.is_tensor(value)]


# ---- training --------------------------------------------------------------------------------------------------------

class Run:
    def __init__(self, arguments, shape, choices, ranks, rank, device):
        self.arguments, self.choices, self.ranks, self.rank, self.device = arguments, choices, ranks, rank, device
        self.cuda = device.type == "cuda"
        self.sequence, self.gradient_bytes = choices.sequence, 0
        torch.manual_seed(arguments.seed)
        self.attention = choose_attention(choices, shape, device)
        self.build(shape)
        generator = torch.Generator(device=device).manual_seed(100 + arguments.seed + rank)
        self.data = torch.randint(0, shape.vocab, (choices.accumulate, choices.micro_batch, self.sequence + 1),
                                  device=device, generator=generator)
        self.angles = None
        if shape.position == "rope":
            place = torch.arange(self.sequence, device=device, dtype=torch.float32)
            speed = 10000.0 ** (-torch.arange(0, shape.head_dim, 2, device=device, dtype=torch.float32) / shape.head_dim)
            angle = torch.outer(place, speed)
            pairs = not choices.rope_fp32 and not choices.compile
            self.angles = torch.polar(torch.ones_like(angle), angle) if pairs else torch.stack((angle.cos(), angle.sin()))
        self.autocast = choices.mixed and not choices.sharded
        compiled = (choices.compile and choices.compile_loss) or choices.loss == "fused"
        self.loss = torch.compile(cross_entropy) if compiled else cross_entropy
        self.after_init_bytes = torch.cuda.memory_allocated() if self.cuda else 0

    def build(self, shape):
        choices, device = self.choices, self.device
        with torch.device("meta"):
            model = Decoder(shape, choices).to(DTYPES[choices.params])
        count = sum(parameter.numel() for parameter in model.parameters())
        if not self.count_is_right(count, shape):
            raise Refused(f"the net has {count} parameters here and {shape.params} in the plan; please report that")
        checkpointed(model, choices)
        if choices.compile:
            for layer in model.layers:
                layer.compile()
        if choices.sharded and self.ranks > 1:
            fully_sharded(model, choices, device, self.ranks)
        elif choices.sharded:
            raise Refused(f"strategy: {choices.strategy} on one GPU shards nothing; take ddp")
        if shape.tied_head and not choices.sharded:
            del model.head.weight  # to_empty would make another, which would be dropped and stay as a segment
        model.to_empty(device=device)
        if shape.tied_head:
            model.head.weight = model.embedding.weight
        fill(model, device, self.arguments.seed)
        self.model = model
        self.ddp = None if choices.sharded else replicated(model, choices, device, self.ranks)
        self.optimizer = make_optimizer(model, choices, self.ranks, self.arguments.lr)

    def count_is_right(self, count, shape):
        return count == shape.params

    def wait(self):
        if self.cuda:
            torch.cuda.synchronize()
        if self.ranks > 1:
            torch.distributed.barrier()
        if self.cuda:
            torch.cuda.synchronize()

    def micro_step(self, i):
        choices, last = self.choices, i == self.choices.accumulate - 1
        reduces = last or choices.accumulate_sync
        if choices.sharded and self.ranks > 1 and choices.accumulate > 1:
            self.model.set_requires_gradient_sync(reduces)
        quiet = self.ddp.no_sync() if self.ddp and not reduces else torch.enable_grad()
        with quiet:
            tokens = self.data[i]
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
                logits = (self.ddp or self.model)(tokens[:, :-1], self.angles)
            loss = self.loss(logits, tokens[:, 1:]) / choices.accumulate
            del logits
            loss.backward()
        return loss.detach()

    def step(self, watch_gradients):
        self.wait()
        began = time.perf_counter()
        for i in range(self.choices.accumulate):
            loss = self.micro_step(i)
        if watch_gradients:
            self.gradient_bytes = bytes_of(p.grad for p in self.model.parameters() if p.grad is not None)
        if self.choices.clip_norm:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.choices.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - began, float(loss) * self.choices.accumulate

    def memory(self):
        state = {"parameter_bytes": bytes_of(self.model.parameters()), "gradient_bytes": self.gradient_bytes,
                 "optimizer_bytes": bytes_of(state_tensors(self.optimizer))}
        if not self.cuda:
            return state
        free, total = torch.cuda.mem_get_info()
        return dict(state, after_init_bytes=self.after_init_bytes, used_bytes=total - free, total_bytes=total,
                    allocated_bytes=torch.cuda.max_memory_allocated(), reserved_bytes=torch.cuda.max_memory_reserved())


def libraries(cuda):
    words = [f"PyTorch {torch.__version__}"]
    if not cuda:
        return words[0]
    try:
        words += [f"NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}", f"cuDNN {torch.backends.cudnn.version()}"]
    except RuntimeError as other:  # a folder of LD_LIBRARY_PATH has another cuDNN than PyTorch's own
        raise Lacking(f"PyTorch and the libraries it finds do not fit: {str(other).splitlines()[0]}; take folders with "
                      "cuDNN out of LD_LIBRARY_PATH, or let DTPLAN_PYTHON name a script that unsets it and calls python3") \
            from other
    return ", ".join(words)


def traced(run, path):
    """Two more steps under PyTorch's profiler, behind one that warms it up. Of one rank: the others keep it company."""
    from torch.profiler import ProfilerActivity, profile, schedule
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if run.cuda else [])

    def keep(profiler):
        if run.rank == 0:
            profiler.export_chrome_trace(path)

    with profile(activities=activities, schedule=schedule(wait=0, warmup=1, active=2), on_trace_ready=keep) as profiler:
        for _ in range(3):
            run.step(False)
            profiler.step()


class HostCore:
    """The core that the threads which launch kernels are bound to: of a step the forward's and autograd's, of which one
    waits for the other all the time. Bound to one, steps of nets that wait for the host took 0.68 of the time
    (medians on a virtual machine of 16 cores, reports/h200/README.md). Such a machine's cores are halves of others' cores,
    too: while the other half works, a loop takes 1.5 to 2 times as long, and so do launches. The loop is timed before each
    step, the threads move to the core that does it fastest where theirs is disturbed, and a step is undisturbed where the
    loop takes its least before and after it."""

    def __init__(self, run):
        self.least_s, self.core, self.cores = math.inf, None, []
        if run.cuda and hasattr(os, "sched_setaffinity"):
            cores = sorted(os.sched_getaffinity(0))
            if len(cores) >= 2 * run.ranks:  # others of the process need cores too
                self.cores = cores[int(os.environ.get("LOCAL_RANK", 0))::run.ranks][::-1]

    def loop_s(self):
        took = []
        for _ in range(2):
            began = time.perf_counter()
            for _ in range(PACE_ROUNDS):
                pass
            took.append(time.perf_counter() - began)
        self.least_s = min(self.least_s, *took)
        return min(took)

    def is_calm(self):
        return self.core is not None and self.loop_s() <= DISTURBED * self.least_s

    def loop_on(self, core):
        os.sched_setaffinity(0, {core})
        return self.loop_s()

    def bind(self):
        """Whether the threads are on a core that nothing disturbs just now."""
        if not self.cores:
            return False
        if not self.is_calm():
            self.core = min(self.cores, key=self.loop_on)
            os.sched_setaffinity(0, {self.core})
            for thread in os.listdir("/proc/self/task"):
                try:
                    with open(f"/proc/self/task/{thread}/comm", encoding="utf-8") as file:
                        if file.read().startswith("pt_autograd"):
                            os.sched_setaffinity(int(thread), {self.core})
                except OSError:  # it has ended
                    continue
        return self.is_calm()

    def step(self, run):
        """Seconds of a step, its loss, whether nothing disturbed its core."""
        calm = self.bind()
        seconds, loss = run.step(False)
        return seconds, loss, calm and self.is_calm()


def timed_step(run, host):
    """Seconds of a step, its loss, and, of one rank, the seconds of the first of up to TRIES that was undisturbed."""
    seconds, loss, calm = host.step(run)
    undisturbed_s = seconds if calm else None
    for _ in range(TRIES - 1 if host.cores and run.ranks == 1 and not run.arguments.snapshot else 0):
        if undisturbed_s:
            break
        again_s, _, calm = host.step(run)
        undisturbed_s = again_s if calm else None
    return seconds, loss, undisturbed_s if run.ranks == 1 else None


def settle(run, stopped):
    """As many steps on each rank, by what one takes of the first; a snapshot has those alone that count."""
    if not run.cuda or run.arguments.snapshot:
        return
    count = torch.tensor([math.ceil(SETTLING_S / run.step(False)[0])])
    if run.ranks > 1:
        torch.distributed.broadcast(count, 0)
    for _ in range(int(count)):
        if stopped:
            break
        run.step(False)


def train(run, events, stopped):
    arguments, log = run.arguments, None
    if arguments.log and run.rank == 0:
        log = csv.writer(open(arguments.log, "w", newline="", encoding="utf-8"))  # noqa: SIM115
        log.writerow(["step", "loss", "gradient_norm", "learning_rate", "step_s", "tokens_per_s", "allocated_bytes",
                      "reserved_bytes"])
    tokens = run.choices.micro_batch * run.sequence * run.choices.accumulate * run.ranks
    host = HostCore(run)
    if arguments.snapshot and run.cuda:
        torch.cuda.memory._record_memory_history(max_entries=400000)
    for number in range(1, arguments.steps + 1):
        if number == WARM_UP_STEPS + 1 and run.cuda:
            host.bind()
            settle(run, stopped)
            torch.cuda.reset_peak_memory_stats()
        seconds, loss, undisturbed_s = timed_step(run, host) if number > WARM_UP_STEPS else \
            (*run.step(number == 1), None)
        events.say("step", step=number, tokens=tokens, step_s=seconds, loss=loss, learning_rate=arguments.lr, mode="plain",
                   **({"undisturbed_s": undisturbed_s} if undisturbed_s else {}))
        if log:
            now = (torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()) if run.cuda else ("", "")
            log.writerow([number, f"{loss:.6f}", "", arguments.lr, f"{seconds:.6f}", f"{tokens / seconds:.1f}", *now])
        if stopped:
            break
    events.say("memory", **run.memory())
    if arguments.snapshot and run.cuda and run.rank == 0:
        torch.cuda.memory._dump_snapshot(arguments.snapshot)
    if arguments.snapshot and run.cuda:
        torch.cuda.memory._record_memory_history(enabled=None)
    if arguments.trace and not stopped:
        traced(run, arguments.trace)
    events.say("end", interrupted=bool(stopped))


def choose_device(arguments, choices, rank_here):
    if arguments.device == "host":
        return torch.device("cpu")
    if choices.launch_blocking:
        os.environ["CUDA_LAUNCH_BLOCKING"] = "1"  # read when CUDA starts
    if not torch.cuda.is_available():
        raise Lacking("PyTorch sees no GPU here; --device host runs the mechanics on cores, whose times say nothing")
    if rank_here >= torch.cuda.device_count():
        raise Lacking(f"the plan has more GPUs than this machine, which has {torch.cuda.device_count()}")
    if choices.expandable_segments:
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    torch.cuda.set_device(rank_here)
    return torch.device("cuda", rank_here)


def run_plan(arguments, events, ranks, rank):
    with open(arguments.plan, encoding="utf-8") as file:
        whole = json.load(file)
    if whole.get("schema") != "dtplan.plan/1":
        raise Refused(f"{arguments.plan}: no object of schema dtplan.plan/1")
    choices = Choices(Part("plan", whole["plan"]))
    shape = Shape(Part("model", whole["model"]), choices.sequence)
    if whole["cluster"]["nodes"] > 1:
        raise Refused("nodes: runtime torch is run on one machine; take one node")
    if whole["cluster"]["gpus"] != ranks:
        raise Refused(f"gpus: the plan has {whole['cluster']['gpus']}, and {ranks} processes were started")
    device = choose_device(arguments, choices, int(os.environ.get("LOCAL_RANK", 0)))
    if arguments.device == "host" and (arguments.snapshot):
        raise Lacking("--snapshot: PyTorch records memory of GPUs alone")
    if ranks > 1:
        torch.distributed.init_process_group("gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl",
                                             device_id=device if device.type == "cuda" else None)
    elif choices.process_group:  # as a script under torchrun has one, whatever it is for
        torch.distributed.init_process_group("gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl", rank=0, world_size=1,
                                             store=torch.distributed.HashStore(),
                                             device_id=device if device.type == "cuda" else None)
    if choices.compile:
        torch._dynamo.config.cache_size_limit = 64
    stopped = []
    if ranks == 1:  # several ranks would have to agree; torchrun ends them
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stopped.append(True))
    run = Run(arguments, shape, choices, ranks, rank, device)
    name = torch.cuda.get_device_name(device) if run.cuda else "cores of this machine"
    events.say("start", device=name, libraries=f"{libraries(run.cuda)}, {run.attention}", gpu=run.cuda, data="random tokens", first_step=0,
               steps=arguments.steps, parameters=shape.params, ranks=ranks)
    train(run, events, stopped)
    if ranks > 1:
        torch.distributed.barrier()
    if ranks > 1 or choices.process_group:
        torch.distributed.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(prog="run_torch.py", description=__doc__.split("\n", 1)[0], allow_abbrev=False)
    parser.add_argument("--plan", required=True, help="JSON of dtplan plan --json")
    parser.add_argument("--device", choices=("cuda", "host"), default="cuda")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--log", help="a row a step, CSV")
    parser.add_argument("--trace", help="PyTorch's profiler of one more step, JSON")
    parser.add_argument("--snapshot", help="PyTorch's memory history, pickle")
    arguments = parser.parse_args()
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    events = Events(rank)
    try:
        run_plan(arguments, events, ranks, rank)
        return 0
    except Refused as refused:
        status, words = 2, str(refused)
    except Lacking as lacking:
        status, words = 3, str(lacking)
    except torch.OutOfMemoryError as full:
        status, words = 3, "out of memory: " + str(full).split(". If reserved", 1)[0]
    events.say("fault", words=words)
    if rank == 0:
        print(f"dtplan: {words}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
