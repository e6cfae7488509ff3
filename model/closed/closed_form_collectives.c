/* The closed form of collectives: seconds of each kind alone, how much of them hides behind which window of compute,
 * and what those that hide take from it.
 *
 * Windows. A sharded step gathers unit i+1 while unit i computes, so of U equal units the first gather is exposed and
 * the others hide behind the block time; in backward gathers and reduce-scatters share one communicator (a FIFO), so
 * their sum competes with the backward time; the last reduce-scatter has nothing to hide behind. Sums of maxima over
 * equal units are maxima of sums, which is what makes the form closed. */
#include "closed/closed_form_hooks.h"

#include "cost/cluster_cost.h"
#include "cost/collective_choice.h"
#include "closed/sharding.h"

#include <math.h>

/* Seconds of `count` equal operations of one collective over a group, alone. */
static double group_total_s(const struct dtp_timing *c, const struct dtp_group *group, enum dtp_collective collective,
                            uint64_t bytes, uint64_t count)
{
    if (!count)
        return 0;
    struct dtp_collective_cost cost =
        dtp_collective_cost_chosen(c->cluster, group, &c->execution, collective, DTP_CARRIED_PLAIN);
    return (double)count * dtp_collective_time(&cost, (double)bytes / (double)count);
}

/* The same of values and their scales. */
static double with_scales_s(const struct dtp_timing *c, const struct dtp_group *group, enum dtp_collective collective,
                            uint64_t bytes, uint64_t count, struct dtp_scales scales)
{
    return group_total_s(c, group, collective, bytes - scales.bytes, count - scales.count) +
           group_total_s(c, group, collective, scales.bytes, scales.count);
}

/* Neighbours that gather among themselves what the shard group has gathered before; 0: none do. */
static uint32_t narrow_group(const struct dtp_plan *plan)
{
    const struct dtp_closed_form_hooks *hooks = plan->runtime->closed;
    uint32_t second = hooks->second_copy_ranks ? hooks->second_copy_ranks(plan) : 1;
    return plan->reshard_group ? plan->reshard_group : second > 1 ? second : 0;
}

/* All-gathers within it. */
static double narrow_gather_s(const struct dtp_timing *c, const struct dtp_communication *communication)
{
    struct dtp_group group = dtp_group_consecutive(c->cluster, narrow_group(c->plan));
    return with_scales_s(c, &group, DTP_ALL_GATHER, communication->narrow_gather_bytes,
                         communication->narrow_gather_count, communication->narrow_gather_scales);
}

/* Seconds of all operations of one collective, alone. */
static double collective_total_s(const struct dtp_timing *c, const struct dtp_communication *communication,
                                 enum dtp_collective collective)
{
    const struct dtp_plan *plan = c->plan;
    const struct dtp_scales *context = &communication->context[collective],
                            *experts = &communication->experts[collective];
    uint64_t bytes = communication->bytes[collective] - context->bytes - experts->bytes;
    uint64_t count = communication->count[collective] - context->count - experts->count;
    bool replicas = collective == DTP_ALL_REDUCE && plan->shard_group < c->cluster->gpus;
    struct dtp_group group =
        replicas ? dtp_group_strided(c->cluster, plan->shard_group)
                 : dtp_group_consecutive(c->cluster, plan->shard_group > 1 ? plan->shard_group : c->cluster->gpus);
    if (collective == DTP_ALL_TO_ALL && plan->runtime->closed->exchanges_by_node) {
        struct dtp_group between = dtp_group_strided(c->cluster, c->cluster->gpus_per_node);
        struct dtp_group node = dtp_group_consecutive(c->cluster, c->cluster->gpus_per_node);
        uint64_t inside = communication->narrow_exchange_bytes, insides = communication->narrow_exchange_count;
        return with_scales_s(c, &node, collective, inside, insides, communication->narrow_exchange_scales) +
               with_scales_s(c, &between, collective, bytes - inside, count - insides, communication->exchange_scales);
    }
    if (collective != DTP_ALL_GATHER)
        return group_total_s(c, &group, collective, bytes, count);
    return c->narrow_gather_s + with_scales_s(c, &group, collective, bytes - communication->narrow_gather_bytes,
                                              count - communication->narrow_gather_count, communication->gather_scales);
}

void dtp_timing_add_collectives(struct dtp_timing *c, const struct dtp_communication *communication,
                                struct dtp_time *time)
{
    c->narrow_gather_s = narrow_group(c->plan) ? narrow_gather_s(c, communication) : 0;
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++) {
        time->collective_s[i] = collective_total_s(c, communication, (enum dtp_collective)i);
        time->communication_s += time->collective_s[i];
    }
}

