#include "plan/gelu_chain.h"

#include "plan/norm_chain.h"

bool dtp_plan_chains_gelu(const struct dtp_transformer *transformer, const struct dtp_plan *plan)
{
    return transformer->activation == DTP_GELU_NEW && dtp_plan_layers(plan)->chains_norms && !dtp_plan_fuses(plan);
}

bool dtp_plan_widens_gelu(const struct dtp_transformer *transformer, const struct dtp_plan *plan)
{
    bool around = plan->autocast || dtp_plan_autocast(plan) || plan->precision.autocast;
    return dtp_plan_chains_gelu(transformer, plan) && around && dtp_plan_layers(plan) == plan->runtime &&
           dtp_plan_result_bytes(plan) < 4;
}

void dtp_plan_chain_kind(const struct dtp_transformer *transformer, const struct dtp_plan *plan,
                         struct dtp_layer_kind *kind)
{
    kind->chains_norms = dtp_plan_chains_norms(transformer, plan);
    kind->casts_norms = dtp_plan_casts_norms(transformer, plan);
    kind->chains_gelu = dtp_plan_chains_gelu(transformer, plan);
    kind->widens_gelu = dtp_plan_widens_gelu(transformer, plan);
    kind->activates_in_place = plan->fused_activation && kind->gated && !kind->experts;
}

/* c bytes of what linears return, w of the power. Forward: 0.5 x c + c, power w + w, times 0.044715 w + w, plus x c + w
 * + w, times sqrt(2 / pi) w + w, tanh w + w, plus one w + w, product c + w + w; wide, x cast c + w and the product back
 * w + c. Saved: 0.5 x in c, tanh and one plus it in w, and wide the cast of x. Backward: of the product w + w + w and w
 * + c + w, of 0.5 x c + c, of tanh w + w + w, of both factors w + w each, of the power w + w, w + w, w + w + w (square,
 * times three, times the gradient), two sums c + c + c; wide, casts of the product's gradient c + w, and of three of
 * x's w + c. The gradient of the product and those of its two factors stand at once. */
struct dtp_gelu_chain dtp_gelu_chain_of(const struct dtp_plan *plan, bool wide)
{
    const uint64_t narrow = dtp_plan_result_bytes(plan), power = wide ? 4 : narrow;
    const double c = (double)narrow, w = (double)power, cast = wide ? c + w : 0;
    return (struct dtp_gelu_chain){.forward = 4 * c + 14 * w + 2 * cast,
                                   .forward_elements = wide ? 3 : 0,
                                   .forward_kernels = wide ? 10 : 8,
                                   .backward = 9 * c + 19 * w + 4 * cast,
                                   .backward_elements = wide ? 2 : 0,
                                   .backward_kernels = wide ? 15 : 11,
                                   .saved = narrow + (wide ? 3 : 2) * power,
                                   .forward_room = wide ? power : 0,
                                   .backward_room = 3 * power - 2 * narrow};
}
