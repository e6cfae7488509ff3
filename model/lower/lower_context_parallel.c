/* Attention of context parallel ranks, step by step, forward. Which steps there are says plan/context.h; bytes of a
 * rank: Q of its queries, KV of its keys and values, both as large where heads were exchanged for tokens.
 *
 *   ring      Transformer Engine's: keys and values are put side by side and sent on while the core with those at hand
 *             runs; all that were received, and each core's result, stand until the results are merged at the end
 *   gathered  Megatron's: all keys and values first, then a core for each of the rank's two pieces
 *   walked    PyTorch's (torch/distributed/tensor/experimental/_context_parallel/_attention.py): gathered beside the
 *             first core, or sent on step by step; each result is widened to fp32 and merged at once, by eager kernels
 *   exchange  an all-to-all before, and one of the result behind (lower_forward.c puts it where heads are copied)
 *
 * What goes over the wire is on a stream of its own. Buffers come from compute's pool, as PyTorch's do; one that is
 * given back while that stream may still use it goes back behind an operation of compute that has waited. */
#include "lower/lower_context.h"

/* ---- what is shared with backward -------------------------------------------------------------------------------- */

void dtp_lower_context_make(struct dtp_lowering *l)
{
    struct dtp_stretch ranks = dtp_plan_group(l->plan, l->cluster, DTP_AXES(CP));
    l->context = dtp_plan_context(l->plan, l->cluster);
    uint32_t exchanged = l->context.exchanged, ring = l->context.ring;
    l->exchange_group = l->ring_group = DTP_NO_INDEX;
    if (exchanged > 1)
        l->exchange_group = dtp_program_add_group(l->program, (struct dtp_program_group){exchanged, ranks.stride});
    if (ring > 1)
        l->ring_group = dtp_program_add_group(l->program, (struct dtp_program_group){ring, ranks.stride * exchanged});
}

uint64_t dtp_context_q_bytes(const struct dtp_lowering *l)
{
    return dtp_bytes_product(l->tokens, l->compute * l->d_q);
}

uint64_t dtp_context_kv_bytes(const struct dtp_lowering *l)
{
    return dtp_bytes_product(l->tokens, l->compute * 2 * l->d_kv);
}

uint64_t dtp_context_wide(const struct dtp_lowering *l, uint64_t bytes)
{
    return bytes / l->compute * 4;
}

void dtp_context_part(struct dtp_draft *draft, enum dtp_role role, dtp_buffer_id buffer, uint32_t access,
                      uint64_t offset_bytes, uint64_t bytes)
{
    dtp_draft_role(draft, role, buffer, access, offset_bytes)->bytes = bytes;
}

void dtp_context_use(struct dtp_draft *draft, const struct dtp_context_inputs *inputs)
{
    for (int i = 0; i < inputs->count; i++)
        dtp_draft_use(draft, inputs->buffer[i], DTP_READ);
}

void dtp_context_moves(const struct dtp_lowering *l, struct dtp_draft *draft, double bytes, uint32_t kernels)
{
    dtp_draft_memory(l, draft, bytes, kernels);
    if (l->plan->runtime->walks_gathered)
        draft->op.demand.memory_kernel = DTP_KERNEL_EAGER;
}

dtp_op_id dtp_context_issue(struct dtp_lowering *l, struct dtp_draft *draft, uint64_t sent_bytes)
{
    draft->op.stream = DTP_STREAM_CONTEXT;
    draft->op.group = draft->op.kind == DTP_OP_ALL_TO_ALL ? l->exchange_group : l->ring_group;
    draft->op.demand.sent_bytes = (double)sent_bytes;
    draft->op.demand.bytes = (double)sent_bytes;
    draft->op.demand.kernels = 1;
    dtp_draft_after(draft, l->awaited);
    return dtp_draft_end(l, draft);
}

