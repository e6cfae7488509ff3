/* Which collectives of tensor parallel ranks have a product beside them: lower_executor_tensor.c, and where backward is
 * split lower_executor_split.c. */
#include "plan/rules.h"
#include "runtime/dtplan/executor_work.h"

enum { FORWARD, BACKWARD };

/* A projection that gathers its input gathers it once more beside its input gradient's product, whose sum is scattered
 * beside its weight gradient's; the two products are as large. Where backward is split, nothing stands beside the sums,
 * and a gather beside the product before the one that reads it: the first of a pass beside none.
 *
 * In C chunks all but the first of what a product reads, all but the last of what it makes stand beside C - 1 chunks of
 * it: gathers forward, sums forward, and gathers of a sum's gradient. */
void dtp_executor_tensor_overlap(const struct dtp_executor_block *block, const struct dtp_plan *plan, uint64_t layers,
                                 struct dtp_tensor_traffic *out)
{
    const uint64_t chunks = dtp_executor_tensor_chunks(plan);
    const double part = (double)(chunks - 1) / (double)chunks;
    double gathering = 0, summing = 0, all = 0;
    uint64_t gathers = 0, sums = 0;
    out->chunks = chunks;
    out->gathers *= chunks, out->sums *= chunks;
    if (!plan->tp_overlap || !layers)
        return;
    for (int i = 0; i < block->count; i++) {
        const struct dtp_executor_operator *op = &block->op[i];
        if (op->kind != DTP_OP_MATMUL || !op->matrix)
            continue;
        const double elements = (double)(op->matrix->out * op->matrix->in);
        all += elements;
        gathering += op->gathers ? elements : 0, summing += op->sums ? elements : 0;
        gathers += op->gathers ? layers : 0, sums += op->sums ? layers : 0;
    }
    const bool splits = dtp_plan_splits_backward(plan);
    out->gathers_beside = chunks * gathers - (splits && gathers ? 1 : 0) + (chunks - 1) * (gathers + sums);
    out->sums_beside = (splits ? 0 : chunks * gathers) + (chunks - 1) * sums;
    if (all <= 0)
        return;
    out->gather_shares[FORWARD] = part * gathering / all;
    out->gather_shares[BACKWARD] = (gathering + part * summing) / (2 * all);
    out->sum_shares[FORWARD] = part * summing / all;
    out->sum_shares[BACKWARD] = gathering / (2 * all);
}
