/* Megatron with overlap_grad_reduce and overlap_param_gather (core/distributed).
 *
 * A bucket is reduced as soon as the last micro-step of its chunk has made all its gradients. Weights are gathered
 * beside the forward: a step begins with the gathers of what the step before updated, and a layer waits for its own.
 * Buffers are laid in the order in which backward makes gradients, so that what is finished is always a beginning of a
 * chunk's part. Only the first chunk of the first stage has more than one bucket (distributed_data_parallel.py: "Turn
 * off bucketing if we are on a pipeline stage that is not the first", and disable_bucketing of later chunks). Experts
 * that ranks divide lie behind the rest, in the same order, with buckets of their own, which are reduced and gathered
 * among those that have the same ones.
 *
 * With zero2 a rank keeps its shard of the gradients, and those of a chunk whole from its first backward of the step to
 * its last, which is when they are reduce-scattered: so the trainer of Llama 3 "shards optimizer states and gradients,
 * but for model shards we do not reshard after forward" (arXiv:2407.21783, section 3.3.2). Weights are gathered as with
 * overlap. */
#include "runtime/megatron/buffered.h"
#include "runtime/megatron/lower_stash.h"
#include "runtime/megatron/megatron.h"

/* Elements in the order of backward: the head, layers from the last on, and what is left of the root. */
static uint64_t head_elements(const struct dtp_lowering *l)
{
    return l->root.trained[DTP_ROOT_HEAD] ? l->root.elements[DTP_ROOT_HEAD] : 0;
}

/* What is left of the root lies behind the rank's first layer. */
static uint64_t rest_first(const struct dtp_lowering *l)
{
    return dtp_buffered_own(l)->place->dense;
}

/* Where the layer at hand begins, and [1] where it ends, for it lies in front of the one before it. */
static const struct dtp_layer_place *begin_of_layer(const struct dtp_lowering *l)
{
    return &dtp_buffered_own(l)->place[l->layer + 1u];
}

static const struct dtp_layer_place *end_of_layer(const struct dtp_lowering *l)
{
    return &dtp_buffered_own(l)->place[l->layer];
}

static enum dtp_status place_layers(struct dtp_lowering *l)
{
    const uint64_t layers = l->transformer->layers, divided = dtp_buffered_divided_elements(l);
    struct dtp_layer_place *place = dtp_host_arena_take(&l->arena, layers + 1, sizeof *place);
    if (!place)
        return dtp_fault(l->faults, DTP_ENVIRONMENT, NULL, 0, "no memory to lower the step");
    place[layers] = (struct dtp_layer_place){head_elements(l), dtp_buffered_dense_elements(l)};
    for (uint64_t layer = layers; layer-- > 0;) {
        const bool mixed = l->transformer->experts != 0;
        uint64_t experts = mixed && dtp_lower_mlp(l, layer) == DTP_LAYER_EXPERTS ? divided : 0;
        uint64_t all = mixed ? dtp_lower_module_at(l, layer)->trained_elements : l->block.trained_elements;
        place[layer] =
            (struct dtp_layer_place){place[layer + 1].dense + all - experts, place[layer + 1].experts + experts};
    }
    dtp_buffered_own(l)->place = place;
    return DTP_OK;
}

static bool bucketed(const struct dtp_lowering *l, uint32_t chunk)
{
    return l->role.rank == 0 && chunk == 0 && !dtp_buffered_keeps_shards(l);
}

/* Takes a bucket from the beginning of what is left of a part of a chunk. */
static void add_bucket(struct dtp_lowering *l, uint32_t chunk, uint64_t *first, uint64_t end)
{
    uint64_t behind = bucketed(l, chunk) && end - *first > dtp_buffered_bucket_elements(l)
                          ? *first + dtp_buffered_bucket_elements(l)
                          : end;
    dtp_buffered_own(l)->bucket[dtp_buffered_own(l)->bucket_count++] =
        (struct dtp_bucket){*first, behind, chunk, DTP_NO_OP, false, DTP_NO_BUFFER};
    *first = behind;
}

/* Those of experts come among the others as backward finishes them. */
static void add_buckets(struct dtp_lowering *l, uint32_t chunk, struct dtp_layer_place at, struct dtp_layer_place end)
{
    const double dense = (double)(end.dense - at.dense), experts = (double)(end.experts - at.experts);
    while (at.dense < end.dense || at.experts < end.experts) {
        double dense_left = (double)(end.dense - at.dense), experts_left = (double)(end.experts - at.experts);
        if (at.dense < end.dense && dense_left * experts >= experts_left * dense)
            add_bucket(l, chunk, &at.dense, end.dense);
        else
            add_bucket(l, chunk, &at.experts, end.experts);
    }
}

