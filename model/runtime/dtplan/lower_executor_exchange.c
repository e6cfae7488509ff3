/* Context parallel ranks that exchange tokens for heads (Jacobs et al. 2023, "DeepSpeed-Ulysses"): each has a part of
 * the tokens with all heads, and in attention all tokens with a part of the heads, so that attention is a core that
 * knows windows too.
 *
 * A rank's rows are laid out by chunks of heads, sequences and ranks, [chunk][sequence][rank][token][head], by a kernel
 * that turns queries and keys on the way. Then one all-to-all for each chunk and sequence brings [rank][token], all
 * tokens of that sequence in order: rows that a core reads as they came. Results go back the same way, and one kernel
 * puts them where the rank's own rows are. Chunks (rules.exchange_chunks) are cores one behind the other: a chunk comes
 * while the one before it is attended to, and leaves while the next one is.
 *
 * What is kept of queries, keys and values for backward is kept exchanged: the block's packed tensor becomes that of
 * all tokens. A pass that makes attention again without what made its input finds it so. Of the result the projection
 * behind it reads the rank's own tokens, so that backward exchanges it once more, beside its gradient.
 *
 * All-to-alls are operations of the stream `context`. */
#include "runtime/dtplan/executor_context_work.h"
#include "runtime/dtplan/lower_executor_state.h"

#include "base/bytes.h"

static uint32_t chunks_of(const struct dtp_executor *x)
{
    return x->rules.exchange_chunks;
}

/* Of all chunks, as many on either side. */
static uint64_t bytes_of(const struct dtp_executor *x, enum dtp_executor_part part)
{
    return part == DTP_EXECUTOR_RESULT ? dtp_bytes_product(x->rules.tokens, x->shape->kind.d_q * x->element_bytes)
                                       : dtp_executor_tensor_bytes(x->shape, DTP_TENSOR_QKV);
}

/* The layer's queries and keys are turned on their way; those of latent attention have been. */
static bool turns(const struct dtp_executor *x)
{
    return x->shape->kind.rotary && !x->shape->kind.kv_latent &&
           dtp_transformer_layer_turns(x->t, dtp_lower_model_layer(x->l));
}

/* A copy of the rank's rows to where all-to-alls take them from, or from where they put them. */
static void begin_copy(struct dtp_executor *x, struct dtp_draft *draft, enum dtp_op_kind kind, const char *name,
                       enum dtp_executor_part part)
{
    const bool turned = part == DTP_EXECUTOR_PACKED && turns(x);
    dtp_executor_begin(x, draft, kind, name);
    draft->op.demand.n = part;
    draft->op.demand.k = chunks_of(x);
    if (turned)
        dtp_draft_role(draft, DTP_ROLE_TABLES, x->tables, DTP_READ, 0);
    dtp_executor_memory(draft, x->rules.tokens, dtp_executor_exchange_copied_bytes(x->shape, part, turned), 1);
}

/* `access`: of what is copied, besides that it is read. */
static dtp_buffer_id lay_out(struct dtp_executor *x, const char *name, enum dtp_executor_part part, dtp_buffer_id from,
                             uint32_t access)
{
    struct dtp_draft draft;
    begin_copy(x, &draft, DTP_OP_COPY_IN, name, part);
    dtp_draft_role(&draft, DTP_ROLE_INPUT, from, DTP_READ | access, 0);
    dtp_buffer_id to =
        dtp_executor_new(x, &draft, DTP_ROLE_RESULT, name, DTP_OWNER_WORKSPACE, bytes_of(x, part), DTP_WRITE);
    dtp_executor_end(x, &draft);
    return to;
}

/* A part of its chunk `chunk`. */
static void chunk_role(const struct dtp_executor *x, struct dtp_draft *draft, enum dtp_role role, dtp_buffer_id buffer,
                       uint32_t access, uint64_t bytes, uint32_t chunk)
{
    const uint64_t one = bytes / chunks_of(x);
    dtp_draft_role(draft, role, buffer, access, chunk * one)->bytes = one;
}

/* The same of what is made; where it is not there yet, its first chunk brings it to life. */
static void made_chunk(struct dtp_executor *x, struct dtp_draft *draft, enum dtp_role role, const char *name,
                       enum dtp_owner owner, dtp_buffer_id *buffer, uint64_t bytes, uint32_t chunk)
{
    if (buffer->index != DTP_NO_INDEX) {
        chunk_role(x, draft, role, *buffer, DTP_WRITE, bytes, chunk);
        return;
    }
    *buffer = dtp_executor_new(x, draft, role, name, owner, bytes, DTP_WRITE);
    if (buffer->index != DTP_NO_INDEX)
        draft->operands[draft->operand_count - 1].bytes = bytes / chunks_of(x);
}

/* Rows on their way. */
struct way {
    const char *name;
    enum dtp_executor_part part;
    dtp_buffer_id sent, received;
    dtp_op_id done; /* of the chunk that was sent last */
};

