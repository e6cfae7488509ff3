/* nanotron's gradients: autograd makes them in 16 bits, and after each micro-step they are added to sums in fp32
 * (gradient_accumulator.py).
 *
 * Where DDP wraps the model, the last micro-step adds them bucket by bucket inside of DDP's communication hook, which
 * all-reduces the sums beside backward. Under ZeRO-1 nothing does: all sums are reduced behind the last backward,
 * whole, not scattered, and each rank's updated part is gathered behind the step. The optimizer owns an fp32 master in
 * one piece. */
#include "lower/ddp_buckets.h"
#include "runtime/nanotron/nanotron.h"

#include "base/bytes.h"

#include <stdlib.h>

struct sums {
    struct dtp_ddp_buckets laid; /* one bucket of everything where DDP is not there; without `buffer` then */
    dtp_buffer_id *sum;          /* fp32, of each bucket: parts of one buffer */
    dtp_buffer_id master;
    uint32_t group;
    dtp_buffer_id held; /* from the first backward to the step, or none */
    bool ddp;
};

static struct sums *sums_of(const struct dtp_lowering *l)
{
    return l->own;
}

static uint64_t model_elements(const struct dtp_lowering *l)
{
    return l->transformer->layers * l->block.all_elements + l->root.all_elements;
}

static uint32_t tensors_of(const struct dtp_lower_module *module)
{
    uint32_t tensors = 0;
    for (int part = 0; part < module->parts; part++)
        tensors += module->tensors[part];
    return tensors;
}

/* ---- state at rest ------------------------------------------------------------------------------------------------
 */

/* Moments of this rank's part of each tensor; that of a module is rounded once. */
static void make_module(struct dtp_lowering *l, uint64_t index, uint64_t own)
{
    const struct dtp_lower_module *module = dtp_lower_module_at(l, index);
    struct dtp_module_state *state = &l->state[index];
    uint64_t each = dtp_dtype_bytes(l->plan->precision.moments), moments = l->bytes.moments / each;
    dtp_lower_stand_at(l, index);
    state->params = dtp_lower_buffer(l, "params", DTP_OWNER_PARAMS, DTP_STREAM_COMPUTE,
                                     l->bytes.params * module->all_elements, true);
    for (int part = 0; part < module->parts && own; part++) {
        uint64_t elements = part + 1 == module->parts || module->elements[part] > own
                                ? own
                                : dtp_divide_up(module->elements[part], l->plan->shard_group);
        elements = elements < own ? elements : own;
        for (uint64_t i = 0; i < moments; i++)
            dtp_lower_add_state(l, &state->moments, each * elements);
        own -= elements;
    }
}

static void make_state(struct dtp_lowering *l)
{
    uint64_t ranks = l->plan->shard_group, before = 0;
    sums_of(l)->master = dtp_lower_buffer(l, "master weights", DTP_OWNER_OPTIMIZER, DTP_STREAM_COMPUTE,
                                          l->bytes.master * dtp_divide_up(model_elements(l), ranks), true);
    for (uint64_t i = 0; i <= l->transformer->layers; i++) {
        uint64_t end = before + dtp_lower_module_at(l, i)->all_elements;
        make_module(l, i, dtp_divide_up(end, ranks) - dtp_divide_up(before, ranks));
        before = end;
    }
    l->layer = DTP_NO_LAYER;
}

