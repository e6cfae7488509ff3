/* A runtime: whose rules of saved tensors, buckets, buffers and overlap are predicted.
 *
 * Each is a folder model/runtime/NAME that fills one such struct, and model/runtime/runtimes.c is the one list of them.
 * Nothing else names a runtime: what predicts, lowers and reports asks the plan's for the properties below, or calls
 * its hooks. A property says what a runtime does in words of its own, so that another one can share it; where several
 * choices of the plan play together, rules.h has the predicate. */
#ifndef DTP_PLAN_RUNTIME_H
#define DTP_PLAN_RUNTIME_H

#include "plan/resolver.h"

struct dtp_closed_form_hooks; /* closed/closed_form_hooks.h */
struct dtp_lower_hooks;       /* lower/lower_hooks.h */

struct dtp_runtime {
    const char *name, *synonym; /* words of --runtime; synonym NULL: none */
    const char *framework;      /* as people write it */
    uint32_t strategies;        /* bits of enum dtp_strategy that exist under it */
    enum dtp_strategy shards_all;
    enum dtp_issuer issuer; /* of kernels: what a launch costs the host */

    /* ---- state and precision ---- */
    bool stores_compute_dtype; /* weights at rest are in the compute dtype, whatever the recipe calls parameters */
    bool owns_master;          /* mixed recipes mean 16-bit parameters and an fp32 master in the optimizer, and then */
    bool reduces_fp32;         /* gradients of bf16 are reduced in fp32 */
    bool keeps_fp8;            /* fp8 matmuls are Transformer Engine's: dtp_plan_keeps_fp8 */
    bool adds_before_shards;   /* under ZeRO-2 micro-steps add up whole gradients, which are reduced once */
    bool gradients_in_matmul;  /* matmuls add to a buffer of the reduce dtype, where gradients rest */
    bool sums_gradients;    /* autograd's gradients are added, after each micro-step, to sums in the reduce dtype, which
                               are what is reduced and what the optimizer reads */
    bool reduces_own_dtype; /* gradients go over the wire in the dtype they rest in */
    bool wide_scores;       /* math attention computes 16-bit inputs in fp32 (dtp_plan_score_bytes) */
    uint64_t vocab_multiple; /* the head's matmuls pad the vocabulary to one of it; 1: they do not */

    /* ---- strategies ---- */
    bool ddp;             /* replicated parameters are trained by PyTorch's DDP: autocast casts them on the fly, buckets
                             take the gradients */
    uint32_t hooked;      /* bits of enum dtp_strategy under which what replicas sum may be compressed (comm_hook.h) */
    bool fsdp;            /* sharded ones by FSDP: in units of layers; zero3 is another word for full_shard */
    bool fetches_modules; /* sharded ones are fetched module by module, each tensor cut by elements */
    bool partial_groups;  /* ZeRO's stages may shard over a part of the GPUs */
    bool own_prefetch;    /* prefetch_depth is its own, whatever the strategy */
    bool keeps_root;      /* embedding and head stay gathered from forward to backward */
    bool reduces_shards_always; /* where gradients are sharded, every micro-step reduces */
    bool overlap_comm;          /* DeepSpeed's switch of that name exists */
    bool overlap_grad_reduce;   /* Megatron-Core's does, with overlap_param_gather */

    /* ---- beyond data parallelism ---- */
    uint32_t splits;     /* DTP_AXES of the mesh along which it divides a model: TP, PP, CP */
    uint32_t schedules;  /* of a pipeline that it runs: bits of enum dtp_schedule_kind */
    bool equal_rounds;   /* interleaved goes in rounds of equally many micro-batches (`struct dtp_schedule_shape`) */
    bool reads_losses;   /* the host waits for the loss of each micro-step, but where unread_loss says not */
    bool clips_by_key;   /* gradients are clipped where clip_norm asks for that, by torch.nn.utils' clip_grad_norm_ */
    bool clips;          /* no stage of a pipeline steps before the norm of all gradients is known */
    bool validates;      /* or it steps, where post_validation asks for that, and finds out in the next step; where a
                            schedule splits backward */
    bool copies_passes;  /* a stage receives into one buffer each way that stands for the whole run; of activations it
                            keeps a copy until their gradient is sent and works on another, and holds what it makes
                            until its backward is through (pipe_buffers of DeepSpeed's PipelineEngine) */
    bool scatters_sends; /* of rows, and of their gradients, that tensor parallel ranks have alike each sends its part,
                            which are gathered behind the receive (PartitionedTensor by pipe_partitioned and
                            grad_partitioned of DeepSpeed's runtime/pipe/engine.py, both on by default); what is copied
                            and held is then that part, and a result is gathered once more for its backward */
    bool sends_beside;   /* no stage waits until what it sends is taken, whatever the schedule */
    bool holds_passes;   /* a stage receives into memory that stands for the whole run, holds what it makes until its
                            backward is through and the gradient of its input until the next step, and has its loss with
                            its forward; autocast's casts live from the first pass to the last
                            (torch.distributed.pipelining) */

