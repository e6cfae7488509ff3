/* DeepSpeed's BF16_Optimizer (runtime/bf16_optimizer.py, 0.19.6): stage 1 that adds gradients up in fp32.
 *
 * Autograd's 16-bit gradients stand for good: they are zeroed before each backward, which adds to them, and are added
 * behind it, tensor by tensor and as an fp32 copy each, to sums that are whole on every rank. So a parameter takes 2 +
 * 2 + 4 bytes and its share of 12. The sums are one flat tensor: at the end of a step it is cast to the dtype of the
 * wire as a whole, all-reduced and cast back (engine.py, allreduce_bucket), behind all passes of a pipeline too. Then
 * the norm, the update of the rank's own part, a gather of the weights, and the sums are zeroed. */
#include "lower/lowering.h"

#include "base/bytes.h"
#include "runtime/deepspeed/bf16_optimizer.h"
#include "runtime/deepspeed/deepspeed.h"

#include <stdlib.h>

struct sums {
    uint64_t elements, partition; /* of the rank's slice; of its share */
    dtp_buffer_id sum;
    uint32_t group;
};

static struct sums *sums_of(const struct dtp_lowering *l)
{
    return l->own;
}

/* ---- state at rest ----------------------------------------------------------------------------------------------- */

static void make_gradients(struct dtp_lowering *l, uint64_t index)
{
    const struct dtp_lower_module *module = dtp_lower_module_at(l, index);
    dtp_lower_stand_at(l, index);
    for (int part = 0; part < module->parts; part++)
        l->state[index].kept[part] = dtp_lower_buffer(l, module->gradient_name[part], DTP_OWNER_REDUCE,
                                                      DTP_STREAM_COMPUTE, l->compute * module->elements[part], true);
}

static enum dtp_status make(struct dtp_lowering *l)
{
    uint64_t layers = l->transformer->layers;
    struct dtp_module_state *all = &l->state[layers];
    struct sums *s = l->own = calloc(1, sizeof *s);
    if (!s)
        return dtp_fault(l->faults, DTP_ENVIRONMENT, NULL, 0, "no memory to lower the step");
    s->elements = layers * l->block.all_elements + l->root.all_elements;
    s->partition = dtp_divide_up(s->elements, l->plan->shard_group);
    all->params =
        dtp_lower_buffer(l, "params", DTP_OWNER_PARAMS, DTP_STREAM_COMPUTE, l->bytes.params * s->elements, true);
    s->sum =
        dtp_lower_buffer(l, "gradient sums", DTP_OWNER_GRADS, DTP_STREAM_COMPUTE, l->bytes.grads * s->elements, true);
    all->moments = (struct dtp_lower_moments){DTP_NO_BUFFER, 0};
    dtp_lower_add_moments(l, &all->moments, s->partition);
    for (uint64_t i = 0; i <= layers; i++) {
        l->state[i].params = all->params;
        make_gradients(l, i);
    }
    l->layer = DTP_NO_LAYER;
    if (l->data_ranks > 1)
        s->group = dtp_lower_data_group(l, l->data_ranks, 1);
    return DTP_OK;
}

static void release(struct dtp_lowering *l)
{
    free(l->own);
}

/* ---- a micro-step ------------------------------------------------------------------------------------------------ */

static void use_gradients(const struct dtp_lowering *l, struct dtp_draft *draft, uint64_t index, uint32_t access)
{
    for (int part = 0; part < dtp_lower_module_at(l, index)->parts; part++)
        dtp_draft_use(draft, l->state[index].kept[part], access);
}

static void begin_backward(struct dtp_lowering *l)
{
    for (uint64_t i = 0; i <= l->transformer->layers; i++) { /* before any layer's backward */
        struct dtp_draft draft;
        dtp_draft_begin(l, &draft, DTP_OP_ZERO, "gradients");
        use_gradients(l, &draft, i, DTP_WRITE);
        dtp_draft_memory(l, &draft, (double)(l->compute * dtp_lower_module_at(l, i)->all_elements), 1);
        draft.op.demand.memory_kernel = DTP_KERNEL_STREAMING;
        if (draft.operand_count)
            dtp_draft_end(l, &draft);
    }
}

static void gradient_made(struct dtp_lowering *l, int part)
{
    struct dtp_module_state *state = dtp_lower_state(l);
    const struct dtp_lower_module *module = l->layer == DTP_NO_LAYER ? &l->root : &l->block;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ACCUMULATE, module->gradient_name[part]);
    dtp_draft_use(&draft, state->kept[part], DTP_UPDATE);
    dtp_draft_use(&draft, state->gradient[part], DTP_READ | DTP_FREE);
    dtp_draft_memory(l, &draft, (double)(DTP_BF16_ADD_BYTES * module->elements[part]), 1);
    draft.op.demand.memory_kernel = DTP_KERNEL_FUSED;
    dtp_draft_end(l, &draft);
    state->gradient[part] = DTP_NO_BUFFER;
}

