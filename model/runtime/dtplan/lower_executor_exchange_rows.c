/* Ranks that divide experts (Lepikhin et al. 2020; Megatron-Core's and torchtitan's all-to-all dispatchers): rows of
 * tokens go to the rank of each one's experts, with what they are multiplied by, and results come back.
 *
 * Rows of a rank lie by experts, so by ranks. All ranks that divide the same experts first hear where each one's rows
 * of each expert begin: a few numbers an expert, by which each knows what comes from where, and whether any rank gets
 * more than it has room for. A copy brings them to the host, which waits for it, for it is the host that says how much
 * is sent; that is the one place of a step where it waits. If any rank has too little room all end there, with the same
 * words. Rows of one rank for one expert are a transfer of their own, so that what comes lies by experts as it comes,
 * rows of each in the order of ranks and then of tokens: nothing is put in another order by who receives it.
 *
 * Tensor parallel ranks have rows of their own between matmuls, and each is one of those that divide experts (Liu et
 * al. 2025, Megatron-Core's parallel folding): ep ranks are neighbours among all ranks of a stage, those with the same
 * experts the others.
 *
 * Backward goes the same ways with gradients, by the numbers that forward's copy left on the host. All of it stands on
 * the stream `expert`, which compute waits for; what it reads goes by operations of compute. */
#include "runtime/dtplan/executor_expert_traffic.h"
#include "plan/slice.h"
#include "runtime/dtplan/lower_executor_experts.h"

/* Backward reads them: each micro-batch that is under way has its own. */
static void make_host_starts(struct dtp_executor *x, struct dtp_executor_flight *flight)
{
    const uint64_t bytes = dtp_executor_heard_bytes(x->shape);
    for (uint64_t layer = 0; layer < x->t->layers; layer++) {
        if (dtp_executor_mlp_of(x, layer) != DTP_LAYER_EXPERTS)
            continue;
        x->l->layer = (uint16_t)layer;
        flight->host_starts[layer] = dtp_lower_host_buffer(x->l, "rows of all ranks", DTP_OWNER_WORKSPACE, bytes);
        dtp_program_set_content(x->l->program, flight->host_starts[layer], DTP_CONTENT_ROUTES, 0);
    }
    x->l->layer = DTP_NO_LAYER;
}

void dtp_executor_experts_make(struct dtp_executor *x)
{
    const uint32_t ep = x->plan->ep, shards = (uint32_t)dtp_executor_expert_shards(x->plan, &x->rules),
                   copies = (uint32_t)dtp_executor_expert_copies(x->plan, &x->rules);
    if (!dtp_executor_divides_experts(x))
        return;
    const uint32_t apart = dtp_plan_group(x->plan, x->l->cluster, DTP_AXES(TP) | DTP_AXES_DENSE_DATA).stride;
    x->expert_group = dtp_program_add_group(x->l->program, (struct dtp_program_group){ep, apart});
    if (shards > 1)
        x->same_experts_group = dtp_program_add_group(x->l->program, (struct dtp_program_group){shards, ep * apart});
    if (copies > 1)
        x->expert_copies_group =
            dtp_program_add_group(x->l->program, (struct dtp_program_group){copies, ep * shards * apart});
    for (uint32_t i = 0; i < dtp_lower_most_under_way(&x->l->role); i++)
        make_host_starts(x, &x->flights[i]);
}

static dtp_op_id issue(struct dtp_executor *x, struct dtp_draft *draft, uint64_t sent_bytes)
{
    dtp_draft_after(draft, x->l->last_op[DTP_STREAM_COMPUTE]);
    return dtp_executor_collective(x, draft, DTP_STREAM_EXPERT, x->expert_group, sent_bytes);
}

/* ---- who sends what ---------------------------------------------------------------------------------------------- */

static void bring_down(struct dtp_executor *x, uint64_t layer, dtp_op_id heard)
{
    struct dtp_draft draft;
    dtp_draft_begin(x->l, &draft, DTP_OP_DOWNLOAD, "rows of all ranks");
    draft.op.stream = DTP_STREAM_DOWNLOAD;
    draft.op.demand.sent_bytes = (double)dtp_executor_heard_bytes(x->shape);
    dtp_draft_role(&draft, DTP_ROLE_INPUT, x->heard, DTP_READ, 0);
    dtp_draft_role(&draft, DTP_ROLE_RESULT, x->flight->host_starts[layer], DTP_WRITE, 0);
    dtp_draft_after(&draft, heard);
    x->starts_down = dtp_draft_end(x->l, &draft);
}

void dtp_executor_hear_starts(struct dtp_executor *x, uint64_t layer)
{
    const uint64_t own = dtp_executor_starts_bytes(x->shape), all = dtp_executor_heard_bytes(x->shape);
    struct dtp_draft draft;
    dtp_draft_begin(x->l, &draft, DTP_OP_ALL_GATHER, "rows of all ranks");
    /* behind three numbers a row (routes_layout.h) */
    dtp_draft_role(&draft, DTP_ROLE_INPUT, x->tensors[layer][DTP_TENSOR_ROUTES], DTP_READ,
                   12 * dtp_executor_expert_rows(x->shape))
        ->bytes = own;
    x->heard = dtp_lower_buffer(x->l, "rows of all ranks", DTP_OWNER_WORKSPACE, DTP_STREAM_COMPUTE, all, false);
    dtp_program_set_content(x->l->program, x->heard, DTP_CONTENT_ROUTES, 0);
    dtp_draft_role(&draft, DTP_ROLE_RESULT, x->heard, DTP_ALLOC | DTP_WRITE, 0);
    bring_down(x, layer, issue(x, &draft, all - own));
}

