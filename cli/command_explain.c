/* dtplan explain: the same job as plan, formula by formula. */
#include "command.h"

#include "explain.h"
#include "simulation_report.h"

#include <stdlib.h>
#include <string.h>

static enum dtp_status explain(const struct dtp_context *context, const struct dtp_job *job,
                               const struct dtp_catalog *catalog)
{
    struct dtp_report *report = calloc(1, sizeof *report);
    enum dtp_status status = DTP_OK;
    if (!report)
        return dtp_fault(context->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    report->job = *job;
    dtp_closed_form(&job->transformer, &job->cluster, &job->plan, &report->prediction);
    dtp_money_of(job, &report->prediction.throughput, dtp_catalog_price(catalog, job->cluster.gpu.key), &report->money);
    if (context->arguments->json)
        status = dtp_explain_json(report, context->out, context->faults);
    else
        dtp_explain_text(report, &context->page);
    free(report);
    return status;
}

static enum dtp_status list_program(const struct dtp_context *context, const struct dtp_job *job)
{
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
    struct dtp_catalog catalog;
    struct dtp_scenario *scenario = NULL;
    struct dtp_job job;
    enum dtp_status status = dtp_context_catalog(context, &catalog);
    if (status != DTP_OK)
        return status;
    status = dtp_context_scenario(context, &catalog, &scenario);
    if (status == DTP_OK)
        status = dtp_scenario_resolve(scenario, &catalog, &job, context->faults);
    if (status == DTP_OK)
        status = context->arguments->program ? list_program(context, &job) : explain(context, &job, &catalog);
    dtp_scenario_destroy(scenario);
    dtp_catalog_destroy(&catalog);
    return status;
}
