/* Gradients that matmuls write into buffers of the reduce dtype and add to there: Megatron's one buffer, our executor's
 * buffer per unit.
 *
 * Megatron (core/distributed, overlap_grad_reduce off, as by default): parameters and gradients are contiguous; when
 * the last micro-step's backward is through, bucket after bucket is all-reduced, or reduce-scattered in place for the
 * distributed optimizer, whose updated weights are gathered again before the next forward.
 * Ours reduces unit by unit while backward goes on. Where gradients are sharded, a unit's buffer lives from its
 * backward until its reduce-scatter has been awaited: one is written while one is scattered; micro-steps that do not
 * reduce add up in whole buffers. */
#include "lower_units.h"

#include "bytes.h"

#define MEGATRON_BUCKET 40000000u /* elements, or 1e6 per data parallel rank */

static uint64_t model_elements(const struct dtp_lowering *l)
{
    return l->transformer->layers * l->block.all_elements + l->root.all_elements;
}

/* ---- Megatron ---------------------------------------------------------------------------------------------------- */

static struct dtp_module_state *whole(const struct dtp_lowering *l)
{
    return &l->state[l->transformer->layers];
}

enum dtp_status dtp_lower_contiguous_make(struct dtp_lowering *l)
{
    uint64_t total = model_elements(l), ranks = l->plan->shard_group;
    struct dtp_module_state *all = whole(l);
    all->params = dtp_lower_buffer(l, "params", DTP_OWNER_PARAMS, DTP_STREAM_COMPUTE, l->bytes.params * total, true);
    all->gradient_buffer =
        dtp_lower_buffer(l, "gradient buffer", DTP_OWNER_GRADS, DTP_STREAM_COMPUTE, l->bytes.grads * total, true);
    all->moments = (struct dtp_lower_moments){DTP_NO_BUFFER, 0};
    dtp_lower_add_moments(l, &all->moments, dtp_divide_up(total, ranks));
    for (uint64_t layer = 0; layer < l->transformer->layers; layer++) {
        l->state[layer].params = all->params;
        l->state[layer].gradient_buffer = all->gradient_buffer;
    }
    if (l->cluster->gpus > 1)
        l->contiguous_group = dtp_program_add_group(l->program, (struct dtp_program_group){l->cluster->gpus, 1});
    return DTP_OK;
}

/* Gradients are divided by the number of ranks before they are summed. */
static void scale_gradients(struct dtp_lowering *l)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ACCUMULATE, "gradient scaling");
    dtp_draft_use(&draft, whole(l)->gradient_buffer, DTP_UPDATE);
    dtp_draft_memory(l, &draft, 2 * (double)(l->bytes.grads * model_elements(l)), 1);
    dtp_draft_end(l, &draft);
}

/* One collective a bucket over a buffer of `element_bytes` an element. */
static void bucket_collectives(struct dtp_lowering *l, enum dtp_op_kind kind, dtp_buffer_id buffer,
                               uint64_t element_bytes)
{
    uint64_t gpus = l->cluster->gpus, total = model_elements(l), per_rank = 1000000 * gpus;
    uint64_t bucket = per_rank > MEGATRON_BUCKET ? per_rank : MEGATRON_BUCKET;
    double times = kind == DTP_OP_ALL_REDUCE ? 2 : 1;
    for (uint64_t first = 0; first < total && gpus > 1; first += bucket) {
        uint64_t end = first + bucket < total ? first + bucket : total;
        struct dtp_draft draft;
        dtp_draft_begin(l, &draft, kind, "bucket");
        draft.op.stream = DTP_STREAM_REDUCE;
        draft.op.group = l->contiguous_group;
        dtp_draft_use(&draft, buffer, DTP_UPDATE);
        dtp_draft_after(&draft, l->last_op[DTP_STREAM_COMPUTE]);
        uint64_t sent = dtp_lower_ring(end * element_bytes, gpus) - dtp_lower_ring(first * element_bytes, gpus);
        draft.op.demand.sent_bytes = times * (double)sent;
        draft.op.demand.bytes = (double)((end - first) * element_bytes);
        dtp_draft_end(l, &draft);
    }
}

