/* What stands around the experts' matmuls, as torchtitan's moe.py has it in PyTorch, eager whether or not the modules
 * beside it are compiled:
 *
 *   router     weights [T, E] of the scores in fp32, the k largest of each token, tokens in the order of experts (a
 *              stable sort of T k indices)
 *   permute    rows [T k, h], each token's once for each of its experts: x[order / k]
 *   experts    grouped matmuls over these rows
 *   unpermute  rows put back by tokens (zeros, u[order] = y), in fp32 weighed and added up by a batched matmul
 *
 * Where ranks divide the experts, rows go by all-to-all to the ranks that have their experts, and back, which is on the
 * compute stream's way: it waits for each (all_to_all_single_autograd, whose backward waits too). How many rows each
 * rank sends to which is exchanged first and read back to the host, which waits for it once a layer; what came is in
 * the order of ranks and put into that of experts, r[perm], and back, b[perm] = y. So are rows where a rank has all
 * experts, beside tensor parallelism (indices_padding_wrapper of models/moe/utils.py): grouped matmuls take multiples
 * of 8, and rows of zeros, few and not counted, fill each expert's up, from one behind r, which is copied (vstack).
 *
 * Megatron-Core (moe_utils.py, token_dispatcher.py, experts.py with moe_permute_fusion): one kernel takes each token's
 * row once and writes it for each of its experts, one puts chunks of ranks into the order of experts, activations
 * multiply rows by their weights (moe_apply_probs_on_input is not that), and one kernel adds a token's rows up again;
 * no row stands in fp32. Without that fusion (unfused_permute) PyTorch's kernels sort which token goes to which expert,
 * take rows by index and add them up by index, x.scatter_add(order, y), whose gradients are the same two the other way;
 * chunks of ranks are put in order by a cat of as many bytes as the kernel moves.
 *
 * DeepSpeed's AutoEP (module_inject/auto_ep_layer.py of 0.19) does as torchtitan did before: rows that came are stacked
 * with one of zeros, which rows that fill an expert's up to a multiple of eight would be (permute_by_local_expert;
 * these few are not counted), what experts return is put into zeros, a row longer than what is sent back, and rows in
 * fp32 times their weights are a tensor that is summed.
 *
 * Its flex dispatchers (DeepEP, HybridEP) read a token's row where it lies, send it once to each rank that has experts
 * of it, and add up what comes back: nothing is put side by side by ranks on the way there, nor added up behind the way
 * back (dispatch_preprocess and combine_postprocess of MoEFlexTokenDispatcher have no kernels over rows). What came, a
 * row for each token that has any of the rank's experts, is written for each of these, and what they return added up to
 * such rows before it goes back (permute and unpermute of _DeepepManager, HybridEP's own kernels); gradients likewise.
 *
 * Which of these tensors autograd saves follows from derivatives.yaml: softmax its result, topk and the indexing their
 * indices, the batched matmul both inputs, so that results stand in fp32 until backward. Bytes are reads and writes of
 * a token, kernel by kernel. */
#include "base/bytes.h"
#include "lower/block_backward.h"
#include "lower/block_forward.h"
#include "lower/expert_rows.h"
#include "lower/lower_exchange_rows.h"
#include "lower/lower_graphs.h"

/* Each token's row read once and written for each of its experts, or the other way: else both k times. */
static double row_bytes_moved(const struct dtp_lowering *l)
{
    struct rows r = rows_of(l);
    return (weighs(l) && !unfused(l) ? r.k + 1 : 2 * r.k) * r.c * r.h;
}

/* Zeros of a row, to which k rows are added where an index says. */
static double added_bytes(const struct dtp_lowering *l)
{
    struct rows r = rows_of(l);
    return (2 * r.k + 1) * r.c * r.h;
}

/* The map of tokens to experts, of a byte, turned, 2 E; a stable sort of it whose places of 8 bytes are written first,
 * 4 times 9 E; weights in fp32 turned 8 E; places cut, divided, and weights taken by them, 48 k. */
static double sorting_bytes(const struct dtp_lowering *l)
{
    struct rows r = rows_of(l);
    return unfused(l) ? (2 + 4 * 9 + 8) * r.experts + 48 * r.k : 0;
}
#define SORTING_KERNELS 10

