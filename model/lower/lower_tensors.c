/* Which tensors a block has under a plan: weight matrices, parameters as shards, and the tensors its forward makes,
 * with those autograd saves.
 *
 * Saved: what backward's derivatives read (PyTorch tools/autograd/derivatives.yaml): inputs of linears, norms and SiLU
 * or GELU, both factors of a product, q, k, v, the result and the log-sum-exp of the attention core. A compiler saves
 * fewer (REPORT of the traces: it drops silu(gate) and adds x + attention again), a checkpointed block only some. */
#include "base/bytes.h"
#include "lower/lowering.h"

/* ---- parameters -------------------------------------------------------------------------------------------------- */

struct part_sum {
    struct dtp_lower_module *module;
    uint64_t ranks;
    bool flat; /* ZeRO-3 cuts each tensor by elements, FSDP2 by rows */
    int part;
};

static bool flat_tensors(const struct dtp_lowering *l)
{
    return dtp_plan_shard_cut(l->plan) == DTP_CUT_ELEMENTS;
}

static void add_tensor(const struct part_sum *sum, uint64_t rows, uint64_t width)
{
    uint64_t shard = sum->flat ? dtp_divide_up(rows * width, sum->ranks) : dtp_divide_up(rows, sum->ranks) * width;
    sum->module->elements[sum->part] += rows * width;
    if (rows * width > sum->module->largest[sum->part])
        sum->module->largest[sum->part] = rows * width;
    sum->module->shard[sum->part] += shard;
    sum->module->all_elements += rows * width;
    sum->module->all_shard += shard;
    sum->module->tensors[sum->part]++;
}

static void add_vector(const struct part_sum *sum, uint64_t elements, bool present)
{
    if (present)
        add_tensor(sum, elements, 1);
}

static void add_matrix(struct dtp_lowering *l, struct dtp_lower_matrix matrix)
{
    int part = l->matrices++;
    l->matrix[part] = matrix;
    struct part_sum weight = {&l->block, l->plan->shard_group, flat_tensors(l), part};
    add_tensor(&weight, matrix.out, matrix.in);
    l->block.matrix[part] = true;
    l->block.weight_name[part] = matrix.weight_name;
    l->block.gradient_name[part] = matrix.gradient_name;
}

#define MATRIX(word, ...)                                                                                              \
    ((struct dtp_lower_matrix){                                                                                        \
        .name = word, .gradient_name = word " weight gradient", .weight_name = word " weight", __VA_ARGS__})

static void list_matrices(struct dtp_lowering *l)
{
    const struct dtp_transformer *t = l->transformer;
    uint64_t h = t->hidden, f = t->ffn, q = l->d_q, kv = l->d_kv;
    bool biased = t->qkv_bias, mlp = t->mlp_bias;
    enum dtp_slot norm1 = DTP_SLOT_NORM1, norm2 = DTP_SLOT_NORM2;
    if (l->plan->fused_qkv) {
        add_matrix(l, MATRIX("qkv", q + 2 * kv, h, biased, norm1, DTP_SLOT_QKV));
    } else {
        add_matrix(l, MATRIX("q", q, h, biased, norm1, DTP_SLOT_Q_RAW));
        add_matrix(l, MATRIX("k", kv, h, biased, norm1, DTP_SLOT_K_RAW));
        add_matrix(l, MATRIX("v", kv, h, biased, norm1, DTP_SLOT_V));
    }
    enum dtp_slot core = l->slot_bytes[DTP_SLOT_CORE_COPY] ? DTP_SLOT_CORE_COPY : DTP_SLOT_CORE;
    add_matrix(l, MATRIX("output", h, q, t->attention_output_bias, core, DTP_SLOT_MIDDLE));
    if (l->gated && !l->plan->fused_gate_up)
        add_matrix(l, MATRIX("gate", f, h, mlp, norm2, DTP_SLOT_GATE));
    add_matrix(l, MATRIX("up", l->gated && l->plan->fused_gate_up ? 2 * f : f, h, mlp, norm2, DTP_SLOT_UP));
    add_matrix(l, MATRIX("down", h, f, mlp, DTP_SLOT_PRODUCT, DTP_SLOT_DOWN));
}

static void add_norm(const struct part_sum *sum, const struct dtp_transformer *t, bool present)
{
    add_vector(sum, t->hidden, present);
    add_vector(sum, t->hidden, present && t->norm_bias);
}

