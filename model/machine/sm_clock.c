#include "machine/sm_clock.h"

/* An SM has 128 fp32 lanes; before Ada 64 where its tensor cores make eight times and more of what these do (V100, T4,
 * A100; others of Ampere, A10 and RTX 3090, twice and four times). */
static double sm_lanes(const struct dtp_gpu *gpu)
{
    const double *peak = gpu->peak_flops_per_s;
    bool wide = gpu->architecture >= DTP_GPU_ADA || peak[DTP_FP16] < 8 * peak[DTP_FP32];
    return wide ? 128 : 64;
}

double dtp_gpu_sm_clock_hz(const struct dtp_gpu *gpu)
{
    return gpu->peak_flops_per_s[DTP_FP32] / (2 * sm_lanes(gpu) * gpu->sm_count);
}
