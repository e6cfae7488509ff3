/* What stands around the experts of DeepSpeed's own layer (moe/sharded_moe.py and experts.py of 0.19, no Tutel): each
 * expert has C slots for rows of a rank's T tokens, whether they are filled or not, so that ranks exchange as much with
 * each other. Neither dispatch nor combine is an einsum any more: with N = E C slots and r = N / (T k),
 *
 *   router     x in fp32, which is saved, times W in fp32; softmax, the k largest, whose place among its expert's slots
 *              is a cumulative sum over tokens; what has none is dropped
 *   encode     x stacked with a row of zeros, of which each slot takes its token's: [E, C, h] (index_select)
 *   experts    one after the other, each C slots of all ranks that exchange: where these came from others, each linear
 *              copies them from among the other experts'; results are put side by side, [E, C, h]
 *   decode     these stacked with a row of zeros, of which each token takes its own: [k, T, h], saved; times the
 *              weights, in fp32, and summed
 *
 * Exchanges are of equal parts and wait for nothing but compute; without drop_tokens C is the fullest expert's number
 * of rows on any rank that exchanges, a maximum of 8 bytes over these, and read by the host. Bytes are reads and writes
 * of a token, kernel by kernel; closed/expert_bytes.c counts them again. */
#include "base/bytes.h"
#include "lower/block_backward.h"
#include "lower/block_forward.h"
#include "lower/expert_rows.h"
#include "lower/lower_exchange_rows.h"

/* Of a token: bytes in the compute dtype of its k rows, of slots, of itself. */
struct slotted {
    double rows, slots, token, k, experts;
};

static struct slotted slotted_of(const struct dtp_lowering *l)
{
    const struct dtp_layer_kind *kind = &l->tensors.kind;
    double k = (double)kind->experts_per_token, token = (double)(l->compute * kind->hidden);
    return (struct slotted){k * token, k * token * l->tensors.sent, token, k, (double)kind->experts};
}

static uint64_t token_bytes(const struct dtp_lowering *l, uint64_t element_bytes)
{
    return dtp_bytes_product(l->tokens, element_bytes * l->tensors.kind.hidden);
}

/* Of all slots. */
static uint64_t slots_bytes(const struct dtp_lowering *l)
{
    const struct dtp_layer_kind *kind = &l->tensors.kind;
    return dtp_layer_sent(&l->tensors,
                          dtp_bytes_product(l->tokens, l->compute * kind->experts_per_token * kind->hidden));
}

