/* Memory of a plan from its step program's live bytes: sums by owner, what stands beside the program, whether it fits.
 */
#include "closed/memory.h"

#include "closed/carried.h"
#include "closed/closed_form_hooks.h"
#include "cost/calibration.h"
#include "plan/slice.h"

#include <string.h>

/* ---- of the program ---------------------------------------------------------------------------------------------- */

static void take_live(const struct dtp_live_bytes *live, struct dtp_memory *out)
{
    memcpy(out->phase_bytes, live->phase_bytes, sizeof out->phase_bytes);
    memcpy(out->phase_total_bytes, live->phase_total_bytes, sizeof out->phase_total_bytes);
    out->peak_phase = live->peak_phase;
    out->allocated_peak_bytes = live->phase_total_bytes[live->peak_phase];
    out->params_bytes = live->most_bytes[DTP_OWNER_PARAMS];
    out->grads_bytes = live->most_bytes[DTP_OWNER_GRADS];
    out->optimizer_bytes = live->most_bytes[DTP_OWNER_OPTIMIZER];
    out->activations_bytes = live->most_bytes[DTP_OWNER_ACTIVATIONS];
    const uint64_t *peak = out->phase_bytes[out->peak_phase];
    out->temporary_bytes = out->allocated_peak_bytes - peak[DTP_OWNER_PARAMS] - peak[DTP_OWNER_GRADS] -
                           peak[DTP_OWNER_OPTIMIZER] - peak[DTP_OWNER_ACTIVATIONS];
}

/* Parameters, and DDP's buckets, Megatron's gradient buffer or nanotron's sums where they are made at construction.
 * cuBLAS workspaces count: a process that is about to train has run a matmul. Our executor takes its arena at once. */
static uint64_t after_init_bytes(const struct dtp_beside *b, const struct dtp_memory *memory)
{
    const uint64_t *standing = b->live->standing_bytes;
    bool grads = dtp_plan_has_ddp_buckets(b->plan, b->cluster) || b->plan->runtime->gradients_in_matmul ||
                 dtp_plan_sums_gradients(b->plan);
    if (b->plan->runtime->arena)
        return memory->allocated_peak_bytes;
    const struct dtp_closed_form_hooks *hooks = b->plan->runtime->closed;
    uint64_t more = hooks->first_bytes ? hooks->first_bytes(b) : 0;
    return standing[DTP_OWNER_PARAMS] + (grads ? standing[DTP_OWNER_GRADS] : 0) + standing[DTP_OWNER_WORKSPACE] + more;
}

/* ---- segments ---------------------------------------------------------------------------------------------------- */

static uint64_t pools(const struct dtp_live_bytes *live, struct dtp_memory_list *list)
{
    uint64_t others = 0;
    for (int stream = 0; stream < DTP_STREAM_COUNT; stream++)
        if (stream != DTP_STREAM_COMPUTE && stream != DTP_STREAM_GATHER && stream != DTP_STREAM_REDUCE)
            others += live->pool_bytes[stream];
    return dtp_memory_part(list, DTP_TERM_COMPUTE_POOL, 1, 1, live->pool_bytes[DTP_STREAM_COMPUTE]) +
           dtp_memory_part(list, DTP_TERM_GATHER_POOL, 1, 1, live->pool_bytes[DTP_STREAM_GATHER]) +
           dtp_memory_part(list, DTP_TERM_REDUCE_POOL, 1, 1, live->pool_bytes[DTP_STREAM_REDUCE]) +
           dtp_memory_part(list, DTP_TERM_OTHER_POOLS, 1, 1, others);
}

/* What no tensor fits into; `made_anew`: bytes that the runtime laid anew beside them. */
static uint64_t fragments(const struct dtp_beside *b, uint64_t made_anew, struct dtp_memory_list *list)
{
    const struct dtp_live_bytes *live = b->live;
    uint64_t made_later = live->standing_bytes[DTP_OWNER_OPTIMIZER] + made_anew;
    uint64_t peak = live->pool_bytes[DTP_STREAM_COMPUTE], resting = live->standing_pool_bytes[DTP_STREAM_COMPUTE];
    uint64_t pieces = (uint64_t)((double)(peak - resting) * dtp_calibration.torch_fragmentation);
    uint64_t tokens = dtp_plan_tokens(b->plan);
    uint64_t logits = dtp_bytes_product(tokens, b->bytes.compute * b->transformer->vocab);
    bool fused = dtp_plan_loss(b->plan) == DTP_LOSS_FUSED;
    uint64_t broken = fused && made_later && logits > made_later ? logits - made_later : 0;
    return pieces > broken ? dtp_memory_part(list, DTP_TERM_FRAGMENTS, 1, 1, pieces)
                           : dtp_memory_part(list, DTP_TERM_BROKEN_LOGITS, 1, 1, broken);
}

