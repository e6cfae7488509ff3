#include "kernels/element.h"
#include "kernels/soft_cap.h"
#include "kernels/alibi.h"

#include <math.h>
#include <stdlib.h>

/* One key and value head of one sequence in double, both ways round: as rows [sequence, D] for sums over keys, and as
 * columns [D, sequence] for products with all keys at once; the inner loops then run over neighbours. D of values may
 * be another than that of keys and queries. */
struct head {
    uint32_t sequence, dim, value_dim; /* keys, elements of each, of each value */
    double *keys, *values, *key_columns, *value_columns;
    double *key_gradient, *value_gradient; /* [sequence, D] */
    double *scores, *slopes;               /* [sequence]; a query's */
    double *query, *gradient, *result;     /* a query's, its gradient's or value's; the wider D each */
    void *storage;
};

static bool head_create(struct head *h, uint32_t sequence, uint32_t dim, uint32_t value_dim)
{
    size_t keys = (size_t)sequence * dim, values = (size_t)sequence * value_dim;
    size_t widest = dim > value_dim ? dim : value_dim;
    double *at = malloc((3 * (keys + values) + 2 * (size_t)sequence + 3 * widest + 1) * sizeof *at);
    *h = (struct head){.sequence = sequence, .dim = dim, .value_dim = value_dim, .storage = at};
    if (!at)
        return false;
    double **matrices[] = {&h->keys,          &h->values,       &h->key_columns,
                           &h->value_columns, &h->key_gradient, &h->value_gradient};
    for (int i = 0; i < 6; i++) {
        *matrices[i] = at;
        at += i % 2 ? values : keys;
    }
    h->scores = at;
    h->slopes = at + sequence;
    h->query = at + 2 * (size_t)sequence;
    h->gradient = h->query + widest;
    h->result = h->gradient + widest;
    return true;
}

/* Where q heads, k heads and v heads of a packed row begin. */
struct packing {
    uint64_t row, keys, values; /* elements */
};

static struct packing packing_of(uint32_t heads, uint32_t kv_heads, uint32_t dim, uint32_t value_dim)
{
    return (struct packing){.row = (heads + (uint64_t)kv_heads) * dim + (uint64_t)kv_heads * value_dim,
                            .keys = (uint64_t)heads * dim,
                            .values = (heads + (uint64_t)kv_heads) * dim};
}

/* The same of a step of a ring, where keys and values lie by themselves. */
static struct packing packing_of_keys(uint32_t kv_heads, uint32_t dim)
{
    return (struct packing){.row = 2 * (uint64_t)kv_heads * dim, .keys = 0, .values = (uint64_t)kv_heads * dim};
}

static void head_load(struct head *h, const void *qkv, enum dtp_element element, uint64_t first_row,
                      struct packing packing, uint64_t kv_head)
{
    for (uint32_t j = 0; j < h->sequence; j++) {
        uint64_t row = (first_row + j) * packing.row;
        double *key = h->keys + (size_t)j * h->dim, *value = h->values + (size_t)j * h->value_dim;
        dtp_load_row(qkv, element, row + packing.keys + kv_head * h->dim, h->dim, key);
        dtp_load_row(qkv, element, row + packing.values + kv_head * h->value_dim, h->value_dim, value);
        for (uint32_t d = 0; d < h->dim; d++)
            h->key_columns[(size_t)d * h->sequence + j] = key[d];
        for (uint32_t d = 0; d < h->value_dim; d++)
            h->value_columns[(size_t)d * h->sequence + j] = value[d];
    }
}

/* Keys that a query sees: up to its own, as many as the window has. */
struct seen {
    uint32_t first, end;
};

static struct seen seen_by(uint32_t query, uint32_t window)
{
    return (struct seen){window && query >= window ? query + 1 - window : 0, query + 1};
}

/* A step's query sees all keys of the step. */
static struct seen seen_of(const void *keys, uint32_t key_count, uint32_t query, uint32_t window)
{
    return keys ? (struct seen){0, key_count} : seen_by(query, window);
}

