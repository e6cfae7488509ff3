#include "runtime/deepspeed/closed_form_deepspeed.h"

#include "base/bytes.h"
#include "runtime/deepspeed/zero3_fetch.h"
#include "runtime/deepspeed/zeropp.h"

#include <string.h>

/* ---- fetches ----------------------------------------------------------------------------------------------------- */

/* A walk, and the flat buffers that stand: those fetched ahead are what is live; of the fetch at hand, which was copied
 * out, it is there a second time until its last tensor has been asked for. Fetches are used in their order. */
#define FLAT_BUFFERS 256
struct count {
    struct dtp_zero3_walk walk;
    const struct dtp_deepspeed_parts *parts;
    struct dtp_zero3_counts *out;
    struct flat {
        uint64_t elements;
        uint32_t tensors, unused;
    } flat[FLAT_BUFFERS]; /* a ring */
    uint32_t oldest, newest;
    bool flats, quantized, newest_second;        /* quantized: what is ahead is int8, half of its 16 bits */
    uint64_t ahead;                              /* elements that nobody has waited for */
    uint64_t newest_shard, ranks, group, second; /* second: elements of second copies so far */
    uint64_t uploaded, narrow, arriving; /* elements: of the largest fetch just begun, of this rank; of int8 that is
                                          * made wide, half as many; of these what stands at the moment */
    struct dtp_zero3_standing head[DTP_ZERO3_HEAD_INSTANTS]; /* of this micro-step */
    uint64_t second_forward;                                 /* elements of second copies when its forward ends */
    bool fetches, on_host;
    const struct dtp_zero3_load *load;  /* NULL: moments are not weighed */
    uint64_t waiting;                   /* elements: of a tied head's gradient that is made */
    bool sums, ended;                   /* those of the embedding's gradient are being made; it is made */
    uint64_t below_layers, below_bytes; /* of saved_below; UINT64_MAX: of none yet */
    struct dtp_buckets buckets;
    int order[DTP_ZERO3_PARTS], order_count; /* of a block's parts in backward */
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

/* Shards come up before they are gathered, fetch by fetch. */
static void note_upload(struct count *c)
{
    if (c->on_host && c->ranks > 1 && c->newest_shard > c->uploaded)
        c->uploaded = c->newest_shard;
}

static void take_all(struct count *c)
{
    struct dtp_zero3_tensor tensor;
    bool began = false;
    while (dtp_zero3_take(&c->walk, &tensor)) {
        if (tensor.starts) {
            if (began)
                note_upload(c);
            began = true;
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
    if (began)
        note_upload(c);
}

/* A tensor that is waited for leaves the oldest fetch that has any left. */
static void use_flat(struct count *c)
{
    if (!dtp_zero3_awaits(&c->walk))
        return;
    while (!c->flat[c->oldest % FLAT_BUFFERS].unused && c->oldest < c->newest)
        c->oldest++;
    struct flat *flat = &c->flat[c->oldest % FLAT_BUFFERS];
    if (flat->unused == flat->tensors) { /* all of it is copied out */
        c->ahead -= c->ahead < flat->elements ? c->ahead : flat->elements;
        c->narrow = c->quantized && flat->tensors == 1 ? flat->elements / 2 : 0; /* several stand twice as it is */
    }
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

/* ---- moments ----------------------------------------------------------------------------------------------------- */

/* Bytes of the tensors that `layers` layers have saved; asked for many times while a walk is in one. */
static uint64_t saved_below(struct count *c, uint64_t layers)
{
    const struct dtp_zero3_load *load = c->load;
    if (layers != c->below_layers) {
        uint64_t kept = load->every ? dtp_divide_up(layers, load->every) : 0;
        c->below_layers = layers;
        c->below_bytes = kept * load->layer_kept + (layers - kept) * load->layer_all;
    }
    return c->below_bytes;
}

/* `layers` saved, the weight's gradient at hand `gradient`, the rest as it is now. */
static void weigh(struct count *c, enum dtp_zero3_phase phase, uint64_t layers, const struct dtp_block_place *place,
                  uint64_t gradient, const struct dtp_bucket_close *close)
{
    const struct dtp_zero3_load *load = c->load;
    struct dtp_zero3_moment *worst = &c->out->worst[phase];
    uint64_t live = c->fetches ? standing(c) : 0;
    bool stream = phase != DTP_ZERO3_IN_FORWARD && !c->ended;
    if (!close &&
        c->buckets.filled > c->buckets.plan->deepspeed.reduce_bucket_size) /* a bucket by itself until the next comes */
        gradient += c->buckets.filled;
    uint64_t bytes = load->compute * (live + c->second + c->arriving) + saved_below(c, layers) +
                     (place ? dtp_bytes_product(load->tokens, place->saved + place->work) : 0) +
                     load->grads * (gradient + c->waiting) + (stream ? load->stream : 0) + (close ? close->bytes : 0) +
                     (c->sums ? load->sums : 0);
    if (bytes <= worst->bytes)
        return;
    *worst = (struct dtp_zero3_moment){.bytes = bytes,
                                       .live = live,
                                       .second = c->second,
                                       .arriving = c->arriving,
                                       .layers = layers,
                                       .place = place,
                                       .stream = stream,
                                       .sums = c->sums,
                                       .waiting = c->waiting,
                                       .gradient = gradient};
    if (close)
        worst->close = *close;
}

/* A use of `part` in block `layer`: what stands of the block when it comes to be needed, while it is, and behind. */
struct visit {
    enum dtp_zero3_stage stage;
    enum dtp_zero3_phase phase;
    uint64_t layer; /* `layers`: the root */
    int part;
    const struct dtp_block_place *entry, *during, *after;
    uint64_t gradient; /* elements that the use makes */
};

static void weigh_visit(struct count *c, const struct visit *v, const struct dtp_block_place *place, uint64_t gradient)
{
    bool block = v->layer < c->walk.shape.layers;
    if (c->load && block)
        weigh(c, v->phase, v->layer, place, gradient, NULL);
}

/* What stands beside the weights while they come: their shards, or int8 that they are made of. */
static void weigh_arrival(struct count *c, const struct visit *v, uint64_t elements)
{
    if (!elements)
        return;
    c->arriving = elements;
    weigh_visit(c, v, v->entry, 0);
    if (c->load && v->stage == DTP_ZERO3_FIRST_BACK)
        weigh(c, DTP_ZERO3_IN_LATE_BACKWARD, 0, NULL, 0, NULL);
    c->arriving = 0;
}

/* A module's use of one tensor: gathered with what is prefetched, read, given back. */
static void use_tensor(struct count *c, const struct visit *v)
{
    struct dtp_zero3_tensor used;
    bool gathered = c->fetches && (v->layer < c->walk.shape.layers ? c->walk.shape.block : c->walk.shape.root)[v->part];
    if (gathered && dtp_zero3_begin(&c->walk, &used)) {
        take_all(c);
        weigh_arrival(c, v, c->uploaded);
        use_flat(c);
        weigh_arrival(c, v, c->narrow);
        if ((v->stage == DTP_ZERO3_LAST || v->stage == DTP_ZERO3_LAST_BACK) && c->narrow)
            c->head[v->stage == DTP_ZERO3_LAST ? DTP_ZERO3_HEAD_ARRIVES : DTP_ZERO3_HEAD_ARRIVES_AGAIN].live =
                standing(c) + c->narrow;
        c->uploaded = c->narrow = 0;
    }
    if (v->stage == DTP_ZERO3_LAST)
        c->head[DTP_ZERO3_HEAD_FORWARD].live = c->fetches ? standing(c) : 0;
    bool head_back = v->stage == DTP_ZERO3_LAST_BACK && v->part != DTP_ZERO3_VECTORS;
    if (head_back)
        c->head[DTP_ZERO3_HEAD_BACKWARD].live = c->fetches ? standing(c) : 0;
    weigh_visit(c, v, v->during, v->gradient);
    if (v->stage == DTP_ZERO3_LAST)
        c->head[DTP_ZERO3_HEAD_LOSS].live = c->fetches ? standing(c) : 0;
    if (!gathered)
        return;
    bool copies = dtp_zero3_copies(&c->walk);
    used.second = true;
    uint64_t second = copies ? shard_of(c, &used) : 0, live = c->walk.live_elements;
    if (dtp_zero3_end(&c->walk) && copies) {
        uint64_t given_back = live - c->walk.live_elements;
        c->second += second;
        c->walk.live_elements += given_back; /* the copy is made before it goes */
        weigh_visit(c, v, v->after, v->gradient);
        c->walk.live_elements -= given_back;
        if (head_back)
            c->head[DTP_ZERO3_HEAD_COPIED] =
                (struct dtp_zero3_standing){c->head[DTP_ZERO3_HEAD_BACKWARD].live, c->second};
    }
    if (v->stage <= DTP_ZERO3_LAST)
        c->second_forward = c->second;
    if (v->stage == DTP_ZERO3_LAST)
        c->head[DTP_ZERO3_HEAD_LOSS].live = standing(c);
}

static void close_weighed(struct count *c, enum dtp_zero3_phase phase, uint64_t layers,
                          const struct dtp_block_place *place, const struct dtp_deepspeed_part *part)
{
    struct dtp_bucket_close close;
    if (c->load && dtp_buckets_add(&c->buckets, part, &close))
        weigh(c, phase, layers, place, 0, &close);
}

static const struct dtp_block_place *segment_of(const struct count *c, int pass, int segment)
{
    return c->load ? &c->load->places->segments[pass].of[segment] : NULL;
}

static const struct dtp_block_place *entry_of(const struct count *c, int pass, int matrix)
{
    return c->load ? &c->load->places->segments[pass].entry[matrix] : NULL;
}

/* Forward of a block, or its replay; vectors come first, with the first matrix. */
static void walk_forward(struct count *c, enum dtp_zero3_stage stage, enum dtp_zero3_phase phase, uint64_t layer,
                         int pass)
{
    struct visit v = {.stage = stage, .phase = phase, .layer = layer, .part = c->parts->matrices};
    v.entry = v.during = v.after = entry_of(c, pass, 0);
    weigh_visit(c, &v, segment_of(c, pass, 0), 0);
    use_tensor(c, &v);
    for (v.part = 0; v.part < c->parts->matrices; v.part++) {
        v.entry = entry_of(c, pass, v.part);
        v.during = segment_of(c, pass, 2 * v.part + 1), v.after = segment_of(c, pass, 2 * v.part + 2);
        use_tensor(c, &v);
        weigh_visit(c, &v, v.after, 0);
    }
}

static void walk_backward(struct count *c, enum dtp_zero3_phase phase, uint64_t layer)
{
    struct visit v = {.stage = DTP_ZERO3_BACKWARD, .phase = phase, .layer = layer};
    const struct dtp_block_place *handed = NULL;
    for (int i = 0; i < c->order_count; i++) {
        const struct dtp_deepspeed_part *part = &c->parts->block[c->order[i]];
        bool vectors = i + 1 == c->order_count; /* used by the hooks, when all is done */
        v.part = c->order[i], v.gradient = part->elements;
        v.entry = entry_of(c, DTP_SEGMENTS_BACKWARD, i);
        v.during = segment_of(c, DTP_SEGMENTS_BACKWARD, 3 * i);
        v.after = handed = segment_of(c, DTP_SEGMENTS_BACKWARD, 3 * i + 1);
        if (vectors)
            weigh_visit(c, &v, v.during, v.gradient);
        else
            use_tensor(c, &v);
        weigh_visit(c, &v, handed, v.gradient);
        close_weighed(c, phase, layer, handed, part);
        weigh_visit(c, &v, segment_of(c, DTP_SEGMENTS_BACKWARD, 3 * i + 2), 0);
    }
    v.entry = v.during = handed;
    v.gradient = 0;
    use_tensor(c, &v);
}

static void use_root(struct count *c, enum dtp_zero3_stage stage, int part)
{
    struct visit v = {.stage = stage, .layer = c->walk.shape.layers, .part = part};
    if (c->parts->root[part].elements)
        use_tensor(c, &v);
}

/* The tables' gradients, and the residual stream's that they are made from; positions come first, and the hooks of both
 * before the embedding's. */
static void embeddings_backward(struct count *c)
{
    const struct dtp_deepspeed_part *position = &c->parts->root[DTP_ZERO3_POSITION],
                                    *embedding = &c->parts->root[DTP_ZERO3_EMBEDDING];
    if (c->load && position->elements)
        weigh(c, DTP_ZERO3_IN_LATE_BACKWARD, 0, NULL, position->elements, NULL);
    close_weighed(c, DTP_ZERO3_IN_LATE_BACKWARD, 0, NULL, position);
    use_root(c, DTP_ZERO3_FIRST_BACK, DTP_ZERO3_POSITION);
    use_root(c, DTP_ZERO3_FIRST_BACK, DTP_ZERO3_EMBEDDING);
    c->sums = true;
    if (c->load)
        weigh(c, DTP_ZERO3_IN_LATE_BACKWARD, 0, NULL, embedding->elements, NULL);
    c->sums = false;
    c->waiting = 0;
    c->ended = true;
    close_weighed(c, DTP_ZERO3_IN_LATE_BACKWARD, 0, NULL, embedding);
}

static void walk_all(struct count *c)
{
    uint64_t layers = c->walk.shape.layers;
    const struct dtp_deepspeed_part *root = c->parts->root;
    bool tied = !root[DTP_ZERO3_HEAD].elements;
    int head = tied ? DTP_ZERO3_EMBEDDING : DTP_ZERO3_HEAD;
    uint64_t every = c->walk.replay_every;
    c->sums = c->ended = false;
    use_root(c, DTP_ZERO3_FIRST, DTP_ZERO3_EMBEDDING);
    use_root(c, DTP_ZERO3_FIRST, DTP_ZERO3_POSITION);
    for (uint64_t layer = 0; layer < layers; layer++) {
        bool checkpointed = c->load && c->load->every && layer % c->load->every == 0;
        walk_forward(c, DTP_ZERO3_FORWARD, DTP_ZERO3_IN_FORWARD, layer,
                     checkpointed ? DTP_SEGMENTS_CHECKPOINTED : DTP_SEGMENTS_FORWARD);
    }
    use_root(c, DTP_ZERO3_LAST, DTP_ZERO3_VECTORS);
    use_root(c, DTP_ZERO3_LAST, head);
    use_root(c, DTP_ZERO3_LAST_BACK, head);
    c->waiting = tied ? root[DTP_ZERO3_EMBEDDING].elements : 0;
    close_weighed(c, DTP_ZERO3_IN_EARLY_BACKWARD, layers, NULL, &root[DTP_ZERO3_HEAD]);
    close_weighed(c, DTP_ZERO3_IN_EARLY_BACKWARD, layers, NULL, &root[DTP_ZERO3_VECTORS]);
    use_root(c, DTP_ZERO3_LAST_BACK, DTP_ZERO3_VECTORS);
    for (uint64_t left = layers; left > 0; left--) {
        uint64_t layer = left - 1;
        enum dtp_zero3_phase phase = 2 * layer >= layers ? DTP_ZERO3_IN_EARLY_BACKWARD : DTP_ZERO3_IN_LATE_BACKWARD;
        if (every && layer % every == 0)
            walk_forward(c, DTP_ZERO3_REPLAY, phase, layer, DTP_SEGMENTS_REPLAY);
        walk_backward(c, phase, layer);
    }
    embeddings_backward(c);
    struct dtp_bucket_close close;
    if (c->load && dtp_buckets_end(&c->buckets, &close))
        weigh(c, DTP_ZERO3_IN_LATE_BACKWARD, 0, NULL, 0, &close);
}

/* Beside the head stand the second copies of forward. The first micro-step makes them and still gathers from all ranks,
 * later ones have them all: what stands is the most in either. */
static void keep_worst_head(struct count *c)
{
    for (int i = 0; i < DTP_ZERO3_HEAD_INSTANTS; i++) {
        struct dtp_zero3_standing *now = &c->head[i], *worst = &c->out->head[i];
        bool always = i <= DTP_ZERO3_HEAD_BACKWARD;
        if (i != DTP_ZERO3_HEAD_COPIED && (always || now->live))
            now->second = c->second_forward;
        if (now->live + now->second > worst->live + worst->second)
            *worst = *now;
    }
}

/* What is gathered and given back, and what persists. */
static void describe_shape(const struct dtp_transformer *t, const struct dtp_plan *plan, const struct count *c,
                           struct dtp_zero3_shape *shape, struct dtp_zero3_counts *out)
{
    uint64_t once[2] = {0, 0};
    *shape = (struct dtp_zero3_shape){
        .layers = t->layers, .matrices = c->parts->matrices, .inputs = c->parts->inputs, .tied = t->tied_head};
    for (int i = 0; i < DTP_ZERO3_PARTS + DTP_ZERO3_ROOT_PARTS; i++) {
        bool root = i >= DTP_ZERO3_PARTS;
        const struct dtp_deepspeed_part *part = root ? &c->parts->root[i - DTP_ZERO3_PARTS] : &c->parts->block[i];
        uint64_t *gathered = root ? &shape->root[i - DTP_ZERO3_PARTS] : &shape->block[i], times = root ? 1 : t->layers;
        *gathered = dtp_zero3_gathered(plan, part->elements, part->largest);
        if (*gathered)
            continue;
        out->persistent += times * part->shard * c->ranks;
        out->persistent_shard += times * part->shard;
        once[root] += part->shard;
    }
    out->persistent_modules = (once[0] ? t->layers : 0) + (once[1] ? 1 : 0);
}

void dtp_zero3_count(const struct dtp_transformer *transformer, const struct dtp_plan *plan, uint64_t ranks,
                     const struct dtp_zero3_load *load, struct dtp_zero3_counts *out)
{
    struct dtp_deepspeed_parts parts;
    struct dtp_zero3_shape shape;
    struct count c; /* 100 KiB, of which a walk clears what it uses */
    dtp_deepspeed_list_parts(transformer, plan, ranks, &parts);
    *out = (struct dtp_zero3_counts){0};
    c.ranks = ranks, c.group = plan->deepspeed.zero_hpz_partition_size;
    c.parts = &parts, c.out = out, c.oldest = c.newest = 0, c.flat[0] = (struct flat){0}, c.load = load;
    describe_shape(transformer, plan, &c, &shape, out);
    c.on_host = plan->offload == DTP_OFFLOAD_PARAMS || plan->offload == DTP_OFFLOAD_NVME;
    c.fetches = ranks > 1 || c.on_host; /* a single rank gathers nothing, but fetches what is on the host */
    if (!c.fetches && !load)
        return;
    c.flats = ranks > 1, c.newest_second = false,
    c.newest_shard = c.second = c.second_forward = c.ahead = c.uploaded = c.narrow = c.arriving = c.waiting = 0,
    c.quantized = plan->deepspeed.zero_quantized_weights;
    c.below_layers = UINT64_MAX;
    c.order_count = dtp_deepspeed_backward_order(&parts, c.order);
    /* the first micro-step, and the second for all others: once each tensor has been released, they are alike */
    for (uint32_t i = 0; i < (plan->accumulate > 1 && c.group > 1 ? 2 : 1); i++) {
        struct dtp_zero3_gathers all = out->all, second = out->second;
        if (load)
            dtp_buckets_begin(&c.buckets, transformer, load->cluster, plan, ranks, load->total, load->grads);
        dtp_zero3_start(&c.walk, &shape, plan, i == 0);
        memset(c.head, 0, sizeof c.head);
        walk_all(&c);
        if (!c.fetches)
            return;
        keep_worst_head(&c);
        close_fetch(&c);
        uint64_t times = c.group == 1 ? plan->accumulate : i ? plan->accumulate - 1 : 1;
        repeat(&out->all, &all, times);
        repeat(&out->second, &second, times);
    }
    out->second_all = c.second;
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
