"""Losses and gradients of small models by PyTorch's autograd, in double: what tests/exec/test_goldens.c holds ours against.

    pip install torch numpy transformers; python3 tests/golden/make_goldens.py [NAME ...]

Writes one file per model beside this script: a line of text per tensor ("tensor MODULE ROWS COLUMNS BF16 NAME", names
and modules as in model/net/parameter_layout.h) followed by its weights and then its gradients as little-endian fp32. Weights
are numbers that bf16 holds exactly, so that one file serves both number formats. The same model in bf16 throughout says
what that format costs PyTorch itself: "bf16 LOSS" is the loss it gets, BF16 of a tensor the norm of its gradient's error
over the gradient's own norm.
"""
import collections
import itertools
import math
import os
import sys

import torch
import torch.nn.functional as F

Shape = collections.namedtuple("Shape", "sequence batch vocab hidden heads kv_heads head_dim ffn layers gpt tied "
                                      "qk_norm window pattern gemma parallel norms wide rope biases head_bias epsilon rank alpha "
                                      "targets packed experts chosen expert_ffn shared_ffn shared_gate router normalise "
                                      "scale dense q_latent kv_latent rope_dim value_dim alibi groups groups_chosen gpt_oss unweighted "
                                      "chunks on_input",
                               defaults=[False, 0, 0, False, 0, "before", False, None, None, False, 1e-5, 0, 0, (), False,
                                         0, 0, 0, 0, False, "softmax", False, 1.0, 0, 0, 0, 0, 0, False, 0, 0, False, False, False, False])
ATTENTION_CAP, FINAL_CAP = 2.0, 3.0  # of Gemma-like models; low, so that they bend what small models make
# gpt: LayerNorm with bias and GELU; unless said otherwise a learned position table and biases everywhere, else RoPE and
# none. parallel: the number of norms in front of two branches side by side. biases: of linear layers, by name.
LINEARS = ("qkv", "output", "up", "down")
# rank: adapters of that rank stand beside the linears of `targets`, their product times alpha / rank, and they alone are
# trained: gradients of all else are left out, such tensors are written as "frozen". Of a packed linear the A's lie one
# behind the other, and so do the B's.
# experts: in place of the MLP so many, of which a token goes to the `chosen` of largest score. Their softmax over all, or
# sigmoid, `normalise`: divided by their sum, times `scale` weighs what they return (as in torchtitan's models/moe/moe.py
# and Transformers' modeling_qwen2_moe.py, where one over all tokens, weighed by a sigmoid of its own, is `shared_gate`).
# Nothing but the loss of tokens is minimised: there is no auxiliary one. `dense`: so many layers come first that have none.
# groups: a token's experts are of the `groups_chosen` best of so many groups of neighbours, which are as good as their
# largest softmax or the sum of their two largest sigmoids (check_groups below holds this against DeepSeek-V2's and V3's).
# gpt_oss: biases of qkv, output, router and experts, sinks beside the scores of keys, SwiGLU that is clamped (check_gpt_oss
# below holds experts and sinks against Transformers' own); weights of `up` are so large that it clamps.
# unweighted: norms of q and k multiply by nothing (Llama 4: Llama4TextL2Norm of Transformers' modeling_llama4.py, which
# comes behind rope there, to the same end: turning a head leaves its length)
# chunks: layers with the window are cut into pieces of so many tokens, of which each sees its own; the others turn nothing
# and norm no queries and keys. on_input: weights of experts multiply what these read (Llama 4; check_llama4 below holds both
# against Transformers' own).
# kv_latent: latent attention as Transformers' modeling_deepseek_v3.py has it (check_latent below holds this one against
# that): rope turns neighbours, the last rope_dim elements of queries and a part of keys that heads share.
# packed: these linears have numbers that NF4 holds (QLoRA, appendix E): quantiles of a normal distribution times a scale
# for each 64 of them, here one that bf16 holds.
# alibi: a bias by distance on scores, as BLOOM's build_alibi_tensor slopes it; and, with gpt, a norm behind the embedding.
TARGETS = ("q", "k", "v", "output", "gate", "up", "down")


def nf4_numbers():
    normal, most = torch.distributions.Normal(torch.zeros(1).double(), torch.ones(1).double()), 0.9677083
    above = normal.icdf(torch.linspace(most, 0.5, 9).double())[:-1]
    below = -normal.icdf(torch.linspace(most, 0.5, 8).double())[:-1]
    numbers = torch.cat([above, torch.zeros(1).double(), below]).sort().values
    return (numbers / numbers.abs().max()).float()


