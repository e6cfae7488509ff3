#include "closed/block_work.h"

#include "closed/activations.h"
#include "closed/adapted_work.h"
#include "closed/closed_form_hooks.h"
#include "closed/operator_bytes.h"
#include "closed/stage_launches.h"
#include "plan/fp8_casts.h"
#include "plan/gelu_chain.h"
#include "plan/graph_modules.h"
#include "plan/layer_tensors.h"
#include "plan/second_matmuls.h"
#include "plan/slice.h"
#include "cost/calibration.h"
#include "cost/op_cost.h"
#include "net/layer_kind.h"
#include "plan/norm_chain.h"

#include <math.h>

/* Notation of the comments: h hidden, q = d_q, kv = d_kv, f = ffn, w bytes of the compute dtype, p bytes of the
 * residual stream (4 under autocast: embedding and residual adds stay fp32; else w).
 *
 * Checked against kernel lists of PyTorch 2.11 on one H200 (LLaMA 1.3B, 8192 tokens; GPT-2 124M): memory-bound kernels
 * outside optimizer, loss and weight casts took 71.6 ms eager and 18.3 ms compiled for the LLaMA under autocast, which
 * these counts turn into 2.5 and 2.9 TB/s; 60.5 and 16.0 ms in pure bf16: 2.4 and 2.7 TB/s; GPT-2 2.2 and 3.3 TB/s. */

static void list_matmuls(const struct dtp_plan *plan, const struct dtp_layer_kind *block, bool packed, double received,
                         double parts, struct dtp_block_work *work)
{
    work->matmul_count = block->matrices;
    for (int i = 0; i < block->matrices; i++) { /* ours, which is packed, keeps every matmul's result */
        const struct dtp_layer_matrix *matrix = &block->matrix[i];
        double groups = (double)matrix->groups;
        double rows = matrix->expert     ? received * (double)block->experts_per_token / groups / plan->expert_shards
                      : matrix->own_rows ? 1 / parts
                                         : 1;
        bool sums =
            matrix->id == DTP_MATRIX_OUTPUT || matrix->id == DTP_MATRIX_DOWN || matrix->id == DTP_MATRIX_SHARED_DOWN;
        work->matmul[i] =
            (struct dtp_weight_matmul){.gathered = matrix->own_rows || parts <= 1      ? DTP_FP8_OPERAND_COUNT
                                                   : sums                              ? DTP_FP8_GRADIENT_ROWS
                                                   : matrix->rank && !plan->tp_overlap ? DTP_FP8_OPERAND_COUNT
                                                                                       : DTP_FP8_INPUT,
                                       .n = (double)matrix->out,
                                       .k = (double)matrix->in,
                                       .copies = groups,
                                       .rows = rows,
                                       .rank = matrix->folded ? 0 : (double)matrix->rank,
                                       .a_rows = (double)matrix->a_rows,
                                       .b_rows = (double)matrix->b_rows,
                                       .folded = matrix->folded ? (double)matrix->rank : 0,
                                       .magnitudes = matrix->magnitudes > 0,
                                       .frozen = matrix->frozen && !matrix->folded,
                                       .grouped = matrix->expert && !block->calls_experts,
                                       .expert = matrix->expert,
                                       .wide = matrix->wide,
                                       .recomputed = !packed && dtp_second_matmul_again(block, plan, i),
                                       .ends = i == block->matrices - 1 && !block->experts};
    }
}

/* ---- bytes of memory-bound kernels, operator by operator ----------------------------------------------------------
 */

static struct dtp_counted counted_of(const struct dtp_transformer *t, const struct dtp_plan *plan,
                                     const struct dtp_layer_kind *block)
{
    struct dtp_counted c = {
        .transformer = t, .plan = plan, .block = block, .h = (double)t->hidden, .f = (double)block->ffn};
    c.q = (double)(t->heads * t->head_dim), c.kv = (double)(t->kv_heads * t->head_dim);
    c.w = dtp_plan_compute_bytes(plan);
    c.autocast = dtp_plan_autocast(plan);
    c.p = dtp_plan_stream_bytes(plan), c.r = dtp_plan_result_bytes(plan);
    c.cast = c.autocast ? (4 + c.w) * c.h : 0;
    c.norm_cast = block->casts_norms ? (4 + c.w) * c.h : c.cast;
    return c;
}

static bool reads_stream(const struct dtp_layer_operator *op)
{
    return op->reads & DTP_LAYER_STREAM;
}

/* Projections that read what `op` does, as the runtime stores them; their biases. */
static double linears(const struct dtp_counted *c, const struct dtp_layer_operator *op)
{
    double count = 0;
    for (int i = 0; i < c->block->matrices; i++)
        count += op->makes >> c->block->matrix[i].result & 1 ? 1 : 0;
    return count;
}

