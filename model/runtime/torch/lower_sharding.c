/* Units of sharded parameters: gather and release, in the order in which the runtime's host issues them.
 *
 * FSDP2 (torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py; allocation traces of 2.11):
 *   gather     the shard is cast and laid into the flat all-gather buffer (copy stream), gathered in place (gather
 *              stream)
 *   copy-out   the buffer's parts become the weights (compute stream). In forward the buffer stays until the next unit
 *              has been copied out; in backward it goes at once and the next unit's gather is issued
 *   reduce     when the unit's backward is through (lower_scatter.c)
 *
 * FSDP1 (fsdp/_runtime_utils.py) gathers into the flat parameter, of which weights are views; released ones are
 * reusable when the device is done with them (record_stream), and the host waits for the oldest release when two are
 * pending (limit_all_gathers). Its root stays gathered from forward to backward.
 *
 * A unit is `wrap_layers` blocks; embeddings, final norm and head are the root's, and all blocks where nothing is
 * wrapped. */
#include "runtime/torch/lower_foreach.h"
#include "runtime/torch/lower_units.h"
#include "runtime/torch/torch.h"

#include "base/bytes.h"

#include <stdlib.h>

/* ---- layout ------------------------------------------------------------------------------------------------------ */

static void add_module(const struct dtp_lowering *l, struct dtp_lower_unit *unit, const struct dtp_lower_module *module,
                       uint64_t times)
{
    unit->elements += times * module->all_elements;
    unit->shard += times * module->all_shard;
    for (int part = 0; part < module->parts; part++)
        unit->gathered_shard_bytes += l->plan->fsdp1 ? 0 : times * dtp_unit_wire_bytes(l, module, part);
    if (l->plan->fsdp1)
        unit->gathered_shard_bytes += times * module->all_shard * l->bytes.compute;
}

/* Tensor by tensor where the unit is one module; together where it has too many for one operation, or one flat one. */
static void make_moments(struct dtp_lowering *l, struct dtp_lower_unit *unit)
{
    uint64_t blocks = unit->end - unit->first;
    const struct dtp_lower_module *module = unit->root ? &l->root : &l->block;
    unit->moments = (struct dtp_lower_moments){DTP_NO_BUFFER, 0};
    if (blocks + unit->root > 1 || l->plan->fsdp1) {
        dtp_lower_add_moments(l, &unit->moments, unit->shard);
        return;
    }
    for (int part = 0; part < module->parts; part++)
        if (module->shard[part])
            dtp_lower_add_moments(l, &unit->moments, module->shard[part]);
}

static void make_unit(struct dtp_lowering *l, struct dtp_lower_unit *unit)
{
    unit->post_forward = DTP_NO_BUFFER;
    unit->flat = unit->scatter_input = unit->grads = unit->accumulated = DTP_NO_BUFFER;
    unit->gathered = unit->scattered = DTP_NO_OP;
    add_module(l, unit, &l->block, unit->end - unit->first);
    if (unit->root)
        add_module(l, unit, &l->root, 1);
    l->layer = unit->root ? DTP_NO_LAYER : (uint16_t)unit->first;
    if (dtp_lower_offloads(l)) {
        dtp_lower_host_state(l, unit);
        return;
    }
    unit->params =
        dtp_lower_buffer(l, "params", DTP_OWNER_PARAMS, DTP_STREAM_COMPUTE, l->bytes.params * unit->shard, true);
    make_moments(l, unit);
}

/* No unit reaches from one chunk of a pipeline's rank into another. */
static uint64_t units_of(const struct dtp_lowering *l)
{
    uint64_t units = 0;
    for (uint32_t i = 0; i < l->role.chunk_count; i++)
        units += dtp_divide_up(l->role.chunks[i].layers, l->plan->wrap_layers);
    return units;
}

