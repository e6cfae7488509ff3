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

/* A right-to-left override would show "cod.exe" as "exe.doc"; letters of such scripts, and joiners, are text. */
static void test_what_turns_a_line_is_not_printable(void **state)
{
    (void)state;
    static const char *const refused[] = {"a\xe2\x80\xae"
                                          "b",
                                          "a\xe2\x81\xa6", "a\xe2\x80\xa8", "a\xd8\x9c", "a\xe2\x80\x8f"};
    static const char *const kept[] = {"\xd7\xa9\xd7\x9c\xd7\x95\xd7\x9d",
                                       "a\xe2\x80\x8d"
                                       "b",
                                       "\xe2\x80\xa6", "\xd8\x9b"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct dtp_faults faults = {0};
        assert_int_equal(dtp_printable_length(refused[i]), 1);
        dtp_fault(&faults, DTP_BAD_INPUT, NULL, 0, "%s", refused[i]);
        assert_int_equal(dtp_printable_length(faults.text[0]), strlen(refused[i]));
    }
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        struct dtp_faults faults = {0};
        assert_int_equal(dtp_printable_length(kept[i]), strlen(kept[i]));
        dtp_fault(&faults, DTP_BAD_INPUT, NULL, 0, "%s", kept[i]);
        assert_string_equal(faults.text[0], kept[i]);
    }
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_worst_status_wins), cmocka_unit_test(test_hostile_text_is_cut_and_printable),
        cmocka_unit_test(test_what_turns_a_line_is_not_printable), cmocka_unit_test(test_a_key_is_named_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
