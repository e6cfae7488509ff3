/* DDP calls a hook on the stream of backward when a bucket is full; what follows a collective (`then`) runs on a stream
 * from PyTorch's pool once it is done.
 *
 * What a collective reads is held until NCCL's watchdog, which looks ten times a second, has seen it done
 * (ProcessGroupNCCL's stash): a step that is short beside that begins with the 16-bit copies of the step before, so
 * they are counted as standing. Of a longer step that is up to 2 bytes a parameter too much.
 *
 * PowerSGD's last continuation synchronises the device before it takes what was lost (powerSGD_hook.py, decompress), so
 * the host issues backward's next kernels when the bucket is through: nothing hides it. Its matmuls run on all 32
 * streams of the pool in turn, and cuBLAS keeps a workspace for each. */
#include "runtime/torch/lower_comm_hook.h"

#include "cost/op_cost.h"

#include <stdlib.h>

/* ---- what stands ------------------------------------------------------------------------------------------------- */

static void factor_module(const struct dtp_lowering *l, uint64_t index, struct dtp_hooked_bucket *hooked)
{
    const struct dtp_lower_module *module = dtp_lower_module_at(l, index);
    for (int part = 0; part < module->parts; part++) { /* every matrix has a side of the model's width */
        bool vectors = index == l->transformer->layers ? part == DTP_ROOT_VECTORS : !module->matrix[part];
        uint64_t columns = vectors ? 0 : l->transformer->hidden;
        if (module->elements[part])
            dtp_factored_add(&hooked[l->state[index].bucket[part]].factored, module->elements[part], columns,
                             module->tensors[part], l->plan->powersgd_rank);
    }
}

static void make_powersgd(struct dtp_lowering *l, const struct dtp_ddp_buckets *buckets,
                          struct dtp_hooked_bucket *hooked)
{
    uint64_t g = l->bytes.grads, before_bytes = 0;
    for (uint64_t i = 0; i <= l->transformer->layers; i++)
        factor_module(l, i, hooked);
    for (uint32_t i = 0; i < buckets->count; i++) {
        struct dtp_hooked_bucket *h = &hooked[i];
        h->error =
            dtp_lower_buffer(l, "what was lost", DTP_OWNER_REDUCE, DTP_STREAM_COMPUTE, buckets->bucket[i].bytes, true);
        h->compressed = dtp_lower_buffer(l, "P and Q", DTP_OWNER_REDUCE, DTP_STREAM_COMPUTE,
                                         g * (h->factored.p + h->factored.q), true);
        h->before_bytes = before_bytes;
        before_bytes += g * dtp_factored_elements(&h->factored);
    }
    for (int stream = 0; stream < DTP_POWERSGD_STREAMS; stream++)
        dtp_lower_buffer(l, "cuBLAS workspace of a hook's stream", DTP_OWNER_REDUCE, DTP_STREAM_COMPUTE,
                         dtp_plan_cublas_workspace(&l->cluster->gpu), true);
}

/* What the hook returns is what gradients are copied out of, until it returns the next (populate_bucket_views_out in
 * reducer.cpp); the bucket stays beside it. */
static void make_sums(struct dtp_lowering *l, const struct dtp_ddp_buckets *buckets, struct dtp_hooked_bucket *hooked)
{
    for (uint32_t i = 0; i < buckets->count; i++) {
        hooked[i].compressed = dtp_lower_buffer(l, "sum of a bucket", DTP_OWNER_REDUCE, DTP_STREAM_COMPUTE,
                                                buckets->bucket[i].bytes, true);
        hooked[i].before_bytes = l->data_ranks * (buckets->bucket[i].before / l->bytes.grads);
        hooked[i].error = DTP_NO_BUFFER;
    }
}

