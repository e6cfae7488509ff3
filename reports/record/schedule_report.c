#include "record/schedule_report.h"

#include <inttypes.h>
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

static struct dtp_part_cost part_cost(const struct dtp_schedule_question *q, double layers)
{
    double share = layers * q->ranks / q->layers;
    return (struct dtp_part_cost){
        .forward_s = q->forward_s * share, .backward_s = q->backward_s * share, .weight_s = q->weight_s * share};
}

static enum dtp_status cut_model(const struct dtp_schedule_question *q, struct dtp_schedule_case *c,
                                 const struct dtp_model_cost *cost, struct dtp_faults *faults)
{
    const struct dtp_stages_model model = {q->layers, 0};
    uint32_t count = c->schedule.stages;
    double makespan_s;
    switch (q->cut) {
    case DTP_CUT_EVEN: return dtp_stages_even(&model, count, false, false, &c->stages, faults);
    case DTP_CUT_COUNTED: return dtp_stages_even(&model, count, true, true, &c->stages, faults);
    case DTP_CUT_COST: return dtp_stages_by_cost(&model, count, 1, q->head_layers, &c->stages, faults);
    case DTP_CUT_BEST: return dtp_stages_best(&model, cost, count, &c->stages, faults);
    case DTP_CUT_STEP:
        return dtp_stages_best_step(&model, cost, &c->schedule, c->timer, q->pair_fraction, &c->stages, &makespan_s,
                                    faults);
    case DTP_CUT_LAYOUT: break;
    }
    enum dtp_status status = dtp_stages_parse(q->layout, &model, q->ranks, &c->stages, faults);
    if (status != DTP_OK || c->stages.count == count)
        return status;
    return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                     "layout: has %" PRIu32 " stages, but %s on %" PRIu32 " ranks takes %" PRIu32, c->stages.count,
                     dtp_schedule_row(c->kind)->word, q->ranks, count);
}

/* What the stages of the question's model cost. What a rank keeps is counted in even shares of the layers. */
static enum dtp_status cost_of_layers(const struct dtp_schedule_question *q, struct dtp_schedule_case *c,
                                      struct dtp_stage_cost *stages, struct dtp_faults *faults)
{
    struct dtp_part_cost *layers = calloc(q->layers, sizeof *layers);
    if (!layers)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (uint32_t i = 0; i < q->layers; i++) {
        layers[i] = part_cost(q, 1);
        layers[i].kept = (double)q->ranks / q->layers;
    }
    struct dtp_model_cost cost = {.embedding = part_cost(q, q->embedding_layers),
                                  .head = part_cost(q, q->head_layers),
                                  .layers = layers,
                                  .send_s = q->send_s};
    enum dtp_status status = cut_model(q, c, &cost, faults);
    if (status == DTP_OK)
        dtp_stages_cost(&c->stages, &cost, stages);
    free(layers);
    return status;
}

static enum dtp_status time_case(const struct dtp_schedule_question *q, struct dtp_schedule_case *c,
                                 struct dtp_faults *faults)
{
    struct dtp_stage_cost *stages = calloc(c->schedule.stages, sizeof *stages);
    enum dtp_status status = DTP_OK;
    c->formula_s = NAN;
    if (!stages)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    if (q->layers) {
        status = cost_of_layers(q, c, stages, faults);
    } else {
        dtp_stage_costs_equal(&c->schedule, q->forward_s, q->backward_s, q->weight_s, q->send_s, stages);
        if (q->send_s == 0)
            c->formula_s = dtp_schedule_bubble(&c->schedule.shape, stages, q->pair_fraction);
    }
    struct dtp_schedule_costs costs = {stages, q->pair_fraction};
    if (status == DTP_OK)
        dtp_schedule_timer_run(c->timer, &costs, &c->timing);
    free(stages);
    return status;
}

static enum dtp_status make_case(const struct dtp_schedule_question *q, struct dtp_schedule_case *c,
                                 struct dtp_faults *faults)
{
    bool alone = q->kind_count == 1, loops = alone || !dtp_schedule_row(c->kind)->chunks;
    struct dtp_schedule_shape shape = {.kind = c->kind,
                                       .ranks = q->ranks,
                                       .micro_batches = q->micro_batches,
                                       .chunks = loops ? q->chunks : 0,
                                       .group = alone || c->kind == DTP_SCHEDULE_INTERLEAVED ? q->group : 0,
                                       .times = {.forward_s = q->forward_s,
                                                 .backward_s = q->backward_s,
                                                 .weight_s = q->weight_s,
                                                 .send_s = q->send_s,
                                                 .freed = 1 - q->kept_for_weights}};
    enum dtp_status status = dtp_schedule_create(&shape, &c->schedule, faults);
    if (status == DTP_OK)
        status = make_timer(q, c, faults);
    return status == DTP_OK ? time_case(q, c, faults) : status;
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
        dtp_stages_destroy(&report->cases[i].stages);
    }
    free(report->cases);
    *report = (struct dtp_schedule_report){0};
}
