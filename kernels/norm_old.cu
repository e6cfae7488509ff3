#include "partial_sums.cuh"

/* A row lies in the registers of up to 512 threads: it is read once and written once. Blocks walk through rows, so that
 * weights are read once a block, and load the next row before they sum this one where registers suffice for both. */
namespace dtp
{
namespace
{

constexpr unsigned block_threads = 512;

/* How a row is laid out: `lanes` threads of V vectors each; `rows` of them make a block. */
struct layout {
    unsigned lanes, rows, per_lane;
};

/* Single elements, the slow path, have one layout only. */
layout layout_of(uint64_t vectors, int elements)
{
    unsigned per_lane = elements == 1 ? 8 : 1;
    while (vectors > (uint64_t)per_lane * block_threads)
        per_lane *= 2;
    unsigned lanes = (unsigned)((vectors + per_lane - 1) / per_lane + 31) / 32 * 32;
    return {lanes, block_threads / lanes, per_lane};
}

/* Two blocks to a multiprocessor, that one reads while the other sums: at most 64 registers a thread. */
template <int N, int V> constexpr int resident = V *N <= 8 ? 2 : 1;
template <int N, int V> constexpr bool read_ahead = V *N <= 16;

/* Sums over the threads of a row, each getting them. Scratch alternates between two halves: who writes a half again has
 * passed the barrier at which all had read it. */
struct row_sums {
    float2 (*scratch)[16]; /* [2 * rows] */
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
        value = of_warp[0];
        for (unsigned w = 1; w < blockDim.x / 32; w++) {
            value.x += of_warp[w].x;
            value.y += of_warp[w].y;
        }
        return value;
    }

