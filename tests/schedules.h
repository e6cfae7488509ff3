/* An oracle for the verifier and the placement that knows nothing of clocks: it runs a program at its offsets in a
 * random order that the rules allow, one stream far ahead of the others, and watches whether every operation still
 * reads what the list of operations says it reads.
 *
 * An operation starts when the one before it on its stream, its dependencies, the collective before it in its group and
 * every earlier HOST_WAIT are done. From its start to its end its results are garbage, and so is, from then on,
 * whatever shares bytes with them. */
#ifndef SCHEDULES_H
#define SCHEDULES_H

#include "placement.h"

#include <stdlib.h>

#define SCHEDULE_GARBAGE UINT32_MAX

struct schedule {
    const struct dtp_program *program;
    const struct dtp_op *ops;
    size_t op_count, buffer_count;
    uint32_t *expected; /* per operand: 1 + the operation whose result it reads, 0: what was there before the step */
    uint32_t *content;  /* per buffer: 1 + the operation whose result it holds */
    bool *shares;       /* per pair of buffers */
    uint32_t first_of[DTP_STREAM_COUNT], *next_of; /* per stream its first operation, per operation the next one */
    uint32_t *after_group, *after_wait; /* per operation: the collective of its group, the HOST_WAIT before it */
    bool *started, *done;
    uint64_t random;
    bool misread;
};

static inline uint32_t schedule_random(struct schedule *s, uint32_t below)
{
    s->random = s->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(s->random >> 33) % below;
}

static inline void schedule_expect(struct schedule *s)
{
    uint32_t *writer = calloc(s->buffer_count + 1, sizeof *writer);
    for (uint32_t i = 0; i < s->op_count; i++) {
        const struct dtp_operand *operands = dtp_program_operands(s->program, &s->ops[i]);
        for (uint32_t j = 0; j < s->ops[i].operand_count; j++)
            s->expected[s->ops[i].first_operand + j] = writer[operands[j].buffer.index];
        for (uint32_t j = 0; j < s->ops[i].operand_count; j++)
            if (operands[j].access & DTP_WRITE)
                writer[operands[j].buffer.index] = i + 1;
    }
    free(writer);
}

static inline void schedule_find_shares(struct schedule *s, const struct dtp_placement *placement)
{
    const struct dtp_buffer *buffers = dtp_program_buffers(s->program);
    for (size_t a = 0; a < s->buffer_count; a++)
        for (size_t b = 0; b < s->buffer_count; b++) {
            uint64_t x = placement->offset_bytes[a], y = placement->offset_bytes[b];
            s->shares[a * s->buffer_count + b] =
                a != b && x != UINT64_MAX && y != UINT64_MAX && x < y + buffers[b].bytes && y < x + buffers[a].bytes;
        }
}

static inline void schedule_put(struct schedule *s, uint32_t buffer, uint32_t content)
{
    s->content[buffer] = content;
    for (size_t b = 0; b < s->buffer_count; b++)
        if (s->shares[buffer * s->buffer_count + b])
            s->content[b] = SCHEDULE_GARBAGE;
}

/* Garbage of an operation that runs is told from that of others. */
static inline uint32_t schedule_unfinished(uint32_t op)
{
    return (UINT32_C(1) << 31) + op;
}

static inline void schedule_start(struct schedule *s, uint32_t op)
{
    const struct dtp_operand *operands = dtp_program_operands(s->program, &s->ops[op]);
    s->started[op] = true;
    for (uint32_t j = 0; j < s->ops[op].operand_count; j++) {
        uint32_t buffer = operands[j].buffer.index, expected = s->expected[s->ops[op].first_operand + j];
        bool workspace = operands[j].access & DTP_ALLOC;
        if ((operands[j].access & DTP_READ) && !workspace && s->content[buffer] != expected)
            s->misread = true;
    }
    for (uint32_t j = 0; j < s->ops[op].operand_count; j++)
        if (operands[j].access & DTP_WRITE)
            schedule_put(s, operands[j].buffer.index, schedule_unfinished(op));
}

/* Whether an operation that reads a buffer in one role writes it in another. */
static inline bool schedule_writes(const struct schedule *s, uint32_t op, uint32_t buffer)
{
    const struct dtp_operand *operands = dtp_program_operands(s->program, &s->ops[op]);
    for (uint32_t j = 0; j < s->ops[op].operand_count; j++)
        if (operands[j].buffer.index == buffer && (operands[j].access & DTP_WRITE))
            return true;
    return false;
}

static inline void schedule_finish(struct schedule *s, uint32_t op)
{
    const struct dtp_operand *operands = dtp_program_operands(s->program, &s->ops[op]);
    s->done[op] = true;
    for (uint32_t j = 0; j < s->ops[op].operand_count; j++) {
        uint32_t buffer = operands[j].buffer.index, access = operands[j].access;
        uint32_t expected = s->expected[s->ops[op].first_operand + j];
        if (!(access & DTP_UPDATE) || (!(access & DTP_WRITE) && schedule_writes(s, op, buffer)))
            continue;
        if (s->content[buffer] != (access & DTP_WRITE ? schedule_unfinished(op) : expected))
            s->misread = true;
    }
    for (uint32_t j = 0; j < s->ops[op].operand_count; j++)
        if (operands[j].access & DTP_WRITE)
            schedule_put(s, operands[j].buffer.index, op + 1);
}

