/* FSDP2's units: gather, copy-out, release, reduce-scatter, in the order in which PyTorch's host issues them
 * (torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py; allocation traces of 2.11).
 *
 *   gather     the shard is cast and laid into the flat all-gather buffer (copy stream), gathered in place (gather stream)
 *   copy-out   the buffer's parts become the weights (compute stream). In forward the buffer stays until the next unit
 *              has been copied out; in backward it goes at once and the next unit's gather is issued
 *   reduce     when the unit's backward is through: weights released, compute waits for the previous reduce-scatter and
 *              its input goes, gradients are laid into a new input, scattered (reduce stream), all-reduced between
 *              replicas (replicate stream), cast to the parameters' dtype where that differs
 * A unit is `wrap_layers` blocks; embeddings, final norm and head are the root's, and all blocks where nothing is wrapped. */
#include "lowering.h"

#include "bytes.h"

#include <stdlib.h>

struct unit {
    uint64_t first, end;          /* blocks */
    bool root, weights_live, gathering;
    uint64_t elements, shard;     /* shard: what one rank stores, padded */
    uint64_t gathered_shard_bytes; /* of it on the wire */
    dtp_buffer_id params, flat, scatter_input, grads;
    struct dtp_lower_moments moments;
    dtp_op_id gathered;           /* the gather's last operation */
    dtp_op_id scattered;          /* the reduce-scatter, or the copy that stands for it on one rank */
};

struct dtp_lower_sharding {
    struct unit *unit;            /* units of blocks, then the root */
    uint64_t count;               /* without the root */
    uint32_t shard_group, replica_group;
    struct unit *held;            /* whose flat buffer forward still holds */
    struct unit *reducing;        /* whose reduce-scatter input still stands */
    dtp_op_id copied, awaited;    /* the last copy-out; the one that the gather's streams have waited for */
    uint64_t replicated_bytes;    /* all-reduced so far in this reduction, so that rounding adds up */
};

/* ---- layout ------------------------------------------------------------------------------------------------------ */

static uint64_t wire_bytes(const struct dtp_lowering *l, const struct dtp_lower_module *module, int part)
{
    return module->shard[part] * (module->matrix[part] ? l->bytes.gathered : l->bytes.compute);
}

static void add_module(const struct dtp_lowering *l, struct unit *unit, const struct dtp_lower_module *module, uint64_t times)
{
    unit->elements += times * module->all_elements;
    unit->shard += times * module->all_shard;
    for (int part = 0; part < module->parts; part++)
        unit->gathered_shard_bytes += times * wire_bytes(l, module, part);
}

/* Tensor by tensor where the unit is one module; together where it has too many for one operation. */
static void make_moments(struct dtp_lowering *l, struct unit *unit)
{
    uint64_t blocks = unit->end - unit->first;
    const struct dtp_lower_module *module = unit->root ? &l->root : &l->block;
    unit->moments = (struct dtp_lower_moments){DTP_NO_BUFFER, 0};
    if (blocks + unit->root > 1) {
        dtp_lower_add_moments(l, &unit->moments, unit->shard);
        return;
    }
    for (int part = 0; part < module->parts; part++)
        if (module->shard[part])
            dtp_lower_add_moments(l, &unit->moments, module->shard[part]);
}

static void make_unit(struct dtp_lowering *l, struct unit *unit)
{
    unit->flat = unit->scatter_input = unit->grads = DTP_NO_BUFFER;
    unit->gathered = unit->scattered = DTP_NO_OP;
    add_module(l, unit, &l->block, unit->end - unit->first);
    if (unit->root)
        add_module(l, unit, &l->root, 1);
    l->layer = unit->root ? DTP_NO_LAYER : (uint16_t)unit->first;
    unit->params = dtp_lower_buffer(l, "params", DTP_OWNER_PARAMS, DTP_STREAM_COMPUTE, l->bytes.params * unit->shard, true);
    make_moments(l, unit);
}

