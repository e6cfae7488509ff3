#include "ranks/nodes.h"

#include <stdio.h>

/* ---- what does not fit ------------------------------------------------------------------------------------------- */

static enum dtp_status check_pretence(const struct dtp_nodes *n, struct dtp_faults *faults)
{
    const struct dtp_cluster *c = n->cluster;
    if (!n->pretend)
        return DTP_OK;
    if (c->nodes == 1)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                         "--pretend-nodes: the plan has one node of %u GPUs; set --gpus-per-node to less", c->gpus);
    if (n->cuda && c->network != DTP_NETWORK_SOCKETS) /* ranks of a host meet in its memory, whatever is said */
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                         "--pretend-nodes: nodes of one machine talk by sockets, the plan predicts RDMA; add --network "
                         "sockets --network-gbit-per-s N, the rate of one ring's all-gather over the loopback device");
    return DTP_OK;
}

enum dtp_status dtp_nodes_check_launch(const struct dtp_nodes *n, struct dtp_faults *faults)
{
    const struct dtp_cluster *c = n->cluster;
    if (n->cuda && c->nodes > 1 && !n->pretend)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                         "the plan has %u nodes of %u GPUs and this is one machine; start %u ranks on each by torchrun "
                         "or srun, or add --pretend-nodes",
                         c->nodes, c->gpus_per_node, c->gpus_per_node);
    return check_pretence(n, faults);
}

static bool placed(const struct dtp_ranks *r, uint32_t on_a_machine)
{
    return r->local_rank == r->rank % on_a_machine && (r->local_world == 0 || r->local_world == on_a_machine);
}

enum dtp_status dtp_nodes_check_rank(const struct dtp_nodes *n, const struct dtp_ranks *r, struct dtp_faults *faults)
{
    const struct dtp_cluster *c = n->cluster;
    bool one_machine = n->pretend || !n->cuda, by_nodes = !n->pretend;
    enum dtp_status status = check_pretence(n, faults);
    if (status != DTP_OK || (by_nodes && placed(r, c->gpus_per_node)) || (one_machine && placed(r, r->world)))
        return status;
    if (n->pretend)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                         "--pretend-nodes: rank %u is number %u of its machine, where all %u ranks should be on one; "
                         "leave it out on several machines",
                         r->rank, r->local_rank, r->world);
    return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                     "rank %u is number %u of %u on its machine, by the plan it is number %u of %u; set "
                     "--gpus-per-node to the ranks of a machine, and have %s number them machine by machine (srun "
                     "--distribution=block, mpirun --map-by slot)",
                     r->rank, r->local_rank, r->local_world, r->rank % c->gpus_per_node, c->gpus_per_node, r->launcher);
}

/* ---- what NCCL is told ------------------------------------------------------------------------------------------- */

/* NCCL's own choice is one thread and one connection but on some clouds. Their product may be 64 at most. */
static const char *const of_sockets[][2] = {{"NCCL_SOCKET_NTHREADS", "4"}, {"NCCL_NSOCKS_PERTHREAD", "2"}};
/* No InfiniBand, no fabric of NVLink over nodes, no other network's plugin. */
static const char *const of_pretence[][2] = {
    {"NCCL_NET", "Socket"}, {"NCCL_SOCKET_IFNAME", "lo"}, {"NCCL_IB_DISABLE", "1"}, {"NCCL_MNNVL_ENABLE", "0"}};

void dtp_nodes_environment(const struct dtp_nodes *n, const struct dtp_ranks *r,
                           int (*set)(const char *name, const char *value, int overwrite))
{
    char name[32];
    if (n->cluster->nodes == 1 || !n->cuda)
        return;
    for (size_t i = 0; i < sizeof of_sockets / sizeof *of_sockets && n->cluster->network == DTP_NETWORK_SOCKETS; i++)
        set(of_sockets[i][0], of_sockets[i][1], 0);
    if (!n->pretend)
        return;
    snprintf(name, sizeof name, "dtplan-node-%u", r->rank / n->cluster->gpus_per_node);
    set("NCCL_HOSTID", name, 1);
    for (size_t i = 0; i < sizeof of_pretence / sizeof *of_pretence; i++)
        set(of_pretence[i][0], of_pretence[i][1], 0);
}
