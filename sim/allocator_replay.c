/* Replays a program's device buffers through the caching allocator (caching_allocator.h). */
#include "sim/caching_allocator.h"

#include "base/grow.h"
#include "cost/calibration.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Blocks freed while other streams still use them: they come back when the host, at its next request, sees those done.
 */
struct deferred {
    uint32_t block;
    double done_s;
};

/* Kernels between the host and the device, in this step. */
struct queue {
    double queued;
    size_t taken; /* operations, of whatever stream, that have been looked at: whose kernels have left it */
};

struct replay {
    const struct dtp_program *program;
    const struct dtp_buffer *buffers;
    const struct dtp_timeline *timeline; /* or NULL */
    struct dtp_caching_allocator *allocator;
    struct dtp_host_arena memory;
    uint32_t *block;      /* per buffer */
    double *used_until_s; /* per buffer, by streams other than its pool's, in this step; only with a timeline */
    struct deferred *deferred;
    size_t deferred_count, deferred_capacity;
    double step_start_s;
    struct queue queue[DTP_STREAM_COUNT]; /* each stream's; where all share one, the first */
    double taken_s;                       /* when the last that left a full one was done */
    uint32_t first_bucket;                /* DDP's, while it is held */
    bool buckets_rebuilt;
    size_t third, repeats, repeats_end; /* operations: start of the third micro-step; those that only repeat, or none */
    bool optimizer_made, failed;
};

static void take(struct replay *r, uint32_t buffer)
{
    const struct dtp_buffer *b = &r->buffers[buffer];
    if (b->space != DTP_SPACE_DEVICE || !b->bytes)
        return;
    r->block[buffer] = dtp_caching_allocator_take(r->allocator, b->pool, b->bytes);
    r->failed = r->failed || r->block[buffer] == DTP_NO_BLOCK;
    if (r->timeline)
        r->used_until_s[buffer] = 0;
}

static void give(struct replay *r, uint32_t block)
{
    r->failed = r->failed || !dtp_caching_allocator_give(r->allocator, block);
}

static void defer(struct replay *r, uint32_t buffer)
{
    if (!dtp_grow(&r->deferred, r->deferred_count, &r->deferred_capacity, sizeof *r->deferred)) {
        r->failed = true;
        return;
    }
    dtp_caching_allocator_release(r->allocator, r->block[buffer]);
    r->deferred[r->deferred_count++] = (struct deferred){r->block[buffer], r->step_start_s + r->used_until_s[buffer]};
}

static void free_buffer(struct replay *r, const struct dtp_operand *operand)
{
    uint32_t buffer = operand->buffer.index;
    if (r->block[buffer] == DTP_NO_BLOCK)
        return;
    if (r->timeline && (operand->access & DTP_DEFER))
        defer(r, buffer);
    else
        give(r, r->block[buffer]);
    r->block[buffer] = DTP_NO_BLOCK;
}

static void give_back_deferred(struct replay *r, double now_s)
{
    size_t kept = 0;
    for (size_t i = 0; i < r->deferred_count; i++)
        if (r->deferred[i].done_s <= now_s)
            give(r, r->deferred[i].block);
        else
            r->deferred[kept++] = r->deferred[i];
    r->deferred_count = kept;
}

enum persistent { BUCKETS, OPTIMIZER_STATE, THE_REST };

/* Buckets are DDP's (whoever lays ddp_buckets.h); other gradients at rest, Megatron's buffer among them, are made once,
 * and so is a master copy that is there before the first step. */
static enum persistent persistent_kind(const struct dtp_buffer *b)
{
    if (b->owner == DTP_OWNER_GRADS && strcmp(b->name, "bucket") == 0)
        return BUCKETS;
    bool made_later = b->owner == DTP_OWNER_OPTIMIZER && strcmp(b->name, "master weights") != 0;
    return made_later ? OPTIMIZER_STATE : THE_REST;
}

