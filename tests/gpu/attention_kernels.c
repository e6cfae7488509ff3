/* Attention on tensor cores, which rounds weights and slopes of scores to the element before it multiplies with them.
 *
 * What that allows: u = 2^-9 in bf16, 2^-12 in fp16, is half a unit in the last place of 1. A result is the mean of
 * values by weights each off by u of itself: by u times the largest value at most, 2 sqrt(3) of these inputs. In
 * backward each term of a sum is off by up to u of itself, evenly, which is u / sqrt(3) in the mean square. Terms are
 * weights times gradients, or slopes times queries and keys, of deviation 1 each; squares of a key's weights sum to
 * less than 4 for a head (1 + 1/4 + 1/9 ... where all keys are alike), so that six deviations of a sum over `group`
 * heads are 6 u / sqrt(3) sqrt(4 group). */
#include "gpu/kernel_tests.h"

#include <cuda_runtime.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What VERIFY compares them with. */
#define dtp_reference_attention_mma dtp_reference_attention
#define dtp_reference_attention_mma_backward dtp_reference_attention_backward

struct attention_case {
    uint32_t batch, sequence, heads, kv_heads, dim, value_dim, window, first_query, key_count;
    float softcap;
    bool alibi;
};

static double rounding(enum dtp_element element)
{
    return element == DTP_ELEMENT_BF16 ? 0x1p-9 : 0x1p-12;
}

static void begin(const char *what, const struct attention_case *z, enum dtp_element element)
{
    char of_step[48] = "";
    if (z->key_count)
        snprintf(of_step, sizeof of_step, ", from %u, %u keys", z->first_query, z->key_count);
    case_begin("%s %s %ux%u %u:%u of %u/%u w%u c%g%s%s", what, named(element), z->batch, z->sequence, z->heads,
               z->kv_heads, z->dim, z->value_dim, z->window, (double)z->softcap, z->alibi ? " alibi" : "", of_step);
}

/* Elements of packed rows, of results, of a step's keys, statistics. */
struct counts {
    uint64_t packed, out, keys, statistics;
};

static struct counts count(const struct attention_case *z)
{
    const uint64_t rows = (uint64_t)z->batch * z->sequence;
    return (struct counts){rows * ((z->heads + z->kv_heads) * z->dim + z->kv_heads * z->value_dim),
                           rows * z->heads * z->value_dim, rows * 2 * z->kv_heads * z->dim, rows * z->heads};
}

/* A step leaves rows as they are, so that what stays is compared as well. */
static struct tensor *written(const char *name, const struct attention_case *z, enum dtp_element element,
                              uint64_t elements, double ulps, double absolute)
{
    return z->key_count ? updated(input(name, element, elements, 1), ulps, absolute)
                        : result(name, element, elements, ulps, absolute);
}

static void test_forward(const struct attention_case *z, enum dtp_element element)
{
    const struct counts n = count(z);
    begin("attention_mma", z, element);
    struct tensor *qkv = input("qkv", element, n.packed, 1), *keys = input("keys", element, n.keys, 1);
    struct tensor *y = written("result", z, element, n.out, 1, 2 * sqrt(3) * rounding(element));
    struct tensor *lse = written("log-sum-exp", z, DTP_ELEMENT_FP32, n.statistics, 8, 4e-6 + 3e-7 * (double)z->softcap);
    struct dtp_attention_args a[SIDES];
    for (int s = 0; s < SIDES; s++)
        a[s] = (struct dtp_attention_args){.qkv = qkv->at[s],
                                           .keys = z->key_count ? keys->at[s] : NULL,
                                           .result = y->at[s],
                                           .log_sum_exp = lse->at[s],
                                           .batch = z->batch,
                                           .sequence = z->sequence,
                                           .heads = z->heads,
                                           .kv_heads = z->kv_heads,
                                           .head_dim = z->dim,
                                           .value_dim = z->value_dim == z->dim ? 0 : z->value_dim,
                                           .window = z->window,
                                           .first_query = z->first_query,
                                           .key_count = z->key_count,
                                           .scale = (float)(1 / sqrt((double)z->dim)),
                                           .softcap = z->softcap,
                                           .alibi = z->alibi,
                                           .element = element};
    VERIFY(attention_mma, a);
}

/* From what forward makes on the host; of a step, whose result is of all steps together, from something like it. */
static void make_forward(const struct attention_case *z, enum dtp_element element, const struct tensor *qkv,
                         struct tensor *y, struct tensor *lse)
{
    struct dtp_attention_args a = {.qkv = qkv->at[HOST],
                                   .result = y->at[HOST],
                                   .log_sum_exp = lse->at[HOST],
                                   .batch = z->batch,
                                   .sequence = z->sequence,
                                   .heads = z->heads,
                                   .kv_heads = z->kv_heads,
                                   .head_dim = z->dim,
                                   .value_dim = z->value_dim == z->dim ? 0 : z->value_dim,
                                   .window = z->window,
                                   .scale = (float)(1 / sqrt((double)z->dim)),
                                   .softcap = z->softcap,
                                   .alibi = z->alibi,
                                   .element = element};
    if (!z->key_count)
        dtp_reference_attention(NULL, &a, NULL);
    for (uint64_t i = 0; i < lse->count && z->key_count; i++) /* no weight is above 1 */
        ((float *)lse->at[HOST])[i] += 6;
    memcpy(y->start, y->at[HOST], y->bytes), memcpy(lse->start, lse->at[HOST], lse->bytes);
}

