/* From a row of a run table to a job: family by name and count, framework rules, batch, offload. */
#include "runs/run_table.h"
#include "runtime/runtimes.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "lib/plain_runs.h"

/* ---- shape ------------------------------------------------------------------------------------------------------ */

/* Published counts come out to the last parameter. */
static void test_counts_are_exact(void **state)
{
    (void)state;
    const struct dtp_run runs[] = {
        shaped("MPT-7b", 6658859008, 32, 4096, 32, 32, 16384, 50368, 2048),          /* biases, learned table, tied */
        shaped("mosaicml/mpt-7b", 6649286656, 32, 4096, 32, 32, 16384, 50432, 2048), /* ALiBi, no bias, tied */
        shaped("Qwen2.5-0.5B", 494032768, 24, 896, 14, 2, 4864, 151936, 1024),
        shaped("Qwen2.5-7B", 7615616512, 28, 3584, 28, 4, 18944, 152064, 1024),
        shaped("meta-llama/Llama-3.1_8B", 8030261248, 32, 4096, 32, 8, 14336, 128256, 8192),
        shaped("Llama-3.2-1B", 1235814400, 16, 2048, 32, 8, 8192, 128256, 4096), /* tied */
        shaped("llama3.2-1b", 1498482688, 16, 2048, 32, 8, 8192, 128256, 4096),  /* untied by its count */
        shaped("gpt2-124m", 124475904, 12, 768, 12, 12, 3072, 50304, 1024),
        shaped("Bloom-176B", 176247271424, 70, 14336, 112, 112, 57344, 250880, 2048),
        shaped("Qwen3-0.6B", 596049920, 28, 1024, 16, 8, 3072, 151936, 4096), /* heads of 128, not hidden / heads */
        shaped("Gemma-7B", 8537680896, 28, 3072, 16, 16, 24576, 256000, 4096),
        shaped("unheard-of", 6738415616, 32, 4096, 32, 32, 11008, 32000, 2048),
    };
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        struct dtp_transformer shape;
        struct dtp_faults faults = {0};
        if (dtp_run_shape(&runs[i], &shape, &faults))
            fail_msg("%s: %s", runs[i].model_name, faults.text[0]);
        assert_int_equal(dtp_transformer_count(&shape).total, runs[i].params);
    }
}

static void test_shapes_that_are_refused(void **state)
{
    (void)state;
    struct dtp_run run = plain_run();
    run.params = 13000000000;
    assert_refused(&run, "the row's dimensions give 6738415616 parameters, its params column says 13000000000");
    run = plain_run();
    run.heads = 30;
    assert_refused(&run, "n_heads 30 do not divide hidden 4096");
    run = plain_run();
    run.kv_heads = run.params = 0;
    assert_refused(&run, "n_kv_heads is empty");
    run = plain_run();
    run.model_name = "Llama-2-7B of ours";
    run.vocab = 0;
    assert_refused(&run, "vocab is empty");
}

/* Each is refused by the name of what is missing, before a shape that only it explains. */
static void test_parts_that_are_not_modelled(void **state)
{
    (void)state;
    struct dtp_run run = plain_run();
    run.experts = 8;
    run.top_k = 2;
    run.params = 46700000000;
    assert_refused(&run, "n_experts 8 without top_k or moe_ffn_hidden");
    run = plain_run();
    run.ep = 4;
    assert_refused(&run, "ep 4 or etp 0 without n_experts");
    run = plain_run();
    run.attention = "sparse";
    assert_refused(&run, "attention 'sparse' is unknown");
    run = plain_run();
    run.lora_rank = 16;
    run.quantised_base = "nf4";
    assert_refused(&run, "which linears have adapters (lora_rank 16) is not stated in notes; write lora_targets=all");
    run.notes = "LoRA: lora_targets=q+v; dropout 0.05", run.quantised_base = "none";
    struct dtp_job job = job_of(&run);
    assert_int_equal(job.plan.adapters.targets, 1u << DTP_TARGET_Q | 1u << DTP_TARGET_V);
    run.framework = "fsdp_qlora (PyTorch FSDP1)", run.checkpointing = "full"; /* which are peft's adapters */
    job = job_of(&run);
    assert_ptr_equal(job.plan.runtime, &dtp_runtime_peft);
    assert_true(job.plan.fsdp1 && job.plan.adapters.dropout == 0.1);
    run.framework = "torchtitan (FSDP2)", run.checkpointing = "none";
    run.notes = "lora_targets=q+head";
    assert_refused(&run, "lora_targets");
    run.lora_rank = 0, run.quantised_base = "none";
    assert_refused(&run, "lora_rank is not stated (quantised_base none)");
    run = plain_run();
    run.precision_recipe = "mxfp8 grouped GEMM only";
    assert_refused(&run, "precision_recipe 'mxfp8 grouped GEMM only' is not modelled");
    run.precision_recipe = "bf16", run.fp8 = "1";
    assert_refused(&run, "precision_recipe 'bf16' contradicts fp8 1; empty one of them");
    run.precision_recipe = "fp8-rowwise", run.fp8 = "0";
    assert_refused(&run, "precision_recipe 'fp8-rowwise' contradicts fp8 0");
    run = plain_run();
    run.strategy_key = "ddp";
    run.notes = "eager; comm hook batched_powerSGD rank 4";
    assert_refused(&run, "DDP's communication hook 'batched_powerSGD' is not modelled");
}

