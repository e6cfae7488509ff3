/* A page of text for people: headings, bars, wrapped sentences and aligned tables, none wider than the reader's screen.
 *
 * How wide that is, whether to colour and whether the reader's locale can show UTF-8 is decided by the caller (main),
 * once. Widths are counted in characters, so that a bar or an accent never shifts a column. Sentences, bars and tables
 * lay themselves out for the width; dtp_page_fold breaks whatever is too wide all the same, once the page is whole. */
#ifndef DTP_PAGE_H
#define DTP_PAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Columns of a page that nobody said the width of: pipes and files, which end up in mails, logs and issues. */
#define DTP_PAGE_COLUMNS 80
/* Below the first, figures and their labels no longer stand beside each other; beyond the second, lines of prose are
 * hard to read, so that only tables take more. */
#define DTP_PAGE_COLUMNS_MIN 40
#define DTP_PAGE_PROSE_COLUMNS 100

struct dtp_page {
    FILE *file; /* borrowed */
    bool colour, utf8;
    int columns; /* of the reader's screen; 0: DTP_PAGE_COLUMNS */
};

/* Columns to lay out for: those of the page, at least DTP_PAGE_COLUMNS_MIN. */
int dtp_page_columns(const struct dtp_page *page);
/* The same for sentences: at most DTP_PAGE_PROSE_COLUMNS. */
int dtp_page_prose_columns(const struct dtp_page *page);
/* Copies a finished page to `out` and breaks at blanks each line that is wider than `columns`; what is broken off goes
 * on below the last field of the line that begins in its left half, else indented by four more than the line. A word
 * wider than that stays whole. Colours take no column. */
void dtp_page_fold(const char *text, size_t bytes, int columns, FILE *out);

enum dtp_ink { DTP_INK_PLAIN, DTP_INK_BOLD, DTP_INK_DIM, DTP_INK_GREEN, DTP_INK_YELLOW, DTP_INK_RED, DTP_INK_BLUE };

/* Everything until the next ink is printed in it; no effect without colour. */
void dtp_page_ink(const struct dtp_page *page, enum dtp_ink ink);
/* In one ink, plain behind it. */
void dtp_page_print(const struct dtp_page *page, enum dtp_ink ink, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* "HEADING  words", the words dim, with an empty line before; `format` "": none. */
void dtp_page_heading(const struct dtp_page *page, const char *heading, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* A bar of `fraction` (0..1) of `width` characters, with the smallest visible amount for any fraction above 0; returns
 * how many characters of the width are left. Nothing where there is no width. */
int dtp_page_bar(const struct dtp_page *page, double fraction, int width);
/* Prints `text` broken at spaces within the columns for prose. The cursor stands at column `at`; further lines are
 * indented by `indent`. Ends the line. */
void dtp_page_wrap(const struct dtp_page *page, int at, int indent, const char *text);
/* The same from the start of a line: blanks up to `at`, then the words. */
void dtp_page_say(const struct dtp_page *page, int at, int indent, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* The same of a command for a shell: broken only outside quotes, with a backslash, so that it can be copied whole. */
void dtp_page_wrap_command(const struct dtp_page *page, int at, int indent, const char *command);
/* The same of a comment above it, from the start of a line: each of its lines is one to a shell. */
void dtp_page_wrap_comment(const struct dtp_page *page, int at, const char *text);
/* Characters of a UTF-8 text. */
int dtp_page_width(const char *text);
/* "x" or "×" between factors. */
const char *dtp_page_times(const struct dtp_page *page);

/* One unit for a whole table, chosen by its largest figure: bytes in GiB, MiB or KiB (2^30, 2^20, 2^10), times in s,
 * ms or us, traffic in TB, GB, MB or kB (powers of 1000). */
struct dtp_unit {
    double divisor;
    const char *name;
};
struct dtp_unit dtp_unit_memory(uint64_t largest_bytes);
struct dtp_unit dtp_unit_traffic(uint64_t largest_bytes);
struct dtp_unit dtp_unit_time(double largest_s);
/* "6,738,415,616". Writes at most `bytes` bytes and returns `out`. */
char *dtp_page_grouped(uint64_t value, char *out, size_t bytes);
/* A figure with about three digits that matter, no exponent below 1e15: "0.042", "4.27", "132", "1,234,568". */
char *dtp_page_figure(double value, char *out, size_t bytes);

#endif
