/* How the host issues kernels: what CUDA graphs replay, what a library loops over (plan/graph_modules.h). */
#ifndef DTP_LOWER_GRAPHS_H
#define DTP_LOWER_GRAPHS_H

#include "lower/lowering.h"
#include "plan/graph_modules.h"

/* All passes of a step begin, and are through; the skeleton comes to an operator of the block at which it stands, and
 * leaves the last of a pass over it. */
void dtp_lower_begin_graphs(struct dtp_lowering *l);
void dtp_lower_end_graphs(struct dtp_lowering *l);
void dtp_lower_at_operator(struct dtp_lowering *l, int index);
void dtp_lower_behind_operators(struct dtp_lowering *l);
/* The activation that makes this tensor runs within the matmul before it, and its derivative within that behind. */
bool dtp_lower_activates_within(const struct dtp_lowering *l, enum dtp_layer_tensor product);
/* Of an operation on experts, `kernels` in a loop over them (graph_modules.h). */
static inline void dtp_draft_loop(struct dtp_draft *draft, uint32_t kernels, uint32_t loops)
{
    draft->op.demand.kernels = kernels * loops;
    if (loops > 1 && draft->op.demand.issue == DTP_ISSUE_APART)
        draft->op.demand.issue = DTP_ISSUE_LOOPED;
}

#endif
