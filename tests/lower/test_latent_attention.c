/* Latent attention as PyTorch's models have it, counted by hand: what is saved, FLOPs, bytes of kernels, the price of
 * two widths. */
#include "closed/activations.h"
#include "closed/block_work.h"
#include "closed/closed_form.h"
#include "cost/op_cost.h"
#include "lower/lower.h"
#include "plan/slice.h"
#include "program/verify.h"
#include "runtime/runtimes.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "lib/expert_models.h"
#include "lib/hardware.h"
#include "lib/lowered_job.h"

#define TOKENS 4096.0

/* DeepSeek-V3's first layers, which have no experts: hidden 7168; 128 heads with keys of 128 and 64 that rope turns,
 * values of 128; latents of 1536 and of 512 with the keys' 64. */
static struct dtp_transformer dense_layers(void)
{
    struct dtp_transformer t = expert_model("deepseek-v3");
    t.layers = 2;
    t.experts = t.experts_per_token = t.expert_ffn = t.shared_expert_ffn = t.dense_layers = 0;
    t.expert_groups = t.groups_per_token = 0, t.router = DTP_ROUTER_SOFTMAX;
    return t;
}

static struct dtp_plan plan_of(const struct dtp_transformer *t, const struct dtp_cluster *cluster,
                               enum dtp_attention attention, bool compile)
{
    struct dtp_plan plan = dtp_plan_default();
    plan.strategy = DTP_FULL_SHARD, plan.sequence = 4096, plan.micro_batch = 1;
    plan.attention = attention, plan.compile = compile;
    resolve_plan(&plan, t, cluster);
    return plan;
}

/* Bytes of a token that attention keeps on Hopper, whose kernel takes values as they are:
 *   latents   2 x 1536 and 2 x (512 + 64), normed 2 x 1536 and 2 x 512, a scale of 4 each
 *   q, k      2 x 128 x 192 each; keys and values as they were projected, 2 x 128 x (128 + 128), for values are a view
 *   result    2 x 128 x 128, log-sum-exp 4 x 128
 * and where values are padded for FlashAttention 2 x 128 x 192 instead of what was projected, a result of that width,
 * and 2 x 128 x 128 of it. */
static void test_what_is_saved(void **state)
{
    (void)state;
    struct dtp_transformer t = dense_layers();
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    uint64_t latents = 2 * 1536 + 2 * 576 + 2 * 1536 + 2 * 512 + 8, heads = 2 * 2 * 128 * 192 + 4 * 128;
    struct dtp_activations a;
    for (int compile = 0; compile < 2; compile++) {
        struct dtp_plan plan = plan_of(&t, &cluster, DTP_ATTENTION_FLASH, compile);
        dtp_activations_count(&t, &cluster, &plan, &a);
        assert_int_equal(a.layer_attention, latents + heads + 2 * 128 * 256 + 2 * 128 * 128);
        plan = plan_of(&t, &cluster, DTP_ATTENTION_FLASH2, compile);
        dtp_activations_count(&t, &cluster, &plan, &a);
        assert_int_equal(a.layer_attention, latents + heads + 2 * 2 * 128 * 192 + 2 * 128 * 128);
    }
}

/* Under autocast the norms of latents read casts to fp32, which they keep in place of the latents: 4 x 1536, 4 x 512.
 */
static void test_what_autocast_saves(void **state)
{
    (void)state;
    struct dtp_transformer t = dense_layers();
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    struct dtp_plan plan = plan_of(&t, &cluster, DTP_ATTENTION_FLASH, false);
    plan.strategy = DTP_DDP;
    struct dtp_activations a;
    assert_true(dtp_plan_autocast(&plan));
    dtp_activations_count(&t, &cluster, &plan, &a);
    uint64_t latents = 4 * 1536 + 4 * 512 + 2 * 1536 + 2 * 512 + 8, heads = 2 * 2 * 128 * 192 + 4 * 128;
    assert_int_equal(a.layer_attention, latents + heads + 2 * 128 * 256 + 2 * 128 * 128);
}

/* Queries without a latent (DeepSeek-V2-Lite): 16 heads, keys of 192, values of 128. */
static void test_queries_without_a_latent(void **state)
{
    (void)state;
    struct dtp_transformer t = expert_model("deepseek-v2-lite");
    t = dtp_transformer_all_alike(&t, false);
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    struct dtp_plan plan = plan_of(&t, &cluster, DTP_ATTENTION_FLASH, false);
    struct dtp_activations a;
    dtp_activations_count(&t, &cluster, &plan, &a);
    uint64_t latent = 2 * 576 + 2 * 512 + 4, heads = 2 * 2 * 16 * 192 + 4 * 16;
    assert_int_equal(a.layer_attention, latent + heads + 2 * 16 * 256 + 2 * 16 * 128);
}

