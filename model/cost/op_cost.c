#include "cost/op_cost.h"

#include "cost/calibration.h"
#include "machine/sm_clock.h"
#include "plan/comm_hook.h"
#include "plan/rules.h"

#include <gsl/gsl_cdf.h>
#include <limits.h>
#include <math.h>

static bool is_hopper_or_later(const struct dtp_gpu *gpu)
{
    return gpu->architecture == DTP_GPU_HOPPER || gpu->architecture == DTP_GPU_BLACKWELL;
}

/* Significands of 11 bits where bf16 has 8 take more power to multiply, and chips at their limit clock down for it. */
double dtp_matmul_flops_per_s(const struct dtp_gpu *gpu, enum dtp_dtype dtype)
{
    double narrow = dtype == DTP_FP16 && gpu->architecture == DTP_GPU_AMPERE ? dtp_calibration.fp16_on_ampere : 1;
    bool own = dtype == DTP_FP8 && gpu->fp8_matmul_fraction > 0;
    return gpu->peak_flops_per_s[dtype] * (own ? gpu->fp8_matmul_fraction : gpu->matmul_fraction) * narrow;
}

static double copy_fraction(const struct dtp_gpu *gpu)
{
    return gpu->memory_fraction > 0 ? gpu->memory_fraction : dtp_calibration.hbm_fraction;
}

double dtp_copy_bytes_per_s(const struct dtp_gpu *gpu)
{
    return gpu->memory_bytes_per_s * copy_fraction(gpu);
}

/* fmin and fmax are calls; the closed form prices some forty matmuls a plan. */
static double least(double a, double b)
{
    return a < b ? a : b;
}

static double most(double a, double b)
{
    return a > b ? a : b;
}

/* Rate of a matmul / that of an aligned one, as far as rows go that begin at multiples of so many bytes; `odd` is that
 * of rows which not even asynchronous copies of 4 bytes can load. */
static double row_loss(const struct dtp_gpu *gpu, unsigned bytes, double odd)
{
    if (bytes == DTP_ALIGNED_BYTES)
        return 1;
    if (!is_hopper_or_later(gpu))
        return bytes < 4 ? dtp_calibration.unaligned_before_hopper : 1;
    return bytes < 4 ? odd : dtp_calibration.unaligned_words;
}

/* The dimension along which an operand is contiguous; a result is along n. Rows that count tokens never are: a weight's
 * gradient sums over them, other results have m of them. */
static double operand_row(bool weight_gradient, double m, double k)
{
    return weight_gradient ? m : k;
}

bool dtp_matmul_has_odd_rows(enum dtp_dtype dtype, bool weight_gradient, double m, double n, double k)
{
    return dtp_dtype_bytes(dtype) == 2 && (dtp_row_alignment_bytes(dtype, n) < 4 ||
                                           dtp_row_alignment_bytes(dtype, operand_row(weight_gradient, m, k)) < 4);
}

/* Formats of 32 bits come to tensor cores, if at all, by older kernels anyway. */
static double alignment_loss(const struct dtp_gpu *gpu, unsigned element_bytes, bool weight_gradient, double m,
                             double n, double k)
{
    const struct dtp_calibration *c = &dtp_calibration;
    if (element_bytes > 2)
        return 1;
    unsigned result = dtp_alignment_bytes(n, element_bytes);
    unsigned operand = dtp_alignment_bytes(operand_row(weight_gradient, m, k), element_bytes);
    return least(row_loss(gpu, result, c->unaligned_result),
                 row_loss(gpu, operand, weight_gradient ? c->unaligned_outer : c->unaligned_reduced));
}

/* Seconds of [m,k] x [k,n] made in tiles of so many rows and columns, when all SMs together need `unit_s` for an
 * element of the result: a wave of tiles takes as long however few SMs have one. Fewer tiles than SMs may be made in
 * equal parts of k, all at once, which are added up through memory in fp32. No part is less deep than
 * matmul_split_depth, and each number of parts by itself takes longer for more of m, n or k, so that the best of them
 * does too. */
