/* Backward of FSDP: units of layers from the last to the first, then the root. */
#include "runtime/torch/memory_fsdp.h"

/* Between the first and the last of at least three micro-steps whole gradients stand for all layers, and none is
 * reduced. */
static bool has_quiet_micro_steps(const struct dtp_memory_job *job)
{
    return dtp_fsdp_accumulates_whole(job) && job->plan->accumulate > 2;
}

/* Flat buffers of the units below `unit` that are gathered ahead in backward. */
static void add_ahead(const struct dtp_memory_job *job, struct dtp_instant *instant, uint64_t unit)
{
    uint64_t ahead = job->plan->prefetch ? dtp_fsdp_smaller(job->plan->prefetch_depth, unit) : 0;
    dtp_fsdp_add_units(job, instant, unit - ahead, ahead);
}

/* What stands whenever backward is in unit `unit`, in a micro-step that reduces or not; the reduce-scatter input of the
 * unit above goes when this one is reduced, FSDP1 frees it in the order of its host. */
static struct dtp_instant in_unit(const struct dtp_memory_job *job, uint64_t unit, bool reduces)
{
    struct dtp_instant instant =
        reduces ? dtp_fsdp_in_backward(job, dtp_fsdp_layers_above(job, unit)) : dtp_fsdp_before_backward(job);
    dtp_fsdp_add_root(job, &instant, &dtp_fsdp_weights);
    dtp_fsdp_add_layers(job, &instant, &dtp_fsdp_weights,
                        (dtp_fsdp_keeps_weights(job) ? dtp_fsdp_layers_before(job, unit) : 0) +
                            dtp_fsdp_layers_in(job, unit));
    dtp_fsdp_add_made(job, &instant, DTP_TERM_HEAD_GRADIENT, 1, job->units.embedding);
    if (reduces && unit + 1 < job->units.count && !job->plan->fsdp1)
        dtp_fsdp_add_reduce_input(job, &instant, dtp_fsdp_layers_in(job, unit + 1));
    return instant;
}

/* The weights of a unit are copied out of its flat buffer, beside those that were gathered ahead of it. */
static void backward_copy_out(struct dtp_memory_job *job, enum dtp_phase phase, uint64_t unit,
                              const struct dtp_instant *standing_in_unit)
{
    struct dtp_instant instant = *standing_in_unit;
    uint64_t standing = job->plan->prefetch
                            ? dtp_fsdp_smaller(unit + 1 < job->units.count ? job->plan->prefetch_depth : 1, unit + 1)
                            : 1;
    dtp_fsdp_add_units(job, &instant, unit + 1 - standing, standing);
    dtp_fsdp_add_post_forward(job, &instant, dtp_fsdp_layers_before(job, unit) + dtp_fsdp_layers_in(job, unit), false);
    dtp_fsdp_gather_elsewhere(job, &instant);
    dtp_add_saved(job, &instant, dtp_fsdp_layers_before(job, unit) + dtp_fsdp_layers_in(job, unit));
    dtp_instant_add_tokens(job, &instant, DTP_TERM_STREAM_GRADIENT, 1, job->activations.gradient);
    dtp_memory_consider(job, phase, &instant);
}

/* A layer's replay or the worst place of its backward; gradients of those above it in its unit are made. */
static void backward_place(struct dtp_memory_job *job, enum dtp_phase phase, const struct dtp_instant *standing,
                           uint64_t layer, uint64_t finished, const struct dtp_block_place *place)
{
    struct dtp_instant instant = *standing;
    dtp_add_saved(job, &instant, layer);
    dtp_add_block(job, &instant, place);
    dtp_instant_add_tokens(job, &instant, DTP_TERM_STREAM_GRADIENT, 1, job->activations.gradient);
    dtp_fsdp_add_made(job, &instant, DTP_TERM_LAYER_GRADIENTS, finished, job->units.layer);
    dtp_fsdp_add_made(job, &instant, DTP_TERM_BLOCK_GRADIENTS, 1, place->finished + place->current);
    dtp_memory_consider(job, phase, &instant);
}

