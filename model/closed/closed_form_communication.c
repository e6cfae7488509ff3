/* Communication of a plan: bytes each GPU sends per optimizer step and how many operations that takes.
 *
 * Ring accounting: an all-gather or reduce-scatter of B bytes over n ranks sends B(n-1)/n from each, an all-reduce
 * twice that. A ring that spans nodes leaves each node once per channel and all channels together carry the ring's
 * traffic once, so of what the g ranks of a node send, one g-th crosses the network (NCCL rings; trees and NVLS split
 * alike): network = sent / g, link = the rest.
 *
 * Notation: psi parameters, N shard ranks, R replicas, K micro-steps, w bytes on the wire of gathered weights, r of
 * reduced gradients. Recomputation gathers nothing again: weights are gathered once for backward anyway. */
#include "closed/activations.h"
#include "runtime/dtplan/batch_layout.h"
#include "base/bytes.h"
#include "runtime/deepspeed/closed_form_deepspeed.h"
#include "closed/closed_form_counted.h"
#include "plan/zeropp.h"
#include "runtime/dtplan/lower_executor.h"
#include "closed/sharding.h"

struct traffic {
    const struct dtp_transformer *transformer;
    const struct dtp_cluster *cluster;
    const struct dtp_plan *plan;
    struct dtp_units units;
    struct dtp_element_bytes bytes;
    const struct dtp_zero3_counts *zero3; /* of DeepSpeed's stage 3 */
    uint64_t reductions;                  /* micro-steps that reduce gradients: K, or 1 with no_sync */
    struct dtp_communication *out;
};

/* Ranks of a group of `ranks` that share a node; `stride` ranks apart in rank order (1: neighbours). */
static uint64_t ranks_in_node(const struct traffic *job, uint64_t ranks, uint64_t stride)
{
    uint64_t in_node = job->cluster->gpus_per_node / stride;
    if (in_node < 1)
        in_node = 1;
    return ranks < in_node ? ranks : in_node;
}

/* One kind of collective over a group: `sent` bytes from each GPU in `count` operations. */
static void add(struct traffic *job, enum dtp_collective collective, uint64_t sent, uint64_t count, uint64_t ranks,
                uint64_t stride)
{
    if (ranks < 2)
        return;
    uint64_t local = ranks_in_node(job, ranks, stride);
    uint64_t network = local < ranks ? sent / local : 0;
    job->out->bytes[collective] += sent;
    job->out->count[collective] += count;
    job->out->total_bytes += sent;
    job->out->network_bytes += network;
    job->out->link_bytes += sent - network;
}

/* What a ring sends of a tensor of `bytes` bytes over `ranks`: the shards of all others, bytes padded to whole ones. */
static uint64_t ring(uint64_t bytes, uint64_t ranks)
{
    return ranks < 2 ? 0 : dtp_bytes_product(dtp_divide_up(bytes, ranks), ranks - 1);
}

/* ---- replicated parameters ------------------------------------------------------------------------------------- */

#define DDP_DEFAULT_BUCKET (UINT64_C(25) << 20) /* bucket_cap_mb=None; the first bucket is then 1 MiB */
#define DDP_FIRST_BUCKET (UINT64_C(1) << 20)

struct buckets {
    uint64_t cap, limit, filled, count; /* limit: of the bucket being filled */
};

/* A bucket that has reached its limit is closed before the next tensor. */
static void add_to_bucket(struct buckets *buckets, uint64_t bytes)
{
    if (!bytes)
        return;
    if (!buckets->count || buckets->filled >= buckets->limit) {
        buckets->limit = buckets->count || buckets->cap != DDP_DEFAULT_BUCKET ? buckets->cap : DDP_FIRST_BUCKET;
        buckets->filled = 0;
        buckets->count++;
    }
    buckets->filled += bytes;
}

/* Buckets of one all-reduce each, filled with gradients as backward makes them: head, layers from the last (down, up
 * and gate, output, qkv; a layer's vectors are small and taken as one), embeddings. */
