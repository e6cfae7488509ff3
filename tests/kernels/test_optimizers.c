/* Optimizers with less state: AdamW with moments of 8 bits, SGD. */
#include "lib/kernel_fixture.h"

#include "kernels/dynamic_map.h"

#include <stdlib.h>

static const float signed_map[256] = {DTP_SIGNED_MAP}, unsigned_map[256] = {DTP_UNSIGNED_MAP};

static int compare(const void *a, const void *b)
{
    float left = *(const float *)a, right = *(const float *)b;
    return (left > right) - (left < right);
}

/* Decade i, the last from 0.1 to 1, is cut in 2^i equal parts, or twice as many; of each part the middle. */
static void test_maps(void **state)
{
    (void)state;
    for (int is_signed = 0; is_signed < 2; is_signed++) {
        float made[256] = {0, 1};
        int count = 2;
        for (int i = 0; i < 7; i++) {
            int parts = 1 << (is_signed ? i : i + 1);
            for (int k = 0; k < parts; k++) {
                double middle = (0.1 + 0.9 * (k + 0.5) / parts) * pow(10, i - 6);
                made[count++] = (float)middle;
                if (is_signed)
                    made[count++] = (float)-middle;
            }
        }
        assert_int_equal(count, 256);
        qsort(made, 256, sizeof *made, compare);
        for (int i = 0; i < 256; i++)
            assert_true(fabsf(made[i] - (is_signed ? signed_map : unsigned_map)[i]) <= 1e-7f * fabsf(made[i]));
    }
}

/* In the first step the corrected moments are g and g^2, so that every weight moves by the learning rate against the
 * gradient's sign, exactly, for the step is taken before they are rounded. The block's scales are then a tenth of the
 * largest gradient and a thousandth of its square; the largest is the place of 1, nothing that of 0. */
static void test_first_step_of_adamw8(void **state)
{
    (void)state;
    static float gradient[512], weights[512];
    static uint8_t moment1[512], moment2[512];
    float scale1[2] = {0}, scale2[2] = {0};
    gradient[0] = 4, gradient[1] = -2, gradient[256] = -8;
    weights[0] = 1, weights[256] = 2;
    struct dtp_step_scalars scalars = {
        .learning_rate = 0.125f, .correction1 = 0.1f, .correction2 = 0.001f, .clip_scale = 0.5f};
    struct dtp_adamw_args a = {.gradient = gradient,
                               .weights = weights,
                               .moment1 = moment1,
                               .moment2 = moment2,
                               .scale1 = scale1,
                               .scale2 = scale2,
                               .count = 512,
                               .beta1 = 0.9f,
                               .beta2 = 0.999f,
                               .epsilon = 1e-12f,
                               .decay = 0.5f,
                               .range_count = 1,
                               .range_begin = {256},
                               .range_end = {512},
                               .scalars = &scalars,
                               .moment_element = DTP_ELEMENT_INT8};
    assert_int_equal(dtp_reference_adamw8(NULL, &a, NULL), 0);
    assert_true(fabsf(weights[0] - 0.875f) < 1e-6f && fabsf(weights[1] - 0.125f) < 1e-6f && weights[2] == 0);
    assert_true(fabsf(weights[256] - (2 + 0.125f - 0.125f * 0.5f * 2)) < 1e-6f);
    assert_true(fabsf(scale1[0] - 0.2f) < 1e-7f && fabsf(scale1[1] - 0.4f) < 1e-7f);
    assert_true(fabsf(scale2[0] - 0.004f) < 1e-6f && fabsf(scale2[1] - 0.016f) < 1e-6f);
    const uint8_t zero = DTP_SIGNED_ZERO;
    assert_true((uint8_t)(moment1[0] + zero) == 255 && (uint8_t)(moment1[256] + zero) == 0 && moment2[256] == 255);
    assert_true(moment1[2] == 0 && moment2[2] == 0 && signed_map[zero] == 0 && unsigned_map[0] == 0);
    assert_true(fabsf(signed_map[(uint8_t)(moment1[1] + zero)] + 0.5f) < 0.01f);
    assert_true(fabsf(unsigned_map[moment2[1]] - 0.25f) < 0.01f);
    scalars.skip = 1;
    float before = weights[0];
    dtp_reference_adamw8(NULL, &a, NULL);
    assert_true(weights[0] == before);
}

