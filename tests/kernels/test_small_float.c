/* Floats of 16 and 8 bits, casts to them, and the loss scale: values found by hand, and every number of 8 bits. */
#include "lib/kernel_fixture.h"

/* fp16 has ten bits after the point: 1 + 1/2048 is halfway to 1 + 1/1024 and goes to the even 1. Its least number is
 * 2^-24, half of which goes to 0; 65519.99 is nearest to 65504, 65520 to infinity. */
static void test_fp16(void **state)
{
    (void)state;
    assert_int_equal(dtp_fp16_from_float(1.0f + 1.0f / 2048), 0x3C00);
    assert_int_equal(dtp_fp16_from_float(1.0f + 3.0f / 2048), 0x3C02);
    assert_int_equal(dtp_fp16_from_float(-0x1p-24f), 0x8001);
    assert_int_equal(dtp_fp16_from_float(0x1p-25f), 0);
    assert_int_equal(dtp_fp16_from_float(0x1.8p-25f), 1);
    assert_int_equal(dtp_fp16_from_float(65519.0f), 0x7BFF);
    assert_int_equal(dtp_fp16_from_float(65520.0f), 0x7C00);
    assert_true(isnan(dtp_fp16_to_float(dtp_fp16_from_float(NAN))));
    for (uint32_t i = 0; i < 0x7C00; i++)
        if (dtp_fp16_from_float(dtp_fp16_to_float((uint16_t)i)) != i)
            fail_msg("%x becomes %g", i, (double)dtp_fp16_to_float((uint16_t)i));
}

/* E4M3: 0x38 is 1, 0x08 is 2^-6, the least normal number, 0x01 2^-9, 0x7E 448 and 0x7F none. E5M2: 0x3C is 1, 0x7B
 * 57344. Beyond the largest, infinities too, everything becomes that. */
static void test_fp8(void **state)
{
    (void)state;
    assert_true(dtp_e4m3_to_float(0x38) == 1 && dtp_e4m3_to_float(0x08) == 0x1p-6f && dtp_e4m3_to_float(1) == 0x1p-9f);
    assert_true(dtp_e4m3_to_float(0xFE) == -448 && isnan(dtp_e4m3_to_float(0x7F)));
    assert_true(dtp_e5m2_to_float(0x3C) == 1 && dtp_e5m2_to_float(0x7B) == 57344 && isinf(dtp_e5m2_to_float(0x7C)));
    assert_int_equal(dtp_e4m3_from_float(1.0625f), 0x38); /* halfway to 1.125: the even one */
    assert_int_equal(dtp_e4m3_from_float(1.1875f), 0x3A); /* halfway between 1.125 and 1.25 */
    assert_int_equal(dtp_e4m3_from_float(1e30f), 0x7E);
    assert_int_equal(dtp_e4m3_from_float(-INFINITY), 0xFE);
    assert_int_equal(dtp_e5m2_from_float(INFINITY), 0x7B);
    assert_int_equal(dtp_e5m2_from_float(60000.0f), 0x7B);
    assert_int_equal(dtp_e4m3_from_float(NAN), 0x7F);
    for (uint32_t i = 0; i < 0x7F; i++)
        assert_int_equal(dtp_e4m3_from_float(dtp_e4m3_to_float((uint8_t)i)), i);
    for (uint32_t i = 0; i < 0x7C; i++)
        assert_int_equal(dtp_e5m2_from_float(dtp_e5m2_to_float((uint8_t)i)), i);
}

/* Nearest of all, by trying each: ties to the even code. */
static void test_fp8_is_nearest(void **state)
{
    (void)state;
    for (int k = 0; k < 4000; k++) {
        float value = (float)dtp_random_normal(5, 1, (uint64_t)k) * (k % 2 ? 1.0f : 0.004f);
        uint8_t best = 0;
        for (uint32_t i = 0; i < 0x7F; i++) {
            float off = fabsf(dtp_e4m3_to_float((uint8_t)i) - fabsf(value));
            float least = fabsf(dtp_e4m3_to_float(best) - fabsf(value));
            best = off < least || (off <= least && i % 2 == 0) ? (uint8_t)i : best;
        }
        assert_int_equal(dtp_e4m3_from_float(value) & 0x7F, best);
    }
}

