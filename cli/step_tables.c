#include "cli/step_tables.h"

#include "chart/chart.h"
#include "page/output_own.h"
#include "program/program_set.h"
#include "program/program_text.h"

#include <string.h>

enum table { TRACE, TIMELINE, MEMORY, PROGRAM, PASSES, RANKS, TABLE_COUNT };

const char *dtp_step_passed_file(const struct dtp_arguments *a, const char *flag)
{
    const char *file = NULL;
    for (size_t i = 0; i < a->passed_count; i++)
        if (strcmp(a->passed[i].flag, flag) == 0)
            file = a->passed[i].value;
    return file;
}

static enum dtp_status write_table(const struct dtp_simulated *s, const struct dtp_pipeline_stages *stages,
                                   enum table table, const char *path, struct dtp_faults *faults)
{
    struct dtp_output_file output;
    enum dtp_status status = table == PROGRAM ? dtp_simulated_prove(s, faults) : DTP_OK;
    if (status == DTP_OK)
        status = dtp_output_open(path, &output, faults);
    if (status != DTP_OK)
        return status;
    switch (table) {
    case TRACE: status = dtp_simulation_write_trace(s, output.file, faults); break;
    case TIMELINE: dtp_simulation_write_timeline(s, output.file); break;
    case MEMORY: status = dtp_simulation_write_memory(s, output.file, faults); break;
    case PROGRAM: /* closing says what failed */
        if (s->set.role_count > 1)
            (void)dtp_program_set_write_text(&s->set, output.file);
        else
            (void)dtp_program_write_text(s->program, output.file);
        break;
    case PASSES: dtp_simulation_write_passes(stages, output.file); break;
    case RANKS: status = dtp_simulation_write_ranks(stages, output.file, faults); break;
    case TABLE_COUNT: break;
    }
    return table == TRACE     ? dtp_output_end_sealed(&output, DTP_OUTPUT_TRACE, status, faults)
           : table == PROGRAM ? dtp_output_end_sealed(&output, DTP_OUTPUT_PROGRAM, status, faults)
                              : dtp_output_end(&output, status, faults);
}

enum dtp_status dtp_step_tables_write(const struct dtp_context *context, const struct dtp_simulated *simulated,
                                      const struct dtp_pipeline_stages *stages)
{
    const struct dtp_arguments *a = context->arguments;
    const char *const paths[TABLE_COUNT] = {[TRACE] = a->trace,
                                            [TIMELINE] = a->timeline,
                                            [MEMORY] = a->memory,
                                            [PROGRAM] = a->write_program,
                                            [PASSES] = stages ? dtp_step_passed_file(a, "--passes") : NULL,
                                            [RANKS] = stages ? dtp_step_passed_file(a, "--ranks") : NULL};
    enum dtp_status status = DTP_OK;
    for (enum table table = 0; table < TABLE_COUNT && status == DTP_OK; table++)
        if (paths[table])
            status = write_table(simulated, stages, table, paths[table], context->faults);
    return status;
}

static void passes_of(const void *stages, FILE *file)
{
    dtp_simulation_write_passes(stages, file);
}

enum dtp_status dtp_step_passes_draw(const struct dtp_context *context, const struct dtp_pipeline_stages *stages,
                                     const char *title)
{
    return dtp_chart_draw_written(DTP_CHART_SCHEDULE, passes_of, stages, context->arguments->chart, title,
                                  context->faults);
}
