/* Peak memory where parameters are sharded and gathered unit by unit: FSDP2 and FSDP1.
 *
 * Notation: N shard ranks, P elements of a unit, R of the root (embeddings, final norm, head), w bytes of a gathered
 * weight, c of a gradient as autograd makes it, r of the reduce dtype, g of a sharded gradient.
 *
 * FSDP2 as it runs (PyTorch _fully_shard/_fsdp_param_group.py, checked against allocation traces of 2.11):
 *   forward   the all-gather buffer of unit i [w P] is copied out into the weights U(i) [w P] and kept until unit i+1
 *             has been copied out; U(i) is freed after unit i unless it is kept for backward (shard_grad_op)
 *   loss      with resharding nothing is gathered
 *   backward  root gathered again and kept; unit i: U(i), the prefetched all-gather buffer of i-1, gradients in c
 *             growing to c P, and the reduce-scatter input of i+1 [r P], which is freed only when unit i is reduced
 *   after i   U(i) freed, input of i+1 freed, input of i made [r P] beside c P of gradients, gradients freed, output
 *             g P/N stays as .grad
 *   root      last: gradients of embedding and head in c, then its reduce-scatter input r R */
#include "memory_instant.h"

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t layers_before(const struct dtp_memory_job *job, uint64_t unit)
{
    return unit * job->units.layers_per_unit;
}

static uint64_t layers_in(const struct dtp_memory_job *job, uint64_t unit)
{
    return unit + 1 == job->units.count ? job->units.last_unit_layers : job->units.layers_per_unit;
}

/* Layers whose units come after `unit`. */
static uint64_t layers_above(const struct dtp_memory_job *job, uint64_t unit)
{
    return job->transformer->layers - layers_before(job, unit) - layers_in(job, unit);
}

static bool keeps_weights(const struct dtp_memory_job *job)
{
    return !job->plan->reshard_after_forward;
}

/* Copies out of a flat buffer: FSDP2 only. FSDP1 gathers straight into the flat parameter, ours into the weights. */
static bool copies_out(const struct dtp_memory_job *job)
{
    return job->plan->runtime == DTP_RUNTIME_TORCH && !job->plan->fsdp1;
}

/* ---- gathered weights ------------------------------------------------------------------------------------------ */

/* The same elements stand as weights or in the flat buffer that they are gathered into. */
struct gathered_terms {
    enum dtp_memory_term layers, fp8, root;
};
static const struct gathered_terms weights = {DTP_TERM_GATHERED_LAYERS, DTP_TERM_GATHERED_FP8, DTP_TERM_GATHERED_ROOT};
static const struct gathered_terms flat = {DTP_TERM_FLAT_LAYERS, DTP_TERM_FLAT_FP8, DTP_TERM_FLAT_ROOT};

/* Elements of a layer, of its matrices and of the root as they are gathered and reduced: FSDP2 pads each parameter to
 * equal shards, in flat buffers and in what is copied out of them. */
static uint64_t layer_elements(const struct dtp_memory_job *job)
{
    return copies_out(job) ? job->units.layer_shard * job->units.ranks : job->units.layer;
}

static uint64_t matrix_elements(const struct dtp_memory_job *job)
{
    return copies_out(job) ? job->units.layer_matmul_shard * job->units.ranks : job->units.layer_matmul;
}

static uint64_t root_elements(const struct dtp_memory_job *job)
{
    return copies_out(job) ? job->units.root_shard * job->units.ranks : job->units.root;
}

/* Weights of `layers` layers: matrices in the dtype on the wire (fp8 all-gather: 1 byte), the rest in compute. */
static void add_layers(const struct dtp_memory_job *job, struct dtp_instant *instant,
                       const struct gathered_terms *terms, uint64_t layers)
{
    dtp_instant_add(instant, terms->layers, layers, layer_elements(job), job->bytes.compute);
    if (job->bytes.gathered != job->bytes.compute)
        dtp_instant_take(instant, terms->fp8, layers, matrix_elements(job), job->bytes.compute - job->bytes.gathered);
}

/* Embeddings, final norm and head; without units the layers too. */
static void add_root(const struct dtp_memory_job *job, struct dtp_instant *instant, const struct gathered_terms *terms)
{
    uint64_t layers = job->units.count ? 0 : job->transformer->layers;
    if (layers)
        add_layers(job, instant, terms, layers);
    dtp_instant_add(instant, terms->root, 1, root_elements(job) - layers * layer_elements(job), job->bytes.compute);
}

