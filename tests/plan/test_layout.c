#include "plan/layout.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct dtp_faults faults;

static struct dtp_layout layout_of(const char *order, uint32_t tp, uint32_t cp, uint32_t shard, uint32_t replicate,
                                   uint32_t pp)
{
    struct dtp_layout layout = dtp_layout_default();
    const uint32_t sizes[DTP_AXIS_COUNT] = {tp, cp, shard, replicate, pp};
    if (order && dtp_layout_parse_order(order, &layout, &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
    memcpy(layout.size, sizes, sizeof sizes);
    return layout;
}

static void resolve(struct dtp_layout *layout)
{
    if (dtp_layout_resolve(layout, dtp_layout_ranks(layout), &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
}

static void expect_said(enum dtp_status status, const char *part)
{
    assert_int_equal(status, DTP_BAD_INPUT);
    if (!strstr(faults.text[0], part))
        fail_msg("'%s' is not said but '%s'", part, faults.text[0]);
    faults = (struct dtp_faults){0};
}

static void expect_members(const struct dtp_rank_group *group, size_t count, const uint32_t *members)
{
    assert_int_equal(group->size, count);
    for (uint32_t i = 0; i < count; i++)
        assert_int_equal(dtp_rank_group_member(group, i), members[i]);
}
#define MEMBERS(...)                                                                                                   \
    sizeof((uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t), (uint32_t[])                                                 \
    {                                                                                                                  \
        __VA_ARGS__                                                                                                    \
    }

/* ---- by hand
 * --------------------------------------------------------------------------------------------------------- */

/* Megatron-LM's own example: 16 GPUs, tp 2, pp 4, so dp 2: tensor parallel [0 1] [2 3] ..., data parallel [0 2] [1 3]
 * [4 6] ..., pipelines [0 4 8 12] [1 5 9 13] ... (core/parallel_state.py, initialize_model_parallel). */
static void test_megatrons_example(void **state)
{
    (void)state;
    struct dtp_layout layout = layout_of(NULL, 2, 1, 2, 1, 4);
    resolve(&layout);
    struct dtp_rank_group group = dtp_layout_group(&layout, DTP_AXES(TP), 3);
    expect_members(&group, MEMBERS(2, 3));
    group = dtp_layout_group(&layout, DTP_AXES(DP_SHARD), 3);
    expect_members(&group, MEMBERS(1, 3));
    group = dtp_layout_group(&layout, DTP_AXES(PP), 9);
    expect_members(&group, MEMBERS(1, 5, 9, 13));
    group = dtp_layout_group(&layout, DTP_AXES_DENSE_DATA, 14);
    expect_members(&group, MEMBERS(12, 14));
    group = dtp_layout_group(&layout, DTP_AXES(TP) | DTP_AXES(DP_SHARD), 6); /* neighbours in the order: one stretch */
    expect_members(&group, MEMBERS(4, 5, 6, 7));
    assert_int_equal(group.stretch_count, 1);
    group = dtp_layout_group(&layout, DTP_AXES(TP) | DTP_AXES(PP), 2);
    expect_members(&group, MEMBERS(2, 3, 6, 7, 10, 11, 14, 15));
    assert_int_equal(group.stretch_count, 2);
    assert_int_equal(group.stretches[1].stride, 4);
    group = dtp_layout_group(&layout, 0, 11);
    expect_members(&group, MEMBERS(11));
}

/* tp 2 x cp 2 x dp 4 in 2 stages: 16 ranks a stage as etp 1 x ep 8 x edp 2. */
static void test_experts_are_folded_into_a_stage(void **state)
{
    (void)state;
    struct dtp_layout layout = layout_of(NULL, 2, 2, 4, 1, 2);
    layout.size[DTP_AXIS_EP] = 8;
    layout.size[DTP_AXIS_EDP] = 0;
    resolve(&layout);
    assert_int_equal(layout.size[DTP_AXIS_EDP], 2);
    struct dtp_rank_group group = dtp_layout_group(&layout, DTP_AXES(EP), 20);
    expect_members(&group, MEMBERS(16, 17, 18, 19, 20, 21, 22, 23));
    group = dtp_layout_group(&layout, DTP_AXES(EDP), 29);
    expect_members(&group, MEMBERS(21, 29));
    layout = layout_of("tp-pp-dp", 2, 1, 4, 1, 2); /* stage 0: 0 1 4 5 8 9 12 13 */
    layout.size[DTP_AXIS_EP] = 4;
    layout.size[DTP_AXIS_EDP] = 0;
    resolve(&layout);
    group = dtp_layout_group(&layout, DTP_AXES(EP), 12);
    expect_members(&group, MEMBERS(8, 9, 12, 13));
    group = dtp_layout_group(&layout, DTP_AXES(EDP), 7);
    expect_members(&group, MEMBERS(7, 15));
}

static void test_orders(void **state)
{
    (void)state;
    char text[64];
    struct dtp_layout layout = dtp_layout_default();
    assert_string_equal(dtp_layout_order_text(&layout, text, sizeof text), "tp-cp-dp_shard-dp_replicate-pp");
    assert_int_equal(dtp_layout_parse_order("pp-tp", &layout, &faults), DTP_OK);
    assert_string_equal(dtp_layout_order_text(&layout, text, sizeof text), "pp-tp-cp-dp_shard-dp_replicate");
    assert_int_equal(dtp_layout_parse_order("tp-pp-dp", &layout, &faults), DTP_OK);
    assert_string_equal(dtp_layout_order_text(&layout, text, sizeof text), "tp-pp-dp_shard-dp_replicate-cp");
    expect_said(dtp_layout_parse_order("tp-pq", &layout, &faults), "order: 'pq' is no axis of ranks");
    expect_said(dtp_layout_parse_order("tp-dp-dp_shard", &layout, &faults), "'dp_shard' is named twice");
    expect_said(dtp_layout_parse_order("tp--pp", &layout, &faults), "'' is no axis of ranks");
    expect_said(dtp_layout_parse_order("", &layout, &faults), "'' is no axis of ranks");
}

static void test_sizes_are_refused(void **state)
{
    (void)state;
    struct dtp_layout layout = layout_of(NULL, 8, 1, 3, 1, 2);
    expect_said(dtp_layout_resolve(&layout, 64, &faults),
                "tp 8 x cp 1 x dp_shard 3 x dp_replicate 1 x pp 2 are not the 64 ranks of the job");
    layout = layout_of(NULL, 8, 0, 3, 1, 2);
    expect_said(dtp_layout_resolve(&layout, 48, &faults), "cp: is 0");
    layout = layout_of(NULL, 65536, 65536, 65536, 65536, 1);
    expect_said(dtp_layout_resolve(&layout, 0, &faults), "are not the 0 ranks");
    layout = layout_of(NULL, 2, 1, 6, 1, 1);
    layout.size[DTP_AXIS_EP] = 8;
    expect_said(dtp_layout_resolve(&layout, 12, &faults), "etp 1 x ep 8 does not divide the 12 ranks of a stage");
    layout.size[DTP_AXIS_EP] = 4;
    layout.size[DTP_AXIS_EDP] = 2;
    expect_said(dtp_layout_resolve(&layout, 12, &faults), "edp 3 would be");
    layout = layout_of("tp-cp-pp-dp", 2, 3, 4, 1, 2);
    layout.size[DTP_AXIS_EP] = 4; /* 0 1 2 3, then 4 5 | 6 7, which pp's other stage comes between */
    layout.size[DTP_AXIS_EDP] = 0;
    expect_said(dtp_layout_resolve(&layout, 48, &faults), "put pp last");
}

/* ---- over random meshes
 * ---------------------------------------------------------------------------------------------- */

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
    if (draw(2)) {
        layout.size[DTP_AXIS_ETP] = 1 + draw(3);
        layout.size[DTP_AXIS_EP] = 1 + draw(6);
        layout.size[DTP_AXIS_EDP] = 0;
    }
    return layout;
}

/* Members differ in the group's axes alone, come in the order of ranks, and each finds the same group. */
static void check_group(const struct dtp_layout *layout, unsigned axes, uint32_t rank)
{
    struct dtp_rank_group group = dtp_layout_group(layout, axes, rank);
    uint32_t size = 1, mine[DTP_AXIS_ALL_COUNT], theirs[DTP_AXIS_ALL_COUNT];
    bool found = false, experts = axes >> DTP_AXIS_COUNT;
    for (int axis = 0; axis < DTP_AXIS_ALL_COUNT; axis++)
        size *= axes & (1u << axis) ? layout->size[axis] : 1;
    assert_int_equal(group.size, size);
    dtp_layout_coordinates(layout, rank, mine);
    for (uint32_t i = 0; i < group.size; i++) {
        uint32_t member = dtp_rank_group_member(&group, i);
        struct dtp_rank_group same = dtp_layout_group(layout, axes, member);
        assert_true(i == 0 || member > dtp_rank_group_member(&group, i - 1));
        assert_memory_equal(&same, &group, sizeof group);
        dtp_layout_coordinates(layout, member, theirs);
        for (int axis = experts ? (int)DTP_AXIS_ETP : 0;
             axis < (experts ? (int)DTP_AXIS_ALL_COUNT : (int)DTP_AXIS_COUNT); axis++)
            assert_true((axes & (1u << axis)) || mine[axis] == theirs[axis]);
        assert_int_equal(mine[DTP_AXIS_PP] == theirs[DTP_AXIS_PP],
                         experts || !(axes & DTP_AXES(PP)) || mine[DTP_AXIS_PP] == theirs[DTP_AXIS_PP]);
        found = found || member == rank;
    }
    assert_true(found);
}

static void test_random_meshes(void **state)
{
    (void)state;
    int resolved = 0, folded = 0;
    for (int i = 0; i < 600; i++) {
        struct dtp_layout layout = random_layout();
        struct dtp_faults own = {0};
        if (dtp_layout_resolve(&layout, dtp_layout_ranks(&layout), &own) != DTP_OK)
            continue;
        bool experts = layout.size[DTP_AXIS_EP] * layout.size[DTP_AXIS_ETP] > 1;
        resolved++;
        folded += experts;
        for (uint32_t rank = 0; rank < dtp_layout_ranks(&layout); rank += 1 + draw(5)) {
            uint32_t coordinates[DTP_AXIS_ALL_COUNT];
            dtp_layout_coordinates(&layout, rank, coordinates);
            assert_int_equal(dtp_layout_rank(&layout, coordinates), rank);
            check_group(&layout, draw(1u << DTP_AXIS_COUNT), rank);
            if (experts)
                check_group(&layout, (1 + draw(7)) << DTP_AXIS_ETP, rank);
        }
    }
    assert_true(resolved > 200 && folded > 30);
}

/* ---- on nodes
 * -------------------------------------------------------------------------------------------------------- */

/* 64 GPUs on nodes of eight, four nodes below a leaf: tp 8 fills nodes; dp 4 goes over four nodes of one leaf on one
 * rail; pp 2 over the leaves. With tp 2 and dp 32 the data parallel group has four on each node, on every other rail.
 */
static void test_spread(void **state)
{
    (void)state;
    struct dtp_cluster cluster = {.gpus = 64, .gpus_per_node = 8, .nodes = 8, .leaf_nodes = 4};
    struct dtp_layout layout = layout_of(NULL, 8, 1, 4, 1, 2);
    resolve(&layout);
    struct dtp_rank_group group = dtp_layout_group(&layout, DTP_AXES(TP), 17);
    struct dtp_group_spread s = dtp_group_spread_of(&group, &cluster);
    assert_true(s.nodes == 1 && s.most_of_node == 8 && s.rails == 8 && s.leaves == 1);
    group = dtp_layout_group(&layout, DTP_AXES(DP_SHARD), 42);
    s = dtp_group_spread_of(&group, &cluster);
    assert_true(s.nodes == 4 && s.most_of_node == 1 && s.rails == 1 && s.leaves == 1);
    group = dtp_layout_group(&layout, DTP_AXES(PP), 42);
    s = dtp_group_spread_of(&group, &cluster);
    assert_true(s.nodes == 2 && s.rails == 1 && s.leaves == 2);
    layout = layout_of(NULL, 2, 1, 32, 1, 1);
    resolve(&layout);
    group = dtp_layout_group(&layout, DTP_AXES(DP_SHARD), 1);
    s = dtp_group_spread_of(&group, &cluster);
    assert_true(s.nodes == 8 && s.most_of_node == 4 && s.least_of_node == 4 && s.rails == 4 && s.leaves == 2);
    cluster.gpus_per_node = 12; /* 0-11 12-23 24-31: tp 8 does not fill nodes */
    layout = layout_of(NULL, 8, 1, 4, 1, 1);
    resolve(&layout);
    group = dtp_layout_group(&layout, DTP_AXES(TP), 8);
    s = dtp_group_spread_of(&group, &cluster);
    assert_true(s.nodes == 2 && s.most_of_node == 4 && s.least_of_node == 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_megatrons_example),
        cmocka_unit_test(test_experts_are_folded_into_a_stage),
        cmocka_unit_test(test_orders),
        cmocka_unit_test(test_sizes_are_refused),
        cmocka_unit_test(test_random_meshes),
        cmocka_unit_test(test_spread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
