#include "variant.h"

#include <stdio.h>
#include <string.h>

/* Fills nodes before it opens another one, as a scheduler does. False when `gpus` does not fill its nodes evenly. */
static bool resize(struct dtp_cluster *cluster, uint32_t node_gpus, uint32_t gpus)
{
    if (gpus == 0 || (gpus > node_gpus && gpus % node_gpus != 0))
        return false;
    cluster->gpus = gpus;
    cluster->gpus_per_node = gpus < node_gpus ? gpus : node_gpus;
    cluster->nodes = gpus / cluster->gpus_per_node;
    return true;
}

enum dtp_status dtp_variant_predict(const struct dtp_job *job, const struct dtp_plan *asked, uint32_t gpus,
                                    struct dtp_variant *out, char *reason, size_t reason_bytes)
{
    struct dtp_faults faults;
    faults.status = DTP_OK; /* not zeroed whole: the texts are 16 KiB, and this runs thousands of times */
    faults.count = 0;
    out->job = *job;
    out->job.asked = *asked;
    out->job.plan = *asked;
    enum dtp_status status = DTP_OK;
    if (gpus != job->cluster.gpus && !resize(&out->job.cluster, job->node_gpus, gpus))
        status = dtp_fault(&faults, DTP_BAD_INPUT, NULL, 0, "%u GPUs do not fill nodes of %u", gpus, job->node_gpus);
    /* A group wider than the cluster can only be met by the rule (everything, or the node). */
    if (out->job.plan.shard_group > gpus)
        out->job.plan.shard_group = 0;
    if (status == DTP_OK)
        status = dtp_plan_resolve(&out->job.plan, &out->job.transformer, &out->job.cluster, &faults);
    if (status == DTP_OK)
        dtp_closed_form(&out->job.transformer, &out->job.cluster, &out->job.plan, &out->prediction);
    else if (reason)
        snprintf(reason, reason_bytes, "%s", faults.count ? faults.text[0] : dtp_status_text(status));
    return status;
}
