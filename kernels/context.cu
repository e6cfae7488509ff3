#include "kernels/laid_out_heads.h"
#include "kernels/vector.cuh"

#include <math.h>

/* Around the steps of context parallel ranks' attention: results merged, gradients added up, columns moved. */
namespace dtp
{
namespace
{

constexpr int threads = 256;

/* Where a step's log-sum-exp of a query stands, and whether it has that query. */
__device__ bool part_statistic(const struct dtp_merge_attention_args &a, uint32_t step, uint64_t head, uint32_t query,
                               uint64_t *at)
{
    const uint32_t first = step < a.whole ? 0 : a.sequence / 2;
    *at = (uint64_t)step * a.batch * a.heads * a.sequence + head * (a.sequence - first) + query - first;
    return query >= first;
}

/* N neighbours of a head of a query a thread, each of which weighs the steps for itself: they are few, and neighbours
 * read the same statistics. */
template <typename T, int N>
__global__ void __launch_bounds__(threads) merge_attention(const __grid_constant__ struct dtp_merge_attention_args a)
{
    const uint64_t rows = (uint64_t)a.batch * a.sequence, all = rows * a.heads * a.head_dim,
                   element = ((uint64_t)blockIdx.x * threads + threadIdx.x) * N;
    if (element >= all)
        return;
    const uint64_t index = element / a.head_dim, row = index / a.heads;
    const uint64_t head = row / a.sequence * a.heads + index % a.heads;
    const uint32_t query = (uint32_t)(row % a.sequence);
    float largest = -INFINITY, sum = 0;
    uint64_t at;
    for (uint32_t step = 0; step < a.steps; step++)
        if (part_statistic(a, step, head, query, &at))
            largest = fmaxf(largest, a.part_log_sum_exp[at]);
    for (uint32_t step = 0; step < a.steps; step++)
        if (part_statistic(a, step, head, query, &at))
            sum += expf(a.part_log_sum_exp[at] - largest);
    const float log_sum_exp = largest + logf(sum);
    float result[N] = {};
    for (uint32_t step = 0; step < a.steps; step++)
        if (part_statistic(a, step, head, query, &at)) {
            const float weight = expf(a.part_log_sum_exp[at] - log_sum_exp);
            const auto of_step = load<N>((const T *)a.parts + step * all + element);
#pragma unroll
            for (int e = 0; e < N; e++)
                result[e] += weight * of_step[e];
        }
    store((T *)a.result + element, result);
    if (element % a.head_dim == 0)
        a.log_sum_exp[head * a.sequence + query] = log_sum_exp;
}

/* Rows of queries, then rows of keys and values, N elements a thread. */
template <typename T, int N>
__global__ void __launch_bounds__(threads) merge_gradients(const __grid_constant__ struct dtp_merge_gradients_args a)
{
    const uint64_t d_q = (uint64_t)a.heads * a.head_dim, d_kv = 2 * (uint64_t)a.kv_heads * a.head_dim,
                   width = d_q + d_kv;
    const uint64_t element = ((uint64_t)blockIdx.x * threads + threadIdx.x) * N;
    if (element >= (uint64_t)a.batch * a.sequence * width)
        return;
    const uint64_t row = element / width, column = element % width;
    const uint32_t i = (uint32_t)(row % a.sequence);
    float result[N];
    if (column < d_q) {
        if (i < a.first_query)
            return;
        const auto total = load<N>((const T *)a.qkv_gradient + element);
        const auto added = load<N>((const T *)a.query_gradient + row * d_q + column);
#pragma unroll
        for (int e = 0; e < N; e++)
            result[e] = total[e] + added[e];
        store((T *)a.qkv_gradient + element, result);
        return;
    }
    const uint64_t at = row * d_kv + column - d_q;
    const bool made = i < a.key_count;
    if (!made && a.accumulate)
        return;
    packed<T, N> total = {}, added = {};
    if (a.accumulate)
        total = load<N>((const T *)a.sum + at);
    if (made)
        added = load<N>((const T *)a.keys_gradient + at);
#pragma unroll
    for (int e = 0; e < N; e++)
        result[e] = (a.accumulate ? total[e] : 0.0f) + (made ? added[e] : 0.0f);
    store((T *)a.sum + at, result);
}

/* Vectors are counted in 32 bits: of 64 the divisions take as long as the copies. */
template <typename T, int N>
__global__ void __launch_bounds__(threads) columns(const __grid_constant__ struct dtp_columns_args a)
{
    const uint32_t across = (uint32_t)(a.width / N), index = blockIdx.x * threads + threadIdx.x;
    const uint32_t run = index / across, pair = run / (uint32_t)a.count[2];
    if (index >= a.count[0] * a.count[1] * a.count[2] * across)
        return;
    const uint32_t d = (index - run * across) * N, k = run - pair * (uint32_t)a.count[2];
    const uint32_t i = pair / (uint32_t)a.count[1], j = pair - i * (uint32_t)a.count[1];
    const T *from = (const T *)a.from + i * a.from_step[0] + j * a.from_step[1] + k * a.from_step[2] + d;
    T *to = (T *)a.to + i * a.to_step[0] + j * a.to_step[1] + k * a.to_step[2] + d;
    const auto value = load<N>(from);
    if (!a.accumulate) {
        store(to, value);
        return;
    }
    const auto total = load<N>((const T *)to);
    float result[N];
#pragma unroll
    for (int e = 0; e < N; e++)
        result[e] = total[e] + value[e];
    store(to, result);
}

/* A block per row; a thread keeps its vector's cosines and sines for all the heads it moves. */
template <typename T, int N>
__global__ void __launch_bounds__(threads) lay_out_heads(const __grid_constant__ struct dtp_lay_out_heads_args a)
{
    const uint32_t half = a.head_dim / 2, vectors = half / N, token = blockIdx.x % a.sequence;
    const uint32_t all = a.heads + 2 * a.kv_heads, turned = a.cosines ? a.heads + a.kv_heads : 0;
    const uint32_t heads_at_once = max(blockDim.x / vectors, 1u);
    if (threadIdx.x >= heads_at_once * vectors)
        return;
    T *row = (T *)a.rows + (uint64_t)blockIdx.x * all * a.head_dim;
    /* With more vectors in a head than threads (never with N > 1), a thread takes several. */
    for (uint32_t v = threadIdx.x % vectors; v < vectors; v += blockDim.x) {
        packed<float, N> cosine = {}, sine = {};
        if (turned) {
            cosine = load<N>(a.cosines + (uint64_t)token * half + v * N);
            sine = load<N>(a.sines + (uint64_t)token * half + v * N);
        }
#pragma unroll 2
        for (uint32_t head = threadIdx.x / vectors; head < all; head += heads_at_once) {
            T *here = row + (uint64_t)head * a.head_dim + v * N;
            T *there = (T *)a.laid_out + dtp_laid_out_head(&a, blockIdx.x / a.sequence, token, head) + v * N;
            T *from = a.back ? there : here, *to = a.back ? here : there;
            packed<T, N> x = load<N>(from), y = load<N>(from + half);
            float first[N], second[N];
#pragma unroll
            for (int e = 0; e < N; e++) {
                float c = head < turned ? cosine[e] : 1.0f, s = head < turned ? (a.back ? -sine[e] : sine[e]) : 0.0f;
                first[e] = x[e] * c - y[e] * s;
                second[e] = x[e] * s + y[e] * c;
            }
            store(to, first);
            store(to + half, second);
        }
    }
}

/* Whether rows begin at whole vectors of so many bytes. */
bool whole_vectors(const struct dtp_columns_args &a, uint64_t n, uint64_t element_bytes)
{
    bool whole =
        a.width % n == 0 && (uintptr_t)a.from % (n * element_bytes) == 0 && (uintptr_t)a.to % (n * element_bytes) == 0;
    for (int i = 0; i < 3; i++)
        whole = whole && a.from_step[i] % n == 0 && a.to_step[i] % n == 0;
    return whole;
}

} // namespace
} // namespace dtp

