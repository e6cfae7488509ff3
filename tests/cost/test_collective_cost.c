#include "cost/collective_cost.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>

#include "lib/hardware.h"

static double operation_s(const struct dtp_cluster *cluster, struct dtp_group group, enum dtp_collective collective,
                          double sent_bytes)
{
    struct dtp_collective_cost cost = dtp_collective_cost(cluster, &group, collective);
    return dtp_collective_time(&cost, sent_bytes);
}

/* Long ring on 8 A100: bus = 300e9 * 0.82 * (1 - 0.33/8) = 235.85e9, for gathers less by what copying their own share
 * takes, 1 + 0.27/7; Simple latency 8.4 + 7 * 3.4 = 32.2 us (twice the hops for an all-reduce: 56) and 25 us of ramp.
 */
static void test_long_ring_by_hand(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_a100(), 8, 8);
    struct dtp_group group = dtp_group_consecutive(&cluster, 8);
    assert_near(dtp_group_bus_bytes_per_s(&cluster, &group), 235.85e9, 1e-4);
    assert_near(operation_s(&cluster, group, DTP_ALL_GATHER, 1e9), 57.2e-6 + 1e9 * (1 + 0.27 / 7) / 235.85e9, 1e-4);
    assert_near(operation_s(&cluster, group, DTP_ALL_REDUCE, 2e9), 81e-6 + 2e9 / 235.85e9, 1e-4);
    assert_true(operation_s(&cluster, group, DTP_ALL_GATHER, 0) == 0);
}

/* Small messages take LL: 6.6 us + 7 hops of 0.6 us and little else. */
static void test_small_messages_are_latency(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    double time = operation_s(&cluster, dtp_group_consecutive(&cluster, 8), DTP_ALL_GATHER, 1024);
    assert_near(time, 6.6e-6 + 7 * 0.6e-6, 0.01);
}

/* vTrain's all-reduce tables of one A100 node (published_collectives.csv c-131..c-179): bus bandwidth in GB/s. */
static void test_published_all_reduces(void **state)
{
    (void)state;
    static const struct {
        uint32_t ranks;
        double bytes, bus_gb_per_s;
    } rows[] = {{2, 1 << 30, 197.3}, {4, 1 << 30, 221.9}, {8, 1 << 30, 229.4}, {2, 1 << 28, 184.4},
                {4, 1 << 28, 208.7}, {8, 1 << 28, 217.3}, {4, 1 << 26, 185.1}, {8, 1 << 26, 202.5}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct dtp_cluster cluster = test_cluster(test_a100(), rows[i].ranks, 8);
        double sent = 2 * rows[i].bytes * (rows[i].ranks - 1) / rows[i].ranks;
        double time = operation_s(&cluster, dtp_group_consecutive(&cluster, rows[i].ranks), DTP_ALL_REDUCE, sent);
        assert_near(sent / time / 1e9, rows[i].bus_gb_per_s, 0.16);
    }
}

/* Measured on 2 and 4 H200 of one host (h200_collectives.csv). */
static void test_measured_h200(void **state)
{
    (void)state;
    static const struct {
        uint32_t ranks;
        enum dtp_collective collective;
        double bytes, time_s;
    } rows[] = {{4, DTP_ALL_GATHER, 1 << 30, 2.495e-3},     {4, DTP_ALL_GATHER, 1 << 28, 6.76e-4},
                {4, DTP_ALL_GATHER, 1 << 26, 2.017e-4},     {4, DTP_REDUCE_SCATTER, 1 << 30, 2.53e-3},
                {4, DTP_REDUCE_SCATTER, 1 << 26, 2.043e-4}, {4, DTP_ALL_REDUCE, 1 << 30, 4.579e-3},
                {4, DTP_ALL_REDUCE, 1 << 28, 1.206e-3},     {4, DTP_ALL_REDUCE, 1 << 26, 3.363e-4},
                {2, DTP_ALL_GATHER, 1 << 28, 5.685e-4},     {2, DTP_ALL_GATHER, 1 << 26, 1.700e-4},
                {2, DTP_ALL_GATHER, 1 << 24, 6.78e-5},      {2, DTP_REDUCE_SCATTER, 1 << 28, 6.059e-4},
                {2, DTP_REDUCE_SCATTER, 1 << 26, 1.812e-4}, {2, DTP_ALL_REDUCE, 1 << 28, 9.104e-4},
                {2, DTP_ALL_REDUCE, 1 << 26, 2.646e-4}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct dtp_cluster cluster = test_cluster(test_h200(), rows[i].ranks, 8);
        double ring = (rows[i].ranks - 1.0) / rows[i].ranks * (rows[i].collective == DTP_ALL_REDUCE ? 2 : 1);
        double time = operation_s(&cluster, dtp_group_consecutive(&cluster, rows[i].ranks), rows[i].collective,
                                  rows[i].bytes * ring);
        assert_near(time, rows[i].time_s, 0.07);
    }
}

