#include "plan/fp8_casts.h"

#include <limits.h>

/* Of torchao's eager kernels, see fp8_casts.h; in fp32 too, where the cast to fp32 is none. */
#define EAGER_CAST_BYTES 33
#define EAGER_CAST_KERNELS 6
#define EAGER_SCRATCH_BYTES 8 /* two fp32 tensors at a time */
#define LAYOUT_BYTES 2        /* one byte read, one written */

static void set(struct dtp_fp8_casts *out, enum dtp_fp8_operand operand, double bytes, uint32_t kernels)
{
    out->of[operand] = (struct dtp_fp8_cast){bytes, bytes, bytes > 0 ? kernels : 0, DTP_FP8_ALONG_ROWS};
}

static void set_walk(struct dtp_fp8_casts *out, enum dtp_fp8_operand operand, double bytes, enum dtp_fp8_walk walk)
{
    out->of[operand] = (struct dtp_fp8_cast){bytes, bytes, walk == DTP_FP8_DOWN_COLUMNS ? 2 : 1, walk};
}

/* What a weight has where its cast is read: the fp32 parameter, what FSDP2 gathered in 16 bits, or the cast itself. */
static double weight_bytes(const struct dtp_plan *plan)
{
    return dtp_plan_autocast(plan) ? dtp_dtype_bytes(plan->precision.params) : dtp_plan_compute_bytes(plan);
}

static bool narrow(const struct dtp_fp8_recipe_row *row, enum dtp_product product)
{
    return row->narrow >> product & 1;
}

static double cast_bytes(const struct dtp_fp8_recipe_row *row)
{
    return row->bits / 8.0 + (row->block ? (double)row->scale_bytes / row->block : 0);
}

/* By rows forward; by columns for the gradient of the weight, whose sums run over tokens, and of the weight for that of
 * the input. rowwise_with_gw_hp scales the weight by tensor there. */
static void torchao_compiled(const struct dtp_plan *plan, const struct dtp_fp8_recipe_row *row,
                             struct dtp_fp8_casts *out)
{
    double e = weight_bytes(plan), cast = cast_bytes(row);
    bool tensor = row->granularity == DTP_FP8_BY_TENSOR, rows = row->granularity == DTP_FP8_BY_ROW;
    bool gathered = plan->precision.fp8_all_gather, weights = narrow(row, DTP_PRODUCT_WEIGHT_GRADIENT);
    set(out, DTP_FP8_INPUT, 2 + cast, 2);
    set(out, DTP_FP8_WEIGHT, gathered ? 0 : tensor ? 2 * e + cast : e + cast, 2);
    set(out, DTP_FP8_GRADIENT_ROWS, 2 + cast, 2);
    bool by_columns = rows && weights, blocks = row->granularity == DTP_FP8_BY_BLOCK;
    enum dtp_fp8_walk walk = by_columns ? DTP_FP8_DOWN_COLUMNS
                             : blocks   ? DTP_FP8_ALONG_ROWS /* a kernel of torchao's own, for columns */
                                        : DTP_FP8_TRANSPOSING;
    double amax = by_columns ? 2 : 0;
    out->keeps_columns = gathered;
    set_walk(out, DTP_FP8_WEIGHT_AGAIN, gathered ? LAYOUT_BYTES : (by_columns || rows ? 2 * e : e) + cast, walk);
    if (!weights)
        return;
    out->makes_inputs_again = !blocks; /* that kernel is none of the compiler's, and is given what it reads */
    set_walk(out, DTP_FP8_INPUT_AGAIN, amax + 2 + cast, walk);
    set_walk(out, DTP_FP8_GRADIENT_COLUMNS, amax + 2 + cast, walk);
}