static void cut_chunk(struct dtp_lowering *l, const struct dtp_lower_chunk *chunk)
{
    struct dtp_lower_sharding *s = dtp_lower_sharding_of(l);
    uint64_t width = l->plan->wrap_layers, end = chunk->first + chunk->layers;
    for (uint64_t first = chunk->first; first < end; first += width) {
        struct dtp_lower_unit *unit = &s->unit[s->count];
        unit->first = first;
        unit->end = first + width < end ? first + width : end;
        for (uint64_t layer = unit->first; layer < unit->end; layer++)
            s->of_layer[layer] = (uint32_t)s->count;
        s->count++;
        make_unit(l, unit);
    }
}

static enum dtp_status make(struct dtp_lowering *l)
{
    uint64_t layers = l->transformer->layers, width = l->plan->wrap_layers;
    struct dtp_lower_sharding *s = l->own = calloc(1, sizeof *s);
    uint64_t count = width ? units_of(l) : 0;
    if (s) {
        s->unit = calloc(count + 1, sizeof *s->unit);
        s->of_layer = calloc(layers + 1, sizeof *s->of_layer);
    }
    if (!s || !s->unit || !s->of_layer)
        return dtp_fault(l->faults, DTP_ENVIRONMENT, NULL, 0, "no memory to lower the step");
    s->copied = s->awaited = DTP_NO_OP;
    for (uint32_t i = 0; count && i < l->role.chunk_count; i++)
        cut_chunk(l, &l->role.chunks[i]);
    s->unit[count].root = true;
    s->unit[count].end = count ? 0 : layers;
    make_unit(l, &s->unit[count]);
    uint32_t ranks = l->plan->shard_group, replicas = l->data_ranks / ranks;
    s->shard_group = ranks > 1 ? dtp_lower_data_group(l, ranks, 1) : DTP_NO_INDEX;
    s->replica_group = replicas > 1 ? dtp_lower_data_group(l, replicas, ranks) : DTP_NO_INDEX;
    if (l->plan->reshard_group)
        s->reshard_group = dtp_lower_data_group(l, l->plan->reshard_group, 1);
    l->layer = DTP_NO_LAYER;
    return DTP_OK;
}

static void release(struct dtp_lowering *l)
{
    if (l->own) {
        free(dtp_lower_sharding_of(l)->unit);
        free(dtp_lower_sharding_of(l)->of_layer);
    }
    free(l->own);
}

static struct dtp_lower_unit *root_of(const struct dtp_lowering *l)
{
    return &dtp_lower_sharding_of(l)->unit[dtp_lower_sharding_of(l)->count];
}

struct dtp_lower_unit *dtp_lower_unit_here(const struct dtp_lowering *l)
{
    const struct dtp_lower_sharding *s = dtp_lower_sharding_of(l);
    if (l->layer == DTP_NO_LAYER) /* of a pipeline's chunks the first and the last have what the root unit holds */
        return !l->role.pipeline || l->chunk->embedding || l->chunk->head ? root_of(l) : NULL;
    return s->count ? &s->unit[s->of_layer[l->layer]] : NULL;
}

uint64_t dtp_unit_modules(const struct dtp_lower_unit *unit)
{
    return unit->end - unit->first + (unit->root ? 1 : 0);
}

struct dtp_module_state *dtp_unit_module(struct dtp_lowering *l, const struct dtp_lower_unit *unit, uint64_t index,
                                         const struct dtp_lower_module **module)
{
    bool block = index < unit->end - unit->first;
    uint64_t at = block ? unit->first + index : l->transformer->layers;
    l->layer = block ? (uint16_t)at : DTP_NO_LAYER;
    *module = block ? &l->block : &l->root;
    return &l->state[at];
}

/* ---- gather ------------------------------------------------------------------------------------------------------ */

/* Shard into the flat buffer (FSDP2), cast where it is stored wider; FSDP1 casts into a buffer of its own. Returns the
 * cast that the gather reads, if any. */
