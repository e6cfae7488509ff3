/* What a job needs, estimated without a simulation: memory from its step program, by miniatures where these line up
 * (lower/miniature.h), so that bytes of tensors are exact; what stands beside a program (closed/memory.h), traffic and
 * time by formulas (closed/closed_form.h). What searches by many plans asks.
 *
 * Of a plan with a pipeline the program is that of one rank's slice, and what the other ranks add comes on top as the
 * runtime says. Of a plan that has no step program (details of a model that our executor does not
 * run, more operations than fit) memory is its bound (job/bound_fit.h), and says so: memory->bound.
 *
 * Each thread remembers the last programs that it has lowered, by all that goes into them: a sweep asks for the same
 * one again for other numbers of micro-steps, of which more than three change no byte and two are three without the
 * second, and for the fewer GPUs that its rows are compared with.
 *
 * Inputs have passed dtp_transformer_check, dtp_cluster_check and dtp_plan_resolve. Some 0.1 ms for 32 layers, in
 * proportion to the layers where all have to be lowered; programs come from the C library's heap, so keep it
 * (dtp_host_memory_keep) where many are made. */
#ifndef DTP_ESTIMATE_H
#define DTP_ESTIMATE_H

#include "closed/closed_form.h"
#include "closed/closed_form_hooks.h"

/* The plan itself, or what a rank runs of it under tensor and pipeline parallelism. */
void dtp_estimate_slice(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                        const struct dtp_plan *plan, struct dtp_slice *out);

/* The same for memory. FSDP2's stages keep gradients whole until their last micro-batch is through
 * (runtime/torch/lower_sharding.c), also that of one alone, which a job of one micro-step reduces unit by unit: two
 * keep theirs. */
void dtp_estimate_stage(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                        const struct dtp_plan *plan, struct dtp_slice *out);

/* Traffic, time and throughput alone: dtp_closed_form, which fails in words. */
enum dtp_status dtp_estimate_time(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                  const struct dtp_plan *plan, struct dtp_prediction *out, struct dtp_faults *faults);
/* DTP_ENVIRONMENT: no memory. */
enum dtp_status dtp_estimate(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                             const struct dtp_plan *plan, struct dtp_prediction *out, struct dtp_faults *faults);
/* Its memory alone. `parts` gets the record of what stands beside the program; NULL: none. */
enum dtp_status dtp_estimate_memory(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                    const struct dtp_plan *plan, struct dtp_memory *out, struct dtp_memory_parts *parts,
                                    struct dtp_faults *faults);

/* What of a job's estimate no constant moves: the live bytes of its step program. Made once for a job that is estimated
 * again and again while constants change (leave_one_out.h). */
struct dtp_estimate_base {
    struct dtp_live_bytes live;
    bool bound; /* there is no step program */
};

/* DTP_ENVIRONMENT: no memory. */
enum dtp_status dtp_estimate_base_of(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                     const struct dtp_plan *plan, struct dtp_estimate_base *out,
                                     struct dtp_faults *faults);
/* dtp_estimate of the same job in some 10 us, of a pipeline as dtp_closed_form. */
enum dtp_status dtp_estimate_from(const struct dtp_estimate_base *base, const struct dtp_transformer *transformer,
                                  const struct dtp_cluster *cluster, const struct dtp_plan *plan,
                                  struct dtp_prediction *out);

#endif