static double bias_bytes(const struct dtp_counted *c, const struct dtp_layer_operator *op)
{
    double elements = 0;
    for (int i = 0; i < c->block->matrices; i++)
        if (op->makes >> c->block->matrix[i].result & 1 && c->block->matrix[i].bias)
            elements +=
                (double)(c->block->matrix[i].out * (c->block->matrix[i].groups > 1 ? c->block->experts_per_token : 1));
    return elements * c->w;
}

/* Of frozen ones, as adapters leave them, nothing is summed. */
static double bias_gradients(const struct dtp_counted *c, const struct dtp_layer_operator *op)
{
    return c->block->adapted ? 0 : bias_bytes(c, op);
}

/* Biases of experts, which are no part of their matmuls: rows of them and a sum, compiled one pass. */
static double expert_biases(const struct dtp_counted *c, const struct dtp_layer_operator *op)
{
    bool experts = op->makes & (DTP_TENSOR_BIT(GATE) | DTP_TENSOR_BIT(UP) | DTP_TENSOR_BIT(EXPERT_DOWN));
    return experts && c->block->experts ? (c->plan->compile ? 2 : 4) * bias_bytes(c, op) : 0;
}

/* Of experts whose rows are weighed: the second product's alone (lower_experts.c). */
static struct dtp_moved weighed_biases(const struct dtp_counted *c, const struct dtp_layer_operator *op)
{
    bool down = op->makes & DTP_TENSOR_BIT(EXPERT_DOWN);
    if (!down || bias_bytes(c, op) <= 0)
        return (struct dtp_moved){0, 0};
    double rows = (double)c->block->experts_per_token * c->h * dtp_received_rows(c);
    if (c->within)
        return (struct dtp_moved){0, rows * c->w};
    return (struct dtp_moved){rows * (2 * c->w + (dtp_plan_replays_all(c->plan) ? 28 : 24)), rows * (4 * c->w + 32)};
}

/* What lower_sinks.c derives. */
static struct dtp_moved sinks_moved(const struct dtp_counted *c, bool fused)
{
    double result = c->w * (double)c->block->d_core, heads = (double)c->block->heads;
    if (!c->block->sinks || c->block->sinks_inside)
        return (struct dtp_moved){0, 0};
    if (c->block->joins_sinks)
        return (struct dtp_moved){4 * result + (4 + 36 * c->w) * heads, 6 * result + (4 + 23 * c->w) * heads};
    return (struct dtp_moved){2 * result + (fused ? 4 : 20 + c->w) * heads, (fused ? 3 : 6) * result};
}

/* A branch's first projections: they read a norm or, without one, the stream. */
static bool begins_branch(const struct dtp_layer_operator *op)
{
    return op->kind == DTP_LAYER_OP_PROJECTION &&
           op->makes & (DTP_TENSOR_BIT(QKV) | DTP_TENSOR_BIT(Q_RAW) | DTP_TENSOR_BIT(UP) | DTP_TENSOR_BIT(Q_LATENT) |
                        DTP_TENSOR_BIT(KV_LATENT)) &&
           !(op->reads & (DTP_TENSOR_BIT(PERMUTED) | DTP_TENSOR_BIT(Q_LATENT_NORM)));
}

/* What lower_latent.c derives: norms of latents, that of kv with the rest of it beside in backward; heads of queries
 * and keys. */
static struct dtp_moved latent_moved(const struct dtp_counted *c, const struct dtp_layer_operator *op, bool fused)
{
    const struct dtp_layer_kind *b = c->block;
    bool q = op->makes & DTP_TENSOR_BIT(Q_LATENT_NORM), casts = c->autocast && !fused;
    double width = (double)(q ? b->q_latent : b->kv_latent), w = c->w, e = casts ? 4 : w;
    const double parts = b->routes_all ? 1 : c->parts;
    width /= parts;
    double join = !q && !fused ? 2 * w * (double)(b->kv_latent + b->rope_head_dim) / parts : 0;
    if (op->kind == DTP_LAYER_OP_LATENT_NORM)
        return (struct dtp_moved){(casts ? 2 * (w + 4) + 8 : 2 * w) * width,
                                  (fused ? 3 * w : 5 * e + (casts ? 2 * (4 + w) : 0)) * width + join};
    double turned = (double)(b->heads * b->rope_head_dim), shared = (double)b->rope_head_dim, value = (double)b->d_core;
    double projected = c->q - turned + value, rope = c->plan->rope_fp32 ? 48 : 10 * w;
    double rope_back = c->plan->rope_fp32 ? 52 : 10 * w;
    if (dtp_plan_turns_latents_eagerly(c->plan, b)) {
        rope = DTP_LATENT_TURN_PASSES * w, rope_back = DTP_LATENT_TURN_PASSES_BACK * w;
        fused = false;
    }
    double keys = fused ? 2 * c->q - turned + shared : 2 * c->q;
    double padded = b->pads_values ? w * (value + c->q) : 0; /* before the core, and of its gradient */
    double own = b->own_values && !b->pads_values ? 2 * w * value : padded;
    double forward = (fused ? 0 : rope * (turned + shared)) + w * (2 * c->q + keys) + own;
    double backward = (fused ? 0 : rope_back * (turned + shared)) + w * (2 * c->q + 2 * projected + turned + shared);
    return (struct dtp_moved){forward + (b->pads_values ? 2 * w * value : 0), backward + padded};
}

