/* Attention sinks of gpt-oss, as torchtitan's models/gpt_oss/model.py has them behind a kernel that returns its
 * log-sum-exp: a score of each head stands beside those of keys, so that of the kernel's result remains
 * sigmoid(log-sum-exp - sink). H heads of d, c bytes of the compute dtype, scales in fp32.
 *
 * Transformers' flex_attention_forward (integrations/flex_attention.py of 5.24) has the same factor otherwise, all in
 * the compute dtype: the log-sum-exp is cast 4 + c, laid beside the sinks 4 c, of both another is taken - by eight
 * operators: the largest 3 c, its absolute value, a comparison and a mask 6 c, differences 5 c, their exponentials 4 c,
 * a sum 3 c, its logarithm 2 c, the largest added 3 c, 26 c in all - a difference 3 c, whose exponential 2 c is the
 * factor. Backward that goes the other way: 3 c of the exponential, 2 c, of the log-sum-exp a difference, an
 * exponential and a product of two columns 15 c, cut 2 c, cast c + 4. The kernel's result lies by heads, for queries
 * do, and so does the product, which is copied by tokens. */
#include "lower/block_backward.h"
#include "lower/block_forward.h"

/* Difference and sigmoid of 4 H (8 each, and 4 + c to the compute dtype), the product 2 c H d: the matmul behind it
 * reads another tensor than the kernel made. */
void dtp_forward_sinks(const struct pass *pass)
{
    struct dtp_lowering *l = pass->l;
    double heads = (double)l->tensors.kind.heads, c = (double)l->compute;
    double result = c * (double)l->tensors.kind.d_core;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_RESIDUAL, "sinks");
    make(pass, &draft, DTP_TENSOR_CORE_COPY);
    read(pass, &draft, DTP_TENSOR_CORE, true);
    read(pass, &draft, DTP_TENSOR_CORE_STATE, false);
    bool joins = l->tensors.kind.joins_sinks;
    if (joins)
        dtp_draft_new(l, &draft, "weighed attention result", DTP_OWNER_WORKSPACE, l->tensor_bytes[DTP_TENSOR_CORE],
                      DTP_UPDATE | DTP_FREE);
    double scales = joins ? 4 + 36 * c : l->fused ? 4 : 20 + c;
    dtp_draft_memory(l, &draft, per_token(l, (joins ? 4 : 2) * result + scales * heads), joins ? 14 : l->fused ? 1 : 4);
    dtp_draft_end(l, &draft);
}

/* Of the kernel's result the gradient times the scale (2 c H d), of the scale its product with the result (3 c H d)
 * summed over a head (c H d); compiled both in one pass of 3 c H d. */
void dtp_backward_sinks(struct dtp_block_backward *b)
{
    struct dtp_lowering *l = b->l;
    if (!l->tensors.kind.sinks || l->tensors.kind.sinks_inside)
        return;
    double result = (double)(l->compute * l->tensors.kind.d_core);
    bool joins = l->tensors.kind.joins_sinks;
    double scales = joins ? (double)((23 * l->compute + 4) * l->tensors.kind.heads) : 0;
    uint64_t bytes = dtp_backward_token_bytes(l, l->compute * l->tensors.kind.d_core);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_RESIDUAL_BACKWARD, "sinks");
    dtp_buffer_id made = dtp_backward_workspace(l, &draft, "attention result gradient", bytes, DTP_WRITE);
    if (!l->fused)
        dtp_backward_workspace(l, &draft, "product of result and gradient", bytes, DTP_UPDATE | DTP_FREE);
    dtp_draft_use(&draft, b->gradient[DTP_TENSOR_CORE_COPY], DTP_READ | DTP_FREE);
    dtp_backward_consume(b, &draft, DTP_TENSOR_CORE, DTP_READ);
    dtp_backward_consume(b, &draft, DTP_TENSOR_CORE_STATE, DTP_READ);
    b->gradient[DTP_TENSOR_CORE_COPY] = made;
    dtp_draft_memory(l, &draft, dtp_backward_per_token(l, (l->fused ? 3 : 6) * result + scales),
                     joins      ? 11
                     : l->fused ? 2
                                : 4);
    dtp_draft_end(l, &draft);
}
