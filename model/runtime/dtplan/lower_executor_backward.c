/* Backward of blocks. The residual stream's gradient is one buffer from the final norm down to the
 * embedding: norms add to it. */
#include "runtime/dtplan/executor_fp8_work.h"
#include "runtime/dtplan/lower_executor_in_place.h"
#include "runtime/dtplan/lower_executor_experts.h"
#include "runtime/dtplan/lower_executor_tensor.h"

#include <assert.h>

static dtp_buffer_id tensor(const struct dtp_executor *x, uint64_t layer, int which)
{
    return x->tensors[layer][which];
}

/* ---- weight gradients on a stream of their own -------------------------------------------------------------------
 *
 * Nothing of the backward pass waits for a weight gradient, so with plan.executor.gradient_stream the blocks' run
 * beside the chain of input gradients: each begins when all that was issued to the compute stream before it is done.
 * What they read stays until a norm's backward, which waits for the one that reads the residual's gradient before it
 * adds to that; the reduction of the module's gradients and the embedding's backward wait for all. */

static void hold(struct dtp_executor *x, dtp_buffer_id buffer)
{
    assert(x->held_count < DTP_EXECUTOR_MOST_HELD);
    x->held[x->held_count++] = (struct dtp_executor_draining){buffer, x->l->last_op[DTP_STREAM_WEIGHT_GRADIENT]};
}

/* Access of the last operation of the compute stream that reads what the weight gradient issued last reads too. */
static uint32_t last_read(struct dtp_executor *x, dtp_buffer_id buffer)
{
    if (!x->plan->executor.gradient_stream)
        return DTP_READ | dtp_executor_lets_go(x, buffer);
    hold(x, buffer);
    return DTP_READ;
}

void dtp_executor_await_gradient(struct dtp_executor *x, dtp_op_id until)
{
    struct dtp_draft draft;
    int gone = 0;
    dtp_executor_await(x, DTP_STREAM_WEIGHT_GRADIENT, until);
    while (gone < x->held_count && until.index != DTP_NO_INDEX && x->held[gone].reader.index <= until.index)
        gone++;
    if (!gone)
        return;
    dtp_executor_begin(x, &draft, DTP_OP_FREE, "weight gradients' operands");
    for (int i = 0; i < gone; i++)
        dtp_draft_use(&draft, x->held[i].buffer, DTP_FREE);
    dtp_executor_end(x, &draft);
    x->held_count -= gone;
    for (int i = 0; i < x->held_count; i++)
        x->held[i] = x->held[i + gone];
}

/* ---- one operator ------------------------------------------------------------------------------------------------ */

/* An operator of a block in its backward. */
struct place {
    struct dtp_executor *x;
    uint64_t layer;
    int index;
    const struct dtp_executor_operator *op;
};

/* Whether operators before it in forward, whose backward comes later, read the tensor. */
static bool stays(const struct place *at, int which)
{
    const struct dtp_executor_block *shape = dtp_executor_shape_of(at->x, at->layer);
    for (int i = 0; i < at->index; i++)
        if (shape->op[i].needs & DTP_EXECUTOR_BIT(which))
            return true;
    return false;
}

static bool in_stream(int which)
{
    return which < DTP_TENSOR_COUNT && DTP_LAYER_STREAM & DTP_EXECUTOR_BIT(which);
}

static dtp_buffer_id *input_gradient_of(const struct place *at)
{
    return in_stream(at->op->input) ? &at->x->gradient : &at->x->gradients[at->op->input];
}

/* What is added to the stream has the stream's gradient. */
static bool adds_to_stream(const struct dtp_executor_operator *op)
{
    return op->to_stream;
}

static dtp_buffer_id result_gradient(const struct place *at)
{
    return adds_to_stream(at->op) ? at->x->gradient : at->x->gradients[at->op->result];
}

/* [out, in] (+)= gradient[T, out]^T input[T, in]. `input_goes`, `gradient_goes`: nobody reads them behind this. Of a
 * branch's last projection, the norm that adds to the stream's gradient waits for it. */
