#include "arena_fit.h"

#include <stdlib.h>
#include <string.h>

/* Spans that have their offset, in order of it. */
struct placed {
    uint64_t offset_bytes, end_bytes;
    uint32_t first, last;
};

struct largest_first {
    uint64_t bytes;
    uint32_t life, index;
};

/* Of one size those that live longer come first; the index makes the order total. */
static int compare(const void *left, const void *right)
{
    const struct largest_first *a = left, *b = right;
    if (a->bytes != b->bytes)
        return a->bytes > b->bytes ? -1 : 1;
    if (a->life != b->life)
        return a->life > b->life ? -1 : 1;
    return a->index < b->index ? -1 : a->index > b->index;
}

/* The lowest offset at which `bytes` are free from `first` to `last`. */
static uint64_t lowest_offset(const struct placed *placed, uint32_t count, const struct dtp_fit_span *span)
{
    uint64_t end_bytes = 0; /* of what lives at the same time, below the gap at hand */
    for (uint32_t i = 0; i < count; i++) {
        if (placed[i].first > span->last || placed[i].last < span->first)
            continue;
        if (placed[i].offset_bytes >= end_bytes + span->bytes)
            break;
        end_bytes = placed[i].end_bytes > end_bytes ? placed[i].end_bytes : end_bytes;
    }
    return end_bytes;
}

static uint32_t position_of(const struct placed *placed, uint32_t count, uint64_t offset_bytes)
{
    uint32_t low = 0, high = count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (placed[middle].offset_bytes < offset_bytes)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool dtp_arena_fit_tight(struct dtp_fit_span *spans, uint32_t count, uint64_t *extent_bytes)
{
    struct dtp_host_arena arena = {0};
    struct placed *placed = dtp_host_arena_take(&arena, count, sizeof *placed);
    struct largest_first *order = dtp_host_arena_take(&arena, count, sizeof *order);
    bool done = placed && order;
    uint32_t placed_count = 0;
    *extent_bytes = 0;
    for (uint32_t i = 0; done && i < count; i++)
        order[i] = (struct largest_first){spans[i].bytes, spans[i].last - spans[i].first, i};
    if (done)
        qsort(order, count, sizeof *order, compare);
    for (uint32_t i = 0; done && i < count; i++) {
        struct dtp_fit_span *span = &spans[order[i].index];
        span->offset_bytes = span->bytes ? lowest_offset(placed, placed_count, span) : 0;
        uint64_t end_bytes = span->offset_bytes + span->bytes;
        *extent_bytes = end_bytes > *extent_bytes ? end_bytes : *extent_bytes;
        if (!span->bytes)
            continue;
        uint32_t at = position_of(placed, placed_count, span->offset_bytes);
        memmove(&placed[at + 1], &placed[at], (placed_count++ - at) * sizeof *placed);
        placed[at] = (struct placed){span->offset_bytes, end_bytes, span->first, span->last};
    }
    dtp_host_arena_release(&arena);
    return done;
}
