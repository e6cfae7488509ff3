/* Resolving again after some keys changed gives the job that resolving from the beginning gives, and refuses what that
 * refuses: keys set to random values, of the plan and of what lies below it, one or many before each time, set once
 * more and taken away. */
#include "job/scenario.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "lib/random_draws.h"
#include "lib/shipped_catalog.h"

#define ROUNDS 20000

static const struct {
    const char *key, *values[6];
} draws[] = {
    {"strategy", {"ddp", "zero1", "zero2", "full_shard", "shard_grad_op", "hybrid_shard"}},
    {"micro_batch", {"1", "3", "8", "16", "64", NULL}},
    {"accumulate", {"1", "2", "4", NULL}},
    {"checkpointing", {"none", "full", "every-2", "every-4", "selective", NULL}},
    {"precision", {"bf16-mixed", "bf16", "fp8-tensorwise", "fp32", NULL}},
    {"fp8_all_gather", {"true", "false", NULL}},
    {"reduce_dtype", {"fp32", "bf16", NULL}},
    {"param_dtype", {"fp32", "bf16", NULL}},
    {"offload", {"none", "optimizer", "params", "cpu", NULL}},
    {"runtime", {"torch", "deepspeed", "megatron", "dtplan", NULL}},
    {"compile", {"true", "false", NULL}},
    {"reshard_after_forward", {"true", "false", NULL}},
    {"shard_group", {"2", "4", NULL}},
    {"wrap_layers", {"1", "2", "4", "1000", NULL}},
    {"prefetch", {"true", "false", NULL}},
    {"prefetch_depth", {"1", "2", "3", NULL}},
    {"ddp_bucket_mib", {"1", "25", NULL}},
    {"seq", {"2k", "4096", "1M", NULL}},
    {"global_batch", {"64", "7", NULL}},
    {"gpus", {"2", "8", "12", "64", NULL}},
    {"gpus_per_node", {"4", "8", NULL}},
    {"gpu", {"h100-sxm", "a100-80-sxm", "rtx-4090", NULL}},
    {"model", {"llama-2-7b", "gpt2", "gemma-2-9b", NULL}},
    {"layers", {"4", "40", NULL}},
    {"tokens", {"1B", NULL}},
};
#define DRAWS (sizeof draws / sizeof *draws)

/* splitmix64 (Steele et al. 2014) */
static uint64_t below(uint64_t limit)
{
    static uint64_t state = 17;
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (z ^ z >> 31) % limit;
}

/* Three of four keys stay away at any time, or hardly anything would be left to resolve; but for the model. */
static void draw(struct dtp_scenario *scenario)
{
    size_t key = below(DRAWS), values = 0;
    while (values < 6 && draws[key].values[values])
        values++;
    if (!strcmp(draws[key].key, "model") || !below(4))
        assert_int_equal(dtp_scenario_set(scenario, draws[key].key, draws[key].values[below(values)], "test", 0, NULL),
                         DTP_OK);
    else
        dtp_scenario_unset(scenario, draws[key].key);
}

static void test_random_changes(void **state)
{
    (void)state;
    static struct dtp_faults faults;
    static struct dtp_job job, again;
    struct dtp_scenario *scenario;
    struct dtp_resolved_base *base;
    int resolved = 0, refused = 0;
    assert_int_equal(dtp_scenario_create(&scenario, &faults), DTP_OK);
    assert_int_equal(dtp_resolved_base_create(&base, &faults), DTP_OK);
    for (int i = 0; i < RANDOM_DRAWS(ROUNDS); i++) {
        for (uint64_t edits = below(2) ? 1 : below(12); edits > 0; edits--)
            draw(scenario);
        faults = (struct dtp_faults){.status = DTP_OK};
        enum dtp_status status = dtp_scenario_resolve(scenario, &catalog, &job, &faults);
        assert_int_equal(dtp_scenario_resolve_again(scenario, &catalog, base, &again, NULL), status);
        resolved += status == DTP_OK;
        refused += status == DTP_BAD_INPUT;
        if (status != DTP_OK)
            continue;
        assert_memory_equal(&again.transformer, &job.transformer, sizeof job.transformer);
        assert_memory_equal(&again.cluster, &job.cluster, sizeof job.cluster);
        assert_memory_equal(&again.plan, &job.plan, sizeof job.plan);
        assert_memory_equal(&again.asked, &job.asked, sizeof job.asked);
        assert_memory_equal(&again.training, &job.training, sizeof job.training);
        assert_int_equal(again.node_gpus, job.node_gpus);
        assert_int_equal(again.by_nodes, job.by_nodes);
    }
    print_message("%d resolved, %d refused\n", resolved, refused);
    assert_true(resolved > RANDOM_DRAWS(ROUNDS) / 20 && refused > RANDOM_DRAWS(ROUNDS) / 20);
    dtp_resolved_base_destroy(base);
    dtp_scenario_destroy(scenario);
}

/* The words of a refusal are those of dtp_scenario_resolve, where they are asked for. */
static void test_words(void **state)
{
    (void)state;
    static struct dtp_faults faults, again_faults;
    static struct dtp_job job;
    struct dtp_scenario *scenario;
    struct dtp_resolved_base *base;
    assert_int_equal(dtp_scenario_create(&scenario, &faults), DTP_OK);
    assert_int_equal(dtp_resolved_base_create(&base, &faults), DTP_OK);
    assert_int_equal(dtp_scenario_set(scenario, "model", "llama-2-7b", NULL, 0, &faults), DTP_OK);
    assert_int_equal(dtp_scenario_resolve_again(scenario, &catalog, base, &job, &faults), DTP_OK);
    assert_int_equal(dtp_scenario_set(scenario, "wrap_layers", "1000", "--wrap-layers", 0, &faults), DTP_OK);
    assert_int_equal(dtp_scenario_resolve(scenario, &catalog, &job, &faults), DTP_BAD_INPUT);
    assert_int_equal(dtp_scenario_resolve_again(scenario, &catalog, base, &job, &again_faults), DTP_BAD_INPUT);
    assert_int_equal(again_faults.count, faults.count);
    assert_string_equal(again_faults.text[0], faults.text[0]);
    dtp_resolved_base_destroy(base);
    dtp_scenario_destroy(scenario);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_changes), cmocka_unit_test(test_words)};
    return cmocka_run_group_tests(tests, load_catalog, drop_catalog);
}
