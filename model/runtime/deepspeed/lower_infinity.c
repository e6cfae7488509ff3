/* DeepSpeed's offload: ZeRO-Offload (stage_1_and_2.py, stage3.py with offload_optimizer, offload_param) and
 * ZeRO-Infinity (runtime/swap_tensor).
 *
 * gradients  a bucket's slices of this rank go down in fp32 in the last micro-step, cast tensor by tensor on the
 *            device; sums of several micro-steps in the model's dtype: stage 2 carries them down after all but the last
 *            micro-step and up into all but the first (async_accumulate_grad_in_cpu_via_gpu), stage 3 both in each
 *            (partition_grads). On the stream of the reduction, which without overlap_comm is the compute stream; stage
 *            3's last copy blocks the host
 * parameters (stage 3) a fetch uploads its shards, and the host stands still for it; from NVMe each fetch's shards
 *            are read into one half of the pinned buffers while the fetch before it is used (swap_in, prefetch)
 * step       on CPU cores, sub-group by sub-group; updated parameters go up in the model's dtype unless they live on
 *            the host. On NVMe master, moments and gradients of a sub-group are read while the one before it is
 *            updated, and written back with the parameters (pipeline_read, pipeline_write) */
#include "runtime/deepspeed/lower_infinity.h"

#include "base/bytes.h"
#include "plan/runtime_sizes.h"

#define HOST_ADAM_BYTES 28.0 /* reads p, g, m, v and writes p, m, v in fp32 */

static struct dtp_lower_host *host_of(const struct dtp_lowering *l)
{
    return l->own;
}

static bool on_nvme(const struct dtp_lowering *l)
{
    return l->plan->offload == DTP_OFFLOAD_NVME;
}

static dtp_buffer_id stored(struct dtp_lowering *l, const char *name, enum dtp_owner owner, uint64_t bytes)
{
    struct dtp_buffer buffer = {.name = name,
                                .bytes = bytes,
                                .owner = owner,
                                .space = DTP_SPACE_STORAGE,
                                .pool = DTP_STREAM_STORAGE,
                                .layer = DTP_NO_LAYER,
                                .persistent = true};
    return bytes ? dtp_program_add_buffer(l->program, &buffer) : DTP_NO_BUFFER;
}

/* `largest`: of the tensors that gradients are carried one by one, elements of this rank. */
void dtp_lower_host_make(struct dtp_lowering *l, uint64_t shard, uint64_t largest)
{
    struct dtp_lower_host *h = host_of(l);
    bool nvme = on_nvme(l), params = l->plan->offload != DTP_OFFLOAD_OPTIMIZER, third = l->plan->strategy == DTP_ZERO3;
    uint64_t group = shard < DTP_DEEPSPEED_SUB_GROUP ? shard : DTP_DEEPSPEED_SUB_GROUP;
    h->shard = shard;
    h->largest = largest;
    h->state = nvme ? stored(l, "master, moments and gradients on NVMe", DTP_OWNER_OPTIMIZER, 16 * shard)
                    : dtp_lower_host_buffer(l, "master and moments", DTP_OWNER_OPTIMIZER, l->bytes.optimizer * shard);
    h->grads = dtp_lower_host_buffer(l, nvme ? "gradients on their way to NVMe" : "gradients in fp32", DTP_OWNER_GRADS,
                                     4 * (nvme ? group : shard));
    bool carries = third || (l->plan->strategy == DTP_ZERO2 && l->plan->accumulate > 1);
    h->sums = dtp_lower_host_buffer(l, "gradient sums", DTP_OWNER_GRADS, carries ? l->bytes.grads * shard : 0);
    h->params = !params ? DTP_NO_BUFFER
                : nvme  ? stored(l, "parameters on NVMe", DTP_OWNER_PARAMS, l->bytes.params * shard)
                        : dtp_lower_host_buffer(l, "parameters", DTP_OWNER_PARAMS, l->bytes.params * shard);
    for (int half = 0; half < 2; half++) {
        h->read[half] = dtp_lower_host_buffer(l, "parameters read", DTP_OWNER_PARAMS,
                                              nvme ? l->bytes.params * DTP_DEEPSPEED_PARAM_BUFFERS / 2 : 0);
        h->swap[half] = dtp_lower_host_buffer(l, "swap buffers", DTP_OWNER_OPTIMIZER,
                                              nvme ? DTP_DEEPSPEED_SWAP_BUFFERS * 4 * group / 2 : 0);
        h->uploaded[half] = h->updated[half] = DTP_NO_OP;
    }
    /* temp_grad_buffer_for_gpu_offload of stages 1 and 2 */
    uint64_t temporary = third ? 0 : l->bytes.grads * largest;
    h->temporary = dtp_lower_buffer(l, "gradients for the host", DTP_OWNER_REDUCE, DTP_STREAM_COMPUTE, temporary, true);
}

