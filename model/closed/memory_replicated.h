/* Peak memory where every GPU holds all parameters, and what a runtime adds to its instants: where gradients rest, and
 * through what they go on their way there. */
#ifndef DTP_MEMORY_REPLICATED_H
#define DTP_MEMORY_REPLICATED_H

#include "closed/memory_instant.h"

struct dtp_replicated_hooks {
    /* Gradients that stand when `done` elements have been through backward in the last micro-step. */
    void (*add_gradients)(const struct dtp_memory_job *job, struct dtp_instant *instant, uint64_t done);
    /* The rest may be NULL, the first of them where matmuls write gradients where they rest.
     * What an element of the gradients that the layer at work has made takes: bytes->finished, lingering. `quiet`: in
     * a micro-step between the first and the last, that reduces nothing. */
    void (*weigh_gradients)(const struct dtp_memory_job *job, bool quiet, struct dtp_place_weights *bytes);
    /* Whether there are such micro-steps, and more stands in them than in the last. */
    bool (*has_quiet_micro_steps)(const struct dtp_memory_job *job);
    /* Buffers that stand through backward for gradients on their way. */
    void (*add_buckets)(const struct dtp_memory_job *job, struct dtp_instant *instant);
    /* Further instants: within the blocks' backward, and within the reduction of a bucket. `worst` and `bytes`: of the
     * blocks. */
    void (*within_blocks)(struct dtp_memory_job *job, const struct dtp_block_place *worst,
                          const struct dtp_place_weights *bytes);
    void (*within_buckets)(struct dtp_memory_job *job);
    /* What the step makes of the gradients of `local` elements. */
    void (*add_step)(const struct dtp_memory_job *job, struct dtp_instant *instant, uint64_t local);
};
void dtp_memory_replicated(struct dtp_memory_job *job, const struct dtp_replicated_hooks *hooks);

/* For hooks with instants of their own: state at rest and gradients; those of add_buckets; a tied head's gradient,
 * which waits in autograd's input buffer for the embedding's. */
struct dtp_instant dtp_replicated_instant(const struct dtp_memory_job *job, uint64_t done);
void dtp_replicated_add_buckets(const struct dtp_memory_job *job, struct dtp_instant *instant);
void dtp_replicated_add_tied_head(const struct dtp_memory_job *job, struct dtp_instant *instant);
/* An instant of a layer's backward, when `done` elements have been through it, or all above the layer have. */
void dtp_replicated_backward(struct dtp_memory_job *job, uint64_t done, uint64_t layer,
                             const struct dtp_block_place *place, const struct dtp_place_weights *bytes);
void dtp_replicated_backward_layer(struct dtp_memory_job *job, bool quiet, uint64_t layer,
                                   const struct dtp_block_place *place, const struct dtp_place_weights *bytes);

#endif