/* Gradients stand as they are made until the unit is through. */
static const struct dtp_block_place *worst_place(const struct dtp_memory_job *job)
{
    int64_t c = (int64_t)job->bytes.compute;
    struct dtp_place_weights bytes = {.tokens = job->tokens, .finished = c, .current = {c, c, c}};
    return dtp_block_worst(job->places, &bytes);
}

static void backward_layer(struct dtp_memory_job *job, enum dtp_phase phase, const struct dtp_instant *standing,
                           uint64_t layer, uint64_t finished, const struct dtp_block_place *worst)
{
    backward_place(job, phase, standing, layer, finished, worst);
    if (dtp_layer_recomputed(job, layer))
        backward_place(job, phase, standing, layer, finished, &job->places->replay);
}

/* From layer to layer of a unit what is saved falls and gradients grow, so the first and the last of each kind are
 * worst. */
static void unit_layers(struct dtp_memory_job *job, enum dtp_phase phase, uint64_t unit, struct dtp_instant instant,
                        const struct dtp_block_place *worst)
{
    uint64_t begin = dtp_fsdp_layers_before(job, unit), end = begin + dtp_fsdp_layers_in(job, unit),
             layers[2 * DTP_LAYER_KINDS];
    if (!dtp_fsdp_keeps_weights(job))
        add_ahead(job, &instant, unit);
    dtp_fsdp_add_post_forward(job, &instant, begin, false);
    dtp_fsdp_gather_elsewhere(job, &instant);
    int kinds = dtp_outer_layers(job, begin, end, layers);
    for (int i = 0; i < kinds; i++)
        backward_layer(job, phase, &instant, layers[i], end - 1 - layers[i], worst);
}

/* Unit `unit` is reduced: its gradients in c and, beside them, the reduce-scatter input. FSDP1 concatenates its views'
 * gradients into a flat one first, so they stand twice, beside weights that go before anything is cast; FSDP2's
 * accumulated ones have taken the new ones in before, and stand in their place. */
static void unit_reduce(struct dtp_memory_job *job, enum dtp_phase phase, uint64_t unit, bool reduces)
{
    const struct dtp_units *u = &job->units;
    uint64_t layers = dtp_fsdp_layers_in(job, unit);
    struct dtp_instant instant =
        reduces ? dtp_fsdp_in_backward(job, dtp_fsdp_layers_above(job, unit)) : dtp_fsdp_before_backward(job);
    dtp_add_saved(job, &instant, dtp_fsdp_layers_before(job, unit));
    dtp_fsdp_add_root(job, &instant, &dtp_fsdp_weights);
    if (dtp_fsdp_keeps_weights(job))
        dtp_fsdp_add_layers(job, &instant, &dtp_fsdp_weights,
                            dtp_fsdp_layers_before(job, unit) + (job->plan->fsdp1 ? layers : 0));
    else if (!dtp_fsdp_copies_out(job))
        dtp_fsdp_add_layers(job, &instant, &dtp_fsdp_weights,
                            layers + (unit && job->plan->prefetch ? u->layers_per_unit : 0));
    else
        add_ahead(job, &instant, unit);
    dtp_fsdp_add_post_forward(job, &instant, dtp_fsdp_layers_before(job, unit), false);
    dtp_fsdp_gather_elsewhere(job, &instant);
    dtp_fsdp_add_made(job, &instant, DTP_TERM_HEAD_GRADIENT, 1, u->embedding);
    if (job->plan->fsdp1 || !dtp_fsdp_accumulates_whole(job))
        dtp_fsdp_add_made(job, &instant, DTP_TERM_LAYER_GRADIENTS, layers, u->layer);
    if (job->plan->fsdp1)
        dtp_fsdp_add_made(job, &instant, DTP_TERM_FLAT_GRADIENTS, layers, u->layer);
    else
        dtp_fsdp_add_reduce_input(job, &instant, layers);
    dtp_instant_add_tokens(job, &instant, DTP_TERM_STREAM_GRADIENT, 1, job->activations.gradient);
    dtp_memory_consider(job, phase, &instant);
}

