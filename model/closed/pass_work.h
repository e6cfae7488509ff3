/* Eager kernels of PyTorch that are priced by what bounds each (op_cost.h, dtp_pass_rates): of a block, what they take
 * besides the bytes that block_work.c counts. */
#ifndef DTP_PASS_WORK_H
#define DTP_PASS_WORK_H

#include "net/layer_kind.h"
#include "plan/plan.h"

/* Of a token and layer; [0] forward, [1] backward. */
struct dtp_passes {
    double bytes[2];    /* of those that the block moves */
    double elements[2]; /* that they take one at a time */
    double kernels[2];
    double column_sums; /* backward's sums over rows */
};

/* Whether the plan's kernels are such, and the operator's are. */
bool dtp_plan_passes(const struct dtp_plan *plan);
bool dtp_operator_passes(const struct dtp_plan *plan, const struct dtp_layer_kind *block,
                         const struct dtp_layer_operator *op);

/* Adds the operator's elements and sums; `stream`, `inner`: elements of a row between layers and of the MLP's. */
void dtp_passes_add(const struct dtp_transformer *transformer, const struct dtp_plan *plan,
                    const struct dtp_layer_kind *block, const struct dtp_layer_operator *op, double stream,
                    double inner, struct dtp_passes *passes);

/* Of logits and cross entropy, a token. */
bool dtp_loss_passes(const struct dtp_plan *plan);
double dtp_loss_elements(const struct dtp_transformer *transformer, const struct dtp_plan *plan);

#endif
