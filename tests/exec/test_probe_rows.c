/* Samples on their way to rows. */
#include "probe/prober.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static char *said(const struct dtp_probe_rows *rows)
{
    static char text[4096];
    FILE *file = fmemopen(text, sizeof text, "w");
    assert_non_null(file);
    dtp_probe_rows_say(rows, file);
    assert_int_equal(fclose(file), 0);
    return text;
}

/* Of 1 to 5 quarters: median 3, quartiles 2 and 4. Two rows that differ in their key stay two. */
static void samples_of_a_row_meet(void **state)
{
    (void)state;
    struct dtp_probe_rows rows = {0};
    struct dtp_faults faults = {0};
    struct dtp_measured_row small = dtp_measured_row_of(DTP_MEASUREMENT_KERNEL, "norm"), large = small;
    small.number[DTP_MEASURED_bytes] = 1024;
    large.number[DTP_MEASURED_bytes] = 4096;
    for (int i = 5; i >= 1; i--)
        assert_int_equal(dtp_probe_rows_add(&rows, &small, i * 0.25, &faults), DTP_OK);
    assert_int_equal(dtp_probe_rows_add(&rows, &large, 0.5, &faults), DTP_OK);
    assert_int_equal(rows.count, 2);
    char *text = said(&rows);
    assert_non_null(strstr(text, "\"bytes\":1024.0,\"seconds\":0.75,\"low_s\":0.5,\"high_s\":1.0,\"samples\":5.0"));
    assert_non_null(strstr(text, "\"bytes\":4096.0,\"seconds\":0.5"));
    dtp_probe_rows_release(&rows);
}

/* What contention costs is a share, no time. */
static void contention_is_a_value(void **state)
{
    (void)state;
    struct dtp_probe_rows rows = {0};
    struct dtp_faults faults = {0};
    struct dtp_measured_row row = dtp_measured_row_of(DTP_MEASUREMENT_CONTENTION, "all_gather");
    row.number[DTP_MEASURED_ranks] = 4;
    row.number[DTP_MEASURED_stride] = row.number[DTP_MEASURED_nodes] = 1;
    assert_int_equal(dtp_probe_rows_add(&rows, &row, 0.25, &faults), DTP_OK);
    char *text = said(&rows);
    assert_non_null(strstr(text, "\"samples\":1.0,\"value\":0.25"));
    assert_null(strstr(text, "seconds"));
    dtp_probe_rows_release(&rows);
}

/* A rank alone that measures cores. */
struct clock_of_test {
    int calls;
    double seconds[8];
};

static enum dtp_status next_time(void *of, double *seconds)
{
    struct clock_of_test *clock = of;
    *seconds = clock->seconds[clock->calls++];
    return DTP_OK;
}

/* Two samples at a time. The first two hold one of 0.5 ns and are taken anew. */
static void impossible_samples_are_taken_anew(void **state)
{
    (void)state;
    struct clock_of_test clock = {.seconds = {1e-6, 0.5e-9, 2e-6, 3e-6, 4e-6}};
    struct dtp_prober p = {.gpu.architecture = DTP_GPU_HOST};
    struct dtp_measured_row row = dtp_measured_row_of(DTP_MEASUREMENT_COPY, "upload");
    double samples[2];
    row.number[DTP_MEASURED_bytes] = 64;
    assert_int_equal(dtp_prober_sample(&p, &row, 2, next_time, &clock, samples), DTP_OK);
    assert_int_equal(clock.calls, 4);
    assert_true(samples[0] == 2e-6 && samples[1] == 3e-6);
    assert_int_equal(p.left_out, 0);
}

/* Where it stays so it is given up; what is impossible becomes no row, and its words wait to be said. */
static void impossible_samples_are_left_out(void **state)
{
    (void)state;
    struct clock_of_test clock = {.seconds = {0.5e-9, 1e-6, 0.5e-9, 1e-6, 0.5e-9, 1e-6}};
    struct dtp_faults faults = {0};
    struct dtp_prober p = {.gpu.architecture = DTP_GPU_HOST, .faults = &faults};
    struct dtp_measured_row row = dtp_measured_row_of(DTP_MEASUREMENT_COPY, "upload");
    double samples[2];
    row.number[DTP_MEASURED_bytes] = 64;
    assert_int_equal(dtp_prober_sample(&p, &row, 2, next_time, &clock, samples), DTP_OK);
    assert_int_equal(clock.calls, 2 * DTP_PROBE_TRIES);
    for (int i = 0; i < 2; i++)
        assert_int_equal(dtp_prober_keep(&p, &row, samples[i]), DTP_OK);
    assert_int_equal(p.left_out, 1);
    assert_string_equal(p.left_out_first, "copy upload of 64 bytes in 0.5 ns, the least is 5 ns");
    assert_true(p.rows.count == 1 && p.rows.all[0].count == 1 && p.rows.all[0].seconds[0] == 1e-6);
    dtp_probe_rows_release(&p.rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(samples_of_a_row_meet), cmocka_unit_test(contention_is_a_value),
                                       cmocka_unit_test(impossible_samples_are_taken_anew),
                                       cmocka_unit_test(impossible_samples_are_left_out)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
