/* GPUs, machines and clusters: rates with provenance.
 *
 * Rates are per GPU and per direction unless a name says otherwise; NVLink's advertised figure counts both directions,
 * the catalogue stores half of it. Every figure of the catalogue carries its source and kind (catalog.h). */
#ifndef DTP_MACHINE_H
#define DTP_MACHINE_H

#include "base/dtype.h"
#include "base/status.h"

#include <stdint.h>

enum dtp_link { DTP_LINK_NONE, DTP_LINK_NVLINK, DTP_LINK_PCIE, DTP_LINK_XGMI };
/* How nodes talk: NICs that read and write GPU memory, whose rate is the node's however many rings share it; or
 * sockets, where threads of the CPU copy what a ring sends and the rate stated is that of one ring's long all-gather;
 * or AWS' EFA, whose NICs deliver packets in any order, with a latency of its own; or Omni-Path, whose verbs cores of
 * the CPU carry out. */
enum dtp_network { DTP_NETWORK_RDMA, DTP_NETWORK_SOCKETS, DTP_NETWORK_EFA, DTP_NETWORK_OPA };
/* Of a fabric in which NIC i of each node is on a leaf switch of rail i (NVIDIA DGX SuperPOD; Wang et al. 2023,
 * "Rail-only", arXiv:2307.12169), how data come to another rail: over the spine, or over NVLink to the GPU of that rail
 * first (PXN of NCCL 2.12, its default). NONE: a leaf has all NICs of its nodes. */
enum dtp_rails { DTP_RAILS_NONE, DTP_RAILS_SPINE, DTP_RAILS_PXN };
enum dtp_gpu_architecture {
    DTP_GPU_VOLTA,
    DTP_GPU_TURING,
    DTP_GPU_AMPERE,
    DTP_GPU_ADA,
    DTP_GPU_HOPPER,
    DTP_GPU_BLACKWELL,
    DTP_GPU_CDNA2,
    DTP_GPU_CDNA3,
    DTP_GPU_CDNA4,
    DTP_GPU_HOST /* no GPU: cores of a machine, host_machine.h */
};

struct dtp_gpu {
    char key[32];  /* catalogue key, e.g. "h100-sxm" */
    char name[64]; /* as people write it, e.g. "NVIDIA H100 SXM5 80GB" */
    enum dtp_gpu_architecture architecture;
    double peak_flops_per_s[DTP_DTYPE_COUNT]; /* dense; 0 = the GPU has no unit for it */
    double fp4_flops_per_s;                   /* dense, of fp4 with scales of blocks; 0: it has no unit for it */
    double matmul_fraction;    /* sustained large bf16 matmul rate / peak under this part's power limit */
    uint64_t memory_bytes;     /* what the driver reports as total */
    double memory_bytes_per_s; /* HBM/GDDR, read+write together */
    enum dtp_link link;        /* GPU-to-GPU link inside a machine */
    double link_bytes_per_s;   /* that link, one direction, all lanes of one GPU */
    double pcie_bytes_per_s;   /* host link, one direction */
    uint32_t sm_count;
    double power_w;
    /* Of this part, where somebody measured it; 0: as the constants of the model have it, which are NVIDIA's GPUs' */
    double memory_fraction;        /* rate of a long copy / memory_bytes_per_s */
    double sm_memory_fraction;     /* what one of its units moves in kernels that pass over memory / an SM of an H200 */
    double fp8_matmul_fraction;    /* sustained large fp8 matmul rate / peak */
    double flash_forward_fraction; /* FlashAttention, head 128, long sequences / sustained bf16 matmul rate */
    double flash_backward_fraction; /* the same backward with 2.5 x the forward's FLOPs */
    double link_fraction;           /* bus rate of a long ring of a node's GPUs / link_bytes_per_s */
};

struct dtp_machine {
    char key[32];
    char name[64];
    char gpu_key[32];           /* "" in a generic box: any GPU */
    uint32_t gpus;              /* GPUs per node */
    double network_bytes_per_s; /* whole node, one direction: NICs * Gb/s / 8 */
    uint32_t nics;
    enum dtp_link link;          /* between its GPUs; DTP_LINK_NONE: the GPU's own link */
    double gpu_peer_bytes_per_s; /* one direction; 0: what the GPU has for that link */
    uint64_t host_memory_bytes;
    double host_memory_bytes_per_s;
    uint32_t host_cores;
    double matmul_fraction; /* of its GPUs, where theirs were measured apart from others of their kind; 0: the GPU's */
    uint64_t nvme_bytes;
    double nvme_read_bytes_per_s, nvme_write_bytes_per_s;
};

struct dtp_measured; /* measured.h */

/* What a job runs on. nodes * gpus_per_node == gpus, or nodes == 1. */
struct dtp_cluster {
    struct dtp_gpu gpu;
    struct dtp_machine machine;
    uint32_t gpus, gpus_per_node, nodes;
    double oversubscription; /* of a leaf switch's uplinks: what its nodes can send / what the spine takes; 1 =
                                none */
    enum dtp_network network;
    enum dtp_rails rails;
    uint32_t leaf_nodes; /* nodes below one leaf switch (in a rail-optimised fabric: of one rail); 0 or 1: a
                            node each, so all traffic between nodes is oversubscribed */
    const struct dtp_measured *measured; /* where the machine is a file; borrowed from the catalogue; else NULL */
};

/* Ranks on cores of a machine: they meet in shared memory, whatever nodes are pretended, and each does one thing at a
 * time, in the order of its program. */
bool dtp_cluster_is_host(const struct dtp_cluster *cluster);
/* Ranks of one machine, who share its host: those of a node, and on cores all. */
uint32_t dtp_cluster_ranks_at_once(const struct dtp_cluster *cluster);
/* False: its memory and bytes can be predicted and its times cannot, for nobody measured these cores. */
bool dtp_cluster_has_times(const struct dtp_cluster *cluster);
/* The link between GPUs of one node, and its rate per GPU in one direction: the machine's where it says, else the GPU's
 * (its PCIe rate where the machine joins them by PCIe). */
enum dtp_link dtp_cluster_link(const struct dtp_cluster *cluster);
double dtp_cluster_link_bytes_per_s(const struct dtp_cluster *cluster);
/* Host memory or NVMe that the GPUs in use on a node can have of the `bytes` its machine states: all of it, but of a
 * rack (more than 8 GPUs: trays with a host each) their even share. */
uint64_t dtp_cluster_host_share(const struct dtp_cluster *cluster, uint64_t bytes);
/* What the GPUs in use on one node can send to the network together: the node's rate, but where only some of its GPUs
 * are used, no more than their PCIe lanes carry (or their even share, where that is more: NICs may hang on faster
 * lanes). */
double dtp_cluster_network_bytes_per_s(const struct dtp_cluster *cluster);

/* "nvlink", "hopper", ... as the catalogues write them. */
const char *dtp_link_text(enum dtp_link link);
const char *dtp_gpu_architecture_text(enum dtp_gpu_architecture architecture);
const char *dtp_network_text(enum dtp_network network);
const char *dtp_rails_text(enum dtp_rails rails);
bool dtp_link_parse(const char *text, enum dtp_link *out);
bool dtp_gpu_architecture_parse(const char *text, enum dtp_gpu_architecture *out);

/* Reports every impossible field at once: counts that do not multiply up, more GPUs a node than the machine has,
 * several nodes without a network, rates that are not finite and positive, a machine that holds another GPU. */
enum dtp_status dtp_cluster_check(const struct dtp_cluster *cluster, struct dtp_faults *faults);

#endif