void dtp_lower_contiguous_reduce(struct dtp_lowering *l)
{
    if (!l->buffered || l->has_units || !l->reduces)
        return;
    enum dtp_op_kind kind = l->plan->strategy == DTP_DDP ? DTP_OP_ALL_REDUCE : DTP_OP_REDUCE_SCATTER;
    if (l->cluster->gpus > 1)
        scale_gradients(l);
    bucket_collectives(l, kind, whole(l)->gradient_buffer, l->bytes.reduce);
}

void dtp_lower_contiguous_step(struct dtp_lowering *l)
{
    struct dtp_module_state *all = whole(l);
    dtp_lower_update(l, all->params, all->moments, &all->gradient_buffer, 1,
                     dtp_divide_up(model_elements(l), l->plan->shard_group));
    if (l->plan->strategy != DTP_DDP)
        bucket_collectives(l, DTP_OP_ALL_GATHER, all->params, l->bytes.params);
}

/* ---- ours -------------------------------------------------------------------------------------------------------- */

static void write_into(struct dtp_lowering *l, struct dtp_lower_unit *unit, dtp_buffer_id buffer)
{
    uint16_t layer = l->layer;
    for (uint64_t i = 0; i < dtp_unit_modules(unit); i++) {
        const struct dtp_lower_module *module;
        dtp_unit_module(l, unit, i, &module)->gradient_buffer = buffer;
    }
    l->layer = layer;
}

static uint64_t unit_bytes(const struct dtp_lowering *l, const struct dtp_lower_unit *unit)
{
    return l->bytes.reduce * (l->sharded ? l->plan->shard_group * unit->shard : unit->elements);
}

/* Gradients at rest: whole ones where nothing shards them or micro-steps add up, the shard where it is kept. */
void dtp_lower_unit_buffers(struct dtp_lowering *l, struct dtp_lower_unit *unit)
{
    if (!l->transient_gradients) {
        unit->scatter_input =
            dtp_lower_buffer(l, "gradient buffer", DTP_OWNER_GRADS, DTP_STREAM_COMPUTE, unit_bytes(l, unit), true);
        write_into(l, unit, unit->scatter_input);
    }
    if (l->sharded || l->plan->strategy == DTP_ZERO2)
        unit->grads =
            dtp_lower_buffer(l, "gradients", DTP_OWNER_GRADS, DTP_STREAM_COMPUTE, l->bytes.reduce * unit->shard, true);
}

/* The buffer of the unit at hand, before the first matmul that writes into it. */
void dtp_lower_open_gradients(struct dtp_lowering *l)
{
    struct dtp_lower_unit *unit = l->executor ? dtp_lower_unit_here(l) : NULL;
    if (!unit || unit->scatter_input.index != DTP_NO_INDEX)
        return;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ALLOC, "gradient buffer");
    unit->scatter_input = dtp_draft_new(l, &draft, "gradient buffer", DTP_OWNER_REDUCE, unit_bytes(l, unit), 0);
    dtp_draft_end(l, &draft);
    write_into(l, unit, unit->scatter_input);
}

/* The last scattered buffer goes, if it is not one that stays. */
static void close_gradients(struct dtp_lowering *l)
{
    struct dtp_lower_unit *unit = l->sharding->reducing;
    l->sharding->reducing = NULL;
    if (!unit || !l->transient_gradients)
        return;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_FREE, "gradient buffer");
    dtp_draft_use(&draft, unit->scatter_input, DTP_FREE);
    dtp_draft_after(&draft, unit->scattered);
    dtp_draft_end(l, &draft);
    unit->scatter_input = DTP_NO_BUFFER;
    write_into(l, unit, DTP_NO_BUFFER);
}

/* The reduce-scatter's result into the shard: written the first time, added later. Sharded by DDP's sense (zero1), the
 * shard is a part of the buffer itself. */
