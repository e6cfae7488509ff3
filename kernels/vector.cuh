/* Elements in registers: N neighbours of a tensor, read and written as 16-byte words where they fill one, computed with
 * as float. What each kernel needs besides: choosing a type at run time, and sums across a warp and a block. */
#ifndef DTP_VECTOR_CUH
#define DTP_VECTOR_CUH

#include "kernels/kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <stdint.h>

namespace dtp
{

using bf16 = __nv_bfloat16;
using fp16 = __half;

template <typename A, typename B> constexpr bool same = false;
template <typename A> constexpr bool same<A, A> = true;

/* How many elements of T a 16-byte access carries. */
template <typename T> constexpr int full = 16 / (int)sizeof(T);

__device__ inline float to_float(float value)
{
    return value;
}

__device__ inline float to_float(bf16 value)
{
    return __bfloat162float(value);
}

__device__ inline float to_float(fp16 value)
{
    return __half2float(value);
}

template <typename T> __device__ inline T from_float(float value);
template <> __device__ inline float from_float<float>(float value)
{
    return value;
}
template <> __device__ inline bf16 from_float<bf16>(float value)
{
    return __float2bfloat16_rn(value);
}
template <> __device__ inline fp16 from_float<fp16>(float value)
{
    return __float2half_rn(value);
}

/* Two neighbours rounded by one instruction, as they lie in a word. */
template <typename T> __device__ inline uint32_t pair_of(float low, float high);
template <> __device__ inline uint32_t pair_of<bf16>(float low, float high)
{
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<uint32_t *>(&pair);
}
template <> __device__ inline uint32_t pair_of<fp16>(float low, float high)
{
    __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<uint32_t *>(&pair);
}

template <typename T, int N> struct alignas(N * sizeof(T) > 16 ? 16 : N * sizeof(T)) packed {
    T element[N];

    __device__ float operator[](int i) const
    {
        return to_float(element[i]);
    }

    __device__ void set(const float (&values)[N])
    {
        if constexpr (sizeof(T) == 2 && N % 2 == 0) {
            uint32_t *words = reinterpret_cast<uint32_t *>(element);
#pragma unroll
            for (int i = 0; i < N; i += 2)
                words[i / 2] = pair_of<T>(values[i], values[i + 1]);
        } else {
#pragma unroll
            for (int i = 0; i < N; i++)
                element[i] = from_float<T>(values[i]);
        }
    }
};

template <int N, typename T> __device__ inline packed<T, N> load(const T *from)
{
    packed<T, N> values;
    if constexpr (sizeof values % 16 == 0) {
#pragma unroll
        for (int i = 0; i < (int)sizeof values / 16; i++)
            reinterpret_cast<uint4 *>(&values)[i] = reinterpret_cast<const uint4 *>(from)[i];
    } else {
        values = *reinterpret_cast<const packed<T, N> *>(from);
    }
    return values;
}

/* The same for what is read once: it passes by the L1, which keeps what is read again. */
template <int N, typename T> __device__ inline packed<T, N> load_once(const T *from)
{
    packed<T, N> values;
    if constexpr (sizeof values == 16) {
        uint4 &v = reinterpret_cast<uint4 &>(values);
        asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "l"(from));
    } else {
        values = load<N>(from);
    }
    return values;
}

template <typename T, int N> __device__ inline void store(T *to, const packed<T, N> &values)
{
    if constexpr (sizeof values % 16 == 0) {
#pragma unroll
        for (int i = 0; i < (int)sizeof values / 16; i++)
            reinterpret_cast<uint4 *>(to)[i] = reinterpret_cast<const uint4 *>(&values)[i];
    } else {
        *reinterpret_cast<packed<T, N> *>(to) = values;
    }
}

template <typename T, int N> __device__ inline void store(T *to, const float (&values)[N])
{
    packed<T, N> rounded;
    rounded.set(values);
    store(to, rounded);
}

/* Copies of 16 bytes to shared memory that go on while a thread computes; `from` is not read where `exists` is false,
 * zeros are written then. A thread may wait until all but its last PENDING groups have arrived; others see them after a
 * barrier. */
