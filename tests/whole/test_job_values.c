/* Plans that differ differ in what is written of them: for every key of the table two values are tried on plans that
 * know it, and the CSV row and the JSON object must tell them apart. A key that is new and has no column fails here. */
#include "job/scenario_keys.h"
#include "job/job_values.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "lib/scenario_fixture.h"
#include "lib/written_job.h"

/* Plans that between them know every key. */
static const char *const bases[] = {
    "model=llama-2-7b gpus=16 strategy=full_shard compile=true",
    "layers=4 hidden=1024 heads=16 vocab=32000 gpus=16 strategy=hybrid_shard norm=layer_norm",
    "layers=4 hidden=1024 heads=16 vocab=32000 position=learned gpus=16 strategy=ddp seq=512",
    "model=llama-2-7b gpus=16 strategy=full_shard fsdp1=true",
    "model=llama-2-7b gpus=16 strategy=zero3 runtime=deepspeed",
    "model=llama-2-7b gpus=16 strategy=zero1 runtime=megatron tp=2 pp=2 accumulate=8",
    "model=llama-2-7b gpus=16 strategy=zero1 runtime=megatron tp=2 pp=2 accumulate=8 sequence_parallel=false",
    "model=llama-2-7b gpus=16 strategy=zero1 runtime=megatron pp=2 virtual_stages=2 accumulate=8",
    "model=llama-2-7b gpus=16 strategy=zero1 runtime=megatron pp=2 schedule=zb-h2 accumulate=8",
    "model=gpt2-124m gpus=8 strategy=full_shard runtime=dtplan seq=1024 tokens=1e9",
    "model=llama-2-7b gpus=8 precision=fp8-tensorwise",
    "params=1e9 nodes=1",
    "model=gpt2-124m gpus=8 strategy=zero1 runtime=deepspeed",
    "model=llama-2-7b gpus=8 strategy=zero1 runtime=deepspeed cp=2",
    "model=llama-2-7b gpus=8 strategy=zero1 runtime=deepspeed tp=2",
    "model=gpt2-124m gpus=8 strategy=zero1 runtime=deepspeed megatron_layers=true attention=math",
    "model=gpt2-124m precision=fp16-mixed",
    "model=llama-2-7b gpus=8 strategy=full_shard runtime=dtplan precision=bf16-pure",
    "model=llama-2-7b gpus=8 strategy=ddp runtime=dtplan tp=2 tp_overlap=true",
    "model=llama-2-7b gpus=8 strategy=ddp runtime=dtplan pp=2 accumulate=4",
    "model=llama-2-7b gpus=8 sliding_window=1024",
    "model=llama-2-7b gpus=8 strategy=full_shard tp=2",
    "model=llama-2-7b gpus=8 lora=16",
    "model=llama-2-7b gpus=8 strategy=full_shard runtime=peft",
    "model=gpt2-124m gpus=8 strategy=ddp runtime=peft precision=bf16-pure",
    "model=llama-2-7b gpus=8 strategy=full_shard runtime=peft fsdp1=true lora=16 checkpointing=full",
    "model=llama-2-7b gpus=8 strategy=full_shard precision=fp8-rowwise",
    "model=llama-2-7b gpus=8 strategy=ddp runtime=peft lora=16 base=int4",
    "model=llama-2-7b gpus=8 strategy=ddp runtime=peft lora=16 lora_dtype=fp32 precision=bf16-mixed base=nf4",
    "model=llama-2-7b gpus=8 strategy=ddp runtime=peft lora=16 lora_dtype=fp32 precision=bf16-mixed base=nf4 "
    "prepare_kbit=true",
};

