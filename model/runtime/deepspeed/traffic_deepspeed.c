/* What DeepSpeed sends: ZeRO stages 1 to 3, ZeRO++; and copies of its offload. */
#include "runtime/deepspeed/deepspeed_hooks.h"

#include "base/bytes.h"
#include "net/layer_kind.h"
#include "plan/slice.h"
#include "runtime/deepspeed/zeropp.h"
#include "runtime/deepspeed/deepspeed_buckets.h"
#include "runtime/deepspeed/traffic_fetches.h"

/* Of experts, which ranks with the same ones sum and gather among themselves. */
static uint64_t expert_elements(const struct dtp_traffic *job)
{
    const struct dtp_transformer *t = job->transformer;
    struct dtp_transformer own = dtp_plan_own_experts(t, job->plan);
    struct dtp_layer_kind kind;
    uint64_t elements = 0;
    if (!t->experts)
        return 0;
    dtp_layer_kind_of(&own, DTP_LAYER_EXPERTS, job->plan->fused_qkv, job->plan->fused_gate_up, &kind);
    for (int i = 0; i < kind.matrices; i++)
        elements += kind.matrix[i].expert ? kind.matrix[i].groups * kind.matrix[i].out * kind.matrix[i].in : 0;
    return elements * dtp_transformer_expert_layers(t, t->layers);
}

static void add_experts(struct dtp_traffic *job, uint64_t elements, uint64_t buckets)
{
    const struct dtp_plan *plan = job->plan;
    uint64_t same = dtp_plan_expert_replicas(plan, job->cluster);
    uint64_t summed = dtp_bytes_product(job->reductions, 2 * dtp_traffic_ring(elements * job->bytes.reduce, same));
    uint64_t gathered = dtp_traffic_ring(elements * job->bytes.params, same);
    const struct dtp_scales of[DTP_COLLECTIVE_COUNT] = {
        [DTP_ALL_REDUCE] = {summed, job->reductions * buckets}, [DTP_ALL_GATHER] = {gathered, 1}};
    for (int i = 0; i < DTP_COLLECTIVE_COUNT && same > 1; i++) {
        if (plan->ep > 1 && of[i].count)
            job->out->experts[i] = of[i];
        dtp_traffic_add(job, (enum dtp_collective)i, of[i].bytes, of[i].count, same, plan->ep);
    }
}

/* DeepSpeed stages 1 and 2 all-reduce gradients by default even where a reduce-scatter would do
 * (use_multi_rank_bucket_allreduce), stage 2 in every micro-step whatever no_sync says; one blocking all-gather of the
 * flat parameters follows the step. */
static void stages_1_and_2(struct dtp_traffic *job)
{
    const struct dtp_units *u = &job->units;
    uint64_t gpus = job->cluster->gpus;
    uint64_t reductions = job->reductions;
    bool one = job->plan->deepspeed.bf16_optimizer; /* all sums together */
    const struct dtp_bucket_count buckets = dtp_buckets_count(job->transformer, job->plan);
    uint64_t experts = expert_elements(job), trained = u->trained - experts;
    if (experts)
        add_experts(job, experts, buckets.experts);
    dtp_traffic_add(job, DTP_ALL_REDUCE,
                    dtp_bytes_product(reductions, 2 * dtp_traffic_ring(trained * job->bytes.reduce, gpus)),
                    reductions * (one ? 1 : buckets.others), gpus, 1);
    if (job->plan->strategy != DTP_DDP)
        dtp_traffic_add(job, DTP_ALL_GATHER, dtp_traffic_ring(trained * job->bytes.params, u->ranks), 1, u->ranks, 1);
}

/* Weights in the compute dtype, or as int8 and their scales, which are a collective of their own. */
static void add_fetches(struct dtp_traffic *job, const struct dtp_zero3_gathers *gathers, uint64_t persistent_shard,
                        uint64_t persistent_count, uint64_t ranks, struct dtp_scales *scales)
{
    bool quantized = job->plan->deepspeed.zero_quantized_weights;
    uint64_t bytes = quantized ? gathers->shard + gathers->scale_bytes : gathers->shard * job->bytes.compute;
    uint64_t count = (quantized ? 2 : 1) * gathers->count;
    bytes += persistent_shard * job->bytes.compute;
    dtp_traffic_add(job, DTP_ALL_GATHER, bytes * (ranks - 1), count + persistent_count, ranks, 1);
    if (quantized)
        *scales = (struct dtp_scales){gathers->scale_bytes * (ranks - 1), gathers->count};
}

