/* Adapters that tensor parallel ranks divide as the linears beside them (dtp_plan_divides_adapters): what they exchange
 * and copy. As ParallelLinearAdapter of Megatron-Bridge (peft/utils.py) is made of Megatron-Core's ColumnParallelLinear
 * and RowParallelLinear (tensor_parallel/layers.py, mappings.py), of T tokens, t ranks, a linear [out, in], rank r:
 *
 *   by columns  A [r/t, in] reads all T tokens, kept as they were gathered for the linear (return_layernorm_output_
 *               gathered), or with tp_overlap, where that gathers by pieces, gathered once more; x A^T of T r is
 *               gathered and laid side by side; B [out/t, r]. Backward the gradient of x A^T is summed, T r, and cut to
 *               the rank's columns; x's is added to the linear's and both are scattered as one sum. With tp_overlap,
 *               or where each rank has all of the stream, it is summed by itself.
 *   by rows     A [r, in/t] makes terms of x A^T, which are summed, T r; B [out/t, r] columns of the result, which are
 *               gathered, T out, and laid side by side; of these a rank takes its tokens. Backward the gradient of
 *               these is gathered, T out, and cut to columns; that of x A^T is summed, T r.
 *
 * Sums are all-reduces but for the scattered one. Without such ranks nothing here makes an operation. */
#include "lower/block_backward.h"
#include "lower/block_forward.h"

#include "base/bytes.h"

static uint64_t bytes_of(const struct dtp_lowering *l, uint64_t width)
{
    return dtp_bytes_product(l->tokens, l->compute * width);
}

/* Of all ranks, of `whole` bytes together. */
static dtp_buffer_id gather(struct dtp_lowering *l, const char *name, dtp_buffer_id part, uint64_t whole)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ALL_GATHER, name);
    dtp_draft_use(&draft, part, DTP_READ | DTP_FREE);
    dtp_buffer_id gathered = dtp_draft_new(l, &draft, name, DTP_OWNER_WORKSPACE, whole, DTP_WRITE);
    l->awaited = dtp_lower_tensor_end(l, &draft, whole, false);
    return gathered;
}

/* Laid side by side, or cut to some columns: so many bytes read and written; what was read goes. */
static dtp_buffer_id copy(struct dtp_lowering *l, const char *name, dtp_buffer_id from, enum dtp_owner owner,
                          uint64_t bytes)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_COPY_OUT, name);
    dtp_draft_use(&draft, from, DTP_READ | DTP_FREE);
    dtp_buffer_id made = dtp_draft_new(l, &draft, name, owner, bytes, DTP_WRITE);
    dtp_draft_memory(l, &draft, 2 * (double)bytes, 1);
    dtp_draft_end(l, &draft);
    return made;
}

static bool divides(const struct dtp_lowering *l)
{
    return l->tp > 1 && l->plan->adapter_ranks > 1;
}

