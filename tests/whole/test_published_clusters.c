/* Example scenarios of models with experts on the clusters on which somebody measured them: tokens a second and GPU by
 * formulas, beside the published figure that the scenario's first lines name, within 12 %. Nothing is fitted to them.
 */
#include "job/scenario.h"
#include "job/variant.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "lib/shipped_catalog.h"

static void test_within(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        double tokens_per_s; /* of a GPU */
    } published[] = {{"qwen3-235b-a22b-256xgb200", 7376}, {"kimi-k2-256xgb300", 5372}};
    struct dtp_predictor formulas = dtp_predictor_closed();
    for (size_t i = 0; i < sizeof published / sizeof *published; i++) {
        char path[512];
        struct dtp_faults faults = {0};
        struct dtp_scenario *scenario = NULL;
        struct dtp_job job;
        struct dtp_prediction prediction;
        snprintf(path, sizeof path, TEST_SOURCE_DIR "/scenarios/%s.ini", published[i].name);
        assert_int_equal(dtp_scenario_create(&scenario, &faults), DTP_OK);
        if (dtp_scenario_read(scenario, path, &faults) || dtp_scenario_resolve(scenario, &catalog, &job, &faults))
            fail_msg("%s", faults.text[0]);
        assert_int_equal(formulas.predict(formulas.context, &job, &prediction, &faults), DTP_OK);
        double error = prediction.throughput.tokens_per_s_per_gpu / published[i].tokens_per_s - 1;
        print_message("%s: %+.1f %%\n", published[i].name, 100 * error);
        assert_true(fabs(error) < 0.12);
        assert_int_not_equal(prediction.memory.verdict, DTP_VERDICT_OOM);
        dtp_scenario_destroy(scenario);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_within)};
    return cmocka_run_group_tests(tests, load_catalog, drop_catalog);
}
