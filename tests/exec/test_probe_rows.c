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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(samples_of_a_row_meet),
                                       cmocka_unit_test(contention_is_a_value)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
