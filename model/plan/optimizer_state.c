#include "plan/optimizer_state.h"

#include "base/bytes.h"
#include "net/layer_kind.h"

bool dtp_optimizer_by_tensor(const struct dtp_plan *plan)
{
    return dtp_optimizer_row(plan->optimizer)->shape != DTP_STATE_ALIKE;
}

uint64_t dtp_optimizer_factor_elements(uint64_t rows, uint64_t columns)
{
    return rows + columns;
}

/* ---- tensors of a model ------------------------------------------------------------------------------------------ */

/* As they are registered, which is the order of the step: elements of state, the largest tensor and the largest two
 * that follow each other. */
struct walk {
    uint64_t state, last, pair;
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
    walk->state += dtp_optimizer_factor_elements(groups * out, groups * in);
    pass(walk, groups * out * in);
}

static void pass_vectors(struct walk *walk, uint64_t count, uint64_t elements)
{
    walk->state += count * elements;
    if (count)
        pass(walk, elements);
}

static void pass_layers(struct walk *walk, const struct dtp_transformer *t, const struct dtp_plan *plan,
                        enum dtp_layer_mlp mlp, uint64_t count)
{
    struct dtp_layer_kind kind;
    uint64_t vectors[DTP_LAYER_VECTORS], before = walk->state;
    if (!count)
        return;
    dtp_layer_kind_of(t, mlp, plan->fused_qkv, plan->fused_gate_up, &kind);
    for (int i = 0; i < kind.matrices; i++)
        pass_matrix(walk, kind.matrix[i].groups, kind.matrix[i].out, kind.matrix[i].in);
    for (int i = dtp_layer_list_vectors(&kind, vectors); i > 0; i--)
        pass_vectors(walk, 1, vectors[i - 1]);
    walk->state = before + count * (walk->state - before);
}

static struct walk walk_model(const struct dtp_transformer *t, const struct dtp_plan *plan)
{
    struct walk walk = {.state = 0};
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
    if (plan->optimizer == DTP_ADAMW_FOREACH)
        return element_bytes * elements;
    return dtp_optimizer_by_tensor(plan) ? element_bytes * walk_model(transformer, plan).pair : 0;
}
