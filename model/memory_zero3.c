/* Peak memory under DeepSpeed's ZeRO-3: parameters are fetched tensor by tensor (zero3_fetch.h). */
#include "closed_form_deepspeed.h"
#include "deepspeed.h"
#include "memory_instant.h"
#include "zeropp.h"

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void add_sharded_gradients(const struct dtp_memory_job *job, struct dtp_instant *instant)
{
    dtp_instant_add(instant, DTP_TERM_GRADS_SHARD, 1, job->state.grads_elements, job->bytes.grads);
}

/* Gradients as autograd makes them. */
static void add_made(const struct dtp_memory_job *job, struct dtp_instant *instant, enum dtp_memory_term term,
                     uint64_t count, uint64_t elements)
{
    dtp_instant_add(instant, term, count, elements, job->bytes.compute);
}

/* What stands all the time: the partition's gradients, the bucket, tensors that persist; and `live_elements`, with
 * second copies of what has been released. */
static struct dtp_instant zero3_instant(const struct dtp_memory_job *job, const struct dtp_zero3_counts *counts,
                                        uint64_t live_elements, uint64_t second_elements)
{
    struct dtp_instant instant = job->at_rest;
    add_sharded_gradients(job, &instant);
    dtp_instant_add(&instant, DTP_TERM_REDUCE_BUCKETS, 1, job->plan->reduce_bucket_size, job->bytes.grads);
    bool on_host = job->plan->offload == DTP_OFFLOAD_PARAMS || job->plan->offload == DTP_OFFLOAD_NVME;
    if (job->units.ranks > 1 || on_host)
        dtp_instant_add(&instant, DTP_TERM_PERSISTENT, 1, counts->persistent, job->bytes.compute);
    dtp_instant_add(&instant, DTP_TERM_LIVE, 1, live_elements, job->bytes.compute);
    dtp_instant_add(&instant, DTP_TERM_SECOND_COPY, 1, second_elements, job->bytes.compute);
    return instant;
}

/* A tied head's gradient waits for the embedding's in autograd. */
static void zero3_layer(struct dtp_memory_job *job, enum dtp_phase phase, struct dtp_instant instant, uint64_t layer)
{
    struct dtp_place_weights bytes = {.tokens = job->tokens,
                                      .current = {0, (int64_t)job->bytes.grads, (int64_t)job->bytes.grads}};
    const struct dtp_block_place *worst = dtp_block_worst(&job->places, &bytes);
    dtp_add_saved(job, &instant, layer);
    dtp_add_block(job, &instant, worst);
    dtp_instant_add(&instant, DTP_TERM_BLOCK_GRADIENTS, 1, worst->current, job->bytes.grads);
    dtp_instant_add_tokens(job, &instant, DTP_TERM_STREAM_GRADIENT, 1, job->activations.gradient);
    if (!job->units.head)
        dtp_instant_add(&instant, DTP_TERM_TIED_HEAD_GRADIENT, 1, job->units.embedding, job->bytes.grads);
    dtp_memory_consider(job, phase, &instant);
}

/* Of the last micro-step: in it all that were released in one before have their copy. */
static uint64_t second_after_forward(const struct dtp_memory_job *job, const struct dtp_zero3_counts *counts)
{
    return job->plan->accumulate > 1 ? counts->second_all : counts->second_forward;
}

/* The head forward, the loss, the head backward: in chunks, its gradient is made with the loss. */
static void zero3_head(struct dtp_memory_job *job, const struct dtp_zero3_counts *counts)
{
    bool chunked = dtp_plan_loss(job->plan) == DTP_LOSS_CHUNKED;
    uint64_t forward = second_after_forward(job, counts);
    struct dtp_instant end = zero3_instant(job, counts, chunked ? 0 : counts->live_head, forward),
                       loss = zero3_instant(job, counts, chunked ? counts->live_head : counts->live_loss, forward),
                       head = zero3_instant(job, counts, counts->live_head_backward, forward);
    dtp_add_all_saved(job, &end);
    dtp_add_all_saved(job, &loss);
    dtp_add_all_saved(job, &head);
    if (!chunked)
        dtp_instant_add_tokens(job, &end, DTP_TERM_LOGITS, 1, job->activations.logits);
    dtp_instant_add_tokens(job, &loss, DTP_TERM_LOSS, 1, job->activations.loss);
    if (chunked)
        add_made(job, &loss, DTP_TERM_HEAD_GRADIENT, 1, job->units.embedding);
    dtp_instant_add_tokens(job, &head, DTP_TERM_LOGITS_GRADIENT, 1, job->activations.logits_gradient);
    add_made(job, &head, DTP_TERM_HEAD_GRADIENT, 1, job->units.embedding);
    dtp_instant_add_tokens(job, &head, DTP_TERM_STREAM_GRADIENT, 1, job->activations.gradient);
    dtp_memory_consider(job, DTP_PHASE_FORWARD_END, &end);
    dtp_memory_consider(job, DTP_PHASE_LOSS, &loss);
    dtp_memory_consider(job, DTP_PHASE_EARLY_BACKWARD, &head);
}

