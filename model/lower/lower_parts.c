/* Rows between stages where a tensor parallel rank sends a part of them and its runtime copies what a stage takes:
 * DeepSpeed's pipeline engine (runtime/pipe/engine.py; PartitionedTensor in runtime/utils.py), with tp above 1.
 *
 * Received is a part, into a buffer that stands; of activations a copy is made as it comes (_exec_recv_activations) and
 * another as the pass begins (_exec_forward_pass). Both go when the rows have been gathered.
 *
 * Gathered is into zeros, and the whole is copied once more: full().
 *
 * Sent is a copy of the part. Of a forward's result nothing else is left, for its backward gathers it again, before it
 * gathers its gradient (_exec_backward_pass); both stand until that is through. */
#include "lower/lower_parts.h"

#include "base/bytes.h"

uint64_t dtp_lower_part_bytes(const struct dtp_lowering *l)
{
    return dtp_divide_up(l->tensor_bytes[DTP_TENSOR_INPUT], l->tp);
}

dtp_buffer_id dtp_lower_copy(struct dtp_lowering *l, const char *name, dtp_buffer_id rows, uint32_t access,
                             uint64_t bytes, enum dtp_owner owner)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_COPY_IN, name);
    dtp_draft_use(&draft, rows, access);
    dtp_buffer_id copy = dtp_draft_new(l, &draft, name, owner, bytes, DTP_WRITE);
    dtp_draft_memory(l, &draft, 2 * (double)bytes, 1);
    dtp_draft_end(l, &draft);
    return copy;
}

/* `access` of the part: what is let go with it. */
static dtp_buffer_id gather(struct dtp_lowering *l, const char *name, const char *whole, dtp_buffer_id part,
                            uint32_t access, enum dtp_owner owner)
{
    uint64_t bytes = l->tensor_bytes[DTP_TENSOR_INPUT];
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ZERO, "gathered rows");
    dtp_buffer_id zeros = dtp_draft_new(l, &draft, "gathered rows", DTP_OWNER_WORKSPACE, bytes, DTP_WRITE);
    dtp_draft_memory(l, &draft, (double)bytes, 1);
    dtp_draft_end(l, &draft);
    dtp_draft_begin(l, &draft, DTP_OP_ALL_GATHER, name);
    dtp_draft_use(&draft, part, DTP_READ);
    dtp_draft_use(&draft, zeros, DTP_UPDATE);
    l->awaited = dtp_lower_tensor_end(l, &draft, bytes, false);
    dtp_buffer_id rows = dtp_lower_copy(l, whole, zeros, DTP_READ | DTP_FREE, bytes, owner);
    if (access & DTP_FREE) {
        dtp_draft_begin(l, &draft, DTP_OP_FREE, "parts");
        dtp_draft_use(&draft, part, DTP_FREE);
        dtp_draft_end(l, &draft);
    }
    return rows;
}

dtp_buffer_id dtp_lower_whole_rows(struct dtp_lowering *l, dtp_buffer_id standing)
{
    struct dtp_draft draft;
    uint64_t bytes = dtp_lower_part_bytes(l);
    dtp_buffer_id kept = dtp_lower_copy(l, "received activations", standing, DTP_READ, bytes, DTP_OWNER_ACTIVATIONS);
    dtp_buffer_id part = dtp_lower_copy(l, "part of rows", kept, DTP_READ, bytes, DTP_OWNER_ACTIVATIONS);
    dtp_buffer_id rows = gather(l, "activations", dtp_layer_tensor_text(DTP_TENSOR_INPUT), part, DTP_READ | DTP_FREE,
                                DTP_OWNER_ACTIVATIONS);
    dtp_draft_begin(l, &draft, DTP_OP_FREE, "parts");
    dtp_draft_use(&draft, kept, DTP_FREE);
    dtp_draft_end(l, &draft);
    return rows;
}

dtp_buffer_id dtp_lower_whole_gradient(struct dtp_lowering *l, dtp_buffer_id standing)
{
    struct dtp_flight *f = l->flight;
    f->received = gather(l, "result", "result again", f->result, DTP_READ, DTP_OWNER_ACTIVATIONS);
    return gather(l, "gradients", "residual gradient", standing, DTP_READ, DTP_OWNER_WORKSPACE);
}

dtp_buffer_id dtp_lower_part_of(struct dtp_lowering *l, dtp_buffer_id rows)
{
    bool forward = l->pass->kind == DTP_PASS_FORWARD, stays = rows.index == l->flight->taken.index;
    return dtp_lower_copy(l, "part of rows", rows, forward || !stays ? DTP_READ | DTP_FREE : DTP_READ,
                          dtp_lower_part_bytes(l), forward ? DTP_OWNER_ACTIVATIONS : DTP_OWNER_WORKSPACE);
}
