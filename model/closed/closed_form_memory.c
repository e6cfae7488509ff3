/* Memory of a plan: state at rest, the instants that can be the peak, and what allocator and driver put on top. */
#include "closed/allocator.h"
#include "closed/closed_form_hooks.h"

/* cuBLAS workspace per handle and stream, from the caching allocator: 4096 x 8 KiB on Hopper and later, else 2 x 4 MiB
 * + 8 x 16 KiB (CublasHandlePool.cpp). Forward's thread and autograd's each have one. RoPE's fp32 tables of sine and
 * cosine and the micro-step's 64-bit tokens ride along. */
static void add_workspace(const struct dtp_memory_job *job, struct dtp_instant *instant)
{
    const struct dtp_transformer *t = job->transformer;
    bool large =
        job->cluster->gpu.architecture == DTP_GPU_HOPPER || job->cluster->gpu.architecture == DTP_GPU_BLACKWELL;
    uint64_t cublas = large ? UINT64_C(4096) * 8192 : UINT64_C(4096) * 2048 + UINT64_C(16384) * 8;
    dtp_instant_add(instant, DTP_TERM_CUBLAS, 2, 1, cublas);
    if (t->position == DTP_POSITION_ROPE)
        dtp_instant_add(instant, DTP_TERM_ROPE_TABLES, 1, job->plan->sequence, 4 * t->head_dim);
    dtp_instant_add_tokens(job, instant, DTP_TERM_TOKEN_IDS, 1, 8);
}

/* Transformer Engine's casts of the matmul weights, by rows and by columns, 1 byte each, cached over the micro-steps;
 * of sharded weights only the unit in use and the one being gathered have any. */
static void add_fp8_casts(const struct dtp_memory_job *job, struct dtp_instant *instant)
{
    if (!dtp_plan_keeps_fp8(job->plan))
        return;
    const struct dtp_units *u = &job->units;
    uint64_t layers = job->transformer->layers, two_units = 2 * u->layers_per_unit;
    if (dtp_plan_shards_params(job->plan) && u->count && two_units < layers)
        layers = two_units;
    dtp_instant_add(instant, DTP_TERM_FP8_CASTS, 2 * layers, u->layer_matmul, 1);
}

/* Parameters, optimizer state, workspaces: what every instant of a step has. */
static struct dtp_instant at_rest(const struct dtp_memory_job *job)
{
    struct dtp_instant instant = {.chain.record = job->record};
    add_fp8_casts(job, &instant);
    if (job->plan->runtime->arena)
        return instant;
    bool params = dtp_plan_shards_params(job->plan), optimizer = dtp_plan_shards_optimizer(job->plan);
    dtp_instant_add(&instant, params ? DTP_TERM_PARAMS_SHARD : DTP_TERM_PARAMS, 1, job->state.params_elements,
                    job->bytes.params);
    dtp_instant_add(&instant, optimizer ? DTP_TERM_MOMENTS_SHARD : DTP_TERM_MOMENTS, 1, job->state.optimizer_elements,
                    job->bytes.moments);
    dtp_instant_add(&instant, optimizer ? DTP_TERM_MASTER_SHARD : DTP_TERM_MASTER, 1, job->state.optimizer_elements,
                    job->bytes.master);
    add_workspace(job, &instant);
    return instant;
}

/* Parameters, and DDP's buckets or Megatron's gradient buffer where they are made at construction. cuBLAS workspaces
 * count: a process that is about to train has run a matmul. */
static uint64_t after_init_bytes(const struct dtp_memory_job *job)
{
    const struct dtp_plan *plan = job->plan;
    bool buckets = dtp_plan_has_ddp_buckets(plan, job->cluster), buffer = plan->runtime->gradients_in_matmul;
    if (plan->runtime->arena) /* the arena, taken once */
        return job->out->allocated_peak_bytes;
    uint64_t grads = buckets ? job->bytes.grads * job->units.total : buffer ? job->state.grads : 0;
    return job->state.params + grads + job->at_rest.bytes[DTP_OWNER_WORKSPACE];
}

static uint64_t largest_of(const struct dtp_memory *memory, enum dtp_owner owner)
{
    uint64_t largest = 0;
    for (int phase = 0; phase < DTP_PHASE_COUNT; phase++)
        if (memory->phase_bytes[phase][owner] > largest)
            largest = memory->phase_bytes[phase][owner];
    return largest;
}

static void summarise(struct dtp_memory *memory)
{
    for (int phase = 1; phase < DTP_PHASE_COUNT; phase++)
        if (memory->phase_total_bytes[phase] > memory->phase_total_bytes[memory->peak_phase])
            memory->peak_phase = (enum dtp_phase)phase;
    memory->allocated_peak_bytes = memory->phase_total_bytes[memory->peak_phase];
    memory->params_bytes = largest_of(memory, DTP_OWNER_PARAMS);
    memory->grads_bytes = largest_of(memory, DTP_OWNER_GRADS);
    memory->optimizer_bytes = largest_of(memory, DTP_OWNER_OPTIMIZER);
    memory->activations_bytes = largest_of(memory, DTP_OWNER_ACTIVATIONS);
    const uint64_t *peak = memory->phase_bytes[memory->peak_phase];
    memory->temporary_bytes = memory->allocated_peak_bytes - peak[DTP_OWNER_PARAMS] - peak[DTP_OWNER_GRADS] -
                              peak[DTP_OWNER_OPTIMIZER] - peak[DTP_OWNER_ACTIVATIONS];
}

/* What of a capacity may be used by a plan that fits. */
static uint64_t without_margin(uint64_t capacity)
{
    return capacity / 100 * (100 - DTP_MARGIN_PERCENT);
}

