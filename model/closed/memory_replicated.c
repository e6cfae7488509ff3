/* Peak memory where every GPU holds all parameters: DDP, ZeRO-1, ZeRO-2. What becomes of gradients is the runtime's.
 *
 * Notation: p bytes of a stored parameter, c of the compute dtype, psi parameters, P of one layer, V h of the
 * embedding, T tokens. */
#include "closed/memory_replicated.h"

/* Layers whose weights have a copy that autocast made: cast once in forward, saved for backward, freed layer by layer.
 * A checkpointed layer saves none; it makes them again when it is recomputed. Selective attention leaves the linears
 * outside. */
static uint64_t cast_layers(const struct dtp_memory_job *job, uint64_t layers, bool recomputing)
{
    bool linears = job->plan->checkpointing != DTP_CHECKPOINT_SELECTIVE_ATTENTION;
    uint64_t every = linears ? job->activations.checkpoint_every : 0;
    if (!dtp_plan_autocast(job->plan))
        return 0;
    return layers - (every ? dtp_divide_up(layers, every) : 0) + (every && recomputing ? 1 : 0);
}

static void add_casts(const struct dtp_memory_job *job, struct dtp_instant *instant, uint64_t layers)
{
    dtp_instant_add(instant, DTP_TERM_LAYER_CASTS, layers, job->units.layer_cast, job->bytes.compute);
}

static void add_head_cast(const struct dtp_memory_job *job, struct dtp_instant *instant)
{
    if (dtp_plan_autocast(job->plan))
        dtp_instant_add(instant, DTP_TERM_HEAD_CAST, 1, job->units.embedding, job->bytes.compute);
}

struct dtp_instant dtp_replicated_instant(const struct dtp_memory_job *job, uint64_t done)
{
    struct dtp_instant instant = job->at_rest;
    job->replicated->add_gradients(job, &instant, done);
    return instant;
}

static void add_block(const struct dtp_memory_job *job, struct dtp_instant *instant,
                      const struct dtp_block_place *place)
{
    dtp_add_block(job, instant, place);
    if (dtp_plan_autocast(job->plan))
        dtp_instant_add(instant, DTP_TERM_BLOCK_CASTS, 1, place->casts, job->bytes.compute);
}

/* A tensor first, unless the matmul writes where gradients rest. */
static void add_head_gradient(const struct dtp_memory_job *job, struct dtp_instant *instant)
{
    if (!job->plan->runtime->gradients_in_matmul)
        dtp_instant_add(instant, DTP_TERM_HEAD_GRADIENT, 1, job->units.embedding, job->bytes.compute);
}

void dtp_replicated_add_buckets(const struct dtp_memory_job *job, struct dtp_instant *instant)
{
    if (job->replicated->add_buckets)
        job->replicated->add_buckets(job, instant);
}

/* A tied head's gradient waits in autograd's input buffer for the embedding's, and becomes .grad with it. */
void dtp_replicated_add_tied_head(const struct dtp_memory_job *job, struct dtp_instant *instant)
{
    if (!job->plan->runtime->gradients_in_matmul && !job->units.head)
        dtp_instant_add(instant, DTP_TERM_TIED_HEAD_GRADIENT, 1, job->units.embedding, job->bytes.grads);
}

/* Forward of a layer: of each kind the last has most below it. */
static void forward_layers(struct dtp_memory_job *job)
{
    uint64_t layers[DTP_LAYER_KINDS];
    int kinds = dtp_last_layers(job, job->transformer->layers, layers);
    bool all = dtp_plan_autocast(job->plan) && !job->plan->compile;
    for (int i = 0; i < kinds; i++) {
        struct dtp_instant instant = dtp_replicated_instant(job, 0);
        dtp_add_saved(job, &instant, layers[i]);
        add_casts(job, &instant, all ? layers[i] : cast_layers(job, layers[i], false));
        add_block(job, &instant, &job->places->forward[dtp_layer_checkpointed(job, layers[i])]);
        dtp_memory_consider(job, DTP_PHASE_FORWARD_END, &instant);
    }
}

/* Forward's end, and the loss with all activations and casts standing. In chunks, head and loss come after forward, and
 * the head's gradient is made there. */
