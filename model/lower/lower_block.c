/* The block at which the skeleton stands, by its operations or by what is known of one that does the same
 * (lower_again.h). What stands around a block, gathers and reductions, is the runtime's hooks' and lowered each time;
 * where hooks stand within it, or ranks divide it, nothing is remembered. */
#include "lower/block_forward.h"
#include "lower/lower_again.h"

#include "plan/rules.h"

_Static_assert(DTP_TENSOR_COUNT + 2 * DTP_MAX_PARTS + 7 * DTP_LAYER_MATRICES + 3 <= DTP_LOWER_MOST_SLOTS,
               "room for all slots");

static void lower_forward(struct dtp_lowering *l, void *context)
{
    (void)context;
    dtp_lower_block_forward(l);
}

static void lower_backward(struct dtp_lowering *l, void *context)
{
    (void)context;
    dtp_lower_block_backward(l);
}

/* Whether all that decides a block's operations is known here. */
static bool repeats(const struct dtp_lowering *l, bool backward)
{
    const struct dtp_lower_hooks *hooks = l->hooks;
    const struct dtp_megatron_plan *asked = &l->narrow_plan->megatron;
    bool differ = l->transformer->experts || l->chunk->ahead_layers || asked->bf16_first || asked->bf16_last;
    bool within = hooks->fetch || hooks->unfetch || hooks->narrow ||
                  (backward && (hooks->gradient_made || dtp_plan_gathers_for_replays(l->plan)));
    return dtp_lower_remembers(l) && l->tp == 1 && l->plan->cp == 1 && !differ && !within;
}

static uint64_t kind_of(const struct dtp_lowering *l, bool backward)
{
    uint64_t owner = backward ? (uint64_t)l->gradient_owner : 0;
    bool first = l->casts.weights_once && l->first_micro_step; /* which alone casts weights */
    return owner << 4 | (uint64_t)first << 3 | (uint64_t)dtp_lower_cut(l) << 2 |
           (uint64_t)dtp_lower_checkpointed(l, l->layer) << 1 | (uint64_t)backward;
}

static void list_slots(struct dtp_lowering *l, bool backward, struct dtp_lower_part *part)
{
    struct dtp_flight_module *module = dtp_lower_flight_module(l);
    struct dtp_module_state *state = dtp_lower_state(l);
    const uint32_t parts = (uint32_t)l->block.parts, matrices = (uint32_t)l->matrices;
    dtp_lower_part_set(part, module->tensor, DTP_TENSOR_COUNT, true);
    dtp_lower_part_set(part, state->weight, parts, true);
    dtp_lower_part_set(part, state->gradient, parts, backward);
    dtp_lower_part_set(part, &l->flight->gradient, 1, true);
    dtp_lower_part_set(part, &l->flight->replayed, 1, true);
    dtp_lower_part_set(part, module->casts, matrices, true);
    dtp_lower_part_set(part, module->columns, matrices, true);
    if (!l->adapts)
        return;
    dtp_lower_part_set(part, module->low, matrices, true);
    dtp_lower_part_set(part, module->dropped, matrices, true);
    dtp_lower_part_set(part, module->unpacked, matrices, true);
    dtp_lower_part_set(part, module->wide, matrices, true);
    dtp_lower_part_set(part, module->base, matrices, true);
}

/* What comes behind the block has its result: the next one, which then exists, or the final norm. */
static struct dtp_flight_module *list_result(struct dtp_lowering *l, struct dtp_lower_part *part)
{
    uint64_t place = l->layer + 1u - l->chunk->first;
    struct dtp_flight_module *next = place < l->chunk->layers ? &l->flight->module[place] : NULL;
    dtp_lower_part_set(part, next ? &next->tensor[DTP_TENSOR_INPUT] : &l->flight->final_input, 1, false);
    return next;
}

void dtp_lower_block(struct dtp_lowering *l, bool backward)
{
    struct dtp_lower_part part = {.kind = kind_of(l, backward), .lower = backward ? lower_backward : lower_forward};
    if (!repeats(l, backward)) {
        part.lower(l, NULL);
        return;
    }
    if (l->adapts && !backward)
        dtp_lower_clear_adapters(dtp_lower_flight_module(l));
    list_slots(l, backward, &part);
    dtp_lower_part_word(&part, &dtp_lower_flight_module(l)->alive);
    struct dtp_flight_module *next = backward ? NULL : list_result(l, &part);
    dtp_lower_part(l, &part);
    if (next)
        next->alive = DTP_TENSOR_BIT(INPUT);
}