/* sum += fp32(gradient), a tensor at a time. */
static void end_backward(struct dtp_lowering *l)
{
    for (uint64_t i = 0; i <= l->transformer->layers; i++) {
        const struct dtp_lower_module *module = dtp_lower_module_at(l, i);
        struct dtp_draft draft;
        uint64_t largest = 0;
        uint32_t tensors = 0;
        for (int part = 0; part < module->parts; part++) {
            largest = module->largest[part] > largest ? module->largest[part] : largest;
            tensors += module->tensors[part];
        }
        dtp_lower_stand_at(l, i);
        dtp_draft_begin(l, &draft, DTP_OP_ACCUMULATE, "gradient sums");
        use_gradients(l, &draft, i, DTP_READ);
        if (!draft.operand_count)
            continue;
        dtp_draft_use(&draft, sums_of(l)->sum, DTP_UPDATE);
        dtp_draft_new(l, &draft, "gradient in fp32", DTP_OWNER_WORKSPACE, l->bytes.grads * largest,
                      DTP_WRITE | DTP_FREE);
        dtp_draft_memory(l, &draft, (double)(DTP_BF16_SUM_BYTES * module->all_elements), 2 * tensors);
        draft.op.demand.memory_kernel = DTP_KERNEL_STREAMING;
        dtp_draft_end(l, &draft);
    }
    l->layer = DTP_NO_LAYER;
}

/* ---- the end of a step ------------------------------------------------------------------------------------------- */

/* To the dtype of the wire or back. */
static void cast_sums(struct dtp_lowering *l, enum dtp_op_kind kind, dtp_buffer_id *narrow)
{
    struct sums *s = sums_of(l);
    bool back = kind == DTP_OP_COPY_OUT;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, kind, "gradient sums");
    dtp_draft_use(&draft, s->sum, back ? DTP_UPDATE : DTP_READ);
    if (back)
        dtp_draft_use(&draft, *narrow, DTP_READ | DTP_FREE);
    else
        *narrow =
            dtp_draft_new(l, &draft, "sums on the wire", DTP_OWNER_REDUCE, l->bytes.reduce * s->elements, DTP_WRITE);
    dtp_draft_memory(l, &draft, (double)((l->bytes.grads + l->bytes.reduce) * s->elements), 1);
    draft.op.demand.memory_kernel = DTP_KERNEL_STREAMING;
    dtp_draft_end(l, &draft);
}

static void reduce(struct dtp_lowering *l)
{
    struct sums *s = sums_of(l);
    bool casts = l->bytes.reduce != l->bytes.grads;
    dtp_buffer_id reduced = s->sum;
    struct dtp_draft draft;
    if (l->data_ranks == 1)
        return;
    if (casts)
        cast_sums(l, DTP_OP_COPY_IN, &reduced);
    dtp_draft_begin(l, &draft, DTP_OP_ALL_REDUCE, "gradient sums");
    draft.op.group = s->group;
    dtp_draft_use(&draft, reduced, DTP_UPDATE);
    draft.op.demand.sent_bytes = 2 * (double)dtp_lower_ring(l->bytes.reduce * s->elements, l->data_ranks);
    draft.op.demand.bytes = (double)(l->bytes.reduce * s->elements);
    dtp_draft_end(l, &draft);
    if (casts)
        cast_sums(l, DTP_OP_COPY_OUT, &reduced);
}

static dtp_buffer_id embedding_gradient(const struct dtp_lowering *l, uint64_t *offset_bytes)
{
    *offset_bytes = 0;
    return sums_of(l)->sum;
}

static void pass_over_sums(struct dtp_lowering *l, enum dtp_op_kind kind, const char *name, uint32_t access)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, kind, name);
    dtp_draft_use(&draft, sums_of(l)->sum, access);
    dtp_draft_memory(l, &draft, (double)(l->bytes.grads * sums_of(l)->elements), 1);
    draft.op.demand.memory_kernel = DTP_KERNEL_STREAMING;
    dtp_draft_end(l, &draft);
}

static void step(struct dtp_lowering *l)
{
    struct sums *s = sums_of(l);
    struct dtp_module_state *all = &l->state[l->transformer->layers];
    pass_over_sums(l, DTP_OP_SQUARE_SUM, "gradient norm", DTP_READ);
    dtp_lower_update(l, all->params, all->moments, &s->sum, 1, s->partition);
    if (l->data_ranks > 1) {
        struct dtp_draft draft;
        dtp_draft_begin(l, &draft, DTP_OP_ALL_GATHER, "updated weights");
        draft.op.group = s->group;
        dtp_draft_use(&draft, all->params, DTP_UPDATE);
        draft.op.demand.sent_bytes = (double)dtp_lower_ring(l->bytes.params * s->elements, l->data_ranks);
        draft.op.demand.bytes = (double)(l->bytes.params * s->elements);
        dtp_draft_end(l, &draft);
    }
    pass_over_sums(l, DTP_OP_ZERO, "sums of the next step", DTP_WRITE);
}

const struct dtp_lower_hooks dtp_lower_bf16_optimizer = {
    .make = make,
    .release = release,
    .begin_backward = begin_backward,
    .gradient_made = gradient_made,
    .end_backward = end_backward,
    .embedding_gradient = embedding_gradient,
    .passes_done = reduce,
    .step = step,
};
