/* How gradients fill DeepSpeed's buckets, and what stands while one is reduced, beside what stands anyway.
 *
 * A bucket is reduced before a gradient that would overflow it, and at the end. Stages 1 and 2 flatten it into a copy;
 * stage 3 lays its tensors side by side by rank, but one tensor that the ranks divide evenly is reduced where it is. A
 * gradient larger than any bucket is a bucket by itself and never copied into one. With offload this rank's slices are
 * cast to fp32 on their way down, tensor by tensor, or all of them where they are written to NVMe. */
#ifndef DTP_DEEPSPEED_BUCKETS_H
#define DTP_DEEPSPEED_BUCKETS_H

#include "runtime/deepspeed/deepspeed_parts.h"
#include "machine/machine.h"

struct dtp_bucket_close {
    uint64_t bytes;  /* of what follows together */
    uint64_t copied; /* elements of the copy; where gradients are sent as int4 (zeropp.h), bytes of what is exchanged */
    uint64_t next;   /* elements of the gradient that did not fit, and of an oversized one that is reduced now */
    uint64_t made;   /* stage 1: elements of all gradients made so far, unless earlier micro-steps' stand anyway */
    uint64_t carried;   /* elements on their way to the host */
    uint64_t partition; /* stage 2: elements of this rank's gradients, unless they stand from the beginning */
};

struct dtp_buckets {
    const struct dtp_plan *plan;
    const struct dtp_cluster *cluster;
    uint64_t grads;                        /* bytes of a gradient */
    uint64_t ranks, partition;             /* elements of a rank's partition */
    uint64_t largest;                      /* elements that are carried to the host at a time, at most; 0: none are */
    bool keeps, third, quantized, several; /* several: micro-steps before left gradients */
    uint64_t count, filled, filled_shard, tensors, made, reduced, exchanged, exchanged_first;
};

/* NULL cluster: only counted. `ranks`: those that share the gradients. */
void dtp_buckets_begin(struct dtp_buckets *buckets, const struct dtp_transformer *transformer,
                       const struct dtp_cluster *cluster, const struct dtp_plan *plan, uint64_t ranks,
                       uint64_t total_elements, uint64_t gradient_bytes);
/* A gradient that is made; true: a bucket was reduced before it. */
bool dtp_buckets_add(struct dtp_buckets *buckets, const struct dtp_deepspeed_part *part,
                     struct dtp_bucket_close *close);
/* The last one. False where nothing is in it. */
bool dtp_buckets_end(struct dtp_buckets *buckets, struct dtp_bucket_close *close);

/* Buckets of one backward. */
uint64_t dtp_buckets_count(const struct dtp_transformer *transformer, const struct dtp_plan *plan);

#endif
