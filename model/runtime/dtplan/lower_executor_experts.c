/* Experts: products of rows by experts, and the backward of what brings rows there and back. */
#include "runtime/dtplan/executor_expert_traffic.h"
#include "runtime/dtplan/lower_executor_experts.h"

static dtp_buffer_id tensor(const struct dtp_executor *x, uint64_t layer, int which)
{
    return x->tensors[layer][which];
}

/* FLOPs are those of all rows; m, or of a weight's gradient k, is what an expert has where all have as many. */
void dtp_executor_grouped(struct dtp_executor *x, struct dtp_draft *draft, const struct dtp_executor_operator *op,
                          enum dtp_product product)
{
    const struct dtp_layer_matrix *matrix = op->matrix;
    const uint64_t rows = dtp_executor_expert_rows(x->shape);
    struct dtp_demand *demand = &draft->op.demand;
    switch (product) {
    case DTP_PRODUCT_FORWARD: dtp_draft_matmul(x->l, draft, rows, matrix->out, matrix->in, false); break;
    case DTP_PRODUCT_INPUT_GRADIENT: dtp_draft_matmul(x->l, draft, rows, matrix->in, matrix->out, false); break;
    case DTP_PRODUCT_WEIGHT_GRADIENT: dtp_draft_matmul(x->l, draft, matrix->out, matrix->in, rows, false); break;
    }
    double *counted = product == DTP_PRODUCT_WEIGHT_GRADIENT ? &demand->k : &demand->m;
    *counted = (double)rows / (double)matrix->groups;
    demand->groups = (uint32_t)matrix->groups;
    demand->tokens = (double)x->shape->expert_room;
    demand->dtype = x->rules.compute;
}

void dtp_executor_routed(struct dtp_executor *x, struct dtp_draft *draft, uint64_t width)
{
    struct dtp_demand *demand = &draft->op.demand;
    demand->n = (double)width;
    demand->k = (double)x->shape->kind.experts_per_token;
    demand->groups = (uint32_t)x->shape->kind.experts;
}

void dtp_executor_worked(struct dtp_executor *x, struct dtp_draft *draft, uint64_t width)
{
    dtp_executor_routed(x, draft, width);
    if (!x->shape->kind.exchanged)
        return;
    draft->op.demand.k = 1;
    draft->op.demand.groups = (uint32_t)x->shape->kind.own_experts;
}

static void end(struct dtp_executor *x, struct dtp_draft *draft, uint64_t width, double bytes, uint32_t kernels)
{
    dtp_executor_routed(x, draft, width);
    dtp_executor_memory(draft, x->rules.stream_tokens, bytes, kernels);
    dtp_executor_end(x, draft);
}

/* What shared experts return is weighed by the sigmoid of a score: the gradients of both, of the sum's. */
static double shared_gate_backward(struct dtp_executor *x, uint64_t layer, dtp_buffer_id gradient)
{
    const uint64_t score_bytes = dtp_executor_tensor_bytes(x->shape, DTP_TENSOR_SHARED_WEIGHT);
    const double h = (double)dtp_executor_tensor_bytes(x->shape, DTP_TENSOR_DOWN);
    struct dtp_draft draft;
    dtp_executor_begin(x, &draft, DTP_OP_UNPERMUTE_BACKWARD, "weight of shared experts");
    dtp_draft_role(&draft, DTP_ROLE_GRADIENT, gradient, DTP_READ, 0);
    dtp_draft_role(&draft, DTP_ROLE_SAVED, tensor(x, layer, DTP_TENSOR_SHARED_DOWN), DTP_READ | DTP_FREE, 0);
    dtp_draft_role(&draft, DTP_ROLE_AUX, tensor(x, layer, DTP_TENSOR_SHARED_WEIGHT), DTP_READ | DTP_FREE, 0);
    x->gradients[DTP_TENSOR_SHARED_DOWN] =
        dtp_executor_new(x, &draft, DTP_ROLE_RESULT, "gradient of shared experts", DTP_OWNER_WORKSPACE,
                         dtp_executor_tensor_bytes(x->shape, DTP_TENSOR_SHARED_DOWN), DTP_WRITE);
    x->gradients[DTP_TENSOR_SHARED_WEIGHT] = dtp_executor_new(
        x, &draft, DTP_ROLE_INPUT_GRADIENT, "gradient of their weight", DTP_OWNER_WORKSPACE, score_bytes, DTP_WRITE);
    const double bytes = 3 * h + 2 * (double)score_bytes;
    end(x, &draft, x->h, bytes, 1);
    return bytes;
}

