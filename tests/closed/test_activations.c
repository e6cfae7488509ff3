/* Bytes saved per token, counted by hand tensor by tensor. */
#include "closed/activations.h"
#include "runtime/runtimes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static const struct dtp_cluster one_gpu = {.gpus = 1, .gpus_per_node = 1, .nodes = 1};
static const struct dtp_cluster eight_gpus = {.gpus = 8, .gpus_per_node = 8, .nodes = 1};

static struct dtp_transformer llama(uint64_t hidden, uint64_t heads, uint64_t kv_heads, uint64_t ffn, uint64_t vocab)
{
    struct dtp_transformer t = dtp_transformer_default();
    t.layers = 24;
    t.hidden = hidden;
    t.heads = heads;
    t.kv_heads = kv_heads;
    t.head_dim = hidden / heads;
    t.ffn = ffn;
    t.vocab = vocab;
    return t;
}

static struct dtp_transformer gpt2(void)
{
    struct dtp_transformer t = llama(768, 12, 12, 3072, 50304);
    t.layers = 12;
    t.norm = DTP_LAYER_NORM;
    t.activation = DTP_GELU;
    t.position = DTP_POSITION_LEARNED;
    t.positions = 1024;
    t.norm_bias = t.qkv_bias = t.attention_output_bias = t.mlp_bias = true;
    return t;
}

static struct dtp_activations count(const struct dtp_transformer *t, const struct dtp_plan *plan)
{
    struct dtp_activations activations;
    dtp_activations_count(t, plan->strategy == DTP_DDP ? &one_gpu : &eight_gpus, plan, &activations);
    return activations;
}

/* Llama-3-8B, FSDP2, bf16: x, x2, two norms 8h; q,k,v 2 d_q + 4 d_kv; core's result 2 d_q; log-sum-exp 4 heads; gate,
 * up, silu, product 8f; two fp32 statistics. 8*4096 + 4*4096 + 4*1024 + 8*14336 + 4*32 + 8. */
static void test_eager_llama(void **state)
{
    (void)state;
    struct dtp_transformer t = llama(4096, 32, 8, 14336, 128256);
    struct dtp_plan plan = dtp_plan_default();
    assert_int_equal(count(&t, &plan).layer_all, 168072);
    assert_int_equal(count(&t, &plan).head, 2 * 4096 + 2 * 4096 + 4);
}

/* The reference decoder: fused q,k,v stays whole behind the view of v (+2 d_q + 2 d_kv), and its RoPE makes the core's
 * result be copied (+2 d_q): 22h + 8f + 4 heads + 8 at d_q = d_kv = h. */
static void test_reference_llama(void **state)
{
    (void)state;
    struct dtp_transformer t = llama(2048, 16, 16, 5504, 32000);
    struct dtp_plan plan = dtp_plan_default();
    plan.fused_qkv = plan.fused_gate_up = plan.rope_fp32 = true;
    assert_int_equal(count(&t, &plan).layer_all, 22 * 2048 + 8 * 5504 + 64 + 8);
    /* whoever runs it: of 24 such layers 8,192 tokens under DeepSpeed kept 48 tensors of 32 MiB of that matmul and of
     * the sum behind it */
    struct dtp_plan other = plan;
    other.runtime = dtp_runtime_find("deepspeed");
    other.strategy = DTP_ZERO3;
    assert_int_equal(count(&t, &other).layer_all, 22 * 2048 + 8 * 5504 + 64 + 8);
    /* a compiler recomputes silu(gate) and keeps the attention matmul's result for x2 */
    plan.compile = true;
    assert_int_equal(count(&t, &plan).layer_all, 22 * 2048 + 6 * 5504 + 64 + 8);
    /* autocast: x in fp32; x2 too in eager */
    plan.strategy = DTP_DDP;
    assert_true(dtp_plan_autocast(&plan));
    assert_int_equal(count(&t, &plan).layer_all, 24 * 2048 + 6 * 5504 + 64 + 8);
    plan.compile = false;
    assert_int_equal(count(&t, &plan).layer_all, 26 * 2048 + 8 * 5504 + 64 + 8);
    assert_int_equal(count(&t, &plan).layer_input, 4 * 2048);
}

