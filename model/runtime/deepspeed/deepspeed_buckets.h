/* How many buckets DeepSpeed's gradients fill: one is reduced before a gradient that would overflow it, and at the end;
 * a gradient larger than any bucket is one by itself. */
#ifndef DTP_DEEPSPEED_BUCKETS_H
#define DTP_DEEPSPEED_BUCKETS_H

#include "runtime/deepspeed/deepspeed_parts.h"

/* Reductions of one backward: one a bucket, or two of one that has gradients of experts and others. */
struct dtp_bucket_count {
    uint64_t others, experts;
};
struct dtp_bucket_count dtp_buckets_count(const struct dtp_transformer *transformer, const struct dtp_plan *plan);

#endif
