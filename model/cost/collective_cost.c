#include "cost/collective_cost.h"

#include "cost/calibration.h"
#include "machine/measured.h"

#include <math.h>
#include <string.h>

/* What NCCL's tuning says of a protocol. */
struct tuning {
    double base_s, link_hop_s, network_hop_s; /* latency of the first byte, of a hop inside a node, between nodes */
    double bandwidth_share;                   /* of the Simple protocol's */
};

static struct tuning tuning_of(enum dtp_protocol protocol, bool pcie)
{
    const struct dtp_calibration *c = &dtp_calibration;
    switch (protocol) {
    case DTP_PROTOCOL_LL:
        return (struct tuning){c->nccl_base_ll_s, pcie ? c->nccl_pcie_hop_ll_s : c->nccl_nvlink_hop_ll_s,
                               c->nccl_network_hop_ll_s, c->nccl_share_ll};
    case DTP_PROTOCOL_LL128:
        return (struct tuning){c->nccl_base_ll128_s, pcie ? c->nccl_pcie_hop_ll128_s : c->nccl_nvlink_hop_ll128_s,
                               c->nccl_network_hop_ll128_s, c->nccl_share_ll128};
    case DTP_PROTOCOL_TREE:
        return (struct tuning){c->nccl_base_tree_s, pcie ? c->nccl_pcie_hop_tree_s : c->nccl_nvlink_hop_tree_s,
                               c->nccl_network_hop_tree_s, c->nccl_share_tree};
    case DTP_PROTOCOL_SIMPLE:
    case DTP_PROTOCOL_COUNT: break;
    }
    return (struct tuning){c->nccl_base_simple_s, pcie ? c->nccl_pcie_hop_simple_s : c->nccl_nvlink_hop_simple_s,
                           c->nccl_network_hop_simple_s, 1};
}

/* On one node: beyond it LL's flag checks are the limit. */
static double ll_limit_bytes_per_s(const struct dtp_gpu *gpu)
{
    switch (gpu->architecture) {
    case DTP_GPU_VOLTA:
    case DTP_GPU_TURING: return dtp_calibration.nccl_ll_limit_volta_bytes_per_s;
    case DTP_GPU_AMPERE:
    case DTP_GPU_ADA:
    case DTP_GPU_CDNA2:
    case DTP_GPU_CDNA3:
    case DTP_GPU_CDNA4: return dtp_calibration.nccl_ll_limit_ampere_bytes_per_s;
    case DTP_GPU_HOPPER: return dtp_calibration.nccl_ll_limit_hopper_bytes_per_s;
    case DTP_GPU_BLACKWELL: return dtp_calibration.nccl_ll_limit_blackwell_bytes_per_s;
    case DTP_GPU_HOST: break;
    }
    return INFINITY;
}

/* Of a ring on a node's own links. */
static double link_bytes_per_s(const struct dtp_cluster *cluster, uint32_t ranks_per_node)
{
    double link = dtp_cluster_link_bytes_per_s(cluster);
    if (dtp_cluster_link(cluster) == DTP_LINK_PCIE)
        return link * dtp_calibration.pcie_ring_fraction;
    if (cluster->gpu.link_fraction > 0 && dtp_cluster_link(cluster) == cluster->gpu.link)
        return link * cluster->gpu.link_fraction;
    return link * dtp_calibration.ring_link_fraction *
           (1.0 - dtp_calibration.ring_few_ranks_loss / (double)ranks_per_node);
}

/* Share of the node's network a group's ring has where it climbs to the spine. Ranks are numbered leaf by leaf, so of
 * the c nodes that one leaf holds of a ring one sends across the uplinks, the others to their neighbour below the same
 * switch. A leaf's L nodes share uplinks of L/oversubscription nodes' rate among the L/c rings that cross:
 * c/oversubscription for each. */
static double spine_share(const struct dtp_cluster *cluster, const struct dtp_group *group)
{
    if (cluster->rails == DTP_RAILS_SPINE && group->across_rails > 0) /* whichever leaf its nodes are on */
        return fmin(1, 1 / (cluster->oversubscription * group->across_rails));
    uint32_t below_leaf = cluster->leaf_nodes > 1 ? cluster->leaf_nodes : 1;
    if ((uint64_t)group->nodes * group->node_stride <= below_leaf)
        return 1;
    uint32_t of_ring = below_leaf / group->node_stride;
    return fmin(1, (of_ring > 1 ? of_ring : 1) / cluster->oversubscription);
}

/* Sockets: a ring is bound by its threads on the CPU, which wait for each other part of the time, and not by a NIC. The
 * rate stated is that of one ring; g rings, of other processes, fill each other's gaps and move (1 - (1 - share)^g) /
 * share times as much. */
