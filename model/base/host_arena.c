#include "base/host_arena.h"

#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#define CHUNK_BYTES 4096u
#define ALIGNMENT_BYTES 16u

/* Chunks form a list so that one walk frees them; the pieces follow the link, aligned as malloc aligns. */
struct dtp_host_chunk {
    struct dtp_host_chunk *next;
    size_t room_bytes;
    _Alignas(ALIGNMENT_BYTES) char bytes[];
};

static struct dtp_host_chunk *new_chunk(struct dtp_host_arena *arena, size_t bytes)
{
    const size_t head_bytes = sizeof(struct dtp_host_chunk);
    if (bytes > SIZE_MAX - head_bytes)
        return NULL;
    struct dtp_host_chunk *chunk = malloc(head_bytes + bytes);
    if (!chunk)
        return NULL;
    *chunk = (struct dtp_host_chunk){arena->chunks, bytes};
    arena->chunks = chunk;
    arena->total_bytes += chunk->room_bytes;
    return chunk;
}

/* Makes `bytes` available. Chunks grow with the arena, so that there are few; the one that then has more left is open
 * to the next pieces. */
static char *take_from_new_chunk(struct dtp_host_arena *arena, size_t bytes)
{
    size_t least_bytes = arena->total_bytes > CHUNK_BYTES ? arena->total_bytes : CHUNK_BYTES;
    struct dtp_host_chunk *chunk = new_chunk(arena, bytes > least_bytes ? bytes : least_bytes);
    if (!chunk)
        return NULL;
    if (chunk->room_bytes - bytes > arena->left_bytes) {
        arena->next = chunk->bytes + bytes;
        arena->left_bytes = chunk->room_bytes - bytes;
    }
    return chunk->bytes;
}

void *dtp_host_arena_take(struct dtp_host_arena *arena, size_t count, size_t item_bytes)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, item_bytes, &bytes) || bytes > SIZE_MAX - ALIGNMENT_BYTES)
        return NULL;
    bytes = (bytes + ALIGNMENT_BYTES - 1) / ALIGNMENT_BYTES * ALIGNMENT_BYTES;
    if (bytes > arena->left_bytes || !arena->next)
        return take_from_new_chunk(arena, bytes);
    char *piece = arena->next;
    arena->next += bytes;
    arena->left_bytes -= bytes;
    return piece;
}

void *dtp_host_arena_take_zeroed(struct dtp_host_arena *arena, size_t count, size_t item_bytes)
{
    void *piece = dtp_host_arena_take(arena, count, item_bytes);
    return piece ? memset(piece, 0, count * item_bytes) : NULL;
}

void dtp_host_arena_reset(struct dtp_host_arena *arena)
{
    struct dtp_host_chunk *largest = arena->chunks;
    for (struct dtp_host_chunk *chunk = arena->chunks; chunk; chunk = chunk->next)
        largest = chunk->room_bytes > largest->room_bytes ? chunk : largest;
    for (struct dtp_host_chunk *chunk = arena->chunks, *next; chunk; chunk = next) {
        next = chunk->next;
        if (chunk != largest)
            free(chunk);
    }
    *arena = (struct dtp_host_arena){0};
    if (!largest)
        return;
    largest->next = NULL;
    *arena = (struct dtp_host_arena){largest, largest->bytes, largest->room_bytes, largest->room_bytes};
}

void dtp_host_arena_release(struct dtp_host_arena *arena)
{
    for (struct dtp_host_chunk *chunk = arena->chunks; chunk;) {
        struct dtp_host_chunk *next = chunk->next;
        free(chunk);
        chunk = next;
    }
    *arena = (struct dtp_host_arena){0};
}

void dtp_host_memory_keep(void)
{
#ifdef __GLIBC__
    (void)mallopt(M_MMAP_THRESHOLD, 32 << 20); /* the most it takes; requests above are mapped and unmapped each */
    (void)mallopt(M_TRIM_THRESHOLD, INT_MAX);
#endif
}