static dtp_buffer_id copy_in(struct dtp_lowering *l, struct dtp_lower_unit *unit, dtp_op_id after)
{
    uint64_t ranks = l->plan->shard_group, shard = unit->gathered_shard_bytes;
    bool casts = l->bytes.params != l->bytes.compute;
    double stored = (double)(l->bytes.params * unit->shard), bytes = (double)shard;
    unit->uploads.count = 0;
    if (dtp_lower_offloads(l))
        dtp_lower_upload(l, unit, after);
    if (dtp_lower_offloads(l) && l->plan->fsdp1) {
        unit->gathered = l->last_op[DTP_STREAM_COPY];
        return unit->uploads.ready[0];
    }
    casts = casts && !dtp_lower_offloads(l);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_COPY_IN, "shard");
    draft.op.stream = DTP_STREAM_COPY;
    for (int i = 0; i < unit->uploads.count; i++)
        dtp_draft_use(&draft, unit->uploads.ready[i], unit->uploads.stays ? DTP_READ : DTP_READ | DTP_FREE);
    if (!dtp_lower_offloads(l))
        dtp_draft_use(&draft, unit->params, DTP_READ);
    dtp_buffer_id cast = dtp_draft_new(l, &draft, "cast shard", DTP_OWNER_GATHER, casts ? shard : 0,
                                       l->plan->fsdp1 ? DTP_WRITE : DTP_UPDATE | DTP_FREE);
    if (!l->plan->fsdp1)
        unit->flat = dtp_draft_new(l, &draft, "gathered", DTP_OWNER_GATHER, ranks * shard, DTP_WRITE);
    dtp_draft_after(&draft, after);
    dtp_draft_memory(l, &draft, (casts ? stored + bytes : 0) + (l->plan->fsdp1 ? 0 : 2 * bytes),
                     casts && !l->plan->fsdp1 ? 2 : 1);
    draft.op.demand.memory_kernel = DTP_KERNEL_FUSED;
    unit->gathered = dtp_draft_end(l, &draft);
    return cast;
}

/* This rank's part of the smaller group, as it is, into its place of the flat buffer. */
static void copy_in_post_forward(struct dtp_lowering *l, struct dtp_lower_unit *unit, dtp_op_id after)
{
    uint64_t bytes = l->plan->shard_group * unit->gathered_shard_bytes;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_COPY_IN, "shard of the smaller group");
    draft.op.stream = DTP_STREAM_COPY;
    dtp_draft_use(&draft, unit->post_forward, DTP_READ);
    unit->flat = dtp_draft_new(l, &draft, "gathered", DTP_OWNER_GATHER, bytes, DTP_WRITE);
    dtp_draft_after(&draft, after);
    dtp_draft_after(&draft, unit->resharded);
    dtp_draft_memory(l, &draft, 2 * (double)(bytes / l->plan->reshard_group), 1);
    draft.op.demand.memory_kernel = DTP_KERNEL_FUSED;
    unit->gathered = dtp_draft_end(l, &draft);
}

