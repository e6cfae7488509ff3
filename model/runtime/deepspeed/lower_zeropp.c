/* ZeRO++ in stage 3 (zeropp.h): what is sent in few bits, and second copies. */
#include "runtime/deepspeed/lower_zero3.h"

#include "base/bytes.h"
#include "runtime/deepspeed/zeropp.h"

#define OPERANDS 38

static dtp_op_id end_memory(struct dtp_lowering *l, struct dtp_draft *draft, uint64_t bytes)
{
    dtp_draft_memory(l, draft, (double)bytes, 1);
    draft->op.demand.memory_kernel = DTP_KERNEL_FUSED;
    return dtp_draft_end(l, draft);
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

static dtp_buffer_id second_of(const struct dtp_lowering *l, const struct dtp_zero3_entry *entry)
{
    return dtp_lower_zero3_of(l)->second_of[entry->layer * DTP_ZERO3_PARTS + (uint64_t)entry->part];
}

/* Second copies are tensors of their own, so many may take several operations. */
dtp_buffer_id dtp_zeropp_lay(struct dtp_lowering *l, const struct dtp_zero3_fetch *fetch, dtp_buffer_id shards,
                             const char *name, uint64_t buffer_bytes, uint64_t shard_bytes)
{
    struct dtp_lower_zero3 *z = dtp_lower_zero3_of(l);
    bool on_host = shards.index != DTP_NO_INDEX && shards.index != z->params.index;
    uint32_t at_a_time = fetch->second ? OPERANDS : fetch->count;
    dtp_buffer_id laid = DTP_NO_BUFFER;
    for (uint32_t done = 0; done < fetch->count; done += at_a_time) {
        struct dtp_draft draft;
        dtp_draft_begin(l, &draft, DTP_OP_COPY_IN, "shards");
        draft.op.stream = DTP_STREAM_COPY;
        if (done)
            dtp_draft_use(&draft, laid, DTP_UPDATE);
        else
            laid = dtp_draft_new(l, &draft, name, DTP_OWNER_GATHER, buffer_bytes, DTP_WRITE);
        for (uint32_t i = done; i < fetch->count && i < done + at_a_time && fetch->second; i++)
            dtp_draft_use(&draft, second_of(l, &z->entries[fetch->first + i]), DTP_READ);
        if (!fetch->second)
            dtp_draft_use(&draft, shards, on_host ? DTP_READ | DTP_FREE : DTP_READ);
        end_memory(l, &draft, done ? 0 : 2 * shard_bytes);
    }
    return laid;
}

static dtp_buffer_id copied_buffer(struct dtp_lowering *l, const char *name, uint64_t bytes)
{
    return dtp_lower_buffer(l, name, DTP_OWNER_GATHER, DTP_STREAM_COPY, bytes, false);
}

static void gather_bytes(struct dtp_lowering *l, const struct dtp_zero3_fetch *fetch, dtp_buffer_id from,
                         uint32_t access, dtp_buffer_id to, uint64_t bytes, const char *name)
{
    uint64_t ranks = fetch->second ? l->plan->deepspeed.zero_hpz_partition_size : l->plan->shard_group;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ALL_GATHER, name);
    draft.op.stream = DTP_STREAM_GATHER;
    draft.op.group = fetch->second ? dtp_lower_zero3_of(l)->second_group : dtp_lower_zero3_of(l)->group;
    dtp_draft_use(&draft, from, access);
    dtp_draft_use(&draft, to, DTP_ALLOC | DTP_WRITE);
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_COPY]);
    draft.op.demand.sent_bytes = (double)(bytes * (ranks - 1));
    draft.op.demand.bytes = (double)(bytes * ranks);
    draft.op.demand.kernels = 1;
    dtp_draft_end(l, &draft);
}

void dtp_zeropp_gather(struct dtp_lowering *l, struct dtp_zero3_fetch *fetch, uint64_t elements)
{
    struct dtp_lower_zero3 *z = dtp_lower_zero3_of(l);
    uint64_t ranks = fetch->second ? l->plan->deepspeed.zero_hpz_partition_size : l->plan->shard_group;
    uint64_t scales = dtp_zeropp_scale_bytes(elements), wide = l->bytes.compute * elements;
    bool several = fetch->count > 1;
    dtp_buffer_id source = several         ? dtp_zeropp_lay(l, fetch, z->params, "shards side by side", wide, wide)
                           : fetch->second ? second_of(l, &z->entries[fetch->first])
                                           : z->params;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_QUANTIZE, "shard as int8");
    draft.op.stream = DTP_STREAM_COPY;
    dtp_draft_use(&draft, source, several ? DTP_READ | DTP_FREE : DTP_READ);
    dtp_buffer_id narrow = dtp_draft_new(l, &draft, "shard as int8", DTP_OWNER_GATHER, elements + scales, DTP_WRITE);
    end_memory(l, &draft, wide + elements);
    fetch->flat = copied_buffer(l, "gathered as int8", ranks * elements);
    fetch->scales = copied_buffer(l, "scales", ranks * scales);
    gather_bytes(l, fetch, narrow, DTP_READ, fetch->flat, elements, "int8");
    gather_bytes(l, fetch, narrow, DTP_READ | DTP_FREE | DTP_DEFER, fetch->scales, scales, "scales");
    fetch->ready = l->last_op[DTP_STREAM_GATHER];
}

