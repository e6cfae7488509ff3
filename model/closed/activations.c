#include "closed/activation_shape.h"

#include "base/bytes.h"
#include "closed/sharding.h"

/* Chunks of the head and loss under DTP_LOSS_CHUNKED: torchtitan's ChunkedLossWrapper default. */
#define LOSS_CHUNKS 8

/* One norm as input of matmuls: its result in the compute dtype (saved by the matmul for the weight gradient) and its
 * statistics. The norm's own input is counted where it is made. Fused RMSNorm (PyTorch >= 2.9); the composite one of
 * older versions keeps an fp32 copy as well. */
static uint64_t norm_saved(const struct dtp_activation_shape *s)
{
    return s->input * s->h + dtp_norm_statistics_bytes(s->t);
}

/* Attention from the q,k,v matmul to the input of the output matmul.
 * q, k, v as the core's backward reads them: RoPE makes new q and k, and v stays a view of the fused matmul's result,
 * which therefore lives as a whole (fused_qkv), while separate q and k results are dropped. qk_norm saves its inputs.
 * Where RoPE ends in a cat (rope_fp32), q is contiguous as [B, heads, s, d_h], the core's result follows q, and putting
 * the heads back beside each other copies it; the usual forms rotate in [B, s, heads, d_h] layout and need no copy. */
static uint64_t attention_saved(const struct dtp_activation_shape *s)
{
    uint64_t qk = s->c * (s->d_q + s->d_kv), v = s->c * s->d_kv, out = s->c * s->d_q;
    bool rotated = s->t->position == DTP_POSITION_ROPE;
    uint64_t saved = qk + v + out; /* q, k, v of the core, whichever buffers they are views of */
    if (s->input < s->c)
        saved += s->input * s->d_q; /* the output matmul's input is a cast of the core's result */
    if (rotated && s->plan->fused_qkv)
        saved += qk; /* the unrotated part of the fused buffer */
    if (s->t->qk_norm)
        saved += (rotated && s->plan->fused_qkv ? 0 : qk) + 4 * (s->t->heads + s->t->kv_heads);
    if (rotated && s->plan->rope_fp32 && s->plan->runtime->copies_heads)
        saved += out;
    return saved + dtp_core_state_bytes(s);
}

/* MLP between its norm and its end: what the activation function and the two matmuls around it save.
 * SwiGLU: gate and up (one buffer or two, 2f), silu(gate), their product. GELU: its input and its result. ReLU: only
 * its result. A compiler recomputes silu(gate) but not the product: that is an operand of the weight gradient's
 * matmul, and the partitioner does not recompute what would have to be written out again. */
static uint64_t mlp_saved(const struct dtp_activation_shape *s)
{
    switch (s->t->activation) {
    case DTP_SWIGLU: return s->c * s->f * (s->compiled ? 2 : 3) + s->input * s->f;
    case DTP_GELU: return (s->c + s->input) * s->f;
    case DTP_RELU: return (s->input < s->c ? s->c + s->input : s->c) * s->f;
    }
    return 0;
}

/* A compiler keeps the attention matmul's result [c h] instead of x2 = x + attention [e h] and adds again; under DDP it
 * cannot, because DDPOptimizer cuts the layer before the down matmul (its fp32 gradient fills the first bucket) and x2
 * crosses the cut to the last addition. */
static uint64_t middle(const struct dtp_activation_shape *s)
{
    bool added_again = s->compiled && !s->cut;
    return added_again ? s->c * s->h : s->e * s->h;
}

/* A layer that keeps everything:
 *   x [e h] | norm | q,k,v, core | x2 | norm | MLP */
static uint64_t layer_all(const struct dtp_activation_shape *s)
{
    return s->e * s->h + middle(s) + 2 * norm_saved(s) + attention_saved(s) + mlp_saved(s);
}

/* torchtitan's selective checkpointing: the input, the attention core's results, and every second matmul result,
 * counted from the first in order q,k,v,o,gate,up,down (or the fused ones). An eager cache keeps the last matmul's
 * result too, which backward never reads; a compiler drops it. */
static uint64_t selective_matmul_kept(const struct dtp_activation_shape *s)
{
    uint64_t widths[7], count = 0, kept = 0;
    if (s->plan->fused_qkv) {
        widths[count++] = s->d_q + 2 * s->d_kv;
    } else {
        widths[count++] = s->d_q;
        widths[count++] = s->d_kv;
        widths[count++] = s->d_kv;
    }
    widths[count++] = s->h;
    if (s->t->activation == DTP_SWIGLU && !s->plan->fused_gate_up)
        widths[count++] = s->f;
    widths[count++] = s->t->activation == DTP_SWIGLU && s->plan->fused_gate_up ? 2 * s->f : s->f;
    widths[count++] = s->h;
    for (uint64_t i = 0; i < count; i += 2)
        if (!(s->compiled && i == count - 1))
            kept += s->c * widths[i];
    uint64_t core = s->plan->attention == DTP_ATTENTION_MATH ? 0 : s->c * s->d_q + 4 * s->t->heads;
    return s->e * s->h + kept + core;
}

