#include "runs/run_framework.h"

#include <string.h>

/* Megatron's, NeMo's and InternEvo's layers are fused kernels over a flat gradient buffer with a distributed optimizer:
 * the megatron rules. Those of 2021-23 (Megatron-DeepSpeed, NeMo-Megatron, PTD-P) ran unfused attention unless flash
 * was asked for. Sequence parallelism came with Megatron-Core; what came before, and the DeepSpeed fork, has none, and
 * scatters what stages send over tensor parallel ranks. */
#define MEGATRON_RULES                                                                                                 \
    .runtime = "megatron", .optimizer = "adamw-fused", .selective = DTP_SELECTIVE_ATTENTION, .fused_matmuls = true
/* What pretrain_gpt.py of Megatron-LM and its forks does where no argument says otherwise: attention_dropout and
 * hidden_dropout are 0.1 (arguments.py, _add_regularization_args), and neither BLOOM's slurm files nor the examples of
 * the forks change that; NeMo-Megatron's megatron_gpt_config.yaml has the same. Today's recipes of LLaMA set 0. */
#define GPT_DROPOUT .dropout = 0.1
/* And their loss is vocab_parallel_cross_entropy of logits in fp32, operator by operator: gpt_model.py,
 * post_language_model_processing, unless fp16_lm_cross_entropy, which none of these scripts sets. Fused kernels came
 * with Megatron-Core 0.5 (cross_entropy_loss_fusion, off by default; recipes whose speed is published turn it on). */
#define EAGER_LOSS .loss = "eager"
/* Where Megatron-Core fuses it, its own kernel is the default (cross_entropy_fusion_impl native,
 * model_parallel_config.py). Recipes whose speed is published set Transformer Engine's, te: NeMo 2's
 * (scripts/performance/helpers.py, set_perf_optimization_configs), Megatron-Bridge's (scripts/performance/utils/
 * overrides.py; perf_recipes/_common.py, _benchmark_common), Megatron-LM's examples/moe_recipes. Rows that say
 * otherwise have it in their notes; of other rows, which do not say, the same is assumed. NeMo 24.07 is NeMo 1, whose
 * configurations fuse it (cross_entropy_loss_fusion true, tests/data/configs/nemo) and have no other kernel. */
#define RECIPES_LOSS .loss = "fused"
#define NEMO_OF_2024 "NeMo docs/source/performance/performance_summary.md" /* rows of it are of 24.07 */
/* NeMo 2 and Megatron-Bridge turn on all overlaps where there is something to overlap (MegatronCommOverlapCallback and
 * CommOverlapConfig: overlap_grad_reduce and overlap_param_gather with more than one data parallel rank), and in the
 * recipes whose speed they publish (pretrain_performance_optimizations) tp_comm_overlap, and sums of gradients in bf16
 * (grad_reduce_in_fp32). Their fp8 was scaled by earlier steps (bf16_with_fp8_mixed) until Megatron-Bridge, whose
 * summaries of 2025 on say FP8-CS where they say any. */
#define NEMO_RULES MEGATRON_RULES, .attention = "flash", .reduce = "bf16", .sequence_parallel = true, .overlaps = true
/* What Megatron-Bridge's recipes say of weights and optimizer, v0.1.0rc4 to v0.6.0: fp8_param_gather of scales of a
 * tensor and of mxfp8, not of blockwise and nvfp4 (src/megatron/bridge/training/mixed_precision.py); a precision-aware
 * optimizer in bf16 (scripts/performance, compute_dtype == "bf16"), with moments in fp32. Recipes of some models go
 * further (run_parts.c). */
#define BRIDGE_FORMATS .fp8_weights = "fp8-current fp8-delayed mxfp8", .aware_precisions = "bf16-mixed"
/* NeMo 2's: fp8_params, later fp8_param_gather (nemo/collections/llm/recipes/precision/mixed_precision.py). */
#define NEMO_WEIGHTS .fp8_weights = "fp8-current fp8-delayed mxfp8"
/* Megatron-MoE-ModelZoo's script, of which arXiv:2603.07685 is the report: --fp8-param-gather and a precision-aware
 * optimizer with moments in bf16 where it trains in 8 bits (sbatch_benchmarking.sh). */
#define ZOO_RULES                                                                                                      \
    MEGATRON_RULES, RECIPES_LOSS, .attention = "flash", .sequence_parallel = true,                                     \
                                  .fp8_weights = "fp8-blockwise mxfp8", .aware_precisions = "fp8-blockwise mxfp8",     \
                                  .bf16_moments = true
