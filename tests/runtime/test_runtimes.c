/* The list of runtimes: each is found by its words, has what predictions and programs ask of it, and refuses the
 * choices of the others. */
#include "closed/closed_form_hooks.h"
#include "lower/lower_hooks.h"
#include "runtime/runtimes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "lib/hardware.h"
#include "lib/llama_7b.h"

static struct dtp_plan plan_under(const struct dtp_runtime *runtime)
{
    struct dtp_plan plan = dtp_plan_default();
    plan.runtime = runtime;
    for (int i = DTP_STRATEGY_COUNT; i-- > 0;)
        if (runtime->strategies & 1u << i && i != DTP_HYBRID_SHARD)
            plan.strategy = (enum dtp_strategy)i;
    return plan;
}

static enum dtp_status resolve(struct dtp_plan plan, struct dtp_faults *faults)
{
    struct dtp_transformer t = llama_7b();
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    memset(faults, 0, sizeof *faults);
    return dtp_plan_resolve(&plan, &t, &cluster, faults);
}

static void test_words(void **state)
{
    (void)state;
    assert_null(dtp_runtime_find(NULL));
    assert_null(dtp_runtime_find("jax"));
    assert_ptr_equal(dtp_runtime_find("PyTorch"), &dtp_runtime_torch);
    for (int i = 0; i < DTP_RUNTIMES; i++) {
        assert_ptr_equal(dtp_runtime_find(dtp_runtimes[i]->name), dtp_runtimes[i]);
        assert_true(!dtp_runtimes[i]->synonym || dtp_runtime_find(dtp_runtimes[i]->synonym) == dtp_runtimes[i]);
    }
    assert_ptr_equal(dtp_plan_default().runtime, dtp_runtimes[0]);
    assert_ptr_equal(dtp_runtime_of_strategy(DTP_ZERO1), &dtp_runtime_torch);
    assert_ptr_equal(dtp_runtime_of_strategy(DTP_ZERO2), &dtp_runtime_deepspeed);
}

static void test_each_is_whole(void **state)
{
    (void)state;
    for (int i = 0; i < DTP_RUNTIMES; i++) {
        const struct dtp_runtime *runtime = dtp_runtimes[i];
        struct dtp_plan plan = plan_under(runtime);
        const struct dtp_lower_hooks *hooks = runtime->lower(&plan);
        assert_non_null(runtime->framework);
        assert_true(runtime->vocab_multiple >= 1);
        assert_true(runtime->issuer < DTP_ISSUER_COUNT);
        assert_non_null(runtime->closed->traffic);
        assert_true(hooks->whole ? hooks->check != NULL : hooks->make && hooks->release && hooks->step);
    }
}

/* Under a strategy that it has it resolves; under each that it has not it is refused, and by that key. */
static void test_strategies(void **state)
{
    static struct dtp_faults faults;
    (void)state;
    for (int i = 0; i < DTP_RUNTIMES; i++) {
        struct dtp_plan plan = plan_under(dtp_runtimes[i]);
        assert_int_equal(resolve(plan, &faults), DTP_OK);
        for (int s = 0; s < DTP_STRATEGY_COUNT; s++) {
            plan.strategy = (enum dtp_strategy)s;
            if (dtp_runtimes[i]->strategies & 1u << s)
                continue;
            assert_int_equal(resolve(plan, &faults), DTP_BAD_INPUT);
            assert_non_null(strstr(faults.text[0], "strategy"));
        }
    }
}

static void only_under(const struct dtp_runtime *owner, void (*choose)(struct dtp_plan *plan), const char *key)
{
    static struct dtp_faults faults;
    for (int i = 0; i < DTP_RUNTIMES; i++) {
        struct dtp_plan plan = plan_under(dtp_runtimes[i]);
        if (dtp_runtimes[i] == owner && owner == &dtp_runtime_deepspeed)
            plan.strategy = DTP_ZERO3;
        if (dtp_runtimes[i] == owner && owner == &dtp_runtime_torch)
            plan.strategy = DTP_FULL_SHARD;
        choose(&plan);
        assert_int_equal(resolve(plan, &faults), dtp_runtimes[i] == owner ? DTP_OK : DTP_BAD_INPUT);
        assert_true(dtp_runtimes[i] == owner || strstr(faults.text[0], key));
    }
}

static void fsdp1(struct dtp_plan *plan)
{
    plan->fsdp1 = true;
}
static void quantized_weights(struct dtp_plan *plan)
{
    plan->deepspeed.zero_quantized_weights = true;
}
static void overlap(struct dtp_plan *plan)
{
    plan->megatron.overlap = true;
}
static void cuda_graph(struct dtp_plan *plan)
{
    plan->executor.cuda_graph = true;
}

static void test_choices_of_others_are_refused(void **state)
{
    (void)state;
    only_under(&dtp_runtime_torch, fsdp1, "fsdp1");
    only_under(&dtp_runtime_deepspeed, quantized_weights, "zero_quantized_weights");
    only_under(&dtp_runtime_megatron, overlap, "megatron_overlap");
    only_under(&dtp_runtime_dtplan, cuda_graph, "cuda_graph");
}

/* No runtime at all is no crash. */
static void test_none(void **state)
{
    static struct dtp_faults faults;
    struct dtp_plan plan = dtp_plan_unchosen();
    (void)state;
    assert_int_equal(resolve(plan, &faults), DTP_BAD_INPUT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words),      cmocka_unit_test(test_each_is_whole),
        cmocka_unit_test(test_strategies), cmocka_unit_test(test_choices_of_others_are_refused),
        cmocka_unit_test(test_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
