/* Every CUDA kernel against the plain C one.   test_kernels [--small] [--seed N] | --bench [PART OF A NAME]
 *
 * What is allowed: the device computes in fp32 what the reference computes in double, and both round their result to
 * the element. A result in bf16 may then fall on two neighbours: 1 unit in the last place (2^-8 of the value or less).
 * A result in fp32 is off by a few units of 2^-24 of the largest thing that was added on the way: `absolute` names it,
 * times the depth of the sum (a tree over a row: some 8 levels and the terms a thread adds itself). */
#include "gpu/tensors.h"

#include <cuda_runtime.h>
#include <math.h>
#include <stdlib.h>
#include <time.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))
static const double epsilon = 5.960464477539063e-8; /* 2^-24 */

static bool small; /* sizes that a sanitizer gets through */

static const char *named(enum dtp_element element)
{
    return element == DTP_ELEMENT_BF16 ? "bf16" : "fp32";
}

static double ulps_of(enum dtp_element element)
{
    return element == DTP_ELEMENT_BF16 ? 1 : 4;
}

static void test_norm(uint64_t rows, uint32_t width, enum dtp_element element, bool layer, bool accumulate)
{
    const char *kind = layer ? "layer" : "rms";
    uint64_t all = rows * width;
    double ulps = ulps_of(element);
    case_begin("norm %s %s %llu x %u", kind, named(element), (unsigned long long)rows, width);
    struct tensor *x = input("x", element, all, 2), *weight = input("weight", element, width, 1);
    struct tensor *bias = input("bias", element, width, 1), *y = result("result", element, all, ulps, 32 * epsilon);
    struct tensor *addend = accumulate ? input("addend", element, all, 1) : NULL;
    struct tensor *inverse = result("inverse deviation", DTP_ELEMENT_FP32, rows, 4, 16 * epsilon);
    struct tensor *mean = layer ? result("mean", DTP_ELEMENT_FP32, rows, 4, 32 * epsilon) : NULL;
    struct dtp_norm_args a[SIDES];
    for (int s = 0; s < SIDES; s++)
        a[s] = (struct dtp_norm_args){.x = x->at[s],
                                      .weight = weight->at[s],
                                      .bias = layer ? bias->at[s] : NULL,
                                      .addend = addend ? addend->at[s] : NULL,
                                      .result = y->at[s],
                                      .inverse_deviation = inverse->at[s],
                                      .epsilon = 1e-5f,
                                      .weight_offset = accumulate ? 1 : 0,
                                      .mean = layer ? mean->at[s] : NULL,
                                      .rows = rows,
                                      .width = width,
                                      .element = element,
                                      .weight_element = element};
    VERIFY(norm, a);

    /* Statistics near those of the rows; any would do, both sides compute with the same. Gradients in fp32 and, where
     * they are not added up, in the element's type. */
    enum dtp_element of_gradient = accumulate ? DTP_ELEMENT_FP32 : element;
    double sum_error = 16 * epsilon * sqrt((double)rows), sum_ulps = ulps_of(of_gradient);
    case_begin("norm_backward %s %s %llu x %u%s", kind, named(element), (unsigned long long)rows, width,
               accumulate ? " +" : "");
    x = input("x", element, all, 2), weight = input("weight", element, width, 1);
    struct tensor *gradient = input("gradient", element, all, 1),
                  *workspace = input("workspace", DTP_ELEMENT_FP32, 2 * (uint64_t)DTP_PARTIAL_SUM_ROWS * width, 1);
    workspace->result = true, workspace->absolute = INFINITY; /* written as it likes, within its bounds */
    inverse = input("inverse", DTP_ELEMENT_FP32, rows, 0.1), mean = input("mean", DTP_ELEMENT_FP32, rows, 0.1);
    struct tensor *dx = accumulate ? updated(input("residual gradient", element, all, 1), ulps, 64 * epsilon)
                                   : result("residual gradient", element, all, ulps, 64 * epsilon);
    struct tensor *dw = accumulate ? updated(input("weight gradient", of_gradient, width, 1), sum_ulps, sum_error)
                                   : result("weight gradient", of_gradient, width, sum_ulps, sum_error);
    struct tensor *db = accumulate ? updated(input("bias gradient", of_gradient, width, 1), sum_ulps, sum_error)
                                   : (layer ? result("bias gradient", of_gradient, width, sum_ulps, sum_error) : NULL);
    struct dtp_norm_backward_args back[SIDES];
    for (int s = 0; s < SIDES; s++)
        back[s] = (struct dtp_norm_backward_args){.gradient = gradient->at[s],
                                                  .x = x->at[s],
                                                  .weight = weight->at[s],
                                                  .inverse_deviation = inverse->at[s],
                                                  .mean = layer ? mean->at[s] : NULL,
                                                  .residual_gradient = dx->at[s],
                                                  .weight_gradient = dw->at[s],
                                                  .bias_gradient = layer ? db->at[s] : NULL,
                                                  .workspace = workspace->at[s],
                                                  .rows = rows,
                                                  .width = width,
                                                  .weight_offset = accumulate ? 1 : 0,
                                                  .element = element,
                                                  .weight_element = element,
                                                  .gradient_element = of_gradient,
                                                  .add_to_residual = accumulate,
                                                  .accumulate = accumulate};
    VERIFY(norm_backward, back);
}

