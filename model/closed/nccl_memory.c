/* What NCCL takes of a GPU's memory: its kernels, and the buffers of every communicator that the runtime opens. */
#include "closed/allocator.h"

#include "cost/calibration.h"
#include "runtime/dtplan/lower_executor.h"
#include "plan/zeropp.h"

static uint64_t library(struct dtp_part_chain *chain)
{
    return dtp_memory_part(chain, DTP_TERM_NCCL_LIBRARY, 1, 1, (uint64_t)dtp_calibration.nccl_library_bytes);
}

/* ---- other runtimes ---------------------------------------------------------------------------------------------- */

/* The world's, for hybrid_shard those of the shard and the replicate group, and of the group that parameters are
 * resharded to; ZeRO++'s of second copies, of a node and between nodes. */
static uint64_t communicators(const struct dtp_memory_job *job)
{
    const struct dtp_plan *plan = job->plan;
    bool hybrid = job->units.ranks > 1 && job->units.replicas > 1 && plan->strategy == DTP_HYBRID_SHARD;
    return (hybrid ? 3u : 1u) + (plan->reshard_group ? 1u : 0u) + (plan->zero_hpz_partition_size > 1 ? 1u : 0u) +
           (dtp_zeropp_reduces(plan, job->cluster) ? 2u : 0u);
}

/* ---- our executor ------------------------------------------------------------------------------------------------ */

/* Buffers are made by a communicator's first collective, for as many rings as there are thread blocks; the world's has
 * none where only groups of it are used. Symmetric kernels and copies work in the arena, which is mapped instead. */
static uint64_t ring_buffers(const struct dtp_memory_job *job, uint64_t ranks, uint64_t stride,
                             struct dtp_part_chain *chain)
{
    const struct dtp_cluster *cluster = job->cluster;
    uint32_t ctas = job->plan->collective_ctas;
    double whole = dtp_calibration.nccl_ring_ctas, rings = ctas && ctas < whole ? ctas / whole : 1;
    bool between = ranks * stride > cluster->gpus_per_node;
    if (between && cluster->network == DTP_NETWORK_SOCKETS)
        return dtp_memory_part(chain, DTP_TERM_NCCL_SOCKETS, 1, 1,
                               (uint64_t)dtp_calibration.nccl_socket_communicator_bytes);
    if (!between && job->plan->symmetric_windows)
        return dtp_memory_part(chain, DTP_TERM_NCCL_WINDOWS, 1, 1, (uint64_t)dtp_calibration.nccl_window_bytes);
    return dtp_memory_part(chain, DTP_TERM_NCCL_COMMUNICATORS, 1, 1,
                           (uint64_t)(rings * dtp_calibration.nccl_communicator_bytes));
}

static uint64_t group(const struct dtp_memory_job *job, uint64_t ranks, uint64_t stride, struct dtp_part_chain *chain)
{
    if (ranks < 2)
        return 0;
    uint64_t bytes = ring_buffers(job, ranks, stride, chain);
    if (ranks < job->cluster->gpus && ranks * stride <= job->cluster->gpus_per_node)
        bytes += dtp_memory_part(chain, DTP_TERM_NCCL_SPLIT, 1, 1, (uint64_t)dtp_calibration.nccl_split_bytes);
    return bytes;
}

static uint64_t of_executor(const struct dtp_memory_job *job, struct dtp_part_chain *chain)
{
    const struct dtp_plan *plan = job->plan;
    struct dtp_executor_rules rules;
    dtp_executor_rules(job->transformer, job->cluster, plan, &rules);
    uint64_t copies = 0;
    if (rules.shard_ranks > 1 && plan->gather_engine == DTP_ENGINE_COPY)
        copies++;
    if (rules.exchanges)
        copies++;
    uint64_t bytes = library(chain) + group(job, rules.replicas, rules.shard_ranks, chain);
    if (copies < 2 || rules.gradient_norm) /* whose partial sums are all-reduced, whatever carries gradients */
        bytes += group(job, rules.shard_ranks, 1, chain);
    if (copies)
        bytes += dtp_memory_part(chain, DTP_TERM_NCCL_COPIES, copies, 1,
                                 (uint64_t)dtp_calibration.nccl_copy_communicator_bytes);
    return bytes;
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */

uint64_t dtp_nccl_bytes(const struct dtp_memory_job *job, struct dtp_part_chain *chain)
{
    bool ours = job->plan->runtime->arena;
    if (dtp_cluster_is_host(job->cluster)) /* ranks meet in shared memory */
        return 0;
    if (job->cluster->gpus == 1)
        return dtp_memory_part(chain, DTP_TERM_NCCL_ONE_RANK, ours ? 0 : 1, 1,
                               (uint64_t)dtp_calibration.nccl_one_rank_bytes);
    if (ours)
        return of_executor(job, chain);
    return library(chain) + dtp_memory_part(chain, DTP_TERM_NCCL_COMMUNICATORS, communicators(job), 1,
                                            (uint64_t)dtp_calibration.nccl_communicator_bytes);
}
