/* DeepSpeed's ZeRO stage 3 (runtime/zero/stage3.py, partition_parameters.py, partitioned_param_coordinator.py).
 *
 * fetch    zero3_fetch.h says what is gathered before a module. Tensors of one fetch are laid into a flat buffer on the
 *          all-gather stream (copy stream here), gathered, and copied out tensor by tensor when the first of them is
 *          needed; the flat buffer stays until the last of them is. A fetch of one tensor gathers straight into it
 * release  a tensor goes when its module is through (record_stream: the allocator waits for the device)
 * reduce   lower_zero3_reduce.c
 * offload  lower_infinity.c: shards come up from the host before they are gathered; a single rank gathers nothing, and
 *          fetches only what the host keeps
 * step     sub-groups of at most sub_group_size elements, one after another, each with fp32 gradients; then tensors
 *          that persist are gathered. Assumed: one operation a block, and that they stand during the step as well
 * The host never has more than two fetches or reductions ahead of the device than it waited for.
 *
 * Where a step of few layers is read for the live bytes of a whole one, fetches and reductions are only told
 * (live_zero3.h), and what is cut over all parameters is of the whole net. */
#include "runtime/deepspeed/lower_zero3.h"
#include "runtime/deepspeed/deepspeed.h"
#include "runtime/deepspeed/live_zero3.h"

#include "base/bytes.h"
#include "plan/host_calls.h"
#include "plan/runtime_sizes.h"
#include "runtime/deepspeed/zeropp.h"

#include <assert.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* ---- layout ------------------------------------------------------------------------------------------------------ */

/* Parameters live on the host. */
static bool on_host(const struct dtp_lowering *l)
{
    return l->plan->offload == DTP_OFFLOAD_PARAMS || l->plan->offload == DTP_OFFLOAD_NVME;
}

static bool fetches(const struct dtp_lowering *l)
{
    return !dtp_zero3_alone(l) || on_host(l);
}

static uint64_t gathered_part(const struct dtp_lowering *l, const struct dtp_lower_module *module, int part)
{
    return dtp_zero3_gathered(l->plan, module->elements[part], module->largest[part]);
}

/* Of the net, of which fewer may be lowered. */
static uint64_t all_layers(const struct dtp_lowering *l)
{
    return l->role.fills ? l->role.fills->fills : l->transformer->layers;
}

static void describe(const struct dtp_lowering *l, struct dtp_zero3_shape *shape)
{
    *shape = (struct dtp_zero3_shape){.layers = all_layers(l),
                                      .matrices = l->matrices,
                                      .inputs = l->plan->fused_qkv ? 1 : 3,
                                      .tied = l->transformer->tied_head};
    assert(l->block.parts <= DTP_ZERO3_PARTS);
    for (int part = 0; part < l->block.parts; part++)
        shape->block[part] = gathered_part(l, &l->block, part);
    for (int i = 0; i < l->matrices; i++)
        shape->adapter[i] = l->block.adapter[i];
    _Static_assert((int)DTP_ROOT_HEAD == (int)DTP_ZERO3_HEAD && DTP_LAYER_MATRICES + 1 <= DTP_ZERO3_PARTS, "parts");
    for (int part = 0; part < DTP_ROOT_PARTS; part++)
        shape->root[part] = gathered_part(l, &l->root, part);
}

/* Tensors that persist stand whole beside their shard, padded to equal shards as they were gathered
 * (partition_parameters.py: a view of the aligned buffer); a single rank's shard is whole. */
static void make_persistent(struct dtp_lowering *l, struct dtp_lower_zero3 *z)
{
    uint64_t elements = 0;
    const struct dtp_lower_module *modules[] = {&l->block, &l->root};
    for (int i = 0; i < 2; i++)
        for (int part = 0; part < modules[i]->parts; part++)
            if (!gathered_part(l, modules[i], part)) {
                elements += (i ? 1 : all_layers(l)) * modules[i]->shard[part] * l->plan->shard_group;
                z->persistent_shard[i] += modules[i]->shard[part];
            }
    z->persistent = !fetches(l) ? z->params
                                : dtp_lower_buffer(l, "persistent parameters", DTP_OWNER_WEIGHTS, DTP_STREAM_COMPUTE,
                                                   l->bytes.compute * elements, true);
    for (uint64_t i = 0; i <= l->transformer->layers; i++)
        l->state[i].params = z->persistent;
}

