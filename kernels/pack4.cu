#include "kernels/nf4.h"
#include "kernels/vector.cuh"

/* Weights to 4 bits, once before training, and back, each time that a matmul reads them: eight numbers a thread and
 * turn, of which four turns are under way, so that whole sectors are read and written. */
namespace dtp
{
namespace
{

constexpr int threads = 256, piece = 8, turns = 4;

__device__ const float numbers[16] = {DTP_NF4_NUMBERS};

/* A block of 64 numbers to a group of eight threads. */
template <typename T> __global__ void __launch_bounds__(threads) pack(const __grid_constant__ struct dtp_pack4_args a)
{
    const uint64_t first = ((uint64_t)blockIdx.x * threads + threadIdx.x) * piece;
    float values[piece] = {}, largest = 0;
    const bool inside = first < a.count;
    if (inside) {
#pragma unroll
        for (int e = 0; e < piece; e++) {
            values[e] = to_float(((const T *)a.values)[first + e]);
            largest = fmaxf(largest, fabsf(values[e]));
        }
    }
    largest = warp_max(largest, DTP_NF4_BLOCK / piece);
    if (!inside)
        return;
    if (first % DTP_NF4_BLOCK == 0)
        a.largest[first / DTP_NF4_BLOCK] = largest;
    uint32_t codes = 0;
#pragma unroll
    for (int e = 0; e < piece; e++) {
        const float number = largest > 0 ? __fdiv_rn(values[e], largest) : 0;
        uint32_t code = 0;
#pragma unroll
        for (int c = 0; c < 15; c++)
            code += number > 0.5f * (numbers[c] + numbers[c + 1]) ? 1 : 0;
        codes |= code << (8 * (e / 2) + (e % 2 ? 0 : 4));
    }
    reinterpret_cast<uint32_t *>(a.codes)[first / piece] = codes;
}

template <typename T>
__global__ void __launch_bounds__(threads) unpack(const __grid_constant__ struct dtp_unpack4_args a)
{
    __shared__ float table[16];
    if (threadIdx.x < 16)
        table[threadIdx.x] = numbers[threadIdx.x];
    __syncthreads();
    const uint64_t pieces = a.count / piece, begin = (uint64_t)blockIdx.x * threads * turns + threadIdx.x;
    uint32_t codes[turns];
    float largest[turns];
#pragma unroll
    for (int t = 0; t < turns; t++) {
        const uint64_t at = begin + t * threads;
        codes[t] = at < pieces ? reinterpret_cast<const uint32_t *>(a.codes)[at] : 0;
        largest[t] = at < pieces ? a.largest[at * piece / DTP_NF4_BLOCK] : 0;
    }
#pragma unroll
    for (int t = 0; t < turns; t++) {
        const uint64_t at = begin + t * threads;
        float values[piece];
#pragma unroll
        for (int e = 0; e < piece; e++)
            values[e] = table[codes[t] >> (8 * (e / 2) + (e % 2 ? 0 : 4)) & 15] * largest[t];
        if (at < pieces)
            store((T *)a.result + at * piece, values);
    }
}

} // namespace
} // namespace dtp

extern "C" int dtp_cuda_pack4(void *self, const struct dtp_pack4_args *a, void *stream)
{
    (void)self;
    if (a->count == 0)
        return 0;
    return dtp::with_element(a->element, [&](auto of) {
        using T = decltype(of);
        dtp::pack<T>
            <<<dtp::blocks_for(a->count / dtp::piece, dtp::threads), dtp::threads, 0, dtp::stream_of(stream)>>>(*a);
        return dtp::launched();
    });
}

extern "C" int dtp_cuda_unpack4(void *self, const struct dtp_unpack4_args *a, void *stream)
{
    (void)self;
    if (a->count == 0)
        return 0;
    return dtp::with_element(a->element, [&](auto of) {
        using T = decltype(of);
        dtp::unpack<T><<<dtp::blocks_for(a->count / dtp::piece, dtp::threads * dtp::turns), dtp::threads, 0,
                         dtp::stream_of(stream)>>>(*a);
        return dtp::launched();
    });
}
