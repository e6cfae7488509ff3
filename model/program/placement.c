#include "program/placement.h"
#include "program/arena_fit.h"
#include "program/happens_before.h"

#include <stdlib.h>
#include <string.h>

/* ---- lifetimes and live bytes ---------------------------------------------------------------------------------- */

/* Sets all lifetimes; true when some buffer is freed with DTP_DEFER. */
static bool find_lifetimes(const struct dtp_program *program, struct dtp_lifetime *lifetime)
{
    const struct dtp_buffer *buffers = dtp_program_buffers(program);
    const struct dtp_op *ops = dtp_program_ops(program);
    size_t op_count = dtp_program_op_count(program), buffer_count = dtp_program_buffer_count(program);
    uint32_t end = op_count ? (uint32_t)op_count - 1 : 0;
    bool defers = false;
    for (size_t b = 0; b < buffer_count; b++)
        lifetime[b] = buffers[b].persistent ? (struct dtp_lifetime){0, end} : (struct dtp_lifetime){DTP_NO_INDEX, 0};
    for (uint32_t i = 0; i < op_count; i++) {
        const struct dtp_operand *operands = dtp_program_operands(program, &ops[i]);
        for (uint32_t j = 0; j < ops[i].operand_count; j++) {
            struct dtp_lifetime *life = &lifetime[operands[j].buffer.index];
            if ((operands[j].access & DTP_ALLOC) && life->first == DTP_NO_INDEX)
                *life = (struct dtp_lifetime){i, end};
            if ((operands[j].access & DTP_FREE) && life->first != DTP_NO_INDEX)
                life->last = i;
            defers = defers || (operands[j].access & DTP_DEFER);
        }
    }
    return defers;
}

static bool is_placed(const struct dtp_placement *placement, const struct dtp_buffer *buffers, size_t buffer)
{
    return buffers[buffer].space == DTP_SPACE_DEVICE && placement->lifetime[buffer].first != DTP_NO_INDEX;
}

/* Largest running sum of what lifetimes begin and end; those of one operation overlap in it. `change_bytes` has room
 * for op_count + 1 zeros; sums cannot leave int64_t, for buffers have at most 2^57 bytes in total 2^63. */
static void find_peak(const struct dtp_program *program, int64_t *change_bytes, struct dtp_placement *out)
{
    const struct dtp_buffer *buffers = dtp_program_buffers(program);
    size_t op_count = dtp_program_op_count(program), buffer_count = dtp_program_buffer_count(program);
    for (size_t b = 0; b < buffer_count; b++)
        if (is_placed(out, buffers, b)) {
            change_bytes[out->lifetime[b].first] += (int64_t)buffers[b].bytes;
            change_bytes[out->lifetime[b].last + 1] -= (int64_t)buffers[b].bytes;
        }
    int64_t live_bytes = 0;
    for (size_t i = 0; i < op_count; i++) {
        live_bytes += change_bytes[i];
        if (live_bytes > (int64_t)out->live_peak_bytes) {
            out->live_peak_bytes = (uint64_t)live_bytes;
            out->live_peak_op = (uint32_t)i;
        }
    }
    for (size_t b = 0; b < buffer_count; b++)
        if (is_placed(out, buffers, b) && out->lifetime[b].first <= out->live_peak_op &&
            out->lifetime[b].last >= out->live_peak_op)
            out->live_peak_owner_bytes[buffers[b].owner] += buffers[b].bytes;
}

/* ---- buffers that the allocator gets back later ---------------------------------------------------------------- */

/* A buffer freed with DTP_DEFER may leave its bytes to the buffers of its pool allocated from some point on, when all
 * of those are first written after its users are done. */
struct deferral {
    const struct dtp_clock *clocks;
    struct dtp_clock *uses;          /* per buffer: last operation of each stream that touches it */
    uint32_t *writer;                /* per buffer: first operation that writes it */
    uint32_t *allocs;                /* buffers by pool, those of one in the order of allocation */
    struct dtp_clock *written_after; /* per alloc: what is done before it and all later ones of its pool are written */
    uint32_t pool_begin[DTP_STREAM_COUNT + 1];
};

static bool take_memory(const struct dtp_program *program, struct dtp_host_arena *arena, struct deferral *d)
{
    size_t buffer_count = dtp_program_buffer_count(program);
    d->clocks = dtp_happens_before(program, dtp_program_op_count(program), DTP_NO_INDEX, arena);
    d->uses = dtp_host_arena_take_zeroed(arena, buffer_count, sizeof *d->uses);
    d->writer = dtp_host_arena_take(arena, buffer_count, sizeof *d->writer);
    d->allocs = dtp_host_arena_take(arena, buffer_count, sizeof *d->allocs);
    d->written_after = dtp_host_arena_take(arena, buffer_count, sizeof *d->written_after);
    if (!d->clocks || !d->uses || !d->writer || !d->allocs || !d->written_after)
        return false;
    for (size_t b = 0; b < buffer_count; b++)
        d->writer[b] = DTP_NO_INDEX;
    return true;
}