static void take_persistent(struct replay *r, enum persistent kind)
{
    size_t count = dtp_program_buffer_count(r->program);
    for (int ahead = 1; ahead >= 0; ahead--)
        for (uint32_t i = 0; i < count; i++)
            if (r->buffers[i].persistent && persistent_kind(&r->buffers[i]) == kind &&
                (r->buffers[i].layer == DTP_NO_LAYER) == ahead)
                take(r, i);
}

/* DDP begins with one bucket of all gradients (distributed.py: bucket_size_limits = [sys.maxsize] unless it has to find
 * unused parameters) and makes the ones of bucket_cap_mb when it has seen the order of the first backward, at the start
 * of the second step (reducer.cpp, rebuild_buckets). The first one is dropped then, but its memory stays: the work of
 * its all-reduce holds it until the next collective is issued (ProcessGroupNCCL's shelves), which is in the second
 * backward, after the loss, where memory peaks. Where a hook reduces something else than buckets, nothing holds it, and
 * the new ones lie where it was. */
static void take_first_bucket(struct replay *r)
{
    size_t count = dtp_program_buffer_count(r->program);
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        if (r->buffers[i].persistent && r->buffers[i].space == DTP_SPACE_DEVICE &&
            persistent_kind(&r->buffers[i]) == BUCKETS)
            bytes += r->buffers[i].bytes;
    if (!bytes)
        return;
    r->first_bucket = dtp_caching_allocator_take(r->allocator, DTP_STREAM_COMPUTE, bytes);
    r->failed = r->failed || r->first_bucket == DTP_NO_BLOCK;
}

/* Collectives that reduce DDP's buckets themselves. */
static bool sends_buckets(const struct dtp_program *program)
{
    const struct dtp_buffer *buffers = dtp_program_buffers(program);
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        const struct dtp_operand *operand = dtp_program_operands(program, op);
        for (uint32_t k = 0; dtp_op_kind_class(op->kind) == DTP_CLASS_COLLECTIVE && k < op->operand_count; k++)
            if (persistent_kind(&buffers[operand[k].buffer.index]) == BUCKETS)
                return true;
    }
    return false;
}

static void drop_first_bucket(struct replay *r)
{
    give(r, r->first_bucket);
    r->first_bucket = DTP_NO_BLOCK;
}

static void rebuild_buckets(struct replay *r)
{
    if (r->first_bucket == DTP_NO_BLOCK || r->failed)
        return;
    if (!sends_buckets(r->program))
        drop_first_bucket(r);
    take_persistent(r, BUCKETS);
    r->buckets_rebuilt = true;
}

/* What an operation puts into a queue: its kernels. In a queue of its own stream also what it waits for on others, and
 * the event that the allocator records for each block that goes while its stream still uses it (insert_events of
 * CUDACachingAllocator.cpp). */
static uint32_t launches(const struct replay *r, const struct dtp_op *op, bool shared)
{
    uint32_t count = op->demand->kernels;
    const struct dtp_operand *operand = dtp_program_operands(r->program, op);
    if (op->demand->issue == DTP_ISSUE_REPLAYED)
        return 0;
    for (uint32_t i = 0; i < op->operand_count && !shared; i++)
        count += operand[i].access & DTP_DEFER && r->buffers[operand[i].buffer.index].pool != op->stream;
    return count + (shared ? 0 : op->dependency_count);
}

/* When the host comes to an operation. What a CUDA graph replays has its memory since it was captured, where a block
 * that another stream reads is free again for what the graph puts behind that (graph_capture_record_stream_reuse, as
 * recipes of Megatron-Bridge set it): as if it were taken when the operation starts. Else the host is ahead of the
 * device by as many kernels as a queue holds: it stands still before one more until the first of them is taken. Each
 * stream has its own, or all share one, from which the device takes them in order; then the host, which waits for
 * nothing else in a micro-step, is always so far ahead. */
