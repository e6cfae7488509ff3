/* What PyTorch sends: DDP, ZeroRedundancyOptimizer, FSDP; and copies of FSDP's CPU offload. */
#include "runtime/torch/closed_form_torch.h"

#include "base/bytes.h"
#include "plan/runtime_sizes.h"

/* ---- replicated parameters --------------------------------------------------------------------------------------- */

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

/* Buckets of one all-reduce each, filled with gradients as backward makes them: head, layers from the last (down, up
 * and gate, output, qkv; a layer's vectors are small and taken as one), embeddings. */
static uint64_t bucket_count(const struct dtp_traffic *job)
{
    const struct dtp_transformer *t = job->transformer;
    const struct dtp_units *u = &job->units;
    uint64_t g = job->bytes.grads, h = t->hidden, q = h * t->heads * t->head_dim, kv = h * t->kv_heads * t->head_dim;
    bool gated = dtp_activation_is_gated(t->activation), joined = gated && job->plan->fused_gate_up;
    uint64_t positions = t->position == DTP_POSITION_LEARNED ? t->positions * h : 0, layers = t->layers;
    struct buckets buckets = {.cap = job->plan->ddp_bucket_bytes};
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

/* DDP all-reduces gradients in their own dtype (fp32 under autocast), ZeroRedundancyOptimizer then broadcasts
 * each parameter from the rank that updated it. A broadcast of B around a ring of n is n-1 sends of B; spread over all
 * owners that is psi p (n-1)/n from each GPU, what an all-gather sends, and it is counted as one. */
static void replicated(struct dtp_traffic *job)
{
    const struct dtp_units *u = &job->units;
    uint64_t gpus = job->cluster->gpus;
    dtp_traffic_add(job, DTP_ALL_REDUCE, job->reductions * 2 * dtp_traffic_ring(u->total * job->bytes.reduce, gpus),
                    job->reductions * bucket_count(job), gpus, 1);
    if (job->plan->strategy == DTP_ZERO1)
        dtp_traffic_add(job, DTP_ALL_GATHER, dtp_traffic_ring(u->total * job->bytes.params, gpus), u->tensors, gpus, 1);
}

/* ---- sharded parameters ------------------------------------------------------------------------------------------ */

/* Wire bytes of one gather of all layers, and of the root: each rank's padded shard, matrices of layers at the gathered
 * dtype (fp8: 1), the rest at the compute dtype. */
static uint64_t layers_bytes(const struct dtp_traffic *job)
{
    const struct dtp_units *u = &job->units;
    uint64_t narrowed = u->layer_matmul_shard * u->ranks * (job->bytes.compute - job->bytes.gathered);
    return u->count ? u->layers * (u->layer_shard * u->ranks * job->bytes.compute - narrowed) : 0;
}

static uint64_t root_bytes(const struct dtp_traffic *job)
{
    const struct dtp_units *u = &job->units;
    uint64_t narrowed =
        (u->count ? 0 : u->layers) * u->layer_matmul_shard * u->ranks * (job->bytes.compute - job->bytes.gathered);
    return u->root_shard * u->ranks * job->bytes.compute - narrowed;
}

/* FSDP: gathered for forward, again for backward unless kept; gradients reduced over the shard group,
 * then all-reduced between replicas. FSDP reduces in the reduce dtype. Parameters that a smaller group shares from
 * forward to backward are gathered again within it. */
static void sharded_units(struct dtp_traffic *job)
{
    const struct dtp_units *u = &job->units;
    const struct dtp_plan *plan = job->plan;
    uint64_t steps = plan->accumulate, gathers = steps * (plan->reshard_after_forward ? 2 : 1);
    uint64_t root_gathers = dtp_plan_keeps_root(plan) ? steps : gathers;
    if (plan->reshard_group) { /* backward gathers from fewer ranks */
        uint64_t group = plan->reshard_group, layers = dtp_traffic_ring(layers_bytes(job), group),
                 root = dtp_traffic_ring(root_bytes(job), group);
        uint64_t roots = root_gathers - steps;
        job->out->narrow_gather_bytes = dtp_bytes_product(steps, layers) + dtp_bytes_product(roots, root);
        job->out->narrow_gather_count = steps * u->count + roots;
        dtp_traffic_add(job, DTP_ALL_GATHER, job->out->narrow_gather_bytes, job->out->narrow_gather_count, group, 1);
        gathers = root_gathers = steps;
    }
    uint64_t gathered = dtp_bytes_product(gathers, dtp_traffic_ring(layers_bytes(job), u->ranks)) +
                        dtp_bytes_product(root_gathers, dtp_traffic_ring(root_bytes(job), u->ranks));
    dtp_traffic_add(job, DTP_ALL_GATHER, gathered, gathers * u->count + root_gathers, u->ranks, 1);
    uint64_t reduced = u->total_shard * job->bytes.reduce;
    dtp_traffic_add(job, DTP_REDUCE_SCATTER,
                    dtp_bytes_product(job->reductions, dtp_traffic_ring(reduced * u->ranks, u->ranks)),
                    job->reductions * (u->count + 1), u->ranks, 1);
    dtp_traffic_add(job, DTP_ALL_REDUCE, dtp_bytes_product(job->reductions, 2 * dtp_traffic_ring(reduced, u->replicas)),
                    job->reductions * (u->count + 1), u->replicas, u->ranks);
}

/* CPUOffloadPolicy: every all-gather first uploads the fp32 shard, every reduction downloads the fp32 gradients. What a
 * smaller group shards again, and the root where it is kept, is not uploaded for backward. */
static void add_host_copies(struct dtp_traffic *job)
{
    const struct dtp_plan *plan = job->plan;
    const struct dtp_units *u = &job->units;
    bool from_host = plan->reshard_after_forward && !plan->reshard_group;
    uint64_t gathers = (uint64_t)plan->accumulate * (from_host ? 2 : 1);
    uint64_t kept = dtp_plan_keeps_root(plan) ? u->root_shard * (gathers - plan->accumulate) : 0;
    job->out->device_to_host_bytes = dtp_bytes_product(job->reductions, u->total_shard * job->bytes.grads);
    job->out->host_to_device_bytes =
        dtp_bytes_product(gathers, u->total_shard * job->bytes.params) - kept * job->bytes.params;
}

void dtp_torch_traffic(struct dtp_traffic *job)
{
    if (dtp_plan_shards_params(job->plan))
        sharded_units(job);
    else
        replicated(job);
    if (job->plan->offload != DTP_OFFLOAD_NONE)
        add_host_copies(job);
}
