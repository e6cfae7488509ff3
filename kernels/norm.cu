#include "kernels/amax.cuh"
#include "kernels/partial_sums.cuh"

/* A row lies with the threads that share it, in registers or in shared memory: it is read once and written once.
 * Weights are read again for each row, from the L1. */
namespace dtp
{
namespace
{

constexpr unsigned most_lanes = 512, most_per_lane = 8;

/* How a row is laid out: `lanes` threads of up to `per_lane` vectors each; `rows` of them make a block. */
struct layout {
    unsigned lanes, rows, per_lane;
};

layout layout_of(uint64_t vectors, unsigned lanes_at_most, unsigned vectors_at_most, unsigned threads)
{
    unsigned per_lane = 1;
    while (per_lane < vectors_at_most && vectors > (uint64_t)lanes_at_most * per_lane)
        per_lane *= 2;
    unsigned lanes = (unsigned)((vectors + per_lane - 1) / per_lane + 31) / 32 * 32;
    return {lanes, lanes < threads ? threads / lanes : 1, per_lane};
}

/* Sums over the threads of a row, each getting them. Where that takes several warps, all threads of the block must come
 * here as often; scratch alternates between two halves: who writes a half again has passed the barrier at which all had
 * read it. */
struct row_sums {
    static constexpr unsigned warps = most_lanes / 32;
    float2 (*scratch)[warps]; /* [2 * rows] */
    unsigned turn = 0;

    __device__ float2 operator()(float2 value)
    {
        value.x = warp_sum(value.x);
        value.y = warp_sum(value.y);
        if (blockDim.x == 32)
            return value;
        float2 *of_warp = scratch[turn * blockDim.y + threadIdx.y];
        turn ^= 1;
        if (threadIdx.x % 32 == 0)
            of_warp[threadIdx.x / 32] = value;
        __syncthreads();
        value = make_float2(0, 0);
#pragma unroll
        for (unsigned w = 0; w < warps; w += 2) /* two at a time, in one access */
            if (w < blockDim.x / 32) {
                float4 two = *reinterpret_cast<const float4 *>(of_warp + w);
                bool both = w + 1 < blockDim.x / 32;
                value.x += two.x + (both ? two.z : 0.0f);
                value.y += two.y + (both ? two.w : 0.0f);
            }
        return value;
    }

