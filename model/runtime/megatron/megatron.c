/* Megatron-LM: Megatron-Core's DDP and distributed optimizer, with tensor, context and pipeline parallelism. */
#include "runtime/megatron/megatron.h"

#include "cost/calibration.h"
#include "lower/lower_hooks.h"
#include "net/models.h"
#include "plan/checkpointing.h"
#include "plan/graph_modules.h"
#include "plan/rules.h"
#include "plan/runtime_sizes.h"
#include "plan/runtime.h"
#include "closed/model_parallel.h"

#include <inttypes.h>

/* ---- what it refuses --------------------------------------------------------------------------------------------- */

static bool overlaps(const struct dtp_plan *plan)
{
    return plan->megatron.overlap || plan->strategy == DTP_ZERO2;
}

/* Ranks that have a part of each expert's width (expert_tensor_parallel_size). */
static void check_expert_tensor(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    uint32_t etp = p->megatron.etp;
    if (etp < 2)
        return;
    if (p->ep < 2)
        dtp_plan_refuse(r, "etp", "is modelled where ranks divide the experts too; use ep above 1, or etp 1");
    if (p->megatron.flex_dispatcher || p->megatron.expert_overlap)
        dtp_plan_refuse(r, p->megatron.expert_overlap ? "expert_overlap" : "flex_dispatcher",
                        "with etp is not modelled; leave it out");
    if (r->transformer->expert_ffn % etp)
        dtp_plan_refuse(r, "etp", "%" PRIu32 " does not divide experts %" PRIu64 " wide", etp,
                        r->transformer->expert_ffn);
    if (r->transformer->expert_bias)
        dtp_plan_refuse(r, "etp", "with biases of experts is not modelled; use 1");
}

/* Shared experts beside exchanges (transformer_config.py, __post_init__): of all-to-alls alone. */
static void check_shared_overlap(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    const char *key = "shared_expert_overlap";
    if (!p->megatron.shared_overlap)
        return;
    if (p->ep < 2 || !r->transformer->shared_expert_ffn)
        dtp_plan_refuse(r, key, "is of %s; leave it out",
                        p->ep < 2 ? "rows to experts elsewhere, of which ep 1 has none"
                                  : "shared experts, of which this model has none");
    if (p->megatron.flex_dispatcher || p->megatron.expert_overlap)
        dtp_plan_refuse(r, key, "is not with %s in Megatron-Core; leave one of them out",
                        p->megatron.flex_dispatcher ? "flex_dispatcher" : "expert_overlap");
    if (dtp_plan_recomputes(p, DTP_RECOMPUTE_SHARED_EXPERTS))
        dtp_plan_refuse(r, key, "is not with shared experts that run again in Megatron-Core; leave one of them out");
    if (p->tp > 1)
        dtp_plan_refuse(r, key, "with tp above 1 is not modelled, whose ranks exchange rows of shared experts too");
    if (dtp_plan_replays(p, DTP_GRAPH_MOE_ROUTER) && !dtp_plan_replays_all(p))
        dtp_plan_refuse(r, key, "with graphs of moe_router is not modelled, which then have no shared experts in them");
}

/* Megatron-Core's experts: each tensor parallel rank's are divided otherwise than the rest of its layers, and have
 * buffers of their own, which overlap by other rules. */
