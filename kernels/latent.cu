#include "kernels/vector.cuh"

namespace dtp
{
namespace
{

/* Sizes of a token's heads and where they lie, as reference_latent.c has them. */
struct heads_shape {
    uint32_t heads, dim, plain, value, of_key_value;
    uint64_t queries, packed, keys_values, shared; /* where the token's begin */

    __device__ uint64_t key(uint32_t head) const
    {
        return packed + (uint64_t)(heads + head) * dim;
    }

    __device__ uint64_t value_at(uint32_t head) const
    {
        return packed + 2 * (uint64_t)heads * dim + (uint64_t)head * value;
    }

    __device__ uint64_t key_value(uint32_t head) const
    {
        return keys_values + (uint64_t)head * of_key_value;
    }
};

template <typename Arguments> __device__ heads_shape shape_of(const Arguments &a, uint64_t row)
{
    const uint32_t plain = a.head_dim - a.rope_dim, of_key_value = plain + a.value_dim;
    return {a.heads,
            a.head_dim,
            plain,
            a.value_dim,
            of_key_value,
            row * a.heads * a.head_dim,
            row * a.heads * (2 * (uint64_t)a.head_dim + a.value_dim),
            row * a.heads * of_key_value,
            (row + 1) * a.latent_row - a.rope_dim};
}

/* A pair turned by the angle of `at`, or back. */
__device__ float2 turned(float2 pair, const float *cosines, const float *sines, uint64_t at, float sign)
{
    const float cosine = cosines[at], sine = sign * sines[at];
    return make_float2(pair.x * cosine - pair.y * sine, pair.x * sine + pair.y * cosine);
}

template <typename T> __device__ float2 read_pair(const void *from, uint64_t at)
{
    return make_float2(to_float(((const T *)from)[at]), to_float(((const T *)from)[at + 1]));
}

template <typename T> __device__ void write_pair(void *to, uint64_t at, float2 pair)
{
    ((T *)to)[at] = from_float<T>(pair.x);
    ((T *)to)[at + 1] = from_float<T>(pair.y);
}

/* A block per token, whose threads walk through the packed row element by element, of turned parts by pairs. */
template <typename T>
__global__ void __launch_bounds__(256) pack(const __grid_constant__ struct dtp_latent_heads_args a)
{
    const heads_shape s = shape_of(a, blockIdx.x);
    const uint64_t table = blockIdx.x % a.sequence * (a.rope_dim / 2);
    const T *queries = (const T *)a.queries, *keys_values = (const T *)a.keys_values;
    T *packed = (T *)a.packed;
    for (uint32_t i = threadIdx.x; i < s.heads * s.plain; i += blockDim.x) {
        const uint32_t head = i / s.plain, d = i % s.plain;
        packed[s.packed + (uint64_t)head * s.dim + d] = queries[s.queries + (uint64_t)head * s.dim + d];
        packed[s.key(head) + d] = keys_values[s.key_value(head) + d];
    }
    for (uint32_t i = threadIdx.x; i < s.heads * s.value; i += blockDim.x)
        packed[s.value_at(i / s.value) + i % s.value] = keys_values[s.key_value(i / s.value) + s.plain + i % s.value];
    for (uint32_t i = threadIdx.x; i < s.heads * (a.rope_dim / 2); i += blockDim.x) {
        const uint32_t head = i / (a.rope_dim / 2), p = i % (a.rope_dim / 2), at = s.plain + 2 * p;
        const float2 query = read_pair<T>(a.queries, s.queries + (uint64_t)head * s.dim + at);
        const float2 key = read_pair<T>(a.latents, s.shared + 2 * p);
        write_pair<T>(a.packed, s.packed + (uint64_t)head * s.dim + at,
                      turned(query, a.cosines, a.sines, table + p, 1));
        write_pair<T>(a.packed, s.key(head) + at, turned(key, a.cosines, a.sines, table + p, 1));
    }
}

/* The same back; a thread sums a pair of the shared part over all heads, in their order. */
template <typename T>
__global__ void __launch_bounds__(256) unpack(const __grid_constant__ struct dtp_latent_heads_backward_args a)
{
    const heads_shape s = shape_of(a, blockIdx.x);
    const uint64_t table = blockIdx.x % a.sequence * (a.rope_dim / 2);
    const T *packed = (const T *)a.packed;
    T *queries = (T *)a.queries, *keys_values = (T *)a.keys_values;
    for (uint32_t i = threadIdx.x; i < s.heads * s.plain; i += blockDim.x) {
        const uint32_t head = i / s.plain, d = i % s.plain;
        queries[s.queries + (uint64_t)head * s.dim + d] = packed[s.packed + (uint64_t)head * s.dim + d];
        keys_values[s.key_value(head) + d] = packed[s.key(head) + d];
    }
    for (uint32_t i = threadIdx.x; i < s.heads * s.value; i += blockDim.x)
        keys_values[s.key_value(i / s.value) + s.plain + i % s.value] = packed[s.value_at(i / s.value) + i % s.value];
    for (uint32_t i = threadIdx.x; i < s.heads * (a.rope_dim / 2); i += blockDim.x) {
        const uint32_t head = i / (a.rope_dim / 2), p = i % (a.rope_dim / 2), at = s.plain + 2 * p;
        const float2 query = read_pair<T>(a.packed, s.packed + (uint64_t)head * s.dim + at);
        write_pair<T>(a.queries, s.queries + (uint64_t)head * s.dim + at,
                      turned(query, a.cosines, a.sines, table + p, -1));
    }
    for (uint32_t p = threadIdx.x; p < a.rope_dim / 2; p += blockDim.x) {
        float2 sum = make_float2(0, 0);
        for (uint32_t head = 0; head < s.heads; head++) {
            const float2 key = read_pair<T>(a.packed, s.key(head) + s.plain + 2 * p);
            sum.x += key.x, sum.y += key.y;
        }
        write_pair<T>(a.latents, s.shared + 2 * p, turned(sum, a.cosines, a.sines, table + p, -1));
    }
}

} // namespace
} // namespace dtp

extern "C" int dtp_cuda_latent_heads(void *self, const struct dtp_latent_heads_args *a, void *stream)
{
    (void)self;
    if (a->rows == 0)
        return 0;
    return dtp::with_element(a->element, [&](auto of) {
        dtp::pack<decltype(of)><<<dtp::blocks_for(a->rows, 1), 256, 0, dtp::stream_of(stream)>>>(*a);
        return dtp::launched();
    });
}

extern "C" int dtp_cuda_latent_heads_backward(void *self, const struct dtp_latent_heads_backward_args *a, void *stream)
{
    (void)self;
    if (a->rows == 0)
        return 0;
    return dtp::with_element(a->element, [&](auto of) {
        dtp::unpack<decltype(of)><<<dtp::blocks_for(a->rows, 1), 256, 0, dtp::stream_of(stream)>>>(*a);
        return dtp::launched();
    });
}
