/* What DeepSpeed's offload keeps on the host and on NVMe, between lower_infinity.c and whose gradients and weights it
 * carries: lower_deepspeed.c and lower_zero3.c. */
#ifndef DTP_LOWER_INFINITY_H
#define DTP_LOWER_INFINITY_H

#include "lower/lowering.h"

/* Halves are used in turn. The first member of what stands behind l->own, whatever the stage. */
struct dtp_lower_host {
    uint64_t shard, largest, sent; /* elements: of this rank, of its largest tensor, of it downloaded so far */
    dtp_buffer_id state, grads, sums, params, temporary, read[2], swap[2];
    dtp_op_id last_read[2], uploaded[2], updated[2];
};

/* A bucket's slices of this rank go down; shards come up; the step on the host.
 */
void dtp_lower_host_make(struct dtp_lowering *l, uint64_t shard, uint64_t largest);
void dtp_lower_host_gradients(struct dtp_lowering *l, enum dtp_stream stream, dtp_buffer_id slices, uint64_t own);
void dtp_lower_host_read(struct dtp_lowering *l, uint32_t number, uint64_t bytes);
void dtp_lower_host_upload(struct dtp_lowering *l, uint32_t number, dtp_buffer_id to, uint64_t bytes, bool blocks);
void dtp_lower_host_update(struct dtp_lowering *l, dtp_buffer_id device_params);

#endif
