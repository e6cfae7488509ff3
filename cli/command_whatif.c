/* dtplan whatif: every single change of a plan, ranked, with the reason of what it does. */
#include "cli/command.h"

#include "record/report.h"
#include "sim/simulated.h"
#include "record/search_report.h"

#include <stdlib.h>

#define MOST_OPS 100000u /* of a rank: 0.1 s, of each of some dozens of changes */

/* By simulation where there is a step program of a size that takes no time, else by formulas. */
static enum dtp_status predict(const struct dtp_context *context, const struct dtp_scenario *scenario,
                               const struct dtp_catalog *catalog, struct dtp_whatif *out)
{
    static const uint32_t op_limit = MOST_OPS;
    const struct dtp_arguments *a = context->arguments;
    const struct dtp_predictor closed = dtp_predictor_closed(), simulated = dtp_predictor_simulated(),
                               best = dtp_predictor_simulated_within(&op_limit);
    bool chosen = a->closed || a->simulated;
    return dtp_whatif(scenario, catalog,
                      a->closed      ? &closed
                      : a->simulated ? &simulated
                                     : &best,
                      chosen ? NULL : &closed, out, context->faults);
}

static enum dtp_status whatif(const struct dtp_context *context, const struct dtp_catalog *catalog,
                              struct dtp_scenario *scenario)
{
    struct dtp_whatif *found = malloc(sizeof *found);
    if (!found)
        return dtp_fault(context->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    enum dtp_status status = predict(context, scenario, catalog, found);
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
    return dtp_context_with_scenario(context, whatif);
}
