#include "closed/allocator.h"

#include "cost/calibration.h"

/* Pool of the all-gather stream under FSDP2: the root's cast shard and flat buffer are its first segments; a unit's
 * flat buffer is needed while the root's still stands, and a second one while the first still stands, so each takes a
 * new segment unless a free one is large enough; so does each that is gathered further ahead. */
static uint64_t gather_pool(const struct dtp_memory_job *job, struct dtp_part_chain *chain)
{
    const struct dtp_units *u = &job->units;
    uint64_t w = job->bytes.compute, unit_elements = u->layers_per_unit * u->layer;
    uint64_t root = w * u->root, unit = w * unit_elements;
    bool cast = job->bytes.params != w;
    uint64_t root_cast = cast ? root / u->ranks : 0, unit_cast = cast ? unit / u->ranks : 0;
    uint64_t units = root_cast < unit + unit_cast;
    units += root < unit && u->count > 1;
    units += u->count > job->plan->prefetch_depth ? job->plan->prefetch_depth - 1 : 0;
    return dtp_memory_part(chain, DTP_TERM_POOL_ROOT, 1, u->root, w) +
           dtp_memory_part(chain, DTP_TERM_POOL_CAST, 1, 1, root_cast) +
           dtp_memory_part(chain, DTP_TERM_POOL_UNITS, units, unit_elements, w);
}

/* Pool of the reduce-scatter stream under FSDP2: its outputs are the sharded gradients, all of them at the end of
 * backward; with CPU offload they leave at once and one root and one unit remain. */
static uint64_t reduce_pool(const struct dtp_memory_job *job, struct dtp_part_chain *chain)
{
    const struct dtp_units *u = &job->units;
    bool offloaded = job->plan->offload != DTP_OFFLOAD_NONE;
    uint64_t elements = offloaded ? u->root_shard + u->layers_per_unit * u->layer_shard : u->total_shard;
    return dtp_memory_part(chain, offloaded ? DTP_TERM_POOL_NEWEST_GRADS : DTP_TERM_POOL_GRADS, 1, elements,
                           job->bytes.grads);
}

/* DDP lays its buckets anew after the first backward, in the order gradients came; the segments of the first ones go to
 * activations and optimizer state in pieces, so that the peak of later steps needs fresh ones. */
static uint64_t rebuilt_buckets(const struct dtp_memory_job *job, struct dtp_part_chain *chain)
{
    if (job->cluster->gpus == 1)
        return 0;
    return dtp_memory_part(chain, DTP_TERM_REBUILT_BUCKETS, 1, job->units.total, job->bytes.grads);
}

/* The root's reduce-scatter input [r R] is one block, needed at the very end of backward. Where nothing freed before it
 * is as long in one piece (the loss's blocks, a unit's own input), it takes a new segment, although much more than
 * that lies free in pieces. */
static uint64_t root_reduce_segment(const struct dtp_memory_job *job, struct dtp_part_chain *chain)
{
    const struct dtp_units *u = &job->units;
    uint64_t r = job->bytes.reduce, input = r * u->root, unit = r * u->layers_per_unit * u->layer;
    enum dtp_loss loss = dtp_plan_loss(job->plan);
    uint64_t token_bytes = loss == DTP_LOSS_EAGER   ? 4 * job->transformer->vocab
                           : loss == DTP_LOSS_FUSED ? job->activations.logits
                                                    : 0; /* no block of all logits */
    uint64_t loss_block = dtp_bytes_product(job->tokens, token_bytes);
    return input > loss_block && input > unit ? dtp_memory_part(chain, DTP_TERM_ROOT_SEGMENT, 1, u->root, r) : 0;
}

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
        reserved = dtp_memory_part(chain, DTP_TERM_COMPUTE_POOL, 1, 1, job->compute_stream_peak);
        if (plan->runtime->fsdp && dtp_plan_shards_params(plan))
            reserved += reduce_pool(job, chain) + (whole ? 0 : root_reduce_segment(job, chain)) +
                        (plan->fsdp1 ? 0 : gather_pool(job, chain));
        else if (plan->runtime->fsdp && !whole)
            buckets = rebuilt_buckets(job, chain);
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
