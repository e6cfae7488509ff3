/* Context parallel ranks: each has two pieces of every sequence, one from the front and one from the back (zigzag,
 * plan/context.h), and attention that takes a step for each of them (Liu et al. 2023, "Ring Attention"; the steps'
 * shapes are those of Transformer Engine's context_parallel.py).
 *
 * Keys and values are put side by side and go around the ring, from each rank to the next, while the core with those at
 * hand runs. In step s a rank has those of the rank s before it. Of the first step, its own, the mask is the causal one
 * of a short sequence, for its two pieces are in order. Later ones have none: of ranks before it in the ring's order
 * all its queries see the front pieces alone, of ranks behind it its back queries see both. Which of the two it is
 * exec/bind derives from the rank. Results and log-sum-exps of all steps stand until one kernel merges them.
 *
 * Backward has the merged result and log-sum-exp, with which every step's gradients are terms of the whole's. Keys and
 * values go around once more. Gradients of the rank's own ones stay; those of others are added to what has come around
 * for them and sent on, beside the next core, and the last hop brings them home.
 *
 * Transfers run on the stream `context`; their buffers come from compute's pool, and go by operations of compute that
 * have waited for them. */
#include "runtime/dtplan/executor_context_work.h"
#include "runtime/dtplan/lower_executor_state.h"

#include "base/bytes.h"

void dtp_executor_context_make(struct dtp_executor *x)
{
    struct dtp_stretch ranks = dtp_plan_group(x->plan, x->l->cluster, DTP_AXES(CP));
    x->l->context = dtp_plan_context(x->plan, x->l->cluster);
    x->context_group = DTP_NO_INDEX;
    if (ranks.size > 1)
        x->context_group = dtp_program_add_group(x->l->program, (struct dtp_program_group){ranks.size, ranks.stride});
}

static uint64_t queries_bytes(const struct dtp_executor *x)
{
    return dtp_bytes_product(x->rules.tokens, x->shape->kind.d_q * x->element_bytes);
}

static uint64_t keys_bytes(const struct dtp_executor *x)
{
    return dtp_bytes_product(x->rules.tokens, 2 * x->shape->kind.d_kv * x->element_bytes);
}

/* ---- what both directions have ----------------------------------------------------------------------------------- */

/* Keys and values on their way. */
struct ring {
    dtp_buffer_id at_hand, next, spent; /* spent: sent on and read, goes by the next core */
    dtp_op_id received;                 /* next */
};
#define RING                                                                                                           \
    {                                                                                                                  \
        DTP_NO_BUFFER, DTP_NO_BUFFER, DTP_NO_BUFFER, DTP_NO_OP                                                         \
    }

static dtp_buffer_id side_by_side(struct dtp_executor *x, dtp_buffer_id qkv)
{
    struct dtp_draft draft;
    dtp_executor_begin(x, &draft, DTP_OP_COPY_IN, "keys and values");
    dtp_draft_role(&draft, DTP_ROLE_INPUT, qkv, DTP_READ, 0);
    dtp_buffer_id keys =
        dtp_executor_new(x, &draft, DTP_ROLE_RESULT, "keys and values", DTP_OWNER_WORKSPACE, keys_bytes(x), DTP_WRITE);
    dtp_executor_memory(&draft, x->rules.tokens, dtp_executor_context_copied_bytes(x->shape), 1);
    dtp_executor_end(x, &draft);
    return keys;
}

/* To the next rank; what comes from the one before is fresh. Behind all that compute was given so far. */
static dtp_buffer_id send_on(struct dtp_executor *x, const char *name, dtp_buffer_id sent, dtp_op_id *received)
{
    struct dtp_draft draft;
    dtp_draft_begin(x->l, &draft, DTP_OP_SHIFT, name);
    dtp_draft_role(&draft, DTP_ROLE_INPUT, sent, DTP_READ, 0);
    dtp_buffer_id taken =
        dtp_executor_new(x, &draft, DTP_ROLE_RESULT, name, DTP_OWNER_WORKSPACE, keys_bytes(x), DTP_WRITE);
    dtp_draft_after(&draft, x->l->last_op[DTP_STREAM_COMPUTE]);
    *received = dtp_executor_collective(x, &draft, DTP_STREAM_CONTEXT, x->context_group, keys_bytes(x));
    return taken;
}

/* Before the core of step `step`: it has what it reads, and what the next one reads is on its way. */
static void turn(struct dtp_executor *x, struct ring *ring, uint32_t step)
{
    if (step > 0) {
        ring->spent = ring->at_hand;
        ring->at_hand = ring->next;
    }
    dtp_op_id received = ring->received;
    if (step + 1 < x->l->context.steps)
        ring->next = send_on(x, "keys and values", ring->at_hand, &ring->received);
    else
        ring->next = DTP_NO_BUFFER, ring->received = DTP_NO_OP;
    dtp_executor_await(x, DTP_STREAM_CONTEXT, received);
}

