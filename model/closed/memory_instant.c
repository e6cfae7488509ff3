#include "closed/memory_instant.h"

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

void dtp_instant_take_tokens(const struct dtp_memory_job *job, struct dtp_instant *instant, enum dtp_memory_term term,
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
    dtp_instant_add_tokens(job, instant, DTP_TERM_EMBEDDING_NORM, 1, a->embedding);
}

void dtp_add_all_saved(const struct dtp_memory_job *job, struct dtp_instant *instant)
{
    dtp_add_saved(job, instant, job->transformer->layers);
    dtp_instant_add_tokens(job, instant, DTP_TERM_HEAD, 1, job->activations.head);
}

bool dtp_layer_checkpointed(const struct dtp_memory_job *job, uint64_t layer)
{
    uint64_t every = job->activations.checkpoint_every;
    return every && layer % every == 0;
}

bool dtp_layer_recomputed(const struct dtp_memory_job *job, uint64_t layer)
{
    return dtp_layer_checkpointed(job, layer) && job->activations.layer_all > job->activations.layer_kept;
}

int dtp_last_layers(const struct dtp_memory_job *job, uint64_t end, uint64_t layers[DTP_LAYER_KINDS])
{
    uint64_t every = job->activations.checkpoint_every;
    int count = 0;
    if (!end)
        return 0;
    layers[count++] = end - 1;
    uint64_t checkpointed = every ? (end - 1) / every * every : end - 1;
    if (every < 2)
        return count;
    if (checkpointed != end - 1)
        layers[count++] = checkpointed;
    else if (checkpointed)
        layers[count++] = checkpointed - 1;
    return count;
}

int dtp_outer_layers(const struct dtp_memory_job *job, uint64_t begin, uint64_t end,
                     uint64_t layers[2 * DTP_LAYER_KINDS])
{
    uint64_t every = job->activations.checkpoint_every, last[DTP_LAYER_KINDS];
    int kinds = dtp_last_layers(job, end, last), count = 0;
    for (int i = 0; i < kinds; i++)
        if (last[i] >= begin)
            layers[count++] = last[i];
    if (end - begin < 2)
        return count;
    layers[count++] = begin;
    uint64_t other = every && begin % every ? dtp_divide_up(begin, every) * every : begin + 1;
    if (every > 1 && other < end)
        layers[count++] = other;
    return count;
}

void dtp_add_input(const struct dtp_memory_job *job, struct dtp_instant *instant)
{
    dtp_instant_add_tokens(job, instant, DTP_TERM_BLOCK, 1, job->activations.layer_input);
}

void dtp_add_block(const struct dtp_memory_job *job, struct dtp_instant *instant, const struct dtp_block_place *place)
{
    dtp_instant_add_tokens(job, instant, DTP_TERM_BLOCK, 1, place->saved);
    dtp_instant_add_tokens(job, instant, DTP_TERM_INNER_GRADIENTS, 1, place->work);
}

void dtp_add_embedding_backward(const struct dtp_memory_job *job, struct dtp_instant *instant)
{
    dtp_instant_add(instant, DTP_TERM_EMBEDDING_SUMS, 1, 1, job->activations.embedding_backward);
    dtp_instant_add_tokens(job, instant, DTP_TERM_STREAM_GRADIENT, 1, job->activations.gradient);
}

void dtp_add_foreach(const struct dtp_memory_job *job, struct dtp_instant *instant, uint64_t local_elements)
{
    const struct dtp_plan *plan = job->plan;
    if (plan->optimizer == DTP_ADAMW_FOREACH && plan->offload == DTP_OFFLOAD_NONE)
        dtp_instant_add(instant, DTP_TERM_FOREACH, 1, local_elements, dtp_dtype_bytes(plan->precision.moments));
}
