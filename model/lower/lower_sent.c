/* When what a stage has sent may go, where sends run beside the passes.
 *
 * Waiting for a send might be waiting for ever: the rank that takes it may first need what this one makes later. So it
 * goes when a pass begins that takes something which the other rank has made behind taking it: that it was taken is
 * known then, and nobody waits. What no such pass follows, as gradients of the drain, goes at the end of the step. */
#include "lower/lowering.h"

/* Where a pass stands in the list of its rank: a forward, or the backward that makes its input's gradient. */
static uint32_t *place_of(const struct dtp_lowering *l, uint32_t rank, uint32_t chunk, uint32_t micro_batch,
                          bool backward)
{
    const struct dtp_schedule_shape *shape = &l->role.pipeline->schedule->shape;
    size_t index = ((size_t)rank * shape->chunks + chunk) * shape->micro_batches + micro_batch;
    return &l->pass_at[2 * index + backward];
}

enum dtp_status dtp_lower_sent_make(struct dtp_lowering *l)
{
    const struct dtp_schedule *schedule = l->role.pipeline->schedule;
    const struct dtp_schedule_shape *shape = &schedule->shape;
    size_t places = (size_t)shape->ranks * shape->chunks * shape->micro_batches;
    l->kept_sent = dtp_host_arena_take(&l->arena, l->role.pass_count, sizeof *l->kept_sent);
    l->pass_at = dtp_host_arena_take_zeroed(&l->arena, 2 * places, sizeof *l->pass_at);
    if (!l->kept_sent || !l->pass_at)
        return dtp_fault(l->faults, DTP_ENVIRONMENT, NULL, 0, "no memory to lower the step");
    for (uint32_t rank = 0; rank < shape->ranks; rank++)
        for (uint32_t i = schedule->first[rank]; i < schedule->first[rank + 1]; i++) {
            const struct dtp_pass *pass = &schedule->passes[i];
            if (pass->kind != DTP_PASS_WEIGHT)
                *place_of(l, rank, pass->chunk, pass->micro_batch, pass->kind != DTP_PASS_FORWARD) =
                    i - schedule->first[rank];
        }
    return DTP_OK;
}

/* The first pass of this rank that takes what was made behind taking what pass `i` gave. */
static uint32_t shown_by(const struct dtp_lowering *l, uint32_t i)
{
    const struct dtp_pass *passes = l->role.passes;
    struct dtp_stage_place to, from;
    if (!dtp_lower_given_to(l, &passes[i], &to))
        return DTP_LOWER_STEP_END;
    uint32_t taken = *place_of(l, to.rank, to.chunk, passes[i].micro_batch, passes[i].kind != DTP_PASS_FORWARD);
    for (uint32_t k = i + 1; k < l->role.pass_count; k++)
        if (dtp_lower_taken_from(l, &passes[k], &from) && from.rank == to.rank &&
            *place_of(l, from.rank, from.chunk, passes[k].micro_batch, passes[k].kind != DTP_PASS_FORWARD) >= taken)
            return k;
    return DTP_LOWER_STEP_END;
}

void dtp_lower_keep_sent(struct dtp_lowering *l, uint32_t i, dtp_buffer_id rows, dtp_op_id sent)
{
    l->kept_sent[l->kept_sent_count++] = (struct dtp_lower_sent){rows, sent, shown_by(l, i)};
}

void dtp_lower_let_sent_go(struct dtp_lowering *l, uint32_t i)
{
    uint32_t left = 0;
    for (uint32_t k = 0; k < l->kept_sent_count; k++) {
        struct dtp_lower_sent sent = l->kept_sent[k];
        struct dtp_draft draft;
        if (i != DTP_LOWER_STEP_END && sent.until > i) {
            l->kept_sent[left++] = sent;
            continue;
        }
        dtp_draft_begin(l, &draft, DTP_OP_FREE, "sent");
        dtp_draft_use(&draft, sent.rows, DTP_FREE);
        dtp_draft_after(&draft, sent.sent);
        dtp_draft_end(l, &draft);
    }
    l->kept_sent_count = left;
}
