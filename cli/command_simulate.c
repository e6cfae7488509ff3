/* dtplan simulate: the job's step program, run operation by operation. */
#include "cli/command.h"

#include "chart/chart_data.h"
#include "cli/progress.h"
#include "cli/set_job.h"
#include "cli/step_tables.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a pipeline ---------------------------------------------------------------------------------------------------
 */

static enum dtp_status check_pipeline(const struct dtp_context *context, const struct dtp_pipeline_stages *stages)
{
    const struct dtp_arguments *a = context->arguments;
    const char *flag = dtp_step_passed_file(a, "--passes")  ? "--passes"
                       : dtp_step_passed_file(a, "--ranks") ? "--ranks"
                       : a->chart                           ? "--chart"
                                                            : NULL;
    if (flag && !stages->rank_count)
        return dtp_fault(context->faults, DTP_BAD_INPUT, NULL, 0,
                         "%s: shows the %s of a pipeline, and this job has none (pp 1); --timeline has operations",
                         flag, strcmp(flag, "--ranks") == 0 ? "ranks" : "passes");
    if (stages->rank_count && a->charts && a->timeline)
        return dtp_fault(context->faults, DTP_BAD_INPUT, NULL, 0,
                         "--charts: does not draw the --timeline of several ranks; --chart FIGURE draws their passes");
    return DTP_OK;
}

static enum dtp_status draw_passes(const struct dtp_context *context, const struct dtp_simulated *simulated,
                                   const struct dtp_pipeline_stages *stages)
{
    const struct dtp_job *job = &simulated->job;
    char title[400];
    if (!context->arguments->chart)
        return DTP_OK;
    snprintf(title, sizeof title, "%s, %u x %s: %s, %u ranks, %u micro-batches; step %.4g ms, bubble %.1f %%",
             job->transformer.name, job->cluster.gpus, job->cluster.gpu.key, dtp_schedule_row(stages->schedule)->word,
             stages->rank_count, job->plan.accumulate, 1e3 * stages->step_s,
             100 * simulated->prediction.time.bubble_s / stages->step_s);
    return dtp_step_passes_draw(context, stages, title);
}

/* ---- charts ------------------------------------------------------------------------------------------------------ */

static enum dtp_status draw_one(const struct dtp_context *context, const struct dtp_simulated *simulated,
                                enum dtp_chart chart, const char *csv)
{
    char title[400], said[DTP_FAULT_TEXT_BYTES] = "";
    const struct dtp_job *job = &simulated->job;
    if (!csv)
        return DTP_OK;
    snprintf(title, sizeof title, "%s on %u %s: %s, %s per GPU", job->transformer.name, job->cluster.gpus,
             job->cluster.gpu.name, dtp_strategy_text(job->plan.strategy),
             chart == DTP_CHART_MEMORY ? "device memory" : "streams");
    char *png = dtp_chart_beside(csv, ".png");
    if (!png)
        return dtp_fault(context->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    struct dtp_chart_data data = {0};
    struct dtp_table *table = NULL;
    struct dtp_chart_figure figure = {.chart = chart,
                                      .data = dtp_chart_is_whole(chart) ? NULL : &data,
                                      .csv = csv,
                                      .figure = png,
                                      .title = title,
                                      .closed_peak_bytes = simulated->closed.memory.allocated_peak_bytes};
    enum dtp_status status = figure.data ? dtp_table_read(csv, &table, context->faults) : DTP_OK;
    if (status == DTP_OK && figure.data)
        status = dtp_chart_data_read(chart, table, NULL, 0, &data, context->faults);
    if (status == DTP_OK)
        status = dtp_chart_draw(&figure, said, sizeof said, context->faults);
    dtp_chart_data_destroy(&data);
    dtp_table_destroy(table);
    free(png);
    if (status == DTP_OK) /* on the side: standard output may be JSON */
        dtp_fault(context->faults, DTP_OK, NULL, 0, "%s", said);
    return status;
}

static enum dtp_status draw_charts(const struct dtp_context *context, const struct dtp_simulated *simulated)
{
    const struct dtp_arguments *a = context->arguments;
    if (!a->charts)
        return DTP_OK;
    /* Of a step of a hundred thousand operations gnuplot draws for a while. */
    const char *const tables[] = {a->timeline, a->memory};
    const enum dtp_chart charts[] = {DTP_CHART_TIMELINE, DTP_CHART_MEMORY};
    struct dtp_progress progress = dtp_progress_start("charts drawn", 0);
    enum dtp_status status = DTP_OK;
    for (uint64_t i = 0; i < 2 && status == DTP_OK; i++) {
        dtp_progress_draw(&progress, i, 2);
        status = draw_one(context, simulated, charts[i], tables[i]);
    }
    dtp_progress_end(&progress);
    return status;
}

static enum dtp_status report(const struct dtp_context *context, const struct dtp_simulated *simulated)
{
    struct dtp_pipeline_stages stages;
    enum dtp_status status = dtp_pipeline_stages_of(simulated, &stages, context->faults);
    if (status == DTP_OK)
        status = check_pipeline(context, &stages);
    if (status == DTP_OK)
        status = dtp_step_tables_write(context, simulated, &stages);
    if (status == DTP_OK)
        status = draw_passes(context, simulated, &stages);
    if (status == DTP_OK)
        status = draw_charts(context, simulated);
    if (status == DTP_OK && context->arguments->json)
        status = dtp_simulation_json(simulated, &stages, context->out, context->faults);
    else if (status == DTP_OK)
        dtp_simulation_text(simulated, &stages, &context->page);
    dtp_pipeline_stages_release(&stages);
    return status;
}

static enum dtp_status simulate(const struct dtp_context *context, const struct dtp_job *job,
                                const struct dtp_catalog *catalog)
{
    (void)catalog;
    struct dtp_simulation_options options = dtp_simulation_options_default();
    struct dtp_simulated simulated;
    options.seed = context->arguments->seed;
    options.compute_factor = context->arguments->straggler;
    enum dtp_status status = dtp_simulated_create(job, &options, &simulated, context->faults);
    if (status != DTP_OK)
        return status;
    if (options.compute_factor <= 0) /* a straggler of known slowness leaves nothing to chance */
        status = dtp_simulated_scatter(&simulated, &options, context->arguments->rank_deviation,
                                       context->arguments->samples, context->faults);
    if (status == DTP_OK)
        status = report(context, &simulated);
    if (status == DTP_OK && simulated.prediction.memory.verdict == DTP_VERDICT_OOM)
        status = DTP_NO;
    dtp_simulated_release(&simulated);
    return status;
}

enum dtp_status dtp_command_simulate(const struct dtp_context *context)
{
    const struct dtp_arguments *a = context->arguments;
    if (a->program_file)
        return dtp_set_simulate(context);
    if (a->straggler > 0 && a->rank_deviation > 0)
        return dtp_fault(context->faults, DTP_BAD_INPUT, NULL, 0,
                         "--straggler: says how slow the slowest GPU is, --rank-deviation draws it; give one of them");
    if (a->charts && !a->timeline && !a->memory)
        return dtp_fault(context->faults, DTP_BAD_INPUT, NULL, 0,
                         "--charts: there is no table to draw; give --timeline FILE.csv or --memory FILE.csv as well");
    return dtp_context_with_job(context, simulate);
}
