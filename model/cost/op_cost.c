#include "cost/op_cost.h"

#include "cost/calibration.h"
#include "plan/rules.h"

#include <gsl/gsl_cdf.h>
#include <math.h>

double dtp_matmul_flops_per_s(const struct dtp_gpu *gpu, enum dtp_dtype dtype)
{
    return gpu->peak_flops_per_s[dtype] * gpu->matmul_fraction;
}

double dtp_matmul_s(const struct dtp_gpu *gpu, enum dtp_dtype dtype, double m, double n, double k)
{
    double tiles = ceil(m / 128) * ceil(n / 128);
    double occupancy = tiles < gpu->sm_count ? tiles / gpu->sm_count : 1;
    double in_bytes = dtp_dtype_bytes(dtype), out_bytes = in_bytes < 2 ? 2 : in_bytes;
    double traffic_s = ((m + n) * k * in_bytes + m * n * out_bytes) / gpu->memory_bytes_per_s;
    double flops_s = 2 * m * n * k / (dtp_matmul_flops_per_s(gpu, dtype) * occupancy);
    /* Small k: the kernel is memory-bound and the traffic itself is the time. */
    double hidden = flops_s + dtp_calibration.matmul_output_overlap_loss * traffic_s;
    double traffic_bound = traffic_s / dtp_calibration.hbm_fraction;
    return hidden > traffic_bound ? hidden : traffic_bound;
}

double dtp_matmul_share(const struct dtp_gpu *gpu, const struct dtp_plan *plan)
{
    return plan->matmul_sms && plan->matmul_sms < gpu->sm_count ? (double)plan->matmul_sms / gpu->sm_count : 1;
}

double dtp_memory_kernel_bytes_per_s(const struct dtp_gpu *gpu, enum dtp_memory_kernel kind)
{
    double per_sm = kind == DTP_KERNEL_EAGER   ? dtp_calibration.eager_sm_bytes_per_s
                    : kind == DTP_KERNEL_FUSED ? dtp_calibration.fused_sm_bytes_per_s
                                               : dtp_calibration.streaming_sm_bytes_per_s;
    return 1 / (1 / (gpu->memory_bytes_per_s * dtp_calibration.hbm_fraction) + 1 / (per_sm * gpu->sm_count));
}

/* Fused AdamW reads p, g and moments, writes p and moments. foreach AdamW makes about ten passes (decay 8, lerp 12, mul
 * 8, addcmul 12, sqrt 8, division and eps 16, addcdiv 16 bytes in fp32). */
double dtp_optimizer_bytes_per_parameter(const struct dtp_plan *plan)
{
    const struct dtp_precision *p = &plan->precision;
    double param = dtp_dtype_bytes(p->params), master = p->master != p->params ? dtp_dtype_bytes(p->master) : 0;
    struct dtp_element_bytes element;
    dtp_element_bytes_count(plan, &element);
    double moment = dtp_dtype_bytes(p->moments), grad = (double)element.grads;
    switch (plan->optimizer) {
    case DTP_ADAMW_FUSED: return (master > 0 ? param + 2 * master : 2 * param) + grad + 4 * moment;
    case DTP_ADAMW_FOREACH: return 20 * moment + 2 * param + 2 * master;
    case DTP_SGD: return 2 * param + 2 * master + grad;
    case DTP_ADAM8BIT: return 2 * param + 2 * master + grad + 4;
    }
    return 0;
}

struct flash_rates {
    double forward, backward; /* of the sustained matmul rate, so that a part with less power attends slower too */
};

static struct flash_rates flash_rates(const struct dtp_gpu *gpu, enum dtp_attention attention)
{
    bool wgmma = gpu->architecture == DTP_GPU_HOPPER || gpu->architecture == DTP_GPU_BLACKWELL;
    if (attention == DTP_ATTENTION_FLASH1)
        return wgmma
                   ? (struct flash_rates){dtp_calibration.flash1_hopper_forward, dtp_calibration.flash1_hopper_backward}
                   : (struct flash_rates){dtp_calibration.flash1_forward, dtp_calibration.flash1_backward};
    if (!wgmma)
        return (struct flash_rates){dtp_calibration.flash2_forward, dtp_calibration.flash2_backward};
    if (attention == DTP_ATTENTION_FLASH2)
        return (struct flash_rates){dtp_calibration.flash2_hopper_forward, dtp_calibration.flash2_hopper_backward};
    return (struct flash_rates){dtp_calibration.flash_hopper_forward, dtp_calibration.flash_hopper_backward};
}

