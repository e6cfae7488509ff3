/* What kernels around experts' matmuls move (operator_bytes.h). */
#include "closed/operator_bytes.h"

#include "cost/op_cost.h"

/* Rows that a rank's experts get, over those that it sends. */
double dtp_received_rows(const struct dtp_counted *c)
{
    return c->block->experts ? dtp_plan_expert_rows(c->plan) : 1;
}

/* Of a token, rows that are added up by index (lower_experts.c). */
double dtp_added_by_index(const struct dtp_counted *c)
{
    double k = (double)c->block->experts_per_token * dtp_plan_padded_rows(c->plan);
    return c->plan->megatron.unfused_permute ? (2 * k + 1) * c->w * c->h : 0;
}

/* Where rows are weighed within the activation: each token's row is read or written once for its k, as lower_experts.c
 * has it unfused, or not at all where exchanges do; rows of experts elsewhere are put in order both ways. */
static struct dtp_moved weighing_moved(const struct dtp_counted *c, enum dtp_layer_operator_kind kind, double came)
{
    const struct dtp_layer_kind *b = c->block;
    double k = (double)b->experts_per_token * dtp_plan_padded_rows(c->plan);
    double read = 1 + dtp_plan_expert_arriving_part(c->plan, b->experts_per_token);
    double once = dtp_plan_sends_tokens(c->plan) ? 0 : (k + 1) * c->w * c->h, ordered = came * read * c->w * k * c->h;
    double sum = 3 * c->w * c->h, rows = (b->exchanged ? came : 1) * k;
    double added = once, sorting = 0;
    if (c->plan->megatron.unfused_permute) {
        once = 2 * k * c->w * c->h, added = dtp_added_by_index(c);
        sorting = (46 * (double)b->experts + 48 * k) / c->parts;
    }
    if (kind == DTP_LAYER_OP_PERMUTE)
        return (struct dtp_moved){once + sorting + ordered + came * 64 * k / c->parts,
                                  added + ordered + (b->gated && !b->packs_up ? rows * sum : 0)};
    double shared = b->shared_ffn ? sum : 0, weighed = b->shared_gate ? 2 * c->w * c->h : 0;
    double gradients = (b->shared_ffn ? sum * (b->gated ? 2 : 1) : 0) + (b->shared_gate ? 4 * c->w * c->h + sum : 0);
    return (struct dtp_moved){added + ordered + shared + weighed, once + ordered + gradients};
}

/* What lower_called_experts.c derives. */
static struct dtp_moved called_moved(const struct dtp_counted *c, enum dtp_layer_operator_kind kind)
{
    const struct dtp_layer_kind *b = c->block;
    double k = (double)b->experts_per_token, e = (double)b->experts, kh = c->r * k * c->h, h = c->r * c->h;
    if (kind == DTP_LAYER_OP_ROUTER) /* its backward as elsewhere, and the sum of what router and experts give back */
        return (struct dtp_moved){(c->r + 16) * e + 24 * k * e + 32 * k, (20 + c->r) * e + 3 * h};
    if (kind == DTP_LAYER_OP_PERMUTE)
        return (struct dtp_moved){2 * kh, 3 * kh + (4 * e - 3) * h + (b->gated && !b->packs_up ? 3 * kh : 0)};
    double shared = b->shared_ffn ? 3 * h : 0, weighed = b->shared_gate ? 2 * h : 0;
    double gradients = (b->shared_ffn ? 3 * h * (b->gated ? 2 : 1) : 0) + (b->shared_gate ? 7 * h : 0);
    return (struct dtp_moved){5 * kh + h + shared + weighed, 8 * kh + gradients};
}

/* What lower_slotted_experts.c derives; gradients of gate's and up's input are added up, and those of what router and
 * experts read. */
static struct dtp_moved slotted_moved(const struct dtp_counted *c, enum dtp_layer_operator_kind kind)
{
    const struct dtp_layer_kind *b = c->block;
    double k = (double)b->experts_per_token, e = (double)b->experts, w = c->w, h = c->h, kh = k * h;
    double r = dtp_plan_slots(c->plan), copies = b->exchanged ? (double)dtp_layer_slot_copies(b) : 0;
    double gating = k < 2 ? 196 : k < 3 ? 442 : c->plan->deepspeed.drop_tokens ? 85 : 73;
    double weights = k < 2 ? 16 : k < 3 ? 28 : 49;
    if (kind == DTP_LAYER_OP_ROUTER)
        return (struct dtp_moved){gating * e + 100 * k + (w + 4) * h, (weights + 32) * e + (w + 4) * h + 3 * w * h};
    if (kind == DTP_LAYER_OP_PERMUTE)
        return (struct dtp_moved){2 * w * h + 2 * (1 + copies) * w * r * kh + 24 * r * k,
                                  w * h + (5 + (b->gated && !b->packs_up ? 3 : 0)) * w * r * kh};
    return (struct dtp_moved){4 * w * r * kh + (3 * w + 8) * kh + (w + 8) * h,
                              (b->exchanged ? 3 : 1) * w * r * kh + (5 * w + 16) * kh + (w + 12) * h};
}

