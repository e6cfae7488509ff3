/* dtplan catalog gpus|machines|models [NAME ...] | measured FILE.csv ... | constants [RUNS.csv ...] */
#include "cli/command.h"

#include "cli/progress.h"
#include "record/catalog_report.h"
#include "record/measured_report.h"
#include "sim/simulated.h"

#include <stdlib.h>
#include <string.h>

static bool parse_table(const char *word, enum dtp_catalog_table *out)
{
    static const char *const names[][2] = {{"gpus", "gpu"}, {"machines", "machine"}, {"models", "model"}};
    for (int i = 0; i < 3; i++)
        if (strcmp(word, names[i][0]) == 0 || strcmp(word, names[i][1]) == 0) {
            *out = (enum dtp_catalog_table)i;
            return true;
        }
    return false;
}

static enum dtp_status report_measured(const struct dtp_context *context, enum dtp_catalog_form form,
                                       struct dtp_catalog *catalog, const struct dtp_page *page)
{
    const struct dtp_arguments *a = context->arguments;
    enum dtp_status status = DTP_OK;
    if (a->word_count == 1)
        return dtp_fault(context->faults, DTP_BAD_INPUT, NULL, 0,
                         "catalog measured: no file is named; dtplan probe -o machine.csv writes one");
    for (size_t i = 1; i < a->word_count && status == DTP_OK; i++)
        status = dtp_catalog_measure(catalog, a->words[i], context->faults);
    return status == DTP_OK ? dtp_report_measured(catalog, form, a->words + 1, a->word_count - 1, page, context->faults)
                            : status;
}

/* ---- constants: what each is worth on measured runs -------------------------------------------------------------- */

static bool draw_progress(void *progress, size_t done, size_t count)
{
    dtp_progress_draw(progress, done, count);
    return true;
}

static enum dtp_status report_constants(const struct dtp_context *context, enum dtp_catalog_form form,
                                        const struct dtp_catalog *catalog, const char *const *tables, size_t count,
                                        const struct dtp_page *page)
{
    struct dtp_predictor predictor = context->arguments->simulated ? dtp_predictor_simulated() : dtp_predictor_closed();
    struct dtp_scored_runs runs;
    struct dtp_constant_effects effects = {.runs = 0};
    enum dtp_status status = dtp_scored_runs_read(tables, count, &predictor, catalog, &runs, context->faults);
    if (status == DTP_OK) {
        struct dtp_progress progress = dtp_progress_start("predictions", 0);
        struct dtp_watch watch = {&progress, draw_progress};
        status = dtp_constant_effects_count(&runs, &predictor, catalog, &watch, &effects, context->faults);
        dtp_progress_end(&progress);
    }
    struct dtp_constants_counted counted = {predictor.name, tables, count};
    if (status == DTP_OK)
        status = dtp_report_constants(catalog, &effects, &counted, form, page, context->faults);
    dtp_constant_effects_destroy(&effects);
    dtp_scored_runs_destroy(&runs);
    return status;
}

/* The tables that are named, else those that come with the program. */
static enum dtp_status report_constants_on(const struct dtp_context *context, enum dtp_catalog_form form,
                                           const struct dtp_catalog *catalog, const struct dtp_page *page)
{
    static const char *const names[] = {"published_runs.csv", "h200_torch_runs.csv", "holdout_torch_runs.csv"};
    enum { SHIPPED = sizeof names / sizeof *names };
    const struct dtp_arguments *a = context->arguments;
    char directory[4096], paths[SHIPPED][4200];
    const char *tables[SHIPPED];
    if (a->word_count > 1)
        return report_constants(context, form, catalog, a->words + 1, a->word_count - 1, page);
    enum dtp_status status = dtp_data_directory(directory, sizeof directory, context->faults);
    for (size_t i = 0; i < SHIPPED; i++) {
        snprintf(paths[i], sizeof paths[i], "%s/%s", directory, names[i]);
        tables[i] = paths[i];
    }
    return status == DTP_OK ? report_constants(context, form, catalog, tables, SHIPPED, page) : status;
}

/* -------------------------------------------------------------------------------------------------------------------
 */

enum what { ENTRIES, MEASURED, CONSTANTS };

static enum dtp_status report(const struct dtp_context *context, enum dtp_catalog_table table, enum what what)
{
    const struct dtp_arguments *a = context->arguments;
    enum dtp_catalog_form form = a->json ? DTP_CATALOG_JSON : a->csv ? DTP_CATALOG_CSV : DTP_CATALOG_TEXT;
    struct dtp_page page = context->page;
    struct dtp_catalog catalog;
    enum dtp_status status = dtp_context_catalog(context, &catalog);
    if (status != DTP_OK)
        return status;
    if (form != DTP_CATALOG_TEXT)
        page.file = context->out;
    if (what == MEASURED)
        status = report_measured(context, form, &catalog, &page);
    else if (what == CONSTANTS)
        status = report_constants_on(context, form, &catalog, &page);
    else if (a->word_count == 1)
        status = dtp_report_catalog(&catalog, table, form, &page, context->faults);
    else
        status =
            dtp_report_catalog_entries(&catalog, table, form, a->words + 1, a->word_count - 1, &page, context->faults);
    dtp_catalog_destroy(&catalog);
    return status;
}

enum dtp_status dtp_command_catalog(const struct dtp_context *context)
{
    const struct dtp_arguments *a = context->arguments;
    enum dtp_catalog_table table = DTP_CATALOG_MACHINES;
    if (a->word_count == 0)
        return dtp_fault(context->faults, DTP_BAD_INPUT, NULL, 0,
                         "catalog: none is named; write dtplan catalog gpus, machines, models, measured or constants");
    enum what what = strcmp(a->words[0], "measured") == 0    ? MEASURED
                     : strcmp(a->words[0], "constants") == 0 ? CONSTANTS
                                                             : ENTRIES;
    if (what == ENTRIES && !parse_table(a->words[0], &table))
        return dtp_fault(context->faults, DTP_BAD_INPUT, NULL, 0,
                         "catalog: there is no catalogue '%s'; the catalogues are gpus, machines, models, measured and "
                         "constants",
                         a->words[0]);
    if (what != CONSTANTS && a->simulated)
        return dtp_fault(context->faults, DTP_BAD_INPUT, NULL, 0,
                         "--fidelity: catalog %s predicts nothing; catalog constants does", a->words[0]);
    return report(context, table, what);
}
