#include "sim/trace.h"

#include "sim/op_time.h"

#include <inttypes.h>
#include <stdlib.h>

static enum dtp_status written(FILE *file)
{
    return fflush(file) == 0 && !ferror(file) ? DTP_OK : DTP_ENVIRONMENT;
}

/* ---- trace events ------------------------------------------------------------------------------------------------ */

/* Names are printable ASCII without quotes (program.h); a backslash is all that JSON minds. */
static void put_name(FILE *file, const struct dtp_op *op)
{
    for (const char *c = *op->name ? op->name : dtp_op_kind_text(op->kind); *c; c++) {
        if (*c == '\\')
            fputc('\\', file);
        fputc(*c, file);
    }
}

/* Names of a process and its threads, one a stream. */
static void put_rows(FILE *file, uint32_t process, const char *name)
{
    fprintf(file, "{\"ph\":\"M\",\"pid\":%" PRIu32 ",\"name\":\"process_name\",\"args\":{\"name\":\"%s\"}}", process,
            name);
    for (int s = 0; s < DTP_STREAM_COUNT; s++)
        fprintf(file,
                ",\n{\"ph\":\"M\",\"pid\":%" PRIu32 ",\"tid\":%d,\"name\":\"thread_name\",\"args\":{\"name\":\"%s\"}}"
                ",\n{\"ph\":\"M\",\"pid\":%" PRIu32
                ",\"tid\":%d,\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":%d}}",
                process, s, dtp_stream_text((enum dtp_stream)s), process, s, s);
}

static const char *category(const struct dtp_op *op)
{
    switch (dtp_op_kind_class(op->kind)) {
    case DTP_CLASS_MATMUL: return "matmul";
    case DTP_CLASS_ATTENTION: return "attention";
    case DTP_CLASS_MEMORY: return "memory";
    case DTP_CLASS_COLLECTIVE: return "collective";
    case DTP_CLASS_UPLOAD:
    case DTP_CLASS_DOWNLOAD: return "copy";
    case DTP_CLASS_HOST:
    case DTP_CLASS_STORAGE: return "host";
    case DTP_CLASS_NONE: break;
    }
    return "wait";
}

static void put_slice(FILE *file, uint32_t process, const struct dtp_op *op, const struct dtp_span *span,
                      uint32_t index)
{
    const struct dtp_demand *d = op->demand;
    fprintf(file, ",\n{\"ph\":\"X\",\"pid\":%" PRIu32 ",", process);
    fprintf(file, "\"tid\":%d,\"cat\":\"%s\",\"name\":\"", (int)op->stream, category(op));
    put_name(file, op);
    fprintf(file, "\",\"ts\":%.3f,\"dur\":%.3f,\"args\":{\"op\":%" PRIu32 ",\"kind\":\"%s\"", span->start_s * 1e6,
            (span->end_s - span->start_s) * 1e6, index, dtp_op_kind_text(op->kind));
    if (op->layer != DTP_NO_LAYER)
        fprintf(file, ",\"layer\":%d", op->layer);
    fprintf(file, ",\"micro_step\":%d", op->micro_step);
    if (d->flops > 0)
        fprintf(file, ",\"flops\":%.6g", d->flops);
    if (d->bytes > 0)
        fprintf(file, ",\"bytes\":%.6g", d->bytes);
    if (d->sent_bytes > 0)
        fprintf(file, ",\"sent_bytes\":%.6g", d->sent_bytes);
    fputs("}}", file);
}

/* An arrow from the end of one slice to the start of another; `id` is its number in the file. The format binds an
 * arrow's ends to the slices around their times, so the first lies just inside its slice. */
/* One end of an arrow. */
struct end {
    uint32_t process;
    const struct dtp_op *op;
    const struct dtp_span *span;
};

static void put_arrow(FILE *file, struct end from, struct end to, uint64_t id)
{
    double inside_s = from.span->end_s - 0.01 * (from.span->end_s - from.span->start_s);
    fprintf(file,
            ",\n{\"ph\":\"s\",\"pid\":%" PRIu32
            ",\"tid\":%d,\"cat\":\"dependency\",\"name\":\"dependency\",\"id\":%" PRIu64 ",\"ts\":%.3f}"
            ",\n{\"ph\":\"f\",\"bp\":\"e\",\"pid\":%" PRIu32
            ",\"tid\":%d,\"cat\":\"dependency\",\"name\":\"dependency\",\"id\":%" PRIu64 ",\"ts\":%.3f}",
            from.process, (int)from.op->stream, id, inside_s * 1e6, to.process, (int)to.op->stream, id,
            to.span->start_s * 1e6);
}

