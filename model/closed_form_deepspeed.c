#include "closed_form_deepspeed.h"

#include "bytes.h"
#include "zero3_fetch.h"
#include "zeropp.h"

/* Tensors that are one part: elements, of the largest, of one rank's shares. */
struct part {
    uint64_t elements, largest, shard, rows, columns; /* 0 of vectors */
};

static void add_matrix(struct part *part, uint64_t ranks, bool present, uint64_t rows, uint64_t columns)
{
    if (!present)
        return;
    *part = (struct part){rows * columns, rows * columns, dtp_divide_up(rows * columns, ranks), rows, columns};
}

static void add(struct part *part, uint64_t ranks, uint64_t count, uint64_t elements)
{
    part->elements += count * elements;
    part->shard += count * dtp_divide_up(elements, ranks);
    if (count && elements > part->largest)
        part->largest = elements;
}

struct parts {
    int matrices, inputs;
    struct part block[DTP_ZERO3_PARTS], root[DTP_ZERO3_ROOT_PARTS];
};

static void list_block(const struct dtp_transformer *t, const struct dtp_plan *plan, uint64_t ranks, struct parts *out)
{
    uint64_t h = t->hidden, q = t->heads * t->head_dim, kv = t->kv_heads * t->head_dim;
    bool gated = t->activation == DTP_SWIGLU, apart = gated && !plan->fused_gate_up;
    uint64_t up = gated && !apart ? 2 * t->ffn : t->ffn;
    const uint64_t qkv[] = {plan->fused_qkv ? q + 2 * kv : q, kv, kv};
    out->inputs = plan->fused_qkv ? 1 : 3;
    for (int i = 0; i < out->inputs; i++)
        add_matrix(&out->block[out->matrices++], ranks, true, qkv[i], h);
    add_matrix(&out->block[out->matrices++], ranks, true, h, q);
    for (int i = 0; i < (apart ? 2 : 1); i++)
        add_matrix(&out->block[out->matrices++], ranks, true, up, h);
    add_matrix(&out->block[out->matrices++], ranks, true, h, t->ffn);
    struct part *vectors = &out->block[out->matrices];
    add(vectors, ranks, t->norm_bias ? 4 : 2, h);
    add(vectors, ranks, t->qk_norm ? 2 : 0, t->head_dim);
    for (int i = 0; i < out->inputs; i++)
        add(vectors, ranks, t->qkv_bias, qkv[i]);
    add(vectors, ranks, t->attention_output_bias, h);
    add(vectors, ranks, t->mlp_bias ? (apart ? 2 : 1) : 0, up);
    add(vectors, ranks, t->mlp_bias, h);
}

static struct parts list_parts(const struct dtp_transformer *t, const struct dtp_plan *plan, uint64_t ranks)
{
    struct parts out = {0};
    uint64_t norm = t->norm_bias ? 2 : 1;
    list_block(t, plan, ranks, &out);
    add_matrix(&out.root[DTP_ZERO3_EMBEDDING], ranks, true, t->vocab, t->hidden);
    add_matrix(&out.root[DTP_ZERO3_HEAD], ranks, !t->tied_head, t->vocab, t->hidden);
    add_matrix(&out.root[DTP_ZERO3_POSITION], ranks, t->position == DTP_POSITION_LEARNED, t->positions, t->hidden);
    add(&out.root[DTP_ZERO3_VECTORS], ranks, (t->embedding_norm ? norm : 0) + (t->final_norm ? norm : 0), t->hidden);
    add(&out.root[DTP_ZERO3_VECTORS], ranks, t->head_bias, t->vocab);
    return out;
}

uint64_t dtp_deepspeed_largest_tensor(const struct dtp_transformer *t, const struct dtp_plan *plan)
{
    struct parts parts = list_parts(t, plan, 1);
    uint64_t largest = 0;
    for (int i = 0; i < DTP_ZERO3_PARTS; i++)
        largest = parts.block[i].largest > largest ? parts.block[i].largest : largest;
    for (int i = 0; i < DTP_ZERO3_ROOT_PARTS; i++)
        largest = parts.root[i].largest > largest ? parts.root[i].largest : largest;
    return largest;
}

/* ---- buckets ----------------------------------------------------------------------------------------------------- */

