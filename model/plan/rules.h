/* What follows from a plan's choices alone: who shards what, which bytes an element takes, what autocast and fp8 keep.
 *
 * Predicates of a resolved plan (dtp_plan_resolve), for all that predict, lower and report. */
#ifndef DTP_RULES_H
#define DTP_RULES_H

#include "base/bytes.h"
#include "machine/machine.h"
#include "machine/measured_row.h"
#include "plan/runtime.h"

/* Whose layers the plan trains, with their loss and checkpoints: its runtime's, or Transformers' under DeepSpeed. */
const struct dtp_runtime *dtp_plan_layers(const struct dtp_plan *plan);
/* Says of a kind whether its experts are called one after the other, which then are parameters of their own. */
bool dtp_plan_calls_experts(const struct dtp_plan *plan);
void dtp_plan_call_experts(const struct dtp_plan *plan, struct dtp_layer_kind *kind);

/* One kernel between matmuls, compiled or not. */
static inline bool dtp_plan_fuses(const struct dtp_plan *plan)
{
    return plan->compile | plan->runtime->fused_kernels | plan->deepspeed.megatron_layers;
}

/* What the first layer reads has a gradient though adapters alone are trained: always, or where all of it is
 * checkpointed, whose backward autograd would not call otherwise (maybe_enable_recompute_inputs_grad of
 * Megatron-Bridge's peft/recompute.py). */
bool dtp_plan_inputs_require_grad(const struct dtp_plan *plan);

/* Bytes of one activation or compute weight; fp8 recipes keep activations in bf16. */
static inline unsigned dtp_plan_compute_bytes(const struct dtp_plan *plan)
{
    unsigned bytes = dtp_dtype_bytes(plan->precision.compute);
    return bytes < 2 ? 2 : bytes;
}

static inline bool dtp_plan_strategy_in(const struct dtp_plan *plan,
                                        uint32_t strategies) /* bits by enum dtp_strategy */
{
    return strategies >> plan->strategy & 1;
}

/* True where each rank stores only its shard of the parameters. */
static inline bool dtp_plan_shards_params(const struct dtp_plan *plan)
{
    return dtp_plan_strategy_in(plan, 1u << DTP_ZERO3 | 1u << DTP_FULL_SHARD | 1u << DTP_SHARD_GRAD_OP |
                                          1u << DTP_HYBRID_SHARD);
}

static inline bool dtp_plan_shards_grads(const struct dtp_plan *plan)
{
    return plan->strategy == DTP_ZERO2 || dtp_plan_shards_params(plan);
}

static inline bool dtp_plan_shards_optimizer(const struct dtp_plan *plan)
{
    return plan->strategy != DTP_DDP;
}

/* Bytes per element. */
struct dtp_element_bytes {
    uint64_t params;    /* of stored parameters */
    uint64_t compute;   /* of weights that matmuls read, and of their gradients as autograd makes them */
    uint64_t gathered;  /* of matmul weights on the wire of an all-gather: 1 with the fp8 all-gather */
    uint64_t grads;     /* of gradients as they rest between backward and step */
    uint64_t reduce;    /* of gradients on the wire */
    uint64_t moments;   /* all states of the optimizer, both of Adam's */
    uint64_t master;    /* of the master weight where it is a copy of its own */
    uint64_t optimizer; /* both */
    uint64_t block_elements, block_bytes; /* of the optimizer's states: scales of so many elements; 0: there are none */
};
/* True where the master is kept as what it has beyond the bf16 weight: of parameters in bf16 that the fused Adam of
 * Transformer Engine updates itself, which of those in fp8 it does by delayed scaling alone (optimizer_config.py,
 * use_precision_aware_optimizer_no_fp8_or_ds_fp8; pytorch/optimizers/fused_adam.py: store_param_remainders). */
bool dtp_plan_keeps_remainders(const struct dtp_plan *plan);
/* Embedding and head that are trained beside adapters of another dtype have gradients and state in their own; `out`: a
 * plan whose adapters had that. */
