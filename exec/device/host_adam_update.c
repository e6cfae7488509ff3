/* Loops of a tile that stays in L1: 16-bit rows are widened into rows of fp32, updated and narrowed back, fp32 rows are
 * updated where they are. Plain C that is vectorised for the processor found at run time.
 *
 * New weights are stored through the caches: with streaming stores out of a row in L1 one core of a Zen 3 moved 22
 * GB/s, without them 24. */
#include "device/host_adam_update.h"

#include "kernels/element.h"

#include <math.h>
#include <string.h>

#define TILE 1024 /* elements: five rows of fp32 stay in an L1 of 32 KiB */

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define FOR_THIS_PROCESSOR __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_THIS_PROCESSOR
#endif

/* Numbers of a step, the same for all elements. */
struct factors {
    float beta1, beta2, clip, rate1, root_correction2, epsilon, keep; /* keep: 1 - rate * decay, or 1 */
};

FOR_THIS_PROCESSOR static void widen(const uint16_t *restrict values, float *restrict out, int count)
{
    for (int i = 0; i < count; i++) {
        uint32_t bits = (uint32_t)values[i] << 16;
        memcpy(&out[i], &bits, 4);
    }
}

/* Rounds fp32 to bf16: to nearest, ties to even; NaN stays NaN. */
FOR_THIS_PROCESSOR static void narrow(const float *restrict values, uint16_t *restrict out, int count)
{
    for (int i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], 4);
        uint32_t rounded = (bits + 0x7FFFu + (bits >> 16 & 1)) >> 16, quiet = bits >> 16 | 0x40u;
        out[i] = (uint16_t)((bits & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded);
    }
}

/* weight keep - rate (m / correction1) / (sqrt(v / correction2) + epsilon), Loshchilov & Hutter 2019, algorithm 2. All
 * rows are loaded before the first is stored: rows whose addresses agree in 12 bits would wait for each other. */
FOR_THIS_PROCESSOR static void update(const struct factors *restrict f, const float *restrict gradient,
                                      float *restrict weight, float *restrict moment1, float *restrict moment2,
                                      int count)
{
    for (int i = 0; i < count; i++) {
        float g = gradient[i] * f->clip, m = moment1[i], v = moment2[i], w = weight[i];
        m = f->beta1 * m + (1 - f->beta1) * g;
        v = f->beta2 * v + (1 - f->beta2) * g * g;
        w = w * f->keep - f->rate1 * m / (sqrtf(v) * f->root_correction2 + f->epsilon);
        moment1[i] = m;
        moment2[i] = v;
        weight[i] = w;
    }
}

/* The row as fp32: itself, or `wide` filled from it. */
static float *fetch(void *values, enum dtp_element element, uint64_t at, float *wide, int count)
{
    if (element == DTP_ELEMENT_FP32)
        return (float *)values + at;
    widen((const uint16_t *)values + at, wide, count);
    return wide;
}

static void put_back(const float *row, void *values, enum dtp_element element, uint64_t at, int count)
{
    if (element == DTP_ELEMENT_BF16)
        narrow(row, (uint16_t *)values + at, count);
    else if ((float *)values + at != row)
        memcpy((float *)values + at, row, (size_t)count * sizeof *row);
}

static void update_tile(const struct dtp_adamw_args *a, const struct factors *f, uint64_t at, int count)
{
    float wide[4][TILE];
    const float *gradient = fetch((void *)(uintptr_t)a->gradient, a->gradient_element, at, wide[0], count);
    float *moment1 = fetch(a->moment1, a->moment_element, at, wide[1], count);
    float *moment2 = fetch(a->moment2, a->moment_element, at, wide[2], count);
    float *weight = a->master ? a->master + at : fetch(a->weights, a->weight_element, at, wide[3], count);
    update(f, gradient, weight, moment1, moment2, count);
    put_back(moment1, a->moment1, a->moment_element, at, count);
    put_back(moment2, a->moment2, a->moment_element, at, count);
    put_back(weight, a->weights, a->weight_element, at, count);
}

/* The next element from `at` on where decay begins or ends; whether it applies at `at`. */
static uint64_t next_border(const struct dtp_adamw_args *a, uint64_t at, bool *decays)
{
    uint64_t next = a->count;
    *decays = false;
    for (uint32_t r = 0; r < a->range_count; r++) {
        bool inside = at >= a->range_begin[r] && at < a->range_end[r];
        *decays |= inside;
        uint64_t border = inside ? a->range_end[r] : a->range_begin[r];
        if (border > at && border < next)
            next = border;
    }
    return next;
}

static char *element_at(const void *values, enum dtp_element element, uint64_t at)
{
    return (char *)(uintptr_t)values + at * dtp_element_bytes(element);
}

/* The range as a call of its own, for the reference. */
static struct dtp_adamw_args part_of(const struct dtp_adamw_args *a, uint64_t begin, uint64_t end)
{
    struct dtp_adamw_args part = *a;
    part.gradient = element_at(a->gradient, a->gradient_element, begin);
    part.weights = element_at(a->weights, a->weight_element, begin);
    part.master = a->master ? a->master + begin : NULL;
    part.moment1 = element_at(a->moment1, a->moment_element, begin);
    part.moment2 = element_at(a->moment2, a->moment_element, begin);
    part.first_element = a->first_element + begin;
    part.count = end - begin;
    for (uint32_t r = 0; r < a->range_count; r++) {
        part.range_begin[r] = a->range_begin[r] > begin ? a->range_begin[r] - begin : 0;
        part.range_end[r] = a->range_end[r] > begin ? a->range_end[r] - begin : 0;
    }
    return part;
}

void dtp_host_adam_update(const struct dtp_adamw_args *a, uint64_t begin, uint64_t end)
{
    const struct dtp_step_scalars *s = a->scalars;
    bool halves = a->gradient_element == DTP_ELEMENT_FP16 || a->weight_element == DTP_ELEMENT_FP16;
    if (halves || (a->stochastic_rounding && (!a->master || a->moment_element == DTP_ELEMENT_BF16))) {
        struct dtp_adamw_args part = part_of(a, begin, end);
        dtp_reference_adamw(NULL, &part, NULL);
        return;
    }
    while (begin < end) {
        bool decays;
        uint64_t border = next_border(a, begin, &decays);
        struct factors f = {.beta1 = a->beta1,
                            .beta2 = a->beta2,
                            .clip = s->clip_scale,
                            .rate1 = s->learning_rate / s->correction1,
                            .root_correction2 = 1 / sqrtf(s->correction2),
                            .epsilon = a->epsilon,
                            .keep = decays ? 1 - s->learning_rate * a->decay : 1};
        for (uint64_t stop = border < end ? border : end; begin < stop;) {
            int count = stop - begin < TILE ? (int)(stop - begin) : TILE;
            update_tile(a, &f, begin, count);
            begin += (uint64_t)count;
        }
    }
}
