/* What the ranks of a simulated pipeline do: the passes of each in time, what it keeps, and why it idles.
 *
 * Read off programs and timelines: a pass begins with its mark ("forward", "loss", "backward") and ends with the last
 * kernel before the next one's, in the order of the plan's schedule. Idle is a rank while nothing of it runs and what
 * comes next does not wait for its host: its timeline's bubble (simulate.h), here by when: before its first backward
 * begins (the warm-up), behind the end of its last forward (the drain), and between (steady); and by what it waits for:
 * what it does next is to take activations or gradients that another rank has not made, to send to one that does not
 * take yet, or, behind its last pass, what ranks do together at the end of a step. */
#ifndef DTP_PIPELINE_STAGES_H
#define DTP_PIPELINE_STAGES_H

#include "sim/simulated.h"

/* A pass in time. */
struct dtp_stage_pass {
    uint32_t rank, stage, chunk, micro_batch;
    enum dtp_pass_kind kind;
    double begin_s, end_s; /* of its kernels, on the clock of all ranks; equal where it has none */
};

/* X(suffix, word): what an idle rank waits for. */
#define DTP_WAIT_TABLE(X)                                                                                              \
    X(ACTIVATIONS, "activations")                                                                                      \
    X(GRADIENTS, "gradients")                                                                                          \
    X(RECEIVER, "receiver") /* of what it sends */                                                                     \
    X(STEP_END, "step_end")
enum dtp_wait {
#define DTP_WAIT_ENUM(suffix, word) DTP_WAIT_##suffix,
    DTP_WAIT_TABLE(DTP_WAIT_ENUM)
#undef DTP_WAIT_ENUM
        DTP_WAIT_COUNT
};
const char *dtp_wait_text(enum dtp_wait wait);

struct dtp_pipeline_rank {
    uint32_t chunks, layers; /* of all its chunks */
    uint32_t mtp_layers;     /* of modules that predict further ahead, none of `layers` */
    uint32_t expert_layers;  /* of both, those with experts */
    bool embedding, head;
    uint32_t forwards, in_flight; /* forward passes of a step; most of them at a time that wait for their backward */
    uint32_t forward_queue, backward_queue; /* most that other ranks had made for it and it had not begun to take */
    double compute_s, optimizer_s, host_bound_s, exposed_offload_s;
    /* nothing hides: between stages; of tensor parallel, of context parallel ranks; others, of data parallel ones */
    double exposed_transfers_s, exposed_tensor_s, exposed_context_s, exposed_collectives_s;
    double warm_up_idle_s, steady_idle_s, drain_idle_s;
    double idle_for_s[DTP_WAIT_COUNT]; /* the same idle time by what was waited for */
    struct dtp_memory memory;
};

struct dtp_pipeline_stages {
    uint32_t rank_count; /* 0: the job has no pipeline */
    uint32_t worst;      /* whose memory is the largest */
    enum dtp_schedule_kind schedule;
    double step_s;
    double last_s; /* when the last rank's step ends: step_s, later where ranks begin theirs apart */
    struct dtp_pipeline_rank *ranks;
    struct dtp_stage_pass *passes; /* rank by rank, in their order */
    size_t pass_count;
};

/* The part of the step in which the rank's kernels run. */
double dtp_pipeline_busy_fraction(const struct dtp_pipeline_stages *stages, uint32_t rank);
/* All of a rank's idle time. */
double dtp_pipeline_idle_s(const struct dtp_pipeline_rank *rank);

/* Caller releases *out. DTP_BAD_INPUT: its program is of other passes than its plan. */
enum dtp_status dtp_pipeline_stages_of(const struct dtp_simulated *simulated, struct dtp_pipeline_stages *out,
                                       struct dtp_faults *faults);
void dtp_pipeline_stages_release(struct dtp_pipeline_stages *stages);

#endif
