/* The choices of a training job: everything that is neither the model's shape nor the machine.
 *
 * A plan is a plain struct; dtp_plan_default() (runtimes.h) gives what PyTorch users run today, dtp_plan_resolve()
 * refuses combinations that are not modelled and says why. Words are PyTorch's and DeepSpeed's. */
#ifndef DTP_PLAN_H
#define DTP_PLAN_H

#include "base/execution.h"
#include "base/fp8_recipe.h"
#include "machine/machine.h"
#include "base/status.h"
#include "net/transformer.h"
#include "plan/adapters.h"
#include "plan/layout.h"
#include "schedule/schedule.h"

#include <stdint.h>

/* X(enum suffix, spelling). no_shard is an accepted synonym of ddp. */
#define DTP_STRATEGY_TABLE(X)                                                                                          \
    X(DDP, "ddp")                                                                                                      \
    X(ZERO1, "zero1")                                                                                                  \
    X(ZERO2, "zero2")                                                                                                  \
    X(ZERO3, "zero3")                                                                                                  \
    X(FULL_SHARD, "full_shard")                                                                                        \
    X(SHARD_GRAD_OP, "shard_grad_op")                                                                                  \
    X(HYBRID_SHARD, "hybrid_shard")
enum dtp_strategy {
#define DTP_STRATEGY_ENUM(suffix, text) DTP_##suffix,
    DTP_STRATEGY_TABLE(DTP_STRATEGY_ENUM)
#undef DTP_STRATEGY_ENUM
        DTP_STRATEGY_COUNT
};

/* Whose rules of saved tensors, buckets, buffers and overlap are predicted (runtime.h). */
struct dtp_runtime;
/* Of the sharded state to the host: OPTIMIZER = master, moments and step on the CPU; PARAMS = that and the parameters;
 * NVME = as PARAMS, with parameters and optimizer state on the node's NVMe. */
enum dtp_offload { DTP_OFFLOAD_NONE, DTP_OFFLOAD_OPTIMIZER, DTP_OFFLOAD_PARAMS, DTP_OFFLOAD_NVME };
enum dtp_checkpointing {
    DTP_CHECKPOINT_NONE,
    DTP_CHECKPOINT_FULL,                /* every block: only its input is kept */
    DTP_CHECKPOINT_EVERY_N,             /* the model's blocks 0, N, 2N, ... are checkpointed, others keep everything */
    DTP_CHECKPOINT_SELECTIVE_ATTENTION, /* Korthikanti 2022: recompute the attention core only */
    DTP_CHECKPOINT_SELECTIVE_MATMUL /* torchtitan op-SAC: every second matmul and attention are kept. Runtime dtplan:
                                       all matmuls and attention; norms and the MLP's product are made again */
};
/* Who moves bytes between the GPUs of a node: NCCL's kernels on SMs, or copy engines (runtime dtplan). */
enum dtp_engine { DTP_ENGINE_SM, DTP_ENGINE_COPY };
/* Cross entropy, at most: 12*T*V bytes | 4*T*V | one chunk | Megatron-Core's own, which PyTorch compiles: 10*T*V, of
 * which it keeps 4*T*V for backward as the eager one does (dtp_plan_loss says so of it). */
enum dtp_loss { DTP_LOSS_EAGER, DTP_LOSS_FUSED, DTP_LOSS_CHUNKED, DTP_LOSS_NATIVE };
/* What DDP sends in place of a bucket (comm_hook.h). */
enum dtp_comm_hook {
    DTP_COMM_HOOK_NONE,
    DTP_COMM_HOOK_FP16,
    DTP_COMM_HOOK_BF16,
    DTP_COMM_HOOK_POWERSGD,
    DTP_COMM_HOOK_INT8
};
/* How context parallel ranks exchange keys and values: around a ring while they compute, all at once, or heads for
 * tokens (Ulysses); or the last within a node and the ring across. */
