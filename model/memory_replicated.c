/* Peak memory where every GPU holds all parameters: DDP, ZeRO-1, ZeRO-2 under each runtime.
 *
 * Notation: p bytes of a stored parameter, c of the compute dtype, psi parameters, P of one layer, V h of the
 * embedding, T tokens. */
#include "closed_form_deepspeed.h"
#include "memory_instant.h"

/* Layers whose weights have a copy that autocast made: cast once in forward, saved for backward, freed layer by layer.
 * A checkpointed layer saves none; it makes them again when it is recomputed. Selective attention leaves the linears
 * outside. */
static uint64_t cast_layers(const struct dtp_memory_job *job, uint64_t layers, bool recomputing)
{
    bool linears = job->plan->checkpointing != DTP_CHECKPOINT_SELECTIVE_ATTENTION;
    uint64_t every = linears ? job->activations.checkpoint_every : 0;
    if (!dtp_plan_autocast(job->plan))
        return 0;
    return layers - (every ? dtp_divide_up(layers, every) : 0) + (every && recomputing ? 1 : 0);
}

static void add_casts(const struct dtp_memory_job *job, struct dtp_instant *instant, uint64_t layers)
{
    dtp_instant_add(instant, DTP_TERM_LAYER_CASTS, layers, job->units.layer_cast, job->bytes.compute);
}

static void add_head_cast(const struct dtp_memory_job *job, struct dtp_instant *instant)
{
    if (dtp_plan_autocast(job->plan))
        dtp_instant_add(instant, DTP_TERM_HEAD_CAST, 1, job->units.embedding, job->bytes.compute);
}

/* Gradients that rest on this GPU when `done` elements have been through backward in the last micro-step.
 *   torch, several GPUs   DDP's buckets hold all of them from construction
 *   torch, one GPU        .grad as it is made (zero_grad sets it to None)
 *   DeepSpeed             stage 1 as they are made, stage 2 only this rank's partition
 *   Megatron              one buffer, allocated once
 * With accumulation those of the first micro-step stay. */
static void add_resting_gradients(const struct dtp_memory_job *job, struct dtp_instant *instant, uint64_t done)
{
    const struct dtp_plan *plan = job->plan;
    uint64_t total = job->units.total, shard = dtp_divide_up(total, job->units.ranks);
    bool kept = plan->accumulate > 1, zero2 = plan->strategy == DTP_ZERO2;
    enum dtp_memory_term term = kept ? DTP_TERM_GRADS_KEPT : DTP_TERM_GRADS_MADE;
    uint64_t elements = kept ? total : done;
    if (plan->runtime == DTP_RUNTIME_TORCH && job->cluster->gpus > 1) {
        term = DTP_TERM_GRADS_BUCKETS;
        elements = total;
    } else if (plan->runtime == DTP_RUNTIME_MEGATRON) {
        term = DTP_TERM_GRADS_BUFFER;
        elements = total;
    } else if (plan->runtime == DTP_RUNTIME_DEEPSPEED && zero2 && plan->offload != DTP_OFFLOAD_NONE) {
        return;
    } else if (plan->runtime == DTP_RUNTIME_DEEPSPEED && zero2) { /* grads_in_partition: whole, from the first bucket on */
        term = DTP_TERM_GRADS_SHARD;
        elements = kept || done > plan->reduce_bucket_size ? shard : 0;
    }
    dtp_instant_add(instant, term, 1, elements, job->bytes.grads);
}

/* Gradients of DDP that stand a second time, beside the buckets: without gradient_as_bucket_view every .grad; with it,
 * those that no_sync accumulated as tensors of their own, until the last backward moves them into the buckets. */
static void add_beside_buckets(const struct dtp_memory_job *job, struct dtp_instant *instant, uint64_t done)
{
    const struct dtp_plan *plan = job->plan;
    if (plan->runtime != DTP_RUNTIME_TORCH || job->cluster->gpus == 1)
        return;
    bool accumulated = plan->accumulate > 1 && !plan->accumulate_sync;
    uint64_t total = job->units.total, left = done < total ? total - done : 0;
    uint64_t elements = plan->ddp_bucket_view ? (accumulated ? left : 0) : plan->accumulate > 1 ? total : done;
    dtp_instant_add(instant, DTP_TERM_BESIDE_BUCKETS, 1, elements, job->bytes.grads);
}