static void weight_gradient(const struct place *at, dtp_buffer_id gradient, dtp_buffer_id input, bool input_goes,
                            bool gradient_goes)
{
    struct dtp_executor *x = at->x;
    struct dtp_draft draft;
    bool apart = x->plan->executor.gradient_stream;
    if (dtp_executor_splits(x)) {
        dtp_executor_defer(x, at->layer, at->index, gradient, input);
        if (gradient_goes)
            dtp_executor_lets_go(x, gradient);
        if (input_goes)
            dtp_executor_lets_go(x, input);
        return;
    }
    dtp_executor_weight_gradient(x, &draft, at->layer, at->index, gradient, gradient_goes && !apart ? DTP_FREE : 0,
                                 input, input_goes && !apart ? DTP_FREE : 0, NULL);
    if (!apart) {
        dtp_executor_end(x, &draft);
        return;
    }
    draft.op.stream = DTP_STREAM_WEIGHT_GRADIENT;
    dtp_draft_after(&draft, x->l->last_op[DTP_STREAM_COMPUTE]);
    dtp_op_id id = dtp_draft_end(x->l, &draft);
    if (input_goes)
        hold(x, input);
    if (gradient_goes)
        hold(x, gradient);
    if (at->op->weight == DTP_PARAMETER_OUTPUT || at->op->weight == DTP_PARAMETER_DOWN)
        x->gradient_read = id;
}

/* result[T, in] (+)= gradient[T, out] weight[out, in], times gelu'(aux) where there is one, which then goes: the
 * input's gradient, which is the stream's where the projection reads that, and is added to where another one has made
 * it. `freed`: the gradient goes too, which the weight gradient issued last reads. */
static void input_gradient(const struct place *at, dtp_buffer_id gradient, bool freed, dtp_buffer_id aux)
{
    struct dtp_executor *x = at->x;
    const struct dtp_layer_matrix *matrix = at->op->matrix;
    dtp_buffer_id *made = input_gradient_of(at);
    struct dtp_draft draft;
    dtp_buffer_id unpacked = x->shape->packed ? dtp_executor_unpack(x, at->layer, at->op) : DTP_NO_BUFFER;
    uint64_t rows = dtp_executor_matrix_rows(x->shape, matrix);
    dtp_executor_begin(x, &draft, at->op->kind, matrix->input_gradient_name);
    dtp_draft_role(&draft, DTP_ROLE_GRADIENT, gradient, freed ? last_read(x, gradient) : DTP_READ, 0);
    dtp_executor_matrix(x, &draft, at->layer, at->op, unpacked);
    if (matrix->expert)
        dtp_draft_role(&draft, DTP_ROLE_ROUTES, tensor(x, at->layer, dtp_executor_routes_of(x->shape)), DTP_READ, 0);
    if (aux.index != DTP_NO_INDEX)
        dtp_draft_role(&draft, DTP_ROLE_AUX, aux, DTP_READ | DTP_FREE, 0);
    bool adds = made->index != DTP_NO_INDEX, stays = adds && dtp_executor_is_deferred(x, *made);
    if (stays)
        dtp_draft_role(&draft, DTP_ROLE_ADDEND, *made, DTP_READ | dtp_executor_lets_go(x, *made), 0);
    if (adds && !stays)
        dtp_draft_role(&draft, DTP_ROLE_INPUT_GRADIENT, *made, DTP_UPDATE, 0);
    else
        *made = dtp_executor_new(x, &draft, DTP_ROLE_INPUT_GRADIENT, matrix->input_gradient_name, DTP_OWNER_WORKSPACE,
                                 rows * matrix->in * x->element_bytes, DTP_WRITE);
    if (matrix->expert)
        dtp_executor_grouped(x, &draft, at->op, DTP_PRODUCT_INPUT_GRADIENT);
    else
        dtp_executor_matmul(x, &draft, rows, matrix->in, matrix->out);
    dtp_executor_end(x, &draft);
}

static uint64_t gradient_slot(const struct dtp_executor *x, uint64_t layer, const struct dtp_executor_operator *op)
{
    return dtp_executor_fp8_slot(x, DTP_EXECUTOR_CAST_GRADIENT, layer, (int)(op->matrix - x->shape->kind.matrix));
}

