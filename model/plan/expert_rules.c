/* What plans of models with experts, latent attention or modules that predict further ahead are refused. */
#include "plan/degrees.h"

#include <inttypes.h>

void dtp_plan_check_experts(struct dtp_resolver *r)
{
    const struct dtp_transformer *t = r->transformer;
    if (t->experts)
        dtp_plan_refuse(r, "experts",
                        "of a model are counted, but its plans are not modelled yet; a dense model with ffn %" PRIu64
                        " has as many active parameters in its MLP",
                        t->experts_per_token * t->expert_ffn + t->shared_expert_ffn);
    if (t->kv_latent)
        dtp_plan_refuse(r, "kv_latent",
                        "(latent attention) is counted, but its plans are not modelled yet; set it, q_latent, "
                        "rope_head_dim and value_head_dim to 0 for plain attention");
    if (t->mtp_layers)
        dtp_plan_refuse(r, "mtp_layers", "is %" PRIu64 ", and such modules are not modelled yet; set it to 0",
                        t->mtp_layers);
    if (t->attention_sinks)
        dtp_plan_refuse(r, "attention_sinks", "are not modelled yet; set it to false");
}
