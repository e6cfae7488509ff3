/* Reduction of a unit's gradients, when its backward is through.
 *
 * FSDP2: compute waits for the previous unit's reduce-scatter, whose input then goes; gradients are laid into a new
 * input in the reduce dtype (compute stream), scattered (reduce stream), all-reduced between replicas (replicate
 * stream) and cast to the parameters' dtype where that differs. Without reduction they stay whole, in the reduce dtype.
 * FSDP1: the weights are views of one flat parameter, so autograd concatenates their gradients into a flat one beside
 * them; it is cast and scattered on the reduce stream and nothing waits. Without reduction the flat one stays. */
#include "runtime/torch/lower_units.h"

#include "base/bytes.h"

/* Gradients of micro-steps that do not reduce stay whole: in the reduce dtype, or as they are where that is the same.
 */
static void accumulate_part(struct dtp_lowering *l, struct dtp_module_state *state,
                            const struct dtp_lower_module *module, int part)
{
    uint64_t made = dtp_lower_made_elements(l, module, part);
    double elements = (double)made, c = (double)l->compute, r = (double)l->bytes.reduce;
    if (state->gradient[part].index == DTP_NO_INDEX)
        return;
    bool first = state->kept[part].index == DTP_NO_INDEX;
    if (first && l->bytes.reduce == l->compute) {
        state->kept[part] = state->gradient[part];
        state->gradient[part] = DTP_NO_BUFFER;
        return;
    }
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, first ? DTP_OP_CAST : DTP_OP_ACCUMULATE, module->gradient_name[part]);
    if (first)
        state->kept[part] =
            dtp_draft_new(l, &draft, "accumulated gradient", DTP_OWNER_GRADS, l->bytes.reduce * made, DTP_WRITE);
    else
        dtp_draft_use(&draft, state->kept[part], DTP_UPDATE);
    dtp_draft_use(&draft, state->gradient[part], DTP_READ | DTP_FREE);
    dtp_draft_memory(l, &draft, elements * (first ? c + r : c + 2 * r), 1);
    draft.op.demand.memory_kernel = DTP_KERNEL_FUSED;
    dtp_draft_end(l, &draft);
    state->gradient[part] = DTP_NO_BUFFER;
}

static void accumulate(struct dtp_lowering *l, struct dtp_lower_unit *unit)
{
    for (uint64_t i = 0; i < dtp_unit_modules(unit); i++) {
        struct dtp_unit_module at = dtp_unit_module(l, unit, i);
        for (int part = at.first; part < at.end; part = dtp_unit_next(&at, part))
            accumulate_part(l, at.state, at.module, part);
    }
}

/* Compute waits for the previous unit's reduce-scatter, whose input then goes. */
void dtp_lower_await_reduction(struct dtp_lowering *l)
{
    struct dtp_lower_unit *unit = dtp_lower_sharding_of(l)->reducing;
    if (!unit)
        return;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_FREE, "reduce-scatter input");
    dtp_draft_use(&draft, unit->scatter_input, DTP_FREE);
    dtp_draft_after(&draft, unit->scattered);
    dtp_draft_end(l, &draft);
    unit->scatter_input = DTP_NO_BUFFER;
    dtp_lower_sharding_of(l)->reducing = NULL;
}

/* The gradient of a unit's last tensor is still named by foreach_reduce's loop over them when the others go, so that it
 * stands beside the reduce-scatter's output as well; on one rank there is no such loop (_fsdp_collectives.py). Told of
 * what lies outside of blocks and of experts, whose last tensor is a matrix. */
static int named_last(const struct dtp_lowering *l, const struct dtp_lower_unit *unit, const struct dtp_unit_module *at,
                      const dtp_buffer_id *gradients)
{
    int last = DTP_MAX_PARTS;
    if (unit->ranks == 1 || l->adapts || (at->module != &l->root && !unit->experts))
        return last;
    for (int part = at->first; part < at->end; part = dtp_unit_next(at, part))
        if (gradients[part].index != DTP_NO_INDEX)
            last = part;
    return last < DTP_MAX_PARTS && at->module->rows[last] ? last : DTP_MAX_PARTS;
}