static void make_groups(struct dtp_lowering *l, struct dtp_lower_zero3 *z)
{
    uint32_t second = l->plan->deepspeed.zero_hpz_partition_size, node = l->cluster->gpus_per_node,
             nodes = l->cluster->gpus / node;
    z->group = dtp_lower_data_group(l, l->plan->shard_group, 1);
    if (second > 1)
        z->second_group = dtp_lower_data_group(l, second, 1);
    if (!dtp_zeropp_reduces(l->plan, l->cluster))
        return;
    if (node > 1)
        z->node_group = dtp_program_add_group(l->program, (struct dtp_program_group){node, 1});
    z->between_group = dtp_program_add_group(l->program, (struct dtp_program_group){nodes, node});
}

static enum dtp_status make(struct dtp_lowering *l)
{
    uint64_t layers = l->transformer->layers;
    struct dtp_lower_zero3 *z = l->own = malloc(sizeof *z);
    if (z) {
        memset(z, 0, offsetof(struct dtp_lower_zero3, walk));
        z->limit = (uint32_t)(3 * DTP_ZERO3_PARTS * (layers + 1)); /* uses of a micro-step at most, so fetches too */
        z->fetches = calloc(z->limit, sizeof *z->fetches);
        z->entries = calloc(z->limit, sizeof *z->entries);
        z->fetch_of = calloc((layers + 1) * DTP_ZERO3_PARTS, sizeof *z->fetch_of);
        z->ahead = malloc(sizeof *z->ahead);
        z->second_of = calloc((layers + 1) * DTP_ZERO3_PARTS, sizeof *z->second_of);
        z->in_bucket = calloc(z->limit, sizeof *z->in_bucket);
    }
    if (!z || !z->fetches || !z->entries || !z->fetch_of || !z->ahead || !z->second_of || !z->in_bucket)
        return dtp_fault(l->faults, DTP_ENVIRONMENT, NULL, 0, "no memory to lower the step");
    describe(l, &z->shape);
    z->shard = all_layers(l) * l->block.all_shard + l->root.all_shard;
    z->trained = all_layers(l) * l->block.trained_shard + l->root.trained_shard;
    z->oversized = DTP_NO_BUFFER;
    bool offloads = l->plan->offload != DTP_OFFLOAD_NONE;
    z->params = dtp_lower_buffer(l, "params", DTP_OWNER_PARAMS, DTP_STREAM_COMPUTE,
                                 on_host(l) ? 0 : l->bytes.params * z->shard, true);
    z->moments = (struct dtp_lower_moments){DTP_NO_BUFFER, 0};
    if (offloads)
        dtp_lower_host_make(l, z->shard, dtp_divide_up(dtp_lower_largest_tensor(l), l->plan->shard_group));
    else
        dtp_lower_add_moments(l, &z->moments, z->trained);
    z->grads = dtp_lower_buffer(l, "gradients of the partition", DTP_OWNER_GRADS, DTP_STREAM_COMPUTE,
                                offloads ? 0 : l->bytes.grads * z->trained, true);
    z->bucket = dtp_lower_buffer(l, "reduction bucket", DTP_OWNER_REDUCE, DTP_STREAM_COMPUTE,
                                 l->bytes.reduce * l->plan->deepspeed.reduce_bucket_size, true);
    make_persistent(l, z);
    for (uint64_t i = 0; i < (layers + 1) * DTP_ZERO3_PARTS; i++)
        z->second_of[i] = DTP_NO_BUFFER;
    if (!dtp_zero3_alone(l))
        make_groups(l, z);
    return l->role.fills ? dtp_zero3_teller(l, &z->shape, &l->role.fills->teller) : DTP_OK;
}

static void release(struct dtp_lowering *l)
{
    struct dtp_lower_zero3 *z = dtp_lower_zero3_of(l);
    if (z) {
        free(z->fetches);
        free(z->entries);
        free(z->fetch_of);
        free(z->ahead);
        free(z->second_of);
        free(z->in_bucket);
    }
    free(z);
}

