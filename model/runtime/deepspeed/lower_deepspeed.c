/* DeepSpeed's ZeRO stages 1 and 2 (runtime/zero/stage_1_and_2.py): contiguous parameters, a bucket that gradients are
 * copied into, and an all-reduce before a gradient that no longer fits, of a flattened copy where slices of several
 * ranks are in the bucket (allreduce_bucket; a single tensor is a view of itself). Sums go back into the bucket, and
 * when the copy is gone those of the rank's own parameters to where they rest: all that have a slice in its part, each
 * whole (copy_grads_in_partition); under offload, and where experts are a group of their own, the bare part is counted.
 * One that is larger than reduce_bucket_size by itself stays where it is until then.
 *
 * A bucket, two with overlap_comm, is allocated by the first gradient and stands until gradients have been reduced.
 * Without overlap_comm reductions run on the compute stream; with it on their own, and compute waits for the previous
 * one at every new bucket. Stage 1 keeps every gradient up to the last micro-step and reduces in that one; without
 * overlap_comm it has no hook that does, and reduces behind backward from the first parameter on (reduce_gradients).
 * Stage 2 reduces in each micro-step as gradients are made; from the second on what rests is made anew, added up and
 * let go. The rank that is planned has its part in the first bucket. The step flattens the partition, turns it into
 * fp32, updates, and gathers all parameters in one blocking operation.
 *
 * Experts are a group of parameters of their own (moe/utils.py, split_params_into_different_moe_groups_for_optimizer),
 * flattened, cut, updated and gathered apart from the rest, among the ranks that have the same ones. Their gradients go
 * into the same buckets, of which then two all-reduces are made: the group whose gradient came first, and the other
 * (average_tensor, "buckets" by process group).
 *
 * The pipeline engine has stage 1 alone ("ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism",
 * runtime/pipe/engine.py) and reduces when all passes are through. */
#include "runtime/deepspeed/lower_infinity.h"

#include "base/bytes.h"
#include "plan/rules.h"
#include "plan/runtime_sizes.h"
#include "runtime/deepspeed/deepspeed.h"

#include <stdlib.h>

/* Parameters that the same ranks have: all but experts, and these. */
enum { OF_ALL, OF_EXPERTS, FAMILIES };
struct family {
    uint64_t elements, partition; /* that are trained: of the model; of this rank */
    uint64_t resting;             /* of the parameters with a slice in the partition */
    uint64_t filled, reduced;     /* elements in the current bucket, in those before it */
    uint64_t ranks, shards;       /* that have them; that cut them */
    uint32_t group;
    dtp_buffer_id grads, again; /* what rests; of a later micro-step, before it is added to that */
};

struct dtp_lower_ipg {
    struct dtp_lower_host host; /* first: lower_infinity.h */
    struct family of[FAMILIES];
    uint64_t bucket; /* elements of one */
    dtp_buffer_id bucket_buffer[2];
    dtp_buffer_id oversized; /* the gradient that is the current bucket by itself */
    bool oversized_goes;     /* with its reduction */
    uint32_t current;
    int first; /* family of the current bucket's first gradient */
};

static struct dtp_lower_ipg *ipg_of(const struct dtp_lowering *l)
{
    return l->own;
}

static struct dtp_module_state *whole(const struct dtp_lowering *l)
{
    return &l->state[l->transformer->layers];
}

/* Whose the `part`-th weight of the module at hand is. */
static int family_of(const struct dtp_lowering *l, int part)
{
    const struct dtp_layer_kind *kind = &l->tensors.kind;
    bool matrix = l->layer != DTP_NO_LAYER && part < kind->matrices;
    return matrix && kind->matrix[part].expert ? OF_EXPERTS : OF_ALL;
}

/* No hook reduces. */
static bool reduces_behind(const struct dtp_lowering *l)
{
    return dtp_plan_fills_buckets_behind(l->plan);
}

/* Elements of parameters of which a slice is in the rank's partition, each whole, from that end of the model at which
 * gradients are reduced first. */
