/* Lowering: a checked job becomes its step program.
 *
 * The step is a skeleton of micro-steps, each forward through the layers, loss, backward. Files here have what all
 * runtimes that run PyTorch's modules share: the tensors of a block and which are saved (lower_tensors.c), blocks
 * forward and replayed (lower_forward.c), backward (lower_backward.c), head and cross entropy (lower_loss.c), casts
 * (lower_weights.c), an update (lower_optimizer.c). How a runtime keeps state, fetches weights and reduces gradients is
 * behind its hooks (lower_hooks.h); one that runs its own kernels lowers the whole step by itself. */
#ifndef DTP_LOWER_H
#define DTP_LOWER_H

#include "plan/plan.h"
#include "program/live_runs.h"

/* Most operations of a step that commands lower: about 1 GiB of memory. */
#define DTP_LOWER_MOST_OPS 4000000u

/* Inputs as for the closed form (checked and resolved). Caller destroys *out, which is sealed. Refuses with
 * DTP_BAD_INPUT, before memory is taken, what would exceed `op_limit` operations (0: DTP_PROGRAM_MAX_OPS), and what is
 * not lowered. */
enum dtp_status dtp_lower(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                          const struct dtp_plan *plan, uint32_t op_limit, struct dtp_program **out,
                          struct dtp_faults *faults);

/* What blocks of a step do, for those that do the same: of this step, or of others that differ from it in nothing but
 * the number of layers, and of micro-steps where that is above 1. Freed by the C library's free; NULL: no memory, and
 * nobody does without. */
struct dtp_lower_blocks; /* opaque */
struct dtp_lower_blocks *dtp_lower_blocks_create(void);
/* How often one has been repeated. */
uint32_t dtp_lower_blocks_repeated(const struct dtp_lower_blocks *blocks);

/* The live bytes of the same step, in half the time: nothing of it is kept. `blocks`: what is known of its blocks, or
 * NULL. The caller releases *out in any case. */
enum dtp_status dtp_lower_live_runs(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                    const struct dtp_plan *plan, uint32_t op_limit, struct dtp_lower_blocks *blocks,
                                    struct dtp_live_runs *out, struct dtp_faults *faults);

/* Refuses more layers or micro-steps than an operation of a program can name. */
enum dtp_status dtp_lower_check_counts(const struct dtp_transformer *transformer, const struct dtp_plan *plan,
                                       struct dtp_faults *faults);

#endif
