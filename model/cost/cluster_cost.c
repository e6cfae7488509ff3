#include "cost/cluster_cost.h"

#include "cost/calibration.h"
#include "cost/grouped_matmul.h"
#include "plan/context.h"
#include "plan/rules.h"

#include <math.h>

/* Ranks that share cores stand in a row; a GPU is its rank's own. */
static double measured_s(const struct dtp_cluster *cluster, struct dtp_measured_row *row)
{
    if (dtp_cluster_is_host(cluster))
        dtp_measured_row_of_host(row, row->dtype, cluster->gpus);
    return dtp_measured_s(cluster->measured, row);
}

static double measured_matmul_s(const struct dtp_cluster *cluster, enum dtp_measured_matmul pass, enum dtp_dtype dtype,
                                double m, double n, double k)
{
    struct dtp_measured_row row = dtp_measured_row_of_matmul(pass, dtype, m, n, k);
    return measured_s(cluster, &row);
}

static enum dtp_product product_of(enum dtp_measured_matmul pass)
{
    if (dtp_measured_matmul_of_weights(pass))
        return DTP_PRODUCT_WEIGHT_GRADIENT;
    return pass == DTP_MEASURED_MATMUL_FORWARD || pass == DTP_MEASURED_MATMUL_FORWARD_GELU ? DTP_PRODUCT_FORWARD
                                                                                           : DTP_PRODUCT_INPUT_GRADIENT;
}

double dtp_cluster_matmul_s(const struct dtp_cluster *cluster, const struct dtp_execution *execution,
                            enum dtp_measured_matmul pass, enum dtp_dtype dtype, double m, double n, double k)
{
    bool of_tiles = dtp_cluster_is_host(cluster) || !dtp_matmul_is_narrow(dtype, m, n, k);
    double measured_s = cluster->measured && of_tiles && m > 0 && n > 0 && k > 0
                            ? measured_matmul_s(cluster, pass, dtype, m, n, k)
                            : (double)NAN;
    if (isfinite(measured_s))
        return measured_s;
    if (dtype == DTP_FP8)
        return dtp_fp8_matmul_s(&cluster->gpu, execution->fp8_recipe, product_of(pass), m, n, k);
    bool of_weights = dtp_measured_matmul_of_weights(pass);
    return execution->own_kernels ? dtp_matmul_s(&cluster->gpu, dtype, of_weights, m, n, k)
                                  : dtp_untimed_matmul_s(&cluster->gpu, dtype, of_weights, m, n, k);
}

/* PyTorch's, of bf16 alone (GroupMM.cu); Transformer Engine's are cuBLAS' and cuDNN's. */
static bool is_torchs_grouped(const struct dtp_execution *execution, enum dtp_dtype dtype)
{
    return dtype == DTP_BF16 && !execution->own_kernels && execution->issuer != DTP_ISSUER_MEGATRON;
}

double dtp_cluster_grouped_matmul_s(const struct dtp_cluster *cluster, const struct dtp_execution *execution,
                                    enum dtp_measured_matmul pass, enum dtp_dtype dtype, double groups, double m,
                                    double n, double k)
{
    enum dtp_fp8_recipe recipe = dtype == DTP_FP8 ? execution->fp8_recipe : DTP_FP8_NONE;
    const bool own = cluster->measured && execution->own_kernels != dtp_measured_of_framework(cluster->measured);
    if (own && groups > 0 && m > 0 && n > 0 && k > 0) {
        struct dtp_measured_row row = dtp_measured_row_of_grouped(pass, dtype, groups, m, n, k);
        const double s = measured_s(cluster, &row);
        if (isfinite(s))
            return s;
    }
    if (dtp_cluster_is_host(cluster)) /* one group after the other */
        return groups * dtp_cluster_matmul_s(cluster, execution, pass, dtype, m, n, k);
    if (execution->own_kernels && (dtype == DTP_BF16 || dtype == DTP_FP16))
        return dtp_native_grouped_matmul_s(&cluster->gpu, dtype, product_of(pass), groups, m, n, k);
    if (is_torchs_grouped(execution, dtype) && cluster->gpu.architecture == DTP_GPU_HOPPER)
        return dtp_torch_grouped_matmul_s(&cluster->gpu, dtype, product_of(pass), groups, m, n, k);
    const double s = dtp_grouped_matmul_s(&cluster->gpu, dtype, recipe, product_of(pass), groups, m, n, k);
    bool slow = is_torchs_grouped(execution, dtype) && cluster->gpu.architecture == DTP_GPU_BLACKWELL;
    return slow ? s / dtp_calibration.grouped_matmul_blackwell : s;
}