static void list_block_vectors(struct dtp_lowering *l)
{
    const struct dtp_transformer *t = l->transformer;
    int part = l->matrices;
    struct part_sum vectors = {&l->block, l->plan->shard_group, flat_tensors(l), part};
    for (int i = 0; i < l->matrices; i++)
        add_vector(&vectors, l->matrix[i].out, l->matrix[i].bias);
    add_norm(&vectors, t, true);
    add_norm(&vectors, t, true);
    add_vector(&vectors, t->head_dim, t->qk_norm);
    add_vector(&vectors, t->head_dim, t->qk_norm);
    l->block.parts = part + 1;
    l->block.weight_name[part] = "vectors";
    l->block.gradient_name[part] = "vector gradients";
}

static void list_root(struct dtp_lowering *l)
{
    const struct dtp_transformer *t = l->transformer;
    static const char *const weights[] = {"embedding weight", "position weight", "root vectors", "head weight"};
    static const char *const gradients[] = {"embedding gradient", "position gradient", "root vector gradients",
                                            "head gradient"};
    struct part_sum sum = {&l->root, l->plan->shard_group, flat_tensors(l), DTP_ROOT_EMBEDDING};
    l->root.parts = DTP_ROOT_PARTS;
    add_tensor(&sum, t->vocab, t->hidden);
    sum.part = DTP_ROOT_POSITION;
    if (t->position == DTP_POSITION_LEARNED)
        add_tensor(&sum, t->positions, t->hidden);
    sum.part = DTP_ROOT_VECTORS;
    add_norm(&sum, t, t->embedding_norm);
    add_norm(&sum, t, t->final_norm);
    add_vector(&sum, t->vocab, t->head_bias);
    sum.part = DTP_ROOT_HEAD;
    if (!t->tied_head)
        add_tensor(&sum, t->vocab, t->hidden);
    for (int part = 0; part < DTP_ROOT_PARTS; part++) {
        l->root.weight_name[part] = weights[part];
        l->root.gradient_name[part] = gradients[part];
    }
}

uint64_t dtp_lower_largest_tensor(const struct dtp_lowering *l)
{
    uint64_t largest = 0;
    for (int part = 0; part < DTP_MAX_PARTS; part++) {
        largest = l->block.largest[part] > largest ? l->block.largest[part] : largest;
        largest = l->root.largest[part] > largest ? l->root.largest[part] : largest;
    }
    return largest;
}

/* ---- tensors of a block's forward -------------------------------------------------------------------------------- */

static void slot(struct dtp_lowering *l, enum dtp_slot which, uint64_t bytes_per_token, bool saved)
{
    l->slot_bytes[which] = dtp_bytes_product(l->tokens, bytes_per_token);
    if (saved && bytes_per_token)
        l->saved |= 1u << which;
}

/* RMSNorm keeps the reciprocal root mean square, LayerNorm mean and reciprocal deviation, fp32. Eager autocast norms in
 * fp32 and casts; the fp32 result is dropped once the matmuls have read the cast. */
static void list_norms(struct dtp_lowering *l)
{
    uint64_t h = l->transformer->hidden, statistics = l->transformer->norm == DTP_RMS_NORM ? 4 : 8;
    uint64_t wide = l->autocast && !l->fused ? 4 * h : 0;
    uint64_t input = l->keeps_fp8 ? 1 : l->compute; /* bytes of a matmul's input as it is kept */
    slot(l, DTP_SLOT_NORM1, input * h, true);
    slot(l, DTP_SLOT_NORM2, input * h, true);
    slot(l, DTP_SLOT_STATISTICS1, statistics, true);
    slot(l, DTP_SLOT_STATISTICS2, statistics, true);
    slot(l, DTP_SLOT_WIDE1, wide, false);
    slot(l, DTP_SLOT_WIDE2, wide, false);
}

/* What the core saves beside q, k, v and its result: the fp32 log-sum-exp; math attention its probabilities [heads, s]
 * and, where they are wider than q, k and v, the casts of those, k and v repeated for each query head. */
static uint64_t core_state(const struct dtp_lowering *l)
{
    uint64_t heads = l->transformer->heads, score = dtp_plan_score_bytes(l->plan);
    if (l->plan->attention != DTP_ATTENTION_MATH)
        return 4 * heads;
    return score * heads * l->plan->sequence + (score > l->compute ? 3 * score * l->d_q : 0);
}

/* Rotation makes new q and k; a norm of q and k saves what it read. v stays a view of the fused
 * result, which then lives as a whole. Where RoPE ends in a cat, q is [B, heads, s, d_h], the core's result follows it
 * and putting the heads side by side copies. */