bool dtp_plan_mixes_ends(const struct dtp_plan *plan);
void dtp_plan_of_ends(const struct dtp_plan *plan, struct dtp_plan *out);
/* Of an element of their gradient. */
uint64_t dtp_plan_ends_gradient_bytes(const struct dtp_plan *plan);
/* Of the optimizer's state of so many elements: `optimizer` for each, and scales. */
uint64_t dtp_optimizer_bytes(const struct dtp_element_bytes *bytes, uint64_t elements);
/* True where torch.amp.GradScaler scales the loss, so that gradients in fp16 do not vanish: fp32 parameters, fp16
 * compute. */
bool dtp_plan_scales_loss(const struct dtp_plan *plan);
void dtp_element_bytes_count(const struct dtp_plan *plan, struct dtp_element_bytes *out);

/* True where torch.autocast casts fp32 weights on the fly (DDP and ZeroRedundancyOptimizer in mixed precision): the
 * residual stream is then fp32 and a cast copy of each weight lives from its forward to its backward. */
static inline bool dtp_plan_autocast(const struct dtp_plan *plan)
{
    return plan->runtime->ddp && dtp_plan_strategy_in(plan, 1u << DTP_DDP | 1u << DTP_ZERO1) &&
           dtp_dtype_bytes(plan->precision.params) == 4 && dtp_plan_compute_bytes(plan) < 4;
}

/* DeepSpeed's stage 1 has hooks that reduce for overlap_comm alone (stage_1_and_2.py, process_gradients): else its
 * gradients go into buckets behind backward, from the first parameter on. */
static inline bool dtp_plan_fills_buckets_behind(const struct dtp_plan *plan)
{
    return plan->runtime->counts_elements && plan->strategy == DTP_ZERO1 && !plan->deepspeed.overlap_comm;
}

/* Between stages a tensor parallel rank sends its part of what all of them have whole, and gathers the rest. */
bool dtp_plan_scatters_sends(const struct dtp_plan *plan);
/* True where matmuls run as Transformer Engine's: inputs are kept for backward as their fp8 cast, and each weight has
 * two fp8 copies, by rows and by columns, for all micro-steps (te.pytorch.module.linear); under torch, which tells no
 * linear that a micro-step is the first, these go with their matmuls. torchao keeps inputs in bf16. */
bool dtp_plan_keeps_fp8(const struct dtp_plan *plan);
/* And what they read stays for backward so: of frozen weights nothing does but what adapters read, in 16 bits. */
bool dtp_plan_keeps_fp8_inputs(const struct dtp_plan *plan);

/* Where tensor parallel ranks have rows of what a linear reads, these are cast first and gathered as casts: rows alone
 * of one scale a tensor, which are transposed behind that where matmuls want columns; rows and columns of blocks
 * (transformer_engine/pytorch/distributed.py, gather_along_first_dim; module/base.py, grad_output_preprocess). */
bool dtp_plan_gathers_casts(const struct dtp_plan *plan);

/* Bytes of a score and a probability of math attention: PyTorch's math kernel computes 16-bit inputs in fp32 unless
 * torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp says otherwise; Megatron's and ours stay in 16 bits. */
unsigned dtp_plan_score_bytes(const struct dtp_plan *plan);

/* Whose code makes the casts of fp8 matmuls. FSDP1's users of fp8 had Transformer Engine's linears (llm-foundry), those
 * of FSDP2 and DDP have torchao's, and Transformer Engine's where the recipe is one of its alone. */
enum dtp_fp8_library dtp_plan_fp8_library(const struct dtp_plan *plan);
/* True where this product of a layer's matrices runs in the recipe's formats; false of 16 bits and of no recipe. */
bool dtp_plan_runs_narrow(const struct dtp_plan *plan, enum dtp_product product);
/* Layer 0 .. L - 1 of the model stays in bf16 where others are in fewer bits; how many of the layers [first, end) do.
 * The plan as those layers have it. */
