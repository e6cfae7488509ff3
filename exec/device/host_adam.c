#include "device/host_adam.h"

#include "device/host_adam_update.h"

#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PIECE_ELEMENTS (UINT64_C(1) << 16) /* whole pages; some 2 MB to move, a tenth of a millisecond */
#define MAX_THREADS 256
#define ENOUGH_TO_SPARE 8 /* cores: half of them saturate the memory that they share */
#define NO_CORE UINT_MAX

struct dtp_host_adam {
    pthread_t thread[MAX_THREADS];
    struct worker {
        struct dtp_host_adam *adam;
        unsigned core; /* NO_CORE: wherever */
    } worker[MAX_THREADS];
    uint32_t threads;
    pthread_mutex_t mutex;
    pthread_cond_t begin, done;
    uint64_t turn;
    uint32_t busy;
    bool ends;
    const struct dtp_adamw_args *args; /* of this turn; NULL: touch */
    unsigned char *memory;
    uint64_t count;            /* elements of args, bytes / 4 of memory */
    atomic_uint_fast64_t next; /* of them, not yet taken */
};

/* ---- threads ----------------------------------------------------------------------------------------------------- */

/* Whoever is free takes the next piece: a thread that the system has taken its core from for a while delays only its
 * own. */
static void work(struct dtp_host_adam *adam)
{
    for (;;) {
        uint64_t begin = atomic_fetch_add(&adam->next, PIECE_ELEMENTS), end = begin + PIECE_ELEMENTS;
        if (begin >= adam->count)
            return;
        end = end < adam->count ? end : adam->count;
        if (adam->args)
            dtp_host_adam_update(adam->args, begin, end);
        else
            memset(adam->memory + 4 * begin, 0, 4 * (end - begin));
    }
}

static void pin(unsigned core)
{
    cpu_set_t one;
    if (core == NO_CORE)
        return;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    sched_setaffinity(0, sizeof one, &one); /* refused: slower, not wrong */
}

static void *serve(void *argument)
{
    struct worker *w = argument;
    struct dtp_host_adam *adam = w->adam;
    uint64_t seen = 0;
    pin(w->core);
    pthread_mutex_lock(&adam->mutex);
    for (;;) {
        while (adam->turn == seen && !adam->ends)
            pthread_cond_wait(&adam->begin, &adam->mutex);
        if (adam->ends)
            break;
        seen = adam->turn;
        pthread_mutex_unlock(&adam->mutex);
        work(adam);
        pthread_mutex_lock(&adam->mutex);
        if (--adam->busy == 0)
            pthread_cond_signal(&adam->done);
    }
    pthread_mutex_unlock(&adam->mutex);
    return NULL;
}

static void run_turn(struct dtp_host_adam *adam)
{
    pthread_mutex_lock(&adam->mutex);
    adam->busy = adam->threads;
    atomic_store(&adam->next, 0);
    adam->turn++;
    pthread_cond_broadcast(&adam->begin);
    while (adam->busy > 0)
        pthread_cond_wait(&adam->done, &adam->mutex);
    pthread_mutex_unlock(&adam->mutex);
}

/* Cores of this rank's part, in their order, without those left to other threads; returns how many. */
static uint32_t list_cores(const struct dtp_host_adam_options *options, unsigned *core)
{
    cpu_set_t allowed;
    unsigned all[CPU_SETSIZE];
    uint32_t count = 0, parts = options->parts ? options->parts : 1;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return 0;
    for (unsigned i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &allowed))
            all[count++] = i;
    uint32_t begin = (uint32_t)((uint64_t)count * options->index / parts);
    uint32_t end = (uint32_t)((uint64_t)count * (options->index + 1) / parts);
    if (begin == end || options->index >= parts) /* more ranks than cores: they share */
        return 0;
    count = end - begin;
    if (count >= ENOUGH_TO_SPARE && options->spare < count)
        begin += options->spare, count -= options->spare;
    for (uint32_t i = 0; i < count && i < MAX_THREADS; i++)
        core[i] = all[begin + i];
    return count < MAX_THREADS ? count : MAX_THREADS;
}

enum dtp_status dtp_host_adam_create(const struct dtp_host_adam_options *options, struct dtp_host_adam **out,
                                     struct dtp_faults *faults)
{
    unsigned core[MAX_THREADS];
    uint32_t cores = list_cores(options, core), wanted = options->threads ? options->threads : cores ? cores : 1;
    struct dtp_host_adam *adam = *out = calloc(1, sizeof *adam);
    if (!adam)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no memory for the host's optimizer");
    pthread_mutex_init(&adam->mutex, NULL);
    pthread_cond_init(&adam->begin, NULL);
    pthread_cond_init(&adam->done, NULL);
    wanted = wanted < MAX_THREADS ? wanted : MAX_THREADS;
    for (; adam->threads < wanted; adam->threads++) {
        struct worker *w = &adam->worker[adam->threads];
        *w = (struct worker){adam, wanted <= cores ? core[adam->threads] : NO_CORE};
        if (pthread_create(&adam->thread[adam->threads], NULL, serve, w) != 0)
            break;
    }
    if (adam->threads > 0)
        return DTP_OK;
    dtp_host_adam_destroy(adam);
    *out = NULL;
    return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no thread for the host's optimizer");
}

void dtp_host_adam_destroy(struct dtp_host_adam *adam)
{
    if (!adam)
        return;
    pthread_mutex_lock(&adam->mutex);
    adam->ends = true;
    pthread_cond_broadcast(&adam->begin);
    pthread_mutex_unlock(&adam->mutex);
    for (uint32_t i = 0; i < adam->threads; i++)
        pthread_join(adam->thread[i], NULL);
    pthread_cond_destroy(&adam->begin);
    pthread_cond_destroy(&adam->done);
    pthread_mutex_destroy(&adam->mutex);
    free(adam);
}

uint32_t dtp_host_adam_threads(const struct dtp_host_adam *adam)
{
    return adam->threads;
}

void dtp_host_adam_touch(struct dtp_host_adam *adam, void *memory, uint64_t bytes)
{
    adam->args = NULL;
    adam->memory = memory;
    adam->count = bytes / 4;
    run_turn(adam);
    memset(adam->memory + 4 * adam->count, 0, bytes % 4);
}

void dtp_host_adam_step(struct dtp_host_adam *adam, const struct dtp_adamw_args *args)
{
    if (args->scalars->skip)
        return;
    adam->args = args;
    adam->count = args->count;
    run_turn(adam);
}
