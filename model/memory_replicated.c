/* Peak memory where every GPU holds all parameters: DDP, ZeRO-1, ZeRO-2 under each runtime.
 *
 * Notation: p bytes of a stored parameter, c of the compute dtype, psi parameters, P of one layer, V h of the
 * embedding, T tokens. */
#include "bytes.h"
#include "memory_instant.h"

#define DEEPSPEED_BUCKET 500000000u /* reduce_bucket_size, elements */

/* Copies of weights that autocast made: cast once in forward, saved for backward, freed layer by layer. A checkpointed
 * layer saves none; it makes them again when it is recomputed. Selective attention leaves the linears outside. */
static uint64_t cast_weights(const struct dtp_memory_job *job, uint64_t layers, bool recomputing)
{
    if (!dtp_plan_autocast(job->plan))
        return 0;
    bool linears = job->plan->checkpointing != DTP_CHECKPOINT_SELECTIVE_ATTENTION;
    uint64_t every = linears ? job->activations.checkpoint_every : 0;
    uint64_t casts = layers - (every ? dtp_divide_up(layers, every) : 0) + (every && recomputing ? 1 : 0);
    return job->bytes.compute * casts * job->units.layer_cast;
}

static uint64_t head_cast(const struct dtp_memory_job *job)
{
    return dtp_plan_autocast(job->plan) ? job->bytes.compute * job->units.embedding : 0;
}

/* How many elements of gradients rest on this GPU when `done` elements have been through backward in the last
 * micro-step.
 *   torch, several GPUs   DDP's buckets hold all of them from construction
 *   torch, one GPU        .grad as it is made (zero_grad sets it to None)
 *   DeepSpeed             stage 1 as they are made, stage 2 only this rank's partition
 *   Megatron, ours        one buffer, allocated once; ours is sharded under ZeRO-2
 * With accumulation those of the first micro-step stay. */
static uint64_t resting_gradients(const struct dtp_memory_job *job, uint64_t done)
{
    const struct dtp_plan *plan = job->plan;
    uint64_t total = job->units.total, shard = dtp_divide_up(total, job->units.ranks);
    uint64_t made = plan->accumulate > 1 ? total : done;
    switch (plan->runtime) {
    case DTP_RUNTIME_TORCH:
        return job->cluster->gpus == 1 ? made : total;
    case DTP_RUNTIME_DEEPSPEED:
        return plan->strategy != DTP_ZERO2 ? made : made < shard ? made : shard;
    case DTP_RUNTIME_MEGATRON: return total;
    case DTP_RUNTIME_DTPLAN: return plan->strategy == DTP_ZERO2 ? shard : total;
    }
    return 0;
}

/* Elements of DDP that stand a second time, beside the buckets: without gradient_as_bucket_view every .grad; with it,
 * those that no_sync accumulated as tensors of their own, until the last backward moves them into the buckets. */
static uint64_t beside_buckets(const struct dtp_memory_job *job, uint64_t done)
{
    const struct dtp_plan *plan = job->plan;
    if (plan->runtime != DTP_RUNTIME_TORCH || job->cluster->gpus == 1)
        return 0;
    bool accumulated = plan->accumulate > 1 && !plan->accumulate_sync;
    uint64_t total = job->units.total, left = done < total ? total - done : 0;
    return plan->ddp_bucket_view ? (accumulated ? left : 0) : plan->accumulate > 1 ? total : done;
}

/* A tied head's gradient waits in autograd's input buffer for the embedding's, and reaches its bucket with it. On one
 * GPU `done` counts it. */
static uint64_t tied_head(const struct dtp_memory_job *job)
{
    bool waits = job->plan->runtime == DTP_RUNTIME_TORCH && job->cluster->gpus > 1 && !job->units.head;
    return waits ? job->bytes.grads * job->units.embedding : 0;
}

/* What rests before the layers' own: states, gradients of `done` elements, DDP's second copies. */
static struct dtp_instant with_gradients(const struct dtp_memory_job *job, uint64_t done)
{
    struct dtp_instant instant = dtp_instant_at_rest(job);
    instant.bytes[DTP_OWNER_GRADS] = job->bytes.grads * resting_gradients(job, done);
    instant.bytes[DTP_OWNER_REDUCE] = job->bytes.grads * beside_buckets(job, done);
    return instant;
}

