#include "runtime/torch/memory_fsdp.h"

/* ---- gathered weights ------------------------------------------------------------------------------------------ */

const struct dtp_fsdp_terms dtp_fsdp_weights = {DTP_TERM_GATHERED_LAYERS, DTP_TERM_GATHERED_FP8,
                                                DTP_TERM_GATHERED_ROOT};
const struct dtp_fsdp_terms dtp_fsdp_flat = {DTP_TERM_FLAT_LAYERS, DTP_TERM_FLAT_FP8, DTP_TERM_FLAT_ROOT};

/* Elements of a layer, of its matrices and of the root as they are gathered and reduced: FSDP2 pads each parameter to
 * equal shards, in flat buffers and in what is copied out of them. */
static uint64_t layer_elements(const struct dtp_memory_job *job)
{
    return dtp_fsdp_copies_out(job) ? job->units.layer_shard * job->units.ranks : job->units.layer;
}

static uint64_t matrix_elements(const struct dtp_memory_job *job)
{
    return dtp_fsdp_copies_out(job) ? job->units.layer_matmul_shard * job->units.ranks : job->units.layer_matmul;
}

uint64_t dtp_fsdp_root_elements(const struct dtp_memory_job *job)
{
    return dtp_fsdp_copies_out(job) ? job->units.root_shard * job->units.ranks : job->units.root;
}

void dtp_fsdp_add_layers(const struct dtp_memory_job *job, struct dtp_instant *instant,
                         const struct dtp_fsdp_terms *terms, uint64_t layers)
{
    dtp_instant_add(instant, terms->layers, layers, layer_elements(job), job->bytes.compute);
    if (job->bytes.gathered != job->bytes.compute)
        dtp_instant_take(instant, terms->fp8, layers, matrix_elements(job), job->bytes.compute - job->bytes.gathered);
}

void dtp_fsdp_add_root(const struct dtp_memory_job *job, struct dtp_instant *instant,
                       const struct dtp_fsdp_terms *terms)
{
    uint64_t layers = job->units.count ? 0 : job->transformer->layers;
    if (layers)
        dtp_fsdp_add_layers(job, instant, terms, layers);
    dtp_instant_add(instant, terms->root, 1, dtp_fsdp_root_elements(job) - layers * layer_elements(job),
                    job->bytes.compute);
}

void dtp_fsdp_add_kept_layers(const struct dtp_memory_job *job, struct dtp_instant *instant)
{
    if (dtp_fsdp_keeps_weights(job) && job->units.count)
        dtp_fsdp_add_layers(job, instant, &dtp_fsdp_weights, job->transformer->layers);
}

void dtp_fsdp_add_post_forward(const struct dtp_memory_job *job, struct dtp_instant *instant, uint64_t layers,
                               bool root)
{
    uint64_t group = job->plan->reshard_group;
    if (!group)
        return;
    if (job->units.count)
        dtp_instant_add(instant, DTP_TERM_POST_FORWARD_LAYERS, layers, layer_elements(job) / group, job->bytes.compute);
    if (root && !dtp_plan_keeps_root(job->plan))
        dtp_instant_add(instant, DTP_TERM_POST_FORWARD_ROOT, 1, dtp_fsdp_root_elements(job) / group,
                        job->bytes.compute);
}

void dtp_fsdp_add_cast_shard(const struct dtp_memory_job *job, struct dtp_instant *instant)
{
    if (job->bytes.params != job->bytes.compute)
        dtp_instant_add(instant, DTP_TERM_CAST_SHARD, 1, 1, instant->bytes[DTP_OWNER_GATHER] / job->units.ranks);
}

void dtp_fsdp_add_uploaded_shard(const struct dtp_memory_job *job, struct dtp_instant *instant)
{
    if (job->plan->offload == DTP_OFFLOAD_PARAMS)
        dtp_instant_add(instant, DTP_TERM_UPLOADED_SHARD, 1, 1,
                        dtp_divide_up(job->units.root * job->bytes.params, job->units.ranks));
}

