/* The rows of a table that a chart is made from, and the words that tell them apart. Internal to the chart data. */
#ifndef DTP_CHART_SOURCE_H
#define DTP_CHART_SOURCE_H

#include "chart/chart_data.h"

#define DTP_CHART_MAX_CHOICES 48

struct dtp_chart_source {
    const struct dtp_table *table;
    size_t *rows; /* indices into the table: those that pass the filters and were not refused */
    size_t row_count, refused;
    long choices[DTP_CHART_MAX_CHOICES]; /* columns that say what was planned, those that are named first in front */
    size_t choice_count;
    uint64_t varying; /* bit i: rows differ in choices[i], and not only as a consequence of x and the choices before */
};

/* `x` is the column along which the chart goes, NULL: none; what follows from it tells no rows apart. Caller destroys.
 */
enum dtp_status dtp_chart_source_read(const struct dtp_table *table, const struct dtp_chart_filter *filters,
                                      size_t filter_count, const char *x, struct dtp_chart_source *out,
                                      struct dtp_faults *faults);
void dtp_chart_source_destroy(struct dtp_chart_source *source);

/* The choices in which rows differ: "zero1 · 16 GPUs". */
void dtp_chart_source_words(const struct dtp_chart_source *source, size_t row, char *out, size_t bytes);
/* The choices that all rows share, as far as people would name them. */
void dtp_chart_source_shared(const struct dtp_chart_source *source, char *out, size_t bytes);
/* The names of the columns in which rows differ, for a message: "gpu, seq_tokens". */
void dtp_chart_source_varying(const struct dtp_chart_source *source, char *out, size_t bytes);
/* The figure in a column, NaN where there is none. */
double dtp_chart_source_value(const struct dtp_chart_source *source, size_t row, long column);
/* Text without control characters, quotes and commas, on which gnuplot and its words break; cut to `bytes` at a
 * character. */
void dtp_chart_label(const char *text, char *out, size_t bytes);

#endif
