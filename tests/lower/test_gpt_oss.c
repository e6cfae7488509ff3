/* What gpt-oss has otherwise, counted by hand: biases of experts, a clamped SwiGLU, attention sinks, windows in every
 * second layer. */
#include "closed/activations.h"
#include "lower/lower.h"
#include "plan/graph_modules.h"
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

#define TOKENS 4096.0

/* Two layers of gpt-oss 20B: hidden 2880, 64 heads of 64 and 8 of keys, 32 experts of 2880, 4 a token. */
static struct dtp_transformer two_layers(void)
{
    struct dtp_transformer t = expert_model("gpt-oss-20b");
    t.layers = 2, t.activation = DTP_SWIGLU_CLAMPED;
    t.sliding_window = 128, t.sliding_window_pattern = 2;
    return t;
}

static struct dtp_plan plan_of(const struct dtp_transformer *t, const struct dtp_cluster *cluster, bool compile)
{
    static struct dtp_faults faults;
    struct dtp_plan plan = dtp_plan_default();
    plan.strategy = DTP_FULL_SHARD, plan.sequence = 4096, plan.micro_batch = 1, plan.compile = compile;
    memset(&faults, 0, sizeof faults);
    if (dtp_plan_resolve(&plan, t, cluster, &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
    return plan;
}

/* Bytes of a token. Attention: q 2 x 4096, k and v 2 x 512 each, the kernel's result and what sinks leave of it 2 x
 * 4096 each, log-sum-exp 4 x 64. MLP: weights of the router 4 x 32 and 8 numbers of 4 bytes for each of 4 experts; rows
 * of 4 x 2880 at 2 bytes: those of tokens, gate, up, activation, and eager the clamped gate, its sigmoid, up plus one
 * and a product; results in fp32. On one H200
 * PyTorch 2.11 keeps 40,336 bytes of a row through torchtitan's experts eager and 17,288 compiled, beside the row
 * itself: seven and three rows of 2 x 2880, and offsets. */
static void test_what_is_saved(void **state)
{
    (void)state;
    struct dtp_transformer t = two_layers();
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    const uint64_t row = 2 * 4 * 2880;
    for (int compile = 0; compile < 2; compile++) {
        struct dtp_plan plan = plan_of(&t, &cluster, compile);
        struct dtp_activations a;
        dtp_activations_count(&t, &cluster, &plan, &a);
        assert_int_equal(a.layer_attention, 2 * 4096 + 2 * 2 * 512 + 2 * 2 * 4096 + 4 * 64);
        assert_int_equal(a.layer_mlp, 4 * 32 + 4 * 8 * 4 + (compile ? 4 : 8) * row + 2 * row);
    }
}

static double flops_of(const struct dtp_program *program, enum dtp_op_kind kind, uint16_t layer)
{
    double flops = 0;
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        flops += op->kind == kind && op->layer == layer ? op->demand->flops : 0;
    }
    return flops;
}

/* Experts: three matrices of 2880 x 2880 for each of 4, 6 FLOPs for a weight and token. Attention: 2 a d_q a token, a
 * 2 x 128 - 128^2 / 4096 = 252 with the window, in layer 0, and 4096 in layer 1. */
static void test_flops(void **state)
{
    (void)state;
    struct dtp_transformer t = two_layers();
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    struct dtp_plan plan = plan_of(&t, &cluster, false);
    struct dtp_program *program;
    assert_int_equal(dtp_lower(&t, &cluster, &plan, 0, &program, NULL), DTP_OK);
    assert_int_equal(dtp_program_verify(program, NULL), DTP_OK);
    assert_true(flops_of(program, DTP_OP_GROUPED_MATMUL, 0) == 6 * TOKENS * 4 * 3 * 2880 * 2880);
    assert_true(flops_of(program, DTP_OP_ATTENTION, 0) == TOKENS * 2 * 252 * 4096);
    assert_true(flops_of(program, DTP_OP_ATTENTION, 1) == TOKENS * 2 * 4096 * 4096);
    dtp_program_destroy(program);
}

/* Adapters of rank 8 on attention's linears, all that `all` reaches: of a layer 8 (2880 + 4096) twice and 8 (2880 +
 * 512) twice, 165,888, and 3,981,312 of 24. Frozen matrices of experts have input gradients alone, 4 FLOPs for a weight
 * and token, and keep neither rows of tokens nor what the activation made: on a CPU, PyTorch 2.11 saves of grouped_mm
 * with a frozen weight that weight and offsets. Attention's linears read a norm's result, which adapters keep. */
static void test_adapters(void **state)
{
    (void)state;
    struct dtp_transformer t = two_layers(), whole = expert_model("gpt-oss-20b");
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    const uint64_t row = 2 * 4 * 2880;
    for (int compile = 0; compile < 2; compile++) {
        struct dtp_plan plan = dtp_plan_default();
        struct dtp_faults faults = {0};
        struct dtp_activations a;
        struct dtp_trained_count count;
        struct dtp_program *program;
        plan.strategy = DTP_FULL_SHARD, plan.sequence = 4096, plan.compile = compile, plan.adapters.rank = 8;
        if (dtp_plan_resolve(&plan, &t, &cluster, &faults) != DTP_OK)
            fail_msg("%s", faults.text[0]);
        dtp_plan_trained(&whole, &plan, &count);
        assert_int_equal(count.adapters, 3981312);
        assert_int_equal(count.frozen, 20914757184);
        assert_int_equal(count.frozen_bytes, 2 * UINT64_C(20914757184));
        dtp_activations_count(&t, &cluster, &plan, &a);
        assert_int_equal(a.layer_mlp, 4 * 32 + 4 * 8 * 4 + (compile ? 2 : 6) * row + 2 * row);
        assert_int_equal(dtp_lower(&t, &cluster, &plan, 0, &program, NULL), DTP_OK);
        assert_int_equal(dtp_program_verify(program, NULL), DTP_OK);
        for (uint16_t layer = 0; layer < 2; layer++)
            assert_true(flops_of(program, DTP_OP_GROUPED_MATMUL, layer) == 4 * TOKENS * 4 * 3 * 2880 * 2880);
        /* q, k, v, o frozen 4, adapters 6, the router 4; of layer 0 nobody wants gradients of what q, k and v read */
        const double qkv = 2880 * (4096 + 2 * 512), low = 8 * (3 * 2880 + 4096 + 2 * 512), o = 4096 * 2880;
        const double linears = 4 * (qkv + o + 2880 * 32) + 6 * (low + 8 * (4096 + 2880));
        assert_true(flops_of(program, DTP_OP_MATMUL, 1) == TOKENS * linears);
        assert_true(flops_of(program, DTP_OP_MATMUL, 0) == TOKENS * (linears - 2 * qkv - 2 * 8 * 3 * 2880));
        dtp_program_destroy(program);
    }
}

/* Experts that are parameters have no adapters that are named, nor are they packed; ranks that divide them beside
 * adapters are not modelled. */
static void test_adapters_refused(void **state)
{
    (void)state;
    struct dtp_transformer t = two_layers();
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    static const struct {
        uint32_t targets, ep;
        enum dtp_base base;
        const char *word;
    } ways[] = {{1u << DTP_TARGET_UP, 1, DTP_BASE_NONE, "lora_targets"},
                {DTP_TARGETS_ALL, 1, DTP_BASE_NF4_DOUBLE, "base"},
                {DTP_TARGETS_ALL, 2, DTP_BASE_NONE, "ep"}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct dtp_plan plan = dtp_plan_default();
        struct dtp_faults faults = {0};
        plan.strategy = DTP_FULL_SHARD, plan.sequence = 4096, plan.ep = ways[i].ep;
        plan.adapters.rank = 8, plan.adapters.targets = ways[i].targets, plan.adapters.base = ways[i].base;
        assert_int_equal(dtp_plan_resolve(&plan, &t, &cluster, &faults), DTP_BAD_INPUT);
        if (!strstr(faults.text[0], ways[i].word))
            fail_msg("%s", faults.text[0]);
    }
}

/* Bytes of a token of all operations of that name in layer 1. */
static double bytes_of(const struct dtp_program *program, enum dtp_op_kind kind, const char *name, int *count)
{
    double bytes = 0;
    *count = 0;
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        if (op->kind != kind || op->layer != 1 || strcmp(op->name, name) != 0)
            continue;
        bytes += op->demand->bytes / TOKENS;
        ++*count;
    }
    return bytes;
}

