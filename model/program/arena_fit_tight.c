#include "program/arena_fit.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Spans that have their offset, in order of it, in blocks of as many as a word has bits: a round reads little but when
 * they live, and one more moves those of its block alone. */
#define AT_ONCE 64u
struct block {
    int32_t first[AT_ONCE], last[AT_ONCE];
    struct place {
        uint64_t offset_bytes, end_bytes;
    } places[AT_ONCE];
    uint64_t top_bytes; /* highest end */
    uint32_t count;
};

struct placed {
    struct block *blocks;
    uint32_t *order; /* of the blocks */
    uint32_t count;  /* of them */
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

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the first of eight bytes is the lowest");

/* Two loops that rounds are made of, within a block each: vectors, which compilers make of neither where each read is
 * to be checked. */
#define UNCHECKED __attribute__((no_sanitize("address"), no_sanitize("undefined"), noinline)) static

/* Which spans of a block live at some time from `first` to `last`, a bit each; beyond the last some may seem to. */
UNCHECKED uint64_t beside(const struct block *block, int32_t first, int32_t last)
{
    uint8_t lives[AT_ONCE];
    uint64_t bits = 0;
    for (uint32_t i = 0; i < AT_ONCE; i++)
        lives[i] = (block->first[i] <= last) & (block->last[i] >= first);
    for (uint32_t i = 0; i < AT_ONCE / 8; i++) { /* of eight bytes the lowest bits */
        uint64_t eight;
        memcpy(&eight, lives + 8 * i, sizeof eight);
        bits |= (eight * 0x0102040810204080u >> 56) << 8 * i;
    }
    return bits;
}

/* The lowest offset at which `bytes` are free from `first` to `last`. */
static uint64_t lowest_offset(const struct placed *placed, const struct dtp_fit_span *span)
{
    uint64_t end_bytes = 0; /* of what lives at the same time, below the gap at hand */
    for (uint32_t i = 0; i < placed->count; i++) {
        const struct block *block = &placed->blocks[placed->order[i]];
        if (block->top_bytes <= end_bytes)
            continue; /* all of it lies below */
        uint64_t bits =
            beside(block, (int32_t)span->first, (int32_t)span->last) & UINT64_MAX >> (AT_ONCE - block->count);
        for (; bits; bits &= bits - 1) {
            uint32_t k = (uint32_t)__builtin_ctzll(bits);
            if (block->places[k].offset_bytes >= end_bytes + span->bytes)
                return end_bytes;
            end_bytes = block->places[k].end_bytes > end_bytes ? block->places[k].end_bytes : end_bytes;
        }
    }
    return end_bytes;
}

/* Last first, for one block's may overlap. */
UNCHECKED void move(struct block *to, uint32_t to_index, const struct block *from, uint32_t index, uint32_t count)
{
    assert(to_index + count <= AT_ONCE && index + count <= AT_ONCE);
    for (uint32_t k = count; k > 0; k--) {
        to->first[to_index + k - 1] = from->first[index + k - 1];
        to->last[to_index + k - 1] = from->last[index + k - 1];
        to->places[to_index + k - 1] = from->places[index + k - 1];
    }
}

static uint64_t highest_end(const struct block *block)
{
    uint64_t top_bytes = 0;
    for (uint32_t i = 0; i < block->count; i++)
        top_bytes = block->places[i].end_bytes > top_bytes ? block->places[i].end_bytes : top_bytes;
    return top_bytes;
}

/* The upper half of the `at`-th block becomes the next. */
static void split(struct placed *placed, uint32_t at)
{
    struct block *lower = &placed->blocks[placed->order[at]], *upper = &placed->blocks[placed->count];
    upper->count = lower->count / 2;
    lower->count -= upper->count;
    move(upper, 0, lower, lower->count, upper->count);
    lower->top_bytes = highest_end(lower);
    upper->top_bytes = highest_end(upper);
    memmove(placed->order + at + 2, placed->order + at + 1, (placed->count - at - 1) * sizeof *placed->order);
    placed->order[at + 1] = placed->count++;
}

static void put(struct placed *placed, const struct dtp_fit_span *span)
{
    uint32_t at = placed->count - 1, k = 0;
    while (at > 0 && placed->blocks[placed->order[at]].places[0].offset_bytes > span->offset_bytes)
        at--;
    struct block *block = &placed->blocks[placed->order[at]];
    if (block->count == AT_ONCE) {
        split(placed, at);
        struct block *upper = &placed->blocks[placed->order[at + 1]];
        block = upper->places[0].offset_bytes > span->offset_bytes ? block : upper;
    }
    while (k < block->count && block->places[k].offset_bytes < span->offset_bytes)
        k++;
    uint64_t end_bytes = span->offset_bytes + span->bytes;
    move(block, k + 1, block, k, block->count++ - k);
    block->first[k] = (int32_t)span->first;
    block->last[k] = (int32_t)span->last;
    block->places[k] = (struct place){span->offset_bytes, end_bytes};
    block->top_bytes = end_bytes > block->top_bytes ? end_bytes : block->top_bytes;
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
    struct placed placed;
    struct turn *order;
    struct turn *kept; /* of the smallest arena so far: its order, */
    uint64_t *best;    /* and its offsets */
    uint64_t best_bytes, bound_bytes;
    uint64_t random;
};

/* One round of the first `count` spans: each at the lowest offset that is free for all its life. It ends where they
 * need more than `enough_bytes`. Returns the highest span's turn. */
static uint32_t place_in_order(struct rounds *r, uint32_t count, uint64_t enough_bytes, uint64_t *extent)
{
    uint64_t extent_bytes = 0;
    uint32_t highest = 0;
    r->placed.count = 1;
    r->placed.order[0] = r->placed.blocks[0].count = 0;
    r->placed.blocks[0].top_bytes = 0;
    for (uint32_t i = 0; i < count && extent_bytes <= enough_bytes; i++) {
        struct dtp_fit_span *span = &r->spans[r->order[i].index];
        span->offset_bytes = span->bytes ? lowest_offset(&r->placed, span) : 0;
        uint64_t end_bytes = span->offset_bytes + span->bytes;
        if (end_bytes > extent_bytes)
            extent_bytes = end_bytes, highest = i;
        if (span->bytes)
            put(&r->placed, span);
    }
    *extent = extent_bytes;
    if (count == r->count && extent_bytes <= enough_bytes && extent_bytes < r->best_bytes) {
        r->best_bytes = extent_bytes;
        memcpy(r->kept, r->order, r->count * sizeof *r->order);
        for (uint32_t i = 0; i < r->span_count; i++)
            r->best[i] = r->spans[i].offset_bytes;
    }
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
        highest = place_in_order(r, r->count, UINT64_MAX, &extent_bytes);
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
        place_in_order(r, large, current_bytes, &extent_bytes);
        span_rounds -= large;
        if (extent_bytes > current_bytes)
            continue;
        current_bytes = extent_bytes;
        memcpy(current, r->order, large * sizeof *current);
        place_in_order(r, r->count, r->best_bytes - 1, &extent_bytes);
        span_rounds -= r->count;
    }
}

