/* What stands around experts that are modules of their own, called one after the other: Transformers' sparse blocks
 * until its release 5 (modeling_mixtral.py, MixtralSparseMoeBlock.forward; Qwen2-MoE's, Qwen3-MoE's and OLMoE's are
 * the same), and in later ones experts in one tensor under experts_implementation eager (integrations/moe.py).
 *
 *   router     softmax of the scores in fp32, the k largest, their weights over their sum and to the compute dtype; a
 *              one-hot [E, k, T] of whole numbers of 8 bytes
 *   expert     torch.where of its part of that, which the host waits for; its tokens' rows x[None, tokens]
 *   behind it  rows times their weights, added to the block's result by index (index_add_)
 *
 * What an expert keeps for backward is its own: rows that its matmuls read where they are trained, gate, silu and up,
 * what its down matrix returned, which its weights multiplied (that product's derivative reads both). All of these
 * stand when the replay is through, and backward goes from the last expert to the first, so that all else, gradients
 * of rows and of what lies between matmuls, is of one expert at a time. Indexing's gradient is a tensor of zeros of all
 * tokens with the expert's rows added (index_backward of FunctionsManual.cpp), one for each expert, and these are added
 * up. Bytes are reads and writes of a token, kernel by kernel; closed/block_work.c counts them again. */
#include "lower/block_backward.h"
#include "lower/block_forward.h"

/* Of a token: bytes of its rows, of itself. */
static double rows_bytes(const struct dtp_lowering *l)
{
    const struct dtp_layer_kind *kind = &l->tensors.kind;
    return (double)(l->results * kind->experts_per_token * kind->hidden);
}

static double token_bytes(const struct dtp_lowering *l)
{
    return (double)(l->results * l->tensors.kind.hidden);
}

static uint32_t experts_of(const struct dtp_lowering *l)
{
    return (uint32_t)l->tensors.kind.own_experts;
}

/* Of rows of one expert. */
static uint64_t called_rows_bytes(const struct dtp_lowering *l)
{
    return dtp_backward_called_bytes(l, true, dtp_backward_token_bytes(l, (uint64_t)rows_bytes(l)));
}

/* Scores to fp32 (c + 4) E, softmax 8 E, the k largest of 4 E; their sum, quotient and cast 8 (4 + 4) k / 4 each; of
 * the one-hot zeros 8 k E, ones 8 k and, expert by expert, where they are: counted and listed, 2 x 8 k E. */
void dtp_forward_called_router(const struct pass *pass)
{
    struct dtp_lowering *l = pass->l;
    const struct dtp_layer_kind *kind = &l->tensors.kind;
    double c = (double)l->results, k = (double)kind->experts_per_token, experts = (double)kind->experts;
    if (!wanted(pass, DTP_TENSOR_ROUTER_WEIGHTS) && !wanted(pass, DTP_TENSOR_ROUTES))
        return;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ROUTER, "");
    make(pass, &draft, DTP_TENSOR_ROUTER_WEIGHTS);
    make(pass, &draft, DTP_TENSOR_ROUTES);
    dtp_draft_new(l, &draft, "router scores in fp32", DTP_OWNER_WORKSPACE, l->tensor_bytes[DTP_TENSOR_ROUTER_WEIGHTS],
                  DTP_UPDATE | DTP_FREE);
    read(pass, &draft, DTP_TENSOR_ROUTER_SCORES, true);
    dtp_draft_memory(l, &draft, per_token(l, (c + 16) * experts + 24 * k * experts + 32 * k), 10);
    dtp_draft_end(l, &draft);
}

/* The host reads how many tokens each expert has before it launches what works on them, which the device comes to when
 * it is through with the expert before: what follows a layer is not issued until its experts are through, but for the
 * last one. */
static void wait_for_counts(struct dtp_lowering *l)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_HOST_WAIT, "tokens of an expert");
    draft.op.stream = DTP_STREAM_HOST;
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_COMPUTE]);
    dtp_draft_end(l, &draft);
}

/* x[None, tokens], expert by expert, behind four kernels of torch.where. */
void dtp_forward_called_permute(const struct pass *pass, const struct dtp_layer_operator *op)
{
    struct dtp_lowering *l = pass->l;
    if (!wanted(pass, DTP_TENSOR_PERMUTED))
        return;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_PERMUTE, "");
    make(pass, &draft, DTP_TENSOR_PERMUTED);
    read(pass, &draft, dtp_layer_first(op->reads), false);
    read(pass, &draft, DTP_TENSOR_ROUTES, false);
    dtp_draft_memory(l, &draft, per_token(l, 2 * rows_bytes(l)), 5 * experts_of(l));
    draft.op.demand.memory_kernel = DTP_KERNEL_EAGER;
    dtp_draft_end(l, &draft);
}

/* Zeros c h; rows times their weights 2 c k h, added by index 3 c k h; shared experts' result, and its weight's
 * product, as everywhere: 3 c h and 2 c h. */
