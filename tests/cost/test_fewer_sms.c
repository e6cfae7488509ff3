#include "cost/op_cost.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>

#include "lib/hardware.h"

/* Matmuls beside one transfer that waits on 4 of 132 SMs, by how much longer they take than beside none: medians of
 * reports/h200/validate/more.ops, whose numbers `dtplan simulate --timeline` names. Without waves each would be 1.03.
 * What a kernel does hangs on more than its shape: GPT-2's 4096 x 1600 (1.5 here) took 1.26 forward and 1.00 in two
 * input gradients, its 1600 x 1600 (1.0 here) 1.00 on one GPU and 1.55 on the other. */
static void test_fewer_sms(void **state)
{
    (void)state;
    static const struct {
        double m, n, ratio;
    } rows[] = {{4096, 5120, 1.21},  {4096, 3072, 1.28},  {4096, 16384, 1.05}, {4096, 8192, 1.17},
                {16384, 3072, 1.06}, {5120, 3072, 1.17},  {2048, 4096, 1.45},  {2048, 12288, 1.20},
                {2048, 22016, 1.16}, {4096, 11008, 1.10}, {4096, 4096, 1.25},  {12288, 4096, 1.09},
                {22016, 4096, 1.11}, {4096, 4800, 1.22},  {4096, 6400, 1.20},  {2048, 8192, 1.23}};
    struct dtp_gpu gpu = test_h200();
    double sum = 0, measured = 0;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const double speed = dtp_matmul_speed_on_fewer_sms(gpu.sm_count, rows[i].m, rows[i].n, 4.0 / 132);
        assert_near(1 / speed, rows[i].ratio, 0.11); /* 4096 x 6400 and 2048 x 22016 take a wave more than that */
        sum += 1 / speed - 1, measured += rows[i].ratio - 1;
    }
    assert_near(sum, measured, 0.1);
    /* 4096 x 3072: 384 tiles, three waves; on 100 SMs 3.96, on 92 SMs 4.3. */
    assert_near(dtp_matmul_speed_on_fewer_sms(gpu.sm_count, 4096, 3072, 32.0 / 132), 3.0 / 4, 1e-12);
    assert_near(dtp_matmul_speed_on_fewer_sms(gpu.sm_count, 4096, 3072, 40.0 / 132), 3.0 / 5, 1e-12);
    assert_near(dtp_matmul_speed_on_fewer_sms(gpu.sm_count, 128, 1024, 4.0 / 132), 1,
                1e-12); /* 8 tiles, an SM for each */
    assert_near(dtp_matmul_speed_on_fewer_sms(gpu.sm_count, 4096, 3072, 0), 1, 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fewer_sms)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