/* Beyond one node the node's network is the ring's narrowest point, whoever shares it; eight groups fill it. */
static void test_network_is_shared(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 16, 8);
    cluster.machine.network_bytes_per_s = 100e9;
    struct dtp_group world = dtp_group_consecutive(&cluster, 16), replicas = dtp_group_strided(&cluster, 8);
    assert_int_equal(world.nodes, 2);
    assert_int_equal(replicas.ranks, 2);
    assert_int_equal(replicas.groups_per_node, 8);
    assert_near(dtp_group_bus_bytes_per_s(&cluster, &world), 93e9, 1e-9);
    assert_near(dtp_group_bus_bytes_per_s(&cluster, &replicas), 100e9 / 8, 1e-8);
    cluster.oversubscription = 2;
    assert_near(dtp_group_bus_bytes_per_s(&cluster, &world), 46.5e9, 1e-9);
}

/* On sockets the rate is one ring's: an all-reduce of one ring reaches 0.82 of it (the rows of 2 nodes in
 * h200_collectives.csv: 5.94 of 7.29 GB/s), two at once 1.47 times as much, many no more than 1 / 0.53. */
static void test_rings_on_sockets_are_bound_by_their_threads(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 4, 2);
    cluster.machine.network_bytes_per_s = 7.29e9;
    cluster.network = DTP_NETWORK_SOCKETS;
    struct dtp_group world = dtp_group_consecutive(&cluster, 4), replicas = dtp_group_strided(&cluster, 2);
    double all_gather_bytes = 268435456 * 0.75;
    assert_near(operation_s(&cluster, world, DTP_ALL_GATHER, all_gather_bytes), 0.027608, 0.02);
    assert_near(operation_s(&cluster, world, DTP_REDUCE_SCATTER, all_gather_bytes), 0.026905, 0.04);
    assert_near(operation_s(&cluster, world, DTP_ALL_REDUCE, 2 * all_gather_bytes), 0.067811, 0.02);
    assert_near(dtp_group_bus_bytes_per_s(&cluster, &world), 5.98e9, 1e-3);
    assert_near(dtp_group_bus_bytes_per_s(&cluster, &replicas), 5.98e9 * 1.47 / 2, 1e-3);
    cluster = test_cluster(test_h200(), 16, 8);
    cluster.machine.network_bytes_per_s = 7.29e9;
    cluster.network = DTP_NETWORK_SOCKETS;
    replicas = dtp_group_strided(&cluster, 8);
    assert_near(dtp_group_bus_bytes_per_s(&cluster, &replicas), 5.98e9 / 0.53 / 8, 5e-3);
}

/* 32 A100s on 4 nodes with 4 Omni-Path links of 100 Gb/s: their one ring stays on a link, 40.5 Gb/s
 * (all_reduce_bench-a100-n4.txt); 8 rings, one for each GPU of a node, share four links, 162 Gb/s in all. */
