#include "vector.cuh"

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
    packed<T, N> values = load<N>((const T *)a.table + (uint64_t)__ldg(a.tokens + row) * a.width + column);
    float result[N];
#pragma unroll
    for (int e = 0; e < N; e++)
        result[e] = values[e];
    if (a.positions) {
        packed<T, N> position = load<N>((const T *)a.positions + (uint64_t)(row % a.sequence) * a.width + column);
#pragma unroll
        for (int e = 0; e < N; e++)
            result[e] += position[e];
    }
    store((R *)a.result + (uint64_t)i * N, result);
}

/* Backward. A piece of work is a token and 32 vectors of columns, which the lanes of a warp hold. Most tokens occur
 * once or twice: a warp sums such a piece alone. A token with more rows than that is summed by all warps of the block,
 * each a sixteenth of its rows, added up in the order of warps. Pieces run through tokens first, so that the pieces of
 * one frequent token fall to different blocks. */
constexpr int warps = 16, light = 16;

template <typename T, int N> struct columns {
    float sum[N] = {};

    __device__ void add(const packed<T, N> &values)
    {
#pragma unroll
        for (int e = 0; e < N; e++)
            sum[e] += values[e];
    }

    /* Rows order[first], order[first + stride], ... before order[end]: four loads under way at a time. */
    __device__ void add_rows(const struct dtp_embedding_backward_args &a, int first, int end, int stride,
                             uint64_t column)
    {
        const T *gradient = (const T *)a.gradient + column;
        for (; first + 3 * stride < end; first += 4 * stride) {
            packed<T, N> values[4];
#pragma unroll
            for (int k = 0; k < 4; k++)
                values[k] = load<N>(gradient + (uint64_t)a.order[first + k * stride] * a.width);
#pragma unroll
            for (int k = 0; k < 4; k++)
                add(values[k]);
        }
        for (; first < end; first += stride)
            add(load<N>(gradient + (uint64_t)a.order[first] * a.width));
    }
};

template <typename G, int N> __device__ void add_to_table(G *to, float (&sum)[N])
{
    packed<G, N> before = load<N>(to);
#pragma unroll
    for (int e = 0; e < N; e++)
        sum[e] += before[e];
    store(to, sum);
}

template <typename T, typename G, int N>
__global__ void __launch_bounds__(warps * 32) scatter(struct dtp_embedding_backward_args a)
{
    __shared__ float of_warp[warps][32 * N];
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t tokens = (uint32_t)*a.distinct, groups = (tokens + warps - 1) / warps;
    const uint32_t chunks = (a.width / N + 31) / 32;
    for (uint32_t piece = blockIdx.x; piece < groups * chunks; piece += gridDim.x) {
        uint32_t first = piece % groups * warps, count = min(tokens - first, (uint32_t)warps);
        uint64_t column = (uint64_t)(piece / groups * 32 + lane) * N;
        bool inside = column < a.width;
        if (warp < count) {
            int begin = a.starts[first + warp], end = a.starts[first + warp + 1];
            if (end - begin <= light && inside) {
                columns<T, N> of;
                of.add_rows(a, begin, end, 1, column);
                add_to_table<G, N>((G *)a.table_gradient + (uint64_t)a.tokens[a.order[begin]] * a.width + column,
                                   of.sum);
            }
        }
        for (uint32_t u = first; u < first + count; u++) {
            int begin = a.starts[u], end = a.starts[u + 1];
            if (end - begin <= light)
                continue; /* for all threads of the block alike */
            columns<T, N> of;
            if (inside)
                of.add_rows(a, begin + (int)warp, end, warps, column);
#pragma unroll
            for (int e = 0; e < N; e++)
                of_warp[warp][e * 32 + lane] = of.sum[e];
            __syncthreads();
            if (warp == 0 && inside) {
                for (int w = 1; w < warps; w++)
#pragma unroll
                    for (int e = 0; e < N; e++)
                        of.sum[e] += of_warp[w][e * 32 + lane];
                add_to_table<G, N>((G *)a.table_gradient + (uint64_t)a.tokens[a.order[begin]] * a.width + column,
                                   of.sum);
            }
            __syncthreads();
        }
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
        add_to_table<G, N>(to, of.sum);
    else
        store(to, of.sum);
}

template <typename T, typename G, int N>
int launch_backward(const struct dtp_embedding_backward_args &a, cudaStream_t stream)
{
    uint64_t groups = (a.rows < a.vocab ? a.rows : a.vocab) / warps + 1, chunks = (a.width / N + 31) / 32;
    uint64_t most = 4 * (uint64_t)multiprocessors();
    scatter<T, G, N><<<(unsigned)(groups * chunks < most ? groups * chunks : most), warps * 32, 0, stream>>>(a);
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
