/* What the choices of how collectives are carried (collective_ctas, symmetric_windows, gather_engine,
 * reduce_engine: runtime dtplan) change about their time alone, and about what they take from kernels beside them. */
#ifndef DTP_COLLECTIVE_CHOICE_H
#define DTP_COLLECTIVE_CHOICE_H

#include "base/execution.h"
#include "cost/collective_cost.h"

/* Whether it is left to NCCL, which is how machine files have it. */
bool dtp_collective_is_librarys(const struct dtp_execution *execution, enum dtp_collective collective);

/* What one takes as the plan has it carried; where the plan leaves it to NCCL, dtp_collective_cost_carried.
 *
 * Under runtime dtplan ranks of one node, whose links let GPUs map each other's memory, exchange rows by stores into it
 * and copy what tensor parallel ranks gather and what goes around a ring, whatever carries the rest
 * (exec/ranks/nccl_exchange.h). A probe measures stores (all_to_all_uneven); its rows of all_gather and shift are
 * NCCL's, and copies are then as much faster as the model has it. */
struct dtp_collective_cost dtp_collective_cost_chosen(const struct dtp_cluster *cluster, const struct dtp_group *group,
                                                      const struct dtp_execution *execution,
                                                      enum dtp_collective collective, enum dtp_carried carried);

/* While it runs: share of the SMs that its CTAs hold, and how often a byte that it sends passes through HBM in the way
 * of kernels beside it. Where a measured machine says what kernels lose for each second of it, and the plan leaves it
 * to NCCL as it was measured, that is the share, of all kernels, and there are no passes. */
struct dtp_collective_load {
    double sm_share, memory_passes;
    double slowdown; /* >= 1: its time beside kernels / alone; the share is of each second of that time */
    bool measured;
};
struct dtp_collective_load dtp_collective_load(const struct dtp_cluster *cluster, const struct dtp_group *group,
                                               const struct dtp_execution *execution, enum dtp_collective collective,
                                               enum dtp_carried carried);

#endif
