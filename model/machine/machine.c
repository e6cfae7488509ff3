#include "machine/machine.h"

#include "base/word_table.h"

#include <math.h>
#include <string.h>

static const char *const link_texts[] = {
    [DTP_LINK_NONE] = "none", [DTP_LINK_NVLINK] = "nvlink", [DTP_LINK_PCIE] = "pcie", [DTP_LINK_XGMI] = "xgmi"};
static const char *const architecture_texts[] = {
    [DTP_GPU_VOLTA] = "volta", [DTP_GPU_TURING] = "turing", [DTP_GPU_AMPERE] = "ampere",
    [DTP_GPU_ADA] = "ada",     [DTP_GPU_HOPPER] = "hopper", [DTP_GPU_BLACKWELL] = "blackwell",
    [DTP_GPU_CDNA2] = "cdna2", [DTP_GPU_CDNA3] = "cdna3",   [DTP_GPU_CDNA4] = "cdna4",
    [DTP_GPU_HOST] = "host"};

static const char *const network_texts[] = {[DTP_NETWORK_RDMA] = "rdma",
                                            [DTP_NETWORK_SOCKETS] = "sockets",
                                            [DTP_NETWORK_EFA] = "efa",
                                            [DTP_NETWORK_OPA] = "opa"};

DTP_TEXT_AND_PARSE_OF_ARRAY(link, link_texts, 0)
DTP_WORDS_OF_ARRAY(dtp_network_text, dtp_network, network_texts)
static const char *const rails_texts[] = {
    [DTP_RAILS_NONE] = "none", [DTP_RAILS_SPINE] = "spine", [DTP_RAILS_PXN] = "pxn"};
DTP_WORDS_OF_ARRAY(dtp_rails_text, dtp_rails, rails_texts)

DTP_WORDS_OF_ARRAY(dtp_gpu_architecture_text, dtp_gpu_architecture, architecture_texts)

bool dtp_gpu_architecture_parse(const char *text, enum dtp_gpu_architecture *out)
{
    size_t index = dtp_word_index(text, architecture_texts, 0, DTP_GPU_HOST); /* which no catalogue describes */
    if (index < DTP_GPU_HOST)
        *out = (enum dtp_gpu_architecture)index;
    return index < DTP_GPU_HOST;
}

bool dtp_cluster_is_host(const struct dtp_cluster *cluster)
{
    return cluster->gpu.architecture == DTP_GPU_HOST;
}

uint32_t dtp_cluster_ranks_at_once(const struct dtp_cluster *cluster)
{
    return dtp_cluster_is_host(cluster) ? cluster->gpus : cluster->gpus_per_node;
}

bool dtp_cluster_has_times(const struct dtp_cluster *cluster)
{
    return cluster->measured || !dtp_cluster_is_host(cluster);
}

enum dtp_link dtp_cluster_link(const struct dtp_cluster *cluster)
{
    return cluster->machine.link != DTP_LINK_NONE ? cluster->machine.link : cluster->gpu.link;
}

double dtp_cluster_link_bytes_per_s(const struct dtp_cluster *cluster)
{
    if (cluster->machine.gpu_peer_bytes_per_s > 0)
        return cluster->machine.gpu_peer_bytes_per_s;
    if (cluster->machine.link == DTP_LINK_PCIE)
        return cluster->gpu.pcie_bytes_per_s;
    return cluster->gpu.link_bytes_per_s;
}

double dtp_cluster_network_bytes_per_s(const struct dtp_cluster *cluster)
{
    const struct dtp_machine *machine = &cluster->machine;
    double share = machine->gpus ? machine->network_bytes_per_s / machine->gpus : 0;
    double each = fmax(cluster->gpu.pcie_bytes_per_s, share);
    return fmin(machine->network_bytes_per_s, each * cluster->gpus_per_node);
}

uint64_t dtp_cluster_host_share(const struct dtp_cluster *cluster, uint64_t bytes)
{
    uint32_t gpus = cluster->machine.gpus, used = cluster->gpus_per_node;
    return gpus <= 8 || used >= gpus ? bytes : bytes / gpus * used;
}

/* ---- check ------------------------------------------------------------------------------------------------------ */