/* Rows by experts are weighed within the activation, which so makes the gradient of their weights. */
static void weigh_back(const struct place *at, struct dtp_draft *draft)
{
    struct dtp_executor *x = at->x;
    const int weights = dtp_executor_weights_of(x->shape);
    dtp_draft_role(draft, DTP_ROLE_STATISTICS, tensor(x, at->layer, weights), DTP_READ | DTP_FREE, 0);
    dtp_draft_role(draft, DTP_ROLE_ROUTES, tensor(x, at->layer, dtp_executor_routes_of(x->shape)), DTP_READ, 0);
    if (x->gradients[weights].index != DTP_NO_INDEX) /* biases have put their part there */
        dtp_draft_role(draft, DTP_ROLE_STATISTICS_GRADIENT, x->gradients[weights], DTP_UPDATE, 0);
    else
        x->gradients[weights] =
            dtp_executor_new(x, draft, DTP_ROLE_STATISTICS_GRADIENT, "router weight gradient", DTP_OWNER_WORKSPACE,
                             dtp_executor_tensor_bytes(x->shape, weights), DTP_WRITE);
    dtp_executor_worked(x, draft, x->shape->kind.mlp_width);
}

/* What an activation read; its gradient takes its place, unless it was kept in 8 bits. Returns the gradient. */
static dtp_buffer_id activation_input(const struct place *at, struct dtp_draft *draft, int up)
{
    struct dtp_executor *x = at->x;
    const int stored = up == DTP_TENSOR_UP ? DTP_TENSOR_GATE : DTP_TENSOR_SHARED_GATE;
    if (!x->shape->narrow_input) {
        dtp_draft_role(draft, DTP_ROLE_INPUT, tensor(x, at->layer, up), DTP_UPDATE, 0);
        return tensor(x, at->layer, up);
    }
    dtp_draft_role(draft, DTP_ROLE_INPUT, tensor(x, at->layer, stored), DTP_READ | DTP_FREE, 0);
    return dtp_executor_new(x, draft, DTP_ROLE_INPUT_GRADIENT, "MLP input gradient", DTP_OWNER_WORKSPACE,
                            dtp_executor_tensor_bytes(x->shape, up), DTP_WRITE);
}

/* The product, in the place of its own gradient, where it was not kept. */
static void activation_backward(const struct place *at, bool again)
{
    struct dtp_executor *x = at->x;
    const bool shared = at->op->result == DTP_TENSOR_SHARED_PRODUCT;
    const struct dtp_executor_operator activation = {.kind = DTP_OP_ACTIVATION,
                                                     .result = shared ? DTP_TENSOR_SHARED_PRODUCT : DTP_TENSOR_PRODUCT};
    const int made = shared ? DTP_TENSOR_SHARED_UP : DTP_TENSOR_UP;
    dtp_buffer_id product_gradient = x->gradients[activation.result];
    struct dtp_draft draft;
    dtp_executor_begin(x, &draft, DTP_OP_ACTIVATION_BACKWARD, "activation");
    dtp_draft_role(&draft, DTP_ROLE_GRADIENT, product_gradient, again ? DTP_READ : DTP_READ | DTP_FREE, 0);
    dtp_buffer_id up = activation_input(at, &draft, made);
    if (again)
        dtp_draft_role(&draft, DTP_ROLE_RESULT, product_gradient, DTP_WRITE, 0);
    int maker = dtp_executor_maker(x->shape, DTP_TENSOR_UP);
    if (x->shape->fp8)
        dtp_executor_fp8_amax(x, &draft, gradient_slot(x, at->layer, &x->shape->op[maker]), DTP_UPDATE);
    struct dtp_executor_traffic traffic = dtp_executor_backward_traffic(x->shape, &activation, again);
    if (dtp_executor_weighs(x->shape, &activation))
        weigh_back(at, &draft);
    else if (shared)
        draft.op.demand.n = (double)x->shape->kind.shared_ffn;
    dtp_executor_memory(&draft, shared ? x->rules.tokens : dtp_executor_tensor_rows(x->shape, DTP_TENSOR_PRODUCT),
                        traffic.bytes, traffic.kernels);
    dtp_executor_end(x, &draft);
    x->gradients[made] = up;
}

/* That of the result, of tensor parallel ranks' sum with the rows of all of them; this rank's own go then where nobody
 * else reads them. With `by_chunks` (rules.tensor_chunks) it comes so, and the input's gradient is made of it. */
