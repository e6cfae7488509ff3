#include "train/batches.h"

#include "runtime/dtplan/batch_layout.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define RING 2 /* steps: one in use, one being made */

struct dtp_batches {
    struct dtp_batch_job job;
    struct dtp_device *device;
    struct dtp_batch_layout layout;
    uint64_t rows, own_tokens; /* of a batch; of each of its sequences */
    char *ring;                /* RING steps of `accumulate` batches, in host memory of the device */
    int32_t *sample, *scratch; /* of the thread */

    pthread_t thread;
    bool running;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t made, taken, released; /* steps, since the start */
    bool stop;
    enum dtp_status status; /* of the thread; its fault stands in `said` */
    struct dtp_faults said;
};

uint64_t dtp_batch_step_samples(const struct dtp_batch_job *job)
{
    return (uint64_t)job->accumulate * job->ranks * job->micro_batch;
}

/* Counting sort by token: stable, so equal tokens keep the order of their rows. */
void dtp_batch_index(const int32_t *tokens, uint64_t rows, uint64_t vocab, int32_t *order, int32_t *starts,
                     int32_t *distinct, int32_t *scratch)
{
    int32_t count = 0, place = 0;
    memset(scratch, 0, vocab * sizeof *scratch);
    for (uint64_t i = 0; i < rows; i++)
        scratch[tokens[i]]++;
    for (uint64_t token = 0; token < vocab; token++) {
        int32_t own = scratch[token];
        scratch[token] = place;
        if (own > 0)
            starts[count++] = place;
        place += own;
    }
    starts[count] = place;
    *distinct = count;
    for (uint64_t i = 0; i < rows; i++)
        order[scratch[tokens[i]]++] = (int32_t)i;
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */

static char *slot(const struct dtp_batches *b, uint64_t step)
{
    return b->ring + step % RING * b->job.accumulate * b->layout.bytes;
}

/* Copies this rank's pieces of a sample, and as targets the token that follows each of theirs. */
static void take_own(const struct dtp_batch_job *job, const int32_t *sample, int32_t *tokens, int32_t *targets)
{
    const uint64_t own = job->sequence / job->context.ranks, piece = own / job->context.pieces;
    for (uint32_t i = 0; i < job->context.pieces; i++) {
        uint64_t from = dtp_context_position(&job->context, own, i * piece);
        memcpy(tokens + i * piece, sample + from, piece * sizeof *tokens);
        memcpy(targets + i * piece, sample + from + 1, piece * sizeof *targets);
    }
}

static enum dtp_status make_batch(struct dtp_batches *b, uint64_t step, uint32_t micro_step, char *batch)
{
    const struct dtp_batch_job *job = &b->job;
    int32_t *tokens = (int32_t *)(batch + b->layout.tokens_offset_bytes);
    int32_t *targets = (int32_t *)(batch + b->layout.targets_offset_bytes);
    uint64_t slice = (step * job->accumulate + micro_step) * job->ranks + job->rank;
    for (uint64_t i = 0; i < job->micro_batch; i++) {
        enum dtp_status status = dtp_token_source_read(job->source, slice * job->micro_batch + i, b->sample, &b->said);
        if (status != DTP_OK)
            return status;
        take_own(job, b->sample, tokens + i * b->own_tokens, targets + i * b->own_tokens);
    }
    dtp_batch_index(tokens, b->rows, job->vocab, (int32_t *)(batch + b->layout.order_offset_bytes),
                    (int32_t *)(batch + b->layout.starts_offset_bytes),
                    (int32_t *)(batch + b->layout.distinct_offset_bytes), b->scratch);
    return DTP_OK;
}

static enum dtp_status make_step(struct dtp_batches *b, uint64_t step)
{
    char *batch = slot(b, step);
    enum dtp_status status = DTP_OK;
    for (uint32_t m = 0; m < b->job.accumulate && status == DTP_OK; m++)
        status = make_batch(b, b->job.first_step + step, m, batch + m * b->layout.bytes);
    return status;
}

static void *work(void *argument)
{
    struct dtp_batches *b = argument;
    for (uint64_t step = 0;; step++) {
        pthread_mutex_lock(&b->lock);
        while (!b->stop && step >= b->released + RING)
            pthread_cond_wait(&b->changed, &b->lock);
        bool stop = b->stop;
        pthread_mutex_unlock(&b->lock);
        if (stop)
            return NULL;
        enum dtp_status status = make_step(b, step);
        pthread_mutex_lock(&b->lock);
        b->made = step + 1;
        b->status = status;
        pthread_cond_broadcast(&b->changed);
        pthread_mutex_unlock(&b->lock);
        if (status != DTP_OK)
            return NULL;
    }
}

/* ---- its user ---------------------------------------------------------------------------------------------------- */

static enum dtp_status prepare(struct dtp_batches *b, struct dtp_faults *faults)
{
    void *ring = NULL;
    enum dtp_status status =
        b->device->verbs->allocate_host(b->device, RING * b->job.accumulate * b->layout.bytes, &ring, faults);
    b->ring = ring;
    if (status != DTP_OK)
        return status;
    memset(ring, 0, RING * b->job.accumulate * b->layout.bytes);
    b->sample = malloc((b->job.sequence + 1) * sizeof *b->sample);
    b->scratch = malloc(b->job.vocab * sizeof *b->scratch);
    if (!b->sample || !b->scratch)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    if (pthread_create(&b->thread, NULL, work, b) != 0)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no thread can be started to read training data");
    b->running = true;
    return DTP_OK;
}

enum dtp_status dtp_batches_start(const struct dtp_batch_job *job, struct dtp_device *device, struct dtp_batches **out,
                                  struct dtp_faults *faults)
{
    struct dtp_batches *b = calloc(1, sizeof *b);
    *out = NULL;
    if (!b)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    b->job = *job;
    b->device = device;
    if (!b->job.context.ranks)
        b->job.context = (struct dtp_context_place){.ranks = 1, .pieces = 1};
    b->own_tokens = job->sequence / b->job.context.ranks;
    b->rows = job->micro_batch * b->own_tokens;
    b->layout = dtp_batch_layout_of(b->rows);
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->changed, NULL);
    if (b->rows >= INT32_MAX || job->vocab >= INT32_MAX) {
        dtp_batches_stop(b);
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "a micro-batch of 2^31 tokens or more; take a smaller one");
    }
    enum dtp_status status = prepare(b, faults);
    if (status != DTP_OK)
        dtp_batches_stop(b);
    else
        *out = b;
    return status;
}

