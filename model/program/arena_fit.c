#include "program/arena_fit.h"

#include <string.h>

#define NONE UINT32_MAX
/* Holes looked at for one span, the youngest first; well-behaved steps have some tens. */
#define HOLES_TRIED 32

/* A piece of the arena, a span or a hole; pieces tile [0, extent) as a list in order of address. */
struct piece {
    uint64_t offset_bytes, bytes;
    uint32_t below, above;             /* neighbours */
    uint32_t younger_hole, older_hole; /* list of holes */
    uint32_t until;                    /* last time of a span */
    bool hole;
};

struct fit {
    struct piece *pieces;
    uint32_t piece_count, unused; /* pieces ever used, and a list of free ones through `above` */
    uint32_t top, youngest_hole;  /* highest piece, youngest hole */
    uint64_t extent_bytes;
    uint32_t *order_first, *order_last; /* spans by first and by last time */
    uint32_t *piece_of;                 /* per span */
    uint64_t *offset_bytes;             /* per span */
};

static void unlink_hole(struct fit *fit, uint32_t hole)
{
    struct piece *p = &fit->pieces[hole];
    if (p->younger_hole != NONE)
        fit->pieces[p->younger_hole].older_hole = p->older_hole;
    else
        fit->youngest_hole = p->older_hole;
    if (p->older_hole != NONE)
        fit->pieces[p->older_hole].younger_hole = p->younger_hole;
    p->hole = false;
}

static void link_hole(struct fit *fit, uint32_t hole)
{
    struct piece *p = &fit->pieces[hole];
    p->hole = true;
    p->younger_hole = NONE;
    p->older_hole = fit->youngest_hole;
    if (fit->youngest_hole != NONE)
        fit->pieces[fit->youngest_hole].younger_hole = hole;
    fit->youngest_hole = hole;
}

/* Inserts a piece of `bytes` at `offset_bytes` above piece `below` (NONE: at the bottom of an empty arena). */
static uint32_t insert_above(struct fit *fit, uint32_t below, uint64_t offset_bytes, uint64_t bytes)
{
    uint32_t index = fit->unused;
    if (index == NONE)
        index = fit->piece_count++;
    else
        fit->unused = fit->pieces[index].above;
    uint32_t above = below == NONE ? NONE : fit->pieces[below].above;
    fit->pieces[index] = (struct piece){.offset_bytes = offset_bytes, .bytes = bytes, .below = below, .above = above};
    if (below != NONE)
        fit->pieces[below].above = index;
    if (above != NONE)
        fit->pieces[above].below = index;
    else
        fit->top = index;
    return index;
}

/* Takes piece `index` off the list; its bytes go to the piece below. */
static void merge_into_below(struct fit *fit, uint32_t index)
{
    struct piece *p = &fit->pieces[index];
    fit->pieces[p->below].bytes += p->bytes;
    fit->pieces[p->below].above = p->above;
    if (p->above != NONE)
        fit->pieces[p->above].below = p->below;
    else
        fit->top = p->below;
    p->above = fit->unused;
    fit->unused = index;
}

static uint32_t smallest_hole(const struct fit *fit, uint64_t bytes)
{
    uint32_t best = NONE, hole = fit->youngest_hole;
    uint64_t best_bytes = UINT64_MAX;
    for (int tried = 0; hole != NONE && tried < HOLES_TRIED; tried++, hole = fit->pieces[hole].older_hole) {
        uint64_t room_bytes = fit->pieces[hole].bytes;
        if (room_bytes == bytes)
            return hole;
        if (room_bytes > bytes && room_bytes < best_bytes) {
            best = hole;
            best_bytes = room_bytes;
        }
    }
    return best;
}

/* A hole at the top of the arena grows as needed; without one, there is a new piece at the top. */
static uint32_t grow(struct fit *fit, uint64_t bytes)
{
    uint32_t top = fit->top;
    if (top != NONE && fit->pieces[top].hole && fit->pieces[top].bytes < bytes) {
        fit->extent_bytes += bytes - fit->pieces[top].bytes;
        fit->pieces[top].bytes = bytes;
        return top;
    }
    top = insert_above(fit, top, fit->extent_bytes, bytes);
    fit->extent_bytes += bytes;
    link_hole(fit, top);
    return top;
}

static uint32_t distance(uint32_t a, uint32_t b)
{
    return a > b ? a - b : b - a;
}

/* Whether the neighbour above the hole ends nearer to `until` than the one below. The bottom counts as what never ends,
 * and at the top of the arena spans stay low. */
static bool belongs_above(const struct fit *fit, const struct piece *hole, uint32_t until)
{
    if (hole->above == NONE)
        return false;
    uint32_t below_until = hole->below == NONE ? UINT32_MAX : fit->pieces[hole->below].until;
    return distance(fit->pieces[hole->above].until, until) < distance(below_until, until);
}