static void test_hooks(void **state)
{
    (void)state;
    struct dtp_run run = plain_run();
    run.strategy_key = "ddp";
    run.notes = "eager; comm hook powerSGD rank 4, start_powerSGD_iter 2; comm hook powersgd rank 4";
    struct dtp_plan plan = job_of(&run).plan;
    assert_int_equal(plan.comm_hook, DTP_COMM_HOOK_POWERSGD);
    assert_int_equal(plan.powersgd_rank, 4);
    run.notes = "comm hook fp16_compress_hook; eager";
    assert_int_equal(job_of(&run).plan.comm_hook, DTP_COMM_HOOK_FP16);
}

/* What leaves a dense model as it is: one expert-parallel rank, the attention that its heads are, a plain recipe. */
static void test_parts_that_say_nothing_new(void **state)
{
    (void)state;
    struct dtp_run run = plain_run();
    run.ep = run.etp = 1;
    run.attention = "mha";
    run.precision_recipe = "bf16";
    assert_int_equal(job_of(&run).plan.precision.compute, DTP_BF16);
    assert_int_equal(job_of(&run).plan.precision.master, DTP_FP32);
    run.precision_recipe = "bf16 pure";
    assert_int_equal(job_of(&run).plan.precision.master, DTP_BF16);
}

/* A preset's name is enough; what is stated beside it must be its own. */
static void test_presets_fill_dimensions(void **state)
{
    (void)state;
    struct dtp_run run = plain_run(), whole = run;
    run.model_name = whole.model_name = "llama-2-7b";
    run.params = run.layers = run.hidden = run.heads = run.kv_heads = run.ffn = run.vocab = 0;
    struct dtp_job job = job_of(&run), stated = job_of(&whole);
    assert_int_equal(dtp_transformer_count(&job.transformer).total, 6738415616);
    assert_int_equal(job.transformer.ffn, stated.transformer.ffn);
    assert_int_equal(job.plan.micro_batch, 2);
    run.framework = ""; /* PyTorch, then */
    assert_ptr_equal(job_of(&run).plan.runtime, &dtp_runtime_torch);
    run.params = 13000000000;
    assert_refused(&run, "the preset llama-2-7b has 6738415616 parameters, the params column says 13000000000");
    run.params = 0;
    run.layers = 40;
    assert_refused(&run, "n_layers is 40, but the preset llama-2-7b has 32");
    run.layers = 0;
    run.sequence = 0;
    assert_refused(&run, "seq_len is empty");
    run = plain_run();
    run.model_name = "nobody's-7b";
    run.ffn = 0;
    assert_refused(&run, "ffn_hidden is empty, and 'nobody's-7b' is no preset");
}

static void test_notes_decide_the_architecture(void **state)
{
    (void)state;
    struct dtp_run run = shaped("mystery", 0, 12, 768, 12, 12, 3072, 50304, 1024);
    run.notes = "q=A; architecture=gpt2; more";
    assert_int_equal(job_of(&run).transformer.norm, DTP_LAYER_NORM);
    run.notes = "architecture=llama";
    assert_int_equal(job_of(&run).transformer.norm, DTP_RMS_NORM);
    run.notes = ""; /* ffn = 4 hidden: GPT's */
    assert_int_equal(job_of(&run).transformer.norm, DTP_LAYER_NORM);
    run.ffn = 2048;
    assert_int_equal(job_of(&run).transformer.norm, DTP_RMS_NORM);
}

