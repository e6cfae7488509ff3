/* PyTorch's CPU offload: FSDP2's CPUOffloadPolicy, FSDP1's CPUOffload(offload_params=True).
 *
 * Sharded parameters, gradients and optimizer state live in host memory. Each gather first uploads the stored shard on
 * the stream that prepares gathers; each reduction downloads its result on the stream that made it, from where the next
 * reduction may overwrite it. A gradient that must be added to an earlier one is added on the host, which stands still
 * for it (non_blocking only where nothing is accumulated). The optimizer runs on CPU cores once all is down.
 *
 * Beside adapters frozen shards, packed or not, go up as they are kept and nothing of them comes down; gradients, state
 * and the step are of adapters alone, in their dtype. */
#include "runtime/torch/lower_units.h"

/* AdamW reads p, g, m, v and writes p, m, v in fp32, of adapters in their dtype. */
static double host_adam_bytes(const struct dtp_lowering *l)
{
    return (double)(7 * (l->adapts ? l->bytes.grads : 4));
}

void dtp_lower_host_state(struct dtp_lowering *l, struct dtp_lower_unit *unit)
{
    uint64_t gradients = l->bytes.grads * unit->shard;
    bool adds = l->plan->accumulate > 1 && l->plan->accumulate_sync;
    unit->params = dtp_lower_host_buffer(l, "params", DTP_OWNER_PARAMS, unit->rest_bytes);
    dtp_buffer_id moments =
        dtp_lower_host_buffer(l, "optimizer state", DTP_OWNER_OPTIMIZER, dtp_optimizer_bytes(&l->bytes, unit->shard));
    unit->moments = (struct dtp_lower_moments){moments, moments.index == DTP_NO_INDEX ? 0 : 1};
    unit->grads = dtp_lower_host_buffer(l, "gradients", DTP_OWNER_GRADS, gradients);
    unit->host_gradients =
        adds ? dtp_lower_host_buffer(l, "downloaded gradients", DTP_OWNER_GRADS, gradients) : unit->grads;
}

static dtp_buffer_id upload(struct dtp_lowering *l, struct dtp_lower_unit *unit, uint64_t bytes, dtp_op_id after)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_UPLOAD, "shard");
    draft.op.stream = DTP_STREAM_COPY;
    dtp_draft_use(&draft, unit->params, DTP_READ);
    dtp_buffer_id uploaded = dtp_draft_new(l, &draft, "uploaded shard", DTP_OWNER_GATHER, bytes, DTP_WRITE);
    dtp_draft_after(&draft, after);
    draft.op.demand.sent_bytes = (double)bytes;
    draft.op.demand.kernels = 1;
    dtp_draft_end(l, &draft);
    return uploaded;
}

static dtp_buffer_id cast(struct dtp_lowering *l, dtp_buffer_id uploaded, uint64_t stored_bytes, uint64_t bytes,
                          bool stays)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_CAST, "shard");
    draft.op.stream = DTP_STREAM_COPY;
    dtp_buffer_id narrow = dtp_draft_new(l, &draft, "cast shard", DTP_OWNER_GATHER, bytes, DTP_WRITE);
    dtp_draft_use(&draft, uploaded, stays ? DTP_READ : DTP_READ | DTP_FREE);
    dtp_draft_memory(l, &draft, (double)(stored_bytes + bytes), 1);
    draft.op.demand.memory_kernel = DTP_KERNEL_FUSED;
    dtp_draft_end(l, &draft);
    return narrow;
}

/* One tensor, or all of a unit that has too many for one operation or is one flat parameter. */
static void upload_tensor(struct dtp_lowering *l, struct dtp_lower_unit *unit, uint64_t stored, uint64_t bytes,
                          dtp_op_id after)
{
    struct dtp_lower_uploads *u = &unit->uploads;
    dtp_buffer_id uploaded = upload(l, unit, stored, after);
    bool casts = l->bytes.params != l->bytes.compute;
    if (casts && u->stays)
        u->uploaded[u->count] = uploaded;
    u->ready[u->count++] = casts ? cast(l, uploaded, stored, bytes, u->stays) : uploaded;
}

void dtp_lower_upload(struct dtp_lowering *l, struct dtp_lower_unit *unit, dtp_op_id after)
{
    struct dtp_lower_uploads *u = &unit->uploads;
    u->count = 0;
    for (int i = 0; i < DTP_MAX_PARTS; i++)
        u->uploaded[i] = DTP_NO_BUFFER;
    if (l->plan->fsdp1 || dtp_unit_modules(unit) > 1) {
        upload_tensor(l, unit, unit->rest_bytes, unit->gathered_shard_bytes, after);
        return;
    }
    struct dtp_unit_module at = dtp_unit_module(l, unit, 0);
    for (int part = at.first; part < at.end; part = dtp_unit_next(&at, part))
        if (at.module->shard[part])
            upload_tensor(l, unit, at.module->shard_bytes[part], at.module->wire_bytes[part], after);
}

