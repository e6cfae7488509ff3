#include "kernels/attention_mma.cuh"

/* Causal attention on tensor cores, forward, after FlashAttention-2 (Dao 2023, arXiv:2307.08691): a block has 64
 * queries of a head, 16 a warp, and walks over tiles of keys and values, of which the next is on its way while one is
 * computed with. Scores stay in registers: rounded to 16 bits they are the left operand of their product with values.
 * Sums are rescaled when a larger score comes. attention_simple.cu takes what this does not: fp32, and heads that are
 * no multiple of 16 bytes. */
namespace dtp
{
namespace
{

constexpr int threads = 128, queries_tile = threads / 32 * 16, stages = 2;

template <typename W> struct forward_size {
    static constexpr int keys = W::dim <= 128 ? 64 : 32; /* of a tile: two blocks share an SM's memory */
    static constexpr int queries_end = queries_tile * (W::dim + padding);
    static constexpr int values = keys * (W::dim + padding);            /* where they begin in a stage */
    static constexpr int stage = values + keys * (W::values + padding); /* elements */
    static constexpr size_t bytes = 2 * (queries_end + stages * stage);
};

/* What a lane keeps of two of its warp's 16 queries. */
template <int VALUES> struct running {
    float result[VALUES / 8][4], largest[2], total[2]; /* total: of the columns that the lane has */
};

/* Products of queries from `query` on with keys from `key` on become exponents; -inf of those that are not seen. */
template <int KEYS>
__device__ void bend_scores(float (&scores)[KEYS / 8][4], const attention_shape &s, const score_rule &rule,
                            uint32_t query, uint32_t key, bool whole)
{
    const uint32_t row = query + lane_id() / 4, column = key + lane_id() % 4 * 2;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t of_query = row + i / 2 * 8, of_key = column + n * 8 + i % 2;
            const float score = rule.exponent(scores[n][i], of_query, of_key);
            scores[n][i] = whole || s.sees(of_query, of_key, rule.window) ? score : -INFINITY;
        }
}

/* Exponents become weights, by the largest of each row so far; what was summed before is made smaller by as much. */
template <int KEYS, int VALUES> __device__ void weigh_scores(float (&scores)[KEYS / 8][4], running<VALUES> &sums)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float before = sums.largest[half];
        float above = before, added = 0;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
            above = fmaxf(above, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
        above = warp_max(above, 4);
        sums.largest[half] = above;
        if (above == -INFINITY) /* a window hides all of these keys */
            above = 0;
        const float shrink = exp2_fast(before - above);
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; i++) {
                scores[n][i] = exp2_fast(scores[n][i] - above);
                added += scores[n][i];
            }
        sums.total[half] = sums.total[half] * shrink + added;
#pragma unroll
        for (int n = 0; n < VALUES / 8; n++)
            sums.result[n][2 * half] *= shrink, sums.result[n][2 * half + 1] *= shrink;
    }
}

/* Weights sum to 1 when all keys were seen. */
template <typename T, int VALUES>
__device__ void finish(const struct dtp_attention_args &a, const attention_shape &s, running<VALUES> &sums, uint32_t b,
                       uint32_t head, uint32_t query)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint32_t row = query + lane_id() / 4 + half * 8;
        const float total = warp_sum(sums.total[half], 4), part = 1 / total;
        if (lane_id() % 4 == 0 && row < s.sequence)
            a.log_sum_exp[s.own_statistic(b, row, head)] = sums.largest[half] * ln_2 + logf(total);
#pragma unroll
        for (int n = 0; n < VALUES / 8; n++)
            sums.result[n][2 * half] *= part, sums.result[n][2 * half + 1] *= part;
    }
    store_sums<VALUES>((T *)a.result + s.result(b, query, head), (uint64_t)s.heads * s.value_dim,
                       (int64_t)s.sequence - query, (int32_t)s.value_dim, sums.result);
}

template <typename T, typename W>
__device__ void copy_keys(T *stage, const void *from, const attention_shape &s, uint32_t b, uint32_t key,
                          uint32_t kv_head)
{
    using size = forward_size<W>;
    const uint64_t stride = s.key_row(0, 1);
    copy_tile<size::keys, W::dim, threads>(stage, from, s.key(b, key, kv_head), stride, s.keys - key, s.dim);
    copy_tile<size::keys, W::values, threads>(stage + size::values, from, s.value(b, key, kv_head), stride,
                                              s.keys - key, s.value_dim);
}

template <typename T, typename W>
__global__ void __launch_bounds__(threads, 2) forward(const __grid_constant__ struct dtp_attention_args a)
{
    using size = forward_size<W>;
    extern __shared__ uint4 memory[];
    T *queries = (T *)memory, *stage = queries + size::queries_end;
    const attention_shape s = shape_of(a);
    const void *at_hand = s.around ? a.keys : a.qkv;
    const uint32_t head = blockIdx.x, b = blockIdx.y, kv_head = head / (s.heads / s.kv_heads);
    const uint32_t first = s.first_query + (gridDim.z - 1 - blockIdx.z) * queries_tile; /* long rows start first */
    const uint32_t of_warp = threadIdx.x / 32 * 16;
    const key_range seen = keys_seen(s, first, queries_tile, a.window, size::keys);
    const score_rule rule = score_rule::of(a, head);
    copy_tile<queries_tile, W::dim, threads>(queries, a.qkv, s.query(b, first, head), s.packed_row(0, 1),
                                             s.sequence - first, s.dim);
    copy_keys<T, W>(stage, at_hand, s, b, seen.begin, kv_head);
    end_of_group();
    running<W::values> sums = {};
    sums.largest[0] = sums.largest[1] = -INFINITY;
    for (uint32_t key = seen.begin, at = 0; key < seen.end; key += size::keys, at = 1 - at) {
        if (key + size::keys < seen.end)
            copy_keys<T, W>(stage + (1 - at) * size::stage, at_hand, s, b, key + size::keys, kv_head);
        end_of_group();
        wait_for_all_but<1>();
        __syncthreads();
        const T *keys = stage + at * size::stage;
        float scores[size::keys / 8][4] = {};
        multiply_rows<W::dim, size::keys>(scores, queries + of_warp * (W::dim + padding), keys);
        bend_scores<size::keys>(scores, s, rule, first + of_warp, key,
                                all_seen(s, first, queries_tile, key, size::keys, a.window));
        weigh_scores<size::keys>(scores, sums);
        add_weighted<W::values, W::values, size::keys>(sums.result, scores, keys + size::values);
        __syncthreads();
    }
    finish<T>(a, s, sums, b, head, first + of_warp);
}

template <typename T, typename W> int launch(const struct dtp_attention_args &a, cudaStream_t stream)
{
    constexpr size_t bytes = forward_size<W>::bytes;
    int status = allow_memory(forward<T, W>, bytes);
    if (status)
        return status;
    forward<T, W><<<dim3(a.heads, a.batch, tiles_of(queries_of(a), queries_tile)), threads, bytes, stream>>>(a);
    return launched();
}

} // namespace
} // namespace dtp

extern "C" int dtp_cuda_attention_mma(void *self, const struct dtp_attention_args *a, void *stream)
{
    (void)self;
    if (a->batch == 0 || a->sequence == 0)
        return 0;
    return dtp::with_half_widths(*a, [&](auto element, auto width) {
        return dtp::launch<decltype(element), decltype(width)>(*a, dtp::stream_of(stream));
    });
}
