#include "program/verify.h"
#include "program/buffer_parts.h"
#include "program/happens_before.h"

#include <math.h>
#include <stdio.h>

/* What is known of a buffer while the operations are walked in issue order; operations count from 1, 0 is none. */
struct buffer_state {
    uint32_t allocated, freed;
};

/* Of each part of a buffer, from when it is there. */
struct part_state {
    uint32_t writer; /* last one */
    /* Per stream the last operation that read what the writer wrote. Before the first write: the last one that used
     * memory which the part may stand on now, so that one check covers races and reuse. */
    struct dtp_clock readers;
};

struct proof {
    const struct dtp_program *program;
    const struct dtp_op *ops;
    const struct dtp_buffer *buffers;
    const struct dtp_clock *clocks;
    struct buffer_state *states;
    struct dtp_buffer_parts parts;
    struct part_state *part_states;
    /* Last operation of each stream that used any buffer which its pool has got back. */
    struct dtp_clock returned[DTP_SPACE_COUNT][DTP_STREAM_COUNT];
    /* What the next operation of each stream starts after, and whatever is issued once the host has waited. */
    struct dtp_clock stream_end[DTP_STREAM_COUNT], host;
    struct dtp_faults *faults;
    bool refused;
};

/* ---- messages -------------------------------------------------------------------------------------------------- */

#define PLACE_BYTES 160

/* "operation 17 (matmul \"qkv\", layer 3, compute)" for operation 17, counted from 0. */
static const char *op_words(const struct proof *proof, uint32_t index, char *out)
{
    const struct dtp_op *op = &proof->ops[index];
    char layer[24] = "";
    if (op->layer != DTP_NO_LAYER)
        snprintf(layer, sizeof layer, "layer %u, ", op->layer);
    snprintf(out, PLACE_BYTES, "operation %u (%s%s%s%s, %s%s)", index, dtp_op_kind_text(op->kind),
             *op->name ? " \"" : "", op->name, *op->name ? "\"" : "", layer, dtp_stream_text(op->stream));
    return out;
}

static const char *buffer_words(const struct proof *proof, uint32_t index, char *out)
{
    const struct dtp_buffer *buffer = &proof->buffers[index];
    char layer[24] = "";
    if (buffer->layer != DTP_NO_LAYER)
        snprintf(layer, sizeof layer, ", layer %u", buffer->layer);
    snprintf(out, PLACE_BYTES, "buffer %u (%s%s)", index, buffer->name, layer);
    return out;
}

/* `words` stands between the two: "operation 17 (...) reads before anything was written to buffer 3 (...)". */
static void refuse(struct proof *proof, uint32_t op, uint32_t buffer, const char *words)
{
    char op_text[PLACE_BYTES], buffer_text[PLACE_BYTES];
    proof->refused = true;
    if (proof->faults)
        dtp_fault(proof->faults, DTP_BAD_INPUT, NULL, 0, "%s %s %s", op_words(proof, op, op_text), words,
                  buffer_words(proof, buffer, buffer_text));
}

/* `words` stands between the buffer and the other operation, which counts from 1: "operation 17 (...) reads buffer 3
 * (...), which operation 12 (...) may still write". */
static void refuse_race(struct proof *proof, uint32_t op, const char *does, uint32_t buffer, const char *words,
                        uint32_t other, const char *other_does)
{
    char op_text[PLACE_BYTES], other_text[PLACE_BYTES], buffer_text[PLACE_BYTES];
    proof->refused = true;
    if (proof->faults)
        dtp_fault(proof->faults, DTP_BAD_INPUT, NULL, 0, "%s %s %s, %s %s may still %s: it must wait for that",
                  op_words(proof, op, op_text), does, buffer_words(proof, buffer, buffer_text), words,
                  op_words(proof, other - 1, other_text), other_does);
}

/* ---- the walk -------------------------------------------------------------------------------------------------- */

/* Whether `earlier`, counted from 1, is done when the operation of `clock` starts; none is. */
static bool is_done(const struct proof *proof, const struct dtp_clock *clock, uint32_t earlier)
{
    return !earlier || clock->at[proof->ops[earlier - 1].stream] >= earlier;
}

