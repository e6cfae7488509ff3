#include "kernels/dynamic_map.h"
#include "kernels/random.h"
#include "kernels/vector.cuh"

/* Optimizers with less state than AdamW's, an element a thread: a block of moments is a block of threads, whose largest
 * magnitudes make its scales. */
namespace dtp
{
namespace
{

constexpr int threads = DTP_MOMENT_BLOCK;

__device__ const float signed_map[256] = {DTP_SIGNED_MAP}, unsigned_map[256] = {DTP_UNSIGNED_MAP};

__device__ uint8_t nearest(const float *map, float value)
{
    int low = 0, high = 255;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (map[middle] <= value)
            low = middle;
        else
            high = middle;
    }
    return value - map[low] > map[high] - value ? high : low;
}

__device__ bool decays(const struct dtp_adamw_args &a, uint64_t i)
{
    bool inside = false;
    for (uint32_t r = 0; r < a.range_count; r++)
        inside |= i >= a.range_begin[r] && i < a.range_end[r];
    return inside;
}

template <typename W> __device__ float decay_of(const struct dtp_adamw_args &a, uint64_t i)
{
    return decays(a, i) ? a.decay * (a.master ? a.master[i] : to_float(((const W *)a.weights)[i])) : 0.0f;
}

template <typename W> __device__ void move(const struct dtp_adamw_args &a, uint64_t i, float step, float decay)
{
    W *weights = (W *)a.weights;
    float weight = a.master ? a.master[i] : to_float(weights[i]);
    weight -= a.scalars->learning_rate * (step + decay);
    if (a.master)
        a.master[i] = weight;
    if constexpr (same<W, bf16>)
        if (!a.master && a.stochastic_rounding) {
            uint64_t index = a.first_element + i;
            struct dtp_philox block = dtp_rounding_block(a.scalars->seed, a.scalars->step, DTP_ROUND_WEIGHT, index);
            uint32_t rounded = dtp_round_stochastic(weight, dtp_rounding_bits(&block, (uint32_t)(index % 8)));
            weights[i] = __ushort_as_bfloat16((unsigned short)(rounded >> 16));
            return;
        }
    weights[i] = from_float<W>(weight);
}

/* The largest of a block's threads, in all of them; scratch is free again at the next barrier. */
__device__ float block_max(float value, float *of_warp)
{
    value = warp_max(value);
    if (threadIdx.x % 32 == 0)
        of_warp[threadIdx.x / 32] = value;
    __syncthreads();
    return warp_max(threadIdx.x % 32 < threads / 32 ? of_warp[threadIdx.x % 32] : 0.0f);
}

template <typename G, typename W>
__global__ void __launch_bounds__(threads) adamw8(const __grid_constant__ struct dtp_adamw_args a)
{
    __shared__ float maps[2][256], of_warp[2][threads / 32];
    const struct dtp_step_scalars &s = *a.scalars;
    if (s.skip)
        return;
    maps[0][threadIdx.x] = signed_map[threadIdx.x];
    maps[1][threadIdx.x] = unsigned_map[threadIdx.x];
    __syncthreads();
    uint8_t *first = (uint8_t *)a.moment1, *second = (uint8_t *)a.moment2;
    for (uint64_t block = blockIdx.x; block < a.count / threads; block += gridDim.x) {
        const uint64_t i = block * threads + threadIdx.x;
        const float gradient = to_float(((const G *)a.gradient)[i]) * s.clip_scale;
        const float m =
            a.beta1 * (maps[0][(uint8_t)(first[i] + DTP_SIGNED_ZERO)] * a.scale1[block]) + (1 - a.beta1) * gradient;
        const float v = a.beta2 * (maps[1][second[i]] * a.scale2[block]) + (1 - a.beta2) * gradient * gradient;
        move<W>(a, i, m / s.correction1 / (sqrtf(v / s.correction2) + a.epsilon), decay_of<W>(a, i));
        const float largest1 = block_max(fabsf(m), of_warp[0]), largest2 = block_max(v, of_warp[1]);
        first[i] = (uint8_t)(nearest(maps[0], largest1 > 0 ? m / largest1 : 0.0f) - DTP_SIGNED_ZERO);
        second[i] = nearest(maps[1], largest2 > 0 ? v / largest2 : 0.0f);
        __syncthreads(); /* all have read the scales */
        if (threadIdx.x == 0) {
            a.scale1[block] = largest1;
            a.scale2[block] = largest2;
        }
    }
}

template <typename G, typename W>
__global__ void __launch_bounds__(threads) sgd(const __grid_constant__ struct dtp_adamw_args a)
{
    const uint64_t i = (uint64_t)blockIdx.x * threads + threadIdx.x;
    if (i < a.count && !a.scalars->skip)
        move<W>(a, i, to_float(((const G *)a.gradient)[i]) * (a.factor > 0 ? a.factor : a.scalars->clip_scale),
                decay_of<W>(a, i));
}

template <typename G, typename W, typename M>
__global__ void __launch_bounds__(threads) sgd_momentum(const __grid_constant__ struct dtp_adamw_args a)
{
    const uint64_t i = (uint64_t)blockIdx.x * threads + threadIdx.x;
    M *momentum = (M *)a.moment1;
    if (i >= a.count || a.scalars->skip)
        return;
    const float step = to_float(((const G *)a.gradient)[i]) * a.scalars->clip_scale + decay_of<W>(a, i) +
                       a.beta1 * to_float(momentum[i]);
    momentum[i] = from_float<M>(step);
    move<W>(a, i, step, 0);
}

} // namespace
} // namespace dtp

extern "C" int dtp_cuda_adamw8(void *self, const struct dtp_adamw_args *a, void *stream)
{
    (void)self;
    const uint64_t blocks = a->count / DTP_MOMENT_BLOCK, most = 32 * (uint64_t)dtp::multiprocessors();
    if (a->count % DTP_MOMENT_BLOCK || a->moment_element != DTP_ELEMENT_INT8)
        return (int)cudaErrorInvalidValue;
    if (blocks == 0)
        return 0;
    return dtp::with_element(a->gradient_element, [&](auto of_gradient) {
        return dtp::with_element(a->weight_element, [&](auto of_weight) {
            dtp::adamw8<decltype(of_gradient), decltype(of_weight)>
                <<<(unsigned)(blocks < most ? blocks : most), dtp::threads, 0, dtp::stream_of(stream)>>>(*a);
            return dtp::launched();
        });
    });
}

extern "C" int dtp_cuda_sgd(void *self, const struct dtp_adamw_args *a, void *stream)
{
    (void)self;
    if (a->count == 0)
        return 0;
    if (a->moment1 && a->factor > 0)
        return (int)cudaErrorInvalidValue;
    return dtp::with_element(a->gradient_element, [&](auto of_gradient) {
        return dtp::with_element(a->weight_element, [&](auto of_weight) {
            if (a->moment1)
                return dtp::with_element(a->moment_element, [&](auto of_moment) {
                    dtp::sgd_momentum<decltype(of_gradient), decltype(of_weight), decltype(of_moment)>
                        <<<dtp::blocks_for(a->count, dtp::threads), dtp::threads, 0, dtp::stream_of(stream)>>>(*a);
                    return dtp::launched();
                });
            dtp::sgd<decltype(of_gradient), decltype(of_weight)>
                <<<dtp::blocks_for(a->count, dtp::threads), dtp::threads, 0, dtp::stream_of(stream)>>>(*a);
            return dtp::launched();
        });
    });
}