/* weights -= 0.5 (0.25 g + 0.1 w) where they decay, the others without. */
static void test_sgd(void **state)
{
    (void)state;
    float gradient[] = {4, -8}, weights[] = {10, 10};
    struct dtp_step_scalars scalars = {.learning_rate = 0.5f, .clip_scale = 0.25f};
    struct dtp_adamw_args a = {.gradient = gradient,
                               .weights = weights,
                               .count = 2,
                               .decay = 0.125f,
                               .range_count = 1,
                               .range_begin = {0},
                               .range_end = {1},
                               .scalars = &scalars};
    assert_int_equal(dtp_reference_sgd(NULL, &a, NULL), 0);
    assert_true(weights[0] == 10 - 0.5f * (1 + 1.25f) && weights[1] == 11);
}

/* The step is 0.75 m + 0.25 g + 0.125 w: of m = 8, g = 4, w = 8 it is 6 + 1 + 1 = 8, which is the new momentum too. */
static void test_sgd_with_momentum(void **state)
{
    (void)state;
    float gradient[] = {4, 4}, weights[] = {8, 8}, momentum[] = {8, 0};
    struct dtp_step_scalars scalars = {.learning_rate = 0.5f, .clip_scale = 0.25f};
    struct dtp_adamw_args a = {.gradient = gradient,
                               .weights = weights,
                               .moment1 = momentum,
                               .beta1 = 0.75f,
                               .count = 2,
                               .decay = 0.125f,
                               .range_count = 1,
                               .range_begin = {0},
                               .range_end = {1},
                               .scalars = &scalars};
    assert_int_equal(dtp_reference_sgd(NULL, &a, NULL), 0);
    assert_true(momentum[0] == 8 && weights[0] == 4 && momentum[1] == 1 && weights[1] == 7.5f);
    scalars.skip = 1;
    dtp_reference_sgd(NULL, &a, NULL);
    assert_true(momentum[0] == 8 && weights[0] == 4);
}

/* Momentum 0.75, gradients 4 and 8 clipped to 1 and 2: momenta 8 + 0.25 (1 - 8) = 6.25 and 0 + 0.5 = 0.5, of which
 * 1 + 0.75 (6.25 - 1) = 4.9375 and 2 + 0.75 (0.5 - 2) = 0.875 go on, their squares 24.37890625 and 0.765625. The root
 * of the sum is 5.0144, in bf16 5; quotients 0.9875 and 0.175 are 0.98828125 and 0.1748046875 there. With 16 on top of
 * their factor 2 weights move by 0.5 (2 x 0.98828125 + 0.125 w). */
static void test_muon(void **state)
{
    (void)state;
    float gradient[] = {4, 8}, momentum[] = {8, 0}, partial[DTP_SQUARE_SUM_PARTIALS], weights[] = {16, 16};
    uint16_t update[2];
    struct dtp_step_scalars scalars = {.learning_rate = 0.5f, .clip_scale = 0.25f};
    struct dtp_muon_momentum_args m = {.gradient = gradient,
                                       .momentum = momentum,
                                       .result = update,
                                       .partial = partial,
                                       .count = 2,
                                       .factor = 0.75f,
                                       .scalars = &scalars};
    struct dtp_muon_unit_args u = {.values = update, .partial = partial, .count = 2, .scalars = &scalars};
    struct dtp_adamw_args step = {.gradient = update,
                                  .weights = weights,
                                  .count = 2,
                                  .decay = 0.125f,
                                  .factor = 2,
                                  .range_count = 1,
                                  .range_begin = {0},
                                  .range_end = {1},
                                  .scalars = &scalars,
                                  .gradient_element = DTP_ELEMENT_BF16};
    assert_int_equal(dtp_reference_muon_momentum(NULL, &m, NULL), 0);
    assert_true(momentum[0] == 6.25f && momentum[1] == 0.5f);
    assert_true(dtp_bf16_to_float(update[0]) == 4.9375f && dtp_bf16_to_float(update[1]) == 0.875f);
    assert_true(partial[0] == 24.37890625f && partial[1] == 0.765625f && partial[2] == 0 && partial[511] == 0);
    assert_int_equal(dtp_reference_muon_unit(NULL, &u, NULL), 0);
    assert_true(dtp_bf16_to_float(update[0]) == 0.98828125f && dtp_bf16_to_float(update[1]) == 0.1748046875f);
    assert_int_equal(dtp_reference_sgd(NULL, &step, NULL), 0);
    assert_true(weights[0] == 16 - 0.5f * (2 * 0.98828125f + 2) && weights[1] == 16 - 0.1748046875f);
    scalars.skip = 1;
    dtp_reference_muon_momentum(NULL, &m, NULL);
    dtp_reference_muon_unit(NULL, &u, NULL);
    assert_true(momentum[0] == 6.25f && dtp_bf16_to_float(update[0]) == 0.98828125f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_maps), cmocka_unit_test(test_first_step_of_adamw8),
                                       cmocka_unit_test(test_sgd), cmocka_unit_test(test_sgd_with_momentum),
                                       cmocka_unit_test(test_muon)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
