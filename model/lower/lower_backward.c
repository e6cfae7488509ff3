/* Backward of a block, in the order in which allocation traces of PyTorch 2.11 show it.
 *
 *   down    weight gradient, input gradient [c f T]
 *   MLP     gradients of silu(gate) and up beside everything saved: the block's worst instant
 *   up      weight gradient, input gradient; norm 2; the residual gradient is added to in place
 *   output  weight gradient, input gradient; attention core; RoPE; the gradient of qkv as one
 *   qkv     weight gradient, input gradient; norm 1
 * Saved tensors go as soon as the last step that reads them has been issued. */
#include "lower/lowering.h"

#include "base/bytes.h"

/* The walk over the operators from the last. A tensor's gradient stands from the last operator that reads the tensor
 * to the one that makes it; that of the residual stream is one buffer, l->flight->gradient, for all of its sums. */
struct backward {
    struct dtp_lowering *l;
    struct dtp_flight_module *module;
    int index; /* of the operator at hand */
    dtp_buffer_id gradient[DTP_TENSOR_COUNT];
};

static const struct dtp_layer_operator *operator_at(const struct backward *b)
{
    return &b->l->tensors.op[b->index];
}

/* Backward of an operator that is still to come reads the saved tensor too. */
static bool needed_later(const struct backward *b, enum dtp_layer_tensor tensor)
{
    return dtp_layer_tensors_needed_before(&b->l->tensors, b->index, tensor);
}

static double per_token(const struct dtp_lowering *l, double bytes)
{
    return bytes * (double)l->tokens;
}

static uint64_t token_bytes(const struct dtp_lowering *l, uint64_t bytes)
{
    return dtp_bytes_product(l->tokens, bytes);
}

/* The last reader of a saved tensor frees it. */
static void consume(const struct backward *b, struct dtp_draft *draft, enum dtp_layer_tensor tensor, uint32_t access)
{
    if (!(b->module->alive & UINT64_C(1) << tensor))
        return;
    dtp_draft_use(draft, b->module->tensor[tensor], access);
    if (access & DTP_FREE) {
        b->module->alive &= ~(UINT64_C(1) << tensor);
        b->module->tensor[tensor] = DTP_NO_BUFFER;
    }
}

static dtp_buffer_id workspace(struct dtp_lowering *l, struct dtp_draft *draft, const char *name, uint64_t bytes,
                               uint32_t access)
{
    return dtp_draft_new(l, draft, name, DTP_OWNER_WORKSPACE, bytes, access);
}

/* ---- linears ----------------------------------------------------------------------------------------------------- */

/* The residual gradient, or what was cast of it, is that of several branches: the last of them lets it go. */
static bool shared(const struct backward *b, dtp_buffer_id gradient)
{
    for (int tensor = 0; tensor < DTP_TENSOR_COUNT; tensor++)
        if (b->gradient[tensor].index == gradient.index)
            return true;
    return false;
}

/* The last of the two matmuls that read a result's gradient. */
static void use_result_gradient(const struct backward *b, struct dtp_draft *draft, dtp_buffer_id gradient, bool last)
{
    bool stays = !last || gradient.index == b->l->flight->gradient.index || shared(b, gradient);
    dtp_draft_use(draft, gradient, stays ? DTP_READ : DTP_READ | DTP_FREE);
}

/* `last`: it is the last matmul of this linear, and what it reads goes. `frees_input`: so does the saved input. */
static void weight_gradient(const struct backward *b, int index, dtp_buffer_id output_gradient, bool last,
                            bool frees_input)
{
    struct dtp_lowering *l = b->l;
    const struct dtp_layer_matrix *matrix = &l->matrix[index];
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_MATMUL, matrix->gradient_name);
    use_result_gradient(b, &draft, output_gradient, last);
    if (l->gathered.index == DTP_NO_INDEX)
        consume(b, &draft, l->tensors.input[index], frees_input ? DTP_READ | DTP_FREE : DTP_READ);
    else if (frees_input)
        consume(b, &draft, l->tensors.input[index], DTP_FREE);
    dtp_draft_use(&draft, l->gathered, DTP_READ | DTP_FREE);
    l->gathered = DTP_NO_BUFFER;
    dtp_lower_gradient_result(l, &draft, index, l->compute);
    dtp_draft_matmul(l, &draft, matrix->out, matrix->in, l->tokens, false);
    dtp_draft_end(l, &draft);
}

