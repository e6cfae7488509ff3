/* Every GPU holds all parameters: DDP, ZeRO-1 and -2, Megatron, nanotron. */
#include "bounds/memory_bound.h"

#include "plan/optimizer_state.h"
#include "plan/runtime.h"

struct replicated {
    uint64_t kept_casts;                /* layers whose casts live from forward to backward */
    uint64_t casts, head_cast;          /* bytes: of a layer | of the head */
    uint64_t buckets;                   /* that gradients are copied into on their way */
    uint64_t element_bytes, last_bytes; /* of gradients made within a block: of all | of the one at work */
    uint64_t head_gradient, waiting;    /* of the head: as it is made | a tied one's, until the embedding's comes */
    bool counted;                       /* buckets of so many elements, flattened into a copy to be reduced */
};

static uint64_t largest_tensor(const struct dtp_bound *b)
{
    return larger(larger(b->trained.largest, b->trained.embedding), b->trained.position);
}

/* A gradient on its way to the host. */
static uint64_t carried(const struct dtp_bound *b)
{
    const struct dtp_plan *plan = b->plan;
    bool offloads = plan->offload != DTP_OFFLOAD_NONE && !plan->runtime->gradients_in_matmul &&
                    !dtp_plan_sums_gradients(plan) && !dtp_plan_has_ddp_buckets(plan, b->cluster);
    return offloads ? b->bytes.grads * largest_tensor(b) : 0;
}

/* Of an element of a gradient as it joins what rests. */
static uint64_t made_bytes(const struct dtp_bound *b)
{
    return dtp_plan_sums_gradients(b->plan) ? b->bytes.params : b->bytes.grads;
}

/* Of this rank's partition, which stage 2 keeps. */
static uint64_t partition(const struct dtp_bound *b)
{
    return b->plan->offload == DTP_OFFLOAD_NONE ? b->bytes.grads * dtp_divide_up(b->trained.total, b->units.ranks) : 0;
}

/* A rank's shard of gradients that are whole besides, from the first backward of a step to its last. */
static uint64_t shard_beside(const struct dtp_bound *b)
{
    bool adds = b->plan->runtime->adds_before_shards && dtp_plan_shards_grads(b->plan) && b->units.ranks > 1;
    return adds ? b->bytes.grads * dtp_divide_up(b->trained.total, b->units.ranks) : 0;
}

/* Gradients at rest when `done` of the micro-step's have been made. */
static uint64_t gradients(const struct dtp_bound *b, uint64_t done)
{
    const struct dtp_plan *plan = b->plan;
    uint64_t total = b->trained.total, g = b->bytes.grads;
    bool several = plan->accumulate > 1, gathered = several && !plan->accumulate_sync;
    if (plan->runtime->gradients_in_matmul)
        return g * total + shard_beside(b);
    if (plan->deepspeed.bf16_optimizer) /* beside which autograd's stand */
        return (g + made_bytes(b)) * total;
    if (plan->runtime->sums_gradients) { /* which DDP's buckets stand beside */
        bool buckets = plan->strategy == DTP_DDP && dtp_plan_gradient_ranks(plan, b->cluster) > 1;
        return (g + (buckets ? made_bytes(b) : 0)) * total + made_bytes(b) * done;
    }
    if (dtp_plan_has_ddp_buckets(plan, b->cluster)) { /* buckets hold all; beside them what is no view of them */
        uint64_t beside = plan->ddp_bucket_view
                              ? (gathered && done < total ? (plan->accumulate > 2 ? total : total - done) : 0)
                              : (several ? total : done);
        return g * (total + beside);
    }
    if (!dtp_plan_shards_grads(plan))
        return carried(b) + g * (several ? total : done);
    bool begun = several || done > plan->deepspeed.reduce_bucket_size; /* from the first full bucket on */
    return carried(b) + (begun ? partition(b) : 0);
}

static struct replicated replicated_of(const struct dtp_bound *b)
{
    const struct dtp_plan *plan = b->plan;
    uint64_t c = b->bytes.compute, g = made_bytes(b), every = b->activations.checkpoint_every;
    bool behind = plan->deepspeed.pipeline || plan->deepspeed.bf16_optimizer; /* gradients are reduced */
    struct replicated r = {.counted = plan->runtime->counts_elements && !behind};
    if (dtp_plan_autocast(plan)) {
        bool replays = every && plan->checkpointing != DTP_CHECKPOINT_SELECTIVE_ATTENTION;
        r.casts = dtp_plan_casts_weights(plan) ? c * b->units.layer_cast : 0, r.head_cast = c * b->units.embedding;
        r.kept_casts = b->layers - (replays ? dtp_divide_up(b->layers, every) : 0);
    }
    if (plan->runtime->gradients_in_matmul)
        return r;
    r.head_gradient = c * b->trained.embedding;
    r.waiting = b->trained.head ? 0 : g * b->trained.embedding;
    r.last_bytes = dtp_plan_autocast(plan) ? c + g : c;
    bool rests = b->cluster->gpus == 1 || (plan->runtime->ddp && !plan->ddp_bucket_view) ||
                 (plan->runtime->counts_elements && !dtp_plan_shards_grads(plan));
    bool adds = plan->accumulate > 1 || plan->deepspeed.bf16_optimizer; /* to what stands */
    r.element_bytes = plan->runtime->sums_gradients || (rests && !adds) ? g : 0;
    if (r.counted) /* one to fill, one to reduce */
        r.buckets = b->bytes.reduce * (plan->deepspeed.overlap_comm ? 2 : 1) * plan->deepspeed.reduce_bucket_size;
    return r;
}

