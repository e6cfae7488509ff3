#include "train/run.h"

#include "kernels/element.h"
#include "train/packed_weights.h"
#include "train/run_heard.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct dtp_run {
    struct dtp_binding *binding;
    struct dtp_device *device;
    bool poison;
    void *begin, *end;                   /* timed events around the step */
    void *fork, *join[DTP_STREAM_COUNT]; /* of the streams */
    void **op_begin, **op_end;           /* timed; made when a step is first measured */
    void *graph;
    uint32_t *ended;                        /* dtp_world_watch's; NULL: nobody watches */
    struct dtp_copied_bytes walked, copied; /* of one walk over the program; of all steps */
    struct dtp_heard heard;
};

/* ---- faults ------------------------------------------------------------------------------------------------------ */

static enum dtp_status device_failed(const struct dtp_run *run, int code, const char *what, struct dtp_faults *faults)
{
    return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "%s: %s", what,
                     run->device->verbs->error_text(run->device, code));
}

static enum dtp_status op_failed(const struct dtp_run *run, size_t i, int code, struct dtp_faults *faults)
{
    const struct dtp_op *op = &dtp_program_ops(run->binding->job.program)[i];
    struct dtp_communicator *communicator = run->binding->job.world ? run->binding->job.world->communicator : NULL;
    if (run->binding->ops[i].kind == DTP_BOUND_HEARD && code == DTP_HEARD_NO_ROOM)
        return dtp_heard_no_room(&run->heard, run->binding, i, faults);
    const char *why = run->binding->ops[i].kind == DTP_BOUND_COLLECTIVE
                          ? communicator->verbs->error_text(communicator, code)
                          : run->device->verbs->error_text(run->device, code);
    if (op->layer == DTP_NO_LAYER)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "operation %zu, %s \"%s\": %s", i,
                         dtp_op_kind_text(op->kind), op->name, why);
    return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "operation %zu, %s \"%s\" of layer %u: %s", i,
                     dtp_op_kind_text(op->kind), op->name, (unsigned)op->layer, why);
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

static enum dtp_status make_events(struct dtp_run *run, struct dtp_faults *faults)
{
    const struct dtp_device_verbs *verbs = run->device->verbs;
    enum dtp_status status = verbs->event_create(run->device, true, &run->begin, faults);
    if (status == DTP_OK)
        status = verbs->event_create(run->device, true, &run->end, faults);
    if (status == DTP_OK)
        status = verbs->event_create(run->device, false, &run->fork, faults);
    for (int s = 0; s < DTP_STREAM_COUNT && status == DTP_OK; s++)
        if (run->binding->streams[s] && s != DTP_STREAM_COMPUTE)
            status = verbs->event_create(run->device, false, &run->join[s], faults);
    return status;
}

static enum dtp_status be_watched(struct dtp_run *run, struct dtp_faults *faults)
{
    void *memory;
    size_t bytes = DTP_STREAM_COUNT * sizeof *run->ended;
    enum dtp_status status = run->device->verbs->allocate_host(run->device, bytes, &memory, faults);
    if (status != DTP_OK)
        return status;
    memset(memory, 0, bytes);
    run->ended = memory;
    dtp_world_watch(run->binding->job.world, run->ended);
    return DTP_OK;
}

enum dtp_status dtp_run_create(struct dtp_binding *binding, bool poison, struct dtp_run **out,
                               struct dtp_faults *faults)
{
    struct dtp_run *run = calloc(1, sizeof *run);
    *out = NULL;
    if (!run)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    run->binding = binding;
    run->device = binding->job.device;
    run->poison = poison && !run->device->asynchronous;
    enum dtp_status status = make_events(run, faults);
    if (status == DTP_OK)
        status = dtp_heard_make(run->binding, &run->heard, faults);
    if (status == DTP_OK && binding->job.world)
        status = be_watched(run, faults);
    if (status != DTP_OK)
        dtp_run_destroy(run);
    else
        *out = run;
    return status;
}

static void forget(struct dtp_run *run, void *event)
{
    if (event)
        run->device->verbs->event_destroy(run->device, event);
}

