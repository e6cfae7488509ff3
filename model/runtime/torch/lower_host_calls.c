/* The host's Python in programs of PyTorch: it holds the device up where kernels are short, in stages, whose ranks wait
 * for each other's hosts, and behind splits that it waited for, when nothing is queued. */
#include "lower/lowering.h"
#include "plan/host_calls.h"
#include "runtime/torch/torch.h"

void dtp_torch_call_compiled(struct dtp_lowering *l)
{
    if (l->layer == DTP_NO_LAYER)
        return;
    bool experts = dtp_transformer_layer_has_experts(l->transformer, dtp_lower_layer_of_model(l, l->layer));
    dtp_lower_call_host(l, DTP_OP_HOST_CALL, dtp_plan_compiled_calls(l->plan, l->transformer, experts));
}

/* Trainer's `torch.isnan(loss) or torch.isinf(loss)` behind the backward of each micro-step: one kernel and two, each
 * time a byte that is copied to the host, which waits for it (transformers/trainer.py, logging_nan_inf_filter). */
void dtp_torch_await_loss(struct dtp_lowering *l)
{
    struct dtp_draft draft;
    if (!l->plan->runtime->reads_losses || l->plan->unread_loss)
        return;
    for (uint32_t kernels = 1; kernels <= 2; kernels++) {
        dtp_draft_begin(l, &draft, DTP_OP_LOSS, "whether the loss is a number");
        dtp_draft_after(&draft, l->last_op[DTP_STREAM_REDUCE]);
        dtp_draft_memory(l, &draft, 0, kernels + 1);
        dtp_draft_end(l, &draft);
        dtp_draft_begin(l, &draft, DTP_OP_HOST_WAIT, "loss");
        draft.op.stream = DTP_STREAM_HOST;
        dtp_draft_after(&draft, l->last_op[DTP_STREAM_COMPUTE]);
        dtp_draft_end(l, &draft);
    }
}