/* The result of a reduction beside its input, and what it is cast into; gradients and weights of the unit have gone,
 * and accumulated gradients were larger. */
static void unit_reduced(struct dtp_memory_job *job, enum dtp_phase phase, uint64_t unit)
{
    const struct dtp_units *u = &job->units;
    uint64_t layers = dtp_fsdp_layers_in(job, unit),
             casts = job->bytes.reduce != job->bytes.grads ? job->bytes.grads : 0;
    if (dtp_fsdp_accumulates_whole(job) || (casts + job->bytes.reduce) / u->ranks < job->bytes.compute)
        return;
    struct dtp_instant instant = dtp_fsdp_in_backward(job, dtp_fsdp_layers_above(job, unit));
    dtp_add_saved(job, &instant, dtp_fsdp_layers_before(job, unit));
    dtp_fsdp_add_root(job, &instant, &dtp_fsdp_weights);
    if (dtp_fsdp_keeps_weights(job))
        dtp_fsdp_add_layers(job, &instant, &dtp_fsdp_weights, dtp_fsdp_layers_before(job, unit));
    else if (dtp_fsdp_copies_out(job))
        add_ahead(job, &instant, unit);
    else
        dtp_fsdp_add_layers(job, &instant, &dtp_fsdp_weights, unit && job->plan->prefetch ? u->layers_per_unit : 0);
    dtp_fsdp_add_post_forward(job, &instant, dtp_fsdp_layers_before(job, unit), false);
    dtp_fsdp_gather_elsewhere(job, &instant);
    dtp_fsdp_add_made(job, &instant, DTP_TERM_HEAD_GRADIENT, 1, job->units.embedding);
    dtp_fsdp_add_reduce_input(job, &instant, layers);
    dtp_instant_add(&instant, DTP_TERM_REDUCED_OUTPUT, layers, u->layer_shard, job->bytes.reduce + casts);
    dtp_instant_add_tokens(job, &instant, DTP_TERM_STREAM_GRADIENT, 1, job->activations.gradient);
    dtp_memory_consider(job, phase, &instant);
}

static void root_reduced(struct dtp_memory_job *job, struct dtp_instant instant)
{
    if (job->units.ranks > 1 || dtp_fsdp_accumulates_whole(job))
        return;
    dtp_instant_add(&instant, DTP_TERM_ROOT_INPUT, 1, dtp_fsdp_root_elements(job), job->bytes.reduce);
    dtp_instant_add(&instant, DTP_TERM_REDUCED_OUTPUT, 1, job->units.root_shard, job->bytes.reduce);
    dtp_memory_consider(job, DTP_PHASE_LATE_BACKWARD, &instant);
}

/* The embedding's gradient, made with the root still gathered; a tied head's stands apart until the two are added. */
static void embedding_backward(struct dtp_memory_job *job, struct dtp_instant instant, bool reduces)
{
    const struct dtp_units *u = &job->units;
    dtp_fsdp_add_root(job, &instant, &dtp_fsdp_weights);
    if (u->count) {
        dtp_fsdp_add_made(job, &instant, DTP_TERM_HEAD_EMBEDDING_GRADIENTS, 2, u->embedding);
        dtp_fsdp_add_made(job, &instant, DTP_TERM_POSITION_GRADIENT, 1, u->position);
        if (reduces && !job->plan->fsdp1)
            dtp_fsdp_add_reduce_input(job, &instant, u->layers_per_unit);
    } else {
        dtp_fsdp_add_made(job, &instant, DTP_TERM_MODEL_GRADIENTS, 1, u->total);
        dtp_fsdp_add_made(job, &instant, DTP_TERM_HEAD_GRADIENT, u->head ? 0 : 1, u->embedding);
    }
    dtp_add_embedding_backward(job, &instant);
    dtp_memory_consider(job, DTP_PHASE_LATE_BACKWARD, &instant);
}

