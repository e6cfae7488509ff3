#include "bind/bind.h"

#include "kernels/element.h"
#include "plan/comm_hook.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(DTP_EXECUTOR_PARTIAL_ROWS == DTP_PARTIAL_SUM_ROWS, "rows of partial sums");
_Static_assert(DTP_EXECUTOR_MOMENT_BLOCK == DTP_MOMENT_BLOCK, "elements that share a scale");
_Static_assert(2 * DTP_PARAMETER_PACKED_BLOCK == DTP_NF4_BLOCK, "packed weights that share a scale");
_Static_assert(DTP_INT8_RUN == DTP_PACK8_RUN, "gradients that share a range");
_Static_assert(DTP_EXECUTOR_SQUARE_SUM_PARTIALS == DTP_SQUARE_SUM_PARTIALS, "partial sums of squares");
_Static_assert(DTP_EXECUTOR_SCALARS_BYTES >= sizeof(struct dtp_step_scalars), "room for a step's scalars");

static enum dtp_status out_of_memory(struct dtp_faults *faults)
{
    return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory while binding the program");
}

void *dtp_binding_address(const struct dtp_binding *binding, dtp_buffer_id id)
{
    if (id.index == DTP_NO_INDEX || binding->job.arena->offset_bytes[id.index] == UINT64_MAX)
        return NULL;
    const struct dtp_buffer *buffer = &dtp_program_buffers(binding->job.program)[id.index];
    char *base = buffer->space == DTP_SPACE_HOST ? binding->job.host_base : binding->job.device_base;
    return base + binding->job.arena->offset_bytes[id.index];
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

/* An event for every operation that one of another stream waits for, and the list of them for those that wait. */
static enum dtp_status bind_events(struct dtp_binding *b, struct dtp_faults *faults)
{
    const struct dtp_program *program = b->job.program;
    const struct dtp_op *ops = dtp_program_ops(program);
    const struct dtp_device_verbs *verbs = b->job.device->verbs;
    for (size_t i = 0; i < b->op_count; i++) {
        const dtp_op_id *earlier = dtp_program_dependencies(program, &ops[i]);
        struct dtp_bound_op *bound = &b->ops[i];
        bound->wait = dtp_host_arena_take(&b->memory, ops[i].dependency_count + 1, sizeof *bound->wait);
        if (!bound->wait)
            return out_of_memory(faults);
        for (uint32_t k = 0; k < ops[i].dependency_count; k++) {
            struct dtp_bound_op *awaited = &b->ops[earlier[k].index];
            enum dtp_status status = DTP_OK;
            if (!awaited->done)
                status = verbs->event_create(b->job.device, false, &awaited->done, faults);
            if (status != DTP_OK)
                return status;
            bound->wait[bound->wait_count++] = awaited->done;
        }
    }
    return DTP_OK;
}

/* ---- host work --------------------------------------------------------------------------------------------------- */

static enum dtp_status start_host_adam(struct dtp_binding *b, struct dtp_faults *faults)
{
    const struct dtp_op *ops = dtp_program_ops(b->job.program);
    struct dtp_host_adam_options options = {.parts = 1};
    if (b->job.device->asynchronous) /* this rank has cores of its own (cores.h); issuing goes on beside the update */
        options.spare = 2;
    else if (b->job.world)
        options = (struct dtp_host_adam_options){.index = b->job.world->ranks.local_rank,
                                                 .parts = b->job.world->ranks.local_world};
    for (size_t i = 0; i < b->op_count; i++)
        if (ops[i].kind == DTP_OP_HOST_OPTIMIZER)
            return dtp_host_adam_create(&options, &b->adam, faults);
    return DTP_OK;
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

static enum dtp_status bind_ops(struct dtp_binding *b, struct dtp_faults *faults)
{
    const struct dtp_op *ops = dtp_program_ops(b->job.program);
    struct dtp_device *device = b->job.device;
    for (size_t i = 0; i < b->op_count; i++) {
        struct dtp_bound_op *bound = &b->ops[i];
        enum dtp_status status = dtp_bind_arguments(b, &ops[i], bound, faults);
        if (status != DTP_OK)
            return status;
        bound->stream_index = ops[i].stream;
        bound->stream = device->verbs->stream(device, ops[i].stream);
        b->streams[ops[i].stream] |= bound->kind != DTP_BOUND_NOTHING && bound->kind != DTP_BOUND_HEARD;
    }
    return DTP_OK;
}

static enum dtp_status prepare(struct dtp_binding *b, struct dtp_faults *faults)
{
    struct dtp_device *device = b->job.device;
    enum dtp_status status = DTP_OK;
    for (size_t i = 0; i < b->op_count && status == DTP_OK; i++)
        if (b->ops[i].kind == DTP_BOUND_COMPUTE)
            status = device->verbs->prepare(device, b->ops[i].kernel, &b->ops[i].arguments, faults);
    return status;
}

uint32_t dtp_bind_role_rank(const struct dtp_bind_job *job)
{
    return job->set ? dtp_program_set_place(job->set, job->rank) : job->rank;
}

struct dtp_tensor_place dtp_bind_tensor_place(const struct dtp_bind_job *job)
{
    const struct dtp_execution *e = dtp_program_execution(job->program);
    struct dtp_program_group group = {e->tensor_ranks ? e->tensor_ranks : 1, e->tensor_stride ? e->tensor_stride : 1};
    return (struct dtp_tensor_place){dtp_group_place(&group, dtp_bind_role_rank(job)).index, group.ranks};
}

uint32_t dtp_bind_data_rank(const struct dtp_bind_job *job)
{
    const struct dtp_execution *e = dtp_program_execution(job->program);
    uint32_t rank = dtp_bind_role_rank(job), ranks = e->tensor_ranks ? e->tensor_ranks : 1;
    uint32_t stride = e->tensor_stride ? e->tensor_stride : 1;
    return rank / (ranks * stride) * stride + rank % stride;
}

struct dtp_context_place dtp_bind_context_place(const struct dtp_bind_job *job)
{
    const struct dtp_execution *e = dtp_program_execution(job->program);
    uint32_t ranks = e->context_ranks ? e->context_ranks : 1;
    return (struct dtp_context_place){dtp_bind_data_rank(job) % ranks, ranks,
                                      e->context_pieces ? e->context_pieces : 1};
}

/* Zigzag: of 2 c pieces the i-th from the front, and the i-th from the back. */
uint64_t dtp_context_position(const struct dtp_context_place *place, uint64_t tokens, uint64_t token)
{
    uint64_t piece = tokens / place->pieces;
    if (token < piece)
        return place->index * piece + token;
    return ((uint64_t)place->ranks * place->pieces - 1 - place->index) * piece + token - piece;
}

/* ---- state ------------------------------------------------------------------------------------------------------- */

/* What this rank has of one state of a module: elements [begin, end) at `values`. */
struct state_range {
    struct dtp_state_part kind; /* module, kind, element */
    uint64_t begin, end;
    char *values;
};

/* Elements [begin, end) of the range as a part, unless there are none; `left_out` elements before them are in no
 * checkpoint. */
static void add_part(struct dtp_state_part *parts, size_t *count, const struct state_range *range, uint64_t begin,
                     uint64_t end, uint64_t left_out)
{
    if (begin >= end)
        return;
    struct dtp_state_part part = range->kind;
    part.begin = begin - left_out, part.end = end - left_out;
    part.values = range->values + (begin - range->begin) * dtp_element_bytes(part.element);
    parts[(*count)++] = part;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Tensors [*next, ...) that follow each other without the head's padding in between, as one run of elements. */
static bool next_run(const struct dtp_parameter_module *layout, int *next, uint64_t *begin, uint64_t *end,
                     uint64_t *left_out)
{
    bool found = false;
    for (; *next < DTP_PARAMETER_COUNT; ++*next) {
        const struct dtp_parameter_tensor *t = &layout->tensor[*next];
        uint64_t before = t->offset_elements - t->saved_offset_elements;
        if (!t->exists)
            continue;
        if (found && before != *left_out)
            break;
        *begin = found ? *begin : t->offset_elements;
        *end = t->offset_elements + t->rows * t->columns;
        *left_out = before;
        found = true;
    }
    return found;
}

/* What of a piece of a tensor parallel rank's slice lies in elements [begin, end) of the module: as one part, or where
 * it is of several runs as the rows that are there whole and those that begin and end in their middle. */
static void add_piece(struct dtp_state_part *parts, size_t *count, const struct state_range *range,
                      const struct dtp_parameter_piece *piece, uint64_t begin, uint64_t end)
{
    uint64_t at = larger(begin, piece->offset_elements), last = piece->offset_elements + piece->run * piece->count;
    last = smaller(end, last);
    while (at < last) {
        uint64_t place = at - piece->offset_elements, row = place / piece->run, column = place % piece->run;
        uint64_t rows = column ? 0 : (last - at) / piece->run;
        uint64_t taken = rows ? rows * piece->run : smaller(piece->run - column, last - at);
        struct dtp_state_part part = range->kind;
        part.begin = piece->saved_offset_elements + row * piece->stride + column;
        part.end = part.begin + taken;
        if (rows > 1) {
            part.run = piece->run, part.stride = piece->stride;
            part.end = part.begin + (rows - 1) * piece->stride + piece->run;
        }
        part.values = range->values + (at - range->begin) * dtp_element_bytes(part.element);
        parts[(*count)++] = part;
        at += taken;
    }
}

/* Where several roles hold a module, the first of them writes it to checkpoints. */
static bool role_owns(const struct dtp_bind_job *job, uint64_t module, enum dtp_content content)
{
    uint32_t mine = job->set ? dtp_program_set_role_of(job->set, job->rank) : 0;
    for (uint32_t r = 0; r < mine; r++) {
        const struct dtp_buffer *buffers = dtp_program_buffers(job->set->roles[r].program);
        for (size_t i = 0; i < dtp_program_buffer_count(job->set->roles[r].program); i++)
            if (buffers[i].content == content && buffers[i].module == module)
                return false;
    }
    return true;
}

/* Elements that share a scale: moments, or bytes of packed weights. */
static uint64_t scale_block(const struct dtp_binding *b, uint64_t module)
{
    dtp_buffer_id weights = b->map.module[module][DTP_EXECUTOR_WEIGHTS];
    enum dtp_element element = DTP_ELEMENT_FP32;
    if (weights.index != DTP_NO_INDEX)
        dtp_bind_buffer_element(&dtp_program_buffers(b->job.program)[weights.index], &element);
    return element == DTP_ELEMENT_INT8 ? DTP_NF4_BLOCK / 2 : DTP_MOMENT_BLOCK;
}

/* Scales of moments and packed weights: whole blocks of the module's vector, up to the last that tensors reach into,
 * however many ranks share it. */
static bool add_scales(struct dtp_binding *b, uint64_t module, enum dtp_executor_state state, char *values)
{
    struct dtp_parameter_module layout;
    dtp_program_module(b->job.program, module, &layout);
    uint64_t bytes = dtp_program_buffers(b->job.program)[b->map.module[module][state].index].bytes;
    uint64_t block = scale_block(b, module);
    uint64_t of_shard = layout.shard_elements / block, held = bytes / sizeof(float);
    uint64_t used = (layout.extent_elements + block - 1) / block;
    uint32_t rank = dtp_bind_data_rank(&b->job), shards = dtp_binding_shards(b);
    uint64_t first = rank % shards * of_shard;
    struct state_range range = {
        .kind = {.module = (uint32_t)module, .kind = (enum dtp_state_kind)state, .element = DTP_ELEMENT_FP32},
        .begin = first,
        .end = first + of_shard,
        .values = values};
    if (held != of_shard)
        return false;
    add_part(b->parts, &b->part_count, &range, first, smaller(range.end, used), 0);
    if (rank < shards && role_owns(&b->job, module, dtp_executor_content(state)))
        add_part(b->own, &b->own_count, &range, first, smaller(range.end, used), 0);
    return true;
}

/* State of PowerSGD, and amaxes of fp8. What rounding lost and the largest magnitudes are each rank's own, and of no
 * use to another number of ranks: elements of rank r of N are numbered behind those of all smaller N and r, so that a
 * run by other ranks finds none of its own. Factors are the same on all copies of a shard, and the first copy writes
 * them: they are numbered so by shards. */
static void add_hooked(struct dtp_binding *b, uint64_t module, enum dtp_executor_state state, char *values)
{
    uint64_t count = dtp_program_buffers(b->job.program)[b->map.module[module][state].index].bytes / sizeof(float);
    uint64_t rank = dtp_bind_data_rank(&b->job), ranks = b->job.world ? b->job.world->ranks.world : 1;
    bool own = state == DTP_EXECUTOR_LOST || state == DTP_EXECUTOR_AMAX;
    if (!own)
        ranks = dtp_execution_shards(dtp_program_execution(b->job.program), module);
    uint64_t first = (ranks * (ranks - 1) / 2 + rank % ranks) * count;
    struct state_range range = {
        .kind = {.module = (uint32_t)module, .kind = (enum dtp_state_kind)state, .element = DTP_ELEMENT_FP32},
        .begin = first,
        .end = first + count,
        .values = values};
    add_part(b->parts, &b->part_count, &range, first, range.end, 0);
    if (rank < ranks)
        add_part(b->own, &b->own_count, &range, first, range.end, 0);
}

/* Parts of a tensor parallel rank's slice: all that it holds, and of [first, last) what is its to write. Tensors that
 * all of these ranks have whole the first of them writes. */
static void add_slices(struct dtp_binding *b, const struct dtp_parameter_module *layout,
                       const struct state_range *range, uint32_t index, uint64_t first, uint64_t last)
{
    for (int i = 0; i < DTP_PARAMETER_COUNT; i++) {
        struct dtp_parameter_piece pieces[DTP_PARAMETER_PARTS];
        uint32_t count = layout->tensor[i].exists ? dtp_parameter_pieces(&layout->tensor[i], index, pieces) : 0;
        bool whole = layout->tensor[i].cut.way == DTP_PARAMETER_CUT_WHOLE;
        for (uint32_t p = 0; p < count; p++) {
            add_piece(b->parts, &b->part_count, range, &pieces[p], range->begin, range->end);
            if (!whole || index == 0)
                add_piece(b->own, &b->own_count, range, &pieces[p], first, last);
        }
    }
}

/* Second moments of vectors alone, one run of them behind the other (lower_executor_muon.c), where each rank has all of
 * the module: the first writes it. */
static void add_vectors(struct dtp_binding *b, const struct dtp_parameter_module *layout,
                        const struct state_range *range, bool writes)
{
    struct dtp_parameter_run run = {.elements = 0};
    for (int next = 0; dtp_parameter_next_vectors(layout, &next, &run);) {
        struct state_range of_run = *range;
        of_run.begin = run.begin;
        of_run.values = range->values + run.place * dtp_element_bytes(range->kind.element);
        add_part(b->parts, &b->part_count, &of_run, run.begin, run.begin + run.elements, 0);
        if (writes)
            add_part(b->own, &b->own_count, &of_run, run.begin, run.begin + run.elements, 0);
    }
}

/* A buffer of whole size is this rank's to write only in its own shard; padding is in no part. False: of no format, or
 * of neither the module's nor a shard's size. */
static bool add_state(struct dtp_binding *b, uint64_t module, enum dtp_executor_state state)
{
    dtp_buffer_id id = b->map.module[module][state];
    char *values = dtp_binding_address(b, id);
    enum dtp_element element;
    if (!values)
        return true;
    if (!dtp_bind_buffer_element(&dtp_program_buffers(b->job.program)[id.index], &element))
        return false;
    if (state == DTP_EXECUTOR_SCALES1 || state == DTP_EXECUTOR_SCALES2)
        return element == DTP_ELEMENT_FP32 && add_scales(b, module, state, values);
    if (state == DTP_EXECUTOR_LOST || state == DTP_EXECUTOR_FACTOR_Q || state == DTP_EXECUTOR_AMAX) {
        add_hooked(b, module, state, values);
        return element == DTP_ELEMENT_FP32;
    }
    struct dtp_parameter_module layout;
    dtp_program_module(b->job.program, module, &layout);
    uint64_t held = dtp_program_buffers(b->job.program)[id.index].bytes / dtp_element_bytes(element);
    const struct dtp_execution *e = dtp_program_execution(b->job.program);
    const bool experts = e->expert_modules && module >= e->expert_modules;
    const struct dtp_tensor_place divided = dtp_bind_expert_place(&b->job);
    uint32_t rank = experts ? dtp_bind_role_rank(&b->job) / divided.ranks : dtp_bind_data_rank(&b->job),
             shards = dtp_execution_shards(e, module);
    uint64_t first = rank % shards * layout.shard_elements, last = first + layout.shard_elements;
    bool whole = held == layout.elements;
    bool vectors = state == DTP_EXECUTOR_MOMENT2 && layout.elements == layout.shard_elements && !whole &&
                   held == dtp_parameter_vector_elements(&layout);
    if (!whole && held != layout.shard_elements && !vectors)
        return false;
    struct state_range range = {
        .kind = {.module = (uint32_t)(experts ? module - e->expert_modules + 1 : module), /* which checkpoints have */
                 .kind = (enum dtp_state_kind)state,
                 .element = element},
        .begin = whole ? 0 : first,
        .end = whole ? layout.elements : last,
        .values = values};
    bool writes = rank < shards && role_owns(&b->job, module, dtp_executor_content(state));
    if (vectors) {
        add_vectors(b, &layout, &range, writes);
        return true;
    }
    struct dtp_tensor_place tensor = dtp_bind_tensor_place(&b->job);
    if (divided.ranks > 1 || tensor.ranks > 1) { /* what all have is one rank's to write, by its shard */
        add_slices(b, &layout, &range, experts ? divided.index : tensor.index, writes ? first : 0, writes ? last : 0);
        return true;
    }
    uint64_t begin, end, left_out;
    for (int next = 0; next_run(&layout, &next, &begin, &end, &left_out);) {
        add_part(b->parts, &b->part_count, &range, larger(begin, range.begin), smaller(end, range.end), left_out);
        if (writes)
            add_part(b->own, &b->own_count, &range, larger(begin, first), smaller(end, last), left_out);
    }
    return true;
}

static enum dtp_status bind_state(struct dtp_binding *b, struct dtp_faults *faults)
{
    _Static_assert((int)DTP_EXECUTOR_STATE_COUNT == (int)DTP_STATE_KIND_COUNT, "kinds of state");
    enum dtp_status status = dtp_executor_find(b->job.program, &b->map, faults);
    if (status != DTP_OK)
        return status;
    /* A state is two parts at most, before and behind the head's padding; that of vectors alone has a run before each
     * matrix of a block and one behind the last. */
    size_t most = (2 * DTP_STATE_KIND_COUNT + DTP_EXECUTOR_MOST_RUNS) * (b->map.module_count + 1);
    if (dtp_bind_tensor_place(&b->job).ranks > 1 ||
        dtp_bind_expert_place(&b->job).ranks > 1) /* whole rows, and one that begins and one that ends in its middle */
        most *= DTP_PARAMETER_COUNT * DTP_PARAMETER_PARTS * 3;
    b->parts = dtp_host_arena_take_zeroed(&b->memory, most, sizeof *b->parts);
    b->own = dtp_host_arena_take_zeroed(&b->memory, most, sizeof *b->own);
    if (!b->parts || !b->own)
        return out_of_memory(faults);
    for (uint64_t module = 0; module < b->map.module_count; module++)
        for (int state = 0; state < DTP_EXECUTOR_STATE_COUNT; state++)
            if (!add_state(b, module, (enum dtp_executor_state)state))
                return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                                 "the program's buffer of %s of module %" PRIu64
                                 " has no format that can be run, or not the size of its tensors",
                                 dtp_content_text(dtp_executor_content((enum dtp_executor_state)state)), module);
    return DTP_OK;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static void live(const struct dtp_buffer *buffer, bool begins, uint64_t now[DTP_OWNER_COUNT], uint64_t *total)
{
    if (buffer->space != DTP_SPACE_DEVICE)
        return;
    if (begins) {
        now[buffer->owner] += buffer->bytes;
        *total += buffer->bytes;
    } else {
        now[buffer->owner] -= buffer->bytes;
        *total -= buffer->bytes;
    }
}

void dtp_binding_peak(const struct dtp_binding *b, uint64_t out[DTP_OWNER_COUNT])
{
    const struct dtp_buffer *buffers = dtp_program_buffers(b->job.program);
    uint64_t now[DTP_OWNER_COUNT] = {0}, total = 0, most = 0;
    for (size_t i = 0; i < dtp_program_buffer_count(b->job.program); i++)
        if (buffers[i].persistent)
            live(&buffers[i], true, now, &total);
    for (size_t i = 0; i <= b->op_count; i++) {
        if (total > most)
            memcpy(out, now, sizeof now);
        most = total > most ? total : most;
        if (i == b->op_count)
            return;
        const struct dtp_op *op = &dtp_program_ops(b->job.program)[i];
        const struct dtp_operand *operands = dtp_program_operands(b->job.program, op);
        for (uint32_t k = 0; k < op->operand_count; k++)
            if (operands[k].access & DTP_ALLOC)
                live(&buffers[operands[k].buffer.index], true, now, &total);
        if (total > most)
            memcpy(out, now, sizeof now);
        most = total > most ? total : most;
        for (uint32_t k = 0; k < op->operand_count; k++)
            if (operands[k].access & DTP_FREE)
                live(&buffers[operands[k].buffer.index], false, now, &total);
    }
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

enum dtp_status dtp_bind(const struct dtp_bind_job *job, struct dtp_binding *out, struct dtp_faults *faults)
{
    *out = (struct dtp_binding){.job = *job, .op_count = dtp_program_op_count(job->program)};
    out->ops = dtp_host_arena_take_zeroed(&out->memory, out->op_count, sizeof *out->ops);
    enum dtp_status status = out->ops ? bind_state(out, faults) : out_of_memory(faults);
    if (status == DTP_OK)
        status = start_host_adam(out, faults);
    if (status == DTP_OK)
        status = bind_ops(out, faults);
    if (status == DTP_OK)
        status = bind_events(out, faults);
    if (status == DTP_OK)
        status = prepare(out, faults);
    if (status != DTP_OK)
        dtp_binding_release(out);
    return status;
}

/* The largest one of its kind in a group; NULL: none. */
static const struct dtp_bound_op *largest(const struct dtp_binding *b, enum dtp_collective collective, uint32_t group)
{
    const struct dtp_bound_op *best = NULL;
    for (size_t i = 0; i < b->op_count; i++) {
        const struct dtp_collective_args *args = &b->ops[i].arguments.collective;
        if (b->ops[i].kind == DTP_BOUND_COLLECTIVE && args->collective == collective && args->group == group &&
            !args->exchange.begins && /* of sizes that nobody knows yet */
            (!best || args->bytes > best->arguments.collective.bytes))
            best = &b->ops[i];
    }
    return best;
}

/* The first transfer of each group, peer and direction on a stream of transfers. */
static bool is_new(const struct dtp_collective_args *seen, size_t count, const struct dtp_collective_args *args)
{
    for (size_t i = 0; i < count; i++)
        if (seen[i].group == args->group && seen[i].peer == args->peer && seen[i].receives == args->receives)
            return false;
    return true;
}

static enum dtp_status connect_stages(const struct dtp_binding *b, struct dtp_faults *faults)
{
    struct dtp_communicator *communicator = b->job.world->communicator;
    struct dtp_collective_args *args = calloc(b->op_count + 1, sizeof *args);
    size_t count = 0;
    if (!args)
        return out_of_memory(faults);
    for (size_t i = 0; i < b->op_count; i++) {
        const struct dtp_bound_op *op = &b->ops[i];
        if (op->kind == DTP_BOUND_COLLECTIVE && op->arguments.collective.collective == DTP_SEND_RECV &&
            dtp_stream_transfers(op->stream_index) && is_new(args, count, &op->arguments.collective))
            args[count++] = op->arguments.collective;
    }
    void *stream = b->job.device->verbs->stream(b->job.device, DTP_STREAM_COMPUTE);
    enum dtp_status status = communicator->verbs->connect(communicator, args, count, stream, faults);
    free(args);
    return status;
}

enum dtp_status dtp_binding_prove(const struct dtp_binding *b, struct dtp_faults *faults)
{
    struct dtp_communicator *communicator = b->job.world ? b->job.world->communicator : NULL;
    enum dtp_status status = DTP_OK;
    for (uint32_t group = 0; communicator && group < dtp_program_group_count(b->job.program); group++)
        for (int collective = 0; collective < DTP_COLLECTIVE_COUNT && status == DTP_OK; collective++) {
            if (collective == DTP_SEND_RECV) /* no plan chooses how it is carried */
                continue;
            const struct dtp_bound_op *op = largest(b, (enum dtp_collective)collective, group);
            if (op)
                status = communicator->verbs->prove(communicator, &op->arguments.collective, op->stream, faults);
        }
    if (communicator && b->job.set && status == DTP_OK)
        status = connect_stages(b, faults);
    return status;
}

void dtp_binding_release(struct dtp_binding *binding)
{
    for (size_t i = 0; binding->ops && i < binding->op_count; i++)
        if (binding->ops[i].done)
            binding->job.device->verbs->event_destroy(binding->job.device, binding->ops[i].done);
    free(binding->factored);
    dtp_host_adam_destroy(binding->adam);
    dtp_executor_map_release(&binding->map);
    dtp_host_arena_release(&binding->memory);
    memset(binding, 0, sizeof *binding);
}
