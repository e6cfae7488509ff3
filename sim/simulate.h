/* When everything happens: the event simulation of a step program on a cluster.
 *
 * Streams run their operations in order; operations that run together share SMs, HBM, link directions, PCIe and host
 * memory by max-min fairness (share.h); collectives of one group serialise; the host issues in list order at a cost per
 * kernel. Deterministic: equal times are ordered by operation index. */
#ifndef DTP_SIMULATE_H
#define DTP_SIMULATE_H

#include "program.h"

struct dtp_span {
    double start_s, end_s;       /* of the operation's device (or host) time; end == start for events */
};

struct dtp_timeline {
    struct dtp_span *span;       /* one per operation */
    double step_s, compute_s;    /* end of the last operation | busy time of the compute stream */
    double exposed_communication_s, exposed_by_collective_s[DTP_COLLECTIVE_COUNT];
    double exposed_offload_s, host_bound_s, optimizer_s, bubble_s;
    double communication_s;      /* sum of collectives' spans */
    uint32_t *critical;          /* operations of the critical path, in time order */
    size_t critical_count;
    uint64_t reserved_peak_bytes, allocated_peak_bytes; /* of the replayed allocator */
};

struct dtp_simulation_options {
    bool contention;             /* share resources; false: every operation takes its isolated time */
    bool infinite_bandwidth;     /* collectives and copies take no time (limit tests) */
    uint64_t seed;               /* of jitter; 0: none */
    double jitter_deviation;     /* relative, per operation of a rank */
};
struct dtp_simulation_options dtp_simulation_options_default(void);

/* Caller frees with dtp_timeline_release. */
enum dtp_status dtp_simulate(const struct dtp_program *program, const struct dtp_transformer *transformer,
                             const struct dtp_cluster *cluster, const struct dtp_plan *plan,
                             const struct dtp_simulation_options *options, struct dtp_timeline *out,
                             struct dtp_faults *faults);
void dtp_timeline_release(struct dtp_timeline *timeline);

/* Isolated seconds of one operation: op_cost and collective_cost on its demand. */
double dtp_op_isolated_s(const struct dtp_program *program, const struct dtp_op *op,
                         const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                         const struct dtp_plan *plan);

#endif
