/* When everything happens: the event simulation of a step program on a cluster.
 *
 * Streams run their operations in order; operations that run together share SMs, HBM, link directions, PCIe and host
 * memory by max-min fairness (share.h); collectives of one group serialise; the host issues in list order at a cost per
 * kernel. Deterministic: equal times are ordered by operation index. */
#ifndef DTP_SIMULATE_H
#define DTP_SIMULATE_H

#include "base/host_arena.h"
#include "machine/machine.h"
#include "program/program_set.h"

struct dtp_span {
    double start_s, end_s; /* of the operation's device (or host) time; end == start for events */
};

/* What an operation waited for last: index of an operation, or one of these. */
#define DTP_CAUSE_NONE UINT32_MAX       /* nothing: the step began with it */
#define DTP_CAUSE_HOST (UINT32_MAX - 1) /* the host had not issued it (all of it) before */

/* Every instant of a step belongs to one of: compute stream busy with the optimizer (optimizer_s) or anything else
 * (compute_s; of an operation that waits for its launches only the busy part), else a collective (exposed
 * communication, shared evenly where several run), else kernels of other streams (compute_s), else copies, storage and
 * the host's optimizer (exposed_offload_s), else the issuing host (host_bound_s, the unlaunched part of operations
 * included): whatever comes before an operation in the program can run, so nothing else idles one rank. In a set of
 * several roles a rank waits for others too: what is idle there is the bubble (bubble_s), 0 of a program alone, unless
 * what comes next had not been issued. These six add up to step_s. */
struct dtp_timeline {
    struct dtp_host_arena memory; /* of the arrays below */
    size_t op_count;
    struct dtp_span *span; /* one per operation; of a HOST_WAIT from when the host came to it */
    uint32_t *cause;       /* one per operation */
    double *issue_s;       /* one per operation: when the host had issued its first kernel */
    double begin_s; /* of a set whose roles begin their steps apart: when this one's does, from which all its times
                       count; 0: all begin together */
    double step_s, compute_s; /* end of the last operation | busy time of kernels */
    double exposed_communication_s, exposed_by_collective_s[DTP_COLLECTIVE_COUNT];
    double exposed_by_stream_s[DTP_STREAM_COUNT]; /* the same by the collectives' stream */
    double exposed_offload_s, host_bound_s, optimizer_s, bubble_s;
    double communication_s; /* sum of collectives' spans */
    double communication_by_collective_s[DTP_COLLECTIVE_COUNT];
    double matmul_speedup; /* from power headroom; op_cost.h */
    double compute_factor; /* of the slowest rank */
    uint32_t *critical;    /* operations of the critical path, in time order */
    size_t critical_count;
    uint64_t reserved_peak_bytes, allocated_peak_bytes; /* of the replayed allocator */
    size_t repeated_count; /* operations that begin and end as those of an earlier micro-batch did (steady.h) */
};

/* Exposed transfers between stages of a pipeline, by their streams: rings of context parallel ranks send as well. */
double dtp_timeline_exposed_transfers_s(const struct dtp_timeline *timeline);

struct dtp_simulation_options {
    bool contention;                        /* share resources; false: every operation takes its isolated time */
    bool infinite_bandwidth;                /* collectives and copies take no time (limit tests) */
    bool power_headroom;                    /* tensor cores clock up by the share of the step in which they idle */
    bool replay_allocator, every_allocator; /* of roles that may be the worst; of all roles */
    const double *op_s;      /* seconds alone of each operation, NAN: as predicted; NULL: all as predicted. Borrowed */
    double matmul_speedup;   /* at which tensor cores run; 0: by what power_headroom says */
    double compute_factor;   /* on the time of kernels; 0: of the slowest of the cluster's ranks, as expected */
    uint64_t seed;           /* of jitter; 0: none */
    double jitter_deviation; /* relative, per operation of a rank */
    double expert_load;    /* rows of tokens that the rank's experts get, over the mean of ranks; up to 1: the mean. In
                              the step alone: sums of what operations take stay the mean's */
    bool each_micro_batch; /* is simulated, though some are like others; for tests, which hold the two together */
    uint32_t op_limit;     /* of the program that dtp_simulated_create lowers; 0: DTP_LOWER_MOST_OPS */
};
/* By how much a clock may be off that was assumed before the step's time was known; beyond, the step runs again. */
#define DTP_SPEEDUP_TOLERANCE 0.003
/* Contention, power headroom and the allocator; no jitter. */
struct dtp_simulation_options dtp_simulation_options_default(void);

/* Caller frees with dtp_timeline_release; *out is empty after a failure, which is want of memory. Time and memory
 * linear in operations and dependencies. */
enum dtp_status dtp_simulate(const struct dtp_program *program, const struct dtp_cluster *cluster,
                             const struct dtp_simulation_options *options, struct dtp_timeline *out,
                             struct dtp_faults *faults);
/* The same of a program set, every role on a rank of its own: out[role]. All end with the whole step, which is each
 * timeline's step_s; what a role waits for others is its bubble. Where roles begin their steps apart, it is one of many
 * steps, each of which a role begins when it is through with the one before: step_s is the time from one to the next.
 * Proves the set first (DTP_BAD_INPUT: it is not legal); `options` without op_s. On failure every out[role] is empty.
 */
enum dtp_status dtp_simulate_set(const struct dtp_program_set *set, const struct dtp_cluster *cluster,
                                 const struct dtp_simulation_options *options, struct dtp_timeline *out,
                                 struct dtp_faults *faults);
/* The same of a set that is known to be legal, as lowering makes them: without the proof, which takes about as long as
 * the simulation. */
enum dtp_status dtp_simulate_proved_set(const struct dtp_program_set *set, const struct dtp_cluster *cluster,
                                        const struct dtp_simulation_options *options, struct dtp_timeline *out,
                                        struct dtp_faults *faults);
/* How long the step of such a set is where the slowest rank takes each of `count` factors (options' compute_factor) on
 * the time of its kernels: what dtp_simulate_proved_set has as step_s, prepared once for all. */
enum dtp_status dtp_simulate_factors(const struct dtp_program_set *set, const struct dtp_cluster *cluster,
                                     const struct dtp_simulation_options *options, const double *factor, size_t count,
                                     double *step_s, struct dtp_faults *faults);
/* Replays the allocator over a step that was simulated without: fills the timeline's peaks. */
enum dtp_status dtp_timeline_replay(const struct dtp_program *program, struct dtp_timeline *timeline,
                                    struct dtp_faults *faults);
void dtp_timeline_release(struct dtp_timeline *timeline);

/* Isolated seconds of one operation: op_cost and collective_cost on its demand. NAN without memory. */
double dtp_op_isolated_s(const struct dtp_program *program, const struct dtp_op *op, const struct dtp_cluster *cluster);

#endif
