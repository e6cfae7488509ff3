/* What PyTorch sends: DDP, ZeroRedundancyOptimizer, FSDP; and copies of FSDP's CPU offload. */
#include "runtime/torch/closed_form_torch.h"

#include "base/bytes.h"
#include "plan/checkpointing.h"

/* ---- replicated parameters --------------------------------------------------------------------------------------- */

/* DDP all-reduces gradients in their own dtype (fp32 under autocast) or what its hook makes of them,
 * ZeroRedundancyOptimizer then broadcasts each parameter from the rank that updated it. A broadcast of B around a ring
 * of n is n-1 sends of B; spread over all owners that is psi p (n-1)/n from each GPU, what an all-gather sends, and it
 * is counted as one. */
static void replicated(struct dtp_traffic *job)
{
    const struct dtp_units *u = &job->units;
    uint64_t gpus = job->cluster->gpus, params = dtp_plan_adapts(job->plan) ? job->bytes.grads : job->bytes.params;
    struct dtp_ddp_bucket_count buckets = dtp_traffic_ddp_buckets(job, job->bytes.grads);
    uint64_t elements = u->trained, count = buckets.count;
    if (job->plan->comm_hook == DTP_COMM_HOOK_POWERSGD) { /* P, then Q, and what is not factored */
        elements = dtp_factored_elements(&buckets.factored);
        count = 2 * buckets.factored_buckets + buckets.whole_buckets;
    }
    if (job->plan->comm_hook == DTP_COMM_HOOK_INT8) { /* ranges, two floats a rank, and bytes */
        uint64_t ranges = count * dtp_traffic_ring(8 * gpus, gpus);
        dtp_traffic_add(job, DTP_ALL_GATHER, job->reductions * (ranges + dtp_traffic_ring(elements * gpus, gpus)),
                        job->reductions * 2 * count, gpus, 1);
        return;
    }
    uint64_t bytes = dtp_plan_adapts(job->plan) ? dtp_plan_gradients_bytes(job->transformer, job->plan, elements)
                                                : elements * job->bytes.reduce;
    dtp_traffic_add(job, DTP_ALL_REDUCE, job->reductions * 2 * dtp_traffic_ring(bytes, gpus), job->reductions * count,
                    gpus, 1);
    if (job->plan->strategy == DTP_ZERO1)
        dtp_traffic_add(job, DTP_ALL_GATHER, dtp_traffic_ring(u->trained * params, gpus), u->trained_tensors, gpus, 1);
}

/* ---- sharded parameters ------------------------------------------------------------------------------------------ */

/* Wire bytes of one gather of all layers, and of the root: each rank's padded shard, matrices of layers at the gathered
 * dtype (fp8: 1), the rest at the compute dtype. */
static uint64_t layers_bytes(const struct dtp_traffic *job)
{
    const struct dtp_units *u = &job->units;
    if (dtp_plan_adapts(job->plan))
        return u->count ? u->layers * u->layer_wire * u->ranks : 0;
    uint64_t narrowed = u->layer_matmul_shard * u->ranks * (job->bytes.compute - job->bytes.gathered);
    uint64_t shard = u->total_shard - u->root_shard - u->expert_layers * u->expert_shard;
    return u->count ? shard * u->ranks * job->bytes.compute - u->layers * narrowed : 0;
}

static uint64_t head_end_bytes(const struct dtp_traffic *job)
{
    return job->units.head_end_shard * job->units.ranks * job->bytes.compute;
}

static uint64_t root_bytes(const struct dtp_traffic *job)
{
    const struct dtp_units *u = &job->units;
    if (dtp_plan_adapts(job->plan))
        return u->root_wire * u->ranks;
    uint64_t narrowed =
        (u->count ? 0 : u->layers) * u->layer_matmul_shard * u->ranks * (job->bytes.compute - job->bytes.gathered);
    return u->root_shard * u->ranks * job->bytes.compute - narrowed;
}

/* Experts that ranks divide are gathered and reduced apart, among those that have the same ones. */
static void add_experts(struct dtp_traffic *job, uint64_t gathers)
{
    const struct dtp_units *u = &job->units;
    const struct dtp_plan *plan = job->plan;
    uint64_t n = u->expert_ranks, layers = u->expert_layers, shard = layers * u->expert_shard;
    const uint64_t apart = plan->ep * dtp_plan_width_ranks(plan); /* ranks that have all experts together */
    if (!u->expert_shard)
        return;
    struct dtp_scales gather = {dtp_traffic_ring(dtp_bytes_product(gathers, shard) * n * job->bytes.compute, n),
                                gathers * layers};
    struct dtp_scales reduce = {dtp_bytes_product(job->reductions, dtp_traffic_ring(shard * n * job->bytes.reduce, n)),
                                job->reductions * layers};
    if (n > 1) {
        job->out->experts[DTP_ALL_GATHER] = gather;
        job->out->experts[DTP_REDUCE_SCATTER] = reduce;
    }
    dtp_expert_traffic_add(job, DTP_ALL_GATHER, &gather, n, apart);
    dtp_expert_traffic_add(job, DTP_REDUCE_SCATTER, &reduce, n, apart);
    dtp_traffic_add(job, DTP_ALL_REDUCE,
                    dtp_bytes_product(job->reductions, 2 * dtp_traffic_ring(shard * job->bytes.reduce, u->replicas)),
                    job->reductions * layers, u->replicas, u->ranks);
}