/* ---- the host does not run far ahead ----------------------------------------------------------------------------- */

void dtp_zero3_wait_for(struct dtp_lowering *l, dtp_op_id op, const char *name)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_HOST_WAIT, name);
    draft.op.stream = DTP_STREAM_HOST;
    dtp_draft_after(&draft, op);
    dtp_draft_end(l, &draft);
}

void dtp_zero3_limit(struct dtp_lowering *l, struct dtp_zero3_pending *pending, const char *name)
{
    if (pending->count <= DTP_ZERO3_PENDING)
        return;
    dtp_zero3_wait_for(l, pending->op[0], name);
    for (uint32_t i = 1; i < pending->count; i++)
        pending->op[i - 1] = pending->op[i];
    pending->count--;
}

void dtp_zero3_pend(struct dtp_zero3_pending *pending, dtp_op_id op)
{
    pending->op[pending->count++] = op;
}

/* ---- gathering --------------------------------------------------------------------------------------------------- */

const struct dtp_lower_module *dtp_zero3_module(const struct dtp_lowering *l, uint64_t layer)
{
    return layer < l->transformer->layers ? &l->block : &l->root;
}

static dtp_buffer_id *second_of(const struct dtp_lowering *l, uint64_t layer, int part)
{
    return &dtp_lower_zero3_of(l)->second_of[layer * DTP_ZERO3_PARTS + (uint64_t)part];
}

static uint32_t *fetch_of(const struct dtp_lowering *l, uint64_t layer, int part)
{
    return &dtp_lower_zero3_of(l)->fetch_of[layer * DTP_ZERO3_PARTS + (uint64_t)part];
}

uint64_t dtp_zero3_shard_of(const struct dtp_lowering *l, uint64_t layer, int part, bool second)
{
    uint64_t shard = dtp_zero3_module(l, layer)->shard[part];
    return second ? shard * l->plan->shard_group / l->plan->deepspeed.zero_hpz_partition_size : shard;
}

/* The next tensor that the walk ahead gathers; false: no more. */
static bool ahead_tensor(struct dtp_lower_zero3 *z, struct dtp_zero3_tensor *tensor)
{
    struct dtp_zero3_tensor used;
    for (;;) {
        if (z->ahead_open && dtp_zero3_take(z->ahead, tensor))
            return true;
        if (z->ahead_open)
            dtp_zero3_end(z->ahead);
        z->ahead_open = dtp_zero3_begin(z->ahead, &used);
        if (!z->ahead_open)
            return false;
    }
}

/* NVMe is asked for this fetch, unless it was before, and for the next one. */
static void read_ahead(struct dtp_lowering *l)
{
    struct dtp_lower_zero3 *z = dtp_lower_zero3_of(l);
    while (z->has_next && z->reads <= z->gathers + 1) {
        uint64_t bytes = 0;
        do
            bytes += l->bytes.params * dtp_zero3_shard_of(l, z->next.layer, z->next.part, false);
        while ((z->has_next = ahead_tensor(z, &z->next)) && !z->next.starts);
        dtp_lower_host_read(l, z->reads++, bytes);
    }
}

static dtp_buffer_id upload_shards(struct dtp_lowering *l, uint64_t bytes)
{
    dtp_buffer_id shards = dtp_lower_buffer(l, "uploaded shards", DTP_OWNER_GATHER, DTP_STREAM_COPY, bytes, false);
    dtp_lower_host_upload(l, dtp_lower_zero3_of(l)->gathers, shards, bytes, true);
    return shards;
}

dtp_buffer_id dtp_zero3_new_weight(struct dtp_lowering *l, const struct dtp_zero3_entry *entry, uint64_t bytes)
{
    const char *name = dtp_zero3_module(l, entry->layer)->weight_name[entry->part];
    return dtp_lower_buffer(l, name, DTP_OWNER_WEIGHTS, DTP_STREAM_COPY, bytes, false);
}

