/* What stands around the experts' matmuls, as torchtitan's moe.py has it in PyTorch, eager whether or not the modules
 * beside it are compiled:
 *
 *   router     weights [T, E] of the scores in fp32, the k largest of each token, tokens in the order of experts (a
 *              stable sort of T k indices)
 *   permute    rows [T k, h], each token's once for each of its experts: x[order / k]
 *   experts    grouped matmuls over these rows
 *   unpermute  rows put back by tokens (zeros, u[order] = y), in fp32 weighed and added up by a batched matmul
 *
 * Which of these tensors autograd saves follows from derivatives.yaml: softmax its result, topk and the indexing their
 * indices, the batched matmul both inputs, so that results stand in fp32 until backward. Bytes are reads and writes of
 * a token, kernel by kernel. */
#include "lower/block_backward.h"
#include "lower/block_forward.h"

/* Of a token: c bytes of the compute dtype, k rows of h. */
struct rows {
    double c, k, h, experts;
};

static struct rows rows_of(const struct dtp_lowering *l)
{
    const struct dtp_layer_kind *kind = &l->tensors.kind;
    return (struct rows){(double)l->compute, (double)kind->experts_per_token, (double)kind->hidden,
                         (double)kind->experts};
}

static void draft_eager(const struct dtp_lowering *l, struct dtp_draft *draft, double bytes_per_token, uint32_t kernels)
{
    dtp_draft_memory(l, draft, bytes_per_token * (double)l->tokens, kernels);
    draft->op.demand.memory_kernel = DTP_KERNEL_EAGER;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* Scores to fp32 (c + 4) E and through softmax 8 E, where a compiler makes one pass of both; the k largest of 4 E; and
 * of T k whole numbers their histogram, sort (by radix: 8 passes over pairs of 8 bytes) and quotient. */
void dtp_forward_router(const struct pass *pass)
{
    struct dtp_lowering *l = pass->l;
    struct rows r = rows_of(l);
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
    draft_eager(l, &draft, weights + 4 * r.experts + (8 * 16 + 6 * 8) * r.k, l->compiled ? 14 : 22);
    dtp_draft_end(l, &draft);
}

/* x[order / k]: k rows read and written. */
void dtp_forward_permute(const struct pass *pass, const struct dtp_layer_operator *op)
{
    struct dtp_lowering *l = pass->l;
    struct rows r = rows_of(l);
    if (!wanted(pass, DTP_TENSOR_PERMUTED))
        return;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_PERMUTE, "");
    make(pass, &draft, DTP_TENSOR_PERMUTED);
    read(pass, &draft, dtp_layer_first(op->reads), false);
    read(pass, &draft, DTP_TENSOR_ROUTES, false);
    draft_eager(l, &draft, 2 * r.c * r.k * r.h, 2);
    dtp_draft_end(l, &draft);
}

/* b.repeat_interleave(tokens of each expert) makes a row for each of theirs, which is added to the matmul's result in a
 * new tensor (torchtitan's models/gpt_oss/moe.py): c out written, 3 c out; compiled in one pass of 2 c out. */
void dtp_forward_expert_bias(const struct pass *pass, int matrix)
{
    struct dtp_lowering *l = pass->l;
    const struct dtp_layer_matrix *m = &l->matrix[matrix];
    if (m->groups < 2 || !m->bias)
        return;
    double out = rows_of(l).c * rows_of(l).k * (double)m->out;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_RESIDUAL, "biases of experts");
    dtp_draft_use(&draft, pass->module->tensor[m->result], DTP_UPDATE);
    if (!l->compiled)
        dtp_draft_new(l, &draft, "rows of biases and their sum", DTP_OWNER_WORKSPACE,
                      dtp_bytes_product(2, l->tensor_bytes[m->result]), DTP_UPDATE | DTP_FREE);
    draft_eager(l, &draft, (l->compiled ? 2 : 4) * out, l->compiled ? 1 : 3);
    if (l->compiled)
        draft.op.demand.memory_kernel = DTP_KERNEL_FUSED;
    dtp_draft_end(l, &draft);
}

/* Zeros c k h, u[order] = y 2 c k h, to fp32 (c + 4) k h, weighed and added up 4 k h + 4 h, cast (4 + c) h; what shared
 * experts add, and its weight, 3 c h each. */
