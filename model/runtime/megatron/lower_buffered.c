/* Megatron: matmuls write gradients into one buffer of the reduce dtype and add to them there.
 *
 * Parameters and gradients are contiguous (core/distributed). With overlap_grad_reduce off, as by default, bucket after
 * bucket is all-reduced when the last micro-step's backward is through, or reduce-scattered in place for the
 * distributed optimizer, whose updated weights are gathered again before the next forward.
 *
 * With it on, and overlap_param_gather with it, a bucket is reduced as soon as the last micro-step of its chunk has
 * made all its gradients. Weights are gathered beside the forward: a step begins with the gathers of what the step
 * before updated, and a layer waits for its own. Buffers are laid in the order in which backward makes gradients, so
 * that what is finished is always a beginning of a chunk's part. Only the first chunk of the first stage has more than
 * one bucket (distributed_data_parallel.py: "Turn off bucketing if we are on a pipeline stage that is not the first",
 * and disable_bucketing of later chunks).
 *
 * With zero2 a rank keeps its shard of the gradients, and those of a chunk whole from its first backward of the step to
 * its last, which is when they are reduce-scattered: so the trainer of Llama 3 "shards optimizer states and gradients,
 * but for model shards we do not reshard after forward" (arXiv:2407.21783, section 3.3.2). Weights are gathered as with
 * overlap. */
#include "lower/lower_fp8.h"
#include "lower/lowering.h"

#include "base/bytes.h"
#include "runtime/megatron/lower_frozen.h"
#include "runtime/megatron/lower_stash.h"
#include "runtime/megatron/megatron.h"

#include <stdlib.h>

#define MEGATRON_BUCKET 40000000u /* elements, or 1e6 per data parallel rank */

/* Elements [first, end) of the rank's, which are reduced and gathered together. */
struct bucket {
    uint64_t first, end;
    uint32_t chunk;
    dtp_op_id gathered; /* DTP_NO_OP: nothing is to be awaited */
    bool reduced;
    dtp_buffer_id gradients; /* of zero2, while they are whole */
};

/* What more than one data parallel rank have. Experts that ranks divide lie behind the rest, and are reduced among
 * those that have the same ones (distributed_data_parallel.py: expert_parallel_buffers over the expert data parallel
 * group).
 */
struct buffered {
    uint32_t group, expert_group; /* DTP_NO_INDEX: no other rank has these experts */
    uint32_t bucket_count;        /* 0: without overlap */
    struct bucket *bucket;        /* of the lowering's arena */
    dtp_buffer_id shard;          /* of zero2: of gradients */
};

static bool keeps_shards(const struct dtp_lowering *l)
{
    return l->plan->strategy == DTP_ZERO2 && l->data_ranks > 1;
}

static struct buffered *own(const struct dtp_lowering *l)
{
    return l->own;
}

static uint64_t model_elements(const struct dtp_lowering *l)
{
    uint64_t elements = 0;
    if (!l->transformer->experts)
        return l->transformer->layers * l->kind[DTP_LAYER_DENSE].block.trained_elements + l->root.trained_elements;
    for (uint64_t module = 0; module <= l->transformer->layers; module++)
        elements += dtp_lower_module_at(l, module)->trained_elements;
    return elements;
}

static uint64_t expert_layers(const struct dtp_lowering *l)
{
    uint64_t layers = 0;
    for (uint64_t layer = 0; l->transformer->experts && layer < l->transformer->layers; layer++)
        layers += dtp_lower_mlp(l, layer) == DTP_LAYER_EXPERTS;
    return layers;
}

/* Of these, experts that ranks divide: the last ones. */
static uint64_t expert_elements(const struct dtp_lowering *l)
{
    const struct dtp_lower_kind *kind = &l->kind[DTP_LAYER_EXPERTS];
    uint64_t elements = 0;
    for (int part = 0; l->plan->ep > 1 && part < kind->tensors.kind.matrices; part++)
        elements += kind->tensors.kind.matrix[part].expert ? kind->block.elements[part] : 0;
    if (l->plan->ep > 1)
        elements += kind->tensors.kind.own_experts * dtp_layer_expert_bias_elements(&kind->tensors.kind);
    return expert_layers(l) * elements;
}

