/* What the final norm moves through HBM. */
#include "runtime/dtplan/executor_block.h"

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
