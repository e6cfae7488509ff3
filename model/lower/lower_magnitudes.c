/* DoRA (Liu et al. 2024, arXiv:2402.09353): an adapted linear is (m / n) (W + s B A) x, with a trained magnitude m of
 * each output and n the norm of that row of W + s B A, which no gradient goes through.
 *
 * As peft runs it (tuners/lora/dora.py, DoraLinearLayer.forward; torchtune's DoRALinear after it), eagerly:
 *   product    B A of an identity [in, in], for FSDP's hooks stand around modules: two matmuls, [in, out]
 *   norm       s times that, W added, the norm of each row: 6 passes of [out, in]
 *   sum        (m / n - 1) y + (m / n) wide s, added to y: 9 passes of a result's elements and 3; y and wide are kept,
 *              for the gradient of m / n. Where dropout is on, y is made anew of what it let through, and that is kept
 * The identity and the product stand until the function returns. What is kept of [out] elements is not counted.
 *
 * Backward, of g [T, out]: s g 2 passes; times m / n 2; with wide, a product that is summed, 4; with y the same 4; g
 * times m / n - 1, what y gets, 2: added to g 3, or multiplied by W once more beside A's, behind dropout. */
#include "lower/block_backward.h"
#include "lower/block_forward.h"

#include "base/bytes.h"

struct product {
    dtp_buffer_id identity, low, all;
};

static uint64_t result_bytes(const struct dtp_lowering *l, const struct dtp_layer_matrix *matrix)
{
    return dtp_bytes_product(dtp_lower_matrix_rows(l, matrix), l->compute * matrix->out);
}

/* B A, and the norm of W + s B A. */
static struct product find_norm(const struct pass *pass, int index)
{
    struct dtp_lowering *l = pass->l;
    const struct dtp_layer_matrix *m = &l->matrix[index];
    dtp_buffer_id adapter = dtp_lower_weight(l, l->block.adapter[index]), weight = dtp_lower_weight(l, index);
    struct dtp_draft draft;
    struct product made;
    dtp_draft_begin(l, &draft, DTP_OP_CAST, "identity");
    made.identity = dtp_draft_new(l, &draft, "identity", DTP_OWNER_WORKSPACE, l->compute * m->in * m->in, DTP_WRITE);
    dtp_draft_memory(l, &draft, (double)(l->compute * m->in * m->in), 2);
    dtp_draft_end(l, &draft);
    dtp_draft_begin(l, &draft, DTP_OP_MATMUL, "adapter A of the identity");
    dtp_draft_use(&draft, made.identity, DTP_READ);
    dtp_draft_use(&draft, adapter, DTP_READ);
    made.low = dtp_draft_new(l, &draft, "A", DTP_OWNER_WORKSPACE, l->compute * m->in * m->rank, DTP_WRITE);
    dtp_draft_matmul(l, &draft, m->in, m->rank, m->in, false);
    dtp_draft_end(l, &draft);
    dtp_draft_begin(l, &draft, DTP_OP_MATMUL, "adapter B of the identity");
    dtp_draft_use(&draft, made.low, DTP_READ);
    dtp_draft_use(&draft, adapter, DTP_READ);
    made.all = dtp_draft_new(l, &draft, "B A", DTP_OWNER_WORKSPACE, l->compute * m->in * m->out, DTP_WRITE);
    dtp_draft_matmul(l, &draft, m->in, m->out, m->rank, false);
    dtp_draft_end(l, &draft);
    dtp_draft_begin(l, &draft, DTP_OP_CAST, "norm of rows");
    dtp_draft_use(&draft, weight, DTP_READ);
    dtp_draft_use(&draft, made.all, DTP_READ);
    dtp_draft_new(l, &draft, "W + s B A", DTP_OWNER_WORKSPACE, 2 * l->compute * m->in * m->out, DTP_UPDATE | DTP_FREE);
    dtp_draft_memory(l, &draft, 6 * (double)(l->compute * m->in * m->out), 5);
    dtp_draft_end(l, &draft);
    return made;
}

/* W times what dropout let through. */
static dtp_buffer_id multiply_dropped(const struct pass *pass, int index, bool keeps)
{
    struct dtp_lowering *l = pass->l;
    const struct dtp_layer_matrix *matrix = &l->matrix[index];
    dtp_buffer_id *dropped = &pass->module->dropped[index];
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_MATMUL, "linear of dropped input");
    dtp_draft_use(&draft, *dropped, keeps ? DTP_READ : DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, dtp_lower_weight(l, index), DTP_READ);
    dtp_buffer_id made =
        dtp_draft_new(l, &draft, "linear of dropped input", keeps ? DTP_OWNER_ACTIVATIONS : DTP_OWNER_WORKSPACE,
                      result_bytes(l, matrix), DTP_WRITE);
    dtp_draft_matmul(l, &draft, dtp_lower_matrix_rows(l, matrix), matrix->out, matrix->in, false);
    dtp_draft_end(l, &draft);
    if (!keeps)
        *dropped = DTP_NO_BUFFER;
    return made;
}