static uint64_t dense_elements(const struct dtp_lowering *l)
{
    return model_elements(l) - expert_elements(l);
}

/* What the rank updates of all. */
static uint64_t own_elements(const struct dtp_lowering *l)
{
    return dtp_divide_up(dense_elements(l), l->plan->shard_group) +
           dtp_divide_up(expert_elements(l), dtp_plan_expert_shard_ranks(l->cluster, l->plan));
}

/* Elements of the rank's buffers that come with one gather: experts that ranks divide, or the rest; `narrow` of them
 * are casts alone (fp8_param_gather). */
struct part {
    uint64_t elements, narrow;
};

static struct part part_of(const struct dtp_lowering *l, bool experts)
{
    bool casts = l->plan->megatron.fp8_param_gather;
    uint64_t divided = expert_elements(l), narrow = casts ? dtp_lower_narrow_elements(l) : 0;
    return experts ? (struct part){divided, casts ? divided : 0}
                   : (struct part){dense_elements(l), casts ? narrow - divided : 0};
}

/* Where an element of a part is, of which weights in 16 bits and casts are taken to be evenly spread. */
static uint64_t place(uint64_t bytes, uint64_t element, uint64_t elements)
{
    return elements ? (uint64_t)((double)bytes * ((double)element / (double)elements)) : 0;
}

static uint64_t kept_bytes(const struct dtp_lowering *l, const struct part *part)
{
    return l->bytes.params * (part->elements - part->narrow) +
           dtp_fp8_standing_bytes(l->plan, &l->cluster->gpu, part->narrow);
}

static uint64_t params_bytes(const struct dtp_lowering *l)
{
    const struct part dense = part_of(l, false), experts = part_of(l, true);
    return kept_bytes(l, &dense) + kept_bytes(l, &experts);
}

static uint64_t params_place(const struct dtp_lowering *l, uint64_t element)
{
    if (!l->plan->megatron.fp8_param_gather)
        return element * l->bytes.params;
    const struct part dense = part_of(l, false), experts = part_of(l, true);
    return element <= dense.elements
               ? place(kept_bytes(l, &dense), element, dense.elements)
               : kept_bytes(l, &dense) + place(kept_bytes(l, &experts), element - dense.elements, experts.elements);
}

/* On the wire, in front of an element of a part. */
static uint64_t wire_place(const struct dtp_lowering *l, bool experts, uint64_t element)
{
    uint64_t saved = dtp_fp8_gather_saves(l->plan);
    if (!saved)
        return element * l->bytes.params;
    const struct part part = part_of(l, experts);
    return place(l->bytes.params * part.elements - saved * part.narrow, element, part.elements);
}

static uint64_t bucket_elements(const struct dtp_lowering *l)
{
    uint64_t per_rank = UINT64_C(1000000) * l->data_ranks;
    return per_rank > MEGATRON_BUCKET ? per_rank : MEGATRON_BUCKET;
}

static struct dtp_module_state *whole(const struct dtp_lowering *l)
{
    return &l->state[l->transformer->layers];
}

/* Of the root, which has no adapters, the place that names the buffer of all. */
#define ADAPTERS (DTP_MAX_PARTS - 1)
static dtp_buffer_id trained_params(const struct dtp_lowering *l)
{
    return l->adapts ? whole(l)->whole[ADAPTERS] : whole(l)->params;
}

/* Autograd wants a gradient of each weight though matmuls have added theirs to the buffer: Transformer Engine hands out
 * one tensor of each shape, with nothing in it, for good (pytorch/module/base.py, get_dummy_wgrad). */
static bool had_before(const struct dtp_layer_matrix *const *before, int count, const struct dtp_layer_matrix *matrix)
{
    for (int i = 0; i < count; i++)
        if (before[i]->out == matrix->out && before[i]->in == matrix->in)
            return true;
    return false;
}

/* Whether the rank has the head, which its last chunk may end with, or of schedules with two directions any. */
static bool ends(const struct dtp_lowering *l)
{
    bool head = false;
    for (uint32_t i = 0; i < l->role.chunk_count; i++)
        head = head || l->role.chunks[i].head;
    return head;
}

