#include "plan/graph_modules.h"

#include "base/fp8_recipe.h"
#include "base/word_set.h"
#include "plan/runtime.h"

static const char *const graph_words[DTP_GRAPH_COUNT] = {
#define DTP_GRAPH_WORD(suffix, word) word,
    DTP_GRAPH_TABLE(DTP_GRAPH_WORD)
#undef DTP_GRAPH_WORD
};
static const struct dtp_word_list graph_list = {graph_words, DTP_GRAPH_COUNT};

void dtp_graphs_text(uint32_t set, char out[DTP_GRAPHS_BYTES])
{
    dtp_word_set_text(&graph_list, set, out, DTP_GRAPHS_BYTES);
}

bool dtp_graphs_parse(const char *text, uint32_t *out)
{
    return dtp_word_set_parse(&graph_list, text, out);
}

static bool by_blocks(const struct dtp_plan *plan)
{
    const struct dtp_fp8_recipe_row *row = dtp_fp8_recipe_row(plan->precision.fp8_recipe);
    return row && plan->precision.compute == DTP_FP8 && row->granularity == DTP_FP8_BY_BLOCK;
}

bool dtp_plan_fuses_experts(const struct dtp_plan *plan, const struct dtp_cluster *cluster)
{
    return dtp_plan_replays_all(plan) && by_blocks(plan) && cluster->gpu.architecture == DTP_GPU_BLACKWELL;
}

uint32_t dtp_plan_expert_products(const struct dtp_plan *plan, uint64_t experts)
{
    return plan->runtime->loops_experts && !dtp_plan_replays_all(plan) ? (uint32_t)experts : 1;
}

uint32_t dtp_plan_expert_casts(const struct dtp_plan *plan, uint64_t experts)
{
    const struct dtp_fp8_recipe_row *row = dtp_fp8_recipe_row(plan->precision.fp8_recipe);
    bool together = row && (row->amax == DTP_FP8_AMAX_HISTORY || row->bits < 8);
    return together ? 1 : dtp_plan_expert_products(plan, experts);
}
