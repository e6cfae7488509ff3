/* Backward of blocks and of the embedding. The residual stream's gradient is one buffer from the final norm down to the
 * embedding: norms add to it. */
#include "runtime/dtplan/lower_executor_state.h"

#include <assert.h>

static dtp_buffer_id tensor(const struct dtp_executor *x, uint64_t layer, enum dtp_executor_tensor which)
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
        return DTP_READ | DTP_FREE;
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

/* Of a norm whose weight is `weight`, its bias the parameter after it. Makes the residual's gradient where there is
 * none, adds to it else. What the norm's forward left goes. */
void dtp_executor_norm_backward(struct dtp_executor *x, struct dtp_executor_module *module, enum dtp_parameter weight,
                                dtp_buffer_id gradient, dtp_buffer_id input, dtp_buffer_id statistics)
{
    struct dtp_draft draft;
    bool adds = x->gradient.index != DTP_NO_INDEX;
    dtp_executor_await_gradient(x, x->gradient_read);
    dtp_executor_begin(x, &draft, DTP_OP_NORM_BACKWARD,
                       weight == DTP_PARAMETER_FINAL_NORM ? "final norm"
                       : weight == DTP_PARAMETER_NORM1    ? "norm 1"
                                                          : "norm 2");
    dtp_draft_role(&draft, DTP_ROLE_GRADIENT, gradient, DTP_READ | DTP_FREE, 0);
    dtp_draft_role(&draft, DTP_ROLE_INPUT, input, DTP_READ | DTP_FREE, 0);
    dtp_draft_role(&draft, DTP_ROLE_STATISTICS, statistics, DTP_READ | DTP_FREE, 0);
    dtp_executor_weight(x, &draft, DTP_ROLE_WEIGHT, module, weight);
    if (adds)
        dtp_draft_role(&draft, DTP_ROLE_RESIDUAL_GRADIENT, x->gradient, DTP_UPDATE, 0);
    else
        x->gradient = dtp_executor_new(x, &draft, DTP_ROLE_RESIDUAL_GRADIENT, "residual gradient", DTP_OWNER_WORKSPACE,
                                       x->tensor_bytes[DTP_EXECUTOR_TENSOR_INPUT], DTP_WRITE);
    bool accumulates = dtp_executor_gradient(&draft, DTP_ROLE_WEIGHT_GRADIENT, module, weight);
    if (dtp_executor_has(module, weight + 1))
        dtp_executor_gradient(&draft, DTP_ROLE_BIAS_GRADIENT, module, weight + 1);
    dtp_executor_new(x, &draft, DTP_ROLE_WORKSPACE, "partial sums", DTP_OWNER_WORKSPACE,
                     2 * 4 * DTP_EXECUTOR_PARTIAL_ROWS * x->h, DTP_UPDATE | DTP_FREE);
    dtp_executor_memory(&draft, x->rules.tokens, dtp_executor_norm_backward_bytes(x, module, adds, accumulates), 2);
    dtp_executor_end(x, &draft);
}

struct linear {
    const char *weight_name, *input_name;
    enum dtp_parameter weight, bias;
    uint64_t out, in;
};

/* [out, in] (+)= gradient[T, out]^T input[T, in]. `freed`: the input goes. Returns the operation where it is on a
 * stream of its own. */
static dtp_op_id weight_gradient(struct dtp_executor *x, uint64_t layer, const struct linear *linear,
                                 dtp_buffer_id gradient, dtp_buffer_id input, bool freed)
{
    struct dtp_executor_module *module = dtp_executor_block(x, layer);
    struct dtp_draft draft;
    bool apart = x->plan->executor.gradient_stream;
    dtp_executor_begin(x, &draft, DTP_OP_MATMUL, linear->weight_name);
    dtp_draft_role(&draft, DTP_ROLE_GRADIENT, gradient, DTP_READ, 0);
    dtp_draft_role(&draft, DTP_ROLE_INPUT, input, DTP_READ | (freed && !apart ? DTP_FREE : 0), 0);
    dtp_executor_gradient(&draft, DTP_ROLE_WEIGHT_GRADIENT, module, linear->weight);
    if (dtp_executor_has(module, linear->bias))
        dtp_executor_gradient(&draft, DTP_ROLE_BIAS_GRADIENT, module, linear->bias);
    dtp_draft_matmul(x->l, &draft, linear->out, linear->in, x->rules.tokens, false);
    dtp_draft_role(&draft, DTP_ROLE_WORKSPACE, apart ? x->gradient_workspace : x->workspace, DTP_UPDATE, 0);
    if (!apart) {
        dtp_executor_end(x, &draft);
        return DTP_NO_OP;
    }
    draft.op.stream = DTP_STREAM_WEIGHT_GRADIENT;
    dtp_draft_after(&draft, x->l->last_op[DTP_STREAM_COMPUTE]);
    dtp_op_id id = dtp_draft_end(x->l, &draft);
    if (freed)
        hold(x, input);
    return id;
}

