#include "page/page.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static const char *const inks[] = {
    [DTP_INK_PLAIN] = "\033[0m",    [DTP_INK_BOLD] = "\033[0;1m",    [DTP_INK_DIM] = "\033[0;2m",
    [DTP_INK_GREEN] = "\033[0;32m", [DTP_INK_YELLOW] = "\033[0;33m", [DTP_INK_RED] = "\033[0;1;31m",
    [DTP_INK_BLUE] = "\033[0;34m",
};

void dtp_page_ink(const struct dtp_page *page, enum dtp_ink ink)
{
    if (page->colour)
        fputs(inks[ink], page->file);
}

void dtp_page_print(const struct dtp_page *page, enum dtp_ink ink, const char *format, ...)
{
    va_list arguments;
    dtp_page_ink(page, ink);
    va_start(arguments, format);
    vfprintf(page->file, format, arguments);
    va_end(arguments);
    dtp_page_ink(page, DTP_INK_PLAIN);
}

void dtp_page_heading(const struct dtp_page *page, const char *heading, const char *format, ...)
{
    va_list arguments;
    fputc('\n', page->file);
    dtp_page_ink(page, DTP_INK_BOLD);
    fputs(heading, page->file);
    dtp_page_ink(page, DTP_INK_DIM);
    fputs(*format ? "  " : "", page->file);
    va_start(arguments, format);
    vfprintf(page->file, format, arguments);
    va_end(arguments);
    dtp_page_ink(page, DTP_INK_PLAIN);
    fputc('\n', page->file);
}

/* Eighths of a character, so that a bar of 30 characters shows 240 steps. */
static int bar_utf8(const struct dtp_page *page, double fraction, int width)
{
    static const char *const eighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    int steps = (int)lround(fraction * width * 8);
    if (steps == 0 && fraction > 0)
        steps = 1;
    for (int i = 0; i < steps / 8; i++)
        fputs("█", page->file);
    fputs(eighths[steps % 8], page->file);
    return (steps + 7) / 8;
}

static int bar_ascii(const struct dtp_page *page, double fraction, int width)
{
    int full = (int)lround(fraction * width);
    if (full == 0 && fraction > 0)
        full = 1;
    for (int i = 0; i < full; i++)
        fputc('#', page->file);
    return full;
}

int dtp_page_bar(const struct dtp_page *page, double fraction, int width)
{
    if (!(fraction > 0))
        fraction = 0;
    if (fraction > 1)
        fraction = 1;
    if (width <= 0)
        return 0;
    dtp_page_ink(page, DTP_INK_BLUE);
    int used = page->utf8 ? bar_utf8(page, fraction, width) : bar_ascii(page, fraction, width);
    dtp_page_ink(page, DTP_INK_PLAIN);
    return width - used;
}

int dtp_page_columns(const struct dtp_page *page)
{
    int columns = page->columns > 0 ? page->columns : DTP_PAGE_COLUMNS;
    return columns < DTP_PAGE_COLUMNS_MIN ? DTP_PAGE_COLUMNS_MIN : columns;
}

int dtp_page_prose_columns(const struct dtp_page *page)
{
    int columns = dtp_page_columns(page);
    return columns > DTP_PAGE_PROSE_COLUMNS ? DTP_PAGE_PROSE_COLUMNS : columns;
}

static int word_width(const char *text, size_t bytes)
{
    int width = 0;
    for (size_t i = 0; i < bytes; i++)
        width += ((unsigned char)text[i] & 0xC0) != 0x80; /* continuation bytes take no column */
    return width;
}

int dtp_page_width(const char *text)
{
    return word_width(text, strlen(text));
}

/* Bytes up to the blank that ends a word; of a command, a blank in quotes ends none. */
static size_t word_bytes(const char *text, bool command)
{
    size_t bytes = 0;
    char quote = '\0';
    for (; text[bytes] && (quote || text[bytes] != ' '); bytes++) {
        char c = text[bytes];
        if (!command || (c != '\'' && c != '"'))
            continue;
        if (!quote)
            quote = c;
        else if (quote == c)
            quote = '\0';
    }
    return bytes;
}

/* `break_with` stands at the end of lines that go on, `go_on_with` before what goes on. */
static void wrap(const struct dtp_page *page, int at, int indent, const char *text, const char *break_with,
                 const char *go_on_with)
{
    bool line_start = true, command = *break_with != '\0';
    int columns = dtp_page_prose_columns(page) - (int)strlen(break_with);
    while (*text) {
        size_t bytes = word_bytes(text, command);
        int width = word_width(text, bytes);
        if (!line_start && at + 1 + width > columns) {
            fprintf(page->file, "%s\n%*s%s", break_with, indent, "", go_on_with);
            at = indent + (int)strlen(go_on_with);
            line_start = true;
        }
        if (!line_start) {
            fputc(' ', page->file);
            at++;
        }
        fwrite(text, 1, bytes, page->file);
        at += width;
        line_start = false;
        text += bytes;
        text += strspn(text, " ");
    }
    fputc('\n', page->file);
}

void dtp_page_wrap(const struct dtp_page *page, int at, int indent, const char *text)
{
    wrap(page, at, indent, text, "", "");
}

void dtp_page_say(const struct dtp_page *page, int at, int indent, const char *format, ...)
{
    char *text;
    va_list arguments;
    va_start(arguments, format);
    if (vasprintf(&text, format, arguments) < 0)
        text = NULL;
    va_end(arguments);
    fprintf(page->file, "%*s", at, "");
    wrap(page, at, indent, text ? text : "out of memory", "", "");
    free(text);
}

