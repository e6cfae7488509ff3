#include "runtime/dtplan/executor_in_place.h"

#define T(suffix) DTP_TENSOR_##suffix
#define BIT(tensor) DTP_EXECUTOR_BIT(tensor)

/* Behind the core, whose own backward reads what they leave (kernels/attention_arguments.h). */
void dtp_executor_add_sinks(struct dtp_executor_block *b)
{
    struct dtp_executor_operator *op = dtp_executor_add_operator(b, DTP_OP_SINKS, "attention sinks", T(CORE), T(CORE));
    op->weight = DTP_PARAMETER_SINKS;
    op->statistics = T(CORE_STATE);
    op->reads = BIT(op->statistics);
    op->needs = BIT(op->result) | BIT(op->statistics);
}

/* Onto the rows that a matrix has made, in place. Rows that were weighed before they were multiplied have their bias
 * weighed, whose weights so have a part of their gradient from here. */
void dtp_executor_add_expert_bias(struct dtp_executor_block *b, const struct dtp_layer_matrix *matrix)
{
    const bool weighed = matrix->id == DTP_MATRIX_DOWN;
    struct dtp_executor_operator *op = dtp_executor_add_operator(
        b, DTP_OP_EXPERT_BIAS, weighed ? "down bias" : "up bias", (int)matrix->result, (int)matrix->result);
    op->matrix = matrix;
    op->weight = dtp_parameter_of_matrix(matrix->id) + 1;
    op->reads = BIT(T(ROUTES)) | (weighed ? BIT(T(ROUTER_WEIGHTS)) : 0);
    op->needs = op->reads;
}

uint32_t dtp_executor_makers(const struct dtp_executor_block *block, int tensor, uint64_t there)
{
    int maker = dtp_executor_maker(block, tensor);
    uint32_t makers = UINT32_C(1) << maker;
    for (int i = maker + 1; i < block->count; i++) /* and who works on it in place, before anybody else reads it */
        makers |= (uint32_t)(block->op[i].kind == DTP_OP_SINKS && block->op[i].result == tensor) << i;
    if (block->op[maker].kind == DTP_OP_QUANTIZE && !(there & DTP_EXECUTOR_BIT(block->op[maker].input)))
        makers |= UINT32_C(1) << dtp_executor_maker(block, block->op[maker].input);
    return makers;
}

uint64_t dtp_executor_in_place_elements(const struct dtp_executor_block *b, const struct dtp_executor_operator *op)
{
    return op->kind == DTP_OP_SINKS ? b->kind.heads : op->matrix->groups * op->matrix->out;
}

/* Rows are read and written; of each whose it is, and where it is weighed its weight. Backward reads the rows'
 * gradient, and once more where weights have theirs of it. */
static struct dtp_executor_traffic bias_traffic(const struct dtp_executor_block *b,
                                                const struct dtp_executor_operator *op, bool backward)
{
    const double rows = (double)dtp_executor_expert_rows(b), weighed = op->reads & BIT(T(ROUTER_WEIGHTS)) ? 1 : 0;
    const double row = (double)(op->matrix->out * b->element_bytes);
    const double biases = (double)(op->matrix->groups * op->matrix->out * b->element_bytes);
    if (!backward)
        return (struct dtp_executor_traffic){rows * (2 * row + 4 * (2 + weighed)) + biases, 1};
    return (struct dtp_executor_traffic){rows * (row + weighed * (row + 4 * 5)) + weighed * biases,
                                         1 + (uint32_t)weighed};
}

/* The result and its log-sum-exps, read and written; backward reads both and the gradient, and adds up partial sums. */
static struct dtp_executor_traffic sinks_traffic(const struct dtp_executor_block *b, bool backward)
{
    const double result = (double)dtp_executor_tensor_bytes(b, T(CORE)), heads = (double)b->kind.heads;
    const double state = 4 * (double)b->tokens * heads, sinks = heads * (double)b->element_bytes;
    if (!backward)
        return (struct dtp_executor_traffic){2 * (result + state) + sinks, 1};
    return (struct dtp_executor_traffic){
        2 * result + state + sinks + 2 * (double)(4 * DTP_EXECUTOR_PARTIAL_ROWS) * heads, 2};
}

struct dtp_executor_traffic dtp_executor_in_place_traffic(const struct dtp_executor_block *b,
                                                          const struct dtp_executor_operator *op, bool backward)
{
    return op->kind == DTP_OP_SINKS ? sinks_traffic(b, backward) : bias_traffic(b, op, backward);
}