static void add_quantized_gradients(struct dtp_traffic *job)
{
    uint64_t steps = job->plan->accumulate, local = job->cluster->gpus_per_node;
    struct dtp_zeropp_counts counts;
    dtp_zeropp_count(job->transformer, job->cluster, job->plan, &counts);
    dtp_traffic_add(job, DTP_REDUCE_SCATTER,
                    dtp_bytes_product(steps, counts.scattered_shard * job->bytes.reduce * (job->units.ranks - 1)),
                    steps * counts.scattered_count, job->units.ranks, 1);
    dtp_traffic_add(job, DTP_ALL_TO_ALL, dtp_bytes_product(steps, counts.node_bytes), steps * counts.node_count, local,
                    1);
    dtp_traffic_add(job, DTP_ALL_TO_ALL, dtp_bytes_product(steps, counts.between_bytes), steps * counts.between_count,
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
static void stage_3(struct dtp_traffic *job, const struct dtp_zero3_counts *fetched)
{
    const struct dtp_units *u = &job->units;
    uint64_t steps = job->plan->accumulate;
    if (job->plan->deepspeed.zero_hpz_partition_size > 1) {
        add_fetches(job, &fetched->second, 0, 0, job->plan->deepspeed.zero_hpz_partition_size,
                    &job->out->narrow_gather_scales);
        job->out->narrow_gather_bytes = job->out->bytes[DTP_ALL_GATHER];
        job->out->narrow_gather_count = job->out->count[DTP_ALL_GATHER];
    }
    add_fetches(job, &fetched->all, fetched->persistent_shard, fetched->persistent_modules, u->ranks,
                &job->out->gather_scales);
    if (dtp_zeropp_reduces(job->plan, job->cluster)) {
        add_quantized_gradients(job);
        return;
    }
    dtp_traffic_add(job, DTP_REDUCE_SCATTER,
                    dtp_bytes_product(steps, u->trained_shard * job->bytes.reduce * (u->ranks - 1)),
                    steps * dtp_buckets_count(job->transformer, job->plan).others, u->ranks, 1);
}

/* ZeRO-Offload: fp32 gradients of the partition down at the last micro-step, updated weights up; in the model's dtype,
 * stage 2 carries the sum down after every other micro-step and up again into the next, stage 3 both in every one
 * (partition_grads copies its buffer back to use it). Offloaded parameters go up as often as they are fetched, and what
 * persists once. */
static void add_host_copies(struct dtp_traffic *job, const struct dtp_zero3_counts *fetched)
{
    const struct dtp_plan *plan = job->plan;
    const struct dtp_units *u = &job->units;
    bool third = plan->strategy == DTP_ZERO3;
    uint64_t shard = third ? u->total_shard : dtp_divide_up(u->total, u->ranks), up = shard, carried = 0;
    if (dtp_plan_shards_grads(plan))
        carried = dtp_bytes_product(plan->accumulate - (third ? 0 : 1), shard);
    if (plan->offload != DTP_OFFLOAD_OPTIMIZER)
        up = fetched->all.shard + fetched->persistent_shard;
    job->out->device_to_host_bytes = 4 * shard + dtp_bytes_product(carried, job->bytes.grads);
    job->out->host_to_device_bytes =
        dtp_bytes_product(up, job->bytes.params) + dtp_bytes_product(carried, job->bytes.grads);
}

void dtp_deepspeed_traffic(struct dtp_traffic *job)
{
    struct dtp_zero3_counts fetched = {.persistent_shard = 0}; /* of stage 3, which alone offloads parameters */
    if (dtp_plan_shards_params(job->plan)) {
        dtp_zero3_count(job->transformer, job->plan, job->units.ranks, &fetched);
        stage_3(job, &fetched);
    } else {
        stages_1_and_2(job);
    }
    if (job->plan->offload != DTP_OFFLOAD_NONE)
        add_host_copies(job, &fetched);
}