static dtp_buffer_id input_gradient(const struct backward *b, int index, dtp_buffer_id output_gradient, bool last,
                                    bool frees_input)
{
    struct dtp_lowering *l = b->l;
    const struct dtp_layer_matrix *matrix = &l->matrix[index];
    dtp_buffer_id weight = dtp_lower_weight(l, index);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_MATMUL, "input gradient");
    draft.op.name = matrix->name;
    dtp_draft_use(&draft, weight, l->autocast ? DTP_READ | DTP_FREE : DTP_READ);
    bool of_stream = matrix->id != DTP_MATRIX_OUTPUT && matrix->id != DTP_MATRIX_DOWN;
    uint64_t width = of_stream && l->tp == 1 ? l->between : matrix->in; /* of tensor parallel ranks: whole terms */
    dtp_buffer_id gradient = workspace(l, &draft, "input gradient", token_bytes(l, l->compute * width), DTP_WRITE);
    use_result_gradient(b, &draft, output_gradient, last);
    if (frees_input)
        consume(b, &draft, l->tensors.input[index], DTP_FREE);
    if (l->autocast)
        dtp_lower_state(l)->weight[index] = DTP_NO_BUFFER;
    dtp_draft_matmul(l, &draft, l->tokens, matrix->in, matrix->out, false);
    dtp_draft_end(l, &draft);
    return gradient;
}

/* fp8: output gradient, and input and weight again where their casts are not kept. */
static void quantize(struct dtp_lowering *l, const struct dtp_layer_matrix *matrix)
{
    if (l->plan->precision.compute != DTP_FP8)
        return;
    double tokens = (double)l->tokens, out = (double)matrix->out, in = (double)matrix->in;
    bool torchao = !l->keeps_fp8 && !l->plan->fsdp1;
    double inputs = l->keeps_fp8 ? 0 : (torchao ? 5 : 2) * (tokens * in + out * in);
    double bytes = inputs + (torchao ? 5 : 4) * tokens * out;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_QUANTIZE, matrix->name);
    dtp_draft_memory(l, &draft, bytes, 6);
    dtp_draft_end(l, &draft);
}

static void bias_gradient(struct dtp_lowering *l, const struct dtp_layer_matrix *matrix, dtp_buffer_id output_gradient)
{
    if (!matrix->bias)
        return;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_BIAS_BACKWARD, matrix->name);
    dtp_draft_use(&draft, output_gradient, DTP_READ);
    dtp_draft_memory(l, &draft, per_token(l, (double)(matrix->out * l->compute)), 1);
    dtp_draft_end(l, &draft);
}

/* All rows of what a matmul read in forward, where it was not kept; compute does not wait for it yet. */
static dtp_op_id gather_again(const struct backward *b, int index)
{
    struct dtp_lowering *l = b->l;
    enum dtp_layer_tensor input = l->tensors.input[index];
    if (!dtp_lower_spreads(l) || !l->plan->runtime->gathers_again)
        return DTP_NO_OP;
    uint64_t whole = dtp_lower_whole_stream(l, l->tensor_bytes[input] / (l->tokens * l->between));
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ALL_GATHER, dtp_layer_tensor_text(input));
    consume(b, &draft, input, DTP_READ);
    l->gathered = workspace(l, &draft, "gathered rows", whole, DTP_WRITE);
    return dtp_lower_tensor_end(l, &draft, whole, false);
}

/* Of tensor parallel ranks, a matrix cut by columns: its input is gathered beside the input gradient's matmul, whose
 * terms are summed beside the weight gradient's (Megatron's LinearWithGradAccumulationAndAsyncCommunication). */