static double host_s(struct replay *r, size_t index)
{
    const struct dtp_op *ops = dtp_program_ops(r->program);
    bool shared = dtp_program_execution(r->program)->one_queue;
    struct queue *queue = &r->queue[shared ? 0 : ops[index].stream];
    if (ops[index].demand->issue == DTP_ISSUE_REPLAYED)
        return r->step_start_s + r->timeline->span[index].start_s;
    for (queue->queued += launches(r, &ops[index], shared);
         queue->queued > dtp_calibration.launch_queue && queue->taken < index; queue->taken++) {
        if (!shared && ops[queue->taken].stream != ops[index].stream)
            continue;
        queue->queued -= launches(r, &ops[queue->taken], shared);
        r->taken_s = fmax(r->taken_s, r->timeline->span[queue->taken].end_s);
    }
    return r->step_start_s + (shared ? r->taken_s : fmax(r->taken_s, r->timeline->issue_s[index]));
}

static void replay_op(struct replay *r, size_t index)
{
    double now_s = r->timeline ? host_s(r, index) : 0;
    const struct dtp_op *op = &dtp_program_ops(r->program)[index];
    const struct dtp_operand *operand = dtp_program_operands(r->program, op);
    if (op->kind == DTP_OP_OPTIMIZER && !r->optimizer_made) {
        take_persistent(r, OPTIMIZER_STATE);
        r->optimizer_made = true;
    }
    bool collective = dtp_op_kind_class(op->kind) == DTP_CLASS_COLLECTIVE;
    if (collective && r->buckets_rebuilt && r->first_bucket != DTP_NO_BLOCK)
        drop_first_bucket(r);
    if (r->deferred_count)
        give_back_deferred(r, now_s);
    for (uint32_t i = 0; i < op->operand_count && !r->failed; i++) {
        uint32_t buffer = operand[i].buffer.index;
        if (operand[i].access & DTP_ALLOC)
            take(r, buffer);
        bool foreign = r->buffers[buffer].pool != op->stream; /* its own stream needs no waiting: it reuses in order */
        if (r->timeline && foreign && r->timeline->span[index].end_s > r->used_until_s[buffer])
            r->used_until_s[buffer] = r->timeline->span[index].end_s;
    }
    for (uint32_t i = 0; i < op->operand_count && !r->failed; i++)
        if (operand[i].access & DTP_FREE)
            free_buffer(r, &operand[i]);
}

/* ---- micro-steps that repeat ------------------------------------------------------------------------------------- */

/* First operation after those of the micro-step that `from` belongs to. */
static size_t end_of_micro_step(const struct dtp_op *ops, size_t count, size_t from)
{
    size_t i = from;
    while (i < count && ops[i].micro_step == ops[from].micro_step)
        i++;
    return i;
}

/* True where the operations [from, end) free exactly what they allocate. `block` is scratch: all DTP_NO_BLOCK. */
static bool is_self_contained(const struct dtp_program *program, size_t from, size_t end, uint32_t *block)
{
    const struct dtp_op *ops = dtp_program_ops(program);
    size_t live = 0;
    bool own = true;
    for (size_t i = from; i < end; i++) {
        const struct dtp_operand *operand = dtp_program_operands(program, &ops[i]);
        for (uint32_t k = 0; k < ops[i].operand_count; k++) {
            uint32_t *mine = &block[operand[k].buffer.index];
            if (operand[k].access & DTP_ALLOC) {
                *mine = 0;
                live++;
            }
            if (operand[k].access & DTP_FREE) {
                own = own && *mine != DTP_NO_BLOCK;
                live -= *mine != DTP_NO_BLOCK;
                *mine = DTP_NO_BLOCK;
            }
        }
    }
    return own && !live;
}

/* Micro-steps between the third and the last that leave nothing behind only repeat what the allocator has seen:
 * operations [from, end) may be left out once a micro-step has not made it grow. from == end: none. */
static void find_repetition(struct replay *r)
{
    const struct dtp_op *ops = dtp_program_ops(r->program);
    size_t count = dtp_program_op_count(r->program), start[4] = {0}, last = 0;
    for (int m = 1; m < 4; m++)
        start[m] = end_of_micro_step(ops, count, start[m - 1]);
    for (size_t i = 1; i < count; i++) {
        if (ops[i].micro_step < ops[i - 1].micro_step)
            return;
        last = ops[i].micro_step > ops[i - 1].micro_step ? i : last;
    }
    if (start[3] >= last)
        return;
    for (size_t from = start[2], end; from < last; from = end) {
        end = end_of_micro_step(ops, count, from);
        if (!is_self_contained(r->program, from, end, r->block))
            return;
    }
    r->third = start[2];
    r->repeats = start[3];
    r->repeats_end = last;
}