/* GPT-2 under autocast: x 4h, norm 2h, q,k,v 6h, core 2h, x2 4h, norm 2h, GELU in and out 4f; LayerNorm keeps mean and
 * deviation: 16. No RoPE, no copies. */
static void test_gpt2(void **state)
{
    (void)state;
    struct dtp_transformer t = gpt2();
    struct dtp_plan plan = dtp_plan_default();
    plan.strategy = DTP_DDP;
    plan.fused_qkv = true;
    assert_int_equal(count(&t, &plan).layer_all, 20 * 768 + 4 * 3072 + 48 + 16);
    plan.compile = true;
    assert_int_equal(count(&t, &plan).layer_all, 18 * 768 + 4 * 3072 + 48 + 16);
    /* over several GPUs DDPOptimizer cuts the layer: x2 stays in fp32 */
    struct dtp_activations cut;
    dtp_activations_count(&t, &eight_gpus, &plan, &cut);
    assert_int_equal(cut.layer_all, 20 * 768 + 4 * 3072 + 48 + 16);
    /* ReLU keeps only its result */
    t.activation = DTP_RELU;
    plan.compile = false;
    assert_int_equal(count(&t, &plan).layer_all, 20 * 768 + 2 * 3072 + 48 + 16);
}

static void test_checkpointing(void **state)
{
    (void)state;
    struct dtp_transformer t = llama(4096, 32, 8, 14336, 128256);
    struct dtp_plan plan = dtp_plan_default();
    assert_int_equal(count(&t, &plan).checkpoint_every, 0);
    plan.checkpointing = DTP_CHECKPOINT_FULL;
    assert_int_equal(count(&t, &plan).layer_kept, 2 * 4096);
    assert_int_equal(count(&t, &plan).checkpoint_every, 1);
    plan.checkpointing = DTP_CHECKPOINT_EVERY_N;
    plan.checkpoint_every = 4;
    assert_int_equal(count(&t, &plan).checkpoint_every, 4);
    /* q, v, gate and down results, core with its log-sum-exp, x: 4h + 4 d_q + 2 d_kv + 2f + 4 heads */
    plan.checkpointing = DTP_CHECKPOINT_SELECTIVE_MATMUL;
    assert_int_equal(count(&t, &plan).layer_kept, 4 * 4096 + 4 * 4096 + 2 * 1024 + 2 * 14336 + 128);
    plan.compile = true; /* nobody reads the down result in backward */
    assert_int_equal(count(&t, &plan).layer_kept, 2 * 4096 + 4 * 4096 + 2 * 1024 + 2 * 14336 + 128);
    plan.compile = false;
    plan.checkpointing = DTP_CHECKPOINT_SELECTIVE_ATTENTION;
    assert_int_equal(count(&t, &plan).layer_kept, 168072 - 128);
    plan.attention = DTP_ATTENTION_MATH; /* probabilities [32, 2048] go as well */
    assert_int_equal(count(&t, &plan).layer_kept, 168072 - 128);
    /* PyTorch's math kernel in fp32: probabilities, and casts of q and of k, v repeated to 32 heads (measured: 4 heads
     * s + 12 d_q of a LLaMA with 32 and 4 heads, within 3 %) */
    assert_int_equal(count(&t, &plan).layer_all, 168072 - 128 + 4 * 32 * 2048 + 3 * 4 * 4096);
    plan.runtime = &dtp_runtime_megatron;
    plan.compile = false;
    assert_int_equal(dtp_plan_score_bytes(&plan), 2);
}

/* Behind RoPE Megatron's q, k and v are tensors of their own, with fused_single_qkv_rope or without, unless attention
 * runs again: then the qkv result stays for the values that lie in it, d_q + d_kv more a token. */
static void test_values_apart(void **state)
{
    (void)state;
    struct dtp_transformer t = llama(4096, 32, 8, 14336, 128256);
    struct dtp_plan plan = dtp_plan_default();
    plan.runtime = &dtp_runtime_megatron, plan.strategy = DTP_DDP, plan.fused_qkv = plan.fused_gate_up = true;
    const uint64_t apart = count(&t, &plan).layer_kept;
    plan.fused_qkv_rope = true;
    assert_int_equal(count(&t, &plan).layer_kept, apart);
    plan.checkpointing = DTP_CHECKPOINT_SELECTIVE_ATTENTION;
    const uint64_t again = count(&t, &plan).layer_kept;
    plan.fused_qkv_rope = false;
    assert_int_equal(count(&t, &plan).layer_kept - again, 2 * (4096 + 1024));
}

