#include "kernels/vector.cuh"

/* Muon's passes over one matrix, around its products. As many blocks as there are partial sums, whatever the GPU, so
 * that sums have one order; a block's elements follow each other. */
namespace dtp
{
namespace
{

constexpr int threads = 256;

__device__ float block_sum(float value, float *of_warp)
{
    for (int offset = 16; offset > 0; offset /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, offset);
    if (threadIdx.x % 32 == 0)
        of_warp[threadIdx.x / 32] = value;
    __syncthreads();
    float sum = 0;
    for (int warp = 0; warp < threads / 32; warp++)
        sum += of_warp[warp];
    return sum;
}

template <typename G, typename M>
__global__ void __launch_bounds__(threads) momentum(const __grid_constant__ struct dtp_muon_momentum_args a)
{
    __shared__ float of_warp[threads / 32];
    const uint64_t part = (a.count + gridDim.x - 1) / gridDim.x, begin = blockIdx.x * part;
    const uint64_t end = begin + part < a.count ? begin + part : a.count;
    const float scale = a.scalars->clip_scale;
    M *state = (M *)a.momentum;
    bf16 *result = (bf16 *)a.result;
    float sum = 0;
    if (a.scalars->skip)
        return;
    for (uint64_t i = begin + threadIdx.x; i < end; i += threads) {
        const float gradient = to_float(((const G *)a.gradient)[i]) * scale, before = to_float(state[i]);
        const float after = before + (1 - a.factor) * (gradient - before);
        const bf16 ahead = from_float<bf16>(gradient + a.factor * (after - gradient));
        state[i] = from_float<M>(after);
        result[i] = ahead;
        sum += to_float(ahead) * to_float(ahead);
    }
    sum = block_sum(sum, of_warp);
    if (threadIdx.x == 0)
        a.partial[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(threads) unit(const __grid_constant__ struct dtp_muon_unit_args a)
{
    __shared__ float of_warp[threads / 32];
    bf16 *values = (bf16 *)a.values;
    float sum = 0;
    if (a.scalars->skip)
        return;
    for (uint32_t i = threadIdx.x; i < DTP_SQUARE_SUM_PARTIALS; i += threads)
        sum += a.partial[i];
    const float norm = to_float(from_float<bf16>(sqrtf(block_sum(sum, of_warp))));
    const float divisor = fmaxf(norm, (float)DTP_MUON_EPSILON);
    for (uint64_t i = (uint64_t)blockIdx.x * threads + threadIdx.x; i < a.count; i += (uint64_t)gridDim.x * threads)
        values[i] = from_float<bf16>(to_float(values[i]) / divisor);
}

} // namespace
} // namespace dtp

extern "C" int dtp_cuda_muon_momentum(void *self, const struct dtp_muon_momentum_args *a, void *stream)
{
    (void)self;
    return dtp::with_element(a->gradient_element, [&](auto of_gradient) {
        return dtp::with_element(a->momentum_element, [&](auto of_momentum) {
            dtp::momentum<decltype(of_gradient), decltype(of_momentum)>
                <<<DTP_SQUARE_SUM_PARTIALS, dtp::threads, 0, dtp::stream_of(stream)>>>(*a);
            return dtp::launched();
        });
    });
}

extern "C" int dtp_cuda_muon_unit(void *self, const struct dtp_muon_unit_args *a, void *stream)
{
    (void)self;
    const uint64_t blocks = (a->count + dtp::threads - 1) / dtp::threads, most = 8 * (uint64_t)dtp::multiprocessors();
    if (a->count == 0)
        return 0;
    dtp::unit<<<(unsigned)(blocks < most ? blocks : most), dtp::threads, 0, dtp::stream_of(stream)>>>(*a);
    return dtp::launched();
}