enum dtp_cp_comm { DTP_CP_P2P, DTP_CP_ALL_GATHER, DTP_CP_A2A, DTP_CP_A2A_P2P };
/* How a model is cut into a pipeline's stages (degrees.h). */
enum dtp_stage_cut {
    DTP_STAGE_CUT_EVEN,
    DTP_STAGE_CUT_COUNTED,
    DTP_STAGE_CUT_COST,
    DTP_STAGE_CUT_BEST, /* the slowest stage as fast as can be; as the next, resolved to the layout that is found */
    DTP_STAGE_CUT_STEP, /* from there, layers moved as long as the schedule's step gets shorter */
    DTP_STAGE_CUT_LAYOUT
};
#define DTP_STAGE_LAYOUT_BYTES 128
struct dtp_stage_choice {
    enum dtp_stage_cut cut;
    char layout[DTP_STAGE_LAYOUT_BYTES]; /* of DTP_STAGE_CUT_LAYOUT, Megatron's text (schedule/stages.h); zeros behind
                                            it */
};
enum dtp_optimizer {
#define DTP_OPTIMIZER(suffix, word, library, shape, states, bits, block, scales, words, instead) DTP_##suffix,
#include "plan/optimizer.def"
    DTP_OPTIMIZER_COUNT
};
enum dtp_optimizer_shape {
    DTP_STATE_ALIKE,
    DTP_STATE_FACTORS,
    DTP_STATE_MATRICES,
    DTP_STATE_PROJECTED,
    DTP_STATE_ROWS
};
enum dtp_optimizer_library { DTP_OF_PYTORCH, DTP_OF_BITSANDBYTES, DTP_OF_TORCHAO };
/* What is said of each: optimizer.def. */
struct dtp_optimizer_row {
    const char *word, *instead;
    enum dtp_optimizer_library library;
    enum dtp_optimizer_shape shape;
    uint32_t states, bits, block, scales;
};
const struct dtp_optimizer_row *dtp_optimizer_row(enum dtp_optimizer optimizer);

struct dtp_precision {
    enum dtp_dtype params;  /* of the (sharded) stored parameters */
    enum dtp_dtype compute; /* of gathered weights, activations, matmuls; fp8 = matmuls in fp8, the rest bf16 */
    enum dtp_dtype reduce;  /* of gradients on the wire and in reduction */
    enum dtp_dtype master;  /* optimizer's copy of the parameters; equal to params = there is no extra copy */
    enum dtp_dtype moments;
    enum dtp_fp8_recipe fp8_recipe; /* of fp8 compute, else none */
    bool fp8_all_gather;            /* FSDP2 float8 all-gather (tensorwise only) */
    bool autocast;                  /* the recipe is a mixed one; resolved: kept where formats no longer say so, of fp32
                                       adapters beside a base in 16 bits (dtp_plan_widens_adapters) */
};

/* What one runtime alone reads: a field for each of its keys, whose rows say what they are (plan_keys.def). */
struct dtp_deepspeed_plan {
#define DTP_DEEPSPEED_FIELD(type, field, standard) type field;
#include "plan/plan_keys.def"
};
struct dtp_megatron_plan {
#define DTP_MEGATRON_FIELD(type, field, standard) type field;
#include "plan/plan_keys.def"
};
struct dtp_executor_plan {
#define DTP_EXECUTOR_FIELD(type, field, standard) type field;
#include "plan/plan_keys.def"
};

