#include "program/arena_fit.h"

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
    uint32_t span_count;
    uint32_t count; /* of the spans that have turns */
    struct placed *placed;
    struct turn *order;
    struct turn *kept; /* of the smallest arena so far: its order, */
    uint64_t *best;    /* and its offsets */
    uint64_t best_bytes, bound_bytes;
    uint64_t random;
};

/* One round of the first `count` spans: each at the lowest offset that is free for all its life. Returns the highest
 * span's turn. */
static uint32_t place_in_order(struct rounds *r, uint32_t count, uint64_t *extent)
{
    uint64_t extent_bytes = 0;
    uint32_t placed_count = 0, highest = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct dtp_fit_span *span = &r->spans[r->order[i].index];
        span->offset_bytes = span->bytes ? lowest_offset(r->placed, placed_count, span) : 0;
        uint64_t end_bytes = span->offset_bytes + span->bytes;
        if (end_bytes > extent_bytes)
            extent_bytes = end_bytes, highest = i;
        if (!span->bytes)
            continue;
        uint32_t at = position_of(r->placed, placed_count, span->offset_bytes);
        for (uint32_t k = placed_count++; k > at; k--)
            r->placed[k] = r->placed[k - 1];
        r->placed[at] = (struct placed){span->offset_bytes, end_bytes, span->first, span->last};
    }
    if (count == r->count && extent_bytes < r->best_bytes) {
        r->best_bytes = extent_bytes;
        memcpy(r->kept, r->order, r->count * sizeof *r->order);
        for (uint32_t i = 0; i < r->span_count; i++)
            r->best[i] = r->spans[i].offset_bytes;
    }
    *extent = extent_bytes;
    return highest;
}

/* A span that lives all along parts the arena into what lies below it and what lies above; laid at the bottom it parts
 * nothing, and no arena is lost by that. So it needs no turn. */
static bool lives_all_along(const struct dtp_fit_span *span, uint32_t time_count)
{
    return span->first == 0 && span->last + 1 == time_count;
}

static void put_in_order(struct rounds *r, uint32_t time_count, int by)
{
    r->count = 0;
    for (uint32_t i = 0; i < r->span_count; i++)
        if (!lives_all_along(&r->spans[i], time_count))
            r->order[r->count++] = (struct turn){weight_of(&r->spans[i], by), i};
    qsort(r->order, r->count, sizeof *r->order, compare);
}

static void take_best(struct rounds *r, uint32_t time_count, uint64_t *extent_bytes)
{
    uint64_t bottom_bytes = 0;
    for (uint32_t i = 0; i < r->span_count; i++)
        if (lives_all_along(&r->spans[i], time_count)) {
            r->spans[i].offset_bytes = bottom_bytes;
            bottom_bytes += r->spans[i].bytes;
        }
    for (uint32_t i = 0; i < r->span_count; i++)
        if (!lives_all_along(&r->spans[i], time_count))
            r->spans[i].offset_bytes = bottom_bytes + r->best[i];
    *extent_bytes = bottom_bytes + r->best_bytes;
}

