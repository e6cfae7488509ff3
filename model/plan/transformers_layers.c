#include "plan/transformers_layers.h"

#include "plan/rules.h"

static const struct dtp_runtime layers = {DTP_TRANSFORMERS_HABITS};

const struct dtp_runtime *dtp_plan_layers(const struct dtp_plan *plan)
{
    return plan->deepspeed.transformers_layers ? &layers : plan->runtime;
}

bool dtp_plan_calls_experts(const struct dtp_plan *plan)
{
    return dtp_plan_layers(plan)->calls_experts && !plan->deepspeed.autoep && !plan->grouped_experts;
}

void dtp_plan_call_experts(const struct dtp_plan *plan, struct dtp_layer_kind *kind)
{
    kind->calls_experts = dtp_plan_calls_experts(plan);
    kind->stacks_rows = plan->deepspeed.autoep;
    kind->sorts_rows = plan->grouped_experts;
    kind->slots_rows = dtp_plan_slots_rows(plan);
    kind->routes_all = dtp_plan_routes_all(plan);
    kind->pads_rows = kind->experts && kind->routes_all && !kind->exchanged;
    for (int i = 0; i < kind->matrices && kind->routes_all; i++)
        kind->matrix[i].own_rows &= kind->matrix[i].expert;
    for (int i = 0; i < kind->matrices && kind->calls_experts; i++)
        kind->matrix[i].apart = kind->matrix[i].expert;
}

/* torch.autocast casts what cross entropy reads (autocast_mode.h, fp32 list); DeepSpeed's engine casts the model. */
uint64_t dtp_plan_shifted_loss_bytes(const struct dtp_plan *plan)
{
    bool autocast = dtp_plan_layers(plan) == plan->runtime;
    return plan->narrow_logits && !autocast ? dtp_plan_compute_bytes(plan) : 4;
}

uint64_t dtp_plan_shifted_copy_bytes(const struct dtp_plan *plan)
{
    return plan->narrow_logits ? dtp_plan_compute_bytes(plan) : 4;
}

void dtp_plan_check_transformers(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    if (p->narrow_logits && p->loss != DTP_LOSS_EAGER)
        dtp_plan_refuse(r, "narrow_logits", "is of an eager loss; use loss eager");
    if (p->fused_activation && (p->fused_gate_up || r->transformer->activation == DTP_SWIGLU_CLAMPED))
        dtp_plan_refuse(r, "fused_activation",
                        "of gate and up that are one matrix, whose halves Liger copies, or that are clamped is not "
                        "modelled; leave it out");
    if (p->checkpointing != DTP_CHECKPOINT_NONE && p->checkpointing != DTP_CHECKPOINT_FULL)
        dtp_plan_refuse(r, "checkpointing", "Transformers' gradient_checkpointing is of every layer; use full or none");
    if (p->loss == DTP_LOSS_CHUNKED)
        dtp_plan_refuse(r, "loss", "chunked is not what Transformers' models have; use eager or fused");
    if (p->pp > 1)
        dtp_plan_refuse(r, "pp", "above 1 does not exist in Trainer; use 1");
    if (r->transformer->norm_place != DTP_NORMS_BEFORE)
        dtp_plan_refuse(
            r, "norm_place",
            "other than before is not modelled of Transformers' layers; use runtime torch, or transformers_layers "
            "false under runtime deepspeed");
    if (r->transformer->activation == DTP_GELU_NEW && r->transformer->experts)
        dtp_plan_refuse(r, "activation", "gelu_new of experts is not modelled of Transformers' layers; use gelu");
    if (r->transformer->final_softcap > 0)
        dtp_plan_refuse(r, "final_softcap",
                        "is not modelled of Transformers' layers; use runtime torch, or transformers_layers false "
                        "under runtime deepspeed");
}