/* llmq is a C++/CUDA program of fused kernels without an autograd graph, as our executor is. */
#define EXECUTOR_RULES                                                                                                 \
    .runtime = "dtplan", .optimizer = "adamw-fused", .loss = "fused", .selective = DTP_SELECTIVE_POINTWISE,            \
    .fused_matmuls = true, .attention = "flash"
/* llm-foundry on Composer: both FSDP modes, DEFAULT and PURE, reduce in bf16 (get_mixed_precision leaves reduce_dtype
 * unset or sets it to bf16). Its no_sync is for DDP models only, so FSDP reduces in every micro-step. MPT has one Wqkv,
 * a FlashAttention-1 kernel (attn_impl triton, submit_benchmarks.py) and flash-attn's fused cross entropy.
 * DecoupledAdamW runs one operation after the other, nearest to foreach. Its amp_fp8 is Transformer Engine's
 * DelayedScaling. MPT's yamls, which the script reads, clip gradients (algorithms.gradient_clipping, threshold 1.0). */
#define COMPOSER_RULES                                                                                                 \
    .fp8 = "fp8-delayed", .runtime = "torch", .optimizer = "adamw-foreach", .loss = "fused", .attention = "flash1",    \
    .reduce = "bf16", .selective = DTP_SELECTIVE_MATMUL, .fsdp1 = true, .fsdp_syncs_always = true,                     \
    .fused_matmuls = true, .clips = true
/* torchtitan reduces in fp32 and in every micro-step; "selective" is op-SAC unless the notes say (layer). Stages are
 * those of generate_llm_fqn_per_model_part, two a rank where the schedule has several and the row does not say how many
 * (pipeline_llm). Its own RMSNorm, and torch's that followed in March 2025, is a chain of operators unless compiled.
 * It clips gradients in every step (train.py; --training.max_norm 1.0). What it prints of memory is reserved
 * (components/metrics.py, max_reserved_gib). */
#define TORCHTITAN                                                                                                     \
    .runtime = "torch", .optimizer = "adamw-fused", .loss = "eager", .attention = "flash2",                            \
    .selective = DTP_SELECTIVE_MATMUL, .fsdp_syncs_always = true, .counts_ends = true, .sequence_parallel = true,      \
    .logs_reserved = true, .clips = true
#define CHAINED_NORMS .norm_chain = true
/* Its loss is compiled with the model since pull request 1033 of April 2025 (components/loss.py), the ends of the model
 * are units since 1094 of July; PyTorch kept the root unit before. The page of async TP names a commit of June 2025
 * (820504e); torchao's ran 0.0.2 of March on H100, known by the pull request that the notes of these rows name, and
 * commits of August and later on other GPUs. */
#define TORCHTITAN_RULES TORCHTITAN, .keeps_root = true, .eager_loss = true
#define TORCHTITAN_JUNE TORCHTITAN, .keeps_root = true
#define TORCHTITAN_LATER TORCHTITAN, .wraps_ends = true
/* docs/performance.md was measured in April 2024, when its train_configs of 8B and 13B had a Triton kernel (norm_type
 * fused_rmsnorm, #181: "+15% eager"), those of 70B its own module. */
#define TORCHTITAN_FUSED "docs/performance.md"
/* Until its pull request 391 of June 2024 ("del logits ... to save 3.9G memory") train.py held `pred`; so did that of
 * pull request 165, of March. */
#define HELD_LOGITS .hold_logits = true
/* fms-fsdp's policy bfSixteen reduces in bf16; "selective" is every k-th block (configurations.md), k not stated: 2, or
 * 1 where the job would not fit otherwise. Norms are ibm-fms' LayerNormParameterized with
 * use_high_precision_pow (fms/models/llama.py). It clips gradients (train_utils.py; grad_clip_thresh 1). */
#define FMS_RULES                                                                                                      \
    .runtime = "torch", .optimizer = "adamw-foreach", .loss = "eager", .attention = "flash2", .reduce = "bf16",        \
    .selective = DTP_SELECTIVE_EVERY_SECOND_BLOCK, .fsdp1 = true, .clips = true, CHAINED_NORMS