/* result[T, in] = gradient[T, out] weight[out, in], times gelu'(aux) where there is one, which then goes. `freed`: the
 * gradient goes too, which the weight gradient issued last reads. */
static dtp_buffer_id input_gradient(struct dtp_executor *x, uint64_t layer, const struct linear *linear,
                                    dtp_buffer_id gradient, bool freed, dtp_buffer_id aux)
{
    struct dtp_draft draft;
    dtp_executor_begin(x, &draft, DTP_OP_MATMUL, linear->input_name);
    dtp_draft_role(&draft, DTP_ROLE_GRADIENT, gradient, freed ? last_read(x, gradient) : DTP_READ, 0);
    dtp_executor_weight(x, &draft, DTP_ROLE_WEIGHT, dtp_executor_block(x, layer), linear->weight);
    if (aux.index != DTP_NO_INDEX)
        dtp_draft_role(&draft, DTP_ROLE_AUX, aux, DTP_READ | DTP_FREE, 0);
    dtp_buffer_id result = dtp_executor_new(x, &draft, DTP_ROLE_INPUT_GRADIENT, linear->input_name, DTP_OWNER_WORKSPACE,
                                            x->rules.tokens * linear->in * x->element_bytes, DTP_WRITE);
    dtp_executor_matmul(x, &draft, x->rules.tokens, linear->in, linear->out);
    dtp_executor_end(x, &draft);
    return result;
}

/* The gradient of `up` takes its place; `product`, in the place of its own gradient, where it was not kept. */
static void activation_backward(struct dtp_executor *x, uint64_t layer, dtp_buffer_id product_gradient, bool again)
{
    struct dtp_draft draft;
    dtp_executor_begin(x, &draft, DTP_OP_ACTIVATION_BACKWARD, "activation");
    dtp_draft_role(&draft, DTP_ROLE_GRADIENT, product_gradient, again ? DTP_READ : DTP_READ | DTP_FREE, 0);
    dtp_draft_role(&draft, DTP_ROLE_INPUT, tensor(x, layer, DTP_EXECUTOR_TENSOR_UP), DTP_UPDATE, 0);
    if (again)
        dtp_draft_role(&draft, DTP_ROLE_RESULT, product_gradient, DTP_WRITE, 0);
    dtp_executor_memory(&draft, x->rules.tokens, dtp_executor_activation_backward_bytes(x, again), 1);
    dtp_executor_end(x, &draft);
}

/* The down matmul and the activation; returns the gradient of the up matmul's result. The weight gradient comes first
 * where the product was kept, so that it goes before its gradient comes. */
static dtp_buffer_id down_backward(struct dtp_executor *x, uint64_t layer)
{
    static const struct linear names = {.weight_name = "down weight gradient",
                                        .input_name = "down input gradient",
                                        .weight = DTP_PARAMETER_DOWN,
                                        .bias = DTP_PARAMETER_DOWN_BIAS};
    struct linear down = names;
    dtp_buffer_id product = tensor(x, layer, DTP_EXECUTOR_TENSOR_PRODUCT),
                  up = tensor(x, layer, DTP_EXECUTOR_TENSOR_UP);
    bool again = product.index == DTP_NO_INDEX, epilogue = x->plan->executor.gelu_epilogue && !again;
    down.out = x->h, down.in = x->f;
    if (!again)
        x->gradient_read = weight_gradient(x, layer, &down, x->gradient, product, true);
    dtp_buffer_id made = input_gradient(x, layer, &down, x->gradient, false, epilogue ? up : DTP_NO_BUFFER);
    if (epilogue)
        return made;
    activation_backward(x, layer, made, again);
    if (again)
        x->gradient_read = weight_gradient(x, layer, &down, x->gradient, made, true);
    return up;
}

