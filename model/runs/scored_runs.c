#include "runs/scored_runs.h"

#include "base/parallel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static size_t find_source(struct dtp_scored_runs *out, const char *name)
{
    size_t i = 0;
    while (i < out->source_count && strcmp(out->sources[i].name, name) != 0)
        i++;
    if (i == out->source_count)
        snprintf(out->sources[out->source_count++].name, sizeof out->sources[0].name, "%s", name);
    return i;
}

static bool make_room(struct dtp_scored_runs *out, const struct dtp_backtest *backtest)
{
    struct dtp_scored_run *runs = realloc(out->runs, (out->count + backtest->scored + 1) * sizeof *runs);
    out->runs = runs ? runs : out->runs;
    struct dtp_run_source_name *sources =
        realloc(out->sources, (out->source_count + backtest->source_count + 1) * sizeof *sources);
    out->sources = sources ? sources : out->sources;
    return runs && sources;
}

static enum dtp_status take(struct dtp_scored_runs *out, const struct dtp_backtest *backtest,
                            const struct dtp_catalog *catalog, struct dtp_faults *faults)
{
    enum dtp_status status = DTP_OK;
    for (size_t i = 0; i < backtest->row_count && status == DTP_OK; i++) {
        const struct dtp_backtest_row *row = &backtest->rows[i];
        if (row->verdict != DTP_BACKTEST_OK || row->measured.end != DTP_RUN_RAN || !dtp_run_is_data_parallel(&row->run))
            continue;
        struct dtp_scored_run *run = &out->runs[out->count++];
        *run = (struct dtp_scored_run){.source = find_source(out, backtest->sources[row->source_group].name),
                                       .measured_tokens_per_s_per_gpu = row->measured_tokens_per_s_per_gpu,
                                       .shipped = row->forecast.prediction};
        memcpy(run->measured_bytes, row->measured.memory_bytes, sizeof run->measured_bytes);
        status = dtp_run_job(&row->run, catalog, &run->job, faults);
    }
    return status;
}

enum dtp_status dtp_scored_runs_read(const char *const *paths, size_t path_count, const struct dtp_predictor *predictor,
                                     const struct dtp_catalog *catalog, struct dtp_scored_runs *out,
                                     struct dtp_faults *faults)
{
    enum dtp_status status = DTP_OK;
    *out = (struct dtp_scored_runs){.count = 0};
    for (size_t i = 0; i < path_count && status == DTP_OK; i++) {
        struct dtp_backtest *backtest;
        status = dtp_backtest_run_only(paths[i], NULL, predictor, catalog, &backtest, faults);
        if (status == DTP_OK && !make_room(out, backtest))
            status = dtp_fault(faults, DTP_ENVIRONMENT, paths[i], 0, "out of memory");
        if (status == DTP_OK)
            status = take(out, backtest, catalog, faults);
        dtp_backtest_destroy(backtest);
    }
    return status;
}

void dtp_scored_runs_destroy(struct dtp_scored_runs *runs)
{
    free(runs->runs);
    free(runs->sources);
    *runs = (struct dtp_scored_runs){.count = 0};
}

/* ---- predicting -------------------------------------------------------------------------------------------------- */

static enum dtp_status prepare_some(void *context, unsigned thread, uint64_t first, uint64_t count)
{
    struct dtp_scored_runs *runs = context;
    (void)thread;
    for (uint64_t i = first; i < first + count; i++) {
        struct dtp_scored_run *run = &runs->runs[i];
        const struct dtp_job *job = &run->job;
        enum dtp_status status = dtp_estimate_base_of(&job->transformer, &job->cluster, &job->plan, &run->base, NULL);
        if (status != DTP_OK)
            return status;
        run->prepared = true;
    }
    return DTP_OK;
}

enum dtp_status dtp_scored_runs_prepare(struct dtp_scored_runs *runs, const struct dtp_predictor *predictor,
                                        struct dtp_faults *faults)
{
    struct dtp_parallel job = {.count = runs->count, .chunk_items = 8, .context = runs, .work = prepare_some};
    if (!predictor->predict_from || runs->count == 0)
        return DTP_OK;
    enum dtp_status status = dtp_parallel_run(&job, NULL, faults);
    return status == DTP_ENVIRONMENT && faults && !faults->count
               ? dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory")
               : status;
}

enum dtp_status dtp_scored_run_predict(const struct dtp_scored_run *run, const struct dtp_predictor *predictor,
                                       struct dtp_prediction *out, struct dtp_faults *faults)
{
    if (!run->prepared || !predictor->predict_from)
        return predictor->predict(predictor->context, &run->job, out, faults);
    enum dtp_status status = predictor->predict_from(&run->base, &run->job, out);
    return status == DTP_OK ? DTP_OK : dtp_fault(faults, status, NULL, 0, "no memory for the passes of a pipeline");
}

struct pass {
    const struct dtp_scored_runs *runs;
    const size_t *which;
    const struct dtp_predictor *predictor;
    const struct dtp_watch *watch;
    size_t done_before, all;
    struct dtp_prediction *out;
};

static enum dtp_status predict_some(void *context, unsigned thread, uint64_t first, uint64_t count)
{
    const struct pass *pass = context;
    (void)thread;
    for (uint64_t i = first; i < first + count; i++) {
        struct dtp_faults refusal = {0};
        const struct dtp_scored_run *run = &pass->runs->runs[pass->which ? pass->which[i] : i];
        enum dtp_status status = dtp_scored_run_predict(run, pass->predictor, &pass->out[i], &refusal);
        if (status == DTP_ENVIRONMENT)
            return status;
        if (status != DTP_OK)
            pass->out[i] = (struct dtp_prediction){.time.step_s = NAN, .throughput.tokens_per_s_per_gpu = NAN};
    }
    return DTP_OK;
}

static bool tell(void *context, uint64_t done, uint64_t count)
{
    const struct pass *pass = context;
    (void)count;
    return pass->watch->told(pass->watch->context, pass->done_before + (size_t)done, pass->all);
}

enum dtp_status dtp_scored_runs_predict(const struct dtp_scored_runs *runs, const size_t *which, size_t count,
                                        const struct dtp_predictor *predictor, const struct dtp_watch *watch,
                                        size_t done_before, size_t all, struct dtp_prediction *out,
                                        struct dtp_faults *faults)
{
    struct pass pass = {runs, which, predictor, watch, done_before, all, out};
    struct dtp_parallel job = {.count = count,
                               .chunk_items = 8,
                               .context = &pass,
                               .work = predict_some,
                               .watch = watch && watch->told ? tell : NULL};
    if (count == 0)
        return DTP_OK;
    enum dtp_status status = dtp_parallel_run(&job, NULL, faults);
    if (status == DTP_ENVIRONMENT && faults && !faults->count)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory while runs are predicted");
    return status;
}
