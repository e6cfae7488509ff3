/* Which collectives of tensor parallel ranks have a product beside them: lower_executor_tensor.c, and where backward is
 * split lower_executor_split.c. */
#include "plan/rules.h"
#include "runtime/dtplan/executor_work.h"

enum { FORWARD, BACKWARD };

/* Elements of matrices, of the model's mean layer; collectives. */
struct products {
    double gathering, summing, all;
    uint64_t gathers, sums;
};

static void add_products(const struct dtp_executor_block *block, uint64_t layers, double part, struct products *out)
{
    for (int i = 0; i < block->count; i++) {
        const struct dtp_executor_operator *op = &block->op[i];
        if (op->kind != DTP_OP_MATMUL || !op->matrix)
            continue;
        const double elements = part * (double)(op->matrix->out * op->matrix->in);
        out->all += elements;
        out->gathering += op->gathers ? elements : 0, out->summing += op->sums ? elements : 0;
        out->gathers += op->gathers ? layers : 0, out->sums += op->sums ? layers : 0;
    }
}

/* A projection that gathers its input gathers it once more beside its input gradient's product, whose sum is scattered
 * beside its weight gradient's; the two products are as large. Where backward is split, nothing stands beside the sums,
 * and a gather beside the product before the one that reads it: the first of a pass beside none.
 *
 * In C chunks all but the first of what a product reads, all but the last of what it makes stand beside C - 1 chunks of
 * it: gathers forward, sums forward, and gathers of a sum's gradient. */
void dtp_executor_tensor_overlap(const struct dtp_executor_kinds *kinds, const struct dtp_plan *plan,
                                 struct dtp_tensor_traffic *out)
{
    const uint64_t chunks = dtp_executor_tensor_chunks(plan);
    const double share = (double)(chunks - 1) / (double)chunks;
    struct products p = {.all = 0};
    uint64_t layers = 0;
    out->chunks = chunks;
    out->gathers *= chunks, out->sums *= chunks;
    for (int i = 0; i < kinds->count; i++)
        layers += kinds->layers[i];
    if (!plan->tp_overlap || !layers)
        return;
    for (int i = 0; i < kinds->count; i++)
        add_products(kinds->block[i], kinds->layers[i], (double)kinds->layers[i] / (double)layers, &p);
    const bool splits = dtp_plan_splits_backward(plan);
    out->gathers_beside = chunks * p.gathers - (splits && p.gathers ? 1 : 0) + (chunks - 1) * (p.gathers + p.sums);
    out->sums_beside = (splits ? 0 : chunks * p.gathers) + (chunks - 1) * p.sums;
    if (p.all <= 0)
        return;
    out->gather_shares[FORWARD] = share * p.gathering / p.all;
    out->gather_shares[BACKWARD] = (p.gathering + share * p.summing) / (2 * p.all);
    out->sum_shares[FORWARD] = share * p.summing / p.all;
    out->sum_shares[BACKWARD] = p.gathering / (2 * p.all);
}
