#include "base/parallel.h"

#include <locale.h>
#include <pthread.h>
#include <sched.h>
#include <time.h>

#define WATCH_NS 150000000

/* A chunk from when it is dealt until it is taken, in one of the places that there are states for. */
struct chunk {
    uint64_t first, count;
    enum dtp_status status; /* of its work */
    enum { PLACE_FREE, PLACE_WORKED_ON, PLACE_DONE } is;
};

struct pool {
    const struct dtp_parallel *job;
    locale_t locale; /* of the thread that runs the job, whose numbers have its decimal point */
    pthread_mutex_t lock;
    pthread_cond_t moved; /* a place became free, or `status` changed */
    pthread_cond_t ended; /* a worker has */
    struct chunk places[DTP_PARALLEL_PLACES(DTP_PARALLEL_MAX_THREADS)];
    unsigned place_count;
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

/* A free place: the thread's own where nothing is taken in turn. Under the lock, which is given up while there is none.
 */
static struct chunk *find_place(struct pool *pool, unsigned thread)
{
    if (!pool->job->take)
        return &pool->places[thread];
    while (pool->status == DTP_OK) {
        for (unsigned i = 0; i < pool->place_count; i++)
            if (pool->places[i].is == PLACE_FREE)
                return &pool->places[i];
        pthread_cond_wait(&pool->moved, &pool->lock);
    }
    return NULL;
}

/* The next chunk in a place of its own, or NULL when there is none or the run ended. Under the lock. */
static struct chunk *deal(struct pool *pool, unsigned thread)
{
    const struct dtp_parallel *job = pool->job;
    struct chunk *chunk = find_place(pool, thread);
    if (!chunk || pool->status != DTP_OK || pool->dealt >= job->count)
        return NULL;
    uint64_t left = job->count - pool->dealt;
    *chunk = (struct chunk){
        .first = pool->dealt, .count = left < job->chunk_items ? left : job->chunk_items, .is = PLACE_WORKED_ON};
    pool->dealt += chunk->count;
    return chunk;
}

/* The chunk whose turn it is, where it is done. */
static struct chunk *find_next(struct pool *pool)
{
    for (unsigned i = 0; i < pool->place_count; i++)
        if (pool->places[i].is == PLACE_DONE && pool->places[i].first == pool->taken)
            return &pool->places[i];
    return NULL;
}

/* Under the lock: hands over what is done and in turn. Where there is nothing to take that is the chunk itself. */
static void hand_over(struct pool *pool, struct chunk *done)
{
    const struct dtp_parallel *job = pool->job;
    done->is = PLACE_DONE;
    for (struct chunk *next = job->take ? find_next(pool) : done; next && pool->status == DTP_OK;
         next = job->take ? find_next(pool) : NULL) {
        enum dtp_status status = next->status;
        if (status == DTP_OK && job->take)
            status = job->take(job->context, (unsigned)(next - pool->places), next->first, next->count);
        if (status == DTP_OK)
            pool->taken += next->count;
        pool->status = status;
        next->is = PLACE_FREE;
    }
    if (job->take)
        pthread_cond_broadcast(&pool->moved);
}

static void *run_worker(void *argument)
{
    struct worker *worker = argument;
    struct pool *pool = worker->pool;
    uselocale(pool->locale);
    pthread_mutex_lock(&pool->lock);
    for (struct chunk *chunk = deal(pool, worker->thread); chunk; chunk = deal(pool, worker->thread)) {
        pthread_mutex_unlock(&pool->lock);
        chunk->status =
            pool->job->work(pool->job->context, (unsigned)(chunk - pool->places), chunk->first, chunk->count);
        pthread_mutex_lock(&pool->lock);
        hand_over(pool, chunk);
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
    threads = threads < DTP_PARALLEL_MAX_THREADS ? threads : DTP_PARALLEL_MAX_THREADS;
    pool.place_count = DTP_PARALLEL_PLACES(threads);
    pthread_mutex_init(&pool.lock, NULL);
    pthread_cond_init(&pool.moved, NULL);
    pthread_cond_init(&pool.ended, NULL);
    pthread_mutex_lock(&pool.lock);
    for (; started < threads; started++) {
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
