/* Units of layers that are gathered and reduced together: FSDP2 and FSDP1. */
#include "bounds/memory_bound.h"

#include "plan/optimizer_state.h"

/* Bytes of weights as gathered: of the last unit; of a layer's divided experts, which are copied by themselves. Of the
 * root's while the embedding is at work, the blocks, in backward with what is left of the embedding's, head and loss;
 * of the head's gradient while blocks are at work, and of its reduction beside the last unit. Of a layer of each kind
 * its weights, its reduction, FSDP2's until the next unit has been reduced, and what stays between forward and
 * backward: all, or as gathered again from fewer ranks. Of a layer's shard its cast, or what has come up from the host;
 * what came up and its cast, FSDP2's until forward has copied; the same of the root's, which FSDP1 always casts. What
 * hooks on frozen layers hold to the end of backward: the input of each replay and its gradient. Flat buffers that
 * weights are copied out of, which FSDP2 makes only where there are several ranks. */
struct fsdp {
    uint64_t last, experts, first, between, behind, head, head_gradient, head_input;
    uint64_t weights[DTP_LAYER_MLPS], inputs[DTP_LAYER_MLPS], stays[DTP_LAYER_MLPS], flats[DTP_LAYER_MLPS];
    uint64_t last_flat, first_flat, head_flat;
    uint64_t cast, uploaded, root_uploaded, root_stays, held;
    uint64_t end, end_shard;       /* elements of what is reduced with the embedding */
    uint64_t others;               /* rows of the table that other ranks have, whose gradient this one makes as well */
    uint64_t before, after, block; /* gradients at rest before the last backward, behind it; a block's worst stage */
    uint64_t whole_bytes, reduced_bytes; /* of an element of whole gradients; of a reduction's result and its cast */
    bool several, whole;                 /* micro-steps; whose gradients are added up whole, and reduced once */
    bool flat, keeps, ends; /* weights are copied out of a flat buffer; stay gathered; of the root are two units */
};

/* Weights as they are gathered: matrices narrower where they travel so; beside adapters frozen ones as they are kept.
 * Where the root is two units, one of them stands at a time, and while blocks are at work what is kept gathered. */
static void add_weights(const struct dtp_bound *b, struct fsdp *f)
{
    const struct dtp_units *u = b->units, *t = b->trained;
    const struct dtp_element_bytes *e = &b->bytes;
    const bool adapts = dtp_plan_adapts(b->plan);
    const uint64_t group = b->plan->reshard_group,
                   narrower = (e->compute - e->gathered) *
                              dtp_units_padded(u, b->plan, u->layer_matmul, u->layer_matmul_shard, 0),
                   layer = dtp_units_padded(t, b->plan, t->largest_layer, t->largest_layer_shard, t->expert_shard),
                   head = dtp_units_padded(u, b->plan, t->head_end, t->head_end_shard, 0),
                   root = e->compute * dtp_units_padded(u, b->plan, u->root, u->root_shard, 0),
                   experts = e->compute * u->expert_shard * u->expert_ranks;
    const bool alone = u->ranks == 1 && b->plan->offload == DTP_OFFLOAD_NONE, own_experts = u->expert_ranks == 1;
    f->head = adapts ? u->root_wire * u->ranks : root - (u->count ? 0 : b->layers * narrower);
    for (int i = 0; i < DTP_LAYER_MLPS; i++) {
        f->weights[i] = adapts ? u->layer_wire * u->ranks : e->compute * b->layer_padded[i] - narrower;
        f->inputs[i] = e->reduce * (adapts ? layer : b->layer_padded[i]);
        f->stays[i] = !u->count ? 0 : f->keeps ? f->weights[i] : group ? f->weights[i] / group : 0;
        f->flats[i] = alone ? 0 : f->weights[i] - (i == DTP_LAYER_EXPERTS && own_experts ? experts : 0);
    }
    f->first = f->between = f->head, f->first_flat = f->head_flat = alone ? 0 : f->head;
    f->last = dtp_bound_between(b, f->weights, b->layers - u->last_unit_layers, b->layers);
    f->last_flat = dtp_bound_between(b, f->flats, b->layers - u->last_unit_layers, b->layers);
    f->experts = own_experts ? 0 : experts, f->ends = u->head_end > 0;
    if (!f->ends)
        return;
    f->end -= head, f->end_shard -= t->head_end_shard;
    f->head = f->head / u->root * u->head_end, f->first -= f->head, f->first_flat = alone ? 0 : f->first;
    f->between = f->keeps ? f->first : 0, f->head_flat = alone ? 0 : f->head, f->head += f->between;
    f->head_gradient = 0, f->head_input = e->reduce * head;
}

