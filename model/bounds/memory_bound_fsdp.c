/* Units of layers that are gathered and reduced together: FSDP2 and FSDP1. */
#include "bounds/memory_bound.h"

#include "plan/runtime.h"

struct fsdp {
    uint64_t root, unit, layer; /* bytes of weights gathered; unit: the largest one */
    uint64_t ahead;             /* of units gathered ahead in backward */
    uint64_t input;             /* of a unit's reduction; FSDP2's stands until the next unit has been reduced */
    uint64_t before, after;     /* gradients at rest before the last backward, and behind it */
    uint64_t whole_bytes;       /* of an element of gradients kept whole */
    uint64_t reduced_bytes;     /* of an element of a reduction's result, with what it is cast into */
    bool several, whole;        /* micro-steps; whose gradients are added up whole, and reduced once */
    bool flat;                  /* FSDP2 copies weights out of a flat buffer */
    bool keeps;                 /* weights stay gathered between forward and backward */
};

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* FSDP2 pads each parameter to equal shards. */
static uint64_t padded(const struct dtp_bound *b, uint64_t elements, uint64_t shard)
{
    return b->plan->fsdp1 ? elements : shard * b->units.ranks;
}

static struct fsdp fsdp_of(const struct dtp_bound *b)
{
    const struct dtp_units *u = &b->units;
    const struct dtp_plan *plan = b->plan;
    const struct dtp_element_bytes *e = &b->bytes;
    uint64_t layer = padded(b, u->layer, u->layer_shard), matrices = padded(b, u->layer_matmul, u->layer_matmul_shard);
    struct fsdp f = {.flat = !plan->fsdp1, .keeps = !plan->reshard_after_forward};
    f.layer = e->compute * layer - (e->compute - e->gathered) * matrices;
    f.unit = u->layers_per_unit * f.layer;
    f.root = e->compute * padded(b, u->root, u->root_shard);
    if (!u->count)
        f.root -= b->layers * (e->compute - e->gathered) * matrices;
    f.ahead = plan->prefetch && u->count ? smaller(plan->prefetch_depth, u->count - 1) * f.unit : 0;
    f.input = u->layers_per_unit * layer * e->reduce;
    f.several = plan->accumulate > 1, f.whole = f.several && !plan->accumulate_sync;
    f.whole_bytes = plan->fsdp1 ? e->compute : e->reduce;
    f.reduced_bytes = e->reduce + (e->reduce != e->grads ? e->grads : 0);
    f.after = plan->offload == DTP_OFFLOAD_NONE ? e->grads * u->total_shard : 0;
    f.before = f.whole ? f.whole_bytes * u->total : f.several ? f.after : 0;
    return f;
}

/* What stays of each layer between forward and backward, gathered again from fewer ranks (reshard_after_forward=n). */
static uint64_t second(const struct dtp_bound *b, const struct fsdp *f, uint64_t layers, bool root)
{
    uint64_t group = b->plan->reshard_group;
    if (!group)
        return 0;
    return (b->units.count ? layers * (f->layer / group) : 0) +
           (root && !dtp_plan_keeps_root(b->plan) ? f->root / group : 0);
}

/* The root's shard on its way up from the host, with its cast. */
static uint64_t uploaded(const struct dtp_bound *b)
{
    bool casts = b->bytes.params != b->bytes.compute;
    return b->units.root_shard * (b->bytes.params + (casts ? b->bytes.compute : 0));
}

/* Gradients at rest while block `below` is at work, those of `above` layers having been reduced where the micro-step
 * reduces. */
static uint64_t gradients(const struct dtp_bound *b, const struct fsdp *f, uint64_t above, bool reduces)
{
    const struct dtp_units *u = &b->units;
    if (!reduces || (f->several && !f->whole))
        return f->before;
    uint64_t reduced = f->after ? above * u->layer_shard * b->bytes.grads : 0;
    return f->before - (f->whole ? above * u->layer * f->whole_bytes : 0) + reduced;
}

/* A unit is reduced: its gradients as they were made beside the input of the reduction; then, when they and the weights
 * have gone, that input beside its result and what the result is cast into. */