/* The script of h200_torch_runs.csv, and that of h200_more_runs.csv with the same dense models, known by their notes:
 * fused QKV and gate+up, RoPE in fp32, no_sync. It builds the model on the meta device, and to_empty() then gives a
 * tied head storage of its own, except where fully_shard came before. */
#define SCRIPT_RULES                                                                                                   \
    .runtime = "torch", .optimizer = "adamw-fused", .loss = "eager", .attention = "flash",                             \
    .selective = DTP_SELECTIVE_MATMUL, .fused_matmuls = true, .reference_script = true, .rope_fp32 = true,             \
    .sequence_parallel = true
/* The script of h200_parallel_runs.csv, known by its notes: torchtitan's model and its plans of parallelism; blocks and
 * loss are compiled. */
#define PARALLEL_SCRIPT_RULES                                                                                          \
    .runtime = "torch", .optimizer = "adamw-fused", .loss = "eager", .attention = "flash",                             \
    .selective = DTP_SELECTIVE_MATMUL, .rope_fp32 = true, .sequence_parallel = true, .names_fsdp = true
/* Anybody else's PyTorch: its own defaults, SDPA's FlashAttention-2 among them. */
#define TORCH_RULES                                                                                                    \
    .runtime = "torch", .optimizer = "adamw-foreach", .loss = "eager", .attention = "flash2",                          \
    .selective = DTP_SELECTIVE_MATMUL, .sequence_parallel = true
/* torchtune's RMSNorm and its RoPE are chains of operators in fp32 (modules/rms_norm.py, position_embeddings.py). What
 * it compiles is layers and the loss (training/_compile.py), not the cast of logits between them (transformer.py:
 * self.output(h).float()): the loss keeps them in fp32, as much as an eager one keeps. */
#define TORCHTUNE_RULES TORCH_RULES, CHAINED_NORMS, .rope_fp32 = true, .eager_loss = true
/* NeMo Automodel is PyTorch's FSDP2 on Transformers' models, whose gradients are reduced in fp32 (components/
 * distributed/config.py) and in every micro-step (defer_fsdp_grad_sync of the recipes of its page: false). */
#define AUTOMODEL_RULES TORCH_RULES, .fsdp_syncs_always = true
/* Transformers' Trainer and TRL's with peft's adapters; its AdamW was PyTorch's foreach until release 5
 * (training_args.py: optim adamw_torch), Accelerate's FSDP FSDP1 (fsdp_version 1), and logits were shifted until
 * release 4.49: the published rows are of 2023 and 2024.
 * Who clips gradients, as it does (max_grad_norm 1): CLIPS. */
#define CLIPS .clips = true
#define TRAINER_RULES                                                                                                  \
    .optimizer = "adamw-foreach", .loss = "eager", .attention = "flash2", .selective = DTP_SELECTIVE_ATTENTION,        \
    .fsdp1 = true, .shifted_logits = true
/* Release 5: AdamW fused, FSDP2, weights in the checkpoint's format, PyTorch's SDPA. */
#define TRAINER_5_RULES                                                                                                \
    .runtime = "peft", .optimizer = "adamw-fused", .loss = "eager", .attention = "flash",                              \
    .selective = DTP_SELECTIVE_ATTENTION, .names_fsdp = true, .keeps_root = true, .notes_settings = true,              \
    .clips = true
#define PEFT_RULES .runtime = "peft", TRAINER_RULES
/* Qwen's finetune.py (QwenLM/Qwen), with peft of 2023, whose adapters are as wide as the matrix beside them
 * (LoraLayer.update_layer before autocast_adapter_dtype of release 0.11): lora_dropout of its LoraArguments; neither it
 * nor Trainer by itself prints memory (training_args.py, skip_memory_metrics); modeling_qwen.py has logits as the head
 * made them. With 4 bits its script for one GPU trains under DeepSpeed (finetune_qlora_single_gpu.sh: fp16,
 * finetune/ds_config_zero2.json: overlap_comm, buckets of 2e8; ds_config_zero3.json says auto), without exllama
 * (GPTQConfig(disable_exllama=True)), Qwen's packed weights without act-order: qlinear_cuda_old. */
#define QWEN_RULES                                                                                                     \
    TRAINER_RULES, .lora_dropout = 0.05, .narrow_adapters = true, .logs_no_memory = true, .narrow_logits = true,       \
                   .single = "zero2", .deepspeed_overlap = true, .reduce_bucket = 200000000