static void test_a_ring_over_omni_path_stays_on_one_link(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_a100(), 32, 8);
    cluster.machine.network_bytes_per_s = 50e9;
    cluster.network = DTP_NETWORK_OPA;
    struct dtp_group world = dtp_group_consecutive(&cluster, 32), replicas = dtp_group_strided(&cluster, 8);
    assert_near(dtp_group_bus_bytes_per_s(&cluster, &world), 40.5e9 / 8, 1e-9);
    assert_near(8 * dtp_group_bus_bytes_per_s(&cluster, &replicas), 162e9 / 8, 1e-9);
}

/* 16 nodes, leaves of 4, uplinks of half what the nodes send: of a ring in the order of nodes one node of a leaf sends
 * up and has 4/2 nodes' uplinks for it; of a ring over every fourth node each climbs and shares them. Below one leaf
 * nothing climbs. */
static void test_only_what_climbs_to_the_spine_is_oversubscribed(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 128, 8);
    cluster.machine.network_bytes_per_s = 100e9;
    cluster.oversubscription = 2;
    static const struct {
        uint32_t leaf_nodes;
        double world, replicas_of_a_node, replicas_of_four_nodes; /* share of what the network gives them */
    } rows[] = {{1, 0.5, 0.5, 0.5}, {4, 1, 1, 0.5}, {8, 1, 1, 1}, {16, 1, 1, 1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cluster.leaf_nodes = rows[i].leaf_nodes;
        struct dtp_group world = dtp_group_consecutive(&cluster, 128), of_node = dtp_group_strided(&cluster, 8),
                         of_four = dtp_group_strided(&cluster, 32);
        assert_int_equal(of_four.node_stride, 4);
        assert_near(dtp_group_bus_bytes_per_s(&cluster, &world), 93e9 * rows[i].world, 1e-9);
        assert_near(dtp_group_bus_bytes_per_s(&cluster, &of_node), 100e9 / 8 * rows[i].replicas_of_a_node, 1e-8);
        assert_near(dtp_group_bus_bytes_per_s(&cluster, &of_four), 100e9 / 8 * rows[i].replicas_of_four_nodes, 1e-8);
    }
    cluster.leaf_nodes = 4;
    cluster.oversubscription = 1e3; /* no uplink to speak of: four nodes together do not need it */
    struct dtp_group four = dtp_group_consecutive(&cluster, 32);
    assert_near(dtp_group_bus_bytes_per_s(&cluster, &four), 93e9, 1e-9);
}

/* 4 nodes of 8, uplinks of a quarter of what nodes send, rails that all four reach: same places in all nodes stay on
 * theirs; stages 4 ranks apart, of which some are on two nodes, change it, as do 7 of 8 peers of an all-to-all. Over
 * the spine that has a quarter, or 1 / (4 x 7/8); over NVLink it costs a hop. Without rails nothing of that counts. */
static void test_what_changes_rails(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 32, 8), plain;
    cluster.machine.network_bytes_per_s = 100e9, cluster.oversubscription = 4, cluster.leaf_nodes = 4;
    plain = cluster;
    struct dtp_group same = dtp_group_strided(&cluster, 8), world = dtp_group_consecutive(&cluster, 32),
                     near = dtp_group_pair(&cluster, 0, 8, 8), far = dtp_group_pair(&cluster, 0, 4, 8);
    const struct {
        const struct dtp_group *group;
        enum dtp_collective collective;
        double over_spine; /* of the rate without rails */
        bool hops;
    } rows[] = {{&same, DTP_ALL_REDUCE, 1, false},
                {&world, DTP_ALL_GATHER, 1, false},
                {&near, DTP_SEND_RECV, 1, false},
                {&far, DTP_SEND_RECV, 0.25, true},
                {&world, DTP_ALL_TO_ALL, 1 / (4 * 7.0 / 8), true}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct dtp_collective_cost costs[3];
        for (int rails = DTP_RAILS_NONE; rails <= DTP_RAILS_PXN; rails++) {
            cluster.rails = (enum dtp_rails)rails;
            costs[rails] = dtp_collective_cost(&cluster, rows[i].group, rows[i].collective);
        }
        struct dtp_collective_cost before = dtp_collective_cost(&plain, rows[i].group, rows[i].collective);
        int simple = DTP_PROTOCOL_SIMPLE;
        assert_near(costs[DTP_RAILS_NONE].s_per_byte[simple], before.s_per_byte[simple], 1e-12);
        assert_near(costs[DTP_RAILS_SPINE].s_per_byte[simple] * rows[i].over_spine, before.s_per_byte[simple], 1e-9);
        assert_near(costs[DTP_RAILS_PXN].s_per_byte[simple], before.s_per_byte[simple], 1e-12);
        assert_int_equal(costs[DTP_RAILS_PXN].latency_s[simple] > before.latency_s[simple], rows[i].hops);
        assert_near(costs[DTP_RAILS_SPINE].latency_s[simple], before.latency_s[simple], 1e-12);
    }
}

