#include "job/scenario.h"
#include "runtime/runtimes.h"

#include "lib/scenario_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct dtp_catalog catalog;
static struct dtp_scenario *scenario;
static struct dtp_faults faults;
static struct dtp_job job;

static int begin(void **state)
{
    (void)state;
    catalog = fixture_catalog();
    memset(&faults, 0, sizeof faults);
    return dtp_scenario_create(&scenario, &faults) == DTP_OK ? 0 : -1;
}

static int end(void **state)
{
    (void)state;
    dtp_scenario_destroy(scenario);
    return 0;
}

static enum dtp_status parse(const char *text)
{
    memset(&faults, 0, sizeof faults);
    return dtp_scenario_parse(scenario, "job.ini", text, strlen(text), &faults);
}

static enum dtp_status resolve(void)
{
    memset(&faults, 0, sizeof faults);
    return dtp_scenario_resolve(scenario, &catalog, &job, &faults);
}

/* "key=value key=value ..." as flags of one call, then resolve. */
static enum dtp_status given(const char *settings)
{
    char text[1024];
    dtp_scenario_destroy(scenario);
    assert_int_equal(dtp_scenario_create(&scenario, &faults), DTP_OK);
    memset(&faults, 0, sizeof faults);
    snprintf(text, sizeof text, "%s", settings);
    for (char *rest = text, *word; (word = strtok_r(rest, " ", &rest));) {
        char *value = strchr(word, '=');
        if (value)
            *value++ = 0;
        if (dtp_scenario_set(scenario, word, value, NULL, 0, &faults) != DTP_OK)
            fail_msg("%s", faults.text[0]);
    }
    return resolve();
}

static void assert_given(const char *settings)
{
    if (given(settings) != DTP_OK)
        fail_msg("%s: %s", settings, faults.text[0]);
}

static void assert_fault(const char *words)
{
    for (size_t i = 0; i < faults.count && i < DTP_FAULTS_KEPT; i++)
        if (strstr(faults.text[i], words))
            return;
    fail_msg("no fault '%s'; first of %zu: %s", words, faults.count, faults.text[0]);
}

static void assert_refused(const char *settings, const char *words)
{
    assert_int_equal(given(settings), DTP_BAD_INPUT);
    assert_fault(words);
}

/* ---- keys -------------------------------------------------------------------------------------------------------- */

static void test_every_key_is_documented_once(void **state)
{
    (void)state;
    size_t count;
    const struct dtp_scenario_key *keys = dtp_scenario_keys(&count);
    assert_true(count > 50);
    for (size_t i = 0; i < count; i++) {
        assert_true(strlen(keys[i].words) > 5);
        assert_true(!strcmp(keys[i].section, "model") || !strcmp(keys[i].section, "cluster") ||
                    !strcmp(keys[i].section, "plan") || !strcmp(keys[i].section, "money"));
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(keys[i].key, keys[j].key);
    }
}

static void test_later_settings_win_and_are_read_back(void **state)
{
    (void)state;
    assert_null(dtp_scenario_get(scenario, "micro_batch"));
    assert_int_equal(parse("[plan]\nmicro_batch = 4\n"), DTP_OK);
    assert_string_equal(dtp_scenario_get(scenario, "micro-batch"), "4");
    assert_int_equal(dtp_scenario_set(scenario, "micro-batch", "2k", "--micro-batch", 0, &faults), DTP_OK);
    assert_string_equal(dtp_scenario_get(scenario, "micro_batch"), "2k");
    assert_null(dtp_scenario_get(scenario, "no such key"));
}

