/* What the closed form counts of ZeRO-3's fetches (zero3_fetch.h): what they gather, what stands meanwhile, and the
 * instants at which most does. Allocates nothing; linear in layers. */
#ifndef DTP_CLOSED_FORM_DEEPSPEED_H
#define DTP_CLOSED_FORM_DEEPSPEED_H

#include "closed/block_places.h"
#include "runtime/deepspeed/deepspeed_buckets.h"

/* What an instant has beside what stands all the time. */
struct dtp_zero3_moment {
    uint64_t bytes;                      /* of all the following */
    uint64_t live, second, arriving;     /* elements: gathered; of second copies; of what is being gathered, besides */
    uint64_t layers;                     /* whose saved tensors stand */
    const struct dtp_block_place *place; /* of the block at work; NULL: none is */
    bool stream, sums;                   /* the gradient of the residual stream; sums for the embedding's */
    uint64_t waiting;                    /* elements: of a tied head's gradient */
    uint64_t gradient;                   /* of the weight's gradient at hand */
    struct dtp_bucket_close close;       /* of the bucket being reduced; all 0: none is */
};
enum dtp_zero3_phase {
    DTP_ZERO3_IN_FORWARD,
    DTP_ZERO3_IN_EARLY_BACKWARD,
    DTP_ZERO3_IN_LATE_BACKWARD,
    DTP_ZERO3_PHASES
};

/* Bytes that moments are weighed by: of an element of weights and gradients; of a layer's saved tensors, kept by every
 * `every`-th; of the residual stream's gradient; of the embedding's partial sums. */
struct dtp_zero3_load {
    uint64_t tokens, compute, grads, layer_all, layer_kept, every, stream, sums, total;
    const struct dtp_cluster *cluster;
    const struct dtp_block_places *places;
};

/* A step under ZeRO-3. Elements; "shard" is what one rank sends to each other one, padding included. */
struct dtp_zero3_gathers {
    uint64_t count, shard, scale_bytes; /* scales: of a shard, where it is sent as int8 */
};
struct dtp_zero3_counts {
    struct dtp_zero3_gathers all, second;                      /* over all ranks; of a second copy, within a node */
    uint64_t second_forward, second_all;                       /* elements of second copies after forward, in the end */
    uint64_t second_head_backward;                             /* where the head's is made after its backward; else 0 */
    uint64_t persistent, persistent_shard, persistent_modules; /* never given back, gathered once a step */
    /* Gathered, a flat buffer that is still being used included: while the head runs, after it, while it runs backward.
     */
    uint64_t live_head, live_loss, live_head_backward;
    uint64_t
        live_head_arriving[2]; /* when the head's weight was made of int8, for forward and backward; 0: it was not */
    struct dtp_zero3_moment worst[DTP_ZERO3_PHASES]; /* unset without a load */
};
/* `load`: what moments are weighed by; NULL: they are not. */
void dtp_zero3_count(const struct dtp_transformer *transformer, const struct dtp_plan *plan, uint64_t ranks,
                     const struct dtp_zero3_load *load, struct dtp_zero3_counts *out);

/* Bytes each rank sends, scales among them, and collectives, half of them of scales, of one reduction of all gradients
 * in int4 (zeropp.h); elements of the shards that are reduce-scattered instead. */
struct dtp_zeropp_counts {
    uint64_t node_bytes, node_scale_bytes, node_count, between_bytes, between_scale_bytes, between_count;
    uint64_t scattered_shard, scattered_count;
};
void dtp_zeropp_count(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                      const struct dtp_plan *plan, struct dtp_zeropp_counts *out);

#endif
