/* What our attention on tensor cores costs, from what it does: kernels/attention_mma.cu, attention_mma_backward.cu.
 * Their tiles stand here once more, held against their source by test_op_cost. */
#include "cost/op_cost.h"

#include "cost/attention_workspace.h"
#include "cost/calibration.h"

#include <math.h>

/* Widths as they lie in shared memory: products are made of all of it. */
struct widths {
    double keys, values;
};

static struct widths widths_of(const struct dtp_attention_shape *shape)
{
    static const struct widths made[] = {{64, 64}, {96, 96}, {128, 128}, {192, 128}, {192, 192}, {256, 256}};
    const double keys = shape->head_dim, values = shape->value_dim ? shape->value_dim : keys;
    size_t i = 0;
    while (i + 1 < sizeof made / sizeof *made && (keys > made[i].keys || values > made[i].values))
        i++;
    return made[i];
}

/* One of the three kernels. A block has 64 rows, of queries or of keys, and walks over tiles of the others; a block of
 * keys over the queries of all heads that share them. */
struct kernel {
    bool of_keys;
    double tile, flops;  /* rows of a tile; of a square of it, over the 64 of the block */
    bool shares;         /* an SM has room for two of its blocks */
    double blocks, each; /* all of a size, of one size: heads of all sequences; how many sizes there are */
    double per_tile;     /* heads that a block walks over */
};

enum { BLOCK_ROWS = 64 };

static double seen_by_queries(const struct dtp_attention_shape *shape, double first, double tile)
{
    const double keys = (double)shape->keys, window = shape->window;
    double begin = 0;
    if (!shape->causal)
        return ceil(keys / tile);
    if (window > 0 && first >= window)
        begin = floor((first + 1 - window) / tile) * tile;
    return ceil((fmin(first + BLOCK_ROWS, keys) - begin) / tile);
}

static double seen_by_keys(const struct dtp_attention_shape *shape, double first, double tile)
{
    double end = (double)shape->queries;
    if (!shape->causal)
        return ceil(end / tile);
    if (shape->window > 0)
        end = fmin(end, first + BLOCK_ROWS - 1 + shape->window);
    return ceil((end - first) / tile);
}

/* Squares that a block walks over, the `rank`-th largest of those of one head, and those whose time it takes besides,
 * however many these are: its own rows and the first tile come with nothing to do meanwhile, and its sums go. A step of
 * a ring, whose blocks see all keys, loses less by that than a causal square, whose blocks see half. */
static double squares(const struct kernel *k, const struct dtp_attention_shape *shape, double rank)
{
    const double besides = dtp_calibration.mma_attention_block_squares * BLOCK_ROWS / k->tile;
    if (k->of_keys)
        return besides + k->per_tile * seen_by_keys(shape, rank * BLOCK_ROWS, k->tile);
    return besides + seen_by_queries(shape, (k->each - 1 - rank) * BLOCK_ROWS, k->tile);
}

/* Squares that the busiest SM makes. Blocks start largest first, so that none has much more than the mean; but of more
 * than k blocks an SM some has k + 1, none of which is smaller than the last of these (Graham 1969). A block that is
 * alone on an SM that would have room for two leaves it idle while it waits, as if it had more to do. */
static double busiest_squares(const struct kernel *k, const struct dtp_attention_shape *shape, double sm_count)
{
    double all = 0, most = squares(k, shape, 0);
    if (k->shares)
        most /= dtp_calibration.mma_attention_alone;
    for (double rank = 0; rank < k->each; rank++)
        all += k->blocks * squares(k, shape, rank);
    for (double waves = 1; waves * sm_count < k->blocks * k->each; waves++)
        most = fmax(most, (waves + 1) * squares(k, shape, floor(waves * sm_count / k->blocks)));
    return fmax(most, all / sm_count);
}

/* What a score costs beside its products, by the FLOPs that are made meanwhile: exponents, and the tanh of a cap. */
static double beside_products(const struct dtp_attention_shape *shape)
{
    return dtp_calibration.mma_attention_score_flops * (shape->softcap > 0 ? 2 : 1);
}

/* A square's FLOPs by the widths of keys and of values that each of its scores is multiplied over. */
static struct kernel kernel_of(const struct dtp_attention_shape *shape, double sequences, bool of_keys, double tile,
                               double over_keys, double over_values)
{
    const struct widths w = widths_of(shape);
    const double score = 2 * (over_keys * w.keys + over_values * w.values) + beside_products(shape);
    const double rows = (double)(of_keys ? shape->keys : shape->queries);
    return (struct kernel){.of_keys = of_keys,
                           .tile = tile,
                           .flops = BLOCK_ROWS * tile * score,
                           .shares = !of_keys || w.keys <= 128,
                           .blocks = sequences * (of_keys ? shape->kv_heads : shape->heads),
                           .each = ceil(rows / BLOCK_ROWS),
                           .per_tile = of_keys ? (double)shape->heads / shape->kv_heads : 1};
}

/* Of the peak, which from Hopper on instructions of four warps have. */
static double peak_of_mma(const struct dtp_gpu *gpu)
{
    const bool wgmma = gpu->architecture == DTP_GPU_HOPPER || gpu->architecture == DTP_GPU_BLACKWELL;
    return wgmma ? dtp_calibration.mma_of_wgmma : 1;
}

/* Forward has a product over keys' width and one over values'. Of Dao's five products backward (attention.c) two are
 * made twice: once for queries, once for keys and values. */
struct dtp_attention_time dtp_mma_attention_time(const struct dtp_gpu *gpu, const struct dtp_attention_shape *shape,
                                                 enum dtp_dtype dtype, double tokens)
{
    const struct dtp_calibration *c = &dtp_calibration;
    const double tile = widths_of(shape).keys <= 128 ? 64 : 32, sms = gpu->sm_count;
    const double sequences = tokens / (double)shape->queries;
    const double sm_flops_per_s = gpu->peak_flops_per_s[dtype] * peak_of_mma(gpu) / sms;
    const struct kernel forward = kernel_of(shape, sequences, false, tile, 1, 1);
    const struct kernel queries = kernel_of(shape, sequences, false, tile, 2, 1);
    const struct kernel keys = kernel_of(shape, sequences, true, tile, 2, 2);
    return (struct dtp_attention_time){
        busiest_squares(&forward, shape, sms) * forward.flops / (sm_flops_per_s * c->mma_attention_forward),
        (busiest_squares(&queries, shape, sms) * queries.flops + busiest_squares(&keys, shape, sms) * keys.flops) /
            (sm_flops_per_s * c->mma_attention_backward)};
}