/* Buffers that reduction needs during backward. torch: the largest gradient before it is copied into its bucket (the
 * down matrix, at the instant that matters). DeepSpeed: the IPG bucket of reduce_bucket_size elements, two with
 * overlap_comm, and the flattened copy that is all-reduced. Ours under ZeRO-2: one layer's gradients in flight and one
 * being made. */
static uint64_t reduction_buffers(const struct dtp_memory_job *job)
{
    const struct dtp_units *u = &job->units;
    uint64_t bucket = u->total < DEEPSPEED_BUCKET ? u->total : DEEPSPEED_BUCKET;
    switch (job->plan->runtime) {
    case DTP_RUNTIME_TORCH: return job->bytes.grads * u->down;
    case DTP_RUNTIME_DEEPSPEED:
        if (job->plan->strategy == DTP_DDP)
            return job->bytes.grads * u->down;
        return job->bytes.grads * bucket * (job->plan->deepspeed_overlap ? 3 : 2);
    case DTP_RUNTIME_MEGATRON: return 0;
    case DTP_RUNTIME_DTPLAN: return job->plan->strategy == DTP_ZERO2 ? 2 * job->bytes.grads * u->layer : 0;
    }
    return 0;
}

/* Forward's end, and the loss with all activations and casts standing. */
static void forward_and_loss(struct dtp_memory_job *job)
{
    uint64_t layers = job->transformer->layers;
    struct dtp_instant instant = with_gradients(job, 0);
    instant.bytes[DTP_OWNER_ACTIVATIONS] =
        dtp_saved_activations(job, layers) + dtp_tokens_bytes(job, job->activations.head);
    instant.bytes[DTP_OWNER_WEIGHTS] = cast_weights(job, layers, false) + head_cast(job);
    instant.bytes[DTP_OWNER_LOGITS] = dtp_tokens_bytes(job, job->activations.loss);
    if (dtp_plan_loss(job->plan) == DTP_LOSS_CHUNKED) /* the head's gradient is made in forward */
        instant.bytes[DTP_OWNER_REDUCE] += job->bytes.compute * job->units.embedding;
    dtp_memory_consider(job, DTP_PHASE_LOSS, &instant);

    instant.bytes[DTP_OWNER_REDUCE] = job->bytes.grads * beside_buckets(job, 0);
    instant.bytes[DTP_OWNER_LOGITS] = dtp_tokens_bytes(job, job->activations.logits);
    /* autocast's cache keeps eager casts until its context ends with forward, checkpointed or not */
    bool chunked = dtp_plan_loss(job->plan) == DTP_LOSS_CHUNKED; /* head and loss come after forward, in chunks */
    if (dtp_plan_autocast(job->plan) && !job->plan->compile)
        instant.bytes[DTP_OWNER_WEIGHTS] =
            job->bytes.compute * layers * job->units.layer_cast + (chunked ? 0 : head_cast(job));
    if (chunked)
        instant.bytes[DTP_OWNER_LOGITS] = 0;
    dtp_memory_consider(job, DTP_PHASE_FORWARD_END, &instant);
}

/* Backward of the head: the logits' gradient, the head's gradient in the compute dtype, the hidden gradient. */
static void head_backward(struct dtp_memory_job *job)
{
    struct dtp_instant instant = with_gradients(job, 0);
    instant.bytes[DTP_OWNER_ACTIVATIONS] =
        dtp_saved_activations(job, job->transformer->layers) + dtp_tokens_bytes(job, job->activations.head);
    instant.bytes[DTP_OWNER_WEIGHTS] = cast_weights(job, job->transformer->layers, false) + head_cast(job);
    instant.bytes[DTP_OWNER_LOGITS] = dtp_tokens_bytes(job, job->activations.logits_gradient);
    instant.bytes[DTP_OWNER_REDUCE] += job->bytes.compute * job->units.embedding;
    instant.bytes[DTP_OWNER_WORKSPACE] += dtp_tokens_bytes(job, job->activations.gradient);
    dtp_memory_consider(job, DTP_PHASE_EARLY_BACKWARD, &instant);
}