/* All layers where they stay gathered after forward; without units they are in the root. */
static void add_kept_layers(const struct dtp_memory_job *job, struct dtp_instant *instant)
{
    if (keeps_weights(job) && job->units.count)
        add_layers(job, instant, &weights, job->transformer->layers);
}

/* reshard_after_forward=n: what this rank keeps of `layers` layers, and of the root, from forward to backward. */
static void add_post_forward(const struct dtp_memory_job *job, struct dtp_instant *instant, uint64_t layers, bool root)
{
    uint64_t group = job->plan->reshard_group;
    if (!group)
        return;
    if (job->units.count)
        dtp_instant_add(instant, DTP_TERM_POST_FORWARD_LAYERS, layers, layer_elements(job) / group, job->bytes.compute);
    if (root && !dtp_plan_keeps_root(job->plan))
        dtp_instant_add(instant, DTP_TERM_POST_FORWARD_ROOT, 1, root_elements(job) / group, job->bytes.compute);
}

/* Rank's part of what stands in the flat buffer, cast to the wire's dtype before it is gathered; none where it is
 * stored in that dtype. */
static void add_cast_shard(const struct dtp_memory_job *job, struct dtp_instant *instant)
{
    if (job->bytes.params != job->bytes.compute)
        dtp_instant_add(instant, DTP_TERM_CAST_SHARD, 1, 1, instant->bytes[DTP_OWNER_GATHER] / job->units.ranks);
}

/* The root's stored shard on its way up from the host (CPUOffloadPolicy), on the device until it has been cast. */
static void add_uploaded_shard(const struct dtp_memory_job *job, struct dtp_instant *instant)
{
    if (job->plan->offload == DTP_OFFLOAD_PARAMS)
        dtp_instant_add(instant, DTP_TERM_UPLOADED_SHARD, 1, 1,
                        dtp_divide_up(job->units.root * job->bytes.params, job->units.ranks));
}

/* The same of some layers, with what it is cast into where that is narrower. */
static void add_uploaded_layers(const struct dtp_memory_job *job, struct dtp_instant *instant, uint64_t layers)
{
    bool casts = job->bytes.params != job->bytes.compute;
    dtp_instant_add(instant, DTP_TERM_UPLOADED_LAYERS, layers, job->units.layer_shard,
                    job->bytes.params + (casts ? job->bytes.compute : 0));
}

/* Flat buffers of `count` units from `first` on; the last unit may have fewer layers. */
static void add_units(const struct dtp_memory_job *job, struct dtp_instant *instant, uint64_t first, uint64_t count)
{
    uint64_t end = smaller(first + count, job->units.count);
    add_layers(job, instant, &flat,
               smaller(layers_before(job, end), job->transformer->layers) - layers_before(job, first));
}

/* FSDP2 gathers on a stream of its own. Called once, when all of the gather buffers have been added. */
static void gather_elsewhere(const struct dtp_memory_job *job, struct dtp_instant *instant)
{
    if (copies_out(job))
        instant->other_streams += instant->bytes[DTP_OWNER_GATHER];
}

/* ---- gradients ------------------------------------------------------------------------------------------------- */

/* Gradients are kept whole between micro-steps when they are not reduced in each. */
static bool accumulates_whole(const struct dtp_memory_job *job)
{
    return job->plan->accumulate > 1 && !job->plan->accumulate_sync;
}

/* FSDP2, ZeRO-3 and ours keep them in the reduce dtype, FSDP1 as they are made. */
static void add_whole_gradients(const struct dtp_memory_job *job, struct dtp_instant *instant, uint64_t elements)
{
    if (!accumulates_whole(job))
        return;
    if (job->plan->fsdp1)
        dtp_instant_add(instant, DTP_TERM_GRADS_AS_MADE, 1, elements, job->bytes.compute);
    else
        dtp_instant_add(instant, DTP_TERM_GRADS_WHOLE, 1, elements, job->bytes.reduce);
}

static void add_sharded_gradients(const struct dtp_memory_job *job, struct dtp_instant *instant)
{
    dtp_instant_add(instant, DTP_TERM_GRADS_SHARD, 1, job->state.grads_elements, job->bytes.grads);
}

