/* Layers that turn no queries and keys (dtp_transformer_layer_turns) leave operators of their kind out: what those
 * would have moved and launched. */
#include "runtime/dtplan/executor_work.h"

#include "plan/checkpointing.h"
#include "plan/slice.h"

static void leave_out(const struct dtp_executor_block *block, uint32_t again, bool remakes, struct dtp_step_work *out)
{
    for (int i = 0; i < block->count; i++) {
        const struct dtp_executor_operator *op = &block->op[i];
        if (!dtp_executor_turns_only(op))
            continue;
        const struct dtp_executor_traffic forward = dtp_executor_forward_traffic(block, op);
        out->forward_bytes -= forward.bytes, out->kernels -= forward.kernels;
        if (op->passes) {
            const struct dtp_executor_traffic backward = dtp_executor_backward_traffic(block, op, remakes);
            out->backward_bytes -= backward.bytes, out->kernels -= backward.kernels;
        }
        if (again & 1u << i)
            out->recompute_bytes -= forward.bytes, out->kernels -= forward.kernels;
    }
}

void dtp_executor_leave_out_turns(const struct dtp_transformer *transformer, const struct dtp_plan *plan,
                                  struct dtp_step_work *out)
{
    const struct dtp_transformer own = dtp_plan_own_experts(transformer, plan);
    const struct dtp_checkpoint_rule rule = dtp_plan_checkpoint_rule(plan);
    for (uint64_t layer = 0; layer < own.layers; layer++) {
        struct dtp_executor_block block;
        if (dtp_transformer_layer_turns(&own, layer))
            continue;
        const bool experts = own.experts && dtp_transformer_layer_has_experts(&own, layer);
        dtp_executor_block_of(&own, plan, experts ? DTP_LAYER_EXPERTS : DTP_LAYER_DENSE, layer == 0, &block);
        uint32_t again = dtp_checkpointed(&rule, layer) ? dtp_executor_operators_again(&block, rule.keeps) : 0;
        leave_out(&block, again, rule.keeps == DTP_KEEPS_SECOND_MATMULS && !block.fp8, out);
    }
}