enum dtp_status dtp_batches_take(struct dtp_batches *b, const void **out, struct dtp_faults *faults)
{
    pthread_mutex_lock(&b->lock);
    b->released = b->taken;
    pthread_cond_broadcast(&b->changed);
    while (b->made <= b->taken && b->status == DTP_OK)
        pthread_cond_wait(&b->changed, &b->lock);
    bool refused = b->status != DTP_OK && b->made <= b->taken + 1;
    *out = refused ? NULL : slot(b, b->taken);
    b->taken += !refused;
    pthread_mutex_unlock(&b->lock);
    return refused ? dtp_fault(faults, b->status, NULL, 0, "%s", b->said.text[0]) : DTP_OK;
}

void dtp_batches_stop(struct dtp_batches *b)
{
    if (!b)
        return;
    if (b->running) {
        pthread_mutex_lock(&b->lock);
        b->stop = true;
        pthread_cond_broadcast(&b->changed);
        pthread_mutex_unlock(&b->lock);
        pthread_join(b->thread, NULL);
    }
    if (b->ring)
        b->device->verbs->release_host(b->device, b->ring);
    pthread_cond_destroy(&b->changed);
    pthread_mutex_destroy(&b->lock);
    free(b->sample);
    free(b->scratch);
    free(b);
}