/* ---- what no window hides ---------------------------------------------------------------------------------------- */

double dtp_timing_root_share(const struct dtp_timing *c)
{
    return 1 - (double)c->count.layers / (double)c->count.total;
}

static double exposed_gathering(const struct dtp_timing *c, const struct dtp_time *time,
                                const struct dtp_windows *window)
{
    const struct dtp_plan *plan = c->plan;
    double units = plan->wrap_layers ? ceil(c->layers / plan->wrap_layers) : 1;
    double micro_steps = plan->accumulate, reductions = dtp_plan_reductions(plan);
    double root = plan->wrap_layers ? dtp_timing_root_share(c) : 1, unit = (1 - root) / units, tail = root + unit;
    double prefetched = plan->prefetch ? 1 - tail : 0, hide = (units - 1) / units;
    /* Backward gathers what was released after forward: all but a root that is kept, or a head that is. */
    bool ends = dtp_plan_wraps_ends(plan, c->transformer);
    double kept = dtp_plan_keeps_root(plan) ? root : ends ? (double)c->count.head / (double)c->count.total : 0;
    double again = plan->reshard_after_forward ? 1 - kept : 0;
    double narrow_s = c->narrow_gather_s, wide_s = time->collective_s[DTP_ALL_GATHER] - narrow_s;
    bool apart = narrow_group(plan);
    double replays = dtp_plan_gathers_for_replays(plan) ? 1 - root : 0; /* beside what they compute */
    double gather_s = apart ? wide_s / micro_steps : wide_s / (micro_steps * (1 + again + replays));
    double again_s = apart ? narrow_s / (micro_steps * again) : gather_s;
    double reduce_s = (time->collective_s[DTP_REDUCE_SCATTER] + time->collective_s[DTP_ALL_TO_ALL]) / reductions;
    double all_reduce_s = time->collective_s[DTP_ALL_REDUCE] / reductions;
    double forward = gather_s * (1 - prefetched) + fmax(0, gather_s * prefetched - window->forward_s * hide);
    /* Into backward: the root comes back exposed, or behind the last block where it is the embedding alone; the last
     * unit behind the head's and loss's backward. */
    double backward = 0, behind_blocks = 0;
    if (again > 0) {
        double back = again - (1 - root);
        backward = again_s * (ends ? 0 : back) + fmax(0, again_s * unit - (plan->prefetch ? window->head_s : 0));
        behind_blocks = again_s * (prefetched + (ends && plan->prefetch ? back : 0));
        backward += again_s * (1 - tail + (ends ? back : 0)) - behind_blocks;
        behind_blocks += again_s * replays;
    }
    /* In micro-steps that reduce: gathers and reduce-scatters share a FIFO, unless the gathers are within a group of
     * their own; the replicas' all-reduce has another. */
    double scatters = reduce_s * (1 - tail);
    double shared = apart ? fmax(behind_blocks, scatters) : behind_blocks + scatters;
    double fifo = fmax(shared, all_reduce_s * (1 - tail));
    double with_reduce = fmax(0, fifo - window->backward_s * hide) + (reduce_s + all_reduce_s) * tail;
    double without = fmax(0, behind_blocks - window->backward_s * hide);
    return micro_steps * (forward + backward) + reductions * with_reduce + (micro_steps - reductions) * without;
}

/* A stage of a pipeline gathers its weights once in a step, as its first micro-batch comes to each layer, and reduces
 * all gradients behind its last backward. Where its host runs ahead the gathers of all stages begin with the step, so
 * that those of the first stage alone are waited for, beside its first forward; where it reads rows of experts they
 * follow the passes (pipeline_time.c, gathers_s) but for those before the first layer. Sums of replicas follow those of
 * shards, unit by unit. */
static double exposed_of_stage(const struct dtp_timing *c, const struct dtp_time *time,
                               const struct dtp_windows *window)
{
    const double units = c->plan->wrap_layers ? ceil(c->layers / c->plan->wrap_layers) : 1,
                 root = c->plan->wrap_layers ? dtp_timing_root_share(c) : 1, tail = root + (1 - root) / units,
                 gather_s = time->collective_s[DTP_ALL_GATHER],
                 later_s = c->plan->ep > 1 ? 0 : fmax(0, gather_s * (1 - tail) - window->forward_s),
                 shards_s = time->collective_s[DTP_REDUCE_SCATTER], replicas_s = time->collective_s[DTP_ALL_REDUCE];
    return gather_s * tail + later_s + fmax(shards_s, replicas_s) + fmin(shards_s, replicas_s) / units;
}

