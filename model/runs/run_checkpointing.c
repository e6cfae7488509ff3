/* What a run recomputed where its row does not say. */
#include "job/estimate.h"
#include "runs/run_writer.h"

#include <string.h>

/* A run that was published fitted its GPUs. So where the source leaves open how much was recomputed, a job whose
 * tensors alone (no context, no fragments) exceed the memory is not the job that ran: "selective" in blocks is then
 * every block, and not stated at all is refused. */
enum dtp_status dtp_run_settle_checkpointing(const struct dtp_run *run, const struct dtp_catalog *catalog,
                                             struct dtp_scenario *scenario, struct dtp_job *job,
                                             struct dtp_faults *faults)
{
    struct dtp_memory estimate;
    const struct dtp_memory *memory = &estimate;
    bool by_block = strcmp(run->checkpointing, "selective") == 0 && job->plan.checkpointing == DTP_CHECKPOINT_EVERY_N &&
                    !strstr(run->notes, "selective(layer)");
    if (*run->checkpointing && !by_block)
        return DTP_OK;
    enum dtp_status status = dtp_estimate_memory(&job->transformer, &job->cluster, &job->plan, &estimate, NULL, faults);
    if (status != DTP_OK)
        return status;
    if (memory->allocated_peak_bytes <= memory->capacity_bytes)
        return DTP_OK;
    if (!by_block)
        return dtp_run_lacks(run),
               dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                         "activation_checkpointing is empty, and without it the job takes %.0f of %.0f GiB",
                         (double)memory->allocated_peak_bytes / 1073741824,
                         (double)memory->capacity_bytes / 1073741824);
    status = dtp_scenario_set(scenario, "checkpointing", "full", NULL, 0, faults);
    return status ? status : dtp_scenario_resolve(scenario, catalog, job, faults);
}
