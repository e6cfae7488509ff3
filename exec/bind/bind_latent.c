/* Arguments of what packs the heads of latent attention, and of its backward: roles and shapes of lower_executor.h. */
#include "bind/binder.h"

/* Columns of a latent's row, the last of which are the part of the keys that all heads share; below, columns of a token
 * in what was projected up from it: keys' own parts and values of all heads. */
static uint32_t latent_row(const struct dtp_binder *b)
{
    return b->op->demand->k < UINT32_MAX ? (uint32_t)b->op->demand->k : UINT32_MAX;
}

static uint64_t keys_values_width(const struct dtp_binder *b)
{
    return (uint64_t)heads(b)->heads * (heads(b)->head_dim - width(b) + value_dim(b));
}

void dtp_bind_latent_room(struct dtp_binder *b)
{
    const bool backward = b->op->kind == DTP_OP_ROTARY_BACKWARD;
    const enum dtp_role packed = backward ? DTP_ROLE_GRADIENT : DTP_ROLE_RESULT;
    const enum dtp_role queries = backward ? DTP_ROLE_INPUT_GRADIENT : DTP_ROLE_INPUT;
    const uint32_t turned = width(b), tokens = sequence(b);
    const bool shapes = heads(b)->heads && heads(b)->kv_heads == heads(b)->heads && turned && turned % 2 == 0 &&
                        turned <= heads(b)->head_dim && turned <= latent_row(b);
    dtp_bind_demand(b, packed,
                    shapes && tokens && tokens <= INT32_MAX && rows(b) <= INT32_MAX && rows(b) % tokens == 0);
    if (b->missing) /* widths below are of these */
        return;
    dtp_bind_room_of(b, packed, rows(b), packed_width(b));
    dtp_bind_room_of(b, queries, rows(b), query_width(b));
    dtp_bind_room_of(b, DTP_ROLE_SAVED, rows(b), latent_row(b));
    dtp_bind_room_of(b, DTP_ROLE_KEYS, rows(b), keys_values_width(b));
    dtp_bind_room_of(b, DTP_ROLE_TABLES, tokens, turned);
    dtp_bind_alike(b, packed, queries);
    dtp_bind_alike(b, packed, DTP_ROLE_SAVED);
    dtp_bind_alike(b, packed, DTP_ROLE_KEYS);
}

void dtp_bind_latent_heads(struct dtp_binder *b, struct dtp_bound_op *out)
{
    const float *cosines = need(b, DTP_ROLE_TABLES);
    if (!cosines)
        return;
    const float *sines = cosines + (uint64_t)sequence(b) * (width(b) / 2);
    if (b->op->kind == DTP_OP_ROTARY) {
        out->kernel = DTP_KERNEL_latent_heads;
        out->arguments.latent_heads = (struct dtp_latent_heads_args){.queries = need(b, DTP_ROLE_INPUT),
                                                                     .latents = need(b, DTP_ROLE_SAVED),
                                                                     .keys_values = need(b, DTP_ROLE_KEYS),
                                                                     .packed = need(b, DTP_ROLE_RESULT),
                                                                     .cosines = cosines,
                                                                     .sines = sines,
                                                                     .rows = rows(b),
                                                                     .sequence = sequence(b),
                                                                     .heads = heads(b)->heads,
                                                                     .head_dim = heads(b)->head_dim,
                                                                     .rope_dim = width(b),
                                                                     .value_dim = value_dim(b),
                                                                     .latent_row = latent_row(b),
                                                                     .element = element_of(b, DTP_ROLE_RESULT)};
        return;
    }
    out->kernel = DTP_KERNEL_latent_heads_backward;
    out->arguments.latent_heads_backward =
        (struct dtp_latent_heads_backward_args){.packed = need(b, DTP_ROLE_GRADIENT),
                                                .queries = need(b, DTP_ROLE_INPUT_GRADIENT),
                                                .latents = need(b, DTP_ROLE_SAVED),
                                                .keys_values = need(b, DTP_ROLE_KEYS),
                                                .cosines = cosines,
                                                .sines = sines,
                                                .rows = rows(b),
                                                .sequence = sequence(b),
                                                .heads = heads(b)->heads,
                                                .head_dim = heads(b)->head_dim,
                                                .rope_dim = width(b),
                                                .value_dim = value_dim(b),
                                                .latent_row = latent_row(b),
                                                .element = element_of(b, DTP_ROLE_GRADIENT)};
}