static void test_norms(void)
{
    const struct {
        uint64_t rows;
        uint32_t width;
    } shapes[] = {{1, 8},     {3, 768},   {257, 1600}, {1000, 1001}, {65, 2048}, {700, 4096},
                  {37, 8192}, {5, 16384}, {3, 20480},  {2, 33},      {300, 64}};
    for (size_t i = 0; i < COUNT(shapes); i++)
        for (int k = 0; k < 8; k++) {
            if (small && shapes[i].rows * shapes[i].width > 1 << 17)
                continue;
            if ((k & 1) == 0 && shapes[i].width > 16384)
                continue; /* fp32 rows of more than 4096 vectors are refused */
            test_norm(shapes[i].rows, shapes[i].width, k & 1 ? DTP_ELEMENT_BF16 : DTP_ELEMENT_FP32, k & 2, k & 4);
        }
}

static void test_rotary(uint32_t heads, uint32_t kv_heads, uint32_t dim, enum dtp_element element, bool inverse)
{
    const uint32_t sequence = 33, rows = 2 * 33;
    case_begin("rotary %s %u:%u heads of %u%s", named(element), heads, kv_heads, dim, inverse ? " inverse" : "");
    struct tensor *qkv =
        updated(input("qkv", element, (uint64_t)rows * (heads + 2 * kv_heads) * dim, 1), ulps_of(element), 8 * epsilon);
    struct tensor *cosines = input("cosines", DTP_ELEMENT_FP32, (uint64_t)sequence * dim / 2, 0.5);
    struct tensor *sines = input("sines", DTP_ELEMENT_FP32, (uint64_t)sequence * dim / 2, 0.5);
    struct dtp_rotary_args a[SIDES];
    for (int s = 0; s < SIDES; s++)
        a[s] = (struct dtp_rotary_args){.qkv = qkv->at[s],
                                        .cosines = cosines->at[s],
                                        .sines = sines->at[s],
                                        .rows = rows,
                                        .sequence = sequence,
                                        .heads = heads,
                                        .kv_heads = kv_heads,
                                        .head_dim = dim,
                                        .element = element,
                                        .inverse = inverse};
    VERIFY(rotary, a);
}

static void test_rotaries(void)
{
    const uint32_t shapes[][3] = {{8, 8, 64}, {8, 1, 128}, {6, 2, 80},   {3, 1, 96},
                                  {2, 1, 20}, {5, 5, 2},   {40, 8, 128}, {1, 1, 768}};
    for (size_t i = 0; i < COUNT(shapes); i++)
        for (int k = 0; k < 4; k++)
            test_rotary(shapes[i][0], shapes[i][1], shapes[i][2], k & 1 ? DTP_ELEMENT_BF16 : DTP_ELEMENT_FP32, k & 2);
}

static void test_qk_norm(uint32_t heads, uint32_t kv_heads, uint32_t dim, bool wide, enum dtp_element element,
                         bool accumulate)
{
    const uint32_t rows = small ? 5 : 300;
    const uint64_t packed = (uint64_t)rows * (heads + 2 * kv_heads) * dim, normed = (uint64_t)rows * (heads + kv_heads);
    const uint64_t deviations = wide ? 2 * rows : normed;
    const uint32_t weights = wide ? (heads + kv_heads) * dim : 2 * dim;
    const double ulps = ulps_of(element);
    case_begin("qk_norm %s %u:%u heads of %u%s", named(element), heads, kv_heads, dim, wide ? " as one" : "");
    struct tensor *qkv = updated(input("qkv", element, packed, 2), ulps, 32 * epsilon);
    struct tensor *weight = input("weight", element, weights, 1), *raw = result("raw", element, normed * dim, 0, 0);
    struct tensor *inverse = result("inverse deviation", DTP_ELEMENT_FP32, deviations, 4, 16 * epsilon);
    struct dtp_qk_norm_args a[SIDES];
    for (int s = 0; s < SIDES; s++)
        a[s] = (struct dtp_qk_norm_args){.qkv = qkv->at[s],
                                         .weight = weight->at[s],
                                         .raw = raw->at[s],
                                         .inverse_deviation = inverse->at[s],
                                         .rows = rows,
                                         .heads = heads,
                                         .kv_heads = kv_heads,
                                         .head_dim = dim,
                                         .epsilon = 1e-5f,
                                         .weight_offset = accumulate ? 1 : 0,
                                         .element = element,
                                         .weight_element = element,
                                         .wide = wide};
    VERIFY(qk_norm, a);

    enum dtp_element of_gradient = accumulate ? DTP_ELEMENT_FP32 : element;
    const double sum_error = 16 * epsilon * sqrt((double)rows * heads), sum_ulps = ulps_of(of_gradient);
    case_begin("qk_norm_backward %s %u:%u heads of %u%s%s", named(element), heads, kv_heads, dim, wide ? " as one" : "",
               accumulate ? " +" : "");
    struct tensor *gradient = updated(input("qkv gradient", element, packed, 1), ulps, 64 * epsilon);
    raw = input("raw", element, normed * dim, 2), weight = input("weight", element, weights, 1);
    inverse = input("inverse", DTP_ELEMENT_FP32, deviations, 0.1);
    struct tensor *workspace =
        updated(input("workspace", DTP_ELEMENT_FP32, (uint64_t)DTP_PARTIAL_SUM_ROWS * weights, 1), 0, INFINITY);
    struct tensor *dw = accumulate ? updated(input("weight gradient", of_gradient, weights, 1), sum_ulps, sum_error)
                                   : result("weight gradient", of_gradient, weights, sum_ulps, sum_error);
    struct dtp_qk_norm_backward_args back[SIDES];
    for (int s = 0; s < SIDES; s++)
        back[s] = (struct dtp_qk_norm_backward_args){.qkv_gradient = gradient->at[s],
                                                     .raw = raw->at[s],
                                                     .weight = weight->at[s],
                                                     .inverse_deviation = inverse->at[s],
                                                     .weight_gradient = dw->at[s],
                                                     .workspace = workspace->at[s],
                                                     .rows = rows,
                                                     .heads = heads,
                                                     .kv_heads = kv_heads,
                                                     .head_dim = dim,
                                                     .weight_offset = accumulate ? 1 : 0,
                                                     .element = element,
                                                     .weight_element = element,
                                                     .gradient_element = of_gradient,
                                                     .accumulate = accumulate,
                                                     .wide = wide};
    VERIFY(qk_norm_backward, back);
}

