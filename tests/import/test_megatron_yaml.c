/* NeMo's and Megatron-Bridge's yaml: what they do where a file is silent, sums that the files make themselves, and what
 * is refused by the setting that would help. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lib/import_fixture.h"

#include "plan/graph_modules.h"

static struct imported_file file;

static void read_yaml(const char *text, const char *typed)
{
    drop_imported(&file);
    if (import_text(&file, text, typed) != DTP_OK)
        fail_msg("%s: %s", text, file.faults.text[0]);
}

static void expect_refused(const char *text, const char *typed, const char *words)
{
    drop_imported(&file);
    assert_int_equal(import_text(&file, text, typed), DTP_BAD_INPUT);
    bool named = false;
    for (size_t i = 0; i < file.faults.count && i < DTP_FAULTS_KEPT; i++)
        named |= strstr(file.faults.text[i], words) != NULL;
    if (!named)
        fail_msg("%s", file.faults.text[0]);
}

/* ---- NeMo ---------------------------------------------------------------------------------------------------------
 */

#define NEMO_MODEL                                                                                                     \
    "trainer: {devices: 8, num_nodes: 2, precision: bf16}\n"                                                           \
    "model:\n"                                                                                                         \
    "  num_layers: 8\n  hidden_size: 1024\n  num_attention_heads: 8\n  encoder_seq_length: 2048\n"                     \
    "  max_position_embeddings: ${.encoder_seq_length}\n  ffn_hidden_size: ${multiply:4, ${.hidden_size}}\n"           \
    "  micro_batch_size: 1\n  global_batch_size: 64\n"
#define NEMO NEMO_MODEL "  megatron_amp_O2: true\n"
#define NEMO_TYPED "gpu=h100-sxm vocab=50257"

/* 8 devices of 2 nodes; 4 x 1024 = 4096; dropout 0.1, GELU, LayerNorm, learned positions, one head for both ends, and
 * without Transformer Engine no kernel of flash attention. */
static void nemo_where_it_is_silent(void **state)
{
    (void)state;
    read_yaml(NEMO, NEMO_TYPED);
    const struct dtp_transformer *t = &file.job.transformer;
    assert_int_equal(file.job.cluster.gpus, 16);
    assert_int_equal(t->ffn, 4096);
    assert_int_equal(t->positions, 2048);
    assert_int_equal(t->activation, DTP_GELU);
    assert_true(t->tied_head && t->mlp_bias);
    assert_true(file.job.plan.dropout == 0.1);
    assert_int_equal(file.job.plan.attention, DTP_ATTENTION_MATH);
    assert_int_equal(file.job.plan.strategy, DTP_DDP);
    assert_int_equal(file.job.plan.precision.reduce, DTP_FP32);
    assert_int_equal(file.job.plan.accumulate, 4); /* 64 of 16 ranks */
    read_yaml(NEMO "  transformer_engine: true\n  bias: false\n", NEMO_TYPED);
    assert_int_equal(file.job.plan.attention, DTP_ATTENTION_FLASH);
    assert_false(file.job.transformer.mlp_bias);
}

/* Apex's optimizer overlaps sums by itself, so that the gathers must be too; mcore's overlaps neither. */
static void nemo_optimizers(void **state)
{
    (void)state;
    read_yaml(NEMO "  optim: {name: mcore_distributed_optim}\n", NEMO_TYPED);
    assert_int_equal(file.job.plan.strategy, DTP_ZERO1);
    assert_false(file.job.plan.megatron.overlap);
    read_yaml(NEMO "  optim: {name: distributed_fused_adam, overlap_param_sync: true, grad_sync_dtype: bf16}\n",
              NEMO_TYPED);
    assert_true(file.job.plan.megatron.overlap);
    assert_int_equal(file.job.plan.precision.reduce, DTP_BF16);
    expect_refused(NEMO "  optim: {name: distributed_fused_adam}\n", NEMO_TYPED, "both or none");
    read_yaml(NEMO "  optim: {name: distributed_fused_adam}\n", NEMO_TYPED " megatron_overlap=false");
    assert_false(file.job.plan.megatron.overlap);
}

