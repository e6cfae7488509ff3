/* Adapters beside frozen matrices: their forward and backward. Their parts of a module: lower_adapter_parts.c.
 *
 * As PyTorch's eager operators run y + s (x A^T) B^T (torchtune's LoRALinear, peft's lora.Linear; bench of the measured
 * runs): y = x W^T, low = x A^T, wide = low B^T, scaled = s wide, y + scaled. Autograd keeps x and low; for x W^T it
 * keeps W alone. Backward, the last node first: s g; B's gradient and that of low; A's gradient and one of x; then g W,
 * the other one of x. A compiler scales and adds within the kernels that read the sum or make g. Adapters in fp32
 * beside 16 bits (dtp_plan_widens_adapters) read a cast of x, which stays for backward, and add in fp32, whence the sum
 * is cast back; g is cast for them, and x's gradient back. */
#include "lower/block_backward.h"
#include "lower/block_forward.h"

#include "base/bytes.h"

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* Kernels of what is done for each expert that is called, once for each; of others one. */
static uint32_t calls_of(const struct dtp_lowering *l, const struct dtp_layer_matrix *matrix)
{
    return matrix->expert ? (uint32_t)dtp_layer_calls(&l->tensors.kind) : 1;
}

/* A product of all experts' rows is as many of these of its own: `rows` is m or k of the draft's. */
static void call_each(struct dtp_draft *draft, const struct dtp_layer_matrix *matrix, double *rows)
{
    draft->op.demand.groups = draft->op.demand.kernels = (uint32_t)matrix->groups;
    *rows /= (double)matrix->groups;
}

/* Rows that go through a matrix and its adapter: of experts those of all. */
static uint64_t rows_of(const struct dtp_lowering *l, const struct dtp_layer_matrix *matrix)
{
    return dtp_lower_matrix_rows(l, matrix);
}

/* Of `width` columns, as adapters have them; `apart`: what does not survive the pass is of one expert at a time. */
static uint64_t rows_bytes(const struct dtp_lowering *l, const struct dtp_layer_matrix *matrix, uint64_t width,
                           bool apart)
{
    uint64_t bytes = dtp_bytes_product(rows_of(l, matrix), dtp_plan_adapter_bytes(l->plan) * width);
    return dtp_backward_called_bytes(l, matrix->expert && apart, bytes);
}

/* Bytes of so many columns that are read in one dtype of the two and written in the other. */
static double cast_bytes(const struct dtp_lowering *l, const struct dtp_layer_matrix *matrix, uint64_t width)
{
    return (double)((l->compute + dtp_plan_adapter_bytes(l->plan)) * width) * (double)rows_of(l, matrix);
}

/* Columns of the compute dtype from those of adapters, which go. */
static dtp_buffer_id cast_back(struct dtp_lowering *l, const struct dtp_layer_matrix *matrix, uint64_t width,
                               enum dtp_owner owner, const char *name, dtp_buffer_id wide)
{
    uint64_t bytes = dtp_bytes_product(rows_of(l, matrix), l->compute * width);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_CAST, "of an adapter");
    dtp_draft_use(&draft, wide, DTP_READ | DTP_FREE);
    dtp_buffer_id made =
        dtp_draft_new(l, &draft, name, owner, dtp_backward_called_bytes(l, matrix->expert, bytes), DTP_WRITE);
    dtp_draft_memory(l, &draft, cast_bytes(l, matrix, width), calls_of(l, matrix));
    dtp_draft_end(l, &draft);
    return made;
}

static bool adds_narrow(const struct dtp_lowering *l)
{
    return !dtp_plan_widens_adapters(l->plan) || l->plan->adapters.base != DTP_BASE_NONE;
}

/* The rows times [in, out], of experts a product of each. */
static void multiply_rows(const struct dtp_lowering *l, struct dtp_draft *draft, const struct dtp_layer_matrix *matrix,
                          uint64_t out, uint64_t in)
{
    dtp_draft_matmul(l, draft, rows_of(l, matrix), out, in, false);
    draft->op.demand.dtype = dtp_plan_adapter_dtype(l->plan);
    if (matrix->expert)
        call_each(draft, matrix, &draft->op.demand.m);
}