static bool resolve(const char *base, const char *key, const char *value, struct dtp_job *job)
{
    static struct dtp_faults faults;
    struct dtp_catalog catalog = fixture_catalog();
    struct dtp_scenario *scenario;
    char text[512], *rest = text, *word;
    memset(&faults, 0, sizeof faults);
    snprintf(text, sizeof text, "%s", base);
    assert_int_equal(dtp_scenario_create(&scenario, &faults), DTP_OK);
    while ((word = strtok_r(rest, " ", &rest))) {
        char *equals = strchr(word, '=');
        *equals = '\0';
        assert_int_equal(dtp_scenario_set(scenario, word, equals + 1, "test", 0, &faults), DTP_OK);
    }
    bool good = !key || dtp_scenario_set(scenario, key, value, "test", 0, &faults) == DTP_OK;
    good = good && dtp_scenario_resolve(scenario, &catalog, job, &faults) == DTP_OK;
    dtp_scenario_destroy(scenario);
    return good;
}

/* Value `index` to try of a key: switches, numbers of several sizes, each of its words. */
static bool candidate(const struct dtp_scenario_key *key, size_t index, char *out, size_t bytes)
{
    static const char *const numbers[] = {"2",   "4",     "8",  "16",  "512", "1k",  "3e9",
                                          "1.5", "12288", "32", "1e8", "1",   "0.1", "0.5"};
    static const char *const words[] = {"bf16",    "fp32",     "fp16",      "5h",   "20GB",
                                        "every-2", "v100-sxm", "gpt2-124m", "rack", "cp-tp"};
    if (!key->value) {
        snprintf(out, bytes, "%s", index ? "false" : "true");
        return index < 2;
    }
    if (strchr(key->value, '|')) {
        const char *at = key->value;
        for (; at && index; index--)
            at = (at = strchr(at, '|')) ? at + 1 : NULL;
        snprintf(out, bytes, "%.*s", at ? (int)strcspn(at, "|") : 0, at ? at : "");
        if (at)
            return true;
    }
    size_t number_count = sizeof numbers / sizeof *numbers, word_count = sizeof words / sizeof *words;
    if (index >= number_count + word_count)
        return false;
    snprintf(out, bytes, "%s", index < number_count ? numbers[index] : words[index - number_count]);
    return true;
}

/* Whether a value of the key, taken by a base, gives another job than the base: then CSV and JSON must differ too. */
static bool key_is_told(const struct dtp_scenario_key *key)
{
    for (size_t b = 0; b < sizeof bases / sizeof *bases; b++) {
        struct dtp_job base, changed;
        char value[64];
        assert_true(resolve(bases[b], NULL, NULL, &base));
        for (size_t i = 0; candidate(key, i, value, sizeof value); i++) {
            if (!resolve(bases[b], key->key, value, &changed))
                continue;
            bool csv = written_differ(&base, &changed, false), json = written_differ(&base, &changed, true);
            if (csv != json)
                fail_msg("%s=%s on '%s': told apart by %s only", key->key, value, bases[b], csv ? "CSV" : "JSON");
            if (csv)
                return true;
        }
    }
    return false;
}

/* Of models with experts or latent attention, which no base has. */
static bool is_refused(size_t key)
{
    return (key >= DTP_KEY_experts && key <= DTP_KEY_mtp_layers) || key == DTP_KEY_ep ||
           key == DTP_KEY_expert_imbalance || key == DTP_KEY_expert_room || key == DTP_KEY_flex_dispatcher ||
           key == DTP_KEY_etp || key == DTP_KEY_expert_overlap || key == DTP_KEY_recompute_modules ||
           key == DTP_KEY_bf16_first_layers || key == DTP_KEY_bf16_last_layers || key == DTP_KEY_fp8_attention ||
           key == DTP_KEY_fp8_head || key == DTP_KEY_fp8_param_gather || key == DTP_KEY_precision_aware_optimizer ||
           key == DTP_KEY_cuda_graph_modules || key == DTP_KEY_unfused_permute || key == DTP_KEY_capacity_factor ||
           key == DTP_KEY_pad_to_capacity || key == DTP_KEY_shared_expert_overlap || key == DTP_KEY_autoep ||
           key == DTP_KEY_drop_tokens || key == DTP_KEY_grouped_experts || key == DTP_KEY_lora_parameters;
}