bool dtp_plan_layer_is_wide(const struct dtp_plan *plan, const struct dtp_transformer *model, uint64_t layer);
uint64_t dtp_plan_wide_layers(const struct dtp_plan *plan, const struct dtp_transformer *model, uint64_t first,
                              uint64_t end);
struct dtp_plan dtp_plan_of_wide_layers(const struct dtp_plan *plan);
/* True where autocast makes 16-bit casts of the layers' weights. torchao casts fp32 weights to fp8 in one go (autocast
 * reaches into no autograd function: matmul_with_hp_or_float8_args), so that there are none. */
bool dtp_plan_casts_weights(const struct dtp_plan *plan);
/* Cross entropy as Transformers' models had it until release 4.49 (modeling_llama.py, loss/loss_utils.py:
 * ForCausalLMLoss): logits.float(), then logits[..., :-1, :].contiguous(), beside the 16-bit logits that the model's
 * forward still names (shifted_logits). Later ones shift the labels, and their loss is any other's. */
bool dtp_plan_shifts_logits(const struct dtp_plan *plan);
/* Bytes of an element of that loss, and of the copy without the last token: fp32, or of models whose code leaves logits
 * alone (narrow_logits) the copy in the compute dtype, the loss in fp32 where autocast makes it so. */
uint64_t dtp_plan_shifted_loss_bytes(const struct dtp_plan *plan);
uint64_t dtp_plan_shifted_copy_bytes(const struct dtp_plan *plan);

/* How a rank's shard is cut: FSDP2 takes rows of each parameter, DeepSpeed's stage 3 elements of each, and flat
 * parameters (FSDP1, ZeRO's other stages, our arenas) pad their end only. */
enum dtp_shard_cut { DTP_CUT_ROWS, DTP_CUT_ELEMENTS, DTP_CUT_FLAT };
enum dtp_shard_cut dtp_plan_shard_cut(const struct dtp_plan *plan);

/* True where stage 3 of DeepSpeed fetches parameters module by module. */
static inline bool dtp_plan_fetches_modules(const struct dtp_plan *plan)
{
    return plan->runtime->fetches_modules && dtp_plan_shards_params(plan);
}

/* True where the plan may say how many units are gathered ahead. */
/* FSDP1 around layers that are checkpointed by reentrant functions (fsdp/_runtime_utils.py). Their first forward is
 * without autograd, in which no hook of their backward is registered (_register_pre_backward_hooks), and without that
 * none of them is gathered ahead (_get_handle_to_prefetch asks for _needs_pre_backward_unshard). A replay is a forward
 * as any: it lets go what it has gathered (_post_forward_reshard), which its backward gathers again. */
bool dtp_plan_gathers_for_replays(const struct dtp_plan *plan);
/* Hooks of FSDP1 on the inputs of replays hold these, with their gradients, to the end of backward (lower_held.c). */
bool dtp_plan_hooks_hold(const struct dtp_plan *plan);
/* Units are gathered ahead in backward. */
bool dtp_plan_prefetches_backward(const struct dtp_plan *plan);
bool dtp_plan_takes_prefetch_depth(const struct dtp_plan *plan);

/* True where reductions of replicated parameters run beside backward. */
bool dtp_plan_overlaps_reductions(const struct dtp_plan *plan);
/* True where the gather of updated parameters runs beside the next forward. */
bool dtp_plan_overlaps_gather(const struct dtp_plan *plan);

/* The loss that runs: torch.compile fuses the eager one, our executor always chunks. */
enum dtp_loss dtp_plan_loss(const struct dtp_plan *plan);
/* An eager loss whose probabilities are made in place of the fp32 logits, and the gradient in place of these. */
/* RoPE without its fusion, and of a model with sinks, which is gpt-oss: its YaRN stretches 32 times and so multiplies
 * by 1.35, which fused kernels of Transformer Engine do not (rope_utils.py, apply_rotary_pos_emb: mscale). Then by
 * operators (c bytes an element of q and k): half of it negated c, put behind the other half 2 c, products with cosine
 * and sine 2 c each, their sum 3 c, a cat with the none that does not turn 2 c; backward both products 4 c, the half c,
 * its cat 2 c, their sum 3 c, and zeros for what does not turn, added, 4 c. Six and seven kernels for each of q and k,
 * forward as many small ones for the angles. */
