/* dtplan catalog gpus|machines|models [NAME ...], dtplan catalog measured FILE.csv ... */
#include "cli/command.h"

#include "record/measured_report.h"

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

static enum dtp_status report(const struct dtp_context *context, enum dtp_catalog_table table, bool measured)
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
    if (measured)
        status = report_measured(context, form, &catalog, &page);
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
                         "catalog: none is named; write dtplan catalog gpus, machines, models or measured");
    bool measured = strcmp(a->words[0], "measured") == 0;
    if (!measured && !parse_table(a->words[0], &table))
        return dtp_fault(context->faults, DTP_BAD_INPUT, NULL, 0,
                         "catalog: there is no catalogue '%s'; the catalogues are gpus, machines, models and measured",
                         a->words[0]);
    return report(context, table, measured);
}
