/* The time of a step from miniatures against the simulation of the whole step, over random plans of all runtimes. Of
 * the plans that miniatures answer 95 of 100 are held to 0.1 % and 99 to 1 %, and they are to answer four in ten: what
 * is left are nets of few layers, DDP's buckets, and steps that change their course before their last layer. With five
 * seeds, 10,000 plans: 52 % answered, half of these equal to six digits, 99 of 100 within 0.22 %, the worst 4.4 % off.
 */
#include "lower/lower.h"
#include "runtime/runtimes.h"
#include "sim/miniature_time.h"
#include "sim/simulated.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "lib/llama_7b.h"
#include "lib/random_draws.h"
#include "lib/random_executor_plans.h"

#define JOBS RANDOM_DRAWS(2000)
#define EXECUTOR_JOBS 400

struct tally {
    int plans, answered;
    double off[JOBS];
};

static int by_size(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double quantile(const struct tally *t, double share)
{
    return t->answered ? t->off[(int)(share * (t->answered - 1))] : 0;
}

static void add(const struct random_job *random, struct tally *t)
{
    struct dtp_job job = {.transformer = random->transformer, .cluster = random->cluster, .plan = random->plan};
    struct dtp_simulation_options options = dtp_simulation_options_default();
    struct dtp_miniature_time miniature;
    struct dtp_program *program;
    struct dtp_timeline whole;
    options.replay_allocator = false;
    if (dtp_lower(&job.transformer, &job.cluster, &job.plan, 0, &program, NULL) != DTP_OK)
        return;
    t->plans++;
    enum dtp_status status = dtp_miniature_time_of(&job, &miniature, NULL);
    assert_true(status == DTP_OK || status == DTP_NO);
    if (status == DTP_OK) {
        assert_int_equal(dtp_simulate(program, &job.cluster, &options, &whole, NULL), DTP_OK);
        t->off[t->answered++] = fabs(miniature.sums.step_s / whole.step_s - 1);
        dtp_timeline_release(&whole);
    }
    dtp_program_destroy(program);
}

static void sort_and_print(const char *name, struct tally *t)
{
    qsort(t->off, (size_t)t->answered, sizeof *t->off, by_size);
    print_message("%-10s %4d plans, %4d from miniatures: off by %.5f %% in the middle, 95 of 100 %.4f, 99 of 100 %.3f, "
                  "worst %.2f %%\n",
                  name, t->plans, t->answered, 100 * quantile(t, 0.5), 100 * quantile(t, 0.95), 100 * quantile(t, 0.99),
                  100 * quantile(t, 1));
}

static void check(const struct tally *sorted)
{
    assert_true(quantile(sorted, 0.95) <= 0.001);
    assert_true(quantile(sorted, 0.99) <= 0.01);
    assert_true(10 * sorted->answered >= 4 * sorted->plans);
}

static void test_random_plans(void **state)
{
    (void)state;
    random_seed();
    static struct tally tally[DTP_RUNTIMES], all;
    for (int i = 0; i < JOBS; i++) {
        struct random_job job;
        unsigned runtime = 0;
        assert_true(random_job(&job));
        while (dtp_runtimes[runtime] != job.plan.runtime)
            runtime++;
        int before = tally[runtime].answered, plans = tally[runtime].plans;
        add(&job, &tally[runtime]);
        if (tally[runtime].answered > before)
            all.off[all.answered++] = tally[runtime].off[before];
        all.plans += tally[runtime].plans - plans; /* none of plans that have a program for each role */
    }
    for (unsigned i = 0; i < DTP_RUNTIMES; i++)
        sort_and_print(dtp_runtimes[i]->name, &tally[i]);
    sort_and_print("all", &all);
    check(&all);
}

static void test_executor_plans(void **state)
{
    (void)state;
    random_seed();
    static struct tally tally;
    for (int i = 0; i < EXECUTOR_JOBS; i++) {
        struct random_job job;
        assert_true(random_executor_job(&job));
        job.transformer.layers += random_below(64); /* its own are at most 12 */
        add(&job, &tally);
    }
    sort_and_print("executor", &tally);
    check(&tally);
}

static struct dtp_job llama_7b_job(const struct dtp_runtime *runtime, uint64_t layers, uint32_t accumulate)
{
    struct dtp_job job = {.transformer = llama_7b(), .cluster = test_cluster(test_h200(), 8, 8)};
    job.transformer.layers = layers;
    job.plan = dtp_plan_default();
    job.plan.runtime = runtime;
    job.plan.strategy = DTP_FULL_SHARD;
    job.plan.sequence = 2048;
    job.plan.accumulate = accumulate;
    assert_int_equal(dtp_plan_resolve(&job.plan, &job.transformer, &job.cluster, NULL), DTP_OK);
    return job;
}

/* Every figure of a plain step, one of many micro-steps and one of layers in which attention's window alternates. */
static void test_all_figures(void **state)
{
    (void)state;
    struct dtp_job jobs[] = {llama_7b_job(&dtp_runtime_torch, 32, 1), llama_7b_job(&dtp_runtime_torch, 32, 9),
                             llama_7b_job(&dtp_runtime_torch, 41, 1)};
    jobs[2].transformer.sliding_window = 256, jobs[2].transformer.sliding_window_pattern = 3;
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        struct dtp_simulation_options options = dtp_simulation_options_default();
        struct dtp_miniature_time miniature;
        struct dtp_simulated whole;
        assert_int_equal(dtp_miniature_time_of(&jobs[i], &miniature, NULL), DTP_OK);
        assert_int_equal(dtp_simulated_create(&jobs[i], &options, &whole, NULL), DTP_OK);
        struct dtp_prediction from = whole.closed;
        dtp_step_time_of(&miniature.sums, &from.time, &from.throughput);
        const double *a = (const double *)&from.time, *b = (const double *)&whole.prediction.time;
        for (size_t f = 0; f < sizeof from.time / sizeof *a; f++)
            assert_true(fabs(a[f] - b[f]) <= 1e-5 * whole.prediction.time.step_s);
        assert_true(fabs(from.throughput.mfu / whole.prediction.throughput.mfu - 1) <= 1e-5);
        assert_true(miniature.layers < jobs[i].transformer.layers);
        dtp_simulated_release(&whole);
    }
}

/* Under our executor the root's last reduction runs beside the update of the layers, which there are more of in a
 * larger net: 4.4 ms of it and others stick out in one of 3 layers, 0.2 less with each more, until from 16 layers on
 * the step ends with the update and each layer adds its part of that. */
static void test_course_changes(void **state)
{
    (void)state;
    struct dtp_miniature_time miniature;
    struct dtp_job few = llama_7b_job(&dtp_runtime_dtplan, 14, 1), many = llama_7b_job(&dtp_runtime_dtplan, 32, 1);
    assert_int_equal(dtp_miniature_time_of(&few, &miniature, NULL), DTP_OK);
    assert_int_equal(dtp_miniature_time_of(&many, &miniature, NULL), DTP_NO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_plans), cmocka_unit_test(test_executor_plans),
                                       cmocka_unit_test(test_all_figures), cmocka_unit_test(test_course_changes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
