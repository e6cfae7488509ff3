/* Who is in a group and what of a node its ranks share, by hand on nodes of 8 GPUs. */
#include "machine/group.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>

static void check(uint32_t ranks, uint32_t stride, uint32_t nodes, uint32_t groups_per_node, uint32_t node_stride)
{
    struct dtp_cluster cluster = {.gpus = 128, .gpus_per_node = 8, .nodes = 16};
    struct dtp_group group = dtp_group_of(&cluster, ranks, stride);
    assert_int_equal(group.ranks, ranks);
    assert_int_equal(group.nodes, nodes);
    assert_int_equal(group.groups_per_node, groups_per_node);
    assert_int_equal(group.stride, stride);
    assert_int_equal(group.node_stride, node_stride);
}

/* Neighbours: 4, 2 or 1 groups in a node, that none of them leaves; 16 fill two nodes. */
static void test_tensor_parallel_groups(void **state)
{
    (void)state;
    check(2, 1, 1, 4, 1);
    check(4, 1, 1, 2, 1);
    check(8, 1, 1, 1, 1);
    check(16, 1, 2, 1, 1);
}

/* Of 128 GPUs those with the same slice: a node has 8/tp of a group, and tp groups share its network. Half of them in a
 * pipeline of two: half the nodes. Behind tp 16 one GPU of every second node. */
static void test_groups_with_the_same_slice(void **state)
{
    (void)state;
    check(64, 2, 16, 2, 1);
    check(32, 4, 16, 4, 1);
    check(16, 8, 16, 8, 1);
    check(32, 2, 8, 2, 1);
    check(16, 4, 8, 4, 1);
    check(8, 16, 8, 8, 2);
    check(2, 4, 1, 4, 1); /* within a node, of which the other GPUs are in the other groups */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_tensor_parallel_groups),
                                       cmocka_unit_test(test_groups_with_the_same_slice)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
