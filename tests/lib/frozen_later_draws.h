/* Of frozen jobs, rows of FROZEN_DRAWS (frozen_jobs.h) for jobs that came last: Megatron's models with experts, and
 * communication hooks of our executor, DeepSpeed's models with experts, adapters in fp32 under runtime peft. */
#ifndef TEST_FROZEN_LATER_DRAWS_H
#define TEST_FROZEN_LATER_DRAWS_H

#define FROZEN_LATER_DRAWS(X)                                                                                          \
    X(ep, ROUTED, 1, "2|2|4|8")                                                                                        \
    X(expert_imbalance, ROUTED, 3, "1.5|2")                                                                            \
    X(flex_dispatcher, ROUTED, 3, "true")                                                                              \
    X(unfused_permute, ROUTED, 4, "true")                                                                              \
    X(capacity_factor, ROUTED, 2, "1.25|2")                                                                            \
    X(pad_to_capacity, ROUTED, 4, "true")                                                                              \
    X(expert_overlap, ROUTED, 3, "true")                                                                               \
    X(recompute_modules, ROUTED, 2, "moe_act|moe|moe_act+layernorm|core_attn")                                         \
    X(cuda_graph_modules, ROUTED, 3, "attn|attn+moe_router|full_iteration")                                            \
    X(checkpointing, ROUTED, 1, "none")                                                                                \
    X(strategy, ROUTED, 1, "zero1")                                                                                    \
    X(precision, ROUTED, 1, "bf16-mixed")                                                                              \
    X(norm, ROUTED, 1, "rms_norm")                                                                                     \
    X(activation, ROUTED, 1, "swiglu")                                                                                 \
    X(position, ROUTED, 1, "rope")                                                                                     \
    X(tp, ROUTED, 1, "1")                                                                                              \
    X(cp, ROUTED, 1, "1")                                                                                              \
    X(pp, ROUTED, 1, "1|1|2")                                                                                          \
    X(schedule, ROUTED, 1, "1f1b")                                                                                     \
    X(optimizer, ROUTED, 1, "adamw")                                                                                   \
    X(megatron_overlap, ROUTED, 1, "false")                                                                            \
    X(offload, HOOKED, 1, "none")                                                                                      \
    X(precision, HOOKED, 1, "bf16-mixed|fp32")                                                                         \
    X(reduce_dtype, HOOKED, 1, "fp32")                                                                                 \
    X(strategy, HOOKED, 1, "ddp|ddp|hybrid_shard")                                                                     \
    X(comm_hook, HOOKED, 1, "fp16|bf16|int8|powersgd")                                                                 \
    X(powersgd_rank, HOOKED, 2, "2|4")                                                                                 \
    X(ep, SLOTTED, 1, "1|2|2|2|4")                                                                                     \
    X(expert_imbalance, SLOTTED, 4, "1.5")                                                                             \
    X(autoep, SLOTTED, 2, "true")                                                                                      \
    X(loss, SLOTTED, 1, "eager|fused")                                                                                 \
    X(compile, SLOTTED, 1, "false")                                                                                    \
    X(drop_tokens, SLOTTED, 3, "false")                                                                                \
    X(capacity_factor, SLOTTED, 3, "1.25|2")                                                                           \
    X(checkpointing, SLOTTED, 1, "none|full")                                                                          \
    X(strategy, SLOTTED, 1, "zero1|zero2")                                                                             \
    X(precision, SLOTTED, 1, "bf16-mixed")                                                                             \
    X(norm, SLOTTED, 1, "rms_norm")                                                                                    \
    X(activation, SLOTTED, 1, "swiglu")                                                                                \
    X(position, SLOTTED, 1, "rope")                                                                                    \
    X(tp, SLOTTED, 1, "1")                                                                                             \
    X(cp, SLOTTED, 1, "1")                                                                                             \
    X(pp, SLOTTED, 1, "1")                                                                                             \
    X(optimizer, SLOTTED, 1, "adamw")                                                                                  \
    X(offload, SLOTTED, 1, "none")                                                                                     \
    X(megatron_layers, SLOTTED, 1, "false")                                                                            \
    X(transformers_layers, SLOTTED, 1, "false")                                                                        \
    X(bf16_optimizer, SLOTTED, 1, "false")                                                                             \
    X(lora_dtype, PEFT, 2, "fp32")

#endif
