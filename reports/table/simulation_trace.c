/* The simulated step in the trace event format, for ui.perfetto.dev and chrome://tracing. Times are microseconds. */
#include "record/simulation_report.h"

#include "page/json_value.h"
#include "sim/memory_curve.h"
#include "sim/trace.h"

#include <stdlib.h>

#define US 1e6

/* Names of programs are printable ASCII without quotes; a backslash is all that JSON minds. */
static void write_escaped(FILE *file, const char *text)
{
    for (; *text; text++)
        fprintf(file, *text == '\\' ? "\\\\" : "%c", *text);
}

static enum dtp_status write_process(const struct dtp_simulated *s, FILE *file, struct dtp_faults *faults)
{
    json_t *name = dtp_json_text(s->job.transformer.name);
    char *text = json_dumps(name, JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
    json_decref(name);
    if (!text)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory while writing JSON");
    fprintf(file,
            "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{\"ph\":\"M\",\"pid\":0,\"name\":\"process_name\",\"args\":"
            "{\"name\":%s}}",
            text);
    free(text);
    return DTP_OK;
}

static void write_rows(const struct dtp_simulated *s, FILE *file)
{
    const struct dtp_op *ops = dtp_program_ops(s->program);
    bool used[DTP_STREAM_COUNT] = {false};
    for (size_t i = 0; i < s->timeline.op_count; i++)
        used[ops[i].stream] |= s->timeline.span[i].end_s > s->timeline.span[i].start_s;
    for (int i = 0; i < DTP_STREAM_COUNT; i++)
        if (used[i])
            fprintf(file,
                    ",\n{\"ph\":\"M\",\"pid\":0,\"tid\":%d,\"name\":\"thread_name\",\"args\":{\"name\":\"%s\"}},\n"
                    "{\"ph\":\"M\",\"pid\":0,\"tid\":%d,\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":%d}}",
                    i, dtp_stream_text((enum dtp_stream)i), i, i);
}

static void write_event(const struct dtp_simulated *s, size_t i, FILE *file)
{
    const struct dtp_op *op = &dtp_program_ops(s->program)[i];
    const struct dtp_span *span = &s->timeline.span[i];
    char words[160];
    dtp_op_words(op, words, sizeof words);
    fputs(",\n{\"name\":\"", file);
    write_escaped(file, words);
    if (op->kind == DTP_OP_MARK) {
        fprintf(file, "\",\"cat\":\"mark\",\"ph\":\"i\",\"s\":\"p\",\"pid\":0,\"tid\":%d,\"ts\":%.3f}", (int)op->stream,
                span->start_s * US);
        return;
    }
    fprintf(file,
            "\",\"cat\":\"%s\",\"ph\":\"X\",\"pid\":0,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"args\":{\"op\":%zu,"
            "\"micro_step\":%u,\"issued_us\":%.3f",
            dtp_op_class_text(dtp_op_kind_class(op->kind)), (int)op->stream, span->start_s * US,
            (span->end_s - span->start_s) * US, i, (unsigned)op->micro_step, s->timeline.issue_s[i] * US);
    if (op->demand->flops > 0)
        fprintf(file, ",\"flops\":%.0f", op->demand->flops);
    if (op->demand->bytes > 0)
        fprintf(file, ",\"memory_bytes\":%.0f", op->demand->bytes);
    if (op->demand->sent_bytes > 0)
        fprintf(file, ",\"sent_bytes\":%.0f", op->demand->sent_bytes);
    fputs("}}", file);
}

static bool takes_time(const struct dtp_simulated *s, size_t i)
{
    return s->timeline.span[i].end_s > s->timeline.span[i].start_s;
}

/* An arrow from within the earlier slice to the start of the later one; a viewer finds slices by time. */
static void write_arrows(const struct dtp_simulated *s, size_t i, size_t *arrow, FILE *file)
{
    const struct dtp_op *ops = dtp_program_ops(s->program);
    const dtp_op_id *earlier = dtp_program_dependencies(s->program, &ops[i]);
    for (uint32_t k = 0; k < ops[i].dependency_count; k++) {
        size_t from = earlier[k].index;
        if (!takes_time(s, from))
            continue;
        const struct dtp_span *span = &s->timeline.span[from];
        fprintf(file,
                ",\n{\"name\":\"dependency\",\"cat\":\"dependency\",\"ph\":\"s\",\"id\":%zu,\"pid\":0,\"tid\":%d,"
                "\"ts\":%.3f},\n{\"name\":\"dependency\",\"cat\":\"dependency\",\"ph\":\"f\",\"bp\":\"e\",\"id\":%zu,"
                "\"pid\":0,\"tid\":%d,\"ts\":%.3f}",
                *arrow, (int)ops[from].stream, (span->start_s + span->end_s) / 2 * US, *arrow, (int)ops[i].stream,
                s->timeline.span[i].start_s * US);
        ++*arrow;
    }
}

static enum dtp_status write_memory(const struct dtp_simulated *s, FILE *file, struct dtp_faults *faults)
{
    struct dtp_host_arena arena = {0};
    const struct dtp_memory_point *points;
    size_t count;
    if (!dtp_memory_curve(s->program, &s->timeline, &arena, &points, &count))
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (size_t i = 0; i < count; i++) {
        fprintf(file, ",\n{\"name\":\"device bytes\",\"ph\":\"C\",\"pid\":0,\"ts\":%.3f,\"args\":{",
                points[i].time_s * US);
        for (int owner = 0; owner < DTP_OWNER_COUNT; owner++)
            fprintf(file, "%s\"%s\":%llu", owner ? "," : "", dtp_owner_key((enum dtp_owner)owner),
                    (unsigned long long)points[i].bytes[owner]);
        fputs("}}", file);
    }
    dtp_host_arena_release(&arena);
    return DTP_OK;
}

/* A process a rank of the pipeline. */
static enum dtp_status write_roles(const struct dtp_simulated *s, FILE *file, struct dtp_faults *faults)
{
    struct dtp_timeline *timelines = calloc(s->set.role_count, sizeof *timelines);
    if (!timelines)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (uint32_t r = 0; r < s->set.role_count; r++)
        timelines[r] = s->roles[r].timeline;
    enum dtp_status status = dtp_trace_write_set_json(&s->set, timelines, file, faults);
    free(timelines);
    return status;
}

enum dtp_status dtp_simulation_write_trace(const struct dtp_simulated *s, FILE *file, struct dtp_faults *faults)
{
    if (s->set.role_count > 1)
        return write_roles(s, file, faults);
    const struct dtp_op *ops = dtp_program_ops(s->program);
    size_t arrow = 0;
    enum dtp_status status = write_process(s, file, faults);
    write_rows(s, file);
    for (size_t i = 0; i < s->timeline.op_count && status == DTP_OK; i++) {
        if (takes_time(s, i) || ops[i].kind == DTP_OP_MARK)
            write_event(s, i, file);
        if (takes_time(s, i))
            write_arrows(s, i, &arrow, file);
    }
    if (status == DTP_OK)
        status = write_memory(s, file, faults);
    fputs("\n]}\n", file);
    return status;
}
