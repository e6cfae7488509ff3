/* Plans with adapters: weights stand frozen, whole or as shards, gradients and optimizer state are the adapters' alone.
 *
 *   loss        kept activations of all layers, x A^T of each adapter and what dropout made; the loss' tensors
 *   head        the same with the logits' gradient and its input gradient
 *   last block  kept activations of the layers below, the block's worst stage (bounds.h) or a packed weight that is
 *               unpacked beside it; a compiler's kernel between the MLP's matmuls has a tensor for each term
 *   step        all gradients
 * Under FSDP the root and two units of weights stand beside, as they are gathered, and the unit's flat buffer. */
#include "bounds/memory_bound.h"

#include "base/bytes.h"
#include "plan/layer_tensors.h"
#include "plan/runtime.h"

struct adapted {
    uint64_t low;   /* of a token and layer: x A^T, dropout's result and mask; of experts as many as it has */
    uint64_t terms; /* of a token: what a compiler's kernel between the MLP's matmuls has besides */
    uint64_t stage[DTP_BOUND_STAGES]; /* of a token, uncompiled: what adapters have besides at each stage */
    uint64_t unpacked;                /* of one layer, where a compiler keeps it */
    bool replays;                     /* checkpointed layers make something again: then weights too */
    uint64_t largest;                 /* to unpack one matrix: with what it is made of */
    uint64_t root, unit, units;       /* gathered weights: root, a unit, all of them where they are kept */
    uint64_t ahead;                   /* units gathered ahead in backward */
    uint64_t copy;                    /* the flat buffer that forward copied weights out of last */
    uint64_t casts;                   /* of a layer's gathered adapters, where they are wider than what matmuls read */
    uint64_t made;                    /* gradients of a unit, and the input of their reduction */
    uint64_t waiting;                 /* at the end, gradients whose bucket is not full */
    uint64_t gradients, standing,
        before; /* as the optimizer reads them; beside forward and beside backward of the last micro-step */
};

/* The stage of a block's backward (bounds.h) in which a matrix' gradients are made. */
static int stage_of(enum dtp_layer_matrix_id id)
{
    bool up = id == DTP_MATRIX_GATE || id == DTP_MATRIX_UP;
    return id == DTP_MATRIX_DOWN ? 0 : up ? 1 : id == DTP_MATRIX_OUTPUT ? 2 : 3;
}

static void count_matrices(const struct dtp_bound *b, struct adapted *a)
{
    struct dtp_layer_tensors tensors;
    const struct dtp_plan *plan = b->plan;
    uint64_t c = b->bytes.compute, drops = plan->adapters.dropout > 0 ? c + 1 : 0;
    bool replays = b->activations.checkpoint_every && plan->compile;
    dtp_layer_tensors_of(b->transformer, dtp_layer_mlp_of(b->transformer), b->cluster, plan, &tensors);
    a->replays = tensors.kept != tensors.saved;
    for (int i = 0; i < tensors.kind.matrices; i++) {
        const struct dtp_layer_matrix *m = &tensors.kind.matrix[i];
        bool made = m->result == DTP_TENSOR_GATE || m->result == DTP_TENSOR_UP;
        if (m->rank) {
            a->low += (m->expert ? tensors.kind.experts_per_token : 1) * (c * m->rank + drops * m->in);
            a->terms += made ? (replays ? 2 : 1) * c * m->out : 0;
            a->terms += m->id == DTP_MATRIX_DOWN ? c * m->in : 0;
        }
        uint64_t *stage = &a->stage[stage_of(m->id)];
        bool whole = !plan->compile && !m->expert; /* of experts one at a time */
        if (whole && m->id == DTP_MATRIX_DOWN)
            *stage = c * m->in;
        else if (whole && m->rank)
            *stage = larger(*stage, c * larger(m->in, m->out));
        if (plan->adapters.base == DTP_BASE_NONE)
            continue;
        struct dtp_unpacking unpacking = dtp_base_unpacking(plan, m->out, m->in);
        a->unpacked += m->groups * c * m->out * m->in;
        a->largest = larger(a->largest, unpacking.workspace_bytes + c * m->out * m->in);
    }
    if (!plan->compile)
        a->terms = 0;
    if (!dtp_base_stays_unpacked(plan))
        a->unpacked = 0;
}