enum dtp_status dtp_lower_units_make(struct dtp_lowering *l)
{
    uint64_t layers = l->transformer->layers, width = l->plan->wrap_layers;
    struct dtp_lower_sharding *s = l->sharding = calloc(1, sizeof *s);
    uint64_t count = width ? dtp_divide_up(layers, width) : 0;
    if (s)
        s->unit = calloc(count + 1, sizeof *s->unit);
    if (!s || !s->unit)
        return dtp_fault(l->faults, DTP_ENVIRONMENT, NULL, 0, "no memory to lower the step");
    s->count = count;
    s->copied = s->awaited = DTP_NO_OP;
    for (uint64_t i = 0; i < count; i++) {
        s->unit[i].first = i * width;
        s->unit[i].end = (i + 1) * width < layers ? (i + 1) * width : layers;
        make_unit(l, &s->unit[i]);
    }
    s->unit[count].root = true;
    s->unit[count].end = count ? 0 : layers;
    make_unit(l, &s->unit[count]);
    uint32_t ranks = l->plan->shard_group, replicas = l->cluster->gpus / ranks;
    s->shard_group = ranks > 1 ? dtp_program_add_group(l->program, (struct dtp_program_group){ranks, 1}) : DTP_NO_INDEX;
    s->replica_group =
        replicas > 1 ? dtp_program_add_group(l->program, (struct dtp_program_group){replicas, ranks}) : DTP_NO_INDEX;
    l->layer = DTP_NO_LAYER;
    return DTP_OK;
}

void dtp_lower_units_release(struct dtp_lowering *l)
{
    if (l->sharding)
        free(l->sharding->unit);
    free(l->sharding);
    l->sharding = NULL;
}

static struct unit *root_of(const struct dtp_lowering *l)
{
    return &l->sharding->unit[l->sharding->count];
}

/* The unit that the module at hand belongs to; NULL for a block of the root unit. */
static struct unit *unit_here(const struct dtp_lowering *l)
{
    if (l->layer == DTP_NO_LAYER)
        return root_of(l);
    return l->sharding->count ? &l->sharding->unit[l->layer / l->plan->wrap_layers] : NULL;
}

/* Modules of a unit by index: its blocks, then the root module. */
static uint64_t module_count(const struct unit *unit)
{
    return unit->end - unit->first + (unit->root ? 1 : 0);
}

static struct dtp_module_state *module_at(struct dtp_lowering *l, const struct unit *unit, uint64_t index,
                                          const struct dtp_lower_module **module)
{
    bool block = index < unit->end - unit->first;
    uint64_t at = block ? unit->first + index : l->transformer->layers;
    l->layer = block ? (uint16_t)at : DTP_NO_LAYER;
    *module = block ? &l->block : &l->root;
    return &l->state[at];
}

/* ---- gather ------------------------------------------------------------------------------------------------------ */

/* Issues the gather of `unit`; its streams first wait for `after`. */
static void gather(struct dtp_lowering *l, struct unit *unit, dtp_op_id after)
{
    uint64_t ranks = l->plan->shard_group, shard = unit->gathered_shard_bytes;
    uint16_t layer = l->layer;
    l->layer = unit->root ? DTP_NO_LAYER : (uint16_t)unit->first;
    bool casts = l->bytes.params != l->bytes.compute;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_COPY_IN, "shard");
    draft.op.stream = DTP_STREAM_COPY;
    dtp_draft_use(&draft, unit->params, DTP_READ);
    dtp_draft_new(l, &draft, "cast shard", DTP_OWNER_GATHER, casts ? shard : 0, DTP_UPDATE | DTP_FREE);
    unit->flat = dtp_draft_new(l, &draft, "gathered", DTP_OWNER_GATHER, ranks * shard, DTP_WRITE);
    dtp_draft_after(&draft, after);
    dtp_draft_memory(l, &draft, (double)((casts ? l->bytes.params * unit->shard + shard : 0) + 2 * shard), casts ? 2 : 1);
    draft.op.demand.memory_kernel = DTP_KERNEL_FUSED;
    unit->gathered = dtp_draft_end(l, &draft);
    if (ranks > 1) {
        dtp_draft_begin(l, &draft, DTP_OP_ALL_GATHER, "");
        draft.op.stream = DTP_STREAM_GATHER;
        draft.op.group = l->sharding->shard_group;
        dtp_draft_use(&draft, unit->flat, DTP_UPDATE);
        dtp_draft_after(&draft, unit->gathered);
        draft.op.demand.sent_bytes = (double)(shard * (ranks - 1));
        draft.op.demand.bytes = (double)(shard * ranks);
        unit->gathered = dtp_draft_end(l, &draft);
    }
    unit->gathering = true;
    l->layer = layer;
}