static void test_qk_norms(void)
{
    const uint32_t shapes[][3] = {{8, 8, 64}, {8, 1, 128}, {6, 2, 80}, {3, 1, 96}, {2, 1, 20}, {16, 8, 256}, {1, 1, 8}};
    const uint32_t wide[][3] = {{4, 2, 8}, {32, 32, 128}, {40, 8, 128}, {3, 1, 20}, {16, 1, 64}};
    for (size_t i = 0; i < COUNT(shapes); i++)
        for (int k = 0; k < 4; k++)
            test_qk_norm(shapes[i][0], shapes[i][1], shapes[i][2], false, k & 1 ? DTP_ELEMENT_BF16 : DTP_ELEMENT_FP32,
                         k & 2);
    for (size_t i = 0; i < COUNT(wide); i++)
        for (int k = 0; k < 4; k++)
            test_qk_norm(wide[i][0], wide[i][1], wide[i][2], true, k & 1 ? DTP_ELEMENT_BF16 : DTP_ELEMENT_FP32, k & 2);
}

static void test_activation(uint64_t rows, uint32_t width, enum dtp_activation_kind kind, enum dtp_element element,
                            bool in_place)
{
    const char *kinds[] = {"swiglu", "gelu", "relu", "geglu"};
    const bool gated = kind == DTP_ACTIVATION_SWIGLU || kind == DTP_ACTIVATION_GEGLU;
    uint64_t all = rows * width, inputs = gated ? 2 * all : all;
    double ulps = ulps_of(element), absolute = 32 * epsilon;
    /* The slope's error is as without a gate, and is multiplied by the other half: of deviation 3, 4 of them. */
    double of_slope = (kind == DTP_ACTIVATION_GEGLU ? 12 : 1) * 4 * absolute;
    case_begin("activation %s %s %llu x %u", kinds[kind], named(element), (unsigned long long)rows, width);
    struct tensor *up = input("up", element, inputs, 3), *y = result("result", element, all, ulps, absolute);
    struct dtp_activation_args a[SIDES];
    for (int s = 0; s < SIDES; s++)
        a[s] = (struct dtp_activation_args){
            .up = up->at[s], .result = y->at[s], .rows = rows, .width = width, .kind = kind, .element = element};
    VERIFY(activation, a);

    case_begin("activation_backward %s %s %llu x %u%s", kinds[kind], named(element), (unsigned long long)rows, width,
               in_place ? " in place" : "");
    up = input("up", element, inputs, 3);
    struct tensor *gradient = input("gradient", element, all, 1);
    struct tensor *of_up =
        in_place ? updated(up, ulps, of_slope) : result("up gradient", element, inputs, ulps, of_slope);
    struct tensor *again = in_place ? updated(gradient, ulps, absolute) : NULL;
    struct dtp_activation_backward_args back[SIDES];
    for (int s = 0; s < SIDES; s++)
        back[s] = (struct dtp_activation_backward_args){.gradient = gradient->at[s],
                                                        .up = up->at[s],
                                                        .up_gradient = of_up->at[s],
                                                        .result = again ? again->at[s] : NULL,
                                                        .rows = rows,
                                                        .width = width,
                                                        .kind = kind,
                                                        .element = element};
    VERIFY(activation_backward, back);
}

