#include "bounds/bound_fit.h"

#include "bounds/bounds.h"
#include "closed/closed_form_hooks.h"
#include "plan/rules.h"

struct dtp_bound_off dtp_bound_most_off(const struct dtp_transformer *transformer, const struct dtp_plan *plan)
{
    if (plan->runtime->counts_elements)
        return (struct dtp_bound_off){0.40, 0.60};
    if (!dtp_plan_shards_params(plan))
        return (struct dtp_bound_off){0.15, 0.25};
    if (transformer->layers <= 3)
        return (struct dtp_bound_off){0.15, 0.50};
    bool closest = plan->reshard_after_forward && !plan->runtime->own_kernels;
    return (struct dtp_bound_off){0.15, closest ? 0.25 : 0.35};
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

void dtp_bound_memory_of(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                         const struct dtp_plan *plan, struct dtp_memory *out, struct dtp_memory_parts *parts)
{
    struct dtp_bounds bounds;
    dtp_bounds_of(transformer, cluster, plan, &bounds);
    uint64_t resting = bounds.params_bytes + bounds.optimizer_bytes, moving = bounds.memory_bytes - resting;
    struct dtp_live_bytes live = {.peak_phase = DTP_PHASE_EARLY_BACKWARD};
    uint64_t *peak = live.phase_bytes[live.peak_phase];
    peak[DTP_OWNER_PARAMS] = live.most_bytes[DTP_OWNER_PARAMS] = bounds.params_bytes;
    peak[DTP_OWNER_OPTIMIZER] = live.most_bytes[DTP_OWNER_OPTIMIZER] = bounds.optimizer_bytes;
    peak[DTP_OWNER_ACTIVATIONS] = live.most_bytes[DTP_OWNER_ACTIVATIONS] = smaller(bounds.kept_bytes, moving);
    peak[DTP_OWNER_WORKSPACE] = moving - peak[DTP_OWNER_ACTIVATIONS];
    live.most_bytes[DTP_OWNER_GRADS] = bounds.grads_bytes;
    live.phase_total_bytes[live.peak_phase] = live.pool_bytes[DTP_STREAM_COMPUTE] = bounds.memory_bytes;
    live.standing_pool_bytes[DTP_STREAM_COMPUTE] = resting;
    live.standing_bytes[DTP_OWNER_PARAMS] = bounds.params_bytes;
    live.standing_bytes[DTP_OWNER_OPTIMIZER] = bounds.optimizer_bytes;
    dtp_memory_of_live(&live, transformer, cluster, plan, out, parts);
    out->bound = true;
}

/* Of tensors that are `times` the bound, what stands beside them included. */
static bool is_oom(const struct dtp_memory *memory, double times)
{
    double bytes = times * (double)memory->allocated_peak_bytes + (double)(memory->context_bytes + memory->nccl_bytes);
    return bytes > (double)memory->capacity_bytes;
}

void dtp_bound_fit_of(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                      const struct dtp_plan *plan, struct dtp_bound_fit *out)
{
    bool slices = dtp_plan_model_parallel(plan);
    if (slices) {
        struct dtp_slice slice;
        plan->runtime->closed->slice(transformer, cluster, plan, &slice);
        dtp_bound_memory_of(&slice.transformer, &slice.cluster, &slice.plan, &out->memory, NULL);
        plan->runtime->closed->add_stages_memory(transformer, cluster, plan, &out->memory);
    } else {
        dtp_bound_memory_of(transformer, cluster, plan, &out->memory, NULL);
    }
    const struct dtp_memory *m = &out->memory;
    bool beside = (m->host_capacity_bytes && m->host_bytes > m->host_capacity_bytes) ||
                  (m->nvme_capacity_bytes && m->nvme_bytes > m->nvme_capacity_bytes);
    struct dtp_bound_off off = dtp_bound_most_off(transformer, plan);
    /* of the node's memory and NVMe nothing is a bound */
    out->surely_oom = beside || (!slices && is_oom(m, 1 / (1 + off.above)));
    out->surely_not_oom = !beside && !is_oom(m, 1 / (1 - off.below));
}