static double socket_bytes_per_s(const struct dtp_cluster *cluster, const struct dtp_group *group, bool all_reduce)
{
    double share = dtp_calibration.socket_ring_share;
    double rings = (1 - pow(1 - share, group->groups_per_node)) / share;
    double ring = dtp_cluster_network_bytes_per_s(cluster) * (all_reduce ? dtp_calibration.socket_all_reduce_share : 1);
    return ring * rings * spine_share(cluster, group) / group->groups_per_node;
}

double dtp_network_fraction(const struct dtp_cluster *cluster, uint32_t nodes)
{
    if (cluster->network == DTP_NETWORK_OPA)
        return dtp_calibration.opa_fraction;
    bool efa = cluster->network == DTP_NETWORK_EFA && nodes > 2; /* of two nodes each has one peer alone */
    return efa ? dtp_calibration.efa_fraction : dtp_calibration.network_fraction;
}

/* A ring enters each node once per channel, so the group's bus bandwidth is at most the node's network, shared by the
 * groups that use it at the same time. One leaves gaps while its ranks wait for each other; others fill them. */
static double network_bytes_per_s(const struct dtp_cluster *cluster, const struct dtp_group *group)
{
    double fraction = dtp_network_fraction(cluster, group->nodes);
    if (cluster->network == DTP_NETWORK_OPA) { /* a ring stays on one link; the cores that copy leave no gaps */
        double share = dtp_cluster_network_bytes_per_s(cluster) * spine_share(cluster, group) / group->groups_per_node;
        return fraction * fmin(share, dtp_calibration.opa_link_bytes_per_s);
    }
    double filled = 1 - pow(1 - fraction, group->groups_per_node);
    return dtp_cluster_network_bytes_per_s(cluster) * filled * spine_share(cluster, group) / group->groups_per_node;
}

static uint32_t ranks_per_node(const struct dtp_group *group)
{
    return (group->ranks + group->nodes - 1) / group->nodes;
}

/* What the CTAs of a ring copy besides what they send: all-gather and reduce-scatter read their own 1/n of B from one
 * buffer and write it to another, where (n-1)/n of B is sent; an all-reduce works in the places where its data are. */
static double link_loss(const struct dtp_group *group, bool all_reduce)
{
    return all_reduce ? 1 : 1 + dtp_calibration.ring_own_share / (group->ranks - 1.0);
}

static double bus_bytes_per_s(const struct dtp_cluster *cluster, const struct dtp_group *group, bool all_reduce)
{
    double link = INFINITY, network = INFINITY;
    if (ranks_per_node(group) > 1)
        link = link_bytes_per_s(cluster, ranks_per_node(group)) / link_loss(group, all_reduce);
    if (group->nodes > 1)
        network = cluster->network == DTP_NETWORK_SOCKETS ? socket_bytes_per_s(cluster, group, all_reduce)
                                                          : network_bytes_per_s(cluster, group);
    return link < network ? link : network;
}

/* An all-to-all is no ring: what each rank sends to those of other nodes goes over the node's network, which its r
 * ranks share: (n - r) / (n - 1) of all that it sends. NCCL's of 16, 32 and 64 H100 reach 41 to 45 GB/s of 50 so (Table
 * 7 of arXiv:2603.07685). */
static double exchange_bytes_per_s(const struct dtp_cluster *cluster, const struct dtp_group *group)
{
    double ranks = group->ranks, of_node = ranks_per_node(group), leaving = (ranks - of_node) / (ranks - 1);
    double network = cluster->network == DTP_NETWORK_SOCKETS ? socket_bytes_per_s(cluster, group, false)
                                                             : network_bytes_per_s(cluster, group);
    double link = of_node > 1 ? link_bytes_per_s(cluster, (uint32_t)of_node) / link_loss(group, false) : INFINITY;
    return fmin(link, network / (of_node * leaving));
}

double dtp_group_bus_bytes_per_s(const struct dtp_cluster *cluster, const struct dtp_group *group)
{
    return bus_bytes_per_s(cluster, group, true);
}

/* Rings keep to their rails; of an all-to-all's peers on a node one is on the sender's. */
static double share_across_rails(const struct dtp_group *group, enum dtp_collective collective)
{
    bool to_all = collective == DTP_ALL_TO_ALL && group->nodes > 1;
    return to_all ? fmax(group->across_rails, 1 - 1.0 / ranks_per_node(group)) : group->across_rails;
}

