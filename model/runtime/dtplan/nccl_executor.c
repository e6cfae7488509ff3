/* What NCCL takes of a GPU's memory under our executor: its kernels, and the buffers of the groups that a plan uses. */
#include "runtime/dtplan/closed_form_executor.h"

#include "closed/closed_form_hooks.h"
#include "cost/calibration.h"
#include "plan/slice.h"
#include "runtime/dtplan/lower_executor.h"

/* Part of NCCL's thread blocks, and of the buffers that go with them, that a plan leaves it. */
static double whole_or_fewer(uint32_t ctas, double whole)
{
    return ctas && ctas < whole ? ctas / whole : 1;
}

/* Buffers are made by a communicator's first collective, for as many rings as there are thread blocks; the world's has
 * none where only groups of it are used. Symmetric kernels and copies work in the arena, which is mapped instead. */
static uint64_t ring_buffers(const struct dtp_beside *b, uint64_t ranks, uint64_t stride, struct dtp_memory_list *list)
{
    const struct dtp_cluster *cluster = b->cluster;
    const double rings = whole_or_fewer(b->plan->executor.collective_ctas, dtp_calibration.nccl_ring_ctas);
    bool between = ranks * stride > cluster->gpus_per_node;
    if (between && cluster->network == DTP_NETWORK_SOCKETS)
        return dtp_memory_part(list, DTP_TERM_NCCL_SOCKETS, 1, 1,
                               (uint64_t)dtp_calibration.nccl_socket_communicator_bytes);
    if (!between && b->plan->executor.symmetric_windows)
        return dtp_memory_part(list, DTP_TERM_NCCL_WINDOWS, 1, 1, (uint64_t)dtp_calibration.nccl_window_bytes);
    return dtp_memory_part(list, DTP_TERM_NCCL_COMMUNICATORS, 1, 1,
                           (uint64_t)(rings * dtp_calibration.nccl_communicator_bytes));
}

static uint64_t group(const struct dtp_beside *b, uint64_t ranks, uint64_t stride, struct dtp_memory_list *list)
{
    if (ranks < 2)
        return 0;
    uint64_t bytes = ring_buffers(b, ranks, stride, list);
    if (ranks < b->cluster->gpus && ranks * stride <= b->cluster->gpus_per_node)
        bytes += dtp_memory_part(list, DTP_TERM_NCCL_SPLIT, 1, 1, (uint64_t)dtp_calibration.nccl_split_bytes);
    return bytes;
}

/* Buffers for each neighbour that a rank of a pipeline sends to or receives from, of which those between others have
 * two; and one communicator's for what ends a step. Chunks of the model beyond one a rank, and a second direction, make
 * passes go both ways, each with neighbours of its own (lower_transfers.c). Ranks that have a stage twice, once of each
 * direction, and the first and the last with a matrix that is embedding and head, get each other's gradients by a
 * transfer of any number of thread blocks (lower_executor_stages.c): two H200, dualpipe, 404 MB beyond the rest; with
 * it +0.0 % (reports/h200/validate/layouts_pushed.csv). Of a stage between, which has none of the latter, the slice's
 * plan says so (sim/simulated.c). */
