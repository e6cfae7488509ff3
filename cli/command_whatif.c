/* dtplan whatif: every single change of a plan, ranked, with the reason of what it does. */
#include "cli/command.h"

#include "sim/simulated.h"
#include "record/whatif_report.h"

#include <stdlib.h>

static enum dtp_status whatif(const struct dtp_context *context, const struct dtp_job *job,
                              const struct dtp_catalog *catalog)
{
    (void)catalog;
    struct dtp_whatif *found = malloc(sizeof *found);
    struct dtp_predictor predictor = context->arguments->simulated ? dtp_predictor_simulated() : dtp_predictor_closed();
    if (!found)
        return dtp_fault(context->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    enum dtp_status status = dtp_whatif(job, &predictor, found, context->faults);
    if (status == DTP_OK && context->arguments->json)
        status = dtp_whatif_json(found, context->out, context->faults);
    else if (status == DTP_OK && context->arguments->csv)
        dtp_whatif_csv(found, context->out);
    else if (status == DTP_OK)
        dtp_whatif_text(found, &context->page);
    free(found);
    return status;
}

enum dtp_status dtp_command_whatif(const struct dtp_context *context)
{
    return dtp_context_with_job(context, whatif);
}