/* Rows by experts. */
static void draft_by_experts(const struct dtp_lowering *l, struct dtp_draft *draft)
{
    draft_eager(l, draft, sending(l) * row_bytes_moved(l) + sorting_bytes(l),
                weighs(l) ? 1 + (unfused(l) ? SORTING_KERNELS : 0) : 2);
}

/* Rows added up by index: zeros and the sum. */
static void draft_sum_by_index(const struct dtp_lowering *l, struct dtp_draft *draft)
{
    draft_eager(l, draft, added_bytes(l), 2);
    draft->op.demand.memory_kernel = DTP_KERNEL_INDEXED;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* Scores to fp32 (c + 4) E and through softmax 8 E, where a compiler makes one pass of both; the k largest of 4 E; and
 * of T k whole numbers their histogram, sort (by radix: 8 passes over pairs of 8 bytes) and quotient. With a capacity
 * also each expert's largest weights of all tokens, 4 E read, a mask of them, 4 E zeros and 5 E to bool, and with it
 * the map, 3 E, and weights, 9 E. */
void dtp_forward_router(const struct pass *pass)
{
    struct dtp_lowering *l = pass->l;
    struct rows r = rows_of(l);
    if (slots(l)) {
        dtp_forward_slotted_router(pass);
        return;
    }
    if (calls(l)) {
        dtp_forward_called_router(pass);
        return;
    }
    if (!wanted(pass, DTP_TENSOR_ROUTER_WEIGHTS) && !wanted(pass, DTP_TENSOR_ROUTES))
        return;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ROUTER, "");
    make(pass, &draft, DTP_TENSOR_ROUTER_WEIGHTS);
    make(pass, &draft, DTP_TENSOR_ROUTES);
    if (!l->compiled)
        dtp_draft_new(l, &draft, "router scores in fp32", DTP_OWNER_WORKSPACE,
                      l->tensor_bytes[DTP_TENSOR_ROUTER_WEIGHTS], DTP_UPDATE | DTP_FREE);
    read(pass, &draft, DTP_TENSOR_ROUTER_SCORES, true);
    double weights = l->compiled ? (r.c + 4) * r.experts : (r.c + 12) * r.experts;
    double k = (double)l->tensors.kind.experts_per_token;
    bool drops = l->plan->megatron.capacity_factor > 0;
    draft_eager(l, &draft, weights + 4 * r.experts + (8 * 16 + 6 * 8) * k + (drops ? 25 * r.experts : 0),
                (weighs(l)     ? 6u
                 : l->compiled ? 14
                               : 22) +
                    (drops ? 8 : 0));
    dtp_draft_end(l, &draft);
}

/* What came, or stands in the order of experts, into rows as experts' matmuls read them: behind a dozen kernels that
 * make perm, of 8 bytes a row, r[perm], 2 c k h for each row received, and as much where a row is put behind r first.
 */
static void put_by_experts(const struct pass *pass, dtp_buffer_id gathered)
{
    struct dtp_lowering *l = pass->l;
    struct rows r = rows_of(l);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_PERMUTE, "by experts");
    make(pass, &draft, DTP_TENSOR_PLACES);
    make(pass, &draft, DTP_TENSOR_PERMUTED);
    dtp_draft_use(&draft, gathered, DTP_READ | DTP_FREE);
    read(pass, &draft, l->tensors.kind.pads_rows ? DTP_TENSOR_SENT : DTP_TENSOR_RECEIVED, true);
    if (appends(l))
        dtp_draft_new(l, &draft, "rows and one of zeros", DTP_OWNER_WORKSPACE,
                      l->tensor_bytes[DTP_TENSOR_PERMUTED] + l->compute * l->tensors.kind.hidden,
                      DTP_UPDATE | DTP_FREE);
    draft_eager(l, &draft, sending(l) * ((appends(l) ? 2 : 1) * ordered_bytes(l) + received(l) * 8 * 8 * r.k),
                weighs(l) ? 2 : 16);
    dtp_draft_end(l, &draft);
}

