/* What matmuls read, and what becomes of the gradients they make.
 *
 * Under autocast a matmul reads a cast of its fp32 weight (and bias). The cast is cached until the context ends with
 * forward and saved for the input gradient; a checkpointed block saves none and casts again when it is replayed. */
#include "lower/lowering.h"

static const struct dtp_lower_module *module(const struct dtp_lowering *l)
{
    return l->layer == DTP_NO_LAYER ? &l->root : &l->block;
}

/* Full and op-level checkpointing replay the casts too; selective attention leaves the linears outside. */
bool dtp_lower_recasts(const struct dtp_lowering *l, uint64_t layer)
{
    return l->autocast && dtp_lower_checkpointed(l, layer) && l->checkpointing.calls_modules;
}

dtp_buffer_id dtp_lower_params(const struct dtp_module_state *state, int part)
{
    return state->whole[part].index == DTP_NO_INDEX ? state->params : state->whole[part];
}

static uint64_t cast_elements(const struct dtp_lowering *l, int part)
{
    if (l->layer == DTP_NO_LAYER)
        return l->transformer->vocab * l->transformer->hidden;
    const struct dtp_layer_matrix *matrix = &l->matrix[part];
    return matrix->groups * (matrix->out * matrix->in + (matrix->bias ? matrix->out : 0));
}

/* A compiled block casts for itself and keeps that for its backward, so that of micro-batches under way each has its
 * own. */
dtp_buffer_id *dtp_lower_cast_of(struct dtp_lowering *l, int part)
{
    bool own = l->autocast && l->compiled && dtp_lower_holds(l) && l->layer != DTP_NO_LAYER;
    return own ? &l->flight->module[l->layer - l->chunk->first].weights[part] : &dtp_lower_state(l)->weight[part];
}

dtp_buffer_id dtp_lower_weight(struct dtp_lowering *l, int part)
{
    struct dtp_module_state *state = dtp_lower_state(l);
    if (dtp_lower_packs(l, part))
        return dtp_lower_unpack(l, part);
    dtp_buffer_id *made = dtp_lower_cast_of(l, part);
    if (made->index != DTP_NO_INDEX)
        return *made;
    bool end = l->layer == DTP_NO_LAYER && dtp_plan_widens_ends(l->plan);
    if (!end && (!l->autocast || (l->layer != DTP_NO_LAYER && !dtp_plan_casts_weights(l->plan))))
        return dtp_lower_params(state, part);
    uint64_t elements = cast_elements(l, part);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_CAST, module(l)->weight_name[part]);
    dtp_draft_use(&draft, dtp_lower_params(state, part), DTP_READ);
    *made = dtp_draft_new(l, &draft, module(l)->weight_name[part], DTP_OWNER_WEIGHTS, l->compute * elements, DTP_WRITE);
    dtp_draft_pass(l, &draft, (double)(((end ? 4 : l->bytes.params) + l->compute) * elements), 0, 1);
    dtp_draft_end(l, &draft);
    return *made;
}

/* The cache keeps eager casts of checkpointed blocks until here; saved ones live on in autograd's graph. */
void dtp_lower_forget_casts(struct dtp_lowering *l)
{
    if (!l->autocast || dtp_lower_casts_stay(l))
        return;
    for (uint64_t layer = 0; layer < l->transformer->layers; layer++) {
        if (!dtp_lower_recasts(l, layer))
            continue;
        struct dtp_draft draft;
        dtp_draft_begin(l, &draft, DTP_OP_FREE, "autocast cache");
        draft.op.layer = (uint16_t)layer;
        for (int part = 0; part < dtp_lower_module_at(l, layer)->parts - 1; part++) {
            dtp_draft_use(&draft, l->state[layer].weight[part], DTP_FREE);
            l->state[layer].weight[part] = DTP_NO_BUFFER;
        }
        if (draft.operand_count)
            dtp_draft_end(l, &draft);
    }
}

void dtp_lower_forget_all_casts(struct dtp_lowering *l)
{
    for (uint64_t i = 0; dtp_lower_casts_stay(l) && i <= l->transformer->layers; i++) {
        struct dtp_draft draft;
        dtp_draft_begin(l, &draft, DTP_OP_FREE, "autocast cache");
        for (int part = 0; part < DTP_MAX_PARTS; part++) {
            dtp_draft_use(&draft, l->state[i].weight[part], DTP_FREE);
            l->state[i].weight[part] = DTP_NO_BUFFER;
        }
        if (draft.operand_count)
            dtp_draft_end(l, &draft);
    }
}

/* Of a table of whose rows the rank makes the gradient of all (dtp_plan_table_gradient_ranks) the gradient is cut to
 * its own where it is reduced, or where the optimizer reads it (torch/distributed/fsdp/_fully_shard/_fsdp_param.py,
 * _get_grad_inner_tensor). No table comes to dtp_lower_add_gradient or dtp_lower_cast_gradient, which take what the
 * rank has. */
