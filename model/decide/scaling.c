#include "decide/scaling.h"

#include <math.h>
#include <string.h>

/* Divisors of the node, then doublings of whole nodes, up to the job's own count. */
static uint32_t next_count(uint32_t gpus, uint32_t node_gpus)
{
    if (gpus >= node_gpus)
        return gpus * 2;
    do
        gpus++;
    while (node_gpus % gpus != 0);
    return gpus;
}

/* The plan on fewer GPUs, with `micro_steps`, and whether it runs there: what its step takes is asked of few of them
 * (tokens_per_s_per_gpu). Within one group hybrid_shard is full_shard: there is no replica to average with. */
static enum dtp_status resolve_on(const struct dtp_job *job, uint32_t gpus, uint64_t micro_steps, struct dtp_job *out,
                                  bool *runs)
{
    struct dtp_plan asked = job->asked;
    asked.accumulate = (uint32_t)micro_steps;
    if (asked.strategy == DTP_HYBRID_SHARD && gpus <= job->plan.shard_group) {
        asked.strategy = DTP_FULL_SHARD;
        asked.shard_group = 0;
    }
    enum dtp_status status = dtp_variant_resolve(job, &asked, gpus, out, NULL, 0);
    return status == DTP_OK ? dtp_job_runs(out, runs, NULL) : status;
}

static double tokens_per_s_per_gpu(const struct dtp_job *job)
{
    struct dtp_prediction prediction;
    return dtp_closed_form(&job->transformer, &job->cluster, &job->plan, &prediction) == DTP_OK
               ? prediction.throughput.tokens_per_s_per_gpu
               : NAN;
}

/* The smallest count that holds the job with the same global batch; where the job itself does not fit, the smallest. */
static void strong_scaling(const struct dtp_job *job, const struct dtp_prediction *prediction, struct dtp_scaling *out)
{
    struct dtp_job fewer;
    bool runs, own_fits = prediction->memory.verdict != DTP_VERDICT_OOM;
    for (uint32_t gpus = 1; gpus < job->cluster.gpus && gpus <= UINT32_MAX / 2;
         gpus = next_count(gpus, job->node_gpus)) {
        uint64_t micro_steps = (uint64_t)job->plan.accumulate * job->cluster.gpus;
        if (micro_steps % gpus || micro_steps / gpus > UINT32_MAX ||
            resolve_on(job, gpus, micro_steps / gpus, &fewer, &runs) != DTP_OK || (own_fits && !runs))
            continue;
        out->strong_reference_gpus = gpus;
        out->strong_efficiency = prediction->throughput.tokens_per_s_per_gpu / tokens_per_s_per_gpu(&fewer);
        return;
    }
    out->strong_reference_gpus = job->cluster.gpus;
    out->strong_efficiency = 1;
}

void dtp_scaling_of(const struct dtp_job *job, const struct dtp_prediction *prediction, struct dtp_scaling *out)
{
    struct dtp_job fewer, reference;
    double own = prediction->throughput.tokens_per_s_per_gpu;
    memset(out, 0, sizeof *out);
    for (uint32_t gpus = 1; gpus < job->cluster.gpus && gpus <= UINT32_MAX / 2;
         gpus = next_count(gpus, job->node_gpus)) {
        bool fits;
        if (resolve_on(job, gpus, job->asked.accumulate, &fewer, &fits) != DTP_OK)
            continue;
        bool first = out->reference_gpus == 0;
        if (fits || first) {
            out->reference_gpus = gpus;
            out->reference_fits = fits;
            reference = fewer;
        }
        if (fits)
            break;
    }
    /* A job that fits only as it stands is its own reference; so is a job on one GPU. */
    bool own_fits = prediction->memory.verdict != DTP_VERDICT_OOM;
    if (out->reference_gpus == 0 || (!out->reference_fits && own_fits)) {
        out->reference_gpus = job->cluster.gpus;
        out->reference_fits = own_fits;
        out->reference_tokens_per_s_per_gpu = own;
    } else {
        out->reference_tokens_per_s_per_gpu = tokens_per_s_per_gpu(&reference);
    }
    if (out->reference_tokens_per_s_per_gpu > 0)
        out->efficiency = own / out->reference_tokens_per_s_per_gpu;
    strong_scaling(job, prediction, out);
}