static void test_bad_values_are_refused_where_they_stand(void **state)
{
    (void)state;
    static const struct {
        const char *key, *value, *fault;
    } cases[] = {{"micro_batch", "0", "--x: '0' is not a whole number from 1 to 1000000"},
                 {"micro_batch", "-1", "whole number"},
                 {"micro_batch", "1.5", "whole number"},
                 {"micro_batch", "nan", "whole number"},
                 {"gpus", "1e99", "whole number"},
                 {"params", "nan", "number from"},
                 {"params", "-7e9", "number from"},
                 {"params", "inf", "number from"},
                 {"strategy", "zero4", "one of ddp|zero1"},
                 {"strategy", "ddp,zero1,ddp", "'ddp' is there twice"},
                 {"strategy", "ddp,no_shard", "'no_shard' is there twice"}, /* the same by another name */
                 {"strategy", "ddp,,zero1", "'' is not one of ddp|zero1"},
                 {"strategy", "zero1,zero9", "'zero9' is not one of ddp|zero1"},
                 {"compile", "maybe", "true or false"},
                 {"param_dtype", "int4", "fp32|tf32"},
                 {"precision", "bf17", "one of fp32|bf16-mixed"},
                 {"checkpointing", "every-0", "every-N"},
                 {"seq", "0", "whole number"},
                 {"oversubscription", "0.5", "number from 1"},
                 {"name", "a\033[2Jb", "printable"},
                 {"name",
                  "a\xc2\x9b"
                  "2Jb",
                  "printable"}, /* the same to a terminal */
                 {"name", "a\xff", "UTF-8"},
                 {"name", "  ", "printable"},
                 {"ddp_bucket_mib", "0", "MiB"},
                 {"gpu", "", "has no value"},
                 {"gpu", NULL, "has no value"},
                 {"price", "-1", "number from 0.001"},
                 {"price", "0", "number from 0.001"}, /* nothing is the catalogue's price, so it is none to give */
                 {"micro_bach", "4", "did you mean 'micro_batch'"},
                 {"tokens-per-cow", "4", "unknown key"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memset(&faults, 0, sizeof faults);
        assert_int_equal(dtp_scenario_set(scenario, cases[i].key, cases[i].value, "--x", 0, &faults), DTP_BAD_INPUT);
        assert_fault(cases[i].fault);
        assert_null(dtp_scenario_get(scenario, cases[i].key));
    }
}

static void test_switches(void **state)
{
    (void)state;
    assert_given("model=llama-2-7b compile=yes prefetch=0");
    assert_true(job.plan.compile && !job.plan.prefetch);
    assert_given("model=llama-2-7b compile");
    assert_true(job.plan.compile);
    assert_given("model=llama-2-7b compile=FALSE");
    assert_false(job.plan.compile);
}

/* ---- models ------------------------------------------------------------------------------------------------------ */

static uint64_t count(void)
{
    return dtp_transformer_count(&job.transformer).total;
}

static void test_a_preset_as_it_is_and_changed(void **state)
{
    (void)state;
    assert_given("model=llama-2-7b");
    assert_true(count() == 6738415616u);
    assert_string_equal(job.transformer.name, "llama-2-7b");
    assert_string_equal(job.shape_note, "");
    assert_given("model=llama-2-7b layers=16");
    /* one layer is 4 h^2 + 3 h f + 2 h = 202383360 */
    assert_true(count() == 6738415616u - 16u * 202383360u);
    assert_string_equal(job.transformer.name, "llama-2-7b (changed)");
    assert_given("model=llama-2-7b heads=64 name=mine");
    assert_int_equal(job.transformer.head_dim, 64);
    assert_int_equal(job.transformer.kv_heads, 64);
    assert_string_equal(job.transformer.name, "mine");
    assert_given("model=llama-2-7b kv_heads=8 vocab=128256 tied_head");
    assert_true(count() == 6738415616u - 32u * 2 * 4096 * 3072 - 2u * 32000 * 4096 + 128256u * 4096);
    assert_refused("model=llama-2-7b heads=30", "do not divide");
    assert_refused("model=llama-2-7b kv_heads=5", "kv_heads");
    assert_refused("model=llama-9-7b", "llama-2-7b");
}

static void test_a_shape_by_dimensions(void **state)
{
    (void)state;
    assert_given("layers=32 hidden=4096 heads=32 vocab=32000");
    assert_true(count() == 6738415616u); /* LLaMA's ffn rule gives 11008 */
    assert_given("layers=12 hidden=768 heads=12 vocab=50257 norm=layer_norm bias activation=gelu position=learned "
                 "positions=1024 tied_head");
    assert_true(count() == 124439808u);
    assert_int_equal(job.plan.sequence, 1024); /* not longer than the table */
    assert_given("layers=2 hidden=64 heads=4 vocab=100 position=learned seq=256");
    assert_int_equal(job.transformer.positions, 256);
    assert_refused("layers=32 hidden=4096", "heads is missing");
    assert_fault("vocab is missing");
    assert_refused("layers=2 hidden=64 heads=4 vocab=100 positions=77", "positions");
}

static void test_params_alone_and_as_a_check(void **state)
{
    (void)state;
    assert_given("params=7e9");
    assert_true(count() > 6860000000u && count() < 7140000000u);
    assert_non_null(strstr(job.shape_note, "7.00 B"));
    assert_given("params=1.3b seq=4k");
    assert_int_equal(job.plan.sequence, 4096);
    assert_given("params=6.7B model=llama-2-7b");
    assert_string_equal(job.shape_note, "");
    assert_refused("params=7B model=llama-2-7b", "2 %");
    assert_refused("params=7B model=gpt2-124m", "124 M");
    assert_refused("params=1", "params");
    assert_refused("gpus=8", "--params 7B");
}

static void test_changing_a_family(void **state)
{
    (void)state;
    assert_given("model=gpt2-124m position=rope norm=rms_norm");
    assert_int_equal(job.transformer.positions, 0);
    assert_false(job.transformer.norm_bias);
    assert_given("model=llama-2-7b norm=layer_norm");
    assert_true(job.transformer.norm_bias);
    assert_given("model=gpt2-124m bias=false");
    assert_false(job.transformer.qkv_bias || job.transformer.mlp_bias || job.transformer.norm_bias);
    assert_given("model=gpt2-124m positions=512");
    assert_int_equal(job.plan.sequence, 512);
    assert_refused("model=gpt2-124m seq=2048", "1024 rows");
}

/* ---- clusters ---------------------------------------------------------------------------------------------------- */

static void assert_cluster(const char *settings, const char *gpu, uint32_t gpus, uint32_t per_node, uint32_t nodes)
{
    char text[256];
    snprintf(text, sizeof text, "model=gpt2-124m %s", settings);
    assert_given(text);
    assert_string_equal(job.cluster.gpu.key, gpu);
    assert_int_equal(job.cluster.gpus, gpus);
    assert_int_equal(job.cluster.gpus_per_node, per_node);
    assert_int_equal(job.cluster.nodes, nodes);
}

static void test_clusters(void **state)
{
    (void)state;
    assert_cluster("", "h100-sxm", 1, 1, 1);
    assert_cluster("gpus=8", "h100-sxm", 8, 8, 1);
    assert_cluster("gpus=4", "h100-sxm", 4, 4, 1);
    assert_int_equal(job.node_gpus, 8);
    assert_cluster("gpus=64", "h100-sxm", 64, 8, 8);
    assert_cluster("gpus=12 gpus_per_node=4", "h100-sxm", 12, 4, 3);
    assert_cluster("machine=dgx-h100", "h100-sxm", 8, 8, 1);
    assert_cluster("machine=dgx-v100 gpus=8 precision=fp16-mixed", "v100-sxm", 8, 4, 2);
    assert_cluster("gpu=v100-sxm gpus=4 precision=fp32", "v100-sxm", 4, 4, 1);
    assert_cluster("machine=box gpu=v100-sxm precision=fp32", "v100-sxm", 2, 2, 1);
    assert_cluster("machine=box gpus=4 network_gbit_per_s=100", "h100-sxm", 4, 2, 2);
    assert_true(job.cluster.machine.network_bytes_per_s == 12.5e9);
    assert_cluster("machine=rack gpus=256", "h100-sxm", 256, 64, 4);
    assert_int_equal(job.node_gpus, 64);
    assert_cluster("machine=rack gpus=144", "h100-sxm", 144, 72, 2);
    assert_refused("model=gpt2-124m machine=rack gpus=73", "use 72 or 144");
    assert_refused("model=gpt2-124m gpus=12", "use 8 or 16");
    assert_refused("model=gpt2-124m machine=box gpus=4", "no network");
    assert_refused("model=gpt2-124m machine=dgx-v100 gpu=h100-sxm", "holds v100-sxm");
    assert_refused("model=gpt2-124m gpu=h100-smx", "h100-sxm");
    assert_refused("model=gpt2-124m machine=dgx-h200", "dgx-h100");
    assert_refused("model=gpt2-124m gpus_per_node=16 gpus=16", "dgx-h100 has 8");
    assert_refused("model=gpt2-124m gpu=v100-sxm", "no bf16");
}

/* ---- plans ------------------------------------------------------------------------------------------------------- */

static void test_a_network_that_one_node_has_no_use_for(void **state)
{
    (void)state;
    assert_given("params=1e9 gpus=8 network=sockets");
    assert_string_equal(job.cluster_note, "one node needs no network: network sockets changes nothing");
    assert_given("params=1e9 gpus=8 oversubscription=2 leaf_nodes=4");
    assert_string_equal(job.cluster_note, "one node needs no network: oversubscription 2, leaf_nodes 4 change nothing");
    assert_given("params=1e9 gpus=16 network=sockets oversubscription=2 leaf_nodes=1");
    assert_string_equal(job.cluster_note, "");
    assert_given("params=1e9 gpus=8");
    assert_string_equal(job.cluster_note, "");
}

/* Nobody asked for what a runtime derives. */
static void test_no_note_of_what_was_not_asked(void **state)
{
    (void)state;
    assert_given("model=gpt2-124m gpus=8 strategy=zero1 runtime=megatron");
    assert_true(job.plan.fused_gate_up);
    assert_string_equal(job.plan_note, "");
    assert_given("model=gpt2-124m gpus=8 fused_gate_up=true");
    assert_non_null(strstr(job.plan_note, "fused_gate_up true changes nothing here"));
}

/* What follows for DeepSpeed's tensor parallel ranks, which have all of the stream, and those that share sequences. */
static void test_defaults_of_divided_runs(void **state)
{
    (void)state;
    assert_given("model=llama-2-7b gpus=8 strategy=zero2 tp=2");
    assert_false(job.plan.sequence_parallel);
    assert_given("model=llama-2-7b gpus=8 strategy=zero3 runtime=deepspeed cp=2");
    assert_int_equal(job.plan.cp_comm, DTP_CP_A2A);
    assert_given("model=llama-2-7b gpus=8 strategy=zero1 runtime=megatron tp=2 cp=2");
    assert_true(job.plan.sequence_parallel);
    assert_int_equal(job.plan.cp_comm, DTP_CP_P2P);
    assert_refused("model=llama-2-7b gpus=8 strategy=zero2 tp=2 sequence_parallel=true",
                   "true is not modelled under runtime deepspeed");
}

static void test_the_runtime_follows_zero2_only(void **state)
{
    (void)state;
    assert_given("model=llama-2-7b gpus=8 strategy=zero2");
    assert_ptr_equal(job.plan.runtime, &dtp_runtime_deepspeed);
    assert_non_null(strstr(job.plan_note, "DeepSpeed"));
    assert_given("model=llama-2-7b gpus=8 strategy=zero3");
    assert_ptr_equal(job.plan.runtime, &dtp_runtime_torch);
    assert_int_equal(job.plan.strategy, DTP_ZERO3);
    assert_non_null(strstr(job.plan_note, "full_shard"));
    assert_given("model=llama-2-7b gpus=8 strategy=zero3 runtime=deepspeed");
    assert_string_equal(job.plan_note, "");
    assert_refused("model=llama-2-7b gpus=8 strategy=zero2 runtime=torch", "does not exist in PyTorch");
}

static void test_global_batch_sets_accumulate(void **state)
{
    (void)state;
    assert_given("model=llama-2-7b gpus=8 micro_batch=2 global_batch=64");
    assert_int_equal(job.plan.accumulate, 4);
    assert_given("model=llama-2-7b gpus=8 micro_batch=2 global_batch=64 accumulate=4");
    assert_refused("model=llama-2-7b gpus=8 micro_batch=2 global_batch=100", "use 96 or 112");
    assert_refused("model=llama-2-7b gpus=8 micro_batch=2 global_batch=8", "use 16");
    assert_refused("model=llama-2-7b gpus=8 global_batch=64 accumulate=4", "need accumulate 8");
    assert_given("model=llama-2-7b gpus=8 micro_batch=2 seq=2k global_batch_tokens=128k"); /* 64 sequences */
    assert_int_equal(job.plan.accumulate, 4);
    assert_refused("model=llama-2-7b gpus=8 seq=2k global_batch_tokens=3000", "no multiple of seq 2048");
    assert_refused("model=llama-2-7b gpus=8 seq=2k global_batch_tokens=16k global_batch=8", "say the same");
}

static void test_dtypes_on_top_of_a_recipe(void **state)
{
    (void)state;
    assert_given("model=llama-2-7b gpus=8 param_dtype=bf16");
    assert_int_equal(job.plan.precision.master, DTP_BF16); /* no copy before, none after */
    assert_int_equal(job.plan.precision.reduce, DTP_FP32);
    assert_given("model=llama-2-7b gpus=8 param_dtype=bf16 strategy=ddp");
    assert_int_equal(job.plan.precision.reduce, DTP_BF16);
    assert_given("model=llama-2-7b gpus=8 strategy=zero1 runtime=deepspeed reduce_dtype=fp32");
    assert_int_equal(job.plan.precision.params, DTP_BF16);
    assert_int_equal(job.plan.precision.reduce, DTP_FP32);
    assert_int_equal(job.plan.precision.master, DTP_FP32);
    assert_given("model=llama-2-7b gpus=8 compute_dtype=tf32");
    assert_string_equal(dtp_precision_name(&job.plan.precision), "custom");
    assert_given("model=llama-2-7b gpus=8 precision=fp8-tensorwise fp8_all_gather=false");
    assert_false(job.plan.precision.fp8_all_gather);
    assert_refused("model=llama-2-7b gpus=8 reduce_dtype=fp16", "reduce_dtype");
}

static void test_a_switch_no_runtime_honours_is_refused(void **state)
{
    (void)state;
    assert_refused("model=llama-2-7b gpus=8 strategy=shard_grad_op reshard_after_forward=true", "always false");
    assert_refused("model=llama-2-7b gpus=8 strategy=zero2 accumulate=2 accumulate_sync=false", "always true");
    assert_refused("model=llama-2-7b gpus=8 deepspeed_overlap=true", "for runtime deepspeed only");
    assert_refused("model=llama-2-7b gpus=8 strategy=zero1 runtime=megatron fused_qkv=false", "always true");
    assert_given("model=llama-2-7b gpus=8 strategy=zero2 accumulate_sync=false"); /* one micro-step: no difference */
    assert_given("model=llama-2-7b gpus=16 reshard_after_forward=8");
    assert_true(job.plan.reshard_after_forward && job.plan.reshard_group == 8);
    assert_given("model=llama-2-7b gpus=16 reshard_after_forward=true");
    assert_true(job.plan.reshard_after_forward && job.plan.reshard_group == 0);
    assert_given("model=llama-2-7b gpus=16 strategy=hybrid_shard reshard_after_forward=false");
    assert_false(job.plan.reshard_after_forward);
}

static void test_the_asked_plan_resolves_to_the_plan(void **state)
{
    (void)state;
    assert_given("model=llama-2-7b gpus=16 strategy=hybrid_shard accumulate=2");
    assert_int_equal(job.asked.shard_group, 0);
    assert_int_equal(job.plan.shard_group, 8);
    struct dtp_plan again = job.asked;
    assert_int_equal(dtp_plan_resolve(&again, &job.transformer, &job.cluster, &faults), DTP_OK);
    assert_memory_equal(&again, &job.plan, sizeof again);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static void test_a_file_with_all_that_editors_do(void **state)
{
    (void)state;
    assert_int_equal(
        parse(
            "\xEF\xBB\xBF; a comment\r\n[model]\r\n  model = llama-2-7b   ; why\r\n\r\n[cluster]\r\n\tgpus: 8 # all\r\n"
            "# more\r\n[plan]\r\nmicro-batch=4\r\nseq = 4k\r\n[money]\r\nprice = 2.5"),
        DTP_OK);
    assert_int_equal(resolve(), DTP_OK);
    assert_int_equal(job.cluster.gpus, 8);
    assert_int_equal(job.plan.micro_batch, 4);
    assert_int_equal(job.plan.sequence, 4096);
    assert_true(job.plan.price_per_gpu_hour == 2.5);
}

static void test_all_faults_of_a_file_at_once(void **state)
{
    (void)state;
    assert_int_equal(
        parse("gpus = 8\n[model]\nmodel = llama-2-7b\nmicro_batch = 4\n[plan]\nmicro_batch = x\nseq = 1k\nseq = 2k\n"
              "compile =\nnonsense\nmicrobatch = 2\n[plam]\n[cluster\n"),
        DTP_BAD_INPUT);
    static const char *const expected[] = {
        "job.ini:1: gpus: stands before any section; put it under [cluster]",
        "job.ini:4: micro_batch: belongs into [plan], not into [model]",
        "job.ini:6: micro_batch: 'x' is not a whole number from 1 to 1000000",
        "job.ini:8: seq: was set on line 7 already",
        "job.ini:9: compile: has no value",
        "job.ini:10: 'nonsense' is neither [section] nor key = value",
        "job.ini:11: unknown key 'microbatch'; did you mean 'micro_batch'",
        "job.ini:12: unknown section [plam]; use [model], [cluster], [plan] or [money]",
        "job.ini:13: section without ']'"};
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
        if (strncmp(faults.text[i], expected[i], strlen(expected[i])))
            fail_msg("'%s' is not '%s'", faults.text[i], expected[i]);
    assert_int_equal(faults.count, sizeof expected / sizeof *expected);
    assert_string_equal(dtp_scenario_get(scenario, "model"), "llama-2-7b");
}

static void test_config_json_as_a_scenario(void **state)
{
    (void)state;
    assert_int_equal(parse("{"), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "by --model FILE"));
}

static void test_hostile_files(void **state)
{
    (void)state;
    static const char nul[] = "[model]\nmodel = llama\0-2-7b\n";
    assert_int_equal(dtp_scenario_parse(scenario, "job.ini", nul, sizeof nul - 1, &faults), DTP_BAD_INPUT);
    assert_fault("job.ini:2: holds a NUL byte");
    assert_int_equal(parse(""), DTP_BAD_INPUT);
    assert_fault("holds no key");
    assert_int_equal(parse("\n\n; nothing\n[model]\n"), DTP_BAD_INPUT);
    assert_fault("holds no key");
    assert_int_equal(parse("[model]\n = 5\n"), DTP_BAD_INPUT);
    assert_int_equal(parse("[model]\nname ; = 5\n"), DTP_BAD_INPUT);
    assert_fault("job.ini:2:");
    char line[4096] = "[model]\nname = ";
    memset(line + strlen(line), 'x', 300);
    assert_int_equal(parse(line), DTP_BAD_INPUT);
    assert_fault("job.ini:2: line of 307 bytes; at most");
    char *large = malloc(2u << 20);
    memset(large, '\n', 2u << 20);
    assert_int_equal(dtp_scenario_parse(scenario, "job.ini", large, 2u << 20, &faults), DTP_BAD_INPUT);
    assert_fault("larger than");
    free(large);
    memset(&faults, 0, sizeof faults);
    assert_int_equal(dtp_scenario_read(scenario, "/no/such/file.ini", &faults), DTP_BAD_INPUT);
    assert_fault("cannot open");
    assert_int_equal(dtp_scenario_read(scenario, "/", &faults), DTP_BAD_INPUT);
}

static void test_faults_of_the_plan_name_the_line(void **state)
{
    (void)state;
    assert_int_equal(parse("[model]\nmodel = gpt2-124m\n[cluster]\ngpus = 6\ngpus_per_node = 6\nmachine = "
                           "dgx-h100\n[plan]\ncp = 2\nseq = 4k\n"
                           "strategy = zero1\noffload = nvme\n"),
                     DTP_OK);
    assert_int_equal(resolve(), DTP_BAD_INPUT);
    assert_fault("job.ini:8: cp: above 1 goes with FSDP2 alone in PyTorch, not with zero1; use strategy full_shard");
    assert_fault("job.ini:9: seq: is 4096, but the model's learned position table has 1024 rows");
    assert_fault("job.ini:11: offload:");
    assert_int_equal(faults.count, 4); /* of offload two: with cp, and with zero1 in PyTorch */
}

/* ---- what is shipped --------------------------------------------------------------------------------------------- */

static void test_the_shipped_scenarios_resolve(void **state)
{
    (void)state;
    static const struct {
        const char *file;
        uint64_t parameters;
        uint32_t gpus, accumulate;
    } files[] = {{"llama2-7b-8xa100.ini", 6738415616u, 8, 32},
                 {"llama3-8b-8xh100.ini", 8030261248u, 8, 1},
                 {"gpt2-124m-1xrtx4090.ini", 124439808u, 1, 32}};
    if (dtp_catalog_load(TEST_SOURCE_DIR "/scenarios", &catalog, &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/scenarios/%s", TEST_SOURCE_DIR, files[i].file);
        dtp_scenario_destroy(scenario);
        assert_int_equal(dtp_scenario_create(&scenario, &faults), DTP_OK);
        if (dtp_scenario_read(scenario, path, &faults) != DTP_OK || resolve() != DTP_OK)
            fail_msg("%s", faults.text[0]);
        assert_true(count() == files[i].parameters);
        assert_int_equal(job.cluster.gpus, files[i].gpus);
        assert_int_equal(job.plan.accumulate, files[i].accumulate);
    }
    dtp_catalog_destroy(&catalog);
}

static void test_a_hugging_face_config_as_model(void **state)
{
    (void)state;
    assert_int_equal(dtp_scenario_set(scenario, "model", "/no/such/config.json", NULL, 0, &faults), DTP_OK);
    assert_int_equal(resolve(), DTP_BAD_INPUT);
    assert_fault("/no/such/config.json");
    /* Set one by one: the checkout's path may hold a space. */
    dtp_scenario_set(scenario, "model", TEST_SOURCE_DIR "/tests/fixtures/hf/llama-2-7b.json", NULL, 0, &faults);
    dtp_scenario_set(scenario, "seq", "4k", NULL, 0, &faults);
    assert_int_equal(resolve(), DTP_OK);
    assert_true(count() == 6738415616u);
    dtp_scenario_destroy(scenario);
    assert_int_equal(dtp_scenario_create(&scenario, &faults), DTP_OK);
    dtp_scenario_set(scenario, "model", TEST_SOURCE_DIR "/tests/fixtures/hf/gpt-2.json", NULL, 0, &faults);
    assert_int_equal(resolve(), DTP_OK);
    assert_true(count() == 124439808u);
    assert_int_equal(job.plan.sequence, 1024);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_every_key_is_documented_once, begin, end),
        cmocka_unit_test_setup_teardown(test_later_settings_win_and_are_read_back, begin, end),
        cmocka_unit_test_setup_teardown(test_bad_values_are_refused_where_they_stand, begin, end),
        cmocka_unit_test_setup_teardown(test_switches, begin, end),
        cmocka_unit_test_setup_teardown(test_a_preset_as_it_is_and_changed, begin, end),
        cmocka_unit_test_setup_teardown(test_a_shape_by_dimensions, begin, end),
        cmocka_unit_test_setup_teardown(test_params_alone_and_as_a_check, begin, end),
        cmocka_unit_test_setup_teardown(test_changing_a_family, begin, end),
        cmocka_unit_test_setup_teardown(test_clusters, begin, end),
        cmocka_unit_test_setup_teardown(test_a_network_that_one_node_has_no_use_for, begin, end),
        cmocka_unit_test_setup_teardown(test_the_runtime_follows_zero2_only, begin, end),
        cmocka_unit_test_setup_teardown(test_no_note_of_what_was_not_asked, begin, end),
        cmocka_unit_test_setup_teardown(test_defaults_of_divided_runs, begin, end),
        cmocka_unit_test_setup_teardown(test_global_batch_sets_accumulate, begin, end),
        cmocka_unit_test_setup_teardown(test_dtypes_on_top_of_a_recipe, begin, end),
        cmocka_unit_test_setup_teardown(test_a_switch_no_runtime_honours_is_refused, begin, end),
        cmocka_unit_test_setup_teardown(test_the_asked_plan_resolves_to_the_plan, begin, end),
        cmocka_unit_test_setup_teardown(test_a_file_with_all_that_editors_do, begin, end),
        cmocka_unit_test_setup_teardown(test_all_faults_of_a_file_at_once, begin, end),
        cmocka_unit_test_setup_teardown(test_config_json_as_a_scenario, begin, end),
        cmocka_unit_test_setup_teardown(test_hostile_files, begin, end),
        cmocka_unit_test_setup_teardown(test_faults_of_the_plan_name_the_line, begin, end),
        cmocka_unit_test_setup_teardown(test_the_shipped_scenarios_resolve, begin, end),
        cmocka_unit_test_setup_teardown(test_a_hugging_face_config_as_model, begin, end)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
