/* Of frozen jobs, rows of FROZEN_DRAWS (frozen_jobs.h) for keys of adapters. */
#ifndef TEST_FROZEN_ADAPTER_DRAWS_H
#define TEST_FROZEN_ADAPTER_DRAWS_H

#define FROZEN_ADAPTER_DRAWS(X)                                                                                        \
    X(lora, ADAPTED, 12, "8|16|64")                                                                                    \
    X(lora_alpha, ADAPTED, 4, "16|32")                                                                                 \
    X(lora_targets, ADAPTED, 3, "attention|q+v|up+down|gate")                                                          \
    X(lora_dtype, ADAPTED, 3, "fp32")                                                                                  \
    X(lora_dropout, ADAPTED, 4, "0.05")                                                                                \
    X(base, ADAPTED, 2, "nf4|nf4|int8|fp8|int4")                                                                       \
    X(dora, ADAPTED, 8, "true")                                                                                        \
    X(gptq_operators, ADAPTED, 1, "true")                                                                              \
    X(narrow_logits, PEFT, 8, "true")                                                                                  \
    X(fused_activation, PEFT, 4, "true")                                                                               \
    X(unread_loss, PEFT, 4, "true")                                                                                    \
    X(autocast, PEFT, 8, "true")                                                                                       \
    X(transformers_layers, DIVIDED, 4, "true")                                                                         \
    X(train_ends, ADAPTED, 2, "true")                                                                                  \
    X(strategy, PEFT, 1, "ddp|full_shard|shard_grad_op")                                                               \
    X(checkpointing, PEFT, 1, "none|full")                                                                             \
    X(loss, PEFT, 1, "eager|eager|fused")                                                                              \
    X(attention, PEFT, 1, "flash|flash2|math")                                                                         \
    X(offload, PEFT, 1, "none")                                                                                        \
    X(optimizer, PEFT, 1, "adamw|adamw-foreach|adam8bit")                                                              \
    X(precision, PEFT, 1, "bf16-mixed|bf16-pure")                                                                      \
    X(norm, PEFT, 1, "rms_norm")                                                                                       \
    X(norm_place, PEFT, 1, "before")                                                                                   \
    X(final_softcap, PEFT, 1, "0")                                                                                     \
    X(fused_qkv, PEFT, 1, "false")                                                                                     \
    X(fused_gate_up, PEFT, 1, "false")                                                                                 \
    X(fused_qkv_rope, PEFT, 1, "false")                                                                                \
    X(fsdp1, PEFT, 1, "false")                                                                                         \
    X(fast_kernels, PEFT, 4, "true")                                                                                   \
    X(activation, PEFT, 16, "gelu_new")                                                                                \
    X(lora, PEFT, 2, "8|16")                                                                                           \
    X(lora_dropout, PEFT, 2, "0.1")

#endif
