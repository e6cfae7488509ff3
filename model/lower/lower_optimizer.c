/* The optimizer's update, module by module: reads and writes of one pass over parameters, gradients and state. */
#include "lower/lowering.h"

#include "base/bytes.h"
#include "plan/optimizer_state.h"

const struct dtp_element_bytes *dtp_lower_bytes(const struct dtp_lowering *l)
{
    return l->layer == DTP_NO_LAYER ? &l->ends_bytes : &l->bytes;
}

void dtp_lower_add_state(struct dtp_lowering *l, struct dtp_lower_moments *moments, uint64_t bytes)
{
    dtp_buffer_id made = dtp_lower_buffer(l, "optimizer state", DTP_OWNER_OPTIMIZER, DTP_STREAM_COMPUTE, bytes, true);
    if (made.index == DTP_NO_INDEX)
        return;
    if (!moments->count++)
        moments->first = made;
}

/* Each state with its scales, and what else there is (a master copy) as one more. */
void dtp_lower_add_moments(struct dtp_lowering *l, struct dtp_lower_moments *moments, uint64_t elements)
{
    const struct dtp_element_bytes *bytes = dtp_lower_bytes(l);
    uint64_t states = dtp_optimizer_row(l->plan->optimizer)->states, all = dtp_optimizer_bytes(bytes, elements);
    uint64_t master = dtp_bytes_product(bytes->master, elements);
    for (uint64_t i = 0; i < states; i++)
        dtp_lower_add_state(l, moments, (all - master) / states);
    dtp_lower_add_state(l, moments, master);
}

/* Of one kernel over many tensors a few; of loops over tensors those of each that is not a product's. */
#define UPDATE_KERNELS 3
static uint32_t update_kernels(const struct dtp_lowering *l, const struct dtp_plan *plan)
{
    const struct dtp_lower_module *module = l->layer == DTP_NO_LAYER ? &l->root : &l->block;
    const uint32_t of_each = dtp_optimizer_tensor_kernels(plan);
    const bool apart = dtp_optimizer_row(plan->optimizer)->shape == DTP_STATE_PROJECTED;
    uint32_t tensors = 0;
    if (!of_each)
        return UPDATE_KERNELS;
    for (int part = 0; part < module->parts; part++)
        tensors += apart && module->matrix[part] ? 0 : module->tensors[part];
    return of_each * tensors;
}

void dtp_lower_update(struct dtp_lowering *l, dtp_buffer_id params, struct dtp_lower_moments moments,
                      const dtp_buffer_id *grads, int grad_count, uint64_t elements)
{
    const struct dtp_plan *plan = l->layer == DTP_NO_LAYER ? &l->ends : l->plan;
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
    dtp_draft_memory(l, &draft, dtp_optimizer_bytes_per_parameter(plan) * (double)elements, update_kernels(l, plan));
    draft.op.demand.memory_kernel = (uint8_t)dtp_update_kernel(plan);
    dtp_draft_end(l, &draft);
}
