#include "runtime/torch/lower_clip.h"

#include "base/bytes.h"
#include "plan/runtime_sizes.h"
#include "runtime/torch/lower_units.h"

#define CHUNK_ELEMENTS 65536u /* kChunkSize of ATen's MultiTensorApply.cuh */
#define LAUNCH_CHUNKS 320u    /* depth_to_max_blocks */
/* stack, its norm, three of the quotient, clamp */
#define NUMBER_KERNELS 6u

static bool one_by_one(const struct dtp_lowering *l)
{
    return dtp_plan_is_fsdp(l->plan) && l->plan->fsdp1;
}

static uint32_t kernels_of(const struct dtp_lowering *l, const struct dtp_clipped *clipped, bool norm)
{
    uint64_t launches = dtp_divide_up(clipped->elements, 3u * (uint64_t)CHUNK_ELEMENTS * LAUNCH_CHUNKS);
    if (one_by_one(l))
        return (uint32_t)clipped->count;
    if (!norm)
        return (uint32_t)launches;
    return (uint32_t)(launches + (dtp_plan_is_fsdp(l->plan) ? clipped->tensors : dtp_divide_up(clipped->tensors, 4)));
}

static void pass(struct dtp_lowering *l, enum dtp_op_kind kind, const char *name, const struct dtp_clipped *clipped,
                 bool norm)
{
    struct dtp_draft draft;
    if (!clipped->elements)
        return;
    dtp_draft_begin(l, &draft, kind, name);
    dtp_draft_use(&draft, l->norm, norm ? DTP_UPDATE : DTP_READ);
    for (int i = 0; i < clipped->count; i++)
        dtp_draft_use(&draft, clipped->grads[i], norm ? DTP_READ : DTP_UPDATE);
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_REDUCE]);
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_REPLICATE]);
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_COPY]);
    dtp_draft_memory(l, &draft,
                     (norm ? 1 : 2) * (double)dtp_bytes_product(dtp_lower_bytes(l)->grads, clipped->elements),
                     kernels_of(l, clipped, norm));
    draft.op.demand.memory_kernel = DTP_KERNEL_STREAMING;
    dtp_draft_end(l, &draft);
}

void dtp_torch_count_clipped(const struct dtp_lowering *l, const struct dtp_lower_module *module, int part,
                             uint64_t ranks, struct dtp_clipped *out)
{
    bool one = module->rows[part] && !dtp_plan_calls_experts(l->plan);
    uint64_t longest = dtp_divide_up(one ? module->elements[part] : module->largest[part], ranks);
    if (!module->trained[part])
        return;
    out->tensors += one ? 1 : module->tensors[part];
    out->longest = longest > out->longest ? longest : out->longest;
}

/* One number for each chunk of the longest gradient, of every gradient. */
static void make_numbers(struct dtp_lowering *l, dtp_clipped_at *at)
{
    struct dtp_clipped clipped;
    uint64_t tensors = 0, longest = 0;
    for (uint64_t i = 0; at(l, i, &clipped); i++) {
        tensors += clipped.tensors;
        longest = clipped.longest > longest ? clipped.longest : longest;
    }
    uint64_t chunks = one_by_one(l) || !longest ? 1 : dtp_divide_up(longest, CHUNK_ELEMENTS);
    uint64_t bytes = dtp_bytes_product(DTP_TORCH_NORM_BYTES, dtp_bytes_product(tensors ? tensors : 1, chunks));
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ZERO, "norms of gradients");
    l->norm = dtp_draft_new(l, &draft, "norms of gradients", DTP_OWNER_WORKSPACE, bytes, DTP_WRITE);
    dtp_draft_memory(l, &draft, (double)bytes, 1);
    draft.op.demand.memory_kernel = DTP_KERNEL_STREAMING;
    dtp_draft_end(l, &draft);
}

