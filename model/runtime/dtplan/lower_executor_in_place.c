#include "runtime/dtplan/lower_executor_in_place.h"

#include "runtime/dtplan/lower_executor_experts.h"

static dtp_buffer_id tensor(const struct dtp_executor *x, uint64_t layer, int which)
{
    return x->tensors[layer][which];
}

static void end(struct dtp_executor *x, struct dtp_draft *draft, const struct dtp_executor_operator *op,
                double gradient_bytes)
{
    const struct dtp_executor_traffic traffic = dtp_executor_backward_traffic(x->shape, op, false);
    dtp_executor_memory(draft, dtp_executor_tensor_rows(x->shape, op->result), traffic.bytes + gradient_bytes,
                        traffic.kernels);
    dtp_executor_end(x, draft);
}

/* Of what is learned; returns the bytes that it moves. */
static double gradient(struct dtp_executor *x, struct dtp_draft *draft, enum dtp_role role, uint64_t layer,
                       const struct dtp_executor_operator *op)
{
    struct dtp_executor_module *module = dtp_executor_module_of(x, layer, op);
    const bool accumulates = dtp_executor_gradient(draft, role, module, op->weight);
    const uint64_t elements = dtp_executor_norm_elements(x->shape, op);
    return (double)((accumulates ? 2 : 1) * elements * module->gradient_element_bytes);
}

void dtp_executor_sinks_backward(struct dtp_executor *x, uint64_t layer, const struct dtp_executor_operator *op)
{
    struct dtp_draft draft;
    dtp_executor_begin(x, &draft, DTP_OP_SINKS_BACKWARD, op->name);
    dtp_draft_role(&draft, DTP_ROLE_SAVED, tensor(x, layer, op->result), DTP_READ, 0);
    dtp_draft_role(&draft, DTP_ROLE_STATISTICS, tensor(x, layer, op->statistics), DTP_READ, 0);
    dtp_draft_role(&draft, DTP_ROLE_GRADIENT, x->gradients[op->result], DTP_READ, 0);
    dtp_executor_weight(x, &draft, DTP_ROLE_WEIGHT, dtp_executor_module_of(x, layer, op), op->weight);
    const double bytes = gradient(x, &draft, DTP_ROLE_WEIGHT_GRADIENT, layer, op);
    dtp_executor_new(x, &draft, DTP_ROLE_WORKSPACE, "partial sums", DTP_OWNER_WORKSPACE,
                     4 * DTP_EXECUTOR_PARTIAL_ROWS * x->shape->kind.heads, DTP_UPDATE | DTP_FREE);
    end(x, &draft, op, bytes);
}

void dtp_executor_expert_bias_backward(struct dtp_executor *x, uint64_t layer, const struct dtp_executor_operator *op)
{
    const bool weighed = op->reads & DTP_EXECUTOR_BIT(DTP_TENSOR_ROUTER_WEIGHTS);
    struct dtp_draft draft;
    dtp_executor_begin(x, &draft, DTP_OP_EXPERT_BIAS_BACKWARD, op->name);
    dtp_draft_role(&draft, DTP_ROLE_GRADIENT, x->gradients[op->result], DTP_READ, 0);
    dtp_draft_role(&draft, DTP_ROLE_ROUTES, tensor(x, layer, DTP_TENSOR_ROUTES), DTP_READ, 0);
    const double bytes = gradient(x, &draft, DTP_ROLE_BIAS_GRADIENT, layer, op);
    if (weighed) {
        dtp_draft_role(&draft, DTP_ROLE_STATISTICS, tensor(x, layer, DTP_TENSOR_ROUTER_WEIGHTS), DTP_READ, 0);
        dtp_executor_weight(x, &draft, DTP_ROLE_BIAS, dtp_executor_module_of(x, layer, op), op->weight);
        x->gradients[DTP_TENSOR_ROUTER_WEIGHTS] =
            dtp_executor_new(x, &draft, DTP_ROLE_STATISTICS_GRADIENT, "router weight gradient", DTP_OWNER_WORKSPACE,
                             dtp_executor_tensor_bytes(x->shape, DTP_TENSOR_ROUTER_WEIGHTS), DTP_WRITE);
    }
    dtp_executor_routed(x, &draft, op->matrix->out);
    end(x, &draft, op, bytes);
}
