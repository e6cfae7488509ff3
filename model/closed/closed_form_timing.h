/* Inside of the closed form of time: what its files share while one step is reckoned. Device work and the whole are
 * closed_form_time.c's, what of collectives does not hide closed_form_collectives.c's, what copies to the host and its
 * optimizer add closed_form_offload.c's. */
#ifndef DTP_CLOSED_FORM_TIMING_H
#define DTP_CLOSED_FORM_TIMING_H

#include "closed/adapted_work.h"
#include "machine/group.h"
#include "closed/block_work.h"
#include "closed/closed_form.h"
#include "closed/step_work.h"
#include "closed/time_parts.h"
#include "cost/op_cost.h"

/* Bytes through HBM that putting side by side what context parallel ranks send, and merging what comes of it, take of a
 * token and layer. */
struct dtp_context_moved {
    double forward, backward;
};
struct dtp_timing {
    const struct dtp_transformer *transformer;
    const struct dtp_cluster *cluster;
    const struct dtp_plan *plan;
    struct dtp_execution execution; /* of the plan */
    struct dtp_parameter_count count;
    struct dtp_adapted_work adapted;
    struct dtp_block_work block[DTP_LAYER_MLPS]; /* of each kind of layer, all zero where the model has none such */
    struct dtp_context_moved context;
    double tokens; /* of one micro-step */
    double layers;
    double eager_bytes_per_s, pass_bytes_per_s, streaming_bytes_per_s, update_bytes_per_s;
    struct dtp_pass_rates passes;
    double narrow_gather_s;         /* of all-gathers: within the group that parameters are resharded to */
    double last_backward_exposed_s; /* of exposed collectives, what the last backward waits for; 0: not known */
    struct dtp_step_work work;
    const struct dtp_step_work *own; /* work, where the runtime counts it; else NULL */
    struct dtp_time_parts *parts;
};

/* Of all layers of a model, kind by kind. */
#define EACH_KIND(c, block_)                                                                                           \
    for (const struct dtp_block_work *block_ = (c)->block; block_ < (c)->block + DTP_LAYER_MLPS; block_++)             \
        if (block_->layers > 0)

/* Of a block's matmul in one micro-step, forward, or the gradients of both it reads; with its adapter's. */
double dtp_timing_matmul_s(const struct dtp_timing *timing, const struct dtp_weight_matmul *matmul, bool backward);
/* And of a forward that runs again. */
double dtp_timing_matmul_again_s(const struct dtp_timing *timing, const struct dtp_weight_matmul *matmul);

/* Of a block that runs again, a matmul does too. */
bool dtp_timing_runs_again(const struct dtp_timing *timing, const struct dtp_weight_matmul *matmul);
/* Casts around fp8 matmuls, of a micro-step, replays' too (fp8_work.c). */
double dtp_timing_fp8_s(const struct dtp_timing *timing);
/* The model's losses: its own, and one of each module that predicts further ahead; columns of the head. */
double dtp_timing_losses(const struct dtp_timing *timing);
double dtp_timing_head_columns(const struct dtp_timing *timing);

/* Of modules that predict further ahead: projections 2 h -> h, all products; kernels around these. */
double dtp_timing_projections_s(const struct dtp_timing *timing);
double dtp_timing_ahead_s(const struct dtp_timing *timing, bool backward);

/* Of a block's memory-bound kernels in one micro-step; of the loss's, which move `bytes`. */
double dtp_timing_passes_s(const struct dtp_timing *timing, const struct dtp_block_work *block, bool backward);
double dtp_timing_loss_s(const struct dtp_timing *timing, double bytes);
/* The same of all blocks; bytes through HBM. */
double dtp_timing_memory_s(const struct dtp_timing *timing, bool backward);
double dtp_timing_memory_bytes(const struct dtp_timing *timing, bool backward);
/* Bytes of casts of weights and gradients, and sums of these, under autocast; seconds, at `bytes_per_s` where kernels
 * are fused. 0 without it. */
double dtp_timing_cast_bytes(const struct dtp_timing *timing);
double dtp_timing_casts_s(const struct dtp_timing *timing, double bytes_per_s);

/* Compute windows of one micro-step behind which collectives can hide. */
struct dtp_windows {
    double forward_s, backward_s, head_s;
};

/* Fills time->collective_s and communication_s, and c->narrow_gather_s. */
void dtp_timing_add_collectives(struct dtp_timing *c, const struct dtp_communication *communication,
                                struct dtp_time *time);
/* Seconds of them that no window hides, at most all. Fills c->last_backward_exposed_s. */
double dtp_timing_exposed_s(struct dtp_timing *c, const struct dtp_time *time, const struct dtp_windows *window);
/* Of collectives of weights and gradients. Shard and replica collectives run on two communicators, which at best
 * overlap each other as well: whichever strategy it is called, a group smaller than the cluster has both; so does the
 * group that parameters are resharded to. */
double dtp_timing_longest_communicator_s(const struct dtp_timing *c, const struct dtp_time *time);
/* Of Muon's products of all blocks' matrices, one after another; 0 under other optimizers. */
double dtp_timing_newton_schulz_s(const struct dtp_timing *c);
/* What the host takes to launch the kernels of a loop over tensors; 0 of other optimizers. */
double dtp_timing_optimizer_launch_s(const struct dtp_timing *c);
/* Seconds that kernels lose while a collective of a kind runs beside them for `seconds` and sends `bytes`. */
double dtp_collective_taken_s(const struct dtp_cluster *cluster, const struct dtp_group *group,
                              const struct dtp_execution *execution, enum dtp_collective collective, double seconds,
                              double bytes);
/* Seconds that compute loses beside the hidden ones. */
double dtp_timing_contention_s(const struct dtp_timing *c, const struct dtp_communication *communication,
                               const struct dtp_time *time, double exposed_s);

/* Share of the parameters in the root unit (embeddings, head, final norm). */
double dtp_timing_root_share(const struct dtp_timing *c);
/* Parameters whose optimizer state is one rank's. */
double dtp_timing_optimizer_shard(const struct dtp_timing *c);
/* Fills time->offload_s and exposed_offload_s, where something is offloaded. */
void dtp_timing_add_offload(const struct dtp_timing *c, const struct dtp_communication *communication,
                            const struct dtp_windows *window, struct dtp_time *time);

#endif
