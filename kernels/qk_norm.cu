#include "kernels/partial_sums.cuh"

/* A head lies with a few neighbouring threads of a warp, in registers: heads are short, so that a block has many, and
 * sums over a head need no barrier. All heads as one lie with a block. What is normed as one is called a head below. */
namespace dtp
{
namespace
{

constexpr unsigned threads = 256, most_vectors = 8;
constexpr unsigned walking_threads = 512; /* of backward, where a block has many heads */

/* `lanes` threads of up to `per_lane` vectors each hold a head. */
struct layout {
    unsigned lanes, per_lane;
};

layout layout_of(uint32_t vectors, bool wide)
{
    layout l = {wide ? threads : 8, 1};
    while (l.lanes < 32 && l.lanes < vectors)
        l.lanes *= 2;
    while (l.lanes * l.per_lane < vectors)
        l.per_lane *= 2;
    return l;
}

/* Heads of a row, those of q before those of k, and how many of them are q's; elements of all that is normed. */
template <typename A> __host__ __device__ uint32_t heads_of(const A &a)
{
    return a.wide ? 2 : a.heads + a.kv_heads;
}

template <typename A> __host__ __device__ uint32_t query_heads(const A &a)
{
    return a.wide ? 1 : a.heads;
}

template <typename A> __host__ __device__ uint32_t weights_of(const A &a)
{
    return a.wide ? (a.heads + a.kv_heads) * a.head_dim : 2 * a.head_dim;
}

/* Where a head begins in a row of q and k, packed or kept, and in the weights; its width. */
struct span {
    uint32_t first, weights, dim;
};

template <typename A> __device__ span span_of(const A &a, uint32_t head)
{
    const uint32_t of_q = a.heads * a.head_dim;
    if (a.wide)
        return head ? span{of_q, of_q, a.kv_heads * a.head_dim} : span{0, 0, of_q};
    return {head * a.head_dim, head < a.heads ? 0 : a.head_dim, a.head_dim};
}

/* Weights of N columns, with the offset; 1 where norms have no weights. */
template <int N, typename A> __device__ void weights_at(float (&to)[N], const A &a, uint32_t column)
{
    if (a.weight) {
        read_weights<N>(to, a.weight, a.weight_element, column, a.weight_offset);
        return;
    }
#pragma unroll
    for (int e = 0; e < N; e++)
        to[e] = 1;
}

template <typename A> __device__ uint64_t kept_row(const A &a)
{
    return (a.heads + (uint64_t)a.kv_heads) * a.head_dim;
}

template <typename A> __device__ uint64_t packed_row(const A &a)
{
    return (a.heads + 2 * (uint64_t)a.kv_heads) * a.head_dim;
}

/* Sum over a head's threads, in each of them; where these are a block, all must come here. The order is fixed. */
__device__ float head_sum(float value, unsigned lanes)
{
    __shared__ float of_warp[threads / 32];
    if (lanes <= 32)
        return warp_sum(value, (int)lanes);
    value = warp_sum(value);
    __syncthreads(); /* all have read what the sum before left */
    if (threadIdx.x % 32 == 0)
        of_warp[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0;
#pragma unroll
    for (unsigned w = 0; w < threads / 32; w++)
        value += of_warp[w];
    return value;
}

/* A thread's part of a head; `there` is false past the last head, whose threads still take part in sums. */
template <typename T, int N, int V> struct part {
    uint32_t dim, lanes;
    bool there;

    __device__ uint32_t column(int v) const
    {
        return (threadIdx.x % lanes + v * lanes) * N;
    }

    __device__ bool holds(int v) const
    {
        return there && column(v) < dim;
    }

    __device__ packed<T, N> read(const T *from, int v) const
    {
        packed<T, N> zeros;
#pragma unroll
        for (int e = 0; e < N; e++)
            zeros.element[e] = from_float<T>(0);
        return holds(v) ? load<N>(from + column(v)) : zeros;
    }
};

template <typename T, int N, int V>
__global__ void __launch_bounds__(threads) forward(const __grid_constant__ struct dtp_qk_norm_args a, unsigned lanes)
{
    const uint32_t normed = heads_of(a);
    const uint32_t item = blockIdx.x * (threads / lanes) + threadIdx.x / lanes;
    const uint64_t row = item / normed;
    const span head = span_of(a, item % normed);
    const part<T, N, V> own = {head.dim, lanes, row < a.rows};
    T *at = (T *)a.qkv + row * packed_row(a) + head.first;
    T *raw = (T *)a.raw + row * kept_row(a) + head.first;
    packed<T, N> x[V];
    float square = 0;
#pragma unroll
    for (int v = 0; v < V; v++) {
        x[v] = own.read(at, v);
#pragma unroll
        for (int e = 0; e < N; e++)
            square += x[v][e] * x[v][e];
    }
    const float inverse = rsqrtf(head_sum(square, lanes) / (float)head.dim + a.epsilon);
#pragma unroll
    for (int v = 0; v < V; v++) {
        if (!own.holds(v))
            continue;
        float weight[N], result[N];
        weights_at<N>(weight, a, head.weights + own.column(v));
#pragma unroll
        for (int e = 0; e < N; e++)
            result[e] = x[v][e] * inverse * weight[e];
        store(raw + own.column(v), x[v]);
        store(at + own.column(v), result);
    }
    if (own.there && threadIdx.x % lanes == 0)
        a.inverse_deviation[item] = inverse;
}

/* A thread's part of a head of q or of k, which `before` heads precede in a row and of which a row has `heads`. With
 * n = x * inverse and h = gradient * weight: inverse * (h - n mean(h n)). */
template <typename T, int N, int V>
__device__ void norm_back(const struct dtp_qk_norm_backward_args &a, uint32_t lanes, uint32_t before, uint32_t heads,
                          uint32_t item, float (&sums)[V][N])
{
    const uint64_t row = item / heads;
    const uint32_t which = before + item % heads;
    const span head = span_of(a, which);
    const part<T, N, V> own = {head.dim, lanes, item < a.rows * heads};
    const float inverse = own.there ? a.inverse_deviation[row * heads_of(a) + which] : 0;
    T *at = (T *)a.qkv_gradient + row * packed_row(a) + head.first;
    packed<T, N> gradient[V], x[V];
#pragma unroll
    for (int v = 0; v < V; v++) {
        gradient[v] = own.read(at, v);
        x[v] = own.read((const T *)a.raw + row * kept_row(a) + head.first, v);
    }
    float weight[V][N] = {}, hn = 0;
#pragma unroll
    for (int v = 0; v < V; v++) {
        if (own.holds(v))
            weights_at<N>(weight[v], a, head.weights + own.column(v));
#pragma unroll
        for (int e = 0; e < N; e++) {
            float n = x[v][e] * inverse;
            hn += gradient[v][e] * weight[v][e] * n;
            sums[v][e] += gradient[v][e] * n;
        }
    }
    const float mean_hn = head_sum(hn, lanes) / (float)head.dim;
#pragma unroll
    for (int v = 0; v < V; v++) {
        if (!own.holds(v))
            continue;
        float result[N];
#pragma unroll
        for (int e = 0; e < N; e++)
            result[e] = inverse * (gradient[v][e] * weight[v][e] - x[v][e] * inverse * mean_hn);
        store(at + own.column(v), result);
    }
}

/* The sums of a block's heads: those of a warp by a butterfly, of its warps in order, so that a step repeats. All heads
 * as one have the block to themselves. of_warp: [warps, dim]. */
template <int N, int V, typename OWN>
__device__ void write_partials(float (&sums)[V][N], const OWN &own, float *of_warp, float *to)
{
    const uint32_t warp = threadIdx.x / 32, warps = own.lanes > 32 ? 1 : blockDim.x / 32;
#pragma unroll
    for (int v = 0; v < V; v++) {
#pragma unroll
        for (int e = 0; e < N; e++)
            for (uint32_t distance = own.lanes; distance < 32; distance *= 2)
                sums[v][e] += __shfl_xor_sync(0xFFFFFFFFu, sums[v][e], (int)distance);
        if (own.holds(v) && (own.lanes > 32 || threadIdx.x % 32 < own.lanes))
            store((warps > 1 ? of_warp + warp * own.dim : to) + own.column(v), sums[v]);
    }
    if (warps == 1)
        return;
    __syncthreads();
    for (uint32_t column = threadIdx.x; column < own.dim; column += blockDim.x) {
        float sum = 0;
        for (uint32_t w = 0; w < warps; w++)
            sum += of_warp[w * own.dim + column];
        to[column] = sum;
    }
    __syncthreads();
}

/* Blocks walk over heads of q, then of k, and keep the sums of their columns in registers. */
template <typename T, int N, int V>
__global__ void __launch_bounds__(walking_threads)
    backward(const __grid_constant__ struct dtp_qk_norm_backward_args a, unsigned lanes)
{
    extern __shared__ float of_warp[];
    const uint32_t at_once = blockDim.x / lanes, own = threadIdx.x / lanes, stride = gridDim.x * at_once;
    for (uint32_t of_k = 0; of_k < 2; of_k++) {
        const uint32_t before = of_k ? query_heads(a) : 0, heads = of_k ? heads_of(a) - before : query_heads(a);
        const uint32_t items = (uint32_t)a.rows * heads;
        float sums[V][N] = {};
        for (uint32_t first = blockIdx.x * at_once; first < items; first += stride)
            norm_back<T, N, V>(a, lanes, before, heads, first + own, sums);
        if (!a.weight_gradient)
            continue;
        const span head = span_of(a, before); /* of q or of k: their widths and weights are alike */
        write_partials(sums, part<T, N, V>{head.dim, lanes, true}, of_warp,
                       a.workspace + (uint64_t)blockIdx.x * weights_of(a) + head.weights);
    }
}

/* Where a block has one head alone its sum is over as many threads as head_sum has room for. */
unsigned walking(layout l)
{
    return l.lanes < threads ? walking_threads : threads;
}

unsigned backward_blocks(const struct dtp_qk_norm_backward_args &a, layout l)
{
    return standing_blocks(a.rows * query_heads(a), walking(l) / l.lanes);
}

template <typename T, int N, int V> int launch(const struct dtp_qk_norm_args &a, layout l, cudaStream_t stream)
{
    unsigned blocks = blocks_for(a.rows * heads_of(a), threads / l.lanes);
    forward<T, N, V><<<blocks, threads, 0, stream>>>(a, l.lanes);
    return launched();
}

template <typename T, int N, int V> int launch(const struct dtp_qk_norm_backward_args &a, layout l, cudaStream_t stream)
{
    unsigned blocks = backward_blocks(a, l);
    size_t of_warps = l.lanes > 32 ? 0 : walking_threads / 32 * a.head_dim * sizeof(float);
    int status =
        (int)cudaFuncSetAttribute(backward<T, N, V>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)of_warps);
    if (status)
        return status;
    backward<T, N, V><<<blocks, walking(l), of_warps, stream>>>(a, l.lanes);
    status = launched();
    if (status || !a.weight_gradient)
        return status;
    partial_sums sums = {{a.workspace, nullptr}, {a.weight_gradient, nullptr}, blocks,
                         weights_of(a),          a.gradient_element,           a.accumulate};
    return launch_add_partials(sums, 1, stream);
}

/* Single elements, the slow path, are laid out one way only. */
template <typename Arguments> int launch_any(const Arguments &a, void *stream)
{
    if (a.rows == 0 || a.head_dim == 0)
        return 0;
    return with_element(a.element, [&](auto of) {
        using T = decltype(of);
        constexpr int N = full<T>;
        const bool whole = a.head_dim % N == 0;
        const uint32_t widest = a.wide ? a.heads * a.head_dim : a.head_dim; /* there are no more heads of k than of q */
        const layout l = layout_of(widest / (whole ? N : 1), a.wide);
        /* Heads are counted in 32 bits, and so is where walks over them end. */
        if (l.per_lane > most_vectors || a.rows * heads_of(a) > UINT32_MAX / 2)
            return (int)cudaErrorInvalidValue;
        if (!whole)
            return launch<T, 1, most_vectors>(a, l, stream_of(stream));
        if (l.per_lane == 1)
            return launch<T, N, 1>(a, l, stream_of(stream));
        return l.per_lane == 2 ? launch<T, N, 2>(a, l, stream_of(stream))
                               : launch<T, N, most_vectors>(a, l, stream_of(stream));
    });
}

} // namespace
} // namespace dtp

extern "C" int dtp_cuda_qk_norm(void *self, const struct dtp_qk_norm_args *a, void *stream)
{
    (void)self;
    return dtp::launch_any(*a, stream);
}

extern "C" int dtp_cuda_qk_norm_backward(void *self, const struct dtp_qk_norm_backward_args *a, void *stream)
{
    (void)self;
    return dtp::launch_any(*a, stream);
}
