/* What single operations cost on a cluster: by what was measured of it (measured.h) where its machine is a file, else
 * by the formulas of op_cost.h.
 *
 * Kernels that were measured are those of dtplan's executor. Matmuls, attention and copies are the libraries' and the
 * driver's, whoever calls them, and count for every runtime; memory-bound kernels, gaps, launches and AdamW on the host
 * are our own and count for runtime dtplan alone. */
#ifndef DTP_CLUSTER_COST_H
#define DTP_CLUSTER_COST_H

#include "machine/measured.h"
#include "cost/op_cost.h"

/* Seconds of one matmul, of the pass and with m, n, k as a step program has them. */
double dtp_cluster_matmul_s(const struct dtp_cluster *cluster, const struct dtp_execution *execution,
                            enum dtp_measured_matmul pass, enum dtp_dtype dtype, double m, double n, double k);
/* Of a grouped matmul, `groups` of that shape in one kernel. Machine files tell of those of
 * their own kernels: ours, or a framework's. */
double dtp_cluster_grouped_matmul_s(const struct dtp_cluster *cluster, const struct dtp_execution *execution,
                                    enum dtp_measured_matmul pass, enum dtp_dtype dtype, double groups, double m,
                                    double n, double k);
/* The row of a machine file that attention over `tokens` tokens is, by layer's shape, in a formula as in a program.
 * False: none can be, for rows are of cuDNN's flash kernels over whole sequences (on the host of ours), and their
 * columns say neither a window nor a cap. Attention computes in bf16 where matmuls do in fp8. */
bool dtp_attention_measured_row(const struct dtp_cluster *cluster, const struct dtp_attention_shape *shape,
                                const struct dtp_execution *execution, double tokens, bool backward,
                                struct dtp_measured_row *out);
/* Of attention over `tokens` tokens of one GPU, on average over layers. */
struct dtp_attention_time dtp_cluster_attention_time(const struct dtp_cluster *cluster,
                                                     const struct dtp_transformer *transformer,
                                                     const struct dtp_plan *plan, double tokens);
/* dtp_matmul_speedup, but 1 where matmuls were measured in a step: their times hold it already. */
double dtp_cluster_matmul_speedup(const struct dtp_cluster *cluster, double matmul_s, double lighter_s, double other_s);
/* Most FLOP/s that matmuls of a format reach: for bounds. */
double dtp_cluster_most_matmul_flops_per_s(const struct dtp_cluster *cluster, enum dtp_dtype dtype);

/* The closed form's memory-bound kernels: all of a class together. */
/* The pass of a machine file by which a framework's kernels of that kind are priced; false: by none. */
bool dtp_memory_kernel_pass(enum dtp_memory_kernel kind, enum dtp_measured_pass *out);
double dtp_cluster_memory_kernel_bytes_per_s(const struct dtp_cluster *cluster, const struct dtp_execution *execution,
                                             enum dtp_memory_kernel kind);
/* Of DTP_KERNEL_PASS beside its bytes: dtp_pass_rates, or nothing where a file or the host's rate holds all. */
struct dtp_pass_rates dtp_cluster_pass_rates(const struct dtp_cluster *cluster);
double dtp_cluster_kernel_gap_s(const struct dtp_cluster *cluster, const struct dtp_execution *execution);
double dtp_cluster_kernel_launch_s(const struct dtp_cluster *cluster, const struct dtp_execution *execution);
/* Of a collective or a transfer. What Megatron's kernels take of the host is the Python of its layers more than the
 * launch. The functions in which its tensor parallel ranks meet are called with one rank too (tensor_parallel/
 * mappings.py) and count with the layer's kernels; with several they add a call of c10d. */
double dtp_cluster_collective_launch_s(const struct dtp_cluster *cluster, const struct dtp_execution *execution);

/* Bytes/s of a copy of `bytes` on each of the node's GPUs at once. */
double dtp_cluster_copy_bytes_per_s(const struct dtp_cluster *cluster, bool upload, double bytes);
/* Bytes/s of host memory that vectorised AdamW on the host goes through for each of `ranks` of one node at once. */
double dtp_host_adam_bytes_per_s(const struct dtp_machine *machine, double ranks);
/* Bytes/s of host memory that one GPU's share of AdamW on the host goes through. */
double dtp_cluster_host_adam_bytes_per_s(const struct dtp_cluster *cluster, const struct dtp_execution *execution,
                                         double bytes);

/* GPUs whose speed is known, for they were measured; 0: none. */
uint32_t dtp_cluster_measured_gpus(const struct dtp_cluster *cluster);
/* Factor >= 1 on kernels for the slowest of the ranks; `deviation` as in dtp_slowest_rank_factor. Times of a measured
 * machine are those of all its GPUs: only a job on more than those can have a slower one. */
double dtp_cluster_slowest_rank(const struct dtp_cluster *cluster, double deviation);

#endif
