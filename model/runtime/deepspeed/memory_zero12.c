/* What DeepSpeed's stages 1 and 2 add to the instants of replicated parameters. */
#include "closed/memory_replicated.h"

#include "runtime/deepspeed/deepspeed_buckets.h"
#include "runtime/deepspeed/deepspeed_hooks.h"

/* Stage 1 keeps gradients as they are made, stage 2 only this rank's partition (grads_in_partition: whole, from the
 * first bucket on), or where they go to the host, none. With accumulation those of the first micro-step stay. */
static void add_resting(const struct dtp_memory_job *job, struct dtp_instant *instant, uint64_t done)
{
    const struct dtp_plan *plan = job->plan;
    uint64_t total = job->units.total, shard = dtp_divide_up(total, job->units.ranks), g = job->bytes.grads;
    bool kept = plan->accumulate > 1;
    if (plan->strategy != DTP_ZERO2)
        dtp_instant_add(instant, kept ? DTP_TERM_GRADS_KEPT : DTP_TERM_GRADS_MADE, 1, kept ? total : done, g);
    else if (plan->offload == DTP_OFFLOAD_NONE)
        dtp_instant_add(instant, DTP_TERM_GRADS_SHARD, 1, kept || done > plan->deepspeed.reduce_bucket_size ? shard : 0,
                        g);
}

static void add_gradients(const struct dtp_memory_job *job, struct dtp_instant *instant, uint64_t done)
{
    if (job->plan->offload != DTP_OFFLOAD_NONE) /* temp_grad_buffer_for_gpu_offload */
        dtp_instant_add(instant, DTP_TERM_CARRIED_GRADIENT, 1,
                        dtp_deepspeed_largest_tensor(job->transformer, job->plan), job->bytes.grads);
    add_resting(job, instant, done);
}

/* They are copied into a bucket, stage 1 keeps them too. */
static void weigh_gradients(const struct dtp_memory_job *job, bool quiet, struct dtp_place_weights *bytes)
{
    const struct dtp_plan *plan = job->plan;
    (void)quiet;
    if (plan->strategy == DTP_ZERO1 && plan->accumulate == 1)
        bytes->finished = (int64_t)job->bytes.grads;
    if (plan->strategy == DTP_ZERO2) /* a bucket by itself until the next comes */
        bytes->lingering = job->bytes.grads, bytes->lingers_above = plan->deepspeed.reduce_bucket_size;
}

/* The IPG bucket of reduce_bucket_size elements, two with overlap_comm; the flattened copy that is all-reduced comes
 * later. */
static void add_buckets(const struct dtp_memory_job *job, struct dtp_instant *instant)
{
    const struct dtp_plan *plan = job->plan;
    dtp_instant_add(instant, DTP_TERM_REDUCE_BUCKETS, plan->deepspeed.overlap_comm ? 2 : 1,
                    plan->deepspeed.reduce_bucket_size, job->bytes.grads);
}

/* Stage 2's partition appears when the first bucket is full, in the middle of a block: the worst place behind that, and
 * of the blocks below those of either kind that come next. */
static void within_blocks(struct dtp_memory_job *job, const struct dtp_block_place *worst,
                          const struct dtp_place_weights *bytes)
{
    const struct dtp_units *u = &job->units;
    const struct dtp_plan *plan = job->plan;
    uint64_t bucket = plan->deepspeed.reduce_bucket_size, above = bucket > u->head ? (bucket - u->head) / u->layer : 0;
    uint64_t layers[DTP_LAYER_KINDS];
    if (plan->strategy != DTP_ZERO2 || plan->accumulate > 1 || plan->offload != DTP_OFFLOAD_NONE ||
        above >= job->transformer->layers)
        return;
    uint64_t layer = job->transformer->layers - 1 - above, done = u->head + above * u->layer;
    struct dtp_block_places behind = {.count = 0};
    for (int i = 0; i < job->places->count; i++)
        if (done + job->places->backward[i].finished + job->places->backward[i].current > bucket)
            behind.backward[behind.count++] = job->places->backward[i];
    if (behind.count)
        dtp_replicated_backward(job, bucket + 1, layer, dtp_block_worst(&behind, bytes), bytes);
    int kinds = dtp_last_layers(job, layer, layers);
    for (int i = 0; i < kinds; i++) {
        dtp_replicated_backward_layer(job, false, layers[i], worst, bytes);
        if (dtp_layer_recomputed(job, layers[i]))
            dtp_replicated_backward_layer(job, false, layers[i], &job->places->replay, bytes);
    }
}

/* The instant at which a bucket is reduced: `layers` saved, one at work. */
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

/* The worst bucket, flattened into a copy to be all-reduced. */
static void within_buckets(struct dtp_memory_job *job)
{
    struct bucket_moment worst = {.bytes = 0};
    const struct dtp_bucket_close *close = &worst.close;
    find_worst_bucket(job, &worst);
    struct dtp_instant instant = dtp_replicated_instant(job, close->made);
    dtp_add_saved(job, &instant, worst.layers);
    if (worst.place)
        dtp_add_block(job, &instant, worst.place);
    if (worst.stream)
        dtp_instant_add_tokens(job, &instant, DTP_TERM_STREAM_GRADIENT, 1, job->activations.gradient);
    if (worst.waiting)
        dtp_replicated_add_tied_head(job, &instant);
    dtp_replicated_add_buckets(job, &instant);
    dtp_instant_add(&instant, DTP_TERM_GRADS_SHARD, 1, close->partition, job->bytes.grads);
    dtp_instant_add(&instant, DTP_TERM_FLAT_BUCKET, 1, close->copied, job->bytes.grads);
    dtp_instant_add(&instant, DTP_TERM_NEXT_GRADIENT, 1, close->next, job->bytes.grads);
    dtp_instant_add(&instant, DTP_TERM_FP32_GRADIENTS, 1, close->carried, 4);
    bool early = 2 * worst.layers >= job->transformer->layers;
    dtp_memory_consider(job, early ? DTP_PHASE_EARLY_BACKWARD : DTP_PHASE_LATE_BACKWARD, &instant);
}

/* The partition of the gradients turns into fp32. */
static void add_step(const struct dtp_memory_job *job, struct dtp_instant *instant, uint64_t local)
{
    if (job->bytes.grads < 4 && job->plan->offload == DTP_OFFLOAD_NONE)
        dtp_instant_add(instant, DTP_TERM_FP32_GRADIENTS, 1, local, 4);
}

void dtp_memory_zero12(struct dtp_memory_job *job)
{
    static const struct dtp_replicated_hooks hooks = {.add_gradients = add_gradients,
                                                      .weigh_gradients = weigh_gradients,
                                                      .add_buckets = add_buckets,
                                                      .within_blocks = within_blocks,
                                                      .within_buckets = within_buckets,
                                                      .add_step = add_step};
    dtp_memory_replicated(job, &hooks);
}