static double qk_norm_bytes(const struct dtp_counted *c)
{
    return c->block->qk_norm ? 2 * c->w * (c->q + c->kv) : 0;
}

/* RoPE per element of q and k: to fp32, 4 half-width products, sum, difference, cat, back (48 B forward, 52 with the
 * gradient's accumulation); the usual forms (complex product, rotate-half in bf16) move about 20 B. */
static struct dtp_moved eager_rotary(const struct dtp_counted *c)
{
    double forward = c->plan->rope_fp32 ? 48 : 10 * c->r, backward = c->plan->rope_fp32 ? 52 : 10 * c->r;
    double turned = c->block->rotary ? c->q + c->kv : 0, norm = qk_norm_bytes(c), norm_back = 2.5 * norm;
    double casts = c->r > c->w ? (c->r + c->w) * (c->q + 2 * c->kv) : 0;
    if (dtp_plan_chains_qk_norms(c->transformer, c->plan)) {
        struct dtp_norm_chain chain = dtp_norm_chain_of(c->transformer, c->plan, !c->block->adapted);
        norm = chain.forward * (c->q + c->kv), norm_back = chain.backward * (c->q + c->kv);
    }
    return (struct dtp_moved){forward * turned + norm + casts, backward * turned + norm_back + casts};
}

/* Of the stream: its gradient is made (3 p), the weight's beside it (2 p), and added to the stream's (3 p); what is
 * narrow is cast. Of what a branch returns: that is widened before, and its sum with the stream is wide. */
static struct dtp_moved eager_norm(const struct dtp_counted *c, const struct dtp_layer_operator *op)
{
    double forward = 2 * c->p * c->h, backward = (c->block->adapted ? 3 : 5) * c->p * c->h + c->cast;
    if (c->block->chains_norms && reads_stream(op)) {
        struct dtp_norm_chain chain = dtp_norm_chain_of(c->transformer, c->plan, !c->block->adapted);
        return (struct dtp_moved){chain.forward * c->h, (chain.backward + 3 * c->p) * c->h + c->cast};
    }
    if (!reads_stream(op))
        return (struct dtp_moved){forward + c->cast + (c->p - c->w) * c->h, backward};
    return (struct dtp_moved){forward, backward + (c->plan->runtime->fused_norms ? 1 : 3) * c->p * c->h};
}

/* A branch's first ones cast what they read, each for itself, and their input gradients, as wide, are added up; without
 * a norm the sum is added to the stream's gradient. */
static struct dtp_moved eager_projection(const struct dtp_counted *c, const struct dtp_layer_operator *op)
{
    bool second = op->makes & DTP_TENSOR_BIT(KV_LATENT); /* queries' latent reads the same */
    double sum = c->norm_cast > 0 ? c->norm_cast + 3 * 4 * c->h : 3 * c->r * c->h;
    double sums = begins_branch(op) ? (linears(c, op) - (second ? 0 : 1)) * sum : 0;
    double bare = begins_branch(op) && !c->block->norms_before ? 3 * c->p * c->h : 0;
    return (struct dtp_moved){(begins_branch(op) ? linears(c, op) * c->norm_cast : 0) + expert_biases(c, op),
                              sums + bare + bias_gradients(c, op)};
}

/* silu 2, product 3 | gelu 2; backward of a packed gate and up puts both together again. relu 2, square 2; backward of
 * the square (PyTorch's pow_backward: pow 2, times the exponent 2, times the gradient 3), of relu 3. */
static struct dtp_moved eager_activation(const struct dtp_counted *c, const struct dtp_layer_operator *op)
{
    bool shared = op->makes & DTP_TENSOR_BIT(SHARED_PRODUCT);
    double row = c->r * (shared ? (double)c->block->shared_ffn : c->f * dtp_received_rows(c)),
           cat = c->block->packs_up ? 4 : 0;
    struct dtp_gelu_chain chain = dtp_gelu_chain_of(c->plan, c->block->widens_gelu);
    if (c->block->chains_gelu)
        return (struct dtp_moved){chain.forward * c->f, chain.backward * c->f};
    if (c->block->clamps)
        return (struct dtp_moved){16 * row, 40 * row};
    if (c->block->squares)
        return (struct dtp_moved){4 * row, 10 * row};
    if (dtp_layer_activates_in_one(c->block, op->makes))
        return (struct dtp_moved){3 * row, 5 * row};
    return c->block->gated ? (struct dtp_moved){5 * row, (9 + cat) * row} : (struct dtp_moved){2 * row, 3 * row};
}

