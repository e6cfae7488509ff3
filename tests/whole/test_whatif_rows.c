/* What changes of a plan are to each other and to the tokens of a step. */
#include "decide/whatif.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "lib/scenario_fixture.h"

static struct dtp_whatif *whatif;

/* Of a scenario of "key=value key=value ...". */
static void ask(const char *settings)
{
    struct dtp_faults faults = {0};
    struct dtp_predictor closed = dtp_predictor_closed();
    struct dtp_catalog catalog = fixture_catalog();
    struct dtp_scenario *scenario;
    char text[256], *rest = text, *word;
    snprintf(text, sizeof text, "%s", settings);
    assert_int_equal(dtp_scenario_create(&scenario, &faults), DTP_OK);
    while ((word = strtok_r(rest, " ", &rest))) {
        char *value = strchr(word, '=');
        *value++ = '\0';
        assert_int_equal(dtp_scenario_set(scenario, word, value, "test", 0, &faults), DTP_OK);
    }
    assert_int_equal(dtp_whatif(scenario, &catalog, &closed, NULL, whatif, &faults), DTP_OK);
    dtp_scenario_destroy(scenario);
}

/* A global batch says how many tokens a step has, whatever divides them; without one each rank brings its own. And two
 * words for one plan are one row. */
static void test_tokens_of_all_ranks(void **state)
{
    static const struct {
        const char *job, *flags, *note;
    } cases[] = {{"params=7e9 gpu=h100-sxm gpus=16 global_batch=64 micro_batch=2", "--gpus 32", ""},
                 {"params=7e9 gpu=h100-sxm gpus=16 global_batch=64 micro_batch=2", "--tp 2", ""},
                 {"params=7e9 gpu=h100-sxm gpus=16 micro_batch=2", "--gpus 32", "tokens per step x 2"},
                 {"params=7e9 gpu=h100-sxm gpus=16 micro_batch=2", "--tp 2", "tokens per step / 2"},
                 {"params=7e9 gpu=h100-sxm gpus=16 micro_batch=2", "--micro-batch 4", "tokens per step x 2"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char note[96];
        const struct dtp_whatif_row *row = NULL;
        ask(cases[i].job);
        for (size_t k = 0; k < whatif->count; k++) {
            row = strcmp(whatif->rows[k].flags, cases[i].flags) == 0 ? &whatif->rows[k] : row;
            for (size_t j = 0; j < k; j++)
                assert_true(whatif->rows[j].question != whatif->rows[k].question ||
                            whatif->rows[j].variant.job.cluster.gpus != whatif->rows[k].variant.job.cluster.gpus ||
                            memcmp(&whatif->rows[j].variant.job.plan, &whatif->rows[k].variant.job.plan,
                                   sizeof(struct dtp_plan)) != 0);
        }
        assert_non_null(row);
        dtp_change_batch_note(&whatif->base.job, &row->variant.job, note, sizeof note);
        assert_string_equal(note, cases[i].note);
    }
}

/* Switches of shards are none of a plan that one GPU does not shard, nor of its neighbours. */
static void test_one_gpu_shards_nothing(void **state)
{
    (void)state;
    ask("params=7e9 gpu=h100-sxm gpus=1 runtime=peft lora=8");
    assert_true(whatif->count > 5);
    static const char *const none[] = {"--keep-root", "--wrap-ends", "--no-prefetch"};
    for (size_t i = 0; i < whatif->count; i++)
        for (size_t k = 0; k < sizeof none / sizeof *none; k++)
            assert_string_not_equal(whatif->rows[i].flags, none[k]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_tokens_of_all_ranks),
                                       cmocka_unit_test(test_one_gpu_shards_nothing)};
    whatif = malloc(sizeof *whatif);
    int failed = whatif ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
    free(whatif);
    return failed;
}