static dtp_buffer_id gathered_gradient(const struct place *at, bool by_chunks, dtp_buffer_id aux)
{
    struct dtp_executor *x = at->x;
    dtp_buffer_id rows = result_gradient(at), whole;
    if (!at->op->sums)
        return rows;
    if (by_chunks)
        whole = dtp_executor_gradient_by_chunks(x, at->layer, at->index, rows, aux, input_gradient_of(at));
    else
        whole = dtp_executor_gather_rows(x, at->op->matrix->input_gradient_name, rows);
    if (!adds_to_stream(at->op))
        dtp_executor_free(x, rows, "branch gradient");
    return whole;
}

static bool comes_by_chunks(const struct place *at)
{
    return at->op->sums && at->x->rules.tensor_chunks > 1;
}

/* Whether nothing reads the gathered gradient behind the operator. */
static bool goes(const struct place *at)
{
    return at->op->sums || !adds_to_stream(at->op);
}

/* Where the activation was not kept, its backward makes it again in the place of its gradient; the weight gradient,
 * which reads it, comes last. */
static void projection_of_lost_activation(const struct place *at)
{
    struct dtp_executor *x = at->x;
    const bool by_chunks = comes_by_chunks(at);
    dtp_buffer_id gradient = gathered_gradient(at, by_chunks, DTP_NO_BUFFER);
    if (!by_chunks)
        input_gradient(at, gradient, false, DTP_NO_BUFFER);
    activation_backward(at, true);
    weight_gradient(at, gradient, x->gradients[DTP_TENSOR_PRODUCT], true, goes(at));
    x->gradients[DTP_TENSOR_PRODUCT] =
        x->gradients[DTP_TENSOR_UP]; /* what an up projection with an epilogue asks for */
}

/* Products of fp8 operands, which lie by the dimension that is summed over: gradient[out, T] by input[in, T] and
 * gradient[T, out] by weight[in, out]. */
static void fp8_weight_gradient(const struct place *at, dtp_buffer_id gradient)
{
    struct dtp_executor *x = at->x;
    const struct dtp_layer_matrix *matrix = at->op->matrix;
    const struct dtp_executor_operator *cast = &x->shape->op[dtp_executor_caster(x->shape, at->op->input)];
    const int of_input = dtp_executor_cast_matrix(x->shape, cast);
    struct dtp_draft draft;
    dtp_executor_begin(x, &draft, DTP_OP_MATMUL, matrix->gradient_name);
    dtp_draft_role(&draft, DTP_ROLE_GRADIENT, gradient, DTP_READ | DTP_FREE, 0);
    dtp_draft_role(&draft, DTP_ROLE_INPUT, tensor(x, at->layer, at->op->kept),
                   stays(at, at->op->kept) ? DTP_READ : DTP_READ | DTP_FREE, 0);
    dtp_executor_gradient(&draft, DTP_ROLE_WEIGHT_GRADIENT, dtp_executor_block(x, at->layer), at->op->weight);
    dtp_executor_matmul(x, &draft, matrix->out, matrix->in, x->rules.tokens);
    dtp_executor_fp8_product(x, &draft, gradient_slot(x, at->layer, at->op),
                             dtp_executor_fp8_slot(x, DTP_EXECUTOR_CAST_INPUT, at->layer, of_input));
    dtp_executor_end(x, &draft);
}

static void fp8_input_gradient(const struct place *at, dtp_buffer_id gradient, dtp_buffer_id weight)
{
    struct dtp_executor *x = at->x;
    const struct dtp_layer_matrix *matrix = at->op->matrix;
    dtp_buffer_id *made = &x->gradients[at->op->input];
    struct dtp_draft draft;
    dtp_executor_begin(x, &draft, DTP_OP_MATMUL, matrix->input_gradient_name);
    dtp_draft_role(&draft, DTP_ROLE_GRADIENT, gradient, DTP_READ | DTP_FREE, 0);
    dtp_draft_role(&draft, DTP_ROLE_WEIGHT, weight, DTP_READ | DTP_FREE, 0);
    *made = dtp_executor_new(x, &draft, DTP_ROLE_INPUT_GRADIENT, matrix->input_gradient_name, DTP_OWNER_WORKSPACE,
                             x->rules.tokens * matrix->in * x->element_bytes, DTP_WRITE);
    dtp_executor_matmul(x, &draft, x->rules.tokens, matrix->in, matrix->out);
    dtp_executor_fp8_product(
        x, &draft, gradient_slot(x, at->layer, at->op),
        dtp_executor_fp8_slot(x, DTP_EXECUTOR_CAST_WEIGHT, at->layer, (int)(matrix - x->shape->kind.matrix)));
    dtp_executor_end(x, &draft);
}

