#include "closed/allocator.h"

#include "closed/closed_form_hooks.h"
#include "cost/calibration.h"

/* Tensors that come and go cut the pool into pieces; parameters, optimizer state and buckets stay where they are.
 *
 * The optimizer state is made after the first step, out of segments that the first backward freed, and what stood there
 * moves into the free block of the logits [c T V] at the next forward: the logits then need a new one, and the rest of
 * the old one lies idle at the peak. A compiled loss has two such blocks (logits and gradient) and no third to give. */
static uint64_t fragments(const struct dtp_memory_job *job, uint64_t buckets, struct dtp_part_chain *chain)
{
    uint64_t made_later = job->state.optimizer + buckets, resting = job->state.params + made_later;
    uint64_t moving = job->compute_stream_peak > resting ? job->compute_stream_peak - resting : 0;
    uint64_t pieces = (uint64_t)((double)moving * dtp_calibration.torch_fragmentation);
    uint64_t logits = dtp_bytes_product(job->tokens, job->activations.logits);
    bool fused = dtp_plan_loss(job->plan) == DTP_LOSS_FUSED;
    uint64_t broken = fused && made_later && logits > made_later ? logits - made_later : 0;
    return pieces > broken ? dtp_memory_part(chain, DTP_TERM_FRAGMENTS, 1, 1, pieces)
                           : dtp_memory_part(chain, DTP_TERM_BROKEN_LOGITS, 1, 1, broken);
}

uint64_t dtp_allocator_reserved_bytes(const struct dtp_memory_job *job, uint64_t allocated_peak_bytes,
                                      struct dtp_part_chain *chain)
{
    const struct dtp_plan *plan = job->plan;
    struct dtp_part_chain tensors = *chain;
    dtp_memory_part(&tensors, DTP_TERM_TENSORS, 1, 1, allocated_peak_bytes);
    bool whole = plan->expandable_segments; /* a pool grows by pages: what is free in it serves any size */
    uint64_t reserved = 0, buckets = 0;
    if (!plan->runtime->arena) {
        const struct dtp_closed_form_hooks *hooks = plan->runtime->closed;
        reserved = dtp_memory_part(chain, DTP_TERM_COMPUTE_POOL, 1, 1, job->compute_stream_peak);
        reserved += hooks->other_pools ? hooks->other_pools(job, chain) : 0;
        buckets = hooks->made_anew ? hooks->made_anew(job, chain) : 0;
        reserved += buckets + (whole ? 0 : fragments(job, buckets, chain));
    }
    if (reserved > allocated_peak_bytes)
        return reserved;
    *chain = tensors;
    return allocated_peak_bytes;
}

uint64_t dtp_context_bytes(const struct dtp_memory_job *job, struct dtp_part_chain *chain)
{
    if (dtp_cluster_is_host(job->cluster))
        return 0;
    if (job->plan->runtime->arena)
        return dtp_memory_part(chain, DTP_TERM_EXECUTOR_CONTEXT, 1, 1,
                               (uint64_t)dtp_calibration.executor_context_bytes);
    return dtp_memory_part(chain, DTP_TERM_CONTEXT, 1, 1, (uint64_t)dtp_calibration.context_bytes);
}
