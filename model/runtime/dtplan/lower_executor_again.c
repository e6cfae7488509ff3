/* Blocks of our executor that do what one before them did, where only live bytes are asked for (lower/lower_again.h):
 * their operators, forward, replayed and backward. What stands around these, weights that are gathered and gradients
 * that are reduced, is lowered each time. */
#include "runtime/dtplan/lower_executor_tensor.h"

#include "lower/lower_again.h"

/* Operators of a block at hand, and what of its gradients they change. */
struct operators {
    struct dtp_executor *x;
    struct dtp_executor_module *module;
    uint64_t layer, written, allocates;
    void (*lower)(struct dtp_executor *x, uint64_t layer);
};

static void lower(struct dtp_lowering *l, void *context)
{
    struct operators *operators = context;
    (void)l;
    operators->lower(operators->x, operators->layer);
    operators->written = operators->module->written;
    operators->allocates = operators->module->allocates;
}

/* Not of ranks that divide blocks, nor of experts or fp8, whose layers have buffers elsewhere; nor where weight
 * gradients are on a stream of their own, which holds what they read. */
static bool repeats(const struct dtp_executor *x)
{
    bool divided = x->rules.tensor_ranks > 1 || x->plan->cp > 1;
    return dtp_lower_remembers(x->l) && !divided && !x->t->experts && !x->shape->fp8 &&
           !x->plan->executor.gradient_stream;
}

void dtp_executor_repeat(struct dtp_executor *x, uint64_t layer, enum dtp_executor_sweep sweep,
                         void (*operators)(struct dtp_executor *x, uint64_t layer))
{
    struct dtp_executor_module *module =
        x->shape->adapted ? dtp_executor_adapters(x, layer) : dtp_executor_block(x, layer);
    struct operators context = {x, module, layer, module->written, module->allocates, operators};
    uint64_t kept = dtp_executor_kept(x, layer);
    const bool turns = dtp_transformer_layer_turns(x->t, dtp_lower_model_layer(x->l)),
               first = dtp_executor_ends_backward(x, layer);
    struct dtp_lower_part part = {
        .kind = (uint64_t)sweep << 2 | (uint64_t)turns << 1 | (uint64_t)first, .lower = lower, .context = &context};
    if (!repeats(x)) {
        operators(x, layer);
        return;
    }
    dtp_lower_part_set(&part, x->tensors[layer], DTP_EXECUTOR_TENSORS, true);
    dtp_lower_part_set(&part, &x->gradient, 1, true);
    dtp_lower_part_set(&part, &module->gradient, 1, true);
    dtp_lower_part_word(&part, &context.written);
    dtp_lower_part_word(&part, &context.allocates);
    dtp_lower_part_word(&part, &kept);
    dtp_lower_part(x->l, &part);
    module->written = context.written;
    module->allocates = context.allocates;
}