static void draft_bytes(const struct dtp_lowering *l, struct dtp_draft *draft, double bytes_per_token, uint32_t kernels)
{
    dtp_draft_memory(l, draft, bytes_per_token * (double)l->tokens, kernels);
    draft->op.demand.memory_kernel = DTP_KERNEL_EAGER;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* Bytes for each of E experts, kernel by kernel. Top 1: softmax 8, argmax 4, one-hot 8, counted 8, two means 4 + 4 and
 * a cast 12, random numbers 4 and their product 16, the C largest 4, zeros 8, their product 24, a sum 8, its cumulative
 * sum 16, less one 16, weights 16 and their sum 4, places 24 and their sum 8. Top 2: Gumbel's noise 68 and its sum 12,
 * a second mask 22 and its argmax 4, all of masks twice. More: masks are of a byte. */
static double gating_bytes(const struct dtp_lowering *l)
{
    uint64_t k = l->tensors.kind.experts_per_token;
    return k == 1 ? 196 : k == 2 ? 442 : l->plan->deepspeed.drop_tokens ? 85 : 73;
}

static uint32_t gating_kernels(const struct dtp_lowering *l)
{
    uint64_t k = l->tensors.kind.experts_per_token;
    return k == 1 ? 30 : k == 2 ? 58 : 40;
}

/* So many slots each expert has: the most rows of any, among the ranks that exchange, on its way to the host. */
static void agree_on_slots(struct dtp_lowering *l)
{
    struct dtp_draft draft;
    dtp_op_id read = l->last_op[DTP_STREAM_COMPUTE];
    if (l->plan->deepspeed.drop_tokens)
        return;
    if (l->tensors.kind.exchanged) {
        dtp_draft_begin(l, &draft, DTP_OP_ALL_REDUCE, "slots");
        dtp_buffer_id most = dtp_draft_new(l, &draft, "slots", DTP_OWNER_WORKSPACE, 8, DTP_UPDATE);
        dtp_draft_after(&draft, read);
        draft.op.stream = DTP_STREAM_EXPERT;
        draft.op.group = l->expert_group;
        draft.op.demand.sent_bytes = 2 * (double)dtp_lower_ring(8, l->plan->ep);
        draft.op.demand.bytes = 8;
        draft.op.demand.kernels = 1;
        l->awaited = dtp_draft_end(l, &draft);
        dtp_draft_begin(l, &draft, DTP_OP_ROUTER, "slots");
        dtp_draft_use(&draft, most, DTP_READ | DTP_FREE);
        draft_bytes(l, &draft, 0, 2);
        read = dtp_draft_end(l, &draft);
    }
    dtp_draft_begin(l, &draft, DTP_OP_HOST_WAIT, "slots");
    draft.op.stream = DTP_STREAM_HOST;
    dtp_draft_after(&draft, read);
    dtp_draft_end(l, &draft);
}

/* x to fp32, (c + 4) h; gating; slots of the k routes some 100 k. */
void dtp_forward_slotted_router(const struct pass *pass)
{
    struct dtp_lowering *l = pass->l;
    struct slotted s = slotted_of(l);
    if (!wanted(pass, DTP_TENSOR_ROUTER_WEIGHTS) && !wanted(pass, DTP_TENSOR_ROUTES))
        return;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ROUTER, "");
    make(pass, &draft, DTP_TENSOR_ROUTER_INPUT);
    make(pass, &draft, DTP_TENSOR_ROUTER_WEIGHTS);
    make(pass, &draft, DTP_TENSOR_ROUTES);
    read(pass, &draft, DTP_TENSOR_ROUTER_SCORES, true);
    draft_bytes(l, &draft, gating_bytes(l) * s.experts + 100 * s.k + s.token + 4 * s.token / (double)l->compute,
                gating_kernels(l));
    dtp_draft_end(l, &draft);
    agree_on_slots(l);
}

/* Stacked 2 c h, taken 2 c h for each slot by places of 8 bytes that are written, put in order and read. From other
 * ranks: a copy for each linear that reads them. */
void dtp_forward_slotted_permute(const struct pass *pass, const struct dtp_layer_operator *op)
{
    struct dtp_lowering *l = pass->l;
    const struct dtp_layer_kind *kind = &l->tensors.kind;
    struct slotted s = slotted_of(l);
    if (!wanted(pass, DTP_TENSOR_PERMUTED))
        return;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_PERMUTE, kind->exchanged ? "by ranks" : "");
    make(pass, &draft, kind->exchanged ? DTP_TENSOR_SENT : DTP_TENSOR_PERMUTED);
    dtp_draft_new(l, &draft, "tokens and one of zeros", DTP_OWNER_WORKSPACE,
                  token_bytes(l, l->compute) + l->compute * kind->hidden, DTP_UPDATE | DTP_FREE);
    read(pass, &draft, dtp_layer_first(op->reads), true);
    read(pass, &draft, DTP_TENSOR_ROUTES, false);
    draft_bytes(l, &draft, 2 * s.token + 2 * s.slots + 24 * s.k * l->tensors.sent, 8);
    dtp_draft_end(l, &draft);
    if (!kind->exchanged)
        return;
    dtp_draft_begin(l, &draft, DTP_OP_ALL_TO_ALL, "dispatch");
    make(pass, &draft, DTP_TENSOR_RECEIVED);
    read(pass, &draft, DTP_TENSOR_SENT, false);
    dtp_lower_exchange_rows(l, &draft, dtp_lower_exchanged_bytes(l));
    let_go(pass, DTP_TENSOR_SENT);
    double copies = (double)dtp_layer_slot_copies(kind);
    dtp_draft_begin(l, &draft, DTP_OP_PERMUTE, "by experts");
    make(pass, &draft, DTP_TENSOR_PERMUTED);
    read(pass, &draft, DTP_TENSOR_RECEIVED, true);
    draft_bytes(l, &draft, copies * 2 * s.slots, (uint32_t)(copies * (double)kind->own_experts));
    dtp_draft_end(l, &draft);
}

