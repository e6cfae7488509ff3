/* Parameters that every rank holds whole: PyTorch's DDP, with ZeroRedundancyOptimizer's sharded step.
 *
 * DDP lays gradients into buckets (ddp_buckets.h). They are all-reduced in order on the communicator's stream and
 * awaited at the end of backward (reducer.cpp). */
#include "lower/ddp_buckets.h"
#include "plan/optimizer_state.h"
#include "runtime/torch/lower_clip.h"
#include "runtime/torch/lower_comm_hook.h"
#include "runtime/torch/lower_foreach.h"
#include "runtime/torch/lower_muon.h"
#include "runtime/torch/lower_projected.h"
#include "runtime/torch/torch.h"

#include "base/bytes.h"

#include <stdlib.h>

struct dtp_lower_buckets {
    struct dtp_ddp_buckets laid;
    struct dtp_hooked_bucket *hooked; /* of each bucket; NULL without a hook */
    uint32_t group, next;             /* the first bucket that has not been reduced in this backward */
};

/* NULL on one GPU. */
static struct dtp_lower_buckets *buckets_of(const struct dtp_lowering *l)
{
    return l->own;
}

/* ---- state
 * ------------------------------------------------------------------------------------------------------------ */

/* Of a part of the rank that holds all: sums over rows and over columns of its matrices, or of vectors their own; one
 * momentum of a block's matrix, or two of its projected gradient and the projection; one moment of a matrix and a
 * number a row; of all else two moments. */
static void add_by_shape(struct dtp_lowering *l, const struct dtp_lower_module *module, int part,
                         struct dtp_lower_moments *out)
{
    uint64_t bytes = dtp_dtype_bytes(l->plan->precision.moments), rows = module->rows[part];
    uint64_t elements[3] = {module->elements[part], module->elements[part]};
    enum dtp_optimizer_shape shape = dtp_optimizer_row(l->plan->optimizer)->shape;
    if (shape == DTP_STATE_FACTORS)
        elements[0] = rows ? rows : elements[0], elements[1] = module->columns[part];
    else if (shape == DTP_STATE_ROWS && rows)
        elements[1] = rows;
    else if (shape == DTP_STATE_MATRICES && module->matrix[part])
        elements[1] = 0;
    else if (shape == DTP_STATE_PROJECTED && module->matrix[part]) {
        struct dtp_projection p;
        dtp_projection_of(l->plan, rows, module->columns[part], &p);
        elements[0] = elements[1] = p.moment_elements, elements[2] = p.projection_elements;
    }
    for (int i = 0; i < 3; i++)
        dtp_lower_add_state(l, out, dtp_bytes_product(bytes, elements[i]));
}

/* The optimizer's tensors of this rank's `own` elements of a module: whole tensors, as ZeroRedundancyOptimizer deals
 * them out, but for the last one, so that shares add up. */
static void make_moments(struct dtp_lowering *l, const struct dtp_lower_module *module, uint64_t own,
                         struct dtp_lower_moments *out)
{
    *out = (struct dtp_lower_moments){DTP_NO_BUFFER, 0};
    for (int part = 0; part < module->parts && own; part++) {
        if (!module->trained[part])
            continue;
        uint64_t elements = module->elements[part] < own ? module->elements[part] : own;
        if (dtp_optimizer_by_tensor(l->plan))
            add_by_shape(l, module, part, out);
        dtp_lower_add_moments(l, out, elements);
        own -= elements;
    }
}

/* A tensor of each matrix, one of all vectors, which are small; with adapters one of all. */
static void make_params(struct dtp_lowering *l, const struct dtp_lower_module *module, struct dtp_module_state *state)
{
    if (l->adapts) {
        state->params = dtp_lower_buffer(l, "params", DTP_OWNER_PARAMS, DTP_STREAM_COMPUTE, module->all_bytes, true);
        return;
    }
    for (int part = 0; part < module->parts; part++)
        if (module->bytes[part])
            state->whole[part] =
                dtp_lower_buffer(l, "params", DTP_OWNER_PARAMS, DTP_STREAM_COMPUTE, module->bytes[part], true);
}

