#include "cost/collective_choice.h"

#include "cost/calibration.h"
#include "cost/op_cost.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>

#include "lib/hardware.h"

static double chosen_s(const struct dtp_execution *chosen, uint32_t ranks, uint32_t gpus,
                       enum dtp_collective collective, double sent_bytes)
{
    struct dtp_cluster cluster = test_cluster(test_h200(), gpus, 8);
    struct dtp_group group = dtp_group_consecutive(&cluster, ranks);
    struct dtp_collective_cost cost =
        dtp_collective_cost_chosen(&cluster, &group, chosen, collective, DTP_CARRIED_PLAIN);
    return dtp_collective_time(&cost, sent_bytes);
}

static void test_nothing_changes_unless_chosen(void **state)
{
    (void)state;
    struct dtp_execution chosen = {0};
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    struct dtp_group group = dtp_group_consecutive(&cluster, 8);
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++) {
        struct dtp_collective_cost cost = dtp_collective_cost(&cluster, &group, (enum dtp_collective)i);
        struct dtp_collective_load load =
            dtp_collective_load(&cluster, &group, &chosen, (enum dtp_collective)i, DTP_CARRIED_PLAIN);
        for (double bytes = 1; bytes < 1e10; bytes *= 30)
            assert_true(chosen_s(&chosen, 8, 8, (enum dtp_collective)i, bytes) == dtp_collective_time(&cost, bytes));
        assert_true(load.sm_share == dtp_calibration.contention_sm_share);
        assert_true(load.memory_passes == dtp_calibration.contention_memory_passes);
    }
}

/* Two CTAs carry twice what one carries, and sit on 2 of 132 SMs; 64 leave the ring what links let it. */
static void test_few_ctas_are_slower(void **state)
{
    (void)state;
    struct dtp_execution none = {0}, chosen = none;
    struct dtp_cluster cluster = test_cluster(test_h200(), 4, 8);
    struct dtp_group group = dtp_group_consecutive(&cluster, 4);
    chosen.collective_ctas = 2;
    double rate = 2 * dtp_calibration.ring_cta_bytes_per_s;
    assert_near(chosen_s(&chosen, 4, 4, DTP_REDUCE_SCATTER, 1e9), 1e9 / rate, 1e-2);
    assert_near(dtp_collective_load(&cluster, &group, &chosen, DTP_REDUCE_SCATTER, DTP_CARRIED_PLAIN).sm_share,
                2.0 / 132, 1e-9);
    assert_true(dtp_pass_transfer_ctas(0) == DTP_PASS_TRANSFER_CTAS && dtp_pass_transfer_ctas(2) == 2);
    chosen.collective_ctas = 64;
    assert_true(dtp_pass_transfer_ctas(64) == DTP_PASS_TRANSFER_CTAS);
    assert_true(chosen_s(&chosen, 4, 4, DTP_REDUCE_SCATTER, 1e9) == chosen_s(&none, 4, 4, DTP_REDUCE_SCATTER, 1e9));
    assert_true(dtp_collective_load(&cluster, &group, &chosen, DTP_REDUCE_SCATTER, DTP_CARRIED_PLAIN).sm_share ==
                dtp_calibration.contention_sm_share);
}

/* What matmuls leave free: 116 of 132 SMs. */
static void test_matmuls_on_a_part_of_the_sms(void **state)
{
    (void)state;
    struct dtp_execution chosen = {0};
    struct dtp_gpu gpu = test_h200();
    assert_true(dtp_matmul_share(&gpu, &chosen) == 1);
    chosen.matmul_sms = 116;
    assert_near(dtp_matmul_share(&gpu, &chosen), 116.0 / 132, 1e-12);
    chosen.matmul_sms = 132;
    assert_true(dtp_matmul_share(&gpu, &chosen) == 1);
}

/* Copy engines gather, at their share of the link's 450 GB/s, and take no SM; reductions stay what they were. */
static void test_copies_take_no_sms(void **state)
{
    (void)state;
    struct dtp_execution none = {0}, chosen = none;
    struct dtp_cluster cluster = test_cluster(test_h200(), 4, 8);
    struct dtp_group group = dtp_group_consecutive(&cluster, 4);
    chosen.copied = 1u << DTP_ALL_GATHER, chosen.collective_ctas = 1;
    assert_near(chosen_s(&chosen, 4, 4, DTP_ALL_GATHER, 1e9),
                dtp_calibration.copy_gather_s + 1e9 / (450e9 * dtp_calibration.copy_link_fraction), 1e-9);
    assert_true(dtp_collective_load(&cluster, &group, &chosen, DTP_ALL_GATHER, DTP_CARRIED_PLAIN).sm_share == 0);
    assert_near(dtp_collective_load(&cluster, &group, &chosen, DTP_ALL_GATHER, DTP_CARRIED_PLAIN).memory_passes, 2,
                1e-12);
    chosen.collective_ctas = 0;
    assert_true(chosen_s(&chosen, 4, 4, DTP_REDUCE_SCATTER, 1e9) == chosen_s(&none, 4, 4, DTP_REDUCE_SCATTER, 1e9));
    assert_false(dtp_execution_copies(&chosen, DTP_REDUCE_SCATTER));
    assert_false(dtp_execution_copies(&chosen, DTP_ALL_TO_ALL));
}

