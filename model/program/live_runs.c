#include "program/live_runs.h"

#include "base/grow.h"

#include <stdlib.h>
#include <string.h>

struct dtp_live_run *dtp_live_runs_add(struct dtp_live_runs *runs)
{
    if (!dtp_grow(&runs->run, runs->count, &runs->capacity, sizeof *runs->run))
        return NULL;
    return &runs->run[runs->count++];
}

void dtp_live_runs_release(struct dtp_live_runs *runs)
{
    free(runs->run);
    if (runs->fills)
        free(runs->teller.context);
    *runs = (struct dtp_live_runs){.run = NULL};
}

/* ---- of a program ------------------------------------------------------------------------------------------------ */

/* False: the mark is none of a phase. */
static bool phase_of_mark(const char *mark, enum dtp_phase *out)
{
    static const struct {
        const char *mark;
        enum dtp_phase phase;
    } marks[] = {{"forward", DTP_PHASE_FORWARD_END},
                 {"loss", DTP_PHASE_LOSS},
                 {"backward", DTP_PHASE_EARLY_BACKWARD},
                 {"step", DTP_PHASE_STEP}};
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        if (strcmp(mark, marks[i].mark) == 0) {
            *out = marks[i].phase;
            return true;
        }
    return false;
}

static void add(struct dtp_live_sum *sum, struct dtp_live_pools *pools, const struct dtp_buffer *buffer, int64_t sign)
{
    int64_t bytes = sign * (int64_t)buffer->bytes;
    sum->bytes[buffer->owner] += bytes;
    sum->total_bytes += bytes;
    pools->bytes[buffer->pool] += bytes;
}

static void keep_larger(int64_t value, int64_t *most)
{
    *most = value > *most ? value : *most;
}

/* splitmix64's finaliser (Steele et al. 2014) */
static uint64_t mix(uint64_t hash, uint64_t value)
{
    uint64_t z = (hash ^ value) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    return z ^ z >> 27;
}

/* Adds (sign 1) or takes away (-1) a buffer that comes or goes at an operand, `mark`. False: it is none of the
 * device. */
static inline bool move(const struct dtp_buffer *buffer, enum dtp_access mark, int64_t sign, bool shapes,
                        struct dtp_live_run *run)
{
    if (buffer->space != DTP_SPACE_DEVICE || !buffer->bytes)
        return false;
    add(&run->net, &run->pools_net, buffer, sign);
    run->owners |= 1u << buffer->owner;
    run->pools |= 1u << buffer->pool;
    if (sign > 0) {
        keep_larger(run->net.bytes[buffer->owner], &run->most[buffer->owner]);
        keep_larger(run->pools_net.bytes[buffer->pool], &run->pools_most.bytes[buffer->pool]);
    }
    if (!shapes)
        return true;
    uint64_t what = (uint64_t)mark << 16 | (uint64_t)buffer->owner << 8 | (uint64_t)buffer->pool;
    if (what != run->last_move)
        run->shape = mix(run->shape, what);
    run->last_move = what;
    return true;
}

/* Keeps the instant at hand where it is the fullest, or the first. */
static void look(struct dtp_live_run *run)
{
    if (!run->moves || run->net.total_bytes > run->full.total_bytes)
        run->full = run->net;
    run->moves = true;
}

static bool continues(const struct dtp_live_runs *runs, const struct dtp_live_run *last, uint16_t layer,
                      uint16_t micro_step)
{
    if (last->micro_step != micro_step)
        return false;
    if (!runs->joined)
        return last->layer == layer;
    return runs->phase != DTP_PHASE_EARLY_BACKWARD || layer >= runs->half || last->layer < runs->half;
}

/* The run that `op` belongs to: the one before it, or one that begins with it. NULL: no memory. */
static struct dtp_live_run *run_of(struct dtp_live_runs *runs, const struct dtp_new_op *op)
{
    struct dtp_live_run *last = runs->count ? &runs->run[runs->count - 1] : NULL;
    bool begins = op->kind == DTP_OP_MARK && phase_of_mark(op->name, &runs->phase);
    if (last && !begins && !runs->coming && !runs->apart && continues(runs, last, op->layer, op->micro_step))
        return last;
    struct dtp_live_run *run = dtp_live_runs_add(runs);
    if (run)
        *run = (struct dtp_live_run){.begins = begins,
                                     .fills = runs->coming,
                                     .phase = runs->phase,
                                     .layer = op->layer,
                                     .micro_step = op->micro_step};
    runs->coming = 0;
    runs->apart = false;
    return run;
}

