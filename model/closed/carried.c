#include "closed/carried.h"

#include "plan/adapters.h"
#include "plan/rules.h"

struct dtp_carried_rows dtp_carried_rows_of(const struct dtp_transformer *transformer, const struct dtp_plan *plan)
{
    const uint64_t layers = transformer->layers;
    if (!plan->activation_offload)
        return (struct dtp_carried_rows){0};
    const bool beside = dtp_plan_carries_beside(plan);
    return (struct dtp_carried_rows){
        dtp_bytes_product(dtp_plan_tokens(plan), dtp_plan_stream_bytes(plan) * transformer->hidden), layers + beside,
        layers - beside};
}
