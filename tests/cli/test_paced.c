/* What a probe of a host says by the loop that it timed beside each operation becomes seconds of one speed. */
#include "cli/probe_events.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>

static double seconds_of(const struct dtp_probe_heard *h, size_t row)
{
    return h->rows[row].number[DTP_MEASURED_seconds];
}

/* Passes by one rank and by two, the second on cores that were disturbed half as much again: an operation of ten loops
 * takes ten of the least loop in both. A collective's time is no core's. */
static void test_passes_are_joined(void **state)
{
    (void)state;
    struct dtp_probe_heard h = dtp_probe_heard_start();
    static const char *const lines[] = {
        "{\"event\":\"row\",\"measurement\":\"kernel\",\"what\":\"rms_norm\",\"bytes\":8.0,\"ranks\":1.0,"
        "\"seconds\":0.002,\"low_s\":0.001,\"high_s\":0.004}",
        "{\"event\":\"row\",\"measurement\":\"collective\",\"what\":\"all_reduce\",\"seconds\":0.5}",
        "{\"event\":\"pace\",\"loop_s\":0.0002,\"least_s\":0.0001}",
        "{\"event\":\"row\",\"measurement\":\"kernel\",\"what\":\"rms_norm\",\"bytes\":8.0,\"ranks\":2.0,"
        "\"seconds\":0.003,\"low_s\":0.003,\"high_s\":0.003}",
        "{\"event\":\"pace\",\"loop_s\":0.0003,\"least_s\":0.00015}",
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        dtp_probe_hear(&h, lines[i]);
    assert_false(h.damaged);
    assert_true(dtp_probe_heard_join(&h));
    assert_int_equal(h.count, 4);
    assert_true(fabs(seconds_of(&h, 0) - 0.001) <= 1e-12);
    assert_true(fabs(h.rows[0].number[DTP_MEASURED_low_s] - 0.0005) <= 1e-12);
    assert_true(fabs(h.rows[0].number[DTP_MEASURED_high_s] - 0.002) <= 1e-12);
    assert_true(fabs(seconds_of(&h, 1) - 0.5) <= 0);
    assert_true(fabs(seconds_of(&h, 2) - 0.001) <= 1e-12);
    assert_string_equal(h.rows[3].what, DTP_MEASURED_PACE);
    assert_true(fabs(seconds_of(&h, 3) - 0.0001) <= 0);
    dtp_probe_heard_release(&h);
}

/* A GPU says no pace: nothing is scaled, no row comes. */
static void test_nothing_without_a_pace(void **state)
{
    (void)state;
    struct dtp_probe_heard h = dtp_probe_heard_start();
    dtp_probe_hear(&h, "{\"event\":\"row\",\"measurement\":\"kernel\",\"what\":\"rms_norm\",\"seconds\":0.002}");
    assert_true(dtp_probe_heard_join(&h));
    assert_int_equal(h.count, 1);
    assert_true(fabs(seconds_of(&h, 0) - 0.002) <= 0);
    dtp_probe_heard_release(&h);
}

static void test_a_loop_that_took_nothing_is_damage(void **state)
{
    (void)state;
    struct dtp_probe_heard h = dtp_probe_heard_start();
    dtp_probe_hear(&h, "{\"event\":\"pace\",\"loop_s\":0,\"least_s\":0.1}");
    assert_true(h.damaged);
    dtp_probe_heard_release(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_passes_are_joined),
        cmocka_unit_test(test_nothing_without_a_pace),
        cmocka_unit_test(test_a_loop_that_took_nothing_is_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
