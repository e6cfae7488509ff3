#include "base/number.h"

#include <locale.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

static double parsed(const char *text)
{
    double value = NAN;
    return dtp_number_parse(text, &value) ? value : NAN;
}

static void test_numbers_as_people_write_them(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double value;
    } cases[] = {{"7e9", 7e9},
                 {"7B", 7e9},
                 {"1.3b", 1.3e9},
                 {"2k", 2000},
                 {"2K", 2000},
                 {"0.5", 0.5},
                 {".5", 0.5},
                 {"5.", 5},
                 {"-3", -3},
                 {"+4", 4},
                 {"6.7G", 6.7e9},
                 {"1.8T", 1.8e12},
                 {"124M", 124e6},
                 {"1e-3", 1e-3},
                 {"0", 0},
                 {"000.000", 0},
                 {"7 B", 7e9},
                 {"0.1", 0.1},
                 {"1.1e308", 1.1e308},
                 {"1e-320", 1e-320},
                 {"12345678901234567890", 12345678901234567890.0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (!(parsed(cases[i].text) == cases[i].value))
            fail_msg("%s gave %.17g, expected %.17g", cases[i].text, parsed(cases[i].text), cases[i].value);
}

static void test_what_is_no_number_is_refused(void **state)
{
    (void)state;
    static const char *const refused[] = {
        "",         " ",     "nan",
        "NaN",      "inf",   "-inf",
        "infinity", "0x10",  "1e",
        "e9",       "1e+",   "1..2",
        "1.2.3",    "7BB",   "7Bx",
        "7 B 8",    "1,5",   "1e999",
        "1e309",    "--3",   "+-3",
        "k",        ".",     "-",
        "7e9e9",    "7q",    "1e99999999999999999999",
        "\t7",      "1_000", "11111111111111111111111111111111111111111111111111111111111111111"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (!isnan(parsed(refused[i])))
            fail_msg("'%s' was accepted as %g", refused[i], parsed(refused[i]));
    double value;
    assert_false(dtp_number_parse(NULL, &value));
}

static void test_integers_are_exact(void **state)
{
    (void)state;
    uint64_t value = 0;
    assert_true(dtp_number_parse_integer("18446744073709551615", false, 0, UINT64_MAX, &value));
    assert_true(value == UINT64_MAX);
    assert_false(dtp_number_parse_integer("18446744073709551616", false, 0, UINT64_MAX, &value));
    assert_true(dtp_number_parse_integer("6738415616", false, 0, UINT64_MAX, &value));
    assert_true(value == 6738415616u);
    assert_true(dtp_number_parse_integer("1.5k", false, 0, 9999, &value));
    assert_true(value == 1500);
    assert_true(dtp_number_parse_integer("2.000", false, 0, 9999, &value));
    assert_true(value == 2);
    assert_true(dtp_number_parse_integer("20e-1", false, 0, 9999, &value));
    assert_true(value == 2);
    assert_true(dtp_number_parse_integer("0k", false, 0, 9999, &value));
    assert_true(value == 0);
}

static void test_sequences_count_in_1024(void **state)
{
    (void)state;
    uint64_t value = 0;
    assert_true(dtp_number_parse_integer("8k", true, 1, 100000000, &value));
    assert_true(value == 8192);
    assert_true(dtp_number_parse_integer("1.5k", true, 1, 100000000, &value));
    assert_true(value == 1536);
    assert_true(dtp_number_parse_integer("1M", true, 1, 100000000, &value));
    assert_true(value == 1048576);
    assert_true(dtp_number_parse_integer("2048", true, 1, 100000000, &value));
    assert_true(value == 2048);
}

static void test_integers_out_of_range_are_refused(void **state)
{
    (void)state;
    uint64_t value = 77;
    assert_false(dtp_number_parse_integer("1.5", false, 0, 100, &value));
    assert_false(dtp_number_parse_integer("-1", false, 0, 100, &value));
    assert_false(dtp_number_parse_integer("-0", false, 0, 100, &value));
    assert_false(dtp_number_parse_integer("0", false, 1, 100, &value));
    assert_false(dtp_number_parse_integer("101", false, 1, 100, &value));
    assert_false(dtp_number_parse_integer("1e30", false, 0, UINT64_MAX, &value));
    assert_false(dtp_number_parse_integer("99999999T", false, 0, UINT64_MAX, &value));
    assert_false(dtp_number_parse_integer("4096M", true, 0, 1u << 31, &value));
    assert_false(dtp_number_parse_integer("two", false, 0, 100, &value));
    assert_int_equal(value, 77);
}

static void test_bytes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t value;
    } cases[] = {{"40GiB", 42949672960u}, {"40 GiB", 42949672960u}, {"80GB", 80000000000u}, {"1kB", 1000},
                 {"1KB", 1000},           {"1kib", 1024},           {"512", 512},           {"512B", 512},
                 {"25MiB", 26214400},     {"1.5GiB", 1610612736},   {"0.1KiB", 102},        {"2TB", 2000000000000u}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t value = 0;
        assert_true(dtp_number_parse_bytes(cases[i].text, &value));
        assert_true(value == cases[i].value);
    }
    static const char *const refused[] = {"", "GiB", "40Gb", "40gb", "40G", "-1GiB", "nan", "1e30GiB", "40GiBs"};
    uint64_t value;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        assert_false(dtp_number_parse_bytes(refused[i], &value));
}

