/* Attention with linear biases (Press et al. 2022, arXiv:2108.12409): to the score of a key so many tokens back is
 * added that distance times a slope of the head, negative. Slopes are 2^(-8 / n), 2^(-16 / n), ... of the first n
 * heads, n the largest power of two that there is, of the others every other slope of 2 n heads from the first on, as
 * in Transformers' build_alibi_tensor (modeling_bloom.py) and Baichuan's _get_interleave. MPT's gen_slopes orders them
 * otherwise where heads are no power of two; its models have 32 and 64. CUDA kernels and the reference share it. */
#ifndef DTP_ALIBI_H
#define DTP_ALIBI_H

#include <math.h>
#include <stdint.h>

#ifdef __CUDACC__
#define DTP_ON_BOTH __host__ __device__
#else
#define DTP_ON_BOTH
#endif

static inline DTP_ON_BOTH float dtp_alibi_slope(uint32_t head, uint32_t heads)
{
    uint32_t n = 1;
    while (2 * n <= heads)
        n *= 2;
    float place = head < n ? (float)(head + 1) : (float)(head - n) + 0.5f;
    return exp2f(-8.0f * place / (float)n);
}

#endif
