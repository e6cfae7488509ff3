/* Attention of context parallel ranks, backward: what plan/context.h says of the steps, taken from the first again.
 *
 *   ring      keys and values go around once more, from the second step on with the gradients that ranks have added up
 *             for them so far, and at last the gradients alone: 2 (r - 1) times as much as forward sent once
 *   gathered  keys and values are gathered again, their gradients summed over ranks by reduce-scatters
 *   walked    keys and values come as in forward; their gradients go around in fp32, to each rank once
 *   exchange  of the result's gradient before, of those of queries, keys and values behind
 *
 * Transformer Engine 2.8 and PyTorch 2.11, the files that lower_context_parallel.c names. */
#include "lower/lower_context.h"

static dtp_buffer_id result_gradient(const struct dtp_block_backward *b)
{
    return b->gradient[b->l->tensor_bytes[DTP_TENSOR_CORE_COPY] ? DTP_TENSOR_CORE_COPY : DTP_TENSOR_CORE];
}

static void make_gradients(struct dtp_block_backward *b, struct dtp_draft *draft, bool queries, bool keys)
{
    struct dtp_lowering *l = b->l;
    uint64_t q = dtp_context_q_bytes(l), kv = dtp_context_kv_bytes(l) / 2;
    if (queries)
        b->gradient[DTP_TENSOR_Q_RAW] = dtp_backward_workspace(l, draft, "q gradient", q, DTP_WRITE);
    if (keys) {
        b->gradient[DTP_TENSOR_K_RAW] = dtp_backward_workspace(l, draft, "k gradient", kv, DTP_WRITE);
        b->gradient[DTP_TENSOR_V] = dtp_backward_workspace(l, draft, "v gradient", kv, DTP_WRITE);
    }
}

/* ---- one core ---------------------------------------------------------------------------------------------------- */

/* What one step's core makes. */
struct gradients {
    dtp_buffer_id queries, keys;
    uint64_t query_bytes, key_bytes; /* keys' with values' */
};

static struct gradients bytes_of_step(const struct dtp_lowering *l, uint32_t step)
{
    const struct dtp_attention_shape whole =
        dtp_plan_attention(l->transformer, l->cluster, l->plan, dtp_lower_model_layer(l));
    const struct dtp_attention_shape shape = dtp_context_step(&l->context, &whole, step);
    uint64_t of_rank = whole.keys / l->context.ring;
    return (struct gradients){.query_bytes = dtp_context_q_bytes(l) / of_rank * shape.queries,
                              .key_bytes = dtp_context_kv_bytes(l) / of_rank * shape.keys};
}

/* The draft holds what of keys and values the step reads. Flash kernels sum dq in fp32, in memory of their own. */
static struct gradients end_core(struct dtp_block_backward *b, struct dtp_draft *draft,
                                 const struct dtp_context_inputs *inputs, uint32_t step)
{
    struct dtp_lowering *l = b->l;
    struct gradients made = bytes_of_step(l, step);
    dtp_context_use(draft, inputs);
    dtp_draft_use(draft, result_gradient(b), DTP_READ);
    made.queries = dtp_backward_workspace(l, draft, "q gradient of a step", made.query_bytes, DTP_WRITE);
    made.keys = dtp_backward_workspace(l, draft, "k and v gradients of a step", made.key_bytes, DTP_WRITE);
    dtp_backward_workspace(l, draft, "attention workspace", dtp_context_wide(l, made.query_bytes),
                           DTP_UPDATE | DTP_FREE);
    dtp_draft_end(l, draft);
    return made;
}

static void begin_merge(struct dtp_lowering *l, struct dtp_draft *draft, const struct gradients *made)
{
    dtp_draft_begin(l, draft, DTP_OP_MERGE, "gradients");
    dtp_draft_use(draft, made->queries, DTP_READ | DTP_FREE);
    dtp_draft_use(draft, made->keys, DTP_READ | DTP_FREE);
}

/* ---- ring -------------------------------------------------------------------------------------------------------- */

