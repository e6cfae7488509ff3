#include "memory_instant.h"

#include "closed_form_deepspeed.h"

void dtp_instant_take(struct dtp_instant *instant, enum dtp_memory_term term, uint64_t count, uint64_t elements,
                      uint64_t element_bytes)
{
    size_t before = instant->chain.newest;
    uint64_t bytes = dtp_memory_part(&instant->chain, term, count, elements, element_bytes);
    instant->bytes[dtp_memory_term_owner(term)] -= bytes;
    instant->total -= bytes;
    if (instant->chain.newest != before)
        instant->chain.record->parts[instant->chain.newest].taken = true;
}

static void take_tokens(const struct dtp_memory_job *job, struct dtp_instant *instant, enum dtp_memory_term term,
                        uint64_t token_bytes)
{
    size_t before = instant->chain.newest;
    uint64_t bytes = dtp_memory_tokens_part(&instant->chain, term, 1, job->tokens, token_bytes);
    instant->bytes[dtp_memory_term_owner(term)] -= bytes;
    instant->total -= bytes;
    if (instant->chain.newest != before)
        instant->chain.record->parts[instant->chain.newest].taken = true;
}

void dtp_memory_consider(struct dtp_memory_job *job, enum dtp_phase phase, const struct dtp_instant *instant)
{
    struct dtp_memory *out = job->out;
    if (instant->total - instant->other_streams > job->compute_stream_peak)
        job->compute_stream_peak = instant->total - instant->other_streams;
    if (instant->total <= out->phase_total_bytes[phase])
        return;
    out->phase_total_bytes[phase] = instant->total;
    job->phase_newest[phase] = instant->chain.newest;
    for (int owner = 0; owner < DTP_OWNER_COUNT; owner++)
        out->phase_bytes[phase][owner] = instant->bytes[owner];
}

void dtp_add_saved(const struct dtp_memory_job *job, struct dtp_instant *instant, uint64_t layers)
{
    const struct dtp_activations *a = &job->activations;
    uint64_t checkpointed = a->checkpoint_every ? dtp_divide_up(layers, a->checkpoint_every) : 0;
    dtp_instant_add_tokens(job, instant, DTP_TERM_LAYERS_KEPT, checkpointed, a->layer_kept);
    dtp_instant_add_tokens(job, instant, DTP_TERM_LAYERS_SAVED, layers - checkpointed, a->layer_all);
}

void dtp_add_all_saved(const struct dtp_memory_job *job, struct dtp_instant *instant)
{
    dtp_add_saved(job, instant, job->transformer->layers);
    dtp_instant_add_tokens(job, instant, DTP_TERM_HEAD, 1, job->activations.head);
}

bool dtp_layer_recomputed(const struct dtp_memory_job *job, uint64_t layer)
{
    const struct dtp_activations *a = &job->activations;
    return a->checkpoint_every && layer % a->checkpoint_every == 0 && a->layer_all > a->layer_kept;
}

void dtp_add_layer_backward_at(const struct dtp_memory_job *job, struct dtp_instant *instant, uint64_t layer,
                               enum dtp_backward_place place)
{
    const struct dtp_activations *a = &job->activations;
    bool core = place == DTP_IN_CORE;
    dtp_add_saved(job, instant, layer + 1);
    if (dtp_layer_recomputed(job, layer))
        dtp_instant_add_tokens(job, instant, DTP_TERM_RECOMPUTED, 1, a->layer_all - a->layer_kept);
    dtp_instant_add_tokens(job, instant, DTP_TERM_STREAM_GRADIENT, 1, a->gradient);
    if (core)
        take_tokens(job, instant, DTP_TERM_CORE_GONE, a->core_gone);
    dtp_instant_add_tokens(job, instant, DTP_TERM_INNER_GRADIENTS, 1, core ? a->core_backward : a->mlp_backward);
}

enum dtp_backward_place dtp_worst_place(const struct dtp_memory_job *job, uint64_t in_mlp_bytes, uint64_t in_core_bytes)
{
    const struct dtp_activations *a = &job->activations;
    uint64_t mlp = dtp_bytes_product(job->tokens, a->mlp_backward + a->core_gone) + in_mlp_bytes;
    return dtp_bytes_product(job->tokens, a->core_backward) + in_core_bytes > mlp ? DTP_IN_CORE : DTP_IN_MLP;
}

void dtp_add_layer_backward(const struct dtp_memory_job *job, struct dtp_instant *instant, uint64_t layer)
{
    dtp_add_layer_backward_at(job, instant, layer, dtp_worst_place(job, 0, 0));
}

void dtp_add_embedding_backward(const struct dtp_memory_job *job, struct dtp_instant *instant)
{
    dtp_instant_add(instant, DTP_TERM_EMBEDDING_SUMS, 1, 1, job->activations.embedding_backward);
    dtp_instant_add_tokens(job, instant, DTP_TERM_STREAM_GRADIENT, 1, job->activations.gradient);
}

void dtp_add_foreach(const struct dtp_memory_job *job, struct dtp_instant *instant, uint64_t local_elements)
{
    const struct dtp_plan *plan = job->plan;
    if (plan->optimizer == DTP_ADAMW_FOREACH && plan->runtime == DTP_RUNTIME_TORCH && plan->offload == DTP_OFFLOAD_NONE)
        dtp_instant_add(instant, DTP_TERM_FOREACH, 1, local_elements, dtp_dtype_bytes(plan->precision.moments));
}

void dtp_memory_buckets(const struct dtp_memory_job *job, struct dtp_bucket_weights *weights,
                        struct dtp_deepspeed_buckets *out)
{
    const struct dtp_activations *a = &job->activations;
    weights->every = a->checkpoint_every;
    weights->layer_kept = dtp_bytes_product(job->tokens, a->layer_kept);
    weights->layer_all = dtp_bytes_product(job->tokens, a->layer_all);
    dtp_deepspeed_count_buckets(job->transformer, job->plan, weights, out);
}

void dtp_add_saved_at_bucket(const struct dtp_memory_job *job, const struct dtp_deepspeed_buckets *buckets,
                             struct dtp_instant *instant)
{
    const struct dtp_activations *a = &job->activations;
    dtp_add_saved(job, instant, buckets->worst_layers + (buckets->worst_in_mlp ? 1 : 0));
    if (buckets->worst_in_mlp && dtp_layer_recomputed(job, buckets->worst_layers))
        dtp_instant_add_tokens(job, instant, DTP_TERM_RECOMPUTED, 1, a->layer_all - a->layer_kept);
    dtp_instant_add_tokens(job, instant, DTP_TERM_STREAM_GRADIENT, 1, a->gradient);
}

void dtp_add_carried(const struct dtp_memory_job *job, uint64_t own_elements, struct dtp_instant *instant)
{
    bool third = job->plan->strategy == DTP_ZERO3; /* whose sums come back tensor by tensor, cast or not */
    if (job->plan->offload == DTP_OFFLOAD_NONE || (job->bytes.grads >= 4 && !third))
        return;
    uint64_t largest = dtp_deepspeed_largest_tensor(job->transformer, job->plan);
    largest = third ? dtp_divide_up(largest, job->units.ranks) : largest;
    bool one_by_one = (job->plan->offload != DTP_OFFLOAD_NVME || job->bytes.grads >= 4) && largest < own_elements;
    dtp_instant_add(instant, DTP_TERM_FP32_GRADIENTS, 1, one_by_one ? largest : own_elements, 4);
}
