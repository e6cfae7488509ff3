/* What the stages of a pipeline join behind their last pass: gradients of modules that two ranks hold. The norm of all
 * gradients is lower_executor_step.c's. */
#include "runtime/dtplan/lower_executor_state.h"

#include "base/bytes.h"
#include "plan/degrees.h"

/* ---- modules ----------------------------------------------------------------------------------------------------- */

/* Embedding and head are the model's; a block is as many behind its chunk's first as in the rank's list. */
uint64_t dtp_executor_model_module(const struct dtp_executor *x, uint64_t index)
{
    const struct dtp_lower_role *role = &x->l->role;
    if (index == 0)
        return 0;
    if (index >= x->module_count) { /* a block's adapters, or experts, stand behind all modules as it does; packed ones
                                       behind adapters */
        const uint64_t own = index - x->module_count, layers = x->t->layers;
        return (own / layers + 1) * x->model_layers + 1 + dtp_executor_model_module(x, own % layers + 1);
    }
    for (uint32_t i = 0; i < role->chunk_count; i++) {
        const struct dtp_lower_chunk *chunk = &role->chunks[i];
        if (index - 1 >= chunk->first && index - 1 < chunk->first + chunk->layers)
            return chunk->first_of_model + index - chunk->first;
    }
    return x->model_layers + 1;
}

bool dtp_executor_owns(const struct dtp_executor *x, uint64_t index)
{
    const struct dtp_lowering *l = x->l;
    uint32_t peer;
    if (!l->role.pipeline)
        return true;
    uint32_t ranks = l->role.pipeline->schedule->shape.ranks;
    if (dtp_schedule_lines(l->role.pipeline->schedule) == 2)
        return l->role.rank < ranks - 1 - l->role.rank;
    return index != 0 || !dtp_lower_tied_peer(l, &peer) || l->role.rank < peer;
}

/* Both ends of a model write the gradient of a table that is the head too. */
static bool writes_table(const struct dtp_executor *x, const struct dtp_pass *pass)
{
    if (x->shape->adapted) /* frozen */
        return false;
    const struct dtp_lower_chunk *chunk = &x->l->role.chunks[pass->chunk];
    bool makes = pass->kind == DTP_PASS_BACKWARD || pass->kind == DTP_PASS_WHOLE_BACKWARD;
    return makes && (chunk->embedding || (chunk->head && x->t->tied_head));
}

void dtp_executor_close_table(struct dtp_executor *x)
{
    const struct dtp_lower_role *role = &x->l->role;
    if (!writes_table(x, x->l->pass))
        return;
    for (uint32_t i = (uint32_t)(x->l->pass - role->passes) + 1; i < role->pass_count; i++)
        if (writes_table(x, &role->passes[i]))
            return;
    dtp_executor_zero_unwritten(x, &x->modules[0]); /* positions, where no embedding has added to them */
    dtp_executor_close_gradient(x, &x->modules[0]);
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

/* Its reductions have ended before what is sent of it. */
static void join(struct dtp_executor *x, uint64_t index, uint32_t peer)
{
    struct dtp_executor_module *module = &x->modules[index];
    struct dtp_draft draft;
    uint64_t elements = module->shard_ranks > 1 ? module->layout->shard_elements : module->layout->elements;
    uint64_t element_bytes = module->shard_ranks > 1 ? module->shard_element_bytes : module->gradient_element_bytes;
    if (!elements || !dtp_executor_is_trained(x, module))
        return;
    dtp_executor_begin_at(x, module, &draft, DTP_OP_MARK, "gradients of the copy");
    dtp_draft_after(&draft, module->reduced_by);
    module->reduced_by = DTP_NO_OP;
    dtp_draft_end(x->l, &draft);
    x->l->layer = draft.op.layer;
    dtp_lower_exchange(x->l, peer, "gradients of the copy", dtp_executor_gradients_of(module), 0,
                       dtp_bytes_product(elements, element_bytes));
    x->l->layer = DTP_NO_LAYER;
}

/* Of a pipeline that runs both ways, rank r and the r-th from the end hold the same modules, and go through them in the
 * model's order. */
static void join_directions(struct dtp_executor *x, uint32_t peer)
{
    const struct dtp_lower_role *role = &x->l->role;
    bool second_first = role->chunks[1].first_of_model < role->chunks[0].first_of_model;
    join(x, 0, peer);
    for (uint32_t i = 0; i < 2; i++) {
        const struct dtp_lower_chunk *chunk = &role->chunks[second_first ? 1 - i : i];
        for (uint64_t layer = chunk->first; layer < chunk->first + chunk->layers; layer++) {
            join(x, layer + 1, peer);
            if (x->adapter_count || x->expert_count) /* of which there is one kind */
                join(x, x->module_count + layer, peer);
        }
    }
    join(x, x->module_count - 1, peer);
}

void dtp_executor_join_copies(struct dtp_executor *x)
{
    struct dtp_lowering *l = x->l;
    uint32_t peer;
    l->micro_step = 0;
    if (dtp_schedule_lines(l->role.pipeline->schedule) == 2)
        join_directions(x, l->role.pipeline->schedule->shape.ranks - 1 - l->role.rank);
    else if (dtp_lower_tied_peer(l, &peer))
        join(x, 0, peer);
}