static void test_activations(void)
{
    const struct {
        uint64_t rows;
        uint32_t width;
    } shapes[] = {{1, 8}, {7, 11008}, {129, 344}, {5, 333}, {1, 1}};
    for (size_t i = 0; i < COUNT(shapes); i++)
        for (int k = 0; k < 16; k++)
            test_activation(shapes[i].rows, shapes[i].width, (enum dtp_activation_kind)(k % 4),
                            k / 4 & 1 ? DTP_ELEMENT_BF16 : DTP_ELEMENT_FP32, k / 8);
}

/* Rows sorted by token, as the host prepares them: `order`, `starts` and the number of distinct ones. */
static int32_t sort_tokens(const int32_t *tokens, int32_t rows, int32_t vocab, int32_t *order, int32_t *starts)
{
    int32_t distinct = 0, at = 0;
    for (int32_t token = 0; token < vocab; token++) {
        int32_t begin = at;
        for (int32_t i = 0; i < rows; i++)
            if (tokens[i] == token)
                order[at++] = i;
        if (at > begin)
            starts[distinct++] = begin;
    }
    starts[distinct] = rows;
    return distinct;
}

static void test_embedding(int32_t rows, uint32_t sequence, uint32_t width, int32_t vocab, enum dtp_element element,
                           bool positions)
{
    enum dtp_element of_gradient = positions ? DTP_ELEMENT_FP32 : element;
    int32_t *tokens = malloc((size_t)rows * 4), *order = malloc((size_t)rows * 4),
            *starts = calloc((size_t)rows + 1, 4);
    for (int32_t i = 0; i < rows; i++) /* the lower ones more often: long and short lists of rows */
        tokens[i] = (int32_t)random_below(1 + random_below((uint32_t)vocab));
    int32_t distinct = sort_tokens(tokens, rows, vocab, order, starts);

    case_begin("embedding %s %d x %u of %d%s", named(element), rows, width, vocab, positions ? ", positions" : "");
    struct tensor *ids = integers("tokens", tokens, (uint64_t)rows),
                  *table = input("table", element, (uint64_t)vocab * width, 1);
    struct tensor *position = input("positions", element, (uint64_t)sequence * width, 1);
    struct tensor *y = result("result", element, (uint64_t)rows * width, ulps_of(element), 0);
    struct dtp_embedding_args a[SIDES];
    for (int s = 0; s < SIDES; s++)
        a[s] = (struct dtp_embedding_args){.tokens = ids->at[s],
                                           .table = table->at[s],
                                           .positions = positions ? position->at[s] : NULL,
                                           .result = y->at[s],
                                           .rows = (uint64_t)rows,
                                           .width = width,
                                           .vocab = (uint32_t)vocab,
                                           .sequence = sequence,
                                           .element = element,
                                           .result_element = element};
    VERIFY(embedding, a);

    case_begin("embedding_backward %s %d x %u of %d%s", named(element), rows, width, vocab,
               positions ? ", positions" : "");
    double sum_error = 16 * epsilon * sqrt((double)rows), ulps = ulps_of(of_gradient);
    ids = integers("tokens", tokens, (uint64_t)rows);
    struct tensor *by_token = integers("order", order, (uint64_t)rows),
                  *begins = integers("starts", starts, (uint64_t)distinct + 1);
    struct tensor *count = integers("distinct", &distinct, 1),
                  *gradient = input("gradient", element, (uint64_t)rows * width, 1);
    struct tensor *of_table =
        updated(input("table gradient", of_gradient, (uint64_t)vocab * width, 1), ulps, sum_error);
    struct tensor *of_position =
        !positions  ? NULL
        : width % 2 ? updated(input("positions gradient", of_gradient, (uint64_t)sequence * width, 1), ulps, sum_error)
                    : result("positions gradient", of_gradient, (uint64_t)sequence * width, ulps, sum_error);
    struct dtp_embedding_backward_args back[SIDES];
    for (int s = 0; s < SIDES; s++)
        back[s] = (struct dtp_embedding_backward_args){.gradient = gradient->at[s],
                                                       .tokens = ids->at[s],
                                                       .order = by_token->at[s],
                                                       .starts = begins->at[s],
                                                       .distinct = count->at[s],
                                                       .table_gradient = of_table->at[s],
                                                       .positions_gradient = positions ? of_position->at[s] : NULL,
                                                       .rows = (uint64_t)rows,
                                                       .width = width,
                                                       .vocab = (uint32_t)vocab,
                                                       .sequence = sequence,
                                                       .element = element,
                                                       .gradient_element = of_gradient,
                                                       .accumulate_positions = width % 2};
    VERIFY(embedding_backward, back);
    free(tokens), free(order), free(starts);
}

static void test_embeddings(void)
{
    for (int k = 0; k < 4; k++) {
        enum dtp_element element = k & 1 ? DTP_ELEMENT_BF16 : DTP_ELEMENT_FP32;
        test_embedding(1, 1, 16, 5, element, k & 2);
        test_embedding(66, 33, 768, 50257 >> 4, element, k & 2);
        test_embedding(510, 255, 80, 7, element, k & 2); /* each token many times */
        test_embedding(99, 33, 129, 300, element, k & 2);
    }
}

