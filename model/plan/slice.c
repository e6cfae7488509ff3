#include "plan/slice.h"

#include "base/bytes.h"
#include "plan/rules.h"

#include <string.h>

struct dtp_transformer dtp_plan_packed_experts(const struct dtp_transformer *transformer, const struct dtp_plan *plan)
{
    struct dtp_transformer packed = *transformer;
    packed.experts_packed = plan->grouped_experts || (plan->runtime->weighs_rows && plan->fused_gate_up);
    return packed;
}

struct dtp_transformer dtp_plan_own_experts(const struct dtp_transformer *transformer, const struct dtp_plan *plan)
{
    struct dtp_transformer own = dtp_plan_packed_experts(transformer, plan);
    own.expert_ranks = plan->ep;
    own.expert_tensor_ranks = dtp_plan_width_ranks(plan);
    return own;
}

struct dtp_transformer dtp_plan_slice(const struct dtp_transformer *transformer, const struct dtp_plan *plan)
{
    struct dtp_transformer slice = dtp_plan_own_experts(transformer, plan);
    slice.heads = dtp_part_of(transformer->heads, plan->tp);
    slice.kv_heads = dtp_part_of(transformer->kv_heads, plan->tp);
    slice.ffn = dtp_part_of(transformer->ffn, plan->tp);
    slice.ahead_ranks = plan->tp;
    if (transformer->shared_expert_ffn)
        slice.shared_expert_ffn = dtp_part_of(transformer->shared_expert_ffn, plan->tp);
    slice.vocab = dtp_divide_up(transformer->vocab, dtp_plan_divides_vocab(plan) ? plan->tp : 1);
    return slice;
}

struct dtp_layout dtp_plan_layout(const struct dtp_plan *plan, const struct dtp_cluster *cluster)
{
    struct dtp_layout layout = dtp_layout_default();
    memcpy(layout.order, plan->layout_order, sizeof layout.order);
    uint32_t same_slice = dtp_plan_gradient_ranks(plan, cluster), data = same_slice / plan->cp;
    uint32_t shards = plan->shard_group / plan->cp; /* of data parallel ranks: context parallel ones shard as well */
    layout.size[DTP_AXIS_TP] = plan->tp;
    layout.size[DTP_AXIS_CP] = plan->cp;
    layout.size[DTP_AXIS_DP_SHARD] = shards && data % shards == 0 ? shards : 1;
    layout.size[DTP_AXIS_DP_REPLICATE] = data / layout.size[DTP_AXIS_DP_SHARD];
    layout.size[DTP_AXIS_PP] = plan->pp;
    if (plan->ep > 1) {
        layout.size[DTP_AXIS_ETP] = plan->megatron.etp;
        layout.size[DTP_AXIS_EP] = plan->ep;
        layout.size[DTP_AXIS_EDP] = dtp_plan_expert_replicas(plan, cluster);
    }
    return layout;
}

struct dtp_stretch dtp_plan_group(const struct dtp_plan *plan, const struct dtp_cluster *cluster, unsigned axes)
{
    struct dtp_layout layout = dtp_plan_layout(plan, cluster);
    struct dtp_rank_group group = dtp_layout_group(&layout, axes);
    struct dtp_stretch out = {.stride = 1, .size = group.size};
    if (group.stretch_count)
        out.stride = group.stretches[0].stride;
    return out;
}