void dtp_run_destroy(struct dtp_run *run)
{
    if (!run)
        return;
    forget(run, run->begin);
    forget(run, run->end);
    forget(run, run->fork);
    for (int s = 0; s < DTP_STREAM_COUNT; s++)
        forget(run, run->join[s]);
    for (size_t i = 0; run->op_begin && i < 2 * run->binding->op_count; i++)
        forget(run, run->op_begin[i]);
    free(run->op_begin);
    dtp_heard_release(&run->heard);
    if (run->ended) {
        dtp_world_watch(run->binding->job.world, NULL);
        run->device->verbs->release_host(run->device, run->ended);
    }
    if (run->graph)
        run->device->verbs->graph_destroy(run->device, run->graph);
    free(run);
}

/* ---- what training starts from ----------------------------------------------------------------------------------- */

/* The elements of one tensor that lie in the part. */
static int initialise_tensor(struct dtp_run *run, const struct dtp_state_part *part, enum dtp_parameter which,
                             const struct dtp_parameter_tensor *tensor, uint64_t seed)
{
    const struct dtp_parameter_cut *cut = &tensor->cut; /* a part of a slice lies in one tensor of the model */
    uint64_t begin = cut->parts ? cut->whole_saved_offset_elements : tensor->saved_offset_elements;
    uint64_t end = begin + (cut->parts ? cut->whole_rows * cut->whole_columns : tensor->rows * tensor->columns);
    uint64_t first = begin > part->begin ? begin : part->begin, last = end < part->end ? end : part->end;
    if (!tensor->exists || first >= last)
        return 0;
    struct dtp_initialise_args g = {.values =
                                        (char *)part->values + (first - part->begin) * dtp_element_bytes(part->element),
                                    .count = part->run ? dtp_state_part_elements(part) : last - first,
                                    .first_element = first - begin,
                                    .seed = seed,
                                    .tensor = dtp_parameter_key(part->module, which),
                                    .mean = (float)tensor->mean,
                                    .deviation = (float)tensor->deviation,
                                    .element = part->element,
                                    .run = part->run,
                                    .stride = part->stride};
    struct dtp_kernels *kernels = &run->device->kernels;
    return kernels->initialise(kernels->self, &g, run->device->verbs->stream(run->device, DTP_STREAM_COMPUTE));
}

/* Q of PowerSGD starts as normal numbers, the same on all ranks. Tensors of the model have smaller keys. */
static int initialise_factors(struct dtp_run *run, const struct dtp_state_part *part, uint64_t seed)
{
    struct dtp_initialise_args g = {.values = part->values,
                                    .count = part->end - part->begin,
                                    .seed = seed,
                                    .tensor = UINT32_MAX - part->module,
                                    .deviation = 1,
                                    .element = part->element};
    struct dtp_kernels *kernels = &run->device->kernels;
    return kernels->initialise(kernels->self, &g, run->device->verbs->stream(run->device, DTP_STREAM_COMPUTE));
}

static int initialise_part(struct dtp_run *run, const struct dtp_state_part *part, uint64_t seed)
{
    const struct dtp_bind_job *job = &run->binding->job;
    struct dtp_parameter_module layout;
    int code = 0;
    if (part->kind == DTP_STATE_FACTOR_Q)
        return initialise_factors(run, part, seed);
    if ((part->kind != DTP_STATE_WEIGHTS && part->kind != DTP_STATE_MASTER) || dtp_packed_weights_are(part))
        return 0;
    dtp_program_module(job->program, part->module, &layout);
    for (int i = 0; i < DTP_PARAMETER_COUNT && !code; i++)
        code = initialise_tensor(run, part, (enum dtp_parameter)i, &layout.tensor[i], seed);
    uint32_t experts = dtp_program_execution(job->program)->expert_modules;
    if (!experts || part->module == 0 || part->module + 1 >= experts)
        return code;
    dtp_program_module(job->program, experts + part->module - 1, &layout); /* of the same block, in a part of its own */
    for (int i = 0; i < DTP_PARAMETER_COUNT && !code; i++)
        code = initialise_tensor(run, part, (enum dtp_parameter)i, &layout.tensor[i], seed);
    return code;
}

static bool reads_tables(const struct dtp_program *program, const struct dtp_op *op)
{
    const struct dtp_operand *operands = dtp_program_operands(program, op);
    for (uint32_t i = 0; i < op->operand_count; i++)
        if (operands[i].role == DTP_ROLE_TABLES)
            return true;
    return false;
}

/* RoFormer (Su et al. 2021): angle of pair i at position p is p * 10000^(-2 i / d), where d is how much of a head is
 * turned. */
