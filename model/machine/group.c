#include "machine/group.h"

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

struct dtp_group dtp_group_of(const struct dtp_cluster *cluster, uint32_t ranks, uint32_t stride)
{
    uint32_t per_node = cluster->gpus_per_node;
    if (stride >= per_node) /* one rank of a group per node; every GPU of a node is in another group */
        return (struct dtp_group){ranks, ranks, per_node, stride, stride / per_node, stride % per_node ? 1.0 : 0.0};
    uint32_t of_node = least(ranks, per_node / stride);
    uint32_t nodes = (ranks + of_node - 1) / of_node;
    return (struct dtp_group){ranks, nodes, per_node / of_node, stride, 1, nodes > 1 && per_node % stride ? 1.0 : 0.0};
}

struct dtp_group dtp_group_consecutive(const struct dtp_cluster *cluster, uint32_t ranks)
{
    return dtp_group_of(cluster, ranks, 1);
}

struct dtp_group dtp_group_strided(const struct dtp_cluster *cluster, uint32_t stride)
{
    return dtp_group_of(cluster, cluster->gpus / stride, stride);
}

struct dtp_group dtp_group_pair(const struct dtp_cluster *cluster, uint32_t from, uint32_t to, uint32_t ranks)
{
    uint32_t per_node = cluster->gpus_per_node, apart = from < to ? to - from : from - to;
    bool inside = true;
    for (uint32_t i = 0; i < ranks && i < per_node && inside; i++)
        inside = (from + i) / per_node == (to + i) / per_node;
    if (inside)
        return (struct dtp_group){2, 1, per_node > 1 ? per_node / 2 : 1, apart, 1, 0};
    return (struct dtp_group){
        2, 2, least(ranks, per_node), apart, apart < per_node ? 1 : apart / per_node, apart % per_node ? 1.0 : 0.0};
}
