/* Lists and ranges of flags: what they become, what is refused, and in which order they are combined. */
#include "job/axes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "lib/scenario_fixture.h"

static struct dtp_catalog catalog;
static struct dtp_faults faults;

static enum dtp_status add(struct dtp_axes *axes, const char *key, const char *text)
{
    faults.count = 0;
    faults.status = DTP_OK;
    return dtp_axes_add(axes, &catalog, key, text, "command line", &faults);
}

/* The values of one axis with spaces between. */
static const char *values_of(const char *key, const char *text)
{
    static char out[4096];
    struct dtp_axes axes = {0};
    out[0] = '\0';
    if (add(&axes, key, text) == DTP_OK)
        for (size_t i = 0; i < axes.axes[0].count; i++)
            snprintf(out + strlen(out), sizeof out - strlen(out), "%s%s", i ? " " : "", axes.axes[0].values[i]);
    dtp_axes_release(&axes);
    return out;
}

static void test_values(void **state)
{
    (void)state;
    assert_string_equal(values_of("gpus", "8"), "8");
    assert_string_equal(values_of("gpus", "8,16,2"), "8 16 2");
    assert_string_equal(values_of("gpus", "8..64x2"), "8 16 32 64");
    assert_string_equal(values_of("gpus", "8..63x2"), "8 16 32");
    assert_string_equal(values_of("micro-batch", "1..4"), "1 2 3 4");
    assert_string_equal(values_of("micro_batch", "1..9+4,2"), "1 5 9 2");
    assert_string_equal(values_of("seq", "2k..8kx2"), "2048 4096 8192");
    assert_string_equal(values_of("seq", "1k..3k+1k"), "1024 2048 3072");
    assert_string_equal(values_of("price", "0.1..0.5+0.1"), "0.1 0.2 0.3 0.4 0.5"); /* 0.1 is no binary fraction */
    assert_string_equal(values_of("gpus", "1..1000x10"), "1 10 100 1000");          /* nor is log 10 */
    assert_string_equal(values_of("params", "1e9..4e9x2"), "1000000000 2000000000 4000000000");
    assert_string_equal(values_of("params", "7B,1e+9"), "7B 1e+9");
    assert_string_equal(values_of("compile", "true,false"), "true false");
    assert_string_equal(values_of("offload", "all"), "none optimizer params nvme");
    assert_string_equal(values_of("checkpointing", "all"), "none full selective selective-attention");
    assert_string_equal(values_of("strategy", "all"), "ddp zero1 zero2 zero3 full_shard shard_grad_op hybrid_shard");
    assert_string_equal(values_of("gpu", "any"), "h100-sxm v100-sxm");
    assert_string_equal(values_of("name", "a, b..c"), "a, b..c"); /* a label is one text */
    assert_string_equal(values_of("ddp_bucket_mib", "25..100x2"), "25 50 100");
}