/* A gradient of its input that is not added to the linear's before both are summed over ranks. */
static bool sums_apart(const struct dtp_lowering *l)
{
    return !dtp_lower_spreads(l) || l->plan->tp_overlap;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

void dtp_forward_gather_adapter_input(const struct pass *pass, int index)
{
    struct dtp_lowering *l = pass->l;
    enum dtp_layer_tensor input = l->tensors.input[index];
    const bool stands = pass->module->gathered & UINT64_C(1) << input;
    struct dtp_draft draft;
    if (!divides(l) || !dtp_lower_spreads(l) || !dtp_lower_cut_by_columns(l, index) || stands)
        return;
    dtp_draft_begin(l, &draft, DTP_OP_ALL_GATHER, "input of an adapter");
    dtp_draft_use(&draft, pass->module->tensor[input], DTP_READ | DTP_FREE);
    pass->module->tensor[input] =
        dtp_lower_gather_rows(l, &draft, DTP_OWNER_ACTIVATIONS, dtp_lower_whole_input(l, index), NULL);
    pass->module->gathered |= UINT64_C(1) << input;
}

dtp_buffer_id dtp_forward_whole_low(const struct pass *pass, int index, dtp_buffer_id low)
{
    struct dtp_lowering *l = pass->l;
    const uint64_t whole = bytes_of(l, l->matrix[index].rank);
    if (!divides(l))
        return low;
    if (dtp_lower_cut_by_columns(l, index))
        return copy(l, "x A", gather(l, "x A", low, whole), DTP_OWNER_ACTIVATIONS, whole);
    dtp_lower_sum_in_place(l, "x A", low, whole, false);
    return low;
}

dtp_buffer_id dtp_forward_whole_adapted(const struct pass *pass, int index, dtp_buffer_id wide)
{
    struct dtp_lowering *l = pass->l;
    const uint64_t whole = bytes_of(l, l->matrix[index].out);
    if (!divides(l) || !dtp_lower_cut_by_rows(l, index))
        return wide;
    return copy(l, "adapter result", gather(l, "adapter result", wide, whole), DTP_OWNER_WORKSPACE, whole);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

dtp_buffer_id dtp_backward_cut_scaled(const struct dtp_block_backward *b, int index, dtp_buffer_id scaled)
{
    struct dtp_lowering *l = b->l;
    const struct dtp_layer_matrix *matrix = &l->matrix[index];
    if (!divides(l) || !dtp_lower_cut_by_rows(l, index))
        return scaled;
    if (dtp_lower_spreads(l))
        scaled = gather(l, "scaled gradient", scaled, bytes_of(l, matrix->out));
    return copy(l, "columns of a gradient", scaled, DTP_OWNER_WORKSPACE, bytes_of(l, matrix->b_rows));
}

dtp_buffer_id dtp_backward_sum_low(const struct dtp_block_backward *b, int index, dtp_buffer_id low)
{
    struct dtp_lowering *l = b->l;
    const struct dtp_layer_matrix *matrix = &l->matrix[index];
    if (!divides(l))
        return low;
    dtp_lower_sum_in_place(l, "gradient of x A", low, bytes_of(l, matrix->rank), false);
    if (!dtp_lower_cut_by_columns(l, index))
        return low;
    return copy(l, "gradient of x A", low, DTP_OWNER_WORKSPACE, bytes_of(l, matrix->a_rows));
}

/* The two gradients of what a linear and its adapter read, of which either may be none: one tensor more is read. */
static dtp_buffer_id add(struct dtp_lowering *l, uint64_t bytes, dtp_buffer_id sum, dtp_buffer_id term)
{
    struct dtp_draft draft;
    if (sum.index == DTP_NO_INDEX)
        return term;
    dtp_draft_begin(l, &draft, DTP_OP_RESIDUAL_BACKWARD, "sum of input gradients");
    dtp_draft_use(&draft, sum, DTP_UPDATE);
    dtp_draft_use(&draft, term, DTP_READ | DTP_FREE);
    dtp_draft_memory(l, &draft, 3 * (double)bytes, 1);
    dtp_draft_end(l, &draft);
    return sum;
}

dtp_buffer_id dtp_backward_sum_adapted(const struct dtp_block_backward *b, int index, dtp_buffer_id adapter,
                                       dtp_buffer_id linear)
{
    struct dtp_lowering *l = b->l;
    const struct dtp_layer_matrix *matrix = &l->matrix[index];
    const bool columns = dtp_lower_cut_by_columns(l, index), apart = sums_apart(l);
    const uint64_t rows = columns && apart && dtp_lower_spreads(l) ? l->plan->sequence_shards : 1,
                   bytes = dtp_divide_up(bytes_of(l, matrix->in), rows);
    if (!columns)
        return add(l, bytes, adapter, linear);
    if (apart && adapter.index != DTP_NO_INDEX)
        adapter = dtp_lower_sum_of_rows(l, "adapter", adapter, DTP_READ | DTP_FREE, matrix->in);
    if (apart)
        linear = dtp_lower_sum_of_rows(l, matrix->name, linear, DTP_READ | DTP_FREE, matrix->in);
    dtp_buffer_id sum = add(l, bytes, adapter, linear);
    return apart ? sum : dtp_lower_sum_of_rows(l, matrix->name, sum, DTP_READ | DTP_FREE, matrix->in);
}
