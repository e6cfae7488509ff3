#include "cli/compare_refit.h"

#include "cli/machine_rows.h"
#include "sim/beside/trace_refit.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const struct dtp_observed *trace_of(const struct dtp_compared *b)
{
    for (size_t i = 0; i < b->count; i++)
        if (b->observed[i].what == DTP_OBSERVED_TIME)
            return &b->observed[i];
    return NULL;
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

#define ABOUTS 9

/* What the file is about, then what was fitted; released by the caller. */
static enum dtp_status whole_file(const struct dtp_job *job, const struct dtp_observed *trace,
                                  const struct dtp_measured_rows *fitted, struct dtp_measured_rows *out,
                                  struct dtp_faults *faults)
{
    char gpus[16], per_node[16], date[32];
    time_t now = time(NULL);
    struct tm utc;
    gmtime_r(&now, &utc);
    strftime(date, sizeof date, "%Y-%m-%d", &utc);
    snprintf(gpus, sizeof gpus, "%" PRIu32, job->cluster.gpus);
    snprintf(per_node, sizeof per_node, "%" PRIu32, job->cluster.gpus_per_node);
    const char *abouts[ABOUTS][2] = {{"gpu_key", job->cluster.gpu.key},
                                     {"machine_key", job->cluster.machine.key},
                                     {"gpus", gpus},
                                     {"gpus_per_node", per_node},
                                     {"date", date},
                                     {"dtplan", DTPLAN_VERSION},
                                     {"device", "cuda"},
                                     {"runtime", job->plan.runtime->name},
                                     {"kernels_of", trace->path}};
    *out = (struct dtp_measured_rows){.row = malloc((fitted->count + ABOUTS) * sizeof *out->row),
                                      .line = calloc(fitted->count + ABOUTS, sizeof *out->line)};
    if (!out->row || !out->line)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (int i = 0; i < ABOUTS; i++) {
        struct dtp_measured_row *row = &out->row[out->count++];
        *row = dtp_measured_row_of(DTP_MEASUREMENT_ABOUT, abouts[i][0]);
        snprintf(row->text, sizeof row->text, "%s", abouts[i][1]);
    }
    memcpy(&out->row[out->count], fitted->row, fitted->count * sizeof *fitted->row);
    out->count += fitted->count;
    return DTP_OK;
}

/* ---- what is said ------------------------------------------------------------------------------------------------ */

static void say(const struct dtp_trace_refit *refit, const struct dtp_observed *trace, double step_s, const char *path,
                const struct dtp_page *page)
{
    dtp_page_print(page, DTP_INK_BOLD, "\nREFIT");
    dtp_page_print(page, DTP_INK_PLAIN, "  %s, what the plan does as long as the trace has it\n", path);
    for (int part = 0; part < DTP_TRACE_PART_COUNT; part++) {
        const struct dtp_trace_fit *fit = &refit->part[part];
        const char *words = dtp_trace_part_words((enum dtp_trace_part)part);
        if (!(fit->predicted_s > 0))
            continue;
        if (fit->rows > 0)
            dtp_page_print(page, DTP_INK_PLAIN, "  %-28s x %.3f  (%.2f ms, predicted alone %.2f)\n", words,
                           fit->measured_s / fit->predicted_s, 1e3 * fit->measured_s, 1e3 * fit->predicted_s);
        else
            dtp_page_print(page, DTP_INK_PLAIN, "  %-28s %s\n", words,
                           fit->measured_s > 0 ? "left as it was: a machine file has no rows of this kernel"
                                               : "left as it was: the trace has none");
    }
    dtp_page_print(page, DTP_INK_PLAIN,
                   "  The step by this file: %.2f ms, in the trace %.2f. Use it: dtplan --machine %s\n", 1e3 * step_s,
                   1e3 * trace->time.step_s, path);
}

enum dtp_status dtp_compare_refit(const struct dtp_context *context, const struct dtp_compared *beside,
                                  const struct dtp_simulated *simulated)
{
    const char *path = context->arguments->output;
    const struct dtp_observed *trace = trace_of(beside);
    struct dtp_trace_refit refit;
    struct dtp_measured_rows rows = {.count = 0};
    double step_s = 0;
    if (!trace)
        return dtp_fault(context->faults, DTP_BAD_INPUT, NULL, 0,
                         "--output: a machine file is fitted to a trace or nsys' table, of which none is named");
    if (simulated->set.role_count > 1)
        return dtp_fault(context->faults, DTP_BAD_INPUT, NULL, 0,
                         "--output: which of a pipeline's stages the trace is of is not said; fit a plan without pp");
    enum dtp_status status = dtp_trace_refit_make(simulated, &trace->time, &refit, context->faults);
    if (status != DTP_OK)
        return status;
    status = whole_file(&simulated->job, trace, &refit.rows, &rows, context->faults);
    dtp_measured_rows_release(&refit.rows);
    const size_t count = rows.count;
    struct dtp_measured_row *kept = status == DTP_OK ? malloc(count * sizeof *kept) : NULL;
    if (status == DTP_OK && !kept)
        status = dtp_fault(context->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    if (kept) {
        memcpy(kept, rows.row, count * sizeof *kept);
        status = dtp_machine_rows_step(&simulated->job, path, &rows, &step_s, context->faults);
    }
    if (status == DTP_OK) /* not before: what no command would read is not left behind */
        status = dtp_machine_rows_write(path, NULL, kept, count, context->faults);
    free(kept);
    if (status == DTP_OK && !context->arguments->json)
        say(&refit, trace, step_s, path, &context->page);
    dtp_measured_rows_release(&rows);
    return status;
}