static enum dtp_status make(struct dtp_lowering *l)
{
    struct sums *s = l->own = calloc(1, sizeof *s);
    if (!s)
        return dtp_fault(l->faults, DTP_ENVIRONMENT, NULL, 0, "no memory to lower the step");
    s->held = DTP_NO_BUFFER;
    s->ddp = dtp_nanotron_wraps_ddp(l->plan, l->data_ranks);
    enum dtp_status status = dtp_ddp_buckets_lay_out(l, l->bytes.params, l->bytes.params,
                                                     s->ddp ? l->plan->ddp_bucket_bytes : UINT64_MAX, &s->laid);
    if (status != DTP_OK)
        return status;
    s->sum = calloc(s->laid.count + 1, sizeof *s->sum);
    if (!s->sum)
        return dtp_fault(l->faults, DTP_ENVIRONMENT, NULL, 0, "no memory to lower the step");
    make_state(l);
    for (uint32_t i = 0; i < s->laid.count; i++) {
        uint64_t bytes = s->laid.bucket[i].bytes;
        s->sum[i] = dtp_lower_buffer(l, "gradient sums", DTP_OWNER_GRADS, DTP_STREAM_COMPUTE,
                                     bytes / l->bytes.params * l->bytes.grads, true);
        s->laid.bucket[i].buffer =
            s->ddp ? dtp_lower_buffer(l, "bucket", DTP_OWNER_GRADS, DTP_STREAM_COMPUTE, bytes, true) : DTP_NO_BUFFER;
    }
    if (l->data_ranks > 1)
        s->group = dtp_lower_data_group(l, l->data_ranks, 1);
    return DTP_OK;
}

static void release(struct dtp_lowering *l)
{
    if (!l->own)
        return;
    dtp_ddp_buckets_release(&sums_of(l)->laid);
    free(sums_of(l)->sum);
    free(l->own);
}

/* ---- reduction --------------------------------------------------------------------------------------------------- */

/* An all-reduce of the sums of one bucket. */
static void all_reduce(struct dtp_lowering *l, uint32_t index)
{
    const struct dtp_ddp_bucket *bucket = &sums_of(l)->laid.bucket[index];
    uint64_t gpus = l->data_ranks, wide = l->bytes.reduce, narrow = l->bytes.params;
    uint64_t first = bucket->before / narrow * wide, bytes = bucket->bytes / narrow * wide;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ALL_REDUCE, "gradient sums");
    draft.op.stream = DTP_STREAM_REDUCE;
    draft.op.group = sums_of(l)->group;
    dtp_draft_use(&draft, sums_of(l)->sum[index], DTP_UPDATE);
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_COMPUTE]);
    draft.op.demand.sent_bytes = 2 * (double)(dtp_lower_ring(first + bytes, gpus) - dtp_lower_ring(first, gpus));
    draft.op.demand.bytes = (double)bytes;
    dtp_draft_end(l, &draft);
}

static void await_reductions(struct dtp_lowering *l)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_MARK, "gradients reduced");
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_REDUCE]);
    dtp_draft_end(l, &draft);
}

/* sum += gradient: wide + narrow in, wide out. */
static double adding_bytes(const struct dtp_lowering *l, uint64_t elements)
{
    return (double)((2 * l->bytes.grads + l->bytes.params) * elements);
}

/* DDP's hook: the bucket's gradients join the sums, tensor by tensor, and the sums are sent. */
static void send_bucket(struct dtp_lowering *l, uint32_t index)
{
    struct dtp_ddp_bucket *bucket = &sums_of(l)->laid.bucket[index];
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ACCUMULATE, "bucket");
    dtp_draft_use(&draft, sums_of(l)->sum[index], DTP_UPDATE);
    dtp_draft_use(&draft, bucket->buffer, DTP_READ);
    dtp_draft_memory(l, &draft, adding_bytes(l, bucket->bytes / l->bytes.params), 1);
    draft.op.demand.memory_kernel = DTP_KERNEL_STREAMING;
    dtp_draft_end(l, &draft);
    bucket->ready = 0;
    all_reduce(l, index);
}

static bool fills_buckets(const struct dtp_lowering *l)
{
    return sums_of(l)->ddp && l->reduces;
}

/* Autograd's thread takes cuBLAS' workspace at its first product (CublasHandlePool.cpp), the head's, when the fp32
 * logits that the loss has just left lie free: it splits one of them, so that those of the next micro-step do not fit
 * and the allocator takes another. That it is back before the step is what runs show, and why is not known: of 19
 * without tensor parallelism those with several micro-steps have reserved one tensor of fp32 logits more than they need
 * (unless Adam's states fill it), those with one have not, and by this rule all are within 0.4 %. */
