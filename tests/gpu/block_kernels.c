/* Kernels of a block: norms, rotary positions, activations, biases, attention. */
#include "gpu/kernel_tests.h"

#include <math.h>
#include <stdlib.h>

/* The largest magnitude of results that are off by as much. */
static struct tensor *amax_of(enum dtp_element element, double absolute)
{
    const float least = 0.0078125f;
    struct tensor *amax = bytes_of("amax", &least, sizeof least);
    return updated(amax, element == DTP_ELEMENT_FP32 ? 4 : 0x1p16, absolute);
}

static void test_norm(uint64_t rows, uint32_t width, enum dtp_element element, bool layer, bool accumulate)
{
    const char *kind = layer ? "layer" : "rms";
    uint64_t all = rows * width;
    double ulps = ulps_of(element);
    case_begin("norm %s %s %llu x %u", kind, named(element), (unsigned long long)rows, width);
    struct tensor *x = input("x", element, all, 2), *weight = input("weight", element, width, 1);
    struct tensor *bias = input("bias", element, width, 1), *y = result("result", element, all, ulps, 32 * EPSILON);
    struct tensor *addend = accumulate ? input("addend", element, all, 1) : NULL;
    struct tensor *inverse = result("inverse deviation", DTP_ELEMENT_FP32, rows, 4, 16 * EPSILON);
    struct tensor *mean = layer ? result("mean", DTP_ELEMENT_FP32, rows, 4, 32 * EPSILON) : NULL;
    struct tensor *amax = amax_of(element, 32 * EPSILON);
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
                                      .amax = amax->at[s],
                                      .rows = rows,
                                      .width = width,
                                      .element = element,
                                      .weight_element = element};
    VERIFY(norm, a);

    /* Statistics near those of the rows; any would do, both sides compute with the same. Gradients in fp32 and, where
     * they are not added up, in the element's type. */
    bool apart = accumulate && rows % 2; /* what is added to is another tensor */
    enum dtp_element of_gradient = accumulate ? DTP_ELEMENT_FP32 : element;
    double sum_error = 16 * EPSILON * sqrt((double)rows), sum_ulps = ulps_of(of_gradient);
    case_begin("norm_backward %s %s %llu x %u%s%s", kind, named(element), (unsigned long long)rows, width,
               accumulate ? " +" : "", apart ? " from elsewhere" : "");
    x = input("x", element, all, 2), weight = input("weight", element, width, 1);
    struct tensor *gradient = input("gradient", element, all, 1),
                  *workspace = input("workspace", DTP_ELEMENT_FP32, 2 * (uint64_t)DTP_PARTIAL_SUM_ROWS * width, 1);
    workspace->result = true, workspace->absolute = INFINITY; /* written as it likes, within its bounds */
    inverse = input("inverse", DTP_ELEMENT_FP32, rows, 0.1), mean = input("mean", DTP_ELEMENT_FP32, rows, 0.1);
    struct tensor *from = apart ? input("added to", element, all, 1) : NULL;
    struct tensor *dx = accumulate && !from ? updated(input("residual gradient", element, all, 1), ulps, 64 * EPSILON)
                                            : result("residual gradient", element, all, ulps, 64 * EPSILON);
    struct tensor *dw = accumulate ? updated(input("weight gradient", of_gradient, width, 1), sum_ulps, sum_error)
                                   : result("weight gradient", of_gradient, width, sum_ulps, sum_error);
    struct tensor *db = accumulate ? updated(input("bias gradient", of_gradient, width, 1), sum_ulps, sum_error)
                                   : (layer ? result("bias gradient", of_gradient, width, sum_ulps, sum_error) : NULL);
    amax = amax_of(element, 64 * EPSILON);
    struct dtp_norm_backward_args back[SIDES];
    for (int s = 0; s < SIDES; s++)
        back[s] = (struct dtp_norm_backward_args){.gradient = gradient->at[s],
                                                  .x = x->at[s],
                                                  .weight = weight->at[s],
                                                  .inverse_deviation = inverse->at[s],
                                                  .mean = layer ? mean->at[s] : NULL,
                                                  .residual_gradient = dx->at[s],
                                                  .addend = from ? from->at[s] : NULL,
                                                  .weight_gradient = dw->at[s],
                                                  .bias_gradient = layer ? db->at[s] : NULL,
                                                  .workspace = workspace->at[s],
                                                  .amax = amax->at[s],
                                                  .rows = rows,
                                                  .width = width,
                                                  .weight_offset = accumulate ? 1 : 0,
                                                  .element = element,
                                                  .weight_element = element,
                                                  .gradient_element = of_gradient,
                                                  .add_to_residual = accumulate && !from,
                                                  .accumulate = accumulate};
    VERIFY(norm_backward, back);
}

