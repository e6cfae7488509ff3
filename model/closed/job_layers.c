#include "closed/job_layers.h"

#include "plan/slice.h"

#include <string.h>

static void count_kind(struct dtp_job_layers *layers, const struct dtp_transformer *alike, int index,
                       const struct dtp_cluster *cluster, const struct dtp_plan *plan)
{
    struct dtp_layer_tensors *tensors = &layers->tensors[index];
    dtp_layer_tensors_of(alike, dtp_layer_mlp_of(alike), cluster, plan, tensors);
    dtp_units_of(alike, cluster, plan, &tensors->kind, &layers->alike[index]);
}

static void count_layers(struct dtp_job_layers *layers, const struct dtp_transformer *transformer,
                         const struct dtp_cluster *cluster, const struct dtp_plan *plan)
{
    const struct dtp_transformer *t = transformer->experts ? &layers->own : transformer;
    if (transformer->experts)
        layers->own = dtp_plan_own_experts(transformer, plan);
    layers->uniform = dtp_transformer_is_uniform(t);
    if (layers->uniform) {
        count_kind(layers, t, 0, cluster, plan);
    } else {
        const struct dtp_transformer dense = dtp_transformer_all_alike(t, false),
                                     experts = dtp_transformer_all_alike(t, true);
        count_kind(layers, &dense, DTP_LAYER_DENSE, cluster, plan);
        count_kind(layers, &experts, DTP_LAYER_EXPERTS, cluster, plan);
        dtp_units_count(t, cluster, plan, &layers->mixed);
    }
    if (dtp_plan_adapts(plan))
        dtp_units_trained(dtp_job_units(layers), plan, &layers->trained);
}

/* Bytes between members may differ where no member does; then all is counted once more. */
static bool has_layers(const struct dtp_job_layers *kept, const struct dtp_transformer *transformer,
                       const struct dtp_cluster *cluster, const struct dtp_plan *plan)
{
    struct dtp_plan same = *plan;
    same.micro_batch = kept->plan.micro_batch, same.accumulate = kept->plan.accumulate;
    return !memcmp(&same, &kept->plan, sizeof same) && !memcmp(transformer, &kept->transformer, sizeof *transformer) &&
           !memcmp(cluster, &kept->cluster, sizeof *cluster);
}

const struct dtp_job_layers *dtp_job_layers_of(const struct dtp_transformer *transformer,
                                               const struct dtp_cluster *cluster, const struct dtp_plan *plan,
                                               struct dtp_job_layers *kept, struct dtp_job_layers *here)
{
    if (!kept) {
        count_layers(here, transformer, cluster, plan);
        return here;
    }
    if (!has_layers(kept, transformer, cluster, plan)) {
        kept->transformer = *transformer, kept->cluster = *cluster, kept->plan = *plan;
        count_layers(kept, transformer, cluster, plan);
    }
    return kept;
}
