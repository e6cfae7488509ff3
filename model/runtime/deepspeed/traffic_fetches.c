#include "runtime/deepspeed/traffic_fetches.h"

#include "base/bytes.h"
#include "runtime/deepspeed/zero3_fetch.h"
#include "runtime/deepspeed/zeropp.h"

#include <string.h>

/* ---- fetches ----------------------------------------------------------------------------------------------------- */

struct count {
    struct dtp_zero3_walk walk;
    const struct dtp_deepspeed_parts *parts;
    struct dtp_zero3_counts *out;
    bool newest_second; /* the newest collective is of second copies; elements of it that this rank sends */
    uint64_t newest_shard, ranks, group;
};

static uint64_t shard_of(const struct count *c, const struct dtp_zero3_tensor *tensor)
{
    bool block = tensor->layer < c->walk.shape.layers;
    uint64_t shard = (block ? c->parts->block : c->parts->root)[tensor->part].shard;
    return tensor->second ? shard * c->ranks / c->group : shard;
}

/* The newest collective is complete. */
static void close_fetch(struct count *c)
{
    struct dtp_zero3_gathers *gathers = c->newest_second ? &c->out->second : &c->out->all;
    gathers->shard += c->newest_shard;
    gathers->scale_bytes += dtp_zeropp_scale_bytes(c->newest_shard);
    c->newest_shard = 0;
}

static void take_all(struct count *c)
{
    struct dtp_zero3_tensor tensor;
    while (dtp_zero3_take(&c->walk, &tensor)) {
        if (tensor.starts) {
            close_fetch(c);
            c->newest_second = tensor.second;
            (tensor.second ? &c->out->second : &c->out->all)->count++;
        }
        c->newest_shard += shard_of(c, &tensor);
    }
}

static void repeat(struct dtp_zero3_gathers *gathers, const struct dtp_zero3_gathers *before, uint64_t times)
{
    gathers->count = before->count + times * (gathers->count - before->count);
    gathers->shard = before->shard + times * (gathers->shard - before->shard);
    gathers->scale_bytes = before->scale_bytes + times * (gathers->scale_bytes - before->scale_bytes);
}

/* What is gathered and given back, and what persists. */
static void describe_shape(const struct dtp_transformer *t, const struct dtp_plan *plan,
                           const struct dtp_deepspeed_parts *parts, struct dtp_zero3_shape *shape,
                           struct dtp_zero3_counts *out)
{
    uint64_t once[2] = {0, 0};
    *shape = (struct dtp_zero3_shape){
        .layers = t->layers, .matrices = parts->matrices, .inputs = parts->inputs, .tied = t->tied_head};
    memcpy(shape->adapter, parts->adapter, sizeof shape->adapter);
    for (int i = 0; i < DTP_ZERO3_PARTS + DTP_ZERO3_ROOT_PARTS; i++) {
        bool root = i >= DTP_ZERO3_PARTS;
        const struct dtp_deepspeed_part *part = root ? &parts->root[i - DTP_ZERO3_PARTS] : &parts->block[i];
        uint64_t *gathered = root ? &shape->root[i - DTP_ZERO3_PARTS] : &shape->block[i], times = root ? 1 : t->layers;
        *gathered = dtp_zero3_gathered(plan, part->elements, part->largest);
        if (*gathered)
            continue;
        out->persistent_shard += times * part->shard;
        once[root] += part->shard;
    }
    out->persistent_modules = (once[0] ? t->layers : 0) + (once[1] ? 1 : 0);
}

void dtp_zero3_count(const struct dtp_transformer *transformer, const struct dtp_plan *plan, uint64_t ranks,
                     struct dtp_zero3_counts *out)
{
    struct dtp_deepspeed_parts parts;
    struct dtp_zero3_shape shape;
    struct dtp_zero3_tensor used;
    struct count c; /* 400 KiB, of which a walk clears what it uses */
    dtp_deepspeed_list_parts(transformer, plan, ranks, &parts);
    *out = (struct dtp_zero3_counts){.persistent_shard = 0};
    c.ranks = ranks, c.group = plan->deepspeed.zero_hpz_partition_size;
    c.parts = &parts, c.out = out, c.newest_second = false, c.newest_shard = 0;
    describe_shape(transformer, plan, &parts, &shape, out);
    bool on_host = plan->offload == DTP_OFFLOAD_PARAMS || plan->offload == DTP_OFFLOAD_NVME;
    if (ranks == 1 && !on_host) /* gathers nothing; from the host it fetches */
        return;
    /* the first micro-step, and the second for all others: once each tensor has been released, they are alike */
    for (uint32_t i = 0; i < (plan->accumulate > 1 && c.group > 1 ? 2 : 1); i++) {
        struct dtp_zero3_gathers all = out->all, second = out->second;
        dtp_zero3_start(&c.walk, &shape, plan, i == 0);
        while (dtp_zero3_begin(&c.walk, &used)) {
            take_all(&c);
            dtp_zero3_end(&c.walk);
        }
        close_fetch(&c);
        uint64_t times = c.group == 1 ? plan->accumulate : i ? plan->accumulate - 1 : 1;
        repeat(&out->all, &all, times);
        repeat(&out->second, &second, times);
    }
}

/* ---- gradients in int4 ------------------------------------------------------------------------------------------- */

/* What a rank sends of `bytes` that it has for all of a group. */
static uint64_t others(uint64_t bytes, uint64_t ranks)
{
    return dtp_divide_up(bytes, ranks) * (ranks - 1);
}

void dtp_zeropp_count(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                      const struct dtp_plan *plan, struct dtp_zeropp_counts *out)
{
    struct dtp_deepspeed_parts parts;
    dtp_deepspeed_list_parts(transformer, plan, cluster->gpus, &parts);
    uint64_t local = cluster->gpus_per_node, nodes = cluster->gpus / local;
    *out = (struct dtp_zeropp_counts){0};
    for (int i = 0; i < DTP_ZERO3_PARTS + DTP_ZERO3_ROOT_PARTS; i++) {
        bool root = i >= DTP_ZERO3_PARTS;
        const struct dtp_deepspeed_part *part = root ? &parts.root[i - DTP_ZERO3_PARTS] : &parts.block[i];
        uint64_t times = root ? 1 : transformer->layers;
        struct dtp_zeropp_exchange exchange;
        if (!part->elements)
            continue;
        if (!dtp_zeropp_exchanges(cluster, part->rows, part->columns, &exchange)) {
            out->scattered_shard += times * part->shard;
            out->scattered_count += times;
            continue;
        }
        uint64_t node_scales = times * others(exchange.node_scale_bytes, local);
        uint64_t between_scales = times * others(exchange.between_scale_bytes, nodes);
        out->node_bytes += times * others(exchange.node_bytes, local) + node_scales;
        out->node_scale_bytes += node_scales;
        out->between_bytes += times * others(exchange.between_bytes, nodes) + between_scales;
        out->between_scale_bytes += between_scales;
        out->node_count += local > 1 ? 2 * times : 0;
        out->between_count += 2 * times;
    }
}
