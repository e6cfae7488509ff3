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
    size_t left_bytes;
};

/* `count` items of `item_bytes` each, not initialised. NULL: out of memory, or a product beyond size_t. */
void *dtp_host_arena_take(struct dtp_host_arena *arena, size_t count, size_t item_bytes);
/* The same, all bytes zero. */
void *dtp_host_arena_take_zeroed(struct dtp_host_arena *arena, size_t count, size_t item_bytes);
/* Frees every piece; the arena is empty afterwards and may be used again. */
void dtp_host_arena_release(struct dtp_host_arena *arena);

#endif