static void keep_reduction(struct dtp_bound *b, const struct fsdp *f, uint64_t begin, uint64_t standing)
{
    const struct dtp_units *u = &b->units;
    uint64_t c = b->bytes.compute, width = u->layers_per_unit;
    uint64_t beside = standing + dtp_bound_saved(b, begin) + dtp_bound_tokens(b, b->activations.gradient);
    if (b->plan->fsdp1) /* concatenated out of views, before the weights go */
        dtp_bound_keep(b, beside + 2 * c * width * u->layer);
    else
        dtp_bound_keep(b, beside - f->unit + c * width * u->layer + f->input);
    if (!f->whole)
        dtp_bound_keep(b, beside - f->unit + f->input + width * u->layer_shard * f->reduced_bytes);
}

/* Block `below` of a micro-step that reduces, or of one before it that does not: its worst stage, the copy of its
 * unit's weights out of their flat buffer, the unit's reduction. */
static void keep_block(struct dtp_bound *b, const struct fsdp *f, uint64_t below, bool reduces)
{
    const struct dtp_units *u = &b->units;
    uint64_t c = b->bytes.compute, width = u->count ? u->layers_per_unit : b->layers;
    uint64_t begin = below / width * width, end = smaller(begin + width, b->layers), above = b->layers - end;
    uint64_t unit = u->count ? f->unit : 0, ahead = f->flat ? f->ahead : b->plan->prefetch ? f->unit : 0;
    uint64_t standing = gradients(b, f, above, reduces) + f->root + unit + (f->keeps ? below * f->layer : ahead) +
                        c * u->embedding + second(b, f, below, false);
    uint64_t input = above && reduces && f->flat ? f->input : 0; /* of the unit above */
    dtp_bound_keep(b, standing + input + dtp_bound_saved(b, below) + c * (end - 1 - below) * u->layer +
                          dtp_bound_block(b, c, c));
    if (!u->count)
        return;
    if (f->flat && !f->keeps)
        dtp_bound_keep(b, standing - f->ahead + larger(f->ahead, f->unit) + input + dtp_bound_saved(b, below + 1) +
                              dtp_bound_tokens(b, b->activations.gradient));
    keep_reduction(b, f, begin, standing);
}

/* The first and the last block of a unit. */
static void keep_unit(struct dtp_bound *b, const struct fsdp *f, uint64_t unit, bool reduces)
{
    uint64_t width = b->units.count ? b->units.layers_per_unit : b->layers;
    uint64_t end = smaller((unit + 1) * width, b->layers);
    keep_block(b, f, unit * width, reduces);
    if (end - 1 > unit * width)
        keep_block(b, f, end - 1, reduces);
}

static void keep_blocks(struct dtp_bound *b, const struct fsdp *f, bool reduces)
{
    uint64_t count = b->units.count;
    keep_unit(b, f, count ? count - 1 : 0, reduces);
    if (count > 1)
        keep_unit(b, f, count - 2, reduces);
    if (count > 2)
        keep_unit(b, f, 0, reduces);
}

/* The root is gathered; a unit is copied out of its flat buffer while that of the unit before, or the root's, stands;
 * the last block is at work; the loss is to come. `standing`: gradients and weights between forward and backward. */
static void forward(struct dtp_bound *b, const struct fsdp *f, uint64_t standing, uint64_t kept)
{
    const struct dtp_activations *a = &b->activations;
    const struct dtp_units *u = &b->units;
    bool chunked = dtp_plan_loss(b->plan) == DTP_LOSS_CHUNKED;
    uint64_t copy = u->count ? f->unit : f->flat ? f->root : 0; /* the last unit's flat buffer */
    dtp_bound_keep(b, f->before + 2 * f->root + (b->plan->offload == DTP_OFFLOAD_PARAMS ? uploaded(b) : 0));
    if (f->flat && u->count)
        dtp_bound_keep(b, f->before + 2 * f->root + 2 * f->unit + dtp_bound_tokens(b, a->embedding + a->layer_input));
    if (f->flat && u->count > 1)
        dtp_bound_keep(b, standing + f->root + 3 * f->unit + dtp_bound_saved(b, b->layers - u->last_unit_layers) +
                              dtp_bound_tokens(b, a->layer_input));
    dtp_bound_keep(b, standing + f->root + copy + (u->count ? f->unit : 0) + dtp_bound_saved(b, b->layers - 1) +
                          dtp_bound_tokens(b, a->layer_all + dtp_bound_scores(b)));
    dtp_bound_keep(b, standing + f->root + copy + kept + dtp_bound_tokens(b, chunked ? 0 : a->logits));
    dtp_bound_hold(b, standing + f->root + (u->count ? f->unit : 0) + dtp_bound_saved(b, b->layers - 1) +
                          dtp_bound_tokens(b, a->layer_all));
}

