/* What PyTorch's host does in Python around the kernels of a block, so many calls of a kind. Measured on blocks of next
 * to no tokens, each way by itself (reports/h200/host_blocks.csv); seconds of a call are constants of cost/.
 *
 * A compiled block is called once each way: guards, AOTAutograd's function, the generated wrapper. Of layers of experts
 * parts are compiled one by one, as torchtitan does: both norms, attention, the router, the experts' products, shared
 * experts; what lies between reads counts of rows and is not compiled.
 *
 * Around a unit of FSDP2 there are hooks of modules: one call before forward, which unshards and reshards; two around
 * backward, which registers, unshards, and gives gradients to the reduction (_fsdp_param_group.py). FSDP1's were not
 * measured. In a pipeline, whose stages stay gathered, eager forwards take two, backward one, or none where it
 * is in two passes: theirs are in what the engine's calls for groups take (split_group_s). Under tensor parallelism a
 * compiled block's call is in what a call on DTensors takes, and hooks around compiled blocks, whose parameters are
 * DTensors of two meshes, are priced apart (dtensor_unit_hooks_s). */
#ifndef DTP_HOST_CALLS_H
#define DTP_HOST_CALLS_H

#include "plan/plan.h"

struct dtp_transformer;

/* Each way; 0 where nothing is compiled. */
uint32_t dtp_plan_compiled_calls(const struct dtp_plan *plan, const struct dtp_transformer *transformer, bool experts);
uint32_t dtp_plan_unit_hooks(const struct dtp_plan *plan, bool backward);

#endif
