/* The other words that people type for a key or a value: one meaning each, wherever a key may stand, and said. */
#include "job/axes.h"
#include "job/scenario.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "lib/scenario_fixture.h"

static struct dtp_faults faults;
static struct dtp_job job;

/* Resolves an INI text. */
static enum dtp_status resolve(const char *text)
{
    struct dtp_catalog catalog = fixture_catalog();
    struct dtp_scenario *scenario;
    memset(&faults, 0, sizeof faults);
    assert_int_equal(dtp_scenario_create(&scenario, &faults), DTP_OK);
    enum dtp_status status = dtp_scenario_parse(scenario, "test.ini", text, strlen(text), &faults);
    if (status == DTP_OK)
        status = dtp_scenario_resolve(scenario, &catalog, &job, &faults);
    dtp_scenario_destroy(scenario);
    return status;
}

static void assert_job(const char *text)
{
    if (resolve(text) != DTP_OK)
        fail_msg("%s: %s", text, faults.text[0]);
}

static void assert_refused(const char *text, const char *words)
{
    assert_int_equal(resolve(text), DTP_BAD_INPUT);
    if (!strstr(faults.text[0], words))
        fail_msg("%s", faults.text[0]);
}

/* A word that were also a key, or a value of its key, would have two meanings. */
static void test_each_word_has_one_meaning(void **state)
{
    (void)state;
    size_t count, key_count;
    const struct dtp_scenario_alias *aliases = dtp_scenario_aliases(&count);
    const struct dtp_scenario_key *keys = dtp_scenario_keys(&key_count);
    assert_true(count >= 7);
    for (size_t i = 0; i < count; i++) {
        const struct dtp_scenario_key *key = dtp_scenario_key_of(aliases[i].key);
        char choices[256], words[600], choice[64];
        assert_non_null(key);
        for (size_t k = 0; k < key_count && !aliases[i].value; k++)
            assert_string_not_equal(aliases[i].word, keys[k].key);
        if (!aliases[i].value)
            continue;
        snprintf(choice, sizeof choice, "|%s|", aliases[i].word);
        snprintf(words, sizeof words, "|%s|", key->value);
        assert_int_equal(strstr(words, choice) != NULL, strcmp(aliases[i].word, aliases[i].value) == 0);
        snprintf(words, sizeof words, "|%s|", dtp_scenario_key_choices(key, choices, sizeof choices));
        assert_non_null(strstr(words, choice));
        assert_non_null(strstr(dtp_scenario_key_words(key, words, sizeof words), aliases[i].words));
    }
}

static void test_words_for_keys(void **state)
{
    (void)state;
    assert_job("[model]\nmodel = llama-2-7b\n[cluster]\ngpus = 8\n[plan]\nbatch_size = 4\n"
               "gradient_accumulation_steps = 2\nsequence_length = 1k\n");
    assert_int_equal(job.plan.micro_batch, 4);
    assert_int_equal(job.plan.accumulate, 2);
    assert_int_equal(job.plan.sequence, 1024);
    assert_non_null(strstr(job.plan_note, "batch_size 4: micro_batch, sequences per GPU"));
    assert_non_null(strstr(job.plan_note, "sequence_length 1k: seq"));
    assert_job("[model]\nmodel = llama-2-7b\n[plan]\nmicro_batch = 4\n");
    assert_string_equal(job.plan_note, "");
}

static void test_key_and_other_word(void **state)
{
    (void)state;
    assert_refused("[model]\nmodel = llama-2-7b\n[plan]\nmicro_batch = 4\nbatch_size = 4\n",
                   "test.ini:5: batch_size: is the same as micro_batch of line 4");
    assert_refused("[model]\nmodel = llama-2-7b\n[plan]\nsequence_length = 4k\nseq = 4k\n",
                   "test.ini:5: seq: is the same as sequence_length of line 4");
    assert_refused("[model]\nmodel = llama-2-7b\nbatch_size = 2\n", "belongs into [plan]");
}