#define ROTARY_BASE 10000.0
static enum dtp_status fill_tables(struct dtp_run *run, struct dtp_faults *faults)
{
    const struct dtp_bind_job *job = &run->binding->job;
    const struct dtp_op *ops = dtp_program_ops(job->program);
    char *tables = dtp_binding_address(run->binding, run->binding->map.buffer[DTP_CONTENT_TABLES]);
    uint64_t half = 0, count = 0;
    void *staging;
    for (size_t i = 0; i < dtp_program_op_count(job->program) && !half; i++) {
        double part = ops[i].kind == DTP_OP_ROTARY ? ops[i].demand->n : 0; /* of a head, what is turned; 0: all of it */
        if (reads_tables(job->program, &ops[i]))
            half = (part > 0 && part < UINT32_MAX ? (uint64_t)part : ops[i].demand->attention.head_dim) / 2;
    }
    count = run->binding->map.sequence * half;
    if (!tables || !count)
        return DTP_OK;
    if (dtp_program_buffers(job->program)[run->binding->map.buffer[DTP_CONTENT_TABLES].index].bytes / sizeof(float) /
            2 <
        count)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                         "the program's buffer of tables has no room for the cosines and sines of %" PRIu64
                         " positions of %" PRIu64 " pairs",
                         run->binding->map.sequence, half);
    enum dtp_status status =
        run->device->verbs->allocate_host(run->device, 2 * count * sizeof(float), &staging, faults);
    if (status != DTP_OK)
        return status;
    float *cosines = staging;
    struct dtp_context_place place = dtp_bind_context_place(job);
    for (uint64_t i = 0; i < count; i++) {
        double position = (double)dtp_context_position(&place, run->binding->map.sequence, i / half);
        double angle = position * pow(ROTARY_BASE, -(double)(i % half) / (double)half);
        cosines[i] = (float)cos(angle);
        cosines[count + i] = (float)sin(angle);
    }
    int code = run->device->verbs->copy(run->device, tables, cosines, 2 * count * sizeof(float),
                                        run->device->verbs->stream(run->device, DTP_STREAM_COMPUTE));
    code = code ? code : run->device->verbs->synchronise(run->device);
    run->device->verbs->release_host(run->device, staging);
    return code ? device_failed(run, code, "RoPE's tables could not be written", faults) : DTP_OK;
}

#define NAN_BYTE 0xff /* repeated, it is a NaN in bf16 and in fp32, and no token */

static void poison(struct dtp_run *run, dtp_buffer_id id)
{
    void *address = dtp_binding_address(run->binding, id);
    if (address)
        memset(address, NAN_BYTE, dtp_program_buffers(run->binding->job.program)[id.index].bytes);
}

/* Makes all of the device's arena 0. Of a host device whole pages are given back to the system, which gives zeros once
 * they are touched: the matmuls' workspaces, tens of MiB of each rank, never are. */
static int clear_arena(struct dtp_run *run)
{
    struct dtp_zero_args all = {run->binding->job.device_base, run->binding->job.arena->device_bytes};
    uint64_t whole_bytes = all.bytes - all.bytes % (uint64_t)sysconf(_SC_PAGESIZE);
    if (!run->device->asynchronous && madvise(all.values, whole_bytes, MADV_DONTNEED) == 0)
        all = (struct dtp_zero_args){(char *)all.values + whole_bytes, all.bytes - whole_bytes};
    return run->device->kernels.zero(run->device->kernels.self, &all,
                                     run->device->verbs->stream(run->device, DTP_STREAM_COMPUTE));
}

enum dtp_status dtp_run_initialise(struct dtp_run *run, uint64_t seed, struct dtp_faults *faults)
{
    const struct dtp_bind_job *job = &run->binding->job;
    int code = clear_arena(run);
    if (run->binding->adam) /* tens of GiB, by many threads */
        dtp_host_adam_touch(run->binding->adam, job->host_base, job->arena->host_bytes);
    else
        memset(job->host_base, 0, job->arena->host_bytes);
    for (size_t i = 0; i < run->binding->part_count && !code; i++)
        code = initialise_part(run, &run->binding->parts[i], seed);
    code = code ? code : run->device->verbs->synchronise(run->device);
    if (code)
        return device_failed(run, code, "the weights could not be initialised", faults);
    enum dtp_status packed = dtp_packed_weights_initialise(run->binding, seed, faults);
    if (packed != DTP_OK)
        return packed;
    for (uint32_t i = 0; run->poison && i < dtp_program_buffer_count(job->program); i++)
        if (!dtp_program_buffers(job->program)[i].persistent)
            poison(run, (dtp_buffer_id){i});
    return fill_tables(run, faults);
}

