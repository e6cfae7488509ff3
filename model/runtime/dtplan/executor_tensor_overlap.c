/* Which collectives of tensor parallel ranks have a product beside them: lower_executor_tensor.c, and where backward is
 * split lower_executor_split.c. */
#include "plan/rules.h"
#include "runtime/dtplan/executor_work.h"

/* A projection that gathers its input gathers it once more beside its input gradient's product, whose sum is scattered
 * beside its weight gradient's; the two products are as large. Where backward is split, nothing stands beside the sums,
 * and a gather beside the product before the one that reads it: the first of a pass beside none. */
void dtp_executor_tensor_overlap(const struct dtp_executor_block *block, const struct dtp_plan *plan, uint64_t layers,
                                 struct dtp_tensor_traffic *out)
{
    double beside = 0, all = 0;
    uint64_t gathers = 0;
    if (!plan->tp_overlap || !layers)
        return;
    for (int i = 0; i < block->count; i++) {
        const struct dtp_executor_operator *op = &block->op[i];
        if (op->kind != DTP_OP_MATMUL || !op->matrix)
            continue;
        const double elements = (double)(op->matrix->out * op->matrix->in);
        all += 2 * elements;
        beside += op->gathers ? elements : 0;
        gathers += op->gathers ? layers : 0;
    }
    const bool splits = dtp_plan_splits_backward(plan);
    out->gathers_beside = gathers - (splits && gathers ? 1 : 0);
    out->sums_beside = splits ? 0 : gathers;
    out->beside_share = all > 0 ? beside / all : 0;
}