/* Two places, each for keys and values and for their gradients: what is at hand, and what comes next. */
static void send_on(struct dtp_lowering *l, dtp_buffer_id places, uint32_t step)
{
    uint64_t kv = dtp_context_kv_bytes(l), bytes = kv, skipped = 0;
    uint32_t last = l->context.steps - 1, at_hand = step % 2, next = 1 - at_hand;
    if (step == last)
        skipped = kv;
    else if (step > 0)
        bytes = 2 * kv;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_SHIFT, step == 0 ? "keys and values" : "keys, values, gradients");
    if (step == last)
        draft.op.name = "gradients of keys and values";
    dtp_context_part(&draft, DTP_ROLE_INPUT, places, DTP_READ, at_hand * 2 * kv + skipped, bytes);
    dtp_context_part(&draft, DTP_ROLE_RESULT, places, DTP_WRITE, next * 2 * kv + skipped, bytes);
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_COMPUTE]);
    l->awaited = dtp_context_issue(l, &draft, bytes);
}

/* A step's gradients are added to the rank's of queries and to what was received of keys' and values': read, read and
 * written; copied the first time. */
static void ring(struct dtp_block_backward *b, struct dtp_draft *draft, const struct dtp_context_inputs *inputs)
{
    struct dtp_lowering *l = b->l;
    uint64_t kv = dtp_context_kv_bytes(l);
    dtp_buffer_id places = dtp_context_side_by_side(l, inputs, 4 * kv);
    for (uint32_t step = 0; step < l->context.steps; step++) {
        send_on(l, places, step);
        dtp_op_id received = l->awaited;
        l->awaited = DTP_NO_OP; /* the core runs beside; what it reads was awaited before */
        dtp_context_core(l, draft, DTP_OP_ATTENTION_BACKWARD, step);
        dtp_context_part(draft, DTP_ROLE_INPUT, places, DTP_READ, step % 2 * 2 * kv, kv);
        struct gradients made = end_core(b, draft, inputs, step);
        begin_merge(l, draft, &made);
        if (step == 0)
            make_gradients(b, draft, true, false);
        else
            dtp_draft_use(draft, b->gradient[DTP_TENSOR_Q_RAW], DTP_UPDATE);
        if (step + 1 < l->context.steps)
            dtp_context_part(draft, DTP_ROLE_RESULT, places, DTP_UPDATE, (1 - step % 2) * 2 * kv + kv, kv);
        dtp_draft_memory(l, draft, (step == 0 ? 2 : 3) * (double)(made.query_bytes + made.key_bytes), 2);
        l->awaited = received;
        if (step + 1 < l->context.steps)
            dtp_draft_end(l, draft);
    }
    make_gradients(b, draft, false, true);
    dtp_draft_use(draft, places, DTP_READ | DTP_FREE);
}

/* ---- gathered ---------------------------------------------------------------------------------------------------- */

static void by_pieces(struct dtp_block_backward *b, struct dtp_draft *draft, const struct dtp_context_inputs *inputs)
{
    static const char *const names[] = {"all k gradients", "all v gradients"};
    struct dtp_lowering *l = b->l;
    uint64_t all_bytes = dtp_bytes_product(dtp_context_kv_bytes(l) / 2, l->context.ring);
    dtp_buffer_id all[2];
    dtp_context_gather_ordered(l, inputs, all);
    dtp_draft_begin(l, draft, DTP_OP_ZERO, "gradients of all keys and values");
    for (int i = 0; i < 2; i++)
        b->summed[i] = dtp_backward_workspace(l, draft, names[i], all_bytes, DTP_WRITE);
    dtp_draft_memory(l, draft, 2 * (double)all_bytes, 2);
    dtp_draft_end(l, draft);
    for (uint32_t step = 0; step < 2; step++) {
        dtp_context_core(l, draft, DTP_OP_ATTENTION_BACKWARD, step);
        for (int i = 0; i < 2; i++)
            dtp_draft_use(draft, all[i], step == 1 ? DTP_READ | DTP_FREE : DTP_READ);
        struct gradients made = end_core(b, draft, inputs, step);
        begin_merge(l, draft, &made);
        for (int i = 0; i < 2; i++)
            dtp_draft_use(draft, b->summed[i], DTP_UPDATE);
        if (step == 0)
            make_gradients(b, draft, true, false);
        else
            dtp_draft_use(draft, b->gradient[DTP_TENSOR_Q_RAW], DTP_UPDATE);
        dtp_draft_memory(l, draft, 2 * (double)made.query_bytes + 3 * (double)made.key_bytes, 3);
        if (step == 0)
            dtp_draft_end(l, draft);
    }
}

