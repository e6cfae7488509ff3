#include "runs/backtest.h"

#include "runs/backtest_statistics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- one row --------------------------------------------------------------------------------------------------- */

double dtp_backtest_predicted_memory(const struct dtp_prediction *prediction, enum dtp_run_memory kind)
{
    const struct dtp_memory *memory = &prediction->memory;
    switch (kind) {
    case DTP_RUN_ALLOCATED: return (double)memory->allocated_peak_bytes;
    case DTP_RUN_RESERVED: return (double)memory->reserved_peak_bytes;
    case DTP_RUN_NVIDIA_SMI: /* the driver's figure under another name */
    case DTP_RUN_DEVICE: return (double)memory->device_peak_bytes;
    case DTP_RUN_AFTER_INIT: return (double)memory->after_init_bytes;
    case DTP_RUN_MEMORY_COUNT: break;
    }
    return NAN;
}

enum dtp_status dtp_backtest_predict(const struct dtp_run *run, const struct dtp_predictor *predictor,
                                     const struct dtp_catalog *catalog, struct dtp_backtest_forecast *out,
                                     struct dtp_faults *faults)
{
    struct dtp_job job;
    struct dtp_run read = *run;
    read.model_parallel = predictor->model_parallel;
    read.machine = predictor->machine;
    enum dtp_status status = dtp_run_job(&read, catalog, &job, faults);
    if (status)
        return status;
    const struct dtp_gpu *gpu = &job.cluster.gpu;
    memcpy(out->gpu_key, gpu->key, sizeof out->gpu_key);
    out->by_machine_file = job.cluster.measured != NULL;
    out->matmul_dtype = job.plan.precision.compute;
    out->peak_flops_per_s = gpu->peak_flops_per_s[out->matmul_dtype];
    /* The model FLOPs count causal attention half; what they are beyond the matmuls' is that half. */
    double model_flops = dtp_transformer_model_flops_per_token(&job.transformer, job.plan.sequence);
    double matmul_flops = 6 * (double)dtp_transformer_count(&job.transformer).matmul;
    out->full_attention_flops_per_token = 2 * model_flops - matmul_flops;
    out->step_tokens_per_gpu =
        (double)dtp_job_batch_sequences(&job) * (double)job.plan.sequence / (double)job.cluster.gpus;
    return predictor->predict(predictor->context, &job, &out->prediction, faults);
}

/* Signed error in percent, NaN where nothing was measured. */
static double error_pct(double predicted, double measured)
{
    return measured > 0 ? 100 * (predicted / measured - 1) : (double)NAN;
}

static void refuse(struct dtp_backtest_row *row, const struct dtp_faults *faults)
{
    size_t used = 0, kept = faults->count < DTP_FAULTS_KEPT ? faults->count : DTP_FAULTS_KEPT;
    row->verdict = DTP_BACKTEST_REFUSED;
    snprintf(row->first_reason, sizeof row->first_reason, "%.199s", kept ? faults->text[0] : "refused");
    for (size_t i = 0; i < kept && used < sizeof row->reason; i++)
        used += (size_t)snprintf(row->reason + used, sizeof row->reason - used, "%s%s", i ? "; " : "", faults->text[i]);
}

static void compare(struct dtp_backtest_row *row, struct dtp_faults *faults)
{
    const struct dtp_backtest_forecast *forecast = &row->forecast;
    const struct dtp_run_measured *measured = &row->measured;
    row->measured_tokens_per_s_per_gpu = measured->tokens_per_s_per_gpu;
    if (measured->tokens_per_s_per_gpu <= 0 && measured->step_s > 0)
        row->measured_tokens_per_s_per_gpu = forecast->step_tokens_per_gpu / measured->step_s;
    row->error_pct =
        error_pct(forecast->prediction.throughput.tokens_per_s_per_gpu, row->measured_tokens_per_s_per_gpu);
    bool any = !isnan(row->error_pct);
    for (int kind = 0; kind < DTP_RUN_MEMORY_COUNT; kind++) {
        row->memory_error_pct[kind] =
            error_pct(dtp_backtest_predicted_memory(&forecast->prediction, (enum dtp_run_memory)kind),
                      measured->memory_bytes[kind]);
        any = any || !isnan(row->memory_error_pct[kind]);
    }
    if (!any && measured->end == DTP_RUN_RAN)
        dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                  "nothing measured: no tokens/s, step time or memory, and no status that says why");
}

