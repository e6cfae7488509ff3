/* What a rank has of a model and which ranks have the same, counted by hand. */
#include "plan/slice.h"

#include "plan/rules.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>

static const struct dtp_runtime divides = {.name = "divides"}, leaves = {.name = "leaves", .whole_vocab = true};

static struct dtp_plan plan_of(uint32_t tp, uint32_t cp, uint32_t pp, uint32_t shard_group)
{
    struct dtp_plan plan = dtp_plan_unchosen();
    plan.runtime = &divides;
    plan.tp = tp;
    plan.cp = cp;
    plan.pp = pp;
    plan.shard_group = shard_group;
    return plan;
}

/* 32 heads and 8 key/value heads over 4 ranks are 8 and 2; over 16 ranks each key/value head exists twice; 50257 rows
 * of the vocabulary are 12565 on the fullest of 4. */
static void test_slice(void **state)
{
    (void)state;
    struct dtp_transformer whole = {
        .layers = 24, .hidden = 4096, .heads = 32, .kv_heads = 8, .head_dim = 128, .ffn = 14336, .vocab = 50257};
    struct dtp_plan plan = plan_of(4, 1, 1, 1);
    struct dtp_transformer slice = dtp_plan_slice(&whole, &plan);
    assert_int_equal(slice.heads, 8);
    assert_int_equal(slice.kv_heads, 2);
    assert_int_equal(slice.ffn, 3584);
    assert_int_equal(slice.vocab, 12565);
    plan.runtime = &leaves; /* AutoTP, unless Megatron's layers divide themselves */
    assert_int_equal(dtp_plan_slice(&whole, &plan).vocab, 50257);
    plan.deepspeed.megatron_layers = true;
    assert_int_equal(dtp_plan_slice(&whole, &plan).vocab, 12565);
    assert_int_equal(slice.hidden, 4096);
    assert_int_equal(slice.layers, 24);
    assert_int_equal(slice.head_dim, 128);
    plan.tp = 16;
    slice = dtp_plan_slice(&whole, &plan);
    assert_int_equal(slice.heads, 2);
    assert_int_equal(slice.kv_heads, 1);
    plan.tp = 1;
    slice = dtp_plan_slice(&whole, &plan);
    whole.expert_tensor_ranks = 1;
    whole.expert_ranks = 1; /* all experts are on each rank */
    whole.ahead_ranks = 1;  /* and all of a module that predicts further ahead */
    assert_memory_equal(&slice, &whole, sizeof whole);
}

static void check_group(const struct dtp_plan *plan, uint32_t gpus, unsigned axes, uint32_t ranks, uint32_t stride)
{
    struct dtp_cluster cluster = {.gpus = gpus, .gpus_per_node = 8, .nodes = gpus / 8};
    struct dtp_stretch group = dtp_plan_group(plan, &cluster, axes);
    assert_int_equal(group.size, ranks);
    assert_int_equal(group.stride, stride);
}

/* 128 GPUs as tp 4, cp 2, 8 data parallel ranks and 2 stages: ranks 0 to 3 share a layer, 0 and 4 a sequence, 0, 4, 8
 * ... 60 sum their gradients, 0 and 64 are the stages. */
static void test_groups(void **state)
{
    (void)state;
    struct dtp_plan plan = plan_of(4, 2, 2, 16);
    check_group(&plan, 128, DTP_AXES(TP), 4, 1);
    check_group(&plan, 128, DTP_AXES(CP), 2, 4);
    check_group(&plan, 128, DTP_AXES_DENSE_DATA, 16, 4);
    check_group(&plan, 128, DTP_AXES(PP), 2, 64);
    plan = plan_of(1, 1, 1, 128);
    check_group(&plan, 128, DTP_AXES_DENSE_DATA, 128, 1);
    check_group(&plan, 128, DTP_AXES(TP), 1, 1);
}

/* Of a hybrid, shards of 8 are neighbours among those with the same slice, replicas 8 of these apart. */
static void test_hybrid(void **state)
{
    (void)state;
    struct dtp_plan plan = plan_of(2, 1, 1, 8);
    check_group(&plan, 64, DTP_AXES(DP_SHARD), 8, 2);
    check_group(&plan, 64, DTP_AXES(DP_REPLICATE), 4, 16);
    check_group(&plan, 64, DTP_AXES_DENSE_DATA, 32, 2);
    struct dtp_cluster cluster = {.gpus = 64, .gpus_per_node = 8, .nodes = 8};
    assert_int_equal(dtp_plan_data_ranks(&plan, &cluster), 32);
    plan.cp = 4;
    assert_int_equal(dtp_plan_data_ranks(&plan, &cluster), 8); /* with sequences of their own */
    assert_int_equal(dtp_plan_gradient_ranks(&plan, &cluster), 32);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_slice), cmocka_unit_test(test_groups),
                                       cmocka_unit_test(test_hybrid)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