/* The bias is added to a result in 16 bits: its gradient sums the result's before that is cast. In bf16 the matmul of
 * the weight's gradient has it as an epilogue. */
static void fp8_bias_gradient(const struct place *at)
{
    struct dtp_executor *x = at->x;
    struct dtp_executor_module *module = dtp_executor_block(x, at->layer);
    const struct dtp_layer_matrix *matrix = at->op->matrix;
    struct dtp_draft draft;
    if (!dtp_executor_has(module, at->op->weight + 1))
        return;
    dtp_executor_begin(x, &draft, DTP_OP_BIAS_BACKWARD, matrix->name);
    dtp_draft_role(&draft, DTP_ROLE_GRADIENT, result_gradient(at), DTP_READ, 0);
    bool accumulates = dtp_executor_gradient(&draft, DTP_ROLE_BIAS_GRADIENT, module, at->op->weight + 1);
    dtp_executor_new(x, &draft, DTP_ROLE_WORKSPACE, "partial sums", DTP_OWNER_WORKSPACE,
                     4 * DTP_EXECUTOR_PARTIAL_ROWS * matrix->out, DTP_UPDATE | DTP_FREE);
    dtp_executor_memory(&draft, x->rules.tokens,
                        dtp_executor_bias_gradient_bytes(x->shape, matrix) +
                            (double)((accumulates ? 2 : 1) * matrix->out * module->gradient_element_bytes),
                        2);
    draft.op.demand.n = (double)matrix->out;
    dtp_executor_end(x, &draft);
}

static void fp8_projection_backward(const struct place *at)
{
    struct dtp_executor *x = at->x;
    uint64_t there = 0;
    for (int i = 0; i < DTP_EXECUTOR_TENSORS; i++)
        there |= tensor(x, at->layer, i).index != DTP_NO_INDEX ? DTP_EXECUTOR_BIT(i) : 0;
    if (!(there & DTP_EXECUTOR_BIT(at->op->kept)))
        dtp_executor_block_again(x, at->layer, dtp_executor_makers(x->shape, at->op->kept, there));
    bool narrow = dtp_executor_narrow_gradients(x->shape); /* else the weight's gradient is of what was cast */
    struct dtp_executor_cast cast = {.name = at->op->matrix->input_gradient_name,
                                     .tensor = result_gradient(at),
                                     .layer = at->layer,
                                     .rows = x->rules.tokens,
                                     .columns = at->op->matrix->out,
                                     .slot = gradient_slot(x, at->layer, at->op),
                                     .what = DTP_EXECUTOR_CAST_GRADIENT,
                                     .frees = !adds_to_stream(at->op) && narrow,
                                     .finds = !dtp_executor_gradient_amax_found(at->op),
                                     .by_rows = true,
                                     .by_columns = narrow};
    if (dtp_executor_seeks_amax(x->shape) && cast.finds)
        dtp_executor_fp8_measure(x, &cast);
    if (narrow)
        fp8_bias_gradient(at);
    struct dtp_executor_casts gradient = dtp_executor_fp8_cast(x, &cast);
    if (!narrow)
        weight_gradient(at, cast.tensor, tensor(x, at->layer, at->op->kept), !stays(at, at->op->kept),
                        !adds_to_stream(at->op));
    dtp_buffer_id weight = dtp_executor_fp8_weight(x, at->op, at->layer, true);
    if (narrow)
        fp8_weight_gradient(at, gradient.columns);
    fp8_input_gradient(at, gradient.rows, weight);
}

