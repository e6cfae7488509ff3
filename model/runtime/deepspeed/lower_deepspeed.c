/* DeepSpeed's ZeRO stages 1 and 2 (runtime/zero/stage_1_and_2.py): contiguous parameters, a bucket that gradients are
 * copied into as they appear, and an all-reduce of a flattened copy before a gradient that no longer fits. One that is
 * larger than reduce_bucket_size by itself stays where it is until then.
 *
 * A bucket is allocated for each backward that reduces, two with overlap_comm. Without overlap_comm reductions run on
 * the compute stream; with it on their own, and compute waits for the previous one at every new bucket. Stage 1 reduces
 * in the last micro-step and keeps every gradient; stage 2 reduces in each and keeps its partition. The step turns the
 * partition into fp32, updates, and gathers all parameters in one blocking operation.
 *
 * The pipeline engine has stage 1 alone ("ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism",
 * runtime/pipe/engine.py) and reduces when all passes are through. */
#include "runtime/deepspeed/lower_infinity.h"

#include "base/bytes.h"
#include "plan/runtime_sizes.h"
#include "runtime/deepspeed/deepspeed.h"

#include <stdlib.h>

struct dtp_lower_ipg {
    struct dtp_lower_host host;       /* first: lower_infinity.h */
    uint64_t elements, partition;     /* that are trained: of the model; of this rank */
    uint64_t bucket, filled, reduced; /* elements of a bucket, in the current one, in those before it */
    dtp_buffer_id bucket_buffer[2];
    dtp_buffer_id oversized; /* the gradient that is the current bucket by itself */
    uint32_t current, group;
    dtp_buffer_id grads; /* stage 2: the partition's */
};

static struct dtp_lower_ipg *ipg_of(const struct dtp_lowering *l)
{
    return l->own;
}

static struct dtp_module_state *whole(const struct dtp_lowering *l)
{
    return &l->state[l->transformer->layers];
}

static enum dtp_stream reduction_stream(const struct dtp_lowering *l)
{
    return l->plan->deepspeed.overlap_comm ? DTP_STREAM_REDUCE : DTP_STREAM_COMPUTE;
}

/* The partition's gradients, which the first reduction makes and the step lets go. */
static void describe_bucket(struct dtp_lowering *l, struct dtp_live_bucket *out)
{
    struct dtp_lower_ipg *ipg = ipg_of(l);
    uint64_t kept = l->plan->strategy == DTP_ZERO2 ? l->bytes.grads * ipg->partition : 0;
    *out = (struct dtp_live_bucket){.elements = ipg->bucket,
                                    .element_bytes = l->bytes.reduce,
                                    .kept_bytes = (int64_t)kept,
                                    .pool = reduction_stream(l)};
    ipg->grads = dtp_lower_buffer(l, "gradients of the partition", DTP_OWNER_GRADS, out->pool, kept, false);
}

static enum dtp_status make(struct dtp_lowering *l)
{
    struct dtp_lower_ipg *ipg = l->own = calloc(1, sizeof *ipg);
    if (!ipg)
        return dtp_fault(l->faults, DTP_ENVIRONMENT, NULL, 0, "no memory to lower the step");
    uint64_t layers = l->role.fills ? l->role.fills->fills : l->transformer->layers;
    ipg->elements = layers * l->block.trained_elements + l->root.trained_elements;
    uint64_t params = l->transformer->layers * l->block.all_bytes + l->root.all_bytes;
    ipg->partition = dtp_divide_up(ipg->elements, l->plan->shard_group);
    ipg->bucket = l->plan->deepspeed.reduce_bucket_size;
    ipg->bucket_buffer[0] = ipg->bucket_buffer[1] = ipg->oversized = ipg->grads = DTP_NO_BUFFER;
    struct dtp_module_state *all = whole(l);
    all->params = dtp_lower_buffer(l, "params", DTP_OWNER_PARAMS, DTP_STREAM_COMPUTE, params, true);
    all->moments = (struct dtp_lower_moments){DTP_NO_BUFFER, 0};
    if (l->plan->offload == DTP_OFFLOAD_NONE)
        dtp_lower_add_moments(l, &all->moments, ipg->partition);
    else
        dtp_lower_host_make(l, ipg->partition, dtp_lower_largest_tensor(l));
    for (uint64_t layer = 0; layer < l->transformer->layers; layer++)
        l->state[layer].params = all->params;
    if (l->data_ranks > 1)
        ipg->group = dtp_lower_data_group(l, l->data_ranks, 1);
    if (l->role.fills)
        describe_bucket(l, &l->role.fills->bucket);
    return DTP_OK;
}

