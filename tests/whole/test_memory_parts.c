/* The record of what stands beside a program: asking for it changes no number, its parts sum to what they belong to,
 * and the table's words fit the factors. */
#include "closed/memory_parts.h"
#include "job/estimate.h"
#include "runtime/runtimes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "lib/random_draws.h"
#include "lib/random_plans.h"

#define PLANS RANDOM_DRAWS(1000)
/* Until each term has been drawn: the rarest stands in one plan of some 1500, and a seed may miss it for long. */
#define MOST_PLANS 24000

static struct dtp_memory_parts parts;

static uint64_t sum_of(const struct dtp_memory_list *list)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < list->count; i++) {
        sum += list->part[i].bytes;
        assert_true(list->part[i].bytes > 0);
    }
    return sum;
}

static void test_parts_sum(void **state)
{
    (void)state;
    random_seed();
    for (int i = 0; i < PLANS; i++) {
        struct random_job job;
        struct dtp_memory without, with;
        assert_true(random_job(&job));
        memset(&without, 0, sizeof without);
        memset(&with, 0, sizeof with);
        assert_int_equal(dtp_estimate_memory(&job.transformer, &job.cluster, &job.plan, &without, NULL, NULL), DTP_OK);
        assert_int_equal(dtp_estimate_memory(&job.transformer, &job.cluster, &job.plan, &with, &parts, NULL), DTP_OK);
        assert_memory_equal(&without, &with, sizeof with);
        assert_true(sum_of(&parts.reserved) == with.reserved_peak_bytes);
        assert_true(sum_of(&parts.driver) == with.context_bytes + with.nccl_bytes);
        assert_true(sum_of(&parts.host) * parts.node_gpus == with.host_bytes);
        assert_true(sum_of(&parts.nvme) * parts.node_gpus == with.nvme_bytes);
    }
}

static size_t check_words(const struct dtp_memory_list *list, bool *seen)
{
    size_t fresh = 0;
    for (size_t k = 0; k < list->count; k++) {
        const struct dtp_memory_part *part = &list->part[k];
        const struct dtp_memory_term_words *words = &dtp_memory_terms[part->term];
        for (int f = 0; f < DTP_MEMORY_FACTORS; f++)
            if (!*words->factors[f] && part->factors[f] != 1)
                fail_msg("%s: factor %d is %llu but has no symbol", words->words, f,
                         (unsigned long long)part->factors[f]);
        assert_true(*words->factors[DTP_MEMORY_FACTORS - 1]);
        assert_true(part->factors[0] * part->factors[1] * part->factors[2] == part->bytes);
        fresh += !seen[part->term];
        seen[part->term] = true;
    }
    return fresh;
}

/* A factor is 1 where the table has no symbol for it, or explain would leave a number out; bytes always have one. */
static void test_symbols_fit_factors(void **state)
{
    (void)state;
    bool seen[DTP_TERM_COUNT] = {false};
    size_t unseen = DTP_TERM_COUNT;
    random_seed();
    for (int i = 0; unseen > 0 && i < MOST_PLANS; i++) {
        struct random_job job;
        struct dtp_memory memory;
        assert_true(random_job(&job));
        if (i % 2)
            job.cluster.network = DTP_NETWORK_SOCKETS;
        bool ours = job.plan.runtime == &dtp_runtime_dtplan;
        job.plan.executor.symmetric_windows = ours && i % 3 == 0;
        job.plan.pipeline_ranks = ours && i % 5 == 0 ? 2 + (uint32_t)i % 3 : 0; /* as slices of models have it */
        job.plan.executor.gather_engine = ours && i % 4 < 2 ? DTP_ENGINE_COPY : DTP_ENGINE_SM;
        assert_int_equal(dtp_estimate_memory(&job.transformer, &job.cluster, &job.plan, &memory, &parts, NULL), DTP_OK);
        unseen -= check_words(&parts.reserved, seen) + check_words(&parts.driver, seen) +
                  check_words(&parts.host, seen) + check_words(&parts.nvme, seen);
    }
    for (int term = 0; term < DTP_TERM_COUNT; term++)
        if (!seen[term])
            fail_msg("no plan has the term '%s' (%d): is it still used?", dtp_memory_terms[term].words, term);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_parts_sum), cmocka_unit_test(test_symbols_fit_factors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