/* The flat buffer's parts become weights; `release` is the buffer that goes afterwards. */
static void copy_out(struct dtp_lowering *l, struct unit *unit, struct unit *release)
{
    uint16_t layer = l->layer;
    uint64_t ranks = l->plan->shard_group, modules = module_count(unit);
    for (uint64_t i = 0; i < modules; i++) {
        const struct dtp_lower_module *module;
        struct dtp_module_state *state = module_at(l, unit, i, &module);
        uint64_t bytes = 0;
        struct dtp_draft draft;
        dtp_draft_begin(l, &draft, DTP_OP_COPY_OUT, "weights");
        for (int part = 0; part < module->parts; part++) {
            state->weight[part] = dtp_draft_new(l, &draft, module->weight_name[part], DTP_OWNER_WEIGHTS,
                                                ranks * wire_bytes(l, module, part), DTP_WRITE);
            bytes += ranks * wire_bytes(l, module, part);
        }
        bool last = i + 1 == modules;
        dtp_draft_use(&draft, unit->flat, last && release == unit ? DTP_READ | DTP_FREE : DTP_READ);
        if (last && release && release != unit)
            dtp_draft_use(&draft, release->flat, DTP_FREE);
        dtp_draft_after(&draft, unit->gathered);
        dtp_draft_memory(l, &draft, 2 * (double)bytes, 1);
        draft.op.demand.memory_kernel = DTP_KERNEL_FUSED;
        dtp_draft_end(l, &draft);
    }
    if (release)
        release->flat = DTP_NO_BUFFER;
    unit->gathering = false;
    unit->weights_live = true;
    l->sharding->copied = l->last_op[DTP_STREAM_COMPUTE];
    l->layer = layer;
}

static void release_weights(struct dtp_lowering *l, struct unit *unit)
{
    uint16_t layer = l->layer;
    for (uint64_t i = 0; i < module_count(unit); i++) {
        const struct dtp_lower_module *module;
        struct dtp_module_state *state = module_at(l, unit, i, &module);
        struct dtp_draft draft;
        dtp_draft_begin(l, &draft, DTP_OP_FREE, "weights");
        for (int part = 0; part < module->parts; part++) {
            dtp_draft_use(&draft, state->weight[part], DTP_FREE);
            state->weight[part] = DTP_NO_BUFFER;
        }
        dtp_draft_end(l, &draft);
    }
    unit->weights_live = false;
    l->layer = layer;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* What a gather waits for: the copy-outs of flat buffers it may overwrite; without prefetch all compute before it, as the
 * root's always does in forward (_root_pre_forward: "wait for optimizer before implicitly prefetched all-gathers"). */
static dtp_op_id gather_after(const struct dtp_lowering *l, bool prefetched)
{
    return l->plan->prefetch && prefetched ? l->sharding->awaited : l->last_op[DTP_STREAM_COMPUTE];
}

/* The gather's streams wait for the previous unit's copy-out only after this unit's gather has been issued, so that it
 * runs two units ahead. */
void dtp_lower_before_forward(struct dtp_lowering *l)
{
    struct unit *unit = l->sharded ? unit_here(l) : NULL;
    if (!unit || unit->weights_live)
        return;
    struct dtp_lower_sharding *s = l->sharding;
    gather(l, unit, gather_after(l, !unit->root));
    s->awaited = s->copied;
    copy_out(l, unit, s->held);
    s->held = unit;
}

static bool keeps_weights(const struct dtp_lowering *l, const struct unit *unit)
{
    return !l->plan->reshard_after_forward || (unit->root && l->plan->keep_root);
}

void dtp_lower_after_forward(struct dtp_lowering *l)
{
    struct unit *unit = l->sharded ? unit_here(l) : NULL;
    if (!unit || (!unit->root && l->layer + 1u != unit->end))
        return;
    if (!keeps_weights(l, unit))
        release_weights(l, unit);
    if (unit->root)
        dtp_lower_release_gathered(l);
}

/* The root's forward ends: the last flat buffer goes. */
void dtp_lower_release_gathered(struct dtp_lowering *l)
{
    struct dtp_lower_sharding *s = l->sharding;
    if (!l->sharded || !s->held)
        return;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_FREE, "gathered");
    dtp_draft_use(&draft, s->held->flat, DTP_FREE);
    dtp_draft_end(l, &draft);
    s->held->flat = DTP_NO_BUFFER;
    s->held = NULL;
    s->awaited = s->copied;
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* The unit whose backward comes after `unit`'s, or NULL: the last unit of blocks after the root, then downwards. */
static struct unit *next_in_backward(const struct dtp_lowering *l, const struct unit *unit)
{
    struct dtp_lower_sharding *s = l->sharding;
    if (unit->root)
        return s->count ? &s->unit[s->count - 1] : NULL;
    return unit == s->unit ? NULL : &s->unit[unit - s->unit - 1];
}

void dtp_lower_before_backward(struct dtp_lowering *l)
{
    struct unit *unit = l->sharded ? unit_here(l) : NULL;
    if (!unit || (!unit->root && l->layer + 1u != unit->end))
        return;
    struct dtp_lower_sharding *s = l->sharding;
    if (!unit->weights_live) {
        if (!unit->gathering)
            gather(l, unit, gather_after(l, true));
        copy_out(l, unit, unit);
        s->awaited = s->copied;
    }
    struct unit *next = next_in_backward(l, unit);
    if (next && l->plan->prefetch && !next->weights_live)
        gather(l, next, s->awaited);
}

/* Gradients of micro-steps that do not reduce stay whole: in the reduce dtype, or as they are where that is the same. */
static void accumulate_part(struct dtp_lowering *l, struct dtp_module_state *state, const struct dtp_lower_module *module,
                            int part)
{
    double elements = (double)module->elements[part], c = (double)l->compute, r = (double)l->bytes.reduce;
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
        state->kept[part] = dtp_draft_new(l, &draft, "accumulated gradient", DTP_OWNER_GRADS,
                                          l->bytes.reduce * module->elements[part], DTP_WRITE);
    else
        dtp_draft_use(&draft, state->kept[part], DTP_UPDATE);
    dtp_draft_use(&draft, state->gradient[part], DTP_READ | DTP_FREE);
    dtp_draft_memory(l, &draft, elements * (first ? c + r : c + 2 * r), 1);
    draft.op.demand.memory_kernel = DTP_KERNEL_FUSED;
    dtp_draft_end(l, &draft);
    state->gradient[part] = DTP_NO_BUFFER;
}

static void accumulate(struct dtp_lowering *l, struct unit *unit)
{
    for (uint64_t i = 0; i < module_count(unit); i++) {
        const struct dtp_lower_module *module;
        struct dtp_module_state *state = module_at(l, unit, i, &module);
        for (int part = 0; part < module->parts; part++)
            accumulate_part(l, state, module, part);
    }
}

/* Compute waits for the previous unit's reduce-scatter, whose input then goes. */
static void await_reduction(struct dtp_lowering *l)
{
    struct unit *unit = l->sharding->reducing;
    if (!unit)
        return;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_FREE, "reduce-scatter input");
    dtp_draft_use(&draft, unit->scatter_input, DTP_FREE);
    dtp_draft_after(&draft, unit->scattered);
    dtp_draft_end(l, &draft);
    unit->scatter_input = DTP_NO_BUFFER;
    l->sharding->reducing = NULL;
}

