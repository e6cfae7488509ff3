/* dtplan sweep: every combination of the given lists and ranges as a row of one CSV table.
 *
 * Rows are computed on all cores and written in order as they are done, so that memory stays flat and a sweep that was
 * stopped goes on where it stopped. */
#include "cli/command.h"

#include "job/axes.h"
#include "cost/digest.h"
#include "base/append.h"
#include "base/parallel.h"
#include "cli/progress.h"
#include "cli/stop.h"
#include "table/sweep_file.h"

#include <inttypes.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_ROWS 128 /* at most, where nothing is simulated: about ten milliseconds */

/* What a chunk is made with, until it is taken. */
struct worker {
    struct dtp_scenario *scenario;
    struct dtp_report report;
    struct dtp_faults faults;
    FILE *file; /* writes `text`, of one chunk after the other */
    char *text; /* of the chunk at hand */
    size_t bytes;
    uint64_t counts[4]; /* of the chunk: by verdict, and refused */
};

struct sweep {
    const struct dtp_context *context;
    struct dtp_catalog catalog;
    struct dtp_scenario *base;
    struct dtp_axes axes;
    uint64_t rows;
    struct dtp_row_file file;
    struct dtp_progress progress;
    struct worker *workers;
    unsigned threads, worker_count;
    uint64_t counts[4];
};

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* "gpus=8 strategy=ddp": the keys with more than one value. */
static void write_label(const struct dtp_axes *axes, uint64_t row, char *out, size_t bytes)
{
    out[0] = '\0';
    for (size_t i = 0; i < axes->count; i++)
        if (axes->axes[i].count > 1)
            dtp_append_part(out, bytes, " ", "%s=%s", axes->axes[i].key,
                            axes->axes[i].values[dtp_axes_value(axes, i, row)]);
}

static enum dtp_status write_row(const struct sweep *sweep, struct worker *w, uint64_t row, FILE *file)
{
    struct dtp_job job;
    struct dtp_comparison_row values = {.report = &w->report, .scenario = w->scenario};
    char label[1024];
    w->faults.status = DTP_OK; /* not zeroed whole: the texts are 16 KiB */
    w->faults.count = 0;
    enum dtp_status status = dtp_scenario_resolve(w->scenario, &sweep->catalog, &job, &w->faults);
    enum dtp_fidelity fidelity = sweep->context->arguments->simulated ? DTP_FIDELITY_SIMULATED : DTP_FIDELITY_CLOSED;
    if (status == DTP_OK)
        status = dtp_report_predict(&job, &sweep->catalog, fidelity, &w->report, &w->faults);
    if (status == DTP_ENVIRONMENT)
        return status;
    values.refused = status != DTP_OK;
    const char *asked = dtp_scenario_get(w->scenario, "strategy");
    snprintf(values.strategy, sizeof values.strategy, "%s",
             status == DTP_OK ? dtp_strategy_text(job.plan.strategy)
             : asked          ? asked
                              : "");
    if (values.refused)
        snprintf(values.reason, sizeof values.reason, "%s",
                 w->faults.count ? w->faults.text[0] : dtp_status_text(status));
    w->counts[values.refused ? 3 : w->report.prediction.memory.verdict]++;
    write_label(&sweep->axes, row, label, sizeof label);
    dtp_sweep_write_row(&sweep->file, row, label, &values, file);
    return DTP_OK;
}

