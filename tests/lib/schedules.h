/* An oracle for the verifier and the placement that knows nothing of clocks: it runs a program at its offsets in a
 * random order that the rules allow, one stream far ahead of the others, and watches whether every operation still
 * reads what the list of operations says it reads.
 *
 * An operation starts when the one before it on its stream, its dependencies, the collective before it in its group and
 * every earlier HOST_WAIT are done. From its start to its end its results are garbage, and so is, from then on,
 * whatever shares bytes with them. Buffers are told apart by their parts (buffer_parts.h). */
#ifndef SCHEDULES_H
#define SCHEDULES_H

#include "program/buffer_parts.h"
#include "program/placement.h"

#include <stdlib.h>

#define SCHEDULE_GARBAGE UINT32_MAX

struct schedule {
    const struct dtp_program *program;
    const struct dtp_op *ops;
    size_t op_count, buffer_count, part_count;
    struct dtp_host_arena arena;
    struct dtp_buffer_parts parts;
    size_t *expected_of; /* per operand: where in `expected` its parts begin */
    uint32_t *expected;  /* 1 + the operation whose result is read, 0: what was there before the step */
    uint32_t *content;   /* per part of a buffer: 1 + the operation whose result it holds */
    bool *shares;        /* per pair of parts */
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

/* What operand `j` of operation `op` finds in `part`, one of its own. */
static inline uint32_t *schedule_expected(const struct schedule *s, uint32_t op, uint32_t j, uint32_t part)
{
    struct dtp_part_range range = dtp_operand_parts(&s->parts, &dtp_program_operands(s->program, &s->ops[op])[j]);
    return &s->expected[s->expected_of[s->ops[op].first_operand + j] + part - range.first];
}

static inline void schedule_expect(struct schedule *s)
{
    uint32_t *writer = calloc(s->part_count + 1, sizeof *writer);
    for (uint32_t i = 0; i < s->op_count; i++) {
        const struct dtp_operand *operands = dtp_program_operands(s->program, &s->ops[i]);
        for (uint32_t j = 0; j < s->ops[i].operand_count; j++) {
            struct dtp_part_range range = dtp_operand_parts(&s->parts, &operands[j]);
            for (uint32_t p = range.first; p < range.end; p++)
                *schedule_expected(s, i, j, p) = writer[p];
        }
        for (uint32_t j = 0; j < s->ops[i].operand_count; j++) {
            struct dtp_part_range range = dtp_operand_parts(&s->parts, &operands[j]);
            for (uint32_t p = range.first; p < range.end && (operands[j].access & DTP_WRITE); p++)
                writer[p] = i + 1;
        }
    }
    free(writer);
}

/* Where each part begins and ends in the arena; UINT64_MAX: it is not there. */
static inline void schedule_find_spans(const struct schedule *s, const struct dtp_placement *placement, uint64_t *begin,
                                       uint64_t *end)
{
    for (uint32_t b = 0; b < s->buffer_count; b++)
        for (uint32_t p = s->parts.first[b]; p < s->parts.first[b + 1]; p++) {
            uint64_t offset = placement->offset_bytes[b], bytes = dtp_program_buffers(s->program)[b].bytes;
            uint64_t last = p + 1 < s->parts.first[b + 1] ? s->parts.begin_bytes[p + 1] : bytes;
            begin[p] = offset == UINT64_MAX ? UINT64_MAX : offset + s->parts.begin_bytes[p];
            end[p] = offset == UINT64_MAX ? UINT64_MAX : offset + last;
        }
}

static inline void schedule_find_shares(struct schedule *s, const struct dtp_placement *placement)
{
    uint64_t *begin = malloc((s->part_count + 1) * sizeof *begin), *end = malloc((s->part_count + 1) * sizeof *end);
    schedule_find_spans(s, placement, begin, end);
    for (size_t a = 0; a < s->part_count; a++)
        for (size_t b = 0; b < s->part_count; b++)
            s->shares[a * s->part_count + b] =
                a != b && begin[a] != UINT64_MAX && begin[b] != UINT64_MAX && begin[a] < end[b] && begin[b] < end[a];
    free(begin);
    free(end);
}

static inline void schedule_put(struct schedule *s, const struct dtp_operand *operand, uint32_t content)
{
    struct dtp_part_range range = dtp_operand_parts(&s->parts, operand);
    for (uint32_t p = range.first; p < range.end; p++) {
        s->content[p] = content;
        for (size_t b = 0; b < s->part_count; b++)
            if (s->shares[p * s->part_count + b])
                s->content[b] = SCHEDULE_GARBAGE;
    }
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
        struct dtp_part_range range = dtp_operand_parts(&s->parts, &operands[j]);
        bool workspace = operands[j].access & DTP_ALLOC;
        for (uint32_t p = range.first; p < range.end; p++)
            if ((operands[j].access & DTP_READ) && !workspace && s->content[p] != *schedule_expected(s, op, j, p))
                s->misread = true;
    }
    for (uint32_t j = 0; j < s->ops[op].operand_count; j++)
        if (operands[j].access & DTP_WRITE)
            schedule_put(s, &operands[j], schedule_unfinished(op));
}

