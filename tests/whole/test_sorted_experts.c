/* Experts of Transformers 5 by grouped matmuls under runtime peft, by hand, of Mixtral 8x7B (32 layers, 4096 wide, 8 of
 * 32 heads for keys, 8 experts of 14336, 2 a token) and gpt-oss-20b (24 layers, 2880 wide, 64 heads of 64 and 8, 32
 * experts of 2880, 4 a token), adapters of rank 16 on attention. */
#include "closed/closed_form.h"
#include "lower/lower.h"
#include "program/verify.h"
#include "runtime/runtimes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "lib/memory_fixture.h"

static struct dtp_transformer mixtral(void)
{
    struct dtp_transformer t = llama_7b();
    t.kv_heads = 8, t.experts = 8, t.experts_per_token = 2, t.expert_ffn = 14336, t.router_norm = true;
    return t;
}

static struct dtp_transformer gpt_oss(void)
{
    struct dtp_transformer t = llama_7b();
    t.layers = 24, t.hidden = 2880, t.heads = 64, t.kv_heads = 8, t.head_dim = 64, t.vocab = 512;
    t.experts = 32, t.experts_per_token = 4, t.expert_ffn = 2880, t.activation = DTP_SWIGLU_CLAMPED;
    t.qkv_bias = t.attention_output_bias = t.expert_bias = t.router_bias = t.attention_sinks = t.router_norm = true;
    return t;
}

static struct dtp_plan sorted(void)
{
    struct dtp_plan plan = plan_of(&dtp_runtime_peft, DTP_DDP, "bf16-pure");
    plan.checkpointing = DTP_CHECKPOINT_FULL, plan.grouped_experts = true;
    plan.adapters.rank = 16, plan.adapters.targets = DTP_TARGETS_ATTENTION, plan.adapters.dtype = DTP_BF16;
    return plan;
}

static void assert_near(double value, double expected)
{
    if (!(value > expected * 0.9999 && value < expected * 1.0001))
        fail_msg("%.17g is not %.17g", value, expected);
}

static void assert_refused(struct dtp_transformer t, struct dtp_plan plan, const char *words)
{
    static struct dtp_faults faults;
    struct dtp_cluster cluster = one_gpu;
    memset(&faults, 0, sizeof faults);
    cluster.oversubscription = 1;
    for (int i = 0; i < DTP_DTYPE_COUNT; i++)
        cluster.gpu.peak_flops_per_s[i] = 1e15;
    assert_int_equal(dtp_plan_resolve(&plan, &t, &cluster, &faults), DTP_BAD_INPUT);
    if (!strstr(faults.text[0], words))
        fail_msg("%s", faults.text[0]);
}

/* Few words, so that the peak is where an activation's gradients are made. Of a token in units of h = 8192 bytes:
 * inputs of 32 layers; of the layer the copies of both norms in fp32, 2 + 2, what q, k and v read, 1, and what o did,
 * which is the core's result, 1, q 1, k and v 1/4 each; of two experts gate and up side by side, 7 each, and silu, 3.5
 * each; the block's result once more 1, its gradient 1; gradients of the product, of silu and of up, 7 each. Besides in
 * bytes: x A of four 2 x 16 each, a number of each of 32 heads, of both norms 4, a token's index 8, the router's
 * weights 4 x 8; of each of two routes 4 x 8, its weight in fp32 and in bf16, and its gradient 4; the sum of weights 4.
 */
static void test_layer(void **state)
{
    (void)state;
    struct dtp_transformer t = mixtral();
    t.vocab = 512;
    double units = 32 + 2 + 2 + 1 + 1 + 1 + 0.5 + 14 + 7 + 1 + 1 + 3 * 7.0;
    assert_near(bytes_of_a_token(&t, sorted()), 8192 * units + 128 + 128 + 8 + 8 + 32 + 2 * (32 + 4 + 2 + 4) + 4);
}