static void nemo_refused(void **state)
{
    (void)state;
    expect_refused(NEMO_MODEL "  mcore_gpt: true\n", NEMO_TYPED, "megatron_amp_O2: true");
    expect_refused(NEMO_MODEL "  megatron_amp_O2: false\n", NEMO_TYPED, "megatron_amp_O2 = false");
    expect_refused(NEMO "  bias_activation_fusion: false\n", NEMO_TYPED, "in several kernels");
    expect_refused(NEMO "  rampup_batch_size: [16, 16, 1000]\n", NEMO_TYPED, "a batch that grows");
    expect_refused(NEMO "  no_such_setting: 1\n", NEMO_TYPED, "no_such_setting = 1: is no setting of NeMo's");
    read_yaml(NEMO "  cross_entropy_loss_fusion: true\n", NEMO_TYPED);
    assert_int_equal(file.job.plan.loss, DTP_LOSS_NATIVE);
    /* mcore has no fused kernel of squared ReLU: nothing is lost without one. */
    read_yaml(NEMO "  bias_activation_fusion: false\n  activation: squared-relu\n", NEMO_TYPED);
    assert_int_equal(file.job.transformer.activation, DTP_RELU2);
}

/* ---- Megatron-Bridge ----------------------------------------------------------------------------------------------
 */

#define BRIDGE_TYPED "model=llama-3-8b gpu=h100-sxm gpus=16"
#define BRIDGE "train: {micro_batch_size: 1, global_batch_size: 64}\nmodel:\n  seq_length: 4096\n"

/* Over a recipe: bf16_mixed with sums in fp32, a distributed optimizer that overlaps, a fused loss, no dropout. Older
 * files call the parts model_config and so on, and may put all into ConfigContainer. */
static void bridge_over_a_recipe(void **state)
{
    (void)state;
    static const char *const texts[] = {
        BRIDGE "  tensor_model_parallel_size: 2\n",
        "train_config: {micro_batch_size: 1, global_batch_size: 64}\n"
        "model_config: {tensor_model_parallel_size: 2}\ndataset_config: {sequence_length: 4096}\n",
        "ConfigContainer:\n  train: {micro_batch_size: 1, global_batch_size: 64}\n"
        "  model: {tensor_model_parallel_size: 2}\n  dataset: {seq_length: 4096}\n"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        read_yaml(texts[i], BRIDGE_TYPED);
        assert_int_equal(file.job.plan.tp, 2);
        assert_int_equal(file.job.plan.sequence, 4096);
        assert_int_equal(file.job.plan.strategy, DTP_ZERO1);
        assert_true(file.job.plan.megatron.overlap);
        assert_int_equal(file.job.plan.precision.compute, DTP_BF16);
        assert_int_equal(file.job.plan.precision.reduce, DTP_FP32);
        assert_int_equal(file.job.plan.loss, DTP_LOSS_NATIVE); /* which is Megatron-Core's default */
        assert_true(file.job.plan.dropout == 0);
    }
}