static void wait_for(struct dtp_lowering *l, const char *name)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_HOST_WAIT, name);
    draft.op.stream = DTP_STREAM_HOST;
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_COPY]);
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_REDUCE]);
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_REPLICATE]);
    dtp_draft_end(l, &draft);
}

static void add_on_host(struct dtp_lowering *l, struct dtp_lower_unit *unit)
{
    wait_for(l, "gradients downloaded");
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_HOST_OPTIMIZER, "accumulate");
    draft.op.stream = DTP_STREAM_HOST;
    dtp_draft_use(&draft, unit->host_gradients, DTP_READ);
    dtp_draft_use(&draft, unit->grads, l->micro_step ? DTP_UPDATE : DTP_WRITE);
    draft.op.demand.bytes = 3 * (double)(l->bytes.grads * unit->shard);
    dtp_draft_end(l, &draft);
    wait_for(l, "gradients added"); /* the issuing thread adds them itself: nothing is downloaded over them meanwhile */
}

void dtp_lower_download(struct dtp_lowering *l, struct dtp_lower_unit *unit, dtp_buffer_id reduced)
{
    bool replicas = l->data_ranks > l->plan->shard_group, casts = l->bytes.reduce != l->bytes.grads;
    uint32_t spent = DTP_READ | DTP_FREE | (replicas && !casts ? DTP_DEFER : 0);
    enum dtp_stream stream = replicas ? DTP_STREAM_REPLICATE : DTP_STREAM_REDUCE;
    double shard = (double)unit->shard;
    struct dtp_draft draft;
    if (casts) {
        dtp_draft_begin(l, &draft, DTP_OP_CAST, "reduced gradients");
        draft.op.stream = stream;
        dtp_buffer_id cast =
            dtp_draft_new(l, &draft, "gradients", DTP_OWNER_REDUCE, l->bytes.grads * unit->shard, DTP_WRITE);
        dtp_draft_use(&draft, reduced, DTP_READ | DTP_FREE | (replicas ? DTP_DEFER : 0));
        dtp_draft_memory(l, &draft, shard * (double)(l->bytes.reduce + l->bytes.grads), 1);
        draft.op.demand.memory_kernel = DTP_KERNEL_FUSED;
        dtp_draft_end(l, &draft);
        reduced = cast;
    }
    dtp_draft_begin(l, &draft, DTP_OP_DOWNLOAD, "gradients");
    draft.op.stream = stream;
    dtp_draft_use(&draft, unit->host_gradients, DTP_WRITE);
    dtp_draft_use(&draft, reduced, spent);
    draft.op.demand.sent_bytes = shard * (double)l->bytes.grads;
    draft.op.demand.kernels = 1;
    dtp_draft_end(l, &draft);
    if (unit->host_gradients.index != unit->grads.index)
        add_on_host(l, unit);
}

/* clip_grad_norm_ (lower_clip.h) of gradients on the host, which CPU cores read, and then read and write. */
static void clip_on_host(struct dtp_lowering *l)
{
    struct dtp_lower_sharding *s = dtp_lower_sharding_of(l);
    for (uint64_t i = 0; i < 2 * (s->count + s->roots) && dtp_plan_clips(l->plan); i++) {
        bool scales = i >= s->count + s->roots;
        struct dtp_lower_unit *unit = &s->unit[scales ? i - s->count - s->roots : i];
        if (!unit->shard)
            continue;
        struct dtp_draft draft;
        dtp_lower_stand(l, unit->root ? DTP_NO_LAYER : (uint16_t)unit->first);
        dtp_draft_begin(l, &draft, DTP_OP_HOST_OPTIMIZER, scales ? "clipped gradients" : "gradient norm");
        draft.op.stream = DTP_STREAM_HOST;
        dtp_draft_use(&draft, unit->grads, scales ? DTP_UPDATE : DTP_READ);
        draft.op.demand.bytes = (scales ? 2 : 1) * (double)(l->bytes.grads * unit->shard);
        dtp_draft_end(l, &draft);
    }
}

void dtp_lower_host_step(struct dtp_lowering *l)
{
    struct dtp_lower_sharding *s = dtp_lower_sharding_of(l);
    wait_for(l, "gradients downloaded");
    clip_on_host(l);
    for (uint64_t i = 0; i < s->count + s->roots; i++) {
        struct dtp_lower_unit *unit = &s->unit[i];
        if (!unit->shard)
            continue;
        dtp_lower_stand(l, unit->root ? DTP_NO_LAYER : (uint16_t)unit->first);
        struct dtp_draft draft;
        dtp_draft_begin(l, &draft, DTP_OP_HOST_OPTIMIZER, "");
        draft.op.stream = DTP_STREAM_HOST;
        dtp_draft_use(&draft, unit->params, DTP_UPDATE);
        dtp_draft_use(&draft, unit->moments.first, DTP_UPDATE);
        dtp_draft_use(&draft, unit->grads, DTP_READ);
        draft.op.demand.bytes = host_adam_bytes(l) * (double)unit->shard;
        dtp_draft_end(l, &draft);
    }
    dtp_lower_stand(l, DTP_NO_LAYER);
}