void dtp_executor_unpermute_backward(struct dtp_executor *x, uint64_t layer, const struct dtp_executor_operator *op,
                                     dtp_buffer_id gradient)
{
    const struct dtp_executor_traffic traffic = dtp_executor_expert_backward_traffic(x->shape, op);
    double apart = x->shape->kind.shared_gate ? shared_gate_backward(x, layer, gradient) : 0;
    struct dtp_draft draft;
    dtp_executor_begin(x, &draft, DTP_OP_UNPERMUTE_BACKWARD, op->name);
    dtp_draft_role(&draft, DTP_ROLE_GRADIENT, gradient, DTP_READ, 0);
    dtp_draft_role(&draft, DTP_ROLE_ROUTES, tensor(x, layer, DTP_TENSOR_ROUTES), DTP_READ, 0);
    x->gradients[op->input] =
        dtp_executor_new(x, &draft, DTP_ROLE_INPUT_GRADIENT, "gradient of results", DTP_OWNER_WORKSPACE,
                         dtp_executor_tensor_bytes(x->shape, op->input), DTP_WRITE);
    end(x, &draft, x->h, traffic.bytes - apart, 1);
}

/* Onto what shared experts have made of the same rows' gradient. */
void dtp_executor_permute_backward(struct dtp_executor *x, uint64_t layer, const struct dtp_executor_operator *op)
{
    const struct dtp_executor_traffic traffic = dtp_executor_expert_backward_traffic(x->shape, op);
    dtp_buffer_id *made = &x->gradients[op->input];
    struct dtp_draft draft;
    dtp_executor_begin(x, &draft, DTP_OP_PERMUTE_BACKWARD, op->name);
    dtp_draft_role(&draft, DTP_ROLE_GRADIENT, x->gradients[op->result], DTP_READ | DTP_FREE, 0);
    dtp_draft_role(&draft, DTP_ROLE_ROUTES, tensor(x, layer, DTP_TENSOR_ROUTES), DTP_READ, 0);
    if (op->aux != DTP_EXECUTOR_NONE) {
        dtp_draft_role(&draft, DTP_ROLE_STATISTICS, x->gradients[op->aux], DTP_READ | DTP_FREE, 0);
        x->gradients[DTP_TENSOR_ROUTER_WEIGHTS] =
            dtp_executor_new(x, &draft, DTP_ROLE_STATISTICS_GRADIENT, "router weight gradient", DTP_OWNER_WORKSPACE,
                             dtp_executor_tensor_bytes(x->shape, DTP_TENSOR_ROUTER_WEIGHTS), DTP_WRITE);
    }
    if (made->index != DTP_NO_INDEX)
        dtp_draft_role(&draft, DTP_ROLE_INPUT_GRADIENT, *made, DTP_UPDATE, 0);
    else
        *made = dtp_executor_new(x, &draft, DTP_ROLE_INPUT_GRADIENT, "gradient by tokens", DTP_OWNER_WORKSPACE,
                                 dtp_executor_tensor_bytes(x->shape, op->input), DTP_WRITE);
    end(x, &draft, x->h, traffic.bytes, traffic.kernels);
}

void dtp_executor_router_backward(struct dtp_executor *x, uint64_t layer, const struct dtp_executor_operator *op,
                                  uint32_t routes_access)
{
    const struct dtp_executor_traffic traffic = dtp_executor_expert_backward_traffic(x->shape, op);
    struct dtp_draft draft;
    dtp_executor_begin(x, &draft, DTP_OP_ROUTER_BACKWARD, op->name);
    dtp_draft_role(&draft, DTP_ROLE_INPUT, tensor(x, layer, op->input), DTP_READ | DTP_FREE, 0);
    dtp_draft_role(&draft, DTP_ROLE_GRADIENT, x->gradients[op->result], DTP_READ | DTP_FREE, 0);
    dtp_draft_role(&draft, DTP_ROLE_ROUTES, tensor(x, layer, op->saved), routes_access, 0);
    x->gradients[op->input] =
        dtp_executor_new(x, &draft, DTP_ROLE_INPUT_GRADIENT, "router score gradient", DTP_OWNER_WORKSPACE,
                         dtp_executor_tensor_bytes(x->shape, op->input), DTP_WRITE);
    end(x, &draft, x->shape->kind.experts, traffic.bytes, traffic.kernels);
}