/* products[j] = vector . column j, for the columns seen. */
static void multiply_columns(const struct head *h, const double *vector, const double *columns, uint32_t dim,
                             struct seen seen, double *products)
{
    memset(products + seen.first, 0, (seen.end - seen.first) * sizeof *products);
    for (uint32_t d = 0; d < dim; d++)
        for (uint32_t j = seen.first; j < seen.end; j++)
            products[j] += vector[d] * columns[(size_t)d * h->sequence + j];
}

/* sum[d] += factor * vector[d] */
static void add_scaled(double *sum, double factor, const double *vector, uint32_t dim)
{
    for (uint32_t d = 0; d < dim; d++)
        sum[d] += factor * vector[d];
}

static double dot(const double *a, const double *b, uint32_t dim)
{
    double sum = 0;
    for (uint32_t d = 0; d < dim; d++)
        sum += a[d] * b[d];
    return sum;
}

/* What scaled scores become; to that of a key `slope` times its distance to the query is added. */
struct bent {
    double scale, cap, slope;
};

static double biased(const struct bent *bent, double capped, uint32_t query, uint32_t key)
{
    return capped + bent->slope * ((double)key - (double)query);
}

/* scores of the keys seen become scaled scores; returns their log-sum-exp. */
static double score_query(struct head *h, struct seen seen, const struct bent *bent, uint32_t query)
{
    double largest = -INFINITY, sum = 0;
    multiply_columns(h, h->query, h->key_columns, h->dim, seen, h->scores);
    for (uint32_t j = seen.first; j < seen.end; j++) {
        h->scores[j] = biased(bent, dtp_soft_cap(h->scores[j] * bent->scale, bent->cap), query, j);
        largest = fmax(largest, h->scores[j]);
    }
    for (uint32_t j = seen.first; j < seen.end; j++)
        sum += exp(h->scores[j] - largest);
    return largest + log(sum);
}

#define VALUE_DIM(a) ((a)->value_dim ? (a)->value_dim : (a)->head_dim)

int dtp_reference_attention(void *self, const struct dtp_attention_args *a, void *stream)
{
    (void)self, (void)stream;
    struct head h;
    if (!head_create(&h, a->keys ? a->key_count : a->sequence, a->head_dim, VALUE_DIM(a)))
        return DTP_REFERENCE_NO_MEMORY;
    struct packing packing = packing_of(a->heads, a->kv_heads, a->head_dim, VALUE_DIM(a));
    struct packing of_keys = a->keys ? packing_of_keys(a->kv_heads, a->head_dim) : packing;
    uint32_t group = a->heads / a->kv_heads, first = a->keys ? a->first_query : 0, queries = a->sequence - first;
    for (uint64_t b = 0; b < a->batch; b++)
        for (uint64_t head = 0; head < a->heads; head++) {
            const struct bent bent = {(double)a->scale, (double)a->softcap,
                                      a->alibi ? (double)dtp_alibi_slope((uint32_t)head, a->heads) : 0};
            if (head % group == 0)
                head_load(&h, a->keys ? a->keys : a->qkv, a->element, b * a->sequence, of_keys, head / group);
            for (uint32_t i = first; i < a->sequence; i++) {
                uint64_t row = b * a->sequence + i;
                struct seen seen = seen_of(a->keys, a->key_count, i, a->window);
                dtp_load_row(a->qkv, a->element, row * packing.row + head * a->head_dim, a->head_dim, h.query);
                double log_sum_exp = score_query(&h, seen, &bent, i);
                memset(h.result, 0, h.value_dim * sizeof(double));
                for (uint32_t j = seen.first; j < seen.end; j++)
                    add_scaled(h.result, exp(h.scores[j] - log_sum_exp), h.values + (size_t)j * h.value_dim,
                               h.value_dim);
                dtp_store_row(a->result, a->element, (row * a->heads + head) * h.value_dim, h.value_dim, h.result);
                a->log_sum_exp[(b * a->heads + head) * queries + i - first] = (float)log_sum_exp;
            }
        }
    free(h.storage);
    return 0;
}

/* With p = exp(score - lse): dv_j += p_j g; the softmax' gradient is p_j (g . v_j - g . result), for the second term is
 * what the normalisation takes back (Dao 2022, "FlashAttention", appendix B); scores are scaled products. */