/* Whether the rules let operation `op`, the head of its stream, start. */
static inline bool schedule_may_start(const struct schedule *s, uint32_t op)
{
    const dtp_op_id *dependencies = dtp_program_dependencies(s->program, &s->ops[op]);
    for (uint32_t d = 0; d < s->ops[op].dependency_count; d++)
        if (!s->done[dependencies[d].index])
            return false;
    uint32_t group = s->after_group[op], wait = s->after_wait[op];
    return (group == DTP_NO_INDEX || s->done[group]) && (wait == DTP_NO_INDEX || s->done[wait]);
}

/* One event of some stream: streams are asked in the order of `rank`. */
static inline void schedule_step(struct schedule *s, uint32_t head[DTP_STREAM_COUNT],
                                 const uint32_t rank[DTP_STREAM_COUNT])
{
    for (int r = 0; r < DTP_STREAM_COUNT; r++) {
        uint32_t op = head[rank[r]];
        if (op == DTP_NO_INDEX)
            continue;
        if (!s->started[op]) {
            if (!schedule_may_start(s, op))
                continue;
            schedule_start(s, op);
            return;
        }
        schedule_finish(s, op);
        head[rank[r]] = s->next_of[op];
        return;
    }
}

/* Sets what each operation comes after, and the first one of each stream. */
static inline void schedule_link(struct schedule *s)
{
    uint32_t last[DTP_STREAM_COUNT], wait = DTP_NO_INDEX;
    for (uint32_t r = 0; r < DTP_STREAM_COUNT; r++)
        s->first_of[r] = last[r] = DTP_NO_INDEX;
    for (uint32_t i = 0; i < s->op_count; i++) {
        enum dtp_stream stream = s->ops[i].stream;
        *(last[stream] == DTP_NO_INDEX ? &s->first_of[stream] : &s->next_of[last[stream]]) = i;
        s->next_of[i] = DTP_NO_INDEX;
        last[stream] = i;
        s->after_wait[i] = wait;
        wait = s->ops[i].kind == DTP_OP_HOST_WAIT ? i : wait;
        s->after_group[i] = DTP_NO_INDEX;
        for (uint32_t j = i; s->ops[i].group != DTP_NO_INDEX && j-- > 0;)
            if (s->ops[j].group == s->ops[i].group) {
                s->after_group[i] = j;
                break;
            }
    }
}

static inline void schedule_run(struct schedule *s)
{
    uint32_t head[DTP_STREAM_COUNT], rank[DTP_STREAM_COUNT];
    for (uint32_t r = 0; r < DTP_STREAM_COUNT; r++) {
        head[r] = s->first_of[r];
        rank[r] = r;
    }
    uint32_t patience = 1 + schedule_random(s, 40);
    for (size_t event = 0; event < 2 * s->op_count && !s->misread; event++) {
        if (event % patience == 0)
            for (uint32_t r = DTP_STREAM_COUNT; r > 1; r--) {
                uint32_t other = schedule_random(s, r), kept = rank[r - 1];
                rank[r - 1] = rank[other];
                rank[other] = kept;
            }
        schedule_step(s, head, rank);
    }
}

/* Whether some of `count` random orders makes an operation read what it should not. */
static inline bool schedules_misread(const struct dtp_program *program, const struct dtp_placement *placement,
                                     int count, uint64_t seed)
{
    struct schedule s = {.program = program, .ops = dtp_program_ops(program), .random = seed};
    s.op_count = dtp_program_op_count(program);
    s.buffer_count = dtp_program_buffer_count(program);
    size_t operands = s.op_count ? s.ops[s.op_count - 1].first_operand + s.ops[s.op_count - 1].operand_count : 0;
    s.expected = calloc(operands + 1, sizeof *s.expected);
    s.content = calloc(s.buffer_count + 1, sizeof *s.content);
    s.shares = calloc(s.buffer_count * s.buffer_count + 1, sizeof *s.shares);
    s.next_of = calloc(s.op_count + 1, sizeof *s.next_of);
    s.after_group = calloc(s.op_count + 1, sizeof *s.after_group);
    s.after_wait = calloc(s.op_count + 1, sizeof *s.after_wait);
    s.started = calloc(s.op_count + 1, sizeof *s.started);
    s.done = calloc(s.op_count + 1, sizeof *s.done);
    schedule_expect(&s);
    schedule_find_shares(&s, placement);
    schedule_link(&s);
    for (int i = 0; i < count && !s.misread; i++) {
        for (size_t b = 0; b < s.buffer_count; b++)
            s.content[b] = 0;
        for (size_t o = 0; o < s.op_count; o++)
            s.started[o] = s.done[o] = false;
        schedule_run(&s);
    }
    free(s.expected);
    free(s.content);
    free(s.shares);
    free(s.next_of);
    free(s.after_group);
    free(s.after_wait);
    free(s.started);
    free(s.done);
    return s.misread;
}

#endif
