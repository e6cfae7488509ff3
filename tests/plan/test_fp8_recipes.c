/* Recipes of fp8 and fp4: what each row says, what casts move and what is saved, by hand. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "lib/plan_fixture.h"
#include "plan/fp8_casts.h"
#include "plan/layer_tensors.h"

static struct dtp_plan plan_with(const char *strategy, const char *runtime, const char *recipe, bool compile)
{
    struct dtp_plan plan = with_strategy(strategy, runtime);
    assert_true(dtp_precision_recipe(recipe, &plan.precision));
    plan.compile = compile;
    return plan;
}

static struct dtp_cluster cluster_of(enum dtp_gpu_architecture architecture)
{
    struct dtp_cluster c = cluster(8, 8);
    c.gpu.architecture = architecture;
    c.gpu.fp4_flops_per_s = architecture == DTP_GPU_BLACKWELL ? 9e15 : 0;
    return c;
}

static void resolve_on(struct dtp_plan *plan, const struct dtp_cluster *on)
{
    struct dtp_transformer t = llama_7b();
    struct dtp_faults problems = {0};
    assert_int_equal(dtp_plan_resolve(plan, &t, on, &problems), DTP_OK);
}

static void test_words(void **state)
{
    (void)state;
    enum dtp_fp8_recipe found;
    for (int i = DTP_FP8_NONE + 1; i < DTP_FP8_RECIPE_COUNT; i++) {
        const struct dtp_fp8_recipe_row *row = dtp_fp8_recipe_row((enum dtp_fp8_recipe)i);
        struct dtp_precision precision;
        assert_true(dtp_fp8_recipe_parse(row->word, &found) && (int)found == i);
        assert_true(dtp_precision_recipe(row->precision, &precision));
        assert_int_equal(precision.fp8_recipe, i);
        assert_string_equal(dtp_precision_name(&precision), row->precision);
        assert_true(row->libraries && row->narrow);
    }
    assert_null(dtp_fp8_recipe_row(DTP_FP8_NONE));
    assert_true(dtp_fp8_recipe_parse("none", &found) && found == DTP_FP8_NONE);
    assert_false(dtp_fp8_recipe_parse("fp9", &found));
    assert_false(dtp_fp8_recipe_parse(NULL, &found));
}

/* 4096 elements: 1 byte each; 4 bytes for 128: + 32 x 4; 1 for 32: + 128; half a byte and 1 for 16: 2048 + 256. */
static void test_bytes(void **state)
{
    (void)state;
    assert_int_equal(dtp_fp8_bytes(DTP_FP8_DELAYED, 4096), 4096);
    assert_int_equal(dtp_fp8_bytes(DTP_FP8_BLOCKWISE, 4096), 4096 + 128);
    assert_int_equal(dtp_fp8_bytes(DTP_FP8_MXFP8, 4096), 4096 + 128);
    assert_int_equal(dtp_fp8_bytes(DTP_FP8_NVFP4, 4096), 2048 + 256);
    assert_int_equal(dtp_fp8_bytes(DTP_FP8_NVFP4, 1), 1 + 1); /* rounded up */
    assert_int_equal(dtp_fp8_bytes(DTP_FP8_NONE, 4096), 0);
}

/* Bytes that casts of a linear of 10 x 1000 move over 100 tokens, where inputs have 1000 x 100 elements, gradients
 * 1000 x 10 and the weight 10000. */
static double moved(const char *strategy, const char *runtime, const char *recipe, bool compile,
                    enum dtp_gpu_architecture architecture, double accumulate, enum dtp_fp8_walk walk)
{
    struct dtp_cluster c = cluster_of(architecture);
    struct dtp_plan plan = plan_with(strategy, runtime, recipe, compile);
    resolve_on(&plan, &c);
    struct dtp_fp8_casts casts;
    dtp_fp8_casts_of(&plan, &c.gpu, &casts);
    return dtp_fp8_traffic_of(&casts, 100, 10, 1000, accumulate, DTP_FP8_OPERAND_COUNT).bytes[walk];
}

