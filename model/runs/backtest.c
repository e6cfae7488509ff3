#include "runs/backtest.h"

#include "base/append.h"
#include "base/parallel.h"
#include "runs/backtest_statistics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- one row --------------------------------------------------------------------------------------------------- */

double dtp_backtest_predicted_memory(const struct dtp_prediction *prediction, enum dtp_run_memory kind)
{
    const struct dtp_memory *memory = &prediction->memory;
    switch (kind) {
    case DTP_RUN_UNSTATED: /* what frameworks log most */
    case DTP_RUN_ALLOCATED: return (double)memory->allocated_peak_bytes;
    case DTP_RUN_RESERVED: return (double)memory->reserved_peak_bytes;
    case DTP_RUN_UNLOGGED:   /* read off nvidia-smi, for nothing else prints it */
    case DTP_RUN_NVIDIA_SMI: /* the driver's figure under another name */
    case DTP_RUN_DEVICE: return (double)memory->device_peak_bytes;
    case DTP_RUN_AFTER_INIT: return (double)memory->after_init_bytes;
    case DTP_RUN_STAGES: /* which stage, measurements say */
    case DTP_RUN_MEMORY_COUNT: break;
    }
    return NAN;
}

/* From configuration to forecast. The only way into the predictor, and no measured value fits through it. */
static enum dtp_status forecast_of(const struct dtp_run *run, const struct dtp_predictor *predictor,
                                   const struct dtp_catalog *catalog, struct dtp_backtest_forecast *out, bool *unstated,
                                   struct dtp_faults *faults)
{
    struct dtp_job job;
    struct dtp_run read = *run;
    read.machine = predictor->machine, read.unstated = unstated;
    enum dtp_status status = dtp_run_job(&read, catalog, &job, faults);
    if (status)
        return status;
    const struct dtp_gpu *gpu = &job.cluster.gpu;
    memcpy(out->gpu_key, gpu->key, sizeof out->gpu_key);
    out->by_machine_file = job.cluster.measured != NULL;
    out->nodes = job.cluster.nodes;
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
    size_t kept = faults->count < DTP_FAULTS_KEPT ? faults->count : DTP_FAULTS_KEPT;
    row->verdict = DTP_BACKTEST_REFUSED;
    snprintf(row->first_reason, sizeof row->first_reason, "%.199s", kept ? faults->text[0] : "refused");
    row->reason[0] = '\0';
    for (size_t i = 0; i < kept; i++)
        dtp_append_part(row->reason, sizeof row->reason, "; ", "%s", faults->text[i]);
}

static void compare_rank(struct dtp_backtest_row *row, double predicted, double measured)
{
    double error = predicted > 0 ? error_pct(predicted, measured) : (double)NAN;
    if (isnan(error) || fabs(error) <= fabs(row->memory_error_pct[DTP_RUN_STAGES]))
        return;
    row->memory_error_pct[DTP_RUN_STAGES] = error;
    row->measured.memory_bytes[DTP_RUN_STAGES] = measured;
}

/* The rank whose memory is furthest off, of the stages that are predicted and measured: of a stage, which has one
 * prediction, the rank with most or with least. */
static void compare_stages(struct dtp_backtest_row *row)
{
    for (int i = 0; i < DTP_PREDICTED_STAGES; i++) {
        double predicted = (double)row->forecast.prediction.stage_allocated_bytes[i];
        compare_rank(row, predicted, row->measured.stage_bytes[i]);
        compare_rank(row, predicted, row->measured.least_stage_bytes[i]);
    }
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
    compare_stages(row);
    any = any || !isnan(row->memory_error_pct[DTP_RUN_STAGES]);
    bool stages = false;
    for (int i = 0; i < DTP_PREDICTED_STAGES; i++)
        stages = stages || measured->stage_bytes[i] > 0;
    if (!any && stages)
        dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                  "memory of stages alone was measured, and stages are predicted by simulation only; use --fidelity "
                  "simulated");
    else if (!any && measured->end == DTP_RUN_RAN)
        dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                  "nothing measured: no tokens/s, step time or memory, and no status that says why");
}

static void forget_errors(struct dtp_backtest_row *row)
{
    row->error_pct = row->baseline_error_pct = row->unseen_baseline_error_pct = NAN;
    row->predicted_rank = row->measured_rank = NAN;
    row->decision = SIZE_MAX;
    for (int kind = 0; kind < DTP_RUN_MEMORY_COUNT; kind++)
        row->memory_error_pct[kind] = NAN;
}

/* A row that is to be scored. */
struct place {
    const struct dtp_table *table;
    const struct dtp_run_columns *columns;
    size_t row;
};

