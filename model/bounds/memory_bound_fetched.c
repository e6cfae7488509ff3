/* DeepSpeed's ZeRO-3: weights are fetched tensor by tensor, within limits in elements; gradients are reduced in a
 * bucket.
 *
 * Tensors up to stage3_param_persistence_threshold are never given back. Of the others, those that are still to be used
 * stand up to stage3_max_live_parameters where anything is fetched ahead: each module fetches up to
 * stage3_prefetch_bucket_size more than it uses. At the turn from forward to backward what is used again within
 * stage3_max_reuse_distance stays, whatever the limit: forward's half of it, a third where blocks are replayed. What is
 * fetched ahead comes in a flat buffer that stands beside the tensors copied out of it. ZeRO++ keeps a second copy of
 * its part of each. */
#include "bounds/memory_bound.h"

#include "plan/runtime.h"

struct fetched {
    uint64_t persistent, others; /* elements: never given back | fetched and given back */
    uint64_t ahead, flat, again; /* of the others: fetched ahead, its flat buffer | kept for backward */
    uint64_t second;             /* second copies */
    uint64_t root, flat_bytes; /* elements of embeddings and head | bytes of one in a flat buffer: ZeRO++'s are int8 */
};

static void add_tensors(struct fetched *f, uint64_t threshold, uint64_t count, uint64_t elements)
{
    *(elements <= threshold ? &f->persistent : &f->others) += count * elements;
}

static struct fetched fetched_of(const struct dtp_bound *b)
{
    const struct dtp_transformer *t = b->transformer;
    const struct dtp_plan *plan = b->plan;
    const struct dtp_units *u = &b->units;
    uint64_t h = t->hidden, q = t->heads * t->head_dim, kv = t->kv_heads * t->head_dim,
             threshold = plan->deepspeed.stage3_param_persistence_threshold, layers = b->layers;
    bool gated = dtp_activation_is_gated(t->activation), on_host = plan->offload >= DTP_OFFLOAD_PARAMS;
    struct fetched f = {.persistent = 0};
    if (u->ranks == 1 && !on_host)
        return f;
    if (plan->fused_qkv) {
        add_tensors(&f, threshold, layers, h * (q + 2 * kv));
    } else {
        add_tensors(&f, threshold, layers, h * q);
        add_tensors(&f, threshold, 2 * layers, h * kv);
    }
    add_tensors(&f, threshold, layers, h * q);
    add_tensors(&f, threshold, layers * (gated && !plan->fused_gate_up ? 2 : 1),
                h * t->ffn * (gated && plan->fused_gate_up ? 2 : 1));
    add_tensors(&f, threshold, layers, h * t->ffn);
    add_tensors(&f, threshold, u->head ? 2 : 1, u->embedding);
    add_tensors(&f, threshold, 1, u->position);
    uint64_t most = plan->deepspeed.stage3_max_live_parameters;
    bool replays = b->activations.checkpoint_every && plan->checkpointing != DTP_CHECKPOINT_SELECTIVE_ATTENTION;
    f.flat = plan->prefetch ? smaller(plan->deepspeed.stage3_prefetch_bucket_size, most) : 0;
    bool gains = f.flat > u->down; /* else a module fetches one tensor for each that it uses */
    f.ahead = !f.flat ? 0 : gains ? most : smaller(most, f.flat + 2 * u->down);
    f.flat_bytes = plan->deepspeed.zero_quantized_weights ? 1 : b->bytes.compute;
    if (plan->deepspeed.zero_quantized_weights)
        f.flat = smaller(f.flat, u->layer); /* made of int8 block by block */
    f.root = u->total - layers * u->layer;
    f.again = plan->deepspeed.stage3_max_reuse_distance / (replays ? 3 : 2);
    f.second = plan->deepspeed.zero_hpz_partition_size > 1 ? u->total / plan->deepspeed.zero_hpz_partition_size : 0;
    return f;
}

