#include "runtime/torch/lower_projected.h"

#include "cost/op_cost.h"
#include "plan/optimizer_state.h"

static void product(struct dtp_lowering *l, dtp_buffer_id params, const char *name, double m, double n, double k)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_PROJECTION, name);
    dtp_draft_use(&draft, params, DTP_READ);
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_REDUCE]);
    draft.op.demand.m = m, draft.op.demand.n = n, draft.op.demand.k = k;
    draft.op.demand.groups = draft.op.demand.kernels = 1;
    draft.op.demand.flops = 2 * m * n * k;
    draft.op.demand.dtype = (uint8_t)l->plan->precision.params; /* outside of autocast, in that of the gradients */
    dtp_draft_end(l, &draft);
}

uint64_t dtp_lower_projected(struct dtp_lowering *l, const struct dtp_lower_module *module, uint64_t index)
{
    uint64_t elements = 0;
    uint32_t kernels = 0;
    double bytes = 0;
    if (dtp_optimizer_row(l->plan->optimizer)->shape != DTP_STATE_PROJECTED)
        return 0;
    dtp_buffer_id params = l->state[index].params;
    for (int part = 0; part < module->parts; part++) {
        struct dtp_projection p;
        if (!module->matrix[part])
            continue;
        dtp_projection_of(l->plan, module->rows[part], module->columns[part], &p);
        product(l, params, "projected gradient", p.m, p.rank, p.n);
        if (p.products > 1)
            product(l, params, "projected back", p.m, p.n, p.rank);
        elements += module->elements[part], kernels += p.kernels, bytes += p.bytes;
    }
    if (!elements)
        return 0;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_OPTIMIZER, "passes over matrices");
    dtp_draft_use(&draft, params, DTP_UPDATE);
    bytes += dtp_optimizer_matrix_bytes_per_parameter(l->plan) * (double)elements;
    dtp_draft_memory(l, &draft, bytes, kernels);
    draft.op.demand.memory_kernel = DTP_KERNEL_STREAMING;
    dtp_draft_end(l, &draft);
    return elements;
}