struct dtp_layer_kind;
bool dtp_plan_turns_eagerly(const struct dtp_plan *plan, const struct dtp_layer_kind *kind);
/* Eager autocast, in a layer where nothing but linears reads its norms, and the rank all of their rows: each linear
 * casts what it reads of a norm's fp32 result for itself, and autograd begins with the linear that was called last. */
bool dtp_plan_casts_apart(const struct dtp_plan *plan, const struct dtp_layer_kind *kind);
#define DTP_EAGER_TURN_PASSES 12
#define DTP_EAGER_TURN_PASSES_BACK 14
#define DTP_EAGER_TURN_KERNELS 12
#define DTP_EAGER_TURN_KERNELS_BACK 7
/* The same of latent attention, of what it turns of each query and of the keys' part that all heads share: even and odd
 * elements a cat 2 c, products, the half, its cat, the sum and the cat with none as above 12 c; backward both products,
 * the half, the halves put together 2 c and their sum as above 10 c, zeros for even and odd elements and a copy into
 * each 4 c, their sum 3 c, zeros for the none, added, 4 c. Seven kernels, and six for the angles; twelve. */
bool dtp_plan_turns_latents_eagerly(const struct dtp_plan *plan, const struct dtp_layer_kind *kind);
#define DTP_LATENT_TURN_PASSES 14
#define DTP_LATENT_TURN_PASSES_BACK 21
#define DTP_LATENT_TURN_KERNELS 13
#define DTP_LATENT_TURN_KERNELS_BACK 12

/* Of an element of q and k, those that eager kernels of RoPE take one at a time, forward as backward. Complex numbers:
 * a cast to fp32, and a product by numbers of each token, two elements a time. Halves in fp32: a cast, four products of
 * strided halves, a cat. Halves in 16 bits, as Transformers has them: two products, one half negated, a cat; backward
 * the half put into zeros besides. */
double dtp_plan_turned_elements(const struct dtp_transformer *transformer, const struct dtp_plan *plan);

bool dtp_plan_softmax_in_place(const struct dtp_plan *plan);

/* Tensors of attention's scores that its backward makes where no kernel fuses it: the gradient of probabilities, and
 * that of scores, which Transformer Engine writes over it (pytorch/csrc/extensions/softmax.cpp). */
uint64_t dtp_plan_score_gradients(const struct dtp_plan *plan);
/* Passes of a fused loss over logits: they are read for maximum and sum and again for the gradient, which is written,
 * and read, or read and written. */
static inline double dtp_plan_fused_loss_passes(const struct dtp_plan *plan)
{
    return plan->runtime->scales_logits_gradient ? 5 : 4;
}

/* N: ranks that share one copy: 1 under ddp, all for the ZeRO stages and FSDP, the shard group where the plan names
 * one. */
uint64_t dtp_plan_shard_ranks(const struct dtp_cluster *cluster, const struct dtp_plan *plan);

/* True where autograd's gradients are added, after each micro-step, to sums that are made at construction. */
bool dtp_plan_sums_gradients(const struct dtp_plan *plan);

/* Whether the strategy frees gathered weights after forward where nothing else is asked. */
bool dtp_strategy_frees_weights(enum dtp_strategy strategy);

/* True where the root unit stays gathered from forward to backward: FSDP2 where it was left to decide, FSDP1 and ours
 * always. */
bool dtp_plan_keeps_root(const struct dtp_plan *plan);

/* Whether there are two ends of a model that could be FSDP2 units of their own. A tied head is one matrix with the
 * embedding; a loss by chunks stands outside of the model; keep_root speaks of a root that holds both, as torchtitan's
 * did until July 2025. */
