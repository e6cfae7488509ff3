#include "program/buffer_parts.h"

#include <stdlib.h>

struct cut {
    uint32_t buffer;
    uint64_t at_bytes;
};

static int compare_cuts(const void *a, const void *b)
{
    const struct cut *x = a, *y = b;
    if (x->buffer != y->buffer)
        return x->buffer < y->buffer ? -1 : 1;
    return (x->at_bytes > y->at_bytes) - (x->at_bytes < y->at_bytes);
}

/* Both ends of every operand that has them; returns how many, with `cuts` NULL only counts. */
static size_t find_cuts(const struct dtp_program *program, struct cut *cuts)
{
    const struct dtp_op *ops = dtp_program_ops(program);
    size_t count = 0;
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_operand *operands = dtp_program_operands(program, &ops[i]);
        for (uint32_t j = 0; j < ops[i].operand_count; j++) {
            if (!operands[j].bytes)
                continue;
            if (cuts) {
                cuts[count] = (struct cut){operands[j].buffer.index, operands[j].offset_bytes};
                cuts[count + 1] = (struct cut){operands[j].buffer.index, operands[j].offset_bytes + operands[j].bytes};
            }
            count += 2;
        }
    }
    return count;
}

bool dtp_buffer_parts_find(const struct dtp_program *program, struct dtp_host_arena *arena,
                           struct dtp_buffer_parts *out)
{
    const struct dtp_buffer *buffers = dtp_program_buffers(program);
    uint32_t buffer_count = (uint32_t)dtp_program_buffer_count(program), part = 0;
    size_t cut_count = find_cuts(program, NULL), next = 0;
    struct cut *cuts = dtp_host_arena_take(arena, cut_count, sizeof *cuts);
    out->first = dtp_host_arena_take(arena, (size_t)buffer_count + 1, sizeof *out->first);
    out->begin_bytes = dtp_host_arena_take(arena, buffer_count + cut_count, sizeof *out->begin_bytes);
    if ((cut_count && !cuts) || !out->first || !out->begin_bytes)
        return false;
    find_cuts(program, cuts);
    if (cut_count)
        qsort(cuts, cut_count, sizeof *cuts, compare_cuts);
    for (uint32_t b = 0; b < buffer_count; b++) {
        out->first[b] = part;
        out->begin_bytes[part++] = 0;
        for (; next < cut_count && cuts[next].buffer == b; next++)
            if (cuts[next].at_bytes > out->begin_bytes[part - 1] && cuts[next].at_bytes < buffers[b].bytes)
                out->begin_bytes[part++] = cuts[next].at_bytes;
    }
    out->first[buffer_count] = part;
    return true;
}

/* The first part of the buffer that begins at `at_bytes` or later. */
static uint32_t part_from(const struct dtp_buffer_parts *parts, uint32_t buffer, uint64_t at_bytes)
{
    uint32_t low = parts->first[buffer], high = parts->first[buffer + 1];
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (parts->begin_bytes[middle] < at_bytes)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct dtp_part_range dtp_cut_operand_parts(const struct dtp_buffer_parts *parts, const struct dtp_operand *operand)
{
    uint32_t buffer = operand->buffer.index;
    return (struct dtp_part_range){part_from(parts, buffer, operand->offset_bytes),
                                   part_from(parts, buffer, operand->offset_bytes + operand->bytes)};
}
