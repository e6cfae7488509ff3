#include "cost/calibration.h"
#include "cost/cluster_cost.h"
#include "cost/op_cost.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>

#include "lib/hardware.h"

static struct dtp_machine machine_of(double bytes_per_s, uint32_t gpus, uint32_t cores)
{
    return (struct dtp_machine){.gpus = gpus, .host_memory_bytes_per_s = bytes_per_s, .host_cores = cores};
}

/* AdamW on the host inside a step, bytes/s of each rank: reports/h200/validate/validate_one.ops/0006.csv, one H200;
 * validate_two.ops/0006.csv and 0007.csv, two; reports/h200/machine.csv and README.md, two machines of four, a fifth
 * apart. All have 16 cores a GPU. */
static void test_host_adam_measured(void **state)
{
    (void)state;
    struct dtp_machine machine = machine_of(614.4e9, 8, 112);
    assert_near(dtp_host_adam_bytes_per_s(&machine, 1), 139e9, 0.08);
    assert_near(dtp_host_adam_bytes_per_s(&machine, 2), 80.6e9, 0.08);
    assert_near(dtp_host_adam_bytes_per_s(&machine, 4), 52e9, 0.12);
}

/* 1 / (1 / (14 x 22e9) + 4 / (0.36 x 614.4e9)) with 14 cores for each of 8 GPUs. */
static void test_host_adam_by_hand(void **state)
{
    (void)state;
    struct dtp_machine machine = machine_of(614.4e9, 8, 112);
    assert_near(dtp_host_adam_bytes_per_s(&machine, 4), 1 / (1 / 308e9 + 4 / 221.184e9), 1e-12);
    machine.host_cores = 4; /* fewer than GPUs: ranks take turns, and each has one while it works */
    assert_near(dtp_host_adam_bytes_per_s(&machine, 4), 1 / (1 / 22e9 + 4 / 221.184e9), 1e-12);
}

static void test_host_adam_of_more(void **state)
{
    (void)state;
    for (uint32_t cores = 1; cores < 300; cores++)
        for (uint32_t ranks = 1; ranks < 16; ranks++) {
            struct dtp_machine machine = machine_of(400e9, 8, cores), more = machine_of(400e9, 8, cores + 1);
            double rate = dtp_host_adam_bytes_per_s(&machine, ranks);
            assert_true(rate > 0 && rate <= dtp_host_adam_bytes_per_s(&more, ranks));
            assert_true(dtp_host_adam_bytes_per_s(&machine, ranks + 1) < rate);
        }
}

/* PyTorch's grouped matmuls of 16 bits on Blackwell are slow: a published 39.2 ms of B200, 128,000 rows in four groups,
 * 8192 x 5120, forward and both gradients. Elsewhere but on Hopper, whose kernel is known, and Megatron's, which are
 * cuBLAS', they are as the rest. */
static void test_grouped_on_blackwell(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 1, 1);
    struct dtp_execution torch = {.issuer = DTP_ISSUER_PYTORCH, .compute = DTP_BF16}, megatron = torch;
    megatron.issuer = DTP_ISSUER_MEGATRON;
    for (int blackwell = 0; blackwell < 2; blackwell++) {
        double sum_s = 0;
        cluster.gpu.architecture = blackwell ? DTP_GPU_BLACKWELL : DTP_GPU_AMPERE;
        cluster.gpu.peak_flops_per_s[DTP_BF16] = 2.25e15, cluster.gpu.matmul_fraction = 0.635;
        static const struct {
            enum dtp_measured_matmul of;
            double m, n, k;
        } pass[] = {{DTP_MEASURED_MATMUL_FORWARD, 32000, 8192, 5120},
                    {DTP_MEASURED_MATMUL_INPUT_GRADIENT, 32000, 5120, 8192},
                    {DTP_MEASURED_MATMUL_WEIGHT_GRADIENT, 8192, 5120, 32000}};
        for (size_t i = 0; i < sizeof pass / sizeof *pass; i++) {
            const double m = pass[i].m, n = pass[i].n, k = pass[i].k;
            double slow = dtp_cluster_grouped_matmul_s(&cluster, &torch, pass[i].of, DTP_BF16, 4, m, n, k);
            double fast = dtp_cluster_grouped_matmul_s(&cluster, &megatron, pass[i].of, DTP_BF16, 4, m, n, k);
            assert_near(fast / slow, blackwell ? dtp_calibration.grouped_matmul_blackwell : 1, 1e-9);
            sum_s += slow;
        }
        if (blackwell)
            assert_near(sum_s, 0.0392, 0.08);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host_adam_measured),
        cmocka_unit_test(test_host_adam_by_hand),
        cmocka_unit_test(test_host_adam_of_more),
        cmocka_unit_test(test_grouped_on_blackwell),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
