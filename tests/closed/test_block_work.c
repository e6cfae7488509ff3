#include "closed/activations.h"
#include "runtime/runtimes.h"
#include "closed/block_work.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>

#include "lib/hardware.h"

/* The LLaMA of the profiled runs: h 2048, 16 heads of 128, f 5504. */
static struct dtp_transformer profiled_llama(void)
{
    struct dtp_transformer transformer = dtp_transformer_default();
    transformer.layers = 24, transformer.hidden = 2048, transformer.heads = transformer.kv_heads = 16;
    transformer.head_dim = 128, transformer.ffn = 5504, transformer.vocab = 32000;
    return transformer;
}

static const struct dtp_cluster cluster;

static struct dtp_plan profiled_plan(enum dtp_strategy strategy, bool compile)
{
    struct dtp_plan plan = dtp_plan_default();
    plan.strategy = strategy, plan.compile = compile;
    plan.fused_qkv = plan.fused_gate_up = plan.rope_fp32 = true;
    return plan;
}

/* Eager under autocast (p = 4, w = 2), bytes a token: norms 16h, casts 12h, RoPE 48*2h, adds 20h, SwiGLU 10f;
 * backward: SwiGLU 26f, norms 52h, residual adds 24h, qkv cat 12h, casts 12h, RoPE 52*2h. */
static void test_eager_autocast_by_hand(void **state)
{
    (void)state;
    struct dtp_transformer transformer = profiled_llama();
    struct dtp_plan plan = profiled_plan(DTP_DDP, false);
    struct dtp_block_work work = dtp_block_work(&transformer, DTP_LAYER_DENSE, &cluster, &plan);
    assert_true(dtp_plan_autocast(&plan));
    plan.precision.compute = DTP_TF32; /* a mode of fp32 matmuls: nothing is cast */
    assert_false(dtp_plan_autocast(&plan));
    plan.precision.compute = DTP_BF16;
    assert_near(work.forward_bytes_per_token, 144.0 * 2048 + 10 * 5504, 1e-12);
    assert_near(work.backward_bytes_per_token, 204.0 * 2048 + 26 * 5504, 1e-12);
    assert_int_equal(work.matmul_count, 4);
    /* one at a time: RoPE 5 of q and k each way, sums of two formats 2h, strided halves of SwiGLU 2f; backward both
     * norms' rows 2h and casts to fp32 before them 2h, SwiGLU 3f */
    assert_near(work.passes.bytes[0], work.forward_bytes_per_token, 1e-12);
    assert_near(work.passes.bytes[1], work.backward_bytes_per_token, 1e-12);
    assert_near(work.passes.elements[0], 12.0 * 2048 + 2 * 5504, 1e-12);
    assert_near(work.passes.elements[1], 14.0 * 2048 + 3 * 5504, 1e-12);
    assert_near(work.passes.column_sums, 0, 0);
}

/* q, k and v apart, and gate and up: each linear's input gradient is cast to fp32 (6h) and added as fp32 (12h), three
 * of them beside the first of a norm; GPT-2 has a bias of each matmul. */
static void test_gradients_of_linears_are_widened(void **state)
{
    (void)state;
    struct dtp_transformer transformer = profiled_llama();
    struct dtp_plan packed = profiled_plan(DTP_DDP, false), apart = packed;
    apart.fused_qkv = apart.fused_gate_up = false;
    struct dtp_block_work one = dtp_block_work(&transformer, DTP_LAYER_DENSE, &cluster, &packed),
                          many = dtp_block_work(&transformer, DTP_LAYER_DENSE, &cluster, &apart);
    /* without cats of q, k and v, 12h, and of gate and up, 8f */
    assert_near(many.backward_bytes_per_token, one.backward_bytes_per_token + (3 * 18 - 12.0) * 2048 - 8.0 * 5504,
                1e-12);
    assert_near(many.passes.elements[1], one.passes.elements[1] + 3.0 * 2048 - 3.0 * 5504, 1e-12);
    apart.compile = true;
    many = dtp_block_work(&transformer, DTP_LAYER_DENSE, &cluster, &apart);
    assert_true(many.passes.bytes[0] + many.passes.bytes[1] + many.passes.elements[1] <= 0);
}