static void wait_for(struct dtp_lowering *l, dtp_op_id op, const char *name)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_HOST_WAIT, name);
    draft.op.stream = DTP_STREAM_HOST;
    dtp_draft_after(&draft, op);
    dtp_draft_end(l, &draft);
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

static void copy(struct dtp_lowering *l, enum dtp_op_kind kind, enum dtp_stream stream, dtp_buffer_id from,
                 uint32_t from_access, dtp_buffer_id to, uint32_t to_access, uint64_t bytes, const char *name)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, kind, name);
    draft.op.stream = stream;
    dtp_draft_use(&draft, from, from_access);
    dtp_draft_use(&draft, to, to_access);
    draft.op.demand.sent_bytes = (double)bytes;
    draft.op.demand.kernels = 1;
    dtp_draft_end(l, &draft);
}

/* Sums on the device, of one tensor at a time. */
static dtp_buffer_id one_by_one(struct dtp_lowering *l, enum dtp_stream stream, uint64_t own)
{
    uint64_t elements = own < host_of(l)->largest ? own : host_of(l)->largest;
    return dtp_lower_buffer(l, "gradient sums", DTP_OWNER_REDUCE, stream, l->bytes.grads * elements, false);
}

/* Sums of earlier micro-steps up and added to the slices. */
static void add_sums(struct dtp_lowering *l, enum dtp_stream stream, dtp_buffer_id slices, uint64_t own)
{
    struct dtp_lower_host *h = host_of(l);
    bool standing = h->temporary.index != DTP_NO_INDEX;
    uint64_t bytes = l->bytes.grads * own;
    dtp_buffer_id up = standing ? h->temporary : one_by_one(l, stream, own);
    copy(l, DTP_OP_UPLOAD, stream, h->sums, DTP_READ, up, standing ? DTP_WRITE : DTP_ALLOC | DTP_WRITE, bytes,
         "gradient sums");
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ACCUMULATE, "gradient sums");
    draft.op.stream = stream;
    dtp_draft_use(&draft, slices, DTP_UPDATE);
    dtp_draft_use(&draft, up, standing ? DTP_READ : DTP_READ | DTP_FREE);
    dtp_draft_memory(l, &draft, 3 * (double)bytes, 1);
    dtp_draft_end(l, &draft);
}

