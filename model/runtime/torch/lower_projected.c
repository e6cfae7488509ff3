#include "runtime/torch/lower_projected.h"

#include "cost/op_cost.h"
#include "plan/optimizer_state.h"
#include "runtime/torch/lower_muon.h"

/* Outside of autocast, in the dtype of the gradients. */
static void product(struct dtp_lowering *l, dtp_buffer_id params, const char *name, double m, double n, double k)
{
    dtp_lower_optimizer_product(l, DTP_OP_PROJECTION, name,
                                &(struct dtp_optimizer_product){params, m, n, k, 1, l->plan->precision.params});
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
