/* DoRA (Liu et al. 2024, arXiv:2402.09353): an adapted linear is (m / n) (W + s B A) x, with a trained magnitude m of
 * each output and n the norm of that row of W + s B A, which no gradient goes through.
 *
 * As peft runs it (tuners/lora/dora.py, DoraLinearLayer.forward; torchtune's DoRALinear after it), eagerly, in passes
 * that dtp_plan_magnitude_passes counts:
 *   product    B A of an identity [in, in], for FSDP's hooks stand around modules: two matmuls, [in, out]
 *   norm       s times that, W added, the norm of each row
 *   sum        (m / n - 1) y + (m / n) wide s, added to y; y and wide are kept, for the gradient of m / n
 * Where dropout is on, y is made anew of what it let through, which is kept. The identity and the product stand until
 * the function returns. What is kept of [out] elements is not counted.
 *
 * Backward, of g [T, out]: s g; times m / n; with wide, a product that is summed; with y the same; g times m / n - 1,
 * what y gets: added to g, or multiplied by W once more beside A's, behind dropout. */
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

static void passes_of(struct dtp_lowering *l, struct dtp_draft *draft, uint64_t bytes, uint64_t elements,
                      double one_at_a_time, uint32_t kernels)
{
    if (one_at_a_time > 0)
        dtp_draft_pass(l, draft, (double)(bytes * elements), one_at_a_time * (double)elements, kernels);
    else
        dtp_draft_memory(l, draft, (double)(bytes * elements), kernels);
}

/* B A of an identity; of adapters in fp32 the identity is, too, and stands until its product is made. */
static struct product multiply_identity(const struct pass *pass, int index)
{
    struct dtp_lowering *l = pass->l;
    const struct dtp_layer_matrix *m = &l->matrix[index];
    const struct dtp_magnitude_passes passes = dtp_plan_magnitude_passes(l->plan);
    const uint64_t wide = passes.sum > l->compute ? passes.sum * m->in * m->in : 0;
    dtp_buffer_id adapter = dtp_lower_weight(l, l->block.adapter[index]), uncast;
    struct dtp_draft draft;
    struct product made;
    dtp_draft_begin(l, &draft, DTP_OP_CAST, "identity");
    made.identity = dtp_draft_new(l, &draft, "identity", DTP_OWNER_WORKSPACE, l->compute * m->in * m->in, DTP_WRITE);
    uncast = wide ? dtp_draft_new(l, &draft, "identity in fp32", DTP_OWNER_WORKSPACE, wide, DTP_WRITE) : DTP_NO_BUFFER;
    passes_of(l, &draft, passes.identity, m->in * m->in, 0, passes.identity_kernels);
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
    dtp_draft_use(&draft, uncast, DTP_FREE);
    made.all = dtp_draft_new(l, &draft, "B A", DTP_OWNER_WORKSPACE, l->compute * m->in * m->out, DTP_WRITE);
    dtp_draft_matmul(l, &draft, m->in, m->out, m->rank, false);
    dtp_draft_end(l, &draft);
    return made;
}

/* B A, and the norm of W + s B A. */
static struct product find_norm(const struct pass *pass, int index)
{
    struct dtp_lowering *l = pass->l;
    const struct dtp_layer_matrix *m = &l->matrix[index];
    const struct dtp_magnitude_passes passes = dtp_plan_magnitude_passes(l->plan);
    const uint64_t elements = m->in * m->out;
    struct product made = multiply_identity(pass, index);
    dtp_buffer_id weight = dtp_lower_weight(l, index);
    struct dtp_draft draft;
    if (passes.casts) {
        dtp_draft_begin(l, &draft, DTP_OP_CAST, "W and B A in fp32");
        dtp_draft_use(&draft, weight, DTP_READ);
        dtp_draft_use(&draft, made.all, DTP_READ | DTP_FREE);
        made.all =
            dtp_draft_new(l, &draft, "W and B A in fp32", DTP_OWNER_WORKSPACE, passes.product * elements, DTP_WRITE);
        passes_of(l, &draft, passes.casts, elements, passes.cast_kernels, passes.cast_kernels);
        dtp_draft_end(l, &draft);
    }
    dtp_draft_begin(l, &draft, DTP_OP_CAST, "norm of rows");
    if (!passes.casts)
        dtp_draft_use(&draft, weight, DTP_READ);
    dtp_draft_use(&draft, made.all, DTP_READ);
    dtp_draft_new(l, &draft, "W + s B A", DTP_OWNER_WORKSPACE, passes.norm_workspace * elements, DTP_UPDATE | DTP_FREE);
    passes_of(l, &draft, passes.norm, elements, passes.norm_elements, passes.norm_kernels);
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
    const struct dtp_magnitude_passes passes = dtp_plan_magnitude_passes(l->plan);
    const uint64_t bytes = result_bytes(l, matrix), elements = bytes / l->compute;
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
    dtp_draft_new(l, &draft, "magnitudes' terms", DTP_OWNER_WORKSPACE, passes.terms_workspace * elements,
                  DTP_UPDATE | DTP_FREE);
    dtp_buffer_id sum = dtp_draft_new(l, &draft, "magnitudes", DTP_OWNER_WORKSPACE, passes.sum * elements, DTP_WRITE);
    passes_of(l, &draft, passes.terms, elements, passes.terms_elements, passes.terms_kernels);
    dtp_draft_end(l, &draft);
    dtp_draft_begin(l, &draft, DTP_OP_RESIDUAL, "adapter");
    dtp_draft_use(&draft, *result, drops || !keeps ? DTP_READ | DTP_FREE : DTP_READ);
    dtp_draft_use(&draft, sum, DTP_READ | DTP_FREE);
    dtp_draft_new(l, &draft, "sum in fp32", DTP_OWNER_WORKSPACE, passes.sum > l->compute ? passes.sum * elements : 0,
                  DTP_UPDATE | DTP_FREE);
    *result = dtp_draft_new(l, &draft, dtp_layer_tensor_text(matrix->result), DTP_OWNER_ACTIVATIONS, bytes, DTP_WRITE);
    passes_of(l, &draft, passes.added, elements, passes.added_elements, passes.added_kernels);
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
    const struct dtp_magnitude_passes passes = dtp_plan_magnitude_passes(l->plan);
    const uint64_t bytes = result_bytes(l, &l->matrix[index]), elements = bytes / l->compute;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_RESIDUAL_BACKWARD, "gradients of magnitudes");
    dtp_draft_use(&draft, gradient, DTP_READ);
    dtp_draft_use(&draft, module->base[index], DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, module->wide[index], DTP_READ | DTP_FREE);
    module->wide[index] = DTP_NO_BUFFER;
    dtp_draft_new(l, &draft, "magnitudes' terms", DTP_OWNER_WORKSPACE, passes.back_workspace * elements,
                  DTP_UPDATE | DTP_FREE);
    dtp_buffer_id scaled = dtp_backward_workspace(l, &draft, "scaled gradient", bytes, DTP_WRITE);
    module->base[index] =
        wanted ? dtp_backward_workspace(l, &draft, "gradient of the linear", bytes, DTP_WRITE) : DTP_NO_BUFFER;
    passes_of(l, &draft, passes.back + (wanted ? passes.back_wanted : 0), elements,
              passes.back_elements + (wanted ? passes.back_wanted_elements : 0),
              passes.back_kernels + (wanted ? passes.back_wanted_kernels : 0));
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
