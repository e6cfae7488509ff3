#include "bounds/memory_bound.h"

#include "closed/closed_form_hooks.h"
#include "plan/fp8_casts.h"
#include "plan/runtime.h"

#include <stddef.h>
#include <string.h>

uint64_t dtp_bound_factors(const struct dtp_bound *b)
{
    const struct dtp_traffic job = {b->transformer, b->cluster, b->plan, .units = *b->units};
    const struct dtp_factored f = dtp_traffic_factored(&job);
    return f.p + f.q;
}

/* What DDP's hook keeps of gradients (plan/comm_hook.h): 16-bit copies; sums of what int8 gathers; PowerSGD's errors
 * and factors, a workspace of `cublas` bytes of each stream. */
static uint64_t hooked(const struct dtp_bound *b, uint64_t cublas)
{
    const struct dtp_plan *plan = b->plan;
    if (!plan->comm_hook || !dtp_plan_has_ddp_buckets(plan, b->cluster))
        return 0;
    if (plan->comm_hook != DTP_COMM_HOOK_POWERSGD)
        return (plan->comm_hook == DTP_COMM_HOOK_INT8 ? b->bytes.grads : b->bytes.reduce) * b->units->total;
    return b->bytes.grads * (b->units->total + dtp_bound_factors(b)) + DTP_POWERSGD_STREAMS * cublas;
}

/* cuBLAS' workspaces of two threads, or one; what a hook keeps; RoPE's fp32 tables; 64-bit tokens; casts to fp8. */
static uint64_t workspaces(const struct dtp_bound *b)
{
    const struct dtp_transformer *t = b->transformer;
    const uint64_t cublas = dtp_plan_cublas_workspace(&b->cluster->gpu), turned = b->plan->sequence / b->plan->cp,
                   tables = t->position == DTP_POSITION_ROPE ? 4 * t->head_dim * turned : 0;
    uint64_t casts = 0, threads = b->plan->runtime->passing_workspace ? 1 : 2;
    if (dtp_plan_keeps_fp8(b->plan) && !b->plan->runtime->arena) { /* whose casts of weights go with their matmuls */
        const uint64_t *of = b->layer_narrow, two = 2 * b->units->layers_per_unit;
        uint64_t narrow = dtp_plan_shards_params(b->plan) && b->units->count
                              ? smaller(two, b->layers) * b->units->layer_narrow
                              : dtp_bound_layers(b, b->layers, of, of) - dtp_bound_wide(b, b->layers, of);
        narrow += t->ahead_layers * dtp_transformer_ahead_elements(t);
        narrow = b->plan->megatron.fp8_param_gather ? 0 : narrow; /* which are the parameters */
        narrow += t->hidden * (dtp_plan_narrows_head(b->plan) ? t->vocab : 0);
        casts = dtp_fp8_standing_bytes(b->plan, &b->cluster->gpu, narrow);
    }
    uint64_t logits = b->plan->hold_logits ? 4 * t->vocab * b->tokens : 0; /* of the step before */
    uint64_t experts = t->experts ? dtp_plan_expert_workspaces(b->plan, &b->cluster->gpu) : 0;
    return hooked(b, cublas) + threads * cublas + experts + tables + 8 * b->tokens + casts + logits;
}

void dtp_bound_steps(struct dtp_bound *b, const struct dtp_bound_beside *beside)
{
    const struct dtp_activations *a = &b->activations;
    bool chunked = dtp_plan_loss(b->plan) == DTP_LOSS_CHUNKED; /* whose weight's gradient is made with the loss */
    uint64_t kept = dtp_bound_saved(b, b->layers) + dtp_bound_tokens(b, a->head);
    uint64_t held = chunked || dtp_plan_layers(b->plan)->chains_norms ? b->head_input : 0; /* to the end of the loss */
    if (dtp_plan_widens_ends(b->plan)) /* from the head's forward to its backward */
        kept += b->bytes.compute * b->transformer->vocab * b->transformer->hidden;
    dtp_bound_keep(b, beside->forward + dtp_bound_saved(b, b->layers - 1) + dtp_bound_forward(b));
    dtp_bound_keep(b, beside->logits + kept + dtp_bound_tokens(b, (chunked ? 0 : a->logits) + b->head_input));
    dtp_bound_keep(b,
                   beside->loss + kept + dtp_bound_tokens(b, a->loss + held) + (chunked ? beside->head_gradient : 0));
    dtp_bound_keep(b, beside->head + kept + beside->head_gradient +
                          dtp_bound_tokens(b, a->logits_gradient + (chunked ? 0 : a->norm_gradient)));
    dtp_bound_keep_late(b, beside->ends + a->embedding_backward + dtp_bound_tokens(b, a->gradient));
}

