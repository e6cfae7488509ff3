#include "base/nearest.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

static const char *const known[] = {"h100-sxm", "h100-pcie", "h200-sxm", "a100-80-sxm", "rtx-4090", "rtx-3090"};

static const char *nearest(const char *wanted)
{
    static char text[256];
    struct dtp_nearest list;
    dtp_nearest_begin(&list, wanted);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        dtp_nearest_offer(&list, known[i]);
    return dtp_nearest_text(&list, text, sizeof text);
}

static void test_nearest_first(void **state)
{
    (void)state;
    assert_string_equal(nearest("h100-smx"), "did you mean 'h100-sxm' or 'h200-sxm'?");
    assert_string_equal(nearest("H100"), "did you mean 'h100-sxm' or 'h100-pcie'?");
    assert_string_equal(nearest("RTX 4091"), "did you mean 'rtx-4090' or 'rtx-3090'?");
    assert_string_equal(nearest("a10080sxm"), "did you mean 'a100-80-sxm'?");
    assert_string_equal(nearest("a10080sxmpqrt"),
                        "did you mean 'a100-80-sxm'?"); /* four letters that it does not have */
    assert_string_equal(nearest("sxm"), "did you mean 'h100-sxm', 'h200-sxm' or 'a100-80-sxm'?");
}

static void test_nothing_near(void **state)
{
    (void)state;
    assert_string_equal(nearest("tpu-v5p"), "");
    assert_string_equal(nearest("a10080sxmpqrtu"), "");
    assert_string_equal(nearest(""), "");
    assert_string_equal(nearest("-_ ."), "");
}

static void test_long_names(void **state)
{
    (void)state;
    char name[5000];
    memset(name, 'h', sizeof name - 1);
    name[sizeof name - 1] = 0;
    assert_string_equal(nearest(name), "");
    struct dtp_nearest list;
    char text[16];
    dtp_nearest_begin(&list, name);
    dtp_nearest_offer(&list, name);
    assert_string_equal(dtp_nearest_text(&list, text, sizeof text), "did you mean 'h");
}

static void test_equal_names(void **state)
{
    (void)state;
    assert_true(dtp_names_equal("h100-sxm", "H100_SXM"));
    assert_true(dtp_names_equal("RTX 4090", "rtx4090-"));
    assert_false(dtp_names_equal("h100-sxm", "h100-sxm5"));
    assert_false(dtp_names_equal("h100-sxm5", "h100-sxm"));
    assert_true(dtp_names_equal("", "-"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nearest_first),
        cmocka_unit_test(test_nothing_near),
        cmocka_unit_test(test_long_names),
        cmocka_unit_test(test_equal_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
