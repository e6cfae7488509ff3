/* Peak memory where every GPU holds all parameters: DDP, ZeRO-1, ZeRO-2 under each runtime.
 *
 * Notation: p bytes of a stored parameter, c of the compute dtype, psi parameters, P of one layer, V h of the
 * embedding, T tokens. */
#include "runtime/deepspeed/deepspeed_buckets.h"
#include "closed/memory_instant.h"

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
    } else if (plan->runtime == DTP_RUNTIME_DEEPSPEED &&
               zero2) { /* grads_in_partition: whole, from the first bucket on */
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

/* Between the first and the last of at least three micro-steps those that no_sync accumulated stand for all layers. */
static bool has_quiet_micro_steps(const struct dtp_memory_job *job)
{
    const struct dtp_plan *plan = job->plan;
    return plan->runtime == DTP_RUNTIME_TORCH && job->cluster->gpus > 1 && plan->ddp_bucket_view &&
           plan->accumulate > 2 && !plan->accumulate_sync;
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
        dtp_instant_add(&instant, DTP_TERM_CARRIED_GRADIENT, 1,
                        dtp_deepspeed_largest_tensor(job->transformer, job->plan), job->bytes.grads);
    add_resting_gradients(job, &instant, done);
    add_beside_buckets(job, &instant, done);
    return instant;
}

static void add_block(const struct dtp_memory_job *job, struct dtp_instant *instant,
                      const struct dtp_block_place *place)
{
    dtp_add_block(job, instant, place);
    if (dtp_plan_autocast(job->plan))
        dtp_instant_add(instant, DTP_TERM_BLOCK_CASTS, 1, place->casts, job->bytes.compute);
}

/* Megatron's matmuls write gradients into their buffer; elsewhere the head's is a tensor first. */
static void add_head_gradient(const struct dtp_memory_job *job, struct dtp_instant *instant)
{
    if (job->plan->runtime != DTP_RUNTIME_MEGATRON)
        dtp_instant_add(instant, DTP_TERM_HEAD_GRADIENT, 1, job->units.embedding, job->bytes.compute);
}

/* The IPG bucket of reduce_bucket_size elements, two with overlap_comm; the flattened copy that is all-reduced comes
 * later. */
static void add_reduction_buffers(const struct dtp_memory_job *job, struct dtp_instant *instant)
{
    const struct dtp_plan *plan = job->plan;
    if (plan->runtime == DTP_RUNTIME_DEEPSPEED)
        dtp_instant_add(instant, DTP_TERM_REDUCE_BUCKETS, plan->deepspeed_overlap ? 2 : 1, plan->reduce_bucket_size,
                        job->bytes.grads);
}

/* A tied head's gradient waits in autograd's input buffer for the embedding's, and becomes .grad with it. */
static void add_tied_head(const struct dtp_memory_job *job, struct dtp_instant *instant)
{
    if (job->plan->runtime != DTP_RUNTIME_MEGATRON && !job->units.head)
        dtp_instant_add(instant, DTP_TERM_TIED_HEAD_GRADIENT, 1, job->units.embedding, job->bytes.grads);
}

/* Forward of a layer: of each kind the last has most below it. */
static void forward_layers(struct dtp_memory_job *job)
{
    uint64_t layers[DTP_LAYER_KINDS];
    int kinds = dtp_last_layers(job, job->transformer->layers, layers);
    bool all = dtp_plan_autocast(job->plan) && !job->plan->compile;
    for (int i = 0; i < kinds; i++) {
        struct dtp_instant instant = with_gradients(job, 0);
        dtp_add_saved(job, &instant, layers[i]);
        add_casts(job, &instant, all ? layers[i] : cast_layers(job, layers[i], false));
        add_block(job, &instant, &job->places->forward[dtp_layer_checkpointed(job, layers[i])]);
        dtp_memory_consider(job, DTP_PHASE_FORWARD_END, &instant);
    }
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
    if (dtp_plan_autocast(job->plan) && job->transformer->final_norm) /* its fp32 result, until the head has read it */
        dtp_instant_add_tokens(job, &end, DTP_TERM_HEAD, 1, job->activations.gradient);
    dtp_memory_consider(job, DTP_PHASE_FORWARD_END, &end);
}

/* Backward of the head: the logits' gradient, the head's in the compute dtype, that of the final norm's result; then,
 * when logits, their gradient, the norm's result and the cast weight have gone, the head's is cast for its bucket. */
static void head_backward(struct dtp_memory_job *job)
{
    const struct dtp_activations *a = &job->activations;
    struct dtp_instant cast = with_gradients(job, 0);
    bool chunked = dtp_plan_loss(job->plan) == DTP_LOSS_CHUNKED;
    dtp_add_all_saved(job, &cast);
    add_casts(job, &cast, cast_layers(job, job->transformer->layers, false));
    add_head_gradient(job, &cast);
    add_reduction_buffers(job, &cast);
    struct dtp_instant instant = cast;
    add_head_cast(job, &instant);
    dtp_instant_add_tokens(job, &instant, DTP_TERM_LOGITS_GRADIENT, 1, a->logits_gradient);
    dtp_instant_add_tokens(job, &instant, DTP_TERM_STREAM_GRADIENT, 1, chunked ? 0 : a->norm_gradient);
    dtp_memory_consider(job, DTP_PHASE_EARLY_BACKWARD, &instant);
    if (!dtp_plan_autocast(job->plan))
        return;
    dtp_instant_add(&cast, DTP_TERM_CAST_GRADIENT, 1, job->units.embedding, job->bytes.grads);
    dtp_instant_add_tokens(job, &cast, DTP_TERM_STREAM_GRADIENT, 1, chunked ? a->logits_gradient : a->norm_gradient);
    if (job->transformer->final_norm)
        dtp_instant_take_tokens(job, &cast, DTP_TERM_HEAD, a->norm_gradient);
    dtp_memory_consider(job, DTP_PHASE_EARLY_BACKWARD, &cast);
}

/* What becomes of a layer's gradients.
 *   torch, one GPU        they rest as they are made, or are added to those that rest; autocast casts each first
 *   torch, several GPUs   each is cast and copied into its bucket; without views, or accumulated, they rest beside it
 *                         (with views the accumulated one goes then)
 *   DeepSpeed             copied into a bucket, stage 1 keeps them too
 *   Megatron              written in place */
static struct dtp_place_weights gradient_bytes(const struct dtp_memory_job *job, bool quiet)
{
    const struct dtp_plan *plan = job->plan;
    int64_t c = (int64_t)job->bytes.compute, g = (int64_t)job->bytes.grads;
    bool torch = plan->runtime == DTP_RUNTIME_TORCH, autocast = dtp_plan_autocast(plan), first = plan->accumulate == 1;
    bool rest = torch && (job->cluster->gpus == 1 || !plan->ddp_bucket_view);
    bool moves = torch && !rest && !first && !plan->accumulate_sync && !quiet;
    struct dtp_place_weights bytes = {.tokens = job->tokens, .casts = autocast ? job->bytes.compute : 0};
    if (plan->runtime == DTP_RUNTIME_MEGATRON)
        return bytes;
    rest = rest || (!torch && plan->strategy == DTP_ZERO1);
    bytes.finished = moves ? -g : rest && first ? g : 0;
    bytes.current[DTP_PLACE_GRADIENT] = c;
    bytes.current[DTP_PLACE_HANDED] = autocast ? c + g : c;
    if (plan->runtime == DTP_RUNTIME_DEEPSPEED &&
        plan->strategy == DTP_ZERO2) /* a bucket by itself until the next comes */
        bytes.lingering = job->bytes.grads, bytes.lingers_above = plan->reduce_bucket_size;
    return bytes;
}

/* Gradients that the layer at work has made. */
static void add_block_gradients(struct dtp_instant *instant, const struct dtp_block_place *place,
                                const struct dtp_place_weights *bytes)
{
    if (bytes->finished < 0)
        dtp_instant_take(instant, DTP_TERM_BESIDE_BUCKETS, 1, place->finished, (uint64_t)-bytes->finished);
    else
        dtp_instant_add(instant, DTP_TERM_BLOCK_GRADIENTS, 1, place->finished, (uint64_t)bytes->finished);
    dtp_instant_add(instant, DTP_TERM_BLOCK_GRADIENTS, 1, place->current, (uint64_t)bytes->current[place->kind]);
    dtp_instant_add(instant, DTP_TERM_BLOCK_GRADIENTS, 1, 1, dtp_place_lingering(place, bytes));
}

static void backward_at(struct dtp_memory_job *job, uint64_t done, uint64_t layer, const struct dtp_block_place *place,
                        const struct dtp_place_weights *bytes)
{
    enum dtp_phase phase = 2 * layer >= job->transformer->layers ? DTP_PHASE_EARLY_BACKWARD : DTP_PHASE_LATE_BACKWARD;
    struct dtp_instant instant = with_gradients(job, done);
    dtp_add_saved(job, &instant, layer);
    add_casts(job, &instant, cast_layers(job, layer, false));
    add_block(job, &instant, place);
    add_block_gradients(&instant, place, bytes);
    dtp_instant_add_tokens(job, &instant, DTP_TERM_STREAM_GRADIENT, 1, job->activations.gradient);
    add_reduction_buffers(job, &instant);
    add_tied_head(job, &instant);
    dtp_memory_consider(job, phase, &instant);
}

static void backward_place(struct dtp_memory_job *job, bool quiet, uint64_t layer, const struct dtp_block_place *place,
                           const struct dtp_place_weights *bytes)
{
    uint64_t above = job->transformer->layers - 1 - layer;
    backward_at(job, quiet ? 0 : job->units.head + above * job->units.layer, layer, place, bytes);
}

/* Stage 2's partition appears when the first bucket is full, in the middle of a block: the worst place behind that, and
 * of the blocks below those of either kind that come next. */
static void partition_appears(struct dtp_memory_job *job, const struct dtp_block_place *worst,
                              const struct dtp_place_weights *bytes)
{
    const struct dtp_units *u = &job->units;
    const struct dtp_plan *plan = job->plan;
    uint64_t bucket = plan->reduce_bucket_size, above = bucket > u->head ? (bucket - u->head) / u->layer : 0;
    uint64_t layers[DTP_LAYER_KINDS];
    if (plan->runtime != DTP_RUNTIME_DEEPSPEED || plan->strategy != DTP_ZERO2 || plan->accumulate > 1 ||
        plan->offload != DTP_OFFLOAD_NONE || above >= job->transformer->layers)
        return;
    uint64_t layer = job->transformer->layers - 1 - above, done = u->head + above * u->layer;
    struct dtp_block_places behind = {.count = 0};
    for (int i = 0; i < job->places->count; i++)
        if (done + job->places->backward[i].finished + job->places->backward[i].current > bucket)
            behind.backward[behind.count++] = job->places->backward[i];
    if (behind.count)
        backward_at(job, bucket + 1, layer, dtp_block_worst(&behind, bytes), bytes);
    int kinds = dtp_last_layers(job, layer, layers);
    for (int i = 0; i < kinds; i++) {
        backward_place(job, false, layers[i], worst, bytes);
        if (dtp_layer_recomputed(job, layers[i]))
            backward_place(job, false, layers[i], &job->places->replay, bytes);
    }
}

/* Saved activations fall and gradients grow from layer to layer: the first and the last of each kind are worst. */
static void layers_backward(struct dtp_memory_job *job, bool quiet)
{
    uint64_t layers[2 * DTP_LAYER_KINDS];
    struct dtp_place_weights bytes = gradient_bytes(job, quiet);
    const struct dtp_block_place *worst = dtp_block_worst(job->places, &bytes);
    int kinds = dtp_outer_layers(job, 0, job->transformer->layers, layers);
    for (int i = 0; i < kinds; i++) {
        backward_place(job, quiet, layers[i], worst, &bytes);
        if (dtp_layer_recomputed(job, layers[i]))
            backward_place(job, quiet, layers[i], &job->places->replay, &bytes);
    }
    partition_appears(job, worst, &bytes);
}

/* The instant at which a bucket of DeepSpeed's is reduced: `layers` saved, one at work. */
struct bucket_moment {
    uint64_t bytes, layers;
    const struct dtp_block_place *place;
    bool waiting, stream; /* a tied head's gradient, the residual stream's */
    struct dtp_bucket_close close;
};

static void weigh_bucket(const struct dtp_memory_job *job, const struct bucket_moment *moment,
                         struct bucket_moment *worst)
{
    const struct dtp_activations *a = &job->activations;
    uint64_t kept = a->checkpoint_every ? dtp_divide_up(moment->layers, a->checkpoint_every) : 0;
    uint64_t tokens = kept * a->layer_kept + (moment->layers - kept) * a->layer_all +
                      (moment->stream ? a->gradient : 0) +
                      (moment->place ? moment->place->saved + moment->place->work : 0);
    uint64_t bytes = dtp_bytes_product(job->tokens, tokens) + moment->close.bytes +
                     (moment->waiting ? job->units.embedding * job->bytes.grads : 0);
    if (bytes <= worst->bytes)
        return;
    *worst = *moment;
    worst->bytes = bytes;
}

/* The gradient at hand is handed over at the place of its matrix, in their order. */
static void blocks_into_buckets(const struct dtp_memory_job *job, const struct dtp_deepspeed_parts *parts,
                                struct dtp_buckets *buckets, struct bucket_moment *worst)
{
    int order[DTP_ZERO3_PARTS], count = dtp_deepspeed_backward_order(parts, order);
    struct bucket_moment moment = {.waiting = !job->units.head, .stream = true};
    for (uint64_t left = job->transformer->layers; left > 0; left--) {
        moment.layers = left - 1;
        for (int i = 0, at = 0; i < count; i++, at++) {
            while (job->places->backward[at].kind != DTP_PLACE_HANDED)
                at++;
            moment.place = &job->places->backward[at];
            if (dtp_buckets_add(buckets, &parts->block[order[i]], &moment.close))
                weigh_bucket(job, &moment, worst);
        }
    }
}

static void find_worst_bucket(const struct dtp_memory_job *job, struct bucket_moment *worst)
{
    struct dtp_deepspeed_parts parts;
    struct dtp_buckets buckets;
    bool tied = !job->units.head;
    struct bucket_moment moment = {.layers = job->transformer->layers, .waiting = tied, .stream = true};
    dtp_deepspeed_list_parts(job->transformer, job->plan, 1, &parts);
    dtp_buckets_begin(&buckets, job->transformer, job->cluster, job->plan, job->units.ranks, job->units.total,
                      job->bytes.grads);
    dtp_buckets_add(&buckets, &parts.root[DTP_ZERO3_HEAD], &moment.close);
    if (dtp_buckets_add(&buckets, &parts.root[DTP_ZERO3_VECTORS], &moment.close))
        weigh_bucket(job, &moment, worst);
    blocks_into_buckets(job, &parts, &buckets, worst);
    moment.layers = 0;
    if (dtp_buckets_add(&buckets, &parts.root[DTP_ZERO3_POSITION], &moment.close))
        weigh_bucket(job, &moment, worst);
    moment.waiting = moment.stream = false;
    if (dtp_buckets_add(&buckets, &parts.root[DTP_ZERO3_EMBEDDING], &moment.close))
        weigh_bucket(job, &moment, worst);
    if (dtp_buckets_end(&buckets, &moment.close))
        weigh_bucket(job, &moment, worst);
}

/* DeepSpeed's worst bucket, flattened into a copy to be all-reduced. */
static void flat_bucket(struct dtp_memory_job *job)
{
    const struct dtp_plan *plan = job->plan;
    struct bucket_moment worst = {.bytes = 0};
    const struct dtp_bucket_close *close = &worst.close;
    if (plan->runtime != DTP_RUNTIME_DEEPSPEED)
        return;
    find_worst_bucket(job, &worst);
    struct dtp_instant instant = with_gradients(job, close->made);
    dtp_add_saved(job, &instant, worst.layers);
    if (worst.place)
        dtp_add_block(job, &instant, worst.place);
    if (worst.stream)
        dtp_instant_add_tokens(job, &instant, DTP_TERM_STREAM_GRADIENT, 1, job->activations.gradient);
    if (worst.waiting)
        add_tied_head(job, &instant);
    add_reduction_buffers(job, &instant);
    dtp_instant_add(&instant, DTP_TERM_GRADS_SHARD, 1, close->partition, job->bytes.grads);
    dtp_instant_add(&instant, DTP_TERM_FLAT_BUCKET, 1, close->copied, job->bytes.grads);
    dtp_instant_add(&instant, DTP_TERM_NEXT_GRADIENT, 1, close->next, job->bytes.grads);
    dtp_instant_add(&instant, DTP_TERM_FP32_GRADIENTS, 1, close->carried, 4);
    bool early = 2 * worst.layers >= job->transformer->layers;
    dtp_memory_consider(job, early ? DTP_PHASE_EARLY_BACKWARD : DTP_PHASE_LATE_BACKWARD, &instant);
}

/* End of backward: the embedding's dense gradient before it goes where gradients rest, beside the tied head's, to which
 * it is added, and the partial sums it is made of. */
static void embedding_backward(struct dtp_memory_job *job, bool quiet)
{
    const struct dtp_units *u = &job->units;
    struct dtp_instant instant = with_gradients(job, quiet ? 0 : u->total - u->embedding);
    add_tied_head(job, &instant);
    add_reduction_buffers(job, &instant);
    bool buffered = job->plan->runtime == DTP_RUNTIME_MEGATRON; /* made in the parameters' dtype and added */
    dtp_instant_add(&instant, DTP_TERM_EMBEDDING_GRADIENT, 1, u->embedding,
                    buffered ? job->bytes.compute : job->bytes.grads);
    dtp_add_embedding_backward(job, &instant);
    dtp_memory_consider(job, DTP_PHASE_LATE_BACKWARD, &instant);
}

/* Just before, that of learned positions. */
static void position_backward(struct dtp_memory_job *job, bool quiet)
{
    const struct dtp_units *u = &job->units;
    if (!u->position || job->plan->runtime == DTP_RUNTIME_MEGATRON)
        return;
    struct dtp_instant instant = with_gradients(job, quiet ? 0 : u->total - u->embedding - u->position);
    add_tied_head(job, &instant);
    add_reduction_buffers(job, &instant);
    dtp_instant_add(&instant, DTP_TERM_POSITION_GRADIENT, 1, u->position, job->bytes.grads);
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
    forward_layers(job);
    forward_and_loss(job);
    head_backward(job);
    for (int quiet = 0; quiet < (has_quiet_micro_steps(job) ? 2 : 1); quiet++) {
        layers_backward(job, quiet);
        position_backward(job, quiet);
        embedding_backward(job, quiet);
    }
    flat_bucket(job);
    optimizer_step(job);
}
