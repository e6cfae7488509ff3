/* What our executor sends and copies. */
#include "runtime/dtplan/closed_form_executor.h"

#include "base/bytes.h"
#include "plan/comm_hook.h"
#include "plan/slice.h"
#include "runtime/dtplan/batch_layout.h"
#include "runtime/dtplan/executor_adapters.h"
#include "runtime/dtplan/executor_factors.h"
#include "runtime/dtplan/executor_work.h"
#include "runtime/dtplan/lower_executor.h"

/* Sends of a module's sum over replicas, and in how many operations: of PowerSGD two where anything is factored. */
static uint64_t summed(const struct dtp_executor_rules *rules, const struct dtp_plan *plan,
                       const struct dtp_parameter_module *layout, enum dtp_dtype dtype, uint64_t *count)
{
    struct dtp_executor_factors f = {.count = 0};
    uint64_t element = dtp_dtype_bytes(dtp_executor_casts_sums(rules) ? rules->wire : dtype);
    *count = 1;
    if (rules->hook == DTP_COMM_HOOK_INT8)
        return dtp_traffic_ring(dtp_bytes_product(rules->replicas, dtp_int8_part_bytes(layout->shard_elements)),
                                rules->replicas);
    if (rules->hook == DTP_COMM_HOOK_POWERSGD)
        dtp_executor_factors_of(layout, plan->powersgd_rank, &f);
    if (f.count)
        *count = 2;
    if (f.count)
        return 2 * (dtp_traffic_ring(4 * f.p_elements, rules->replicas) +
                    dtp_traffic_ring(4 * f.q_elements, rules->replicas));
    return 2 * dtp_traffic_ring(dtp_bytes_product(layout->shard_elements, element), rules->replicas);
}

/* Among ranks of a stage, tensor parallel ones with them. */
static void add_folded(struct dtp_traffic *job, enum dtp_collective collective, uint64_t bytes, uint64_t count,
                       uint64_t ranks, uint64_t stride)
{
    dtp_expert_traffic_add(job, collective, &(struct dtp_scales){.bytes = bytes, .count = count}, ranks, stride);
}

/* Of a block's experts where ranks divide them, among the ranks with the same ones: as a block's, without a turn of
 * their own. And rows of tokens that go to them, with what is said of these first. */
static void add_experts(struct dtp_traffic *job, const struct dtp_executor_rules *r,
                        const struct dtp_parameter_alike *blocks)
{
    const struct dtp_plan *plan = job->plan;
    const struct dtp_transformer own = dtp_plan_own_experts(job->transformer, plan);
    const struct dtp_gradient_dtypes dtype = dtp_executor_gradient_dtypes(&own, r, 1);
    const uint64_t layers = blocks->count, steps = plan->accumulate,
                   passes = dtp_executor_block_gathers(job->transformer, r, steps, blocks),
                   shards = dtp_executor_expert_shards(plan, r), copies = dtp_executor_expert_copies(plan, r),
                   reductions = r->reduces_always ? steps : 1;
    struct dtp_parameter_module rest, experts;
    struct dtp_row_traffic rows;
    dtp_parameter_split_experts(job->transformer, &own, r->shard_ranks, shards, &rest, &experts);
    uint64_t weights = dtp_traffic_ring(dtp_bytes_product(experts.elements, job->bytes.compute), shards);
    uint64_t gradients = dtp_bytes_product(experts.elements, dtp_dtype_bytes(dtype.whole));
    add_folded(job, DTP_ALL_GATHER, dtp_bytes_product(passes, weights), passes, shards, plan->ep);
    add_folded(job, DTP_REDUCE_SCATTER, dtp_bytes_product(reductions * layers, dtp_traffic_ring(gradients, shards)),
               reductions * layers, shards, plan->ep);
    /* whole gradients at each reduction, or of shards the sum of them all */
    const uint64_t sums = (shards > 1 ? 1 : reductions) * layers,
                   summed_bytes =
                       shards > 1 ? dtp_bytes_product(experts.shard_elements, dtp_dtype_bytes(dtype.shard)) : gradients;
    add_folded(job, DTP_ALL_REDUCE, dtp_bytes_product(sums, 2 * dtp_traffic_ring(summed_bytes, copies)), sums, copies,
               plan->ep * shards);
    if (r->gradient_norm && r->shard_ranks == 1)
        add_folded(job, DTP_ALL_REDUCE, 2 * dtp_traffic_ring(4 * DTP_EXECUTOR_SQUARE_SUM_PARTIALS * layers, plan->ep),
                   1, plan->ep, 1);
    dtp_executor_row_traffic(job->transformer, job->cluster, plan, &rows);
    add_folded(job, DTP_ALL_GATHER, dtp_bytes_product(steps * rows.heard, rows.starts_bytes), steps * rows.heard,
               plan->ep, 1);
    struct dtp_scales *out = &job->out->experts[DTP_ALL_TO_ALL];
    out->bytes = dtp_bytes_product(steps, rows.exchanged_bytes), out->count = steps * rows.exchanges;
    dtp_expert_traffic_add(job, DTP_ALL_TO_ALL, out, plan->ep, 1);
    job->out->device_to_host_bytes += dtp_bytes_product(steps * rows.heard, rows.heard_bytes);
}

