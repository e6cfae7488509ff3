/* What stands between the projections of latent attention, as transformers' modeling_deepseek_v3.py and torchtitan's
 * models/deepseek_v3/model.py have it in PyTorch. Of a token: H heads, of keys dn + dr wide (dr of it turned by rope),
 * of values dv; latents of q and kv; c bytes of the compute dtype.
 *
 *   norm    of each latent, RMSNorm over it alone; that of kv leaves out the dr that rope turns
 *   heads   rope of H dr of queries and of dr of keys, in the forms that rotary knows; cat of queries (H (dn + dr));
 *           cat of keys, whose dr is expanded to all heads; values stay a view of what was projected, so that all of it
 *           is saved, or are padded with zeros
 *
 * Compiled, heads of queries, of keys and padded values are a pass each. Backward: split's gradient puts both parts of
 * queries together; dn of keys and values together are what was projected; dr of keys is summed over heads. */
#include "lower/block_backward.h"
#include "lower/block_forward.h"

struct widths {
    double c, q, turned, keys, shared, values, projected, kv;
};

/* Elements of a token: q = H (dn + dr), turned = H dr, keys = q, shared = dr, values = H dv, projected = H (dn + dv).
 */
static struct widths widths_of(const struct dtp_lowering *l)
{
    const struct dtp_layer_kind *k = &l->tensors.kind;
    double turned = (double)(k->heads * k->rope_head_dim);
    return (struct widths){.c = (double)l->compute,
                           .q = (double)k->d_q,
                           .turned = turned,
                           .keys = (double)k->d_q,
                           .shared = (double)k->rope_head_dim,
                           .values = (double)k->d_core,
                           .projected = (double)(k->d_q + k->d_core) - turned,
                           .kv = (double)(k->kv_latent + k->rope_head_dim)};
}

static enum dtp_layer_tensor wide_of(enum dtp_layer_tensor latent)
{
    return latent == DTP_TENSOR_Q_LATENT ? DTP_TENSOR_WIDE_Q_LATENT : DTP_TENSOR_WIDE_KV_LATENT;
}

/* Elements that the norm is over. */
static double normed(const struct dtp_lowering *l, const struct dtp_layer_operator *op)
{
    return (double)dtp_layer_tensor_width(&l->tensors.kind, dtp_layer_first(op->makes));
}

/* Rope in the runtime's form, as in the closed form: bytes that an element of it moves, and launches. */
static double rope_bytes(const struct dtp_lowering *l, bool backward)
{
    return l->plan->rope_fp32 ? (backward ? 52 : 48) : 10 * (double)l->compute;
}

static uint32_t rope_kernels(const struct dtp_lowering *l, bool backward)
{
    return l->plan->rope_fp32 ? (backward ? 24 : 20) : (backward ? 12 : 10);
}

/* Beside the queries: as rotary_workspace of lower_forward.c, of the part that is turned. */
static void rope_workspace(struct dtp_lowering *l, struct dtp_draft *draft, bool backward)
{
    uint64_t turned = dtp_backward_token_bytes(l, l->compute * l->tensors.kind.heads * l->tensors.kind.rope_head_dim);
    uint64_t times = l->compute == 4 ? 2 : l->plan->rope_fp32 && !backward ? 6 : 5;
    if (!l->fused)
        dtp_draft_new(l, draft, "rotary workspace", DTP_OWNER_WORKSPACE, dtp_bytes_product(times, turned),
                      DTP_UPDATE | DTP_FREE);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* c w in, c w out; under eager autocast a cast before (c + 4), in fp32 (4 + 4), a cast behind (4 + c). */
void dtp_forward_latent_norm(const struct pass *pass, const struct dtp_layer_operator *op)
{
    struct dtp_lowering *l = pass->l;
    enum dtp_layer_tensor latent = dtp_layer_first(op->reads), result = dtp_layer_first(op->makes);
    if (!wanted(pass, result))
        return;
    double c = (double)l->compute, width = normed(l, op);
    bool casts = l->tensor_bytes[wide_of(latent)];
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_NORM, op->name);
    make(pass, &draft, wide_of(latent));
    make(pass, &draft, dtp_layer_first(op->statistics));
    make(pass, &draft, result);
    if (casts)
        dtp_draft_new(l, &draft, "latent normed in fp32", DTP_OWNER_WORKSPACE,
                      dtp_backward_token_bytes(l, (uint64_t)(4 * width)), DTP_UPDATE | DTP_FREE);
    read(pass, &draft, latent, latent == DTP_TENSOR_Q_LATENT); /* heads read the other's rest */
    dtp_draft_memory(l, &draft, per_token(l, (casts ? 2 * (c + 4) + 8 : 2 * c) * width), casts ? 3 : 1);
    dtp_draft_end(l, &draft);
}

