/* Optimizers with less state than AdamW's: moments in 8 bits, one, none at all. */
#include "kernels/dynamic_map.h"
#include "kernels/element.h"
#include "kernels/random.h"

#include <math.h>

static const float signed_map[256] = {DTP_SIGNED_MAP}, unsigned_map[256] = {DTP_UNSIGNED_MAP};

/* The place of the nearest number, the lower one of two as near. */
static uint8_t nearest(const float *map, float value)
{
    int low = 0, high = 255;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (map[middle] <= value)
            low = middle;
        else
            high = middle;
    }
    return (uint8_t)(value - map[low] > map[high] - value ? high : low);
}

static bool decays(const struct dtp_adamw_args *a, uint64_t i)
{
    for (uint32_t r = 0; r < a->range_count; r++)
        if (i >= a->range_begin[r] && i < a->range_end[r])
            return true;
    return false;
}

static double weight_of(const struct dtp_adamw_args *a, uint64_t i)
{
    return a->master ? (double)a->master[i] : dtp_load(a->weights, a->weight_element, i);
}

static double decay_of(const struct dtp_adamw_args *a, uint64_t i)
{
    return decays(a, i) ? (double)a->decay * weight_of(a, i) : 0;
}

/* One more sum on the weight, or on its master. */
static void move(const struct dtp_adamw_args *a, uint64_t i, double step, double decay)
{
    double weight = weight_of(a, i);
    weight -= (double)a->scalars->learning_rate * (step + decay);
    if (a->master)
        a->master[i] = (float)weight;
    if (a->master || !a->stochastic_rounding || a->weight_element != DTP_ELEMENT_BF16) {
        dtp_store(a->weights, a->weight_element, i, weight);
        return;
    }
    uint64_t index = a->first_element + i;
    struct dtp_philox block = dtp_rounding_block(a->scalars->seed, a->scalars->step, DTP_ROUND_WEIGHT, index);
    uint32_t rounded = dtp_round_stochastic((float)weight, dtp_rounding_bits(&block, (uint32_t)(index % 8)));
    ((uint16_t *)a->weights)[i] = (uint16_t)(rounded >> 16);
}

static double gradient_of(const struct dtp_adamw_args *a, uint64_t i)
{
    return dtp_load(a->gradient, a->gradient_element, i) * (double)a->scalars->clip_scale;
}

static void keep(uint8_t *places, const float *map, int zero, float *scale, const float *values)
{
    *scale = 0;
    for (uint32_t i = 0; i < DTP_MOMENT_BLOCK; i++)
        *scale = fmaxf(*scale, fabsf(values[i]));
    for (uint32_t i = 0; i < DTP_MOMENT_BLOCK; i++)
        places[i] = (uint8_t)(nearest(map, *scale > 0 ? values[i] / *scale : 0) - zero);
}

static void update_block(const struct dtp_adamw_args *a, uint64_t block)
{
    const struct dtp_step_scalars *s = a->scalars;
    uint8_t *first = (uint8_t *)a->moment1 + block * DTP_MOMENT_BLOCK,
            *second = (uint8_t *)a->moment2 + block * DTP_MOMENT_BLOCK;
    float moment1[DTP_MOMENT_BLOCK], moment2[DTP_MOMENT_BLOCK];
    double beta1 = (double)a->beta1, beta2 = (double)a->beta2;
    for (uint32_t i = 0; i < DTP_MOMENT_BLOCK; i++) {
        uint64_t at = block * DTP_MOMENT_BLOCK + i;
        double gradient = gradient_of(a, at);
        double m = beta1 * (double)(signed_map[(uint8_t)(first[i] + DTP_SIGNED_ZERO)] * a->scale1[block]) +
                   (1 - beta1) * gradient;
        double v = beta2 * (double)(unsigned_map[second[i]] * a->scale2[block]) + (1 - beta2) * gradient * gradient;
        move(a, at, m / (double)s->correction1 / (sqrt(v / (double)s->correction2) + (double)a->epsilon),
             decay_of(a, at));
        moment1[i] = (float)m, moment2[i] = (float)v;
    }
    keep(first, signed_map, DTP_SIGNED_ZERO, &a->scale1[block], moment1);
    keep(second, unsigned_map, 0, &a->scale2[block], moment2);
}

int dtp_reference_adamw8(void *self, const struct dtp_adamw_args *a, void *stream)
{
    (void)self, (void)stream;
    for (uint64_t block = 0; block < a->count / DTP_MOMENT_BLOCK && !a->scalars->skip; block++)
        update_block(a, block);
    return 0;
}

int dtp_reference_sgd(void *self, const struct dtp_adamw_args *a, void *stream)
{
    (void)self, (void)stream;
    for (uint64_t i = 0; i < a->count && !a->scalars->skip; i++) {
        double step =
            a->factor > 0 ? (double)a->factor * dtp_load(a->gradient, a->gradient_element, i) : gradient_of(a, i);
        if (a->moment1) {
            step += decay_of(a, i) + (double)a->beta1 * dtp_load(a->moment1, a->moment_element, i);
            dtp_store(a->moment1, a->moment_element, i, step);
        }
        move(a, i, step, a->moment1 ? 0 : decay_of(a, i));
    }
    return 0;
}