__device__ inline void copy_async(uint4 *to, const void *from, bool exists = true)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(exists ? 16 : 0)
                 : "memory");
}

__device__ inline void end_of_group()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int PENDING> __device__ inline void wait_for_all_but()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/* One element of a tensor whose type is known at run time only. */
__device__ inline float load_any(const void *values, enum dtp_element element, uint64_t i)
{
    return element == DTP_ELEMENT_BF16   ? to_float(((const bf16 *)values)[i])
           : element == DTP_ELEMENT_FP16 ? to_float(((const fp16 *)values)[i])
                                         : ((const float *)values)[i];
}

__device__ inline void store_any(void *values, enum dtp_element element, uint64_t i, float value)
{
    if (element == DTP_ELEMENT_BF16)
        ((bf16 *)values)[i] = from_float<bf16>(value);
    else if (element == DTP_ELEMENT_FP16)
        ((fp16 *)values)[i] = from_float<fp16>(value);
    else if (element == DTP_ELEMENT_E4M3 || element == DTP_ELEMENT_E5M2)
        ((uint8_t *)values)[i] =
            __nv_cvt_float_to_fp8(value, __NV_SATFINITE, element == DTP_ELEMENT_E4M3 ? __NV_E4M3 : __NV_E5M2);
    else
        ((float *)values)[i] = value;
}

/* Weights of N neighbouring columns, of whatever type they are, and what a norm adds to each. */
template <typename T, int N>
__device__ inline void read_weights_of(float (&to)[N], const void *from, uint32_t column, float offset)
{
    packed<T, N> values = load<N>((const T *)from + column);
#pragma unroll
    for (int e = 0; e < N; e++)
        to[e] = offset + values[e];
}

template <int N>
__device__ inline void read_weights(float (&to)[N], const void *from, enum dtp_element element, uint32_t column,
                                    float offset = 0)
{
    if (element == DTP_ELEMENT_BF16)
        read_weights_of<bf16, N>(to, from, column, offset);
    else if (element == DTP_ELEMENT_FP16)
        read_weights_of<fp16, N>(to, from, column, offset);
    else
        read_weights_of<float, N>(to, from, column, offset);
}

/* Sum over `lanes` neighbours of a warp (a power of two), in every one of them. The butterfly's order is fixed. */
__device__ inline float warp_sum(float value, int lanes = 32)
{
    for (int distance = lanes / 2; distance > 0; distance /= 2)
        value += __shfl_xor_sync(0xFFFFFFFFu, value, distance);
    return value;
}

__device__ inline float warp_max(float value, int lanes = 32)
{
    for (int distance = lanes / 2; distance > 0; distance /= 2)
        value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFu, value, distance));
    return value;
}

__device__ inline double warp_sum(double value)
{
    for (int distance = 16; distance > 0; distance /= 2)
        value += __shfl_xor_sync(0xFFFFFFFFu, value, distance);
    return value;
}

/* Sum over a whole block of at most 1024 threads, in double, in thread 0. */
__device__ inline double block_sum(double value)
{
    __shared__ double of_warp[32];
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    value = warp_sum(value);
    if (lane == 0)
        of_warp[warp] = value;
    __syncthreads();
    value = 0;
    if (threadIdx.x == 0)
        for (unsigned i = 0; i < blockDim.x / 32; i++)
            value += of_warp[i];
    return value;
}

