/* A random plan under PyTorch becomes one with adapters: any rank, targets, base, strategy; false where it is refused.
 */
#ifndef TEST_RANDOM_ADAPTERS_H
#define TEST_RANDOM_ADAPTERS_H

#include "lib/random_plans.h"

static inline bool random_adapters(struct random_job *job)
{
    struct dtp_adapter_choice *a = &job->plan.adapters;
    job->plan = job->asked;
    job->plan.runtime = &dtp_runtime_torch;
    job->plan.fused_qkv = job->plan.fused_gate_up = job->plan.fsdp1 = false;
    job->plan.offload = DTP_OFFLOAD_NONE, job->plan.reshard_group = 0, job->plan.cp = 1;
    if (job->plan.strategy == DTP_ZERO2 || job->plan.strategy == DTP_HYBRID_SHARD)
        job->plan.strategy = DTP_FULL_SHARD, job->plan.shard_group = 0;
    if (job->plan.checkpointing == DTP_CHECKPOINT_SELECTIVE_MATMUL)
        job->plan.checkpointing = DTP_CHECKPOINT_FULL;
    if (job->plan.precision.compute == DTP_FP8)
        dtp_precision_recipe("bf16-mixed", &job->plan.precision);
    a->rank = 1u << random_below(7);
    a->targets = random_bool() ? DTP_TARGETS_ALL : 1 + (uint32_t)random_below(DTP_TARGETS_ALL);
    a->dtype = random_bool() ? DTP_FP32 : DTP_BF16;
    a->base = (enum dtp_base)random_below(DTP_BASE_COUNT);
    a->dropout = random_below(4) ? 0 : 0.05;
    a->train_ends = random_below(4) == 0;
    return dtp_plan_resolve(&job->plan, &job->transformer, &job->cluster, NULL) == DTP_OK;
}

#endif
