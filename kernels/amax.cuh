/* The largest magnitude of what a kernel writes, for whoever casts it to fp8. */
#ifndef DTP_AMAX_CUH
#define DTP_AMAX_CUH

#include "kernels/vector.cuh"

namespace dtp
{

template <int N> __device__ inline float magnitude(const float (&values)[N], float largest)
{
#pragma unroll
    for (int e = 0; e < N; e++)
        largest = fmaxf(largest, fabsf(values[e]));
    return largest;
}

/* Once for a warp, all of whose threads come here: magnitudes are no less than zero, so that their bits are in order of
 * size, and a maximum is the same in whatever order it is taken. Most warps find a larger one there already. Rounding
 * keeps an order too, so that of the largest is the largest of the rounded. */
template <typename T> __device__ inline void raise_amax(float *amax, float largest)
{
    largest = warp_max(largest);
    if (threadIdx.x % 32 != 0)
        return;
    largest = to_float(from_float<T>(largest));
    if (largest > *(volatile float *)amax)
        atomicMax((int *)amax, __float_as_int(largest));
}

} // namespace dtp

#endif
