#include "cost/grouped_matmul.h"

#include "cost/calibration.h"

#include <math.h>

/* Each group reads its own matrix. */
static double traffic_s(const struct dtp_gpu *gpu, enum dtp_dtype dtype, double groups, double m, double n, double k)
{
    double in = dtp_dtype_bytes(dtype), out = in < 2 ? 2 : in;
    return groups * (in * (m * k + n * k) + out * m * n) / dtp_copy_bytes_per_s(gpu);
}

/* The kernel's CTAs take tiles of all groups in turn, so waves are of all of them together. What a group costs beyond
 * its rows, tiles that these do not fill and a pipeline that starts anew, is as if it had some more: a sum over rows
 * has less to amortise than rows of results have. */
double dtp_grouped_matmul_s(const struct dtp_gpu *gpu, enum dtp_dtype dtype, enum dtp_fp8_recipe recipe,
                            enum dtp_product product, double groups, double m, double n, double k)
{
    bool weight_gradient = product == DTP_PRODUCT_WEIGHT_GRADIENT;
    double rows = weight_gradient ? k : m;
    double more = weight_gradient ? dtp_calibration.grouped_gradient_rows : dtp_calibration.grouped_matmul_rows;
    double all_m = weight_gradient ? m : groups * m, all_k = weight_gradient ? groups * k : k;
    double compute_s = dtype == DTP_FP8 ? dtp_fp8_matmul_s(gpu, recipe, product, all_m, n, all_k)
                                        : dtp_matmul_s(gpu, dtype, weight_gradient, all_m, n, all_k);
    return fmax(compute_s * (1 + more / rows), traffic_s(gpu, dtype, groups, m, n, k));
}

/* aten/src/ATen/native/cuda/GroupMM.cu has CUTLASS' persistent kernel: two thread blocks, an SM each, make 2 x 128 x
 * 256 of a result together, or, where results are at most 128 high or wide, 2 x 64 x 128. Tiles of all groups come in
 * turn, one at a time: each fills a pipeline first, and is written before the next, as if it were deeper. A router
 * sends experts any number of rows, so that the last tile of these is half empty in the mean; a weight's gradient has
 * its sides for a result, and is as deep as rows are many. */
double dtp_torch_grouped_matmul_s(const struct dtp_gpu *gpu, enum dtp_dtype dtype, enum dtp_product product,
                                  double groups, double m, double n, double k)
{
    const double edge = fmin(m, n) <= 128 ? 128 : 256;
    const uint32_t pairs = gpu->sm_count / 2;
    const double rows = round(groups * m); /* a millionth of one would cost a wave */
    const double down = product == DTP_PRODUCT_WEIGHT_GRADIENT ? groups * ceil(m / edge) : rows / edge + groups / 2;
    const double waves = ceil(down * ceil(n / edge) / pairs);
    const double flops_per_s = dtp_matmul_flops_per_s(gpu, dtype), full_s = 2 * groups * m * n * k / flops_per_s;
    const double wave_s = 2 * pairs * edge * edge * (k + dtp_calibration.grouped_tile_depth) / flops_per_s;
    return fmax(dtp_occupied_matmul_s(full_s, waves * wave_s), traffic_s(gpu, dtype, groups, m, n, k));
}

/* Hopper's has wgmma and tensor copies, as PyTorch's has. The others' feeds tensor cores from registers by mma.sync,
 * and is held up by what each SM issues for that, before tensor cores or memory are. */
double dtp_native_grouped_matmul_s(const struct dtp_gpu *gpu, enum dtp_dtype dtype, enum dtp_product product,
                                   double groups, double m, double n, double k)
{
    double library_s = dtp_grouped_matmul_s(gpu, dtype, DTP_FP8_NONE, product, groups, m, n, k);
    if (gpu->architecture == DTP_GPU_HOPPER)
        return library_s / dtp_calibration.native_grouped_matmul;
    return fmax(library_s, 2 * groups * m * n * k / (dtp_calibration.native_grouped_sm_flops_per_s * gpu->sm_count));
}
