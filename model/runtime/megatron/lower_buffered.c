/* Megatron: matmuls write gradients into one buffer of the reduce dtype and add to them there.
 *
 * Parameters and gradients are contiguous (core/distributed, overlap_grad_reduce off, as by default); when the last
 * micro-step's backward is through, bucket after bucket is all-reduced, or reduce-scattered in place for the
 * distributed optimizer, whose updated weights are gathered again before the next forward. */
#include "lower/lowering.h"

#include "base/bytes.h"
#include "runtime/megatron/megatron.h"

#include <stdlib.h>

#define MEGATRON_BUCKET 40000000u /* elements, or 1e6 per data parallel rank */

static uint64_t model_elements(const struct dtp_lowering *l)
{
    return l->transformer->layers * l->block.all_elements + l->root.all_elements;
}

static struct dtp_module_state *whole(const struct dtp_lowering *l)
{
    return &l->state[l->transformer->layers];
}

static enum dtp_status make(struct dtp_lowering *l)
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
    if (l->data_ranks == 1)
        return DTP_OK;
    uint32_t *group = l->own = malloc(sizeof *group);
    if (!group)
        return dtp_fault(l->faults, DTP_ENVIRONMENT, NULL, 0, "no memory to lower the step");
    *group = dtp_lower_data_group(l, l->data_ranks, 1);
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
    uint64_t gpus = l->data_ranks, total = model_elements(l), per_rank = 1000000 * gpus;
    uint64_t bucket = per_rank > MEGATRON_BUCKET ? per_rank : MEGATRON_BUCKET;
    double times = kind == DTP_OP_ALL_REDUCE ? 2 : 1;
    for (uint64_t first = 0; first < total && gpus > 1; first += bucket) {
        uint64_t end = first + bucket < total ? first + bucket : total;
        struct dtp_draft draft;
        dtp_draft_begin(l, &draft, kind, "bucket");
        draft.op.stream = DTP_STREAM_REDUCE;
        draft.op.group = *(const uint32_t *)l->own;
        dtp_draft_use(&draft, buffer, DTP_UPDATE);
        dtp_draft_after(&draft, l->last_op[DTP_STREAM_COMPUTE]);
        uint64_t sent = dtp_lower_ring(end * element_bytes, gpus) - dtp_lower_ring(first * element_bytes, gpus);
        draft.op.demand.sent_bytes = times * (double)sent;
        draft.op.demand.bytes = (double)((end - first) * element_bytes);
        dtp_draft_end(l, &draft);
    }
}

static void end_backward(struct dtp_lowering *l)
{
    if (!l->last_pass)
        return;
    enum dtp_op_kind kind = l->plan->strategy == DTP_DDP ? DTP_OP_ALL_REDUCE : DTP_OP_REDUCE_SCATTER;
    if (l->data_ranks > 1)
        scale_gradients(l);
    bucket_collectives(l, kind, whole(l)->gradient_buffer, l->bytes.reduce);
}

/* Behind the reduction over data parallel ranks, gradients of what tensor parallel ranks all have are summed, laid side
 * by side (core/distributed/finalize_model_grads.py). */
static void sum_replicated(struct dtp_lowering *l)
{
    uint64_t bytes = l->bytes.grads * dtp_lower_replicated_elements(l);
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

static void step(struct dtp_lowering *l)
{
    sum_replicated(l);
    struct dtp_module_state *all = whole(l);
    dtp_lower_update(l, all->params, all->moments, &all->gradient_buffer, 1,
                     dtp_divide_up(model_elements(l), l->plan->shard_group));
    if (l->plan->strategy != DTP_DDP)
        bucket_collectives(l, DTP_OP_ALL_GATHER, all->params, l->bytes.params);
}

static void release(struct dtp_lowering *l)
{
    free(l->own);
}

const struct dtp_lower_hooks dtp_lower_megatron = {
    .make = make,
    .release = release,
    .end_backward = end_backward,
    .step = step,
};
