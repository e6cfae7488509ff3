/* Memory of a plan: state at rest, the instants that can be the peak, and what allocator and driver put on top. */
#include "allocator.h"
#include "bytes.h"
#include "closed_form.h"
#include "memory_instant.h"

#define TIGHT_PERCENT 95u /* of the capacity */

/* cuBLAS workspace per handle and stream, from the caching allocator: 4096 x 8 KiB on Hopper and later, else 2 x 4 MiB
 * + 8 x 16 KiB (CublasHandlePool.cpp). Forward's thread and autograd's each have one. RoPE's fp32 tables of sine and
 * cosine and the micro-step's 64-bit tokens ride along. */
static uint64_t workspace_bytes(const struct dtp_memory_job *job)
{
    const struct dtp_transformer *t = job->transformer;
    bool large =
        job->cluster->gpu.architecture == DTP_GPU_HOPPER || job->cluster->gpu.architecture == DTP_GPU_BLACKWELL;
    uint64_t cublas = large ? UINT64_C(4096) * 8192 : UINT64_C(4096) * 2048 + UINT64_C(16384) * 8;
    uint64_t rope = t->position == DTP_POSITION_ROPE ? dtp_bytes_product(4 * t->head_dim, job->plan->sequence) : 0;
    uint64_t handles = job->plan->runtime == DTP_RUNTIME_DTPLAN ? 1 : 2;
    return handles * cublas + rope + dtp_tokens_bytes(job, 8);
}

/* Transformer Engine's casts of the matmul weights, by rows and by columns, 1 byte each, cached over the micro-steps; of
 * sharded weights only the unit in use and the one being gathered have any. */
static uint64_t fp8_weight_bytes(const struct dtp_memory_job *job)
{
    if (!dtp_plan_keeps_fp8(job->plan))
        return 0;
    const struct dtp_units *u = &job->units;
    uint64_t layers = job->transformer->layers, two_units = 2 * u->layers_per_unit;
    if (dtp_plan_shards_params(job->plan) && u->count && two_units < layers)
        layers = two_units;
    return 2 * layers * u->layer_matmul;
}

/* Parameters, and DDP's buckets or Megatron's gradient buffer where they are made at construction. cuBLAS workspaces
 * count: a process that is about to train has run a matmul. */
static uint64_t after_init_bytes(const struct dtp_memory_job *job)
{
    const struct dtp_plan *plan = job->plan;
    bool buckets = plan->runtime == DTP_RUNTIME_TORCH && job->cluster->gpus > 1 && !dtp_plan_shards_params(plan);
    bool buffer = plan->runtime == DTP_RUNTIME_MEGATRON || plan->runtime == DTP_RUNTIME_DTPLAN;
    uint64_t grads = buckets ? job->bytes.grads * job->units.total : buffer ? job->state.grads : 0;
    return job->state.params + grads + job->workspace;
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

/* The allocator gives cached segments back before it fails, so only tensors, context and NCCL decide what cannot run;
 * a job whose segments come near the capacity runs with retries, or not at all on a worse day. */
static enum dtp_verdict verdict_of(const struct dtp_memory *memory)
{
    uint64_t needed = memory->allocated_peak_bytes + memory->context_bytes + memory->nccl_bytes;
    if (needed > memory->capacity_bytes)
        return DTP_VERDICT_OOM;
    return memory->device_peak_bytes > memory->capacity_bytes / 100 * TIGHT_PERCENT ? DTP_VERDICT_TIGHT
                                                                                    : DTP_VERDICT_FITS;
}

void dtp_closed_form_memory(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                            const struct dtp_plan *plan, struct dtp_memory *out)
{
    struct dtp_memory_job job = {.transformer = transformer,
                                 .cluster = cluster,
                                 .plan = plan,
                                 .tokens = dtp_bytes_product(plan->micro_batch, plan->sequence),
                                 .out = out};
    *out = (struct dtp_memory){0};
    dtp_activations_count(transformer, cluster, plan, &job.activations);
    dtp_units_count(transformer, cluster, plan, &job.units);
    dtp_element_bytes_count(plan, &job.bytes);
    dtp_state_bytes_count(transformer, &job.units, plan, &job.state);
    job.workspace = workspace_bytes(&job);
    job.fp8_weights = fp8_weight_bytes(&job);
    if (dtp_plan_shards_params(plan))
        dtp_memory_gathered(&job);
    else
        dtp_memory_replicated(&job);
    summarise(out);
    uint64_t gpus = cluster->gpus < cluster->gpus_per_node ? cluster->gpus : cluster->gpus_per_node;
    out->after_init_bytes = after_init_bytes(&job);
    out->reserved_peak_bytes = dtp_allocator_reserved_bytes(&job, out->allocated_peak_bytes);
    out->context_bytes = dtp_context_bytes(&job);
    out->nccl_bytes = dtp_nccl_bytes(&job);
    out->device_peak_bytes = out->reserved_peak_bytes + out->context_bytes + out->nccl_bytes;
    out->capacity_bytes = cluster->gpu.memory_bytes;
    out->host_bytes = gpus * job.state.host;
    out->nvme_bytes = gpus * job.state.nvme;
    out->verdict = verdict_of(out);
}
