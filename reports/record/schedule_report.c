#include "record/schedule_report.h"

#include <math.h>
#include <stdlib.h>

/* The deadlock that a schedule runs into is no news to who asked for it: what it needs is. */
static enum dtp_status make_timer(const struct dtp_schedule_question *q, struct dtp_schedule_case *c,
                                  struct dtp_faults *faults)
{
    struct dtp_faults own = {0};
    enum dtp_status status = dtp_schedule_timer_create(&c->schedule, q->send, &c->timer, &own);
    if (status == DTP_OK || q->send != DTP_SEND_BLOCKING)
        return status == DTP_OK ? status : dtp_fault(faults, status, NULL, 0, "%s", own.text[0]);
    return dtp_fault(faults, status, NULL, 0,
                     "sends: %s needs sends that do not hold the sender, rendezvous or buffered",
                     dtp_schedule_row(c->kind)->word);
}

static enum dtp_status make_case(const struct dtp_schedule_question *q, struct dtp_schedule_case *c,
                                 struct dtp_faults *faults)
{
    bool loops = c->kind == DTP_SCHEDULE_INTERLEAVED || q->kind_count == 1;
    struct dtp_schedule_shape shape = {.kind = c->kind,
                                       .ranks = q->ranks,
                                       .micro_batches = q->micro_batches,
                                       .chunks = loops ? q->chunks : 0,
                                       .group = loops ? q->group : 0};
    enum dtp_status status = dtp_schedule_create(&shape, &c->schedule, faults);
    if (status == DTP_OK)
        status = make_timer(q, c, faults);
    if (status != DTP_OK)
        return status;
    struct dtp_stage_cost *stages = calloc(c->schedule.stages, sizeof *stages);
    if (!stages)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    dtp_stage_costs_equal(&c->schedule, q->forward_s, q->backward_s, q->weight_s, q->send_s, stages);
    struct dtp_schedule_costs costs = {stages, q->pair_fraction};
    dtp_schedule_timer_run(c->timer, &costs, &c->timing);
    c->formula_s = q->send_s > 0 ? NAN : dtp_schedule_bubble(&c->schedule.shape, stages, q->pair_fraction);
    free(stages);
    return DTP_OK;
}

enum dtp_status dtp_schedule_report_make(const struct dtp_schedule_question *question, struct dtp_schedule_report *out,
                                         struct dtp_faults *faults)
{
    size_t possible = 0;
    *out = (struct dtp_schedule_report){.question = *question};
    out->cases = calloc(question->kind_count, sizeof *out->cases);
    if (!out->cases)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (size_t i = 0; i < question->kind_count; i++) {
        struct dtp_schedule_case *c = &out->cases[i];
        struct dtp_faults own = {0};
        c->kind = question->kinds[i];
        enum dtp_status status = make_case(question, c, question->kind_count == 1 ? faults : &own);
        if (status != DTP_OK && question->kind_count == 1)
            return status;
        if (status == DTP_ENVIRONMENT)
            return dtp_fault(faults, status, NULL, 0, "%s", own.text[0]);
        if (status != DTP_OK)
            snprintf(c->refused, sizeof c->refused, "%s", own.text[0]);
        possible += status == DTP_OK;
    }
    if (possible > 0)
        return DTP_OK;
    return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "none of the schedules is possible; of %s: %s",
                     dtp_schedule_row(out->cases[0].kind)->word, out->cases[0].refused);
}

void dtp_schedule_report_destroy(struct dtp_schedule_report *report)
{
    for (size_t i = 0; report->cases && i < report->question.kind_count; i++) {
        dtp_schedule_timer_destroy(report->cases[i].timer);
        dtp_schedule_destroy(&report->cases[i].schedule);
    }
    free(report->cases);
    *report = (struct dtp_schedule_report){0};
}
