/* Every GPU holds all parameters: DDP, ZeRO-1 and -2, Megatron, nanotron. */
#include "bounds/memory_bound.h"

#include "closed/reduced_bucket.h"
#include "plan/optimizer_state.h"
#include "plan/runtime.h"

/* Layers whose casts live from forward to backward, bytes of these, of a layer's, of the head's. Buckets that gradients
 * are copied into on their way. Of an element of a gradient as it joins what rests; of gradients made within a block,
 * of all and of the one at work. The head's as it is made, a tied one until the embedding's comes. Of the largest
 * tensor the elements, its gradient on its way to the host. A rank's gradients, where it has whole ones too. */
struct replicated {
    uint64_t kept_casts, kept, casts, head_cast, buckets, made, element_bytes, last_bytes;
    uint64_t head_gradient, waiting, largest, carried, part, shard, beside, workspace; /* it stands from backward on */
    uint64_t others;      /* rows of the table that other ranks have, whose gradient this one makes as well */
    bool counted, behind; /* buckets of so many elements, flattened into a copy to be reduced; when all are made */
};

/* Gradients at rest when `done` of the micro-step's have been made, in backward with its workspace. */
static uint64_t gradients(const struct dtp_bound *b, const struct replicated *r, uint64_t done, bool backward)
{
    const struct dtp_plan *plan = b->plan;
    const uint64_t total = b->trained->total, g = b->bytes.grads;
    const bool several = plan->accumulate > 1, gathered = several && !plan->accumulate_sync;
    if (plan->runtime->gradients_in_matmul)
        return g * total + r->beside;
    if (plan->deepspeed.bf16_optimizer) /* beside which autograd's stand */
        return (g + r->made) * total;
    if (plan->runtime->sums_gradients) { /* which DDP's buckets stand beside */
        bool buckets = plan->strategy == DTP_DDP && dtp_plan_gradient_ranks(plan, b->cluster) > 1;
        return (g + (buckets ? r->made : 0)) * total + r->made * done + (several || backward ? r->workspace : 0);
    }
    if (dtp_plan_has_ddp_buckets(plan, b->cluster)) { /* buckets hold all; beside them what is no view of them */
        uint64_t left = done < total ? (plan->accumulate > 2 ? total : total - done) : 0;
        uint64_t all = dtp_plan_adapts(plan) ? dtp_plan_gradients_bytes(b->transformer, plan, total) : g * total;
        uint64_t apart = !plan->ddp_bucket_view ? (several ? total : done) : gathered ? left : 0;
        return all + (apart == total ? all : g * apart);
    }
    const bool begun = done > plan->deepspeed.reduce_bucket_size, /* from the first full bucket on */
        stays = plan->offload == DTP_OFFLOAD_NONE;
    if (r->counted && !r->behind && !dtp_plan_shards_grads(plan)) /* what is in a bucket is nowhere else */
        return r->carried + (several ? g * (total - done) : 0) + (begun && stays ? r->shard : 0);
    if (!dtp_plan_shards_grads(plan))
        return r->carried + g * (several || done == total ? total + r->others : done);
    const uint64_t shards = (several ? 1u : 0u) + (begun && backward ? 1u : 0u);
    return r->carried + (stays ? shards * r->shard : 0);
}

static struct replicated replicated_of(const struct dtp_bound *b)
{
    const struct dtp_plan *plan = b->plan;
    const struct dtp_units *t = b->trained;
    const struct dtp_runtime *runtime = plan->runtime;
    const uint64_t c = b->bytes.compute, g = b->bytes.grads;
    const bool behind = plan->deepspeed.pipeline || plan->deepspeed.bf16_optimizer, /* gradients are reduced */
        autocast = dtp_plan_autocast(plan);
    struct replicated r = {.counted = runtime->counts_elements && !behind,
                           .shard = g * b->partition,
                           .behind = dtp_plan_fills_buckets_behind(plan),
                           .part = dtp_divide_up(t->total, t->ranks),
                           .made = dtp_plan_sums_gradients(plan) ? b->bytes.params : g,
                           .largest = larger(larger(t->largest, t->embedding), t->position),
                           .workspace = runtime->passing_workspace ? dtp_plan_cublas_workspace(&b->cluster->gpu) : 0};
    if (r.counted)
        r.shard = g * (b->transformer->experts
                           ? r.part
                           : dtp_bucket_kept(t, b->layer_trained[0], b->matrix[0], b->matrices[0], r.part, r.behind));
    r.others = dtp_bound_others_rows(b);
    r.beside = runtime->adds_before_shards && dtp_plan_shards_grads(plan) && t->ranks > 1 ? r.shard : 0;
    if (autocast) {
        bool replays = b->activations.checkpoint_every && plan->checkpointing != DTP_CHECKPOINT_SELECTIVE_ATTENTION;
        r.casts = dtp_plan_casts_weights(plan) ? c * b->units->layer_cast : 0, r.head_cast = c * b->units->embedding;
        static const uint64_t none[DTP_LAYER_MLPS];
        r.kept_casts = replays ? dtp_bound_whole(b, b->layers) : b->layers;
        r.kept = r.casts ? c * dtp_bound_layers(b, b->layers, replays ? none : b->layer_cast, b->layer_cast) : 0;
    }
    if (runtime->gradients_in_matmul)
        return r;
    if (plan->offload != DTP_OFFLOAD_NONE && !dtp_plan_sums_gradients(plan) &&
        !dtp_plan_has_ddp_buckets(plan, b->cluster))
        r.carried = g * r.largest;
    r.head_gradient = c * t->embedding, r.waiting = t->head ? 0 : r.made * t->embedding;
    r.last_bytes = autocast ? c + r.made : c;
    const bool adds = plan->accumulate > 1 || plan->deepspeed.bf16_optimizer; /* to what stands */
    r.element_bytes = runtime->sums_gradients || !adds ? r.made : 0;
    if (r.counted) /* one to fill, one to reduce */
        r.buckets = b->bytes.reduce * (plan->deepspeed.overlap_comm ? 2 : 1) * plan->deepspeed.reduce_bucket_size;
    return r;
}

