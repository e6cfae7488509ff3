/* Which kernels of a step CUDA graphs replay: those of whole modules of a layer, forward, replayed and backward, or of
 * all passes. Replaying is a call of the host's for each run of such modules, and launches nothing else. */
#include "lower/lower_graphs.h"

static enum dtp_issue outside(const struct dtp_lowering *l)
{
    return dtp_plan_replays_all(l->plan) ? DTP_ISSUE_REPLAYED : DTP_ISSUE_APART;
}

void dtp_lower_begin_graphs(struct dtp_lowering *l)
{
    l->issue = outside(l);
}

void dtp_lower_end_graphs(struct dtp_lowering *l)
{
    l->issue = DTP_ISSUE_APART;
}

void dtp_lower_behind_operators(struct dtp_lowering *l)
{
    l->issue = outside(l);
}

/* Attention's ends with the sum behind it. Of a layer with experts a graph has the norm, the router and what shared
 * experts do; what counts rows is part of an operator (dtp_forward_permute), and the rest never in one. */
static enum dtp_graph_module module_of(const struct dtp_lowering *l, int index)
{
    const struct dtp_layer_operator *op = l->tensors.op;
    int summed = 0;
    while (summed < l->tensors.operators && !(op[summed].makes & DTP_TENSOR_BIT(INPUT2)))
        summed++;
    if (index <= summed)
        return DTP_GRAPH_ATTN;
    if (!l->tensors.kind.experts)
        return DTP_GRAPH_MLP;
    uint64_t shared = DTP_TENSOR_BIT(SHARED_GATE) | DTP_TENSOR_BIT(SHARED_UP) | DTP_TENSOR_BIT(SHARED_PRODUCT) |
                      DTP_TENSOR_BIT(SHARED_DOWN) | DTP_TENSOR_BIT(SHARED_WEIGHT);
    bool routes = op[index].makes &
                  (shared | DTP_TENSOR_BIT(NORM2) | DTP_TENSOR_BIT(ROUTER_SCORES) | DTP_TENSOR_BIT(ROUTER_WEIGHTS));
    return routes ? DTP_GRAPH_MOE_ROUTER : DTP_GRAPH_COUNT;
}

void dtp_lower_at_operator(struct dtp_lowering *l, int index)
{
    if (!l->plan->megatron.graphs || dtp_plan_replays_all(l->plan))
        return;
    enum dtp_graph_module module = module_of(l, index);
    bool replays = module != DTP_GRAPH_COUNT && dtp_plan_replays(l->plan, module);
    bool begins = replays && l->issue != DTP_ISSUE_REPLAYED;
    l->issue = DTP_ISSUE_APART;
    if (begins) {
        struct dtp_draft draft;
        dtp_draft_begin(l, &draft, DTP_OP_HOST_REPLAY, "");
        draft.op.stream = DTP_STREAM_HOST;
        draft.op.demand.kernels = 1;
        dtp_draft_end(l, &draft);
    }
    l->issue = replays ? DTP_ISSUE_REPLAYED : DTP_ISSUE_APART;
}

bool dtp_lower_activates_within(const struct dtp_lowering *l, enum dtp_layer_tensor product)
{
    return product == DTP_TENSOR_PRODUCT && l->tensors.kind.experts && dtp_plan_fuses_experts(l->plan, l->cluster);
}
