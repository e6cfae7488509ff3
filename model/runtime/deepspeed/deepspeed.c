/* DeepSpeed: ZeRO stages 1 to 3, ZeRO-Offload, ZeRO-Infinity and ZeRO++; its pipeline engine, tensor parallel layers
 * and Ulysses. */
#include "runtime/deepspeed/deepspeed.h"

#include "cost/calibration.h"
#include "lower/lower_hooks.h"
#include "net/models.h"
#include "plan/runtime_sizes.h"
#include "plan/rules.h"
#include "plan/runtime.h"
#include "runtime/deepspeed/zero3_fetch.h"

#include <inttypes.h>

#define MAX_GROUP 1000000u
#define MAX_ELEMENTS UINT64_C(1000000000000000)

/* ---- what it refuses --------------------------------------------------------------------------------------------- */

/* A second copy lies within a node (groups._create_zero_param_parallel_group); quantised kernels take 16-bit weights.
 */
static void check_zeropp(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    uint32_t group = p->deepspeed.zero_hpz_partition_size;
    bool quantized = p->deepspeed.zero_quantized_weights || p->deepspeed.zero_quantized_gradients;
    const char *key = group > 1                             ? "zero_hpz_partition_size"
                      : p->deepspeed.zero_quantized_weights ? "zero_quantized_weights"
                                                            : "zero_quantized_gradients";
    if (group < 2 && !quantized)
        return;
    if (group > 1 && r->cluster->gpus_per_node % group)
        dtp_plan_refuse(r, "zero_hpz_partition_size", "of %" PRIu32 " does not divide a node of %" PRIu32 " GPUs",
                        group, r->cluster->gpus_per_node);
    if (p->offload == DTP_OFFLOAD_PARAMS || p->offload == DTP_OFFLOAD_NVME)
        dtp_plan_refuse(r, key, "is not modelled with offloaded parameters; use offload none or optimizer");
    if (p->deepspeed.zero_quantized_gradients && p->cp > 1)
        dtp_plan_refuse(r, "zero_quantized_gradients", "is not modelled with cp above 1; leave it out");
    if (quantized && p->precision.params == DTP_FP32 && p->precision.compute == DTP_FP32)
        dtp_plan_refuse(r, key, "quantises 16-bit weights and gradients; use precision bf16-mixed or fp16-mixed");
}

