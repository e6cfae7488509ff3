/* Peak memory where parameters are sharded and gathered unit by unit: FSDP2, FSDP1, ZeRO-3.
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
#include "closed_form_deepspeed.h"
#include "deepspeed.h"
#include "memory_instant.h"
#include "zeropp.h"

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

/* Units gathered ahead of unit `unit` of `left` that are still to come, as layers. */
static uint64_t layers_ahead(const struct dtp_memory_job *job, uint64_t left)
{
    return job->plan->prefetch ? smaller(job->plan->prefetch_depth, left) * job->units.layers_per_unit : 0;
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

/* Several units gathered ahead at the end of the forward of unit `unit`: their flat buffers beside its own, and its weights. */
static void fsdp_forward_unit(struct dtp_memory_job *job, uint64_t unit)
{
    struct dtp_instant instant = before_backward(job);
    uint64_t end = layers_before(job, unit) + layers_in(job, unit), left = job->units.count - 1 - unit;
    add_root(job, &instant, &weights);
    add_layers(job, &instant, &weights, keeps_weights(job) ? end : layers_in(job, unit));
    add_post_forward(job, &instant, layers_before(job, unit), false);
    add_layers(job, &instant, &flat, job->units.layers_per_unit + layers_ahead(job, left));
    gather_elsewhere(job, &instant);
    dtp_add_saved(job, &instant, end);
    dtp_memory_consider(job, DTP_PHASE_FORWARD_END, &instant);
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
            add_layers(job, &end, &flat, job->units.layers_per_unit);
        else
            add_root(job, &end, &flat);
    }
    gather_elsewhere(job, &start);
    dtp_memory_consider(job, DTP_PHASE_FORWARD_END, &start);
    if (job->plan->prefetch_depth > 1 && copies_out(job) && job->units.count) {
        uint64_t count = job->units.count;
        fsdp_forward_unit(job, 0);
        fsdp_forward_unit(job, count > job->plan->prefetch_depth ? count - 1 - job->plan->prefetch_depth : 0);
    }

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
        add_layers(job, &unit, &flat, job->units.layers_per_unit);
        add_cast_shard(job, &unit);
    }
    bool again = root.bytes[DTP_OWNER_GATHER] > unit.bytes[DTP_OWNER_GATHER] && !job->plan->keep_root;
    *instant = again ? root : unit;
    gather_elsewhere(job, instant);
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
            add_layers(job, &instant, &flat, job->units.layers_per_unit);
        gather_elsewhere(job, &instant);
    }
    if (!chunked)
        add_made(job, &instant, DTP_TERM_HEAD_GRADIENT, 1, job->units.embedding);
    dtp_instant_add_tokens(job, &instant, DTP_TERM_STREAM_GRADIENT, 1, job->activations.gradient);
    dtp_memory_consider(job, DTP_PHASE_EARLY_BACKWARD, &gathering);
    dtp_memory_consider(job, DTP_PHASE_EARLY_BACKWARD, &instant);
}

/* Between the first and the last of at least three micro-steps whole gradients stand for all layers, and none is reduced. */
static bool has_quiet_micro_steps(const struct dtp_memory_job *job)
{
    return accumulates_whole(job) && job->plan->accumulate > 2;
}

/* The gradients of a layer that are there when its backward has come to `place`. */
static void add_layer_gradients(const struct dtp_memory_job *job, struct dtp_instant *instant,
                                enum dtp_backward_place place)
{
    const struct dtp_units *u = &job->units;
    if (place == DTP_IN_MLP)
        add_made(job, instant, DTP_TERM_DOWN_GRADIENT, 1, u->down);
    else
        add_made(job, instant, DTP_TERM_OTHER_GRADIENTS, 1, u->layer_matmul - u->qkv);
}

static enum dtp_backward_place worst_place(const struct dtp_memory_job *job)
{
    const struct dtp_units *u = &job->units;
    return dtp_worst_place(job, u->down * job->bytes.compute, (u->layer_matmul - u->qkv) * job->bytes.compute);
}

/* Worst instant in the backward of unit `unit` when `finished` of its layers have gone through, in a micro-step that
 * reduces or not. */