/* A block with `below` layers below it. */
static void block(struct dtp_bound *b, const struct replicated *r, uint64_t below, uint64_t done)
{
    bool again = r->kept_casts < b->layers && below % larger(b->activations.checkpoint_every, 1) == 0; /* replayed */
    const uint64_t casts = r->kept_casts ? r->kept / b->layers * (below + 1) + (again ? r->casts : 0) : r->casts;
    const uint64_t bytes = gradients(b, r, done, true) + dtp_bound_saved(b, below) + casts + r->waiting + r->buckets +
                           dtp_bound_block(b, DTP_LAYER_MLPS, r->element_bytes, r->last_bytes);
    (below >= b->layers / 2 ? dtp_bound_keep : dtp_bound_keep_late)(b, bytes);
    b->block_bytes = larger(b->block_bytes, b->rest_bytes + bytes); /* which the reduction of any bucket may meet */
}

/* DeepSpeed flattens a full bucket, or the tensor that is one, beside the gradient that did not fit, where it is of
 * several ranks; then what it keeps of the first one is made, in a later micro-step once more. To the host slices go in
 * fp32. A gradient is made beside so many bytes of activations. */
static void made(struct dtp_bound *b, const struct replicated *r, struct dtp_reduced_bucket *w, uint64_t elements,
                 uint64_t bytes, uint64_t below)
{
    const uint64_t g = b->bytes.grads, slices = dtp_divide_up(w->filled, b->units->ranks), total = b->trained->total;
    if (!elements && bytes) /* none; without any, behind the last */
        return;
    const bool on_host = b->plan->offload != DTP_OFFLOAD_NONE, shards = dtp_plan_shards_grads(b->plan),
               several = b->plan->accumulate > 1, closes = dtp_bucket_closes(w, elements), first = w->done == w->filled;
    const uint64_t left = several && !shards ? g * (total - smaller(w->done + w->next, total)) : 0,
                   kept = on_host ? 0 : r->shard, again = several && shards ? kept : 0,
                   flat = dtp_bucket_in_one_part(w, total, r->part) ? 0 : b->bytes.reduce * w->filled,
                   after = kept + (on_host && g < 4 ? 4 * slices : 0);
    if (closes)
        dtp_bound_keep(b, r->buckets + r->carried + g * w->whole + bytes + (bytes ? r->waiting : 0) + left + again +
                              larger(flat + (first ? 0 : kept), after));
    if (closes && first && below < b->layers)
        block(b, r, below, total);
    dtp_bucket_take(w, elements, closes);
}

/* All gradients in the order of backward; of a block from its last matrix on, as one where it closes no bucket. */
static void fill_buckets(struct dtp_bound *b, const struct replicated *r)
{
    const struct dtp_units *t = b->trained;
    struct dtp_reduced_bucket w = {.room = b->plan->deepspeed.reduce_bucket_size};
    const uint64_t stream = dtp_bound_tokens(b, b->activations.gradient), kept = dtp_bound_saved(b, b->layers) + stream;
    made(b, r, &w, t->head, kept, b->layers);
    made(b, r, &w, t->total - b->layers * t->layer - t->embedding - t->position - t->head, kept, b->layers);
    for (uint64_t below = b->layers; below-- > 0;) {
        const uint64_t beside = dtp_bound_saved(b, below) + stream;
        const int kind = dtp_bound_kind_of(b, below);
        const struct dtp_bound_stage *stage = &b->stage[kind * DTP_BOUND_STAGES];
        uint64_t rest = b->layer_trained[kind];
        for (int i = w.filled + rest > w.room ? b->matrices[kind] : 0; i-- > 0;) {
            const struct dtp_fetched_matrix *m = &b->matrix[kind][i];
            made(b, r, &w, m->trained, beside + dtp_bound_tokens(b, stage[m->stage].token_bytes), below);
            rest -= smaller(rest, m->trained);
        }
        made(b, r, &w, rest, beside, below);
    }
    made(b, r, &w, t->position, stream, 0);
    made(b, r, &w, t->embedding, 0, 0);
    made(b, r, &w, 0, 0, 0);
}