/* What a first block's frozen projection would pass on, nobody wants: the gradient goes with the adapter's. */
static void adapter_backward(const struct place *at)
{
    struct dtp_executor *x = at->x;
    const struct dtp_executor_operator *op = at->op;
    dtp_buffer_id input = tensor(x, at->layer, op->input);
    if (op->half == DTP_EXECUTOR_B) {
        const bool sums = op[-1].sums, last = !op[-1].passes && (sums || !adds_to_stream(op));
        if (sums)
            x->rows_gradient =
                gathered_gradient(&(struct place){x, at->layer, at->index - 1, op - 1}, false, DTP_NO_BUFFER);
        x->gradients[op->input] = dtp_executor_adapter_b_backward(
            x, at->layer, op, sums ? x->rows_gradient : result_gradient(at), last, input);
        x->rows_gradient = last ? DTP_NO_BUFFER : x->rows_gradient;
        return;
    }
    if (input.index == DTP_NO_INDEX) {
        dtp_executor_block_again(x, at->layer, UINT32_C(1) << dtp_executor_maker(x->shape, op->input));
        input = tensor(x, at->layer, op->input);
    }
    dtp_executor_adapter_a_backward(x, at->layer, op, x->gradients[op->result], input, !stays(at, op->input),
                                    op->passes ? input_gradient_of(at) : NULL);
}

/* Of a frozen matrix the input's gradient alone, of what an adapter beside it has gathered already. */
static void frozen_backward(const struct place *at)
{
    struct dtp_executor *x = at->x;
    const bool there = x->rows_gradient.index != DTP_NO_INDEX;
    dtp_buffer_id gradient = there ? x->rows_gradient : gathered_gradient(at, false, DTP_NO_BUFFER);
    x->rows_gradient = DTP_NO_BUFFER;
    if (!at->op->gathers)
        input_gradient(at, gradient, goes(at), DTP_NO_BUFFER);
    else
        dtp_executor_gathered_input_gradient(x, at->layer, at->index, gradient, last_read(x, gradient),
                                             input_gradient_of(at));
}

/* The weight gradient comes first, so that what it reads goes before the input's gradient comes. A frozen weight has
 * none. */
static void projection_backward(const struct place *at)
{
    struct dtp_executor *x = at->x;
    int input = at->op->input, maker = dtp_executor_maker(x->shape, input);
    bool missing = tensor(x, at->layer, input).index == DTP_NO_INDEX;
    if (missing && input == DTP_TENSOR_PRODUCT) {
        projection_of_lost_activation(at);
        return;
    }
    if (missing)
        dtp_executor_block_again(x, at->layer, dtp_executor_makers(x->shape, input, ~UINT64_C(0)));
    const bool by_chunks = comes_by_chunks(at);
    dtp_buffer_id aux = DTP_NO_BUFFER;
    if (maker >= 0 && x->shape->op[maker].aux != DTP_EXECUTOR_NONE)
        aux = tensor(x, at->layer, x->shape->op[maker].aux);
    dtp_buffer_id gradient = gathered_gradient(at, by_chunks, aux);
    if (at->op->gathers && x->plan->tp_overlap && !dtp_executor_splits(x)) {
        dtp_executor_overlapped_backward(x, at->layer, at->index, gradient, tensor(x, at->layer, input),
                                         stays(at, input) ? 0 : DTP_FREE, input_gradient_of(at));
        return;
    }
    const bool left = dtp_executor_leaves(x, at->index);
    if (left) /* attention's result is read by it last, behind attention's backward */
        dtp_executor_leave(x, &(struct dtp_executor_left){.op = at->index,
                                                          .gradient = gradient,
                                                          .input = tensor(x, at->layer, input),
                                                          .gradient_goes = goes(at),
                                                          .input_goes = !stays(at, input) || input == DTP_TENSOR_CORE});
    else
        weight_gradient(at, gradient, tensor(x, at->layer, input), !stays(at, input), by_chunks);
    if (by_chunks)
        return;
    if (at->op->gathers)
        dtp_executor_gathered_input_gradient(x, at->layer, at->index, gradient, last_read(x, gradient),
                                             input_gradient_of(at));
    else
        input_gradient(at, gradient, goes(at) && !left, aux);
}