static void test_nodes(void **state)
{
    (void)state;
    assert_job("[model]\nmodel = llama-2-7b\n[cluster]\nnodes = 4\n");
    assert_int_equal(job.cluster.gpus, 32);
    assert_int_equal(job.cluster.gpus_per_node, 8);
    assert_job("[model]\nmodel = llama-2-7b\n[cluster]\nnodes = 2\ngpus_per_node = 4\n");
    assert_int_equal(job.cluster.gpus, 8);
    assert_int_equal(job.cluster.nodes, 2);
    assert_job("[model]\nmodel = llama-2-7b\n[cluster]\nnodes = 2\ngpus = 16\n");
    assert_int_equal(job.cluster.nodes, 2);
    assert_job("[model]\nmodel = llama-2-7b\n[cluster]\nnodes = 2\nmachine = rack\n");
    assert_int_equal(job.cluster.gpus, 144);
    assert_refused("[model]\nmodel = llama-2-7b\n[cluster]\nnodes = 2\ngpus = 8\n",
                   "nodes: 2 nodes of 8 GPUs have 16, but gpus is 8; leave one of them out, or set gpus_per_node to 4");
    assert_refused("[model]\nmodel = llama-2-7b\n[cluster]\nnodes = 1000000\n", "at most 1000000");
    assert_refused("[model]\nmodel = llama-2-7b\n[cluster]\nnodes = 0\n", "whole number from 1");
}

static void test_offload_cpu(void **state)
{
    (void)state;
    static const struct {
        const char *plan;
        enum dtp_offload offload;
    } cases[] = {{"strategy = full_shard", DTP_OFFLOAD_PARAMS},
                 {"strategy = shard_grad_op", DTP_OFFLOAD_PARAMS},
                 {"strategy = zero3", DTP_OFFLOAD_PARAMS}, /* torch's zero3 is FSDP */
                 {"strategy = zero3\nruntime = deepspeed", DTP_OFFLOAD_OPTIMIZER},
                 {"strategy = zero2", DTP_OFFLOAD_OPTIMIZER},
                 {"strategy = zero1\nruntime = dtplan", DTP_OFFLOAD_OPTIMIZER}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[256], said[64];
        snprintf(text, sizeof text, "[model]\nmodel = llama-2-7b\n[cluster]\ngpus = 8\n[plan]\noffload = cpu\n%s\n",
                 cases[i].plan);
        assert_job(text);
        assert_int_equal(job.plan.offload, cases[i].offload);
        snprintf(said, sizeof said, "offload cpu: %s", dtp_offload_text(cases[i].offload));
        assert_non_null(strstr(job.plan_note, said));
    }
    assert_refused("[model]\nmodel = llama-2-7b\n[cluster]\ngpus = 8\n[plan]\nstrategy = ddp\noffload = cpu\n",
                   "PyTorch offloads under full_shard");
}

static void test_precision(void **state)
{
    (void)state;
    static const char *const taken[][2] = {{"fp16", "fp16-mixed"}, {"fp8", "fp8-tensorwise"}, {"bf16", "bf16"}};
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) {
        char text[256];
        snprintf(text, sizeof text, "[model]\nmodel = llama-2-7b\n[plan]\nprecision = %s\n", taken[i][0]);
        assert_job(text);
        assert_string_equal(dtp_precision_name(&job.plan.precision), taken[i][1]);
        snprintf(text, sizeof text, "precision %s: ", taken[i][0]);
        assert_non_null(strstr(job.plan_note, text));
    }
    assert_job("[model]\nmodel = llama-2-7b\n[plan]\nprecision = bf16-mixed\n");
    assert_string_equal(job.plan_note, "");
}

/* An axis by another word is the key's; all values of a key are its own, none of them twice by another word. */
static void test_axes(void **state)
{
    (void)state;
    struct dtp_catalog catalog = fixture_catalog();
    struct dtp_axes axes = {0};
    memset(&faults, 0, sizeof faults);
    assert_int_equal(dtp_axes_add(&axes, &catalog, "batch_size", "1..4x2", "test", &faults), DTP_OK);
    assert_int_equal(dtp_axes_add(&axes, &catalog, "offload", "all", "test", &faults), DTP_OK);
    assert_int_equal(dtp_axes_add(&axes, &catalog, "precision", "fp8,fp16-mixed", "test", &faults), DTP_OK);
    assert_string_equal(axes.axes[0].key, "micro_batch");
    assert_int_equal(axes.axes[0].count, 3);
    assert_int_equal(axes.axes[1].count, 4);
    assert_int_equal(axes.axes[2].count, 2);
    dtp_axes_release(&axes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_word_has_one_meaning),
        cmocka_unit_test(test_words_for_keys),
        cmocka_unit_test(test_key_and_other_word),
        cmocka_unit_test(test_nodes),
        cmocka_unit_test(test_offload_cpu),
        cmocka_unit_test(test_precision),
        cmocka_unit_test(test_axes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
