/* DeepSpeed's ZeRO-3: weights are fetched tensor by tensor, within limits in elements; gradients go by buckets.
 * Tensors up to stage3_param_persistence_threshold are never given back. Of the others, those that are still to be used
 * stand up to stage3_max_live_parameters where anything is fetched ahead: each module fetches up to
 * stage3_prefetch_bucket_size more than it uses, one tensor at least. Where a bucket is more than the smallest tensor,
 * that is more than modules give back, and what stands grows up to the limit; else it grows only where they give back
 * less than one for each that they fetch: at the turn, and in backward where a block is replayed, whose two uses fetch
 * twice.
 * At the turn from forward to backward what is used again within stage3_max_reuse_distance stays, whatever the limit.
 * With R elements of blocks above it, and of them all or each `every`-th replayed, a tensor is used again after twice
 * the head and (2 + 1/every) R elements.
 * What is fetched ahead comes in a flat buffer that stands beside the tensors copied out of it until the first of these
 * is used. The last of a micro-step's are the tables', embedding and positions, for their backward: where all other
 * weights may stand they have been fetched by the turn, beyond the limit, which stops only what begins behind it; where
 * a bucket holds all of them, forward has one of them. They are given back before their gradients are made. ZeRO++
 * keeps second copies of what has been given back, to the end of the step, and reduces gradients in few bits tensor by
 * tensor. */
#include "bounds/memory_bound.h"

/* Elements: never given back; fetched and given back, the smallest matrix of these. Of the others what is fetched
 * ahead, its flat buffer, blocks kept for backward; to how many that comes, by how many more with each layer of
 * backward; of the embedding, where it is fetched by the turn; ranks of a second copy; embeddings and head. Bytes of
 * one in a flat buffer. */
struct fetched {
    uint64_t persistent, others, smallest, ahead, flat, again, most, gained, last, second, root, flat_bytes;
};

static void add_tensors(const struct dtp_bound *b, struct fetched *f, uint64_t count, uint64_t elements)
{
    const bool persist = elements <= b->plan->deepspeed.stage3_param_persistence_threshold;
    *(persist ? &f->persistent : &f->others) += count * elements;
}

static struct fetched fetched_of(const struct dtp_bound *b)
{
    const struct dtp_deepspeed_plan *asked = &b->plan->deepspeed;
    const struct dtp_units *u = b->units;
    const bool replays =
        b->activations.checkpoint_every && b->plan->checkpointing != DTP_CHECKPOINT_SELECTIVE_ATTENTION;
    const uint64_t layers = b->layers, every = replays ? b->activations.checkpoint_every : 1,
                   reuse = asked->stage3_max_reuse_distance, threshold = asked->stage3_param_persistence_threshold,
                   table = u->embedding > threshold ? u->embedding : 0;
    struct fetched f = {
        .smallest = u->down, .most = asked->stage3_max_live_parameters, .root = u->total - layers * u->layer};
    if (u->ranks == 1 && b->plan->offload < DTP_OFFLOAD_PARAMS)
        return (struct fetched){.second = 1};
    for (int i = 0; i < b->matrices; i++) {
        const uint64_t elements = b->matrix[i].elements;
        f.smallest = elements > threshold ? smaller(f.smallest, elements) : f.smallest;
        add_tensors(b, &f, layers, elements);
        add_tensors(b, &f, dtp_plan_adapts(b->plan) ? layers : 0, b->matrix[i].trained);
    }
    add_tensors(b, &f, u->head ? 2 : 1, u->embedding);
    add_tensors(b, &f, 1, u->position);
    f.again = reuse > 2 * table ? (reuse - 2 * table) / (2 * every + (replays ? 1 : 0)) * every : 0;
    f.flat = b->plan->prefetch ? smaller(asked->stage3_prefetch_bucket_size, f.most) : 0;
    const bool gains = f.flat > f.smallest;
    const uint64_t tables = table + (u->position > threshold ? u->position : 0);
    f.ahead = !f.flat ? 0 : gains ? f.most + tables : f.flat + 2 * u->down + f.again;
    f.gained = f.flat && !gains && replays ? u->layer_matmul / every : 0;
    f.last = gains && f.others <= f.most + tables ? tables : 0;
    f.flat_bytes = asked->zero_quantized_weights ? 1 : b->bytes.compute;
    if (asked->zero_quantized_weights || (f.flat == f.most && f.others > f.most + tables))
        f.flat =
            smaller(f.flat, u->layer); /* made of int8 block by block, or where it is all room, as that is given back */
    f.second = asked->zero_hpz_partition_size > 1 ? asked->zero_hpz_partition_size : UINT64_MAX;
    return f;
}

/* Bytes of weights beside a tensor of `own` elements, with `layers` layers still to be used. The last that is kept for
 * backward may be over its distance. */
