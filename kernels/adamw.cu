#include "random.h"
#include "vector.cuh"

namespace dtp
{
namespace
{

constexpr int threads = 256, width = 8; /* elements of a thread, as many as a block of random bits serves */

/* Bit e: element `first` + e lies in a range whose weights decay. */
__device__ uint32_t decay_mask(const struct dtp_adamw_args &a, uint64_t first)
{
    uint32_t mask = 0;
    for (uint32_t r = 0; r < a.range_count; r++) {
        uint64_t begin = a.range_begin[r], end = a.range_end[r];
        if (begin >= first + width || end <= first)
            continue;
        uint32_t low = begin > first ? (uint32_t)(begin - first) : 0;
        uint32_t high = end < first + width ? (uint32_t)(end - first) : width;
        mask |= ((1u << high) - 1) & ~((1u << low) - 1);
    }
    return mask;
}

/* Factors that all elements share. */
struct rates {
    float learning_rate, scale, beta1, beta2, inverse1, inverse2, epsilon, decay;
};

__device__ rates rates_of(const struct dtp_adamw_args &a)
{
    const struct dtp_step_scalars s = *a.scalars;
    return {s.learning_rate, s.clip_scale, a.beta1, a.beta2, 1 / s.correction1, 1 / s.correction2, a.epsilon, a.decay};
}

__device__ void update(const rates &r, float gradient, float &weight, float &moment1, float &moment2, bool decays)
{
    gradient *= r.scale;
    moment1 = r.beta1 * moment1 + (1 - r.beta1) * gradient;
    moment2 = r.beta2 * moment2 + (1 - r.beta2) * gradient * gradient;
    float step = moment1 * r.inverse1 / (sqrtf(moment2 * r.inverse2) + r.epsilon);
    weight -= r.learning_rate * (step + (decays ? r.decay * weight : 0.0f));
}

/* fp32 as it is; bf16 to nearest or stochastically. `index` is the element's number in the model's numbering. */
template <typename T>
__device__ T round_to(float value, const struct dtp_adamw_args &a, uint64_t index, enum dtp_rounding_use use)
{
    if constexpr (sizeof(T) == 2)
        if (a.stochastic_rounding) {
            struct dtp_philox block = dtp_rounding_block(a.scalars->seed, a.scalars->step, use, index);
            return __ushort_as_bfloat16(dtp_bf16_stochastic(value, dtp_rounding_bits(&block, (uint32_t)(index % 8))));
        }
    return from_float<T>(value);
}

/* Eight neighbours whose numbers begin at a multiple of eight where they round stochastically: one block of bits. */
template <typename T>
__device__ void store_vector(T *to, const float (&values)[width], const struct dtp_adamw_args &a, uint64_t index,
                             enum dtp_rounding_use use)
{
    if constexpr (sizeof(T) == 2)
        if (a.stochastic_rounding) {
            struct dtp_philox block = dtp_rounding_block(a.scalars->seed, a.scalars->step, use, index);
            packed<T, width> rounded;
#pragma unroll
            for (uint32_t e = 0; e < width; e++)
                rounded.element[e] = __ushort_as_bfloat16(dtp_bf16_stochastic(values[e], dtp_rounding_bits(&block, e)));
            store(to, rounded);
            return;
        }
    store(to, values);
}

/* MASTER: weights are copies of a.master, else the state itself. */
template <typename G, typename W, typename M, bool MASTER>
__device__ void update_vector(const struct dtp_adamw_args &a, const rates &r, uint64_t i)
{
    packed<G, width> gradient = load<width>((const G *)a.gradient + i);
    packed<M, width> first = load<width>((const M *)a.moment1 + i), second = load<width>((const M *)a.moment2 + i);
    float weight[width], moment1[width], moment2[width];
    if constexpr (MASTER) {
        packed<float, width> master = load<width>(a.master + i);
#pragma unroll
        for (int e = 0; e < width; e++)
            weight[e] = master[e];
    } else {
        packed<W, width> kept = load<width>((const W *)a.weights + i);
#pragma unroll
        for (int e = 0; e < width; e++)
            weight[e] = kept[e];
    }
    uint32_t decays = decay_mask(a, i);
#pragma unroll
    for (int e = 0; e < width; e++) {
        moment1[e] = first[e], moment2[e] = second[e];
        update(r, gradient[e], weight[e], moment1[e], moment2[e], decays >> e & 1);
    }
    uint64_t index = a.first_element + i;
    store_vector((M *)a.moment1 + i, moment1, a, index, DTP_ROUND_MOMENT1);
    store_vector((M *)a.moment2 + i, moment2, a, index, DTP_ROUND_MOMENT2);
    if constexpr (MASTER) {
        store(a.master + i, weight);
        store((W *)a.weights + i, weight);
    } else {
        store_vector((W *)a.weights + i, weight, a, index, DTP_ROUND_WEIGHT);
    }
}

template <typename G, typename W, typename M, bool MASTER>
__device__ void update_element(const struct dtp_adamw_args &a, const rates &r, uint64_t i)
{
    W *weights = (W *)a.weights;
    M *firsts = (M *)a.moment1, *seconds = (M *)a.moment2;
    float weight = MASTER ? a.master[i] : to_float(weights[i]), moment1 = to_float(firsts[i]),
          moment2 = to_float(seconds[i]);
    update(r, to_float(((const G *)a.gradient)[i]), weight, moment1, moment2, decay_mask(a, i) & 1);
    uint64_t index = a.first_element + i;
    firsts[i] = round_to<M>(moment1, a, index, DTP_ROUND_MOMENT1);
    seconds[i] = round_to<M>(moment2, a, index, DTP_ROUND_MOMENT2);
    if constexpr (MASTER) {
        a.master[i] = weight;
        weights[i] = from_float<W>(weight);
    } else {
        weights[i] = round_to<W>(weight, a, index, DTP_ROUND_WEIGHT);
    }
}

template <typename G, typename W, typename M, bool MASTER>
__global__ void __launch_bounds__(threads) adamw(const __grid_constant__ struct dtp_adamw_args a)
{
    if (a.scalars->skip)
        return;
    const rates r = rates_of(a);
    uint64_t i = ((uint64_t)blockIdx.x * threads + threadIdx.x) * width;
    bool whole = !a.stochastic_rounding || a.first_element % width == 0;
    if (whole && i + width <= a.count)
        update_vector<G, W, M, MASTER>(a, r, i);
    else
        for (uint64_t end = min(i + width, a.count); i < end; i++)
            update_element<G, W, M, MASTER>(a, r, i);
}

} // namespace
} // namespace dtp

extern "C" int dtp_cuda_adamw(void *self, const struct dtp_adamw_args *a, void *stream)
{
    (void)self;
    if (a->count == 0)
        return 0;
    return dtp::with_element(a->gradient_element, [&](auto of_gradient) {
        return dtp::with_element(a->weight_element, [&](auto of_weight) {
            return dtp::with_element(a->moment_element, [&](auto of_moment) {
                using G = decltype(of_gradient);
                using W = decltype(of_weight);
                using M = decltype(of_moment);
                unsigned blocks = dtp::blocks_for(a->count, (uint64_t)dtp::threads * dtp::width);
                cudaStream_t on = dtp::stream_of(stream);
                if (a->master)
                    dtp::adamw<G, W, M, true><<<blocks, dtp::threads, 0, on>>>(*a);
                else
                    dtp::adamw<G, W, M, false><<<blocks, dtp::threads, 0, on>>>(*a);
                return dtp::launched();
            });
        });
    });
}