/* One GPU of a node of eight has the eight NICs for itself, but its PCIe 5.0 x16 ends at 64 GB/s: not at 400. Four of
 * them reach 256 GB/s; all eight the 400 of the NICs. */
static void test_few_gpus_of_a_node_do_not_fill_its_network(void **state)
{
    (void)state;
    static const struct {
        uint32_t per_node;
        double bytes_per_s;
    } rows[] = {{1, 64e9}, {4, 256e9}, {8, 400e9}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct dtp_cluster cluster = test_cluster(test_h200(), 2 * rows[i].per_node, rows[i].per_node);
        cluster.machine.gpus = 8;
        assert_near(dtp_cluster_network_bytes_per_s(&cluster), rows[i].bytes_per_s, 1e-12);
        struct dtp_group world = dtp_group_consecutive(&cluster, cluster.gpus);
        assert_true(dtp_group_bus_bytes_per_s(&cluster, &world) <= 0.93 * rows[i].bytes_per_s);
    }
    /* Where the NICs have faster lanes than the GPU to its host, a full node still has all of them. */
    struct dtp_cluster cluster = test_cluster(test_h200(), 16, 8);
    cluster.machine.network_bytes_per_s = 800e9;
    assert_near(dtp_cluster_network_bytes_per_s(&cluster), 800e9, 1e-12);
}

static void test_time_grows_with_bytes_and_ranks(void **state)
{
    (void)state;
    double before = 0;
    for (double bytes = 1; bytes < 1e12; bytes *= 3) {
        struct dtp_cluster cluster = test_cluster(test_h200(), 64, 8);
        double time = operation_s(&cluster, dtp_group_consecutive(&cluster, 64), DTP_REDUCE_SCATTER, bytes);
        assert_true(time >= before);
        before = time;
    }
    before = 0;
    for (uint32_t ranks = 16; ranks <= 4096; ranks *= 2) {
        struct dtp_cluster cluster = test_cluster(test_h200(), ranks, 8);
        double time = operation_s(&cluster, dtp_group_consecutive(&cluster, ranks), DTP_ALL_GATHER, 1e8);
        assert_true(time > before);
        before = time;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_long_ring_by_hand),
                                       cmocka_unit_test(test_small_messages_are_latency),
                                       cmocka_unit_test(test_published_all_reduces),
                                       cmocka_unit_test(test_measured_h200),
                                       cmocka_unit_test(test_what_changes_rails),
                                       cmocka_unit_test(test_only_what_climbs_to_the_spine_is_oversubscribed),
                                       cmocka_unit_test(test_few_gpus_of_a_node_do_not_fill_its_network),
                                       cmocka_unit_test(test_network_is_shared),
                                       cmocka_unit_test(test_rings_on_sockets_are_bound_by_their_threads),
                                       cmocka_unit_test(test_a_ring_over_omni_path_stays_on_one_link),
                                       cmocka_unit_test(test_time_grows_with_bytes_and_ranks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