static void test_loss(uint64_t rows, uint32_t vocab, uint32_t stride, enum dtp_element element)
{
    case_begin("loss %s %llu x %u in %u", named(element), (unsigned long long)rows, vocab, stride);
    int32_t *aims = malloc(rows * 4);
    for (uint64_t i = 0; i < rows; i++)
        aims[i] = i % 5 == 4 ? -1 : (int32_t)random_below(vocab);
    aims[0] = (int32_t)vocab - 1;
    /* Gradients are up to `scale`; their error that of exp, 2^-22, and of its argument. */
    struct tensor *logits = updated(input("logits", element, rows * stride, 4),
                                    ulps_of(element) + (element == DTP_ELEMENT_FP32) * 60, 4 * epsilon);
    struct tensor *targets = integers("targets", aims, rows),
                  *row_loss = result("row loss", DTP_ELEMENT_FP32, rows, 4, 64 * epsilon);
    struct dtp_loss_args a[SIDES];
    for (int s = 0; s < SIDES; s++)
        a[s] = (struct dtp_loss_args){.logits = logits->at[s],
                                      .targets = targets->at[s],
                                      .row_loss = row_loss->at[s],
                                      .rows = rows,
                                      .vocab = vocab,
                                      .stride = stride,
                                      .scale = 0.5f,
                                      .softcap = rows % 2 ? 3 : 0,
                                      .element = element};
    VERIFY(loss, a);
    free(aims);
}

static void test_losses(void)
{
    for (int k = 0; k < 2; k++) {
        enum dtp_element element = k ? DTP_ELEMENT_BF16 : DTP_ELEMENT_FP32;
        test_loss(1, 5, 8, element);
        test_loss(7, 50, 56, element);
        test_loss(small ? 3 : 300, 1000, 1024, element);
        test_loss(small ? 2 : 600, 32000, 32000, element);
        test_loss(small ? 2 : 300, 50257, 50304, element);
        test_loss(small ? 1 : 9, 50257, 50264, element);
        if (!small)
            test_loss(270, 128256, 128256, element);
        test_loss(small ? 1 : 140, 200019, 200064, element); /* longer than shared memory */
    }
}

static void test_sums(void)
{
    const uint64_t sizes[] = {1, 7, 1000, 32768, 1 << 20};
    for (size_t i = 0; i < COUNT(sizes) - small; i++) {
        uint64_t n = sizes[i];
        case_begin("sum %llu", (unsigned long long)n);
        struct tensor *values = input("values", DTP_ELEMENT_FP32, n, 1),
                      *total = updated(input("total", DTP_ELEMENT_FP32, 1, 1), 2, epsilon);
        struct dtp_sum_args a[SIDES];
        for (int s = 0; s < SIDES; s++)
            a[s] =
                (struct dtp_sum_args){.values = values->at[s], .total = total->at[s], .count = n, .accumulate = i % 2};
        VERIFY(sum, a);

        case_begin("square_sum and clip_scale %llu", (unsigned long long)n);
        enum dtp_element element = i % 2 ? DTP_ELEMENT_BF16 : DTP_ELEMENT_FP32;
        struct dtp_step_scalars begin = {.loss_sum = 3};
        struct tensor *x = input("values", element, n, 1),
                      *partial = result("partial", DTP_ELEMENT_FP32, DTP_SQUARE_SUM_PARTIALS, 1, INFINITY);
        struct tensor *scalars = updated(bytes_of("scalars", &begin, sizeof begin), 32, 0);
        struct dtp_square_sum_args q[SIDES];
        struct dtp_clip_scale_args c[SIDES];
        for (int s = 0; s < SIDES; s++) {
            q[s] = (struct dtp_square_sum_args){
                .values = x->at[s], .partial = partial->at[s], .count = n, .element = element};
            c[s] = (struct dtp_clip_scale_args){
                .partials = partial->at[s], .count = DTP_SQUARE_SUM_PARTIALS, .clip = 0.7f, .scalars = scalars->at[s]};
        }
        int status = dtp_reference_square_sum(NULL, &q[HOST], NULL) || dtp_reference_clip_scale(NULL, &c[HOST], NULL);
        for (int round = 0; round < 2;
             round++) { /* the two cut a tensor differently: their partials differ, the norm not */
            restore_device();
            status = status ? status : dtp_cuda_square_sum(NULL, &q[DEVICE], NULL);
            status = status ? status : dtp_cuda_clip_scale(NULL, &c[DEVICE], NULL);
            keep_round(round);
        }
        compare(status);
    }
}

static void test_bias(uint64_t rows, uint32_t width, enum dtp_element element, bool accumulate)
{
    case_begin("bias_backward %s %llu x %u%s", named(element), (unsigned long long)rows, width, accumulate ? " +" : "");
    enum dtp_element of_gradient = accumulate ? DTP_ELEMENT_FP32 : element;
    double error = 16 * epsilon * sqrt((double)rows);
    struct tensor *gradient = input("gradient", element, rows * width, 1);
    struct tensor *workspace =
        updated(input("workspace", DTP_ELEMENT_FP32, 2 * (uint64_t)DTP_PARTIAL_SUM_ROWS * width, 1), 0, INFINITY);
    struct tensor *bias = accumulate
                              ? updated(input("bias gradient", of_gradient, width, 1), ulps_of(of_gradient), error)
                              : result("bias gradient", of_gradient, width, ulps_of(of_gradient), error);
    struct dtp_bias_backward_args a[SIDES];
    for (int s = 0; s < SIDES; s++)
        a[s] = (struct dtp_bias_backward_args){.gradient = gradient->at[s],
                                               .bias_gradient = bias->at[s],
                                               .workspace = workspace->at[s],
                                               .rows = rows,
                                               .width = width,
                                               .element = element,
                                               .gradient_element = of_gradient,
                                               .accumulate = accumulate};
    VERIFY(bias_backward, a);
}

