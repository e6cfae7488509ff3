#include "base/parallel.h"

#include <locale.h>
#include <pthread.h>
#include <sched.h>
#include <time.h>

#define WATCH_NS 150000000

struct pool {
    const struct dtp_parallel *job;
    locale_t locale; /* of the thread that runs the job, whose numbers have its decimal point */
    pthread_mutex_t lock;
    pthread_cond_t moved;  /* `taken` or `status` changed; nobody waits for that where nothing is taken */
    pthread_cond_t ended;  /* a worker has */
    uint64_t dealt, taken; /* items */
    unsigned running;
    enum dtp_status status;
};

struct worker {
    struct pool *pool;
    unsigned thread;
    pthread_t id;
};

unsigned dtp_parallel_threads(void)
{
    cpu_set_t cores;
    int count = sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
    return count < 1 ? 1 : count > (int)DTP_PARALLEL_MAX_THREADS ? DTP_PARALLEL_MAX_THREADS : (unsigned)count;
}

/* The next chunk, or false when there is none or the run ended. Under the lock. */
static bool deal(struct pool *pool, uint64_t *first, uint64_t *count)
{
    const struct dtp_parallel *job = pool->job;
    if (pool->status != DTP_OK || pool->dealt >= job->count)
        return false;
    *first = pool->dealt;
    *count = job->count - *first < job->chunk_items ? job->count - *first : job->chunk_items;
    pool->dealt += *count;
    return true;
}

/* Under the lock: waits for the chunk's turn and hands it over; where there is nothing to take, any turn is its own. */
static void hand_over(struct pool *pool, unsigned thread, uint64_t first, uint64_t count, enum dtp_status status)
{
    const struct dtp_parallel *job = pool->job;
    while (job->take && pool->taken != first && pool->status == DTP_OK)
        pthread_cond_wait(&pool->moved, &pool->lock);
    if (pool->status != DTP_OK)
        return;
    if (status == DTP_OK && job->take)
        status = job->take(job->context, thread, first, count);
    if (status == DTP_OK)
        pool->taken += count;
    pool->status = status;
    if (job->take)
        pthread_cond_broadcast(&pool->moved);
}

static void *run_worker(void *argument)
{
    struct worker *worker = argument;
    struct pool *pool = worker->pool;
    uint64_t first, count;
    uselocale(pool->locale);
    pthread_mutex_lock(&pool->lock);
    while (deal(pool, &first, &count)) {
        pthread_mutex_unlock(&pool->lock);
        enum dtp_status status = pool->job->work(pool->job->context, worker->thread, first, count);
        pthread_mutex_lock(&pool->lock);
        hand_over(pool, worker->thread, first, count, status);
    }
    pool->running--;
    pthread_cond_signal(&pool->ended);
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

/* Watches until all workers are done. Under the lock, which `watch` is called without. */
static void watch(struct pool *pool)
{
    const struct dtp_parallel *job = pool->job;
    while (pool->running > 0) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += WATCH_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        int woken = 0;
        while (pool->running > 0 && woken == 0)
            woken = pthread_cond_timedwait(&pool->ended, &pool->lock, &until);
        uint64_t taken = pool->taken;
        pthread_mutex_unlock(&pool->lock);
        bool go_on = !job->watch || job->watch(job->context, taken, job->count);
        pthread_mutex_lock(&pool->lock);
        if (!go_on && pool->status == DTP_OK && pool->taken < job->count) {
            pool->status = DTP_NO;
            pthread_cond_broadcast(&pool->moved);
        }
    }
}

enum dtp_status dtp_parallel_run(const struct dtp_parallel *job, uint64_t *done, struct dtp_faults *faults)
{
    struct pool pool = {.job = job, .locale = uselocale((locale_t)0), .dealt = job->first, .taken = job->first};
    struct worker workers[DTP_PARALLEL_MAX_THREADS];
    unsigned threads = job->threads ? job->threads : dtp_parallel_threads(), started = 0;
    pthread_mutex_init(&pool.lock, NULL);
    pthread_cond_init(&pool.moved, NULL);
    pthread_cond_init(&pool.ended, NULL);
    pthread_mutex_lock(&pool.lock);
    for (; started < threads && started < DTP_PARALLEL_MAX_THREADS; started++) {
        workers[started] = (struct worker){.pool = &pool, .thread = started};
        if (pthread_create(&workers[started].id, NULL, run_worker, &workers[started]) != 0)
            break; /* fewer do the same work */
        pool.running++;
    }
    if (started == 0)
        pool.status =
            dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no thread could be started; is there a limit on them?");
    watch(&pool);
    pthread_mutex_unlock(&pool.lock);
    for (unsigned i = 0; i < started; i++)
        pthread_join(workers[i].id, NULL);
    pthread_cond_destroy(&pool.moved);
    pthread_cond_destroy(&pool.ended);
    pthread_mutex_destroy(&pool.lock);
    if (done)
        *done = pool.taken;
    return pool.status;
}
