/* Whether a job fits, as far as the bound of its memory can tell: for whoever looks at many jobs of which most are far
 * from the limit. What it leaves open the step program decides (job/estimate.h).
 *
 * The bound is taken for the bytes of all tensors, and context, NCCL, host memory and NVMe come on top as they do for a
 * program (closed/memory.h). A plan is out of memory for sure where as much less than the bound is still too much as
 * bounds of its kind may lie above programs, and it is not where as much more fits as they may lie below: test_bounds
 * holds both on every plan that it draws. */
#ifndef DTP_BOUND_FIT_H
#define DTP_BOUND_FIT_H

#include "closed/memory.h"

/* Of the program's peak, how far a bound of such a plan may lie off. By who holds parameters: whole ones and FSDP's
 * units that go after forward lie closest; a net of one to three layers has too few units for what the formulas take as
 * standing side by side; buckets and fetches that count elements, DeepSpeed's, end where only a walk knows. test_bounds
 * fails beyond these; DTPLAN_TEST_SEED=1 to 50 hold. */
struct dtp_bound_off {
    double below, above;
};
struct dtp_bound_off dtp_bound_most_off(const struct dtp_transformer *transformer, const struct dtp_plan *plan);

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
