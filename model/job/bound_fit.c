#include "job/bound_fit.h"

#include "closed/closed_form_hooks.h"
#include "job/estimate.h"
#include "plan/rules.h"

struct dtp_bound_off dtp_bound_most_off(const struct dtp_transformer *transformer, const struct dtp_plan *plan)
{
    if (dtp_plan_model_parallel(plan)) /* -28.4 % was drawn, of Megatron's six layers in eight stages */
        return plan->runtime->dtensor ? (struct dtp_bound_off){0.45, 1.05, 1} : (struct dtp_bound_off){0.30, 0.60, 0};
    if (dtp_plan_adapts(plan))
        return (struct dtp_bound_off){0.25, 0.80, 0}; /* of one layer what is cut off */
    if (dtp_plan_layers(plan)
            ->chains_norms) /* it takes whole kept tensors for both norms' copies and for what is replayed */
        return (struct dtp_bound_off){0.40, 0.60, 0.05};
    if (dtp_plan_shards_params(plan) && !dtp_transformer_is_uniform(transformer) && !plan->runtime->arena)
        return (struct dtp_bound_off){0.25, 1.05, 0};
    if (dtp_plan_shards_params(plan) && !plan->runtime->arena)
        return (struct dtp_bound_off){0.25, 0.25, 0};
    if (plan->comm_hook == DTP_COMM_HOOK_INT8 && !plan->runtime->arena) /* which bucket meets which instant is open */
        return (struct dtp_bound_off){0.15, 1.05, 0};
    if (transformer->experts && plan->runtime->arena) /* +20.9 % was drawn, with a stream of weight gradients */
        return (struct dtp_bound_off){0.15, 0.35, 0};
    return (struct dtp_bound_off){0.15, 0.20, 0};
}

/* Out of the workspace that they stand in. */
static void book_gradients(uint64_t bytes, uint64_t *owners)
{
    owners[DTP_OWNER_GRADS] = bytes < owners[DTP_OWNER_WORKSPACE] ? bytes : owners[DTP_OWNER_WORKSPACE];
    owners[DTP_OWNER_WORKSPACE] -= owners[DTP_OWNER_GRADS];
}

/* dtp_bound_memory_of; returns what tensors take at least. */
static uint64_t memory_of(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                          const struct dtp_plan *plan, struct dtp_bound_off off, struct dtp_job_layers *kept,
                          struct dtp_memory *out, struct dtp_memory_parts *parts)
{
    struct dtp_bounds bounds;
    dtp_bounds_of(transformer, cluster, plan, kept, &bounds);
    uint64_t resting = bounds.params_bytes + bounds.optimizer_bytes, moving = bounds.memory_bytes - resting;
    struct dtp_live_bytes live = {.peak_phase = DTP_PHASE_EARLY_BACKWARD};
    uint64_t *peak = live.phase_bytes[live.peak_phase];
    peak[DTP_OWNER_PARAMS] = live.most_bytes[DTP_OWNER_PARAMS] = bounds.params_bytes;
    peak[DTP_OWNER_OPTIMIZER] = live.most_bytes[DTP_OWNER_OPTIMIZER] = bounds.optimizer_bytes;
    peak[DTP_OWNER_ACTIVATIONS] = live.most_bytes[DTP_OWNER_ACTIVATIONS] =
        bounds.kept_bytes < moving ? bounds.kept_bytes : moving;
    peak[DTP_OWNER_WORKSPACE] = moving - peak[DTP_OWNER_ACTIVATIONS];
    if (plan->pipeline_ranks) /* whose ranks differ in states, of which gradients are one */
        book_gradients(bounds.grads_bytes, peak);
    live.most_bytes[DTP_OWNER_GRADS] = bounds.grads_bytes;
    live.phase_total_bytes[live.peak_phase] = live.pool_bytes[DTP_STREAM_COMPUTE] = bounds.memory_bytes;
    if (plan->pipeline_ranks && !bounds.late_bytes) /* our executor's, whose instants are all of one block */
        bounds.late_bytes = bounds.memory_bytes - bounds.kept_bytes;
    if (bounds.late_bytes > resting) { /* where a pipeline's other micro-batches are added */
        uint64_t *late = live.phase_bytes[DTP_PHASE_LATE_BACKWARD];
        late[DTP_OWNER_PARAMS] = bounds.params_bytes, late[DTP_OWNER_OPTIMIZER] = bounds.optimizer_bytes;
        late[DTP_OWNER_WORKSPACE] = bounds.late_bytes - resting;
        if (plan->pipeline_ranks)
            book_gradients(bounds.grads_bytes, late);
        live.phase_total_bytes[DTP_PHASE_LATE_BACKWARD] = bounds.late_bytes;
    }
    live.standing_pool_bytes[DTP_STREAM_COMPUTE] = resting;
    live.standing_bytes[DTP_OWNER_PARAMS] = bounds.params_bytes;
    live.standing_bytes[DTP_OWNER_OPTIMIZER] = bounds.optimizer_bytes;
    dtp_memory_of_live(&live, transformer, cluster, plan, out, parts);
    out->bound = true;
    double surely = (double)bounds.least_bytes / (1 + DTP_BOUND_LEAST_ABOVE + off.surely);
    double nearly = (double)bounds.memory_bytes / (1 + off.above);
    return (uint64_t)(surely > nearly ? surely : nearly);
}

