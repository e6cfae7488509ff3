#include "runtime/torch/lower_muon.h"

#include "cost/op_cost.h"
#include "plan/optimizer_state.h"
#include "plan/runtime_sizes.h"

void dtp_lower_optimizer_product(struct dtp_lowering *l, enum dtp_op_kind kind, const char *name,
                                 const struct dtp_optimizer_product *product)
{
    const struct dtp_optimizer_product *p = product;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, kind, name);
    dtp_draft_use(&draft, p->params, DTP_READ);
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_REDUCE]);
    draft.op.demand.m = p->m, draft.op.demand.n = p->n, draft.op.demand.k = p->k;
    draft.op.demand.groups = draft.op.demand.kernels = p->times;
    draft.op.demand.flops = p->times * 2 * p->m * p->n * p->k;
    draft.op.demand.dtype = (uint8_t)p->dtype;
    dtp_draft_end(l, &draft);
}

static void product(struct dtp_lowering *l, dtp_buffer_id params, const char *name, double m, double n, double k)
{
    dtp_lower_optimizer_product(l, DTP_OP_NEWTON_SCHULZ, name,
                                &(struct dtp_optimizer_product){params, m, n, k, DTP_NEWTON_SCHULZ_STEPS, DTP_BF16});
}

uint64_t dtp_lower_muon(struct dtp_lowering *l, const struct dtp_lower_module *module, uint64_t index)
{
    uint64_t elements = 0, matrices = 0;
    double bytes = 0;
    if (dtp_optimizer_row(l->plan->optimizer)->shape != DTP_STATE_MATRICES)
        return 0;
    dtp_buffer_id params = l->state[index].params;
    for (int part = 0; part < module->parts; part++) {
        struct dtp_newton_schulz p;
        if (!module->matrix[part])
            continue;
        dtp_newton_schulz_of(l->plan, module->rows[part], module->columns[part], &p);
        product(l, params, "gram matrix", p.n, p.n, p.m);
        product(l, params, "polynomial of it", p.n, p.n, p.n);
        product(l, params, "times the matrix", p.n, p.m, p.n);
        elements += module->elements[part], matrices++;
        bytes += p.bytes;
    }
    if (!matrices)
        return 0;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_OPTIMIZER, "passes over matrices");
    dtp_draft_use(&draft, params, DTP_UPDATE);
    bytes += dtp_optimizer_matrix_bytes_per_parameter(l->plan) * (double)elements;
    dtp_draft_memory(l, &draft, bytes, (uint32_t)matrices);
    draft.op.demand.memory_kernel = DTP_KERNEL_STREAMING;
    dtp_draft_end(l, &draft);
    return elements;
}
