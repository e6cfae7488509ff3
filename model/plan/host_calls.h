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
 * DTensors of two meshes, are priced apart (dtensor_unit_hooks_s).
 *
 * DeepSpeed's ZeRO-3 has hooks around every module, each way, and where a checkpoint runs it again: a coordinator in
 * Python that traces, fetches and gives back (runtime/zero/parameter_offload.py, partitioned_param_coordinator.py).
 * Steps of five models in which the host was behind took 0.61 to 0.81 ms a module (rows library-d03, -d05, -x03, -g02,
 * -g03, -g08 of scenarios/library_runs.csv), on hosts whose Python took 480 us for a loop of 220 us where the other
 * calls were measured: 0.35 ms there, half of what hooks of FSDP2's unit take. */
#ifndef DTP_HOST_CALLS_H
#define DTP_HOST_CALLS_H

#include "plan/plan.h"

struct dtp_transformer;

/* Each way; 0 where nothing is compiled. */
uint32_t dtp_plan_compiled_calls(const struct dtp_plan *plan, const struct dtp_transformer *transformer, bool experts);
uint32_t dtp_plan_unit_hooks(const struct dtp_plan *plan, bool backward);
/* Of a layer under ZeRO-3, one way: half as many as it has modules. Else 0. */
uint32_t dtp_plan_module_hooks(const struct dtp_plan *plan, const struct dtp_transformer *transformer);

#endif