/* Math attention: two matmuls over whole rows, and scores that pass through memory: forward writes them, reads and
 * writes them for mask and softmax and reads them for the product; backward about as often. PyTorch computes 16-bit
 * inputs in fp32 here, off the tensor cores. */
static struct dtp_attention_time math_attention_time(const struct dtp_gpu *gpu,
                                                     const struct dtp_transformer *transformer,
                                                     const struct dtp_plan *plan, double causal_flops, double tokens)
{
    double score_bytes = dtp_plan_score_bytes(plan);
    enum dtp_dtype compute = plan->precision.compute == DTP_FP8 ? DTP_BF16 : plan->precision.compute;
    double rate = dtp_matmul_flops_per_s(gpu, score_bytes > dtp_dtype_bytes(compute) ? DTP_FP32 : compute);
    double passes_bytes = (double)transformer->heads * (double)plan->sequence * score_bytes * 6;
    double memory_s = passes_bytes * tokens / dtp_memory_kernel_bytes_per_s(gpu, DTP_KERNEL_EAGER);
    return (struct dtp_attention_time){2 * causal_flops / rate + memory_s, 4 * causal_flops / rate + memory_s};
}

struct dtp_attention_time dtp_attention_time(const struct dtp_gpu *gpu, const struct dtp_transformer *transformer,
                                             const struct dtp_plan *plan, double tokens)
{
    enum dtp_dtype dtype = plan->precision.compute == DTP_FP8 ? DTP_BF16 : plan->precision.compute;
    double rate = dtp_matmul_flops_per_s(gpu, dtype), s = (double)plan->sequence;
    double d_q = (double)(transformer->heads * transformer->head_dim), width = (double)transformer->head_dim;
    double flops = 2 * s * d_q * tokens; /* QK^T and PV, each 2*s*d_q, causal half */
    if (plan->attention == DTP_ATTENTION_MATH)
        return math_attention_time(gpu, transformer, plan, flops, tokens);
    struct flash_rates rates = flash_rates(gpu, plan->attention);
    /* Narrow heads feed the tensor cores less per softmax: 128 is the reference width, 64 reaches 0.83 of it. */
    double head = fmin(1, 1.25 * width / (width + 32));
    /* Flash kernels skip what a sliding window hides; math attention computes it all and masks it. */
    flops *= dtp_transformer_attention_length(transformer, plan->sequence) / s;
    double forward = rates.forward * head * s / (s + dtp_calibration.flash_forward_half_sequence);
    double backward = rates.backward * head * s / (s + dtp_calibration.flash_backward_half_sequence);
    return (struct dtp_attention_time){flops / (rate * forward), 2.5 * flops / (rate * backward)};
}

double dtp_matmul_speedup(const struct dtp_gpu *gpu, double matmul_s, double other_s)
{
    bool limited = gpu->architecture == DTP_GPU_HOPPER || gpu->architecture == DTP_GPU_BLACKWELL;
    if (!limited || matmul_s + other_s <= 0)
        return 1;
    double speedup = 1;
    for (int i = 0; i < 3; i++) { /* the share depends on the speed-up; three rounds settle it to 1e-3 */
        double share = matmul_s / speedup / (matmul_s / speedup + other_s);
        speedup = 1 + dtp_calibration.matmul_power_headroom * (1 - share);
    }
    return speedup;
}

double dtp_kernel_launch_s(const struct dtp_plan *plan)
{
    switch (plan->runtime) {
    case DTP_RUNTIME_DTPLAN: return dtp_calibration.native_launch_s;
    case DTP_RUNTIME_MEGATRON: return dtp_calibration.megatron_launch_s;
    case DTP_RUNTIME_TORCH:
    case DTP_RUNTIME_DEEPSPEED: break;
    }
    return dtp_calibration.torch_launch_s;
}

double dtp_kernel_gap_s(const struct dtp_plan *plan)
{
    return plan->runtime == DTP_RUNTIME_DTPLAN ? dtp_calibration.graph_kernel_gap_s : dtp_calibration.kernel_gap_s;
}

/* Speeds of n GPUs scatter normally: the expected maximum of n standard normals by Blom's approximation, times the
 * deviation. */
double dtp_slowest_rank_factor(double ranks, double deviation)
{
    if (ranks < 2)
        return 1;
    return 1 + deviation * gsl_cdf_ugaussian_Pinv((ranks - 0.375) / (ranks + 0.25));
}