/* The loss; then the root gathered again, and the head's gradients with the last unit on its way. */
static void loss_and_head(struct dtp_bound *b, const struct fsdp *f, uint64_t standing, uint64_t kept)
{
    const struct dtp_activations *a = &b->activations;
    const struct dtp_plan *plan = b->plan;
    bool chunked = dtp_plan_loss(plan) == DTP_LOSS_CHUNKED;
    bool root_stands = f->keeps || chunked || plan->fsdp1 || plan->keep_root;
    uint64_t gradient = b->bytes.compute * b->units.embedding, made = chunked ? gradient : 0;
    dtp_bound_keep(b, standing + kept + dtp_bound_tokens(b, a->loss) + (root_stands ? f->root : 0) + made);
    dtp_bound_hold(b, standing + kept + dtp_bound_tokens(b, a->loss) + (root_stands ? f->root : 0));
    if (f->flat && !f->keeps && !plan->keep_root)
        dtp_bound_keep(b, standing + kept + 2 * f->root + made + dtp_bound_tokens(b, a->logits_gradient));
    dtp_bound_keep(b, standing + kept + f->root + (plan->prefetch ? f->unit : 0) + gradient +
                          dtp_bound_tokens(b, a->logits_gradient + (chunked ? 0 : a->norm_gradient)));
}

/* The embedding's gradient, made with the root gathered, beside the head's; then the root's reduction as a unit's. */
static void keep_root(struct dtp_bound *b, const struct fsdp *f, bool reduces)
{
    const struct dtp_activations *a = &b->activations;
    const struct dtp_units *u = &b->units;
    uint64_t c = b->bytes.compute, rest = gradients(b, f, u->count ? b->layers : 0, reduces);
    uint64_t made = u->count ? 2 * u->embedding + u->position : u->total + (u->head ? 0 : u->embedding);
    uint64_t elements = padded(b, u->root, u->root_shard), input = b->bytes.reduce * elements;
    dtp_bound_keep(b, rest + f->root + c * made + (reduces && f->flat ? f->input : 0) + a->embedding_backward +
                          dtp_bound_tokens(b, a->gradient));
    if (b->plan->fsdp1)
        dtp_bound_keep(b, rest + f->root + 2 * c * u->root);
    else if (reduces)
        dtp_bound_keep(b, rest + (f->whole ? 0 : c * u->root) + input);
    if (!f->whole)
        dtp_bound_keep(b, rest + (b->plan->fsdp1 ? larger(c * u->root, input) + b->bytes.grads * u->root_shard
                                                 : input + f->reduced_bytes * u->root_shard));
}

void dtp_bound_fsdp(struct dtp_bound *b)
{
    const struct dtp_units *u = &b->units;
    struct fsdp f = fsdp_of(b);
    uint64_t kept = dtp_bound_saved(b, b->layers) + dtp_bound_tokens(b, b->activations.head);
    uint64_t standing = f.before + second(b, &f, b->layers, true) + (f.keeps && u->count ? b->layers * f.layer : 0);
    forward(b, &f, standing, kept);
    loss_and_head(b, &f, standing, kept);
    for (int reduces = f.several ? 0 : 1; reduces < 2; reduces++) {
        keep_blocks(b, &f, reduces);
        if (reduces || f.whole)
            keep_root(b, &f, reduces);
    }
    dtp_bound_hold(b, f.after);
    dtp_bound_keep(b, f.after + dtp_bound_optimizer_list(b, u->total_shard));
}