static void forget_errors(struct dtp_backtest_row *row)
{
    row->error_pct = row->baseline_error_pct = NAN;
    for (int kind = 0; kind < DTP_RUN_MEMORY_COUNT; kind++)
        row->memory_error_pct[kind] = NAN;
}

static void score_row(struct dtp_backtest_row *row, size_t table_row, const struct dtp_table *table,
                      const struct dtp_run_columns *columns, const struct dtp_predictor *predictor,
                      const struct dtp_catalog *catalog)
{
    struct dtp_faults faults = {0};
    forget_errors(row);
    if (dtp_run_read(table, table_row, columns, &row->run, &faults) == DTP_OK)
        row->predicted = dtp_backtest_predict(&row->run, predictor, catalog, &row->forecast, &faults) == DTP_OK;
    if (dtp_run_read_measured(table, table_row, columns, &row->measured, &faults) == DTP_OK && row->predicted)
        compare(row, &faults);
    if (faults.count) {
        forget_errors(row);
        refuse(row, &faults);
    }
}

/* ---- all rows -------------------------------------------------------------------------------------------------- */

static bool wanted(const struct dtp_table *table, size_t row, const struct dtp_run_columns *columns, const char *only)
{
    if (!only)
        return true;
    size_t length = strlen(only);
    return strncmp(dtp_table_text(table, row, columns->text[DTP_RUN_TEXT_id]), only, length) == 0 ||
           strncmp(dtp_table_text(table, row, columns->text[DTP_RUN_TEXT_source]), only, length) == 0;
}

/* A second row of one id could not be told from the first in the rows written: it is refused. */
static enum dtp_status refuse_duplicates(struct dtp_backtest *backtest, struct dtp_faults *faults)
{
    struct dtp_name_index *ids = dtp_name_index_create(backtest->row_count);
    if (!ids)
        return dtp_fault(faults, DTP_ENVIRONMENT, dtp_table_name(backtest->table), 0, "out of memory");
    for (size_t i = 0; i < backtest->row_count; i++) {
        struct dtp_backtest_row *row = &backtest->rows[i];
        struct dtp_faults reason = {0};
        size_t first = dtp_name_index_add(ids, row->run.id, i);
        if (!*row->run.id)
            dtp_fault(&reason, DTP_BAD_INPUT, NULL, 0, "id is empty");
        else if (first != i)
            dtp_fault(&reason, DTP_BAD_INPUT, NULL, 0, "id is that of an earlier row (line %zu)",
                      backtest->rows[first].run.line);
        if (reason.count) {
            forget_errors(row);
            refuse(row, &reason);
        }
    }
    dtp_name_index_destroy(ids);
    return DTP_OK;
}

/* Ids and sources name rows and groups in all reports, which repeat status too: a table where they move the cursor, or
 * are no text in JSON, is refused whole, with all such lines. */
static enum dtp_status check_names(const struct dtp_table *table, const struct dtp_run_columns *columns,
                                   struct dtp_faults *faults)
{
    const struct {
        const char *name;
        long column;
    } named[] = {{"id", columns->text[DTP_RUN_TEXT_id]},
                 {"source", columns->text[DTP_RUN_TEXT_source]},
                 {"status", columns->status}};
    enum dtp_status status = DTP_OK;
    for (size_t row = 0; row < dtp_table_row_count(table); row++)
        for (size_t i = 0; i < sizeof named / sizeof *named; i++) {
            const char *text = dtp_table_text(table, row, named[i].column);
            size_t printable = dtp_printable_length(text);
            if (text[printable])
                status = dtp_fault(faults, DTP_BAD_INPUT, dtp_table_name(table), dtp_table_line(table, row),
                                   "byte %zu of %s is a control character or not UTF-8", printable + 1, named[i].name);
        }
    return status;
}