static void begin_parts(struct proof *proof, uint32_t buffer, const struct dtp_clock *readers)
{
    for (uint32_t p = proof->parts.first[buffer]; p < proof->parts.first[buffer + 1]; p++)
        proof->part_states[p] = (struct part_state){.readers = *readers};
}

static void check_alloc(struct proof *proof, uint32_t op, uint32_t buffer)
{
    struct buffer_state *state = &proof->states[buffer];
    if (state->allocated) {
        refuse(proof, op, buffer, "allocates a second time");
        return;
    }
    state->allocated = op + 1;
    begin_parts(proof, buffer, &proof->returned[proof->buffers[buffer].space][proof->buffers[buffer].pool]);
}

static bool check_alive(struct proof *proof, uint32_t op, uint32_t buffer, const char *unborn, const char *dead)
{
    const struct buffer_state *state = &proof->states[buffer];
    if (proof->buffers[buffer].persistent || (state->allocated && !state->freed))
        return true;
    refuse(proof, op, buffer, state->allocated ? dead : unborn);
    return false;
}

/* A workspace is written by the operation that reads it. */
static void check_read_part(struct proof *proof, uint32_t op, struct dtp_operand operand, struct part_state *state)
{
    uint32_t buffer = operand.buffer.index;
    bool workspace = (operand.access & DTP_ALLOC) && (operand.access & DTP_WRITE);
    if (!state->writer && !proof->buffers[buffer].persistent && !workspace)
        refuse(proof, op, buffer, "reads what nobody has written yet,");
    if (!is_done(proof, &proof->clocks[op], state->writer))
        refuse_race(proof, op, "reads", buffer, "which", state->writer, "write");
    if (!(operand.access & DTP_WRITE))
        state->readers.at[proof->ops[op].stream] = op + 1;
}

static void refuse_late_readers(struct proof *proof, uint32_t op, uint32_t buffer, const struct part_state *state)
{
    bool reuse = !state->writer && !proof->buffers[buffer].persistent;
    for (int s = 0; s < DTP_STREAM_COUNT; s++)
        if (state->readers.at[s] > proof->clocks[op].at[s])
            refuse_race(proof, op, "writes", buffer, reuse ? "whose memory" : "which", state->readers.at[s],
                        reuse ? "use" : "read");
}

static void check_write_part(struct proof *proof, uint32_t op, struct dtp_operand operand, struct part_state *state)
{
    uint32_t buffer = operand.buffer.index;
    const struct dtp_clock *clock = &proof->clocks[op];
    if (!(operand.access & DTP_READ) && !is_done(proof, clock, state->writer))
        refuse_race(proof, op, "writes", buffer, "which", state->writer, "write");
    if (!dtp_clock_covers(clock, &state->readers))
        refuse_late_readers(proof, op, buffer, state);
    state->writer = op + 1;
    state->readers = (struct dtp_clock){0};
}

/* Each part that the operand touches; a fault of one is said once. */
static void check_touch(struct proof *proof, uint32_t op, struct dtp_operand operand,
                        void check(struct proof *, uint32_t, struct dtp_operand, struct part_state *))
{
    struct dtp_part_range range = dtp_operand_parts(&proof->parts, &operand);
    struct dtp_faults *faults = proof->faults;
    bool refused = proof->refused;
    proof->refused = false;
    for (uint32_t p = range.first; p < range.end; p++) {
        check(proof, op, operand, &proof->part_states[p]);
        proof->faults = proof->refused ? NULL : faults;
    }
    proof->faults = faults;
    proof->refused = proof->refused || refused;
}

/* Memory that goes back to a pool is safe for the pool's stream, or for the one that frees it. */
static void check_users_done(struct proof *proof, uint32_t op, uint32_t buffer, const struct part_state *state)
{
    const struct dtp_clock *pool = &proof->stream_end[proof->buffers[buffer].pool];
    if (is_done(proof, &proof->clocks[op], state->writer) && dtp_clock_covers(&proof->clocks[op], &state->readers))
        return;
    for (int s = 0; s < DTP_STREAM_COUNT; s++) {
        uint32_t user = state->readers.at[s];
        if (state->writer > user && (int)proof->ops[state->writer - 1].stream == s)
            user = state->writer;
        if (user > proof->clocks[op].at[s] && user > pool->at[s] && user > proof->host.at[s])
            refuse_race(proof, op, "frees", buffer, "which", user, "use");
    }
}

