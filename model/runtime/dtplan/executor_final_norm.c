/* What the final norm moves through HBM, and what is learned beside matrices. */
#include "runtime/dtplan/executor_block.h"
#include "runtime/dtplan/executor_in_place.h"

/* It reads the stream as a block's first norm does. */
static struct dtp_executor_operator final_norm(void)
{
    return (struct dtp_executor_operator){.kind = DTP_OP_NORM,
                                          .input = DTP_TENSOR_INPUT,
                                          .result = DTP_TENSOR_NORM1,
                                          .addend = DTP_EXECUTOR_NONE,
                                          .statistics = DTP_TENSOR_STATISTICS1};
}

double dtp_executor_final_norm_bytes(const struct dtp_executor_block *block)
{
    struct dtp_executor_operator op = final_norm();
    return dtp_executor_forward_traffic(block, &op).bytes;
}

double dtp_executor_final_norm_backward_bytes(const struct dtp_executor_block *block)
{
    struct dtp_executor_operator op = final_norm();
    op.input = DTP_EXECUTOR_NONE;
    return dtp_executor_backward_traffic(block, &op, false).bytes;
}

uint64_t dtp_executor_norm_elements(const struct dtp_executor_block *block, const struct dtp_executor_operator *op)
{
    if (dtp_executor_latent_norm_width(block, op))
        return dtp_executor_latent_norm_width(block, op);
    if (op->kind == DTP_OP_SINKS || op->kind == DTP_OP_EXPERT_BIAS)
        return dtp_executor_in_place_elements(block, op);
    if (op->kind == DTP_OP_NORM)
        return block->kind.hidden * (block->kind.norm_bias ? 2 : 1);
    if (op->kind != DTP_OP_QK_NORM)
        return 0;
    return dtp_layer_qk_norm_elements(&block->kind);
}
