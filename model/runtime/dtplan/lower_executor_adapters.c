/* Adapters, forward and backward. The scale is a factor of low = s x A^T and of its gradient s g B; so the gradients of
 * B (g^T low), of A (low's gradient by x) and of x have it in them.
 *
 * Tensor parallel ranks divide what touches a matrix' own divided side: of a matrix that reads gathered rows B by rows,
 * of one whose results are summed A by columns; the other half each has whole. Nothing more is sent forward. Of rows
 * that were gathered each rank makes low of all; and B of a rank's part of low makes terms of the matrix' own sum, for
 * B is linear. Backward the former's gradient of low is a sum over ranks, of which each gets its own rows: T r numbers
 * a matrix in place of the T h of x gathered once more; A is then multiplied by these alone. The latter reads the
 * gathered gradient that the matrix reads. Halves that ranks have whole have gradients that are terms, summed once a
 * step as those of norms are. */
#include "runtime/dtplan/lower_executor_tensor.h"

#include "base/bytes.h"

double dtp_executor_adapter_scale(const struct dtp_executor *x)
{
    const struct dtp_adapter_choice *choice = &x->plan->adapters;
    return choice->alpha > 0 ? choice->alpha / choice->rank : 1;
}

/* ---- packed matrices --------------------------------------------------------------------------------------------- */

dtp_buffer_id dtp_executor_unpack(struct dtp_executor *x, uint64_t layer, const struct dtp_executor_operator *op)
{
    struct dtp_executor_module *module = dtp_executor_packed(x, layer);
    const struct dtp_parameter_tensor *tensor = &module->layout->tensor[op->weight];
    const uint64_t elements = op->matrix->out * op->matrix->in;
    struct dtp_draft draft;
    dtp_executor_begin(x, &draft, DTP_OP_CAST, "unpacked weight");
    dtp_draft_role(&draft, DTP_ROLE_INPUT, module->state[DTP_EXECUTOR_WEIGHTS], DTP_READ, tensor->offset_elements)
        ->bytes = tensor->extent_elements;
    dtp_draft_role(&draft, DTP_ROLE_SCALE, module->state[DTP_EXECUTOR_SCALES1], DTP_READ,
                   tensor->offset_elements / DTP_PARAMETER_PACKED_BLOCK * sizeof(float))
        ->bytes = tensor->extent_elements / DTP_PARAMETER_PACKED_BLOCK * sizeof(float);
    dtp_buffer_id made = dtp_executor_new(x, &draft, DTP_ROLE_RESULT, "unpacked weight", DTP_OWNER_WEIGHTS,
                                          dtp_bytes_product(elements, x->element_bytes), DTP_WRITE);
    dtp_executor_memory(&draft, elements, dtp_executor_unpacked_bytes(elements, x->element_bytes), 1);
    draft.op.demand.memory_kernel = DTP_KERNEL_STREAMING;
    dtp_executor_end(x, &draft);
    return made;
}

void dtp_executor_matrix(struct dtp_executor *x, struct dtp_draft *draft, uint64_t layer,
                         const struct dtp_executor_operator *op, dtp_buffer_id unpacked)
{
    if (unpacked.index != DTP_NO_INDEX)
        dtp_draft_role(draft, DTP_ROLE_WEIGHT, unpacked, DTP_READ | DTP_FREE, 0);
    else
        dtp_executor_weight(x, draft, DTP_ROLE_WEIGHT, dtp_executor_module_of(x, layer, op), op->weight);
}

/* ---- adapters ---------------------------------------------------------------------------------------------------- */

/* One of B's, [out, rank] rows from `row` on. */
struct place {
    struct dtp_executor *x;
    struct dtp_executor_module *module;
    const struct dtp_executor_operator *op;
    int part;
    uint64_t row;
};

static void wide(const struct place *at, struct dtp_draft *draft, enum dtp_role role, dtp_buffer_id buffer,
                 uint32_t access)
{
    dtp_draft_role(draft, role, buffer, access, at->op->adapter->part[at->part].column * at->x->element_bytes);
}