static void make_dummy_gradients(struct dtp_lowering *l)
{
    if (l->adapts) /* frozen ones have none, and adapters are Megatron's own linears */
        return;
    const struct dtp_layer_matrix *before[DTP_LAYER_MLPS * DTP_LAYER_MATRICES];
    uint64_t with = expert_layers(l), layers[DTP_LAYER_MLPS] = {l->transformer->layers - with, with};
    int count = 0;
    for (int mlp = 0; mlp < DTP_LAYER_MLPS; mlp++) {
        const struct dtp_layer_kind *kind = &l->kind[mlp].tensors.kind;
        for (int i = 0; layers[mlp] && i < kind->matrices; i++) {
            const struct dtp_layer_matrix *matrix = &kind->matrix[i];
            if (had_before(before, count, matrix))
                continue;
            before[count++] = matrix;
            dtp_lower_buffer(l, "gradient of a weight", DTP_OWNER_WORKSPACE, DTP_STREAM_COMPUTE,
                             dtp_bytes_product(l->compute, matrix->out * matrix->in), true);
        }
    }
    const struct dtp_layer_matrix projection = dtp_lower_ahead_projection(l);
    dtp_lower_buffer(l, "gradient of a weight", DTP_OWNER_WORKSPACE, DTP_STREAM_COMPUTE,
                     l->transformer->ahead_layers ? l->compute * projection.out * projection.in : 0, true);
    /* of the head, a linear of Megatron-Core's own, likewise (tensor_parallel/layers.py) */
    dtp_lower_buffer(l, "gradient of the head", DTP_OWNER_WORKSPACE, DTP_STREAM_COMPUTE,
                     ends(l) ? dtp_bytes_product(l->compute * l->transformer->vocab, l->transformer->hidden) : 0, true);
}

static enum dtp_status make(struct dtp_lowering *l)
{
    uint64_t total = model_elements(l), ranks = l->plan->shard_group;
    struct dtp_module_state *all = whole(l);
    all->params = dtp_lower_buffer(l, l->adapts ? "frozen params" : "params", DTP_OWNER_PARAMS, DTP_STREAM_COMPUTE,
                                   l->adapts ? dtp_megatron_frozen_bytes(l) : params_bytes(l), true);
    all->gradient_buffer =
        dtp_lower_buffer(l, "gradient buffer", DTP_OWNER_GRADS, DTP_STREAM_COMPUTE,
                         l->bytes.grads * (keeps_shards(l) ? dtp_divide_up(total, ranks) : total), true);
    all->moments = (struct dtp_lower_moments){DTP_NO_BUFFER, 0};
    dtp_lower_add_moments(l, &all->moments, own_elements(l));
    make_dummy_gradients(l);
    for (uint64_t layer = 0; layer < l->transformer->layers; layer++) {
        l->state[layer].params = all->params;
        l->state[layer].gradient_buffer = all->gradient_buffer;
    }
    if (l->adapts)
        all->whole[ADAPTERS] = dtp_megatron_make_adapters(l);
    if (l->data_ranks == 1)
        return DTP_OK;
    struct buffered *made = l->own = calloc(1, sizeof *made);
    if (!made)
        return dtp_fault(l->faults, DTP_ENVIRONMENT, NULL, 0, "no memory to lower the step");
    made->group = dtp_lower_data_group(l, l->data_ranks, 1);
    uint32_t same = dtp_plan_expert_replicas(l->plan, l->cluster);
    made->expert_group = DTP_NO_INDEX;
    if (l->plan->ep > 1 && same > 1)
        made->expert_group = dtp_program_add_group(
            l->program, (struct dtp_program_group){same, dtp_plan_group(l->plan, l->cluster, DTP_AXES(EDP)).stride});
    made->shard = all->gradient_buffer;
    return DTP_OK;
}

/* ---- collectives ------------------------------------------------------------------------------------------------- */