/* Worst instant of the backward of layer `layer`. */
static void layer_backward(struct dtp_memory_job *job, enum dtp_phase phase, uint64_t layer)
{
    const struct dtp_units *u = &job->units;
    uint64_t above = job->transformer->layers - 1 - layer;
    uint64_t done = u->embedding + above * u->layer;
    if (job->plan->runtime == DTP_RUNTIME_TORCH && job->cluster->gpus == 1)
        done += u->down;
    uint64_t recomputed = dtp_recomputed_activations(job, layer);
    struct dtp_instant instant = with_gradients(job, done);
    instant.bytes[DTP_OWNER_ACTIVATIONS] = dtp_saved_activations(job, layer + 1) + recomputed;
    instant.bytes[DTP_OWNER_WEIGHTS] = cast_weights(job, layer + 1, recomputed != 0);
    if (instant.bytes[DTP_OWNER_WEIGHTS]) /* the down matrix's cast is freed as its gradient is made */
        instant.bytes[DTP_OWNER_WEIGHTS] -= job->bytes.compute * u->down;
    if (job->cluster->gpus > 1)
        instant.bytes[DTP_OWNER_REDUCE] += reduction_buffers(job) + tied_head(job);
    instant.bytes[DTP_OWNER_WORKSPACE] += dtp_backward_workspace(job);
    dtp_memory_consider(job, phase, &instant);
}

/* End of backward: the embedding's dense gradient, beside the bucket it will be copied into, and the partial sums it is
 * made of. Tied to the head, it is a second tensor beside the head's until the two are added. */
static void embedding_backward(struct dtp_memory_job *job)
{
    const struct dtp_units *u = &job->units;
    bool buffered = job->plan->runtime == DTP_RUNTIME_MEGATRON || job->plan->runtime == DTP_RUNTIME_DTPLAN;
    bool torch = job->plan->runtime == DTP_RUNTIME_TORCH;
    bool bucketed = job->cluster->gpus > 1 && (!torch || job->plan->ddp_bucket_view);
    uint64_t extra = (bucketed ? 1u : 0u) + (u->head || !torch ? 0u : 1u);
    struct dtp_instant instant = with_gradients(job, u->total);
    instant.bytes[DTP_OWNER_REDUCE] += (buffered ? 0 : extra * job->bytes.grads * u->embedding) +
                                      (job->plan->runtime == DTP_RUNTIME_DEEPSPEED ? reduction_buffers(job) : 0);
    instant.bytes[DTP_OWNER_WORKSPACE] +=
        job->activations.embedding_backward + dtp_tokens_bytes(job, job->activations.gradient);
    dtp_memory_consider(job, DTP_PHASE_LATE_BACKWARD, &instant);
}

/* Optimizer step. foreach AdamW makes a list of sqrt(v), one more moment per local parameter; DeepSpeed turns its
 * partition of the gradients into fp32. */
static void optimizer_step(struct dtp_memory_job *job)
{
    uint64_t local =
        dtp_plan_shards_optimizer(job->plan) ? dtp_divide_up(job->units.total, job->units.ranks) : job->units.total;
    bool offloaded = job->plan->offload != DTP_OFFLOAD_NONE;
    struct dtp_instant instant = with_gradients(job, job->units.total);
    if (job->plan->runtime == DTP_RUNTIME_DEEPSPEED && job->bytes.grads < 4 && !offloaded)
        instant.bytes[DTP_OWNER_WORKSPACE] += 4 * local;
    else if (job->plan->optimizer == DTP_ADAMW_FOREACH && job->plan->runtime == DTP_RUNTIME_TORCH)
        instant.bytes[DTP_OWNER_WORKSPACE] += dtp_dtype_bytes(job->plan->precision.moments) * local;
    dtp_memory_consider(job, DTP_PHASE_STEP, &instant);
}

void dtp_memory_replicated(struct dtp_memory_job *job)
{
    uint64_t last = job->transformer->layers - 1;
    forward_and_loss(job);
    head_backward(job);
    layer_backward(job, DTP_PHASE_EARLY_BACKWARD, last);
    layer_backward(job, DTP_PHASE_LATE_BACKWARD, 0);
    embedding_backward(job);
    optimizer_step(job);
}
