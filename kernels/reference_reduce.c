#include "kernels/element.h"

#include <math.h>

int dtp_reference_sum(void *self, const struct dtp_sum_args *a, void *stream)
{
    (void)self, (void)stream;
    double sum = a->accumulate ? (double)*a->total : 0;
    for (uint64_t i = 0; i < a->count; i++)
        sum += (double)a->values[i];
    *a->total = (float)sum;
    return 0;
}

int dtp_reference_bias_backward(void *self, const struct dtp_bias_backward_args *a, void *stream)
{
    (void)self, (void)stream;
    for (uint32_t j = 0; j < a->width; j++) {
        double sum = 0;
        for (uint64_t i = 0; i < a->rows; i++)
            sum += dtp_load(a->gradient, a->element, i * a->width + j);
        dtp_accumulate(a->bias_gradient, a->gradient_element, j, sum, a->accumulate);
    }
    return 0;
}

static bool is_skipped(const struct dtp_square_sum_args *a, uint64_t i)
{
    for (uint32_t r = 0; r < a->skip_count; r++)
        if (i >= a->skip_begin[r] && i < a->skip_end[r])
            return true;
    return false;
}

/* Partial sums by equal stretches, as the device's blocks have them. */
int dtp_reference_square_sum(void *self, const struct dtp_square_sum_args *a, void *stream)
{
    (void)self, (void)stream;
    uint64_t stretch = a->count / DTP_SQUARE_SUM_PARTIALS + 1;
    for (uint64_t part = 0, i = 0; part < DTP_SQUARE_SUM_PARTIALS; part++) {
        double sum = 0;
        for (; i < a->count && i < (part + 1) * stretch; i++) {
            double value = is_skipped(a, i) ? 0 : dtp_load(a->values, a->element, i);
            sum += value * value;
        }
        a->partial[part] = (float)sum;
    }
    return 0;
}

int dtp_reference_clip_scale(void *self, const struct dtp_clip_scale_args *a, void *stream)
{
    (void)self, (void)stream;
    double sum = 0;
    for (uint64_t i = 0; i < a->count; i++)
        sum += (double)a->partials[i];
    double scale = a->scalars->loss_scale > 0 ? (double)a->scalars->loss_scale : 1, norm = sqrt(sum) / scale;
    double clipped = a->clip > 0 && norm > (double)a->clip ? (double)a->clip / norm : 1;
    a->scalars->gradient_norm = (float)norm;
    a->scalars->clip_scale = (float)(clipped / scale);
    a->scalars->skip = !isfinite((float)norm) || !isfinite(a->scalars->loss_sum);
    return 0;
}