static void test_casts_by_hand(void **state)
{
    (void)state;
    const double i = 100 * 1000, g = 100 * 10, w = 10 * 1000;
    const enum dtp_gpu_architecture hopper = DTP_GPU_HOPPER, blackwell = DTP_GPU_BLACKWELL;
    /* Compiled, fp32 weights: forward 3, amax 4 and 4 + 1; backward the same by columns, without an amax. */
    assert_true(moved("ddp", "torch", "fp8-tensorwise", true, hopper, 1, DTP_FP8_ALONG_ROWS) == 3 * i + 9 * w + 3 * g);
    assert_true(moved("ddp", "torch", "fp8-tensorwise", true, hopper, 1, DTP_FP8_TRANSPOSING) == 3 * i + 5 * w + 3 * g);
    /* FSDP2's gathered in fp8: one copy, by columns. */
    assert_true(moved("full_shard", "torch", "fp8-tensorwise", true, hopper, 1, DTP_FP8_ALONG_ROWS) == 3 * i + 3 * g);
    assert_true(moved("full_shard", "torch", "fp8-tensorwise", true, hopper, 1, DTP_FP8_TRANSPOSING) ==
                3 * i + 2 * w + 3 * g);
    /* Rows of 16-bit weights in one pass; columns in two. */
    assert_true(moved("full_shard", "torch", "fp8-rowwise", true, hopper, 1, DTP_FP8_ALONG_ROWS) ==
                3 * i + 3 * w + 3 * g);
    assert_true(moved("full_shard", "torch", "fp8-rowwise", true, hopper, 1, DTP_FP8_DOWN_COLUMNS) ==
                5 * i + 5 * w + 5 * g);
    /* Gradients of weights in 16 bits: no cast of what only they read. */
    assert_true(moved("full_shard", "torch", "fp8-rowwise-gw-hp", true, hopper, 1, DTP_FP8_ALONG_ROWS) ==
                3 * i + 3 * w + 3 * g);
    assert_true(moved("full_shard", "torch", "fp8-rowwise-gw-hp", true, hopper, 1, DTP_FP8_TRANSPOSING) == 5 * w);
    /* Eager: six kernels of 33 bytes, each operand of each product, and the other layout. */
    assert_true(moved("ddp", "torch", "fp8-tensorwise", false, hopper, 1, DTP_FP8_ALONG_ROWS) ==
                68 * i + 68 * w + 68 * g);
    /* Delayed: the kernel before has written rows, on Hopper columns too; weights once in four micro-steps. */
    assert_true(moved("zero1", "megatron", "fp8-delayed", false, hopper, 4, DTP_FP8_STREAMING) == i + w + 4 * g);
    assert_true(moved("zero1", "megatron", "fp8-delayed", false, blackwell, 1, DTP_FP8_STREAMING) == 3 * w + 3 * g);
    assert_true(moved("zero1", "megatron", "fp8-current", false, hopper, 1, DTP_FP8_STREAMING) ==
                6 * i + 6 * w + 6 * g);
    /* Transformer Engine's linears under FSDP2 and DDP: as Megatron's, but weights in each micro-step. */
    assert_true(moved("full_shard", "torch", "fp8-current", false, hopper, 4, DTP_FP8_STREAMING) ==
                6 * i + 6 * w + 6 * g);
    assert_true(moved("zero1", "megatron", "mxfp8", false, blackwell, 1, DTP_FP8_STREAMING) ==
                (2 + 2 * 33.0 / 32) * (i + w + g));
    assert_true(moved("zero1", "megatron", "nvfp4", false, blackwell, 1, DTP_FP8_STREAMING) ==
                (4 + 2 * 9.0 / 16) * (i + w + g));
}

/* Four tensor parallel ranks, each with 25 of 100 rows of the input: it casts those, and all rows are gathered. With
 * one scale a tensor the gathered rows are transposed, on Hopper; of blocks columns come too and are put in order, but
 * MXFP8's. Of 4096 elements rows are sent, of blocks columns too. */
