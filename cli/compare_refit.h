/* dtplan compare --output: a machine file fitted to a trace, written, and the plan predicted by it. */
#ifndef DTP_COMPARE_REFIT_H
#define DTP_COMPARE_REFIT_H

#include "cli/command.h"
#include "sim/beside/beside.h"
#include "sim/simulated.h"

/* By the first trace among the records; what was fitted goes to the page after the comparison. */
enum dtp_status dtp_compare_refit(const struct dtp_context *context, const struct dtp_compared *beside,
                                  const struct dtp_simulated *simulated);

#endif
