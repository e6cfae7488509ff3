#include "chart/chart_rows.h"

#include "base/append.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* A row to fill, its figures NaN; NULL where there are too many to tell apart. There is room for all of the source. */
struct dtp_chart_row *dtp_chart_add_row(struct dtp_chart_data *data, const char *label)
{
    struct dtp_chart_row *row = &data->rows[data->row_count++];
    dtp_chart_label(label, row->label, sizeof row->label);
    for (size_t i = 0; i < DTP_CHART_MAX_COLUMNS; i++)
        row->value[i] = NAN;
    return row;
}

enum dtp_status dtp_chart_needs_column(const struct dtp_chart_source *s, enum dtp_chart chart, const char *column,
                                       struct dtp_faults *faults)
{
    if (dtp_table_column(s->table, column) >= 0)
        return DTP_OK;
    return dtp_fault(faults, DTP_BAD_INPUT, dtp_table_name(s->table), 1,
                     "has no column '%s', which the chart '%s' shows; its table comes from %s", column,
                     dtp_chart_name(chart), dtp_chart_command(chart));
}

enum dtp_status dtp_chart_needs_columns(const struct dtp_chart_source *s, enum dtp_chart chart,
                                        const char *const *columns, size_t count, struct dtp_faults *faults)
{
    enum dtp_status status = DTP_OK;
    for (size_t i = 0; i < count && status == DTP_OK; i++)
        status = dtp_chart_needs_column(s, chart, columns[i], faults);
    return status;
}

enum dtp_status dtp_chart_needs_numbers(const struct dtp_chart_source *s, enum dtp_chart chart,
                                        const char *const *columns, size_t count, struct dtp_faults *faults)
{
    enum dtp_status status = dtp_chart_needs_columns(s, chart, columns, count, faults);
    for (size_t k = 0; k < count && status == DTP_OK; k++) {
        long column = dtp_table_column(s->table, columns[k]);
        for (size_t i = 0; i < s->row_count && status == DTP_OK; i++) {
            const char *text = dtp_table_text(s->table, s->rows[i], column);
            if (*text && isnan(dtp_chart_source_value(s, s->rows[i], column)))
                status =
                    dtp_fault(faults, DTP_BAD_INPUT, dtp_table_name(s->table), dtp_table_line(s->table, s->rows[i]),
                              "%s '%.40s' is no number; leave the cell empty where there is none", columns[k], text);
        }
    }
    return status;
}

double dtp_chart_value(const struct dtp_chart_source *s, size_t row, const char *column)
{
    return dtp_chart_source_value(s, row, dtp_table_column(s->table, column));
}

enum dtp_status dtp_chart_too_many(const struct dtp_chart_source *s, const char *things, size_t most,
                                   struct dtp_faults *faults)
{
    char varying[300];
    dtp_chart_source_varying(s, varying, sizeof varying);
    return dtp_fault(faults, DTP_BAD_INPUT, dtp_table_name(s->table), 0,
                     "has more than %zu %s, which nobody tells apart; choose with --where COLUMN=VALUE by %s", most,
                     things, varying[0] ? varying : "a column that differs");
}

void dtp_chart_set_columns(struct dtp_chart_data *data, const char *label, const char *const *columns, size_t count)
{
    data->label_column = label;
    data->column_count = count;
    for (size_t i = 0; i < count; i++)
        data->columns[i] = columns[i];
}

bool dtp_chart_is_oom(const struct dtp_chart_source *s, size_t row)
{
    return strcmp(dtp_table_text(s->table, row, dtp_table_column(s->table, "verdict")), "oom") == 0;
}

/* ---- series ------------------------------------------------------------------------------------------------------ */

enum dtp_status dtp_chart_no_row_of(const struct dtp_chart_source *s, enum dtp_chart chart, const char *const *columns,
                                    size_t count, struct dtp_faults *faults)
{
    char shown[300] = "";
    for (size_t i = 0; i < count; i++)
        dtp_append_part(shown, sizeof shown, ", ", "%s", columns[i]);
    return dtp_fault(faults, DTP_BAD_INPUT, dtp_table_name(s->table), 0,
                     "has no row with all that the chart '%s' shows: %s", dtp_chart_name(chart), shown);
}

enum dtp_status dtp_chart_no_row(const struct dtp_chart_source *s, const struct dtp_chart_data *data,
                                 struct dtp_faults *faults)
{
    return dtp_chart_no_row_of(s, data->chart, data->columns, data->column_count, faults);
}

bool dtp_chart_number(struct dtp_chart_data *data)
{
    size_t first[DTP_CHART_MAX_SERIES + 1], count = 0;
    for (size_t i = 0; i < data->row_count; i++) {
        size_t k = 0;
        while (k < count && strcmp(data->rows[first[k]].label, data->rows[i].label) != 0)
            k++;
        if (k == DTP_CHART_MAX_SERIES)
            return false;
        if (k == count)
            first[count++] = i;
        data->rows[i].series = k;
    }
    data->series_count = count;
    return true;
}

/* Where there are more labels than marks, those that appear last are "others". */
void dtp_chart_number_or_merge(struct dtp_chart_data *data)
{
    const char *kept[DTP_CHART_MAX_SERIES - 1];
    size_t count = 0;
    if (dtp_chart_number(data))
        return;
    for (size_t i = 0; i < data->row_count; i++) {
        size_t k = 0;
        while (k < count && strcmp(kept[k], data->rows[i].label) != 0)
            k++;
        if (k == count && count < DTP_CHART_MAX_SERIES - 1)
            kept[count++] = data->rows[i].label;
        else if (k == count)
            strcpy(data->rows[i].label, "others");
    }
    dtp_chart_number(data);
}

static int by_series(const void *left, const void *right)
{
    const struct dtp_chart_row *a = left, *b = right;
    if (a->series != b->series)
        return a->series < b->series ? -1 : 1;
    return (a->value[0] > b->value[0]) - (a->value[0] < b->value[0]);
}

enum dtp_status dtp_chart_sort_series(const struct dtp_chart_source *s, struct dtp_chart_data *data, const char *things,
                                      struct dtp_faults *faults)
{
    if (data->row_count == 0)
        return dtp_chart_no_row(s, data, faults);
    if (!dtp_chart_number(data))
        return dtp_chart_too_many(s, things, DTP_CHART_MAX_SERIES, faults);
    qsort(data->rows, data->row_count, sizeof *data->rows, by_series);
    return DTP_OK;
}