static void torchao_eager(const struct dtp_plan *plan, const struct dtp_fp8_recipe_row *row, struct dtp_fp8_casts *out)
{
    bool gathered = plan->precision.fp8_all_gather, weights = narrow(row, DTP_PRODUCT_WEIGHT_GRADIENT);
    double again = EAGER_CAST_BYTES + LAYOUT_BYTES;
    set(out, DTP_FP8_INPUT, EAGER_CAST_BYTES, EAGER_CAST_KERNELS);
    set(out, DTP_FP8_WEIGHT, gathered ? 0 : EAGER_CAST_BYTES, EAGER_CAST_KERNELS);
    set(out, DTP_FP8_GRADIENT_ROWS, EAGER_CAST_BYTES, EAGER_CAST_KERNELS);
    set(out, DTP_FP8_WEIGHT_AGAIN, gathered ? LAYOUT_BYTES : again, gathered ? 1 : EAGER_CAST_KERNELS + 1);
    set(out, DTP_FP8_INPUT_AGAIN, weights ? again : 0, EAGER_CAST_KERNELS + 1);
    set(out, DTP_FP8_GRADIENT_COLUMNS, weights ? again : 0, EAGER_CAST_KERNELS + 1);
    out->scratch_bytes = EAGER_SCRATCH_BYTES;
}

/* Columns are written beside rows where a matmul cannot read a tensor either way: by Hopper's and Ada's fp8 units, and
 * where blocks of rows and of columns are others. */
static bool writes_columns(const struct dtp_fp8_recipe_row *row, const struct dtp_gpu *gpu)
{
    return row->granularity == DTP_FP8_BY_BLOCK || gpu->architecture != DTP_GPU_BLACKWELL;
}

/* A rank casts its own rows. Behind the gather columns are made of rows that have one scale; those of blocks, which
 * came by themselves, are put in order, but MXFP8's lie as rows do (_swap_first_dims of the others). */
static double gathered_bytes(const struct dtp_plan *plan, const struct dtp_fp8_recipe_row *row, double own,
                             double second)
{
    bool blocks = row->granularity == DTP_FP8_BY_BLOCK, ordered = row->parts == DTP_FP8_ON_BLACKWELL && row->bits == 8;
    double parts = plan->sequence_shards > 1 ? plan->sequence_shards : 1;
    return (own - (blocks ? 0 : second)) / parts + (ordered ? 0 : 2 * second);
}

static void transformer_engine(const struct dtp_plan *plan, const struct dtp_fp8_recipe_row *row,
                               const struct dtp_gpu *gpu, struct dtp_fp8_casts *out)
{
    double cast = cast_bytes(row), second = writes_columns(row, gpu) ? cast : 0;
    double amax = row->amax == DTP_FP8_AMAX_THIS_STEP ? 2 : 0, whole = amax + 2 + cast + second;
    double rows = dtp_plan_adapts(plan) ? whole - second : whole; /* columns are for gradients of weights */
    double own = dtp_plan_adapts(plan) ? 0 : second;
    uint32_t kernels = amax > 0 ? 2 : 1;
    bool fused = row->amax == DTP_FP8_AMAX_HISTORY && dtp_plan_fuses(plan); /* the kernel before casts */
    set(out, DTP_FP8_INPUT, fused ? own : rows, kernels);
    if (dtp_fp8_gather_saves(plan)) /* rows came as they are */
        set(out, DTP_FP8_WEIGHT, second > 0 ? cast + second : 0, 1);
    else
        set(out, DTP_FP8_WEIGHT, whole, kernels);
    set(out, DTP_FP8_GRADIENT_ROWS, rows, kernels);
    if (dtp_plan_gathers_casts(plan)) {
        out->of[DTP_FP8_INPUT].gathered_bytes = gathered_bytes(plan, row, fused ? own : rows, own);
        out->of[DTP_FP8_GRADIENT_ROWS].gathered_bytes = gathered_bytes(plan, row, rows, own);
    }
    for (int i = 0; i < DTP_FP8_OPERAND_COUNT; i++)
        out->of[i].walk = DTP_FP8_STREAMING;
    out->weights_once = out->kept = plan->runtime->keeps_fp8;
}

