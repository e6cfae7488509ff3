/* The norm between the last layer and the head, and its backward, in which the residual stream's gradient begins. */
#include "lower/lowering.h"

#include "base/bytes.h"
#include "plan/norm_chain.h"

static uint64_t tokens_bytes(uint64_t tokens, uint64_t bytes_per_token)
{
    return dtp_bytes_product(tokens, bytes_per_token);
}

/* Without a final norm the head reads the last block's result, and its matmul saves that, or the cast which autocast
 * makes of it: final_norm is what the head reads, final_wide what only the model's forward still holds. */
static void head_input(struct dtp_lowering *l)
{
    struct dtp_draft draft;
    l->flight->final_norm = l->flight->final_input;
    if (l->residual == l->compute)
        return;
    dtp_draft_begin(l, &draft, DTP_OP_CAST, "head input");
    dtp_draft_use(&draft, l->flight->final_input, DTP_READ);
    l->flight->final_norm = dtp_draft_new(l, &draft, "head input", DTP_OWNER_ACTIVATIONS,
                                          tokens_bytes(l->tokens, l->compute * l->between), DTP_WRITE);
    dtp_draft_memory(l, &draft, 0, 1);
    dtp_draft_end(l, &draft);
    l->flight->final_wide = l->flight->final_input;
}

bool dtp_lower_casts_at_head(const struct dtp_lowering *l)
{
    bool whole = l->loss != DTP_LOSS_CHUNKED && !dtp_plan_shifts_logits(l->plan) && !dtp_lower_spreads(l);
    return l->autocast && !l->adapts && whole && l->transformer->final_norm;
}

void dtp_lower_final_norm(struct dtp_lowering *l)
{
    const struct dtp_transformer *t = l->transformer;
    l->flight->final_statistics = l->flight->final_wide = DTP_NO_BUFFER;
    if (!t->final_norm) {
        head_input(l);
        return;
    }
    uint64_t copy = dtp_norm_chain_head(t, l->plan); /* which it saves in place of its input */
    bool drops = copy && !l->autocast;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_NORM, "final norm");
    dtp_draft_use(&draft, l->flight->final_input, drops ? DTP_READ | DTP_FREE : DTP_READ);
    if (drops)
        l->flight->final_input = DTP_NO_BUFFER;
    l->flight->final_norm = DTP_NO_BUFFER;
    if (!dtp_lower_casts_at_head(l))
        l->flight->final_norm = dtp_draft_new(l, &draft, "final norm", DTP_OWNER_ACTIVATIONS,
                                              tokens_bytes(l->tokens, l->results * l->between), DTP_WRITE);
    l->flight->final_statistics =
        dtp_draft_new(l, &draft, "final norm statistics", DTP_OWNER_ACTIVATIONS,
                      l->tensor_bytes[DTP_TENSOR_STATISTICS1] + tokens_bytes(l->tokens, copy * l->between), DTP_WRITE);
    l->flight->final_wide = dtp_draft_new(l, &draft, "final norm in fp32", DTP_OWNER_ACTIVATIONS,
                                          l->autocast ? tokens_bytes(l->tokens, 4 * l->between) : 0, DTP_WRITE);
    dtp_draft_memory(l, &draft, 0, 1);
    dtp_draft_end(l, &draft);
}

/* What flows back from the head in the dtype of the residual stream: under autocast the head read a cast of it. */
static dtp_buffer_id in_residual_dtype(struct dtp_lowering *l, dtp_buffer_id gradient, const char *name)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_CAST, "final norm gradient");
    dtp_buffer_id cast =
        dtp_draft_new(l, &draft, name, DTP_OWNER_WORKSPACE, l->tensor_bytes[DTP_TENSOR_INPUT], DTP_WRITE);
    dtp_draft_use(&draft, gradient, DTP_READ | DTP_FREE);
    dtp_draft_memory(l, &draft, 0, 1);
    dtp_draft_end(l, &draft);
    return cast;
}

/* Gradients of norms and biases outside of blocks are small and appear as one buffer, with the final norm's; without
 * one, a bias of the head or a norm of the embedding has it made here. */
static void root_vectors(struct dtp_lowering *l)
{
    struct dtp_draft draft;
    if (!l->root.trained[DTP_ROOT_VECTORS])
        return;
    dtp_draft_begin(l, &draft, DTP_OP_NORM_BACKWARD, "vector gradients");
    dtp_lower_gradient_result(l, &draft, DTP_ROOT_VECTORS, l->compute);
    dtp_draft_memory(l, &draft, 0, 1);
    dtp_draft_end(l, &draft);
    dtp_lower_gradient_made(l, DTP_ROOT_VECTORS);
}

/* The residual stream's gradient is born here and updated in place down to the embedding. A chunked loss summed it in
 * fp32, which a norm reads as it is. */
void dtp_lower_final_norm_backward(struct dtp_lowering *l, dtp_buffer_id gradient)
{
    bool chunked = l->loss == DTP_LOSS_CHUNKED;
    if (!l->transformer->final_norm) {
        bool same = l->residual == (chunked ? 4 : l->compute);
        l->flight->gradient = same ? gradient : in_residual_dtype(l, gradient, "residual gradient");
        root_vectors(l);
        return;
    }
    if (l->residual != l->compute && !chunked)
        gradient = in_residual_dtype(l, gradient, "final norm gradient in fp32");
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_NORM_BACKWARD, "final norm");
    l->flight->gradient = dtp_draft_new(l, &draft, "residual gradient", DTP_OWNER_WORKSPACE,
                                        l->tensor_bytes[DTP_TENSOR_INPUT], DTP_WRITE);
    uint32_t last = dtp_lower_keeps_graph(l) ? DTP_READ : DTP_READ | DTP_FREE;
    dtp_draft_use(&draft, gradient, DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, l->flight->final_input, last);
    dtp_draft_use(&draft, l->flight->final_statistics, last);
    if (!l->adapts)
        dtp_lower_gradient_result(l, &draft, DTP_ROOT_VECTORS, l->compute);
    dtp_draft_memory(l, &draft, 0, 2);
    dtp_draft_end(l, &draft);
    if (l->adapts)
        return;
    if (!l->transformer->norm_without_weight)
        dtp_lower_sum_norm_gradient(l, DTP_ROOT_VECTORS, l->transformer->hidden);
    dtp_lower_gradient_made(l, DTP_ROOT_VECTORS);
}