static bool is_slice(const struct dtp_op *op, const struct dtp_span *span)
{
    return span->end_s > span->start_s &&
           (dtp_op_kind_class(op->kind) != DTP_CLASS_NONE || op->kind == DTP_OP_HOST_WAIT);
}

static void put_process(FILE *file, uint32_t process, const char *name, const struct dtp_program *program,
                        const struct dtp_timeline *timeline, uint64_t *arrows)
{
    const struct dtp_op *ops = dtp_program_ops(program);
    put_rows(file, process, name);
    for (uint32_t i = 0; i < timeline->op_count; i++) {
        if (!is_slice(&ops[i], &timeline->span[i]))
            continue;
        put_slice(file, process, &ops[i], &timeline->span[i], i);
        const dtp_op_id *dependency = dtp_program_dependencies(program, &ops[i]);
        for (uint32_t d = 0; d < ops[i].dependency_count; d++) {
            uint32_t from = dependency[d].index;
            if (is_slice(&ops[from], &timeline->span[from]))
                put_arrow(file, (struct end){process, &ops[from], &timeline->span[from]},
                          (struct end){process, &ops[i], &timeline->span[i]}, ++*arrows);
        }
    }
}

static const char head[] = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", foot[] = "\n]}\n";

enum dtp_status dtp_trace_write_json(const struct dtp_program *program, const struct dtp_timeline *timeline, FILE *file)
{
    uint64_t arrows = 0;
    fputs(head, file);
    put_process(file, 0, "one rank, simulated", program, timeline, &arrows);
    fputs(foot, file);
    return written(file);
}

/* An arrow from each send to its receive. */
static void put_transfers(FILE *file, const struct dtp_program_set *set, const struct dtp_timeline *timelines,
                          uint32_t **partner, uint64_t *arrows)
{
    for (uint32_t r = 0; r < set->role_count; r++) {
        const struct dtp_op *ops = dtp_program_ops(set->roles[r].program);
        for (uint32_t i = 0; i < timelines[r].op_count; i++) {
            uint32_t peer = ops[i].peer, to = partner[r][i];
            if (ops[i].kind == DTP_OP_SEND && is_slice(&ops[i], &timelines[r].span[i]))
                put_arrow(file, (struct end){r, &ops[i], &timelines[r].span[i]},
                          (struct end){peer, &dtp_program_ops(set->roles[peer].program)[to], &timelines[peer].span[to]},
                          ++*arrows);
        }
    }
}

enum dtp_status dtp_trace_write_set_json(const struct dtp_program_set *set, const struct dtp_timeline *timelines,
                                         FILE *file, struct dtp_faults *faults)
{
    struct dtp_host_arena arena = {0};
    uint32_t **partner;
    uint64_t arrows = 0;
    enum dtp_status status = dtp_program_set_match(set, &arena, &partner, faults);
    fputs(head, file);
    for (uint32_t r = 0; r < set->role_count && status == DTP_OK; r++) {
        fputs(r ? ",\n" : "", file);
        put_process(file, r, set->roles[r].name, set->roles[r].program, &timelines[r], &arrows);
    }
    if (status == DTP_OK)
        put_transfers(file, set, timelines, partner, &arrows);
    fputs(foot, file);
    dtp_host_arena_release(&arena);
    return status == DTP_OK ? written(file) : status;
}

/* ---- tables ------------------------------------------------------------------------------------------------------ */

/* Names have no quotes, so quoting them is enough for CSV. */
enum dtp_status dtp_trace_write_timeline_csv(const struct dtp_program *program, const struct dtp_timeline *timeline,
                                             FILE *file)
{
    const struct dtp_op *ops = dtp_program_ops(program);
    size_t critical = 0;
    fputs("op,kind,name,stream,layer,micro_step,issue_s,start_s,end_s,critical\n", file);
    for (uint32_t i = 0; i < timeline->op_count; i++) {
        const struct dtp_op *op = &ops[i];
        while (critical < timeline->critical_count && timeline->critical[critical] < i)
            critical++;
        bool on_path = critical < timeline->critical_count && timeline->critical[critical] == i;
        fprintf(file, "%" PRIu32 ",%s,\"%s\",%s,", i, dtp_op_kind_text(op->kind), op->name,
                dtp_stream_text(op->stream));
        if (op->layer != DTP_NO_LAYER)
            fprintf(file, "%d", op->layer);
        fprintf(file, ",%d,%.9f,%.9f,%.9f,%d\n", op->micro_step, timeline->issue_s[i], timeline->span[i].start_s,
                timeline->span[i].end_s, on_path);
    }
    return written(file);
}

