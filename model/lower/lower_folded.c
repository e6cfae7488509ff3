/* Adapters of experts' parameters, as peft's ParamWrapper has them (target_parameters; tuners/lora/layer.py of 0.21.2).
 * Experts are parameters W [E, out, in] and no linears; each has one A [r E, in] and one B [out, r E]. While the
 * experts' module runs W is parametrised: whoever reads it gets W + s B A of all experts, made once and cached until
 * the module returns (torch.nn.utils.parametrize.cached), and once more before, for registering a parametrisation calls
 * it.
 *
 *   factors    A and B in W's dtype, seen expert by expert; B's are laid side by side for the product
 *   W + s B A  baddbmm of all experts: W is copied, 2 c, and read and written by the product, 2 c
 *
 * Grouped matmuls read the sum, so that autograd keeps it, with what they multiply, and makes its gradient whole, which
 * both factors' are products of: [out, r] = g A^T and [r, in] = B^T g of each expert. Those are multiplied by s, cast
 * to the dtype of A and B and laid as these are. A checkpointed layer has all of it again in its replay. */
#include "lower/block_backward.h"
#include "lower/block_forward.h"

#include "base/bytes.h"

static uint64_t elements_of(const struct dtp_layer_matrix *matrix)
{
    return matrix->groups * matrix->out * matrix->in;
}

/* B, whose rows are r E wide, by experts. */
static double laid_bytes(const struct dtp_lowering *l, const struct dtp_layer_matrix *matrix)
{
    return 2 * (double)(l->compute * matrix->groups * matrix->rank * matrix->out);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

static dtp_buffer_id cast_factors(const struct pass *pass, int index)
{
    struct dtp_lowering *l = pass->l;
    const struct dtp_layer_matrix *matrix = &l->matrix[index];
    uint64_t elements = dtp_adapter_elements(matrix);
    struct dtp_draft draft;
    if (l->bytes.grads == l->compute)
        return DTP_NO_BUFFER;
    dtp_draft_begin(l, &draft, DTP_OP_CAST, "adapter");
    dtp_draft_use(&draft, dtp_lower_weight(l, l->block.adapter[index]), DTP_READ);
    dtp_buffer_id made = dtp_draft_new(l, &draft, "factors", DTP_OWNER_ACTIVATIONS, l->compute * elements, DTP_WRITE);
    dtp_draft_memory(l, &draft, (double)((l->bytes.grads + l->compute) * elements), 2);
    dtp_draft_end(l, &draft);
    return made;
}

static dtp_buffer_id sum(const struct pass *pass, int index, bool stands)
{
    struct dtp_lowering *l = pass->l;
    const struct dtp_layer_matrix *matrix = &l->matrix[index];
    uint64_t bytes = l->compute * elements_of(matrix);
    dtp_buffer_id factors = pass->module->factors[index];
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_CAST, "experts' weight");
    dtp_draft_use(&draft, dtp_lower_weight(l, index), DTP_READ);
    dtp_buffer_id made = dtp_draft_new(l, &draft, "W + B A", DTP_OWNER_WEIGHTS, bytes, DTP_WRITE);
    dtp_draft_memory(l, &draft, 2 * (double)bytes + laid_bytes(l, matrix), 2);
    dtp_draft_end(l, &draft);
    dtp_draft_begin(l, &draft, DTP_OP_MATMUL, "W + B A");
    dtp_draft_use(&draft, factors.index == DTP_NO_INDEX ? dtp_lower_weight(l, l->block.adapter[index]) : factors,
                  DTP_READ);
    dtp_draft_use(&draft, made, stands ? DTP_UPDATE : DTP_UPDATE | DTP_FREE);
    dtp_draft_matmul(l, &draft, matrix->groups * matrix->out, matrix->in, matrix->rank, false);
    draft.op.demand.bytes = (double)bytes;
    dtp_draft_end(l, &draft);
    return made;
}

dtp_buffer_id dtp_forward_folded(const struct pass *pass, int index)
{
    struct dtp_flight_module *module = pass->module;
    module->factors[index] = cast_factors(pass, index);
    sum(pass, index, false);
    return module->folded[index] = sum(pass, index, true);
}