static double tiled_s(const struct dtp_gpu *gpu, double unit_s, double m, double n, double k, double rows,
                      double columns)
{
    const double depth = dtp_calibration.matmul_split_depth;
    double sms = gpu->sm_count, tiles = ceil(m / rows) * ceil(n / columns), wave_s = rows * columns * sms * unit_s;
    if (2 * tiles > sms)
        return ceil(tiles / sms) * wave_s;
    double best_s = wave_s, part_s = 2 * 4 * m * n / gpu->memory_bytes_per_s;
    double most_parts = least(floor(sms / tiles), ceil(2 * k / depth) - 1);
    if (most_parts < 2)
        return best_s;
    /* Seconds are convex in the number of parts: the best whole number is next to where they are least. */
    double parts = floor(least(most_parts, most(2, least(sqrt(wave_s / part_s), k / depth))));
    for (double last = least(parts + 1, most_parts); parts <= last; parts++)
        best_s = least(best_s, wave_s * most(1 / parts, depth / k) + parts * part_s);
    return best_s;
}

/* Tiles that libraries have; odd ones come to less. */
static const struct tile {
    double rows, columns;
    bool odd;
} tiles[] = {{128, 128, false}, {128, 256, false}, {256, 128, false}, {128, 192, true}, {192, 128, true}};
enum { TILES = sizeof tiles / sizeof *tiles };

double dtp_occupied_matmul_s(double full_s, double occupied_s)
{
    const struct dtp_calibration *c = &dtp_calibration;
    double paid_s = full_s + c->matmul_idle_loss * (occupied_s - full_s);
    return most(paid_s, occupied_s / (1 + c->matmul_power_headroom)) / c->matmul_full_waves;
}

/* The same in the best of these. */
static double products_s(const struct dtp_gpu *gpu, double rate, double m, double n, double k)
{
    const struct dtp_calibration *c = &dtp_calibration;
    double unit_s[] = {2 * k / rate, 2 * k / (rate * c->matmul_odd_tile)}, occupied_s = INFINITY;
    for (size_t i = 0; i < TILES; i++)
        if (m * n * unit_s[tiles[i].odd] < occupied_s) /* if no SM idled */
            occupied_s =
                least(occupied_s, tiled_s(gpu, unit_s[tiles[i].odd], m, n, k, tiles[i].rows, tiles[i].columns));
    return dtp_occupied_matmul_s(m * n * unit_s[false], occupied_s);
}

double dtp_matmul_speed_on_fewer_sms(double sms, double m, double n, double share)
{
    const double left = 1 - share;
    double best = INFINITY, best_area = 0, best_count = 0;
    if (share <= 0 || sms <= 0)
        return left;
    for (size_t i = 0; i < TILES; i++) {
        const double area = tiles[i].rows * tiles[i].columns;
        const double count = ceil(m / tiles[i].rows) * ceil(n / tiles[i].columns);
        const double work = ceil(count / sms) * area / (tiles[i].odd ? dtp_calibration.matmul_odd_tile : 1);
        if (work < best || (work == best && area > best_area))
            best = work, best_area = area, best_count = count;
    }
    if (best_count <= sms * left)
        return 1;
    const double waves = ceil(best_count / sms);
    return waves / ceil(waves / left);
}

/* What tensor cores reach of their sustained rate in a format, and bytes of an operand's element. */
struct format {
    enum dtp_dtype dtype;
    double rate, element_bytes;
};

bool dtp_matmul_is_narrow(enum dtp_dtype dtype, double m, double n, double k)
{
    return dtype == DTP_FP32 && least(m, least(n, k)) <= dtp_calibration.narrow_matmul_side;
}

static double narrow_matmul_s(const struct dtp_gpu *gpu, double m, double n, double k)
{
    double bytes = dtp_dtype_bytes(DTP_FP32) * ((m + n) * k + m * n);
    return dtp_calibration.narrow_matmul_start_s +
           bytes / (gpu->memory_bytes_per_s * dtp_calibration.narrow_matmul_hbm_fraction);
}