static void mlp_backward(struct dtp_executor *x, uint64_t layer)
{
    struct linear up = {"up weight gradient",  "up input gradient", DTP_PARAMETER_UP,
                        DTP_PARAMETER_UP_BIAS, x->rules.up_width,   x->h};
    dtp_buffer_id gradient = down_backward(x, layer);
    if (tensor(x, layer, DTP_EXECUTOR_TENSOR_NORM2).index == DTP_NO_INDEX)
        dtp_executor_norm_again(x, layer, 2);
    weight_gradient(x, layer, &up, gradient, tensor(x, layer, DTP_EXECUTOR_TENSOR_NORM2), true);
    dtp_buffer_id made = input_gradient(x, layer, &up, gradient, true, DTP_NO_BUFFER);
    dtp_executor_norm_backward(x, dtp_executor_block(x, layer), DTP_PARAMETER_NORM2, made,
                               tensor(x, layer, DTP_EXECUTOR_TENSOR_MIDDLE),
                               tensor(x, layer, DTP_EXECUTOR_TENSOR_STATISTICS2));
}

static void rotary_backward(struct dtp_executor *x, dtp_buffer_id gradient)
{
    struct dtp_draft draft;
    dtp_executor_begin(x, &draft, DTP_OP_ROTARY_BACKWARD, "rotary");
    dtp_draft_role(&draft, DTP_ROLE_RESULT, gradient, DTP_UPDATE, 0);
    dtp_draft_role(&draft, DTP_ROLE_TABLES, x->tables, DTP_READ, 0);
    dtp_executor_memory(&draft, x->rules.tokens, dtp_executor_rotary_bytes(x), 1);
    dtp_executor_end(x, &draft);
}

/* The gradients of q and k as the matmul made them take the place of those of the normed ones; what forward kept goes.
 */
static void qk_norm_backward(struct dtp_executor *x, uint64_t layer, dtp_buffer_id gradient)
{
    struct dtp_executor_module *module = dtp_executor_block(x, layer);
    struct dtp_draft draft;
    dtp_executor_begin(x, &draft, DTP_OP_QK_NORM_BACKWARD, "q and k norms");
    dtp_draft_role(&draft, DTP_ROLE_RESULT, gradient, DTP_UPDATE, 0);
    dtp_draft_role(&draft, DTP_ROLE_SAVED, tensor(x, layer, DTP_EXECUTOR_TENSOR_QK_RAW), DTP_READ | DTP_FREE, 0);
    dtp_draft_role(&draft, DTP_ROLE_STATISTICS, tensor(x, layer, DTP_EXECUTOR_TENSOR_QK_STATISTICS),
                   DTP_READ | DTP_FREE, 0);
    dtp_executor_weight(x, &draft, DTP_ROLE_WEIGHT, module, DTP_PARAMETER_QK_NORM);
    bool accumulates = dtp_executor_gradient(&draft, DTP_ROLE_WEIGHT_GRADIENT, module, DTP_PARAMETER_QK_NORM);
    dtp_executor_new(x, &draft, DTP_ROLE_WORKSPACE, "partial sums", DTP_OWNER_WORKSPACE,
                     4 * DTP_EXECUTOR_PARTIAL_ROWS * 2 * x->t->head_dim, DTP_UPDATE | DTP_FREE);
    dtp_executor_memory(&draft, x->rules.tokens, dtp_executor_qk_norm_backward_bytes(x, module, accumulates), 2);
    dtp_executor_end(x, &draft);
}

/* Returns the gradient of the packed qkv; the core's tensors go. */
static dtp_buffer_id core_backward(struct dtp_executor *x, uint64_t layer, dtp_buffer_id gradient)
{
    struct dtp_draft draft;
    dtp_executor_begin(x, &draft, DTP_OP_ATTENTION_BACKWARD, "attention");
    dtp_draft_role(&draft, DTP_ROLE_INPUT, tensor(x, layer, DTP_EXECUTOR_TENSOR_QKV), DTP_READ | DTP_FREE, 0);
    dtp_buffer_id core = tensor(x, layer, DTP_EXECUTOR_TENSOR_CORE);
    dtp_draft_role(&draft, DTP_ROLE_SAVED, core, last_read(x, core), 0);
    dtp_draft_role(&draft, DTP_ROLE_STATISTICS, tensor(x, layer, DTP_EXECUTOR_TENSOR_LOG_SUM_EXP), DTP_READ | DTP_FREE,
                   0);
    dtp_draft_role(&draft, DTP_ROLE_GRADIENT, gradient, DTP_READ | DTP_FREE, 0);
    dtp_buffer_id made = dtp_executor_new(x, &draft, DTP_ROLE_INPUT_GRADIENT, "qkv gradient", DTP_OWNER_WORKSPACE,
                                          x->tensor_bytes[DTP_EXECUTOR_TENSOR_QKV], DTP_WRITE);
    dtp_executor_new(x, &draft, DTP_ROLE_WORKSPACE, "attention workspace", DTP_OWNER_WORKSPACE,
                     x->rules.attention_backward_workspace_bytes, DTP_UPDATE | DTP_FREE);
    draft.op.demand.tokens = (double)x->rules.tokens;
    draft.op.demand.flops = DTP_ATTENTION_BACKWARD_FLOPS * dtp_executor_attention_flops(x, layer);
    draft.op.demand.kernels = 3; /* row sums, the gradients, the cast of dq */
    dtp_executor_end(x, &draft);
    if (x->t->position == DTP_POSITION_ROPE)
        rotary_backward(x, made);
    if (x->t->qk_norm)
        qk_norm_backward(x, layer, made);
    return made;
}