/* FSDP: gathered for forward, again for backward unless kept; gradients reduced over the shard group,
 * then all-reduced between replicas. FSDP reduces in the reduce dtype. Parameters that a smaller group shares from
 * forward to backward are gathered again within it. A head that is a unit with its norm is always kept. */
static void sharded_units(struct dtp_traffic *job)
{
    const struct dtp_units *u = &job->units;
    const struct dtp_plan *plan = job->plan;
    const bool stage = plan->pipeline_ranks > 0; /* of a pipeline, which gathers its weights once (lower_sharding.c) */
    uint64_t steps = stage ? 1 : plan->accumulate;
    uint64_t gathers = steps * (plan->reshard_after_forward && !stage ? 2 : 1);
    uint64_t root_gathers = dtp_plan_keeps_root(plan) ? steps : gathers, head = head_end_bytes(job);
    uint64_t reductions = job->reductions * (u->count + (!u->root_trained ? 0 : head ? 2 : 1));
    if (plan->reshard_group) { /* backward gathers from fewer ranks */
        uint64_t group = plan->reshard_group, layers = dtp_traffic_ring(layers_bytes(job), group),
                 root = dtp_traffic_ring(root_bytes(job) - head_end_bytes(job), group);
        uint64_t roots = root_gathers - steps;
        job->out->narrow_gather_bytes = dtp_bytes_product(steps, layers) + dtp_bytes_product(roots, root);
        job->out->narrow_gather_count = steps * u->count + roots;
        dtp_traffic_add(job, DTP_ALL_GATHER, job->out->narrow_gather_bytes, job->out->narrow_gather_count, group, 1);
        gathers = root_gathers = steps;
    }
    gathers += dtp_plan_gathers_for_replays(plan) ? steps : 0; /* of layers alone */
    uint64_t gathered = dtp_bytes_product(gathers, dtp_traffic_ring(layers_bytes(job), u->ranks)) +
                        dtp_bytes_product(root_gathers, dtp_traffic_ring(root_bytes(job) - head, u->ranks)) +
                        dtp_bytes_product(steps, dtp_traffic_ring(head, u->ranks));
    dtp_traffic_add(job, DTP_ALL_GATHER, gathered, gathers * u->count + root_gathers + (head ? steps : 0), u->ranks, 1);
    uint64_t experts = u->expert_layers * u->expert_shard, reduced = (u->trained_shard - experts) * job->bytes.reduce;
    add_experts(job, gathers);
    dtp_traffic_add(job, DTP_REDUCE_SCATTER,
                    dtp_bytes_product(job->reductions, dtp_traffic_ring(reduced * u->ranks, u->ranks)), reductions,
                    u->ranks, 1);
    dtp_traffic_add(job, DTP_ALL_REDUCE, dtp_bytes_product(job->reductions, 2 * dtp_traffic_ring(reduced, u->replicas)),
                    reductions, u->replicas, u->ranks);
}

/* CPUOffloadPolicy: every all-gather first uploads the fp32 shard, every reduction downloads the fp32 gradients. What a
 * smaller group shards again, and the root where it is kept, is not uploaded for backward. */
static void add_host_copies(struct dtp_traffic *job)
{
    const struct dtp_plan *plan = job->plan;
    const struct dtp_units *u = &job->units;
    bool from_host = plan->reshard_after_forward && !plan->reshard_group;
    uint64_t gathers = (uint64_t)plan->accumulate * (from_host ? 2 : 1);
    uint64_t kept = (dtp_plan_keeps_root(plan) ? u->root_shard : u->head_end_shard) * (gathers - plan->accumulate);
    if (dtp_plan_adapts(plan)) { /* frozen shards go up as they are kept, of layers for replays, too */
        uint64_t layers = gathers + (dtp_plan_gathers_for_replays(plan) ? plan->accumulate : 0),
                 roots = dtp_plan_keeps_root(plan) ? plan->accumulate : gathers;
        job->out->device_to_host_bytes = dtp_bytes_product(job->reductions, u->trained_shard * job->bytes.grads);
        job->out->host_to_device_bytes =
            dtp_bytes_product(layers, u->layers * u->layer_wire) + dtp_bytes_product(roots, u->root_wire);
        return;
    }
    job->out->device_to_host_bytes = dtp_bytes_product(job->reductions, u->total_shard * job->bytes.grads);
    job->out->host_to_device_bytes =
        dtp_bytes_product(gathers, u->total_shard * job->bytes.params) - kept * job->bytes.params;
}

/* Of shards (lower_clip.h); where gradients are whole, each rank has it. */
static void norm(struct dtp_traffic *job)
{
    uint64_t bytes = dtp_plan_norm_bytes(job->plan, job->units.ranks);
    if (bytes)
        dtp_traffic_add(job, DTP_ALL_REDUCE, bytes, 1, job->units.ranks, 1);
}

void dtp_torch_traffic(struct dtp_traffic *job)
{
    if (dtp_plan_shards_params(job->plan)) {
        sharded_units(job);
        norm(job);
    } else
        replicated(job);
    if (job->plan->offload != DTP_OFFLOAD_NONE)
        add_host_copies(job);
}