/* A sum of two branches adds these first. The stream's gradient is cast for what was added to it, unless norms of both
 * kinds stand around. */
static struct dtp_moved eager_residual(const struct dtp_counted *c, const struct dtp_layer_operator *op)
{
    if (c->r > c->w) { /* attention's result is narrow, rows of experts have none cast (lower_wide_norms.c) */
        bool narrow = op->makes, casts = narrow || !c->block->experts;
        return (struct dtp_moved){(2 * c->p + (narrow ? c->w : c->r)) * c->h, casts ? (c->p + c->w) * c->h : 0};
    }
    double forward = c->block->parallel ? (2 * c->p + 4 * c->w) * c->h : (2 * c->p + c->w) * c->h;
    return (struct dtp_moved){forward, c->block->norms_after && c->block->norms_before ? 0 : c->cast};
}

/* Each pointwise operation is a kernel: it reads its inputs and writes its output whole. */
static struct dtp_moved eager_moved(const struct dtp_counted *c, const struct dtp_layer_operator *op)
{
    switch (op->kind) {
    case DTP_LAYER_OP_NORM: return eager_norm(c, op);
    case DTP_LAYER_OP_PROJECTION: return eager_projection(c, op);
    case DTP_LAYER_OP_ROTARY: return eager_rotary(c);
    case DTP_LAYER_OP_ATTENTION: { /* its backward puts q's, k's and v's gradients together */
        struct dtp_moved sinks = sinks_moved(c, false);
        return (struct dtp_moved){sinks.forward,
                                  sinks.backward + (c->plan->fused_qkv ? 2 * c->w * (c->q + 2 * c->kv) : 0)};
    }
    case DTP_LAYER_OP_ACTIVATION: return eager_activation(c, op);
    case DTP_LAYER_OP_RESIDUAL: return eager_residual(c, op);
    case DTP_LAYER_OP_LATENT_NORM:
    case DTP_LAYER_OP_LATENT_HEADS: return latent_moved(c, op, false);
    case DTP_LAYER_OP_CAST: break; /* with the projections that read it */
    case DTP_LAYER_OP_ROUTER:
    case DTP_LAYER_OP_PERMUTE:
    case DTP_LAYER_OP_UNPERMUTE: return dtp_expert_moved(c, op, false);
    }
    return (struct dtp_moved){0, 0};
}

/* The first sum with the norm before or behind it is one pass, the last one adds up what its branches returned. */
static struct dtp_moved fused_residual(const struct dtp_counted *c, const struct dtp_layer_operator *op)
{
    double branches = __builtin_popcountll(op->reads & ~DTP_LAYER_STREAM);
    if (op->statistics) /* dropout: the norm is another pass, and a mask of a byte is written and read */
        return (struct dtp_moved){(2 * c->p + c->w + 1) * c->h, (c->p + c->w + 1) * c->h};
    return (struct dtp_moved){op->makes ? 2 * (c->p + c->w) * c->h : (2 * c->p + branches * c->w) * c->h, 0};
}

/* One that reads the block's input is a pass, the others run in a sum's. */
static struct dtp_moved fused_norm(const struct dtp_counted *c, const struct dtp_layer_operator *op)
{
    if (!reads_stream(op))
        return (struct dtp_moved){0, (c->p + 2 * c->w) * c->h};
    bool alone = op->reads & DTP_TENSOR_BIT(INPUT) || c->block->dropout;
    return (struct dtp_moved){alone ? (c->p + c->w) * c->h : 0, (c->w + 3 * c->p) * c->h};
}

/* Without a norm that makes it, the block's input is narrowed for them; what they give back is added to the stream's
 * gradient in a pass of its own. */
static struct dtp_moved fused_projection(const struct dtp_counted *c, const struct dtp_layer_operator *op)
{
    bool bare = begins_branch(op) && !c->block->norms_before, first = bare && !(op->makes & DTP_TENSOR_BIT(UP));
    bool weighed = c->block->experts && c->block->weighs_rows &&
                   op->makes & (DTP_TENSOR_BIT(GATE) | DTP_TENSOR_BIT(UP) | DTP_TENSOR_BIT(EXPERT_DOWN));
    struct dtp_moved biases = {expert_biases(c, op), bias_gradients(c, op)};
    if (weighed)
        biases = weighed_biases(c, op);
    return (struct dtp_moved){(first ? (c->p + c->w) * c->h : 0) + biases.forward,
                              (bare ? (2 * c->p + c->w) * c->h : 0) + biases.backward};
}

