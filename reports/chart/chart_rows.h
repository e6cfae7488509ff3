/* Rows of a chart's data and the lines they form; private to chart_*.c. */
#ifndef DTP_CHART_ROWS_H
#define DTP_CHART_ROWS_H

#include "chart/chart_source.h"

/* A row to fill, its figures NaN. There is room for all rows of the source. */
struct dtp_chart_row *dtp_chart_add_row(struct dtp_chart_data *data, const char *label);
void dtp_chart_set_columns(struct dtp_chart_data *data, const char *label, const char *const *columns, size_t count);
/* The figure of a row in a column by its name, NaN where there is none. */
double dtp_chart_value(const struct dtp_chart_source *s, size_t row, const char *column);
bool dtp_chart_is_oom(const struct dtp_chart_source *s, size_t row);

/* Numbers the labels in the order of their appearance. False: there are more than DTP_CHART_MAX_SERIES. */
bool dtp_chart_number(struct dtp_chart_data *data);
/* Orders rows by label, as they appear first, and by the first column; numbers the labels. DTP_BAD_INPUT: no row, or
 * more `things` than DTP_CHART_MAX_SERIES. */
enum dtp_status dtp_chart_sort_series(const struct dtp_chart_source *s, struct dtp_chart_data *data, const char *things,
                                      struct dtp_faults *faults);
/* Numbers labels, the order kept; where there are more than marks, those that appear last become "others". */
void dtp_chart_number_or_merge(struct dtp_chart_data *data);

/* Faults. */
enum dtp_status dtp_chart_needs_column(const struct dtp_chart_source *s, enum dtp_chart chart, const char *column,
                                       struct dtp_faults *faults);
enum dtp_status dtp_chart_needs_columns(const struct dtp_chart_source *s, enum dtp_chart chart,
                                        const char *const *columns, size_t count, struct dtp_faults *faults);
/* Such columns whose cells are numbers or empty: another one is a fault at its line. */
enum dtp_status dtp_chart_needs_numbers(const struct dtp_chart_source *s, enum dtp_chart chart,
                                        const char *const *columns, size_t count, struct dtp_faults *faults);
enum dtp_status dtp_chart_too_many(const struct dtp_chart_source *s, const char *things, size_t most,
                                   struct dtp_faults *faults);
/* Columns of the source; and where those of `data` are the source's. */
enum dtp_status dtp_chart_no_row_of(const struct dtp_chart_source *s, enum dtp_chart chart, const char *const *columns,
                                    size_t count, struct dtp_faults *faults);
enum dtp_status dtp_chart_no_row(const struct dtp_chart_source *s, const struct dtp_chart_data *data,
                                 struct dtp_faults *faults);

/* What each chart takes from a source; the caller gave `data` its kind and room. */
typedef enum dtp_status dtp_chart_reader(const struct dtp_chart_source *s, struct dtp_chart_data *data,
                                         struct dtp_faults *faults);
dtp_chart_reader dtp_chart_read_bars, dtp_chart_read_micro_batch, dtp_chart_read_scaling, dtp_chart_read_backtest,
    dtp_chart_read_decisions, dtp_chart_read_pareto, dtp_chart_read_bandwidth, dtp_chart_read_schedule,
    dtp_chart_read_timeline, dtp_chart_read_residuals;

#endif
