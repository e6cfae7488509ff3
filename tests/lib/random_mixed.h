/* Small models with experts in some or all of their layers, and plans of them that PyTorch can run. */
#ifndef DTP_TEST_RANDOM_MIXED_H
#define DTP_TEST_RANDOM_MIXED_H

#include "plan/rules.h"

#include "lib/random_draws.h"
#include "lib/random_plans.h"

static inline struct dtp_transformer random_mixed_model(uint64_t layers)
{
    struct dtp_transformer t = dtp_transformer_default();
    t.layers = layers, t.hidden = 256, t.heads = 4, t.kv_heads = 2, t.head_dim = 64, t.vocab = 1000;
    t.ffn = random_bool() ? 1024 : 384;
    t.experts = 8, t.experts_per_token = 2, t.expert_ffn = 192;
    t.shared_expert_ffn = random_bool() ? 320 : 0, t.shared_expert_gate = t.shared_expert_ffn && random_bool();
    t.dense_layers = random_below(4);
    t.expert_layer_step = random_below(4);
    t.router = random_bool() ? DTP_ROUTER_SOFTMAX : DTP_ROUTER_SIGMOID;
    if (!random_below(4)) { /* gpt-oss */
        t.qkv_bias = t.attention_output_bias = t.expert_bias = t.router_bias = t.attention_sinks = true;
        t.activation = DTP_SWIGLU_CLAMPED;
        t.sliding_window = 32, t.sliding_window_pattern = 2;
        return t;
    }
    if (random_bool()) { /* latent attention: keys of 32 and 16 that rope turns, values of 32 or 48 */
        t.kv_heads = t.heads, t.head_dim = 48, t.rope_head_dim = 16, t.value_head_dim = random_bool() ? 32 : 48;
        t.kv_latent = 96, t.q_latent = random_bool() ? 128 : 0;
    }
    return t;
}

/* False where the plan is refused. */
static inline bool random_mixed_job(uint64_t layers, struct random_job *job)
{
    static const enum dtp_strategy strategies[] = {DTP_DDP, DTP_ZERO1, DTP_FULL_SHARD, DTP_SHARD_GRAD_OP};
    static const enum dtp_checkpointing checkpointing[] = {DTP_CHECKPOINT_NONE, DTP_CHECKPOINT_FULL,
                                                           DTP_CHECKPOINT_EVERY_N, DTP_CHECKPOINT_SELECTIVE_ATTENTION};
    *job = (struct random_job){.cluster = random_cluster(), .transformer = random_mixed_model(layers)};
    job->asked = dtp_plan_default();
    job->asked.strategy = strategies[random_below(4)];
    job->asked.checkpointing = checkpointing[random_below(4)];
    job->asked.checkpoint_every = 2;
    job->asked.compile = random_bool();
    job->asked.sequence = 128, job->asked.micro_batch = 2;
    job->asked.attention = random_below(3) ? DTP_ATTENTION_FLASH : DTP_ATTENTION_FLASH2; /* which pads values */
    job->asked.rope_fp32 = random_bool();
    job->asked.accumulate = 1 + (uint32_t)random_below(4);
    job->asked.ep = dtp_plan_is_fsdp(&job->asked) ? 1u << random_below(4) : 1;
    job->plan = job->asked;
    return dtp_plan_resolve(&job->plan, &job->transformer, &job->cluster, NULL) == DTP_OK;
}

/* The same under Transformers' Trainer, whose experts are called one after the other, with adapters or without. */
static inline bool random_called_job(uint64_t layers, struct random_job *job)
{
    random_mixed_job(layers, job); /* whatever is refused there is resolved again here */
    struct dtp_transformer *t = &job->transformer;
    struct dtp_plan plan = job->asked;
    bool adapts = random_below(3) != 0;
    t->kv_latent = t->q_latent = t->rope_head_dim = t->value_head_dim = 0, t->head_dim = 64, t->kv_heads = 2;
    t->attention_sinks = t->expert_bias = t->router_bias = t->qkv_bias = t->attention_output_bias = false;
    t->activation = random_below(4) ? DTP_SWIGLU : DTP_GELU, t->sliding_window = t->sliding_window_pattern = 0;
    t->expert_layer_step = adapts ? 1 : t->expert_layer_step, t->dense_layers = adapts ? 0 : t->dense_layers;
    plan.runtime = &dtp_runtime_peft, plan.ep = 1, plan.compile = false;
    plan.strategy = random_bool() ? DTP_DDP : DTP_FULL_SHARD;
    plan.checkpointing = random_bool() ? DTP_CHECKPOINT_FULL : DTP_CHECKPOINT_NONE, plan.checkpoint_every = 0;
    plan.fsdp1 = plan.strategy == DTP_FULL_SHARD && (plan.checkpointing == DTP_CHECKPOINT_FULL || !adapts);
    dtp_precision_recipe("bf16-pure", &plan.precision);
    if (adapts) {
        plan.adapters.rank = 1u << random_below(6);
        plan.adapters.targets = random_bool() ? DTP_TARGETS_ALL : DTP_TARGETS_ATTENTION;
        plan.adapters.dtype = random_bool() ? DTP_FP32 : DTP_BF16;
        plan.adapters.base = (enum dtp_base)random_below(DTP_BASE_COUNT);
        plan.adapters.dropout = random_bool() ? 0.05 : 0;
    }
    job->plan = plan;
    return dtp_plan_resolve(&job->plan, &job->transformer, &job->cluster, NULL) == DTP_OK;
}

