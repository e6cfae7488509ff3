/* The page on a sweep: what of it fits, the best by each measure, charts, rows. */
#include "html/html.h"
#include "html/html_report.h"

#include "base/append.h"
#include "chart/chart_source.h"
#include "page/shell_word.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROWS_SHOWN 300

struct sweep {
    const struct dtp_table *table;
    struct dtp_chart_source source; /* rows that were not refused */
    size_t verdicts[3], refused;
};

static double value(const struct sweep *s, size_t row, const char *column)
{
    return dtp_chart_source_value(&s->source, row, dtp_table_column(s->table, column));
}

static enum dtp_verdict verdict_of(const struct sweep *s, size_t row)
{
    const char *text = dtp_table_text(s->table, row, dtp_table_column(s->table, "verdict"));
    return strcmp(text, "fits") == 0    ? DTP_VERDICT_FITS
           : strcmp(text, "tight") == 0 ? DTP_VERDICT_TIGHT
                                        : DTP_VERDICT_OOM;
}

static enum dtp_status check(const struct sweep *s, struct dtp_faults *faults)
{
    static const char *const needed[] = {
        "model",          "strategy", "gpu",          "gpus_count",           "verdict",      "device_peak_bytes",
        "capacity_bytes", "step_s",   "tokens_per_s", "tokens_per_s_per_gpu", "mfu_fraction", "usd_per_billion_tokens"};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (dtp_table_column(s->table, needed[i]) < 0)
            return dtp_fault(
                faults, DTP_BAD_INPUT, dtp_table_name(s->table), 1,
                "has no column '%s'; a report is made of a scenario or of what dtplan sweep or dtplan plan --csv wrote",
                needed[i]);
    return DTP_OK;
}

/* ---- the best ---------------------------------------------------------------------------------------------------- */

/* The row that runs with the largest (sign 1) or least (-1) figure; fitting ones before tight ones. -1: none. */
static long best(const struct sweep *s, const char *column, double sign)
{
    for (enum dtp_verdict wanted = DTP_VERDICT_FITS; wanted <= DTP_VERDICT_TIGHT; wanted++) {
        long found = -1;
        double most = -INFINITY;
        for (size_t i = 0; i < s->source.row_count; i++) {
            double figure = sign * value(s, s->source.rows[i], column);
            if (verdict_of(s, s->source.rows[i]) == wanted && figure > most) {
                most = figure;
                found = (long)s->source.rows[i];
            }
        }
        if (found >= 0)
            return found;
    }
    return -1;
}

static void best_row(const struct sweep *s, const char *words, const char *column, double sign, FILE *file)
{
    long row = best(s, column, sign);
    char label[400];
    if (row < 0)
        return;
    dtp_chart_source_words(&s->source, (size_t)row, label, sizeof label);
    dtp_html_row(file);
    dtp_html_head_cell(file, words);
    dtp_html_cell(file, label[0] ? label : "the only plan");
    dtp_html_figure_cell(file, value(s, (size_t)row, "tokens_per_s"), "%.0f", value(s, (size_t)row, "tokens_per_s"));
    dtp_html_figure_cell(file, value(s, (size_t)row, "tokens_per_s_per_gpu"), "%.0f",
                         value(s, (size_t)row, "tokens_per_s_per_gpu"));
    dtp_html_figure_cell(file, value(s, (size_t)row, "usd_per_billion_tokens"), "%.0f",
                         value(s, (size_t)row, "usd_per_billion_tokens"));
    dtp_html_figure_cell(file, value(s, (size_t)row, "device_peak_bytes"), "%.1f",
                         value(s, (size_t)row, "device_peak_bytes") / 0x1p30);
}

