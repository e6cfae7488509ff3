/* Latent attention's kernels in plain C: heads packed and back, norms of some columns. */
#include "kernels/element.h"
#include "kernels/kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "lib/kernel_fixture.h"

/* Two tokens of a head of 4, of which 2 are turned, and values of 3; the shared part stands behind three of a latent.
 * The second token turns by a right angle: neighbours (a, b) -> (-b, a). */
static void test_latent_heads(void **state)
{
    (void)state;
    float queries[2][4], latents[2][5], keys_values[2][5], packed[2][11], cosines[] = {1, 0}, sines[] = {0, 1};
    fill(&queries[0][0], 8, 1), fill(&latents[0][0], 10, 2), fill(&keys_values[0][0], 10, 3);
    const struct dtp_latent_heads_args a = {.queries = queries,
                                            .latents = latents,
                                            .keys_values = keys_values,
                                            .packed = packed,
                                            .cosines = cosines,
                                            .sines = sines,
                                            .rows = 2,
                                            .sequence = 2,
                                            .heads = 1,
                                            .head_dim = 4,
                                            .rope_dim = 2,
                                            .value_dim = 3,
                                            .latent_row = 5};
    assert_int_equal(dtp_reference_latent_heads(NULL, &a, NULL), 0);
    for (int t = 0; t < 2; t++) {
        const float *q = queries[t], *k = keys_values[t], *shared = latents[t] + 3;
        const float expected[11] = {q[0],
                                    q[1],
                                    t ? -q[3] : q[2],
                                    t ? q[2] : q[3],
                                    k[0],
                                    k[1],
                                    t ? -shared[1] : shared[0],
                                    t ? shared[0] : shared[1],
                                    k[2],
                                    k[3],
                                    k[4]};
        for (int i = 0; i < 11; i++)
            assert_close(packed[t][i], expected[i], 1e-6);
    }
}

/* Packing is linear, so backward is its transpose: gradient . pack(x) = back(gradient) . x, whatever both are. Columns
 * of the latents' gradient before the shared part stay. */
static void test_latent_heads_backward(void **state)
{
    enum { ROWS = 6, HEADS = 3, DIM = 8, ROPE = 4, VALUE = 2, ROW = 9, PACKED = HEADS * (2 * DIM + VALUE) };
    (void)state;
    float x[3][ROWS * HEADS * DIM], back[3][ROWS * HEADS * DIM], packed[ROWS * PACKED], gradient[ROWS * PACKED];
    float cosines[3 * ROPE / 2], sines[3 * ROPE / 2];
    const size_t counts[3] = {ROWS * HEADS * DIM, (size_t)ROWS * ROW, ROWS * HEADS * (DIM - ROPE + VALUE)};
    for (uint32_t i = 0; i < 3; i++)
        fill(x[i], (uint32_t)counts[i], i + 1), memset(back[i], 0, sizeof back[i]);
    fill(gradient, ROWS * PACKED, 7), fill(cosines, 3 * ROPE / 2, 8), fill(sines, 3 * ROPE / 2, 9);
    back[1][0] = 5;
    const struct dtp_latent_heads_args a = {.queries = x[0],
                                            .latents = x[1],
                                            .keys_values = x[2],
                                            .packed = packed,
                                            .cosines = cosines,
                                            .sines = sines,
                                            .rows = ROWS,
                                            .sequence = 3,
                                            .heads = HEADS,
                                            .head_dim = DIM,
                                            .rope_dim = ROPE,
                                            .value_dim = VALUE,
                                            .latent_row = ROW};
    const struct dtp_latent_heads_backward_args b = {.packed = gradient,
                                                     .queries = back[0],
                                                     .latents = back[1],
                                                     .keys_values = back[2],
                                                     .cosines = cosines,
                                                     .sines = sines,
                                                     .rows = ROWS,
                                                     .sequence = 3,
                                                     .heads = HEADS,
                                                     .head_dim = DIM,
                                                     .rope_dim = ROPE,
                                                     .value_dim = VALUE,
                                                     .latent_row = ROW};
    assert_int_equal(dtp_reference_latent_heads(NULL, &a, NULL), 0);
    assert_int_equal(dtp_reference_latent_heads_backward(NULL, &b, NULL), 0);
    assert_true(back[1][0] >= 5 && back[1][0] <= 5);
    back[1][0] = 0;
    double forward = 0, backward = 0;
    for (size_t i = 0; i < (size_t)ROWS * PACKED; i++)
        forward += (double)gradient[i] * (double)packed[i];
    for (int k = 0; k < 3; k++)
        for (size_t i = 0; i < counts[k]; i++)
            backward += (double)back[k][i] * (double)x[k][i];
    assert_true(fabs(forward) > 1e-3);
    assert_close(forward, backward, 1e-5 * (1 + fabs(forward)));
}

/* A norm over the first three of five columns is that of rows of three, forward and backward; others' gradient stays.
 */
static void test_norm_of_some_columns(void **state)
{
    (void)state;
    float wide[2][5], dense[2][3], weight[3], gradient[2][3], result[2][3], same[2][3], inverse[2];
    float dwide[2][5] = {{0, 0, 0, 7, 8}, {0, 0, 0, 9, 10}}, ddense[2][3];
    fill(&wide[0][0], 10, 1), fill(weight, 3, 2), fill(&gradient[0][0], 6, 3);
    for (int t = 0; t < 2; t++)
        memcpy(dense[t], wide[t], sizeof dense[t]);
    struct dtp_norm_args a = {
        .x = wide, .weight = weight, .result = result, .inverse_deviation = inverse, .rows = 2, .width = 3, .x_row = 5};
    assert_int_equal(dtp_reference_norm(NULL, &a, NULL), 0);
    a.x = dense, a.x_row = 0, a.result = same;
    assert_int_equal(dtp_reference_norm(NULL, &a, NULL), 0);
    assert_memory_equal(result, same, sizeof result);
    struct dtp_norm_backward_args b = {.gradient = gradient,
                                       .x = wide,
                                       .weight = weight,
                                       .inverse_deviation = inverse,
                                       .residual_gradient = dwide,
                                       .rows = 2,
                                       .width = 3,
                                       .x_row = 5};
    assert_int_equal(dtp_reference_norm_backward(NULL, &b, NULL), 0);
    b.x = dense, b.x_row = 0, b.residual_gradient = ddense;
    assert_int_equal(dtp_reference_norm_backward(NULL, &b, NULL), 0);
    for (int t = 0; t < 2; t++) {
        assert_memory_equal(dwide[t], ddense[t], sizeof ddense[t]);
        assert_true(dwide[t][3] >= 7 && dwide[t][4] >= 8);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_latent_heads),
                                       cmocka_unit_test(test_latent_heads_backward),
                                       cmocka_unit_test(test_norm_of_some_columns)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
