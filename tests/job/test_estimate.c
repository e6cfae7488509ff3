/* An estimate that remembers a program it has lowered is the estimate of the program itself. */
#include "job/estimate.h"
#include "lower/lower.h"
#include "lower/miniature.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "lib/random_executor_plans.h"

#define JOBS 90 /* more than are remembered */
#define ASKED RANDOM_DRAWS(1500)

static struct random_job jobs[JOBS];

/* Of jobs that come again and again with other numbers of micro-steps: the live bytes of each are those of its own
 * program, which nothing was remembered of. */
static void test_what_is_remembered(void **state)
{
    (void)state;
    int estimated = 0, bounds = 0;
    random_seed();
    for (int i = 0; i < JOBS;) {
        assert_true(random_job(&jobs[i]));
        i += !dtp_plan_model_parallel(&jobs[i].plan); /* else the program is that of a slice */
    }
    for (int i = 0; i < ASKED; i++) {
        const struct random_job *job = &jobs[random_below(JOBS)];
        struct dtp_plan plan = job->plan;
        struct dtp_estimate_base base;
        struct dtp_miniature own;
        plan.accumulate = 1 + (uint32_t)random_below(9);
        if (dtp_plan_resolve(&plan, &job->transformer, &job->cluster, NULL) != DTP_OK)
            continue;
        assert_int_equal(dtp_estimate_base_of(&job->transformer, &job->cluster, &plan, &base, NULL), DTP_OK);
        enum dtp_status status =
            dtp_miniature_of(&job->transformer, &job->cluster, &plan, DTP_LOWER_MOST_OPS, &own, NULL);
        assert_int_equal(base.bound, status != DTP_OK);
        estimated += status == DTP_OK;
        bounds += status != DTP_OK;
        if (status == DTP_OK)
            assert_memory_equal(&base.live, &own.live, sizeof own.live);
    }
    print_message("%d estimated, %d bounds\n", estimated, bounds);
    assert_true(estimated > ASKED / 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_what_is_remembered)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