def packed_to_nf4(values):
    blocks, numbers = values.float().reshape(-1, 64), nf4_numbers()
    scales = blocks.abs().amax(1, keepdim=True).to(torch.bfloat16).float()
    codes = (blocks[..., None] / scales[..., None] - numbers).abs().argmin(-1)
    codes[torch.arange(len(blocks)), blocks.abs().argmax(1)] = 15  # who says the scale
    return (numbers[codes] * scales).reshape(values.shape).double()


class Parameters:
    """Tensors in the order in which they are made, each a leaf in double; or those of `other` again, in bf16."""

    def __init__(self, other=None, adapted=False, packed=False):
        self.list, self.other, self.adapted, self.packed = [], other, adapted, packed
        self.margins = []  # between the scores of a token's last expert and the next, layer by layer

    def make(self, module, name, *shape, mean=0.0, deviation=0.15):
        if self.other:
            other = self.other.list[len(self.list)][2]
            values = other.detach().to(torch.bfloat16).requires_grad_(other.requires_grad)
        else:
            values = (mean + deviation * torch.randn(*shape)).to(torch.bfloat16).double()
            if self.packed and name in LINEARS:
                values = packed_to_nf4(values)
            values.requires_grad_(not self.adapted or "adapter" in name)
        self.list.append((module, name, values))
        return values


def norm(s, x, weight, bias, layer_norm):
    if layer_norm:
        return F.layer_norm(x, x.shape[-1:], weight, bias, s.epsilon)
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + s.epsilon) * weight


def rotate(s, x):
    """(a, b) -> (a cos - b sin, a sin + b cos), a and b the halves of a head: [batch, heads, sequence, head_dim]."""
    half = x.shape[-1] // 2
    angle = torch.arange(s.sequence).double()[:, None] * 10000.0 ** (-torch.arange(half).double() / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1).type_as(x)


