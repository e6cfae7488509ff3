#include "cli/stages_run.h"

#include "cli/step_tables.h"
#include "sim/measured_stages.h"

#include <string.h>

/* ---- files ------------------------------------------------------------------------------------------------------- */

bool dtp_stages_flag(const char *flag)
{
    return strcmp(flag, "--passes") == 0 || strcmp(flag, "--ranks") == 0;
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
    return dtp_step_passes_draw(context, stages, title);
}

static void warn_of_files(const struct dtp_arguments *a)
{
    if (a->chart || a->trace || a->timeline || dtp_step_passed_file(a, "--passes") ||
        dtp_step_passed_file(a, "--ranks"))
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
        status = dtp_step_tables_write(context, &measured, &stages);
    if (status == DTP_OK)
        status = draw(context, ran, &stages);
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