struct filling {
    struct dtp_deepspeed_buckets *out;
    const struct dtp_bucket_weights *weights;
    uint64_t bucket, filled, made, layers, worst_bytes;
};

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void close_bucket(struct filling *f, uint64_t next, bool in_mlp)
{
    static const struct dtp_bucket_weights none = {0};
    const struct dtp_bucket_weights *w = f->weights ? f->weights : &none;
    uint64_t replayed = w->every ? dtp_divide_up(f->layers, w->every) : 0;
    uint64_t live = smaller(w->live_most, w->live_last + f->layers * w->live_layer);
    bool oversized = f->filled > f->bucket, in_place = oversized && w->ranks && f->filled % w->ranks == 0;
    uint64_t copied = in_place ? 0 : f->filled;
    next += oversized ? f->filled : 0;
    uint64_t bytes = copied * w->bucket + next * w->next + f->made * w->made + live * w->live +
                     dtp_bytes_product(replayed, w->layer_kept) +
                     dtp_bytes_product(f->layers - replayed + in_mlp, w->layer_all);
    f->out->count++;
    f->out->last = f->filled;
    if (bytes > f->worst_bytes) {
        f->worst_bytes = bytes;
        f->out->worst = f->filled;
        f->out->worst_copied = copied;
        f->out->worst_next = next;
        f->out->worst_made = f->made;
        f->out->worst_live = live;
        f->out->worst_layers = f->layers;
        f->out->worst_in_mlp = in_mlp;
    }
    f->filled = 0;
}

static void fill(struct filling *f, const struct part *part, bool in_mlp)
{
    f->made += part->elements;
    if (f->filled && f->filled + part->elements > f->bucket)
        close_bucket(f, part->elements, in_mlp);
    f->filled += part->elements;
}

void dtp_deepspeed_count_buckets(const struct dtp_transformer *t, const struct dtp_plan *plan,
                                 const struct dtp_bucket_weights *weights, struct dtp_deepspeed_buckets *out)
{
    struct parts parts = list_parts(t, plan, 1);
    struct filling f = {.out = out, .weights = weights, .bucket = plan->reduce_bucket_size, .layers = t->layers};
    *out = (struct dtp_deepspeed_buckets){0};
    fill(&f, &parts.root[DTP_ZERO3_HEAD], false);
    fill(&f, &parts.root[DTP_ZERO3_VECTORS], false);
    while (f.layers--) {
        int down = parts.matrices - 1;
        fill(&f, &parts.block[down], true);
        for (int i = parts.inputs + 1; i < down; i++)
            fill(&f, &parts.block[i], i + 1 < down);
        fill(&f, &parts.block[parts.inputs], false);
        for (int i = 0; i < parts.inputs; i++)
            fill(&f, &parts.block[i], false);
        fill(&f, &parts.block[parts.matrices], false);
    }
    f.layers = 0;
    fill(&f, &parts.root[DTP_ZERO3_POSITION], false);
    fill(&f, &parts.root[DTP_ZERO3_EMBEDDING], false);
    close_bucket(&f, 0, false);
}

/* ---- fetches ----------------------------------------------------------------------------------------------------- */

/* A walk, and the flat buffers that stand: those fetched ahead are what is live; of the fetch at hand, which was copied
 * out, it is there a second time until its last tensor has been asked for. Fetches are used in their order. */
#define FLAT_BUFFERS 256
struct count {
    struct dtp_zero3_walk walk;
    const struct parts *parts;
    struct dtp_zero3_counts *out;
    struct flat {
        uint64_t elements;
        uint32_t tensors, unused;
    } flat[FLAT_BUFFERS]; /* a ring */
    uint32_t oldest, newest;
    bool flats, quantized, newest_second;        /* quantized: what is ahead is int8, half of its 16 bits */
    uint64_t ahead;                              /* elements that nobody has waited for */
    uint64_t newest_shard, ranks, group, second; /* second: elements of second copies so far */
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
            c->flat[++c->newest % FLAT_BUFFERS] = (struct flat){0};
        }
        struct flat *flat = &c->flat[c->newest % FLAT_BUFFERS];
        flat->elements += tensor.elements;
        flat->tensors++;
        flat->unused++;
        c->newest_shard += shard_of(c, &tensor);
        c->ahead += tensor.elements;
    }
}

/* A tensor that is waited for leaves the oldest fetch that has any left. */
static void use_flat(struct count *c)
{
    if (!dtp_zero3_awaits(&c->walk))
        return;
    while (!c->flat[c->oldest % FLAT_BUFFERS].unused && c->oldest < c->newest)
        c->oldest++;
    struct flat *flat = &c->flat[c->oldest % FLAT_BUFFERS];
    if (flat->unused == flat->tensors) /* all of it is copied out */
        c->ahead -= c->ahead < flat->elements ? c->ahead : flat->elements;
    flat->unused -= flat->unused ? 1 : 0;
}

static uint64_t standing(const struct count *c)
{
    const struct flat *flat = &c->flat[c->oldest % FLAT_BUFFERS];
    bool twice = c->flats && flat->unused && flat->unused < flat->tensors;
    return c->walk.live_elements + (twice ? flat->elements : 0) - (c->quantized ? c->ahead / 2 : 0);
}

static void repeat(struct dtp_zero3_gathers *gathers, const struct dtp_zero3_gathers *before, uint64_t times)
{
    gathers->count = before->count + times * (gathers->count - before->count);
    gathers->shard = before->shard + times * (gathers->shard - before->shard);
    gathers->scale_bytes = before->scale_bytes + times * (gathers->scale_bytes - before->scale_bytes);
}

