/* Adapters beside frozen matrices: their parts of a module, their forward and backward, weights that are kept packed.
 *
 * As PyTorch's eager operators run y + s (x A^T) B^T (torchtune's LoRALinear, peft's lora.Linear; bench of the measured
 * runs): y = x W^T, low = x A^T, wide = low B^T, scaled = s wide, y + scaled. Autograd keeps x and low; for x W^T it
 * keeps W alone. Backward, the last node first: s g; B's gradient and that of low; A's gradient and one of x; then g W,
 * the other one of x. A compiler scales and adds within the kernels that read the sum or make g. */
#include "lower/block_backward.h"
#include "lower/block_forward.h"

#include "base/bytes.h"

/* ---- parts of a module ------------------------------------------------------------------------------------------- */

/* A [rank, in] and B [out, rank], each cut by rows. */
void dtp_lower_list_adapters(struct dtp_lowering *l)
{
    struct dtp_lower_module *block = &l->block;
    uint64_t ranks = l->plan->shard_group;
    for (int i = 0; i < l->matrices; i++) {
        const struct dtp_layer_matrix *matrix = &l->matrix[i];
        block->adapter[i] = 0;
        if (!matrix->rank)
            continue;
        int part = block->adapter[i] = block->parts++;
        uint64_t elements = dtp_adapter_elements(matrix);
        bool flat = dtp_plan_shard_cut(l->plan) == DTP_CUT_ELEMENTS;
        block->elements[part] = elements;
        block->largest[part] = matrix->rank * (matrix->in > matrix->out ? matrix->in : matrix->out);
        block->shard[part] =
            matrix->groups *
            (flat ? dtp_divide_up(matrix->rank * matrix->in, ranks) + dtp_divide_up(matrix->rank * matrix->out, ranks)
                  : dtp_divide_up(matrix->rank, ranks) * matrix->in + dtp_divide_up(matrix->out, ranks) * matrix->rank);
        block->tensors[part] = 2 * (uint32_t)matrix->groups;
        block->all_elements += elements;
        block->all_shard += block->shard[part];
        block->weight_name[part] = "adapter";
        block->gradient_name[part] = "adapter gradients";
    }
}

static bool is_trained(const struct dtp_lowering *l, const struct dtp_lower_module *module, int part)
{
    if (!l->adapts)
        return true;
    if (module == &l->root)
        return l->plan->adapters.train_ends && part != DTP_ROOT_VECTORS;
    return part > l->matrices;
}

static bool is_packed(const struct dtp_lowering *l, const struct dtp_lower_module *module, int part)
{
    return l->adapts && l->plan->adapters.base != DTP_BASE_NONE && module != &l->root && part < l->matrices;
}

void dtp_lower_count_bytes(const struct dtp_lowering *l, struct dtp_lower_module *module)
{
    module->all_bytes = module->all_shard_bytes = module->trained_elements = module->trained_shard = 0;
    for (int part = 0; part < module->parts; part++) {
        uint64_t elements = module->elements[part], shard = module->shard[part];
        bool adapter = module != &l->root && part > l->matrices;
        uint64_t rest = adapter ? l->bytes.grads : l->bytes.params; /* an adapter's gradients are as it is */
        uint64_t wire = adapter ? l->bytes.grads : module->matrix[part] ? l->bytes.gathered : l->bytes.compute;
        module->bytes[part] = rest * elements;
        module->shard_bytes[part] = rest * shard;
        module->wire_bytes[part] = wire * shard;
        if (is_packed(l, module, part)) {
            const struct dtp_layer_matrix *matrix = &l->matrix[part];
            enum dtp_base base = l->plan->adapters.base;
            module->bytes[part] = matrix->groups * dtp_base_bytes(base, matrix->out, matrix->in, rest);
            uint64_t rows = dtp_divide_up(shard / matrix->groups, matrix->in); /* of each expert's */
            module->shard_bytes[part] = matrix->groups * dtp_base_bytes(base, rows, matrix->in, rest);
            module->wire_bytes[part] = module->shard_bytes[part];
        }
        module->all_bytes += module->bytes[part];
        module->all_shard_bytes += module->shard_bytes[part];
        module->trained[part] = is_trained(l, module, part) && elements;
        module->trained_elements += module->trained[part] ? elements : 0;
        module->trained_shard += module->trained[part] ? shard : 0;
    }
    if (module == &l->root && l->adapts && dtp_plan_layers(l->plan)->copies_trained)
        module->all_bytes += l->bytes.params * module->trained_elements;
    if (!l->adapts) /* flat parameters pad their end only */
        module->trained_shard = module->all_shard;
}