/* State of a module: parameters whole; moments too, or this rank's share of what all modules have (rounded once). */
static void make_state(struct dtp_lowering *l)
{
    uint64_t ranks = l->plan->shard_group, before = 0;
    for (uint64_t i = 0; i <= l->transformer->layers; i++) {
        bool root = i == l->transformer->layers;
        const struct dtp_lower_module *module = dtp_lower_module_at(l, i);
        uint64_t elements = module->trained_elements;
        uint64_t own = dtp_divide_up(before + elements, ranks) - dtp_divide_up(before, ranks);
        before += elements;
        dtp_lower_stand(l, root ? DTP_NO_LAYER : (uint16_t)i);
        make_params(l, module, &l->state[i]);
        make_moments(l, module, own, &l->state[i].moments);
    }
    dtp_lower_stand(l, DTP_NO_LAYER);
}

static enum dtp_status make(struct dtp_lowering *l)
{
    make_state(l);
    if (l->data_ranks == 1)
        return DTP_OK;
    struct dtp_lower_buckets *made = l->own = calloc(1, sizeof *made);
    if (!made)
        return dtp_fault(l->faults, DTP_ENVIRONMENT, NULL, 0, "no memory to lower the step");
    enum dtp_status status =
        dtp_ddp_buckets_lay_out(l, l->bytes.grads, l->ends_bytes.grads, l->plan->ddp_bucket_bytes, &made->laid);
    for (uint32_t i = 0; i < made->laid.count; i++)
        made->laid.bucket[i].buffer =
            dtp_lower_buffer(l, "bucket", DTP_OWNER_GRADS, DTP_STREAM_COMPUTE, made->laid.bucket[i].bytes, true);
    made->group = dtp_lower_data_group(l, l->data_ranks, 1);
    if (status != DTP_OK || l->plan->comm_hook == DTP_COMM_HOOK_NONE)
        return status;
    made->hooked = dtp_hooked_make(l, &made->laid);
    return made->hooked ? DTP_OK : dtp_fault(l->faults, DTP_ENVIRONMENT, NULL, 0, "no memory to lower the step");
}

static void release(struct dtp_lowering *l)
{
    if (l->own) {
        dtp_ddp_buckets_release(&buckets_of(l)->laid);
        free(buckets_of(l)->hooked);
    }
    free(l->own);
}

/* ---- reduction --------------------------------------------------------------------------------------------------- */

static void all_reduce(struct dtp_lowering *l, struct dtp_ddp_bucket *bucket)
{
    uint64_t gpus = l->data_ranks;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ALL_REDUCE, "bucket");
    draft.op.stream = DTP_STREAM_REDUCE;
    draft.op.group = buckets_of(l)->group;
    dtp_draft_use(&draft, bucket->buffer, DTP_UPDATE);
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_COMPUTE]);
    uint64_t sent = dtp_lower_ring(bucket->before + bucket->bytes, gpus) - dtp_lower_ring(bucket->before, gpus);
    draft.op.demand.sent_bytes = 2 * (double)sent;
    draft.op.demand.bytes = (double)bucket->bytes;
    dtp_draft_end(l, &draft);
}

/* Full ones, each behind those before it (mark_bucket_ready): where dtypes have buckets of their own, one may be full
 * before. */
static void reduce_full(struct dtp_lowering *l)
{
    struct dtp_lower_buckets *own = buckets_of(l);
    for (; own->next < own->laid.count; own->next++) {
        struct dtp_ddp_bucket *bucket = &own->laid.bucket[own->next];
        if (bucket->ready < bucket->parts)
            return;
        bucket->ready = 0;
        if (own->hooked)
            dtp_hooked_reduce(l, bucket, &own->hooked[own->next], own->group);
        else
            all_reduce(l, bucket);
    }
    own->next = 0;
}

