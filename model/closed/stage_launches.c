#include "closed/stage_launches.h"

#include "cost/calibration.h"
#include "cost/op_cost.h"
#include "plan/checkpointing.h"
#include "plan/context.h"
#include "plan/host_calls.h"
#include "plan/norm_chain.h"

/* Forward and backward. */
struct launches {
    double forward, backward;
};

/* Of attention in steps of context parallel ranks, as Transformer Engine and PyTorch issue them. Exchanged heads: two
 * copies before or behind each all-to-all. A ring of s cores: keys and values put side by side, and behind each core
 * two kernels that correct the sum. By pieces: two copies of what was gathered, backward zeros for both sums as well,
 * and three kernels behind each core. Walked: keys and values before all cores but the first, each result to fp32 in
 * two, merged in eleven more, two casts at the end; backward three zeros, behind each core six, of the first four. */
static struct launches core_launches(const struct dtp_counted *c, const struct dtp_cluster *cluster)
{
    const struct dtp_context context = dtp_plan_context(c->plan, cluster);
    const double s = context.steps, heads = context.exchanged > 1 ? 8 : 0;
    struct launches l = {2 * s + heads, 3 * s + heads};
    if (context.ring < 2)
        return l;
    l.forward++; /* the result's heads side by side */
    if (context.by_pieces)
        l.forward += 2, l.backward += 2 + 2 + 3 * s;
    else if (c->plan->runtime->walks_gathered)
        l.forward += (s - 1) * (1 + 11) + 2 * s + 2, l.backward += (context.keeps ? 0 : s - 1) + 3 + 6 * s - 2 + 2;
    else
        l.forward += 2 * s, l.backward += 1 + 2 * s;
    return l;
}

/* A branch's first linears cast what they read each for itself under autocast, and their input gradients, cast as well,
 * are added up. */
static struct launches projection_launches(const struct dtp_counted *c, const struct dtp_layer_operator *op, bool first,
                                           double *linears)
{
    double count = 0, biases = 0;
    for (int i = 0; i < c->block->matrices; i++) {
        const bool made = op->makes >> c->block->matrix[i].result & 1;
        count += made, biases += made && c->block->matrix[i].bias;
    }
    *linears += count;
    const double casts = first && c->autocast ? count : 0, sums = first ? count - 1 : 0;
    return (struct launches){count + casts, 2 * count + biases + sums * (c->autocast ? 2 : 1)};
}

/* Rows of eager RoPE: ten kernels and twelve, in fp32 twice as many. */
static struct launches rotary_launches(const struct dtp_counted *c, bool eager)
{
    const bool wide = c->plan->rope_fp32;
    return eager && c->block->rotary ? (struct launches){wide ? 20 : 10, wide ? 24 : 12} : (struct launches){1, 1};
}

static struct launches norm_launches(const struct dtp_counted *c, const struct dtp_layer_operator *op, bool eager)
{
    if (!eager)
        return (struct launches){1, 2};
    const double cast = c->autocast ? 1 : 0;
    if (c->block->chains_norms && op->reads & DTP_LAYER_STREAM) {
        const struct dtp_norm_chain chain = dtp_norm_chain_of(c->transformer, c->plan, !c->block->adapted);
        return (struct launches){chain.forward_kernels, chain.backward_kernels + 1 + cast};
    }
    return (struct launches){1, 3 + cast};
}

/* A packed gate and up are put together of halves. */
static struct launches activation_launches(const struct dtp_counted *c, bool eager)
{
    const bool two = c->block->gated || c->block->squares;
    return eager && two ? (struct launches){2, c->block->gated && c->block->packs_up ? 4 : 3} : (struct launches){1, 1};
}

static struct launches operator_launches(const struct dtp_counted *c, const struct dtp_layer_operator *op,
                                         const struct launches *core, bool eager, double *linears)
{
    const bool first = op->makes & (DTP_TENSOR_BIT(QKV) | DTP_TENSOR_BIT(Q_RAW) | DTP_TENSOR_BIT(UP));
    switch (op->kind) {
    case DTP_LAYER_OP_NORM: return norm_launches(c, op, eager);
    case DTP_LAYER_OP_PROJECTION: return projection_launches(c, op, first, linears);
    case DTP_LAYER_OP_ROTARY: return rotary_launches(c, eager);
    case DTP_LAYER_OP_ATTENTION: return (struct launches){core->forward, core->backward + c->plan->fused_qkv};
    case DTP_LAYER_OP_ACTIVATION: return activation_launches(c, eager);
    case DTP_LAYER_OP_RESIDUAL: /* a fused one that makes something is the norm's behind it */
        return (struct launches){eager || !op->makes, eager && c->autocast};
    default: return (struct launches){0, 0};
    }
}