void dtp_forward_called_unpermute(const struct pass *pass, const struct dtp_layer_operator *op)
{
    struct dtp_lowering *l = pass->l;
    if (!wanted(pass, DTP_TENSOR_DOWN))
        return;
    bool shared = op->reads & DTP_TENSOR_BIT(SHARED_DOWN), weighed = op->reads & DTP_TENSOR_BIT(SHARED_WEIGHT);
    struct dtp_draft draft;
    wait_for_counts(l);
    dtp_draft_begin(l, &draft, DTP_OP_UNPERMUTE, "");
    make(pass, &draft, DTP_TENSOR_DOWN);
    dtp_draft_new(l, &draft, "weighed rows", DTP_OWNER_WORKSPACE, called_rows_bytes(l), DTP_UPDATE | DTP_FREE);
    read(pass, &draft, DTP_TENSOR_EXPERT_DOWN, true);
    read(pass, &draft, DTP_TENSOR_ROUTES, false);
    read(pass, &draft, DTP_TENSOR_SHARED_DOWN, true);
    read(pass, &draft, DTP_TENSOR_SHARED_WEIGHT, true);
    double more = ((shared ? 3 : 0) + (weighed ? 2 : 0)) * token_bytes(l);
    dtp_draft_memory(l, &draft, per_token(l, 5 * rows_bytes(l) + token_bytes(l) + more),
                     1u + 3 * experts_of(l) + (shared ? 1u : 0) + (weighed ? 2u : 0));
    dtp_draft_end(l, &draft);
}

/* Rows of the result's gradient, gathered (2 c k h); times their weights (2 c k h); times what the experts returned (3
 * c k h), summed to gradients of weights (c k h). What was returned goes expert by expert: behind the last, for the
 * first one's gradients stand beside all others' results. */
void dtp_backward_called_unpermute(struct dtp_block_backward *b)
{
    struct dtp_lowering *l = b->l;
    dtp_buffer_id gradient = b->gradient[DTP_TENSOR_DOWN];
    b->gradient[DTP_TENSOR_DOWN] = DTP_NO_BUFFER;
    if (l->tensors.kind.shared_ffn)
        dtp_backward_shared_experts(b, gradient);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_UNPERMUTE_BACKWARD, "rows by experts");
    b->gradient[DTP_TENSOR_EXPERT_DOWN] =
        dtp_backward_workspace(l, &draft, "gradient of results", called_rows_bytes(l), DTP_WRITE);
    dtp_backward_workspace(l, &draft, "gradient of weighed rows", called_rows_bytes(l), DTP_UPDATE | DTP_FREE);
    b->gradient[DTP_TENSOR_ROUTER_WEIGHTS] =
        dtp_backward_workspace(l, &draft, "router weight gradient",
                               dtp_backward_token_bytes(l, 4 * l->tensors.kind.experts_per_token), DTP_WRITE);
    dtp_backward_consume(b, &draft, DTP_TENSOR_EXPERT_DOWN, DTP_READ);
    bool stays = gradient.index == l->flight->gradient.index || dtp_backward_shared(b, gradient);
    dtp_draft_use(&draft, gradient, stays ? DTP_READ : DTP_READ | DTP_FREE);
    dtp_draft_memory(l, &draft, dtp_backward_per_token(l, 8 * rows_bytes(l)), 8 * experts_of(l));
    dtp_draft_end(l, &draft);
}

/* Of each expert zeros c h, its rows added (3 c k h of all) and, to those before, c h read twice and written. */
void dtp_backward_called_permute(struct dtp_block_backward *b)
{
    struct dtp_lowering *l = b->l;
    uint64_t whole = dtp_backward_token_bytes(l, (uint64_t)token_bytes(l));
    enum dtp_layer_tensor of = dtp_layer_first(dtp_backward_operator(b)->reads);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_PERMUTE_BACKWARD, "");
    dtp_buffer_id made = dtp_backward_workspace(l, &draft, "gradient by tokens", whole, DTP_WRITE);
    dtp_backward_workspace(l, &draft, "gradient of an expert's tokens", whole, DTP_UPDATE | DTP_FREE);
    dtp_draft_use(&draft, b->gradient[DTP_TENSOR_PERMUTED], DTP_READ | DTP_FREE);
    dtp_backward_consume(b, &draft, DTP_TENSOR_EXPERT_DOWN, DTP_FREE);
    dtp_draft_use(&draft, b->module->tensor[DTP_TENSOR_ROUTES], DTP_READ);
    b->gradient[DTP_TENSOR_PERMUTED] = DTP_NO_BUFFER;
    double experts = experts_of(l);
    dtp_draft_memory(l, &draft, dtp_backward_per_token(l, 3 * rows_bytes(l) + (4 * experts - 3) * token_bytes(l)),
                     11 * experts_of(l));
    dtp_draft_end(l, &draft);
    b->gradient[of] = dtp_backward_add(b, of, b->gradient[of], made);
}
