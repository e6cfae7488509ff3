#include "chart/chart_data.h"

#include "base/append.h"
#include "chart/chart_rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum dtp_status dtp_chart_check_memory(const struct dtp_table *table, struct dtp_faults *faults)
{
    /* By place, as the script finds them: first and last of those that it uses. */
    static const struct {
        const char *column;
        long place;
    } places[] = {{"time_s", 0}, {"total_bytes", 11}};
    for (int i = 0; i < 2; i++)
        if (dtp_table_column(table, places[i].column) != places[i].place)
            return dtp_fault(faults, DTP_BAD_INPUT, dtp_table_name(table), 1,
                             "column %ld is not '%s'; the table of the chart '%s' comes from %s", places[i].place + 1,
                             places[i].column, dtp_chart_name(DTP_CHART_MEMORY), dtp_chart_command(DTP_CHART_MEMORY));
    if (dtp_table_row_count(table) == 0)
        return dtp_fault(faults, DTP_BAD_INPUT, dtp_table_name(table), 0, "has no row to draw");
    return DTP_OK;
}

/* Of the others the table is drawn as it is. */
static dtp_chart_reader *const readers[DTP_CHART_COUNT] = {
    [DTP_CHART_TIMELINE] = dtp_chart_read_timeline,
    [DTP_CHART_SCHEDULE] = dtp_chart_read_schedule,
    [DTP_CHART_STRATEGIES] = dtp_chart_read_bars,
    [DTP_CHART_STEP] = dtp_chart_read_bars,
    [DTP_CHART_MICRO_BATCH] = dtp_chart_read_micro_batch,
    [DTP_CHART_SCALING] = dtp_chart_read_scaling,
    [DTP_CHART_PARETO] = dtp_chart_read_pareto,
    [DTP_CHART_BACKTEST] = dtp_chart_read_backtest,
    [DTP_CHART_DECISIONS] = dtp_chart_read_decisions,
    [DTP_CHART_BANDWIDTH] = dtp_chart_read_bandwidth,
    [DTP_CHART_MACHINE_RESIDUALS] = dtp_chart_read_residuals,
};

enum dtp_status dtp_chart_data_read(enum dtp_chart chart, const struct dtp_table *table,
                                    const struct dtp_chart_filter *filters, size_t filter_count,
                                    struct dtp_chart_data *out, struct dtp_faults *faults)
{
    struct dtp_chart_source source;
    *out = (struct dtp_chart_data){.chart = chart};
    const char *x = chart == DTP_CHART_SCALING       ? "gpus_count"
                    : chart == DTP_CHART_MICRO_BATCH ? "micro_batch_sequences"
                                                     : NULL;
    enum dtp_status status = dtp_chart_source_read(table, filters, filter_count, x, &source, faults);
    if (status == DTP_OK && !(out->rows = calloc(source.row_count, sizeof *out->rows)))
        status = dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    if (status == DTP_OK) /* a reader may say more */
        dtp_chart_source_shared(&source, out->shared, sizeof out->shared);
    if (status == DTP_OK)
        status = readers[chart] ? readers[chart](&source, out, faults)
                                : dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "the chart '%s' shows its table as it is",
                                            dtp_chart_name(chart));
    if (status == DTP_OK) {
        out->refused = source.refused;
    } else {
        dtp_chart_data_destroy(out);
    }
    if (status == DTP_OK && chart == DTP_CHART_PARETO)
        dtp_append_part(out->shared, sizeof out->shared, " \u00b7 ", "%s",
                        strcmp(out->columns[0], "training_days") == 0 ? "the whole training" : "10^12 tokens");
    dtp_chart_source_destroy(&source);
    return status;
}

void dtp_chart_data_destroy(struct dtp_chart_data *data)
{
    free(data->rows);
    *data = (struct dtp_chart_data){0};
}

void dtp_chart_data_write(const struct dtp_chart_data *data, FILE *file)
{
    fputs(data->label_column, file);
    for (size_t i = 0; i < data->column_count; i++)
        fprintf(file, ",%s", data->columns[i]);
    fputc('\n', file);
    for (size_t row = 0; row < data->row_count; row++) {
        dtp_table_write_field(file, data->rows[row].label);
        for (size_t i = 0; i < data->column_count; i++) {
            double value = data->rows[row].value[i];
            if (isnan(value))
                fputc(',', file);
            else
                fprintf(file, value == rint(value) && fabs(value) < 0x1p53 ? ",%.0f" : ",%.9g", value);
        }
        fputc('\n', file);
    }
}

enum dtp_status dtp_chart_draw_written(enum dtp_chart chart, dtp_chart_write write, const void *object,
                                       const char *figure, const char *title, struct dtp_faults *faults)
{
    struct dtp_table *table = NULL;
    struct dtp_chart_data data = {0};
    char said[DTP_FAULT_TEXT_BYTES], *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    if (file)
        write(object, file);
    enum dtp_status status =
        file && fclose(file) == 0 ? DTP_OK : dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    if (status == DTP_OK)
        status = dtp_table_parse(dtp_chart_name(chart), text, bytes, &table, faults);
    free(text); // the table has its own
    if (status == DTP_OK)
        status = dtp_chart_data_read(chart, table, NULL, 0, &data, faults);
    if (status == DTP_OK) {
        struct dtp_chart_figure drawn = {.chart = chart, .data = &data, .figure = figure, .title = title};
        status = dtp_chart_draw(&drawn, said, sizeof said, faults);
    }
    if (status == DTP_OK) /* on the side: standard output may be a table */
        fprintf(stderr, "%s\n", said);
    dtp_chart_data_destroy(&data);
    dtp_table_destroy(table);
    return status;
}