/* Whether an operation that reads a part in one role writes it in another. */
static inline bool schedule_writes(const struct schedule *s, uint32_t op, uint32_t part)
{
    const struct dtp_operand *operands = dtp_program_operands(s->program, &s->ops[op]);
    for (uint32_t j = 0; j < s->ops[op].operand_count; j++) {
        struct dtp_part_range range = dtp_operand_parts(&s->parts, &operands[j]);
        if (part >= range.first && part < range.end && (operands[j].access & DTP_WRITE))
            return true;
    }
    return false;
}

static inline void schedule_finish(struct schedule *s, uint32_t op)
{
    const struct dtp_operand *operands = dtp_program_operands(s->program, &s->ops[op]);
    s->done[op] = true;
    for (uint32_t j = 0; j < s->ops[op].operand_count; j++) {
        struct dtp_part_range range = dtp_operand_parts(&s->parts, &operands[j]);
        uint32_t access = operands[j].access;
        for (uint32_t p = range.first; p < range.end && (access & DTP_UPDATE); p++) {
            if (!(access & DTP_WRITE) && schedule_writes(s, op, p))
                continue;
            if (s->content[p] != (access & DTP_WRITE ? schedule_unfinished(op) : *schedule_expected(s, op, j, p)))
                s->misread = true;
        }
    }
    for (uint32_t j = 0; j < s->ops[op].operand_count; j++)
        if (operands[j].access & DTP_WRITE)
            schedule_put(s, &operands[j], op + 1);
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
        for (uint32_t left = i; s->ops[i].group != DTP_NO_INDEX && left > 0; left--)
            if (s->ops[left - 1].group == s->ops[i].group) {
                s->after_group[i] = left - 1;
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
    if (!dtp_buffer_parts_find(program, &s.arena, &s.parts))
        abort();
    s.part_count = s.parts.first[s.buffer_count];
    s.expected_of = calloc(operands + 1, sizeof *s.expected_of);
    for (size_t i = 0; i < s.op_count; i++)
        for (uint32_t j = 0; j < s.ops[i].operand_count; j++) {
            struct dtp_part_range range = dtp_operand_parts(&s.parts, &dtp_program_operands(program, &s.ops[i])[j]);
            size_t at = s.ops[i].first_operand + j;
            s.expected_of[at + 1] = s.expected_of[at] + range.end - range.first;
        }
    s.expected = calloc(s.expected_of[operands] + 1, sizeof *s.expected);
    s.content = calloc(s.part_count + 1, sizeof *s.content);
    s.shares = calloc(s.part_count * s.part_count + 1, sizeof *s.shares);
    s.next_of = calloc(s.op_count + 1, sizeof *s.next_of);
    s.after_group = calloc(s.op_count + 1, sizeof *s.after_group);
    s.after_wait = calloc(s.op_count + 1, sizeof *s.after_wait);
    s.started = calloc(s.op_count + 1, sizeof *s.started);
    s.done = calloc(s.op_count + 1, sizeof *s.done);
    schedule_expect(&s);
    schedule_find_shares(&s, placement);
    schedule_link(&s);
    for (int i = 0; i < count && !s.misread; i++) {
        for (size_t p = 0; p < s.part_count; p++)
            s.content[p] = 0;
        for (size_t o = 0; o < s.op_count; o++)
            s.started[o] = s.done[o] = false;
        schedule_run(&s);
    }
    dtp_host_arena_release(&s.arena);
    free(s.expected_of);
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
