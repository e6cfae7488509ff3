/* What DDP, with or without ZeroRedundancyOptimizer, adds to the instants of replicated parameters. */
#include "closed/memory_replicated.h"

#include "runtime/torch/closed_form_torch.h"

static bool accumulates(const struct dtp_plan *plan)
{
    return plan->accumulate > 1 && !plan->accumulate_sync;
}

/* Gradients that stand a second time, beside the buckets: without gradient_as_bucket_view every .grad; with it, those
 * that no_sync accumulated as tensors of their own, until the last backward moves them into the buckets. */
static void add_beside_buckets(const struct dtp_memory_job *job, struct dtp_instant *instant, uint64_t done)
{
    const struct dtp_plan *plan = job->plan;
    uint64_t total = job->units.total, left = done < total ? total - done : 0;
    uint64_t elements = plan->ddp_bucket_view ? (accumulates(plan) ? left : 0) : plan->accumulate > 1 ? total : done;
    dtp_instant_add(instant, DTP_TERM_BESIDE_BUCKETS, 1, elements, job->bytes.grads);
}

/* On several GPUs DDP's buckets hold all of them from construction; on one each is .grad as it is made (zero_grad sets
 * it to None), and with accumulation those of the first micro-step stay. */
static void add_gradients(const struct dtp_memory_job *job, struct dtp_instant *instant, uint64_t done)
{
    bool kept = job->plan->accumulate > 1;
    uint64_t total = job->units.total, g = job->bytes.grads;
    if (job->cluster->gpus == 1) {
        dtp_instant_add(instant, kept ? DTP_TERM_GRADS_KEPT : DTP_TERM_GRADS_MADE, 1, kept ? total : done, g);
        return;
    }
    dtp_instant_add(instant, DTP_TERM_GRADS_BUCKETS, 1, total, g);
    add_beside_buckets(job, instant, done);
}

/* On one GPU they rest as they are made, or are added to those that rest. On several each is copied into its bucket;
 * without views, or accumulated, they rest beside it (with views the accumulated one goes then). */
static void weigh_gradients(const struct dtp_memory_job *job, bool quiet, struct dtp_place_weights *bytes)
{
    const struct dtp_plan *plan = job->plan;
    int64_t g = (int64_t)job->bytes.grads;
    bool rest = job->cluster->gpus == 1 || !plan->ddp_bucket_view;
    bool moves = !rest && accumulates(plan) && !quiet;
    bytes->finished = moves ? -g : rest && plan->accumulate == 1 ? g : 0;
}

/* Between the first and the last of at least three micro-steps those that no_sync accumulated stand for all layers. */
static bool has_quiet_micro_steps(const struct dtp_memory_job *job)
{
    const struct dtp_plan *plan = job->plan;
    return job->cluster->gpus > 1 && plan->ddp_bucket_view && plan->accumulate > 2 && !plan->accumulate_sync;
}

void dtp_memory_ddp(struct dtp_memory_job *job)
{
    static const struct dtp_replicated_hooks hooks = {.add_gradients = add_gradients,
                                                      .weigh_gradients = weigh_gradients,
                                                      .has_quiet_micro_steps = has_quiet_micro_steps};
    dtp_memory_replicated(job, &hooks);
}
