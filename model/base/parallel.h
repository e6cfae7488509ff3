/* Independent items on all cores, their results taken in order.
 *
 * Items 0 .. count-1 are dealt in chunks of consecutive ones to threads. `work` computes a chunk with a state of its
 * own, `take` then receives the chunks one at a time, in order, under a lock: whatever the number of threads, the
 * outcome is the same. A thread whose chunk is not the next leaves it and goes on, until each has left one on average:
 * so chunks may take different times, and memory stays at two a thread. Where there is nothing to take no thread waits
 * for another. */
#ifndef DTP_PARALLEL_H
#define DTP_PARALLEL_H

#include "base/status.h"

#include <stdint.h>

#define DTP_PARALLEL_MAX_THREADS 256u
#define DTP_PARALLEL_PLACES(threads) (2 * (threads))

struct dtp_parallel {
    uint64_t first, count; /* items first .. count-1; those before are done */
    uint32_t chunk_items;
    unsigned threads; /* 0: as many as this process may use cores */
    void *context;
    /* A chunk is worked on and taken with the state of one place; anything but DTP_OK ends the run. With `take` there
     * are DTP_PARALLEL_PLACES(threads) of them, numbered from 0 on; where it is NULL and nothing is to take, `threads`.
     */
    enum dtp_status (*work)(void *context, unsigned place, uint64_t first, uint64_t count);
    enum dtp_status (*take)(void *context, unsigned place, uint64_t first, uint64_t count);
    /* Called by the caller's own thread a few times a second, and at the end; NULL: never. False ends the run. */
    bool (*watch)(void *context, uint64_t done, uint64_t count);
};

/* Cores this process may run on, at most DTP_PARALLEL_MAX_THREADS. */
unsigned dtp_parallel_threads(void);
/* The status of the first chunk that failed; DTP_NO when `watch` ended the run. `done` (may be NULL) gets how many
 * items were taken, counted from 0: all those before it are complete. Without `take` it is how many were worked on. */
enum dtp_status dtp_parallel_run(const struct dtp_parallel *job, uint64_t *done, struct dtp_faults *faults);

#endif