static void attention_backward(struct dtp_executor *x, uint64_t layer)
{
    struct linear output = {"output weight gradient",
                            "output input gradient",
                            DTP_PARAMETER_OUTPUT,
                            DTP_PARAMETER_OUTPUT_BIAS,
                            x->h,
                            x->d_q};
    struct linear qkv = {"qkv weight gradient",  "qkv input gradient", DTP_PARAMETER_QKV,
                         DTP_PARAMETER_QKV_BIAS, x->d_q + 2 * x->d_kv, x->h};
    if (tensor(x, layer, DTP_EXECUTOR_TENSOR_CORE).index == DTP_NO_INDEX)
        dtp_executor_attention_again(x, layer);
    /* the core's backward reads its result once more, so the weight gradient does not free it */
    x->gradient_read =
        weight_gradient(x, layer, &output, x->gradient, tensor(x, layer, DTP_EXECUTOR_TENSOR_CORE), false);
    dtp_buffer_id gradient = input_gradient(x, layer, &output, x->gradient, false, DTP_NO_BUFFER);
    gradient = core_backward(x, layer, gradient);
    if (tensor(x, layer, DTP_EXECUTOR_TENSOR_NORM1).index == DTP_NO_INDEX)
        dtp_executor_norm_again(x, layer, 1);
    weight_gradient(x, layer, &qkv, gradient, tensor(x, layer, DTP_EXECUTOR_TENSOR_NORM1), true);
    gradient = input_gradient(x, layer, &qkv, gradient, true, DTP_NO_BUFFER);
    dtp_executor_norm_backward(x, dtp_executor_block(x, layer), DTP_PARAMETER_NORM1, gradient,
                               tensor(x, layer, DTP_EXECUTOR_TENSOR_INPUT),
                               tensor(x, layer, DTP_EXECUTOR_TENSOR_STATISTICS1));
}

void dtp_executor_block_backward(struct dtp_executor *x, uint64_t layer)
{
    struct dtp_executor_module *module = dtp_executor_block(x, layer);
    if (tensor(x, layer, DTP_EXECUTOR_TENSOR_QKV).index == DTP_NO_INDEX)
        dtp_executor_block_replay(x, layer);
    dtp_executor_open_gradient(x, module);
    mlp_backward(x, layer);
    attention_backward(x, layer);
    dtp_executor_close_gradient(x, module);
}

/* Rows of the table's gradient that no token names stay as they are, so the buffer is zeroed before, or holds the
 * head's gradient already. */
void dtp_executor_embedding_backward(struct dtp_executor *x)
{
    struct dtp_executor_module *module = &x->modules[0];
    struct dtp_draft draft;
    dtp_executor_await_gradient(x, x->l->last_op[DTP_STREAM_WEIGHT_GRADIENT]);
    x->gradient_read = DTP_NO_OP;
    dtp_executor_open_gradient(x, module);
    dtp_executor_zero_unwritten(x, module);
    dtp_executor_begin(x, &draft, DTP_OP_EMBEDDING_BACKWARD, "embedding");
    dtp_draft_role(&draft, DTP_ROLE_GRADIENT, x->gradient, DTP_READ | DTP_FREE, 0);
    dtp_draft_role(&draft, DTP_ROLE_BATCH, x->batch[x->l->micro_step % 2], DTP_READ, 0);
    dtp_executor_gradient(&draft, DTP_ROLE_WEIGHT_GRADIENT, module, DTP_PARAMETER_EMBEDDING);
    bool learned = dtp_executor_has(module, DTP_PARAMETER_POSITION);
    if (learned)
        dtp_executor_gradient(&draft, DTP_ROLE_POSITION_GRADIENT, module, DTP_PARAMETER_POSITION);
    dtp_executor_memory(&draft, x->rules.tokens, dtp_executor_embedding_backward_bytes(x), learned ? 2 : 1);
    dtp_executor_end(x, &draft);
    dtp_executor_close_gradient(x, module);
}