static double exposed_replicated(const struct dtp_timing *c, const struct dtp_time *time,
                                 const struct dtp_windows *window)
{
    const struct dtp_plan *plan = c->plan;
    double reductions = dtp_plan_reductions(plan);
    double reduce_s = (time->collective_s[DTP_ALL_REDUCE] + time->collective_s[DTP_REDUCE_SCATTER]) / reductions;
    /* unless it hides behind the next step's forward */
    double after_step_s =
        fmax(0, time->collective_s[DTP_ALL_GATHER] - (dtp_plan_overlaps_gather(plan) ? window->forward_s : 0));
    if (!dtp_plan_overlaps_reductions(plan))
        return reductions * reduce_s + after_step_s;
    /* The embedding's gradient is the last to be ready and its bucket has no compute left to hide behind. */
    double last = (double)(c->count.embedding + c->count.position) / (double)c->count.total;
    struct dtp_element_bytes element;
    dtp_element_bytes_count(plan, &element);
    double bucket = (double)plan->ddp_bucket_bytes / ((double)element.grads * (double)c->count.total);
    double tail = fmin(1, fmax(last, bucket));
    double exposed = reduce_s * tail + fmax(0, reduce_s * (1 - tail) - window->backward_s);
    return reductions * exposed + after_step_s;
}

double dtp_timing_exposed_s(struct dtp_timing *c, const struct dtp_time *time, const struct dtp_windows *window)
{
    if (dtp_cluster_is_host(c->cluster) || c->plan->launch_blocking) /* one thing at a time */
        return time->communication_s;
    const struct dtp_closed_form_hooks *hooks = c->plan->runtime->closed;
    double exposed_s = hooks->exposed_s                                             ? hooks->exposed_s(c, time, window)
                       : dtp_plan_shards_params(c->plan) && c->plan->pipeline_ranks ? exposed_of_stage(c, time, window)
                       : dtp_plan_shards_params(c->plan)                            ? exposed_gathering(c, time, window)
                                                         : exposed_replicated(c, time, window);
    return fmin(exposed_s, time->communication_s);
}

/* Hidden collectives are not free: NCCL's CTAs sit on SMs for as long as they run and its buffers pass through HBM. */
double dtp_collective_taken_s(const struct dtp_cluster *cluster, const struct dtp_group *group,
                              const struct dtp_execution *execution, enum dtp_collective collective, double seconds,
                              double bytes)
{
    struct dtp_collective_load load = dtp_collective_load(cluster, group, execution, collective, DTP_CARRIED_PLAIN);
    double free_share = 1 - dtp_matmul_share(&cluster->gpu, execution); /* SMs that nothing loses */
    return fmax(0, load.sm_share - free_share) * load.slowdown * seconds +
           load.memory_passes * bytes / cluster->gpu.memory_bytes_per_s;
}

/* Of each kind the same share is hidden. The loss cannot exceed what is hidden. */
double dtp_timing_contention_s(const struct dtp_timing *c, const struct dtp_communication *communication,
                               const struct dtp_time *time, double exposed_s)
{
    double hidden_s = time->communication_s - exposed_s, loss = 0;
    struct dtp_group group =
        dtp_group_consecutive(c->cluster, c->plan->shard_group > 1 ? c->plan->shard_group : c->cluster->gpus);
    if (time->communication_s <= 0)
        return 0;
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++)
        loss += dtp_collective_taken_s(c->cluster, &group, &c->execution, (enum dtp_collective)i, time->collective_s[i],
                                       (double)communication->bytes[i]);
    return fmin(loss * hidden_s / time->communication_s, hidden_s);
}

double dtp_timing_longest_communicator_s(const struct dtp_timing *c, const struct dtp_time *time)
{
    double longest_s = time->communication_s - c->narrow_gather_s - time->collective_s[DTP_ALL_TO_ALL];
    if (dtp_plan_shards_params(c->plan) && c->plan->shard_group < c->cluster->gpus)
        longest_s = fmax(time->collective_s[DTP_ALL_REDUCE], longest_s - time->collective_s[DTP_ALL_REDUCE]);
    if (dtp_execution_copies(&c->execution, DTP_ALL_GATHER))
        longest_s = fmax(time->collective_s[DTP_ALL_GATHER], longest_s - time->collective_s[DTP_ALL_GATHER]);
    if (dtp_execution_copies(&c->execution, DTP_ALL_TO_ALL))
        longest_s = fmax(longest_s, time->collective_s[DTP_ALL_TO_ALL]);
    return fmax(longest_s, c->narrow_gather_s);
}
