#include "observed/observed.h"

#include "observed/unpickle.h"

#include <search.h>
#include <stdlib.h>
#include <string.h>

/* The allocator's events in order (torch/cuda/memory.py; c10/cuda/CUDACachingAllocator.cpp, TraceEntry): alloc, and
 * free_completed where the bytes may be handed out again; between them a tensor is alive. Each has the stack of Python
 * functions that asked, innermost first. Autograd's own threads have none. */
struct block {
    uint64_t address, bytes;
    uint8_t part; /* enum dtp_observed_part */
    uint32_t event;
    const json_t *frames;
};

struct replay {
    struct block *alive; /* by address, a table with open places */
    size_t room, count;
    uint64_t bytes, peak_bytes, before_bytes;
    size_t peak_event;
    bool forward_seen;
};

static uint64_t whole(const json_t *object, const char *key)
{
    json_int_t value = json_integer_value(json_object_get(object, key));
    return value > 0 ? (uint64_t)value : 0;
}

/* ---- what asked -------------------------------------------------------------------------------------------------- */

#define MOST_FRAMES 64

static bool is_named(const json_t *frame, const char *name)
{
    const char *is = json_string_value(json_object_get(frame, "name"));
    return is && strcmp(is, name) == 0;
}

static bool is_from(const json_t *frame, const char *folder)
{
    const char *file = json_string_value(json_object_get(frame, "filename"));
    return file && strstr(file, folder);
}

static enum dtp_observed_part part_of(struct replay *r, const json_t *frames)
{
    size_t count = json_array_size(frames);
    bool forward = false, loss = false;
    for (size_t i = 0; i < count && i < MOST_FRAMES; i++) {
        const json_t *frame = json_array_get(frames, i);
        if (is_from(frame, "/optim/") || is_named(frame, "_init_group"))
            return DTP_OBSERVED_PART_OPTIMIZER_STATE;
        if (is_named(frame, "backward") || is_named(frame, "_engine_run_backward"))
            return DTP_OBSERVED_PART_BACKWARD;
        forward |= is_named(frame, "forward") || is_named(frame, "_call_impl");
        loss |= is_named(frame, "cross_entropy");
    }
    if (forward || loss) {
        r->forward_seen = true;
        return DTP_OBSERVED_PART_FORWARD;
    }
    if (!r->forward_seen)
        return DTP_OBSERVED_PART_WEIGHTS;
    return count == 0 ? DTP_OBSERVED_PART_BACKWARD : DTP_OBSERVED_PART_FORWARD;
}

/* ---- the table of what is alive ---------------------------------------------------------------------------------- */

static size_t place_of(const struct replay *r, uint64_t address)
{
    size_t at = (size_t)((address >> 8) * UINT64_C(0x9E3779B97F4A7C15) >> 32) & (r->room - 1);
    while (r->alive[at].bytes && r->alive[at].address != address)
        at = (at + 1) & (r->room - 1);
    return at;
}

static bool widen(struct replay *r)
{
    if (2 * (r->count + 1) < r->room)
        return true;
    struct replay wider = {.room = r->room ? 2 * r->room : 1024};
    wider.alive = calloc(wider.room, sizeof *wider.alive);
    if (!wider.alive)
        return false;
    for (size_t i = 0; i < r->room; i++)
        if (r->alive[i].bytes)
            wider.alive[place_of(&wider, r->alive[i].address)] = r->alive[i];
    free(r->alive);
    r->alive = wider.alive;
    r->room = wider.room;
    return true;
}

/* Those behind it may have been put there because of it. */
static void take_out(struct replay *r, size_t at)
{
    r->alive[at].bytes = 0;
    r->count--;
    for (size_t next = (at + 1) & (r->room - 1); r->alive[next].bytes; next = (next + 1) & (r->room - 1)) {
        struct block moved = r->alive[next];
        r->alive[next].bytes = 0;
        r->alive[place_of(r, moved.address)] = moved;
    }
}