/* A single rank: the weights come up as they are. */
static void upload(struct dtp_lowering *l, struct dtp_zero3_fetch *fetch)
{
    struct dtp_lower_zero3 *z = dtp_lower_zero3_of(l);
    for (uint32_t i = fetch->first; i < fetch->first + fetch->count; i++) {
        uint64_t bytes = l->bytes.compute * dtp_zero3_shard_of(l, z->entries[i].layer, z->entries[i].part, false);
        z->entries[i].weight = dtp_zero3_new_weight(l, &z->entries[i], bytes);
        dtp_lower_host_upload(l, z->gathers, z->entries[i].weight, bytes, false);
    }
    fetch->ready = l->last_op[DTP_STREAM_COPY];
}

static void all_gather(struct dtp_lowering *l, struct dtp_zero3_fetch *fetch, uint64_t shard_bytes)
{
    struct dtp_lower_zero3 *z = dtp_lower_zero3_of(l);
    uint64_t ranks = fetch->second ? l->plan->deepspeed.zero_hpz_partition_size : l->plan->shard_group;
    struct dtp_zero3_entry *first = &z->entries[fetch->first];
    bool flat = fetch->count > 1;
    dtp_buffer_id shards = on_host(l) ? upload_shards(l, shard_bytes) : z->params;
    if (flat)
        fetch->flat = dtp_zeropp_lay(l, fetch, shards, "gathered", ranks * shard_bytes, shard_bytes);
    else
        first->weight = dtp_zero3_new_weight(l, first, ranks * shard_bytes);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ALL_GATHER,
                    flat ? "" : dtp_zero3_module(l, first->layer)->weight_name[first->part]);
    draft.op.stream = DTP_STREAM_GATHER;
    draft.op.group = fetch->second ? z->second_group : z->group;
    if (flat) {
        dtp_draft_use(&draft, fetch->flat, DTP_UPDATE);
    } else {
        dtp_buffer_id source = fetch->second ? *second_of(l, first->layer, first->part) : shards;
        dtp_draft_use(&draft, source, on_host(l) ? DTP_READ | DTP_FREE | DTP_DEFER : DTP_READ);
        dtp_draft_use(&draft, first->weight, DTP_ALLOC | DTP_WRITE);
    }
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_COPY]);
    draft.op.demand.sent_bytes = (double)(shard_bytes * (ranks - 1));
    draft.op.demand.bytes = (double)(shard_bytes * ranks);
    draft.op.demand.kernels = 1;
    fetch->ready = dtp_draft_end(l, &draft);
}

static void gather(struct dtp_lowering *l, struct dtp_zero3_fetch *fetch)
{
    struct dtp_lower_zero3 *z = dtp_lower_zero3_of(l);
    const struct dtp_zero3_entry *entry = &z->entries[fetch->first];
    uint64_t elements = 0;
    uint16_t layer = l->layer;
    for (uint32_t i = 0; i < fetch->count; i++)
        elements += dtp_zero3_shard_of(l, entry[i].layer, entry[i].part, fetch->second);
    l->layer = entry->layer < l->transformer->layers ? (uint16_t)entry->layer : DTP_NO_LAYER;
    fetch->flat = fetch->scales = DTP_NO_BUFFER;
    read_ahead(l);
    if (dtp_zero3_alone(l))
        upload(l, fetch);
    else if (l->plan->deepspeed.zero_quantized_weights)
        dtp_zeropp_gather(l, fetch, elements);
    else
        all_gather(l, fetch, l->bytes.compute * elements);
    z->gathers++;
    l->layer = layer;
}

/* Gathers what the walk says, fetch by fetch. */
static void take_all(struct dtp_lowering *l)
{
    struct dtp_lower_zero3 *z = dtp_lower_zero3_of(l);
    struct dtp_zero3_tensor tensor;
    uint32_t from = z->fetch_count;
    while (dtp_zero3_take(&z->walk, &tensor)) {
        if (tensor.starts)
            z->fetches[z->fetch_count++] = (struct dtp_zero3_fetch){.first = z->entry_count, .second = tensor.second};
        struct dtp_zero3_fetch *fetch = &z->fetches[z->fetch_count - 1];
        *fetch_of(l, tensor.layer, tensor.part) = z->fetch_count - 1;
        assert(z->fetch_count <= z->limit && z->entry_count < z->limit);
        z->entries[z->entry_count++] = (struct dtp_zero3_entry){tensor.layer, tensor.part, DTP_NO_BUFFER};
        fetch->count++;
        fetch->unused++;
    }
    for (uint32_t i = from; i < z->fetch_count; i++)
        gather(l, &z->fetches[i]);
}