/* ---- parts that are the same again ------------------------------------------------------------------------------- */

static void add_sum(const struct dtp_live_sum *more, uint32_t owners, struct dtp_live_sum *sum)
{
    for (uint32_t left = owners; left; left &= left - 1)
        sum->bytes[__builtin_ctz(left)] += more->bytes[__builtin_ctz(left)];
    sum->total_bytes += more->total_bytes;
}

/* `part` behind what `run` has done: all that its operations would have made of it. */
static void append(const struct dtp_live_run *part, struct dtp_live_run *run)
{
    if (!part->moves)
        return;
    if (!run->moves || run->net.total_bytes + part->full.total_bytes > run->full.total_bytes) {
        run->full = run->net;
        add_sum(&part->full, part->owners, &run->full);
    }
    for (uint32_t left = part->owners; left; left &= left - 1) {
        int owner = __builtin_ctz(left);
        keep_larger(run->net.bytes[owner] + part->most[owner], &run->most[owner]);
    }
    for (uint32_t left = part->pools; left; left &= left - 1) {
        int pool = __builtin_ctz(left);
        keep_larger(run->pools_net.bytes[pool] + part->pools_most.bytes[pool], &run->pools_most.bytes[pool]);
        run->pools_net.bytes[pool] += part->pools_net.bytes[pool];
    }
    add_sum(&part->net, part->owners, &run->net);
    run->shape = mix(run->shape, part->shape);
    run->last_move = 0;
    run->owners |= part->owners;
    run->pools |= part->pools;
    run->moves = true;
}

size_t dtp_live_runs_begin_part(struct dtp_live_runs *runs)
{
    runs->apart = true;
    return runs->count;
}

bool dtp_live_runs_end_part(struct dtp_live_runs *runs, size_t first, struct dtp_live_run *out)
{
    bool alone = runs->count == first + 1 && !runs->apart && !runs->coming;
    runs->apart = false;
    if (!alone || runs->run[first].begins || runs->run[first].fills || runs->run[first].told)
        return false;
    *out = runs->run[first];
    if (first && continues(runs, &runs->run[first - 1], out->layer, out->micro_step)) {
        append(out, &runs->run[first - 1]);
        runs->count--;
    }
    return true;
}

bool dtp_live_runs_repeat(struct dtp_live_runs *runs, const struct dtp_live_run *part, uint16_t layer,
                          uint16_t micro_step)
{
    struct dtp_live_run *last = runs->count ? &runs->run[runs->count - 1] : NULL;
    if (last && continues(runs, last, layer, micro_step)) {
        append(part, last);
        return true;
    }
    struct dtp_live_run *run = dtp_live_runs_add(runs);
    if (!run)
        return false;
    *run = *part;
    run->phase = runs->phase;
    run->layer = layer;
    run->micro_step = micro_step;
    return true;
}

/* ---- its operations ---------------------------------------------------------------------------------------------- */

bool dtp_live_runs_tell(struct dtp_live_runs *runs, uint8_t what, uint16_t layer, uint16_t micro_step)
{
    struct dtp_live_run *last = runs->count ? &runs->run[runs->count - 1] : NULL;
    const unsigned bits = 8, full = bits * (DTP_LIVE_TOLD - 1);
    bool joins =
        last && last->layer == layer && last->micro_step == micro_step && !last->moves && !(last->told >> full);
    struct dtp_live_run *run = joins ? last : dtp_live_runs_add(runs);
    if (!run)
        return false;
    if (!joins)
        *run = (struct dtp_live_run){.phase = runs->phase, .layer = layer, .micro_step = micro_step};
    unsigned shift = 0;
    while (run->told >> shift & UINT8_MAX)
        shift += bits;
    run->told |= (uint64_t)what << shift;
    return true;
}

static bool read_op(void *context, const struct dtp_new_op *op, const struct dtp_operand *operands,
                    size_t operand_count, const struct dtp_buffer *buffers)
{
    struct dtp_live_runs *runs = context;
    struct dtp_live_run *run = run_of(runs, op);
    const bool shapes = !runs->joined; /* what is joined is never compared */
    const struct dtp_operand *end = operands + operand_count, *first_freed = end;
    bool came = false, went = false;
    if (!run)
        return false;
    for (const struct dtp_operand *o = operands; o < end && first_freed == end; o++)
        first_freed = o->access & DTP_FREE ? o : end;
    for (const struct dtp_operand *o = operands; o < end; o++)
        if (o->access & DTP_ALLOC)
            came |= move(&buffers[o->buffer.index], DTP_ALLOC, 1, shapes, run);
    if (came)
        look(run);
    for (const struct dtp_operand *o = first_freed; o < end; o++)
        if (o->access & DTP_FREE)
            went |= move(&buffers[o->buffer.index], DTP_FREE, -1, shapes, run);
    if (went && !run->moves)
        look(run);
    return true;
}