static uint64_t resting_of(const struct dtp_lowering *l, uint64_t partition)
{
    uint64_t layers = l->role.fills ? l->role.fills->fills : l->transformer->layers, sum = 0;
    bool first = reduces_behind(l);
    int parts = first ? (int)DTP_ROOT_VECTORS : l->root.parts;
    for (int part = first ? 0 : (int)DTP_ROOT_VECTORS; part < parts; part++)
        sum += l->root.trained[part] ? l->root.elements[part] : 0;
    for (uint64_t i = 0; i < layers && sum < partition; i++) {
        const struct dtp_lower_module *block =
            l->role.fills ? &l->block : dtp_lower_module_at(l, first ? i : layers - 1 - i);
        for (int k = 0; k < block->parts && sum < partition; k++) {
            int part = first ? k : block->parts - 1 - k;
            sum += block->trained[part] ? block->elements[part] : 0;
        }
    }
    return sum < partition ? partition : sum;
}

static void count_families(struct dtp_lowering *l, struct dtp_lower_ipg *ipg)
{
    const struct dtp_lower_kind *experts = &l->kind[DTP_LAYER_EXPERTS];
    uint64_t all = 0, of_experts = 0;
    for (uint64_t i = 0; i <= l->transformer->layers; i++)
        all += dtp_lower_module_at(l, i)->trained_elements;
    if (l->role.fills) /* of layers that all are of one kind, more than are lowered */
        all = l->role.fills->fills * l->block.trained_elements + l->root.trained_elements;
    for (int i = 0; l->transformer->experts && i < experts->tensors.kind.matrices; i++)
        of_experts += experts->tensors.kind.matrix[i].expert ? experts->block.elements[i] : 0;
    if (l->transformer->experts)
        of_experts *= dtp_transformer_expert_layers(l->transformer, l->transformer->layers);
    ipg->of[OF_ALL] = (struct family){.elements = all - of_experts,
                                      .ranks = l->data_ranks,
                                      .shards = l->plan->shard_group,
                                      .grads = DTP_NO_BUFFER,
                                      .again = DTP_NO_BUFFER};
    ipg->of[OF_EXPERTS] = (struct family){.elements = of_experts,
                                          .ranks = dtp_plan_expert_replicas(l->plan, l->cluster),
                                          .shards = dtp_plan_expert_shard_ranks(l->cluster, l->plan),
                                          .grads = DTP_NO_BUFFER,
                                          .again = DTP_NO_BUFFER};
    for (int i = 0; i < FAMILIES; i++)
        ipg->of[i].resting = ipg->of[i].partition = dtp_divide_up(ipg->of[i].elements, ipg->of[i].shards);
    if (!l->transformer->experts && l->plan->offload == DTP_OFFLOAD_NONE)
        ipg->of[OF_ALL].resting = resting_of(l, ipg->of[OF_ALL].partition);
}

/* Of the rank, in all families. */
static uint64_t partition_of(const struct dtp_lower_ipg *ipg)
{
    return ipg->of[OF_ALL].partition + ipg->of[OF_EXPERTS].partition;
}

static enum dtp_stream reduction_stream(const struct dtp_lowering *l)
{
    return l->plan->deepspeed.overlap_comm ? DTP_STREAM_REDUCE : DTP_STREAM_COMPUTE;
}

/* What gradients rest in, which the first reduction makes and the step lets go. */
static void describe_bucket(struct dtp_lowering *l, struct dtp_live_bucket *out)
{
    struct dtp_lower_ipg *ipg = ipg_of(l);
    uint64_t kept = l->bytes.grads * ipg->of[OF_ALL].resting;
    *out = (struct dtp_live_bucket){.elements = ipg->bucket,
                                    .element_bytes = l->bytes.reduce,
                                    .all_elements = ipg->of[OF_ALL].elements,
                                    .part_elements = ipg->of[OF_ALL].partition,
                                    .from_first = reduces_behind(l),
                                    .kept_bytes = (int64_t)kept,
                                    .pool = reduction_stream(l)};
    ipg->of[OF_ALL].grads = dtp_lower_buffer(l, "gradients of the partition", DTP_OWNER_GRADS, out->pool, kept, false);
}