bool dtp_attention_measured_row(const struct dtp_cluster *cluster, const struct dtp_attention_shape *shape,
                                const struct dtp_execution *execution, double tokens, bool backward,
                                struct dtp_measured_row *out)
{
    const enum dtp_dtype compute = execution->compute;
    *out = dtp_measured_row_of(DTP_MEASUREMENT_ATTENTION,
                               dtp_measured_attention_text(dtp_measured_attention_of(shape->atomic, backward)));
    out->dtype = compute == DTP_FP8 ? DTP_BF16 : compute;
    out->number[DTP_MEASURED_m] = tokens / (double)shape->queries;
    out->number[DTP_MEASURED_sequence] = (double)shape->keys;
    out->number[DTP_MEASURED_heads] = (double)shape->heads;
    out->number[DTP_MEASURED_kv_heads] = (double)shape->kv_heads;
    out->number[DTP_MEASURED_head_dim] = (double)shape->head_dim;
    return shape->kernel == DTP_ATTENTION_FLASH &&
           dtp_own_attention(&cluster->gpu, shape, execution) == DTP_OWN_ATTENTION_NONE && shape->softcap <= 0 &&
           !shape->narrow && !shape->value_dim && shape->causal && shape->queries == shape->keys &&
           dtp_attention_length(shape) >= (double)shape->keys;
}

static double measured_attention_s(const struct dtp_cluster *cluster, const struct dtp_attention_shape *shape,
                                   const struct dtp_execution *execution, double tokens, bool backward)
{
    struct dtp_measured_row row;
    bool measured = cluster->measured && dtp_attention_measured_row(cluster, shape, execution, tokens, backward, &row);
    return measured ? measured_s(cluster, &row) : (double)NAN;
}

static struct dtp_attention_time layer_attention_time(const struct dtp_cluster *cluster,
                                                      const struct dtp_transformer *transformer, uint64_t layer,
                                                      const struct dtp_plan *plan, double tokens)
{
    const struct dtp_attention_shape whole = dtp_plan_attention(transformer, cluster, plan, layer);
    const struct dtp_context context = dtp_plan_context(plan, cluster);
    struct dtp_execution execution = dtp_plan_execution(plan);
    struct dtp_attention_time sum = {0, 0};
    for (uint32_t step = 0; step < context.steps; step++) {
        struct dtp_attention_shape shape = dtp_context_step(&context, &whole, step);
        double queries = dtp_context_step_tokens(&context, &whole, &shape, tokens);
        struct dtp_attention_time time = dtp_attention_time(&cluster->gpu, &shape, &execution, queries);
        double forward_s = measured_attention_s(cluster, &shape, &execution, queries, false);
        double backward_s = measured_attention_s(cluster, &shape, &execution, queries, true);
        sum.forward_s += isfinite(forward_s) ? forward_s : time.forward_s;
        sum.backward_s += isfinite(backward_s) ? backward_s : time.backward_s;
    }
    return sum;
}

/* On average over layers, where some have a window and others none. */
struct dtp_attention_time dtp_cluster_attention_time(const struct dtp_cluster *cluster,
                                                     const struct dtp_transformer *transformer,
                                                     const struct dtp_plan *plan, double tokens)
{
    const uint64_t pattern = transformer->sliding_window_pattern;
    struct dtp_attention_time windowed = layer_attention_time(cluster, transformer, 0, plan, tokens);
    if (pattern < 2) /* layer 0 is as all others */
        return windowed;
    struct dtp_attention_time whole = layer_attention_time(cluster, transformer, pattern - 1, plan, tokens);
    double layers = (double)transformer->layers, part = (double)(transformer->layers / pattern) / layers;
    return (struct dtp_attention_time){part * whole.forward_s + (1 - part) * windowed.forward_s,
                                       part * whole.backward_s + (1 - part) * windowed.backward_s};
}