void test_norms(void)
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
            test_norm(shapes[i].rows, shapes[i].width, k & 1 ? halves : DTP_ELEMENT_FP32, k & 2, k & 4);
        }
}

static void test_rotary(uint32_t heads, uint32_t kv_heads, uint32_t dim, enum dtp_element element, bool inverse)
{
    const uint32_t sequence = 33, rows = 2 * 33;
    case_begin("rotary %s %u:%u heads of %u%s", named(element), heads, kv_heads, dim, inverse ? " inverse" : "");
    struct tensor *qkv =
        updated(input("qkv", element, (uint64_t)rows * (heads + 2 * kv_heads) * dim, 1), ulps_of(element), 8 * EPSILON);
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

void test_rotaries(void)
{
    const uint32_t shapes[][3] = {{8, 8, 64}, {8, 1, 128}, {6, 2, 80},   {3, 1, 96},
                                  {2, 1, 20}, {5, 5, 2},   {40, 8, 128}, {1, 1, 768}};
    for (size_t i = 0; i < COUNT(shapes); i++)
        for (int k = 0; k < 4; k++)
            test_rotary(shapes[i][0], shapes[i][1], shapes[i][2], k & 1 ? halves : DTP_ELEMENT_FP32, k & 2);
}

/* The shape of three heads has norms without weights. */
static void test_qk_norm(uint32_t heads, uint32_t kv_heads, uint32_t dim, bool wide, enum dtp_element element,
                         bool accumulate)
{
    const bool weighed = wide || heads != 3;
    const uint32_t rows = small ? 5 : 300;
    const uint64_t packed = (uint64_t)rows * (heads + 2 * kv_heads) * dim, normed = (uint64_t)rows * (heads + kv_heads);
    const uint64_t deviations = wide ? 2 * rows : normed;
    const uint32_t weights = wide ? (heads + kv_heads) * dim : 2 * dim;
    const double ulps = ulps_of(element);
    case_begin("qk_norm %s %u:%u heads of %u%s", named(element), heads, kv_heads, dim, wide ? " as one" : "");
    struct tensor *qkv = updated(input("qkv", element, packed, 2), ulps, 32 * EPSILON);
    struct tensor *weight = input("weight", element, weights, 1), *raw = result("raw", element, normed * dim, 0, 0);
    struct tensor *inverse = result("inverse deviation", DTP_ELEMENT_FP32, deviations, 4, 16 * EPSILON);
    struct dtp_qk_norm_args a[SIDES];
    for (int s = 0; s < SIDES; s++)
        a[s] = (struct dtp_qk_norm_args){.qkv = qkv->at[s],
                                         .weight = weighed ? weight->at[s] : NULL,
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
    const double sum_error = 16 * EPSILON * sqrt((double)rows * heads), sum_ulps = ulps_of(of_gradient);
    case_begin("qk_norm_backward %s %u:%u heads of %u%s%s", named(element), heads, kv_heads, dim, wide ? " as one" : "",
               accumulate ? " +" : "");
    struct tensor *gradient = updated(input("qkv gradient", element, packed, 1), ulps, 64 * EPSILON);
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
                                                     .weight = weighed ? weight->at[s] : NULL,
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

void test_qk_norms(void)
{
    const uint32_t shapes[][3] = {{8, 8, 64}, {8, 1, 128}, {6, 2, 80}, {3, 1, 96}, {2, 1, 20}, {16, 8, 256}, {1, 1, 8}};
    const uint32_t wide[][3] = {{4, 2, 8}, {32, 32, 128}, {40, 8, 128}, {3, 1, 20}, {16, 1, 64}};
    for (size_t i = 0; i < COUNT(shapes); i++)
        for (int k = 0; k < 4; k++)
            test_qk_norm(shapes[i][0], shapes[i][1], shapes[i][2], false, k & 1 ? halves : DTP_ELEMENT_FP32, k & 2);
    for (size_t i = 0; i < COUNT(wide); i++)
        for (int k = 0; k < 4; k++)
            test_qk_norm(wide[i][0], wide[i][1], wide[i][2], true, k & 1 ? halves : DTP_ELEMENT_FP32, k & 2);
}

/* `stores`: forward writes its input once more in 8 bits, backward reads such a one. */
static void test_activation(uint64_t rows, uint32_t width, enum dtp_activation_kind kind, enum dtp_element element,
                            bool in_place, bool stores)
{
    const char *kinds[] = {"swiglu", "gelu", "relu", "geglu", "swiglu_clamped"};
    const bool gated =
        kind == DTP_ACTIVATION_SWIGLU || kind == DTP_ACTIVATION_GEGLU || kind == DTP_ACTIVATION_SWIGLU_CLAMPED;
    uint64_t all = rows * width, inputs = gated ? 2 * all : all;
    double ulps = ulps_of(element), absolute = 32 * EPSILON;
    /* The slope's error is as without a gate, and is multiplied by the other half: of deviation 3, 4 of them. Where the
     * gate is clamped, the sigmoid's argument is 1.702 times as large, and its rounding with it. */
    const double steeper = kind == DTP_ACTIVATION_GEGLU ? 12 : kind == DTP_ACTIVATION_SWIGLU_CLAMPED ? 1.702 : 1;
    double of_slope = steeper * 4 * absolute;
    case_begin("activation %s %s %llu x %u%s", kinds[kind], named(element), (unsigned long long)rows, width,
               stores ? " stored" : "");
    struct tensor *up = input("up", element, inputs, 3), *y = result("result", element, all, ulps, absolute);
    struct tensor *amax = amax_of(element, absolute);
    struct tensor *stored = stores ? result("stored", DTP_ELEMENT_E4M3, inputs, 0, 0) : NULL;
    struct dtp_activation_args a[SIDES];
    for (int s = 0; s < SIDES; s++)
        a[s] = (struct dtp_activation_args){.up = up->at[s],
                                            .result = y->at[s],
                                            .stored = stored ? stored->at[s] : NULL,
                                            .amax = amax->at[s],
                                            .rows = rows,
                                            .width = width,
                                            .kind = kind,
                                            .element = element};
    VERIFY(activation, a);

    case_begin("activation_backward %s %s %llu x %u%s%s", kinds[kind], named(element), (unsigned long long)rows, width,
               in_place ? " in place" : "", stores ? " stored" : "");
    up = input("up", stores ? DTP_ELEMENT_E4M3 : element, inputs, 3);
    struct tensor *gradient = input("gradient", element, all, 1);
    struct tensor *of_up =
        in_place && !stores ? updated(up, ulps, of_slope) : result("up gradient", element, inputs, ulps, of_slope);
    struct tensor *again = in_place ? updated(gradient, ulps, absolute) : NULL;
    amax = amax_of(element, of_slope);
    struct dtp_activation_backward_args back[SIDES];
    for (int s = 0; s < SIDES; s++)
        back[s] = (struct dtp_activation_backward_args){.gradient = gradient->at[s],
                                                        .up = up->at[s],
                                                        .up_gradient = of_up->at[s],
                                                        .result = again ? again->at[s] : NULL,
                                                        .amax = amax->at[s],
                                                        .rows = rows,
                                                        .width = width,
                                                        .kind = kind,
                                                        .element = element,
                                                        .up_is_stored = stores};
    VERIFY(activation_backward, back);
}

void test_activations(void)
{
    const struct {
        uint64_t rows;
        uint32_t width;
    } shapes[] = {{1, 8}, {7, 11008}, {129, 344}, {5, 333}, {1, 1}};
    for (size_t i = 0; i < COUNT(shapes); i++)
        for (int k = 0; k < 40; k++)
            test_activation(shapes[i].rows, shapes[i].width, (enum dtp_activation_kind)(k % 5),
                            k / 5 & 1 ? halves : DTP_ELEMENT_FP32, k / 10 & 1, k / 20);
}

static void test_bias(uint64_t rows, uint32_t width, enum dtp_element element, bool accumulate)
{
    case_begin("bias_backward %s %llu x %u%s", named(element), (unsigned long long)rows, width, accumulate ? " +" : "");
    enum dtp_element of_gradient = accumulate ? DTP_ELEMENT_FP32 : element;
    double error = 16 * EPSILON * sqrt((double)rows);
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

void test_biases(void)
{
    for (int k = 0; k < 4; k++) {
        enum dtp_element element = k & 1 ? halves : DTP_ELEMENT_FP32;
        test_bias(1, 8, element, k & 2);
        test_bias(127, 2304, element, k & 2);
        test_bias(33, 129, element, k & 2);
        if (!small)
            test_bias(20000, 264, element, k & 2);
    }
}

static void test_sinks(uint32_t batch, uint32_t sequence, uint32_t heads, uint32_t dim, enum dtp_element element,
                       bool accumulate)
{
    const uint64_t rows = (uint64_t)batch * sequence * heads;
    case_begin("sinks %s %u x %u, %u heads of %u", named(element), batch, sequence, heads, dim);
    struct tensor *y = updated(input("result", element, rows * dim, 1), ulps_of(element), 16 * EPSILON);
    struct tensor *lse = updated(input("log-sum-exp", DTP_ELEMENT_FP32, rows, 2), 8, 16 * EPSILON);
    struct tensor *sinks = input("sinks", element, heads, 1);
    struct dtp_sinks_args a[SIDES];
    for (int s = 0; s < SIDES; s++)
        a[s] = (struct dtp_sinks_args){.result = y->at[s],
                                       .log_sum_exp = lse->at[s],
                                       .sinks = sinks->at[s],
                                       .batch = batch,
                                       .sequence = sequence,
                                       .heads = heads,
                                       .head_dim = dim,
                                       .element = element,
                                       .sinks_element = element};
    VERIFY(sinks, a);

    const enum dtp_element summed = accumulate ? DTP_ELEMENT_FP32 : element;
    const double error = 64 * EPSILON * sqrt((double)batch * sequence * dim);
    case_begin("sinks_backward %s %u x %u, %u heads of %u%s", named(element), batch, sequence, heads, dim,
               accumulate ? " +" : "");
    y = input("result", element, rows * dim, 1), lse = input("log-sum-exp", DTP_ELEMENT_FP32, rows, 0.5);
    sinks = input("sinks", element, heads, 1);
    struct tensor *gradient = input("gradient", element, rows * dim, 1);
    struct tensor *workspace =
        updated(input("workspace", DTP_ELEMENT_FP32, (uint64_t)DTP_PARTIAL_SUM_ROWS * heads, 1), 0, INFINITY);
    struct tensor *made = accumulate ? updated(input("sinks gradient", summed, heads, 1), ulps_of(summed), error)
                                     : result("sinks gradient", summed, heads, ulps_of(summed), error);
    struct dtp_sinks_backward_args b[SIDES];
    for (int s = 0; s < SIDES; s++)
        b[s] = (struct dtp_sinks_backward_args){.result = y->at[s],
                                                .gradient = gradient->at[s],
                                                .log_sum_exp = lse->at[s],
                                                .sinks = sinks->at[s],
                                                .sinks_gradient = made->at[s],
                                                .workspace = workspace->at[s],
                                                .batch = batch,
                                                .sequence = sequence,
                                                .heads = heads,
                                                .head_dim = dim,
                                                .element = element,
                                                .sinks_element = element,
                                                .gradient_element = summed,
                                                .accumulate = accumulate};
    VERIFY(sinks_backward, b);
}

static void test_all_sinks(void)
{
    for (int k = 0; k < 4; k++) {
        const enum dtp_element element = k & 1 ? halves : DTP_ELEMENT_FP32;
        test_sinks(1, 1, 1, 8, element, k & 2);
        test_sinks(2, 33, 6, 20, element, k & 2);
        test_sinks(2, small ? 40 : 300, 64, 64, element, k & 2);
    }
}

/* Scores of deviation about 1, of some shapes with biases of ALiBi; sums over a head and over the sequence in fp32. */
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
                                           .alibi = heads == 3 || window == 37,
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
                                                       .alibi = heads == 3 || window == 37,
                                                       .element = element};
    VERIFY(attention_backward, back);
    free(kept_qkv), free(kept_result), free(kept_lse);
}

void test_attentions(void)
{
    test_all_sinks();
    const uint32_t shapes[][5] = {{1, 1, 1, 1, 64},  {2, 65, 2, 2, 64},  {1, 33, 8, 1, 128}, {1, 100, 4, 2, 80},
                                  {2, 31, 2, 1, 96}, {1, 70, 1, 1, 256}, {1, 40, 3, 3, 20},  {1, 400, 16, 2, 128}};
    const uint32_t windows[] = {0, 1, 5, 37, 130}; /* below, inside and across tiles; none */
    for (size_t i = 0; i < COUNT(shapes) - small; i++)
        for (size_t k = 0; k < 2 * COUNT(windows); k++)
            if (windows[k / 2] < shapes[i][1])
                test_attention(shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3], shapes[i][4], windows[k / 2],
                               k % 2 ? halves : DTP_ELEMENT_FP32);
}