static void test_biases(void)
{
    for (int k = 0; k < 4; k++) {
        enum dtp_element element = k & 1 ? DTP_ELEMENT_BF16 : DTP_ELEMENT_FP32;
        test_bias(1, 8, element, k & 2);
        test_bias(127, 2304, element, k & 2);
        test_bias(33, 129, element, k & 2);
        if (!small)
            test_bias(20000, 264, element, k & 2);
    }
}

/* Seven combinations of element types stand for the precisions and what is between them. */
static void test_adamw(uint64_t count, uint64_t first, int mode)
{
    const struct {
        const char *name;
        enum dtp_element gradient, weight, moment;
        bool master, stochastic;
    } modes[] = {
        {"fp32", DTP_ELEMENT_FP32, DTP_ELEMENT_FP32, DTP_ELEMENT_FP32, false, false},
        {"bf16-mixed", DTP_ELEMENT_FP32, DTP_ELEMENT_BF16, DTP_ELEMENT_FP32, true, false},
        {"bf16-mixed, bf16 gradient", DTP_ELEMENT_BF16, DTP_ELEMENT_BF16, DTP_ELEMENT_FP32, true, false},
        {"bf16-pure", DTP_ELEMENT_BF16, DTP_ELEMENT_BF16, DTP_ELEMENT_BF16, false, false},
        {"bf16-pure stochastic", DTP_ELEMENT_BF16, DTP_ELEMENT_BF16, DTP_ELEMENT_BF16, false, true},
        {"bf16 moments, master", DTP_ELEMENT_FP32, DTP_ELEMENT_BF16, DTP_ELEMENT_BF16, true, true},
    };
    if ((size_t)mode >= COUNT(modes))
        return;
    case_begin("adamw %s %llu from %llu", modes[mode].name, (unsigned long long)count, (unsigned long long)first);
    struct dtp_step_scalars of_step = {.learning_rate = 1e-2f,
                                       .correction1 = 0.271f,
                                       .correction2 = 0.1426f,
                                       .step = 3,
                                       .seed = 11,
                                       .clip_scale = 0.6f};
    struct tensor *gradient = input("gradient", modes[mode].gradient, count, 1),
                  *scalars = bytes_of("scalars", &of_step, sizeof of_step);
    struct tensor *weights =
        updated(input("weights", modes[mode].weight, count, 1), ulps_of(modes[mode].weight), 4 * epsilon);
    struct tensor *master =
        modes[mode].master ? updated(input("master", DTP_ELEMENT_FP32, count, 1), 4, 4 * epsilon) : NULL;
    struct tensor *moment1 =
        updated(input("moment1", modes[mode].moment, count, 1), ulps_of(modes[mode].moment), 2 * epsilon);
    struct tensor *moment2 = input("moment2", modes[mode].moment, count, 1);
    for (uint64_t i = 0; i < count; i++) { /* squares have no sign */
        dtp_store(moment2->start, moment2->element, i, fabs(dtp_load(moment2->start, moment2->element, i)) + 0.01);
        dtp_store(moment2->at[HOST], moment2->element, i, dtp_load(moment2->start, moment2->element, i));
    }
    updated(moment2, ulps_of(modes[mode].moment), 2 * epsilon);
    struct dtp_adamw_args a[SIDES];
    for (int s = 0; s < SIDES; s++)
        a[s] = (struct dtp_adamw_args){.gradient = gradient->at[s],
                                       .weights = weights->at[s],
                                       .master = master ? master->at[s] : NULL,
                                       .moment1 = moment1->at[s],
                                       .moment2 = moment2->at[s],
                                       .count = count,
                                       .first_element = first,
                                       .beta1 = 0.9f,
                                       .beta2 = 0.95f,
                                       .epsilon = 1e-8f,
                                       .decay = 0.1f,
                                       .range_count = 3,
                                       .range_begin = {0, count / 3, count - count / 5},
                                       .range_end = {count / 4, count / 2, count},
                                       .scalars = scalars->at[s],
                                       .gradient_element = modes[mode].gradient,
                                       .weight_element = modes[mode].weight,
                                       .moment_element = modes[mode].moment,
                                       .stochastic_rounding = modes[mode].stochastic};
    VERIFY(adamw, a);
}

