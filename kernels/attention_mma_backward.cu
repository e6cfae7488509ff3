#include "kernels/attention_mma.cuh"

/* Backward of attention on tensor cores, after FlashAttention-2 (Dao 2023, arXiv:2307.08691), but for dQ, which it adds
 * up by atomics: here one kernel walks over keys for a block of queries, and another over queries for a block of keys;
 * each makes the weights p = e^(score - log-sum-exp) again, and adds nothing to what another owns. With g the gradient
 * of the result, that of a value is the sum of p g, that of a score p (g . v - g . result). The first kernel leaves the
 * row sums g . result in the workspace for the second. */
namespace dtp
{
namespace
{

constexpr int queries_threads = 128, queries_tile = queries_threads / 32 * 16;
constexpr int keys_threads = 256, keys_tile = keys_threads / 64 * 16; /* two warps to 16 keys */

/* Shared memory of the kernel that makes dQ: 64 queries and their gradients, tiles of keys and values. */
template <typename W> struct queries_size {
    static constexpr int keys = W::dim <= 128 ? 64 : 32;
    static constexpr int stages = W::dim <= 128 ? 2 : 1;
    static constexpr int gradients = queries_tile * (W::dim + padding);
    static constexpr int queries_end = gradients + queries_tile * (W::values + padding);
    static constexpr int values = keys * (W::dim + padding);
    static constexpr int stage = values + keys * (W::values + padding); /* elements */
    static constexpr size_t bytes = 2 * (queries_end + stages * stage) + queries_tile * sizeof(float);
};

/* Shared memory of the kernel that makes dK and dV: 64 keys and values, tiles of queries and gradients, and of these
 * queries' weights and slopes, a row of them for each key. */
template <typename W> struct keys_size {
    static constexpr int queries = W::dim <= 128 ? 64 : 32;
    static constexpr int stages = W::dim <= 64 || W::dim > 128 ? 2 : 1;
    static constexpr int values = keys_tile * (W::dim + padding);
    static constexpr int keys_end = values + keys_tile * (W::values + padding);
    static constexpr int gradients = queries * (W::dim + padding);
    static constexpr int statistics = gradients + queries * (W::values + padding); /* two floats a query */
    static constexpr int stage = statistics + 4 * queries;                         /* elements */
    static constexpr int square = keys_tile * (queries + padding);
    static constexpr size_t bytes = 2 * (keys_end + stages * stage + 2 * square);
    static constexpr int blocks = W::dim <= 128 ? 2 : 1; /* that share an SM */
};

struct backward_head {
    const struct dtp_attention_backward_args &a;
    attention_shape s;
    uint32_t b;

    __device__ const void *keys() const
    {
        return s.around ? a.keys : a.qkv;
    }

    __device__ float *row_sums(uint32_t query, uint32_t head) const
    {
        return (float *)a.workspace + s.statistic(b, query, head);
    }

    template <int ROWS, typename W, int THREADS, typename T>
    __device__ void copy_queries(T *to, T *gradients, uint32_t query, uint32_t head) const
    {
        const uint32_t rows = s.sequence - query;
        copy_tile<ROWS, W::dim, THREADS>(to, a.qkv, s.query(b, query, head), s.packed_row(0, 1), rows, s.dim);
        copy_tile<ROWS, W::values, THREADS>(gradients, a.gradient, s.result(b, query, head),
                                            (uint64_t)s.heads * s.value_dim, rows, s.value_dim);
    }

    template <int ROWS, typename W, int THREADS, typename T>
    __device__ void copy_keys(T *to, T *values, uint32_t key, uint32_t kv_head) const
    {
        const uint32_t rows = s.keys - key;
        const uint64_t stride = s.key_row(0, 1);
        copy_tile<ROWS, W::dim, THREADS>(to, keys(), s.key(b, key, kv_head), stride, rows, s.dim);
        copy_tile<ROWS, W::values, THREADS>(values, keys(), s.value(b, key, kv_head), stride, rows, s.value_dim);
    }

