/* The embedding and its backward.
 *
 * Tensor parallel ranks have rows of the vocabulary each: what one makes of the tokens is a term of a sum, zero where a
 * token's row is another's. */
#include "lower/lowering.h"

#include "base/bytes.h"

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* Terms that are whole on each rank become their sum there, or the rank's rows of it, as wide as the stream: autocast
 * does not narrow what an embedding makes (it is on none of torch.amp's lists). Where positions were added, only the
 * whole sum is cut (Megatron-Core's LanguageModelEmbedding reduce-scatters where there are none). */
static dtp_buffer_id sum_of_ranks(struct dtp_lowering *l, dtp_buffer_id whole, const char *name)
{
    bool positions = l->transformer->position == DTP_POSITION_LEARNED;
    if (dtp_lower_spreads(l) && !positions)
        return dtp_lower_scatter_sum(l, "embedding", whole, DTP_READ | DTP_FREE, name, l->residual, false);
    dtp_lower_sum_in_place(l, "embedding", whole, dtp_lower_whole_stream(l, l->residual), false);
    if (!dtp_lower_spreads(l))
        return whole;
    uint64_t bytes = l->tensor_bytes[DTP_TENSOR_INPUT];
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_COPY_OUT, "rows of this rank");
    dtp_draft_use(&draft, whole, DTP_READ | DTP_FREE);
    dtp_buffer_id rows = dtp_draft_new(l, &draft, name, DTP_OWNER_ACTIVATIONS, bytes, DTP_WRITE);
    dtp_draft_memory(l, &draft, 2 * (double)bytes, 1);
    dtp_draft_end(l, &draft);
    return rows;
}

dtp_buffer_id dtp_lower_embedding_rows(struct dtp_lowering *l, const char *name)
{
    struct dtp_draft draft;
    dtp_lower_fetch(l, DTP_ROOT_EMBEDDING);
    dtp_draft_begin(l, &draft, DTP_OP_EMBEDDING, name);
    dtp_draft_use(&draft, l->tokens_in, DTP_READ);
    dtp_draft_use(&draft, dtp_lower_params(dtp_lower_state(l), DTP_ROOT_EMBEDDING), DTP_READ);
    bool divided = l->vocab_ranks > 1, spreads = dtp_lower_spreads(l);
    dtp_buffer_id rows = dtp_draft_new(
        l, &draft, spreads ? "terms of a sum" : name, spreads ? DTP_OWNER_WORKSPACE : DTP_OWNER_ACTIVATIONS,
        divided ? dtp_lower_whole_stream(l, l->residual) : l->tensor_bytes[DTP_TENSOR_INPUT], DTP_WRITE);
    dtp_draft_memory(l, &draft, 0, 1);
    dtp_draft_end(l, &draft);
    if (divided)
        rows = sum_of_ranks(l, rows, name);
    dtp_lower_unfetch(l);
    return rows;
}

/* Rows of the token table, of the position table added to them, and a norm where the model has one (its input is then
 * saved as well). */
void dtp_lower_embedding(struct dtp_lowering *l)
{
    const struct dtp_transformer *t = l->transformer;
    uint64_t bytes = dtp_plan_widens_norms(l->plan) && !dtp_plan_widens_ends(l->plan)
                         ? dtp_bytes_product(l->tokens, l->compute * t->hidden) /* not yet */
                         : l->tensor_bytes[DTP_TENSOR_INPUT];
    uint64_t made = l->vocab_ranks > 1 ? dtp_lower_whole_stream(l, l->residual) : bytes;
    const char *name = t->embedding_norm ? "embedded" : dtp_layer_tensor_text(DTP_TENSOR_INPUT);
    bool spreads = dtp_lower_spreads(l);
    const struct dtp_module_state *root = dtp_lower_state(l);
    struct dtp_draft draft;
    dtp_lower_fetch(l, DTP_ROOT_EMBEDDING);
    if (t->position == DTP_POSITION_LEARNED)
        dtp_lower_fetch(l, DTP_ROOT_POSITION);
    dtp_draft_begin(l, &draft, DTP_OP_EMBEDDING, "");
    dtp_draft_use(&draft, l->tokens_in, DTP_READ);
    dtp_draft_use(&draft, dtp_lower_params(root, DTP_ROOT_EMBEDDING), DTP_READ);
    if (t->position == DTP_POSITION_LEARNED && root->whole[DTP_ROOT_POSITION].index != DTP_NO_INDEX)
        dtp_draft_use(&draft, root->whole[DTP_ROOT_POSITION], DTP_READ);
    dtp_draft_use(&draft, root->weight[DTP_ROOT_EMBEDDING], DTP_READ);
    dtp_draft_use(&draft, root->weight[DTP_ROOT_POSITION], DTP_READ);
    dtp_buffer_id rows = dtp_draft_new(l, &draft, spreads ? "terms of a sum" : name,
                                       spreads ? DTP_OWNER_WORKSPACE : DTP_OWNER_ACTIVATIONS, made, DTP_WRITE);
    if (t->position == DTP_POSITION_LEARNED)
        dtp_draft_new(l, &draft, "token rows", DTP_OWNER_WORKSPACE, made, DTP_UPDATE | DTP_FREE);
    dtp_draft_memory(l, &draft, 0, 1);
    dtp_draft_end(l, &draft);
    if (l->vocab_ranks > 1)
        rows = sum_of_ranks(l, rows, name);
    dtp_lower_unfetch(l);
    l->flight->embedded = DTP_NO_BUFFER;
    if (t->embedding_norm) {
        dtp_draft_begin(l, &draft, DTP_OP_NORM, "embedding norm");
        dtp_draft_use(&draft, rows, DTP_READ);
        l->flight->embedded = rows;
        rows =
            dtp_draft_new(l, &draft, dtp_layer_tensor_text(DTP_TENSOR_INPUT), DTP_OWNER_ACTIVATIONS, bytes, DTP_WRITE);
        l->flight->embedding_statistics = dtp_draft_new(l, &draft, "embedding norm statistics", DTP_OWNER_ACTIVATIONS,
                                                        l->tensor_bytes[DTP_TENSOR_STATISTICS1], DTP_WRITE);
        dtp_draft_memory(l, &draft, 0, 1);
        dtp_draft_end(l, &draft);
    }
    dtp_lower_hand_on(l, l->chunk->first, rows);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* Dense gradient of the table. PyTorch sorts the tokens and first sums runs of at most 10 equal ones in fp32: (distinct
 * tokens + tokens / 10) rows of h (Embedding.cu, embedding_backward_cuda_kernel). */
static uint64_t partial_sums(const struct dtp_lowering *l)
{
    uint64_t vocab = l->transformer->vocab, segments = l->tokens < vocab ? l->tokens : vocab;
    return dtp_bytes_product(4 * (l->vocab_ranks > 1 ? l->transformer->hidden : l->between), segments + l->tokens / 10);
}

static void embedding_norm_backward(struct dtp_lowering *l)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_NORM_BACKWARD, "embedding norm");
    dtp_draft_use(&draft, l->flight->gradient, DTP_UPDATE);
    dtp_draft_use(&draft, l->flight->embedded, DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, l->flight->embedding_statistics, DTP_READ | DTP_FREE);
    dtp_draft_memory(l, &draft, 0, 2);
    dtp_draft_end(l, &draft);
}

