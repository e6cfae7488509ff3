/* dtplan explain: the same job as plan, formula by formula. */
#include "cli/command.h"

#include "record/explain.h"
#include "plan/rules.h"
#include "record/simulation_report.h"

#include <stdlib.h>
#include <string.h>

static enum dtp_status explain(const struct dtp_context *context, const struct dtp_job *job,
                               const struct dtp_catalog *catalog)
{
    if (dtp_plan_model_parallel(&job->plan))
        return dtp_fault_about(context->faults, DTP_BAD_INPUT, NULL, 0, job->plan.tp > 1 ? "tp" : "pp",
                               "above 1 has no record of its terms; dtplan plan predicts it");
    struct dtp_report *report = calloc(1, sizeof *report);
    enum dtp_status status = DTP_OK;
    if (!report)
        return dtp_fault(context->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    report->job = *job;
    struct dtp_predictor formulas = dtp_predictor_closed();
    status = formulas.predict(formulas.context, job, &report->prediction, context->faults);
    if (status != DTP_OK) {
        free(report);
        return status;
    }
    dtp_money_of(job, &report->prediction.throughput, dtp_catalog_price(catalog, job->cluster.gpu.key), &report->money);
    if (context->arguments->json)
        status = dtp_explain_json(report, context->out, context->faults);
    else
        status = dtp_explain_text(report, &context->page, context->faults);
    free(report);
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
