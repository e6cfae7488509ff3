/* An activation of one number and its slope there, of the kinds of kernels.h, in double. Of gated kinds that of the
 * gate. Every reference that activates shares it. */
#ifndef DTP_ACTIVATE_H
#define DTP_ACTIVATE_H

#include "kernels/gelu.h"
#include "kernels/kernels.h"

static inline double dtp_sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

struct dtp_activated {
    double value, slope;
};
/* (x sigmoid(x))' = sigmoid (1 + x (1 - sigmoid)). */
static inline struct dtp_activated dtp_activate(enum dtp_activation_kind kind, double x)
{
    switch (kind) {
    case DTP_ACTIVATION_SWIGLU:
        return (struct dtp_activated){x * dtp_sigmoid(x), dtp_sigmoid(x) * (1 + x * (1 - dtp_sigmoid(x)))};
    case DTP_ACTIVATION_GELU:
    case DTP_ACTIVATION_GEGLU: return (struct dtp_activated){dtp_gelu(x), dtp_gelu_slope(x)};
    case DTP_ACTIVATION_RELU: break;
    }
    return (struct dtp_activated){fmax(x, 0), x > 0};
}

#endif