uint64_t dtp_lower_made_elements(const struct dtp_lowering *l, const struct dtp_lower_module *of, int part)
{
    bool table = of == &l->root && part == DTP_ROOT_EMBEDDING;
    uint64_t ranks = dtp_plan_table_gradient_ranks(l->plan, l->transformer->tied_head);
    return dtp_bytes_product(of->elements[part], table ? ranks : 1);
}

dtp_buffer_id dtp_lower_cut_gradient(struct dtp_lowering *l, dtp_buffer_id whole, uint64_t element_bytes, bool goes)
{
    uint64_t bytes = dtp_bytes_product(element_bytes, l->root.elements[DTP_ROOT_EMBEDDING]);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_COPY_OUT, "rows of the embedding gradient");
    dtp_buffer_id rows =
        dtp_draft_new(l, &draft, l->root.gradient_name[DTP_ROOT_EMBEDDING], DTP_OWNER_WORKSPACE, bytes, DTP_WRITE);
    dtp_draft_use(&draft, whole, goes ? DTP_READ | DTP_FREE : DTP_READ);
    dtp_draft_memory(l, &draft, 2 * (double)bytes, 1);
    draft.op.demand.memory_kernel = DTP_KERNEL_FUSED;
    dtp_draft_end(l, &draft);
    return rows;
}

void dtp_lower_gradient_result(struct dtp_lowering *l, struct dtp_draft *draft, int part, uint64_t element_bytes)
{
    struct dtp_module_state *state = dtp_lower_state(l);
    uint64_t elements = dtp_lower_made_elements(l, module(l), part);
    if (state->gradient_buffer.index == DTP_NO_INDEX) {
        state->gradient[part] = dtp_draft_new(l, draft, module(l)->gradient_name[part], l->gradient_owner,
                                              element_bytes * elements, DTP_WRITE);
        return;
    }
    /* the sum of earlier micro-steps is read in the matmul's own output pass */
    dtp_draft_use(draft, state->gradient_buffer, l->first_micro_step ? DTP_WRITE : DTP_UPDATE);
    if (draft->op.kind == DTP_OP_MATMUL) /* the first time it adds to zeros */
        draft->op.demand.bytes = (double)((2 * dtp_lower_bytes(l)->grads - element_bytes) * elements);
}

void dtp_lower_add_gradient(struct dtp_lowering *l, int part, dtp_buffer_id before)
{
    dtp_buffer_id *made = &dtp_lower_state(l)->gradient[part];
    struct dtp_draft draft;
    if (!dtp_lower_holds(l) || before.index == DTP_NO_INDEX)
        return;
    dtp_draft_begin(l, &draft, DTP_OP_ACCUMULATE, module(l)->gradient_name[part]);
    dtp_draft_use(&draft, before, DTP_UPDATE);
    dtp_draft_use(&draft, *made, DTP_READ | DTP_FREE);
    dtp_draft_pass(l, &draft, 3 * (double)(l->compute * module(l)->elements[part]), 0, 1);
    dtp_draft_end(l, &draft);
    *made = before;
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

void dtp_lower_cast_gradient(struct dtp_lowering *l, int part)
{
    struct dtp_module_state *state = dtp_lower_state(l);
    uint64_t elements = module(l)->elements[part];
    bool alone = l->data_ranks == 1 && l->first_micro_step;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_CAST, module(l)->gradient_name[part]);
    dtp_buffer_id wide =
        dtp_draft_new(l, &draft, module(l)->gradient_name[part], alone ? DTP_OWNER_GRADS : DTP_OWNER_REDUCE,
                      dtp_lower_bytes(l)->grads * elements, DTP_WRITE);
    dtp_draft_use(&draft, state->gradient[part], DTP_READ | DTP_FREE);
    bool widens = dtp_lower_bytes(l)->grads > l->compute;
    dtp_draft_pass(l, &draft, (double)((dtp_lower_bytes(l)->grads + l->compute) * elements),
                   widens ? (double)elements : 0, 1);
    dtp_draft_end(l, &draft);
    state->gradient[part] = wide;
}

/* .grad += gradient */
static void accumulate(struct dtp_lowering *l, struct dtp_module_state *state, int part)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ACCUMULATE, module(l)->gradient_name[part]);
    dtp_draft_use(&draft, state->kept[part], DTP_UPDATE);
    dtp_draft_use(&draft, state->gradient[part], DTP_READ | DTP_FREE);
    dtp_draft_pass(l, &draft, 3 * (double)(dtp_lower_bytes(l)->grads * dtp_lower_made_elements(l, module(l), part)), 0,
                   1);
    dtp_draft_end(l, &draft);
    state->gradient[part] = DTP_NO_BUFFER;
}

void dtp_lower_keep_gradient(struct dtp_lowering *l, int part)
{
    struct dtp_module_state *state = dtp_lower_state(l);
    if (state->kept[part].index != DTP_NO_INDEX) {
        accumulate(l, state, part);
        return;
    }
    state->kept[part] = state->gradient[part];
    state->gradient[part] = DTP_NO_BUFFER;
}

void dtp_lower_gradient_made(struct dtp_lowering *l, int part)
{
    if (l->hooks->gradient_made && dtp_lower_state(l)->gradient[part].index != DTP_NO_INDEX)
        l->hooks->gradient_made(l, part);
}
