/* What stands around experts that Transformers 5 multiplies by grouped matmuls, its default (grouped_mm_experts_forward
 * of integrations/moe.py, of 5.24). Experts are one tensor of each matrix, gate and up side by side in one; tokens are
 * sorted by experts and their rows taken by index as torchtitan has it (lower_experts.c), and behind the matmuls, all
 * in the compute dtype and eager:
 *
 *   weighed    rows times their weights, which saves both
 *   by tokens  u = weighed[inverse], where the inverse of the sort is numbers put at its places
 *   sum        of the k rows of each token
 *
 * Backward: the sum's gradient is the token's for each of its rows; indexing's adds these, laid out whole before, by
 * places that are sorted, to zeros (index_put_with_sort_kernel of Indexing.cu); the product gives rows' gradients, and
 * terms of the weights'. Bytes are reads and writes of a token, kernel by kernel; closed/expert_bytes.c counts them
 * again. */
#include "lower/expert_rows.h"

/* Of the rank's tokens' rows, in the compute dtype. */
static uint64_t row_bytes(const struct dtp_lowering *l)
{
    return local_bytes(l, l->compute * dtp_layer_tensor_width(&l->tensors.kind, DTP_TENSOR_EXPERT_DOWN));
}

/* Weighed 2 c k h and by tokens 2 c k h, summed c k h + c h; what shared experts add 3 c h, and its weight 2 c h. */
void dtp_forward_sorted_unpermute(const struct pass *pass, const struct dtp_layer_operator *op)
{
    struct dtp_lowering *l = pass->l;
    struct rows r = rows_of(l);
    bool shared = op->reads & DTP_TENSOR_BIT(SHARED_DOWN), weighed = op->reads & DTP_TENSOR_BIT(SHARED_WEIGHT);
    struct dtp_draft draft;
    if (!wanted(pass, DTP_TENSOR_DOWN))
        return;
    dtp_draft_begin(l, &draft, DTP_OP_UNPERMUTE, "by tokens");
    make(pass, &draft, DTP_TENSOR_UNPERMUTED);
    dtp_draft_new(l, &draft, "weighed rows", DTP_OWNER_WORKSPACE, row_bytes(l), DTP_UPDATE | DTP_FREE);
    read(pass, &draft, DTP_TENSOR_EXPERT_DOWN, true);
    read(pass, &draft, DTP_TENSOR_ROUTES, false);
    draft_eager(l, &draft, 4 * r.c * r.k * r.h, 4);
    dtp_draft_end(l, &draft);
    dtp_draft_begin(l, &draft, DTP_OP_UNPERMUTE, "");
    make(pass, &draft, DTP_TENSOR_DOWN);
    read(pass, &draft, DTP_TENSOR_UNPERMUTED, true);
    read(pass, &draft, DTP_TENSOR_SHARED_DOWN, true);
    read(pass, &draft, DTP_TENSOR_SHARED_WEIGHT, true);
    double more = ((shared ? 3 : 0) + (weighed ? 2 : 0)) * r.c * r.h;
    draft_eager(l, &draft, r.c * (r.k + 1) * r.h + more, 1u + (shared ? 1u : 0) + (weighed ? 2u : 0));
    dtp_draft_end(l, &draft);
    dtp_forward_end_folded(pass);
}

/* Zeros c k h, the gradient laid out c k h + c h, added by index 3 c k h, behind a sort of pairs of 8 bytes, by radix
 * in 8 passes. */
static dtp_buffer_id by_experts(struct dtp_block_backward *b, dtp_buffer_id gradient)
{
    struct dtp_lowering *l = b->l;
    struct rows r = rows_of(l);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_UNPERMUTE_BACKWARD, "rows by experts");
    dtp_buffer_id made = dtp_backward_workspace(l, &draft, "gradient of weighed rows", row_bytes(l), DTP_WRITE);
    dtp_backward_workspace(l, &draft, "gradients of a token's rows", row_bytes(l), DTP_UPDATE | DTP_FREE);
    use_and_let_go(b, &draft, gradient);
    dtp_draft_use(&draft, b->module->tensor[DTP_TENSOR_ROUTES], DTP_READ);
    draft_eager(l, &draft, (5 * r.k + 1) * r.c * r.h + 8 * 16 * r.k, 11);
    dtp_draft_end(l, &draft);
    return made;
}

/* Times their weights 2 c k h; times what experts returned 3 c k h, and summed c k h. */
void dtp_backward_sorted_unpermute(struct dtp_block_backward *b)
{
    struct dtp_lowering *l = b->l;
    struct rows r = rows_of(l);
    dtp_buffer_id gradient = b->gradient[DTP_TENSOR_DOWN];
    b->gradient[DTP_TENSOR_DOWN] = DTP_NO_BUFFER;
    if (l->tensors.kind.shared_ffn)
        dtp_backward_shared_experts(b, gradient);
    dtp_buffer_id rows = by_experts(b, gradient);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_UNPERMUTE_BACKWARD, "weights");
    b->gradient[DTP_TENSOR_EXPERT_DOWN] =
        dtp_backward_workspace(l, &draft, "gradient of results", row_bytes(l), DTP_WRITE);
    b->gradient[DTP_TENSOR_ROUTER_WEIGHTS] = dtp_backward_workspace(
        l, &draft, "router weight gradient", local_bytes(l, 4 * l->tensors.kind.experts_per_token), DTP_WRITE);
    dtp_backward_workspace(l, &draft, "terms of weights' gradients", row_bytes(l), DTP_UPDATE | DTP_FREE);
    dtp_draft_use(&draft, rows, DTP_READ | DTP_FREE);
    dtp_backward_consume(b, &draft, DTP_TENSOR_EXPERT_DOWN, DTP_READ | DTP_FREE);
    draft_eager(l, &draft, 6 * r.c * r.k * r.h, 3);
    dtp_draft_end(l, &draft);
}