static struct fsdp fsdp_of(const struct dtp_bound *b)
{
    const struct dtp_units *t = b->trained;
    const struct dtp_plan *plan = b->plan;
    const struct dtp_element_bytes *e = &b->bytes;
    const uint64_t group = plan->reshard_group, cast = e->params != e->compute ? e->compute : 0,
                   up = plan->offload == DTP_OFFLOAD_PARAMS ? e->params + cast : 0;
    struct fsdp f = {.flat = !plan->fsdp1, .keeps = !plan->reshard_after_forward, .several = plan->accumulate > 1};
    f.end = dtp_units_padded(b->units, b->plan, t->root, t->root_shard, 0), f.end_shard = t->root_shard;
    f.head_gradient = e->compute * t->embedding, f.block = dtp_bound_block(b, DTP_LAYER_MLPS, e->compute, e->compute);
    f.whole_bytes = plan->fsdp1 ? e->compute : e->reduce;
    f.reduced_bytes = e->reduce + (e->reduce != e->grads ? e->grads : 0);
    f.after = plan->offload == DTP_OFFLOAD_NONE ? e->grads * t->total_shard : 0;
    add_weights(b, &f);
    if (dtp_plan_hooks_hold(plan))
        f.held = dtp_bound_tokens(b, b->activations.gradient + b->activations.layer_input);
    f.uploaded = up * t->largest_layer_shard, f.root_uploaded = (up || f.flat ? up : cast) * b->units->root_shard;
    f.cast = cast && f.flat ? cast * t->largest_layer_shard : f.uploaded;
    if (e->gathered < e->compute) /* the largest matrix in fp32, twice (torchao's casts before the gather) */
        f.cast += 2 * 4 * dtp_divide_up(b->units->largest, b->units->ranks);
    f.root_stays = group && !dtp_plan_keeps_root(plan) ? f.first / group : 0;
    f.behind = f.between + (f.ends ? f.root_stays : 0), f.whole = f.several && !plan->accumulate_sync;
    f.others = dtp_bound_others_rows(b);
    f.before = f.whole ? f.whole_bytes * (t->total + f.others) : f.several ? f.after : 0;
    return f;
}

/* Gradients at rest during a block, those of `above` layers having been reduced where the micro-step reduces. */
static uint64_t gradients(const struct dtp_bound *b, const struct fsdp *f, uint64_t above, bool reduces)
{
    const struct dtp_units *u = b->trained;
    if (!reduces || (f->several && !f->whole))
        return f->before;
    const uint64_t own = dtp_bound_between(b, b->layer_own, b->layers - above, b->layers) + u->head_end_shard,
                   whole = dtp_bound_between(b, b->layer_trained, b->layers - above, b->layers),
                   reduced = f->after ? own * b->bytes.grads : 0;
    return f->before - (f->whole ? (whole + u->head_end) * f->whole_bytes : 0) + reduced;
}

static uint64_t width_of(const struct dtp_bound *b, uint64_t unit)
{
    const struct dtp_units *u = b->units;
    return !u->count ? b->layers : unit + 1 < u->count ? u->layers_per_unit : u->last_unit_layers;
}

/* Of the layers of so many units. */
static uint64_t units(const struct dtp_bound *b, const uint64_t *of_kind, uint64_t from, uint64_t to)
{
    const uint64_t each = b->units->layers_per_unit;
    return dtp_bound_between(b, of_kind, smaller(from * each, b->layers), smaller(to * each, b->layers));
}

