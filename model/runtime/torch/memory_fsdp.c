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
#include "runtime/torch/memory_fsdp.h"

/* Units whose flat buffers stand beside that of unit `unit` because several are gathered ahead. */
static uint64_t ahead_in_forward(const struct dtp_memory_job *job, uint64_t unit)
{
    uint64_t depth = job->plan->prefetch_depth;
    return depth > 1 ? dtp_fsdp_smaller(depth, job->units.count - 1 - unit) : 0;
}

static struct dtp_instant in_forward(const struct dtp_memory_job *job, uint64_t unit)
{
    struct dtp_instant instant = dtp_fsdp_before_backward(job);
    uint64_t end = dtp_fsdp_layers_before(job, unit) + dtp_fsdp_layers_in(job, unit);
    dtp_fsdp_add_root(job, &instant, &dtp_fsdp_weights);
    dtp_fsdp_add_layers(job, &instant, &dtp_fsdp_weights,
                        dtp_fsdp_keeps_weights(job) ? end : dtp_fsdp_layers_in(job, unit));
    dtp_fsdp_add_post_forward(job, &instant, dtp_fsdp_layers_before(job, unit), false);
    return instant;
}

/* The weights of a unit are copied out of its flat buffer while that of the unit before, or of the root, still stands.
 */
static void forward_copy_out(struct dtp_memory_job *job, uint64_t unit)
{
    struct dtp_instant instant = in_forward(job, unit);
    uint64_t ahead = unit ? ahead_in_forward(job, unit - 1) : 0;
    dtp_fsdp_add_units(job, &instant, unit ? unit - 1 : 0, (unit ? 1 : 0) + (ahead ? ahead : 1));
    if (!unit)
        dtp_fsdp_add_root(job, &instant, &dtp_fsdp_flat);
    if (job->plan->offload == DTP_OFFLOAD_PARAMS && (!ahead || !unit))
        dtp_fsdp_add_uploaded_layers(job, &instant, dtp_fsdp_layers_in(job, unit));
    dtp_fsdp_gather_elsewhere(job, &instant);
    dtp_add_saved(job, &instant, dtp_fsdp_layers_before(job, unit));
    dtp_add_input(job, &instant);
    dtp_memory_consider(job, DTP_PHASE_FORWARD_END, &instant);
}

/* The worst kernel of the forward of layer `layer`. */
static void forward_layer(struct dtp_memory_job *job, uint64_t layer)
{
    uint64_t unit = layer / job->units.layers_per_unit;
    struct dtp_instant instant = in_forward(job, unit);
    if (dtp_fsdp_copies_out(job))
        dtp_fsdp_add_units(job, &instant, unit, 1 + ahead_in_forward(job, unit));
    dtp_fsdp_gather_elsewhere(job, &instant);
    dtp_add_saved(job, &instant, layer);
    dtp_add_block(job, &instant, &job->places->forward[dtp_layer_checkpointed(job, layer)]);
    dtp_memory_consider(job, DTP_PHASE_FORWARD_END, &instant);
}

/* More stands from layer to layer, so of each kind the last is worst; where several units are gathered ahead, also the
 * last with all of those. */
static void forward_layers(struct dtp_memory_job *job)
{
    uint64_t count = job->units.count, depth = job->plan->prefetch_depth;
    uint64_t ends[2] = {job->transformer->layers, count > depth ? dtp_fsdp_layers_before(job, count - depth) : 0};
    for (int i = 0; i < (depth > 1 ? 2 : 1); i++) {
        uint64_t layers[DTP_LAYER_KINDS];
        int kinds = dtp_last_layers(job, ends[i], layers);
        for (int k = 0; k < kinds; k++)
            forward_layer(job, layers[k]);
    }
    if (!dtp_fsdp_copies_out(job))
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
    struct dtp_instant standing = dtp_fsdp_before_backward(job);
    uint64_t layers[DTP_LAYER_KINDS];
    int kinds = dtp_last_layers(job, job->transformer->layers, layers);
    dtp_fsdp_add_root(job, &standing, &dtp_fsdp_weights);
    if (dtp_fsdp_copies_out(job))
        dtp_fsdp_add_root(job, &standing, &dtp_fsdp_flat);
    dtp_fsdp_gather_elsewhere(job, &standing);
    for (int i = 0; i < kinds; i++) {
        struct dtp_instant instant = standing;
        dtp_add_saved(job, &instant, layers[i]);
        dtp_add_block(job, &instant, &job->places->forward[dtp_layer_checkpointed(job, layers[i])]);
        dtp_memory_consider(job, DTP_PHASE_FORWARD_END, &instant);
    }
}

