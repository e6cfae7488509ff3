#include "random.h"
#include "vector.cuh"

namespace dtp
{
namespace
{

constexpr int threads = 256, width = 8; /* 16 bytes of bf16, 32 of fp32 */

/* The last elements that fill no vector are the last thread's. */
template <typename From, typename To, bool ADD>
__global__ void __launch_bounds__(threads) convert(const From *from, To *to, uint64_t count)
{
    uint64_t i = ((uint64_t)blockIdx.x * threads + threadIdx.x) * width;
    if (i + width <= count) {
        packed<From, width> values = load<width>(from + i);
        packed<To, width> total;
        if constexpr (ADD)
            total = load<width>(to + i);
        float result[width];
#pragma unroll
        for (int e = 0; e < width; e++)
            result[e] = ADD ? total[e] + values[e] : values[e];
        store(to + i, result);
        return;
    }
    for (; i < count; i++)
        to[i] = from_float<To>(to_float(from[i]) + (ADD ? to_float(to[i]) : 0.0f));
}

template <bool ADD>
int launch_convert(const void *from, enum dtp_element from_element, void *to, enum dtp_element to_element,
                   uint64_t count, void *stream)
{
    if (count == 0)
        return 0;
    return with_element(from_element, [&](auto of_from) {
        return with_element(to_element, [&](auto of_to) {
            using From = decltype(of_from);
            using To = decltype(of_to);
            convert<From, To, ADD><<<blocks_for(count, (uint64_t)threads * width), threads, 0, stream_of(stream)>>>(
                (const From *)from, (To *)to, count);
            return launched();
        });
    });
}

__global__ void initialise(struct dtp_initialise_args a)
{
    uint64_t stride = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < a.count; i += stride) {
        double normal = a.deviation > 0 ? dtp_random_normal(a.seed, a.tensor, a.first_element + i) : 0;
        store_any(a.values, a.element, i, (float)((double)a.mean + (double)a.deviation * normal));
    }
}

} // namespace
} // namespace dtp

extern "C" int dtp_cuda_cast(void *self, const struct dtp_cast_args *a, void *stream)
{
    (void)self;
    return dtp::launch_convert<false>(a->values, a->element, a->result, a->result_element, a->count, stream);
}

extern "C" int dtp_cuda_add(void *self, const struct dtp_add_args *a, void *stream)
{
    (void)self;
    return dtp::launch_convert<true>(a->values, a->element, a->total, a->total_element, a->count, stream);
}

extern "C" int dtp_cuda_zero(void *self, const struct dtp_zero_args *a, void *stream)
{
    (void)self;
    return a->bytes ? (int)cudaMemsetAsync(a->values, 0, a->bytes, dtp::stream_of(stream)) : 0;
}

extern "C" int dtp_cuda_initialise(void *self, const struct dtp_initialise_args *a, void *stream)
{
    (void)self;
    if (a->count == 0)
        return 0;
    uint64_t blocks = (a->count + 255) / 256, most = 32 * (uint64_t)dtp::multiprocessors();
    dtp::initialise<<<(unsigned)(blocks < most ? blocks : most), 256, 0, dtp::stream_of(stream)>>>(*a);
    return dtp::launched();
}

extern "C" const char *dtp_cuda_error_text(int code)
{
    return cudaGetErrorString((cudaError_t)code);
}
