#include "kernels/element.h"
#include "kernels/random.h"

#include <math.h>

static void store_rounded(const struct dtp_adamw_args *a, void *values, enum dtp_element element, uint64_t i,
                          double value, enum dtp_rounding_use use)
{
    if (!a->stochastic_rounding || element != DTP_ELEMENT_BF16) {
        dtp_store(values, element, i, value);
        return;
    }
    uint64_t index = a->first_element + i;
    struct dtp_philox block = dtp_rounding_block(a->scalars->seed, a->scalars->step, use, index);
    uint32_t rounded = dtp_round_stochastic((float)value, dtp_rounding_bits(&block, (uint32_t)(index % 8)));
    ((uint16_t *)values)[i] = (uint16_t)(rounded >> 16);
}

static bool decays(const struct dtp_adamw_args *a, uint64_t i)
{
    for (uint32_t r = 0; r < a->range_count; r++)
        if (i >= a->range_begin[r] && i < a->range_end[r])
            return true;
    return false;
}

static void update(const struct dtp_adamw_args *a, uint64_t i)
{
    const struct dtp_step_scalars *s = a->scalars;
    double rate = (double)s->learning_rate, beta1 = (double)a->beta1, beta2 = (double)a->beta2;
    double gradient = dtp_load(a->gradient, a->gradient_element, i) * (double)s->clip_scale;
    double moment1 = beta1 * dtp_load(a->moment1, a->moment_element, i) + (1 - beta1) * gradient;
    double moment2 = beta2 * dtp_load(a->moment2, a->moment_element, i) + (1 - beta2) * gradient * gradient;
    double weight = a->master ? (double)a->master[i] : dtp_load(a->weights, a->weight_element, i);
    double denominator = sqrt(moment2 / (double)s->correction2) + (double)a->epsilon;
    weight -= rate * (moment1 / (double)s->correction1 / denominator + (decays(a, i) ? (double)a->decay * weight : 0));
    store_rounded(a, a->moment1, a->moment_element, i, moment1, DTP_ROUND_MOMENT1);
    store_rounded(a, a->moment2, a->moment_element, i, moment2, DTP_ROUND_MOMENT2);
    if (!a->master) {
        store_rounded(a, a->weights, a->weight_element, i, weight, DTP_ROUND_WEIGHT);
        return;
    }
    a->master[i] = (float)weight;
    dtp_store(a->weights, a->weight_element, i, weight);
}

int dtp_reference_adamw(void *self, const struct dtp_adamw_args *a, void *stream)
{
    (void)self, (void)stream;
    for (uint64_t i = 0; i < a->count && !a->scalars->skip; i++)
        update(a, i);
    return 0;
}