/* ---- packed weights ---------------------------------------------------------------------------------------------- */

bool dtp_lower_packs(const struct dtp_lowering *l, int part)
{
    return l->layer != DTP_NO_LAYER && is_packed(l, &l->block, part);
}

/* One matrix; of experts one after the other. */
dtp_buffer_id dtp_lower_unpack(struct dtp_lowering *l, int index)
{
    const struct dtp_layer_matrix *matrix = &l->matrix[index];
    const struct dtp_module_state *state = dtp_lower_state(l);
    dtp_buffer_id *unpacked = &dtp_lower_flight_module(l)->unpacked[index];
    struct dtp_unpacking work = dtp_base_unpacking(l->plan, matrix->out, matrix->in);
    if (unpacked->index != DTP_NO_INDEX)
        return *unpacked;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_CAST, matrix->weight_name);
    bool gathered = state->weight[index].index != DTP_NO_INDEX;
    dtp_draft_use(&draft, gathered ? state->weight[index] : state->params, DTP_READ);
    dtp_draft_new(l, &draft, "unpacking", DTP_OWNER_WORKSPACE, work.workspace_bytes, DTP_UPDATE | DTP_FREE);
    *unpacked = dtp_draft_new(l, &draft, "unpacked weight", DTP_OWNER_WEIGHTS, l->compute * matrix->out * matrix->in,
                              DTP_WRITE);
    dtp_draft_memory(l, &draft, (double)matrix->groups * work.bytes, (uint32_t)matrix->groups * work.kernels);
    dtp_draft_end(l, &draft);
    return *unpacked;
}

uint32_t dtp_lower_unpacked_access(struct dtp_lowering *l, int matrix, bool stays)
{
    if (stays)
        return DTP_READ;
    dtp_lower_flight_module(l)->unpacked[matrix] = DTP_NO_BUFFER;
    return DTP_READ | DTP_FREE;
}

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

/* Of `width` columns; `apart`: what does not survive the pass is of one expert at a time. */
static uint64_t rows_bytes(const struct dtp_lowering *l, const struct dtp_layer_matrix *matrix, uint64_t width,
                           bool apart)
{
    uint64_t bytes = dtp_bytes_product(rows_of(l, matrix), l->compute * width);
    return dtp_backward_called_bytes(l, matrix->expert && apart, bytes);
}

/* The rows times [in, out], of experts a product of each. */
static void multiply_rows(const struct dtp_lowering *l, struct dtp_draft *draft, const struct dtp_layer_matrix *matrix,
                          uint64_t out, uint64_t in)
{
    dtp_draft_matmul(l, draft, rows_of(l, matrix), out, in, false);
    if (matrix->expert)
        call_each(draft, matrix, &draft->op.demand.m);
}

