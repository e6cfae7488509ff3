#include "kernels/element.h"

static void rotate_head(const struct dtp_rotary_args *a, uint64_t head, uint64_t position)
{
    uint32_t half = a->head_dim / 2;
    for (uint32_t d = 0; d < half; d++) {
        double cosine = (double)a->cosines[position * half + d], sine = (double)a->sines[position * half + d];
        double first = dtp_load(a->qkv, a->element, head + d), second = dtp_load(a->qkv, a->element, head + half + d);
        if (a->inverse)
            sine = -sine;
        dtp_store(a->qkv, a->element, head + d, first * cosine - second * sine);
        dtp_store(a->qkv, a->element, head + half + d, first * sine + second * cosine);
    }
}

int dtp_reference_rotary(void *self, const struct dtp_rotary_args *a, void *stream)
{
    (void)self, (void)stream;
    uint64_t row_heads = a->heads + 2 * (uint64_t)a->kv_heads;
    for (uint64_t i = 0; i < a->rows; i++)
        for (uint64_t head = 0; head < a->heads + (uint64_t)a->kv_heads; head++)
            rotate_head(a, (i * row_heads + head) * a->head_dim, i % a->sequence);
    return 0;
}