static enum dtp_status work(void *context, unsigned place, uint64_t first, uint64_t count)
{
    struct sweep *sweep = context;
    struct worker *w = &sweep->workers[place];
    enum dtp_status status = DTP_OK;
    memset(w->counts, 0, sizeof w->counts);
    if (!w->file && !(w->file = open_memstream(&w->text, &w->bytes)))
        return dtp_fault(&w->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    __fsetlocking(w->file, FSETLOCKING_BYCALLER); /* of this thread alone */
    rewind(w->file); /* one for all chunks: buffers that are made and freed for each leave holes in the heap */
    for (uint64_t row = first; row < first + count && status == DTP_OK; row++) {
        status = dtp_axes_apply(&sweep->axes, row, row > first, w->scenario, &w->faults);
        if (status == DTP_OK)
            status = write_row(sweep, w, row, w->file);
    }
    if (fflush(w->file) != 0 && status == DTP_OK)
        status = dtp_fault(&w->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    return status;
}

static enum dtp_status take(void *context, unsigned place, uint64_t first, uint64_t count)
{
    struct sweep *sweep = context;
    struct worker *w = &sweep->workers[place];
    (void)first;
    enum dtp_status status = dtp_row_file_append(&sweep->file, w->text, w->bytes, count, sweep->context->faults);
    for (int i = 0; i < 4 && status == DTP_OK; i++)
        sweep->counts[i] += w->counts[i];
    return status;
}

static bool watch(void *context, uint64_t done, uint64_t count)
{
    struct sweep *sweep = context;
    dtp_progress_draw(&sweep->progress, done, count);
    return !dtp_stop_asked();
}

/* ---- the run ----------------------------------------------------------------------------------------------------- */

static enum dtp_status start_workers(struct sweep *sweep)
{
    enum dtp_status status = DTP_OK;
    sweep->threads = dtp_parallel_threads();
    sweep->worker_count = DTP_PARALLEL_PLACES(sweep->threads);
    sweep->workers = calloc(sweep->worker_count, sizeof *sweep->workers);
    if (!sweep->workers)
        return dtp_fault(sweep->context->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (unsigned i = 0; i < sweep->worker_count && status == DTP_OK; i++)
        status = dtp_scenario_copy(sweep->base, &sweep->workers[i].scenario, sweep->context->faults);
    return status;
}

/* What a thread could not go on for is said once. */
static void end_workers(struct sweep *sweep)
{
    struct dtp_faults *faults = sweep->context->faults;
    for (unsigned i = 0; i < sweep->worker_count && sweep->workers; i++) {
        struct worker *w = &sweep->workers[i];
        if (w->faults.status == DTP_ENVIRONMENT && faults->count == 0)
            dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "%s", w->faults.text[0]);
        dtp_scenario_destroy(w->scenario);
        if (w->file)
            fclose(w->file);
        free(w->text);
    }
    free(sweep->workers);
}

/* Rows of a simulation are handed out one by one. Of others as many as make whole turns of the axes that vary fastest:
 * a thread that estimates neighbours lowers what they share once (job/estimate.h). */
static unsigned chunk_rows(const struct sweep *sweep)
{
    if (sweep->context->arguments->simulated)
        return 1;
    uint64_t turn = 1;
    for (size_t i = sweep->axes.count; i > 0 && turn * sweep->axes.axes[i - 1].count <= CHUNK_ROWS; i--)
        turn *= sweep->axes.axes[i - 1].count;
    return (unsigned)(CHUNK_ROWS / turn * turn);
}

static enum dtp_status run_rows(struct sweep *sweep)
{
    const struct dtp_parallel job = {.first = sweep->file.rows,
                                     .count = sweep->rows,
                                     .chunk_items = chunk_rows(sweep),
                                     .threads = sweep->threads,
                                     .context = sweep,
                                     .work = work,
                                     .take = take,
                                     .watch = watch};
    uint64_t done = 0;
    sweep->progress = dtp_context_progress(sweep->context, "rows", sweep->file.rows);
    enum dtp_status status = dtp_parallel_run(&job, &done, sweep->context->faults);
    dtp_progress_end(&sweep->progress);
    if (status == DTP_NO)
        return dtp_fault(sweep->context->faults, DTP_ENVIRONMENT, NULL, 0,
                         "stopped after %" PRIu64 " of %" PRIu64 " rows%s", done, sweep->rows,
                         sweep->file.plain ? "; the same command goes on from there" : "");
    return status;
}

static enum dtp_status finish(const struct sweep *sweep, uint64_t before)
{
    const struct dtp_context *context = sweep->context;
    const char *path = context->arguments->output;
    uint64_t made = sweep->rows - before;
    char rows[32];
    if (path && made == 0)
        fprintf(context->page.file, "%s was complete: %s row%s\n", path,
                dtp_page_grouped(sweep->rows, rows, sizeof rows), dtp_plural(sweep->rows));
    else if (path)
        fprintf(context->page.file,
                "%s: %s row%s%s; of those computed now: fits %" PRIu64 ", tight %" PRIu64 ", out of memory %" PRIu64
                ", refused %" PRIu64 "\n",
                path, dtp_page_grouped(sweep->rows, rows, sizeof rows), dtp_plural(sweep->rows),
                before ? " (resumed)" : "", sweep->counts[0], sweep->counts[1], sweep->counts[2], sweep->counts[3]);
    return made > 0 && sweep->counts[3] == made && before == 0 ? DTP_NO : DTP_OK;
}

/* ---- the line ---------------------------------------------------------------------------------------------------- */

/* Scenario files hold single values; every flag is a list, perhaps of one. */
static enum dtp_status read_axes(struct sweep *sweep)
{
    const struct dtp_arguments *a = sweep->context->arguments;
    struct dtp_faults *faults = sweep->context->faults;
    enum dtp_status worst = dtp_context_files(sweep->context, &sweep->catalog, &sweep->base);
    if (worst != DTP_ENVIRONMENT)
        worst = dtp_worse(worst, dtp_context_axes(a, &sweep->catalog, "command line", &sweep->axes, faults));
    if (worst == DTP_OK)
        worst = dtp_context_has_model(&sweep->catalog, sweep->base, &sweep->axes, NULL, 0, faults);
    if (worst == DTP_OK)
        worst = dtp_axes_count(&sweep->axes, &sweep->rows, faults);
    if (worst == DTP_OK && sweep->base) /* single values once, for all */
        worst = dtp_axes_apply(&sweep->axes, 0, false, sweep->base, faults);
    return worst;
}

/* What the rows follow from. A key with one value is in the base scenario, in whatever order it was typed. */
static uint64_t digest(const struct sweep *sweep)
{
    size_t count;
    const struct dtp_scenario_key *keys = dtp_scenario_keys(&count);
    uint64_t d = dtp_digest_text(DTP_DIGEST_START, DTPLAN_VERSION);
    d = dtp_digest_text(d, sweep->context->arguments->simulated ? "simulated" : "closed");
    d = dtp_digest_catalog(d, &sweep->catalog);
    for (size_t i = 0; i < count; i++)
        d = dtp_digest_text(d, dtp_scenario_get(sweep->base, keys[i].key));
    for (size_t i = 0; i < sweep->axes.count; i++) {
        if (sweep->axes.axes[i].count == 1)
            continue;
        d = dtp_digest_text(d, sweep->axes.axes[i].key);
        for (size_t k = 0; k < sweep->axes.axes[i].count; k++)
            d = dtp_digest_text(d, sweep->axes.axes[i].values[k]);
    }
    return d;
}

static enum dtp_status run_sweep(struct sweep *sweep)
{
    const struct dtp_context *context = sweep->context;
    struct dtp_faults *faults = context->faults;
    /* from before the first byte is written; of a program that calls us signals are its own */
    if (!context->catalogues)
        dtp_stop_listen(true);
    char *header = dtp_sweep_header();
    const struct dtp_row_file_kind kind = {DTP_SWEEP_SCHEMA, header, digest(sweep), 0, false};
    if (!header)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    enum dtp_status status =
        context->catalogues ? dtp_row_file_to(context->out, &kind, &sweep->file, faults)
                            : dtp_row_file_open(context->arguments->output, &kind, sweep->rows, &sweep->file, faults);
    free(header);
    if (status != DTP_OK)
        return status;
    uint64_t before = sweep->file.rows;
    status = start_workers(sweep);
    if (status == DTP_OK)
        status = run_rows(sweep);
    end_workers(sweep);
    enum dtp_status closed = dtp_row_file_close(&sweep->file, faults);
    status = dtp_worse(status, closed);
    return status == DTP_OK ? finish(sweep, before) : status;
}

enum dtp_status dtp_command_sweep(const struct dtp_context *context)
{
    struct sweep sweep = {.context = context};
    enum dtp_status status = dtp_context_catalog(context, &sweep.catalog);
    if (status != DTP_OK)
        return status;
    status = read_axes(&sweep);
    if (status == DTP_OK)
        status = run_sweep(&sweep);
    dtp_axes_release(&sweep.axes);
    dtp_scenario_destroy(sweep.base);
    dtp_catalog_destroy(&sweep.catalog);
    return status;
}
