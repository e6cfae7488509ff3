#include "plan/host_calls.h"

#include "net/transformer.h"
#include "plan/rules.h"

uint32_t dtp_plan_compiled_calls(const struct dtp_plan *plan, const struct dtp_transformer *transformer, bool experts)
{
    if (!plan->compile || dtp_plan_execution(plan).issuer != DTP_ISSUER_PYTORCH)
        return 0;
    return experts ? 5 + (transformer->shared_expert_ffn > 0) : 1;
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