static void decision(const struct sweep *s, FILE *file)
{
    static const char *const names[] = {"Best by",     "Plan", ">Tokens/s", ">Per GPU", ">$ for 10^9 tokens",
                                        ">Device, GiB"};
    bool runs = s->verdicts[DTP_VERDICT_FITS] + s->verdicts[DTP_VERDICT_TIGHT] > 0;
    dtp_html_section(file, "decision", "Decision");
    fprintf(
        file, "<p class=\"verdict %s\">%zu plan%s fit, %zu are tight, %zu run out of memory, %zu were refused.</p>\n",
        runs ? "fits" : "oom", s->verdicts[0], dtp_plural(s->verdicts[0]), s->verdicts[1], s->verdicts[2], s->refused);
    for (size_t i = 0; i < s->source.row_count; i++) /* of dtplan search */
        if (strcmp(dtp_table_text(s->table, s->source.rows[i], dtp_table_column(s->table, "recommended")), "1") == 0)
            dtp_html_format(file, "<p>Recommended within the limits of the search:</p>\n<pre>%s</pre>\n",
                            dtp_table_text(s->table, s->source.rows[i], dtp_table_column(s->table, "command")));
    if (runs) {
        dtp_html_table(file, "best-table", "The best of those that fit (tight ones only where none fits)", names, 6,
                       false);
        best_row(s, "shortest training", "tokens_per_s", 1, file);
        best_row(s, "cheapest tokens", "usd_per_billion_tokens", -1, file);
        best_row(s, "work of each GPU", "tokens_per_s_per_gpu", 1, file);
        best_row(s, "fewest GPUs", "gpus_count", -1, file);
        dtp_html_table_end(file);
    }
    dtp_html_section_end(file);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

struct ranked {
    size_t row;
    int verdict;
    double rate;
};

static int by_verdict_and_rate(const void *left, const void *right)
{
    const struct ranked *a = left, *b = right;
    if (a->verdict != b->verdict)
        return a->verdict - b->verdict;
    if (a->rate != b->rate)
        return a->rate > b->rate ? -1 : 1;
    return (a->row > b->row) - (a->row < b->row);
}

static void plan_row(const struct sweep *s, size_t row, FILE *file)
{
    char label[400];
    dtp_chart_source_words(&s->source, row, label, sizeof label);
    dtp_html_row(file);
    dtp_html_head_cell(file, label[0] ? label : "the only plan");
    dtp_html_cell(file, dtp_verdict_text(verdict_of(s, row)));
    dtp_html_figure_cell(file, value(s, row, "device_peak_bytes"), "%.1f", value(s, row, "device_peak_bytes") / 0x1p30);
    dtp_html_figure_cell(file, value(s, row, "step_s"), "%.4g", value(s, row, "step_s"));
    dtp_html_figure_cell(file, value(s, row, "tokens_per_s"), "%.0f", value(s, row, "tokens_per_s"));
    dtp_html_figure_cell(file, value(s, row, "tokens_per_s_per_gpu"), "%.0f", value(s, row, "tokens_per_s_per_gpu"));
    dtp_html_figure_cell(file, value(s, row, "mfu_fraction"), "%.1f", 100 * value(s, row, "mfu_fraction"));
    dtp_html_figure_cell(file, value(s, row, "usd_per_billion_tokens"), "%.0f",
                         value(s, row, "usd_per_billion_tokens"));
}

static enum dtp_status rows(const struct sweep *s, FILE *file, struct dtp_faults *faults)
{
    static const char *const names[] = {"Plan",      "Verdict",  ">Device, GiB", ">Step, s",
                                        ">Tokens/s", ">Per GPU", ">MFU, %",      ">$ for 10^9 tokens"};
    struct ranked *ranked = calloc(s->source.row_count, sizeof *ranked);
    if (!ranked)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (size_t i = 0; i < s->source.row_count; i++) {
        size_t row = s->source.rows[i];
        ranked[i] = (struct ranked){row, (int)verdict_of(s, row), value(s, row, "tokens_per_s")};
    }
    qsort(ranked, s->source.row_count, sizeof *ranked, by_verdict_and_rate);
    dtp_html_section(file, "rows", "Plans");
    if (s->source.row_count > ROWS_SHOWN)
        fprintf(file,
                "<p>The first %d of %zu: those that fit, by tokens/s. All of them stand in the table itself.</p>\n",
                ROWS_SHOWN, s->source.row_count);
    dtp_html_table(file, "rows-table", "Plans: those that fit first, by tokens/s", names, 8, true);
    for (size_t i = 0; i < s->source.row_count && i < ROWS_SHOWN; i++)
        plan_row(s, ranked[i].row, file);
    dtp_html_table_end(file);
    dtp_html_section_end(file);
    free(ranked);
    return DTP_OK;
}

/* ------------------------------------------------------------------------------------------------------------------ */

/* A chart of the whole table or, where that is too much for one, of the plans that share further choices with the
 * fastest: one choice more after another, those that are named last first. */
static void draw_part(const struct sweep *s, enum dtp_chart chart, const char *x, const char *id, FILE *file)
{
    struct dtp_chart_filter filters[DTP_CHART_MAX_CHOICES];
    size_t count = 0;
    struct dtp_chart_data data;
    struct dtp_faults why = {0};
    long fastest = best(s, "tokens_per_s", 1);
    enum dtp_status status = dtp_chart_data_read(chart, s->table, filters, count, &data, &why);
    for (size_t left = s->source.choice_count; left > 0 && fastest >= 0 && status == DTP_BAD_INPUT; left--) {
        size_t i = left - 1;
        const char *column = dtp_table_column_name(s->table, (size_t)s->source.choices[i]);
        if (!(s->source.varying >> i & 1) || (x && strcmp(column, x) == 0) || strcmp(column, "strategy") == 0)
            continue;
        filters[count++] =
            (struct dtp_chart_filter){column, dtp_table_text(s->table, (size_t)fastest, s->source.choices[i])};
        why = (struct dtp_faults){0};
        status = dtp_chart_data_read(chart, s->table, filters, count, &data, &why);
    }
    if (status == DTP_OK && x && data.row_count == data.series_count) {
        dtp_html_format(file, "<p class=\"soft\">Not drawn: no two plans differ in %s alone.</p>\n", x);
        dtp_chart_data_destroy(&data);
        return;
    }
    if (status != DTP_OK) {
        dtp_html_format(file, "<p class=\"soft\">Not drawn: %s.</p>\n", why.text[0]);
        return;
    }
    fputs(count ? "<p class=\"soft\">Only plans with " : "", file);
    for (size_t i = 0; i < count; i++)
        dtp_html_format(file, "%s%s = %s", i ? ", " : "", filters[i].column, filters[i].value);
    fputs(count ? ", as the fastest has.</p>\n" : "", file);
    dtp_html_chart_data(&data, id, file);
    dtp_chart_data_destroy(&data);
}

static void charts(const struct sweep *s, FILE *file)
{
    static const struct {
        enum dtp_chart chart;
        const char *x, *heading, *id; /* with an x: drawn where that column varies */
    } all[] = {
        {DTP_CHART_PARETO, NULL, "Time against money", "pareto-figures"},
        {DTP_CHART_SCALING, "gpus_count", "GPUs", "scaling-figures"},
        {DTP_CHART_MICRO_BATCH, "micro_batch_sequences", "Micro batch", "micro-batch-figures"},
        {DTP_CHART_STRATEGIES, NULL, "Memory", "strategies-figures"},
        {DTP_CHART_STEP, NULL, "Time of a step", "step-figures"},
    };
    char varying[400];
    dtp_chart_source_varying(&s->source, varying, sizeof varying);
    dtp_html_section(file, "charts", "Charts");
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (all[i].x && !strstr(varying, all[i].x))
            continue;
        dtp_html_format(file, "<h3>%s</h3>\n", all[i].heading);
        draw_part(s, all[i].chart, all[i].x, all[i].id, file);
    }
    dtp_html_section_end(file);
}