/* A sum over the rows, [out, in]. */
static void sum_rows(const struct dtp_lowering *l, struct dtp_draft *draft, const struct dtp_layer_matrix *matrix,
                     uint64_t out, uint64_t in)
{
    dtp_draft_matmul(l, draft, out, in, rows_of(l, matrix), false);
    if (matrix->expert)
        call_each(draft, matrix, &draft->op.demand.k);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

void dtp_lower_clear_adapters(struct dtp_flight_module *module)
{
    for (int i = 0; i < DTP_LAYER_MATRICES; i++)
        module->low[i] = module->dropped[i] = module->unpacked[i] = module->wide[i] = DTP_NO_BUFFER;
}

/* Its input, which its backward reads, stays: what the block keeps is decided before (layer_tensors.c). Where attention
 * alone is replayed linears are outside of it, and what they keep is not made again. */
static bool keeps(const struct pass *pass)
{
    return pass->replay || pass->save == dtp_lower_saved(pass->l) || !pass->l->checkpointing.calls_modules;
}

/* A result of its own, and a mask of a byte each: read c, written c + 1; kept both. */
static dtp_buffer_id drop_out(const struct pass *pass, int index)
{
    struct dtp_lowering *l = pass->l;
    const struct dtp_layer_matrix *matrix = &l->matrix[index];
    uint64_t elements = rows_of(l, matrix) * matrix->in;
    struct dtp_draft draft;
    if (l->plan->adapters.dropout <= 0)
        return DTP_NO_BUFFER;
    dtp_draft_begin(l, &draft, DTP_OP_ACTIVATION, "dropout");
    read(pass, &draft, l->tensors.input[index], dtp_layer_tensors_last_reader(&l->tensors, index));
    dtp_buffer_id made = dtp_draft_new(
        l, &draft, "input of an adapter and its mask", DTP_OWNER_ACTIVATIONS,
        dtp_backward_called_bytes(l, matrix->expert && !keeps(pass), (l->compute + 1) * elements), DTP_WRITE);
    dtp_draft_memory(l, &draft, (double)((2 * l->compute + 1) * elements), calls_of(l, matrix));
    dtp_draft_end(l, &draft);
    return made;
}

/* low = x A^T; A is cast first where it is kept wider. */
static void make_low(const struct pass *pass, int index)
{
    struct dtp_lowering *l = pass->l;
    const struct dtp_layer_matrix *matrix = &l->matrix[index];
    struct dtp_flight_module *module = pass->module;
    module->dropped[index] = drop_out(pass, index);
    bool apart = module->dropped[index].index != DTP_NO_INDEX;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_MATMUL, "adapter A");
    if (apart)
        dtp_draft_use(&draft, module->dropped[index], DTP_READ);
    else
        read(pass, &draft, l->tensors.input[index], dtp_layer_tensors_last_reader(&l->tensors, index));
    dtp_draft_use(&draft, dtp_lower_weight(l, l->block.adapter[index]), DTP_READ);
    module->low[index] = dtp_draft_new(l, &draft, "x A", DTP_OWNER_ACTIVATIONS,
                                       rows_bytes(l, matrix, matrix->rank, !keeps(pass)), DTP_WRITE);
    if (apart && !keeps(pass)) {
        dtp_draft_use(&draft, module->dropped[index], DTP_FREE);
        module->dropped[index] = DTP_NO_BUFFER;
    }
    multiply_rows(l, &draft, matrix, matrix->rank, matrix->in);
    dtp_draft_end(l, &draft);
}

/* In one graph with its backward a compiled replay forms the sum of y and s wide where backward's kernels read it, and
 * both stand until then. */