static uint64_t reserved_bytes(const struct dtp_beside *b, uint64_t allocated_bytes, struct dtp_memory_list *list)
{
    const struct dtp_closed_form_hooks *hooks = b->plan->runtime->closed;
    uint64_t reserved = 0;
    if (!b->plan->runtime->arena) {
        uint64_t made_anew = 0, own = 0;
        reserved = pools(b->live, list);
        if (hooks->own_segments && !b->plan->expandable_segments)
            own = hooks->own_segments(b, list, &made_anew);
        reserved += own;
        if (!b->plan->expandable_segments) /* a pool that grows by pages: what is free in it serves any size */
            reserved += fragments(b, made_anew, list);
    }
    if (reserved > allocated_bytes)
        return reserved;
    if (list)
        list->count = 0;
    return dtp_memory_part(list, DTP_TERM_TENSORS, 1, 1, allocated_bytes);
}

/* ---- driver, host, NVMe ------------------------------------------------------------------------------------------ */

/* CUDA context with the modules that a training step loads. */
static uint64_t context_bytes(const struct dtp_beside *b, struct dtp_memory_list *list)
{
    if (dtp_cluster_is_host(b->cluster))
        return 0;
    if (b->plan->runtime->arena)
        return dtp_memory_part(list, DTP_TERM_EXECUTOR_CONTEXT, 1, 1, (uint64_t)dtp_calibration.executor_context_bytes);
    return dtp_memory_part(list, DTP_TERM_CONTEXT, 1, 1, (uint64_t)dtp_calibration.context_bytes);
}

static void add_offloaded(const struct dtp_beside *b, struct dtp_memory *out, struct dtp_memory_parts *parts)
{
    const struct dtp_cluster *cluster = b->cluster;
    uint64_t gpus = cluster->gpus < cluster->gpus_per_node ? cluster->gpus : cluster->gpus_per_node;
    struct dtp_state_bytes state;
    dtp_state_bytes_count(b->transformer, cluster, &b->units, b->plan, &b->bytes, parts, &state);
    const struct dtp_carried_rows carried = dtp_carried_rows_of(b->transformer, b->plan);
    dtp_state_add_host(&state, DTP_TERM_HOST_CHECKPOINTS, carried.down, 1, dtp_pinned_bytes(carried.bytes));
    out->host_bytes = gpus * state.host;
    out->nvme_bytes = gpus * state.nvme;
    out->host_capacity_bytes = dtp_cluster_host_share(cluster, cluster->machine.host_memory_bytes);
    out->nvme_capacity_bytes = dtp_cluster_host_share(cluster, cluster->machine.nvme_bytes);
    if (parts)
        parts->node_gpus = gpus;
}

void dtp_memory_of_live(const struct dtp_live_bytes *live, const struct dtp_transformer *transformer,
                        const struct dtp_cluster *cluster, const struct dtp_plan *plan, struct dtp_memory *out,
                        struct dtp_memory_parts *parts)
{
    struct dtp_transformer slice = dtp_plan_slice(transformer, plan);
    struct dtp_beside b = {.transformer = &slice, .cluster = cluster, .plan = plan, .live = live};
    struct dtp_memory_list *driver = parts ? &parts->driver : NULL;
    dtp_units_count(&slice, cluster, plan, &b.units);
    dtp_element_bytes_count(plan, &b.bytes);
    *out = (struct dtp_memory){.capacity_bytes = cluster->gpu.memory_bytes};
    if (parts)
        *parts = (struct dtp_memory_parts){.node_gpus = 0};
    take_live(live, out);
    out->after_init_bytes = after_init_bytes(&b, out);
    out->reserved_peak_bytes = reserved_bytes(&b, out->allocated_peak_bytes, parts ? &parts->reserved : NULL);
    out->context_bytes = context_bytes(&b, driver);
    out->nccl_bytes = dtp_nccl_bytes(&b, driver);
    out->device_peak_bytes = out->reserved_peak_bytes + out->context_bytes + out->nccl_bytes;
    add_offloaded(&b, out, parts);
    dtp_memory_judge(out);
}

/* ---- the verdict ------------------------------------------------------------------------------------------------- */

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