/* All that a layer keeps of a token, as PyTorch 2.11 allocates it on one H200: four layers of torchtitan's attention
 * and SwiGLU, bf16, cuDNN's kernel, between the second's end and the third's: 139,536.25 bytes eager, 123,152.25
 * compiled. */
static void test_measured_layer(void **state)
{
    (void)state;
    struct dtp_transformer t = dtp_transformer_default();
    struct dtp_cluster cluster = test_cluster(test_h200(), 1, 8);
    t.layers = 4, t.hidden = 2048, t.heads = t.kv_heads = 32, t.head_dim = 192, t.ffn = 8192, t.vocab = 1000;
    t.q_latent = 1536, t.kv_latent = 512, t.rope_head_dim = 64, t.value_head_dim = 128;
    for (int compile = 0; compile < 2; compile++) {
        struct dtp_plan plan = plan_of(&t, &cluster, DTP_ATTENTION_FLASH, compile);
        struct dtp_activations a;
        dtp_activations_count(&t, &cluster, &plan, &a);
        assert_int_equal(a.layer_all, compile ? 123152 : 139536);
    }
}

static double flops_of(const struct dtp_program *program, enum dtp_op_class class, uint16_t layer, bool backward)
{
    double flops = 0;
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        bool core_back = op->kind == DTP_OP_ATTENTION_BACKWARD;
        if (dtp_op_kind_class(op->kind) == class && op->layer == layer && core_back == backward)
            flops += op->demand->flops;
    }
    return flops;
}

/* Matrices: 7168 x 1536, 1536 x 128 x 192, 7168 x 576, 512 x 128 x 256, 128 x 128 x 7168, MLP 3 x 7168 x 18432; 6 for
 * each and token. The causal core: a token sees 2048 others on average; forward 2 x 2048 x 128 x (192 + 128), backward
 * three matmuls of the keys' width and two of the values'; with padded values five of 192. */
static void test_flops(void **state)
{
    (void)state;
    struct dtp_transformer t = dense_layers();
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    double matrices =
        7168.0 * 1536 + 1536.0 * 128 * 192 + 7168.0 * 576 + 512.0 * 128 * 256 + 128.0 * 128 * 7168 + 3.0 * 7168 * 18432;
    for (int padded = 0; padded < 2; padded++) {
        struct dtp_plan plan = plan_of(&t, &cluster, padded ? DTP_ATTENTION_FLASH2 : DTP_ATTENTION_FLASH, false);
        struct dtp_program *program;
        double value = padded ? 192 : 128;
        assert_int_equal(dtp_lower(&t, &cluster, &plan, 0, &program, NULL), DTP_OK);
        assert_int_equal(dtp_program_verify(program, NULL), DTP_OK);
        assert_true(flops_of(program, DTP_CLASS_MATMUL, 1, false) == 6 * TOKENS * matrices);
        assert_true(flops_of(program, DTP_CLASS_ATTENTION, 1, false) == TOKENS * 4096 * 128 * (192 + value));
        assert_true(flops_of(program, DTP_CLASS_ATTENTION, 1, true) == TOKENS * 4096 * 128 * (3 * 192 + 2 * value));
        dtp_program_destroy(program);
    }
    double model = dtp_transformer_model_flops_per_token(&t, 4096);
    assert_true(model == 6 * (2 * matrices + 7168.0 * 129280) + 2 * 3 * 4096 * 128.0 * (192 + 128));
}

static double bytes_of(const struct dtp_program *program, enum dtp_op_kind kind, const char *name)
{
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        if (op->kind == kind && op->layer == 1 && strcmp(op->name, name) == 0)
            return op->demand->bytes / TOKENS;
    }
    fail_msg("no %s %s", dtp_op_kind_text(kind), name);
    return 0;
}

/* In bf16, eager: a norm reads and writes its latent, backward reads and writes it 5 times, and that of kv is put
 * together with the keys' 64 (576 read and written). Heads: rope of 128 x 64 of queries and 64 of keys at 20 bytes,
 * queries and keys of 128 x 192 read and written; backward rope again, queries read and written, keys and values of
 * 128 x 256 as well, the keys' 64 of each head read and summed. */
