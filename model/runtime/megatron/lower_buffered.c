/* Megatron: matmuls write gradients into one buffer of the reduce dtype and add to them there.
 *
 * Parameters and gradients are contiguous (core/distributed). With overlap_grad_reduce off, as by default, bucket after
 * bucket is all-reduced when the last micro-step's backward is through, or reduce-scattered in place for the
 * distributed optimizer, whose updated weights are gathered again before the next forward. */
#include "lower/lower_fp8.h"

#include "base/bytes.h"
#include "runtime/megatron/buffered.h"
#include "runtime/megatron/lower_frozen.h"
#include "runtime/megatron/lower_stash.h"
#include "runtime/megatron/megatron.h"

#include <stdlib.h>

#define MEGATRON_BUCKET 40000000u /* elements, or 1e6 per data parallel rank */

uint64_t dtp_buffered_model_elements(const struct dtp_lowering *l)
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

/* Of a layer with experts that ranks divide, these. */
uint64_t dtp_buffered_divided_elements(const struct dtp_lowering *l)
{
    const struct dtp_lower_kind *kind = &l->kind[DTP_LAYER_EXPERTS];
    uint64_t elements = 0;
    for (int part = 0; l->plan->ep > 1 && part < kind->tensors.kind.matrices; part++)
        elements += kind->tensors.kind.matrix[part].expert ? kind->block.elements[part] : 0;
    if (l->plan->ep > 1)
        elements += kind->tensors.kind.own_experts * dtp_layer_expert_bias_elements(&kind->tensors.kind);
    return elements;
}

/* Of all elements the last ones. */
static uint64_t expert_elements(const struct dtp_lowering *l)
{
    return expert_layers(l) * dtp_buffered_divided_elements(l);
}

uint64_t dtp_buffered_dense_elements(const struct dtp_lowering *l)
{
    return dtp_buffered_model_elements(l) - expert_elements(l);
}

/* What the rank updates of all. */
static uint64_t own_elements(const struct dtp_lowering *l)
{
    return dtp_divide_up(dtp_buffered_dense_elements(l), l->plan->shard_group) +
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
                   : (struct part){dtp_buffered_dense_elements(l), casts ? narrow - divided : 0};
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

uint64_t dtp_buffered_params_place(const struct dtp_lowering *l, uint64_t element)
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

uint64_t dtp_buffered_bucket_elements(const struct dtp_lowering *l)
{
    uint64_t per_rank = UINT64_C(1000000) * l->data_ranks;
    return per_rank > MEGATRON_BUCKET ? per_rank : MEGATRON_BUCKET;
}

/* Of the root, which has no adapters, the place that names the buffer of all. */
#define ADAPTERS (DTP_MAX_PARTS - 1)
dtp_buffer_id dtp_buffered_trained_params(const struct dtp_lowering *l)
{
    return l->adapts ? dtp_buffered_whole(l)->whole[ADAPTERS] : dtp_buffered_whole(l)->params;
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

enum dtp_status dtp_buffered_make(struct dtp_lowering *l)
{
    uint64_t total = dtp_buffered_model_elements(l), ranks = l->plan->shard_group;
    struct dtp_module_state *all = dtp_buffered_whole(l);
    all->params = dtp_lower_buffer(l, l->adapts ? "frozen params" : "params", DTP_OWNER_PARAMS, DTP_STREAM_COMPUTE,
                                   l->adapts ? dtp_megatron_frozen_bytes(l) : params_bytes(l), true);
    all->gradient_buffer =
        dtp_lower_buffer(l, "gradient buffer", DTP_OWNER_GRADS, DTP_STREAM_COMPUTE,
                         l->bytes.grads * (dtp_buffered_keeps_shards(l) ? dtp_divide_up(total, ranks) : total), true);
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
    struct dtp_buffered *made = l->own = calloc(1, sizeof *made);
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
    if (!dtp_buffered_own(l)->bucket_count)
        return;
    draft->operands[0].offset_bytes = first;
    draft->operands[0].bytes = end - first;
}

/* Gradients are divided by the number of ranks before they are summed. */
void dtp_buffered_scale_gradients(struct dtp_lowering *l, uint64_t first, uint64_t end)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ACCUMULATE, "gradient scaling");
    use_bytes(l, &draft, dtp_buffered_whole(l)->gradient_buffer, first * l->bytes.grads, end * l->bytes.grads);
    dtp_draft_memory(l, &draft, 2 * (double)(l->bytes.grads * (end - first)), 1);
    dtp_draft_end(l, &draft);
}