static void score_row(struct dtp_backtest_row *row, const struct place *place, const struct dtp_predictor *predictor,
                      const struct dtp_catalog *catalog)
{
    struct dtp_faults faults = {0};
    row->table = place->table;
    forget_errors(row);
    if (dtp_run_read(place->table, place->row, place->columns, &row->run, &faults) == DTP_OK)
        row->predicted = forecast_of(&row->run, predictor, catalog, &row->forecast, &row->unstated, &faults) == DTP_OK;
    if (dtp_run_read_measured(place->table, place->row, place->columns, &row->measured, &faults) == DTP_OK &&
        row->predicted)
        compare(row, &faults);
    if (faults.count) {
        forget_errors(row);
        refuse(row, &faults);
    }
}

/* ---- which rows ------------------------------------------------------------------------------------------------ */

static bool wanted(const struct dtp_backtest_request *request, const struct dtp_table *table, size_t row,
                   const struct dtp_run_columns *columns)
{
    const char *only = request->only;
    if (request->noted && !strstr(dtp_table_text(table, row, columns->text[DTP_RUN_TEXT_notes]), request->noted))
        return false;
    size_t length = only ? strlen(only) : 0;
    return !only || strncmp(dtp_table_text(table, row, columns->text[DTP_RUN_TEXT_id]), only, length) == 0 ||
           strncmp(dtp_table_text(table, row, columns->text[DTP_RUN_TEXT_source]), only, length) == 0;
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
                 {"model_name", columns->text[DTP_RUN_TEXT_model_name]},
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

/* What a backtest is made of until its rows are scored. */
struct scoring {
    const struct dtp_backtest_request *request;
    const struct dtp_catalog *catalog;
    struct dtp_backtest *backtest;
    struct dtp_run_columns *columns; /* of each table */
    struct place *places;            /* of each row */
};

static enum dtp_status no_memory(const struct scoring *s, struct dtp_faults *faults)
{
    return dtp_fault(faults, DTP_ENVIRONMENT, s->request->paths[0], 0, "out of memory");
}

static enum dtp_status open_table(struct scoring *s, const char *path, struct dtp_faults *faults)
{
    struct dtp_backtest *backtest = s->backtest;
    struct dtp_run_columns *columns = &s->columns[backtest->table_count];
    struct dtp_table **table = &backtest->tables[backtest->table_count];
    enum dtp_status status = dtp_table_read(path, table, faults);
    if (status != DTP_OK)
        return status;
    backtest->table_count++;
    status = dtp_run_columns_find(*table, columns, faults);
    if (status == DTP_OK)
        status = check_names(*table, columns, faults);
    if (status == DTP_OK && dtp_table_row_count(*table) == 0)
        status = dtp_fault(faults, DTP_BAD_INPUT, path, 0, "no rows; a run table has one for each measured run");
    return status;
}

static enum dtp_status choose_rows(struct scoring *s, struct dtp_faults *faults)
{
    struct dtp_backtest *backtest = s->backtest;
    const struct dtp_backtest_request *request = s->request;
    size_t all = 0;
    for (size_t t = 0; t < backtest->table_count; t++)
        all += dtp_table_row_count(backtest->tables[t]);
    backtest->rows = calloc(all, sizeof *backtest->rows);
    s->places = calloc(all, sizeof *s->places);
    if (!backtest->rows || !s->places)
        return no_memory(s, faults);
    for (size_t t = 0; t < backtest->table_count; t++)
        for (size_t row = 0; row < dtp_table_row_count(backtest->tables[t]); row++)
            if (wanted(request, backtest->tables[t], row, &s->columns[t]))
                s->places[backtest->row_count++] = (struct place){backtest->tables[t], &s->columns[t], row};
    if (backtest->row_count)
        return DTP_OK;
    bool both = request->only && request->noted;
    return dtp_fault(faults, DTP_BAD_INPUT, request->paths[0], 0, "no row's %s%.100s%s%s%.100s%s",
                     request->only ? "id or source starts with '" : "", request->only ? request->only : "",
                     request->only ? "'" : "",
                     both             ? ", and its notes hold '"
                     : request->noted ? "notes hold '"
                                      : "",
                     request->noted ? request->noted : "", request->noted ? "'" : "");
}

/* ---- all rows -------------------------------------------------------------------------------------------------- */

static enum dtp_status score_some(void *context, unsigned thread, uint64_t first, uint64_t count)
{
    const struct scoring *s = context;
    (void)thread;
    for (uint64_t i = first; i < first + count; i++)
        score_row(&s->backtest->rows[i], &s->places[i], s->request->predictor, s->catalog);
    return DTP_OK;
}

static bool tell(void *context, uint64_t done, uint64_t count)
{
    const struct dtp_watch *watch = ((const struct scoring *)context)->request->watch;
    return watch->told(watch->context, (size_t)done, (size_t)count);
}

static enum dtp_status score_rows(struct scoring *s, struct dtp_faults *faults)
{
    const struct dtp_watch *watch = s->request->watch;
    struct dtp_parallel job = {.count = s->backtest->row_count,
                               .chunk_items = 1, /* a pipeline takes a second, other runs microseconds */
                               .context = s,
                               .work = score_some,
                               .watch = watch && watch->told ? tell : NULL};
    return dtp_parallel_run(&job, NULL, faults);
}

/* A second row of one id could not be told from the first in the rows written: it is refused. */
static enum dtp_status refuse_duplicates(struct dtp_backtest *backtest, struct dtp_faults *faults)
{
    struct dtp_name_index *ids = dtp_name_index_create(backtest->row_count);
    if (!ids)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (size_t i = 0; i < backtest->row_count; i++) {
        struct dtp_backtest_row *row = &backtest->rows[i];
        struct dtp_faults reason = {0};
        const struct dtp_backtest_row *first = &backtest->rows[dtp_name_index_add(ids, row->run.id, i)];
        if (!*row->run.id)
            dtp_fault(&reason, DTP_BAD_INPUT, NULL, 0, "id is empty");
        else if (first != row && first->table != row->table)
            dtp_fault(&reason, DTP_BAD_INPUT, NULL, 0, "id is that of a row of %.100s (line %zu)",
                      dtp_table_name(first->table), first->run.line);
        else if (first != row)
            dtp_fault(&reason, DTP_BAD_INPUT, NULL, 0, "id is that of an earlier row (line %zu)", first->run.line);
        if (reason.count) {
            forget_errors(row);
            refuse(row, &reason);
        }
    }
    dtp_name_index_destroy(ids);
    return DTP_OK;
}

static enum dtp_status count_rows(struct dtp_backtest *backtest, struct dtp_faults *faults)
{
    for (size_t i = 0; i < backtest->row_count; i++) {
        const struct dtp_backtest_row *row = &backtest->rows[i];
        *(row->verdict == DTP_BACKTEST_OK ? &backtest->scored : &backtest->refused) += 1;
        backtest->unstated += row->verdict == DTP_BACKTEST_REFUSED && row->unstated;
        if (row->verdict != DTP_BACKTEST_OK)
            continue;
        backtest->fit_count[row->measured.end][row->forecast.prediction.memory.verdict]++;
        backtest->by_machine += row->forecast.by_machine_file;
    }
    if (!backtest->machine || backtest->by_machine)
        return DTP_OK;
    return dtp_fault(faults, DTP_BAD_INPUT, backtest->machine, 0,
                     "no run of %s that can be scored was on its GPU, in nodes as large as its machine's; leave it out",
                     dtp_table_name(backtest->tables[0]));
}

static enum dtp_status make_backtest(struct scoring *s, struct dtp_faults *faults)
{
    size_t count = s->request->path_count;
    s->backtest->tables = calloc(count, sizeof(struct dtp_table *));
    s->columns = calloc(count, sizeof *s->columns);
    enum dtp_status status = s->backtest->tables && s->columns ? DTP_OK : no_memory(s, faults);
    for (size_t i = 0; i < count && status == DTP_OK; i++)
        status = open_table(s, s->request->paths[i], faults);
    if (status == DTP_OK)
        status = choose_rows(s, faults);
    if (status == DTP_OK)
        status = score_rows(s, faults);
    if (status == DTP_OK)
        status = refuse_duplicates(s->backtest, faults);
    if (status == DTP_OK)
        status = count_rows(s->backtest, faults);
    if (status == DTP_OK)
        status = dtp_backtest_summarise(s->backtest, faults);
    if (status == DTP_OK)
        status = dtp_backtest_judge(s->backtest, faults);
    return status;
}

enum dtp_status dtp_backtest_score(const struct dtp_backtest_request *request, const struct dtp_catalog *catalog,
                                   struct dtp_backtest **out, struct dtp_faults *faults)
{
    *out = NULL;
    struct scoring s = {.request = request, .catalog = catalog, .backtest = calloc(1, sizeof *s.backtest)};
    if (!s.backtest)
        return no_memory(&s, faults);
    s.backtest->fidelity = request->predictor->name;
    s.backtest->machine = request->predictor->machine;
    enum dtp_status status = make_backtest(&s, faults);
    free(s.columns);
    free(s.places);
    if (status == DTP_OK)
        *out = s.backtest;
    else
        dtp_backtest_destroy(s.backtest);
    return status;
}

enum dtp_status dtp_backtest_run_only(const char *path, const char *only, const struct dtp_predictor *predictor,
                                      const struct dtp_catalog *catalog, struct dtp_backtest **out,
                                      struct dtp_faults *faults)
{
    const struct dtp_backtest_request request = {.paths = &path, .path_count = 1, .only = only, .predictor = predictor};
    return dtp_backtest_score(&request, catalog, out, faults);
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
    for (size_t i = 0; i < backtest->table_count; i++)
        dtp_table_destroy(backtest->tables[i]);
    free(backtest->tables);
    free(backtest->rows);
    free(backtest->sources);
    free(backtest->dtypes);
    free(backtest->decisions);
    free(backtest->refusals);
    free(backtest);
}
