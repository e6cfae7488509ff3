#include "kernels/amax.cuh"

#include <cuda_fp8.h>

/* Every vector of the result is one thread's: what it reads, it overwrites later if at all, so that both gradients may
 * lie on their inputs. */
namespace dtp
{
namespace
{

constexpr int threads = 256;

/* tanh GELU as x * sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3): (1 + tanh u) / 2 is that sigmoid, without the
 * cancellation of 1 + tanh u at negative x. */
__device__ float gelu_gate(float x)
{
    return sigmoid(1.5957691216057308f * x * (1.0f + 0.044715f * x * x));
}

template <enum dtp_activation_kind KIND>
constexpr bool is_gated =
    KIND == DTP_ACTIVATION_SWIGLU || KIND == DTP_ACTIVATION_GEGLU || KIND == DTP_ACTIVATION_SWIGLU_CLAMPED;

/* result, slope: of silu, gelu and relu at x. */
template <enum dtp_activation_kind KIND> __device__ float2 activate(float x)
{
    if constexpr (KIND == DTP_ACTIVATION_SWIGLU) {
        float s = sigmoid(x), silu = x * s;
        return make_float2(silu, s + silu * (1 - s));
    }
    if constexpr (KIND == DTP_ACTIVATION_SWIGLU_CLAMPED)
        return clamped_gate(x);
    if constexpr (KIND == DTP_ACTIVATION_RELU)
        return make_float2(x > 0 ? x : 0.0f * x, x > 0); /* 0 * x: a NaN stays one */
    float s = gelu_gate(x);
    return make_float2(x * s, s + x * s * (1 - s) * 1.5957691216057308f * (1.0f + 3 * 0.044715f * x * x));
}

/* N numbers of an input, of elements T or, where it was stored, of E4M3. */
template <typename T, int N> __device__ void read(float (&to)[N], const void *from, bool stored, uint64_t at)
{
    if (stored) {
        packed<uint8_t, N> values = *reinterpret_cast<const packed<uint8_t, N> *>((const uint8_t *)from + at);
#pragma unroll
        for (int e = 0; e < N; e++)
            to[e] = __half2float(__half(__nv_cvt_fp8_to_halfraw(values.element[e], __NV_E4M3)));
        return;
    }
    packed<T, N> values = load<N>((const T *)from + at);
#pragma unroll
    for (int e = 0; e < N; e++)
        to[e] = values[e];
}

/* The same as E4M3; what is beyond the largest of these becomes that one. */
template <int N> __device__ void keep(void *to, uint64_t at, const float (&values)[N])
{
    packed<uint8_t, N> narrow;
#pragma unroll
    for (int e = 0; e < N; e++)
        narrow.element[e] = (uint8_t)__nv_cvt_float_to_fp8(values[e], __NV_SATFINITE, __NV_E4M3);
    *reinterpret_cast<packed<uint8_t, N> *>((uint8_t *)to + at) = narrow;
}

template <typename T, int N, enum dtp_activation_kind KIND>
__global__ void __launch_bounds__(threads) forward(struct dtp_activation_args a, uint32_t vectors)
{
    uint32_t i = blockIdx.x * threads + threadIdx.x;
    const bool beyond = i >= vectors; /* it goes along to the end: what a warp does together, all of it does */
    i = beyond ? vectors - 1 : i;
    constexpr bool gated = is_gated<KIND>;
    uint64_t at = (uint64_t)i * N, row = gated ? i / (a.width / N) : 0;
    const uint64_t from = at + row * a.width; /* a row of `up` is twice as wide */
    float x[N], y[N], result[N];
    read<T>(x, a.up, a.up_is_stored, from);
    if constexpr (gated)
        read<T>(y, a.up, a.up_is_stored, from + a.width);
#pragma unroll
    for (int e = 0; e < N; e++)
        result[e] = gated ? activate<KIND>(x[e]).x * gated_up(KIND, y[e]).x : activate<KIND>(x[e]).x;
    if (!beyond)
        store((T *)a.result + at, result);
    if (!beyond && a.stored) {
        keep(a.stored, from, x);
        if constexpr (gated)
            keep(a.stored, from + a.width, y);
    }
    if (a.amax)
        raise_amax<T>(a.amax, magnitude(result, 0));
}

template <typename T, int N, enum dtp_activation_kind KIND>
__global__ void __launch_bounds__(threads) gated_backward(struct dtp_activation_backward_args a, uint32_t vectors)
{
    uint32_t i = blockIdx.x * threads + threadIdx.x;
    const bool beyond = i >= vectors; /* in place, what it computes may be of what is there before or after */
    i = beyond ? vectors - 1 : i;
    uint64_t at = (uint64_t)i * N, from = at + (uint64_t)(i / (a.width / N)) * a.width;
    packed<T, N> gradient = load<N>((const T *)a.gradient + at);
    float gate[N], up[N], of_gate[N], of_up[N], result[N];
    read<T>(gate, a.up, a.up_is_stored, from);
    read<T>(up, a.up, a.up_is_stored, from + a.width);
#pragma unroll
    for (int e = 0; e < N; e++) {
        float2 value_and_slope = activate<KIND>(gate[e]), times = gated_up(KIND, up[e]);
        of_gate[e] = gradient[e] * times.x * value_and_slope.y;
        of_up[e] = gradient[e] * value_and_slope.x * times.y;
        result[e] = value_and_slope.x * times.x;
    }
    if (!beyond) {
        store((T *)a.up_gradient + from, of_gate);
        store((T *)a.up_gradient + from + a.width, of_up);
        if (a.result)
            store((T *)a.result + at, result);
    }
    if (a.amax)
        raise_amax<T>(a.amax, beyond ? 0.0f : magnitude(of_gate, magnitude(of_up, 0)));
}

template <typename T, int N, enum dtp_activation_kind KIND>
__global__ void __launch_bounds__(threads) plain_backward(struct dtp_activation_backward_args a, uint32_t vectors)
{
    uint32_t i = blockIdx.x * threads + threadIdx.x;
    const bool beyond = i >= vectors;
    i = beyond ? vectors - 1 : i;
    uint64_t at = (uint64_t)i * N;
    packed<T, N> gradient = load<N>((const T *)a.gradient + at);
    float x[N], of_x[N], result[N];
    read<T>(x, a.up, a.up_is_stored, at);
#pragma unroll
    for (int e = 0; e < N; e++) {
        float2 value_and_slope = activate<KIND>(x[e]);
        result[e] = value_and_slope.x;
        of_x[e] = gradient[e] * value_and_slope.y;
    }
    if (!beyond) {
        store((T *)a.up_gradient + at, of_x);
        if (a.result)
            store((T *)a.result + at, result);
    }
    if (a.amax)
        raise_amax<T>(a.amax, beyond ? 0.0f : magnitude(of_x, 0));
}

template <typename T, int N> void launch(const struct dtp_activation_args &a, uint64_t vectors, cudaStream_t stream)
{
    unsigned blocks = blocks_for(vectors, threads);
    if (a.kind == DTP_ACTIVATION_SWIGLU)
        forward<T, N, DTP_ACTIVATION_SWIGLU><<<blocks, threads, 0, stream>>>(a, (uint32_t)vectors);
    else if (a.kind == DTP_ACTIVATION_GEGLU)
        forward<T, N, DTP_ACTIVATION_GEGLU><<<blocks, threads, 0, stream>>>(a, (uint32_t)vectors);
    else if (a.kind == DTP_ACTIVATION_SWIGLU_CLAMPED)
        forward<T, N, DTP_ACTIVATION_SWIGLU_CLAMPED><<<blocks, threads, 0, stream>>>(a, (uint32_t)vectors);
    else if (a.kind == DTP_ACTIVATION_GELU)
        forward<T, N, DTP_ACTIVATION_GELU><<<blocks, threads, 0, stream>>>(a, (uint32_t)vectors);
    else
        forward<T, N, DTP_ACTIVATION_RELU><<<blocks, threads, 0, stream>>>(a, (uint32_t)vectors);
}

template <typename T, int N>
void launch(const struct dtp_activation_backward_args &a, uint64_t vectors, cudaStream_t stream)
{
    unsigned blocks = blocks_for(vectors, threads);
    if (a.kind == DTP_ACTIVATION_SWIGLU)
        gated_backward<T, N, DTP_ACTIVATION_SWIGLU><<<blocks, threads, 0, stream>>>(a, (uint32_t)vectors);
    else if (a.kind == DTP_ACTIVATION_GEGLU)
        gated_backward<T, N, DTP_ACTIVATION_GEGLU><<<blocks, threads, 0, stream>>>(a, (uint32_t)vectors);
    else if (a.kind == DTP_ACTIVATION_SWIGLU_CLAMPED)
        gated_backward<T, N, DTP_ACTIVATION_SWIGLU_CLAMPED><<<blocks, threads, 0, stream>>>(a, (uint32_t)vectors);
    else if (a.kind == DTP_ACTIVATION_GELU)
        plain_backward<T, N, DTP_ACTIVATION_GELU><<<blocks, threads, 0, stream>>>(a, (uint32_t)vectors);
    else
        plain_backward<T, N, DTP_ACTIVATION_RELU><<<blocks, threads, 0, stream>>>(a, (uint32_t)vectors);
}

/* Whole vectors where rows hold them, else element by element. */
template <typename Arguments> int launch_either(const Arguments &a, void *stream)
{
    if (a.rows == 0 || a.width == 0)
        return 0;
    return with_element(a.element, [&](auto of) {
        using T = decltype(of);
        uint64_t elements = a.rows * a.width, per_vector = a.width % full<T> == 0 ? full<T> : 1;
        if (elements / per_vector > UINT32_MAX)
            return (int)cudaErrorInvalidValue;
        if (per_vector == 1)
            launch<T, 1>(a, elements, stream_of(stream));
        else
            launch<T, full<T>>(a, elements / per_vector, stream_of(stream));
        return launched();
    });
}

} // namespace
} // namespace dtp

extern "C" int dtp_cuda_activation(void *self, const struct dtp_activation_args *a, void *stream)
{
    (void)self;
    return dtp::launch_either(*a, stream);
}

extern "C" int dtp_cuda_activation_backward(void *self, const struct dtp_activation_backward_args *a, void *stream)
{
    (void)self;
    return dtp::launch_either(*a, stream);
}
