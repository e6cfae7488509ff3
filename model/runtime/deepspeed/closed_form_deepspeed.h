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

/* What stands of weights around the head, elements: gathered, a flat buffer that is still being used included; second
 * copies. All 0: there is no such instant. */
struct dtp_zero3_standing {
    uint64_t live, second;
};
enum dtp_zero3_head_instant {
    DTP_ZERO3_HEAD_FORWARD,
    DTP_ZERO3_HEAD_LOSS, /* behind its forward */
    DTP_ZERO3_HEAD_BACKWARD,
    DTP_ZERO3_HEAD_COPIED,        /* its second copy is made behind its backward */
    DTP_ZERO3_HEAD_ARRIVES,       /* its weight is made of int8, before its forward */
    DTP_ZERO3_HEAD_ARRIVES_AGAIN, /* the same before its backward */
    DTP_ZERO3_HEAD_INSTANTS
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
    uint64_t second_all;                                       /* elements of second copies in the end */
    uint64_t persistent, persistent_shard, persistent_modules; /* never given back, gathered once a step */
    struct dtp_zero3_standing head[DTP_ZERO3_HEAD_INSTANTS];   /* of the micro-step in which most stands */
    struct dtp_zero3_moment worst[DTP_ZERO3_PHASES];           /* unset without a load */
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