/* Uses, first writers, and allocs in order: `fill` is where the next one of each pool goes. */
static void find_uses(const struct dtp_program *program, const struct dtp_placement *placement, uint32_t *fill,
                      struct deferral *d)
{
    const struct dtp_op *ops = dtp_program_ops(program);
    size_t op_count = dtp_program_op_count(program);
    for (uint32_t i = 0; i < op_count; i++) {
        const struct dtp_operand *operands = dtp_program_operands(program, &ops[i]);
        for (uint32_t j = 0; j < ops[i].operand_count; j++) {
            uint32_t buffer = operands[j].buffer.index;
            if (operands[j].access & DTP_UPDATE)
                d->uses[buffer].at[ops[i].stream] = i + 1;
            if ((operands[j].access & DTP_WRITE) && d->writer[buffer] == DTP_NO_INDEX)
                d->writer[buffer] = i;
            if ((operands[j].access & DTP_ALLOC) && placement->lifetime[buffer].first == i)
                d->allocs[fill[dtp_program_buffers(program)[buffer].pool]++] = buffer;
        }
    }
}

static void order_allocs(const struct dtp_program *program, const struct dtp_placement *placement, struct deferral *d)
{
    const struct dtp_buffer *buffers = dtp_program_buffers(program);
    uint32_t fill[DTP_STREAM_COUNT + 1] = {0};
    for (size_t b = 0; b < dtp_program_buffer_count(program); b++)
        if (!buffers[b].persistent && placement->lifetime[b].first != DTP_NO_INDEX)
            fill[buffers[b].pool + 1]++;
    for (int s = 0; s < DTP_STREAM_COUNT; s++)
        fill[s + 1] += fill[s];
    memcpy(d->pool_begin, fill, sizeof fill);
    find_uses(program, placement, fill, d);
    for (int s = 0; s < DTP_STREAM_COUNT; s++) {
        struct dtp_clock after; /* nothing is written later: everything is done */
        for (int t = 0; t < DTP_CLOCK_ENTRIES; t++)
            after.at[t] = DTP_CLOCK_END;
        for (uint32_t end = d->pool_begin[s + 1]; end > d->pool_begin[s]; end--) {
            uint32_t i = end - 1;
            uint32_t writer = d->writer[d->allocs[i]];
            for (int t = 0; t < DTP_STREAM_COUNT && writer != DTP_NO_INDEX; t++)
                after.at[t] = d->clocks[writer].at[t] < after.at[t] ? d->clocks[writer].at[t] : after.at[t];
            d->written_after[i] = after;
        }
    }
}

/* The operation before the first allocation from which on the bytes of `buffer`, freed at `freed`, may be handed out.
 */
static uint32_t taken_until(const struct dtp_program *program, const struct dtp_placement *placement,
                            const struct deferral *d, uint32_t buffer, uint32_t freed)
{
    enum dtp_stream pool = dtp_program_buffers(program)[buffer].pool;
    uint32_t low = d->pool_begin[pool], high = d->pool_begin[pool + 1];
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (placement->lifetime[d->allocs[middle]].first > freed &&
            dtp_clock_covers(&d->written_after[middle], &d->uses[buffer]))
            high = middle;
        else
            low = middle + 1;
    }
    if (low == d->pool_begin[pool + 1])
        return (uint32_t)dtp_program_op_count(program) - 1;
    return placement->lifetime[d->allocs[low]].first - 1;
}

/* Moves last[] of deferred buffers behind what may not have their bytes. False: no memory. */
static bool extend_deferred(const struct dtp_program *program, const struct dtp_placement *placement, uint32_t *last)
{
    const struct dtp_op *ops = dtp_program_ops(program);
    struct dtp_host_arena arena = {0};
    struct deferral d = {0};
    bool done = take_memory(program, &arena, &d);
    if (done)
        order_allocs(program, placement, &d);
    for (uint32_t i = 0; done && i < dtp_program_op_count(program); i++) {
        const struct dtp_operand *operands = dtp_program_operands(program, &ops[i]);
        for (uint32_t j = 0; j < ops[i].operand_count; j++) {
            uint32_t buffer = operands[j].buffer.index;
            if ((operands[j].access & DTP_DEFER) && placement->lifetime[buffer].last == i)
                last[buffer] = taken_until(program, placement, &d, buffer, i);
        }
    }
    dtp_host_arena_release(&arena);
    return done;
}

/* ---- offsets --------------------------------------------------------------------------------------------------- */

typedef bool fit_spans(struct dtp_fit_span *spans, uint32_t count, uint32_t time_count, struct dtp_host_arena *scratch,
                       uint64_t *extent_bytes);

/* Spans of the placed buffers, those of one pool side by side. */
struct pools {
    struct dtp_fit_span *spans;
    uint32_t *buffers; /* of the spans */
    uint32_t begin[DTP_STREAM_COUNT + 1];
};

