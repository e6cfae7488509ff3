/* One instant of a training step as bytes by owner; the pieces memory_replicated.c and memory_gathered.c share.
 *
 * Activations grow and shrink linearly with the layers, weights and gradients do too, so the peak of a step lies at one
 * of a handful of instants: the ends of those lines. Each is written down once, and dtp_memory_consider keeps the
 * largest of each phase. */
#ifndef DTP_MEMORY_INSTANT_H
#define DTP_MEMORY_INSTANT_H

#include "activations.h"
#include "closed_form.h"
#include "sharding.h"

struct dtp_memory_job {
    const struct dtp_transformer *transformer;
    const struct dtp_cluster *cluster;
    const struct dtp_plan *plan;
    struct dtp_activations activations;
    struct dtp_units units;
    struct dtp_element_bytes bytes;
    struct dtp_state_bytes state;
    uint64_t tokens;              /* T, per micro-step and GPU */
    uint64_t workspace;           /* library workspaces and small tables, always there */
    uint64_t fp8_weights;         /* two fp8 copies of matmul weights, kept over the step; sharded: of two units */
    uint64_t compute_stream_peak; /* largest total of what the compute stream's pool of the allocator holds */
    struct dtp_memory *out;
};

struct dtp_instant {
    uint64_t bytes[DTP_OWNER_COUNT];
    uint64_t other_streams; /* of all bytes: in the pools of other streams than the compute stream */
};

/* State at rest: parameters, optimizer state and workspaces; gradients as the caller knows. */
struct dtp_instant dtp_instant_at_rest(const struct dtp_memory_job *job);
/* Replaces the phase's breakdown when this instant is larger. */
void dtp_memory_consider(struct dtp_memory_job *job, enum dtp_phase phase, const struct dtp_instant *instant);

/* Saved activations of the first `layers` layers. */
uint64_t dtp_saved_activations(const struct dtp_memory_job *job, uint64_t layers);
/* What the backward of layer `layer` (from 0) adds: recomputed activations, and gradients of activations. */
uint64_t dtp_recomputed_activations(const struct dtp_memory_job *job, uint64_t layer);
uint64_t dtp_backward_workspace(const struct dtp_memory_job *job);

/* bytes_per_token of the micro-step's tokens. */
uint64_t dtp_tokens_bytes(const struct dtp_memory_job *job, uint64_t bytes_per_token);

void dtp_memory_replicated(struct dtp_memory_job *job); /* DDP, ZeRO-1, ZeRO-2 */
void dtp_memory_gathered(struct dtp_memory_job *job);   /* FSDP, ZeRO-3 */

#endif