    /* ---- adapters on frozen weights ---- */
    bool adapters; /* knows them */
    struct {
        bool tp, pp, cp;
    } adapters_under;          /* degrees of parallelism above 1 that it knows them beside */
    bool adapters_as_weights;  /* they are parameters like others: in the recipe's dtypes with its master, divided among
                                  tensor parallel ranks, one beside each linear as the model has them, fused too
                                  (ParallelLinearAdapter of Megatron-Bridge's peft/utils.py) */
    bool magnitudes;           /* and DoRA's magnitudes */
    bool inputs_require_grad;  /* what the first layer reads has a gradient though nothing below is trained
                                  (enable_input_require_grads of Transformers) */
    bool defends_results;      /* the result of a packed matrix is copied before an adapter's is added to it
                                  (result.clone() of peft's tuners/lora/bnb.py and gptq.py) */
    bool bitsandbytes;         /* 4-bit weights are its nf4, unpacked by its kernel (functional.py, dequantize_4bit) */
    bool casts_to_adapters;    /* a linear casts what its adapter reads to the adapter's dtype
                                  (x.to(lora_A.weight.dtype) of peft's tuners/lora/layer.py) */
    bool copies_trained;       /* whole modules that are trained are copies, beside which the frozen ones stand
                                  (ModulesToSaveWrapper of peft's utils/other.py) */
    bool packs_scales;         /* 4-bit weights have packed scales always (torchao) */
    bool unpacks_by_operators; /* eagerly these are unpacked by a chain of operators, not by one kernel (torchao) */

    /* ---- tensor parallel ranks ---- */
    bool experts;         /* knows layers with experts */
    bool expert_parallel; /* and ranks that divide them */
    bool loops_experts;   /* products and casts of experts are calls of a library, one for each of them */
    bool calls_experts;   /* experts are modules, called one after the other with rows gathered for each (Transformers'
                             MixtralSparseMoeBlock, Qwen2MoeSparseMoeBlock and others until release 5) */
    bool slots_rows;      /* these are a layer of the runtime's own, where each has as many rows: DeepSpeed's MoE */
    bool weighs_rows; /* their weights multiply rows within the activation, and rows are moved by one kernel each way */
    bool latent_attention, attention_sinks, clamped_swiglu;
    bool predicts_ahead;  /* a module that predicts a token further ahead, in the stage with the head */
    bool joins_sinks;     /* sinks stand beside the kernel's log-sum-exp in a tensor, whose log-sum-exp is taken in the
                             compute dtype (flex_attention_forward of Transformers' integrations/flex_attention.py) */
    bool sinks_in_kernel; /* its attention kernel adds sinks to the sum of exponentials, and returns their gradient */
    bool copies_values;   /* values of latent attention become a tensor of their own, and what was projected goes */
    bool whole_stream;    /* each has all of the residual stream: no sequence parallelism */
    bool whole_vocab;     /* and all of embedding, head and loss, where the model does not divide itself */
    bool gathers_again; /* what a matmul reads is not kept as it was gathered, but as the rank's rows, and gathered for
                           the weight gradient once more */
    bool sums_beside;   /* input gradients are summed over ranks beside the weight gradient's matmul */
    bool records_terms; /* terms of a sum over ranks are let go while it still runs, and the allocator holds them until
                           it has seen that done (record_stream of ProcessGroupNCCL) */
    bool dtensor;       /* PyTorch's DTensor: eager operators are dispatched in Python, and gradients of parameters that
                           each rank has whole are summed as soon as they are made */

    /* ---- context parallel ranks ---- */
    uint32_t cp_comms;    /* bits of enum dtp_cp_comm that it has */
    bool sums_apart;      /* in a ring gradients of keys and values go around by themselves, behind each step */
    bool keeps_exchanged; /* what was exchanged of q, k and v is what is kept; the result is exchanged again in backward
                           */
    bool walks_gathered;  /* keys and values are gathered as one tensor, of which each rank's part is an attention core
                             of its own; partial results are merged by eager kernels in fp32, gradients of keys and
                             values go around a ring in fp32 */