void dtp_forward_end_folded(const struct pass *pass)
{
    struct dtp_lowering *l = pass->l;
    struct dtp_draft draft;
    if (dtp_adapter_keeps(pass))
        return;
    dtp_draft_begin(l, &draft, DTP_OP_FREE, "parametrised weights");
    for (int i = 0; i < l->matrices; i++) {
        if (!l->matrix[i].folded)
            continue;
        dtp_draft_use(&draft, pass->module->folded[i], DTP_FREE);
        dtp_draft_use(&draft, pass->module->factors[i], DTP_FREE);
        pass->module->folded[i] = pass->module->factors[i] = DTP_NO_BUFFER;
    }
    if (draft.operand_count)
        dtp_draft_end(l, &draft);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

static dtp_buffer_id through_weight(const struct dtp_block_backward *b, int index, dtp_buffer_id gradient)
{
    struct dtp_lowering *l = b->l;
    const struct dtp_layer_matrix *matrix = &l->matrix[index];
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_MATMUL, matrix->input_gradient_name);
    dtp_draft_use(&draft, gradient, DTP_READ);
    dtp_draft_use(&draft, b->module->folded[index], DTP_READ);
    dtp_buffer_id made =
        dtp_backward_workspace(l, &draft, "input gradient", dtp_backward_input_bytes(l, index), DTP_WRITE);
    dtp_draft_product(l, &draft, matrix, DTP_PRODUCT_INPUT_GRADIENT);
    dtp_draft_end(l, &draft);
    return made;
}

/* Of all of the sum; what was read goes. */
static dtp_buffer_id whole_gradient(const struct dtp_block_backward *b, int index, dtp_buffer_id gradient, bool last)
{
    struct dtp_lowering *l = b->l;
    const struct dtp_layer_matrix *matrix = &l->matrix[index];
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_MATMUL, matrix->gradient_name);
    dtp_draft_use(&draft, gradient, DTP_READ | DTP_FREE);
    dtp_backward_consume(b, &draft, l->tensors.input[index], last ? DTP_READ | DTP_FREE : DTP_READ);
    dtp_draft_use(&draft, b->module->folded[index], DTP_FREE);
    b->module->folded[index] = DTP_NO_BUFFER;
    dtp_buffer_id made =
        dtp_backward_workspace(l, &draft, "gradient of W + B A", l->compute * elements_of(matrix), DTP_WRITE);
    dtp_draft_product(l, &draft, matrix, DTP_PRODUCT_WEIGHT_GRADIENT);
    dtp_draft_end(l, &draft);
    return made;
}

/* Of both factors; times s 2 c, cast c + a. */
static void factor_gradients(const struct dtp_block_backward *b, int index, dtp_buffer_id whole)
{
    struct dtp_lowering *l = b->l;
    const struct dtp_layer_matrix *matrix = &l->matrix[index];
    uint64_t elements = dtp_adapter_elements(matrix), groups = matrix->groups;
    int part = l->block.adapter[index];
    dtp_buffer_id *factors = &b->module->factors[index];
    dtp_buffer_id read = factors->index == DTP_NO_INDEX ? dtp_lower_weight(l, part) : *factors;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_MATMUL, "adapter B gradient");
    dtp_draft_use(&draft, whole, DTP_READ);
    dtp_draft_use(&draft, read, DTP_READ);
    dtp_buffer_id made = dtp_backward_workspace(l, &draft, "gradients of factors", l->compute * elements, DTP_WRITE);
    dtp_draft_matmul(l, &draft, groups * matrix->out, matrix->rank, matrix->in, false);
    dtp_draft_end(l, &draft);
    dtp_draft_begin(l, &draft, DTP_OP_MATMUL, "adapter A gradient");
    dtp_draft_use(&draft, whole, DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, read, DTP_READ);
    dtp_draft_use(&draft, *factors, DTP_FREE);
    dtp_draft_use(&draft, made, DTP_UPDATE);
    dtp_draft_matmul(l, &draft, groups * matrix->in, matrix->rank, matrix->out, false);
    dtp_draft_end(l, &draft);
    *factors = DTP_NO_BUFFER;
    dtp_draft_begin(l, &draft, DTP_OP_CAST, "adapter gradients");
    dtp_draft_use(&draft, made, DTP_READ | DTP_FREE);
    dtp_lower_gradient_result(l, &draft, part, l->bytes.grads);
    dtp_draft_memory(l, &draft, (double)((3 * l->compute + l->bytes.grads) * elements), 4);
    dtp_draft_end(l, &draft);
}

dtp_buffer_id dtp_backward_folded(const struct dtp_block_backward *b, int index, dtp_buffer_id gradient,
                                  bool last_reader)
{
    dtp_buffer_id made = through_weight(b, index, gradient);
    factor_gradients(b, index, whole_gradient(b, index, gradient, last_reader));
    dtp_lower_gradient_made(b->l, b->l->block.adapter[index]);
    return made;
}