/* One pass between matmuls: a tensor is read or written once per pass. */
static struct dtp_moved fused_moved(const struct dtp_counted *c, const struct dtp_layer_operator *op)
{
    bool shared = op->makes & DTP_TENSOR_BIT(SHARED_PRODUCT);
    double row = c->w * (shared ? (double)c->block->shared_ffn : c->f * dtp_received_rows(c)), norm = qk_norm_bytes(c);
    switch (op->kind) {
    case DTP_LAYER_OP_NORM: return fused_norm(c, op);
    case DTP_LAYER_OP_PROJECTION: return fused_projection(c, op);
    case DTP_LAYER_OP_ROTARY:
        if (dtp_plan_turns_eagerly(c->plan, c->block))
            return (struct dtp_moved){DTP_EAGER_TURN_PASSES * c->w * (c->q + c->kv) + norm,
                                      DTP_EAGER_TURN_PASSES_BACK * c->w * (c->q + c->kv) +
                                          2 * c->w * (c->q + 2 * c->kv) + 2.5 * norm};
        return (struct dtp_moved){(c->block->rotary ? 2 * c->w * (c->q + c->kv) : 0) + norm,
                                  (c->block->rotary ? 2 * c->w * (c->q + 2 * c->kv) : 0) + 2.5 * norm};
    case DTP_LAYER_OP_ATTENTION: { /* it returns heads before tokens */
        struct dtp_moved sinks = sinks_moved(c, true);
        return (struct dtp_moved){sinks.forward, sinks.backward + (c->block->kv_latent ? 0 : 2 * c->w * c->q)};
    }
    case DTP_LAYER_OP_ACTIVATION:
        if (c->within && !shared)
            return (struct dtp_moved){0, 0};
        /* gated: three read, two written, for what the next matmul read is kept */
        return c->block->gated ? (struct dtp_moved){3 * row, 5 * row} : (struct dtp_moved){2 * row, 4 * row};
    case DTP_LAYER_OP_RESIDUAL: return fused_residual(c, op);
    case DTP_LAYER_OP_LATENT_NORM:
    case DTP_LAYER_OP_LATENT_HEADS: return latent_moved(c, op, true);
    case DTP_LAYER_OP_CAST: break;
    case DTP_LAYER_OP_ROUTER:
    case DTP_LAYER_OP_PERMUTE:
    case DTP_LAYER_OP_UNPERMUTE: return dtp_expert_moved(c, op, c->plan->compile);
    }
    return (struct dtp_moved){0, 0};
}

