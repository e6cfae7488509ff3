#include "memory_instant.h"

#include "bytes.h"

struct dtp_instant dtp_instant_at_rest(const struct dtp_memory_job *job)
{
    return (struct dtp_instant){.bytes = {[DTP_OWNER_PARAMS] = job->state.params,
                                          [DTP_OWNER_OPTIMIZER] = job->state.optimizer,
                                          [DTP_OWNER_WORKSPACE] = job->workspace}};
}

void dtp_memory_consider(struct dtp_memory_job *job, enum dtp_phase phase, const struct dtp_instant *instant)
{
    struct dtp_memory *out = job->out;
    uint64_t total = job->fp8_weights;
    for (int owner = 0; owner < DTP_OWNER_COUNT; owner++)
        total += instant->bytes[owner];
    if (total - instant->other_streams > job->compute_stream_peak)
        job->compute_stream_peak = total - instant->other_streams;
    if (total <= out->phase_total_bytes[phase])
        return;
    out->phase_total_bytes[phase] = total;
    for (int owner = 0; owner < DTP_OWNER_COUNT; owner++)
        out->phase_bytes[phase][owner] = instant->bytes[owner];
    out->phase_bytes[phase][DTP_OWNER_WEIGHTS] += job->fp8_weights;
}

uint64_t dtp_tokens_bytes(const struct dtp_memory_job *job, uint64_t bytes_per_token)
{
    return dtp_bytes_product(job->tokens, bytes_per_token);
}

uint64_t dtp_saved_activations(const struct dtp_memory_job *job, uint64_t layers)
{
    const struct dtp_activations *a = &job->activations;
    uint64_t checkpointed = a->checkpoint_every ? dtp_divide_up(layers, a->checkpoint_every) : 0;
    uint64_t per_token =
        dtp_bytes_product(checkpointed, a->layer_kept) + dtp_bytes_product(layers - checkpointed, a->layer_all);
    return dtp_tokens_bytes(job, per_token);
}

uint64_t dtp_recomputed_activations(const struct dtp_memory_job *job, uint64_t layer)
{
    const struct dtp_activations *a = &job->activations;
    if (!a->checkpoint_every || layer % a->checkpoint_every || a->layer_all < a->layer_kept)
        return 0;
    return dtp_tokens_bytes(job, a->layer_all - a->layer_kept);
}

uint64_t dtp_backward_workspace(const struct dtp_memory_job *job)
{
    return dtp_tokens_bytes(job, job->activations.gradient + job->activations.layer_backward);
}
