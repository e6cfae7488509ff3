#include "program/live_buffers.h"

#include <stdlib.h>
#include <string.h>

static bool on_device(const struct dtp_buffer *buffer)
{
    return buffer->space == DTP_SPACE_DEVICE && buffer->bytes;
}

/* Operation after whose allocations most bytes live; the number of operations where that is before the first. */
static size_t fullest_op(const struct dtp_program *program, uint64_t standing_bytes, uint64_t *most_bytes)
{
    const struct dtp_op *ops = dtp_program_ops(program);
    const struct dtp_buffer *buffers = dtp_program_buffers(program);
    size_t count = dtp_program_op_count(program), fullest = count;
    uint64_t live = *most_bytes = standing_bytes;
    for (size_t i = 0; i < count; i++) {
        const struct dtp_operand *operand = dtp_program_operands(program, &ops[i]);
        uint64_t freed = 0;
        for (uint32_t k = 0; k < ops[i].operand_count; k++) {
            const struct dtp_buffer *buffer = &buffers[operand[k].buffer.index];
            live += on_device(buffer) && (operand[k].access & DTP_ALLOC) ? buffer->bytes : 0;
            freed += on_device(buffer) && (operand[k].access & DTP_FREE) ? buffer->bytes : 0;
        }
        if (live > *most_bytes) {
            *most_bytes = live;
            fullest = i;
        }
        live -= freed;
    }
    return fullest;
}

/* Marks the buffers that live behind the allocations of operation `last`. */
static void mark_live(const struct dtp_program *program, size_t last, bool *live)
{
    const struct dtp_op *ops = dtp_program_ops(program);
    for (size_t i = 0; i < dtp_program_op_count(program) && i <= last; i++) {
        const struct dtp_operand *operand = dtp_program_operands(program, &ops[i]);
        for (uint32_t k = 0; k < ops[i].operand_count; k++)
            if (operand[k].access & DTP_ALLOC)
                live[operand[k].buffer.index] = true;
        for (uint32_t k = 0; k < ops[i].operand_count && i < last; k++)
            if (operand[k].access & DTP_FREE)
                live[operand[k].buffer.index] = false;
    }
}

static void add(struct dtp_live_buffers *out, const struct dtp_buffer *buffer)
{
    size_t i = 0;
    while (i < out->count && (out->kind[i].owner != buffer->owner || strcmp(out->kind[i].name, buffer->name) != 0))
        i++;
    struct dtp_live_kind *kind = &out->kind[i];
    bool in_layers = buffer->layer != DTP_NO_LAYER;
    if (i == out->count) {
        out->count++;
        *kind = (struct dtp_live_kind){.name = buffer->name,
                                       .owner = buffer->owner,
                                       .persistent = buffer->persistent,
                                       .in_layers = in_layers,
                                       .least_bytes = buffer->bytes};
    }
    kind->persistent = kind->persistent && buffer->persistent;
    kind->in_layers = kind->in_layers && in_layers;
    kind->count++;
    kind->bytes += buffer->bytes;
    kind->least_bytes = buffer->bytes < kind->least_bytes ? buffer->bytes : kind->least_bytes;
    kind->most_bytes = buffer->bytes > kind->most_bytes ? buffer->bytes : kind->most_bytes;
}

enum dtp_status dtp_live_buffers_of(const struct dtp_program *program, struct dtp_live_buffers *out,
                                    struct dtp_faults *faults)
{
    const struct dtp_buffer *buffers = dtp_program_buffers(program);
    size_t count = dtp_program_buffer_count(program);
    uint64_t standing = 0;
    bool *live = calloc(count + 1, sizeof *live);
    *out = (struct dtp_live_buffers){.kind = malloc((count + 1) * sizeof *out->kind)};
    if (!live || !out->kind) {
        free(live);
        free(out->kind);
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no memory to list the buffers of a step");
    }
    for (size_t i = 0; i < count; i++) {
        live[i] = buffers[i].persistent;
        standing += live[i] && on_device(&buffers[i]) ? buffers[i].bytes : 0;
    }
    size_t fullest = fullest_op(program, standing, &out->total_bytes);
    if (fullest < dtp_program_op_count(program))
        mark_live(program, fullest, live);
    for (enum dtp_owner owner = 0; owner < DTP_OWNER_COUNT; owner++)
        for (size_t i = 0; i < count; i++)
            if (live[i] && on_device(&buffers[i]) && buffers[i].owner == owner)
                add(out, &buffers[i]);
    free(live);
    return DTP_OK;
}