/* The way back of each upload of updated weights. */
enum dtp_status dtp_run_copy_weights_down(struct dtp_run *run, struct dtp_faults *faults)
{
    const struct dtp_program *program = run->binding->job.program;
    const struct dtp_device_verbs *verbs = run->device->verbs;
    int code = 0;
    for (size_t i = 0; i < run->binding->op_count && !code; i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        const struct dtp_bound_op *bound = &run->binding->ops[i];
        const struct dtp_operand *operands = dtp_program_operands(program, op);
        bool updated = false;
        for (uint32_t k = 0; k < op->operand_count && op->kind == DTP_OP_UPLOAD; k++)
            updated |= (operands[k].access & DTP_WRITE) &&
                       dtp_program_buffers(program)[operands[k].buffer.index].owner == DTP_OWNER_PARAMS;
        if (updated)
            code = verbs->copy(run->device, (void *)(uintptr_t)bound->arguments.copy.from, bound->arguments.copy.to,
                               bound->arguments.copy.bytes, verbs->stream(run->device, DTP_STREAM_COMPUTE));
    }
    code = code ? code : verbs->synchronise(run->device);
    return code ? device_failed(run, code, "the weights could not be copied to the host", faults) : DTP_OK;
}

/* ---- what the host writes and reads ------------------------------------------------------------------------------ */

void *dtp_run_host_batch(struct dtp_run *run, uint32_t micro_step)
{
    dtp_buffer_id first = run->binding->map.buffer[DTP_CONTENT_HOST_BATCH];
    return dtp_binding_address(run->binding, (dtp_buffer_id){first.index + micro_step});
}

struct dtp_step_scalars *dtp_run_host_scalars(struct dtp_run *run)
{
    return dtp_binding_address(run->binding, run->binding->map.buffer[DTP_CONTENT_HOST_SCALARS]);
}

const struct dtp_step_scalars *dtp_run_host_results(struct dtp_run *run)
{
    return dtp_binding_address(run->binding, run->binding->map.buffer[DTP_CONTENT_HOST_RESULTS]);
}

/* ---- one operation ----------------------------------------------------------------------------------------------- */

static int compute(struct dtp_run *run, const struct dtp_bound_op *op)
{
    const struct dtp_kernels *kernels = &run->device->kernels;
    switch (op->kernel) {
#define X(name, args)                                                                                                  \
    case DTP_KERNEL_##name: return kernels->name(kernels->self, &op->arguments.name, op->stream);
        DTP_KERNEL_TABLE(X)
#undef X
    case DTP_KERNEL_COUNT: break;
    }
    return -1;
}

/* In a rehearsal nobody has said where rows of experts begin, and what lies there may be of another buffer: so none
 * come. */
static int receive_none(struct dtp_run *run, const struct dtp_bound_op *op)
{
    const struct dtp_kernels *kernels = &run->device->kernels;
    const struct dtp_received_args *g = &op->arguments.received;
    if (op->kind != DTP_BOUND_COMPUTE || op->kernel != DTP_KERNEL_received)
        return 0;
    const struct dtp_zero_args begins = {(void *)g->begins, (uint64_t)g->ranks * (g->experts + 1) * sizeof *g->begins};
    return kernels->zero(kernels->self, &begins, op->stream);
}

enum dtp_status dtp_run_rehearse(struct dtp_run *run, struct dtp_faults *faults)
{
    const struct dtp_bind_job *job = &run->binding->job;
    const struct dtp_kernels *kernels = &run->device->kernels;
    const struct dtp_zero_args all = {job->device_base, job->arena->device_bytes};
    void *stream = run->device->verbs->stream(run->device, DTP_STREAM_COMPUTE);
    int code = kernels->zero(kernels->self, &all, stream);
    code = code ? code : run->device->verbs->synchronise(run->device);
    for (size_t i = 0; i < run->binding->op_count && !code; i++) {
        code = receive_none(run, &run->binding->ops[i]);
        if (!code && run->binding->ops[i].kind == DTP_BOUND_COMPUTE)
            code = compute(run, &run->binding->ops[i]);
        if (code)
            return op_failed(run, i, code, faults);
    }
    code = code ? code : run->device->verbs->synchronise(run->device);
    return code ? device_failed(run, code, "kernels could not be tried", faults) : DTP_OK;
}

static void update_on_host(void *argument)
{
    const struct dtp_host_update *update = argument;
    dtp_host_adam_step(update->adam, &update->adamw);
}

