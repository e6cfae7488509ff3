/* Context parallel ranks that exchange tokens for heads (Jacobs et al. 2023, "DeepSpeed-Ulysses"): each has a part of
 * the tokens with all heads, and in attention all tokens with a part of the heads, so that attention is one core, which
 * knows windows too.
 *
 * Queries, keys and values go by an all-to-all each, the result comes back by one. What is kept of them for backward is
 * kept exchanged: the block's packed tensor becomes that of all tokens. A pass that makes attention again without what
 * made its input finds it so. Of the result the projection behind it reads the rank's own tokens, so that backward
 * exchanges it once more, beside its gradient.
 *
 * Operations of the stream `context`; copies before and behind put each rank's part side by side. */
#include "runtime/dtplan/executor_context_work.h"
#include "runtime/dtplan/lower_executor_state.h"

#include "base/bytes.h"

static uint64_t part_bytes(const struct dtp_executor *x, enum dtp_executor_part part)
{
    bool queries = part == DTP_EXECUTOR_QUERIES || part == DTP_EXECUTOR_RESULT;
    return dtp_bytes_product(x->rules.tokens, (queries ? x->shape->kind.d_q : x->shape->kind.d_kv) * x->element_bytes);
}

static uint64_t whole_bytes(const struct dtp_executor *x, enum dtp_executor_part part)
{
    return part == DTP_EXECUTOR_RESULT ? part_bytes(x, part) : dtp_executor_tensor_bytes(x->shape, DTP_TENSOR_QKV);
}

/* What part of a packed row moves, and which way. */
static void say(struct dtp_executor *x, struct dtp_draft *draft, enum dtp_executor_part part, bool back)
{
    draft->op.demand.n = part;
    draft->op.demand.k = back;
    dtp_executor_memory(draft, x->rules.tokens, 2 * (double)part_bytes(x, part), 1);
}

/* A part on its way. */
struct way {
    dtp_buffer_id sent, received;
    dtp_op_id done;
};

/* `access`: of what it is sent from, besides that it is read. */
static struct way send(struct dtp_executor *x, const char *name, enum dtp_executor_part part, bool back,
                       dtp_buffer_id from, uint32_t access)
{
    struct way way;
    struct dtp_draft draft;
    uint64_t bytes = part_bytes(x, part);
    dtp_executor_begin(x, &draft, DTP_OP_COPY_IN, name);
    dtp_draft_role(&draft, DTP_ROLE_INPUT, from, DTP_READ | access, 0);
    way.sent = dtp_executor_new(x, &draft, DTP_ROLE_RESULT, name, DTP_OWNER_WORKSPACE, bytes, DTP_WRITE);
    say(x, &draft, part, back);
    dtp_executor_end(x, &draft);
    dtp_draft_begin(x->l, &draft, DTP_OP_ALL_TO_ALL, name);
    dtp_draft_role(&draft, DTP_ROLE_INPUT, way.sent, DTP_READ, 0);
    way.received = dtp_executor_new(x, &draft, DTP_ROLE_RESULT, name, DTP_OWNER_WORKSPACE, bytes, DTP_WRITE);
    dtp_draft_after(&draft, x->l->last_op[DTP_STREAM_COMPUTE]);
    way.done = dtp_executor_collective(x, &draft, DTP_STREAM_CONTEXT, x->context_group,
                                       dtp_lower_ring(bytes, x->l->context.exchanged));
    return way;
}

/* A draft whose result, added by the caller, gets the part; its end is the caller's too. */
static void begin_arrival(struct dtp_executor *x, struct dtp_draft *draft, const char *name, const struct way *way,
                          enum dtp_executor_part part, bool back)
{
    dtp_executor_await(x, DTP_STREAM_CONTEXT, way->done);
    dtp_executor_begin(x, draft, DTP_OP_COPY_OUT, name);
    dtp_draft_role(draft, DTP_ROLE_INPUT, way->received, DTP_READ | DTP_FREE, 0);
    dtp_draft_use(draft, way->sent, DTP_FREE);
    say(x, draft, part, back);
}

static dtp_buffer_id arrive(struct dtp_executor *x, const char *name, enum dtp_executor_part part, bool back,
                            const struct way *way, enum dtp_owner owner)
{
    struct dtp_draft draft;
    begin_arrival(x, &draft, name, way, part, back);
    dtp_buffer_id to = dtp_executor_new(x, &draft, DTP_ROLE_RESULT, name, owner, whole_bytes(x, part), DTP_WRITE);
    dtp_executor_end(x, &draft);
    return to;
}