/* A block with `below` layers below it. */
static void block(struct dtp_bound *b, const struct replicated *r, uint64_t below, uint64_t done)
{
    bool again = r->kept_casts < b->layers && below % larger(b->activations.checkpoint_every, 1) == 0; /* replayed */
    uint64_t casts = below + 1 == b->layers && r->kept_casts ? r->kept_casts + (again ? 1 : 0) : 1;
    dtp_bound_keep_block(b,
                         gradients(b, done) + dtp_bound_saved(b, below) + casts * r->casts + r->waiting + r->buckets +
                             dtp_bound_block(b, r->element_bytes, r->last_bytes),
                         below == 0);
}

/* DeepSpeed flattens a full bucket, or the tensor that is one, beside the gradient that did not fit. Stage 1 keeps all
 * gradients, stage 2 its partition from the first bucket on. To the host slices go in fp32, tensor by tensor, or to
 * NVMe a bucket's at once. */
static void close_bucket(struct dtp_bound *b, const struct dtp_bound_closing *closing, const void *own)
{
    const struct dtp_plan *plan = b->plan;
    const struct replicated *r = own;
    uint64_t g = b->bytes.grads, oversized = closing->filled > plan->deepspeed.reduce_bucket_size ? closing->filled : 0;
    uint64_t slices = dtp_divide_up(closing->filled, b->units.ranks);
    bool shards = dtp_plan_shards_grads(plan), on_host = plan->offload != DTP_OFFLOAD_NONE;
    if (plan->offload != DTP_OFFLOAD_NVME)
        slices = smaller(slices, largest_tensor(b));
    uint64_t standing = r->buckets + (shards ? carried(b) + partition(b) + g * (closing->elements + oversized)
                                             : gradients(b, closing->done + closing->elements));
    dtp_bound_keep(b, standing + b->bytes.reduce * closing->filled + (on_host && g < 4 ? 4 * slices : 0) +
                          closing->bytes + (closing->bytes ? r->waiting : 0));
    if (shards && closing->done == closing->filled && closing->below < b->layers)
        block(b, r, closing->below, b->trained.total);
}

/* Of DeepSpeed, behind backward: an fp32 copy of one gradient at a time, and all sums as they go over the wire; behind
 * a pipeline's passes a bucket and what is flattened of it. */
static void behind(struct dtp_bound *b)
{
    const struct dtp_plan *plan = b->plan;
    uint64_t total = b->trained.total, rest = gradients(b, total), bucket = plan->deepspeed.reduce_bucket_size;
    bool casts = b->cluster->gpus > 1 && b->bytes.reduce != b->bytes.grads;
    if (plan->deepspeed.bf16_optimizer) {
        dtp_bound_keep_late(b, rest + b->bytes.grads * largest_tensor(b));
        dtp_bound_keep(b, rest + (casts ? b->bytes.reduce * total : 0));
    } else if (plan->deepspeed.pipeline) {
        dtp_bound_keep(b, rest + b->bytes.reduce * (bucket + smaller(larger(bucket, largest_tensor(b)), total)));
    }
}

void dtp_bound_replicated(struct dtp_bound *b)
{
    const struct dtp_plan *plan = b->plan;
    const struct dtp_units *u = &b->trained;
    const struct dtp_activations *a = &b->activations;
    struct replicated r = replicated_of(b);
    uint64_t cached = plan->compile ? r.kept_casts : b->layers; /* eager casts stay to the end of forward */
    uint64_t casts = r.kept_casts * r.casts + r.head_cast, shard = shard_beside(b);
    uint64_t begin = gradients(b, 0), end = gradients(b, u->total), without = u->total - u->embedding,
             stream = dtp_bound_tokens(b, a->gradient), forward = shard && plan->accumulate == 1 ? shard : begin;
    bool buffered = plan->runtime->gradients_in_matmul, autocast = dtp_plan_autocast(plan);
    dtp_bound_steps(b, &(struct dtp_bound_beside){
                           .forward = forward + cached * r.casts,
                           .logits = forward + casts + (cached - r.kept_casts) * r.casts + (autocast ? stream : 0),
                           .loss = forward + casts,
                           .head = begin + casts + r.buckets,
                           .head_gradient = r.head_gradient,
                           .ends = gradients(b, without) + r.buckets + r.waiting +
                                   (buffered ? b->bytes.compute : made_bytes(b)) * u->embedding});
    dtp_bound_hold(b, forward - carried(b) + casts + dtp_bound_saved(b, b->layers) +
                          dtp_bound_tokens(b, a->head + a->loss));
    if (u->position && !buffered)
        dtp_bound_keep_late(b, gradients(b, without - u->position) + r.waiting + r.buckets +
                                   b->bytes.grads * u->position + stream);
    block(b, &r, b->layers - 1, u->head);
    block(b, &r, 0, u->head + (b->layers - 1) * u->layer);
    if (r.counted)
        dtp_bound_buckets(b, close_bucket, &r);
    behind(b);
    b->gradients_bytes = end;
    uint64_t own = dtp_plan_shards_optimizer(plan) ? dtp_divide_up(u->total, u->ranks) : u->total;
    bool own_dtype = plan->runtime->counts_elements && !plan->deepspeed.bf16_optimizer;
    bool wide = own_dtype && b->bytes.grads < 4 && plan->offload == DTP_OFFLOAD_NONE; /* updated in fp32 */
    bool summed = plan->runtime->sums_gradients,
         copies = summed && plan->strategy == DTP_ZERO1; /* of gathered weights */
    uint64_t rest = shard ? shard : summed ? begin : end;
    dtp_bound_hold(b, rest - carried(b));
    dtp_bound_keep(b, rest + (wide ? 4 * own : 0) + (copies ? 2 * b->bytes.params * u->total : 0) +
                          dtp_optimizer_scratch_bytes(b->transformer, plan, own));
}
