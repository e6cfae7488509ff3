#include "runtime/torch/lower_muon.h"

#include "cost/op_cost.h"
#include "plan/optimizer_state.h"
#include "plan/runtime_sizes.h"

static void product(struct dtp_lowering *l, dtp_buffer_id params, const char *name, double m, double n, double k)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_NEWTON_SCHULZ, name);
    dtp_draft_use(&draft, params, DTP_READ);
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_REDUCE]);
    draft.op.demand.m = m, draft.op.demand.n = n, draft.op.demand.k = k;
    draft.op.demand.groups = draft.op.demand.kernels = DTP_NEWTON_SCHULZ_STEPS;
    draft.op.demand.flops = DTP_NEWTON_SCHULZ_STEPS * 2 * m * n * k;
    draft.op.demand.dtype = DTP_BF16;
    dtp_draft_end(l, &draft);
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