static void check_experts(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    if (p->megatron.flex_dispatcher && p->ep < 2)
        dtp_plan_refuse(r, "flex_dispatcher",
                        "sends tokens to experts elsewhere, of which ep 1 has none; leave it out");
    if (p->megatron.capacity_factor > 0 && !r->transformer->experts)
        dtp_plan_refuse(r, "capacity_factor", "is of experts, of which this model has none; leave it out");
    if (p->megatron.pad_to_capacity && p->megatron.capacity_factor <= 0)
        dtp_plan_refuse(r, "pad_to_capacity", "fills rows up to a capacity, of which none is set; set capacity_factor");
    if (p->megatron.pad_to_capacity && p->megatron.flex_dispatcher)
        dtp_plan_refuse(r, "pad_to_capacity",
                        "is not with flex dispatchers in Megatron-Core (transformer_config.py); leave one of them out");
    if (p->megatron.unfused_permute && !r->transformer->experts)
        dtp_plan_refuse(r, "unfused_permute", "is of rows to experts, of which this model has none; leave it out");
    if (p->megatron.unfused_permute && p->megatron.flex_dispatcher)
        dtp_plan_refuse(r, "unfused_permute", "with flex_dispatcher is not modelled; leave one of them out");
    if (p->megatron.unfused_permute && dtp_plan_replays_all(p))
        dtp_plan_refuse(
            r, "unfused_permute",
            "with passes that are one CUDA graph is not modelled, whose buffers of fixed size fused kernels "
            "fill; leave it out, or full_iteration");
    if (p->megatron.expert_overlap && p->ep < 2)
        dtp_plan_refuse(r, "expert_overlap", "is of rows to experts elsewhere, of which ep 1 has none; leave it out");
    if (p->megatron.expert_overlap && p->pp > 1 && !dtp_plan_interleaves(p) && p->schedule != DTP_SCHEDULE_1F1B)
        dtp_plan_refuse(r, "expert_overlap", "pairs passes as 1f1b and interleaved have them; use these");
    if (p->megatron.expert_overlap && p->checkpointing == DTP_CHECKPOINT_FULL)
        dtp_plan_refuse(r, "expert_overlap", "is not with full recomputation in Megatron-Core; use recompute_modules");
    check_shared_overlap(r);
    if (!r->transformer->experts)
        return;
    check_expert_tensor(r);
    if (p->strategy == DTP_ZERO2)
        dtp_plan_refuse(r, "strategy", "zero2 is not modelled with experts under runtime megatron; use zero1");
    if (overlaps(p) && p->pp > 1 && dtp_plan_splits_backward(p))
        dtp_plan_refuse(
            r, "megatron_overlap",
            "is not modelled with experts where gradients of weights are passes of their own; leave it out");
    if (p->pp > 1 && p->schedule == DTP_SCHEDULE_DUALPIPE)
        dtp_plan_refuse(r, "schedule", "dualpipe is not modelled with experts; use 1f1b or interleaved");
    if (p->post_validation)
        dtp_plan_refuse(r, "post_validation", "is not modelled with experts; leave it out");
    if (r->transformer->expert_layer_step > 1 && p->pp > 1)
        dtp_plan_refuse(r, "expert_layer_step", "is not modelled with stages under runtime megatron; use 0");
}

/* A graph of a module that no layer has would be silently nothing; Megatron asserts the same (transformer_config.py,
 * __post_init__, cuda_graph_modules). */
static void check_graphs(struct dtp_resolver *r)
{
    static const struct {
        enum dtp_graph_module module;
        const char *word, *of;
        bool experts;
    } parts[] = {{DTP_GRAPH_MLP, "mlp", "layers without experts", false},
                 {DTP_GRAPH_MOE_ROUTER, "moe_router", "layers of experts", true},
                 {DTP_GRAPH_MOE_PREPROCESS, "moe_preprocess", "layers of experts", true}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        bool has = false;
        for (uint64_t layer = 0; layer < r->transformer->layers && !has; layer++)
            has = dtp_transformer_layer_has_experts(r->transformer, layer) == parts[i].experts;
        if (r->plan->megatron.graphs >> parts[i].module & 1 && !has)
            dtp_plan_refuse(r, "cuda_graph_modules", "%s is of %s, which this model has not; leave it out",
                            parts[i].word, parts[i].of);
    }
}

/* Layers that stay in bf16 (transformer_config.py, __post_init__: not with delayed scaling, whose casts of a step share
 * their scales' history). */
static void check_wide_layers(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    const uint64_t wide = (uint64_t)p->megatron.bf16_first + p->megatron.bf16_last;
    const char *key = p->megatron.bf16_first ? "bf16_first_layers" : "bf16_last_layers";
    if (!wide)
        return;
    if (p->precision.compute != DTP_FP8)
        dtp_plan_refuse(r, key, "is of recipes of fewer than 16 bits, of which precision names none; leave it out");
    if (p->precision.fp8_recipe == DTP_FP8_DELAYED)
        dtp_plan_refuse(r, key, "is not with delayed scaling in Megatron-Core; use another recipe of precision");
    if (wide >= r->transformer->layers - r->transformer->ahead_layers)
        dtp_plan_refuse(r, key,
                        "and the other end leave none of %" PRIu64 " layers in fewer bits; use precision bf16-mixed",
                        r->transformer->layers - r->transformer->ahead_layers);
}