static void fsdp_unit_in(struct dtp_memory_job *job, enum dtp_phase phase, uint64_t unit, uint64_t finished, bool reduces)
{
    enum dtp_backward_place place = worst_place(job);
    const struct dtp_units *u = &job->units;
    uint64_t end = layers_before(job, unit) + layers_in(job, unit);
    struct dtp_instant instant = reduces ? in_backward(job, layers_above(job, unit)) : before_backward(job);
    dtp_add_layer_backward_at(job, &instant, end - 1 - finished, place);
    add_root(job, &instant, &weights);
    add_layers(job, &instant, &weights, keeps_weights(job) ? end : layers_in(job, unit));
    if (!keeps_weights(job))
        add_layers(job, &instant, &flat, layers_ahead(job, unit));
    add_post_forward(job, &instant, layers_before(job, unit), false);
    gather_elsewhere(job, &instant);
    add_made(job, &instant, DTP_TERM_HEAD_GRADIENT, 1, u->embedding);
    add_made(job, &instant, DTP_TERM_LAYER_GRADIENTS, finished, u->layer);
    add_layer_gradients(job, &instant, place);
    if (reduces && unit + 1 < u->count && !job->plan->fsdp1) /* FSDP1 frees it in the order of its host */
        add_reduce_input(job, &instant, layers_in(job, unit + 1));
    dtp_memory_consider(job, phase, &instant);
}

static void fsdp_unit(struct dtp_memory_job *job, enum dtp_phase phase, uint64_t unit, uint64_t finished)
{
    fsdp_unit_in(job, phase, unit, finished, true);
    if (has_quiet_micro_steps(job))
        fsdp_unit_in(job, phase, unit, finished, false);
}

/* Unit `unit` is reduced: its gradients in c and, beside them, the reduce-scatter input. FSDP1 concatenates its views'
 * gradients into a flat one first, so they stand twice, beside weights that go before anything is cast; FSDP2's
 * accumulated ones have taken the new ones in before, and stand in their place. */