/* In fp32; on NVMe all of a bucket's stand until they are written out, else one tensor's at a time. */
static void download_last(struct dtp_lowering *l, enum dtp_stream stream, dtp_buffer_id slices, uint64_t own)
{
    struct dtp_lower_host *h = host_of(l);
    uint64_t at_a_time = !on_nvme(l) && h->largest < own ? h->largest : own;
    bool casts = l->bytes.grads < 4;
    dtp_buffer_id wide = slices;
    struct dtp_draft draft;
    if (casts) {
        dtp_draft_begin(l, &draft, DTP_OP_CAST, "gradients in fp32");
        draft.op.stream = stream;
        wide = dtp_draft_new(l, &draft, "gradients in fp32", DTP_OWNER_WORKSPACE, 4 * at_a_time, DTP_WRITE);
        dtp_draft_use(&draft, slices, DTP_READ);
        dtp_draft_memory(l, &draft, (double)((4 + l->bytes.grads) * own), 1);
        dtp_draft_end(l, &draft);
    }
    copy(l, DTP_OP_DOWNLOAD, stream, wide, casts ? DTP_READ | DTP_FREE : DTP_READ, h->grads, DTP_UPDATE, 4 * own,
         "gradients in fp32");
    if (l->plan->strategy == DTP_ZERO3)
        wait_for(l, l->last_op[stream], "gradients downloaded");
    if (!on_nvme(l))
        return;
    dtp_draft_begin(l, &draft, DTP_OP_STORAGE_WRITE, "gradients");
    draft.op.stream = DTP_STREAM_STORAGE;
    dtp_draft_use(&draft, h->grads, DTP_READ);
    dtp_draft_use(&draft, h->state, DTP_UPDATE);
    draft.op.demand.bytes = 4 * (double)own;
    dtp_op_id written = dtp_draft_end(l, &draft);
    wait_for(l, written, "gradients written"); /* the buffers go round */
}

void dtp_lower_host_gradients(struct dtp_lowering *l, enum dtp_stream stream, dtp_buffer_id slices, uint64_t own)
{
    struct dtp_lower_host *h = host_of(l);
    bool several = l->plan->accumulate > 1, third = l->plan->strategy == DTP_ZERO3;
    uint64_t bytes = l->bytes.grads * own;
    bool up = l->plan->strategy != DTP_ZERO1 && several && l->micro_step, down = several && !l->last_micro_step;
    if (up)
        add_sums(l, stream, slices, own);
    if (down || third)
        copy(l, DTP_OP_DOWNLOAD, stream, slices, DTP_READ, h->sums, DTP_UPDATE, bytes, "gradient sums");
    if (third && !l->micro_step) { /* the buffer's copy is used from then on, where it is */
        copy(l, DTP_OP_UPLOAD, stream, h->sums, DTP_READ, one_by_one(l, stream, own), DTP_ALLOC | DTP_WRITE | DTP_FREE,
             bytes, "gradient sums");
    }
    if (l->last_micro_step)
        download_last(l, stream, slices, own);
}

/* ---- parameters -------------------------------------------------------------------------------------------------- */

/* Shards of fetch `number` from NVMe into their half, once what was there has gone up. */
void dtp_lower_host_read(struct dtp_lowering *l, uint32_t number, uint64_t bytes)
{
    struct dtp_lower_host *h = host_of(l);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_STORAGE_READ, "shards");
    draft.op.stream = DTP_STREAM_STORAGE;
    dtp_draft_use(&draft, h->params, DTP_READ);
    dtp_draft_use(&draft, h->read[number % 2], DTP_WRITE);
    dtp_draft_after(&draft, h->uploaded[number % 2]);
    draft.op.demand.bytes = (double)bytes;
    h->last_read[number % 2] = dtp_draft_end(l, &draft);
}

/* Shards of fetch `number` into `to`, which the pool of the copy stream gives; `blocks`: the host waits. */
void dtp_lower_host_upload(struct dtp_lowering *l, uint32_t number, dtp_buffer_id to, uint64_t bytes, bool blocks)
{
    struct dtp_lower_host *h = host_of(l);
    bool nvme = on_nvme(l);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_UPLOAD, "shards");
    draft.op.stream = DTP_STREAM_COPY;
    dtp_draft_use(&draft, nvme ? h->read[number % 2] : h->params, DTP_READ);
    dtp_draft_use(&draft, to, DTP_ALLOC | DTP_WRITE);
    dtp_draft_after(&draft, nvme ? h->last_read[number % 2] : DTP_NO_OP);
    draft.op.demand.sent_bytes = (double)bytes;
    draft.op.demand.kernels = 1;
    h->uploaded[number % 2] = dtp_draft_end(l, &draft);
    if (blocks)
        wait_for(l, h->uploaded[number % 2], "shards uploaded");
}

/* ---- the step ---------------------------------------------------------------------------------------------------- */

