/* A job simulated: its step program, where its buffers lie, when its operations run, and the prediction this makes.
 *
 * The closed form stands beside it and is never mixed in, save for what a program of one step cannot know: CUDA
 * context, NCCL's buffers, host memory, and what the model's arithmetic is. */
#ifndef DTP_SIMULATED_H
#define DTP_SIMULATED_H

#include "sim/noise.h"
#include "lower/lower_set.h"
#include "program/placement.h"
#include "sim/simulate.h"
#include "job/variant.h"

/* One role of the job's program set: what a rank of the pipeline does, holds and waits for. */
struct dtp_simulated_role {
    struct dtp_timeline timeline;
    struct dtp_program_totals totals;
    double *alone_s;                     /* per operation, as if nothing ran beside it; lies with the timeline */
    double kernels_alone_s;              /* of forward and backward, the optimizer left out */
    struct dtp_memory estimated, memory; /* of its program | and with the allocator replayed, as far as the role may be
                                            the worst */
};

struct dtp_simulated {
    struct dtp_job job;
    struct dtp_program_set set;
    struct dtp_simulated_role *roles; /* of each */
    uint32_t worst;                   /* the role that takes most of its GPU; 0 of one role */
    /* Of that role, borrowed; of a job without a pipeline, of every rank. */
    const struct dtp_program *program;
    struct dtp_placement placement;
    struct dtp_timeline timeline;
    struct dtp_program_totals totals;
    double *alone_s;
    double kernels_alone_s;
    struct dtp_prediction prediction; /* memory: owners and peak of the worst role's program, allocator replayed; time:
                                         of the set's step, its parts those of an average role */
    struct dtp_prediction closed;
    struct dtp_step_quantiles quantiles; /* of dtp_simulated_scatter; all 0 before */
    double deviation;                    /* relative, of the ranks' speeds in them */
    size_t samples;                      /* jobs in them; 0 before */
};

/* DTP_BAD_INPUT: the job has no step program (the fault says what of it) or one of too many operations. Caller releases
 * *out, which is zeroed after a failure. */
enum dtp_status dtp_simulated_create(const struct dtp_job *job, const struct dtp_simulation_options *options,
                                     struct dtp_simulated *out, struct dtp_faults *faults);
/* What a role's program takes, without the allocator's replay, and of what beside its tensors; `parts` may be NULL. */
enum dtp_status dtp_simulated_role_memory(const struct dtp_simulated *simulated, uint32_t role, struct dtp_memory *out,
                                          struct dtp_memory_parts *parts, struct dtp_faults *faults);
/* Proves the job's program or set, as whoever writes or runs it must: simulating alone does so in debug builds only.
 * DTP_BAD_INPUT: it reads what is not there, or waits for ever. */
enum dtp_status dtp_simulated_prove(const struct dtp_simulated *simulated, struct dtp_faults *faults);
void dtp_simulated_release(struct dtp_simulated *simulated);
/* Adds the step time's quantiles over `samples` jobs whose ranks' speeds scatter by `deviation` (0: as measured on GPUs
 * of one kind, calibration.h; none are added where all GPUs of the job were measured). `options` are those it was
 * created with. */
enum dtp_status dtp_simulated_scatter(struct dtp_simulated *simulated, const struct dtp_simulation_options *options,
                                      double deviation, size_t samples, struct dtp_faults *faults);

/* "simulated", with the default options. */
struct dtp_predictor dtp_predictor_simulated(void);
/* The same of step programs of at most *op_limit operations, which is borrowed. */
struct dtp_predictor dtp_predictor_simulated_within(const uint32_t *op_limit);

#endif