/* A unit at work in backward. Its weights are copied out of their flat buffer, or the first of those ahead is gathered;
 * its last block's worst stage, and its first one's beside the gradients of those above. Then it is reduced: its
 * gradients stand beside the input of the reduction, which FSDP1 concatenates out of views before the weights go; then
 * that input beside its result and what this is cast into. */
static void keep_unit(struct dtp_bound *b, const struct fsdp *f, uint64_t unit, bool reduces)
{
    const struct dtp_units *u = b->units, *t = b->trained;
    const uint64_t begin = unit * u->layers_per_unit, width = width_of(b, unit), end = begin + width,
                   stream = dtp_bound_tokens(b, b->activations.gradient),
                   flat = b->bytes.compute * t->largest_layer, /* with what pads it */
        one = u == t ? flat : b->bytes.grads * larger(b->layer_trained[0], b->layer_trained[1]),
                   depth = dtp_plan_prefetches_backward(b->plan) * (f->flat ? b->plan->prefetch_depth : UINT64_C(1));
    const bool gathers = u->count && !f->keeps, above = unit + 1 < u->count;
    const uint64_t own = u->count ? units(b, f->weights, unit, unit + 1) : 0,
                   root = f->ends && depth > unit ? f->first_flat : 0, /* comes behind the first unit */
        ahead = gathers ? units(b, f->flats, unit - smaller(depth, unit), unit) + root : 0,
                   flat_own = units(b, f->flats, unit, unit + 1),
                   before = above && depth ? units(b, f->flats, unit - smaller(depth - 1, unit), unit)
                                           : 0, /* as its own are copied */
        sums = above && f->several && !f->whole ? b->bytes.grads * units(b, b->layer_own, unit + 1, unit + 2) : 0,
                   input = (reduces && f->flat) * /* of that above, and what is added to the shards of before */
                           (above ? units(b, f->inputs, unit + 1, unit + 2) + sums : f->head_input);
    const uint64_t standing = gradients(b, f, b->layers - end, reduces) + f->behind + own +
                              dtp_bound_between(b, f->stays, 0, begin) + f->head_gradient + (b->layers - end) * f->held;
    const uint64_t all = f->experts ? dtp_bound_saved(b, end - 1) + dtp_bound_tokens(b, b->activations.layer_all) : 0;
    if (f->flat)
        dtp_bound_keep(b, standing + input + larger(dtp_bound_saved(b, end), all) + stream +
                              larger(gathers ? flat_own + units(b, f->stays, unit, unit + 1) + before : 0,
                                     ahead ? ahead + larger(u->layers_per_unit * f->cast, f->experts) : 0));
    (begin >= b->layers / 2 ? dtp_bound_keep : dtp_bound_keep_late)(
        b, standing + ahead + input + dtp_bound_saved(b, begin) + (width - 1) * (one + f->held) + f->block);
    if (width > 1)
        dtp_bound_keep(b, standing + ahead + input + dtp_bound_saved(b, end - 1) + f->block);
    if (!u->count)
        return;
    const uint64_t below = begin ? dtp_bound_saved(b, begin) : dtp_bound_tokens(b, b->activations.embedding),
                   beside = standing + ahead + below + stream + width * f->held;
    const uint64_t reduced = b->bytes.reduce * t->largest_layer_shard,
                   result = b->plan->fsdp1 ? reduced : larger(one, reduced) * !f->whole;
    dtp_bound_keep(b, beside - own + units(b, f->inputs, unit, unit + 1) + width * result);
    dtp_bound_keep(b, beside + b->plan->fsdp1 * width * (one + flat));
}

/* The last units that may differ, the lowest that gathers all ahead, replayed or not, the first; of two kinds all. */
static void keep_units(struct dtp_bound *b, const struct fsdp *f, bool reduces)
{
    const uint64_t count = larger(b->units->count, 1), depth = b->plan->prefetch ? b->plan->prefetch_depth : 0,
                   every = larger(b->activations.checkpoint_every, 1),
                   last = (b->units->last_unit_layers < b->units->layers_per_unit ? 2 : 1) + every,
                   all = b->uniform ? last : count + 1, low = depth + every;
    for (uint64_t unit = count; unit-- > 0;
         unit = unit + all > count ? unit : smaller(unit, unit + 1 == depth ? 1 : low))
        keep_unit(b, f, unit, reduces);
}