static bool accumulates_shards(const struct dtp_memory_job *job)
{
    return job->plan->accumulate > 1 && job->plan->accumulate_sync;
}

/* State at rest and the gradients that stand before the last micro-step's backward. */
static struct dtp_instant before_backward(const struct dtp_memory_job *job)
{
    struct dtp_instant instant = job->at_rest;
    add_whole_gradients(job, &instant, job->units.total);
    if (accumulates_shards(job))
        add_sharded_gradients(job, &instant);
    return instant;
}

/* FSDP: state at rest and gradients when the last `layers` layers have been reduced in the last micro-step. They are
 * outputs of the reduce stream, unless whole gradients are accumulated on the compute stream. */
static struct dtp_instant in_backward(const struct dtp_memory_job *job, uint64_t layers)
{
    struct dtp_instant instant = job->at_rest;
    if (accumulates_shards(job)) { /* already there; only the newest output stands beside them until it is added */
        add_sharded_gradients(job, &instant);
    } else {
        add_whole_gradients(job, &instant, job->units.total - layers * job->units.layer);
        if (job->state.grads_elements)
            dtp_instant_add(&instant, DTP_TERM_GRADS_REDUCED, layers, job->units.layer_shard, job->bytes.grads);
    }
    if (!accumulates_whole(job))
        instant.other_streams += instant.bytes[DTP_OWNER_GRADS];
    return instant;
}

/* Gradients as autograd makes them. */
static void add_made(const struct dtp_memory_job *job, struct dtp_instant *instant, enum dtp_memory_term term,
                     uint64_t count, uint64_t elements)
{
    dtp_instant_add(instant, term, count, elements, job->bytes.compute);
}

static void add_reduce_input(const struct dtp_memory_job *job, struct dtp_instant *instant, uint64_t layers)
{
    dtp_instant_add(instant, DTP_TERM_REDUCE_INPUT, layers, layer_elements(job), job->bytes.reduce);
}

/* ---- FSDP ------------------------------------------------------------------------------------------------------ */

/* Units whose flat buffers stand beside that of unit `unit` because several are gathered ahead. */
static uint64_t ahead_in_forward(const struct dtp_memory_job *job, uint64_t unit)
{
    uint64_t depth = job->plan->prefetch_depth;
    return depth > 1 ? smaller(depth, job->units.count - 1 - unit) : 0;
}

static struct dtp_instant in_forward(const struct dtp_memory_job *job, uint64_t unit)
{
    struct dtp_instant instant = before_backward(job);
    uint64_t end = layers_before(job, unit) + layers_in(job, unit);
    add_root(job, &instant, &weights);
    add_layers(job, &instant, &weights, keeps_weights(job) ? end : layers_in(job, unit));
    add_post_forward(job, &instant, layers_before(job, unit), false);
    return instant;
}

/* The weights of a unit are copied out of its flat buffer while that of the unit before, or of the root, still stands.
 */
static void forward_copy_out(struct dtp_memory_job *job, uint64_t unit)
{
    struct dtp_instant instant = in_forward(job, unit);
    uint64_t ahead = unit ? ahead_in_forward(job, unit - 1) : 0;
    add_units(job, &instant, unit ? unit - 1 : 0, (unit ? 1 : 0) + (ahead ? ahead : 1));
    if (!unit)
        add_root(job, &instant, &flat);
    if (job->plan->offload == DTP_OFFLOAD_PARAMS && (!ahead || !unit))
        add_uploaded_layers(job, &instant, layers_in(job, unit));
    gather_elsewhere(job, &instant);
    dtp_add_saved(job, &instant, layers_before(job, unit));
    dtp_add_input(job, &instant);
    dtp_memory_consider(job, DTP_PHASE_FORWARD_END, &instant);
}

/* The worst kernel of the forward of layer `layer`. */
static void forward_layer(struct dtp_memory_job *job, uint64_t layer)
{
    uint64_t unit = layer / job->units.layers_per_unit;
    struct dtp_instant instant = in_forward(job, unit);
    if (copies_out(job))
        add_units(job, &instant, unit, 1 + ahead_in_forward(job, unit));
    gather_elsewhere(job, &instant);
    dtp_add_saved(job, &instant, layer);
    dtp_add_block(job, &instant, &job->places.forward[dtp_layer_checkpointed(job, layer)]);
    dtp_memory_consider(job, DTP_PHASE_FORWARD_END, &instant);
}