/* The gradient, or the .grad it was added to, into its place; with views the bucket is .grad from then on. */
static void into_bucket(struct dtp_lowering *l, int part)
{
    struct dtp_module_state *state = dtp_lower_state(l);
    const struct dtp_lower_module *module = l->layer == DTP_NO_LAYER ? &l->root : &l->block;
    struct dtp_ddp_bucket *bucket = &buckets_of(l)->laid.bucket[state->bucket[part]];
    bool apart = state->kept[part].index != DTP_NO_INDEX, view = l->plan->ddp_bucket_view;
    bool adds = view && !apart && l->micro_step > 0;
    dtp_buffer_id *source = apart ? &state->kept[part] : &state->gradient[part];
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, adds ? DTP_OP_ACCUMULATE : DTP_OP_COPY_IN, module->gradient_name[part]);
    dtp_draft_use(&draft, bucket->buffer, adds ? DTP_UPDATE : DTP_WRITE);
    dtp_draft_use(&draft, *source, view ? DTP_READ | DTP_FREE : DTP_READ);
    if (view)
        *source = DTP_NO_BUFFER;
    dtp_draft_memory(l, &draft, (double)((adds ? 3 : 2) * dtp_lower_bytes(l)->grads * module->elements[part]), 1);
    draft.op.demand.memory_kernel = DTP_KERNEL_FUSED;
    dtp_draft_end(l, &draft);
    bucket->ready++;
    reduce_full(l);
}

static dtp_buffer_id bucket_of(const struct dtp_lowering *l, uint64_t module, int part)
{
    const struct dtp_lower_module *shape = dtp_lower_module_at(l, module);
    return shape->trained[part] ? buckets_of(l)->laid.bucket[l->state[module].bucket[part]].buffer : DTP_NO_BUFFER;
}

/* End of backward: compute waits for every reduction (finalize_backward), and without views the reduced buckets are
 * copied back into .grad. */
static void end_backward(struct dtp_lowering *l)
{
    struct dtp_draft draft;
    if (!buckets_of(l) || !l->reduces)
        return;
    dtp_draft_begin(l, &draft, DTP_OP_MARK, "gradients reduced");
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_REDUCE]);
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_COPY]); /* of a hook */
    dtp_draft_end(l, &draft);
    if (l->plan->ddp_bucket_view)
        return;
    for (uint64_t i = 0; i <= l->transformer->layers; i++) {
        bool root = i == l->transformer->layers;
        dtp_lower_stand(l, root ? DTP_NO_LAYER : (uint16_t)i);
        const struct dtp_lower_module *module = dtp_lower_module_at(l, i);
        for (int part = 0; part < module->parts; part++) {
            if (l->state[i].kept[part].index == DTP_NO_INDEX)
                continue;
            dtp_draft_begin(l, &draft, DTP_OP_COPY_OUT, module->gradient_name[part]);
            dtp_draft_use(&draft, buckets_of(l)->laid.bucket[l->state[i].bucket[part]].buffer, DTP_READ);
            dtp_draft_use(&draft, l->state[i].kept[part], DTP_WRITE);
            dtp_draft_memory(l, &draft, (double)(2 * dtp_lower_bytes(l)->grads * module->elements[part]), 1);
            draft.op.demand.memory_kernel = DTP_KERNEL_FUSED;
            dtp_draft_end(l, &draft);
        }
    }
    dtp_lower_stand(l, DTP_NO_LAYER);
}

/* ---- ZeroRedundancyOptimizer ------------------------------------------------------------------------------------- */

/* Each tensor is broadcast by the rank that updated it, one after another once the step is done. Around a ring a
 * broadcast of B is sent on by n-1 ranks; averaged over all owners each sends B(n-1)/n, as in an all-gather. */