/* The largest is 7: s = 448 / 7 = 64, so that 7 becomes 448, 0.5 32 and -1 -64; 1/64 brings them back. */
static void test_quantize(void **state)
{
    (void)state;
    float values[256] = {7, 0.5f, [16] = -1}, amax = 0, scale = 0;
    uint8_t rows[256], columns[256];
    struct dtp_amax_args first = {.values = values, .amax = &amax, .count = 256};
    struct dtp_quantize_args then = {.values = values,
                                     .amax = &amax,
                                     .scale = &scale,
                                     .result = rows,
                                     .transposed = columns,
                                     .rows = 16,
                                     .columns = 16,
                                     .result_element = DTP_ELEMENT_E4M3};
    assert_int_equal(dtp_reference_amax(NULL, &first, NULL), 0);
    assert_int_equal(dtp_reference_quantize(NULL, &then, NULL), 0);
    assert_true(amax == 7 && scale == 1.0f / 64);
    assert_true(rows[0] == 0x7E && dtp_e4m3_to_float(rows[1]) == 32 && dtp_e4m3_to_float(rows[16]) == -64);
    assert_true(columns[0] == 0x7E && columns[16] == rows[1] && columns[1] == rows[16] && rows[2] == 0);
    amax = 9; /* it is raised, never lowered */
    dtp_reference_amax(NULL, &first, NULL);
    assert_true(amax == 9);
}

/* [2 by 16 ones] by [3 by 16 twos], scaled by 1/2 and 1/4 and added to 10: 16 * 2 / 8 + 10. */
static void test_scaled_matmul(void **state)
{
    (void)state;
    uint8_t a[32], b[48];
    float of_a = 0.5f, of_b = 0.25f, result[6] = {10, 10, 10, 10, 10, 10};
    memset(a, dtp_e5m2_from_float(1), sizeof a);
    memset(b, dtp_e4m3_from_float(2), sizeof b);
    struct dtp_matmul_args g = {.a = a,
                                .b = b,
                                .addend = result,
                                .result = result,
                                .a_scale = &of_a,
                                .b_scale = &of_b,
                                .m = 2,
                                .n = 3,
                                .k = 16,
                                .lda = 16,
                                .ldb = 16,
                                .ldd = 3,
                                .element = DTP_ELEMENT_E5M2,
                                .b_transposed = true};
    assert_int_equal(dtp_reference_matmul(NULL, &g, NULL), 0);
    for (int i = 0; i < 6; i++)
        assert_true(result[i] == 14);
}

/* Scales of rows: 448 / 3 is 149.3, the largest power of two in that 128, the scale its inverse; of the first column's
 * 7 exactly 64. Runs of 128 of a row of 144: the second has 16 elements of its own, and lies 16 rows on. A square's
 * largest is 7 for all 16 x 128, the next one's 0, for which the scale is 1; by columns squares are in the other order,
 * each row of theirs padded to 4. */
