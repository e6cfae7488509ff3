/* Latent attention as our executor has it: the operator that packs heads, and what it and the norms of latents move. */
#include "runtime/dtplan/executor_block.h"

void dtp_executor_add_heads(struct dtp_executor_block *block)
{
    struct dtp_executor_operator *op =
        dtp_executor_add_operator(block, DTP_OP_ROTARY, "heads", DTP_TENSOR_Q_RAW, DTP_TENSOR_QKV);
    op->reads = DTP_EXECUTOR_BIT(DTP_TENSOR_KV_LATENT) | DTP_EXECUTOR_BIT(DTP_TENSOR_KV_RAW);
}

static double rows_of(const struct dtp_executor_block *b, uint64_t width)
{
    return (double)b->tokens * (double)width * (double)b->element_bytes;
}

/* What is projected is read and packed heads are written, or their gradients the other way; cosines and sines. */
static double heads_bytes(const struct dtp_executor_block *b)
{
    const struct dtp_layer_kind *k = &b->kind;
    uint64_t projected = k->d_q + dtp_layer_tensor_width(k, DTP_TENSOR_KV_RAW) + k->rope_head_dim;
    return rows_of(b, projected + dtp_layer_tensor_width(k, DTP_TENSOR_QKV)) +
           4 * (double)(k->rope_head_dim * b->sequence);
}

/* x read and the result written; backward the gradient and x read, x's gradient written, and partial sums of the
 * weight's. Other columns of x are not touched. */
struct dtp_executor_traffic dtp_executor_latent_traffic(const struct dtp_executor_block *block,
                                                        const struct dtp_executor_operator *op, bool backward)
{
    const uint64_t width = dtp_executor_latent_norm_width(block, op);
    if (!width)
        return (struct dtp_executor_traffic){heads_bytes(block), 1};
    double statistics = (double)dtp_executor_tensor_bytes(block, op->statistics);
    double weights = (double)(width * block->element_bytes);
    if (!backward)
        return (struct dtp_executor_traffic){2 * rows_of(block, width) + statistics + weights, 1};
    double partials = 2 * 4.0 * DTP_EXECUTOR_PARTIAL_ROWS * (double)width;
    return (struct dtp_executor_traffic){3 * rows_of(block, width) + statistics + weights + partials,
                                         dtp_executor_norm_launches(block)};
}