/* The chunk with the rank's last layers takes the head in front of them, that with its first the root's rest. */
static enum dtp_status make_overlapped(struct dtp_lowering *l)
{
    enum dtp_status status = dtp_buffered_make(l);
    if (status != DTP_OK || !l->own)
        return status;
    const struct dtp_lower_role *role = &l->role;
    uint64_t most = dtp_buffered_model_elements(l) / dtp_buffered_bucket_elements(l) + 2 * role->chunk_count + 2;
    dtp_buffered_own(l)->bucket = dtp_host_arena_take(&l->arena, most, sizeof *dtp_buffered_own(l)->bucket);
    if (!dtp_buffered_own(l)->bucket)
        return dtp_fault(l->faults, DTP_ENVIRONMENT, NULL, 0, "no memory to lower the step");
    if ((status = place_layers(l)) != DTP_OK)
        return status;
    const struct dtp_layer_place *place = dtp_buffered_own(l)->place;
    for (uint32_t i = role->chunk_count; i > 0; i--) {
        const struct dtp_lower_chunk *chunk = &role->chunks[i - 1];
        struct dtp_layer_place at = place[chunk->first + chunk->layers], end = place[chunk->first];
        at.dense = i == role->chunk_count ? 0 : at.dense;
        end.dense = i == 1 ? dtp_buffered_dense_elements(l) : end.dense;
        add_buckets(l, i - 1, at, end);
    }
    return DTP_OK;
}

/* Which elements an operation of a pass touches; behind the passes all. */
static bool place_of(const struct dtp_lowering *l, const struct dtp_new_op *op, uint64_t *first, uint64_t *end)
{
    const bool layer = l->layer != DTP_NO_LAYER;
    bool embeds = op->kind == DTP_OP_EMBEDDING || op->kind == DTP_OP_EMBEDDING_BACKWARD;
    *first = 0;
    *end = head_elements(l);
    if (layer) {
        bool experts = dtp_buffered_own(l)->within_experts;
        *first = experts ? begin_of_layer(l)->experts : begin_of_layer(l)->dense;
        *end = experts ? end_of_layer(l)->experts : end_of_layer(l)->dense;
    } else if (embeds || !head_elements(l)) {
        *first = rest_first(l);
        *end = dtp_buffered_dense_elements(l);
    }
    return layer || embeds || op->kind == DTP_OP_MATMUL;
}

static void narrow(const struct dtp_lowering *l, const struct dtp_new_op *op, struct dtp_operand *operand)
{
    bool weights = operand->buffer.index == dtp_buffered_trained_params(l).index;
    uint64_t first, end;
    if (!weights &&
        (dtp_buffered_keeps_shards(l) || operand->buffer.index != dtp_buffered_whole(l)->gradient_buffer.index))
        return;
    if (!l->own || operand->bytes || !place_of(l, op, &first, &end))
        return;
    operand->offset_bytes = weights ? dtp_buffered_params_place(l, first) : first * l->bytes.grads;
    operand->bytes = (weights ? dtp_buffered_params_place(l, end) : end * l->bytes.grads) - operand->offset_bytes;
}

/* Whether other ranks have what is in a bucket. */
static bool shared(const struct dtp_lowering *l, const struct dtp_bucket *b)
{
    return b->first < dtp_buffered_dense_elements(l) || dtp_buffered_own(l)->expert_group != DTP_NO_INDEX;
}

/* Reduces what of the chunk at hand is finished: elements before `end`, of experts before `experts_end`. */
static void reduce_finished(struct dtp_lowering *l, uint64_t end, uint64_t experts_end)
{
    if (!l->own || !l->last_micro_step)
        return;
    for (uint32_t i = 0; i < dtp_buffered_own(l)->bucket_count; i++) {
        struct dtp_bucket *b = &dtp_buffered_own(l)->bucket[i];
        if (b->reduced || &l->role.chunks[b->chunk] != l->chunk ||
            b->end > (b->first < dtp_buffered_dense_elements(l) ? end : experts_end))
            continue;
        b->reduced = true;
        dtp_buffered_scale_gradients(l, b->first, b->end);
        if (shared(l, b))
            dtp_buffered_reduce(l, b->first, b->end);
    }
}

/* Of a module that predicts further ahead: its forward reads the head before the model's own does, and behind its
 * backward come the final norm's and, of what lies in front of it, the head's. */
static bool is_ahead(const struct dtp_lowering *l)
{
    return l->layer != DTP_NO_LAYER && l->layer + l->chunk->ahead_layers >= l->chunk->first + l->chunk->layers;
}

static void after_backward(struct dtp_lowering *l)
{
    if (l->own && l->layer != DTP_NO_LAYER && !is_ahead(l) && l->pass->kind == DTP_PASS_WHOLE_BACKWARD)
        reduce_finished(l, end_of_layer(l)->dense, end_of_layer(l)->experts);
}

static void end_backward_overlapped(struct dtp_lowering *l)
{
    reduce_finished(l, dtp_buffered_model_elements(l), dtp_buffered_model_elements(l));
}