static void judge_host(uint64_t needed, uint64_t capacity, enum dtp_shortage shortage, struct dtp_memory *memory)
{
    bool judged = capacity != 0 && needed > without_margin(capacity);
    enum dtp_verdict verdict = needed > capacity ? DTP_VERDICT_OOM : DTP_VERDICT_TIGHT;
    if (!judged || verdict <= memory->verdict)
        return;
    memory->verdict = verdict;
    memory->shortage = shortage;
}

static void judge_gpu(struct dtp_memory *memory)
{
    uint64_t needed = memory->allocated_peak_bytes + memory->context_bytes + memory->nccl_bytes;
    memory->verdict = DTP_VERDICT_TIGHT;
    if (needed > memory->capacity_bytes) {
        memory->verdict = DTP_VERDICT_OOM;
        memory->shortage = DTP_SHORT_OF_TENSORS;
    } else if (memory->device_peak_bytes > memory->capacity_bytes) {
        memory->shortage = DTP_SHORT_OF_CACHE;
    } else if (memory->device_peak_bytes > without_margin(memory->capacity_bytes)) {
        memory->shortage = DTP_SHORT_OF_MARGIN;
    } else {
        memory->verdict = DTP_VERDICT_FITS;
        memory->shortage = DTP_SHORT_OF_NOTHING;
    }
}

void dtp_memory_judge(struct dtp_memory *memory)
{
    judge_gpu(memory);
    judge_host(memory->host_bytes, memory->host_capacity_bytes, DTP_SHORT_OF_HOST, memory);
    judge_host(memory->nvme_bytes, memory->nvme_capacity_bytes, DTP_SHORT_OF_NVME, memory);
}

/* What stands on top of the tensors, and beside the GPU. */
static void beyond_tensors(struct dtp_memory_job *job)
{
    struct dtp_memory *out = job->out;
    const struct dtp_cluster *cluster = job->cluster;
    uint64_t gpus = cluster->gpus < cluster->gpus_per_node ? cluster->gpus : cluster->gpus_per_node;
    struct dtp_part_chain reserved = {.record = job->record}, driver = {.record = job->record};
    out->after_init_bytes = after_init_bytes(job);
    out->reserved_peak_bytes = dtp_allocator_reserved_bytes(job, out->allocated_peak_bytes, &reserved);
    out->context_bytes = dtp_context_bytes(job, &driver);
    out->nccl_bytes = dtp_nccl_bytes(job, &driver);
    out->device_peak_bytes = out->reserved_peak_bytes + out->context_bytes + out->nccl_bytes;
    out->capacity_bytes = cluster->gpu.memory_bytes;
    out->host_bytes = gpus * job->state.host;
    out->nvme_bytes = gpus * job->state.nvme;
    out->host_capacity_bytes = dtp_cluster_host_share(cluster, cluster->machine.host_memory_bytes);
    out->nvme_capacity_bytes = dtp_cluster_host_share(cluster, cluster->machine.nvme_bytes);
    dtp_memory_judge(out);
    if (!job->record)
        return;
    job->record->node_gpus = gpus;
    job->record->newest[DTP_ACCOUNT_PEAK] = job->phase_newest[out->peak_phase];
    job->record->newest[DTP_ACCOUNT_RESERVED] = reserved.newest;
    job->record->newest[DTP_ACCOUNT_DRIVER] = driver.newest;
    job->record->newest[DTP_ACCOUNT_HOST] = job->state.host_chain.newest;
    job->record->newest[DTP_ACCOUNT_NVME] = job->state.nvme_chain.newest;
}

void dtp_counts_of(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                   const struct dtp_plan *plan, struct dtp_counts *out)
{
    const struct dtp_closed_form_hooks *hooks = plan->runtime->closed;
    dtp_units_count(transformer, cluster, plan, &out->units);
    dtp_element_bytes_count(plan, &out->bytes);
    dtp_activations_count(transformer, cluster, plan, &out->activations);
    if (!hooks->own_blocks)
        dtp_block_places_count(transformer, cluster, plan, &out->places);
    if (hooks->count)
        hooks->count(transformer, cluster, plan, out);
}

void dtp_counted_memory(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                        const struct dtp_plan *plan, const struct dtp_counts *counts, struct dtp_memory *out,
                        struct dtp_memory_parts *parts)
{
    struct dtp_memory_job job; /* 1 KiB: to clear what is about to be written takes a tenth of the whole call */
    job.transformer = transformer;
    job.cluster = cluster;
    job.plan = plan;
    job.tokens = dtp_bytes_product(plan->micro_batch, plan->sequence);
    job.compute_stream_peak = 0;
    job.out = out;
    job.record = parts;
    *out = (struct dtp_memory){0};
    if (parts)
        parts->count = 0;
    job.activations = counts->activations;
    job.places = &counts->places;
    job.units = counts->units;
    job.bytes = counts->bytes;
    job.own = counts->own;
    dtp_state_bytes_count(transformer, &job.units, plan, &job.bytes, parts, &job.state);
    job.at_rest = at_rest(&job);
    plan->runtime->closed->memory(&job);
    summarise(out);
    beyond_tensors(&job);
}

void dtp_closed_form_memory_parts(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                  const struct dtp_plan *plan, struct dtp_memory *out, struct dtp_memory_parts *parts)
{
    struct dtp_counts counts;
    dtp_counts_of(transformer, cluster, plan, &counts);
    dtp_counted_memory(transformer, cluster, plan, &counts, out, parts);
}

void dtp_closed_form_memory(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                            const struct dtp_plan *plan, struct dtp_memory *out)
{
    dtp_closed_form_memory_parts(transformer, cluster, plan, out, NULL);
}