/* Every tensor of a flat buffer becomes one of its own when the first of them is needed. */
static void copy_out(struct dtp_lowering *l, struct dtp_zero3_fetch *fetch)
{
    struct dtp_lower_zero3 *z = dtp_lower_zero3_of(l);
    uint16_t layer = l->layer;
    if (fetch->scales.index != DTP_NO_INDEX)
        dtp_zeropp_dequantize(l, fetch);
    bool flat = fetch->flat.index != DTP_NO_INDEX;
    for (uint32_t i = fetch->first; i < fetch->first + fetch->count && flat; i++) {
        const struct dtp_lower_module *module = dtp_zero3_module(l, z->entries[i].layer);
        int part = z->entries[i].part;
        uint64_t bytes = l->bytes.compute * module->elements[part];
        l->layer = z->entries[i].layer < l->transformer->layers ? (uint16_t)z->entries[i].layer : DTP_NO_LAYER;
        struct dtp_draft draft;
        dtp_draft_begin(l, &draft, DTP_OP_COPY_OUT, module->weight_name[part]);
        draft.op.stream = DTP_STREAM_COPY;
        z->entries[i].weight = dtp_draft_new(l, &draft, module->weight_name[part], DTP_OWNER_WEIGHTS, bytes, DTP_WRITE);
        dtp_draft_use(&draft, fetch->flat, DTP_READ);
        dtp_draft_after(&draft, fetch->ready);
        dtp_draft_memory(l, &draft, 2 * (double)bytes, 1);
        draft.op.demand.memory_kernel = DTP_KERNEL_FUSED;
        dtp_draft_end(l, &draft);
    }
    if (flat)
        fetch->ready = l->last_op[DTP_STREAM_COPY];
    for (uint32_t i = fetch->first; i < fetch->first + fetch->count; i++)
        l->state[z->entries[i].layer].weight[z->entries[i].part] = z->entries[i].weight;
    fetch->copied = true;
    l->layer = layer;
}

/* The module at hand needs the tensor: compute waits for it. */
static void await(struct dtp_lowering *l, const struct dtp_zero3_tensor *used)
{
    struct dtp_lower_zero3 *z = dtp_lower_zero3_of(l);
    if (!dtp_zero3_awaits(&z->walk))
        return;
    struct dtp_zero3_fetch *fetch = &z->fetches[*fetch_of(l, used->layer, used->part)];
    dtp_zero3_limit(l, &z->fetched, "fetches");
    if (!fetch->copied)
        copy_out(l, fetch);
    dtp_zero3_pend(&z->fetched, fetch->ready);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_MARK, "weights gathered");
    if (--fetch->unused == 0)
        dtp_draft_use(&draft, fetch->flat, DTP_FREE);
    dtp_draft_after(&draft, fetch->ready);
    dtp_draft_end(l, &draft);
}

/* ---- uses -------------------------------------------------------------------------------------------------------- */

/* Ends the use at hand; what goes leaves with the operation that reads it. */
static void end_use(struct dtp_lowering *l)
{
    struct dtp_lower_zero3 *z = dtp_lower_zero3_of(l);
    if (!z->open)
        return;
    z->open = false;
    uint64_t layer = z->walk.use.stage == DTP_ZERO3_FORWARD || z->walk.use.stage == DTP_ZERO3_REPLAY ||
                             z->walk.use.stage == DTP_ZERO3_BACKWARD
                         ? z->walk.use.layer
                         : l->transformer->layers;
    int part = z->walk.list[z->walk.use.stage][z->walk.use.index];
    bool copies = dtp_zero3_copies(&z->walk);
    if (!dtp_zero3_end(&z->walk))
        return;
    assert(z->leaving_count < DTP_ZERO3_ROOT_PARTS);
    z->leaving[z->leaving_count++] =
        (struct dtp_zero3_leaving){l->state[layer].weight[part], copies ? second_of(l, layer, part) : NULL,
                                   copies ? l->bytes.compute * dtp_zero3_shard_of(l, layer, part, true) : 0};
    l->state[layer].weight[part] = DTP_NO_BUFFER;
}

