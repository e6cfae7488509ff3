/* Units of layers that are gathered and reduced together: FSDP2 and FSDP1. */
#include "bounds/memory_bound.h"

#include "plan/optimizer_state.h"
#include "plan/runtime.h"

struct fsdp {
    uint64_t unit, layer;          /* bytes of weights gathered; unit: of all but the last, which may be smaller */
    uint64_t largest;              /* of one layer; `layer` is the mean where they differ */
    uint64_t first, between, head; /* of the root's, while the embedding is at work, the blocks, head and loss */
    uint64_t head_gradient;        /* of the head, while blocks are at work */
    uint64_t head_input;           /* of its reduction, beside the last unit */
    uint64_t end, end_shard;       /* elements of what is reduced with the embedding */
    uint64_t last;                 /* bytes of the last unit */
    uint64_t input;                /* of a layer's reduction; FSDP2's stands until the next unit has been reduced */
    uint64_t cast;          /* of a layer's shard, which is cast before it is gathered, or has come up from the host */
    uint64_t uploaded;      /* of a layer's shard, what came up and its cast; FSDP2's stand until forward has copied */
    uint64_t before, after; /* gradients at rest before the last backward, and behind it */
    uint64_t whole_bytes;   /* of an element of gradients kept whole */
    uint64_t reduced_bytes; /* of an element of a reduction's result, with what it is cast into */
    uint64_t block;         /* of a block at its worst stage */
    bool several, whole;    /* micro-steps; whose gradients are added up whole, and reduced once */
    bool flat;              /* FSDP2 copies weights out of a flat buffer */
    bool ends;              /* embedding and head are units of their own */
    bool keeps;             /* weights stay gathered between forward and backward */
};

/* FSDP2 pads each parameter to equal shards. */
static uint64_t padded(const struct dtp_bound *b, uint64_t elements, uint64_t shard)
{
    return b->plan->fsdp1 ? elements : shard * b->units.ranks;
}

/* A layer as it is gathered: experts that ranks divide among those that have the same ones. Both units of such a block
 * are gathered ahead and reduced one behind the other. */
static uint64_t padded_layer(const struct dtp_bound *b, uint64_t elements, uint64_t shard, uint64_t expert_shard)
{
    return expert_shard ? (shard - expert_shard) * b->units.ranks + expert_shard * b->units.expert_ranks
                        : padded(b, elements, shard);
}

/* Where they are two units, one of them stands at a time, and while blocks are at work neither; what a strategy keeps
 * gathered stands all the same. */
static void add_ends(const struct dtp_bound *b, struct fsdp *f)
{
    const struct dtp_units *u = &b->units, *t = &b->trained;
    uint64_t head = padded(b, t->head_end, t->head_end_shard);
    f->ends = u->head_end > 0;
    if (!f->ends)
        return;
    f->end -= head, f->end_shard -= t->head_end_shard;
    f->head = f->head / u->root * u->head_end;
    f->first -= f->head;
    f->between = f->keeps ? f->first : 0;
    f->head += f->between;
    f->head_gradient = 0;
    f->head_input = b->bytes.reduce * head;
}

/* Weights as they are gathered: matrices narrower where they travel so; beside adapters frozen ones as they are kept.
 */
static void add_weights(const struct dtp_bound *b, struct fsdp *f)
{
    const struct dtp_units *u = &b->units;
    const struct dtp_element_bytes *e = &b->bytes;
    uint64_t mean_experts = u->expert_layers * u->expert_shard / b->layers;
    uint64_t layer = padded_layer(b, u->layer, u->layer_shard, mean_experts),
             largest = padded_layer(b, u->largest_layer, u->largest_layer_shard, u->expert_shard),
             narrower = (e->compute - e->gathered) * padded(b, u->layer_matmul, u->layer_matmul_shard);
    f->layer = e->compute * layer - narrower;
    f->largest = f->layer + e->compute * (largest - layer);
    f->head = e->compute * padded(b, u->root, u->root_shard) - (u->count ? 0 : b->layers * narrower);
    if (dtp_plan_adapts(b->plan))
        f->layer = f->largest = u->layer_wire * u->ranks, f->head = u->root_wire * u->ranks;
    f->first = f->between = f->head;
    f->unit = u->layers_per_unit * f->largest;
    f->last = u->last_unit_layers * f->largest;
}

/* What FSDP1's hooks hold of frozen layers to the end of backward: the gradient of each one's input. */
static uint64_t held(const struct dtp_bound *b)
{
    bool holds = b->plan->fsdp1 && dtp_plan_adapts(b->plan);
    return holds ? dtp_bytes_product(b->layers, dtp_bound_tokens(b, b->activations.gradient)) : 0;
}