/* x[order / k] to the ranks of its experts, then what came by experts; what was sent is held until compute waited. */
static void dispatch(const struct pass *pass, const struct dtp_layer_operator *op)
{
    struct dtp_lowering *l = pass->l;
    bool copies = missing(pass, DTP_TENSOR_SENT);
    struct dtp_draft draft;
    if (copies) {
        dtp_draft_begin(l, &draft, DTP_OP_PERMUTE, "by ranks");
        make(pass, &draft, DTP_TENSOR_SENT);
        read(pass, &draft, dtp_layer_first(op->reads), false);
        read(pass, &draft, DTP_TENSOR_ROUTES, false);
        draft_by_experts(l, &draft);
        dtp_draft_end(l, &draft);
    }
    if (l->tensors.kind.pads_rows) {
        put_by_experts(pass, DTP_NO_BUFFER);
        return;
    }
    dtp_lower_read_splits(l);
    dtp_draft_begin(l, &draft, DTP_OP_ALL_TO_ALL, "dispatch");
    make(pass, &draft, DTP_TENSOR_RECEIVED);
    read(pass, &draft, copies ? DTP_TENSOR_SENT : dtp_layer_first(op->reads), false);
    dtp_lower_exchange_rows(l, &draft, dtp_lower_exchanged_bytes(l));
    dtp_forward_beside_exchange(pass, DTP_EXCHANGE_DISPATCH);
    if (copies && !named(pass, DTP_TENSOR_SENT))
        let_go(pass, DTP_TENSOR_SENT);
    dtp_buffer_id gathered = dtp_lower_gather_expert_rows(l, pass->module->tensor[DTP_TENSOR_RECEIVED]);
    if (gathered.index != DTP_NO_INDEX)
        let_go(pass, DTP_TENSOR_RECEIVED);
    put_by_experts(pass, gathered);
}

/* x[order / k]: k rows read and written. */
void dtp_forward_permute(const struct pass *pass, const struct dtp_layer_operator *op)
{
    struct dtp_lowering *l = pass->l;
    if (slots(l)) {
        dtp_forward_slotted_permute(pass, op);
        return;
    }
    if (calls(l)) {
        dtp_forward_called_permute(pass, op);
        return;
    }
    if (!wanted(pass, DTP_TENSOR_PERMUTED))
        return;
    if (dtp_layer_reorders(&l->tensors.kind)) {
        dispatch(pass, op);
        return;
    }
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_PERMUTE, "");
    make(pass, &draft, DTP_TENSOR_PERMUTED);
    read(pass, &draft, dtp_layer_first(op->reads), false);
    read(pass, &draft, DTP_TENSOR_ROUTES, false);
    draft_by_experts(l, &draft);
    dtp_draft_end(l, &draft);
}

/* b[perm] = y, 2 c k h for each row received, and back to the ranks that sent them; y is let go when it is named anew.
 */
static void give_back(const struct pass *pass)
{
    struct dtp_lowering *l = pass->l;
    struct rows r = rows_of(l);
    struct dtp_draft draft;
    if (stacks(l)) {
        dtp_draft_begin(l, &draft, DTP_OP_UNPERMUTE, "zeros");
        make(pass, &draft, DTP_TENSOR_RETURNING);
        draft_eager(l, &draft, received(l) * r.c * r.k * r.h, 1);
        dtp_draft_end(l, &draft);
    }
    dtp_draft_begin(l, &draft, DTP_OP_UNPERMUTE, "by ranks");
    const bool pads = l->tensors.kind.pads_rows;
    if (stacks(l))
        dtp_draft_use(&draft, pass->module->tensor[DTP_TENSOR_RETURNING], DTP_UPDATE);
    else
        make(pass, &draft, pads ? DTP_TENSOR_RETURNED : DTP_TENSOR_RETURNING);
    read(pass, &draft, DTP_TENSOR_EXPERT_DOWN, false);
    read(pass, &draft, DTP_TENSOR_PLACES, false);
    draft_eager(l, &draft, sending(l) * ordered_bytes(l), 1);
    if (!weighs(l))
        draft.op.demand.memory_kernel = DTP_KERNEL_INDEXED;
    dtp_draft_end(l, &draft);
    if (stacks(l) || pads)
        let_go(pass, DTP_TENSOR_EXPERT_DOWN);
    if (pads)
        return;
    dtp_buffer_id summed = dtp_lower_sum_expert_rows(l, pass->module->tensor[DTP_TENSOR_RETURNING]);
    dtp_draft_begin(l, &draft, DTP_OP_ALL_TO_ALL, "combine");
    make(pass, &draft, l->tensor_bytes[DTP_TENSOR_RETURNED] ? DTP_TENSOR_RETURNED : DTP_TENSOR_DOWN);
    dtp_draft_use(&draft, summed, DTP_READ);
    if (summed.index == DTP_NO_INDEX)
        read(pass, &draft, DTP_TENSOR_RETURNING, false);
    dtp_lower_exchange_rows(l, &draft, dtp_lower_exchanged_bytes(l));
    dtp_forward_beside_exchange(pass, DTP_EXCHANGE_COMBINE);
    if (!stacks(l))
        let_go(pass, DTP_TENSOR_EXPERT_DOWN);
    dtp_lower_free_expert_rows(l, summed);
    if (!named(pass, DTP_TENSOR_RETURNING))
        let_go(pass, DTP_TENSOR_RETURNING);
}

