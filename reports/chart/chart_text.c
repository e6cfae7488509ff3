#include "chart/chart_text.h"

#include "base/append.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PARTS 16
#define MAX_CELLS 200
#define MIN_CELLS 12
#define AREA_ROWS 20
#define TICK_CELLS 12 /* an axis has a figure about so often */
#define GAP 2

/* A set of parts, and which of them the chart shows. */
struct legend {
    const struct dtp_chart_part *parts;
    size_t count;
    bool shown[MAX_PARTS];
};

static const struct legend memory_legend = {.parts = dtp_chart_memory_parts, .count = DTP_CHART_MEMORY_PARTS},
                           step_legend = {.parts = dtp_chart_step_parts, .count = DTP_CHART_STEP_PARTS},
                           timeline_legend = {.parts = dtp_chart_timeline_parts, .count = DTP_CHART_TIMELINE_PARTS};

bool dtp_chart_is_area(enum dtp_chart chart)
{
    return chart == DTP_CHART_MEMORY || chart == DTP_CHART_TIMELINE || chart == DTP_CHART_STRATEGIES ||
           chart == DTP_CHART_STEP;
}

/* A table is a user's: what is no size is none. Nothing is beyond 1e60, and no sum or ratio of less overflows. */
static double size_or_zero(double value)
{
    return value > 1e-60 && value < 1e60 ? value : 0;
}

static double figure(const struct dtp_table *table, size_t row, const char *column)
{
    return size_or_zero(strtod(dtp_table_text(table, row, dtp_table_column(table, column)), NULL));
}

/* ---- cells ------------------------------------------------------------------------------------------------------- */

/* Letter of the part that takes most of [from, to) of a stack of sizes; a blank where nothing does. */
static char letter_of(struct legend *legend, const double *sizes, double from, double to)
{
    double below = 0, filled = 0, largest = 0;
    size_t best = 0;
    for (size_t i = 0; i < legend->count; i++) {
        double share = fmax(0, fmin(to, below + sizes[i]) - fmax(from, below));
        best = share > largest ? i : best;
        largest = fmax(largest, share);
        filled += share;
        below += sizes[i];
    }
    if (filled < (to - from) / 2)
        return ' ';
    legend->shown[best] = true;
    return legend->parts[best].letter;
}

/* ---- frame ------------------------------------------------------------------------------------------------------- */

/* Line by line in the middle of the page. */
static void print_title(const char *title, const struct dtp_page *page)
{
    while (*title) {
        char line[256];
        size_t bytes = strcspn(title, "\n");
        snprintf(line, sizeof line, "%.*s", (int)bytes, title);
        int blank = (dtp_page_columns(page) - dtp_page_width(line)) / 2;
        fprintf(page->file, "%*s%s\n", blank > 0 ? blank : 0, "", line);
        title += bytes;
        title += *title == '\n';
    }
    fputc('\n', page->file);
}

static void print_legend(const struct legend *legend, const char *more, const struct dtp_page *page)
{
    char line[1024] = "";
    for (size_t i = 0; i < legend->count; i++)
        if (legend->shown[i])
            dtp_append_part(line, sizeof line, ", ", "%c = %s", legend->parts[i].letter, legend->parts[i].words);
    if (*more)
        dtp_append_part(line, sizeof line, ", ", "%s", more);
    fputc('\n', page->file);
    dtp_page_say(page, 2, 2, "%s", line);
}

/* 1, 2 or 5 times a power of ten: the smallest that makes at most `most` steps of `whole`. */
static double round_step(double whole, int most)
{
    static const double factors[] = {1, 2, 5, 10};
    double least = whole / (most > 0 ? most : 1), power = pow(10, floor(log10(least)));
    for (size_t i = 0; i < sizeof factors / sizeof *factors; i++)
        if (factors[i] * power >= least * (1 - 1e-9))
            return factors[i] * power;
    return 10 * power;
}