/* Of what a branch returned, the stream's gradient stays; it is another tensor's then. */
static void norm_backward(const struct place *at)
{
    struct dtp_executor *x = at->x;
    const struct dtp_executor_operator *op = at->op;
    if (dtp_executor_latent_norm_width(x->shape, op)) {
        dtp_executor_latent_norm_backward(x, at->layer, op, tensor(x, at->layer, op->input));
        return;
    }
    const struct dtp_executor_norm_gradient norm = {.name = op->name,
                                                    .weight = op->weight,
                                                    .gradient = result_gradient(at),
                                                    .input = tensor(x, at->layer, op->input),
                                                    .statistics = tensor(x, at->layer, op->statistics),
                                                    .gradient_stays = adds_to_stream(op),
                                                    .input_stays = stays(at, op->input),
                                                    .apart = !in_stream(op->input),
                                                    .amax = dtp_executor_fp8_stream_slot(x, at->layer, at->index),
                                                    .bytes = dtp_executor_backward_traffic(x->shape, op, false).bytes};
    dtp_buffer_id made = dtp_executor_norm_backward(x, dtp_executor_block(x, at->layer), &norm);
    if (norm.apart)
        x->gradients[op->input] = made;
}

static void rotary_backward(const struct place *at)
{
    struct dtp_executor *x = at->x;
    struct dtp_draft draft;
    if (x->shape->kind.kv_latent) {
        dtp_executor_latent_heads_backward(x, at->op);
        return;
    }
    dtp_executor_begin(x, &draft, DTP_OP_ROTARY_BACKWARD, at->op->name);
    dtp_draft_role(&draft, DTP_ROLE_RESULT, x->gradients[at->op->result], DTP_UPDATE, 0);
    dtp_draft_role(&draft, DTP_ROLE_TABLES, x->tables, DTP_READ, 0);
    dtp_executor_memory(&draft, x->rules.tokens, dtp_executor_backward_traffic(x->shape, at->op, false).bytes, 1);
    dtp_executor_end(x, &draft);
}

/* The gradients of q and k as the matmul made them take the place of those of the normed ones; what forward kept goes.
 */
static void qk_norm_backward(const struct place *at)
{
    struct dtp_executor *x = at->x;
    struct dtp_executor_module *module = dtp_executor_block(x, at->layer);
    uint64_t elements = dtp_executor_norm_elements(x->shape, at->op);
    struct dtp_draft draft;
    dtp_executor_begin(x, &draft, DTP_OP_QK_NORM_BACKWARD, at->op->name);
    dtp_draft_role(&draft, DTP_ROLE_RESULT, x->gradients[at->op->result], DTP_UPDATE, 0);
    dtp_draft_role(&draft, DTP_ROLE_SAVED, tensor(x, at->layer, at->op->saved), DTP_READ | DTP_FREE, 0);
    dtp_draft_role(&draft, DTP_ROLE_STATISTICS, tensor(x, at->layer, at->op->statistics), DTP_READ | DTP_FREE, 0);
    if (elements)
        dtp_executor_weight(x, &draft, DTP_ROLE_WEIGHT, module, at->op->weight);
    double gradient_bytes = 0;
    if (elements && dtp_executor_is_trained(x, module)) {
        bool accumulates = dtp_executor_gradient(&draft, DTP_ROLE_WEIGHT_GRADIENT, module, at->op->weight);
        dtp_executor_new(x, &draft, DTP_ROLE_WORKSPACE, "partial sums", DTP_OWNER_WORKSPACE,
                         4 * DTP_EXECUTOR_PARTIAL_ROWS * elements, DTP_UPDATE | DTP_FREE);
        gradient_bytes = (double)((accumulates ? 2 : 1) * elements * module->gradient_element_bytes);
    }
    struct dtp_executor_traffic traffic = dtp_executor_backward_traffic(x->shape, at->op, false);
    dtp_executor_memory(&draft, x->rules.tokens, traffic.bytes + gradient_bytes, traffic.kernels);
    dtp_executor_end(x, &draft);
}

/* Makes the gradient of the packed qkv; the core's tensors go. */
static void attention_backward(const struct place *at)
{
    struct dtp_executor *x = at->x;
    const struct dtp_executor_operator *op = at->op;
    if (tensor(x, at->layer, op->result).index == DTP_NO_INDEX) /* a frozen projection behind it has not read it */
        dtp_executor_block_again(x, at->layer, UINT32_C(1) << at->index);
    dtp_buffer_id core = tensor(x, at->layer, op->result);
    x->gradients[op->input] = dtp_executor_attention_backward(
        x, &(struct dtp_executor_core){.qkv = tensor(x, at->layer, op->input),
                                       .result = core,
                                       .statistics = tensor(x, at->layer, op->statistics),
                                       .gradient = x->gradients[op->result],
                                       .result_access = dtp_executor_is_left(x, core) ? DTP_READ : last_read(x, core)});
}