static double matmul_s(const struct dtp_gpu *gpu, const struct format *format, bool weight_gradient, double m, double n,
                       double k)
{
    if (dtp_matmul_is_narrow(format->dtype, m, n, k))
        return narrow_matmul_s(gpu, m, n, k);
    double out_bytes = format->element_bytes < 2 ? 2 : format->element_bytes;
    double traffic_s = ((m + n) * k * format->element_bytes + m * n * out_bytes) / gpu->memory_bytes_per_s;
    double rate = dtp_matmul_flops_per_s(gpu, format->dtype) * format->rate *
                  alignment_loss(gpu, dtp_dtype_bytes(format->dtype), weight_gradient, m, n, k);
    double hidden_s = products_s(gpu, rate, m, n, k) + dtp_calibration.matmul_output_overlap_loss * traffic_s;
    /* Small k: the kernel is memory-bound and the traffic itself is the time. */
    return most(hidden_s, traffic_s / copy_fraction(gpu));
}

double dtp_matmul_s(const struct dtp_gpu *gpu, enum dtp_dtype dtype, bool weight_gradient, double m, double n, double k)
{
    return matmul_s(gpu, &(struct format){dtype, 1, dtp_dtype_bytes(dtype)}, weight_gradient, m, n, k);
}

double dtp_untimed_matmul_s(const struct dtp_gpu *gpu, enum dtp_dtype dtype, bool weight_gradient, double m, double n,
                            double k)
{
    const struct dtp_calibration *c = &dtp_calibration;
    bool even_result = !dtp_matmul_has_odd_rows(dtype, false, m, n, DTP_ALIGNED_BYTES);
    bool odd_outer = even_result && weight_gradient && dtp_matmul_has_odd_rows(dtype, true, m, n, k);
    double rate = odd_outer && is_hopper_or_later(gpu) ? c->unaligned_outer_untimed / c->unaligned_outer : 1;
    return matmul_s(gpu, &(struct format){dtype, rate, dtp_dtype_bytes(dtype)}, weight_gradient, m, n, k);
}

/* Hopper's tensor cores sum fp8 products in fewer bits than fp32 has; what a recipe does not leave there is added to
 * fp32 registers every few steps, by other units. Later tensor cores sum in fp32, earlier ones are not known to differ.
 */
double dtp_fp8_matmul_rate(const struct dtp_gpu *gpu, enum dtp_fp8_recipe recipe, enum dtp_product product)
{
    const struct dtp_calibration *c = &dtp_calibration;
    const struct dtp_fp8_recipe_row *row = dtp_fp8_recipe_row(recipe);
    if (!row)
        return 1;
    if (row->bits < CHAR_BIT)
        return least(c->nvfp4_matmul_fraction * gpu->fp4_flops_per_s / gpu->peak_flops_per_s[DTP_FP8],
                     c->nvfp4_most * c->block_scaled_matmul);
    if (gpu->architecture != DTP_GPU_HOPPER)
        return row->granularity == DTP_FP8_BY_BLOCK ? c->block_scaled_matmul : 1;
    bool fast = row->fast >> product & 1;
    if (row->granularity == DTP_FP8_BY_TENSOR)
        return fast ? c->fp8_fast_matmul : c->fp8_matmul;
    if (row->granularity == DTP_FP8_BY_BLOCK)
        return c->fp8_blocks_matmul;
    return fast ? c->fp8_rows_fast_matmul : c->fp8_rows_matmul;
}

double dtp_fp8_matmul_s(const struct dtp_gpu *gpu, enum dtp_fp8_recipe recipe, enum dtp_product product, double m,
                        double n, double k)
{
    const struct dtp_fp8_recipe_row *row = dtp_fp8_recipe_row(recipe);
    struct format format = {DTP_FP8, dtp_fp8_matmul_rate(gpu, recipe, product), row ? (double)row->bits / CHAR_BIT : 1};
    return matmul_s(gpu, &format, product == DTP_PRODUCT_WEIGHT_GRADIENT, m, n, k);
}

double dtp_accumulated_bytes_per_s(const struct dtp_gpu *gpu)
{
    return dtp_copy_bytes_per_s(gpu) / dtp_calibration.accumulation_share;
}

double dtp_matmul_share(const struct dtp_gpu *gpu, const struct dtp_execution *execution)
{
    return execution->matmul_sms && execution->matmul_sms < gpu->sm_count
               ? (double)execution->matmul_sms / gpu->sm_count
               : 1;
}

double dtp_outer_rows(double rows)
{
    return most(rows, dtp_calibration.outer_tile_rows);
}

