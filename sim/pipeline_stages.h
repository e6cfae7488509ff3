/* What the ranks of a simulated pipeline do: the passes of each in time, what it keeps, and why it idles.
 *
 * Read off programs and timelines: a pass begins with its mark ("forward", "loss", "backward") and ends with the last
 * kernel before the next one's, in the order of the plan's schedule. Idle is a rank while nothing of it runs and what
 * comes next does not wait for its host: its timeline's bubble (simulate.h), here by when: before its first backward
 * begins (the warm-up), behind the end of its last forward (the drain), and between (steady). */
#ifndef DTP_PIPELINE_STAGES_H
#define DTP_PIPELINE_STAGES_H

#include "sim/simulated.h"

/* A pass in time. */
struct dtp_stage_pass {
    uint32_t rank, stage, chunk, micro_batch;
    enum dtp_pass_kind kind;
    double begin_s, end_s; /* of its kernels; equal where it has none */
};

struct dtp_pipeline_rank {
    uint32_t chunks, layers; /* of all its chunks */
    bool embedding, head;
    uint32_t forwards, in_flight; /* forward passes of a step; most of them at a time that wait for their backward */
    double compute_s, optimizer_s, host_bound_s, exposed_offload_s;
    double exposed_transfers_s, exposed_collectives_s; /* between stages; of tensor and data parallel ranks */
    double warm_up_idle_s, steady_idle_s, drain_idle_s;
    struct dtp_memory memory;
};

struct dtp_pipeline_stages {
    uint32_t rank_count; /* 0: the job has no pipeline */
    uint32_t worst;      /* whose memory is the largest */
    enum dtp_schedule_kind schedule;
    double step_s;
    struct dtp_pipeline_rank *ranks;
    struct dtp_stage_pass *passes; /* rank by rank, in their order */
    size_t pass_count;
};

/* Caller releases *out. DTP_BAD_INPUT: its program is of other passes than its plan. */
enum dtp_status dtp_pipeline_stages_of(const struct dtp_simulated *simulated, struct dtp_pipeline_stages *out,
                                       struct dtp_faults *faults);
void dtp_pipeline_stages_release(struct dtp_pipeline_stages *stages);

#endif
