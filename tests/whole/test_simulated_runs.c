/* Simulated memory and time against 82 measured PyTorch runs on H200, H100 and other parts: the 35 that the closed
 * form's constants were fitted on and 47 that nothing was. The simulation reads configuration columns only. */
#include "lower/lower.h"
#include "runs/run_table.h"
#include "sim/simulate.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#define MAX_ROWS 64

struct errors {
    double percent[MAX_ROWS];
    size_t count;
};

static void add(struct errors *errors, double predicted, double measured)
{
    if (measured > 0 && errors->count < MAX_ROWS)
        errors->percent[errors->count++] = 100 * fabs(predicted / measured - 1);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void check_errors(struct errors *errors, const char *what, double median_limit, double limit)
{
    qsort(errors->percent, errors->count, sizeof *errors->percent, ascending);
    double median = errors->percent[errors->count / 2], largest = errors->percent[errors->count - 1];
    print_message("%s: %zu rows, median %.2f %%, largest %.2f %%\n", what, errors->count, median, largest);
    assert_true(median <= median_limit);
    assert_true(largest <= limit);
}

struct table_errors {
    struct errors allocated, reserved, time;
    size_t rows;
};

static void simulate_row(const struct dtp_job *job, const struct dtp_run_measured *measured,
                         struct table_errors *errors)
{
    static struct dtp_faults faults;
    struct dtp_program *program;
    struct dtp_timeline timeline;
    struct dtp_simulation_options options = dtp_simulation_options_default();
    faults = (struct dtp_faults){0};
    if (dtp_lower(&job->transformer, &job->cluster, &job->plan, 0, &program, &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
    assert_int_equal(dtp_simulate(program, &job->cluster, &options, &timeline, NULL), DTP_OK);
    double tokens = (double)job->plan.micro_batch * (double)job->plan.sequence * job->plan.accumulate;
    add(&errors->allocated, (double)timeline.allocated_peak_bytes, measured->memory_bytes[DTP_RUN_ALLOCATED]);
    add(&errors->reserved, (double)timeline.reserved_peak_bytes, measured->memory_bytes[DTP_RUN_RESERVED]);
    add(&errors->time, tokens / timeline.step_s, measured->tokens_per_s_per_gpu);
    errors->rows++;
    dtp_timeline_release(&timeline);
    dtp_program_destroy(program);
}

/* `experts`: rows of models with experts alone. */
static struct table_errors simulate_table(const char *path, bool experts)
{
    static struct dtp_faults faults;
    static struct dtp_catalog catalog;
    struct dtp_table *table = NULL;
    struct dtp_run_columns columns;
    struct table_errors errors = {.rows = 0};
    assert_int_equal(dtp_catalog_load(TEST_SOURCE_DIR "/scenarios", &catalog, &faults), DTP_OK);
    assert_int_equal(dtp_table_read(path, &table, &faults), DTP_OK);
    assert_int_equal(dtp_run_columns_find(table, &columns, &faults), DTP_OK);
    for (size_t i = 0; i < dtp_table_row_count(table); i++) {
        struct dtp_run run;
        struct dtp_run_measured measured;
        struct dtp_job job;
        assert_int_equal(dtp_run_read(table, i, &columns, &run, &faults), DTP_OK);
        if (experts && !run.experts)
            continue;
        assert_int_equal(dtp_run_read_measured(table, i, &columns, &measured, &faults), DTP_OK);
        assert_int_equal(dtp_run_job(&run, &catalog, &job, &faults), DTP_OK);
        simulate_row(&job, &measured, &errors);
    }
    dtp_table_destroy(table);
    dtp_catalog_destroy(&catalog);
    return errors;
}

/* The largest errors in time are the rows over sockets between two pretended nodes, -34 and -35; in reserved memory it
 * is the 7B on the host, -30: as measured it is less than the tensors of its loss, its two largest reductions, its
 * weights, its checkpoints and its gathers take in segments of their own, so something gave segments back that is not
 * known. */
static void test_h200_runs(void **state)
{
    (void)state;
    struct table_errors errors = simulate_table(TEST_SOURCE_DIR "/scenarios/h200_torch_runs.csv", false);
    assert_int_equal(errors.rows, 35);
    check_errors(&errors.allocated, "allocated", 0.1, 1);
    check_errors(&errors.reserved, "reserved", 0.6, 32);
    check_errors(&errors.time, "tokens/s", 2.0, 16);
}

static void test_holdout_runs(void **state)
{
    (void)state;
    struct table_errors errors = simulate_table(TEST_SOURCE_DIR "/scenarios/holdout_torch_runs.csv", false);
    assert_int_equal(errors.rows, 47);
    check_errors(&errors.allocated, "allocated", 0.1, 1);
    check_errors(&errors.reserved, "reserved", 0.6, 8);
    check_errors(&errors.time, "tokens/s", 3.2, 11);
}

/* With 8 and 64 experts on one and four GPUs, which divide them in four rows; the host's time of that is a fit to two
 * of these, nothing of memory is. */
static void test_runs_with_experts(void **state)
{
    (void)state;
    struct table_errors errors = simulate_table(TEST_SOURCE_DIR "/scenarios/h200_more_runs.csv", true);
    assert_int_equal(errors.rows, 10);
    check_errors(&errors.allocated, "allocated", 0.5, 1.5);
    check_errors(&errors.time, "tokens/s", 6, 15);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_h200_runs), cmocka_unit_test(test_holdout_runs),
                                       cmocka_unit_test(test_runs_with_experts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