#define DEEPSPEED_RULES                                                                                                \
    .runtime = "deepspeed", .optimizer = "adamw", .loss = "eager", .attention = "flash2",                              \
    .selective = DTP_SELECTIVE_ATTENTION
/* Release 0.19, whose models attend by PyTorch's SDPA. */
#define DEEPSPEED_LATER                                                                                                \
    .runtime = "deepspeed", .optimizer = "adamw", .loss = "eager", .attention = "flash",                               \
    .selective = DTP_SELECTIVE_ATTENTION
/* Where the fork says that ZeRO shards, DeepSpeed's engines train Megatron's layers. A pipeline in
 * bf16 was its BF16_Optimizer's from the first (deepspeed#1801, 2022). */
#define MEGATRON_DEEPSPEED_RULES                                                                                       \
    .runtime = "deepspeed", .optimizer = "adamw", EAGER_LOSS, .attention = "flash1",                                   \
    .selective = DTP_SELECTIVE_ATTENTION, .unfused_unless_asked = true, .fused_matmuls = true,                         \
    .megatron_layers = true, .bf16_optimizer = true, GPT_DROPOUT
/* The zero-bubble paper's fork of Megatron-LM: post-validation asks for fp16 (arguments.py, validate_args), its example
 * unties the head (pretrain_zero_bubble.sh), that of the time of the paper's runs has no --use-flash-attn
 * (pretrain_zbh1.sh), and the paper counts activations of attention without flash kernels, with dropout
 * (arXiv:2401.10241, section 3: M_B = s b h (34 + 5 a s / h)). */
#define ZERO_BUBBLE_RULES MEGATRON_RULES, EAGER_LOSS, .unfused_unless_asked = true, .dtype = "fp16", .untied_head = true
/* The fork of the same authors that divides the vocabulary asks for no dropout (pretrain_gpt.sh), and its container of
 * 2024 has FlashAttention-2 (artifact/README.md). */
#define VOCABULARY_FORK "VocabularyParallelism"
/* nanotron's scaling benchmarks; its text names Megatron too. */
#define NANOTRON_RULES                                                                                                 \
    .runtime = "nanotron", .optimizer = "adamw-fused", .loss = "eager", .attention = "flash2",                         \
    .selective = DTP_SELECTIVE_ATTENTION, .fused_matmuls = true, .sequence_parallel = true
