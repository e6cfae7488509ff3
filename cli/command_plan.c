/* dtplan plan: one plan, or several strategies in one table. */
#include "cli/command.h"

#include "base/number.h"
#include "job/estimate.h"
#include "record/report.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* What a solver tried were closed forms, and so is its answer. */
static enum dtp_fidelity fidelity_of(const struct dtp_arguments *a)
{
    if (a->simulated)
        return DTP_FIDELITY_SIMULATED;
    return a->closed || a->solves ? DTP_FIDELITY_CLOSED : DTP_FIDELITY_BEST;
}

/* Everything said about one resolved job. With a goal, the job becomes the solver's answer first. */
static enum dtp_status fill_report(const struct dtp_context *context, const struct dtp_scenario *scenario,
                                   const struct dtp_catalog *catalog, const struct dtp_job *job, struct dtp_report *out)
{
    const struct dtp_arguments *a = context->arguments;
    memset(out, 0, sizeof *out);
    out->job = *job;
    out->keeps_stages = !a->csv;
    if (a->solves) {
        out->solved = true;
        dtp_solve(job, a->goal, &out->solution);
        if (!out->solution.variant_valid)
            return dtp_fault(context->faults, DTP_BAD_INPUT, NULL, 0, "%s", out->solution.next_reason);
        out->job = out->solution.variant.job;
    }
    enum dtp_status status = dtp_report_predict(&out->job, catalog, fidelity_of(a), out, context->faults);
    if (status != DTP_OK)
        return status;
    struct dtp_prediction closed = out->prediction;
    if (out->simulated && !a->no_advice) /* the advisor goes by the estimate */
        status = dtp_estimate(&out->job.transformer, &out->job.cluster, &out->job.plan, &closed, context->faults);
    if (status != DTP_OK)
        return status;
    if (!a->no_advice)
        dtp_advise(&out->job, &closed, a->solves ? NULL : scenario, catalog, &out->advice);
    dtp_training_cost_of(&out->job, &out->prediction.throughput, out->plain_step_s, &out->money, true, &out->training);
    return DTP_OK;
}

/* The answer is no: it does not fit, the solver found nothing, or the training is late or too dear. */
static bool is_no(const struct dtp_report *report)
{
    return report->training.late || report->training.over_budget ||
           report->prediction.memory.verdict == DTP_VERDICT_OOM || (report->solved && !report->solution.found);
}

/* ---- one plan --------------------------------------------------------------------------------------------------- */

/* The fewest GPUs are looked for from a plan that exists: degrees that divide the ranks need as many of them. */
static enum dtp_status begin_with_ranks(const struct dtp_context *context, struct dtp_scenario *scenario)
{
    static const char *const degrees[] = {"tp", "pp", "cp", "ep"};
    const struct dtp_arguments *a = context->arguments;
    uint64_t ranks = 1, degree;
    char text[32];
    if (!a->solves || a->goal != DTP_SOLVE_MIN_GPUS || dtp_scenario_get(scenario, "gpus") ||
        dtp_scenario_get(scenario, "nodes"))
        return DTP_OK;
    for (size_t i = 0; i < sizeof degrees / sizeof *degrees; i++) {
        const char *value = dtp_scenario_get(scenario, degrees[i]);
        if (value && dtp_number_parse_integer(value, true, 1, 1 << 14, &degree) && ranks * degree <= DTP_SOLVE_MAX_GPUS)
            ranks *= degree;
    }
    snprintf(text, sizeof text, "%" PRIu64, ranks);
    return ranks == 1 ? DTP_OK : dtp_scenario_set(scenario, "gpus", text, "--min-gpus", 0, context->faults);
}

