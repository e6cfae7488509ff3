#include "kernels/vector.cuh"

namespace dtp
{
namespace
{

template <typename T, typename R, int N>
__global__ void __launch_bounds__(256) gather(struct dtp_embedding_args a, uint32_t vectors)
{
    uint32_t i = blockIdx.x * 256 + threadIdx.x;
    if (i >= vectors)
        return;
    uint32_t per_row = a.width / N, row = i / per_row;
    uint64_t column = (uint64_t)(i % per_row) * N;
    uint32_t token =
        (uint32_t)__ldg(a.tokens + row) - a.first_token; /* of a token before the part it wraps beyond it */
    float result[N] = {};
    if (token >= a.vocab) {
        store((R *)a.result + (uint64_t)i * N, result);
        return;
    }
    packed<T, N> values = load<N>((const T *)a.table + (uint64_t)token * a.width + column);
#pragma unroll
    for (int e = 0; e < N; e++)
        result[e] = a.scale * values[e];
    if (a.positions) { /* rounded once: where the two nearly cancel, a product's own rounding is all that is left */
        packed<T, N> position = load<N>((const T *)a.positions + (uint64_t)(row % a.sequence) * a.width + column);
#pragma unroll
        for (int e = 0; e < N; e++)
            result[e] = __fmaf_rn(a.scale, values[e], position[e]);
    }
    store((R *)a.result + (uint64_t)i * N, result);
}

/* Backward. A piece of work is a token and 32 vectors of columns, which the lanes of a warp hold. Most tokens occur
 * once or twice: a warp sums such a piece alone. A frequent token's piece is summed by the 16 warps of a block, each
 * every sixteenth of its rows, added up in the order of warps. The first blocks of the grid look for those, the others
 * do the rest. */
constexpr int warps = 16, frequent = 24, at_once = 4;

template <typename T, int N> struct columns {
    float sum[N] = {};

    __device__ void add(const packed<T, N> &values)
    {
#pragma unroll
        for (int e = 0; e < N; e++)
            sum[e] += values[e];
    }

    /* Rows order[first], order[first + stride], ... before order[end]. The lanes read 32 of these numbers together;
     * four rows are under way at a time. Lanes outside the columns read the first column and are not stored. */
    __device__ void add_rows(const struct dtp_embedding_backward_args &a, int first, int end, int stride,
                             uint64_t column)
    {
        const T *gradient = (const T *)a.gradient + column;
        for (; first < end; first += 32 * stride) {
            int mine = first + (int)(threadIdx.x % 32) * stride, count = min((end - first + stride - 1) / stride, 32);
            int32_t row = mine < end ? a.order[mine] : 0;
            for (int k = 0; k < count; k += at_once) {
                packed<T, N> values[at_once];
#pragma unroll
                for (int j = 0; j < at_once; j++) {
                    int32_t from = __shfl_sync(0xFFFFFFFFu, row, min(k + j, 31));
                    if (k + j < count)
                        values[j] = load_once<N>(gradient + (uint64_t)from * a.width);
                }
#pragma unroll
                for (int j = 0; j < at_once; j++)
                    if (k + j < count)
                        add(values[j]);
            }
        }
    }
};

template <typename G, int N> __device__ void add_to_table(G *to, float (&sum)[N], float scale)
{
    packed<G, N> before = load<N>(to);
#pragma unroll
    for (int e = 0; e < N; e++)
        sum[e] = scale * sum[e] + before[e];
    store(to, sum);
}

template <typename G> __device__ G *row_of_table(const struct dtp_embedding_backward_args &a, int begin)
{
    return (G *)a.table_gradient + (uint64_t)(uint32_t)(a.tokens[a.order[begin]] - (int32_t)a.first_token) * a.width;
}

__device__ bool is_here(const struct dtp_embedding_backward_args &a, int begin)
{
    return (uint32_t)a.tokens[a.order[begin]] - a.first_token < a.vocab;
}

/* Tokens u = group, group + groups, ...: neighbours in the vocabulary, which are often alike frequent, go to different
 * blocks. Each thread looks at one of 512 at a time. */
template <typename T, typename G, int N>
__device__ void sum_frequent(const struct dtp_embedding_backward_args &a, uint32_t group, uint32_t groups,
                             uint64_t column)
{
    __shared__ float of_warp[warps][32 * N];
    __shared__ uint32_t found[warps * 32], found_in[warps];
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, tokens = (uint32_t)*a.distinct;
    const bool inside = column < a.width;
    for (uint32_t first = group; first < tokens; first += groups * warps * 32) {
        const uint32_t u = first + groups * threadIdx.x;
        const bool is_frequent = u < tokens && a.starts[u + 1] - a.starts[u] > frequent && is_here(a, a.starts[u]);
        const uint32_t of_lanes = __ballot_sync(0xFFFFFFFFu, is_frequent);
        if (lane == 0)
            found_in[warp] = (uint32_t)__popc(of_lanes);
        __syncthreads();
        uint32_t before = 0, count = 0;
        for (uint32_t w = 0; w < warps; w++) {
            before += w < warp ? found_in[w] : 0;
            count += found_in[w];
        }
        if (is_frequent)
            found[before + (uint32_t)__popc(of_lanes & ((1u << lane) - 1))] = u;
        __syncthreads();
        for (uint32_t i = 0; i < count; i++) {
            const int begin = a.starts[found[i]], end = a.starts[found[i] + 1];
            columns<T, N> of;
            of.add_rows(a, begin + (int)warp, end, warps, inside ? column : 0);
#pragma unroll
            for (int e = 0; e < N; e++)
                of_warp[warp][e * 32 + lane] = of.sum[e];
            __syncthreads();
            if (warp == 0 && inside) {
                for (int w = 1; w < warps; w++)
#pragma unroll
                    for (int e = 0; e < N; e++)
                        of.sum[e] += of_warp[w][e * 32 + lane];
                add_to_table<G, N>(row_of_table<G>(a, begin) + column, of.sum, a.scale);
            }
            __syncthreads();
        }
    }
}

template <typename T, typename G, int N>
__global__ void __launch_bounds__(warps * 32, 2)
    scatter(struct dtp_embedding_backward_args a, uint32_t groups, uint32_t chunks)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (blockIdx.x < groups * chunks) {
        sum_frequent<T, G, N>(a, blockIdx.x / chunks, groups, (uint64_t)(blockIdx.x % chunks * 32 + lane) * N);
        return;
    }
    const uint32_t tokens = (uint32_t)*a.distinct, stride = (gridDim.x - groups * chunks) * warps;
    for (uint32_t piece = (blockIdx.x - groups * chunks) * warps + warp; piece < tokens * chunks; piece += stride) {
        const int begin = a.starts[piece / chunks], end = a.starts[piece / chunks + 1];
        const uint64_t column = (uint64_t)(piece % chunks * 32 + lane) * N;
        if (end - begin > frequent || !is_here(a, begin))
            continue;
        columns<T, N> of;
        of.add_rows(a, begin, end, 1, column < a.width ? column : 0);
        if (column < a.width)
            add_to_table<G, N>(row_of_table<G>(a, begin) + column, of.sum, a.scale);
    }
}

template <typename T, typename G, int N>
__global__ void __launch_bounds__(256) sum_positions(struct dtp_embedding_backward_args a, uint32_t vectors)
{
    uint32_t i = blockIdx.x * 256 + threadIdx.x;
    if (i >= vectors)
        return;
    uint64_t at = (uint64_t)i * N, stride = (uint64_t)a.sequence * a.width, all = a.rows * a.width;
    columns<T, N> of;
#pragma unroll 4
    for (uint64_t from = at; from < all; from += stride)
        of.add(load<N>((const T *)a.gradient + from));
    G *to = (G *)a.positions_gradient + at;
    if (a.accumulate_positions)
        add_to_table<G, N>(to, of.sum, 1);
    else
        store(to, of.sum);
}

template <typename T, typename G, int N>
int launch_backward(const struct dtp_embedding_backward_args &a, cudaStream_t stream)
{
    uint64_t tokens = a.rows < a.vocab ? a.rows : a.vocab; /* at most */
    uint32_t chunks = (a.width / N + 31) / 32, groups = 2112 / chunks + 1, most = 4 * (uint32_t)multiprocessors();
    if (a.rows * chunks > UINT32_MAX / 2)
        return (int)cudaErrorInvalidValue;
    groups = groups < tokens ? groups : (uint32_t)tokens;
    uint32_t others = (uint32_t)(tokens * chunks + warps - 1) / warps;
    others = others < most ? others : most;
    scatter<T, G, N><<<groups * chunks + others, warps * 32, 0, stream>>>(a, groups, chunks);
    uint64_t vectors = (uint64_t)a.sequence * a.width / N;
    if (vectors > UINT32_MAX)
        return (int)cudaErrorInvalidValue;
    if (a.positions_gradient)
        sum_positions<T, G, N><<<blocks_for(vectors, 256), 256, 0, stream>>>(a, (uint32_t)vectors);
    return launched();
}

} // namespace
} // namespace dtp