static bool plan_offloads(const struct dtp_plan *plan)
{
    return plan->runtime == DTP_RUNTIME_DEEPSPEED && plan->offload != DTP_OFFLOAD_NONE;
}

/* What rests before the layers' own: states, gradients of `done` elements, DDP's second copies. */
static struct dtp_instant with_gradients(const struct dtp_memory_job *job, uint64_t done)
{
    struct dtp_instant instant = job->at_rest;
    if (plan_offloads(job->plan)) /* temp_grad_buffer_for_gpu_offload */
        dtp_instant_add(&instant, DTP_TERM_CARRIED_GRADIENT, 1, dtp_deepspeed_largest_tensor(job->transformer, job->plan),
                        job->bytes.grads);
    add_resting_gradients(job, &instant, done);
    add_beside_buckets(job, &instant, done);
    return instant;
}

/* Megatron's matmuls write gradients into their buffer; elsewhere the head's is a tensor first. */
static void add_head_gradient(const struct dtp_memory_job *job, struct dtp_instant *instant)
{
    if (job->plan->runtime != DTP_RUNTIME_MEGATRON)
        dtp_instant_add(instant, DTP_TERM_HEAD_GRADIENT, 1, job->units.embedding, job->bytes.compute);
}

/* Buffers that reduction needs during backward. torch: the largest gradient before it is copied into its bucket (the
 * down matrix, at the instant that matters). DeepSpeed: the IPG bucket of reduce_bucket_size elements, two with
 * overlap_comm; the flattened copy that is all-reduced comes later. */
static void add_reduction_buffers(const struct dtp_memory_job *job, struct dtp_instant *instant)
{
    const struct dtp_units *u = &job->units;
    const struct dtp_plan *plan = job->plan;
    uint64_t bucket = plan->reduce_bucket_size;
    bool deepspeed = plan->runtime == DTP_RUNTIME_DEEPSPEED;
    if (plan->runtime == DTP_RUNTIME_TORCH || (deepspeed && plan->strategy == DTP_DDP))
        dtp_instant_add(instant, DTP_TERM_LARGEST_GRADIENT, 1, u->down, job->bytes.grads);
    else if (deepspeed)
        dtp_instant_add(instant, DTP_TERM_REDUCE_BUCKETS, plan->deepspeed_overlap ? 2 : 1, bucket, job->bytes.grads);
}

/* A tied head's gradient waits in autograd's input buffer for the embedding's, and reaches its bucket with it. On one
 * GPU the gradients made so far count it. */
static void add_tied_head(const struct dtp_memory_job *job, struct dtp_instant *instant)
{
    if (job->plan->runtime == DTP_RUNTIME_TORCH && !job->units.head)
        dtp_instant_add(instant, DTP_TERM_TIED_HEAD_GRADIENT, 1, job->units.embedding, job->bytes.grads);
}

/* Forward's end, and the loss with all activations and casts standing. In chunks, head and loss come after forward, and
 * the head's gradient is made there. */
static void forward_and_loss(struct dtp_memory_job *job)
{
    uint64_t layers = job->transformer->layers;
    bool chunked = dtp_plan_loss(job->plan) == DTP_LOSS_CHUNKED;
    struct dtp_instant loss = with_gradients(job, 0);
    dtp_add_all_saved(job, &loss);
    struct dtp_instant end = loss;
    add_casts(job, &loss, cast_layers(job, layers, false));
    add_head_cast(job, &loss);
    dtp_instant_add_tokens(job, &loss, DTP_TERM_LOSS, 1, job->activations.loss);
    if (chunked)
        add_head_gradient(job, &loss);
    dtp_memory_consider(job, DTP_PHASE_LOSS, &loss);

    /* autocast's cache keeps eager casts until its context ends with forward, checkpointed or not */
    bool all = dtp_plan_autocast(job->plan) && !job->plan->compile;
    add_casts(job, &end, all ? layers : cast_layers(job, layers, false));
    if (!chunked || job->plan->compile)
        add_head_cast(job, &end);
    if (!chunked)
        dtp_instant_add_tokens(job, &end, DTP_TERM_LOGITS, 1, job->activations.logits);
    dtp_memory_consider(job, DTP_PHASE_FORWARD_END, &end);
}

