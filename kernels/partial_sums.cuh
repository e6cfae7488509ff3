/* Second half of every sum over rows: columns of partial sums [count, width], added in the order of rows. */
#ifndef DTP_PARTIAL_SUMS_CUH
#define DTP_PARTIAL_SUMS_CUH

#include "kernels/vector.cuh"

namespace dtp
{

struct partial_sums {
    const float *partials[2]; /* blockIdx.y picks one and where it goes */
    void *result[2];
    uint32_t count, width;
    enum dtp_element element;
    bool accumulate;
};

constexpr int partial_lanes = 16;

/* A warp reads 32 neighbouring columns; sixteen warps share the rows. */
__global__ static void __launch_bounds__(32 * partial_lanes) add_partials(const __grid_constant__ partial_sums p)
{
    __shared__ float of_lane[partial_lanes][32];
    uint32_t column = blockIdx.x * 32 + threadIdx.x;
    const float *partials = (blockIdx.y ? p.partials[1] : p.partials[0]) + column;
    float sum = 0;
    if (column < p.width) {
        uint32_t i = threadIdx.y;
        for (; i + 7 * partial_lanes < p.count; i += 8 * partial_lanes) { /* eight loads under way at a time */
            float of[8];
#pragma unroll
            for (int k = 0; k < 8; k++)
                of[k] = partials[(uint64_t)(i + k * partial_lanes) * p.width];
#pragma unroll
            for (int k = 0; k < 8; k++)
                sum += of[k];
        }
        for (; i < p.count; i += partial_lanes)
            sum += partials[(uint64_t)i * p.width];
    }
    of_lane[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || column >= p.width)
        return;
    for (int lane = 1; lane < partial_lanes; lane++)
        sum += of_lane[lane][threadIdx.x];
    void *result = blockIdx.y ? p.result[1] : p.result[0];
    store_any(result, p.element, column, sum + (p.accumulate ? load_any(result, p.element, column) : 0.0f));
}

inline int launch_add_partials(const partial_sums &sums, unsigned matrices, cudaStream_t stream)
{
    add_partials<<<dim3((sums.width + 31) / 32, matrices), dim3(32, partial_lanes), 0, stream>>>(sums);
    return launched();
}

} // namespace dtp

#endif
