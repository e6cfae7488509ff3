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
    job->plan.offload = DTP_OFFLOAD_NONE, job->plan.reshard_group = 0;
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
    a->gptq_operators = a->base == DTP_BASE_INT4 && random_bool();
    if (a->rank == 16) { /* DoRA's magnitudes */
        a->dora = true, a->base = DTP_BASE_NONE, a->gptq_operators = false;
        job->plan.compile = false;
    }
    return dtp_plan_resolve(&job->plan, &job->transformer, &job->cluster, NULL) == DTP_OK;
}

static inline void random_prepared(struct dtp_transformer *t, struct dtp_plan *plan)
{
    struct dtp_adapter_choice *a = &plan->adapters;
    a->prepare_kbit = true, a->fp32_ends = random_bool(), a->dora = a->train_ends = a->gptq_operators = false;
    a->base = random_bool() ? DTP_BASE_NF4 : DTP_BASE_NF4_DOUBLE, a->dtype = DTP_FP32;
    plan->strategy = DTP_DDP, plan->fsdp1 = plan->fast_kernels = false;
    dtp_precision_recipe("bf16-mixed", &plan->precision);
    if (plan->attention == DTP_ATTENTION_MATH)
        plan->attention = DTP_ATTENTION_FLASH;
    t->norm = DTP_RMS_NORM, t->position = DTP_POSITION_ROPE, t->parallel_block = DTP_PARALLEL_NONE;
    t->norm_without_weight = t->qk_norm = t->embedding_norm = false, t->final_norm = true;
}

/* The same under Transformers' Trainer, with adapters or without. */
static inline bool random_peft(struct random_job *job)
{
    bool adapts = random_below(3) != 0;
    random_adapters(job); /* whatever is refused there is resolved again here */
    struct dtp_adapter_choice chosen = job->plan.adapters;
    struct dtp_plan plan = job->asked;
    plan.adapters = adapts ? chosen : plan.adapters;
    plan.runtime = &dtp_runtime_peft;
    plan.strategy = random_bool() ? DTP_DDP : DTP_FULL_SHARD;
    plan.shard_group = 0, plan.reshard_group = 0, plan.cp = plan.tp = 1;
    plan.offload = DTP_OFFLOAD_NONE, plan.comm_hook = DTP_COMM_HOOK_NONE;
    plan.fsdp1 = adapts ? plan.strategy == DTP_FULL_SHARD && random_bool() : plan.fsdp1;
    if (adapts && plan.fsdp1) {
        plan.adapters.train_ends = false;
        plan.offload = random_bool() ? DTP_OFFLOAD_PARAMS : DTP_OFFLOAD_NONE;
        if (plan.offload == DTP_OFFLOAD_PARAMS)
            plan.adapters.dora = false, plan.wrap_layers = 1;
        plan.checkpoint_within = random_below(3) == 0;
    }
    plan.compile = plan.fused_qkv = plan.fused_gate_up = false;
    plan.fast_kernels = random_below(4) == 0;
    plan.loss = random_below(4) ? DTP_LOSS_EAGER : DTP_LOSS_FUSED;
    plan.checkpointing = random_bool() ? DTP_CHECKPOINT_FULL : DTP_CHECKPOINT_NONE;
    plan.checkpoint_every = 0;
    if (plan.precision.compute == DTP_FP8)
        dtp_precision_recipe("bf16", &plan.precision);
    job->transformer.norm_place = DTP_NORMS_BEFORE, job->transformer.final_softcap = 0;
    plan.narrow_logits = plan.loss == DTP_LOSS_EAGER && random_bool();
    plan.shifted_logits = random_bool();
    plan.autocast = !adapts && dtp_dtype_bytes(plan.precision.params) == 2 &&
                    dtp_dtype_bytes(plan.precision.compute) == 2 && random_bool();
    if (job->transformer.activation == DTP_GELU && !job->transformer.experts && random_bool())
        job->transformer.activation = DTP_GELU_NEW;
    if (adapts && random_below(4) == 0) /* prepare_model_for_kbit_training */
        random_prepared(&job->transformer, &plan);
    const struct dtp_adapter_choice *a = &plan.adapters;
    bool fuses = !a->rank || (!a->dora && !a->prepare_kbit);
    plan.fused_qkv = fuses && random_bool() && (!a->rank || (a->targets & DTP_TARGETS_QKV) % DTP_TARGETS_QKV == 0);
    plan.fused_gate_up = fuses && random_bool() && (!a->rank || (a->targets & DTP_TARGETS_UP) % DTP_TARGETS_UP == 0);
    const uint64_t drawn = random_state; /* draws that came later leave the others as they are */
    plan.unread_loss = random_bool();
    plan.fused_activation =
        !plan.fused_gate_up && job->transformer.activation != DTP_SWIGLU_CLAMPED && random_below(4) == 0;
    random_state = drawn;
    job->plan = plan;
    return dtp_plan_resolve(&job->plan, &job->transformer, &job->cluster, NULL) == DTP_OK;
}