static void test_scaled_quantize(void **state)
{
    (void)state;
    enum { ROWS = 16, COLUMNS = 144 };
    static float values[ROWS * COLUMNS], scales[2 * COLUMNS], others[2 * COLUMNS];
    static uint8_t rows[ROWS * COLUMNS], columns[ROWS * COLUMNS];
    values[0] = 7, values[1 * COLUMNS + 5] = -3, values[2 * COLUMNS + 130] = 0.5f;
    struct dtp_scaled_quantize_args a = {.values = values,
                                         .result = rows,
                                         .transposed = columns,
                                         .result_scales = scales,
                                         .transposed_scales = others,
                                         .rows = ROWS,
                                         .columns = COLUMNS,
                                         .scaling = DTP_SCALED_ROWS};
    assert_int_equal(dtp_reference_scaled_quantize(NULL, &a, NULL), 0);
    assert_true(scales[0] == 1.0f / 64 && scales[1] == 1.0f / 128 && scales[2] == 1.0f / 512);
    assert_true(others[0] == 1.0f / 64 && others[5] == 1.0f / 128 && others[130] == 1.0f / 512);
    assert_true(dtp_e4m3_to_float(rows[COLUMNS + 5]) == -384 && dtp_e4m3_to_float(columns[5 * ROWS + 1]) == -384);
    a.scaling = DTP_SCALED_RUNS;
    assert_int_equal(dtp_reference_scaled_quantize(NULL, &a, NULL), 0);
    assert_true(scales[2] == 1 && scales[ROWS + 2] == 1.0f / 512 && scales[ROWS + 1] == 1 && scales[1] == 1.0f / 128);
    assert_true(dtp_e4m3_to_float(rows[2 * COLUMNS + 130]) == 256);
    a.scaling = DTP_SCALED_SQUARES;
    assert_int_equal(dtp_reference_scaled_quantize(NULL, &a, NULL), 0);
    assert_true(scales[0] == 1.0f / 64 && scales[1] == 1.0f / 512 && others[0] == 1.0f / 64 && others[4] == scales[1]);
    assert_true(dtp_e4m3_to_float(rows[COLUMNS + 5]) == -192 && dtp_e4m3_to_float(columns[5 * ROWS + 1]) == -192);
    a.scaling = DTP_SCALED_ALIKE, a.result = NULL;
    assert_int_equal(dtp_reference_scaled_quantize(NULL, &a, NULL), 0);
    assert_true(others[0] == 1.0f / 64 && others[COLUMNS - 1] == 1.0f / 64);
    assert_true(dtp_scale_place(DTP_SCALED_RUNS, 32, 256, 7, 129) == 39);
    assert_true(dtp_scale_place(DTP_SCALED_SQUARES, 300, 640, 257, 639) == 2 * 8 + 4); /* 5 squares of a row: 8 */
}

/* The largest that is finite of 3 in the oldest place, infinity, and 1, the newest: 448 / 3; of a gradient 57344 / 3. A
 * step later the oldest has gone, and the newest is in the last place: 448. Of zeros it is 1. A cast by it raises the
 * newest, which is 0 again, to 7, and what is beyond 448 becomes that. */
static void test_scales_of_earlier_steps(void **state)
{
    (void)state;
    static float history[3][DTP_AMAX_HISTORY], scale[3][DTP_AMAX_SCALE], values[256] = {-7, 0.5f};
    static uint8_t result[256];
    history[0][0] = 1, history[0][1] = 3, history[0][700] = INFINITY, history[2][1] = 3;
    struct dtp_from_history_args a = {.history = history[0], .scale = scale[0], .count = 3, .wide = 2};
    assert_int_equal(dtp_reference_from_history(NULL, &a, NULL), 0);
    assert_true(scale[0][1] == 448.0f / 3 && scale[0][0] == 1 / scale[0][1]);
    assert_true(scale[1][1] == 1 && scale[1][0] == 1 && scale[2][1] == 57344.0f / 3);
    assert_true(history[0][0] == 0 && history[0][DTP_AMAX_HISTORY - 1] == 1 && isinf(history[0][699]));
    dtp_reference_from_history(NULL, &a, NULL);
    assert_true(scale[0][1] == 448 && history[0][DTP_AMAX_HISTORY - 2] == 1 && history[0][DTP_AMAX_HISTORY - 1] == 0);
    struct dtp_quantize_args cast = {.values = values,
                                     .amax = history[0],
                                     .scale = scale[0],
                                     .result = result,
                                     .rows = 16,
                                     .columns = 16,
                                     .result_element = DTP_ELEMENT_E4M3,
                                     .delayed = true};
    assert_int_equal(dtp_reference_quantize(NULL, &cast, NULL), 0);
    assert_true(history[0][0] == 7 && scale[0][1] == 448);
    assert_true(dtp_e4m3_to_float(result[0]) == -448 && dtp_e4m3_to_float(result[1]) == 224);
    cast.amax = NULL;
    assert_int_equal(dtp_reference_quantize(NULL, &cast, NULL), 0);
}

/* [2, 256] by [1, 256] of ones, both scaled by runs: (128 x 2 x 3 + 128 x 4 x 5) in the first row. By rows: 256 x 7 x
 * 11 in the second. */