static void low(const struct place *at, struct dtp_draft *draft, enum dtp_role role, dtp_buffer_id buffer,
                uint32_t access)
{
    dtp_draft_role(draft, role, buffer, access, (uint64_t)at->part * at->op->adapter->rank * at->x->element_bytes);
}

static void weight(const struct place *at, struct dtp_draft *draft)
{
    const struct dtp_parameter_tensor *tensor = &at->module->layout->tensor[at->op->weight];
    dtp_draft_role(draft, DTP_ROLE_WEIGHT, at->module->gathered, DTP_READ,
                   (tensor->offset_elements + at->row * at->op->adapter->rank) * at->x->element_bytes);
}

static void product(const struct place *at, struct dtp_draft *draft, uint64_t m, uint64_t n, uint64_t k)
{
    dtp_executor_matmul(at->x, draft, m, n, k);
    draft->op.demand.form = DTP_FORM_COLUMNS;
}

bool dtp_executor_adapter_leads(const struct dtp_executor *x, int projection)
{
    const struct dtp_executor_operator *op = &x->shape->op[projection], *behind = op + 1;
    return op->kind == DTP_OP_MATMUL && op->half != DTP_EXECUTOR_A && op->half != DTP_EXECUTOR_B &&
           projection + 1 < x->shape->count && behind->half == DTP_EXECUTOR_B && op->addend == DTP_EXECUTOR_NONE &&
           op->aux == DTP_EXECUTOR_NONE && !op->gathers && !op->sums &&
           dtp_executor_adapter_out(behind->adapter) == op->matrix->out;
}

void dtp_executor_adapter_forward(struct dtp_executor *x, uint64_t layer, const struct dtp_executor_operator *op,
                                  dtp_buffer_id low_rows, uint32_t low_frees, dtp_buffer_id *result, bool leads)
{
    const struct dtp_executor_adapter *adapter = op->adapter;
    struct place at = {.x = x, .module = dtp_executor_adapters(x, layer), .op = op};
    for (; at.part < adapter->parts; at.row += adapter->part[at.part++].out) {
        struct dtp_draft draft;
        bool last = at.part + 1 == adapter->parts;
        dtp_executor_begin(x, &draft, DTP_OP_MATMUL, op->name);
        low(&at, &draft, DTP_ROLE_INPUT, low_rows, DTP_READ | (last ? low_frees : 0));
        weight(&at, &draft);
        if (result->index == DTP_NO_INDEX)
            *result =
                dtp_executor_new(x, &draft, DTP_ROLE_RESULT, dtp_executor_tensor_name(op->result),
                                 DTP_OWNER_ACTIVATIONS, dtp_executor_tensor_bytes(x->shape, op->result), DTP_WRITE);
        else
            wide(&at, &draft, DTP_ROLE_RESULT, *result, leads ? DTP_WRITE : DTP_UPDATE);
        product(&at, &draft, x->rules.tokens, adapter->part[at.part].out, adapter->rank);
        dtp_executor_end(x, &draft);
    }
}

/* [out, rank] (+)= gradient[T, out]^T low[T, rank]. */
static void b_gradient(const struct place *at, dtp_buffer_id gradient, dtp_buffer_id low_rows, bool adds)
{
    const struct dtp_executor_adapter *adapter = at->op->adapter;
    uint64_t out = adapter->part[at->part].out;
    struct dtp_draft draft;
    dtp_executor_begin(at->x, &draft, DTP_OP_MATMUL, "adapter B gradient");
    wide(at, &draft, DTP_ROLE_GRADIENT, gradient, DTP_READ);
    low(at, &draft, DTP_ROLE_INPUT, low_rows, DTP_READ | (at->part + 1 == adapter->parts ? DTP_FREE : 0));
    dtp_executor_gradient_part(&draft, at->module, at->op->weight, at->row * adapter->rank, out * adapter->rank, adds);
    product(at, &draft, out, adapter->rank, at->x->rules.tokens);
    dtp_executor_end(at->x, &draft);
}