struct dtp_program_reader dtp_live_runs_reader(struct dtp_live_runs *out)
{
    out->count = 0;
    out->phase = DTP_PHASE_FORWARD_END;
    out->bucket = (struct dtp_live_bucket){.elements = 0};
    out->coming = 0;
    out->apart = false;
    out->overfull = false;
    return (struct dtp_program_reader){read_op, out};
}

void dtp_live_runs_end(const struct dtp_program *program, struct dtp_live_runs *out)
{
    const struct dtp_buffer *buffers = dtp_program_buffers(program);
    const size_t count = dtp_program_buffer_count(program);
    out->standing = (struct dtp_live_sum){.total_bytes = 0};
    out->pools_standing = (struct dtp_live_pools){{0}};
    for (size_t i = 0; i < count; i++)
        if (buffers[i].persistent && buffers[i].space == DTP_SPACE_DEVICE)
            add(&out->standing, &out->pools_standing, &buffers[i], 1);
}

enum dtp_status dtp_live_runs_of(const struct dtp_program *program, struct dtp_live_runs *out,
                                 struct dtp_faults *faults)
{
    const struct dtp_op *ops = dtp_program_ops(program);
    const struct dtp_buffer *buffers = dtp_program_buffers(program);
    struct dtp_program_reader reader = dtp_live_runs_reader(out);
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_new_op op = {
            .kind = ops[i].kind, .layer = ops[i].layer, .micro_step = ops[i].micro_step, .name = ops[i].name};
        if (!reader.read(out, &op, dtp_program_operands(program, &ops[i]), ops[i].operand_count, buffers))
            return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no memory to add up the live bytes of a step");
    }
    dtp_live_runs_end(program, out);
    return DTP_OK;
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

static void keep_phase(const struct dtp_live_sum *base, const struct dtp_live_sum *full, enum dtp_phase phase,
                       struct dtp_live_bytes *out)
{
    uint64_t total = (uint64_t)(base->total_bytes + full->total_bytes);
    if (total <= out->phase_total_bytes[phase])
        return;
    out->phase_total_bytes[phase] = total;
    for (int owner = 0; owner < DTP_OWNER_COUNT; owner++)
        out->phase_bytes[phase][owner] = (uint64_t)(base->bytes[owner] + full->bytes[owner]);
}

/* The lowest of a set, which is not empty. */
static int first_of(uint32_t set)
{
    return __builtin_ctz(set);
}

static uint64_t larger(uint64_t most, int64_t bytes)
{
    return (uint64_t)bytes > most ? (uint64_t)bytes : most;
}

/* Of those that it moves: what others have stands since it came. */
static void keep_most(const struct dtp_live_sum *base, const struct dtp_live_pools *pools,
                      const struct dtp_live_run *run, struct dtp_live_bytes *out)
{
    for (uint32_t left = run->owners; left; left &= left - 1) {
        int owner = first_of(left);
        out->most_bytes[owner] = larger(out->most_bytes[owner], base->bytes[owner] + run->most[owner]);
    }
    for (uint32_t left = run->pools; left; left &= left - 1) {
        int pool = first_of(left);
        out->pool_bytes[pool] = larger(out->pool_bytes[pool], pools->bytes[pool] + run->pools_most.bytes[pool]);
    }
}

static void keep_standing(const struct dtp_live_runs *runs, struct dtp_live_bytes *out)
{
    for (int owner = 0; owner < DTP_OWNER_COUNT; owner++)
        out->standing_bytes[owner] = (uint64_t)runs->standing.bytes[owner];
    for (int pool = 0; pool < DTP_STREAM_COUNT; pool++)
        out->standing_pool_bytes[pool] = (uint64_t)runs->pools_standing.bytes[pool];
}

/* Where the sum stands. */
struct dtp_live_walk {
    uint64_t half; /* layers below which backward is late */
    struct dtp_live_bytes *out;
    struct dtp_live_sum now;
    struct dtp_live_pools pools;
    enum dtp_phase of, before; /* of the run at hand, by marks; of the operations so far */
    bool late;
    const struct dtp_live_teller *teller;
    const struct dtp_live_bucket *bucket;
    uint64_t filled, reduced; /* elements in the bucket, in those before it up to the last flush */
    bool kept, flushed;       /* it was reduced before, and flushed */
    bool again;               /* since the last flush what gradients rest in was made once more */
};