/* What a hook makes of a bucket while it is reduced: int8 its bytes, all ranks' flat and apart, a rank's as numbers;
 * PowerSGD a copy and what it loses. The first is full behind the head, one of blocks beside any, with no more than a
 * matrix above its size; that of learned positions behind all blocks, the last behind the table. */
static void add_hooked_buckets(struct dtp_bound *b)
{
    const bool factors = b->plan->comm_hook == DTP_COMM_HOOK_POWERSGD, int8 = b->plan->comm_hook == DTP_COMM_HOOK_INT8;
    uint64_t g = b->bytes.grads, element = factors ? 2 * g : 1 + 2 * (uint64_t)b->cluster->gpus + 3 * g;
    if (!(factors || int8) || !dtp_plan_has_ddp_buckets(b->plan, b->cluster))
        return;
    const struct dtp_traffic job = {b->transformer, b->cluster, b->plan, .units = *b->units};
    const struct dtp_ddp_bucket_count buckets = dtp_traffic_ddp_buckets(&job, g);
    if (buckets.count > 1)
        dtp_bound_keep(b, b->first_bytes + dtp_bytes_product(element, buckets.first_elements));
    const uint64_t most = b->plan->ddp_bucket_bytes / g + b->trained->largest, largest = buckets.largest_elements,
                   block = b->trained->position ? smaller(most, largest) : largest;
    b->most_bytes = larger(b->most_bytes, b->block_bytes + dtp_bytes_product(element, block));
    dtp_bound_keep_late(b, b->gradients_bytes + dtp_bytes_product(element, buckets.last_elements));
    if (b->trained->position)
        dtp_bound_keep_late(b, b->positions_bytes + dtp_bytes_product(element, largest));
}

void dtp_bounds_of(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                   const struct dtp_plan *plan, struct dtp_job_layers *kept, struct dtp_bounds *out)
{
    struct dtp_job_layers here;
    struct dtp_state_bytes state;
    const struct dtp_job_layers *layers = dtp_job_layers_of(transformer, cluster, plan, kept, &here);
    struct dtp_bound b;
    memset(&b, 0, offsetof(struct dtp_bound, activations));
    b.cluster = cluster, b.plan = plan, b.layers = transformer->layers;
    b.transformer = transformer->experts ? &layers->own : transformer, b.uniform = layers->uniform;
    b.units = dtp_job_units(layers), b.trained = dtp_plan_adapts(plan) ? &layers->trained : b.units;
    b.tokens = dtp_plan_tokens(plan);
    dtp_element_bytes_count(plan, &b.bytes);
    for (int i = 0; i < (b.uniform ? 1 : DTP_LAYER_MLPS); i++)
        dtp_bound_kind(&b, layers, i);
    dtp_state_bytes_at_rest(b.transformer, cluster, b.units, plan, &b.bytes, &state);
    b.partition = state.optimizer_elements;
    b.rest_bytes = state.params + state.optimizer + workspaces(&b) + b.bytes.compute * layers->shapes;
    if (plan->runtime->arena)
        dtp_bound_executor(&b);
    else if (dtp_plan_is_fsdp(plan))
        dtp_bound_fsdp(&b);
    else if (dtp_plan_fetches_modules(plan))
        dtp_bound_fetched(&b);
    else
        dtp_bound_replicated(&b);
    add_hooked_buckets(&b);
    if ((dtp_plan_adapts(plan) && !plan->runtime->arena) || plan->activation_offload) /* targets say what is dropped */
        b.least_bytes = b.rest_bytes + (dtp_plan_has_ddp_buckets(plan, cluster) ? state.grads : 0);
    /* our executor's head keeps nothing: it goes through its logits in chunks */
    const uint64_t head = plan->runtime->arena ? 0 : dtp_bound_tokens(&b, b.activations.head);
    out->params_bytes = state.params, out->optimizer_bytes = state.optimizer, out->grads_bytes = state.grads;
    out->kept_bytes = dtp_bound_saved(&b, b.layers) + head, out->memory_bytes = b.most_bytes;
    out->late_bytes = b.late_bytes, out->least_bytes = b.least_bytes;
}