    /* ---- kernels ---- */
    bool compiles;             /* torch.compile */
    bool foreach_optimizer;    /* PyTorch's AdamW tensor by tensor */
    uint32_t optimizer_shapes; /* bits of enum dtp_optimizer_shape: whose state follows from the shape of each tensor */
    bool fused_kernels;        /* one kernel between matmuls, without a compiler */
    bool own_kernels;          /* kernels of this project, whose rates are calibrated and probed apart */
    bool plain_host_adam;      /* AdamW on the host is PyTorch's, not a vectorised one */
    bool packs_matrices;       /* q, k, v are one matmul and gate, up one, each with its result kept */
    bool chunks_loss;          /* head and loss always run chunk by chunk */
    bool engine_experts;       /* grouped matmuls are Transformer Engine's, with workspaces of their own */
    bool chains_norms;         /* RMSNorm is written in operators on an fp32 copy (norm_chain.h) */
    bool shifts_logits;        /* an eager loss is of an fp32 copy of the logits and of a copy of that without the last
                                  token, while the model holds the 16-bit ones (dtp_plan_shifts_logits) */
    bool holds_replayed;       /* a replay makes all of a block, whose result stands until its backward is through
                                  (reentrant torch.utils.checkpoint) */
    bool fused_norms;          /* a norm's backward is one kernel, eager as the rest may be */
    bool unscaled_rope; /* its fused RoPE multiplies by no factor: what has one (YaRN's) turns operator by operator */
    bool softmax_in_place;   /* an eager loss turns fp32 logits into probabilities, and these into the gradient, in one
                                tensor (vocab_parallel_cross_entropy of Megatron's layers, nanotron's after it) */
    bool subtracts_in_place; /* and the differences to the maximum are that tensor too
                                (tensor_parallel/cross_entropy.py) */
    bool native_loss;        /* has a fused loss of its own, which PyTorch compiles (DTP_LOSS_NATIVE) */
    bool scales_logits_gradient; /* a fused loss makes the gradient in forward, and multiplies it by the loss's in
                                    backward (Transformer Engine's element_mul_kernel, pytorch/cross_entropy.py) */
    bool copies_views;  /* attention's module takes q, k and v that lie alike, and copies the values that are a part of
                           the  matmul's result where RoPE or a norm made new queries and keys (Transformer Engine's
                           get_qkv_layout); where attention runs again the view is what is kept */
    bool repacks_heads; /* k and v are put side by side anew for the flash kernel: with fewer of them than of q the
                           matmul's result is not what stays */
    bool copies_heads;  /* fp32 RoPE ends in a cat, after which heads are put side by side by a copy */
    bool stops_replay;  /* a replay ends at the last saved tensor: the last matmul does not run again */

    /* ---- memory and execution ---- */
    /* cuBLAS' workspace of autograd's thread is taken by a step's first backward and is back before the optimizer, not
     * there all the time */
    bool passing_workspace;
    bool one_queue; /* kernels of all streams go to the device through one queue (CUDA_DEVICE_MAX_CONNECTIONS=1) */
    bool counts_elements;  /* buckets and prefetches are counted in elements over the whole net and end anywhere in a
                              layer, so that no layer's part of a step need repeat another's */
    bool arena;            /* the step's memory is one arena, placed beforehand: no segments, no rounding */
    bool executed;         /* dtplan-exec runs its programs */
    bool group_of_one;     /* one rank opens NCCL's communicator all the same, whatever it shards */
    const char *reference; /* script of the data directory that trains its plans with the framework itself; NULL: there
                              is none, plans are only predicted unless they are executed */
    const char *prober;    /* script beside it that measures a machine with the framework's own kernels; NULL: none */

    /* ---- hooks; NULL: nothing ---- */
    /* The runtime's part of dtp_plan_resolve: what follows under it, and what it refuses. Keys that it alone reads are
     * refused under any other by their rows (plan_keys.def); check_elsewhere refuses values of other keys that exist
     * under it alone. check_offload, of a plan that offloads: true where it has refused that. */
    void (*derive)(struct dtp_plan *plan);
    void (*check)(struct dtp_resolver *resolver);
    void (*check_elsewhere)(struct dtp_resolver *resolver);
    bool (*check_offload)(struct dtp_resolver *resolver);
    /* Name with what the plan makes of it, "torch FSDP2 eager"; NULL: the name alone. */
    void (*words)(const struct dtp_plan *plan, char *out, size_t bytes);
    /* Whether reductions of replicated parameters run beside backward, and the gather behind the step beside the next
     * forward. NULL: never. */
    bool (*overlaps_reductions)(const struct dtp_plan *plan);
    bool (*overlaps_gather)(const struct dtp_plan *plan);

    const struct dtp_closed_form_hooks *closed;
    const struct dtp_lower_hooks *(*lower)(const struct dtp_plan *plan);
};

#endif
