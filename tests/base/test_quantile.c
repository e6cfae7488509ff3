#include "base/quantile.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static void medians(void **state)
{
    (void)state;
    double odd[] = {3, 1, 2}, even[] = {4, 1, 3, 2}, one[] = {7};
    assert_true(dtp_median(odd, 1, 3) == 2);
    assert_true(dtp_median(even, 1, 4) == 2.5);
    assert_true(dtp_median(one, 1, 1) == 7);
    assert_true(even[0] == 1 && even[3] == 4);
}

/* 9, 5 and 7 between others that stay where they are. */
static void every_other_value(void **state)
{
    (void)state;
    double values[] = {9, 100, 5, -100, 7, 0};
    assert_true(dtp_median(values, 2, 3) == 7);
    assert_true(values[0] == 5 && values[1] == 100 && values[3] == -100 && values[5] == 0);
}

static void quantiles(void **state)
{
    (void)state;
    double values[] = {4, 0, 3, 1, 2};
    assert_true(dtp_quantile(values, 5, 0) == 0);
    assert_true(dtp_quantile(values, 5, 0.25) == 1);
    assert_true(dtp_quantile(values, 5, 0.125) == 0.5);
    assert_true(dtp_quantile(values, 5, 1) == 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(medians), cmocka_unit_test(every_other_value),
                                       cmocka_unit_test(quantiles)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