static void make_casts(struct dtp_lowering *l, const struct dtp_ddp_buckets *buckets, struct dtp_hooked_bucket *hooked)
{
    for (uint32_t i = 0; i < buckets->count; i++) {
        const struct dtp_ddp_bucket *bucket = &buckets->bucket[i];
        uint64_t bytes = l->bytes.reduce * (bucket->bytes / l->bytes.grads);
        hooked[i].compressed =
            dtp_lower_buffer(l, "gradients in 16 bits", DTP_OWNER_REDUCE, DTP_STREAM_COMPUTE, bytes, true);
        hooked[i].before_bytes = l->bytes.reduce * (bucket->before / l->bytes.grads);
        hooked[i].error = DTP_NO_BUFFER;
    }
}

struct dtp_hooked_bucket *dtp_hooked_make(struct dtp_lowering *l, const struct dtp_ddp_buckets *buckets)
{
    struct dtp_hooked_bucket *hooked = calloc(buckets->count + 1, sizeof *hooked);
    if (!hooked)
        return NULL;
    if (l->plan->comm_hook == DTP_COMM_HOOK_POWERSGD)
        make_powersgd(l, buckets, hooked);
    else if (l->plan->comm_hook == DTP_COMM_HOOK_INT8)
        make_sums(l, buckets, hooked);
    else
        make_casts(l, buckets, hooked);
    return hooked;
}

/* ---- collectives ------------------------------------------------------------------------------------------------- */

/* `bytes` of a buffer, behind `before_bytes` that the hook has sent in this step; the operation that compute waits for.
 */
static dtp_op_id all_reduce(struct dtp_lowering *l, const char *name, dtp_buffer_id buffer, uint64_t before_bytes,
                            uint64_t bytes, uint32_t group)
{
    uint64_t ranks = l->data_ranks;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ALL_REDUCE, name);
    draft.op.stream = DTP_STREAM_REDUCE;
    draft.op.group = group;
    dtp_draft_use(&draft, buffer, DTP_UPDATE);
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_COMPUTE]);
    uint64_t sent = dtp_lower_ring(before_bytes + bytes, ranks) - dtp_lower_ring(before_bytes, ranks);
    draft.op.demand.sent_bytes = 2 * (double)sent;
    draft.op.demand.bytes = (double)bytes;
    return dtp_draft_end(l, &draft);
}

static void end_memory(struct dtp_lowering *l, struct dtp_draft *draft, double bytes, uint32_t kernels)
{
    dtp_draft_memory(l, draft, bytes, kernels);
    draft->op.demand.memory_kernel = DTP_KERNEL_FUSED;
    dtp_draft_end(l, draft);
}

/* ---- 16 bits ----------------------------------------------------------------------------------------------------- */

/* Cast; quotient and cast back, beside what backward does next. */
static void reduce_cast(struct dtp_lowering *l, const struct dtp_ddp_bucket *bucket,
                        const struct dtp_hooked_bucket *hooked, uint32_t group)
{
    double elements = (double)(bucket->bytes / l->bytes.grads), g = (double)l->bytes.grads, r = (double)l->bytes.reduce;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_CAST, "bucket");
    dtp_draft_use(&draft, hooked->compressed, DTP_WRITE);
    dtp_draft_use(&draft, bucket->buffer, DTP_READ);
    end_memory(l, &draft, (g + r) * elements, 1);
    dtp_op_id reduced = all_reduce(l, "bucket in 16 bits", hooked->compressed, hooked->before_bytes,
                                   l->bytes.reduce * (bucket->bytes / l->bytes.grads), group);
    dtp_draft_begin(l, &draft, DTP_OP_CAST, "reduced bucket");
    draft.op.stream = DTP_STREAM_COPY;
    dtp_draft_use(&draft, hooked->compressed, DTP_UPDATE);
    dtp_draft_use(&draft, bucket->buffer, DTP_WRITE);
    dtp_draft_after(&draft, reduced);
    end_memory(l, &draft, (r + r + r + g) * elements, 2);
}

