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
 * What is a unit: lower_units.c. */
#include "base/pick.h"
#include "plan/host_calls.h"
#include "runtime/torch/lower_clip.h"
#include "runtime/torch/lower_foreach.h"
#include "runtime/torch/lower_units.h"
#include "runtime/torch/torch.h"

/* ---- gather ------------------------------------------------------------------------------------------------------ */

/* What casts a shard to what is gathered: bytes of memory, kernels, and the widest intermediate results. */
struct shard_casts {
    double bytes;
    uint32_t kernels;
    uint64_t scratch;
};

/* One foreach copy; with fp8_all_gather matrices one by one by operators: widened, multiplied by their scale, clamped
 * and cast, the product standing beside what is clamped (torchao's fsdp_pre_all_gather, _ToFloat8ConstrFunc and
 * to_fp8_saturated). */
static struct shard_casts casts_of(struct dtp_lowering *l, struct dtp_lower_unit *unit)
{
    const uint64_t narrow = l->bytes.gathered, wide = 4, stored = l->bytes.params;
    const uint64_t element = (stored < wide ? stored + wide : 0) + 2 * wide + 2 * wide + wide + narrow;
    struct shard_casts out = {(double)(unit->rest_bytes + unit->gathered_shard_bytes), 1, 0};
    for (uint64_t i = 0; narrow < l->compute && i < dtp_unit_modules(unit); i++) {
        struct dtp_unit_module at = dtp_unit_module(l, unit, i);
        for (int part = at.first; part < at.end; part = dtp_unit_next(&at, part)) {
            const uint64_t elements = at.module->shard[part];
            if (!elements || at.module->wire_bytes[part] != narrow * elements)
                continue;
            out.bytes += (double)(elements * element) - (double)(at.module->shard_bytes[part] + narrow * elements);
            out.kernels += stored < wide ? 4 : 3;
            out.scratch = larger(out.scratch, 2 * wide * elements);
        }
    }
    return out;
}

/* Shard into the flat buffer (FSDP2), cast where it is stored wider; FSDP1 casts into a buffer of its own. Returns the
 * cast that the gather reads, if any. */