/* Over elements [first, end): weights, or their gradients. */
static dtp_op_id collective(struct dtp_lowering *l, enum dtp_op_kind kind, uint64_t first, uint64_t end)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, kind, "bucket");
    draft.op.stream = DTP_STREAM_REDUCE;
    uint64_t dense = dtp_buffered_dense_elements(l), ranks = l->data_ranks, from = first, to = end;
    bool gathers = kind == DTP_OP_ALL_GATHER, experts = first >= dense && expert_elements(l);
    draft.op.group = dtp_buffered_own(l)->group;
    if (experts) {
        draft.op.group = dtp_buffered_own(l)->expert_group;
        ranks = dtp_plan_expert_replicas(l->plan, l->cluster);
        from -= dense, to -= dense;
    }
    if (gathers)
        use_bytes(l, &draft, dtp_buffered_trained_params(l), dtp_buffered_params_place(l, first),
                  dtp_buffered_params_place(l, end));
    else
        use_bytes(l, &draft, dtp_buffered_whole(l)->gradient_buffer, first * l->bytes.reduce, end * l->bytes.reduce);
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_COMPUTE]);
    uint64_t begin = gathers ? wire_place(l, experts, from) : from * l->bytes.reduce,
             behind = gathers ? wire_place(l, experts, to) : to * l->bytes.reduce,
             sent = dtp_lower_ring(behind, ranks) - dtp_lower_ring(begin, ranks);
    draft.op.demand.sent_bytes = (kind == DTP_OP_ALL_REDUCE ? 2 : 1) * (double)sent;
    draft.op.demand.bytes = (double)(behind - begin);
    return dtp_draft_end(l, &draft);
}

dtp_op_id dtp_buffered_reduce(struct dtp_lowering *l, uint64_t first, uint64_t end)
{
    return collective(l, l->plan->strategy == DTP_DDP ? DTP_OP_ALL_REDUCE : DTP_OP_REDUCE_SCATTER, first, end);
}

dtp_op_id dtp_buffered_gather(struct dtp_lowering *l, uint64_t first, uint64_t end)
{
    return collective(l, DTP_OP_ALL_GATHER, first, end);
}

/* Bucket after bucket of all that the rank has. */
static void each_bucket(struct dtp_lowering *l, dtp_op_id (*issue)(struct dtp_lowering *, uint64_t, uint64_t))
{
    uint64_t total = dtp_buffered_model_elements(l), dense = dtp_buffered_dense_elements(l),
             bucket = dtp_buffered_bucket_elements(l);
    for (uint64_t first = 0; first < dense; first += bucket)
        issue(l, first, first + bucket < dense ? first + bucket : dense);
    for (uint64_t first = dense; first < total && dtp_buffered_own(l)->expert_group != DTP_NO_INDEX; first += bucket)
        issue(l, first, first + bucket < total ? first + bucket : total);
}

static void end_backward(struct dtp_lowering *l)
{
    if (!l->last_pass || l->data_ranks == 1)
        return;
    dtp_buffered_scale_gradients(l, 0, dtp_buffered_model_elements(l));
    each_bucket(l, dtp_buffered_reduce);
}

/* ---- the step ---------------------------------------------------------------------------------------------------- */

/* Behind the reduction over data parallel ranks, gradients of what tensor parallel ranks all have are summed, laid side
 * by side (core/distributed/finalize_model_grads.py). */
static void sum_replicated(struct dtp_lowering *l)
{
    uint64_t elements = dtp_lower_replicated_elements(l);
    uint64_t bytes =
        l->bytes.grads * (dtp_buffered_keeps_shards(l) ? dtp_divide_up(elements, l->data_ranks) : elements);
    struct dtp_draft draft;
    if (!bytes)
        return;
    dtp_draft_begin(l, &draft, DTP_OP_COPY_IN, "gradients of norms");
    dtp_draft_use(&draft, dtp_buffered_whole(l)->gradient_buffer, DTP_READ);
    dtp_buffer_id flat = dtp_draft_new(l, &draft, "gradients of norms", DTP_OWNER_REDUCE, bytes, DTP_WRITE);
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_REDUCE]);
    dtp_draft_memory(l, &draft, 2 * (double)bytes, 1);
    dtp_draft_end(l, &draft);
    dtp_lower_sum_in_place(l, "gradients of norms", flat, bytes, false);
    dtp_draft_begin(l, &draft, DTP_OP_COPY_OUT, "gradients of norms");
    dtp_draft_use(&draft, flat, DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, dtp_buffered_whole(l)->gradient_buffer, DTP_UPDATE);
    dtp_draft_memory(l, &draft, 2 * (double)bytes, 1);
    dtp_draft_end(l, &draft);
}

void dtp_buffered_update(struct dtp_lowering *l)
{
    sum_replicated(l);
    struct dtp_module_state *all = dtp_buffered_whole(l);
    dtp_lower_update(l, dtp_buffered_trained_params(l), all->moments, &all->gradient_buffer, 1, own_elements(l));
}

static void step(struct dtp_lowering *l)
{
    dtp_buffered_update(l);
    if (l->plan->strategy != DTP_DDP && l->data_ranks > 1)
        each_bucket(l, dtp_buffered_gather);
}

void dtp_buffered_release(struct dtp_lowering *l)
{
    free(l->own);
}

const struct dtp_lower_hooks dtp_lower_megatron = {
    .make = dtp_buffered_make,
    .release = dtp_buffered_release,
    .before_experts = dtp_megatron_before_experts,
    .after_experts = dtp_megatron_after_experts,
    .end_backward = end_backward,
    .step = step,
};
