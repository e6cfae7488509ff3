/* GELU in the tanh form (Hendrycks & Gimpel 2016), which is also what cuBLASLt's epilogues compute. In double: the
 * reference's activation and its matmul share it. */
#ifndef DTP_GELU_H
#define DTP_GELU_H

#include <math.h>

#define DTP_GELU_SLOPE 0.7978845608028654 /* sqrt(2 / pi) */
#define DTP_GELU_CUBE 0.044715

static inline double dtp_gelu(double x)
{
    return 0.5 * x * (1 + tanh(DTP_GELU_SLOPE * (x + DTP_GELU_CUBE * x * x * x)));
}

static inline double dtp_gelu_slope(double x)
{
    double t = tanh(DTP_GELU_SLOPE * (x + DTP_GELU_CUBE * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * DTP_GELU_SLOPE * (1 + 3 * DTP_GELU_CUBE * x * x);
}

#endif