static dtp_buffer_id copy_in(struct dtp_lowering *l, struct dtp_lower_unit *unit, dtp_op_id after)
{
    uint64_t ranks = unit->ranks, shard = unit->gathered_shard_bytes;
    bool casts = l->bytes.params != l->bytes.compute;
    const struct shard_casts work = casts_of(l, unit);
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
    if (casts && work.scratch)
        dtp_draft_new(l, &draft, "scaled shard", DTP_OWNER_GATHER, work.scratch, DTP_UPDATE | DTP_FREE);
    if (!l->plan->fsdp1)
        unit->flat = dtp_draft_new(l, &draft, "gathered", DTP_OWNER_GATHER, ranks * shard, DTP_WRITE);
    dtp_draft_after(&draft, after);
    dtp_draft_memory(l, &draft, (casts ? work.bytes : 0) + (l->plan->fsdp1 ? 0 : 2 * (double)shard),
                     casts && !l->plan->fsdp1 ? work.kernels + 1 : 1);
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
    uint64_t ranks = unit->ranks, shard = unit->gathered_shard_bytes;
    bool alone = ranks == 1, casts = cast.index != DTP_NO_INDEX, smaller = unit->post_forward.index != DTP_NO_INDEX;
    struct dtp_draft draft;
    if (smaller) {
        shard = ranks * shard / l->plan->reshard_group;
        ranks = l->plan->reshard_group;
    }
    dtp_draft_begin(l, &draft, alone ? DTP_OP_COPY_OUT : DTP_OP_ALL_GATHER, alone ? "weights" : "");
    draft.op.stream = DTP_STREAM_GATHER;
    draft.op.group = smaller ? dtp_lower_sharding_of(l)->reshard_group : unit->group;
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

/* A group of one rank has nothing to gather: FSDP2 casts and copies each parameter where its weights are wanted, on the
 * stream that wants them and never ahead (FSDPParamGroup.wait_for_unshard of PyTorch 2.11). */
static bool is_alone(const struct dtp_lowering *l, const struct dtp_lower_unit *unit)
{
    return unit->ranks == 1 && !l->plan->fsdp1 && !dtp_lower_offloads(l);
}

/* Issues the gather of `unit`; its streams first wait for `after`. */
static void gather(struct dtp_lowering *l, struct dtp_lower_unit *unit, dtp_op_id after)
{
    uint16_t layer = l->layer;
    unit->gathering = true;
    if (is_alone(l, unit))
        return;
    dtp_lower_stand(l, unit->root ? DTP_NO_LAYER : (uint16_t)unit->first);
    wait_for_release(l);
    dtp_buffer_id cast = DTP_NO_BUFFER;
    if (unit->post_forward.index != DTP_NO_INDEX)
        copy_in_post_forward(l, unit, after);
    else if (!l->plan->fsdp1 || dtp_lower_offloads(l) || l->bytes.params != l->bytes.compute)
        cast = copy_in(l, unit, after);
    if (!l->plan->fsdp1)
        cast = DTP_NO_BUFFER;
    if (l->plan->fsdp1 || unit->ranks > 1)
        all_gather(l, unit, cast, after);
    dtp_lower_stand(l, layer);
}

/* Compute waits for a gather that wrote the weights themselves. */
static void use_gathered(struct dtp_lowering *l, struct dtp_lower_unit *unit)
{
    uint16_t layer = l->layer;
    for (uint64_t i = 0; i < dtp_unit_modules(unit); i++) {
        struct dtp_unit_module at = dtp_unit_module(l, unit, i);
        for (int part = at.first; part < at.end; part = dtp_unit_next(&at, part))
            at.state->weight[part] = unit->flat;
    }
    dtp_lower_stand(l, layer);
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

/* Weights of a module are this rank's own, cast and copied one by one; the cast of one stands until it is copied. What
 * the host takes for each is in unit_hooks_s, which was measured on one GPU. */
static void copy_own(struct dtp_lowering *l, struct dtp_lower_unit *unit, const struct dtp_unit_module *at,
                     struct dtp_draft *draft)
{
    const bool casts = l->bytes.params != l->bytes.compute;
    const struct shard_casts work = casts_of(l, unit);
    uint64_t largest = 0, bytes = 0;
    for (int part = at->first; part < at->end; part = dtp_unit_next(at, part)) {
        largest = larger(largest, at->module->wire_bytes[part]);
        bytes += at->module->wire_bytes[part];
    }
    dtp_draft_use(draft, unit->params, DTP_READ);
    if (casts || work.scratch)
        dtp_draft_new(l, draft, "cast shard", DTP_OWNER_GATHER, largest + work.scratch, DTP_UPDATE | DTP_FREE);
    dtp_draft_memory(l, draft,
                     2 * (double)bytes + (casts ? work.bytes * (double)bytes / (double)unit->gathered_shard_bytes : 0),
                     casts ? 2 : 1);
    draft->op.demand.memory_kernel = DTP_KERNEL_STREAMING;
}

/* The flat buffer's parts become weights; `release` is the buffer that goes afterwards. */
static void copy_out(struct dtp_lowering *l, struct dtp_lower_unit *unit, struct dtp_lower_unit *release)
{
    if (l->plan->fsdp1) {
        use_gathered(l, unit);
        return;
    }
    uint16_t layer = l->layer;
    uint64_t ranks = unit->ranks, modules = dtp_unit_modules(unit);
    for (uint64_t i = 0; i < modules; i++) {
        struct dtp_unit_module at = dtp_unit_module(l, unit, i);
        uint64_t bytes = 0;
        struct dtp_draft draft;
        dtp_draft_begin(l, &draft, DTP_OP_COPY_OUT, "weights");
        for (int part = at.first; part < at.end; part = dtp_unit_next(&at, part)) {
            at.state->weight[part] = dtp_draft_new(l, &draft, at.module->weight_name[part], DTP_OWNER_WEIGHTS,
                                                   ranks * at.module->wire_bytes[part], DTP_WRITE);
            bytes += ranks * at.module->wire_bytes[part];
        }
        bool last = i + 1 == modules;
        if (is_alone(l, unit)) {
            copy_own(l, unit, &at, &draft);
        } else {
            dtp_draft_use(&draft, unit->flat, last && release == unit ? DTP_READ | DTP_FREE : DTP_READ);
            dtp_draft_after(&draft, unit->gathered);
            dtp_draft_memory(l, &draft, 2 * (double)bytes, 1);
            draft.op.demand.memory_kernel = DTP_KERNEL_FUSED;
        }
        if (last && release && release != unit)
            dtp_draft_use(&draft, release->flat, DTP_FREE);
        if (last)
            dtp_draft_use(&draft, unit->post_forward, DTP_FREE);
        if (last && unit->uploads.stays)
            free_uploads(&draft, unit);
        dtp_draft_end(l, &draft);
    }
    if (release)
        release->flat = DTP_NO_BUFFER;
    unit->post_forward = DTP_NO_BUFFER;
    unit->gathering = false;
    unit->weights_live = true;
    dtp_lower_sharding_of(l)->copied = l->last_op[DTP_STREAM_COMPUTE];
    dtp_lower_stand(l, layer);
}

/* reshard_after_forward=n: a copy of this rank's n-th outlives the weights (FSDPParam.to_sharded_post_forward). */
static void keep_post_forward(struct dtp_lowering *l, struct dtp_lower_unit *unit)
{
    uint16_t layer = l->layer;
    uint64_t ranks = l->plan->shard_group, group = l->plan->reshard_group;
    for (uint64_t i = 0; i < dtp_unit_modules(unit) && group; i++) {
        struct dtp_unit_module at = dtp_unit_module(l, unit, i);
        uint64_t bytes = 0;
        struct dtp_draft draft;
        dtp_draft_begin(l, &draft, DTP_OP_COPY_OUT, "shard of the smaller group");
        for (int part = at.first; part < at.end; part = dtp_unit_next(&at, part)) {
            dtp_draft_use(&draft, at.state->weight[part], DTP_READ);
            bytes += ranks * at.module->wire_bytes[part] / group;
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
    dtp_lower_stand(l, layer);
}

static void release_weights(struct dtp_lowering *l, struct dtp_lower_unit *unit)
{
    uint16_t layer = l->layer;
    for (uint64_t i = 0; i < dtp_unit_modules(unit); i++) {
        struct dtp_unit_module at = dtp_unit_module(l, unit, i);
        struct dtp_draft draft;
        dtp_draft_begin(l, &draft, DTP_OP_FREE, "weights");
        for (int part = at.first; part < at.end; part = dtp_unit_next(&at, part)) {
            if (!l->plan->fsdp1 || (!i && !part))
                dtp_draft_use(&draft, at.state->weight[part], l->plan->fsdp1 ? DTP_FREE | DTP_DEFER : DTP_FREE);
            at.state->weight[part] = DTP_NO_BUFFER;
        }
        if (draft.operand_count)
            dtp_draft_end(l, &draft);
    }
    struct dtp_lower_sharding *s = dtp_lower_sharding_of(l);
    if (l->plan->fsdp1 && s->released_count < 2)
        s->released[s->released_count++] = l->last_op[DTP_STREAM_COMPUTE];
    unit->weights_live = false;
    dtp_lower_stand(l, layer);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* What a gather waits for: the copy-outs of flat buffers it may overwrite; without prefetch all compute before it, as
 * the root's always does in forward (_root_pre_forward: "wait for optimizer before implicitly prefetched all-gathers").
 */
static dtp_op_id gather_after(const struct dtp_lowering *l, bool prefetched)
{
    return l->plan->prefetch && prefetched ? dtp_lower_sharding_of(l)->awaited : l->last_op[DTP_STREAM_COMPUTE];
}

/* One that is wanted soon, its experts' behind it. */
static void gather_ahead(struct dtp_lowering *l, struct dtp_lower_unit *unit, bool with_experts)
{
    struct dtp_lower_unit *experts = unit->root ? NULL : dtp_lower_unit_of_experts(l, unit->first);
    if (!unit->gathering && !unit->weights_live)
        gather(l, unit, dtp_lower_sharding_of(l)->awaited);
    if (with_experts && experts && !experts->gathering && !experts->weights_live)
        gather(l, experts, dtp_lower_sharding_of(l)->awaited);
}

/* The gather's streams wait for the previous unit's copy-out only after this unit's gather has been issued, so that it
 * runs two units ahead. */
static void before_forward(struct dtp_lowering *l)
{
    struct dtp_lower_unit *unit = dtp_lower_unit_here(l);
    if (unit && (unit->root || l->layer == unit->first))
        dtp_lower_call_host(l, DTP_OP_HOST_HOOKS, dtp_plan_unit_hooks(l->plan, false));
    dtp_torch_call_compiled(l);
    if (unit && dtp_lower_unit_of_experts(l, unit->first) && !unit->root)
        dtp_lower_call_host(l, DTP_OP_HOST_EXCHANGE, 1);
    if (!unit || unit->weights_live)
        return;
    struct dtp_lower_sharding *s = dtp_lower_sharding_of(l);
    if (!unit->gathering) {
        unit->uploads.stays = dtp_lower_offloads(l) && !l->plan->fsdp1;
        gather(l, unit, gather_after(l, !dtp_unit_is_last(l, unit)));
    }
    if (!l->plan->fsdp1)
        s->awaited = s->copied;
    copy_out(l, unit, s->held);
    s->held = l->plan->fsdp1 || is_alone(l, unit) ? NULL : unit;
    /* set_modules_to_forward_prefetch, called for every block; where the host waits for splits, it could not issue the
     * next gather in time, so torchtitan calls it. A stage without the head has no root behind its blocks. */
    uint32_t ahead =
        (l->plan->prefetch_depth > 1 || s->experts) && !unit->root && l->plan->prefetch ? l->plan->prefetch_depth : 0;
    for (struct dtp_lower_unit *next = unit + 1; ahead && next < s->unit + s->count; next++, ahead--)
        gather_ahead(l, next, true);
}

static bool keeps_weights(const struct dtp_lowering *l, const struct dtp_lower_unit *unit)
{
    bool kept_root = l->plan->keep_root || l->plan->fsdp1 || !dtp_unit_is_last(l, unit);
    return !l->plan->reshard_after_forward || (unit->root && kept_root);
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
    if (l->layer == DTP_NO_LAYER && l->end == DTP_END_NONE)
        release_gathered(l);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

static void before_backward(struct dtp_lowering *l)
{
    struct dtp_lower_unit *unit = dtp_lower_unit_here(l);
    dtp_torch_call_compiled(l);
    if (!unit || (!unit->root && l->layer + 1u != unit->end))
        return;
    dtp_lower_call_host(l, DTP_OP_HOST_HOOKS, dtp_plan_unit_hooks(l->plan, true));
    if (l->role.pipeline) /* a stage has all weights gathered */
        return;
    struct dtp_lower_sharding *s = dtp_lower_sharding_of(l);
    if (!unit->weights_live) {
        if (!unit->gathering)
            gather(l, unit, gather_after(l, true));
        copy_out(l, unit, unit);
        if (!l->plan->fsdp1)
            s->awaited = s->copied;
    }
    uint32_t ahead = !dtp_plan_prefetches_backward(l->plan) ? 0 : unit->root ? 1 : l->plan->prefetch_depth;
    for (struct dtp_lower_unit *next = dtp_lower_unit_below(l, unit); next && ahead;
         next = dtp_lower_unit_below(l, next), ahead--)
        gather_ahead(l, next, !unit->root);
}

static void after_replay(struct dtp_lowering *l)
{
    struct dtp_lower_unit *unit = dtp_lower_unit_here(l);
    if (!unit || !dtp_plan_gathers_for_replays(l->plan))
        return;
    release_weights(l, unit);
    gather(l, unit, gather_after(l, true));
    copy_out(l, unit, unit);
}

static void finish_unit(struct dtp_lowering *l, struct dtp_lower_unit *unit)
{
    uint16_t layer = l->layer;
    bool reduces = l->reduces && unit->shard; /* of frozen parameters there is nothing to reduce */
    dtp_lower_collect_gradients(l, unit);
    if (reduces && !l->plan->fsdp1)
        dtp_lower_cut_gradients(l, unit);
    release_weights(l, unit);
    if (reduces)
        dtp_lower_reduce_gradients(l, unit);
    dtp_lower_stand(l, layer);
    if (dtp_unit_is_last(l, unit)) { /* the step's last reduction is awaited before anything else runs */
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
    bool holds = dtp_lower_sharding_of(l)->hooked != NULL;
    if (holds && l->layer != DTP_NO_LAYER)
        dtp_lower_hook_holds(l);
    else if (holds && l->end == DTP_END_NONE)
        dtp_lower_hooks_end(l);
    if (!unit || (!unit->root && l->layer != unit->first))
        return;
    if (l->role.pipeline)
        dtp_lower_collect_gradients(l, unit);
    else
        finish_unit(l, unit);
}

static void before_experts(struct dtp_lowering *l, bool backward)
{
    struct dtp_lower_unit *unit = dtp_lower_unit_of_experts(l, l->layer);
    struct dtp_lower_sharding *s = dtp_lower_sharding_of(l);
    if (unit && !backward) /* two: of the exchange before, of the experts' unit */
        dtp_lower_call_host(l, DTP_OP_HOST_EXCHANGE, 2);
    if (!unit || unit->weights_live)
        return;
    if (!unit->gathering)
        gather(l, unit, gather_after(l, true));
    bool forward = !backward && !l->recompute;
    if (forward)
        s->awaited = s->copied;
    copy_out(l, unit, forward ? s->held : unit);
    if (forward)
        s->held = is_alone(l, unit) ? NULL : unit;
    else
        s->awaited = s->copied;
}

/* A replay's forward does not free them (FSDPParamGroup.post_forward asks is_bw). */
static void after_experts(struct dtp_lowering *l, bool backward)
{
    struct dtp_lower_unit *unit = dtp_lower_unit_of_experts(l, l->layer);
    if (!unit)
        return;
    if (backward && l->role.pipeline) {
        dtp_lower_collect_gradients(l, unit);
        return;
    }
    if (backward) {
        finish_unit(l, unit);
        return;
    }
    if (!keeps_weights(l, unit) && !l->recompute)
        release_weights(l, unit);
    dtp_lower_call_host(l, DTP_OP_HOST_EXCHANGE, 1);
}

static void chunk_done(struct dtp_lowering *l)
{
    struct dtp_lower_sharding *s = dtp_lower_sharding_of(l);
    const struct dtp_lower_chunk *chunk = l->chunk;
    if (chunk->embedding)
        finish_unit(l, dtp_lower_unit_of_end(l, DTP_END_EMBEDDING));
    for (uint64_t i = 0; i < s->count; i++) {
        struct dtp_lower_unit *unit = &s->unit[i], *experts = dtp_lower_unit_of_experts(l, unit->first);
        if (unit->first < chunk->first || unit->first >= chunk->first + chunk->layers)
            continue;
        finish_unit(l, unit);
        if (experts)
            finish_unit(l, experts);
    }
    if (chunk->head && (l->wraps_ends || !chunk->embedding))
        finish_unit(l, dtp_lower_unit_of_end(l, DTP_END_HEAD));
    dtp_lower_await_reduction(l);
    dtp_lower_stand(l, DTP_NO_LAYER);
}

static void update(struct dtp_lowering *l, struct dtp_lower_unit *unit)
{
    dtp_lower_stand(l, unit->root ? DTP_NO_LAYER : (uint16_t)unit->first);
    if (unit->ranks && unit->shard)
        dtp_lower_update(l, unit->params, unit->moments, &unit->grads, 1, unit->shard);
}

/* zero_grad(set_to_none=True) */
static void forget_gradients(struct dtp_lowering *l, struct dtp_lower_unit *unit)
{
    struct dtp_draft draft;
    dtp_lower_stand(l, unit->root ? DTP_NO_LAYER : (uint16_t)unit->first);
    dtp_draft_begin(l, &draft, DTP_OP_FREE, "zero_grad");
    if (unit->ranks)
        dtp_draft_use(&draft, unit->grads, DTP_FREE);
    unit->grads = DTP_NO_BUFFER;
    dtp_draft_end(l, &draft);
}

static void step_units(struct dtp_lowering *l)
{
    struct dtp_lower_sharding *s = dtp_lower_sharding_of(l);
    if (dtp_lower_offloads(l)) {
        dtp_lower_host_step(l);
        return;
    }
    uint64_t dense = s->count + s->roots, all = dense + (s->experts ? l->transformer->layers : 0);
    for (uint64_t i = 0; i < all; i++)
        update(l, i < dense ? &s->unit[i] : &s->experts[i - dense]);
    for (uint64_t i = 0; i < all; i++)
        forget_gradients(l, i < dense ? &s->unit[i] : &s->experts[i - dense]);
    dtp_lower_stand(l, DTP_NO_LAYER);
}

static void step(struct dtp_lowering *l)
{
    dtp_torch_clip_units(l);
    dtp_buffer_id roots = dtp_lower_foreach_begin(l, dtp_lower_all_shard(l));
    step_units(l);
    dtp_lower_foreach_end(l, roots);
}

/* Without sync autograd's tensor is what later ones are added to. */
static bool gradient_rests(const struct dtp_lowering *l)
{
    return l->whole_gradients && !l->plan->fsdp1 && l->bytes.reduce == l->compute;
}

const struct dtp_lower_hooks dtp_lower_fsdp = {
    .make = dtp_lower_units_make,
    .release = dtp_lower_units_release,
    .before_forward = before_forward,
    .after_forward = after_forward,
    .model_done = release_gathered,
    .before_backward = before_backward,
    .after_backward = after_backward,
    .after_replay = after_replay,
    .before_experts = before_experts,
    .after_experts = after_experts,
    .chunk_done = chunk_done,
    .end_micro_step = dtp_torch_await_loss,
    .passes_done = dtp_torch_take_norm_of_units,
    .gradient_rests = gradient_rests,
    .step = step,
};
