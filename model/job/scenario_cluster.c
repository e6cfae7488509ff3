/* From settings to a cluster: which GPU and machine, how many of a node, what network. */
#include "machine/host_machine.h"
#include "machine/measured.h"
#include "base/append.h"
#include "job/scenario_resolution.h"

#include <inttypes.h>
#include <string.h>

#define DEFAULT_GPU "h100-sxm"

const struct dtp_machine *dtp_resolve_machine(struct dtp_resolution *r)
{
    return dtp_catalog_machine(r->catalog, text_of(r, DTP_KEY_machine), where_of(r, DTP_KEY_machine),
                               line_of(r, DTP_KEY_machine), r->faults);
}

/* GPU and machine, each from the other where only one is given. */
static bool choose_hardware(struct dtp_resolution *r, struct dtp_cluster *c)
{
    const struct dtp_machine *machine = given(r, DTP_KEY_machine) ? dtp_resolve_machine(r) : NULL;
    const struct dtp_measured_machine *measured =
        machine ? dtp_catalog_measured(r->catalog, text_of(r, DTP_KEY_machine)) : NULL;
    const struct dtp_gpu *measured_gpu = measured ? dtp_catalog_measured_gpu(r->catalog, measured) : NULL;
    bool missing = given(r, DTP_KEY_machine) && !machine;
    const char *name = given(r, DTP_KEY_gpu)            ? text_of(r, DTP_KEY_gpu)
                       : measured_gpu                   ? measured_gpu->key
                       : machine && machine->gpu_key[0] ? machine->gpu_key
                                                        : DEFAULT_GPU;
    const struct dtp_gpu *gpu =
        dtp_catalog_gpu(r->catalog, name, where_of(r, DTP_KEY_gpu), line_of(r, DTP_KEY_gpu), r->faults);
    if (gpu && !given(r, DTP_KEY_machine)) {
        machine = dtp_catalog_default_machine(r->catalog, gpu);
        if (!machine)
            refuse(r, DTP_KEY_gpu, "the catalogue has no machine for %s; give machine", gpu->key);
        /* A machine for any GPU joins it by PCIe: a rate several times off, unless it is asked for. */
        bool joined = gpu->link == DTP_LINK_NVLINK || gpu->link == DTP_LINK_XGMI;
        if (machine && joined && !machine->gpu_key[0] && machine->link == DTP_LINK_PCIE) {
            refuse(r, DTP_KEY_gpu,
                   "%s has links between GPUs, but the catalogue has no machine with them; add one whose gpu_key is "
                   "%s, or give machine %s to use PCIe",
                   gpu->key, gpu->key, machine->key);
            return false;
        }
    }
    if (gpu && measured_gpu && strcmp(gpu->key, measured_gpu->key) != 0) {
        refuse(r, DTP_KEY_gpu, "%s, but %s was measured on %s; leave gpu out", gpu->key, measured->path,
               measured_gpu->key);
        return false;
    }
    gpu = measured_gpu ? measured_gpu : gpu;
    if (!gpu || missing)
        worsen(r, DTP_BAD_INPUT);
    if (!gpu || !machine)
        return false;
    c->gpu = *gpu;
    c->machine = *machine;
    if (machine->matmul_fraction > 0)
        c->gpu.matmul_fraction = machine->matmul_fraction;
    c->measured = measured ? measured->times : NULL;
    if (dtp_cluster_has_times(c) || r->scenario->without_times)
        return true;
    refuse(r, DTP_KEY_gpu,
           "nobody knows yet how fast the cores of this machine are: dtplan probe --device host -o here.csv, then "
           "--machine here.csv (dtplan run --device host does without)");
    return false;
}

/* A rack is a node of 72 GPUs, but jobs come in powers of two: it is filled evenly, as 64 of 72 for 256 GPUs. An even
 * filling below half of the rack is not assumed, nor any of a usual node of 8. */
static uint32_t filled_node(uint32_t gpus, uint32_t node)
{
    for (uint32_t part = node; node > 8 && gpus > node && part >= node / 2; part--)
        if (gpus % part == 0)
            return part;
    return node;
}

/* GPUs of the job where it does not say: those of the machine it names, of a measured one as many as were measured. */
static uint32_t default_gpus(const struct dtp_resolution *r, const struct dtp_cluster *c, uint32_t node)
{
    uint32_t measured = c->measured ? dtp_measured_count(c->measured, "gpus") : 0;
    return measured ? measured : given(r, DTP_KEY_machine) ? node : 1;
}

/* GPUs of a node: the machine's, but of one that was measured over several nodes as many as each had. */
static uint32_t node_gpus(const struct dtp_cluster *c)
{
    uint32_t each = c->measured ? dtp_measured_count(c->measured, "gpus_per_node") : 0;
    return each && dtp_measured_count(c->measured, "gpus") > each ? each : c->machine.gpus;
}

/* More GPUs than a job may have are refused where the plan is resolved. */
static uint32_t gpus_of_nodes(const struct dtp_resolution *r, uint32_t node)
{
    uint64_t gpus = (uint64_t)r->draft.nodes * node;
    return gpus > UINT32_MAX ? UINT32_MAX : (uint32_t)gpus;
}

