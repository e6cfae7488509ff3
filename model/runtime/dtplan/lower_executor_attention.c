/* Backward of attention: one core, or as context parallel ranks share it. */
#include "runtime/dtplan/lower_executor_state.h"

static dtp_buffer_id core_backward(struct dtp_executor *x, const struct dtp_executor_core *core)
{
    struct dtp_draft draft;
    dtp_executor_begin(x, &draft, DTP_OP_ATTENTION_BACKWARD, "attention");
    dtp_draft_role(&draft, DTP_ROLE_INPUT, core->qkv, DTP_READ | DTP_FREE, 0);
    dtp_draft_role(&draft, DTP_ROLE_SAVED, core->result, core->result_access, 0);
    dtp_draft_role(&draft, DTP_ROLE_STATISTICS, core->statistics, DTP_READ | DTP_FREE, 0);
    dtp_draft_role(&draft, DTP_ROLE_GRADIENT, core->gradient, DTP_READ | DTP_FREE, 0);
    dtp_buffer_id gradient = dtp_executor_new(x, &draft, DTP_ROLE_INPUT_GRADIENT, "qkv gradient", DTP_OWNER_WORKSPACE,
                                              dtp_executor_tensor_bytes(x->shape, DTP_TENSOR_QKV), DTP_WRITE);
    dtp_executor_new(x, &draft, DTP_ROLE_WORKSPACE, "attention workspace", DTP_OWNER_WORKSPACE,
                     x->rules.attention_backward_workspace_bytes, DTP_UPDATE | DTP_FREE);
    draft.op.demand.tokens = (double)x->rules.tokens;
    draft.op.demand.flops = DTP_ATTENTION_BACKWARD_FLOPS * dtp_executor_attention_flops(x);
    draft.op.demand.kernels = DTP_EXECUTOR_ATTENTION_BACKWARD_LAUNCHES;
    dtp_executor_end(x, &draft);
    return gradient;
}

dtp_buffer_id dtp_executor_attention_backward(struct dtp_executor *x, const struct dtp_executor_core *core)
{
    if (!dtp_executor_shares_sequence(x))
        return core_backward(x, core);
    return dtp_executor_exchanges_heads(x) ? dtp_executor_exchange_backward(x, core)
                                           : dtp_executor_context_backward(x, core);
}