/* The root's gradients beside what they are reduced from. */
static void root_reduce(struct dtp_memory_job *job, struct dtp_instant instant)
{
    const struct dtp_units *u = &job->units;
    if (job->plan->fsdp1 || !dtp_fsdp_accumulates_whole(job))
        dtp_fsdp_add_made(job, &instant, DTP_TERM_ROOT_GRADIENTS, 1, u->root);
    if (job->plan->fsdp1) { /* views' gradients and the flat one, before the weights go */
        dtp_fsdp_add_root(job, &instant, &dtp_fsdp_weights);
        dtp_fsdp_add_made(job, &instant, DTP_TERM_FLAT_GRADIENTS, 1, u->root);
    } else {
        dtp_instant_add(&instant, DTP_TERM_ROOT_INPUT, 1, dtp_fsdp_root_elements(job), job->bytes.reduce);
    }
    dtp_memory_consider(job, DTP_PHASE_LATE_BACKWARD, &instant);
}

/* The root's turn, after all units. */
static void root_backward(struct dtp_memory_job *job)
{
    struct dtp_instant reducing = dtp_fsdp_in_backward(job, job->units.count ? job->transformer->layers : 0);
    embedding_backward(job, reducing, true);
    if (has_quiet_micro_steps(job))
        embedding_backward(job, dtp_fsdp_before_backward(job), false);
    root_reduced(job, reducing);
    root_reduce(job, reducing);
    if (job->plan->fsdp1 && has_quiet_micro_steps(job))
        root_reduce(job, dtp_fsdp_before_backward(job));
}

/* Without units of layers the whole model is one: its backward holds all weights and, growing, all gradients. */
static void whole_backward(struct dtp_memory_job *job)
{
    struct dtp_instant instant = dtp_fsdp_before_backward(job);
    const struct dtp_block_place *worst = worst_place(job);
    uint64_t all = job->transformer->layers, layers[2 * DTP_LAYER_KINDS];
    dtp_fsdp_add_root(job, &instant, &dtp_fsdp_weights);
    dtp_fsdp_add_made(job, &instant, DTP_TERM_HEAD_GRADIENT, 1, job->units.embedding);
    int kinds = dtp_outer_layers(job, 0, all, layers);
    for (int i = 0; i < kinds; i++)
        backward_layer(job, layers[i] >= all / 2 ? DTP_PHASE_EARLY_BACKWARD : DTP_PHASE_LATE_BACKWARD, &instant,
                       layers[i], all - 1 - layers[i], worst);
}

/* The next unit's own shard, cast or from the host, beside the flat buffer it is laid into; a unit of several modules
 * comes up as one and is cast before there is a flat buffer. */
static uint64_t arriving_bytes(const struct dtp_memory_job *job)
{
    uint64_t params = job->bytes.params, compute = job->bytes.compute, casts = params != compute ? compute : 0;
    bool offloaded = job->plan->offload == DTP_OFFLOAD_PARAMS;
    uint64_t laid = offloaded ? compute : casts, whole = job->units.ranks * compute;
    bool together = offloaded && job->units.layers_per_unit > 1 && casts;
    return together && params + casts > whole + laid ? params + casts - whole : laid;
}

/* When backward comes to a unit, the one after it is gathered while everything that it saved still stands. Less than
 * the unit's worst place where that works on more than what arrives. */