/* ---- 8 bits ------------------------------------------------------------------------------------------------------ */

/* Scale and code of 0, two floats of each rank, are read by the host, which so waits for backward; they are gathered
 * apart. */
#define INT8_RANGE_BYTES 8u
/* Kernels of the ends of a range and what follows from them (MinMaxObserver's forward and calculate_qparams). */
#define INT8_RANGE_KERNELS 16u

static dtp_op_id gather(struct dtp_lowering *l, const char *name, dtp_buffer_id own, dtp_buffer_id all, uint64_t bytes,
                        uint64_t sent_bytes, uint32_t group)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ALL_GATHER, name);
    draft.op.stream = DTP_STREAM_REDUCE;
    draft.op.group = group;
    dtp_draft_use(&draft, own, DTP_READ);
    dtp_draft_use(&draft, all, DTP_WRITE);
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_COMPUTE]);
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_COPY]);
    draft.op.demand.sent_bytes = (double)sent_bytes;
    draft.op.demand.bytes = (double)(l->data_ranks * bytes);
    return dtp_draft_end(l, &draft);
}

/* The ends of the bucket's range, on backward's stream. */
static void find_range(struct dtp_lowering *l, const struct dtp_ddp_bucket *bucket, uint32_t group)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_QUANTIZE, "range of a bucket");
    dtp_buffer_id range = dtp_draft_new(l, &draft, "range", DTP_OWNER_REDUCE, INT8_RANGE_BYTES, DTP_WRITE);
    dtp_draft_use(&draft, bucket->buffer, DTP_READ);
    end_memory(l, &draft, (double)bucket->bytes, INT8_RANGE_KERNELS);
    dtp_draft_begin(l, &draft, DTP_OP_HOST_WAIT, "range of a bucket");
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_COMPUTE]);
    dtp_draft_end(l, &draft);
    dtp_draft_begin(l, &draft, DTP_OP_ALLOC, "ranges");
    dtp_buffer_id ranges = dtp_draft_new(l, &draft, "ranges", DTP_OWNER_REDUCE, INT8_RANGE_BYTES * l->data_ranks, 0);
    dtp_draft_end(l, &draft);
    dtp_op_id gathered = gather(l, "ranges", range, ranges, INT8_RANGE_BYTES,
                                dtp_lower_ring(INT8_RANGE_BYTES * l->data_ranks, l->data_ranks), group);
    dtp_draft_begin(l, &draft, DTP_OP_FREE, "ranges");
    dtp_draft_use(&draft, range, DTP_FREE);
    dtp_draft_use(&draft, ranges, DTP_FREE);
    dtp_draft_after(&draft, gathered);
    dtp_draft_end(l, &draft);
}

/* Quotient, rounded, with the code of 0, clamped, cast; gathered flat and copied to a tensor a rank; each of these a
 * number again, added up; divided by the ranks. Temporaries of a kernel's result live until the next has read it. */