    /* Row sums gradient . result of 64 queries, by eight lanes each; queries past the end weigh nothing, whatever
     * stands for them. */
    template <typename T> __device__ void sum_rows(float *to, uint32_t first, uint32_t head) const
    {
        const uint32_t lane = threadIdx.x % 8;
        for (uint32_t row = threadIdx.x / 8; row < queries_tile; row += queries_threads / 8) {
            const bool exists = first + row < s.sequence;
            const uint64_t at = s.result(b, exists ? first + row : first, head);
            float product = 0;
            for (uint32_t d = lane * 8; d < s.value_dim; d += 64) {
                const packed<T, 8> gradient = load<8>((const T *)a.gradient + at + d);
                const packed<T, 8> result = load<8>((const T *)a.result + at + d);
#pragma unroll
                for (int i = 0; i < 8; i++)
                    product += gradient[i] * result[i];
            }
            product = warp_sum(product, 8);
            if (lane == 0)
                to[row] = product;
            if (lane == 0 && exists)
                *row_sums(first + row, head) = product;
        }
    }
};

/* Products of 16 queries with keys, and of their gradients with values, become weights and slopes. */
template <int KEYS>
__device__ void weigh_keys(float (&scores)[KEYS / 8][4], float (&slopes)[KEYS / 8][4], const attention_shape &s,
                           const score_rule &rule, const float (&log2_sum)[2], const float (&taken_back)[2],
                           uint32_t query, uint32_t key, bool whole)
{
    const uint32_t row = query + lane_id() / 4, column = key + lane_id() % 4 * 2;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t of_query = row + i / 2 * 8, of_key = column + n * 8 + i % 2;
            rule.weigh(scores[n][i], slopes[n][i], log2_sum[i / 2], taken_back[i / 2], of_query, of_key,
                       whole || s.sees(of_query, of_key, rule.window));
        }
}

template <typename T, typename W>
__global__ void __launch_bounds__(queries_threads, 2)
    backward_queries(const __grid_constant__ struct dtp_attention_backward_args a)
{
    using size = queries_size<W>;
    constexpr int ahead = size::stages - 1, threads = queries_threads;
    extern __shared__ uint4 memory[];
    T *queries = (T *)memory, *gradients = queries + size::gradients, *stage = queries + size::queries_end;
    float *row_sums = (float *)(stage + size::stages * size::stage);
    const backward_head of = {a, shape_of(a), blockIdx.y};
    const attention_shape &s = of.s;
    const uint32_t head = blockIdx.x, b = blockIdx.y, kv_head = head / (s.heads / s.kv_heads);
    const uint32_t first = s.first_query + (gridDim.z - 1 - blockIdx.z) * queries_tile; /* long rows start first */
    const uint32_t of_warp = threadIdx.x / 32 * 16, row = of_warp + lane_id() / 4;
    const key_range seen = keys_seen(s, first, queries_tile, a.window, size::keys);
    const score_rule rule = score_rule::of(a, head);
    of.copy_queries<queries_tile, W, threads>(queries, gradients, first, head);
    of.copy_keys<size::keys, W, threads>(stage, stage + size::values, seen.begin, kv_head);
    end_of_group();
    of.sum_rows<T>(row_sums, first, head);
    __syncthreads();
    float log2_sum[2], taken_back[2], sums[W::dim / 8][4] = {};
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint32_t query = first + row + 8 * half;
        log2_sum[half] = query < s.sequence ? a.log_sum_exp[s.statistic(b, query, head)] * log2_e : INFINITY;
        taken_back[half] = row_sums[row + 8 * half];
    }
    for (uint32_t key = seen.begin, at = 0; key < seen.end; key += size::keys, at = (at + 1) % size::stages) {
        T *keys = stage + at * size::stage, *next = stage + (at + ahead) % size::stages * size::stage;
        if (ahead && key + size::keys < seen.end)
            of.copy_keys<size::keys, W, threads>(next, next + size::values, key + size::keys, kv_head);
        end_of_group();
        wait_for_all_but<ahead>();
        __syncthreads();
        float scores[size::keys / 8][4] = {}, slopes[size::keys / 8][4] = {};
        multiply_rows<W::dim, size::keys>(scores, queries + of_warp * (W::dim + padding), keys);
        multiply_rows<W::values, size::keys>(slopes, gradients + of_warp * (W::values + padding), keys + size::values);
        weigh_keys<size::keys>(scores, slopes, s, rule, log2_sum, taken_back, first + of_warp, key,
                               all_seen(s, first, queries_tile, key, size::keys, a.window));
        add_weighted<W::dim, W::dim, size::keys>(sums, slopes, keys);
        __syncthreads();
        if (!ahead && key + size::keys < seen.end)
            of.copy_keys<size::keys, W, threads>(keys, keys + size::values, key + size::keys, kv_head);
    }
    const int64_t rows = (int64_t)s.sequence - first - of_warp;
    const uint64_t stride = s.around ? (uint64_t)s.heads * s.dim : s.packed_row(0, 1);
    T *to = s.around ? (T *)a.query_gradient + s.result(b, first, head) : (T *)a.qkv_gradient + s.query(b, first, head);
    store_sums<W::dim>(to + of_warp * stride, stride, rows, (int32_t)s.dim, sums);
}