/* More stands from layer to layer, so of each kind the last is worst; where several units are gathered ahead, also the
 * last with all of those. */
static void forward_layers(struct dtp_memory_job *job)
{
    uint64_t count = job->units.count, depth = job->plan->prefetch_depth;
    uint64_t ends[2] = {job->transformer->layers, count > depth ? layers_before(job, count - depth) : 0};
    for (int i = 0; i < (depth > 1 ? 2 : 1); i++) {
        uint64_t layers[DTP_LAYER_KINDS];
        int kinds = dtp_last_layers(job, ends[i], layers);
        for (int k = 0; k < kinds; k++)
            forward_layer(job, layers[k]);
    }
    if (!copies_out(job))
        return;
    const uint64_t units[] = {0, 1, depth > 1 && count > depth ? count - depth : 0, count > 2 ? count - 2 : 0,
                              count - 1};
    for (int i = 0; i < 5; i++)
        if (units[i] < count && (!i || units[i]))
            forward_copy_out(job, units[i]);
}

/* Without units of layers: forward holds all weights. */
static void whole_forward(struct dtp_memory_job *job)
{
    struct dtp_instant standing = before_backward(job);
    uint64_t layers[DTP_LAYER_KINDS];
    int kinds = dtp_last_layers(job, job->transformer->layers, layers);
    add_root(job, &standing, &weights);
    if (copies_out(job))
        add_root(job, &standing, &flat);
    gather_elsewhere(job, &standing);
    for (int i = 0; i < kinds; i++) {
        struct dtp_instant instant = standing;
        dtp_add_saved(job, &instant, layers[i]);
        dtp_add_block(job, &instant, &job->places.forward[dtp_layer_checkpointed(job, layers[i])]);
        dtp_memory_consider(job, DTP_PHASE_FORWARD_END, &instant);
    }
}

/* Start of forward: the root's flat buffer beside the weights copied out of it; a cast shard has gone by then, unless
 * it was uploaded. End of forward: root, the last unit's flat buffer (a single unit's stays as well), all activations,
 * and logits where the model makes them: head and loss in chunks come after it. */
static void fsdp_forward(struct dtp_memory_job *job)
{
    struct dtp_instant end = before_backward(job);
    add_root(job, &end, &weights);
    struct dtp_instant start = end;
    if (copies_out(job)) {
        add_root(job, &start, &flat);
        if (job->plan->offload != DTP_OFFLOAD_NONE) {
            add_cast_shard(job, &start);
            add_uploaded_shard(job, &start);
        }
        if (job->units.count)
            add_layers(job, &end, &flat, job->units.last_unit_layers);
        else
            add_root(job, &end, &flat);
    }
    gather_elsewhere(job, &start);
    dtp_memory_consider(job, DTP_PHASE_FORWARD_END, &start);
    if (job->units.count)
        forward_layers(job);
    else
        whole_forward(job);

    add_kept_layers(job, &end);
    add_post_forward(job, &end, job->transformer->layers, true); /* the root's, before its weights go */
    gather_elsewhere(job, &end);
    dtp_add_all_saved(job, &end);
    if (dtp_plan_loss(job->plan) != DTP_LOSS_CHUNKED)
        dtp_instant_add_tokens(job, &end, DTP_TERM_LOGITS, 1, job->activations.logits);
    dtp_memory_consider(job, DTP_PHASE_FORWARD_END, &end);
}

static void fsdp_loss(struct dtp_memory_job *job)
{
    bool chunked = dtp_plan_loss(job->plan) == DTP_LOSS_CHUNKED;
    struct dtp_instant instant = before_backward(job);
    dtp_add_all_saved(job, &instant);
    dtp_instant_add_tokens(job, &instant, DTP_TERM_LOSS, 1, job->activations.loss);
    add_kept_layers(job, &instant);
    add_post_forward(job, &instant, job->transformer->layers, !chunked);
    /* FSDP1 never frees its root after forward; FSDP2 not when it was left to decide */
    if (keeps_weights(job) || chunked || job->plan->fsdp1 || job->plan->keep_root)
        add_root(job, &instant, &weights);
    if (chunked)
        add_made(job, &instant, DTP_TERM_HEAD_GRADIENT, 1, job->units.embedding);
    dtp_memory_consider(job, DTP_PHASE_LOSS, &instant);
}