static uint32_t place(struct fit *fit, uint64_t bytes, uint32_t until)
{
    uint32_t index = smallest_hole(fit, bytes);
    if (index == NONE)
        index = grow(fit, bytes);
    struct piece *hole = &fit->pieces[index];
    uint64_t rest_bytes = hole->bytes - bytes;
    bool above = belongs_above(fit, hole, until);
    if (!rest_bytes) {
        unlink_hole(fit, index);
    } else if (above) {
        hole->bytes = rest_bytes;
        index = insert_above(fit, index, hole->offset_bytes + rest_bytes, bytes);
    } else {
        hole->bytes = bytes;
        unlink_hole(fit, index);
        link_hole(fit, insert_above(fit, index, hole->offset_bytes + bytes, rest_bytes));
    }
    fit->pieces[index].until = until;
    return index;
}

static void release(struct fit *fit, uint32_t index)
{
    uint32_t below = fit->pieces[index].below, above = fit->pieces[index].above;
    if (above != NONE && fit->pieces[above].hole) {
        unlink_hole(fit, above);
        merge_into_below(fit, above);
    }
    if (below != NONE && fit->pieces[below].hole)
        merge_into_below(fit, index);
    else
        link_hole(fit, index);
}

/* Spans by ascending `key`, those of one key in their order: counting sort. `starts` has room for time_count + 1. */
static void sort_spans(const struct dtp_fit_span *spans, uint32_t count, uint32_t time_count, bool by_last,
                       uint32_t *starts, uint32_t *order)
{
    memset(starts, 0, ((size_t)time_count + 1) * sizeof *starts);
    for (uint32_t i = 0; i < count; i++)
        starts[(by_last ? spans[i].last : spans[i].first) + 1]++;
    for (uint32_t t = 0; t < time_count; t++)
        starts[t + 1] += starts[t];
    for (uint32_t i = 0; i < count; i++)
        order[starts[by_last ? spans[i].last : spans[i].first]++] = i;
}

/* One pass, given up where the arena grows to `enough_bytes`. Backwards, a span begins at its last time and ends at its
 * first. */
static uint64_t sweep(struct fit *fit, const struct dtp_fit_span *spans, uint32_t count, bool backwards,
                      uint64_t enough_bytes)
{
    fit->top = fit->youngest_hole = NONE;
    fit->extent_bytes = 0;
    fit->piece_count = 0;
    fit->unused = NONE;
    for (uint32_t begun = 0, ended = 0; begun < count && fit->extent_bytes < enough_bytes; begun++) {
        uint32_t index = backwards ? fit->order_last[count - 1 - begun] : fit->order_first[begun];
        for (; ended < count; ended++) {
            uint32_t old = backwards ? fit->order_first[count - 1 - ended] : fit->order_last[ended];
            if (backwards ? spans[old].first <= spans[index].last : spans[old].last >= spans[index].first)
                break;
            if (spans[old].bytes)
                release(fit, fit->piece_of[old]);
        }
        fit->offset_bytes[index] = 0;
        if (!spans[index].bytes)
            continue;
        uint32_t until = backwards ? UINT32_MAX - spans[index].first : spans[index].last;
        fit->piece_of[index] = place(fit, spans[index].bytes, until);
        fit->offset_bytes[index] = fit->pieces[fit->piece_of[index]].offset_bytes;
    }
    return fit->extent_bytes;
}

static bool take_memory(struct fit *fit, struct dtp_host_arena *arena, uint32_t count)
{
    fit->pieces = dtp_host_arena_take(arena, 2 * (size_t)count + 1, sizeof *fit->pieces);
    fit->order_first = dtp_host_arena_take(arena, count, sizeof *fit->order_first);
    fit->order_last = dtp_host_arena_take(arena, count, sizeof *fit->order_last);
    fit->piece_of = dtp_host_arena_take(arena, count, sizeof *fit->piece_of);
    fit->offset_bytes = dtp_host_arena_take(arena, count, sizeof *fit->offset_bytes);
    return fit->pieces && fit->order_first && fit->order_last && fit->piece_of && fit->offset_bytes;
}

bool dtp_arena_fit(struct dtp_fit_span *spans, uint32_t count, uint32_t time_count, struct dtp_host_arena *scratch,
                   uint64_t *extent_bytes)
{
    struct fit fit;
    uint32_t *starts = dtp_host_arena_take(scratch, (size_t)time_count + 2, sizeof *starts);
    bool done = starts && take_memory(&fit, scratch, count);
    *extent_bytes = 0;
    if (done && count) {
        sort_spans(spans, count, time_count, false, starts, fit.order_first);
        sort_spans(spans, count, time_count, true, starts, fit.order_last);
        uint64_t forward_bytes = sweep(&fit, spans, count, false, UINT64_MAX);
        for (uint32_t i = 0; i < count; i++)
            spans[i].offset_bytes = fit.offset_bytes[i];
        *extent_bytes = sweep(&fit, spans, count, true, forward_bytes);
        for (uint32_t i = 0; i < count && *extent_bytes < forward_bytes; i++)
            spans[i].offset_bytes = fit.offset_bytes[i];
        if (*extent_bytes > forward_bytes)
            *extent_bytes = forward_bytes;
    }
    dtp_host_arena_reset(scratch);
    return done;
}