/* Backward of the head: the logits' gradient, the head's gradient in the compute dtype, the hidden gradient. */
static void head_backward(struct dtp_memory_job *job)
{
    struct dtp_instant instant = with_gradients(job, 0);
    dtp_add_all_saved(job, &instant);
    add_casts(job, &instant, cast_layers(job, job->transformer->layers, false));
    add_head_cast(job, &instant);
    dtp_instant_add_tokens(job, &instant, DTP_TERM_LOGITS_GRADIENT, 1, job->activations.logits_gradient);
    add_head_gradient(job, &instant);
    if (job->plan->runtime == DTP_RUNTIME_DEEPSPEED)
        add_reduction_buffers(job, &instant);
    dtp_instant_add_tokens(job, &instant, DTP_TERM_STREAM_GRADIENT, 1, job->activations.gradient);
    dtp_memory_consider(job, DTP_PHASE_EARLY_BACKWARD, &instant);
}

/* Casts of the layers up to `layer`, whose own go with their input gradients. */
static void add_casts_at(const struct dtp_memory_job *job, struct dtp_instant *instant, uint64_t layer,
                         enum dtp_backward_place place)
{
    const struct dtp_units *u = &job->units;
    uint64_t casts = cast_layers(job, layer + 1, dtp_layer_recomputed(job, layer));
    add_casts(job, instant, casts);
    if (casts && place == DTP_IN_MLP)
        dtp_instant_take(instant, DTP_TERM_DOWN_CAST, 1, u->down, job->bytes.compute);
    else if (casts)
        dtp_instant_take(instant, DTP_TERM_OTHER_CASTS, 1, u->layer_matmul - u->qkv, job->bytes.compute);
}

/* On one GPU gradients rest as they are made; between GPUs DDP has the largest one before it is copied, which in the
 * core none is, and whatever is made in buckets rests from the start. */
static enum dtp_backward_place worst_place(const struct dtp_memory_job *job)
{
    const struct dtp_units *u = &job->units;
    uint64_t others = u->layer_matmul - u->qkv, bytes = job->bytes.grads;
    uint64_t casts = dtp_plan_autocast(job->plan) ? job->bytes.compute * (others - u->down) : 0; /* more are gone */
    if (job->plan->runtime != DTP_RUNTIME_TORCH)
        return dtp_worst_place(job, casts, 0);
    return dtp_worst_place(job, u->down * bytes + casts, job->cluster->gpus == 1 ? others * bytes : 0);
}

/* Worst instant of the backward of layer `layer`. */
static void layer_backward(struct dtp_memory_job *job, enum dtp_phase phase, uint64_t layer)
{
    const struct dtp_units *u = &job->units;
    enum dtp_backward_place place = worst_place(job);
    uint64_t above = job->transformer->layers - 1 - layer;
    uint64_t done = u->embedding + above * u->layer;
    bool torch = job->plan->runtime == DTP_RUNTIME_TORCH, core = place == DTP_IN_CORE;
    if (torch && job->cluster->gpus == 1)
        done += core ? u->layer_matmul - u->qkv : u->down;
    struct dtp_instant instant = with_gradients(job, done);
    dtp_add_layer_backward_at(job, &instant, layer, place);
    add_casts_at(job, &instant, layer, place);
    bool deepspeed = job->plan->runtime == DTP_RUNTIME_DEEPSPEED;
    if (job->cluster->gpus > 1 || deepspeed) {
        if (!torch || !core)
            add_reduction_buffers(job, &instant);
        add_tied_head(job, &instant);
    }
    dtp_memory_consider(job, phase, &instant);
}

/* DeepSpeed's worst bucket, flattened into a copy to be all-reduced. */
static void flat_bucket(struct dtp_memory_job *job)
{
    const struct dtp_plan *plan = job->plan;
    if (plan->runtime != DTP_RUNTIME_DEEPSPEED)
        return;
    struct dtp_deepspeed_buckets buckets;
    bool keeps = plan->strategy == DTP_ZERO1; /* every gradient; those of earlier micro-steps stand anyway */
    struct dtp_bucket_weights weights = {.bucket = job->bytes.grads,
                                         .next = keeps ? 0 : job->bytes.grads,
                                         .made = keeps && plan->accumulate == 1 ? job->bytes.grads : 0};
    dtp_memory_buckets(job, &weights, &buckets);
    struct dtp_instant instant = with_gradients(job, keeps ? buckets.worst_made : UINT64_MAX);
    dtp_add_saved_at_bucket(job, &buckets, &instant);
    dtp_instant_add(&instant, DTP_TERM_REDUCE_BUCKETS, plan->deepspeed_overlap ? 2 : 1, plan->reduce_bucket_size,
                    job->bytes.grads);
    dtp_instant_add(&instant, DTP_TERM_FLAT_BUCKET, 1, buckets.worst, job->bytes.grads);
    if (!keeps)
        dtp_instant_add(&instant, DTP_TERM_NEXT_GRADIENT, 1, buckets.worst_next, job->bytes.grads);
    dtp_add_carried(job, dtp_divide_up(buckets.worst, job->units.ranks), &instant);
    dtp_memory_consider(job, DTP_PHASE_LATE_BACKWARD, &instant);
}

