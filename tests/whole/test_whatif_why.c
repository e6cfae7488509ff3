/* Why a change does what it does, in words: their figures by hand. */
#include "decide/whatif.h"
#include "job/estimate.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "lib/scenario_fixture.h"

static void predict(const char *pp, struct dtp_variant *out)
{
    static const char *const settings[][2] = {
        {"model", "llama-2-7b"}, {"gpus", "8"}, {"runtime", "megatron"}, {"strategy", "zero1"}, {"accumulate", "4"}};
    static struct dtp_catalog catalog;
    static struct dtp_job job;
    struct dtp_scenario *scenario;
    struct dtp_faults faults = {0};
    catalog = fixture_catalog();
    assert_int_equal(dtp_scenario_create(&scenario, &faults), DTP_OK);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        assert_int_equal(dtp_scenario_set(scenario, settings[i][0], settings[i][1], "test", 0, &faults), DTP_OK);
    assert_int_equal(dtp_scenario_set(scenario, "pp", pp, "test", 0, &faults), DTP_OK);
    assert_int_equal(dtp_scenario_resolve(scenario, &catalog, &job, &faults), DTP_OK);
    assert_int_equal(dtp_variant_predict(&job, &job.asked, job.cluster.gpus, out, NULL, 0), DTP_OK);
    dtp_scenario_destroy(scenario);
}

/* Where ranks share a sequence the tokens of a GPU are fewer: four sequences of 2048 on four GPUs are 2048 of each. */
static void test_per_token(void **state)
{
    (void)state;
    static struct dtp_variant alone, shared;
    char why[400];
    predict("1", &alone);
    predict("4", &shared);
    dtp_whatif_why(&alone, &shared, why, sizeof why);
    const char *words = strstr(why, "pipeline bubble of ");
    assert_non_null(words);
    assert_non_null(strstr(words, " us per token of a GPU"));
    double said_us = strtod(words + strlen("pipeline bubble of "), NULL);
    assert_true(fabs(said_us / (1e6 * shared.prediction.time.bubble_s / 2048) - 1) < 0.01);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_per_token)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