static void reduce_int8(struct dtp_lowering *l, const struct dtp_ddp_bucket *bucket,
                        const struct dtp_hooked_bucket *hooked, uint32_t group)
{
    uint64_t elements = bucket->bytes / l->bytes.grads, ranks = l->data_ranks;
    double e = (double)elements, g = (double)l->bytes.grads, n = (double)ranks;
    struct dtp_draft draft;
    find_range(l, bucket, group);
    dtp_draft_begin(l, &draft, DTP_OP_QUANTIZE, "bucket");
    draft.op.stream = DTP_STREAM_COPY;
    dtp_buffer_id own = dtp_draft_new(l, &draft, "bucket in 8 bits", DTP_OWNER_REDUCE, elements, DTP_WRITE);
    dtp_draft_new(l, &draft, "quotients", DTP_OWNER_REDUCE, 2 * bucket->bytes, DTP_WRITE | DTP_FREE);
    dtp_draft_use(&draft, bucket->buffer, DTP_READ);
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_REDUCE]);
    end_memory(l, &draft, (9 * g + 1) * e, 5);
    dtp_draft_begin(l, &draft, DTP_OP_ALLOC, "all ranks' buckets");
    draft.op.stream = DTP_STREAM_COPY;
    dtp_buffer_id all = dtp_draft_new(l, &draft, "all ranks' buckets", DTP_OWNER_REDUCE, ranks * elements, 0);
    dtp_buffer_id list = dtp_draft_new(l, &draft, "a bucket a rank", DTP_OWNER_REDUCE, ranks * elements, 0);
    dtp_draft_end(l, &draft);
    uint64_t sent =
        dtp_lower_ring(hooked->before_bytes + ranks * elements, ranks) - dtp_lower_ring(hooked->before_bytes, ranks);
    dtp_op_id gathered = gather(l, "bucket in 8 bits", own, all, elements, sent, group);
    dtp_draft_begin(l, &draft, DTP_OP_QUANTIZE, "reduced bucket");
    draft.op.stream = DTP_STREAM_COPY;
    dtp_draft_use(&draft, own, DTP_FREE);
    dtp_draft_use(&draft, all, DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, list, DTP_WRITE | DTP_FREE);
    dtp_draft_new(l, &draft, "numbers of a rank", DTP_OWNER_REDUCE, 3 * bucket->bytes, DTP_WRITE | DTP_FREE);
    dtp_draft_use(&draft, hooked->compressed, DTP_WRITE);
    dtp_draft_after(&draft, gathered);
    end_memory(l, &draft, (n * (4 + 8 * g) + 3 * g) * e, (uint32_t)(6 * ranks + 2));
}

/* ---- PowerSGD ---------------------------------------------------------------------------------------------------- */

/* P or Q orthogonalised, and the other one by a product with the bucket; both lie in one buffer. */
static void factor(struct dtp_lowering *l, const char *name, const struct dtp_ddp_bucket *bucket,
                   const struct dtp_hooked_bucket *hooked, uint64_t elements, dtp_op_id after)
{
    uint32_t matrices = (uint32_t)hooked->factored.matrices;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_QUANTIZE, "orthogonalised");
    dtp_draft_use(&draft, hooked->compressed, DTP_UPDATE);
    if (after.index != DTP_NO_INDEX)
        dtp_draft_after(&draft, after);
    end_memory(l, &draft, 2 * (double)(l->bytes.grads * elements),
               matrices * dtp_powersgd_orthogonalize_kernels(l->plan));
    dtp_draft_begin(l, &draft, DTP_OP_QUANTIZE, name);
    dtp_draft_use(&draft, hooked->compressed, DTP_UPDATE);
    dtp_draft_use(&draft, bucket->buffer, DTP_READ);
    end_memory(l, &draft, (double)bucket->bytes, matrices);
}

/* What was lost before is added, and a copy taken that tells what is lost now. */
static dtp_buffer_id begin_powersgd(struct dtp_lowering *l, const struct dtp_ddp_bucket *bucket,
                                    const struct dtp_hooked_bucket *hooked)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ACCUMULATE, "what was lost");
    dtp_draft_use(&draft, bucket->buffer, DTP_UPDATE);
    dtp_draft_use(&draft, hooked->error, DTP_READ);
    end_memory(l, &draft, 3 * (double)bucket->bytes, 1);
    dtp_draft_begin(l, &draft, DTP_OP_COPY_OUT, "bucket");
    dtp_buffer_id copy = dtp_draft_new(l, &draft, "copy of a bucket", DTP_OWNER_REDUCE, bucket->bytes, DTP_WRITE);
    dtp_draft_use(&draft, bucket->buffer, DTP_READ);
    end_memory(l, &draft, 2 * (double)bucket->bytes, 1);
    return copy;
}

