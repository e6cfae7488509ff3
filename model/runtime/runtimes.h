/* The one list of runtimes, and what needs all of them: the default plan, and a plan resolved.
 *
 * A new runtime is a folder beside this file and a line in runtimes.c. */
#ifndef DTP_RUNTIMES_H
#define DTP_RUNTIMES_H

#include "plan/runtime.h"
#include "runtime/deepspeed/deepspeed.h"
#include "runtime/dtplan/dtplan.h"
#include "runtime/megatron/megatron.h"
#include "runtime/nanotron/nanotron.h"
#include "runtime/torch/torch.h"

#define DTP_RUNTIMES 6
/* The first is the default. */
extern const struct dtp_runtime *const dtp_runtimes[DTP_RUNTIMES];

/* By its word or synonym, compared as all words of plans are; NULL: there is none. */
const struct dtp_runtime *dtp_runtime_find(const char *word);
/* The first that has the strategy. */
const struct dtp_runtime *dtp_runtime_of_strategy(enum dtp_strategy strategy);

/* Default plan: full_shard, torch FSDP2 eager, bf16-mixed, flash attention, eager cross entropy, fused AdamW, micro
 * batch 1, accumulate 1, sequence 2048, no checkpointing, no offload, one unit per layer. */
struct dtp_plan dtp_plan_default(void);

/* Fills what follows from other choices and refuses, all faults at once, what is invalid or not modelled. After DTP_OK
 * the closed form needs no further check: every product it forms stays below 2^62. Applying it twice changes nothing.
 *
 * What follows:
 *   shard_group             1 under ddp; all GPUs under zero1-3, full_shard and shard_grad_op unless given; the node
 *                           under hybrid_shard unless given. Replicas = gpus / shard_group.
 *   precision               as dtp_precision_for_runtime says; moments int8 under adam8bit; fp8_all_gather only where
 *                           FSDP2 gathers
 *   reshard_after_forward   false under ddp, zero1, zero2, shard_grad_op; true under zero3, full_shard; as given under
 *                           hybrid_shard
 *   reshard_group           0 where it is the shard group itself
 *   accumulate_sync         DeepSpeed: true under zero2 and zero3 (reduces every micro-step), false under zero1;
 *                           Megatron: false (reduces once a step)
 *   deepspeed_overlap       true under zero3 (overlap_comm's default there)
 *   fused_qkv, fused_gate_up  true under Megatron
 * zero3 under torch is full_shard: the word is kept, the rules are FSDP's. */
enum dtp_status dtp_plan_resolve(struct dtp_plan *plan, const struct dtp_transformer *transformer,
                                 const struct dtp_cluster *cluster, struct dtp_faults *faults);

/* The same, with messages that name the place where the key at fault was set; `source` NULL: they name none. */
enum dtp_status dtp_plan_resolve_from(struct dtp_plan *plan, const struct dtp_transformer *transformer,
                                      const struct dtp_cluster *cluster, const struct dtp_plan_source *source,
                                      struct dtp_faults *faults);

/* Inside of dtp_plan_resolve: stages that are to be cut best become a layout, and a schedule that is searched gets the
 * times that it is searched by, of a plan of which nothing was refused (cut_stages.c). */
void dtp_plan_cut_stages(struct dtp_resolver *resolver);

#endif