/* Backward of the head gathers again: first the root, then the next unit's flat buffer with the cast shard that it is
 * gathered from, whichever is more. */
static void add_gathering(const struct dtp_memory_job *job, struct dtp_instant *instant)
{
    struct dtp_instant root = *instant, unit = *instant;
    add_root(job, &root, &flat);
    add_post_forward(job, &root, 0, true);
    if (job->plan->prefetch) {
        add_layers(job, &unit, &flat, job->units.last_unit_layers);
        add_cast_shard(job, &unit);
    }
    bool again = root.bytes[DTP_OWNER_GATHER] > unit.bytes[DTP_OWNER_GATHER] && !job->plan->keep_root;
    *instant = again ? root : unit;
    gather_elsewhere(job, instant);
}

/* The whole model's shard on its way up from the host, before anything else of it is there. */
static void whole_upload(struct dtp_memory_job *job)
{
    bool casts = job->bytes.params != job->bytes.compute;
    if (job->units.count || !copies_out(job) || job->plan->offload != DTP_OFFLOAD_PARAMS || keeps_weights(job) ||
        job->plan->keep_root)
        return;
    struct dtp_instant instant = before_backward(job);
    dtp_add_all_saved(job, &instant);
    dtp_instant_add_tokens(job, &instant, DTP_TERM_LOGITS_GRADIENT, 1, job->activations.logits_gradient);
    dtp_instant_add(&instant, DTP_TERM_UPLOADED_LAYERS, 1, job->units.root_shard,
                    job->bytes.params + (casts ? job->bytes.compute : 0));
    gather_elsewhere(job, &instant);
    dtp_memory_consider(job, DTP_PHASE_EARLY_BACKWARD, &instant);
}

/* Backward of the head: the root gathered again (flat buffer and copy); then the next unit's flat buffer, with the
 * head's gradient and the hidden one. */
static void fsdp_head(struct dtp_memory_job *job)
{
    struct dtp_instant instant = before_backward(job);
    dtp_add_all_saved(job, &instant);
    dtp_instant_add_tokens(job, &instant, DTP_TERM_LOGITS_GRADIENT, 1, job->activations.logits_gradient);
    add_root(job, &instant, &weights);
    add_kept_layers(job, &instant);
    add_post_forward(job, &instant, job->transformer->layers, false);
    bool chunked = dtp_plan_loss(job->plan) == DTP_LOSS_CHUNKED; /* the head's gradient was made in forward */
    if (chunked)
        add_made(job, &instant, DTP_TERM_HEAD_GRADIENT, 1, job->units.embedding);
    struct dtp_instant gathering = instant;
    if (copies_out(job) && !keeps_weights(job)) {
        add_gathering(job, &gathering);
        if (job->plan->prefetch)
            add_layers(job, &instant, &flat, job->units.last_unit_layers);
        gather_elsewhere(job, &instant);
    }
    if (!chunked)
        add_made(job, &instant, DTP_TERM_HEAD_GRADIENT, 1, job->units.embedding);
    if (job->plan->fsdp1 && !keeps_weights(job) && job->plan->prefetch && job->units.count)
        add_layers(job, &instant, &weights, job->units.last_unit_layers);
    dtp_instant_add_tokens(job, &instant, DTP_TERM_STREAM_GRADIENT, 1, job->activations.gradient);
    dtp_memory_consider(job, DTP_PHASE_EARLY_BACKWARD, &gathering);
    dtp_memory_consider(job, DTP_PHASE_EARLY_BACKWARD, &instant);
}

/* Between the first and the last of at least three micro-steps whole gradients stand for all layers, and none is
 * reduced. */
static bool has_quiet_micro_steps(const struct dtp_memory_job *job)
{
    return accumulates_whole(job) && job->plan->accumulate > 2;
}

/* Flat buffers of the units below `unit` that are gathered ahead in backward. */
static void add_ahead(const struct dtp_memory_job *job, struct dtp_instant *instant, uint64_t unit)
{
    uint64_t ahead = job->plan->prefetch ? smaller(job->plan->prefetch_depth, unit) : 0;
    add_units(job, instant, unit - ahead, ahead);
}