/* The worst bucket leaves in the middle of some layer's backward, the last with the embedding's gradient in it. */
static void zero3_buckets(struct dtp_memory_job *job, const struct dtp_zero3_counts *counts)
{
    const struct dtp_units *u = &job->units;
    uint64_t g = job->bytes.grads;
    struct dtp_deepspeed_buckets buckets;
    bool all_carried = job->plan->offload == DTP_OFFLOAD_NVME && g < 4;
    bool copied = !dtp_zeropp_reduces(job->plan, job->cluster); /* else tensor by tensor, in a fourth of the bytes */
    struct dtp_bucket_weights heaviest = {.bucket = (copied ? g : 0) + (all_carried ? 4 / u->ranks : 0),
                                          .next = g,
                                          .ranks = u->ranks,
                                          .live = job->bytes.compute,
                                          .live_last = counts->live_late,
                                          .live_layer = u->layer,
                                          .live_most = counts->live_early};
    dtp_memory_buckets(job, &heaviest, &buckets);
    struct dtp_instant worst = zero3_instant(job, counts, buckets.worst_live, counts->second_all),
                       last = zero3_instant(job, counts, 0, counts->second_all);
    dtp_add_saved_at_bucket(job, &buckets, &worst);
    if (buckets.count > 1) {
        dtp_instant_add(&worst, DTP_TERM_BUCKET_BY_RANK, 1, copied ? buckets.worst_copied : 0, g);
        dtp_instant_add(&worst, DTP_TERM_NEXT_GRADIENT, 1, buckets.worst_next, g);
        dtp_add_carried(job, dtp_divide_up(buckets.worst, u->ranks), &worst);
        if (!u->head)
            dtp_instant_add(&worst, DTP_TERM_TIED_HEAD_GRADIENT, 1, u->embedding, g);
        dtp_memory_consider(job, DTP_PHASE_LATE_BACKWARD, &worst);
    }
    dtp_add_carried(job, dtp_divide_up(buckets.last, u->ranks), &last);
    bool oversized = u->embedding > job->plan->reduce_bucket_size;
    if (oversized)
        dtp_instant_add(&last, DTP_TERM_EMBEDDING_GRADIENT, 1, u->embedding, g);
    if (!oversized || u->embedding % u->ranks)
        dtp_instant_add(&last, DTP_TERM_BUCKET_BY_RANK, 1, copied ? buckets.last : u->embedding / 2, g);
    dtp_memory_consider(job, DTP_PHASE_LATE_BACKWARD, &last);
}

void dtp_memory_zero3(struct dtp_memory_job *job)
{
    const struct dtp_units *u = &job->units;
    const struct dtp_zero3_counts *counts = job->zero3;
    zero3_head(job, counts);
    zero3_layer(job, DTP_PHASE_EARLY_BACKWARD,
                zero3_instant(job, counts, counts->live_early, second_after_forward(job, counts)),
                job->transformer->layers - 1);
    zero3_layer(job, DTP_PHASE_LATE_BACKWARD, zero3_instant(job, counts, counts->live_late, counts->second_all), 0);
    zero3_buckets(job, counts);
    struct dtp_instant embedding = zero3_instant(job, counts, 0, counts->second_all), step = embedding,
                       forward = zero3_instant(job, counts, counts->live_forward, 0);
    dtp_memory_consider(job, DTP_PHASE_FORWARD_END, &forward); /* a large fetch stands twice while it is copied out */
    dtp_instant_add(&embedding, DTP_TERM_EMBEDDING_GRADIENT, u->head ? 1 : 2, u->embedding, job->bytes.grads);
    dtp_add_embedding_backward(job, &embedding);
    dtp_memory_consider(job, DTP_PHASE_LATE_BACKWARD, &embedding);
    if (job->plan->offload == DTP_OFFLOAD_NONE && job->bytes.grads < 4)
        dtp_instant_add(&step, DTP_TERM_FP32_GRADIENTS, 1, smaller(u->total_shard, DTP_DEEPSPEED_SUB_GROUP), 4);
    dtp_memory_consider(job, DTP_PHASE_STEP, &step);
}
