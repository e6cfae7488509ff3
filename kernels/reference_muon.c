/* Muon's passes over one matrix, around its products (Jordan et al. 2024; torch/optim/_muon.py). */
#include "kernels/element.h"

#include <math.h>

int dtp_reference_muon_momentum(void *self, const struct dtp_muon_momentum_args *a, void *stream)
{
    const uint64_t part = (a->count + DTP_SQUARE_SUM_PARTIALS - 1) / DTP_SQUARE_SUM_PARTIALS;
    (void)self, (void)stream;
    if (a->scalars->skip)
        return 0;
    for (uint64_t p = 0; p < DTP_SQUARE_SUM_PARTIALS; p++) {
        double sum = 0;
        for (uint64_t i = p * part; i < (p + 1) * part && i < a->count; i++) {
            double gradient = dtp_load(a->gradient, a->gradient_element, i) * (double)a->scalars->clip_scale;
            double before = dtp_load(a->momentum, a->momentum_element, i);
            double momentum = before + (1 - (double)a->factor) * (gradient - before);
            dtp_store(a->momentum, a->momentum_element, i, momentum);
            dtp_store(a->result, DTP_ELEMENT_BF16, i, gradient + (double)a->factor * (momentum - gradient));
            double rounded = dtp_load(a->result, DTP_ELEMENT_BF16, i);
            sum += rounded * rounded;
        }
        a->partial[p] = (float)sum;
    }
    return 0;
}

int dtp_reference_muon_unit(void *self, const struct dtp_muon_unit_args *a, void *stream)
{
    double sum = 0;
    uint16_t norm;
    (void)self, (void)stream;
    if (a->scalars->skip)
        return 0;
    for (uint32_t p = 0; p < DTP_SQUARE_SUM_PARTIALS; p++)
        sum += (double)a->partial[p];
    dtp_store(&norm, DTP_ELEMENT_BF16, 0, sqrt(sum));
    double divisor = fmax(dtp_load(&norm, DTP_ELEMENT_BF16, 0), DTP_MUON_EPSILON);
    for (uint64_t i = 0; i < a->count; i++)
        dtp_store(a->values, DTP_ELEMENT_BF16, i, dtp_load(a->values, DTP_ELEMENT_BF16, i) / divisor);
    return 0;
}
