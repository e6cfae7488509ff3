/* Muon: passes over one matrix of a module that its rank has whole, and the products between them
 * (lower_executor_muon.c). */
#include "bind/binder.h"

#include "plan/runtime_sizes.h"

#include <math.h>

bool dtp_bind_is_muon(const struct dtp_binder *b)
{
    uint32_t form = b->op->demand->form;
    return form == DTP_FORM_MUON_MOMENTUM || form == DTP_FORM_MUON_UNIT || form == DTP_FORM_MUON_STEP;
}

/* ---- passes ------------------------------------------------------------------------------------------------------ */

static void momentum(struct dtp_binder *b, struct dtp_bound_op *out)
{
    uint64_t count = rows(b);
    out->kernel = DTP_KERNEL_muon_momentum;
    if (element_of_all(b, DTP_ROLE_RESULT, count) != DTP_ELEMENT_BF16)
        b->missing |= 1u << DTP_ROLE_RESULT;
    out->arguments.muon_momentum =
        (struct dtp_muon_momentum_args){.gradient = need(b, DTP_ROLE_WEIGHT_GRADIENT),
                                        .momentum = need(b, DTP_ROLE_MOMENT1),
                                        .result = need(b, DTP_ROLE_RESULT),
                                        .partial = need(b, DTP_ROLE_PARTIALS),
                                        .count = count,
                                        .factor = b->binding->job.optimizer.momentum,
                                        .scalars = need(b, DTP_ROLE_SCALARS),
                                        .gradient_element = element_of_all(b, DTP_ROLE_WEIGHT_GRADIENT, count),
                                        .momentum_element = element_of_all(b, DTP_ROLE_MOMENT1, count)};
}

static void unit(struct dtp_binder *b, struct dtp_bound_op *out)
{
    uint64_t count = rows(b);
    out->kernel = DTP_KERNEL_muon_unit;
    if (element_of_all(b, DTP_ROLE_RESULT, count) != DTP_ELEMENT_BF16)
        b->missing |= 1u << DTP_ROLE_RESULT;
    out->arguments.muon_unit = (struct dtp_muon_unit_args){.values = need(b, DTP_ROLE_RESULT),
                                                           .partial = need(b, DTP_ROLE_PARTIALS),
                                                           .count = count,
                                                           .scalars = need(b, DTP_ROLE_SCALARS)};
}

/* The tensor whose elements begin there; NULL: none. */
static const struct dtp_parameter_tensor *tensor_at(const struct dtp_parameter_module *layout, uint64_t first,
                                                    uint64_t count)
{
    for (int i = 0; i < DTP_PARAMETER_COUNT; i++) {
        const struct dtp_parameter_tensor *t = &layout->tensor[i];
        if (t->exists && t->rows > 1 && t->offset_elements == first && t->rows * t->columns == count)
            return t;
    }
    return NULL;
}

/* An orthogonal matrix has as many numbers of size 1 as its greater side is long; 0.2 sqrt(greater side) of it changes
 * weights as much as a usual step of AdamW's, so that both go by one rate (adjust_lr_fn match_rms_adamw of
 * torch.optim.Muon; Liu et al. 2025, "Muon is Scalable for LLM Training"). */
static float factor_of(const struct dtp_parameter_tensor *t)
{
    return 0.2f * sqrtf((float)(t->rows > t->columns ? t->rows : t->columns));
}

static enum dtp_status step(struct dtp_binder *b, struct dtp_bound_op *out)
{
    const struct dtp_operand *weight = operand(b, DTP_ROLE_WEIGHT);
    uint64_t count = rows(b), module = weight ? buffer_of(b, weight)->module : UINT64_MAX;
    struct dtp_parameter_module layout;
    if (!weight || module >= b->binding->map.module_count) {
        b->missing |= 1u << DTP_ROLE_WEIGHT;
        return DTP_OK;
    }
    dtp_program_module(b->binding->job.program, module, &layout);
    struct dtp_adamw_args g = {.gradient = need(b, DTP_ROLE_INPUT),
                               .weights = need(b, DTP_ROLE_WEIGHT),
                               .master = maybe(b, DTP_ROLE_MASTER),
                               .count = count,
                               .decay = b->binding->job.optimizer.decay,
                               .scalars = need(b, DTP_ROLE_SCALARS),
                               .gradient_element = element_of_all(b, DTP_ROLE_INPUT, count),
                               .weight_element = element_of_all(b, DTP_ROLE_WEIGHT, count),
                               .stochastic_rounding =
                                   dtp_program_execution(b->binding->job.program)->stochastic_rounding};
    uint64_t first = weight->offset_bytes / dtp_element_bytes(g.weight_element);
    const struct dtp_parameter_tensor *tensor = tensor_at(&layout, first, count);
    if (!tensor || layout.elements != layout.shard_elements || weight->shard)
        b->missing |= 1u << DTP_ROLE_WEIGHT;
    if (g.gradient_element != DTP_ELEMENT_BF16)
        b->missing |= 1u << DTP_ROLE_INPUT;
    if (g.master && element_of_all(b, DTP_ROLE_MASTER, count) != DTP_ELEMENT_FP32)
        b->missing |= 1u << DTP_ROLE_MASTER;
    g.factor = tensor ? factor_of(tensor) : 1;
    g.first_element = dtp_parameter_element_key(module, first);
    out->kernel = DTP_KERNEL_sgd;
    enum dtp_status status = dtp_bind_decay(b, module, first, &g);
    out->arguments.sgd = g;
    return status;
}