/* End of backward: the embedding's dense gradient, beside the bucket it will be copied into, and the partial sums it is
 * made of. Tied to the head, it is a second tensor beside the head's until the two are added. */
static void embedding_backward(struct dtp_memory_job *job)
{
    const struct dtp_units *u = &job->units;
    bool buffered = job->plan->runtime == DTP_RUNTIME_MEGATRON;
    bool torch = job->plan->runtime == DTP_RUNTIME_TORCH;
    bool bucketed = job->cluster->gpus > 1 && (!torch || job->plan->ddp_bucket_view);
    uint64_t copies = (bucketed ? 1u : 0u) + (u->head || !torch ? 0u : 1u);
    struct dtp_instant instant = with_gradients(job, u->total);
    dtp_instant_add(&instant, DTP_TERM_EMBEDDING_GRADIENT, buffered ? 0 : copies, u->embedding, job->bytes.grads);
    if (job->plan->runtime == DTP_RUNTIME_DEEPSPEED)
        add_reduction_buffers(job, &instant);
    if (job->plan->runtime == DTP_RUNTIME_MEGATRON) /* made in the parameters' dtype and added to the buffer */
        dtp_instant_add(&instant, DTP_TERM_EMBEDDING_GRADIENT, 1, u->embedding, job->bytes.compute);
    dtp_add_embedding_backward(job, &instant);
    dtp_memory_consider(job, DTP_PHASE_LATE_BACKWARD, &instant);
}

/* Just before, that of learned positions is a tensor beside its bucket, while a tied head's still waits. */
static void position_backward(struct dtp_memory_job *job)
{
    const struct dtp_units *u = &job->units;
    bool bucketed = job->cluster->gpus > 1 && job->plan->ddp_bucket_view;
    if (!u->position || job->plan->runtime != DTP_RUNTIME_TORCH)
        return;
    struct dtp_instant instant = with_gradients(job, u->total - u->embedding);
    dtp_instant_add(&instant, DTP_TERM_EMBEDDING_GRADIENT, u->head ? 0 : 1, u->embedding, job->bytes.grads);
    dtp_instant_add(&instant, DTP_TERM_POSITION_GRADIENT, bucketed ? 1 : 0, u->position, job->bytes.grads);
    dtp_instant_add_tokens(job, &instant, DTP_TERM_STREAM_GRADIENT, 1, job->activations.gradient);
    dtp_memory_consider(job, DTP_PHASE_LATE_BACKWARD, &instant);
}

/* Optimizer step. DeepSpeed turns its partition of the gradients into fp32. */
static void optimizer_step(struct dtp_memory_job *job)
{
    uint64_t local =
        dtp_plan_shards_optimizer(job->plan) ? dtp_divide_up(job->units.total, job->units.ranks) : job->units.total;
    bool offloaded = job->plan->offload != DTP_OFFLOAD_NONE;
    struct dtp_instant instant = with_gradients(job, job->units.total);
    if (job->plan->runtime == DTP_RUNTIME_DEEPSPEED && job->bytes.grads < 4 && !offloaded)
        dtp_instant_add(&instant, DTP_TERM_FP32_GRADIENTS, 1, local, 4);
    dtp_add_foreach(job, &instant, local);
    dtp_memory_consider(job, DTP_PHASE_STEP, &instant);
}

void dtp_memory_replicated(struct dtp_memory_job *job)
{
    uint64_t last = job->transformer->layers - 1;
    forward_and_loss(job);
    head_backward(job);
    layer_backward(job, DTP_PHASE_EARLY_BACKWARD, last);
    layer_backward(job, DTP_PHASE_LATE_BACKWARD, 0);
    flat_bucket(job);
    position_backward(job);
    embedding_backward(job);
    optimizer_step(job);
}
