/* Presets with experts: counted as published, and each planned by a step program on some machine. */
#include "job/estimate.h"
#include "lower/lower.h"
#include "runtime/runtimes.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "lib/hardware.h"
#include "lib/shipped_catalog.h"

/* Billions of parameters, in all and active, as the makers round them; of those that are not in test_experts. */
static void test_rounded_counts(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        double total, active, off; /* off: of the figures, which count embeddings or not */
    } published[] = {
        {"qwen2-57b-a14b", 57.41, 14.25, 0.01},
        {"qwen1.5-moe-a2.7b", 14.3, 2.69, 0.01},
        {"moonlight-16b-a3b", 15.96, 2.9, 0.02},
        {"olmoe-1b-7b", 6.92, 1.28, 0.01},
        {"phi-3.5-moe", 41.9, 6.64, 0.01},
        {"granite-3.0-1b-a400m", 1.33, 0.43, 0.02},
        {"granite-3.0-3b-a800m", 3.3, 0.88, 0.02},
        {"glm-4.5", 355, 32, 0.06},
        {"glm-4.5-air", 106, 12, 0.13},
    };
    for (size_t i = 0; i < sizeof published / sizeof *published; i++) {
        const struct dtp_transformer *t = dtp_catalog_model(&catalog, published[i].model, NULL, 0, NULL);
        assert_non_null(t);
        struct dtp_parameter_count count = dtp_transformer_count(t);
        if (fabs((double)count.total / 1e9 / published[i].total - 1) > 0.01 ||
            fabs((double)count.active / 1e9 / published[i].active - 1) > published[i].off)
            fail_msg("%s has %.4g and %.4g", t->name, (double)count.total / 1e9, (double)count.active / 1e9);
    }
}

/* On 256 GPUs, FSDP2 with all layers checkpointed: a program of it is lowered, its memory is no bound, and FLOPs are
 * those of parameters that a token meets. */
static void test_each_is_planned(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 256, 8);
    int planned = 0;
    for (size_t i = 0; i < catalog.model_count; i++) {
        const struct dtp_transformer *t = &catalog.models[i];
        struct dtp_faults faults = {0};
        struct dtp_plan plan = dtp_plan_default();
        struct dtp_prediction prediction;
        if (!t->experts)
            continue;
        plan.strategy = DTP_FULL_SHARD, plan.checkpointing = DTP_CHECKPOINT_FULL, plan.sequence = 4096;
        if (dtp_plan_resolve(&plan, t, &cluster, &faults) != DTP_OK ||
            dtp_estimate(t, &cluster, &plan, &prediction, &faults) != DTP_OK)
            fail_msg("%s: %s", t->name, faults.text[0]);
        assert_false(prediction.memory.bound);
        assert_true(prediction.memory.allocated_peak_bytes > dtp_transformer_count(t).total * 12 / 256);
        assert_true(prediction.throughput.mfu > 0 && prediction.throughput.mfu < 0.7);
        planned++;
    }
    assert_int_equal(planned, 21);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rounded_counts), cmocka_unit_test(test_each_is_planned)};
    return cmocka_run_group_tests(tests, load_catalog, drop_catalog);
}