static void test_durations(void **state)
{
    static const struct {
        const char *text;
        double seconds;
    } good[] = {{"90s", 90}, {"15min", 900}, {"1.5h", 5400}, {"30d", 2592000}, {"2w", 1209600}, {"1e3 h", 3.6e6}};
    static const char *const bad[] = {"30", "",   "d",     "0h",     "-1d",   "30 days",
                                      "1m", "1H", "nan h", "1e400d", "1e12w", "5h3"};
    static const struct {
        double seconds;
        const char *text;
    } printed[] = {{45, "45 s"}, {150, "2.50 min"}, {9000, "2.50 h"}, {2592000, "30.0 days"}, {3.2e9, "101 years"}};
    char text[DTP_NUMBER_TEXT_BYTES];
    double seconds;
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_true(dtp_number_parse_duration(good[i].text, &seconds));
        assert_true(fabs(seconds - good[i].seconds) <= 1e-9 * good[i].seconds);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(dtp_number_parse_duration(bad[i], &seconds));
    for (size_t i = 0; i < sizeof printed / sizeof *printed; i++)
        assert_string_equal(dtp_number_format_duration(printed[i].seconds, text, sizeof text), printed[i].text);
}

static void test_formats(void **state)
{
    (void)state;
    char out[DTP_NUMBER_TEXT_BYTES];
    assert_string_equal(dtp_number_format_count(6738415616.0, out, sizeof out), "6.74 B");
    assert_string_equal(dtp_number_format_count(124439808.0, out, sizeof out), "124 M");
    assert_string_equal(dtp_number_format_count(999999999.0, out, sizeof out), "1.00 B");
    assert_string_equal(dtp_number_format_count(999, out, sizeof out), "999");
    assert_string_equal(dtp_number_format_count(70.6e9, out, sizeof out), "70.6 B");
    assert_string_equal(dtp_number_format_count(-50257, out, sizeof out), "-50.3 k");
    assert_string_equal(dtp_number_format_count(0, out, sizeof out), "0");
    assert_string_equal(dtp_number_format_count(2.5, out, sizeof out), "2.50");
    assert_string_equal(dtp_number_format_memory(13421772800u, out, sizeof out), "12.5 GiB");
    assert_string_equal(dtp_number_format_memory(1073741823u, out, sizeof out), "1.00 GiB");
    assert_string_equal(dtp_number_format_memory(512, out, sizeof out), "512 B");
    assert_string_equal(dtp_number_format_memory(0, out, sizeof out), "0 B");
    assert_string_equal(dtp_number_format_memory((uint64_t)2048 << 30, out, sizeof out), "2048 GiB");
    assert_string_equal(dtp_number_format_memory((uint64_t)20 << 40, out, sizeof out), "20.0 TiB");
    assert_string_equal(dtp_number_format_memory(UINT64_MAX, out, sizeof out), "16777216 TiB");
    assert_string_equal(dtp_number_format_rate(300e9, out, sizeof out), "300 GB/s");
    assert_string_equal(dtp_number_format_rate(3.35e12, out, sizeof out), "3.35 TB/s");
    assert_string_equal(dtp_number_format_duration(0.9999, out, sizeof out), "1.00 s");
    assert_string_equal(dtp_number_format_duration(12.345, out, sizeof out), "12.3 s");
    assert_string_equal(dtp_number_format_duration(0, out, sizeof out), "0 s");
    assert_string_equal(dtp_number_format_duration(NAN, out, sizeof out), "-");
    assert_string_equal(dtp_number_format_duration(INFINITY, out, sizeof out), "inf");
    char small[4];
    assert_string_equal(dtp_number_format_memory(13421772800u, small, sizeof small), "12.");
}

static void test_a_decimal_comma_locale_changes_nothing(void **state)
{
    char out[DTP_NUMBER_TEXT_BYTES];
    static const char *const locales[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "nl_NL.UTF-8", "de_DE", "fr_FR"};
    for (size_t i = 0; i < sizeof locales / sizeof *locales; i++)
        if (setlocale(LC_ALL, locales[i]))
            break;
    test_numbers_as_people_write_them(state);
    assert_string_equal(dtp_number_format_duration(12.345, out, sizeof out), "12.3 s");
    setlocale(LC_ALL, "C");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_numbers_as_people_write_them),
                                       cmocka_unit_test(test_what_is_no_number_is_refused),
                                       cmocka_unit_test(test_integers_are_exact),
                                       cmocka_unit_test(test_sequences_count_in_1024),
                                       cmocka_unit_test(test_integers_out_of_range_are_refused),
                                       cmocka_unit_test(test_bytes),
                                       cmocka_unit_test(test_durations),
                                       cmocka_unit_test(test_formats),
                                       cmocka_unit_test(test_a_decimal_comma_locale_changes_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
