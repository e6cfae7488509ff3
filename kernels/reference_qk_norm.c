#include "kernels/element.h"

#include <math.h>
#include <stdlib.h>

/* What is normed as one: a head, or all heads of q or of k. Where it lies in the packed qkv, among what is kept of q
 * and k, and in their weights; which of a row's deviations is its own. */
struct place {
    uint64_t packed, kept, weight, deviation;
    uint32_t width;
};

/* The members of both structs of arguments that say where things lie. */
struct shape {
    uint32_t heads, kv_heads, head_dim;
    bool wide;
};

static uint32_t count_of(struct shape s)
{
    return s.wide ? 2 : s.heads + s.kv_heads;
}

static uint32_t weights_of(struct shape s)
{
    return s.wide ? (s.heads + s.kv_heads) * s.head_dim : 2 * s.head_dim;
}

static struct place place_of(uint64_t row, uint32_t which, struct shape s)
{
    const uint64_t kept = (uint64_t)(s.heads + s.kv_heads) * s.head_dim, packed = kept + s.kv_heads * s.head_dim;
    const uint64_t first = s.wide ? which * s.heads * s.head_dim : which * s.head_dim;
    return (struct place){.packed = row * packed + first,
                          .kept = row * kept + first,
                          .weight = s.wide            ? first
                                    : which < s.heads ? 0
                                                      : s.head_dim,
                          .deviation = row * count_of(s) + which,
                          .width = !s.wide ? s.head_dim : (which ? s.kv_heads : s.heads) * s.head_dim};
}

/* What is multiplied by; 1 where norms have no weights. */
static double weight_at(const void *weight, enum dtp_element element, float offset, uint64_t i)
{
    return weight ? (double)offset + dtp_load(weight, element, i) : 1;
}

static void norm_place(const struct dtp_qk_norm_args *a, struct place at)
{
    double square = 0;
    for (uint32_t d = 0; d < at.width; d++) {
        double x = dtp_load(a->qkv, a->element, at.packed + d);
        dtp_store(a->raw, a->element, at.kept + d, x);
        square += x * x;
    }
    double inverse = 1 / sqrt(square / at.width + (double)a->epsilon);
    for (uint32_t d = 0; d < at.width; d++)
        dtp_store(a->qkv, a->element, at.packed + d,
                  dtp_load(a->raw, a->element, at.kept + d) * inverse *
                      weight_at(a->weight, a->weight_element, a->weight_offset, at.weight + d));
    a->inverse_deviation[at.deviation] = (float)inverse;
}

int dtp_reference_qk_norm(void *self, const struct dtp_qk_norm_args *a, void *stream)
{
    (void)self, (void)stream;
    const struct shape shape = {a->heads, a->kv_heads, a->head_dim, a->wide};
    for (uint64_t i = 0; i < a->rows; i++)
        for (uint32_t which = 0; which < count_of(shape); which++)
            norm_place(a, place_of(i, which, shape));
    return 0;
}

/* RMSNorm's, as in reference_norm.c; `sums` collects the weights' gradients. */
static void place_backward(const struct dtp_qk_norm_backward_args *a, struct place at, double *sums)
{
    double inverse = (double)a->inverse_deviation[at.deviation], mean_hn = 0;
    for (uint32_t d = 0; d < at.width; d++) {
        double gradient = dtp_load(a->qkv_gradient, a->element, at.packed + d);
        double n = dtp_load(a->raw, a->element, at.kept + d) * inverse;
        double weight = weight_at(a->weight, a->weight_element, a->weight_offset, at.weight + d);
        mean_hn += gradient * weight * n / at.width;
        sums[at.weight + d] += gradient * n;
    }
    for (uint32_t d = 0; d < at.width; d++) {
        double n = dtp_load(a->raw, a->element, at.kept + d) * inverse;
        double h = dtp_load(a->qkv_gradient, a->element, at.packed + d) *
                   weight_at(a->weight, a->weight_element, a->weight_offset, at.weight + d);
        dtp_store(a->qkv_gradient, a->element, at.packed + d, inverse * (h - n * mean_hn));
    }
}

int dtp_reference_qk_norm_backward(void *self, const struct dtp_qk_norm_backward_args *a, void *stream)
{
    (void)self, (void)stream;
    const struct shape shape = {a->heads, a->kv_heads, a->head_dim, a->wide};
    double *sums = calloc(weights_of(shape), sizeof *sums);
    if (!sums)
        return DTP_REFERENCE_NO_MEMORY;
    for (uint64_t i = 0; i < a->rows; i++)
        for (uint32_t which = 0; which < count_of(shape); which++)
            place_backward(a, place_of(i, which, shape), sums);
    for (uint32_t j = 0; a->weight_gradient && j < weights_of(shape); j++)
        dtp_accumulate(a->weight_gradient, a->gradient_element, j, sums[j], a->accumulate);
    free(sums);
    return 0;
}
