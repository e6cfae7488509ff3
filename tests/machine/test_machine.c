#include "lib/hardware.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>

static struct dtp_faults faults;

static enum dtp_status check(const struct dtp_cluster *cluster)
{
    memset(&faults, 0, sizeof faults);
    enum dtp_status status = dtp_cluster_check(cluster, &faults);
    assert_int_equal(status, faults.status);
    return status;
}

static struct dtp_cluster two_nodes(void)
{
    return test_cluster(test_h200(), 16, 8);
}

static void test_whole_nodes_and_part_of_one(void **state)
{
    (void)state;
    struct dtp_cluster cluster = two_nodes();
    assert_int_equal(check(&cluster), DTP_OK);
    assert_int_equal(dtp_cluster_check(&cluster, NULL), DTP_OK);
    cluster = test_cluster(test_h200(), 3, 8);
    assert_int_equal(check(&cluster), DTP_OK);
    cluster.gpus_per_node = 8; /* 3 of the 8 of one node */
    assert_int_equal(check(&cluster), DTP_OK);
}

static void test_counts(void **state)
{
    (void)state;
    struct dtp_cluster cluster = two_nodes();
    cluster.gpus = 15;
    assert_int_equal(check(&cluster), DTP_BAD_INPUT);
    assert_string_equal(faults.text[0], "15 GPUs are not 2 nodes of 8; give a multiple of the GPUs per node");
    cluster = two_nodes();
    cluster.machine.gpus = 4;
    assert_int_equal(check(&cluster), DTP_BAD_INPUT);
    assert_string_equal(faults.text[0],
                        "8 GPUs per node, but test has 4; choose another --machine or fewer --gpus-per-node");
    cluster = two_nodes();
    cluster.gpus = 0;
    assert_int_equal(check(&cluster), DTP_BAD_INPUT);
    cluster = two_nodes(); /* 2^16 * 2^16 is no 0 */
    cluster.nodes = cluster.gpus_per_node = 65536;
    cluster.gpus = 0;
    assert_int_equal(check(&cluster), DTP_BAD_INPUT);
}

static void test_network(void **state)
{
    (void)state;
    struct dtp_cluster cluster = two_nodes();
    cluster.machine.network_bytes_per_s = 0;
    assert_int_equal(check(&cluster), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "2 nodes of test, which has no network"));
    cluster = test_cluster(test_h200(), 8, 8);
    cluster.machine.network_bytes_per_s = 0;
    assert_int_equal(check(&cluster), DTP_OK);
    static const double wrong[] = {0, 0.5, -1, NAN, INFINITY};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        cluster = two_nodes();
        cluster.oversubscription = wrong[i];
        assert_int_equal(check(&cluster), DTP_BAD_INPUT);
    }
}

static void test_all_faults_at_once(void **state)
{
    (void)state;
    struct dtp_cluster cluster = two_nodes();
    cluster.gpu.memory_bytes_per_s = NAN;
    cluster.gpu.pcie_bytes_per_s = -1;
    cluster.gpu.sm_count = 0;
    cluster.machine.host_memory_bytes = 0;
    cluster.machine.network_bytes_per_s = INFINITY;
    strcpy(cluster.machine.gpu_key, "h100-sxm");
    assert_int_equal(check(&cluster), DTP_BAD_INPUT);
    assert_int_equal(faults.count, 6);
    assert_string_equal(faults.text[0], "memory_bytes_per_s of h200-sxm is nan; a finite positive number is meant");
    assert_string_equal(faults.text[5], "test holds h100-sxm, not h200-sxm; leave out --machine or choose another");
}

static void test_link(void **state)
{
    (void)state;
    struct dtp_cluster cluster = two_nodes();
    assert_int_equal(dtp_cluster_link(&cluster), DTP_LINK_NVLINK);
    assert_true(dtp_cluster_link_bytes_per_s(&cluster) == 450e9);
    cluster.machine.link = DTP_LINK_PCIE; /* an NVLink part in a box without */
    assert_int_equal(dtp_cluster_link(&cluster), DTP_LINK_PCIE);
    assert_true(dtp_cluster_link_bytes_per_s(&cluster) == 64e9);
    cluster.machine.gpu_peer_bytes_per_s = 20e9;
    assert_true(dtp_cluster_link_bytes_per_s(&cluster) == 20e9);
}

static void test_words(void **state)
{
    (void)state;
    for (int i = DTP_LINK_NONE; i <= DTP_LINK_XGMI; i++) {
        enum dtp_link link = DTP_LINK_NONE;
        assert_true(dtp_link_parse(dtp_link_text((enum dtp_link)i), &link));
        assert_int_equal(link, i);
    }
    for (int i = DTP_GPU_VOLTA; i <= DTP_GPU_CDNA3; i++) {
        enum dtp_gpu_architecture architecture = DTP_GPU_VOLTA;
        assert_true(dtp_gpu_architecture_parse(dtp_gpu_architecture_text((enum dtp_gpu_architecture)i), &architecture));
        assert_int_equal(architecture, i);
    }
    enum dtp_link link;
    assert_false(dtp_link_parse("NVLINK", &link));
    assert_string_equal(dtp_link_text((enum dtp_link)99), "?");
    assert_string_equal(dtp_gpu_architecture_text((enum dtp_gpu_architecture)99), "?");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_nodes_and_part_of_one),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_network),
        cmocka_unit_test(test_all_faults_at_once),
        cmocka_unit_test(test_link),
        cmocka_unit_test(test_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
