/* Who reads a key of a plan. A runtime, a strategy or another choice reads some keys and no others; each row of
 * plan_keys.def names its reader, and what follows from that is done here for all of them: refusing what would be read
 * by nobody, taking back what a change of the plan leaves without a reader. */
#ifndef DTP_PLAN_KEYS_H
#define DTP_PLAN_KEYS_H

#include "plan/resolver.h"

/* X(reader, whether it reads in plan `p`, words). The conditions hold of plans as asked and as resolved alike: they
 * look at no choice that resolving derives. */
#define DTP_KEY_READER_TABLE(X)                                                                                        \
    X(ANYONE, true, "anyone")                                                                                          \
    X(COMPILER, p->runtime->compiles, "runtime torch")                                                                 \
    X(COMPILED, p->compile, "torch.compile (compile)")                                                                 \
    X(REENTRANT_UNITS, p->fsdp1 && p->checkpointing == DTP_CHECKPOINT_FULL && dtp_plan_layers(p)->holds_replayed,      \
      "checkpointing full of FSDP1's units under runtime peft")                                                        \
    X(CHECKPOINTS, p->runtime->fsdp && p->checkpointing == DTP_CHECKPOINT_FULL,                                        \
      "checkpointing full under runtimes torch and peft")                                                              \
    X(FSDP, dtp_plan_is_fsdp(p), "FSDP (full_shard, shard_grad_op, hybrid_shard) under runtimes torch and peft")       \
    X(FSDP1, dtp_plan_is_fsdp(p) && p->fsdp1, "FSDP1 (fsdp1)")                                                         \
    X(FSDP2, dtp_plan_is_fsdp(p) && !p->fsdp1, "FSDP2")                                                                \
    X(FSDP2_ROOT, dtp_plan_is_fsdp(p) && !p->fsdp1 && dtp_strategy_frees_weights(p->strategy),                         \
      "FSDP2 where it frees weights after forward")                                                                    \
    X(RESHARDING,                                                                                                      \
      p->strategy == DTP_HYBRID_SHARD ||                                                                               \
          (dtp_plan_is_fsdp(p) && !p->fsdp1 && p->reshard_group && dtp_strategy_frees_weights(p->strategy)),           \
      "hybrid_shard; elsewhere it follows the strategy")                                                               \
    X(PREFETCHER, p->runtime->own_prefetch || (dtp_plan_takes_prefetch_depth(p) && p->prefetch),                       \
      "FSDP2 with prefetch and runtime dtplan")                                                                        \
    X(SHARDED, dtp_plan_shards_params(p), "sharded parameters")                                                        \
    X(DDP, p->strategy == DTP_DDP && p->runtime->ddp, "ddp under runtime torch")                                       \
    X(GROUPLESS, !p->runtime->group_of_one && !p->runtime->executed && !dtp_plan_shards_params(p),                     \
      "strategies of runtimes torch and peft that leave parameters whole")                                             \
    X(HOOKED, p->runtime->hooked >> p->strategy & 1u,                                                                  \
      "ddp under runtime torch and dtplan, hybrid_shard under runtime dtplan (FSDP1 takes no hook there, FSDP2 none "  \
      "in place of its sum)")                                                                                          \
    X(PROJECTED, dtp_optimizer_row(p->optimizer)->shape == DTP_STATE_PROJECTED, "optimizers galore and apollo")        \
    X(POWERSGD, p->comm_hook == DTP_COMM_HOOK_POWERSGD, "comm_hook powersgd")                                          \
    X(BUCKETS, p->strategy == DTP_DDP && (p->runtime->ddp || p->runtime->sums_gradients),                              \
      "ddp under runtime torch and nanotron")                                                                          \
    X(ACCUMULATION, p->accumulate > 1, "accumulate above 1")                                                           \
    X(TENSOR, p->runtime->splits &DTP_AXES(TP),                                                                        \
      "runtimes with tensor parallelism (deepspeed, dtplan, megatron, nanotron, torch)")                               \
    X(CONTEXT, p->runtime->splits &DTP_AXES(CP),                                                                       \
      "runtimes with context parallelism (deepspeed, dtplan, megatron, torch)")                                        \
    X(EXPERTS, p->runtime->expert_parallel, "runtimes with expert parallelism (deepspeed, megatron, torch)")           \
    X(SPLIT_EXPERTS, p->ep > 1 && !p->runtime->executed,                                                               \
      "expert parallelism (ep above 1) of runtimes deepspeed, megatron, torch")                                        \
    X(FP8_LINEARS, dtp_plan_is_fsdp(p) && !p->fsdp1 && p->precision.compute == DTP_FP8, "fp8 under FSDP2")             \
    X(CAPACITY, p->runtime->overlap_grad_reduce || (p->runtime->slots_rows && !p->deepspeed.autoep),                   \
      "runtimes megatron and deepspeed (without autoep)")                                                              \
    X(SLOTS, p->runtime->slots_rows && !p->deepspeed.autoep, "runtime deepspeed without autoep")                       \
    X(EXPERT_ROOM, p->ep > 1 && p->runtime->executed, "expert parallelism (ep above 1) under runtime dtplan")          \
    X(SPLIT_TENSORS, p->tp > 1, "tensor parallelism (tp above 1)")                                                     \
    X(DTENSORS, p->tp > 1 && p->runtime->dtensor, "tensor parallelism (tp above 1) under runtime torch")               \
    X(STAGES, p->pp > 1, "pipelines (pp above 1)")                                                                     \
    X(INTERLEAVED, dtp_plan_interleaves(p), "the interleaved schedule (pp and virtual_stages above 1)")                \
    X(SPLIT_CONTEXT, p->cp > 1, "context parallelism (cp above 1)")                                                    \
    X(SPLIT, dtp_plan_model_parallel(p) || p->cp > 1, "tensor, context or pipeline parallelism (above 1)")             \
    X(MEGATRON, p->runtime->overlap_grad_reduce, "runtime megatron")                                                   \
    X(MEGATRON_LAYERS, p->runtime->overlap_grad_reduce || p->deepspeed.megatron_layers,                                \
      "Megatron's layers: runtime megatron, or deepspeed with megatron_layers")                                        \
    X(WIDTHS, p->runtime->overlap_grad_reduce || (p->runtime->dtensor && p->tp > 1 && p->ep > 1),                      \
      "runtime megatron, and torch with tp and ep above 1")                                                            \
    X(ZERO_BUBBLE, p->runtime->validates &&dtp_plan_splits_backward(p),                                                \
      "zero bubble schedules (zb-h1, zb-h2, zb-1p, zb-2p, zb-v, v-half, v-min, zb-interleaved) under runtime "         \
      "megatron")                                                                                                      \
    X(DEEPSPEED, p->runtime->overlap_comm, "runtime deepspeed")                                                        \
    X(ZERO1, p->runtime->overlap_comm && p->strategy == DTP_ZERO1, "zero1 under runtime deepspeed")                    \
    X(ULYSSES, p->runtime->overlap_comm && p->cp > 1, "context parallelism (cp above 1) under runtime deepspeed")      \
    X(ZERO3, dtp_plan_fetches_modules(p), "zero3 under runtime deepspeed")                                             \
    X(SEGMENTS, !p->runtime->arena, "PyTorch's allocator, which all runtimes but dtplan have")                         \
    X(LAUNCHED, !p->runtime->executed, "runtimes whose kernels PyTorch launches, which all but dtplan are")            \
    X(CHAINS, dtp_plan_layers(p)->chains_norms, "runtime peft, or deepspeed with transformers_layers")                 \
    X(CALLERS, p->runtime->calls_experts && !p->runtime->slots_rows, "runtime peft")                                   \
    X(ADAPTERS, p->adapters.rank, "adapters (lora)")                                                                   \
    X(FOLDERS, p->adapters.rank && p->grouped_experts, "adapters (lora) with grouped_experts")                         \
    X(BITSANDBYTES,                                                                                                    \
      p->adapters.rank && p->runtime->bitsandbytes &&                                                                  \
          (p->adapters.base == DTP_BASE_NF4 || p->adapters.base == DTP_BASE_NF4_DOUBLE),                               \
      "adapters (lora) on base nf4 or nf4-double under runtime peft")                                                  \
    X(PREPARED, p->adapters.rank && p->adapters.prepare_kbit, "prepare_kbit")                                          \
    X(INT4, p->adapters.rank && p->adapters.base == DTP_BASE_INT4, "adapters (lora) on base int4")                     \
    X(EXECUTOR, p->runtime->executed, "runtime dtplan")                                                                \
    X(CLIPPED, p->runtime->clips_by_key || (p->runtime->executed && !p->executor.update_in_backward),                  \
      "runtimes torch and peft, and dtplan without update_in_backward")                                                \
    X(EXECUTOR_NORM, p->runtime->executed && !p->executor.update_in_backward,                                          \
      "runtime dtplan without update_in_backward")

enum dtp_key_reader {
#define DTP_KEY_READER_ENUM(reader, reads, words) DTP_READER_##reader,
    DTP_KEY_READER_TABLE(DTP_KEY_READER_ENUM)
#undef DTP_KEY_READER_ENUM
};

bool dtp_key_reader_reads(enum dtp_key_reader reader, const struct dtp_plan *plan);
/* "FSDP2"; for messages. */
const char *dtp_key_reader_words(enum dtp_key_reader reader);

/* Refuses each key that is another than its default where its only reader does not read. */
void dtp_plan_check_readers(struct dtp_resolver *resolver);
/* Gives these keys their defaults instead. */
void dtp_plan_drop_unread(struct dtp_plan *plan);

#endif
