/* Codes of numbers in 8 bits (struct dtp_pack8_args), the same on the host and on a GPU: round to even, no product and
 * sum in one rounding. */
#ifndef DTP_PACK8_H
#define DTP_PACK8_H

#include "kernels/kernels.h"

#include <math.h>

#ifdef __CUDACC__
#define DTP_PACK8_INLINE static __host__ __device__ inline
#else
#define DTP_PACK8_INLINE static inline
#endif

DTP_PACK8_INLINE uint64_t dtp_pack8_runs(uint64_t count)
{
    return (count + DTP_PACK8_RUN - 1) / DTP_PACK8_RUN;
}

/* The step between codes of a run, and the code of 0. PyTorch's step is 2^-23 at least, which loses gradients that are
 * small beside that whole; here it is what the run has, and 1 where that is nothing. */
struct dtp_pack8_codes {
    float step, zero;
};
DTP_PACK8_INLINE struct dtp_pack8_codes dtp_pack8_codes(float least, float largest)
{
    struct dtp_pack8_codes codes = {(largest - least) / 255.0f, 0};
    if (codes.step <= 0)
        codes.step = 1;
    codes.zero = -rintf(least / codes.step);
    return codes;
}

DTP_PACK8_INLINE uint8_t dtp_pack8_code(struct dtp_pack8_codes codes, float value)
{
    float code = rintf(value / codes.step) + codes.zero;
    return (uint8_t)(code > 255 ? 255 : code > 0 ? code : 0);
}

DTP_PACK8_INLINE float dtp_pack8_value(struct dtp_pack8_codes codes, uint8_t code)
{
    return codes.step * ((float)code - codes.zero);
}

#endif
