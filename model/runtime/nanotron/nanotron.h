/* The runtime nanotron, of plan/runtime.h, and what its files fill it with.
 *
 * Facts are those of huggingface/nanotron at the end of 2024 (main of 2024-12-05 and the branch of its scaling
 * benchmarks, commit 6ac7d733), PyTorch 2.1; files are named where they are used. */
#ifndef DTP_NANOTRON_RUNTIME_H
#define DTP_NANOTRON_RUNTIME_H

#include "plan/plan.h"

extern const struct dtp_runtime dtp_runtime_nanotron;
extern const struct dtp_closed_form_hooks dtp_nanotron_closed_form; /* closed_form_nanotron.c */
extern const struct dtp_lower_hooks dtp_lower_nanotron;             /* lower_wide_sums.c */

/* Whether PyTorch's DDP wraps the model, as it does for more than one replica, but not where ZeRO-1 meets sums in fp32
 * (trainer.py, make_ddp): those are reduced in one piece behind the last backward. */
bool dtp_nanotron_wraps_ddp(const struct dtp_plan *plan, uint64_t data_ranks);

/* What the step moves beside the update itself, bytes of each parameter: of the whole model, the gradient norm (reads
 * 4), the factor that clips (reads and writes 8), zeros for the next step's sums (4); of the rank's own, the master
 * once more, which becomes the 16-bit weight (clip_grads.py, gradient_accumulator.py). */
#define DTP_NANOTRON_NORM_BYTES 4u
#define DTP_NANOTRON_CLIP_BYTES 8u
#define DTP_NANOTRON_ZERO_BYTES 4u
#define DTP_NANOTRON_REFRESH_BYTES 4u

/* ZeRO-1's gather copies each parameter's part of each rank by itself: flattened before (4 bytes a parameter, read and
 * written), out of NCCL's flat buffer, and into the parameters again (distributed.py, all_gather_coalesced). */
#define DTP_NANOTRON_GATHER_PASSES 3u
#define DTP_NANOTRON_GATHER_BYTES 4u
/* Seconds of the last of the three for `elements` parameters in `tensors` tensors: a loop of one copy for each of these
 * and each of the ranks, which takes what a small one takes, however few its bytes. */
double dtp_nanotron_scatter_s(double bytes_per_s, uint64_t elements, uint64_t tensors, uint64_t ranks);

#endif
