/* Jitter and stragglers: seeds repeat, and where the distribution is known the quantiles are its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "lib/hardware.h"
#include "runtime/runtimes.h"
#include "sim/noise.h"
#include "lib/step_fixture.h"

#include <gsl/gsl_cdf.h>

static void test_jitter_repeats(void **state)
{
    (void)state;
    double a[1000], b[1000], c[1000], sum = 0, squares = 0;
    for (int i = 0; i < 1000; i++)
        a[i] = b[i] = c[i] = 2;
    assert_true(dtp_noise_jitter(7, 0.05, a, 1000) && dtp_noise_jitter(7, 0.05, b, 1000) &&
                dtp_noise_jitter(8, 0.05, c, 1000));
    assert_memory_equal(a, b, sizeof a);
    assert_memory_not_equal(a, c, sizeof a);
    for (int i = 0; i < 1000; i++) {
        sum += a[i] - 2;
        squares += (a[i] - 2) * (a[i] - 2);
    }
    assert_true(fabs(sum / 1000) < 0.02);
    assert_near(sqrt(squares / 1000), 0.1, 0.1);
}

/* A step of one kernel of D seconds: its time is D (1 + deviation * max of n normals), whose quantile p is
 * Phi^-1(p^(1/n)). */
static void test_quantiles_of_one_kernel(void **state)
{
    (void)state;
    struct dtp_program *program = step_begin();
    step_kernel(program, DTP_STREAM_COMPUTE, 1e11, 0);
    step_seal(program);
    struct dtp_program_role role = {.ranks = 1, .program = program};
    const struct dtp_program_set set = {&role, 1};
    struct dtp_simulation_options options = dtp_simulation_options_default();
    options.seed = 5;
    double before = 0;
    for (uint32_t gpus = 1; gpus <= 512; gpus *= 8) {
        struct dtp_cluster cluster = test_cluster(test_a100(), gpus, 8);
        double alone_s = dtp_op_isolated_s(program, dtp_program_ops(program), &cluster);
        struct dtp_step_quantiles q, again;
        assert_int_equal(dtp_noise_step_quantiles(&set, &cluster, &options, 0.04, 20000, &q, NULL), DTP_OK);
        assert_near(q.p50_s, alone_s * (1 + 0.04 * gsl_cdf_ugaussian_Pinv(pow(0.50, 1.0 / gpus))), 2e-3);
        assert_near(q.p95_s, alone_s * (1 + 0.04 * gsl_cdf_ugaussian_Pinv(pow(0.95, 1.0 / gpus))), 3e-3);
        assert_near(q.p99_s, alone_s * (1 + 0.04 * gsl_cdf_ugaussian_Pinv(pow(0.99, 1.0 / gpus))), 5e-3);
        assert_true(q.p50_s < q.p95_s && q.p95_s < q.p99_s && q.p50_s > before);
        before = q.p50_s;
        assert_int_equal(dtp_noise_step_quantiles(&set, &cluster, &options, 0.04, 20000, &again, NULL), DTP_OK);
        assert_memory_equal(&q, &again, sizeof q);
    }
    dtp_program_destroy(program);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_jitter_repeats),
        cmocka_unit_test(test_quantiles_of_one_kernel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