static void let_last_go(struct dtp_lowering *l, struct dtp_lower_unit *unit)
{
    struct dtp_draft draft;
    if (unit->named.index == DTP_NO_INDEX)
        return;
    dtp_draft_begin(l, &draft, DTP_OP_FREE, "gradient of the last tensor");
    dtp_draft_use(&draft, unit->named, DTP_FREE);
    dtp_draft_end(l, &draft);
    unit->named = DTP_NO_BUFFER;
}

/* Gradients into the padded input, cast to the reduce dtype. */
static void fill_scatter_input(struct dtp_lowering *l, struct dtp_lower_unit *unit)
{
    bool whole = l->whole_gradients;
    uint64_t source = whole ? l->bytes.reduce : l->compute;
    for (uint64_t i = 0; i < dtp_unit_modules(unit); i++) {
        struct dtp_unit_module at = dtp_unit_module(l, unit, i);
        dtp_buffer_id *gradients = whole ? at.state->kept : at.state->gradient;
        struct dtp_draft draft;
        int last = named_last(l, unit, &at, gradients);
        dtp_draft_begin(l, &draft, DTP_OP_COPY_IN, "gradients");
        if (i == 0)
            unit->scatter_input = dtp_draft_new(l, &draft, "reduce-scatter input", DTP_OWNER_REDUCE,
                                                l->bytes.reduce * unit->ranks * unit->shard, DTP_WRITE);
        else
            dtp_draft_use(&draft, unit->scatter_input, DTP_UPDATE);
        for (int part = at.first; part < at.end; part = dtp_unit_next(&at, part)) {
            dtp_draft_use(&draft, gradients[part], part == last ? DTP_READ : DTP_READ | DTP_FREE);
            if (part == last)
                unit->named = gradients[part];
            gradients[part] = DTP_NO_BUFFER;
        }
        dtp_draft_memory(l, &draft, (double)((source + l->bytes.reduce) * at.elements), 1);
        draft.op.demand.memory_kernel = DTP_KERNEL_FUSED;
        dtp_draft_end(l, &draft);
    }
    dtp_lower_sharding_of(l)->reducing = unit;
}

/* ---- FSDP1 ------------------------------------------------------------------------------------------------------- */

/* The gradient of torch.split: a concatenation beside what it concatenates. */
static void concatenate(struct dtp_lowering *l, struct dtp_lower_unit *unit)
{
    for (uint64_t i = 0; i < dtp_unit_modules(unit); i++) {
        struct dtp_unit_module at = dtp_unit_module(l, unit, i);
        struct dtp_draft draft;
        dtp_draft_begin(l, &draft, DTP_OP_COPY_IN, "flat gradient");
        if (i == 0)
            unit->scatter_input = dtp_draft_new(l, &draft, "flat gradient", DTP_OWNER_REDUCE,
                                                l->compute * unit->ranks * unit->shard, DTP_WRITE);
        else
            dtp_draft_use(&draft, unit->scatter_input, DTP_UPDATE);
        /* all parts' gradients stand until the last has been concatenated */
        bool last = i + 1 == dtp_unit_modules(unit);
        for (int part = at.first; part < at.end; part = dtp_unit_next(&at, part))
            dtp_draft_use(&draft, at.state->gradient[part], last ? DTP_READ | DTP_FREE : DTP_READ);
        dtp_draft_memory(l, &draft, (double)(2 * l->compute * at.elements), 1);
        draft.op.demand.memory_kernel = DTP_KERNEL_FUSED;
        dtp_draft_end(l, &draft);
    }
    for (uint64_t i = 0; i < dtp_unit_modules(unit); i++) {
        struct dtp_unit_module at = dtp_unit_module(l, unit, i);
        struct dtp_draft draft;
        dtp_draft_begin(l, &draft, DTP_OP_FREE, "gradients");
        for (int part = at.first; part < at.end; part = dtp_unit_next(&at, part)) {
            if (i + 1 < dtp_unit_modules(unit))
                dtp_draft_use(&draft, at.state->gradient[part], DTP_FREE);
            at.state->gradient[part] = DTP_NO_BUFFER;
        }
        if (draft.operand_count)
            dtp_draft_end(l, &draft);
    }
}

