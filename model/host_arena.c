#include "host_arena.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_BYTES 4096u
#define ALIGNMENT_BYTES 16u

/* Chunks form a list so that one walk frees them; the pieces follow the link, aligned as malloc aligns. */
struct dtp_host_chunk {
    struct dtp_host_chunk *next;
    _Alignas(ALIGNMENT_BYTES) char bytes[];
};

/* Makes `bytes` available. A piece larger than a chunk gets one of its own, and the rest of the open one stays in use.
 */
static char *take_from_new_chunk(struct dtp_host_arena *arena, size_t bytes)
{
    size_t room_bytes = bytes > CHUNK_BYTES / 4 ? bytes : CHUNK_BYTES;
    if (room_bytes > SIZE_MAX - sizeof(struct dtp_host_chunk))
        return NULL;
    struct dtp_host_chunk *chunk = malloc(sizeof *chunk + room_bytes);
    if (!chunk)
        return NULL;
    chunk->next = arena->chunks;
    arena->chunks = chunk;
    if (room_bytes > bytes) {
        arena->next = chunk->bytes + bytes;
        arena->left_bytes = room_bytes - bytes;
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

void dtp_host_arena_release(struct dtp_host_arena *arena)
{
    for (struct dtp_host_chunk *chunk = arena->chunks; chunk;) {
        struct dtp_host_chunk *next = chunk->next;
        free(chunk);
        chunk = next;
    }
    *arena = (struct dtp_host_arena){0};
}