/* Side by side 2 c h a slot. */
static void join(const struct pass *pass)
{
    struct dtp_lowering *l = pass->l;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_UNPERMUTE, "by ranks");
    make(pass, &draft, DTP_TENSOR_RETURNING);
    read(pass, &draft, DTP_TENSOR_EXPERT_DOWN, true);
    draft_bytes(l, &draft, 2 * slotted_of(l).slots, 1);
    dtp_draft_end(l, &draft);
    if (!l->tensors.kind.exchanged)
        return;
    dtp_draft_begin(l, &draft, DTP_OP_ALL_TO_ALL, "combine");
    make(pass, &draft, DTP_TENSOR_RETURNED);
    read(pass, &draft, DTP_TENSOR_RETURNING, false);
    dtp_lower_exchange_rows(l, &draft, dtp_lower_exchanged_bytes(l));
    let_go(pass, DTP_TENSOR_RETURNING);
}

/* Stacked 2 c h a slot, taken 2 c k h; times the weights (c + 4) k h, summed 4 k h + 4 h, cast (4 + c) h. */
void dtp_forward_slotted_unpermute(const struct pass *pass)
{
    struct dtp_lowering *l = pass->l;
    const struct dtp_layer_kind *kind = &l->tensors.kind;
    struct slotted s = slotted_of(l);
    double wide = 4 / (double)l->compute;
    if (!wanted(pass, DTP_TENSOR_DOWN) && !wanted(pass, DTP_TENSOR_UNPERMUTED))
        return;
    join(pass);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_UNPERMUTE, "by tokens");
    make(pass, &draft, DTP_TENSOR_UNPERMUTED);
    dtp_draft_new(l, &draft, "slots and one of zeros", DTP_OWNER_WORKSPACE, slots_bytes(l) + l->compute * kind->hidden,
                  DTP_UPDATE | DTP_FREE);
    read(pass, &draft, kind->exchanged ? DTP_TENSOR_RETURNED : DTP_TENSOR_RETURNING, true);
    read(pass, &draft, DTP_TENSOR_ROUTES, false);
    draft_bytes(l, &draft, 2 * s.slots + 2 * s.rows, 3);
    dtp_draft_end(l, &draft);
    dtp_draft_begin(l, &draft, DTP_OP_UNPERMUTE, "");
    make(pass, &draft, DTP_TENSOR_DOWN);
    dtp_draft_new(l, &draft, "weighed rows in fp32", DTP_OWNER_WORKSPACE,
                  dtp_bytes_product(kind->experts_per_token, token_bytes(l, 4)), DTP_UPDATE | DTP_FREE);
    dtp_draft_new(l, &draft, "sum in fp32", DTP_OWNER_WORKSPACE, token_bytes(l, 4), DTP_UPDATE | DTP_FREE);
    read(pass, &draft, DTP_TENSOR_UNPERMUTED, true);
    read(pass, &draft, DTP_TENSOR_ROUTES, false);
    draft_bytes(l, &draft, (1 + 2 * wide) * s.rows + (1 + 2 * wide) * s.token, 3);
    dtp_draft_end(l, &draft);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* The gradient in fp32 (c + 4) h, for each row times its weight 4 h + 4 k h, and cast (4 + c) k h; times the row (c +
 * 4) k h + 4 h, summed 4 k h. */