static int copy(struct dtp_run *run, size_t i)
{
    const struct dtp_bound_op *op = &run->binding->ops[i];
    const struct dtp_copy_args *copy = &op->arguments.copy;
    bool up = dtp_program_ops(run->binding->job.program)[i].kind == DTP_OP_UPLOAD;
    *(up ? &run->walked.host_to_device : &run->walked.device_to_host) += copy->bytes;
    return run->device->verbs->copy(run->device, copy->to, copy->from, copy->bytes, op->stream);
}

static int issue(struct dtp_run *run, size_t i)
{
    struct dtp_bound_op *op = &run->binding->ops[i];
    struct dtp_communicator *communicator = run->binding->job.world ? run->binding->job.world->communicator : NULL;
    switch (op->kind) {
    case DTP_BOUND_COMPUTE: return compute(run, op);
    case DTP_BOUND_COPY: return copy(run, i);
    case DTP_BOUND_COLLECTIVE:
        return communicator->verbs->collective(communicator, &op->arguments.collective, op->stream);
    case DTP_BOUND_HOST:
        return run->device->verbs->host_call(run->device, update_on_host, &op->arguments.host, op->stream);
    case DTP_BOUND_HEARD: return dtp_heard_count(&run->heard, run->binding, i);
    case DTP_BOUND_NOTHING: break;
    }
    return 0;
}

static void poison_operands(struct dtp_run *run, size_t i, uint32_t access)
{
    const struct dtp_op *op = &dtp_program_ops(run->binding->job.program)[i];
    const struct dtp_operand *operands = dtp_program_operands(run->binding->job.program, op);
    for (uint32_t k = 0; k < op->operand_count; k++)
        if (operands[k].access & access)
            poison(run, operands[k].buffer);
}