static void test_refused(void **state)
{
    static const struct {
        const char *key, *text, *says;
    } cases[] = {{"gpus", "", "is not a whole number"},
                 {"gpus", "8,", "has an empty item"},
                 {"gpus", "64..8", "goes down"},
                 {"gpus", "8..64x1", "factor above 1"},
                 {"gpus", "0..64x2", "first end above 0"},
                 {"gpus", "8..64+0", "step above 0"},
                 {"gpus", "8..64x", "step that is no number"},
                 {"gpus", "8..64x-2", "factor above 1"},
                 {"gpus", "..", "no range of numbers"},
                 {"gpus", "8..nan", "no range of numbers"},
                 {"gpus", "1..1e6", "more than 100000 values"},
                 {"gpus", "1..1e300", "more than 100000 values"},
                 {"gpus", "1..1000000x1.0000001", "more than 100000 values"},
                 {"gpus", "1..10x1.5", "is not a whole number"},
                 {"gpus", "8,16,8", "is there twice"},
                 {"gpus", "1..3,2", "is there twice"},
                 {"gpus", ",", "',' has an empty item"},
                 {"gpus", "8,,16", "'8,,16' has an empty item"},
                 {"gpus", "999999..1000001", "is not a whole number"},
                 {"gpus", "all", "is no value of this key"},
                 {"strategy", "ddp,zero9", "is not one of"},
                 {"strategy", "ddp..zero3", "is not"},
                 {"gpu", "h100-sxm,h900", "unknown GPU 'h900'"},
                 {"model", "llama-2-7b,nothing", "unknown model"},
                 {"colour", "red", "unknown key"},
                 {"price", "1..2+1e-9", "more than 100000 values"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dtp_axes axes = {0};
        assert_int_equal(add(&axes, cases[i].key, cases[i].text), DTP_BAD_INPUT);
        if (!strstr(faults.text[0], cases[i].says))
            fail_msg("%s %s: %s", cases[i].key, cases[i].text, faults.text[0]);
        assert_int_equal(axes.count, 0);
        dtp_axes_release(&axes);
    }
}

/* A range of a thousand characters, and one item too many after ranges that fit. */
static void test_refused_long(void **state)
{
    char text[1200];
    struct dtp_axes axes = {0};
    (void)state;
    memset(text, '1', sizeof text);
    memcpy(text + 500, "..", 2);
    text[sizeof text - 1] = '\0';
    assert_int_equal(add(&axes, "gpus", text), DTP_BAD_INPUT);
    assert_int_equal(add(&axes, "micro_batch", "1..99999,100000,200000"), DTP_BAD_INPUT);
    assert_int_equal(add(&axes, "micro_batch", "1..99999,200000"), DTP_OK);
    dtp_axes_release(&axes);
}

static void test_product(void **state)
{
    struct dtp_axes axes = {0};
    struct dtp_scenario *scenario;
    uint64_t count;
    (void)state;
    assert_int_equal(add(&axes, "gpus", "8,16"), DTP_OK);
    assert_int_equal(add(&axes, "params", "7B"), DTP_OK);
    assert_int_equal(add(&axes, "micro_batch", "1..3"), DTP_OK);
    assert_int_equal(add(&axes, "gpus", "8,16,32"), DTP_OK); /* replaces: a later flag overrides */
    assert_int_equal(dtp_axes_count(&axes, &count, &faults), DTP_OK);
    assert_int_equal(count, 9);
    assert_int_equal(dtp_scenario_create(&scenario, &faults), DTP_OK);
    static const char *const gpus[] = {"8", "16", "32"}, *const batches[] = {"1", "2", "3"};
    for (uint64_t i = 0; i < count; i++) { /* the last axis varies fastest */
        assert_int_equal(dtp_axes_apply(&axes, i, i > 0, scenario, &faults), DTP_OK);
        assert_string_equal(dtp_scenario_get(scenario, "gpus"), gpus[i / 3]);
        assert_string_equal(dtp_scenario_get(scenario, "micro_batch"), batches[i % 3]);
        assert_string_equal(dtp_scenario_get(scenario, "params"), "7B");
    }
    dtp_scenario_destroy(scenario);
    dtp_axes_release(&axes);
}

/* 1e5 values of five keys are 1e25 combinations: refused from the counts, in double and without overflow. */
static void test_too_many(void **state)
{
    struct dtp_axes axes = {0};
    uint64_t count;
    (void)state;
    static const char *const keys[] = {"gpus", "micro_batch", "accumulate", "seq", "layers"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        assert_int_equal(add(&axes, keys[i], "1..100000"), DTP_OK);
    assert_int_equal(dtp_axes_count(&axes, &count, &faults), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "100000 gpus x 100000 micro_batch"));
    assert_non_null(strstr(faults.text[0], "1e+25 combinations"));
    dtp_axes_release(&axes);
}

static int make_catalog(void **state)
{
    (void)state;
    catalog = fixture_catalog();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_values), cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_refused_long), cmocka_unit_test(test_product),
                                       cmocka_unit_test(test_too_many)};
    return cmocka_run_group_tests(tests, make_catalog, NULL);
}
