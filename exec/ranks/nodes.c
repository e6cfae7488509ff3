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
    if (status == DTP_OK && n->share && !placed(r, r->world))
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                         "--share-gpu: rank %u is number %u of its machine, where all %u ranks should be on one; leave "
                         "it out on several machines",
                         r->rank, r->local_rank, r->world);
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

struct variable {
    const char *name, *value;
};

/* NCCL's own choice is one thread and one connection but on some clouds. Their product may be 64 at most. */
static const struct variable of_sockets[] = {{"NCCL_SOCKET_NTHREADS", "4"}, {"NCCL_NSOCKS_PERTHREAD", "2"}, {0}};
/* No InfiniBand, no fabric of NVLink over nodes, no other network's plugin. */
static const struct variable of_pretence[] = {
    {"NCCL_NET", "Socket"}, {"NCCL_SOCKET_IFNAME", "lo"}, {"NCCL_IB_DISABLE", "1"}, {"NCCL_MNNVL_ENABLE", "0"}, {0}};
/* Nothing that maps one rank's memory into another's, and few thread blocks: those that wait must leave room. */
static const struct variable of_sharing[] = {
    {"NCCL_P2P_DISABLE", "1"}, {"NCCL_SHM_DISABLE", "1"}, {"NCCL_NVLS_ENABLE", "0"}, {"NCCL_MAX_NCHANNELS", "2"}, {0}};

typedef int set_variable(const char *name, const char *value, int overwrite);

static void set_all(const struct variable *variables, set_variable *set)
{
    for (; variables->name; variables++)
        set(variables->name, variables->value, 0);
}

void dtp_nodes_environment(const struct dtp_nodes *n, const struct dtp_ranks *r, set_variable *set)
{
    char name[32];
    bool several = n->cluster->nodes > 1, shares = n->share && r->world > 1;
    if (!n->cuda || !(several || shares))
        return;
    if (several && n->cluster->network == DTP_NETWORK_SOCKETS)
        set_all(of_sockets, set);
    if (!n->pretend && !shares)
        return;
    if (shares)
        snprintf(name, sizeof name, "dtplan-rank-%u", r->rank);
    else
        snprintf(name, sizeof name, "dtplan-node-%u", r->rank / n->cluster->gpus_per_node);
    set("NCCL_HOSTID", name, 1);
    set_all(of_pretence, set);
    if (shares)
        set_all(of_sharing, set);
}