static dtp_buffer_id gradients_beside(const struct backward *b, int index, dtp_buffer_id output_gradient,
                                      bool last_reader)
{
    struct dtp_lowering *l = b->l;
    dtp_op_id gathered = gather_again(b, index);
    dtp_buffer_id terms = input_gradient(b, index, output_gradient, false, false);
    dtp_buffer_id sum = dtp_lower_sum_of_stream(l, l->matrix[index].name, terms, DTP_READ);
    struct dtp_draft draft;
    dtp_op_id summed = l->awaited;
    l->awaited = gathered;
    weight_gradient(b, index, output_gradient, true, last_reader);
    l->awaited = summed;
    if (sum.index != terms.index) {
        dtp_draft_begin(l, &draft, DTP_OP_FREE, "terms of a sum");
        dtp_draft_use(&draft, terms, DTP_FREE);
        dtp_draft_end(l, &draft);
    }
    return sum;
}

/* Of a matrix cut by rows, whose result's rows are each rank's: all of the gradient, which goes with its last matmul.
 */
static dtp_buffer_id gather_result_gradient(const struct backward *b, int index, dtp_buffer_id gradient,
                                            dtp_op_id *beside)
{
    struct dtp_lowering *l = b->l;
    struct dtp_draft draft;
    *beside = DTP_NO_OP;
    if (!dtp_lower_spreads(l) || !dtp_lower_cut_by_rows(l, index))
        return gradient;
    dtp_draft_begin(l, &draft, DTP_OP_ALL_GATHER, l->matrix[index].name);
    use_result_gradient(b, &draft, gradient, true);
    return dtp_lower_gather_rows(l, &draft, DTP_OWNER_WORKSPACE, l->compute, beside);
}

/* One linear: gradients of its weight, bias and input. A compiler drops the input with the weight gradient, eager
 * autograd with the node, after the input gradient. */
static dtp_buffer_id linear(const struct backward *b, int index, dtp_buffer_id output_gradient, bool last_reader)
{
    struct dtp_lowering *l = b->l;
    dtp_buffer_id gradient;
    dtp_lower_fetch(l, index);
    quantize(l, &l->matrix[index]);
    bias_gradient(l, &l->matrix[index], output_gradient);
    if (dtp_lower_cut_by_columns(l, index) && l->plan->runtime->sums_beside) {
        gradient = gradients_beside(b, index, output_gradient, last_reader);
    } else {
        dtp_op_id beside;
        output_gradient = gather_result_gradient(b, index, output_gradient, &beside);
        weight_gradient(b, index, output_gradient, false, last_reader && l->compiled);
        if (beside.index != DTP_NO_INDEX)
            l->awaited = beside;
        gradient = input_gradient(b, index, output_gradient, true, last_reader && !l->compiled);
    }
    dtp_lower_unfetch(l);
    dtp_lower_gradient_made(l, index);
    return gradient;
}

/* Linears that read one tensor: the second and third gradients are added to the first (three passes of c h). */
static dtp_buffer_id add_gradients(const struct backward *b, dtp_buffer_id sum, dtp_buffer_id gradient)
{
    struct dtp_lowering *l = b->l;
    if (sum.index == DTP_NO_INDEX)
        return gradient;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_RESIDUAL_BACKWARD, "sum of input gradients");
    dtp_draft_use(&draft, sum, DTP_UPDATE);
    dtp_draft_use(&draft, gradient, DTP_READ | DTP_FREE);
    dtp_draft_memory(l, &draft, l->fused ? 0 : per_token(l, (double)(3 * l->compute * l->transformer->hidden)), 1);
    dtp_draft_end(l, &draft);
    return sum;
}