/* Start of forward: the root's flat buffer beside the weights copied out of it; a cast shard has gone by then, unless
 * it was uploaded. End of forward: root, the last unit's flat buffer (a single unit's stays as well), all activations,
 * and logits where the model makes them: head and loss in chunks come after it. */
static void forward(struct dtp_memory_job *job)
{
    struct dtp_instant end = dtp_fsdp_before_backward(job);
    dtp_fsdp_add_root(job, &end, &dtp_fsdp_weights);
    struct dtp_instant start = end;
    if (dtp_fsdp_copies_out(job)) {
        dtp_fsdp_add_root(job, &start, &dtp_fsdp_flat);
        if (job->plan->offload != DTP_OFFLOAD_NONE) {
            dtp_fsdp_add_cast_shard(job, &start);
            dtp_fsdp_add_uploaded_shard(job, &start);
        }
        if (job->units.count)
            dtp_fsdp_add_layers(job, &end, &dtp_fsdp_flat, job->units.last_unit_layers);
        else
            dtp_fsdp_add_root(job, &end, &dtp_fsdp_flat);
    }
    dtp_fsdp_gather_elsewhere(job, &start);
    dtp_memory_consider(job, DTP_PHASE_FORWARD_END, &start);
    if (job->units.count)
        forward_layers(job);
    else
        whole_forward(job);

    dtp_fsdp_add_kept_layers(job, &end);
    dtp_fsdp_add_post_forward(job, &end, job->transformer->layers, true); /* the root's, before its weights go */
    dtp_fsdp_gather_elsewhere(job, &end);
    dtp_add_all_saved(job, &end);
    if (dtp_plan_loss(job->plan) != DTP_LOSS_CHUNKED)
        dtp_instant_add_tokens(job, &end, DTP_TERM_LOGITS, 1, job->activations.logits);
    dtp_memory_consider(job, DTP_PHASE_FORWARD_END, &end);
}

static void loss(struct dtp_memory_job *job)
{
    bool chunked = dtp_plan_loss(job->plan) == DTP_LOSS_CHUNKED;
    struct dtp_instant instant = dtp_fsdp_before_backward(job);
    dtp_add_all_saved(job, &instant);
    dtp_instant_add_tokens(job, &instant, DTP_TERM_LOSS, 1, job->activations.loss);
    dtp_fsdp_add_kept_layers(job, &instant);
    dtp_fsdp_add_post_forward(job, &instant, job->transformer->layers, !chunked);
    /* FSDP1 never frees its root after forward; FSDP2 not when it was left to decide */
    if (dtp_fsdp_keeps_weights(job) || chunked || job->plan->fsdp1 || job->plan->keep_root)
        dtp_fsdp_add_root(job, &instant, &dtp_fsdp_weights);
    if (chunked)
        dtp_fsdp_add_made(job, &instant, DTP_TERM_HEAD_GRADIENT, 1, job->units.embedding);
    dtp_memory_consider(job, DTP_PHASE_LOSS, &instant);
}

/* Backward of the head gathers again: first the root, then the next unit's flat buffer with the cast shard that it is
 * gathered from, whichever is more. */
static void add_gathering(const struct dtp_memory_job *job, struct dtp_instant *instant)
{
    struct dtp_instant root = *instant, unit = *instant;
    dtp_fsdp_add_root(job, &root, &dtp_fsdp_flat);
    dtp_fsdp_add_post_forward(job, &root, 0, true);
    if (job->plan->prefetch) {
        dtp_fsdp_add_layers(job, &unit, &dtp_fsdp_flat, job->units.last_unit_layers);
        dtp_fsdp_add_cast_shard(job, &unit);
    }
    bool again = root.bytes[DTP_OWNER_GATHER] > unit.bytes[DTP_OWNER_GATHER] && !job->plan->keep_root;
    *instant = again ? root : unit;
    dtp_fsdp_gather_elsewhere(job, instant);
}

/* The root's shard on its way up from the host again: tensor by tensor, each beside its cast and those of the ones
 * before it, or all of it at once where the whole model is one unit. */