static uint64_t weights(const struct dtp_bound *b, const struct fetched *f, uint64_t own, uint64_t layers)
{
    const struct dtp_units *u = b->units;
    uint64_t left = smaller(f->others, own + layers * u->layer_matmul + f->root);
    uint64_t over = f->again && own > u->down ? u->down : 0;
    uint64_t ahead = smaller(f->most + f->last, f->ahead + (b->layers - layers) * f->gained);
    uint64_t live = smaller(left, larger(own, larger(ahead, own + f->again + over)));
    live = f->again && f->again + f->root >= f->others ? left : live;
    /* else forward has used it up, or the embedding */
    uint64_t flat = f->flat < f->others && (own || layers) ? smaller(f->flat + f->last, live) : 0;
    /* second copies are of all that was given back, and stay to the end of the step */
    const uint64_t kept = f->again && b->plan->accumulate == 1 ? smaller(live, own + f->again + over) : 0;
    return b->bytes.compute * (f->persistent + live + (f->others - kept) / f->second) + f->flat_bytes * flat;
}

struct reducing {
    const struct fetched *f;
    uint64_t standing, waiting, tied; /* bytes; a tied head's gradient, its weight's elements */
};

/* A bucket is laid out by rank beside itself; a tensor that is one and needs no padding is reduced where it is. */
static void close_bucket(struct dtp_bound *b, const struct dtp_bound_closing *closing, const void *own)
{
    const struct reducing *r = own;
    uint64_t g = b->bytes.grads, layers = closing->below < b->layers ? closing->below : b->layers - 1;
    const bool by_tensor = b->plan->deepspeed.zero_quantized_gradients && b->cluster->nodes > 1,
               same = b->bytes.reduce == g || closing->filled <= b->plan->deepspeed.reduce_bucket_size,
               in_place = closing->tensors == 1 && closing->filled % b->units->ranks == 0 && same;
    const uint64_t most =
        by_tensor ? larger(larger(b->trained->largest, b->trained->embedding), b->trained->position) : closing->filled;
    uint64_t fetched = closing->bytes ? weights(b, r->f, larger(b->units->down, r->tied), layers) + r->waiting
                                      : b->bytes.compute * (r->f->persistent + r->f->others / r->f->second);
    dtp_bound_keep(b, r->standing + fetched + closing->bytes + g * closing->whole +
                          (in_place ? 0 : b->bytes.reduce * smaller(most, closing->filled)));
}

void dtp_bound_fetched(struct dtp_bound *b)
{
    const struct dtp_activations *a = &b->activations;
    const struct dtp_units *u = b->units, *t = b->trained;
    const struct dtp_plan *plan = b->plan;
    struct fetched f = fetched_of(b);
    bool chunked = dtp_plan_loss(plan) == DTP_LOSS_CHUNKED, offloads = plan->offload != DTP_OFFLOAD_NONE;
    bool reuses = plan->deepspeed.stage3_max_reuse_distance > 0; /* a weight used again at once stays */
    uint64_t c = b->bytes.compute, g = b->bytes.grads, layers = b->layers;
    uint64_t shard = offloads ? 0 : g * t->total_shard,
             standing = b->bytes.reduce * plan->deepspeed.reduce_bucket_size + shard;
    uint64_t waiting = u->head ? 0 : g * t->embedding, persistent = c * (f.persistent + f.others / f.second);
    uint64_t tied = u->head || !reuses ? 0 : u->embedding, own = larger(u->down, tied); /* kept for the embedding */
    uint64_t all = f.flat >= f.others ? f.flat_bytes * f.others : 0; /* in one flat buffer, until the head is used */
    uint64_t logits = dtp_bound_tokens(b, chunked ? 0 : a->logits), block = dtp_bound_block(b, 0, g);
    uint64_t head = standing + weights(b, &f, u->embedding, layers);
    struct dtp_bound_beside beside = {.head = head, .head_gradient = c * t->embedding};
    beside.forward = standing + weights(b, &f, u->down, layers) + all;
    beside.logits = head + (all > logits ? all - logits : 0);
    beside.loss = chunked || reuses || f.flat ? head : standing + weights(b, &f, 0, layers);
    beside.ends = standing + persistent + g * t->embedding + waiting;
    dtp_bound_steps(b, &beside);
    dtp_bound_keep(b, standing + waiting + dtp_bound_saved(b, layers - 1) + weights(b, &f, own, layers) + block);
    dtp_bound_buckets(b, close_bucket, &(struct reducing){&f, standing, waiting, tied});
    dtp_bound_hold(b, shard + c * f.persistent + dtp_bound_saved(b, layers) + dtp_bound_tokens(b, a->head + a->loss));
    dtp_bound_keep(b, standing + persistent + (g < 4 && !offloads ? 4 * smaller(t->total_shard, 1000000000) : 0));
}