static void broadcast(struct dtp_lowering *l)
{
    uint64_t gpus = l->data_ranks, before = 0;
    if (l->plan->strategy != DTP_ZERO1 || gpus == 1)
        return;
    for (uint64_t i = 0; i <= l->transformer->layers; i++) {
        bool root = i == l->transformer->layers;
        dtp_lower_stand(l, root ? DTP_NO_LAYER : (uint16_t)i);
        const struct dtp_lower_module *module = dtp_lower_module_at(l, i);
        for (int part = 0; part < module->parts; part++)
            for (uint32_t tensor = 0; tensor < module->tensors[part] && module->trained[part]; tensor++) {
                uint64_t bytes = module->bytes[part], count = module->tensors[part];
                uint64_t end = before + (tensor + 1 == count ? bytes - bytes / count * tensor : bytes / count);
                struct dtp_draft draft;
                dtp_draft_begin(l, &draft, DTP_OP_ALL_GATHER, "broadcast of updated weights");
                draft.op.stream = DTP_STREAM_REDUCE;
                draft.op.group = buckets_of(l)->group;
                dtp_draft_use(&draft, dtp_lower_params(&l->state[i], part), DTP_UPDATE);
                dtp_draft_after(&draft, l->last_op[DTP_STREAM_COMPUTE]);
                draft.op.demand.sent_bytes = (double)(dtp_lower_ring(end, gpus) - dtp_lower_ring(before, gpus));
                dtp_draft_end(l, &draft);
                before = end;
            }
    }
    dtp_lower_stand(l, DTP_NO_LAYER);
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

static void gradient_made(struct dtp_lowering *l, int part)
{
    bool looked_up = l->layer == DTP_NO_LAYER && (part == DTP_ROOT_EMBEDDING || part == DTP_ROOT_POSITION);
    if (l->autocast && !looked_up)
        dtp_lower_cast_gradient(l, part);
    /* bucket views are .grad themselves once a reduction has filled them; otherwise .grad is a tensor of its own */
    if (!l->own || !l->plan->ddp_bucket_view || (l->plan->accumulate > 1 && !l->plan->accumulate_sync))
        dtp_lower_keep_gradient(l, part);
    if (l->own && l->reduces)
        into_bucket(l, part);
}

/* Alone, autograd's gradient becomes .grad, unless it is cast first. */
static bool gradient_rests(const struct dtp_lowering *l)
{
    return !l->own && !l->autocast;
}

/* ---- the step ---------------------------------------------------------------------------------------------------- */

/* zero_grad(set_to_none=True) after the step. */
static void free_gradients(struct dtp_lowering *l, uint64_t module, int parts)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_FREE, "zero_grad");
    for (int part = 0; part < parts; part++) {
        dtp_draft_use(&draft, l->state[module].kept[part], DTP_FREE);
        l->state[module].kept[part] = DTP_NO_BUFFER;
    }
    if (draft.operand_count)
        dtp_draft_end(l, &draft);
}

/* Moments, and the parameters that stand as tensors of their own, which were made right before them. */
static struct dtp_lower_moments updated(const struct dtp_lower_module *module, const struct dtp_module_state *state)
{
    struct dtp_lower_moments all = {DTP_NO_BUFFER, state->moments.count};
    for (int part = module->parts - 1; part >= 0; part--)
        if (state->whole[part].index != DTP_NO_INDEX) {
            all.first = state->whole[part];
            all.count++;
        }
    return all.first.index == DTP_NO_INDEX ? state->moments : all;
}

/* The rank's rows of a table's gradient that is whole, for the time of the update; else DTP_NO_BUFFER. */
static dtp_buffer_id own_table_rows(struct dtp_lowering *l)
{
    dtp_buffer_id whole = l->state[l->transformer->layers].kept[DTP_ROOT_EMBEDDING];
    bool more = dtp_lower_made_elements(l, &l->root, DTP_ROOT_EMBEDDING) > l->root.elements[DTP_ROOT_EMBEDDING];
    return more && whole.index != DTP_NO_INDEX ? dtp_lower_cut_gradient(l, whole, l->bytes.grads, false)
                                               : DTP_NO_BUFFER;
}

