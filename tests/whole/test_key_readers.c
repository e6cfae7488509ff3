/* Who reads a key: each row of the table that names an only reader is refused where that does not read, by its key and
 * in one shape of words, taken where it does, and taken back by what a change of the plan leaves without a reader. */
#include "job/scenario_keys.h"
#include "plan/plan_keys.h"
#include "runtime/runtimes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "lib/hardware.h"
#include "lib/llama_7b.h"
#include "lib/scenario_fixture.h"

static const char *const only_keys[] = {
#define ANYONE NULL
#define FOR(reader) NULL
#define ONLY(reader) #reader
#define DTP_KEY(key, section, value, how, reader, tried, words) reader,
#include "job/job_keys.def"
#undef DTP_KEY
};

/* Values that are no key's default: one of them is taken. */
static bool set_other(enum dtp_key key, struct dtp_draft *draft)
{
    static const char *const values[] = {"false", "true", "1",   "2",   "64",   "copy", "cp-tp",     "a2a",  "gpipe",
                                         "cost",  "bf16", "q+v", "nf4", "fp16", "0.1",  "core_attn", "attn", "down"};
    const struct dtp_draft standard = {.plan = dtp_plan_default()};
    char why[256];
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        if (dtp_key_apply(key, values[i], draft, why, sizeof why) && !dtp_key_same(key, draft, &standard))
            return true;
    return false;
}

static struct dtp_draft draft_under(int runtime, int strategy)
{
    struct dtp_draft draft = {.plan = dtp_plan_default()};
    draft.plan.runtime = dtp_runtimes[runtime];
    draft.plan.strategy = (enum dtp_strategy)strategy;
    return draft;
}

static enum dtp_status resolve(struct dtp_plan plan, struct dtp_faults *faults)
{
    struct dtp_transformer transformer = llama_7b();
    struct dtp_cluster cluster = test_cluster(test_h200(), 16, 8);
    memset(faults, 0, sizeof *faults);
    return dtp_plan_resolve(&plan, &transformer, &cluster, faults);
}

/* Whether the faults name the key as one that nobody reads. */
static bool says_unread(const struct dtp_faults *faults, enum dtp_key key)
{
    char begin[96];
    snprintf(begin, sizeof begin, "%s: is for ", dtp_key_name(key));
    for (size_t i = 0; i < faults->count && i < DTP_FAULTS_KEPT; i++)
        if (strstr(faults->text[i], begin) &&
            (strstr(faults->text[i], " only; leave ") || strstr(faults->text[i], " only; give ")))
            return true;
    return false;
}

/* Where another choice than strategy and runtime leaves no reader, that one is named. */
static void test_what_hides_a_key_is_named(void **state)
{
    (void)state;
    static struct dtp_faults faults;
    struct dtp_plan plan = dtp_plan_default();
    plan.strategy = DTP_FULL_SHARD;
    plan.prefetch = false, plan.prefetch_depth = 2;
    assert_int_equal(resolve(plan, &faults), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "prefetch_depth: is for "));
    assert_non_null(strstr(faults.text[0], " only; leave out it or prefetch"));
    plan = dtp_plan_default();
    plan.strategy = DTP_FULL_SHARD, plan.runtime = &dtp_runtime_dtplan;
    plan.executor.update_in_backward = true, plan.clip_norm = 2;
    assert_int_equal(resolve(plan, &faults), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "clip_norm: is for "));
    assert_non_null(strstr(faults.text[0], " only; leave out it or update_in_backward"));
    plan = dtp_plan_default(); /* or a switch that is off */
    plan.strategy = DTP_DDP, plan.runtime = &dtp_runtime_peft;
    plan.adapters.rank = 8, plan.adapters.parameters = 1u << DTP_TARGET_DOWN;
    assert_int_equal(resolve(plan, &faults), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "lora_parameters: is for "));
    assert_non_null(strstr(faults.text[0], " only; leave it out, or give grouped_experts"));
}

