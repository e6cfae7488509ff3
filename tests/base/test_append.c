#include "base/append.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static void parts_are_separated(void **state)
{
    (void)state;
    char text[32] = "";
    dtp_append_part(text, sizeof text, ", ", "%s", "tp");
    dtp_append_part(text, sizeof text, ", ", "%s %d", "pp", 4);
    dtp_append(text, sizeof text, "; %d ranks", 8);
    assert_string_equal(text, "tp, pp 4; 8 ranks");
}

/* The byte behind the place stays what it was. */
static void what_does_not_fit_is_cut_off(void **state)
{
    (void)state;
    char place[] = "ab\0......|";
    const size_t bytes = sizeof place - 2;
    dtp_append(place, bytes, "%s", "cdefghij");
    assert_string_equal(place, "abcdefgh");
    dtp_append_part(place, bytes, ", ", "%s", "more");
    assert_string_equal(place, "abcdefgh");
    assert_int_equal(place[bytes], '|');
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(parts_are_separated),
                                       cmocka_unit_test(what_does_not_fit_is_cut_off)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