/* One chunk of them, behind all that compute was given so far. */
static void send_chunk(struct dtp_executor *x, struct way *way, enum dtp_owner owner, uint32_t chunk)
{
    const uint64_t pieces = (uint64_t)chunks_of(x) * x->plan->micro_batch, bytes = bytes_of(x, way->part) / pieces;
    for (uint64_t i = 0; i < x->plan->micro_batch; i++) {
        const uint64_t piece = chunk * x->plan->micro_batch + i;
        struct dtp_draft draft;
        dtp_draft_begin(x->l, &draft, DTP_OP_ALL_TO_ALL, way->name);
        dtp_draft_role(&draft, DTP_ROLE_INPUT, way->sent, DTP_READ, piece * bytes)->bytes = bytes;
        if (piece == 0) {
            way->received = dtp_executor_new(x, &draft, DTP_ROLE_RESULT, way->name, owner, pieces * bytes, DTP_WRITE);
            draft.operands[draft.operand_count - 1].bytes = bytes;
        } else {
            dtp_draft_role(&draft, DTP_ROLE_RESULT, way->received, DTP_WRITE, piece * bytes)->bytes = bytes;
        }
        dtp_draft_after(&draft, x->l->last_op[DTP_STREAM_COMPUTE]);
        way->done = dtp_executor_collective(x, &draft, DTP_STREAM_CONTEXT, x->context_group,
                                            dtp_lower_ring(bytes, x->l->context.exchanged));
    }
}

/* A draft whose result, added by the caller, gets the rank's rows; its end is the caller's too. */
static void begin_arrival(struct dtp_executor *x, struct dtp_draft *draft, const struct way *way)
{
    dtp_executor_await(x, DTP_STREAM_CONTEXT, way->done);
    begin_copy(x, draft, DTP_OP_COPY_OUT, way->name, way->part);
    dtp_draft_role(draft, DTP_ROLE_INPUT, way->received, DTP_READ | DTP_FREE, 0);
    dtp_draft_use(draft, way->sent, DTP_FREE);
}

/* Attention over all tokens with a chunk of the rank's heads. */
static void begin_core(struct dtp_executor *x, struct dtp_draft *draft, enum dtp_op_kind kind)
{
    const struct dtp_attention_shape whole =
        dtp_plan_attention(x->t, x->l->cluster, x->plan, dtp_lower_model_layer(x->l));
    struct dtp_demand *demand = &draft->op.demand;
    dtp_executor_begin(x, draft, kind, "attention");
    demand->attention = dtp_context_step(&x->l->context, &whole, 0);
    demand->tokens = dtp_context_step_tokens(&x->l->context, &whole, &demand->attention, (double)x->rules.tokens);
    demand->attention.heads /= chunks_of(x);
    demand->attention.kv_heads /= chunks_of(x);
    demand->flops = dtp_executor_attention_flops(x) / chunks_of(x);
}

void dtp_executor_exchange_forward(struct dtp_executor *x, struct dtp_draft *draft,
                                   const struct dtp_executor_exchanged *of)
{
    const uint32_t chunks = chunks_of(x);
    const uint64_t qkv = bytes_of(x, DTP_EXECUTOR_PACKED), result = bytes_of(x, DTP_EXECUTOR_RESULT),
                   statistics = dtp_executor_tensor_bytes(x->shape, DTP_TENSOR_CORE_STATE);
    struct way in = {dtp_executor_tensor_name(DTP_TENSOR_QKV), DTP_EXECUTOR_PACKED, DTP_NO_BUFFER, *of->qkv, DTP_NO_OP},
               back = {"result", DTP_EXECUTOR_RESULT, DTP_NO_BUFFER, DTP_NO_BUFFER, DTP_NO_OP};
    dtp_op_id came[DTP_CONTEXT_MOST_CHUNKS];
    if (!of->inputs_came)
        in.sent = lay_out(x, in.name, in.part, *of->qkv, DTP_FREE);
    for (uint32_t chunk = 0; chunk < chunks; chunk++) {
        if (!of->inputs_came)
            send_chunk(x, &in, DTP_OWNER_ACTIVATIONS, chunk);
        came[chunk] = in.done;
    }
    for (uint32_t chunk = 0; chunk < chunks; chunk++) {
        const uint32_t last = chunk + 1 == chunks ? DTP_FREE : 0;
        dtp_executor_await(x, DTP_STREAM_CONTEXT, came[chunk]);
        begin_core(x, draft, DTP_OP_ATTENTION);
        chunk_role(x, draft, DTP_ROLE_INPUT, in.received, DTP_READ | (of->inputs_go ? last : 0), qkv, chunk);
        made_chunk(x, draft, DTP_ROLE_RESULT, "result of all tokens", DTP_OWNER_WORKSPACE, &back.sent, result, chunk);
        made_chunk(x, draft, DTP_ROLE_STATISTICS, dtp_executor_tensor_name(DTP_TENSOR_CORE_STATE),
                   DTP_OWNER_ACTIVATIONS, of->statistics, statistics, chunk);
        if (of->statistics_go)
            draft->operands[draft->operand_count - 1].access |= (uint8_t)last;
        dtp_executor_new(x, draft, DTP_ROLE_WORKSPACE, "attention workspace", DTP_OWNER_WORKSPACE,
                         x->rules.attention_workspace_bytes, DTP_UPDATE | DTP_FREE);
        if (last)
            dtp_draft_use(draft, in.sent, DTP_FREE);
        draft->op.demand.kernels = 1;
        dtp_executor_end(x, draft);
        send_chunk(x, &back, DTP_OWNER_WORKSPACE, chunk);
    }
    *of->qkv = of->inputs_go ? DTP_NO_BUFFER : in.received;
    if (of->statistics_go)
        *of->statistics = DTP_NO_BUFFER;
    begin_arrival(x, draft, &back);
}