/* A sum over the rows, [out, in]. */
static void sum_rows(const struct dtp_lowering *l, struct dtp_draft *draft, const struct dtp_layer_matrix *matrix,
                     uint64_t out, uint64_t in)
{
    dtp_draft_matmul(l, draft, out, in, rows_of(l, matrix), false);
    draft->op.demand.dtype = dtp_plan_adapter_dtype(l->plan);
    if (matrix->expert)
        call_each(draft, matrix, &draft->op.demand.k);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

void dtp_lower_clear_adapters(struct dtp_flight_module *module)
{
    for (int i = 0; i < DTP_LAYER_MATRICES; i++)
        module->low[i] = module->dropped[i] = module->unpacked[i] = module->wide[i] = module->base[i] =
            module->folded[i] = module->factors[i] = DTP_NO_BUFFER;
}

/* Its input, which its backward reads, stays: what the block keeps is decided before (layer_tensors.c). Where attention
 * alone is replayed linears are outside of it, and what they keep is not made again. */
bool dtp_adapter_keeps(const struct pass *pass)
{
    return pass->replay || pass->save == dtp_lower_saved(pass->l) || !pass->l->checkpointing.calls_modules;
}

/* x in the adapter's dtype, where that is not x's. */
static dtp_buffer_id cast_input(const struct pass *pass, int index)
{
    struct dtp_lowering *l = pass->l;
    const struct dtp_layer_matrix *matrix = &l->matrix[index];
    bool stays = dtp_adapter_keeps(pass) && l->plan->adapters.dropout <= 0;
    struct dtp_draft draft;
    if (!dtp_plan_widens_adapters(l->plan))
        return DTP_NO_BUFFER;
    dtp_draft_begin(l, &draft, DTP_OP_CAST, "input of an adapter");
    read(pass, &draft, l->tensors.input[index], dtp_layer_tensors_last_reader(&l->tensors, index));
    dtp_buffer_id made =
        dtp_draft_new(l, &draft, "cast input of an adapter", stays ? DTP_OWNER_ACTIVATIONS : DTP_OWNER_WORKSPACE,
                      rows_bytes(l, matrix, matrix->in, !stays), DTP_WRITE);
    dtp_draft_memory(l, &draft, cast_bytes(l, matrix, matrix->in), calls_of(l, matrix));
    dtp_draft_end(l, &draft);
    return made;
}

/* A result of its own, and a mask of a byte each: read w, written w + 1; kept both. Of a cast input that goes. */
static dtp_buffer_id drop_out(const struct pass *pass, int index, dtp_buffer_id cast)
{
    struct dtp_lowering *l = pass->l;
    const struct dtp_layer_matrix *matrix = &l->matrix[index];
    uint64_t elements = rows_of(l, matrix) * matrix->in, w = dtp_plan_adapter_bytes(l->plan);
    struct dtp_draft draft;
    if (l->plan->adapters.dropout <= 0)
        return cast;
    dtp_draft_begin(l, &draft, DTP_OP_ACTIVATION, "dropout");
    if (cast.index == DTP_NO_INDEX)
        read(pass, &draft, l->tensors.input[index], dtp_layer_tensors_last_reader(&l->tensors, index));
    else
        dtp_draft_use(&draft, cast, DTP_READ | DTP_FREE);
    dtp_buffer_id made = dtp_draft_new(
        l, &draft, "input of an adapter and its mask", DTP_OWNER_ACTIVATIONS,
        dtp_backward_called_bytes(l, matrix->expert && !dtp_adapter_keeps(pass), (w + 1) * elements), DTP_WRITE);
    dtp_draft_memory(l, &draft, (double)((2 * w + 1) * elements), calls_of(l, matrix));
    dtp_draft_end(l, &draft);
    return made;
}

/* low = x A^T; A is cast first where it is kept wider and autocast has it so, else x is. */
static void make_low(const struct pass *pass, int index)
{
    struct dtp_lowering *l = pass->l;
    const struct dtp_layer_matrix *matrix = &l->matrix[index];
    struct dtp_flight_module *module = pass->module;
    const bool keeps = dtp_adapter_keeps(pass), gathers = l->plan->adapter_ranks > 1;
    dtp_forward_gather_adapter_input(pass, index);
    module->dropped[index] = dtp_lower_reads_wide(l, index) ? dtp_forward_narrow_adapter_input(pass, index, keeps)
                             : dtp_lower_recasts_adapter(l, index) ? dtp_forward_recast(pass, index, keeps)
                                                                   : drop_out(pass, index, cast_input(pass, index));
    bool apart = module->dropped[index].index != DTP_NO_INDEX;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_MATMUL, "adapter A");
    if (apart)
        dtp_draft_use(&draft, module->dropped[index], DTP_READ);
    else
        read(pass, &draft, l->tensors.input[index], dtp_layer_tensors_last_reader(&l->tensors, index));
    dtp_draft_use(&draft, dtp_lower_weight(l, l->block.adapter[index]), DTP_READ);
    module->low[index] = dtp_draft_new(l, &draft, "x A", DTP_OWNER_ACTIVATIONS,
                                       rows_bytes(l, matrix, matrix->a_rows, !keeps), DTP_WRITE);
    if (apart && !keeps && (!matrix->magnitudes || l->plan->adapters.dropout <= 0)) {
        dtp_draft_use(&draft, module->dropped[index], DTP_FREE);
        module->dropped[index] = DTP_NO_BUFFER;
    }
    multiply_rows(l, &draft, matrix, matrix->a_rows, matrix->in);
    dtp_draft_end(l, &draft);
    if (gathers)
        module->low[index] = dtp_forward_whole_low(pass, index, module->low[index]);
}