static struct dtp_collective_cost modelled(const struct dtp_cluster *cluster, const struct dtp_group *of_ranks,
                                           enum dtp_collective collective)
{
    struct dtp_group placed = *of_ranks;
    const struct dtp_group *group = &placed;
    placed.across_rails = share_across_rails(of_ranks, collective);
    bool all_reduce = collective == DTP_ALL_REDUCE, pcie = dtp_cluster_link(cluster) == DTP_LINK_PCIE;
    double bus = bus_bytes_per_s(cluster, group, all_reduce);
    if (collective == DTP_ALL_TO_ALL && group->nodes > 1)
        bus = exchange_bytes_per_s(cluster, group);
    double network_steps = group->nodes - 1, link_steps = (double)group->ranks - 1 - network_steps;
    if (collective == DTP_SEND_RECV) { /* one hop, the longest of the group's */
        network_steps = group->nodes > 1;
        link_steps = 1 - network_steps;
    }
    struct dtp_collective_cost cost = {.measured = NULL};
    for (int p = 0; p < DTP_PROTOCOL_COUNT; p++) {
        double rounds = all_reduce ? 2 : 1;
        struct tuning t = tuning_of((enum dtp_protocol)p, pcie);
        if (cluster->network == DTP_NETWORK_EFA)
            t.network_hop_s = p == DTP_PROTOCOL_TREE ? dtp_calibration.efa_tree_hop_s : dtp_calibration.efa_ring_hop_s;
        if (cluster->rails == DTP_RAILS_PXN && group->across_rails > 0) /* through a neighbour's memory */
            t.network_hop_s += t.link_hop_s;
        double latency = t.base_s + rounds * (link_steps * t.link_hop_s + network_steps * t.network_hop_s);
        double bandwidth = bus * t.bandwidth_share;
        if (p == DTP_PROTOCOL_TREE)
            latency = t.base_s + 2 * ((double)group->ranks / group->nodes - 1) * t.link_hop_s +
                      2 * log2(group->nodes) * t.network_hop_s;
        if (p == DTP_PROTOCOL_LL)
            bandwidth = fmin(bandwidth, ll_limit_bytes_per_s(&cluster->gpu));
        else if (!pcie)
            latency += dtp_calibration.ring_ramp_s;
        bool usable =
            !(p == DTP_PROTOCOL_TREE && (!all_reduce || group->nodes == 1)) && !(p == DTP_PROTOCOL_LL128 && pcie);
        cost.latency_s[p] = usable ? latency : INFINITY;
        cost.s_per_byte[p] = 1 / bandwidth;
    }
    return cost;
}

/* A measured group on the same kind of cluster: its instances fill the nodes that it spans. */
static struct dtp_group measured_group(const struct dtp_cluster *cluster, const struct dtp_measured_group *of)
{
    uint32_t per_node = (of->ranks + of->nodes - 1) / of->nodes, node = cluster->gpus_per_node;
    uint32_t at_once = of->stride > 1 ? of->stride : node / (per_node < node ? per_node : node);
    return (struct dtp_group){of->ranks,  of->nodes, of->nodes > 1 && of->stride == 1 ? 1 : at_once,
                              of->stride, 1,         false};
}

struct dtp_collective_cost dtp_collective_cost(const struct dtp_cluster *cluster, const struct dtp_group *group,
                                               enum dtp_collective collective)
{
    return dtp_collective_cost_carried(cluster, group, collective, DTP_CARRIED_PLAIN);
}

struct dtp_collective_cost dtp_collective_cost_carried(const struct dtp_cluster *cluster, const struct dtp_group *group,
                                                       enum dtp_collective collective, enum dtp_carried carried)
{
    struct dtp_collective_cost cost = modelled(cluster, group, collective);
    if (!cluster->measured || group->ranks < 2)
        return cost;
    /* Nodes pretended on a host meet in its memory like all others. */
    uint32_t nodes = dtp_cluster_is_host(cluster) ? 1 : group->nodes;
    struct dtp_measured_group asked = {group->ranks, group->stride, nodes}, of;
    enum dtp_collective as;
    cost.measured = dtp_measured_collective(cluster->measured, collective, carried, &asked, &as, &of);
    if (!cost.measured)
        return cost;
    bool same = of.ranks == asked.ranks && of.nodes == asked.nodes && of.stride == asked.stride;
    struct dtp_group its = same ? *group : measured_group(cluster, &of);
    struct dtp_collective_cost model = modelled(cluster, &its, as);
    memcpy(cost.of_latency_s, model.latency_s, sizeof model.latency_s);
    memcpy(cost.of_s_per_byte, model.s_per_byte, sizeof model.s_per_byte);
    return cost;
}

static double modelled_s(const double *latency_s, const double *s_per_byte, double sent_bytes)
{
    double best = INFINITY;
    for (int p = 0; p < DTP_PROTOCOL_COUNT; p++) {
        double time = latency_s[p] + sent_bytes * s_per_byte[p];
        best = time < best ? time : best;
    }
    return best;
}

double dtp_collective_time(const struct dtp_collective_cost *cost, double sent_bytes)
{
    if (sent_bytes <= 0)
        return 0;
    double model_s = modelled_s(cost->latency_s, cost->s_per_byte, sent_bytes);
    if (!cost->measured)
        return model_s;
    return dtp_measured_curve_s(cost->measured, sent_bytes) * model_s /
           modelled_s(cost->of_latency_s, cost->of_s_per_byte, sent_bytes);
}
