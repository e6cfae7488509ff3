#include "kernels/element.h"

#include <math.h>
#include <stdlib.h>

/* Where head `which` of a row lies in the packed qkv, among what is kept of q and k, and in their weights. */
struct place {
    uint64_t packed, kept, weight;
};

static struct place place_of(uint64_t row, uint32_t which, uint32_t heads, uint32_t kv_heads, uint32_t dim)
{
    return (struct place){.packed = (row * (heads + 2 * (uint64_t)kv_heads) + which) * dim,
                          .kept = (row * (heads + (uint64_t)kv_heads) + which) * dim,
                          .weight = which < heads ? 0 : dim};
}

static void norm_head(const struct dtp_qk_norm_args *a, struct place at)
{
    double square = 0;
    for (uint32_t d = 0; d < a->head_dim; d++) {
        double x = dtp_load(a->qkv, a->element, at.packed + d);
        dtp_store(a->raw, a->element, at.kept + d, x);
        square += x * x;
    }
    double inverse = 1 / sqrt(square / a->head_dim + (double)a->epsilon);
    for (uint32_t d = 0; d < a->head_dim; d++)
        dtp_store(a->qkv, a->element, at.packed + d,
                  dtp_load(a->raw, a->element, at.kept + d) * inverse *
                      ((double)a->weight_offset + dtp_load(a->weight, a->weight_element, at.weight + d)));
    a->inverse_deviation[at.kept / a->head_dim] = (float)inverse;
}

int dtp_reference_qk_norm(void *self, const struct dtp_qk_norm_args *a, void *stream)
{
    (void)self, (void)stream;
    for (uint64_t i = 0; i < a->rows; i++)
        for (uint32_t which = 0; which < a->heads + a->kv_heads; which++)
            norm_head(a, place_of(i, which, a->heads, a->kv_heads, a->head_dim));
    return 0;
}

/* RMSNorm's, as in reference_norm.c, over a head; sums[2 head_dim] collects the weights' gradients. */
static void head_backward(const struct dtp_qk_norm_backward_args *a, struct place at, double *sums)
{
    double inverse = (double)a->inverse_deviation[at.kept / a->head_dim], mean_hn = 0;
    for (uint32_t d = 0; d < a->head_dim; d++) {
        double gradient = dtp_load(a->qkv_gradient, a->element, at.packed + d);
        double n = dtp_load(a->raw, a->element, at.kept + d) * inverse;
        double weight = (double)a->weight_offset + dtp_load(a->weight, a->weight_element, at.weight + d);
        mean_hn += gradient * weight * n / a->head_dim;
        sums[at.weight + d] += gradient * n;
    }
    for (uint32_t d = 0; d < a->head_dim; d++) {
        double n = dtp_load(a->raw, a->element, at.kept + d) * inverse;
        double h = dtp_load(a->qkv_gradient, a->element, at.packed + d) *
                   ((double)a->weight_offset + dtp_load(a->weight, a->weight_element, at.weight + d));
        dtp_store(a->qkv_gradient, a->element, at.packed + d, inverse * (h - n * mean_hn));
    }
}

int dtp_reference_qk_norm_backward(void *self, const struct dtp_qk_norm_backward_args *a, void *stream)
{
    (void)self, (void)stream;
    double *sums = calloc(2 * (size_t)a->head_dim, sizeof *sums);
    if (!sums)
        return DTP_REFERENCE_NO_MEMORY;
    for (uint64_t i = 0; i < a->rows; i++)
        for (uint32_t which = 0; which < a->heads + a->kv_heads; which++)
            head_backward(a, place_of(i, which, a->heads, a->kv_heads, a->head_dim), sums);
    for (uint32_t j = 0; j < 2 * a->head_dim; j++)
        dtp_accumulate(a->weight_gradient, a->gradient_element, j, sums[j], a->accumulate);
    free(sums);
    return 0;
}