void dtp_fsdp_add_uploaded_layers(const struct dtp_memory_job *job, struct dtp_instant *instant, uint64_t layers)
{
    bool casts = job->bytes.params != job->bytes.compute;
    dtp_instant_add(instant, DTP_TERM_UPLOADED_LAYERS, layers, job->units.layer_shard,
                    job->bytes.params + (casts ? job->bytes.compute : 0));
}

void dtp_fsdp_add_units(const struct dtp_memory_job *job, struct dtp_instant *instant, uint64_t first, uint64_t count)
{
    uint64_t end = dtp_fsdp_smaller(first + count, job->units.count);
    dtp_fsdp_add_layers(job, instant, &dtp_fsdp_flat,
                        dtp_fsdp_smaller(dtp_fsdp_layers_before(job, end), job->transformer->layers) -
                            dtp_fsdp_layers_before(job, first));
}

void dtp_fsdp_gather_elsewhere(const struct dtp_memory_job *job, struct dtp_instant *instant)
{
    if (dtp_fsdp_copies_out(job))
        instant->other_streams += instant->bytes[DTP_OWNER_GATHER];
}

/* FSDP2, ZeRO-3 and ours keep them in the reduce dtype, FSDP1 as they are made. */
static void add_whole_gradients(const struct dtp_memory_job *job, struct dtp_instant *instant, uint64_t elements)
{
    if (!dtp_fsdp_accumulates_whole(job))
        return;
    if (job->plan->fsdp1)
        dtp_instant_add(instant, DTP_TERM_GRADS_AS_MADE, 1, elements, job->bytes.compute);
    else
        dtp_instant_add(instant, DTP_TERM_GRADS_WHOLE, 1, elements, job->bytes.reduce);
}

void dtp_fsdp_add_sharded_gradients(const struct dtp_memory_job *job, struct dtp_instant *instant)
{
    dtp_instant_add(instant, DTP_TERM_GRADS_SHARD, 1, job->state.grads_elements, job->bytes.grads);
}

static bool accumulates_shards(const struct dtp_memory_job *job)
{
    return job->plan->accumulate > 1 && job->plan->accumulate_sync;
}

struct dtp_instant dtp_fsdp_before_backward(const struct dtp_memory_job *job)
{
    struct dtp_instant instant = job->at_rest;
    add_whole_gradients(job, &instant, job->units.total);
    if (accumulates_shards(job))
        dtp_fsdp_add_sharded_gradients(job, &instant);
    return instant;
}

struct dtp_instant dtp_fsdp_in_backward(const struct dtp_memory_job *job, uint64_t layers)
{
    struct dtp_instant instant = job->at_rest;
    if (accumulates_shards(job)) { /* already there; only the newest output stands beside them until it is added */
        dtp_fsdp_add_sharded_gradients(job, &instant);
    } else {
        add_whole_gradients(job, &instant, job->units.total - layers * job->units.layer);
        if (job->state.grads_elements)
            dtp_instant_add(&instant, DTP_TERM_GRADS_REDUCED, layers, job->units.layer_shard, job->bytes.grads);
    }
    if (!dtp_fsdp_accumulates_whole(job))
        instant.other_streams += instant.bytes[DTP_OWNER_GRADS];
    return instant;
}

void dtp_fsdp_add_made(const struct dtp_memory_job *job, struct dtp_instant *instant, enum dtp_memory_term term,
                       uint64_t count, uint64_t elements)
{
    dtp_instant_add(instant, term, count, elements, job->bytes.compute);
}

void dtp_fsdp_add_reduce_input(const struct dtp_memory_job *job, struct dtp_instant *instant, uint64_t layers)
{
    dtp_instant_add(instant, DTP_TERM_REDUCE_INPUT, layers, layer_elements(job), job->bytes.reduce);
}
