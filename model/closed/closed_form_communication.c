/* Communication of a plan: bytes each GPU sends per optimizer step and how many operations that takes.
 *
 * Ring accounting: an all-gather or reduce-scatter of B bytes over n ranks sends B(n-1)/n from each, an all-reduce
 * twice that. A ring that spans nodes leaves each node once per channel and all channels together carry the ring's
 * traffic once, so of what the g ranks of a node send, one g-th crosses the network (NCCL rings; trees and NVLS split
 * alike): network = sent / g, link = the rest.
 *
 * What is sent is the runtime's: its hook adds it up. */
#include "closed/closed_form_hooks.h"

#include "base/bytes.h"
#include "closed/carried.h"

/* Ranks of a group of `ranks` that share a node; `stride` ranks apart in rank order (1: neighbours). */
static uint64_t ranks_in_node(const struct dtp_traffic *job, uint64_t ranks, uint64_t stride)
{
    uint64_t in_node = job->cluster->gpus_per_node / stride;
    if (in_node < 1)
        in_node = 1;
    return ranks < in_node ? ranks : in_node;
}

/* One kind of collective over a group: `sent` bytes from each GPU in `count` operations. */
void dtp_traffic_add(struct dtp_traffic *job, enum dtp_collective collective, uint64_t sent, uint64_t count,
                     uint64_t ranks, uint64_t stride)
{
    if (ranks < 2)
        return;
    uint64_t local = ranks_in_node(job, ranks, stride);
    uint64_t network = local < ranks ? sent / local : 0;
    if (collective == DTP_ALL_TO_ALL && local < ranks) /* no ring: to all ranks of other nodes */
        network = (uint64_t)((double)sent * (double)(ranks - local) / (double)(ranks - 1));
    job->out->bytes[collective] += sent;
    job->out->count[collective] += count;
    job->out->total_bytes += sent;
    job->out->network_bytes += network;
    job->out->link_bytes += sent - network;
}

/* What a ring sends of a tensor of `bytes` bytes over `ranks`: the shards of all others, bytes padded to whole ones. */
uint64_t dtp_traffic_ring(uint64_t bytes, uint64_t ranks)
{
    return ranks < 2 ? 0 : dtp_bytes_product(dtp_divide_up(bytes, ranks), ranks - 1);
}

void dtp_closed_form_communication(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                   const struct dtp_plan *plan, struct dtp_communication *out)
{
    struct dtp_traffic job = {.transformer = transformer,
                              .cluster = cluster,
                              .plan = plan,
                              .reductions = dtp_plan_reductions(plan),
                              .out = out};
    dtp_units_count(transformer, cluster, plan, &job.units);
    dtp_element_bytes_count(plan, &job.bytes);
    *out = (struct dtp_communication){0};
    plan->runtime->closed->traffic(&job);
    const struct dtp_carried_rows carried = dtp_carried_rows_of(transformer, plan);
    out->device_to_host_bytes += dtp_bytes_product(plan->accumulate * carried.down, carried.bytes);
    out->host_to_device_bytes += dtp_bytes_product(plan->accumulate * carried.up, carried.bytes);
    dtp_context_traffic(&job);
    dtp_expert_traffic(&job);
}
