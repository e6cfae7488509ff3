#include "kernels/element.h"
#include "kernels/gelu.h"

#include <math.h>

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

int dtp_reference_activation(void *self, const struct dtp_activation_args *a, void *stream)
{
    (void)self, (void)stream;
    uint32_t columns = a->kind == DTP_ACTIVATION_SWIGLU ? 2 * a->width : a->width;
    for (uint64_t i = 0; i < a->rows; i++)
        for (uint32_t j = 0; j < a->width; j++) {
            double x = dtp_load(a->up, a->element, i * columns + j), result;
            if (a->kind == DTP_ACTIVATION_SWIGLU)
                result = x * sigmoid(x) * dtp_load(a->up, a->element, i * columns + a->width + j);
            else
                result = a->kind == DTP_ACTIVATION_GELU ? dtp_gelu(x) : fmax(x, 0);
            dtp_store(a->result, a->element, i * a->width + j, result);
        }
    return 0;
}

/* (gate sigmoid(gate))' = sigmoid (1 + gate (1 - sigmoid)). */
static void swiglu_backward(const struct dtp_activation_backward_args *a, uint64_t i, uint32_t j)
{
    uint64_t at = i * 2 * a->width + j;
    double gradient = dtp_load(a->gradient, a->element, i * a->width + j);
    double gate = dtp_load(a->up, a->element, at), up = dtp_load(a->up, a->element, at + a->width), s = sigmoid(gate);
    dtp_store(a->up_gradient, a->element, at, gradient * up * s * (1 + gate * (1 - s)));
    dtp_store(a->up_gradient, a->element, at + a->width, gradient * gate * s);
    if (a->result)
        dtp_store(a->result, a->element, i * a->width + j, gate * s * up);
}

static void plain_backward(const struct dtp_activation_backward_args *a, uint64_t at)
{
    double gradient = dtp_load(a->gradient, a->element, at), x = dtp_load(a->up, a->element, at);
    bool gelu = a->kind == DTP_ACTIVATION_GELU;
    dtp_store(a->up_gradient, a->element, at, gradient * (gelu ? dtp_gelu_slope(x) : x > 0));
    if (a->result)
        dtp_store(a->result, a->element, at, gelu ? dtp_gelu(x) : fmax(x, 0));
}

int dtp_reference_activation_backward(void *self, const struct dtp_activation_backward_args *a, void *stream)
{
    (void)self, (void)stream;
    for (uint64_t i = 0; i < a->rows; i++)
        for (uint32_t j = 0; j < a->width; j++)
            if (a->kind == DTP_ACTIVATION_SWIGLU)
                swiglu_backward(a, i, j);
            else
                plain_backward(a, i * a->width + j);
    return 0;
}
