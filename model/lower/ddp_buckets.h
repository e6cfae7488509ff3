/* Buckets into which PyTorch's DDP lays gradients, whoever trains with it: in the order in which they become ready in
 * backward. One is closed when it has reached its cap, 1 MiB for the first where the cap is the default of 25 MiB, so
 * that it overshoots by up to one tensor. Gradients of another dtype have buckets and limits of their own; buckets
 * stand in the order in which they were closed, those left open last (reducer.cpp, compute_bucket_assignment_by_size).
 */
#ifndef DTP_DDP_BUCKETS_H
#define DTP_DDP_BUCKETS_H

#include "lower/lowering.h"

struct dtp_ddp_bucket {
    dtp_buffer_id buffer;
    uint64_t bytes, before; /* of the gradients; of those in the buckets before it */
    uint32_t parts, ready;  /* tensors that lie in it; those of the micro-step at hand that are there */
};

struct dtp_ddp_buckets {
    struct dtp_ddp_bucket *bucket; /* owned: dtp_ddp_buckets_release */
    uint32_t count;
};

/* Deals the parts of all modules into buckets of `cap_bytes`, gradients of `element_bytes` an element, those of
 * embedding and head of `end_bytes`, and notes the bucket of each in its module's state; makes no buffer. UINT64_MAX:
 * one bucket. DTP_ENVIRONMENT: no memory. */
enum dtp_status dtp_ddp_buckets_lay_out(struct dtp_lowering *l, uint64_t element_bytes, uint64_t end_bytes,
                                        uint64_t cap_bytes, struct dtp_ddp_buckets *out);
void dtp_ddp_buckets_release(struct dtp_ddp_buckets *buckets);

#endif