static void unfetch(struct dtp_lowering *l)
{
    struct dtp_lower_zero3 *z = dtp_lower_zero3_of(l);
    if (!fetches(l))
        return;
    if (l->role.fills) {
        if (z->open)
            dtp_zero3_tell(l, DTP_ZERO3_TOLD_UNFETCH);
        z->open = false;
        return;
    }
    end_use(l);
    if (!z->leaving_count)
        return;
    struct dtp_draft draft;
    for (uint32_t i = 0; i < z->leaving_count; i++)
        if (z->leaving[i].copy)
            dtp_zeropp_copy(l, &z->leaving[i]);
    dtp_draft_begin(l, &draft, DTP_OP_FREE, "weights");
    for (uint32_t i = 0; i < z->leaving_count; i++)
        dtp_draft_use(&draft, z->leaving[i].weight, DTP_FREE | DTP_DEFER);
    z->leaving_count = 0;
    dtp_draft_end(l, &draft);
}

/* The next use of the trace; false: there is none. */
static bool step_on(struct dtp_lowering *l, struct dtp_zero3_tensor *used)
{
    struct dtp_lower_zero3 *z = dtp_lower_zero3_of(l);
    if (!dtp_zero3_begin(&z->walk, used))
        return false;
    z->open = true;
    take_all(l);
    await(l, used);
    return true;
}

static void fetch_weight(struct dtp_lowering *l, int part)
{
    struct dtp_lower_zero3 *z = dtp_lower_zero3_of(l);
    uint64_t layer = l->layer == DTP_NO_LAYER ? l->transformer->layers : l->layer;
    if (!fetches(l) || !gathered_part(l, dtp_zero3_module(l, layer), part))
        return;
    if (l->role.fills) {
        dtp_zero3_tell(l, DTP_ZERO3_TOLD_FETCH + part);
        z->open = true;
        return;
    }
    end_use(l);
    struct dtp_zero3_tensor used;
    while (step_on(l, &used) && (used.layer != layer || used.part != part))
        unfetch(l); /* modules that lowering has no operation of its own for */
    assert(z->open);
}

static void begin_micro_step(struct dtp_lowering *l)
{
    struct dtp_lower_zero3 *z = dtp_lower_zero3_of(l);
    z->fetch_count = z->entry_count = 0;
    z->open = false;
    if (l->role.fills) {
        dtp_zero3_tell(l, l->last_micro_step ? DTP_ZERO3_TOLD_BEGIN_LAST : DTP_ZERO3_TOLD_BEGIN);
        return;
    }
    dtp_zero3_start(&z->walk, &z->shape, l->plan, l->micro_step == 0);
    if (l->plan->offload != DTP_OFFLOAD_NVME)
        return;
    dtp_zero3_start(z->ahead, &z->shape, l->plan, true);
    z->ahead_open = false;
    z->has_next = ahead_tensor(z, &z->next);
}

/* End of a micro-step. */
static void end_micro_step(struct dtp_lowering *l)
{
    struct dtp_lower_zero3 *z = dtp_lower_zero3_of(l);
    struct dtp_zero3_tensor used;
    if (l->role.fills) {
        dtp_zero3_tell(l, DTP_ZERO3_TOLD_END);
        return;
    }
    unfetch(l);
    while (fetches(l) && step_on(l, &used))
        unfetch(l);
    dtp_zero3_reduce(l);
    dtp_zero3_wait_for(l, l->last_op[DTP_STREAM_REDUCE], "gradients reduced");
    z->reduced.count = 0;
}

/* ---- the step ---------------------------------------------------------------------------------------------------- */

