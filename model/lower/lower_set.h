/* Lowering of a job whose ranks do not all do the same: a role for each rank of its pipeline.
 *
 * The plan's schedule says in which order a rank passes micro-batches through its chunks of the model, its stages which
 * layers these are. Each role gets the step program of one of its gpus / pp ranks (lower.h) with what it sends and
 * receives, so that the set is proved, simulated and traced as one (program/program_set.h). */
#ifndef DTP_LOWER_SET_H
#define DTP_LOWER_SET_H

#include "lower/lower.h"
#include "program/program_set.h"

/* As dtp_lower; pp 1 makes a set of one role. `op_limit` is for each role; of all together there are at most about
 * DTP_LOWER_MOST_OPS. Caller releases *out, which is empty after a failure. DTP_BAD_INPUT also for a schedule that
 * the plan's micro-steps, or its runtime, do not allow. */
enum dtp_status dtp_lower_set(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                              const struct dtp_plan *plan, uint32_t op_limit, struct dtp_program_set *out,
                              struct dtp_faults *faults);

#endif
