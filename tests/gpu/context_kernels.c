/* Attention in steps of a ring, and what stands around it. Rows that a step does not have stay as they are. */
#include "gpu/kernel_tests.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct size {
    uint32_t batch, sequence, heads, kv_heads, dim;
};

/* What stays is compared as well. */
static struct tensor *partly(const char *name, enum dtp_element element, uint64_t count, double ulps, double absolute)
{
    return updated(input(name, element, count, 1), ulps, absolute);
}

static void test_step(const struct size *z, uint32_t first_query, uint32_t key_count, enum dtp_element element)
{
    const uint64_t rows = (uint64_t)z->batch * z->sequence, q = rows * z->heads * z->dim;
    const uint64_t kv = rows * 2 * z->kv_heads * z->dim, statistics = (uint64_t)z->batch * z->heads * z->sequence;
    const double ulps = ulps_of(element), absolute = 8e-6 * sqrt((double)z->sequence);
    const float scale = (float)(1 / sqrt((double)z->dim));
    case_begin("attention of a step %s %u x %u, %u:%u heads of %u, queries from %u, %u keys", named(element), z->batch,
               z->sequence, z->heads, z->kv_heads, z->dim, first_query, key_count);
    struct tensor *qkv = input("qkv", element, q + kv, 1), *keys = input("keys", element, kv, 1);
    struct tensor *y = partly("result", element, q, ulps, 4e-6);
    struct tensor *lse = partly("log-sum-exp", DTP_ELEMENT_FP32, statistics, 8, 4e-6);
    struct dtp_attention_args a[SIDES];
    for (int s = 0; s < SIDES; s++)
        a[s] = (struct dtp_attention_args){.qkv = qkv->at[s],
                                           .keys = keys->at[s],
                                           .result = y->at[s],
                                           .log_sum_exp = lse->at[s],
                                           .batch = z->batch,
                                           .sequence = z->sequence,
                                           .heads = z->heads,
                                           .kv_heads = z->kv_heads,
                                           .head_dim = z->dim,
                                           .first_query = first_query,
                                           .key_count = key_count,
                                           .scale = scale,
                                           .element = element};
    VERIFY(attention, a);
    case_begin("attention_backward of a step %s %u x %u, %u:%u heads of %u, queries from %u, %u keys", named(element),
               z->batch, z->sequence, z->heads, z->kv_heads, z->dim, first_query, key_count);
    qkv = input("qkv", element, q + kv, 1), keys = input("keys", element, kv, 1);
    y = input("result", element, q, 0.5), lse = input("log-sum-exp", DTP_ELEMENT_FP32, statistics, 0.5);
    struct tensor *gradient = input("gradient", element, q, 1);
    for (uint64_t i = 0; i < statistics; i++) /* of all steps: no weight is above 1 */
        ((float *)lse->at[HOST])[i] += 6;
    struct tensor *all = bytes_of("log-sum-exp", lse->at[HOST], lse->bytes);
    struct tensor *of_queries = partly("queries gradient", element, q, ulps, absolute);
    struct tensor *of_keys = partly("keys gradient", element, kv, ulps, absolute);
    struct dtp_attention_backward_args back[SIDES];
    for (int s = 0; s < SIDES; s++)
        back[s] = (struct dtp_attention_backward_args){.qkv = qkv->at[s],
                                                       .keys = keys->at[s],
                                                       .result = y->at[s],
                                                       .gradient = gradient->at[s],
                                                       .log_sum_exp = all->at[s],
                                                       .query_gradient = of_queries->at[s],
                                                       .keys_gradient = of_keys->at[s],
                                                       .batch = z->batch,
                                                       .sequence = z->sequence,
                                                       .heads = z->heads,
                                                       .kv_heads = z->kv_heads,
                                                       .head_dim = z->dim,
                                                       .first_query = first_query,
                                                       .key_count = key_count,
                                                       .scale = scale,
                                                       .element = element};
    VERIFY(attention_backward, back);
}