extern "C" int dtp_cuda_merge_attention(void *self, const struct dtp_merge_attention_args *a, void *stream)
{
    (void)self;
    const uint64_t all = (uint64_t)a->batch * a->sequence * a->heads * a->head_dim;
    if (all == 0 || a->steps == 0)
        return 0;
    return dtp::with_element(a->element, [&](auto of) {
        using T = decltype(of);
        constexpr int N = dtp::full<T>;
        if (a->head_dim % N == 0)
            dtp::merge_attention<T, N>
                <<<dtp::blocks_for(all, dtp::threads * N), dtp::threads, 0, dtp::stream_of(stream)>>>(*a);
        else
            dtp::merge_attention<T, 1>
                <<<dtp::blocks_for(all, dtp::threads), dtp::threads, 0, dtp::stream_of(stream)>>>(*a);
        return dtp::launched();
    });
}

extern "C" int dtp_cuda_merge_gradients(void *self, const struct dtp_merge_gradients_args *a, void *stream)
{
    (void)self;
    const uint64_t all = (uint64_t)a->batch * a->sequence * (a->heads + 2 * (uint64_t)a->kv_heads) * a->head_dim;
    if (all == 0)
        return 0;
    return dtp::with_element(a->element, [&](auto of) {
        using T = decltype(of);
        constexpr int N = dtp::full<T>;
        if (a->head_dim % N == 0)
            dtp::merge_gradients<T, N>
                <<<dtp::blocks_for(all, dtp::threads * N), dtp::threads, 0, dtp::stream_of(stream)>>>(*a);
        else
            dtp::merge_gradients<T, 1>
                <<<dtp::blocks_for(all, dtp::threads), dtp::threads, 0, dtp::stream_of(stream)>>>(*a);
        return dtp::launched();
    });
}

