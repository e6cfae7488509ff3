#include "plan/degrees.h"

#include <string.h>

struct dtp_schedule_shape dtp_plan_schedule(const struct dtp_plan *plan)
{
    return (struct dtp_schedule_shape){.kind = plan->schedule,
                                       .ranks = plan->pp,
                                       .micro_batches = plan->accumulate,
                                       .chunks = plan->virtual_stages > 1 ? plan->virtual_stages : 0,
                                       .group = dtp_plan_interleaves(plan) ? plan->microbatch_group : plan->round,
                                       .whole_first_stage = plan->runtime->holds_passes,
                                       .equal_rounds = plan->runtime->equal_rounds,
                                       .times = plan->pass_times};
}

uint32_t dtp_plan_stage_count(const struct dtp_plan *plan)
{
    bool two_ways = dtp_schedule_row(plan->schedule)->placement == DTP_CHUNKS_TWO_WAY;
    return two_ways ? plan->pp : plan->pp * plan->virtual_stages;
}

void dtp_plan_count_layers(struct dtp_plan *plan, const struct dtp_stages *stages)
{
    struct dtp_schedule schedule = {.shape = dtp_plan_schedule(plan)};
    uint32_t lines = dtp_schedule_lines(&schedule);
    plan->most_layers = plan->head_layers = plan->first_layers = plan->head_rank = 0;
    plan->last_layers = stages->count ? stages->parts[stages->count - 1].layers : 0;
    for (uint32_t rank = 0; rank < plan->pp; rank++) {
        uint32_t layers = 0;
        bool head = false;
        for (uint32_t chunk = 0; chunk < plan->virtual_stages; chunk++) {
            uint32_t stage = dtp_schedule_stage(&schedule, rank, chunk);
            const struct dtp_stage_parts *parts = stage < stages->count ? &stages->parts[stage] : NULL;
            layers += parts ? parts->layers + parts->mtp_layers : 0;
            head = head || (parts && parts->head);
        }
        layers /= lines; /* of two copies a micro-batch passes one */
        plan->most_layers = layers > plan->most_layers ? layers : plan->most_layers;
        if (rank == 0)
            plan->first_layers = layers;
        if (head)
            plan->head_layers = layers, plan->head_rank = rank;
    }
}

struct dtp_stages_model dtp_plan_stages_model(const struct dtp_transformer *transformer)
{
    const struct dtp_transformer told = dtp_transformer_told(transformer);
    return (struct dtp_stages_model){.layers = (uint32_t)told.layers, .mtp_layers = (uint32_t)told.mtp_layers};
}

enum dtp_status dtp_plan_stages(const struct dtp_plan *plan, const struct dtp_transformer *t, struct dtp_stages *out,
                                struct dtp_faults *faults)
{
    struct dtp_stages_model model = dtp_plan_stages_model(t);
    uint32_t count = dtp_plan_stage_count(plan);
    double hidden = (double)t->hidden;
    switch (plan->stages.cut) {
    case DTP_STAGE_CUT_LAYOUT: return dtp_stages_parse(plan->stages.layout, &model, plan->pp, out, faults);
    case DTP_STAGE_CUT_COST: /* nanotron's own figures (models/llama.py, get_block_compute_costs) */
        return dtp_stages_by_cost(&model, count, 4 * hidden * hidden + 3 * hidden * (double)t->ffn,
                                  (double)t->vocab * hidden, out, faults);
    case DTP_STAGE_CUT_BEST: /* until one is found */
    case DTP_STAGE_CUT_STEP:
    case DTP_STAGE_CUT_EVEN:
    case DTP_STAGE_CUT_COUNTED: break;
    }
    bool ends_count = plan->stages.cut == DTP_STAGE_CUT_COUNTED || model.layers % count;
    return dtp_stages_spread(&model, count, ends_count, out, faults);
}