/* ---- frameworks -------------------------------------------------------------------------------------------------- */

static void test_framework_rules(void **state)
{
    (void)state;
    struct dtp_run run = plain_run();
    struct dtp_plan plan = job_of(&run).plan;
    assert_ptr_equal(plan.runtime, &dtp_runtime_torch);
    assert_false(plan.fsdp1);
    assert_int_equal(plan.precision.reduce, DTP_FP32);
    run.framework = "llm-foundry/Composer (PyTorch FSDP1)";
    plan = job_of(&run).plan;
    assert_true(plan.fsdp1 && plan.accumulate_sync && plan.fused_qkv);
    assert_int_equal(plan.precision.reduce, DTP_BF16);
    assert_int_equal(plan.loss, DTP_LOSS_FUSED);
    assert_int_equal(plan.attention, DTP_ATTENTION_FLASH1);
    run.framework = "torchtitan (FSDP1)";
    assert_true(job_of(&run).plan.fsdp1 && job_of(&run).plan.norm_chain && !job_of(&run).plan.hold_logits);
    run.source = "github:pytorch/torchtitan docs/performance.md"; /* whose norms were Triton's */
    assert_true(!job_of(&run).plan.norm_chain && job_of(&run).plan.hold_logits);
    run.framework = "torchtitan (FSDP2)", run.source = "github:pytorch/ao"; /* of August 2025 */
    assert_true(job_of(&run).plan.wrap_ends);
    struct dtp_run tied = run; /* has no two ends, and is scored all the same */
    tied.model_name = "llama-3.2-1b",
    tied.params = tied.layers = tied.hidden = tied.heads = tied.kv_heads = tied.ffn = 0;
    tied.vocab = 0;
    assert_true(job_of(&tied).transformer.tied_head && !job_of(&tied).plan.wrap_ends);
    run.framework = "PyTorch 2.11 FSDP2";
    run.notes = "architecture=llama";
    plan = job_of(&run).plan;
    assert_true(plan.fused_qkv && plan.fused_gate_up && !plan.fsdp1 && !plan.norm_chain);
    run.notes = ""; /* somebody else's PyTorch 2.11 */
    assert_false(job_of(&run).plan.fused_qkv);
    run.framework = "HF Trainer, PyTorch FSDP";
    assert_true(job_of(&run).plan.fsdp1);
    run.framework = "torchtune (PyTorch)";
    run.compile = "1";
    assert_true(job_of(&run).plan.norm_chain && job_of(&run).plan.rope_fp32 && !job_of(&run).plan.compile_loss);
    run.compile = "";
    run.framework = "NeMo Automodel (PyTorch FSDP2)"; /* none of NeMo's Megatron */
    plan = job_of(&run).plan;
    assert_ptr_equal(plan.runtime, &dtp_runtime_torch);
    assert_true(plan.accumulate_sync && !plan.fsdp1 && plan.precision.reduce == DTP_FP32);
    run.strategy_key = "zero1", run.framework = "Megatron-LM (sail-sg fork)", run.source = "arXiv:2401.10241";
    assert_true(job_of(&run).plan.dropout == 0.1);
    run.source = "github:sail-sg/VocabularyParallelism artifact/README.md", run.flash_attention = "1";
    plan = job_of(&run).plan;
    assert_true(plan.dropout == 0 && plan.attention == DTP_ATTENTION_FLASH2 && plan.loss == DTP_LOSS_EAGER);
    run.framework = "Megatron-LM", run.flash_attention = "";
    assert_false(job_of(&run).plan.megatron.unfused_rope);
    run.notes = "dropout 0; --no-rope-fusion";
    assert_true(job_of(&run).plan.megatron.unfused_rope);
    run.notes = "";
    assert_ptr_equal(job_of(&run).plan.runtime, &dtp_runtime_megatron);
    run.strategy_key = "zero3";
    run.framework = "DeepSpeed";
    assert_ptr_equal(job_of(&run).plan.runtime, &dtp_runtime_deepspeed);
    assert_false(job_of(&run).plan.deepspeed.transformers_layers);
    run.framework = "DeepSpeed ZeRO-3 (transformers)";
    assert_true(job_of(&run).plan.deepspeed.transformers_layers);
    run.framework = "Accelerate"; /* zero3 by whatever name is DeepSpeed */
    assert_ptr_equal(job_of(&run).plan.runtime, &dtp_runtime_deepspeed);
    run.framework = "llmq (C++/CUDA)";
    run.strategy_key = "zero1";
    assert_ptr_equal(job_of(&run).plan.runtime, &dtp_runtime_dtplan);
}