/* Gathered units, and adapters of the one at work that are cast. Micro-steps that do not reduce add whole gradients up;
 * those of a unit stand as they were made, and beside them the input of their reduction. */
static void count_sharded(const struct dtp_bound *b, struct adapted *a)
{
    const struct dtp_units *u = &b->units;
    const struct dtp_plan *plan = b->plan;
    uint64_t c = b->bytes.compute, padded = b->layers ? u->trained_shard * u->ranks / b->layers : 0;
    bool several = plan->accumulate > 1, wide = dtp_dtype_bytes(plan->adapters.dtype) > c;
    uint64_t width = u->count ? u->layers_per_unit : b->layers;
    a->root = u->root_wire * u->ranks;
    if (u->head_end && plan->reshard_after_forward) /* one of two units, which stand one after the other */
        a->root = a->root / u->root * larger(u->head_end, u->root - u->head_end);
    a->unit = u->layers_per_unit * u->layer_wire * u->ranks;
    a->units = plan->reshard_after_forward || !u->count ? 0 : b->layers * u->layer_wire * u->ranks;
    uint64_t depth = !dtp_plan_prefetches_backward(plan) ? 0 : plan->fsdp1 ? 1 : plan->prefetch_depth;
    a->ahead = u->count ? smaller(depth, u->count - 1) * a->unit : 0;
    a->copy = plan->fsdp1 ? 0 : u->count ? a->unit : a->root;
    a->casts = wide ? c * padded : 0;
    a->made = width * (c * u->layer_trained + (plan->fsdp1 ? c : b->bytes.reduce) * padded);
    a->before = !several                ? 0
                : plan->accumulate_sync ? a->gradients
                : plan->fsdp1           ? c * u->trained_shard * u->ranks
                                        : b->bytes.reduce * u->trained;
    a->standing = a->before;
}

/* A bucket's view of all gradients, or a sum of earlier ones; DeepSpeed's buckets, one flattened, and the partition it
 * keeps. */
static void count_whole(const struct dtp_bound *b, struct adapted *a)
{
    const struct dtp_plan *p = b->plan;
    bool buckets = dtp_plan_has_ddp_buckets(b->plan, b->cluster), several = b->plan->accumulate > 1;
    a->before = (buckets || several ? a->gradients : 0) + (buckets && several ? a->gradients : 0);
    a->waiting = buckets ? smaller(b->plan->ddp_bucket_bytes, a->gradients) : 0;
    a->standing = a->before;
    if (!b->plan->runtime->counts_elements)
        return;
    a->standing = several ? a->gradients : 0;
    a->before =
        b->bytes.reduce * ((p->deepspeed.overlap_comm ? 3 : 2) * p->deepspeed.reduce_bucket_size) + a->gradients;
}

static struct adapted adapted_of(const struct dtp_bound *b)
{
    const struct dtp_units *u = &b->units;
    struct adapted a = {.gradients = b->bytes.grads * (dtp_plan_shards_grads(b->plan) ? u->trained_shard : u->trained)};
    if (dtp_plan_mixes_ends(b->plan))
        a.gradients -= (b->bytes.grads - dtp_dtype_bytes(b->plan->precision.params)) *
                       dtp_plan_trained_ends(b->transformer, b->plan);
    count_matrices(b, &a);
    if (dtp_plan_fetches_modules(b->plan)) /* a bucket of gradients stands, and those of the partition */
        a.before = a.standing = b->bytes.reduce * b->plan->deepspeed.reduce_bucket_size + a.gradients;
    else if (dtp_plan_shards_params(b->plan))
        count_sharded(b, &a);
    else
        count_whole(b, &a);
    return a;
}