/* In one graph with its backward a compiled replay forms the sum of y and s wide where backward's kernels read it, and
 * both stand until then. */
static bool adds_later(const struct pass *pass, const struct dtp_layer_matrix *matrix)
{
    const uint64_t late = DTP_TENSOR_BIT(GATE) | DTP_TENSOR_BIT(UP) | DTP_TENSOR_BIT(MIDDLE);
    return pass->l->compiled && pass->replay && pass->save & late & UINT64_C(1) << matrix->result;
}

/* y + s wide of an adapter in fp32: s wide reads and writes 4 bytes, the sum reads c and 4 and writes 4, which is cast
 * back. */
static void add_wide(const struct pass *pass, int index, dtp_buffer_id wide)
{
    struct dtp_lowering *l = pass->l;
    const struct dtp_layer_matrix *matrix = &l->matrix[index];
    uint64_t bytes = rows_bytes(l, matrix, matrix->out, true);
    double moved = (double)rows_bytes(l, matrix, matrix->out, false), narrow = (double)l->tensor_bytes[matrix->result];
    dtp_buffer_id *result = &pass->module->tensor[matrix->result];
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_RESIDUAL, "scaled adapter");
    dtp_draft_use(&draft, wide, DTP_READ | DTP_FREE);
    dtp_buffer_id scaled = dtp_draft_new(l, &draft, "scaled adapter", DTP_OWNER_WORKSPACE, bytes, DTP_WRITE);
    dtp_draft_memory(l, &draft, 2 * moved, calls_of(l, matrix));
    dtp_draft_end(l, &draft);
    dtp_draft_begin(l, &draft, DTP_OP_RESIDUAL, "adapter");
    dtp_draft_use(&draft, *result, matrix->expert ? DTP_READ : DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, scaled, DTP_READ | DTP_FREE);
    dtp_buffer_id sum = dtp_draft_new(l, &draft, "sum in fp32", DTP_OWNER_WORKSPACE, bytes, DTP_WRITE);
    dtp_draft_memory(l, &draft, narrow + 2 * moved, calls_of(l, matrix));
    dtp_draft_end(l, &draft);
    if (!matrix->expert) {
        *result = cast_back(l, matrix, matrix->out, DTP_OWNER_ACTIVATIONS, dtp_layer_tensor_text(matrix->result), sum);
        return;
    }
    dtp_draft_begin(l, &draft, DTP_OP_CAST, "of an adapter"); /* each expert's in its place among those of all */
    dtp_draft_use(&draft, sum, DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, *result, DTP_UPDATE);
    dtp_draft_memory(l, &draft, cast_bytes(l, matrix, matrix->out), calls_of(l, matrix));
    dtp_draft_end(l, &draft);
}