/* Transformer Engine attends in 8 bits by other recipes as well, whose kernels are others. */
static void check_narrow(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    const bool other = p->precision.compute != DTP_FP8 || p->precision.fp8_recipe != DTP_FP8_MXFP8;
    if (p->megatron.fp8_attention && other)
        dtp_plan_refuse(r, "fp8_attention", "is modelled with precision mxfp8 alone; leave it out");
    if (p->megatron.fp8_head && other)
        dtp_plan_refuse(r, "fp8_head", "is modelled with precision mxfp8 alone; leave it out");
    if (p->megatron.fp8_attention && p->attention != DTP_ATTENTION_FLASH)
        dtp_plan_refuse(r, "fp8_attention", "takes a fused kernel; use attention flash");
    if (p->megatron.fp8_attention && p->cp > 1)
        dtp_plan_refuse(r, "fp8_attention", "is not modelled with cp; leave it out");
    if (p->megatron.fp8_head && r->transformer->tied_head)
        dtp_plan_refuse(r, "fp8_head", "is not with a head tied to the embedding in Megatron-Core; leave it out");
}

/* Collectives beside matmuls are those of Transformer Engine's user buffers. */
static void check_tp_overlap(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    const enum dtp_fp8_recipe recipe = p->precision.fp8_recipe;
    if (p->tp > 1 && p->tp_overlap && p->precision.compute == DTP_FP8 && !dtp_fp8_has_user_buffers(recipe))
        dtp_plan_refuse(r, "tp_overlap", "is not with %s in Transformer Engine; leave it out, or use %s",
                        dtp_fp8_recipe_row(recipe)->precision,
                        dtp_fp8_recipe_row(recipe)->parts == DTP_FP8_ON_BLACKWELL ? "mxfp8" : "fp8-current");
}

/* Parameters that are casts: arguments.py ("only supported with distributed optimizer"). In 4 bits they have a flag of
 * their own (fp4_param_gather). */
static void check_param_gather(struct dtp_resolver *r)
{
    static const char key[] = "fp8_param_gather";
    const struct dtp_plan *p = r->plan;
    const bool mx = p->precision.fp8_recipe == DTP_FP8_MXFP8;
    if (!p->megatron.fp8_param_gather)
        return;
    if (p->precision.compute != DTP_FP8 || p->precision.fp8_recipe == DTP_FP8_NVFP4)
        dtp_plan_refuse(r, key, "is of recipes of 8 bits; use one as precision, mxfp8 say, or leave it out");
    if (p->strategy != DTP_ZERO1)
        dtp_plan_refuse(r, key, "is of the distributed optimizer; use zero1 or leave it out");
    if (dtp_plan_adapts(p))
        dtp_plan_refuse(r, key, "with lora is not modelled; leave one of them out");
    if (p->megatron.bf16_first || p->megatron.bf16_last)
        dtp_plan_refuse(r, key, "with layers that stay in bf16 is not modelled; leave out %s",
                        p->megatron.bf16_first ? "bf16_first_layers" : "bf16_last_layers");
    if (r->transformer->expert_bias && !mx)
        dtp_plan_refuse(r, key, "with biases of experts is modelled with mxfp8 alone; leave it out");
}

/* distributed optimizer alone (arguments.py, validate_args), Transformer Engine's Adam alone. */
static void check_precision_aware(struct dtp_resolver *r)
{
    static const char key[] = "precision_aware_optimizer";
    const struct dtp_plan *p = r->plan;
    if (!p->megatron.precision_aware)
        return;
    if (p->strategy != DTP_ZERO1)
        dtp_plan_refuse(r, key, "is of the distributed optimizer; use zero1 or leave it out");
    if (p->optimizer != DTP_ADAMW_FUSED)
        dtp_plan_refuse(r, key, "is Adam's; use optimizer adamw or leave it out");
    if (p->precision.params == DTP_FP32)
        dtp_plan_refuse(r, key, "is of weights in 16 bits; leave it out");
    if (dtp_plan_adapts(p))
        dtp_plan_refuse(r, key, "with lora is not modelled; leave one of them out");
}