/* A change of what an owner holds. */
struct change {
    double at_s;
    uint32_t op;
    uint8_t owner;
    bool frees;
    uint64_t bytes;
};

/* In time; what is freed at an instant goes before what is allocated then. */
static int compare_changes(const void *a, const void *b)
{
    const struct change *x = a, *y = b;
    if (x->at_s != y->at_s)
        return x->at_s < y->at_s ? -1 : 1;
    if (x->frees != y->frees)
        return x->frees ? -1 : 1;
    return (x->op > y->op) - (x->op < y->op);
}

static size_t list_changes(const struct dtp_program *program, const struct dtp_timeline *timeline, struct change *out)
{
    const struct dtp_op *ops = dtp_program_ops(program);
    const struct dtp_buffer *buffers = dtp_program_buffers(program);
    size_t count = 0;
    for (uint32_t i = 0; i < timeline->op_count; i++) {
        const struct dtp_operand *operand = dtp_program_operands(program, &ops[i]);
        for (uint32_t k = 0; k < ops[i].operand_count; k++) {
            const struct dtp_buffer *b = &buffers[operand[k].buffer.index];
            struct change change = {.op = i, .owner = (uint8_t)b->owner, .bytes = b->bytes};
            if (b->space != DTP_SPACE_DEVICE)
                continue;
            if (operand[k].access & DTP_ALLOC) {
                change.at_s = timeline->span[i].start_s;
                out[count++] = change;
            }
            if (operand[k].access & DTP_FREE) {
                change.at_s = timeline->span[i].end_s;
                change.frees = true;
                out[count++] = change;
            }
        }
    }
    return count;
}

static void put_memory_row(FILE *file, double at_s, const uint64_t *held)
{
    fprintf(file, "%.9f", at_s);
    for (int o = 0; o < DTP_OWNER_COUNT; o++)
        fprintf(file, ",%" PRIu64, held[o]);
    fputc('\n', file);
}

static void put_memory(FILE *file, const struct change *change, size_t count, double step_s, uint64_t *held)
{
    fputs("time_s", file);
    for (int o = 0; o < DTP_OWNER_COUNT; o++)
        fprintf(file, ",%s_bytes", dtp_owner_key((enum dtp_owner)o));
    fputc('\n', file);
    double at_s = 0;
    for (size_t i = 0; i < count; i++) {
        if (change[i].at_s > at_s)
            put_memory_row(file, at_s, held);
        at_s = change[i].at_s;
        if (change[i].frees)
            held[change[i].owner] -= change[i].bytes;
        else
            held[change[i].owner] += change[i].bytes;
    }
    put_memory_row(file, at_s, held);
    if (step_s > at_s)
        put_memory_row(file, step_s, held);
}

enum dtp_status dtp_trace_write_memory_csv(const struct dtp_program *program, const struct dtp_timeline *timeline,
                                           FILE *file)
{
    const struct dtp_op *ops = dtp_program_ops(program);
    const struct dtp_buffer *buffers = dtp_program_buffers(program);
    uint64_t held[DTP_OWNER_COUNT] = {0};
    size_t operands = 0;
    for (size_t i = 0; i < timeline->op_count; i++)
        operands += ops[i].operand_count;
    struct change *change = calloc(2 * operands + 1, sizeof *change);
    if (!change)
        return DTP_ENVIRONMENT;
    for (size_t i = 0; i < dtp_program_buffer_count(program); i++)
        if (buffers[i].persistent && buffers[i].space == DTP_SPACE_DEVICE)
            held[buffers[i].owner] += buffers[i].bytes;
    size_t count = list_changes(program, timeline, change);
    qsort(change, count, sizeof *change, compare_changes);
    put_memory(file, change, count, timeline->step_s, held);
    free(change);
    return written(file);
}
