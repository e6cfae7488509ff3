/* Forward of the embedding and of blocks, and what of it checkpointed blocks repeat. */
#include "runtime/dtplan/lower_executor_state.h"

#include "base/bytes.h"

#define ALL_TENSORS ((1u << DTP_EXECUTOR_TENSOR_COUNT) - 1)

/* What a block keeps: with full checkpointing its input; selective all matmuls' and attention's results, and the norms'
 * statistics, for norms and the MLP's product are cheap to make again; selective-attention everything but the core's.
 */
uint32_t dtp_executor_kept(const struct dtp_executor *x, uint64_t layer)
{
    const uint32_t made_again =
        DTP_EXECUTOR_TENSOR_BIT(NORM1) | DTP_EXECUTOR_TENSOR_BIT(NORM2) | DTP_EXECUTOR_TENSOR_BIT(PRODUCT);
    if (!dtp_lower_checkpointed(x->l, layer))
        return ALL_TENSORS;
    switch (x->l->checkpointing.keeps) {
    case DTP_KEEPS_ALL: break;
    case DTP_KEEPS_INPUT: return DTP_EXECUTOR_TENSOR_BIT(INPUT);
    case DTP_KEEPS_ALL_BUT_CORE:
        return ALL_TENSORS & ~(DTP_EXECUTOR_TENSOR_BIT(CORE) | DTP_EXECUTOR_TENSOR_BIT(LOG_SUM_EXP));
    case DTP_KEEPS_SECOND_MATMULS: return ALL_TENSORS & ~made_again;
    }
    return ALL_TENSORS;
}

/* One pass over a block: forward, or its replay, which keeps all that it makes. */
struct pass {
    struct dtp_executor *x;
    uint64_t layer;
    uint32_t kept;
    bool replay;
};

static dtp_buffer_id *tensor_of(const struct pass *pass, enum dtp_executor_tensor tensor)
{
    return &pass->x->tensors[pass->layer][tensor];
}

/* A result; freed by the operation itself where nobody reads it before backward, which does not keep it. */
static void make(const struct pass *pass, struct dtp_draft *draft, enum dtp_role role, enum dtp_executor_tensor tensor,
                 bool used_in_forward)
{
    static const char *const names[DTP_EXECUTOR_TENSOR_COUNT] = {
#define NAME(suffix, text) text,
        DTP_EXECUTOR_TENSOR_TABLE(NAME)
#undef NAME
    };
    struct dtp_executor *x = pass->x;
    dtp_buffer_id *buffer = tensor_of(pass, tensor);
    if (buffer->index != DTP_NO_INDEX) { /* a kept one is written once more */
        dtp_draft_role(draft, role, *buffer, DTP_WRITE, 0);
        return;
    }
    bool goes = !used_in_forward && !(pass->kept & 1u << tensor);
    *buffer = dtp_executor_new(x, draft, role, names[tensor], DTP_OWNER_ACTIVATIONS, x->tensor_bytes[tensor],
                               DTP_WRITE | (goes ? DTP_FREE : 0));
    if (goes)
        *buffer = DTP_NO_BUFFER;
}

/* An input; `last`: forward reads it no more. */
static void take(const struct pass *pass, struct dtp_draft *draft, enum dtp_role role, enum dtp_executor_tensor tensor,
                 bool last)
{
    dtp_buffer_id *buffer = tensor_of(pass, tensor);
    bool goes = last && !(pass->kept & 1u << tensor);
    dtp_draft_role(draft, role, *buffer, DTP_READ | (goes ? DTP_FREE : 0), 0);
    if (goes)
        *buffer = DTP_NO_BUFFER;
}

/* ---- pieces ------------------------------------------------------------------------------------------------------ */

static void norm(const struct pass *pass, int which)
{
    struct dtp_executor *x = pass->x;
    struct dtp_executor_module *module = dtp_executor_block(x, pass->layer);
    bool first = which == 1;
    enum dtp_parameter weight = first ? DTP_PARAMETER_NORM1 : DTP_PARAMETER_NORM2, bias = weight + 1;
    struct dtp_draft draft;
    dtp_executor_begin(x, &draft, DTP_OP_NORM, first ? "norm 1" : "norm 2");
    take(pass, &draft, DTP_ROLE_INPUT, first ? DTP_EXECUTOR_TENSOR_INPUT : DTP_EXECUTOR_TENSOR_MIDDLE, false);
    dtp_executor_weight(x, &draft, DTP_ROLE_WEIGHT, module, weight);
    if (dtp_executor_has(module, bias))
        dtp_executor_weight(x, &draft, DTP_ROLE_BIAS, module, bias);
    make(pass, &draft, DTP_ROLE_RESULT, first ? DTP_EXECUTOR_TENSOR_NORM1 : DTP_EXECUTOR_TENSOR_NORM2, true);
    make(pass, &draft, DTP_ROLE_STATISTICS, first ? DTP_EXECUTOR_TENSOR_STATISTICS1 : DTP_EXECUTOR_TENSOR_STATISTICS2,
         false);
    dtp_executor_memory(&draft, x->rules.tokens, dtp_executor_norm_bytes(x), 1);
    dtp_executor_end(x, &draft);
}

