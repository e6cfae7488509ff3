/* Charts of plans: a bar a plan, or lines along GPUs and micro batch. */
#include "chart/chart_rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- one bar a plan ---------------------------------------------------------------------------------------------- */

const struct dtp_chart_part dtp_chart_memory_parts[DTP_CHART_MEMORY_PARTS] = {
    {'P', "peak_params_bytes", "parameters"},
    {'O', "peak_optimizer_bytes", "optimizer state"},
    {'G', "peak_grads_bytes", "gradients"},
    {'A', "peak_activations_bytes", "activations"},
    {'L', "peak_logits_bytes", "logits and loss"},
    {'W', "peak_compute_weights_bytes", "weights in compute dtype"},
    {'g', "peak_gather_bytes", "all-gather buffers"},
    {'r', "peak_reduce_bytes", "gradient reduction buffers"},
    {'w', "peak_workspace_bytes", "workspaces and temporaries"},
    {'a', "cache_bytes", "cache of the allocator"},
    {'C', "context_bytes", "CUDA context"},
    {'N', "nccl_bytes", "NCCL"},
};
const struct dtp_chart_part dtp_chart_step_parts[DTP_CHART_STEP_PARTS] = {
    {'M', "matmul_s", "matmuls"},
    {'A', "attention_s", "attention"},
    {'k', "memory_bound_s", "memory-bound kernels"},
    {'L', "loss_s", "loss"},
    {'g', "launch_gap_s", "launch gaps"},
    {'O', "optimizer_s", "optimizer"},
    {'C', "exposed_communication_s", "exposed communication"},
    {'X', "exposed_offload_s", "exposed offload"},
    {'B', "bubble_s", "pipeline bubble"},
    {'W', "waiting_s", "waiting for the slowest rank"},
};

static double zero_if_none(double value)
{
    return isnan(value) ? 0 : value;
}

static double *cell(struct dtp_chart_data *data, struct dtp_chart_row *row, const char *column)
{
    for (size_t i = 0; i < data->column_count; i++)
        if (strcmp(data->columns[i], column) == 0)
            return &row->value[i];
    return NULL;
}

/* What the allocator keeps beyond the tensors, which it rounds up as well: all parts together are the device's memory.
 */
static void add_cache(const struct dtp_chart_source *s, size_t at, struct dtp_chart_data *data,
                      struct dtp_chart_row *row)
{
    double tensors = 0;
    for (size_t i = 0; i < data->column_count; i++)
        if (strncmp(data->columns[i], "peak_", strlen("peak_")) == 0)
            tensors += zero_if_none(row->value[i]);
    *cell(data, row, "cache_bytes") = zero_if_none(fmax(0, dtp_chart_value(s, at, "reserved_peak_bytes") - tensors));
}

/* Kernels as they share the device time of forward and backward, and what is left: launch gaps there, the slowest rank
 * in the step. */
static void add_rests(const struct dtp_chart_source *s, size_t at, struct dtp_chart_data *data,
                      struct dtp_chart_row *row)
{
    static const char *const kernels[] = {"matmul_s", "attention_s", "memory_bound_s", "loss_s"};
    static const char *const parts[] = {"optimizer_s", "exposed_communication_s", "exposed_offload_s", "bubble_s"};
    double compute = zero_if_none(dtp_chart_value(s, at, "compute_s")), busy = 0,
           rest = dtp_chart_value(s, at, "step_s") - compute;
    for (size_t i = 0; i < 4; i++)
        busy += zero_if_none(*cell(data, row, kernels[i]));
    for (size_t i = 0; i < 4; i++)
        rest -= zero_if_none(*cell(data, row, parts[i]));
    for (size_t i = 0; i < 4 && busy > compute; i++)
        *cell(data, row, kernels[i]) *= compute / busy;
    *cell(data, row, "launch_gap_s") = fmax(0, compute - busy);
    *cell(data, row, "waiting_s") = fmax(0, zero_if_none(rest));
}