/* Sums of a micro-batch's gradients, tensor by tensor with those of vectors as one, all but the first's; cast before.
 */
static double gradient_launches(const struct dtp_plan *plan, double tensors)
{
    if (plan->runtime->gradients_in_matmul)
        return 0;
    if (plan->runtime->sums_gradients) /* one for all */
        return 1;
    return tensors * ((dtp_plan_autocast(plan) ? 1 : 0) + (plan->accumulate - 1.0) / plan->accumulate);
}

/* Kernels of a loss by operators (lower_loss.c): in fp32 and in place 1 + 12, back 6 + 1; of Megatron's own 1 + 3, back
 * 2 + 1; of PyTorch's 3, back 2 and a cast; a fused one's 2. */
static double loss_launches(const struct dtp_plan *plan)
{
    return plan->loss == DTP_LOSS_NATIVE           ? 7
           : dtp_plan_softmax_in_place(plan)       ? 20
           : dtp_plan_loss(plan) == DTP_LOSS_EAGER ? 6
                                                   : 2;
}

bool dtp_count_stage_launches(const struct dtp_counted *c, const struct dtp_cluster *cluster,
                              struct dtp_block_work *work)
{
    const struct dtp_plan *plan = c->plan;
    const struct dtp_layer_kind *kind = c->block;
    if (!plan->pipeline_ranks || c->transformer->experts || kind->kv_latent || kind->adapted || kind->sinks ||
        kind->dropout)
        return false;
    const bool eager = !work->fused, core_alone = plan->checkpointing == DTP_CHECKPOINT_SELECTIVE_ATTENTION,
               matmuls = plan->checkpointing == DTP_CHECKPOINT_SELECTIVE_MATMUL;
    const struct launches core = core_launches(c, cluster);
    struct dtp_layer_operator op[DTP_LAYER_OPERATORS];
    const int count = dtp_layer_operators(kind, op);
    double linears = 0;
    work->forward_kernels = 0, work->backward_kernels = 1; /* vectors' gradients */
    for (int i = 0; i < count; i++) {
        const struct launches l = operator_launches(c, &op[i], &core, eager, &linears);
        work->forward_kernels += l.forward, work->backward_kernels += l.backward;
    }
    work->backward_kernels += gradient_launches(plan, linears + 1);
    /* a replay ends before the last sum, or the last matmul; one that keeps matmuls runs every second of them */
    const double again = work->forward_kernels - 1;
    work->again_kernels = core_alone ? core.forward
                          : matmuls  ? again - core.forward - linears + (double)((int)linears / 2)
                                     : again - (plan->runtime->stops_replay && !kind->norms_after);
    work->table_kernels = 4 + gradient_launches(plan, 1);
    work->root_kernels = work->table_kernels + 1 + 2 + 3 + loss_launches(plan) + gradient_launches(plan, 2) +
                         (c->autocast ? 1 : 0); /* of the stream's gradient */
    return true;
}

double dtp_root_hooks_s(const struct dtp_plan *plan)
{
    const struct dtp_execution execution = dtp_plan_execution(plan);
    return ((double)dtp_plan_unit_hooks(plan, false) + (double)dtp_plan_unit_hooks(plan, true)) *
           dtp_unit_hooks_s(&execution);
}

double dtp_block_calls_s(const struct dtp_transformer *transformer, const struct dtp_plan *plan, bool experts)
{
    const struct dtp_execution execution = dtp_plan_execution(plan);
    double hooks = (double)dtp_plan_unit_hooks(plan, false) + (double)dtp_plan_unit_hooks(plan, true);
    double calls_s = 2 * (double)dtp_plan_compiled_calls(plan, transformer, experts) * dtp_calibration.compiled_call_s;
    const uint64_t every = dtp_plan_checkpoint_rule(plan).every; /* layers of which one runs again; 0: none */
    double passes = 2 + (every ? 1 / (double)every : 0);
    double modules = (double)dtp_plan_module_hooks(plan, transformer) * passes;
    return calls_s + modules * dtp_unit_hooks_s(&execution) +
           (plan->wrap_layers ? hooks / plan->wrap_layers * dtp_unit_hooks_s(&execution) : 0);
}
