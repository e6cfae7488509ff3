/* The runtime DeepSpeed, of plan/runtime.h. */
#ifndef DTP_DEEPSPEED_RUNTIME_H
#define DTP_DEEPSPEED_RUNTIME_H

extern const struct dtp_runtime dtp_runtime_deepspeed;

#endif
