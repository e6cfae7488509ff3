/* clip_grad_norm_ of torch.nn.utils (clip_grad.py of 2.11), which Trainer calls by Accelerate and torchtitan by itself
 * between the last backward and the optimizer: the norm of each gradient, the norm of these norms, and all gradients
 * multiplied by what that makes of them, always and by a tensor, so that the host waits for nothing.
 *
 * Two passes over the rank's gradients: one reads, one reads and writes. Of whole gradients and of FSDP2's both are
 * foreach kernels (norms of chunks of 64 Ki elements stand in a tensor meanwhile, one number for each of the longest
 * gradient's, of every gradient), FSDP1 takes its flat gradients one by one. Of shards the norm is summed: FSDP1's
 * by an all-reduce, FSDP2's, whose norms are DTensors of a partial sum, by one too when they have been stacked (counted
 * with CommDebugMode; one more of tensor parallel ranks). Stages of a pipeline add up theirs (lower/lower_joined.c).
 *
 * The host's share is counted in launches of other kernels, which was chosen by what one host took (a fit): a quarter
 * of one for each gradient, which is a few lines of Python, a third of one for each launch of a foreach kernel, which
 * takes 320 chunks and is made in C++, and as many as gradients where these are DTensors of FSDP2 (those of tp alone
 * are taken for plain tensors): reports/h200/host_blocks.csv (clip_least_ms) has 1.6 to 2.1 ms of 135 to 290 gradients
 * in 0.4 to 1.1 G elements, 4.2 to 5 ms of 3 to 6 G, 3.8 to 4.8 ms of 135 DTensors. */
#ifndef DTP_LOWER_CLIP_H
#define DTP_LOWER_CLIP_H

#include "lower/lowering.h"

/* Gradients of the module at hand, as a pass goes over them: buffers, their elements, how many tensors they are, and
 * the longest of these. */
struct dtp_clipped {
    dtp_buffer_id grads[DTP_MAX_PARTS];
    int count;
    uint64_t elements, tensors, longest;
};
/* Adds a part of a module, of which each of `ranks` has a shard. Experts are one tensor, unless they are called. */
void dtp_torch_count_clipped(const struct dtp_lowering *l, const struct dtp_lower_module *module, int part,
                             uint64_t ranks, struct dtp_clipped *out);
/* The next module's in `out`, `index` counted from 0; false behind the last. */
typedef bool dtp_clipped_at(struct dtp_lowering *l, uint64_t index, struct dtp_clipped *out);

/* Of gradients that each rank has whole (lower_replicated.c): behind the last backward and in the step; nothing where
 * they are not clipped. */
void dtp_torch_take_norm(struct dtp_lowering *l, dtp_clipped_at *at, uint32_t group, uint64_t ranks);
void dtp_torch_clip(struct dtp_lowering *l, dtp_clipped_at *at);
/* Of units of FSDP. */
void dtp_torch_take_norm_of_units(struct dtp_lowering *l);
void dtp_torch_clip_units(struct dtp_lowering *l);

#endif
