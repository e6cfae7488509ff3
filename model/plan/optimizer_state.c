#include "plan/optimizer_state.h"

#include "base/bytes.h"
#include "net/layer_kind.h"
#include "plan/runtime_sizes.h"

bool dtp_optimizer_by_tensor(const struct dtp_plan *plan)
{
    return dtp_optimizer_row(plan->optimizer)->shape != DTP_STATE_ALIKE;
}

uint64_t dtp_optimizer_factor_elements(uint64_t rows, uint64_t columns)
{
    return rows + columns;
}

/* ---- tensors of a model ------------------------------------------------------------------------------------------ */

/* As they are registered, which is the order of the step: elements of state, of blocks' matrices, the largest two
 * tensors that follow each other, and what the matrix with the most takes for its products. */
struct walk {
    const struct dtp_plan *plan;
    bool factors;
    uint64_t state, matrices, last, pair, products_bytes;
};

static void pass(struct walk *walk, uint64_t elements)
{
    walk->pair = walk->last + elements > walk->pair ? walk->last + elements : walk->pair;
    walk->last = elements;
}

/* Experts' are one tensor [groups, out, in], of which torch keeps sums over the last two axes (Adafactor's row_shape,
 * col_shape). */
static void pass_matrix(struct walk *walk, uint64_t groups, uint64_t out, uint64_t in)
{
    uint64_t elements = groups * out * in;
    walk->state += walk->factors ? dtp_optimizer_factor_elements(groups * out, groups * in) : 2 * elements;
    pass(walk, elements);
}

static void pass_block_matrix(struct walk *walk, const struct dtp_layer_matrix *matrix)
{
    struct dtp_newton_schulz products;
    uint64_t elements = matrix->groups * matrix->out * matrix->in;
    if (walk->factors) {
        pass_matrix(walk, matrix->groups, matrix->out, matrix->in);
        return;
    }
    dtp_newton_schulz_of(walk->plan, matrix->out, matrix->in, &products);
    walk->state += elements, walk->matrices += elements;
    if (products.scratch_bytes > walk->products_bytes)
        walk->products_bytes = products.scratch_bytes;
}

static void pass_vectors(struct walk *walk, uint64_t count, uint64_t elements)
{
    walk->state += count * (walk->factors ? elements : 2 * elements);
    if (count)
        pass(walk, elements);
}

static void pass_layers(struct walk *walk, const struct dtp_transformer *t, const struct dtp_plan *plan,
                        enum dtp_layer_mlp mlp, uint64_t count)
{
    struct dtp_layer_kind kind;
    uint64_t vectors[DTP_LAYER_VECTORS], state = walk->state, matrices = walk->matrices;
    if (!count)
        return;
    dtp_layer_kind_of(t, mlp, plan->fused_qkv, plan->fused_gate_up, &kind);
    for (int i = 0; i < kind.matrices; i++)
        pass_block_matrix(walk, &kind.matrix[i]);
    for (int i = dtp_layer_list_vectors(&kind, vectors); i > 0; i--)
        pass_vectors(walk, 1, vectors[i - 1]);
    walk->state = state + count * (walk->state - state);
    walk->matrices = matrices + count * (walk->matrices - matrices);
}

static struct walk walk_model(const struct dtp_transformer *t, const struct dtp_plan *plan)
{
    struct walk walk = {.plan = plan, .factors = dtp_optimizer_row(plan->optimizer)->shape == DTP_STATE_FACTORS};
    uint64_t experts = t->experts ? dtp_transformer_expert_layers(t, t->layers) : 0;
    uint64_t norm = dtp_transformer_norm_vectors(t);
    pass_matrix(&walk, 1, t->vocab, t->hidden);
    if (t->position == DTP_POSITION_LEARNED)
        pass_matrix(&walk, 1, t->positions, t->hidden);
    pass_vectors(&walk, t->embedding_norm ? norm : 0, t->hidden);
    pass_layers(&walk, t, plan, DTP_LAYER_DENSE, t->layers - experts);
    pass_layers(&walk, t, plan, DTP_LAYER_EXPERTS, experts);
    pass_vectors(&walk, t->final_norm ? norm : 0, t->hidden);
    if (!t->tied_head)
        pass_matrix(&walk, 1, t->vocab, t->hidden);
    pass_vectors(&walk, t->head_bias ? 1 : 0, t->vocab);
    return walk;
}

/* ---- of a plan --------------------------------------------------------------------------------------------------- */

uint64_t dtp_optimizer_whole_bytes(const struct dtp_transformer *transformer, const struct dtp_plan *plan,
                                   const struct dtp_element_bytes *bytes, uint64_t elements)
{
    uint64_t alike = dtp_optimizer_bytes(bytes, elements);
    if (!dtp_optimizer_by_tensor(plan))
        return alike;
    return alike + dtp_bytes_product(dtp_dtype_bytes(plan->precision.moments), walk_model(transformer, plan).state);
}

uint64_t dtp_optimizer_scratch_bytes(const struct dtp_transformer *transformer, const struct dtp_plan *plan,
                                     uint64_t elements)
{
    uint64_t element_bytes = dtp_dtype_bytes(plan->precision.moments);
    if (plan->offload != DTP_OFFLOAD_NONE)
        return 0;
    if (plan->optimizer == DTP_ADAMW_FOREACH) {
        uint64_t ends = dtp_plan_mixes_ends(plan) ? dtp_plan_trained_ends(transformer, plan) : 0;
        return element_bytes * (elements - ends) + dtp_dtype_bytes(plan->precision.params) * ends;
    }
    if (!dtp_optimizer_by_tensor(plan))
        return 0;
    struct walk walk = walk_model(transformer, plan);
    return walk.factors ? element_bytes * walk.pair : walk.products_bytes;
}

/* Of each product added to a scaled tensor torch first copies that tensor into the result (addmm out of place): X, X
 * X^T. At its most there stand the momentum's look ahead in the gradients' dtype, X before and behind a step, X X^T and
 * the polynomial of it. */
void dtp_newton_schulz_of(const struct dtp_plan *plan, uint64_t rows, uint64_t columns, struct dtp_newton_schulz *out)
{
    const uint64_t steps = DTP_NEWTON_SCHULZ_STEPS, narrow = dtp_dtype_bytes(DTP_BF16);
    uint64_t n = rows < columns ? rows : columns, m = rows < columns ? columns : rows;
    uint64_t square = n * n, all = n * m;
    out->n = (double)n, out->m = (double)m;
    out->flops = (double)steps * (2 * 2 * (double)square * out->m + 2 * (double)square * out->n);
    out->bytes = (double)steps * 2 * (double)narrow * ((double)square + (double)all);
    out->scratch_bytes = (dtp_dtype_bytes(plan->precision.moments) + 2 * narrow) * all + 2 * narrow * square;
}

uint64_t dtp_optimizer_matrix_elements(const struct dtp_transformer *transformer, const struct dtp_plan *plan)
{
    bool apart = dtp_optimizer_row(plan->optimizer)->shape == DTP_STATE_MATRICES;
    return apart ? walk_model(transformer, plan).matrices : 0;
}