static void sum_over(struct dtp_lowering *l, enum dtp_stream stream, uint32_t group, uint64_t ranks)
{
    struct dtp_draft draft;
    if (ranks < 2)
        return;
    dtp_draft_begin(l, &draft, DTP_OP_ALL_REDUCE, "gradient norm");
    draft.op.stream = stream;
    draft.op.group = group;
    dtp_draft_use(&draft, l->norm, DTP_UPDATE);
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_COMPUTE]);
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_REDUCE]);
    draft.op.demand.sent_bytes = 2 * (double)dtp_lower_ring(DTP_TORCH_NORM_BYTES, ranks);
    draft.op.demand.bytes = DTP_TORCH_NORM_BYTES;
    dtp_draft_end(l, &draft);
}

void dtp_torch_take_norm(struct dtp_lowering *l, dtp_clipped_at *at, uint32_t group, uint64_t ranks)
{
    struct dtp_clipped clipped;
    struct dtp_draft draft;
    if (!dtp_plan_clips(l->plan))
        return;
    make_numbers(l, at);
    for (uint64_t i = 0; at(l, i, &clipped); i++)
        pass(l, DTP_OP_SQUARE_SUM, "gradient norm", &clipped, true);
    dtp_lower_stand(l, DTP_NO_LAYER);
    sum_over(l, DTP_STREAM_REDUCE, group, ranks);
    sum_over(l, DTP_STREAM_TENSOR, l->tp_group, l->tp);
    dtp_draft_begin(l, &draft, DTP_OP_SQUARE_SUM, "norm of all gradients");
    dtp_draft_use(&draft, l->norm, DTP_UPDATE);
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_REDUCE]);
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_TENSOR]);
    dtp_draft_memory(l, &draft, 0, NUMBER_KERNELS);
    dtp_draft_end(l, &draft);
}

void dtp_torch_clip(struct dtp_lowering *l, dtp_clipped_at *at)
{
    struct dtp_clipped clipped;
    struct dtp_draft draft;
    if (!dtp_plan_clips(l->plan))
        return;
    for (uint64_t i = 0; at(l, i, &clipped); i++)
        pass(l, DTP_OP_CLIP_SCALE, "clipped gradients", &clipped, false);
    dtp_lower_stand(l, DTP_NO_LAYER);
    dtp_draft_begin(l, &draft, DTP_OP_FREE, "norms of gradients");
    dtp_draft_use(&draft, l->norm, DTP_FREE);
    dtp_draft_end(l, &draft);
    l->norm = DTP_NO_BUFFER;
}

/* ---- units of FSDP ----------------------------------------------------------------------------------------------- */

static bool unit_at(struct dtp_lowering *l, uint64_t index, struct dtp_clipped *out)
{
    struct dtp_lower_sharding *s = dtp_lower_sharding_of(l);
    uint64_t dense = s->count + s->roots, all = dense + (s->experts ? l->transformer->layers : 0);
    *out = (struct dtp_clipped){0};
    if (index >= all)
        return false;
    const struct dtp_lower_unit *unit = index < dense ? &s->unit[index] : &s->experts[index - dense];
    if (!unit->ranks || !unit->shard)
        return true;
    for (uint64_t i = 0; i < dtp_unit_modules(unit); i++) {
        struct dtp_unit_module at = dtp_unit_module(l, unit, i);
        for (int part = at.first; part < at.end; part = dtp_unit_next(&at, part))
            dtp_torch_count_clipped(l, at.module, part, unit->ranks, out);
    }
    dtp_lower_stand(l, unit->root ? DTP_NO_LAYER : (uint16_t)unit->first);
    out->grads[0] = unit->grads, out->count = 1, out->elements = unit->shard;
    return true;
}

/* On the host: lower_offload.c. */
void dtp_torch_take_norm_of_units(struct dtp_lowering *l)
{
    if (dtp_lower_offloads(l))
        return;
    dtp_torch_take_norm(l, unit_at, dtp_lower_sharding_of(l)->shard_group, l->plan->shard_group);
}

void dtp_torch_clip_units(struct dtp_lowering *l)
{
    if (dtp_lower_offloads(l))
        return;
    dtp_torch_clip(l, unit_at);
}
