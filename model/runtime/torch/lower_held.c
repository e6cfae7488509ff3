/* FSDP1 around layers whose flat parameter is frozen. No gradient of it tells when to reshard, so a hook on the
 * gradients of the layer's inputs does (fsdp/_runtime_utils.py, _register_post_backward_reshard_only_hook, by
 * register_multi_grad_hook); under reentrant checkpoints these are the inputs of the replay, which the hook's closure
 * holds with their gradients until backward ends. Measured: 799,014 bytes a token of Mistral-7B with adapters on two
 * GPUs where one takes 734,727 (published_runs_3d_moe.csv, fa-062 and fa-064, fa-061 and fa-063). */
#include "runtime/torch/lower_units.h"

bool dtp_lower_hooks_hold(const struct dtp_lowering *l)
{
    return dtp_plan_hooks_hold(l->plan);
}

/* The layer's input and, once its own backward is through, the gradient of the next one's. */
void dtp_lower_hook_holds(struct dtp_lowering *l)
{
    dtp_buffer_id *held = dtp_lower_sharding_of(l)->hooked + 2 * (size_t)l->layer;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ALLOC, "held by a hook");
    uint64_t bytes = l->tensor_bytes[DTP_TENSOR_INPUT], above = l->layer + 1u < l->transformer->layers ? bytes : 0;
    held[0] = dtp_draft_new(l, &draft, "input of a replay", DTP_OWNER_ACTIVATIONS, bytes, 0);
    held[1] = dtp_draft_new(l, &draft, "gradient of an input", DTP_OWNER_ACTIVATIONS, above, 0);
    dtp_draft_end(l, &draft);
}

void dtp_lower_hooks_end(struct dtp_lowering *l)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_FREE, "held by hooks");
    for (uint64_t layer = 0; layer < l->transformer->layers; layer++) {
        dtp_buffer_id *held = dtp_lower_sharding_of(l)->hooked + 2 * layer;
        for (int i = 0; i < 2; i++) {
            dtp_draft_use(&draft, held[i], DTP_FREE);
            held[i] = DTP_NO_BUFFER;
        }
        dtp_draft_end(l, &draft);
        dtp_draft_begin(l, &draft, DTP_OP_FREE, "held by hooks");
    }
}
