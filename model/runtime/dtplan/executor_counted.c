#include "runtime/dtplan/executor_counted.h"

#include "plan/checkpointing.h"
#include "plan/rules.h"
#include "plan/slice.h"
#include "runtime/dtplan/executor_work.h"

enum dtp_layer_mlp dtp_executor_mlp_of_module(const struct dtp_transformer *t, uint64_t module)
{
    return t->experts && dtp_transformer_layer_has_experts(t, module - 1) ? DTP_LAYER_EXPERTS : DTP_LAYER_DENSE;
}

/* Layers of a kind, and those of them that are checkpointed. */
static void count_layers(const struct dtp_transformer *t, const struct dtp_parameter_alike *blocks,
                         struct dtp_executor_counted *s)
{
    const struct dtp_checkpoint_rule rule = dtp_plan_checkpoint_rule(s->plan);
    s->layers = (double)blocks->count, s->checkpointed = 0;
    if (blocks->count == t->layers)
        s->checkpointed = (double)dtp_checkpointed_layers(&rule, t->layers);
    for (uint64_t layer = 0; layer < t->layers && blocks->count < t->layers; layer++)
        if (dtp_executor_mlp_of_module(t, layer + 1) == dtp_executor_mlp_of_module(t, blocks->module))
            s->checkpointed += dtp_checkpointed(&rule, layer);
}

void dtp_executor_counted_of(const struct dtp_transformer *t, const struct dtp_cluster *cluster,
                             const struct dtp_plan *plan, const struct dtp_parameter_alike *blocks,
                             struct dtp_executor_counted *s)
{
    const enum dtp_layer_mlp mlp = dtp_executor_mlp_of_module(t, blocks->module);
    struct dtp_checkpoint_rule rule = dtp_plan_checkpoint_rule(plan);
    *s = (struct dtp_executor_counted){.plan = plan, .own = dtp_plan_own_experts(t, plan)};
    const bool divided = plan->ep > 1 && mlp == DTP_LAYER_EXPERTS;
    s->t = &s->own;
    dtp_executor_rules(t, cluster, plan, &s->rules);
    s->ends = blocks->module == 1 ? 1 : 0;
    dtp_executor_block_of(s->t, plan, mlp, false, &s->block);
    dtp_executor_block_of(s->t, plan, mlp, s->ends > 0, &s->first);
    s->adapted = s->block.adapted;
    s->tokens = (double)s->rules.tokens, s->h = (double)t->hidden, s->vocab = (double)t->vocab;
    count_layers(t, blocks, s);
    s->modules = s->layers + (s->adapted ? 0 : 2 * s->ends) + (divided ? s->layers : 0);
    s->c = dtp_plan_compute_bytes(plan);
    s->first_checkpointed = s->ends > 0 && s->checkpointed > 0 && dtp_checkpointed(&rule, 0);
    s->again = dtp_executor_operators_again(&s->block, rule.keeps);
    s->first_again = dtp_executor_operators_again(&s->first, rule.keeps);
    s->remakes = rule.keeps == DTP_KEEPS_SECOND_MATMULS && !s->block.fp8;
    for (int i = 0; i < 4; i++) {
        const uint64_t module = i == 0 ? 0 : i == 2 ? t->layers + 1 : blocks->module;
        struct dtp_gradient_dtypes dtype = dtp_executor_gradient_dtypes(t, &s->rules, module);
        if (!s->adapted && i < 3)
            dtp_parameter_module(t, s->rules.shard_ranks, module, &s->layout[i]);
        else if (i == 1)
            dtp_executor_adapter_module(t, plan, s->rules.shard_ranks, &s->layout[i]);
        s->element[i] = dtp_dtype_bytes(dtype.whole), s->shard_element[i] = dtp_dtype_bytes(dtype.shard);
        uint64_t ranks = s->rules.shard_ranks * s->rules.replicas;
        if (i == 3 && divided)
            ranks = ranks * s->rules.tensor_ranks / plan->ep;
        s->opened[i] = s->rules.reduces_always && ranks > 1 ? plan->accumulate : 1;
    }
    if (divided)
        dtp_parameter_split_experts(t, s->t, s->rules.shard_ranks, dtp_executor_expert_shards(plan, &s->rules),
                                    &s->layout[1], &s->layout[3]);
}
