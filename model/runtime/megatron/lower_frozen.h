/* Frozen weights beside adapters, which alone lie in DDP's buffers (requires_grad of Megatron-Core's
 * distributed_data_parallel.py). */
#ifndef DTP_MEGATRON_LOWER_FROZEN_H
#define DTP_MEGATRON_LOWER_FROZEN_H

#include "lower/lowering.h"

/* Bytes of what is not trained. */
uint64_t dtp_megatron_frozen_bytes(const struct dtp_lowering *l);
/* One buffer of all adapters, which those of each layer are then read from. */
dtp_buffer_id dtp_megatron_make_adapters(struct dtp_lowering *l);

#endif