/* False: the reader takes a key of its own beside it. */
static bool is_read_alone(const char *reader)
{
    static const char *const others[] = {
        "FSDP1",       "SPLIT_TENSORS",   "STAGES",      "INTERLEAVED", "SPLIT_CONTEXT", "SPLIT",        "ULYSSES",
        "ZERO_BUBBLE", "SPLIT_EXPERTS",   "EXPERT_ROOM", "ADAPTERS",    "INT4",          "BITSANDBYTES", "PREPARED",
        "FP8_LINEARS", "REENTRANT_UNITS", "FOLDERS",     "DTENSORS",    "CHECKPOINTS"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strcmp(reader, others[i]) == 0)
            return false;
    return true;
}

static void test_refused_where_nobody_reads(void **state)
{
    (void)state;
    static struct dtp_faults faults;
    size_t keys = 0;
    for (int key = 0; key < DTP_KEY_COUNT; key++) {
        uint32_t taken = 0, refused = 0;
        if (!only_keys[key])
            continue;
        keys++;
        for (int runtime = 0; runtime < DTP_RUNTIMES; runtime++)
            for (int strategy = 0; strategy < DTP_STRATEGY_COUNT; strategy++) {
                struct dtp_draft draft = draft_under(runtime, strategy);
                assert_true(set_other((enum dtp_key)key, &draft));
                bool read = dtp_key_reader_reads(dtp_key_reader((enum dtp_key)key), &draft.plan);
                enum dtp_status status = resolve(draft.plan, &faults);
                assert_int_equal(says_unread(&faults, (enum dtp_key)key), !read);
                assert_true(read || status == DTP_BAD_INPUT);
                taken += read, refused += !read;
            }
        if (!refused)
            fail_msg("%s is read everywhere", dtp_key_name((enum dtp_key)key));
        if (is_read_alone(only_keys[key]) != (taken > 0))
            fail_msg("%s is read in %u of %u plans", dtp_key_name((enum dtp_key)key), taken, taken + refused);
    }
    assert_true(keys >= 30);
}

/* What is dropped is what would have been refused, and nothing else. */
static void test_dropped_where_nobody_reads(void **state)
{
    (void)state;
    static struct dtp_faults faults;
    for (int key = 0; key < DTP_KEY_COUNT; key++)
        for (int runtime = 0; runtime < DTP_RUNTIMES && only_keys[key]; runtime++)
            for (int strategy = 0; strategy < DTP_STRATEGY_COUNT; strategy++) {
                struct dtp_draft draft = draft_under(runtime, strategy), before, standard;
                standard = draft;
                assert_true(set_other((enum dtp_key)key, &draft));
                before = draft;
                dtp_plan_drop_unread(&draft.plan);
                bool read = dtp_key_reader_reads(dtp_key_reader((enum dtp_key)key), &before.plan);
                assert_true(dtp_key_same((enum dtp_key)key, &draft, read ? &before : &standard));
                resolve(draft.plan, &faults);
                assert_false(says_unread(&faults, (enum dtp_key)key));
            }
}

/* A key whose help says that it is our executor's is refused under the others. */
static void test_our_own_keys(void **state)
{
    (void)state;
    static const char words_of_ours[] = "runtime dtplan: ";
    size_t count;
    const struct dtp_scenario_key *keys = dtp_scenario_keys(&count);
    for (size_t i = 0; i < count; i++) {
        bool ours = strncmp(keys[i].words, words_of_ours, sizeof words_of_ours - 1) == 0;
        assert_int_equal(ours, only_keys[i] && strncmp(only_keys[i], "EXECUTOR", 8) == 0);
    }
}

/* What a run takes as its default is taken where it is read: the norm of gradients, but where blocks are updated before
 * it is known. */
