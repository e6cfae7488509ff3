/* A bump allocator: many small pieces of host memory that are freed together.
 *
 * Zero-initialise to start; every piece is aligned to 16 bytes and lives until dtp_host_arena_release. Functions with
 * many work arrays take them all from one arena, so that each has one way out. */
#ifndef DTP_HOST_ARENA_H
#define DTP_HOST_ARENA_H

#include <stddef.h>

struct dtp_host_chunk; /* opaque */
struct dtp_host_arena {
    struct dtp_host_chunk *chunks;
    char *next;
    size_t left_bytes, total_bytes; /* of the open chunk, of all chunks */
};

/* `count` items of `item_bytes` each, not initialised. NULL: out of memory, or a product beyond size_t. */
void *dtp_host_arena_take(struct dtp_host_arena *arena, size_t count, size_t item_bytes);
/* The same, all bytes zero. */
void *dtp_host_arena_take_zeroed(struct dtp_host_arena *arena, size_t count, size_t item_bytes);
/* Gives every piece up, and keeps the largest chunk for the next ones. */
void dtp_host_arena_reset(struct dtp_host_arena *arena);
/* Frees every piece; the arena is empty afterwards and may be used again. */
void dtp_host_arena_release(struct dtp_host_arena *arena);

/* Tells malloc to keep what is freed for the next request, for the whole process; main calls it once, nothing happens
 * where malloc cannot. Otherwise glibc gives the arrays of each step program, some MiB, back to the kernel and takes
 * them anew for the next: the page faults took 40 % of the time to lower, prove and place. */
void dtp_host_memory_keep(void);

#endif
