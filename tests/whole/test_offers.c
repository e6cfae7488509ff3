/* What is offered can be typed: over frozen jobs each change that whatif ranks and that the advisor names gives, typed
 * behind the job's own flags, a job that resolves and that is predicted as it was said. */
#include "decide/advise.h"
#include "job/estimate.h"
#include "decide/whatif.h"
#include "job/scenario_keys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "lib/frozen_jobs.h"
#include "lib/typed_flags.h"

#define EVERY 4u /* of the frozen jobs */

static struct dtp_faults faults;
static size_t broken;

/* Whether the flags, typed behind the scenario, predict the step that was said; says what they do otherwise. */
static void type_back(const struct frozen_job *frozen, const struct dtp_scenario *scenario, const char *flags,
                      double step_s)
{
    struct dtp_scenario *typed;
    struct dtp_job job;
    struct dtp_prediction prediction = {0};
    memset(&faults, 0, sizeof faults);
    assert_int_equal(dtp_scenario_copy(scenario, &typed, &faults), DTP_OK);
    type_flags(flags, typed, &faults);
    bool good = faults.count == 0 && dtp_scenario_resolve(typed, &catalog, &job, &faults) == DTP_OK;
    if (good)
        dtp_closed_form(&job.transformer, &job.cluster, &job.plan, &prediction);
    dtp_scenario_destroy(typed);
    if (good && prediction.time.step_s == step_s)
        return;
    char words[4096];
    broken++;
    print_error("dtplan plan%s\n    offers %s, ", frozen_words(frozen, words, sizeof words), flags);
    if (good)
        print_error("%g s a step, typed it is %g s\n", step_s, prediction.time.step_s);
    else
        print_error("typed: %s\n", faults.text[0]);
}

/* The scenario of a frozen job, or NULL where it is refused, or has no closed form. */
static struct dtp_scenario *scenario_of(const struct frozen_job *frozen, struct dtp_job *job)
{
    struct dtp_scenario *scenario;
    memset(&faults, 0, sizeof faults);
    assert_int_equal(dtp_scenario_create(&scenario, &faults), DTP_OK);
    bool good = frozen_set_keys(frozen, scenario, &faults) == DTP_OK &&
                dtp_scenario_resolve(scenario, &catalog, job, &faults) == DTP_OK && job->plan.limit_all_gathers;
    if (good)
        return scenario;
    dtp_scenario_destroy(scenario);
    return NULL;
}

static void test_changes(void **state)
{
    (void)state;
    struct dtp_whatif *whatif = malloc(sizeof *whatif);
    struct dtp_predictor closed = dtp_predictor_closed();
    size_t offered = 0;
    assert_non_null(whatif);
    broken = 0;
    for (uint32_t number = 0; number < FROZEN_JOBS; number += EVERY) {
        struct frozen_job frozen;
        struct dtp_job job;
        frozen_draw(number, &frozen);
        struct dtp_scenario *scenario = scenario_of(&frozen, &job);
        if (!scenario)
            continue;
        assert_int_equal(dtp_whatif(scenario, &catalog, &closed, NULL, whatif, &faults), DTP_OK);
        for (size_t i = 0; i < whatif->count; i++, offered++)
            type_back(&frozen, scenario, whatif->rows[i].flags, whatif->rows[i].variant.prediction.time.step_s);
        dtp_scenario_destroy(scenario);
    }
    free(whatif);
    print_message("%zu changes are offered, %zu are not what they say\n", offered, broken);
    assert_true(offered > 1000);
    assert_int_equal(broken, 0);
}

static void test_advice(void **state)
{
    (void)state;
    size_t offered = 0;
    broken = 0;
    for (uint32_t number = 0; number < FROZEN_JOBS; number += EVERY) {
        struct frozen_job frozen;
        struct dtp_job job;
        struct dtp_prediction closed;
        static struct dtp_advice advice;
        frozen_draw(number, &frozen);
        struct dtp_scenario *scenario = scenario_of(&frozen, &job);
        if (!scenario)
            continue;
        assert_int_equal(dtp_estimate(&job.transformer, &job.cluster, &job.plan, &closed, &faults), DTP_OK);
        dtp_advise(&job, &closed, scenario, &catalog, &advice);
        for (size_t i = 0; i < advice.count; i++, offered++)
            type_back(&frozen, scenario, advice.changes[i].flags, advice.changes[i].variant.prediction.time.step_s);
        dtp_scenario_destroy(scenario);
    }
    print_message("%zu changes are advised, %zu are not what they say\n", offered, broken);
    assert_true(offered > 100);
    assert_int_equal(broken, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_changes),
        cmocka_unit_test(test_advice),
    };
    return cmocka_run_group_tests(tests, enter_frozen_jobs, drop_catalog);
}
