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
 * queries together; dn of keys and values together are what was projected; dr of keys is summed over heads.
 *
 * Of tensor parallel ranks that share out the tokens each has latents of its own, by matrices that all have whole. What
 * is projected up is cut by columns, for its heads, and reads the latents of all (lower_tensor_parallel.c); of keys' dr
 * those of all tokens are gathered here, and its gradient's terms summed back (Megatron-Core's
 * multi_latent_attention.py, k_pos_emb). torchtitan's project down the rows of all (NoParallel of wkv_a, wq_a and the
 * norms), so that each has whole latents; terms of their gradients are summed in each rank. */
#include "base/bytes.h"
#include "lower/block_backward.h"
#include "lower/block_forward.h"
#include "lower/lower_graphs.h"

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

static uint64_t latent_parts(const struct dtp_lowering *l)
{
    return l->tensors.kind.routes_all ? 1 : dtp_lower_token_parts(l);
}

/* Of a token's so many elements those that a rank has, where each has other tokens. */
static double own(const struct dtp_lowering *l, uint64_t width)
{
    return (double)width / (double)latent_parts(l);
}

static uint64_t own_bytes(const struct dtp_lowering *l, uint64_t token_bytes)
{
    return dtp_divide_up(dtp_backward_token_bytes(l, token_bytes), latent_parts(l));
}

/* Elements that the norm is over. */
static uint64_t normed(const struct dtp_lowering *l, const struct dtp_layer_operator *op)
{
    return dtp_layer_tensor_width(&l->tensors.kind, dtp_layer_first(op->makes));
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

/* Of queries and of keys so many kernels more, one launched behind the other. */
static void turn_by_operators(struct dtp_draft *draft, uint32_t kernels)
{
    draft->op.demand.memory_kernel = DTP_KERNEL_EAGER;
    dtp_draft_loop(draft, 1, draft->op.demand.kernels + 2 * kernels);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* c w in, c w out; under eager autocast a cast before (c + 4), in fp32 (4 + 4), a cast behind (4 + c). */
void dtp_forward_latent_norm(const struct pass *pass, const struct dtp_layer_operator *op)
{
    struct dtp_lowering *l = pass->l;
    enum dtp_layer_tensor latent = dtp_layer_first(op->reads), result = dtp_layer_first(op->makes);
    if (!wanted(pass, result))
        return;
    double c = (double)l->compute, width = own(l, normed(l, op));
    bool casts = l->tensor_bytes[wide_of(latent)];
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_NORM, op->name);
    make(pass, &draft, wide_of(latent));
    make(pass, &draft, dtp_layer_first(op->statistics));
    make(pass, &draft, result);
    if (casts)
        dtp_draft_new(l, &draft, "latent normed in fp32", DTP_OWNER_WORKSPACE, own_bytes(l, 4 * normed(l, op)),
                      DTP_UPDATE | DTP_FREE);
    read(pass, &draft, latent, latent == DTP_TENSOR_Q_LATENT); /* heads read the other's rest */
    dtp_draft_memory(l, &draft, per_token(l, (casts ? 2 * (c + 4) + 8 : 2 * c) * width), casts ? 3 : 1);
    dtp_draft_end(l, &draft);
}

/* The keys' part that all heads share, of all ranks' tokens. */
static uint64_t shared_bytes(const struct dtp_lowering *l)
{
    return dtp_backward_token_bytes(l, l->compute * l->tensors.kind.rope_head_dim);
}

static dtp_buffer_id gather_shared(const struct pass *pass)
{
    struct dtp_lowering *l = pass->l;
    struct dtp_draft draft;
    if (!dtp_lower_spreads(l) || l->tensors.kind.routes_all)
        return DTP_NO_BUFFER;
    dtp_draft_begin(l, &draft, DTP_OP_ALL_GATHER, "shared keys");
    read(pass, &draft, DTP_TENSOR_KV_LATENT, false);
    return dtp_lower_gather_rows(l, &draft, DTP_OWNER_WORKSPACE, shared_bytes(l), NULL);
}

void dtp_forward_latent_heads(const struct pass *pass)
{
    struct dtp_lowering *l = pass->l;
    struct widths w = widths_of(l);
    if (!wanted(pass, DTP_TENSOR_Q))
        return;
    dtp_buffer_id shared = gather_shared(pass);
    bool pads = l->tensors.kind.pads_values, own = l->tensors.kind.own_values;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ROTARY, "heads");
    make(pass, &draft, DTP_TENSOR_Q);
    make(pass, &draft, DTP_TENSOR_K);
    make(pass, &draft, DTP_TENSOR_V);
    rope_workspace(l, &draft, false);
    read(pass, &draft, DTP_TENSOR_Q_RAW, true);
    dtp_draft_use(&draft, shared, DTP_READ | DTP_FREE);
    read(pass, &draft, DTP_TENSOR_KV_LATENT, true);
    read(pass, &draft, DTP_TENSOR_KV_RAW, own);
    bool eager = dtp_plan_turns_latents_eagerly(l->plan, &l->tensors.kind), fused = l->fused && !eager;
    double rope = eager ? DTP_LATENT_TURN_PASSES * w.c : l->fused ? 0 : rope_bytes(l, false);
    double queries = 2 * w.c * w.q, keys = fused ? w.c * (2 * w.keys - w.turned + w.shared) : 2 * w.c * w.keys;
    double values = pads ? w.c * (w.values + w.q) : own ? 2 * w.c * w.values : 0;
    dtp_draft_memory(l, &draft, per_token(l, rope * (w.turned + w.shared) + queries + keys + values),
                     (l->fused ? 2 : 2 + rope_kernels(l, false)) + (own ? 1u : 0));
    if (eager)
        turn_by_operators(&draft, DTP_LATENT_TURN_KERNELS);
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
    dtp_buffer_id shared = dtp_backward_workspace(l, &draft, "shared key gradient", shared_bytes(l), DTP_WRITE);
    b->gradient[DTP_TENSOR_KV_LATENT] = shared;
    rope_workspace(l, &draft, true);
    dtp_draft_use(&draft, b->gradient[DTP_TENSOR_Q_RAW], DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, b->gradient[DTP_TENSOR_K_RAW], DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, b->gradient[DTP_TENSOR_V], DTP_READ | DTP_FREE);
    b->gradient[DTP_TENSOR_Q_RAW] = queries;
    b->gradient[DTP_TENSOR_K_RAW] = b->gradient[DTP_TENSOR_V] = DTP_NO_BUFFER;
    bool eager = dtp_plan_turns_latents_eagerly(l->plan, &l->tensors.kind);
    double rope = eager ? DTP_LATENT_TURN_PASSES_BACK * w.c : l->fused ? 0 : rope_bytes(l, true);
    double bytes = w.c * (2 * w.q + 2 * w.projected + w.turned + w.shared) + rope * (w.turned + w.shared);
    dtp_draft_memory(l, &draft, dtp_backward_per_token(l, bytes), l->fused ? 3 : 3 + rope_kernels(l, true));
    if (eager)
        turn_by_operators(&draft, DTP_LATENT_TURN_KERNELS_BACK);
    dtp_draft_end(l, &draft);
    if (dtp_lower_spreads(l) && l->tensors.kind.routes_all)
        b->gradient[DTP_TENSOR_KV_LATENT] = dtp_backward_sum_shared_keys(b, shared, shared_bytes(l));
    else if (dtp_lower_spreads(l))
        b->gradient[DTP_TENSOR_KV_LATENT] =
            dtp_lower_sum_of_rows(l, "shared keys", shared, DTP_READ | DTP_FREE, l->tensors.kind.rope_head_dim);
}

