/* Where a sealed program's buffers are: those that hold state by module, all of them by address. */
#include "runtime/dtplan/lower_executor.h"

#include "base/bytes.h"
#include "program/verify.h"

#include <stdlib.h>
#include <string.h>

/* ---- by content -------------------------------------------------------------------------------------------------- */

enum dtp_status dtp_executor_find(const struct dtp_program *program, const struct dtp_transformer *transformer,
                                  struct dtp_executor_map *out, struct dtp_faults *faults)
{
    const struct dtp_buffer *buffers = dtp_program_buffers(program);
    out->module_count = dtp_parameter_module_count(transformer);
    out->module = malloc(out->module_count * sizeof *out->module);
    if (!out->module)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no memory for the map of a program");
    memset(out->module, 0xff, out->module_count * sizeof *out->module); /* DTP_NO_INDEX */
    memset(out->buffer, 0xff, sizeof out->buffer);
    for (uint32_t i = 0; i < dtp_program_buffer_count(program); i++) {
        enum dtp_content content = (enum dtp_content)buffers[i].content;
        if (out->buffer[content].index == DTP_NO_INDEX)
            out->buffer[content].index = i;
        if (dtp_content_is_state(content) && buffers[i].module < out->module_count)
            out->module[buffers[i].module][content - DTP_CONTENT_WEIGHTS].index = i;
    }
    return DTP_OK;
}

void dtp_executor_map_release(struct dtp_executor_map *map)
{
    free(map->module);
    map->module = NULL;
}

/* ---- by address -------------------------------------------------------------------------------------------------- */

/* Host buffers live all the time, so one stands behind the other. */
static uint64_t place_host(const struct dtp_program *program, uint64_t *offset_bytes)
{
    const struct dtp_buffer *buffers = dtp_program_buffers(program);
    uint64_t end = 0;
    for (size_t i = 0; i < dtp_program_buffer_count(program); i++)
        if (buffers[i].space == DTP_SPACE_HOST) {
            offset_bytes[i] = end;
            end += dtp_divide_up(buffers[i].bytes, DTP_EXECUTOR_HOST_ALIGNMENT) * DTP_EXECUTOR_HOST_ALIGNMENT;
        }
    return end;
}

enum dtp_status dtp_executor_arena_make(const struct dtp_program *program, struct dtp_executor_arena *out,
                                        struct dtp_faults *faults)
{
    struct dtp_placement placement;
    *out = (struct dtp_executor_arena){.offset_bytes = NULL};
    enum dtp_status status = dtp_program_verify(program, faults);
    if (status == DTP_BAD_INPUT)
        return dtp_fault(faults, status, NULL, 0,
                         "the step program would overwrite what it still needs; nothing was run: this is a mistake of "
                         "dtplan, report it with the command");
    if (status == DTP_OK)
        status = dtp_program_place_tight(program, &placement, faults);
    if (status != DTP_OK)
        return status;
    out->offset_bytes = placement.offset_bytes; /* taken over */
    placement.offset_bytes = NULL;
    out->device_bytes = placement.arena_bytes;
    dtp_placement_release(&placement);
    out->host_bytes = place_host(program, out->offset_bytes);
    return DTP_OK;
}

void dtp_executor_arena_release(struct dtp_executor_arena *arena)
{
    free(arena->offset_bytes);
    *arena = (struct dtp_executor_arena){.offset_bytes = NULL};
}