static void count_bytes(const struct dtp_counted *c, struct dtp_block_work *work)
{
    const double h = c->block->routes_all ? (double)c->block->hidden : c->h;
    double rows = (double)c->block->experts_per_token * h / (c->block->routes_all ? c->plan->expert_shards : 1);
    if (dtp_layer_orders_rows(c->block) && !c->block->sorts_rows) {
        work->indexed_bytes = 2 * c->w * rows * (1 + (dtp_layer_reorders(c->block) ? dtp_received_rows(c) : 0));
        work->outer_bytes = c->block->stacks_rows ? 0 : 4 * dtp_outer_rows((double)c->block->experts_per_token) * h;
    }
    if (c->block->experts && c->plan->megatron.unfused_permute)
        work->indexed_bytes = work->indexed_back_bytes = dtp_added_by_index(c);
    struct dtp_layer_operator op[DTP_LAYER_OPERATORS];
    int count = dtp_layer_operators(c->block, op);
    for (int i = 0; i < count; i++) {
        struct dtp_moved moved = work->fused ? fused_moved(c, &op[i]) : eager_moved(c, &op[i]);
        work->forward_bytes_per_token += moved.forward;
        work->backward_bytes_per_token += moved.backward;
        if (op[i].kind == DTP_LAYER_OP_NORM)
            work->passes.column_sums += dtp_norm_column_sums(c->transformer, c->plan);
        if (!dtp_operator_passes(c->plan, c->block, &op[i]))
            continue;
        work->passes.bytes[0] += moved.forward, work->passes.bytes[1] += moved.backward;
        dtp_passes_add(c->transformer, c->plan, c->block, &op[i], c->h, c->f * dtp_received_rows(c), &work->passes);
    }
    dtp_adapted_bytes(c->block, c->plan, &work->forward_bytes_per_token, &work->backward_bytes_per_token);
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

static void count_launches(const struct dtp_counted *c, bool biased, struct dtp_block_work *work)
{
    bool eager = !work->fused, rope = eager && c->block->rotary, slow = c->plan->rope_fp32;
    work->forward_kernels = 12 + (rope ? (slow ? 20 : 10) : 0);
    work->backward_kernels = 26 + (rope ? (slow ? 24 : 12) : 0) + (biased ? 4 : 0);
    if (eager) {
        work->forward_kernels += (c->block->gated || c->block->squares ? 2 : 1) + (c->autocast ? 6 : 0);
        work->backward_kernels += (c->block->gated || c->block->squares ? 4 : 1) + (c->autocast ? 8 : 0);
    }
    if (c->block->chains_norms && c->block->norms_before) { /* in place of one kernel, and of three */
        struct dtp_norm_chain chain = dtp_norm_chain_of(c->transformer, c->plan, !c->block->adapted);
        double norms = c->block->parallel == DTP_PARALLEL_ONE_NORM ? 1 : 2;
        work->forward_kernels += norms * (chain.forward_kernels - 1);
        work->backward_kernels += norms * (chain.backward_kernels - 2);
        double heads = dtp_plan_chains_qk_norms(c->transformer, c->plan) ? 2 : 0;
        work->forward_kernels += heads * chain.forward_kernels;
        work->backward_kernels += heads * chain.backward_kernels;
    }
    if (c->block->chains_gelu) {
        struct dtp_gelu_chain chain = dtp_gelu_chain_of(c->plan, c->block->widens_gelu);
        work->forward_kernels += chain.forward_kernels - 1.0, work->backward_kernels += chain.backward_kernels - 1.0;
    }
    for (int i = 0; c->block->casts_norms && i < c->block->matrices; i++) /* all but what sums and down read */
        if (c->block->matrix[i].in == c->transformer->hidden && c->block->matrix[i].id != DTP_MATRIX_OUTPUT)
            work->forward_kernels++, work->backward_kernels++;
    if (c->r > c->w) /* casts of q, k and v, of their gradients, of what sums hand to branches */
        work->forward_kernels += 3, work->backward_kernels += 3 + 2;
    if (c->block->kv_latent) { /* a matmul and a norm of each latent, cats */
        work->forward_kernels += c->block->q_latent ? 5 : 3;
        work->backward_kernels += c->block->q_latent ? 9 : 6;
    }
    if (c->block->experts && c->block->calls_experts) { /* router; gate, up, down, activation and rows of each */
        double e = (double)c->block->own_experts, matrices = c->block->gated && !c->block->packs_up ? 3 : 2;
        double activation = c->block->gated || c->block->squares ? 2 : 1;
        double calls = c->block->slots_rows ? (double)dtp_layer_slot_copies(c->block) : 8, back = 19;
        if (c->block->slots_rows) /* gating, rows there and back, exchanges */
            work->forward_kernels += 54, work->backward_kernels += 30, back = 0;
        work->forward_kernels += 1 + 10 + 1 + e * (calls + matrices + activation) - 2 - activation;
        work->backward_kernels += 2 + 8 + e * (back + 2 * matrices + 1) - 4;
    } else if (c->block->experts) { /* router's matmul, router, rows there and back; gate and up apart */
        work->forward_kernels += 2 + (c->plan->compile ? 14 : 22) + 2 + 6;
        work->backward_kernels += 4 + (c->plan->compile ? 4 : 8) + 10 + 6 + 2;
        work->forward_kernels += c->block->exchanged   ? 24
                                 : c->block->pads_rows ? 17
                                                       : 0; /* splits, order of ranks and of experts, all-to-alls */
        work->backward_kernels += c->block->exchanged ? 13 : c->block->pads_rows ? 12 : 0;
        if (c->block->sorts_rows) /* one matmul and sum fewer; rows weighed and summed, gradients of these */
            work->forward_kernels -= 2, work->backward_kernels += 14 - 6 - 2;
        work->forward_kernels += c->block->stacks_rows ? 2 : 0; /* zeros; products */
        work->backward_kernels += c->block->stacks_rows ? 1 : 0;
    }
}

/* Parts that run again, operator by operator; of a norm also what the sum before it reads elsewhere. */
static void count_again(const struct dtp_counted *c, const struct dtp_layer_tensors *tensors,
                        struct dtp_block_work *work)
{
    work->again_kernels = 0;
    for (int i = 0; i < work->matmul_count; i++)
        work->matmul[i].again = tensors->again >> c->block->matrix[i].result & 1;
    for (int i = 0; i < tensors->operators; i++) {
        struct dtp_layer_operator op = tensors->op[i];
        if (!((op.makes | op.statistics) & tensors->again))
            continue;
        bool norm = op.kind == DTP_LAYER_OP_NORM;
        work->again_bytes += norm ? (c->p + c->w) * c->h : fused_moved(c, &op).forward;
        work->again_kernels += op.kind == DTP_LAYER_OP_PROJECTION ? linears(c, &op) : 1;
    }
}

/* Loops over queries and keys, and over experts: a product of each for each of their matrices, forward and two
 * backward, and casts of what each is given, forward and backward. */
static void count_loops(const struct dtp_counted *c, const struct dtp_cluster *cluster, struct dtp_block_work *work)
{
    uint64_t experts = c->block->own_experts;
    if (dtp_plan_turns_eagerly(c->plan, c->block) && !dtp_plan_replays(c->plan, DTP_GRAPH_ATTN))
        work->looped_kernels = 2 * (DTP_EAGER_TURN_KERNELS + DTP_EAGER_TURN_KERNELS_BACK - 1);
    if (dtp_plan_turns_latents_eagerly(c->plan, c->block) && !dtp_plan_replays(c->plan, DTP_GRAPH_ATTN))
        work->looped_kernels = 2 * (DTP_LATENT_TURN_KERNELS + DTP_LATENT_TURN_KERNELS_BACK);
    if (!c->block->experts || !experts)
        return;
    double matrices = c->block->gated && !c->block->packs_up ? 3 : 2;
    work->looped_kernels += 3 * matrices * (dtp_plan_expert_products(c->plan, experts) - 1);
    if (c->plan->precision.compute != DTP_FP8)
        return;
    struct dtp_fp8_casts casts;
    dtp_fp8_casts_of(c->plan, &cluster->gpu, &casts);
    uint32_t kernels = casts.of[DTP_FP8_INPUT].kernels + casts.of[DTP_FP8_GRADIENT_ROWS].kernels;
    work->looped_kernels += matrices * kernels * (dtp_plan_expert_casts(c->plan, experts) - 1);
}

/* What graphs replay of the kernels of count_fused_launches: of attention its norm, two matmuls, the core and the sum,
 * with rope; of an MLP the rest; of one of experts the norm, the router and its matmul. */
static void count_replays(const struct dtp_counted *c, bool rope, struct dtp_block_work *work)
{
    const struct dtp_plan *plan = c->plan;
    double all = work->forward_kernels + work->backward_kernels, attention = 5 + 9 + (rope ? 4 : 0);
    bool experts = c->block->experts;
    if (dtp_plan_replays_all(plan)) {
        work->replayed_kernels = all;
        work->looped_kernels = 0;
        return;
    }
    if (dtp_plan_replays(plan, DTP_GRAPH_ATTN))
        work->replayed_kernels += attention, work->replays += 2;
    if (!experts && dtp_plan_replays(plan, DTP_GRAPH_MLP))
        work->replayed_kernels += all - attention, work->replays += 2;
    if (experts && dtp_plan_replays(plan, DTP_GRAPH_MOE_ROUTER))
        work->replayed_kernels += 8 + 8, work->replays += 2;
    bool counts = c->block->exchanged && !plan->megatron.pad_to_capacity;
    if (experts && counts && dtp_plan_replays(plan, DTP_GRAPH_MOE_PREPROCESS))
        work->replayed_kernels += 4;
}

/* The host's Python around experts elsewhere, as programs have it (DTP_OP_HOST_EXCHANGE): of PyTorch before the block,
 * twice before its experts and behind them, of Megatron-Core where it reads how many rows go where. It waits there, so
 * that it is not ahead of the device. */
static void count_exchanges(const struct dtp_plan *plan, const struct dtp_layer_kind *block,
                            struct dtp_block_work *work)
{
    bool megatron = dtp_plan_execution(plan).issuer == DTP_ISSUER_MEGATRON;
    if (!block->experts || !block->exchanged || dtp_plan_replays_all(plan) || (!megatron && !dtp_plan_is_fsdp(plan)))
        return;
    work->exchanges = megatron ? 1 : 1 + 2 + 1;
    enum dtp_checkpoint_keeps keeps = dtp_plan_checkpoint_rule(plan).keeps;
    if (keeps != DTP_KEEPS_ALL_BUT_CORE && keeps != DTP_KEEPS_PARTS)
        work->exchanges_again = megatron ? 1 : 2 + 1;
    work->exchange_s = megatron ? dtp_calibration.megatron_experts_s : dtp_calibration.expert_exchange_s;
}

/* Megatron's layers: two norms, four matmuls, an attention of two kernels, activation and sum; backward twice that for
 * matmuls, with a kernel for each bias. */
static void count_fused_launches(const struct dtp_transformer *t, const struct dtp_plan *plan,
                                 const struct dtp_layer_kind *block, bool biased, struct dtp_block_work *work)
{
    bool rope = t->position == DTP_POSITION_ROPE;
    work->forward_kernels = 10 + (rope ? 1 : 0);
    work->backward_kernels = 17 + (rope ? 3 : 0) + (biased ? 4 : 0);
    work->root_kernels = 11;
    if (block->experts) { /* router's matmul and kernels, rows there and back, gate apart; splits and all-to-alls */
        uint32_t apart = block->packs_up ? 0 : 1, copied = dtp_plan_sends_tokens(plan) ? 0 : 2;
        work->forward_kernels += 1 + 6 + copied + apart + (block->exchanged ? 10 : 0);
        work->backward_kernels += 2 + 4 + copied + 2 * apart + (block->exchanged ? 4 : 0);
        work->forward_kernels += plan->megatron.unfused_permute ? 11 : 0; /* a sort, and zeros of the sum */
        work->forward_kernels += plan->megatron.capacity_factor > 0 ? 8 : 0;
        work->forward_kernels -= block->exchanged && plan->megatron.pad_to_capacity ? 5 : 0; /* splits */
        work->backward_kernels += plan->megatron.unfused_permute ? 1 : 0;
    }
}

/* How many layers such blocks are, and how many of them are checkpointed. */
static void count_blocks(const struct dtp_transformer *t, enum dtp_layer_mlp mlp, const struct dtp_plan *plan,
                         struct dtp_block_work *work)
{
    struct dtp_checkpoint_rule rule = dtp_plan_checkpoint_rule(plan);
    uint64_t with = t->experts ? dtp_transformer_expert_layers(t, t->layers) : 0;
    uint64_t layers = mlp == DTP_LAYER_EXPERTS ? with : t->layers - with;
    uint64_t again = dtp_checkpointed_layers_with(&rule, t, mlp == DTP_LAYER_EXPERTS);
    work->layers = (double)layers, work->layers_again = (double)again;
}

struct dtp_block_work dtp_block_work(const struct dtp_transformer *transformer, enum dtp_layer_mlp mlp,
                                     const struct dtp_cluster *cluster, const struct dtp_plan *plan)
{
    struct dtp_layer_kind block;
    bool packed = plan->runtime->packs_matrices, adapts = dtp_plan_adapts(plan); /* which are told by linears */
    struct dtp_block_work work = {.fused = dtp_plan_fuses(plan), .root_kernels = 40};
    count_blocks(transformer, mlp, plan, &work);
    if (work.layers == 0)
        return work;
    struct dtp_transformer own = dtp_plan_own_experts(transformer, plan);
    dtp_layer_kind_of(&own, mlp, plan->fused_qkv || (packed && !adapts), plan->fused_gate_up || (packed && !adapts),
                      &block);
    dtp_plan_adapt_kind(plan, &block);
    block.weighs_rows = plan->runtime->weighs_rows;
    dtp_plan_call_experts(plan, &block);
    block.sinks_inside = plan->runtime->sinks_in_kernel;
    block.joins_sinks = block.sinks && dtp_plan_layers(plan)->joins_sinks;
    block.pads_values = dtp_plan_pads_values(transformer, cluster, plan);
    block.own_values = block.pads_values || plan->runtime->copies_values;
    block.dropout = plan->dropout > 0;
    dtp_plan_chain_kind(transformer, plan, &block);
    struct dtp_counted counted = counted_of(transformer, plan, &block);
    counted.within = block.experts && dtp_plan_fuses_experts(plan, cluster);
    bool biased = dtp_layer_bias_elements(&block) > 0;
    counted.parts = plan->sequence_shards > 1 ? plan->sequence_shards : 1;
    if (work.fused) /* rows of the stream are cut */
        counted.h /= counted.parts;
    if (block.experts)
        counted.f /= plan->expert_shards;
    list_matmuls(plan, &block, packed, dtp_plan_expert_rows(plan), counted.parts, &work);
    for (int i = 0; i < work.matmul_count; i++)
        for (uint8_t e = DTP_EXCHANGE_DISPATCH; e <= DTP_EXCHANGE_COMBINE; e++)
            if (dtp_plan_works_beside(plan, &block, UINT64_C(1) << block.matrix[i].result, (enum dtp_exchange)e))
                work.matmul[i].beside = 1 + e;
    count_bytes(&counted, &work);
    count_launches(&counted, biased, &work);
    count_exchanges(plan, &block, &work);
    work.calls_s = dtp_block_calls_s(transformer, plan, block.experts);
    const bool megatron = dtp_plan_execution(plan).issuer == DTP_ISSUER_MEGATRON;
    if (megatron)
        count_fused_launches(transformer, plan, &block, biased, &work);
    work.again_kernels = plan->checkpointing == DTP_CHECKPOINT_SELECTIVE_ATTENTION ? 0 : work.forward_kernels;
    dtp_count_stage_launches(&counted, cluster, &work);
    if (dtp_plan_passes(plan) && !block.experts) { /* all but matmuls and attention */
        work.passes.kernels[0] = fmax(0, work.forward_kernels - work.matmul_count - 2);
        work.passes.kernels[1] = fmax(0, work.backward_kernels - 2 * work.matmul_count - 3);
    }
    dtp_fp8_add_launches(plan, cluster, &block, &work);
    if (megatron) {
        count_loops(&counted, cluster, &work);
        count_replays(&counted, transformer->position == DTP_POSITION_ROPE, &work);
    }
    if (plan->megatron.recompute) {
        struct dtp_layer_tensors tensors;
        dtp_layer_tensors_of(&own, mlp, cluster, plan, &tensors);
        count_again(&counted, &tensors, &work);
    }
    return work;
}

double dtp_block_more_host_s(const struct dtp_block_work *work, double launch_s)
{
    double loops_s = work->looped_kernels * dtp_calibration.torch_launch_s;
    double exchanges = work->layers * work->exchanges + work->layers_again * work->exchanges_again;
    return work->layers * ((work->replays - work->replayed_kernels) * launch_s + loops_s + work->calls_s) +
           exchanges * work->exchange_s;
}