void dtp_page_wrap_command(const struct dtp_page *page, int at, int indent, const char *command)
{
    wrap(page, at, indent, command, " \\", "");
}

void dtp_page_wrap_comment(const struct dtp_page *page, int at, const char *text)
{
    fprintf(page->file, "%*s# ", at, "");
    wrap(page, at + 2, at, text, "", "# ");
}

/* ---- what is too wide all the same ------------------------------------------------------------------------------ */

/* Bytes of the character or colour at `text`; *width: the columns that it takes. */
static size_t glyph_bytes(const char *text, const char *end, int *width)
{
    const char *next = text + 1;
    *width = *text != '\033';
    if (!*width)
        while (next < end && next[-1] != 'm')
            next++;
    else
        while (next < end && ((unsigned char)*next & 0xC0) == 0x80)
            next++;
    return (size_t)(next - text);
}

/* Where the line may be broken, and how far to indent what is broken off. */
struct fold {
    const char *at; /* where what goes down begins, blanks included; NULL: nothing does */
    int hanging;
};

static struct fold find_fold(const char *line, const char *end, int columns, int indent)
{
    struct fold fold = {NULL, indent + 4};
    const char *blank = NULL, *choice = NULL; /* of a|b|c, which alone may be wider than a line */
    int column = 0, blanks = 0, width;
    bool words = false;
    for (const char *p = line; p < end; p += glyph_bytes(p, end, &width)) {
        glyph_bytes(p, end, &width);
        if (*p == ' ' && words && column >= indent)
            blank = blanks ? blank : p;
        else if (width && words && blanks >= 2 && column <= columns / 2)
            fold.hanging = column;
        if (width) {
            blanks = *p == ' ' ? blanks + 1 : 0;
            words |= *p != ' ';
        }
        column += width;
        if (*p != ' ' && width && column > columns && (blank || choice)) {
            fold.at = blank ? blank : choice;
            break;
        }
        if (*p == '|')
            choice = p + 1;
    }
    if (fold.hanging > columns / 2)
        fold.hanging = columns / 2;
    return fold;
}

static void fold_line(const char *line, const char *end, int columns, FILE *out)
{
    while (end > line && end[-1] == ' ')
        end--;
    int indent = (int)strspn(line, " ");
    struct fold fold = find_fold(line, end, columns, indent);
    int hanging = fold.hanging;
    fwrite(line, 1, (size_t)((fold.at ? fold.at : end) - line), out);
    while (fold.at) {
        line = fold.at + strspn(fold.at, " ");
        fold = find_fold(line, end, columns - hanging, 0);
        fprintf(out, "\n%*s", hanging, "");
        fwrite(line, 1, (size_t)((fold.at ? fold.at : end) - line), out);
    }
    fputc('\n', out);
}

void dtp_page_fold(const char *text, size_t bytes, int columns, FILE *out)
{
    const char *end = text + bytes;
    while (text < end) {
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        if (!newline) { /* an unfinished line stays one */
            fwrite(text, 1, (size_t)(end - text), out);
            return;
        }
        fold_line(text, newline, columns, out);
        text = newline + 1;
    }
}

const char *dtp_page_times(const struct dtp_page *page)
{
    return page->utf8 ? "×" : "x";
}

struct dtp_unit dtp_unit_memory(uint64_t largest_bytes)
{
    if (largest_bytes >= UINT64_C(1) << 29)
        return (struct dtp_unit){0x1p30, "GiB"};
    if (largest_bytes >= UINT64_C(1) << 19)
        return (struct dtp_unit){0x1p20, "MiB"};
    return (struct dtp_unit){0x1p10, "KiB"};
}

struct dtp_unit dtp_unit_traffic(uint64_t largest_bytes)
{
    if (largest_bytes >= UINT64_C(10000000000000))
        return (struct dtp_unit){1e12, "TB"};
    if (largest_bytes >= 500000000)
        return (struct dtp_unit){1e9, "GB"};
    if (largest_bytes >= 500000)
        return (struct dtp_unit){1e6, "MB"};
    return (struct dtp_unit){1e3, "kB"};
}

struct dtp_unit dtp_unit_time(double largest_s)
{
    if (largest_s >= 1.0)
        return (struct dtp_unit){1.0, "s"};
    if (largest_s >= 1e-3)
        return (struct dtp_unit){1e-3, "ms"};
    return (struct dtp_unit){1e-6, "us"};
}

char *dtp_page_grouped(uint64_t value, char *out, size_t bytes)
{
    char digits[24];
    size_t length = (size_t)snprintf(digits, sizeof digits, "%llu", (unsigned long long)value), used = 0;
    for (size_t i = 0; i < length && used + 2 < bytes; i++) {
        if (i > 0 && (length - i) % 3 == 0)
            out[used++] = ',';
        out[used++] = digits[i];
    }
    if (bytes > 0)
        out[used] = '\0';
    return out;
}

char *dtp_page_figure(double value, char *out, size_t bytes)
{
    double magnitude = fabs(value);
    if (magnitude >= 1e15 || (magnitude > 0 && magnitude < 1e-4))
        snprintf(out, bytes, "%.3g", value);
    else if (magnitude >= 999.5 && value > 0)
        dtp_page_grouped((uint64_t)llround(value), out, bytes);
    else if (magnitude >= 99.95)
        snprintf(out, bytes, "%.0f", value);
    else if (magnitude >= 9.995)
        snprintf(out, bytes, "%.1f", value);
    else if (magnitude >= 0.0995 || magnitude == 0)
        snprintf(out, bytes, "%.2f", value);
    else
        snprintf(out, bytes, "%.4f", value);
    return out;
}