/* What stands whenever backward is in unit `unit`, in a micro-step that reduces or not; the reduce-scatter input of the
 * unit above goes when this one is reduced, FSDP1 frees it in the order of its host. */
static struct dtp_instant in_unit(const struct dtp_memory_job *job, uint64_t unit, bool reduces)
{
    struct dtp_instant instant = reduces ? in_backward(job, layers_above(job, unit)) : before_backward(job);
    add_root(job, &instant, &weights);
    add_layers(job, &instant, &weights, (keeps_weights(job) ? layers_before(job, unit) : 0) + layers_in(job, unit));
    add_made(job, &instant, DTP_TERM_HEAD_GRADIENT, 1, job->units.embedding);
    if (reduces && unit + 1 < job->units.count && !job->plan->fsdp1)
        add_reduce_input(job, &instant, layers_in(job, unit + 1));
    return instant;
}

/* The weights of a unit are copied out of its flat buffer, beside those that were gathered ahead of it. */
static void backward_copy_out(struct dtp_memory_job *job, enum dtp_phase phase, uint64_t unit, bool reduces)
{
    struct dtp_instant instant = in_unit(job, unit, reduces);
    uint64_t standing =
        job->plan->prefetch ? smaller(unit + 1 < job->units.count ? job->plan->prefetch_depth : 1, unit + 1) : 1;
    add_units(job, &instant, unit + 1 - standing, standing);
    add_post_forward(job, &instant, layers_before(job, unit) + layers_in(job, unit), false);
    gather_elsewhere(job, &instant);
    dtp_add_saved(job, &instant, layers_before(job, unit) + layers_in(job, unit));
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
    add_made(job, &instant, DTP_TERM_LAYER_GRADIENTS, finished, job->units.layer);
    add_made(job, &instant, DTP_TERM_BLOCK_GRADIENTS, 1, place->finished + place->current);
    dtp_memory_consider(job, phase, &instant);
}

/* Gradients stand as they are made until the unit is through. */
static const struct dtp_block_place *worst_place(const struct dtp_memory_job *job)
{
    int64_t c = (int64_t)job->bytes.compute;
    struct dtp_place_weights bytes = {.tokens = job->tokens, .finished = c, .current = {c, c, c}};
    return dtp_block_worst(&job->places, &bytes);
}

static void backward_layer(struct dtp_memory_job *job, enum dtp_phase phase, const struct dtp_instant *standing,
                           uint64_t layer, uint64_t finished, const struct dtp_block_place *worst)
{
    backward_place(job, phase, standing, layer, finished, worst);
    if (dtp_layer_recomputed(job, layer))
        backward_place(job, phase, standing, layer, finished, &job->places.replay);
}

/* From layer to layer of a unit what is saved falls and gradients grow, so the first and the last of each kind are
 * worst. */
static void fsdp_unit_in(struct dtp_memory_job *job, enum dtp_phase phase, uint64_t unit, bool reduces,
                         const struct dtp_block_place *worst)
{
    struct dtp_instant instant = in_unit(job, unit, reduces);
    uint64_t begin = layers_before(job, unit), end = begin + layers_in(job, unit), layers[2 * DTP_LAYER_KINDS];
    if (!keeps_weights(job))
        add_ahead(job, &instant, unit);
    add_post_forward(job, &instant, begin, false);
    gather_elsewhere(job, &instant);
    int kinds = dtp_outer_layers(job, begin, end, layers);
    for (int i = 0; i < kinds; i++)
        backward_layer(job, phase, &instant, layers[i], end - 1 - layers[i], worst);
}

/* Unit `unit` is reduced: its gradients in c and, beside them, the reduce-scatter input. FSDP1 concatenates its views'
 * gradients into a flat one first, so they stand twice, beside weights that go before anything is cast; FSDP2's
 * accumulated ones have taken the new ones in before, and stand in their place. */