/* In bf16, eager: biases of gate, up and down a row each and a sum of 3 rows; the activation 16 rows, backward 40;
 * sinks 2 x 2 x 4096 and 22 bytes a head, backward 6 x 2 x 4096. */
static void test_bytes_of_kernels(void **state)
{
    (void)state;
    struct dtp_transformer t = two_layers();
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    struct dtp_plan plan = plan_of(&t, &cluster, false);
    struct dtp_program *program;
    const double row = 2 * 4 * 2880;
    int count;
    assert_int_equal(dtp_lower(&t, &cluster, &plan, 0, &program, NULL), DTP_OK);
    assert_true(bytes_of(program, DTP_OP_RESIDUAL, "biases of experts", &count) == 3 * 4 * row && count == 3);
    assert_true(bytes_of(program, DTP_OP_ACTIVATION, "", &count) == 16 * row && count == 1);
    double product = bytes_of(program, DTP_OP_ACTIVATION_BACKWARD, "product", &count);
    assert_true(product + bytes_of(program, DTP_OP_ACTIVATION_BACKWARD, "silu", &count) == 40 * row);
    assert_true(bytes_of(program, DTP_OP_RESIDUAL, "sinks", &count) == 2 * 2 * 4096 + 22 * 64);
    assert_true(bytes_of(program, DTP_OP_RESIDUAL_BACKWARD, "sinks", &count) == 6 * 2 * 4096);
    dtp_program_destroy(program);
}