    __device__ float operator()(float value)
    {
        return (*this)(make_float2(value, 0)).x;
    }
};

/* A thread's part of a row or of a vector of weights. */
template <typename T, int N, int V> struct part {
    packed<T, N> of[V];

    __device__ void read(const void *from, uint64_t row, uint32_t width, bool exists)
    {
#pragma unroll
        for (int v = 0; v < V; v++) {
            uint32_t column = (threadIdx.x + v * blockDim.x) * N;
            if (exists && column < width)
                of[v] = load<N>((const T *)from + row * width + column);
            else
#pragma unroll
                for (int e = 0; e < N; e++)
                    of[v].element[e] = from_float<T>(0);
        }
    }
};

template <int N, int V>
__device__ void read_weights(float (&to)[V][N], const void *from, enum dtp_element element, uint32_t width)
{
#pragma unroll
    for (int v = 0; v < V; v++) {
        uint32_t column = (threadIdx.x + v * blockDim.x) * N;
#pragma unroll
        for (int e = 0; e < N; e++)
            to[v][e] = from && column < width ? load_any(from, element, column + e) : 0.0f;
    }
}

template <typename T, int N, int V, bool LAYER>
__global__ void __launch_bounds__(block_threads, resident<N, V>) forward(const __grid_constant__ struct dtp_norm_args a)
{
    __shared__ float2 scratch[2 * block_threads / 32][16];
    row_sums sum{scratch};
    float weight[V][N], bias[V][N];
    read_weights<N, V>(weight, a.weight, a.weight_element, a.width);
    if constexpr (LAYER)
        read_weights<N, V>(bias, a.bias, a.weight_element, a.width);
    const uint64_t stride = (uint64_t)gridDim.x * blockDim.y;
    uint64_t first = (uint64_t)blockIdx.x * blockDim.y; /* of the block's rows: all its threads turn as often */
    part<T, N, V> x, next;
    if constexpr (read_ahead<N, V>)
        next.read(a.x, first + threadIdx.y, a.width, first + threadIdx.y < a.rows);
    for (; first < a.rows; first += stride) {
        uint64_t row = first + threadIdx.y;
        if constexpr (read_ahead<N, V>) {
            x = next;
            next.read(a.x, row + stride, a.width, row + stride < a.rows);
        } else {
            x.read(a.x, row, a.width, row < a.rows);
        }
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
            if ((threadIdx.x + v * blockDim.x) * N < a.width)
#pragma unroll
                for (int e = 0; e < N; e++) {
                    float difference = x.of[v][e] - mean;
                    square += difference * difference;
                }
        float inverse = rsqrtf(sum(square) / (float)a.width + a.epsilon);
        if (row >= a.rows)
            continue;
#pragma unroll
        for (int v = 0; v < V; v++) {
            uint32_t column = (threadIdx.x + v * blockDim.x) * N;
            float result[N];
#pragma unroll
            for (int e = 0; e < N; e++)
                result[e] = (x.of[v][e] - mean) * inverse * weight[v][e] + (LAYER ? bias[v][e] : 0.0f);
            if (column < a.width)
                store((T *)a.result + row * a.width + column, result);
        }
        if (threadIdx.x == 0) {
            a.inverse_deviation[row] = inverse;
            if constexpr (LAYER)
                a.mean[row] = mean;
        }
    }
}

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
__global__ void __launch_bounds__(block_threads, resident<N, V>)
    backward(const __grid_constant__ struct dtp_norm_backward_args a)
{
    __shared__ float2 scratch[2 * block_threads / 32][16];
    extern __shared__ __align__(16) float of_rows[];
    row_sums sum{scratch};
    float weight[V][N], to_weight[V][N] = {}, to_bias[V][N] = {};
    read_weights<N, V>(weight, a.weight, a.weight_element, a.width);
    const uint64_t stride = (uint64_t)gridDim.x * blockDim.y;
    uint64_t first = (uint64_t)blockIdx.x * blockDim.y;
    part<T, N, V> x, gradient, residual, next_x, next_gradient;
    if constexpr (read_ahead<N, V>) {
        next_x.read(a.x, first + threadIdx.y, a.width, first + threadIdx.y < a.rows);
        next_gradient.read(a.gradient, first + threadIdx.y, a.width, first + threadIdx.y < a.rows);
    }
    for (; first < a.rows; first += stride) {
        const uint64_t row = first + threadIdx.y;
        const bool exists = row < a.rows;
        residual.read(a.residual_gradient, row, a.width, exists && a.add_to_residual);
        if constexpr (read_ahead<N, V>) {
            x = next_x, gradient = next_gradient;
            next_x.read(a.x, row + stride, a.width, row + stride < a.rows);
            next_gradient.read(a.gradient, row + stride, a.width, row + stride < a.rows);
        } else {
            x.read(a.x, row, a.width, exists);
            gradient.read(a.gradient, row, a.width, exists);
        }
        const float inverse = exists ? a.inverse_deviation[row] : 0, mean = LAYER && exists ? a.mean[row] : 0;
        float2 sums = {0, 0}; /* of h, of h n */
#pragma unroll
        for (int v = 0; v < V; v++)
#pragma unroll
            for (int e = 0; e < N; e++) {
                float n = (x.of[v][e] - mean) * inverse, g = gradient.of[v][e], h = g * weight[v][e];
                sums.x += LAYER ? h : 0.0f;
                sums.y += h * n;
                to_weight[v][e] += g * n;
                to_bias[v][e] += LAYER ? g : 0.0f;
            }
        sums = sum(sums);
        const float mean_h = sums.x / (float)a.width, mean_hn = sums.y / (float)a.width;
#pragma unroll
        for (int v = 0; v < V; v++) {
            uint32_t column = (threadIdx.x + v * blockDim.x) * N;
            float result[N];
#pragma unroll
            for (int e = 0; e < N; e++) {
                float n = (x.of[v][e] - mean) * inverse, h = gradient.of[v][e] * weight[v][e];
                result[e] = residual.of[v][e] + inverse * (h - (LAYER ? mean_h : 0.0f) - n * mean_hn);
            }
            if (exists && column < a.width)
                store((T *)a.residual_gradient + row * a.width + column, result);
        }
    }
    float *partials = a.workspace + (uint64_t)blockIdx.x * a.width;
    write_partials<N, V>(to_weight, partials, a.width, of_rows);
    if constexpr (LAYER)
        if (a.bias_gradient)
            write_partials<N, V>(to_bias, partials + (uint64_t)DTP_PARTIAL_SUM_ROWS * a.width, a.width, of_rows);
}

template <typename T, int N, int V, bool LAYER>
void launch(const struct dtp_norm_args &a, layout l, cudaStream_t stream)
{
    static const int at_once = [] {
        int blocks = 0;
        (void)cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, forward<T, N, V, LAYER>, block_threads, 0);
        return blocks > 0 ? blocks : 1;
    }();
    uint64_t blocks = (a.rows + l.rows - 1) / l.rows, most = (uint64_t)at_once * multiprocessors();
    forward<T, N, V, LAYER><<<(unsigned)(blocks < most ? blocks : most), dim3(l.lanes, l.rows), 0, stream>>>(a);
}