static void read_group(struct dtp_lowering *l, uint32_t number, uint64_t elements)
{
    struct dtp_lower_host *h = host_of(l);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_STORAGE_READ, "master, moments and gradients");
    draft.op.stream = DTP_STREAM_STORAGE;
    dtp_draft_use(&draft, h->state, DTP_READ);
    dtp_draft_use(&draft, h->swap[number % 2], DTP_WRITE);
    draft.op.demand.bytes = 16 * (double)elements;
    h->last_read[number % 2] = dtp_draft_end(l, &draft);
}

static void write_group(struct dtp_lowering *l, uint32_t number, uint64_t elements)
{
    struct dtp_lower_host *h = host_of(l);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_STORAGE_WRITE, "master, moments and parameters");
    draft.op.stream = DTP_STREAM_STORAGE;
    dtp_draft_use(&draft, h->swap[number % 2], DTP_READ);
    dtp_draft_use(&draft, h->state, DTP_UPDATE);
    dtp_draft_use(&draft, h->params, DTP_UPDATE);
    dtp_draft_after(&draft, h->updated[number % 2]);
    draft.op.demand.bytes = (12 + (double)l->bytes.params) * (double)elements;
    dtp_draft_end(l, &draft);
}

static uint64_t group_elements(const struct dtp_lowering *l, uint64_t done)
{
    uint64_t left = host_of(l)->shard - done;
    return left < DTP_DEEPSPEED_SUB_GROUP ? left : DTP_DEEPSPEED_SUB_GROUP;
}

static void update_group(struct dtp_lowering *l, uint32_t number, uint64_t elements)
{
    struct dtp_lower_host *h = host_of(l);
    bool nvme = on_nvme(l);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_HOST_OPTIMIZER, "");
    draft.op.stream = DTP_STREAM_HOST;
    dtp_draft_use(&draft, nvme ? h->swap[number % 2] : h->state, DTP_UPDATE);
    if (!nvme) {
        dtp_draft_use(&draft, h->grads, DTP_READ);
        dtp_draft_use(&draft, h->params, DTP_UPDATE);
    }
    dtp_draft_after(&draft, nvme ? h->last_read[number % 2] : DTP_NO_OP);
    draft.op.demand.bytes = HOST_ADAM_BYTES * (double)elements;
    h->updated[number % 2] = dtp_draft_end(l, &draft);
}

void dtp_lower_host_update(struct dtp_lowering *l, dtp_buffer_id device_params)
{
    struct dtp_lower_host *h = host_of(l);
    bool nvme = on_nvme(l), goes_up = l->plan->offload == DTP_OFFLOAD_OPTIMIZER;
    wait_for(l, l->last_op[DTP_STREAM_COMPUTE], "gradients downloaded");
    wait_for(l, l->last_op[DTP_STREAM_REDUCE], "gradients downloaded");
    if (nvme)
        read_group(l, 0, group_elements(l, 0));
    uint32_t number = 0;
    for (uint64_t done = 0, elements; done < h->shard; done += elements, number++) {
        elements = group_elements(l, done);
        uint64_t after = done + elements;
        if (nvme && after < h->shard)
            read_group(l, number + 1, group_elements(l, after));
        update_group(l, number, elements);
        if (nvme)
            write_group(l, number, elements);
        if (!goes_up)
            continue;
        struct dtp_draft draft;
        dtp_draft_begin(l, &draft, DTP_OP_UPLOAD, "updated weights");
        dtp_draft_use(&draft, h->state, DTP_READ);
        dtp_draft_use(&draft, device_params, DTP_UPDATE);
        dtp_draft_after(&draft, h->updated[number % 2]);
        draft.op.demand.sent_bytes = (double)(l->bytes.params * elements);
        draft.op.demand.kernels = 1;
        dtp_draft_end(l, &draft);
        wait_for(l, l->last_op[DTP_STREAM_COMPUTE], "updated weights uploaded");
    }
    if (nvme)
        wait_for(l, l->last_op[DTP_STREAM_STORAGE], "written");
    else if (!goes_up)
        wait_for(l, l->last_op[DTP_STREAM_HOST], "updated");
}