/* The same by Transformers 5's grouped matmuls, gpt-oss too. */
static inline bool random_sorted_job(uint64_t layers, struct random_job *job)
{
    random_mixed_job(layers, job); /* whatever is refused there is resolved again here */
    struct dtp_transformer *t = &job->transformer;
    struct dtp_plan plan = job->asked;
    bool adapts = random_below(3) != 0;
    t->kv_latent = t->q_latent = t->rope_head_dim = t->value_head_dim = 0, t->head_dim = 64, t->kv_heads = 2;
    t->expert_layer_step = adapts ? 1 : t->expert_layer_step, t->dense_layers = adapts ? 0 : t->dense_layers;
    plan.runtime = &dtp_runtime_peft, plan.ep = 1, plan.compile = false, plan.grouped_experts = true;
    plan.strategy = random_bool() ? DTP_DDP : DTP_FULL_SHARD;
    plan.checkpointing = random_bool() ? DTP_CHECKPOINT_FULL : DTP_CHECKPOINT_NONE, plan.checkpoint_every = 0;
    dtp_precision_recipe("bf16-pure", &plan.precision);
    if (adapts) {
        plan.adapters.rank = 1u << random_below(6);
        plan.adapters.targets = random_bool() ? DTP_TARGETS_ALL : DTP_TARGETS_ATTENTION;
        plan.adapters.dtype = random_bool() ? DTP_FP32 : DTP_BF16;
        plan.adapters.dropout = random_bool() ? 0.05 : 0;
        if (plan.strategy == DTP_DDP && plan.adapters.dropout <= 0)
            plan.adapters.parameters =
                (random_bool() ? 1u << DTP_TARGET_UP : 0) | (random_bool() ? 1u << DTP_TARGET_DOWN : 0);
    }
    job->plan = plan;
    return dtp_plan_resolve(&job->plan, &job->transformer, &job->cluster, NULL) == DTP_OK;
}

/* Under runtime torch, whose experts are no linears: adapters beside others. */
static inline bool random_expert_parameters_job(uint64_t layers, struct random_job *job)
{
    random_mixed_job(layers, job); /* whatever is refused there is resolved again here */
    struct dtp_transformer *t = &job->transformer;
    struct dtp_adapter_choice *a = &job->asked.adapters;
    t->kv_latent = t->q_latent = t->rope_head_dim = t->value_head_dim = 0, t->head_dim = 64, t->kv_heads = 2;
    t->expert_layer_step = 1, t->dense_layers = 0, job->asked.ep = 1;
    a->rank = 1u << random_below(6), a->dropout = random_below(3) ? 0 : 0.05;
    a->targets = random_bool() ? DTP_TARGETS_ALL : 1 + (uint32_t)random_below(DTP_TARGETS_ATTENTION);
    a->dtype = random_bool() ? DTP_FP32 : DTP_BF16;
    a->train_ends = random_below(4) == 0;
    job->plan = job->asked;
    return dtp_plan_resolve(&job->plan, t, &job->cluster, NULL) == DTP_OK;
}

/* The same under DeepSpeed's stages 1 and 2 with AutoEP or its own layer. */
static inline bool random_deepspeed_experts_job(uint64_t layers, struct random_job *job)
{
    random_mixed_job(layers, job); /* whatever is refused there is resolved again here */
    struct dtp_transformer *t = &job->transformer;
    struct dtp_plan plan = job->asked;
    t->kv_latent = t->q_latent = t->rope_head_dim = t->value_head_dim = 0, t->head_dim = 64, t->kv_heads = 2;
    t->attention_sinks = t->expert_bias = t->router_bias = t->qkv_bias = t->attention_output_bias = false;
    t->activation = DTP_SWIGLU, t->sliding_window = t->sliding_window_pattern = 0;
    plan.runtime = &dtp_runtime_deepspeed, plan.strategy = random_bool() ? DTP_ZERO1 : DTP_ZERO2;
    plan.ep = 2u << random_below(3), plan.compile = false, plan.optimizer = DTP_ADAMW_FUSED;
    plan.deepspeed.autoep = random_bool(), plan.deepspeed.overlap_comm = random_bool();
    if (!plan.deepspeed.autoep) { /* its own layer */
        plan.ep /= 2, t->shared_expert_ffn = 0, t->shared_expert_gate = false, t->router = DTP_ROUTER_SOFTMAX;
        t->activation = random_bool() ? DTP_SWIGLU : DTP_GELU, t->experts_per_token = 1 + random_below(3);
        plan.deepspeed.drop_tokens = random_bool(), plan.megatron.capacity_factor = random_bool() ? 1.25 : 0;
        plan.expert_imbalance = plan.ep > 1 && !plan.deepspeed.drop_tokens && random_bool() ? 1.5 : 1;
        plan.deepspeed.drop_tokens |= plan.ep < 2 && plan.expert_imbalance > 1;
    }
    plan.deepspeed.reduce_bucket_size = random_bool() ? 400000 : plan.deepspeed.reduce_bucket_size;
    job->asked = job->plan = plan;
    return dtp_plan_resolve(&job->plan, &job->transformer, &job->cluster, NULL) == DTP_OK;
}

#endif