void dtp_context_core(const struct dtp_lowering *l, struct dtp_draft *draft, enum dtp_op_kind kind, uint32_t step)
{
    const struct dtp_attention_shape whole =
        dtp_plan_attention(l->transformer, l->cluster, l->plan, dtp_lower_model_layer(l));
    dtp_draft_begin(l, draft, kind, "");
    struct dtp_demand *demand = &draft->op.demand;
    demand->attention = dtp_context_step(&l->context, &whole, step);
    demand->tokens = dtp_context_step_tokens(&l->context, &whole, &demand->attention, (double)l->tokens);
    double width = (double)demand->attention.heads * demand->attention.head_dim;
    double forward = (demand->attention.causal ? 2 : 4) * dtp_attention_length(&demand->attention) * width;
    demand->flops = (kind == DTP_OP_ATTENTION ? 1 : 2.5) * forward * demand->tokens;
    demand->kernels = kind == DTP_OP_ATTENTION ? 2 : 3;
}

/* The copies before and behind put each rank's heads side by side, and pieces of the sequence into order. */
dtp_buffer_id dtp_lower_context_exchange(struct dtp_lowering *l, dtp_buffer_id buffer, const char *name,
                                         enum dtp_owner owner, uint32_t access, uint64_t bytes, uint64_t kept_bytes)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ALL_TO_ALL, name);
    dtp_draft_use(&draft, buffer, access);
    dtp_buffer_id exchanged = dtp_draft_new(l, &draft, name, owner, kept_bytes, DTP_WRITE);
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_COMPUTE]);
    l->awaited = dtp_context_issue(l, &draft, dtp_lower_ring(bytes, l->context.exchanged));
    dtp_draft_begin(l, &draft, DTP_OP_COPY_OUT, name);
    dtp_draft_use(&draft, exchanged, DTP_UPDATE);
    dtp_draft_memory(l, &draft, 4 * (double)bytes, 2);
    dtp_draft_end(l, &draft);
    return exchanged;
}

dtp_buffer_id dtp_context_side_by_side(struct dtp_lowering *l, const struct dtp_context_inputs *inputs, uint64_t bytes)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_COPY_IN, "keys and values");
    dtp_context_use(&draft, inputs);
    dtp_buffer_id all = dtp_draft_new(l, &draft, "keys and values", DTP_OWNER_WORKSPACE, bytes, DTP_WRITE);
    dtp_context_moves(l, &draft, 2 * (double)dtp_context_kv_bytes(l), 1);
    dtp_draft_end(l, &draft);
    return all;
}

dtp_buffer_id dtp_context_gather(struct dtp_lowering *l, const char *name, const struct dtp_context_inputs *inputs,
                                 uint64_t bytes, dtp_op_id *gathered)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ALL_GATHER, name);
    dtp_context_use(&draft, inputs);
    uint64_t all_bytes = dtp_bytes_product(bytes, l->context.ring);
    enum dtp_owner owner = l->context.keeps ? DTP_OWNER_ACTIVATIONS : DTP_OWNER_WORKSPACE;
    dtp_buffer_id all = dtp_draft_new(l, &draft, name, owner, all_bytes, DTP_WRITE);
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_COMPUTE]);
    *gathered = dtp_context_issue(l, &draft, dtp_lower_ring(all_bytes, l->context.ring));
    return all;
}

/* Pieces of all ranks are put into the sequence's order by a copy of each. */
void dtp_context_gather_ordered(struct dtp_lowering *l, const struct dtp_context_inputs *inputs, dtp_buffer_id all[2])
{
    static const char *const names[] = {"keys", "values"};
    uint64_t bytes = dtp_context_kv_bytes(l) / 2, all_bytes = dtp_bytes_product(bytes, l->context.ring);
    struct dtp_draft draft;
    for (int i = 0; i < 2; i++)
        all[i] = dtp_context_gather(l, names[i], inputs, bytes, &l->awaited);
    dtp_draft_begin(l, &draft, DTP_OP_COPY_OUT, "keys and values");
    for (int i = 0; i < 2; i++)
        dtp_draft_use(&draft, all[i], DTP_UPDATE);
    dtp_draft_new(l, &draft, "keys and values in order", DTP_OWNER_WORKSPACE, all_bytes, DTP_UPDATE | DTP_FREE);
    dtp_draft_memory(l, &draft, 2 * 2 * (double)all_bytes, 2);
    dtp_draft_end(l, &draft);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* Sent on while the core with what is at hand runs. The first waits for compute, the others for the one before alone:
 * cores take turns on two streams there (flash_attn_streams), so that none holds up what the next but one will need. */
static dtp_op_id send_on(struct dtp_lowering *l, dtp_buffer_id all, uint32_t step)
{
    uint64_t bytes = dtp_context_kv_bytes(l);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_SHIFT, "keys and values");
    dtp_context_part(&draft, DTP_ROLE_INPUT, all, DTP_READ, step * bytes, bytes);
    dtp_context_part(&draft, DTP_ROLE_RESULT, all, DTP_WRITE, (step + 1) * bytes, bytes);
    if (step == 0)
        dtp_draft_after(&draft, l->last_op[DTP_STREAM_COMPUTE]);
    return dtp_context_issue(l, &draft, bytes);
}