static dtp_buffer_id reduce(struct dtp_lowering *l, struct dtp_lower_unit *unit, bool adds)
{
    uint64_t bytes = unit_bytes(l, unit), ranks = l->sharded ? l->plan->shard_group : l->cluster->gpus;
    bool ddp = l->plan->strategy == DTP_DDP, in_place = unit->grads.index == DTP_NO_INDEX;
    uint64_t before = l->sharding->reduced_bytes;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, ddp ? DTP_OP_ALL_REDUCE : DTP_OP_REDUCE_SCATTER, "");
    draft.op.stream = DTP_STREAM_REDUCE;
    draft.op.group = l->sharding->shard_group;
    dtp_draft_use(&draft, unit->scatter_input, in_place ? DTP_UPDATE : DTP_READ);
    dtp_buffer_id result = unit->grads;
    if (adds)
        result =
            dtp_draft_new(l, &draft, "reduced gradients", DTP_OWNER_REDUCE, l->bytes.reduce * unit->shard, DTP_WRITE);
    else
        dtp_draft_use(&draft, result, DTP_WRITE);
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_COMPUTE]);
    uint64_t sent = dtp_lower_ring(before + bytes, ranks) - dtp_lower_ring(before, ranks);
    draft.op.demand.sent_bytes = (ddp ? 2 : 1) * (double)sent;
    draft.op.demand.bytes = (double)bytes;
    if (ranks == 1) {
        draft.op.kind = DTP_OP_COPY_OUT;
        draft.op.demand.kernels = 1;
    }
    l->sharding->reduced_bytes += bytes;
    unit->scattered = dtp_draft_end(l, &draft);
    return result;
}

static void add_to_shard(struct dtp_lowering *l, struct dtp_lower_unit *unit, dtp_buffer_id reduced)
{
    bool replicas = l->sharded && l->cluster->gpus > l->plan->shard_group;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ACCUMULATE, "reduced gradients");
    draft.op.stream = replicas ? DTP_STREAM_REPLICATE : DTP_STREAM_REDUCE;
    dtp_draft_use(&draft, unit->grads, DTP_UPDATE);
    dtp_draft_use(&draft, reduced, DTP_READ | DTP_FREE | (replicas ? DTP_DEFER : 0));
    dtp_draft_memory(l, &draft, 3 * (double)(l->bytes.reduce * unit->shard), 1);
    dtp_draft_end(l, &draft);
}

void dtp_lower_buffered_reduce(struct dtp_lowering *l, struct dtp_lower_unit *unit)
{
    close_gradients(l);
    bool shard = unit->grads.index != DTP_NO_INDEX, adds = shard && l->micro_step && !l->whole_gradients;
    if (!shard && l->cluster->gpus == 1)
        return;
    dtp_buffer_id reduced = reduce(l, unit, adds);
    if (l->sharded)
        dtp_lower_all_reduce(l, unit, reduced);
    if (adds)
        add_to_shard(l, unit, reduced);
    l->sharding->reducing = unit;
}

/* The next micro-step's matmuls write into whole buffers that are still being reduced. */
void dtp_lower_finish_gradients(struct dtp_lowering *l)
{
    close_gradients(l);
    if (l->transient_gradients || !l->reduces || l->last_micro_step)
        return;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_MARK, "gradients reduced");
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_REDUCE]);
    dtp_draft_end(l, &draft);
}

/* After the step under zero1 and zero2: each unit's weights from the ranks that updated them. */
void dtp_lower_gather_updated(struct dtp_lowering *l)
{
    struct dtp_lower_sharding *s = l->sharding;
    uint64_t gpus = l->cluster->gpus, before = 0;
    if (l->sharded || l->plan->strategy == DTP_DDP || gpus == 1)
        return;
    for (uint64_t i = 0; i <= s->count; i++) {
        uint64_t bytes = l->bytes.params * s->unit[i].elements;
        struct dtp_draft draft;
        dtp_draft_begin(l, &draft, DTP_OP_ALL_GATHER, "updated weights");
        draft.op.layer = s->unit[i].root ? DTP_NO_LAYER : (uint16_t)s->unit[i].first;
        draft.op.stream = DTP_STREAM_GATHER;
        draft.op.group = s->shard_group;
        dtp_draft_use(&draft, s->unit[i].params, DTP_UPDATE);
        dtp_draft_after(&draft, l->last_op[DTP_STREAM_COMPUTE]);
        draft.op.demand.sent_bytes = (double)(dtp_lower_ring(before + bytes, gpus) - dtp_lower_ring(before, gpus));
        draft.op.demand.bytes = (double)bytes;
        before += bytes;
        dtp_draft_end(l, &draft);
    }
}