/* Uses bytes [first, end) of a buffer: with overlap those alone, for others are in use meanwhile. */
static void use_bytes(const struct dtp_lowering *l, struct dtp_draft *draft, dtp_buffer_id buffer, uint64_t first,
                      uint64_t end)
{
    dtp_draft_use(draft, buffer, DTP_UPDATE);
    if (!own(l)->bucket_count)
        return;
    draft->operands[0].offset_bytes = first;
    draft->operands[0].bytes = end - first;
}

/* Gradients are divided by the number of ranks before they are summed. */
static void scale_gradients(struct dtp_lowering *l, uint64_t first, uint64_t end)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ACCUMULATE, "gradient scaling");
    use_bytes(l, &draft, whole(l)->gradient_buffer, first * l->bytes.grads, end * l->bytes.grads);
    dtp_draft_memory(l, &draft, 2 * (double)(l->bytes.grads * (end - first)), 1);
    dtp_draft_end(l, &draft);
}

/* Over elements [first, end): weights, or their gradients. */
static dtp_op_id collective(struct dtp_lowering *l, enum dtp_op_kind kind, uint64_t first, uint64_t end)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, kind, "bucket");
    draft.op.stream = DTP_STREAM_REDUCE;
    uint64_t dense = dense_elements(l), ranks = l->data_ranks, from = first, to = end;
    bool gathers = kind == DTP_OP_ALL_GATHER, experts = first >= dense && expert_elements(l);
    draft.op.group = own(l)->group;
    if (experts) {
        draft.op.group = own(l)->expert_group;
        ranks = dtp_plan_expert_replicas(l->plan, l->cluster);
        from -= dense, to -= dense;
    }
    if (gathers)
        use_bytes(l, &draft, trained_params(l), params_place(l, first), params_place(l, end));
    else
        use_bytes(l, &draft, whole(l)->gradient_buffer, first * l->bytes.reduce, end * l->bytes.reduce);
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_COMPUTE]);
    uint64_t begin = gathers ? wire_place(l, experts, from) : from * l->bytes.reduce,
             behind = gathers ? wire_place(l, experts, to) : to * l->bytes.reduce,
             sent = dtp_lower_ring(behind, ranks) - dtp_lower_ring(begin, ranks);
    draft.op.demand.sent_bytes = (kind == DTP_OP_ALL_REDUCE ? 2 : 1) * (double)sent;
    draft.op.demand.bytes = (double)(behind - begin);
    return dtp_draft_end(l, &draft);
}

static dtp_op_id reduce(struct dtp_lowering *l, uint64_t first, uint64_t end)
{
    return collective(l, l->plan->strategy == DTP_DDP ? DTP_OP_ALL_REDUCE : DTP_OP_REDUCE_SCATTER, first, end);
}

static dtp_op_id gather(struct dtp_lowering *l, uint64_t first, uint64_t end)
{
    return collective(l, DTP_OP_ALL_GATHER, first, end);
}

/* Bucket after bucket of all that the rank has. */
static void each_bucket(struct dtp_lowering *l, dtp_op_id (*issue)(struct dtp_lowering *, uint64_t, uint64_t))
{
    uint64_t total = model_elements(l), dense = dense_elements(l), bucket = bucket_elements(l);
    for (uint64_t first = 0; first < dense; first += bucket)
        issue(l, first, first + bucket < dense ? first + bucket : dense);
    for (uint64_t first = dense; first < total && own(l)->expert_group != DTP_NO_INDEX; first += bucket)
        issue(l, first, first + bucket < total ? first + bucket : total);
}

static void end_backward(struct dtp_lowering *l)
{
    if (!l->last_pass || l->data_ranks == 1)
        return;
    scale_gradients(l, 0, model_elements(l));
    each_bucket(l, reduce);
}

/* ---- beside compute ---------------------------------------------------------------------------------------------- */

/* Elements in the order of backward: the head, layers from the last on, and what is left of the root. */
static uint64_t head_elements(const struct dtp_lowering *l)
{
    return l->root.trained[DTP_ROOT_HEAD] ? l->root.elements[DTP_ROOT_HEAD] : 0;
}

static uint64_t layer_first(const struct dtp_lowering *l, uint64_t layer)
{
    return head_elements(l) + (l->transformer->layers - 1 - layer) * l->block.trained_elements;
}

