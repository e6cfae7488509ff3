/* The optimizer's update, module by module: reads and writes of one pass over parameters, gradients and state. */
#include "lower/lowering.h"

void dtp_lower_add_state(struct dtp_lowering *l, struct dtp_lower_moments *moments, uint64_t bytes)
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
        dtp_lower_add_state(l, moments, all * elements);
        return;
    }
    dtp_lower_add_state(l, moments, each * elements);
    dtp_lower_add_state(l, moments, each * elements);
    dtp_lower_add_state(l, moments, (all - 2 * each) * elements);
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