static void reproduce(const struct sweep *s, const char *version, FILE *file)
{
    char *name = NULL;
    size_t bytes = 0;
    FILE *word = open_memstream(&name, &bytes);
    if (word) {
        dtp_shell_word(word, dtp_table_name(s->table));
        fclose(word);
    }
    dtp_html_section(file, "reproduce", "Reproduce");
    dtp_html_format(file,
                    "<p>dtplan %s. This page, a part of the table drawn, one plan looked at:</p>\n"
                    "<pre>dtplan report %s -o report.html\ndtplan chart scaling %s --where strategy=full_shard\n"
                    "dtplan report --model NAME --gpus N --strategy NAME -o plan.html</pre>\n",
                    version, name ? name : "", name ? name : "");
    dtp_html_section_end(file);
    free(name);
}

enum dtp_status dtp_html_sweep(const struct dtp_table *table, const char *version, FILE *file,
                               struct dtp_faults *faults)
{
    struct sweep s = {.table = table};
    char shared[300], title[400];
    enum dtp_status status = check(&s, faults);
    if (status == DTP_OK)
        status = dtp_chart_source_read(table, NULL, 0, NULL, &s.source, faults);
    if (status != DTP_OK) {
        dtp_chart_source_destroy(&s.source);
        return status;
    }
    for (size_t i = 0; i < s.source.row_count; i++)
        s.verdicts[verdict_of(&s, s.source.rows[i])]++;
    s.refused = dtp_table_row_count(table) - s.source.row_count;
    dtp_chart_source_shared(&s.source, shared, sizeof shared);
    snprintf(title, sizeof title, "%zu plan%s%s%s", s.source.row_count, dtp_plural(s.source.row_count),
             shared[0] ? ": " : "", shared);
    dtp_html_begin(file, title);
    dtp_html_format(file, "<header><h1>%s</h1></header>\n", title);
    decision(&s, file);
    charts(&s, file);
    status = rows(&s, file, faults);
    reproduce(&s, version, file);
    dtp_html_end(file);
    dtp_chart_source_destroy(&s.source);
    return status;
}
