/* Adapters: words, what is trained and frozen, bytes of packed weights, what follows and what is refused. */
#include "plan/rules.h"
#include "runtime/runtimes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "lib/hardware.h"

#define WHY_BYTES DTP_FAULT_TEXT_BYTES

static void assert_close(double value, double expected, double most)
{
    if (!(value >= expected - most && value <= expected + most))
        fail_msg("%.17g is not %.17g", value, expected);
}

/* LLaMA-2-7B. */
static struct dtp_transformer llama(void)
{
    struct dtp_transformer t = dtp_transformer_default();
    t.layers = 32, t.hidden = 4096, t.heads = t.kv_heads = 32, t.head_dim = 128, t.ffn = 11008, t.vocab = 32000;
    return t;
}

static struct dtp_plan adapted(uint32_t rank)
{
    struct dtp_plan plan = dtp_plan_default();
    plan.strategy = DTP_DDP;
    plan.adapters.rank = rank;
    return plan;
}

static enum dtp_status resolve(struct dtp_plan *plan, const struct dtp_transformer *t, char *why)
{
    static struct dtp_faults faults;
    struct dtp_cluster cluster = test_cluster(test_h200(), 1, 1);
    memset(&faults, 0, sizeof faults);
    enum dtp_status status = dtp_plan_resolve(plan, t, &cluster, &faults);
    snprintf(why, WHY_BYTES, "%s", faults.count ? faults.text[0] : "");
    return status;
}

static void test_words(void **state)
{
    (void)state;
    uint32_t targets = 0;
    enum dtp_base base;
    char text[DTP_TARGETS_BYTES];
    assert_true(dtp_targets_parse("q,v", &targets));
    assert_int_equal(targets, 1u << DTP_TARGET_Q | 1u << DTP_TARGET_V);
    dtp_targets_text(targets, text);
    assert_string_equal(text, "q+v");
    assert_true(dtp_targets_parse("q_proj+k_proj+v_proj+o_proj", &targets));
    dtp_targets_text(targets, text);
    assert_string_equal(text, "attention");
    assert_true(dtp_targets_parse("all-linear", &targets));
    dtp_targets_text(targets, text);
    assert_string_equal(text, "all");
    assert_false(dtp_targets_parse("q,w", &targets));
    assert_false(dtp_targets_parse("", &targets));
    uint32_t parameters;
    assert_true(dtp_parameters_parse("down+gate_up", &parameters)); /* in any order */
    assert_string_equal(dtp_parameters_text(parameters), "gate_up+down");
    assert_true(dtp_parameters_parse("none", &parameters));
    assert_int_equal(parameters, 0);
    assert_false(dtp_parameters_parse("down+up", &parameters));
    assert_false(dtp_parameters_parse("", &parameters));
    assert_true(dtp_base_parse("bf16", &base) && base == DTP_BASE_NONE);
    assert_true(dtp_base_parse("GPTQ", &base) && base == DTP_BASE_INT4);
    assert_false(dtp_base_parse("int3", &base));
    assert_string_equal(dtp_base_text(DTP_BASE_NF4_DOUBLE), "nf4-double");
}

/* Rank 16 on all seven: a layer has 16 (4 x (4096 + 4096) + 3 x (4096 + 11008)) = 16 x 78080 = 1,249,280 of them, 32
 * have 39,976,960 (the measured runs print the same). FLOPs of a token: 6,607,343,616 frozen weights that multiply it
 * take 4, adapters 6, attention 6 x 32 x 4096 x 2048. */
static void test_counts(void **state)
{
    (void)state;
    struct dtp_transformer t = llama();
    struct dtp_plan plan = adapted(16);
    struct dtp_trained_count count;
    char why[WHY_BYTES];
    assert_int_equal(resolve(&plan, &t, why), DTP_OK);
    dtp_plan_trained(&t, &plan, &count);
    assert_int_equal(count.adapters, 39976960);
    assert_int_equal(count.trained, 39976960);
    assert_int_equal(count.frozen, 6738415616);
    assert_int_equal(count.frozen_bytes, 2 * UINT64_C(6738415616));
    double attention = 6.0 * 32 * 4096 * 2048;
    assert_close(dtp_plan_model_flops_per_token(&t, &plan), 4 * 6607077376.0 + 6 * 39976960.0 + attention, 1);
    plan.adapters.train_ends = true; /* both tables of 32000 x 4096; the head multiplies */
    dtp_plan_trained(&t, &plan, &count);
    assert_int_equal(count.trained, 39976960 + 2 * 131072000);
    assert_close(dtp_plan_model_flops_per_token(&t, &plan),
                 4 * 6607077376.0 + 2 * 131072000.0 + 6 * 39976960.0 + attention, 1);
    plan = adapted(0);
    dtp_plan_trained(&t, &plan, &count);
    assert_int_equal(count.trained, 6738415616);
    assert_int_equal(count.frozen, 0);
}