double dtp_memory_kernel_bytes_per_s(const struct dtp_gpu *gpu, const struct dtp_execution *execution,
                                     enum dtp_memory_kernel kind)
{
    const struct dtp_calibration *c = &dtp_calibration;
    const double of_kind[DTP_MEMORY_KERNEL_COUNT] = {[DTP_KERNEL_EAGER] = c->eager_sm_bytes_per_s,
                                                     [DTP_KERNEL_FUSED] = c->fused_sm_bytes_per_s,
                                                     [DTP_KERNEL_STREAMING] = c->streaming_sm_bytes_per_s,
                                                     [DTP_KERNEL_INDEXED] = c->indexed_sm_bytes_per_s,
                                                     [DTP_KERNEL_OUTER] = c->outer_sm_bytes_per_s,
                                                     [DTP_KERNEL_TRANSPOSING] = c->transposing_sm_bytes_per_s,
                                                     [DTP_KERNEL_COLUMNS] = c->columns_sm_bytes_per_s,
                                                     [DTP_KERNEL_NARROW_UPDATE] = c->narrow_update_sm_bytes_per_s,
                                                     [DTP_KERNEL_PASS] = INFINITY,
                                                     [DTP_KERNEL_UNPACKING] = c->unpacking_sm_bytes_per_s};
    double unit = gpu->sm_memory_fraction > 0 ? gpu->sm_memory_fraction : 1;
    double per_sm = unit * (execution->own_kernels ? c->native_sm_bytes_per_s : of_kind[kind]);
    return 1 / (1 / dtp_copy_bytes_per_s(gpu) + 1 / (per_sm * gpu->sm_count));
}

struct dtp_pass_rates dtp_pass_rates(const struct dtp_gpu *gpu)
{
    const struct dtp_calibration *c = &dtp_calibration;
    double clock_hz = dtp_gpu_sm_clock_hz(gpu);
    return (struct dtp_pass_rates){.elements_per_s = c->pass_elements_per_cycle * clock_hz * gpu->sm_count,
                                   .start_s = c->pass_start_s,
                                   .column_sum_s = c->column_sum_cycles / clock_hz};
}

enum dtp_memory_kernel dtp_update_kernel(const struct dtp_plan *plan)
{
    bool narrow = plan->optimizer == DTP_ADAMW_FUSED && !plan->megatron.precision_aware &&
                  dtp_dtype_bytes(plan->precision.params) == 2 && dtp_dtype_bytes(plan->precision.moments) == 2;
    return narrow ? DTP_KERNEL_NARROW_UPDATE : DTP_KERNEL_STREAMING;
}

/* In one kernel p, g and states are read, p and states written, scales with them; a master copy stands for p there.
 * foreach AdamW makes about ten passes (decay 8, lerp 12, mul 8, addcmul 12, sqrt 8, division and eps 16, addcdiv 16
 * bytes in fp32). foreach SGD multiplies its momentum, adds the gradient to it, and it to p: 5 of it. Adafactor reads
 * p for its norm, g for the sums over rows and over columns, writes their product as an estimate (a matmul of inner
 * size 1), divides it, clamps it, takes its root and multiplies it by g, each in place, reads it for its norm, and
 * adds it to p: 3 of p, 3 of g, 11 of the estimate (of matrices; vectors a few more). Waits for its two norms, which
 * the host reads, are not counted. AdamW of GaLore's and APOLLO's loop makes the 17 passes of a projected gradient
 * (optimizer_state.c: dtp_projection_of), 2 of them over g, six kernels that read and write, a quotient of two, and
 * adds that to p; Adam-mini squares g (2), takes its mean (1), lerps it into its moment (3), scales that one (2, 2),
 * negates it (2) and adds it to p (3). GradScaler looks for infinities before: amp_non_finite_check_and_unscale reads
 * and writes all gradients, by a scale of 1 where the optimizer unscales them itself (torch/amp/grad_scaler.py: step,
 * _check_inf_per_device). */
