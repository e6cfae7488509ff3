/* dtplan simulate: the job's step program, run operation by operation. */
#include "command.h"

#include "output_file.h"
#include "simulation_report.h"

enum table { TRACE, TIMELINE, MEMORY };

static enum dtp_status write_table(const struct dtp_simulated *simulated, enum table table, const char *path,
                                   struct dtp_faults *faults)
{
    struct dtp_output_file output;
    enum dtp_status status = path ? dtp_output_open(path, &output, faults) : DTP_OK;
    if (!path || status != DTP_OK)
        return status;
    switch (table) {
    case TRACE: status = dtp_simulation_write_trace(simulated, output.file, faults); break;
    case TIMELINE: dtp_simulation_write_timeline(simulated, output.file); break;
    case MEMORY: status = dtp_simulation_write_memory(simulated, output.file, faults); break;
    }
    if (status == DTP_OK)
        return dtp_output_close(&output, faults);
    dtp_output_abandon(&output);
    return status;
}

static enum dtp_status write_tables(const struct dtp_context *context, const struct dtp_simulated *simulated)
{
    const struct dtp_arguments *a = context->arguments;
    enum dtp_status status = write_table(simulated, TRACE, a->trace, context->faults);
    if (status == DTP_OK)
        status = write_table(simulated, TIMELINE, a->timeline, context->faults);
    if (status == DTP_OK)
        status = write_table(simulated, MEMORY, a->memory, context->faults);
    return status;
}

static enum dtp_status simulate(const struct dtp_context *context, const struct dtp_job *job)
{
    struct dtp_simulation_options options = dtp_simulation_options_default();
    struct dtp_simulated simulated;
    enum dtp_status status = dtp_simulated_create(job, &options, &simulated, context->faults);
    if (status != DTP_OK)
        return status;
    status = write_tables(context, &simulated);
    if (status == DTP_OK && context->arguments->json)
        status = dtp_simulation_json(&simulated, context->out, context->faults);
    else if (status == DTP_OK)
        dtp_simulation_text(&simulated, &context->page);
    if (status == DTP_OK && simulated.prediction.memory.verdict == DTP_VERDICT_OOM)
        status = DTP_NO;
    dtp_simulated_release(&simulated);
    return status;
}

enum dtp_status dtp_command_simulate(const struct dtp_context *context)
{
    return dtp_context_with_job(context, simulate);
}