static dtp_buffer_id weigh(struct dtp_block_backward *b, dtp_buffer_id gradient)
{
    struct dtp_lowering *l = b->l;
    struct slotted s = slotted_of(l);
    uint64_t k = l->tensors.kind.experts_per_token, wide_rows = dtp_bytes_product(k, token_bytes(l, 4));
    double wide = 4 / (double)l->compute;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_UNPERMUTE_BACKWARD, "weights");
    dtp_backward_workspace(l, &draft, "gradient in fp32", token_bytes(l, 4), DTP_UPDATE | DTP_FREE);
    dtp_buffer_id rows = dtp_backward_workspace(l, &draft, "gradient of rows in fp32", wide_rows, DTP_WRITE);
    dtp_backward_workspace(l, &draft, "terms of weights' gradients", wide_rows, DTP_UPDATE | DTP_FREE);
    b->gradient[DTP_TENSOR_ROUTER_WEIGHTS] =
        dtp_backward_workspace(l, &draft, "router weight gradient", dtp_bytes_product(l->tokens, 4 * k), DTP_WRITE);
    dtp_backward_consume(b, &draft, DTP_TENSOR_UNPERMUTED, DTP_READ | DTP_FREE);
    use_and_let_go(b, &draft, gradient);
    draft_bytes(l, &draft, (1 + 3 * wide) * s.rows + (1 + 3 * wide) * s.token, 4);
    dtp_draft_end(l, &draft);
    dtp_draft_begin(l, &draft, DTP_OP_UNPERMUTE_BACKWARD, "cast");
    dtp_buffer_id made = dtp_backward_workspace(l, &draft, "gradient of results",
                                                dtp_bytes_product(k, token_bytes(l, l->compute)), DTP_WRITE);
    dtp_draft_use(&draft, rows, DTP_READ | DTP_FREE);
    draft_bytes(l, &draft, (1 + wide) * s.rows, 1);
    dtp_draft_end(l, &draft);
    return made;
}

/* Zeros of slots c h each, to which rows are added by index, 3 c k h. What other ranks sent is copied for each expert
 * from among the others', 2 c h a slot. */
void dtp_backward_slotted_unpermute(struct dtp_block_backward *b)
{
    struct dtp_lowering *l = b->l;
    struct slotted s = slotted_of(l);
    dtp_buffer_id rows = weigh(b, b->gradient[DTP_TENSOR_DOWN]);
    b->gradient[DTP_TENSOR_DOWN] = DTP_NO_BUFFER;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_UNPERMUTE_BACKWARD, "slots");
    dtp_buffer_id made = dtp_backward_workspace(l, &draft, "gradient of slots", slots_bytes(l), DTP_WRITE);
    dtp_draft_use(&draft, rows, DTP_READ | DTP_FREE);
    draft_bytes(l, &draft, s.slots + 3 * s.rows, 2);
    draft.op.demand.memory_kernel = DTP_KERNEL_INDEXED;
    dtp_draft_end(l, &draft);
    b->gradient[DTP_TENSOR_EXPERT_DOWN] = made;
    if (!l->tensors.kind.exchanged)
        return;
    made = exchange_back(b, made, DTP_EXCHANGE_COMBINE, slots_bytes(l));
    b->gradient[DTP_TENSOR_EXPERT_DOWN] = made;
    uint64_t experts = l->tensors.kind.own_experts;
    dtp_draft_begin(l, &draft, DTP_OP_UNPERMUTE_BACKWARD, "by experts");
    dtp_backward_workspace(l, &draft, "gradient of an expert's slots", dtp_divide_up(slots_bytes(l), experts),
                           DTP_UPDATE | DTP_FREE);
    dtp_draft_use(&draft, made, DTP_READ);
    draft_bytes(l, &draft, 2 * s.slots, (uint32_t)experts);
    dtp_draft_end(l, &draft);
}

