/* A program set that somebody wrote, in place of a model and a plan: simulated, and run. */
#ifndef DTP_SET_JOB_H
#define DTP_SET_JOB_H

#include "cli/command.h"

/* `dtplan simulate --program-file FILE` and `dtplan run --program-file FILE`. DTP_BAD_INPUT: a file that is no set, or
 * keys beside it that are not the cluster's. */
enum dtp_status dtp_set_simulate(const struct dtp_context *context);
enum dtp_status dtp_set_run(const struct dtp_context *context);

#endif