/* Bytes of the corrections of Transformer Engine: the first result is read and scaled into the sum, each other one read
 * and added to it (flash_attn_fwd_out_correction). */
static void ring(struct dtp_lowering *l, struct dtp_draft *draft, const struct dtp_context_inputs *inputs)
{
    uint32_t steps = l->context.steps;
    uint64_t kv = dtp_context_kv_bytes(l), q = dtp_context_q_bytes(l);
    uint64_t result = q + l->tensor_bytes[DTP_TENSOR_CORE_STATE];
    dtp_buffer_id all = dtp_context_side_by_side(l, inputs, dtp_bytes_product(kv, steps)), results = DTP_NO_BUFFER;
    for (uint32_t step = 0; step < steps; step++) {
        dtp_op_id received = step + 1 < steps ? send_on(l, all, step) : DTP_NO_OP;
        dtp_context_core(l, draft, DTP_OP_ATTENTION, step);
        dtp_context_use(draft, inputs);
        dtp_context_part(draft, DTP_ROLE_INPUT, all, DTP_READ, step * kv, kv);
        if (step == 0)
            results = dtp_draft_new(l, draft, "results by step", DTP_OWNER_WORKSPACE, dtp_bytes_product(result, steps),
                                    DTP_WRITE);
        else
            dtp_draft_use(draft, results, DTP_WRITE);
        dtp_draft_end(l, draft);
        l->awaited = received; /* the next core does */
    }
    dtp_draft_begin(l, draft, DTP_OP_MERGE, "results");
    dtp_draft_use(draft, results, DTP_READ | DTP_FREE);
    dtp_draft_use(draft, all, DTP_FREE);
    dtp_draft_memory(l, draft, (double)q * (2 + 3 * (steps - 1.0)), 2 * steps);
}

static void by_pieces(struct dtp_lowering *l, struct dtp_draft *draft, const struct dtp_context_inputs *inputs)
{
    uint64_t result = (dtp_context_q_bytes(l) + l->tensor_bytes[DTP_TENSOR_CORE_STATE]) / 2;
    dtp_buffer_id all[2];
    dtp_context_gather_ordered(l, inputs, all);
    dtp_context_core(l, draft, DTP_OP_ATTENTION, 0);
    dtp_context_use(draft, inputs);
    for (int i = 0; i < 2; i++)
        dtp_draft_use(draft, all[i], DTP_READ);
    dtp_buffer_id first = dtp_draft_new(l, draft, "result of a piece", DTP_OWNER_WORKSPACE, result, DTP_WRITE);
    dtp_draft_end(l, draft);
    dtp_context_core(l, draft, DTP_OP_ATTENTION, 1);
    dtp_draft_use(draft, first, DTP_READ | DTP_FREE);
    for (int i = 0; i < 2; i++)
        dtp_draft_use(draft, all[i], DTP_READ | DTP_FREE);
}

/* out - sigmoid(difference of log-sum-exps) (out - result): the result is widened, subtracted, scaled and subtracted
 * again, in fp32 (6 + 12 + 8 + 12 bytes an element of 2), besides eight kernels on log-sum-exps. */