static void test_scales_of_parts(void **state)
{
    (void)state;
    static uint8_t ones[2 * 256];
    memset(ones, dtp_e4m3_from_float(1), sizeof ones);
    float runs[4] = {2, 1, 4, 1}, others[2] = {3, 5}, rows[2] = {1, 7}, row = 11, result[2];
    struct dtp_matmul_args a = {.a = ones,
                                .b = ones,
                                .a_scale = runs,
                                .b_scale = others,
                                .a_scaling = DTP_SCALED_RUNS,
                                .b_scaling = DTP_SCALED_RUNS,
                                .result = result,
                                .m = 2,
                                .n = 1,
                                .k = 256,
                                .lda = 256,
                                .ldb = 256,
                                .ldd = 1,
                                .element = DTP_ELEMENT_E4M3,
                                .b_transposed = true};
    assert_int_equal(dtp_reference_matmul(NULL, &a, NULL), 0);
    assert_true(result[0] == 128 * 6 + 128 * 20 && result[1] == 128 * 8);
    a.a_scale = rows, a.b_scale = &row, a.a_scaling = a.b_scaling = DTP_SCALED_ROWS;
    assert_int_equal(dtp_reference_matmul(NULL, &a, NULL), 0);
    assert_true(result[0] == 256 * 11 && result[1] == 256 * 77);
}

/* Norms say the amax of what they write. Of a row of equal numbers the normed ones are 1 (epsilon 0), times weights of
 * up to 3. */
static void test_norm_finds_its_amax(void **state)
{
    (void)state;
    float x[4] = {2, 2, 2, 2}, weight[4] = {1, -3, 2, 0}, result[4], deviation, amax = 0;
    struct dtp_norm_args a = {.x = x,
                              .weight = weight,
                              .result = result,
                              .inverse_deviation = &deviation,
                              .amax = &amax,
                              .rows = 1,
                              .width = 4};
    dtp_reference_norm(NULL, &a, NULL);
    assert_true(amax == 3 && result[1] == -3);
}

/* Gradients 1024 times too large: a norm of 5 * 1024 is 5; clipped to 1, the factor is 1 / 5 / 1024. */
static void test_loss_scale(void **state)
{
    (void)state;
    float partials[] = {9 * 1024.0f * 1024.0f, 16 * 1024.0f * 1024.0f}, row_loss[2], plain[4] = {1, 2, 3, 0}, scaled[4];
    int32_t target[1] = {1};
    struct dtp_step_scalars scalars = {.loss_sum = 1, .loss_scale = 1024};
    struct dtp_clip_scale_args a = {.partials = partials, .count = 2, .clip = 1, .scalars = &scalars};
    dtp_reference_clip_scale(NULL, &a, NULL);
    assert_true(scalars.gradient_norm == 5 && scalars.clip_scale == 0.2f / 1024 && !scalars.skip);
    memcpy(scaled, plain, sizeof plain);
    struct dtp_loss_args loss = {.logits = plain,
                                 .targets = target,
                                 .row_loss = &row_loss[0],
                                 .rows = 1,
                                 .vocab = 3,
                                 .stride = 4,
                                 .scale = 0.5f};
    dtp_reference_loss(NULL, &loss, NULL);
    loss.logits = scaled, loss.row_loss = &row_loss[1], loss.scalars = &scalars;
    dtp_reference_loss(NULL, &loss, NULL);
    assert_true(row_loss[0] == row_loss[1]);
    for (int i = 0; i < 4; i++)
        assert_true(scaled[i] == 1024 * plain[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fp16),
                                       cmocka_unit_test(test_fp8),
                                       cmocka_unit_test(test_fp8_is_nearest),
                                       cmocka_unit_test(test_quantize),
                                       cmocka_unit_test(test_scaled_quantize),
                                       cmocka_unit_test(test_scales_of_parts),
                                       cmocka_unit_test(test_scales_of_earlier_steps),
                                       cmocka_unit_test(test_scaled_matmul),
                                       cmocka_unit_test(test_norm_finds_its_amax),
                                       cmocka_unit_test(test_loss_scale)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
