/* Whether a job fits, as far as the bound of its memory can tell: for whoever looks at many jobs of which most are far
 * from the limit. What it leaves open the step program decides (job/estimate.h).
 *
 * The bound is taken for the bytes of all tensors, and context, NCCL, host memory and NVMe come on top as they do for a
 * program (closed/memory.h). A plan is out of memory where a fifth less than the bound is still too much: bounds are to
 * lie no further above a program (bounds.h; of 6,000 plans 6 were outside of -1 to +20 %, at most by +28 %). It is not
 * where as much more fits as bounds have been seen below. */
#ifndef DTP_BOUND_FIT_H
#define DTP_BOUND_FIT_H

#include "closed/memory.h"

#define DTP_BOUND_MOST_BELOW 0.15
#define DTP_BOUND_MOST_ABOVE 0.20

/* Memory whose tensors are the bound: state at rest, kept activations, and the rest of it as workspace. Inputs as for
 * dtp_bounds_of; `parts` as in dtp_memory_of_live. */
void dtp_bound_memory_of(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                         const struct dtp_plan *plan, struct dtp_memory *out, struct dtp_memory_parts *parts);

struct dtp_bound_fit {
    struct dtp_memory memory;
    bool surely_oom, surely_not_oom;
};

/* Inputs as for dtp_bounds_of, the whole plan under tensor and pipeline parallelism: what stages hold besides has no
 * bound from below, so that surely_oom is never set there. Allocates nothing; some 2 us. */
void dtp_bound_fit_of(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                      const struct dtp_plan *plan, struct dtp_bound_fit *out);

#endif
