/* Runs of fp8 and of fp16 with loss scaling on H200 (scenarios/h200_more_runs.csv) as backtests score them: within what
 * was asked for, 6 % of the allocated memory and 15 % of tokens/s, medians 1 and 6 %. Two rates of casts were fitted to
 * the five of fp8; what stays for backward was not. */
#include "runs/backtest.h"
#include "sim/simulated.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "lib/shipped_catalog.h"

static const char *const ids[] = {"h200-more-dev-01", "h200-more-dev-03", "h200-more-dev-04",
                                  "h200-more-dev-07", "h200-more-dev-10", "h200-more-dev-14"};
enum { RUNS = sizeof ids / sizeof *ids, HOLDOUT = 95, LAYOUTS = 42, HELD = 172, LIBRARIES = 62, PREDICTED = 58 };

static int ascending(const void *left, const void *right)
{
    double l = *(const double *)left, r = *(const double *)right;
    return (l > r) - (l < r);
}

static void assert_errors(const char *of, double *errors_pct, size_t count, double most_median, double most)
{
    qsort(errors_pct, count, sizeof *errors_pct, ascending);
    double median = (errors_pct[(count - 1) / 2] + errors_pct[count / 2]) / 2;
    print_message("%s: median %.2f %%, largest %.2f %%\n", of, median, errors_pct[count - 1]);
    assert_true(median <= most_median && errors_pct[count - 1] <= most);
}

/* Errors of the rows of a table that are predicted, of `only` where it is not NULL, each once; how many there are. */
static size_t errors_of(const char *table, const char *const *only, enum dtp_run_memory kind, double *memory_pct,
                        double *speed_pct, size_t most)
{
    struct dtp_faults faults = {0};
    struct dtp_backtest *backtest = NULL;
    const struct dtp_predictor simulated = dtp_predictor_simulated();
    size_t count = 0;
    assert_int_equal(dtp_backtest_run_only(table, NULL, &simulated, &catalog, &backtest, &faults), DTP_OK);
    for (size_t i = 0; i < backtest->row_count; i++) {
        bool wanted = backtest->rows[i].predicted;
        for (size_t k = 0; only && wanted && k <= most; k++)
            if (k == most || strcmp(backtest->rows[i].run.id, only[k]) == 0) {
                wanted = k < most;
                break;
            }
        if (!wanted)
            continue;
        assert_true(count < most);
        memory_pct[count] = fabs(backtest->rows[i].memory_error_pct[kind]);
        speed_pct[count++] = fabs(backtest->rows[i].error_pct);
    }
    dtp_backtest_destroy(backtest);
    return count;
}

struct limits {
    double median_pct, most_pct;
};

/* All rows of a table of scenarios/ that are predicted, so many. */
static void check_table(const char *name, enum dtp_run_memory kind, size_t count, struct limits memory,
                        struct limits speed)
{
    double memory_pct[HOLDOUT], speed_pct[HOLDOUT];
    char path[512];
    assert_true(count <= HOLDOUT);
    snprintf(path, sizeof path, "%s/scenarios/%s", TEST_SOURCE_DIR, name);
    assert_int_equal(errors_of(path, NULL, kind, memory_pct, speed_pct, count), count);
    assert_errors("memory", memory_pct, count, memory.median_pct, memory.most_pct);
    assert_errors("tokens/s", speed_pct, count, speed.median_pct, speed.most_pct);
}

static void test_runs(void **state)
{
    (void)state;
    double allocated_pct[RUNS], speed_pct[RUNS];
    assert_int_equal(errors_of(TEST_SOURCE_DIR "/scenarios/h200_more_runs.csv", ids, DTP_RUN_ALLOCATED, allocated_pct,
                               speed_pct, RUNS),
                     RUNS);
    assert_errors("allocated", allocated_pct, RUNS, 1, 6);
    assert_errors("tokens/s", speed_pct, RUNS, 6, 15);
}

/* 44 runs of the script of h200_parallel_runs.csv on two GPUs, with other models and layouts, to which nothing was
 * fitted: 40 are predicted. Allocated is of the rank furthest off. */
static void test_holdout_layouts(void **state)
{
    (void)state;
    check_table("holdout_parallel_runs.csv", DTP_RUN_STAGES, LAYOUTS, (struct limits){0.15, 8.5},
                (struct limits){4, 16});
}

/* What ranks of layouts of four and eight hold, measured on one GPU that stands for them, without a time: where a row
 * has ranks with their places, by the one furthest off; what a rank allocates, but of pipelines, whose fullest is not
 * among the two measured. */
static void test_layout_memory(void **state)
{
    (void)state;
    double stage_pct[HELD], allocated_pct[HELD], speed_pct[HELD];
    const char *table = TEST_SOURCE_DIR "/scenarios/layout_memory_runs.csv";
    size_t stages = 0, filled = 0;
    assert_int_equal(errors_of(table, NULL, DTP_RUN_STAGES, stage_pct, speed_pct, HELD), HELD);
    assert_int_equal(errors_of(table, NULL, DTP_RUN_ALLOCATED, allocated_pct, speed_pct, HELD), HELD);
    for (size_t i = 0; i < HELD; i++) {
        assert_true(isnan(speed_pct[i]));
        if (!isnan(stage_pct[i]))
            stage_pct[stages++] = stage_pct[i];
        if (!isnan(allocated_pct[i]))
            allocated_pct[filled++] = allocated_pct[i];
    }
    assert_int_equal(stages, 118);
    assert_int_equal(filled, 103);
    assert_errors("ranks", stage_pct, stages, 0.15, 10.5);
    assert_errors("allocated", allocated_pct, filled, 0.05, 2.5);
}

/* 95 runs of the same script with other models and settings, 65 of them on one GPU, to which nothing was fitted: all
 * are predicted. Of time the largest errors are small models', which hosts held up that took 1.4 to 2 times as long as
 * when calls were measured; the twenty last ran on the slowest. */
static void test_holdout(void **state)
{
    (void)state;
    check_table("holdout_more_runs.csv", DTP_RUN_ALLOCATED, HOLDOUT, (struct limits){0.1, 3}, (struct limits){5, 60});
}

/* Transformers' Trainer with peft and bitsandbytes, and DeepSpeed's engine, as they were measured themselves: rules of
 * theirs were mended by these rows. Memory is within 5 %; of time what waits for these slow hosts and LLM.int8 are far
 * off (reports/h200/library_runs.md). Rows of a fake process group have no time. */
static void test_libraries(void **state)
{
    (void)state;
    double allocated_pct[LIBRARIES], speed_pct[LIBRARIES];
    size_t timed = 0;
    const char *table = TEST_SOURCE_DIR "/scenarios/library_runs.csv";
    size_t count = errors_of(table, NULL, DTP_RUN_ALLOCATED, allocated_pct, speed_pct, LIBRARIES);
    assert_int_equal(count, PREDICTED);
    for (size_t i = 0; i < count; i++)
        if (!isnan(speed_pct[i]))
            speed_pct[timed++] = speed_pct[i];
    assert_int_equal(timed, PREDICTED - 8);
    assert_errors("allocated", allocated_pct, count, 0.2, 5);
    assert_errors("tokens/s", speed_pct, timed, 10, 80);
    assert_true(speed_pct[timed * 3 / 4] < 32);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_runs), cmocka_unit_test(test_holdout),
                                       cmocka_unit_test(test_libraries), cmocka_unit_test(test_holdout_layouts),
                                       cmocka_unit_test(test_layout_memory)};
    return cmocka_run_group_tests(tests, load_catalog, drop_catalog);
}