/* y + s wide: eager reads and writes wide's elements for s wide, then reads two and writes a sum; fused into what reads
 * the sum, one tensor more is read and, where the sum is kept, written. */
static void add_to_result(const struct pass *pass, int index, dtp_buffer_id wide)
{
    struct dtp_lowering *l = pass->l;
    const struct dtp_layer_matrix *matrix = &l->matrix[index];
    uint64_t bytes = l->tensor_bytes[matrix->result];
    dtp_buffer_id *result = &pass->module->tensor[matrix->result];
    struct dtp_draft draft;
    if (l->compiled) {
        bool later = adds_later(pass, matrix), kept = !later && pass->save & UINT64_C(1) << matrix->result;
        dtp_draft_begin(l, &draft, DTP_OP_RESIDUAL, "adapter");
        dtp_draft_use(&draft, *result, DTP_UPDATE);
        dtp_draft_use(&draft, wide, later ? DTP_READ : DTP_READ | DTP_FREE);
        pass->module->wide[index] = later ? wide : DTP_NO_BUFFER;
        dtp_draft_memory(l, &draft, (kept ? 2 : 1) * (double)bytes, 1);
        dtp_draft_end(l, &draft);
        return;
    }
    dtp_draft_begin(l, &draft, DTP_OP_RESIDUAL, "scaled adapter");
    dtp_draft_use(&draft, wide, DTP_READ | DTP_FREE);
    uint64_t apart = dtp_backward_called_bytes(l, matrix->expert, bytes);
    dtp_buffer_id scaled = dtp_draft_new(l, &draft, "scaled adapter", DTP_OWNER_WORKSPACE, apart, DTP_WRITE);
    dtp_draft_memory(l, &draft, 2 * (double)bytes, calls_of(l, matrix));
    dtp_draft_end(l, &draft);
    bool copies = dtp_plan_defends_results(l->plan);
    dtp_draft_begin(l, &draft, DTP_OP_RESIDUAL, "adapter");
    dtp_draft_new(l, &draft, "copied result", DTP_OWNER_WORKSPACE, copies ? apart : 0, DTP_UPDATE | DTP_FREE);
    dtp_draft_use(&draft, *result, matrix->expert ? DTP_UPDATE : DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, scaled, DTP_READ | DTP_FREE);
    if (matrix->expert) /* results of all experts stand as they were made, and each one's sum in its place */
        dtp_draft_new(l, &draft, "sum", DTP_OWNER_WORKSPACE, apart, DTP_UPDATE | DTP_FREE);
    else
        *result =
            dtp_draft_new(l, &draft, dtp_layer_tensor_text(matrix->result), DTP_OWNER_ACTIVATIONS, bytes, DTP_WRITE);
    dtp_draft_memory(l, &draft, (copies ? 5 : 3) * (double)bytes, (copies ? 2 : 1) * calls_of(l, matrix));
    dtp_draft_end(l, &draft);
}

