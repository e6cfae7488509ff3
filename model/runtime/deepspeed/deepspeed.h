/* The runtime DeepSpeed, of plan/runtime.h, and what its files fill it with. */
#ifndef DTP_DEEPSPEED_RUNTIME_H
#define DTP_DEEPSPEED_RUNTIME_H

extern const struct dtp_runtime dtp_runtime_deepspeed;

extern const struct dtp_closed_form_hooks dtp_deepspeed_closed_form; /* deepspeed_hooks.c */

/* lower_deepspeed.c: stages 1 and 2, stage 1 behind a pipeline; lower_bf16_optimizer.c; lower_zero3.c */
extern const struct dtp_lower_hooks dtp_lower_zero12, dtp_lower_zero1_behind, dtp_lower_bf16_optimizer, dtp_lower_zero3;

#endif