/* Compiled FSDP (p = w = 2): norm1 4h, add+norm2 8h, add 6h, RoPE 4*2h, SwiGLU 6f; backward: norms 16h, RoPE 12h,
 * transposes 4h, SwiGLU 10f: gate, up and their product's gradient read, gradients of gate and up written. */
static void test_compiled_fsdp_by_hand(void **state)
{
    (void)state;
    struct dtp_transformer transformer = profiled_llama();
    struct dtp_plan plan = profiled_plan(DTP_FULL_SHARD, true);
    struct dtp_block_work work = dtp_block_work(&transformer, DTP_LAYER_DENSE, &cluster, &plan);
    assert_false(dtp_plan_autocast(&plan));
    assert_near(work.forward_bytes_per_token, 26.0 * 2048 + 6 * 5504, 1e-12);
    assert_near(work.backward_bytes_per_token, 32.0 * 2048 + 10 * 5504, 1e-12);
}

/* Eager cross entropy moves 36 B a logit in bf16 (cast 6, log_softmax 8, zeros 4 and its backward 12, cast 6); fused 8.
 * Cast and both of log_softmax take elements one at a time. */
static void test_loss_bytes(void **state)
{
    (void)state;
    struct dtp_transformer transformer = profiled_llama();
    struct dtp_plan eager = profiled_plan(DTP_DDP, false), compiled = profiled_plan(DTP_DDP, true);
    assert_near(dtp_loss_bytes_per_token(&transformer, &eager), 36.0 * 32000, 1e-12);
    assert_near(dtp_loss_elements(&transformer, &eager), 3.0 * 32000, 1e-12);
    assert_near(dtp_loss_elements(&transformer, &compiled), 0, 0);
    assert_near(dtp_loss_bytes_per_token(&transformer, &compiled), 8.0 * 32000, 1e-12);
    /* loss_parallel: maximum 2; eager to fp32, log_softmax 12, three tensors 24, their product 8, cast 6; compiled sum
     * 2, log_softmax 6, zeros 4, gradient 10 */
    eager.vocab_ranks = compiled.vocab_ranks = 2;
    assert_near(dtp_loss_bytes_per_token(&transformer, &eager), 52.0 * 32000, 1e-12);
    assert_near(dtp_loss_bytes_per_token(&transformer, &compiled), 24.0 * 32000, 1e-12);
    eager.vocab_ranks = compiled.vocab_ranks = 1;
    transformer.final_softcap = 30; /* eager: divide, tanh, multiply 4 each; backward 4, 6, 4 */
    assert_near(dtp_loss_bytes_per_token(&transformer, &eager), (36.0 + 26) * 32000, 1e-12);
    assert_near(dtp_loss_bytes_per_token(&transformer, &compiled), 8.0 * 32000, 1e-12);
}

/* The matmuls of a block hold exactly the block's matmul parameters, however projections are fused. */
static void test_matmuls_cover_the_block(void **state)
{
    (void)state;
    struct dtp_transformer transformer = profiled_llama();
    transformer.kv_heads = 4;
    for (int fused = 0; fused < 2; fused++) {
        struct dtp_plan plan = dtp_plan_default();
        plan.fused_qkv = plan.fused_gate_up = fused;
        struct dtp_block_work work = dtp_block_work(&transformer, DTP_LAYER_DENSE, &cluster, &plan);
        double weights = 0;
        for (int i = 0; i < work.matmul_count; i++)
            weights += work.matmul[i].copies * work.matmul[i].n * work.matmul[i].k;
        assert_near(weights, (double)dtp_transformer_count(&transformer).block_matmul, 1e-12);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_eager_autocast_by_hand),
                                       cmocka_unit_test(test_gradients_of_linears_are_widened),
                                       cmocka_unit_test(test_compiled_fsdp_by_hand), cmocka_unit_test(test_loss_bytes),
                                       cmocka_unit_test(test_matmuls_cover_the_block)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