/* The collective, or on one rank the copy that stands for it where the weights are its output. */
static void all_gather(struct dtp_lowering *l, struct dtp_lower_unit *unit, dtp_buffer_id cast, dtp_op_id after)
{
    uint64_t ranks = l->plan->shard_group, shard = unit->gathered_shard_bytes;
    bool alone = ranks == 1, casts = cast.index != DTP_NO_INDEX, smaller = unit->post_forward.index != DTP_NO_INDEX;
    struct dtp_draft draft;
    if (smaller) {
        shard = ranks * shard / l->plan->reshard_group;
        ranks = l->plan->reshard_group;
    }
    dtp_draft_begin(l, &draft, alone ? DTP_OP_COPY_OUT : DTP_OP_ALL_GATHER, alone ? "weights" : "");
    draft.op.stream = DTP_STREAM_GATHER;
    draft.op.group = smaller ? dtp_lower_sharding_of(l)->reshard_group : dtp_lower_sharding_of(l)->shard_group;
    if (l->plan->fsdp1) {
        unit->flat = dtp_draft_new(l, &draft, "weights", DTP_OWNER_WEIGHTS, ranks * shard, DTP_WRITE);
        dtp_draft_use(&draft, casts ? cast : unit->params, casts ? DTP_READ | DTP_FREE | DTP_DEFER : DTP_READ);
    } else {
        dtp_draft_use(&draft, unit->flat, DTP_UPDATE);
    }
    dtp_draft_after(&draft, l->plan->fsdp1 && !casts ? after : unit->gathered);
    draft.op.demand.sent_bytes = (double)(shard * (ranks - 1));
    draft.op.demand.bytes = (double)(shard * ranks * (alone ? 2 : 1));
    draft.op.demand.memory_kernel = DTP_KERNEL_FUSED;
    draft.op.demand.kernels = 1;
    unit->gathered = dtp_draft_end(l, &draft);
}

/* limit_all_gathers: at most two releases may be pending when a gather is issued. */
static void wait_for_release(struct dtp_lowering *l)
{
    struct dtp_lower_sharding *s = dtp_lower_sharding_of(l);
    if (!l->plan->fsdp1 || !l->plan->limit_all_gathers || s->released_count < 2)
        return;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_HOST_WAIT, "limit_all_gathers");
    draft.op.stream = DTP_STREAM_HOST;
    dtp_draft_after(&draft, s->released[0]);
    dtp_draft_end(l, &draft);
    s->released[0] = s->released[1];
    s->released_count--;
}

/* Issues the gather of `unit`; its streams first wait for `after`. */
static void gather(struct dtp_lowering *l, struct dtp_lower_unit *unit, dtp_op_id after)
{
    uint16_t layer = l->layer;
    l->layer = unit->root ? DTP_NO_LAYER : (uint16_t)unit->first;
    wait_for_release(l);
    dtp_buffer_id cast = DTP_NO_BUFFER;
    if (unit->post_forward.index != DTP_NO_INDEX)
        copy_in_post_forward(l, unit, after);
    else if (!l->plan->fsdp1 || dtp_lower_offloads(l) || l->bytes.params != l->bytes.compute)
        cast = copy_in(l, unit, after);
    if (!l->plan->fsdp1)
        cast = DTP_NO_BUFFER;
    if (l->plan->fsdp1 || l->plan->shard_group > 1)
        all_gather(l, unit, cast, after);
    unit->gathering = true;
    l->layer = layer;
}

/* Compute waits for a gather that wrote the weights themselves. */
static void use_gathered(struct dtp_lowering *l, struct dtp_lower_unit *unit)
{
    uint16_t layer = l->layer;
    for (uint64_t i = 0; i < dtp_unit_modules(unit); i++) {
        const struct dtp_lower_module *module;
        struct dtp_module_state *state = dtp_unit_module(l, unit, i, &module);
        for (int part = 0; part < module->parts; part++)
            state->weight[part] = unit->flat;
    }
    l->layer = layer;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_MARK, "weights gathered");
    dtp_draft_after(&draft, unit->gathered);
    dtp_draft_end(l, &draft);
    unit->gathering = false;
    unit->weights_live = true;
}

static void free_uploads(struct dtp_draft *draft, struct dtp_lower_unit *unit)
{
    for (int i = 0; i < unit->uploads.count; i++) {
        dtp_draft_use(draft, unit->uploads.ready[i], DTP_FREE);
        dtp_draft_use(draft, unit->uploads.uploaded[i], DTP_FREE);
    }
    unit->uploads.count = 0;
    unit->uploads.stays = false;
}

