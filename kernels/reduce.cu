#include "kernels/partial_sums.cuh"

#include <math.h>

namespace dtp
{
namespace
{

/* Columns of a bias' gradient: a warp holds 32 vectors of columns, the eight warps of a block take every eighth of its
 * rows; blockIdx.y is a stretch of rows and a row of partial sums. */
constexpr int bias_warps = 8;

template <typename T, int N>
__global__ void __launch_bounds__(32 * bias_warps) sum_columns(struct dtp_bias_backward_args a)
{
    __shared__ float of_warp[bias_warps][32 * N];
    uint64_t column = (uint64_t)(blockIdx.x * 32 + threadIdx.x) * N, stretch = (a.rows + gridDim.y - 1) / gridDim.y;
    uint64_t end = min((blockIdx.y + 1) * stretch, a.rows);
    float sum[N] = {};
    if (column < a.width) {
#pragma unroll 4
        for (uint64_t row = blockIdx.y * stretch + threadIdx.y; row < end; row += bias_warps) {
            packed<T, N> values = load<N>((const T *)a.gradient + row * a.width + column);
#pragma unroll
            for (int e = 0; e < N; e++)
                sum[e] += values[e];
        }
    }
#pragma unroll
    for (int e = 0; e < N; e++)
        of_warp[threadIdx.y][e * 32 + threadIdx.x] = sum[e];
    __syncthreads();
    if (threadIdx.y > 0 || column >= a.width)
        return;
    for (int w = 1; w < bias_warps; w++)
#pragma unroll
        for (int e = 0; e < N; e++)
            sum[e] += of_warp[w][e * 32 + threadIdx.x];
    store(a.workspace + (uint64_t)blockIdx.y * a.width + column, sum);
}

/* At least 64 rows a block, and no more blocks than fill a large GPU eight times: by shape alone, never by the device.
 */
template <typename T, int N> int launch_bias(const struct dtp_bias_backward_args &a, cudaStream_t stream)
{
    unsigned tiles = (a.width + 32 * N - 1) / (32 * N);
    uint64_t stretches = (a.rows + 63) / 64, most = (1056 + tiles - 1) / tiles;
    stretches = stretches < most ? stretches : most;
    stretches = stretches < DTP_PARTIAL_SUM_ROWS ? stretches : DTP_PARTIAL_SUM_ROWS;
    sum_columns<T, N><<<dim3(tiles, (unsigned)stretches), dim3(32, bias_warps), 0, stream>>>(a);
    partial_sums sums = {{a.workspace}, {a.bias_gradient},  (uint32_t)stretches,
                         a.width,       a.gradient_element, a.accumulate};
    return launch_add_partials(sums, 1, stream);
}

__device__ bool is_skipped(const struct dtp_square_sum_args &a, uint64_t i)
{
    for (uint32_t r = 0; r < a.skip_count; r++)
        if (i >= a.skip_begin[r] && i < a.skip_end[r])
            return true;
    return false;
}

/* Partial p sums the p-th of 512 interleaved stretches; eight sums a thread keep rounding errors of long tensors small.
 */
template <typename T> __global__ void __launch_bounds__(512) square_sum(struct dtp_square_sum_args a)
{
    constexpr int N = 8;
    const T *values = (const T *)a.values;
    float sum[N] = {};
    const uint64_t stride = (uint64_t)DTP_SQUARE_SUM_PARTIALS * 512 * N;
    uint64_t i = ((uint64_t)blockIdx.x * 512 + threadIdx.x) * N;
#pragma unroll 2
    for (; i + N <= a.count; i += stride) {
        packed<T, N> of = load<N>(values + i);
#pragma unroll
        for (int e = 0; e < N; e++)
            sum[e] += a.skip_count && is_skipped(a, i + e) ? 0.0f : of[e] * of[e];
    }
    for (; i < a.count && i % N < N; i++) { /* at most one thread comes here with elements left */
        float value = is_skipped(a, i) ? 0.0f : to_float(values[i]);
        sum[0] += value * value;
    }
    double total = 0;
#pragma unroll
    for (int e = 0; e < N; e++)
        total += sum[e];
    total = block_sum(total);
    if (threadIdx.x == 0)
        a.partial[blockIdx.x] = (float)total;
}

__device__ double sum_all(const float *values, uint64_t count)
{
    double sum = 0;
    uint64_t i = threadIdx.x;
    for (; i + 7 * blockDim.x < count; i += 8 * blockDim.x) { /* eight loads under way at a time */
        float of[8];
#pragma unroll
        for (int k = 0; k < 8; k++)
            of[k] = values[i + k * blockDim.x];
#pragma unroll
        for (int k = 0; k < 8; k++)
            sum += of[k];
    }
    for (; i < count; i += blockDim.x)
        sum += values[i];
    return block_sum(sum);
}

__global__ void __launch_bounds__(1024) sum(struct dtp_sum_args a)
{
    double total = sum_all(a.values, a.count);
    if (threadIdx.x == 0)
        *a.total = (float)(total + (a.accumulate ? (double)*a.total : 0.0));
}

__global__ void __launch_bounds__(1024) clip_scale(struct dtp_clip_scale_args a)
{
    double sum = sum_all(a.partials, a.count);
    if (threadIdx.x > 0)
        return;
    double scale = a.scalars->loss_scale > 0 ? a.scalars->loss_scale : 1.0f, norm = sqrt(sum) / scale;
    a.scalars->gradient_norm = (float)norm;
    a.scalars->clip_scale = (float)((a.clip > 0 && norm > a.clip ? a.clip / norm : 1.0) / scale);
    a.scalars->skip = !isfinite((float)norm) || !isfinite(a.scalars->loss_sum);
}

} // namespace
} // namespace dtp

extern "C" int dtp_cuda_bias_backward(void *self, const struct dtp_bias_backward_args *a, void *stream)
{
    (void)self;
    if (a->rows == 0)
        return 0;
    return dtp::with_element(a->element, [&](auto of) {
        using T = decltype(of);
        if (a->width % dtp::full<T>)
            return dtp::launch_bias<T, 1>(*a, dtp::stream_of(stream));
        return dtp::launch_bias<T, dtp::full<T>>(*a, dtp::stream_of(stream));
    });
}

extern "C" int dtp_cuda_square_sum(void *self, const struct dtp_square_sum_args *a, void *stream)
{
    (void)self;
    return dtp::with_element(a->element, [&](auto of) {
        dtp::square_sum<decltype(of)><<<DTP_SQUARE_SUM_PARTIALS, 512, 0, dtp::stream_of(stream)>>>(*a);
        return dtp::launched();
    });
}

extern "C" int dtp_cuda_sum(void *self, const struct dtp_sum_args *a, void *stream)
{
    (void)self;
    dtp::sum<<<1, 1024, 0, dtp::stream_of(stream)>>>(*a);
    return dtp::launched();
}

extern "C" int dtp_cuda_clip_scale(void *self, const struct dtp_clip_scale_args *a, void *stream)
{
    (void)self;
    dtp::clip_scale<<<1, 1024, 0, dtp::stream_of(stream)>>>(*a);
    return dtp::launched();
}
