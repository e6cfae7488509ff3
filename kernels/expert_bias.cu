#include "kernels/vector.cuh"

/* Biases of experts: a block a row where rows are written or weights have a gradient. The gradient of a bias is a
 * block's for a few columns of one expert, whose rows eight slices of it share; their sums are added in the slices'
 * order. */
namespace dtp
{
namespace
{

constexpr int threads = 256, slices = 8;

template <typename T, int N> __global__ void __launch_bounds__(threads) add_bias(struct dtp_expert_bias_args a)
{
    const uint64_t row = blockIdx.x;
    const struct dtp_routes routes = dtp_routes_at((void *)a.routes, a.tokens * a.chosen);
    const int32_t whose = routes.order[row];
    const float weight = a.weights ? a.weights[whose] : 1.0f;
    const uint32_t bias = (uint32_t)routes.expert[whose] * a.width;
    T *at = (T *)a.rows + row * a.width;
    for (uint32_t i = threadIdx.x * N; i < a.width; i += threads * N) {
        packed<T, N> x = load<N>(at + i);
        float added[N];
        read_weights<N>(added, a.bias, a.bias_element, bias + i);
#pragma unroll
        for (int e = 0; e < N; e++)
            added[e] = x[e] + weight * added[e];
        store(at + i, added);
    }
}

template <typename T, int N>
__global__ void __launch_bounds__(threads) weight_back(struct dtp_expert_bias_backward_args a)
{
    const uint64_t row = blockIdx.x;
    const struct dtp_routes routes = dtp_routes_at((void *)a.routes, a.tokens * a.chosen);
    const int32_t whose = routes.order[row];
    const uint32_t first = (uint32_t)routes.expert[whose] * a.width;
    double sum = 0;
    for (uint32_t i = threadIdx.x * N; i < a.width; i += threads * N) {
        packed<T, N> gradient = load<N>((const T *)a.gradient + row * a.width + i);
        float bias[N], part = 0;
        read_weights<N>(bias, a.bias, a.bias_element, first + i);
#pragma unroll
        for (int e = 0; e < N; e++)
            part += gradient[e] * bias[e];
        sum += (double)part;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        a.weight_gradient[whose] = (float)sum;
}

template <typename T, int N>
__global__ void __launch_bounds__(threads) bias_back(const __grid_constant__ struct dtp_expert_bias_backward_args a)
{
    __shared__ float of_slice[slices][32 * N];
    const uint32_t slice = threadIdx.x / 32, lane = threadIdx.x % 32, expert = blockIdx.y;
    const uint32_t column = (blockIdx.x * 32 + lane) * N;
    const struct dtp_routes routes = dtp_routes_at((void *)a.routes, a.tokens * a.chosen);
    const int32_t end = routes.starts[expert + 1];
    float sum[N] = {};
    if (column < a.width)
#pragma unroll 4
        for (int32_t row = routes.starts[expert] + (int32_t)slice; row < end; row += slices) {
            const packed<T, N> gradient = load<N>((const T *)a.gradient + (uint64_t)row * a.width + column);
            const float weight = a.weights ? a.weights[routes.order[row]] : 1.0f;
#pragma unroll
            for (int e = 0; e < N; e++)
                sum[e] += weight * gradient[e];
        }
#pragma unroll
    for (int e = 0; e < N; e++)
        of_slice[slice][lane * N + e] = sum[e];
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < 32 * N && blockIdx.x * 32 * N + i < a.width; i += threads) {
        const uint64_t at = (uint64_t)expert * a.width + blockIdx.x * 32 * N + i;
        float all = 0;
        for (int s = 0; s < slices; s++)
            all += of_slice[s][i];
        store_any(a.bias_gradient, a.gradient_element, at,
                  all + (a.accumulate ? load_any(a.bias_gradient, a.gradient_element, at) : 0.0f));
    }
}

/* 32-bit places of biases, and of rows in grids. */
template <typename Arguments> bool fits(const Arguments &a)
{
    return a.tokens * a.chosen <= INT32_MAX && a.experts >= 1 && a.experts <= DTP_ROUTER_EXPERTS &&
           (uint64_t)a.experts * a.width <= UINT32_MAX;
}

template <typename T, int N> int launch(const struct dtp_expert_bias_args &a, cudaStream_t stream)
{
    add_bias<T, N><<<(unsigned)(a.tokens * a.chosen), threads, 0, stream>>>(a);
    return launched();
}

template <typename T, int N> int launch(const struct dtp_expert_bias_backward_args &a, cudaStream_t stream)
{
    bias_back<T, N><<<dim3((a.width + 32 * N - 1) / (32 * N), a.experts), threads, 0, stream>>>(a);
    if (a.weight_gradient)
        weight_back<T, N><<<(unsigned)(a.tokens * a.chosen), threads, 0, stream>>>(a);
    return launched();
}

template <typename Arguments> int launch_any(const Arguments &a, void *stream)
{
    if (a.tokens == 0 || a.width == 0)
        return 0;
    if (!fits(a))
        return (int)cudaErrorInvalidValue;
    return with_element(a.element, [&](auto of) {
        using T = decltype(of);
        return a.width % full<T> ? launch<T, 1>(a, stream_of(stream)) : launch<T, full<T>>(a, stream_of(stream));
    });
}

} // namespace
} // namespace dtp

extern "C" int dtp_cuda_expert_bias(void *self, const struct dtp_expert_bias_args *a, void *stream)
{
    (void)self;
    return dtp::launch_any(*a, stream);
}

extern "C" int dtp_cuda_expert_bias_backward(void *self, const struct dtp_expert_bias_backward_args *a, void *stream)
{
    (void)self;
    return dtp::launch_any(*a, stream);
}
