/* Files read whole. */
#include "base/input_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* Read twice, as a list that names "-" is from which it came: the second time it is empty, and no fault. */
static void test_standard_input_that_ended(void **state)
{
    (void)state;
    struct dtp_faults faults = {0};
    char *text = NULL;
    size_t bytes = 1;
    assert_non_null(freopen("/dev/null", "r", stdin));
    for (int time = 0; time < 2; time++) {
        assert_int_equal(dtp_input_read("-", 100, "", &text, &bytes, &faults), DTP_OK);
        assert_int_equal(bytes, 0);
        assert_string_equal(text, "");
        free(text);
    }
}

static void test_what_is_no_file(void **state)
{
    (void)state;
    struct dtp_faults faults = {0};
    char *text = NULL;
    size_t bytes;
    assert_int_equal(dtp_input_read("/", 100, "; name a file in it", &text, &bytes, &faults), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "is a folder; name a file in it"));
    assert_null(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_standard_input_that_ended),
                                       cmocka_unit_test(test_what_is_no_file)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