double dtp_optimizer_bytes_per_parameter(const struct dtp_plan *plan)
{
    const struct dtp_precision *p = &plan->precision;
    const struct dtp_optimizer_row *row = dtp_optimizer_row(plan->optimizer);
    double param = dtp_dtype_bytes(p->params), master = p->master != p->params ? dtp_dtype_bytes(p->master) : 0;
    struct dtp_element_bytes element;
    dtp_element_bytes_count(plan, &element);
    double grad = (double)element.grads, state = (double)element.moments;
    double checked = dtp_plan_scales_loss(plan) ? 2 * grad : 0;
    if (row->block)
        state += (double)element.block_bytes / row->block;
    if (plan->optimizer == DTP_ADAMW_FOREACH)
        return 10 * state + 2 * param + 2 * master + checked;
    if (row->shape == DTP_STATE_FACTORS)
        return 3 * param + 3 * grad + 11 * dtp_dtype_bytes(p->moments) + 2 * master + checked;
    if (row->shape == DTP_STATE_PROJECTED)
        return 2 * param + 2 * grad + 16 * dtp_dtype_bytes(p->moments) + 2 * master + checked;
    if (row->shape == DTP_STATE_ROWS)
        return 2 * param + 2 * grad + 11 * dtp_dtype_bytes(p->moments) + 2 * master + checked;
    if (row->shape == DTP_STATE_MATRICES) /* AdamW's, in one kernel */
        return 2 * param + grad + 4 * dtp_dtype_bytes(p->moments) + 2 * master + checked;
    double passes = plan->optimizer == DTP_MOMENTUM ? 5 : 2;
    if (dtp_plan_keeps_remainders(plan)) /* p is its other half */
        return 2 * param + 2 * (double)element.master + grad + passes * state + checked;
    bool own_copy = master > 0 && plan->optimizer == DTP_ADAMW_FUSED; /* which it updates, and writes p from it */
    return (own_copy ? param : 2 * param) + 2 * master + grad + passes * state + checked;
}

/* The gradient goes into the momentum, g b -> b; a look ahead is made of both, g b -> u; it is cast to bf16 where it is
 * wider, u -> x; x is read for its norm and divided in place. Then p decays, and the result is added to it. */
double dtp_optimizer_matrix_bytes_per_parameter(const struct dtp_plan *plan)
{
    struct dtp_element_bytes element;
    dtp_element_bytes_count(plan, &element);
    double param = dtp_dtype_bytes(plan->precision.params), grad = (double)element.grads;
    double state = dtp_dtype_bytes(plan->precision.moments), narrow = dtp_dtype_bytes(DTP_BF16);
    double momentum = 2 * (2 * state + grad), cast = state > narrow ? state + narrow : 0;
    double checked = dtp_plan_scales_loss(plan) ? 2 * grad : 0;
    if (dtp_optimizer_row(plan->optimizer)->shape == DTP_STATE_PROJECTED) /* all else follows from their shapes */
        return checked;
    return momentum + cast + 3 * narrow + 4 * param + narrow + checked;
}

struct flash_rates {
    double forward, backward; /* of the sustained matmul rate, so that a part with less power attends slower too */
    double forward_half_sequence, backward_half_sequence; /* at which half of that is reached */
    double most_backward;
    double forward_tile, backward_tile; /* rows that an SM takes at a time; 0: what the end idles is in the rates */
};

static struct flash_rates rates_of_kernel(const struct dtp_gpu *gpu, const struct dtp_attention_shape *shape,
                                          const struct dtp_execution *execution)
{
    const struct dtp_calibration *c = &dtp_calibration;
    const double forward_half = c->flash_forward_half_sequence, backward_half = c->flash_backward_half_sequence;
    bool wgmma = is_hopper_or_later(gpu);
    if (shape->kernel == DTP_ATTENTION_FLASH1)
        return (struct flash_rates){wgmma ? c->flash1_hopper_forward : c->flash1_forward,
                                    wgmma ? c->flash1_hopper_backward : c->flash1_backward, forward_half, backward_half,
                                    1};
    if (!wgmma)
        return (struct flash_rates){c->flash2_forward, c->flash2_backward, forward_half, backward_half, 1};
    if (shape->kernel == DTP_ATTENTION_FLASH2)
        return (struct flash_rates){c->flash2_hopper_forward, c->flash2_hopper_backward, forward_half, backward_half,
                                    1};
    if (execution->own_kernels)
        return (struct flash_rates){c->native_flash_forward, c->native_flash_backward,
                                    c->native_flash_forward_half_sequence, c->native_flash_backward_half_sequence,
                                    shape->atomic ? 1 : c->native_flash_reproducible};
    bool hopper = gpu->architecture == DTP_GPU_HOPPER;
    return (struct flash_rates){
        .forward = c->flash_hopper_forward,
        .backward = c->flash_hopper_backward,
        .forward_half_sequence = c->flash_hopper_forward_half_sequence,
        .backward_half_sequence = backward_half,
        .most_backward = 1,
        .forward_tile = hopper ? c->flash_hopper_tile_queries : c->flash_blackwell_tile_queries,
        .backward_tile = c->flash_hopper_tile_queries,
    };
}