static bool bucketed(const struct dtp_lowering *l, uint32_t chunk)
{
    return l->role.rank == 0 && chunk == 0 && !keeps_shards(l);
}

static void add_buckets(struct dtp_lowering *l, uint32_t chunk, uint64_t first, uint64_t end)
{
    uint64_t most = bucketed(l, chunk) ? bucket_elements(l) : end - first;
    for (; first < end; first += most)
        own(l)->bucket[own(l)->bucket_count++] =
            (struct bucket){first, first + most < end ? first + most : end, chunk, DTP_NO_OP, false, DTP_NO_BUFFER};
}

/* The chunk with the rank's last layers takes the head in front of them, that with its first the root's rest. */
static enum dtp_status make_overlapped(struct dtp_lowering *l)
{
    enum dtp_status status = make(l);
    if (status != DTP_OK || !l->own)
        return status;
    const struct dtp_lower_role *role = &l->role;
    uint64_t total = model_elements(l), most = total / bucket_elements(l) + role->chunk_count + 1;
    own(l)->bucket = dtp_host_arena_take(&l->arena, most, sizeof *own(l)->bucket);
    if (!own(l)->bucket)
        return dtp_fault(l->faults, DTP_ENVIRONMENT, NULL, 0, "no memory to lower the step");
    for (uint32_t i = role->chunk_count; i > 0; i--) {
        const struct dtp_lower_chunk *chunk = &role->chunks[i - 1];
        uint64_t behind = chunk->first + chunk->layers;
        uint64_t first = i == role->chunk_count ? 0 : layer_first(l, behind) + l->block.trained_elements;
        add_buckets(l, i - 1, first, i == 1 ? total : layer_first(l, chunk->first) + l->block.trained_elements);
    }
    return DTP_OK;
}

/* Which elements an operation of a pass touches; behind the passes all. */
static bool place_of(const struct dtp_lowering *l, const struct dtp_new_op *op, uint64_t *first, uint64_t *end)
{
    *first = 0;
    *end = head_elements(l);
    if (l->layer != DTP_NO_LAYER) {
        *first = layer_first(l, l->layer);
        *end = *first + l->block.trained_elements;
    } else if (op->kind == DTP_OP_EMBEDDING || op->kind == DTP_OP_EMBEDDING_BACKWARD || !head_elements(l)) {
        *first = head_elements(l) + l->transformer->layers * l->block.trained_elements;
        *end = model_elements(l);
    }
    return l->layer != DTP_NO_LAYER || op->kind == DTP_OP_EMBEDDING || op->kind == DTP_OP_EMBEDDING_BACKWARD ||
           op->kind == DTP_OP_MATMUL;
}

static void narrow(const struct dtp_lowering *l, const struct dtp_new_op *op, struct dtp_operand *operand)
{
    bool weights = operand->buffer.index == trained_params(l).index;
    uint64_t first, end;
    if (!weights && (keeps_shards(l) || operand->buffer.index != whole(l)->gradient_buffer.index))
        return;
    if (!l->own || operand->bytes || !place_of(l, op, &first, &end))
        return;
    operand->offset_bytes = weights ? params_place(l, first) : first * l->bytes.grads;
    operand->bytes = (weights ? params_place(l, end) : end * l->bytes.grads) - operand->offset_bytes;
}

/* Reduces what of the chunk at hand is finished, its elements before `end`. */
static void reduce_finished(struct dtp_lowering *l, uint64_t end)
{
    if (!l->own || !l->last_micro_step)
        return;
    for (uint32_t i = 0; i < own(l)->bucket_count; i++) {
        struct bucket *b = &own(l)->bucket[i];
        if (b->reduced || &l->role.chunks[b->chunk] != l->chunk || b->end > end)
            continue;
        b->reduced = true;
        scale_gradients(l, b->first, b->end);
        reduce(l, b->first, b->end);
    }
}

static void after_backward(struct dtp_lowering *l)
{
    if (l->layer != DTP_NO_LAYER && l->pass->kind == DTP_PASS_WHOLE_BACKWARD)
        reduce_finished(l, layer_first(l, l->layer) + l->block.trained_elements);
}