void dtp_bound_replicated(struct dtp_bound *b)
{
    const struct dtp_plan *plan = b->plan;
    const struct dtp_units *t = b->trained;
    const struct dtp_activations *a = &b->activations;
    const struct replicated r = replicated_of(b);
    const uint64_t cached = plan->compile ? r.kept_casts : b->layers, /* eager casts stay to the end of forward */
        casts = r.kept + r.head_cast, begin = gradients(b, &r, 0, false), end = gradients(b, &r, t->total, true),
                   without = t->total - t->embedding, stream = dtp_bound_tokens(b, a->gradient),
                   stands = r.counted && plan->strategy == DTP_ZERO1 && plan->accumulate > 1 ? r.buckets : 0,
                   forward = (r.beside && plan->accumulate == 1 ? r.beside : begin) + stands;
    const bool buffered = plan->runtime->gradients_in_matmul, summed = plan->runtime->sums_gradients,
               sums = plan->deepspeed.bf16_optimizer;
    struct dtp_bound_beside beside = {.forward = forward + cached * r.casts, .loss = forward + casts};
    beside.logits = beside.loss + (cached - r.kept_casts) * r.casts + (dtp_plan_autocast(plan) ? stream : 0);
    beside.head = gradients(b, &r, 0, true) + casts + r.buckets, beside.head_gradient = r.head_gradient;
    beside.ends = gradients(b, &r, without, true) + r.buckets + r.waiting +
                  (buffered ? b->bytes.compute : r.made) * (t->embedding + r.others);
    dtp_bound_steps(b, &beside);
    dtp_bound_hold(b, forward - stands - r.carried + casts + dtp_bound_saved(b, b->layers) +
                          dtp_bound_tokens(b, a->head + a->loss));
    if (dtp_plan_autocast(plan)) /* the head's gradient is cast */
        dtp_bound_keep(b, begin + r.kept + (b->bytes.compute + r.made) * t->embedding + r.buckets +
                              dtp_bound_saved(b, b->layers) + stream);
    if (t->position && !buffered)
        dtp_bound_keep_late(b, gradients(b, &r, without - t->position, true) + r.waiting + r.buckets +
                                   b->bytes.grads * t->position + stream);
    for (uint64_t i = 0; i < smaller(larger(a->checkpoint_every, 1), b->layers); i++) /* replayed, or not */
        block(b, &r, b->layers - 1 - i, t->head + dtp_bound_between(b, b->layer_trained, b->layers - i, b->layers));
    if (plan->comm_hook) { /* a bucket of blocks is full when so many have gone */
        const uint64_t cap = plan->ddp_bucket_bytes / b->bytes.grads,
                       gone = smaller(b->layers - 1, (cap - smaller(cap, t->head)) / t->layer);
        b->block_bytes = 0, block(b, &r, b->layers - 1 - gone, t->head + gone * t->layer);
    }
    block(b, &r, 0, t->head + (b->layers - 1) * t->layer);
    if (r.counted && !r.behind)
        fill_buckets(b, &r);
    /* DeepSpeed, behind backward: all sums on the wire; a bucket beside all gradients, and a flattened one that is too
     * large, or what is kept of the first when its own tensors have gone */
    const uint64_t room = plan->deepspeed.reduce_bucket_size, reduce = b->bytes.reduce, g = b->bytes.grads;
    const bool flattens = plan->runtime->counts_elements && !sums && plan->offload == DTP_OFFLOAD_NONE;
    if (sums && b->cluster->gpus > 1 && reduce != g)
        dtp_bound_keep(b, end + reduce * t->total);
    else if (!sums && r.behind)
        dtp_bound_keep(b, end + reduce * room +
                              larger(r.largest > room ? reduce * r.largest : 0,
                                     flattens ? r.shard - smaller(r.shard, g * smaller(room, t->total)) : 0));
    b->first_bytes = gradients(b, &r, t->head, true) + r.kept + dtp_bound_saved(b, b->layers) + stream;
    const bool before = plan->ddp_bucket_view && plan->accumulate > 1 && !plan->accumulate_sync; /* the table's sum */
    b->positions_bytes = end + r.waiting + stream + (before ? b->bytes.grads * t->embedding : 0);
    b->gradients_bytes = end;
    const uint64_t after = summed ? begin : end, rest = r.beside ? r.beside : after;
    const bool copies = summed && plan->strategy == DTP_ZERO1; /* of gathered weights */
    if (!flattens || r.behind)
        dtp_bound_hold(b, rest - r.carried);
    const uint64_t scratch = dtp_optimizer_scratch_bytes(b->transformer, plan, b->partition);
    if (flattens) /* its part is flattened and cast, then updated in fp32 without what it was made of */
        dtp_bound_keep(b, larger(r.shard + (g < 4 ? g + 4 : g) * b->partition, 4 * b->partition + scratch));
    else
        dtp_bound_keep(b, rest + (r.others ? g * t->embedding : 0) + (copies ? 2 * b->bytes.params * t->total : 0) +
                              scratch);
}