void dtp_fp8_casts_of(const struct dtp_plan *plan, const struct dtp_gpu *gpu, struct dtp_fp8_casts *out)
{
    const struct dtp_fp8_recipe_row *row = dtp_fp8_recipe_row(plan->precision.fp8_recipe);
    *out = (struct dtp_fp8_casts){0};
    if (!row)
        return;
    switch (dtp_plan_fp8_library(plan)) {
    case DTP_FP8_TORCHAO:
        if (plan->compile)
            torchao_compiled(plan, row, out);
        else
            torchao_eager(plan, row, out);
        break;
    case DTP_FP8_TE: transformer_engine(plan, row, gpu, out); break;
    case DTP_FP8_OWN:
        set(out, DTP_FP8_INPUT, 1, 2);
        set(out, DTP_FP8_WEIGHT, 4, 2);
        set(out, DTP_FP8_GRADIENT_ROWS, 4, 6);
        out->weights_once = out->kept = true;
        break;
    }
}

struct dtp_fp8_traffic dtp_fp8_traffic_of(const struct dtp_fp8_casts *casts, double tokens, double out, double in,
                                          double accumulate, enum dtp_fp8_operand gathered)
{
    const double elements[DTP_FP8_OPERAND_COUNT] = {[DTP_FP8_INPUT] = tokens * in,
                                                    [DTP_FP8_INPUT_AGAIN] = tokens * in,
                                                    [DTP_FP8_WEIGHT] = out * in,
                                                    [DTP_FP8_WEIGHT_AGAIN] = out * in,
                                                    [DTP_FP8_GRADIENT_ROWS] = tokens * out,
                                                    [DTP_FP8_GRADIENT_COLUMNS] = tokens * out};
    struct dtp_fp8_traffic traffic = {{0}};
    for (int i = 0; i < DTP_FP8_OPERAND_COUNT; i++) {
        double times = i == DTP_FP8_WEIGHT && casts->weights_once ? 1 / accumulate : 1;
        double bytes = i == (int)gathered ? casts->of[i].gathered_bytes : casts->of[i].bytes;
        traffic.bytes[casts->of[i].walk] += bytes * elements[i] * times;
    }
    return traffic;
}

struct dtp_fp8_core dtp_fp8_core_bytes(const struct dtp_fp8_casts *casts, const struct dtp_plan *plan,
                                       const struct dtp_transformer *t)
{
    if (!dtp_plan_attends_narrowly(plan))
        return (struct dtp_fp8_core){0, 0};
    uint64_t values = t->kv_latent ? t->value_head_dim : t->head_dim, kv_heads = t->kv_latent ? t->heads : t->kv_heads;
    uint64_t inputs = (t->heads + kv_heads) * t->head_dim + kv_heads * values;
    double bytes = casts->of[DTP_FP8_GRADIENT_ROWS].bytes;
    return (struct dtp_fp8_core){bytes * (double)inputs, bytes * (double)(t->heads * values)};
}

uint64_t dtp_fp8_gather_saves(const struct dtp_plan *plan)
{
    const struct dtp_fp8_recipe_row *row = dtp_fp8_recipe_row(plan->precision.fp8_recipe);
    bool wide = !plan->megatron.fp8_param_gather || row->parts == DTP_FP8_ON_BLACKWELL;
    return wide ? 0 : dtp_plan_compute_bytes(plan) - row->bits / CHAR_BIT;
}

uint64_t dtp_fp8_wire_bytes(const struct dtp_plan *plan, uint64_t elements)
{
    const struct dtp_fp8_recipe_row *row = dtp_fp8_recipe_row(plan->precision.fp8_recipe);
    return (row->granularity == DTP_FP8_BY_BLOCK ? 2 : 1) * dtp_fp8_bytes(plan->precision.fp8_recipe, elements);
}

uint64_t dtp_fp8_standing_bytes(const struct dtp_plan *plan, const struct dtp_gpu *gpu, uint64_t elements)
{
    const struct dtp_fp8_recipe_row *row = dtp_fp8_recipe_row(plan->precision.fp8_recipe);
    if (!row || !plan->runtime->keeps_fp8)
        return 0;
    return (writes_columns(row, gpu) ? 2 : 1) * dtp_fp8_bytes(plan->precision.fp8_recipe, elements);
}
