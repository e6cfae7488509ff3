#include "runtime/torch/lower_foreach.h"

#include "plan/optimizer_state.h"

dtp_buffer_id dtp_lower_foreach_begin(struct dtp_lowering *l, uint64_t elements)
{
    uint64_t bytes = dtp_optimizer_scratch_bytes(l->transformer, l->plan, elements);
    const char *name = l->plan->optimizer == DTP_ADAMW_FOREACH ? "square roots of moments" : "estimates of moments";
    if (!bytes)
        return DTP_NO_BUFFER;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ALLOC, "");
    dtp_buffer_id made = dtp_draft_new(l, &draft, name, DTP_OWNER_WORKSPACE, bytes, 0);
    dtp_draft_end(l, &draft);
    return made;
}

void dtp_lower_foreach_end(struct dtp_lowering *l, dtp_buffer_id made)
{
    if (made.index == DTP_NO_INDEX)
        return;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_FREE, "");
    dtp_draft_use(&draft, made, DTP_FREE);
    dtp_draft_end(l, &draft);
}
