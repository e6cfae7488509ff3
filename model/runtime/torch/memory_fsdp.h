/* What the files of FSDP's peak share: units of layers, gathered weights, gradients, as parts of an instant. */
#ifndef DTP_MEMORY_FSDP_H
#define DTP_MEMORY_FSDP_H

#include "runtime/torch/closed_form_torch.h"

static inline uint64_t dtp_fsdp_smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t dtp_fsdp_layers_before(const struct dtp_memory_job *job, uint64_t unit)
{
    return unit * job->units.layers_per_unit;
}

static inline uint64_t dtp_fsdp_layers_in(const struct dtp_memory_job *job, uint64_t unit)
{
    return unit + 1 == job->units.count ? job->units.last_unit_layers : job->units.layers_per_unit;
}

/* Layers whose units come after `unit`. */
static inline uint64_t dtp_fsdp_layers_above(const struct dtp_memory_job *job, uint64_t unit)
{
    return job->transformer->layers - dtp_fsdp_layers_before(job, unit) - dtp_fsdp_layers_in(job, unit);
}

static inline bool dtp_fsdp_keeps_weights(const struct dtp_memory_job *job)
{
    return !job->plan->reshard_after_forward;
}

/* Copies out of a flat buffer: FSDP2 only. FSDP1 gathers straight into the flat parameter. */
static inline bool dtp_fsdp_copies_out(const struct dtp_memory_job *job)
{
    return !job->plan->fsdp1;
}

/* Gradients are kept whole between micro-steps when they are not reduced in each. */
static inline bool dtp_fsdp_accumulates_whole(const struct dtp_memory_job *job)
{
    return job->plan->accumulate > 1 && !job->plan->accumulate_sync;
}

/* The same elements stand as weights or in the flat buffer that they are gathered into. */
struct dtp_fsdp_terms {
    enum dtp_memory_term layers, fp8, root;
};
extern const struct dtp_fsdp_terms dtp_fsdp_weights, dtp_fsdp_flat;

uint64_t dtp_fsdp_root_elements(const struct dtp_memory_job *job);
/* Weights of `layers` layers: matrices in the dtype on the wire (fp8 all-gather: 1 byte), the rest in compute. */
void dtp_fsdp_add_layers(const struct dtp_memory_job *job, struct dtp_instant *instant,
                         const struct dtp_fsdp_terms *terms, uint64_t layers);
/* Embeddings, final norm and head; without units the layers too. */
void dtp_fsdp_add_root(const struct dtp_memory_job *job, struct dtp_instant *instant,
                       const struct dtp_fsdp_terms *terms);
/* All layers where they stay gathered after forward; without units they are in the root. */
void dtp_fsdp_add_kept_layers(const struct dtp_memory_job *job, struct dtp_instant *instant);
/* reshard_after_forward=n: what this rank keeps of `layers` layers, and of the root, from forward to backward. */
void dtp_fsdp_add_post_forward(const struct dtp_memory_job *job, struct dtp_instant *instant, uint64_t layers,
                               bool root);
/* Rank's part of what stands in the flat buffer, cast to the wire's dtype before it is gathered; none where it is
 * stored in that dtype. */
void dtp_fsdp_add_cast_shard(const struct dtp_memory_job *job, struct dtp_instant *instant);
/* The root's stored shard on its way up from the host (CPUOffloadPolicy), on the device until it has been cast. */
void dtp_fsdp_add_uploaded_shard(const struct dtp_memory_job *job, struct dtp_instant *instant);
/* The same of some layers, with what it is cast into where that is narrower. */
void dtp_fsdp_add_uploaded_layers(const struct dtp_memory_job *job, struct dtp_instant *instant, uint64_t layers);
/* Flat buffers of `count` units from `first` on; the last unit may have fewer layers. */
void dtp_fsdp_add_units(const struct dtp_memory_job *job, struct dtp_instant *instant, uint64_t first, uint64_t count);
/* FSDP2 gathers on a stream of its own. Called once, when all of the gather buffers have been added. */
void dtp_fsdp_gather_elsewhere(const struct dtp_memory_job *job, struct dtp_instant *instant);
void dtp_fsdp_add_sharded_gradients(const struct dtp_memory_job *job, struct dtp_instant *instant);
/* State at rest and the gradients that stand before the last micro-step's backward. */
struct dtp_instant dtp_fsdp_before_backward(const struct dtp_memory_job *job);
/* State at rest and gradients when the last `layers` layers have been reduced in the last micro-step. They are
 * outputs of the reduce stream, unless whole gradients are accumulated on the compute stream. */
struct dtp_instant dtp_fsdp_in_backward(const struct dtp_memory_job *job, uint64_t layers);
/* Gradients as autograd makes them. */
void dtp_fsdp_add_made(const struct dtp_memory_job *job, struct dtp_instant *instant, enum dtp_memory_term term,
                       uint64_t count, uint64_t elements);
void dtp_fsdp_add_reduce_input(const struct dtp_memory_job *job, struct dtp_instant *instant, uint64_t layers);

/* memory_fsdp_backward.c: units of layers, then the root; without units all layers at once. */
void dtp_fsdp_backward(struct dtp_memory_job *job);

#endif
