#include "kernels/quantize.cuh"
#include "kernels/scale_factor.h"

/* fp8 of a matrix by rows, by columns or both, by one scale. */
namespace dtp
{
namespace
{

using namespace quantizing;
constexpr float least_amax = 1e-12f;

template <typename T, enum dtp_element E, bool ROWS, bool COLUMNS>
__global__ void __launch_bounds__(threads) quantize(const __grid_constant__ struct dtp_quantize_args a)
{
    __shared__ columns_tile tile;
    const float scale = a.delayed ? a.scale[1] : __fdiv_rn(largest_of<E>, fmaxf(*a.amax, least_amax));
    float largest = 0;
    const int x = threadIdx.x % pieces, y = threadIdx.x / pieces;
    const uint64_t row = (uint64_t)blockIdx.y * edge + y * piece, column = (uint64_t)blockIdx.x * edge + x * piece;
    const bool inside = row < a.rows && column < a.columns;
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0 && !a.delayed)
        *a.scale = __fdiv_rn(1.0f, scale);
    uint2 rows[piece];
    if (inside) {
        packed<T, piece> values[piece];
#pragma unroll
        for (int r = 0; r < piece; r++)
            values[r] = load_once<piece>((const T *)a.values + (row + r) * a.columns + column);
#pragma unroll
        for (int r = 0; r < piece; r++) {
            float scaled[piece];
#pragma unroll
            for (int e = 0; e < piece; e++)
                scaled[e] = values[r][e] * scale, largest = fmaxf(largest, fabsf(values[r][e]));
            rows[r] = eight_of<E>(scaled);
            if constexpr (ROWS)
                *reinterpret_cast<uint2 *>((char *)a.result + (row + r) * a.columns + column) = rows[r];
        }
    }
    if (a.delayed && a.amax)
        raise_amax<T>(a.amax, largest);
    if constexpr (COLUMNS) {
        if (inside)
            put_columns(tile, rows, x, y);
        write_columns(tile, (char *)a.transposed, a.rows, a.columns);
    }
}

template <typename T, enum dtp_element E> int launch(const struct dtp_quantize_args &a, cudaStream_t stream)
{
    const dim3 grid((unsigned)((a.columns + edge - 1) / edge), (unsigned)((a.rows + edge - 1) / edge));
    if (a.result && a.transposed)
        quantize<T, E, true, true><<<grid, threads, 0, stream>>>(a);
    else if (a.result)
        quantize<T, E, true, false><<<grid, threads, 0, stream>>>(a);
    else
        quantize<T, E, false, true><<<grid, threads, 0, stream>>>(a);
    return launched();
}

/* A block has a tensor's history; each thread reads what it writes one place further before anybody writes. */
__global__ void __launch_bounds__(threads) from_history(const struct dtp_from_history_args a)
{
    constexpr int each = DTP_AMAX_HISTORY / threads;
    __shared__ float of_warps[threads / 32];
    float *history = a.history + (uint64_t)blockIdx.x * DTP_AMAX_HISTORY, of[each];
    float largest = isfinite(history[0]) ? history[0] : 0; /* every thread's, as of its own */
#pragma unroll
    for (int k = 0; k < each; k++) {
        const int i = k * threads + threadIdx.x;
        of[k] = history[i + 1 < (int)DTP_AMAX_HISTORY ? i + 1 : 0];
        largest = isfinite(of[k]) ? fmaxf(largest, of[k]) : largest;
    }
    largest = warp_max(largest);
    if (threadIdx.x % 32 == 0)
        of_warps[threadIdx.x / 32] = largest;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < each; k++) {
        const int i = k * threads + threadIdx.x;
        history[i] = i ? of[k] : 0;
    }
    if (threadIdx.x)
        return;
    for (int w = 1; w < threads / 32; w++)
        largest = fmaxf(largest, of_warps[w]);
    float *scale = a.scale + (uint64_t)blockIdx.x * DTP_AMAX_SCALE;
    const float most = blockIdx.x < a.wide ? largest_of<DTP_ELEMENT_E4M3> : largest_of<DTP_ELEMENT_E5M2>;
    scale[1] = dtp_delayed_factor(most, largest);
    scale[0] = __fdiv_rn(1.0f, scale[1]);
}

template <typename T> __global__ void __launch_bounds__(threads) amax(const struct dtp_amax_args a)
{
    constexpr int N = full<T>, ahead = 4;
    const T *values = (const T *)a.values;
    const uint64_t stride = (uint64_t)gridDim.x * threads * N;
    float largest = 0;
    uint64_t i = ((uint64_t)blockIdx.x * threads + threadIdx.x) * N;
    for (; i + (ahead - 1) * stride + N <= a.count; i += ahead * stride) {
        packed<T, N> of[ahead];
#pragma unroll
        for (int k = 0; k < ahead; k++)
            of[k] = load_once<N>(values + i + k * stride);
#pragma unroll
        for (int k = 0; k < ahead; k++)
#pragma unroll
            for (int e = 0; e < N; e++)
                largest = fmaxf(largest, fabsf(of[k][e]));
    }
    for (; i < a.count; i += stride)
        for (int e = 0; e < N && i + e < a.count; e++)
            largest = fmaxf(largest, fabsf(to_float(values[i + e])));
    raise_amax<T>(a.amax, largest);
}

} // namespace
} // namespace dtp

extern "C" int dtp_cuda_amax(void *self, const struct dtp_amax_args *a, void *stream)
{
    (void)self;
    if (a->count == 0)
        return 0;
    return dtp::with_element(a->element, [&](auto of) {
        using T = decltype(of);
        constexpr uint64_t per_block = dtp::threads * dtp::full<T>;
        uint64_t blocks = (a->count + per_block - 1) / per_block, most = 16 * (uint64_t)dtp::multiprocessors();
        dtp::amax<T><<<(unsigned)(blocks < most ? blocks : most), dtp::threads, 0, dtp::stream_of(stream)>>>(*a);
        return dtp::launched();
    });
}

extern "C" int dtp_cuda_from_history(void *self, const struct dtp_from_history_args *a, void *stream)
{
    (void)self;
    if (a->count)
        dtp::from_history<<<(unsigned)a->count, dtp::threads, 0, dtp::stream_of(stream)>>>(*a);
    return dtp::launched();
}

extern "C" int dtp_cuda_quantize(void *self, const struct dtp_quantize_args *a, void *stream)
{
    (void)self;
    if (a->rows % DTP_FP8_MULTIPLE || a->columns % DTP_FP8_MULTIPLE || a->element != DTP_ELEMENT_BF16 ||
        a->rows / dtp::edge >= UINT16_MAX || (!a->result && !a->transposed))
        return (int)cudaErrorInvalidValue;
    if (a->rows == 0 || a->columns == 0)
        return 0;
    if (a->result_element == DTP_ELEMENT_E4M3)
        return dtp::launch<dtp::bf16, DTP_ELEMENT_E4M3>(*a, dtp::stream_of(stream));
    return dtp::launch<dtp::bf16, DTP_ELEMENT_E5M2>(*a, dtp::stream_of(stream));
}
