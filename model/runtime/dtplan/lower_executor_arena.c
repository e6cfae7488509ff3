/* Where a sealed program's buffers are: those that hold state by module, all of them by address. */
#include "runtime/dtplan/lower_executor.h"

#include "base/bytes.h"
#include "runtime/dtplan/batch_layout.h"
#include "program/verify.h"

#include <stdlib.h>
#include <string.h>

/* ---- by content -------------------------------------------------------------------------------------------------- */

static uint64_t count_modules(const struct dtp_program *program)
{
    const struct dtp_buffer *buffers = dtp_program_buffers(program);
    const struct dtp_program_tensor *tensors = dtp_program_tensors(program);
    uint64_t count = 0;
    for (size_t i = 0; i < dtp_program_buffer_count(program); i++)
        if (dtp_content_is_state((enum dtp_content)buffers[i].content) && buffers[i].module >= count &&
            buffers[i].module < DTP_PROGRAM_MAX_MODULES)
            count = buffers[i].module + UINT64_C(1);
    for (size_t i = 0; i < dtp_program_tensor_count(program); i++)
        if (count < (uint64_t)tensors[i].first_module + tensors[i].modules)
            count = (uint64_t)tensors[i].first_module + tensors[i].modules;
    return count;
}

/* Several operations may say it, all the same. */
static void say(uint64_t *known, double said, bool *differ)
{
    uint64_t value = said >= 1 && said < 0x1p53 ? (uint64_t)said : 0;
    *differ |= *known && value && *known != value;
    *known = value ? value : *known;
}

/* Attention's may be those of the pieces that a sequence is cut into (chunked_attention); a stage of layers alone that
 * turn nothing knows the sequence from those that see all of it. */
static void say_pieces(const struct dtp_program *program, uint64_t *sequence, bool *differ)
{
    const struct dtp_op *ops = dtp_program_ops(program);
    uint64_t longest = 0;
    for (int check = 0; check < 2; check++) {
        for (size_t i = 0; i < dtp_program_op_count(program); i++) {
            uint64_t queries =
                dtp_op_kind_class(ops[i].kind) == DTP_CLASS_ATTENTION ? ops[i].demand->attention.queries : 0;
            longest = queries > longest ? queries : longest;
            *differ |= check && queries && *sequence % queries != 0;
        }
        *sequence = *sequence ? *sequence : longest;
    }
}

/* Rows of the loss's chunks add up to those of a micro-batch. */
static bool find_shape(const struct dtp_program *program, struct dtp_executor_map *out)
{
    const struct dtp_op *ops = dtp_program_ops(program);
    const struct dtp_execution *e = dtp_program_execution(program);
    const bool exchanges =
        e->context_ranks > 1 && e->context_pieces < 2; /* attention then has other ranks' tokens too */
    uint64_t tokens = 0, loss_rows = 0;
    bool differ = false;
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_demand *d = ops[i].demand;
        bool embeds = ops[i].kind == DTP_OP_EMBEDDING || ops[i].kind == DTP_OP_EMBEDDING_BACKWARD;
        bool loses = ops[i].kind == DTP_OP_LOSS_BACKWARD;
        out->gradient_norm |= ops[i].kind == DTP_OP_CLIP_SCALE;
        if (dtp_op_kind_class(ops[i].kind) != DTP_CLASS_ATTENTION)
            say(&out->sequence, (double)d->attention.queries, &differ);
        if (embeds)
            say(&out->rows, d->tokens, &differ);
        if (embeds || loses)
            say(&out->vocab, d->k, &differ);
        if (loses)
            say(&tokens, d->m, &differ);
        loss_rows += loses && !ops[i].micro_step ? (uint64_t)d->tokens : 0;
    }
    if (!exchanges)
        say_pieces(program, &out->sequence, &differ);
    say(&out->rows, (double)loss_rows, &differ);
    out->step_tokens = (double)tokens;
    return !differ && out->vocab <= INT32_MAX && out->rows <= INT32_MAX &&
           (!out->rows || !out->sequence || out->rows % out->sequence == 0);
}

/* What the host writes and reads itself lies in its memory and has room for it. */
static bool scalars_fit(const struct dtp_program *program)
{
    const struct dtp_buffer *buffers = dtp_program_buffers(program);
    bool fit = true;
    for (size_t i = 0; i < dtp_program_buffer_count(program); i++) {
        bool numbers = buffers[i].content == DTP_CONTENT_HOST_SCALARS || buffers[i].content == DTP_CONTENT_HOST_RESULTS;
        bool host = numbers || buffers[i].content == DTP_CONTENT_HOST_BATCH;
        fit = fit && (!host || buffers[i].space == DTP_SPACE_HOST) &&
              (!numbers || buffers[i].bytes >= DTP_EXECUTOR_SCALARS_BYTES);
    }
    return fit;
}

/* Batches have the layout that the host writes. */
static bool batches_fit(const struct dtp_program *program, struct dtp_executor_map *out)
{
    const struct dtp_buffer *buffers = dtp_program_buffers(program);
    uint32_t first = out->buffer[DTP_CONTENT_HOST_BATCH].index;
    bool fit = true;
    for (uint32_t i = 0; i < dtp_program_buffer_count(program); i++) {
        bool host = buffers[i].content == DTP_CONTENT_HOST_BATCH;
        if (host || buffers[i].content == DTP_CONTENT_BATCH)
            fit = fit && out->rows && out->sequence && buffers[i].bytes >= dtp_batch_layout_of(out->rows).bytes;
        if (host)
            fit = fit && i == first + out->micro_steps++;
    }
    return fit;
}

enum dtp_status dtp_executor_find(const struct dtp_program *program, struct dtp_executor_map *out,
                                  struct dtp_faults *faults)
{
    const struct dtp_buffer *buffers = dtp_program_buffers(program);
    *out = (struct dtp_executor_map){.module_count = count_modules(program)};
    out->module = malloc((out->module_count + 1) * sizeof *out->module);
    if (!out->module)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no memory for the map of a program");
    memset(out->module, 0xff, (out->module_count + 1) * sizeof *out->module); /* DTP_NO_INDEX */
    memset(out->buffer, 0xff, sizeof out->buffer);
    for (uint32_t i = 0; i < dtp_program_buffer_count(program); i++) {
        enum dtp_content content = (enum dtp_content)buffers[i].content;
        if (out->buffer[content].index == DTP_NO_INDEX)
            out->buffer[content].index = i;
        if (dtp_content_is_state(content) && buffers[i].module < out->module_count)
            out->module[buffers[i].module][content - DTP_CONTENT_WEIGHTS].index = i;
    }
    bool scalars = scalars_fit(program);
    if (scalars && find_shape(program, out) && batches_fit(program, out))
        return DTP_OK;
    dtp_executor_map_release(out);
    if (!scalars)
        return dtp_fault(
            faults, DTP_BAD_INPUT, NULL, 0,
            "the program's buffers of host_batch, host_scalars and host_results must be in space host, the "
            "latter two of at least %u bytes",
            (unsigned)DTP_EXECUTOR_SCALARS_BYTES);
    return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                     "the program's operations differ in the tokens of a batch, a sequence or a vocabulary, or its "
                     "batches have no room for them");
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
                         "the step program would overwrite what it still needs; nothing was run");
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