/* Products of 16 keys with QUERIES queries, of values with their gradients, become weights and slopes in rows of the
 * squares, QUERIES_TILE + padding apart. statistics: log-sum-exps of a tile's queries, then row sums. */
template <int QUERIES, int QUERIES_TILE, typename T>
__device__ void weigh_queries(float (&scores)[QUERIES / 8][4], float (&slopes)[QUERIES / 8][4],
                              const attention_shape &s, const score_rule &rule, const float *statistics, uint32_t key,
                              uint32_t query, bool whole, T *of_weights, T *of_slopes)
{
    const uint32_t row = lane_id() / 4, column = lane_id() % 4 * 2;
#pragma unroll
    for (int n = 0; n < QUERIES / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t at = n * 8 + column + i % 2, of_query = query + at, of_key = key + row + i / 2 * 8;
            const bool seen = whole || (of_query < s.sequence && s.sees(of_query, of_key, rule.window));
            rule.weigh(scores[n][i], slopes[n][i], statistics[at] * log2_e, statistics[QUERIES_TILE + at], of_query,
                       of_key, seen);
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint32_t at = (row + 8 * half) * (QUERIES_TILE + padding) + n * 8 + column;
            *(uint32_t *)(of_weights + at) = pair_of<T>(scores[n][2 * half], scores[n][2 * half + 1]);
            *(uint32_t *)(of_slopes + at) = pair_of<T>(slopes[n][2 * half], slopes[n][2 * half + 1]);
        }
    }
}

/* A tile of queries of one of the heads that share keys, on its way with its statistics. */
template <typename T, typename W>
__device__ void copy_stage(const backward_head &of, T *stage, uint32_t query, uint32_t head)
{
    using size = keys_size<W>;
    const attention_shape &s = of.s;
    of.copy_queries<size::queries, W, keys_threads>(stage, stage + size::gradients, query, head);
    if (threadIdx.x < 2 * size::queries) {
        const uint32_t row = query + threadIdx.x % size::queries;
        const bool exists = row < s.sequence;
        const uint64_t at = s.statistic(of.b, exists ? row : query, head);
        const float *from = threadIdx.x < size::queries ? of.a.log_sum_exp : (const float *)of.a.workspace;
        copy_word_async((float *)(stage + size::statistics) + threadIdx.x, from + at, exists);
    }
}