static void begin_backward(struct dtp_lowering *l)
{
    struct dtp_draft draft;
    if (sums_of(l)->held.index != DTP_NO_INDEX)
        return;
    dtp_draft_begin(l, &draft, DTP_OP_ALLOC, "");
    sums_of(l)->held = dtp_draft_new(l, &draft, "cuBLAS workspace", DTP_OWNER_WORKSPACE,
                                     dtp_plan_cublas_workspace(&l->cluster->gpu), 0);
    dtp_draft_end(l, &draft);
}

static void let_go(struct dtp_lowering *l)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_FREE, "cuBLAS workspace");
    dtp_draft_use(&draft, sums_of(l)->held, DTP_FREE);
    dtp_draft_end(l, &draft);
    sums_of(l)->held = DTP_NO_BUFFER;
}

/* .grad stays beside the bucket it is copied into, for DDP's buckets are no views here. */
static void gradient_made(struct dtp_lowering *l, int part)
{
    struct dtp_module_state *state = dtp_lower_state(l);
    const struct dtp_lower_module *module = l->layer == DTP_NO_LAYER ? &l->root : &l->block;
    dtp_lower_keep_gradient(l, part);
    if (!fills_buckets(l))
        return;
    struct dtp_ddp_bucket *bucket = &sums_of(l)->laid.bucket[state->bucket[part]];
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_COPY_IN, module->gradient_name[part]);
    dtp_draft_use(&draft, bucket->buffer, DTP_WRITE);
    dtp_draft_use(&draft, state->kept[part], DTP_READ);
    dtp_draft_memory(l, &draft, (double)(2 * l->bytes.params * module->elements[part]), 1);
    draft.op.demand.memory_kernel = DTP_KERNEL_STREAMING;
    dtp_draft_end(l, &draft);
    if (++bucket->ready == bucket->parts)
        send_bucket(l, state->bucket[part]);
}

static bool gradient_rests(const struct dtp_lowering *l)
{
    (void)l;
    return true;
}

/* What DDP has reduced is copied back into .grad, which nobody reads; otherwise .grad joins the sums. Then it goes. */
static void take_gradients(struct dtp_lowering *l, uint64_t index)
{
    const struct dtp_lower_module *module = dtp_lower_module_at(l, index);
    struct dtp_module_state *state = &l->state[index];
    bool back = fills_buckets(l);
    double bytes = back ? (double)(2 * l->bytes.params * module->all_elements) : adding_bytes(l, module->all_elements);
    struct dtp_draft draft;
    dtp_lower_stand_at(l, index);
    dtp_draft_begin(l, &draft, back ? DTP_OP_COPY_OUT : DTP_OP_ACCUMULATE, "gradients");
    for (int part = 0; part < module->parts; part++) {
        if (state->kept[part].index == DTP_NO_INDEX)
            continue;
        const struct dtp_ddp_bucket *bucket = &sums_of(l)->laid.bucket[state->bucket[part]];
        if (back)
            dtp_draft_use(&draft, bucket->buffer, DTP_READ);
        else
            dtp_draft_use(&draft, sums_of(l)->sum[state->bucket[part]], DTP_UPDATE);
        dtp_draft_use(&draft, state->kept[part], back ? DTP_UPDATE | DTP_FREE : DTP_READ | DTP_FREE);
        state->kept[part] = DTP_NO_BUFFER;
    }
    dtp_draft_memory(l, &draft, bytes, 1);
    draft.op.demand.memory_kernel = DTP_KERNEL_STREAMING;
    dtp_draft_end(l, &draft);
}

static void end_backward(struct dtp_lowering *l)
{
    for (uint64_t i = 0; i <= l->transformer->layers; i++)
        take_gradients(l, i);
    l->layer = DTP_NO_LAYER;
    if (!l->reduces || l->data_ranks == 1)
        return;
    if (!sums_of(l)->ddp)
        all_reduce(l, 0);
    await_reductions(l);
}

/* It lies behind all others. */
static dtp_buffer_id embedding_gradient(const struct dtp_lowering *l, uint64_t *offset_bytes)
{
    uint32_t last = sums_of(l)->laid.count - 1;
    uint64_t elements = sums_of(l)->laid.bucket[last].bytes / l->bytes.params;
    *offset_bytes = (elements - l->root.elements[DTP_ROOT_EMBEDDING]) * l->bytes.grads;
    return sums_of(l)->sum[last];
}

