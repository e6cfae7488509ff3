#include "closed/block_work.h"

#include "closed/activations.h"
#include "closed/closed_form_hooks.h"
#include "net/layer_kind.h"

/* Notation of the comments: h hidden, q = d_q, kv = d_kv, f = ffn, w bytes of the compute dtype, p bytes of the
 * residual stream (4 under autocast: embedding and residual adds stay fp32; else w).
 *
 * Checked against kernel lists of PyTorch 2.11 on one H200 (LLaMA 1.3B, 8192 tokens; GPT-2 124M): memory-bound kernels
 * outside optimizer, loss and weight casts took 71.6 ms eager and 18.3 ms compiled for the LLaMA under autocast, which
 * these counts turn into 2.5 and 2.9 TB/s; 60.5 and 16.0 ms in pure bf16: 2.4 and 2.7 TB/s; GPT-2 2.2 and 3.3 TB/s. */

/* torchtitan recomputes the even-numbered of wq, wk, wv, wo, w1, w3, w2: wk, wo, w3 (internals of its op-level
 * checkpointing); fused projections shift that order to wqkv, wo, w13, w2: wo and w2 are recomputed. */
static void list_matmuls(const struct dtp_layer_kind *block, bool packed, struct dtp_block_work *work)
{
    work->matmul_count = block->matrices;
    for (int i = 0; i < block->matrices; i++) /* ours, which is packed, keeps every matmul's result */
        work->matmul[i] = (struct dtp_weight_matmul){(double)block->matrix[i].out, (double)block->matrix[i].in, 1,
                                                     !packed && i % 2 == 1};
}

/* Norms of a block that read the residual stream. */
static double stream_norms(const struct dtp_layer_kind *block)
{
    return __builtin_popcount(block->vectors & (UINT32_C(1) << DTP_VECTOR_NORM1 | UINT32_C(1) << DTP_VECTOR_NORM2));
}

/* Each pointwise operation is a kernel: it reads its inputs and writes its output whole. */
static void count_eager(const struct dtp_transformer *t, const struct dtp_plan *plan,
                        const struct dtp_layer_kind *block, struct dtp_block_work *work)
{
    double h = (double)t->hidden, f = (double)t->ffn, w = dtp_plan_compute_bytes(plan);
    double q = (double)(t->heads * t->head_dim), kv = (double)(t->kv_heads * t->head_dim);
    bool autocast = dtp_plan_autocast(plan), gated = dtp_activation_is_gated(t->activation);
    double p = autocast ? 4 : w;
    double qkv_linears = plan->fused_qkv ? 1 : 3, up_linears = gated && !plan->fused_gate_up ? 2 : 1;
    double casts = autocast ? (4 + w) * h * (qkv_linears + up_linears) : 0; /* fp32 norm output -> linear input */
    /* RoPE per element of q and k: to fp32, 4 half-width products, sum, difference, cat, back (48 B forward, 52 with
     * the gradient's accumulation); the usual forms (complex product, rotate-half in bf16) move about 20 B. */
    bool rope = t->position == DTP_POSITION_ROPE;
    double rope_forward = rope ? (plan->rope_fp32 ? 48 : 10 * w) : 0;
    double rope_backward = rope ? (plan->rope_fp32 ? 52 : 10 * w) : 0;
    double n = stream_norms(block), biases = (double)dtp_layer_bias_elements(block);
    /* a sum of two branches adds these first */
    double norms = n * 2 * p * h, adds = block->parallel ? (2 * p + 4 * w) * h : 2 * (2 * p + w) * h;
    double qk_norm = t->qk_norm ? 2 * w * (q + kv) : 0;
    double activation = gated ? 5 * w * f : 2 * w * f;                            /* silu 2, product 3 | gelu 2 */
    double after = block->norms_after ? 2 : 0, cast = autocast ? (4 + w) * h : 0; /* norms of what branches return */
    norms += after * (2 * p * h + cast) + after * (p - w) * h;
    work->forward_bytes_per_token = norms + casts + rope_forward * (q + kv) + qk_norm + adds + activation;

    double activation_backward = gated ? 9 * w * f + (plan->fused_gate_up ? 4 * w * f : 0) : 3 * w * f;
    double norms_backward =
        n * (3 * p + 2 * p + (autocast ? 4 + w : 0)) * h; /* input gradient, weight gradient, cast */
    double residual_adds = (n > 0 ? n : 2) * 3 * p * h + after * (5 * p * h + cast);
    double input_gradient_sums = (qkv_linears - 1 + up_linears - 1) * 3 * w * h;
    double qkv_cat = plan->fused_qkv ? 2 * w * (q + 2 * kv) : 0;
    double residual_casts = (block->norms_after ? block->norms_before ? 0 : 2 : block->parallel ? 1 : 2) * cast;
    work->backward_bytes_per_token = activation_backward + norms_backward + residual_adds + input_gradient_sums +
                                     qkv_cat + residual_casts + rope_backward * (q + kv) + 2.5 * qk_norm + biases * w;
    work->forward_kernels = 12 + (rope ? (plan->rope_fp32 ? 20 : 10) : 0) + (gated ? 2 : 1) + (autocast ? 6 : 0);
    work->backward_kernels =
        26 + (rope ? (plan->rope_fp32 ? 24 : 12) : 0) + (gated ? 4 : 1) + (autocast ? 8 : 0) + (biases > 0 ? 4 : 0);
}