/* `last` may lie behind the lifetime's (deferred buffers). */
static void collect_pools(const struct dtp_program *program, const uint32_t *last,
                          const struct dtp_placement *placement, struct pools *pools)
{
    const struct dtp_buffer *buffers = dtp_program_buffers(program);
    uint32_t buffer_count = (uint32_t)dtp_program_buffer_count(program), fill[DTP_STREAM_COUNT];
    memset(pools->begin, 0, sizeof pools->begin);
    for (uint32_t b = 0; b < buffer_count; b++)
        pools->begin[buffers[b].pool + 1] += is_placed(placement, buffers, b);
    for (int s = 0; s < DTP_STREAM_COUNT; s++)
        pools->begin[s + 1] += pools->begin[s];
    memcpy(fill, pools->begin, sizeof fill);
    for (uint32_t b = 0; b < buffer_count; b++)
        if (is_placed(placement, buffers, b)) {
            uint64_t blocks = dtp_divide_up(buffers[b].bytes, DTP_PLACEMENT_ALIGNMENT);
            uint32_t at = fill[buffers[b].pool]++;
            pools->buffers[at] = b;
            pools->spans[at] =
                (struct dtp_fit_span){placement->lifetime[b].first, last[b], blocks * DTP_PLACEMENT_ALIGNMENT, 0};
        }
}

/* One arena per pool, one behind the other. */
static bool place_pools(const struct dtp_program *program, const struct pools *pools, fit_spans *fit,
                        struct dtp_placement *out)
{
    struct dtp_host_arena scratch = {0};
    bool done = true;
    for (int s = 0; s < DTP_STREAM_COUNT && done; s++) {
        uint32_t begin = pools->begin[s], end = pools->begin[s + 1];
        uint64_t extent_bytes = 0;
        done = begin == end ||
               fit(&pools->spans[begin], end - begin, (uint32_t)dtp_program_op_count(program), &scratch, &extent_bytes);
        for (uint32_t i = begin; i < end; i++)
            out->offset_bytes[pools->buffers[i]] = out->arena_bytes + pools->spans[i].offset_bytes;
        out->arena_bytes += extent_bytes;
    }
    dtp_host_arena_release(&scratch);
    return done;
}

static bool place(const struct dtp_program *program, fit_spans *fit, struct dtp_host_arena *arena,
                  struct dtp_placement *out)
{
    size_t op_count = dtp_program_op_count(program), buffer_count = dtp_program_buffer_count(program);
    struct pools pools = {.spans = dtp_host_arena_take(arena, buffer_count, sizeof *pools.spans),
                          .buffers = dtp_host_arena_take(arena, buffer_count, sizeof *pools.buffers)};
    int64_t *change_bytes = dtp_host_arena_take_zeroed(arena, op_count + 2, sizeof *change_bytes);
    uint32_t *last = dtp_host_arena_take(arena, buffer_count, sizeof *last);
    out->offset_bytes = malloc(buffer_count * sizeof *out->offset_bytes + 1);
    out->lifetime = malloc(buffer_count * sizeof *out->lifetime + 1);
    if (!pools.spans || !pools.buffers || !change_bytes || !last || !out->offset_bytes || !out->lifetime)
        return false;
    bool defers = find_lifetimes(program, out->lifetime);
    find_peak(program, change_bytes, out);
    for (size_t b = 0; b < buffer_count; b++) {
        out->offset_bytes[b] = UINT64_MAX;
        last[b] = out->lifetime[b].last;
    }
    if (defers && !extend_deferred(program, out, last))
        return false;
    collect_pools(program, last, out, &pools);
    return place_pools(program, &pools, fit, out);
}

static bool is_too_large(const struct dtp_program *program)
{
    uint64_t sum_bytes = 0;
    for (size_t b = 0; b < dtp_program_buffer_count(program); b++) {
        sum_bytes += dtp_program_buffers(program)[b].bytes + DTP_PLACEMENT_ALIGNMENT;
        if (sum_bytes >= UINT64_C(1) << 63)
            return true;
    }
    return false;
}

static enum dtp_status place_with(const struct dtp_program *program, fit_spans *fit, struct dtp_placement *out,
                                  struct dtp_faults *faults)
{
    *out = (struct dtp_placement){0};
    if (is_too_large(program))
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "the buffers of the step sum to more than 2^63 bytes");
    struct dtp_host_arena arena = {0};
    bool done = place(program, fit, &arena, out);
    dtp_host_arena_release(&arena);
    if (done)
        return DTP_OK;
    dtp_placement_release(out);
    return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no memory to place %zu buffers",
                     dtp_program_buffer_count(program));
}

enum dtp_status dtp_program_place(const struct dtp_program *program, struct dtp_placement *out,
                                  struct dtp_faults *faults)
{
    return place_with(program, dtp_arena_fit, out, faults);
}

enum dtp_status dtp_program_place_tight(const struct dtp_program *program, struct dtp_placement *out,
                                        struct dtp_faults *faults)
{
    return place_with(program, dtp_arena_fit_tight, out, faults);
}

void dtp_placement_release(struct dtp_placement *placement)
{
    free(placement->offset_bytes);
    free(placement->lifetime);
    *placement = (struct dtp_placement){0};
}