static void test_merge(const struct size *z, uint32_t steps, uint32_t whole, enum dtp_element element)
{
    const uint64_t rows = (uint64_t)z->batch * z->sequence, q = rows * z->heads * z->dim;
    case_begin("merge_attention %s %u x %u, %u heads of %u, %u steps, %u whole", named(element), z->batch, z->sequence,
               z->heads, z->dim, steps, whole);
    struct tensor *parts = input("parts", element, steps * q, 1);
    struct tensor *sums = input("log-sum-exps", DTP_ELEMENT_FP32, steps * rows * z->heads, 2);
    struct tensor *y = result("result", element, q, ulps_of(element), 4e-6);
    struct tensor *lse = result("log-sum-exp", DTP_ELEMENT_FP32, rows * z->heads, 8, 4e-6);
    struct dtp_merge_attention_args a[SIDES];
    for (int s = 0; s < SIDES; s++)
        a[s] = (struct dtp_merge_attention_args){.parts = parts->at[s],
                                                 .part_log_sum_exp = sums->at[s],
                                                 .result = y->at[s],
                                                 .log_sum_exp = lse->at[s],
                                                 .steps = steps,
                                                 .whole = whole,
                                                 .batch = z->batch,
                                                 .sequence = z->sequence,
                                                 .heads = z->heads,
                                                 .head_dim = z->dim,
                                                 .element = element};
    VERIFY(merge_attention, a);
}

static void test_terms(const struct size *z, uint32_t first_query, uint32_t key_count, bool accumulate,
                       enum dtp_element element)
{
    const uint64_t rows = (uint64_t)z->batch * z->sequence, q = rows * z->heads * z->dim;
    const uint64_t kv = rows * 2 * z->kv_heads * z->dim;
    case_begin("merge_gradients %s %u x %u, %u:%u heads of %u, queries from %u, %u keys%s", named(element), z->batch,
               z->sequence, z->heads, z->kv_heads, z->dim, first_query, key_count, accumulate ? ", added" : "");
    struct tensor *of_queries = input("queries gradient", element, q, 1), *of_keys = input("keys", element, kv, 1);
    struct tensor *packed = partly("qkv gradient", element, q + kv, ulps_of(element), 1e-6);
    struct tensor *sum = accumulate ? partly("sum", element, kv, ulps_of(element), 1e-6)
                                    : result("sum", element, kv, ulps_of(element), 1e-6);
    struct dtp_merge_gradients_args a[SIDES];
    for (int s = 0; s < SIDES; s++)
        a[s] = (struct dtp_merge_gradients_args){.query_gradient = of_queries->at[s],
                                                 .keys_gradient = of_keys->at[s],
                                                 .qkv_gradient = packed->at[s],
                                                 .sum = sum->at[s],
                                                 .batch = z->batch,
                                                 .sequence = z->sequence,
                                                 .heads = z->heads,
                                                 .kv_heads = z->kv_heads,
                                                 .head_dim = z->dim,
                                                 .first_query = first_query,
                                                 .key_count = key_count,
                                                 .element = element,
                                                 .accumulate = accumulate};
    VERIFY(merge_gradients, a);
}

/* Some columns of rows, out of packed ones or back. */
static void test_columns(uint64_t width, uint64_t packed, uint64_t rows, bool back, enum dtp_element element)
{
    case_begin("columns %s %llu of %llu, %llu rows%s", named(element), (unsigned long long)width,
               (unsigned long long)packed, (unsigned long long)rows, back ? ", added" : "");
    struct tensor *from = input("from", element, 3 * rows * (back ? width : packed), 1);
    struct tensor *to = back ? partly("to", element, 3 * rows * packed, ulps_of(element), 1e-6)
                             : result("to", element, 3 * rows * width, 0, 0);
    const uint64_t in = back ? width : packed, out = back ? packed : width;
    struct dtp_columns_args a[SIDES];
    for (int s = 0; s < SIDES; s++)
        a[s] = (struct dtp_columns_args){.from = from->at[s],
                                         .to = to->at[s],
                                         .width = width,
                                         .count = {3, 1, rows},
                                         .from_step = {rows * in, 0, in},
                                         .to_step = {rows * out, 0, out},
                                         .element = element,
                                         .accumulate = back};
    VERIFY(columns, a);
}