static void list_attention(struct dtp_lowering *l)
{
    const struct dtp_transformer *t = l->transformer;
    const struct dtp_plan *plan = l->plan;
    uint64_t c = l->compute, q = c * l->d_q, kv = c * l->d_kv;
    bool made_new = l->rope || t->qk_norm;
    if (plan->fused_qkv) {
        slot(l, DTP_SLOT_QKV, q + 2 * kv, true);
    } else {
        slot(l, DTP_SLOT_Q_RAW, q, !made_new || t->qk_norm);
        slot(l, DTP_SLOT_K_RAW, kv, !made_new || t->qk_norm);
        slot(l, DTP_SLOT_V, kv, true);
    }
    slot(l, DTP_SLOT_Q, made_new ? q : 0, true);
    slot(l, DTP_SLOT_K, made_new ? kv : 0, true);
    slot(l, DTP_SLOT_QK_STATISTICS, t->qk_norm ? 4 * (t->heads + t->kv_heads) : 0, true);
    slot(l, DTP_SLOT_CORE, q, true);
    slot(l, DTP_SLOT_CORE_STATE, core_state(l), true);
    bool copied = l->rope && plan->rope_fp32 && plan->runtime->copies_heads;
    slot(l, DTP_SLOT_CORE_COPY, l->keeps_fp8 ? l->d_q : copied ? q : 0, true);
}

/* A compiler keeps the attention matmul's result and adds again, unless DDPOptimizer cuts the block before that
 * addition is used a second time. */
static void list_residual(struct dtp_lowering *l)
{
    uint64_t h = l->transformer->hidden;
    bool added_again = l->compiled && !l->cut;
    slot(l, DTP_SLOT_INPUT, l->residual * h, true);
    slot(l, DTP_SLOT_MIDDLE, l->compute * h, added_again);
    slot(l, DTP_SLOT_INPUT2, added_again ? 0 : l->residual * h, true);
    slot(l, DTP_SLOT_DOWN, l->compute * h, false);
}

static void list_mlp(struct dtp_lowering *l)
{
    uint64_t f = l->compute * l->transformer->ffn;
    bool apart = l->gated && !l->plan->fused_gate_up;
    slot(l, DTP_SLOT_GATE, apart ? f : 0, true);
    bool relu = l->transformer->activation == DTP_RELU; /* reads its result, unless that is kept in fp8 only */
    slot(l, DTP_SLOT_UP, l->gated && !apart ? 2 * f : f, !relu || l->keeps_fp8);
    slot(l, DTP_SLOT_SILU, l->gated && !l->compiled ? f : 0, true);
    slot(l, DTP_SLOT_PRODUCT, l->keeps_fp8 ? l->transformer->ffn : f, true);
}

/* ---- checkpointing ----------------------------------------------------------------------------------------------- */

/* torchtitan: input, the flash core's results and every second matmul's result, counted from the first; an eager cache
 * keeps the last matmul's too, which nobody reads again, a compiler drops it. */
static uint32_t selective_matmul(const struct dtp_lowering *l)
{
    uint32_t kept = DTP_SLOT_BIT(INPUT);
    for (int i = 0; i < l->matrices; i += 2)
        if (!(l->compiled && i == l->matrices - 1))
            kept |= 1u << l->matrix[i].result;
    if (l->plan->attention != DTP_ATTENTION_MATH)
        kept |= DTP_SLOT_BIT(CORE) | DTP_SLOT_BIT(CORE_STATE);
    return kept;
}

static uint32_t kept_slots(const struct dtp_lowering *l)
{
    switch (l->plan->checkpointing) {
    case DTP_CHECKPOINT_NONE: return l->saved;
    case DTP_CHECKPOINT_FULL:
    case DTP_CHECKPOINT_EVERY_N: return DTP_SLOT_BIT(INPUT);
    case DTP_CHECKPOINT_SELECTIVE_ATTENTION: return l->saved & ~DTP_SLOT_BIT(CORE_STATE);
    case DTP_CHECKPOINT_SELECTIVE_MATMUL: return selective_matmul(l);
    }
    return l->saved;
}

void dtp_lower_tensors(struct dtp_lowering *l)
{
    list_norms(l);
    list_attention(l);
    list_residual(l);
    list_mlp(l);
    list_matrices(l);
    list_block_vectors(l);
    list_root(l);
    if (l->plan->fsdp1) { /* one flat parameter, cut into equal shards across tensors */
        l->block.all_shard = dtp_divide_up(l->block.all_elements, l->plan->shard_group);
        l->root.all_shard = dtp_divide_up(l->root.all_elements, l->plan->shard_group);
    }
    l->kept = kept_slots(l);
    /* Variables of a Python function live until it returns: q, k, v, the residual sum, the activation. */
    if (!l->fused)
        l->locals = DTP_SLOT_BIT(QKV) | DTP_SLOT_BIT(V) | DTP_SLOT_BIT(Q) | DTP_SLOT_BIT(K) | DTP_SLOT_BIT(CORE) |
                    DTP_SLOT_BIT(INPUT2) | DTP_SLOT_BIT(UP) | DTP_SLOT_BIT(PRODUCT);
}
