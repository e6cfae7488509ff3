/* The soft cap c of a number: c tanh(x / c), which stays within +-c (Bello et al. 2016; Gemma 2 caps logits and scores
 * so). In double: the reference's loss and attention share it. 0 caps nothing. */
#ifndef DTP_SOFT_CAP_H
#define DTP_SOFT_CAP_H

#include <math.h>

static inline double dtp_soft_cap(double x, double cap)
{
    return cap > 0 ? cap * tanh(x / cap) : x;
}

/* Its derivative, by its value. */
static inline double dtp_soft_cap_slope(double capped, double cap)
{
    return cap > 0 ? 1 - capped / cap * (capped / cap) : 1;
}

#endif
