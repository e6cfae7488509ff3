/* Lowering: a checked job becomes its step program.
 *
 * The step is a skeleton of micro-steps, each forward through the layers, loss, backward; one file per concern adds
 * what that concern needs at the skeleton's points: lower_tensors.c     weight matrices, shards, the tensors of a block
 * and which of them are saved lower_forward.c     blocks forward and replayed       lower_backward.c   blocks and
 * embedding backward lower_loss.c        head and cross entropy            lower_weights.c    casts, and what becomes
 * of gradients lower_sharding.c    gathers and releases of units     lower_scatter.c    their reductions
 *   lower_replicated.c  DDP's buckets, broadcasts         lower_buffered.c   gradient buffers that matmuls write into
 *   lower_deepspeed.c   the bucket of ZeRO stages 1, 2    lower_zero3.c      stage 3: fetches, its bucket
 *   lower_offload.c     PyTorch's host copies and step    lower_infinity.c   DeepSpeed's, and NVMe
 *   lower_optimizer.c   the update
 * What a runtime of PyTorch does differently is data of those concerns, not a lowering of its own. Our executor, which
 * runs its program, has one: lower_executor.h. */
#ifndef DTP_LOWER_H
#define DTP_LOWER_H

#include "plan/plan.h"
#include "program/program.h"

/* Inputs as for the closed form (checked and resolved). Caller destroys *out, which is sealed. Refuses with
 * DTP_BAD_INPUT, before memory is taken, what would exceed `op_limit` operations (0: DTP_PROGRAM_MAX_OPS), and what is
 * not lowered: what our executor cannot run (lower_executor.h). */
enum dtp_status dtp_lower(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                          const struct dtp_plan *plan, uint32_t op_limit, struct dtp_program **out,
                          struct dtp_faults *faults);

#endif