static void release(struct dtp_lowering *l)
{
    free(l->own);
}

/* ---- reduction --------------------------------------------------------------------------------------------------- */

static void open_buckets(struct dtp_lowering *l)
{
    struct dtp_lower_ipg *ipg = ipg_of(l);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ALLOC, "reduction bucket");
    for (int i = 0; i < (l->plan->deepspeed.overlap_comm ? 2 : 1); i++)
        ipg->bucket_buffer[i] =
            dtp_draft_new(l, &draft, "reduction bucket", DTP_OWNER_REDUCE, l->bytes.reduce * ipg->bucket, 0);
    dtp_draft_end(l, &draft);
    ipg->filled = ipg->reduced = 0;
    ipg->current = 0;
}

/* Once a backward, before the first gradient. */
static void begin_backward(struct dtp_lowering *l)
{
    if (l->reduces)
        open_buckets(l);
}

/* Compute waits for reductions on their own stream. */
static void await(struct dtp_lowering *l)
{
    struct dtp_draft draft;
    if (!l->plan->deepspeed.overlap_comm || l->last_op[DTP_STREAM_REDUCE].index == DTP_NO_INDEX)
        return;
    dtp_draft_begin(l, &draft, DTP_OP_MARK, "bucket reduced");
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_REDUCE]);
    dtp_draft_end(l, &draft);
}

static dtp_buffer_id flatten(struct dtp_lowering *l, uint64_t elements)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_COPY_IN, "flattened bucket");
    draft.op.stream = reduction_stream(l);
    dtp_buffer_id flat =
        dtp_draft_new(l, &draft, "flattened bucket", DTP_OWNER_REDUCE, l->bytes.reduce * elements, DTP_WRITE);
    if (ipg_of(l)->oversized.index != DTP_NO_INDEX)
        dtp_draft_use(&draft, ipg_of(l)->oversized,
                      l->plan->strategy == DTP_ZERO1 ? DTP_READ : DTP_READ | DTP_FREE | DTP_DEFER);
    else
        dtp_draft_use(&draft, ipg_of(l)->bucket_buffer[ipg_of(l)->current], DTP_READ);
    ipg_of(l)->oversized = DTP_NO_BUFFER;
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_COMPUTE]);
    dtp_draft_memory(l, &draft, 2 * (double)(l->bytes.reduce * elements), 1);
    dtp_draft_end(l, &draft);
    return flat;
}

/* Own slices go where they rest; stage 1's gradients stand beside and take them. */
static void keep_slices(struct dtp_lowering *l, dtp_buffer_id flat, uint64_t elements)
{
    struct dtp_lower_ipg *ipg = ipg_of(l);
    uint64_t ranks = l->plan->shard_group;
    struct dtp_draft draft;
    if (l->plan->offload != DTP_OFFLOAD_NONE) {
        dtp_lower_host_gradients(l, reduction_stream(l), flat,
                                 dtp_divide_up(ipg->reduced + elements, ranks) - dtp_divide_up(ipg->reduced, ranks));
        dtp_draft_begin(l, &draft, DTP_OP_FREE, "flattened bucket");
        draft.op.stream = reduction_stream(l);
        dtp_draft_use(&draft, flat, DTP_FREE);
        dtp_draft_end(l, &draft);
        return;
    }
    dtp_draft_begin(l, &draft, DTP_OP_COPY_OUT, "slices of the partition");
    draft.op.stream = reduction_stream(l);
    if (ipg->grads.index != DTP_NO_INDEX)
        dtp_draft_use(&draft, ipg->grads, DTP_UPDATE);
    else if (l->plan->strategy == DTP_ZERO2)
        ipg->grads = dtp_draft_new(l, &draft, "gradients of the partition", DTP_OWNER_GRADS,
                                   l->bytes.grads * ipg->partition, DTP_WRITE);
    dtp_draft_use(&draft, flat, DTP_READ | DTP_FREE);
    dtp_draft_memory(l, &draft, (double)((l->bytes.grads + l->bytes.reduce) * elements) / (double)ranks, 1);
    dtp_draft_end(l, &draft);
}

