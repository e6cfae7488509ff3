#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "sim/compare.h"
#include "lib/run_fixture.h"

static struct dtp_faults faults;
static struct dtp_simulated simulated;
static double *alone_s, *in_place_s;

/* One GPU, large enough that no launch is waited for. */
static int set_up(void **state)
{
    static struct dtp_job job;
    struct dtp_simulation_options options = dtp_simulation_options_default();
    (void)state;
    run_job("layers=2 hidden=4096 heads=32 ffn=11008 vocab=32000 seq=2048 micro_batch=4", &job);
    if (dtp_simulated_create(&job, &options, &simulated, &faults) != DTP_OK)
        return -1;
    alone_s = malloc(simulated.timeline.op_count * sizeof *alone_s);
    in_place_s = malloc(simulated.timeline.op_count * sizeof *in_place_s);
    return alone_s && in_place_s ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    dtp_simulated_release(&simulated);
    free(alone_s);
    free(in_place_s);
    return 0;
}

static struct dtp_error_split split(double alone_factor, double in_place_factor, double measured_s)
{
    struct dtp_error_split out;
    for (size_t i = 0; i < simulated.timeline.op_count; i++) {
        alone_s[i] = alone_factor * simulated.alone_s[i];
        in_place_s[i] = in_place_factor * simulated.alone_s[i];
    }
    assert_int_equal(dtp_compare_split(&simulated, alone_s, in_place_s, measured_s, &out, &faults), DTP_OK);
    return out;
}

/* What was measured is what was predicted: the same step, but for the power limit, which measured times hold already.
 */
static void test_right_costs_leave_no_error(void **state)
{
    (void)state;
    struct dtp_error_split s = split(1, 1, 1);
    assert_true(s.predicted_s == simulated.timeline.step_s && s.measured_s == 1);
    assert_true(fabs(s.alone_s / s.predicted_s - 1) < 0.05);
    assert_true(fabs(s.in_place_s / s.alone_s - 1) < 1e-9);
}

/* On one stream a step is the sum of its operations: twice the costs, twice the step; times in place show alone. */
static void test_each_set_of_costs_makes_its_own_step(void **state)
{
    (void)state;
    struct dtp_error_split once = split(1, 1, 1), twice = split(2, 3, 1);
    assert_true(fabs(twice.alone_s / once.alone_s - 2) < 0.01);
    assert_true(fabs(twice.in_place_s / once.alone_s - 3) < 0.01);
    assert_true(twice.predicted_s == once.predicted_s);
}

static void test_what_was_not_measured_is_predicted(void **state)
{
    (void)state;
    struct dtp_error_split s = split(1, 1, 1);
    for (size_t i = 0; i < simulated.timeline.op_count; i++)
        alone_s[i] = in_place_s[i] = (double)NAN;
    struct dtp_error_split none;
    assert_int_equal(dtp_compare_split(&simulated, alone_s, in_place_s, 1, &none, &faults), DTP_OK);
    /* but for the power limit, which a simulation of predicted times alone adds: of matmuls and attention */
    assert_true(fabs(none.alone_s / s.alone_s - 1) < 0.06 && fabs(none.in_place_s / none.alone_s - 1) < 1e-9);
}

static void test_classes_are_sums(void **state)
{
    struct dtp_class_times classes[DTP_CLASS_STORAGE + 1];
    (void)state;
    split(2, 3, 1);
    alone_s[5] = (double)NAN; /* left out of its class */
    dtp_compare_classes(&simulated, alone_s, in_place_s, classes);
    const struct dtp_class_times *matmul = &classes[DTP_CLASS_MATMUL], *attention = &classes[DTP_CLASS_ATTENTION];
    assert_int_equal(attention->count, 4);
    assert_true(matmul->count > 20 && matmul->predicted_s > attention->predicted_s);
    assert_true(fabs(matmul->alone_s / matmul->predicted_s - 2) < 1e-9);
    assert_true(fabs(matmul->in_place_s / matmul->predicted_s - 3) < 1e-9);
}

/* Everything but copies is on the compute stream; backward is more than forward. */
static void test_phases_are_sums(void **state)
{
    struct dtp_phase_times phases[DTP_COMPARE_PHASE_COUNT];
    double sum = 0, all = 0;
    (void)state;
    split(1, 3, 1);
    dtp_compare_phases(&simulated, in_place_s, phases);
    for (int i = 0; i < DTP_COMPARE_PHASE_COUNT; i++) {
        assert_true(phases[i].predicted_s > 0);
        sum += phases[i].in_place_s;
    }
    for (size_t i = 0; i < simulated.timeline.op_count; i++)
        all += dtp_program_ops(simulated.program)[i].stream == DTP_STREAM_COMPUTE ? 3 * simulated.alone_s[i] : 0;
    assert_true(fabs(sum / all - 1) < 1e-9);
    assert_true(phases[DTP_COMPARE_BACKWARD].predicted_s > 1.5 * phases[DTP_COMPARE_FORWARD].predicted_s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_right_costs_leave_no_error),
                                       cmocka_unit_test(test_each_set_of_costs_makes_its_own_step),
                                       cmocka_unit_test(test_what_was_not_measured_is_predicted),
                                       cmocka_unit_test(test_classes_are_sums), cmocka_unit_test(test_phases_are_sums)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