/* Linears that read one tensor, in forward's order. */
static void projection(struct backward *b)
{
    struct dtp_lowering *l = b->l;
    const struct dtp_layer_operator *op = operator_at(b);
    enum dtp_layer_tensor input = dtp_layer_first(op->reads);
    uint64_t left = op->makes;
    bool later = needed_later(b, input);
    for (int i = 0; i < l->matrices; i++) {
        if (!(op->makes & UINT64_C(1) << l->matrix[i].result))
            continue;
        left &= ~(UINT64_C(1) << l->matrix[i].result);
        dtp_buffer_id of_result = b->gradient[l->matrix[i].result];
        b->gradient[l->matrix[i].result] = DTP_NO_BUFFER;
        dtp_buffer_id made = linear(b, i, of_result, !left && !later);
        b->gradient[input] = add_gradients(b, b->gradient[input], made);
        if (!left && dtp_lower_cut_by_columns(l, i) && !l->plan->runtime->sums_beside)
            b->gradient[input] = dtp_lower_sum_of_stream(l, op->name, b->gradient[input], DTP_READ | DTP_FREE);
    }
}

/* ---- norms and the residual stream ------------------------------------------------------------------------------- */

/* A sum's backward: each branch gets the residual gradient, cast for its matmul where the stream is fp32. */
static void branch(struct backward *b)
{
    struct dtp_lowering *l = b->l;
    dtp_buffer_id gradient = l->flight->gradient;
    if (l->residual != l->compute && !l->tensors.kind.norms_after) { /* a norm's backward reads it as it is */
        double h = (double)l->between, c = (double)l->compute;
        struct dtp_draft draft;
        dtp_draft_begin(l, &draft, DTP_OP_CAST, "residual gradient");
        dtp_draft_use(&draft, l->flight->gradient, DTP_READ);
        gradient = workspace(l, &draft, "residual gradient in compute dtype", token_bytes(l, l->compute * l->between),
                             DTP_WRITE);
        dtp_draft_memory(l, &draft, l->fused ? 0 : per_token(l, (4 + c) * h), 1);
        dtp_draft_end(l, &draft);
    }
    for (uint64_t left = dtp_layer_branches(operator_at(b)); left; left &= left - 1)
        b->gradient[dtp_layer_first(left)] = gradient;
}

static dtp_buffer_id widen(const struct backward *b, dtp_buffer_id gradient)
{
    struct dtp_lowering *l = b->l;
    if (l->residual == l->compute || l->fused)
        return gradient;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_CAST, "norm gradient");
    dtp_buffer_id wide = workspace(l, &draft, "norm gradient in fp32", l->tensor_bytes[DTP_TENSOR_INPUT], DTP_WRITE);
    dtp_draft_use(&draft, gradient, DTP_READ | DTP_FREE);
    dtp_draft_memory(l, &draft, per_token(l, (double)((4 + l->compute) * l->between)), 1);
    dtp_draft_end(l, &draft);
    return wide;
}

/* What a norm's backward reads of its input: the tensor, or the terms of a sum that was not kept; the branch's result
 * goes, where selective checkpointing kept it. */
static void consume_input(const struct backward *b, struct dtp_draft *draft, enum dtp_layer_tensor input)
{
    const struct dtp_lowering *l = b->l;
    const struct dtp_layer_operator *sum = dtp_layer_tensors_sum(&l->tensors, input);
    if (l->tensor_bytes[input] || !sum)
        consume(b, draft, input, needed_later(b, input) ? DTP_READ : DTP_READ | DTP_FREE);
    for (uint64_t left = sum ? sum->reads : 0; left; left &= left - 1) {
        bool stream = DTP_LAYER_STREAM & left & -left;
        const struct dtp_layer_operator *fused = dtp_layer_tensors_fused_norm(&l->tensors, dtp_layer_first(left));
        if (fused && !l->tensor_bytes[input]) /* normed again, of what its own backward reads later */
            consume(b, draft, dtp_layer_first(fused->reads), DTP_READ);
        else if (!stream)
            consume(b, draft, dtp_layer_first(left), DTP_READ | DTP_FREE);
        else if (!l->tensor_bytes[input])
            consume(b, draft, dtp_layer_first(left), DTP_READ);
    }
}

