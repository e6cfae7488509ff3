/* The plain C kernels: every gradient against finite differences, everything else against values found by hand. */
#include "lib/kernel_fixture.h"

static void test_bf16_rounds_to_nearest_even(void **state)
{
    (void)state;
    /* Seven bits after the point: 1 + 1/256 and 1 + 3/256 are halfway; the even neighbours are 1 and 1 + 2/128. */
    assert_int_equal(dtp_bf16_from_float(1.0f + 1.0f / 256), 0x3F80);
    assert_int_equal(dtp_bf16_from_float(1.0f + 3.0f / 256), 0x3F82);
    assert_int_equal(dtp_bf16_from_float(1.0f + 1.1f / 256), 0x3F81);
    assert_int_equal(dtp_bf16_from_float(-INFINITY), 0xFF80);
    assert_int_equal(dtp_bf16_from_float(3.4e38f), 0x7F80); /* beyond the largest, 3.39e38 */
    assert_true(isnan(dtp_bf16_to_float(dtp_bf16_from_float(NAN))));
}

/* Known answers published with Random123. */
static void test_philox(void **state)
{
    (void)state;
    struct dtp_philox zero = dtp_philox(0, 0, 0), ones = dtp_philox(UINT64_MAX, UINT64_MAX, UINT64_MAX);
    struct dtp_philox pi = dtp_philox(0x299f31d0a4093822u, 0x85a308d3243f6a88u, 0x0370734413198a2eu);
    const uint32_t of_zero[] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
    const uint32_t of_ones[] = {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
    const uint32_t of_pi[] = {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1};
    assert_memory_equal(zero.word, of_zero, 16);
    assert_memory_equal(ones.word, of_ones, 16);
    assert_memory_equal(pi.word, of_pi, 16);
}

/* Of n numbers: mean within 4 / sqrt(n) of 0, variance within 4 sqrt(2 / n) of 1; shards draw what the whole drew. */
static void test_initialise(void **state)
{
    (void)state;
    static float values[40000];
    float shard[10];
    double sum = 0, square = 0, n = COUNT(values);
    struct dtp_initialise_args a = {.values = values, .count = COUNT(values), .seed = 7, .tensor = 3, .deviation = 1};
    dtp_reference_initialise(NULL, &a, NULL);
    for (size_t i = 0; i < COUNT(values); i++) {
        sum += (double)values[i];
        square += (double)values[i] * (double)values[i];
    }
    assert_true(fabs(sum / n) < 4 / sqrt(n) && fabs(square / n - 1) < 4 * sqrt(2 / n));
    for (uint64_t i = 0; i < 40; i++)
        assert_true(values[i] == (float)dtp_random_normal(7, 3, i));
    a.values = shard, a.count = COUNT(shard), a.first_element = 1001;
    dtp_reference_initialise(NULL, &a, NULL);
    assert_memory_equal(shard, values + 1001, sizeof shard);
    a.mean = 1.5f, a.deviation = 0;
    dtp_reference_initialise(NULL, &a, NULL);
    assert_true(shard[9] == 1.5f);
}

/* 1 + 0.3/128 lies 0.3 of a step above 1: rounded up in 30 of 100 draws. */
static void test_stochastic_rounding_has_no_bias(void **state)
{
    (void)state;
    const uint32_t draws = 20000;
    uint32_t up = 0;
    for (uint32_t i = 0; i < draws; i++) {
        struct dtp_philox block = dtp_rounding_block(5, 9, DTP_ROUND_WEIGHT, i);
        uint32_t rounded = dtp_round_stochastic(1 + 0.3f / 128, dtp_rounding_bits(&block, i % 8)) >> 16;
        assert_true(rounded == 0x3F80 || rounded == 0x3F81);
        up += rounded == 0x3F81;
    }
    assert_true(fabs(up / (double)draws - 0.3) < 4 * sqrt(0.21 / draws));
    assert_int_equal(dtp_round_stochastic(INFINITY, 0xFFFF) >> 16, 0x7F80);
    assert_true(isnan(dtp_bf16_to_float((uint16_t)(dtp_round_stochastic(NAN, 0xFFFF) >> 16))));
}

static int run_norm(void *arguments)
{
    return dtp_reference_norm(NULL, arguments, NULL);
}

static void check_norm(bool layer_norm, float offset)
{
    enum { ROWS = 3, WIDTH = 5, ALL = ROWS * WIDTH };
    float x[ALL], weight[WIDTH], bias[WIDTH], result[ALL], inverse[ROWS], mean[ROWS], gradient[ALL];
    float dx[ALL], dweight[WIDTH], dbias[WIDTH], start[ALL];
    fill(x, ALL, 1), fill(weight, WIDTH, 2), fill(bias, WIDTH, 3), fill(gradient, ALL, 4), fill(start, ALL, 5);
    struct dtp_norm_args a = {.x = x,
                              .weight = weight,
                              .bias = layer_norm ? bias : NULL,
                              .result = result,
                              .rows = ROWS,
                              .inverse_deviation = inverse,
                              .mean = layer_norm ? mean : NULL,
                              .width = WIDTH,
                              .epsilon = 1e-5f,
                              .weight_offset = offset};
    assert_int_equal(run_norm(&a), 0);
    struct dtp_norm_backward_args back = {.gradient = gradient,
                                          .x = x,
                                          .weight = weight,
                                          .inverse_deviation = inverse,
                                          .mean = a.mean,
                                          .residual_gradient = dx,
                                          .weight_gradient = dweight,
                                          .bias_gradient = layer_norm ? dbias : NULL,
                                          .rows = ROWS,
                                          .width = WIDTH,
                                          .weight_offset = offset};
    assert_int_equal(dtp_reference_norm_backward(NULL, &back, NULL), 0);
    struct slope s = {run_norm, &a, result, gradient, ALL};
    check_slopes(&s, x, dx, ALL);
    check_slopes(&s, weight, dweight, WIDTH);
    if (layer_norm)
        check_slopes(&s, bias, dbias, WIDTH);
    float once = dweight[1], first = dx[1];
    memcpy(dx, start, sizeof dx);
    back.add_to_residual = back.accumulate = true;
    assert_int_equal(run_norm(&a), 0); /* check_slopes left the statistics of the last shifted input */
    dtp_reference_norm_backward(NULL, &back, NULL);
    assert_close(dweight[1], 2 * once, 1e-6);
    assert_close(dx[1], first + start[1], 1e-6);
    float apart[ALL]; /* added to what stays where it is: the same bits elsewhere */
    back.addend = start;
    back.residual_gradient = apart;
    back.add_to_residual = false;
    dtp_reference_norm_backward(NULL, &back, NULL);
    assert_memory_equal(apart, dx, sizeof dx);
}

static void test_norms(void **state)
{
    (void)state;
    check_norm(true, 0);
    check_norm(false, 0);
    check_norm(false, 1);
    /* RMS of (3, 4) is sqrt(12.5); its mean 3.5 and deviation 0.5 make (-1, 1) of it. */
    float x[] = {3, 4}, weight[] = {1, 2}, result[2], inverse, mean;
    struct dtp_norm_args a = {
        .x = x, .weight = weight, .result = result, .inverse_deviation = &inverse, .rows = 1, .width = 2};
    run_norm(&a);
    assert_close(result[1], 8 / sqrt(12.5), 1e-6);
    a.weight_offset = 1;
    run_norm(&a);
    assert_close(result[1], 12 / sqrt(12.5), 1e-6);
    a.addend = (float[]){10, 20};
    run_norm(&a);
    assert_close(result[1], 20 + 12 / sqrt(12.5), 1e-6);
    a.weight_offset = 0, a.addend = NULL;
    a.mean = &mean;
    run_norm(&a);
    assert_close(result[0], -1, 1e-6);
    assert_close(result[1], 2, 1e-6);
    assert_close(inverse, 2, 1e-6);
}

static void test_rotary(void **state)
{
    (void)state;
    /* One q, one k, one v head of 4; position 1 turns by a right angle: (a, b) -> (-b, a); v stays. */
    float qkv[2][12], before[2][12], cosines[] = {1, 1, 0, 0}, sines[] = {0, 0, 1, 1};
    fill(&qkv[0][0], 24, 1);
    memcpy(before, qkv, sizeof qkv);
    struct dtp_rotary_args a = {.qkv = qkv,
                                .cosines = cosines,
                                .sines = sines,
                                .rows = 2,
                                .sequence = 2,
                                .heads = 1,
                                .kv_heads = 1,
                                .head_dim = 4};
    dtp_reference_rotary(NULL, &a, NULL);
    assert_memory_equal(qkv[0], before[0], sizeof qkv[0]);
    assert_true(qkv[1][0] == -before[1][2] && qkv[1][2] == before[1][0] && qkv[1][5] == -before[1][7]);
    assert_memory_equal(&qkv[1][8], &before[1][8], 4 * sizeof(float));
    a.inverse = true;
    dtp_reference_rotary(NULL, &a, NULL);
    assert_memory_equal(qkv, before, sizeof qkv);
}

/* The function norms in place: each call works on a copy. */
struct qk_norm_run {
    struct dtp_qk_norm_args args;
    float qkv[40], copy[40];
};

static int run_qk_norm(void *context)
{
    struct qk_norm_run *run = context;
    memcpy(run->copy, run->qkv, sizeof run->copy);
    run->args.qkv = run->copy;
    return dtp_reference_qk_norm(NULL, &run->args, NULL);
}

static void check_qk_norm(float offset, bool wide)
{
    /* Two rows of two q heads, a k head and a v head, of five. */
    enum { ROWS = 2, HEADS = 2, KV_HEADS = 1, DIM = 5, NORMED = ROWS * (HEADS + KV_HEADS) };
    const uint32_t weights = wide ? (HEADS + KV_HEADS) * DIM : 2 * DIM;
    float weight[3 * DIM], raw[NORMED * DIM], inverse[NORMED], gradient[40], dx[40], dweight[3 * DIM];
    struct qk_norm_run run = {.args = {.weight = weight,
                                       .raw = raw,
                                       .inverse_deviation = inverse,
                                       .rows = ROWS,
                                       .heads = HEADS,
                                       .kv_heads = KV_HEADS,
                                       .head_dim = DIM,
                                       .epsilon = 1e-5f,
                                       .weight_offset = offset,
                                       .wide = wide}};
    fill(run.qkv, 40, 1), fill(weight, weights, 2), fill(gradient, 40, 3);
    assert_int_equal(run_qk_norm(&run), 0);
    assert_memory_equal(run.copy + 15, run.qkv + 15, 5 * sizeof(float)); /* v stays */
    assert_memory_equal(raw, run.qkv, 15 * sizeof(float));
    memcpy(dx, gradient, sizeof dx);
    struct dtp_qk_norm_backward_args back = {.qkv_gradient = dx,
                                             .raw = raw,
                                             .weight = weight,
                                             .inverse_deviation = inverse,
                                             .weight_gradient = dweight,
                                             .rows = ROWS,
                                             .heads = HEADS,
                                             .kv_heads = KV_HEADS,
                                             .head_dim = DIM,
                                             .weight_offset = offset,
                                             .wide = wide};
    assert_int_equal(dtp_reference_qk_norm_backward(NULL, &back, NULL), 0);
    struct slope s = {run_qk_norm, &run, run.copy, gradient, 40};
    check_slopes(&s, run.qkv, dx, 40);
    check_slopes(&s, weight, dweight, weights);
    assert_int_equal(run_qk_norm(&run), 0); /* check_slopes left the statistics of the last shifted input */
    float once = dweight[7];
    memcpy(dx, gradient, sizeof dx);
    back.accumulate = true;
    dtp_reference_qk_norm_backward(NULL, &back, NULL);
    assert_close(dweight[7], 2 * once, 1e-6);
}

static void test_qk_norm(void **state)
{
    (void)state;
    check_qk_norm(0, false);
    check_qk_norm(1, false);
    check_qk_norm(0, true);
    /* (3, 4) of q and (5, 12) of k over their root mean squares, by weights of their own. */
    float two[] = {3, 4, 5, 12, 9, 9}, weights[] = {1, 2, 3, 1}, kept[4], deviations[2];
    struct dtp_qk_norm_args by_hand = {.qkv = two,
                                       .weight = weights,
                                       .raw = kept,
                                       .inverse_deviation = deviations,
                                       .rows = 1,
                                       .heads = 1,
                                       .kv_heads = 1,
                                       .head_dim = 2};
    dtp_reference_qk_norm(NULL, &by_hand, NULL);
    assert_close(two[1], 8 / sqrt(12.5), 1e-6);
    assert_close(two[2], 15 / sqrt(84.5), 1e-6);
    /* (3, 4) and (5, 12), two heads of q, as one of four. */
    float wide[] = {3, 4, 5, 12, 1, 1, 9, 9}, wide_weights[] = {1, 2, 3, 1, 1, 1}, wide_kept[6];
    by_hand.qkv = wide, by_hand.weight = wide_weights, by_hand.raw = wide_kept;
    by_hand.heads = 2, by_hand.wide = true;
    dtp_reference_qk_norm(NULL, &by_hand, NULL);
    assert_close(wide[2], 15 / sqrt(48.5), 1e-6);
    assert_close(wide[5], 1, 1e-6);
}

static int run_activation(void *arguments)
{
    return dtp_reference_activation(NULL, arguments, NULL);
}

static void check_activation(enum dtp_activation_kind kind)
{
    enum { ROWS = 2, WIDTH = 3, ALL = ROWS * WIDTH };
    float up[2 * ALL], result[ALL], gradient[ALL], up_gradient[2 * ALL], again[ALL];
    size_t inputs = kind == DTP_ACTIVATION_SWIGLU || kind == DTP_ACTIVATION_GEGLU ? 2 * ALL : ALL;
    fill(up, inputs, 1), fill(gradient, ALL, 2);
    struct dtp_activation_args a = {.up = up, .result = result, .rows = ROWS, .width = WIDTH, .kind = kind};
    struct dtp_activation_backward_args back = {.gradient = gradient,
                                                .up = up,
                                                .up_gradient = up_gradient,
                                                .result = again,
                                                .rows = ROWS,
                                                .width = WIDTH,
                                                .kind = kind};
    run_activation(&a);
    assert_int_equal(dtp_reference_activation_backward(NULL, &back, NULL), 0);
    assert_memory_equal(again, result, sizeof again);
    struct slope s = {run_activation, &a, result, gradient, ALL};
    check_slopes(&s, up, up_gradient, inputs);
    back.up_gradient = up, back.result = gradient; /* in place, both */
    dtp_reference_activation_backward(NULL, &back, NULL);
    assert_memory_equal(up, up_gradient, inputs * sizeof(float));
    assert_memory_equal(gradient, again, sizeof again);
}

static void test_activations(void **state)
{
    (void)state;
    check_activation(DTP_ACTIVATION_SWIGLU);
    check_activation(DTP_ACTIVATION_GELU);
    check_activation(DTP_ACTIVATION_RELU);
    check_activation(DTP_ACTIVATION_GEGLU);
    float up[] = {1, 2}, result[2]; /* silu(1) = 1 / (1 + 1/e) = 0.731059; tanh GELU of 1 and 2: 0.841192, 1.954598 */
    struct dtp_activation_args a = {.up = up, .result = result, .rows = 1, .width = 1, .kind = DTP_ACTIVATION_SWIGLU};
    run_activation(&a);
    assert_close(result[0], 2 * 0.731059, 1e-6);
    a.kind = DTP_ACTIVATION_GEGLU;
    run_activation(&a);
    assert_close(result[0], 2 * 0.841192, 1e-6);
    a.width = 2, a.kind = DTP_ACTIVATION_GELU;
    run_activation(&a);
    assert_close(result[0], 0.841192, 1e-6);
    assert_close(result[1], 1.954598, 1e-6);
}

static void test_embedding(void **state)
{
    (void)state;
    const int32_t tokens[] = {2, 0, 2, 2}, order[] = {1, 0, 2, 3}, starts[] = {0, 1, 4}, distinct = 2;
    float table[] = {1, 2, 3, 4, 5, 6}, positions[] = {10, 20, 30, 40}, result[8];
    struct dtp_embedding_args a = {.tokens = tokens,
                                   .table = table,
                                   .positions = positions,
                                   .result = result,
                                   .rows = 4,
                                   .width = 2,
                                   .vocab = 3,
                                   .sequence = 2,
                                   .scale = 2};
    dtp_reference_embedding(NULL, &a, NULL);
    const float expected[] = {20, 32, 32, 44, 20, 32, 40, 52};
    assert_memory_equal(result, expected, sizeof expected);
    float gradient[] = {1, 2, 3, 4, 5, 6, 7, 8}, table_gradient[] = {100, 0, 0, 0.5f, 0, 0},
          positions_gradient[4] = {9, 9, 9, 9};
    struct dtp_embedding_backward_args back = {.gradient = gradient,
                                               .tokens = tokens,
                                               .order = order,
                                               .starts = starts,
                                               .distinct = &distinct,
                                               .table_gradient = table_gradient,
                                               .rows = 4,
                                               .width = 2,
                                               .positions_gradient = positions_gradient,
                                               .vocab = 3,
                                               .sequence = 2,
                                               .scale = 2};
    dtp_reference_embedding_backward(NULL, &back, NULL);
    const float of_table[] = {106, 8, 0, 0.5f, 26, 32}, of_positions[] = {6, 8, 10, 12};
    assert_memory_equal(table_gradient, of_table, sizeof of_table);
    assert_memory_equal(positions_gradient, of_positions, sizeof of_positions);
}

/* Row losses depend on logits that the function overwrites: each call works on a copy. */
struct loss_run {
    struct dtp_loss_args args;
    float logits[12], copy[12];
};

static int run_loss(void *context)
{
    struct loss_run *run = context;
    memcpy(run->copy, run->logits, sizeof run->copy);
    run->args.logits = run->copy;
    return dtp_reference_loss(NULL, &run->args, NULL);
}

static void check_loss(float softcap)
{
    const int32_t targets[] = {1, 2, -1};
    float row_loss[3], gradient[12], ones[] = {1, 1, 1};
    struct loss_run run = {.args = {.targets = targets,
                                    .row_loss = row_loss,
                                    .rows = 3,
                                    .vocab = 3,
                                    .stride = 4,
                                    .scale = 1,
                                    .softcap = softcap}};
    fill(run.logits, 12, 1);
    run.logits[3] = 77; /* padding */
    run_loss(&run);
    memcpy(gradient, run.copy, sizeof gradient);
    assert_true(gradient[3] == 0 && gradient[8] == 0 && gradient[10] == 0 && row_loss[2] == 0);
    struct slope s = {run_loss, &run, row_loss, ones, 3};
    check_slopes(&s, run.logits, gradient, 12);
    if (softcap > 0)
        return;
    /* Equal logits: log 3, and probabilities of a third, whatever the logits' size. */
    for (int i = 0; i < 12; i++)
        run.logits[i] = 1e30f;
    run.args.scale = 0.5f;
    run_loss(&run);
    assert_close(row_loss[0], log(3), 1e-6);
    assert_close(run.copy[1], -1.0 / 3, 1e-6);
}

static void test_loss(void **state)
{
    (void)state;
    check_loss(0);
    check_loss(1.5f);
    /* 1.5 tanh(x / 1.5) of 0 and 1e30: 0 and 1.5. */
    const int32_t target = 0;
    float logits[] = {0, 1e30f}, row_loss;
    struct dtp_loss_args a = {.logits = logits,
                              .targets = &target,
                              .row_loss = &row_loss,
                              .rows = 1,
                              .vocab = 2,
                              .stride = 2,
                              .scale = 1,
                              .softcap = 1.5f};
    dtp_reference_loss(NULL, &a, NULL);
    assert_close(row_loss, log(1 + exp(1.5)), 1e-6);
    assert_true(logits[1] == 0); /* no slope is left at the cap */
}

static void test_sums(void **state)
{
    (void)state;
    static float values[1500], partials[DTP_SQUARE_SUM_PARTIALS];
    double square = 0, total = 0;
    fill(values, COUNT(values), 1);
    for (size_t i = 0; i < COUNT(values); i++)
        square += (double)values[i] * (double)values[i];
    struct dtp_square_sum_args a = {.values = values, .partial = partials, .count = COUNT(values)};
    dtp_reference_square_sum(NULL, &a, NULL);
    for (size_t i = 0; i < COUNT(partials); i++)
        total += (double)partials[i];
    assert_close(total, square, 1e-6);

    float matrix[] = {1, 2, 3, 4, 5, 6}, columns[] = {1, 1}, sum = 1;
    struct dtp_bias_backward_args bias = {
        .gradient = matrix, .bias_gradient = columns, .rows = 3, .width = 2, .accumulate = true};
    dtp_reference_bias_backward(NULL, &bias, NULL);
    assert_true(columns[0] == 10 && columns[1] == 13);
    struct dtp_sum_args sums = {.values = matrix, .total = &sum, .count = 6, .accumulate = true};
    dtp_reference_sum(NULL, &sums, NULL);
    assert_true(sum == 22);
}

static void test_clip_scale(void **state)
{
    (void)state;
    float partials[] = {9, 16};
    struct dtp_step_scalars scalars = {.loss_sum = 1};
    struct dtp_clip_scale_args a = {.partials = partials, .count = 2, .clip = 1, .scalars = &scalars};
    dtp_reference_clip_scale(NULL, &a, NULL);
    assert_true(scalars.gradient_norm == 5 && scalars.clip_scale == 0.2f && !scalars.skip);
    a.clip = 0;
    dtp_reference_clip_scale(NULL, &a, NULL);
    assert_true(scalars.clip_scale == 1);
    partials[0] = INFINITY;
    dtp_reference_clip_scale(NULL, &a, NULL);
    assert_int_equal(scalars.skip, 1);
    partials[0] = 9, scalars.loss_sum = NAN;
    dtp_reference_clip_scale(NULL, &a, NULL);
    assert_int_equal(scalars.skip, 1);
}

/* In the first step the corrected moments are g and g^2: every weight moves by the learning rate against the gradient's
 * sign, and those that decay by learning rate * decay * weight more. */
static void test_adamw(void **state)
{
    (void)state;
    float gradient[] = {4, -2, 1}, master[] = {1, 2, 3}, moment1[3] = {0}, moment2[3] = {0};
    uint16_t weights[3] = {0};
    struct dtp_step_scalars scalars = {
        .learning_rate = 0.125f, .correction1 = 0.1f, .correction2 = 0.001f, .clip_scale = 0.5f};
    struct dtp_adamw_args a = {.gradient = gradient,
                               .weights = weights,
                               .master = master,
                               .moment1 = moment1,
                               .count = 3,
                               .moment2 = moment2,
                               .beta1 = 0.9f,
                               .beta2 = 0.999f,
                               .decay = 0.1f,
                               .range_count = 1,
                               .range_begin = {1},
                               .range_end = {2},
                               .scalars = &scalars,
                               .weight_element = DTP_ELEMENT_BF16};
    dtp_reference_adamw(NULL, &a, NULL);
    assert_close(master[0], 0.875, 1e-5);
    assert_close(master[1], 2.125 - 0.125 * 0.1 * 2, 1e-5);
    assert_close(master[2], 2.875, 1e-5);
    assert_close(moment1[0], 0.1 * 2, 1e-6);
    assert_close(moment2[0], 0.001 * 4, 1e-6);
    assert_int_equal(weights[2], dtp_bf16_from_float(master[2]));
    scalars.skip = 1;
    float kept = master[0];
    dtp_reference_adamw(NULL, &a, NULL);
    assert_true(master[0] == kept);
}

/* Pure bf16, stochastic: two shards round as the whole does. */
static void test_adamw_shards_round_alike(void **state)
{
    (void)state;
    enum { N = 24, HALF = 12 };
    float gradient[N];
    uint16_t whole[3][N] = {{0}}, shards[3][N] = {{0}};
    fill(gradient, N, 1);
    struct dtp_step_scalars scalars = {
        .learning_rate = 0.01f, .correction1 = 0.1f, .correction2 = 0.001f, .clip_scale = 1, .step = 4};
    struct dtp_adamw_args a = {.gradient = gradient,
                               .weights = whole[0],
                               .moment1 = whole[1],
                               .moment2 = whole[2],
                               .count = N,
                               .first_element = 5,
                               .beta1 = 0.9f,
                               .beta2 = 0.999f,
                               .scalars = &scalars,
                               .weight_element = DTP_ELEMENT_BF16,
                               .moment_element = DTP_ELEMENT_BF16,
                               .stochastic_rounding = true};
    dtp_reference_adamw(NULL, &a, NULL);
    for (int shard = 0; shard < 2; shard++) {
        int first = shard * HALF;
        a.gradient = gradient + first, a.count = HALF, a.first_element = 5 + (uint64_t)first;
        a.weights = shards[0] + first, a.moment1 = shards[1] + first, a.moment2 = shards[2] + first;
        dtp_reference_adamw(NULL, &a, NULL);
    }
    assert_memory_equal(whole, shards, sizeof whole);
}

static void test_elementwise(void **state)
{
    (void)state;
    float values[] = {1.00390625f, -2, 3}, total[] = {1, 1, 1}, back[3];
    uint16_t small[3];
    struct dtp_cast_args cast = {.values = values, .result = small, .count = 3, .result_element = DTP_ELEMENT_BF16};
    dtp_reference_cast(NULL, &cast, NULL);
    struct dtp_add_args add = {.values = small, .total = total, .count = 3, .element = DTP_ELEMENT_BF16};
    dtp_reference_add(NULL, &add, NULL);
    assert_true(total[0] == 2 && total[1] == -1 && total[2] == 4);
    float parts[] = {1, 2, 10, 20, 100, 200}, sums[] = {5, 6};
    struct dtp_sum_parts_args sum = {.parts = parts, .total = sums, .count = 2, .part_count = 3};
    dtp_reference_sum_parts(NULL, &sum, NULL);
    assert_true(sums[0] == 111 && sums[1] == 222);
    sum.accumulate = true;
    dtp_reference_sum_parts(NULL, &sum, NULL);
    assert_true(sums[0] == 222 && sums[1] == 444);
    uint16_t ones[] = {0x3F80, 0x3B80, 0x3B80}, one; /* 1 and twice 1/256, which is lost to bf16 unless added first */
    sum = (struct dtp_sum_parts_args){.parts = ones,
                                      .total = &one,
                                      .count = 1,
                                      .part_count = 3,
                                      .element = DTP_ELEMENT_BF16,
                                      .total_element = DTP_ELEMENT_BF16};
    dtp_reference_sum_parts(NULL, &sum, NULL);
    assert_int_equal(one, 0x3F81); /* rounded once: 1 + 2/256 */
    ones[2] = 0x3700;              /* 2^-17, which only a total in fp32 keeps, twice */
    sum.total = sums, sum.total_element = DTP_ELEMENT_FP32;
    dtp_reference_sum_parts(NULL, &sum, NULL);
    assert_true(sums[0] == 1.00390625f + 0x1p-17f);
    sum.accumulate = true;
    dtp_reference_sum_parts(NULL, &sum, NULL);
    assert_true(sums[0] == 2 * (1.00390625f + 0x1p-17f));
    struct dtp_zero_args zero = {.values = back, .bytes = sizeof back};
    memset(back, 1, sizeof back);
    dtp_reference_zero(NULL, &zero, NULL);
    assert_true(back[0] == 0 && back[2] == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bf16_rounds_to_nearest_even),
        cmocka_unit_test(test_philox),
        cmocka_unit_test(test_initialise),
        cmocka_unit_test(test_stochastic_rounding_has_no_bias),
        cmocka_unit_test(test_norms),
        cmocka_unit_test(test_rotary),
        cmocka_unit_test(test_qk_norm),
        cmocka_unit_test(test_activations),
        cmocka_unit_test(test_embedding),
        cmocka_unit_test(test_loss),
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_clip_scale),
        cmocka_unit_test(test_adamw),
        cmocka_unit_test(test_adamw_shards_round_alike),
        cmocka_unit_test(test_elementwise),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