/* False: no memory. */
static bool play(struct replay *r, const json_t *event, size_t index)
{
    const char *action = json_string_value(json_object_get(event, "action"));
    uint64_t address = whole(event, "addr"), bytes = whole(event, "size");
    if (!action || bytes == 0 || bytes > UINT64_C(1) << 50)
        return true;
    if (strcmp(action, "alloc") == 0) {
        if (!widen(r))
            return false;
        size_t at = place_of(r, address);
        if (r->alive[at].bytes) /* it was freed without a word */
            r->bytes -= r->alive[at].bytes;
        else
            r->count++;
        const json_t *frames = json_object_get(event, "frames");
        r->alive[at] = (struct block){address, bytes, (uint8_t)part_of(r, frames), (uint32_t)index, frames};
        r->bytes += bytes;
    } else if (strcmp(action, "free_completed") == 0 && r->room) {
        size_t at = place_of(r, address);
        if (!r->alive[at].bytes)
            return true; /* of before the history */
        r->bytes -= r->alive[at].bytes;
        take_out(r, at);
    }
    if (r->bytes > r->peak_bytes) {
        r->peak_bytes = r->bytes;
        r->peak_event = index;
    }
    return true;
}

/* ---- what was alive at the peak ---------------------------------------------------------------------------------- */

static int larger_first(const void *a, const void *b)
{
    const struct block *x = a, *y = b;
    return x->bytes < y->bytes ? 1 : x->bytes > y->bytes ? -1 : 0;
}

static void count_sizes(struct block *alive, size_t count, struct dtp_observed_memory *m)
{
    if (count > 0) /* else there may be no table */
        qsort(alive, count, sizeof *alive, larger_first);
    for (size_t i = 0; i < count; i++) {
        m->part_bytes[alive[i].part] += alive[i].bytes;
        bool same = m->size_count > 0 && m->sizes[m->size_count - 1].bytes == alive[i].bytes;
        if (!same && m->size_count == DTP_OBSERVED_MOST_SIZES)
            continue;
        if (!same)
            m->sizes[m->size_count++] = (struct dtp_observed_size){.bytes = alive[i].bytes};
        m->sizes[m->size_count - 1].count++;
        m->sizes[m->size_count - 1].forward_count += alive[i].part == DTP_OBSERVED_PART_FORWARD;
    }
}

/* Puts what is alive side by side; the table is gone behind it. */
static void gather(struct replay *r)
{
    size_t count = 0;
    for (size_t i = 0; i < r->room; i++)
        if (r->alive[i].bytes)
            r->alive[count++] = r->alive[i];
}

/* ---- what is never freed ----------------------------------------------------------------------------------------- */

/* Of one place, one size, made three times or more in three different parts of the history, none freed at its end;
 * weights and optimizer state are made once. */
#define LEAST_LEAKS 3

static void write_place(const json_t *frames, char *out, size_t bytes)
{
    const json_t *frame = json_array_get(frames, 0);
    const char *name = json_string_value(json_object_get(frame, "name")),
               *file = json_string_value(json_object_get(frame, "filename"));
    const char *slash = file ? strrchr(file, '/') : NULL;
    snprintf(out, bytes, "%s (%s:%lld)", name ? name : "a place without a name",
             slash  ? slash + 1
             : file ? file
                    : "?",
             (long long)json_integer_value(json_object_get(frame, "line")));
    dtp_make_printable(out);
}

/* Of equal stacks the same. */
static uint64_t hash_frames(const json_t *frames)
{
    uint64_t hash = UINT64_C(0xCBF29CE484222325); /* FNV-1a */
    for (size_t i = 0; i < json_array_size(frames); i++) {
        const json_t *frame = json_array_get(frames, i);
        const char *texts[] = {json_string_value(json_object_get(frame, "name")),
                               json_string_value(json_object_get(frame, "filename"))};
        for (size_t k = 0; k < sizeof texts / sizeof *texts; k++)
            for (const char *at = texts[k]; at && *at; at++)
                hash = (hash ^ (unsigned char)*at) * UINT64_C(0x100000001B3);
        hash = (hash ^ (uint64_t)json_integer_value(json_object_get(frame, "line"))) * UINT64_C(0x100000001B3);
    }
    return hash;
}

/* `address` is the hash of the stack by now. */
static int like_together(const void *a, const void *b)
{
    const struct block *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? 1 : -1;
    if (x->part != y->part)
        return x->part < y->part ? -1 : 1;
    if (x->address != y->address)
        return x->address < y->address ? -1 : 1;
    return x->event < y->event ? -1 : x->event > y->event;
}

