/* What our plain attention costs, from what it does: kernels/attention_simple.cu. Its tiles and threads stand here once
 * more, held against its source by test_op_cost. */
#include "cost/op_cost.h"

#include "cost/attention_workspace.h"
#include "cost/calibration.h"

enum dtp_own_attention dtp_own_attention(const struct dtp_gpu *gpu, const struct dtp_attention_shape *shape,
                                         const struct dtp_execution *execution)
{
    const enum dtp_dtype compute = execution->compute; /* FP8: whose attention is in bf16 */
    const bool halves = compute == DTP_BF16 || compute == DTP_FP16 || compute == DTP_FP8;
    if (!execution->own_kernels || gpu->architecture == DTP_GPU_HOST || shape->kernel != DTP_ATTENTION_FLASH)
        return DTP_OWN_ATTENTION_NONE;
    /* Of a later step of a ring as many keys as half of the rank's tokens, of which queries have a multiple. */
    if (dtp_attention_is_fused(halves, (uint32_t)shape->keys, shape->head_dim, shape->value_dim,
                               shape->softcap > 0 || shape->alibi))
        return DTP_OWN_ATTENTION_NONE;
    return dtp_attention_is_own_mma(halves, shape->head_dim, shape->value_dim) ? DTP_OWN_ATTENTION_MMA
                                                                               : DTP_OWN_ATTENTION_PLAIN;
}

/* A pass makes squares of `tile` queries by as many keys, one after the other, by `warps` of which each thread has a
 * sixteenth of the rows and of the columns. Products over the width of a head are those of queries or gradients with
 * keys or values; products over the tile, the weighted sums of rows. */
struct pass {
    double tile, over_width, over_tile;
};
static const struct pass forward = {64, 1, 1};
static const struct pass backward = {32, 4, 3}; /* of Dao's five products (attention.c) two are made twice: once for
                                                   keys and values, once for queries */

/* Columns of a result that a thread makes, by the three widths that there are kernels for. */
static double columns_of_kernel(double width)
{
    return width <= 64 ? 4 : width <= 128 ? 8 : 16;
}

/* Loads of a warp from shared memory for a query and a key. A product over the width takes a thread's rows and columns
 * at each step, one over the tile its rows and the columns of the result. */
static double loads(const struct pass *pass, double width)
{
    const double warps = 8, edge = pass->tile / 16, columns = columns_of_kernel(width);
    double of_square = pass->over_width * width * 2 * edge + pass->over_tile * pass->tile * (edge + columns);
    return warps * of_square / (pass->tile * pass->tile);
}

/* How much faster loads are made where thread blocks share an SM. Backward has four tiles of 32 rows in shared memory
 * and two squares: 137 KiB at a width of 256, so that one block of eight warps is alone there, and 73 KiB at 128, which
 * leaves room for three. A thread of it has four sums for four loads at a step, and waits for these unless others run
 * meanwhile; one of forward has sixteen sums for eight loads, and is as fast alone. */
static double backward_speed(double width)
{
    return columns_of_kernel(width) < 16 ? dtp_calibration.plain_attention_shared_sm : 1;
}

/* Squares on the diagonal are made whole: half a tile more than the half that a query sees on average. */
static double keys_of_a_query(const struct pass *pass, const struct dtp_attention_shape *shape)
{
    double length = dtp_attention_length(shape);
    return shape->causal ? (length + pass->tile) / 2 : length;
}

struct dtp_attention_time dtp_plain_attention_time(const struct dtp_gpu *gpu, const struct dtp_attention_shape *shape,
                                                   double tokens)
{
    const double width = (double)shape->head_dim, queries = (double)shape->heads * tokens;
    const double loads_per_s = gpu->sm_count * dtp_calibration.plain_attention_sm_loads_per_s;
    return (struct dtp_attention_time){
        queries * keys_of_a_query(&forward, shape) * loads(&forward, width) / loads_per_s,
        queries * keys_of_a_query(&backward, shape) * loads(&backward, width) / (loads_per_s * backward_speed(width))};
}