/* The flat buffer's parts become weights; `release` is the buffer that goes afterwards. */
static void copy_out(struct dtp_lowering *l, struct dtp_lower_unit *unit, struct dtp_lower_unit *release)
{
    if (l->plan->fsdp1) {
        use_gathered(l, unit);
        return;
    }
    uint16_t layer = l->layer;
    uint64_t ranks = l->plan->shard_group, modules = dtp_unit_modules(unit);
    for (uint64_t i = 0; i < modules; i++) {
        const struct dtp_lower_module *module;
        struct dtp_module_state *state = dtp_unit_module(l, unit, i, &module);
        uint64_t bytes = 0;
        struct dtp_draft draft;
        dtp_draft_begin(l, &draft, DTP_OP_COPY_OUT, "weights");
        for (int part = 0; part < module->parts; part++) {
            state->weight[part] = dtp_draft_new(l, &draft, module->weight_name[part], DTP_OWNER_WEIGHTS,
                                                ranks * dtp_unit_wire_bytes(l, module, part), DTP_WRITE);
            bytes += ranks * dtp_unit_wire_bytes(l, module, part);
        }
        bool last = i + 1 == modules;
        dtp_draft_use(&draft, unit->flat, last && release == unit ? DTP_READ | DTP_FREE : DTP_READ);
        if (last && release && release != unit)
            dtp_draft_use(&draft, release->flat, DTP_FREE);
        if (last)
            dtp_draft_use(&draft, unit->post_forward, DTP_FREE);
        if (last && unit->uploads.stays)
            free_uploads(&draft, unit);
        dtp_draft_after(&draft, unit->gathered);
        dtp_draft_memory(l, &draft, 2 * (double)bytes, 1);
        draft.op.demand.memory_kernel = DTP_KERNEL_FUSED;
        dtp_draft_end(l, &draft);
    }
    if (release)
        release->flat = DTP_NO_BUFFER;
    unit->post_forward = DTP_NO_BUFFER;
    unit->gathering = false;
    unit->weights_live = true;
    dtp_lower_sharding_of(l)->copied = l->last_op[DTP_STREAM_COMPUTE];
    l->layer = layer;
}

/* reshard_after_forward=n: a copy of this rank's n-th outlives the weights (FSDPParam.to_sharded_post_forward). */
static void keep_post_forward(struct dtp_lowering *l, struct dtp_lower_unit *unit)
{
    uint16_t layer = l->layer;
    uint64_t ranks = l->plan->shard_group, group = l->plan->reshard_group;
    for (uint64_t i = 0; i < dtp_unit_modules(unit) && group; i++) {
        const struct dtp_lower_module *module;
        struct dtp_module_state *state = dtp_unit_module(l, unit, i, &module);
        uint64_t bytes = 0;
        struct dtp_draft draft;
        dtp_draft_begin(l, &draft, DTP_OP_COPY_OUT, "shard of the smaller group");
        for (int part = 0; part < module->parts; part++) {
            dtp_draft_use(&draft, state->weight[part], DTP_READ);
            bytes += ranks * dtp_unit_wire_bytes(l, module, part) / group;
        }
        if (i)
            dtp_draft_use(&draft, unit->post_forward, DTP_UPDATE);
        else
            unit->post_forward = dtp_draft_new(l, &draft, "shard of the smaller group", DTP_OWNER_WEIGHTS,
                                               ranks * unit->gathered_shard_bytes / group, DTP_WRITE);
        dtp_draft_memory(l, &draft, 2 * (double)bytes, 1);
        draft.op.demand.memory_kernel = DTP_KERNEL_FUSED;
        unit->resharded = dtp_draft_end(l, &draft);
    }
    l->layer = layer;
}