static enum dtp_status make(struct dtp_lowering *l)
{
    struct dtp_lower_ipg *ipg = l->own = calloc(1, sizeof *ipg);
    if (!ipg)
        return dtp_fault(l->faults, DTP_ENVIRONMENT, NULL, 0, "no memory to lower the step");
    uint64_t params = 0;
    for (uint64_t i = 0; i <= l->transformer->layers; i++)
        params += dtp_lower_module_at(l, i)->all_bytes;
    count_families(l, ipg);
    ipg->bucket = l->plan->deepspeed.reduce_bucket_size;
    ipg->bucket_buffer[0] = ipg->bucket_buffer[1] = ipg->oversized = DTP_NO_BUFFER;
    struct dtp_module_state *all = whole(l);
    all->params = dtp_lower_buffer(l, "params", DTP_OWNER_PARAMS, DTP_STREAM_COMPUTE, params, true);
    all->moments = (struct dtp_lower_moments){DTP_NO_BUFFER, 0};
    if (l->plan->offload == DTP_OFFLOAD_NONE)
        dtp_lower_add_moments(l, &all->moments, partition_of(ipg));
    else
        dtp_lower_host_make(l, partition_of(ipg), dtp_lower_largest_tensor(l));
    for (uint64_t layer = 0; layer < l->transformer->layers; layer++)
        l->state[layer].params = all->params;
    struct family *experts = &ipg->of[OF_EXPERTS];
    if (l->data_ranks > 1)
        ipg->of[OF_ALL].group = experts->group = dtp_lower_data_group(l, l->data_ranks, 1);
    if (experts->elements && l->plan->ep > 1 && experts->ranks > 1)
        experts->group =
            dtp_program_add_group(l->program, (struct dtp_program_group){(uint32_t)experts->ranks, l->plan->ep});
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
    for (int i = 0; i < FAMILIES; i++)
        ipg->of[i].filled = ipg->of[i].reduced = 0;
    ipg->current = 0;
}

/* Before the first gradient. */
static void begin_backward(struct dtp_lowering *l)
{
    if (ipg_of(l)->bucket_buffer[0].index == DTP_NO_INDEX)
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

/* Where the current bucket's gradients lie: in it, or in the one that is too large for it. */
static dtp_buffer_id source_of(const struct dtp_lower_ipg *ipg)
{
    return ipg->oversized.index != DTP_NO_INDEX ? ipg->oversized : ipg->bucket_buffer[ipg->current];
}

/* What is in the bucket is all of one rank's part, and reduced where it lies. */
static bool of_one_rank(const struct dtp_lowering *l, const struct family *of)
{
    return dtp_live_bucket_in_one_part(of->elements, of->partition, of->reduced, of->filled, reduces_behind(l));
}

/* What reads the bucket where it lies waits for what filled it. */
static void await_copies(struct dtp_lowering *l)
{
    struct dtp_draft draft;
    if (reduction_stream(l) == DTP_STREAM_COMPUTE)
        return;
    dtp_draft_begin(l, &draft, DTP_OP_MARK, "bucket filled");
    draft.op.stream = reduction_stream(l);
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_COMPUTE]);
    dtp_draft_end(l, &draft);
}

static dtp_buffer_id flatten(struct dtp_lowering *l, uint64_t elements)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_COPY_IN, "flattened bucket");
    draft.op.stream = reduction_stream(l);
    dtp_buffer_id flat =
        dtp_draft_new(l, &draft, "flattened bucket", DTP_OWNER_REDUCE, l->bytes.reduce * elements, DTP_WRITE);
    dtp_draft_use(&draft, source_of(ipg_of(l)), DTP_READ);
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_COMPUTE]);
    dtp_draft_memory(l, &draft, 2 * (double)(l->bytes.reduce * elements), 1);
    dtp_draft_end(l, &draft);
    return flat;
}

/* The rank's own slices back into the bucket. */
static void unflatten(struct dtp_lowering *l, const struct family *of, dtp_buffer_id flat)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_COPY_OUT, "slices of the partition");
    draft.op.stream = reduction_stream(l);
    dtp_draft_use(&draft, source_of(ipg_of(l)), DTP_UPDATE);
    dtp_draft_use(&draft, flat, DTP_READ | DTP_FREE);
    dtp_draft_memory(l, &draft, 2 * (double)(l->bytes.reduce * of->filled) / (double)of->shards, 1);
    dtp_draft_end(l, &draft);
}

