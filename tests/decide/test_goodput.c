/* Failures: the best checkpoint interval, the time they cost, and runs simulated one failure at a time. */
#include "decide/elastic.h"
#include "decide/goodput.h"
#include "decide/training_cost.h"
#include "job/scenario.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>

#include "lib/scenario_fixture.h"

#define assert_close(actual, expected, most_apart)                                                                     \
    do {                                                                                                               \
        if (!(fabs((double)(actual) - (double)(expected)) <= (most_apart)))                                            \
            fail_msg("%s is %.9g, not %.9g", #actual, (double)(actual), (double)(expected));                           \
    } while (0)

/* Daly's expectation at an interval; written again here, from the paper. */
static double expected_at(const struct dtp_goodput_inputs *in, double tau)
{
    double m = in->mtbf_s;
    return m * exp(in->restart_s / m) * (exp((tau + in->checkpoint_s) / m) - 1) * in->work_s / tau;
}

static void test_interval_is_the_best(void **state)
{
    (void)state;
    for (double m = 600; m < 1e8; m *= 7)
        for (double delta = 0.1; delta < m; delta *= 5) {
            struct dtp_goodput_inputs in = {1e9, m, delta, 300};
            struct dtp_goodput out;
            dtp_goodput_of(&in, &out);
            if (out.hopeless)
                continue;
            assert_close(out.expected_s, expected_at(&in, out.interval_s), 1e-9 * out.expected_s);
            for (double factor = 0.5; factor < 2; factor *= 1.1)
                assert_true(expected_at(&in, factor * out.interval_s) >= out.expected_s * (1 - 1e-9));
        }
}

/* M = 10 h, delta = 20 s: sqrt(2 * 20 * 36000) = 1200 s; Daly's own is 2/3 delta or so off it. */
static void test_young(void **state)
{
    struct dtp_goodput_inputs in = {1e6, 36000, 20, 900};
    struct dtp_goodput out;
    (void)state;
    dtp_goodput_of(&in, &out);
    assert_close(out.young_s, 1200, 1e-9);
    assert_close(out.interval_s, 1200, 20);
    assert_close(out.failures_count, out.expected_s / 36000, 1e-9);
    assert_close(out.fraction, 1e6 / out.expected_s, 1e-12);
}

static void test_nothing_fails(void **state)
{
    struct dtp_goodput_inputs in = {1000, INFINITY, 10, 300}, short_job = {10, 1e9, 1, 0};
    struct dtp_goodput out;
    struct dtp_goodput_trials trials;
    (void)state;
    dtp_goodput_of(&in, &out);
    assert_close(out.expected_s, 1010, 0); /* a checkpoint at the end */
    assert_close(out.failures_count, 0, 0);
    dtp_goodput_simulate(&in, out.interval_s, 0.95, 100, 1, &trials);
    assert_close(trials.quantile_s, 1010, 0);
    dtp_goodput_of(&short_job, &out); /* shorter than any interval worth it */
    assert_close(out.interval_s, 10, 0);
    assert_close(out.expected_s, 11, 1e-6);
}

/* A training much shorter than its one checkpoint: it ends, most of its time goes into writing. */
static void test_short_is_not_hopeless(void **state)
{
    struct dtp_goodput_inputs in = {1e-3, 1e6, 10, 600};
    struct dtp_goodput out;
    (void)state;
    dtp_goodput_of(&in, &out);
    assert_false(out.hopeless);
    assert_close(out.expected_s, 10.001, 1e-2);
}

static void test_hopeless(void **state)
{
    struct dtp_goodput_inputs in = {1e6, 60, 3600, 600}; /* an hour to write, a failure a minute */
    struct dtp_goodput out;
    struct dtp_goodput_trials trials;
    (void)state;
    dtp_goodput_of(&in, &out);
    assert_true(out.hopeless);
    assert_true(isfinite(out.expected_s));
    dtp_goodput_simulate(&in, out.interval_s, 0.95, 1000, 1, &trials);
    assert_int_equal(trials.trials, 0);
}

/* The mean of many runs is the formula's; both know failures during writing and restarting. */
static void test_runs_agree_with_the_formula(void **state)
{
    static const struct dtp_goodput_inputs cases[] = {
        {1e6, 36000, 20, 900}, {1e6, 3600, 60, 900}, {1e5, 1800, 300, 1200}, {2e5, 1e5, 5, 60}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dtp_goodput out;
        struct dtp_goodput_trials trials, again;
        dtp_goodput_of(&cases[i], &out);
        dtp_goodput_simulate(&cases[i], out.interval_s, 0.95, 4000, 7, &trials);
        assert_int_equal(trials.trials, 4000);
        assert_close(trials.mean_s, out.expected_s, 0.01 * out.expected_s);
        assert_true(trials.quantile_s > trials.mean_s);
        dtp_goodput_simulate(&cases[i], out.interval_s, 0.95, 4000, 7, &again);
        assert_close(again.quantile_s, trials.quantile_s, 0); /* seeded */
    }
}

/* Llama 3 paper, 3.3.4: 54 days on 16,384 GPUs, 419 unexpected interruptions, more than 90 % of the time effective. The
 * default is their rate: 16384 * 54 * 24 / 419 = 50,677 GPU-hours. A checkpoint of 405B parameters in bf16 with fp32
 * master and moments is 14 bytes each, and the storage writes 2 TB/s. */
static void test_llama3(void **state)
{
    struct dtp_goodput_inputs in = {.mtbf_s = DTP_DEFAULT_GPU_MTBF_H * 3600.0 / 16384,
                                    .checkpoint_s = 405e9 * 14 / 2e12,
                                    .restart_s = DTP_DEFAULT_DETECTION_S + DTP_DEFAULT_RESTART_S};
    struct dtp_goodput out;
    (void)state;
    in.work_s = 0.9 * 54 * 86400;
    dtp_goodput_of(&in, &out);
    assert_true(out.fraction > 0.85 && out.fraction < 0.95);
    assert_close(out.failures_count, 419, 0.05 * 419);
}

/* N = 1e9: L = (8.8e4)^0.076 = 2.3757, B = 2e8 / 2.3757^4.76 = 2e8 / 61.5 = 3.25e6. */
static void test_critical_batch(void **state)
{
    (void)state;
    assert_close(dtp_critical_batch_tokens(1e9), 3.25e6, 0.02e6);
    assert_true(dtp_critical_batch_tokens(1e11) > dtp_critical_batch_tokens(1e9));
}

static void set(struct dtp_scenario *scenario, const char *key, const char *value)
{
    struct dtp_faults faults = {0};
    if (dtp_scenario_set(scenario, key, value, "test", 0, &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
}

static struct dtp_job job_of(const char *runtime, const char *gpus)
{
    struct dtp_catalog catalog = fixture_catalog();
    struct dtp_scenario *scenario;
    struct dtp_faults faults = {0};
    struct dtp_job job;
    assert_int_equal(dtp_scenario_create(&scenario, &faults), DTP_OK);
    set(scenario, "model", "llama-2-7b");
    set(scenario, "machine", "dgx-h100");
    set(scenario, "runtime", runtime);
    set(scenario, "gpus", gpus);
    set(scenario, "strategy", "full_shard");
    set(scenario, "micro_batch", "1");
    set(scenario, "storage", "100e9");
    if (dtp_scenario_resolve(scenario, &catalog, &job, &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
    dtp_scenario_destroy(scenario);
    return job;
}

/* Storage of 100 GB/s: our executor's ranks make 1.8 each, so 8 of them make less and 64 more; of PyTorch's nobody says
 * so. What a rank copies beside training is its share, at 0.87 of 64 GB/s. */
static void test_storage_or_writers(void **state)
{
    static const struct {
        const char *runtime, *gpus;
        double bytes_per_s;
    } cases[] = {{"dtplan", "8", 14.4e9}, {"dtplan", "64", 100e9}, {"torch", "8", 100e9}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dtp_job job = job_of(cases[i].runtime, cases[i].gpus);
        double bytes = dtp_checkpoint_bytes(&job), share = bytes / job.cluster.gpus;
        assert_true(bytes >= 12.0 * 6738415616);
        assert_close(dtp_goodput_inputs_of(&job, 1).checkpoint_s, bytes / cases[i].bytes_per_s, 1e-9 * bytes);
        assert_close(dtp_state_copy_bytes(&job), share, 1);
        assert_close(dtp_state_copy_s(&job), share / (0.87 * 64e9), 1e-6);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_interval_is_the_best),
                                       cmocka_unit_test(test_young),
                                       cmocka_unit_test(test_nothing_fails),
                                       cmocka_unit_test(test_short_is_not_hopeless),
                                       cmocka_unit_test(test_hopeless),
                                       cmocka_unit_test(test_runs_agree_with_the_formula),
                                       cmocka_unit_test(test_llama3),
                                       cmocka_unit_test(test_critical_batch),
                                       cmocka_unit_test(test_storage_or_writers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