static void release_weights(struct dtp_lowering *l, struct dtp_lower_unit *unit)
{
    uint16_t layer = l->layer;
    for (uint64_t i = 0; i < dtp_unit_modules(unit); i++) {
        const struct dtp_lower_module *module;
        struct dtp_module_state *state = dtp_unit_module(l, unit, i, &module);
        struct dtp_draft draft;
        dtp_draft_begin(l, &draft, DTP_OP_FREE, "weights");
        for (int part = 0; part < module->parts; part++) {
            if (!l->plan->fsdp1 || (!i && !part))
                dtp_draft_use(&draft, state->weight[part], l->plan->fsdp1 ? DTP_FREE | DTP_DEFER : DTP_FREE);
            state->weight[part] = DTP_NO_BUFFER;
        }
        if (draft.operand_count)
            dtp_draft_end(l, &draft);
    }
    struct dtp_lower_sharding *s = dtp_lower_sharding_of(l);
    if (l->plan->fsdp1 && s->released_count < 2)
        s->released[s->released_count++] = l->last_op[DTP_STREAM_COMPUTE];
    unit->weights_live = false;
    l->layer = layer;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* What a gather waits for: the copy-outs of flat buffers it may overwrite; without prefetch all compute before it, as
 * the root's always does in forward (_root_pre_forward: "wait for optimizer before implicitly prefetched all-gathers").
 */
static dtp_op_id gather_after(const struct dtp_lowering *l, bool prefetched)
{
    return l->plan->prefetch && prefetched ? dtp_lower_sharding_of(l)->awaited : l->last_op[DTP_STREAM_COMPUTE];
}

/* The gather's streams wait for the previous unit's copy-out only after this unit's gather has been issued, so that it
 * runs two units ahead. */
static void before_forward(struct dtp_lowering *l)
{
    struct dtp_lower_unit *unit = dtp_lower_unit_here(l);
    if (!unit || unit->weights_live)
        return;
    struct dtp_lower_sharding *s = dtp_lower_sharding_of(l);
    if (!unit->gathering) {
        unit->uploads.stays = dtp_lower_offloads(l) && !l->plan->fsdp1;
        gather(l, unit, gather_after(l, !unit->root));
    }
    if (!l->plan->fsdp1)
        s->awaited = s->copied;
    copy_out(l, unit, s->held);
    s->held = l->plan->fsdp1 ? NULL : unit;
    /* set_modules_to_forward_prefetch, called for every block */
    uint32_t ahead = l->plan->prefetch_depth > 1 && !unit->root ? l->plan->prefetch_depth : 0;
    for (struct dtp_lower_unit *next = unit + 1; ahead && !next->root; next++, ahead--)
        if (!next->gathering && !next->weights_live)
            gather(l, next, s->awaited);
}

static bool keeps_weights(const struct dtp_lowering *l, const struct dtp_lower_unit *unit)
{
    return !l->plan->reshard_after_forward || (unit->root && (l->plan->keep_root || l->plan->fsdp1));
}

/* The root's forward ends: the last flat buffer goes. */
static void release_gathered(struct dtp_lowering *l)
{
    struct dtp_lower_sharding *s = dtp_lower_sharding_of(l);
    if (!s->held)
        return;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_FREE, "gathered");
    dtp_draft_use(&draft, s->held->flat, DTP_FREE);
    dtp_draft_end(l, &draft);
    s->held->flat = DTP_NO_BUFFER;
    s->held = NULL;
    s->awaited = s->copied;
}