static void end_powersgd(struct dtp_lowering *l, const struct dtp_ddp_bucket *bucket,
                         const struct dtp_hooked_bucket *hooked, dtp_buffer_id copy)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_HOST_WAIT, "PowerSGD");
    for (int stream = 0; stream < DTP_STREAM_COUNT; stream++)
        dtp_draft_after(&draft, l->last_op[stream]);
    dtp_draft_end(l, &draft);
    dtp_draft_begin(l, &draft, DTP_OP_COPY_OUT,
                    "what is lost"); /* a tensor of its own, which the old one gives way to */
    dtp_buffer_id lost =
        dtp_draft_new(l, &draft, "what is lost", DTP_OWNER_REDUCE, bucket->bytes, DTP_WRITE | DTP_FREE);
    (void)lost;
    dtp_draft_use(&draft, copy, DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, bucket->buffer, DTP_READ);
    dtp_draft_use(&draft, hooked->error, DTP_WRITE);
    end_memory(l, &draft, 3 * (double)bucket->bytes, 1);
}

static void reduce_powersgd(struct dtp_lowering *l, const struct dtp_ddp_bucket *bucket,
                            const struct dtp_hooked_bucket *hooked, uint32_t group)
{
    const struct dtp_factored *f = &hooked->factored;
    uint64_t g = l->bytes.grads, sent_bytes = hooked->before_bytes;
    dtp_buffer_id copy = begin_powersgd(l, bucket, hooked);
    dtp_op_id done = DTP_NO_OP;
    struct dtp_draft draft;
    if (f->matrices)
        factor(l, "P", bucket, hooked, f->q, DTP_NO_OP);
    if (f->whole) { /* side by side in a tensor of their own, and back */
        dtp_draft_begin(l, &draft, DTP_OP_COPY_OUT, "vectors");
        dtp_buffer_id whole = dtp_draft_new(l, &draft, "vectors", DTP_OWNER_REDUCE, g * f->whole, DTP_WRITE);
        dtp_draft_use(&draft, bucket->buffer, DTP_READ);
        end_memory(l, &draft, 2 * (double)(g * f->whole), 1);
        done = all_reduce(l, "vectors", whole, sent_bytes, g * f->whole, group);
        sent_bytes += g * f->whole;
        dtp_draft_begin(l, &draft, DTP_OP_COPY_IN, "vectors");
        dtp_draft_use(&draft, whole, DTP_READ | DTP_FREE);
        dtp_draft_use(&draft, bucket->buffer, DTP_UPDATE);
        dtp_draft_after(&draft, done);
        end_memory(l, &draft, 4 * (double)(g * f->whole), 2);
    }
    if (f->matrices) {
        done = all_reduce(l, "P", hooked->compressed, sent_bytes, g * f->p, group);
        factor(l, "Q", bucket, hooked, f->p, done);
        done = all_reduce(l, "Q", hooked->compressed, sent_bytes + g * f->p, g * f->q, group);
        dtp_draft_begin(l, &draft, DTP_OP_QUANTIZE, "P Q");
        dtp_draft_use(&draft, hooked->compressed, DTP_UPDATE);
        dtp_draft_use(&draft, bucket->buffer, DTP_WRITE);
        dtp_draft_after(&draft, done);
        end_memory(l, &draft, (double)bucket->bytes, (uint32_t)f->matrices + 1);
    }
    end_powersgd(l, bucket, hooked, copy);
}

void dtp_hooked_reduce(struct dtp_lowering *l, const struct dtp_ddp_bucket *bucket,
                       const struct dtp_hooked_bucket *hooked, uint32_t group)
{
    if (l->plan->comm_hook == DTP_COMM_HOOK_POWERSGD)
        reduce_powersgd(l, bucket, hooked, group);
    else if (l->plan->comm_hook == DTP_COMM_HOOK_INT8)
        reduce_int8(l, bucket, hooked, group);
    else
        reduce_cast(l, bucket, hooked, group);
}