static uint64_t bucket_count(const struct traffic *job)
{
    const struct dtp_transformer *t = job->transformer;
    const struct dtp_units *u = &job->units;
    uint64_t g = job->bytes.grads, h = t->hidden, q = h * t->heads * t->head_dim, kv = h * t->kv_heads * t->head_dim;
    bool gated = t->activation == DTP_SWIGLU, joined = gated && job->plan->fused_gate_up;
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

/* torch: DDP all-reduces gradients in their own dtype (fp32 under autocast), ZeroRedundancyOptimizer then broadcasts
 * each parameter from the rank that updated it. A broadcast of B around a ring of n is n-1 sends of B; spread over all
 * owners that is psi p (n-1)/n from each GPU, what an all-gather sends, and it is counted as one. */
static void replicated_torch(struct traffic *job)
{
    const struct dtp_units *u = &job->units;
    uint64_t gpus = job->cluster->gpus;
    add(job, DTP_ALL_REDUCE, job->reductions * 2 * ring(u->total * job->bytes.reduce, gpus),
        job->reductions * bucket_count(job), gpus, 1);
    if (job->plan->strategy == DTP_ZERO1)
        add(job, DTP_ALL_GATHER, ring(u->total * job->bytes.params, gpus), u->tensors, gpus, 1);
}

/* DeepSpeed stages 1 and 2 all-reduce gradients by default even where a reduce-scatter would do
 * (use_multi_rank_bucket_allreduce), stage 2 in every micro-step whatever no_sync says; one blocking all-gather of the
 * flat parameters follows the step. */
static void replicated_deepspeed(struct traffic *job)
{
    const struct dtp_units *u = &job->units;
    uint64_t gpus = job->cluster->gpus;
    uint64_t reductions = job->reductions;
    add(job, DTP_ALL_REDUCE, dtp_bytes_product(reductions, 2 * ring(u->total * job->bytes.reduce, gpus)),
        reductions * dtp_buckets_count(job->transformer, job->plan), gpus, 1);
    if (job->plan->strategy != DTP_DDP)
        add(job, DTP_ALL_GATHER, ring(u->total * job->bytes.params, u->ranks), 1, u->ranks, 1);
}

#define MEGATRON_BUCKET 40000000u /* elements, or 1e6 per data parallel rank */

/* Megatron reduces its fp32 buffer once a step: all-reduce, or with the distributed optimizer reduce-scatter and an
 * all-gather of the updated weights. */
static void replicated_buffered(struct traffic *job)
{
    const struct dtp_units *u = &job->units;
    uint64_t gpus = job->cluster->gpus, per_rank = 1000000 * gpus;
    uint64_t bucket = per_rank > MEGATRON_BUCKET ? per_rank : MEGATRON_BUCKET;
    uint64_t count = dtp_divide_up(u->total, bucket);
    uint64_t reductions = job->reductions;
    uint64_t sent = ring(u->total * job->bytes.reduce, gpus);
    if (job->plan->strategy == DTP_DDP) {
        add(job, DTP_ALL_REDUCE, dtp_bytes_product(reductions, 2 * sent), reductions * count, gpus, 1);
        return;
    }
    add(job, DTP_REDUCE_SCATTER, dtp_bytes_product(reductions, sent), reductions * count, gpus, 1);
    add(job, DTP_ALL_GATHER, ring(u->total * job->bytes.params, gpus), count, gpus, 1);
}

/* ---- sharded parameters ---------------------------------------------------------------------------------------- */

/* Wire bytes of one gather of all layers, and of the root: each rank's padded shard, matrices of layers at the gathered
 * dtype (fp8: 1), the rest at the compute dtype. */
static uint64_t layers_bytes(const struct traffic *job)
{
    const struct dtp_units *u = &job->units;
    uint64_t narrowed = u->layer_matmul_shard * u->ranks * (job->bytes.compute - job->bytes.gathered);
    return u->count ? u->layers * (u->layer_shard * u->ranks * job->bytes.compute - narrowed) : 0;
}

static uint64_t root_bytes(const struct traffic *job)
{
    const struct dtp_units *u = &job->units;
    uint64_t narrowed =
        (u->count ? 0 : u->layers) * u->layer_matmul_shard * u->ranks * (job->bytes.compute - job->bytes.gathered);
    return u->root_shard * u->ranks * job->bytes.compute - narrowed;
}

/* FSDP: gathered for forward, again for backward unless kept; gradients reduced over the shard group,
 * then all-reduced between replicas. FSDP reduces in the reduce dtype. Parameters that a smaller group shares from
 * forward to backward are gathered again within it. */
static void sharded_units(struct traffic *job)
{
    const struct dtp_units *u = &job->units;
    const struct dtp_plan *plan = job->plan;
    uint64_t steps = plan->accumulate, gathers = steps * (plan->reshard_after_forward ? 2 : 1);
    uint64_t root_gathers = dtp_plan_keeps_root(plan) ? steps : gathers;
    if (plan->reshard_group) { /* backward gathers from fewer ranks */
        uint64_t group = plan->reshard_group, layers = ring(layers_bytes(job), group),
                 root = ring(root_bytes(job), group);
        uint64_t roots = root_gathers - steps;
        job->out->narrow_gather_bytes = dtp_bytes_product(steps, layers) + dtp_bytes_product(roots, root);
        job->out->narrow_gather_count = steps * u->count + roots;
        add(job, DTP_ALL_GATHER, job->out->narrow_gather_bytes, job->out->narrow_gather_count, group, 1);
        gathers = root_gathers = steps;
    }
    uint64_t gathered = dtp_bytes_product(gathers, ring(layers_bytes(job), u->ranks)) +
                        dtp_bytes_product(root_gathers, ring(root_bytes(job), u->ranks));
    add(job, DTP_ALL_GATHER, gathered, gathers * u->count + root_gathers, u->ranks, 1);
    uint64_t reduced = u->total_shard * job->bytes.reduce;
    add(job, DTP_REDUCE_SCATTER, dtp_bytes_product(job->reductions, ring(reduced * u->ranks, u->ranks)),
        job->reductions * (u->count + 1), u->ranks, 1);
    add(job, DTP_ALL_REDUCE, dtp_bytes_product(job->reductions, 2 * ring(reduced, u->replicas)),
        job->reductions * (u->count + 1), u->replicas, u->ranks);
}

/* Weights in the compute dtype, or as int8 and their scales, which are a collective of their own. */
static void add_fetches(struct traffic *job, const struct dtp_zero3_gathers *gathers, uint64_t persistent_shard,
                        uint64_t persistent_count, uint64_t ranks, struct dtp_scales *scales)
{
    bool quantized = job->plan->zero_quantized_weights;
    uint64_t bytes = quantized ? gathers->shard + gathers->scale_bytes : gathers->shard * job->bytes.compute;
    uint64_t count = (quantized ? 2 : 1) * gathers->count;
    bytes += persistent_shard * job->bytes.compute;
    add(job, DTP_ALL_GATHER, bytes * (ranks - 1), count + persistent_count, ranks, 1);
    if (quantized)
        *scales = (struct dtp_scales){gathers->scale_bytes * (ranks - 1), gathers->count};
}

static void add_quantized_gradients(struct traffic *job)
{
    uint64_t steps = job->plan->accumulate, local = job->cluster->gpus_per_node;
    struct dtp_zeropp_counts counts;
    dtp_zeropp_count(job->transformer, job->cluster, job->plan, &counts);
    add(job, DTP_REDUCE_SCATTER,
        dtp_bytes_product(steps, counts.scattered_shard * job->bytes.reduce * (job->units.ranks - 1)),
        steps * counts.scattered_count, job->units.ranks, 1);
    add(job, DTP_ALL_TO_ALL, dtp_bytes_product(steps, counts.node_bytes), steps * counts.node_count, local, 1);
    add(job, DTP_ALL_TO_ALL, dtp_bytes_product(steps, counts.between_bytes), steps * counts.between_count,
        job->cluster->gpus / local, local);
    job->out->narrow_exchange_bytes = local > 1 ? dtp_bytes_product(steps, counts.node_bytes) : 0;
    job->out->narrow_exchange_count = steps * counts.node_count;
    job->out->exchange_scales =
        (struct dtp_scales){dtp_bytes_product(steps, counts.between_scale_bytes), steps * counts.between_count / 2};
    if (local > 1)
        job->out->narrow_exchange_scales =
            (struct dtp_scales){dtp_bytes_product(steps, counts.node_scale_bytes), steps * counts.node_count / 2};
}

/* DeepSpeed stage 3: what its coordinator fetches in a step, tensor by tensor, padded to equal shards; a true
 * reduce-scatter in every micro-step in the model's dtype, bucket by bucket; after the step what persists, block by
 * block. */
static void sharded_deepspeed(struct traffic *job)
{
    const struct dtp_units *u = &job->units;
    uint64_t steps = job->plan->accumulate;
    const struct dtp_zero3_counts *fetched = job->zero3;
    if (job->plan->zero_hpz_partition_size > 1) {
        add_fetches(job, &fetched->second, 0, 0, job->plan->zero_hpz_partition_size, &job->out->narrow_gather_scales);
        job->out->narrow_gather_bytes = job->out->bytes[DTP_ALL_GATHER];
        job->out->narrow_gather_count = job->out->count[DTP_ALL_GATHER];
    }
    add_fetches(job, &fetched->all, fetched->persistent_shard, fetched->persistent_modules, u->ranks,
                &job->out->gather_scales);
    if (dtp_zeropp_reduces(job->plan, job->cluster)) {
        add_quantized_gradients(job);
        return;
    }
    add(job, DTP_REDUCE_SCATTER, dtp_bytes_product(steps, u->total_shard * job->bytes.reduce * (u->ranks - 1)),
        steps * dtp_buckets_count(job->transformer, job->plan), u->ranks, 1);
}

/* ---- ours ------------------------------------------------------------------------------------------------------ */

/* Modules are gathered and reduced whole. The blocks at the turns between forward and backward and between micro-steps
 * are still in the ring, so of 2 K passes over L blocks the first gathers all and the others L - ring; where weights
 * rest whole, one gather a step brings what the other ranks updated. Replicas sum shards once a step, and ranks with
 * different shards the square sums of the gradient norm. Offloaded, gradients come
 * down once and weights go up once, or with parameters offloaded as often as they are gathered. */
static void ours(struct traffic *job)
{
    const struct dtp_transformer *t = job->transformer;
    uint64_t micro_steps = job->plan->accumulate, layers = t->layers, all = dtp_parameter_module_count(t);
    struct dtp_executor_rules r;
    dtp_executor_rules(t, job->cluster, job->plan, &r);
    uint64_t reductions = r.reduces_always ? micro_steps : 1, gathered = 0, reduced = 0, replicated = 0;
    uint64_t passes = r.sharded ? layers + (2 * micro_steps - 1) * (layers - r.ring) : layers;
    uint64_t edges = r.sharded ? micro_steps : 1, up = 0, down = 0;
    for (int i = 0; i < 3; i++) {
        const uint64_t module[] = {0, 1, layers + 1};
        struct dtp_parameter_module layout;
        dtp_parameter_module(t, r.shard_ranks, module[i], &layout);
        struct dtp_gradient_dtypes dtype = dtp_executor_gradient_dtypes(t, &r, module[i]);
        uint64_t element = dtp_dtype_bytes(dtype.whole), count = i == 1 ? layers : 1;
        uint64_t shard = dtp_bytes_product(layout.shard_elements, dtp_dtype_bytes(dtype.shard));
        gathered += dtp_bytes_product(i == 1 ? passes : edges,
                                      ring(dtp_bytes_product(layout.elements, job->bytes.compute), r.shard_ranks));
        reduced += dtp_bytes_product(count, ring(dtp_bytes_product(layout.elements, element), r.shard_ranks));
        replicated += dtp_bytes_product(count, 2 * ring(shard, r.replicas));
        up += dtp_bytes_product(!r.host_params ? count
                                : i == 1       ? passes
                                               : edges,
                                dtp_bytes_product(layout.shard_elements, job->bytes.compute));
        down += dtp_bytes_product(count, shard);
    }
    add(job, DTP_ALL_GATHER, gathered, passes + 2 * edges, r.shard_ranks, 1);
    add(job, r.exchanges ? DTP_ALL_TO_ALL : DTP_REDUCE_SCATTER, dtp_bytes_product(reductions, reduced),
        reductions * all, r.shard_ranks, 1);
    uint64_t sums = r.shard_ranks == 1 ? reductions : 1;
    add(job, DTP_ALL_REDUCE, dtp_bytes_product(sums, replicated), sums * all, r.replicas, r.shard_ranks);
    if (r.gradient_norm)
        add(job, DTP_ALL_REDUCE, 2 * ring(4 * DTP_EXECUTOR_SQUARE_SUM_PARTIALS * all, r.shard_ranks), 1, r.shard_ranks,
            1);
    job->out->host_to_device_bytes = dtp_bytes_product(micro_steps, dtp_batch_layout_of(r.tokens).bytes) +
                                     DTP_EXECUTOR_SCALARS_BYTES + (r.host_optimizer ? up : 0);
    job->out->device_to_host_bytes = DTP_EXECUTOR_SCALARS_BYTES + (r.host_optimizer ? down : 0);
}

/* ---- host copies ----------------------------------------------------------------------------------------------- */

/* ZeRO-Offload: fp32 gradients of the partition down at the last micro-step, updated weights up; in the model's dtype,
 * stage 2 carries the sum down after every other micro-step and up again into the next, stage 3 both in every one
 * (partition_grads copies its buffer back to use it). Offloaded parameters go up as often as they are fetched, and what
 * persists once. */
static void add_deepspeed_copies(struct traffic *job)
{
    const struct dtp_plan *plan = job->plan;
    const struct dtp_units *u = &job->units;
    bool third = plan->strategy == DTP_ZERO3;
    uint64_t shard = third ? u->total_shard : dtp_divide_up(u->total, u->ranks), up = shard, carried = 0;
    if (dtp_plan_shards_grads(plan))
        carried = dtp_bytes_product(plan->accumulate - (third ? 0 : 1), shard);
    if (plan->offload != DTP_OFFLOAD_OPTIMIZER)
        up = job->zero3->all.shard + job->zero3->persistent_shard;
    job->out->device_to_host_bytes = 4 * shard + dtp_bytes_product(carried, job->bytes.grads);
    job->out->host_to_device_bytes =
        dtp_bytes_product(up, job->bytes.params) + dtp_bytes_product(carried, job->bytes.grads);
}

/* CPUOffloadPolicy: every all-gather first uploads the fp32 shard, every reduction downloads the fp32 gradients. */
static void add_host_copies(struct traffic *job)
{
    const struct dtp_plan *plan = job->plan;
    const struct dtp_units *u = &job->units;
    bool again_from_host =
        plan->reshard_after_forward && !plan->reshard_group; /* a smaller group's shards stay on the GPU */
    uint64_t gathers = (uint64_t)plan->accumulate * (again_from_host ? 2 : 1);
    uint64_t shard = dtp_divide_up(u->total, u->ranks), again = 0; /* again: not uploaded for backward */
    uint64_t uploads = plan->offload == DTP_OFFLOAD_OPTIMIZER ? 1 : gathers;
    if (plan->runtime->fetches_modules) {
        add_deepspeed_copies(job);
        return;
    }
    if (plan->runtime->fsdp) {
        shard = u->total_shard;
        again = dtp_plan_keeps_root(plan) ? u->root_shard * (gathers - plan->accumulate) : 0;
    }
    job->out->device_to_host_bytes = dtp_bytes_product(job->reductions, shard * job->bytes.grads);
    job->out->host_to_device_bytes = dtp_bytes_product(uploads, shard * job->bytes.params) - again * job->bytes.params;
}

void dtp_closed_form_communication(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                   const struct dtp_plan *plan, struct dtp_communication *out)
{
    struct dtp_counts counts;
    dtp_counts_of(transformer, cluster, plan, &counts);
    dtp_counted_communication(transformer, cluster, plan, &counts, out);
}

void dtp_counted_communication(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                               const struct dtp_plan *plan, const struct dtp_counts *counts,
                               struct dtp_communication *out)
{
    struct traffic job = {.transformer = transformer,
                          .cluster = cluster,
                          .plan = plan,
                          .units = counts->units,
                          .bytes = counts->bytes,
                          .zero3 = &counts->zero3,
                          .reductions = dtp_plan_reductions(plan),
                          .out = out};
    *out = (struct dtp_communication){0};
    if (plan->runtime->arena) {
        ours(&job);
    } else if (!dtp_plan_shards_params(plan)) {
        if (plan->runtime->fsdp)
            replicated_torch(&job);
        else if (plan->runtime->fetches_modules)
            replicated_deepspeed(&job);
        else
            replicated_buffered(&job);
    } else if (plan->runtime->fetches_modules) {
        sharded_deepspeed(&job);
    } else {
        sharded_units(&job);
    }
    if (plan->offload != DTP_OFFLOAD_NONE && !plan->runtime->arena)
        add_host_copies(&job);
}