/* From the bucket to where they rest; in a later micro-step to what is added to that. */
static void keep_slices(struct dtp_lowering *l, struct family *of)
{
    uint64_t ranks = of->shards, elements = of->filled;
    if (l->plan->offload != DTP_OFFLOAD_NONE) {
        dtp_lower_host_gradients(l, reduction_stream(l), source_of(ipg_of(l)),
                                 dtp_divide_up(of->reduced + elements, ranks) - dtp_divide_up(of->reduced, ranks));
        return;
    }
    bool later = l->plan->strategy == DTP_ZERO2 && l->micro_step > 0;
    dtp_buffer_id *to = later ? &of->again : &of->grads;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_COPY_OUT, "gradients of the partition");
    draft.op.stream = reduction_stream(l);
    if (to->index != DTP_NO_INDEX)
        dtp_draft_use(&draft, *to, DTP_UPDATE);
    else
        *to = dtp_draft_new(l, &draft, "gradients of the partition", DTP_OWNER_GRADS, l->bytes.grads * of->resting,
                            DTP_WRITE);
    dtp_draft_use(&draft, source_of(ipg_of(l)), DTP_READ);
    dtp_draft_memory(l, &draft, (double)((l->bytes.grads + l->bytes.reduce) * elements) / (double)ranks, 1);
    dtp_draft_end(l, &draft);
}

static void reduce_family(struct dtp_lowering *l, struct family *of)
{
    uint64_t before = of->reduced * l->bytes.reduce, bytes = of->filled * l->bytes.reduce;
    bool lies = of_one_rank(l, of);
    if (lies)
        await_copies(l);
    dtp_buffer_id sum = lies ? source_of(ipg_of(l)) : flatten(l, of->filled);
    if (of->ranks > 1) {
        struct dtp_draft draft;
        dtp_draft_begin(l, &draft, DTP_OP_ALL_REDUCE, "bucket");
        draft.op.stream = reduction_stream(l);
        draft.op.group = of->group;
        dtp_draft_use(&draft, sum, DTP_UPDATE);
        draft.op.demand.sent_bytes =
            2 * (double)(dtp_lower_ring(before + bytes, of->ranks) - dtp_lower_ring(before, of->ranks));
        draft.op.demand.bytes = (double)bytes;
        dtp_draft_end(l, &draft);
    }
    if (!lies)
        unflatten(l, of, sum);
    keep_slices(l, of);
    of->reduced += of->filled;
    of->filled = 0;
}

static void free_oversized(struct dtp_lowering *l)
{
    struct dtp_lower_ipg *ipg = ipg_of(l);
    if (ipg->oversized.index != DTP_NO_INDEX && ipg->oversized_goes) {
        struct dtp_draft draft;
        dtp_draft_begin(l, &draft, DTP_OP_FREE, "reduced gradient");
        draft.op.stream = reduction_stream(l);
        dtp_draft_use(&draft, ipg->oversized, DTP_FREE | DTP_DEFER);
        dtp_draft_end(l, &draft);
    }
    ipg->oversized = DTP_NO_BUFFER;
}

static uint64_t filled(const struct dtp_lower_ipg *ipg)
{
    return ipg->of[OF_ALL].filled + ipg->of[OF_EXPERTS].filled;
}

static void reduce_bucket(struct dtp_lowering *l)
{
    struct dtp_lower_ipg *ipg = ipg_of(l);
    await(l);
    for (int i = 0; i < FAMILIES; i++) {
        struct family *of = &ipg->of[(ipg->first + i) % FAMILIES];
        if (of->filled)
            reduce_family(l, of);
    }
    free_oversized(l); /* one of either family alone */
    ipg->current ^= l->plan->deepspeed.overlap_comm ? 1u : 0u;
}

/* A gradient of so many elements of a tensor into the bucket, which is reduced before if that would overflow it. */
static void take_gradient(struct dtp_lowering *l, int part, dtp_buffer_id source, uint64_t elements, bool frees)
{
    struct dtp_lower_ipg *ipg = ipg_of(l);
    const struct dtp_lower_module *module = l->layer == DTP_NO_LAYER ? &l->root : &l->block;
    if (l->role.fills)
        dtp_live_runs_fill(l->role.fills, elements);
    else if (filled(ipg) && filled(ipg) + elements > ipg->bucket)
        reduce_bucket(l);
    ipg->first = filled(ipg) ? ipg->first : family_of(l, part);
    ipg->of[family_of(l, part)].filled += elements;
    if (elements > ipg->bucket) {
        ipg->oversized = source;
        ipg->oversized_goes = frees;
        return;
    }
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_COPY_IN, module->gradient_name[part]);
    dtp_draft_use(&draft, ipg->bucket_buffer[ipg->current], DTP_WRITE);
    dtp_draft_use(&draft, source, frees ? DTP_READ | DTP_FREE : DTP_READ);
    dtp_draft_memory(l, &draft, (double)((l->bytes.grads + l->bytes.reduce) * elements), 1);
    dtp_draft_end(l, &draft);
}