static const struct dtp_run_framework frameworks[] = {
    {.word = "nanotron", NANOTRON_RULES},
    {.word = "llm-foundry", COMPOSER_RULES},
    {.word = "Composer", COMPOSER_RULES},
    {.word = "torchtitan", .source = TORCHTITAN_FUSED, TORCHTITAN_RULES, HELD_LOGITS},
    {.word = "torchtitan", .source = "PR #165", TORCHTITAN_RULES, CHAINED_NORMS, HELD_LOGITS},
    {.word = "torchtitan", .source = "llama3_h100_2025-06", TORCHTITAN_JUNE, CHAINED_NORMS},
    {.word = "torchtitan", .source = "pytorch/ao", .note = "pull request 1802", TORCHTITAN_RULES, CHAINED_NORMS},
    {.word = "torchtitan", .source = "pytorch/ao", TORCHTITAN_LATER, CHAINED_NORMS},
    {.word = "torchtitan", TORCHTITAN_RULES, CHAINED_NORMS},
    {.word = "fms-fsdp", FMS_RULES},
    {.word = "torchtune", TORCHTUNE_RULES},
    {.word = "Automodel", AUTOMODEL_RULES},
    {.word = "PyTorch 2.", .note = "as separate matmuls", PARALLEL_SCRIPT_RULES},
    {.word = "PyTorch 2.", .note = "architecture=", SCRIPT_RULES},
    {.word = "PyTorch 2.", .note = "; trainable ", SCRIPT_RULES},
    {.word = "llmq", EXECUTOR_RULES},
    {.word = "llm.c", EXECUTOR_RULES},
    {.word = "Megatron-DeepSpeed", .strategy = "zero1", MEGATRON_DEEPSPEED_RULES},
    {.word = "sail-sg", .source = VOCABULARY_FORK, ZERO_BUBBLE_RULES, .attention = "flash2"},
    {.word = "sail-sg", ZERO_BUBBLE_RULES, GPT_DROPOUT, .attention = "flash1"},
    {.word = "Megatron-DeepSpeed",
     MEGATRON_RULES,
     EAGER_LOSS,
     GPT_DROPOUT,
     .attention = "flash1",
     .unfused_unless_asked = true,
     .scatter_gather = true},
    {.word = "NeMo-Megatron",
     MEGATRON_RULES,
     EAGER_LOSS,
     GPT_DROPOUT,
     .attention = "flash1",
     .unfused_unless_asked = true,
     .sequence_parallel = true},
    {.word = "PTD-P",
     MEGATRON_RULES,
     EAGER_LOSS,
     GPT_DROPOUT,
     .attention = "flash1",
     .unfused_unless_asked = true,
     .scatter_gather = true},
    {.word = "Megatron-Bridge", NEMO_RULES, RECIPES_LOSS, BRIDGE_FORMATS, .fp8 = "fp8-current"},
    {.word = "NeMo", .source = NEMO_OF_2024, NEMO_RULES, .loss = "native", .fp8 = "fp8-delayed"},
    {.word = "NeMo", NEMO_RULES, RECIPES_LOSS, NEMO_WEIGHTS, .fp8 = "fp8-delayed"},
    {.word = "Megatron-Core", .source = "Megatron-MoE-ModelZoo", ZOO_RULES},
    {.word = "Megatron-Core", .source = "arXiv:2603.07685", ZOO_RULES},
    {.word = "Megatron-Core", MEGATRON_RULES, RECIPES_LOSS, .attention = "flash", .sequence_parallel = true},
    {.word = "Megatron", MEGATRON_RULES, RECIPES_LOSS, .attention = "flash", .scatter_gather = true},
    {.word = "InternEvo", MEGATRON_RULES, .loss = "fused", .attention = "flash2"},
    /* models of Transformers, which their authors' loops train, too: norms, RoPE and the loss are chains */
    {.word = "ZeRO-3 (transformers)", DEEPSPEED_RULES, .single = "zero1"},
    {.word = "Trainer DeepSpeed 0.19", DEEPSPEED_LATER, .notes_settings = true},
    {.word = "DeepSpeed 0.19", DEEPSPEED_LATER, .fused_matmuls = true, .rope_fp32 = true, .notes_settings = true},
    {.word = "DeepSpeed", DEEPSPEED_RULES},
    /* lora_dropout: scripts/benchmarks/scenarios.yaml; finetune.py, LoraArguments; of LoraConfig by itself 0 */
    /* packed: scripts/benchmarks/benchmark.py, max_seq_len_matrix */
    {.word = "fms-acceleration", PEFT_RULES, CLIPS, .lora_dropout = 0.1, .packed = 4096},
    /* peft's adapters on Transformers' models under FSDP1; lora_dropout: train.py */
    {.word = "fsdp_qlora", PEFT_RULES, .lora_dropout = 0.1},
    {.word = "finetune.py", .note = "GPTQ", .runtime = "deepspeed", QWEN_RULES, .gptq_operators = true},
    {.word = "finetune.py", .runtime = "peft", QWEN_RULES, CLIPS},
    {.word = "Transformers 5", TRAINER_5_RULES},
    {.word = "Trainer", PEFT_RULES, CLIPS},
    {.word = "PEFT", PEFT_RULES, CLIPS},
    {.word = "", TORCH_RULES},
};

/* Programs whose runs none of the runtimes describes. */
static const char *const foreign[] = {"JAX",    "MaxText", "Paxml",      "Colossal", "MindSpore",
                                      "Paddle", "OneFlow", "TensorFlow", "Praxis"};

enum dtp_run_memory dtp_run_unstated_memory(const char *framework)
{
    const struct dtp_run_framework *found = frameworks;
    while (!strcasestr(framework, found->word))
        found++;
    return found->logs_no_memory ? DTP_RUN_UNLOGGED : found->logs_reserved ? DTP_RUN_RESERVED : DTP_RUN_UNSTATED;
}

const struct dtp_run_framework *dtp_run_framework_of(const struct dtp_run *run, struct dtp_faults *faults)
{
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        if (strcasestr(run->framework, foreign[i])) {
            dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "framework '%.60s' is not modelled", run->framework);
            return NULL;
        }
    const struct dtp_run_framework *found = frameworks;
    while (!strcasestr(run->framework, found->word) || (found->note && !strstr(run->notes, found->note)) ||
           (found->source && !strstr(run->source, found->source)) ||
           (found->strategy && strcmp(run->strategy_key, found->strategy)))
        found++;
    return found;
}