static void accumulate_flat(struct dtp_lowering *l, struct dtp_lower_unit *unit)
{
    if (unit->accumulated.index == DTP_NO_INDEX) {
        unit->accumulated = unit->scatter_input;
        unit->scatter_input = DTP_NO_BUFFER;
        return;
    }
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ACCUMULATE, "flat gradient");
    dtp_draft_use(&draft, unit->accumulated, DTP_UPDATE);
    dtp_draft_use(&draft, unit->scatter_input, DTP_READ | DTP_FREE);
    dtp_draft_memory(l, &draft, (double)(3 * l->compute * unit->elements), 1);
    draft.op.demand.memory_kernel = DTP_KERNEL_FUSED;
    dtp_draft_end(l, &draft);
    unit->scatter_input = DTP_NO_BUFFER;
}

/* On the reduce stream; the flat gradient is freed once the device has read it. */
static void cast_flat(struct dtp_lowering *l, struct dtp_lower_unit *unit)
{
    if (l->whole_gradients) {
        unit->scatter_input = unit->accumulated;
        unit->accumulated = DTP_NO_BUFFER;
    }
    if (l->bytes.reduce == l->compute)
        return;
    double elements = (double)(unit->ranks * unit->shard);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_CAST, "flat gradient");
    draft.op.stream = DTP_STREAM_REDUCE;
    dtp_buffer_id cast = dtp_draft_new(l, &draft, "reduce-scatter input", DTP_OWNER_REDUCE,
                                       l->bytes.reduce * unit->ranks * unit->shard, DTP_WRITE);
    dtp_draft_use(&draft, unit->scatter_input, DTP_READ | DTP_FREE | DTP_DEFER);
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_COMPUTE]);
    dtp_draft_memory(l, &draft, elements * (double)(l->compute + l->bytes.reduce), 1);
    draft.op.demand.memory_kernel = DTP_KERNEL_FUSED;
    dtp_draft_end(l, &draft);
    unit->scatter_input = cast;
}

/* ---- the collectives --------------------------------------------------------------------------------------------- */

/* One rank copies instead. Experts that ranks divide have a divisor of their own (set_gradient_divide_factor), as their
 * gradients are sums over all ranks' tokens: on one rank the quotient is made before it is copied (foreach_reduce),
 * where a reduce-scatter multiplies on its way. */
static void copy_reduced(struct dtp_lowering *l, const struct dtp_lower_unit *unit, struct dtp_draft *draft,
                         uint64_t bytes)
{
    if (unit->experts)
        dtp_draft_new(l, draft, "divided gradients", DTP_OWNER_REDUCE, bytes, DTP_UPDATE | DTP_FREE);
    dtp_draft_memory(l, draft, (unit->experts ? 4 : 2) * (double)bytes, unit->experts ? 2 : 1);
    draft->op.demand.memory_kernel = DTP_KERNEL_STREAMING;
}

static dtp_buffer_id scatter(struct dtp_lowering *l, struct dtp_lower_unit *unit)
{
    uint64_t ranks = unit->ranks, bytes = l->bytes.reduce * unit->shard;
    bool alone = ranks == 1;
    bool rests = l->bytes.reduce == l->bytes.grads && unit->grads.index == DTP_NO_INDEX && !dtp_lower_offloads(l);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, alone ? DTP_OP_COPY_OUT : DTP_OP_REDUCE_SCATTER, alone ? "reduced gradients" : "");
    draft.op.stream = DTP_STREAM_REDUCE;
    draft.op.group = unit->group;
    dtp_buffer_id output =
        dtp_draft_new(l, &draft, "reduced gradients", rests ? DTP_OWNER_GRADS : DTP_OWNER_REDUCE, bytes, DTP_WRITE);
    dtp_draft_use(&draft, unit->scatter_input, l->plan->fsdp1 ? DTP_READ | DTP_FREE | DTP_DEFER : DTP_READ);
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_COMPUTE]);
    if (alone)
        copy_reduced(l, unit, &draft, bytes);
    else
        draft.op.demand.bytes = (double)(bytes * ranks);
    draft.op.demand.sent_bytes = (double)(bytes * (ranks - 1));
    unit->scattered = dtp_draft_end(l, &draft);
    return output;
}

