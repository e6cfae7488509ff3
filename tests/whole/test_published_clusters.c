/* Example scenarios of models with experts on the clusters on which somebody measured them: tokens a second and GPU,
 * beside the published figure that the scenario's first lines name. Nothing is fitted to these scenarios. */
#include "job/scenario.h"
#include "job/variant.h"
#include "sim/simulated.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "lib/shipped_catalog.h"

/* The job of a scenario that ships. */
static struct dtp_job job_of(const char *name)
{
    char path[512];
    struct dtp_faults faults = {0};
    struct dtp_scenario *scenario = NULL;
    struct dtp_job job;
    snprintf(path, sizeof path, TEST_SOURCE_DIR "/scenarios/%s.ini", name);
    assert_int_equal(dtp_scenario_create(&scenario, &faults), DTP_OK);
    if (dtp_scenario_read(scenario, path, &faults) || dtp_scenario_resolve(scenario, &catalog, &job, &faults))
        fail_msg("%s", faults.text[0]);
    dtp_scenario_destroy(scenario);
    return job;
}

/* Predicted over measured, less 1. */
static double error_of(const struct dtp_predictor *predictor, const struct dtp_job *job, double tokens_per_s)
{
    struct dtp_faults faults = {0};
    struct dtp_prediction prediction;
    assert_int_equal(predictor->predict(predictor->context, job, &prediction, &faults), DTP_OK);
    assert_int_not_equal(prediction.memory.verdict, DTP_VERDICT_OOM);
    return prediction.throughput.tokens_per_s_per_gpu / tokens_per_s - 1;
}

/* Simulated within 12 %. Formulas know nothing of a host that is late, as it is without a CUDA graph. */
static void test_within(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        double tokens_per_s; /* of a GPU */
        double simulated, formulas;
    } published[] = {{"qwen3-235b-a22b-256xgb200", 7376, 0.12, 0.12},
                     {"kimi-k2-256xgb300", 5372, 0.12, 0.12},
                     {"gpt-oss-120b-64xb200", 13568, 0.12, 0.40},
                     {"gpt-oss-120b-64xgb300", 33024, 0.12, 0.12}};
    struct dtp_predictor formulas = dtp_predictor_closed(), simulated = dtp_predictor_simulated();
    for (size_t i = 0; i < sizeof published / sizeof *published; i++) {
        struct dtp_job job = job_of(published[i].name);
        double by_formulas = error_of(&formulas, &job, published[i].tokens_per_s);
        double by_program = error_of(&simulated, &job, published[i].tokens_per_s);
        print_message("%s: %+.1f %% simulated, %+.1f %% by formulas\n", published[i].name, 100 * by_program,
                      100 * by_formulas);
        assert_true(fabs(by_formulas) < published[i].formulas);
        assert_true(fabs(by_program) < published[i].simulated);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_within)};
    return cmocka_run_group_tests(tests, load_catalog, drop_catalog);
}