/* Blocks that were split are half full or more. */
static struct placed take_placed(struct dtp_host_arena *scratch, uint32_t count)
{
    size_t most = 1 + (size_t)count / (AT_ONCE / 2);
    return (struct placed){.blocks = dtp_host_arena_take_zeroed(scratch, most, sizeof(struct block)),
                           .order = dtp_host_arena_take(scratch, most, sizeof(uint32_t))};
}

bool dtp_arena_fit_tight(struct dtp_fit_span *spans, uint32_t count, uint32_t time_count,
                         struct dtp_host_arena *scratch, uint64_t *extent_bytes)
{
    struct rounds r = {.spans = spans,
                       .span_count = count,
                       .placed = take_placed(scratch, count),
                       .order = dtp_host_arena_take(scratch, count, sizeof *r.order),
                       .kept = dtp_host_arena_take(scratch, count, sizeof *r.kept),
                       .best = dtp_host_arena_take(scratch, count, sizeof *r.best),
                       .best_bytes = UINT64_MAX,
                       .random = 1};
    struct turn *current = dtp_host_arena_take(scratch, count, sizeof *current);
    uint64_t ignored_bytes;
    bool done = r.placed.blocks && r.placed.order && r.order && r.kept && r.best && current &&
                find_bound(&r, time_count, scratch);
    for (int by = 0; done && by < WEIGHTS && r.best_bytes > r.bound_bytes; by++) {
        put_in_order(&r, time_count, by);
        uint32_t highest = place_in_order(&r, r.count, UINT64_MAX, &ignored_bytes);
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
