/* The runtime Megatron-LM, of plan/runtime.h, and what its files fill it with. */
#ifndef DTP_MEGATRON_RUNTIME_H
#define DTP_MEGATRON_RUNTIME_H

extern const struct dtp_runtime dtp_runtime_megatron;

extern const struct dtp_closed_form_hooks dtp_megatron_closed_form; /* closed_form_megatron.c */

/* lower_buffered.c: all collectives behind backward; beside it and beside forward; gradients in shards */
extern const struct dtp_lower_hooks dtp_lower_megatron, dtp_lower_megatron_overlapped, dtp_lower_megatron_sharded;

#endif
