/* Backward in two passes, for schedules that fill bubbles with gradients of weights (Qi et al. 2024, arXiv:2401.10241):
 * one makes the gradients of inputs, for which the stage before waits, one those of matrices, for which nobody does.
 *
 * What a weight gradient reads stays as it is until its pass: its input, the gradient of its output, and of rows by
 * experts where each one's are. So the first pass lets none of these go, and does not add to the stream's gradient in
 * place where one of them reads that: the sum is another buffer. Each value is made by the same operations in the same
 * order as in one pass, so no bit differs. Gradients of norms, which are vectors, are made in the first pass by the
 * kernel that makes the input's, and so are those of head and embedding: logits are never there whole.
 *
 * Frozen matrices have no weight gradients, and adapters' are few columns wide: they are made in the first pass, with
 * the gradients that go through them, and the second has nothing to do. */
#include "runtime/dtplan/lower_executor_tensor.h"

uint64_t dtp_executor_delayed_layers(const struct dtp_executor *x)
{
    const struct dtp_lowering *l = x->l;
    struct dtp_stage_place to;
    const uint64_t asked = x->plan->executor.delay_wgrad;
    const bool waited_for = asked && l->role.pipeline && l->pass->kind == DTP_PASS_WHOLE_BACKWARD && !l->pass->paired &&
                            dtp_lower_given_to(l, l->pass, &to) && to.rank != l->role.rank;
    return !waited_for ? 0 : asked < l->chunk->layers ? asked : l->chunk->layers;
}

void dtp_executor_defer(struct dtp_executor *x, uint64_t layer, int op, dtp_buffer_id gradient, dtp_buffer_id input)
{
    struct dtp_executor_flight *f = x->flight;
    const bool grouped = x->shape->op[op].kind == DTP_OP_GROUPED_MATMUL;
    dtp_buffer_id routes = grouped ? x->tensors[layer][dtp_executor_routes_of(x->shape)] : DTP_NO_BUFFER;
    f->deferred[f->deferred_count++] = (struct dtp_executor_deferred){layer, op, gradient, input, routes};
}

static bool reads(const struct dtp_executor_deferred *d, dtp_buffer_id buffer)
{
    return d->gradient.index == buffer.index || d->input.index == buffer.index || d->routes.index == buffer.index;
}

bool dtp_executor_is_deferred(const struct dtp_executor *x, dtp_buffer_id buffer)
{
    const struct dtp_executor_flight *f = x->flight;
    if (!dtp_executor_splits(x))
        return false;
    for (uint32_t i = 0; i < f->deferred_count; i++)
        if (reads(&f->deferred[i], buffer))
            return true;
    return false;
}

/* Of several that read it the last one lets it go, whose layer is the lowest: that of the pass. */
uint32_t dtp_executor_lets_go(struct dtp_executor *x, dtp_buffer_id buffer)
{
    struct dtp_executor_flight *f = x->flight;
    if (!dtp_executor_is_deferred(x, buffer))
        return DTP_FREE;
    uint64_t layer = 0;
    for (uint32_t i = 0; i < f->deferred_count; i++)
        if (reads(&f->deferred[i], buffer))
            layer = f->deferred[i].layer;
    f->kept[f->kept_count++] = (struct dtp_executor_kept){layer, buffer};
    return 0;
}

static void let_go_of(struct dtp_executor *x, uint64_t layer)
{
    struct dtp_executor_flight *f = x->flight;
    struct dtp_draft draft;
    uint32_t left = 0;
    dtp_executor_begin(x, &draft, DTP_OP_FREE, "weight gradients' operands");
    for (uint32_t i = 0; i < f->kept_count; i++)
        if (f->kept[i].layer == layer)
            dtp_draft_use(&draft, f->kept[i].buffer, DTP_FREE);
        else
            f->kept[left++] = f->kept[i];
    f->kept_count = left;
    if (draft.operand_count)
        dtp_executor_end(x, &draft);
}

/* Rows of tensor parallel ranks, from the i-th on, that the next one to gather any reads. */
static uint32_t gather_next(struct dtp_executor *x, uint32_t i, struct dtp_executor_moved *rows)
{
    const struct dtp_executor_flight *f = x->flight;
    for (; i < f->deferred_count; i++) {
        const struct dtp_executor_deferred *d = &f->deferred[i];
        dtp_executor_stand_at(x, d->layer);
        const struct dtp_executor_operator *op = &x->shape->op[d->op];
        if (!op->gathers)
            continue;
        *rows = dtp_executor_gather_beside(x, op->matrix->gradient_name, d->input);
        break;
    }
    return i;
}

/* With plan.tp_overlap each gather is issued beside the product before the one that reads it. */
void dtp_executor_weights_backward(struct dtp_executor *x)
{
    struct dtp_executor_flight *f = x->flight;
    struct dtp_executor_moved ahead = {DTP_NO_BUFFER, DTP_NO_OP}, rows;
    const bool overlaps = x->plan->tp_overlap;
    uint32_t next = overlaps ? gather_next(x, 0, &ahead) : UINT32_MAX;
    for (uint32_t i = 0; i < f->deferred_count; i++) {
        const struct dtp_executor_deferred *d = &f->deferred[i];
        struct dtp_draft draft;
        const bool gathered = i == next;
        rows = ahead;
        if (gathered)
            next = gather_next(x, i + 1, &ahead);
        dtp_executor_stand_at(x, d->layer);
        dtp_executor_weight_gradient(x, &draft, d->layer, d->op, d->gradient, 0, d->input, 0, gathered ? &rows : NULL);
        dtp_executor_end(x, &draft);
        if (i + 1 < f->deferred_count && f->deferred[i + 1].layer == d->layer)
            continue;
        let_go_of(x, d->layer);
        if (x->expert_count)
            dtp_executor_close_gradient(x, dtp_executor_experts(x, d->layer));
        dtp_executor_close_gradient(x, dtp_executor_block(x, d->layer));
    }
    f->deferred_count = 0;
    x->l->layer = DTP_NO_LAYER;
}