void dtp_forward_latent_heads(const struct pass *pass)
{
    struct dtp_lowering *l = pass->l;
    struct widths w = widths_of(l);
    if (!wanted(pass, DTP_TENSOR_Q))
        return;
    bool pads = l->tensors.kind.pads_values, own = l->tensors.kind.own_values;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ROTARY, "heads");
    make(pass, &draft, DTP_TENSOR_Q);
    make(pass, &draft, DTP_TENSOR_K);
    make(pass, &draft, DTP_TENSOR_V);
    rope_workspace(l, &draft, false);
    read(pass, &draft, DTP_TENSOR_Q_RAW, true);
    read(pass, &draft, DTP_TENSOR_KV_LATENT, true);
    read(pass, &draft, DTP_TENSOR_KV_RAW, own);
    double rope = l->fused ? 0 : rope_bytes(l, false) * (w.turned + w.shared);
    double queries = 2 * w.c * w.q, keys = l->fused ? w.c * (2 * w.keys - w.turned + w.shared) : 2 * w.c * w.keys;
    double values = pads ? w.c * (w.values + w.q) : own ? 2 * w.c * w.values : 0;
    dtp_draft_memory(l, &draft, per_token(l, rope + queries + keys + values),
                     (l->fused ? 2 : 2 + rope_kernels(l, false)) + (own ? 1u : 0));
    dtp_draft_end(l, &draft);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* The gradient of the core's result, of values' width, with zeros to the width that the kernel knows. */
void dtp_backward_latent_pad(struct dtp_block_backward *b)
{
    struct dtp_lowering *l = b->l;
    struct widths w = widths_of(l);
    if (!l->tensors.kind.pads_values)
        return;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_COPY_IN, "padded gradient");
    dtp_buffer_id padded = dtp_backward_workspace(l, &draft, "padded gradient",
                                                  dtp_backward_token_bytes(l, l->compute * l->d_v), DTP_WRITE);
    dtp_draft_use(&draft, b->gradient[DTP_TENSOR_CORE_COPY], DTP_READ | DTP_FREE);
    b->gradient[DTP_TENSOR_CORE_COPY] = padded;
    dtp_draft_memory(l, &draft, dtp_backward_per_token(l, w.c * (w.values + w.q)), 1);
    dtp_draft_end(l, &draft);
}

/* The gradient of queries as they were projected, of what was projected up of kv, and of the keys' part that all heads
 * share, summed over these. Where rope is a kernel of its own, the gradient of all that it turns is made first. */
