#include "kernels/element.h"

#include <math.h>
#include <stdlib.h>

int dtp_reference_norm(void *self, const struct dtp_norm_args *a, void *stream)
{
    (void)self, (void)stream;
    const uint64_t x_row = a->x_row ? a->x_row : a->width;
    for (uint64_t i = 0; i < a->rows; i++) {
        double mean = 0, square = 0;
        for (uint32_t j = 0; a->mean && j < a->width; j++)
            mean += dtp_load(a->x, a->element, i * x_row + j) / a->width;
        for (uint32_t j = 0; j < a->width; j++) {
            double difference = dtp_load(a->x, a->element, i * x_row + j) - mean;
            square += difference * difference;
        }
        double inverse = 1 / sqrt(square / a->width + (double)a->epsilon);
        for (uint32_t j = 0; j < a->width; j++) {
            double normal = (dtp_load(a->x, a->element, i * x_row + j) - mean) * inverse;
            double bias = a->bias ? dtp_load(a->bias, a->weight_element, j) : 0;
            bias += a->addend ? dtp_load(a->addend, a->element, i * a->width + j) : 0;
            dtp_store(a->result, a->element, i * a->width + j,
                      normal * ((double)a->weight_offset + dtp_load(a->weight, a->weight_element, j)) + bias);
        }
        a->inverse_deviation[i] = (float)inverse;
        if (a->mean)
            a->mean[i] = (float)mean;
        dtp_raise_amax(a->amax, a->result, a->element, i * a->width, a->width);
    }
    return 0;
}

/* With n = (x - mean) * inverse and h = gradient * weight, the gradient of x is inverse * (h - mean(h) - n mean(h n)):
 * the terms subtracted are what the mean and the deviation depend on x; RMSNorm has no mean, so the first falls away.
 * sums[j] and sums[width + j] collect the columns of the weight's and the bias' gradient. */
static void norm_backward_row(const struct dtp_norm_backward_args *a, uint64_t i, double *sums)
{
    const uint64_t x_row = a->x_row ? a->x_row : a->width;
    double mean = a->mean ? (double)a->mean[i] : 0, inverse = (double)a->inverse_deviation[i];
    double mean_h = 0, mean_hn = 0;
    for (uint32_t j = 0; j < a->width; j++) {
        double gradient = dtp_load(a->gradient, a->element, i * a->width + j);
        double n = (dtp_load(a->x, a->element, i * x_row + j) - mean) * inverse;
        double h = gradient * ((double)a->weight_offset + dtp_load(a->weight, a->weight_element, j));
        mean_h += h / a->width;
        mean_hn += h * n / a->width;
        sums[j] += gradient * n;
        sums[a->width + j] += gradient;
    }
    for (uint32_t j = 0; j < a->width; j++) {
        double n = (dtp_load(a->x, a->element, i * x_row + j) - mean) * inverse;
        double h = dtp_load(a->gradient, a->element, i * a->width + j) *
                   ((double)a->weight_offset + dtp_load(a->weight, a->weight_element, j));
        double gradient = inverse * (h - (a->mean ? mean_h : 0) - n * mean_hn);
        if (a->addend)
            gradient += dtp_load(a->addend, a->element, i * x_row + j);
        dtp_accumulate(a->residual_gradient, a->element, i * x_row + j, gradient, a->add_to_residual && !a->addend);
    }
    dtp_raise_amax(a->amax, a->residual_gradient, a->element, i * x_row, a->width);
}

int dtp_reference_norm_backward(void *self, const struct dtp_norm_backward_args *a, void *stream)
{
    (void)self, (void)stream;
    double *sums = calloc(2 * (size_t)a->width, sizeof *sums);
    if (!sums)
        return DTP_REFERENCE_NO_MEMORY;
    for (uint64_t i = 0; i < a->rows; i++)
        norm_backward_row(a, i, sums);
    for (uint32_t j = 0; a->weight_gradient && j < a->width; j++) {
        dtp_accumulate(a->weight_gradient, a->gradient_element, j, sums[j], a->accumulate);
        if (a->bias_gradient)
            dtp_accumulate(a->bias_gradient, a->gradient_element, j, sums[a->width + j], a->accumulate);
    }
    free(sums);
    return 0;
}