static bool adds_later(const struct pass *pass, const struct dtp_layer_matrix *matrix)
{
    const uint64_t late = DTP_TENSOR_BIT(GATE) | DTP_TENSOR_BIT(UP) | DTP_TENSOR_BIT(MIDDLE);
    return pass->l->compiled && pass->replay && pass->save & late & UINT64_C(1) << matrix->result;
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
    if (l->fused) {
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
    if (alone) {
        dtp_lower_unfetch(l);
        return;
    }
    dtp_draft_begin(l, &draft, DTP_OP_MATMUL, "adapter B");
    dtp_draft_use(&draft, module->low[index], keeps(pass) ? DTP_READ : DTP_READ | DTP_FREE);
    if (!keeps(pass))
        module->low[index] = DTP_NO_BUFFER;
    dtp_draft_use(&draft, dtp_lower_weight(l, l->block.adapter[index]), DTP_READ);
    dtp_buffer_id wide =
        dtp_draft_new(l, &draft, "adapter result", DTP_OWNER_WORKSPACE,
                      dtp_backward_called_bytes(l, matrix->expert, l->tensor_bytes[matrix->result]), DTP_WRITE);
    multiply_rows(l, &draft, matrix, matrix->out, matrix->rank);
    dtp_draft_end(l, &draft);
    dtp_lower_unfetch(l);
    add_to_result(pass, index, wide);
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
    bool checkpointed = dtp_lower_checkpointed(l, l->layer) && l->tensors.kept != l->tensors.saved;
    for (int i = 0; i < l->tensors.operators; i++)
        if (l->tensors.op[i].makes & UINT64_C(1) << l->matrix[index].result && !dtp_lower_wants_gradient(l, i))
            return false;
    return pass->replay || !checkpointed;
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* s g, a tensor of its own; a compiler writes it beside g. */
static dtp_buffer_id scale(const struct dtp_block_backward *b, int index, dtp_buffer_id gradient)
{
    struct dtp_lowering *l = b->l;
    const struct dtp_layer_matrix *matrix = &l->matrix[index];
    double bytes = (double)rows_bytes(l, matrix, matrix->out, false);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_RESIDUAL_BACKWARD, "scaled gradient");
    dtp_draft_use(&draft, gradient, DTP_READ);
    dtp_draft_use(&draft, b->module->wide[index], DTP_FREE);
    b->module->wide[index] = DTP_NO_BUFFER;
    dtp_buffer_id scaled =
        dtp_backward_workspace(l, &draft, "scaled gradient", rows_bytes(l, matrix, matrix->out, true), DTP_WRITE);
    dtp_draft_memory(l, &draft, (l->fused ? 1 : 2) * bytes, calls_of(l, matrix));
    dtp_draft_end(l, &draft);
    return scaled;
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
    dtp_lower_gradient_result(l, &draft, part, l->bytes.grads);
    b->module->low[index] = DTP_NO_BUFFER;
    sum_rows(l, &draft, matrix, matrix->out, matrix->rank);
    dtp_draft_end(l, &draft);
    dtp_draft_begin(l, &draft, DTP_OP_MATMUL, "adapter B input gradient");
    dtp_draft_use(&draft, scaled, DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, dtp_lower_weight(l, part), DTP_READ);
    dtp_buffer_id low =
        dtp_backward_workspace(l, &draft, "gradient of x A", rows_bytes(l, matrix, matrix->rank, true), DTP_WRITE);
    multiply_rows(l, &draft, matrix, matrix->rank, matrix->out);
    dtp_draft_end(l, &draft);
    return low;
}

/* Dropout's backward: the gradient by the mask, c and 1 read, c written. */
static dtp_buffer_id undrop(const struct dtp_block_backward *b, int index, dtp_buffer_id gradient)
{
    struct dtp_lowering *l = b->l;
    dtp_buffer_id *dropped = &b->module->dropped[index];
    const struct dtp_layer_matrix *matrix = &l->matrix[index];
    uint64_t elements = rows_of(l, matrix) * matrix->in;
    struct dtp_draft draft;
    if (dropped->index == DTP_NO_INDEX)
        return gradient;
    dtp_draft_begin(l, &draft, DTP_OP_ACTIVATION_BACKWARD, "dropout");
    dtp_draft_use(&draft, *dropped, DTP_READ | DTP_FREE);
    *dropped = DTP_NO_BUFFER;
    dtp_draft_use(&draft, gradient, DTP_UPDATE);
    dtp_draft_memory(l, &draft, (double)((2 * l->compute + 1) * elements), calls_of(l, matrix));
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
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_MATMUL, "adapter A gradient");
    dtp_draft_use(&draft, low, wanted ? DTP_READ : DTP_READ | DTP_FREE);
    if (dropped.index == DTP_NO_INDEX)
        dtp_backward_consume(b, &draft, l->tensors.input[index], DTP_READ);
    else
        dtp_draft_use(&draft, dropped, wanted ? DTP_READ : DTP_READ | DTP_FREE);
    const struct dtp_module_state *state = dtp_lower_state(l);
    dtp_draft_use(&draft, state->gradient[part].index != DTP_NO_INDEX ? state->gradient[part] : state->gradient_buffer,
                  DTP_UPDATE);
    sum_rows(l, &draft, matrix, matrix->rank, matrix->in);
    dtp_draft_end(l, &draft);
    if (!wanted) {
        b->module->dropped[index] = DTP_NO_BUFFER;
        return input;
    }
    dtp_draft_begin(l, &draft, DTP_OP_MATMUL, "adapter A input gradient");
    dtp_draft_use(&draft, low, DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, dtp_lower_weight(l, part), DTP_READ);
    input = dtp_backward_workspace(l, &draft, "input gradient", rows_bytes(l, matrix, matrix->in, true), DTP_WRITE);
    multiply_rows(l, &draft, matrix, matrix->in, matrix->rank);
    dtp_draft_end(l, &draft);
    return undrop(b, index, input);
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
    for (int i = 0; i < l->matrices && l->adapts; i++) {
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
    if (matrix->rank) {
        dtp_lower_fetch(l, l->block.adapter[index]);
        dtp_buffer_id scaled = scale(b, index, gradient);
        made = back_through_a(b, index, back_through_b(b, index, scaled), wanted);
        dtp_lower_unfetch(l);
    }
    dtp_lower_fetch(l, index);
    if (wanted) {
        dtp_buffer_id through = dtp_backward_input_gradient(b, index, gradient, true, last_reader);
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