bool dtp_plan_has_ends(const struct dtp_plan *plan, const struct dtp_transformer *transformer);
/* True where embedding, and final norm with head, are such units, the latter kept gathered: where wrap_ends says so,
 * as it does, resolved, of PyTorch's models that tp, cp or pp divide (torchtitan's parallelize.py). */
bool dtp_plan_wraps_ends(const struct dtp_plan *plan, const struct dtp_transformer *transformer);

/* Micro-steps of a step in which gradients are reduced: with no_sync the last only; DeepSpeed's stages 2 and 3, and
 * ours under zero2, keep only a shard of the gradients and reduce in every one. */
uint32_t dtp_plan_reductions(const struct dtp_plan *plan);

/* True where all degrees of parallelism are at least 1: nothing may be divided by them before. */
bool dtp_plan_axes_given(const struct dtp_plan *plan);

bool dtp_plan_model_parallel(const struct dtp_plan *plan);

/* Whether tp x cp x pp divides the GPUs. */
bool dtp_plan_degrees_divide(const struct dtp_plan *plan, uint32_t gpus);

/* True where a pipeline's GPUs hold several chunks of the model that take turns: of plans as asked and as resolved. */
bool dtp_plan_interleaves(const struct dtp_plan *plan);

/* True where a pipeline's gradients of weights are passes of their own, which fill what would be idle; the same. */
bool dtp_plan_splits_backward(const struct dtp_plan *plan);

/* gpus / (tp cp pp), which have sequences of their own; at least 1. */
uint32_t dtp_plan_data_ranks(const struct dtp_plan *plan, const struct dtp_cluster *cluster);
/* True where PyTorch's DDP reduces gradients in buckets: between data parallel ranks. */
static inline bool dtp_plan_has_ddp_buckets(const struct dtp_plan *plan, const struct dtp_cluster *cluster)
{
    return plan->runtime->ddp && !dtp_plan_shards_params(plan) && dtp_plan_data_ranks(plan, cluster) > 1;
}

/* gpus / (tp pp), over which gradients are summed and state is sharded: each context parallel rank has other tokens. At
 * least 1. */
uint32_t dtp_plan_gradient_ranks(const struct dtp_plan *plan, const struct dtp_cluster *cluster);

/* Tensor parallel ranks have other tokens each between matmuls, and are folded into the groups of experts
 * (Megatron-Core's parallel folding, expert tensor parallelism 1): so many of them. */
static inline uint32_t dtp_plan_expert_fold(const struct dtp_plan *plan)
{
    return plan->expert_fold > 1 ? plan->expert_fold : 1;
}
/* torchtitan's layers of experts (models/llama4/infra/parallelize.py, apply_moe_ep_tp): tensor parallel ranks gather
 * the rows of all, and each routes all of them. Without ep, or where expert tensor parallelism is as wide, each has a
 * part of the experts' width and sends, or multiplies, rows of all tokens; else whole experts and, behind the router,
 * rows of its own part of the tokens (expert_shards). What they make are terms of one sum, of all rows. */
static inline bool dtp_plan_routes_all(const struct dtp_plan *plan)
{
    return plan->runtime->dtensor && plan->sequence_shards > 1;
}
/* Ranks that have a part of each expert's width. */
static inline uint32_t dtp_plan_width_ranks(const struct dtp_plan *plan)
{
    if (dtp_plan_routes_all(plan) && plan->ep < 2)
        return plan->sequence_shards;
    return plan->megatron.etp > 1 ? plan->megatron.etp : 1;
}
/* Of these, who have received other rows each, and gather them before they multiply: Megatron-Core's. */
static inline uint32_t dtp_plan_row_gatherers(const struct dtp_plan *plan)
{
    return plan->ep > 1 && !dtp_plan_routes_all(plan) ? dtp_plan_width_ranks(plan) : 1;
}
/* Bytes that PyTorch keeps for cuBLAS, for each thread and stream that calls it: 4096 x 8 KiB on Hopper and later, else
 * 2 x 4 MiB + 8 x 16 KiB (CublasHandlePool.cpp). */