/* Begins a step's core; from the second on it reads what came around. */
static void begin_core(struct dtp_executor *x, struct dtp_draft *draft, enum dtp_op_kind kind, struct ring *ring,
                       uint32_t step)
{
    const struct dtp_attention_shape whole =
        dtp_plan_attention(x->t, x->l->cluster, x->plan, dtp_lower_model_layer(x->l));
    dtp_executor_begin(x, draft, kind, "attention");
    struct dtp_demand *demand = &draft->op.demand;
    demand->attention = dtp_context_step(&x->l->context, &whole, step);
    demand->tokens = (double)x->rules.tokens;
    demand->n = step;
    double products = demand->attention.causal ? 2 : 4;
    demand->flops =
        products * dtp_attention_length(&demand->attention) * (double)x->shape->kind.d_q * (double)x->rules.tokens;
    if (step > 0)
        dtp_draft_role(draft, DTP_ROLE_KEYS, ring->at_hand, DTP_READ, 0);
    if (ring->spent.index != DTP_NO_INDEX)
        dtp_draft_use(draft, ring->spent, DTP_FREE);
    ring->spent = DTP_NO_BUFFER;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

void dtp_executor_context_forward(struct dtp_executor *x, struct dtp_draft *draft, dtp_buffer_id qkv)
{
    const uint32_t steps = x->l->context.steps;
    const uint64_t result = queries_bytes(x), statistics = dtp_executor_tensor_bytes(x->shape, DTP_TENSOR_CORE_STATE);
    struct ring ring = RING;
    dtp_buffer_id results = DTP_NO_BUFFER, sums = DTP_NO_BUFFER;
    ring.at_hand = side_by_side(x, qkv);
    for (uint32_t step = 0; step < steps; step++) {
        turn(x, &ring, step);
        begin_core(x, draft, DTP_OP_ATTENTION, &ring, step);
        dtp_draft_role(draft, DTP_ROLE_INPUT, qkv, DTP_READ, 0);
        if (step == 0) {
            results = dtp_lower_buffer(x->l, "results by step", DTP_OWNER_WORKSPACE, DTP_STREAM_COMPUTE,
                                       dtp_bytes_product(steps, result), false);
            sums = dtp_lower_buffer(x->l, "log-sum-exps by step", DTP_OWNER_WORKSPACE, DTP_STREAM_COMPUTE,
                                    dtp_bytes_product(steps, statistics), false);
            dtp_program_set_element(x->l->program, results, x->rules.compute);
            dtp_program_set_element(x->l->program, sums, DTP_FP32);
        }
        const uint32_t access = DTP_WRITE | (step == 0 ? DTP_ALLOC : 0);
        dtp_draft_role(draft, DTP_ROLE_RESULT, results, access, step * result)->bytes = result;
        dtp_draft_role(draft, DTP_ROLE_STATISTICS, sums, access, step * statistics)->bytes = statistics;
        dtp_executor_new(x, draft, DTP_ROLE_WORKSPACE, "attention workspace", DTP_OWNER_WORKSPACE,
                         x->rules.attention_workspace_bytes, DTP_UPDATE | DTP_FREE);
        draft->op.demand.kernels = 1;
        dtp_executor_end(x, draft);
    }
    dtp_executor_begin(x, draft, DTP_OP_MERGE, "results");
    dtp_draft_role(draft, DTP_ROLE_INPUT, results, DTP_READ | DTP_FREE, 0);
    dtp_draft_role(draft, DTP_ROLE_SAVED, sums, DTP_READ | DTP_FREE, 0);
    dtp_draft_use(draft, ring.at_hand, DTP_FREE);
    dtp_executor_memory(draft, x->rules.tokens, dtp_executor_context_merged_bytes(x->shape), 1);
    draft->op.demand.n = steps;
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* A step's terms are added to the rank's gradient of queries and to what came around for the keys and values. */
static void add_terms(struct dtp_executor *x, uint32_t step, const dtp_buffer_id terms[2], dtp_buffer_id qkv_gradient,
                      dtp_buffer_id sent, dtp_buffer_id *sum)
{
    struct dtp_draft draft;
    dtp_executor_begin(x, &draft, DTP_OP_MERGE, "gradients");
    dtp_draft_role(&draft, DTP_ROLE_GRADIENT, terms[0], DTP_READ | DTP_FREE, 0);
    dtp_draft_role(&draft, DTP_ROLE_KEYS, terms[1], DTP_READ | DTP_FREE, 0);
    dtp_draft_use(&draft, sent, DTP_FREE);
    dtp_draft_role(&draft, DTP_ROLE_INPUT_GRADIENT, qkv_gradient, DTP_UPDATE, 0);
    if (sum->index == DTP_NO_INDEX)
        *sum = dtp_executor_new(x, &draft, DTP_ROLE_RESULT, "gradients of keys and values", DTP_OWNER_WORKSPACE,
                                keys_bytes(x), DTP_WRITE);
    else
        dtp_draft_role(&draft, DTP_ROLE_RESULT, *sum, DTP_UPDATE, 0);
    dtp_executor_memory(&draft, x->rules.tokens, dtp_executor_context_added_bytes(x->shape, step), 1);
    draft.op.demand.n = step;
    dtp_executor_end(x, &draft);
}

/* The core of a step: all gradients of the rank's own keys, or terms of others'. */
static void core_backward(struct dtp_executor *x, struct ring *ring, uint32_t step, bool last,
                          const struct dtp_executor_core *core, dtp_buffer_id made[2])
{
    struct dtp_draft draft;
    const uint32_t goes = last ? DTP_FREE : 0;
    begin_core(x, &draft, DTP_OP_ATTENTION_BACKWARD, ring, step);
    dtp_draft_role(&draft, DTP_ROLE_INPUT, core->qkv, DTP_READ | goes, 0);
    dtp_draft_role(&draft, DTP_ROLE_SAVED, core->result, last ? core->result_access : DTP_READ, 0);
    dtp_draft_role(&draft, DTP_ROLE_STATISTICS, core->statistics, DTP_READ | goes, 0);
    dtp_draft_role(&draft, DTP_ROLE_GRADIENT, core->gradient, DTP_READ | goes, 0);
    if (step == 0) {
        made[0] = dtp_executor_new(x, &draft, DTP_ROLE_INPUT_GRADIENT, "qkv gradient", DTP_OWNER_WORKSPACE,
                                   dtp_executor_tensor_bytes(x->shape, DTP_TENSOR_QKV), DTP_WRITE);
    } else {
        made[0] = dtp_executor_new(x, &draft, DTP_ROLE_INPUT_GRADIENT, "queries gradient of a step",
                                   DTP_OWNER_WORKSPACE, queries_bytes(x), DTP_WRITE);
        made[1] = dtp_executor_new(x, &draft, DTP_ROLE_RESULT, "keys and values gradient of a step",
                                   DTP_OWNER_WORKSPACE, keys_bytes(x), DTP_WRITE);
    }
    dtp_executor_new(x, &draft, DTP_ROLE_WORKSPACE, "attention workspace", DTP_OWNER_WORKSPACE,
                     x->rules.attention_backward_workspace_bytes, DTP_UPDATE | DTP_FREE);
    draft.op.demand.flops *= DTP_ATTENTION_BACKWARD_FLOPS;
    draft.op.demand.kernels = DTP_EXECUTOR_ATTENTION_BACKWARD_LAUNCHES;
    dtp_executor_end(x, &draft);
}

dtp_buffer_id dtp_executor_context_backward(struct dtp_executor *x, const struct dtp_executor_core *core)
{
    const uint32_t steps = x->l->context.steps;
    struct ring ring = RING;
    dtp_buffer_id gradient = DTP_NO_BUFFER, sum = DTP_NO_BUFFER, sent = DTP_NO_BUFFER, made[2];
    dtp_op_id received = DTP_NO_OP;
    ring.at_hand = side_by_side(x, core->qkv);
    for (uint32_t step = 0; step < steps; step++) {
        turn(x, &ring, step);
        core_backward(x, &ring, step, step + 1 == steps, core, made);
        if (step == 0) {
            gradient = made[0];
            continue;
        }
        dtp_executor_await(x, DTP_STREAM_CONTEXT, received);
        add_terms(x, step, made, gradient, sent, &sum);
        sent = sum;
        sum = send_on(x, "gradients of keys and values", sent, &received);
    }
    struct dtp_draft draft;
    dtp_executor_await(x, DTP_STREAM_CONTEXT, received);
    dtp_executor_begin(x, &draft, DTP_OP_COPY_OUT, "gradients of keys and values");
    dtp_draft_role(&draft, DTP_ROLE_INPUT, sum, DTP_READ | DTP_FREE, 0);
    dtp_draft_role(&draft, DTP_ROLE_RESULT, gradient, DTP_UPDATE, 0);
    dtp_draft_use(&draft, sent, DTP_FREE);
    dtp_draft_use(&draft, ring.at_hand, DTP_FREE);
    dtp_executor_memory(&draft, x->rules.tokens, dtp_executor_context_returned_bytes(x->shape), 1);
    dtp_executor_end(x, &draft);
    return gradient;
}
