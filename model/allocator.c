#include "allocator.h"

#include "calibration.h"

/* Pool of the all-gather stream under FSDP2: the root's cast shard and flat buffer are its first segments; a unit's
 * flat buffer is needed while the root's still stands, and a second one while the first still stands, so each takes a
 * new segment unless a free one is large enough. */
static uint64_t gather_pool(const struct dtp_memory_job *job)
{
    const struct dtp_units *u = &job->units;
    uint64_t w = job->bytes.compute, ranks = u->ranks;
    uint64_t root = w * u->root, unit = w * u->layers_per_unit * u->layer;
    bool cast = job->bytes.params != w;
    uint64_t root_cast = cast ? root / ranks : 0, unit_cast = cast ? unit / ranks : 0;
    uint64_t pool = root + root_cast;
    if (root_cast < unit + unit_cast)
        pool += unit;
    if (root < unit && u->count > 1)
        pool += unit;
    return pool;
}

/* Pool of the reduce-scatter stream under FSDP2: its outputs are the sharded gradients, all of them at the end of
 * backward; with CPU offload they leave at once and one root and one unit remain. */
static uint64_t reduce_pool(const struct dtp_memory_job *job)
{
    const struct dtp_units *u = &job->units;
    if (job->plan->offload != DTP_OFFLOAD_NONE)
        return job->bytes.grads * (u->root_shard + u->layers_per_unit * u->layer_shard);
    return job->bytes.grads * u->total_shard;
}

/* DDP lays its buckets anew after the first backward, in the order gradients came; the segments of the first ones go to
 * activations and optimizer state in pieces, so that the peak of later steps needs fresh ones. */
static uint64_t rebuilt_buckets(const struct dtp_memory_job *job)
{
    return job->cluster->gpus > 1 ? job->bytes.grads * job->units.total : 0;
}

/* The root's reduce-scatter input [r R] is one block, needed at the very end of backward. Where nothing freed before it
 * is as long in one piece (the loss's blocks, a unit's own input), it takes a new segment, although much more than
 * that lies free in pieces. */
static uint64_t root_reduce_segment(const struct dtp_memory_job *job)
{
    const struct dtp_units *u = &job->units;
    uint64_t input = job->bytes.reduce * u->root, unit = job->bytes.reduce * u->layers_per_unit * u->layer;
    bool eager = dtp_plan_loss(job->plan) == DTP_LOSS_EAGER;
    uint64_t loss_block =
        eager ? dtp_tokens_bytes(job, 4 * job->transformer->vocab) : dtp_tokens_bytes(job, job->activations.logits);
    return input > loss_block && input > unit ? input : 0;
}

/* Tensors that come and go cut the pool into pieces; parameters, optimizer state and buckets stay where they are.
 *
 * The optimizer state is made after the first step, out of segments that the first backward freed, and what stood there
 * moves into the free block of the logits [c T V] at the next forward: the logits then need a new one, and the rest of
 * the old one lies idle at the peak. A compiled loss has two such blocks (logits and gradient) and no third to give. */
static uint64_t fragments(const struct dtp_memory_job *job, uint64_t buckets)
{
    uint64_t made_later = job->state.optimizer + buckets, resting = job->state.params + made_later;
    uint64_t moving = job->compute_stream_peak > resting ? job->compute_stream_peak - resting : 0;
    uint64_t pieces = (uint64_t)((double)moving * dtp_calibration.torch_fragmentation);
    uint64_t logits = dtp_tokens_bytes(job, job->activations.logits);
    bool fused = dtp_plan_loss(job->plan) == DTP_LOSS_FUSED;
    uint64_t broken = fused && made_later && logits > made_later ? logits - made_later : 0;
    return pieces > broken ? pieces : broken;
}

uint64_t dtp_allocator_reserved_bytes(const struct dtp_memory_job *job, uint64_t allocated_peak_bytes)
{
    const struct dtp_plan *plan = job->plan;
    if (plan->runtime == DTP_RUNTIME_DTPLAN)
        return allocated_peak_bytes;
    uint64_t pools = 0, buckets = 0;
    if (plan->runtime == DTP_RUNTIME_TORCH && dtp_plan_shards_params(plan)) {
        pools = reduce_pool(job) + root_reduce_segment(job) + (plan->fsdp1 ? 0 : gather_pool(job));
    } else if (plan->runtime == DTP_RUNTIME_TORCH) {
        buckets = rebuilt_buckets(job);
        pools = buckets;
    }
    uint64_t reserved = job->compute_stream_peak + pools + fragments(job, buckets);
    return reserved > allocated_peak_bytes ? reserved : allocated_peak_bytes;
}

uint64_t dtp_context_bytes(const struct dtp_memory_job *job)
{
    (void)job;
    return (uint64_t)dtp_calibration.context_bytes;
}

uint64_t dtp_nccl_bytes(const struct dtp_memory_job *job)
{
    if (job->cluster->gpus == 1)
        return job->plan->runtime == DTP_RUNTIME_DTPLAN ? 0 : (uint64_t)dtp_calibration.nccl_one_rank_bytes;
    bool hybrid = job->units.ranks > 1 && job->units.replicas > 1 && job->plan->strategy == DTP_HYBRID_SHARD;
    uint64_t communicators = hybrid ? 3 : 1; /* world, and for hybrid_shard the shard and the replicate group */
    return (uint64_t)dtp_calibration.nccl_library_bytes +
           communicators * (uint64_t)dtp_calibration.nccl_communicator_bytes;
}
