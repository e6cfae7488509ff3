#include "plan/norm_chain.h"

bool dtp_plan_casts_norms(const struct dtp_transformer *transformer, const struct dtp_plan *plan)
{
    return plan->autocast && transformer->norm == DTP_LAYER_NORM && !dtp_plan_fuses(plan);
}

bool dtp_plan_chains_norms(const struct dtp_transformer *transformer, const struct dtp_plan *plan)
{
    bool written = dtp_plan_layers(plan)->chains_norms ? !plan->fast_kernels : plan->norm_chain;
    if (dtp_plan_casts_norms(transformer, plan))
        return true;
    return written && !dtp_plan_fuses(plan) && transformer->norm == DTP_RMS_NORM && !transformer->norm_without_weight;
}

bool dtp_plan_chains_qk_norms(const struct dtp_transformer *transformer, const struct dtp_plan *plan)
{
    return transformer->qk_norm && !transformer->qk_layer_norm && dtp_plan_chains_norms(transformer, plan) &&
           !dtp_plan_casts_norms(transformer, plan);
}

/* LayerNorm under autocast: x, weight and bias are cast; the norm 4 + 4; backward the first linear's gradient is cast c
 * + 4, x's made of it and x 4 + 4 + 4, the weight's and bias' of both 4 + 4 and cast, x's cast 4 + c. */
static struct dtp_norm_chain widened(const struct dtp_transformer *t, double c, bool trained)
{
    return (struct dtp_norm_chain){.forward = (c + 4) + 8,
                                   .forward_elements = 1 + dtp_norm_elements(t, false),
                                   .forward_kernels = 2 + (uint32_t)dtp_transformer_norm_vectors(t),
                                   .backward = 2 * (c + 4) + 12 + (trained ? 8 : 0),
                                   .backward_elements = 1 + dtp_norm_elements(t, true),
                                   .backward_kernels =
                                       3 + (trained ? 1 + (uint32_t)dtp_transformer_norm_vectors(t) : 0),
                                   .saved = 4};
}

/* c bytes of the compute dtype. Forward, of a 16-bit stream: cast c + 4, square 4 + 4, mean 4, product with rsqrt 4 +
 * 4, cast 4 + c, product with the weight c + c. Backward: of the weight's product c + c, cast c + 4, of the product g r
 * 4 + 4 and g x 4 + 4 + 4, whose sum over a row is read 4; the mean's gradient spread over it 4, of the square x 4 + 4,
 * 2 x 4 + 4 and their product 4 + 4 + 4; both gradients added 4 + 4 + 4, cast 4 + c. A trained weight's: g x 3 c and
 * its sum over rows c. An fp32 stream has no casts and c is 4. Beside these each way a few kernels of a number a row.
 */
struct dtp_norm_chain dtp_norm_chain_of(const struct dtp_transformer *transformer, const struct dtp_plan *plan,
                                        bool trained)
{
    if (dtp_plan_casts_norms(transformer, plan))
        return widened(transformer, dtp_plan_compute_bytes(plan), trained);
    bool wide = dtp_plan_stream_bytes(plan) > dtp_plan_compute_bytes(plan);
    double c = wide ? 4 : dtp_plan_compute_bytes(plan), casts = wide ? 0 : 2 * (4 + c);
    double casts_up = wide ? 0 : 1;
    struct dtp_norm_chain chain = {.forward = casts + 20 + 2 * c,
                                   .forward_elements = casts_up + 2, /* by a number a row, by one a column */
                                   .backward_elements = casts_up + 4 + (trained ? 1 : 0),
                                   .backward = casts + 68 + 2 * c + (trained ? 4 * c : 0),
                                   .forward_kernels = wide ? 6u : 8u,
                                   .backward_kernels = (wide ? 13u : 15u) + (trained ? 2u : 0u)};
    chain.saved = wide ? (trained ? 4 : 0) : 4 + (trained ? dtp_plan_compute_bytes(plan) : 0);
    return chain;
}

double dtp_norm_elements(const struct dtp_transformer *transformer, bool backward)
{
    double sums = transformer->norm == DTP_RMS_NORM ? 1 : 2;
    return backward ? sums : sums - 1;
}

uint64_t dtp_norm_chain_head(const struct dtp_transformer *transformer, const struct dtp_plan *plan)
{
    return dtp_plan_chains_norms(transformer, plan) ? dtp_norm_chain_of(transformer, plan, !dtp_plan_adapts(plan)).saved
                                                    : 0;
}

double dtp_norm_column_sums(const struct dtp_transformer *transformer, const struct dtp_plan *plan)
{
    bool halves = plan->compile && !plan->runtime->fused_norms && !dtp_plan_adapts(plan);
    return halves ? (double)dtp_transformer_norm_vectors(transformer) : 0;
}