void dtp_forward_adapter(const struct pass *pass, int index, bool alone)
{
    struct dtp_lowering *l = pass->l;
    const struct dtp_layer_matrix *matrix = &l->matrix[index];
    struct dtp_flight_module *module = pass->module;
    struct dtp_draft draft;
    dtp_lower_fetch(l, l->block.adapter[index]);
    make_low(pass, index);
    if (alone && !matrix->magnitudes) {
        dtp_lower_unfetch(l);
        return;
    }
    dtp_draft_begin(l, &draft, DTP_OP_MATMUL, "adapter B");
    dtp_draft_use(&draft, module->low[index], dtp_adapter_keeps(pass) ? DTP_READ : DTP_READ | DTP_FREE);
    if (!dtp_adapter_keeps(pass))
        module->low[index] = DTP_NO_BUFFER;
    dtp_draft_use(&draft, dtp_lower_weight(l, l->block.adapter[index]), DTP_READ);
    bool stays = matrix->magnitudes && dtp_adapter_keeps(pass);
    dtp_buffer_id wide = dtp_draft_new(l, &draft, "adapter result", stays ? DTP_OWNER_ACTIVATIONS : DTP_OWNER_WORKSPACE,
                                       rows_bytes(l, matrix, matrix->b_rows, true), DTP_WRITE);
    multiply_rows(l, &draft, matrix, matrix->b_rows, matrix->rank);
    dtp_draft_end(l, &draft);
    wide = dtp_forward_whole_adapted(pass, index, wide);
    dtp_lower_unfetch(l);
    if (matrix->magnitudes)
        dtp_forward_magnitudes(pass, index, wide, stays);
    else if (dtp_lower_reads_wide(l, index))
        dtp_forward_add_narrow(pass, index, wide);
    else if (!adds_narrow(l))
        add_wide(pass, index, wide);
    else
        add_to_result(pass, index,
                      dtp_plan_widens_adapters(l->plan)
                          ? cast_back(l, matrix, matrix->out, DTP_OWNER_WORKSPACE, "adapter result", wide)
                          : wide);
}

/* ---- the end of a replay ----------------------------------------------------------------------------------------- */

static bool has_adapter(const struct dtp_lowering *l, const struct dtp_layer_operator *op)
{
    for (int i = 0; i < l->matrices; i++)
        if (l->matrix[i].rank && op->makes & UINT64_C(1) << l->matrix[i].result)
            return true;
    return false;
}

int dtp_adapters_replay_end(const struct dtp_lowering *l, int end)
{
    for (int index = end; index < l->tensors.operators; index++)
        if (has_adapter(l, &l->tensors.op[index]))
            end = index + 1;
    return end;
}

bool dtp_adapter_ends_replay(const struct pass *pass, int index)
{
    const struct dtp_lowering *l = pass->l;
    if (!pass->replay || !l->matrix[index].rank || l->tensors.saved & UINT64_C(1) << l->matrix[index].result)
        return false;
    int end = dtp_lower_replay_end(l);
    if (end == l->tensors.operators && !l->plan->runtime->stops_replay)
        return false;
    for (int later = index + 1; later < l->matrices; later++)
        if (l->tensors.op[end - 1].makes & UINT64_C(1) << l->matrix[later].result)
            return false;
    return l->tensors.op[end - 1].makes & UINT64_C(1) << l->matrix[index].result;
}

/* A compiler unpacks weights once for forward and backward, where both are in its graph and backward reads them
 * (measured: LLaMA-7B on torchao's NF4, 51 GiB). */
bool dtp_adapter_stays_unpacked(const struct pass *pass, int index)
{
    const struct dtp_lowering *l = pass->l;
    bool checkpointed = dtp_lower_checkpointed(l, l->layer) && l->tensors.kept != l->tensors.saved &&
                        l->checkpointing.keeps != DTP_KEEPS_PACKED_MATMULS;
    for (int i = 0; i < l->tensors.operators; i++)
        if (l->tensors.op[i].makes & UINT64_C(1) << l->matrix[index].result && !dtp_lower_wants_gradient(l, i))
            return false;
    return pass->replay || !checkpointed;
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* s g, a tensor of its own of `bytes` for all rows; a compiler writes it beside g. */
static dtp_buffer_id scale(const struct dtp_block_backward *b, int index, dtp_buffer_id gradient, uint32_t access,
                           uint64_t bytes)
{
    struct dtp_lowering *l = b->l;
    const struct dtp_layer_matrix *matrix = &l->matrix[index];
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_RESIDUAL_BACKWARD, "scaled gradient");
    dtp_draft_use(&draft, gradient, access);
    dtp_draft_use(&draft, b->module->wide[index], DTP_FREE);
    b->module->wide[index] = DTP_NO_BUFFER;
    dtp_buffer_id scaled = dtp_backward_workspace(l, &draft, "scaled gradient",
                                                  dtp_backward_called_bytes(l, matrix->expert, bytes), DTP_WRITE);
    dtp_draft_memory(l, &draft, (l->compiled ? 1 : 2) * (double)bytes, calls_of(l, matrix));
    dtp_draft_end(l, &draft);
    return scaled;
}