static void forward_and_loss(struct dtp_memory_job *job)
{
    uint64_t layers = job->transformer->layers;
    bool chunked = dtp_plan_loss(job->plan) == DTP_LOSS_CHUNKED;
    struct dtp_instant loss = dtp_replicated_instant(job, 0);
    dtp_add_all_saved(job, &loss);
    struct dtp_instant end = loss;
    add_casts(job, &loss, cast_layers(job, layers, false));
    add_head_cast(job, &loss);
    dtp_instant_add_tokens(job, &loss, DTP_TERM_LOSS, 1, job->activations.loss);
    if (chunked)
        add_head_gradient(job, &loss);
    dtp_memory_consider(job, DTP_PHASE_LOSS, &loss);

    /* autocast's cache keeps eager casts until its context ends with forward, checkpointed or not */
    bool all = dtp_plan_autocast(job->plan) && !job->plan->compile;
    add_casts(job, &end, all ? layers : cast_layers(job, layers, false));
    if (!chunked || job->plan->compile)
        add_head_cast(job, &end);
    if (!chunked)
        dtp_instant_add_tokens(job, &end, DTP_TERM_LOGITS, 1, job->activations.logits);
    if (dtp_plan_autocast(job->plan)) /* the last result in fp32, until the head has read its cast */
        dtp_instant_add_tokens(job, &end, DTP_TERM_HEAD, 1, job->activations.gradient);
    dtp_memory_consider(job, DTP_PHASE_FORWARD_END, &end);
}

/* Backward of the head: the logits' gradient, the head's in the compute dtype, that of the final norm's result; then,
 * when logits, their gradient, the norm's result and the cast weight have gone, the head's is cast for its bucket. */
static void head_backward(struct dtp_memory_job *job)
{
    const struct dtp_activations *a = &job->activations;
    struct dtp_instant cast = dtp_replicated_instant(job, 0);
    bool chunked = dtp_plan_loss(job->plan) == DTP_LOSS_CHUNKED;
    dtp_add_all_saved(job, &cast);
    add_casts(job, &cast, cast_layers(job, job->transformer->layers, false));
    add_head_gradient(job, &cast);
    dtp_replicated_add_buckets(job, &cast);
    struct dtp_instant instant = cast;
    add_head_cast(job, &instant);
    dtp_instant_add_tokens(job, &instant, DTP_TERM_LOGITS_GRADIENT, 1, a->logits_gradient);
    dtp_instant_add_tokens(job, &instant, DTP_TERM_STREAM_GRADIENT, 1, chunked ? 0 : a->norm_gradient);
    dtp_memory_consider(job, DTP_PHASE_EARLY_BACKWARD, &instant);
    if (!dtp_plan_autocast(job->plan))
        return;
    dtp_instant_add(&cast, DTP_TERM_CAST_GRADIENT, 1, job->units.embedding, job->bytes.grads);
    dtp_instant_add_tokens(job, &cast, DTP_TERM_STREAM_GRADIENT, 1, chunked ? a->logits_gradient : a->norm_gradient);
    dtp_instant_take_tokens(job, &cast, DTP_TERM_HEAD, a->norm_gradient);
    dtp_memory_consider(job, DTP_PHASE_EARLY_BACKWARD, &cast);
}

/* What becomes of a layer's gradients: nothing where matmuls write them in place; else each is a tensor first, which
 * autocast casts. */
static struct dtp_place_weights gradient_bytes(const struct dtp_memory_job *job, bool quiet)
{
    int64_t c = (int64_t)job->bytes.compute, g = (int64_t)job->bytes.grads;
    bool autocast = dtp_plan_autocast(job->plan);
    struct dtp_place_weights bytes = {.tokens = job->tokens, .casts = autocast ? job->bytes.compute : 0};
    if (job->plan->runtime->gradients_in_matmul)
        return bytes;
    bytes.current[DTP_PLACE_GRADIENT] = c;
    bytes.current[DTP_PLACE_HANDED] = autocast ? c + g : c;
    job->replicated->weigh_gradients(job, quiet, &bytes);
    return bytes;
}

/* Gradients that the layer at work has made. */
static void add_block_gradients(struct dtp_instant *instant, const struct dtp_block_place *place,
                                const struct dtp_place_weights *bytes)
{
    if (bytes->finished < 0)
        dtp_instant_take(instant, DTP_TERM_BESIDE_BUCKETS, 1, place->finished, (uint64_t)-bytes->finished);
    else
        dtp_instant_add(instant, DTP_TERM_BLOCK_GRADIENTS, 1, place->finished, (uint64_t)bytes->finished);
    dtp_instant_add(instant, DTP_TERM_BLOCK_GRADIENTS, 1, place->current, (uint64_t)bytes->current[place->kind]);
    dtp_instant_add(instant, DTP_TERM_BLOCK_GRADIENTS, 1, 1, dtp_place_lingering(place, bytes));
}