static void scatter_sums(struct dtp_block_backward *b)
{
    static const enum dtp_layer_tensor tensors[] = {DTP_TENSOR_K_RAW, DTP_TENSOR_V};
    static const char *const names[] = {"k gradient", "v gradient"};
    struct dtp_lowering *l = b->l;
    uint64_t bytes = dtp_context_kv_bytes(l) / 2, all_bytes = dtp_bytes_product(bytes, l->context.ring);
    for (int i = 0; i < 2; i++) {
        struct dtp_draft draft;
        dtp_draft_begin(l, &draft, DTP_OP_REDUCE_SCATTER, names[i]);
        dtp_draft_use(&draft, b->summed[i], DTP_READ | DTP_FREE);
        b->gradient[tensors[i]] = dtp_backward_workspace(l, &draft, names[i], bytes, DTP_WRITE);
        dtp_draft_after(&draft, l->last_op[DTP_STREAM_COMPUTE]);
        l->awaited = dtp_context_issue(l, &draft, dtp_lower_ring(all_bytes, l->context.ring));
    }
}

/* ---- walked ------------------------------------------------------------------------------------------------------ */

/* Sums in fp32: of queries here, of keys and values on their way. */
struct wide_sums {
    dtp_buffer_id queries, keys, sent;
    dtp_op_id received;
};

static struct wide_sums begin_sums(struct dtp_block_backward *b)
{
    struct dtp_lowering *l = b->l;
    uint64_t q = dtp_context_wide(l, dtp_context_q_bytes(l)), kv = dtp_context_wide(l, dtp_context_kv_bytes(l));
    struct wide_sums sums = {.sent = DTP_NO_BUFFER, .received = DTP_NO_OP};
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ZERO, "gradients in fp32");
    sums.queries = dtp_backward_workspace(l, &draft, "q gradient in fp32", q, DTP_WRITE);
    sums.keys = dtp_backward_workspace(l, &draft, "k and v gradients in fp32", kv, DTP_WRITE);
    dtp_context_moves(l, &draft, (double)(q + kv), 3);
    dtp_draft_end(l, &draft);
    return sums;
}

/* Where a step made gradients of half of the keys, the other half is copied beside their sum. Then keys' and values'
 * are put side by side, and sent to the next rank. */
static void add_and_send(struct dtp_block_backward *b, const struct gradients *made, struct wide_sums *sums,
                         uint32_t step)
{
    struct dtp_lowering *l = b->l;
    uint64_t kv = dtp_context_wide(l, dtp_context_kv_bytes(l));
    double queries = (double)made->query_bytes + 2 * (double)dtp_context_wide(l, made->query_bytes);
    double keys = (double)made->key_bytes + 2 * (double)dtp_context_wide(l, made->key_bytes);
    struct dtp_draft draft;
    if (step > 0)
        l->awaited = sums->received;
    begin_merge(l, &draft, made);
    dtp_draft_use(&draft, sums->queries, DTP_UPDATE);
    dtp_draft_use(&draft, sums->keys, DTP_UPDATE | DTP_FREE);
    dtp_draft_use(&draft, sums->sent, DTP_FREE);
    if (step > 0)
        dtp_backward_workspace(l, &draft, "k and v gradients", kv, DTP_UPDATE | DTP_FREE);
    sums->sent = dtp_backward_workspace(l, &draft, "k and v gradients", kv, DTP_WRITE);
    dtp_context_moves(l, &draft, queries + keys + (step > 0 ? 4 : 2) * (double)kv, step > 0 ? 6 : 4);
    dtp_draft_end(l, &draft);
    dtp_draft_begin(l, &draft, DTP_OP_SHIFT, "gradients of keys and values");
    dtp_draft_use(&draft, sums->sent, DTP_READ);
    sums->keys = dtp_backward_workspace(l, &draft, "k and v gradients", kv, DTP_WRITE);
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_COMPUTE]);
    sums->received = dtp_context_issue(l, &draft, kv);
}