/* u[order] = y. */
static void by_tokens(const struct pass *pass)
{
    struct dtp_lowering *l = pass->l;
    struct rows r = rows_of(l);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_UNPERMUTE, "by tokens");
    make(pass, &draft, DTP_TENSOR_UNPERMUTED);
    read(pass, &draft, dtp_layer_reorders(&l->tensors.kind) ? DTP_TENSOR_RETURNED : DTP_TENSOR_EXPERT_DOWN, true);
    read(pass, &draft, DTP_TENSOR_ROUTES, false);
    draft_eager(l, &draft, sending(l) * 2 * r.c * r.k * r.h, 1);
    draft.op.demand.memory_kernel = DTP_KERNEL_INDEXED;
    dtp_draft_end(l, &draft);
}

/* A token's k rows read and their sum written, unless that came; with what shared experts add: 3 c h, and its weight 2
 * c h. */
static void add_rows(const struct pass *pass, const struct dtp_layer_operator *op)
{
    struct dtp_lowering *l = pass->l;
    struct rows r = rows_of(l);
    bool shared = op->reads & DTP_TENSOR_BIT(SHARED_DOWN), weighed = op->reads & DTP_TENSOR_BIT(SHARED_WEIGHT);
    bool added = exists(pass, DTP_TENSOR_DOWN), apart = added || unfused(l);
    struct dtp_draft draft;
    if (!added) {
        dtp_draft_begin(l, &draft, DTP_OP_UNPERMUTE, "");
        make(pass, &draft, DTP_TENSOR_DOWN);
        read(pass, &draft, dtp_layer_reorders(&l->tensors.kind) ? DTP_TENSOR_RETURNED : DTP_TENSOR_EXPERT_DOWN, true);
        read(pass, &draft, DTP_TENSOR_ROUTES, false);
    }
    if (!added && unfused(l)) {
        draft_sum_by_index(l, &draft);
        dtp_draft_end(l, &draft);
    }
    if (apart && !shared)
        return;
    if (apart) {
        dtp_draft_begin(l, &draft, DTP_OP_UNPERMUTE, "shared experts");
        dtp_draft_use(&draft, pass->module->tensor[DTP_TENSOR_DOWN], DTP_UPDATE);
    }
    read(pass, &draft, DTP_TENSOR_SHARED_DOWN, true);
    read(pass, &draft, DTP_TENSOR_SHARED_WEIGHT, true);
    draft_eager(l, &draft, (apart ? 0 : row_bytes_moved(l)) + ((shared ? 3 : 0) + (weighed ? 2 : 0)) * r.c * r.h,
                (apart ? 0 : 1u) + (shared ? 1u : 0) + (weighed ? 2u : 0));
    dtp_draft_end(l, &draft);
}

/* Of fp32 rows, one for each of a token's experts. */
static uint64_t wide_rows_bytes(const struct dtp_lowering *l)
{
    return local_bytes(l, 4 * l->tensors.kind.experts_per_token * l->tensors.kind.hidden);
}

/* Zeros c k h, of which rows are put in place, 2 c k h; to fp32 (c + 4) k h, weighed and added up 4 k h + 4 h, cast
 * (4 + c) h; what shared experts add, and its weight, 3 c h each. */