static void test_every_key_is_told(void **state)
{
    (void)state;
    size_t count, told = 0, refused = 0;
    const struct dtp_scenario_key *keys = dtp_scenario_keys(&count);
    for (size_t i = 0; i < count; i++) {
        if (strcmp(keys[i].key, "name") == 0 || strncmp(keys[i].key, "cp", 2) == 0)
            continue; /* changes no prediction; no base shares sequences */
        if (is_refused(i)) {
            refused++;
            continue;
        }
        if (!key_is_told(&keys[i]))
            print_error("%s: no two values of it are told apart\n", keys[i].key);
        else
            told++;
    }
    assert_int_equal(told, count - 4 - refused);
}

/* Every key has a column and a field by name, also where no base tells. */
static void test_every_key_has_a_field(void **state)
{
    (void)state;
    struct dtp_job job;
    struct dtp_job_value values[DTP_JOB_VALUES_MAX];
    size_t count;
    dtp_scenario_keys(&count);
    assert_true(resolve(bases[0], NULL, NULL, &job));
    assert_int_equal(dtp_job_values(&job, values), count);
    char *text = written_job(&job, true);
    json_t *object = json_loads(text, 0, NULL);
    assert_non_null(object);
    for (size_t i = 0; i < count; i++) {
        const char *key = values[i].key->key, *section = values[i].key->section;
        char name[96];
        if (strcmp(key, section) == 0)
            continue; /* model: its name */
        if (!json_object_get(json_object_get(object, section),
                             dtp_job_value_name(values[i].key, false, name, sizeof name)))
            fail_msg("no field %s.%s", section, name);
    }
    json_decref(object);
    free(text);
}

static void test_values(void **state)
{
    (void)state;
    struct dtp_job job;
    struct dtp_job_value values[DTP_JOB_VALUES_MAX];
    size_t seen = 0;
    assert_true(
        resolve("model=llama-2-7b nodes=2 checkpointing=every-4 ddp_bucket_mib=12.5 deadline=2h", NULL, NULL, &job));
    size_t count = dtp_job_values(&job, values);
    for (size_t i = 0; i < count; i++) {
        const char *key = values[i].key->key;
        if (strcmp(key, "gpus") == 0 && ++seen)
            assert_int_equal(values[i].whole, 16);
        if (strcmp(key, "gpu") == 0 && ++seen)
            assert_string_equal(values[i].word, "h100-sxm");
        if (strcmp(key, "checkpointing") == 0 && ++seen)
            assert_string_equal(values[i].word, "every-4");
        if (strcmp(key, "ddp_bucket_mib") == 0 && ++seen)
            assert_true(values[i].real == 12.5);
        if (strcmp(key, "deadline") == 0 && ++seen)
            assert_true(values[i].real == 7200 && !values[i].missing);
        if (strcmp(key, "budget") == 0 && ++seen)
            assert_true(values[i].missing);
        if (strcmp(key, "shard_group") == 0 && ++seen)
            assert_int_equal(values[i].whole, 16);
    }
    assert_int_equal(seen, 7);
}

/* Under tensor and pipeline parallelism a step has as many sequences as data-parallel ranks take, in CSV and JSON. */
static void test_batch_of_model_parallel_ranks(void **state)
{
    (void)state;
    struct dtp_job job;
    assert_true(
        resolve("model=llama-2-7b gpus=16 strategy=zero1 runtime=megatron tp=4 pp=2 accumulate=4", NULL, NULL, &job));
    char *text = written_job(&job, true);
    json_t *object = json_loads(text, 0, NULL), *plan = json_object_get(object, "plan");
    assert_int_equal(json_integer_value(json_object_get(plan, "global_batch")), 8); /* 1 x 4 x 16 / (4 x 2) */
    assert_int_equal(json_integer_value(json_object_get(plan, "tp")), 4);
    assert_int_equal(json_integer_value(json_object_get(plan, "pp")), 2);
    json_decref(object);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_key_is_told),
        cmocka_unit_test(test_every_key_has_a_field),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_batch_of_model_parallel_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
