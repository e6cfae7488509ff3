#include "runtime/torch/lower_foreach.h"

dtp_buffer_id dtp_lower_foreach_begin(struct dtp_lowering *l, uint64_t elements)
{
    if (l->plan->optimizer != DTP_ADAMW_FOREACH || l->plan->offload != DTP_OFFLOAD_NONE)
        return DTP_NO_BUFFER;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ALLOC, "");
    dtp_buffer_id roots = dtp_draft_new(l, &draft, "square roots of moments", DTP_OWNER_WORKSPACE,
                                        dtp_dtype_bytes(l->plan->precision.moments) * elements, 0);
    dtp_draft_end(l, &draft);
    return roots;
}

void dtp_lower_foreach_end(struct dtp_lowering *l, dtp_buffer_id roots)
{
    if (roots.index == DTP_NO_INDEX)
        return;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_FREE, "");
    dtp_draft_use(&draft, roots, DTP_FREE);
    dtp_draft_end(l, &draft);
}