struct dtp_plan {
    enum dtp_strategy strategy;
    const struct dtp_runtime *runtime;
/* those of runtime torch, which others ask for as well */
#define DTP_TORCH_FIELD(type, field, standard) type field;
#include "plan/plan_keys.def"
    uint32_t shard_group;    /* ranks that share one copy of the sharded state; 0 = rule (data parallel size;
                                node for hybrid_shard); resolved by dtp_plan_resolve */
    uint32_t tp, pp, cp;     /* tensor, pipeline, context parallel; which a runtime has: `splits` of runtime.h */
    uint32_t ep;             /* expert parallel: ranks that divide a layer's experts, neighbours of a stage's */
    uint32_t expert_fold;    /* derived: tensor parallel ranks that are among those that divide experts; 0, 1: none */
    uint32_t expert_shards;  /* derived: tensor parallel ranks that have rows of other tokens each for experts; 1: each
                                has those of all */
    double expert_imbalance; /* rows that the fullest of them receives, over the mean: 1, all receive as many */
    enum dtp_mesh_axis layout_order[DTP_AXIS_COUNT]; /* which ranks are neighbours (layout.h) */
    bool sequence_parallel;          /* with tp: norms and residual stream are spread too; default true */
    bool tp_overlap;                 /* with tp: its collectives run beside matmuls; default false */
    enum dtp_cp_comm cp_comm;        /* with cp; default p2p */
    enum dtp_schedule_kind schedule; /* with pp: default 1f1b, resolved to interleaved where a GPU has several chunks */
    uint32_t virtual_stages;         /* with pp: chunks of the model per GPU; 1, the default: as the schedule has */
    uint32_t microbatch_group;       /* of interleaved: micro-batches through a chunk before the next one's turn; 0, the
                                        default, resolved to pp */
    uint32_t round;                  /* derived: the same of zb-interleaved, where nobody may choose it */
    struct dtp_stage_choice stages;  /* with pp: which layers each stage has; default even */
    uint32_t most_layers, head_layers; /* derived, with pp: of the rank with most of them; of the rank with the head */
    uint32_t first_layers;             /* of the first rank */
    uint32_t last_layers;              /* of the last stage */
    uint32_t head_rank;                /* of the pipeline, derived too */
    struct dtp_pass_times pass_times; /* derived by formulas: what a schedule that is searched is searched by, else 0 */
    bool post_validation;     /* of zero bubble schedules: stages step before the norm of all gradients is known,
                                 and validate that in the next step; default false */
    uint32_t pipeline_ranks;  /* of a slice of the model: of the pipeline that it is a stage of, 0: of none; derived */
    bool pipeline_on_sockets; /* whose transfers leave a node by sockets */
    bool pipeline_two_tables; /* whose embedding is the head too, of which two ranks have a copy each */
    uint32_t sequence_shards; /* ranks that the residual stream is spread over, 1: none; derived: tp, where it is
                                 sequence parallel */
    uint32_t vocab_ranks;     /* ranks that have columns of the logits each, 1: all have all; derived */
    uint32_t adapter_ranks;   /* ranks that divide adapters as their linears, 1: none; derived */
    uint32_t micro_batch;     /* sequences per GPU per micro-step */
    uint32_t accumulate;      /* micro-steps per optimizer step */
    bool accumulate_sync;     /* reduce gradients in every micro-step (false: no_sync) */
    uint64_t sequence;        /* tokens per sequence */
    enum dtp_checkpointing checkpointing;
    uint32_t checkpoint_every; /* N of DTP_CHECKPOINT_EVERY_N */
    enum dtp_offload offload;
    struct dtp_precision precision;
    enum dtp_attention attention;
    double dropout; /* probability, of attention's and of the branches' alike; default 0 */
    enum dtp_loss loss;
    enum dtp_optimizer optimizer;
    uint32_t wrap_layers;       /* layers per FSDP unit; 0 = the whole model is one unit */
    bool picks_strategy;        /* nobody gave one: dtp_plan_picks_ddp */
    bool wrap_ends_auto;        /* wrap_ends=auto, until it is resolved */
    bool reshard_after_forward; /* full_shard true, shard_grad_op false; follows strategy in resolve */
    uint32_t reshard_group;     /* of FSDP2, reshard_after_forward=N: so many neighbours share a unit's parameters from
                                   forward to backward, which gathers from them; 0: as many as before */
    uint32_t prefetch_depth;    /* units gathered ahead, with prefetch, of FSDP2 (set_modules_to_forward_prefetch and
                                   _backward_prefetch; 1, the default, needs no call) and of our executor */
    uint64_t ddp_bucket_bytes;  /* bucket_cap_mb, 25 MiB */
    bool prefetch;              /* gather the next unit during the current one's compute */
    bool avoid_record_streams;  /* TORCH_NCCL_AVOID_RECORD_STREAMS: what a collective reads is held until it is awaited,
                                   not until the allocator sees it done; of Megatron's sends and reductions in shards */
    bool launch_blocking;       /* CUDA_LAUNCH_BLOCKING=1: the host waits for each kernel, collectives too */
    bool expandable_segments;   /* of PyTorch's caching allocator: a pool is one range that grows by pages */
    bool fused_qkv, fused_gate_up; /* one matmul (and one saved buffer) for q,k,v / gate,up */
    bool fused_qkv_rope; /* RoPE takes the qkv matmul's result and makes q, k and v of it, so that it need not stay */
    bool rope_fp32;      /* RoPE by fp32 halves, each product a kernel (the reference script); false: the usual
                            complex or rotate-half form */
    struct dtp_adapter_choice adapters;
    struct dtp_deepspeed_plan deepspeed;
    struct dtp_megatron_plan megatron;
    struct dtp_executor_plan executor;
    double price_per_gpu_hour; /* money; 0 = the catalogue's typical price */
};