static void query_backward(struct head *h, const struct dtp_attention_backward_args *a, uint64_t b, uint64_t head,
                           uint32_t i)
{
    struct packing packing = packing_of(a->heads, a->kv_heads, a->head_dim, VALUE_DIM(a));
    struct seen seen = seen_of(a->keys, a->key_count, i, a->window);
    uint64_t row = b * a->sequence + i, query = row * packing.row + head * a->head_dim;
    uint64_t result = (row * a->heads + head) * h->value_dim;
    const struct bent bent = {(double)a->scale, (double)a->softcap,
                              a->alibi ? (double)dtp_alibi_slope((uint32_t)head, a->heads) : 0};
    double log_sum_exp = (double)a->log_sum_exp[(b * a->heads + head) * a->sequence + i];
    dtp_load_row(a->qkv, a->element, query, a->head_dim, h->query);
    dtp_load_row(a->gradient, a->element, result, h->value_dim, h->gradient);
    dtp_load_row(a->result, a->element, result, h->value_dim, h->result);
    double taken_back = dot(h->gradient, h->result, h->value_dim);
    multiply_columns(h, h->query, h->key_columns, h->dim, seen, h->scores);
    multiply_columns(h, h->gradient, h->value_columns, h->value_dim, seen, h->slopes);
    memset(h->result, 0, a->head_dim * sizeof(double));
    for (uint32_t j = seen.first; j < seen.end; j++) {
        double score = dtp_soft_cap(h->scores[j] * bent.scale, bent.cap);
        double probability = exp(biased(&bent, score, i, j) - log_sum_exp);
        double slope = bent.scale * dtp_soft_cap_slope(score, bent.cap) * probability * (h->slopes[j] - taken_back);
        size_t at = (size_t)j * a->head_dim;
        add_scaled(h->value_gradient + (size_t)j * h->value_dim, probability, h->gradient, h->value_dim);
        add_scaled(h->key_gradient + at, slope, h->query, a->head_dim);
        add_scaled(h->result, slope, h->keys + at, a->head_dim);
    }
    if (a->keys)
        dtp_store_row(a->query_gradient, a->element, result, a->head_dim, h->result);
    else
        dtp_store_row(a->qkv_gradient, a->element, query, a->head_dim, h->result);
}

int dtp_reference_attention_backward(void *self, const struct dtp_attention_backward_args *a, void *stream)
{
    (void)self, (void)stream;
    struct head h;
    if (!head_create(&h, a->keys ? a->key_count : a->sequence, a->head_dim, VALUE_DIM(a)))
        return DTP_REFERENCE_NO_MEMORY;
    struct packing packing = a->keys ? packing_of_keys(a->kv_heads, a->head_dim)
                                     : packing_of(a->heads, a->kv_heads, a->head_dim, VALUE_DIM(a));
    const void *keys = a->keys ? a->keys : a->qkv;
    void *gradient = a->keys ? a->keys_gradient : a->qkv_gradient;
    uint32_t group = a->heads / a->kv_heads;
    for (uint64_t b = 0; b < a->batch; b++)
        for (uint64_t kv_head = 0; kv_head < a->kv_heads; kv_head++) {
            head_load(&h, keys, a->element, b * a->sequence, packing, kv_head);
            memset(h.key_gradient, 0, (size_t)h.sequence * (h.dim + h.value_dim) * sizeof(double));
            for (uint64_t head = kv_head * group; head < (kv_head + 1) * group; head++)
                for (uint32_t i = a->keys ? a->first_query : 0; i < a->sequence; i++)
                    query_backward(&h, a, b, head, i);
            for (uint32_t j = 0; j < h.sequence; j++) {
                uint64_t row = (b * a->sequence + j) * packing.row;
                dtp_store_row(gradient, a->element, row + packing.keys + kv_head * h.dim, h.dim,
                              h.key_gradient + (size_t)j * h.dim);
                dtp_store_row(gradient, a->element, row + packing.values + kv_head * h.value_dim, h.value_dim,
                              h.value_gradient + (size_t)j * h.value_dim);
            }
        }
    free(h.storage);
    return 0;
}