static uint64_t uploading_bytes(const struct dtp_memory_job *job)
{
    const struct dtp_units *u = &job->units;
    uint64_t casts = job->bytes.params != job->bytes.compute ? job->bytes.compute : 0, before = 0, most = 0;
    if (!u->count)
        return u->root_shard * (job->bytes.params + casts);
    const uint64_t tensors[] = {u->embedding, u->position, u->head};
    for (int i = 0; i < 3; i++) {
        before += tensors[i];
        uint64_t bytes = job->bytes.compute * before + (casts ? job->bytes.params * tensors[i] : 0);
        most = bytes > most ? bytes : most;
    }
    return dtp_divide_up(most, u->ranks);
}

/* Before anything else of it is there. */
static void root_upload(struct dtp_memory_job *job)
{
    if (!dtp_fsdp_copies_out(job) || job->plan->offload != DTP_OFFLOAD_PARAMS || dtp_fsdp_keeps_weights(job) ||
        job->plan->keep_root)
        return;
    struct dtp_instant instant = dtp_fsdp_before_backward(job);
    bool chunked = dtp_plan_loss(job->plan) == DTP_LOSS_CHUNKED;
    dtp_add_all_saved(job, &instant);
    dtp_instant_add_tokens(job, &instant, DTP_TERM_LOGITS_GRADIENT, 1, job->activations.logits_gradient);
    dtp_fsdp_add_made(job, &instant, DTP_TERM_HEAD_GRADIENT, chunked ? 1 : 0, job->units.embedding);
    dtp_instant_add(&instant, DTP_TERM_UPLOADED_SHARD, 1, 1, uploading_bytes(job));
    dtp_fsdp_gather_elsewhere(job, &instant);
    dtp_memory_consider(job, DTP_PHASE_EARLY_BACKWARD, &instant);
}

/* Backward of the head: the root gathered again (flat buffer and copy); then the next unit's flat buffer, with the
 * head's gradient and the hidden one. */
static void head_backward(struct dtp_memory_job *job)
{
    struct dtp_instant instant = dtp_fsdp_before_backward(job);
    dtp_add_all_saved(job, &instant);
    dtp_instant_add_tokens(job, &instant, DTP_TERM_LOGITS_GRADIENT, 1, job->activations.logits_gradient);
    dtp_fsdp_add_root(job, &instant, &dtp_fsdp_weights);
    dtp_fsdp_add_kept_layers(job, &instant);
    dtp_fsdp_add_post_forward(job, &instant, job->transformer->layers, false);
    bool chunked = dtp_plan_loss(job->plan) == DTP_LOSS_CHUNKED; /* the head's gradient was made in forward */
    if (chunked)
        dtp_fsdp_add_made(job, &instant, DTP_TERM_HEAD_GRADIENT, 1, job->units.embedding);
    struct dtp_instant gathering = instant;
    if (dtp_fsdp_copies_out(job) && !dtp_fsdp_keeps_weights(job)) {
        add_gathering(job, &gathering);
        if (job->plan->prefetch)
            dtp_fsdp_add_layers(job, &instant, &dtp_fsdp_flat, job->units.last_unit_layers);
        dtp_fsdp_gather_elsewhere(job, &instant);
    }
    if (!chunked)
        dtp_fsdp_add_made(job, &instant, DTP_TERM_HEAD_GRADIENT, 1, job->units.embedding);
    if (job->plan->fsdp1 && !dtp_fsdp_keeps_weights(job) && job->plan->prefetch && job->units.count)
        dtp_fsdp_add_layers(job, &instant, &dtp_fsdp_weights, job->units.last_unit_layers);
    dtp_instant_add_tokens(job, &instant, DTP_TERM_STREAM_GRADIENT, 1, job->activations.gradient);
    dtp_memory_consider(job, DTP_PHASE_EARLY_BACKWARD, &gathering);
    dtp_memory_consider(job, DTP_PHASE_EARLY_BACKWARD, &instant);
}

/* Nothing is gathered any more. */
static void optimizer_step(struct dtp_memory_job *job)
{
    struct dtp_instant instant = job->at_rest;
    dtp_fsdp_add_sharded_gradients(job, &instant);
    instant.other_streams += job->state.grads;
    dtp_add_foreach(job, &instant, job->units.total_shard);
    dtp_memory_consider(job, DTP_PHASE_STEP, &instant);
}

void dtp_memory_fsdp(struct dtp_memory_job *job)
{
    forward(job);
    loss(job);
    root_upload(job);
    head_backward(job);
    dtp_fsdp_backward(job);
    optimizer_step(job);
}