void dtp_forward_unpermute(const struct pass *pass, const struct dtp_layer_operator *op)
{
    struct dtp_lowering *l = pass->l;
    struct rows r = rows_of(l);
    if (slots(l)) {
        dtp_forward_slotted_unpermute(pass);
        return;
    }
    if (calls(l)) {
        dtp_forward_called_unpermute(pass, op);
        return;
    }
    if (sorts(l)) {
        dtp_forward_sorted_unpermute(pass, op);
        return;
    }
    if (!wanted(pass, DTP_TENSOR_DOWN) && !wanted(pass, DTP_TENSOR_WIDE_RESULTS))
        return;
    if (dtp_layer_reorders(&l->tensors.kind))
        give_back(pass);
    if (weighs(l)) {
        add_rows(pass, op);
        return;
    }
    by_tokens(pass);
    bool shared = op->reads & DTP_TENSOR_BIT(SHARED_DOWN), weighed = op->reads & DTP_TENSOR_BIT(SHARED_WEIGHT);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_UNPERMUTE, "");
    make(pass, &draft, DTP_TENSOR_WIDE_RESULTS);
    const dtp_buffer_id terms = dtp_forward_make_terms(pass, &draft);
    dtp_draft_new(l, &draft, "sum in fp32", DTP_OWNER_WORKSPACE,
                  dtp_bytes_product(l->tokens, 4 * l->tensors.kind.hidden), DTP_UPDATE | DTP_FREE);
    if (stacks(l) || l->tensors.kind.narrows_sums)
        dtp_draft_new(l, &draft, stacks(l) ? "weighed rows in fp32" : "rows in fp32", DTP_OWNER_WORKSPACE,
                      wide_rows_bytes(l), DTP_UPDATE | DTP_FREE);
    read(pass, &draft, DTP_TENSOR_UNPERMUTED, true);
    read(pass, &draft, DTP_TENSOR_SHARED_DOWN, true);
    read(pass, &draft, DTP_TENSOR_SHARED_WEIGHT, true);
    double kh = r.k * r.h, more = (shared ? 3 * r.c * r.h : 0) + (weighed ? 2 * r.c * r.h : 0);
    draft_eager(l, &draft, (2 * r.c + (stacks(l) ? 16 : 8)) * kh + (8 + r.c) * r.h + more,
                (stacks(l) ? 6u : 5u) + (shared ? 1u : 0) + (weighed ? 2u : 0));
    dtp_draft_end(l, &draft);
    dtp_forward_sum_terms(pass, terms);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* The gradient in fp32 (c + 4) h; of the batched matmul's inputs, 4 k h read for the weights', 4 k h written for the
 * rows', products of a token's weights with its gradient, in tiles. */
static dtp_buffer_id weigh_back(struct dtp_block_backward *b, dtp_buffer_id gradient)
{
    struct dtp_lowering *l = b->l;
    struct rows r = rows_of(l);
    uint64_t wide = local_bytes(l, 4 * l->tensors.kind.hidden);
    uint64_t weights = local_bytes(l, 4 * l->tensors.kind.experts_per_token);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_UNPERMUTE_BACKWARD, "weights");
    dtp_buffer_id gradient_wide = dtp_backward_workspace(l, &draft, "gradient in fp32", wide, DTP_UPDATE);
    b->gradient[DTP_TENSOR_ROUTER_WEIGHTS] =
        dtp_backward_workspace(l, &draft, "router weight gradient", weights, DTP_WRITE);
    dtp_backward_consume(b, &draft, DTP_TENSOR_WIDE_RESULTS, DTP_READ);
    use_and_let_go(b, &draft, gradient);
    draft_eager(l, &draft, 4 * r.k * r.h + (r.c + 12) * r.h, 3);
    dtp_draft_end(l, &draft);
    dtp_draft_begin(l, &draft, DTP_OP_UNPERMUTE_BACKWARD, "results in fp32");
    dtp_buffer_id made =
        dtp_backward_workspace(l, &draft, "gradient of results in fp32", wide_rows_bytes(l), DTP_WRITE);
    dtp_draft_use(&draft, gradient_wide, DTP_READ | DTP_FREE);
    dtp_backward_consume(b, &draft, DTP_TENSOR_WIDE_RESULTS, DTP_FREE);
    draft_eager(l, &draft, 4 * dtp_outer_rows(r.k) * r.h, 1);
    draft.op.demand.memory_kernel = DTP_KERNEL_OUTER;
    dtp_draft_end(l, &draft);
    return made;
}

/* The same of products that are tensors: of a token's gradient, cast as above, with its weights, 4 h + 4 k h, and with
 * its rows, of which sums are the weights' gradients: 12 k h. */
