#include "plan/host_calls.h"

#include "net/transformer.h"
#include "plan/rules.h"

uint32_t dtp_plan_compiled_calls(const struct dtp_plan *plan, const struct dtp_transformer *transformer, bool experts)
{
    if (!plan->compile || dtp_plan_execution(plan).issuer != DTP_ISSUER_PYTORCH)
        return 0;
    return experts ? 5 + (transformer->shared_expert_ffn > 0) : 1;
}

/* Linears, two norms and the block; of Transformers' layers attention, MLP and activation besides; of an adapted linear
 * what it wraps, A and B. Experts that are called are an MLP each. */
uint32_t dtp_plan_module_hooks(const struct dtp_plan *plan, const struct dtp_transformer *transformer)
{
    const struct dtp_transformer *t = transformer;
    if (!dtp_plan_fetches_modules(plan))
        return 0;
    const bool gated = dtp_activation_is_gated(t->activation), theirs = dtp_plan_layers(plan)->chains_norms;
    const uint64_t mlp = (gated && !plan->fused_gate_up ? 3u : 2u) + (theirs ? 2u : 0u);
    const uint64_t mlps = t->experts && dtp_plan_calls_experts(plan) ? t->experts : 1;
    uint64_t adapted = 0;
    for (uint32_t left = plan->adapters.rank ? plan->adapters.targets : 0; left; left &= left - 1)
        adapted++;
    const uint64_t modules = (plan->fused_qkv ? 1u : 3u) + 1 + 2 + 1 + (theirs ? 1u : 0u) + mlps * mlp + 3 * adapted;
    return (uint32_t)((modules + 1) / 2);
}

uint32_t dtp_plan_unit_hooks(const struct dtp_plan *plan, bool backward)
{
    if (!dtp_plan_is_fsdp(plan) || plan->fsdp1 || plan->runtime->issuer != DTP_ISSUER_PYTORCH)
        return 0;
    if (plan->pp > 1 || plan->pipeline_ranks > 1)
        /* of a slice, too, whose pp is 1 */
        return !backward ? (plan->compile ? 1 : 2) : dtp_schedule_row(plan->schedule)->backward != DTP_BACKWARD_SPLIT;
    return backward ? 2 : 1;
}