static int walk_one(struct dtp_run *run, size_t i, enum dtp_run_mode mode)
{
    struct dtp_bound_op *op = &run->binding->ops[i];
    const struct dtp_device_verbs *verbs = run->device->verbs;
    int code = 0;
    for (uint32_t k = 0; k < op->wait_count && !code; k++)
        code = op->kind == DTP_BOUND_HEARD ? verbs->finish(run->device, op->wait[k])
                                           : verbs->wait(run->device, op->stream, op->wait[k]);
    bool transfers = dtp_stream_transfers(op->stream_index);
    if (run->poison)
        poison_operands(run, i, DTP_ALLOC);
    if (mode != DTP_RUN_PLAIN && !code)
        code = verbs->record(run->device, run->op_begin[i], op->stream);
    if (!code)
        code = issue(run, i);
    if (mode != DTP_RUN_PLAIN && !code)
        code = verbs->record(run->device, run->op_end[i], op->stream);
    if (op->done && !code)
        code = verbs->record(run->device, op->done, op->stream);
    if (op->kind == DTP_BOUND_COLLECTIVE && run->ended &&
        !code) /* behind the event: whoever waits for it need not wait for this */
        code = verbs->mark(run->device, &run->ended[op->stream_index], (uint32_t)i + 1, op->stream);
    if (mode == DTP_RUN_ISOLATED && !code && !transfers) /* whose other end may be far from it */
        code = run->binding->job.set ? verbs->finish(run->device, run->op_end[i]) : verbs->synchronise(run->device);
    if (run->poison && !transfers) /* which may still read it */
        poison_operands(run, i, DTP_FREE);
    return code;
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

static int fork_streams(struct dtp_run *run)
{
    const struct dtp_device_verbs *verbs = run->device->verbs;
    int code = verbs->record(run->device, run->fork, verbs->stream(run->device, DTP_STREAM_COMPUTE));
    for (int s = 0; s < DTP_STREAM_COUNT && !code; s++)
        if (run->join[s]) {
            void *stream = verbs->stream(run->device, (enum dtp_stream)s);
            code = verbs->wait(run->device, stream, run->fork);
            if (run->ended && !code)
                code = verbs->mark(run->device, &run->ended[s], 0, stream);
        }
    return code;
}

static int join_streams(struct dtp_run *run)
{
    const struct dtp_device_verbs *verbs = run->device->verbs;
    int code = 0;
    for (int s = 0; s < DTP_STREAM_COUNT && !code; s++) {
        if (!run->join[s])
            continue;
        code = verbs->record(run->device, run->join[s], verbs->stream(run->device, (enum dtp_stream)s));
        code = code ? code : verbs->wait(run->device, verbs->stream(run->device, DTP_STREAM_COMPUTE), run->join[s]);
    }
    return code;
}

static enum dtp_status walk(struct dtp_run *run, enum dtp_run_mode mode, struct dtp_faults *faults)
{
    run->walked = (struct dtp_copied_bytes){0, 0};
    int code = fork_streams(run);
    for (size_t i = 0; i < run->binding->op_count && !code; i++) {
        if (run->binding->job.world)
            dtp_world_at(run->binding->job.world, (uint32_t)i);
        code = walk_one(run, i, mode);
        if (code)
            return op_failed(run, i, code, faults);
    }
    code = code ? code : join_streams(run);
    return code ? device_failed(run, code, "the streams of a step", faults) : DTP_OK;
}

static enum dtp_status capture(struct dtp_run *run, struct dtp_faults *faults)
{
    enum dtp_status status = run->device->verbs->capture_begin(run->device, faults);
    if (status != DTP_OK)
        return status;
    status = walk(run, DTP_RUN_PLAIN, faults);
    enum dtp_status ended = run->device->verbs->capture_end(run->device, &run->graph, faults);
    return status == DTP_OK ? ended : status;
}

void dtp_run_rebound(struct dtp_run *run)
{
    if (run->graph)
        run->device->verbs->graph_destroy(run->device, run->graph);
    run->graph = NULL;
}

static enum dtp_status make_op_events(struct dtp_run *run, struct dtp_faults *faults)
{
    size_t count = run->binding->op_count;
    enum dtp_status status = DTP_OK;
    if (run->op_begin)
        return DTP_OK;
    run->op_begin = calloc(2 * count + 1, sizeof *run->op_begin);
    if (!run->op_begin)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    run->op_end = run->op_begin + count;
    for (size_t i = 0; i < 2 * count && status == DTP_OK; i++)
        status = run->device->verbs->event_create(run->device, true, &run->op_begin[i], faults);
    return status;
}

enum dtp_status dtp_run_begin(struct dtp_run *run, enum dtp_run_mode mode, struct dtp_faults *faults)
{
    const struct dtp_device_verbs *verbs = run->device->verbs;
    void *stream = verbs->stream(run->device, DTP_STREAM_COMPUTE);
    bool graph = dtp_program_execution(run->binding->job.program)->graph && mode == DTP_RUN_PLAIN;
    enum dtp_status status = mode == DTP_RUN_PLAIN ? DTP_OK : make_op_events(run, faults);
    if (status == DTP_OK && graph && !run->graph)
        status = capture(run, faults);
    if (status != DTP_OK)
        return status;
    int code = verbs->record(run->device, run->begin, stream);
    if (!code && graph) {
        code = verbs->launch(run->device, run->graph);
        if (run->ended)
            dtp_world_at(run->binding->job.world, (uint32_t)run->binding->op_count - 1);
    }
    if (!code && !graph)
        status = walk(run, mode, faults);
    run->copied.host_to_device += run->walked.host_to_device;
    run->copied.device_to_host += run->walked.device_to_host;
    if (!code && status == DTP_OK)
        code = verbs->record(run->device, run->end, stream);
    return code ? device_failed(run, code, "a step could not begin", faults) : status;
}

enum dtp_status dtp_run_finish(struct dtp_run *run, double *seconds, struct dtp_faults *faults)
{
    const struct dtp_device_verbs *verbs = run->device->verbs;
    int code = verbs->finish(run->device, run->end);
    code = code ? code : verbs->synchronise(run->device);
    code = code ? code : verbs->elapsed(run->device, run->begin, run->end, seconds);
    return code ? device_failed(run, code, "a step failed on the device", faults) : DTP_OK;
}

struct dtp_copied_bytes dtp_run_copied(const struct dtp_run *run)
{
    return run->copied;
}

const struct dtp_expert_rows *dtp_run_heard(const struct dtp_run *run)
{
    return &run->heard.got;
}

enum dtp_status dtp_run_span(struct dtp_run *run, size_t op, double *start_s, double *end_s, struct dtp_faults *faults)
{
    const struct dtp_device_verbs *verbs = run->device->verbs;
    int code = verbs->elapsed(run->device, run->begin, run->op_begin[op], start_s);
    code = code ? code : verbs->elapsed(run->device, run->begin, run->op_end[op], end_s);
    return code ? device_failed(run, code, "an operation's time could not be read", faults) : DTP_OK;
}