/* eager: input gradient 3 e h, weight gradient 2 e h, then the sum 3 e h; fused: c h and 3 e h. */
static void norm_before(struct backward *b)
{
    struct dtp_lowering *l = b->l;
    const struct dtp_layer_operator *op = operator_at(b);
    double h = (double)l->between, e = (double)l->residual, c = (double)l->compute;
    dtp_buffer_id gradient = widen(b, b->gradient[dtp_layer_first(op->makes)]);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_NORM_BACKWARD, op->name);
    workspace(l, &draft, "norm input gradient", l->tensor_bytes[DTP_TENSOR_INPUT], DTP_UPDATE | DTP_FREE);
    dtp_draft_use(&draft, gradient, DTP_READ | DTP_FREE);
    consume_input(b, &draft, dtp_layer_first(op->reads));
    consume(b, &draft, dtp_layer_first(op->statistics), DTP_READ | DTP_FREE);
    if (shared(b, l->flight->gradient)) { /* another branch still reads it: the sum is a new tensor */
        dtp_draft_use(&draft, l->flight->gradient, DTP_READ);
        l->flight->gradient = workspace(l, &draft, "residual gradient", l->tensor_bytes[DTP_TENSOR_INPUT], DTP_WRITE);
    } else {
        dtp_draft_use(&draft, l->flight->gradient, DTP_UPDATE);
    }
    double eager = l->plan->runtime->fused_norms ? 6 : 8;
    dtp_draft_memory(l, &draft, per_token(l, l->fused ? (c + 3 * e) * h : eager * e * h), l->fused ? 2 : 3);
    if (l->plan->runtime->fused_norms)
        draft.op.demand.memory_kernel = DTP_KERNEL_FUSED;
    dtp_draft_end(l, &draft);
}

/* Of a branch's result, eager: input gradient 3 e h, weight gradient 2 e h, and a cast back; fused: one pass. */
static void norm_after(struct backward *b)
{
    struct dtp_lowering *l = b->l;
    const struct dtp_layer_operator *op = operator_at(b);
    enum dtp_layer_tensor input = dtp_layer_first(op->reads), result = dtp_layer_first(op->makes);
    enum dtp_layer_tensor wide = dtp_layer_first(dtp_layer_wide_of(input));
    double h = (double)l->between, e = (double)l->residual, c = (double)l->compute;
    bool casts = l->tensor_bytes[wide];
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_NORM_BACKWARD, op->name);
    dtp_draft_use(&draft, b->gradient[result], DTP_READ);
    b->gradient[result] = DTP_NO_BUFFER;
    workspace(l, &draft, "norm input gradient", casts ? l->tensor_bytes[wide] : 0, DTP_UPDATE | DTP_FREE);
    b->gradient[input] = workspace(l, &draft, "branch gradient", token_bytes(l, l->compute * l->between), DTP_WRITE);
    consume(b, &draft, wide, DTP_READ | DTP_FREE);
    consume(b, &draft, input, DTP_READ | DTP_FREE);
    consume(b, &draft, dtp_layer_first(op->statistics), DTP_READ | DTP_FREE);
    double bytes = l->fused ? (e + 2 * c) * h : 5 * e * h + (casts ? (4 + c) * h : 0);
    dtp_draft_memory(l, &draft, per_token(l, bytes), l->fused || !casts ? 2 : 3);
    dtp_draft_end(l, &draft);
}

static void norm(struct backward *b)
{
    if (operator_at(b)->reads & DTP_LAYER_STREAM)
        norm_before(b);
    else
        norm_after(b);
}

/* What a matmul, or the cast before it, hands to the residual stream without a norm between. */
static void add_to_stream(struct backward *b, enum dtp_layer_tensor of)
{
    struct dtp_lowering *l = b->l;
    dtp_buffer_id gradient = widen(b, b->gradient[of]);
    b->gradient[of] = DTP_NO_BUFFER;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_RESIDUAL_BACKWARD, "residual gradient");
    dtp_draft_use(&draft, l->flight->gradient, DTP_UPDATE);
    dtp_draft_use(&draft, gradient, DTP_READ | DTP_FREE);
    double read = (double)(l->fused ? l->compute : l->residual);
    dtp_draft_memory(l, &draft, per_token(l, (2 * (double)l->residual + read) * (double)l->between), 1);
    dtp_draft_end(l, &draft);
}

/* ---- MLP --------------------------------------------------------------------------------------------------------- */