static void position_gradient(struct dtp_lowering *l)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_EMBEDDING_BACKWARD, "position");
    dtp_draft_use(&draft, l->flight->gradient, DTP_READ);
    dtp_lower_gradient_result(l, &draft, DTP_ROOT_POSITION, l->autocast ? l->bytes.grads : l->compute);
    dtp_draft_memory(l, &draft, 0, 1);
    dtp_draft_end(l, &draft);
    dtp_lower_gradient_made(l, DTP_ROOT_POSITION);
}

/* Each rank's rows of the vocabulary are read by tokens of all. */
static dtp_buffer_id gather_gradient(struct dtp_lowering *l, dtp_buffer_id gradient)
{
    struct dtp_draft draft;
    if (!dtp_lower_spreads(l))
        return gradient;
    dtp_draft_begin(l, &draft, DTP_OP_ALL_GATHER, "embedding gradient");
    dtp_draft_use(&draft, gradient, DTP_READ | DTP_FREE);
    return dtp_lower_gather_rows(l, &draft, DTP_OWNER_WORKSPACE, dtp_lower_whole_stream(l, l->residual), NULL);
}

/* Nothing below the first adapter is trained: what is left goes. */
static void end_of_backward(struct dtp_lowering *l)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_FREE, "below the first adapter");
    dtp_draft_use(&draft, l->flight->gradient, DTP_FREE);
    if (l->transformer->embedding_norm) {
        dtp_draft_use(&draft, l->flight->embedded, DTP_FREE);
        dtp_draft_use(&draft, l->flight->embedding_statistics, DTP_FREE);
    }
    dtp_draft_end(l, &draft);
    l->flight->gradient = DTP_NO_BUFFER;
}

