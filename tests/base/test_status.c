#include "base/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

static void test_worst_status_wins(void **state)
{
    (void)state;
    struct dtp_faults faults = {0};
    assert_int_equal(dtp_fault(&faults, DTP_BAD_INPUT, "a.csv", 3, "unknown key '%s'", "x"), DTP_BAD_INPUT);
    dtp_fault(&faults, DTP_NO, NULL, 0, "does not fit");
    assert_int_equal(faults.status, DTP_BAD_INPUT);
    assert_int_equal(faults.count, 2);
    assert_string_equal(faults.text[0], "a.csv:3: unknown key 'x'");
    assert_string_equal(faults.text[1], "does not fit");
}

static void test_hostile_text_is_cut_and_printable(void **state)
{
    (void)state;
    struct dtp_faults faults = {0};
    char hostile[4096];
    memset(hostile, '\033', sizeof hostile - 1);
    hostile[sizeof hostile - 1] = 0;
    dtp_fault(&faults, DTP_BAD_INPUT, hostile, 1, "%s", hostile);
    assert_true(strlen(faults.text[0]) < DTP_FAULT_TEXT_BYTES);
    assert_null(strchr(faults.text[0], '\033'));
    for (int i = 0; i < 100; i++)
        dtp_fault(&faults, DTP_BAD_INPUT, NULL, 0, "again");
    assert_int_equal(faults.count, 101);
}

static void test_a_key_is_named_once(void **state)
{
    (void)state;
    struct dtp_faults faults = {0};
    dtp_fault_about(&faults, DTP_BAD_INPUT, "job.ini", 3, "seq", "is %d", 0);
    dtp_fault_about(&faults, DTP_BAD_INPUT, "--seq", 0, "seq", "is %d", 0);
    dtp_fault_about(&faults, DTP_BAD_INPUT, NULL, 0, "seq", "is %d", 0);
    assert_string_equal(faults.text[0], "job.ini:3: seq: is 0");
    assert_string_equal(faults.text[1], "--seq: is 0");
    assert_string_equal(faults.text[2], "seq: is 0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_worst_status_wins),
                                       cmocka_unit_test(test_hostile_text_is_cut_and_printable),
                                       cmocka_unit_test(test_a_key_is_named_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