void dtp_forward_unpermute(const struct pass *pass, const struct dtp_layer_operator *op)
{
    struct dtp_lowering *l = pass->l;
    struct rows r = rows_of(l);
    if (!wanted(pass, DTP_TENSOR_DOWN) && !wanted(pass, DTP_TENSOR_WIDE_RESULTS))
        return;
    bool shared = op->reads & DTP_TENSOR_BIT(SHARED_DOWN), weighed = op->reads & DTP_TENSOR_BIT(SHARED_WEIGHT);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_UNPERMUTE, "");
    make(pass, &draft, DTP_TENSOR_UNPERMUTED);
    make(pass, &draft, DTP_TENSOR_WIDE_RESULTS);
    make(pass, &draft, DTP_TENSOR_DOWN);
    dtp_draft_new(l, &draft, "sum in fp32", DTP_OWNER_WORKSPACE,
                  dtp_bytes_product(l->tokens, 4 * l->tensors.kind.hidden), DTP_UPDATE | DTP_FREE);
    read(pass, &draft, DTP_TENSOR_EXPERT_DOWN, true);
    read(pass, &draft, DTP_TENSOR_ROUTES, false);
    read(pass, &draft, DTP_TENSOR_SHARED_DOWN, true);
    read(pass, &draft, DTP_TENSOR_SHARED_WEIGHT, true);
    double kh = r.k * r.h, more = (shared ? 3 * r.c * r.h : 0) + (weighed ? 2 * r.c * r.h : 0);
    draft_eager(l, &draft, (4 * r.c + 8) * kh + (8 + r.c) * r.h + more, 6u + (shared ? 1u : 0) + (weighed ? 2u : 0));
    dtp_draft_end(l, &draft);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

static void use_and_let_go(const struct dtp_block_backward *b, struct dtp_draft *draft, dtp_buffer_id gradient)
{
    bool stays = gradient.index == b->l->flight->gradient.index || dtp_backward_shared(b, gradient);
    dtp_draft_use(draft, gradient, stays ? DTP_READ : DTP_READ | DTP_FREE);
}

/* The gradient in fp32 (c + 4) h; of the batched matmul's inputs, 4 k h read for the weights', 4 k h written for the
 * rows'. */
static dtp_buffer_id weigh_back(struct dtp_block_backward *b, dtp_buffer_id gradient)
{
    struct dtp_lowering *l = b->l;
    struct rows r = rows_of(l);
    uint64_t wide = dtp_backward_token_bytes(l, 4 * l->tensors.kind.hidden);
    uint64_t weights = dtp_backward_token_bytes(l, 4 * l->tensors.kind.experts_per_token);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_UNPERMUTE_BACKWARD, "weights");
    dtp_backward_workspace(l, &draft, "gradient in fp32", wide, DTP_UPDATE | DTP_FREE);
    b->gradient[DTP_TENSOR_ROUTER_WEIGHTS] =
        dtp_backward_workspace(l, &draft, "router weight gradient", weights, DTP_WRITE);
    dtp_buffer_id made = dtp_backward_workspace(l, &draft, "gradient of results in fp32",
                                                l->tensor_bytes[DTP_TENSOR_WIDE_RESULTS], DTP_WRITE);
    use_and_let_go(b, &draft, gradient);
    dtp_backward_consume(b, &draft, DTP_TENSOR_WIDE_RESULTS, DTP_READ | DTP_FREE);
    draft_eager(l, &draft, 8 * r.k * r.h + (r.c + 12) * r.h, 4);
    dtp_draft_end(l, &draft);
    return made;
}

/* Into the compute dtype (4 + c) k h, then by experts: 2 c k h. */
static dtp_buffer_id rows_back(struct dtp_block_backward *b, dtp_buffer_id gradient, const char *name, double bytes)
{
    struct dtp_lowering *l = b->l;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_UNPERMUTE_BACKWARD, name);
    dtp_buffer_id made = dtp_backward_workspace(
        l, &draft, "gradient of results",
        dtp_backward_token_bytes(l, l->compute * dtp_layer_tensor_width(&l->tensors.kind, DTP_TENSOR_EXPERT_DOWN)),
        DTP_WRITE);
    dtp_draft_use(&draft, gradient, DTP_READ | DTP_FREE);
    draft_eager(l, &draft, bytes, 1);
    dtp_draft_end(l, &draft);
    return made;
}

