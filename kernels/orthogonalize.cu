/* One block a factor: its vectors are few, depend on each other, and lie in L2 after the first pass. Sums go by
 * threads, warps and then the block, in an order that depends on the length alone. */
#include "kernels/random.h"
#include "kernels/vector.cuh"

namespace dtp
{
namespace
{

constexpr int orthogonalize_threads = 1024;

__device__ double block_sum(double value)
{
    __shared__ double of_warp[32];
    for (int lane = 16; lane > 0; lane /= 2)
        value += __shfl_xor_sync(~0u, value, lane);
    __syncthreads(); /* what the sum before left has been read */
    if (threadIdx.x % 32 == 0)
        of_warp[threadIdx.x / 32] = value;
    __syncthreads();
    double sum = of_warp[threadIdx.x % 32];
    for (int lane = 16; lane > 0; lane /= 2)
        sum += __shfl_xor_sync(~0u, sum, lane);
    return sum;
}

__device__ double dot(const dtp_orthogonalize_args &a, const float *x, const float *y)
{
    double sum = 0;
    for (uint64_t i = threadIdx.x; i < a.length; i += orthogonalize_threads)
        sum += (double)x[i * a.element_stride] * (double)y[i * a.element_stride];
    return block_sum(sum);
}

/* A thread reads and writes the same elements throughout, so that nothing but sums needs the others. */
__device__ void project(const dtp_orthogonalize_args &a, uint32_t v)
{
    float *y = a.values + v * a.vector_stride;
    for (int time = 0; time < 2; time++)
        for (uint32_t u = 0; u < v; u++) {
            const float *x = a.values + u * a.vector_stride;
            double part = dot(a, x, y);
            for (uint64_t i = threadIdx.x; i < a.length; i += orthogonalize_threads)
                y[i * a.element_stride] =
                    (float)((double)y[i * a.element_stride] - part * (double)x[i * a.element_stride]);
        }
}

__global__ void __launch_bounds__(orthogonalize_threads) orthogonalize(const dtp_orthogonalize_args a)
{
    for (uint32_t v = 0; v < a.vectors; v++) {
        float *y = a.values + v * a.vector_stride;
        double before = sqrt(dot(a, y, y));
        project(a, v);
        double norm = sqrt(dot(a, y, y));
        if (isfinite(before) && !(norm > DTP_ORTHOGONALIZE_LEAST * before)) {
            for (uint64_t i = threadIdx.x; i < a.length; i += orthogonalize_threads)
                y[i * a.element_stride] = (float)dtp_random_normal(v, 0, i);
            project(a, v);
            norm = sqrt(dot(a, y, y));
        }
        for (uint64_t i = threadIdx.x; i < a.length; i += orthogonalize_threads)
            y[i * a.element_stride] = (float)((double)y[i * a.element_stride] / norm);
    }
}

} // namespace
} // namespace dtp

extern "C" int dtp_cuda_orthogonalize(void *self, const struct dtp_orthogonalize_args *a, void *stream)
{
    (void)self;
    if (!a->vectors || a->vectors > a->length || a->vectors > DTP_ORTHOGONALIZE_VECTORS)
        return cudaErrorInvalidValue;
    dtp::orthogonalize<<<1, dtp::orthogonalize_threads, 0, (cudaStream_t)stream>>>(*a);
    return dtp::launched();
}
