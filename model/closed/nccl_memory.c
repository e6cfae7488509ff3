/* What NCCL takes of a GPU's memory: its kernels, and the buffers of every communicator that the runtime opens. */
#include "closed/allocator.h"

#include "closed/closed_form_hooks.h"
#include "cost/calibration.h"
#include "plan/zeropp.h"

uint64_t dtp_nccl_library_bytes(struct dtp_part_chain *chain)
{
    return dtp_memory_part(chain, DTP_TERM_NCCL_LIBRARY, 1, 1, (uint64_t)dtp_calibration.nccl_library_bytes);
}

/* The world's, for hybrid_shard those of the shard and the replicate group, and of the group that parameters are
 * resharded to; ZeRO++'s of second copies, of a node and between nodes. */
static uint64_t communicators(const struct dtp_memory_job *job)
{
    const struct dtp_plan *plan = job->plan;
    bool hybrid = job->units.ranks > 1 && job->units.replicas > 1 && plan->strategy == DTP_HYBRID_SHARD;
    return (hybrid ? 3u : 1u) + (plan->reshard_group ? 1u : 0u) + (plan->zero_hpz_partition_size > 1 ? 1u : 0u) +
           (dtp_zeropp_reduces(plan, job->cluster) ? 2u : 0u);
}

uint64_t dtp_nccl_bytes(const struct dtp_memory_job *job, struct dtp_part_chain *chain)
{
    const struct dtp_closed_form_hooks *hooks = job->plan->runtime->closed;
    if (dtp_cluster_is_host(job->cluster)) /* ranks meet in shared memory */
        return 0;
    if (hooks->nccl)
        return hooks->nccl(job, chain);
    if (job->cluster->gpus == 1)
        return dtp_memory_part(chain, DTP_TERM_NCCL_ONE_RANK, 1, 1, (uint64_t)dtp_calibration.nccl_one_rank_bytes);
    return dtp_nccl_library_bytes(chain) + dtp_memory_part(chain, DTP_TERM_NCCL_COMMUNICATORS, communicators(job), 1,
                                                           (uint64_t)dtp_calibration.nccl_communicator_bytes);
}