/* Libraries' kernels of today: where this part's were measured, that is their rate. */
static struct flash_rates flash_rates(const struct dtp_gpu *gpu, const struct dtp_attention_shape *shape,
                                      const struct dtp_execution *execution)
{
    struct flash_rates rates = rates_of_kernel(gpu, shape, execution);
    bool measured = shape->kernel != DTP_ATTENTION_FLASH1 && !execution->own_kernels;
    if (measured && gpu->flash_forward_fraction > 0)
        rates.forward = gpu->flash_forward_fraction;
    if (measured && gpu->flash_backward_fraction > 0)
        rates.backward = gpu->flash_backward_fraction;
    if (shape->narrow) { /* keys wider than values are latent attention's */
        const struct dtp_calibration *c = &dtp_calibration;
        rates.forward *= shape->value_dim ? c->mx_attention_latent_forward : c->mx_attention_forward;
        rates.backward *= shape->value_dim ? c->mx_attention_latent_backward : c->mx_attention_backward;
        rates.most_backward *= shape->value_dim ? c->mx_attention_latent_backward : c->mx_attention_backward;
        rates.backward_half_sequence =
            shape->value_dim ? rates.backward_half_sequence : c->mx_attention_backward_half_sequence;
    }
    return rates;
}

/* Rate of math attention's products in 16 bits. Heads lie beside each other in a row of all, so that a width which is
 * no multiple of 16 bytes has most of them begin at none, whatever the row does: cuBLAS then has products in batches of
 * such heads made by kernels without tensor cores (BLOOM's 150 and 450 wide heads at 4 bytes and its 108 wide ones at 8
 * are as slow as each other). Later GPUs' are taken to lose what other products do. */
static double heads_rate(const struct dtp_gpu *gpu, const struct dtp_attention_shape *shape, enum dtp_dtype compute)
{
    unsigned bytes = dtp_alignment_bytes(shape->head_dim, dtp_dtype_bytes(compute));
    double rate = dtp_matmul_flops_per_s(gpu, compute);
    if (bytes >= DTP_ALIGNED_BYTES)
        return rate;
    if (!is_hopper_or_later(gpu))
        return dtp_calibration.unaligned_heads_before_hopper * dtp_matmul_flops_per_s(gpu, DTP_FP32);
    return rate * row_loss(gpu, bytes, dtp_calibration.unaligned_reduced);
}

/* Math attention: two matmuls over whole rows, and scores that pass through memory, each time whole. PyTorch computes
 * 16-bit inputs in fp32 here, off the tensor cores. */
static struct dtp_attention_time math_attention_time(const struct dtp_gpu *gpu, const struct dtp_attention_shape *shape,
                                                     const struct dtp_execution *execution, double causal_flops,
                                                     double tokens)
{
    enum dtp_dtype compute = execution->compute == DTP_FP8 ? DTP_BF16 : execution->compute;
    double score_bytes = shape->wide ? 4 : dtp_dtype_bytes(compute);
    bool narrow = dtp_dtype_bytes(compute) == 2 && score_bytes == 2;
    double rate = narrow ? heads_rate(gpu, shape, compute)
                         : dtp_matmul_flops_per_s(gpu, score_bytes > dtp_dtype_bytes(compute) ? DTP_FP32 : compute);
    double eager = dtp_calibration.math_attention_passes * score_bytes;
    /* a score as the bytes that go through memory for it: with dropout its mask of a byte too, written and read */
    double dropout = shape->dropout ? 2 * score_bytes + 1 : 0;
    double forward = dropout + (shape->wide ? eager : dtp_calibration.fused_softmax_passes * score_bytes);
    double backward = dropout + (shape->wide ? eager : dtp_calibration.fused_softmax_passes_back * score_bytes);
    double scores_per_s = dtp_memory_kernel_bytes_per_s(gpu, execution, DTP_KERNEL_EAGER) /
                          ((double)shape->heads * (double)shape->keys * tokens);
    return (struct dtp_attention_time){2 * causal_flops / rate + forward / scores_per_s,
                                       4 * causal_flops / rate + backward / scores_per_s};
}

