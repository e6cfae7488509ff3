/* What the choices of how collectives are carried (collective_ctas, symmetric_windows, gather_engine,
 * reduce_engine: runtime dtplan) change about their time alone, and about what they take from kernels beside them. */
#ifndef DTP_COLLECTIVE_CHOICE_H
#define DTP_COLLECTIVE_CHOICE_H

#include "base/execution.h"
#include "cost/collective_cost.h"

/* Whether it is left to NCCL, which is how machine files have it. */
bool dtp_collective_is_librarys(const struct dtp_execution *execution, enum dtp_collective collective);

/* How a group's collectives go: under runtime dtplan tensor parallel ranks of one node, whose links let GPUs map each
 * other's memory, copy rows there where they gather them, whatever carries the others (exec/ranks/nccl_exchange.h). A
 * probe's rows of all_gather, which are NCCL's, say nothing of these: copy_gather_s and copy_link_fraction do. */
struct dtp_execution dtp_collective_execution(const struct dtp_cluster *cluster, const struct dtp_group *group,
                                              const struct dtp_execution *execution);

/* Turns the cost of NCCL's own choice for this group into that of the plan's. Nothing changes where the plan leaves it
 * to NCCL. */
void dtp_collective_choose(const struct dtp_cluster *cluster, const struct dtp_group *group,
                           const struct dtp_execution *execution, enum dtp_collective collective,
                           struct dtp_collective_cost *cost);

/* While it runs: share of the SMs that its CTAs hold, and how often a byte that it sends passes through HBM in the way
 * of kernels beside it. Where a measured machine says what kernels lose for each second of it, and the plan leaves it
 * to NCCL as it was measured, that is the share, of all kernels, and there are no passes. */
struct dtp_collective_load {
    double sm_share, memory_passes;
    double slowdown; /* >= 1: its time beside kernels / alone; the share is of each second of that time */
    bool measured;
};
struct dtp_collective_load dtp_collective_load(const struct dtp_cluster *cluster, const struct dtp_group *group,
                                               const struct dtp_execution *execution, enum dtp_collective collective);

#endif