static void test_precision(void **state)
{
    (void)state;
    struct dtp_run run = plain_run();
    run.fp8 = "1";
    assert_int_equal(job_of(&run).plan.precision.compute, DTP_FP8);
    assert_int_equal(job_of(&run).plan.precision.fp8_recipe, DTP_FP8_TENSORWISE);
    run.strategy_key = "zero1";
    run.framework = "Megatron-Bridge/Megatron-Core"; /* what a framework's fp8 is where a row says no more */
    assert_int_equal(job_of(&run).plan.precision.fp8_recipe, DTP_FP8_CURRENT);
    run.framework = "NeMo/Megatron-Core";
    assert_int_equal(job_of(&run).plan.precision.fp8_recipe, DTP_FP8_DELAYED);
    run.precision_recipe = "fp8-current-tensorwise";
    assert_int_equal(job_of(&run).plan.precision.fp8_recipe, DTP_FP8_CURRENT);
    run = plain_run();
    run.fp8 = "1";
    run.precision_recipe = "fp8-rowwise_with_gw_hp, bfloat16 all-gather";
    assert_int_equal(job_of(&run).plan.precision.fp8_recipe, DTP_FP8_ROWWISE_GW_HP);
    run.precision_recipe = "";
    run.notes = "quantization=float8 rowwise";
    assert_int_equal(job_of(&run).plan.precision.fp8_recipe, DTP_FP8_ROWWISE);
    run = plain_run();
    run.notes = "pure bf16 params, grads and AdamW moments";
    struct dtp_precision precision = job_of(&run).plan.precision;
    assert_true(precision.params == DTP_BF16 && precision.moments == DTP_BF16);
    run = plain_run();
    run.param_dtype = ""; /* not stated: bf16's rates, which are fp16's */
    assert_int_equal(job_of(&run).plan.precision.compute, DTP_BF16);
    run.param_dtype = "fp16";
    assert_int_equal(job_of(&run).plan.precision.compute, DTP_FP16);
}

static void test_checkpointing(void **state)
{
    (void)state;
    struct dtp_run run = plain_run();
    assert_int_equal(job_of(&run).plan.checkpointing, DTP_CHECKPOINT_NONE);
    run.checkpointing = "full";
    assert_int_equal(job_of(&run).plan.checkpointing, DTP_CHECKPOINT_FULL);
    run.checkpointing = "every-4";
    assert_int_equal(job_of(&run).plan.checkpoint_every, 4);
    run.checkpointing = "selective";
    assert_int_equal(job_of(&run).plan.checkpointing, DTP_CHECKPOINT_SELECTIVE_MATMUL);
    run.notes = "q=A; AC=selective(layer)";
    assert_int_equal(job_of(&run).plan.checkpointing, DTP_CHECKPOINT_EVERY_N);
    assert_int_equal(job_of(&run).plan.checkpoint_every, 2);
    run.notes = "";
    run.framework = "Megatron-LM";
    run.strategy_key = "zero1";
    assert_int_equal(job_of(&run).plan.checkpointing, DTP_CHECKPOINT_SELECTIVE_ATTENTION);
}

/* ---- batch, cluster, offload ------------------------------------------------------------------------------------- */

static void test_batch(void **state)
{
    (void)state;
    struct dtp_run run = plain_run(); /* neither accumulation nor global batch stated: one micro-step */
    assert_int_equal(job_of(&run).plan.accumulate, 1);
    run.global_batch = 64; /* 2 x 8 a micro-step */
    assert_int_equal(job_of(&run).plan.accumulate, 4);
    run.accumulate = 4;
    assert_int_equal(job_of(&run).plan.accumulate, 4);
    run.accumulate = 3;
    assert_refused(&run, "micro_batch_per_gpu 2 x 8 data-parallel ranks x grad_accum 3 does not give global_batch 64");
    run.accumulate = 0;
    run.global_batch = 63;
    assert_refused(&run, "does not give global_batch 63");
    run.global_batch = 0;
    run.micro_batch = 1000000000000;
    assert_refused(&run, "beyond 4294967295");
}