struct dtp_attention_time dtp_attention_time(const struct dtp_gpu *gpu, const struct dtp_attention_shape *shape,
                                             const struct dtp_execution *execution, double tokens)
{
    enum dtp_dtype dtype = execution->compute == DTP_FP8 ? DTP_BF16 : execution->compute;
    const enum dtp_own_attention own = dtp_own_attention(gpu, shape, execution);
    if (own != DTP_OWN_ATTENTION_NONE)
        return own == DTP_OWN_ATTENTION_MMA ? dtp_mma_attention_time(gpu, shape, dtype, tokens)
                                            : dtp_plain_attention_time(gpu, shape, tokens);
    double rate = dtp_matmul_flops_per_s(gpu, dtype), s = (double)shape->keys;
    double width = dtp_attention_forward_width(shape), d_q = (double)shape->heads * width;
    double flops = (shape->causal ? 2 : 4) * s * d_q * tokens; /* QK^T and PV, each 2*s*d_q, causal half */
    if (shape->kernel == DTP_ATTENTION_MATH)
        return math_attention_time(gpu, shape, execution, flops, tokens);
    struct flash_rates rates = flash_rates(gpu, shape, execution);
    /* Narrow heads feed the tensor cores less per softmax; at the reference width it is 1. */
    double half = dtp_calibration.flash_head_half_width, reference = dtp_calibration.flash_reference_head;
    double head = least(1, (1 + half / reference) * width / (width + half));
    /* Flash kernels skip what a sliding window hides, but for backward in MXFP8; math attention computes it all and
     * masks it. */
    double whole = flops, backs = shape->narrow ? s : dtp_attention_length(shape);
    flops *= dtp_attention_length(shape) / s;
    /* What a tile of queries costs beside its keys is spread over those it sees: in the causal square, of which the
     * rates were measured, half the sequence; under a window no more than that. */
    double seen = !shape->causal ? 2 * s : dtp_attention_length(shape);
    double forward = rates.forward * head * seen / (seen + rates.forward_half_sequence);
    double back = !shape->causal ? seen : backs;
    double backward = least(rates.backward * back / (back + rates.backward_half_sequence), rates.most_backward) * head;
    double again = dtp_attention_backward_width(shape) / width; /* 2.5 where widths are equal */
    /* SMs take tiles one after another: at the end each waits for half the largest of them, which is twice the mean
     * where tiles see from none to all of the keys, and the mean where each sees all. */
    double waits = (double)gpu->sm_count / (tokens * (double)shape->heads) / (shape->causal ? 1 : 2);
    return (struct dtp_attention_time){(1 + waits * rates.forward_tile) * flops / (rate * forward),
                                       (1 + waits * rates.backward_tile) * again * whole * backs / s /
                                           (rate * backward)};
}

bool dtp_attention_at_power_limit(const struct dtp_gpu *gpu, const struct dtp_attention_shape *shape,
                                  const struct dtp_execution *execution)
{
    return shape->kernel != DTP_ATTENTION_MATH && dtp_own_attention(gpu, shape, execution) == DTP_OWN_ATTENTION_NONE;
}

/* Of tensor cores' work the part W draws a matmul's power: all of matmuls, attention_power of what is lighter. T
 * that they and the rest take settles where speed-up = 1 + headroom (1 - W (T - other_s) / T) and T = tensor_s /
 * speed-up + other_s agree. With a = 1 + headroom (1 - W), the speed-up without anything beside them, and b = headroom
 * W: a T^2 - (tensor_s + (a - b) other_s) T - b other_s^2 = 0. Solved, not iterated, so that more of any never takes
 * less time. */