static void reduce_bucket(struct dtp_lowering *l, uint64_t elements)
{
    struct dtp_lower_ipg *ipg = ipg_of(l);
    uint64_t gpus = l->data_ranks, before = ipg->reduced * l->bytes.reduce, bytes = elements * l->bytes.reduce;
    await(l);
    dtp_buffer_id flat = flatten(l, elements);
    if (gpus > 1) {
        struct dtp_draft draft;
        dtp_draft_begin(l, &draft, DTP_OP_ALL_REDUCE, "bucket");
        draft.op.stream = reduction_stream(l);
        draft.op.group = ipg->group;
        dtp_draft_use(&draft, flat, DTP_UPDATE);
        draft.op.demand.sent_bytes = 2 * (double)(dtp_lower_ring(before + bytes, gpus) - dtp_lower_ring(before, gpus));
        draft.op.demand.bytes = (double)bytes;
        dtp_draft_end(l, &draft);
    }
    keep_slices(l, flat, elements);
    ipg->reduced += elements;
    ipg->filled = 0;
    ipg->current ^= l->plan->deepspeed.overlap_comm ? 1u : 0u;
}

/* A gradient into the bucket, which is reduced before if that would overflow it. Stage 1 keeps the tensor, of which
 * earlier micro-steps' sums are one. */
static void into_bucket(struct dtp_lowering *l, int part)
{
    struct dtp_lower_ipg *ipg = ipg_of(l);
    struct dtp_module_state *state = dtp_lower_state(l);
    const struct dtp_lower_module *module = l->layer == DTP_NO_LAYER ? &l->root : &l->block;
    bool keeps = l->plan->strategy == DTP_ZERO1;
    dtp_buffer_id *source = keeps ? &state->kept[part] : &state->gradient[part];
    uint64_t elements = module->elements[part];
    if (l->role.fills)
        dtp_live_runs_fill(l->role.fills, elements);
    else if (ipg->filled && ipg->filled + elements > ipg->bucket)
        reduce_bucket(l, ipg->filled);
    ipg->filled += elements;
    if (elements > ipg->bucket) {
        ipg->oversized = *source;
    } else {
        struct dtp_draft draft;
        dtp_draft_begin(l, &draft, DTP_OP_COPY_IN, module->gradient_name[part]);
        dtp_draft_use(&draft, ipg->bucket_buffer[ipg->current], DTP_WRITE);
        dtp_draft_use(&draft, *source, keeps ? DTP_READ : DTP_READ | DTP_FREE);
        dtp_draft_memory(l, &draft, (double)((l->bytes.grads + l->bytes.reduce) * elements), 1);
        dtp_draft_end(l, &draft);
    }
    if (!keeps)
        *source = DTP_NO_BUFFER;
}

/* Stage 2 keeps its partition alone. */
static void gradient_made(struct dtp_lowering *l, int part)
{
    if (l->plan->strategy != DTP_ZERO2)
        dtp_lower_keep_gradient(l, part);
    if (l->plan->strategy == DTP_ZERO2 || l->reduces)
        into_bucket(l, part);
}

static bool gradient_rests(const struct dtp_lowering *l)
{
    return l->data_ranks == 1;
}

/* What is left, then the device is synchronised and the bucket goes. */
static void close_buckets(struct dtp_lowering *l)
{
    struct dtp_lower_ipg *ipg = ipg_of(l);
    if (l->role.fills)
        dtp_live_runs_fill(l->role.fills, DTP_LIVE_FLUSH);
    else if (ipg->filled)
        reduce_bucket(l, ipg->filled);
    struct dtp_draft draft;
    await(l);
    dtp_draft_begin(l, &draft, DTP_OP_FREE, "reduction bucket");
    for (int i = 0; i < 2; i++) {
        dtp_draft_use(&draft, ipg->bucket_buffer[i], DTP_FREE);
        ipg->bucket_buffer[i] = DTP_NO_BUFFER;
    }
    dtp_draft_end(l, &draft);
}

static void end_backward(struct dtp_lowering *l)
{
    if (l->reduces)
        close_buckets(l);
}

/* ---- behind a pipeline ------------------------------------------------------------------------------------------- */

static void keep_gradient(struct dtp_lowering *l, int part)
{
    dtp_lower_keep_gradient(l, part);
}

static void fill_from(struct dtp_lowering *l, uint64_t index, int first, int end)
{
    l->layer = index == l->transformer->layers ? DTP_NO_LAYER : (uint16_t)index;
    for (int part = first; part < end; part++)
        if (l->state[index].kept[part].index != DTP_NO_INDEX)
            into_bucket(l, part);
    l->layer = DTP_NO_LAYER;
}

/* The pipeline engine makes its buckets when all passes are through, and fills them with the stage's parameters from
 * the first on (reduce_gradients). */