static void bridge_plans(void **state)
{
    (void)state;
    read_yaml(BRIDGE "  cross_entropy_loss_fusion: true\n  cross_entropy_fusion_impl: te\n", BRIDGE_TYPED);
    assert_int_equal(file.job.plan.loss, DTP_LOSS_FUSED);
    read_yaml(BRIDGE "  cross_entropy_loss_fusion: true\n", BRIDGE_TYPED);
    assert_int_equal(file.job.plan.loss, DTP_LOSS_NATIVE);
    read_yaml(BRIDGE "  cross_entropy_loss_fusion: false\n  cross_entropy_fusion_impl: te\n", BRIDGE_TYPED);
    assert_int_equal(file.job.plan.loss, DTP_LOSS_EAGER);
    read_yaml(BRIDGE "ddp: {use_distributed_optimizer: false, overlap_grad_reduce: true}\n", BRIDGE_TYPED);
    assert_int_equal(file.job.plan.strategy, DTP_DDP);
    read_yaml(BRIDGE "ddp: {overlap_grad_reduce: false, overlap_param_gather: false}\n", BRIDGE_TYPED);
    assert_false(file.job.plan.megatron.overlap);
    /* comm_overlap goes before ddp, and what it leaves out it overlaps. */
    expect_refused(BRIDGE "ddp: {overlap_grad_reduce: false}\ncomm_overlap: {overlap_grad_reduce: false}\n",
                   BRIDGE_TYPED, "both or none");
    read_yaml(BRIDGE "mixed_precision: bf16_with_fp8_subchannel_scaling_mixed\n", BRIDGE_TYPED);
    assert_int_equal(file.job.plan.precision.fp8_recipe, DTP_FP8_BLOCKWISE);
    read_yaml(BRIDGE "mixed_precision: {bf16: true, fp8: hybrid, fp8_recipe: delayed, grad_reduce_in_fp32: false}\n",
              BRIDGE_TYPED);
    assert_int_equal(file.job.plan.precision.fp8_recipe, DTP_FP8_DELAYED);
    assert_int_equal(file.job.plan.precision.reduce, DTP_BF16);
    /* Tensor parallel overlap is for sequence parallel ranks alone. */
    read_yaml(BRIDGE "  tensor_model_parallel_size: 2\ncomm_overlap: {tp_comm_overlap: true}\n", BRIDGE_TYPED);
    assert_false(file.job.plan.tp_overlap);
    read_yaml(BRIDGE "  tensor_model_parallel_size: 2\n  sequence_parallel: true\n"
                     "comm_overlap: {tp_comm_overlap: true}\n",
              BRIDGE_TYPED);
    assert_true(file.job.plan.tp_overlap);
    read_yaml(BRIDGE "  cuda_graph_impl: transformer_engine\n  cuda_graph_scope: [attn, mlp]\n", BRIDGE_TYPED);
    assert_int_equal(file.job.plan.megatron.graphs, 1u << DTP_GRAPH_ATTN | 1u << DTP_GRAPH_MLP);
    read_yaml(BRIDGE "  cuda_graph_impl: none\n  cuda_graph_scope: full\n", BRIDGE_TYPED);
    assert_int_equal(file.job.plan.megatron.graphs, 0);
}

/* LoRA of peft/lora.py by its defaults, 32 and 32 of all linears. */
static void bridge_adapters(void **state)
{
    (void)state;
    read_yaml(BRIDGE "peft: {dropout: 0.1}\n", BRIDGE_TYPED);
    const struct dtp_adapter_choice *a = &file.job.plan.adapters;
    assert_int_equal(a->rank, 32);
    assert_true(a->alpha == 32 && a->dropout == 0.1);
    assert_int_equal(a->targets, DTP_TARGETS_ALL);
    read_yaml(BRIDGE "peft: {dim: 16, alpha: 32, target_modules: [linear_qkv, linear_proj]}\n", BRIDGE_TYPED);
    assert_int_equal(a->rank, 16);
    assert_int_equal(a->targets, DTP_TARGETS_ATTENTION);
}

static void bridge_refused(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"  topk: 1\n", "is no setting of Megatron-Bridge's configuration"},
        {"  moe_router_topk: 4\n", "whose width only the recipe says"},
        {"  moe_token_dispatcher_type: flex\n  moe_deepep_num_sms: 24\n", "only with 20"},
        {"  account_for_loss_in_pipeline_split: true\n", "one of embedding and loss alone"},
        {"  cuda_graph_impl: local\n  cuda_graph_scope: [attn]\n", "local graphs but of full_iteration"},
        {"mixed_precision: bf16_with_mxfp8_mixed\n", "keep parameters in fp8"},
        {"dist: {use_megatron_fsdp: true}\n", "Megatron-FSDP"},
        {"peft: {_target_: megatron.bridge.peft.dora.DoRA, dim: 8}\n", "peft._target_"},
        {"peft: {target_modules: [linear_qkv, in_proj]}\n", "linear_qkv, linear_proj"},
        {"peft: {sequence_parallel_input_regather: true}\n", "gathered again"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[1024];
        snprintf(text, sizeof text, BRIDGE "%s", cases[i][0]);
        expect_refused(text, BRIDGE_TYPED, cases[i][1]);
    }
}

static int drop_all(void **state)
{
    drop_imported(&file);
    return drop_catalog(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nemo_where_it_is_silent), cmocka_unit_test(nemo_optimizers), cmocka_unit_test(nemo_refused),
        cmocka_unit_test(bridge_over_a_recipe),    cmocka_unit_test(bridge_plans),    cmocka_unit_test(bridge_adapters),
        cmocka_unit_test(bridge_refused),
    };
    return cmocka_run_group_tests(tests, load_catalog, drop_all);
}