/* Input gradient 3 c w, weight gradient 2 c w, fused in one pass of 3 c w; under eager autocast in fp32 with a cast to
 * and fro. That of kv is put together with the keys' shared part: 2 c (kv + dr), compiled in the same pass. */
void dtp_backward_latent_norm(struct dtp_block_backward *b)
{
    struct dtp_lowering *l = b->l;
    const struct dtp_layer_operator *op = dtp_backward_operator(b);
    enum dtp_layer_tensor latent = dtp_layer_first(op->reads), result = dtp_layer_first(op->makes);
    bool shared = latent == DTP_TENSOR_KV_LATENT, casts = l->tensor_bytes[wide_of(latent)];
    double c = (double)l->compute, e = casts ? 4 : c, width = own(l, normed(l, op));
    uint64_t in_parts = (casts ? 8 : shared ? l->compute : 0) * normed(l, op);
    uint64_t all = dtp_layer_tensor_width(&l->tensors.kind, latent);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_NORM_BACKWARD, op->name);
    if (!l->fused)
        dtp_backward_workspace(l, &draft, "latent gradient in parts", own_bytes(l, in_parts), DTP_UPDATE | DTP_FREE);
    dtp_buffer_id made =
        dtp_backward_workspace(l, &draft, "latent gradient", own_bytes(l, l->compute * all), DTP_WRITE);
    dtp_draft_use(&draft, b->gradient[result], DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, b->gradient[latent], DTP_READ | DTP_FREE);
    b->gradient[result] = DTP_NO_BUFFER;
    b->gradient[latent] = made;
    dtp_backward_consume(b, &draft, wide_of(latent), DTP_READ | DTP_FREE);
    dtp_backward_consume(b, &draft, latent, DTP_READ | DTP_FREE);
    dtp_backward_consume(b, &draft, dtp_layer_first(op->statistics), DTP_READ | DTP_FREE);
    double bytes = l->fused ? 3 * c * width : (5 * e + (casts ? 2 * (4 + c) : 0)) * width;
    double join = shared && !l->fused ? 2 * c * own(l, all) : 0;
    dtp_draft_memory(l, &draft, dtp_backward_per_token(l, bytes + join),
                     (l->fused ? 2u
                      : casts  ? 4u
                               : 2u) +
                         (shared && !l->fused ? 1u : 0));
    dtp_draft_end(l, &draft);
}