static void check_keys(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    const struct {
        const char *key;
        uint64_t value, least;
    } keys[] = {{"reduce_bucket_size", p->deepspeed.reduce_bucket_size, 1},
                {"stage3_max_live_parameters", p->deepspeed.stage3_max_live_parameters, 0},
                {"stage3_max_reuse_distance", p->deepspeed.stage3_max_reuse_distance, 0},
                {"stage3_prefetch_bucket_size", p->deepspeed.stage3_prefetch_bucket_size, 0},
                {"stage3_param_persistence_threshold", p->deepspeed.stage3_param_persistence_threshold, 0}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (keys[i].value < keys[i].least || keys[i].value > MAX_ELEMENTS)
            dtp_plan_refuse(r, keys[i].key, "is %" PRIu64 " elements; use %" PRIu64 " to %" PRIu64, keys[i].value,
                            keys[i].least, MAX_ELEMENTS);
}

/* seq_parallel_communication_data_type. */
static void check_context_parallel(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    enum dtp_dtype wire = p->deepspeed.sequence_dtype;
    if (p->cp > 1 && p->checkpointing == DTP_CHECKPOINT_SELECTIVE_MATMUL)
        dtp_plan_refuse(r, "checkpointing",
                        "selective with cp above 1: which exchanges a replay makes again is not modelled; use full, "
                        "selective-attention or none");
    if (p->cp > 1 && wire != DTP_FP32 && wire != p->precision.params)
        dtp_plan_refuse(r, "seq_parallel_communication_data_type", "is fp32 or what gradients are made in, %s, not %s",
                        dtp_dtype_text(p->precision.params), dtp_dtype_text(wire));
}

/* AutoTP (module_inject/layers.py) or Megatron-DeepSpeed: whole sums around matmuls, forward and backward. */
static void check_tensor_parallel(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    const struct dtp_transformer *t = r->transformer;
    if (p->tp <= 1)
        return;
    if (p->sequence_parallel)
        dtp_plan_refuse(r, "sequence_parallel", "true is not modelled under runtime deepspeed; leave it out");
    if (p->tp_overlap)
        dtp_plan_refuse(r, "tp_overlap", "does not exist in DeepSpeed; leave it out");
    if (p->strategy == DTP_ZERO3)
        dtp_plan_refuse(r, "tp", "above 1 is not modelled with zero3 under runtime deepspeed; use zero1 or zero2");
    if (p->pp > 1 && !p->deepspeed.megatron_layers)
        dtp_plan_refuse(r, "tp",
                        "above 1 in a pipeline takes layers that divide themselves, AutoTP leaves those alone; set "
                        "megatron_layers");
    if (t->parallel_block)
        dtp_plan_refuse(r, "parallel_block", "%s is not modelled with tp, which sums its two branches at once",
                        dtp_parallel_block_text(t->parallel_block));
    if (t->qk_norm)
        dtp_plan_refuse(r, "qk_norm", "is not modelled with tp under runtime deepspeed; use runtime torch or megatron");
}

/* runtime/pipe/engine.py. */
static void check_pipeline(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    if (p->pp <= 1)
        return;
    if (p->strategy != DTP_ZERO1)
        dtp_plan_refuse(r, "strategy",
                        "%s does not go with pp: ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism "
                        "(PipelineEngine); use zero1",
                        dtp_strategy_text(p->strategy));
    if (p->checkpointing == DTP_CHECKPOINT_EVERY_N && p->checkpoint_every > 1)
        dtp_plan_refuse(r, "checkpointing",
                        "every-%" PRIu32 " does not exist in PipelineModule, whose activation_checkpoint_interval "
                        "recomputes so many layers at once; use full, its interval 1, or none",
                        p->checkpoint_every);
    if (p->deepspeed.overlap_comm)
        dtp_plan_refuse(r, "deepspeed_overlap",
                        "does not go with pp, whose engine reduces behind the last micro-batch; leave it out");
}

/* engine.py, _do_optimizer_sanity_check. */
static void check_bf16_optimizer(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    if (!p->deepspeed.bf16_optimizer)
        return;
    if (p->precision.params != DTP_BF16)
        dtp_plan_refuse(r, "bf16_optimizer", "sums gradients of bf16 parameters; use precision bf16-mixed");
    if (p->offload != DTP_OFFLOAD_NONE)
        dtp_plan_refuse(r, "bf16_optimizer", "keeps its state on the GPU; use offload none");
    if (p->deepspeed.overlap_comm)
        dtp_plan_refuse(r, "bf16_optimizer", "reduces behind the last backward, not beside it; leave out overlap");
}

/* What is said of both. */
static void check_model_parallel(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    if (!dtp_plan_model_parallel(p))
        return;
    if (p->cp > 1)
        dtp_plan_refuse(r, "cp", "above 1 is not modelled together with tp or pp under runtime deepspeed; use 1");
    if (p->loss == DTP_LOSS_CHUNKED)
        dtp_plan_refuse(r, "loss",
                        "chunked is not modelled together with tp or pp under runtime deepspeed; use eager or fused");
}

/* Shards are of elements (partition_parameters.py), which have no rows with scales of their own; what ZeRO++ makes of
 * adapters is not modelled. */
static void check_adapters_in_shards(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    bool hpz = p->deepspeed.zero_hpz_partition_size > 1;
    if (p->strategy != DTP_ZERO3)
        return;
    if (p->adapters.base != DTP_BASE_NONE)
        dtp_plan_refuse(
            r, "base",
            "%s in shards of zero3 is not modelled under runtime deepspeed: it cuts parameters by elements, "
            "and packed weights come with scales; use none, or zero2",
            dtp_base_text(p->adapters.base));
    if (hpz || p->deepspeed.zero_quantized_weights || p->deepspeed.zero_quantized_gradients)
        dtp_plan_refuse(r,
                        hpz                                   ? "zero_hpz_partition_size"
                        : p->deepspeed.zero_quantized_weights ? "zero_quantized_weights"
                                                              : "zero_quantized_gradients",
                        "with adapters (lora) is not modelled; leave it out");
}

/* Trainer with --deepspeed (transformers/integrations/deepspeed.py). module.half() or .bfloat16() takes adapters, too
 * (engine.py, _configure_distributed_model). */
static void check_transformers(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    if (p->deepspeed.transformers_layers) {
        dtp_plan_check_transformers(r);
        if (p->tp > 1 || p->cp > 1)
            dtp_plan_refuse(r, "transformers_layers", "with tp or cp above 1 is not modelled; use 1");
        if (p->deepspeed.megatron_layers)
            dtp_plan_refuse(r, "transformers_layers", "and megatron_layers exclude each other; leave one out");
    }
    if (!dtp_plan_adapts(p))
        return;
    check_adapters_in_shards(r);
    if (p->deepspeed.bf16_optimizer)
        dtp_plan_refuse(r, "bf16_optimizer", "with adapters (lora) is not modelled; leave it out");
    if (p->adapters.dtype != p->precision.params)
        dtp_plan_refuse(r, "lora_dtype",
                        "is that of the model under runtime deepspeed, which casts it whole; leave it out");
    if (p->adapters.train_ends)
        dtp_plan_refuse(r, "train_ends", "is not modelled under runtime deepspeed; leave it out, or use runtime peft");
}

/* What AutoEP has of models: of its presets mixtral, qwen3_moe, deepseek_v2 and deepseek_v3, and of experts SwiGLU. */
static void check_autoep(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    const struct dtp_transformer *t = r->transformer;
    if (p->ep < 2)
        dtp_plan_refuse(r, "ep", "1 with autoep has every expert on every GPU, for tests alone; use more");
    if (t->activation != DTP_SWIGLU)
        dtp_plan_refuse(r, "activation", "%s is not what AutoEP's grouped experts compute, SwiGLU",
                        dtp_activation_text(t->activation));
    if (t->expert_bias || t->chunked_attention)
        dtp_plan_refuse(r, t->expert_bias ? "expert_bias" : "chunked_attention",
                        "is in no model that AutoEP has a preset of (mixtral, qwen3_moe, deepseek_v2, deepseek_v3)");
}

/* moe/layer.py and sharded_moe.py: a softmax whose k largest are not renormalised but by themselves, and no more. */
static void check_slots(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    const struct dtp_transformer *t = r->transformer;
    const char *key = t->shared_expert_ffn              ? "shared_expert_ffn"
                      : t->expert_bias                  ? "expert_bias"
                      : t->expert_groups > 1            ? "expert_groups"
                      : t->router_bias                  ? "router_bias"
                      : t->chunked_attention            ? "chunked_attention"
                      : t->router_on_input              ? "router_on_input"
                      : t->router != DTP_ROUTER_SOFTMAX ? "router"
                                                        : NULL;
    if (key)
        dtp_plan_refuse(r, key, "is not in DeepSpeed's own MoE layer of experts; set autoep, or use runtime torch");
    if (p->deepspeed.transformers_layers)
        dtp_plan_refuse(r, "transformers_layers",
                        "with experts has those of Transformers one by one, which is not modelled under runtime "
                        "deepspeed; set autoep, or leave it out for DeepSpeed's own MoE layer");
}

/* Experts under stages 1 and 2: parameters of their own ranks beside the others (stage_1_and_2.py; engine.py,
 * _validate_zero3_moe_compatibility). */
static void check_experts(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    const char *no = p->deepspeed.bf16_optimizer    ? "bf16_optimizer"
                     : p->deepspeed.megatron_layers ? "megatron_layers"
                     : dtp_plan_adapts(p)           ? "lora"
                                                    : NULL;
    if (!r->transformer->experts) {
        if (p->deepspeed.autoep || !p->deepspeed.drop_tokens || p->megatron.capacity_factor > 0)
            dtp_plan_refuse(r,
                            p->deepspeed.autoep         ? "autoep"
                            : !p->deepspeed.drop_tokens ? "drop_tokens"
                                                        : "capacity_factor",
                            "is of experts, of which this model has none; leave it out");
        return;
    }
    if (p->strategy == DTP_ZERO3)
        dtp_plan_refuse(r, "strategy",
                        p->deepspeed.autoep ? "zero3 with experts is not modelled under runtime deepspeed; use zero1 "
                                              "or zero2"
                                            : "zero3 with experts of DeepSpeed's own MoE layer is not supported by "
                                              "DeepSpeed (engine.py); use zero1 or zero2");
    if (no)
        dtp_plan_refuse(r, no, "with experts is not modelled under runtime deepspeed; leave it out");
    if (p->deepspeed.autoep)
        check_autoep(r);
    else
        check_slots(r);
}

static void check(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    static const char *const instead[DTP_STRATEGY_COUNT] = {
        [DTP_DDP] = "zero1", [DTP_FULL_SHARD] = "zero3", [DTP_SHARD_GRAD_OP] = "zero2", [DTP_HYBRID_SHARD] = "zero3"};
    if (!(p->runtime->strategies & 1u << p->strategy))
        dtp_plan_refuse(r, "strategy", "%s is PyTorch's; under runtime deepspeed use %s",
                        dtp_strategy_text(p->strategy), instead[p->strategy]);
    if (p->strategy == DTP_ZERO3 && r->transformer->layers > DTP_ZERO3_MAX_LAYERS)
        dtp_plan_refuse(r, "layers", "is %" PRIu64 "; DeepSpeed's zero3 is modelled up to %u", r->transformer->layers,
                        DTP_ZERO3_MAX_LAYERS);
    dtp_plan_check_range(r, "zero_hpz_partition_size", p->deepspeed.zero_hpz_partition_size, MAX_GROUP);
    check_zeropp(r);
    if (p->precision.compute == DTP_FP8)
        dtp_plan_refuse(r, "precision", "fp8 is not modelled under runtime deepspeed; use torch, megatron or dtplan");
    if (dtp_optimizer_row(p->optimizer)->library == DTP_OF_TORCHAO)
        dtp_plan_refuse(r, "optimizer",
                        "%s keeps its state in tensors of torchao's, which DeepSpeed does not flatten; use "
                        "adam8bit",
                        dtp_optimizer_text(p->optimizer));
    if (p->optimizer == DTP_SGD && p->offload != DTP_OFFLOAD_NONE)
        dtp_plan_refuse(r, "optimizer", "DeepSpeed offloads to its CPU Adam only; use adamw");
    check_transformers(r);
    check_tensor_parallel(r);
    check_pipeline(r);
    check_model_parallel(r);
    check_context_parallel(r);
    check_bf16_optimizer(r);
    check_experts(r);
    check_keys(r);
}

static bool check_offload(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    if (p->offload == DTP_OFFLOAD_OPTIMIZER || p->strategy == DTP_ZERO3)
        return false;
    dtp_plan_refuse(r, "offload", "%s needs zero3 under runtime deepspeed; use zero3, or offload optimizer with %s",
                    dtp_offload_text(p->offload), dtp_strategy_text(p->strategy));
    return true;
}

/* ---- what follows ------------------------------------------------------------------------------------------------ */

static void derive(struct dtp_plan *p)
{
    p->accumulate_sync = p->strategy == DTP_ZERO2 || p->strategy == DTP_ZERO3; /* engine.py allreduce_gradients */
    p->deepspeed.overlap_comm = p->deepspeed.overlap_comm || p->strategy == DTP_ZERO3;
    p->deepspeed.pipeline = p->pp > 1;
    if (dtp_plan_adapts(p) || p->deepspeed.autoep)
        p->deepspeed.transformers_layers = true;
    if (p->deepspeed.megatron_layers) /* query_key_value and dense_h_to_4h are one matmul each */
        p->fused_qkv = p->fused_gate_up = true;
}

/* ---- what it is -------------------------------------------------------------------------------------------------- */

static bool overlaps_reductions(const struct dtp_plan *plan)
{
    return plan->deepspeed.overlap_comm;
}

static const struct dtp_lower_hooks *lower(const struct dtp_plan *plan)
{
    if (plan->deepspeed.bf16_optimizer)
        return &dtp_lower_bf16_optimizer;
    if (plan->deepspeed.pipeline)
        return &dtp_lower_zero1_behind;
    return plan->strategy == DTP_ZERO3 ? &dtp_lower_zero3 : &dtp_lower_zero12;
}

const struct dtp_runtime dtp_runtime_deepspeed = {
    .name = "deepspeed",
    .framework = "DeepSpeed",
    .strategies = 1u << DTP_ZERO1 | 1u << DTP_ZERO2 | 1u << DTP_ZERO3,
    .shards_all = DTP_ZERO3,
    .issuer = DTP_ISSUER_PYTORCH,
    .stores_compute_dtype = true,
    .owns_master = true,
    .reduces_own_dtype = true,
    .wide_scores = true,
    .vocab_multiple = 1,
    .adapters = true,
    .experts = true,
    .expert_parallel = true,
    .calls_experts = true,
    .slots_rows = true,
    .copies_heads = true,
    .fetches_modules = true,
    .counts_elements = true,
    .reduces_shards_always = true,
    .overlap_comm = true,
    .group_of_one = true,
    .splits = DTP_AXES(TP) | DTP_AXES(PP) | DTP_AXES(CP),
    .schedules = 1u << DTP_SCHEDULE_1F1B,
    .clips = true,
    .copies_passes = true,
    .scatters_sends = true,
    .whole_stream = true,
    .whole_vocab = true,
    .cp_comms = 1u << DTP_CP_A2A,
    .derive = derive,
    .check = check,
    .check_offload = check_offload,
    .overlaps_reductions = overlaps_reductions,
    .closed = &dtp_deepspeed_closed_form,
    .lower = lower,
};