/* A chunk's core; with the last one goes what all have read. */
static void core_backward(struct dtp_executor *x, const struct dtp_executor_core *core, const struct way *result,
                          const struct way *gradient, dtp_buffer_id *made, uint32_t chunk)
{
    const uint64_t packed = bytes_of(x, DTP_EXECUTOR_PACKED), rows = bytes_of(x, DTP_EXECUTOR_RESULT),
                   statistics = dtp_executor_tensor_bytes(x->shape, DTP_TENSOR_CORE_STATE);
    const uint32_t last = chunk + 1 == chunks_of(x) ? DTP_FREE : 0;
    struct dtp_draft draft;
    begin_core(x, &draft, DTP_OP_ATTENTION_BACKWARD);
    chunk_role(x, &draft, DTP_ROLE_INPUT, core->qkv, DTP_READ | last, packed, chunk);
    chunk_role(x, &draft, DTP_ROLE_SAVED, result->received, DTP_READ | last, rows, chunk);
    chunk_role(x, &draft, DTP_ROLE_STATISTICS, core->statistics, DTP_READ | last, statistics, chunk);
    chunk_role(x, &draft, DTP_ROLE_GRADIENT, gradient->received, DTP_READ | last, rows, chunk);
    made_chunk(x, &draft, DTP_ROLE_INPUT_GRADIENT, "qkv gradient of all tokens", DTP_OWNER_WORKSPACE, made, packed,
               chunk);
    dtp_executor_new(x, &draft, DTP_ROLE_WORKSPACE, "attention workspace", DTP_OWNER_WORKSPACE,
                     x->rules.attention_backward_workspace_bytes, DTP_UPDATE | DTP_FREE);
    if (last) {
        dtp_draft_use(&draft, result->sent, DTP_FREE);
        dtp_draft_use(&draft, gradient->sent, DTP_FREE);
    }
    draft.op.demand.flops *= DTP_ATTENTION_BACKWARD_FLOPS;
    draft.op.demand.kernels = DTP_EXECUTOR_ATTENTION_BACKWARD_LAUNCHES;
    dtp_executor_end(x, &draft);
}

dtp_buffer_id dtp_executor_exchange_backward(struct dtp_executor *x, const struct dtp_executor_core *core)
{
    const uint32_t chunks = chunks_of(x);
    struct way result = {"result", DTP_EXECUTOR_RESULT, DTP_NO_BUFFER, DTP_NO_BUFFER, DTP_NO_OP}, gradient = result,
               back = {"qkv gradient", DTP_EXECUTOR_PACKED, DTP_NO_BUFFER, DTP_NO_BUFFER, DTP_NO_OP};
    dtp_op_id came[DTP_CONTEXT_MOST_CHUNKS];
    struct dtp_draft draft;
    gradient.name = "result gradient";
    result.sent = lay_out(x, result.name, result.part, core->result, core->result_access & DTP_FREE);
    gradient.sent = lay_out(x, gradient.name, gradient.part, core->gradient, DTP_FREE);
    for (uint32_t chunk = 0; chunk < chunks; chunk++) {
        send_chunk(x, &result, DTP_OWNER_WORKSPACE, chunk);
        send_chunk(x, &gradient, DTP_OWNER_WORKSPACE, chunk);
        came[chunk] = gradient.done;
    }
    dtp_executor_issue_left(x, false);
    for (uint32_t chunk = 0; chunk < chunks; chunk++) {
        dtp_executor_await(x, DTP_STREAM_CONTEXT, came[chunk]);
        core_backward(x, core, &result, &gradient, &back.sent, chunk);
        send_chunk(x, &back, DTP_OWNER_WORKSPACE, chunk);
    }
    dtp_executor_issue_left(x, true);
    begin_arrival(x, &draft, &back);
    dtp_buffer_id made = dtp_executor_new(x, &draft, DTP_ROLE_RESULT, back.name, DTP_OWNER_WORKSPACE,
                                          bytes_of(x, DTP_EXECUTOR_PACKED), DTP_WRITE);
    dtp_executor_end(x, &draft);
    return made;
}
