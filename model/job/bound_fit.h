/* Whether a job fits, as far as the bound of its memory can tell: for whoever looks at many jobs of which most are far
 * from the limit. What it leaves open the step program decides (job/estimate.h).
 *
 * The bound is taken for the bytes of all tensors, and context, NCCL, host memory and NVMe come on top as they do for a
 * program (closed/memory.h). No program takes less than what surely stands (bounds.h), nor than the bound less as much
 * as bounds of its kind may lie above programs; a plan whose memory is judged worse by that alone is worse. It is not
 * out of memory where as much more than the bound fits as bounds may lie below programs. test_bounds holds all three on
 * every plan that it draws. */
#ifndef DTP_BOUND_FIT_H
#define DTP_BOUND_FIT_H

#include "bounds/bounds.h"
#include "closed/memory.h"

/* Of the program's peak, how far a bound of such a plan may lie off. Of tensor and pipeline parallelism the bound is
 * that of a rank's slice with what the other ranks add, against the same of a program; a loss over DTensors and slices
 * narrower than a head are not in it. test_bounds fails beyond these. */
struct dtp_bound_off {
    double below, above;
    double surely; /* how much more than DTP_BOUND_LEAST_ABOVE what surely stands may lie above it */
};
struct dtp_bound_off dtp_bound_most_off(const struct dtp_transformer *transformer, const struct dtp_plan *plan);
/* How far what surely stands may lie above a program's peak, whatever the plan. */
#define DTP_BOUND_LEAST_ABOVE 0.02

/* Memory whose tensors are the bound: state at rest, kept activations, and the rest of it as workspace. Inputs as for
 * dtp_bounds_of; `parts` as in dtp_memory_of_live. */
void dtp_bound_memory_of(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                         const struct dtp_plan *plan, struct dtp_memory *out, struct dtp_memory_parts *parts);

struct dtp_bound_fit {
    struct dtp_memory memory;
    uint64_t least_bytes;          /* of tensors, that a program surely has at its peak */
    enum dtp_verdict best_verdict; /* that a program may have; DTP_VERDICT_OOM: it is out of memory for sure */
    bool surely_not_oom;
};

/* Inputs as for dtp_bounds_of, the whole plan under tensor and pipeline parallelism, of which only one rank's slice
 * has a bound from below: what stages hold besides comes on top. `kept` as for dtp_bounds_of. Allocates nothing; some
 * 2 us. */
void dtp_bound_fit_of(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                      const struct dtp_plan *plan, struct dtp_job_layers *kept, struct dtp_bound_fit *out);

#endif