void dtp_bound_memory_of(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                         const struct dtp_plan *plan, struct dtp_memory *out, struct dtp_memory_parts *parts)
{
    (void)memory_of(transformer, cluster, plan, dtp_bound_most_off(transformer, plan), NULL, out, parts);
}

/* The verdict on tensors of so many bytes without any segments around them; what stands beside is that of `memory`. */
static enum dtp_verdict verdict_of(const struct dtp_memory *memory, uint64_t tensor_bytes)
{
    struct dtp_memory m = {.allocated_peak_bytes = tensor_bytes,
                           .device_peak_bytes = tensor_bytes + memory->context_bytes + memory->nccl_bytes,
                           .context_bytes = memory->context_bytes,
                           .nccl_bytes = memory->nccl_bytes,
                           .capacity_bytes = memory->capacity_bytes,
                           .host_bytes = memory->host_bytes,
                           .nvme_bytes = memory->nvme_bytes,
                           .host_capacity_bytes = memory->host_capacity_bytes,
                           .nvme_capacity_bytes = memory->nvme_capacity_bytes};
    dtp_memory_judge(&m);
    return m.verdict;
}

static uint64_t most_less(const struct dtp_memory *before, const struct dtp_memory *after)
{
    uint64_t most = 0;
    for (int phase = 0; phase < DTP_PHASE_COUNT; phase++)
        if (before->phase_total_bytes[phase] > after->phase_total_bytes[phase] + most)
            most = before->phase_total_bytes[phase] - after->phase_total_bytes[phase];
    return most;
}

void dtp_bound_fit_of(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                      const struct dtp_plan *plan, struct dtp_job_layers *kept, struct dtp_bound_fit *out)
{
    struct dtp_bound_off off = dtp_bound_most_off(transformer, plan);
    if (dtp_plan_model_parallel(plan)) {
        struct dtp_slice slice;
        dtp_estimate_stage(transformer, cluster, plan, &slice);
        out->least_bytes = memory_of(&slice.transformer, &slice.cluster, &slice.plan, off, kept, &out->memory, NULL);
        const struct dtp_memory of_slice = out->memory;
        plan->runtime->closed->add_stages_memory(transformer, cluster, plan, &out->memory);
        const uint64_t less = most_less(&of_slice, &out->memory); /* no rank has all that the slice has */
        out->least_bytes -= less < out->least_bytes ? less : out->least_bytes;
    } else {
        out->least_bytes = memory_of(transformer, cluster, plan, off, kept, &out->memory, NULL);
    }
    double most = (double)out->memory.allocated_peak_bytes / (1 - off.below);
    out->best_verdict = verdict_of(&out->memory, out->least_bytes);
    out->surely_not_oom = verdict_of(&out->memory, (uint64_t)most) != DTP_VERDICT_OOM;
}
