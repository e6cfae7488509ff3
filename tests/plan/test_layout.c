#include "plan/layout.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct dtp_layout layout_of(const char *order, uint32_t tp, uint32_t cp, uint32_t shard, uint32_t replicate,
                                   uint32_t pp)
{
    struct dtp_layout layout = dtp_layout_default();
    const uint32_t sizes[DTP_AXIS_COUNT] = {tp, cp, shard, replicate, pp};
    assert_true(!order || dtp_layout_parse_order(order, &layout));
    memcpy(layout.size, sizes, sizeof sizes);
    return layout;
}

/* The i-th member of the first group. */
static uint32_t member_of(const struct dtp_rank_group *group, uint32_t i)
{
    uint32_t rank = 0;
    for (uint32_t k = 0; k < group->stretch_count; i /= group->stretches[k++].size)
        rank += i % group->stretches[k].size * group->stretches[k].stride;
    return rank;
}

static void expect_members(struct dtp_rank_group group, size_t count, const uint32_t *members)
{
    assert_int_equal(group.size, count);
    for (uint32_t i = 0; i < count; i++)
        assert_int_equal(member_of(&group, i), members[i]);
}
#define MEMBERS(...)                                                                                                   \
    sizeof((uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t), (uint32_t[])                                                 \
    {                                                                                                                  \
        __VA_ARGS__                                                                                                    \
    }

/* ---- by hand ----------------------------------------------------------------------------------------------------- */

/* Megatron-LM's own example: 16 GPUs, tp 2, pp 4, so dp 2: tensor parallel [0 1] [2 3] ..., data parallel [0 2] [1 3]
 * [4 6] ..., pipelines [0 4 8 12] [1 5 9 13] ... (core/parallel_state.py, initialize_model_parallel). */
static void test_megatrons_example(void **state)
{
    (void)state;
    const struct dtp_layout layout = layout_of(NULL, 2, 1, 2, 1, 4);
    expect_members(dtp_layout_group(&layout, DTP_AXES(TP)), MEMBERS(0, 1));
    expect_members(dtp_layout_group(&layout, DTP_AXES(DP_SHARD)), MEMBERS(0, 2));
    expect_members(dtp_layout_group(&layout, DTP_AXES(PP)), MEMBERS(0, 4, 8, 12));
    expect_members(dtp_layout_group(&layout, DTP_AXES_DENSE_DATA), MEMBERS(0, 2));
    expect_members(dtp_layout_group(&layout, 0), MEMBERS(0));
    struct dtp_rank_group group = dtp_layout_group(&layout, DTP_AXES(TP) | DTP_AXES(DP_SHARD));
    expect_members(group, MEMBERS(0, 1, 2, 3)); /* neighbours in the order: one stretch */
    assert_int_equal(group.stretch_count, 1);
    group = dtp_layout_group(&layout, DTP_AXES(TP) | DTP_AXES(PP));
    expect_members(group, MEMBERS(0, 1, 4, 5, 8, 9, 12, 13));
    assert_int_equal(group.stretch_count, 2);
    assert_int_equal(group.stretches[1].stride, 4);
}

/* tp 2 x cp 2 x dp 4 in 2 stages: 16 ranks a stage as etp 1 x ep 8 x edp 2. */
static void test_experts_are_folded_into_a_stage(void **state)
{
    (void)state;
    struct dtp_layout layout = layout_of(NULL, 2, 2, 4, 1, 2);
    layout.size[DTP_AXIS_EP] = 8, layout.size[DTP_AXIS_EDP] = 2;
    expect_members(dtp_layout_group(&layout, DTP_AXES(EP)), MEMBERS(0, 1, 2, 3, 4, 5, 6, 7));
    expect_members(dtp_layout_group(&layout, DTP_AXES(EDP)), MEMBERS(0, 8));
    layout = layout_of("tp-pp-dp", 2, 1, 4, 1, 2); /* stage 0: 0 1 4 5 8 9 12 13 */
    layout.size[DTP_AXIS_EP] = 4, layout.size[DTP_AXIS_EDP] = 2;
    expect_members(dtp_layout_group(&layout, DTP_AXES(EP)), MEMBERS(0, 1, 4, 5));
    expect_members(dtp_layout_group(&layout, DTP_AXES(EDP)), MEMBERS(0, 8));
}

static void test_orders(void **state)
{
    (void)state;
    char text[64];
    struct dtp_layout layout = dtp_layout_default();
    assert_string_equal(dtp_layout_order_text(&layout, text, sizeof text), "tp-cp-dp_shard-dp_replicate-pp");
    assert_true(dtp_layout_parse_order("pp-tp", &layout));
    assert_string_equal(dtp_layout_order_text(&layout, text, sizeof text), "pp-tp-cp-dp_shard-dp_replicate");
    assert_true(dtp_layout_parse_order("tp-pp-dp", &layout));
    assert_string_equal(dtp_layout_order_text(&layout, text, sizeof text), "tp-pp-dp_shard-dp_replicate-cp");
    static const char *const none[] = {"tp-pq", "tp-dp-dp_shard", "tp--pp", ""};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        assert_false(dtp_layout_parse_order(none[i], &layout));
}

/* ---- over random meshes ------------------------------------------------------------------------------------------ */

static uint64_t random_state = 9;

static void next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
}

static uint32_t draw(uint32_t below)
{
    next_random(&random_state);
    return (uint32_t)(random_state >> 33) % below;
}

static struct dtp_layout random_layout(void)
{
    struct dtp_layout layout = dtp_layout_default();
    for (int i = DTP_AXIS_COUNT - 1; i > 0; i--) {
        uint32_t k = draw((uint32_t)i + 1);
        enum dtp_mesh_axis axis = layout.order[i];
        layout.order[i] = layout.order[k];
        layout.order[k] = axis;
    }
    for (int i = 0; i < DTP_AXIS_COUNT; i++)
        layout.size[i] = 1 + draw(4);
    return layout;
}

/* Members are the ranks whose coordinates along the other axes are 0, in the order of ranks. */
static void check_group(const struct dtp_layout *layout, unsigned axes)
{
    const struct dtp_rank_group group = dtp_layout_group(layout, axes);
    uint32_t ranks = 1, found = 0;
    for (int axis = 0; axis < DTP_AXIS_COUNT; axis++)
        ranks *= layout->size[axis];
    for (uint32_t rank = 0; rank < ranks; rank++) {
        bool member = true;
        uint32_t rest = rank;
        for (int i = 0; i < DTP_AXIS_COUNT; rest /= layout->size[layout->order[i++]])
            member = member && (axes & 1u << layout->order[i] || rest % layout->size[layout->order[i]] == 0);
        if (member)
            assert_int_equal(member_of(&group, found++), rank);
    }
    assert_int_equal(group.size, found);
}

static void test_random_meshes(void **state)
{
    (void)state;
    for (int i = 0; i < 600; i++) {
        const struct dtp_layout layout = random_layout();
        for (unsigned axes = 0; axes < 1u << DTP_AXIS_COUNT; axes += 1 + draw(5))
            check_group(&layout, axes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_megatrons_example),
        cmocka_unit_test(test_experts_are_folded_into_a_stage),
        cmocka_unit_test(test_orders),
        cmocka_unit_test(test_random_meshes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