/* Of a block's backward. An adapter's scaled gradient, or its term of an input's, stands beside the frozen matrix'; the
 * gradient of what a frozen down matrix reads takes no kept tensor's room. */
static uint64_t worst_stage(const struct dtp_bound *b, const struct adapted *a)
{
    uint64_t most = 0;
    for (int i = 0; i < b->stages; i++)
        most = larger(most, b->stage[i].token_bytes + a->stage[i % DTP_BOUND_STAGES]);
    return dtp_bound_tokens(b, most + b->activations.gradient);
}

/* Activations of so many layers from forward to backward. */
static uint64_t saved(const struct dtp_bound *b, const struct adapted *a, uint64_t layers)
{
    uint64_t every = b->activations.checkpoint_every, replayed = every ? dtp_divide_up(layers, every) : 0;
    bool keeps = b->plan->checkpointing == DTP_CHECKPOINT_SELECTIVE_ATTENTION;
    uint64_t whole = keeps ? layers : layers - replayed;
    uint64_t stay = keeps && a->replays ? layers - replayed : whole;
    uint64_t unpacked = stay ? (stay - 1) * a->unpacked : 0; /* the first layer's is not all read again */
    return dtp_bound_saved(b, layers) + whole * dtp_bound_tokens(b, a->low) + unpacked;
}

/* FSDP2 copies a unit of forward out of its flat buffer, which stands beside those gathered ahead: the last units that
 * have all of them. */
static void keep_copies(struct dtp_bound *b, const struct adapted *a)
{
    const struct dtp_units *u = &b->units;
    uint64_t depth = b->plan->prefetch ? b->plan->prefetch_depth : 1, count = u->count;
    for (uint64_t unit = count > depth + 1 ? count - depth - 1 : 0; unit < count; unit++) {
        uint64_t begin = unit * u->layers_per_unit, ahead = smaller(depth, count - 1 - unit);
        uint64_t kept = a->units ? begin * u->layer_wire * u->ranks : 0;
        dtp_bound_keep(b, a->before + a->root + kept + (2 + ahead) * a->unit + saved(b, a, begin) +
                              dtp_bound_tokens(b, b->activations.layer_input));
    }
}

/* The root is gathered again for backward, and copied. */
static bool again(const struct dtp_bound *b)
{
    const struct dtp_plan *plan = b->plan;
    return dtp_plan_shards_params(plan) && !plan->fsdp1 && plan->reshard_after_forward && !plan->keep_root &&
           !b->units.head_end;
}

/* ZeRO-3: what is fetched in place of units, tensor by tensor (memory_bound_fetched.c); a bucket of gradients is laid
 * out by rank beside itself. */
static void keep_fetched(struct dtp_bound *b, const struct adapted *a)
{
    const struct dtp_activations *t = &b->activations;
    const struct dtp_units *u = &b->units;
    uint64_t below = saved(b, a, b->layers - 1), kept = saved(b, a, b->layers) + dtp_bound_tokens(b, t->head);
    uint64_t head = dtp_bound_fetched_weights(b, u->embedding, b->layers), standing = a->before;
    uint64_t first = dtp_bound_fetched_weights(b, u->down, b->layers);
    uint64_t read = dtp_bound_tokens(b, b->bytes.compute * b->transformer->hidden);
    uint64_t block = worst_stage(b, a) + dtp_bound_tokens(b, a->low) + b->bytes.grads * u->layer_trained +
                     b->bytes.reduce * smaller(b->plan->deepspeed.reduce_bucket_size, u->trained);
    dtp_bound_keep(b, standing + first + below + dtp_bound_tokens(b, t->layer_all + a->low + dtp_bound_scores(b)));
    dtp_bound_keep(b, standing + kept + head + dtp_bound_tokens(b, t->logits) + read);
    dtp_bound_keep(b, standing + kept + head + dtp_bound_tokens(b, larger(t->loss, t->logits_gradient)) + read);
    dtp_bound_keep_block(b, standing + below + first + block, false);
    dtp_bound_keep_block(b, standing + dtp_bound_fetched_weights(b, u->down, 0) + saved(b, a, 0) + block, true);
    uint64_t wide = b->bytes.grads < 4 ? 4 * smaller(u->trained_shard, 1000000000) : 0;
    dtp_bound_keep(b, standing + dtp_bound_persistent(b) + wide);
}