/* What a plan is under any runtime before anything is chosen: dtp_plan_default (runtimes.h) without its runtime. */
struct dtp_plan dtp_plan_unchosen(void);

/* Named recipes of `--precision`: fp32; bf16-mixed (fp32 parameters and moments, bf16 compute, fp32 reduction); bf16
 * (bf16 parameters and gradients, fp32 moments, no master: the tutorials' 12 bytes a parameter); bf16-pure (moments in
 * bf16 too); fp16-mixed; and those of fp8_recipe.def, fp8-tensorwise with the fp8 all-gather. False for an unknown
 * name.
 *
 * DeepSpeed and Megatron keep 16-bit parameters and an fp32 master in the optimizer, so there the mixed recipes mean
 * parameters and compute in 16 bits, master and moments in fp32, and gradients in what the runtime defaults to:
 * DeepSpeed the parameters' dtype, Megatron fp32 for bf16 and fp16 for fp16. dtp_precision_for_runtime makes that
 * change (and none to any other precision); dtp_plan_resolve calls it. With adapters the base is in 16 bits, too
 * (dtp_plan_derive_adapters). */
bool dtp_precision_recipe(const char *name, struct dtp_precision *out);
void dtp_precision_for_runtime(struct dtp_precision *precision, const struct dtp_runtime *runtime);
/* The name of a recipe in either form; else "custom". */
const char *dtp_precision_name(const struct dtp_precision *precision);

/* Words of the choices and back. Parsing ignores case and takes '-', '_' or nothing between words ("zero-1",
 * "FULL_SHARD"); strategies also accept no_shard and single (ddp), fsdp (full_shard), hsdp (hybrid_shard). */
const char *dtp_strategy_text(enum dtp_strategy strategy);
const char *dtp_offload_text(enum dtp_offload offload);
const char *dtp_attention_text(enum dtp_attention attention);
const char *dtp_loss_text(enum dtp_loss loss);
const char *dtp_engine_text(enum dtp_engine engine);
const char *dtp_optimizer_text(enum dtp_optimizer optimizer);
const char *dtp_cp_comm_text(enum dtp_cp_comm cp_comm);
const char *dtp_comm_hook_text(enum dtp_comm_hook comm_hook);
bool dtp_strategy_parse(const char *text, enum dtp_strategy *out);
bool dtp_offload_parse(const char *text, enum dtp_offload *out);
bool dtp_attention_parse(const char *text, enum dtp_attention *out);
bool dtp_loss_parse(const char *text, enum dtp_loss *out);
bool dtp_engine_parse(const char *text, enum dtp_engine *out);
bool dtp_optimizer_parse(const char *text, enum dtp_optimizer *out);
bool dtp_cp_comm_parse(const char *text, enum dtp_cp_comm *out);
bool dtp_comm_hook_parse(const char *text, enum dtp_comm_hook *out);
/* "even", "counted", "cost", or a layout text, which lies in the choice. Parsing takes any text of a layout's letters;
 * whether it is one of the model says resolving. */
const char *dtp_stage_choice_text(const struct dtp_stage_choice *choice);
bool dtp_stage_choice_parse(const char *text, struct dtp_stage_choice *out);
/* "none", "full", "every-4", "selective-attention", "selective"; `out` gets at most `bytes` bytes. */
void dtp_checkpointing_text(const struct dtp_plan *plan, char *out, size_t bytes);
bool dtp_checkpointing_parse(const char *text, struct dtp_plan *plan);

/* Where the key at fault was set. `find` returns the place (NULL: not set) and its line for a key of the scenario table
 * such as "micro_batch". */
struct dtp_plan_source {
    const char *(*find)(const void *context, const char *key, size_t *line);
    const void *context;
};
/* True where the sharded state is gathered and reduced unit by unit: torch FSDP (zero3 is its synonym there). */
bool dtp_plan_is_fsdp(const struct dtp_plan *plan);
/* Adapters alone are trained. */
static inline bool dtp_plan_adapts(const struct dtp_plan *plan)
{
    return plan->adapters.rank > 0;
}

#endif
