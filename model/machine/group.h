/* Groups of ranks that talk: who is in one, and what of a node and of the network its ranks share. */
#ifndef DTP_GROUP_H
#define DTP_GROUP_H

#include "machine/machine.h"

/* The ranks of one communicator and what they share. */
struct dtp_group {
    uint32_t ranks;
    uint32_t nodes;           /* nodes the group spans; ranks are spread over them evenly */
    uint32_t groups_per_node; /* groups of the same kind on one node that use its network at the same time */
    uint32_t stride;          /* between its ranks */
    uint32_t node_stride;     /* its nodes are so many apart in the order of ranks */
    double across_rails;      /* share of what goes to other nodes that goes to another place in theirs */
};

/* The group of `ranks` ranks that sit `stride` apart. */
struct dtp_group dtp_group_of(const struct dtp_cluster *cluster, uint32_t ranks, uint32_t stride);
/* The group of `ranks` consecutive ranks of the cluster (a shard group, or all). */
struct dtp_group dtp_group_consecutive(const struct dtp_cluster *cluster, uint32_t ranks);
/* The group of the gpus/stride ranks that sit `stride` apart (replicas of a hybrid shard group). */
struct dtp_group dtp_group_strided(const struct dtp_cluster *cluster, uint32_t stride);
/* Two ranks, one of which sends to the other: `from` + i to `to` + i, for each i below `ranks` at the same time. Where
 * some of them are on two nodes it is a transfer between nodes, shared by all of a node that send. */
struct dtp_group dtp_group_pair(const struct dtp_cluster *cluster, uint32_t from, uint32_t to, uint32_t ranks);

#endif