static void fsdp_reduce(struct dtp_memory_job *job, enum dtp_phase phase, uint64_t unit)
{
    const struct dtp_units *u = &job->units;
    uint64_t layers = layers_in(job, unit);
    struct dtp_instant instant = in_backward(job, layers_above(job, unit));
    dtp_add_saved(job, &instant, layers_before(job, unit));
    add_root(job, &instant, &weights);
    if (keeps_weights(job))
        add_layers(job, &instant, &weights, layers_before(job, unit) + (job->plan->fsdp1 ? layers : 0));
    else if (!copies_out(job))
        add_layers(job, &instant, &weights, layers + (unit && job->plan->prefetch ? u->layers_per_unit : 0));
    else
        add_layers(job, &instant, &flat, layers_ahead(job, unit));
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

/* On one rank, the result of a reduction is as large as its input; gradients and weights of the unit have gone. With
 * more ranks it is no larger than the gradients before, and accumulated gradients were larger. */
static void fsdp_reduced(struct dtp_memory_job *job, enum dtp_phase phase, uint64_t unit)
{
    const struct dtp_units *u = &job->units;
    uint64_t layers = layers_in(job, unit);
    if (u->ranks > 1 || accumulates_whole(job))
        return;
    struct dtp_instant instant = in_backward(job, layers_above(job, unit));
    dtp_add_saved(job, &instant, layers_before(job, unit));
    add_root(job, &instant, &weights);
    if (keeps_weights(job))
        add_layers(job, &instant, &weights, layers_before(job, unit));
    else if (copies_out(job))
        add_layers(job, &instant, &flat, layers_ahead(job, unit));
    else
        add_layers(job, &instant, &weights, unit && job->plan->prefetch ? u->layers_per_unit : 0);
    add_post_forward(job, &instant, layers_before(job, unit), false);
    gather_elsewhere(job, &instant);
    add_made(job, &instant, DTP_TERM_HEAD_GRADIENT, 1, u->embedding);
    add_reduce_input(job, &instant, layers);
    dtp_instant_add(&instant, DTP_TERM_REDUCED_OUTPUT, 1, layers * u->layer_shard, job->bytes.reduce);
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

/* The root's turn, after all units: the embedding's gradient made with the root still gathered; then the root's
 * reduce-scatter input beside its gradients. */
static void fsdp_root(struct dtp_memory_job *job)
{
    const struct dtp_units *u = &job->units;
    struct dtp_instant instant = in_backward(job, u->count ? job->transformer->layers : 0);
    struct dtp_instant reducing = job->plan->fsdp1 && has_quiet_micro_steps(job) ? before_backward(job) : instant;
    root_reduced(job, reducing);
    add_root(job, &instant, &weights);
    if (u->count) {
        add_made(job, &instant, DTP_TERM_HEAD_EMBEDDING_GRADIENTS, 2, u->embedding);
        add_made(job, &instant, DTP_TERM_POSITION_GRADIENT, 1, u->position);
        if (!job->plan->fsdp1)
            add_reduce_input(job, &instant, u->layers_per_unit);
    } else {
        add_made(job, &instant, DTP_TERM_MODEL_GRADIENTS, 1, u->total);
        add_made(job, &instant, DTP_TERM_HEAD_GRADIENT, 1, u->embedding);
    }
    dtp_add_embedding_backward(job, &instant);
    dtp_memory_consider(job, DTP_PHASE_LATE_BACKWARD, &instant);

    if (job->plan->fsdp1 || !accumulates_whole(job))
        add_made(job, &reducing, DTP_TERM_ROOT_GRADIENTS, 1, u->root);
    if (job->plan->fsdp1) { /* views' gradients and the flat one, before the weights go */
        add_root(job, &reducing, &weights);
        add_made(job, &reducing, DTP_TERM_FLAT_GRADIENTS, 1, u->root);
    } else {
        dtp_instant_add(&reducing, DTP_TERM_ROOT_INPUT, 1, root_elements(job), job->bytes.reduce);
    }
    dtp_memory_consider(job, DTP_PHASE_LATE_BACKWARD, &reducing);
}

/* Without units of layers the whole model is one: its backward holds all weights and, growing, all gradients. */
static void fsdp_whole(struct dtp_memory_job *job, enum dtp_phase phase, uint64_t layer)
{
    enum dtp_backward_place place = worst_place(job);
    struct dtp_instant instant = before_backward(job);
    dtp_add_layer_backward_at(job, &instant, layer, place);
    add_root(job, &instant, &weights);
    add_made(job, &instant, DTP_TERM_HEAD_GRADIENT, 1, job->units.embedding);
    add_made(job, &instant, DTP_TERM_LAYER_GRADIENTS, job->transformer->layers - 1 - layer, job->units.layer);
    add_layer_gradients(job, &instant, place);
    dtp_memory_consider(job, phase, &instant);
}

/* Saved activations fall and gradients grow from layer to layer of a unit: its worst instant is at its first or last.
 */
static void fsdp_unit_ends(struct dtp_memory_job *job, enum dtp_phase phase, uint64_t unit)
{
    fsdp_unit(job, phase, unit, 0);
    if (layers_in(job, unit) > 1)
        fsdp_unit(job, phase, unit, layers_in(job, unit) - 1);
}

static void fsdp_backward(struct dtp_memory_job *job)
{
    uint64_t count = job->units.count;
    if (!count) {
        fsdp_whole(job, DTP_PHASE_EARLY_BACKWARD, job->transformer->layers - 1);
        fsdp_whole(job, DTP_PHASE_LATE_BACKWARD, 0);
        return;
    }
    uint64_t early = count > 1 ? count - 2 : 0, late = count > 1 ? 1 : 0;
    fsdp_unit_ends(job, DTP_PHASE_EARLY_BACKWARD, count - 1);
    fsdp_unit_ends(job, DTP_PHASE_EARLY_BACKWARD, early);
    fsdp_reduce(job, DTP_PHASE_EARLY_BACKWARD, count - 1);
    fsdp_reduced(job, DTP_PHASE_EARLY_BACKWARD, count - 1);
    fsdp_reduce(job, DTP_PHASE_EARLY_BACKWARD, early);
    fsdp_reduced(job, DTP_PHASE_EARLY_BACKWARD, early);
    fsdp_unit(job, DTP_PHASE_LATE_BACKWARD, late, 0);
    fsdp_unit_ends(job, DTP_PHASE_LATE_BACKWARD, 0);
    fsdp_reduce(job, DTP_PHASE_LATE_BACKWARD, late);
    fsdp_reduced(job, DTP_PHASE_LATE_BACKWARD, late);
    fsdp_reduce(job, DTP_PHASE_LATE_BACKWARD, 0);
    fsdp_reduced(job, DTP_PHASE_LATE_BACKWARD, 0);
}

/* ---- ZeRO-3 ----------------------------------------------------------------------------------- */

/* What stands all the time: the partition's gradients, the bucket, tensors that persist; and `live_elements`, with second
 * copies of what has been released. */
static struct dtp_instant zero3_instant(const struct dtp_memory_job *job, const struct dtp_zero3_counts *counts,
                                        uint64_t live_elements, uint64_t second_elements)
{
    struct dtp_instant instant = job->at_rest;
    add_sharded_gradients(job, &instant);
    dtp_instant_add(&instant, DTP_TERM_REDUCE_BUCKETS, 1, job->plan->reduce_bucket_size, job->bytes.grads);
    bool on_host = job->plan->offload == DTP_OFFLOAD_PARAMS || job->plan->offload == DTP_OFFLOAD_NVME;
    if (job->units.ranks > 1 || on_host)
        dtp_instant_add(&instant, DTP_TERM_PERSISTENT, 1, counts->persistent, job->bytes.compute);
    dtp_instant_add(&instant, DTP_TERM_LIVE, 1, live_elements, job->bytes.compute);
    dtp_instant_add(&instant, DTP_TERM_SECOND_COPY, 1, second_elements, job->bytes.compute);
    return instant;
}

/* A tied head's gradient waits for the embedding's in autograd. */
static void zero3_layer(struct dtp_memory_job *job, enum dtp_phase phase, struct dtp_instant instant, uint64_t layer)
{
    dtp_add_layer_backward(job, &instant, layer);
    if (!job->units.head)
        dtp_instant_add(&instant, DTP_TERM_TIED_HEAD_GRADIENT, 1, job->units.embedding, job->bytes.grads);
    dtp_memory_consider(job, phase, &instant);
}

/* Of the last micro-step: in it all that were released in one before have their copy. */
static uint64_t second_after_forward(const struct dtp_memory_job *job, const struct dtp_zero3_counts *counts)
{
    return job->plan->accumulate > 1 ? counts->second_all : counts->second_forward;
}

/* The head forward, the loss, the head backward: in chunks, its gradient is made with the loss. */
static void zero3_head(struct dtp_memory_job *job, const struct dtp_zero3_counts *counts)
{
    bool chunked = dtp_plan_loss(job->plan) == DTP_LOSS_CHUNKED;
    uint64_t forward = second_after_forward(job, counts);
    struct dtp_instant end = zero3_instant(job, counts, chunked ? 0 : counts->live_head, forward),
                       loss = zero3_instant(job, counts, chunked ? counts->live_head : counts->live_loss, forward),
                       head = zero3_instant(job, counts, counts->live_head_backward, forward);
    dtp_add_all_saved(job, &end);
    dtp_add_all_saved(job, &loss);
    dtp_add_all_saved(job, &head);
    if (!chunked)
        dtp_instant_add_tokens(job, &end, DTP_TERM_LOGITS, 1, job->activations.logits);
    dtp_instant_add_tokens(job, &loss, DTP_TERM_LOSS, 1, job->activations.loss);
    if (chunked)
        add_made(job, &loss, DTP_TERM_HEAD_GRADIENT, 1, job->units.embedding);
    dtp_instant_add_tokens(job, &head, DTP_TERM_LOGITS_GRADIENT, 1, job->activations.logits_gradient);
    add_made(job, &head, DTP_TERM_HEAD_GRADIENT, 1, job->units.embedding);
    dtp_instant_add_tokens(job, &head, DTP_TERM_STREAM_GRADIENT, 1, job->activations.gradient);
    dtp_memory_consider(job, DTP_PHASE_FORWARD_END, &end);
    dtp_memory_consider(job, DTP_PHASE_LOSS, &loss);
    dtp_memory_consider(job, DTP_PHASE_EARLY_BACKWARD, &head);
}

/* The worst bucket leaves in the middle of some layer's backward, the last with the embedding's gradient in it. */
static void zero3_buckets(struct dtp_memory_job *job, const struct dtp_zero3_counts *counts)
{
    const struct dtp_units *u = &job->units;
    uint64_t g = job->bytes.grads;
    struct dtp_deepspeed_buckets buckets;
    bool all_carried = job->plan->offload == DTP_OFFLOAD_NVME && g < 4;
    bool copied = !dtp_zeropp_reduces(job->plan, job->cluster); /* else tensor by tensor, in a fourth of the bytes */
    struct dtp_bucket_weights heaviest = {.bucket = (copied ? g : 0) + (all_carried ? 4 / u->ranks : 0), .next = g, .ranks = u->ranks, .live = job->bytes.compute, .live_last = counts->live_late,
                                         .live_layer = u->layer, .live_most = counts->live_early};
    dtp_memory_buckets(job, &heaviest, &buckets);
    struct dtp_instant worst = zero3_instant(job, counts, buckets.worst_live, counts->second_all),
                       last = zero3_instant(job, counts, 0, counts->second_all);
    dtp_add_saved_at_bucket(job, &buckets, &worst);
    if (buckets.count > 1) {
        dtp_instant_add(&worst, DTP_TERM_BUCKET_BY_RANK, 1, copied ? buckets.worst_copied : 0, g);
        dtp_instant_add(&worst, DTP_TERM_NEXT_GRADIENT, 1, buckets.worst_next, g);
        dtp_add_carried(job, dtp_divide_up(buckets.worst, u->ranks), &worst);
        if (!u->head)
            dtp_instant_add(&worst, DTP_TERM_TIED_HEAD_GRADIENT, 1, u->embedding, g);
        dtp_memory_consider(job, DTP_PHASE_LATE_BACKWARD, &worst);
    }
    dtp_add_carried(job, dtp_divide_up(buckets.last, u->ranks), &last);
    bool oversized = u->embedding > job->plan->reduce_bucket_size;
    if (oversized)
        dtp_instant_add(&last, DTP_TERM_EMBEDDING_GRADIENT, 1, u->embedding, g);
    if (!oversized || u->embedding % u->ranks)
        dtp_instant_add(&last, DTP_TERM_BUCKET_BY_RANK, 1, copied ? buckets.last : u->embedding / 2, g);
    dtp_memory_consider(job, DTP_PHASE_LATE_BACKWARD, &last);
}

static void zero3_step(struct dtp_memory_job *job)
{
    const struct dtp_units *u = &job->units;
    const struct dtp_zero3_counts *counts = job->zero3;
    zero3_head(job, counts);
    zero3_layer(job, DTP_PHASE_EARLY_BACKWARD, zero3_instant(job, counts, counts->live_early, second_after_forward(job, counts)), job->transformer->layers - 1);
    zero3_layer(job, DTP_PHASE_LATE_BACKWARD, zero3_instant(job, counts, counts->live_late, counts->second_all), 0);
    zero3_buckets(job, counts);
    struct dtp_instant embedding = zero3_instant(job, counts, 0, counts->second_all), step = embedding,
                       forward = zero3_instant(job, counts, counts->live_forward, 0);
    dtp_memory_consider(job, DTP_PHASE_FORWARD_END, &forward); /* a large fetch stands twice while it is copied out */
    dtp_instant_add(&embedding, DTP_TERM_EMBEDDING_GRADIENT, u->head ? 1 : 2, u->embedding, job->bytes.grads);
    dtp_add_embedding_backward(job, &embedding);
    dtp_memory_consider(job, DTP_PHASE_LATE_BACKWARD, &embedding);
    if (job->plan->offload == DTP_OFFLOAD_NONE && job->bytes.grads < 4)
        dtp_instant_add(&step, DTP_TERM_FP32_GRADIENTS, 1, smaller(u->total_shard, DTP_DEEPSPEED_SUB_GROUP), 4);
    dtp_memory_consider(job, DTP_PHASE_STEP, &step);
}

/* ---- all ------------------------------------------------------------------------------------------------------- */

/* Nothing is gathered any more. */
static void optimizer_step(struct dtp_memory_job *job)
{
    const struct dtp_plan *plan = job->plan;
    struct dtp_instant instant = job->at_rest;
    add_sharded_gradients(job, &instant);
    if (plan->runtime == DTP_RUNTIME_TORCH)
        instant.other_streams += job->state.grads;
    dtp_add_foreach(job, &instant, job->units.total_shard);
    dtp_memory_consider(job, DTP_PHASE_STEP, &instant);
}

void dtp_memory_gathered(struct dtp_memory_job *job)
{
    if (job->plan->runtime == DTP_RUNTIME_TORCH) {
        fsdp_forward(job);
        fsdp_loss(job);
        fsdp_head(job);
        fsdp_backward(job);
        fsdp_root(job);
        optimizer_step(job);
    } else {
        zero3_step(job);
    }
}
