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

/* Of a rank of a pipeline. */
struct timed_role {
    const struct dtp_program *program;
    const struct dtp_timeline *timeline;
    const char *name; /* NULL: all ranks do the same */
};

static void write_op(const struct timed_role *role, size_t i, bool critical, FILE *file)
{
    const struct dtp_op *op = &dtp_program_ops(role->program)[i];
    const struct dtp_span *span = &role->timeline->span[i];
    double begin_s = role->timeline->begin_s;
    fprintf(file, "%zu,%s,%s,%s,", i, dtp_stream_text(op->stream), dtp_op_kind_text(op->kind),
            dtp_op_class_text(dtp_op_kind_class(op->kind)));
    dtp_table_write_field(file, op->name);
    if (op->layer == DTP_NO_LAYER)
        fputs(",,", file);
    else
        fprintf(file, ",%u,", (unsigned)op->layer);
    fprintf(file, "%u,%.9f,%.9f,%.9f,%d,", (unsigned)op->micro_step, begin_s + role->timeline->issue_s[i],
            begin_s + span->start_s, begin_s + span->end_s, critical);
    write_waited_for(role->timeline->cause[i], file);
    fprintf(file, ",%.0f,%.0f,%.0f,%u,%d", op->demand->flops, op->demand->bytes, op->demand->sent_bytes,
            (unsigned)op->demand->kernels, op->demand->recompute);
    if (role->name) {
        fputc(',', file);
        dtp_table_write_field(file, role->name);
    }
    fputc('\n', file);
}

static void write_role(const struct timed_role *role, FILE *file)
{
    size_t next = 0; /* the critical path is in the order of issue too: what an operation waits for comes before it */
    const struct dtp_timeline *t = role->timeline;
    for (size_t i = 0; i < t->op_count; i++) {
        bool critical = next < t->critical_count && t->critical[next] == i;
        next += critical;
        write_op(role, i, critical, file);
    }
}

void dtp_simulation_write_timeline(const struct dtp_simulated *s, FILE *file)
{
    bool several = s->set.role_count > 1;
    fprintf(file,
            DTP_TIMELINE_BEGINS "layer,micro_step,issued_s,start_s,end_s,critical,waited_for,flops,memory_bytes,"
                                "sent_bytes,kernels_count,recompute%s\n",
            several ? ",role" : "");
    for (uint32_t r = 0; r < s->set.role_count; r++)
        write_role(
            &(struct timed_role){s->set.roles[r].program, &s->roles[r].timeline, several ? s->set.roles[r].name : NULL},
            file);
}

void dtp_simulation_write_passes(const struct dtp_pipeline_stages *stages, FILE *file)
{
    const char *schedule = dtp_schedule_row(stages->schedule)->word;
    fputs(DTP_SCHEDULE_PASSES_BEGINS "begin_time,end_time,paired\n", file);
    for (size_t i = 0; i < stages->pass_count; i++) {
        const struct dtp_stage_pass *pass = &stages->passes[i];
        fprintf(file, "%s,%u,%u,%u,%u,%s,%.6f,%.6f,false\n", schedule, pass->rank, pass->stage, pass->chunk,
                pass->micro_batch, dtp_pass_text(pass->kind), 1e3 * pass->begin_s, 1e3 * pass->end_s);
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