void dtp_replicated_backward(struct dtp_memory_job *job, uint64_t done, uint64_t layer,
                             const struct dtp_block_place *place, const struct dtp_place_weights *bytes)
{
    enum dtp_phase phase = 2 * layer >= job->transformer->layers ? DTP_PHASE_EARLY_BACKWARD : DTP_PHASE_LATE_BACKWARD;
    struct dtp_instant instant = dtp_replicated_instant(job, done);
    dtp_add_saved(job, &instant, layer);
    add_casts(job, &instant, cast_layers(job, layer, false));
    add_block(job, &instant, place);
    add_block_gradients(&instant, place, bytes);
    dtp_instant_add_tokens(job, &instant, DTP_TERM_STREAM_GRADIENT, 1, job->activations.gradient);
    dtp_replicated_add_buckets(job, &instant);
    dtp_replicated_add_tied_head(job, &instant);
    dtp_memory_consider(job, phase, &instant);
}

void dtp_replicated_backward_layer(struct dtp_memory_job *job, bool quiet, uint64_t layer,
                                   const struct dtp_block_place *place, const struct dtp_place_weights *bytes)
{
    uint64_t above = job->transformer->layers - 1 - layer;
    dtp_replicated_backward(job, quiet ? 0 : job->units.head + above * job->units.layer, layer, place, bytes);
}

/* Saved activations fall and gradients grow from layer to layer: the first and the last of each kind are worst. */
static void layers_backward(struct dtp_memory_job *job, bool quiet)
{
    uint64_t layers[2 * DTP_LAYER_KINDS];
    struct dtp_place_weights bytes = gradient_bytes(job, quiet);
    const struct dtp_block_place *worst = dtp_block_worst(job->places, &bytes);
    int kinds = dtp_outer_layers(job, 0, job->transformer->layers, layers);
    for (int i = 0; i < kinds; i++) {
        dtp_replicated_backward_layer(job, quiet, layers[i], worst, &bytes);
        if (dtp_layer_recomputed(job, layers[i]))
            dtp_replicated_backward_layer(job, quiet, layers[i], &job->places->replay, &bytes);
    }
    if (job->replicated->within_blocks)
        job->replicated->within_blocks(job, worst, &bytes);
}

/* End of backward: the embedding's dense gradient before it goes where gradients rest, beside the tied head's, to which
 * it is added, and the partial sums it is made of. */
static void embedding_backward(struct dtp_memory_job *job, bool quiet)
{
    const struct dtp_units *u = &job->units;
    struct dtp_instant instant = dtp_replicated_instant(job, quiet ? 0 : u->total - u->embedding);
    dtp_replicated_add_tied_head(job, &instant);
    dtp_replicated_add_buckets(job, &instant);
    bool buffered = job->plan->runtime->gradients_in_matmul; /* made in the parameters' dtype and added */
    dtp_instant_add(&instant, DTP_TERM_EMBEDDING_GRADIENT, 1, u->embedding,
                    buffered ? job->bytes.compute : job->bytes.grads);
    dtp_add_embedding_backward(job, &instant);
    dtp_memory_consider(job, DTP_PHASE_LATE_BACKWARD, &instant);
}

/* Just before, that of learned positions. */
static void position_backward(struct dtp_memory_job *job, bool quiet)
{
    const struct dtp_units *u = &job->units;
    if (!u->position || job->plan->runtime->gradients_in_matmul)
        return;
    struct dtp_instant instant = dtp_replicated_instant(job, quiet ? 0 : u->total - u->embedding - u->position);
    dtp_replicated_add_tied_head(job, &instant);
    dtp_replicated_add_buckets(job, &instant);
    dtp_instant_add(&instant, DTP_TERM_POSITION_GRADIENT, 1, u->position, job->bytes.grads);
    dtp_instant_add_tokens(job, &instant, DTP_TERM_STREAM_GRADIENT, 1, job->activations.gradient);
    dtp_memory_consider(job, DTP_PHASE_LATE_BACKWARD, &instant);
}

static void optimizer_step(struct dtp_memory_job *job)
{
    uint64_t local =
        dtp_plan_shards_optimizer(job->plan) ? dtp_divide_up(job->units.total, job->units.ranks) : job->units.total;
    struct dtp_instant instant = dtp_replicated_instant(job, job->units.total);
    if (job->replicated->add_step)
        job->replicated->add_step(job, &instant, local);
    dtp_add_foreach(job, &instant, local);
    dtp_memory_consider(job, DTP_PHASE_STEP, &instant);
}

void dtp_memory_replicated(struct dtp_memory_job *job, const struct dtp_replicated_hooks *hooks)
{
    job->replicated = hooks;
    bool quiet_ones = hooks->has_quiet_micro_steps && hooks->has_quiet_micro_steps(job);
    forward_layers(job);
    forward_and_loss(job);
    head_backward(job);
    for (int quiet = 0; quiet < (quiet_ones ? 2 : 1); quiet++) {
        layers_backward(job, quiet);
        position_backward(job, quiet);
        embedding_backward(job, quiet);
    }
    if (hooks->within_buckets)
        hooks->within_buckets(job);
    optimizer_step(job);
}
