/* The files of a step that a line asks for, of a simulated step and of one as it was measured alike: trace, timeline,
 * memory, program; of a pipeline its passes and ranks, and the passes drawn. */
#ifndef DTP_STEP_TABLES_H
#define DTP_STEP_TABLES_H

#include "cli/command.h"
#include "record/simulation_report.h"

/* The file behind --passes or --ranks, which stand among the flags that are passed on; NULL: not asked for. */
const char *dtp_step_passed_file(const struct dtp_arguments *arguments, const char *flag);
/* Those that are asked for; `stages` NULL: none of a pipeline. */
enum dtp_status dtp_step_tables_write(const struct dtp_context *context, const struct dtp_simulated *simulated,
                                      const struct dtp_pipeline_stages *stages);
/* The figure of --chart under `title`. */
enum dtp_status dtp_step_passes_draw(const struct dtp_context *context, const struct dtp_pipeline_stages *stages,
                                     const char *title);

#endif
