#include "kernels/partial_sums.cuh"

/* A head of a token's result is a warp's; of gradients a block's warps share the heads, each its own ones, so that sums
 * over tokens take no atomics. */
namespace dtp
{
namespace
{

constexpr int threads = 256, warps = threads / 32;

/* Place of the log-sum-exp of head `row % heads` of token `row / heads`. */
__device__ uint64_t statistic(uint64_t row, uint32_t sequence, uint32_t heads)
{
    const uint64_t token = row / heads;
    return (token / sequence * heads + row % heads) * sequence + token % sequence;
}

template <typename T, int N> __global__ void __launch_bounds__(threads) forward(struct dtp_sinks_args a)
{
    const uint64_t row = (uint64_t)blockIdx.x * warps + threadIdx.x / 32;
    const uint32_t lane = threadIdx.x % 32;
    if (row >= (uint64_t)a.batch * a.sequence * a.heads)
        return;
    float *place = &a.log_sum_exp[statistic(row, a.sequence, a.heads)];
    const float sink = load_any(a.sinks, a.sinks_element, row % a.heads), without = *place;
    const float largest = fmaxf(sink, without);
    const float with = largest + log1pf(expf(fminf(sink, without) - largest)), factor = expf(without - with);
    T *result = (T *)a.result + row * a.head_dim;
    for (uint32_t i = lane * N; i < a.head_dim; i += 32 * N) {
        packed<T, N> x = load<N>(result + i);
        float made[N];
#pragma unroll
        for (int e = 0; e < N; e++)
            made[e] = x[e] * factor;
        store(result + i, made);
    }
    __syncwarp(); /* all lanes have read it */
    if (lane == 0)
        *place = with;
}

template <typename T, int N> __global__ void __launch_bounds__(threads) backward(struct dtp_sinks_backward_args a)
{
    extern __shared__ float sums[]; /* [heads] */
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint64_t tokens = (uint64_t)a.batch * a.sequence;
    for (uint32_t head = threadIdx.x; head < a.heads; head += threads)
        sums[head] = 0;
    __syncthreads();
    for (uint64_t token = blockIdx.x; token < tokens; token += gridDim.x)
        for (uint32_t head = warp; head < a.heads; head += warps) {
            const uint64_t row = token * a.heads + head, first = row * a.head_dim;
            float taken_back = 0;
            for (uint32_t i = lane * N; i < a.head_dim; i += 32 * N) {
                packed<T, N> x = load<N>((const T *)a.result + first + i);
                packed<T, N> gradient = load<N>((const T *)a.gradient + first + i);
#pragma unroll
                for (int e = 0; e < N; e++)
                    taken_back += x[e] * gradient[e];
            }
            taken_back = warp_sum(taken_back);
            if (lane == 0)
                sums[head] -= taken_back * expf(load_any(a.sinks, a.sinks_element, head) -
                                                a.log_sum_exp[statistic(row, a.sequence, a.heads)]);
        }
    __syncthreads();
    for (uint32_t head = threadIdx.x; head < a.heads; head += threads)
        a.workspace[(uint64_t)blockIdx.x * a.heads + head] = sums[head];
}

template <typename T, int N> int launch(const struct dtp_sinks_args &a, cudaStream_t stream)
{
    forward<T, N><<<blocks_for((uint64_t)a.batch * a.sequence * a.heads, warps), threads, 0, stream>>>(a);
    return launched();
}

template <typename T, int N> int launch(const struct dtp_sinks_backward_args &a, cudaStream_t stream)
{
    const uint64_t tokens = (uint64_t)a.batch * a.sequence;
    const unsigned blocks = (unsigned)(tokens < DTP_PARTIAL_SUM_ROWS ? tokens : DTP_PARTIAL_SUM_ROWS);
    if (a.heads > 8192) /* whose sums lie in shared memory */
        return (int)cudaErrorInvalidValue;
    backward<T, N><<<blocks, threads, a.heads * sizeof(float), stream>>>(a);
    const int status = launched();
    if (status)
        return status;
    const partial_sums sums = {
        {a.workspace, nullptr}, {a.sinks_gradient, nullptr}, blocks, a.heads, a.gradient_element, a.accumulate};
    return launch_add_partials(sums, 1, stream);
}

template <typename Arguments> int launch_any(const Arguments &a, void *stream)
{
    if (a.batch == 0 || a.sequence == 0 || a.heads == 0 || a.head_dim == 0)
        return 0;
    return with_element(a.element, [&](auto of) {
        using T = decltype(of);
        return a.head_dim % full<T> ? launch<T, 1>(a, stream_of(stream)) : launch<T, full<T>>(a, stream_of(stream));
    });
}

} // namespace
} // namespace dtp

extern "C" int dtp_cuda_sinks(void *self, const struct dtp_sinks_args *a, void *stream)
{
    (void)self;
    return dtp::launch_any(*a, stream);
}

extern "C" int dtp_cuda_sinks_backward(void *self, const struct dtp_sinks_backward_args *a, void *stream)
{
    (void)self;
    return dtp::launch_any(*a, stream);
}
