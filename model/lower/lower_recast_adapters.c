/* Adapters in fp32 under autocast (dtp_plan_recasts_adapters), as peft's linears have them: x is made fp32, as A is
 * (_cast_input_dtype of tuners/tuners_utils.py), dropped out so, and autocast casts it back for A's product, which
 * keeps that. A and B are cast, too, in each pass, and what a pass cast stays for its backward. Backward the gradients
 * of x and of both factors go the same way.
 *
 * Of an element of x, n bytes narrow: n + 4 there, dropout 2 * 4 + 1, 4 + n back, both ways; of a factor 4 + n each.
 * As peft 0.21 was seen to run it kernel by kernel on an H200 (reports/h200/library_runs.md). */
#include "lower/block_backward.h"
#include "lower/block_forward.h"

#include "base/bytes.h"

#define WIDE_BYTES 4

bool dtp_lower_recasts_adapter(const struct dtp_lowering *l, int index)
{
    return dtp_plan_recasts_adapters(l->plan) && !dtp_lower_reads_wide(l, index);
}

/* x there and back, A, B; and what dropout does between. */
static void pass_elements(const struct dtp_lowering *l, struct dtp_draft *draft, const struct dtp_layer_matrix *matrix)
{
    double elements = (double)dtp_bytes_product(dtp_lower_matrix_rows(l, matrix), matrix->in);
    double drops = l->plan->adapters.dropout > 0 ? 1 : 0;
    double factors = (double)dtp_adapter_elements(matrix), cast = (double)(l->compute + WIDE_BYTES);
    uint32_t calls = matrix->expert ? (uint32_t)dtp_layer_calls(&l->tensors.kind) : 1;
    dtp_draft_pass(l, draft, (2 * cast + drops * (2 * WIDE_BYTES + 1)) * elements + cast * factors, elements,
                   (4 + (uint32_t)drops) * calls);
}

dtp_buffer_id dtp_forward_recast(const struct pass *pass, int index, bool keeps)
{
    struct dtp_lowering *l = pass->l;
    const struct dtp_layer_matrix *matrix = &l->matrix[index];
    uint64_t elements = dtp_bytes_product(dtp_lower_matrix_rows(l, matrix), matrix->in);
    uint64_t mask = l->plan->adapters.dropout > 0 ? 1 : 0, standing = (l->compute + mask) * elements;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, mask ? DTP_OP_ACTIVATION : DTP_OP_CAST, "input of an adapter");
    read(pass, &draft, l->tensors.input[index], dtp_layer_tensors_last_reader(&l->tensors, index));
    dtp_draft_new(l, &draft, "input in fp32", DTP_OWNER_WORKSPACE,
                  dtp_backward_called_bytes(l, matrix->expert, (1 + mask) * WIDE_BYTES * elements),
                  DTP_UPDATE | DTP_FREE);
    dtp_buffer_id made = dtp_draft_new(
        l, &draft, mask ? "input of an adapter and its mask" : "cast input of an adapter", DTP_OWNER_ACTIVATIONS,
        dtp_backward_called_bytes(l, matrix->expert && !keeps, standing + l->compute * dtp_adapter_elements(matrix)),
        DTP_WRITE);
    pass_elements(l, &draft, matrix);
    dtp_draft_end(l, &draft);
    return made;
}

/* `gradient` of what A's product read; its buffer becomes that of x. */
void dtp_backward_recast(const struct dtp_block_backward *b, int index, dtp_buffer_id gradient)
{
    struct dtp_lowering *l = b->l;
    const struct dtp_layer_matrix *matrix = &l->matrix[index];
    uint64_t elements = dtp_bytes_product(dtp_lower_matrix_rows(l, matrix), matrix->in);
    bool drops = l->plan->adapters.dropout > 0;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, drops ? DTP_OP_ACTIVATION_BACKWARD : DTP_OP_CAST, "input of an adapter");
    dtp_draft_use(&draft, gradient, DTP_UPDATE);
    dtp_draft_use(&draft, b->module->dropped[index], DTP_READ | DTP_FREE);
    b->module->dropped[index] = DTP_NO_BUFFER;
    dtp_draft_new(l, &draft, "input gradient in fp32", DTP_OWNER_WORKSPACE,
                  dtp_backward_called_bytes(l, matrix->expert, (drops ? 2u : 1u) * WIDE_BYTES * elements),
                  DTP_UPDATE | DTP_FREE);
    pass_elements(l, &draft, matrix);
    dtp_draft_end(l, &draft);
}