static void free_rows(struct dtp_lowering *l, dtp_buffer_id rows)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_FREE, "rows of the embedding gradient");
    dtp_draft_use(&draft, rows, DTP_FREE);
    dtp_draft_end(l, &draft);
}

static void list_gradients(const struct dtp_lowering *l, uint64_t index, const struct dtp_lower_module *module,
                           dtp_buffer_id out[DTP_MAX_PARTS])
{
    for (int part = 0; part < module->parts; part++) {
        bool apart = l->state[index].kept[part].index != DTP_NO_INDEX;
        out[part] = apart || !l->own ? l->state[index].kept[part] : bucket_of(l, index, part);
    }
}

static bool module_at(struct dtp_lowering *l, uint64_t index, struct dtp_clipped *out)
{
    *out = (struct dtp_clipped){0};
    if (index > l->transformer->layers)
        return false;
    const struct dtp_lower_module *module = dtp_lower_module_at(l, index);
    dtp_lower_stand(l, index == l->transformer->layers ? DTP_NO_LAYER : (uint16_t)index);
    list_gradients(l, index, module, out->grads);
    out->count = module->parts, out->elements = module->trained_elements;
    for (int part = 0; part < module->parts; part++)
        dtp_torch_count_clipped(l, module, part, 1, out);
    return true;
}

static void passes_done(struct dtp_lowering *l)
{
    dtp_torch_take_norm(l, module_at, DTP_NO_INDEX, 1);
}

static void update_modules(struct dtp_lowering *l)
{
    uint64_t ranks = l->plan->shard_group, before = 0;
    dtp_buffer_id rows = own_table_rows(l);
    for (uint64_t i = 0; i <= l->transformer->layers; i++) {
        bool root = i == l->transformer->layers;
        const struct dtp_lower_module *module = dtp_lower_module_at(l, i);
        dtp_lower_stand(l, root ? DTP_NO_LAYER : (uint16_t)i);
        dtp_buffer_id grads[DTP_MAX_PARTS];
        list_gradients(l, i, module, grads);
        if (root && rows.index != DTP_NO_INDEX)
            grads[DTP_ROOT_EMBEDDING] = rows;
        uint64_t end = before + module->trained_elements;
        uint64_t apart = dtp_lower_muon(l, module, i) + dtp_lower_projected(l, module, i);
        dtp_lower_update(l, l->state[i].params, updated(module, &l->state[i]), grads, module->parts,
                         dtp_divide_up(end, ranks) - dtp_divide_up(before, ranks) - apart);
        before = end;
    }
    if (rows.index != DTP_NO_INDEX)
        free_rows(l, rows);
    for (uint64_t i = 0; i <= l->transformer->layers; i++)
        free_gradients(l, i, dtp_lower_module_at(l, i)->parts);
    dtp_lower_stand(l, DTP_NO_LAYER);
}

static void step(struct dtp_lowering *l)
{
    dtp_torch_clip(l, module_at);
    dtp_buffer_id roots = dtp_lower_foreach_begin(l, dtp_divide_up(dtp_lower_all_elements(l), l->plan->shard_group));
    update_modules(l);
    dtp_lower_foreach_end(l, roots);
    broadcast(l);
}

const struct dtp_lower_hooks dtp_lower_ddp = {
    .make = make,
    .release = release,
    .before_forward = dtp_torch_call_compiled,
    .before_backward = dtp_torch_call_compiled,
    .end_backward = end_backward,
    .end_micro_step = dtp_torch_await_loss,
    .passes_done = passes_done,
    .gradient_made = gradient_made,
    .gradient_rests = gradient_rests,
    .step = step,
};
