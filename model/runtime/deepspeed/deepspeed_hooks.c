/* DeepSpeed's hooks of the closed form: state on the host. */
#include "runtime/deepspeed/deepspeed_hooks.h"

#include "base/bytes.h"
#include "closed/model_parallel.h"
#include "plan/rules.h"
#include "plan/runtime_sizes.h"
#include "runtime/deepspeed/bf16_optimizer.h"
#include "runtime/deepspeed/deepspeed.h"
#include "runtime/deepspeed/zeropp.h"

/* ZeRO-Offload: fp32 master and gradients and a buffer in the model's dtype are pinned and flat, the moments are
 * pageable. That buffer is stage 3's grad_partitions_flat_buffer, the staging copy of the parameters below it;
 * offloaded parameters are one more (stage3.py). ZeRO-Infinity has master, moments, fp32 gradients (swap_out_gradients)
 * and parameters on NVMe, and in memory its swap buffers and that flat buffer. */
static void offload_state(const struct dtp_transformer *transformer, const struct dtp_units *units,
                          const struct dtp_plan *plan, const struct dtp_element_bytes *bytes, uint64_t shard,
                          struct dtp_state_bytes *out)
{
    (void)transformer, (void)units;
    out->optimizer_elements = 0;
    if (plan->offload == DTP_OFFLOAD_NVME) {
        uint64_t group = shard < DTP_DEEPSPEED_SUB_GROUP ? shard : DTP_DEEPSPEED_SUB_GROUP;
        dtp_state_add_nvme(out, DTP_TERM_NVME_MASTER, shard, 4);
        dtp_state_add_nvme(out, DTP_TERM_NVME_MOMENTS, shard, bytes->moments);
        dtp_state_add_host(out, DTP_TERM_SWAP_BUFFERS, DTP_DEEPSPEED_SWAP_BUFFERS, 1, dtp_pinned_bytes(4 * group));
        dtp_state_add_nvme(out, DTP_TERM_NVME_GRADS, shard, 4);
        dtp_state_add_nvme(out, DTP_TERM_NVME_PARAMS, shard, bytes->params);
        dtp_state_add_host(out, DTP_TERM_HOST_PARTITION, 1, 1, dtp_pinned_bytes(bytes->grads * shard));
        dtp_state_add_host(out, DTP_TERM_SWAP_PARAMS, 1, 1,
                           dtp_pinned_bytes(bytes->params * DTP_DEEPSPEED_PARAM_BUFFERS));
    } else {
        dtp_state_add_host(out, DTP_TERM_HOST_FP32, 2, 1, dtp_pinned_bytes(4 * shard));
        bool third = plan->strategy == DTP_ZERO3;
        dtp_state_add_host(out, third ? DTP_TERM_HOST_PARTITION : DTP_TERM_HOST_STAGING, 1, 1,
                           dtp_pinned_bytes(bytes->params * shard));
        dtp_state_add_host(out, DTP_TERM_HOST_MOMENTS, 1, shard, bytes->moments);
        if (plan->offload == DTP_OFFLOAD_PARAMS)
            dtp_state_add_host(out, DTP_TERM_HOST_PINNED_PARAMS, 1, 1, dtp_pinned_bytes(bytes->params * shard));
    }
    if (plan->offload != DTP_OFFLOAD_OPTIMIZER)
        out->params_elements = 0;
    if (plan->strategy == DTP_ZERO2 || plan->strategy == DTP_ZERO3) /* stage 1 keeps every gradient as it is made */
        out->grads_elements = 0;
}

/* deepspeed.initialize clones the rank's part into fp32 (stage_1_and_2.py, single_partition_of_fp32_groups; stage3.py,
 * _create_fp32_partitions; bf16_optimizer.py), where Adam's moments come with its first step. Stage 3 makes its reduce
 * bucket and the flat buffer of gradients then, stages 1 and 2 what a gradient for the host passes through;
 * BF16_Optimizer's sums are counted as gradients, its 16-bit gradients are the first backward's. */
