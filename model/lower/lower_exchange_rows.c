/* Rows of tokens between ranks that have experts.
 *
 *   all-to-all  among the ranks that divide the experts, to these and back
 *   etp         ranks that have a part of each expert's width, under Megatron: all rows that any of them received are
 *               gathered behind the first exchange, and what each makes of all of them is summed before the second, so
 *               that a rank returns those that it received; gradients go the other way (token_dispatcher.py,
 *               dispatch_postprocess and combine_preprocess of MoEAlltoAllTokenDispatcher) */
#include "lower/lower_exchange_rows.h"

#include "base/bytes.h"
#include "lower/block_forward.h"
#include "plan/graph_modules.h"

static bool is_backward(const struct dtp_pass *pass)
{
    return pass->kind != DTP_PASS_FORWARD;
}

/* Whether a pass runs beside one of the other way, of another micro-batch: its neighbour in the rank's order.
 * Megatron's combined_1f1b.py pairs them layer by layer, so that each has work while the other's rows are under way. */
static bool beside_another(const struct dtp_lowering *l)
{
    const struct dtp_pass *pass = l->pass, *first = l->role.passes, *end = first + l->role.pass_count;
    if (!l->plan->megatron.expert_overlap)
        return false;
    for (int step = -1; step <= 1; step += 2) {
        const struct dtp_pass *other = pass + step;
        if (other >= first && other < end && is_backward(other) != is_backward(pass) &&
            (other->micro_batch != pass->micro_batch || other->chunk != pass->chunk))
            return true;
    }
    return false;
}

/* All-to-alls among the ranks that divide the experts: the fullest one's, which all wait for. The draft is begun as one
 * of compute, whose pool its buffers are from. */
void dtp_lower_exchange_rows(struct dtp_lowering *l, struct dtp_draft *draft, uint64_t bytes)
{
    uint64_t sent = dtp_lower_ring(bytes, l->plan->ep);
    bool beside = beside_another(l);
    if (beside) { /* compute finds them at once, and goes on with the other micro-batch while they are under way */
        const char *name = draft->op.name;
        draft->op.kind = DTP_OP_PERMUTE;
        dtp_draft_end(l, draft);
        dtp_draft_begin(l, draft, DTP_OP_ALL_TO_ALL, name);
        dtp_draft_use(draft, l->rows_under_way, DTP_UPDATE);
    }
    dtp_draft_after(draft, l->last_op[DTP_STREAM_COMPUTE]);
    draft->op.stream = DTP_STREAM_EXPERT;
    draft->op.group = l->expert_group;
    draft->op.demand.sent_bytes = draft->op.demand.bytes = (double)sent;
    draft->op.demand.kernels = 1;
    dtp_op_id exchanged = dtp_draft_end(l, draft);
    l->awaited = beside ? l->awaited : exchanged;
}

/* Megatron's modules around experts elsewhere are Python of their own beyond the kernels that they launch (the
 * dispatcher, its autograd functions, Transformer Engine's grouped linear), once each way and layer. */
void dtp_lower_host_around_experts(struct dtp_lowering *l)
{
    struct dtp_draft draft;
    if (!l->tensors.kind.weighs_rows || dtp_plan_replays_all(l->plan))
        return;
    dtp_draft_begin(l, &draft, DTP_OP_HOST_EXCHANGE, "");
    draft.op.demand.kernels = 1;
    dtp_draft_end(l, &draft);
}

/* How many rows go where: 8 bytes an expert, summed by ranks and copied to the host, which waits. */
void dtp_lower_read_splits(struct dtp_lowering *l)
{
    struct dtp_draft draft;
    uint64_t bytes = 8 * l->tensors.kind.experts;
    if (l->plan->megatron.pad_to_capacity || l->tensors.kind.slots_rows) { /* all are known */
        dtp_lower_host_around_experts(l);
        return;
    }
    dtp_draft_begin(l, &draft, DTP_OP_ALL_TO_ALL, "splits");
    dtp_buffer_id splits = dtp_draft_new(l, &draft, "splits", DTP_OWNER_WORKSPACE, 2 * bytes, DTP_UPDATE);
    dtp_lower_exchange_rows(l, &draft, bytes);
    dtp_draft_begin(l, &draft, DTP_OP_ROUTER, "splits");
    dtp_draft_use(&draft, splits, DTP_READ | DTP_FREE);
    dtp_draft_memory(l, &draft, 0, 4);
    draft.op.demand.memory_kernel = l->tensors.kind.weighs_rows ? DTP_KERNEL_FUSED : DTP_KERNEL_EAGER;
    if (dtp_plan_replays(l->plan, DTP_GRAPH_MOE_PREPROCESS))
        draft.op.demand.issue = DTP_ISSUE_REPLAYED;
    dtp_op_id copied = dtp_draft_end(l, &draft);
    if (dtp_plan_replays_all(l->plan)) /* they stay on the device */
        return;
    dtp_draft_begin(l, &draft, DTP_OP_HOST_WAIT, "splits");
    draft.op.stream = DTP_STREAM_HOST;
    dtp_draft_after(&draft, copied);
    dtp_draft_end(l, &draft);
    dtp_lower_host_around_experts(l);
}

