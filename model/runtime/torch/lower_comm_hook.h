/* What DDP's communication hooks (plan/comm_hook.h) do to a bucket of gradients that is full. */
#ifndef DTP_LOWER_COMM_HOOK_H
#define DTP_LOWER_COMM_HOOK_H

#include "lower/ddp_buckets.h"
#include "plan/comm_hook.h"

/* What a hook keeps of a bucket from step to step: 16-bit elements, or P and Q; what PowerSGD lost. */
struct dtp_hooked_bucket {
    struct dtp_factored factored;
    dtp_buffer_id compressed, error;
    uint64_t before_bytes; /* sent of the buckets before it */
};

/* Makes the standing buffers of all buckets: an array of buckets->count, freed by the caller. NULL: no memory. */
struct dtp_hooked_bucket *dtp_hooked_make(struct dtp_lowering *l, const struct dtp_ddp_buckets *buckets);
/* In place of a bucket's all-reduce. */
void dtp_hooked_reduce(struct dtp_lowering *l, const struct dtp_ddp_bucket *bucket,
                       const struct dtp_hooked_bucket *hooked, uint32_t group);

#endif
