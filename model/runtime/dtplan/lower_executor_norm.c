/* Backward of a norm, of blocks and the final one. */
#include "runtime/dtplan/lower_executor_state.h"

/* Its operands; what they move through memory. */
static double norm_weight_gradient(struct dtp_executor *x, struct dtp_draft *draft, struct dtp_executor_module *module,
                                   const struct dtp_executor_norm_gradient *norm)
{
    uint64_t elements = module->layout->tensor[norm->weight].columns;
    bool accumulates = dtp_executor_gradient(draft, DTP_ROLE_WEIGHT_GRADIENT, module, norm->weight);
    if (dtp_executor_has(module, norm->weight + 1)) {
        dtp_executor_gradient(draft, DTP_ROLE_BIAS_GRADIENT, module, norm->weight + 1);
        elements *= 2;
    }
    dtp_executor_new(x, draft, DTP_ROLE_WORKSPACE, "partial sums", DTP_OWNER_WORKSPACE,
                     2 * 4 * DTP_EXECUTOR_PARTIAL_ROWS * x->h, DTP_UPDATE | DTP_FREE);
    return (double)((accumulates ? 2 : 1) * elements * module->gradient_element_bytes);
}

dtp_buffer_id dtp_executor_norm_backward(struct dtp_executor *x, struct dtp_executor_module *module,
                                         const struct dtp_executor_norm_gradient *norm)
{
    struct dtp_draft draft;
    bool adds = x->gradient.index != DTP_NO_INDEX && !norm->apart;
    bool stays = adds && dtp_executor_is_deferred(x, x->gradient); /* what is added to */
    dtp_buffer_id made = x->gradient;
    dtp_executor_await_gradient(x, x->gradient_read);
    dtp_executor_begin(x, &draft, DTP_OP_NORM_BACKWARD, norm->name);
    dtp_draft_role(&draft, DTP_ROLE_GRADIENT, norm->gradient,
                   DTP_READ | (norm->gradient_stays ? 0 : dtp_executor_lets_go(x, norm->gradient)), 0);
    dtp_draft_role(&draft, DTP_ROLE_INPUT, norm->input,
                   DTP_READ | (norm->input_stays ? 0 : dtp_executor_lets_go(x, norm->input)), 0);
    dtp_draft_role(&draft, DTP_ROLE_STATISTICS, norm->statistics, DTP_READ | DTP_FREE, 0);
    dtp_executor_weight(x, &draft, DTP_ROLE_WEIGHT, module, norm->weight);
    if (stays)
        dtp_draft_role(&draft, DTP_ROLE_ADDEND, x->gradient, DTP_READ | dtp_executor_lets_go(x, x->gradient), 0);
    if (adds && !stays)
        dtp_draft_role(&draft, DTP_ROLE_RESIDUAL_GRADIENT, x->gradient, DTP_UPDATE, 0);
    else
        made = dtp_executor_new(x, &draft, DTP_ROLE_RESIDUAL_GRADIENT,
                                norm->apart ? "branch gradient" : "residual gradient", DTP_OWNER_WORKSPACE,
                                dtp_executor_tensor_bytes(x->shape, DTP_TENSOR_INPUT), DTP_WRITE);
    double gradient_bytes = dtp_executor_is_trained(x, module) ? norm_weight_gradient(x, &draft, module, norm) : 0;
    if (norm->amax)
        dtp_executor_fp8_amax(x, &draft, norm->amax - 1, DTP_UPDATE);
    dtp_executor_memory(&draft, x->rules.stream_tokens, norm->bytes + gradient_bytes,
                        dtp_executor_norm_launches(x->shape));
    dtp_executor_end(x, &draft);
    if (!norm->apart)
        x->gradient = made;
    return made;
}