void dtp_bound_adapted(struct dtp_bound *b)
{
    const struct dtp_activations *t = &b->activations;
    const struct adapted a = adapted_of(b);
    if (dtp_plan_fetches_modules(b->plan)) {
        keep_fetched(b, &a);
        return;
    }
    bool chunked = dtp_plan_loss(b->plan) == DTP_LOSS_CHUNKED;
    uint64_t before = a.before, standing = a.standing;
    uint64_t weights = a.root + larger(a.units, a.unit + a.ahead), below = saved(b, &a, b->layers - 1);
    uint64_t kept = saved(b, &a, b->layers) + dtp_bound_tokens(b, t->head);
    uint64_t ends = b->plan->adapters.train_ends ? b->bytes.compute * b->units.embedding : 0;
    uint64_t layer = dtp_bound_tokens(b, t->layer_all + a.low) + a.unpacked;
    uint64_t worst = larger(worst_stage(b, &a) + dtp_bound_tokens(b, a.low + a.terms) + a.unpacked,
                            layer + a.largest + dtp_bound_tokens(b, t->gradient));
    uint64_t forward = a.root + larger(a.units, a.unit) + a.copy + a.casts;
    dtp_bound_keep(b,
                   standing + 2 * a.root +
                       (a.copy ? 2 * a.unit + dtp_bound_tokens(b, t->layer_input) : 0)); /* flat buffers and copies */
    if (b->units.count && !b->plan->fsdp1)
        keep_copies(b, &a);
    if (again(b))
        dtp_bound_keep(b, standing + 2 * a.root + kept + dtp_bound_tokens(b, t->logits_gradient));
    dtp_bound_keep(b, standing + forward + below + layer + larger(a.largest, dtp_bound_tokens(b, dtp_bound_scores(b))));
    /* a frozen head reads a norm's result that nobody keeps; Transformers' models hold it to the end of the loss */
    uint64_t read = b->plan->adapters.train_ends ? 0 : dtp_bound_tokens(b, b->bytes.compute * b->transformer->hidden);
    uint64_t held_by_loss = chunked || dtp_plan_layers(b->plan)->chains_norms ? read : 0;
    uint64_t root = chunked || !again(b) ? a.root : 0;
    dtp_bound_keep(b, standing + a.root + a.units + a.copy + kept + dtp_bound_tokens(b, t->logits) + read);
    dtp_bound_keep(b, standing + root + a.units + kept + held_by_loss +
                          dtp_bound_tokens(b, larger(t->logits, t->loss)) + (chunked ? ends : 0));
    dtp_bound_keep(b, before + a.root + larger(a.units, a.ahead ? a.unit : 0) + kept + ends +
                          dtp_bound_tokens(b, t->logits_gradient + t->norm_gradient));
    /* what FSDP1's hooks hold of each layer: the gradient of its input; the input stands as it was kept */
    uint64_t held = b->plan->fsdp1 ? dtp_bytes_product(b->layers, dtp_bound_tokens(b, t->gradient)) : 0;
    b->gradients_bytes = larger(before, a.gradients);
    dtp_bound_keep_block(b, before + weights + a.casts + a.made + below + worst + ends + held, false);
    dtp_bound_keep_block(b, b->gradients_bytes + a.waiting + a.root + a.unit + a.casts + a.made + worst + 2 * ends,
                         true);
    dtp_bound_keep(b, b->gradients_bytes + dtp_bound_optimizer_list(b, b->units.trained_shard));
    /* no activation surely stands: the first layer keeps few, and what a replay drops depends on the targets */
    dtp_bound_hold(b, dtp_plan_has_ddp_buckets(b->plan, b->cluster) ? a.gradients : 0);
}
