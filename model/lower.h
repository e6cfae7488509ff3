/* Lowering: a checked job becomes its step program.
 *
 * The step is a skeleton of micro-steps, each forward through the layers, loss, backward; one file per concern adds what
 * that concern needs at the skeleton's points: lower_forward.c and lower_backward.c the blocks with their saved tensors
 * and recomputation, lower_sharding.c gathers, releases and reductions, lower_offload.c host copies, lower_optimizer.c
 * the update. What a runtime does differently is data of those concerns, not a lowering of its own. */
#ifndef DTP_LOWER_H
#define DTP_LOWER_H

#include "program.h"

/* Inputs as for the closed form (checked and resolved). Caller destroys *out, which is sealed. Refuses with
 * DTP_BAD_INPUT, before memory is taken, what would exceed `op_limit` operations (0: DTP_PROGRAM_MAX_OPS). */
enum dtp_status dtp_lower(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                          const struct dtp_plan *plan, uint32_t op_limit, struct dtp_program **out,
                          struct dtp_faults *faults);

#endif
