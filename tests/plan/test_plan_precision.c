/* Recipes of precision: what each element is stored as, and which a runtime or a GPU does not have. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "lib/plan_fixture.h"

/* Bytes of parameters, master and two moments of a parameter, without the gradient. */
static unsigned stored_bytes(const char *recipe, const char *runtime)
{
    struct dtp_precision p;
    const struct dtp_runtime *r = dtp_runtime_find(runtime);
    assert_true(dtp_precision_recipe(recipe, &p));
    assert_non_null(r);
    dtp_precision_for_runtime(&p, r);
    assert_string_equal(dtp_precision_name(&p), recipe);
    return dtp_dtype_bytes(p.params) + (p.master == p.params ? 0 : dtp_dtype_bytes(p.master)) +
           2 * dtp_dtype_bytes(p.moments);
}

static void test_recipes_by_hand(void **state)
{
    (void)state;
    assert_int_equal(stored_bytes("fp32", "torch"), 4 + 8);
    assert_int_equal(stored_bytes("bf16-mixed", "torch"), 4 + 8);
    assert_int_equal(stored_bytes("bf16", "torch"), 2 + 8); /* with its 2 bytes of gradient: the tutorials' 12 */
    assert_int_equal(stored_bytes("bf16-pure", "torch"), 2 + 4);
    assert_int_equal(stored_bytes("fp16-mixed", "torch"), 4 + 8);
    assert_int_equal(stored_bytes("fp8-tensorwise", "torch"), 4 + 8);
    assert_int_equal(stored_bytes("fp8-rowwise", "torch"), 4 + 8);
    assert_int_equal(stored_bytes("bf16-mixed", "deepspeed"), 2 + 4 + 8);
    assert_int_equal(stored_bytes("bf16-mixed", "megatron"), 2 + 4 + 8);
    assert_int_equal(stored_bytes("fp16-mixed", "deepspeed"), 2 + 4 + 8);
    assert_int_equal(stored_bytes("fp32", "deepspeed"), 4 + 8);
    struct dtp_precision p;
    assert_false(dtp_precision_recipe("int4", &p));
}

static void test_mixed_precision_reduces_as_the_runtime_does(void **state)
{
    (void)state;
    struct dtp_plan torch = with_strategy("full_shard", "torch"), deepspeed = with_strategy("zero2", "deepspeed"),
                    megatron = with_strategy("zero1", "megatron");
    assert_int_equal(resolve(&torch, 16, 8), DTP_OK);
    assert_int_equal(resolve(&deepspeed, 16, 8), DTP_OK);
    assert_int_equal(resolve(&megatron, 16, 8), DTP_OK);
    assert_int_equal(torch.precision.reduce, DTP_FP32);
    assert_int_equal(deepspeed.precision.reduce, DTP_BF16);
    assert_int_equal(megatron.precision.reduce, DTP_FP32);
    assert_true(megatron.fused_qkv && megatron.fused_gate_up);
}

static void test_dtypes_that_no_runtime_has_are_refused(void **state)
{
    (void)state;
    struct dtp_plan plan = dtp_plan_default();
    plan.precision.master = DTP_BF16;
    assert_refused(plan, "master_dtype", "fp32 beside 16-bit");
    plan = dtp_plan_default();
    plan.precision.params = DTP_BF16;
    assert_refused(plan, "master_dtype", "no master copy");
    plan = dtp_plan_default();
    plan.precision.moments = DTP_FP8;
    assert_refused(plan, "moment_dtype", "fp32 or bf16");
    plan = dtp_plan_default();
    plan.precision.params = plan.precision.master = DTP_INT8;
    assert_refused(plan, "param_dtype", "int8");
    plan = dtp_plan_default();
    plan.precision.reduce = DTP_FP16;
    assert_refused(plan, "reduce_dtype", "fp16");
    plan = with_strategy("ddp", "torch");
    plan.precision.reduce = DTP_BF16;
    assert_refused(plan, "reduce_dtype", "comm_hook");
    plan = with_strategy("zero3", "deepspeed");
    dtp_precision_recipe("bf16", &plan.precision);
    assert_refused(plan, "precision", "fp32 master");
    plan = with_strategy("zero3", "dtplan");
    dtp_precision_recipe("bf16", &plan.precision);
    assert_accepted(plan);
}