/* Gradients into the padded input, cast to the reduce dtype. */
static void fill_scatter_input(struct dtp_lowering *l, struct unit *unit)
{
    bool whole = l->plan->accumulate > 1 && !l->plan->accumulate_sync;
    uint64_t source = whole ? l->bytes.reduce : l->compute;
    for (uint64_t i = 0; i < module_count(unit); i++) {
        const struct dtp_lower_module *module;
        struct dtp_module_state *state = module_at(l, unit, i, &module);
        dtp_buffer_id *gradients = whole ? state->kept : state->gradient;
        struct dtp_draft draft;
        dtp_draft_begin(l, &draft, DTP_OP_COPY_IN, "gradients");
        if (i == 0)
            unit->scatter_input = dtp_draft_new(l, &draft, "reduce-scatter input", DTP_OWNER_REDUCE,
                                                l->bytes.reduce * l->plan->shard_group * unit->shard, DTP_WRITE);
        else
            dtp_draft_use(&draft, unit->scatter_input, DTP_UPDATE);
        for (int part = 0; part < module->parts; part++) {
            dtp_draft_use(&draft, gradients[part], DTP_READ | DTP_FREE);
            gradients[part] = DTP_NO_BUFFER;
        }
        dtp_draft_memory(l, &draft, (double)((source + l->bytes.reduce) * module->all_elements), 1);
        draft.op.demand.memory_kernel = DTP_KERNEL_FUSED;
        dtp_draft_end(l, &draft);
    }
    l->sharding->reducing = unit;
}