/* What a rank sends of `bytes` that it has for all of a group. */
static uint64_t others(uint64_t bytes, uint64_t ranks)
{
    return dtp_divide_up(bytes, ranks) * (ranks - 1);
}

static void walk_all(struct count *c)
{
    struct dtp_zero3_tensor used;
    const struct dtp_zero3_use *use = &c->walk.use;
    while (dtp_zero3_begin(&c->walk, &used)) {
        take_all(c);
        use_flat(c);
        if (use->stage <= DTP_ZERO3_FORWARD && standing(c) > c->out->live_forward)
            c->out->live_forward = standing(c);
        if (use->stage == DTP_ZERO3_LAST)
            c->out->live_head = standing(c);
        if (use->stage == DTP_ZERO3_LAST_BACK && use->index == 0)
            c->out->live_head_backward = standing(c);
        bool copies = dtp_zero3_copies(&c->walk);
        used.second = true;
        if (dtp_zero3_end(&c->walk) && copies)
            c->second += shard_of(c, &used);
        if (use->stage <= DTP_ZERO3_LAST)
            c->out->second_forward = c->second;
        if (use->stage == DTP_ZERO3_LAST)
            c->out->live_loss = standing(c);
        if (use->stage == DTP_ZERO3_BACKWARD && use->index == 0 && use->layer + 1 == c->walk.shape.layers)
            c->out->live_early = standing(c);
        if (use->stage == DTP_ZERO3_BACKWARD && use->index == 0 && use->layer == 0)
            c->out->live_late = standing(c);
    }
}

void dtp_zero3_count(const struct dtp_transformer *transformer, const struct dtp_plan *plan, uint64_t ranks,
                     struct dtp_zero3_counts *out)
{
    struct parts parts = list_parts(transformer, plan, ranks);
    struct dtp_zero3_shape shape = {.layers = transformer->layers,
                                    .matrices = parts.matrices,
                                    .inputs = parts.inputs,
                                    .tied = transformer->tied_head};
    *out = (struct dtp_zero3_counts){0};
    uint64_t once[2] = {0, 0};
    for (int i = 0; i < DTP_ZERO3_PARTS + DTP_ZERO3_ROOT_PARTS; i++) {
        bool root = i >= DTP_ZERO3_PARTS;
        const struct part *part = root ? &parts.root[i - DTP_ZERO3_PARTS] : &parts.block[i];
        uint64_t *gathered = root ? &shape.root[i - DTP_ZERO3_PARTS] : &shape.block[i],
                 times = root ? 1 : transformer->layers;
        *gathered = dtp_zero3_gathered(plan, part->elements, part->largest);
        if (*gathered)
            continue;
        out->persistent += times * part->shard * ranks;
        out->persistent_shard += times * part->shard;
        once[root] += part->shard;
    }
    out->persistent_modules = (once[0] ? transformer->layers : 0) + (once[1] ? 1 : 0);
    /* a single rank gathers nothing, but fetches what is on the host */
    if (ranks < 2 && (plan->offload == DTP_OFFLOAD_NONE || plan->offload == DTP_OFFLOAD_OPTIMIZER))
        return;
    struct count c;
    c.flats = ranks > 1, c.newest_second = false, c.newest_shard = c.second = c.ahead = 0,
    c.quantized = plan->zero_quantized_weights;
    c.ranks = ranks, c.group = plan->zero_hpz_partition_size;
    c.parts = &parts, c.out = out, c.oldest = c.newest = 0, c.flat[0] = (struct flat){0};
    /* the first micro-step, and the second for all others: once each tensor has been released, they are alike */
    for (uint32_t i = 0; i < (plan->accumulate > 1 && c.group > 1 ? 2 : 1); i++) {
        struct dtp_zero3_counts before = *out;
        dtp_zero3_start(&c.walk, &shape, plan, i == 0);
        walk_all(&c);
        close_fetch(&c);
        uint64_t times = c.group == 1 ? plan->accumulate : i ? plan->accumulate - 1 : 1;
        repeat(&out->all, &before.all, times);
        repeat(&out->second, &before.second, times);
    }
    out->second_all = c.second;
}

void dtp_zeropp_count(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                      const struct dtp_plan *plan, struct dtp_zeropp_counts *out)
{
    struct parts parts = list_parts(transformer, plan, cluster->gpus);
    uint64_t local = cluster->gpus_per_node, nodes = cluster->gpus / local;
    *out = (struct dtp_zeropp_counts){0};
    for (int i = 0; i < DTP_ZERO3_PARTS + DTP_ZERO3_ROOT_PARTS; i++) {
        bool root = i >= DTP_ZERO3_PARTS;
        const struct part *part = root ? &parts.root[i - DTP_ZERO3_PARTS] : &parts.block[i];
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
