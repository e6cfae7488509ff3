/* Inside of the closed form of communication: what runtimes add up there.
 *
 * Notation: psi parameters, N shard ranks, R replicas, K micro-steps, w bytes on the wire of gathered weights, r of
 * reduced gradients. Recomputation gathers nothing again: weights are gathered once for backward anyway. */
#ifndef DTP_TRAFFIC_H
#define DTP_TRAFFIC_H

#include "closed/closed_form.h"
#include "closed/sharding.h"

struct dtp_traffic {
    const struct dtp_transformer *transformer;
    const struct dtp_cluster *cluster;
    const struct dtp_plan *plan;
    struct dtp_units units;
    struct dtp_element_bytes bytes;
    uint64_t reductions; /* micro-steps that reduce gradients: K, or 1 with no_sync */
    struct dtp_communication *out;
};

/* One kind of collective over a group: `sent` bytes from each GPU in `count` operations; `stride`: ranks apart in rank
 * order (1: neighbours). A group of one rank sends nothing. */
void dtp_traffic_add(struct dtp_traffic *traffic, enum dtp_collective collective, uint64_t sent, uint64_t count,
                     uint64_t ranks, uint64_t stride);
/* What a ring sends of a tensor of `bytes` bytes over `ranks`: the shards of all others, bytes padded to whole ones. */
uint64_t dtp_traffic_ring(uint64_t bytes, uint64_t ranks);

#endif