unsigned backward_blocks(uint64_t rows, layout l)
{
    uint64_t blocks = (rows + l.rows - 1) / l.rows;
    return (unsigned)(blocks < DTP_PARTIAL_SUM_ROWS ? blocks : DTP_PARTIAL_SUM_ROWS);
}

template <typename T, int N, int V, bool LAYER>
void launch(const struct dtp_norm_backward_args &a, layout l, cudaStream_t stream)
{
    size_t shared = l.rows > 1 ? a.width * sizeof(float) : 0;
    backward<T, N, V, LAYER><<<backward_blocks(a.rows, l), dim3(l.lanes, l.rows), shared, stream>>>(a);
}

template <typename T, int N, bool LAYER, typename Arguments>
int launch_layout(const Arguments &a, layout l, cudaStream_t stream)
{
    if (l.per_lane > 8)
        return (int)cudaErrorInvalidValue; /* a row of more than 4096 vectors */
    if (l.per_lane == 8)
        launch<T, N, 8, LAYER>(a, l, stream);
    if constexpr (N > 1) {
        if (l.per_lane == 4)
            launch<T, N, 4, LAYER>(a, l, stream);
        else if (l.per_lane == 2)
            launch<T, N, 2, LAYER>(a, l, stream);
        else if (l.per_lane == 1)
            launch<T, N, 1, LAYER>(a, l, stream);
    }
    return launched();
}

/* Elements a thread reads at a time. */
int vector_of(enum dtp_element element, uint32_t width)
{
    int whole = element == DTP_ELEMENT_BF16 ? full<bf16> : full<float>;
    return width % (unsigned)whole == 0 ? whole : 1;
}

template <typename Arguments> int launch_any(const Arguments &a, cudaStream_t stream)
{
    return with_element(a.element, [&](auto of) {
        using T = decltype(of);
        int elements = vector_of(a.element, a.width);
        layout l = layout_of(a.width / (unsigned)elements, elements);
        if (elements == 1)
            return a.mean ? launch_layout<T, 1, true>(a, l, stream) : launch_layout<T, 1, false>(a, l, stream);
        return a.mean ? launch_layout<T, full<T>, true>(a, l, stream) : launch_layout<T, full<T>, false>(a, l, stream);
    });
}

} // namespace
} // namespace dtp

extern "C" int dtp_cuda_norm(void *self, const struct dtp_norm_args *a, void *stream)
{
    (void)self;
    return a->rows == 0 ? 0 : dtp::launch_any(*a, dtp::stream_of(stream));
}

extern "C" int dtp_cuda_norm_backward(void *self, const struct dtp_norm_backward_args *a, void *stream)
{
    (void)self;
    if (a->rows == 0)
        return 0;
    int status = dtp::launch_any(*a, dtp::stream_of(stream));
    if (status)
        return status;
    int elements = dtp::vector_of(a->element, a->width);
    dtp::partial_sums sums = {{a->workspace, a->workspace + (uint64_t)DTP_PARTIAL_SUM_ROWS * a->width},
                              {a->weight_gradient, a->bias_gradient},
                              dtp::backward_blocks(a->rows, dtp::layout_of(a->width / (unsigned)elements, elements)),
                              a->width,
                              a->gradient_element,
                              a->accumulate};
    return dtp::launch_add_partials(sums, a->mean && a->bias_gradient ? 2 : 1, dtp::stream_of(stream));
}