/* ---- the step ---------------------------------------------------------------------------------------------------- */

/* A pass over the sums of the whole model, which the host issues tensor by tensor: about as long as a launch with
 * autograd takes for each module. */
static void pass_over_sums(struct dtp_lowering *l, enum dtp_op_kind kind, const char *name, uint32_t access,
                           uint64_t element_bytes)
{
    uint32_t launches = (uint32_t)l->transformer->layers + 1;
    for (uint32_t i = 0; i < sums_of(l)->laid.count; i++) {
        const struct dtp_ddp_bucket *bucket = &sums_of(l)->laid.bucket[i];
        struct dtp_draft draft;
        dtp_draft_begin(l, &draft, kind, name);
        dtp_draft_use(&draft, sums_of(l)->sum[i], access);
        dtp_draft_memory(l, &draft, (double)(bucket->bytes / l->bytes.params * element_bytes), i == 0 ? launches : 0);
        draft.op.demand.memory_kernel = DTP_KERNEL_STREAMING;
        dtp_draft_end(l, &draft);
    }
}

/* The master becomes the 16-bit weight by a copy of its own. */
static void refresh(struct dtp_lowering *l, uint64_t index, uint64_t own)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_CAST, "weights of the master");
    dtp_draft_use(&draft, sums_of(l)->master, DTP_READ);
    dtp_draft_use(&draft, l->state[index].params, DTP_UPDATE);
    dtp_draft_memory(l, &draft, (double)(DTP_NANOTRON_REFRESH_BYTES * own), 1);
    draft.op.demand.memory_kernel = DTP_KERNEL_STREAMING;
    dtp_draft_end(l, &draft);
}

static void update(struct dtp_lowering *l, uint64_t index, uint64_t own)
{
    const struct dtp_lower_module *module = dtp_lower_module_at(l, index);
    dtp_buffer_id read[DTP_MAX_PARTS + 1] = {sums_of(l)->master};
    int count = 1;
    dtp_lower_stand_at(l, index);
    for (int part = 0; part < module->parts; part++)
        if (module->elements[part])
            read[count++] = sums_of(l)->sum[l->state[index].bucket[part]];
    dtp_lower_update(l, l->state[index].params, l->state[index].moments, read, count, own);
    refresh(l, index, own);
}

#define MOST_PIECES 32u /* of a flattened copy that are told apart */

/* ZeRO-1's gather: a flattened copy of each rank's part, which NCCL fills from one flat buffer of its own. */
struct gathered {
    dtp_buffer_id piece[MOST_PIECES];
    uint32_t pieces;
};

static void use_pieces(struct dtp_draft *draft, const struct gathered *flat, uint32_t access)
{
    for (uint32_t i = 0; i < flat->pieces; i++)
        dtp_draft_use(draft, flat->piece[i], access);
}

static void flatten(struct dtp_lowering *l, uint64_t total, struct gathered *out)
{
    uint64_t bytes = l->bytes.params * total;
    out->pieces = l->data_ranks < MOST_PIECES ? l->data_ranks : MOST_PIECES;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_COPY_IN, "flattened weights");
    for (uint32_t i = 0; i < out->pieces; i++)
        out->piece[i] =
            dtp_draft_new(l, &draft, "flat weights", DTP_OWNER_WORKSPACE, dtp_divide_up(bytes, out->pieces), DTP_WRITE);
    dtp_draft_memory(l, &draft, (double)(DTP_NANOTRON_GATHER_BYTES * total), 1);
    draft.op.demand.memory_kernel = DTP_KERNEL_STREAMING;
    dtp_draft_end(l, &draft);
}