uint64_t dtp_plan_cublas_workspace(const struct dtp_gpu *gpu);
/* Bytes that the library of a runtime's grouped matmuls keeps beside PyTorch's workspaces. */
uint64_t dtp_plan_expert_workspaces(const struct dtp_plan *plan, const struct dtp_gpu *gpu);
/* Ranks that have the same experts, over which these weights' gradients are summed: those of a stage over ep. */
uint32_t dtp_plan_expert_replicas(const struct dtp_plan *plan, const struct dtp_cluster *cluster);
/* Of these, who share one copy of them where parameters are sharded: the shard group over ep. */
uint64_t dtp_plan_expert_shard_ranks(const struct dtp_cluster *cluster, const struct dtp_plan *plan);

/* Whether attention, and the head, multiply in fewer than 16 bits as the linears do. */
static inline bool dtp_plan_attends_narrowly(const struct dtp_plan *plan)
{
    return plan->megatron.fp8_attention && plan->precision.compute == DTP_FP8;
}
static inline bool dtp_plan_narrows_head(const struct dtp_plan *plan)
{
    return plan->megatron.fp8_head && plan->precision.compute == DTP_FP8;
}

/* Whether each expert has as many rows, filled or not: DeepSpeed's own layer (moe/sharded_moe.py). So many of a rank's
 * tokens, over the mean of what comes: its capacity, 1 by default, or as many as the fullest expert of any rank that
 * exchanges rows has. C = ceil(T k / E x capacity) is not rounded here, nor at least min_capacity. */
static inline bool dtp_plan_slots_rows(const struct dtp_plan *plan)
{
    return plan->runtime->slots_rows && !plan->deepspeed.autoep;
}
static inline double dtp_plan_slots(const struct dtp_plan *plan)
{
    double capacity = plan->megatron.capacity_factor;
    return !plan->deepspeed.drop_tokens ? plan->expert_imbalance : capacity > 0 ? capacity : 1;
}
/* Rows over those of a rank's tokens, of which each has one for each of its experts. A rank sends as many, or so many
 * that every expert's are filled up to a capacity. */
static inline double dtp_plan_padded_rows(const struct dtp_plan *plan)
{
    if (dtp_plan_slots_rows(plan))
        return dtp_plan_slots(plan);
    return plan->megatron.pad_to_capacity ? plan->megatron.capacity_factor : 1;
}
/* That come to the rank which receives the most. No expert takes more than its capacity, and so no rank. */
static inline double dtp_plan_crossed_rows(const struct dtp_plan *plan)
{
    double most = plan->ep > 1 ? plan->expert_imbalance : 1, capacity = plan->megatron.capacity_factor;
    bool bound = capacity > 0 && capacity < most;
    if (dtp_plan_slots_rows(plan))
        return dtp_plan_slots(plan);
    return plan->megatron.pad_to_capacity || bound ? capacity : most;
}
/* That its experts work on, those of ranks with other parts of them too. */
static inline double dtp_plan_expert_rows(const struct dtp_plan *plan)
{
    return dtp_plan_crossed_rows(plan) * dtp_plan_row_gatherers(plan);
}
/* Whether exchanges read tokens' rows where they lie, once for each rank that has experts of them, and add up what
 * comes back (MoEFlexTokenDispatcher of Megatron-Core's token_dispatcher.py: DeepEP, HybridEP). */
static inline bool dtp_plan_sends_tokens(const struct dtp_plan *plan)
{
    return plan->megatron.flex_dispatcher && plan->ep > 1;
}
/* Of the rows that a rank's experts get, those that come to it: 1, or less where a token's come as one. Experts are as
 * good as drawn. */