static const struct dtp_live_run nothing;
static const struct dtp_live_run nothing_of_all = {.owners = (1u << DTP_OWNER_COUNT) - 1,
                                                   .pools = (1u << DTP_STREAM_COUNT) - 1};

/* The run leaves `times` what it leaves once. */
static void leave(struct dtp_live_walk *walk, const struct dtp_live_run *run, int64_t times)
{
    for (uint32_t left = run->owners; left; left &= left - 1)
        walk->now.bytes[first_of(left)] += times * run->net.bytes[first_of(left)];
    walk->now.total_bytes += times * run->net.total_bytes;
    for (uint32_t left = run->pools; left; left &= left - 1)
        walk->pools.bytes[first_of(left)] += times * run->pools_net.bytes[first_of(left)];
}

/* Bytes that come, `kept` of them to stay. */
static void pass(struct dtp_live_walk *walk, enum dtp_owner owner, int64_t bytes, bool kept)
{
    enum dtp_stream pool = walk->bucket->pool;
    struct dtp_live_run run = {.moves = true, .owners = 1u << owner, .pools = 1u << pool};
    run.full.bytes[owner] = run.most[owner] = run.full.total_bytes = run.pools_most.bytes[pool] = bytes;
    if (kept)
        run.net.bytes[owner] = run.net.total_bytes = run.pools_net.bytes[pool] = bytes;
    keep_phase(&walk->now, &run.full, walk->before, walk->out);
    keep_most(&walk->now, &walk->pools, &run, walk->out);
    leave(walk, &run, 1);
}

/* What is in the bucket is reduced, and lets go. */
static void reduce(struct dtp_live_walk *walk)
{
    const struct dtp_live_bucket *bucket = walk->bucket;
    if (!dtp_live_bucket_in_one_part(bucket->all_elements, bucket->part_elements, walk->reduced, walk->filled,
                                     bucket->from_first))
        pass(walk, DTP_OWNER_REDUCE, (int64_t)(walk->filled * bucket->element_bytes), false);
    bool again = walk->flushed && !walk->again;
    if (!walk->kept || again)
        pass(walk, DTP_OWNER_GRADS, bucket->kept_bytes, true);
    walk->again |= again;
    walk->kept = true;
    walk->reduced += walk->filled;
    walk->filled = 0;
}

static void fill(struct dtp_live_walk *walk, uint64_t elements)
{
    bool flush = elements == DTP_LIVE_FLUSH;
    if (walk->filled && (flush || walk->filled + elements > walk->bucket->elements))
        reduce(walk);
    walk->filled += flush ? 0 : elements;
    if (!flush)
        return;
    if (walk->again)
        dtp_live_go(walk, DTP_OWNER_GRADS, walk->bucket->pool, (uint64_t)walk->bucket->kept_bytes);
    walk->again = false;
    walk->flushed = true;
    walk->reduced = 0;
}

static void stand(struct dtp_live_walk *walk, bool begins, uint64_t layer)
{
    bool backward = walk->of == DTP_PHASE_EARLY_BACKWARD;
    walk->late = backward && ((walk->late && !begins) || layer < walk->half);
    enum dtp_phase phase = walk->late ? DTP_PHASE_LATE_BACKWARD : walk->of;
    if (phase != walk->before) /* what the phase before it left stands while its first operation reads it */
        keep_phase(&walk->now, &nothing.full, phase, walk->out);
    walk->before = phase;
}

void dtp_live_stand(struct dtp_live_walk *walk, uint64_t layer)
{
    stand(walk, false, layer);
}

void dtp_live_come(struct dtp_live_walk *walk, enum dtp_owner owner, enum dtp_stream pool, uint64_t bytes)
{
    struct dtp_live_bytes *out = walk->out;
    walk->now.bytes[owner] += (int64_t)bytes;
    walk->now.total_bytes += (int64_t)bytes;
    walk->pools.bytes[pool] += (int64_t)bytes;
    out->most_bytes[owner] = larger(out->most_bytes[owner], walk->now.bytes[owner]);
    out->pool_bytes[pool] = larger(out->pool_bytes[pool], walk->pools.bytes[pool]);
    keep_phase(&walk->now, &nothing.full, walk->before, out);
}

