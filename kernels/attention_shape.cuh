/* What our own attention kernels share: where heads lie in packed tensors, which keys a query sees, what ALiBi adds. */
#ifndef DTP_ATTENTION_SHAPE_CUH
#define DTP_ATTENTION_SHAPE_CUH

#include "kernels/alibi.h"
#include "kernels/kernels.h"

#include <cuda_runtime.h>
#include <stddef.h>

namespace dtp
{

struct attention_shape {
    uint32_t batch, sequence, heads, kv_heads, dim, value_dim; /* of queries and keys; of values and results */
    uint32_t first_query, keys;                                /* queries begin there; keys of a sequence */
    bool around; /* keys and values lie by themselves, and every query sees all of them */

    __device__ uint64_t packed_row(uint32_t b, uint32_t i) const
    {
        return ((uint64_t)b * sequence + i) * ((heads + kv_heads) * dim + kv_heads * value_dim);
    }

    __device__ uint64_t query(uint32_t b, uint32_t i, uint32_t head) const
    {
        return packed_row(b, i) + (uint64_t)head * dim;
    }

    __device__ uint64_t key_row(uint32_t b, uint32_t i) const
    {
        return around ? ((uint64_t)b * sequence + i) * 2 * kv_heads * dim : packed_row(b, i);
    }

    __device__ uint64_t key(uint32_t b, uint32_t i, uint32_t kv_head) const
    {
        return key_row(b, i) + (uint64_t)((around ? 0 : heads) + kv_head) * dim;
    }

    __device__ uint64_t value(uint32_t b, uint32_t i, uint32_t kv_head) const
    {
        return key_row(b, i) + (uint64_t)((around ? 0 : heads) + kv_heads) * dim + (uint64_t)kv_head * value_dim;
    }

    __device__ uint64_t result(uint32_t b, uint32_t i, uint32_t head) const
    {
        return (((uint64_t)b * sequence + i) * heads + head) * value_dim;
    }

    __device__ uint64_t statistic(uint32_t b, uint32_t i, uint32_t head) const
    {
        return ((uint64_t)b * heads + head) * sequence + i;
    }

    /* Place in the statistics that a step of a ring writes, which has those of its own queries alone. */
    __device__ uint64_t own_statistic(uint32_t b, uint32_t i, uint32_t head) const
    {
        return ((uint64_t)b * heads + head) * (sequence - first_query) + i - first_query;
    }

    __device__ bool sees(uint32_t query, uint32_t key, uint32_t window) const
    {
        return around ? key < keys : key <= query && (window == 0 || query - key < window);
    }
};

template <typename Arguments> __device__ inline attention_shape shape_of(const Arguments &a)
{
    const bool around = a.keys != nullptr;
    return {a.batch,
            a.sequence,
            a.heads,
            a.kv_heads,
            a.head_dim,
            a.value_dim ? a.value_dim : a.head_dim,
            around ? a.first_query : 0,
            around ? a.key_count : a.sequence,
            around};
}

/* What ALiBi adds to the score of a key; 0 with a slope of 0. */
__device__ inline float bias(float slope, uint32_t query, uint32_t key)
{
    return slope * ((float)key - (float)query);
}

inline unsigned tiles_of(uint32_t sequence, uint32_t tile)
{
    return (sequence + tile - 1) / tile;
}

template <typename Arguments> uint32_t queries_of(const Arguments &a)
{
    return a.keys ? a.sequence - a.first_query : a.sequence;
}

template <typename Arguments> size_t value_of(const Arguments &a)
{
    return a.value_dim ? a.value_dim : a.head_dim;
}

template <typename Kernel> int allow_memory(Kernel kernel, size_t bytes)
{
    return (int)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

} // namespace dtp

#endif