static uint64_t first_bytes(const struct dtp_beside *b)
{
    const uint64_t *standing = b->live->standing_bytes;
    uint64_t at_once = b->bytes.block_elements ? b->bytes.block_elements : 1, made = 0;
    if (b->bytes.master)
        made = standing[DTP_OWNER_OPTIMIZER] / dtp_optimizer_bytes(&b->bytes, at_once) * at_once * b->bytes.master;
    if (b->plan->deepspeed.bf16_optimizer)
        return made;
    bool flat = b->plan->strategy == DTP_ZERO3;
    return made + standing[DTP_OWNER_REDUCE] + (flat ? standing[DTP_OWNER_GRADS] : 0);
}

/* Stages 1 and 2 copy gradients on the stream that reduces them, the compute stream unless overlap_comm is on; in stage
 * 3 the host stands still for them and issues nothing. */
static bool copies_block(const struct dtp_plan *plan)
{
    return !plan->deepspeed.overlap_comm || plan->strategy == DTP_ZERO3;
}

/* ---- ZeRO++ ------------------------------------------------------------------------------------------------------ */

static uint32_t second_copy_ranks(const struct dtp_plan *plan)
{
    return plan->deepspeed.zero_hpz_partition_size;
}

/* Of second copies; of a node and between nodes. */
static uint32_t more_communicators(const struct dtp_plan *plan, const struct dtp_cluster *cluster)
{
    return (plan->deepspeed.zero_hpz_partition_size > 1 ? 1u : 0u) + (dtp_zeropp_reduces(plan, cluster) ? 2u : 0u);
}

static void add_wire_casts(const struct dtp_timing *c, double *per_gather, double *per_reduce)
{
    const struct dtp_plan *plan = c->plan;
    double w = dtp_plan_compute_bytes(plan), r = dtp_dtype_bytes(plan->precision.reduce);
    if (plan->deepspeed.zero_quantized_weights) /* a shard into int8, all of it back */
        *per_gather += (1 + w) * (1 + 1.0 / plan->shard_group);
    if (dtp_zeropp_reduces(plan, c->cluster)) /* a gradient into int4, a node's sum, and back */
        *per_reduce += 0.5 + (1 + 2 * r) / c->cluster->gpus_per_node;
}

/* ---- BF16_Optimizer ---------------------------------------------------------------------------------------------- */

static double gradient_bytes(const struct dtp_plan *plan, bool reduces)
{
    struct dtp_element_bytes bytes;
    if (!plan->deepspeed.bf16_optimizer)
        return 0;
    dtp_element_bytes_count(plan, &bytes);
    double casts = reduces && bytes.reduce != bytes.grads ? 2 * (double)(bytes.grads + bytes.reduce) : 0;
    return DTP_BF16_ZERO_BYTES + DTP_BF16_ADD_BYTES + DTP_BF16_SUM_BYTES + casts;
}

static double beside_update_s(const struct dtp_timing *c)
{
    double bytes = c->plan->deepspeed.bf16_optimizer ? DTP_BF16_STEP_BYTES : 0;
    return bytes * (double)c->count.total / c->streaming_bytes_per_s;
}

/* ---- what they are ----------------------------------------------------------------------------------------------- */

const struct dtp_closed_form_hooks dtp_deepspeed_closed_form = {
    .offload_state = offload_state,
    .first_bytes = first_bytes,
    .more_communicators = more_communicators,
    .traffic = dtp_deepspeed_traffic,
    .second_copy_ranks = second_copy_ranks,
    .exchanges_by_node = true,
    .add_wire_casts = add_wire_casts,
    .copies_block = copies_block,
    .sums_go_up = true,
    .gradient_bytes = gradient_bytes,
    .beside_update_s = beside_update_s,
    .slice = dtp_slice_of,
    .add_stages = dtp_stages_of_slice,
    .add_stages_memory = dtp_stages_memory_of_slice,
};
