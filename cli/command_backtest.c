/* dtplan backtest RUNS.csv ... [--fidelity bounds|simulated] [-o ROWS.csv]; dtplan backtest --leave-one-out RUNS.csv
 * ... */
#include "cli/command.h"
#include "cli/progress.h"

#include "record/backtest_report.h"
#include "sim/simulated.h"

#define WORST_ROWS 10

static enum dtp_status write_report(const struct dtp_context *context, const struct dtp_backtest *backtest)
{
    const struct dtp_arguments *a = context->arguments;
    enum dtp_status status = DTP_OK;
    if (a->output)
        status = dtp_backtest_write_rows(a->output, backtest, context->faults);
    if (status != DTP_OK)
        return status;
    if (a->json)
        return dtp_backtest_write_json(context->out, backtest, context->faults);
    dtp_backtest_write_text(backtest, WORST_ROWS, &context->page);
    return DTP_OK;
}

static bool draw_progress(void *progress, size_t done, size_t count)
{
    dtp_progress_draw(progress, done, count);
    return true;
}

static enum dtp_status leave_one_out(const struct dtp_context *context, const struct dtp_catalog *catalog)
{
    const struct dtp_arguments *a = context->arguments;
    struct dtp_predictor response = dtp_predictor_closed();
    struct dtp_predictor predictor = a->simulated ? dtp_predictor_simulated() : response;
    struct dtp_progress progress = dtp_context_progress(context, "sources", 0);
    struct dtp_watch watch = {&progress, draw_progress};
    struct dtp_leave_one_out *result;
    enum dtp_status status = dtp_leave_one_out_run(a->words, a->word_count, &predictor, &response, catalog, &watch,
                                                   &result, context->faults);
    dtp_progress_end(&progress);
    if (status == DTP_OK && a->json)
        status = dtp_leave_one_out_write_json(context->out, result, context->faults);
    else if (status == DTP_OK && a->csv)
        dtp_leave_one_out_write_csv(context->out, result);
    else if (status == DTP_OK)
        dtp_leave_one_out_write_text(&context->page, result);
    dtp_leave_one_out_destroy(result);
    return status;
}

static enum dtp_status score(const struct dtp_context *context, const struct dtp_catalog *catalog)
{
    const struct dtp_arguments *a = context->arguments;
    struct dtp_backtest *backtest;
    struct dtp_predictor predictor = a->simulated ? dtp_predictor_simulated() : dtp_predictor_closed();
    predictor.machine = a->machine;
    struct dtp_progress progress = dtp_context_progress(context, "runs", 0);
    const struct dtp_watch watch = {&progress, draw_progress};
    const struct dtp_backtest_request request = {.paths = a->words,
                                                 .path_count = a->word_count,
                                                 .only = a->only,
                                                 .noted = a->notes,
                                                 .predictor = &predictor,
                                                 .watch = &watch};
    enum dtp_status status = dtp_backtest_score(&request, catalog, &backtest, context->faults);
    dtp_progress_end(&progress);
    if (status == DTP_OK)
        status = write_report(context, backtest);
    if (status == DTP_OK && !backtest->scored)
        status = DTP_NO; /* what was asked for, an error, is of no row */
    dtp_backtest_destroy(backtest);
    return status;
}

/* Which machine of the catalogue a run was on, its row says. */
static enum dtp_status read_machine(const struct dtp_context *context, struct dtp_catalog *catalog)
{
    const char *machine = context->arguments->machine;
    enum dtp_status status = machine ? dtp_catalog_measure(catalog, machine, context->faults) : DTP_OK;
    if (status != DTP_OK || !machine || dtp_catalog_measured(catalog, machine))
        return status;
    return dtp_fault(context->faults, DTP_BAD_INPUT, NULL, 0,
                     "--machine: '%s' is no machine file; backtest takes one that dtplan probe wrote", machine);
}

enum dtp_status dtp_command_backtest(const struct dtp_context *context)
{
    const struct dtp_arguments *a = context->arguments;
    struct dtp_catalog catalog;
    if (!a->word_count)
        return dtp_fault(context->faults, DTP_BAD_INPUT, NULL, 0,
                         "backtest: no table of measured runs is named; write dtplan backtest RUNS.csv");
    enum dtp_status status = dtp_context_catalog(context, &catalog);
    if (status != DTP_OK)
        return status;
    status = read_machine(context, &catalog);
    if (status == DTP_OK)
        status = a->leave_one_out ? leave_one_out(context, &catalog) : score(context, &catalog);
    dtp_catalog_destroy(&catalog);
    return status;
}