/* The root is gathered; a unit is copied out of its flat buffer while that of the one before, or the root's, stands;
 * the last block, the logits, the loss; then the root again, and the last unit beside the head's gradients. */
static struct dtp_bound_beside forward(struct dtp_bound *b, const struct fsdp *f)
{
    const struct dtp_activations *a = &b->activations;
    const struct dtp_units *u = b->units;
    const struct dtp_plan *plan = b->plan;
    const bool chunked = dtp_plan_loss(plan) == DTP_LOSS_CHUNKED,
               keeps = f->keeps || plan->fsdp1 || plan->keep_root || f->ends, stands = keeps || chunked;
    const uint64_t standing =
                       f->before + f->root_stays + dtp_bound_between(b, f->stays, 0, b->layers), /* to backward */
        again = f->ends ? 0 : f->root_stays,                        /* until it is gathered again */
        copy = f->flat * (u->count ? f->last_flat : f->first_flat), /* the last unit's flat buffer */
        own = f->keeps ? 0 : f->last, count = u->count,
                   kept = dtp_bound_saved(b, b->layers) + dtp_bound_tokens(b, a->head);
    struct dtp_bound_beside beside = {.head_gradient = b->bytes.compute * b->trained->embedding};
    beside.forward = standing + f->between + copy + own, beside.loss = standing + (stands ? f->head - again : 0);
    beside.logits = standing + f->head + (f->ends ? f->head_flat : copy);
    beside.head = standing - again + f->head + (dtp_plan_prefetches_backward(plan) && !f->keeps ? f->last : 0);
    dtp_bound_keep(b, f->before + f->first + (f->flat ? f->first_flat : 0) + f->root_uploaded);
    if (f->flat && count)
        dtp_bound_keep(b, f->before + f->between + f->first_flat + units(b, f->weights, 0, 1) +
                              units(b, f->flats, 0, 1) + width_of(b, 0) * f->uploaded +
                              dtp_bound_tokens(b, a->embedding + a->layer_input));
    /* the lowest units that stand beside the flat buffers of the one before and of all ahead */
    const uint64_t depth = plan->prefetch ? plan->prefetch_depth : 1;
    for (uint64_t unit = b->uniform && count > depth + 1 ? count - depth - 1 : 1; f->flat && unit < count; unit++) {
        const uint64_t begin = unit * u->layers_per_unit, width = width_of(b, unit),
                       weights = standing - dtp_bound_between(b, f->stays, begin, b->layers) + f->between +
                                 units(b, f->weights, unit, unit + 1) + units(b, f->flats, unit - 1, unit + depth);
        dtp_bound_keep(b, weights + (depth > 1 ? 0 : width * f->uploaded) + dtp_bound_saved(b, begin) +
                              dtp_bound_tokens(b, a->layer_input));
        const uint64_t gone = depth > 1 ? 0 : units(b, f->flats, unit - 1, unit); /* else they stand while it works */
        dtp_bound_keep(b, weights - gone + dtp_bound_saved(b, begin + width - 1) + dtp_bound_forward(b));
    }
    if (f->ends) /* the head is copied out of its flat buffer, that of the last unit still there */
        dtp_bound_keep(b, standing + f->head + f->head_flat + copy + dtp_bound_saved(b, b->layers) +
                              dtp_bound_tokens(b, a->layer_input));
    if (!keeps)
        dtp_bound_keep(b, standing + kept + larger(f->head + f->head_flat, f->root_uploaded) +
                              (chunked ? beside.head_gradient + dtp_bound_tokens(b, b->head_input) : 0) +
                              dtp_bound_tokens(b, a->logits_gradient));
    dtp_bound_hold(b, standing + f->between + own + dtp_bound_saved(b, b->layers - 1) +
                          dtp_bound_tokens(b, b->layer_all[dtp_bound_kind_of(b, b->layers - 1)]));
    dtp_bound_hold(b, beside.loss + kept + dtp_bound_tokens(b, a->loss));
    return beside;
}

