#include "kernels/activate.h"
#include "kernels/element.h"

static double input_at(const void *up, enum dtp_element element, bool stored, uint64_t at)
{
    return dtp_load(up, stored ? DTP_ELEMENT_E4M3 : element, at);
}

int dtp_reference_activation(void *self, const struct dtp_activation_args *a, void *stream)
{
    (void)self, (void)stream;
    uint32_t columns = dtp_is_gated(a->kind) ? 2 * a->width : a->width;
    for (uint64_t i = 0; i < a->rows; i++)
        for (uint32_t j = 0; j < a->width; j++) {
            double x = input_at(a->up, a->element, a->up_is_stored, i * columns + j), result;
            result = dtp_activate(a->kind, x).value;
            if (dtp_is_gated(a->kind)) {
                double up = input_at(a->up, a->element, a->up_is_stored, i * columns + a->width + j);
                result *= dtp_gated(a->kind, up).value;
            }
            dtp_store(a->result, a->element, i * a->width + j, result);
        }
    for (uint64_t i = 0; a->stored && i < a->rows * columns; i++)
        dtp_store(a->stored, DTP_ELEMENT_E4M3, i, dtp_load(a->up, a->element, i));
    dtp_raise_amax(a->amax, a->result, a->element, 0, a->rows * a->width);
    return 0;
}

static void gated_backward(const struct dtp_activation_backward_args *a, uint64_t i, uint32_t j)
{
    uint64_t at = i * 2 * a->width + j;
    double gradient = dtp_load(a->gradient, a->element, i * a->width + j);
    struct dtp_activated gate = dtp_activate(a->kind, input_at(a->up, a->element, a->up_is_stored, at));
    struct dtp_activated up = dtp_gated(a->kind, input_at(a->up, a->element, a->up_is_stored, at + a->width));
    dtp_store(a->up_gradient, a->element, at, gradient * up.value * gate.slope);
    dtp_store(a->up_gradient, a->element, at + a->width, gradient * gate.value * up.slope);
    if (a->result)
        dtp_store(a->result, a->element, i * a->width + j, gate.value * up.value);
}

static void plain_backward(const struct dtp_activation_backward_args *a, uint64_t at)
{
    double gradient = dtp_load(a->gradient, a->element, at), x = input_at(a->up, a->element, a->up_is_stored, at);
    dtp_store(a->up_gradient, a->element, at, gradient * dtp_activate(a->kind, x).slope);
    if (a->result)
        dtp_store(a->result, a->element, at, dtp_activate(a->kind, x).value);
}

int dtp_reference_activation_backward(void *self, const struct dtp_activation_backward_args *a, void *stream)
{
    (void)self, (void)stream;
    for (uint64_t i = 0; i < a->rows; i++)
        for (uint32_t j = 0; j < a->width; j++)
            if (dtp_is_gated(a->kind))
                gated_backward(a, i, j);
            else
                plain_backward(a, i * a->width + j);
    dtp_raise_amax(a->amax, a->up_gradient, a->element, 0, (dtp_is_gated(a->kind) ? 2 : 1) * a->rows * a->width);
    return 0;
}