static void give_back(struct proof *proof, uint32_t buffer, const struct part_state *state)
{
    struct dtp_clock *returned = &proof->returned[proof->buffers[buffer].space][proof->buffers[buffer].pool];
    dtp_clock_join(returned, &state->readers);
    if (state->writer) {
        uint32_t *last = &returned->at[proof->ops[state->writer - 1].stream];
        *last = state->writer > *last ? state->writer : *last;
    }
}

static void check_free(struct proof *proof, uint32_t op, struct dtp_operand operand)
{
    uint32_t buffer = operand.buffer.index;
    struct buffer_state *state = &proof->states[buffer];
    if (!check_alive(proof, op, buffer, "frees before it was allocated", "frees a second time"))
        return;
    state->freed = op + 1;
    if (operand.access & DTP_DEFER)
        return; /* the allocator waits */
    for (uint32_t p = proof->parts.first[buffer]; p < proof->parts.first[buffer + 1]; p++) {
        check_users_done(proof, op, buffer, &proof->part_states[p]);
        give_back(proof, buffer, &proof->part_states[p]);
    }
}

static bool check_usable(struct proof *proof, uint32_t op, struct dtp_operand operand)
{
    return check_alive(proof, op, operand.buffer.index, "uses, before it was allocated,", "uses, after it was freed,");
}

/* All that is allocated comes to life before the operation uses anything, and frees come after its uses. */
static void check_op(struct proof *proof, uint32_t index)
{
    const struct dtp_op *op = &proof->ops[index];
    const struct dtp_operand *operands = dtp_program_operands(proof->program, op);
    for (uint32_t i = 0; i < op->operand_count; i++)
        if (operands[i].access & DTP_ALLOC)
            check_alloc(proof, index, operands[i].buffer.index);
    for (uint32_t i = 0; i < op->operand_count; i++)
        if ((operands[i].access & DTP_READ) && check_usable(proof, index, operands[i]))
            check_touch(proof, index, operands[i], check_read_part);
    for (uint32_t i = 0; i < op->operand_count; i++)
        if ((operands[i].access & DTP_WRITE) &&
            ((operands[i].access & DTP_READ) || check_usable(proof, index, operands[i])))
            check_touch(proof, index, operands[i], check_write_part);
    for (uint32_t i = 0; i < op->operand_count; i++)
        if (operands[i].access & DTP_FREE)
            check_free(proof, index, operands[i]);
}

/* Which streams run an operation of a class. */
static void check_stream(struct proof *proof, uint32_t index)
{
    const struct dtp_op *op = &proof->ops[index];
    enum dtp_op_class class = dtp_op_kind_class(op->kind);
    bool host = op->stream == DTP_STREAM_HOST, storage = op->stream == DTP_STREAM_STORAGE;
    if (class == DTP_CLASS_NONE || (class == DTP_CLASS_HOST && host) || (class == DTP_CLASS_STORAGE && storage) ||
        (class != DTP_CLASS_HOST && class != DTP_CLASS_STORAGE && !host && !storage))
        return;
    char text[PLACE_BYTES];
    proof->refused = true;
    dtp_fault(proof->faults, DTP_BAD_INPUT, NULL, 0, "%s is on a stream that cannot run it",
              op_words(proof, index, text));
}

/* Bytes that an operation can send at most: what its operands hold, in a ring the (n-1)/n of it that leave a rank. NAN:
 * nothing is known of it. */
static double most_sent_bytes(const struct proof *proof, const struct dtp_op *op)
{
    const struct dtp_operand *operands = dtp_program_operands(proof->program, op);
    enum dtp_op_class class = dtp_op_kind_class(op->kind);
    double read = 0, written = 0;
    for (uint32_t i = 0; i < op->operand_count; i++) {
        double bytes = (double)(proof->buffers[operands[i].buffer.index].bytes - operands[i].offset_bytes);
        read += operands[i].access & DTP_READ ? bytes : 0;
        written += operands[i].access & DTP_WRITE ? bytes : 0;
    }
    if (class == DTP_CLASS_UPLOAD || class == DTP_CLASS_DOWNLOAD)
        return read > written ? read : written;
    if (class != DTP_CLASS_COLLECTIVE)
        return NAN;
    double ranks = dtp_program_groups(proof->program)[op->group].ranks, ring = (ranks - 1) / ranks;
    switch (dtp_op_kind_collective(op->kind)) {
    case DTP_ALL_GATHER: return written * ring;
    case DTP_ALL_REDUCE: return 2 * written * ring;
    case DTP_SEND_RECV: return read > written ? read : written;
    case DTP_ALL_TO_ALL: return (read > written ? read : written) * ring; /* some receive more than they send */
    default: return read * ring;
    }
}

