/* What a run of a pipeline's stages says: each stage predicted beside measured, and the files that were asked for. */
#ifndef DTP_STAGES_RUN_H
#define DTP_STAGES_RUN_H

#include "cli/run_job.h"

/* Of a run that did at least one step. Files have the measured step: passes, ranks, operations, trace; `--chart` draws
 * its passes. */
enum dtp_status dtp_stages_say(const struct dtp_context *context, const struct dtp_ran_job *ran);
/* Of a flag that `run` takes: it is for this and not for the executor. */
bool dtp_stages_flag(const char *flag);

#endif