/* 2^x to 2 units in the last place for the arguments here, by the special function unit. */
__device__ inline float exp2_fast(float x)
{
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

constexpr float log2_e = 1.4426950408889634f;

__device__ inline float sigmoid(float x)
{
    return __fdividef(1.0f, 1.0f + exp2_fast(-log2_e * x));
}

/* Of swiglu_clamped, the gate's value and slope; of gated kinds, what that is multiplied by, and its slope. A NaN stays
 * one. */
__device__ inline float2 clamped_gate(float x)
{
    const bool clamped = x > DTP_SWIGLU_CLAMPED_LIMIT;
    const float gate = clamped ? DTP_SWIGLU_CLAMPED_LIMIT : x, open = sigmoid(DTP_SWIGLU_CLAMPED_ALPHA * gate);
    return make_float2(gate * open, clamped ? 0.0f : open * (1 + DTP_SWIGLU_CLAMPED_ALPHA * gate * (1 - open)));
}

__device__ inline float2 gated_up(enum dtp_activation_kind kind, float up)
{
    if (kind != DTP_ACTIVATION_SWIGLU_CLAMPED)
        return make_float2(up, 1);
    const bool above = up > DTP_SWIGLU_CLAMPED_LIMIT, below = up < -DTP_SWIGLU_CLAMPED_LIMIT;
    return make_float2(1 + (above   ? DTP_SWIGLU_CLAMPED_LIMIT
                            : below ? -DTP_SWIGLU_CLAMPED_LIMIT
                                    : up),
                       above || below ? 0.0f : 1.0f);
}

/* tanh to some 2e-7, by the special function unit; where the power is infinite or none it is 1 or -1. */
__device__ inline float tanh_fast(float x)
{
    return 1.0f - __fdividef(2.0f, 1.0f + exp2_fast(2 * log2_e * x));
}

/* cap * tanh(x / cap) and, by that value, its derivative; 0 caps nothing. */
__device__ inline float soft_cap(float x, float cap)
{
    return cap > 0 ? cap * tanh_fast(__fdividef(x, cap)) : x;
}

__device__ inline float soft_cap_slope(float capped, float cap)
{
    return cap > 0 ? 1 - capped / cap * (capped / cap) : 1.0f;
}

/* Calls `body` with a value of the element's type: inside, `decltype` names it. */
template <typename Body> int with_element(enum dtp_element element, Body body)
{
    switch (element) {
    case DTP_ELEMENT_FP32: return body(float{});
    case DTP_ELEMENT_BF16: return body(bf16{});
    case DTP_ELEMENT_FP16: return body(fp16{});
    default: return (int)cudaErrorInvalidValue;
    }
}

/* The same of numbers with fp32's range: moments of gradients, squares among them, which fp16 does not hold. */
template <typename Body> int with_wide_element(enum dtp_element element, Body body)
{
    return element == DTP_ELEMENT_FP32   ? body(float{})
           : element == DTP_ELEMENT_BF16 ? body(bf16{})
                                         : (int)cudaErrorInvalidValue;
}

inline cudaStream_t stream_of(void *stream)
{
    return static_cast<cudaStream_t>(stream);
}

inline int launched()
{
    return (int)cudaGetLastError();
}

inline int multiprocessors()
{
    static const int count = [] {
        int device = 0, found = 0;
        if (cudaGetDevice(&device) || cudaDeviceGetAttribute(&found, cudaDevAttrMultiProcessorCount, device))
            return 1;
        return found;
    }();
    return count;
}

/* Of kernels whose blocks all stand at once and share the rows evenly: one that finds no room until another ends
 * doubles their time. So they leave the SMs that a pipeline's waiting transfer holds, four thread blocks of NCCL's
 * (reports/h200/README.md, What a waiting receive takes); memory is as busy without. */
inline int standing_multiprocessors()
{
    return multiprocessors() > 8 ? multiprocessors() - 4 : multiprocessors();
}

/* Blocks that stand all at once on an H200 but for those SMs, two an SM, of so many rows at once each: as many on every
 * GPU, for their number is the order of the sums over rows. Workspaces have rows for more. */
inline unsigned standing_blocks(uint64_t rows, uint64_t at_once)
{
    constexpr unsigned most = 2 * (132 - 4);
    static_assert(most <= DTP_PARTIAL_SUM_ROWS);
    uint64_t blocks = (rows + at_once - 1) / at_once;
    return blocks < most ? (unsigned)blocks : most;
}

/* Blocks of `threads` for `count` items; 0 where the grid could not hold them, which the launch then refuses. */
inline unsigned blocks_for(uint64_t count, uint64_t threads)
{
    uint64_t blocks = (count + threads - 1) / threads;
    return blocks <= INT32_MAX ? (unsigned)blocks : 0;
}

} // namespace dtp

#endif