extern "C" int dtp_cuda_columns(void *self, const struct dtp_columns_args *a, void *stream)
{
    (void)self;
    const uint64_t all = a->count[0] * a->count[1] * a->count[2] * a->width;
    if (all == 0)
        return 0;
    return dtp::with_element(a->element, [&](auto of) {
        using T = decltype(of);
        constexpr int N = dtp::full<T>;
        const bool whole = dtp::whole_vectors(*a, N, sizeof(T));
        if (all / (whole ? N : 1) > UINT32_MAX - dtp::threads || a->width > UINT32_MAX)
            return (int)cudaErrorInvalidValue;
        if (whole)
            dtp::columns<T, N><<<dtp::blocks_for(all, dtp::threads * N), dtp::threads, 0, dtp::stream_of(stream)>>>(*a);
        else
            dtp::columns<T, 1><<<dtp::blocks_for(all, dtp::threads), dtp::threads, 0, dtp::stream_of(stream)>>>(*a);
        return dtp::launched();
    });
}

extern "C" int dtp_cuda_lay_out_heads(void *self, const struct dtp_lay_out_heads_args *a, void *stream)
{
    (void)self;
    if (a->batch == 0 || a->sequence == 0 || a->head_dim < 2)
        return 0;
    return dtp::with_element(a->element, [&](auto of) {
        using T = decltype(of);
        constexpr int full = dtp::full<T>;
        const bool whole = a->head_dim / 2 % full == 0;
        const uint64_t vectors =
            ((uint64_t)a->heads + 2 * (uint64_t)a->kv_heads) * (a->head_dim / 2 / (whole ? full : 1));
        const unsigned rows = dtp::blocks_for((uint64_t)a->batch * a->sequence, 1);
        /* As many turns as the widest block takes, each of about as many heads. */
        const uint64_t turns = (vectors + dtp::threads - 1) / dtp::threads, each = (vectors + turns - 1) / turns;
        const unsigned threads = (unsigned)(each + 31) / 32 * 32;
        if (whole)
            dtp::lay_out_heads<T, full><<<rows, threads, 0, dtp::stream_of(stream)>>>(*a);
        else
            dtp::lay_out_heads<T, 1><<<rows, threads, 0, dtp::stream_of(stream)>>>(*a);
        return dtp::launched();
    });
}