def rotate_pairs(s, x):
    """The same of neighbours: [batch, heads, sequence, rope_dim]."""
    pairs = x.unflatten(-1, (-1, 2))
    angle = torch.arange(s.sequence).double()[:, None] * 10000.0 ** (-torch.arange(pairs.shape[-2]).double() / pairs.shape[-2])
    a, b = pairs[..., 0], pairs[..., 1]
    return torch.stack([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1).flatten(-2).type_as(x)


LATENT_EPSILON = 1e-6  # of the norms of latents, whatever the model's is (DeepseekV3RMSNorm's default)


def latent_attention(s, p, module, inputs):
    """The result of the heads, before the output projection."""
    plain = s.head_dim - s.rope_dim

    def latent_norm(name, x):
        return norm(s._replace(epsilon=LATENT_EPSILON), x, p.make(module, name, x.shape[-1], mean=1.0), None, False)

    def linear(name, x, out):
        return F.linear(x, p.make(module, name, out, x.shape[-1]))

    of_queries = latent_norm("q latent norm", linear("q down", inputs, s.q_latent)) if s.q_latent else inputs
    q = split_heads(s, linear("queries", of_queries, s.heads * s.head_dim), s.heads)
    latent, shared = linear("kv down", inputs, s.kv_latent + s.rope_dim).split([s.kv_latent, s.rope_dim], -1)
    projected = linear("kv", latent_norm("kv latent norm", latent), s.heads * (plain + s.value_dim))
    k, v = projected.view(s.batch, s.sequence, s.heads, -1).transpose(1, 2).split([plain, s.value_dim], -1)
    q = torch.cat([q[..., :plain], rotate_pairs(s, q[..., plain:])], -1)
    shared = rotate_pairs(s, shared[:, None]).expand(-1, s.heads, -1, -1)
    scores = q @ torch.cat([k, shared], -1).transpose(-1, -2) / math.sqrt(s.head_dim)
    mask = torch.ones(s.sequence, s.sequence, dtype=torch.bool).tril()
    core = scores.masked_fill(~mask, -math.inf).softmax(-1) @ v
    return core.transpose(1, 2).reshape(s.batch, s.sequence, -1)


def check_latent(s):
    """Transformers' own attention, with the same weights, returns the same."""
    from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek
    config = deepseek.DeepseekV3Config(hidden_size=s.hidden, num_attention_heads=s.heads, num_key_value_heads=s.heads,
                                       q_lora_rank=s.q_latent or None, kv_lora_rank=s.kv_latent, qk_rope_head_dim=s.rope_dim,
                                       qk_nope_head_dim=s.head_dim - s.rope_dim, v_head_dim=s.value_dim, rope_theta=10000.0,
                                       max_position_embeddings=s.sequence, rope_scaling=None)
    config._attn_implementation = "eager"
    torch.manual_seed(1)
    theirs, p = deepseek.DeepseekV3Attention(config, 0).double(), Parameters()
    inputs = torch.randn(s.batch, s.sequence, s.hidden).double()
    ours = F.linear(latent_attention(s, p, 1, inputs), p.make(1, "output", s.hidden, s.heads * s.value_dim))
    names = {"q down": "q_a_proj", "q latent norm": "q_a_layernorm", "queries": "q_b_proj" if s.q_latent else "q_proj",
             "kv down": "kv_a_proj_with_mqa", "kv latent norm": "kv_a_layernorm", "kv": "kv_b_proj", "output": "o_proj"}
    for _, name, values in p.list:
        getattr(theirs, names[name]).weight.data = values.detach()
    positions = torch.arange(s.sequence)[None]
    turns_by = deepseek.DeepseekV3RotaryEmbedding(config)(inputs, positions)
    mask = torch.full((s.sequence, s.sequence), -math.inf).double().triu(1)[None, None]
    apart = (theirs(inputs, turns_by, mask)[0] - ours).abs().max().item() / ours.abs().max().item()
    assert apart < 1e-6, apart  # their cosines are floats


def limit_to_groups(s, p, scores, affinities):
    """Scores, of experts of other groups than a token's best ones least."""
    softmax = s.router == "softmax"
    each = (scores if softmax else affinities).view(len(scores), s.groups, -1)
    of_groups = each.max(-1).values if softmax else each.topk(2, -1).values.sum(-1)
    best = of_groups.topk(s.groups_chosen + 1, -1)
    p.margins.append((best.values[:, -2] - best.values[:, -1]).min().item())
    taken = torch.zeros_like(of_groups, dtype=torch.bool).scatter(1, best.indices[:, :-1], True)
    return scores.masked_fill(~taken.repeat_interleave(scores.shape[1] // s.groups, 1), -math.inf)


def check_groups(s):
    """Chosen experts and their weights against Transformers' own routers of DeepSeek-V2 and V3."""
    from transformers.models.deepseek_v2 import modeling_deepseek_v2 as v2
    from transformers.models.deepseek_v3 import modeling_deepseek_v3 as v3
    words = dict(hidden_size=s.hidden, num_attention_heads=s.heads, n_routed_experts=s.experts, num_experts_per_tok=s.chosen, n_group=s.groups,
                 topk_group=s.groups_chosen, routed_scaling_factor=s.scale, norm_topk_prob=s.normalise)
    torch.manual_seed(1)
    rows, p = torch.randn(64, s.hidden), Parameters()
    weight = p.make(1, "router", s.experts, s.hidden).float().detach()
    scores = F.linear(rows, weight)
    affinities = scores.softmax(-1) if s.router == "softmax" else scores.sigmoid()
    ours = limit_to_groups(s, p, scores, affinities).topk(s.chosen, -1).indices
    if s.router == "softmax":
        router = v2.DeepseekV2TopkRouter(v2.DeepseekV2Config(topk_method="group_limited_greedy", **words))
    else:
        router = v3.DeepseekV3TopkRouter(v3.DeepseekV3Config(**words))
    router.weight.data = weight
    _, weights, theirs = router(rows)
    assert (theirs.sort(-1).values == ours.sort(-1).values).all()
    of_ours = affinities.gather(-1, theirs)
    of_ours = (of_ours / of_ours.sum(-1, keepdim=True) if s.normalise else of_ours) * s.scale
    assert (of_ours - weights).abs().max() < 1e-6


def clamped_glu(gate, value):
    gate, value = gate.clamp(max=7), value.clamp(-7, 7)
    return gate * (1.702 * gate).sigmoid() * (value + 1)


def with_sinks(scores, sinks):
    """A score more of each query, by head, behind those of keys [batch, heads, queries, keys]."""
    return torch.cat([scores, sinks[None, :, None, None].expand(*scores.shape[:3], 1)], -1)


def check_gpt_oss():
    """What is clamped and what sinks leave against Transformers' own modules."""
    from transformers.models.gpt_oss import modeling_gpt_oss as theirs
    torch.manual_seed(1)
    config = theirs.GptOssConfig(hidden_size=16, intermediate_size=24, num_local_experts=4, num_experts_per_tok=2,
                                 num_attention_heads=4, num_key_value_heads=4, head_dim=8, num_hidden_layers=1)
    experts = theirs.GptOssExperts(config).double()
    gate, value = 4 * torch.randn(5, 24).double(), 4 * torch.randn(5, 24).double()
    assert torch.equal(experts._apply_gate(torch.stack([gate, value], -1).flatten(-2)), clamped_glu(gate, value))
    attention = theirs.GptOssAttention(config, 0).double()
    attention.sinks.data = torch.randn(4).double()
    q, k, v = (torch.randn(2, 4, 6, 8).double() for _ in range(3))
    mask = torch.full((6, 6), -math.inf).double().triu(1)
    core, _ = theirs.eager_attention_forward(attention, q, k, v, mask[None, None], 8 ** -0.5)
    ours = with_sinks(q @ k.transpose(-1, -2) * 8 ** -0.5 + mask, attention.sinks).softmax(-1)[..., :6] @ v
    assert (core.transpose(1, 2) - ours).abs().max() < 1e-12


def check_llama4(s):
    """Layers of both kinds, at weights drawn here, are what Transformers' Llama4TextDecoderLayer makes of them, every fourth
    of which has no rope, whatever older versions' config says."""
    s = s._replace(pattern=4)
    from transformers.models.llama4.configuration_llama4 import Llama4TextConfig
    from transformers.models.llama4.modeling_llama4 import Llama4TextDecoderLayer, Llama4TextRotaryEmbedding

    config = Llama4TextConfig(
        hidden_size=s.hidden, intermediate_size=s.expert_ffn, intermediate_size_mlp=s.ffn, num_hidden_layers=s.pattern,
        num_attention_heads=s.heads, num_key_value_heads=s.kv_heads, head_dim=s.head_dim, num_local_experts=s.experts,
        num_experts_per_tok=s.chosen, interleave_moe_layer_step=1, no_rope_layer_interval=s.pattern, rms_norm_eps=s.epsilon,
        attention_chunk_size=s.window, use_qk_norm=True, attn_temperature_tuning=False, rope_theta=10000.0, vocab_size=s.vocab,
        attn_implementation="eager")
    torch.manual_seed(1)
    x = torch.randn(s.batch, s.sequence, s.hidden, dtype=torch.double)
    place = torch.arange(s.sequence)
    seen = torch.ones(s.sequence, s.sequence, dtype=torch.bool).tril()
    own = seen & (place[:, None] // s.window == place[None, :] // s.window)
    for layer in range(s.pattern):
        p, theirs = Parameters(), Llama4TextDecoderLayer(config, layer).double()
        wanted = block(s._replace(shared_ffn=s.expert_ffn), p, layer + 1, x)
        made = {name: values for _, name, values in p.list}
        heads = made["qkv"].split([s.heads * s.head_dim, s.kv_heads * s.head_dim, s.kv_heads * s.head_dim])
        # rope of neighbours there, of halves here: rows of queries and keys in that order
        order = torch.arange(s.head_dim).view(2, -1).T.flatten()
        q, k = (t.view(-1, s.head_dim, s.hidden)[:, order].reshape(t.shape) for t in heads[:2])
        gate, up = made["shared up"].split(s.expert_ffn)
        state = {"self_attn.q_proj": q, "self_attn.k_proj": k, "self_attn.v_proj": heads[2], "self_attn.o_proj": made["output"],
                 "input_layernorm": made["norm 1"], "post_attention_layernorm": made["norm 2"],
                 "feed_forward.router": made["router"], "feed_forward.shared_expert.gate_proj": gate,
                 "feed_forward.shared_expert.up_proj": up, "feed_forward.shared_expert.down_proj": made["shared down"]}
        state = {name + ".weight": values for name, values in state.items()}
        state["feed_forward.experts.gate_up_proj"] = made["up"].view(s.experts, -1, s.hidden).transpose(1, 2)
        state["feed_forward.experts.down_proj"] = made["down"].view(s.experts, s.hidden, -1).transpose(1, 2)
        theirs.load_state_dict(state)
        mask = torch.where(seen if (layer + 1) % s.pattern == 0 else own, 0.0, -math.inf).double()
        turn = Llama4TextRotaryEmbedding(config)(x, place[None])
        got = theirs(x, attention_mask=mask[None, None], position_embeddings=turn)
        got = got[0] if isinstance(got, tuple) else got
        assert (got - wanted).norm() < 1e-6 * wanted.norm(), (layer, (got - wanted).norm())


def cap(x, at):
    return at * torch.tanh(x / at)


def rms_weight(s, weight):
    return 1 + weight if s.gemma else weight


def turns(s):
    return (not s.gpt and not s.alibi) if s.rope is None else s.rope


def split_heads(s, x, heads):
    return x.view(s.batch, s.sequence, heads, s.head_dim).transpose(1, 2)


def block(s, p, module, x):
    width, kv_width, gpt = s.heads * s.head_dim, s.kv_heads * s.head_dim, s.gpt
    biases = (LINEARS if gpt else ()) if s.biases is None else s.biases
    biases = ("qkv", "output") if s.gpt_oss else biases

    def adapters(name, inputs, result):
        parts = {"qkv": (("q", width), ("k", kv_width), ("v", kv_width)), "output": (("output", s.hidden),),
                 "up": (("up", s.ffn),) if gpt else (("gate", s.ffn), ("up", s.ffn)), "down": (("down", s.hidden),)}[name]
        chosen, at = [part for part in parts if part[0] in s.targets], s.layers + 1 + module
        if not chosen:
            return result
        a = p.make(at, name + " adapter A", s.rank * len(chosen), inputs.shape[-1]).split(s.rank)
        b = p.make(at, name + " adapter B", sum(rows for _, rows in chosen), s.rank).split([rows for _, rows in chosen])
        added = {part: F.linear(F.linear(inputs, low), wide) * (s.alpha / s.rank)
                 for (part, _), low, wide in zip(chosen, a, b)}
        pieces = result.split([rows for _, rows in parts], -1)
        return torch.cat([piece + added[part] if part in added else piece for piece, (part, _) in zip(pieces, parts)], -1)

    def linear(name, inputs, out):
        weight = p.make(module, name, out, inputs.shape[-1])
        result = F.linear(inputs, weight, p.make(module, name + " bias", out) if name in biases else None)
        return adapters(name, inputs, result) if s.rank else result

    def normed(name, inputs):
        weight = rms_weight(s, p.make(module, name, s.hidden, mean=0.0 if s.gemma else 1.0))
        return norm(s, inputs, weight, p.make(module, name + " bias", s.hidden) if gpt else None, gpt)

    def before(name, inputs):
        return normed(name, inputs) if s.norms != "after" else inputs

    def after(name, returned):
        return normed(name, returned) if s.norms != "before" else returned

    def attention(inputs):
        if s.kv_latent:
            return linear("output", latent_attention(s, p, module, inputs), s.hidden)
        qkv = linear("qkv", inputs, width + 2 * kv_width)
        q, k, v = qkv.split([width, kv_width, kv_width], -1)
        if s.wide:
            weight = p.make(module, "q and k norms", width + kv_width, mean=1.0)
            q, k = (norm(s, t, w, None, False) for t, w in zip((q, k), weight.split([width, kv_width])))
        q, k, v = split_heads(s, q, s.heads), split_heads(s, k, s.kv_heads), split_heads(s, v, s.kv_heads)
        sees_all = s.pattern and module % s.pattern == 0
        straight = s.chunks and sees_all
        if straight:
            pass
        elif s.qk_norm and s.unweighted:
            q, k = (norm(s, t, 1, None, False) for t in (q, k))
        elif s.qk_norm:
            weight = rms_weight(s, p.make(module, "q and k norms", 2 * s.head_dim, mean=0.0 if s.gemma else 1.0))
            q, k = (norm(s, t, w, None, False) for t, w in zip((q, k), weight.split(s.head_dim)))
        if turns(s) and not straight:
            q, k = rotate(s, q), rotate(s, k)
        k, v = (t.repeat_interleave(s.heads // s.kv_heads, 1) for t in (k, v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(s.head_dim)
        if s.gemma:
            scores = cap(scores, ATTENTION_CAP)
        if s.alibi:
            n = 2 ** int(math.log2(s.heads))
            slopes = [2 ** (-8 * (h + 1) / n) for h in range(n)] + [2 ** (-4 * (2 * h + 1) / n) for h in range(s.heads - n)]
            place = torch.arange(s.sequence).double()
            distance = place[None, :] - place[:, None]
            scores = scores + (torch.tensor(slopes).double()[:, None, None] * distance).type_as(scores)
        mask = torch.ones(s.sequence, s.sequence, dtype=torch.bool).tril()
        if s.window and not sees_all:
            place = torch.arange(s.sequence) // s.window
            mask = mask & (place[:, None] == place[None, :]) if s.chunks else mask.triu(1 - s.window)
        scores = scores.masked_fill(~mask, -math.inf)
        if s.gpt_oss:
            scores = with_sinks(scores, p.make(module, "attention sinks", s.heads, deviation=1.0))
        core = scores.softmax(-1)[..., :s.sequence] @ v
        return linear("output", core.transpose(1, 2).reshape(s.batch, s.sequence, width), s.hidden)

    def mlp(inputs):
        up = linear("up", inputs, s.ffn if gpt else 2 * s.ffn)
        if gpt:
            product = F.gelu(up, approximate="tanh")
        else:
            gate, value = up.split(s.ffn, -1)
            product = (F.gelu(gate, approximate="tanh") if s.gemma else F.silu(gate)) * value
        return linear("down", product, s.hidden)

    def glu(up, width):
        gate, value = up.split(width, -1)
        return clamped_glu(gate, value) if s.gpt_oss else F.silu(gate) * value

    def experts(inputs):
        rows = inputs.reshape(-1, s.hidden)
        scores = F.linear(rows, p.make(module, "router", s.experts, s.hidden, deviation=0.5),
                          p.make(module, "router bias", s.experts) if s.gpt_oss else None)
        all_affinities = scores.float() if scores.dtype == torch.bfloat16 else scores
        all_affinities = all_affinities.softmax(-1) if s.router == "softmax" else all_affinities.sigmoid()
        choices = limit_to_groups(s, p, scores.detach(), all_affinities.detach()) if s.groups else scores.detach()
        chosen = choices.topk(s.chosen, -1).indices
        best = choices.topk(s.chosen + 1, -1).values
        p.margins.append((best[:, -2] - best[:, -1]).min().item())
        weights = all_affinities.gather(-1, chosen)
        weights = (weights / weights.sum(-1, keepdim=True) if s.normalise else weights) * s.scale
        up = p.make(module, "up", s.experts * 2 * s.expert_ffn, s.hidden, deviation=1.0 if s.gpt_oss else 0.15)
        up = up.view(s.experts, 2 * s.expert_ffn, s.hidden)
        down = p.make(module, "down", s.experts * s.hidden, s.expert_ffn).view(s.experts, s.hidden, s.expert_ffn)
        up_bias = down_bias = [None] * s.experts
        if s.gpt_oss:
            up_bias = p.make(module, "up bias", s.experts * 2 * s.expert_ffn).view(s.experts, -1)
            down_bias = p.make(module, "down bias", s.experts * s.hidden).view(s.experts, -1)
        result = torch.zeros_like(rows)
        for e in range(s.experts):
            token, choice = (chosen == e).nonzero(as_tuple=True)
            weight = weights[token, choice].type_as(rows)[:, None]
            read = rows[token] * weight if s.on_input else rows[token]
            returned = F.linear(glu(F.linear(read, up[e], up_bias[e]), s.expert_ffn), down[e], down_bias[e])
            result = result.index_add(0, token, returned if s.on_input else returned * weight)
        if s.shared_ffn:
            shared = F.linear(rows, p.make(module, "shared up", 2 * s.shared_ffn, s.hidden))
            shared = F.linear(glu(shared, s.shared_ffn), p.make(module, "shared down", s.hidden, s.shared_ffn))
            if s.shared_gate:
                shared = shared * F.linear(rows, p.make(module, "shared expert gate", 1, s.hidden)).sigmoid()
            result = result + shared
        return result.view(inputs.shape)

    first = before("norm 1", x)
    if s.parallel:
        return x + attention(first) + mlp(first if s.parallel == 1 else before("norm 2", x))
    x = x + after("norm after attention", attention(first))
    return x + after("norm after MLP", (experts if s.experts and module > s.dense else mlp)(before("norm 2", x)))


def loss_of(s, p, tokens, targets):
    """The loss; the logits in what the model computes in, their loss wider."""
    table = p.make(0, "embedding", s.vocab, s.hidden)
    x = table[tokens]
    if s.norms == "both":
        x = x * math.sqrt(s.hidden)
    if s.gpt and not turns(s) and not s.alibi:
        x = x + p.make(0, "position", s.sequence, s.hidden)
    if s.gpt and s.alibi:
        x = norm(s, x, p.make(0, "embedding norm", s.hidden, mean=1.0), p.make(0, "embedding norm bias", s.hidden), True)
    for layer in range(s.layers):
        x = block(s, p, layer + 1, x)
    weight = rms_weight(s, p.make(s.layers + 1, "final norm", s.hidden, mean=0.0 if s.gemma else 1.0))
    x = norm(s, x, weight, p.make(s.layers + 1, "final norm bias", s.hidden) if s.gpt else None, s.gpt)
    head = table if s.tied else p.make(s.layers + 1, "head", s.vocab, s.hidden)
    logits = x @ head.T
    if s.head_bias:
        logits = logits + p.make(s.layers + 1, "head bias", s.vocab)
    logits = logits.double()
    if s.gemma:
        logits = cap(logits, FINAL_CAP)
    return F.cross_entropy(logits.view(-1, s.vocab), targets.view(-1))


def with_gradients(s, p, tokens, targets):
    loss = loss_of(s, p, tokens, targets)
    loss.backward()
    return loss.item()


# Scores of experts that bf16 rounds by less than they differ, or its error would be that of other choices.
MARGIN = 0.04


def make(name, s):
    if __name__ == "__main__" and sys.argv[1:] and name not in sys.argv[1:]:
        return None
    for seed in itertools.count(1):
        torch.manual_seed(seed)
        tokens = torch.randint(s.vocab, (s.batch, s.sequence))
        targets = torch.randint(s.vocab, (s.batch, s.sequence))
        p = Parameters(adapted=s.rank > 0, packed=s.packed)
        loss = with_gradients(s, p, tokens, targets)
        if all(margin > MARGIN for margin in p.margins):
            break
    rounded = Parameters(p)
    loss_bf16 = with_gradients(s, rounded, tokens, targets)
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name + ".golden")
    with open(path, "wb") as file:
        file.write(f"golden 2 loss {loss:.17g} bf16 {loss_bf16:.17g}\n".encode())
        for words, values in (("tokens", tokens), ("targets", targets)):
            file.write(f"{words} {' '.join(str(v) for v in values.flatten().tolist())}\n".encode())
        for (module, tensor, values), (_, _, bf16) in zip(p.list, rounded.list):
            rows, columns = (1, values.shape[0]) if values.dim() == 1 else values.shape
            if not values.requires_grad:
                file.write(f"frozen {module} {rows} {columns} 0 {tensor}\n".encode())
                file.write(values.float().numpy().astype("<f4").tobytes())
                continue
            apart = ((bf16.grad.double() - values.grad).norm() / values.grad.norm()).item()
            file.write(f"tensor {module} {rows} {columns} {apart:.3g} {tensor}\n".encode())
            for numbers in (values.detach(), values.grad):
                file.write(numbers.float().numpy().astype("<f4").tobytes())
        file.write(b"end\n")
    return p, tokens, targets


# Of a size that GPUs' fused attention takes, and of widths that fp8 does: what make_steps.py trains.
TRAINED = Shape(128, 2, 101, 64, 2, 1, 32, 96, 2, gpt=False, tied=False)
ADAPTED = TRAINED._replace(rank=8, alpha=16, targets=TARGETS)
BIASED = TRAINED._replace(layers=1, gpt=True)
# Small enough for two hundred steps.
FOLLOWED = Shape(32, 4, 53, 32, 2, 1, 16, 48, 1, gpt=False, tied=False)

if __name__ == "__main__":
    # A vocabulary of 50 or 101 makes rows of logits that do not begin at multiples of 16 bytes.
    SMALL = Shape(8, 2, 50, 16, 2, 2, 8, 40, 2, gpt=False, tied=False)
    make("adapted", ADAPTED)
    make("adapted_packed", ADAPTED._replace(packed=True))
    make("adapted_some", SMALL._replace(kv_heads=1, qk_norm=True, rank=8, alpha=8, targets=("q", "v", "up")))
    make("adapted_late", SMALL._replace(gpt=True, tied=True, rank=8, alpha=8, targets=("down",)))
    make("adapted_parallel", SMALL._replace(gpt=True, parallel=1, rope=True, biases=("up", "down"), rank=8, alpha=4,
                                            targets=("k", "output", "up")))
    make("llama_gqa", SMALL._replace(kv_heads=1))
    make("llama_tied", SMALL._replace(tied=True))
    make("qwen3", SMALL._replace(kv_heads=1, qk_norm=True))
    make("qk_norm_unweighted", SMALL._replace(kv_heads=1, qk_norm=True, unweighted=True))
    make("windows", SMALL._replace(kv_heads=1, window=3, pattern=2))
    make("gemma", SMALL._replace(kv_heads=1, qk_norm=True, gemma=True))
    make("gpt2", SMALL._replace(tied=True, gpt=True))
    GPT_J = SMALL._replace(gpt=True, rope=True, biases=("up", "down"), parallel=1, head_bias=True)
    make("gpt_j", GPT_J)
    # Three heads, of which the last has a slope between those of a power of two
    make("bloom", SMALL._replace(hidden=24, heads=3, kv_heads=3, gpt=True, tied=True, alibi=True))
    make("alibi", SMALL._replace(alibi=True))
    make("falcon", GPT_J._replace(kv_heads=1, biases=(), tied=True, head_bias=False))
    make("gpt_neox", GPT_J._replace(biases=None, parallel=2, head_bias=False))
    # Experts: OLMoE's, Qwen2-MoE's, Mixtral's with GQA, and as DeepSeek-V3's affinities are
    MIXTURE = SMALL._replace(kv_heads=1, experts=5, chosen=2, expert_ffn=24)
    make("experts", MIXTURE)
    make("experts_shared", MIXTURE._replace(shared_ffn=32, shared_gate=True, tied=True))
    make("experts_norm", MIXTURE._replace(experts=4, normalise=True, qk_norm=True))
    make("experts_sigmoid", MIXTURE._replace(shared_ffn=16, router="sigmoid", normalise=True, scale=2.5))
    make("experts_late", MIXTURE._replace(layers=3, dense=1, shared_ffn=16, vocab=23))
    # Experts of some groups alone: DeepSeek-V3's, and V2's
    GROUPS = MIXTURE._replace(experts=8, groups=4, groups_chosen=2, scale=2.5, router="sigmoid", normalise=True)
    for groups in (GROUPS, GROUPS._replace(router="softmax", normalise=False)):
        check_groups(groups)
    make("experts_groups", GROUPS)
    make("experts_groups_softmax", GROUPS._replace(router="softmax", normalise=False, groups_chosen=3, shared_ffn=16))
    check_gpt_oss()
    make("gpt_oss", MIXTURE._replace(normalise=True, window=3, pattern=2, gpt_oss=True))
    # Chunks of 4 of 8 tokens, every second of four layers without rope; of experts one a token, beside a shared one
    LLAMA_4 = MIXTURE._replace(layers=4, experts=3, chosen=1, shared_ffn=16, router="sigmoid", on_input=True, qk_norm=True,
                               unweighted=True, window=4, pattern=2, chunks=True)
    check_llama4(LLAMA_4)
    make("llama_4", LLAMA_4)
    # Latent attention: queries from a latent and not, values narrower than keys and not
    LATENT = SMALL._replace(head_dim=24, q_latent=24, kv_latent=16, rope_dim=8, value_dim=16)
    DIRECT = LATENT._replace(q_latent=0, rope_dim=16, value_dim=24, tied=True)
    for latent in (LATENT, DIRECT):
        check_latent(latent)
    make("latent", LATENT)
    make("latent_direct", DIRECT)
    make("latent_experts", LATENT._replace(q_latent=0, experts=5, chosen=2, expert_ffn=24, shared_ffn=16, router="sigmoid",
                                           normalise=True, scale=2.5))
    # Widths of heads and of the MLP whose rows in 16 bits begin at no multiple of 16 bytes (open-llama-3b, stories-260k)
    make("odd_widths", SMALL._replace(kv_heads=1, hidden=24, head_dim=12, ffn=44))
    make("olmo2", SMALL._replace(kv_heads=1, norms="after", wide=True))
    # Hidden 24, whose root is no number that bf16 holds; an epsilon that shows.
    make("gemma2", SMALL._replace(kv_heads=1, hidden=24, norms="both", gemma=True, tied=True, window=3, pattern=2,
                                  epsilon=1e-3))
    # Of a size that GPUs' fused attention takes.
    make("llama_wide", Shape(128, 2, 101, 64, 1, 1, 64, 88, 1, gpt=False, tied=False))
    make("trained", TRAINED)
    make("biased", BIASED)
    make("followed", FOLLOWED)
