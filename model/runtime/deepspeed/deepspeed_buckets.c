#include "runtime/deepspeed/deepspeed_buckets.h"

#include "net/layer_kind.h"
#include "plan/rules.h"
#include "plan/slice.h"

struct buckets {
    struct dtp_bucket_count count;
    uint64_t filled, size; /* elements: of the last one so far | of one at most */
    bool others, experts;  /* whether the last one has such so far */
};

static void take(struct buckets *b, uint64_t elements, bool of_experts)
{
    if (!elements)
        return;
    if (!b->filled || b->filled + elements > b->size)
        b->filled = 0, b->others = b->experts = false;
    b->filled += elements;
    b->count.experts += of_experts && !b->experts;
    b->count.others += !of_experts && !b->others;
    b->experts |= of_experts, b->others |= !of_experts;
}

static void add(struct buckets *b, const struct dtp_deepspeed_part *part)
{
    take(b, part->elements, false);
}

/* Of experts that are modules each its own. */
static void add_matrix(struct buckets *b, const struct dtp_layer_matrix *matrix)
{
    uint64_t tensors = matrix->apart ? matrix->groups : 1;
    for (uint64_t i = 0; i < tensors; i++)
        take(b, matrix->groups * matrix->out * matrix->in / tensors, matrix->expert);
}

/* Of a layer with experts beside others: from its last operator on, or matrix after matrix. */
static void add_layer(struct buckets *b, const struct dtp_transformer *t, const struct dtp_plan *plan,
                      enum dtp_layer_mlp mlp)
{
    struct dtp_transformer own = dtp_plan_own_experts(t, plan);
    struct dtp_layer_kind kind;
    struct dtp_layer_operator op[DTP_LAYER_OPERATORS];
    dtp_layer_kind_of(&own, mlp, plan->fused_qkv, plan->fused_gate_up, &kind);
    dtp_plan_call_experts(plan, &kind);
    if (dtp_plan_fills_buckets_behind(plan)) {
        for (int i = 0; i < kind.matrices; i++)
            add_matrix(b, &kind.matrix[i]);
        take(b, dtp_layer_vector_elements(&kind), false);
        return;
    }
    for (int at = dtp_layer_operators(&kind, op) - 1; at >= 0; at--)
        for (int i = 0; i < kind.matrices && op[at].kind == DTP_LAYER_OP_PROJECTION; i++)
            if (op[at].makes & UINT64_C(1) << kind.matrix[i].result)
                add_matrix(b, &kind.matrix[i]);
    take(b, dtp_layer_vector_elements(&kind), false);
}

/* Of adapters alone, each matrix' A and B together, as backward goes through the matrices. */
static struct dtp_bucket_count adapters_count(const struct dtp_transformer *t, const struct dtp_deepspeed_parts *parts,
                                              bool behind, struct buckets *b)
{
    int order[DTP_ZERO3_PARTS], count = dtp_deepspeed_backward_order(parts, order);
    for (int i = 0; i < count && behind; i++)
        order[i] = i;
    for (uint64_t layer = 0; layer < t->layers; layer++)
        for (int i = 0; i < count; i++)
            if (parts->adapter[order[i]])
                add(b, &parts->block[parts->adapter[order[i]]]);
    return b->count;
}

/* From the first parameter on. */
static struct dtp_bucket_count behind_count(const struct dtp_transformer *t, const struct dtp_plan *plan,
                                            const struct dtp_deepspeed_parts *parts, struct buckets *b)
{
    add(b, &parts->root[DTP_ZERO3_EMBEDDING]);
    add(b, &parts->root[DTP_ZERO3_POSITION]);
    for (uint64_t layer = 0; layer < t->layers; layer++) {
        if (t->experts)
            add_layer(b, t, plan, dtp_transformer_layer_has_experts(t, layer) ? DTP_LAYER_EXPERTS : DTP_LAYER_DENSE);
        for (int i = 0; i <= parts->matrices && !t->experts; i++)
            add(b, &parts->block[i]);
    }
    add(b, &parts->root[DTP_ZERO3_VECTORS]);
    add(b, &parts->root[DTP_ZERO3_HEAD]);
    return b->count;
}

struct dtp_bucket_count dtp_buckets_count(const struct dtp_transformer *t, const struct dtp_plan *plan)
{
    struct dtp_deepspeed_parts parts;
    struct buckets b = {.size = plan->deepspeed.reduce_bucket_size};
    int order[DTP_ZERO3_PARTS];
    dtp_deepspeed_list_parts(t, plan, 1, &parts);
    if (dtp_plan_adapts(plan))
        return adapters_count(t, &parts, dtp_plan_fills_buckets_behind(plan), &b);
    if (dtp_plan_fills_buckets_behind(plan))
        return behind_count(t, plan, &parts, &b);
    int count = dtp_deepspeed_backward_order(&parts, order);
    add(&b, &parts.root[DTP_ZERO3_HEAD]);
    add(&b, &parts.root[DTP_ZERO3_VECTORS]);
    for (uint64_t left = t->layers; left > 0 && t->experts; left--)
        add_layer(&b, t, plan, dtp_transformer_layer_has_experts(t, left - 1) ? DTP_LAYER_EXPERTS : DTP_LAYER_DENSE);
    for (uint64_t layer = 0; layer < t->layers && !t->experts; layer++)
        for (int i = 0; i < count; i++)
            add(&b, &parts.block[order[i]]);
    add(&b, &parts.root[DTP_ZERO3_POSITION]);
    add(&b, &parts.root[DTP_ZERO3_EMBEDDING]);
    return b.count;
}