static bool measured_matmuls(const struct dtp_cluster *cluster, enum dtp_dtype dtype)
{
    return cluster->measured &&
           isfinite(measured_matmul_s(cluster, DTP_MEASURED_MATMUL_FORWARD, dtype, 1024, 1024, 1024));
}

double dtp_cluster_matmul_speedup(const struct dtp_cluster *cluster, double matmul_s, double lighter_s, double other_s)
{
    bool in_steps = measured_matmuls(cluster, DTP_BF16) && !dtp_measured_sustained(cluster->measured);
    return in_steps ? 1 : dtp_matmul_speedup(&cluster->gpu, matmul_s, lighter_s, other_s);
}

double dtp_cluster_most_matmul_flops_per_s(const struct dtp_cluster *cluster, enum dtp_dtype dtype)
{
    double most = dtp_matmul_flops_per_s(&cluster->gpu, dtype) * (1 + dtp_calibration.matmul_power_headroom);
    return measured_matmuls(cluster, dtype) ? fmax(most, cluster->gpu.peak_flops_per_s[dtype]) : most;
}

static bool is_optimizer(enum dtp_op_kind kind)
{
    return kind == DTP_OP_OPTIMIZER;
}

static bool is_of_a_block(enum dtp_op_kind kind)
{
    return kind >= DTP_OP_EMBEDDING && kind <= DTP_OP_LOSS_BACKWARD;
}

static bool measured_kernels(const struct dtp_cluster *cluster, const struct dtp_execution *execution)
{
    return cluster->measured && execution->own_kernels;
}

bool dtp_memory_kernel_pass(enum dtp_memory_kernel kind, enum dtp_measured_pass *out)
{
    switch (kind) {
    case DTP_KERNEL_PASS:
    case DTP_KERNEL_EAGER: *out = DTP_MEASURED_PASS_EAGER; return true;
    case DTP_KERNEL_FUSED: *out = DTP_MEASURED_PASS_FUSED; return true;
    case DTP_KERNEL_STREAMING: *out = DTP_MEASURED_PASS_STREAMING; return true;
    case DTP_KERNEL_NARROW_UPDATE: *out = DTP_MEASURED_PASS_NARROW_UPDATE; return true;
    case DTP_KERNEL_INDEXED:
    case DTP_KERNEL_OUTER:
    case DTP_KERNEL_TRANSPOSING:
    case DTP_KERNEL_COLUMNS:
    case DTP_KERNEL_UNPACKING:
    case DTP_MEMORY_KERNEL_COUNT: break;
    }
    return false;
}

double dtp_cluster_memory_kernel_bytes_per_s(const struct dtp_cluster *cluster, const struct dtp_execution *execution,
                                             enum dtp_memory_kernel kind)
{
    if (cluster->measured && !execution->own_kernels) {
        enum dtp_measured_pass pass;
        double framework =
            dtp_memory_kernel_pass(kind, &pass) ? dtp_measured_pass_bytes_per_s(cluster->measured, pass) : (double)NAN;
        return isfinite(framework) ? framework : dtp_memory_kernel_bytes_per_s(&cluster->gpu, execution, kind);
    }
    double measured = measured_kernels(cluster, execution)
                          ? dtp_measured_kernels_bytes_per_s(
                                cluster->measured, kind == DTP_KERNEL_STREAMING ? is_optimizer : is_of_a_block)
                          : (double)NAN;
    return isfinite(measured) ? measured : dtp_memory_kernel_bytes_per_s(&cluster->gpu, execution, kind);
}

/* A machine file's rate of eager kernels is of all that they do. */
struct dtp_pass_rates dtp_cluster_pass_rates(const struct dtp_cluster *cluster)
{
    bool measured =
        cluster->measured && isfinite(dtp_measured_pass_bytes_per_s(cluster->measured, DTP_MEASURED_PASS_EAGER));
    if (measured || dtp_cluster_is_host(cluster))
        return (struct dtp_pass_rates){.elements_per_s = INFINITY};
    return dtp_pass_rates(&cluster->gpu);
}