/* Bytes of weights beside a tensor of `own` elements, with `layers` layers still to be used. */
static uint64_t weights(const struct dtp_bound *b, const struct fetched *f, uint64_t own, uint64_t layers)
{
    const struct dtp_units *u = &b->units;
    uint64_t left = smaller(f->others, own + layers * u->layer_matmul + f->root);
    uint64_t live = smaller(left, larger(own, larger(f->ahead, own + f->again)));
    live = f->again + f->root >= f->others ? left : live;
    uint64_t flat = f->flat < f->others ? smaller(f->flat, live) : 0; /* else it has been used up long before */
    return b->bytes.compute * (f->persistent + live + f->second) + f->flat_bytes * flat;
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
    bool in_place = closing->tensors == 1 && closing->filled % b->units.ranks == 0;
    uint64_t fetched =
        closing->bytes ? weights(b, r->f, larger(b->units.down, r->tied), layers) + r->waiting : weights(b, r->f, 0, 0);
    dtp_bound_keep(b, r->standing + fetched + closing->bytes + g * (closing->elements + closing->oversized) +
                          (in_place ? 0 : b->bytes.reduce * closing->filled));
}

void dtp_bound_fetched(struct dtp_bound *b)
{
    const struct dtp_activations *a = &b->activations;
    const struct dtp_units *u = &b->units;
    const struct dtp_plan *plan = b->plan;
    struct fetched f = fetched_of(b);
    bool chunked = dtp_plan_loss(plan) == DTP_LOSS_CHUNKED, offloads = plan->offload != DTP_OFFLOAD_NONE;
    uint64_t c = b->bytes.compute, g = b->bytes.grads, bucket = plan->deepspeed.reduce_bucket_size;
    uint64_t standing = b->bytes.reduce * bucket + (offloads ? 0 : g * u->total_shard);
    uint64_t kept = dtp_bound_saved(b, b->layers) + dtp_bound_tokens(b, a->head);
    uint64_t head_gradient = c * u->embedding, waiting = u->head ? 0 : g * u->embedding;
    uint64_t tied = u->head || !f.again ? 0 : u->embedding, own = larger(u->down, tied); /* kept for the embedding */
    dtp_bound_keep(b, standing + kept + weights(b, &f, u->embedding, b->layers) +
                          dtp_bound_tokens(b, chunked ? 0 : a->logits));
    dtp_bound_keep(b, standing + kept + weights(b, &f, chunked || f.again ? u->embedding : 0, b->layers) +
                          dtp_bound_tokens(b, a->loss) + (chunked ? head_gradient : 0));
    dtp_bound_keep(b, standing + kept + weights(b, &f, u->embedding, b->layers) + head_gradient +
                          dtp_bound_tokens(b, a->logits_gradient + (chunked ? 0 : a->norm_gradient)));
    dtp_bound_keep(b, standing + waiting + dtp_bound_saved(b, b->layers - 1) + weights(b, &f, own, b->layers) +
                          dtp_bound_block(b, 0, g));
    dtp_bound_keep(b, standing + waiting + dtp_bound_saved(b, 0) + weights(b, &f, own, 0) + dtp_bound_block(b, 0, g));
    dtp_bound_buckets(b, close_bucket, &(struct reducing){&f, standing, waiting, tied});
    uint64_t shards = (offloads ? 0 : g * u->total_shard) + c * f.persistent;
    dtp_bound_hold(b, shards + kept + dtp_bound_tokens(b, a->loss));
    uint64_t made = standing + weights(b, &f, 0, 0) + g * u->embedding;
    dtp_bound_keep(b, made + waiting + a->embedding_backward + dtp_bound_tokens(b, a->gradient));
    dtp_bound_keep(b, standing + c * (f.persistent + f.second) +
                          (g < 4 && !offloads ? 4 * smaller(u->total_shard, 1000000000) : 0));
}