static void end_backward_overlapped(struct dtp_lowering *l)
{
    reduce_finished(l, model_elements(l));
}

/* The first forward finds what the step before updated on its way, in the order of layers. */
static void begin_micro_step(struct dtp_lowering *l)
{
    if (!l->own || l->plan->strategy == DTP_DDP || l->pass != l->role.passes)
        return;
    for (uint32_t i = own(l)->bucket_count; i > 0; i--)
        own(l)->bucket[i - 1].gathered = gather(l, own(l)->bucket[i - 1].first, own(l)->bucket[i - 1].end);
}

static void await_elements(struct dtp_lowering *l, uint64_t first, uint64_t end)
{
    for (uint32_t i = 0; l->own && i < own(l)->bucket_count; i++) {
        struct bucket *b = &own(l)->bucket[i];
        if (b->gathered.index == DTP_NO_INDEX || b->end <= first || b->first >= end)
            continue;
        struct dtp_draft draft;
        dtp_draft_begin(l, &draft, DTP_OP_MARK, "weights gathered");
        dtp_draft_after(&draft, b->gathered);
        dtp_draft_end(l, &draft);
        b->gathered = DTP_NO_OP;
    }
}

static void before_forward(struct dtp_lowering *l)
{
    if (l->layer != DTP_NO_LAYER)
        await_elements(l, layer_first(l, l->layer), layer_first(l, l->layer) + l->block.trained_elements);
}

/* Of the root the head and the rest are wanted at the two ends. */
static void fetch(struct dtp_lowering *l, int part)
{
    uint64_t rest = head_elements(l) + l->transformer->layers * l->block.trained_elements;
    if (l->layer == DTP_NO_LAYER)
        await_elements(l, part == DTP_ROOT_HEAD ? 0 : rest,
                       part == DTP_ROOT_HEAD ? head_elements(l) : model_elements(l));
}

/* ---- gradients in shards ----------------------------------------------------------------------------------------- */

static struct bucket *bucket_of_chunk(const struct dtp_lowering *l)
{
    for (uint32_t i = 0; l->own && i < own(l)->bucket_count; i++)
        if (&l->role.chunks[own(l)->bucket[i].chunk] == l->chunk)
            return &own(l)->bucket[i];
    return NULL;
}

/* Whole gradients of the chunk at hand, from its first backward on. */
static void begin_backward(struct dtp_lowering *l)
{
    struct bucket *b = bucket_of_chunk(l);
    struct dtp_draft draft;
    if (!b)
        return;
    if (b->gradients.index == DTP_NO_INDEX) {
        uint64_t bytes = l->bytes.grads * (b->end - b->first);
        dtp_lower_take_back(l, DTP_LENT_GRADIENTS); /* there is one at a time */
        dtp_draft_begin(l, &draft, DTP_OP_ZERO, "gradients of a chunk");
        b->gradients = dtp_draft_new(l, &draft, "gradients of a chunk", DTP_OWNER_GRADS, bytes, DTP_WRITE);
        dtp_draft_memory(l, &draft, (double)bytes, 1);
        dtp_draft_end(l, &draft);
    }
    whole(l)->gradient_buffer = b->gradients; /* of the root, whose head or embedding is in this chunk */
    for (uint64_t layer = l->chunk->first; layer < l->chunk->first + l->chunk->layers; layer++)
        l->state[layer].gradient_buffer = b->gradients;
}