/* In fp32. The sum that was cast back hands its gradient to both that were added: autograd casts it once more for the
 * frozen one, which stands for that of the result (validate_outputs of torch/csrc/autograd/engine.cpp). */
static dtp_buffer_id widen(const struct dtp_block_backward *b, int index, dtp_buffer_id gradient, uint32_t access,
                           uint32_t casts)
{
    struct dtp_lowering *l = b->l;
    const struct dtp_layer_matrix *matrix = &l->matrix[index];
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_CAST, "gradient for an adapter");
    dtp_draft_use(&draft, gradient, access);
    dtp_buffer_id wide =
        dtp_backward_workspace(l, &draft, "gradient in fp32", rows_bytes(l, matrix, matrix->out, true), DTP_WRITE);
    dtp_draft_memory(l, &draft, casts * cast_bytes(l, matrix, matrix->out), casts * calls_of(l, matrix));
    dtp_draft_end(l, &draft);
    return wide;
}

/* s g as B's products read it. */
static dtp_buffer_id scaled_gradient(const struct dtp_block_backward *b, int index, dtp_buffer_id gradient)
{
    const struct dtp_lowering *l = b->l;
    const struct dtp_layer_matrix *matrix = &l->matrix[index];
    uint64_t narrow = l->plan->adapter_ranks > 1 ? l->tensor_bytes[matrix->result] /* of a rank's tokens, maybe */
                                                 : dtp_bytes_product(rows_of(l, matrix), l->compute * matrix->out);
    if (dtp_lower_reads_wide(l, index))
        return scale(b, index, dtp_backward_narrow_for_adapter(b, index, gradient), DTP_READ | DTP_FREE, narrow);
    if (!dtp_plan_widens_adapters(l->plan))
        return scale(b, index, gradient, DTP_READ, narrow);
    if (adds_narrow(l))
        return widen(b, index, scale(b, index, gradient, DTP_READ, narrow), DTP_READ | DTP_FREE, 1);
    return scale(b, index, widen(b, index, gradient, DTP_READ, 2), DTP_READ | DTP_FREE,
                 rows_bytes(l, matrix, matrix->out, false));
}

/* B's gradient [out, rank] and low's [T, rank]. */
static dtp_buffer_id back_through_b(const struct dtp_block_backward *b, int index, dtp_buffer_id scaled)
{
    struct dtp_lowering *l = b->l;
    const struct dtp_layer_matrix *matrix = &l->matrix[index];
    int part = l->block.adapter[index];
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_MATMUL, "adapter B gradient");
    dtp_draft_use(&draft, scaled, DTP_READ);
    dtp_draft_use(&draft, b->module->low[index], DTP_READ | DTP_FREE);
    dtp_lower_gradient_result(l, &draft, part, l->plan->runtime->gradients_in_matmul ? l->compute : l->bytes.grads);
    b->module->low[index] = DTP_NO_BUFFER;
    sum_rows(l, &draft, matrix, matrix->b_rows, matrix->rank);
    dtp_draft_end(l, &draft);
    dtp_draft_begin(l, &draft, DTP_OP_MATMUL, "adapter B input gradient");
    dtp_draft_use(&draft, scaled, DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, dtp_lower_weight(l, part), DTP_READ);
    dtp_buffer_id low =
        dtp_backward_workspace(l, &draft, "gradient of x A", rows_bytes(l, matrix, matrix->rank, true), DTP_WRITE);
    multiply_rows(l, &draft, matrix, matrix->rank, matrix->b_rows);
    dtp_draft_end(l, &draft);
    return dtp_backward_sum_low(b, index, low);
}