double dtp_plan_expert_arriving_part(const struct dtp_plan *plan, uint64_t experts_per_token);
/* Of what a token's rows are in all, the part that is sent: 1, or less where a row goes once to a rank, or once to
 * another node, that has several of the token's experts. Experts are as good as drawn. */
double dtp_plan_expert_sent_part(const struct dtp_plan *plan, const struct dtp_cluster *cluster,
                                 uint64_t experts_per_token);

/* With activation_offload: whether checkpoints are copied beside the kernels, by hooks of what is saved, or between
 * them, by a checkpoint function of their own; and how many stand on the GPU at most behind the first so many of all
 * layers, or behind all of them (lower/lower_carried.h). */
static inline bool dtp_plan_carries_beside(const struct dtp_plan *plan)
{
    return plan->activation_offload && !dtp_plan_layers(plan)->holds_replayed;
}
static inline uint64_t dtp_plan_standing(const struct dtp_plan *plan, uint64_t layers, uint64_t all)
{
    const uint64_t stash = dtp_plan_carries_beside(plan) ? 2 : 1, most = layers == all ? stash - 1 : stash;
    return plan->activation_offload && most < layers ? most : layers;
}

/* Of a micro-step on one rank: context parallel ranks divide a sequence. */
static inline uint64_t dtp_plan_tokens(const struct dtp_plan *plan)
{
    return dtp_bytes_product(plan->micro_batch, plan->cp > 1 ? plan->sequence / plan->cp : plan->sequence);
}

/* A layer's attention, by the plan's kernel. */
struct dtp_attention_shape dtp_plan_attention(const struct dtp_transformer *transformer,
                                              const struct dtp_cluster *cluster, const struct dtp_plan *plan,
                                              uint64_t layer);
/* Values of latent attention are narrower than keys. cuDNN's kernels for Hopper and Blackwell take them so; for
 * FlashAttention's, which know one width, transformers pads them with zeros to the keys' (DeepseekV3Attention.forward,
 * flash_attention_2), and what comes of it is cut to size again. */
bool dtp_plan_pads_values(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                          const struct dtp_plan *plan);
/* What a program of the plan says of its execution. */
struct dtp_execution dtp_plan_execution(const struct dtp_plan *plan);

/* Whether PyTorch's clip_grad_norm_ clips gradients, and what each of so many ranks sends to sum the norm of theirs. */
bool dtp_plan_clips(const struct dtp_plan *plan);
uint64_t dtp_plan_norm_bytes(const struct dtp_plan *plan, uint64_t ranks);
/* Whether tensor parallel ranks share out the vocabulary, embedding, head and loss with it; else each has all of it. */
bool dtp_plan_divides_vocab(const struct dtp_plan *plan);
/* Ranks of whose rows of the embedding's table each makes the gradient; 1: of its own. DTensor gives replicated
 * operands of embedding_dense_backward a replicated result (torch/distributed/tensor/_ops/_embedding_ops.py); what is
 * added to a tied head's gradient is of the rank's rows. Of a resolved plan. */
uint32_t dtp_plan_table_gradient_ranks(const struct dtp_plan *plan, bool tied_head);

/* Whether the loss is of the columns of the logits that a rank has, over DTensors (PyTorch's loss_parallel); of which
 * columns it is, where a rank's slice of the vocabulary is `vocab`. */
static inline bool dtp_plan_loss_over_dtensors(const struct dtp_plan *plan)
{
    return plan->vocab_ranks > 1 && plan->runtime->dtensor && !plan->gathered_logits;
}
static inline uint64_t dtp_plan_loss_columns(const struct dtp_plan *plan, uint64_t vocab)
{
    return plan->gathered_logits && plan->vocab_ranks > 1 ? vocab * plan->vocab_ranks : vocab;
}

/* Columns of the logits as the head's matmuls compute them: Megatron and our executor (dtp_parameter_head_rows) pad. */
uint64_t dtp_plan_head_columns(const struct dtp_plan *plan, uint64_t vocab);

#endif
