/* Rows of the embedding and its gradient. */
#include "runtime/dtplan/lower_executor_tensor.h"

void dtp_executor_embedding(struct dtp_executor *x)
{
    struct dtp_executor_module *module = &x->modules[0];
    struct dtp_draft draft;
    bool learned = dtp_executor_has(module, DTP_PARAMETER_POSITION);
    dtp_executor_begin(x, &draft, DTP_OP_EMBEDDING, "embedding");
    dtp_draft_role(&draft, DTP_ROLE_BATCH, dtp_executor_batch(x), DTP_READ, 0);
    dtp_executor_weight(x, &draft, DTP_ROLE_WEIGHT, module, DTP_PARAMETER_EMBEDDING);
    if (learned)
        dtp_executor_weight(x, &draft, DTP_ROLE_POSITION, module, DTP_PARAMETER_POSITION);
    dtp_buffer_id rows = dtp_executor_new(x, &draft, DTP_ROLE_RESULT, "block input", DTP_OWNER_ACTIVATIONS,
                                          x->rules.tokens * x->h * x->element_bytes, DTP_WRITE);
    dtp_executor_memory(&draft, x->rules.tokens, dtp_executor_embedding_bytes(x), 1);
    dtp_executor_end(x, &draft);
    x->stream_input = dtp_executor_is_cut(x)
                          ? dtp_executor_scatter_sum(x, "embedding", rows, "block input", DTP_OWNER_ACTIVATIONS)
                          : rows;
    if (!dtp_executor_has(module, DTP_PARAMETER_EMBEDDING_NORM))
        return;
    x->embedded = x->stream_input;
    dtp_executor_norm_forward(x, module, "embedding norm", DTP_PARAMETER_EMBEDDING_NORM, x->embedded, &x->stream_input,
                              &x->embedded_statistics);
}

/* The gradient of the stream becomes that of the embedding's rows. */
static void norm_backward(struct dtp_executor *x, struct dtp_executor_module *module)
{
    const struct dtp_executor_norm_gradient norm = {.name = "embedding norm",
                                                    .weight = DTP_PARAMETER_EMBEDDING_NORM,
                                                    .gradient = x->gradient,
                                                    .input = x->embedded,
                                                    .statistics = x->embedded_statistics,
                                                    .bytes = dtp_executor_final_norm_backward_bytes(x->shape)};
    x->gradient = DTP_NO_BUFFER;
    dtp_executor_norm_backward(x, module, &norm);
}

/* Rows of the table's gradient that no token names stay as they are, so the buffer is zeroed before, or holds the
 * head's gradient already. */
void dtp_executor_embedding_backward(struct dtp_executor *x)
{
    struct dtp_executor_module *module = &x->modules[0];
    struct dtp_draft draft;
    dtp_executor_await_gradient(x, x->l->last_op[DTP_STREAM_WEIGHT_GRADIENT]);
    x->gradient_read = DTP_NO_OP;
    dtp_executor_open_gradient(x, module);
    dtp_executor_zero_unwritten(x, module);
    if (dtp_executor_has(module, DTP_PARAMETER_EMBEDDING_NORM))
        norm_backward(x, module);
    dtp_buffer_id whole =
        dtp_executor_is_cut(x) ? dtp_executor_gather_rows(x, "embedding", x->gradient) : DTP_NO_BUFFER;
    dtp_executor_begin(x, &draft, DTP_OP_EMBEDDING_BACKWARD, "embedding");
    if (dtp_executor_is_cut(x)) {
        dtp_draft_role(&draft, DTP_ROLE_GRADIENT, whole, DTP_READ | DTP_FREE, 0);
        if (dtp_executor_lets_go(x, x->gradient))
            dtp_draft_use(&draft, x->gradient, DTP_FREE);
    } else {
        dtp_draft_role(&draft, DTP_ROLE_GRADIENT, x->gradient, DTP_READ | dtp_executor_lets_go(x, x->gradient), 0);
    }
    dtp_draft_role(&draft, DTP_ROLE_BATCH, dtp_executor_batch(x), DTP_READ, 0);
    dtp_executor_gradient(&draft, DTP_ROLE_WEIGHT_GRADIENT, module, DTP_PARAMETER_EMBEDDING);
    bool learned = dtp_executor_has(module, DTP_PARAMETER_POSITION);
    if (learned)
        dtp_executor_gradient(&draft, DTP_ROLE_POSITION_GRADIENT, module, DTP_PARAMETER_POSITION);
    dtp_executor_memory(&draft, x->rules.tokens, dtp_executor_embedding_backward_bytes(x), learned ? 2 : 1);
    dtp_executor_end(x, &draft);
    if (!x->l->role.pipeline) /* of a stage: lower_executor_stages.c */
        dtp_executor_close_gradient(x, module);
}
