/* One instant of a training step as bytes by owner; the pieces that memory_replicated.c and the files of
 * runtimes share.
 *
 * Activations grow and shrink linearly with the layers, weights and gradients do too, so the peak of a step lies at one
 * of a handful of instants: the ends of those lines. Each is written down once, and dtp_memory_consider keeps the
 * largest of each phase. */
#ifndef DTP_MEMORY_INSTANT_H
#define DTP_MEMORY_INSTANT_H

#include "closed/activations.h"
#include "closed/block_places.h"
#include "closed/memory_parts.h"
#include "closed/sharding.h"

struct dtp_replicated_hooks; /* memory_replicated.h */

struct dtp_instant {
    uint64_t bytes[DTP_OWNER_COUNT];
    uint64_t total;
    uint64_t other_streams; /* of all bytes: in the pools of other streams than the compute stream */
    struct dtp_part_chain chain;
};

struct dtp_memory_job {
    const struct dtp_transformer *transformer;
    const struct dtp_cluster *cluster;
    const struct dtp_plan *plan;
    struct dtp_activations activations;
    const struct dtp_block_places *places; /* not of our executor's blocks */
    struct dtp_units units;
    struct dtp_element_bytes bytes;
    const void *own;                               /* dtp_counts.own */
    const struct dtp_replicated_hooks *replicated; /* where every rank holds all parameters; else unset */
    struct dtp_state_bytes state;
    uint64_t tokens;              /* T, per micro-step and GPU */
    uint64_t compute_stream_peak; /* largest total of what the compute stream's pool of the allocator holds */
    struct dtp_instant at_rest;   /* parameters, optimizer state, workspaces: every instant begins as its copy */
    struct dtp_memory *out;
    struct dtp_memory_parts *record;      /* NULL: none is asked for */
    size_t phase_newest[DTP_PHASE_COUNT]; /* part at which the chain of the phase's largest instant ends */
};

/* count x elements x element_bytes more, or less, of the term's owner. */
static inline void dtp_instant_add(struct dtp_instant *instant, enum dtp_memory_term term, uint64_t count,
                                   uint64_t elements, uint64_t element_bytes)
{
    uint64_t bytes = dtp_memory_part(&instant->chain, term, count, elements, element_bytes);
    instant->bytes[dtp_memory_term_owner(term)] += bytes;
    instant->total += bytes;
}
/* The same for count x token_bytes of every token. */
static inline void dtp_instant_add_tokens(const struct dtp_memory_job *job, struct dtp_instant *instant,
                                          enum dtp_memory_term term, uint64_t count, uint64_t token_bytes)
{
    uint64_t bytes = dtp_memory_tokens_part(&instant->chain, term, count, job->tokens, token_bytes);
    instant->bytes[dtp_memory_term_owner(term)] += bytes;
    instant->total += bytes;
}
void dtp_instant_take(struct dtp_instant *instant, enum dtp_memory_term term, uint64_t count, uint64_t elements,
                      uint64_t element_bytes);
void dtp_instant_take_tokens(const struct dtp_memory_job *job, struct dtp_instant *instant, enum dtp_memory_term term,
                             uint64_t token_bytes);

/* Replaces the phase's breakdown when this instant is larger. */
void dtp_memory_consider(struct dtp_memory_job *job, enum dtp_phase phase, const struct dtp_instant *instant);

/* Saved activations of the first `layers` layers; of all of them and the final norm. */
void dtp_add_saved(const struct dtp_memory_job *job, struct dtp_instant *instant, uint64_t layers);
void dtp_add_all_saved(const struct dtp_memory_job *job, struct dtp_instant *instant);
/* Tensors of the layer at work and what is computed beside them; of the layers below, see dtp_add_saved. */
void dtp_add_block(const struct dtp_memory_job *job, struct dtp_instant *instant, const struct dtp_block_place *place);
/* The input of the layer that comes next. */
void dtp_add_input(const struct dtp_memory_job *job, struct dtp_instant *instant);
bool dtp_layer_checkpointed(const struct dtp_memory_job *job, uint64_t layer);
/* True where activations of layer `layer` are recomputed. */
bool dtp_layer_recomputed(const struct dtp_memory_job *job, uint64_t layer);
/* The last layers of each kind (checkpointed or not) below `end`, and the first and last of each kind from `begin` on;
 * returns their number. Layers may come twice. */
#define DTP_LAYER_KINDS 2
int dtp_last_layers(const struct dtp_memory_job *job, uint64_t end, uint64_t layers[DTP_LAYER_KINDS]);
int dtp_outer_layers(const struct dtp_memory_job *job, uint64_t begin, uint64_t end,
                     uint64_t layers[2 * DTP_LAYER_KINDS]);
/* Partial sums of the embedding's gradient and the gradient of the residual stream they are made from. */
void dtp_add_embedding_backward(const struct dtp_memory_job *job, struct dtp_instant *instant);
/* foreach AdamW of PyTorch makes a list of sqrt(v): one more moment per local parameter. */
void dtp_add_foreach(const struct dtp_memory_job *job, struct dtp_instant *instant, uint64_t local_elements);

#endif