static struct fsdp fsdp_of(const struct dtp_bound *b)
{
    const struct dtp_units *t = &b->trained;
    const struct dtp_plan *plan = b->plan;
    const struct dtp_element_bytes *e = &b->bytes;
    bool casts = e->params != e->compute, on_host = plan->offload == DTP_OFFLOAD_PARAMS;
    struct fsdp f = {.flat = !plan->fsdp1,
                     .keeps = !plan->reshard_after_forward,
                     .several = plan->accumulate > 1,
                     .end = padded(b, t->root, t->root_shard),
                     .end_shard = t->root_shard,
                     .head_gradient = e->compute * t->embedding + held(b),
                     .block = dtp_bound_block(b, e->compute, e->compute),
                     .whole_bytes = plan->fsdp1 ? e->compute : e->reduce,
                     .reduced_bytes = e->reduce + (e->reduce != e->grads ? e->grads : 0),
                     .after = plan->offload == DTP_OFFLOAD_NONE ? e->grads * t->total_shard : 0};
    add_weights(b, &f);
    add_ends(b, &f);
    f.input = e->reduce * padded_layer(b, t->largest_layer, t->largest_layer_shard, t->expert_shard);
    f.uploaded = on_host ? (e->params + (casts ? e->compute : 0)) * t->largest_layer_shard : 0;
    f.cast = casts && f.flat ? e->compute * t->largest_layer_shard : f.uploaded;
    f.whole = f.several && !plan->accumulate_sync;
    f.before = f.whole ? f.whole_bytes * t->total : f.several ? f.after : 0;
    return f;
}

/* What stays of each layer between forward and backward, gathered again from fewer ranks (reshard_after_forward=n). */
static uint64_t second(const struct dtp_bound *b, const struct fsdp *f, uint64_t layers, bool root)
{
    uint64_t group = b->plan->reshard_group;
    if (!group)
        return 0;
    return (b->units.count ? layers * (f->layer / group) : 0) +
           (root && !dtp_plan_keeps_root(b->plan) ? f->first / group : 0);
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
    const struct dtp_units *u = &b->trained;
    if (!reduces || (f->several && !f->whole))
        return f->before;
    uint64_t reduced = f->after ? above * u->layer_shard * b->bytes.grads : 0;
    return f->before - (f->whole ? above * u->layer * f->whole_bytes : 0) + reduced;
}

static uint64_t width_of(const struct dtp_bound *b, uint64_t unit)
{
    const struct dtp_units *u = &b->units;
    return !u->count ? b->layers : unit + 1 < u->count ? u->layers_per_unit : u->last_unit_layers;
}

/* A unit at work in backward. */
struct at_work {
    uint64_t begin, width, own; /* layers; bytes of its weights */
    uint64_t ahead, before; /* flat buffers of units gathered ahead: with it at work | before its own was copied out */
    uint64_t input;         /* of the reduction of the unit above */
    uint64_t standing;      /* gradients, and weights but those ahead */
};

static struct at_work at_work_of(const struct dtp_bound *b, const struct fsdp *f, uint64_t unit, bool reduces)
{
    const struct dtp_units *u = &b->units;
    struct at_work w = {.begin = unit * u->layers_per_unit, .width = width_of(b, unit)};
    uint64_t end = w.begin + w.width, depth = !dtp_plan_prefetches_backward(b->plan) ? 0
                                              : f->flat                              ? b->plan->prefetch_depth
                                                                                     : 1;
    w.own = u->count ? w.width * f->largest : 0;
    if (u->count && !f->keeps) {
        w.ahead = smaller(depth, unit) * f->unit;
        w.before = w.own + (unit + 1 < u->count && depth ? smaller(depth - 1, unit) * f->unit : 0);
    }
    if (reduces && f->flat)
        w.input = unit + 1 < u->count ? width_of(b, unit + 1) * f->input : f->head_input;
    w.standing = gradients(b, f, b->layers - end, reduces) + f->between + w.own + (f->keeps ? w.begin * f->layer : 0) +
                 f->head_gradient + second(b, f, w.begin, false);
    return w;
}

/* A unit is reduced: its gradients as they were made beside the input of the reduction; then, when they and the weights
 * have gone, that input beside its result and what the result is cast into. */