static void operator_backward(const struct place *at)
{
    if (!at->op->passes && !at->op->adapter) /* nothing before it is trained */
        return;
    if (dtp_executor_turns_only(at->op) && !dtp_transformer_layer_turns(at->x->t, dtp_lower_model_layer(at->x->l)))
        return;
    if (dtp_executor_turns_on_the_way(at->x->shape, at->op))
        return;
    switch (at->op->kind) {
    case DTP_OP_NORM: norm_backward(at); break;
    case DTP_OP_MATMUL:
        if (at->op->adapter)
            adapter_backward(at);
        else if (at->x->shape->fp8)
            fp8_projection_backward(at);
        else if (at->x->shape->adapted)
            frozen_backward(at);
        else
            projection_backward(at);
        break;
    case DTP_OP_SINKS: dtp_executor_sinks_backward(at->x, at->layer, at->op); break;
    case DTP_OP_EXPERT_BIAS: dtp_executor_expert_bias_backward(at->x, at->layer, at->op); break;
    case DTP_OP_GROUPED_MATMUL: projection_backward(at); break;
    case DTP_OP_UNPERMUTE: dtp_executor_unpermute_backward(at->x, at->layer, at->op, result_gradient(at)); break;
    case DTP_OP_ALL_TO_ALL: dtp_executor_exchange_backward_rows(at->x, at->layer, at->op); break;
    case DTP_OP_PERMUTE: dtp_executor_permute_backward(at->x, at->layer, at->op); break;
    case DTP_OP_ROUTER:
        dtp_executor_router_backward(at->x, at->layer, at->op,
                                     last_read(at->x, tensor(at->x, at->layer, at->op->saved)));
        break;
    case DTP_OP_QUANTIZE: break; /* its gradient is that of what it casts */
    case DTP_OP_QK_NORM: qk_norm_backward(at); break;
    case DTP_OP_ROTARY: rotary_backward(at); break;
    case DTP_OP_ATTENTION: attention_backward(at); break;
    default: /* an activation, unless the projection behind it has been through it */
        if (at->x->gradients[at->op->input].index == DTP_NO_INDEX)
            activation_backward(at, false);
        break;
    }
}

/* ---- the skeleton's ---------------------------------------------------------------------------------------------- */

static void replay(struct dtp_executor *x, uint64_t layer)
{
    dtp_executor_block_again(x, layer, dtp_executor_shape_of(x, layer)->replayed);
}

static void operators_backward(struct dtp_executor *x, uint64_t layer)
{
    const struct dtp_executor_block *shape = dtp_executor_shape_of(x, layer);
    for (int i = 0; i < DTP_EXECUTOR_TENSORS; i++)
        x->gradients[i] = DTP_NO_BUFFER;
    for (int i = shape->count - 1; i >= 0; i--) {
        bool behind = i > 0 && shape->op[i].passes && shape->op[i].kind == DTP_OP_MATMUL && !shape->op[i].adapter &&
                      shape->op[i - 1].half == DTP_EXECUTOR_A; /* a projection, which then adds to what A makes */
        if (behind)
            operator_backward(&(struct place){x, layer, i - 1, &shape->op[i - 1]});
        operator_backward(&(struct place){x, layer, i, &shape->op[i]});
        i -= behind;
    }
}

void dtp_executor_block_backward(struct dtp_executor *x, uint64_t layer)
{
    const struct dtp_executor_block *shape = dtp_executor_shape_of(x, layer);
    struct dtp_executor_module *module =
        shape->adapted ? dtp_executor_adapters(x, layer) : dtp_executor_block(x, layer);
    if (dtp_executor_kept(x, layer) == DTP_EXECUTOR_BIT(DTP_TENSOR_INPUT))
        dtp_executor_repeat(x, layer, DTP_EXECUTOR_REPLAY, replay);
    dtp_executor_open_gradient(x, module);
    if (x->expert_count)
        dtp_executor_open_gradient(x, dtp_executor_experts(x, layer));
    dtp_executor_repeat(x, layer, DTP_EXECUTOR_BACKWARD, operators_backward);
    if (!dtp_executor_splits(x))
        dtp_executor_close_gradient(x, module);
}