static bool beside(const struct pass *pass, int index, enum dtp_exchange exchange)
{
    return dtp_plan_works_beside(pass->l->plan, &pass->l->tensors.kind, pass->l->tensors.op[index].makes, exchange);
}

void dtp_forward_beside_exchange(const struct pass *pass, enum dtp_exchange exchange)
{
    dtp_op_id exchanged = pass->l->awaited;
    pass->l->awaited = DTP_NO_OP;
    for (int index = 0; index < pass->l->tensors.operators; index++)
        if (beside(pass, index, exchange))
            dtp_forward_operator(pass, index);
    pass->l->awaited = exchanged;
}

void dtp_forward_until(const struct pass *pass, int end)
{
    for (int index = 0; index < end; index++)
        if (!beside(pass, index, DTP_EXCHANGE_DISPATCH) && !beside(pass, index, DTP_EXCHANGE_COMBINE))
            dtp_forward_operator(pass, index);
}

/* Of rows that come to the rank. */
static uint64_t crossed_bytes(const struct dtp_lowering *l)
{
    const struct dtp_layer_kind *kind = &l->tensors.kind;
    uint64_t sent = dtp_bytes_product(l->tokens, l->compute * kind->experts_per_token * kind->hidden);
    return dtp_layer_crossed(&l->tensors, dtp_divide_up(sent, l->plan->expert_shards));
}

/* Bytes of rows that go to experts, as many as the fullest rank receives. */
uint64_t dtp_lower_exchanged_bytes(const struct dtp_lowering *l)
{
    const struct dtp_layer_kind *kind = &l->tensors.kind;
    double part = dtp_plan_expert_sent_part(l->plan, l->cluster, kind->experts_per_token);
    return (uint64_t)((double)crossed_bytes(l) * part);
}

/* Of the ranks that have parts of the same experts, over the rows of all of them; compute waits for it. */
static dtp_buffer_id shared_rows(struct dtp_lowering *l, enum dtp_op_kind kind, const char *name, dtp_buffer_id rows)
{
    uint32_t etp = dtp_plan_row_gatherers(l->plan);
    uint64_t crossed = crossed_bytes(l), whole = dtp_bytes_product(etp, crossed);
    struct dtp_draft draft;
    if (etp < 2)
        return DTP_NO_BUFFER;
    dtp_draft_begin(l, &draft, kind, name);
    dtp_buffer_id made = dtp_draft_new(l, &draft, "rows for parts of experts", DTP_OWNER_WORKSPACE,
                                       kind == DTP_OP_ALL_GATHER ? whole : crossed, DTP_WRITE);
    dtp_draft_use(&draft, rows, DTP_READ);
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_COMPUTE]);
    draft.op.stream = DTP_STREAM_EXPERT;
    draft.op.group = l->expert_tensor_group;
    draft.op.demand.sent_bytes = (double)dtp_lower_ring(whole, etp);
    draft.op.demand.bytes = (double)whole;
    draft.op.demand.kernels = 1;
    l->awaited = dtp_draft_end(l, &draft);
    return made;
}

dtp_buffer_id dtp_lower_gather_expert_rows(struct dtp_lowering *l, dtp_buffer_id rows)
{
    return shared_rows(l, DTP_OP_ALL_GATHER, "dispatch", rows);
}

dtp_buffer_id dtp_lower_sum_expert_rows(struct dtp_lowering *l, dtp_buffer_id rows)
{
    return shared_rows(l, DTP_OP_REDUCE_SCATTER, "combine", rows);
}

void dtp_lower_free_expert_rows(struct dtp_lowering *l, dtp_buffer_id rows)
{
    struct dtp_draft draft;
    if (rows.index == DTP_NO_INDEX)
        return;
    dtp_draft_begin(l, &draft, DTP_OP_FREE, "rows for parts of experts");
    dtp_draft_use(&draft, rows, DTP_FREE);
    dtp_draft_end(l, &draft);
}

static dtp_buffer_id gradient_rows(struct dtp_lowering *l, enum dtp_op_kind kind, const char *name, dtp_buffer_id rows)
{
    dtp_buffer_id made = shared_rows(l, kind, name, rows);
    if (made.index == DTP_NO_INDEX)
        return rows;
    dtp_lower_free_expert_rows(l, rows);
    return made;
}

dtp_buffer_id dtp_lower_gather_gradient_rows(struct dtp_lowering *l, dtp_buffer_id rows)
{
    return gradient_rows(l, DTP_OP_ALL_GATHER, "combine", rows);
}

dtp_buffer_id dtp_lower_sum_gradient_rows(struct dtp_lowering *l, dtp_buffer_id rows)
{
    return gradient_rows(l, DTP_OP_REDUCE_SCATTER, "dispatch", rows);
}