static void keep_reduction(struct dtp_bound *b, const struct fsdp *f, const struct at_work *w)
{
    const struct dtp_units *u = &b->trained;
    uint64_t made = f->whole ? 0 : b->bytes.compute * w->width * u->largest_layer, input = w->width * f->input;
    uint64_t beside =
        w->standing + w->ahead + dtp_bound_saved(b, w->begin) + dtp_bound_tokens(b, b->activations.gradient);
    if (b->plan->fsdp1) /* concatenated out of views, before the weights go */
        dtp_bound_keep(b, beside + 2 * b->bytes.compute * w->width * u->largest_layer);
    else
        dtp_bound_keep(b, beside - w->own + made + input);
    if (!f->whole)
        dtp_bound_keep(b, beside - w->own + input + w->width * u->largest_layer_shard * f->reduced_bytes);
}

/* A block of the unit: its worst stage, beside the gradients of those above it. */
static void keep_block(struct dtp_bound *b, const struct fsdp *f, const struct at_work *w, uint64_t below)
{
    uint64_t c = b->bytes.compute, made = w->begin + w->width - 1 - below;
    (below ? dtp_bound_keep : dtp_bound_keep_late)(b, w->standing + w->ahead + w->input + dtp_bound_saved(b, below) +
                                                          c * made * b->trained.largest_layer + f->block);
}

/* The copy of a unit's weights out of their flat buffer; the first gather ahead; the first and the last block; the
 * unit's reduction. */
static void keep_unit(struct dtp_bound *b, const struct fsdp *f, uint64_t unit, bool reduces)
{
    struct at_work w = at_work_of(b, f, unit, reduces);
    uint64_t end = w.begin + w.width;
    uint64_t begins = w.standing + w.input + dtp_bound_saved(b, end) + dtp_bound_tokens(b, b->activations.gradient);
    uint64_t width = b->units.layers_per_unit, ahead = w.ahead ? w.ahead + width * f->cast : 0;
    if (w.ahead)
        ahead = larger(ahead, w.ahead - f->unit + width * f->uploaded);
    if (f->flat)
        dtp_bound_keep(b, begins + larger(w.before + second(b, f, w.width, false), ahead));
    keep_block(b, f, &w, w.begin);
    if (w.width > 1)
        keep_block(b, f, &w, end - 1);
    if (b->units.count)
        keep_reduction(b, f, &w);
}

/* The last two units, the lowest that gathers all ahead, the first. */
static void keep_units(struct dtp_bound *b, const struct fsdp *f, bool reduces)
{
    uint64_t count = b->units.count, lowest = b->plan->prefetch ? b->plan->prefetch_depth : 0;
    keep_unit(b, f, count ? count - 1 : 0, reduces);
    if (count > 1)
        keep_unit(b, f, count - 2, reduces);
    if (count > 3 && b->units.last_unit_layers < b->units.layers_per_unit)
        keep_unit(b, f, count - 3, reduces);
    if (lowest && lowest + 2 < count)
        keep_unit(b, f, lowest, reduces);
    if (count > 2)
        keep_unit(b, f, 0, reduces);
}

/* The root is gathered; a unit is copied out of its flat buffer while that of the unit before, or the root's, stands;
 * the last block is at work; the loss is to come. `standing`: gradients and weights between forward and backward. */
static void forward(struct dtp_bound *b, const struct fsdp *f, uint64_t standing, struct dtp_bound_beside *beside)
{
    const struct dtp_activations *a = &b->activations;
    const struct dtp_units *u = &b->units;
    uint64_t copy = !f->flat ? 0 : u->count ? f->last : f->first;      /* the last unit's flat buffer */
    uint64_t own = f->keeps ? 0 : f->last, width = u->layers_per_unit; /* `standing` has all where they are kept */
    uint64_t cast = b->bytes.params != b->bytes.compute ? b->bytes.compute * u->root_shard : 0;
    bool on_host = b->plan->offload == DTP_OFFLOAD_PARAMS; /* whose uploads stay until weights have been copied out */
    dtp_bound_keep(b, f->before + f->first +
                          (on_host ? uploaded(b) + (f->flat ? f->first : 0) : larger(f->flat ? f->first : 0, cast)));
    if (f->flat && u->count)
        dtp_bound_keep(b, f->before + f->between + f->first + width_of(b, 0) * (2 * f->largest + f->uploaded) +
                              dtp_bound_tokens(b, a->embedding + a->layer_input));
    /* the lowest units that stand beside the flat buffers of the one before and of all ahead */
    uint64_t depth = b->plan->prefetch ? b->plan->prefetch_depth : 1, count = u->count;
    for (uint64_t unit = count > depth + 1 ? count - depth - 1 : 1; f->flat && unit < count; unit++) {
        uint64_t begin = unit * width, flats = smaller(depth, count - unit);
        dtp_bound_keep(b, standing - (f->keeps ? (b->layers - begin) * f->layer : 0) + f->between + f->unit +
                              (flats - 1) * f->unit + (unit + flats < count ? f->unit : f->last) +
                              width_of(b, unit) * (f->largest + (depth > 1 ? 0 : f->uploaded)) +
                              dtp_bound_saved(b, begin) + dtp_bound_tokens(b, a->layer_input));
    }
    beside->forward = standing + f->between + copy + own;
    beside->logits = standing + f->head + (f->ends ? f->head - f->between : copy);
    dtp_bound_hold(b, standing + f->between + own + dtp_bound_saved(b, b->layers - 1) +
                          dtp_bound_tokens(b, b->last_layer_all));
}

