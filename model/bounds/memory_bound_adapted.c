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

struct adapted {
    uint64_t low;               /* of a token and layer: x A^T, dropout's result and mask */
    uint64_t terms;             /* of a token: what a compiler's kernel between the MLP's matmuls has besides */
    uint64_t unpacked;          /* of one layer, where a compiler keeps it */
    bool replays;               /* checkpointed layers make something again: then weights too */
    uint64_t largest;           /* to unpack one matrix: with what it is made of */
    uint64_t root, unit, units; /* gathered weights: root, a unit, all of them where they are kept */
    uint64_t gradients;
};

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
            a->low += c * m->rank + drops * m->in;
            a->terms += made ? (replays ? 2 : 1) * c * m->out : 0;
            a->terms += m->id == DTP_MATRIX_DOWN ? c * m->in : 0;
        }
        if (plan->adapters.base == DTP_BASE_NONE)
            continue;
        struct dtp_unpacking unpacking = dtp_base_unpacking(plan, m->out, m->in);
        a->unpacked += c * m->out * m->in;
        a->largest = larger(a->largest, unpacking.workspace_bytes + c * m->out * m->in);
    }
    if (!plan->compile)
        a->terms = 0;
    if (!dtp_base_stays_unpacked(plan))
        a->unpacked = 0;
}

static struct adapted adapted_of(const struct dtp_bound *b)
{
    const struct dtp_units *u = &b->units;
    struct adapted a = {.gradients = b->bytes.grads * (dtp_plan_shards_grads(b->plan) ? u->trained_shard : u->trained)};
    if (dtp_plan_mixes_ends(b->plan))
        a.gradients -= (b->bytes.grads - dtp_dtype_bytes(b->plan->precision.params)) *
                       dtp_plan_trained_ends(b->transformer, b->plan);
    count_matrices(b, &a);
    if (dtp_plan_shards_params(b->plan)) {
        a.root = u->root_wire * u->ranks;
        a.unit = u->layers_per_unit * u->layer_wire * u->ranks;
        a.units = b->plan->reshard_after_forward || !u->count ? 0 : b->layers * u->layer_wire * u->ranks;
    }
    return a;
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

void dtp_bound_adapted(struct dtp_bound *b)
{
    const struct dtp_activations *t = &b->activations;
    const struct adapted a = adapted_of(b);
    bool buckets = dtp_plan_has_ddp_buckets(b->plan, b->cluster), several = b->plan->accumulate > 1;
    bool chunked = dtp_plan_loss(b->plan) == DTP_LOSS_CHUNKED;
    uint64_t before = (buckets || several ? a.gradients : 0) + (buckets && several ? a.gradients : 0);
    if (b->plan->runtime->counts_elements) /* DeepSpeed's buckets, one flattened, and the partition it keeps */
        before = b->bytes.reduce * ((b->plan->deepspeed.overlap_comm ? 3 : 2) * b->plan->deepspeed.reduce_bucket_size) +
                 a.gradients;
    uint64_t weights = a.root + larger(a.units, 2 * a.unit), below = saved(b, &a, b->layers - 1);
    uint64_t kept = saved(b, &a, b->layers) + dtp_bound_tokens(b, t->head);
    uint64_t ends = b->plan->adapters.train_ends ? b->bytes.compute * b->units.embedding : 0;
    uint64_t layer = dtp_bound_tokens(b, t->layer_all + a.low) + a.unpacked;
    uint64_t worst = larger(dtp_bound_block(b, 0, 0) + dtp_bound_tokens(b, a.low + a.terms) + a.unpacked,
                            layer + a.largest + dtp_bound_tokens(b, t->gradient));
    uint64_t forward = a.root + larger(a.units, a.unit) + a.unit;
    dtp_bound_keep(b, before + 2 * a.root);
    dtp_bound_keep(b, before + forward + below + layer + larger(a.largest, dtp_bound_tokens(b, dtp_bound_scores(b))));
    dtp_bound_keep(b, before + a.root + a.units + kept + dtp_bound_tokens(b, larger(t->logits, t->loss)) +
                          (chunked ? ends : 0));
    dtp_bound_keep(b, before + weights - (a.units ? 0 : a.unit) + kept + ends +
                          dtp_bound_tokens(b, t->logits_gradient + t->norm_gradient));
    /* what FSDP1's hooks hold of each layer: the gradient of its input; the input stands as it was kept */
    uint64_t held = b->plan->fsdp1 ? dtp_bytes_product(b->layers, dtp_bound_tokens(b, t->gradient)) : 0;
    dtp_bound_keep(b, before + weights + below + worst + ends + held);
    dtp_bound_keep_late(b, larger(before, a.gradients) + a.root + a.unit + worst + 2 * ends);
    dtp_bound_keep(b, larger(before, a.gradients) + dtp_bound_optimizer_list(b, b->units.trained_shard));
    /* no activation surely stands: the first layer keeps few, and what a replay drops depends on the targets */
    dtp_bound_hold(b, buckets ? a.gradients : 0);
}
