/* How many buckets PyTorch's DDP makes of a model's gradients, from sizes alone (ddp_buckets.h of lowering lays them).
 */
#include "closed/closed_form_hooks.h"
#include "plan/runtime_sizes.h"

struct buckets {
    uint64_t cap, limit, filled, count; /* limit: of the bucket being filled */
};

/* A bucket that has reached its limit is closed before the next tensor. */
static void add_to_bucket(struct buckets *buckets, uint64_t bytes)
{
    if (!bytes)
        return;
    if (!buckets->count || buckets->filled >= buckets->limit) {
        buckets->limit =
            buckets->count || buckets->cap != DTP_DDP_BUCKET_BYTES ? buckets->cap : DTP_DDP_FIRST_BUCKET_BYTES;
        buckets->filled = 0;
        buckets->count++;
    }
    buckets->filled += bytes;
}

/* Those of adapters, in the order of readiness: projections from the last, each one's matrices from the first. */
static void fill_with_adapters(const struct dtp_traffic *job, uint64_t g, struct buckets *buckets)
{
    const struct dtp_plan *plan = job->plan;
    const struct dtp_units *u = &job->units;
    struct dtp_layer_kind kind;
    struct dtp_layer_operator op[DTP_LAYER_OPERATORS];
    dtp_layer_kind_of(job->transformer, dtp_layer_mlp_of(job->transformer), plan->fused_qkv, plan->fused_gate_up,
                      &kind);
    dtp_plan_adapt_kind(plan, &kind);
    int operators = dtp_layer_operators(&kind, op);
    bool ends = plan->adapters.train_ends;
    add_to_bucket(buckets, ends ? g * u->head : 0);
    for (uint64_t layer = 0; layer < job->transformer->layers; layer++)
        for (int i = operators - 1; i >= 0; i--)
            for (int m = 0; m < kind.matrices; m++)
                if (op[i].kind == DTP_LAYER_OP_PROJECTION && op[i].makes & UINT64_C(1) << kind.matrix[m].result)
                    add_to_bucket(buckets, g * dtp_adapter_elements(&kind.matrix[m]));
    add_to_bucket(buckets, ends ? g * u->position : 0);
    add_to_bucket(buckets, ends ? g * u->embedding : 0);
}

/* Filled with gradients as backward makes them: head, layers from the last (down, up and gate, output, qkv; a layer's
 * vectors are small and taken as one), embeddings. */
uint64_t dtp_traffic_ddp_buckets(const struct dtp_traffic *job, uint64_t g)
{
    const struct dtp_transformer *t = job->transformer;
    const struct dtp_units *u = &job->units;
    uint64_t h = t->hidden, q = h * t->heads * t->head_dim, kv = h * t->kv_heads * t->head_dim;
    bool gated = dtp_activation_is_gated(t->activation), joined = gated && job->plan->fused_gate_up;
    uint64_t positions = t->position == DTP_POSITION_LEARNED ? t->positions * h : 0, layers = t->layers;
    struct buckets buckets = {.cap = job->plan->ddp_bucket_bytes};
    if (dtp_plan_adapts(job->plan)) {
        fill_with_adapters(job, g, &buckets);
        return buckets.count;
    }
    add_to_bucket(&buckets, g * u->head);
    add_to_bucket(&buckets, g * (u->total - layers * u->layer - u->head - u->embedding - positions));
    for (uint64_t layer = 0; layer < layers; layer++) {
        add_to_bucket(&buckets, g * u->down);
        add_to_bucket(&buckets, g * (joined ? 2 : 1) * u->down);
        add_to_bucket(&buckets, gated && !joined ? g * u->down : 0);
        add_to_bucket(&buckets, g * q);
        add_to_bucket(&buckets, job->plan->fused_qkv ? g * (q + 2 * kv) : g * q);
        add_to_bucket(&buckets, job->plan->fused_qkv ? 0 : g * kv);
        add_to_bucket(&buckets, job->plan->fused_qkv ? 0 : g * kv);
        add_to_bucket(&buckets, g * (u->layer - u->layer_matmul));
    }
    add_to_bucket(&buckets, g * positions);
    add_to_bucket(&buckets, g * u->embedding);
    return buckets.count;
}
