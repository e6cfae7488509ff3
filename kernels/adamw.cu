#include "kernels/random.h"
#include "kernels/vector.cuh"

namespace dtp
{
namespace
{

/* A thread has eight elements, as many as a block of random bits serves: a vector of eight where all state is bf16,
 * else two of four, so that 16 bytes of fp32 lie beside the neighbour's. */
constexpr int threads = 256, per_thread = 8, per_block = threads * per_thread;

/* Bit e: element `first` + e of `width` lies in a range whose weights decay. */
__device__ uint32_t decay_mask(const struct dtp_adamw_args &a, uint64_t first, uint32_t width)
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

/* To 1 unit in the last place, without the branch that exact rounding takes. */
__device__ float square_root(float x)
{
    float root;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(root) : "f"(x));
    return root;
}

__device__ void update(const rates &r, float gradient, float &weight, float &moment1, float &moment2, bool decays)
{
    gradient *= r.scale;
    moment1 = r.beta1 * moment1 + (1 - r.beta1) * gradient;
    moment2 = r.beta2 * moment2 + (1 - r.beta2) * gradient * gradient;
    float step = __fdividef(moment1 * r.inverse1, square_root(moment2 * r.inverse2) + r.epsilon);
    weight -= r.learning_rate * (step + (decays ? r.decay * weight : 0.0f));
}

/* What is rounded stochastically: fp16 has a master beside it. */
template <typename T> constexpr bool rounds = same<T, bf16>;

/* fp32 as it is; bf16 to nearest or stochastically. `index` is the element's number in the model's numbering. */
template <typename T>
__device__ T round_to(float value, const struct dtp_adamw_args &a, uint64_t index, enum dtp_rounding_use use)
{
    if constexpr (rounds<T>)
        if (a.stochastic_rounding) {
            struct dtp_philox block = dtp_rounding_block(a.scalars->seed, a.scalars->step, use, index);
            uint32_t rounded = dtp_round_stochastic(value, dtp_rounding_bits(&block, (uint32_t)(index % 8)));
            return __ushort_as_bfloat16((unsigned short)(rounded >> 16));
        }
    return from_float<T>(value);
}

/* N neighbours whose numbers begin at a multiple of N: they share a block of random bits where they round
 * stochastically. */
template <typename T, int N>
__device__ void store_vector(T *to, const float (&values)[N], const struct dtp_adamw_args &a, uint64_t index,
                             enum dtp_rounding_use use)
{
    if constexpr (rounds<T>)
        if (a.stochastic_rounding) {
            struct dtp_philox block = dtp_rounding_block(a.scalars->seed, a.scalars->step, use, index);
            if (index % per_thread != 0) { /* the second half of a block's eight */
                block.word[0] = block.word[2];
                block.word[1] = block.word[3];
            }
            packed<T, N> rounded;
#pragma unroll
            for (uint32_t e = 0; e < N; e += 2) {
                uint32_t low = dtp_round_stochastic(values[e], dtp_rounding_bits(&block, e));
                uint32_t high = dtp_round_stochastic(values[e + 1], dtp_rounding_bits(&block, e + 1));
                reinterpret_cast<uint32_t *>(rounded.element)[e / 2] =
                    __byte_perm(low, high, 0x7632); /* both upper halves */
            }
            store(to, rounded);
            return;
        }
    store(to, values);
}

/* What is updated: the master, or the weights themselves. */
template <bool MASTER, typename W> struct state_of {
    using type = float;
};
template <typename W> struct state_of<false, W> {
    using type = W;
};

template <typename G, typename W, typename M, bool MASTER> struct vector_update {
    using State = typename state_of<MASTER, W>::type;
    static constexpr int N = sizeof(State) + sizeof(M) == 4 ? 8 : 4;
    packed<G, N> gradient;
    packed<State, N> state;
    packed<M, N> first, second;

    __device__ void read(const struct dtp_adamw_args &a, uint64_t i)
    {
        gradient = load<N>((const G *)a.gradient + i);
        state = load<N>((const State *)(MASTER ? (const void *)a.master : a.weights) + i);
        first = load<N>((const M *)a.moment1 + i);
        second = load<N>((const M *)a.moment2 + i);
    }

    __device__ void write(const struct dtp_adamw_args &a, const rates &r, uint64_t i)
    {
        float weight[N], moment1[N], moment2[N];
        uint32_t decays = decay_mask(a, i, N);
#pragma unroll
        for (int e = 0; e < N; e++) {
            weight[e] = state[e], moment1[e] = first[e], moment2[e] = second[e];
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
};

template <typename G, typename W, typename M, bool MASTER>
__device__ void update_element(const struct dtp_adamw_args &a, const rates &r, uint64_t i)
{
    W *weights = (W *)a.weights;
    M *firsts = (M *)a.moment1, *seconds = (M *)a.moment2;
    float weight = MASTER ? a.master[i] : to_float(weights[i]), moment1 = to_float(firsts[i]),
          moment2 = to_float(seconds[i]);
    update(r, to_float(((const G *)a.gradient)[i]), weight, moment1, moment2, decay_mask(a, i, 1) & 1);
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
    const uint64_t first = (uint64_t)blockIdx.x * per_block;
    if (first + per_block > a.count || (a.stochastic_rounding && a.first_element % per_thread != 0)) {
        for (uint64_t i = first + threadIdx.x; i < min(first + per_block, a.count); i += threads)
            update_element<G, W, M, MASTER>(a, r, i);
        return;
    }
    using Vector = vector_update<G, W, M, MASTER>;
    constexpr int groups = per_thread / Vector::N;
    Vector vectors[groups];
#pragma unroll
    for (int g = 0; g < groups; g++)
        vectors[g].read(a, first + (uint64_t)(g * threads + threadIdx.x) * Vector::N);
#pragma unroll
    for (int g = 0; g < groups; g++)
        vectors[g].write(a, r, first + (uint64_t)(g * threads + threadIdx.x) * Vector::N);
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
            return dtp::with_wide_element(a->moment_element, [&](auto of_moment) {
                using G = decltype(of_gradient);
                using W = decltype(of_weight);
                using M = decltype(of_moment);
                unsigned blocks = dtp::blocks_for(a->count, dtp::per_block);
                cudaStream_t on = dtp::stream_of(stream);
                if (a->master)
                    dtp::adamw<G, W, M, true><<<blocks, dtp::threads, 0, on>>>(*a);
                else if constexpr (!dtp::same<W, dtp::fp16>)
                    dtp::adamw<G, W, M, false><<<blocks, dtp::threads, 0, on>>>(*a);
                else
                    return (int)cudaErrorInvalidValue; /* fp16 would lose most updates */
                return dtp::launched();
            });
        });
    });
}