/* The same of gpt-oss, whose peak is in the replay before, where rows are put by tokens, in bytes of a token, h = 2 x
 * 2880 = 5760: inputs of 24 layers; of the layer norms' copies 4 h, what q, k and v read, h; q, the core's result and
 * its copy by tokens, weighed by what sinks leave of it, 8192 each, k and v 1024 each; of 64 heads the kernel's
 * log-sum-exp, 4, what was laid beside it, 4, both ones' log-sum-exp and the factor, 2 each; of four experts, f = 4 x
 * 5760, gate and up 2 f, clamped gate, its sigmoid, up plus one and the product of the former 4 f, rows that were
 * gathered and are a local variable, f, what experts returned, f, weighed f, by tokens f; the second norm's result and
 * the gradient of the block's, 2 h. Small ones as above. */
static void test_gpt_oss(void **state)
{
    (void)state;
    struct dtp_transformer t = gpt_oss();
    double h = 5760, f = 4 * h, heads = 64 * (4 + 4 + 2 + 2);
    double small = 128 + 8 + 8 + 4 * 32 + 4 * (32 + 4 + 2 + 4) + 4;
    assert_near(bytes_of_a_token(&t, sorted()),
                24 * h + 4 * h + h + 3 * 8192 + 2 * 1024 + heads + 2 * f + 4 * f + 4 * f + 2 * h + small);
    t = mixtral(); /* which has no sinks */
    struct dtp_plan plan = sorted();
    plan.grouped_experts = false;
    assert_refused(gpt_oss(), plan, "use grouped_experts");
    plan = sorted(), plan.attention = DTP_ATTENTION_MATH;
    assert_refused(gpt_oss(), plan, "attention");
    plan = sorted(), plan.adapters.base = DTP_BASE_NF4;
    assert_refused(t, plan, "base");
    plan = sorted(), plan.adapters = dtp_plan_default().adapters, dtp_precision_recipe("bf16-mixed", &plan.precision);
    assert_refused(t, plan, "grouped_experts");
    assert_refused(llama_7b(), sorted(), "grouped_experts");
}

/* Experts that are called one by one compute the same; grouped, gate and up are one product. */
static void test_work(void **state)
{
    (void)state;
    struct dtp_transformer t = mixtral();
    struct dtp_cluster cluster = one_gpu;
    double flops[2];
    cluster.oversubscription = 1;
    for (int i = 0; i < DTP_DTYPE_COUNT; i++)
        cluster.gpu.peak_flops_per_s[i] = 1e15;
    for (int grouped = 0; grouped < 2; grouped++) {
        struct dtp_plan plan = sorted();
        struct dtp_program *program;
        struct dtp_program_totals totals;
        uint32_t products = 0;
        plan.grouped_experts = grouped, plan.checkpointing = DTP_CHECKPOINT_NONE;
        assert_int_equal(dtp_plan_resolve(&plan, &t, &cluster, NULL), DTP_OK);
        assert_int_equal(dtp_lower(&t, &cluster, &plan, 0, &program, NULL), DTP_OK);
        dtp_program_sum(program, &totals);
        flops[grouped] = totals.matmul_flops;
        const struct dtp_op *ops = dtp_program_ops(program);
        for (size_t i = 0; i < dtp_program_op_count(program); i++)
            products += ops[i].kind == DTP_OP_GROUPED_MATMUL;
        assert_int_equal(products, grouped ? 32 * 4 : 0); /* of gate and up, of down; both back */
        dtp_program_destroy(program);
    }
    assert_true(flops[0] == flops[1]);
}

/* Adapters of both parameters, of rank 16: of gate and up, 28672 x 4096 of each expert, and of down, 4096 x 14336. */
#define OF_UP (UINT64_C(16) * 8 * (4096 + 28672))
#define OF_DOWN (UINT64_C(16) * 8 * (14336 + 4096))
#define WHOLE (UINT64_C(8) * 3 * 4096 * 14336)

static struct dtp_plan folded(void)
{
    struct dtp_plan plan = sorted();
    dtp_precision_recipe("bf16-mixed", &plan.precision);
    plan.adapters.dtype = DTP_FP32, plan.adapters.parameters = 1u << DTP_TARGET_UP | 1u << DTP_TARGET_DOWN;
    return plan;
}