/* The loss; then the root gathered again, and the head's gradients with the last unit on its way. */
static void loss_and_head(struct dtp_bound *b, const struct fsdp *f, uint64_t standing, struct dtp_bound_beside *beside)
{
    const struct dtp_activations *a = &b->activations;
    const struct dtp_plan *plan = b->plan;
    bool chunked = dtp_plan_loss(plan) == DTP_LOSS_CHUNKED;
    bool root_stands = f->keeps || chunked || plan->fsdp1 || plan->keep_root || f->ends;
    uint64_t again = f->ends ? 0 : second(b, f, 0, true); /* of the root, until it is gathered again */
    uint64_t kept = dtp_bound_saved(b, b->layers) + dtp_bound_tokens(b, a->head);
    beside->loss = standing - (root_stands ? again : 0) + (root_stands ? f->head : 0);
    beside->head = standing - again + f->head + (dtp_plan_prefetches_backward(plan) && !f->keeps ? f->last : 0);
    beside->head_gradient = b->bytes.compute * b->trained.embedding;
    dtp_bound_hold(b, beside->loss + kept + dtp_bound_tokens(b, a->loss));
    if (f->flat && !f->keeps && !plan->keep_root && !f->ends)
        dtp_bound_keep(b, standing + kept + larger(2 * f->head, plan->offload == DTP_OFFLOAD_PARAMS ? uploaded(b) : 0) +
                              (chunked ? beside->head_gradient : 0) + dtp_bound_tokens(b, a->logits_gradient));
}

/* The embedding's gradient, made with the root gathered, beside the head's; then the root's reduction as a unit's. */
static void keep_root(struct dtp_bound *b, const struct fsdp *f, bool reduces, struct dtp_bound_beside *beside)
{
    const struct dtp_units *t = &b->trained;
    uint64_t c = b->bytes.compute, rest = gradients(b, f, t->count ? b->layers : 0, reduces);
    if (!reduces && b->plan->accumulate == 2) /* the first micro-step's */
        rest -= f->whole_bytes * t->root;
    uint64_t made = !t->count ? t->total + (t->head ? 0 : t->embedding)
                    : f->ends ? t->embedding + t->position
                              : 2 * t->embedding + t->position;
    uint64_t input = b->bytes.reduce * f->end, root = t->root - t->head_end;
    beside->ends = larger(beside->ends, rest + f->first + c * made +
                                            (reduces && f->flat && t->count ? width_of(b, 0) * f->input : 0));
    if (b->plan->fsdp1)
        dtp_bound_keep_late(b, rest + f->first + 2 * c * root);
    else if (reduces)
        dtp_bound_keep_late(b, rest + (f->whole ? 0 : c * root) + input);
    if (!f->whole)
        dtp_bound_keep_late(b, rest + (b->plan->fsdp1 ? larger(c * root, input) + b->bytes.grads * f->end_shard
                                                      : input + f->reduced_bytes * f->end_shard));
}

void dtp_bound_fsdp(struct dtp_bound *b)
{
    struct fsdp f = fsdp_of(b);
    struct dtp_bound_beside beside = {.ends = 0};
    uint64_t standing =
        f.before + second(b, &f, b->layers, true) + (f.keeps && b->units.count ? b->layers * f.layer : 0);
    forward(b, &f, standing, &beside);
    loss_and_head(b, &f, standing, &beside);
    for (int reduces = f.several ? 0 : 1; reduces < 2; reduces++) {
        keep_units(b, &f, reduces);
        if (reduces || f.whole)
            keep_root(b, &f, reduces, &beside);
    }
    dtp_bound_steps(b, &beside);
    dtp_bound_hold(b, f.after);
    dtp_bound_keep(b, f.after + dtp_optimizer_scratch_bytes(b->transformer, b->plan, b->trained.total_shard));
}