static enum dtp_status plan_one(const struct dtp_context *context, struct dtp_scenario *scenario,
                                const struct dtp_catalog *catalog)
{
    struct dtp_job job;
    enum dtp_status status = begin_with_ranks(context, scenario);
    if (status == DTP_OK)
        status = dtp_scenario_resolve(scenario, catalog, &job, context->faults);
    struct dtp_report *report = status == DTP_OK ? calloc(1, sizeof *report) : NULL;
    if (status == DTP_OK && !report)
        status = dtp_fault(context->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    if (status == DTP_OK)
        status = fill_report(context, scenario, catalog, &job, report);
    if (status == DTP_OK) {
        struct dtp_comparison_row row = {.report = report};
        snprintf(row.strategy, sizeof row.strategy, "%s", dtp_strategy_text(report->job.plan.strategy));
        if (context->arguments->json)
            status = dtp_report_plan_json(report, context->out, context->faults);
        else if (context->arguments->csv)
            dtp_report_csv(&row, 1, context->out);
        else
            dtp_report_plan_text(report, &context->page);
        if (status == DTP_OK && is_no(report))
            status = DTP_NO;
    }
    if (report)
        dtp_pipeline_stages_release(&report->stages);
    free(report);
    return status;
}

/* ---- several strategies ----------------------------------------------------------------------------------------- */

struct comparison {
    struct dtp_comparison_row rows[DTP_STRATEGY_COUNT];
    struct dtp_report *reports; /* one a row */
    size_t count;
};

static enum dtp_status fill_row(const struct dtp_context *context, struct dtp_scenario *scenario,
                                const struct dtp_catalog *catalog, struct dtp_comparison_row *row,
                                struct dtp_report *report, struct dtp_faults *own)
{
    struct dtp_context quiet = *context;
    struct dtp_job job;
    memset(own, 0, sizeof *own);
    quiet.faults = own;
    enum dtp_status status = dtp_scenario_set(scenario, "strategy", row->strategy, "command line", 0, own);
    if (status == DTP_OK)
        status = dtp_scenario_resolve(scenario, catalog, &job, own);
    if (status == DTP_OK)
        status = fill_report(&quiet, scenario, catalog, &job, report);
    row->refused = status != DTP_OK;
    row->report = report;
    if (row->refused)
        snprintf(row->reason, sizeof row->reason, "%s", own->count ? own->text[0] : dtp_status_text(status));
    return status;
}

/* What all strategies are refused for lies elsewhere: report it as for one plan. */
static enum dtp_status all_refused(const struct comparison *comparison, const struct dtp_faults *last,
                                   struct dtp_faults *faults)
{
    for (size_t i = 1; i < comparison->count; i++)
        if (strcmp(comparison->rows[i].reason, comparison->rows[0].reason) != 0) {
            for (size_t k = 0; k < comparison->count; k++)
                dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "%s: %s", comparison->rows[k].strategy,
                          comparison->rows[k].reason);
            return DTP_BAD_INPUT;
        }
    for (size_t i = 0; i < last->count && i < DTP_FAULTS_KEPT; i++)
        dtp_fault(faults, last->status, NULL, 0, "%s", last->text[i]);
    return last->status;
}

static enum dtp_status print_comparison(const struct dtp_context *context, const struct comparison *comparison)
{
    enum dtp_status status = DTP_OK;
    if (context->arguments->json)
        status = dtp_report_compare_json(comparison->rows, comparison->count, context->out, context->faults);
    else if (context->arguments->csv)
        dtp_report_csv(comparison->rows, comparison->count, context->out);
    else
        dtp_report_compare_text(comparison->rows, comparison->count, &context->page);
    if (status != DTP_OK)
        return status;
    for (size_t i = 0; i < comparison->count; i++)
        if (!comparison->rows[i].refused && !is_no(comparison->rows[i].report))
            return DTP_OK;
    return DTP_NO;
}

static enum dtp_status plan_several(const struct dtp_context *context, struct dtp_scenario *scenario,
                                    const struct dtp_catalog *catalog, const enum dtp_strategy *list, size_t count)
{
    struct dtp_faults *own = calloc(1, sizeof *own);
    struct comparison comparison = {.count = count};
    for (size_t i = 0; i < count; i++)
        snprintf(comparison.rows[i].strategy, sizeof comparison.rows[i].strategy, "%s", dtp_strategy_text(list[i]));
    comparison.reports = calloc(comparison.count, sizeof *comparison.reports);
    if (!comparison.reports || !own) {
        free(comparison.reports);
        free(own);
        return dtp_fault(context->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    }
    size_t planned = 0;
    for (size_t i = 0; i < comparison.count; i++)
        planned += fill_row(context, scenario, catalog, &comparison.rows[i], &comparison.reports[i], own) == DTP_OK;
    enum dtp_status status =
        planned > 0 ? print_comparison(context, &comparison) : all_refused(&comparison, own, context->faults);
    for (size_t i = 0; i < comparison.count; i++)
        dtp_pipeline_stages_release(&comparison.reports[i].stages);
    free(comparison.reports);
    free(own);
    return status;
}

static enum dtp_status plan(const struct dtp_context *context, const struct dtp_catalog *catalog,
                            struct dtp_scenario *scenario)
{
    enum dtp_strategy strategies[DTP_STRATEGY_COUNT];
    const char *named = dtp_scenario_get(scenario, "strategy");
    size_t count = named ? dtp_scenario_strategies(named, strategies) : 1;
    return count > 1 ? plan_several(context, scenario, catalog, strategies, count)
                     : plan_one(context, scenario, catalog);
}

enum dtp_status dtp_command_plan(const struct dtp_context *context)
{
    if (!context->bare)
        return dtp_context_with_scenario(context, plan);
    dtp_help_program(&context->page);
    return DTP_OK;
}