/* What a checkpointed layer keeps. Selective attention (Korthikanti 2022) recomputes the core: its probabilities or
 * log-sum-exp go, q, k, v and the core's result stay. */
static uint64_t layer_kept(const struct dtp_activation_shape *s)
{
    switch (s->plan->checkpointing) {
    case DTP_CHECKPOINT_NONE: return layer_all(s);
    case DTP_CHECKPOINT_FULL:
    case DTP_CHECKPOINT_EVERY_N: return s->e * s->h;
    case DTP_CHECKPOINT_SELECTIVE_ATTENTION: return layer_all(s) - dtp_core_state_bytes(s);
    case DTP_CHECKPOINT_SELECTIVE_MATMUL: return selective_matmul_kept(s);
    }
    return 0;
}

static uint64_t checkpoint_every(const struct dtp_activation_shape *s)
{
    switch (s->plan->checkpointing) {
    case DTP_CHECKPOINT_NONE: return 0;
    case DTP_CHECKPOINT_EVERY_N: return s->plan->checkpoint_every;
    case DTP_CHECKPOINT_FULL:
    case DTP_CHECKPOINT_SELECTIVE_ATTENTION:
    case DTP_CHECKPOINT_SELECTIVE_MATMUL: break;
    }
    return 1;
}

/* Head and loss, per token, c bytes a logit:
 *   eager   forward: logits c + fp32 copy 4 (none if c is 4) + log-softmax 4; backward: log-softmax 4, its gradient 4,
 *           the fp32 logits' gradient 4 = 12 V; then the cast gradient c
 *   fused   logits and their gradient: 2 c V
 *   chunked the same for one chunk of the tokens, and fp32 gradients of the hidden states (torch) */
static void count_loss(const struct dtp_activation_shape *s, struct dtp_activations *out)
{
    uint64_t vocab = s->t->vocab, chunk_vocab = (vocab + LOSS_CHUNKS - 1) / LOSS_CHUNKS;
    switch (dtp_plan_loss(s->plan)) {
    case DTP_LOSS_EAGER:
        out->logits = s->c * vocab;
        out->loss = 12 * vocab;
        out->logits_gradient = s->c * vocab;
        break;
    case DTP_LOSS_FUSED:
        out->logits = s->c * vocab;
        out->loss = 2 * s->c * vocab;
        out->logits_gradient = s->c * vocab;
        break;
    case DTP_LOSS_CHUNKED:
        out->logits = s->c * chunk_vocab;
        out->loss = 12 * chunk_vocab + 4 * s->h;
        out->logits_gradient = 4 * s->h; /* the hidden states' gradient, made with the loss */
        break;
    }
}

/* PyTorch's embedding backward sorts the tokens and sums runs of at most 10 equal ones in fp32 first:
 * (distinct tokens + tokens / 10) rows of h (Embedding.cu, embedding_backward_cuda_kernel). */
static uint64_t embedding_backward(const struct dtp_activation_shape *s)
{
    uint64_t tokens = dtp_bytes_product(s->plan->micro_batch, s->plan->sequence);
    uint64_t segments = tokens < s->t->vocab ? tokens : s->t->vocab;
    return dtp_bytes_product(4 * s->h, segments + tokens / 10);
}

void dtp_activations_count(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                           const struct dtp_plan *plan, struct dtp_activations *out)
{
    struct dtp_activation_shape s = dtp_activation_shape_of(transformer, cluster, plan);
    *out = (struct dtp_activations){.layer_all = layer_all(&s),
                                    .layer_norms = 2 * norm_saved(&s),
                                    .layer_attention = attention_saved(&s),
                                    .layer_mlp = mlp_saved(&s),
                                    .layer_input = s.e * s.h,
                                    .layer_kept = layer_kept(&s),
                                    .gradient = s.e * s.h,
                                    .norm_gradient = s.c * s.h,
                                    .head = s.c * s.h,
                                    .checkpoint_every = checkpoint_every(&s),
                                    .embedding_backward = embedding_backward(&s)};
    if (transformer->final_norm) /* the head's matmul stays in the compute dtype, fp8 or not */
        out->head += s.e * s.h + dtp_norm_statistics_bytes(transformer);
    if (transformer->embedding_norm)
        out->embedding = s.e * s.h + dtp_norm_statistics_bytes(transformer);
    count_loss(&s, out);
}