extern "C" int dtp_cuda_embedding(void *self, const struct dtp_embedding_args *a, void *stream)
{
    (void)self;
    if (a->rows == 0)
        return 0;
    return dtp::with_element(a->element, [&](auto of_table) {
        return dtp::with_element(a->result_element, [&](auto of_result) {
            using T = decltype(of_table);
            using R = decltype(of_result);
            uint64_t vectors = a->rows * a->width / (a->width % 8 ? 1 : 8);
            if (vectors > UINT32_MAX)
                return (int)cudaErrorInvalidValue;
            unsigned blocks = dtp::blocks_for(vectors, 256);
            if (a->width % 8)
                dtp::gather<T, R, 1><<<blocks, 256, 0, dtp::stream_of(stream)>>>(*a, (uint32_t)vectors);
            else
                dtp::gather<T, R, 8><<<blocks, 256, 0, dtp::stream_of(stream)>>>(*a, (uint32_t)vectors);
            return dtp::launched();
        });
    });
}

extern "C" int dtp_cuda_embedding_backward(void *self, const struct dtp_embedding_backward_args *a, void *stream)
{
    (void)self;
    if (a->rows == 0)
        return 0;
    return dtp::with_element(a->element, [&](auto of_gradient) {
        return dtp::with_element(a->gradient_element, [&](auto of_table) {
            using T = decltype(of_gradient);
            using G = decltype(of_table);
            if (a->width % 8)
                return dtp::launch_backward<T, G, 1>(*a, dtp::stream_of(stream));
            return dtp::launch_backward<T, G, 8>(*a, dtp::stream_of(stream));
        });
    });
}