/* What lower_sorted_experts.c derives; of the rest what lower_experts.c does. */
static struct dtp_moved sorted_moved(const struct dtp_counted *c, double gradients)
{
    const struct dtp_layer_kind *b = c->block;
    double k = (double)b->experts_per_token, row = c->w * c->h;
    double shared = (b->shared_ffn ? 3 : 0) + (b->shared_gate ? 2 : 0);
    return (struct dtp_moved){(5 * k + 1 + shared) * row, (11 * k + 1) * row + 128 * k + gradients};
}

/* The same where each rank routes all tokens, and sends rows of some or of all: what is whole has the model's width. */
static struct dtp_moved routed_moved(const struct dtp_counted *c, enum dtp_layer_operator_kind kind, bool compiled,
                                     double came)
{
    const struct dtp_layer_kind *b = c->block;
    const double k = (double)b->experts_per_token, e = (double)b->experts, h = (double)b->hidden, kh = k * h;
    const double parts = c->plan->expert_shards, w = c->w, sum = 3 * w * h,
                 added = (dtp_layer_reorders(b) ? came : 1) * 3;
    if (kind == DTP_LAYER_OP_ROUTER) /* and a copy of the rank's rows of the gradient */
        return (struct dtp_moved){(w + (compiled ? 8 : 16)) * e + 176 * k,
                                  (20 + w) * e + sum + 2 * w * h / c->plan->sequence_shards};
    if (kind == DTP_LAYER_OP_PERMUTE)
        return (struct dtp_moved){(2 * w * kh + came * (4 * w * kh + 64 * k)) / parts,
                                  (3 * w * kh + 128 * k + came * (4 * w * kh + 128 * k) + added * w * kh) / parts +
                                      w * h};
    const double shared = b->shared_ffn ? sum : 0, gradients = b->shared_ffn ? sum * (b->gated ? 2 : 1) : 0;
    return (struct dtp_moved){(2 * w + 8) * kh + (2 + came * 2) * w * kh / parts + (8 + w) * h + shared,
                              (8 + w) * kh + (2 + came * 5) * w * kh / parts + 4 * dtp_outer_rows(k) * h +
                                  (w + 12) * h + gradients};
}

/* What lower_experts.c derives: router, rows to experts and back, their weighed sum. They are eager, but the router's
 * softmax where a compiler has it. */
struct dtp_moved dtp_expert_moved(const struct dtp_counted *c, const struct dtp_layer_operator *op, bool compiled)
{
    const struct dtp_layer_kind *b = c->block;
    double k = (double)b->experts_per_token, e = (double)b->experts, kh = k * c->h;
    double padded = dtp_plan_padded_rows(c->plan); /* below, rows of experts elsewhere, over those sent */
    double came = dtp_layer_reorders(b) ? dtp_plan_crossed_rows(c->plan) / padded : 0;
    double dropping = c->plan->megatron.capacity_factor > 0 ? 25 * e : 0;
    double sum = 3 * c->w * c->h; /* of two gradients of what router, experts and shared ones read */
    if (b->slots_rows)
        return slotted_moved(c, op->kind);
    if (b->calls_experts)
        return called_moved(c, op->kind);
    if (b->weighs_rows && op->kind != DTP_LAYER_OP_ROUTER)
        return weighing_moved(c, op->kind, came);
    if (b->routes_all)
        return routed_moved(c, op->kind, compiled, came);
    switch (op->kind) {
    case DTP_LAYER_OP_ROUTER:
        return (struct dtp_moved){((c->w + (compiled ? 8 : 16)) * e + 176 * k + dropping) / c->parts,
                                  (20 + c->w) * e / c->parts + sum};
    case DTP_LAYER_OP_PERMUTE: /* gradients of gate's and up's input are added up; of rows received: by experts */
        return (struct dtp_moved){
            2 * c->w * kh + came * ((b->stacks_rows ? 4 : 2) * c->w * kh + 64 * k),
            3 * c->w * kh + c->w * c->h + 128 * k + came * (4 * c->w * kh + 128 * k) +
                (b->gated && !b->sorts_rows ? (dtp_layer_reorders(b) ? came : 1) * 3 * c->w * kh : 0)};
    default: break;
    }
    double shared = b->shared_ffn ? 3 * c->w * c->h : 0, weighed = b->shared_gate ? 2 * c->w * c->h : 0;
    double gradients = (b->shared_ffn ? sum * (b->gated ? 2 : 1) : 0) + (b->shared_gate ? 4 * c->w * c->h + sum : 0);
    if (b->sorts_rows)
        return sorted_moved(c, gradients);
    if (b->stacks_rows) /* products in fp32 are tensors; zeros of what returns, forward and of its slice */
        return (struct dtp_moved){(4 * c->w + 16 + came * 3 * c->w) * kh + (8 + c->w) * c->h + shared + weighed,
                                  (20 + 3 * c->w + came * 5 * c->w) * kh + (c->w + 12) * c->h + gradients};
    return (struct dtp_moved){(4 * c->w + 8 + came * 2 * c->w) * kh + (8 + c->w) * c->h + shared + weighed,
                              (8 + 3 * c->w + came * 2 * c->w) * kh + 4 * dtp_outer_rows(k) * c->h +
                                  (c->w + 12) * c->h + gradients};
}
