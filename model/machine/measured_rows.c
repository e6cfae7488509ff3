/* Rows of a machine file. */
#include "machine/measured.h"

#include "base/number.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MOST_ROWS 20000 /* ten times what a probe of a large machine and several jobs writes */

struct columns {
    long measurement, what, dtype, number[DTP_MEASURED_COLUMN_COUNT];
};

static enum dtp_status find_columns(const struct dtp_table *table, struct columns *out, struct dtp_faults *faults)
{
    static const char *const names[] = {
#define AS_COLUMN(field, column) column,
        DTP_MEASURED_NUMBER_TABLE(AS_COLUMN)
#undef AS_COLUMN
    };
    *out = (struct columns){
        dtp_table_column(table, "measurement"), dtp_table_column(table, "what"), dtp_table_column(table, "dtype"), {0}};
    for (int i = 0; i < DTP_MEASURED_COLUMN_COUNT; i++)
        out->number[i] = dtp_table_column(table, names[i]);
    if (out->measurement >= 0 && out->what >= 0 && out->number[DTP_MEASURED_value] >= 0)
        return DTP_OK;
    return dtp_fault(faults, DTP_BAD_INPUT, dtp_table_name(table), 1,
                     "no measured machine: it has columns measurement, what, value and more; dtplan probe writes one");
}

/* ---- one row ----------------------------------------------------------------------------------------------------- */

static enum dtp_status read_numbers(const struct dtp_table *table, size_t at, const struct columns *columns,
                                    struct dtp_measured_row *row, struct dtp_faults *faults)
{
    enum dtp_status status = DTP_OK;
    for (int i = 0; i < DTP_MEASURED_COLUMN_COUNT; i++) {
        const char *text = dtp_table_text(table, at, columns->number[i]);
        if (!*text || (i == DTP_MEASURED_value && row->measurement == DTP_MEASUREMENT_ABOUT))
            continue;
        const char *column = dtp_table_column_name(table, (size_t)columns->number[i]);
        if (!dtp_number_parse(text, &row->number[i])) {
            row->number[i] = (double)NAN;
            status = dtp_fault(faults, DTP_BAD_INPUT, dtp_table_name(table), dtp_table_line(table, at),
                               "%s: '%.40s' is no number", column, text);
        }
    }
    return status;
}