#define FAULT(faults, ...) dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, __VA_ARGS__)

static enum dtp_status check_counts(const struct dtp_cluster *c, struct dtp_faults *faults)
{
    enum dtp_status status = DTP_OK;
    const char *machine = c->machine.key;
    if (!c->gpus || !c->gpus_per_node || !c->nodes)
        return FAULT(faults,
                     "a cluster needs at least 1 GPU, 1 GPU per node and 1 node (gpus %u, per node %u, nodes %u)",
                     c->gpus, c->gpus_per_node, c->nodes);
    bool part_of_a_node = c->nodes == 1 && c->gpus <= c->gpus_per_node;
    if (!part_of_a_node && (uint64_t)c->gpus_per_node * c->nodes != c->gpus)
        status = FAULT(faults, "%u GPUs are not %u nodes of %u; give a multiple of the GPUs per node", c->gpus,
                       c->nodes, c->gpus_per_node);
    if (c->gpus_per_node > c->machine.gpus)
        status = FAULT(faults, "%u GPUs per node, but %s has %u; choose another --machine or fewer --gpus-per-node",
                       c->gpus_per_node, machine, c->machine.gpus);
    if (c->nodes > 1 && !(c->machine.network_bytes_per_s > 0))
        status =
            FAULT(faults, "%u nodes of %s, which has no network; choose another --machine or give the network's rate",
                  c->nodes, machine);
    if (!(isfinite(c->oversubscription) && c->oversubscription >= 1))
        status = FAULT(faults, "the network's oversubscription is %g; 1 (none) or more is meant", c->oversubscription);
    return status;
}

static enum dtp_status check_rate(double value, bool may_be_zero, const char *owner, const char *quantity,
                                  struct dtp_faults *faults)
{
    if (isfinite(value) && (value > 0 || (may_be_zero && value == 0)))
        return DTP_OK;
    return FAULT(faults, "%s of %s is %g; a finite positive number is meant", quantity, owner, value);
}

static enum dtp_status check_rates(const struct dtp_cluster *c, struct dtp_faults *faults)
{
    const struct dtp_gpu *gpu = &c->gpu;
    const struct dtp_machine *machine = &c->machine;
    const struct {
        double value;
        bool may_be_zero;
        const char *owner, *quantity;
    } rates[] = {
        {gpu->memory_bytes_per_s, false, gpu->key, "memory_bytes_per_s"},
        {gpu->pcie_bytes_per_s, false, gpu->key, "pcie_bytes_per_s"},
        {gpu->link_bytes_per_s, gpu->link == DTP_LINK_NONE, gpu->key, "link_bytes_per_s"},
        {gpu->matmul_fraction, false, gpu->key, "matmul_fraction"},
        {gpu->peak_flops_per_s[DTP_FP32], false, gpu->key, "fp32_flops_per_s"},
        {(double)gpu->memory_bytes, false, gpu->key, "memory_bytes"},
        {gpu->sm_count, false, gpu->key, "sm_count"},
        {machine->host_memory_bytes_per_s, false, machine->key, "host_memory_bytes_per_s"},
        {(double)machine->host_memory_bytes, false, machine->key, "host_memory_bytes"},
        {machine->network_bytes_per_s, true, machine->key, "network_bytes_per_s"},
        {machine->gpu_peer_bytes_per_s, true, machine->key, "gpu_peer_bytes_per_s"},
    };
    enum dtp_status status = DTP_OK;
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++)
        if (check_rate(rates[i].value, rates[i].may_be_zero, rates[i].owner, rates[i].quantity, faults) != DTP_OK)
            status = DTP_BAD_INPUT;
    return status;
}

enum dtp_status dtp_cluster_check(const struct dtp_cluster *cluster, struct dtp_faults *faults)
{
    enum dtp_status status = check_counts(cluster, faults);
    if (check_rates(cluster, faults) != DTP_OK)
        status = DTP_BAD_INPUT;
    const char *held = cluster->machine.gpu_key;
    if (*held && strcmp(held, cluster->gpu.key))
        status = FAULT(faults, "%s holds %s, not %s; leave out --machine or choose another", cluster->machine.key, held,
                       cluster->gpu.key);
    return status;
}