static void test_refused(void **state)
{
    (void)state;
    struct dtp_transformer t = two_layers();
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    struct dtp_faults faults = {0};
    struct dtp_plan plan = dtp_plan_default();
    plan.strategy = DTP_FULL_SHARD, plan.attention = DTP_ATTENTION_MATH;
    assert_int_equal(dtp_plan_resolve(&plan, &t, &cluster, &faults), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "sinks"));
    t.experts = t.experts_per_token = t.expert_ffn = 0;
    t.expert_bias = t.router_bias = t.attention_sinks = false;
    plan = dtp_plan_default(), memset(&faults, 0, sizeof faults);
    plan.strategy = DTP_ZERO1, plan.runtime = &dtp_runtime_deepspeed;
    assert_int_equal(dtp_plan_resolve(&plan, &t, &cluster, &faults), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "swiglu_clamped"));
}

/* Under Megatron, of 8 ranks that have 4 experts each: sinks are the attention kernel's, biases of gate and up their
 * product's. Those of down are added in fp32: 4 + (2 + 8) + 8 + (4 + 2) bytes an element of a row of 2880, of four rows
 * a token, by two kernels an expert and gradients by four; backward (2 + 4) + (4 + 2) + 2 x 2 + 2 x (8 + 4). With all
 * passes in one graph rows of biases are made whole: 4 bytes more. In MXFP8 on Blackwell they are part of the product,
 * and one kernel reads the gradient, 2, for theirs.
 * YaRN's factor turns queries and keys, 64 and 8 heads of 64, operator by operator: 12 passes of 2 bytes, back 14 and
 * the cat with values, by 12 kernels each and 7. */
static void test_megatron(void **state)
{
    (void)state;
    struct dtp_transformer t = two_layers();
    const double elements = 4.0 * 2880;
    for (int i = 0; i < 3; i++) {
        struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
        struct dtp_plan plan = dtp_plan_default();
        struct dtp_faults faults = {0};
        struct dtp_program *program;
        int count;
        plan.strategy = DTP_ZERO1, plan.runtime = &dtp_runtime_megatron, plan.ep = 8;
        plan.sequence = TOKENS;
        plan.megatron.graphs = i ? 1u << DTP_GRAPH_FULL_ITERATION : 0;
        cluster.gpu.architecture = i == 2 ? DTP_GPU_BLACKWELL : cluster.gpu.architecture;
        assert_true(dtp_precision_recipe(i == 2 ? "mxfp8" : "bf16-mixed", &plan.precision));
        if (dtp_plan_resolve(&plan, &t, &cluster, &faults) != DTP_OK)
            fail_msg("%s", faults.text[0]);
        assert_int_equal(dtp_lower(&t, &cluster, &plan, 0, &program, &faults), DTP_OK);
        double forward = bytes_of(program, DTP_OP_RESIDUAL, "biases of experts", &count);
        assert_int_equal(count, i == 2 ? 0 : 1);
        assert_true(fabs(forward - (i == 2 ? 0 : (i ? 32 : 28) * elements)) < 1e-6);
        double backward = bytes_of(program, DTP_OP_BIAS_BACKWARD, "down", &count);
        assert_true(fabs(backward - (i == 2 ? 2 : 40) * elements) < 1e-6);
        assert_int_equal(bytes_of(program, DTP_OP_RESIDUAL, "sinks", &count) > 0 || count, 0);
        const double turned = 2 * 72 * 64;
        assert_true(fabs(bytes_of(program, DTP_OP_ROTARY, "", &count) - 12 * turned) < 1e-6);
        assert_true(fabs(bytes_of(program, DTP_OP_ROTARY_BACKWARD, "", &count) - 14 * turned - 2 * 2 * 80 * 64) < 1e-6);
        for (size_t op = 0; op < dtp_program_op_count(program) && !i; op++) {
            const struct dtp_op *o = &dtp_program_ops(program)[op];
            if (strcmp(o->name, "biases of experts") == 0)
                assert_true(o->demand->kernels == 2 * 4 && o->demand->issue == DTP_ISSUE_LOOPED);
            if (o->kind == DTP_OP_BIAS_BACKWARD && strcmp(o->name, "down") == 0)
                assert_int_equal(o->demand->kernels, 4 * 4);
            if (o->kind == DTP_OP_ROTARY)
                assert_int_equal(o->demand->kernels, 2 * 12);
            if (o->kind == DTP_OP_ROTARY_BACKWARD)
                assert_int_equal(o->demand->kernels, 2 * 7);
        }
        dtp_program_destroy(program);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_what_is_saved),    cmocka_unit_test(test_flops),
                                       cmocka_unit_test(test_adapters),         cmocka_unit_test(test_adapters_refused),
                                       cmocka_unit_test(test_bytes_of_kernels), cmocka_unit_test(test_megatron),
                                       cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
