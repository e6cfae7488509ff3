#include "sim/memory_curve.h"

#include <string.h>

struct curve {
    const struct dtp_program *program;
    struct dtp_memory_point now;
    struct dtp_memory_point *points;
    size_t count;
};

/* Adds or takes away the operands with `mark`; true where bytes on the device change. */
static bool move(struct curve *curve, const struct dtp_op *op, enum dtp_access mark)
{
    const struct dtp_buffer *buffers = dtp_program_buffers(curve->program);
    const struct dtp_operand *operand = dtp_program_operands(curve->program, op);
    bool moved = false;
    for (uint32_t i = 0; i < op->operand_count; i++) {
        const struct dtp_buffer *buffer = &buffers[operand[i].buffer.index];
        if (!(operand[i].access & (uint32_t)mark) || buffer->space != DTP_SPACE_DEVICE || !buffer->bytes)
            continue;
        if (mark == DTP_ALLOC) {
            curve->now.bytes[buffer->owner] += buffer->bytes;
            curve->now.total_bytes += buffer->bytes;
        } else {
            curve->now.bytes[buffer->owner] -= buffer->bytes;
            curve->now.total_bytes -= buffer->bytes;
        }
        moved = true;
    }
    return moved;
}

static void add_persistent(struct curve *curve)
{
    const struct dtp_buffer *buffers = dtp_program_buffers(curve->program);
    for (size_t i = 0; i < dtp_program_buffer_count(curve->program); i++)
        if (buffers[i].persistent && buffers[i].space == DTP_SPACE_DEVICE) {
            curve->now.bytes[buffers[i].owner] += buffers[i].bytes;
            curve->now.total_bytes += buffers[i].bytes;
        }
}

bool dtp_memory_curve(const struct dtp_program *program, const struct dtp_timeline *timeline,
                      struct dtp_host_arena *arena, const struct dtp_memory_point **points, size_t *count)
{
    struct curve curve = {.program = program};
    const struct dtp_op *ops = dtp_program_ops(program);
    curve.points = dtp_host_arena_take(arena, 2 * timeline->op_count + 1, sizeof *curve.points);
    if (!curve.points)
        return false;
    add_persistent(&curve);
    curve.points[curve.count++] = curve.now;
    for (uint32_t i = 0; i < timeline->op_count; i++) {
        curve.now.op = i;
        if (ops[i].stream == DTP_STREAM_COMPUTE && timeline->span[i].start_s > curve.now.time_s)
            curve.now.time_s = timeline->span[i].start_s;
        if (move(&curve, &ops[i], DTP_ALLOC))
            curve.points[curve.count++] = curve.now;
        if (move(&curve, &ops[i], DTP_FREE))
            curve.points[curve.count++] = curve.now;
    }
    *points = curve.points;
    *count = curve.count;
    return true;
}