void dtp_zeropp_dequantize(struct dtp_lowering *l, struct dtp_zero3_fetch *fetch)
{
    struct dtp_zero3_entry *first = &dtp_lower_zero3_of(l)->entries[fetch->first];
    uint64_t elements = 0, ranks = fetch->second ? l->plan->deepspeed.zero_hpz_partition_size : l->plan->shard_group;
    for (uint32_t i = 0; i < fetch->count; i++)
        elements += ranks * dtp_zero3_shard_of(l, first[i].layer, first[i].part, fetch->second);
    bool several = fetch->count > 1;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_QUANTIZE, "weights from int8");
    draft.op.stream = DTP_STREAM_COPY;
    dtp_draft_use(&draft, fetch->flat, DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, fetch->scales, DTP_READ | DTP_FREE);
    dtp_buffer_id wide = several ? copied_buffer(l, "gathered", l->bytes.compute * elements)
                                 : dtp_zero3_new_weight(l, first, l->bytes.compute * elements);
    dtp_draft_use(&draft, wide, DTP_ALLOC | DTP_WRITE);
    dtp_draft_after(&draft, fetch->ready);
    fetch->ready = end_memory(l, &draft, (1 + l->bytes.compute) * elements);
    fetch->scales = DTP_NO_BUFFER;
    fetch->flat = several ? wide : DTP_NO_BUFFER;
    if (!several)
        first->weight = wide;
}

/* The host waits until it is made. */
void dtp_zeropp_copy(struct dtp_lowering *l, const struct dtp_zero3_leaving *leaving)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_COPY_OUT, "second copy");
    dtp_draft_use(&draft, leaving->weight, DTP_READ);
    *leaving->copy = dtp_draft_new(l, &draft, "second copy", DTP_OWNER_WEIGHTS, leaving->bytes, DTP_WRITE);
    dtp_op_id made = end_memory(l, &draft, 2 * leaving->bytes);
    dtp_zero3_wait_for(l, made, "second copy made");
}

/* invalidate_secondary_tensor, after the step. */
void dtp_zeropp_drop_copies(struct dtp_lowering *l)
{
    for (uint64_t layer = 0; layer <= l->transformer->layers; layer++) {
        struct dtp_draft draft;
        dtp_draft_begin(l, &draft, DTP_OP_FREE, "second copies");
        for (uint64_t part = 0; part < DTP_ZERO3_PARTS; part++) {
            dtp_buffer_id *copy = &dtp_lower_zero3_of(l)->second_of[layer * DTP_ZERO3_PARTS + part];
            dtp_draft_use(&draft, *copy, DTP_FREE);
            *copy = DTP_NO_BUFFER;
        }
        dtp_draft_after(&draft, l->last_op[DTP_STREAM_COPY]);
        dtp_draft_after(&draft, l->last_op[DTP_STREAM_GATHER]);
        if (draft.operand_count)
            dtp_draft_end(l, &draft);
    }
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

static dtp_buffer_id reduced_buffer(struct dtp_lowering *l, const char *name, uint64_t bytes)
{
    return dtp_lower_buffer(l, name, DTP_OWNER_REDUCE, DTP_STREAM_REDUCE, bytes, false);
}

static void exchange(struct dtp_lowering *l, uint32_t group, uint64_t ranks, dtp_buffer_id from, uint32_t access,
                     dtp_buffer_id to, uint64_t bytes, const char *name)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ALL_TO_ALL, name);
    draft.op.stream = DTP_STREAM_REDUCE;
    draft.op.group = group;
    dtp_draft_use(&draft, from, access);
    dtp_draft_use(&draft, to, DTP_ALLOC | DTP_WRITE);
    draft.op.demand.sent_bytes = (double)dtp_lower_ring(bytes, ranks);
    draft.op.demand.bytes = (double)bytes;
    draft.op.demand.kernels = 1;
    dtp_draft_end(l, &draft);
}

/* Quantised gradients and their scales, as one buffer each way: `narrow` becomes what came from the others. */
struct narrow {
    dtp_buffer_id values, scales;
};

