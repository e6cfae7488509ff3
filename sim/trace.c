#include "sim/trace.h"

#include "sim/op_time.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

static enum dtp_status written(FILE *file, struct dtp_faults *faults)
{
    return fflush(file) == 0 && !ferror(file)
               ? DTP_OK
               : dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "the trace cannot be written: %s", strerror(errno));
}

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

/* `begin_s`: of its process' step, from which the span counts. */
static void put_slice(FILE *file, uint32_t process, const struct dtp_op *op, double begin_s,
                      const struct dtp_span *span, uint32_t index)
{
    const struct dtp_demand *d = op->demand;
    fprintf(file, ",\n{\"ph\":\"X\",\"pid\":%" PRIu32 ",", process);
    fprintf(file, "\"tid\":%d,\"cat\":\"%s\",\"name\":\"", (int)op->stream, category(op));
    put_name(file, op);
    fprintf(file, "\",\"ts\":%.3f,\"dur\":%.3f,\"args\":{\"op\":%" PRIu32 ",\"kind\":\"%s\"",
            (begin_s + span->start_s) * 1e6, (span->end_s - span->start_s) * 1e6, index, dtp_op_kind_text(op->kind));
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

/* One end of an arrow. The format binds it to the slice around its time. */
struct end {
    uint32_t process;
    const struct dtp_op *op;
    double time_s;
};

/* Where an operation's slice begins; just inside its end. */
static double start_s(const struct dtp_timeline *timeline, uint32_t op)
{
    return timeline->begin_s + timeline->span[op].start_s;
}

static double before_end_s(const struct dtp_timeline *timeline, uint32_t op)
{
    const struct dtp_span *span = &timeline->span[op];
    return timeline->begin_s + span->end_s - 0.01 * (span->end_s - span->start_s);
}

/* `id` is its number in the file; `from` is not later than `to`, else no viewer draws it. */
static void put_arrow(FILE *file, struct end from, struct end to, uint64_t id)
{
    fprintf(file,
            ",\n{\"ph\":\"s\",\"pid\":%" PRIu32
            ",\"tid\":%d,\"cat\":\"dependency\",\"name\":\"dependency\",\"id\":%" PRIu64 ",\"ts\":%.3f}"
            ",\n{\"ph\":\"f\",\"bp\":\"e\",\"pid\":%" PRIu32
            ",\"tid\":%d,\"cat\":\"dependency\",\"name\":\"dependency\",\"id\":%" PRIu64 ",\"ts\":%.3f}",
            from.process, (int)from.op->stream, id, from.time_s * 1e6, to.process, (int)to.op->stream, id,
            to.time_s * 1e6);
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
        put_slice(file, process, &ops[i], timeline->begin_s, &timeline->span[i], i);
        const dtp_op_id *dependency = dtp_program_dependencies(program, &ops[i]);
        for (uint32_t d = 0; d < ops[i].dependency_count; d++) {
            uint32_t from = dependency[d].index;
            if (is_slice(&ops[from], &timeline->span[from]))
                put_arrow(file, (struct end){process, &ops[from], before_end_s(timeline, from)},
                          (struct end){process, &ops[i], start_s(timeline, i)}, ++*arrows);
        }
    }
}

static const char head[] = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", foot[] = "\n]}\n";

/* An arrow from where each send begins to where its receive ends: both run at the same time. */
static void put_transfers(FILE *file, const struct dtp_program_set *set, const struct dtp_timeline *timelines,
                          uint32_t **partner, uint64_t *arrows)
{
    for (uint32_t r = 0; r < set->role_count; r++) {
        const struct dtp_op *ops = dtp_program_ops(set->roles[r].program);
        for (uint32_t i = 0; i < timelines[r].op_count; i++) {
            uint32_t peer = ops[i].peer, to = partner[r][i];
            if (ops[i].kind == DTP_OP_SEND && is_slice(&ops[i], &timelines[r].span[i]))
                put_arrow(file, (struct end){r, &ops[i], start_s(&timelines[r], i)},
                          (struct end){peer, &dtp_program_ops(set->roles[peer].program)[to],
                                       before_end_s(&timelines[peer], to)},
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
    return status == DTP_OK ? written(file, faults) : status;
}