double dtp_matmul_speedup(const struct dtp_gpu *gpu, double matmul_s, double lighter_s, double other_s)
{
    double tensor_s = matmul_s + lighter_s;
    if (gpu->architecture != DTP_GPU_HOPPER || tensor_s <= 0)
        return 1;
    double drawing = (matmul_s + dtp_calibration.attention_power * lighter_s) / tensor_s;
    double b = dtp_calibration.matmul_power_headroom * drawing, a = 1 + dtp_calibration.matmul_power_headroom - b;
    double half = (tensor_s + (a - b) * other_s) / 2;
    double total_s = (half + sqrt(half * half + a * b * other_s * other_s)) / a;
    return a + b * other_s / total_s;
}

double dtp_matmul_speedup_of_step(const struct dtp_gpu *gpu, double drawn_s, double step_s)
{
    if (gpu->architecture != DTP_GPU_HOPPER || !(drawn_s < step_s))
        return 1;
    return 1 + dtp_calibration.matmul_power_headroom * (1 - drawn_s / step_s);
}

double dtp_kernel_launch_s(const struct dtp_execution *execution)
{
    switch (execution->issuer) {
    case DTP_ISSUER_MEGATRON: return dtp_calibration.megatron_launch_s;
    case DTP_ISSUER_NATIVE: return dtp_calibration.native_launch_s;
    case DTP_ISSUER_NANOTRON: return dtp_calibration.nanotron_launch_s;
    case DTP_ISSUER_DTENSOR: return dtp_calibration.dtensor_launch_s;
    case DTP_ISSUER_DTENSOR_COMPILED: return dtp_calibration.dtensor_compiled_launch_s;
    case DTP_ISSUER_PYTORCH:
    case DTP_ISSUER_COUNT: break;
    }
    return dtp_calibration.torch_launch_s;
}

double dtp_unit_hooks_s(const struct dtp_execution *execution)
{
    return execution->issuer == DTP_ISSUER_DTENSOR_COMPILED ? dtp_calibration.dtensor_unit_hooks_s
                                                            : dtp_calibration.unit_hooks_s;
}

double dtp_kernel_gap_s(const struct dtp_execution *execution)
{
    return execution->own_kernels ? dtp_calibration.graph_kernel_gap_s + dtp_calibration.native_ramp_s
                                  : dtp_calibration.kernel_gap_s;
}

double dtp_rank_deviation(const struct dtp_execution *execution)
{
    return execution->issuer == DTP_ISSUER_MEGATRON ? dtp_calibration.megatron_rank_deviation
                                                    : dtp_calibration.rank_speed_deviation;
}

double dtp_simulated_rank_deviation(const struct dtp_execution *execution)
{
    return execution->issuer == DTP_ISSUER_MEGATRON ? dtp_calibration.megatron_rank_deviation
                                                    : dtp_calibration.simulated_rank_deviation;
}

/* Speeds of n GPUs scatter normally: the expected maximum of n standard normals by Blom's approximation, times the
 * deviation. */
double dtp_slowest_rank_factor(double ranks, double deviation)
{
    if (ranks < 2)
        return 1;
    return 1 + deviation * gsl_cdf_ugaussian_Pinv((ranks - 0.375) / (ranks + 0.25));
}

/* Vector v is projected twice on each of the v before it and its norm is taken before and behind: 2 + 2 v sums and 2 v
 * subtractions (kernels/orthogonalize.cu), 2 r + r (r - 1) and r (r - 1) for r of them. */
double dtp_orthogonalize_s(double vectors, double elements)
{
    double projections = vectors * (vectors - 1), sums = 2 * vectors + projections;
    return sums * dtp_calibration.orthogonalize_sum_s +
           (sums + projections) * elements * dtp_calibration.orthogonalize_element_s;
}

uint32_t dtp_powersgd_orthogonalize_kernels(const struct dtp_plan *plan)
{
    uint32_t rank = plan->powersgd_rank;
    if (rank > DTP_POWERSGD_COLUMNS)
        return (uint32_t)dtp_calibration.powersgd_qr_kernels;
    return DTP_POWERSGD_COLUMN_KERNELS * rank + DTP_POWERSGD_OTHERS_KERNELS * (rank - 1);
}