/* Of the product, which itself may be kept in fp8. */
static uint64_t gradient_bytes(const struct dtp_lowering *l)
{
    return token_bytes(l, l->compute * l->transformer->ffn);
}

/* eager SwiGLU, first step: d silu and d up from the product's gradient (2 reads and 1 write each: 6 f). */
static dtp_buffer_id product(const struct backward *b, dtp_buffer_id gradient, dtp_buffer_id *silu_gradient)
{
    struct dtp_lowering *l = b->l;
    uint64_t f = gradient_bytes(l);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ACTIVATION_BACKWARD, "product");
    *silu_gradient = workspace(l, &draft, "silu gradient", f, DTP_WRITE);
    dtp_buffer_id up_gradient = workspace(l, &draft, "up gradient", f, DTP_WRITE);
    dtp_draft_use(&draft, gradient, DTP_READ | DTP_FREE);
    consume(b, &draft, DTP_TENSOR_SILU, DTP_READ | DTP_FREE);
    bool apart = l->tensor_bytes[DTP_TENSOR_GATE];
    consume(b, &draft, DTP_TENSOR_UP, apart ? DTP_READ | DTP_FREE : DTP_READ);
    dtp_draft_memory(l, &draft, 6 * (double)l->tensor_bytes[DTP_TENSOR_PRODUCT], 2);
    dtp_draft_end(l, &draft);
    return up_gradient;
}

/* Second step: silu's gradient (3 f) and, where gate and up are one buffer, the cat (4 f). */
static void gated_eager(struct backward *b, dtp_buffer_id gradient)
{
    struct dtp_lowering *l = b->l;
    uint64_t f = gradient_bytes(l);
    bool apart = l->tensor_bytes[DTP_TENSOR_GATE];
    dtp_buffer_id silu_gradient, up_gradient = product(b, gradient, &silu_gradient);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ACTIVATION_BACKWARD, "silu");
    dtp_buffer_id made =
        workspace(l, &draft, apart ? "gate gradient" : "gate and up gradient", apart ? f : 2 * f, DTP_WRITE);
    dtp_draft_use(&draft, silu_gradient, DTP_READ | DTP_FREE);
    consume(b, &draft, apart ? DTP_TENSOR_GATE : DTP_TENSOR_UP, DTP_READ | DTP_FREE);
    if (!apart)
        dtp_draft_use(&draft, up_gradient, DTP_READ | DTP_FREE);
    dtp_draft_memory(l, &draft, (apart ? 3 : 7) * (double)l->tensor_bytes[DTP_TENSOR_PRODUCT], apart ? 1 : 2);
    dtp_draft_end(l, &draft);
    b->gradient[DTP_TENSOR_GATE] = apart ? made : DTP_NO_BUFFER;
    b->gradient[DTP_TENSOR_UP] = apart ? up_gradient : made;
}

/* Everything else is one kernel: compiled SwiGLU (6 f), GELU and ReLU (eager 3 f, fused 4 f). A compiler writes GELU's
 * input gradient over its result's. */
static void in_one(struct backward *b, dtp_buffer_id gradient)
{
    struct dtp_lowering *l = b->l;
    double f = (double)l->tensor_bytes[DTP_TENSOR_PRODUCT];
    uint64_t gate = l->tensor_bytes[DTP_TENSOR_GATE], up = l->tensor_bytes[DTP_TENSOR_UP];
    bool in_place = l->compiled && !l->gated;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ACTIVATION_BACKWARD, "");
    b->gradient[DTP_TENSOR_UP] = gradient;
    if (in_place) {
        dtp_draft_use(&draft, gradient, DTP_UPDATE);
    } else {
        b->gradient[DTP_TENSOR_GATE] = workspace(l, &draft, "gate gradient", gate, DTP_WRITE);
        b->gradient[DTP_TENSOR_UP] = workspace(l, &draft, "up gradient", up, DTP_WRITE);
        dtp_draft_use(&draft, gradient, DTP_READ | DTP_FREE);
    }
    consume(b, &draft, DTP_TENSOR_GATE, DTP_READ | DTP_FREE);
    consume(b, &draft, DTP_TENSOR_UP, DTP_READ | DTP_FREE);
    consume(b, &draft, DTP_TENSOR_PRODUCT, DTP_READ | DTP_FREE); /* ReLU reads its result */
    dtp_draft_memory(l, &draft, (l->gated ? 6 : l->fused ? 4 : 3) * f, 1);
    dtp_draft_end(l, &draft);
}

