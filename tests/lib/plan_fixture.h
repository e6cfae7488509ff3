/* Plans of LLaMA-7B on 16 GPUs, resolved or refused, for the tests of plans. */
#ifndef TEST_PLAN_FIXTURE_H
#define TEST_PLAN_FIXTURE_H

#include "runtime/runtimes.h"

#include <stdio.h>
#include <string.h>

#include "lib/llama_7b.h"

static inline struct dtp_cluster cluster(uint32_t gpus, uint32_t gpus_per_node)
{
    struct dtp_cluster c = {
        .gpus = gpus, .gpus_per_node = gpus_per_node, .nodes = gpus / gpus_per_node, .oversubscription = 1};
    snprintf(c.gpu.key, sizeof c.gpu.key, "h100-sxm");
    c.machine.nvme_bytes = 30000000000000u;
    c.machine.nvme_read_bytes_per_s = c.machine.nvme_write_bytes_per_s = 20e9;
    for (int i = 0; i < DTP_DTYPE_COUNT; i++)
        c.gpu.peak_flops_per_s[i] = 1e15;
    return c;
}

static struct dtp_faults faults;

static inline enum dtp_status resolve(struct dtp_plan *plan, uint32_t gpus, uint32_t gpus_per_node)
{
    struct dtp_transformer t = llama_7b();
    struct dtp_cluster c = cluster(gpus, gpus_per_node);
    memset(&faults, 0, sizeof faults);
    return dtp_plan_resolve(plan, &t, &c, &faults);
}

static inline struct dtp_plan with_strategy(const char *strategy, const char *runtime)
{
    struct dtp_plan plan = dtp_plan_default();
    assert_true(dtp_strategy_parse(strategy, &plan.strategy));
    assert_non_null(plan.runtime = dtp_runtime_find(runtime));
    return plan;
}

static inline void assert_accepted(struct dtp_plan plan)
{
    if (resolve(&plan, 16, 8) != DTP_OK)
        fail_msg("refused: %s", faults.text[0]);
    struct dtp_plan again = plan;
    assert_int_equal(resolve(&again, 16, 8), DTP_OK);
    assert_memory_equal(&again, &plan, sizeof plan); /* resolving twice changes nothing */
}

/* One fault, that starts with `key` and holds `words`. */
static inline void assert_refused(struct dtp_plan plan, const char *key, const char *words)
{
    assert_int_equal(resolve(&plan, 16, 8), DTP_BAD_INPUT);
    for (size_t i = 0; i < faults.count && i < DTP_FAULTS_KEPT; i++)
        if (!strncmp(faults.text[i], key, strlen(key)) && strstr(faults.text[i], words))
            return;
    fail_msg("no fault '%s: ...%s...'; first: %s", key, words, faults.text[0]);
}

#endif