/* Of chunks: side by side again, 2 c h a slot; behind the exchange zeros of tokens c h, to which slots are added, 3 c h
 * each. */
void dtp_backward_slotted_permute(struct dtp_block_backward *b)
{
    struct dtp_lowering *l = b->l;
    struct slotted s = slotted_of(l);
    enum dtp_layer_tensor of = dtp_layer_first(dtp_backward_operator(b)->reads);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_PERMUTE_BACKWARD, "by ranks");
    dtp_buffer_id joined = dtp_backward_workspace(l, &draft, "gradient of slots", slots_bytes(l), DTP_WRITE);
    dtp_draft_use(&draft, b->gradient[DTP_TENSOR_PERMUTED], DTP_READ | DTP_FREE);
    b->gradient[DTP_TENSOR_PERMUTED] = DTP_NO_BUFFER;
    draft_bytes(l, &draft, 2 * s.slots, 1);
    dtp_draft_end(l, &draft);
    if (l->tensors.kind.exchanged)
        joined = exchange_back(b, joined, DTP_EXCHANGE_DISPATCH, slots_bytes(l));
    dtp_draft_begin(l, &draft, DTP_OP_PERMUTE_BACKWARD, "");
    dtp_buffer_id made = dtp_backward_workspace(l, &draft, "gradient by tokens", token_bytes(l, l->compute), DTP_WRITE);
    dtp_draft_use(&draft, joined, DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, b->module->tensor[DTP_TENSOR_ROUTES], DTP_READ);
    draft_bytes(l, &draft, s.token + 3 * s.slots, 2);
    draft.op.demand.memory_kernel = DTP_KERNEL_INDEXED;
    dtp_draft_end(l, &draft);
    b->gradient[of] = dtp_backward_add(b, of, b->gradient[of], made);
}

/* Bytes for each expert: of weights 16 of one expert, 28 of two, 49 of more; of the mean 8, their sum 12, softmax 12.
 * The gradient of x in fp32, cast (4 + c) h. */
void dtp_backward_slotted_router(struct dtp_block_backward *b)
{
    struct dtp_lowering *l = b->l;
    struct slotted s = slotted_of(l);
    uint64_t k = l->tensors.kind.experts_per_token, scores = dtp_bytes_product(l->tokens, 4 * l->tensors.kind.experts);
    double weights = k == 1 ? 16 : k == 2 ? 28 : 49;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ROUTER_BACKWARD, "");
    dtp_backward_workspace(l, &draft, "router weight gradients", 2 * scores, DTP_UPDATE | DTP_FREE);
    dtp_backward_workspace(l, &draft, "gradient of the router's input in fp32", token_bytes(l, 4),
                           DTP_UPDATE | DTP_FREE);
    b->gradient[DTP_TENSOR_ROUTER_SCORES] =
        dtp_backward_workspace(l, &draft, "router score gradient", scores, DTP_WRITE);
    dtp_draft_use(&draft, b->gradient[DTP_TENSOR_ROUTER_WEIGHTS], DTP_READ | DTP_FREE);
    b->gradient[DTP_TENSOR_ROUTER_WEIGHTS] = DTP_NO_BUFFER;
    dtp_backward_consume(b, &draft, DTP_TENSOR_ROUTER_WEIGHTS, DTP_READ | DTP_FREE);
    dtp_backward_consume(b, &draft, DTP_TENSOR_ROUTES, DTP_READ | DTP_FREE);
    dtp_backward_consume(b, &draft, DTP_TENSOR_ROUTER_INPUT, DTP_READ | DTP_FREE);
    draft_bytes(l, &draft, (weights + 32) * s.experts + s.token + 4 * s.token / (double)l->compute, 16);
    dtp_draft_end(l, &draft);
}