static void activation(struct backward *b)
{
    dtp_buffer_id gradient = b->gradient[DTP_TENSOR_PRODUCT];
    b->gradient[DTP_TENSOR_PRODUCT] = DTP_NO_BUFFER;
    if (b->l->gated && !b->l->compiled)
        gated_eager(b, gradient);
    else
        in_one(b, gradient);
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

/* Flash kernels form QK^T again (5 matmuls for 2: 2.5 times the forward) and sum dq in fp32 (4 d_q); math attention has
 * gradients of probabilities and scores. */
static void core(struct backward *b)
{
    struct dtp_lowering *l = b->l;
    bool math = l->plan->attention == DTP_ATTENTION_MATH;
    double s = dtp_transformer_layer_attention_length(l->transformer, dtp_lower_model_layer(l), l->plan->sequence);
    uint64_t q = token_bytes(l, l->compute * l->d_q), kv = token_bytes(l, l->compute * l->d_kv);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ATTENTION_BACKWARD, "");
    b->gradient[DTP_TENSOR_Q_RAW] = workspace(l, &draft, "q gradient", q, DTP_WRITE);
    b->gradient[DTP_TENSOR_K_RAW] = workspace(l, &draft, "k gradient", kv, DTP_WRITE);
    b->gradient[DTP_TENSOR_V] = workspace(l, &draft, "v gradient", kv, DTP_WRITE);
    workspace(l, &draft, "attention workspace", math ? 2 * l->scores_bytes : token_bytes(l, 4 * l->d_q),
              DTP_UPDATE | DTP_FREE);
    /* a compiler reads the result's heads-side-by-side form and lays the gradient out by heads */
    enum dtp_layer_tensor result = l->tensor_bytes[DTP_TENSOR_CORE_COPY] ? DTP_TENSOR_CORE_COPY : DTP_TENSOR_CORE;
    dtp_draft_use(&draft, b->gradient[result], DTP_READ | DTP_FREE);
    static const enum dtp_layer_tensor inputs[] = {DTP_TENSOR_Q,   DTP_TENSOR_K,          DTP_TENSOR_V,
                                                   DTP_TENSOR_QKV, DTP_TENSOR_CORE_STATE, DTP_TENSOR_CORE};
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
        bool normed_later = inputs[i] == DTP_TENSOR_QKV && l->transformer->qk_norm;
        consume(b, &draft, inputs[i], normed_later ? DTP_READ : DTP_READ | DTP_FREE);
    }
    if (!l->transformer->qk_norm) {
        consume(b, &draft, DTP_TENSOR_Q_RAW, DTP_READ | DTP_FREE);
        consume(b, &draft, DTP_TENSOR_K_RAW, DTP_READ | DTP_FREE);
    }
    draft.op.demand.flops = per_token(l, (math ? 4 : 5) * s * (double)l->d_q);
    draft.op.demand.tokens = (double)l->tokens;
    draft.op.demand.kernels = 3;
    dtp_draft_end(l, &draft);
}

