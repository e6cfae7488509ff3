#include "kernels/element.h"
#include "kernels/scale_factor.h"

#include <math.h>

#define LEAST_AMAX 1e-12f

static void raise_to(float *amax, const void *values, enum dtp_element element, uint64_t i)
{
    float magnitude = fabsf(dtp_load_float(values, element, i));
    *amax = magnitude > *amax ? magnitude : *amax;
}

void dtp_raise_amax(float *amax, const void *values, enum dtp_element element, uint64_t first, uint64_t count)
{
    for (uint64_t i = first; amax && i < first + count; i++)
        raise_to(amax, values, element, i);
}

int dtp_reference_amax(void *self, const struct dtp_amax_args *a, void *stream)
{
    (void)self, (void)stream;
    dtp_raise_amax(a->amax, a->values, a->element, 0, a->count);
    return 0;
}

int dtp_reference_quantize(void *self, const struct dtp_quantize_args *a, void *stream)
{
    (void)self, (void)stream;
    float most = a->result_element == DTP_ELEMENT_E4M3 ? DTP_E4M3_MAX : DTP_E5M2_MAX;
    float scale = a->delayed ? a->scale[1] : most / fmaxf(*a->amax, LEAST_AMAX);
    if (a->delayed)
        dtp_raise_amax(a->amax, a->values, a->element, 0, a->rows * a->columns);
    else
        *a->scale = 1 / scale;
    for (uint64_t i = 0; i < a->rows; i++)
        for (uint64_t j = 0; j < a->columns; j++) {
            float value = dtp_load_float(a->values, a->element, i * a->columns + j) * scale;
            if (a->result)
                dtp_store(a->result, a->result_element, i * a->columns + j, (double)value);
            if (a->transposed)
                dtp_store(a->transposed, a->result_element, j * a->rows + i, (double)value);
        }
    return 0;
}

int dtp_reference_from_history(void *self, const struct dtp_from_history_args *a, void *stream)
{
    (void)self, (void)stream;
    for (uint64_t t = 0; t < a->count; t++) {
        float *history = a->history + t * DTP_AMAX_HISTORY, *scale = a->scale + t * DTP_AMAX_SCALE, largest = 0;
        for (uint32_t i = 0; i < DTP_AMAX_HISTORY; i++)
            largest = isfinite(history[i]) ? fmaxf(largest, history[i]) : largest;
        scale[1] = dtp_delayed_factor(t < a->wide ? DTP_E4M3_MAX : DTP_E5M2_MAX, largest);
        scale[0] = 1 / scale[1];
        float newest = history[0];
        memmove(history + 1, history + 2, (DTP_AMAX_HISTORY - 2) * sizeof *history);
        history[DTP_AMAX_HISTORY - 1] = newest;
        history[0] = 0;
    }
    return 0;
}