static void test_backward(const struct attention_case *z, enum dtp_element element)
{
    const struct counts n = count(z);
    const double absolute = 6 / sqrt(3) * 2 * sqrt((double)z->heads / z->kv_heads) * rounding(element);
    begin("attention_mma_backward", z, element);
    struct tensor *qkv = input("qkv", element, n.packed, 1), *keys = input("keys", element, n.keys, 1);
    struct tensor *y = input("result", element, n.out, 0.5), *gradient = input("gradient", element, n.out, 1);
    struct tensor *lse = input("log-sum-exp", DTP_ELEMENT_FP32, n.statistics, 0.5);
    make_forward(z, element, qkv, y, lse);
    struct tensor *of_qkv = written("qkv gradient", z, element, z->key_count ? 8 : n.packed, 1, absolute);
    struct tensor *of_queries = z->key_count ? written("queries gradient", z, element, n.out, 1, absolute) : NULL;
    struct tensor *of_keys = z->key_count ? written("keys gradient", z, element, n.keys, 1, absolute) : NULL;
    void *workspace;
    if (cudaMalloc(&workspace, n.statistics * sizeof(float)) != cudaSuccess)
        exit(1);
    cudaMemset(workspace, 0xFF, n.statistics * sizeof(float)); /* NaN, which must not show */
    struct dtp_attention_backward_args back[SIDES];
    for (int s = 0; s < SIDES; s++)
        back[s] = (struct dtp_attention_backward_args){.qkv = qkv->at[s],
                                                       .keys = z->key_count ? keys->at[s] : NULL,
                                                       .result = y->at[s],
                                                       .gradient = gradient->at[s],
                                                       .log_sum_exp = lse->at[s],
                                                       .qkv_gradient = of_qkv->at[s],
                                                       .query_gradient = of_queries ? of_queries->at[s] : NULL,
                                                       .keys_gradient = of_keys ? of_keys->at[s] : NULL,
                                                       .workspace = workspace,
                                                       .workspace_bytes = n.statistics * sizeof(float),
                                                       .batch = z->batch,
                                                       .sequence = z->sequence,
                                                       .heads = z->heads,
                                                       .kv_heads = z->kv_heads,
                                                       .head_dim = z->dim,
                                                       .value_dim = z->value_dim == z->dim ? 0 : z->value_dim,
                                                       .window = z->window,
                                                       .first_query = z->first_query,
                                                       .key_count = z->key_count,
                                                       .scale = (float)(1 / sqrt((double)z->dim)),
                                                       .softcap = z->softcap,
                                                       .alibi = z->alibi,
                                                       .element = element};
    VERIFY(attention_mma_backward, back);
    cudaFree(workspace);
}

/* Widths of each kernel and between them; windows below, inside and across tiles; sequences of one query, of whole
 * tiles, of odd lengths and of several tiles; steps of a ring, front and back. */
void test_mma_attentions(void)
{
    const struct attention_case cases[] = {
        {1, 1, 1, 1, 64, 64, .window = 0},
        {2, 65, 2, 2, 64, 64, .window = 0},
        {1, 128, 4, 2, 64, 64, .window = 1},
        {1, 150, 4, 2, 80, 80, .window = 37},
        {2, 31, 2, 1, 96, 96, .window = 5},
        {1, 193, 3, 3, 96, 96, .alibi = true},
        {1, 33, 8, 1, 128, 128, .window = 0},
        {1, 200, 2, 1, 128, 128, .window = 65, .softcap = 1.5f},
        {1, 129, 6, 3, 128, 128, .alibi = true},
        {1, 100, 3, 3, 192, 128, .window = 0},
        {2, 161, 2, 1, 192, 128, .window = 70},
        {1, 90, 2, 2, 192, 192, .window = 0},
        {1, 140, 1, 1, 256, 256, .window = 0},
        {2, 130, 4, 1, 256, 256, .window = 70, .softcap = 1.5f, .alibi = true},
        {1, 97, 2, 2, 256, 256, .window = 33, .softcap = 50},
        {1, 100, 2, 2, 88, 72, .window = 0},
        {1, 70, 2, 1, 8, 8, .window = 0},
        {1, 96, 4, 2, 64, 64, .key_count = 70},
        {2, 80, 4, 2, 128, 128, .first_query = 40, .key_count = 80},
        {1, 70, 2, 1, 256, 256, .first_query = 35, .key_count = 69},
        {1, 1000, 4, 1, 256, 256, .window = 512},
        {2, 1024, 16, 2, 128, 128, .alibi = true},
        {1, 777, 4, 4, 192, 128, .window = 0},
    };
    for (size_t i = 0; i < COUNT(cases) - 3 * small; i++) {
        test_forward(&cases[i], halves);
        test_backward(&cases[i], halves);
    }
}