/* Between replicas, on a communicator and stream of its own. */
void dtp_lower_all_reduce(struct dtp_lowering *l, struct dtp_lower_unit *unit, dtp_buffer_id reduced)
{
    struct dtp_lower_sharding *s = dtp_lower_sharding_of(l);
    uint64_t replicas = l->data_ranks / l->plan->shard_group, bytes = l->bytes.reduce * unit->shard;
    if (replicas < 2)
        return;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ALL_REDUCE, "");
    draft.op.stream = DTP_STREAM_REPLICATE;
    draft.op.group = s->replica_group;
    dtp_draft_use(&draft, reduced, DTP_UPDATE);
    dtp_draft_after(&draft, unit->scattered);
    uint64_t sent =
        dtp_lower_ring(s->replicated_bytes + bytes, replicas) - dtp_lower_ring(s->replicated_bytes, replicas);
    draft.op.demand.sent_bytes = 2 * (double)sent;
    draft.op.demand.bytes = (double)bytes;
    s->replicated_bytes += bytes;
    dtp_draft_end(l, &draft);
}

/* What came out becomes .grad, cast and added to what earlier micro-steps left. */
static void keep_reduced(struct dtp_lowering *l, struct dtp_lower_unit *unit, dtp_buffer_id reduced)
{
    bool first = unit->grads.index == DTP_NO_INDEX, casts = l->bytes.reduce != l->bytes.grads;
    if (first && !casts) {
        unit->grads = reduced;
        return;
    }
    bool replicas = l->data_ranks > l->plan->shard_group;
    double shard = (double)unit->shard, r = (double)l->bytes.reduce, g = (double)l->bytes.grads;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, first ? DTP_OP_CAST : DTP_OP_ACCUMULATE, "reduced gradients");
    draft.op.stream = replicas ? DTP_STREAM_REPLICATE : DTP_STREAM_REDUCE;
    if (first) {
        unit->grads = dtp_draft_new(l, &draft, "gradients", DTP_OWNER_GRADS, l->bytes.grads * unit->shard, DTP_WRITE);
    } else {
        dtp_draft_new(l, &draft, "cast gradients", DTP_OWNER_REDUCE, casts ? l->bytes.grads * unit->shard : 0,
                      DTP_UPDATE | DTP_FREE);
        dtp_draft_use(&draft, unit->grads, DTP_UPDATE);
    }
    dtp_draft_use(&draft, reduced, DTP_READ | DTP_FREE | (replicas ? DTP_DEFER : 0));
    dtp_draft_memory(l, &draft, shard * ((casts ? r + g : 0) + (first ? 0 : 3 * g)), first || !casts ? 1 : 2);
    draft.op.demand.memory_kernel = DTP_KERNEL_FUSED;
    dtp_draft_end(l, &draft);
}

void dtp_lower_collect_gradients(struct dtp_lowering *l, struct dtp_lower_unit *unit)
{
    if (l->plan->fsdp1)
        concatenate(l, unit);
    if (l->whole_gradients && l->plan->fsdp1)
        accumulate_flat(l, unit);
    else if (l->whole_gradients)
        accumulate(l, unit);
}

void dtp_lower_cut_gradients(struct dtp_lowering *l, struct dtp_lower_unit *unit)
{
    if (!unit->root)
        return;
    struct dtp_unit_module at = dtp_unit_module(l, unit, dtp_unit_modules(unit) - 1);
    dtp_buffer_id *gradients = l->whole_gradients ? at.state->kept : at.state->gradient;
    uint64_t element_bytes = l->whole_gradients ? l->bytes.reduce : l->compute;
    for (int part = at.first; part < at.end; part = dtp_unit_next(&at, part))
        if (gradients[part].index != DTP_NO_INDEX &&
            dtp_lower_made_elements(l, at.module, part) > at.module->elements[part])
            gradients[part] = dtp_lower_cut_gradient(l, gradients[part], element_bytes, true);
}

void dtp_lower_reduce_gradients(struct dtp_lowering *l, struct dtp_lower_unit *unit)
{
    if (l->plan->fsdp1) {
        cast_flat(l, unit);
    } else {
        dtp_lower_await_reduction(l);
        fill_scatter_input(l, unit);
    }
    dtp_buffer_id reduced = scatter(l, unit);
    let_last_go(l, unit);
    if (l->plan->fsdp1)
        unit->scatter_input = DTP_NO_BUFFER;
    dtp_lower_all_reduce(l, unit, reduced);
    if (dtp_lower_offloads(l))
        dtp_lower_download(l, unit, reduced);
    else
        keep_reduced(l, unit, reduced);
}
