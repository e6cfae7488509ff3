/* Latent attention: norms of latents, and heads that are packed of what is projected up from them, as attention reads
 * those of other blocks. The kv latent's row ends with a part of keys that all heads share: its norm is over what
 * stands before that, and its gradient is made of two operations' columns. */
#include "runtime/dtplan/lower_executor_state.h"

static bool has_shared_part(const struct dtp_executor_operator *op)
{
    return op->input == DTP_TENSOR_KV_LATENT;
}

static void shape_of_norm(const struct dtp_executor *x, struct dtp_draft *draft, const struct dtp_executor_operator *op)
{
    uint64_t row = dtp_layer_tensor_width(&x->shape->kind, (enum dtp_layer_tensor)op->input);
    draft->op.demand.n = (double)dtp_executor_latent_norm_width(x->shape, op);
    draft->op.demand.k = has_shared_part(op) ? (double)row : 0;
    draft->op.demand.form = DTP_FORM_RMS_NORM;
}

void dtp_executor_latent_norm(const struct dtp_executor *x, struct dtp_draft *draft,
                              const struct dtp_executor_operator *op)
{
    if (!dtp_executor_latent_norm_width(x->shape, op))
        return;
    shape_of_norm(x, draft, op);
    draft->op.demand.epsilon = DTP_LATENT_NORM_EPSILON;
}

void dtp_executor_latent_shape(const struct dtp_executor *x, struct dtp_draft *draft)
{
    draft->op.demand.n = (double)x->shape->kind.rope_head_dim;
    draft->op.demand.k = (double)dtp_layer_tensor_width(&x->shape->kind, DTP_TENSOR_KV_LATENT);
}

static dtp_buffer_id new_gradient(struct dtp_executor *x, struct dtp_draft *draft, enum dtp_role role, const char *name,
                                  enum dtp_layer_tensor of)
{
    return dtp_executor_new(x, draft, role, name, DTP_OWNER_WORKSPACE, dtp_executor_tensor_bytes(x->shape, (int)of),
                            DTP_WRITE);
}

void dtp_executor_latent_heads_backward(struct dtp_executor *x, const struct dtp_executor_operator *op)
{
    struct dtp_draft draft;
    dtp_executor_begin(x, &draft, DTP_OP_ROTARY_BACKWARD, op->name);
    dtp_draft_role(&draft, DTP_ROLE_GRADIENT, x->gradients[op->result], DTP_READ | DTP_FREE, 0);
    dtp_draft_role(&draft, DTP_ROLE_TABLES, x->tables, DTP_READ, 0);
    x->gradients[DTP_TENSOR_Q_RAW] =
        new_gradient(x, &draft, DTP_ROLE_INPUT_GRADIENT, "q projection gradient", DTP_TENSOR_Q_RAW);
    x->gradients[DTP_TENSOR_KV_LATENT] =
        new_gradient(x, &draft, DTP_ROLE_SAVED, "kv latent gradient", DTP_TENSOR_KV_LATENT);
    x->gradients[DTP_TENSOR_KV_RAW] =
        new_gradient(x, &draft, DTP_ROLE_KEYS, "keys and values gradient", DTP_TENSOR_KV_RAW);
    x->gradients[op->result] = DTP_NO_BUFFER;
    dtp_executor_latent_shape(x, &draft);
    struct dtp_executor_traffic traffic = dtp_executor_backward_traffic(x->shape, op, false);
    dtp_executor_memory(&draft, x->rules.tokens, traffic.bytes, traffic.kernels);
    dtp_executor_end(x, &draft);
}

void dtp_executor_latent_norm_backward(struct dtp_executor *x, uint64_t layer, const struct dtp_executor_operator *op,
                                       dtp_buffer_id latent)
{
    struct dtp_executor_module *module = dtp_executor_block(x, layer);
    const uint64_t width = dtp_executor_latent_norm_width(x->shape, op);
    struct dtp_draft draft;
    dtp_executor_begin(x, &draft, DTP_OP_NORM_BACKWARD, op->name);
    shape_of_norm(x, &draft, op);
    dtp_draft_role(&draft, DTP_ROLE_GRADIENT, x->gradients[op->result], DTP_READ | DTP_FREE, 0);
    dtp_draft_role(&draft, DTP_ROLE_INPUT, latent, DTP_READ | DTP_FREE, 0);
    dtp_draft_role(&draft, DTP_ROLE_STATISTICS, x->tensors[layer][op->statistics], DTP_READ | DTP_FREE, 0);
    dtp_executor_weight(x, &draft, DTP_ROLE_WEIGHT, module, op->weight);
    if (has_shared_part(op)) /* whose gradient stands there already */
        dtp_draft_role(&draft, DTP_ROLE_RESIDUAL_GRADIENT, x->gradients[op->input], DTP_UPDATE, 0);
    else
        x->gradients[op->input] =
            new_gradient(x, &draft, DTP_ROLE_RESIDUAL_GRADIENT, "q latent gradient", (enum dtp_layer_tensor)op->input);
    bool accumulates = dtp_executor_gradient(&draft, DTP_ROLE_WEIGHT_GRADIENT, module, op->weight);
    dtp_executor_new(x, &draft, DTP_ROLE_WORKSPACE, "partial sums", DTP_OWNER_WORKSPACE,
                     2 * 4 * DTP_EXECUTOR_PARTIAL_ROWS * width, DTP_UPDATE | DTP_FREE);
    struct dtp_executor_traffic traffic = dtp_executor_backward_traffic(x->shape, op, false);
    double gradient_bytes = (double)((accumulates ? 2 : 1) * width * module->gradient_element_bytes);
    dtp_executor_memory(&draft, x->rules.tokens, traffic.bytes + gradient_bytes, traffic.kernels);
    dtp_executor_end(x, &draft);
    x->gradients[op->result] = DTP_NO_BUFFER;
}
