/* Peak memory under DeepSpeed's ZeRO-3: parameters are fetched tensor by tensor (zero3_fetch.h). */
#include "runtime/deepspeed/closed_form_deepspeed.h"
#include "plan/runtime_sizes.h"
#include "runtime/deepspeed/deepspeed_hooks.h"
#include "runtime/deepspeed/zeropp.h"

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
    dtp_instant_add(&instant, DTP_TERM_REDUCE_BUCKETS, 1, job->plan->deepspeed.reduce_bucket_size, job->bytes.grads);
    bool on_host = job->plan->offload == DTP_OFFLOAD_PARAMS || job->plan->offload == DTP_OFFLOAD_NVME;
    if (job->units.ranks > 1 || on_host)
        dtp_instant_add(&instant, DTP_TERM_PERSISTENT, 1, counts->persistent, job->bytes.compute);
    dtp_instant_add(&instant, DTP_TERM_LIVE, 1, live_elements, job->bytes.compute);
    dtp_instant_add(&instant, DTP_TERM_SECOND_COPY, 1, second_elements, job->bytes.compute);
    return instant;
}

static struct dtp_instant head_instant(const struct dtp_memory_job *job, const struct dtp_zero3_counts *counts,
                                       enum dtp_zero3_head_instant at)
{
    return zero3_instant(job, counts, counts->head[at].live, counts->head[at].second);
}

/* The head's weight made of int8, before its forward, when there are no logits yet, and before its backward. */
static void head_arrives(struct dtp_memory_job *job, const struct dtp_zero3_counts *counts)
{
    bool chunked = dtp_plan_loss(job->plan) == DTP_LOSS_CHUNKED;
    for (int backward = 0; backward < 2; backward++) {
        enum dtp_zero3_head_instant at = backward ? DTP_ZERO3_HEAD_ARRIVES_AGAIN : DTP_ZERO3_HEAD_ARRIVES;
        if (!counts->head[at].live)
            continue;
        struct dtp_instant instant = head_instant(job, counts, at);
        dtp_add_all_saved(job, &instant);
        if (backward)
            dtp_instant_add_tokens(job, &instant, DTP_TERM_LOGITS_GRADIENT, 1, job->activations.logits_gradient);
        add_made(job, &instant, DTP_TERM_HEAD_GRADIENT, backward && chunked ? 1 : 0, job->units.embedding);
        dtp_memory_consider(job, backward ? DTP_PHASE_EARLY_BACKWARD : DTP_PHASE_FORWARD_END, &instant);
    }
}

/* The head forward, the loss, the head backward: in chunks, its gradient is made with the loss. */
static void zero3_head(struct dtp_memory_job *job, const struct dtp_zero3_counts *counts)
{
    bool chunked = dtp_plan_loss(job->plan) == DTP_LOSS_CHUNKED;
    struct dtp_instant end = zero3_instant(job, counts, chunked ? 0 : counts->head[DTP_ZERO3_HEAD_FORWARD].live,
                                           counts->head[DTP_ZERO3_HEAD_FORWARD].second),
                       loss = head_instant(job, counts, chunked ? DTP_ZERO3_HEAD_FORWARD : DTP_ZERO3_HEAD_LOSS),
                       head = head_instant(job, counts, DTP_ZERO3_HEAD_BACKWARD);
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
    dtp_instant_add_tokens(job, &head, DTP_TERM_STREAM_GRADIENT, 1, chunked ? 0 : job->activations.norm_gradient);
    dtp_memory_consider(job, DTP_PHASE_FORWARD_END, &end);
    dtp_memory_consider(job, DTP_PHASE_LOSS, &loss);
    dtp_memory_consider(job, DTP_PHASE_EARLY_BACKWARD, &head);
    head_arrives(job, counts);
    if (!counts->head[DTP_ZERO3_HEAD_COPIED].live)
        return;
    struct dtp_instant copy = head_instant(job, counts, DTP_ZERO3_HEAD_COPIED);
    dtp_add_all_saved(job, &copy);
    dtp_instant_take_tokens(job, &copy, DTP_TERM_HEAD, job->activations.norm_gradient);
    add_made(job, &copy, DTP_TERM_HEAD_GRADIENT, 1, job->units.embedding);
    dtp_instant_add_tokens(job, &copy, DTP_TERM_STREAM_GRADIENT, 1,
                           chunked ? job->activations.logits_gradient : job->activations.norm_gradient);
    dtp_memory_consider(job, DTP_PHASE_EARLY_BACKWARD, &copy);
}

/* The worst moment of forward or of either half of backward (closed_form_deepspeed.c). */
static void zero3_moment(struct dtp_memory_job *job, enum dtp_phase phase, const struct dtp_zero3_moment *moment)
{
    const struct dtp_bucket_close *close = &moment->close;
    bool quantized = dtp_zeropp_reduces(job->plan, job->cluster);
    uint64_t g = job->bytes.grads;
    struct dtp_instant instant = zero3_instant(job, job->own, moment->live + moment->arriving, moment->second);
    dtp_add_saved(job, &instant, moment->layers);
    if (moment->place)
        dtp_add_block(job, &instant, moment->place);
    if (moment->stream)
        dtp_instant_add_tokens(job, &instant, DTP_TERM_STREAM_GRADIENT, 1, job->activations.gradient);
    dtp_instant_add(&instant, DTP_TERM_TIED_HEAD_GRADIENT, 1, moment->waiting, g);
    dtp_instant_add(&instant, DTP_TERM_BLOCK_GRADIENTS, 1, moment->gradient, g);
    dtp_instant_add(&instant, DTP_TERM_EMBEDDING_SUMS, 1, 1, moment->sums ? job->activations.embedding_backward : 0);
    dtp_instant_add(&instant, DTP_TERM_BUCKET_BY_RANK, 1, close->copied, quantized ? 1 : g);
    dtp_instant_add(&instant, DTP_TERM_NEXT_GRADIENT, 1, close->next, g);
    dtp_instant_add(&instant, DTP_TERM_FP32_GRADIENTS, 1, close->carried, 4);
    dtp_memory_consider(job, phase, &instant);
}

void dtp_memory_zero3(struct dtp_memory_job *job)
{
    const struct dtp_units *u = &job->units;
    const struct dtp_zero3_counts *counts = job->own;
    zero3_moment(job, DTP_PHASE_FORWARD_END, &counts->worst[DTP_ZERO3_IN_FORWARD]);
    zero3_head(job, counts);
    zero3_moment(job, DTP_PHASE_EARLY_BACKWARD, &counts->worst[DTP_ZERO3_IN_EARLY_BACKWARD]);
    zero3_moment(job, DTP_PHASE_LATE_BACKWARD, &counts->worst[DTP_ZERO3_IN_LATE_BACKWARD]);
    struct dtp_instant step = zero3_instant(job, counts, 0, counts->second_all);
    if (job->plan->offload == DTP_OFFLOAD_NONE && job->bytes.grads < 4)
        dtp_instant_add(&step, DTP_TERM_FP32_GRADIENTS, 1, smaller(u->total_shard, DTP_DEEPSPEED_SUB_GROUP), 4);
    dtp_memory_consider(job, DTP_PHASE_STEP, &step);
}