/* The host has heard it; then where the rows are that come. */
dtp_buffer_id dtp_executor_place_received(struct dtp_executor *x, uint64_t layer)
{
    const struct dtp_executor_operator dispatch = {.kind = DTP_OP_ALL_TO_ALL, .saved = DTP_TENSOR_PLACES};
    struct dtp_executor_traffic traffic = dtp_executor_expert_forward_traffic(x->shape, &dispatch);
    struct dtp_draft draft;
    dtp_draft_begin(x->l, &draft, DTP_OP_HOST_WAIT, "rows of all ranks");
    draft.op.stream = DTP_STREAM_HOST;
    draft.op.demand.tokens = (double)x->shape->expert_room;
    draft.op.demand.groups = (uint32_t)x->shape->kind.experts;
    dtp_draft_role(&draft, DTP_ROLE_ROUTES, x->flight->host_starts[layer], DTP_READ, 0);
    dtp_draft_after(&draft, x->starts_down);
    dtp_draft_end(x->l, &draft);
    dtp_executor_begin(x, &draft, DTP_OP_ROUTER, "rows received");
    dtp_draft_role(&draft, DTP_ROLE_INPUT, x->heard, DTP_READ | DTP_FREE, 0);
    dtp_buffer_id places =
        dtp_executor_new(x, &draft, DTP_ROLE_ROUTES, dtp_executor_tensor_name(DTP_TENSOR_PLACES), DTP_OWNER_ACTIVATIONS,
                         dtp_executor_tensor_bytes(x->shape, DTP_TENSOR_PLACES), DTP_WRITE);
    dtp_executor_memory(&draft, x->shape->expert_room, traffic.bytes, traffic.kernels);
    draft.op.demand.n = (double)x->shape->kind.experts;
    draft.op.demand.k = 1;
    draft.op.demand.groups = (uint32_t)x->shape->kind.own_experts;
    dtp_executor_end(x, &draft);
    x->heard = DTP_NO_BUFFER;
    return places;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

void dtp_executor_begin_exchange(struct dtp_executor *x, struct dtp_draft *draft, uint64_t layer, const char *name,
                                 bool back)
{
    struct dtp_demand *demand = &draft->op.demand;
    dtp_draft_begin(x->l, draft, DTP_OP_ALL_TO_ALL, name);
    demand->tokens = (double)x->shape->expert_room;
    demand->n = (double)x->h;
    demand->groups = (uint32_t)x->shape->kind.experts;
    demand->form = back ? DTP_FORM_RETURNED : DTP_FORM_NONE;
    dtp_draft_role(draft, DTP_ROLE_ROUTES, x->flight->host_starts[layer], DTP_READ, 0);
    dtp_draft_after(draft, x->starts_down);
}

void dtp_executor_end_exchange(struct dtp_executor *x, struct dtp_draft *draft, bool weighed)
{
    dtp_executor_await(x, DTP_STREAM_EXPERT, issue(x, draft, dtp_executor_sent_bytes(x->shape, weighed)));
}

/* The gradient of one of the ways: that of what came is sent, the way back. */
void dtp_executor_exchange_backward_rows(struct dtp_executor *x, uint64_t layer, const struct dtp_executor_operator *op)
{
    const bool weighed = op->saved != DTP_EXECUTOR_NONE;
    struct dtp_draft draft;
    dtp_executor_begin_exchange(x, &draft, layer, op->name, weighed);
    dtp_draft_role(&draft, DTP_ROLE_INPUT, x->gradients[op->result], DTP_READ, 0);
    x->gradients[op->input] = dtp_executor_new(x, &draft, DTP_ROLE_RESULT, "gradient of rows", DTP_OWNER_WORKSPACE,
                                               dtp_executor_tensor_bytes(x->shape, op->input), DTP_WRITE);
    if (weighed) {
        dtp_draft_role(&draft, DTP_ROLE_SAVED, x->gradients[op->statistics], DTP_READ, 0);
        x->gradients[DTP_EXECUTOR_SENT_WEIGHTS] =
            dtp_executor_new(x, &draft, DTP_ROLE_STATISTICS, "router weight gradient", DTP_OWNER_WORKSPACE,
                             dtp_executor_tensor_bytes(x->shape, DTP_EXECUTOR_SENT_WEIGHTS), DTP_WRITE);
    }
    dtp_executor_end_exchange(x, &draft, weighed);
    dtp_executor_begin(x, &draft, DTP_OP_FREE, "gradient of rows");
    dtp_draft_use(&draft, x->gradients[op->result], DTP_FREE);
    if (weighed)
        dtp_draft_use(&draft, x->gradients[op->statistics], DTP_FREE);
    if (weighed && dtp_executor_lets_go(x, x->tensors[layer][op->saved]))
        dtp_draft_use(&draft, x->tensors[layer][op->saved], DTP_FREE);
    dtp_executor_end(x, &draft);
    if (weighed && !dtp_executor_splits(x)) /* of the layer's experts all is done */
        dtp_executor_close_gradient(x, dtp_executor_experts(x, layer));
}