enum dtp_status dtp_chart_read_bars(const struct dtp_chart_source *s, struct dtp_chart_data *data,
                                    struct dtp_faults *faults)
{
    bool memory = data->chart == DTP_CHART_STRATEGIES;
    enum dtp_status status = DTP_OK;
    const char *columns[DTP_CHART_MAX_COLUMNS] = {memory ? "capacity_bytes" : "step_s"}; /* what bars are measured by */
    const struct dtp_chart_part *parts = memory ? dtp_chart_memory_parts : dtp_chart_step_parts;
    size_t count = memory ? DTP_CHART_MEMORY_PARTS : DTP_CHART_STEP_PARTS;
    for (size_t i = 0; i < count; i++)
        columns[i + 1] = parts[i].column;
    dtp_chart_set_columns(data, "plan", columns, count + 1);
    for (size_t i = 0; i < data->column_count && status == DTP_OK; i++)
        if (strcmp(data->columns[i], "cache_bytes") && strcmp(data->columns[i], "launch_gap_s") &&
            strcmp(data->columns[i], "waiting_s"))
            status = dtp_chart_needs_numbers(s, data->chart, &data->columns[i], 1, faults);
    if (status == DTP_OK && s->row_count > DTP_CHART_MAX_BARS)
        status = dtp_chart_too_many(s, "plans", DTP_CHART_MAX_BARS, faults);
    for (size_t i = 0; i < s->row_count && status == DTP_OK; i++) {
        char label[DTP_CHART_LABEL_BYTES];
        dtp_chart_source_words(s, s->rows[i], label, sizeof label);
        struct dtp_chart_row *row = dtp_chart_add_row(data, label[0] ? label : "the plan");
        for (size_t k = 0; k < data->column_count; k++)
            row->value[k] = dtp_chart_value(s, s->rows[i], data->columns[k]);
        memory ? add_cache(s, s->rows[i], data, row) : add_rests(s, s->rows[i], data, row);
    }
    return status;
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

static bool are_equal(const struct dtp_chart_data *data, size_t left, size_t right, size_t count)
{
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < data->column_count; k++)
            if (data->rows[left + i].value[k] != data->rows[right + i].value[k])
                return false;
    return true;
}

static size_t series_end(const struct dtp_chart_data *data, size_t from)
{
    size_t to = from;
    while (to < data->row_count && data->rows[to].series == data->rows[from].series)
        to++;
    return to;
}

/* Lines that lie on each other are one, under both names: else the last hides the others. Rows are sorted by series. */
static void merge_equal_lines(struct dtp_chart_data *data)
{
    for (size_t from = 0; from < data->row_count; from = series_end(data, from))
        for (size_t other = series_end(data, from), end; other < data->row_count; other = end) {
            size_t count = series_end(data, from) - from, used = strlen(data->rows[from].label);
            size_t more = strlen(data->rows[other].label) + strlen(" and ");
            end = series_end(data, other);
            if (end - other != count || used + more >= DTP_CHART_LABEL_BYTES || !are_equal(data, from, other, count))
                continue;
            for (size_t i = from; i < from + count; i++)
                strcat(strcat(data->rows[i].label, " and "), data->rows[other].label);
            memmove(&data->rows[other], &data->rows[end], (data->row_count - end) * sizeof *data->rows);
            data->row_count -= count;
            end = other;
        }
    dtp_chart_number(data);
}

/* One line for each combination of choices but the one on the x axis. Rows without any of the figures are left out. */
static enum dtp_status read_lines(const struct dtp_chart_source *s, struct dtp_chart_data *data, bool only_what_runs,
                                  struct dtp_faults *faults)
{
    enum dtp_status status = dtp_chart_needs_numbers(s, data->chart, data->columns, data->column_count, faults);
    for (size_t i = 0; i < s->row_count && status == DTP_OK; i++) {
        char label[DTP_CHART_LABEL_BYTES];
        if (only_what_runs && dtp_chart_is_oom(s, s->rows[i])) {
            data->out_of_memory++;
            continue;
        }
        dtp_chart_source_words(s, s->rows[i], label, sizeof label);
        struct dtp_chart_row *row = dtp_chart_add_row(data, label[0] ? label : "the plan");
        for (size_t k = 0; k < data->column_count; k++) {
            row->value[k] = dtp_chart_value(s, s->rows[i], data->columns[k]);
            if (!(row->value[k] > 0)) { /* nor would a logarithm have it */
                data->row_count--;
                break;
            }
        }
    }
    if (status == DTP_OK)
        status = dtp_chart_sort_series(s, data, "lines", faults);
    if (status == DTP_OK)
        merge_equal_lines(data);
    return status;
}

enum dtp_status dtp_chart_read_scaling(const struct dtp_chart_source *s, struct dtp_chart_data *data,
                                       struct dtp_faults *faults)
{
    static const char *const columns[] = {"gpus_count", "tokens_per_s", "scaling_efficiency_fraction",
                                          "ideal_tokens_per_s"};
    dtp_chart_set_columns(data, "plan", columns, 3);
    enum dtp_status status = read_lines(s, data, true, faults);
    dtp_chart_set_columns(data, "plan", columns, 4);
    const struct dtp_chart_row *first = data->rows;
    for (size_t i = 0; i < data->row_count && status == DTP_OK; i++) {
        struct dtp_chart_row *row = &data->rows[i];
        if (row->series != first->series)
            first = row;
        row->value[3] = first->value[1] * row->value[0] / first->value[0];
    }
    return status;
}

enum dtp_status dtp_chart_read_micro_batch(const struct dtp_chart_source *s, struct dtp_chart_data *data,
                                           struct dtp_faults *faults)
{
    static const char *const columns[] = {"micro_batch_sequences", "device_peak_bytes", "capacity_bytes"};
    dtp_chart_set_columns(data, "plan", columns, 3);
    return read_lines(s, data, false, faults);
}