static void test_bytes_of_kernels(void **state)
{
    (void)state;
    struct dtp_transformer t = dense_layers();
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    struct dtp_plan plan = plan_of(&t, &cluster, DTP_ATTENTION_FLASH, false);
    struct dtp_program *program;
    assert_int_equal(dtp_lower(&t, &cluster, &plan, 0, &program, NULL), DTP_OK);
    double rope = 20 * (128 * 64 + 64), heads = 2 * 2 * 128 * 192;
    assert_true(bytes_of(program, DTP_OP_NORM, "q latent") == 2 * 2 * 1536);
    assert_true(bytes_of(program, DTP_OP_NORM, "kv latent") == 2 * 2 * 512);
    assert_true(bytes_of(program, DTP_OP_NORM_BACKWARD, "q latent") == 5 * 2 * 1536);
    assert_true(bytes_of(program, DTP_OP_NORM_BACKWARD, "kv latent") == 5 * 2 * 512 + 2 * 2 * 576);
    assert_true(bytes_of(program, DTP_OP_ROTARY, "heads") == rope + 2 * heads);
    assert_true(bytes_of(program, DTP_OP_ROTARY_BACKWARD, "heads") ==
                rope + heads + 2 * 2 * 128 * 256 + 2 * (128 * 64 + 64));
    dtp_program_destroy(program);
}

/* TFLOP/s of cuDNN's kernel for these heads, Megatron-Core's report on experts (arXiv 2603.07685), table 9. What was
 * measured of heads of 128 holds for them within a fifth; nothing is fitted to it. */
static void test_price_of_two_widths(void **state)
{
    (void)state;
    static const struct {
        uint64_t sequence;
        double forward, backward;
    } hopper[] = {{4096, 553e12, 422e12}, {16384, 638e12, 523e12}};
    struct dtp_gpu gpu = test_h200();
    struct dtp_execution execution = {.compute = DTP_BF16};
    for (size_t i = 0; i < 2; i++) {
        uint64_t s = hopper[i].sequence;
        struct dtp_attention_shape shape = {
            .heads = 128, .kv_heads = 128, .head_dim = 192, .value_dim = 128, .queries = s, .keys = s, .causal = true};
        struct dtp_attention_time time = dtp_attention_time(&gpu, &shape, &execution, (double)s);
        double core = (double)s * (double)s * 128 * (192 + 128), back = core * (3 * 192 + 2 * 128) / (192 + 128);
        assert_true(fabs(core / time.forward_s / hopper[i].forward - 1) < 0.2);
        assert_true(fabs(back / time.backward_s / hopper[i].backward - 1) < 0.2);
    }
}

/* Four heads of keys 32 and 16 that rope turns and of values 32, hidden 256, an MLP of 384, latents of 128 and 96, T =
 * 2 x 128 tokens, under Megatron with two tensor parallel ranks. */
#define LATENT_TOKENS 256

static struct dtp_program_totals divided(uint64_t layers, uint64_t q_latent, struct dtp_activations *kept)
{
    struct dtp_transformer t = dtp_transformer_default(), slice;
    struct dtp_cluster cluster = test_cluster(test_h200(), 2, 8);
    struct dtp_plan plan = dtp_plan_default();
    struct dtp_program_totals totals;
    struct dtp_program *program;
    t.layers = layers, t.hidden = 256, t.heads = t.kv_heads = 4, t.head_dim = 48, t.vocab = 1024, t.ffn = 384;
    t.rope_head_dim = 16, t.value_head_dim = 32, t.kv_latent = 96, t.q_latent = q_latent;
    plan.runtime = &dtp_runtime_megatron, plan.strategy = DTP_ZERO1, plan.tp = 2, plan.sequence_parallel = true;
    plan.sequence = 128, plan.micro_batch = 2;
    program = lowered_plan(&t, &cluster, &plan);
    dtp_program_sum(program, &totals);
    dtp_program_destroy(program);
    slice = dtp_plan_slice(&t, &plan);
    dtp_activations_count(&slice, &cluster, &plan, kept);
    return totals;
}

/* What a layer adds, of a rank, bf16:
 *
 *   FLOPs     6 of each weight and token: of half the tokens those to latents, 256 x (128 + 112); of all tokens half
 *             of what is projected up, 2 x 48 x 128 and 2 x 64 x 96, of the output 64 x 256, of the MLP 3 x 192 x 256;
 *             the core of 2 heads, 128 tokens, QK^T once again: 4 x 48 + 3 x 32 each
 *   gathered  forward latents 128, 96 and the keys' 16, and 256 for the MLP; backward 256 of both results' gradients,
 *             and again 128, 96 and 256 for gradients of weights; half of it is sent
 *   summed    forward 256 twice; backward 128, 96 and 16, and 256 for the MLP
 *   norms     gradients in fp32 of 256 x (128 + 112) + 128 + 96 + 2 x 256 elements that both have
 *   kept      latents 2 (128 + 112 + 128 + 96) + 8 by each of two, queries and keys 2 x 2 x 48 each, values and what
 *             the core returns 2 x 2 x 32 each, its log-sum-exp 4 x 2 */