uint64_t dtp_executor_block_gathers(const struct dtp_transformer *t, const struct dtp_executor_rules *r, uint64_t steps,
                                    const struct dtp_parameter_alike *blocks)
{
    const uint64_t layers = t->layers;
    uint64_t gathers = 0;
    if (!r->sharded || blocks->count == layers)
        return r->sharded ? layers + (2 * steps - 1) * (layers - r->ring) : blocks->count;
    for (uint64_t layer = 0; layer < layers; layer++)
        if (dtp_transformer_layer_has_experts(t, layer) == dtp_transformer_layer_has_experts(t, blocks->module - 1))
            gathers += 2 * steps - (layer + r->ring >= layers ? steps : 0) - (layer < r->ring ? steps - 1 : 0);
    return gathers;
}

/* Modules are gathered and reduced whole. The blocks at the turns between forward and backward and between micro-steps
 * are still in the ring, so of 2 K passes over L blocks the first gathers all and the others L - ring; where weights
 * rest whole, one gather a step brings what the other ranks updated. Replicas sum shards once a step, and ranks with
 * different shards the square sums of the gradient norm. Offloaded, gradients come
 * down once and weights go up once, or with parameters offloaded as often as they are gathered. */
void dtp_executor_traffic(struct dtp_traffic *job)
{
    const struct dtp_transformer *t = job->transformer;
    uint64_t micro_steps = job->plan->accumulate, layers = t->layers;
    uint64_t all = dtp_plan_adapts(job->plan) ? layers : dtp_parameter_module_count(t); /* modules that are trained */
    struct dtp_executor_rules r;
    dtp_executor_rules(t, job->cluster, job->plan, &r);
    uint64_t reductions = r.reduces_always ? micro_steps : 1, gathered = 0, reduced = 0, replicated = 0;
    uint64_t passes = r.sharded ? layers + (2 * micro_steps - 1) * (layers - r.ring) : layers;
    uint64_t edges = r.sharded ? micro_steps : 1, up = 0, down = 0, replications = 0, operations;
    struct dtp_parameter_alike alike[DTP_PARAMETER_KINDS];
    const int kinds = dtp_parameter_alike_modules(t, alike);
    for (int i = 0; i < kinds; i++) {
        const bool block = alike[i].module >= 1 && alike[i].module <= layers;
        const uint64_t gathers = block ? dtp_executor_block_gathers(t, &r, micro_steps, &alike[i]) : edges;
        struct dtp_parameter_module layout;
        if (dtp_plan_adapts(job->plan) && !block)
            continue;
        if (dtp_plan_adapts(job->plan))
            dtp_executor_adapter_module(t, job->plan, r.shard_ranks, &layout);
        else
            dtp_parameter_module(t, r.shard_ranks, alike[i].module, &layout);
        if (job->plan->ep > 1 && block && dtp_transformer_layer_has_experts(t, alike[i].module - 1)) {
            const struct dtp_transformer own = dtp_plan_own_experts(t, job->plan);
            struct dtp_parameter_module experts;
            dtp_parameter_split_experts(t, &own, r.shard_ranks, 1, &layout, &experts);
        }
        struct dtp_gradient_dtypes dtype = dtp_executor_gradient_dtypes(t, &r, alike[i].module);
        uint64_t element = dtp_dtype_bytes(dtype.whole), count = alike[i].count;
        uint64_t shard = dtp_bytes_product(layout.shard_elements, dtp_dtype_bytes(dtype.shard));
        gathered += dtp_bytes_product(
            gathers, dtp_traffic_ring(dtp_bytes_product(layout.elements, job->bytes.compute), r.shard_ranks));
        reduced +=
            dtp_bytes_product(count, dtp_traffic_ring(dtp_bytes_product(layout.elements, element), r.shard_ranks));
        replicated += dtp_bytes_product(count, summed(&r, job->plan, &layout, dtype.shard, &operations));
        replications += count * operations;
        up += dtp_bytes_product(r.host_params ? gathers : count,
                                dtp_bytes_product(layout.shard_elements, job->bytes.compute));
        down += dtp_bytes_product(count, shard);
    }
    dtp_traffic_add(job, DTP_ALL_GATHER, gathered, passes + 2 * edges, r.shard_ranks, 1);
    dtp_traffic_add(job, r.exchanges ? DTP_ALL_TO_ALL : DTP_REDUCE_SCATTER, dtp_bytes_product(reductions, reduced),
                    reductions * all, r.shard_ranks, 1);
    uint64_t sums = r.shard_ranks == 1 ? reductions : 1;
    dtp_traffic_add(job, r.hook == DTP_COMM_HOOK_INT8 ? DTP_ALL_GATHER : DTP_ALL_REDUCE,
                    dtp_bytes_product(sums, replicated), dtp_bytes_product(sums, replications), r.replicas,
                    r.shard_ranks);
    const uint64_t experts = job->plan->ep > 1 ? dtp_transformer_expert_layers(t, layers) : 0;
    if (r.gradient_norm)
        dtp_traffic_add(job, DTP_ALL_REDUCE,
                        2 * dtp_traffic_ring(4 * DTP_EXECUTOR_SQUARE_SUM_PARTIALS * (all + experts), r.shard_ranks), 1,
                        r.shard_ranks, 1);
    job->out->host_to_device_bytes = dtp_bytes_product(micro_steps, dtp_batch_layout_of(r.tokens).bytes) +
                                     DTP_EXECUTOR_SCALARS_BYTES + (r.host_optimizer ? up : 0);
    job->out->device_to_host_bytes = DTP_EXECUTOR_SCALARS_BYTES + (r.host_optimizer ? down : 0);
    for (int i = 1; i + 1 < kinds && job->plan->ep > 1; i++)
        if (dtp_transformer_layer_has_experts(t, alike[i].module - 1))
            add_experts(job, &r, &alike[i]);
}

uint64_t dtp_executor_table_gradient_bytes(const struct dtp_slice *slice)
{
    struct dtp_executor_rules rules;
    struct dtp_parameter_module table;
    dtp_executor_rules(&slice->transformer, &slice->cluster, &slice->plan, &rules);
    const struct dtp_gradient_dtypes dtype = dtp_executor_gradient_dtypes(&slice->transformer, &rules, 0);
    dtp_parameter_module(&slice->transformer, rules.shard_ranks, 0, &table);
    return rules.shard_ranks > 1 ? dtp_bytes_product(table.shard_elements, dtp_dtype_bytes(dtype.shard))
                                 : dtp_bytes_product(table.elements, dtp_dtype_bytes(dtype.whole));
}