/* A line with a mark at each round figure from 0 to `whole`, and the figures below, each where it stands. */
static void print_axis(int indent, int cells, double whole, const char *words, const struct dtp_page *page)
{
    char line[MAX_CELLS + 1], figures[MAX_CELLS + 32];
    double step = round_step(whole, cells / TICK_CELLS > 0 ? cells / TICK_CELLS : 1);
    int used = 0;
    memset(line, '-', (size_t)cells);
    line[cells] = '\0';
    for (double at = 0; at <= whole * (1 + 1e-9); at += step) {
        int cell = (int)(at / whole * cells + 0.5);
        char number[32];
        int width = snprintf(number, sizeof number, "%.6g", at);
        if (cell >= cells || cell < used || cell + width > MAX_CELLS)
            continue;
        line[cell] = '+';
        used += snprintf(figures + used, sizeof figures - (size_t)used, "%*s%s ", cell - used, "", number);
    }
    figures[used] = '\0';
    fprintf(page->file, "%*s%s\n%*s%s\n", indent, "", line, indent, "", figures);
    int blank = indent + (cells - dtp_page_width(words)) / 2;
    fprintf(page->file, "%*s%s\n", blank > 0 ? blank : 0, "", words);
}

static int cells_beside(int columns, const struct dtp_page *page)
{
    int cells = dtp_page_columns(page) - columns;
    return cells < MIN_CELLS ? MIN_CELLS : cells > MAX_CELLS ? MAX_CELLS : cells;
}

static enum dtp_status nothing(enum dtp_chart chart, struct dtp_faults *faults)
{
    return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                     "chart %s: no row of the table has a size to draw; it comes from %s", dtp_chart_name(chart),
                     dtp_chart_command(chart));
}

/* ---- a bar a plan ------------------------------------------------------------------------------------------------ */

/* The first column is what bars are measured by, the capacity or the step; the others are the parts, as in `legend`. */
static double bar_sizes(const struct dtp_chart_row *row, const struct legend *legend, double *sizes)
{
    double all = 0;
    for (size_t i = 0; i < legend->count; i++)
        all += sizes[i] = size_or_zero(row->value[i + 1]);
    return all;
}

/* A label cut to its columns at a character. */
static void print_label(const char *label, int columns, const struct dtp_page *page)
{
    size_t bytes = 0;
    int width = 0;
    while (label[bytes] && width < columns) {
        do
            bytes++;
        while (((unsigned char)label[bytes] & 0xC0) == 0x80);
        width++;
    }
    fprintf(page->file, "%*s%.*s", columns - width, "", (int)bytes, label);
}

static void print_bar(const struct dtp_chart_row *row, struct legend *legend, double whole, int cells, bool capacity,
                      const char *format, double divisor, const struct dtp_page *page)
{
    double sizes[MAX_PARTS], all = bar_sizes(row, legend, sizes);
    char line[MAX_CELLS + 1], number[32];
    for (int cell = 0; cell < cells; cell++)
        line[cell] = letter_of(legend, sizes, whole * cell / cells, whole * (cell + 1) / cells);
    line[cells] = '\0';
    int end = (int)(all / whole * cells + 0.5) + 1;
    int mark = (int)fmin(cells, size_or_zero(row->value[0]) / whole * cells); /* of a step it may be beyond all parts */
    snprintf(number, sizeof number, format, all / divisor);
    bool fits = end + (int)strlen(number) <= cells && (mark < end - 1 || mark > end + (int)strlen(number));
    if (fits)
        memcpy(line + end, number, strlen(number));
    if (capacity && mark < cells)
        line[mark] = '|';
    fprintf(page->file, "  %s%s%s\n", line, fits ? "" : "  ", fits ? "" : number);
}