static void test_skipped_step(void)
{
    case_begin("adamw skipped");
    struct dtp_step_scalars of_step = {.correction1 = 1, .correction2 = 1, .skip = 1, .clip_scale = NAN};
    struct tensor *scalars = bytes_of("scalars", &of_step, sizeof of_step);
    struct tensor *state[4];
    for (int i = 0; i < 4; i++)
        state[i] = updated(input("state", DTP_ELEMENT_FP32, 1000, 1), 0, 0);
    struct dtp_adamw_args a[SIDES];
    for (int s = 0; s < SIDES; s++)
        a[s] = (struct dtp_adamw_args){.gradient = state[0]->at[s],
                                       .weights = state[1]->at[s],
                                       .moment1 = state[2]->at[s],
                                       .moment2 = state[3]->at[s],
                                       .count = 1000,
                                       .scalars = scalars->at[s]};
    VERIFY(adamw, a);
}

static void test_optimizer(void)
{
    for (int mode = 0; mode < 6; mode++) {
        test_adamw(1, 0, mode);
        test_adamw(4099, 0, mode);
        test_adamw(4096, 24, mode);
        test_adamw(1003, 5, mode); /* a shard that begins anywhere */
    }
    test_skipped_step();
}

/* Sums of up to nine numbers in fp32, each rounded once. */
static void test_sum_parts(uint64_t count, uint32_t part_count, enum dtp_element element, enum dtp_element of_total,
                           bool accumulate)
{
    case_begin("sum_parts %s to %s %u of %llu%s", named(element), named(of_total), part_count,
               (unsigned long long)count, accumulate ? " +" : "");
    struct tensor *parts = input("parts", element, part_count * count, 1);
    struct tensor *total = accumulate ? updated(input("total", of_total, count, 1), ulps_of(of_total), 64 * epsilon)
                                      : result("total", of_total, count, ulps_of(of_total), 64 * epsilon);
    struct dtp_sum_parts_args a[SIDES];
    for (int s = 0; s < SIDES; s++)
        a[s] = (struct dtp_sum_parts_args){.parts = parts->at[s],
                                           .total = total->at[s],
                                           .count = count,
                                           .part_count = part_count,
                                           .element = element,
                                           .total_element = of_total,
                                           .accumulate = accumulate};
    VERIFY(sum_parts, a);
}

static void test_elementwise(uint64_t count, enum dtp_element from, enum dtp_element to)
{
    case_begin("cast %s to %s %llu", named(from), named(to), (unsigned long long)count);
    struct tensor *values = input("values", from, count, 1), *cast = result("result", to, count, 0.01, 0);
    struct dtp_cast_args a[SIDES];
    for (int s = 0; s < SIDES; s++)
        a[s] = (struct dtp_cast_args){
            .values = values->at[s], .result = cast->at[s], .count = count, .element = from, .result_element = to};
    VERIFY(cast, a);

    case_begin("add %s to %s %llu", named(from), named(to), (unsigned long long)count);
    values = input("values", from, count, 1);
    struct tensor *total = updated(input("total", to, count, 1), 1, 0);
    struct dtp_add_args b[SIDES];
    for (int s = 0; s < SIDES; s++)
        b[s] = (struct dtp_add_args){
            .values = values->at[s], .total = total->at[s], .count = count, .element = from, .total_element = to};
    VERIFY(add, b);

    for (uint32_t part_count = 1; part_count <= 9; part_count += 4)
        test_sum_parts(count, part_count, from, to, part_count != 5);

    case_begin("initialise %s %llu", named(to), (unsigned long long)count);
    struct tensor *fresh = result("values", to, count, 1, 0);
    struct dtp_initialise_args c[SIDES];
    for (int s = 0; s < SIDES; s++)
        c[s] = (struct dtp_initialise_args){.values = fresh->at[s],
                                            .count = count,
                                            .first_element = 13,
                                            .seed = 3,
                                            .tensor = 9,
                                            .mean = from == to ? 1 : 0,
                                            .deviation = from == to ? 0 : 0.02f,
                                            .element = to};
    VERIFY(initialise, c);

    case_begin("zero %llu", (unsigned long long)count);
    struct tensor *zeros = result("values", to, count, 0, 0);
    struct dtp_zero_args d[SIDES];
    for (int s = 0; s < SIDES; s++)
        d[s] = (struct dtp_zero_args){.values = zeros->at[s], .bytes = zeros->bytes};
    VERIFY(zero, d);
}

static void test_elementwises(void)
{
    const uint64_t counts[] = {1, 7, 4096, 100003};
    for (size_t i = 0; i < COUNT(counts) - small; i++)
        for (int k = 0; k < 4; k++)
            test_elementwise(counts[i], k & 1 ? DTP_ELEMENT_BF16 : DTP_ELEMENT_FP32,
                             k & 2 ? DTP_ELEMENT_BF16 : DTP_ELEMENT_FP32);
}