double dtp_cluster_kernel_gap_s(const struct dtp_cluster *cluster, const struct dtp_execution *execution)
{
    double measured_s = measured_kernels(cluster, execution)
                            ? dtp_measured_step_s(cluster->measured, execution->graph ? "gap_graph" : "gap_live")
                            : (double)NAN;
    if (dtp_cluster_is_host(cluster)) /* it goes from one to the next, and what that takes is measured or nothing */
        return isfinite(measured_s) ? measured_s : 0;
    if (!measured_kernels(cluster, execution))
        return dtp_kernel_gap_s(execution);
    /* what a kernel needs to get under way is in its measured time */
    return isfinite(measured_s) ? measured_s : dtp_calibration.graph_kernel_gap_s;
}

double dtp_cluster_kernel_launch_s(const struct dtp_cluster *cluster, const struct dtp_execution *execution)
{
    if (dtp_cluster_is_host(cluster)) /* who launches a kernel is who runs it */
        return 0;
    double measured = (double)NAN;
    if (measured_kernels(cluster, execution))
        measured = dtp_measured_step_s(cluster->measured, "launch");
    else if (cluster->measured && execution->issuer == DTP_ISSUER_PYTORCH)
        measured = dtp_measured_step_s(cluster->measured, "launch_pytorch");
    return isfinite(measured) ? measured : dtp_kernel_launch_s(execution);
}

double dtp_cluster_collective_launch_s(const struct dtp_cluster *cluster, const struct dtp_execution *execution)
{
    struct dtp_execution called = *execution;
    if (called.issuer == DTP_ISSUER_MEGATRON)
        called.issuer = DTP_ISSUER_PYTORCH;
    return dtp_cluster_kernel_launch_s(cluster, &called);
}

double dtp_cluster_copy_bytes_per_s(const struct dtp_cluster *cluster, bool upload, double bytes)
{
    double formula = cluster->gpu.pcie_bytes_per_s * dtp_calibration.pcie_fraction;
    if (!cluster->measured || !(bytes > 0))
        return formula;
    struct dtp_measured_row row = dtp_measured_row_of(DTP_MEASUREMENT_COPY, upload ? "upload" : "download");
    row.number[DTP_MEASURED_bytes] = bytes;
    row.number[DTP_MEASURED_ranks] = dtp_cluster_ranks_at_once(cluster);
    double measured_s = dtp_measured_s(cluster->measured, &row);
    return isfinite(measured_s) ? bytes / measured_s : formula;
}

/* A GPU's share of the node's cores, as clouds rent them, and of its memory, of which all ranks want some at once; one
 * after the other, as a memory-bound kernel's SMs and HBM. */
double dtp_host_adam_bytes_per_s(const struct dtp_machine *machine, double ranks)
{
    const struct dtp_calibration *c = &dtp_calibration;
    double cores = fmax(1, (double)machine->host_cores / fmax(ranks, machine->gpus));
    double memory = machine->host_memory_bytes_per_s * c->host_adam_memory_fraction / ranks;
    return 1 / (1 / (cores * c->host_adam_core_bytes_per_s) + 1 / memory);
}

double dtp_cluster_host_adam_bytes_per_s(const struct dtp_cluster *cluster, const struct dtp_execution *execution,
                                         double bytes)
{
    if (execution->plain_host_adam)
        return dtp_calibration.torch_host_adam_bytes_per_s;
    double formula = dtp_host_adam_bytes_per_s(&cluster->machine, cluster->gpus_per_node);
    if (!measured_kernels(cluster, execution) || !(bytes > 0))
        return formula;
    struct dtp_measured_row row = dtp_measured_row_of(DTP_MEASUREMENT_HOST_ADAM, "update");
    row.number[DTP_MEASURED_bytes] = bytes;
    row.number[DTP_MEASURED_ranks] = dtp_cluster_ranks_at_once(cluster);
    double measured_s = dtp_measured_s(cluster->measured, &row);
    return isfinite(measured_s) ? bytes / measured_s : formula;
}

uint32_t dtp_cluster_measured_gpus(const struct dtp_cluster *cluster)
{
    return cluster->measured ? dtp_measured_count(cluster->measured, "gpus") : 0;
}

double dtp_cluster_slowest_rank(const struct dtp_cluster *cluster, double deviation)
{
    uint32_t measured = dtp_cluster_measured_gpus(cluster);
    if (!measured)
        return dtp_slowest_rank_factor(cluster->gpus, deviation);
    return dtp_slowest_rank_factor(fmax(cluster->gpus, measured), deviation) /
           dtp_slowest_rank_factor(measured, deviation);
}
