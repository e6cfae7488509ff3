/* Stages cut best: what a layer and the head take by the formulas of the plan's runtime, and the cut that
 * model/schedule finds for these. Behind all other rules, for only a plan that holds can be priced. */
#include "runtime/runtimes.h"

#include "closed/model_parallel.h"
#include "plan/degrees.h"
#include "schedule/schedule_time.h"

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

static enum dtp_status cut(const struct dtp_resolver *r, struct dtp_stages *out, struct dtp_faults *faults)
{
    const struct dtp_plan *plan = r->plan;
    const struct dtp_stages_model model = dtp_plan_stages_model(r->transformer);
    struct dtp_model_cost cost = {.layers = NULL};
    struct dtp_part_cost layer, *layers = malloc(model.layers * sizeof *layers);
    if (!layers)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    dtp_part_costs_of_slice(r->transformer, r->cluster, plan, &layer, &cost.head, &cost.send_s);
    for (uint32_t i = 0; i < model.layers; i++)
        layers[i] = layer;
    cost.layers = layers;
    cost.mtp_layer = layer; /* what its head and loss take stands with the model's */
    enum dtp_status status = plan->stages.cut == DTP_STAGE_CUT_STEP
                                 ? cut_by_step(plan, &model, &cost, out, faults)
                                 : dtp_stages_best(&model, &cost, dtp_plan_stage_count(plan), out, faults);
    free(layers);
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

void dtp_plan_cut_stages(struct dtp_resolver *r)
{
    struct dtp_faults faults; /* 16 kB: cleared as far as it is read */
    struct dtp_stages stages = {0};
    bool best = r->plan->stages.cut == DTP_STAGE_CUT_BEST || r->plan->stages.cut == DTP_STAGE_CUT_STEP;
    if (r->status != DTP_OK || r->plan->pp < 2 || !best)
        return;
    faults.count = 0;
    faults.status = DTP_OK;
    enum dtp_status status = cut(r, &stages, &faults);
    if (status == DTP_OK)
        take_layout(r, &stages);
    else if (status == DTP_ENVIRONMENT)
        r->status = dtp_fault(r->faults, status, NULL, 0, "%s", faults.text[0]);
    else
        dtp_plan_refuse(r, "stages", "%s",
                        faults.text[0] + (strncmp(faults.text[0], "stages: ", 8) == 0 ? strlen("stages: ") : 0));
    dtp_stages_destroy(&stages);
}
