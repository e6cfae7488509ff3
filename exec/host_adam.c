#include "host_adam.h"

#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TILE 2048          /* elements: five rows of fp32 stay in a 48 KiB L1 */
#define PAGE_ELEMENTS 1024 /* shares begin at whole pages of fp32 */
#define MAX_THREADS 256
#define NO_CORE UINT_MAX

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define FOR_THIS_PROCESSOR __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_THIS_PROCESSOR
#endif

struct dtp_host_adam {
    pthread_t thread[MAX_THREADS];
    struct worker {
        struct dtp_host_adam *adam;
        uint32_t index;
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
    uint64_t count; /* elements of args, bytes / 4 of memory */
};

/* ---- the update ---------------------------------------------------------------------------------------------------
 */

/* Numbers of a step, the same for all elements. */
struct factors {
    float beta1, beta2, clip, rate1, root_correction2, epsilon, keep; /* keep: 1 - rate * decay, or 1 */
};

FOR_THIS_PROCESSOR static void widen(const uint16_t *restrict values, float *restrict out, int count)
{
    for (int i = 0; i < count; i++) {
        uint32_t bits = (uint32_t)values[i] << 16;
        memcpy(&out[i], &bits, 4);
    }
}

/* To nearest, ties to even; NaN stays NaN. */
FOR_THIS_PROCESSOR static void narrow(const float *restrict values, uint16_t *restrict out, int count)
{
    for (int i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], 4);
        uint32_t rounded = (bits + 0x7FFFu + (bits >> 16 & 1)) >> 16, quiet = bits >> 16 | 0x40u;
        out[i] = (uint16_t)((bits & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded);
    }
}

/* weight keep - rate (m / correction1) / (sqrt(v / correction2) + epsilon), Loshchilov & Hutter 2019, algorithm 2. */
FOR_THIS_PROCESSOR static void update(const struct factors *restrict f, const float *restrict gradient,
                                      float *restrict master, float *restrict moment1, float *restrict moment2,
                                      int count)
{
    for (int i = 0; i < count; i++) {
        float g = gradient[i] * f->clip;
        float m = f->beta1 * moment1[i] + (1 - f->beta1) * g;
        float v = f->beta2 * moment2[i] + (1 - f->beta2) * g * g;
        moment1[i] = m;
        moment2[i] = v;
        master[i] = master[i] * f->keep - f->rate1 * m / (sqrtf(v) * f->root_correction2 + f->epsilon);
    }
}

static void update_tile(const struct dtp_adamw_args *a, const struct factors *f, uint64_t at, int count)
{
    float wide[TILE];
    const float *gradient = wide;
    if (a->gradient_element == DTP_ELEMENT_BF16)
        widen((const uint16_t *)a->gradient + at, wide, count);
    else
        gradient = (const float *)a->gradient + at;
    update(f, gradient, a->master + at, (float *)a->moment1 + at, (float *)a->moment2 + at, count);
    if (a->weight_element == DTP_ELEMENT_BF16)
        narrow(a->master + at, (uint16_t *)a->weights + at, count);
    else if ((float *)a->weights != a->master)
        memcpy((float *)a->weights + at, a->master + at, (size_t)count * sizeof(float));
}

/* The next element from `at` on where decay begins or ends; whether it applies at `at`. */
static uint64_t next_border(const struct dtp_adamw_args *a, uint64_t at, bool *decays)
{
    uint64_t next = a->count;
    *decays = false;
    for (uint32_t r = 0; r < a->range_count; r++) {
        bool inside = at >= a->range_begin[r] && at < a->range_end[r];
        *decays |= inside;
        uint64_t border = inside ? a->range_end[r] : a->range_begin[r];
        if (border > at && border < next)
            next = border;
    }
    return next;
}

static void update_share(const struct dtp_adamw_args *a, uint64_t at, uint64_t end)
{
    const struct dtp_step_scalars *s = a->scalars;
    while (at < end) {
        bool decays;
        uint64_t border = next_border(a, at, &decays);
        struct factors f = {.beta1 = a->beta1,
                            .beta2 = a->beta2,
                            .clip = s->clip_scale,
                            .rate1 = s->learning_rate / s->correction1,
                            .root_correction2 = 1 / sqrtf(s->correction2),
                            .epsilon = a->epsilon,
                            .keep = decays ? 1 - s->learning_rate * a->decay : 1};
        for (uint64_t stop = border < end ? border : end; at < stop;) {
            int count = stop - at < TILE ? (int)(stop - at) : TILE;
            update_tile(a, &f, at, count);
            at += (uint64_t)count;
        }
    }
}

/* ---- threads ------------------------------------------------------------------------------------------------------
 */

static void share_of(const struct dtp_host_adam *adam, uint32_t index, uint64_t *begin, uint64_t *end)
{
    uint64_t pages = (adam->count + PAGE_ELEMENTS - 1) / PAGE_ELEMENTS;
    *begin = pages * index / adam->threads * PAGE_ELEMENTS;
    *end = pages * (index + 1) / adam->threads * PAGE_ELEMENTS;
    *end = *end < adam->count ? *end : adam->count;
}

static void work(struct dtp_host_adam *adam, uint32_t index)
{
    uint64_t begin, end;
    share_of(adam, index, &begin, &end);
    if (adam->args && begin < end)
        update_share(adam->args, begin, end);
    else if (begin < end)
        memset(adam->memory + 4 * begin, 0, 4 * (end - begin));
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
        work(adam, w->index);
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
    adam->turn++;
    pthread_cond_broadcast(&adam->begin);
    while (adam->busy > 0)
        pthread_cond_wait(&adam->done, &adam->mutex);
    pthread_mutex_unlock(&adam->mutex);
}

/* Cores of this rank's part, in their order; returns how many. */
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
    for (uint32_t i = begin; i < end && i - begin < MAX_THREADS; i++)
        core[i - begin] = all[i];
    return end - begin < MAX_THREADS ? end - begin : MAX_THREADS;
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
        *w = (struct worker){adam, adam->threads, wanted <= cores ? core[adam->threads] : NO_CORE};
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

int dtp_host_adam_step(struct dtp_host_adam *adam, const struct dtp_adamw_args *args)
{
    if (!args->master || args->moment_element != DTP_ELEMENT_FP32 || args->stochastic_rounding)
        return -1;
    if (args->scalars->skip)
        return 0;
    adam->args = args;
    adam->count = args->count;
    run_turn(adam);
    return 0;
}
