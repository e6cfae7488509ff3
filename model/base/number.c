#include "base/number.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* No number a person types is longer; the limit keeps the conversion buffer on the stack. */
#define MAX_DIGITS 64
#define MAX_EXPONENT 400

/* digits * 10^exponent, as typed; `rest` is what follows. Keeping the decimal point out of the text handed to strtod
 * makes the result independent of the locale, and folding suffixes into the exponent rounds once only. */
struct decimal {
    bool negative;
    char digits[MAX_DIGITS + 1];
    size_t digit_count;
    int exponent;
    const char *rest;
};

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Leading zeros are dropped; "0" keeps no digit at all. */
static bool read_digits(const char **cursor, bool fraction, struct decimal *out, bool *any)
{
    for (; is_digit(**cursor); (*cursor)++) {
        *any = true;
        if (fraction && --out->exponent < -MAX_EXPONENT)
            return false;
        if (out->digit_count == 0 && **cursor == '0')
            continue;
        if (out->digit_count == MAX_DIGITS)
            return false;
        out->digits[out->digit_count++] = **cursor;
    }
    return true;
}

/* e or E counts as an exponent only when digits follow, so that what is left over is judged as a suffix. */
static bool read_exponent(const char **cursor, struct decimal *out)
{
    const char *c = *cursor;
    if (*c != 'e' && *c != 'E')
        return true;
    c++;
    bool negative = *c == '-';
    if (*c == '-' || *c == '+')
        c++;
    if (!is_digit(*c))
        return true;
    int value = 0;
    for (; is_digit(*c); c++) {
        value = value * 10 + (*c - '0');
        if (value > MAX_EXPONENT)
            return false;
    }
    out->exponent += negative ? -value : value;
    *cursor = c;
    return true;
}

static bool read_decimal(const char *text, struct decimal *out)
{
    *out = (struct decimal){0};
    const char *c = text;
    while (*c == ' ')
        c++;
    out->negative = *c == '-';
    if (*c == '-' || *c == '+')
        c++;
    bool any = false;
    if (!read_digits(&c, false, out, &any))
        return false;
    if (*c == '.') {
        c++;
        if (!read_digits(&c, true, out, &any))
            return false;
    }
    if (!any || !read_exponent(&c, out))
        return false;
    /* Trailing zeros go into the exponent: "1.50" and "1.5" are one number, and "20e-1" is whole. */
    while (out->digit_count && out->digits[out->digit_count - 1] == '0') {
        out->digit_count--;
        out->exponent++;
    }
    out->digits[out->digit_count] = 0;
    if (out->digit_count == 0)
        out->exponent = 0;
    while (*c == ' ')
        c++;
    out->rest = c;
    return true;
}

static bool only_spaces(const char *text)
{
    return text[strspn(text, " ")] == 0;
}

/* Power of the thousand a suffix stands for: "" 0, k 1, M 2, G or B 3, T 4; -1 for anything else. */
static int suffix_power(const char *text)
{
    if (only_spaces(text))
        return 0;
    if (!only_spaces(text + 1))
        return -1;
    switch (text[0]) {
    case 'k':
    case 'K': return 1;
    case 'm':
    case 'M': return 2;
    case 'g':
    case 'G':
    case 'b':
    case 'B': return 3;
    case 't':
    case 'T': return 4;
    default: return -1;
    }
}

static bool to_double(const struct decimal *decimal, double *out)
{
    char text[MAX_DIGITS + 16];
    snprintf(text, sizeof text, "%se%d", decimal->digit_count ? decimal->digits : "0", decimal->exponent);
    double value = strtod(text, NULL);
    if (!isfinite(value))
        return false;
    *out = decimal->negative ? -value : value;
    return true;
}

bool dtp_number_parse(const char *text, double *out)
{
    struct decimal decimal;
    if (!text || !read_decimal(text, &decimal))
        return false;
    int power = suffix_power(decimal.rest);
    if (power < 0)
        return false;
    decimal.exponent += 3 * power;
    return to_double(&decimal, out);
}

