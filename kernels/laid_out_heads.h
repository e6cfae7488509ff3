/* Where a head of a packed row lies among those that ranks exchange for tokens, [chunks, batch, ranks, sequence, n,
 * head_dim] (struct dtp_lay_out_heads_args). The CUDA kernel and the plain C one ask here. */
#ifndef DTP_LAID_OUT_HEADS_H
#define DTP_LAID_OUT_HEADS_H

#include "kernels/kernels.h"

#ifdef __CUDACC__
#define DTP_ON_BOTH __host__ __device__
#else
#define DTP_ON_BOTH
#endif

/* The offset in elements of head `head` of the row of token `token` of sequence `b`. */
static inline DTP_ON_BOTH uint64_t dtp_laid_out_head(const struct dtp_lay_out_heads_args *a, uint32_t b, uint32_t token,
                                                     uint32_t head)
{
    const uint32_t parts = a->ranks * a->chunks, q = a->heads / parts, k = a->kv_heads / parts;
    const bool query = head < a->heads;
    const uint32_t of_keys = query ? 0 : head - a->heads, value = !query && of_keys >= a->kv_heads;
    const uint32_t index = query ? head : of_keys - value * a->kv_heads, each = query ? q : k;
    const uint32_t part = index / each, place = index % each + (query ? 0 : q + value * k);
    const uint64_t row =
        ((uint64_t)(part % a->chunks * a->batch + b) * a->ranks + part / a->chunks) * a->sequence + token;
    return (row * (q + 2 * k) + place) * a->head_dim;
}

#endif