/* Heads laid out for ranks, turned or as they are, and back. */
static void test_laid_out(const struct size *z, uint32_t ranks, uint32_t chunks, bool turned, bool back,
                          enum dtp_element element)
{
    const uint64_t count = (uint64_t)z->batch * z->sequence * (z->heads + 2 * (uint64_t)z->kv_heads) * z->dim,
                   pairs = (uint64_t)z->sequence * (z->dim / 2);
    case_begin("lay_out_heads %s %u x %u, %u:%u heads of %u, %u ranks, %u chunks%s%s", named(element), z->batch,
               z->sequence, z->heads, z->kv_heads, z->dim, ranks, chunks, turned ? ", turned" : "",
               back ? ", back" : "");
    struct tensor *from = input("from", element, count, 1), *cosines = input("cosines", DTP_ELEMENT_FP32, pairs, 1),
                  *sines = input("sines", DTP_ELEMENT_FP32, pairs, 1);
    struct tensor *to = result("to", element, count, turned ? ulps_of(element) : 0, turned ? 1e-6 : 0);
    struct dtp_lay_out_heads_args a[SIDES];
    for (int s = 0; s < SIDES; s++)
        a[s] = (struct dtp_lay_out_heads_args){.rows = back ? to->at[s] : from->at[s],
                                               .laid_out = back ? from->at[s] : to->at[s],
                                               .cosines = turned ? cosines->at[s] : NULL,
                                               .sines = turned ? sines->at[s] : NULL,
                                               .batch = z->batch,
                                               .sequence = z->sequence,
                                               .heads = z->heads,
                                               .kv_heads = z->kv_heads,
                                               .head_dim = z->dim,
                                               .ranks = ranks,
                                               .chunks = chunks,
                                               .element = element,
                                               .back = back};
    VERIFY(lay_out_heads, a);
}

void test_contexts(void)
{
    const struct size sizes[] = {
        {1, 2, 1, 1, 64}, {2, 66, 4, 2, 64}, {1, 70, 8, 1, 128}, {3, 34, 2, 2, 24}, {1, 400, 16, 2, 128}};
    for (size_t i = 0; i < COUNT(sizes) - small; i++)
        for (int k = 0; k < 2; k++) {
            const enum dtp_element element = k ? halves : DTP_ELEMENT_FP32;
            const struct size *z = &sizes[i];
            test_step(z, 0, z->sequence / 2, element);
            test_step(z, z->sequence / 2, z->sequence, element);
            test_merge(z, 2, 1, element);
            test_merge(z, 4, 4, element);
            for (int accumulate = 0; accumulate < 2; accumulate++) {
                test_terms(z, 0, z->sequence / 2, accumulate, element);
                test_terms(z, z->sequence / 2, z->sequence, accumulate, element);
            }
            test_columns(2 * (uint64_t)z->kv_heads * z->dim, (z->heads + 2 * (uint64_t)z->kv_heads) * z->dim,
                         z->sequence, false, element);
            test_columns(2 * (uint64_t)z->kv_heads * z->dim, (z->heads + 2 * (uint64_t)z->kv_heads) * z->dim,
                         z->sequence, true, element);
            test_columns(5, 7, 33, k, element);
            for (int ways = 0; ways < 4; ways++) {
                const struct size whole = {z->batch, z->sequence, 4 * z->heads, 4 * z->kv_heads, z->dim},
                                  results = {z->batch, z->sequence, 4 * z->heads, 0, z->dim};
                test_laid_out(&whole, ways % 2 ? 4 : 2, ways % 2 ? 1 : 2, ways & 1, ways & 2, element);
                test_laid_out(&results, 2, 2, false, ways & 2, element);
            }
        }
}
