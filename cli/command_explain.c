/* dtplan explain: the same job as plan, formula by formula; jobs whose ranks divide the model by their simulation. */
#include "cli/command.h"

#include "record/explain.h"
#include "plan/rules.h"
#include "record/simulation_report.h"

#include <stdlib.h>
#include <string.h>

/* Prediction and explanation by formulas, or, where ranks divide the model, by simulation. */
static enum dtp_status explain_job(const struct dtp_context *context, const struct dtp_job *job,
                                   struct dtp_report *report, struct dtp_explanation *explanation)
{
    struct dtp_predictor formulas = dtp_predictor_closed();
    struct dtp_simulation_options options = dtp_simulation_options_default();
    struct dtp_simulated simulated;
    enum dtp_status status;
    if (!dtp_plan_model_parallel(&job->plan)) {
        status = formulas.predict(formulas.context, job, &report->prediction, context->faults);
        return status == DTP_OK ? dtp_explain(job, &report->prediction, explanation, context->faults) : status;
    }
    status = dtp_simulated_create(job, &options, &simulated, context->faults);
    if (status != DTP_OK)
        return status;
    report->prediction = simulated.prediction;
    status = dtp_pipeline_stages_of(&simulated, &report->stages, context->faults);
    if (status == DTP_OK)
        status = dtp_explain_simulated(&simulated, &report->stages, explanation, context->faults);
    dtp_simulated_release(&simulated);
    return status;
}

/* One plan and why it is so: some 100 KiB together. */
struct explained {
    struct dtp_report report;
    struct dtp_explanation explanation;
};

static enum dtp_status explain(const struct dtp_context *context, const struct dtp_job *job,
                               const struct dtp_catalog *catalog)
{
    struct explained *e = calloc(1, sizeof *e);
    if (!e)
        return dtp_fault(context->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    e->report.job = *job;
    enum dtp_status status = explain_job(context, job, &e->report, &e->explanation);
    if (status == DTP_OK) {
        const struct dtp_throughput *throughput = &e->report.prediction.throughput;
        dtp_money_of(job, throughput, dtp_catalog_price(catalog, job->cluster.gpu.key), &e->report.money);
        if (context->arguments->json)
            status = dtp_explain_json(&e->explanation, context->out, context->faults);
        else
            dtp_explain_text(&e->report, &e->explanation, &context->page);
    }
    dtp_pipeline_stages_release(&e->report.stages);
    free(e);
    return status;
}

static enum dtp_status list_program(const struct dtp_context *context, const struct dtp_job *job,
                                    const struct dtp_catalog *catalog)
{
    (void)catalog;
    struct dtp_simulation_options options = dtp_simulation_options_default();
    struct dtp_simulated simulated;
    enum dtp_status status = dtp_simulated_create(job, &options, &simulated, context->faults);
    if (status != DTP_OK)
        return status;
    if (context->arguments->json)
        status = dtp_program_json(&simulated, context->out, context->faults);
    else
        status = dtp_program_listing(&simulated, &context->page, context->faults);
    dtp_simulated_release(&simulated);
    return status;
}

enum dtp_status dtp_command_explain(const struct dtp_context *context)
{
    return dtp_context_with_job(context, context->arguments->program ? list_program : explain);
}