void dtp_backward_latent_heads(struct dtp_block_backward *b)
{
    struct dtp_lowering *l = b->l;
    struct widths w = widths_of(l);
    uint64_t q = dtp_backward_token_bytes(l, l->compute * l->d_q);
    uint64_t projected =
        dtp_backward_token_bytes(l, l->compute * dtp_layer_tensor_width(&l->tensors.kind, DTP_TENSOR_KV_RAW));
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ROTARY_BACKWARD, "heads");
    dtp_buffer_id queries = dtp_backward_workspace(l, &draft, "q projection gradient", q, DTP_WRITE);
    b->gradient[DTP_TENSOR_KV_RAW] =
        dtp_backward_workspace(l, &draft, "keys and values gradient", projected, DTP_WRITE);
    b->gradient[DTP_TENSOR_KV_LATENT] =
        dtp_backward_workspace(l, &draft, "shared key gradient",
                               dtp_backward_token_bytes(l, l->compute * l->tensors.kind.rope_head_dim), DTP_WRITE);
    rope_workspace(l, &draft, true);
    dtp_draft_use(&draft, b->gradient[DTP_TENSOR_Q_RAW], DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, b->gradient[DTP_TENSOR_K_RAW], DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, b->gradient[DTP_TENSOR_V], DTP_READ | DTP_FREE);
    b->gradient[DTP_TENSOR_Q_RAW] = queries;
    b->gradient[DTP_TENSOR_K_RAW] = b->gradient[DTP_TENSOR_V] = DTP_NO_BUFFER;
    double rope = l->fused ? 0 : rope_bytes(l, true) * (w.turned + w.shared);
    double bytes = w.c * (2 * w.q + 2 * w.projected + w.turned + w.shared);
    dtp_draft_memory(l, &draft, dtp_backward_per_token(l, rope + bytes), l->fused ? 3 : 3 + rope_kernels(l, true));
    dtp_draft_end(l, &draft);
}

/* Input gradient 3 c w, weight gradient 2 c w, fused in one pass of 3 c w; under eager autocast in fp32 with a cast to
 * and fro. That of kv is put together with the keys' shared part: 2 c (kv + dr), compiled in the same pass. */
void dtp_backward_latent_norm(struct dtp_block_backward *b)
{
    struct dtp_lowering *l = b->l;
    const struct dtp_layer_operator *op = dtp_backward_operator(b);
    enum dtp_layer_tensor latent = dtp_layer_first(op->reads), result = dtp_layer_first(op->makes);
    bool shared = latent == DTP_TENSOR_KV_LATENT, casts = l->tensor_bytes[wide_of(latent)];
    double c = (double)l->compute, e = casts ? 4 : c, width = normed(l, op);
    uint64_t all = dtp_layer_tensor_width(&l->tensors.kind, latent);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_NORM_BACKWARD, op->name);
    if (!l->fused)
        dtp_backward_workspace(l, &draft, "latent gradient in parts",
                               dtp_backward_token_bytes(l, (uint64_t)((casts    ? 8
                                                                       : shared ? c
                                                                                : 0) *
                                                                      width)),
                               DTP_UPDATE | DTP_FREE);
    dtp_buffer_id made =
        dtp_backward_workspace(l, &draft, "latent gradient", dtp_backward_token_bytes(l, l->compute * all), DTP_WRITE);
    dtp_draft_use(&draft, b->gradient[result], DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, b->gradient[latent], DTP_READ | DTP_FREE);
    b->gradient[result] = DTP_NO_BUFFER;
    b->gradient[latent] = made;
    dtp_backward_consume(b, &draft, wide_of(latent), DTP_READ | DTP_FREE);
    dtp_backward_consume(b, &draft, latent, DTP_READ | DTP_FREE);
    dtp_backward_consume(b, &draft, dtp_layer_first(op->statistics), DTP_READ | DTP_FREE);
    double bytes = l->fused ? 3 * c * width : (5 * e + (casts ? 2 * (4 + c) : 0)) * width;
    double join = shared && !l->fused ? 2 * c * (double)all : 0;
    dtp_draft_memory(l, &draft, dtp_backward_per_token(l, bytes + join),
                     (l->fused ? 2u
                      : casts  ? 4u
                               : 2u) +
                         (shared && !l->fused ? 1u : 0));
    dtp_draft_end(l, &draft);
}
