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