static void reduce_behind(struct dtp_lowering *l)
{
    uint64_t layers = l->transformer->layers;
    open_buckets(l);
    fill_from(l, layers, DTP_ROOT_EMBEDDING, DTP_ROOT_VECTORS);
    for (uint64_t layer = 0; layer < layers; layer++)
        fill_from(l, layer, 0, l->block.parts);
    fill_from(l, layers, DTP_ROOT_VECTORS, l->root.parts);
    close_buckets(l);
}

/* Of a head that is tied to the embedding, wherever the two stages hold it. */
static dtp_buffer_id embedding_gradient(const struct dtp_lowering *l, uint64_t *offset_bytes)
{
    *offset_bytes = 0;
    return whole(l)->kept[DTP_ROOT_EMBEDDING];
}

/* ---- the step ---------------------------------------------------------------------------------------------------- */

static void free_gradients(struct dtp_lowering *l)
{
    struct dtp_draft partition;
    dtp_draft_begin(l, &partition, DTP_OP_FREE, "zero_grad");
    dtp_draft_use(&partition, ipg_of(l)->grads, DTP_FREE);
    ipg_of(l)->grads = DTP_NO_BUFFER;
    if (partition.operand_count)
        dtp_draft_end(l, &partition);
    for (uint64_t i = 0; i <= l->transformer->layers; i++) {
        struct dtp_draft draft;
        dtp_draft_begin(l, &draft, DTP_OP_FREE, "zero_grad");
        for (int part = 0; part < DTP_MAX_PARTS; part++) {
            dtp_draft_use(&draft, l->state[i].kept[part], DTP_FREE);
            l->state[i].kept[part] = DTP_NO_BUFFER;
        }
        if (draft.operand_count)
            dtp_draft_end(l, &draft);
    }
}

static void device_update(struct dtp_lowering *l)
{
    struct dtp_lower_ipg *ipg = ipg_of(l);
    struct dtp_module_state *all = whole(l);
    bool casts = l->bytes.grads < 4;
    struct dtp_draft draft;
    dtp_buffer_id wide = ipg->grads;
    if (casts) {
        dtp_draft_begin(l, &draft, DTP_OP_CAST, "gradients of the partition");
        wide = dtp_draft_new(l, &draft, "gradients in fp32", DTP_OWNER_WORKSPACE, 4 * ipg->partition, DTP_WRITE);
        dtp_draft_use(&draft, ipg->grads, DTP_READ);
        dtp_draft_memory(l, &draft, (double)((l->bytes.grads + 4) * ipg->partition), 1);
        dtp_draft_end(l, &draft);
    }
    dtp_lower_update(l, all->params, all->moments, &wide, 1, ipg->partition);
    if (casts) {
        dtp_draft_begin(l, &draft, DTP_OP_FREE, "gradients in fp32");
        dtp_draft_use(&draft, wide, DTP_FREE);
        dtp_draft_end(l, &draft);
    }
}

static void step(struct dtp_lowering *l)
{
    struct dtp_lower_ipg *ipg = ipg_of(l);
    struct dtp_module_state *all = whole(l);
    uint64_t gpus = l->data_ranks;
    struct dtp_draft draft;
    if (l->plan->offload == DTP_OFFLOAD_NONE)
        device_update(l);
    else
        dtp_lower_host_update(l, all->params);
    free_gradients(l);
    if (gpus == 1)
        return;
    dtp_draft_begin(l, &draft, DTP_OP_ALL_GATHER, "updated weights");
    draft.op.group = ipg->group;
    dtp_draft_use(&draft, all->params, DTP_UPDATE);
    draft.op.demand.sent_bytes = (double)dtp_lower_ring(l->bytes.params * ipg->elements, gpus);
    draft.op.demand.bytes = (double)(l->bytes.params * ipg->elements);
    dtp_draft_end(l, &draft);
}

/* On the host the partition is another matter. */
static bool fills(const struct dtp_plan *plan)
{
    return plan->offload == DTP_OFFLOAD_NONE;
}

const struct dtp_lower_hooks dtp_lower_zero12 = {
    .fills = fills,
    .make = make,
    .release = release,
    .begin_backward = begin_backward,
    .end_backward = end_backward,
    .gradient_made = gradient_made,
    .gradient_rests = gradient_rests,
    .step = step,
};

const struct dtp_lower_hooks dtp_lower_zero1_behind = {
    .make = make,
    .release = release,
    .gradient_made = keep_gradient,
    .gradient_rests = gradient_rests,
    .embedding_gradient = embedding_gradient,
    .passes_done = reduce_behind,
    .step = step,
};