static dtp_buffer_id scatter(struct dtp_lowering *l, struct unit *unit)
{
    uint64_t ranks = l->plan->shard_group, bytes = l->bytes.reduce * unit->shard;
    bool alone = ranks == 1;
    bool rests = l->bytes.reduce == l->bytes.grads && unit->grads.index == DTP_NO_INDEX;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, alone ? DTP_OP_COPY_OUT : DTP_OP_REDUCE_SCATTER, alone ? "reduced gradients" : "");
    draft.op.stream = DTP_STREAM_REDUCE;
    draft.op.group = l->sharding->shard_group;
    dtp_buffer_id output = dtp_draft_new(l, &draft, "reduced gradients", rests ? DTP_OWNER_GRADS : DTP_OWNER_REDUCE, bytes,
                                         DTP_WRITE);
    dtp_draft_use(&draft, unit->scatter_input, DTP_READ);
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_COMPUTE]);
    if (alone)
        dtp_draft_memory(l, &draft, 2 * (double)bytes, 1);
    else
        draft.op.demand.bytes = (double)(bytes * ranks);
    draft.op.demand.sent_bytes = (double)(bytes * (ranks - 1));
    unit->scattered = dtp_draft_end(l, &draft);
    return output;
}

/* Between replicas, on a communicator and stream of its own. */
static void all_reduce(struct dtp_lowering *l, struct unit *unit, dtp_buffer_id reduced)
{
    struct dtp_lower_sharding *s = l->sharding;
    uint64_t replicas = l->cluster->gpus / l->plan->shard_group, bytes = l->bytes.reduce * unit->shard;
    if (replicas < 2)
        return;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ALL_REDUCE, "");
    draft.op.stream = DTP_STREAM_REPLICATE;
    draft.op.group = s->replica_group;
    dtp_draft_use(&draft, reduced, DTP_UPDATE);
    dtp_draft_after(&draft, unit->scattered);
    uint64_t sent = dtp_lower_ring(s->replicated_bytes + bytes, replicas) - dtp_lower_ring(s->replicated_bytes, replicas);
    draft.op.demand.sent_bytes = 2 * (double)sent;
    draft.op.demand.bytes = (double)bytes;
    s->replicated_bytes += bytes;
    dtp_draft_end(l, &draft);
}

/* What came out becomes .grad, cast and added to what earlier micro-steps left. */
static void keep_reduced(struct dtp_lowering *l, struct unit *unit, dtp_buffer_id reduced)
{
    bool first = unit->grads.index == DTP_NO_INDEX, casts = l->bytes.reduce != l->bytes.grads;
    if (first && !casts) {
        unit->grads = reduced;
        return;
    }
    bool replicas = l->cluster->gpus > l->plan->shard_group;
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

void dtp_lower_after_backward(struct dtp_lowering *l)
{
    struct unit *unit = l->sharded ? unit_here(l) : NULL;
    if (!unit || (!unit->root && l->layer != unit->first))
        return;
    uint16_t layer = l->layer;
    if (l->plan->accumulate > 1 && !l->plan->accumulate_sync)
        accumulate(l, unit);
    release_weights(l, unit);
    if (l->reduces) {
        await_reduction(l);
        fill_scatter_input(l, unit);
        dtp_buffer_id reduced = scatter(l, unit);
        all_reduce(l, unit, reduced);
        keep_reduced(l, unit, reduced);
    }
    l->layer = layer;
    if (unit->root) { /* the step's last reduction is awaited before anything else runs */
        await_reduction(l);
        l->sharding->replicated_bytes = 0;
    }
}

void dtp_lower_units_step(struct dtp_lowering *l)
{
    struct dtp_lower_sharding *s = l->sharding;
    struct dtp_draft draft;
    for (uint64_t i = 0; i <= s->count; i++) {
        l->layer = s->unit[i].root ? DTP_NO_LAYER : (uint16_t)s->unit[i].first;
        dtp_lower_update(l, s->unit[i].params, s->unit[i].moments, &s->unit[i].grads, 1, s->unit[i].shard);
    }
    for (uint64_t i = 0; i <= s->count; i++) { /* zero_grad(set_to_none=True) */
        l->layer = s->unit[i].root ? DTP_NO_LAYER : (uint16_t)s->unit[i].first;
        dtp_draft_begin(l, &draft, DTP_OP_FREE, "zero_grad");
        dtp_draft_use(&draft, s->unit[i].grads, DTP_FREE);
        s->unit[i].grads = DTP_NO_BUFFER;
        dtp_draft_end(l, &draft);
    }
    l->layer = DTP_NO_LAYER;
}