static void after_forward(struct dtp_lowering *l)
{
    struct dtp_lower_unit *unit = dtp_lower_unit_here(l);
    if (unit && (unit->root || l->layer + 1u == unit->end) && !keeps_weights(l, unit)) {
        keep_post_forward(l, unit);
        release_weights(l, unit);
    }
    if (l->layer == DTP_NO_LAYER)
        release_gathered(l);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* The unit whose backward comes after `unit`'s, or NULL: the last unit of blocks after the root, then downwards. */
static struct dtp_lower_unit *next_in_backward(const struct dtp_lowering *l, const struct dtp_lower_unit *unit)
{
    struct dtp_lower_sharding *s = dtp_lower_sharding_of(l);
    if (unit->root)
        return s->count ? &s->unit[s->count - 1] : NULL;
    return unit == s->unit ? NULL : &s->unit[unit - s->unit - 1];
}

static void before_backward(struct dtp_lowering *l)
{
    struct dtp_lower_unit *unit = dtp_lower_unit_here(l);
    if (!unit || l->role.pipeline || (!unit->root && l->layer + 1u != unit->end)) /* a stage has all weights gathered */
        return;
    struct dtp_lower_sharding *s = dtp_lower_sharding_of(l);
    if (!unit->weights_live) {
        if (!unit->gathering)
            gather(l, unit, gather_after(l, true));
        copy_out(l, unit, unit);
        if (!l->plan->fsdp1)
            s->awaited = s->copied;
    }
    uint32_t ahead = !l->plan->prefetch ? 0 : unit->root ? 1 : l->plan->prefetch_depth;
    for (struct dtp_lower_unit *next = next_in_backward(l, unit); next && ahead;
         next = next_in_backward(l, next), ahead--)
        if (!next->gathering && !next->weights_live)
            gather(l, next, s->awaited);
}

static void finish_unit(struct dtp_lowering *l, struct dtp_lower_unit *unit)
{
    uint16_t layer = l->layer;
    dtp_lower_collect_gradients(l, unit);
    release_weights(l, unit);
    if (l->reduces)
        dtp_lower_reduce_gradients(l, unit);
    l->layer = layer;
    if (unit->root) { /* the step's last reduction is awaited before anything else runs */
        dtp_lower_await_reduction(l);
        dtp_lower_sharding_of(l)->replicated_bytes = 0;
    }
}

/* A stage of a pipeline keeps its weights gathered and its gradients whole, and reduces unit by unit in forward's order
 * when the backward of its last micro-batch is through (pipelining/stage.py: backward_maybe_with_nosync, and
 * FSDP's post_backward called by hand). */
static void after_backward(struct dtp_lowering *l)
{
    struct dtp_lower_unit *unit = dtp_lower_unit_here(l);
    if (!unit || (!unit->root && l->layer != unit->first))
        return;
    if (l->role.pipeline)
        dtp_lower_collect_gradients(l, unit);
    else
        finish_unit(l, unit);
}

static void chunk_done(struct dtp_lowering *l)
{
    struct dtp_lower_sharding *s = dtp_lower_sharding_of(l);
    const struct dtp_lower_chunk *chunk = l->chunk;
    if (chunk->embedding)
        finish_unit(l, root_of(l));
    for (uint64_t i = 0; i < s->count; i++)
        if (s->unit[i].first >= chunk->first && s->unit[i].first < chunk->first + chunk->layers)
            finish_unit(l, &s->unit[i]);
    if (chunk->head && !chunk->embedding)
        finish_unit(l, root_of(l));
    dtp_lower_await_reduction(l);
    l->layer = DTP_NO_LAYER;
}

static void step_units(struct dtp_lowering *l)
{
    struct dtp_lower_sharding *s = dtp_lower_sharding_of(l);
    if (dtp_lower_offloads(l)) {
        dtp_lower_host_step(l);
        return;
    }
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

static void step(struct dtp_lowering *l)
{
    uint64_t elements = l->transformer->layers * l->block.all_shard + l->root.all_shard;
    dtp_buffer_id roots = dtp_lower_foreach_begin(l, elements);
    step_units(l);
    dtp_lower_foreach_end(l, roots);
}

/* Without sync autograd's tensor is what later ones are added to. */
static bool gradient_rests(const struct dtp_lowering *l)
{
    return l->whole_gradients && !l->plan->fsdp1 && l->bytes.reduce == l->compute;
}

const struct dtp_lower_hooks dtp_lower_fsdp = {
    .make = make,
    .release = release,
    .before_forward = before_forward,
    .after_forward = after_forward,
    .model_done = release_gathered,
    .before_backward = before_backward,
    .after_backward = after_backward,
    .chunk_done = chunk_done,
    .gradient_rests = gradient_rests,
    .step = step,
};