/* A gradient becomes a view of the bucket, and its own tensor goes; of one that is too large, when it is reduced (under
 * stage 1 that of others' parameters stays to the end of backward, which is not modelled). Experts that are modules
 * have a tensor each. */
static void into_bucket(struct dtp_lowering *l, int part)
{
    struct dtp_module_state *state = dtp_lower_state(l);
    const struct dtp_lower_module *module = l->layer == DTP_NO_LAYER ? &l->root : &l->block;
    bool kept = l->plan->strategy == DTP_ZERO1, apart = family_of(l, part) == OF_EXPERTS && l->matrix[part].apart;
    dtp_buffer_id *source = kept ? &state->kept[part] : &state->gradient[part];
    uint64_t tensors = apart ? l->matrix[part].groups : 1, elements = module->elements[part] / tensors;
    for (uint64_t i = 0; i < tensors; i++)
        take_gradient(l, part, *source, elements, i == tensors - 1);
    *source = DTP_NO_BUFFER;
}

/* Stage 2 keeps its partition alone. */
static void gradient_made(struct dtp_lowering *l, int part)
{
    if (l->plan->strategy != DTP_ZERO2)
        dtp_lower_keep_gradient(l, part);
    if (l->plan->strategy == DTP_ZERO2 || (l->reduces && !reduces_behind(l)))
        into_bucket(l, part);
}

static bool gradient_rests(const struct dtp_lowering *l)
{
    return l->data_ranks == 1;
}

/* What a later micro-step reduced, to what rests (independent_gradient_partition_epilogue). */
static void add_again(struct dtp_lowering *l, struct family *of)
{
    struct dtp_draft draft;
    if (of->again.index == DTP_NO_INDEX)
        return;
    dtp_draft_begin(l, &draft, DTP_OP_ACCUMULATE, "gradients of the partition");
    dtp_draft_use(&draft, of->grads, DTP_UPDATE);
    dtp_draft_use(&draft, of->again, DTP_READ | DTP_FREE | DTP_DEFER);
    dtp_draft_memory(l, &draft, 3 * (double)(l->bytes.grads * of->resting), 1);
    dtp_draft_end(l, &draft);
    of->again = DTP_NO_BUFFER;
}

/* What is left, then the device is synchronised and the bucket goes. */
static void close_buckets(struct dtp_lowering *l)
{
    struct dtp_lower_ipg *ipg = ipg_of(l);
    if (l->role.fills)
        dtp_live_runs_fill(l->role.fills, DTP_LIVE_FLUSH);
    else if (filled(ipg))
        reduce_bucket(l);
    struct dtp_draft draft;
    await(l);
    for (int i = 0; i < FAMILIES; i++) {
        add_again(l, &ipg->of[i]);
        ipg->of[i].reduced = 0;
    }
    dtp_draft_begin(l, &draft, DTP_OP_FREE, "reduction bucket");
    for (int i = 0; i < 2; i++) {
        dtp_draft_use(&draft, ipg->bucket_buffer[i], DTP_FREE);
        ipg->bucket_buffer[i] = DTP_NO_BUFFER;
    }
    dtp_draft_end(l, &draft);
}

/* ---- behind backward --------------------------------------------------------------------------------------------- */

static void keep_gradient(struct dtp_lowering *l, int part)
{
    dtp_lower_keep_gradient(l, part);
}

static void fill_from(struct dtp_lowering *l, uint64_t index, int first, int end)
{
    dtp_lower_stand_at(l, index);
    for (int part = first; part < end; part++)
        if (l->state[index].kept[part].index != DTP_NO_INDEX)
            into_bucket(l, part);
    l->layer = DTP_NO_LAYER;
}

