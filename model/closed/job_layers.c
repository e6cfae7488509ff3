#include "closed/job_layers.h"

#include "plan/slice.h"

#include <string.h>

static void count_kind(struct dtp_job_layers *layers, const struct dtp_transformer *alike, int index,
                       const struct dtp_cluster *cluster, const struct dtp_plan *plan)
{
    struct dtp_layer_tensors *tensors = &layers->tensors[index];
    dtp_layer_tensors_of(alike, dtp_layer_mlp_of(alike), cluster, plan, tensors);
    if (tensors->cut && alike->layers == 1) { /* the first one is all */
        const bool all = tensors->kept == tensors->saved;
        tensors->saved = tensors->saved_first;
        tensors->kept = all ? tensors->saved : tensors->kept;
    }
    dtp_units_of(alike, cluster, plan, &tensors->kind, &layers->alike[index]);
    layers->wide[index] = 0;
    if (plan->megatron.bf16_first || plan->megatron.bf16_last) {
        const struct dtp_plan wide = dtp_plan_of_wide_layers(plan);
        struct dtp_layer_tensors of_wide;
        dtp_layer_tensors_of(alike, dtp_layer_mlp_of(alike), cluster, &wide, &of_wide);
        layers->wide[index] = dtp_layer_tensors_bytes(&of_wide, of_wide.kept);
    }
}

static uint64_t shapes_of(const struct dtp_job_layers *layers, const struct dtp_transformer *t)
{
    const struct dtp_layer_matrix *before[DTP_LAYER_MLPS * DTP_LAYER_MATRICES];
    uint64_t elements = t->vocab * t->hidden + (t->ahead_layers ? dtp_transformer_ahead_elements(t) : 0);
    int count = 0;
    for (int index = 0; index < (layers->uniform ? 1 : DTP_LAYER_MLPS); index++)
        for (int i = 0; i < layers->tensors[index].kind.matrices; i++) {
            const struct dtp_layer_matrix *m = before[count] = &layers->tensors[index].kind.matrix[i];
            int same = 0;
            while (before[same]->out != m->out || before[same]->in != m->in)
                same++;
            elements += same == count ? m->out * m->in : 0;
            count += same == count;
        }
    return elements;
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
    layers->shapes = plan->runtime->gradients_in_matmul && !dtp_plan_adapts(plan) ? shapes_of(layers, t) : 0;
    if (dtp_plan_adapts(plan))
        dtp_units_trained(dtp_job_units(layers), plan, &layers->trained);
}

/* But for batches, which *kept has of this plan by now. Bytes between members may differ where no member does; then all
 * is counted once more. */
static bool has_layers(const struct dtp_job_layers *kept, const struct dtp_transformer *transformer,
                       const struct dtp_cluster *cluster, const struct dtp_plan *plan)
{
    return !memcmp(plan, &kept->plan, sizeof *plan) && !memcmp(transformer, &kept->transformer, sizeof *transformer) &&
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
    kept->plan.micro_batch = plan->micro_batch, kept->plan.accumulate = plan->accumulate;
    if (!has_layers(kept, transformer, cluster, plan)) {
        kept->transformer = *transformer, kept->cluster = *cluster, kept->plan = *plan;
        count_layers(kept, transformer, cluster, plan);
    }
    return kept;
}
