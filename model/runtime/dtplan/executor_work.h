/* The work of a step of our executor in closed form: FLOPs, bytes through HBM and launches, from shapes, without
 * walking a program. The kernels' bytes are those that lower_executor_bytes.c writes beside each operation, added up
 * here by tensor instead of by operation, so that one checks the other. */
#ifndef DTP_EXECUTOR_WORK_H
#define DTP_EXECUTOR_WORK_H

#include "base/bytes.h"
#include "runtime/dtplan/lower_executor.h"

struct dtp_executor_work {
    /* Of one micro-step. */
    double matmul_flops, attention_flops; /* without what is recomputed */
    double recompute_matmul_flops, recompute_attention_flops;
    double forward_bytes, backward_bytes, loss_bytes, recompute_bytes; /* memory-bound kernels */
    double kernels;
    /* Of the whole step: zeros, sums of gradients, norm, update. */
    double gradient_bytes, update_bytes, step_kernels;
    double host_update_bytes; /* of host memory, where the optimizer is offloaded */
};
void dtp_executor_work(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                       const struct dtp_plan *plan, struct dtp_executor_work *out);

#endif
