#include "kernels/kernels.h"
#include "kernels/random.h"

#include <math.h>

static double dot(const struct dtp_orthogonalize_args *a, uint32_t u, uint32_t v)
{
    const float *x = a->values + u * a->vector_stride, *y = a->values + v * a->vector_stride;
    double sum = 0;
    for (uint64_t i = 0; i < a->length; i++)
        sum += (double)x[i * a->element_stride] * (double)y[i * a->element_stride];
    return sum;
}

/* What the vectors before it have of vector `v`, taken out. */
static void project(const struct dtp_orthogonalize_args *a, uint32_t v)
{
    float *y = a->values + v * a->vector_stride;
    for (int time = 0; time < 2; time++)
        for (uint32_t u = 0; u < v; u++) {
            const float *x = a->values + u * a->vector_stride;
            double part = dot(a, u, v);
            for (uint64_t i = 0; i < a->length; i++)
                y[i * a->element_stride] =
                    (float)((double)y[i * a->element_stride] - part * (double)x[i * a->element_stride]);
        }
}

int dtp_reference_orthogonalize(void *self, const struct dtp_orthogonalize_args *a, void *stream)
{
    (void)self, (void)stream;
    for (uint32_t v = 0; v < a->vectors; v++) {
        float *values = a->values + v * a->vector_stride;
        double before = sqrt(dot(a, v, v));
        project(a, v);
        double norm = sqrt(dot(a, v, v));
        if (isfinite(before) && !(norm > DTP_ORTHOGONALIZE_LEAST * before)) {
            for (uint64_t i = 0; i < a->length; i++)
                values[i * a->element_stride] = (float)dtp_random_normal(v, 0, i);
            project(a, v);
            norm = sqrt(dot(a, v, v));
        }
        for (uint64_t i = 0; i < a->length; i++)
            values[i * a->element_stride] = (float)((double)values[i * a->element_stride] / norm);
    }
    return 0;
}
