/* Seconds of products of rows by experts: PyTorch's kernel on Hopper by hand, beside what it was measured to take, and
 * more of anything never in less time. */
#include "cost/calibration.h"
#include "cost/grouped_matmul.h"
#include "runtime/runtimes.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "lib/hardware.h"

/* 8 experts of 2048 rows on average, [2048, 4096]: 8.5 x 256 rows of each, 16 tiles wide, are 1,088 pairs of
 * tiles, 16.5 waves of 66. A weight's gradient has 8 x 16 of each expert, 15.5 waves, as deep as its rows. */
static void test_tiles_by_hand(void **state)
{
    (void)state;
    const struct dtp_gpu gpu = test_h200();
    const double depth = dtp_calibration.grouped_tile_depth, rate = 989.4e12 * 0.69;
    double full_s = 2.0 * 16384 * 2048 * 4096 / rate, wave_s = 2.0 * 66 * 256 * 256 / rate;
    assert_near(dtp_torch_grouped_matmul_s(&gpu, DTP_BF16, DTP_PRODUCT_FORWARD, 8, 2048, 4096, 2048),
                (full_s + 0.8 * (17 * wave_s * (2048 + depth) - full_s)) / 1.025, 1e-12);
    assert_near(dtp_torch_grouped_matmul_s(&gpu, DTP_BF16, DTP_PRODUCT_WEIGHT_GRADIENT, 8, 2048, 4096, 2048),
                (full_s + 0.8 * (16 * wave_s * (2048 + depth) - full_s)) / 1.025, 1e-12);
    /* 128 rows on average: 1.5 x 128 of each, 32 tiles wide, are 384 pairs, six waves. */
    full_s = 2.0 * 1024 * 4096 * 4096 / rate, wave_s = 2.0 * 66 * 128 * 128 / rate;
    assert_near(dtp_torch_grouped_matmul_s(&gpu, DTP_BF16, DTP_PRODUCT_FORWARD, 8, 128, 4096, 4096),
                (full_s + 0.8 * (6 * wave_s * (4096 + depth) - full_s)) / 1.025, 1e-12);
    /* One row each: 64 matrices of 4 MiB are read. */
    assert_true(dtp_torch_grouped_matmul_s(&gpu, DTP_BF16, DTP_PRODUCT_FORWARD, 64, 1, 1024, 2048) >
                2.0 * 64 * 1024 * 2048 / (0.9 * 4.8e12));
}

static const char *const products[] = {"forward", "input", "weight"}, *const divisions[] = {"even", "uneven", "skewed"};

/* Of products of one kind, rows divided alike: sums of errors, and of predicted / measured. */
struct errors {
    double tiles, rows, tiles_ratio, rows_ratio;
    int count;
};

static size_t place(const char *const words[3], const char *word)
{
    for (size_t i = 0; i < 3; i++)
        if (strcmp(words[i], word) == 0)
            return i;
    fail_msg("%s", word);
    return 0;
}

/* By the kernel's tiles, and as if groups had more rows, which is how all others are priced. */
static void add_errors(const struct dtp_gpu *gpu, const char *line, struct errors of[3][3])
{
    static const enum dtp_product kinds[] = {DTP_PRODUCT_FORWARD, DTP_PRODUCT_INPUT_GRADIENT,
                                             DTP_PRODUCT_WEIGHT_GRADIENT};
    unsigned experts, in, out, rows, most;
    char division[16], product[16];
    double measured_s;
    if (sscanf(line, "%u,%u,%u,%u,%15[a-z],%u,%15[a-z],%lf", &experts, &in, &out, &rows, division, &most, product,
               &measured_s) != 8)
        fail_msg("%s", line);
    const enum dtp_product kind = kinds[place(products, product)];
    const bool sums = kind == DTP_PRODUCT_WEIGHT_GRADIENT, back = kind == DTP_PRODUCT_INPUT_GRADIENT;
    const double of_each = (double)rows / experts;
    const double m = sums ? in : of_each, n = back ? in : out, k = sums ? of_each : back ? out : in;
    double tiles = dtp_torch_grouped_matmul_s(gpu, DTP_BF16, kind, experts, m, n, k) / measured_s;
    double more = dtp_grouped_matmul_s(gpu, DTP_BF16, DTP_FP8_NONE, kind, experts, m, n, k) / measured_s;
    struct errors *errors = &of[place(products, product)][place(divisions, division)];
    *errors = (struct errors){errors->tiles + fabs(tiles - 1), errors->rows + fabs(more - 1),
                              errors->tiles_ratio + tiles, errors->rows_ratio + more, errors->count + 1};
}

/* Rows that fill tiles to the last, as no router sends them, take less. */
static void test_measured_products(void **state)
{
    (void)state;
    const struct dtp_gpu gpu = test_h200();
    FILE *file = fopen(TEST_SOURCE_DIR "/reports/h200/torch_grouped.csv", "r");
    assert_non_null(file);
    char line[256];
    struct errors errors[3][3] = {0};
    double uneven = 0;
    assert_non_null(fgets(line, sizeof line, file));
    while (fgets(line, sizeof line, file))
        add_errors(&gpu, line, errors);
    fclose(file);
    print_message("predicted / measured, and error: by more rows, by tiles\n");
    for (int p = 0; p < 3; p++)
        for (int d = 0; d < 3; d++) {
            const struct errors *of = &errors[p][d];
            assert_int_equal(of->count, 30);
            print_message("%-8s%-8s%.2f %4.1f %%   %.2f %4.1f %%\n", products[p], divisions[d], of->rows_ratio / 30,
                          100 * of->rows / 30, of->tiles_ratio / 30, 100 * of->tiles / 30);
            assert_true(of->tiles < of->rows && of->tiles < 0.125 * 30);
            uneven += d ? of->tiles / (6 * 30) : 0;
        }
    assert_true(uneven < 0.055);
}

/* One by one across the edges of tiles and waves, and from the kernel of few rows to that of many. */
static void test_more_never_takes_less(void **state)
{
    (void)state;
    const struct dtp_gpu gpu = test_h200();
    static const double others[][2] = {{768, 2048}, {2048, 768}, {128, 4096}, {1408, 104}};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        for (double groups = 1; groups <= 64; groups *= 4) {
            double before[5] = {0};
            for (double x = 8; x < 9000; x += x < 1500 ? 8 : 296) {
                const double a = others[i][0], b = others[i][1];
                const double now[] = {
                    dtp_torch_grouped_matmul_s(&gpu, DTP_BF16, DTP_PRODUCT_FORWARD, groups, x, a, b),
                    dtp_torch_grouped_matmul_s(&gpu, DTP_BF16, DTP_PRODUCT_FORWARD, groups, a, x, b),
                    dtp_torch_grouped_matmul_s(&gpu, DTP_BF16, DTP_PRODUCT_FORWARD, groups, a, b, x),
                    dtp_torch_grouped_matmul_s(&gpu, DTP_BF16, DTP_PRODUCT_WEIGHT_GRADIENT, groups, a, b, x),
                    dtp_torch_grouped_matmul_s(&gpu, DTP_BF16, DTP_PRODUCT_WEIGHT_GRADIENT, groups, x, a, b)};
                for (int d = 0; d < 5; d++) {
                    assert_true(now[d] >= before[d] * (1 - 1e-12));
                    before[d] = now[d];
                }
            }
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiles_by_hand),
        cmocka_unit_test(test_measured_products),
        cmocka_unit_test(test_more_never_takes_less),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
