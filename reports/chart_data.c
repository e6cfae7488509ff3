#include "chart_data.h"

#include "chart_source.h"

#include <gsl/gsl_fit.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* A row to fill, its figures NaN; NULL where there are too many to tell apart. There is room for all of the source. */
static struct dtp_chart_row *add_row(struct dtp_chart_data *data, const char *label)
{
    struct dtp_chart_row *row = &data->rows[data->row_count++];
    dtp_chart_label(label, row->label, sizeof row->label);
    for (size_t i = 0; i < DTP_CHART_MAX_COLUMNS; i++)
        row->value[i] = NAN;
    return row;
}

static enum dtp_status needs_column(const struct dtp_chart_source *s, enum dtp_chart chart, const char *column,
                                    struct dtp_faults *faults)
{
    if (dtp_table_column(s->table, column) >= 0)
        return DTP_OK;
    return dtp_fault(faults, DTP_BAD_INPUT, dtp_table_name(s->table), 1,
                     "has no column '%s', which the chart '%s' shows; its table comes from dtplan %s", column,
                     dtp_chart_name(chart), dtp_chart_command(chart));
}

static double value_of(const struct dtp_chart_source *s, size_t row, const char *column)
{
    return dtp_chart_source_value(s, row, dtp_table_column(s->table, column));
}

static double zero_if_none(double value)
{
    return isnan(value) ? 0 : value;
}

static enum dtp_status too_many(const struct dtp_chart_source *s, const char *things, size_t most,
                                struct dtp_faults *faults)
{
    char varying[300];
    dtp_chart_source_varying(s, varying, sizeof varying);
    return dtp_fault(faults, DTP_BAD_INPUT, dtp_table_name(s->table), 0,
                     "has more than %zu %s, which nobody tells apart; choose with --where COLUMN=VALUE by %s", most,
                     things, varying[0] ? varying : "a column that differs");
}

/* ---- one bar a plan ---------------------------------------------------------------------------------------------- */

/* Parts of a bar that are a column; the first is no part but what the bar is measured by. */
static const char *const strategies_columns[] = {
    "capacity_bytes",     "peak_params_bytes",          "peak_optimizer_bytes", "peak_grads_bytes",
    "peak_activations_bytes", "peak_logits_bytes",      "peak_compute_weights_bytes", "peak_gather_bytes",
    "peak_reduce_bytes",  "peak_workspace_bytes",       "cache_bytes",          "context_bytes",
    "nccl_bytes",
};
static const char *const step_columns[] = {
    "step_s",      "matmul_s",  "attention_s", "memory_bound_s", "loss_s", "launch_gap_s", "optimizer_s",
    "exposed_communication_s", "exposed_offload_s", "bubble_s", "waiting_s",
};

static void set_columns(struct dtp_chart_data *data, const char *label, const char *const *columns, size_t count)
{
    data->label_column = label;
    data->column_count = count;
    for (size_t i = 0; i < count; i++)
        data->columns[i] = columns[i];
}

static double *cell(struct dtp_chart_data *data, struct dtp_chart_row *row, const char *column)
{
    for (size_t i = 0; i < data->column_count; i++)
        if (strcmp(data->columns[i], column) == 0)
            return &row->value[i];
    return NULL;
}

/* What the allocator keeps beyond the tensors. */
static void add_cache(const struct dtp_chart_source *s, size_t at, struct dtp_chart_data *data,
                      struct dtp_chart_row *row)
{
    *cell(data, row, "cache_bytes") =
        zero_if_none(fmax(0, value_of(s, at, "reserved_peak_bytes") - value_of(s, at, "allocated_peak_bytes")));
}

/* Kernels as they share the device time of forward and backward, and what is left: launch gaps there, the slowest rank
 * in the step. */
static void add_rests(const struct dtp_chart_source *s, size_t at, struct dtp_chart_data *data,
                      struct dtp_chart_row *row)
{
    static const char *const kernels[] = {"matmul_s", "attention_s", "memory_bound_s", "loss_s"};
    static const char *const parts[] = {"optimizer_s", "exposed_communication_s", "exposed_offload_s", "bubble_s"};
    double compute = zero_if_none(value_of(s, at, "compute_s")), busy = 0, rest = value_of(s, at, "step_s") - compute;
    for (size_t i = 0; i < 4; i++)
        busy += zero_if_none(*cell(data, row, kernels[i]));
    for (size_t i = 0; i < 4; i++)
        rest -= zero_if_none(*cell(data, row, parts[i]));
    for (size_t i = 0; i < 4 && busy > compute; i++)
        *cell(data, row, kernels[i]) *= compute / busy;
    *cell(data, row, "launch_gap_s") = fmax(0, compute - busy);
    *cell(data, row, "waiting_s") = fmax(0, zero_if_none(rest));
}

