/* torchtitan's experts beside tensor parallelism (dtp_plan_routes_all), as PyTorch's DTensor moves their rows:
 *
 *   forward   rows of the norm before are gathered (PrepareModuleInputOutput, a replicated DTensor made local), and
 * what each rank makes of all of them, of its experts and its part of shared ones, is a term: a reduce-scatter backward
 * the gradient of that sum is gathered. Whoever has a part of a width returns terms of its input's gradient, which
 * DTensor sums into a tensor of its own, for each linear by itself and for rows of experts before they are added up by
 * tokens (grad_placements Partial of TensorParallel and ExpertTensorParallel). What is whole then is the gradient of a
 * replicated tensor, of which each rank copies its rows (_replicate_to_shard).
 *
 * Where ranks have whole experts, and rows of their own tokens behind the router (ReordererSequenceParallel), no rows
 * are summed; a router's weight is whole on each (NoParallel), and so is its gradient. */
#include "lower/block_backward.h"
#include "lower/block_forward.h"
#include "lower/expert_rows.h"

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* A replay ends before that sum, or has kept it. */
dtp_buffer_id dtp_forward_make_terms(const struct pass *pass, struct dtp_draft *draft)
{
    struct dtp_lowering *l = pass->l;
    if (!l->tensors.kind.routes_all) {
        make(pass, draft, DTP_TENSOR_DOWN);
        return DTP_NO_BUFFER;
    }
    dtp_buffer_id terms =
        dtp_draft_new(l, draft, "terms of a sum", DTP_OWNER_WORKSPACE, dtp_lower_whole_stream(l, l->compute),
                      pass->replay ? DTP_WRITE | DTP_FREE : DTP_WRITE);
    return pass->replay ? DTP_NO_BUFFER : terms;
}

void dtp_forward_sum_terms(const struct pass *pass, dtp_buffer_id terms)
{
    if (terms.index == DTP_NO_INDEX)
        return;
    pass->module->tensor[DTP_TENSOR_DOWN] =
        dtp_lower_scatter_sum(pass->l, "experts", terms, DTP_READ | DTP_FREE, dtp_layer_tensor_text(DTP_TENSOR_DOWN),
                              pass->l->compute, false);
    pass->module->alive |= DTP_TENSOR_BIT(DOWN);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

dtp_buffer_id dtp_backward_gather_terms(const struct dtp_block_backward *b, dtp_buffer_id gradient)
{
    struct dtp_lowering *l = b->l;
    struct dtp_draft draft;
    if (!l->tensors.kind.routes_all)
        return gradient;
    dtp_draft_begin(l, &draft, DTP_OP_ALL_GATHER, "experts");
    use_and_let_go(b, &draft, gradient);
    return dtp_lower_gather_rows(l, &draft, DTP_OWNER_WORKSPACE, dtp_lower_whole_stream(l, l->compute), NULL);
}

static dtp_buffer_id sum_apart(struct dtp_lowering *l, const char *name, dtp_buffer_id terms, uint64_t bytes)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ALL_REDUCE, name);
    dtp_buffer_id sum = dtp_draft_new(l, &draft, "input gradient", DTP_OWNER_WORKSPACE, bytes, DTP_WRITE);
    dtp_draft_use(&draft, terms, DTP_READ | DTP_FREE);
    l->awaited = dtp_lower_tensor_end(l, &draft, bytes, false);
    return sum;
}

dtp_buffer_id dtp_backward_sum_shared(const struct dtp_block_backward *b, int matrix, dtp_buffer_id gradient)
{
    struct dtp_lowering *l = b->l;
    const enum dtp_layer_matrix_id id = l->matrix[matrix].id;
    if (!l->tensors.kind.routes_all || (id != DTP_MATRIX_SHARED_GATE && id != DTP_MATRIX_SHARED_UP))
        return gradient;
    return sum_apart(l, l->matrix[matrix].name, gradient, dtp_lower_whole_stream(l, l->compute));
}

dtp_buffer_id dtp_backward_sum_latent(const struct dtp_block_backward *b, int matrix, dtp_buffer_id gradient)
{
    struct dtp_lowering *l = b->l;
    return sum_apart(l, l->matrix[matrix].name, gradient,
                     dtp_backward_token_bytes(l, l->compute * l->matrix[matrix].in));
}

dtp_buffer_id dtp_backward_sum_shared_keys(const struct dtp_block_backward *b, dtp_buffer_id gradient, uint64_t bytes)
{
    return sum_apart(b->l, "shared keys", gradient, bytes);
}

void dtp_backward_sum_rows(struct dtp_block_backward *b, uint64_t bytes)
{
    if (b->l->tensors.kind.routes_all && dtp_plan_width_ranks(b->l->plan) > 1)
        b->gradient[DTP_TENSOR_PERMUTED] = sum_apart(b->l, "rows of experts", b->gradient[DTP_TENSOR_PERMUTED], bytes);
}

dtp_buffer_id dtp_backward_own_rows(const struct dtp_block_backward *b, dtp_buffer_id gradient)
{
    struct dtp_lowering *l = b->l;
    const uint64_t whole = dtp_lower_whole_stream(l, l->compute), own = dtp_divide_up(whole, dtp_lower_token_parts(l));
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_COPY_OUT, "gradient of own rows");
    dtp_buffer_id made = dtp_backward_workspace(l, &draft, "input gradient", own, DTP_WRITE);
    dtp_draft_use(&draft, gradient, DTP_READ | DTP_FREE);
    dtp_draft_memory(l, &draft, 2 * (double)own, 1);
    dtp_draft_end(l, &draft);
    return made;
}
