/* Independent items on all cores, their results taken in order.
 *
 * Items 0 .. count-1 are dealt in chunks of consecutive ones to threads. `work` computes a chunk with a state of its
 * thread, `take` then receives the chunks one at a time, in order, under a lock: whatever the number of threads, the
 * outcome is the same. A thread whose chunk is not the next waits, so that memory stays at one chunk a thread. Where
 * there is nothing to take no thread waits for another. */
#ifndef DTP_PARALLEL_H
#define DTP_PARALLEL_H

#include "base/status.h"

#include <stdint.h>

#define DTP_PARALLEL_MAX_THREADS 256u

struct dtp_parallel {
    uint64_t first, count; /* items first .. count-1; those before are done */
    uint32_t chunk_items;
    unsigned threads; /* 0: as many as this process may use cores */
    void *context;
    /* Both run on a thread numbered 0 .. threads-1; anything but DTP_OK ends the run. */
    enum dtp_status (*work)(void *context, unsigned thread, uint64_t first, uint64_t count);
    enum dtp_status (*take)(void *context, unsigned thread, uint64_t first, uint64_t count); /* NULL: nothing to take */
    /* Called by the caller's own thread a few times a second, and at the end; NULL: never. False ends the run. */
    bool (*watch)(void *context, uint64_t done, uint64_t count);
};

/* Cores this process may run on, at most DTP_PARALLEL_MAX_THREADS. */
unsigned dtp_parallel_threads(void);
/* The status of the first chunk that failed; DTP_NO when `watch` ended the run. `done` (may be NULL) gets how many
 * items were taken, counted from 0: all those before it are complete. Without `take` it is how many were worked on. */
enum dtp_status dtp_parallel_run(const struct dtp_parallel *job, uint64_t *done, struct dtp_faults *faults);

#endif
