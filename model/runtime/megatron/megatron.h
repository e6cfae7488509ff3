/* The runtime Megatron-LM, of plan/runtime.h. */
#ifndef DTP_MEGATRON_RUNTIME_H
#define DTP_MEGATRON_RUNTIME_H

extern const struct dtp_runtime dtp_runtime_megatron;

#endif