static enum dtp_status bars(enum dtp_chart chart, const struct dtp_chart_data *data, const struct dtp_page *page,
                            struct dtp_faults *faults)
{
    bool memory = chart == DTP_CHART_STRATEGIES;
    struct legend legend = memory ? memory_legend : step_legend;
    double whole = 0, sizes[MAX_PARTS];
    int label = 0;
    for (size_t i = 0; i < data->row_count; i++) {
        double all = bar_sizes(&data->rows[i], &legend, sizes),
               mark = memory ? size_or_zero(data->rows[i].value[0]) : 0;
        int width = dtp_page_width(data->rows[i].label);
        whole = fmax(whole, fmax(all, mark * 1.01));
        label = width > label ? width : label;
    }
    if (!(whole > 0))
        return nothing(chart, faults);
    label = label > dtp_page_columns(page) / 3 ? dtp_page_columns(page) / 3 : label;
    double divisor = memory ? 0x1p30 : whole < 1 ? 1e-3 : 1;
    int cells = cells_beside(label + GAP + 8, page);
    for (size_t i = 0; i < data->row_count; i++) {
        print_label(data->rows[i].label, label, page);
        print_bar(&data->rows[i], &legend, whole, cells, memory, memory ? "%.1f" : "%.4g", divisor, page);
    }
    print_axis(label + GAP, cells, whole / divisor,
               memory        ? "GiB on the fullest GPU at the peak of a step"
               : divisor < 1 ? "ms of one optimizer step"
                             : "s of one optimizer step",
               page);
    print_legend(&legend, memory ? "| = what the card has" : "", page);
    return DTP_OK;
}

/* ---- memory over time -------------------------------------------------------------------------------------------- */

static double stack_at(const struct dtp_table *table, size_t row, const struct legend *legend, double *sizes)
{
    double all = 0;
    for (size_t i = 0; i < legend->count; i++) {
        const char *column = legend->parts[i].column;
        bool peak = strncmp(column, "peak_", strlen("peak_")) == 0;
        all += sizes[i] = figure(table, row, column + (peak ? strlen("peak_") : 0));
    }
    return all;
}

/* For each cell along the time the row with the most memory while it lasts; a row holds until the next. */
static double fullest_rows(const struct dtp_table *table, const struct legend *legend, int cells, size_t *fullest,
                           double *last_s)
{
    size_t rows = dtp_table_row_count(table);
    double most[MAX_CELLS] = {0}, peak = 0, sizes[MAX_PARTS];
    *last_s = 0;
    for (size_t row = 0; row < rows; row++)
        *last_s = fmax(*last_s, figure(table, row, "time_s"));
    for (size_t row = 0; row<rows && * last_s> 0; row++) {
        double all = stack_at(table, row, legend, sizes), from = figure(table, row, "time_s") / *last_s * cells;
        double to = row + 1 < rows ? figure(table, row + 1, "time_s") / *last_s * cells : from;
        for (int cell = (int)from; cell <= (int)to && cell < cells; cell++)
            if (all > most[cell]) {
                most[cell] = all;
                fullest[cell] = row;
            }
        peak = fmax(peak, all);
    }
    return peak;
}

static enum dtp_status memory(const struct dtp_table *table, const struct dtp_page *page, struct dtp_faults *faults)
{
    struct legend legend = memory_legend;
    int cells = cells_beside(10, page);
    size_t fullest[MAX_CELLS] = {0};
    double last_s, peak = fullest_rows(table, &legend, cells, fullest, &last_s), sizes[MAX_PARTS];
    static char drawn[AREA_ROWS][MAX_CELLS + 1];
    if (!(peak > 0) || !(last_s > 0))
        return nothing(DTP_CHART_MEMORY, faults);
    double step = round_step(peak / 0x1p30, AREA_ROWS / 4) * 0x1p30, next = floor(peak / step) * step;
    for (int cell = 0; cell < cells; cell++) {
        stack_at(table, fullest[cell], &legend, sizes);
        for (int row = 0; row < AREA_ROWS; row++)
            drawn[row][cell] = letter_of(&legend, sizes, peak * row / AREA_ROWS, peak * (row + 1) / AREA_ROWS);
    }
    for (int row = AREA_ROWS - 1; row >= 0; row--) {
        char number[16] = "";
        if (next > 0 && peak * row / AREA_ROWS <= next) {
            snprintf(number, sizeof number, "%.4g", next / 0x1p30);
            next -= step;
        }
        fprintf(page->file, "%7s |%.*s\n", number, cells, drawn[row]);
    }
    char words[96];
    double unit = last_s < 1 ? 1e-3 : 1;
    snprintf(words, sizeof words, "%s of the step; GiB of tensors, peak %.2f", unit < 1 ? "ms" : "s", peak / 0x1p30);
    print_axis(9, cells, last_s / unit, words, page);
    print_legend(&legend, "", page);
    return DTP_OK;
}