struct linear {
    const char *name;
    enum dtp_parameter weight, bias;
    enum dtp_executor_tensor input;
    uint64_t out, in;
};

static void linear_begin(const struct pass *pass, struct dtp_draft *draft, const struct linear *linear)
{
    struct dtp_executor *x = pass->x;
    struct dtp_executor_module *module = dtp_executor_block(x, pass->layer);
    dtp_executor_begin(x, draft, DTP_OP_MATMUL, linear->name);
    take(pass, draft, DTP_ROLE_INPUT, linear->input, true);
    dtp_executor_weight(x, draft, DTP_ROLE_WEIGHT, module, linear->weight);
    if (dtp_executor_has(module, linear->bias))
        dtp_executor_weight(x, draft, DTP_ROLE_BIAS, module, linear->bias);
    dtp_executor_matmul(x, draft, x->rules.tokens, linear->out, linear->in);
}

/* q and k in place, before RoPE turns them; backward reads them as they were. */
static void qk_norm(const struct pass *pass)
{
    struct dtp_executor *x = pass->x;
    struct dtp_draft draft;
    dtp_executor_begin(x, &draft, DTP_OP_QK_NORM, "q and k norms");
    dtp_draft_role(&draft, DTP_ROLE_RESULT, *tensor_of(pass, DTP_EXECUTOR_TENSOR_QKV), DTP_UPDATE, 0);
    dtp_executor_weight(x, &draft, DTP_ROLE_WEIGHT, dtp_executor_block(x, pass->layer), DTP_PARAMETER_QK_NORM);
    make(pass, &draft, DTP_ROLE_SAVED, DTP_EXECUTOR_TENSOR_QK_RAW, false);
    make(pass, &draft, DTP_ROLE_STATISTICS, DTP_EXECUTOR_TENSOR_QK_STATISTICS, false);
    dtp_executor_memory(&draft, x->rules.tokens, dtp_executor_qk_norm_bytes(x), 1);
    dtp_executor_end(x, &draft);
}

static void qkv(const struct pass *pass)
{
    struct dtp_executor *x = pass->x;
    struct linear linear = {
        "qkv", DTP_PARAMETER_QKV, DTP_PARAMETER_QKV_BIAS, DTP_EXECUTOR_TENSOR_NORM1, x->d_q + 2 * x->d_kv, x->h};
    struct dtp_draft draft;
    linear_begin(pass, &draft, &linear);
    make(pass, &draft, DTP_ROLE_RESULT, DTP_EXECUTOR_TENSOR_QKV, true);
    dtp_executor_end(x, &draft);
    if (x->t->qk_norm)
        qk_norm(pass);
    if (x->t->position != DTP_POSITION_ROPE)
        return;
    dtp_executor_begin(x, &draft, DTP_OP_ROTARY, "rotary");
    dtp_draft_role(&draft, DTP_ROLE_RESULT, *tensor_of(pass, DTP_EXECUTOR_TENSOR_QKV), DTP_UPDATE, 0);
    dtp_draft_role(&draft, DTP_ROLE_TABLES, x->tables, DTP_READ, 0);
    dtp_executor_memory(&draft, x->rules.tokens, dtp_executor_rotary_bytes(x), 1);
    dtp_executor_end(x, &draft);
}

static void attention(const struct pass *pass)
{
    struct dtp_executor *x = pass->x;
    struct dtp_draft draft;
    dtp_executor_begin(x, &draft, DTP_OP_ATTENTION, "attention");
    take(pass, &draft, DTP_ROLE_INPUT, DTP_EXECUTOR_TENSOR_QKV, true);
    make(pass, &draft, DTP_ROLE_RESULT, DTP_EXECUTOR_TENSOR_CORE, true);
    make(pass, &draft, DTP_ROLE_STATISTICS, DTP_EXECUTOR_TENSOR_LOG_SUM_EXP, false);
    dtp_executor_new(x, &draft, DTP_ROLE_WORKSPACE, "attention workspace", DTP_OWNER_WORKSPACE,
                     x->rules.attention_workspace_bytes, DTP_UPDATE | DTP_FREE);
    draft.op.demand.tokens = (double)x->rules.tokens;
    draft.op.demand.flops = dtp_executor_attention_flops(x, pass->layer);
    draft.op.demand.kernels = 1;
    dtp_executor_end(x, &draft);
}

static void output(const struct pass *pass)
{
    struct dtp_executor *x = pass->x;
    struct linear linear = {"output", DTP_PARAMETER_OUTPUT, DTP_PARAMETER_OUTPUT_BIAS, DTP_EXECUTOR_TENSOR_CORE, x->h,
                            x->d_q};
    struct dtp_draft draft;
    linear_begin(pass, &draft, &linear);
    take(pass, &draft, DTP_ROLE_ADDEND, DTP_EXECUTOR_TENSOR_INPUT, true);
    make(pass, &draft, DTP_ROLE_RESULT, DTP_EXECUTOR_TENSOR_MIDDLE, true);
    dtp_executor_end(x, &draft);
}