/* Shares of whole bytes round up; a group's worth of them is allowed. */
static void check_bytes(struct proof *proof, uint32_t index)
{
    const struct dtp_op *op = &proof->ops[index];
    if (op->demand->sent_bytes == 0)
        return;
    double most_bytes = most_sent_bytes(proof, op);
    double slack_bytes = op->group == DTP_NO_INDEX ? 1 : 2.0 * dtp_program_groups(proof->program)[op->group].ranks;
    if (!(op->demand->sent_bytes > most_bytes + slack_bytes))
        return;
    char text[PLACE_BYTES];
    proof->refused = true;
    dtp_fault(proof->faults, DTP_BAD_INPUT, NULL, 0, "%s sends %.0f bytes; its operands hold enough for %.0f",
              op_words(proof, index, text), op->demand->sent_bytes, most_bytes);
}

static void check_all(struct proof *proof)
{
    uint32_t op_count = (uint32_t)dtp_program_op_count(proof->program);
    const struct dtp_clock nobody = {{0}};
    for (uint32_t b = 0; b < dtp_program_buffer_count(proof->program); b++)
        if (proof->buffers[b].persistent)
            begin_parts(proof, b, &nobody);
    for (uint32_t i = 0; i < op_count; i++) {
        proof->stream_end[proof->ops[i].stream] = proof->clocks[i];
        if (proof->ops[i].kind == DTP_OP_HOST_WAIT)
            proof->host = proof->clocks[i];
        check_stream(proof, i);
        check_bytes(proof, i);
        check_op(proof, i);
    }
    for (uint32_t b = 0; b < dtp_program_buffer_count(proof->program); b++) {
        const struct buffer_state *state = &proof->states[b];
        if (state->allocated && !state->freed)
            refuse(proof, state->allocated - 1, b, "allocates what nobody frees,");
    }
}

enum dtp_status dtp_program_verify(const struct dtp_program *program, struct dtp_faults *faults)
{
    struct dtp_host_arena arena = {0};
    struct proof proof = {
        .program = program, .ops = dtp_program_ops(program), .buffers = dtp_program_buffers(program), .faults = faults};
    proof.clocks = dtp_happens_before(program, dtp_program_op_count(program), DTP_NO_INDEX, &arena);
    proof.states = dtp_host_arena_take_zeroed(&arena, dtp_program_buffer_count(program), sizeof *proof.states);
    bool memory = proof.clocks && proof.states && dtp_buffer_parts_find(program, &arena, &proof.parts);
    proof.part_states = memory ? dtp_host_arena_take(&arena, proof.parts.first[dtp_program_buffer_count(program)],
                                                     sizeof *proof.part_states)
                               : NULL;
    memory = proof.part_states != NULL;
    if (memory)
        check_all(&proof);
    dtp_host_arena_release(&arena);
    if (!memory)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no memory to verify %zu operations",
                         dtp_program_op_count(program));
    return proof.refused ? DTP_BAD_INPUT : DTP_OK;
}

enum dtp_status dtp_program_dependency_redundant(const struct dtp_program *program, const struct dtp_op *op,
                                                 uint32_t index, bool *redundant, struct dtp_faults *faults)
{
    struct dtp_host_arena arena = {0};
    const struct dtp_op *ops = dtp_program_ops(program);
    size_t position = (size_t)(op - ops);
    const struct dtp_clock *clocks = dtp_happens_before(program, position + 1, index, &arena);
    uint32_t earlier = dtp_program_dependencies(program, op)[index].index;
    bool memory = clocks != NULL;
    *redundant = memory && clocks[position].at[ops[earlier].stream] > earlier;
    dtp_host_arena_release(&arena);
    return memory ? DTP_OK : dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no memory to compare dependencies");
}
