/* What casting to fp8 adds to a step's bytes and launches: the passes of lower_executor_fp8.c, counted. */
#include "runtime/dtplan/executor_fp8_work.h"

#include "runtime/dtplan/fp8_layout.h"

enum dtp_form dtp_executor_cast_form(const struct dtp_executor_block *block, enum dtp_executor_cast_of what,
                                     bool columns)
{
    bool weight = what == DTP_EXECUTOR_CAST_WEIGHT;
    switch (block->recipe ? block->recipe->granularity : DTP_FP8_BY_TENSOR) {
    case DTP_FP8_BY_ROW: /* torchao's rowwise_with_gw_hp has one scale for a weight by columns (cc_w_gi) */
        return weight && columns && !dtp_executor_narrow_gradients(block) ? DTP_FORM_E4M3_ALIKE : DTP_FORM_E4M3_ROWS;
    case DTP_FP8_BY_BLOCK: return weight ? DTP_FORM_E4M3_SQUARES : DTP_FORM_E4M3_RUNS;
    case DTP_FP8_BY_TENSOR: break;
    }
    return what == DTP_EXECUTOR_CAST_GRADIENT ? DTP_FORM_E5M2 : DTP_FORM_E4M3;
}

struct dtp_executor_traffic dtp_executor_cast_traffic(enum dtp_form form, double elements, bool by_rows,
                                                      bool by_columns)
{
    bool pass = dtp_fp8_by_rows(form) && by_columns; /* maxima are zeroed before it */
    return (struct dtp_executor_traffic){elements * ((pass ? 4 : 2) + by_rows + by_columns), pass ? 3 : 1};
}

/* A pass for the amax of a tensor alone. */
static struct dtp_executor_traffic amax_traffic(double elements)
{
    return dtp_executor_cast_traffic(DTP_FORM_E4M3, elements, false, false);
}

static void add(struct dtp_executor_traffic *sum, struct dtp_executor_traffic one)
{
    sum->bytes += one.bytes, sum->kernels += one.kernels;
}

static double elements_of(const struct dtp_executor_block *b, const struct dtp_executor_operator *cast)
{
    return (double)b->tokens * (double)dtp_layer_tensor_width(&b->kind, (enum dtp_layer_tensor)cast->input);
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
        if (runs & 1u << i && op->matrix)
            add(&sum, dtp_executor_cast_traffic(dtp_executor_cast_form(b, DTP_EXECUTOR_CAST_WEIGHT, false),
                                                weights_of(op), true, false));
        if (op->kind != DTP_OP_QUANTIZE || !(runs & 1u << i))
            continue;
        bool read = false;
        for (int k = i + 1; k < b->count; k++)
            read |= runs & 1u << k && b->op[k].operand == op->result;
        add(&sum, dtp_executor_cast_traffic(dtp_executor_cast_form(b, DTP_EXECUTOR_CAST_INPUT, false),
                                            elements_of(b, op), read, stays & DTP_EXECUTOR_BIT(op->aux)));
        if (!again && dtp_executor_seeks_amax(b) && !dtp_executor_amax_found(b, op))
            add(&sum, amax_traffic(elements_of(b, op)));
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
    for (int i = 0; dtp_executor_narrow_gradients(block) && i < block->kind.matrices; i++)
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
        if (op->kind == DTP_OP_QUANTIZE && !recomputed && b->saved & DTP_EXECUTOR_BIT(op->aux) & ~kept)
            add(&sum, dtp_executor_cast_traffic(dtp_executor_cast_form(b, DTP_EXECUTOR_CAST_INPUT, true),
                                                elements_of(b, op), false, true));
        if (!op->matrix)
            continue;
        double elements = (double)b->tokens * (double)op->matrix->out;
        add(&sum, dtp_executor_cast_traffic(dtp_executor_cast_form(b, DTP_EXECUTOR_CAST_GRADIENT, false), elements,
                                            true, dtp_executor_narrow_gradients(b)));
        add(&sum, dtp_executor_cast_traffic(dtp_executor_cast_form(b, DTP_EXECUTOR_CAST_WEIGHT, true), weights_of(op),
                                            false, true));
        if (dtp_executor_seeks_amax(b) && !dtp_executor_gradient_amax_found(op))
            add(&sum, amax_traffic(elements));
        if (op->matrix->bias && dtp_executor_narrow_gradients(b))
            add(&sum, (struct dtp_executor_traffic){dtp_executor_bias_gradient_bytes(b, op->matrix), 2});
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
        if (b->op[i].matrix && dtp_executor_seeks_amax(b))
            add(&work.weights_amax, amax_traffic(weights_of(&b->op[i])));
    return work;
}

int dtp_executor_caster(const struct dtp_executor_block *block, int tensor)
{
    for (int i = 0; i < block->count; i++)
        if (block->op[i].kind == DTP_OP_QUANTIZE && block->op[i].input == tensor)
            return i;
    return -1;
}

bool dtp_executor_amax_found(const struct dtp_executor_block *block, const struct dtp_executor_operator *cast)
{
    int maker = dtp_executor_maker(block, cast->input);
    return maker >= 0 && (block->op[maker].kind == DTP_OP_NORM || block->op[maker].kind == DTP_OP_ACTIVATION);
}

int dtp_executor_cast_matrix(const struct dtp_executor_block *block, const struct dtp_executor_operator *cast)
{
    int first = 0;
    while (block->op[first].operand != cast->result)
        first++;
    return (int)(block->op[first].matrix - block->kind.matrix);
}

/* The stream's by the norm behind the projection, that of the packed MLP by the activation's backward. */
bool dtp_executor_gradient_amax_found(const struct dtp_executor_operator *projection)
{
    return projection->addend != DTP_EXECUTOR_NONE || projection->result == DTP_TENSOR_UP;
}