static void end_backward_sharded(struct dtp_lowering *l)
{
    struct bucket *b = bucket_of_chunk(l);
    struct dtp_draft draft;
    if (!b || !l->last_micro_step)
        return;
    uint64_t elements = b->end - b->first;
    dtp_draft_begin(l, &draft, DTP_OP_ACCUMULATE, "gradient scaling");
    dtp_draft_use(&draft, b->gradients, DTP_UPDATE);
    dtp_draft_memory(l, &draft, 2 * (double)(l->bytes.grads * elements), 1);
    dtp_draft_end(l, &draft);
    dtp_draft_begin(l, &draft, DTP_OP_REDUCE_SCATTER, "gradients of a chunk");
    draft.op.stream = DTP_STREAM_REDUCE;
    draft.op.group = own(l)->group;
    dtp_draft_use(&draft, b->gradients, DTP_READ | dtp_lower_let_go(l));
    dtp_draft_use(&draft, own(l)->shard, DTP_UPDATE);
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_COMPUTE]);
    draft.op.demand.sent_bytes = (double)dtp_lower_ring(elements * l->bytes.reduce, l->data_ranks);
    draft.op.demand.bytes = (double)(elements * l->bytes.reduce);
    dtp_op_id reduced = dtp_draft_end(l, &draft);
    if (!dtp_lower_let_go(l))
        dtp_lower_lend(l, DTP_LENT_GRADIENTS, b->gradients, reduced);
    b->gradients = DTP_NO_BUFFER;
    whole(l)->gradient_buffer = own(l)->shard;
}

/* ---- the step ---------------------------------------------------------------------------------------------------- */

/* Behind the reduction over data parallel ranks, gradients of what tensor parallel ranks all have are summed, laid side
 * by side (core/distributed/finalize_model_grads.py). */
static void sum_replicated(struct dtp_lowering *l)
{
    uint64_t elements = dtp_lower_replicated_elements(l);
    uint64_t bytes = l->bytes.grads * (keeps_shards(l) ? dtp_divide_up(elements, l->data_ranks) : elements);
    struct dtp_draft draft;
    if (!bytes)
        return;
    dtp_draft_begin(l, &draft, DTP_OP_COPY_IN, "gradients of norms");
    dtp_draft_use(&draft, whole(l)->gradient_buffer, DTP_READ);
    dtp_buffer_id flat = dtp_draft_new(l, &draft, "gradients of norms", DTP_OWNER_REDUCE, bytes, DTP_WRITE);
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_REDUCE]);
    dtp_draft_memory(l, &draft, 2 * (double)bytes, 1);
    dtp_draft_end(l, &draft);
    dtp_lower_sum_in_place(l, "gradients of norms", flat, bytes, false);
    dtp_draft_begin(l, &draft, DTP_OP_COPY_OUT, "gradients of norms");
    dtp_draft_use(&draft, flat, DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, whole(l)->gradient_buffer, DTP_UPDATE);
    dtp_draft_memory(l, &draft, 2 * (double)bytes, 1);
    dtp_draft_end(l, &draft);
}

static void update(struct dtp_lowering *l)
{
    sum_replicated(l);
    struct dtp_module_state *all = whole(l);
    dtp_lower_update(l, trained_params(l), all->moments, &all->gradient_buffer, 1, own_elements(l));
}

static void step(struct dtp_lowering *l)
{
    update(l);
    if (l->plan->strategy != DTP_DDP && l->data_ranks > 1)
        each_bucket(l, gather);
}

static void release(struct dtp_lowering *l)
{
    free(l->own);
}

const struct dtp_lower_hooks dtp_lower_megatron = {
    .make = make,
    .release = release,
    .before_experts = dtp_megatron_before_experts,
    .after_experts = dtp_megatron_after_experts,
    .end_backward = end_backward,
    .step = step,
};

const struct dtp_lower_hooks dtp_lower_megatron_overlapped = {
    .make = make_overlapped,
    .release = release,
    .narrow = narrow,
    .begin_micro_step = begin_micro_step,
    .before_forward = before_forward,
    .fetch = fetch,
    .before_experts = dtp_megatron_before_experts,
    .after_experts = dtp_megatron_after_experts,
    .after_backward = after_backward,
    .end_backward = end_backward_overlapped,
    .step = update,
};

const struct dtp_lower_hooks dtp_lower_megatron_sharded = {
    .make = make_overlapped,
    .release = release,
    .narrow = narrow,
    .begin_micro_step = begin_micro_step,
    .before_forward = before_forward,
    .fetch = fetch,
    .before_experts = dtp_megatron_before_experts,
    .after_experts = dtp_megatron_after_experts,
    .begin_backward = begin_backward,
    .end_backward = end_backward_sharded,
    .step = update,
};