/* The embedding's gradient, made with the root gathered, beside the head's; then the root's reduction as a unit's, of
 * FSDP2 the last tensor's gradient still beside it. */
static void keep_root(struct dtp_bound *b, const struct fsdp *f, bool reduces, struct dtp_bound_beside *beside)
{
    const struct dtp_units *t = b->trained;
    uint64_t c = b->bytes.compute, rest = gradients(b, f, t->count ? b->layers : 0, reduces);
    if (!reduces && b->plan->accumulate == 2) /* the first micro-step's */
        rest -= f->whole_bytes * (t->root + f->others);
    uint64_t made = !t->count ? t->total + (t->head ? 0 : t->embedding)
                    : f->ends ? t->embedding + t->position
                              : 2 * t->embedding + t->position;
    made += f->others;
    uint64_t input = b->bytes.reduce * f->end, root = t->root - t->head_end,
             above = reduces && f->flat && t->count ? units(b, f->inputs, 0, 1) : 0;
    beside->ends = larger(beside->ends, rest + f->first + c * made + above);
    if (f->ends && f->flat && !f->keeps) /* gathered once more, it is copied out of its flat buffer */
        dtp_bound_keep_late(b, rest + f->root_stays + f->first + f->first_flat + above +
                                   dtp_bound_tokens(b, b->activations.gradient));
    if (reduces && f->others) { /* its own rows are cut out of the whole table's */
        const uint64_t whole = f->whole ? f->whole_bytes * t->embedding : c * (made + t->embedding);
        dtp_bound_keep_late(b, rest + f->first + above + whole);
        rest -= f->whole ? f->whole_bytes * f->others : 0;
    }
    if (b->plan->fsdp1)
        dtp_bound_keep_late(b, rest + f->first + 2 * c * root);
    else if (reduces)
        dtp_bound_keep_late(b, rest + (f->whole ? 0 : c * root) + input);
    if (reduces && !b->plan->fsdp1 && b->units->ranks > 1 && !dtp_plan_adapts(b->plan)) {
        const uint64_t tables = t->position ? t->position : t->embedding,
                       vectors = t->root - t->head - t->embedding - t->position, /* behind tables, before the head */
            last = f->ends   ? tables
                   : t->head ? t->head
                   : vectors ? 0
                             : tables;
        const uint64_t whole = f->whole ? f->whole_bytes * root : 0, named = (f->whole ? f->whole_bytes : c) * last;
        dtp_bound_keep_late(b, rest - whole + named + input + b->bytes.reduce * f->end_shard);
    }
    if (!f->whole)
        dtp_bound_keep_late(b, rest + (b->plan->fsdp1 ? larger(c * root, input) + b->bytes.grads * f->end_shard
                                                      : input + f->reduced_bytes * f->end_shard));
}

void dtp_bound_fsdp(struct dtp_bound *b)
{
    const struct fsdp f = fsdp_of(b);
    struct dtp_bound_beside beside = forward(b, &f);
    if (f.ends) /* the head is reduced, the last unit on its way */
        dtp_bound_keep(b, f.before + f.behind + dtp_bound_between(b, f.stays, 0, b->layers) + f.head_input +
                              (f.whole ? 0 : b->bytes.compute * b->trained->head_end) + (f.keeps ? 0 : f.last) +
                              dtp_bound_saved(b, b->layers) + dtp_bound_tokens(b, b->activations.gradient));
    for (int reduces = f.whole ? 0 : 1; reduces < 2; reduces++) { /* where shards are added up, each does */
        keep_units(b, &f, reduces);
        keep_root(b, &f, reduces, &beside);
    }
    dtp_bound_steps(b, &beside);
    dtp_bound_hold(b, f.after);
    dtp_bound_keep(b, f.after + dtp_optimizer_scratch_bytes(b->transformer, b->plan, b->trained->total_shard));
}