/* What shared experts add has the gradient as it is; weighed, a product of it, and their weight a sum of another. */
static void shared_gradients(struct dtp_block_backward *b, dtp_buffer_id gradient)
{
    struct dtp_lowering *l = b->l;
    double h = (double)(l->compute * l->tensors.kind.hidden);
    b->gradient[DTP_TENSOR_SHARED_DOWN] = gradient;
    if (!l->tensors.kind.shared_gate)
        return;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_UNPERMUTE_BACKWARD, "weight of shared experts");
    b->gradient[DTP_TENSOR_SHARED_DOWN] =
        dtp_backward_workspace(l, &draft, "gradient of shared experts",
                               dtp_backward_token_bytes(l, l->compute * l->tensors.kind.hidden), DTP_WRITE);
    b->gradient[DTP_TENSOR_SHARED_WEIGHT] = dtp_backward_workspace(l, &draft, "gradient of their weight",
                                                                   dtp_backward_token_bytes(l, l->compute), DTP_WRITE);
    dtp_draft_use(&draft, gradient, DTP_READ);
    dtp_backward_consume(b, &draft, DTP_TENSOR_SHARED_DOWN, DTP_READ | DTP_FREE);
    dtp_backward_consume(b, &draft, DTP_TENSOR_SHARED_WEIGHT, DTP_READ | DTP_FREE);
    draft_eager(l, &draft, 4 * h, 4);
    dtp_draft_end(l, &draft);
}

void dtp_backward_unpermute(struct dtp_block_backward *b)
{
    struct rows r = rows_of(b->l);
    dtp_buffer_id gradient = b->gradient[DTP_TENSOR_DOWN];
    b->gradient[DTP_TENSOR_DOWN] = DTP_NO_BUFFER;
    if (b->l->tensors.kind.shared_ffn)
        shared_gradients(b, gradient);
    dtp_buffer_id wide = weigh_back(b, gradient);
    dtp_buffer_id by_tokens = rows_back(b, wide, "cast", (4 + r.c) * r.k * r.h);
    b->gradient[DTP_TENSOR_EXPERT_DOWN] = rows_back(b, by_tokens, "rows by experts", 2 * r.c * r.k * r.h);
}

/* Indexing's gradient: zeros c h, and k rows added to each token's by index, which are sorted first
 * (index_put_with_sort_kernel of Indexing.cu): c k h read and as much read and written of the sum. */
void dtp_backward_permute(struct dtp_block_backward *b)
{
    struct dtp_lowering *l = b->l;
    struct rows r = rows_of(l);
    enum dtp_layer_tensor of = dtp_layer_first(dtp_backward_operator(b)->reads);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_PERMUTE_BACKWARD, "");
    dtp_buffer_id made = dtp_backward_workspace(
        l, &draft, "gradient by tokens", dtp_backward_token_bytes(l, l->compute * l->tensors.kind.hidden), DTP_WRITE);
    dtp_draft_use(&draft, b->gradient[DTP_TENSOR_PERMUTED], DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, b->module->tensor[DTP_TENSOR_ROUTES], DTP_READ);
    b->gradient[DTP_TENSOR_PERMUTED] = DTP_NO_BUFFER;
    draft_eager(l, &draft, (3 * r.k + 1) * r.c * r.h + 8 * 16 * r.k, 10);
    dtp_draft_end(l, &draft);
    b->gradient[of] = dtp_backward_add(b, of, b->gradient[of], made);
}

/* Zeros and the k largest's gradients among them 4 E, softmax's 12 E, cast (4 + c) E. */
void dtp_backward_router(struct dtp_block_backward *b)
{
    struct dtp_lowering *l = b->l;
    struct rows r = rows_of(l);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ROUTER_BACKWARD, "");
    dtp_backward_workspace(l, &draft, "router weight gradients", 2 * l->tensor_bytes[DTP_TENSOR_ROUTER_WEIGHTS],
                           DTP_UPDATE | DTP_FREE);
    b->gradient[DTP_TENSOR_ROUTER_SCORES] =
        dtp_backward_workspace(l, &draft, "router score gradient",
                               dtp_backward_token_bytes(l, l->compute * l->tensors.kind.experts), DTP_WRITE);
    dtp_draft_use(&draft, b->gradient[DTP_TENSOR_ROUTER_WEIGHTS], DTP_READ | DTP_FREE);
    b->gradient[DTP_TENSOR_ROUTER_WEIGHTS] = DTP_NO_BUFFER;
    dtp_backward_consume(b, &draft, DTP_TENSOR_ROUTER_WEIGHTS, DTP_READ | DTP_FREE);
    dtp_backward_consume(b, &draft, DTP_TENSOR_ROUTES, DTP_READ | DTP_FREE);
    draft_eager(l, &draft, (20 + r.c) * r.experts, l->compiled ? 4 : 8);
    dtp_draft_end(l, &draft);
}