/* Two warps share 16 keys: each weighs half of a tile's queries, then sums half of the columns over all of them. */
template <typename T, typename W>
__global__ void __launch_bounds__(keys_threads, keys_size<W>::blocks)
    backward_keys(const __grid_constant__ struct dtp_attention_backward_args a)
{
    using size = keys_size<W>;
    constexpr int ahead = size::stages - 1, queries = size::queries, half_tile = queries / 2;
    extern __shared__ uint4 memory[];
    T *keys = (T *)memory, *values = keys + size::values, *stage = keys + size::keys_end;
    T *weights = stage + size::stages * size::stage, *slopes = weights + size::square;
    const backward_head of = {a, shape_of(a), blockIdx.y};
    const attention_shape &s = of.s;
    const uint32_t kv_head = blockIdx.x, b = blockIdx.y, first = blockIdx.z * keys_tile, group = s.heads / s.kv_heads;
    const uint32_t strip = threadIdx.x / 64 * 16, part = threadIdx.x / 32 % 2, turn = strip * (queries + padding);
    const uint64_t past = (uint64_t)first + keys_tile - 1 + a.window; /* the first query that sees none of them */
    const uint32_t begin = s.around ? s.first_query : first;
    const uint32_t end = !s.around && a.window && past < s.sequence ? (uint32_t)past : s.sequence;
    const uint32_t tiles = (end - begin + queries - 1) / queries, count = tiles * group;
    of.copy_keys<keys_tile, W, keys_threads>(keys, values, first, kv_head);
    copy_stage<T, W>(of, stage, begin, kv_head * group);
    end_of_group();
    float of_keys[W::dim / 16][4] = {}, of_values[W::values / 16][4] = {};
    for (uint32_t i = 0, at = 0; i < count; i++, at = (at + 1) % size::stages) {
        const uint32_t head = kv_head * group + i / tiles, query = begin + i % tiles * queries;
        const uint32_t next_head = kv_head * group + (i + 1) / tiles, next_query = begin + (i + 1) % tiles * queries;
        T *at_hand = stage + at * size::stage;
        if (ahead && i + 1 < count)
            copy_stage<T, W>(of, stage + (at + ahead) % size::stages * size::stage, next_query, next_head);
        end_of_group();
        wait_for_all_but<ahead>();
        __syncthreads();
        const T *gradients = at_hand + size::gradients;
        float products[half_tile / 8][4] = {}, pulled[half_tile / 8][4] = {};
        multiply_rows<W::dim, half_tile>(products, keys + strip * (W::dim + padding),
                                         at_hand + part * half_tile * (W::dim + padding));
        multiply_rows<W::values, half_tile>(pulled, values + strip * (W::values + padding),
                                            gradients + part * half_tile * (W::values + padding));
        weigh_queries<half_tile, queries>(products, pulled, s, score_rule::of(a, head),
                                          (const float *)(at_hand + size::statistics) + part * half_tile, first + strip,
                                          query + part * half_tile,
                                          all_seen(s, query, queries, first, keys_tile, a.window),
                                          weights + turn + part * half_tile, slopes + turn + part * half_tile);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < queries; k += 16) {
            uint32_t rounded[4];
            load_matrices(rounded, down_first<queries>(weights + turn + k));
            add_rows<W::values, W::values / 2>(of_values, rounded,
                                               gradients + k * (W::values + padding) + part * (W::values / 2));
            load_matrices(rounded, down_first<queries>(slopes + turn + k));
            add_rows<W::dim, W::dim / 2>(of_keys, rounded, at_hand + k * (W::dim + padding) + part * (W::dim / 2));
        }
        __syncthreads();
        if (!ahead && i + 1 < count)
            copy_stage<T, W>(of, at_hand, next_query, next_head);
    }
    T *to = (T *)(s.around ? a.keys_gradient : a.qkv_gradient);
    const uint64_t stride = s.key_row(0, 1), row = strip * stride;
    const int64_t rows = (int64_t)s.keys - first - strip;
    const int32_t column = (int32_t)part * (W::dim / 2), of_value = (int32_t)part * (W::values / 2);
    store_sums<W::dim / 2>(to + s.key(b, first, kv_head) + row + column, stride, rows, (int32_t)s.dim - column,
                           of_keys);
    store_sums<W::values / 2>(to + s.value(b, first, kv_head) + row + of_value, stride, rows,
                              (int32_t)s.value_dim - of_value, of_values);
}

template <typename T, typename W> int launch(const struct dtp_attention_backward_args &a, cudaStream_t stream)
{
    constexpr size_t of_queries = queries_size<W>::bytes, of_keys = keys_size<W>::bytes;
    int status = allow_memory(backward_queries<T, W>, of_queries);
    if (!status)
        status = allow_memory(backward_keys<T, W>, of_keys);
    if (status)
        return status;
    const dim3 queries(a.heads, a.batch, tiles_of(queries_of(a), queries_tile));
    const dim3 keys(a.kv_heads, a.batch, tiles_of(a.keys ? a.key_count : a.sequence, keys_tile));
    backward_queries<T, W><<<queries, queries_threads, of_queries, stream>>>(a);
    backward_keys<T, W><<<keys, keys_threads, of_keys, stream>>>(a);
    return launched();
}

} // namespace
} // namespace dtp

extern "C" int dtp_cuda_attention_mma_backward(void *self, const struct dtp_attention_backward_args *a, void *stream)
{
    (void)self;
    if (a->batch == 0 || a->sequence == 0)
        return 0;
    if (!a->workspace || a->workspace_bytes < (uint64_t)a->batch * a->heads * a->sequence * sizeof(float))
        return (int)cudaErrorInvalidValue;
    return dtp::with_half_widths(*a, [&](auto element, auto width) {
        return dtp::launch<decltype(element), decltype(width)>(*a, dtp::stream_of(stream));
    });
}