static void up(const struct pass *pass)
{
    struct dtp_executor *x = pass->x;
    bool epilogue = x->plan->executor.gelu_epilogue;
    struct linear linear = {"up", DTP_PARAMETER_UP, DTP_PARAMETER_UP_BIAS, DTP_EXECUTOR_TENSOR_NORM2, x->rules.up_width,
                            x->h};
    struct dtp_draft draft;
    linear_begin(pass, &draft, &linear);
    make(pass, &draft, epilogue ? DTP_ROLE_AUX : DTP_ROLE_RESULT, DTP_EXECUTOR_TENSOR_UP, !epilogue);
    if (epilogue)
        make(pass, &draft, DTP_ROLE_RESULT, DTP_EXECUTOR_TENSOR_PRODUCT, true);
    dtp_executor_end(x, &draft);
    if (epilogue)
        return;
    dtp_executor_begin(x, &draft, DTP_OP_ACTIVATION, "activation");
    take(pass, &draft, DTP_ROLE_INPUT, DTP_EXECUTOR_TENSOR_UP, true);
    make(pass, &draft, DTP_ROLE_RESULT, DTP_EXECUTOR_TENSOR_PRODUCT, true);
    dtp_executor_memory(&draft, x->rules.tokens, dtp_executor_activation_bytes(x), 1);
    dtp_executor_end(x, &draft);
}

/* Its result is the residual stream, which the next block keeps as its input or the final norm reads. */
static void down(const struct pass *pass)
{
    struct dtp_executor *x = pass->x;
    struct linear linear = {"down", DTP_PARAMETER_DOWN, DTP_PARAMETER_DOWN_BIAS, DTP_EXECUTOR_TENSOR_PRODUCT, x->h,
                            x->f};
    struct dtp_draft draft;
    linear_begin(pass, &draft, &linear);
    take(pass, &draft, DTP_ROLE_ADDEND, DTP_EXECUTOR_TENSOR_MIDDLE, true);
    x->stream_input = dtp_executor_new(x, &draft, DTP_ROLE_RESULT, "block input", DTP_OWNER_ACTIVATIONS,
                                       x->tensor_bytes[DTP_EXECUTOR_TENSOR_INPUT], DTP_WRITE);
    dtp_executor_end(x, &draft);
}

static void run(const struct pass *pass)
{
    norm(pass, 1);
    qkv(pass);
    attention(pass);
    output(pass);
    norm(pass, 2);
    up(pass);
    if (!pass->replay)
        down(pass);
}

/* ---- the skeleton's -------------------------------------------------------------------------------------------- */

void dtp_executor_embedding(struct dtp_executor *x)
{
    struct dtp_executor_module *module = &x->modules[0];
    struct dtp_draft draft;
    bool learned = dtp_executor_has(module, DTP_PARAMETER_POSITION);
    dtp_executor_begin(x, &draft, DTP_OP_EMBEDDING, "embedding");
    dtp_draft_role(&draft, DTP_ROLE_BATCH, x->batch[x->l->micro_step % 2], DTP_READ, 0);
    dtp_executor_weight(x, &draft, DTP_ROLE_WEIGHT, module, DTP_PARAMETER_EMBEDDING);
    if (learned)
        dtp_executor_weight(x, &draft, DTP_ROLE_POSITION, module, DTP_PARAMETER_POSITION);
    x->stream_input = dtp_executor_new(x, &draft, DTP_ROLE_RESULT, "block input", DTP_OWNER_ACTIVATIONS,
                                       x->tensor_bytes[DTP_EXECUTOR_TENSOR_INPUT], DTP_WRITE);
    dtp_executor_memory(&draft, x->rules.tokens, dtp_executor_embedding_bytes(x), 1);
    dtp_executor_end(x, &draft);
}

void dtp_executor_block_forward(struct dtp_executor *x, uint64_t layer)
{
    struct pass pass = {x, layer, dtp_executor_kept(x, layer), false};
    for (int i = 0; i < DTP_EXECUTOR_TENSOR_COUNT; i++)
        x->tensors[layer][i] = DTP_NO_BUFFER;
    x->tensors[layer][DTP_EXECUTOR_TENSOR_INPUT] = x->stream_input;
    run(&pass);
}

void dtp_executor_block_replay(struct dtp_executor *x, uint64_t layer)
{
    struct pass pass = {x, layer, ALL_TENSORS, true};
    x->l->recompute = true;
    run(&pass);
    x->l->recompute = false;
}

void dtp_executor_norm_again(struct dtp_executor *x, uint64_t layer, int which)
{
    struct pass pass = {x, layer, ALL_TENSORS, true};
    x->l->recompute = true;
    norm(&pass, which);
    x->l->recompute = false;
}

void dtp_executor_attention_again(struct dtp_executor *x, uint64_t layer)
{
    struct pass pass = {x, layer, ALL_TENSORS, true};
    x->l->recompute = true;
    attention(&pass);
    x->l->recompute = false;
}
