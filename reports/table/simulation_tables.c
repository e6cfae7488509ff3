/* The simulated step as CSV: operations over time, memory over time. */
#include "record/simulation_report.h"

#include "sim/memory_curve.h"
#include "page/output_own.h"
#include "base/table.h"

#include <stdlib.h>

static void write_waited_for(uint32_t cause, FILE *file)
{
    if (cause == DTP_CAUSE_HOST)
        fputs("host", file);
    else if (cause != DTP_CAUSE_NONE)
        fprintf(file, "%u", (unsigned)cause);
}

static void write_op(const struct dtp_simulated *s, size_t i, bool critical, FILE *file)
{
    const struct dtp_op *op = &dtp_program_ops(s->program)[i];
    const struct dtp_span *span = &s->timeline.span[i];
    fprintf(file, "%zu,%s,%s,%s,", i, dtp_stream_text(op->stream), dtp_op_kind_text(op->kind),
            dtp_op_class_text(dtp_op_kind_class(op->kind)));
    dtp_table_write_field(file, op->name);
    if (op->layer == DTP_NO_LAYER)
        fputs(",,", file);
    else
        fprintf(file, ",%u,", (unsigned)op->layer);
    fprintf(file, "%u,%.9f,%.9f,%.9f,%d,", (unsigned)op->micro_step, s->timeline.issue_s[i], span->start_s, span->end_s,
            critical);
    write_waited_for(s->timeline.cause[i], file);
    fprintf(file, ",%.0f,%.0f,%.0f,%u,%d\n", op->demand.flops, op->demand.bytes, op->demand.sent_bytes,
            (unsigned)op->demand.kernels, op->demand.recompute);
}

void dtp_simulation_write_timeline(const struct dtp_simulated *s, FILE *file)
{
    size_t next = 0; /* the critical path is in the order of issue too: what an operation waits for comes before it */
    fputs(DTP_TIMELINE_BEGINS "layer,micro_step,issued_s,start_s,end_s,critical,waited_for,flops,memory_bytes,"
                              "sent_bytes,kernels_count,recompute\n",
          file);
    for (size_t i = 0; i < s->timeline.op_count; i++) {
        bool critical = next < s->timeline.critical_count && s->timeline.critical[next] == i;
        next += critical;
        write_op(s, i, critical, file);
    }
}

enum dtp_status dtp_simulation_write_memory(const struct dtp_simulated *s, FILE *file, struct dtp_faults *faults)
{
    struct dtp_host_arena arena = {0};
    const struct dtp_memory_point *points;
    size_t count;
    if (!dtp_memory_curve(s->program, &s->timeline, &arena, &points, &count))
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    fputs(DTP_MEMORY_BEGINS, file);
    for (int owner = 0; owner < DTP_OWNER_COUNT; owner++)
        fprintf(file, "%s_bytes,", dtp_owner_key((enum dtp_owner)owner));
    fputs("total_bytes\n", file);
    for (size_t i = 0; i < count; i++) {
        fprintf(file, "%.9f,%u", points[i].time_s, (unsigned)points[i].op);
        for (int owner = 0; owner < DTP_OWNER_COUNT; owner++)
            fprintf(file, ",%llu", (unsigned long long)points[i].bytes[owner]);
        fprintf(file, ",%llu\n", (unsigned long long)points[i].total_bytes);
    }
    dtp_host_arena_release(&arena);
    return DTP_OK;
}