static void walked(struct dtp_block_backward *b, struct dtp_draft *draft, const struct dtp_context_inputs *inputs)
{
    struct dtp_lowering *l = b->l;
    struct dtp_context_walk walk = DTP_CONTEXT_WALK;
    struct wide_sums sums = begin_sums(b);
    for (uint32_t step = 0; step < l->context.steps; step++) {
        if (!l->context.keeps) /* else it is among the inputs */
            dtp_context_walk(l, &walk, inputs, step);
        dtp_context_core(l, draft, DTP_OP_ATTENTION_BACKWARD, step);
        dtp_context_walked(draft, &walk);
        struct gradients made = end_core(b, draft, inputs, step);
        add_and_send(b, &made, &sums, step);
    }
    dtp_draft_begin(l, draft, DTP_OP_MERGE, "gradients in compute dtype");
    make_gradients(b, draft, true, true);
    dtp_draft_use(draft, sums.queries, DTP_READ | DTP_FREE);
    dtp_draft_use(draft, sums.keys, DTP_READ | DTP_FREE);
    dtp_draft_use(draft, sums.sent, DTP_FREE);
    dtp_draft_use(draft, walk.at_hand, DTP_FREE);
    uint64_t narrow = dtp_context_q_bytes(l) + dtp_context_kv_bytes(l);
    dtp_context_moves(l, draft, (double)(narrow + dtp_context_wide(l, narrow)), 2);
    l->awaited = sums.received;
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static void exchange_gradient(struct dtp_block_backward *b, enum dtp_layer_tensor of, const char *name, uint64_t bytes)
{
    b->gradient[of] =
        dtp_lower_context_exchange(b->l, b->gradient[of], name, DTP_OWNER_WORKSPACE, DTP_READ | DTP_FREE, bytes, bytes);
}

static bool exchanges(const struct dtp_lowering *l)
{
    return l->context.exchanged > 1;
}

void dtp_lower_context_backward(struct dtp_block_backward *b, struct dtp_draft *draft,
                                const struct dtp_context_inputs *inputs)
{
    struct dtp_lowering *l = b->l;
    if (exchanges(l))
        exchange_gradient(b, DTP_TENSOR_CORE_COPY, "result gradient", dtp_context_q_bytes(l));
    if (l->context.ring == 1) {
        dtp_context_core(l, draft, DTP_OP_ATTENTION_BACKWARD, 0);
        make_gradients(b, draft, true, true);
        dtp_backward_workspace(l, draft, "attention workspace", dtp_context_wide(l, dtp_context_q_bytes(l)),
                               DTP_UPDATE | DTP_FREE);
    } else if (l->context.by_pieces) {
        by_pieces(b, draft, inputs);
    } else if (l->plan->runtime->walks_gathered) {
        walked(b, draft, inputs);
    } else {
        ring(b, draft, inputs);
    }
    dtp_draft_use(draft, result_gradient(b), DTP_READ | DTP_FREE);
}

void dtp_lower_context_gradients(struct dtp_block_backward *b)
{
    uint64_t kv = dtp_context_kv_bytes(b->l) / 2;
    if (b->l->context.by_pieces)
        scatter_sums(b);
    if (!exchanges(b->l))
        return;
    exchange_gradient(b, DTP_TENSOR_Q_RAW, "q gradient", dtp_context_q_bytes(b->l));
    exchange_gradient(b, DTP_TENSOR_K_RAW, "k gradient", kv);
    exchange_gradient(b, DTP_TENSOR_V, "v gradient", kv);
}
