/* What layers, loss and checkpoints of Transformers' modeling files do under its Trainer, whoever shards them: runtime
 * peft by PyTorch's strategies, runtime deepspeed with transformers_layers by ZeRO (dtp_plan_layers of rules.h). */
#ifndef DTP_TRANSFORMERS_LAYERS_H
#define DTP_TRANSFORMERS_LAYERS_H

/* Fields of struct dtp_runtime. */
#define DTP_TRANSFORMERS_HABITS                                                                                        \
    .copies_heads = true, .chains_norms = true, .shifts_logits = true, .holds_replayed = true,                         \
    .inputs_require_grad = true, .defends_results = true, .casts_to_adapters = true, .copies_trained = true,           \
    .calls_experts = true, .bitsandbytes = true, .joins_sinks = true

#endif
