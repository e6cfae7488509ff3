/* DeepSpeed's buckets and what stands while one is reduced, by hand. */
#include "runtime/deepspeed/deepspeed_buckets.h"
#include "runtime/runtimes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "lib/hardware.h"

#define ELEMENTS 1000

static const struct dtp_deepspeed_part small = {300, 300, 75, 1, 30, 10}, large = {1200, 1200, 300, 1, 40, 30},
                                       vectors = {20, 10, 6, 2, 0, 0};

static struct dtp_plan plan_of(enum dtp_strategy strategy)
{
    struct dtp_plan plan = dtp_plan_default();
    plan.runtime = &dtp_runtime_deepspeed, plan.strategy = strategy;
    plan.deepspeed.reduce_bucket_size = ELEMENTS, plan.accumulate = 1;
    return plan;
}

static struct dtp_buckets begin(const struct dtp_plan *plan, const struct dtp_cluster *cluster)
{
    struct dtp_transformer t = dtp_transformer_default();
    t.hidden = 10, t.ffn = 40, t.heads = t.kv_heads = 1, t.head_dim = 10, t.vocab = 50; /* largest: 500 elements */
    struct dtp_buckets buckets;
    dtp_buckets_begin(&buckets, &t, cluster, plan, 4, 8000, 2);
    return buckets;
}

/* Three of 300 fit, the fourth does not: 900 are flattened into a copy while it stands. This rank's partition, 8000 /
 * 4, is made of the first bucket, when nothing oversized is there, and stands from then on. */
static void test_stage_two(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 4, 4);
    struct dtp_plan plan = plan_of(DTP_ZERO2);
    struct dtp_buckets b = begin(&plan, &cluster);
    struct dtp_bucket_close close;
    for (int i = 0; i < 3; i++)
        assert_false(dtp_buckets_add(&b, &small, &close));
    assert_true(dtp_buckets_add(&b, &small, &close));
    assert_true(close.copied == 900 && close.next == 300 && close.partition == 2000 && close.carried == 0);
    assert_int_equal(close.bytes, 2 * (900 + 300 + 2000));
    /* one larger than a bucket: it stands while what was before it is reduced, and beside its own copy */
    assert_true(dtp_buckets_add(&b, &large, &close));
    assert_true(close.copied == 300 && close.next == 1200);
    assert_true(dtp_buckets_end(&b, &close));
    assert_true(close.copied == 1200 && close.next == 1200);
    assert_int_equal(b.count, 3);
    assert_false(dtp_buckets_end(&b, &close));
}

/* Stage 1 keeps all that were made: 1200 when the fourth is. Of several micro-steps those stand anyway. */
static void test_stage_one(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 4, 4);
    struct dtp_plan plan = plan_of(DTP_ZERO1);
    struct dtp_bucket_close close;
    for (plan.accumulate = 1; plan.accumulate < 3; plan.accumulate++) {
        struct dtp_buckets b = begin(&plan, &cluster);
        for (int i = 0; i < 3; i++)
            assert_false(dtp_buckets_add(&b, &small, &close));
        assert_true(dtp_buckets_add(&b, &small, &close));
        assert_true(close.copied == 900 && close.next == 0 && close.partition == 0);
        assert_int_equal(close.made, plan.accumulate == 1 ? 1200 : 0);
    }
}

/* Stage 3 copies side by side by rank, padding included, but one tensor that four ranks divide evenly. With offload 75
 * elements of 300 go down in fp32, of larger buckets what the largest tensor has of a rank: 500 / 4. */
static void test_stage_three(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 4, 4);
    struct dtp_plan plan = plan_of(DTP_ZERO3);
    plan.offload = DTP_OFFLOAD_OPTIMIZER;
    struct dtp_buckets b = begin(&plan, &cluster);
    struct dtp_bucket_close close;
    assert_false(dtp_buckets_add(&b, &small, &close));
    assert_false(dtp_buckets_add(&b, &vectors, &close));
    assert_true(dtp_buckets_add(&b, &large, &close));
    assert_true(close.copied == 4 * (75 + 6) && close.next == 1200 && close.carried == 75 + 6);
    assert_true(dtp_buckets_end(&b, &close)); /* oversized, alone and even: where it is, on its way down */
    assert_true(close.copied == 0 && close.next == 1200 && close.carried == 125);
    assert_int_equal(close.bytes, 2 * 1200 + 4 * 125);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_stage_two), cmocka_unit_test(test_stage_one),
                                       cmocka_unit_test(test_stage_three)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
