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
    case DTP_ACTIVATION_SWIGLU_CLAMPED: {
        const double alpha = (double)DTP_SWIGLU_CLAMPED_ALPHA, limit = (double)DTP_SWIGLU_CLAMPED_LIMIT;
        const double gate = x > limit ? limit : x, open = dtp_sigmoid(alpha * gate);
        return (struct dtp_activated){gate * open, x > limit ? 0 : open * (1 + alpha * gate * (1 - open))};
    }
    case DTP_ACTIVATION_RELU: break;
    }
    return (struct dtp_activated){fmax(x, 0), x > 0};
}

static inline bool dtp_is_gated(enum dtp_activation_kind kind)
{
    return kind == DTP_ACTIVATION_SWIGLU || kind == DTP_ACTIVATION_GEGLU || kind == DTP_ACTIVATION_SWIGLU_CLAMPED;
}

/* What the gate's activation is multiplied by, of gated kinds. */
static inline struct dtp_activated dtp_gated(enum dtp_activation_kind kind, double up)
{
    const double limit = (double)DTP_SWIGLU_CLAMPED_LIMIT;
    if (kind != DTP_ACTIVATION_SWIGLU_CLAMPED)
        return (struct dtp_activated){up, 1};
    return up > limit    ? (struct dtp_activated){limit + 1, 0}
           : up < -limit ? (struct dtp_activated){1 - limit, 0}
                         : (struct dtp_activated){up + 1, 1};
}

#endif