/* Megatron-Bridge's LoRA (peft/lora.py): its adapters are linears of Megatron-Core in the model's dtype. */
static void check_adapters(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    const struct dtp_adapter_choice *a = &p->adapters;
    if (!dtp_plan_adapts(p))
        return;
    if (a->base != DTP_BASE_NONE)
        dtp_plan_refuse(r, "base", "%s is not what Megatron-Core's linears have; use none, or runtime peft",
                        dtp_base_text(a->base));
    if (dtp_dtype_bytes(a->dtype) > dtp_plan_compute_bytes(p))
        dtp_plan_refuse(r, "lora_dtype",
                        "fp32 is not what runtime megatron has, whose adapters are in the model's dtype; leave it out");
    if (a->train_ends)
        dtp_plan_refuse(r, "train_ends", "is not modelled under runtime megatron; leave it out");
    if (r->transformer->experts)
        dtp_plan_refuse(r, "lora", "with experts is not modelled under runtime megatron yet; use a model without");
    if (p->tp > 1 && a->rank % p->tp)
        dtp_plan_refuse(r, "lora", "is rank %" PRIu32 ", which tp %" PRIu32 " does not divide, as Megatron-Core asks",
                        a->rank, p->tp);
    if (p->strategy == DTP_ZERO2)
        dtp_plan_refuse(r, "strategy", "zero2 with adapters (lora) is not modelled under runtime megatron; use zero1");
    if (p->megatron.recompute)
        dtp_plan_refuse(r, "recompute_modules", "with adapters (lora) is not modelled; use checkpointing full or none");
    if (p->pp > 1 && (dtp_plan_splits_backward(p) || p->schedule == DTP_SCHEDULE_DUALPIPE))
        dtp_plan_refuse(r, "schedule",
                        "%s puts gradients of weights off, of which frozen ones have none; use 1f1b or interleaved",
                        dtp_schedule_row(p->schedule)->word);
}

static void check(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    if (p->strategy != DTP_DDP && p->strategy != DTP_ZERO1 && p->strategy != DTP_ZERO2)
        dtp_plan_refuse(r, "strategy",
                        "%s is not modelled under runtime megatron; use ddp, or zero1 for its distributed optimizer",
                        dtp_strategy_text(p->strategy));
    if (p->strategy == DTP_ZERO2 && p->pp > 1 && r->transformer->tied_head)
        dtp_plan_refuse(r, "strategy",
                        "zero2 is not modelled under runtime megatron where two stages hold the embedding; "
                        "use zero1");
    if (p->strategy == DTP_ZERO2 && p->pp > 1 && p->schedule == DTP_SCHEDULE_DUALPIPE)
        dtp_plan_refuse(r, "strategy",
                        "zero2 is not modelled with schedule dualpipe, which adds up two copies; use zero1");
    if (p->avoid_record_streams && p->pp > 1 && !dtp_schedule_row(p->schedule)->blocking && !dtp_plan_interleaves(p))
        dtp_plan_refuse(r, "avoid_record_streams",
                        "schedule %s runs with sends that nobody waits for, and when its code awaits them is not "
                        "modelled; leave it out, or use 1f1b or interleaved",
                        dtp_schedule_row(p->schedule)->word);
    if (p->post_validation && r->transformer->tied_head)
        dtp_plan_refuse(r, "post_validation",
                        "is not with a head tied to the embedding, whose gradients the first and the last stage add up "
                        "before either steps; untie it (tied_head=false) or leave it out");
    if (p->post_validation && p->strategy != DTP_DDP && overlaps(p))
        dtp_plan_refuse(r, "post_validation",
                        "is not with a distributed optimizer that overlaps its gather with the next forward, which "
                        "sail-sg's program refuses; leave out %s",
                        p->megatron.overlap ? "megatron_overlap" : "zero2 for zero1");
    if (p->tp > 1 && r->transformer->parallel_block)
        dtp_plan_refuse(r, "parallel_block", "%s is not modelled with tp, which sums its two branches at once",
                        dtp_parallel_block_text(r->transformer->parallel_block));
    if (p->fused_qkv_rope && (r->transformer->position != DTP_POSITION_ROPE || r->transformer->qk_norm))
        dtp_plan_refuse(r, "fused_qkv_rope",
                        "is for models with RoPE whose queries and keys are not normed before it; leave it out");
    if (p->megatron.unfused_rope && r->transformer->position != DTP_POSITION_ROPE)
        dtp_plan_refuse(r, "unfused_rope", "is for models with RoPE; leave it out");
    else if (p->megatron.unfused_rope && p->fused_qkv_rope)
        dtp_plan_refuse(r, "unfused_rope", "and fused_qkv_rope exclude each other; leave one of them out");
    if (p->checkpointing == DTP_CHECKPOINT_EVERY_N || p->checkpointing == DTP_CHECKPOINT_SELECTIVE_MATMUL)
        dtp_plan_refuse(r, "checkpointing", "runtime megatron recomputes none, full or selective-attention only");
    if (p->megatron.recompute && p->checkpointing != DTP_CHECKPOINT_NONE)
        dtp_plan_refuse(r, "recompute_modules", "says itself what runs again; leave out checkpointing");
    if (dtp_plan_recomputes(p, DTP_RECOMPUTE_MLA_UP_PROJ) && !r->transformer->kv_latent)
        dtp_plan_refuse(r, "recompute_modules", "mla_up_proj is latent attention's, which this model has not");
    if (p->megatron.recompute && p->pp > 1 && dtp_plan_splits_backward(p))
        dtp_plan_refuse(r, "recompute_modules", "is not modelled where gradients of weights are passes of their own");
    if (p->loss == DTP_LOSS_CHUNKED)
        dtp_plan_refuse(r, "loss", "chunked is not modelled under runtime megatron; use eager, native or fused");
    if (p->optimizer != DTP_ADAMW_FUSED && p->optimizer != DTP_ADAMW_FOREACH && p->optimizer != DTP_SGD)
        dtp_plan_refuse(r, "optimizer", "%s is not modelled under runtime megatron; use adamw",
                        dtp_optimizer_text(p->optimizer));
    if (dtp_plan_replays_all(p) && p->megatron.graphs != 1u << DTP_GRAPH_FULL_ITERATION)
        dtp_plan_refuse(r, "cuda_graph_modules", "full_iteration has all modules in it; name it alone");
    check_graphs(r);
    check_wide_layers(r);
    check_narrow(r);
    check_tp_overlap(r);
    check_param_gather(r);
    check_precision_aware(r);
    check_experts(r);
    check_adapters(r);
}