static bool multiply(uint64_t *value, uint64_t by)
{
    return !__builtin_mul_overflow(*value, by, value);
}

/* digits * 10^exponent * 1024^binary_power when that is a whole number below 2^64. */
static bool to_integer(const struct decimal *decimal, int binary_power, uint64_t *out)
{
    if (decimal->negative)
        return false;
    uint64_t value = 0;
    for (size_t i = 0; i < decimal->digit_count; i++)
        if (!multiply(&value, 10) || __builtin_add_overflow(value, (uint64_t)(decimal->digits[i] - '0'), &value))
            return false;
    for (int i = 0; i < binary_power; i++)
        if (!multiply(&value, 1024))
            return false;
    for (int i = decimal->exponent; i > 0; i--)
        if (!multiply(&value, 10))
            return false;
    for (int i = decimal->exponent; i < 0; i++) {
        if (value % 10)
            return false;
        value /= 10;
    }
    *out = value;
    return true;
}

bool dtp_number_parse_integer(const char *text, bool binary, uint64_t minimum, uint64_t maximum, uint64_t *out)
{
    struct decimal decimal;
    if (!text || !read_decimal(text, &decimal))
        return false;
    int power = suffix_power(decimal.rest);
    if (power < 0)
        return false;
    if (!binary)
        decimal.exponent += decimal.digit_count ? 3 * power : 0;
    uint64_t value;
    if (!to_integer(&decimal, binary ? power : 0, &value) || value < minimum || value > maximum)
        return false;
    *out = value;
    return true;
}

/* Decimal exponent or power of 1024 of a unit of bytes. */
static bool byte_unit(const char *text, int *decimal_exponent, int *binary_power)
{
    static const char *const binary[] = {"KiB", "MiB", "GiB", "TiB"};
    static const char *const decimal[] = {"kB", "MB", "GB", "TB"};
    *decimal_exponent = *binary_power = 0;
    if (!*text || !strcmp(text, "B"))
        return true;
    for (int i = 0; i < 4; i++) {
        if (!strcasecmp(text, binary[i])) {
            *binary_power = i + 1;
            return true;
        }
        /* "KB" is common; a small b would be bits. */
        if (!strcasecmp(text, decimal[i]) && text[1] == 'B') {
            *decimal_exponent = 3 * (i + 1);
            return true;
        }
    }
    return false;
}

bool dtp_number_parse_bytes(const char *text, uint64_t *out)
{
    struct decimal decimal;
    int exponent, power;
    if (!text || !read_decimal(text, &decimal) || !byte_unit(decimal.rest, &exponent, &power))
        return false;
    decimal.exponent += decimal.digit_count ? exponent : 0;
    if (to_integer(&decimal, power, out))
        return true;
    double value;
    if (decimal.negative || !to_double(&decimal, &value))
        return false;
    value = ldexp(value, 10 * power);
    if (value >= 0x1p64)
        return false;
    *out = (uint64_t)value;
    return true;
}

bool dtp_number_parse_duration(const char *text, double *out_s)
{
    static const struct {
        const char *unit;
        double seconds;
    } units[] = {{"s", 1}, {"min", 60}, {"h", 3600}, {"d", 86400}, {"w", 604800}};
    struct decimal decimal;
    double value;
    if (!text || !read_decimal(text, &decimal) || decimal.negative || !to_double(&decimal, &value))
        return false;
    size_t length = strcspn(decimal.rest, " ");
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (strlen(units[i].unit) == length && !strncmp(decimal.rest, units[i].unit, length) &&
            only_spaces(decimal.rest + length)) {
            *out_s = value * units[i].seconds;
            return *out_s > 0 && *out_s < 1e15;
        }
    return false;
}

/* ---- printing -------------------------------------------------------------------------------------------------- */