static void fsdp_reduce(struct dtp_memory_job *job, enum dtp_phase phase, uint64_t unit, bool reduces)
{
    const struct dtp_units *u = &job->units;
    uint64_t layers = layers_in(job, unit);
    struct dtp_instant instant = reduces ? in_backward(job, layers_above(job, unit)) : before_backward(job);
    dtp_add_saved(job, &instant, layers_before(job, unit));
    add_root(job, &instant, &weights);
    if (keeps_weights(job))
        add_layers(job, &instant, &weights, layers_before(job, unit) + (job->plan->fsdp1 ? layers : 0));
    else if (!copies_out(job))
        add_layers(job, &instant, &weights, layers + (unit && job->plan->prefetch ? u->layers_per_unit : 0));
    else
        add_ahead(job, &instant, unit);
    add_post_forward(job, &instant, layers_before(job, unit), false);
    gather_elsewhere(job, &instant);
    add_made(job, &instant, DTP_TERM_HEAD_GRADIENT, 1, u->embedding);
    if (job->plan->fsdp1 || !accumulates_whole(job))
        add_made(job, &instant, DTP_TERM_LAYER_GRADIENTS, layers, u->layer);
    if (job->plan->fsdp1)
        add_made(job, &instant, DTP_TERM_FLAT_GRADIENTS, layers, u->layer);
    else
        add_reduce_input(job, &instant, layers);
    dtp_instant_add_tokens(job, &instant, DTP_TERM_STREAM_GRADIENT, 1, job->activations.gradient);
    dtp_memory_consider(job, phase, &instant);
}

/* The result of a reduction beside its input, and what it is cast into; gradients and weights of the unit have gone,
 * and accumulated gradients were larger. */
static void fsdp_reduced(struct dtp_memory_job *job, enum dtp_phase phase, uint64_t unit)
{
    const struct dtp_units *u = &job->units;
    uint64_t layers = layers_in(job, unit), casts = job->bytes.reduce != job->bytes.grads ? job->bytes.grads : 0;
    if (accumulates_whole(job) || (casts + job->bytes.reduce) / u->ranks < job->bytes.compute)
        return;
    struct dtp_instant instant = in_backward(job, layers_above(job, unit));
    dtp_add_saved(job, &instant, layers_before(job, unit));
    add_root(job, &instant, &weights);
    if (keeps_weights(job))
        add_layers(job, &instant, &weights, layers_before(job, unit));
    else if (copies_out(job))
        add_ahead(job, &instant, unit);
    else
        add_layers(job, &instant, &weights, unit && job->plan->prefetch ? u->layers_per_unit : 0);
    add_post_forward(job, &instant, layers_before(job, unit), false);
    gather_elsewhere(job, &instant);
    add_made(job, &instant, DTP_TERM_HEAD_GRADIENT, 1, job->units.embedding);
    add_reduce_input(job, &instant, layers);
    dtp_instant_add(&instant, DTP_TERM_REDUCED_OUTPUT, layers, u->layer_shard, job->bytes.reduce + casts);
    dtp_instant_add_tokens(job, &instant, DTP_TERM_STREAM_GRADIENT, 1, job->activations.gradient);
    dtp_memory_consider(job, phase, &instant);
}

static void root_reduced(struct dtp_memory_job *job, struct dtp_instant instant)
{
    if (job->units.ranks > 1 || accumulates_whole(job))
        return;
    dtp_instant_add(&instant, DTP_TERM_ROOT_INPUT, 1, root_elements(job), job->bytes.reduce);
    dtp_instant_add(&instant, DTP_TERM_REDUCED_OUTPUT, 1, job->units.root_shard, job->bytes.reduce);
    dtp_memory_consider(job, DTP_PHASE_LATE_BACKWARD, &instant);
}

/* The embedding's gradient, made with the root still gathered; a tied head's stands apart until the two are added. */
static void embedding_backward(struct dtp_memory_job *job, struct dtp_instant instant, bool reduces)
{
    const struct dtp_units *u = &job->units;
    add_root(job, &instant, &weights);
    if (u->count) {
        add_made(job, &instant, DTP_TERM_HEAD_EMBEDDING_GRADIENTS, 2, u->embedding);
        add_made(job, &instant, DTP_TERM_POSITION_GRADIENT, 1, u->position);
        if (reduces && !job->plan->fsdp1)
            add_reduce_input(job, &instant, u->layers_per_unit);
    } else {
        add_made(job, &instant, DTP_TERM_MODEL_GRADIENTS, 1, u->total);
        add_made(job, &instant, DTP_TERM_HEAD_GRADIENT, u->head ? 0 : 1, u->embedding);
    }
    dtp_add_embedding_backward(job, &instant);
    dtp_memory_consider(job, DTP_PHASE_LATE_BACKWARD, &instant);
}

