#include "job/variant.h"

#include "job/bound_fit.h"
#include "job/estimate.h"
#include "runtime/runtimes.h"

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

static enum dtp_status tell(enum dtp_status status, const struct dtp_faults *faults, char *reason, size_t reason_bytes)
{
    if (status != DTP_OK && reason)
        snprintf(reason, reason_bytes, "%s", faults->count ? faults->text[0] : dtp_status_text(status));
    return status;
}

enum dtp_status dtp_variant_resolve(const struct dtp_job *job, const struct dtp_plan *asked, uint32_t gpus,
                                    struct dtp_job *out, char *reason, size_t reason_bytes)
{
    struct dtp_faults faults;
    faults.status = DTP_OK; /* not zeroed whole: the texts are 16 KiB, and this runs thousands of times */
    faults.count = 0;
    *out = *job;
    out->asked = *asked;
    out->plan = *asked;
    enum dtp_status status = DTP_OK;
    if (gpus != job->cluster.gpus && !resize(&out->cluster, job->node_gpus, gpus))
        status = dtp_fault(&faults, DTP_BAD_INPUT, NULL, 0, "%u GPUs do not fill nodes of %u", gpus, job->node_gpus);
    /* A group wider than the cluster can only be met by the rule (everything, or the node). */
    if (out->plan.shard_group > gpus)
        out->plan.shard_group = 0;
    if (status == DTP_OK)
        status = dtp_plan_resolve(&out->plan, &out->transformer, &out->cluster, &faults);
    return tell(status, &faults, reason, reason_bytes);
}

enum dtp_status dtp_variant_time(const struct dtp_job *job, const struct dtp_plan *asked, uint32_t gpus,
                                 struct dtp_variant *out, char *reason, size_t reason_bytes)
{
    enum dtp_status status = dtp_variant_resolve(job, asked, gpus, &out->job, reason, reason_bytes);
    out->prediction.memory = (struct dtp_memory){.verdict = DTP_VERDICT_FITS};
    if (status == DTP_OK)
        status = dtp_closed_form(&out->job.transformer, &out->job.cluster, &out->job.plan, &out->prediction);
    return status;
}

enum dtp_status dtp_variant_predict(const struct dtp_job *job, const struct dtp_plan *asked, uint32_t gpus,
                                    struct dtp_variant *out, char *reason, size_t reason_bytes)
{
    enum dtp_status status = dtp_variant_time(job, asked, gpus, out, reason, reason_bytes);
    if (status != DTP_OK)
        return status;
    struct dtp_faults faults;
    faults.status = DTP_OK;
    faults.count = 0;
    const struct dtp_job *made = &out->job;
    status =
        dtp_estimate_memory(&made->transformer, &made->cluster, &made->plan, &out->prediction.memory, NULL, &faults);
    return tell(status, &faults, reason, reason_bytes);
}

enum dtp_status dtp_job_runs(const struct dtp_job *job, bool *runs, struct dtp_faults *faults)
{
    struct dtp_bound_fit fit;
    struct dtp_memory memory;
    dtp_bound_fit_of(&job->transformer, &job->cluster, &job->plan, NULL, &fit);
    *runs = fit.surely_not_oom;
    if (fit.best_verdict == DTP_VERDICT_OOM || fit.surely_not_oom)
        return DTP_OK;
    enum dtp_status status = dtp_estimate_memory(&job->transformer, &job->cluster, &job->plan, &memory, NULL, faults);
    *runs = status == DTP_OK && memory.verdict != DTP_VERDICT_OOM;
    return status;
}

static enum dtp_status predict_closed(const void *context, const struct dtp_job *job, struct dtp_prediction *out,
                                      struct dtp_faults *faults)
{
    (void)context;
    /* How far the host gets ahead then decides what is alive, and no formula knows. */
    if (!job->plan.limit_all_gathers)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                         "limit_all_gathers: without it there is no closed form; use --fidelity simulated, or dtplan "
                         "simulate");
    return dtp_estimate(&job->transformer, &job->cluster, &job->plan, out, faults);
}

static enum dtp_status predict_closed_from(const struct dtp_estimate_base *base, const struct dtp_job *job,
                                           struct dtp_prediction *out)
{
    return dtp_estimate_from(base, &job->transformer, &job->cluster, &job->plan, out);
}

const char *dtp_predictor_flag(const char *name)
{
    return strcmp(name, "closed") == 0 ? "bounds" : name;
}

struct dtp_predictor dtp_predictor_closed(void)
{
    return (struct dtp_predictor){.name = "closed", .predict = predict_closed, .predict_from = predict_closed_from};
}