struct unit {
    const char *text;
    double size, from; /* used for values that round to `from` or more */
};

/* Three significant digits for small numbers, whole ones beyond; built from integers, so that no locale's decimal
 * comma gets in. */
static void format_scaled(double value, const char *unit, char *out, size_t bytes)
{
    double magnitude = fabs(value);
    int decimals = magnitude < 9.995 ? 2 : magnitude < 99.95 ? 1 : 0;
    long long scale = decimals == 2 ? 100 : decimals == 1 ? 10 : 1;
    long long whole = llround(magnitude * (double)scale);
    const char *sign = value < 0 && whole ? "-" : "";
    const char *space = *unit ? " " : "";
    if (whole % scale == 0 && decimals == 2 && whole / scale == 0)
        snprintf(out, bytes, "0%s%s", space, unit);
    else if (decimals)
        snprintf(out, bytes, "%s%lld.%0*lld%s%s", sign, whole / scale, decimals, whole % scale, space, unit);
    else
        snprintf(out, bytes, "%s%lld%s%s", sign, whole, space, unit);
}

/* `units` from the largest to the smallest. */
static char *format_units(double value, const struct unit *units, size_t count, char *out, size_t bytes)
{
    if (isnan(value)) {
        snprintf(out, bytes, "-");
        return out;
    }
    if (fabs(value) >= 1e15 * units[0].size) { /* nothing sensible is this large; keep llround defined */
        snprintf(out, bytes, "%s", value < 0 ? "-inf" : "inf");
        return out;
    }
    size_t i = 0;
    /* 0.9995 of a unit rounds up to it: "1.00 GiB", not "1000 MiB" or "1024 MiB". */
    while (i + 1 < count && fabs(value) < 0.9995 * units[i].from)
        i++;
    double scaled = value / units[i].size;
    if (units[i].size == 1 && scaled == floor(scaled)) { /* counts and bytes below the first unit are whole */
        const char *space = *units[i].text ? " " : "";
        snprintf(out, bytes, "%lld%s%s", llround(scaled), space, units[i].text);
        return out;
    }
    format_scaled(scaled, units[i].text, out, bytes);
    return out;
}

char *dtp_number_format_count(double value, char *out, size_t bytes)
{
    static const struct unit units[] = {
        {"T", 1e12, 1e12}, {"B", 1e9, 1e9}, {"M", 1e6, 1e6}, {"k", 1e3, 1e3}, {"", 1, 0}};
    return format_units(value, units, sizeof units / sizeof *units, out, bytes);
}

char *dtp_number_format_memory(uint64_t value_bytes, char *out, size_t bytes)
{
    static const struct unit units[] = {{"TiB", 0x1p40, 1e4 * 0x1p30},
                                        {"GiB", 0x1p30, 0x1p30},
                                        {"MiB", 0x1p20, 0x1p20},
                                        {"KiB", 0x1p10, 0x1p10},
                                        {"B", 1, 0}};
    return format_units((double)value_bytes, units, sizeof units / sizeof *units, out, bytes);
}

char *dtp_number_format_rate(double value_bytes_per_s, char *out, size_t bytes)
{
    static const struct unit units[] = {
        {"TB/s", 1e12, 1e12}, {"GB/s", 1e9, 1e9}, {"MB/s", 1e6, 1e6}, {"kB/s", 1e3, 1e3}, {"B/s", 1, 0}};
    return format_units(value_bytes_per_s, units, sizeof units / sizeof *units, out, bytes);
}

char *dtp_number_format_duration(double value_s, char *out, size_t bytes)
{
    static const struct unit units[] = {{"years", 365.25 * 86400, 1000 * 86400},
                                        {"days", 86400, 2 * 86400},
                                        {"h", 3600, 7200},
                                        {"min", 60, 120},
                                        {"s", 1, 0}};
    return format_units(value_s, units, sizeof units / sizeof *units, out, bytes);
}