void dtp_live_go(struct dtp_live_walk *walk, enum dtp_owner owner, enum dtp_stream pool, uint64_t bytes)
{
    walk->now.bytes[owner] -= (int64_t)bytes;
    walk->now.total_bytes -= (int64_t)bytes;
    walk->pools.bytes[pool] -= (int64_t)bytes;
}

/* What was told is of the run's layer, but for operations that say another. */
static void say(struct dtp_live_walk *walk, const struct dtp_live_run *run, uint64_t layer)
{
    const struct dtp_live_teller *teller = walk->teller;
    for (uint64_t told = run->told; told; told >>= 8)
        teller->said(teller->context, (uint8_t)told, layer, run->micro_step, walk);
}

static void add_run(struct dtp_live_walk *walk, const struct dtp_live_run *run, int64_t layer)
{
    walk->of = run->phase;
    if (run->begins || !run->told)
        stand(walk, run->begins, (uint64_t)layer);
    if (run->told) {
        say(walk, run, (uint64_t)layer);
        stand(walk, false, (uint64_t)layer);
    }
    if (run->fills)
        fill(walk, run->fills);
    if (!run->moves)
        return;
    keep_phase(&walk->now, &run->full, walk->before, walk->out);
    keep_most(&walk->now, &walk->pools, run, walk->out);
    leave(walk, run, 1);
}

/* The repetition of the stretch in which the first of its runs comes to the lower half of the net; one that it does not
 * have where none does. */
static int64_t turn_of(const struct dtp_live_walk *walk, const struct dtp_live_run *run)
{
    int64_t first = (int64_t)run->again + 1;
    for (uint32_t i = 0; i < run->stretch; i++) {
        int64_t above = (int64_t)run[i].layer - (int64_t)walk->half, step = -(int64_t)run[i].layers_on;
        int64_t turn = above < 0 ? 0 : step > 0 ? above / step + 1 : first;
        first = turn < first ? turn : first;
    }
    return first;
}

static bool fills(const struct dtp_live_run *run)
{
    for (uint32_t i = 0; i < run->stretch; i++)
        if (run[i].fills || run[i].told)
            return true;
    return false;
}

/* From one repetition to the next every sum grows or falls by the same bytes. So within a phase it is largest in the
 * first or in the last, and the first of equal ones is among these two: only they and those around the turn from early
 * to late backward are looked at; all of them where a bucket is full in any, or something is told. */
static void add_stretch(struct dtp_live_walk *walk, const struct dtp_live_run *run)
{
    int64_t last = run->again, turn = turn_of(walk, run);
    const bool all = fills(run);
    for (int64_t copy = 0;;) {
        for (uint32_t i = 0; i < run->stretch; i++)
            add_run(walk, &run[i], run[i].layer + copy * run[i].layers_on);
        if (copy == last)
            return;
        int64_t next = copy < turn - 1 ? turn - 1 : copy <= turn ? copy + 1 : last;
        next = all ? copy + 1 : next;
        next = next < last ? next : last;
        for (uint32_t i = 0; i < run->stretch && next > copy + 1; i++)
            leave(walk, &run[i], next - copy - 1);
        copy = next;
    }
}

void dtp_live_bytes_sum(const struct dtp_live_runs *runs, uint64_t layers, struct dtp_live_bytes *out)
{
    struct dtp_live_walk walk = {.half = dtp_live_runs_half(layers),
                                 .out = out,
                                 .now = runs->standing,
                                 .pools = runs->pools_standing,
                                 .teller = &runs->teller,
                                 .bucket = &runs->bucket,
                                 .before = DTP_PHASE_FORWARD_END};
    *out = (struct dtp_live_bytes){.peak_phase = (enum dtp_phase)0};
    keep_phase(&walk.now, &nothing.full, DTP_PHASE_FORWARD_END, out);
    keep_most(&walk.now, &walk.pools, &nothing_of_all, out);
    keep_standing(runs, out);
    for (size_t i = 0; i < runs->count; i += runs->run[i].stretch ? runs->run[i].stretch : 1)
        if (runs->run[i].stretch)
            add_stretch(&walk, &runs->run[i]);
        else
            add_run(&walk, &runs->run[i], runs->run[i].layer);
    for (int phase = 1; phase < DTP_PHASE_COUNT; phase++)
        if (out->phase_total_bytes[phase] > out->phase_total_bytes[out->peak_phase])
            out->peak_phase = (enum dtp_phase)phase;
}