/* The same of the exchange that takes the place of a reduce-scatter, whoever gathers. */
static void test_copies_exchange(void **state)
{
    (void)state;
    struct dtp_execution none = {0}, chosen = none;
    struct dtp_cluster cluster = test_cluster(test_h200(), 4, 8);
    struct dtp_group group = dtp_group_consecutive(&cluster, 4);
    chosen.copied = 1u << DTP_ALL_TO_ALL;
    assert_near(chosen_s(&chosen, 4, 4, DTP_ALL_TO_ALL, 1e9),
                dtp_calibration.copy_gather_s + 1e9 / (450e9 * dtp_calibration.copy_link_fraction), 1e-9);
    assert_true(dtp_collective_load(&cluster, &group, &chosen, DTP_ALL_TO_ALL, DTP_CARRIED_PLAIN).sm_share == 0);
    assert_true(chosen_s(&chosen, 4, 4, DTP_ALL_GATHER, 1e9) == chosen_s(&none, 4, 4, DTP_ALL_GATHER, 1e9));
    assert_false(dtp_execution_copies(&chosen, DTP_ALL_GATHER));
}

/* Small messages gain most from symmetric kernels; a ring over nodes cannot use them. */
static void test_windows_lower_the_latency_inside_a_node(void **state)
{
    (void)state;
    struct dtp_execution none = {0}, chosen = none;
    chosen.windows = true;
    assert_true(chosen_s(&chosen, 8, 8, DTP_ALL_REDUCE, 1e5) < 0.7 * chosen_s(&none, 8, 8, DTP_ALL_REDUCE, 1e5));
    assert_true(chosen_s(&chosen, 16, 16, DTP_ALL_REDUCE, 1e5) == chosen_s(&none, 16, 16, DTP_ALL_REDUCE, 1e5));
    chosen.collective_ctas = 1;
    assert_near(chosen_s(&chosen, 8, 8, DTP_ALL_GATHER, 1e9), 1e9 / dtp_calibration.symmetric_cta_bytes_per_s, 1e-2);
}

/* Runtime dtplan's ranks of a node store what they exchange into each other's memory, and copy what goes around a ring;
 * what passes of a pipeline send each other, and what copy engines of NCCL's were chosen for, goes as before. */
static void test_peers_memory(void **state)
{
    (void)state;
    struct dtp_execution own = {.own_kernels = true}, none = own;
    struct dtp_cluster cluster = test_cluster(test_h200(), 4, 8), wide = test_cluster(test_h200(), 16, 8);
    struct dtp_group node = dtp_group_consecutive(&cluster, 4), nodes = dtp_group_consecutive(&wide, 16);
    const double stored_s = dtp_calibration.store_exchange_s + 1e9 / (450e9 * dtp_calibration.store_link_fraction);
    none.own_kernels = false;
    assert_near(chosen_s(&own, 4, 4, DTP_ALL_TO_ALL, 1e9), stored_s, 1e-9);
    assert_true(chosen_s(&own, 16, 16, DTP_ALL_TO_ALL, 1e9) == chosen_s(&none, 16, 16, DTP_ALL_TO_ALL, 1e9));
    assert_true(chosen_s(&own, 4, 4, DTP_SEND_RECV, 1e9) == chosen_s(&none, 4, 4, DTP_SEND_RECV, 1e9));
    assert_true(dtp_collective_load(&cluster, &node, &own, DTP_SEND_RECV, DTP_CARRIED_AROUND).sm_share == 0);
    assert_true(dtp_collective_load(&wide, &nodes, &own, DTP_SEND_RECV, DTP_CARRIED_AROUND).sm_share > 0);
    assert_true(dtp_collective_load(&cluster, &node, &own, DTP_SEND_RECV, DTP_CARRIED_PLAIN).sm_share > 0);
    own.copied = 1u << DTP_ALL_GATHER;
    assert_true(chosen_s(&own, 4, 4, DTP_ALL_TO_ALL, 1e9) == chosen_s(&none, 4, 4, DTP_ALL_TO_ALL, 1e9));
    assert_true(dtp_collective_load(&cluster, &node, &own, DTP_SEND_RECV, DTP_CARRIED_AROUND).sm_share > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_nothing_changes_unless_chosen),
                                       cmocka_unit_test(test_few_ctas_are_slower),
                                       cmocka_unit_test(test_matmuls_on_a_part_of_the_sms),
                                       cmocka_unit_test(test_copies_take_no_sms),
                                       cmocka_unit_test(test_copies_exchange),
                                       cmocka_unit_test(test_peers_memory),
                                       cmocka_unit_test(test_windows_lower_the_latency_inside_a_node)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