static dtp_buffer_id merge_result(struct dtp_lowering *l, dtp_buffer_id result, dtp_buffer_id sum)
{
    uint64_t q = dtp_context_q_bytes(l), wide = dtp_context_wide(l, q);
    bool first = sum.index == DTP_NO_INDEX;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_MERGE, first ? "result in fp32" : "result");
    dtp_draft_use(&draft, result, DTP_READ | DTP_FREE);
    if (!first)
        dtp_draft_new(l, &draft, "merge workspace", DTP_OWNER_WORKSPACE, 2 * wide, DTP_UPDATE | DTP_FREE);
    dtp_buffer_id merged = dtp_draft_new(l, &draft, "results in fp32", DTP_OWNER_WORKSPACE, wide, DTP_WRITE);
    dtp_draft_use(&draft, sum, DTP_READ | DTP_FREE);
    dtp_context_moves(l, &draft, (double)(q + wide) + (first ? 0 : 8 * (double)wide), first ? 2 : 13);
    dtp_draft_end(l, &draft);
    return merged;
}

/* Before step `step`, of which it holds what was received: what is needed for the next. */
void dtp_context_walk(struct dtp_lowering *l, struct dtp_context_walk *walk, const struct dtp_context_inputs *inputs,
                      uint32_t step)
{
    uint64_t kv = dtp_context_kv_bytes(l);
    struct dtp_context_inputs source = *inputs, sent;
    struct dtp_draft draft;
    if (walk->received.index != DTP_NO_INDEX)
        l->awaited = walk->received;
    walk->received = DTP_NO_OP;
    if (step > 0 && !(l->context.gathers && step > 1)) { /* what is at hand now was sent by this rank or another */
        walk->spent[0] = walk->sent;
        walk->spent[1] = walk->at_hand;
        walk->at_hand = walk->next;
        walk->sent = walk->next = DTP_NO_BUFFER;
    }
    if (step + 1 == l->context.steps)
        return;
    if (step > 0)
        source = (struct dtp_context_inputs){{walk->at_hand}, 1};
    dtp_buffer_id copy = dtp_context_side_by_side(l, &source, kv);
    if (l->context.gathers && step > 0) { /* put side by side, and not sent */
        dtp_draft_begin(l, &draft, DTP_OP_FREE, "keys and values");
        dtp_draft_use(&draft, copy, DTP_FREE);
        dtp_draft_end(l, &draft);
        return;
    }
    walk->sent = copy;
    sent = (struct dtp_context_inputs){{copy}, 1};
    if (l->context.gathers) {
        walk->next = dtp_context_gather(l, "keys and values", &sent, kv, &walk->received);
        return;
    }
    dtp_draft_begin(l, &draft, DTP_OP_SHIFT, "keys and values");
    dtp_draft_use(&draft, copy, DTP_READ);
    walk->next = dtp_draft_new(l, &draft, "keys and values", DTP_OWNER_WORKSPACE, kv, DTP_WRITE);
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_COMPUTE]);
    walk->received = dtp_context_issue(l, &draft, kv);
}

void dtp_context_walked(struct dtp_draft *draft, struct dtp_context_walk *walk)
{
    dtp_draft_use(draft, walk->at_hand, DTP_READ);
    for (int i = 0; i < 2; i++) {
        dtp_draft_use(draft, walk->spent[i], DTP_FREE);
        walk->spent[i] = DTP_NO_BUFFER;
    }
}

static void walked(struct dtp_lowering *l, struct dtp_draft *draft, const struct dtp_context_inputs *inputs)
{
    struct dtp_context_walk walk = DTP_CONTEXT_WALK;
    dtp_buffer_id sum = DTP_NO_BUFFER;
    uint64_t q = dtp_context_q_bytes(l), result_bytes = q + l->tensor_bytes[DTP_TENSOR_CORE_STATE];
    for (uint32_t step = 0; step < l->context.steps; step++) {
        dtp_context_walk(l, &walk, inputs, step);
        dtp_context_core(l, draft, DTP_OP_ATTENTION, step);
        dtp_context_use(draft, inputs);
        dtp_context_walked(draft, &walk);
        dtp_buffer_id result = dtp_draft_new(l, draft, "result", DTP_OWNER_WORKSPACE, result_bytes, DTP_WRITE);
        dtp_draft_end(l, draft);
        sum = merge_result(l, result, sum);
    }
    dtp_draft_begin(l, draft, DTP_OP_MERGE, "results in compute dtype");
    dtp_draft_use(draft, sum, DTP_READ | DTP_FREE);
    if (l->context.keeps) {
        dtp_lower_flight_module(l)->tensor[DTP_TENSOR_KV_ALL] = walk.at_hand;
        dtp_lower_flight_module(l)->alive |= DTP_TENSOR_BIT(KV_ALL);
    } else {
        dtp_draft_use(draft, walk.at_hand, DTP_FREE);
    }
    dtp_context_moves(l, draft, (double)(q + dtp_context_wide(l, q)), 2);
}