static void test_cluster(void **state)
{
    (void)state;
    struct dtp_run run = plain_run();
    run.gpus = 16;
    run.gpus_per_node = 8;
    run.node_network_gbit_per_s = 400;
    struct dtp_cluster cluster = job_of(&run).cluster;
    assert_int_equal(cluster.nodes, 2);
    assert_close(cluster.machine.network_bytes_per_s, 50e9, 1);
    assert_int_equal(cluster.network, DTP_NETWORK_RDMA);
    run.network = "sockets over loopback";
    assert_int_equal(job_of(&run).cluster.network, DTP_NETWORK_SOCKETS);
    run.network = "";
    run.gpus = 4; /* half of one node */
    cluster = job_of(&run).cluster;
    assert_int_equal(cluster.nodes, 1);
    assert_int_equal(cluster.gpus_per_node, 4);
    run.gpus = 64; /* not stated: the machine H100s come in */
    run.gpus_per_node = 0;
    run.node_network_gbit_per_s = 0;
    cluster = job_of(&run).cluster;
    assert_int_equal(cluster.gpus_per_node, 8);
    assert_true(cluster.machine.network_bytes_per_s > 0);
    run.gpus_per_node = 4; /* nodes of four have the network of four */
    assert_string_equal(job_of(&run).cluster.machine.key, "hgx-h100-4");
    run.gpu_key = "rtx-4090"; /* eight in one box: not the consumer's box of four */
    run.gpus = run.gpus_per_node = 8;
    assert_int_equal(job_of(&run).cluster.nodes, 1);
    run.gpu_key = "gb200"; /* 128 GPUs are no whole number of racks of 72 */
    run.gpus = 128;
    run.gpus_per_node = 0;
    assert_int_equal(job_of(&run).cluster.nodes, 2);
    run.gpus_per_node = 7;
    assert_refused(&run, "128");
}

static void test_offload(void **state)
{
    (void)state;
    struct dtp_run run = plain_run();
    run.offload_key = "params+optimizer";
    assert_int_equal(job_of(&run).plan.offload, DTP_OFFLOAD_PARAMS);
    run.offload_key = "params+optimizer+activations";
    assert_refused(&run, "offload of activations is not modelled");
    run.offload_key = "optimizer";
    assert_refused(&run, "offload of optimizer is not modelled under torch");
    run.framework = "llmq (C++/CUDA)";
    run.strategy_key = "zero1";
    run.offload_key = "master+optimizer";
    assert_int_equal(job_of(&run).plan.offload, DTP_OFFLOAD_OPTIMIZER);
    run.offload_key = "master+optimizer+gradients";
    assert_refused(&run, "offload of gradients is not modelled under the dtplan runtime");
    run.offload_key = "master+optimizers";
    assert_refused(&run, "is no +-joined set");
}

static void test_what_notes_and_families_settle(void **state)
{
    (void)state;
    struct dtp_run run = sliced_run();
    run.notes = "q=A; distributed optimizer (ZeRO-1) assumed as recipe default";
    assert_int_equal(job_of(&run).plan.strategy, DTP_ZERO1);
    assert_true(job_of(&run).plan.tp_overlap);
    run.notes = "distributed optimizer; tp_comm_overlap=False";
    assert_false(job_of(&run).plan.tp_overlap);
    run.notes = "q=A; distributed optimizer (ZeRO-1) assumed as recipe default";
    run.vocab = 0; /* GPT-2's tokenizer, in multiples of 128 x 4 */
    assert_int_equal(job_of(&run).transformer.vocab, 50688);
    run.tp = 8;
    run.dp = 2;
    assert_int_equal(job_of(&run).transformer.vocab, 51200);
    run = shaped("BLOOM-proto-181B", 0, 84, 13312, 104, 104, 53248, 0, 2048);
    run.framework = "Megatron-DeepSpeed";
    run.strategy_key = "zero1";
    run.tp = 4;
    assert_int_equal(job_of(&run).transformer.vocab, 250880); /* as published */
    run = shaped("Llama-7B of ours", 0, 32, 4096, 32, 32, 11008, 0, 2048);
    assert_refused(&run, "vocab is empty");
}

