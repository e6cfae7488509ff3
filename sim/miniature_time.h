/* The time of a step from miniatures: two short step programs simulated instead of one of all layers.
 *
 * A step of many layers is a short one with a period inserted again and again (lower/miniature.h), and once it runs
 * steadily each period takes as long as the one before. So everything that a simulation sums (step_time.h) is a line in
 * the number of layers, and two short steps of p and p + T layers, T layers a period, give it. Of many micro-steps two
 * and three are simulated likewise; both together take four short steps, the corners of
 *
 *     sums(L, K) = s(p, 2) + n a + m b + n m c      n periods and m micro-steps beyond, a, b, c from the corners
 *
 * How much faster tensor cores run by what power allows depends on their share in the *whole* step (op_cost.h): times
 * of kernels alone are lines without any condition, so the share of the whole is known before the miniatures run, and
 * they run at its clock.
 *
 * That it does run steadily cannot be taken for granted: the host's lead over the device, a backlog of collectives, a
 * window of prefetches shrink or grow layer by layer, and where one is used up the rest of the step takes another time.
 * So for the operations that set the length of the step, its critical path, every wait that could have come instead is
 * followed too: by how much what else it needs was there earlier, its slack, is a line as well, and a slack that would
 * fall below 0 before the last layer says that the path of the whole step is another one. Then, and where operations do
 * not line up (line_up.h) or the cost of a collective is no line in its bytes, there is no answer and the step is to be
 * simulated whole. tests/sim/test_miniature_time.c says how often, and how far off the others are. */
#ifndef DTP_MINIATURE_TIME_H
#define DTP_MINIATURE_TIME_H

#include "job/variant.h"
#include "sim/step_time.h"

struct dtp_miniature_time {
    struct dtp_step_sums sums; /* of the whole step */
    double matmul_speedup, compute_factor;
    uint64_t layers;      /* of the larger miniature */
    uint32_t micro_steps; /* of it */
};

/* As dtp_simulate does by default. DTP_NO, without a fault: this step does not follow from miniatures. Other faults are
 * those of lowering; DTP_ENVIRONMENT: no memory. */
enum dtp_status dtp_miniature_time_of(const struct dtp_job *job, struct dtp_miniature_time *out,
                                      struct dtp_faults *faults);

/* "estimated": all but time as dtp_estimate has it, time from miniatures. DTP_BAD_INPUT where it does not follow from
 * them, which is no fault of the job. */
struct dtp_predictor dtp_predictor_miniature(void);

#endif