static bool check_offload(struct dtp_resolver *r)
{
    dtp_plan_refuse(r, "offload", "is not modelled under runtime megatron; use none");
    return true;
}

/* ---- what it is -------------------------------------------------------------------------------------------------- */

/* linear_qkv and linear_fc1 are one matmul each in Megatron-Core. */
static void derive(struct dtp_plan *p)
{
    p->accumulate_sync = false;
    p->fused_qkv = p->fused_gate_up = true;
}

static const struct dtp_lower_hooks *lower(const struct dtp_plan *plan)
{
    if (plan->strategy == DTP_ZERO2)
        return &dtp_lower_megatron_sharded;
    bool copies = plan->pp > 1 && plan->schedule == DTP_SCHEDULE_DUALPIPE; /* added up before they are reduced */
    return overlaps(plan) && !copies ? &dtp_lower_megatron_overlapped : &dtp_lower_megatron;
}

const struct dtp_runtime dtp_runtime_megatron = {
    .name = "megatron",
    .framework = "Megatron-LM",
    .strategies = 1u << DTP_DDP | 1u << DTP_ZERO1 | 1u << DTP_ZERO2,
    .shards_all = DTP_FULL_SHARD,
    .issuer = DTP_ISSUER_MEGATRON,
    .stores_compute_dtype = true,
    .owns_master = true,
    .reduces_fp32 = true,
    .keeps_fp8 = true,
    .gradients_in_matmul = true,
    .adds_before_shards = true,
    .vocab_multiple = DTP_MEGATRON_VOCAB_MULTIPLE,
    .overlap_grad_reduce = true,
    .group_of_one = true,
    .splits = DTP_AXES(TP) | DTP_AXES(PP) | DTP_AXES(CP),
    .cp_comms = 1u << DTP_CP_P2P | 1u << DTP_CP_ALL_GATHER | 1u << DTP_CP_A2A | 1u << DTP_CP_A2A_P2P,
    .gathers_again = true,
    .sums_beside = true,
    .clips = true,
    .validates = true,
    .schedules = ((1u << DTP_SCHEDULE_COUNT) - 1) & ~(1u << DTP_SCHEDULE_LOOPED_BFS),
    .fused_kernels = true,
    .engine_experts = true,
    .experts = true,
    .expert_parallel = true,
    .adapters = true,
    .adapters_under = {.tp = true, .pp = true, .cp = true},
    .adapters_as_weights = true,
    .weighs_rows = true,
    .loops_experts = true,
    .attention_sinks = true,
    .sinks_in_kernel = true,
    .clamped_swiglu = true,
    .latent_attention = true,
    .predicts_ahead = true,
    .copies_values = true,
    .copies_views = true,
    .unscaled_rope = true,
    .scales_logits_gradient = true,
    .native_loss = true,
    .softmax_in_place = true, /* tensor_parallel/cross_entropy.py, unless cross_entropy_loss_fusion */
    .subtracts_in_place = true,
    .derive = derive,
    .check = check,
    .check_offload = check_offload,
    .overlaps_reductions = overlaps,
    .overlaps_gather = overlaps,
    .closed = &dtp_megatron_closed_form,
    .lower = lower,
};
