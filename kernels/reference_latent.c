#include "kernels/element.h"

/* Where a token's heads lie: rows of what was projected and of what is packed, and in them head by head. */
struct row {
    uint64_t queries, shared, keys_values, packed;
    uint32_t plain, of_key_value; /* elements of a key that rope leaves alone; of a head in keys_values */
    uint64_t keys, values;        /* where they begin in a packed row */
};

#define ROW_OF(a, i) row_of(i, (a)->heads, (a)->head_dim, (a)->rope_dim, (a)->value_dim, (a)->latent_row)

static struct row row_of(uint64_t i, uint64_t heads, uint32_t head_dim, uint32_t rope_dim, uint32_t value_dim,
                         uint64_t latent_row)
{
    const uint32_t plain = head_dim - rope_dim, of_key_value = plain + value_dim;
    return (struct row){.queries = i * heads * head_dim,
                        .shared = (i + 1) * latent_row - rope_dim,
                        .keys_values = i * heads * of_key_value,
                        .packed = i * heads * (2 * (uint64_t)head_dim + value_dim),
                        .plain = plain,
                        .of_key_value = of_key_value,
                        .keys = heads * head_dim,
                        .values = 2 * heads * head_dim};
}

/* A pair, turned by an angle of the table or, with `sign` -1, back. */
static void turn(double pair[2], double cosine, double sine, double sign)
{
    double first = pair[0], second = pair[1];
    pair[0] = first * cosine - sign * second * sine;
    pair[1] = sign * first * sine + second * cosine;
}

static void copy(void *to, uint64_t to_at, const void *from, uint64_t from_at, uint64_t count, enum dtp_element element)
{
    for (uint64_t d = 0; d < count; d++)
        dtp_store(to, element, to_at + d, dtp_load(from, element, from_at + d));
}

static void turn_part(void *to, uint64_t to_at, const void *from, uint64_t from_at, const float *cosines,
                      const float *sines, uint32_t pairs, double sign, enum dtp_element element)
{
    for (uint32_t p = 0; p < pairs; p++) {
        double pair[2] = {dtp_load(from, element, from_at + 2 * p), dtp_load(from, element, from_at + 2 * p + 1)};
        turn(pair, (double)cosines[p], (double)sines[p], sign);
        dtp_store(to, element, to_at + 2 * p, pair[0]);
        dtp_store(to, element, to_at + 2 * p + 1, pair[1]);
    }
}

int dtp_reference_latent_heads(void *self, const struct dtp_latent_heads_args *a, void *stream)
{
    (void)self, (void)stream;
    const uint32_t pairs = a->rope_dim / 2;
    for (uint64_t i = 0; i < a->rows; i++) {
        const struct row row = ROW_OF(a, i);
        const float *cosines = a->cosines + i % a->sequence * pairs, *sines = a->sines + i % a->sequence * pairs;
        for (uint64_t h = 0; h < a->heads; h++) {
            const uint64_t head = h * a->head_dim, query = row.packed + head, key = query + row.keys;
            const uint64_t key_value = row.keys_values + h * row.of_key_value;
            copy(a->packed, query, a->queries, row.queries + head, row.plain, a->element);
            turn_part(a->packed, query + row.plain, a->queries, row.queries + head + row.plain, cosines, sines, pairs,
                      1, a->element);
            copy(a->packed, key, a->keys_values, key_value, row.plain, a->element);
            turn_part(a->packed, key + row.plain, a->latents, row.shared, cosines, sines, pairs, 1, a->element);
            copy(a->packed, row.packed + row.values + h * a->value_dim, a->keys_values, key_value + row.plain,
                 a->value_dim, a->element);
        }
    }
    return 0;
}

/* The shared part's gradient is that of each head's, turned back, in sum. */
static void shared_backward(const struct dtp_latent_heads_backward_args *a, const struct row *row, const float *cosines,
                            const float *sines)
{
    for (uint32_t p = 0; p < a->rope_dim / 2; p++) {
        double sum[2] = {0, 0};
        for (uint64_t h = 0; h < a->heads; h++) {
            uint64_t at = row->packed + row->keys + h * a->head_dim + row->plain + 2 * p;
            sum[0] += dtp_load(a->packed, a->element, at);
            sum[1] += dtp_load(a->packed, a->element, at + 1);
        }
        turn(sum, (double)cosines[p], (double)sines[p], -1);
        dtp_store(a->latents, a->element, row->shared + 2 * p, sum[0]);
        dtp_store(a->latents, a->element, row->shared + 2 * p + 1, sum[1]);
    }
}

int dtp_reference_latent_heads_backward(void *self, const struct dtp_latent_heads_backward_args *a, void *stream)
{
    (void)self, (void)stream;
    const uint32_t pairs = a->rope_dim / 2;
    for (uint64_t i = 0; i < a->rows; i++) {
        const struct row row = ROW_OF(a, i);
        const float *cosines = a->cosines + i % a->sequence * pairs, *sines = a->sines + i % a->sequence * pairs;
        for (uint64_t h = 0; h < a->heads; h++) {
            const uint64_t head = h * a->head_dim, query = row.packed + head;
            const uint64_t key_value = row.keys_values + h * row.of_key_value;
            copy(a->queries, row.queries + head, a->packed, query, row.plain, a->element);
            turn_part(a->queries, row.queries + head + row.plain, a->packed, query + row.plain, cosines, sines, pairs,
                      -1, a->element);
            copy(a->keys_values, key_value, a->packed, query + row.keys, row.plain, a->element);
            copy(a->keys_values, key_value + row.plain, a->packed, row.packed + row.values + h * a->value_dim,
                 a->value_dim, a->element);
        }
        shared_backward(a, &row, cosines, sines);
    }
    return 0;
}
