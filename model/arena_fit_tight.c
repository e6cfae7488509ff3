#include "arena_fit.h"

#include <stdlib.h>
#include <string.h>

/* Spans that have their offset, in order of it. */
struct placed {
    uint64_t offset_bytes, end_bytes;
    uint32_t first, last;
};

/* A span in the order of a round. */
struct turn {
    double weight;
    uint32_t index;
};

/* Heaviest first; the index makes the order total. */
static int compare(const void *left, const void *right)
{
    const struct turn *a = left, *b = right;
    if (a->weight != b->weight)
        return a->weight > b->weight ? -1 : 1;
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

/* What a round is sorted by. Size alone suits spans that overlap at random; a step's are mostly nested in time (what
 * forward keeps, backward gives back in reverse), and those fit without a hole when the longest lived come first. */
enum { BY_BYTES, BY_LIFE, BY_AREA, WEIGHTS };
static double weight_of(const struct dtp_fit_span *span, int by)
{
    double bytes = (double)span->bytes, life = (double)(span->last - span->first) + 1;
    return by == BY_BYTES ? bytes + life * 0x1p-33 : by == BY_LIFE ? life + bytes * 0x1p-58 : bytes * life;
}

struct rounds {
    struct dtp_fit_span *spans;
    uint32_t count;
    struct placed *placed;
    struct turn *order;
    uint64_t *best; /* offsets of the smallest arena so far */
    uint64_t best_bytes, bound_bytes;
};

/* One round: each span at the lowest offset that is free for all its life. Returns the highest span. */
static uint32_t place_in_order(struct rounds *r)
{
    uint64_t extent_bytes = 0;
    uint32_t placed_count = 0, highest = 0;
    for (uint32_t i = 0; i < r->count; i++) {
        struct dtp_fit_span *span = &r->spans[r->order[i].index];
        span->offset_bytes = span->bytes ? lowest_offset(r->placed, placed_count, span) : 0;
        uint64_t end_bytes = span->offset_bytes + span->bytes;
        if (end_bytes > extent_bytes)
            extent_bytes = end_bytes, highest = i;
        if (!span->bytes)
            continue;
        uint32_t at = position_of(r->placed, placed_count, span->offset_bytes);
        memmove(&r->placed[at + 1], &r->placed[at], (placed_count++ - at) * sizeof *r->placed);
        r->placed[at] = (struct placed){span->offset_bytes, end_bytes, span->first, span->last};
    }
    if (extent_bytes < r->best_bytes) {
        r->best_bytes = extent_bytes;
        for (uint32_t i = 0; i < r->count; i++)
            r->best[i] = r->spans[i].offset_bytes;
    }
    return highest;
}

/* Largest sum of bytes at one time. */
static bool find_bound(struct rounds *r, uint32_t time_count, struct dtp_host_arena *arena)
{
    int64_t *change_bytes = dtp_host_arena_take_zeroed(arena, (size_t)time_count + 1, sizeof *change_bytes);
    int64_t live_bytes = 0;
    if (!change_bytes)
        return false;
    for (uint32_t i = 0; i < r->count; i++) {
        change_bytes[r->spans[i].first] += (int64_t)r->spans[i].bytes;
        change_bytes[r->spans[i].last + 1] -= (int64_t)r->spans[i].bytes;
    }
    for (uint32_t i = 0; i < time_count; i++) {
        live_bytes += change_bytes[i];
        r->bound_bytes = (uint64_t)live_bytes > r->bound_bytes ? (uint64_t)live_bytes : r->bound_bytes;
    }
    return true;
}

/* Then whoever stuck out comes first in the next round. */
static void repair(struct rounds *r, uint32_t highest, uint32_t rounds)
{
    for (uint32_t i = 0; i < rounds && r->best_bytes > r->bound_bytes; i++) {
        struct turn turn = r->order[highest];
        memmove(&r->order[1], &r->order[0], highest * sizeof turn);
        r->order[0] = turn;
        highest = place_in_order(r);
    }
}

#define MOST_SPAN_ROUNDS 60000u /* spans times rounds: 0.1 s */

bool dtp_arena_fit_tight(struct dtp_fit_span *spans, uint32_t count, uint32_t time_count, struct dtp_host_arena *scratch,
                         uint64_t *extent_bytes)
{
    struct rounds r = {.spans = spans,
                       .count = count,
                       .placed = dtp_host_arena_take(scratch, count, sizeof *r.placed),
                       .order = dtp_host_arena_take(scratch, count, sizeof *r.order),
                       .best = dtp_host_arena_take(scratch, count, sizeof *r.best),
                       .best_bytes = UINT64_MAX};
    bool done = r.placed && r.order && r.best && find_bound(&r, time_count, scratch);
    for (int by = 0; done && by < WEIGHTS && r.best_bytes > r.bound_bytes; by++) {
        for (uint32_t i = 0; i < count; i++)
            r.order[i] = (struct turn){weight_of(&spans[i], by), i};
        qsort(r.order, count, sizeof *r.order, compare);
        repair(&r, place_in_order(&r), count ? MOST_SPAN_ROUNDS / count : 0);
    }
    for (uint32_t i = 0; done && i < count; i++)
        spans[i].offset_bytes = r.best[i];
    *extent_bytes = count ? r.best_bytes : 0;
    dtp_host_arena_reset(scratch);
    return done;
}