static dtp_buffer_id multiply_back(struct dtp_block_backward *b, dtp_buffer_id gradient)
{
    struct dtp_lowering *l = b->l;
    struct rows r = rows_of(l);
    uint64_t rows = wide_rows_bytes(l);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_UNPERMUTE_BACKWARD, "results in fp32");
    dtp_buffer_id wide =
        dtp_backward_workspace(l, &draft, "gradient in fp32", local_bytes(l, 4 * l->tensors.kind.hidden), DTP_UPDATE);
    dtp_buffer_id made = dtp_backward_workspace(l, &draft, "gradient of results in fp32", rows, DTP_WRITE);
    use_and_let_go(b, &draft, gradient);
    draft_eager(l, &draft, 4 * r.k * r.h + (r.c + 8) * r.h, 2);
    dtp_draft_end(l, &draft);
    dtp_draft_begin(l, &draft, DTP_OP_UNPERMUTE_BACKWARD, "weights");
    b->gradient[DTP_TENSOR_ROUTER_WEIGHTS] = dtp_backward_workspace(
        l, &draft, "router weight gradient", local_bytes(l, 4 * l->tensors.kind.experts_per_token), DTP_WRITE);
    dtp_backward_workspace(l, &draft, "terms of weights' gradients", rows, DTP_UPDATE | DTP_FREE);
    dtp_draft_use(&draft, wide, DTP_READ | DTP_FREE);
    dtp_backward_consume(b, &draft, DTP_TENSOR_WIDE_RESULTS, DTP_READ | DTP_FREE);
    draft_eager(l, &draft, 12 * r.k * r.h + 4 * r.h, 2);
    dtp_draft_end(l, &draft);
    return made;
}

/* Of rows that the rank sends, in the compute dtype. */
static uint64_t row_bytes(const struct dtp_lowering *l)
{
    return sending_bytes(l, l->compute * dtp_layer_tensor_width(&l->tensors.kind, DTP_TENSOR_EXPERT_DOWN));
}

/* Into the compute dtype (4 + c) k h, then by experts, or by the ranks that have them: 2 c k h. */
static dtp_buffer_id rows_back(struct dtp_block_backward *b, dtp_buffer_id gradient, const char *name,
                               uint64_t made_bytes, double bytes)
{
    struct dtp_lowering *l = b->l;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_UNPERMUTE_BACKWARD, name);
    dtp_buffer_id made = dtp_backward_workspace(l, &draft, "gradient of results", made_bytes, DTP_WRITE);
    dtp_draft_use(&draft, gradient, DTP_READ | DTP_FREE);
    draft_eager(l, &draft, bytes, 1);
    dtp_draft_end(l, &draft);
    return made;
}

/* What shared experts add has the gradient as it is; weighed, a product of it, and their weight a sum of another. */
void dtp_backward_shared_experts(struct dtp_block_backward *b, dtp_buffer_id gradient)
{
    struct dtp_lowering *l = b->l;
    double h = (double)(l->compute * l->tensors.kind.hidden);
    b->gradient[DTP_TENSOR_SHARED_DOWN] = gradient;
    if (!l->tensors.kind.shared_gate)
        return;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_UNPERMUTE_BACKWARD, "weight of shared experts");
    b->gradient[DTP_TENSOR_SHARED_DOWN] = dtp_backward_workspace(
        l, &draft, "gradient of shared experts", local_bytes(l, l->compute * l->tensors.kind.hidden), DTP_WRITE);
    b->gradient[DTP_TENSOR_SHARED_WEIGHT] =
        dtp_backward_workspace(l, &draft, "gradient of their weight", local_bytes(l, l->compute), DTP_WRITE);
    dtp_draft_use(&draft, gradient, DTP_READ);
    dtp_backward_consume(b, &draft, DTP_TENSOR_SHARED_DOWN, DTP_READ | DTP_FREE);
    dtp_backward_consume(b, &draft, DTP_TENSOR_SHARED_WEIGHT, DTP_READ | DTP_FREE);
    draft_eager(l, &draft, 4 * h, 4);
    dtp_draft_end(l, &draft);
}

/* Of rows that come to the rank, and of those that it returns. */
static uint64_t arriving_bytes(const struct dtp_lowering *l)
{
    return (uint64_t)ceil((double)dtp_layer_crossed(&l->tensors, row_bytes(l)) * l->tensors.arriving);
}

static dtp_buffer_id weight_gradient(struct dtp_block_backward *b, struct dtp_draft *draft)
{
    return dtp_backward_workspace(b->l, draft, "router weight gradient",
                                  local_bytes(b->l, 4 * b->l->tensors.kind.experts_per_token), DTP_WRITE);
}