static void gather_flat(struct dtp_lowering *l, uint64_t total, const struct gathered *flat)
{
    uint64_t bytes = l->bytes.params * total;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ALLOC, "");
    dtp_buffer_id whole = dtp_draft_new(l, &draft, "gathered weights", DTP_OWNER_WORKSPACE, bytes, 0);
    dtp_draft_end(l, &draft);
    dtp_draft_begin(l, &draft, DTP_OP_ALL_GATHER, "updated weights");
    draft.op.stream = DTP_STREAM_REDUCE;
    draft.op.group = sums_of(l)->group;
    dtp_draft_use(&draft, whole, DTP_WRITE);
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_COMPUTE]);
    draft.op.demand.sent_bytes = (double)dtp_lower_ring(bytes, l->data_ranks);
    draft.op.demand.bytes = (double)bytes;
    dtp_draft_end(l, &draft);
    dtp_draft_begin(l, &draft, DTP_OP_COPY_OUT, "weights of all ranks");
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_REDUCE]);
    dtp_draft_use(&draft, whole, DTP_READ | DTP_FREE);
    use_pieces(&draft, flat, DTP_UPDATE);
    dtp_draft_memory(l, &draft, (double)(DTP_NANOTRON_GATHER_BYTES * total), 1);
    draft.op.demand.memory_kernel = DTP_KERNEL_STREAMING;
    dtp_draft_end(l, &draft);
}

/* Each parameter's part of each rank is copied back by itself, booked as the bytes that memory moves meanwhile. */
static void scatter(struct dtp_lowering *l, const struct gathered *flat)
{
    uint64_t layers = l->transformer->layers;
    double bytes_per_s =
        dtp_memory_kernel_bytes_per_s(&l->cluster->gpu, dtp_program_execution(l->program), DTP_KERNEL_STREAMING);
    for (uint64_t i = 0; i <= layers; i++) {
        const struct dtp_lower_module *module = dtp_lower_module_at(l, i);
        double seconds = dtp_nanotron_scatter_s(bytes_per_s, module->all_elements, tensors_of(module), l->data_ranks);
        struct dtp_draft draft;
        dtp_lower_stand_at(l, i);
        dtp_draft_begin(l, &draft, DTP_OP_COPY_OUT, "gathered weights");
        use_pieces(&draft, flat, i == layers ? DTP_READ | DTP_FREE : DTP_READ);
        dtp_draft_use(&draft, l->state[i].params, DTP_WRITE);
        dtp_draft_memory(l, &draft, bytes_per_s * seconds, 1);
        draft.op.demand.memory_kernel = DTP_KERNEL_STREAMING;
        dtp_draft_end(l, &draft);
    }
    l->layer = DTP_NO_LAYER;
}

static void gather(struct dtp_lowering *l)
{
    struct gathered flat;
    uint64_t total = model_elements(l);
    flatten(l, total, &flat);
    gather_flat(l, total, &flat);
    scatter(l, &flat);
}

static void step(struct dtp_lowering *l)
{
    uint64_t ranks = l->plan->shard_group, before = 0;
    if (sums_of(l)->held.index != DTP_NO_INDEX)
        let_go(l);
    pass_over_sums(l, DTP_OP_SQUARE_SUM, "gradient norm", DTP_READ, DTP_NANOTRON_NORM_BYTES);
    pass_over_sums(l, DTP_OP_CLIP_SCALE, "clipped gradients", DTP_UPDATE, DTP_NANOTRON_CLIP_BYTES);
    for (uint64_t i = 0; i <= l->transformer->layers; i++) {
        uint64_t end = before + dtp_lower_module_at(l, i)->all_elements;
        update(l, i, dtp_divide_up(end, ranks) - dtp_divide_up(before, ranks));
        before = end;
    }
    l->layer = DTP_NO_LAYER;
    if (l->plan->strategy == DTP_ZERO1 && l->data_ranks > 1)
        gather(l);
    pass_over_sums(l, DTP_OP_ZERO, "sums of the next step", DTP_WRITE, DTP_NANOTRON_ZERO_BYTES);
}

const struct dtp_lower_hooks dtp_lower_nanotron = {
    .make = make,
    .release = release,
    .begin_backward = begin_backward,
    .gradient_made = gradient_made,
    .gradient_rests = gradient_rests,
    .end_backward = end_backward,
    .embedding_gradient = embedding_gradient,
    .step = step,
};
