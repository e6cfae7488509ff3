/* Pipeline schedules as tables: ranks, and passes in time. */
#include "record/schedule_report.h"

#include "base/table.h"
#include "page/output_own.h"

#include <inttypes.h>
#include <math.h>

static void write_number(FILE *file, double value)
{
    if (isfinite(value))
        fprintf(file, ",%.9g", fabs(value) < 1e-12 ? 0 : value);
    else
        fputc(',', file);
}

/* Of all its chunks; of a two-way schedule each line's. */
static uint32_t layers_of(const struct dtp_schedule_case *c, uint32_t rank)
{
    uint32_t layers = 0;
    for (uint32_t chunk = 0; chunk < c->schedule.shape.chunks; chunk++)
        layers += c->stages.parts[dtp_schedule_stage(&c->schedule, rank, chunk)].layers;
    return layers;
}

static void write_rank(const struct dtp_schedule_case *c, uint32_t rank, FILE *file)
{
    const struct dtp_schedule_timing *t = &c->timing;
    const struct dtp_rank_timing *r = &t->ranks[rank];
    const double figures[] = {t->makespan_s, t->bubble_s,       t->span_bubble_s, c->formula_s,
                              r->busy_s,     r->warm_up_idle_s, r->steady_idle_s, r->drain_idle_s,
                              r->begin_s,    r->end_s,          r->peak_kept};
    fprintf(file, "%s,%" PRIu32 ",%" PRIu32 ",%" PRIu32 ",%" PRIu32 ",%" PRIu32, dtp_schedule_row(c->kind)->word,
            c->schedule.shape.ranks, c->schedule.shape.micro_batches, c->schedule.shape.chunks,
            dtp_schedule_row(c->kind)->copies, rank);
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
        write_number(file, figures[i]);
    fprintf(file, ",%" PRIu32 ",%" PRIu32 ",%" PRIu32, r->peak_weights, r->forward_queue, r->backward_queue);
    if (c->stages.count)
        fprintf(file, ",%" PRIu32 ",\n", layers_of(c, rank));
    else
        fputs(",,\n", file);
}

void dtp_schedule_report_csv(const struct dtp_schedule_report *report, FILE *file)
{
    const struct dtp_schedule_question *q = &report->question;
    fputs("schedule,ranks_count,micro_batches_count,chunks_of_rank_count,parameter_copies_count,rank,step_time,bubble_"
          "time,bubble_of_span_time,bubble_by_formula_time,busy_time,warm_up_idle_time,steady_idle_time,drain_idle_"
          "time,begin_time,end_time,kept_micro_batches,late_weight_gradients_count,forward_queue_count,backward_queue_"
          "count,layers_count,refused\n",
          file);
    for (size_t i = 0; i < q->kind_count; i++) {
        const struct dtp_schedule_case *c = &report->cases[i];
        for (uint32_t rank = 0; !c->refused[0] && rank < q->ranks; rank++)
            write_rank(c, rank, file);
        if (c->refused[0]) {
            fprintf(file, "%s,%" PRIu32 ",%" PRIu32 ",,,,,,,,,,,,,,,,,,,", dtp_schedule_row(c->kind)->word, q->ranks,
                    q->micro_batches);
            dtp_table_write_field(file, c->refused);
            fputc('\n', file);
        }
    }
}

void dtp_schedule_report_passes(const struct dtp_schedule_report *report, FILE *file)
{
    fputs(DTP_SCHEDULE_PASSES_BEGINS "begin_time,end_time,paired\n", file);
    for (size_t i = 0; i < report->question.kind_count; i++) {
        const struct dtp_schedule_case *c = &report->cases[i];
        const struct dtp_schedule *s = &c->schedule;
        bool second = false; /* of a pair */
        for (uint32_t rank = 0; !c->refused[0] && rank < s->shape.ranks; rank++)
            for (uint32_t k = s->first[rank]; k < s->first[rank + 1]; k++) {
                const struct dtp_pass *pass = &s->passes[k];
                fprintf(file, "%s,%" PRIu32 ",%" PRIu32 ",%u,%" PRIu32 ",%s,%.9g,%.9g,%s\n",
                        dtp_schedule_row(c->kind)->word, rank, dtp_schedule_stage(s, rank, pass->chunk), pass->chunk,
                        pass->micro_batch, dtp_pass_text((enum dtp_pass_kind)pass->kind), c->timing.begin_s[k],
                        c->timing.end_s[k], pass->paired || second ? "true" : "false");
                second = pass->paired;
            }
    }
}
