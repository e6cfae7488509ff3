#include "cli/stages_run.h"

#include "chart/chart.h"
#include "page/output_file.h"
#include "record/simulation_report.h"
#include "sim/measured_stages.h"

#include <string.h>

/* ---- files ------------------------------------------------------------------------------------------------------- */

enum table { TRACE, TIMELINE, PASSES, RANKS };

static const char *const report_flags[] = {[PASSES] = "--passes", [RANKS] = "--ranks"};

bool dtp_stages_flag(const char *flag)
{
    return strcmp(flag, report_flags[PASSES]) == 0 || strcmp(flag, report_flags[RANKS]) == 0;
}

static const char *path_of(const struct dtp_arguments *a, enum table table)
{
    const char *path = table == TRACE ? a->trace : table == TIMELINE ? a->timeline : NULL;
    for (size_t i = 0; i < a->passed_count && table >= PASSES; i++)
        if (strcmp(a->passed[i].flag, report_flags[table]) == 0)
            path = a->passed[i].value;
    return path;
}

static enum dtp_status write_one(const struct dtp_context *context, const struct dtp_simulated *measured,
                                 const struct dtp_pipeline_stages *stages, enum table table)
{
    struct dtp_output_file output;
    struct dtp_faults *faults = context->faults;
    const char *path = path_of(context->arguments, table);
    enum dtp_status status = path ? dtp_output_open(path, &output, faults) : DTP_OK;
    if (!path || status != DTP_OK)
        return status;
    switch (table) {
    case TRACE: status = dtp_simulation_write_trace(measured, output.file, faults); break;
    case TIMELINE: dtp_simulation_write_timeline(measured, output.file); break;
    case PASSES: dtp_simulation_write_passes(stages, output.file); break;
    case RANKS: status = dtp_simulation_write_ranks(stages, output.file, faults); break;
    }
    if (status == DTP_OK)
        return dtp_output_close(&output, faults);
    dtp_output_abandon(&output);
    return status;
}

static void passes_of(const void *stages, FILE *file)
{
    dtp_simulation_write_passes(stages, file);
}

static enum dtp_status draw(const struct dtp_context *context, const struct dtp_ran_job *ran,
                            const struct dtp_pipeline_stages *stages)
{
    const struct dtp_job *job = &ran->simulated.job;
    char title[400];
    if (!context->arguments->chart)
        return DTP_OK;
    snprintf(title, sizeof title, "%s, %u ranks of %s, as it ran: %s, %u micro-batches; step %.4g ms",
             job->transformer.name, stages->rank_count, ran->measured.device, dtp_schedule_row(stages->schedule)->word,
             job->plan.accumulate, 1e3 * stages->step_s);
    return dtp_chart_draw_written(DTP_CHART_SCHEDULE, passes_of, stages, context->arguments->chart, title,
                                  context->faults);
}

static enum dtp_status write_files(const struct dtp_context *context, const struct dtp_ran_job *ran,
                                   const struct dtp_simulated *measured, const struct dtp_pipeline_stages *stages)
{
    enum dtp_status status = DTP_OK;
    for (enum table table = TRACE; table <= RANKS && status == DTP_OK; table++)
        status = write_one(context, measured, stages, table);
    return status == DTP_OK ? draw(context, ran, stages) : status;
}

static void warn_of_files(const struct dtp_arguments *a)
{
    bool asked = a->chart;
    for (enum table table = TRACE; table <= RANKS; table++)
        asked |= path_of(a, table) != NULL;
    if (asked)
        fputs("dtplan: warning: no file of the measured step is written: operations are timed in the last two steps, "
              "before which this run was stopped\n",
              stderr);
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static enum dtp_status say(const struct dtp_context *context, const struct dtp_ran_job *ran,
                           const struct dtp_pipeline_stages *predicted, const struct dtp_pipeline_stages *as_it_ran)
{
    const struct dtp_stages_report report = {
        &ran->simulated,    &ran->measured, predicted, as_it_ran, dtp_run_report_comparable(&ran->report),
        &ran->report.beside};
    if (context->arguments->json)
        return dtp_stages_run_json(&report, context->out, context->faults);
    dtp_stages_run_text(&report, &context->page);
    return DTP_OK;
}

static enum dtp_status say_measured(const struct dtp_context *context, const struct dtp_ran_job *ran,
                                    const struct dtp_pipeline_stages *predicted)
{
    struct dtp_simulated measured;
    struct dtp_pipeline_stages stages;
    enum dtp_status status = dtp_simulated_as_measured(&ran->simulated, ran->spans, &measured, context->faults);
    if (status != DTP_OK)
        return status;
    status = dtp_pipeline_stages_of(&measured, &stages, context->faults);
    if (status == DTP_OK)
        status = say(context, ran, predicted, &stages);
    if (status == DTP_OK)
        status = write_files(context, ran, &measured, &stages);
    dtp_pipeline_stages_release(&stages);
    dtp_simulated_measured_release(&measured);
    return status;
}

enum dtp_status dtp_stages_say(const struct dtp_context *context, const struct dtp_ran_job *ran)
{
    struct dtp_pipeline_stages predicted;
    enum dtp_status status = dtp_pipeline_stages_of(&ran->simulated, &predicted, context->faults);
    if (status != DTP_OK)
        return status;
    if (ran->timed && ran->spans) {
        status = say_measured(context, ran, &predicted);
    } else {
        status = say(context, ran, &predicted, NULL);
        warn_of_files(context->arguments);
    }
    dtp_pipeline_stages_release(&predicted);
    return status;
}