/* Largest sum of bytes at one time, without those that live all along. */
static bool find_bound(struct rounds *r, uint32_t time_count, struct dtp_host_arena *arena)
{
    int64_t *change_bytes = dtp_host_arena_take_zeroed(arena, (size_t)time_count + 1, sizeof *change_bytes);
    int64_t live_bytes = 0;
    if (!change_bytes)
        return false;
    for (uint32_t i = 0; i < r->span_count; i++) {
        if (lives_all_along(&r->spans[i], time_count))
            continue;
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
    uint64_t extent_bytes;
    for (uint32_t i = 0; i < rounds && r->best_bytes > r->bound_bytes; i++) {
        struct turn turn = r->order[highest];
        memmove(&r->order[1], &r->order[0], highest * sizeof turn);
        r->order[0] = turn;
        highest = place_in_order(r, r->count, &extent_bytes);
    }
}

/* splitmix64 (Steele et al. 2014): the same numbers, so the same arena, on every rank. */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Moves up to three of the first `count` spans anywhere in their order, the front a little likelier. */
#define MOST_MOVED 3u
static void shuffle(struct rounds *r, uint32_t count, uint64_t *random)
{
    for (uint64_t left = 1 + next_random(random) % MOST_MOVED; left > 0; left--)
        r->order[next_random(random) % count].weight = 1.2 * (double)(next_random(random) >> 11) * 0x1p-53;
    qsort(r->order, count, sizeof *r->order, compare);
}

/* The best order so far with large spans first, which decide the holes: those of more than a `part`-th of the arena.
 * Returns their number. */
static uint32_t large_first(const struct rounds *r, uint32_t part, struct turn *current)
{
    uint32_t large = 0, filled;
    for (uint32_t i = 0; i < r->count; i++)
        if (r->spans[r->kept[i].index].bytes > r->bound_bytes / part)
            current[large++] = r->kept[i];
    filled = large;
    for (uint32_t i = 0; i < r->count; i++)
        if (r->spans[r->kept[i].index].bytes <= r->bound_bytes / part)
            current[filled++] = r->kept[i];
    for (uint32_t i = 0; i < large; i++)
        current[i].weight = 1 - (double)i / (double)large;
    return large;
}

/* Spans times rounds: of repairs from each weight, 0.1 s; of each search, where holes of more than a `worth_part`-th of
 * the arena are left. One that is stuck seldom is so with other spans taken for large: the few largest alone, whose
 * order the many others hide, come last, and then all once more from what those found. */
#define MOST_REPAIRED 60000u
#define MOST_SEARCHED 120000
static const struct {
    uint32_t worth_part, large_part;
} searches[] = {{100, 100}, {100, 30}, {40, 10}, {40, 100}};

/* A few large spans at random places in the best order; kept while what the large ones need does not grow, and then
 * tried with all. Every arena has an order that gives it, lowest offsets first, so none is out of reach. */
static void search(struct rounds *r, uint32_t part, struct turn *current)
{
    int64_t span_rounds = MOST_SEARCHED;
    uint64_t current_bytes = UINT64_MAX, extent_bytes;
    uint32_t large = large_first(r, part, current);
    while (large && span_rounds > 0 && r->best_bytes > r->bound_bytes) {
        memcpy(r->order, current, r->count * sizeof *current);
        if (current_bytes != UINT64_MAX)
            shuffle(r, large, &r->random);
        place_in_order(r, large, &extent_bytes);
        span_rounds -= large;
        if (extent_bytes > current_bytes)
            continue;
        current_bytes = extent_bytes;
        memcpy(current, r->order, large * sizeof *current);
        place_in_order(r, r->count, &extent_bytes);
        span_rounds -= r->count;
    }
}

bool dtp_arena_fit_tight(struct dtp_fit_span *spans, uint32_t count, uint32_t time_count,
                         struct dtp_host_arena *scratch, uint64_t *extent_bytes)
{
    struct rounds r = {.spans = spans,
                       .span_count = count,
                       .placed = dtp_host_arena_take(scratch, count, sizeof *r.placed),
                       .order = dtp_host_arena_take(scratch, count, sizeof *r.order),
                       .kept = dtp_host_arena_take(scratch, count, sizeof *r.kept),
                       .best = dtp_host_arena_take(scratch, count, sizeof *r.best),
                       .best_bytes = UINT64_MAX,
                       .random = 1};
    struct turn *current = dtp_host_arena_take(scratch, count, sizeof *current);
    uint64_t ignored_bytes;
    bool done = r.placed && r.order && r.kept && r.best && current && find_bound(&r, time_count, scratch);
    for (int by = 0; done && by < WEIGHTS && r.best_bytes > r.bound_bytes; by++) {
        put_in_order(&r, time_count, by);
        uint32_t highest = place_in_order(&r, r.count, &ignored_bytes);
        repair(&r, highest, r.count ? MOST_REPAIRED / r.count : 0);
    }
    for (size_t i = 0; done && count && i < sizeof searches / sizeof *searches; i++)
        if (r.best_bytes - r.bound_bytes > r.bound_bytes / searches[i].worth_part)
            search(&r, searches[i].large_part, current);
    *extent_bytes = 0;
    if (done)
        take_best(&r, time_count, extent_bytes);
    dtp_host_arena_reset(scratch);
    return done;
}