/* RoPE's (and q and k norms') backward in place of dq and dk; eager chains hold up to 5 times one of them beside. */
static void rotary(const struct backward *b)
{
    struct dtp_lowering *l = b->l;
    const struct dtp_transformer *t = l->transformer;
    double width = (double)(l->d_q + l->d_kv), all = (double)(l->d_q + 2 * l->d_kv), c = (double)l->compute;
    double rope = !l->rope ? 0 : l->fused ? 2 * c * all : (l->plan->rope_fp32 ? 52 : 10 * c) * width;
    double norms = t->qk_norm ? 2.5 * 2 * c * width : 0;
    uint64_t q = token_bytes(l, l->compute * l->d_q);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ROTARY_BACKWARD, "");
    dtp_lower_rotary_tensors(l, &draft, l->fused || !l->rope ? 0 : l->compute == 4 ? 2 * q : 5 * q);
    dtp_draft_use(&draft, b->gradient[DTP_TENSOR_Q_RAW], DTP_UPDATE);
    dtp_draft_use(&draft, b->gradient[DTP_TENSOR_K_RAW], DTP_UPDATE);
    consume(b, &draft, DTP_TENSOR_QK_STATISTICS, DTP_READ | DTP_FREE);
    consume(b, &draft, DTP_TENSOR_Q_RAW, DTP_READ | DTP_FREE);
    consume(b, &draft, DTP_TENSOR_K_RAW, DTP_READ | DTP_FREE);
    if (t->qk_norm)
        consume(b, &draft, DTP_TENSOR_QKV, DTP_READ | DTP_FREE);
    uint32_t kernels = l->fused || !l->rope ? 1 : l->plan->rope_fp32 ? 24 : 12;
    dtp_draft_memory(l, &draft, per_token(l, rope + norms), kernels);
    dtp_draft_end(l, &draft);
}

/* Gradient of the fused q, k, v as one tensor: read and written whole, except where a compiler's RoPE kernel writes it.
 */
static void join(struct backward *b)
{
    struct dtp_lowering *l = b->l;
    double bytes = (double)l->tensor_bytes[DTP_TENSOR_QKV];
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_COPY_IN, "qkv gradient");
    b->gradient[DTP_TENSOR_QKV] = workspace(l, &draft, "qkv gradient", l->tensor_bytes[DTP_TENSOR_QKV], DTP_WRITE);
    dtp_draft_use(&draft, b->gradient[DTP_TENSOR_Q_RAW], DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, b->gradient[DTP_TENSOR_K_RAW], DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, b->gradient[DTP_TENSOR_V], DTP_READ | DTP_FREE);
    dtp_draft_memory(l, &draft, l->fused ? 0 : 2 * bytes, 1);
    dtp_draft_end(l, &draft);
}

/* ---- the block --------------------------------------------------------------------------------------------------- */

/* Gradients of norms and biases, which are small, appear as one buffer at the block's end. */
static void vectors(struct dtp_lowering *l)
{
    int part = l->matrices;
    if (!l->block.elements[part])
        return;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_NORM_BACKWARD, "vector gradients");
    dtp_lower_gradient_result(l, &draft, part, l->compute);
    dtp_draft_memory(l, &draft, 0, 1);
    dtp_draft_end(l, &draft);
    dtp_lower_gradient_made(l, part);
}

static void run(struct backward *b)
{
    switch (operator_at(b)->kind) {
    case DTP_LAYER_OP_NORM: norm(b); break;
    case DTP_LAYER_OP_PROJECTION:
        if (operator_at(b)->makes & DTP_TENSOR_BIT(QKV))
            join(b);
        projection(b);
        if (operator_at(b)->reads & DTP_LAYER_STREAM)
            add_to_stream(b, dtp_layer_first(operator_at(b)->reads));
        break;
    case DTP_LAYER_OP_CAST: add_to_stream(b, dtp_layer_first(operator_at(b)->makes)); break;
    case DTP_LAYER_OP_ROTARY: rotary(b); break;
    case DTP_LAYER_OP_ATTENTION: core(b); break;
    case DTP_LAYER_OP_ACTIVATION: activation(b); break;
    case DTP_LAYER_OP_RESIDUAL: branch(b); break;
    }
}

void dtp_lower_block_backward(struct dtp_lowering *l)
{
    struct backward b = {.l = l, .module = dtp_lower_flight_module(l)};
    for (int tensor = 0; tensor < DTP_TENSOR_COUNT; tensor++)
        b.gradient[tensor] = DTP_NO_BUFFER;
    if (dtp_lower_checkpointed(l, l->layer) && l->tensors.kept != l->tensors.saved)
        dtp_lower_block_recompute(l);
    for (b.index = l->tensors.operators - 1; b.index >= 0; b.index--)
        run(&b);
    vectors(l);
}