static void test_loss(void **state)
{
    (void)state;
    struct dtp_transformer t = llama(4096, 32, 8, 14336, 128256);
    struct dtp_plan plan = dtp_plan_default();
    struct dtp_activations a = count(&t, &plan);
    assert_int_equal(a.logits, 2 * 128256);
    assert_int_equal(a.loss, 12 * 128256);
    plan.compile = true;
    assert_int_equal(count(&t, &plan).loss, 4 * 128256);
    plan.compile_loss = false;
    assert_int_equal(count(&t, &plan).loss, 12 * 128256);
    plan.compile = false;
    plan.loss = DTP_LOSS_CHUNKED; /* an eighth, and fp32 gradients of the hidden states */
    assert_int_equal(count(&t, &plan).loss, 12 * 16032 + 4 * 4096);
    plan.runtime = &dtp_runtime_dtplan;
    plan.loss = DTP_LOSS_EAGER;
    assert_int_equal(dtp_plan_loss(&plan), DTP_LOSS_CHUNKED);
}

/* 2048 tokens of 2048-token sequences over a vocabulary of 128256: at most 2048 + 204 runs, fp32, 4096 wide. */
static void test_embedding_backward(void **state)
{
    (void)state;
    struct dtp_transformer t = llama(4096, 32, 8, 14336, 128256);
    struct dtp_plan plan = dtp_plan_default();
    assert_int_equal(count(&t, &plan).embedding_backward, 4 * 4096 * (2048 + 204));
}

/* fp8 matmuls (torchao) save their bf16 operands: no activation memory is gained. */
static void test_fp8(void **state)
{
    (void)state;
    struct dtp_transformer t = llama(4096, 32, 8, 14336, 128256);
    struct dtp_plan plan = dtp_plan_default();
    assert_true(dtp_precision_recipe("fp8-tensorwise", &plan.precision));
    assert_int_equal(count(&t, &plan).layer_all, 168072);
}

/* Korthikanti et al. 2022, equation 1: a GPT layer of Megatron-LM with dropout and without flash kernels keeps
 * s b h (34 + 5 a s / h) bytes, of a token 34 h + 5 a s: x, two norms, qkv (6 h), core, x2, GELU in and out (8 h each)
 * and two masks of a byte; probabilities, their mask and what it let through (2 + 1 + 2). That leaves out statistics of
 * two norms, 16 bytes each. Without dropout two masks and 3 a s less; flash kernels keep 4 bytes a head. */
static void test_dropout(void **state)
{
    (void)state;
    struct dtp_transformer t = gpt2();
    struct dtp_plan plan = dtp_plan_default();
    plan.runtime = &dtp_runtime_megatron;
    plan.strategy = DTP_DDP;
    plan.fused_qkv = true;
    plan.sequence = 1024;
    plan.attention = DTP_ATTENTION_MATH;
    plan.precision.params = DTP_BF16;
    assert_int_equal(count(&t, &plan).layer_all, 32 * 768 + 2 * 12 * 1024 + 16);
    plan.dropout = 0.1;
    assert_int_equal(count(&t, &plan).layer_all, 34 * 768 + 5 * 12 * 1024 + 16);
    plan.attention = DTP_ATTENTION_FLASH;
    assert_int_equal(count(&t, &plan).layer_all, 34 * 768 + 4 * 12 + 16);
    plan.checkpointing = DTP_CHECKPOINT_FULL;
    assert_int_equal(count(&t, &plan).layer_kept, 2 * 768);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_eager_llama),
                                       cmocka_unit_test(test_reference_llama),
                                       cmocka_unit_test(test_gpt2),
                                       cmocka_unit_test(test_checkpointing),
                                       cmocka_unit_test(test_values_apart),
                                       cmocka_unit_test(test_loss),
                                       cmocka_unit_test(test_embedding_backward),
                                       cmocka_unit_test(test_fp8),
                                       cmocka_unit_test(test_dropout)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