/* DeepSeek-V3's row, and one of 59 GiB whose source does not say what it counts. */
static void test_columns_of_experts_and_unstated_memory(void **state)
{
    (void)state;
    struct dtp_faults faults = {0};
    struct dtp_table *table;
    struct dtp_run_columns columns;
    struct dtp_run run;
    struct dtp_run_measured measured;
    assert_int_equal(dtp_table_read(TEST_SOURCE_DIR "/scenarios/published_runs_3d_moe.csv", &table, &faults), DTP_OK);
    assert_int_equal(dtp_run_columns_find(table, &columns, &faults), DTP_OK);
    assert_int_equal(dtp_run_read(table, 0, &columns, &run, &faults), DTP_OK);
    assert_string_equal(run.id, "mm-001");
    assert_int_equal(run.experts, 256);
    assert_int_equal(run.top_k, 8);
    assert_int_equal(run.expert_ffn, 2048);
    assert_int_equal(run.shared_experts, 1);
    assert_int_equal(run.first_dense_layers, 3);
    assert_int_equal(run.ep, 32);
    assert_int_equal(run.etp, 1);
    assert_int_equal(run.lora_rank, 0);
    assert_string_equal(run.attention, "mla");
    assert_string_equal(run.precision_recipe, "mxfp8");
    assert_int_equal(dtp_run_read(table, 175, &columns, &run, &faults), DTP_OK);
    assert_string_equal(run.id, "zb-001");
    assert_int_equal(dtp_run_read_measured(table, 175, &columns, &measured, &faults), DTP_OK);
    assert_true(measured.memory_bytes[DTP_RUN_UNSTATED] == 54.95 * 1073741824.0); /* 59e9 */
    assert_true(measured.memory_bytes[DTP_RUN_ALLOCATED] == 0);
    dtp_table_destroy(table);
}

/* Of each stage the ranks with most and least; what was there before the run is none of its memory. */
static void test_ranks_and_stale_bytes(void **state)
{
    (void)state;
    struct dtp_faults faults = {0};
    struct dtp_table *table;
    struct dtp_run_columns columns;
    struct dtp_run_measured measured;
    assert_int_equal(dtp_table_read(TEST_SOURCE_DIR "/scenarios/h200_parallel_runs.csv", &table, &faults), DTP_OK);
    assert_int_equal(dtp_run_columns_find(table, &columns, &faults), DTP_OK);
    assert_int_equal(dtp_run_read_measured(table, 26, &columns, &measured, &faults), DTP_OK);
    assert_true(measured.stage_bytes[0] == 54527903744.0 && measured.least_stage_bytes[0] == 54523709440.0);
    assert_true(measured.stage_bytes[1] == 49846579712.0 && measured.least_stage_bytes[1] == 49845531136.0);
    assert_true(measured.memory_bytes[DTP_RUN_ALLOCATED] == 54527903744.0);
    const double stale = 2725445632.0; /* 10829239296 after initialisation, 8103793664 in the run of the same state */
    assert_int_equal(dtp_run_read_measured(table, 27, &columns, &measured, &faults), DTP_OK);
    assert_true(measured.memory_bytes[DTP_RUN_ALLOCATED] == 52530871808.0 - stale);
    assert_true(measured.memory_bytes[DTP_RUN_RESERVED] == 65087209472.0 - stale);
    assert_true(measured.memory_bytes[DTP_RUN_AFTER_INIT] == 8103793664.0);
    assert_true(measured.stage_bytes[0] == 52530871808.0 - stale &&
                measured.least_stage_bytes[0] == 52494179840.0 - stale);
    assert_true(measured.stage_bytes[1] == 0 && measured.least_stage_bytes[1] == 0);
    dtp_table_destroy(table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counts_are_exact),
        cmocka_unit_test(test_shapes_that_are_refused),
        cmocka_unit_test(test_parts_that_are_not_modelled),
        cmocka_unit_test(test_hooks),
        cmocka_unit_test(test_parts_that_say_nothing_new),
        cmocka_unit_test(test_presets_fill_dimensions),
        cmocka_unit_test(test_notes_decide_the_architecture),
        cmocka_unit_test(test_framework_rules),
        cmocka_unit_test(test_precision),
        cmocka_unit_test(test_checkpointing),
        cmocka_unit_test(test_what_notes_and_families_settle),
        cmocka_unit_test(test_batch),
        cmocka_unit_test(test_cluster),
        cmocka_unit_test(test_offload),
        cmocka_unit_test(test_columns_of_experts_and_unstated_memory),
        cmocka_unit_test(test_ranks_and_stale_bytes),
    };
    return cmocka_run_group_tests(tests, load_catalog, drop_catalog);
}
