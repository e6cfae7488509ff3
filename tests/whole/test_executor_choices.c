#include "plan/executor_choices.h"
#include "runtime/runtimes.h"
#include "job/scenario.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>

#include "lib/scenario_fixture.h"

#include <string.h>

static const char words_of_ours[] = "runtime dtplan: "; /* how the help of a key begins that is of our executor alone */

/* A key that were missing here would be taken without a word under other runtimes, and never be said. */
static void test_every_key_of_ours_is_a_row(void **state)
{
    (void)state;
    struct dtp_plan plan = dtp_plan_default();
    struct dtp_executor_choice choices[DTP_EXECUTOR_CHOICE_COUNT];
    size_t key_count, ours = 0;
    const struct dtp_scenario_key *keys = dtp_scenario_keys(&key_count);
    dtp_executor_choices(&plan, choices);
    for (size_t i = 0; i < key_count; i++) {
        bool found = false;
        if (strncmp(keys[i].words, words_of_ours, sizeof words_of_ours - 1) != 0)
            continue;
        ours++;
        for (size_t c = 0; c < DTP_EXECUTOR_CHOICE_COUNT; c++)
            found |= strcmp(choices[c].key, keys[i].key) == 0;
        if (!found)
            fail_msg("no row for %s", keys[i].key);
    }
    assert_int_equal(ours, DTP_EXECUTOR_CHOICE_COUNT);
}

static void test_values(void **state)
{
    (void)state;
    struct dtp_plan plan = dtp_plan_default();
    struct dtp_executor_choice choices[DTP_EXECUTOR_CHOICE_COUNT];
    dtp_executor_choices(&plan, choices);
    for (size_t c = 0; c < DTP_EXECUTOR_CHOICE_COUNT; c++)
        assert_true(choices[c].value == 0);
    assert_string_equal(dtp_executor_choice_word(&choices[DTP_EXECUTOR_CHOICE_gather_engine]), "sm");
    plan.executor.gather_engine = DTP_ENGINE_COPY;
    plan.executor.clip_norm = 0.25;
    plan.executor.collective_ctas = 8;
    plan.executor.gradient_stream = true;
    dtp_executor_choices(&plan, choices);
    assert_string_equal(dtp_executor_choice_word(&choices[DTP_EXECUTOR_CHOICE_gather_engine]), "copy");
    assert_true(choices[DTP_EXECUTOR_CHOICE_clip_norm].value == 0.25);
    assert_true(choices[DTP_EXECUTOR_CHOICE_collective_ctas].value == 8);
    assert_true(choices[DTP_EXECUTOR_CHOICE_gradient_stream].value == 1);
    assert_null(dtp_executor_choice_word(&choices[DTP_EXECUTOR_CHOICE_collective_ctas]));
}

/* Each of them, and no other, is refused under another runtime, by its key. */
static void test_refused_elsewhere(void **state)
{
    (void)state;
    size_t key_count;
    const struct dtp_scenario_key *keys = dtp_scenario_keys(&key_count);
    struct dtp_catalog catalog = fixture_catalog();
    for (size_t i = 0; i < key_count; i++) {
        if (strncmp(keys[i].words, words_of_ours, sizeof words_of_ours - 1) != 0)
            continue;
        struct dtp_faults faults = {0};
        struct dtp_scenario *scenario;
        struct dtp_job job;
        const char *value = !keys[i].value ? "true" : strcmp(keys[i].value, "sm|copy") == 0 ? "copy" : "64";
        assert_int_equal(dtp_scenario_create(&scenario, &faults), DTP_OK);
        dtp_scenario_set(scenario, "params", "1e9", "test", 0, &faults);
        dtp_scenario_set(scenario, "gpus", "8", "test", 0, &faults);
        dtp_scenario_set(scenario, keys[i].key, value, "test", 0, &faults);
        assert_int_equal(faults.count, 0);
        assert_int_equal(dtp_scenario_resolve(scenario, &catalog, &job, &faults), DTP_BAD_INPUT);
        if (!strstr(faults.text[0], keys[i].key) || !strstr(faults.text[0], "is a choice of runtime dtplan"))
            fail_msg("%s", faults.text[0]);
        dtp_scenario_destroy(scenario);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_key_of_ours_is_a_row), cmocka_unit_test(test_values),
                                       cmocka_unit_test(test_refused_elsewhere)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