static enum dtp_status read_row(const struct dtp_table *table, size_t at, const struct columns *columns,
                                struct dtp_measured_row *row, struct dtp_faults *faults)
{
    const char *name = dtp_table_name(table), *text = dtp_table_text(table, at, columns->measurement);
    size_t line = dtp_table_line(table, at);
    enum dtp_measurement measurement;
    if (!dtp_measurement_parse(text, &measurement))
        return dtp_fault(faults, DTP_BAD_INPUT, name, line, "measurement: '%.40s' is none", text);
    const char *what = dtp_table_text(table, at, columns->what), *dtype = dtp_table_text(table, at, columns->dtype);
    if (strlen(what) >= DTP_MEASURED_WHAT_BYTES)
        return dtp_fault(faults, DTP_BAD_INPUT, name, line, "what: '%.40s' is nothing that is measured", what);
    *row = dtp_measured_row_of(measurement, what);
    if (*dtype && !dtp_dtype_parse(dtype, &row->dtype))
        return dtp_fault(faults, DTP_BAD_INPUT, name, line, "dtype: '%.40s' is none of fp32|tf32|bf16|fp16|fp8|int8",
                         dtype);
    if (measurement == DTP_MEASUREMENT_ABOUT) {
        const char *value = dtp_table_text(table, at, columns->number[DTP_MEASURED_value]);
        if (dtp_measured_row_set_text(row, value, name, line, faults) != DTP_OK)
            return DTP_BAD_INPUT;
    }
    enum dtp_status status = read_numbers(table, at, columns, row, faults);
    return status == DTP_OK ? dtp_measured_row_check(row, name, line, faults) : status;
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

struct keyed {
    const struct dtp_measured_row *row;
    size_t line;
};

static int compare_cells(double a, double b)
{
    double x = isnan(a) ? -1 : a, y = isnan(b) ? -1 : b;
    return (x > y) - (x < y);
}

int dtp_measured_row_compare(const struct dtp_measured_row *a, const struct dtp_measured_row *b, bool with_bytes)
{
    int order = a->measurement != b->measurement ? (a->measurement > b->measurement) - (a->measurement < b->measurement)
                : a->dtype != b->dtype           ? (a->dtype > b->dtype) - (a->dtype < b->dtype)
                                                 : strcmp(a->what, b->what);
    for (int i = 0; i <= DTP_MEASURED_nodes && !order; i++)
        if (i != DTP_MEASURED_bytes)
            order = compare_cells(a->number[i], b->number[i]);
    return order || !with_bytes ? order : compare_cells(a->number[DTP_MEASURED_bytes], b->number[DTP_MEASURED_bytes]);
}

static int by_key(const void *a, const void *b)
{
    const struct keyed *x = a, *y = b;
    int order = dtp_measured_row_compare(x->row, y->row, true);
    return order ? order : (x->line > y->line) - (x->line < y->line);
}

static enum dtp_status check_twice(const struct dtp_measured_rows *rows, const char *name, struct dtp_faults *faults)
{
    struct keyed *keyed = malloc((rows->count + 1) * sizeof *keyed);
    enum dtp_status status = DTP_OK;
    if (!keyed)
        return dtp_fault(faults, DTP_ENVIRONMENT, name, 0, "out of memory");
    for (size_t i = 0; i < rows->count; i++)
        keyed[i] = (struct keyed){&rows->row[i], rows->line[i]};
    qsort(keyed, rows->count, sizeof *keyed, by_key);
    for (size_t i = 1; i < rows->count; i++)
        if (dtp_measured_row_same(keyed[i - 1].row, keyed[i].row))
            status = dtp_fault(faults, DTP_BAD_INPUT, name, keyed[i].line,
                               "%s %s of the same shape stands on line %zu as well",
                               dtp_measurement_text(keyed[i].row->measurement), keyed[i].row->what, keyed[i - 1].line);
    free(keyed);
    return status;
}

const char *dtp_measured_rows_about(const struct dtp_measured_rows *rows, const char *what)
{
    for (size_t i = 0; i < rows->count; i++)
        if (rows->row[i].measurement == DTP_MEASUREMENT_ABOUT && strcmp(rows->row[i].what, what) == 0)
            return rows->row[i].text;
    return NULL;
}

/* Of a file that says how many rows it has; dtp_measured_row_check has seen to the number. More than that were added by
 * hand. */
static enum dtp_status check_count(const struct dtp_measured_rows *rows, const char *name, struct dtp_faults *faults)
{
    const char *text = dtp_measured_rows_about(rows, DTP_MEASURED_ROWS);
    uint64_t written = 0;
    if (!text || !dtp_number_parse_integer(text, false, 1, UINT64_MAX, &written) || written <= rows->count)
        return DTP_OK;
    return dtp_fault(faults, DTP_BAD_INPUT, name, 0,
                     "holds %zu of the %" PRIu64 " rows that its row about,rows tells of: its end is missing; take a "
                     "whole copy, or probe again (where you took rows out, change that number)",
                     rows->count, written);
}

static enum dtp_status check_whole(const struct dtp_measured_rows *rows, const char *name, struct dtp_faults *faults)
{
    size_t times = 0;
    for (size_t i = 0; i < rows->count; i++)
        times += rows->row[i].measurement != DTP_MEASUREMENT_ABOUT;
    if (!dtp_measured_rows_about(rows, "gpu_key"))
        return dtp_fault(faults, DTP_BAD_INPUT, name, 0,
                         "no row about,gpu_key: it names the GPU of the catalogue that was measured");
    return times ? check_count(rows, name, faults)
                 : dtp_fault(faults, DTP_BAD_INPUT, name, 0, "nothing measured stands in it");
}

enum dtp_status dtp_measured_rows_of(const struct dtp_table *table, struct dtp_measured_rows *out,
                                     struct dtp_faults *faults)
{
    struct columns columns;
    size_t count = dtp_table_row_count(table);
    *out = (struct dtp_measured_rows){.count = 0};
    enum dtp_status worst = find_columns(table, &columns, faults);
    if (worst == DTP_OK && count > MOST_ROWS)
        worst = dtp_fault(faults, DTP_BAD_INPUT, dtp_table_name(table), 0,
                          "%zu rows, more than the %d that a machine file may have; probe fewer jobs into one file",
                          count, MOST_ROWS);
    if (worst != DTP_OK)
        return worst;
    out->row = malloc((count + 1) * sizeof *out->row);
    out->line = malloc((count + 1) * sizeof *out->line);
    if (!out->row || !out->line)
        worst = dtp_fault(faults, DTP_ENVIRONMENT, dtp_table_name(table), 0, "no memory for %zu rows", count);
    for (size_t i = 0; i < count && worst != DTP_ENVIRONMENT; i++) {
        out->line[out->count] = dtp_table_line(table, i);
        enum dtp_status status = read_row(table, i, &columns, &out->row[out->count], faults);
        out->count += status == DTP_OK;
        worst = status > worst ? status : worst;
    }
    if (worst == DTP_OK)
        worst = check_twice(out, dtp_table_name(table), faults);
    if (worst == DTP_OK)
        worst = check_whole(out, dtp_table_name(table), faults);
    if (worst != DTP_OK)
        dtp_measured_rows_release(out);
    return worst;
}

void dtp_measured_rows_release(struct dtp_measured_rows *rows)
{
    free(rows->row);
    free(rows->line);
    *rows = (struct dtp_measured_rows){.count = 0};
}