static struct narrow exchange_both(struct dtp_lowering *l, uint32_t group, uint64_t ranks, dtp_buffer_id from,
                                   uint64_t bytes, uint64_t scale_bytes)
{
    struct narrow got = {reduced_buffer(l, "int4 of others", bytes),
                         reduced_buffer(l, "scales of others", scale_bytes)};
    exchange(l, group, ranks, from, DTP_READ, got.values, bytes, "int4");
    exchange(l, group, ranks, from, DTP_READ | DTP_FREE, got.scales, scale_bytes, "scales");
    return got;
}

static dtp_buffer_id quantize(struct dtp_lowering *l, const struct narrow *from, dtp_buffer_id source, uint32_t access,
                              dtp_buffer_id to, uint64_t bytes, const char *name)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_QUANTIZE, name);
    draft.op.stream = DTP_STREAM_REDUCE;
    dtp_draft_use(&draft, source, access);
    if (from) {
        dtp_draft_use(&draft, from->values, DTP_READ | DTP_FREE);
        dtp_draft_use(&draft, from->scales, DTP_READ | DTP_FREE);
    }
    dtp_draft_use(&draft, to, DTP_ALLOC | DTP_WRITE);
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_COMPUTE]);
    end_memory(l, &draft, bytes);
    return to;
}

/* swizzle_quant, all-to-all in the node, quantized_reduction, all-to-all between nodes, dequantize and sum. */
static void reduce_quantized(struct dtp_lowering *l, const struct dtp_zero3_gradient *g, dtp_buffer_id source,
                             uint32_t access, const struct dtp_zeropp_exchange *e)
{
    const struct dtp_lower_zero3 *z = dtp_lower_zero3_of(l);
    uint64_t local = l->cluster->gpus_per_node, nodes = l->cluster->gpus / local, wide = l->bytes.reduce;
    dtp_buffer_id mine =
        quantize(l, NULL, source, access, reduced_buffer(l, "int4", e->node_bytes + e->node_scale_bytes),
                 wide * g->elements + e->node_bytes, "gradient as int4");
    dtp_buffer_id summed = reduced_buffer(l, "int4 of the node", e->between_bytes + e->between_scale_bytes);
    if (local > 1) {
        struct narrow node = exchange_both(l, z->node_group, local, mine, e->node_bytes, e->node_scale_bytes);
        quantize(l, &node, DTP_NO_BUFFER, 0, summed, e->node_bytes + e->between_bytes, "sum of the node as int4");
    } else {
        quantize(l, NULL, mine, DTP_READ | DTP_FREE, summed, e->node_bytes + e->between_bytes,
                 "sum of the node as int4");
    }
    struct narrow all = exchange_both(l, z->between_group, nodes, summed, e->between_bytes, e->between_scale_bytes);
    dtp_buffer_id slices =
        quantize(l, &all, DTP_NO_BUFFER, 0, reduced_buffer(l, "slices", wide * g->shard),
                 e->between_bytes + 2 * wide * g->elements / local + wide * g->shard, "gradient from int4");
    dtp_zero3_keep(l, slices, g->shard);
}

static void reduce_wide(struct dtp_lowering *l, const struct dtp_zero3_gradient *g, dtp_buffer_id source,
                        uint32_t access)
{
    uint64_t ranks = l->plan->shard_group, bytes = l->bytes.reduce * g->shard;
    dtp_buffer_id flat = quantize(l, NULL, source, access, reduced_buffer(l, "gradient by rank", bytes * ranks),
                                  4 * bytes * ranks, "gradient by rank");
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_REDUCE_SCATTER, "gradient");
    draft.op.stream = DTP_STREAM_REDUCE;
    draft.op.group = dtp_lower_zero3_of(l)->group;
    dtp_draft_use(&draft, flat, DTP_UPDATE);
    draft.op.demand.sent_bytes = (double)(bytes * (ranks - 1));
    draft.op.demand.bytes = (double)(bytes * ranks);
    draft.op.demand.kernels = 1;
    dtp_draft_end(l, &draft);
    dtp_zero3_keep(l, flat, g->shard);
}

void dtp_zeropp_reduce(struct dtp_lowering *l)
{
    struct dtp_lower_zero3 *z = dtp_lower_zero3_of(l);
    bool oversized = z->oversized.index != DTP_NO_INDEX;
    for (uint32_t i = 0; i < z->in_bucket_count; i++) {
        const struct dtp_zero3_gradient *g = &z->in_bucket[i];
        dtp_buffer_id source = oversized ? z->oversized : z->bucket;
        uint32_t access = oversized ? DTP_READ | DTP_FREE | DTP_DEFER : DTP_READ;
        struct dtp_zeropp_exchange e;
        if (dtp_zeropp_exchanges(l->cluster, g->rows, g->columns, &e))
            reduce_quantized(l, g, source, access, &e);
        else
            reduce_wide(l, g, source, access);
    }
}