static enum dtp_status read_bars(const struct dtp_chart_source *s, struct dtp_chart_data *data,
                                 struct dtp_faults *faults)
{
    bool memory = data->chart == DTP_CHART_STRATEGIES;
    enum dtp_status status = DTP_OK;
    if (memory)
        set_columns(data, "plan", strategies_columns, sizeof strategies_columns / sizeof *strategies_columns);
    else
        set_columns(data, "plan", step_columns, sizeof step_columns / sizeof *step_columns);
    for (size_t i = 0; i < data->column_count && status == DTP_OK; i++)
        if (strcmp(data->columns[i], "cache_bytes") && strcmp(data->columns[i], "launch_gap_s") &&
            strcmp(data->columns[i], "waiting_s"))
            status = needs_column(s, data->chart, data->columns[i], faults);
    if (status == DTP_OK && s->row_count > DTP_CHART_MAX_BARS)
        status = too_many(s, "plans", DTP_CHART_MAX_BARS, faults);
    for (size_t i = 0; i < s->row_count && status == DTP_OK; i++) {
        char label[DTP_CHART_LABEL_BYTES];
        dtp_chart_source_words(s, s->rows[i], label, sizeof label);
        struct dtp_chart_row *row = add_row(data, label[0] ? label : "the plan");
        for (size_t k = 0; k < data->column_count; k++)
            row->value[k] = value_of(s, s->rows[i], data->columns[k]);
        memory ? add_cache(s, s->rows[i], data, row) : add_rests(s, s->rows[i], data, row);
    }
    return status;
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

static bool is_out_of_memory(const struct dtp_chart_source *s, size_t row)
{
    return strcmp(dtp_table_text(s->table, row, dtp_table_column(s->table, "verdict")), "oom") == 0;
}

/* Numbers the labels in the order of their appearance. More than `most` of them: false. */
static bool number_series(struct dtp_chart_data *data, size_t most)
{
    size_t first[DTP_CHART_MAX_SERIES + 1], count = 0;
    for (size_t i = 0; i < data->row_count; i++) {
        size_t k = 0;
        while (k < count && strcmp(data->rows[first[k]].label, data->rows[i].label) != 0)
            k++;
        if (k == most)
            return false;
        if (k == count)
            first[count++] = i;
        data->rows[i].series = k;
    }
    data->series_count = count;
    return true;
}

static int by_series_and_x(const void *left, const void *right)
{
    const struct dtp_chart_row *a = left, *b = right;
    if (a->series != b->series)
        return a->series < b->series ? -1 : 1;
    return (a->value[0] > b->value[0]) - (a->value[0] < b->value[0]);
}

static enum dtp_status sort_series(const struct dtp_chart_source *s, struct dtp_chart_data *data, const char *things,
                                   struct dtp_faults *faults)
{
    if (data->row_count == 0)
        return dtp_fault(faults, DTP_BAD_INPUT, dtp_table_name(s->table), 0,
                         "has no row with all that the chart '%s' shows", dtp_chart_name(data->chart));
    if (!number_series(data, DTP_CHART_MAX_SERIES))
        return too_many(s, things, DTP_CHART_MAX_SERIES, faults);
    qsort(data->rows, data->row_count, sizeof *data->rows, by_series_and_x);
    return DTP_OK;
}

/* One line for each combination of choices but the one on the x axis. Rows without any of the figures are left out. */
static enum dtp_status read_lines(const struct dtp_chart_source *s, struct dtp_chart_data *data, bool only_what_runs,
                                  struct dtp_faults *faults)
{
    enum dtp_status status = DTP_OK;
    for (size_t k = 0; k < data->column_count && status == DTP_OK; k++)
        status = needs_column(s, data->chart, data->columns[k], faults);
    for (size_t i = 0; i < s->row_count && status == DTP_OK; i++) {
        char label[DTP_CHART_LABEL_BYTES];
        if (only_what_runs && is_out_of_memory(s, s->rows[i]))
            continue;
        dtp_chart_source_words(s, s->rows[i], label, sizeof label);
        struct dtp_chart_row *row = add_row(data, label[0] ? label : "the plan");
        for (size_t k = 0; k < data->column_count; k++) {
            row->value[k] = value_of(s, s->rows[i], data->columns[k]);
            if (!(row->value[k] > 0)) { /* nor would a logarithm have it */
                data->row_count--;
                break;
            }
        }
    }
    return status == DTP_OK ? sort_series(s, data, "lines", faults) : status;
}

static enum dtp_status read_scaling(const struct dtp_chart_source *s, struct dtp_chart_data *data,
                                    struct dtp_faults *faults)
{
    static const char *const columns[] = {"gpus_count", "tokens_per_s", "scaling_efficiency_fraction",
                                          "ideal_tokens_per_s"};
    set_columns(data, "plan", columns, 3);
    enum dtp_status status = read_lines(s, data, true, faults);
    set_columns(data, "plan", columns, 4);
    const struct dtp_chart_row *first = data->rows;
    for (size_t i = 0; i < data->row_count && status == DTP_OK; i++) {
        struct dtp_chart_row *row = &data->rows[i];
        if (row->series != first->series)
            first = row;
        row->value[3] = first->value[1] * row->value[0] / first->value[0];
    }
    return status;
}

/* ---- points ------------------------------------------------------------------------------------------------------ */

/* The publication, as backtests group by it: "github:mosaicml/llm-foundry scripts/...", "arXiv:2312.12391 table 4",
 * "measured on 4 H200, one node". */
static void publication(const char *source, char *out, size_t bytes)
{
    bool github = strncmp(source, "github:", 7) == 0;
    const char *name = github ? source + 7 : source;
    snprintf(out, bytes, "%.*s", (int)strcspn(name, github || strncmp(name, "arXiv:", 6) == 0 ? " " : ",["), name);
}

static enum dtp_status read_backtest(const struct dtp_chart_source *s, struct dtp_chart_data *data,
                                     struct dtp_faults *faults)
{
    static const char *const columns[] = {"measured_tokens_per_s_per_gpu", "predicted_tokens_per_s_per_gpu"};
    set_columns(data, "source", columns, 2);
    enum dtp_status status = needs_column(s, data->chart, columns[0], faults);
    if (status == DTP_OK)
        status = needs_column(s, data->chart, columns[1], faults);
    for (size_t i = 0; i < s->row_count && status == DTP_OK; i++) {
        double measured = value_of(s, s->rows[i], columns[0]), predicted = value_of(s, s->rows[i], columns[1]);
        char label[DTP_CHART_LABEL_BYTES];
        if (!(measured > 0) || !(predicted > 0))
            continue;
        publication(dtp_table_text(s->table, s->rows[i], dtp_table_column(s->table, "source")), label, sizeof label);
        struct dtp_chart_row *row = add_row(data, label);
        row->value[0] = measured;
        row->value[1] = predicted;
    }
    return status == DTP_OK ? sort_series(s, data, "sources", faults) : status;
}

#define TOKENS_SHOWN 1e12

/* A row is on the front when no other is at most as long and at most as dear, and one of them less. After sorting by time
 * (then money) that is: dearer than all before it is off. */
static int by_time_and_money(const void *left, const void *right)
{
    const struct dtp_chart_row *const *a = left, *const *b = right;
    for (int k = 0; k < 2; k++)
        if ((*a)->value[k] != (*b)->value[k])
            return (*a)->value[k] < (*b)->value[k] ? -1 : 1;
    return 0;
}

static int front_first(const void *left, const void *right)
{
    const struct dtp_chart_row *a = left, *b = right;
    if (a->value[2] != b->value[2])
        return a->value[2] > b->value[2] ? -1 : 1;
    return a->value[2] > 0 ? by_time_and_money(&a, &b) : by_series_and_x(a, b);
}

/* Marks the rows of the front and puts them first, by time, so that a line may join them. */
static enum dtp_status mark_front(struct dtp_chart_data *data, struct dtp_faults *faults)
{
    const struct dtp_chart_row **order = calloc(data->row_count, sizeof *order);
    double cheapest = INFINITY;
    if (!order)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (size_t i = 0; i < data->row_count; i++)
        order[i] = &data->rows[i];
    qsort(order, data->row_count, sizeof *order, by_time_and_money);
    for (size_t i = 0; i < data->row_count; i++) {
        bool on_front = order[i]->value[1] < cheapest;
        data->rows[order[i] - data->rows].value[2] = on_front;
        cheapest = fmin(cheapest, order[i]->value[1]);
    }
    free(order);
    qsort(data->rows, data->row_count, sizeof *data->rows, front_first);
    return DTP_OK;
}

static enum dtp_status read_pareto(const struct dtp_chart_source *s, struct dtp_chart_data *data,
                                   struct dtp_faults *faults)
{
    static const char *const columns[] = {"days_per_1e12_tokens", "usd_per_1e12_tokens", "on_front"};
    set_columns(data, "gpu", columns, 3);
    enum dtp_status status = needs_column(s, data->chart, "tokens_per_s", faults);
    if (status == DTP_OK)
        status = needs_column(s, data->chart, "usd_per_billion_tokens", faults);
    for (size_t i = 0; i < s->row_count && status == DTP_OK; i++) {
        double rate = value_of(s, s->rows[i], "tokens_per_s"), usd = value_of(s, s->rows[i], "usd_per_billion_tokens");
        if (is_out_of_memory(s, s->rows[i]) || !(rate > 0) || !(usd > 0))
            continue;
        struct dtp_chart_row *row = add_row(data, dtp_table_text(s->table, s->rows[i], dtp_table_column(s->table, "gpu")));
        row->value[0] = TOKENS_SHOWN / rate / 86400;
        row->value[1] = usd * TOKENS_SHOWN / 1e9;
    }
    if (status == DTP_OK)
        status = sort_series(s, data, "kinds of GPU", faults);
    return status == DTP_OK ? mark_front(data, faults) : status;
}

/* ---- bandwidth --------------------------------------------------------------------------------------------------- */

bool dtp_chart_fit_bandwidth(const double *sent_bytes, const double *time_s, size_t count, double *latency_s,
                             double *bytes_per_s)
{
    double c0, c1, cov00, cov01, cov11, chisq, *weights = calloc(count ? count : 1, sizeof *weights);
    if (!weights || count < 3) {
        free(weights);
        return false;
    }
    for (size_t i = 0; i < count; i++)
        weights[i] = 1 / (time_s[i] * time_s[i]);
    gsl_fit_wlinear(sent_bytes, 1, weights, 1, time_s, 1, count, &c0, &c1, &cov00, &cov01, &cov11, &chisq);
    free(weights);
    *latency_s = c0;
    *bytes_per_s = 1 / c1;
    return c1 > 0 && isfinite(c0) && isfinite(*bytes_per_s);
}

/* Fits the rows of one line: x bytes moved, measured and fitted bus bandwidth. Bus bandwidth is sent bytes over time. */
static void fit_series(struct dtp_chart_row *rows, size_t count)
{
    double *sent = calloc(2 * count, sizeof *sent), *time_s = sent + count, latency_s, bytes_per_s;
    for (size_t i = 0; sent && i < count; i++) {
        sent[i] = rows[i].value[1] * rows[i].value[2];
        time_s[i] = rows[i].value[2];
    }
    bool fitted = sent && dtp_chart_fit_bandwidth(sent, time_s, count, &latency_s, &bytes_per_s);
    for (size_t i = 0; i < count; i++) {
        rows[i].value[2] = fitted ? sent[i] / (latency_s + sent[i] / bytes_per_s) : NAN;
        rows[i].value[3] = fitted ? latency_s : NAN;
        rows[i].value[4] = fitted ? bytes_per_s : NAN;
    }
    free(sent);
}

static enum dtp_status read_bandwidth(const struct dtp_chart_source *s, struct dtp_chart_data *data,
                                      struct dtp_faults *faults)
{
    static const char *const sources[] = {"bytes", "bus_bytes_per_s", "time_s", "collective", "gpus"};
    static const char *const columns[] = {"bytes", "measured_bytes_per_s", "fitted_bytes_per_s", "fitted_latency_s",
                                          "fitted_limit_bytes_per_s"};
    set_columns(data, "collective", columns, 5);
    enum dtp_status status = DTP_OK;
    for (size_t i = 0; i < 5 && status == DTP_OK; i++)
        status = needs_column(s, data->chart, sources[i], faults);
    for (size_t i = 0; i < s->row_count && status == DTP_OK; i++) {
        char label[2 * DTP_CHART_LABEL_BYTES];
        double bytes = value_of(s, s->rows[i], "bytes"), rate = value_of(s, s->rows[i], "bus_bytes_per_s"),
               time_s = value_of(s, s->rows[i], "time_s");
        if (!(bytes > 0) || !(rate > 0) || !(time_s > 0))
            continue;
        const char *nodes = dtp_table_text(s->table, s->rows[i], dtp_table_column(s->table, "nodes"));
        snprintf(label, sizeof label, "%.50s on %.20s GPUs%s%.20s%s",
                 dtp_table_text(s->table, s->rows[i], dtp_table_column(s->table, "collective")),
                 dtp_table_text(s->table, s->rows[i], dtp_table_column(s->table, "gpus")),
                 strcmp(nodes, "1") > 0 ? " of " : "", strcmp(nodes, "1") > 0 ? nodes : "",
                 strcmp(nodes, "1") > 0 ? " nodes" : "");
        struct dtp_chart_row *row = add_row(data, label);
        row->value[0] = bytes;
        row->value[1] = rate;
        row->value[2] = time_s; /* until it is fitted */
    }
    if (status == DTP_OK)
        status = sort_series(s, data, "collectives", faults);
    for (size_t from = 0, to; status == DTP_OK && from < data->row_count; from = to) {
        for (to = from; to < data->row_count && data->rows[to].series == data->rows[from].series;)
            to++;
        fit_series(&data->rows[from], to - from);
    }
    return status;
}

/* ------------------------------------------------------------------------------------------------------------------ */

enum dtp_status dtp_chart_check_table(enum dtp_chart chart, const struct dtp_table *table, struct dtp_faults *faults)
{
    /* By place, as the scripts find them: first and last of those that they use. */
    static const struct {
        const char *column;
        long place;
    } places[][2] = {{{"time_s", 0}, {"total_bytes", 11}}, {{"stream", 1}, {"end_s", 9}}};
    for (int i = 0; i < 2; i++) {
        const char *column = places[chart == DTP_CHART_TIMELINE][i].column;
        if (dtp_table_column(table, column) != places[chart == DTP_CHART_TIMELINE][i].place)
            return dtp_fault(faults, DTP_BAD_INPUT, dtp_table_name(table), 1,
                             "column %ld is not '%s'; the table of the chart '%s' comes from dtplan %s",
                             places[chart == DTP_CHART_TIMELINE][i].place + 1, column, dtp_chart_name(chart),
                             dtp_chart_command(chart));
    }
    if (dtp_table_row_count(table) == 0)
        return dtp_fault(faults, DTP_BAD_INPUT, dtp_table_name(table), 0, "has no row to draw");
    return DTP_OK;
}

static enum dtp_status read_rows(const struct dtp_chart_source *s, struct dtp_chart_data *data,
                                 struct dtp_faults *faults)
{
    static const char *const micro_batch[] = {"micro_batch_sequences", "device_peak_bytes", "capacity_bytes"};
    switch (data->chart) {
    case DTP_CHART_STRATEGIES:
    case DTP_CHART_STEP: return read_bars(s, data, faults);
    case DTP_CHART_MICRO_BATCH:
        set_columns(data, "plan", micro_batch, 3);
        return read_lines(s, data, false, faults);
    case DTP_CHART_SCALING: return read_scaling(s, data, faults);
    case DTP_CHART_PARETO: return read_pareto(s, data, faults);
    case DTP_CHART_BACKTEST: return read_backtest(s, data, faults);
    case DTP_CHART_BANDWIDTH: return read_bandwidth(s, data, faults);
    case DTP_CHART_MEMORY:
    case DTP_CHART_TIMELINE:
    case DTP_CHART_COUNT: break;
    }
    return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "the chart '%s' shows its table as it is",
                     dtp_chart_name(data->chart));
}

enum dtp_status dtp_chart_data_read(enum dtp_chart chart, const struct dtp_table *table,
                                    const struct dtp_chart_filter *filters, size_t filter_count,
                                    struct dtp_chart_data *out, struct dtp_faults *faults)
{
    struct dtp_chart_source source;
    *out = (struct dtp_chart_data){.chart = chart};
    const char *x = chart == DTP_CHART_SCALING ? "gpus_count" : chart == DTP_CHART_MICRO_BATCH ? "micro_batch_sequences" : NULL;
    enum dtp_status status = dtp_chart_source_read(table, filters, filter_count, x, &source, faults);
    if (status == DTP_OK && !(out->rows = calloc(source.row_count, sizeof *out->rows)))
        status = dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    if (status == DTP_OK)
        status = read_rows(&source, out, faults);
    if (status == DTP_OK)
        dtp_chart_source_shared(&source, out->shared, sizeof out->shared);
    else
        dtp_chart_data_destroy(out);
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