/* The first forward finds what the step before updated on its way, in the order of layers. */
static void begin_micro_step(struct dtp_lowering *l)
{
    if (!l->own || l->plan->strategy == DTP_DDP || l->pass != l->role.passes)
        return;
    for (uint32_t i = dtp_buffered_own(l)->bucket_count; i > 0; i--)
        if (shared(l, &dtp_buffered_own(l)->bucket[i - 1]))
            dtp_buffered_own(l)->bucket[i - 1].gathered = dtp_buffered_gather(
                l, dtp_buffered_own(l)->bucket[i - 1].first, dtp_buffered_own(l)->bucket[i - 1].end);
}

static void await_elements(struct dtp_lowering *l, uint64_t first, uint64_t end)
{
    for (uint32_t i = 0; l->own && i < dtp_buffered_own(l)->bucket_count; i++) {
        struct dtp_bucket *b = &dtp_buffered_own(l)->bucket[i];
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
    if (l->own && l->layer != DTP_NO_LAYER)
        await_elements(l, begin_of_layer(l)->dense, end_of_layer(l)->dense);
    if (l->own && is_ahead(l))
        await_elements(l, 0, head_elements(l));
}

static void before_experts(struct dtp_lowering *l, bool backward)
{
    dtp_megatron_before_experts(l, backward);
    if (!l->own || !dtp_buffered_divided_elements(l))
        return;
    dtp_buffered_own(l)->within_experts = true;
    await_elements(l, begin_of_layer(l)->experts, end_of_layer(l)->experts);
}

static void after_experts(struct dtp_lowering *l, bool backward)
{
    if (l->own)
        dtp_buffered_own(l)->within_experts = false;
    dtp_megatron_after_experts(l, backward);
}

/* Of the root the head and the rest are wanted at the two ends. */
static void fetch(struct dtp_lowering *l, int part)
{
    if (l->own && l->layer == DTP_NO_LAYER)
        await_elements(l, part == DTP_ROOT_HEAD ? 0 : rest_first(l),
                       part == DTP_ROOT_HEAD ? head_elements(l) : dtp_buffered_dense_elements(l));
}

/* ---- gradients in shards ----------------------------------------------------------------------------------------- */

static struct dtp_bucket *bucket_of_chunk(const struct dtp_lowering *l)
{
    for (uint32_t i = 0; l->own && i < dtp_buffered_own(l)->bucket_count; i++)
        if (&l->role.chunks[dtp_buffered_own(l)->bucket[i].chunk] == l->chunk)
            return &dtp_buffered_own(l)->bucket[i];
    return NULL;
}

/* Whole gradients of the chunk at hand, from its first backward on. */
static void begin_backward(struct dtp_lowering *l)
{
    struct dtp_bucket *b = bucket_of_chunk(l);
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
    dtp_buffered_whole(l)->gradient_buffer = b->gradients; /* of the root, whose head or embedding is in this chunk */
    for (uint64_t layer = l->chunk->first; layer < l->chunk->first + l->chunk->layers; layer++)
        l->state[layer].gradient_buffer = b->gradients;
}

static void end_backward_sharded(struct dtp_lowering *l)
{
    struct dtp_bucket *b = bucket_of_chunk(l);
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
    draft.op.group = dtp_buffered_own(l)->group;
    dtp_draft_use(&draft, b->gradients, DTP_READ | dtp_lower_let_go(l));
    dtp_draft_use(&draft, dtp_buffered_own(l)->shard, DTP_UPDATE);
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_COMPUTE]);
    draft.op.demand.sent_bytes = (double)dtp_lower_ring(elements * l->bytes.reduce, l->data_ranks);
    draft.op.demand.bytes = (double)(elements * l->bytes.reduce);
    dtp_op_id reduced = dtp_draft_end(l, &draft);
    if (!dtp_lower_let_go(l))
        dtp_lower_lend(l, DTP_LENT_GRADIENTS, b->gradients, reduced);
    b->gradients = DTP_NO_BUFFER;
    dtp_buffered_whole(l)->gradient_buffer = dtp_buffered_own(l)->shard;
}

/* ---- the step ---------------------------------------------------------------------------------------------------- */

const struct dtp_lower_hooks dtp_lower_megatron_overlapped = {
    .make = make_overlapped,
    .release = dtp_buffered_release,
    .narrow = narrow,
    .begin_micro_step = begin_micro_step,
    .before_forward = before_forward,
    .fetch = fetch,
    .before_experts = before_experts,
    .after_experts = after_experts,
    .after_backward = after_backward,
    .end_backward = end_backward_overlapped,
    .step = dtp_buffered_update,
};

const struct dtp_lower_hooks dtp_lower_megatron_sharded = {
    .make = make_overlapped,
    .release = dtp_buffered_release,
    .narrow = narrow,
    .begin_micro_step = begin_micro_step,
    .before_forward = before_forward,
    .fetch = fetch,
    .before_experts = dtp_megatron_before_experts,
    .after_experts = dtp_megatron_after_experts,
    .begin_backward = begin_backward,
    .end_backward = end_backward_sharded,
    .step = dtp_buffered_update,
};
