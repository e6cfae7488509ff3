#include "runtime/dtplan/executor_expert_traffic.h"

static double rows_of(const struct dtp_executor_block *b, uint64_t width)
{
    return (double)b->tokens * (double)width * (double)b->element_bytes;
}

/* R rows by experts of T tokens, E scores each. The router reads scores, writes weights and which experts, then counts
 * these chunk by chunk and places rows: read twice more, place and order written. Whole rows of h are read and written:
 * to experts one by one, back as a sum, with the stream and what shared experts return. */
struct dtp_executor_traffic dtp_executor_expert_forward_traffic(const struct dtp_executor_block *b,
                                                                const struct dtp_executor_operator *op)
{
    const struct dtp_layer_kind *k = &b->kind;
    double rows = (double)dtp_executor_expert_rows(b), by_experts = rows * (double)(k->hidden * b->element_bytes);
    double shared = op->reads & DTP_EXECUTOR_BIT(DTP_TENSOR_SHARED_DOWN) ? 1 : 0,
           score = op->reads & DTP_EXECUTOR_BIT(DTP_TENSOR_SHARED_WEIGHT) ? 1 : 0;
    switch (op->kind) {
    case DTP_OP_ROUTER: return (struct dtp_executor_traffic){rows_of(b, k->experts) + 4 * rows * (2 + 2 + 2), 4};
    case DTP_OP_PERMUTE: return (struct dtp_executor_traffic){2 * by_experts + 4 * rows, 1};
    default:
        return (struct dtp_executor_traffic){
            by_experts + 4 * rows + rows_of(b, k->hidden) * (1 + (op->addend != DTP_EXECUTOR_NONE ? 1 : 0) + shared) +
                score * rows_of(b, 1),
            1};
    }
}

/* The gradient of scores of those, of the weights and of which experts; of tokens' rows a sum as forward's, onto what
 * shared experts have made where there are any; of experts' rows a copy each. A weight of shared experts has a kernel
 * of its own, which reads the gradient and what they returned. */
struct dtp_executor_traffic dtp_executor_expert_backward_traffic(const struct dtp_executor_block *b,
                                                                 const struct dtp_executor_operator *op)
{
    const struct dtp_layer_kind *k = &b->kind;
    double rows = (double)dtp_executor_expert_rows(b), by_experts = rows * (double)(k->hidden * b->element_bytes);
    double weighed = op->needs & DTP_EXECUTOR_BIT(DTP_TENSOR_SHARED_WEIGHT) ? 1 : 0;
    switch (op->kind) {
    case DTP_OP_ROUTER: return (struct dtp_executor_traffic){2 * rows_of(b, k->experts) + 8 * rows, 1};
    case DTP_OP_PERMUTE:
        return (struct dtp_executor_traffic){by_experts + 4 * rows + (k->shared_ffn ? 2 : 1) * rows_of(b, k->hidden),
                                             1};
    default:
        return (struct dtp_executor_traffic){2 * by_experts + 4 * rows +
                                                 weighed * (3 * rows_of(b, k->hidden) + 2 * rows_of(b, 1)),
                                             1 + (weighed > 0 ? 1u : 0)};
    }
}