    __device__ float operator()(float value)
    {
        return (*this)(make_float2(value, 0)).x;
    }
};

/* Elements from one row of x to the next. */
template <typename Arguments> __host__ __device__ uint32_t row_of(const Arguments &a)
{
    return a.x_row ? a.x_row : a.width;
}

/* A thread's part of a row. */
template <typename T, int N, int V> struct part {
    packed<T, N> of[V];

    __device__ void read(const void *from, uint64_t first, uint32_t width)
    {
#pragma unroll
        for (int v = 0; v < V; v++) {
            uint32_t column = (threadIdx.x + v * blockDim.x) * N;
            if (column < width) {
                of[v] = load<N>((const T *)from + first + column);
            } else {
#pragma unroll
                for (int e = 0; e < N; e++)
                    of[v].element[e] = from_float<T>(0);
            }
        }
    }
};

/* Forward: one row to a warp as far as four vectors a lane go, so that nothing waits at a barrier; else to a block.
 * More registers a thread leave too few threads to keep memory busy: with eight, 3.6 TB/s on an H200 instead of 3.9. */
layout forward_layout(uint64_t vectors)
{
    layout l = layout_of(vectors, 32, 4, 128);
    if (l.lanes > most_lanes)
        l = layout_of(vectors, most_lanes, most_per_lane, 128);
    return {l.lanes, l.lanes == 32 ? l.rows : 1, l.per_lane};
}

template <typename T, int N, int V, bool LAYER>
__global__ void __launch_bounds__(most_lanes) forward(const __grid_constant__ struct dtp_norm_args a)
{
    __shared__ __align__(16) float2 scratch[2][row_sums::warps];
    row_sums sum{scratch};
    const uint64_t row = (uint64_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= a.rows)
        return; /* a whole warp: blocks of several rows have no barrier */
    part<T, N, V> x;
    x.read(a.x, row * row_of(a), a.width);
    float mean = 0, square = 0;
    if constexpr (LAYER) {
#pragma unroll
        for (int v = 0; v < V; v++)
#pragma unroll
            for (int e = 0; e < N; e++)
                mean += x.of[v][e];
        mean = sum(mean) / (float)a.width;
    }
#pragma unroll
    for (int v = 0; v < V; v++)
        if ((threadIdx.x + v * blockDim.x) * N < a.width) {
#pragma unroll
            for (int e = 0; e < N; e++) {
                float difference = x.of[v][e] - mean;
                square += difference * difference;
            }
        }
    const float inverse = rsqrtf(sum(square) / (float)a.width + a.epsilon);
    float largest = 0;
#pragma unroll
    for (int v = 0; v < V; v++) {
        uint32_t column = (threadIdx.x + v * blockDim.x) * N;
        if (column >= a.width)
            continue;
        float weight[N], bias[N] = {}, result[N];
        read_weights<N>(weight, a.weight, a.weight_element, column, a.weight_offset);
        if (LAYER && a.bias)
            read_weights<N>(bias, a.bias, a.weight_element, column);
        if (a.addend) {
            packed<T, N> addend = load<N>((const T *)a.addend + row * a.width + column);
#pragma unroll
            for (int e = 0; e < N; e++)
                bias[e] += addend[e];
        }
#pragma unroll
        for (int e = 0; e < N; e++)
            result[e] = (x.of[v][e] - mean) * inverse * weight[e] + bias[e];
        store((T *)a.result + row * a.width + column, result);
        largest = magnitude(result, largest);
    }
    if (a.amax)
        raise_amax<T>(a.amax, largest);
    if (threadIdx.x == 0) {
        a.inverse_deviation[row] = inverse;
        if constexpr (LAYER)
            a.mean[row] = mean;
    }
}

/* Backward sums columns too: its blocks walk through rows and keep the sums of their columns in registers, which lays a
 * row across up to 512 threads. What it reads of coming rows flows into shared memory meanwhile, each thread its own
 * vectors, so that no barrier is needed but the one of the sum. */
template <int V> constexpr int resident = V == 1 ? 2 : 1; /* blocks to a multiprocessor */
template <int V> constexpr int stages = V <= 2 ? 2 : 1;   /* rows in shared memory; a third made it 3 % slower */
enum backward_input { GRADIENT, X, RESIDUAL, BACKWARD_INPUTS };

layout backward_layout(uint64_t vectors)
{
    return layout_of(vectors, most_lanes, most_per_lane, most_lanes);
}

/* Single elements are too small for these copies and are read where they are needed. */
template <typename T, int N, int V> struct row_reader {
    const struct dtp_norm_backward_args &a;
    uint4 *slots; /* [stages][BACKWARD_INPUTS][V][threads of the block] */

    static size_t bytes(layout l)
    {
        return N == 1 ? 0 : (size_t)stages<V> * BACKWARD_INPUTS * V * l.lanes * l.rows * sizeof(uint4);
    }

    __device__ uint32_t column(int v) const
    {
        return (threadIdx.x + v * blockDim.x) * N;
    }

    __device__ const T *address(int which, uint64_t row, int v) const
    {
        const void *residual = a.addend ? a.addend : a.residual_gradient;
        const void *base = which == GRADIENT ? a.gradient : which == X ? a.x : residual;
        return (const T *)base + row * (which == GRADIENT ? a.width : row_of(a)) + column(v);
    }

    __device__ uint4 *slot(int stage, int which, int v) const
    {
        uint32_t threads = blockDim.x * blockDim.y;
        return slots + ((stage * BACKWARD_INPUTS + which) * V + v) * threads + threadIdx.y * blockDim.x + threadIdx.x;
    }

    __device__ bool exists(int which, uint64_t row, int v) const
    {
        return row < a.rows && column(v) < a.width && (which != RESIDUAL || a.add_to_residual || a.addend);
    }

    __device__ void fetch(int stage, uint64_t row) const
    {
        if constexpr (N > 1) {
#pragma unroll
            for (int which = 0; which < BACKWARD_INPUTS; which++)
#pragma unroll
                for (int v = 0; v < V; v++) {
                    bool there = exists(which, row, v);
                    copy_async(slot(stage, which, v), there ? address(which, row, v) : a.x, there);
                }
            end_of_group();
        }
    }

    __device__ packed<T, N> get(int stage, int which, uint64_t row, int v) const
    {
        if constexpr (N > 1)
            return load<N>(reinterpret_cast<const T *>(slot(stage, which, v)));
        packed<T, N> one;
        one.element[0] = from_float<T>(0);
        return exists(which, row, v) ? load<N>(address(which, row, v)) : one;
    }
};

/* Adds up the rows of a block's threads in order and writes the block's partial sums. */
template <int N, int V>
__device__ void write_partials(const float (&sums)[V][N], float *to, uint32_t width, float *scratch)
{
    for (unsigned y = 0; y < blockDim.y; y++) {
#pragma unroll
        for (int v = 0; v < V; v++) {
            uint32_t column = (threadIdx.x + v * blockDim.x) * N;
            if (threadIdx.y != y || column >= width)
                continue;
            float so_far[N];
#pragma unroll
            for (int e = 0; e < N; e++)
                so_far[e] = (y > 0 ? scratch[column + e] : 0.0f) + sums[v][e];
            store(y + 1 < blockDim.y ? scratch + column : to + column, so_far);
        }
        __syncthreads();
    }
}

/* With n = (x - mean) * inverse and h = gradient * weight: inverse * (h - mean(h) - n mean(h n)), without mean(h) for
 * RMSNorm; the weight's gradient sums gradient * n over rows, the bias' gradient. */
template <typename T, int N, int V, bool LAYER>
__global__ void __launch_bounds__(most_lanes, resident<V>)
    backward(const __grid_constant__ struct dtp_norm_backward_args a)
{
    __shared__ __align__(16) float2 scratch[2 * most_lanes / 32][row_sums::warps];
    extern __shared__ uint4 shared[];
    const row_reader<T, N, V> reader = {a, shared};
    row_sums sum{scratch};
    float to_weight[V][N] = {}, to_bias[V][N] = {};
    const uint64_t stride = (uint64_t)gridDim.x * blockDim.y;
    uint64_t first = (uint64_t)blockIdx.x * blockDim.y; /* of the block's rows: all its threads turn as often */
    for (int s = 0; s < stages<V> - 1; s++)
        reader.fetch(s, first + threadIdx.y + s * stride);
    float next_inverse, next_mean;
    auto fetch_statistics = [&](uint64_t row) {
        next_inverse = row < a.rows ? a.inverse_deviation[row] : 0;
        next_mean = LAYER && row < a.rows ? a.mean[row] : 0;
    };
    fetch_statistics(first + threadIdx.y);
    float largest = 0;
    for (int stage = 0; first < a.rows; first += stride, stage = stage + 1 < stages<V> ? stage + 1 : 0) {
        const uint64_t row = first + threadIdx.y;
        reader.fetch(stage > 0 ? stage - 1 : stages<V> - 1, row + (stages<V> - 1) * stride);
        const float inverse = next_inverse, mean = next_mean;
        fetch_statistics(row + stride);
        wait_for_all_but<stages<V> - 1>();
        float2 sums = {0, 0}; /* of h, of h n */
#pragma unroll
        for (int v = 0; v < V; v++) {
            if (reader.column(v) >= a.width)
                continue;
            packed<T, N> gradient = reader.get(stage, GRADIENT, row, v), x = reader.get(stage, X, row, v);
            float weight[N];
            read_weights<N>(weight, a.weight, a.weight_element, reader.column(v), a.weight_offset);
#pragma unroll
            for (int e = 0; e < N; e++) {
                float n = (x[e] - mean) * inverse, g = gradient[e], h = g * weight[e];
                sums.x += LAYER ? h : 0.0f;
                sums.y += h * n;
                to_weight[v][e] += g * n;
                to_bias[v][e] += LAYER ? g : 0.0f;
            }
        }
        sums = sum(sums);
        const float mean_h = sums.x / (float)a.width, mean_hn = sums.y / (float)a.width;
#pragma unroll
        for (int v = 0; v < V; v++) {
            if (row >= a.rows || reader.column(v) >= a.width)
                continue;
            packed<T, N> gradient = reader.get(stage, GRADIENT, row, v), x = reader.get(stage, X, row, v);
            packed<T, N> residual = reader.get(stage, RESIDUAL, row, v);
            float weight[N], result[N];
            read_weights<N>(weight, a.weight, a.weight_element, reader.column(v), a.weight_offset);
#pragma unroll
            for (int e = 0; e < N; e++) {
                float n = (x[e] - mean) * inverse, h = gradient[e] * weight[e];
                result[e] = residual[e] + inverse * (h - (LAYER ? mean_h : 0.0f) - n * mean_hn);
            }
            store((T *)a.residual_gradient + row * row_of(a) + reader.column(v), result);
            largest = magnitude(result, largest);
        }
    }
    if (a.amax)
        raise_amax<T>(a.amax, largest);
    if (!a.weight_gradient)
        return;
    wait_for_all_but<0>();
    __syncthreads(); /* from here shared memory adds up rows */
    float *partials = a.workspace + (uint64_t)blockIdx.x * a.width, *of_rows = reinterpret_cast<float *>(shared);
    write_partials<N, V>(to_weight, partials, a.width, of_rows);
    if constexpr (LAYER)
        if (a.bias_gradient)
            write_partials<N, V>(to_bias, partials + (uint64_t)DTP_PARTIAL_SUM_ROWS * a.width, a.width, of_rows);
}

unsigned backward_blocks(uint64_t rows, layout l)
{
    return standing_blocks(rows, l.rows);
}

/* Elements a thread reads at a time. */
template <typename Arguments> uint32_t vector_of(const Arguments &a)
{
    uint32_t whole = a.element == DTP_ELEMENT_FP32 ? full<float> : full<bf16>;
    return a.width % whole == 0 && row_of(a) % whole == 0 ? whole : 1;
}

template <typename T, int N, int V, bool LAYER> int launch(const struct dtp_norm_args &a, layout l, cudaStream_t stream)
{
    forward<T, N, V, LAYER><<<blocks_for(a.rows, l.rows), dim3(l.lanes, l.rows), 0, stream>>>(a);
    return launched();
}

template <typename T, int N, int V, bool LAYER>
int launch(const struct dtp_norm_backward_args &a, layout l, cudaStream_t stream)
{
    size_t of_rows = l.rows > 1 ? a.width * sizeof(float) : 0, of_reader = row_reader<T, N, V>::bytes(l);
    size_t bytes = of_rows > of_reader ? of_rows : of_reader;
    int status =
        (int)cudaFuncSetAttribute(backward<T, N, V, LAYER>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (status)
        return status;
    backward<T, N, V, LAYER><<<backward_blocks(a.rows, l), dim3(l.lanes, l.rows), bytes, stream>>>(a);
    return launched();
}

template <typename T, int N, bool LAYER, typename Arguments>
int launch_layout(const Arguments &a, layout l, cudaStream_t stream)
{
    switch (l.per_lane) {
    case 1: return launch<T, N, 1, LAYER>(a, l, stream);
    case 2: return launch<T, N, 2, LAYER>(a, l, stream);
    case 4: return launch<T, N, 4, LAYER>(a, l, stream);
    default: return launch<T, N, most_per_lane, LAYER>(a, l, stream);
    }
}

/* Single elements, the slow path, are laid out one way only. Rows of more than 4096 vectors are refused. */
template <typename Arguments> int launch_any(const Arguments &a, layout l, void *stream)
{
    if (l.lanes > most_lanes)
        return (int)cudaErrorInvalidValue;
    return with_element(a.element, [&](auto of) {
        using T = decltype(of);
        constexpr int N = full<T>, V = most_per_lane;
        if (vector_of(a) == 1)
            return a.mean ? launch<T, 1, V, true>(a, l, stream_of(stream))
                          : launch<T, 1, V, false>(a, l, stream_of(stream));
        return a.mean ? launch_layout<T, N, true>(a, l, stream_of(stream))
                      : launch_layout<T, N, false>(a, l, stream_of(stream));
    });
}

} // namespace
} // namespace dtp

extern "C" int dtp_cuda_norm(void *self, const struct dtp_norm_args *a, void *stream)
{
    (void)self;
    if (a->rows == 0)
        return 0;
    return dtp::launch_any(*a, dtp::forward_layout(a->width / dtp::vector_of(*a)), stream);
}

extern "C" int dtp_cuda_norm_backward(void *self, const struct dtp_norm_backward_args *a, void *stream)
{
    (void)self;
    if (a->rows == 0)
        return 0;
    dtp::layout l = dtp::backward_layout(a->width / dtp::vector_of(*a));
    int status = dtp::launch_any(*a, l, stream);
    if (status || !a->weight_gradient)
        return status;
    dtp::partial_sums sums = {{a->workspace, a->workspace + (uint64_t)DTP_PARTIAL_SUM_ROWS * a->width},
                              {a->weight_gradient, a->bias_gradient},
                              dtp::backward_blocks(a->rows, l),
                              a->width,
                              a->gradient_element,
                              a->accumulate};
    return dtp::launch_add_partials(sums, a->mean && a->bias_gradient ? 2 : 1, dtp::stream_of(stream));
}
