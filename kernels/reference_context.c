/* What context parallel ranks make of the steps of their attention: results merged, gradients added up, columns moved.
 */
#include "kernels/element.h"
#include "kernels/laid_out_heads.h"

#include <math.h>

/* Where the step's log-sum-exp of a query stands, [heads, queries] of a sequence; none: UINT64_MAX. */
static uint64_t part_statistic(const struct dtp_merge_attention_args *a, uint32_t step, uint64_t head, uint32_t query)
{
    uint64_t of_step = (uint64_t)step * a->batch * a->heads * a->sequence;
    uint32_t first = step < a->whole ? 0 : a->sequence / 2;
    return query < first ? UINT64_MAX : of_step + head * (a->sequence - first) + query - first;
}

/* `head` counts those of all sequences before as well. */
static void merge_query(const struct dtp_merge_attention_args *a, uint64_t head, uint32_t query)
{
    uint64_t rows = (uint64_t)a->batch * a->sequence, b = head / a->heads;
    uint64_t at = ((b * a->sequence + query) * a->heads + head % a->heads) * a->head_dim;
    double largest = -INFINITY, sum = 0;
    for (uint32_t step = 0; step < a->steps; step++) {
        uint64_t statistic = part_statistic(a, step, head, query);
        if (statistic != UINT64_MAX)
            largest = fmax(largest, (double)a->part_log_sum_exp[statistic]);
    }
    for (uint32_t step = 0; step < a->steps; step++) {
        uint64_t statistic = part_statistic(a, step, head, query);
        sum += statistic == UINT64_MAX ? 0 : exp((double)a->part_log_sum_exp[statistic] - largest);
    }
    double log_sum_exp = largest + log(sum);
    for (uint32_t d = 0; d < a->head_dim; d++) {
        double result = 0;
        for (uint32_t step = 0; step < a->steps; step++) {
            uint64_t statistic = part_statistic(a, step, head, query);
            if (statistic != UINT64_MAX)
                result += exp((double)a->part_log_sum_exp[statistic] - log_sum_exp) *
                          dtp_load(a->parts, a->element, step * rows * a->heads * a->head_dim + at + d);
        }
        dtp_store(a->result, a->element, at + d, result);
    }
    a->log_sum_exp[head * a->sequence + query] = (float)log_sum_exp;
}

int dtp_reference_merge_attention(void *self, const struct dtp_merge_attention_args *a, void *stream)
{
    (void)self, (void)stream;
    for (uint64_t head = 0; head < (uint64_t)a->batch * a->heads; head++)
        for (uint32_t query = 0; query < a->sequence; query++)
            merge_query(a, head, query);
    return 0;
}

static void add_to(void *to, enum dtp_element element, uint64_t at, double value)
{
    dtp_store(to, element, at, dtp_load(to, element, at) + value);
}

int dtp_reference_merge_gradients(void *self, const struct dtp_merge_gradients_args *a, void *stream)
{
    (void)self, (void)stream;
    uint64_t d_q = (uint64_t)a->heads * a->head_dim, d_kv = 2 * (uint64_t)a->kv_heads * a->head_dim;
    for (uint64_t b = 0; b < a->batch; b++)
        for (uint64_t i = 0; i < a->sequence; i++) {
            uint64_t row = b * a->sequence + i;
            for (uint64_t d = 0; d < d_q && i >= a->first_query; d++)
                add_to(a->qkv_gradient, a->element, row * (d_q + d_kv) + d,
                       dtp_load(a->query_gradient, a->element, row * d_q + d));
            for (uint64_t at = row * d_kv; at < (row + 1) * d_kv; at++) {
                bool made = i < a->key_count;
                double added = made ? dtp_load(a->keys_gradient, a->element, at) : 0;
                if (!a->accumulate)
                    dtp_store(a->sum, a->element, at, added);
                else if (made)
                    add_to(a->sum, a->element, at, added);
            }
        }
    return 0;
}

int dtp_reference_columns(void *self, const struct dtp_columns_args *a, void *stream)
{
    (void)self, (void)stream;
    for (uint64_t i = 0; i < a->count[0]; i++)
        for (uint64_t j = 0; j < a->count[1]; j++)
            for (uint64_t k = 0; k < a->count[2]; k++) {
                uint64_t from = i * a->from_step[0] + j * a->from_step[1] + k * a->from_step[2];
                uint64_t to = i * a->to_step[0] + j * a->to_step[1] + k * a->to_step[2];
                for (uint64_t d = 0; d < a->width; d++) {
                    double value = dtp_load(a->from, a->element, from + d);
                    dtp_store(a->to, a->element, to + d,
                              a->accumulate ? value + dtp_load(a->to, a->element, to + d) : value);
                }
            }
    return 0;
}

static void lay_out_head(const struct dtp_lay_out_heads_args *a, uint64_t row, uint64_t out, uint64_t table)
{
    const void *from = a->back ? a->laid_out : a->rows;
    void *to = a->back ? a->rows : a->laid_out;
    const uint64_t in_from = a->back ? out : row, in_to = a->back ? row : out, half = a->head_dim / 2;
    for (uint64_t d = 0; d < a->head_dim && table == UINT64_MAX; d++)
        dtp_store(to, a->element, in_to + d, dtp_load(from, a->element, in_from + d));
    for (uint64_t d = 0; d < half && table != UINT64_MAX; d++) {
        const double cosine = (double)a->cosines[table + d], sine = (a->back ? -1 : 1) * (double)a->sines[table + d];
        const double x = dtp_load(from, a->element, in_from + d), y = dtp_load(from, a->element, in_from + half + d);
        dtp_store(to, a->element, in_to + d, x * cosine - y * sine);
        dtp_store(to, a->element, in_to + half + d, x * sine + y * cosine);
    }
}

int dtp_reference_lay_out_heads(void *self, const struct dtp_lay_out_heads_args *a, void *stream)
{
    const uint32_t all = a->heads + 2 * a->kv_heads, turned = a->cosines ? a->heads + a->kv_heads : 0;
    (void)self, (void)stream;
    for (uint32_t b = 0; b < a->batch; b++)
        for (uint32_t token = 0; token < a->sequence; token++)
            for (uint32_t head = 0; head < all; head++)
                lay_out_head(a, (((uint64_t)b * a->sequence + token) * all + head) * a->head_dim,
                             dtp_laid_out_head(a, b, token, head),
                             head < turned ? (uint64_t)token * (a->head_dim / 2) : UINT64_MAX);
    return 0;
}
