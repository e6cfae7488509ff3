/* Peak memory where parameters are sharded and gathered unit by unit: FSDP2, FSDP1, ZeRO-3, our executor.
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
#include "bytes.h"
#include "memory_instant.h"

#define ZERO3_LIVE 1000000000u   /* stage3_max_live_parameters, elements */
#define ZERO3_PREFETCH 50000000u /* stage3_prefetch_bucket_size */
#define ZERO3_BUCKET 500000000u  /* reduce_bucket_size */

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Elements of one unit of layers, and of the first `units` of them. */
static uint64_t unit_elements(const struct dtp_memory_job *job, uint64_t layers)
{
    return layers * job->units.layer;
}

static uint64_t layers_before(const struct dtp_memory_job *job, uint64_t unit)
{
    return unit * job->units.layers_per_unit;
}

static uint64_t layers_in(const struct dtp_memory_job *job, uint64_t unit)
{
    return unit + 1 == job->units.count ? job->units.last_unit_layers : job->units.layers_per_unit;
}

/* FSDP2 pads each parameter to equal shards, in flat buffers and in what is copied out of them. */
static bool pads(const struct dtp_memory_job *job)
{
    return job->plan->runtime == DTP_RUNTIME_TORCH && !job->plan->fsdp1;
}

/* Gathered bytes of `layers` layers: matrices in the dtype on the wire (fp8 all-gather: 1), the rest in compute. */
static uint64_t gathered_bytes(const struct dtp_memory_job *job, uint64_t layers)
{
    const struct dtp_units *u = &job->units;
    if (pads(job))
        return layers * u->ranks *
               (u->layer_matmul_shard * job->bytes.gathered + (u->layer_shard - u->layer_matmul_shard) * job->bytes.compute);
    return layers * (u->layer_matmul * job->bytes.gathered + (u->layer - u->layer_matmul) * job->bytes.compute);
}

static uint64_t root_bytes(const struct dtp_memory_job *job)
{
    const struct dtp_units *u = &job->units;
    uint64_t root = pads(job) ? u->root_shard * u->ranks : u->root, layer = pads(job) ? u->layer_shard * u->ranks : u->layer;
    if (u->count)
        return root * job->bytes.compute;
    uint64_t layers = job->transformer->layers;
    return gathered_bytes(job, layers) + (root - layers * layer) * job->bytes.compute;
}

/* Input of the reduce-scatter of a unit of `layers` layers, and of the root. */
static uint64_t scatter_bytes(const struct dtp_memory_job *job, uint64_t layers)
{
    return layers * job->bytes.reduce * (pads(job) ? job->units.layer_shard * job->units.ranks : job->units.layer);
}

static uint64_t root_scatter_bytes(const struct dtp_memory_job *job)
{
    return job->bytes.reduce * (pads(job) ? job->units.root_shard * job->units.ranks : job->units.root);
}