/* Queries, keys and values of a packed tensor, which goes. */
static dtp_buffer_id exchange_packed(struct dtp_executor *x, bool back, dtp_buffer_id from, const char *result,
                                     enum dtp_owner owner)
{
    static const char *const names[] = {"queries", "keys", "values"};
    struct way way[3];
    dtp_buffer_id to = DTP_NO_BUFFER;
    for (int i = 0; i < 3; i++)
        way[i] = send(x, names[i], (enum dtp_executor_part)i, back, from, i == 2 ? DTP_FREE : 0);
    if (back)
        dtp_executor_issue_left(x, true);
    for (int i = 0; i < 3; i++) {
        struct dtp_draft draft;
        begin_arrival(x, &draft, names[i], &way[i], (enum dtp_executor_part)i, back);
        if (i == 0)
            to = dtp_executor_new(x, &draft, DTP_ROLE_RESULT, result, owner, whole_bytes(x, DTP_EXECUTOR_QUERIES),
                                  DTP_WRITE);
        else
            dtp_draft_role(&draft, DTP_ROLE_RESULT, to, DTP_WRITE, 0);
        dtp_executor_end(x, &draft);
    }
    return to;
}

static void begin_core(struct dtp_executor *x, struct dtp_draft *draft, enum dtp_op_kind kind)
{
    const struct dtp_attention_shape whole =
        dtp_plan_attention(x->t, x->l->cluster, x->plan, dtp_lower_model_layer(x->l));
    dtp_executor_begin(x, draft, kind, "attention");
    draft->op.demand.attention = dtp_context_step(&x->l->context, &whole, 0);
    draft->op.demand.tokens =
        dtp_context_step_tokens(&x->l->context, &whole, &draft->op.demand.attention, (double)x->rules.tokens);
    draft->op.demand.flops = dtp_executor_attention_flops(x);
}

void dtp_executor_exchange_inputs(struct dtp_executor *x, dtp_buffer_id *qkv)
{
    *qkv = exchange_packed(x, false, *qkv, dtp_executor_tensor_name(DTP_TENSOR_QKV), DTP_OWNER_ACTIVATIONS);
}

dtp_buffer_id dtp_executor_exchange_core(struct dtp_executor *x, struct dtp_draft *draft, dtp_buffer_id qkv)
{
    begin_core(x, draft, DTP_OP_ATTENTION);
    dtp_draft_role(draft, DTP_ROLE_INPUT, qkv, DTP_READ, 0);
    dtp_buffer_id core = dtp_executor_new(x, draft, DTP_ROLE_RESULT, "result of all tokens", DTP_OWNER_WORKSPACE,
                                          part_bytes(x, DTP_EXECUTOR_RESULT), DTP_WRITE);
    dtp_executor_new(x, draft, DTP_ROLE_WORKSPACE, "attention workspace", DTP_OWNER_WORKSPACE,
                     x->rules.attention_workspace_bytes, DTP_UPDATE | DTP_FREE);
    draft->op.demand.kernels = 1;
    return core;
}

void dtp_executor_exchange_result(struct dtp_executor *x, struct dtp_draft *draft, dtp_buffer_id core)
{
    struct way way = send(x, "result", DTP_EXECUTOR_RESULT, true, core, DTP_FREE);
    begin_arrival(x, draft, "result", &way, DTP_EXECUTOR_RESULT, true);
}

dtp_buffer_id dtp_executor_exchange_backward(struct dtp_executor *x, const struct dtp_executor_core *core)
{
    struct dtp_draft draft;
    struct way of_result = send(x, "result", DTP_EXECUTOR_RESULT, false, core->result, core->result_access & DTP_FREE);
    struct way of_gradient = send(x, "result gradient", DTP_EXECUTOR_RESULT, false, core->gradient, DTP_FREE);
    dtp_executor_issue_left(x, false);
    dtp_buffer_id result = arrive(x, "result", DTP_EXECUTOR_RESULT, false, &of_result, DTP_OWNER_WORKSPACE);
    dtp_buffer_id gradient =
        arrive(x, "result gradient", DTP_EXECUTOR_RESULT, false, &of_gradient, DTP_OWNER_WORKSPACE);
    begin_core(x, &draft, DTP_OP_ATTENTION_BACKWARD);
    dtp_draft_role(&draft, DTP_ROLE_INPUT, core->qkv, DTP_READ | DTP_FREE, 0);
    dtp_draft_role(&draft, DTP_ROLE_SAVED, result, DTP_READ | DTP_FREE, 0);
    dtp_draft_role(&draft, DTP_ROLE_STATISTICS, core->statistics, DTP_READ | DTP_FREE, 0);
    dtp_draft_role(&draft, DTP_ROLE_GRADIENT, gradient, DTP_READ | DTP_FREE, 0);
    dtp_buffer_id made = dtp_executor_new(x, &draft, DTP_ROLE_INPUT_GRADIENT, "qkv gradient of all tokens",
                                          DTP_OWNER_WORKSPACE, whole_bytes(x, DTP_EXECUTOR_QUERIES), DTP_WRITE);
    dtp_executor_new(x, &draft, DTP_ROLE_WORKSPACE, "attention workspace", DTP_OWNER_WORKSPACE,
                     x->rules.attention_backward_workspace_bytes, DTP_UPDATE | DTP_FREE);
    draft.op.demand.flops *= DTP_ATTENTION_BACKWARD_FLOPS;
    draft.op.demand.kernels = DTP_EXECUTOR_ATTENTION_BACKWARD_LAUNCHES;
    dtp_executor_end(x, &draft);
    return exchange_packed(x, true, made, "qkv gradient", DTP_OWNER_WORKSPACE);
}