static void test_casts_before_gathers(void **state)
{
    (void)state;
    static const struct {
        const char *recipe;
        enum dtp_gpu_architecture architecture;
        double input; /* bytes of an element of all rows */
        uint64_t wire;
    } rows[] = {{"fp8-delayed", DTP_GPU_HOPPER, 2, 4096},
                {"fp8-current", DTP_GPU_HOPPER, (2 + 2 + 1) / 4.0 + 2, 4096},
                {"fp8-current", DTP_GPU_BLACKWELL, (2 + 2 + 1) / 4.0, 4096},
                {"fp8-blockwise", DTP_GPU_HOPPER, (2 + 2 * 132.0 / 128) / 4 + 2 * 132.0 / 128, 2 * 4224},
                {"mxfp8", DTP_GPU_BLACKWELL, (2 + 2 * 33.0 / 32) / 4, 2 * 4224}};
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        struct dtp_cluster c = cluster_of(rows[r].architecture);
        struct dtp_plan plan = plan_with("zero1", "megatron", rows[r].recipe, false);
        plan.tp = 4, plan.sequence_parallel = true;
        resolve_on(&plan, &c);
        struct dtp_fp8_casts casts;
        dtp_fp8_casts_of(&plan, &c.gpu, &casts);
        double none = dtp_fp8_traffic_of(&casts, 100, 10, 1000, 1, DTP_FP8_OPERAND_COUNT).bytes[DTP_FP8_STREAMING];
        double input = dtp_fp8_traffic_of(&casts, 100, 10, 1000, 1, DTP_FP8_INPUT).bytes[DTP_FP8_STREAMING];
        assert_true(fabs(none - casts.of[DTP_FP8_INPUT].bytes * 1e5 + rows[r].input * 1e5 - input) < 1);
        assert_int_equal(dtp_fp8_wire_bytes(&plan, 4096), rows[r].wire);
    }
}

/* h 4096, f 11008. Compiled torchao keeps neither norms nor the activation, but where a 16-bit matmul reads them;
 * Transformer Engine keeps them narrow. */
static void test_saved_by_hand(void **state)
{
    (void)state;
    static const struct {
        const char *strategy, *runtime, *recipe;
        bool compile;
        enum dtp_gpu_architecture architecture;
        uint64_t norm, product;
    } rows[] = {
        {"ddp", "torch", "fp8-tensorwise", true, DTP_GPU_HOPPER, 0, 22016}, /* DDP's first bucket cuts before down */
        {"full_shard", "torch", "fp8-rowwise", true, DTP_GPU_HOPPER, 0, 0},
        {"full_shard", "torch", "fp8-rowwise-gw-hp", true, DTP_GPU_HOPPER, 8192, 22016},
        {"full_shard", "torch", "fp8-tensorwise", false, DTP_GPU_HOPPER, 8192, 22016},
        {"full_shard", "torch", "bf16-mixed", true, DTP_GPU_HOPPER, 8192, 22016},
        {"full_shard", "torch", "mxfp8", true, DTP_GPU_BLACKWELL, 8192, 22016},
        {"full_shard", "torch", "fp8-current", false, DTP_GPU_HOPPER, 4096, 11008},
        {"zero1", "megatron", "fp8-delayed", false, DTP_GPU_HOPPER, 4096, 11008},
        {"zero1", "megatron", "mxfp8", false, DTP_GPU_BLACKWELL, 4224, 11352},
        {"zero1", "megatron", "nvfp4", false, DTP_GPU_BLACKWELL, 2304, 6192},
    };
    struct dtp_transformer t = llama_7b();
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        struct dtp_cluster c = cluster_of(rows[r].architecture);
        struct dtp_plan plan = plan_with(rows[r].strategy, rows[r].runtime, rows[r].recipe, rows[r].compile);
        resolve_on(&plan, &c);
        struct dtp_layer_tensors tensors;
        dtp_layer_tensors_of(&t, DTP_LAYER_DENSE, &c, &plan, &tensors);
        assert_int_equal(dtp_layer_tensors_bytes(&tensors, tensors.saved & DTP_TENSOR_BIT(NORM1)), rows[r].norm);
        assert_int_equal(dtp_layer_tensors_bytes(&tensors, tensors.saved & DTP_TENSOR_BIT(NORM2)), rows[r].norm);
        assert_int_equal(dtp_layer_tensors_bytes(&tensors, tensors.saved & DTP_TENSOR_BIT(PRODUCT)), rows[r].product);
        assert_true(tensors.saved & DTP_TENSOR_BIT(UP));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words), cmocka_unit_test(test_bytes), cmocka_unit_test(test_casts_by_hand),
        cmocka_unit_test(test_casts_before_gathers), cmocka_unit_test(test_saved_by_hand)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