/* Dropout's backward: the gradient by the mask, w and 1 read, w written. */
static dtp_buffer_id undrop(const struct dtp_block_backward *b, int index, dtp_buffer_id gradient)
{
    struct dtp_lowering *l = b->l;
    dtp_buffer_id *dropped = &b->module->dropped[index];
    const struct dtp_layer_matrix *matrix = &l->matrix[index];
    uint64_t elements = rows_of(l, matrix) * matrix->in, w = dtp_plan_adapter_bytes(l->plan);
    struct dtp_draft draft;
    if (dropped->index == DTP_NO_INDEX)
        return gradient;
    if (dtp_lower_recasts_adapter(l, index)) {
        dtp_backward_recast(b, index, gradient);
        return gradient;
    }
    if (dtp_lower_reads_wide(l, index))
        w = l->results;
    dtp_draft_begin(l, &draft, DTP_OP_ACTIVATION_BACKWARD, "dropout");
    dtp_draft_use(&draft, *dropped, DTP_READ | DTP_FREE);
    *dropped = DTP_NO_BUFFER;
    dtp_draft_use(&draft, gradient, DTP_UPDATE);
    dtp_draft_memory(l, &draft, (double)((2 * w + 1) * elements), calls_of(l, matrix));
    dtp_draft_end(l, &draft);
    return gradient;
}

/* A's gradient [rank, in] and, where it is wanted, what x gets through the adapter. */
static dtp_buffer_id back_through_a(const struct dtp_block_backward *b, int index, dtp_buffer_id low, bool wanted)
{
    struct dtp_lowering *l = b->l;
    const struct dtp_layer_matrix *matrix = &l->matrix[index];
    int part = l->block.adapter[index];
    dtp_buffer_id dropped = b->module->dropped[index], input = DTP_NO_BUFFER;
    bool masked =
        wanted && (l->plan->adapters.dropout > 0 || dtp_lower_recasts_adapter(l, index)); /* else it goes with A's */
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_MATMUL, "adapter A gradient");
    dtp_draft_use(&draft, low, wanted ? DTP_READ : DTP_READ | DTP_FREE);
    if (dropped.index == DTP_NO_INDEX)
        dtp_backward_consume(b, &draft, l->tensors.input[index], DTP_READ);
    else
        dtp_draft_use(&draft, dropped, masked ? DTP_READ : DTP_READ | DTP_FREE);
    const struct dtp_module_state *state = dtp_lower_state(l);
    dtp_draft_use(&draft, state->gradient[part].index != DTP_NO_INDEX ? state->gradient[part] : state->gradient_buffer,
                  DTP_UPDATE);
    sum_rows(l, &draft, matrix, matrix->a_rows, matrix->in);
    dtp_draft_end(l, &draft);
    if (!masked)
        b->module->dropped[index] = DTP_NO_BUFFER;
    if (!wanted)
        return input;
    dtp_draft_begin(l, &draft, DTP_OP_MATMUL, "adapter A input gradient");
    dtp_draft_use(&draft, low, DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, dtp_lower_weight(l, part), DTP_READ);
    input = dtp_backward_workspace(l, &draft, "input gradient", rows_bytes(l, matrix, matrix->in, true), DTP_WRITE);
    multiply_rows(l, &draft, matrix, matrix->in, matrix->a_rows);
    dtp_draft_end(l, &draft);
    input = dtp_backward_widen_input(b, index, input);
    input = undrop(b, index, dtp_backward_dropped_linear(b, index, input));
    return dtp_plan_widens_adapters(l->plan)
               ? cast_back(l, matrix, matrix->in, DTP_OWNER_WORKSPACE, "input gradient", input)
               : input;
}

/* What is read no more goes: the gradient of the result, where no matmul of the frozen weight reads it, and x. */
static void let_go(const struct dtp_block_backward *b, int index, dtp_buffer_id gradient, bool frees_input)
{
    struct dtp_lowering *l = b->l;
    struct dtp_draft draft;
    bool shared = gradient.index == l->flight->gradient.index || dtp_backward_shared(b, gradient);
    dtp_draft_begin(l, &draft, DTP_OP_FREE, "behind the first adapters");
    if (!shared)
        dtp_draft_use(&draft, gradient, DTP_FREE);
    if (frees_input)
        dtp_backward_consume(b, &draft, l->tensors.input[index], DTP_FREE);
    dtp_draft_end(l, &draft);
}