/* The shard cast to the wire's dtype before it is gathered; none where it is stored in that dtype. */
static uint64_t cast_bytes(const struct dtp_memory_job *job, uint64_t gathered)
{
    return job->bytes.params == job->bytes.compute ? 0 : gathered / job->units.ranks;
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

/* The stored shard on its way up from the host (CPUOffloadPolicy), on the device until it has been cast. */
static uint64_t uploaded_bytes(const struct dtp_memory_job *job, uint64_t elements)
{
    bool offloaded = job->plan->runtime == DTP_RUNTIME_TORCH && job->plan->offload == DTP_OFFLOAD_PARAMS;
    return offloaded ? dtp_divide_up(elements * job->bytes.params, job->units.ranks) : 0;
}

/* Gradients kept whole between micro-steps when they are not reduced in each: FSDP2 in the reduce dtype, FSDP1 as they
 * are made. */
static uint64_t accumulated_bytes(const struct dtp_memory_job *job, uint64_t elements)
{
    uint64_t each = job->plan->fsdp1 ? job->bytes.compute : job->bytes.reduce;
    return job->plan->accumulate > 1 && !job->plan->accumulate_sync ? elements * each : 0;
}

/* Sharded gradients that stand before the last micro-step's backward. */
static uint64_t standing_gradients(const struct dtp_memory_job *job)
{
    bool synced = job->plan->accumulate > 1 && job->plan->accumulate_sync;
    return accumulated_bytes(job, job->units.total) + (synced ? job->state.grads : 0);
}

static uint64_t all_activations(const struct dtp_memory_job *job)
{
    return dtp_saved_activations(job, job->transformer->layers) + dtp_tokens_bytes(job, job->activations.head);
}

static void add_other_stream(struct dtp_instant *instant, enum dtp_owner owner, uint64_t bytes)
{
    instant->bytes[owner] += bytes;
    instant->other_streams += bytes;
}

/* ---- FSDP ------------------------------------------------------------------------------------------------------ */

/* Start of forward: the root's flat buffer beside the weights copied out of it and the shard it was cast from. End of forward: root, the last unit's
 * flat buffer, logits, all activations. */
static void fsdp_forward(struct dtp_memory_job *job)
{
    uint64_t root = root_bytes(job), unit = gathered_bytes(job, job->units.layers_per_unit);
    bool uploads = job->plan->offload != DTP_OFFLOAD_NONE;
    struct dtp_instant instant = dtp_instant_at_rest(job);
    instant.bytes[DTP_OWNER_GRADS] = standing_gradients(job);
    instant.bytes[DTP_OWNER_WEIGHTS] = root;
    struct dtp_instant start = instant;
    if (copies_out(job)) /* a cast shard that was not uploaded has gone when the weights are copied out */
        add_other_stream(&start, DTP_OWNER_GATHER,
                         root + (uploads ? cast_bytes(job, root) + uploaded_bytes(job, job->units.root) : 0));
    dtp_memory_consider(job, DTP_PHASE_FORWARD_END, &start);

    if (keeps_weights(job))
        instant.bytes[DTP_OWNER_WEIGHTS] += job->units.count ? gathered_bytes(job, job->transformer->layers) : 0;
    if (copies_out(job)) /* a single unit's buffer stays to the end as well */
        add_other_stream(&instant, DTP_OWNER_GATHER, job->units.count ? unit : root);
    if (dtp_plan_loss(job->plan) == DTP_LOSS_CHUNKED) /* the model's forward ends without logits */
        job->activations.logits = 0;
    instant.bytes[DTP_OWNER_ACTIVATIONS] = all_activations(job);
    instant.bytes[DTP_OWNER_LOGITS] = dtp_tokens_bytes(job, job->activations.logits);
    dtp_memory_consider(job, DTP_PHASE_FORWARD_END, &instant);
}

static void fsdp_loss(struct dtp_memory_job *job)
{
    bool chunked = dtp_plan_loss(job->plan) == DTP_LOSS_CHUNKED;
    struct dtp_instant instant = dtp_instant_at_rest(job);
    instant.bytes[DTP_OWNER_GRADS] = standing_gradients(job);
    instant.bytes[DTP_OWNER_ACTIVATIONS] = all_activations(job);
    instant.bytes[DTP_OWNER_LOGITS] = dtp_tokens_bytes(job, job->activations.loss);
    if (keeps_weights(job) && job->units.count)
        instant.bytes[DTP_OWNER_WEIGHTS] = gathered_bytes(job, job->transformer->layers);
    /* FSDP1 never frees its root after forward; FSDP2 not when it was left to decide */
    if (keeps_weights(job) || chunked || job->plan->fsdp1 || job->plan->keep_root)
        instant.bytes[DTP_OWNER_WEIGHTS] += root_bytes(job);
    if (chunked)
        instant.bytes[DTP_OWNER_REDUCE] = job->bytes.compute * job->units.embedding;
    dtp_memory_consider(job, DTP_PHASE_LOSS, &instant);
}

/* Backward of the head: the root gathered again (flat buffer and copy); then the next unit's flat buffer, first with
 * the cast shard it is gathered from, then with the head's gradient and the hidden one. */
static void fsdp_head(struct dtp_memory_job *job)
{
    uint64_t root = root_bytes(job), unit = gathered_bytes(job, job->units.layers_per_unit);
    struct dtp_instant instant = dtp_instant_at_rest(job);
    instant.bytes[DTP_OWNER_GRADS] = standing_gradients(job);
    instant.bytes[DTP_OWNER_ACTIVATIONS] = all_activations(job);
    instant.bytes[DTP_OWNER_LOGITS] = dtp_tokens_bytes(job, job->activations.logits_gradient);
    instant.bytes[DTP_OWNER_WEIGHTS] = root;
    if (dtp_plan_loss(job->plan) == DTP_LOSS_CHUNKED) /* the head's gradient was made in forward */
        instant.bytes[DTP_OWNER_REDUCE] = job->bytes.compute * job->units.embedding;
    if (keeps_weights(job) && job->units.count)
        instant.bytes[DTP_OWNER_WEIGHTS] += gathered_bytes(job, job->transformer->layers);
    struct dtp_instant gathering = instant;
    if (!job->plan->prefetch)
        unit = 0;
    if (copies_out(job) && !keeps_weights(job)) {
        uint64_t cast = unit + cast_bytes(job, unit);
        bool again = root > cast && !job->plan->keep_root;
        add_other_stream(&gathering, DTP_OWNER_GATHER, again ? root : cast);
        add_other_stream(&instant, DTP_OWNER_GATHER, unit);
    }
    instant.bytes[DTP_OWNER_REDUCE] = job->bytes.compute * job->units.embedding;
    instant.bytes[DTP_OWNER_WORKSPACE] += dtp_tokens_bytes(job, job->activations.gradient);
    dtp_memory_consider(job, DTP_PHASE_EARLY_BACKWARD, &gathering);
    dtp_memory_consider(job, DTP_PHASE_EARLY_BACKWARD, &instant);
}

/* Gradients at rest when the last `above` units have been reduced (last micro-step), `layers` layers in all. */
static uint64_t fsdp_resting_gradients(const struct dtp_memory_job *job, uint64_t layers)
{
    uint64_t reduced = job->state.grads ? layers * job->units.layer_shard * job->bytes.grads : 0;
    bool synced = job->plan->accumulate > 1 && job->plan->accumulate_sync;
    if (synced) /* already there; only the newest output stands beside them until it is added */
        return job->state.grads;
    return accumulated_bytes(job, job->units.total - unit_elements(job, layers)) + reduced;
}

/* They are outputs of the reduce stream, unless whole gradients are accumulated on the compute stream. */
static void add_resting_gradients(const struct dtp_memory_job *job, struct dtp_instant *instant, uint64_t layers)
{
    instant->bytes[DTP_OWNER_GRADS] = fsdp_resting_gradients(job, layers);
    if (!accumulated_bytes(job, 1))
        instant->other_streams += instant->bytes[DTP_OWNER_GRADS];
}

/* Worst instant in the backward of unit `unit` when `finished` of its layers have gone through. */
static void fsdp_unit(struct dtp_memory_job *job, enum dtp_phase phase, uint64_t unit, uint64_t finished)
{
    const struct dtp_units *u = &job->units;
    uint64_t layer = layers_before(job, unit) + layers_in(job, unit) - 1 - finished; /* in backward now */
    uint64_t above = job->transformer->layers - layers_before(job, unit) - layers_in(job, unit);
    struct dtp_instant instant = dtp_instant_at_rest(job);
    add_resting_gradients(job, &instant, above);
    instant.bytes[DTP_OWNER_ACTIVATIONS] =
        dtp_saved_activations(job, layer + 1) + dtp_recomputed_activations(job, layer);
    uint64_t kept = keeps_weights(job) ? layers_before(job, unit) + layers_in(job, unit) : layers_in(job, unit);
    instant.bytes[DTP_OWNER_WEIGHTS] = root_bytes(job) + gathered_bytes(job, kept);
    uint64_t next = unit && !keeps_weights(job) && job->plan->prefetch ? gathered_bytes(job, u->layers_per_unit) : 0;
    if (copies_out(job))
        add_other_stream(&instant, DTP_OWNER_GATHER, next);
    else
        instant.bytes[DTP_OWNER_GATHER] += next;
    instant.bytes[DTP_OWNER_REDUCE] = job->bytes.compute * (u->embedding + unit_elements(job, finished) + u->down);
    if (unit + 1 < u->count)
        instant.bytes[DTP_OWNER_REDUCE] += scatter_bytes(job, layers_in(job, unit + 1));
    instant.bytes[DTP_OWNER_WORKSPACE] += dtp_backward_workspace(job);
    dtp_memory_consider(job, phase, &instant);
}

/* Unit `unit` is reduced: its gradients in c and, beside them, the reduce-scatter input. FSDP1 concatenates its views'
 * gradients into a flat one first, so they stand twice. */
static void fsdp_reduce(struct dtp_memory_job *job, enum dtp_phase phase, uint64_t unit)
{
    const struct dtp_units *u = &job->units;
    uint64_t elements = unit_elements(job, layers_in(job, unit));
    uint64_t above = job->transformer->layers - layers_before(job, unit) - layers_in(job, unit);
    struct dtp_instant instant = dtp_instant_at_rest(job);
    add_resting_gradients(job, &instant, above);
    instant.bytes[DTP_OWNER_ACTIVATIONS] = dtp_saved_activations(job, layers_before(job, unit));
    instant.bytes[DTP_OWNER_WEIGHTS] = root_bytes(job);
    if (keeps_weights(job) || !copies_out(job))
        instant.bytes[DTP_OWNER_WEIGHTS] += gathered_bytes(job, layers_before(job, unit));
    if (!keeps_weights(job) && !copies_out(job))
        instant.bytes[DTP_OWNER_WEIGHTS] = root_bytes(job) + gathered_bytes(job, (unit ? 2 : 1) * u->layers_per_unit);
    else if (unit && !keeps_weights(job) && job->plan->prefetch)
        add_other_stream(&instant, DTP_OWNER_GATHER, gathered_bytes(job, u->layers_per_unit));
    /* accumulated ones have taken the gradients in before, and stand in their place */
    uint64_t copies = job->plan->fsdp1 ? 2 : accumulated_bytes(job, 1) ? 0 : 1;
    bool cast = !job->plan->fsdp1 || job->bytes.reduce != job->bytes.compute;
    instant.bytes[DTP_OWNER_REDUCE] =
        job->bytes.compute * (u->embedding + copies * elements) + (cast ? scatter_bytes(job, layers_in(job, unit)) : 0);
    instant.bytes[DTP_OWNER_WORKSPACE] += dtp_tokens_bytes(job, job->activations.gradient);
    dtp_memory_consider(job, phase, &instant);
}

/* The root's turn, after all units: the embedding's gradient made with the root still gathered; then the root's
 * reduce-scatter input beside its gradients. */
static void fsdp_root(struct dtp_memory_job *job)
{
    const struct dtp_units *u = &job->units;
    uint64_t layers = u->count ? job->transformer->layers : 0;
    struct dtp_instant instant = dtp_instant_at_rest(job);
    add_resting_gradients(job, &instant, layers);
    struct dtp_instant reducing = instant;
    instant.bytes[DTP_OWNER_WEIGHTS] = root_bytes(job);
    instant.bytes[DTP_OWNER_REDUCE] = job->bytes.compute * (u->count ? 2 * u->embedding : u->total + u->embedding) +
                                      (u->count ? scatter_bytes(job, u->layers_per_unit) : 0);
    instant.bytes[DTP_OWNER_WORKSPACE] +=
        job->activations.embedding_backward + dtp_tokens_bytes(job, job->activations.gradient);
    dtp_memory_consider(job, DTP_PHASE_LATE_BACKWARD, &instant);

    uint64_t made = accumulated_bytes(job, 1) ? 0 : job->bytes.compute * u->root;
    reducing.bytes[DTP_OWNER_REDUCE] = made + root_scatter_bytes(job);
    dtp_memory_consider(job, DTP_PHASE_LATE_BACKWARD, &reducing);
}

/* Without units of layers the whole model is one: its backward holds all weights and, growing, all gradients. */
static void fsdp_whole(struct dtp_memory_job *job, enum dtp_phase phase, uint64_t layer)
{
    uint64_t above = job->transformer->layers - 1 - layer;
    struct dtp_instant instant = dtp_instant_at_rest(job);
    instant.bytes[DTP_OWNER_GRADS] = standing_gradients(job);
    instant.bytes[DTP_OWNER_ACTIVATIONS] =
        dtp_saved_activations(job, layer + 1) + dtp_recomputed_activations(job, layer);
    instant.bytes[DTP_OWNER_WEIGHTS] = root_bytes(job);
    instant.bytes[DTP_OWNER_REDUCE] =
        job->bytes.compute * (job->units.embedding + unit_elements(job, above) + job->units.down);
    instant.bytes[DTP_OWNER_WORKSPACE] += dtp_backward_workspace(job);
    dtp_memory_consider(job, phase, &instant);
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
    fsdp_unit(job, DTP_PHASE_EARLY_BACKWARD, count - 1, 0);
    fsdp_unit(job, DTP_PHASE_EARLY_BACKWARD, count - 1, layers_in(job, count - 1) - 1);
    fsdp_unit(job, DTP_PHASE_EARLY_BACKWARD, early, 0);
    fsdp_unit(job, DTP_PHASE_EARLY_BACKWARD, early, layers_in(job, early) - 1);
    fsdp_reduce(job, DTP_PHASE_EARLY_BACKWARD, count - 1);
    fsdp_reduce(job, DTP_PHASE_EARLY_BACKWARD, early);
    fsdp_unit(job, DTP_PHASE_LATE_BACKWARD, late, 0);
    fsdp_unit(job, DTP_PHASE_LATE_BACKWARD, 0, 0);
    fsdp_unit(job, DTP_PHASE_LATE_BACKWARD, 0, layers_in(job, 0) - 1);
    fsdp_reduce(job, DTP_PHASE_LATE_BACKWARD, late);
    fsdp_reduce(job, DTP_PHASE_LATE_BACKWARD, 0);
}

/* ---- ZeRO-3 and our executor ----------------------------------------------------------------------------------- */

/* What is gathered at any time in forward and backward.
 *   DeepSpeed  up to max_live_parameters elements, and of the newest fetch a flat buffer beside the parameters
 *   ours       the root, and the unit in use beside the one being prefetched: the gathered buffer is the weights */
static void add_live_weights(const struct dtp_memory_job *job, struct dtp_instant *instant)
{
    const struct dtp_units *u = &job->units;
    if (job->plan->runtime == DTP_RUNTIME_DEEPSPEED) {
        instant->bytes[DTP_OWNER_WEIGHTS] = job->bytes.compute * smaller(u->total, ZERO3_LIVE);
        instant->bytes[DTP_OWNER_GATHER] = job->bytes.compute * smaller(u->total, ZERO3_PREFETCH);
    } else {
        uint64_t unit = gathered_bytes(job, u->layers_per_unit);
        instant->bytes[DTP_OWNER_WEIGHTS] =
            root_bytes(job) + (keeps_weights(job) && u->count ? gathered_bytes(job, job->transformer->layers) : unit);
        if (u->count > 1 && job->plan->prefetch && !keeps_weights(job))
            instant->bytes[DTP_OWNER_GATHER] = unit;
    }
}

/* DeepSpeed's permanent IPG bucket and the copy reduce_scatter_coalesced makes of it; ours: the unit being written and
 * the unit being scattered, and the root's gradients, whose first part (the head) comes first and last part last. */
static uint64_t scatter_buffers(const struct dtp_memory_job *job, bool backward)
{
    const struct dtp_units *u = &job->units;
    if (job->plan->runtime == DTP_RUNTIME_DEEPSPEED)
        return (backward ? 2 : 1) * job->bytes.grads * smaller(u->total, ZERO3_BUCKET);
    uint64_t units = u->count > 1 ? 2 : u->count;
    if (accumulated_bytes(job, 1)) /* whole gradients stand already, and are scattered from where they are */
        return 0;
    uint64_t elements = smaller(units * unit_elements(job, u->layers_per_unit) + u->root, u->total);
    return backward ? job->bytes.reduce * elements : 0;
}

static void arena_phase(struct dtp_memory_job *job, enum dtp_phase phase, uint64_t activations, uint64_t logits,
                        uint64_t workspace)
{
    bool backward = phase == DTP_PHASE_EARLY_BACKWARD || phase == DTP_PHASE_LATE_BACKWARD;
    struct dtp_instant instant = dtp_instant_at_rest(job);
    add_live_weights(job, &instant);
    instant.bytes[DTP_OWNER_GRADS] = job->state.grads + accumulated_bytes(job, job->units.total);
    instant.bytes[DTP_OWNER_ACTIVATIONS] = activations;
    instant.bytes[DTP_OWNER_LOGITS] = logits;
    instant.bytes[DTP_OWNER_REDUCE] = scatter_buffers(job, backward);
    instant.bytes[DTP_OWNER_WORKSPACE] += workspace;
    dtp_memory_consider(job, phase, &instant);
}

static void arena_backward(struct dtp_memory_job *job)
{
    uint64_t last = job->transformer->layers - 1;
    arena_phase(job, DTP_PHASE_EARLY_BACKWARD,
                dtp_saved_activations(job, last + 1) + dtp_recomputed_activations(job, last), 0,
                dtp_backward_workspace(job));
    arena_phase(job, DTP_PHASE_LATE_BACKWARD, dtp_saved_activations(job, 1) + dtp_recomputed_activations(job, 0), 0,
                dtp_backward_workspace(job));
}

/* ---- all ------------------------------------------------------------------------------------------------------- */

/* Nothing is gathered any more. foreach AdamW: one more moment per local parameter; DeepSpeed: fp32 gradients of one
 * sub-group of at most 1e9 elements. */
static void optimizer_step(struct dtp_memory_job *job)
{
    const struct dtp_plan *plan = job->plan;
    bool offloaded = plan->offload != DTP_OFFLOAD_NONE;
    struct dtp_instant instant = dtp_instant_at_rest(job);
    instant.bytes[DTP_OWNER_GRADS] = job->state.grads;
    if (plan->runtime == DTP_RUNTIME_TORCH)
        instant.other_streams += job->state.grads;
    uint64_t shard = dtp_divide_up(job->units.total, job->units.ranks);
    if (plan->runtime == DTP_RUNTIME_DEEPSPEED) {
        instant.bytes[DTP_OWNER_REDUCE] = scatter_buffers(job, false);
        instant.bytes[DTP_OWNER_WORKSPACE] += offloaded ? 0 : 4 * smaller(shard, ZERO3_LIVE);
    } else if (plan->optimizer == DTP_ADAMW_FOREACH && plan->runtime == DTP_RUNTIME_TORCH && !offloaded) {
        instant.bytes[DTP_OWNER_WORKSPACE] += dtp_dtype_bytes(plan->precision.moments) * job->units.total_shard;
    }
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
    } else {
        arena_phase(job, DTP_PHASE_FORWARD_END, all_activations(job), dtp_tokens_bytes(job, job->activations.logits),
                    0);
        arena_phase(job, DTP_PHASE_LOSS, all_activations(job), dtp_tokens_bytes(job, job->activations.loss), 0);
        arena_backward(job);
    }
    optimizer_step(job);
}