static bool is_like(const struct block *a, const struct block *b)
{
    return a->bytes == b->bytes && a->part == b->part && a->address == b->address && json_equal(a->frames, b->frames);
}

/* Sorts the blocks, and loses their addresses. */
static void find_leak(struct replay *r, size_t events, struct dtp_observed_memory *m)
{
    for (size_t i = 0; i < r->count; i++)
        r->alive[i].address = hash_frames(r->alive[i].frames);
    if (r->count > 0) /* else there may be no table */
        qsort(r->alive, r->count, sizeof *r->alive, like_together);
    for (size_t first = 0, end = 0; first < r->count; first = end) {
        const struct block *one = &r->alive[first];
        for (end = first + 1; end < r->count && is_like(one, &r->alive[end]);)
            end++;
        uint64_t count = end - first, bytes = count * one->bytes;
        if (one->part == DTP_OBSERVED_PART_WEIGHTS || one->part == DTP_OBSERVED_PART_OPTIMIZER_STATE)
            continue;
        /* parts of one backward, or of one step, are near each other */
        if (count < LEAST_LEAKS || r->alive[end - 1].event - one->event < events / 4 || bytes <= m->leak.bytes)
            continue;
        m->leak.bytes = bytes;
        m->leak.count = count;
        write_place(one->frames, m->leak.where, sizeof m->leak.where);
    }
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

static uint64_t reserved_bytes(const json_t *segments, uint64_t *active_bytes)
{
    uint64_t total = 0;
    size_t i;
    json_t *segment;
    json_array_foreach(segments, i, segment)
    {
        total += whole(segment, "total_size");
        *active_bytes += whole(segment, "active_size");
    }
    return total;
}

static enum dtp_status replay(const json_t *events, struct dtp_observed_memory *m, uint64_t active_bytes,
                              struct dtp_faults *faults)
{
    struct replay r = {0};
    size_t count = json_array_size(events);
    bool ok = true;
    for (size_t i = 0; i < count && ok; i++)
        ok = play(&r, json_array_get(events, i), i);
    /* What is active at the end and not from the history is from before it. */
    uint64_t before = active_bytes > r.bytes ? active_bytes - r.bytes : 0;
    if (ok) {
        gather(&r);
        find_leak(&r, count, m);
        free(r.alive);
        struct replay again = {0};
        for (size_t i = 0; i <= r.peak_event && i < count && ok; i++)
            ok = play(&again, json_array_get(events, i), i);
        r.alive = again.alive;
        if (ok) {
            gather(&again);
            count_sizes(again.alive, again.count, m);
        }
    }
    free(r.alive);
    m->part_bytes[DTP_OBSERVED_PART_BEFORE] = before;
    m->peak_bytes = r.peak_bytes + before;
    m->events = count;
    return ok ? DTP_OK : dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
}

/* Of several GPUs the one with most events. */
static const json_t *longest(const json_t *traces)
{
    const json_t *best = NULL;
    size_t i;
    json_t *events;
    json_array_foreach(traces, i, events) best =
        !best || json_array_size(events) > json_array_size(best) ? events : best;
    return best;
}

enum dtp_status dtp_read_snapshot(const char *path, const char *bytes, size_t count, struct dtp_observed *out,
                                  struct dtp_faults *faults)
{
    json_t *snapshot;
    uint64_t active_bytes = 0;
    enum dtp_status status = dtp_unpickle(path, (const unsigned char *)bytes, count, &snapshot, faults);
    if (status != DTP_OK)
        return status;
    const json_t *events = longest(json_object_get(snapshot, "device_traces"));
    out->tool = "PyTorch's history of memory";
    out->what = DTP_OBSERVED_MEMORY;
    memset(&out->memory, 0, sizeof out->memory);
    out->memory.reserved_bytes = reserved_bytes(json_object_get(snapshot, "segments"), &active_bytes);
    if (json_array_size(events) == 0)
        status = dtp_fault(faults, DTP_BAD_INPUT, path, 0,
                           "has no history; call torch.cuda.memory._record_memory_history() before the model is made");
    if (status == DTP_OK)
        status = replay(events, &out->memory, active_bytes, faults);
    if (status == DTP_OK && out->memory.peak_bytes == 0)
        status = dtp_fault(faults, DTP_BAD_INPUT, path, 0,
                           "its history allocates nothing; record at least one step of training");
    json_decref(snapshot);
    return status;
}