static void backward_gather(struct dtp_memory_job *job, enum dtp_phase phase, uint64_t unit,
                            const struct dtp_instant *standing_in_unit, const struct dtp_block_place *worst)
{
    uint64_t end = dtp_fsdp_layers_before(job, unit) + dtp_fsdp_layers_in(job, unit),
             shard = job->units.layers_per_unit * job->units.layer_shard;
    uint64_t arriving = arriving_bytes(job), stands = job->activations.layer_all;
    uint64_t works =
        dtp_bytes_product(job->tokens, worst->saved + worst->work > stands ? worst->saved + worst->work - stands : 0);
    bool later = worst->saved + worst->work >= stands &&
                 works + (worst->finished + worst->current) * job->bytes.compute >= shard * arriving;
    if (!unit || !job->plan->prefetch || later)
        return;
    struct dtp_instant instant = *standing_in_unit;
    add_ahead(job, &instant, unit);
    dtp_fsdp_add_post_forward(job, &instant, dtp_fsdp_layers_before(job, unit), false);
    dtp_instant_add(&instant, DTP_TERM_ARRIVING_SHARD, job->units.layers_per_unit, job->units.layer_shard, arriving);
    dtp_fsdp_gather_elsewhere(job, &instant);
    dtp_add_saved(job, &instant, end);
    dtp_instant_add_tokens(job, &instant, DTP_TERM_STREAM_GRADIENT, 1, job->activations.gradient);
    dtp_memory_consider(job, phase, &instant);
}

/* Everything that can be the peak of one unit. */
static void unit_backward(struct dtp_memory_job *job, uint64_t unit, const struct dtp_block_place *worst)
{
    enum dtp_phase phase = 2 * unit >= job->units.count ? DTP_PHASE_EARLY_BACKWARD : DTP_PHASE_LATE_BACKWARD;
    for (int quiet = 0; quiet < (has_quiet_micro_steps(job) ? 2 : 1); quiet++) {
        struct dtp_instant standing = in_unit(job, unit, !quiet);
        unit_layers(job, phase, unit, standing, worst);
        if (!dtp_fsdp_copies_out(job) || dtp_fsdp_keeps_weights(job))
            continue;
        backward_copy_out(job, phase, unit, &standing);
        backward_gather(job, phase, unit, &standing, worst);
    }
    unit_reduce(job, phase, unit, true);
    if (job->plan->fsdp1 && has_quiet_micro_steps(job)) /* concatenated whether or not it is reduced */
        unit_reduce(job, phase, unit, false);
    unit_reduced(job, phase, unit);
}

/* Units that hold the outermost layers of each kind among those from `begin` to `end`, each once. */
static int add_units_of(const struct dtp_memory_job *job, uint64_t begin, uint64_t end, uint64_t *units, int count)
{
    uint64_t layers[2 * DTP_LAYER_KINDS];
    int kinds =
        begin < end
            ? dtp_outer_layers(job, dtp_fsdp_layers_before(job, begin),
                               dtp_fsdp_smaller(dtp_fsdp_layers_before(job, end), job->transformer->layers), layers)
            : 0;
    for (int i = 0; i < kinds; i++) {
        uint64_t unit = layers[i] / job->units.layers_per_unit;
        int at = 0;
        while (at < count && units[at] != unit)
            at++;
        units[at] = unit;
        count += at == count;
    }
    return count;
}

/* From one unit to the next what stands changes by the same amount, save where nothing above is being reduced (the last
 * unit) and where fewer are left to gather ahead (the first ones): the worst lies at an end of these ranges, among the
 * units that hold the outermost layers of each kind. */
static void units_backward(struct dtp_memory_job *job)
{
    uint64_t count = job->units.count, depth = job->plan->prefetch ? job->plan->prefetch_depth : 0;
    uint64_t units[10 * DTP_LAYER_KINDS];
    const struct dtp_block_place *worst = worst_place(job);
    int weighed = add_units_of(job, 0, count, units, 0);
    weighed = add_units_of(job, 0, count - 1, units, weighed);
    weighed = add_units_of(job, depth, count - 1, units, weighed);
    if (job->units.last_unit_layers < job->units.layers_per_unit && count > 2)
        weighed = add_units_of(job, 0, count - 2, units, weighed);
    if (depth > 1)
        weighed = add_units_of(job, depth - 1, count, units, weighed);
    for (int i = 0; i < weighed; i++)
        unit_backward(job, units[i], worst);
}

void dtp_fsdp_backward(struct dtp_memory_job *job)
{
    if (job->units.count)
        units_backward(job);
    else
        whole_backward(job);
    root_backward(job);
}