static void update(struct dtp_lowering *l, uint64_t elements)
{
    struct dtp_lower_zero3 *z = dtp_lower_zero3_of(l);
    bool casts = l->bytes.grads < 4;
    dtp_buffer_id grads = z->grads;
    struct dtp_draft draft;
    if (casts) {
        dtp_draft_begin(l, &draft, DTP_OP_CAST, "gradients of a sub-group");
        grads = dtp_draft_new(l, &draft, "gradients in fp32", DTP_OWNER_WORKSPACE, 4 * elements, DTP_WRITE);
        dtp_draft_use(&draft, z->grads, DTP_READ);
        dtp_draft_memory(l, &draft, (double)((l->bytes.grads + 4) * elements), 1);
        dtp_draft_end(l, &draft);
    }
    dtp_lower_update(l, z->params, z->moments, &grads, 1, elements);
    if (!casts)
        return;
    dtp_draft_begin(l, &draft, DTP_OP_FREE, "gradients in fp32");
    dtp_draft_use(&draft, grads, DTP_FREE);
    dtp_draft_end(l, &draft);
}

/* A module's tensors that persist, after the step. */
static void gather_persistent(struct dtp_lowering *l, uint64_t shard_bytes)
{
    struct dtp_lower_zero3 *z = dtp_lower_zero3_of(l);
    struct dtp_draft draft;
    dtp_buffer_id shards = z->params;
    if (on_host(l)) {
        bool nvme = l->plan->offload == DTP_OFFLOAD_NVME;
        if (nvme)
            dtp_lower_host_read(l, z->reads++, shard_bytes);
        shards = upload_shards(l, shard_bytes);
        z->gathers++;
    }
    if (dtp_zero3_alone(l)) {
        dtp_draft_begin(l, &draft, DTP_OP_COPY_OUT, "persistent parameters");
        dtp_draft_memory(l, &draft, 2 * (double)shard_bytes, 1);
    } else {
        dtp_draft_begin(l, &draft, DTP_OP_ALL_GATHER, "persistent parameters");
        draft.op.group = z->group;
        draft.op.demand.sent_bytes = (double)(shard_bytes * (l->plan->shard_group - 1));
        draft.op.demand.bytes = (double)(shard_bytes * l->plan->shard_group);
        draft.op.demand.kernels = 1;
    }
    dtp_draft_use(&draft, shards, on_host(l) ? DTP_READ | DTP_FREE | DTP_DEFER : DTP_READ);
    dtp_draft_use(&draft, z->persistent, DTP_UPDATE);
    dtp_draft_end(l, &draft);
}

static void step(struct dtp_lowering *l)
{
    struct dtp_lower_zero3 *z = dtp_lower_zero3_of(l);
    if (l->plan->offload != DTP_OFFLOAD_NONE)
        dtp_lower_host_update(l, z->params);
    for (uint64_t left = z->trained, taken; left && l->plan->offload == DTP_OFFLOAD_NONE; left -= taken) {
        taken = left < DTP_DEEPSPEED_SUB_GROUP ? left : DTP_DEEPSPEED_SUB_GROUP;
        update(l, taken);
    }
    dtp_zeropp_drop_copies(l);
    for (uint64_t i = 0; i <= l->transformer->layers && fetches(l); i++) {
        bool root = i == l->transformer->layers;
        l->layer = root ? DTP_NO_LAYER : (uint16_t)i;
        if (z->persistent_shard[root])
            gather_persistent(l, l->bytes.compute * z->persistent_shard[root]);
    }
    l->layer = DTP_NO_LAYER;
}

/* The host is in Python around each of a layer's modules, in every pass. */
static void call_modules(struct dtp_lowering *l)
{
    if (l->layer != DTP_NO_LAYER)
        dtp_lower_call_host(l, DTP_OP_HOST_HOOKS, dtp_plan_module_hooks(l->plan, l->transformer));
}

const struct dtp_lower_hooks dtp_lower_zero3 = {
    .fills = dtp_zero3_may_tell,
    .make = make,
    .release = release,
    .begin_micro_step = begin_micro_step,
    .end_micro_step = end_micro_step,
    .before_forward = call_modules,
    .before_backward = call_modules,
    .after_replay = call_modules,
    .fetch = fetch_weight,
    .unfetch = unfetch,
    .gradient_made = dtp_zero3_gradient_made,
    .step = step,
};