/* A matrix of 4096 x 4096 = 2^24 weights. */
static void test_packed_bytes(void **state)
{
    (void)state;
    assert_int_equal(dtp_base_bytes(DTP_BASE_NONE, 4096, 4096, 2), 1 << 25);
    assert_int_equal(dtp_base_bytes(DTP_BASE_NF4, 4096, 4096, 2), (1 << 23) + 4 * (1 << 18));
    assert_int_equal(dtp_base_bytes(DTP_BASE_NF4_DOUBLE, 4096, 4096, 2), (1 << 23) + (1 << 18) + 4 * (1 << 10));
    assert_int_equal(dtp_base_bytes(DTP_BASE_INT8, 4096, 4096, 2), (1 << 24) + 4 * 4096);
    assert_int_equal(dtp_base_bytes(DTP_BASE_FP8, 4096, 4096, 2), (1 << 24) + 4);
    /* 4096 x 32 groups: 2 bytes of scale and half a byte of zero each; 4 bytes an input */
    assert_int_equal(dtp_base_bytes(DTP_BASE_INT4, 4096, 4096, 2), (1 << 23) + 2 * 131072 + 65536 + 4 * 4096);
    /* all layers' matrices are 6,476,005,376 weights: half a byte each, a byte for 64, 4 for 16384 */
    struct dtp_transformer t = llama();
    struct dtp_plan plan = adapted(16);
    struct dtp_trained_count count;
    char why[WHY_BYTES];
    plan.adapters.base = DTP_BASE_NF4;
    assert_int_equal(resolve(&plan, &t, why), DTP_OK);
    assert_int_equal(plan.adapters.base, DTP_BASE_NF4_DOUBLE); /* torchao packs scales */
    dtp_plan_trained(&t, &plan, &count);
    uint64_t packed = UINT64_C(6476005376) / 2 + UINT64_C(6476005376) / 64 + 4 * (UINT64_C(6476005376) / 16384);
    assert_int_equal(count.frozen_bytes, packed + 2 * (2 * UINT64_C(131072000) + 65 * 4096));
}

/* Of two weights torchao's operators move 38 + 14 c bytes and hold 2 (8 + 2 c): of 2^24 at c = 2, 33 and 12 each. */
static void test_unpacking(void **state)
{
    (void)state;
    struct dtp_transformer t = llama();
    struct dtp_plan plan = adapted(16);
    char why[WHY_BYTES];
    plan.adapters.base = DTP_BASE_NF4;
    assert_int_equal(resolve(&plan, &t, why), DTP_OK);
    struct dtp_unpacking eager = dtp_base_unpacking(&plan, 4096, 4096);
    assert_close(eager.bytes, 33.0 * (1 << 24), 0);
    assert_int_equal(eager.workspace_bytes, 12 * (1 << 24));
    plan.compile = true;
    struct dtp_unpacking fused = dtp_base_unpacking(&plan, 4096, 4096);
    assert_close(fused.bytes, (double)((1 << 23) + (1 << 18) + 4 * (1 << 10)) + 2.0 * (1 << 24), 0);
    assert_int_equal(fused.workspace_bytes, 0);
}

/* bitsandbytes', of as many: 2^23 packed and 2 x 2^24 made; scales of 2^18 blocks, 1 + 4 each and 4 for 256 of them,
 * shifted 4 + 4, read 4; without packed scales 4 each alone. */
static void test_unpacking_by_bitsandbytes(void **state)
{
    (void)state;
    struct dtp_transformer t = llama();
    struct dtp_plan plan = adapted(16);
    char why[WHY_BYTES];
    plan.runtime = dtp_runtime_find("peft");
    plan.adapters.base = DTP_BASE_NF4_DOUBLE;
    assert_int_equal(resolve(&plan, &t, why), DTP_OK);
    struct dtp_unpacking work = dtp_base_unpacking(&plan, 4096, 4096);
    assert_true(work.compares);
    assert_close(work.bytes, (double)((1 << 23) + (1 << 25) + 17 * (1 << 18) + 4 * (1 << 10)), 0);
    assert_int_equal(work.kernels, 3);
    assert_int_equal(work.workspace_bytes, 4 * (1 << 18));
    plan.adapters.base = DTP_BASE_NF4;
    work = dtp_base_unpacking(&plan, 4096, 4096);
    assert_true(work.compares);
    assert_close(work.bytes, (double)((1 << 23) + (1 << 25) + 4 * (1 << 18)), 0);
    assert_int_equal(work.kernels, 1);
    plan.adapters.base = DTP_BASE_INT4;
    assert_false(dtp_base_unpacking(&plan, 4096, 4096).compares);
}