static void test_fp8_rules(void **state)
{
    (void)state;
    struct dtp_plan plan = dtp_plan_default();
    dtp_precision_recipe("fp8-tensorwise", &plan.precision);
    assert_accepted(plan);
    struct dtp_plan odd = plan;
    odd.sequence = 2050;
    assert_refused(odd, "seq", "multiples of 16");
    odd = plan;
    odd.precision.fp8_recipe = DTP_FP8_ROWWISE;
    assert_refused(odd, "fp8_all_gather", "one cast of rows and columns");
    odd = plan;
    odd.offload = DTP_OFFLOAD_PARAMS;
    assert_refused(odd, "offload", "fp8 all-gather");
    odd = with_strategy("zero3", "deepspeed");
    dtp_precision_recipe("fp8-tensorwise", &odd.precision);
    assert_refused(odd, "precision", "runtime deepspeed");
    odd = with_strategy("zero1", "megatron");
    dtp_precision_recipe("fp8-tensorwise", &odd.precision);
    assert_int_equal(resolve(&odd, 16, 8), DTP_OK);
    assert_int_equal(odd.precision.params, DTP_BF16);
    assert_int_equal(odd.precision.master, DTP_FP32);
    assert_string_equal(dtp_precision_name(&odd.precision), "fp8-current");
    dtp_precision_recipe("fp8-rowwise", &odd.precision);
    assert_refused(odd, "fp8_recipe", "use one of delayed, current, blockwise, mxfp8, nvfp4");
    odd = with_strategy("zero1", "megatron");
    dtp_precision_recipe("fp8-tensorwise", &odd.precision);
    odd.precision.fp8_recipe = DTP_FP8_NONE; /* fp8 by its dtypes alone: Transformer Engine's default */
    assert_int_equal(resolve(&odd, 16, 8), DTP_OK);
    assert_string_equal(dtp_precision_name(&odd.precision), "fp8-delayed");
    odd = with_strategy("zero1", "megatron");
    dtp_precision_recipe("mxfp8", &odd.precision);
    assert_refused(odd, "fp8_recipe", "of Blackwell and later");
    odd = with_strategy("ddp", "torch");
    dtp_precision_recipe("bf16-mixed", &odd.precision);
    odd.precision.fp8_recipe = DTP_FP8_TENSORWISE;
    assert_refused(odd, "fp8_recipe", "needs fp8 compute");
    odd = with_strategy("ddp", "torch");
    dtp_precision_recipe("fp8-tensorwise", &odd.precision);
    assert_int_equal(resolve(&odd, 16, 8), DTP_OK);
    assert_false(odd.precision.fp8_all_gather);
}

static void test_a_gpu_without_the_units_is_refused(void **state)
{
    (void)state;
    struct dtp_transformer t = llama_7b();
    struct dtp_cluster c = cluster(8, 8);
    snprintf(c.gpu.name, sizeof c.gpu.name, "V100");
    c.gpu.peak_flops_per_s[DTP_BF16] = c.gpu.peak_flops_per_s[DTP_FP8] = c.gpu.peak_flops_per_s[DTP_TF32] = 0;
    struct dtp_plan plan = dtp_plan_default();
    memset(&faults, 0, sizeof faults);
    assert_int_equal(dtp_plan_resolve(&plan, &t, &c, &faults), DTP_BAD_INPUT);
    assert_string_equal(faults.text[0], "precision: V100 has no bf16 matmul units; use precision fp16-mixed");
    dtp_precision_recipe("fp16-mixed", &plan.precision);
    assert_int_equal(dtp_plan_resolve(&plan, &t, &c, &faults), DTP_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recipes_by_hand),
        cmocka_unit_test(test_mixed_precision_reduces_as_the_runtime_does),
        cmocka_unit_test(test_dtypes_that_no_runtime_has_are_refused),
        cmocka_unit_test(test_fp8_rules),
        cmocka_unit_test(test_a_gpu_without_the_units_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