/* And under DeepSpeed's engine, which casts the whole model. */
static inline bool random_peft_deepspeed(struct random_job *job)
{
    random_peft(job);
    struct dtp_plan plan = job->plan;
    plan.runtime = &dtp_runtime_deepspeed;
    plan.strategy = (enum dtp_strategy)(DTP_ZERO1 + random_below(3));
    plan.fsdp1 = plan.reshard_after_forward = false, plan.shard_group = 0;
    plan.deepspeed.transformers_layers = true;
    plan.deepspeed.overlap_comm = random_bool();
    if (plan.strategy == DTP_ZERO3) {
        random_deepspeed_sizes(&plan);
        plan.adapters.base = DTP_BASE_NONE, plan.adapters.gptq_operators = false;
        plan.reshard_after_forward = true;
    }
    plan.deepspeed.reduce_bucket_size = UINT64_C(1) << (10 + random_below(18));
    plan.adapters.train_ends = plan.adapters.dora = plan.adapters.prepare_kbit = plan.adapters.fp32_ends = false;
    plan.adapters.dtype = DTP_BF16;
    plan.optimizer = DTP_ADAMW_FUSED;
    dtp_precision_recipe(random_bool() ? "bf16-mixed" : "fp16-mixed", &plan.precision);
    job->plan = plan;
    return dtp_plan_resolve(&job->plan, &job->transformer, &job->cluster, NULL) == DTP_OK;
}

/* And under Megatron-Bridge, one beside a fused linear; of one stage that tensor parallel ranks do not divide. */
static inline bool random_megatron_adapters(struct random_job *job)
{
    struct dtp_plan plan = job->asked;
    struct dtp_adapter_choice *a = &plan.adapters;
    plan.runtime = &dtp_runtime_megatron;
    plan.strategy = random_bool() ? DTP_DDP : DTP_ZERO1;
    plan.shard_group = plan.reshard_group = 0, plan.tp = plan.pp = plan.cp = plan.virtual_stages = 1;
    plan.compile = plan.fsdp1 = plan.tp_overlap = plan.post_validation = false;
    plan.offload = DTP_OFFLOAD_NONE, plan.comm_hook = DTP_COMM_HOOK_NONE, plan.megatron.recompute = 0;
    plan.optimizer = DTP_ADAMW_FUSED, plan.checkpoint_every = 0;
    plan.checkpointing = random_bool()   ? DTP_CHECKPOINT_NONE
                         : random_bool() ? DTP_CHECKPOINT_FULL
                                         : DTP_CHECKPOINT_SELECTIVE_ATTENTION;
    plan.megatron.overlap = random_bool();
    if (plan.precision.compute == DTP_FP8 || random_below(4) == 0)
        dtp_precision_recipe(random_bool() ? "fp8-current" : "mxfp8", &plan.precision);
    dtp_precision_for_runtime(&plan.precision, plan.runtime);
    *a = (struct dtp_adapter_choice){.rank = 1u << random_below(7), .dtype = DTP_BF16};
    a->targets = (random_bool() ? DTP_TARGETS_QKV : 0) | (random_bool() ? 1u << DTP_TARGET_OUTPUT : 0) |
                 (random_bool() ? DTP_TARGETS_UP : 0) | (random_bool() ? 1u << DTP_TARGET_DOWN : 0);
    a->dropout = random_below(4) ? 0 : 0.1;
    job->plan = plan;
    return dtp_plan_resolve(&job->plan, &job->transformer, &job->cluster, NULL) == DTP_OK;
}

#endif