/* A mixed recipe keeps the base as matmuls read it, adapters and their state in bf16 or, asked for, in fp32. */
static void test_formats(void **state)
{
    (void)state;
    struct dtp_transformer t = llama();
    struct dtp_plan plan = adapted(8);
    struct dtp_element_bytes bytes;
    char why[WHY_BYTES];
    assert_int_equal(resolve(&plan, &t, why), DTP_OK);
    assert_string_equal(dtp_precision_name(&plan.precision), "bf16-pure");
    dtp_element_bytes_count(&plan, &bytes);
    assert_int_equal(bytes.params, 2);
    assert_int_equal(bytes.grads, 2);
    assert_int_equal(bytes.optimizer, 4);
    plan = adapted(8);
    plan.adapters.dtype = DTP_FP32;
    assert_int_equal(resolve(&plan, &t, why), DTP_OK);
    dtp_element_bytes_count(&plan, &bytes);
    assert_int_equal(bytes.params, 2);
    assert_int_equal(bytes.grads, 4);
    assert_int_equal(bytes.optimizer, 8);
    plan = adapted(8); /* of a pure recipe, too: PyTorch's optimizers make moments like the parameter */
    plan.adapters.dtype = DTP_FP32;
    assert_true(dtp_precision_recipe("bf16-pure", &plan.precision));
    assert_int_equal(resolve(&plan, &t, why), DTP_OK);
    dtp_element_bytes_count(&plan, &bytes);
    assert_int_equal(bytes.grads, 4);
    assert_int_equal(bytes.optimizer, 8);
    plan = adapted(8);
    dtp_precision_recipe("fp32", &plan.precision);
    if (resolve(&plan, &t, why) != DTP_OK)
        fail_msg("%s", why);
    assert_int_equal(plan.adapters.dtype, DTP_FP32);
}

/* Beside fp32 adapters a mixed recipe and a pure one leave the same formats, and are told apart where linears cast what
 * adapters read: resolved once more, and with the base said to be in 16 bits, each stays what it is. */
static void test_recipes_stay_apart(void **state)
{
    (void)state;
    struct dtp_transformer t = llama();
    static const char *const mixed[] = {"bf16-mixed", "fp16-mixed"}, *const pure[] = {"bf16", "bf16-pure"};
    char why[WHY_BYTES];
    for (int i = 0; i < 2; i++) {
        struct dtp_plan plan = adapted(8);
        plan.adapters.dtype = DTP_FP32;
        assert_true(dtp_precision_recipe(mixed[i], &plan.precision));
        struct dtp_plan narrow = plan, other = plan;
        assert_int_equal(resolve(&other, &t, why), DTP_OK); /* torch's linears cast nothing */
        assert_false(other.precision.autocast || dtp_plan_widens_adapters(&other));
        plan.runtime = narrow.runtime = other.runtime = dtp_runtime_find("peft");
        narrow.precision.params = narrow.precision.master = plan.precision.compute;
        for (int again = 0; again < 2; again++) {
            assert_int_equal(resolve(&plan, &t, why), DTP_OK);
            assert_int_equal(resolve(&narrow, &t, why), DTP_OK);
            assert_string_equal(dtp_precision_name(&plan.precision), mixed[i]);
            assert_string_equal(dtp_precision_name(&narrow.precision), mixed[i]);
            assert_false(dtp_plan_widens_adapters(&plan) || dtp_plan_widens_adapters(&narrow));
        }
        assert_true(dtp_precision_recipe(pure[i], &other.precision));
        for (int again = 0; again < 2; again++) {
            assert_int_equal(resolve(&other, &t, why), DTP_OK);
            assert_string_equal(dtp_precision_name(&other.precision), "custom");
            assert_true(dtp_plan_widens_adapters(&other));
            assert_int_equal(other.precision.moments, DTP_FP32);
        }
    }
}

static void test_refusals(void **state)
{
    (void)state;
    struct dtp_transformer t = llama();
    struct dtp_plan plan = adapted(0);
    char why[WHY_BYTES];
    plan.adapters.base = DTP_BASE_NF4;
    assert_int_equal(resolve(&plan, &t, why), DTP_BAD_INPUT);
    assert_non_null(strstr(why, "adapters (lora) only"));
    plan = adapted(8192);
    assert_int_equal(resolve(&plan, &t, why), DTP_BAD_INPUT);
    assert_non_null(strstr(why, "is rank 8192"));
    plan = adapted(16);
    plan.runtime = &dtp_runtime_megatron, plan.strategy = DTP_ZERO1, plan.adapters.train_ends = true;
    assert_int_equal(resolve(&plan, &t, why), DTP_BAD_INPUT);
    assert_non_null(strstr(why, "not modelled under runtime megatron"));
    plan = adapted(16);
    plan.adapters.dropout = 1;
    assert_int_equal(resolve(&plan, &t, why), DTP_BAD_INPUT);
    assert_non_null(strstr(why, "lora_dropout"));
    plan = adapted(16);
    t.activation = DTP_GELU;
    plan.adapters.targets = 1u << DTP_TARGET_GATE;
    assert_int_equal(resolve(&plan, &t, why), DTP_BAD_INPUT);
    assert_non_null(strstr(why, "no gate"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_words),
                                       cmocka_unit_test(test_counts),
                                       cmocka_unit_test(test_packed_bytes),
                                       cmocka_unit_test(test_unpacking),
                                       cmocka_unit_test(test_unpacking_by_bitsandbytes),
                                       cmocka_unit_test(test_formats),
                                       cmocka_unit_test(test_recipes_stay_apart),
                                       cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