static enum dtp_status score_all(struct dtp_backtest *backtest, const char *only, const struct dtp_predictor *predictor,
                                 const struct dtp_catalog *catalog, struct dtp_faults *faults)
{
    const struct dtp_table *table = backtest->table;
    const char *name = dtp_table_name(table);
    struct dtp_run_columns columns;
    enum dtp_status status = dtp_run_columns_find(table, &columns, faults);
    if (status)
        return status;
    status = check_names(table, &columns, faults);
    if (status)
        return status;
    size_t count = dtp_table_row_count(table);
    if (!count)
        return dtp_fault(faults, DTP_BAD_INPUT, name, 0, "no rows; a run table has one for each measured run");
    backtest->rows = calloc(count, sizeof *backtest->rows);
    if (!backtest->rows)
        return dtp_fault(faults, DTP_ENVIRONMENT, name, 0, "out of memory for %zu rows", count);
    for (size_t i = 0; i < count; i++)
        if (wanted(table, i, &columns, only))
            score_row(&backtest->rows[backtest->row_count++], i, table, &columns, predictor, catalog);
    if (!backtest->row_count)
        return dtp_fault(faults, DTP_BAD_INPUT, name, 0, "no row's id or source starts with '%.100s'", only);
    status = refuse_duplicates(backtest, faults);
    for (size_t i = 0; i < backtest->row_count; i++) {
        const struct dtp_backtest_row *row = &backtest->rows[i];
        *(row->verdict == DTP_BACKTEST_OK ? &backtest->scored : &backtest->refused) += 1;
        if (row->verdict != DTP_BACKTEST_OK)
            continue;
        backtest->fit_count[row->measured.end][row->forecast.prediction.memory.verdict]++;
        backtest->by_machine += row->forecast.by_machine_file;
    }
    if (status == DTP_OK && predictor->machine && backtest->by_machine == 0)
        return dtp_fault(
            faults, DTP_BAD_INPUT, predictor->machine, 0,
            "no run of %s that can be scored was on its GPU, in nodes as large as its machine's; leave it out", name);
    return status;
}

enum dtp_status dtp_backtest_run_only(const char *path, const char *only, const struct dtp_predictor *predictor,
                                      const struct dtp_catalog *catalog, struct dtp_backtest **out,
                                      struct dtp_faults *faults)
{
    *out = NULL;
    struct dtp_backtest *backtest = calloc(1, sizeof *backtest);
    if (!backtest)
        return dtp_fault(faults, DTP_ENVIRONMENT, path, 0, "out of memory");
    backtest->fidelity = predictor->name;
    backtest->machine = predictor->machine;
    enum dtp_status status = dtp_table_read(path, &backtest->table, faults);
    if (status == DTP_OK)
        status = score_all(backtest, only, predictor, catalog, faults);
    if (status == DTP_OK)
        status = dtp_backtest_fit_baseline(backtest, faults);
    if (status == DTP_OK)
        status = dtp_backtest_summarise(backtest, faults);
    if (status) {
        dtp_backtest_destroy(backtest);
        return status;
    }
    *out = backtest;
    return DTP_OK;
}

enum dtp_status dtp_backtest_run(const char *path, const struct dtp_catalog *catalog, struct dtp_backtest **out,
                                 struct dtp_faults *faults)
{
    struct dtp_predictor formulas = dtp_predictor_closed();
    return dtp_backtest_run_only(path, NULL, &formulas, catalog, out, faults);
}

void dtp_backtest_destroy(struct dtp_backtest *backtest)
{
    if (!backtest)
        return;
    free(backtest->rows);
    free(backtest->sources);
    free(backtest->dtypes);
    free(backtest->refusals);
    dtp_table_destroy(backtest->table);
    free(backtest);
}
