#include "cost/cluster_cost.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host_adam_measured),
        cmocka_unit_test(test_host_adam_by_hand),
        cmocka_unit_test(test_host_adam_of_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
