#include "plan/degrees.h"

#include <string.h>

struct dtp_schedule_shape dtp_plan_schedule(const struct dtp_plan *plan)
{
    return (struct dtp_schedule_shape){.kind = plan->schedule,
                                       .ranks = plan->pp,
                                       .micro_batches = plan->accumulate,
                                       .chunks = plan->virtual_stages > 1 ? plan->virtual_stages : 0,
                                       .group = dtp_plan_interleaves(plan) ? plan->microbatch_group : 0,
                                       .whole_first_stage = plan->runtime->holds_passes};
}

uint32_t dtp_plan_stage_count(const struct dtp_plan *plan)
{
    bool two_ways = dtp_schedule_row(plan->schedule)->placement == DTP_CHUNKS_TWO_WAY;
    return two_ways ? plan->pp : plan->pp * plan->virtual_stages;
}

enum dtp_status dtp_plan_stages(const struct dtp_plan *plan, const struct dtp_transformer *t, struct dtp_stages *out,
                                struct dtp_faults *faults)
{
    struct dtp_stages_model model = {.layers = (uint32_t)t->layers};
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
