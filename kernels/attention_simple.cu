#include "kernels/attention_shape.cuh"
#include "kernels/vector.cuh"

#include <math.h>

/* Causal attention without tensor cores: tiles of queries and keys in shared memory as float, every block owns what it
 * writes, nothing is added by atomics. Threads form a square of 16 x 16; thread (x, y) computes rows y * EDGE + i and
 * columns x + 16 j of a product. Rows of tiles are one float longer than they are used, so that 16 rows at one column
 * lie in 16 banks. */
namespace dtp
{
namespace
{

constexpr int side = 16, threads = side * side;

/* TILE rows, the first at element `first`, into shared memory; rows past `rows` are zero. */
template <typename T, int TILE>
__device__ void load_tile(float *tile, const void *from, uint64_t first, uint64_t stride, uint32_t rows, uint32_t dim)
{
    for (uint32_t i = threadIdx.x; i < TILE * dim; i += threads) {
        uint32_t row = i / dim, column = i % dim;
        tile[row * (dim + 1) + column] = row < rows ? to_float(((const T *)from)[first + row * stride + column]) : 0.0f;
    }
}

/* The tile in which the first key lies that `query` sees, and the end of those that some query of its tile sees. */
template <int TILE> __device__ uint32_t first_seen(const attention_shape &s, uint32_t query, uint32_t window)
{
    return !s.around && window && query >= window ? (query + 1 - window) / TILE * TILE : 0;
}

template <int TILE> __device__ uint32_t seen_end(const attention_shape &s, uint32_t query)
{
    return s.around ? s.keys : query + 1;
}

/* products[i][j] = row y * EDGE + i of a . row x + 16 j of b */
template <int EDGE>
__device__ void multiply_rows(float (&products)[EDGE][EDGE], const float *a, const float *b, uint32_t dim)
{
    const uint32_t x = threadIdx.x % side, y = threadIdx.x / side;
#pragma unroll
    for (int i = 0; i < EDGE; i++)
#pragma unroll
        for (int j = 0; j < EDGE; j++)
            products[i][j] = 0;
    for (uint32_t d = 0; d < dim; d++) {
        float left[EDGE], right[EDGE];
#pragma unroll
        for (int i = 0; i < EDGE; i++) {
            left[i] = a[(y * EDGE + i) * (dim + 1) + d];
            right[i] = b[(x + side * i) * (dim + 1) + d];
        }
#pragma unroll
        for (int i = 0; i < EDGE; i++)
#pragma unroll
            for (int j = 0; j < EDGE; j++)
                products[i][j] += left[i] * right[j];
    }
}

/* sums[i][c] += over k of weights[y * EDGE + i][k] (or its transpose) * rows[k][x + 16 c]; weights are TILE + 1 apart.
 */
template <int EDGE, int COLUMNS, bool TRANSPOSED>
__device__ void add_weighted(float (&sums)[EDGE][COLUMNS], const float *weights, const float *rows, uint32_t dim)
{
    constexpr int tile = EDGE * side;
    const uint32_t x = threadIdx.x % side, y = threadIdx.x / side;
    for (uint32_t k = 0; k < tile; k++) {
        float weight[EDGE];
#pragma unroll
        for (int i = 0; i < EDGE; i++)
            weight[i] = TRANSPOSED ? weights[k * (tile + 1) + y * EDGE + i] : weights[(y * EDGE + i) * (tile + 1) + k];
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            float value = x + side * c < dim ? rows[k * (dim + 1) + x + side * c] : 0.0f;
#pragma unroll
            for (int i = 0; i < EDGE; i++)
                sums[i][c] += weight[i] * value;
        }
    }
}

template <typename T, int EDGE, int COLUMNS>
__device__ void store_rows(void *to, uint64_t first, uint64_t stride, uint32_t rows, const float (&sums)[EDGE][COLUMNS],
                           uint32_t dim)
{
    const uint32_t x = threadIdx.x % side, y = threadIdx.x / side;
#pragma unroll
    for (int i = 0; i < EDGE; i++)
#pragma unroll
        for (int c = 0; c < COLUMNS; c++)
            if (y * EDGE + i < rows && x + side * c < dim)
                ((T *)to)[first + (y * EDGE + i) * stride + x + side * c] = from_float<T>(sums[i][c]);
}

/* Forward: a block has 64 queries of a head and walks over keys; sums are rescaled when a larger score comes (Dao
 * 2022). */
constexpr int forward_edge = 4, forward_tile = forward_edge * side;

template <typename T, int COLUMNS>
__global__ void __launch_bounds__(threads) forward(const __grid_constant__ struct dtp_attention_args a)
{
    constexpr int E = forward_edge, tile = forward_tile;
    extern __shared__ float memory[];
    const attention_shape s = shape_of(a);
    const void *at_hand = s.around ? a.keys : a.qkv;
    float *queries = memory, *keys = queries + tile * (s.dim + 1);
    float *weights = keys + tile * (max(s.dim, s.value_dim) + 1); /* values take the keys' place */
    const uint32_t x = threadIdx.x % side, y = threadIdx.x / side, head = blockIdx.y, b = blockIdx.z;
    const uint32_t kv_head = head / (s.heads / s.kv_heads);
    const uint32_t first = s.first_query + (gridDim.x - 1 - blockIdx.x) * tile; /* long rows start first */
    const uint64_t stride = s.packed_row(0, 1), key_stride = s.key_row(0, 1);
    load_tile<T, tile>(queries, a.qkv, s.query(b, first, head), stride, s.sequence - first, s.dim);
    const float slope = a.alibi ? dtp_alibi_slope(head, s.heads) : 0.0f;
    float result[E][COLUMNS] = {}, largest[E], total[E] = {};
    for (int i = 0; i < E; i++)
        largest[i] = -INFINITY;
    for (uint32_t key = first_seen<tile>(s, first, a.window); key < seen_end<tile>(s, first); key += tile) {
        float scores[E][E];
        __syncthreads();
        load_tile<T, tile>(keys, at_hand, s.key(b, key, kv_head), key_stride, s.keys - key, s.dim);
        __syncthreads();
        multiply_rows<E>(scores, queries, keys, s.dim);
#pragma unroll
        for (int i = 0; i < E; i++) {
            uint32_t query = first + y * E + i;
            const float before = largest[i];
            float above = before;
#pragma unroll
            for (int j = 0; j < E; j++) {
                const uint32_t at = key + x + side * j;
                const float score = soft_cap(scores[i][j] * a.scale, a.softcap) + bias(slope, query, at);
                scores[i][j] = s.sees(query, at, a.window) ? score : -INFINITY;
                above = fmaxf(above, scores[i][j]);
            }
            above = warp_max(above, side);
            largest[i] = above;
            if (above == -INFINITY) /* of these keys a window hides all */
                above = 0;
            float shrink = expf(before - above), added = 0;
#pragma unroll
            for (int j = 0; j < E; j++) {
                scores[i][j] = expf(scores[i][j] - above);
                added += scores[i][j];
                weights[(y * E + i) * (tile + 1) + x + side * j] = scores[i][j];
            }
            total[i] = total[i] * shrink + warp_sum(added, side);
#pragma unroll
            for (int c = 0; c < COLUMNS; c++)
                result[i][c] *= shrink;
        }
        __syncthreads();
        load_tile<T, tile>(keys, at_hand, s.value(b, key, kv_head), key_stride, s.keys - key, s.value_dim);
        __syncthreads();
        add_weighted<E, COLUMNS, false>(result, weights, keys, s.value_dim);
    }
#pragma unroll
    for (int i = 0; i < E; i++) {
        if (x == 0 && first + y * E + i < s.sequence)
            a.log_sum_exp[s.own_statistic(b, first + y * E + i, head)] = largest[i] + logf(total[i]);
#pragma unroll
        for (int c = 0; c < COLUMNS; c++)
            result[i][c] /= total[i];
    }
    store_rows<T>(a.result, s.result(b, first, head), (uint64_t)s.heads * s.value_dim, s.sequence - first, result,
                  s.value_dim);
}

/* Backward. p = exp(score - lse) is made again from the statistics. With g the gradient of the result, the gradient of
 * a value is the sum of p g, that of a scaled score p (g . v - g . result); one kernel sums over queries for keys and
 * values, another over keys for queries: each recomputes the products, none adds into another's sums. */
constexpr int backward_edge = 2, backward_tile = backward_edge * side;

struct tiles {
    float *queries, *gradients, *keys, *values; /* [tile, dim + 1] */
    float *weights, *slopes;                    /* [tile, tile + 1]: rows are queries */
    float *log_sum_exp, *taken_back;            /* [tile]: of queries */
};

__device__ tiles tiles_in(float *memory, const attention_shape &s)
{
    constexpr uint32_t tile = backward_tile;
    uint32_t keys = tile * (s.dim + 1), values = tile * (s.value_dim + 1), square = tile * (tile + 1);
    float *squares = memory + 2 * (keys + values);
    return {memory,  memory + keys,    memory + keys + values, memory + 2 * keys + values,
            squares, squares + square, squares + 2 * square,   squares + 2 * square + tile};
}

template <typename T> struct backward_head {
    const struct dtp_attention_backward_args &a;
    attention_shape s;
    uint32_t b;
    tiles t;

    __device__ void load_queries(uint32_t head, uint32_t first) const
    {
        const uint64_t stride = (uint64_t)s.heads * s.value_dim, at = s.result(b, first, head);
        const uint32_t rows = s.sequence - first, row = threadIdx.x / 8, lane = threadIdx.x % 8;
        load_tile<T, backward_tile>(t.queries, a.qkv, s.query(b, first, head), s.packed_row(0, 1), rows, s.dim);
        load_tile<T, backward_tile>(t.gradients, a.gradient, at, stride, rows, s.value_dim);
        float product = 0; /* eight threads a row */
        for (uint32_t d = lane; d < s.value_dim && row < rows; d += 8)
            product += to_float(((const T *)a.gradient)[at + row * stride + d]) *
                       to_float(((const T *)a.result)[at + row * stride + d]);
        product = warp_sum(product, 8);
        if (lane == 0) {
            t.taken_back[row] = product;
            t.log_sum_exp[row] = row < rows ? a.log_sum_exp[s.statistic(b, first + row, head)] : INFINITY; /* p = 0 */
        }
    }

    __device__ void load_keys(uint32_t kv_head, uint32_t first) const
    {
        const uint32_t rows = s.keys - first;
        const void *at_hand = s.around ? a.keys : a.qkv;
        load_tile<T, backward_tile>(t.keys, at_hand, s.key(b, first, kv_head), s.key_row(0, 1), rows, s.dim);
        load_tile<T, backward_tile>(t.values, at_hand, s.value(b, first, kv_head), s.key_row(0, 1), rows, s.value_dim);
    }

    /* Fills weights and slopes of the tiles loaded; queries past the end have weight 0, keys past the end are never
     * seen. */
    __device__ void weigh(uint32_t head, uint32_t first_query, uint32_t first_key) const
    {
        constexpr int E = backward_edge;
        const float alibi = a.alibi ? dtp_alibi_slope(head, s.heads) : 0.0f;
        const uint32_t x = threadIdx.x % side, y = threadIdx.x / side;
        float scores[E][E], slopes[E][E];
        multiply_rows<E>(scores, t.queries, t.keys, s.dim);
        multiply_rows<E>(slopes, t.gradients, t.values, s.value_dim);
#pragma unroll
        for (int i = 0; i < E; i++)
#pragma unroll
            for (int j = 0; j < E; j++) {
                uint32_t query = y * E + i, key = x + side * j, at = query * (backward_tile + 1) + key;
                bool seen = s.sees(first_query + query, first_key + key, a.window);
                float score = soft_cap(scores[i][j] * a.scale, a.softcap);
                float biased = score + bias(alibi, first_query + query, first_key + key);
                float weight = seen ? expf(biased - t.log_sum_exp[query]) : 0.0f;
                t.weights[at] = weight;
                t.slopes[at] =
                    a.scale * soft_cap_slope(score, a.softcap) * weight * (slopes[i][j] - t.taken_back[query]);
            }
    }
};

template <typename T, int COLUMNS>
__global__ void __launch_bounds__(threads) backward_keys(const __grid_constant__ struct dtp_attention_backward_args a)
{
    constexpr int E = backward_edge, tile = backward_tile;
    extern __shared__ float memory[];
    const attention_shape s = shape_of(a);
    const uint32_t kv_head = blockIdx.y, b = blockIdx.z, first_key = blockIdx.x * tile, group = s.heads / s.kv_heads;
    const backward_head<T> of = {a, s, b, tiles_in(memory, s)};
    of.load_keys(kv_head, first_key);
    float of_keys[E][COLUMNS] = {}, of_values[E][COLUMNS] = {};
    const uint32_t last_key = first_key + tile - 1, unseen = s.sequence - last_key; /* queries behind it, or wrapped */
    const bool windowed = !s.around && a.window && last_key < s.sequence && unseen > a.window;
    const uint32_t begin = s.around ? s.first_query : first_key, end = windowed ? last_key + a.window : s.sequence;
    for (uint32_t head = kv_head * group; head < (kv_head + 1) * group; head++)
        for (uint32_t query = begin; query < end; query += tile) {
            __syncthreads();
            of.load_queries(head, query);
            __syncthreads();
            of.weigh(head, query, first_key);
            __syncthreads();
            add_weighted<E, COLUMNS, true>(of_values, of.t.weights, of.t.gradients, s.value_dim);
            add_weighted<E, COLUMNS, true>(of_keys, of.t.slopes, of.t.queries, s.dim);
        }
    const uint64_t stride = s.key_row(0, 1);
    void *to = s.around ? a.keys_gradient : a.qkv_gradient;
    store_rows<T>(to, s.key(b, first_key, kv_head), stride, s.keys - first_key, of_keys, s.dim);
    store_rows<T>(to, s.value(b, first_key, kv_head), stride, s.keys - first_key, of_values, s.value_dim);
}

template <typename T, int COLUMNS>
__global__ void __launch_bounds__(threads)
    backward_queries(const __grid_constant__ struct dtp_attention_backward_args a)
{
    constexpr int E = backward_edge, tile = backward_tile;
    extern __shared__ float memory[];
    const attention_shape s = shape_of(a);
    const uint32_t head = blockIdx.y, b = blockIdx.z;
    const uint32_t first_query = s.first_query + (gridDim.x - 1 - blockIdx.x) * tile;
    const backward_head<T> of = {a, s, b, tiles_in(memory, s)};
    of.load_queries(head, first_query);
    float of_queries[E][COLUMNS] = {};
    for (uint32_t key = first_seen<tile>(s, first_query, a.window); key < seen_end<tile>(s, first_query); key += tile) {
        __syncthreads();
        of.load_keys(head / (s.heads / s.kv_heads), key);
        __syncthreads();
        of.weigh(head, first_query, key);
        __syncthreads();
        add_weighted<E, COLUMNS, false>(of_queries, of.t.slopes, of.t.keys, s.dim);
    }
    if (s.around)
        store_rows<T>(a.query_gradient, s.result(b, first_query, head), (uint64_t)s.heads * s.dim,
                      s.sequence - first_query, of_queries, s.dim);
    else
        store_rows<T>(a.qkv_gradient, s.query(b, first_query, head), s.packed_row(0, 1), s.sequence - first_query,
                      of_queries, s.dim);
}

template <typename Arguments> size_t widest(const Arguments &a)
{
    return a.head_dim > value_of(a) ? a.head_dim : value_of(a);
}

template <typename T, int COLUMNS> int launch(const struct dtp_attention_args &a, cudaStream_t stream)
{
    constexpr size_t tile = forward_tile;
    size_t bytes = (tile * (a.head_dim + widest(a) + 2) + tile * (tile + 1)) * sizeof(float);
    int status = allow_memory(forward<T, COLUMNS>, bytes);
    if (status)
        return status;
    forward<T, COLUMNS><<<dim3(tiles_of(queries_of(a), tile), a.heads, a.batch), threads, bytes, stream>>>(a);
    return launched();
}

template <typename T, int COLUMNS> int launch(const struct dtp_attention_backward_args &a, cudaStream_t stream)
{
    constexpr size_t tile = backward_tile;
    size_t widths = 2 * (a.head_dim + value_of(a) + 2);
    size_t bytes = (tile * widths + 2 * tile * (tile + 1) + 2 * tile) * sizeof(float);
    int status = allow_memory(backward_keys<T, COLUMNS>, bytes);
    if (!status)
        status = allow_memory(backward_queries<T, COLUMNS>, bytes);
    if (status)
        return status;
    unsigned of_keys = tiles_of(a.keys ? a.key_count : a.sequence, tile), of_queries = tiles_of(queries_of(a), tile);
    backward_keys<T, COLUMNS><<<dim3(of_keys, a.kv_heads, a.batch), threads, bytes, stream>>>(a);
    backward_queries<T, COLUMNS><<<dim3(of_queries, a.heads, a.batch), threads, bytes, stream>>>(a);
    return launched();
}

/* Columns of a head by sixteens in registers: heads of up to 256. */
template <typename Arguments> int launch_any(const Arguments &a, void *stream)
{
    if (a.batch == 0 || a.sequence == 0)
        return 0;
    return with_element(a.element, [&](auto of) {
        using T = decltype(of);
        if (widest(a) <= 64)
            return launch<T, 4>(a, stream_of(stream));
        if (widest(a) <= 128)
            return launch<T, 8>(a, stream_of(stream));
        return widest(a) <= 256 ? launch<T, 16>(a, stream_of(stream)) : (int)cudaErrorInvalidValue;
    });
}

} // namespace
} // namespace dtp

extern "C" int dtp_cuda_attention(void *self, const struct dtp_attention_args *a, void *stream)
{
    (void)self;
    return dtp::launch_any(*a, stream);
}

extern "C" int dtp_cuda_attention_backward(void *self, const struct dtp_attention_backward_args *a, void *stream)
{
    (void)self;
    return dtp::launch_any(*a, stream);
}
