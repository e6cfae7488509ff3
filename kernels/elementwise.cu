#include "kernels/random.h"
#include "kernels/vector.cuh"

namespace dtp
{
namespace
{

/* A thread has eight elements: a vector of eight bf16, or two of four so that 16 bytes of fp32 lie beside the
 * neighbour's. */
constexpr int threads = 256, per_thread = 8, per_block = threads * per_thread;
template <typename From, typename To> constexpr int vector_of = sizeof(From) + sizeof(To) == 4 ? 8 : 4;

template <typename From, typename To, bool ADD>
__global__ void __launch_bounds__(threads) convert(const From *from, To *to, uint64_t count)
{
    constexpr int N = vector_of<From, To>, groups = per_thread / N;
    const uint64_t first = (uint64_t)blockIdx.x * per_block;
    if (first + per_block > count) { /* the last block: element by element */
        for (uint64_t i = first + threadIdx.x; i < count; i += threads)
            to[i] = from_float<To>(to_float(from[i]) + (ADD ? to_float(to[i]) : 0.0f));
        return;
    }
    packed<From, N> values[groups];
    packed<To, N> total[groups];
#pragma unroll
    for (int g = 0; g < groups; g++) {
        uint64_t i = first + (uint64_t)(g * threads + threadIdx.x) * N;
        values[g] = load<N>(from + i);
        if constexpr (ADD)
            total[g] = load<N>(to + i);
    }
#pragma unroll
    for (int g = 0; g < groups; g++) {
        float result[N];
#pragma unroll
        for (int e = 0; e < N; e++)
            result[e] = ADD ? total[g][e] + values[g][e] : values[g][e];
        store(to + first + (uint64_t)(g * threads + threadIdx.x) * N, result);
    }
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
            convert<From, To, ADD>
                <<<blocks_for(count, per_block), threads, 0, stream_of(stream)>>>((const From *)from, (To *)to, count);
            return launched();
        });
    });
}

constexpr uint32_t ahead = 4; /* parts whose loads are under way at once */

/* Parts of whole vectors begin at one; others are read element by element, as the last block is. */
template <typename Part, typename Total, bool ADD>
__global__ void __launch_bounds__(threads)
    sum_parts(const Part *parts, Total *total, uint64_t count, uint32_t part_count)
{
    constexpr int N = vector_of<Part, Total>, groups = per_thread / N;
    const uint64_t first = (uint64_t)blockIdx.x * per_block;
    if (first + per_block > count || count % N != 0) {
        for (uint64_t i = first + threadIdx.x; i < count && i < first + per_block; i += threads) {
            float sum = 0;
            for (uint32_t p = 0; p < part_count; p++)
                sum += to_float(parts[p * count + i]);
            total[i] = from_float<Total>(ADD ? sum + to_float(total[i]) : sum);
        }
        return;
    }
    float sum[groups][N] = {};
    for (uint32_t p = 0; p < part_count; p += ahead) {
        packed<Part, N> part[ahead][groups];
#pragma unroll
        for (uint32_t i = 0; i < ahead; i++)
#pragma unroll
            for (int g = 0; g < groups; g++)
                if (p + i < part_count)
                    part[i][g] =
                        load_once<N>(parts + (p + i) * count + first + (uint64_t)(g * threads + threadIdx.x) * N);
#pragma unroll
        for (uint32_t i = 0; i < ahead; i++)
#pragma unroll
            for (int g = 0; g < groups; g++)
#pragma unroll
                for (int e = 0; e < N; e++)
                    if (p + i < part_count)
                        sum[g][e] += part[i][g][e];
    }
#pragma unroll
    for (int g = 0; g < groups; g++) {
        Total *at = total + first + (uint64_t)(g * threads + threadIdx.x) * N;
        if constexpr (ADD) {
            packed<Total, N> before = load<N>(at);
#pragma unroll
            for (int e = 0; e < N; e++)
                sum[g][e] += before[e];
        }
        store(at, sum[g]);
    }
}

__global__ void initialise(struct dtp_initialise_args a)
{
    uint64_t stride = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < a.count; i += stride) {
        uint64_t at = a.run ? i / a.run * a.stride + i % a.run : i;
        double normal = a.deviation > 0 ? dtp_random_normal(a.seed, a.tensor, a.first_element + at) : 0;
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

extern "C" int dtp_cuda_sum_parts(void *self, const struct dtp_sum_parts_args *a, void *stream)
{
    (void)self;
    if (a->count == 0)
        return 0;
    return dtp::with_element(a->element, [&](auto of_part) {
        return dtp::with_element(a->total_element, [&](auto of_total) {
            using Part = decltype(of_part);
            using Total = decltype(of_total);
            auto kernel = a->accumulate ? dtp::sum_parts<Part, Total, true> : dtp::sum_parts<Part, Total, false>;
            kernel<<<dtp::blocks_for(a->count, dtp::per_block), dtp::threads, 0, dtp::stream_of(stream)>>>(
                (const Part *)a->parts, (Total *)a->total, a->count, a->part_count);
            return dtp::launched();
        });
    });
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
