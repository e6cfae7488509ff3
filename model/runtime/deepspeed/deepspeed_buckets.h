/* How many buckets DeepSpeed's gradients fill: one is reduced before a gradient that would overflow it, and at the end;
 * a gradient larger than any bucket is one by itself. */
#ifndef DTP_DEEPSPEED_BUCKETS_H
#define DTP_DEEPSPEED_BUCKETS_H

#include "runtime/deepspeed/deepspeed_parts.h"

/* Buckets of one backward. */
uint64_t dtp_buckets_count(const struct dtp_transformer *transformer, const struct dtp_plan *plan);

#endif