/* The root's gradients beside what they are reduced from. */
static void root_reduce(struct dtp_memory_job *job, struct dtp_instant instant)
{
    const struct dtp_units *u = &job->units;
    if (job->plan->fsdp1 || !accumulates_whole(job))
        add_made(job, &instant, DTP_TERM_ROOT_GRADIENTS, 1, u->root);
    if (job->plan->fsdp1) { /* views' gradients and the flat one, before the weights go */
        add_root(job, &instant, &weights);
        add_made(job, &instant, DTP_TERM_FLAT_GRADIENTS, 1, u->root);
    } else {
        dtp_instant_add(&instant, DTP_TERM_ROOT_INPUT, 1, root_elements(job), job->bytes.reduce);
    }
    dtp_memory_consider(job, DTP_PHASE_LATE_BACKWARD, &instant);
}

/* The root's turn, after all units. */
static void fsdp_root(struct dtp_memory_job *job)
{
    struct dtp_instant reducing = in_backward(job, job->units.count ? job->transformer->layers : 0);
    embedding_backward(job, reducing, true);
    if (has_quiet_micro_steps(job))
        embedding_backward(job, before_backward(job), false);
    root_reduced(job, reducing);
    root_reduce(job, reducing);
    if (job->plan->fsdp1 && has_quiet_micro_steps(job))
        root_reduce(job, before_backward(job));
}

/* Without units of layers the whole model is one: its backward holds all weights and, growing, all gradients. */
static void whole_backward(struct dtp_memory_job *job)
{
    struct dtp_instant instant = before_backward(job);
    const struct dtp_block_place *worst = worst_place(job);
    uint64_t all = job->transformer->layers, layers[2 * DTP_LAYER_KINDS];
    add_root(job, &instant, &weights);
    add_made(job, &instant, DTP_TERM_HEAD_GRADIENT, 1, job->units.embedding);
    int kinds = dtp_outer_layers(job, 0, all, layers);
    for (int i = 0; i < kinds; i++)
        backward_layer(job, layers[i] >= all / 2 ? DTP_PHASE_EARLY_BACKWARD : DTP_PHASE_LATE_BACKWARD, &instant,
                       layers[i], all - 1 - layers[i], worst);
}

/* Everything that can be the peak of one unit. */
static void fsdp_unit(struct dtp_memory_job *job, uint64_t unit, const struct dtp_block_place *worst)
{
    enum dtp_phase phase = 2 * unit >= job->units.count ? DTP_PHASE_EARLY_BACKWARD : DTP_PHASE_LATE_BACKWARD;
    for (int quiet = 0; quiet < (has_quiet_micro_steps(job) ? 2 : 1); quiet++) {
        fsdp_unit_in(job, phase, unit, !quiet, worst);
        if (copies_out(job) && !keeps_weights(job))
            backward_copy_out(job, phase, unit, !quiet);
    }
    fsdp_reduce(job, phase, unit, true);
    if (job->plan->fsdp1 && has_quiet_micro_steps(job)) /* concatenated whether or not it is reduced */
        fsdp_reduce(job, phase, unit, false);
    fsdp_reduced(job, phase, unit);
}

static int add_units_of(const struct dtp_memory_job *job, uint64_t begin, uint64_t end, uint64_t *units, int count)
{
    uint64_t layers[2 * DTP_LAYER_KINDS];
    int kinds = begin < end ? dtp_outer_layers(job, layers_before(job, begin),
                                               smaller(layers_before(job, end), job->transformer->layers), layers)
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
static void fsdp_backward(struct dtp_memory_job *job)
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
        fsdp_unit(job, units[i], worst);
}

/* Nothing is gathered any more. */
static void optimizer_step(struct dtp_memory_job *job)
{
    struct dtp_instant instant = job->at_rest;
    add_sharded_gradients(job, &instant);
    instant.other_streams += job->state.grads;
    dtp_add_foreach(job, &instant, job->units.total_shard);
    dtp_memory_consider(job, DTP_PHASE_STEP, &instant);
}

void dtp_memory_fsdp(struct dtp_memory_job *job)
{
    fsdp_forward(job);
    fsdp_loss(job);
    whole_upload(job);
    fsdp_head(job);
    if (job->units.count)
        fsdp_backward(job);
    else
        whole_backward(job);
    fsdp_root(job);
    optimizer_step(job);
}