/* ---- lanes ------------------------------------------------------------------------------------------------------- */

/* Adds the time of one box to the cells that it runs in. */
static void add_busy(double (*busy)[MAX_PARTS], int cells, double from, double to, size_t part)
{
    for (int cell = (int)from; cell < cells && cell < to; cell++)
        busy[cell][part] += fmax(0, fmin(to, cell + 1) - fmax(from, cell));
}

/* One lane, whose rows begin at `first`: each cell shows the kind that ran longest in it. Returns the row behind it. */
static size_t print_lane(const struct dtp_chart_data *data, size_t first, struct legend *legend, double last_s,
                         int cells, int name, const struct dtp_page *page)
{
    static double busy[MAX_CELLS][MAX_PARTS];
    char line[MAX_CELLS + 1];
    double all = 0;
    size_t row = first;
    memset(busy, 0, sizeof busy);
    for (; row < data->row_count && data->rows[row].value[0] == data->rows[first].value[0]; row++) {
        const double *v = data->rows[row].value; /* as dtp_chart_read_timeline has them */
        if (v[5] > 0)
            continue;
        add_busy(busy, cells, v[2] / last_s * cells, v[3] / last_s * cells, (size_t)v[1]);
        all += v[4];
    }
    for (int cell = 0; cell < cells; cell++) {
        size_t best = 0;
        for (size_t i = 1; i < legend->count; i++)
            best = busy[cell][i] > busy[cell][best] ? i : best;
        line[cell] = busy[cell][best] > 0 ? legend->parts[best].letter : ' ';
        legend->shown[best] |= busy[cell][best] > 0;
    }
    print_label(data->rows[first].label, name, page);
    fprintf(page->file, " |%.*s| %.0f %%\n", cells, line, 100 * all / last_s);
    return row;
}

static void timeline(const struct dtp_chart_data *data, const struct dtp_page *page)
{
    struct legend legend = timeline_legend;
    double last_s = 0;
    int name = 9, most = dtp_page_columns(page) / 3;
    for (size_t row = 0; row < data->row_count; row++) {
        int width = dtp_page_width(data->rows[row].label);
        name = width > name ? width : name;
        last_s = fmax(last_s, data->rows[row].value[3]);
    }
    name = name > most ? most : name;
    int cells = cells_beside(name + 9, page);
    bool apart = data->row_count && data->rows[data->row_count - 1].value[0] < 12; /* few enough for lines between */
    for (size_t row = 0; row < data->row_count;) {
        row = print_lane(data, row, &legend, last_s, cells, name, page);
        if (apart)
            fprintf(page->file, "%*s |%*s|\n", name, "", cells, "");
    }
    double unit = last_s < 1 ? 1e-3 : 1;
    print_axis(name + 2, cells, last_s / unit,
               unit < 1 ? "ms of the step; %: how long the stream is busy"
                        : "s of the step; %: how long the stream is busy",
               page);
    print_legend(&legend, "each cell what runs longest in it", page);
}

enum dtp_status dtp_chart_text(enum dtp_chart chart, const char *title, const struct dtp_chart_data *data,
                               const struct dtp_table *table, const struct dtp_page *page, struct dtp_faults *faults)
{
    print_title(title, page);
    switch (chart) {
    case DTP_CHART_MEMORY: return memory(table, page, faults);
    case DTP_CHART_TIMELINE: timeline(data, page); return DTP_OK;
    default: return bars(chart, data, page, faults);
    }
}
