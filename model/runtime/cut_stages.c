/* Stages cut best, and the times that a schedule is searched by: what a layer and the head take by the formulas of the
 * plan's runtime, and the cut that model/schedule finds for these. Behind all other rules, for only a plan that holds
 * can be priced. */
#include "runtime/runtimes.h"

#include "closed/model_parallel.h"
#include "plan/degrees.h"
#include "schedule/schedule_time.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static enum dtp_status cut_by_step(const struct dtp_plan *plan, const struct dtp_stages_model *model,
                                   const struct dtp_model_cost *cost, struct dtp_stages *out, struct dtp_faults *faults)
{
    struct dtp_schedule_shape shape = dtp_plan_schedule(plan);
    struct dtp_schedule schedule;
    struct dtp_schedule_timer *timer = NULL;
    double step_s;
    enum dtp_status status = dtp_schedule_create(&shape, &schedule, faults);
    if (status == DTP_OK)
        status = dtp_schedule_timer_create(&schedule, DTP_SEND_BUFFERED, &timer, faults);
    if (status == DTP_OK)
        status = dtp_stages_best_step(model, cost, &schedule, timer, 1, out, &step_s, faults);
    dtp_schedule_timer_destroy(timer);
    dtp_schedule_destroy(&schedule);
    return status;
}

/* Caller frees cost->layers. */
static enum dtp_status price_parts(const struct dtp_resolver *r, struct dtp_model_cost *cost, struct dtp_faults *faults)
{
    const struct dtp_stages_model model = dtp_plan_stages_model(r->transformer);
    struct dtp_part_cost layer, *layers = malloc(model.layers * sizeof *layers);
    *cost = (struct dtp_model_cost){.layers = layers, .delayed_layers = r->plan->executor.delay_wgrad};
    if (!layers)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    dtp_part_costs_of_slice(r->transformer, r->cluster, r->plan, &layer, &cost->head, &cost->send_s);
    for (uint32_t i = 0; i < model.layers; i++)
        layers[i] = layer;
    cost->mtp_layer = layer; /* what its head and loss take stands with the model's */
    return DTP_OK;
}

static enum dtp_status cut(const struct dtp_resolver *r, struct dtp_stages *out, struct dtp_faults *faults)
{
    const struct dtp_plan *plan = r->plan;
    const struct dtp_stages_model model = dtp_plan_stages_model(r->transformer);
    struct dtp_model_cost cost;
    enum dtp_status status = price_parts(r, &cost, faults);
    if (status == DTP_OK)
        status = plan->stages.cut == DTP_STAGE_CUT_STEP
                     ? cut_by_step(plan, &model, &cost, out, faults)
                     : dtp_stages_best(&model, &cost, dtp_plan_stage_count(plan), out, faults);
    free((void *)cost.layers);
    return status;
}

static void take_layout(struct dtp_resolver *r, const struct dtp_stages *stages)
{
    struct dtp_stage_choice choice;
    char *text = dtp_stages_text(stages);
    const char *word = dtp_stage_choice_text(&r->plan->stages);
    if (!text)
        r->status = dtp_fault(r->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    else if (!dtp_stage_choice_parse(text, &choice))
        dtp_plan_refuse(r, "stages", "%s: the layout that was found has %zu letters, more than the %d of a key", word,
                        strlen(text), DTP_STAGE_LAYOUT_BYTES - 1);
    else {
        r->plan->stages = choice;
        dtp_plan_count_layers(r->plan, stages);
    }
    free(text);
}

static int compare(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Of all stages the upper one in the middle; `field` is where a stage's cost has it. */
static double middle(const struct dtp_stage_cost *stages, uint32_t count, size_t field, double *room)
{
    for (uint32_t i = 0; i < count; i++)
        memcpy(&room[i], (const char *)&stages[i] + field, sizeof *room);
    qsort(room, count, sizeof *room, compare);
    return room[count / 2];
}

/* As sail-sg's program has it (zerobubble/runtime.py, scheduler: "uniform f/b/w timing", sorted(f)[len(f) // 2]). Where
 * layers are made again, W may need more than F keeps: the limit is then one of micro-batches. */
static enum dtp_status time_passes(struct dtp_resolver *r, struct dtp_faults *faults)
{
    struct dtp_stages stages = {0};
    struct dtp_model_cost cost;
    struct dtp_stage_cost *costs = NULL;
    double *room = NULL;
    enum dtp_status status = price_parts(r, &cost, faults);
    if (status == DTP_OK)
        status = dtp_plan_stages(r->plan, r->transformer, &stages, faults);
    if (status == DTP_OK) {
        costs = calloc(stages.count, sizeof *costs);
        room = calloc(stages.count, sizeof *room);
        if (!costs || !room)
            status = dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    }
    if (status == DTP_OK) {
        dtp_stages_cost(&stages, &cost, costs);
#define MIDDLE(field) middle(costs, stages.count, offsetof(struct dtp_stage_cost, field), room)
        double kept = MIDDLE(kept), left = MIDDLE(kept_for_weight);
        r->plan->pass_times = (struct dtp_pass_times){.forward_s = MIDDLE(forward_s),
                                                      .backward_s = MIDDLE(backward_s),
                                                      .weight_s = MIDDLE(weight_s),
                                                      .send_s = cost.send_s,
                                                      .freed = left < kept ? 1 - left / kept : 0};
#undef MIDDLE
    }
    free((void *)cost.layers);
    free(costs);
    free(room);
    dtp_stages_destroy(&stages);
    return status;
}

static bool is_searched(const struct dtp_plan *plan)
{
    const struct dtp_schedule_shape shape = dtp_plan_schedule(plan);
    return plan->pp > 1 && dtp_schedule_limit(&shape) > 0;
}

void dtp_plan_cut_stages(struct dtp_resolver *r)
{
    struct dtp_faults faults; /* 16 kB: cleared as far as it is read */
    struct dtp_stages stages = {0};
    struct dtp_plan *plan = r->plan;
    bool best = plan->pp > 1 && (plan->stages.cut == DTP_STAGE_CUT_BEST || plan->stages.cut == DTP_STAGE_CUT_STEP);
    plan->pass_times = (struct dtp_pass_times){0};
    if (r->status != DTP_OK || !(best || is_searched(plan)))
        return;
    faults.count = 0;
    faults.status = DTP_OK;
    enum dtp_status status = is_searched(plan) ? time_passes(r, &faults) : DTP_OK;
    if (status == DTP_OK && best) {
        status = cut(r, &stages, &faults);
        if (status == DTP_OK)
            take_layout(r, &stages);
        if (status == DTP_OK && r->status == DTP_OK && is_searched(plan)) /* again, of the stages that were found */
            status = time_passes(r, &faults);
    }
    if (status == DTP_ENVIRONMENT)
        r->status = dtp_fault(r->faults, status, NULL, 0, "%s", faults.text[0]);
    else if (status != DTP_OK)
        dtp_plan_refuse(r, "stages", "%s",
                        faults.text[0] + (strncmp(faults.text[0], "stages: ", 8) == 0 ? strlen("stages: ") : 0));
    dtp_stages_destroy(&stages);
}