/* One pass between matmuls: a tensor is read or written once per pass. */
static void count_fused(const struct dtp_transformer *t, const struct dtp_plan *plan,
                        const struct dtp_layer_kind *block, struct dtp_block_work *work)
{
    double h = (double)t->hidden / (plan->sequence_shards > 1 ? plan->sequence_shards : 1), f = (double)t->ffn,
           w = dtp_plan_compute_bytes(plan);
    double q = (double)(t->heads * t->head_dim), kv = (double)(t->kv_heads * t->head_dim);
    double p = dtp_plan_autocast(plan) ? 4 : w;
    bool gated = dtp_activation_is_gated(t->activation), rope = t->position == DTP_POSITION_ROPE;
    double n = stream_norms(block), biases = (double)dtp_layer_bias_elements(block);
    double after = block->norms_after ? 2 : 0, bare = block->norms_before ? 0 : 2; /* sums behind which no norm adds */
    double norm1 = (p + w) * h, add_norm2 = (block->parallel ? n - 1 : 2) * (p + w) * h;
    double add = (2 * p + (block->parallel ? 2 : 1) * w) * h;
    double rotate = rope ? 2 * w * (q + kv) : 0, qk_norm = t->qk_norm ? 2 * w * (q + kv) : 0;
    double transposes = 2 * w * q; /* attention returns heads before tokens */
    work->forward_bytes_per_token = norm1 + add_norm2 + add + rotate + qk_norm + (gated ? 3 : 2) * w * f;
    work->backward_bytes_per_token = (n * (w + 3 * p) + after * (p + 2 * w) + bare * (2 * p + w)) * h +
                                     (rope ? 2 * w * (q + 2 * kv) : 0) + transposes + 2.5 * qk_norm +
                                     (gated ? 6 : 4) * w * f + biases * w;
    work->forward_kernels = 12;
    work->backward_kernels = 26 + (biases > 0 ? 4 : 0);
    work->fused = true;
}

static void count_kernels(const struct dtp_transformer *t, const struct dtp_kernel_counts *kernels, bool biased,
                          struct dtp_block_work *work)
{
    bool rope = t->position == DTP_POSITION_ROPE;
    work->forward_kernels = kernels->forward + (rope ? kernels->rotary_forward : 0);
    work->backward_kernels =
        kernels->backward + (rope ? kernels->rotary_backward : 0) + (biased ? kernels->biases_backward : 0);
    work->root_kernels = kernels->root;
}

struct dtp_block_work dtp_block_work(const struct dtp_transformer *transformer, const struct dtp_plan *plan)
{
    struct dtp_block_work work = {.matmul_count = 0};
    struct dtp_layer_kind block;
    bool fused = plan->compile || plan->runtime->fused_kernels, packed = plan->runtime->packs_matrices;
    dtp_layer_kind_of(transformer, plan->fused_qkv || packed, plan->fused_gate_up || packed, &block);
    double biases = (double)dtp_layer_bias_elements(&block);
    list_matmuls(&block, packed, &work);
    count_eager(transformer, plan, &block, &work);
    work.root_kernels = 40;
    if (fused)
        count_fused(transformer, plan, &block, &work);
    if (plan->runtime->closed->kernels)
        count_kernels(transformer, plan->runtime->closed->kernels, biases > 0, &work);
    return work;
}

double dtp_loss_bytes_per_token(const struct dtp_transformer *transformer, const struct dtp_plan *plan)
{
    double w = dtp_plan_compute_bytes(plan), vocab = (double)transformer->vocab;
    if (dtp_plan_loss(plan) == DTP_LOSS_EAGER)
        /* logits.float(): w+4; log_softmax 4+4; its backward reads 4+4 writes 4; cast back 4+w */
        return vocab * (2 * (4 + w) + 8 + 12);
    return vocab * 4 * w; /* fused: read logits for max/sum and for the gradient, write the gradient, and read it */
}