/* Scores of deviation about 1; sums over a head and over the sequence in fp32. */
static void test_attention(uint32_t batch, uint32_t sequence, uint32_t heads, uint32_t kv_heads, uint32_t dim,
                           uint32_t window, enum dtp_element element)
{
    uint64_t rows = (uint64_t)batch * sequence, packed = rows * (heads + 2 * kv_heads) * dim, out = rows * heads * dim;
    float scale = (float)(1 / sqrt((double)dim));
    double ulps = ulps_of(element), absolute = 2e-6 * sqrt((double)sequence);
    case_begin("attention %s %u x %u, %u:%u heads of %u, window %u", named(element), batch, sequence, heads, kv_heads,
               dim, window);
    struct tensor *qkv = input("qkv", element, packed, 1), *y = result("result", element, out, ulps, 4e-6);
    struct tensor *lse = result("log-sum-exp", DTP_ELEMENT_FP32, (uint64_t)batch * heads * sequence, 8, 4e-6);
    struct dtp_attention_args a[SIDES];
    for (int s = 0; s < SIDES; s++)
        a[s] = (struct dtp_attention_args){.qkv = qkv->at[s],
                                           .result = y->at[s],
                                           .log_sum_exp = lse->at[s],
                                           .batch = batch,
                                           .sequence = sequence,
                                           .heads = heads,
                                           .kv_heads = kv_heads,
                                           .head_dim = dim,
                                           .window = window,
                                           .scale = scale,
                                           .softcap = window % 2 ? 1.5f : 0,
                                           .element = element};
    VERIFY(attention, a);

    /* Backward from what forward made on the host. */
    void *kept_qkv = malloc(qkv->bytes), *kept_result = malloc(y->bytes), *kept_lse = malloc(lse->bytes);
    memcpy(kept_qkv, qkv->at[HOST], qkv->bytes), memcpy(kept_result, y->at[HOST], y->bytes),
        memcpy(kept_lse, lse->at[HOST], lse->bytes);
    uint64_t qkv_bytes = qkv->bytes, result_bytes = y->bytes, lse_bytes = lse->bytes;
    case_begin("attention_backward %s %u x %u, %u:%u heads of %u, window %u", named(element), batch, sequence, heads,
               kv_heads, dim, window);
    qkv = bytes_of("qkv", kept_qkv, qkv_bytes), y = bytes_of("result", kept_result, result_bytes),
    lse = bytes_of("lse", kept_lse, lse_bytes);
    struct tensor *gradient = input("gradient", element, out, 1),
                  *of_qkv = result("qkv gradient", element, packed, ulps, 4 * absolute);
    struct dtp_attention_backward_args back[SIDES];
    for (int s = 0; s < SIDES; s++)
        back[s] = (struct dtp_attention_backward_args){.qkv = qkv->at[s],
                                                       .result = y->at[s],
                                                       .gradient = gradient->at[s],
                                                       .log_sum_exp = lse->at[s],
                                                       .qkv_gradient = of_qkv->at[s],
                                                       .batch = batch,
                                                       .sequence = sequence,
                                                       .heads = heads,
                                                       .kv_heads = kv_heads,
                                                       .head_dim = dim,
                                                       .window = window,
                                                       .scale = scale,
                                                       .softcap = window % 2 ? 1.5f : 0,
                                                       .element = element};
    VERIFY(attention_backward, back);
    free(kept_qkv), free(kept_result), free(kept_lse);
}

static void test_attentions(void)
{
    const uint32_t shapes[][5] = {{1, 1, 1, 1, 64},  {2, 65, 2, 2, 64},  {1, 33, 8, 1, 128}, {1, 100, 4, 2, 80},
                                  {2, 31, 2, 1, 96}, {1, 70, 1, 1, 256}, {1, 40, 3, 3, 20},  {1, 400, 16, 2, 128}};
    const uint32_t windows[] = {0, 1, 5, 37, 130}; /* below, inside and across tiles; none */
    for (size_t i = 0; i < COUNT(shapes) - small; i++)
        for (size_t k = 0; k < 2 * COUNT(windows); k++)
            if (windows[k / 2] < shapes[i][1])
                test_attention(shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3], shapes[i][4], windows[k / 2],
                               k % 2 ? DTP_ELEMENT_BF16 : DTP_ELEMENT_FP32);
}

int main(int count, char **arguments)
{
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("skipped: no CUDA device (%s)\n", cudaGetErrorString(cudaGetLastError()));
        return 77;
    }
    random_state = (uint64_t)time(NULL);
    for (int i = 1; i < count; i++)
        if (strcmp(arguments[i], "--bench") == 0)
            return bench(i + 1 < count ? arguments[i + 1] : "");
        else if (strcmp(arguments[i], "--small") == 0)
            small = true;
        else if (strcmp(arguments[i], "--seed") == 0 && i + 1 < count)
            random_state = strtoull(arguments[++i], NULL, 10);
        else
            return fprintf(stderr, "usage: test_kernels [--small] [--seed N] | --bench [PART]\n"), 2;
    printf("seed %llu\n", (unsigned long long)random_state);
    void (*const tests[])(void) = {test_norms,      test_rotaries,     test_qk_norms,  test_activations,
                                   test_embeddings, test_losses,       test_sums,      test_biases,
                                   test_optimizer,  test_elementwises, test_attentions};
    for (size_t i = 0; i < COUNT(tests); i++)
        tests[i]();
    case_begin("end");
    printf("%d of %d results are right\n", compared - failures, compared);
    return failures > 0;
}
