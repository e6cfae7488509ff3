/* The optimizer's update, module by module: reads and writes of one pass over parameters, gradients and state. */
#include "lower/lowering.h"

#include "base/bytes.h"

static void add_state(struct dtp_lowering *l, struct dtp_lower_moments *moments, uint64_t bytes)
{
    dtp_buffer_id made = dtp_lower_buffer(l, "optimizer state", DTP_OWNER_OPTIMIZER, DTP_STREAM_COMPUTE, bytes, true);
    if (made.index == DTP_NO_INDEX)
        return;
    if (!moments->count++)
        moments->first = made;
}

/* First moment, second moment, and what else there is (a master copy) as a third. */
void dtp_lower_add_moments(struct dtp_lowering *l, struct dtp_lower_moments *moments, uint64_t elements)
{
    uint64_t each = dtp_dtype_bytes(l->plan->precision.moments), all = l->bytes.optimizer;
    if (all < 2 * each) {
        add_state(l, moments, all * elements);
        return;
    }
    add_state(l, moments, each * elements);
    add_state(l, moments, each * elements);
    add_state(l, moments, (all - 2 * each) * elements);
}

void dtp_lower_update(struct dtp_lowering *l, dtp_buffer_id params, struct dtp_lower_moments moments,
                      const dtp_buffer_id *grads, int grad_count, uint64_t elements)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_OPTIMIZER, "");
    dtp_draft_use(&draft, params, DTP_UPDATE);
    for (uint32_t i = 0; i < moments.count; i++)
        dtp_draft_use(&draft, (dtp_buffer_id){moments.first.index + i}, DTP_UPDATE);
    for (int i = 0; i < grad_count; i++)
        dtp_draft_use(&draft, grads[i], DTP_READ);
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_REDUCE]);
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_REPLICATE]);
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_COPY]); /* gathers read the shards */
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_GATHER]);
    dtp_draft_memory(l, &draft, dtp_optimizer_bytes_per_parameter(l->plan) * (double)elements, 3);
    draft.op.demand.memory_kernel = DTP_KERNEL_STREAMING;
    dtp_draft_end(l, &draft);
}

/* zero_grad(set_to_none=True) after the step. */
static void free_gradients(struct dtp_lowering *l, uint64_t module, int parts)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_FREE, "zero_grad");
    for (int part = 0; part < parts; part++) {
        dtp_draft_use(&draft, l->state[module].kept[part], DTP_FREE);
        l->state[module].kept[part] = DTP_NO_BUFFER;
    }
    if (draft.operand_count)
        dtp_draft_end(l, &draft);
}

static uint64_t local_elements(const struct dtp_lowering *l)
{
    uint64_t layers = l->transformer->layers;
    if (l->sharded)
        return layers * l->block.all_shard + l->root.all_shard;
    return dtp_divide_up(layers * l->block.all_elements + l->root.all_elements, l->plan->shard_group);
}

static void replicated_step(struct dtp_lowering *l)
{
    uint64_t ranks = l->plan->shard_group, before = 0;
    for (uint64_t i = 0; i <= l->transformer->layers; i++) {
        bool root = i == l->transformer->layers;
        const struct dtp_lower_module *module = root ? &l->root : &l->block;
        l->layer = root ? DTP_NO_LAYER : (uint16_t)i;
        dtp_buffer_id grads[DTP_MAX_PARTS];
        for (int part = 0; part < module->parts; part++) {
            bool apart = l->state[i].kept[part].index != DTP_NO_INDEX;
            grads[part] = apart || !l->buckets ? l->state[i].kept[part] : dtp_lower_bucket_of(l, i, part);
        }
        uint64_t end = before + module->all_elements;
        dtp_lower_update(l, l->state[i].params, l->state[i].moments, grads, module->parts,
                         dtp_divide_up(end, ranks) - dtp_divide_up(before, ranks));
        before = end;
    }
    for (uint64_t i = 0; i <= l->transformer->layers; i++)
        free_gradients(l, i, i == l->transformer->layers ? l->root.parts : l->block.parts);
    l->layer = DTP_NO_LAYER;
}

void dtp_lower_optimizer(struct dtp_lowering *l)
{
    /* foreach AdamW: a list of sqrt(v) of all local parameters */
    bool foreach =
        l->plan->optimizer == DTP_ADAMW_FOREACH && l->plan->runtime->fsdp && l->plan->offload == DTP_OFFLOAD_NONE;
    dtp_buffer_id roots = DTP_NO_BUFFER;
    struct dtp_draft draft;
    if (foreach) {
        dtp_draft_begin(l, &draft, DTP_OP_ALLOC, "");
        roots = dtp_draft_new(l, &draft, "square roots of moments", DTP_OWNER_WORKSPACE,
                              dtp_dtype_bytes(l->plan->precision.moments) * local_elements(l), 0);
        dtp_draft_end(l, &draft);
    }
    if (l->zero3)
        dtp_lower_zero3_step(l);
    else if (l->ipg)
        dtp_lower_ipg_step(l);
    else if (l->sharded)
        dtp_lower_units_step(l);
    else if (l->buffered)
        dtp_lower_contiguous_step(l);
    else
        replicated_step(l);
    if (foreach) {
        dtp_draft_begin(l, &draft, DTP_OP_FREE, "");
        dtp_draft_use(&draft, roots, DTP_FREE);
        dtp_draft_end(l, &draft);
    }
    if (!l->buffered && !l->plan->runtime->fetches_modules)
        dtp_lower_broadcast(l);
}
