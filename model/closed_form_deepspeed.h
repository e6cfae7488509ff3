/* What the closed form counts of DeepSpeed tensor by tensor: how gradients fill its buckets, and what the fetches of
 * ZeRO-3 (zero3_fetch.h) gather and keep. Allocates nothing; linear in layers. */
#ifndef DTP_CLOSED_FORM_DEEPSPEED_H
#define DTP_CLOSED_FORM_DEEPSPEED_H

#include "plan.h"
#include "transformer.h"

/* Elements of the largest parameter. */
uint64_t dtp_deepspeed_largest_tensor(const struct dtp_transformer *transformer, const struct dtp_plan *plan);

/* Bytes that stand while a bucket is reduced: of an element of it, of the gradient that did not fit (or is larger than
 * any bucket by itself), of all gradients made so far; of what layers have saved, all of it or with every N-th
 * replayed; and live parameters, `live_last` of them when backward is at the first layer, a layer's more for each
 * before it, `live_most` at most. */
struct dtp_bucket_weights {
    uint64_t bucket, next, made;
    uint64_t ranks; /* over so many one gradient that they divide evenly is reduced where it is; 0: all are copied */
    uint64_t layer_kept, layer_all, every;
    uint64_t live, live_last, live_layer, live_most;
};

/* Buckets of one backward: a bucket is reduced before a gradient that would overflow it. The worst is the one with most
 * of the bytes that weights (NULL: nothing has any) say. */
struct dtp_deepspeed_buckets {
    uint64_t count;
    uint64_t last, worst;  /* elements */
    uint64_t worst_copied; /* of the worst: 0 where it is reduced in place */
    uint64_t worst_next, worst_made, worst_live;
    uint64_t worst_layers; /* that backward has not come to */
    bool worst_in_mlp;     /* of the layer it is in, nothing but the down matrix or the gate has gone */
};
void dtp_deepspeed_count_buckets(const struct dtp_transformer *transformer, const struct dtp_plan *plan,
                                 const struct dtp_bucket_weights *weights, struct dtp_deepspeed_buckets *out);

/* A step under ZeRO-3. Elements; "shard" is what one rank sends to each other one, padding included. */
struct dtp_zero3_gathers {
    uint64_t count, shard, scale_bytes; /* scales: of a shard, where it is sent as int8 */
};
struct dtp_zero3_counts {
    struct dtp_zero3_gathers all, second;                      /* over all ranks; of a second copy, within a node */
    uint64_t second_forward, second_all;                       /* elements of second copies after forward, in the end */
    uint64_t persistent, persistent_shard, persistent_modules; /* never given back, gathered once a step */
    /* Gathered, a flat buffer that is still being used included: while the head runs, after it, while it runs backward,
     * and after the down matrix of the last and of the first layer has. */
    uint64_t live_head, live_loss, live_head_backward, live_early, live_late;
    uint64_t live_forward; /* most before the head */
};
void dtp_zero3_count(const struct dtp_transformer *transformer, const struct dtp_plan *plan, uint64_t ranks,
                     struct dtp_zero3_counts *out);

/* Bytes each rank sends, scales among them, and collectives, half of them of scales, of one reduction of all gradients in
 * int4 (zeropp.h); elements of the shards that are reduce-scattered instead. */
struct dtp_zeropp_counts {
    uint64_t node_bytes, node_scale_bytes, node_count, between_bytes, between_scale_bytes, between_count;
    uint64_t scattered_shard, scattered_count;
};
void dtp_zeropp_count(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                      const struct dtp_plan *plan, struct dtp_zeropp_counts *out);

#endif
