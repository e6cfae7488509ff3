/* A machine file of what a trace shows of a plan's step.
 *
 * The plan says which matmuls, attentions, kernels and collectives the step has, the trace how long those of a kind
 * took together; each operation's share of its kind is taken as predicted. So a file says of shapes near the plan's
 * what this GPU did, and of other shapes what the fits of measured.h make of that. Kernels that pass over memory become
 * rates of their pass (measured_row.h). A collective's time is what it took in the trace, waiting for other ranks
 * included. */
#ifndef DTP_TRACE_REFIT_H
#define DTP_TRACE_REFIT_H

#include "machine/measured.h"
#include "observed/observed.h"
#include "sim/simulated.h"

/* X(suffix, words): what is fitted by one factor. */
#define DTP_TRACE_PART_TABLE(X)                                                                                        \
    X(MATMUL, "matmul")                                                                                                \
    X(FORWARD, "attention forward")                                                                                    \
    X(BACKWARD, "attention backward")                                                                                  \
    X(KERNELS, "elementwise, norms and loss")                                                                          \
    X(OPTIMIZER, "optimizer")                                                                                          \
    X(ALL_GATHER, "all_gather")                                                                                        \
    X(REDUCE_SCATTER, "reduce_scatter")                                                                                \
    X(ALL_REDUCE, "all_reduce")                                                                                        \
    X(SEND_RECV, "send_recv")                                                                                          \
    X(ALL_TO_ALL, "all_to_all")
enum dtp_trace_part {
#define DTP_TRACE_PART_ENUM(suffix, words) DTP_TRACE_PART_##suffix,
    DTP_TRACE_PART_TABLE(DTP_TRACE_PART_ENUM)
#undef DTP_TRACE_PART_ENUM
        DTP_TRACE_PART_COUNT
};
const char *dtp_trace_part_words(enum dtp_trace_part part);

struct dtp_trace_refit {
    struct dtp_measured_rows rows; /* what is fitted, without `about`; caller releases */
    struct dtp_trace_fit {
        double predicted_s, measured_s; /* of a step, alone on their stream */
        size_t rows;                    /* 0: the part is left as it was */
    } part[DTP_TRACE_PART_COUNT];
};

/* Refused: plans of the executor, whose runs dtplan validate --refit fits; experts, whose matmuls are of no one shape;
 * a trace that has nothing of what the plan does. */
enum dtp_status dtp_trace_refit_make(const struct dtp_simulated *simulated, const struct dtp_observed_time *time,
                                     struct dtp_trace_refit *out, struct dtp_faults *faults);

#endif