/* Of a job whose GPUs fill whole nodes: whether these are as many as it names. */
static bool check_nodes(struct dtp_resolution *r, const struct dtp_cluster *c, uint32_t node)
{
    char other[96] = "";
    if (c->nodes == r->draft.nodes)
        return true;
    if (c->gpus % r->draft.nodes == 0)
        snprintf(other, sizeof other, ", or set gpus_per_node to %" PRIu32, c->gpus / r->draft.nodes);
    refuse(r, DTP_KEY_nodes,
           "%" PRIu32 " nodes of %" PRIu32 " GPUs have %" PRIu64 ", but gpus is %" PRIu32 "; leave one of them out%s",
           r->draft.nodes, node, (uint64_t)r->draft.nodes * node, c->gpus, other);
    return false;
}

/* Whole nodes, or part of one. */
static bool count_nodes(struct dtp_resolution *r, struct dtp_cluster *c)
{
    uint32_t node = given(r, DTP_KEY_gpus_per_node) ? r->draft.gpus_per_node : node_gpus(c);
    if (node == 0)
        node = 1; /* dtp_cluster_check refuses such a machine */
    uint32_t by_nodes = given(r, DTP_KEY_nodes) ? gpus_of_nodes(r, node) : 0;
    c->gpus = given(r, DTP_KEY_gpus) ? r->draft.gpus : by_nodes ? by_nodes : default_gpus(r, c, node);
    r->job->by_nodes = by_nodes > 0;
    if (!given(r, DTP_KEY_gpus_per_node))
        node = filled_node(c->gpus, node);
    r->job->node_gpus = node;
    c->gpus_per_node = node < c->gpus ? node : c->gpus;
    c->nodes = c->gpus / c->gpus_per_node;
    if (c->gpus % c->gpus_per_node == 0)
        return !by_nodes || check_nodes(r, c, node);
    enum dtp_key key = given(r, DTP_KEY_gpus_per_node) ? DTP_KEY_gpus_per_node : DTP_KEY_gpus;
    uint32_t less = c->nodes * node;
    if (c->gpu.architecture == DTP_GPU_HOST && c->gpus > DTP_HOST_MOST_RANKS) /* which more nodes would not mend */
        refuse(r, key, "%" PRIu32 " ranks are asked for, the host device has at most %d; take fewer", c->gpus,
               DTP_HOST_MOST_RANKS);
    else
        refuse(r, key,
               "%" PRIu32 " GPUs are no whole number of nodes of %" PRIu32 "; use %" PRIu32 " or %" PRIu32
               " GPUs, or set gpus_per_node",
               c->gpus, node, less, less + node);
    return false;
}

/* Not refused: lists of GPUs and solvers go from one node to many with the same keys. */
static void note_unused_network(struct dtp_resolution *r)
{
    static const enum dtp_key keys[] = {DTP_KEY_network, DTP_KEY_network_gbit_per_s, DTP_KEY_oversubscription,
                                        DTP_KEY_leaf_nodes, DTP_KEY_rails};
    char words[160] = "";
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (given(r, keys[i]))
            dtp_append_part(words, sizeof words, ", ", "%s %.20s", dtp_key_name(keys[i]), text_of(r, keys[i]));
    if (words[0] && r->job->cluster.nodes == 1)
        snprintf(r->job->cluster_note, sizeof r->job->cluster_note, "one node needs no network: %s change%s nothing",
                 words, strchr(words, ',') ? "" : "s");
}

/* Ranks on one machine's cores have its memory between them. More than were measured at once would each have fewer
 * cores than any that were. */
static bool share_host(struct dtp_resolution *r, struct dtp_cluster *c)
{
    uint32_t measured = c->measured ? dtp_measured_count(c->measured, "gpus") : 0;
    c->gpu.memory_bytes /= c->gpus;
    if (!measured || c->gpus <= measured)
        return true;
    refuse(r, DTP_KEY_gpus, "%" PRIu32 " ranks share the cores, %s measured %" PRIu32 "; probe with --gpus %" PRIu32,
           c->gpus, dtp_measured_name(c->measured), measured, c->gpus);
    return false;
}

bool dtp_resolve_cluster(struct dtp_resolution *r)
{
    static const enum dtp_key keys[] = {DTP_KEY_gpus_per_node, DTP_KEY_network_gbit_per_s, DTP_KEY_machine,
                                        DTP_KEY_gpus};
    struct dtp_cluster *c = &r->job->cluster;
    if (!choose_hardware(r, c) || !count_nodes(r, c))
        return false;
    if (given(r, DTP_KEY_network_gbit_per_s)) {
        c->machine.network_bytes_per_s = r->draft.network_gbit_per_s * 1e9 / 8;
        c->machine.nics = c->machine.nics ? c->machine.nics : 1;
    }
    if (dtp_cluster_is_host(c) && !share_host(r, c))
        return false;
    c->oversubscription = r->draft.oversubscription;
    c->leaf_nodes = r->draft.leaf_nodes;
    c->network = r->draft.network;
    c->rails = r->draft.rails;
    note_unused_network(r);
    struct dtp_faults faults = {0};
    enum dtp_status status = dtp_cluster_check(c, &faults);
    size_t i = 0;
    while (i + 1 < sizeof keys / sizeof *keys && !given(r, keys[i]))
        i++;
    relay(r, keys[i], &faults);
    worsen(r, status);
    return status == DTP_OK;
}