/* low's gradient [T, rank] = s gradient[T, out] B[out, rank]. */
static void low_gradient(const struct place *at, dtp_buffer_id gradient, bool frees, dtp_buffer_id *made)
{
    struct dtp_executor *x = at->x;
    const struct dtp_executor_adapter *adapter = at->op->adapter;
    struct dtp_draft draft;
    dtp_executor_begin(x, &draft, DTP_OP_MATMUL, "adapter B input gradient");
    wide(at, &draft, DTP_ROLE_GRADIENT, gradient, DTP_READ | (frees && at->part + 1 == adapter->parts ? DTP_FREE : 0));
    weight(at, &draft);
    if (at->part == 0)
        *made = dtp_executor_new(x, &draft, DTP_ROLE_INPUT_GRADIENT, "gradient of x A", DTP_OWNER_WORKSPACE,
                                 dtp_executor_tensor_bytes(x->shape, at->op->input), DTP_WRITE);
    else
        low(at, &draft, DTP_ROLE_INPUT_GRADIENT, *made, DTP_WRITE);
    product(at, &draft, x->rules.tokens, adapter->rank, adapter->part[at->part].out);
    draft.op.demand.scale = dtp_executor_adapter_scale(x);
    dtp_executor_end(x, &draft);
}

dtp_buffer_id dtp_executor_adapter_b_backward(struct dtp_executor *x, uint64_t layer,
                                              const struct dtp_executor_operator *op, dtp_buffer_id gradient,
                                              bool frees, dtp_buffer_id low_rows)
{
    struct place at = {.x = x, .module = dtp_executor_adapters(x, layer), .op = op};
    bool adds = at.module->written & dtp_executor_written_bit(op->weight);
    dtp_buffer_id made = DTP_NO_BUFFER;
    for (; at.part < op->adapter->parts; at.row += op->adapter->part[at.part++].out) {
        b_gradient(&at, gradient, low_rows, adds);
        low_gradient(&at, gradient, frees, &made);
    }
    return op[-1].gathers ? dtp_executor_scatter_low(x, made, dtp_executor_low_width(op->adapter)) : made;
}

/* [ranks, in] (+)= low's gradient[T, ranks]^T x[T, in]; x's gradient (+)= low's gradient A. */
void dtp_executor_adapter_a_backward(struct dtp_executor *x, uint64_t layer, const struct dtp_executor_operator *op,
                                     dtp_buffer_id low_rows, dtp_buffer_id input, bool input_goes,
                                     dtp_buffer_id *input_gradient)
{
    const struct dtp_executor_adapter *adapter = op->adapter;
    struct dtp_executor_module *module = dtp_executor_adapters(x, layer);
    const uint64_t width = dtp_executor_low_width(adapter),
                   rows = op[1].gathers ? x->rules.stream_tokens : x->rules.tokens;
    struct dtp_draft draft;
    dtp_executor_begin(x, &draft, DTP_OP_MATMUL, "adapter A gradient");
    dtp_draft_role(&draft, DTP_ROLE_GRADIENT, low_rows, DTP_READ | (input_gradient ? 0 : DTP_FREE), 0);
    dtp_draft_role(&draft, DTP_ROLE_INPUT, input, DTP_READ | (input_goes ? DTP_FREE : 0), 0);
    dtp_executor_gradient(&draft, DTP_ROLE_WEIGHT_GRADIENT, module, op->weight);
    dtp_executor_matmul(x, &draft, width, adapter->in, rows);
    dtp_executor_end(x, &draft);
    if (!input_gradient)
        return;
    dtp_executor_begin(x, &draft, DTP_OP_MATMUL, "adapter A input gradient");
    dtp_draft_role(&draft, DTP_ROLE_GRADIENT, low_rows, DTP_READ | DTP_FREE, 0);
    dtp_executor_weight(x, &draft, DTP_ROLE_WEIGHT, module, op->weight);
    if (input_gradient->index == DTP_NO_INDEX)
        *input_gradient = dtp_executor_new(x, &draft, DTP_ROLE_INPUT_GRADIENT, op->matrix->input_gradient_name,
                                           DTP_OWNER_WORKSPACE, rows * op->matrix->in * x->element_bytes, DTP_WRITE);
    else
        dtp_draft_role(&draft, DTP_ROLE_INPUT_GRADIENT, *input_gradient, DTP_UPDATE, 0);
    dtp_executor_matmul(x, &draft, rows, adapter->in, width);
    dtp_executor_end(x, &draft);
}
