/* Megatron's parts of the closed form, of one rank's slice: what it keeps and what it sends. */
#include "closed/closed_form_hooks.h"

#include "base/bytes.h"
#include "runtime/megatron/megatron.h"
#include "closed/model_parallel.h"

#define MEGATRON_BUCKET 40000000u /* elements, or 1e6 per data parallel rank */

/* Experts that ranks divide, among those that have the same ones. */
static void add_experts(struct dtp_traffic *job, uint64_t elements, uint64_t buckets)
{
    uint64_t same = dtp_plan_expert_replicas(job->plan, job->cluster), ep = job->plan->ep;
    struct dtp_scales *of = job->out->experts;
    uint64_t sent = dtp_bytes_product(job->reductions, dtp_traffic_ring(elements * job->bytes.reduce, same));
    if (ep < 2 || same < 2)
        return;
    if (job->plan->strategy == DTP_DDP) {
        of[DTP_ALL_REDUCE] = (struct dtp_scales){2 * sent, job->reductions * buckets};
    } else {
        of[DTP_REDUCE_SCATTER] = (struct dtp_scales){sent, job->reductions * buckets};
        uint64_t wire = elements * (job->bytes.params - dtp_fp8_gather_saves(job->plan));
        of[DTP_ALL_GATHER] = (struct dtp_scales){dtp_traffic_ring(wire, same), buckets};
    }
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++)
        if (i != DTP_ALL_TO_ALL)
            dtp_expert_traffic_add(job, (enum dtp_collective)i, &of[i], same, ep * job->plan->megatron.etp);
}

/* Megatron reduces its fp32 buffer once a step: all-reduce, or with the distributed optimizer reduce-scatter and an
 * all-gather of the updated weights. */
static void traffic(struct dtp_traffic *job)
{
    const struct dtp_units *u = &job->units;
    uint64_t gpus = job->cluster->gpus, per_rank = 1000000 * gpus;
    uint64_t bucket = per_rank > MEGATRON_BUCKET ? per_rank : MEGATRON_BUCKET;
    bool sharded = job->plan->strategy == DTP_ZERO2; /* the whole model is one chunk */
    uint64_t experts = u->expert_layers * u->expert_elements, dense = u->trained - experts;
    uint64_t count = dtp_divide_up(dense, bucket), collectives = sharded ? 1 : count;
    uint64_t reductions = job->reductions;
    uint64_t sent = dtp_traffic_ring(dense * job->bytes.reduce, gpus);
    add_experts(job, experts, dtp_divide_up(experts, bucket));
    if (job->plan->strategy == DTP_DDP) {
        dtp_traffic_add(job, DTP_ALL_REDUCE, dtp_bytes_product(reductions, 2 * sent), reductions * count, gpus, 1);
        return;
    }
    dtp_traffic_add(job, DTP_REDUCE_SCATTER, dtp_bytes_product(reductions, sent), reductions * collectives, gpus, 1);
    uint64_t saved = dtp_fp8_gather_saves(job->plan);
    uint64_t wire = dense * job->bytes.params - (saved ? saved * (u->narrow - experts) : 0);
    dtp_traffic_add(job, DTP_ALL_GATHER, dtp_traffic_ring(wire, gpus), collectives, gpus, 1);
}

const struct dtp_closed_form_hooks dtp_megatron_closed_form = {
    .traffic = traffic,
    .slice = dtp_slice_of,
    .add_stages = dtp_stages_of_slice,
    .add_stages_memory = dtp_stages_memory_of_slice,
};
