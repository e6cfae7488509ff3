#include "closed/pass_work.h"

#include "plan/gelu_chain.h"
#include "plan/norm_chain.h"
#include "plan/rules.h"

bool dtp_plan_passes(const struct dtp_plan *plan)
{
    return !dtp_plan_fuses(plan);
}

bool dtp_operator_passes(const struct dtp_plan *plan, const struct dtp_layer_kind *block,
                         const struct dtp_layer_operator *op)
{
    switch (op->kind) {
    case DTP_LAYER_OP_NORM:
    case DTP_LAYER_OP_PROJECTION:
    case DTP_LAYER_OP_ACTIVATION:
    case DTP_LAYER_OP_RESIDUAL: return dtp_plan_passes(plan);
    case DTP_LAYER_OP_ROTARY: return dtp_plan_passes(plan) && !dtp_plan_turns_eagerly(plan, block);
    case DTP_LAYER_OP_ATTENTION: return dtp_plan_passes(plan) && !block->sinks;
    case DTP_LAYER_OP_LATENT_NORM:
    case DTP_LAYER_OP_LATENT_HEADS:
    case DTP_LAYER_OP_CAST:
    case DTP_LAYER_OP_ROUTER:
    case DTP_LAYER_OP_PERMUTE:
    case DTP_LAYER_OP_UNPERMUTE: break;
    }
    return false;
}

/* A number a row or a column makes kernels take elements one at a time, and so do casts to fp32: of what a branch
 * returned before its norm, of a norm's gradient behind it. */
static void add_norm(const struct dtp_transformer *t, const struct dtp_plan *plan, const struct dtp_layer_kind *block,
                     const struct dtp_layer_operator *op, double stream, struct dtp_passes *passes)
{
    bool of_stream = op->reads & DTP_LAYER_STREAM;
    double widened = dtp_plan_autocast(plan) ? 1 : 0;
    double forward = dtp_norm_elements(t, false) + (of_stream ? 0 : widened);
    double backward = dtp_norm_elements(t, true);
    if (block->chains_norms && of_stream) {
        struct dtp_norm_chain chain = dtp_norm_chain_of(t, plan, !block->adapted);
        forward = chain.forward_elements, backward = chain.backward_elements;
    }
    passes->elements[0] += forward * stream;
    passes->elements[1] += (backward + (of_stream ? widened : 0)) * stream;
}

/* Under autocast each of a branch's first linears returns a gradient that is cast by itself; that of the first is with
 * the norm's. Sums of biases' gradients are kernels of their own. */
static void add_projection(const struct dtp_plan *plan, const struct dtp_layer_kind *block,
                           const struct dtp_layer_operator *op, double stream, struct dtp_passes *passes)
{
    double linears = 0, biases = 0;
    for (int i = 0; i < block->matrices; i++) {
        if (!(op->makes >> block->matrix[i].result & 1))
            continue;
        linears++;
        biases += block->matrix[i].bias && !block->matrix[i].expert ? 1 : 0;
    }
    bool first = op->makes & (DTP_TENSOR_BIT(QKV) | DTP_TENSOR_BIT(Q_RAW) | DTP_TENSOR_BIT(UP));
    if (first && linears > 0 && (dtp_plan_autocast(plan) || block->casts_norms))
        passes->elements[1] += (linears - 1) * stream;
    passes->column_sums += biases;
}

void dtp_passes_add(const struct dtp_transformer *transformer, const struct dtp_plan *plan,
                    const struct dtp_layer_kind *block, const struct dtp_layer_operator *op, double stream,
                    double inner, struct dtp_passes *passes)
{
    double turned = (double)((transformer->heads + transformer->kv_heads) * transformer->head_dim);
    bool strided = block->gated && block->packs_up;
    if (!dtp_operator_passes(plan, block, op))
        return;
    switch (op->kind) {
    case DTP_LAYER_OP_NORM: add_norm(transformer, plan, block, op, stream, passes); break;
    case DTP_LAYER_OP_PROJECTION: add_projection(plan, block, op, stream, passes); break;
    case DTP_LAYER_OP_ROTARY:
        passes->elements[0] += dtp_plan_turned_elements(transformer, plan) * turned;
        passes->elements[1] += dtp_plan_turned_elements(transformer, plan) * turned;
        break;
    case DTP_LAYER_OP_ACTIVATION: /* silu and product of halves of rows; backward both, and silu's own */
        if (block->chains_gelu) {
            const struct dtp_gelu_chain chain = dtp_gelu_chain_of(plan, block->widens_gelu);
            passes->elements[0] += chain.forward_elements * inner;
            passes->elements[1] += chain.backward_elements * inner;
        }
        passes->elements[0] += strided ? 2 * inner : 0;
        passes->elements[1] += strided ? 3 * inner : 0;
        break;
    case DTP_LAYER_OP_RESIDUAL: /* an fp32 stream and what is narrower */
        passes->elements[0] += dtp_plan_autocast(plan) && !block->norms_after ? stream : 0;
        break;
    default: break;
    }
}

bool dtp_loss_passes(const struct dtp_plan *plan)
{
    return dtp_plan_passes(plan) && dtp_plan_loss(plan) == DTP_LOSS_EAGER && !dtp_plan_softmax_in_place(plan) &&
           !dtp_plan_shifts_logits(plan);
}

/* logits.float(), and sums over rows forward and backward. */
double dtp_loss_elements(const struct dtp_transformer *transformer, const struct dtp_plan *plan)
{
    double casts = dtp_plan_compute_bytes(plan) == 4 ? 0 : 1;
    return dtp_loss_passes(plan) ? (casts + 2) * (double)transformer->vocab : 0;
}