/* The kernel between an MLP's matmuls reads both terms of its gradient, the frozen matrix' and the adapter's, and
 * writes scaled gradients beside those of gate and up. */
uint64_t dtp_backward_terms_bytes(const struct dtp_lowering *l, const struct dtp_layer_activation *at)
{
    uint64_t bytes = 0;
    for (int i = 0; i < l->matrices && l->adapts && l->compiled; i++) {
        const struct dtp_layer_matrix *matrix = &l->matrix[i];
        bool made = matrix->result == at->gate || matrix->result == at->up;
        if (matrix->rank && (made || l->tensors.input[i] == at->product))
            bytes += dtp_backward_token_bytes(l, l->compute * (made ? matrix->out : matrix->in));
    }
    return bytes;
}

dtp_buffer_id dtp_backward_frozen(const struct dtp_block_backward *b, int index, dtp_buffer_id gradient,
                                  bool last_reader)
{
    struct dtp_lowering *l = b->l;
    const struct dtp_layer_matrix *matrix = &l->matrix[index];
    bool wanted = dtp_lower_wants_gradient(l, b->index);
    dtp_buffer_id made = DTP_NO_BUFFER;
    if (matrix->folded)
        return dtp_backward_folded(b, index, gradient, last_reader);
    if (matrix->rank) {
        dtp_lower_fetch(l, l->block.adapter[index]);
        dtp_buffer_id scaled = matrix->magnitudes
                                   ? dtp_backward_magnitudes(b, index, gradient, wanted)
                                   : dtp_backward_cut_scaled(b, index, scaled_gradient(b, index, gradient));
        made = back_through_a(b, index, back_through_b(b, index, scaled), wanted);
        dtp_lower_unfetch(l);
    }
    dtp_lower_fetch(l, index);
    if (b->module->base[index].index != DTP_NO_INDEX) { /* DoRA's, in whose place the sum goes on */
        dtp_buffer_id sum = dtp_backward_add_linear(b, index, gradient);
        let_go(b, index, gradient, false);
        gradient = sum;
    }
    if (wanted && l->plan->runtime->adapters_as_weights) {
        dtp_op_id beside;
        gradient = dtp_backward_gather_result(b, index, gradient, &beside);
        if (beside.index != DTP_NO_INDEX)
            l->awaited = beside;
        made = dtp_backward_sum_adapted(b, index, made,
                                        dtp_backward_input_gradient(b, index, gradient, true, last_reader));
    } else if (wanted) {
        gradient = dtp_backward_narrow(b, index, gradient);
        dtp_buffer_id through = dtp_backward_input_gradient(b, index, gradient, true, last_reader);
        through = dtp_backward_widen_input(b, index, through);
        made = dtp_backward_add(b, l->tensors.input[index], made, through);
    } else {
        let_go(b, index, gradient, last_reader);
    }
    dtp_lower_unfetch(l);
    if (matrix->rank)
        dtp_lower_gradient_made(l, l->block.adapter[index]);
    return made;
}

void dtp_backward_end_frozen(const struct dtp_block_backward *b)
{
    struct dtp_lowering *l = b->l;
    struct dtp_draft draft;
    if (!dtp_lower_cut(l))
        return;
    dtp_draft_begin(l, &draft, DTP_OP_FREE, "below the first adapter");
    for (uint64_t left = b->module->alive; left; left &= left - 1)
        dtp_draft_use(&draft, b->module->tensor[dtp_layer_first(left)], DTP_FREE);
    b->module->alive = 0;
    dtp_draft_use(&draft, l->flight->gradient, DTP_FREE);
    l->flight->gradient = DTP_NO_BUFFER;
    dtp_draft_end(l, &draft);
}