/* As below; where it `waits`, autograd holds it until the table's other gradient is there (InputBuffer). */
dtp_buffer_id dtp_lower_table_gradient(struct dtp_lowering *l, dtp_buffer_id gradient, bool waits)
{
    uint64_t bytes = dtp_bytes_product(l->compute, l->root.elements[DTP_ROOT_EMBEDDING]);
    struct dtp_draft draft;
    gradient = gather_gradient(l, gradient);
    dtp_draft_begin(l, &draft, DTP_OP_EMBEDDING_BACKWARD, "following tokens");
    dtp_draft_new(l, &draft, "embedding partial sums", DTP_OWNER_WORKSPACE, partial_sums(l), DTP_UPDATE | DTP_FREE);
    dtp_buffer_id made = dtp_draft_new(l, &draft, "embedding gradient", DTP_OWNER_WORKSPACE, bytes,
                                       waits ? DTP_UPDATE : DTP_UPDATE | DTP_FREE);
    if (!waits)
        dtp_draft_use(&draft, dtp_lower_state(l)->gradient_buffer, DTP_UPDATE);
    dtp_draft_use(&draft, l->tokens_in, DTP_READ);
    dtp_draft_use(&draft, gradient, DTP_READ | DTP_FREE);
    dtp_draft_memory(l, &draft, 0, 3);
    dtp_draft_end(l, &draft);
    return waits ? made : DTP_NO_BUFFER;
}

void dtp_lower_embedding_backward(struct dtp_lowering *l)
{
    struct dtp_module_state *root = dtp_lower_state(l);
    if (l->adapts && !l->root.trained[DTP_ROOT_EMBEDDING]) {
        end_of_backward(l);
        return;
    }
    if (l->transformer->embedding_norm)
        embedding_norm_backward(l);
    l->flight->gradient = gather_gradient(l, l->flight->gradient);
    if (l->transformer->position == DTP_POSITION_LEARNED)
        position_gradient(l);
    dtp_lower_fetch(l, DTP_ROOT_EMBEDDING); /* that its gradient does not read it, the hook does not know */
    dtp_lower_unfetch(l);
    dtp_buffer_id head = root->gradient[DTP_ROOT_EMBEDDING]; /* a tied head's gradient waits here */
    uint64_t element = l->autocast ? l->bytes.grads : l->compute;
    bool tied = l->transformer->tied_head, apart = head.index != DTP_NO_INDEX;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_EMBEDDING_BACKWARD, "");
    dtp_lower_gradient_result(l, &draft, DTP_ROOT_EMBEDDING, element);
    if (tied && !apart)
        dtp_draft_use(&draft, root->gradient_buffer, DTP_UPDATE);
    dtp_draft_new(l, &draft, "embedding partial sums", DTP_OWNER_WORKSPACE, partial_sums(l), DTP_UPDATE | DTP_FREE);
    /* Megatron's embedding makes a gradient in the parameters' dtype, which is then added to the buffer */
    dtp_draft_new(l, &draft, "embedding gradient", DTP_OWNER_WORKSPACE,
                  root->gradient_buffer.index != DTP_NO_INDEX ? element * l->root.elements[DTP_ROOT_EMBEDDING] : 0,
                  DTP_UPDATE | DTP_FREE);
    dtp_draft_use(&draft, l->tokens_in, DTP_READ);
    dtp_draft_use(&draft, l->flight->gradient, DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, l->flight->ahead.table_gradient, DTP_READ | DTP_FREE);
    dtp_draft_memory(l, &draft, 0, 3);
    dtp_draft_end(l, &draft);
    l->flight->gradient = l->flight->ahead.table_gradient = DTP_NO_BUFFER;
    if (tied && apart) {
        dtp_draft_begin(l, &draft, DTP_OP_ACCUMULATE, "head and embedding");
        dtp_draft_use(&draft, head, DTP_UPDATE); /* the first of them is added to (InputBuffer::accumulate) */
        dtp_draft_use(&draft, root->gradient[DTP_ROOT_EMBEDDING], DTP_READ | DTP_FREE);
        root->gradient[DTP_ROOT_EMBEDDING] = head;
        dtp_draft_memory(l, &draft, 0, 1);
        dtp_draft_end(l, &draft);
    }
    dtp_lower_gradient_made(l, DTP_ROOT_EMBEDDING);
}