/* With the rank's parameters from the first on. */
static void fill_buckets(struct dtp_lowering *l)
{
    uint64_t layers = l->transformer->layers;
    fill_from(l, layers, DTP_ROOT_EMBEDDING, DTP_ROOT_VECTORS);
    for (uint64_t layer = 0; layer < layers; layer++)
        fill_from(l, layer, 0, dtp_lower_module_at(l, layer)->parts);
    fill_from(l, layers, DTP_ROOT_VECTORS, l->root.parts);
}

static void end_backward(struct dtp_lowering *l)
{
    if (!l->reduces)
        return;
    if (reduces_behind(l))
        fill_buckets(l);
    close_buckets(l);
}

/* The pipeline engine makes its buckets when all passes are through. */
static void reduce_behind(struct dtp_lowering *l)
{
    open_buckets(l);
    fill_buckets(l);
    close_buckets(l);
}

/* Of a head that is tied to the embedding, wherever the two stages hold it. */
static dtp_buffer_id embedding_gradient(const struct dtp_lowering *l, uint64_t *offset_bytes)
{
    *offset_bytes = 0;
    return whole(l)->kept[DTP_ROOT_EMBEDDING];
}

/* ---- the step ---------------------------------------------------------------------------------------------------- */

/* Group after group: its gradients are flattened and cast to fp32, go, and so has that when the next one's are made. */
static void device_update(struct dtp_lowering *l, struct family *of)
{
    struct dtp_module_state *all = whole(l);
    uint64_t narrow = l->bytes.grads * of->partition;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_COPY_IN, "flattened gradients");
    dtp_buffer_id flat = dtp_draft_new(l, &draft, "flattened gradients", DTP_OWNER_WORKSPACE, narrow, DTP_WRITE);
    dtp_draft_use(&draft, of->grads, DTP_READ);
    dtp_draft_memory(l, &draft, 2 * (double)narrow, 1);
    dtp_draft_end(l, &draft);
    dtp_buffer_id wide = flat;
    if (l->bytes.grads < 4) {
        dtp_draft_begin(l, &draft, DTP_OP_CAST, "gradients of the partition");
        wide = dtp_draft_new(l, &draft, "gradients in fp32", DTP_OWNER_WORKSPACE, 4 * of->partition, DTP_WRITE);
        dtp_draft_use(&draft, flat, DTP_READ | DTP_FREE);
        dtp_draft_memory(l, &draft, (double)((l->bytes.grads + 4) * of->partition), 1);
        dtp_draft_end(l, &draft);
    }
    dtp_draft_begin(l, &draft, DTP_OP_FREE, "gradients of the partition");
    dtp_draft_use(&draft, of->grads, DTP_FREE);
    dtp_draft_end(l, &draft);
    of->grads = DTP_NO_BUFFER;
    dtp_lower_update(l, all->params, all->moments, &wide, 1, of->partition);
    dtp_draft_begin(l, &draft, DTP_OP_FREE, "gradients in fp32");
    dtp_draft_use(&draft, wide, DTP_FREE);
    dtp_draft_end(l, &draft);
}

static void gather_weights(struct dtp_lowering *l, const struct family *of)
{
    struct dtp_draft draft;
    if (of->ranks == 1)
        return;
    dtp_draft_begin(l, &draft, DTP_OP_ALL_GATHER, "updated weights");
    draft.op.group = of->group;
    dtp_draft_use(&draft, whole(l)->params, DTP_UPDATE);
    draft.op.demand.sent_bytes = (double)dtp_lower_ring(l->bytes.params * of->elements, of->ranks);
    draft.op.demand.bytes = (double)(l->bytes.params * of->elements);
    dtp_draft_end(l, &draft);
}

static void step(struct dtp_lowering *l)
{
    struct dtp_lower_ipg *ipg = ipg_of(l);
    if (l->plan->offload != DTP_OFFLOAD_NONE)
        dtp_lower_host_update(l, whole(l)->params);
    for (int i = 0; i < FAMILIES && l->plan->offload == DTP_OFFLOAD_NONE; i++)
        if (ipg->of[i].elements)
            device_update(l, &ipg->of[i]);
    for (int i = 0; i < FAMILIES; i++)
        if (ipg->of[i].elements)
            gather_weights(l, &ipg->of[i]);
}

/* On the host the partition is another matter, and experts fill a partition of their own. */
static bool fills(const struct dtp_transformer *transformer, const struct dtp_plan *plan)
{
    return plan->offload == DTP_OFFLOAD_NONE && !transformer->experts;
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
