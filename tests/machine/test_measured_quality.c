/* How good a fit is said to be: what is left out of it row by row, by hand and within seconds. */
#include "machine/measured.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>

#include "lib/hardware.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SECONDS_OF_MANY 5.0
#define MANY 19000

/* Kernels of 1, 2, 3, ... steps of 64 KiB and 3 us + bytes at 4 TB/s, off by what looks like chance. */
static void size_of(size_t i, double *bytes, double *seconds)
{
    *bytes = 65536.0 * (double)(i + 1);
    *seconds = (3e-6 + *bytes / 4e12) * (1 + 0.03 * sin(12.9898 * (double)(i + 1)));
}

static struct dtp_measured *measured_kernels(size_t count)
{
    struct dtp_measured_rows rows = {.row = malloc((count + 1) * sizeof *rows.row),
                                     .line = calloc(count + 1, sizeof *rows.line)};
    struct dtp_gpu gpu = test_h200();
    struct dtp_measured *measured;
    struct dtp_faults faults = {.count = 0};
    assert_true(rows.row && rows.line);
    for (size_t i = 0; i < count; i++) {
        struct dtp_measured_row *row = &rows.row[rows.count++];
        *row = dtp_measured_row_of(DTP_MEASUREMENT_KERNEL, "norm");
        size_of(i, &row->number[DTP_MEASURED_bytes], &row->number[DTP_MEASURED_seconds]);
    }
    assert_int_equal(dtp_measured_create("m.csv", &rows, &gpu, &measured, &faults), DTP_OK);
    return measured;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A curve of all sizes but one, asked for that one; the median over all. */
static double left_out_by_hand(size_t count)
{
    double bytes[16], seconds[16], off[16];
    for (size_t without = 0; without < count; without++) {
        struct dtp_measured_curve curve;
        struct dtp_faults faults = {.count = 0};
        double asked, measured;
        size_t n = 0;
        for (size_t i = 0; i < count; i++)
            if (i != without) {
                size_of(i, &bytes[n], &seconds[n]);
                n++;
            }
        assert_int_equal(dtp_measured_curve_make(bytes, seconds, n, &curve, &faults), DTP_OK);
        size_of(without, &asked, &measured);
        off[without] = fabs(dtp_measured_curve_s(&curve, asked) / measured - 1);
        dtp_measured_curve_release(&curve);
    }
    qsort(off, count, sizeof *off, by_value);
    return count % 2 ? off[count / 2] : (off[count / 2 - 1] + off[count / 2]) / 2;
}

static void test_left_out_is_what_a_curve_of_the_others_says(void **state)
{
    (void)state;
    for (size_t count = 2; count <= 16; count++) {
        struct dtp_measured *measured = measured_kernels(count);
        struct dtp_measured_quality quality;
        assert_int_equal(dtp_measured_quality_count(measured), 1);
        assert_true(dtp_measured_quality(measured, 0, &quality));
        double by_hand = left_out_by_hand(count);
        if (!(fabs(quality.left_out_residual / by_hand - 1) < 1e-6))
            fail_msg("%zu sizes: %.9g, by hand %.9g", count, quality.left_out_residual, by_hand);
        dtp_measured_destroy(measured);
    }
}

/* A fit of all others for each row would take a minute and a half. */
static void test_many_sizes_take_no_long_time(void **state)
{
    (void)state;
    struct dtp_measured *measured = measured_kernels(MANY);
    struct dtp_measured_quality quality;
    clock_t start = clock();
    assert_true(dtp_measured_quality(measured, 0, &quality));
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC; /* of a processor, however busy the machine is */
    if (seconds > SECONDS_OF_MANY)
        fail_msg("%.1f s for %d sizes", seconds, MANY);
    assert_true(quality.left_out_residual < 0.06);
    dtp_measured_destroy(measured);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_left_out_is_what_a_curve_of_the_others_says),
                                       cmocka_unit_test(test_many_sizes_take_no_long_time)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