void dtp_forward_magnitudes(const struct pass *pass, int index, dtp_buffer_id wide, bool keeps)
{
    struct dtp_lowering *l = pass->l;
    const struct dtp_layer_matrix *matrix = &l->matrix[index];
    struct dtp_flight_module *module = pass->module;
    dtp_buffer_id *result = &module->tensor[matrix->result], base = *result;
    bool drops = l->plan->adapters.dropout > 0;
    uint64_t bytes = result_bytes(l, matrix);
    const struct product product = find_norm(pass, index);
    if (drops)
        base = multiply_dropped(pass, index, keeps);
    uint32_t access = keeps ? DTP_READ : DTP_READ | DTP_FREE;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_RESIDUAL, "magnitudes");
    dtp_draft_use(&draft, product.identity, DTP_FREE);
    dtp_draft_use(&draft, product.low, DTP_FREE);
    dtp_draft_use(&draft, product.all, DTP_FREE);
    dtp_draft_use(&draft, wide, access);
    dtp_draft_use(&draft, base, drops ? access : DTP_READ);
    dtp_draft_new(l, &draft, "magnitudes' terms", DTP_OWNER_WORKSPACE, 2 * bytes, DTP_UPDATE | DTP_FREE);
    dtp_buffer_id sum = dtp_draft_new(l, &draft, "magnitudes", DTP_OWNER_WORKSPACE, bytes, DTP_WRITE);
    dtp_draft_memory(l, &draft, 9 * (double)bytes, 4);
    dtp_draft_end(l, &draft);
    dtp_draft_begin(l, &draft, DTP_OP_RESIDUAL, "adapter");
    dtp_draft_use(&draft, *result, drops || !keeps ? DTP_READ | DTP_FREE : DTP_READ);
    dtp_draft_use(&draft, sum, DTP_READ | DTP_FREE);
    *result = dtp_draft_new(l, &draft, dtp_layer_tensor_text(matrix->result), DTP_OWNER_ACTIVATIONS, bytes, DTP_WRITE);
    dtp_draft_memory(l, &draft, 3 * (double)bytes, 1);
    dtp_draft_end(l, &draft);
    module->base[index] = keeps ? base : DTP_NO_BUFFER;
    module->wide[index] = keeps ? wide : DTP_NO_BUFFER;
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

dtp_buffer_id dtp_backward_magnitudes(const struct dtp_block_backward *b, int index, dtp_buffer_id gradient,
                                      bool wanted)
{
    struct dtp_lowering *l = b->l;
    struct dtp_flight_module *module = b->module;
    uint64_t bytes = result_bytes(l, &l->matrix[index]);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_RESIDUAL_BACKWARD, "gradients of magnitudes");
    dtp_draft_use(&draft, gradient, DTP_READ);
    dtp_draft_use(&draft, module->base[index], DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, module->wide[index], DTP_READ | DTP_FREE);
    module->wide[index] = DTP_NO_BUFFER;
    dtp_draft_new(l, &draft, "magnitudes' terms", DTP_OWNER_WORKSPACE, 2 * bytes, DTP_UPDATE | DTP_FREE);
    dtp_buffer_id scaled = dtp_backward_workspace(l, &draft, "scaled gradient", bytes, DTP_WRITE);
    module->base[index] =
        wanted ? dtp_backward_workspace(l, &draft, "gradient of the linear", bytes, DTP_WRITE) : DTP_NO_BUFFER;
    dtp_draft_memory(l, &draft, (wanted ? 14 : 12) * (double)bytes, wanted ? 7 : 6);
    dtp_draft_end(l, &draft);
    return scaled;
}

dtp_buffer_id dtp_backward_dropped_linear(const struct dtp_block_backward *b, int index, dtp_buffer_id input)
{
    struct dtp_lowering *l = b->l;
    const struct dtp_layer_matrix *matrix = &l->matrix[index];
    dtp_buffer_id *gradient = &b->module->base[index];
    uint64_t rows = dtp_lower_matrix_rows(l, matrix), bytes = dtp_bytes_product(rows, l->compute * matrix->in);
    struct dtp_draft draft;
    if (gradient->index == DTP_NO_INDEX || l->plan->adapters.dropout <= 0)
        return input;
    dtp_draft_begin(l, &draft, DTP_OP_MATMUL, "gradient of dropped input");
    dtp_draft_use(&draft, *gradient, DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, dtp_lower_weight(l, index), DTP_READ);
    *gradient = DTP_NO_BUFFER;
    dtp_buffer_id through = dtp_backward_workspace(l, &draft, "gradient of dropped input", bytes, DTP_WRITE);
    dtp_draft_matmul(l, &draft, rows, matrix->in, matrix->out, false);
    dtp_draft_end(l, &draft);
    dtp_draft_begin(l, &draft, DTP_OP_RESIDUAL_BACKWARD, "sum of input gradients");
    dtp_draft_use(&draft, input, DTP_UPDATE);
    dtp_draft_use(&draft, through, DTP_READ | DTP_FREE);
    dtp_draft_memory(l, &draft, 3 * (double)bytes, 1);
    dtp_draft_end(l, &draft);
    return input;
}

dtp_buffer_id dtp_backward_add_linear(const struct dtp_block_backward *b, int index, dtp_buffer_id gradient)
{
    struct dtp_lowering *l = b->l;
    dtp_buffer_id sum = b->module->base[index];
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_RESIDUAL_BACKWARD, "sum of gradients");
    dtp_draft_use(&draft, sum, DTP_UPDATE);
    dtp_draft_use(&draft, gradient, DTP_READ);
    dtp_draft_memory(l, &draft, 3 * (double)result_bytes(l, &l->matrix[index]), 1);
    dtp_draft_end(l, &draft);
    b->module->base[index] = DTP_NO_BUFFER;
    return sum;
}
