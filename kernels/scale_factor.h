/* What numbers whose largest magnitude is `largest` are multiplied by before they become E4M3: the largest power of two
 * that does not take it beyond 448. The scale is its inverse. Of rows as torchao has it (float8_utils.py,
 * amax_to_scale and _round_scale_down_to_power_of_2: the quotient of 448 and a bf16 number is never so near below a
 * power of two that its rounding would matter), of blocks as Transformer Engine (compute_scale_from_amax in
 * recipe_common.cuh with force_pow_2_scales: 1 for zeros). */
#ifndef DTP_SCALE_FACTOR_H
#define DTP_SCALE_FACTOR_H

#include "kernels/kernels.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define DTP_SCALE_LEAST_AMAX 1e-12f
#define DTP_SCALE_LARGEST 448.0f

DTP_ON_DEVICE static inline float dtp_quotient(float a, float b)
{
#ifdef __CUDA_ARCH__
    return __fdiv_rn(a, b);
#else
    return a / b;
#endif
}

DTP_ON_DEVICE static inline float dtp_power_of_two_below(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits &= 0xFF800000u;
    memcpy(&value, &bits, sizeof bits);
    return value;
}

DTP_ON_DEVICE static inline float dtp_scale_factor(enum dtp_scaling scaling, float largest)
{
    if (scaling == DTP_SCALED_ROWS || scaling == DTP_SCALED_ALIKE)
        return dtp_power_of_two_below(dtp_quotient(DTP_SCALE_LARGEST, fmaxf(largest, DTP_SCALE_LEAST_AMAX)));
    if (!(largest > 0) || largest > FLT_MAX)
        return 1;
    return dtp_power_of_two_below(fminf(dtp_quotient(DTP_SCALE_LARGEST, largest), FLT_MAX));
}

/* The same of a whole tensor by what was largest in earlier steps (Transformer Engine's delayed_scaling.cu, margin 0),
 * no power of two. */
DTP_ON_DEVICE static inline float dtp_delayed_factor(float most, float largest)
{
    return largest > 0 ? fminf(dtp_quotient(most, largest), FLT_MAX) : 1;
}

#endif
