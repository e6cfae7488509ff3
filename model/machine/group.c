#include "machine/group.h"

struct dtp_group dtp_group_consecutive(const struct dtp_cluster *cluster, uint32_t ranks)
{
    uint32_t per_node = cluster->gpus_per_node;
    if (ranks <= per_node)
        return (struct dtp_group){ranks, 1, per_node / ranks, 1, 1};
    return (struct dtp_group){ranks, (ranks + per_node - 1) / per_node, 1, 1, 1};
}

struct dtp_group dtp_group_strided(const struct dtp_cluster *cluster, uint32_t stride)
{
    uint32_t per_node = cluster->gpus_per_node;
    uint32_t ranks = cluster->gpus / stride;
    if (stride >= per_node) /* one rank of a group per node; every GPU of a node is in another group */
        return (struct dtp_group){ranks, ranks, per_node, stride, stride / per_node};
    return (struct dtp_group){ranks, cluster->nodes, stride, stride, 1};
}
