/* What casting to fp8 adds to a step's bytes and launches: the passes of lower_executor_fp8.c, counted. */
#include "runtime/dtplan/executor_fp8_work.h"

/* Bytes of bf16 read and of as many casts written; a pass for the amax writes none. */
static double cast_bytes(double elements, int casts)
{
    return elements * (2 + casts);
}

static double elements_of(const struct dtp_executor_block *b, const struct dtp_executor_operator *cast)
{
    return (double)dtp_executor_tensor_bytes(b, cast->result);
}

static double weights_of(const struct dtp_executor_operator *op)
{
    return (double)(op->matrix->out * op->matrix->in);
}

/* A pass over a block, forward or again: `runs` are its operators, as bits, `stays` what of it backward reads later. */
static struct dtp_executor_traffic pass_over(const struct dtp_executor_block *b, uint32_t runs, uint64_t stays,
                                             bool again)
{
    struct dtp_executor_traffic sum = {0, 0};
    for (int i = 0; i < b->count; i++) {
        const struct dtp_executor_operator *op = &b->op[i];
        if (runs & 1u << i && op->matrix) {
            sum.bytes += cast_bytes(weights_of(op), 1);
            sum.kernels++;
        }
        if (op->kind != DTP_OP_QUANTIZE || !(runs & 1u << i))
            continue;
        int casts = stays & DTP_EXECUTOR_BIT(op->aux) ? 1 : 0;
        for (int k = i + 1, found = 0; k < b->count && !found; k++)
            casts += found = runs & 1u << k && b->op[k].operand == op->result;
        sum.bytes += cast_bytes(elements_of(b, op), casts);
        sum.kernels++;
        if (again || dtp_executor_amax_fused(b, op))
            continue;
        sum.bytes += cast_bytes(elements_of(b, op), 0);
        sum.kernels++;
    }
    return sum;
}

double dtp_executor_bias_gradient_bytes(const struct dtp_executor_block *block, const struct dtp_layer_matrix *matrix)
{
    return (double)(block->tokens * matrix->out * block->element_bytes) +
           (double)(2 * 4 * DTP_EXECUTOR_PARTIAL_ROWS * matrix->out);
}

uint64_t dtp_executor_fp8_bias_elements(const struct dtp_executor_block *block)
{
    uint64_t elements = 0;
    for (int i = 0; block->fp8 && i < block->kind.matrices; i++)
        elements += block->kind.matrix[i].bias ? block->kind.matrix[i].out : 0;
    return elements;
}

/* Gradients of results both ways, weights by columns; where nothing was recomputed, the input whose cast did not stay.
 */
static struct dtp_executor_traffic backward_of(const struct dtp_executor_block *b, bool recomputed)
{
    struct dtp_executor_traffic sum = {0, 0};
    uint64_t kept = dtp_executor_block_keeps(b, DTP_KEEPS_ALL);
    for (int i = 0; i < b->count; i++) {
        const struct dtp_executor_operator *op = &b->op[i];
        if (op->kind == DTP_OP_QUANTIZE && !recomputed && !(kept & DTP_EXECUTOR_BIT(op->aux))) {
            sum.bytes += cast_bytes(elements_of(b, op), 1);
            sum.kernels++;
        }
        if (!op->matrix)
            continue;
        double elements = (double)b->tokens * (double)op->matrix->out;
        bool fused = dtp_executor_gradient_amax_fused(op);
        sum.bytes += cast_bytes(elements, 2) + (fused ? 0 : cast_bytes(elements, 0)) + cast_bytes(weights_of(op), 1);
        sum.kernels += fused ? 2 : 3;
        if (op->matrix->bias) {
            sum.bytes += dtp_executor_bias_gradient_bytes(b, op->matrix);
            sum.kernels += 2;
        }
    }
    return sum;
}

struct dtp_executor_fp8_work dtp_executor_fp8_work(const struct dtp_executor_block *b, enum dtp_checkpoint_keeps keeps,
                                                   uint32_t again)
{
    struct dtp_executor_fp8_work work = {{0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}};
    if (!b->fp8)
        return work;
    work.forward = pass_over(b, ~0u, dtp_executor_block_keeps(b, DTP_KEEPS_ALL), false);
    work.checkpointed_forward = pass_over(b, ~0u, dtp_executor_block_keeps(b, keeps), false);
    work.again = pass_over(b, again, b->saved, true);
    work.backward = backward_of(b, false);
    work.checkpointed_backward = backward_of(b, true);
    for (int i = 0; i < b->count; i++)
        if (b->op[i].matrix)
            work.weights_amax.bytes += cast_bytes(weights_of(&b->op[i]), 0), work.weights_amax.kernels++;
    return work;
}

int dtp_executor_cast_matrix(const struct dtp_executor_block *block, const struct dtp_executor_operator *cast)
{
    int first = 0;
    while (block->op[first].operand != cast->result)
        first++;
    return (int)(block->op[first].matrix - block->kind.matrix);
}

/* The stream's by the norm behind the projection, that of the packed MLP by the activation's backward. */
bool dtp_executor_gradient_amax_fused(const struct dtp_executor_operator *projection)
{
    return projection->addend != DTP_EXECUTOR_NONE || projection->result == DTP_TENSOR_UP;
}