static void test_read_before_it_is_resolved(void **state)
{
    (void)state;
    static struct dtp_faults faults;
    struct dtp_scenario *scenario;
    assert_int_equal(dtp_scenario_create(&scenario, &faults), DTP_OK);
    assert_false(dtp_scenario_reads(scenario, "gradient_norm"));
    assert_true(dtp_scenario_reads(scenario, "runtime"));
    assert_int_equal(dtp_scenario_set(scenario, "runtime", "dtplan", NULL, 0, &faults), DTP_OK);
    assert_true(dtp_scenario_reads(scenario, "gradient_norm"));
    assert_int_equal(dtp_scenario_set(scenario, "update_in_backward", "true", NULL, 0, &faults), DTP_OK);
    assert_false(dtp_scenario_reads(scenario, "gradient_norm"));
    dtp_scenario_destroy(scenario);
}

/* Resolves a small model with one more key; the note that the plan has then, or NULL where that is refused. */
static const char *note_of(const char *runtime, const char *strategy, enum dtp_key key, const char *value,
                           struct dtp_job *job)
{
    static struct dtp_faults faults;
    const struct {
        const char *key, *value;
    } settings[] = {{"model", "llama-2-7b"},
                    {"gpus", "8"},
                    {"runtime", runtime},
                    {"strategy", strategy},
                    {dtp_key_name(key), value}};
    struct dtp_catalog catalog = fixture_catalog();
    struct dtp_scenario *scenario;
    memset(&faults, 0, sizeof faults);
    assert_int_equal(dtp_scenario_create(&scenario, &faults), DTP_OK);
    enum dtp_status status = DTP_OK;
    for (size_t i = 0; i < sizeof settings / sizeof *settings && status == DTP_OK; i++)
        status = dtp_scenario_set(scenario, settings[i].key, settings[i].value, NULL, 0, &faults);
    if (status == DTP_OK)
        status = dtp_scenario_resolve(scenario, &catalog, job, &faults);
    dtp_scenario_destroy(scenario);
    return status == DTP_OK ? job->plan_note : NULL;
}

/* A key that may stand where nothing reads it, for the sake of comparisons, is said to change nothing there, and only
 * there. */
static void test_said_where_nobody_reads(void **state)
{
    (void)state;
    static const char *const values[] = {"true", "false", "2"};
    static struct dtp_job job;
    const struct dtp_draft standard = {.plan = dtp_plan_unchosen()};
    size_t said = 0, read = 0;
    for (int key = 0; key < DTP_KEY_COUNT; key++)
        for (int runtime = 0; runtime < DTP_RUNTIMES && !only_keys[key]; runtime++)
            for (int strategy = 0; strategy < DTP_STRATEGY_COUNT; strategy++)
                for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
                    enum dtp_key_reader reader = dtp_key_reader((enum dtp_key)key);
                    const char *note =
                        reader == DTP_READER_ANYONE
                            ? NULL
                            : note_of(dtp_runtimes[runtime]->name, dtp_strategy_text((enum dtp_strategy)strategy),
                                      (enum dtp_key)key, values[v], &job);
                    const struct dtp_draft asked = {.plan = job.asked};
                    char words[128];
                    if (!note || dtp_key_same((enum dtp_key)key, &asked, &standard))
                        continue;
                    bool reads = dtp_key_reader_reads(reader, &job.plan);
                    snprintf(words, sizeof words, "%s %s changes nothing here: it is for ",
                             dtp_key_name((enum dtp_key)key), values[v]);
                    if (reads != !strstr(note, words))
                        fail_msg("%s under %s: '%s'", words, dtp_runtimes[runtime]->name, note);
                    said += !reads, read += reads;
                }
    assert_true(said > 100 && read > 10);
    assert_non_null(strstr(note_of("torch", "ddp", DTP_KEY_deadline, "2h", &job), "deadline 2h changes nothing here"));
    assert_string_equal(note_of("torch", "ddp", DTP_KEY_rope_fp32, "true", &job), "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_hides_a_key_is_named),  cmocka_unit_test(test_refused_where_nobody_reads),
        cmocka_unit_test(test_dropped_where_nobody_reads), cmocka_unit_test(test_our_own_keys),
        cmocka_unit_test(test_read_before_it_is_resolved), cmocka_unit_test(test_said_where_nobody_reads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