/* Without checkpoints all layers keep W + B A, in bf16, factors in bf16, and what both products multiply: two rows a
 * token of 4096, and of 14336. Beside that stand adapters in fp32 with their moments. */
static void test_folded_memory(void **state)
{
    (void)state;
    struct dtp_transformer t = mixtral();
    struct dtp_plan plan = folded(), without = folded();
    struct dtp_trained_count count;
    struct dtp_cluster cluster = one_gpu;
    cluster.gpu.memory_bytes = UINT64_C(400) << 30;
    plan.checkpointing = without.checkpointing = DTP_CHECKPOINT_NONE, without.adapters.parameters = 0;
    struct dtp_memory more = estimate(&t, &plan, &cluster), less = estimate(&t, &without, &cluster);
    const uint64_t adapters = 32 * (OF_UP + OF_DOWN), rows = 2 * 2 * (4096 + 14336) * 2048;
    assert_int_equal(more.params_bytes - less.params_bytes, 4 * adapters);
    assert_int_equal(more.optimizer_bytes - less.optimizer_bytes, 8 * adapters);
    assert_int_equal(more.phase_total_bytes[DTP_PHASE_LOSS] - less.phase_total_bytes[DTP_PHASE_LOSS],
                     32 * (2 * WHOLE + rows) + 2 * adapters + 12 * adapters);
    plan.precision.params = DTP_BF16;
    dtp_plan_trained(&t, &plan, &count);
    assert_int_equal(count.adapters, 13631488 + adapters);
}

/* Checkpointed, one layer has them at a time; its backward both sums, their factors, and the gradient of down's, or of
 * up's alone, half of it gone: as many bytes each. In forward and in the replay each sum is made twice, 2 x 16 FLOPs an
 * element; its gradient multiplies both factors. */
static void test_folded_work(void **state)
{
    (void)state;
    struct dtp_transformer t = mixtral();
    struct dtp_cluster cluster = one_gpu;
    struct dtp_plan plan = folded();
    struct dtp_program *program;
    double sums = 0, gradients = 0, whole = 0;
    cluster.oversubscription = 1;
    for (int i = 0; i < DTP_DTYPE_COUNT; i++)
        cluster.gpu.peak_flops_per_s[i] = 1e15;
    assert_int_equal(dtp_plan_resolve(&plan, &t, &cluster, NULL), DTP_OK);
    assert_int_equal(dtp_lower(&t, &cluster, &plan, 0, &program, NULL), DTP_OK);
    const struct dtp_op *ops = dtp_program_ops(program);
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        bool product =
            ops[i].kind == DTP_OP_MATMUL && ops[i].demand->k > 1000; /* of attention's adapters: rank, or rows */
        if (ops[i].kind == DTP_OP_MATMUL && strcmp(ops[i].name, "W + B A") == 0)
            sums += ops[i].demand->flops;
        if (product && ops[i].demand->m > 8 * 4000 &&
            (strcmp(ops[i].name, "adapter B gradient") == 0 || strcmp(ops[i].name, "adapter A gradient") == 0))
            gradients += ops[i].demand->flops;
        if (ops[i].kind == DTP_OP_GROUPED_MATMUL && strstr(ops[i].name, "weight gradient"))
            whole += ops[i].demand->flops;
    }
    assert_true(sums == 32 * 2 * 2 * 2 * 16 * (double)WHOLE);
    assert_true(gradients == 32 * 2 * 2 * 16 * (double)WHOLE);
    assert_true(whole == 32 * 2.0 * 2048 * 2 * 3 * 4096 * 14336);
    dtp_program_destroy(program);
    struct dtp_plan refused = folded();
    refused.strategy = DTP_FULL_SHARD;
    assert_refused(t, refused, "lora_parameters");
    refused = folded(), refused.adapters.dropout = 0.1;
    assert_refused(t, refused, "lora_dropout");
    refused = folded(), refused.grouped_experts = false;
    assert_refused(t, refused, "lora_parameters");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_layer), cmocka_unit_test(test_gpt_oss),
                                       cmocka_unit_test(test_work), cmocka_unit_test(test_folded_memory),
                                       cmocka_unit_test(test_folded_work)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
