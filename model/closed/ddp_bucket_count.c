/* How many buckets PyTorch's DDP makes of a model's gradients, from sizes alone (ddp_buckets.h of lowering lays them).
 */
#include "closed/closed_form_hooks.h"
#include "net/layer_kind.h"
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

/* Of a layer from its last operator on, matrix by matrix; its vectors are small and taken as one. */
static void add_layer(struct buckets *buckets, const struct dtp_layer_kind *kind, uint64_t g)
{
    struct dtp_layer_operator op[DTP_LAYER_OPERATORS];
    for (int at = dtp_layer_operators(kind, op) - 1; at >= 0; at--)
        for (int i = 0; i < kind->matrices && op[at].kind == DTP_LAYER_OP_PROJECTION; i++)
            if (op[at].makes & UINT64_C(1) << kind->matrix[i].result)
                add_to_bucket(buckets, g * kind->matrix[i].groups * kind->matrix[i].out * kind->matrix[i].in);
    add_to_bucket(buckets, g * dtp_layer_vector_elements(kind));
}

/* Filled with gradients as backward makes them: head, layers from the last, embeddings. */
uint64_t dtp_traffic_ddp_buckets(const struct dtp_traffic *job, uint64_t g)
{
    const struct dtp_transformer *t = job->transformer;
    const struct dtp_units *u = &job->units;
    const struct dtp_parameter_count count = dtp_transformer_count(t);
    struct dtp_layer_kind kind[DTP_LAYER_MLPS];
    struct buckets buckets = {.cap = job->plan->ddp_bucket_bytes};
    for (int mlp = 0; mlp < DTP_LAYER_MLPS; mlp++)
        dtp_layer_kind_of(t, (enum dtp_layer_mlp)mlp, job->plan->fused_qkv, job->plan->fused_gate_up, &kind[mlp]);
    add_to_bucket(&buckets, g * u->head);
    add_to_bucket(&buckets, g * (u->total - count.layers - u->head - u->embedding - u->position));
    for (uint64_t left = t->layers; left > 0; left--)
        add_layer(&buckets, &kind[dtp_transformer_layer_has_experts(t, left - 1) ? DTP_LAYER_EXPERTS : DTP_LAYER_DENSE],
                  g);
    add_to_bucket(&buckets, g * u->position);
    add_to_bucket(&buckets, g * u->embedding);
    return buckets.count;
}