enum dtp_status dtp_bind_muon(struct dtp_binder *b, struct dtp_bound_op *out)
{
    switch (b->op->demand->form) {
    case DTP_FORM_MUON_MOMENTUM: momentum(b, out); return DTP_OK;
    case DTP_FORM_MUON_UNIT: unit(b, out); return DTP_OK;
    default: return step(b, out);
    }
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

static bool has_factor(const struct dtp_binder *b)
{
    return b->op->demand->form == DTP_FORM_FROM_LEFT || b->op->demand->form == DTP_FORM_FROM_RIGHT;
}

/* Every operand has exactly the elements of its place in the product. */
void dtp_bind_product_room(struct dtp_binder *b)
{
    uint64_t m = whole(b->op->demand->m), n = whole(b->op->demand->n), k = whole(b->op->demand->k);
    uint32_t form = b->op->demand->form;
    bool gram = form == DTP_FORM_GRAM || form == DTP_FORM_GRAM_OF_COLUMNS;
    uint64_t side = form == DTP_FORM_FROM_LEFT ? m : n;
    bool fits = m && n && k && m <= INT32_MAX && n <= INT32_MAX && k <= INT32_MAX && b->op->demand->groups <= 1 &&
                form >= DTP_FORM_GRAM && form <= DTP_FORM_FROM_RIGHT && operand(b, DTP_ROLE_INPUT) &&
                operand(b, DTP_ROLE_RESULT) && has_factor(b) == (operand(b, DTP_ROLE_WEIGHT) != NULL);
    fits &= gram ? m == n : form == DTP_FORM_POLYNOMIAL ? m == n && n == k : k == side;
    if (!fits) {
        b->missing |= 1u << DTP_ROLE_RESULT;
        return;
    }
    if (element_of_all(b, DTP_ROLE_RESULT, m * n) != DTP_ELEMENT_BF16)
        b->missing |= 1u << DTP_ROLE_RESULT;
    if (element_of_all(b, DTP_ROLE_INPUT, gram ? m * k : m * n) != DTP_ELEMENT_BF16)
        b->missing |= 1u << DTP_ROLE_INPUT;
    if (has_factor(b) && element_of_all(b, DTP_ROLE_WEIGHT, k * k) != DTP_ELEMENT_BF16)
        b->missing |= 1u << DTP_ROLE_WEIGHT;
}

void dtp_bind_product(struct dtp_binder *b, struct dtp_bound_op *out)
{
    const struct dtp_operand *workspace = operand(b, DTP_ROLE_WORKSPACE);
    const void *input = need(b, DTP_ROLE_INPUT), *factor = has_factor(b) ? need(b, DTP_ROLE_WEIGHT) : input;
    struct dtp_matmul_args g = {.a = input,
                                .b = factor,
                                .result = need(b, DTP_ROLE_RESULT),
                                .workspace = maybe(b, DTP_ROLE_WORKSPACE),
                                .workspace_bytes = workspace ? operand_bytes(b, workspace) : 0,
                                .m = whole(b->op->demand->m),
                                .n = whole(b->op->demand->n),
                                .k = whole(b->op->demand->k),
                                .element = DTP_ELEMENT_BF16,
                                .result_element = DTP_ELEMENT_BF16,
                                .alike = true};
    switch (b->op->demand->form) {
    case DTP_FORM_GRAM: g.b_transposed = true; break;
    case DTP_FORM_GRAM_OF_COLUMNS: g.a_transposed = true; break;
    case DTP_FORM_POLYNOMIAL:
        g.addend = input;
        g.scale = (float)DTP_NEWTON_SCHULZ_C, g.addend_scale = (float)DTP_NEWTON_SCHULZ_B;
        break;
    case DTP_FORM_FROM_LEFT:
        g.a = factor, g.b = input;
        g.addend = input, g.addend_scale = (float)DTP_NEWTON_SCHULZ_A;
        break;
    default: /* from the right */
        g.b_transposed = true;
        g.addend = input, g.addend_scale = (float)DTP_NEWTON_SCHULZ_A;
        break;
    }
    g.lda = g.a_transposed ? g.m : g.k;
    g.ldb = g.b_transposed ? g.k : g.n;
    g.ldd = g.n;
    out->kernel = DTP_KERNEL_matmul;
    out->arguments.matmul = g;
}
