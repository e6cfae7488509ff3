/* What the time of a simulated step consists of: sums over its operations, and the figures of dtp_time that follow from
 * them. They stand apart because sums can be taken together: a step that repeats has so many times the sums of what is
 * repeated, where its final figures, which take the least or the most of two, need not. */
#ifndef DTP_STEP_TIME_H
#define DTP_STEP_TIME_H

#include "closed/closed_form.h"
#include "sim/simulate.h"

/* Seconds of one step, and nothing else, so that they can be added field by field. */
struct dtp_step_sums {
    /* Of operations alone, as the step runs them (dtp_op_in_step_s), by what they are for; the optimizer's are in
     * none. Recomputed matmuls count as matmuls too. */
    double matmul_s, attention_s, memory_bound_s, loss_s, recompute_s, kernels_s;
    double collective_s[DTP_COLLECTIVE_COUNT];
    /* Of the timeline, as simulate.h has them. */
    double step_s, compute_s, optimizer_s, exposed_communication_s, exposed_offload_s, host_bound_s, bubble_s;
};
#define DTP_STEP_SUM_COUNT (sizeof(struct dtp_step_sums) / sizeof(double))

/* `alone_s`: of each operation, by dtp_op_in_step_s at the timeline's factor and speed-up. */
void dtp_step_sums_of(const struct dtp_program *program, const struct dtp_timeline *timeline, const double *alone_s,
                      struct dtp_step_sums *out);
/* Fills what of *time a simulation tells and leaves the rest, offload_s and host_launch_s, which it reads, as they are;
 * *throughput is scaled from the step that *time had before to the one it has now. */
void dtp_step_time_of(const struct dtp_step_sums *sums, struct dtp_time *time, struct dtp_throughput *throughput);

#endif