/* A token's gradient for each of its rows; those of their weights, which activations multiply by, are small. */
static dtp_buffer_id spread_gradient(struct dtp_block_backward *b, dtp_buffer_id gradient, const char *name)
{
    struct dtp_lowering *l = b->l;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_UNPERMUTE_BACKWARD, name);
    dtp_buffer_id made =
        dtp_backward_workspace(l, &draft, "gradient of results", dtp_layer_sent(&l->tensors, row_bytes(l)), DTP_WRITE);
    b->gradient[DTP_TENSOR_ROUTER_WEIGHTS] = weight_gradient(b, &draft);
    use_and_let_go(b, &draft, gradient);
    draft_eager(l, &draft, row_bytes_moved(l), 1);
    dtp_draft_end(l, &draft);
    return made;
}

void dtp_backward_unpermute(struct dtp_block_backward *b)
{
    if (slots(b->l)) {
        dtp_backward_slotted_unpermute(b);
        return;
    }
    if (calls(b->l)) {
        dtp_backward_called_unpermute(b);
        return;
    }
    if (sorts(b->l)) {
        dtp_backward_sorted_unpermute(b);
        return;
    }
    struct rows r = rows_of(b->l);
    dtp_buffer_id gradient = dtp_backward_gather_terms(b, b->gradient[DTP_TENSOR_DOWN]);
    b->gradient[DTP_TENSOR_DOWN] = DTP_NO_BUFFER;
    if (b->l->tensors.kind.shared_ffn)
        dtp_backward_shared_experts(b, gradient);
    struct dtp_lowering *l = b->l;
    uint64_t own = row_bytes(l), came = dtp_layer_received(&l->tensors, own);
    uint64_t crossed = dtp_layer_crossed(&l->tensors, own), sent = dtp_layer_sent(&l->tensors, own);
    const uint64_t routed = (uint64_t)((double)sent / sending(l));
    const bool reorders = dtp_layer_reorders(&l->tensors.kind);
    const char *name = reorders ? "rows by ranks" : "rows by experts";
    dtp_buffer_id rows = gradient;
    if (dtp_plan_sends_tokens(l->plan)) {
        crossed = arriving_bytes(l);
    } else if (weighs(l)) {
        rows = spread_gradient(b, gradient, name);
    } else {
        dtp_buffer_id wide = stacks(l) ? multiply_back(b, gradient) : weigh_back(b, gradient);
        dtp_buffer_id by_tokens = rows_back(b, wide, "cast", routed, (4 + r.c) * r.k * r.h);
        rows = rows_back(b, by_tokens, name, sent, sending(l) * 2 * r.c * r.k * r.h);
    }
    if (l->tensors.kind.exchanged)
        rows = dtp_lower_gather_gradient_rows(l, exchange_back(b, rows, DTP_EXCHANGE_COMBINE, crossed));
    if (appends(l)) /* of a slice: zeros, and what is copied there */
        rows = rows_back(b, rows, "rows and one of zeros", came, sending(l) * received(l) * 3 * r.c * r.k * r.h);
    if (reorders)
        rows = rows_back(b, rows, "rows by experts", came, sending(l) * ordered_bytes(l));
    b->gradient[DTP_TENSOR_EXPERT_DOWN] = rows;
}

/* Indexing's gradient: zeros c h, and k rows added to each token's by index, which are sorted first
 * (index_put_with_sort_kernel of Indexing.cu): c k h read and as much read and written of the sum. */
static dtp_buffer_id rows_by_ranks(struct dtp_block_backward *b, dtp_buffer_id gradient)
{
    struct dtp_lowering *l = b->l;
    struct rows r = rows_of(l);
    bool tokens = dtp_plan_sends_tokens(l->plan);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_PERMUTE_BACKWARD, "by ranks");
    dtp_buffer_id made =
        dtp_backward_workspace(l, &draft, "gradient of rows",
                               tokens ? arriving_bytes(l) : dtp_layer_received(&l->tensors, row_bytes(l)), DTP_WRITE);
    if (tokens) /* they come back with the rows */
        b->gradient[DTP_TENSOR_ROUTER_WEIGHTS] = weight_gradient(b, &draft);
    dtp_draft_use(&draft, gradient, DTP_READ | DTP_FREE);
    dtp_backward_consume(b, &draft, DTP_TENSOR_PLACES, DTP_READ | DTP_FREE);
    draft_eager(l, &draft,
                sending(l) * (weighs(l) ? ordered_bytes(l) : received(l) * (4 * r.c * r.k * r.h + 8 * 16 * r.k)),
                weighs(l) ? 1 : 10);
    dtp_draft_end(l, &draft);
    if (l->tensors.kind.pads_rows)
        return made;
    return exchange_back(b, dtp_lower_sum_gradient_rows(l, made), DTP_EXCHANGE_DISPATCH,
                         tokens ? local_bytes(l, l->compute * l->tensors.kind.hidden)
                                : dtp_layer_sent(&l->tensors, row_bytes(l)));
}