void dtp_lower_context_forward(struct dtp_lowering *l, struct dtp_draft *draft, const struct dtp_context_inputs *inputs)
{
    if (l->context.ring == 1)
        dtp_context_core(l, draft, DTP_OP_ATTENTION, 0);
    else if (l->context.by_pieces)
        by_pieces(l, draft, inputs);
    else if (l->plan->runtime->walks_gathered)
        walked(l, draft, inputs);
    else
        ring(l, draft, inputs);
}

/* ---- of a pass --------------------------------------------------------------------------------------------------- */

static struct dtp_context_inputs inputs_of(const struct pass *pass)
{
    static const enum dtp_layer_tensor tensors[] = {DTP_TENSOR_Q,   DTP_TENSOR_K,     DTP_TENSOR_V,
                                                    DTP_TENSOR_QKV, DTP_TENSOR_Q_RAW, DTP_TENSOR_K_RAW};
    struct dtp_context_inputs inputs = {.count = 0};
    int count = pass->l->tensor_bytes[DTP_TENSOR_Q] ? 4 : 6;
    for (int i = 0; i < count; i++)
        if (exists(pass, tensors[i]))
            inputs.buffer[inputs.count++] = pass->module->tensor[tensors[i]];
    return inputs;
}

/* Where these exchange tokens for heads, all that the core reads; that is what is saved. */
static void exchange_inputs(const struct pass *pass)
{
    static const enum dtp_layer_tensor apart[] = {DTP_TENSOR_Q, DTP_TENSOR_K, DTP_TENSOR_V},
                                       made[] = {DTP_TENSOR_Q_RAW, DTP_TENSOR_K_RAW, DTP_TENSOR_V},
                                       packed[] = {DTP_TENSOR_QKV};
    struct dtp_lowering *l = pass->l;
    bool turned = exists(pass, DTP_TENSOR_Q), together = !turned && l->tensors.kind.packs_qkv;
    const enum dtp_layer_tensor *tensors = turned ? apart : together ? packed : made;
    for (int i = 0; i < (together ? 1 : 3) && l->context.exchanged > 1; i++) {
        dtp_buffer_id *tensor = &pass->module->tensor[tensors[i]];
        *tensor =
            dtp_lower_context_exchange(l, *tensor, dtp_layer_tensor_text(tensors[i]), DTP_OWNER_ACTIVATIONS,
                                       DTP_READ | DTP_FREE, l->tensor_bytes[tensors[i]], l->tensor_bytes[tensors[i]]);
    }
}

struct dtp_context_inputs dtp_forward_context_inputs(const struct pass *pass)
{
    exchange_inputs(pass);
    return inputs_of(pass);
}

void dtp_forward_context_result(const struct pass *pass)
{
    struct dtp_lowering *l = pass->l;
    bool saved = pass->save & DTP_TENSOR_BIT(CORE);
    pass->module->tensor[DTP_TENSOR_CORE_COPY] = dtp_lower_context_exchange(
        l, pass->module->tensor[DTP_TENSOR_CORE], dtp_layer_tensor_text(DTP_TENSOR_CORE_COPY), DTP_OWNER_ACTIVATIONS,
        saved ? DTP_READ : DTP_READ | DTP_FREE, dtp_context_q_bytes(l), l->tensor_bytes[DTP_TENSOR_CORE_COPY]);
    pass->module->alive |= DTP_TENSOR_BIT(CORE_COPY);
    if (!saved)
        drop(pass, DTP_TENSOR_CORE);
}
