/* What a chart shows, picked from a table that a command wrote: a text and some figures a row.
 *
 * Rows of one line or colour share their text. Whatever a table holds, a text comes out of here on
 * one line, without quotes and commas, of at most DTP_CHART_LABEL_BYTES, and a figure is finite or NaN (there is none):
 * gnuplot scripts and SVG need no escaping beyond their own. */
#ifndef DTP_CHART_DATA_H
#define DTP_CHART_DATA_H

#include "chart/chart.h"
#include "base/table.h"

#define DTP_CHART_MAX_COLUMNS 16
#define DTP_CHART_LABEL_BYTES 96
/* More bars or lines than these nobody tells apart: such a table is refused, with what to choose by. */
#define DTP_CHART_MAX_BARS 24
#define DTP_CHART_MAX_SERIES 8

struct dtp_chart_row {
    char label[DTP_CHART_LABEL_BYTES];
    size_t series; /* equal labels have equal numbers, 0, 1, ...; of bars always 0 */
    double value[DTP_CHART_MAX_COLUMNS];
};

struct dtp_chart_data {
    enum dtp_chart chart;
    const char *label_column; /* static texts, the columns with their units */
    const char *columns[DTP_CHART_MAX_COLUMNS];
    size_t column_count;
    struct dtp_chart_row *rows;
    size_t row_count, series_count;
    size_t refused, out_of_memory; /* rows of the table that are not among them, for that */
    char shared[160];              /* what all rows have in common, for a title: "llama-2-7b, full_shard, 8 GPUs" */
};

/* What an area stands for: its letter in charts of text, its column in a table of plans. */
struct dtp_chart_part {
    char letter;
    const char *column, *words;
};
/* Of STRATEGIES and STEP, in the order of the data's columns behind the first, which is what bars are measured by. */
#define DTP_CHART_MEMORY_PARTS 12
#define DTP_CHART_STEP_PARTS 10
/* Of TIMELINE a part by the class of its operations, of collectives by their kind. */
#define DTP_CHART_TIMELINE_PARTS 12
extern const struct dtp_chart_part dtp_chart_memory_parts[DTP_CHART_MEMORY_PARTS];
extern const struct dtp_chart_part dtp_chart_step_parts[DTP_CHART_STEP_PARTS];
extern const struct dtp_chart_part dtp_chart_timeline_parts[DTP_CHART_TIMELINE_PARTS];

/* Rows with `column` = `value` only. */
struct dtp_chart_filter {
    const char *column, *value;
};

/* Whether `table` is what the chart MEMORY is drawn from, column by column; a fault says what is missing. */
enum dtp_status dtp_chart_check_memory(const struct dtp_table *table, struct dtp_faults *faults);
/* `chart` is not MEMORY. DTP_BAD_INPUT: a column it needs is missing, no row is left, or there are
 * more plans than can be told apart. Caller destroys. */
enum dtp_status dtp_chart_data_read(enum dtp_chart chart, const struct dtp_table *table,
                                    const struct dtp_chart_filter *filters, size_t filter_count,
                                    struct dtp_chart_data *out, struct dtp_faults *faults);
void dtp_chart_data_destroy(struct dtp_chart_data *data);
void dtp_chart_data_write(const struct dtp_chart_data *data, FILE *file);

/* Latency and rate of time_s = latency_s + sent_bytes / bytes_per_s, by least squares of the relative error (GSL).
 * False: fewer than three sizes, or no such line has a positive rate. */
bool dtp_chart_fit_bandwidth(const double *sent_bytes, const double *time_s, size_t count, double *latency_s,
                             double *bytes_per_s);

#endif