static bool prepare(struct replay *r, bool expandable_segments, uint64_t capacity_bytes)
{
    size_t buffers = dtp_program_buffer_count(r->program);
    r->allocator = dtp_caching_allocator_create(expandable_segments, capacity_bytes);
    r->block = dtp_host_arena_take(&r->memory, buffers, sizeof *r->block);
    r->used_until_s = dtp_host_arena_take_zeroed(&r->memory, buffers, sizeof *r->used_until_s);
    if (!r->allocator || !r->block || !r->used_until_s)
        return false;
    r->first_bucket = DTP_NO_BLOCK;
    memset(r->block, 0xff, buffers * sizeof *r->block); /* DTP_NO_BLOCK */
    find_repetition(r);
    memset(r->block, 0xff, buffers * sizeof *r->block);
    return true;
}

/* What only repeats still goes through the queues. Returns the operation behind it. */
static size_t pass_over(struct replay *r)
{
    for (size_t i = r->repeats; i < r->repeats_end && r->timeline; i++)
        (void)host_s(r, i);
    return r->repeats_end;
}

static void replay_step(struct replay *r)
{
    size_t ops = dtp_program_op_count(r->program);
    uint64_t before = 0;
    memset(r->queue, 0, sizeof r->queue);
    r->taken_s = 0;
    for (size_t i = 0; i < ops && !r->failed; i++) {
        bool at_end = i == r->third || i == r->repeats;
        uint64_t reserved = at_end ? dtp_caching_allocator_look(r->allocator).reserved_bytes : 0;
        if (r->repeats && i == r->repeats && reserved == before)
            i = pass_over(r);
        before = at_end ? reserved : before;
        replay_op(r, i);
    }
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

/* Steps until segments stop growing, with DDP at least three. The first has no optimizer state in its backward; in the
 * second the first bucket is still there; later ones repeat but for gaps that have moved. */
static void replay_steps(struct replay *r, struct dtp_allocator_replay *out)
{
    uint64_t before = 0;
    take_persistent(r, THE_REST);
    take_first_bucket(r);
    while (out->steps < DTP_REPLAY_STEPS && !r->failed) {
        dtp_caching_allocator_reset_peaks(r->allocator);
        replay_step(r);
        out->steps++;
        r->step_start_s += r->timeline ? r->timeline->step_s : 0;
        out->state = dtp_caching_allocator_look(r->allocator);
        if (out->steps > (r->buckets_rebuilt ? 2u : 1u) && out->state.reserved_peak_bytes == before)
            break;
        before = out->state.reserved_peak_bytes;
        if (out->steps == 1)
            rebuild_buckets(r);
    }
    if (!r->optimizer_made) /* updated on the host, or a program of forward and backward alone */
        take_persistent(r, OPTIMIZER_STATE);
    out->state = dtp_caching_allocator_look(r->allocator);
}

enum dtp_status dtp_allocator_replay(const struct dtp_program *program, const struct dtp_timeline *timeline,
                                     bool expandable_segments, uint64_t capacity_bytes,
                                     struct dtp_allocator_replay *out, struct dtp_faults *faults)
{
    struct replay r = {.program = program, .buffers = dtp_program_buffers(program), .timeline = timeline};
    *out = (struct dtp_allocator_replay){.steps = 0};
    r.failed = !prepare(&r, expandable_segments, capacity_bytes);
    if (!r.failed)
        replay_steps(&r, out);
    dtp_caching_allocator_destroy(r.allocator);
    dtp_host_arena_release(&r.memory);
    free(r.deferred);
    return r.failed ? dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no memory to replay the allocator") : DTP_OK;
}
