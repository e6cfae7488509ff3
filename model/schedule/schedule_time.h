/* When the passes of a schedule run, exactly, and what that leaves idle and keeps in memory.
 *
 * Each rank runs its list in order, each pass as soon as it can: when the one before it is done and what it waits for
 * has arrived. A pair of passes begins when both can and hides what it sends and receives. A rank's host launches its
 * passes one behind the other from the step's begin on, waiting for nobody (but where it reads what the GPU made:
 * waits_forward), and no pass ends before it is launched.
 * Contention and collectives are the simulator's. One timer serves any number of costs: making it is the proof of the
 * schedule, a run is one sweep over its passes. */
#ifndef DTP_SCHEDULE_TIME_H
#define DTP_SCHEDULE_TIME_H

#include "schedule/schedule_order.h"

/* What one micro-batch costs in one stage. Any unit of time, and any of memory. */
struct dtp_stage_cost {
    double forward_s, backward_s, weight_s; /* F, B, W; a whole backward takes B + W */
    double send_s;          /* of the activation to the next stage's rank, and of the gradient back; 0 on one rank */
    double kept;            /* from the begin of F to the end of its backward */
    double kept_for_weight; /* from the end of B to the end of its W */
    double delayed_s;       /* of W, what a whole backward leaves until it has sent; of the first of a pair none */
    double first_s;         /* what the first micro-batch's F takes besides */
    double last_s;          /* what the last micro-batch's whole backward, or its W, takes besides, before it sends */
    double launch_forward_s, launch_backward_s, launch_weight_s; /* of the host, for F, B, W */
    double launch_walk_s, launch_engine_s;                       /* of it, for B and for W where they are two passes */
    bool waits_forward, waits_backward; /* it waits for the kernels of F, of B, before it launches what follows */
};

struct dtp_schedule_costs {
    const struct dtp_stage_cost *stages; /* one for each stage */
    double pair_fraction; /* what a pair takes over the sum of its two passes: 1, nothing is gained by overlap */
    bool early;  /* by rendezvous a receive is posted before the pass before the one that needs it, as programs do
                    (lower_transfers.c), and a pair hides no transfer */
    bool posted; /* and each rank sends and receives one thing after the other, in the order in which
                    torch.distributed.pipelining posts it (lower/posted.c) */
};

/* A rank; idle times add up to makespan - busy. Warm-up lasts until its first backward begins, the drain begins with
 * the end of its last forward. */
struct dtp_rank_timing {
    double begin_s, end_s; /* of its first and last pass */
    double busy_s, warm_up_idle_s, steady_idle_s, drain_idle_s;
    double peak_kept;
    uint32_t peak_forwards;                 /* most micro-batches of chunks between F and backward */
    uint32_t peak_weights;                  /* most between B and W */
    uint32_t forward_queue, backward_queue; /* most that other ranks had sent and that waited for their pass */
};

struct dtp_schedule_timing {
    double makespan_s;    /* from the begin of the first pass to the end of the last */
    double span_s;        /* the longest time from the first to the last pass of one rank */
    double busy_s;        /* of the rank with most work */
    double bubble_s;      /* makespan - busy: idle where all ranks wait for each other at the end of a step */
    double span_bubble_s; /* span - busy: where no rank does, as the optimizer validates its step afterwards */
    struct dtp_rank_timing *ranks;
    double *begin_s, *end_s; /* per pass; valid until the timer's next run */
};

struct dtp_schedule_timer; /* opaque */

/* Caller destroys; `schedule` is borrowed. DTP_BAD_INPUT: the schedule is not legal (schedule_order.h). */
enum dtp_status dtp_schedule_timer_create(const struct dtp_schedule *schedule, enum dtp_send send,
                                          struct dtp_schedule_timer **out, struct dtp_faults *faults);
void dtp_schedule_timer_destroy(struct dtp_schedule_timer *timer);
/* `costs` are finite and not negative. What *out points to lies in the timer, valid until its next run. */
void dtp_schedule_timer_run(struct dtp_schedule_timer *timer, const struct dtp_schedule_costs *costs,
                            struct dtp_schedule_timing *out);
/* The makespan alone: a third of the work. */
double dtp_schedule_timer_makespan(struct dtp_schedule_timer *timer, const struct dtp_schedule_costs *costs);
/* From one step to the next where a rank begins that as soon as it is through with this one; all else as above. At most
 * the makespan, at least what the busiest rank is busy. */
double dtp_schedule_timer_period(struct dtp_schedule_timer *timer, const struct dtp_schedule_costs *costs);

/* Fills `out` (schedule->stages of them) with equal stages: the arguments are what one micro-batch takes on a rank, all
 * its chunks together (of a two-way schedule it goes through one), and `kept` is 1 of a rank likewise. */
void dtp_stage_costs_equal(const struct dtp_schedule *schedule, double forward_s, double backward_s, double weight_s,
                           double send_s, struct dtp_stage_cost *out);

/* The bubble of equal stages where all ranks wait for each other at the end, by the formula of its row: NaN where none
 * is known for such costs and counts. `stage` is one of the equal stages, its send_s 0. */
double dtp_schedule_bubble(const struct dtp_schedule_shape *shape, const struct dtp_stage_cost *stage,
                           double pair_fraction);

/* Seconds of a step, each of `count` times by other costs: the makespan, where micro-batches are many that of fewer
 * with what the last of these add for each of the rest. Time and memory go with ranks x chunks x the lesser number of
 * micro-batches. Fails as dtp_schedule_create. */
enum dtp_status dtp_schedule_steps(const struct dtp_schedule_shape *shape, enum dtp_send send,
                                   const struct dtp_schedule_costs *costs, size_t count, double *step_s);

/* The most that a rank keeps between F and backward, in micro-batches of all its chunks, where each pass of equal
 * stages takes the same time (sources: schedule.def); beside it, with kept_for_weight, what waits for its W. Chunks of
 * `shape` are stated. */
double dtp_schedule_kept(const struct dtp_schedule_shape *shape);

/* Of the rank where most weight gradients wait, at that instant, and of the rank with the head, when a loss is made.
 * Forwards and weights are in micro-batches of all chunks of a rank, the others of the last stage. */
struct dtp_schedule_waiting {
    double forwards, weights; /* under way between F and backward; between B and W, 0 where backward is whole */
    double head_forwards;     /* under way on the rank with the head, the one of the loss too */
    double losses, heads;     /* of the last stage between F and its backward; then, between B and W */
};
struct dtp_schedule_waiting dtp_schedule_waiting(const struct dtp_schedule_shape *shape);

#endif