static void test_tensor_parallel(void **state)
{
    (void)state;
    struct dtp_activations kept;
    struct dtp_program_totals one = divided(1, 128, &kept), two = divided(2, 128, &kept);
    double weights = 256 * 240 / 2.0 + 2 * 48 * 128 + 2 * 64 * 96 + 64 * 256 + 3 * 192 * 256;
    double core = 2 * 128 * (4 * 48 + 3 * 32), sent = 2.0 * LATENT_TOKENS / 2;
    assert_true(fabs(two.matmul_flops - one.matmul_flops - 6 * weights * LATENT_TOKENS) < 1);
    assert_true(fabs(two.attention_flops - one.attention_flops - core * LATENT_TOKENS) < 1);
    assert_int_equal(two.sent_bytes[DTP_ALL_GATHER] - one.sent_bytes[DTP_ALL_GATHER],
                     (uint64_t)(sent * (240 + 256 + 256 + 256 + 224 + 256)));
    assert_int_equal(two.count[DTP_ALL_GATHER] - one.count[DTP_ALL_GATHER], 4 + 2 + 3);
    assert_int_equal(two.sent_bytes[DTP_REDUCE_SCATTER] - one.sent_bytes[DTP_REDUCE_SCATTER],
                     (uint64_t)(sent * (512 + 240 + 256)));
    assert_int_equal(two.sent_bytes[DTP_ALL_REDUCE] - one.sent_bytes[DTP_ALL_REDUCE], 4 * (256 * 240 + 128 + 96 + 512));
    assert_int_equal(kept.layer_attention, (2 * (128 + 112 + 128 + 96) + 8) / 2 + 2 * 192 + 2 * 128 + 8);
}

/* Without a latent of queries the stream is gathered for these, beside the rows that the matrix to the other latent
 * reads. */
static void test_tensor_parallel_without_a_query_latent(void **state)
{
    (void)state;
    struct dtp_activations kept;
    struct dtp_program_totals one = divided(1, 0, &kept), two = divided(2, 0, &kept);
    double weights = 256 * 112 / 2.0 + 2 * 48 * 256 + 2 * 64 * 96 + 64 * 256 + 3 * 192 * 256;
    double sent = 2.0 * LATENT_TOKENS / 2;
    assert_true(fabs(two.matmul_flops - one.matmul_flops - 6 * weights * LATENT_TOKENS) < 1);
    assert_int_equal(two.sent_bytes[DTP_ALL_GATHER] - one.sent_bytes[DTP_ALL_GATHER],
                     (uint64_t)(sent * (256 + 112 + 256 + 256 + 256 + 256 + 96 + 256)));
    assert_int_equal(two.sent_bytes[DTP_REDUCE_SCATTER] - one.sent_bytes[DTP_REDUCE_SCATTER],
                     (uint64_t)(sent * (512 + 256 + 112 + 256)));
}

static void test_refused(void **state)
{
    (void)state;
    struct dtp_transformer t = dense_layers();
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    struct dtp_faults faults = {0};
    struct dtp_plan plan = dtp_plan_default();
    plan.strategy = DTP_FULL_SHARD, plan.runtime = &dtp_runtime_dtplan, plan.optimizer = DTP_MUON;
    assert_int_equal(dtp_plan_resolve(&plan, &t, &cluster, &faults), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "latent attention"));
    plan = dtp_plan_default(), memset(&faults, 0, sizeof faults);
    plan.strategy = DTP_ZERO1, plan.runtime = &dtp_runtime_megatron, plan.tp = 2, plan.sequence_parallel = false;
    assert_int_equal(dtp_plan_resolve(&plan, &t, &cluster, &faults), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "sequence_parallel"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_what_is_saved),
                                       cmocka_unit_test(test_what_autocast_saves),
                                       cmocka_unit_test(test_flops),
                                       cmocka_unit_test(test_queries_without_a_latent),
                                       cmocka_unit_test(test_bytes_of_kernels),
                                       cmocka_unit_test(test_price_of_two_widths),
                                       cmocka_unit_test(test_tensor_parallel),
                                       cmocka_unit_test(test_tensor_parallel_without_a_query_latent),
                                       cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_measured_layer)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