void dtp_backward_permute(struct dtp_block_backward *b)
{
    struct dtp_lowering *l = b->l;
    struct rows r = rows_of(l);
    if (slots(l)) {
        dtp_backward_slotted_permute(b);
        return;
    }
    if (calls(l)) {
        dtp_backward_called_permute(b);
        return;
    }
    if (dtp_layer_reorders(&l->tensors.kind))
        b->gradient[DTP_TENSOR_PERMUTED] = rows_by_ranks(b, b->gradient[DTP_TENSOR_PERMUTED]);
    dtp_backward_sum_rows(b, dtp_layer_sent(&l->tensors, row_bytes(l)));
    enum dtp_layer_tensor of = dtp_layer_first(dtp_backward_operator(b)->reads);
    if (dtp_plan_sends_tokens(l->plan)) {
        b->gradient[of] = dtp_backward_add(b, of, b->gradient[of], b->gradient[DTP_TENSOR_PERMUTED]);
        b->gradient[DTP_TENSOR_PERMUTED] = DTP_NO_BUFFER;
        return;
    }
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_PERMUTE_BACKWARD, "");
    dtp_buffer_id made = dtp_backward_workspace(l, &draft, "gradient by tokens",
                                                local_bytes(l, l->compute * l->tensors.kind.hidden), DTP_WRITE);
    dtp_draft_use(&draft, b->gradient[DTP_TENSOR_PERMUTED], DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, b->module->tensor[DTP_TENSOR_ROUTES], DTP_READ);
    b->gradient[DTP_TENSOR_PERMUTED] = DTP_NO_BUFFER;
    if (unfused(l))
        draft_sum_by_index(l, &draft);
    else
        draft_eager(l, &draft,
                    weighs(l) ? row_bytes_moved(l) : (sending(l) * 3 * r.k + 1) * r.c * r.h + sending(l) * 8 * 16 * r.k,
                    weighs(l) ? 1 : 10);
    dtp_draft_end(l, &draft);
    b->gradient[of] = dtp_backward_add(b, of, b->gradient[of], made);
}

/* Zeros and the k largest's gradients among them 4 E, softmax's 12 E, cast (4 + c) E. */
void dtp_backward_router(struct dtp_block_backward *b)
{
    struct dtp_lowering *l = b->l;
    if (slots(l)) {
        dtp_backward_slotted_router(b);
        return;
    }
    struct rows r = rows_of(l);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ROUTER_BACKWARD, "");
    dtp_backward_workspace(l, &draft, "router weight gradients", 2 * l->tensor_bytes[DTP_TENSOR_ROUTER_WEIGHTS],
                           DTP_UPDATE | DTP_FREE);
    b->gradient[DTP_TENSOR_ROUTER_SCORES] = dtp_backward_workspace(
        l, &draft, "router score gradient", local_bytes(l, l->compute * l->tensors.kind.experts), DTP_WRITE);
    dtp_draft_use(&draft, b->gradient[DTP_TENSOR_ROUTER_WEIGHTS], DTP_READ | DTP_FREE);
    b->gradient[DTP_TENSOR_ROUTER_WEIGHTS] = DTP_NO_BUFFER;
    dtp_backward_consume(b, &draft, DTP_TENSOR_ROUTER_WEIGHTS, DTP_READ | DTP_FREE);
    dtp_backward_consume(b, &draft, DTP_TENSOR_ROUTES, DTP_READ | DTP_FREE);
    draft_eager(l, &draft, (20 + r.c) * r.experts, weighs(l) || l->compiled ? 4 : 8);
    dtp_draft_end(l, &draft);
}