static uint64_t transfers(const struct dtp_beside *b, struct dtp_memory_list *list)
{
    const struct dtp_plan *plan = b->plan;
    const bool sockets = plan->pipeline_on_sockets;
    const double ctas = dtp_pass_transfer_ctas(plan->executor.collective_ctas);
    if (!plan->pipeline_ranks)
        return 0;
    const uint64_t neighbours = plan->pipeline_ranks == 2 ? 1 : 2, ways = 2 * (plan->virtual_stages > 1 ? 2u : 1u);
    const bool joins = plan->schedule == DTP_SCHEDULE_DUALPIPE || plan->pipeline_two_tables;
    const uint64_t joined = joins && !sockets
                                ? dtp_memory_part(list, DTP_TERM_NCCL_TRANSFERS, 1, 1,
                                                  (uint64_t)(dtp_calibration.nccl_transfer_bytes *
                                                             whole_or_fewer(plan->executor.collective_ctas,
                                                                            dtp_calibration.nccl_transfer_ctas)))
                                : 0;
    return joined +
           dtp_memory_part(
               list, DTP_TERM_NCCL_TRANSFERS, neighbours * ways, 1,
               (uint64_t)(sockets ? dtp_calibration.nccl_socket_communicator_bytes
                                  : dtp_calibration.nccl_transfer_bytes * ctas / dtp_calibration.nccl_transfer_ctas)) +
           dtp_memory_part(list, DTP_TERM_NCCL_COMMUNICATORS, 1, 1,
                           (uint64_t)(sockets ? dtp_calibration.nccl_socket_communicator_bytes
                                              : dtp_calibration.nccl_communicator_bytes));
}

/* Of ranks that divide experts, of those with the same ones, of copies of these. */
static uint64_t expert_groups(const struct dtp_beside *b, const struct dtp_executor_rules *rules,
                              struct dtp_memory_list *list)
{
    const struct dtp_cluster all = dtp_expert_cluster(b->cluster, b->plan);
    struct dtp_beside folded = *b;
    const uint64_t ep = b->plan->ep, shards = dtp_executor_expert_shards(b->plan, rules);
    folded.cluster = &all;
    return ep < 2 ? 0
                  : group(&folded, ep, 1, list) + group(&folded, shards, ep, list) +
                        group(&folded, dtp_executor_expert_copies(b->plan, rules), ep * shards, list);
}

/* What ranks exchange inside a machine has no buffers (exec/ranks/nccl_exchange.h). Across machines, and beside
 * windows, NCCL sends it, and its buffers, 0.2 to 0.5 GB of two H200, are not counted. */
uint64_t dtp_executor_nccl_bytes(const struct dtp_beside *b, struct dtp_memory_list *list)
{
    const struct dtp_plan *plan = b->plan;
    uint64_t divided = plan->sequence_shards > 1 /* ranks of one node, whatever the slice's cluster is */
                           ? dtp_memory_part(list, DTP_TERM_NCCL_COMMUNICATORS, 1, 1,
                                             (uint64_t)dtp_calibration.nccl_communicator_bytes)
                           : 0;
    divided += transfers(b, list);
    struct dtp_executor_rules rules;
    dtp_executor_rules(b->transformer, b->cluster, plan, &rules);
    divided += expert_groups(b, &rules, list);
    if (b->cluster->gpus == 1)
        return divided ? divided + dtp_nccl_library_bytes(list) : 0;
    uint64_t copies = 0; /* communicators */
    if (rules.shard_ranks > 1 && plan->executor.gather_engine == DTP_ENGINE_COPY)
        copies++;
    if (rules.exchanges)
        copies++;
    const bool both = copies == 2;
    uint64_t bytes = divided + dtp_nccl_library_bytes(list) + group(b, rules.replicas, rules.shard_ranks, list);
    if (!both || rules.gradient_norm) /* whose partial sums are all-reduced, whatever carries gradients */
        bytes += group(b, rules.shard_ranks, 1, list);
    if (plan->cp > 1 && rules.exchanges && plan->cp_comm == DTP_CP_A2A) {
        copies++;              /* all-to-alls of tokens for heads go the way of those of gradients */
    } else if (plan->cp > 1) { /* one of their own, be they all ranks: its transfers run beside reductions */
        struct dtp_stretch context = dtp_plan_group(plan, b->cluster, DTP_AXES(CP));
        bytes += group(b, context.size, context.stride, list);
    }
    if (copies)
        bytes += dtp_memory_part(list, DTP_TERM_NCCL_COPIES, copies, 1,
                                 (uint64_t)dtp_calibration.nccl_copy_communicator_bytes);
    return bytes;
}
