/* The record that the memory's closed form keeps: asking for it changes no number, its parts sum to what they belong
 * to, owner by owner, and the table's words fit the factors. */
#include "closed/memory_parts.h"
#include "runtime/runtimes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "lib/random_plans.h"

#define PLANS 6000
#define MOST_PLANS (10 * PLANS) /* until each term has been drawn: the rarest stands in one plan of some 1500 */

static struct dtp_memory_parts parts;
static const struct dtp_memory_part *list[DTP_MEMORY_PARTS];

/* Sums of one account by owner; in the last place what has none. */
static void sum_account(enum dtp_memory_account account, uint64_t sums[DTP_OWNER_COUNT + 1])
{
    size_t count = dtp_memory_parts_of(&parts, account, list, DTP_MEMORY_PARTS);
    memset(sums, 0, (DTP_OWNER_COUNT + 1) * sizeof sums[0]);
    for (size_t i = 0; i < count; i++) {
        uint64_t *sum = &sums[dtp_memory_terms[list[i]->term].owner];
        *sum = list[i]->taken ? *sum - list[i]->bytes : *sum + list[i]->bytes;
        assert_true(list[i]->bytes > 0);
    }
}

static void check_sums(const struct dtp_memory *memory)
{
    uint64_t sums[DTP_OWNER_COUNT + 1];
    sum_account(DTP_ACCOUNT_PEAK, sums);
    for (int owner = 0; owner < DTP_OWNER_COUNT; owner++)
        assert_true(sums[owner] == memory->phase_bytes[memory->peak_phase][owner]);
    assert_true(sums[DTP_OWNER_COUNT] == 0);
    sum_account(DTP_ACCOUNT_RESERVED, sums);
    assert_true(sums[DTP_OWNER_COUNT] == memory->reserved_peak_bytes);
    sum_account(DTP_ACCOUNT_DRIVER, sums);
    assert_true(sums[DTP_OWNER_COUNT] == memory->context_bytes + memory->nccl_bytes);
    sum_account(DTP_ACCOUNT_HOST, sums);
    assert_true(sums[DTP_OWNER_COUNT] * parts.node_gpus == memory->host_bytes);
    sum_account(DTP_ACCOUNT_NVME, sums);
    assert_true(sums[DTP_OWNER_COUNT] * parts.node_gpus == memory->nvme_bytes);
}

static void test_parts_sum(void **state)
{
    (void)state;
    size_t most = 0;
    random_seed();
    for (int i = 0; i < PLANS; i++) {
        struct random_job job;
        struct dtp_memory without, with;
        assert_true(random_job(&job));
        memset(&without, 0, sizeof without);
        memset(&with, 0, sizeof with);
        dtp_closed_form_memory(&job.transformer, &job.cluster, &job.plan, &without);
        dtp_closed_form_memory_parts(&job.transformer, &job.cluster, &job.plan, &with, &parts);
        assert_memory_equal(&without, &with, sizeof with);
        check_sums(&with);
        most = parts.count > most ? parts.count : most;
    }
    print_message("at most %zu parts of %d\n", most, DTP_MEMORY_PARTS);
    assert_true(2 * most <= DTP_MEMORY_PARTS);
}

/* A factor is 1 where the table has no symbol for it, or explain would leave a number out; bytes always have one. */
static void test_symbols_fit_factors(void **state)
{
    (void)state;
    bool seen[DTP_TERM_COUNT] = {false};
    size_t unseen = DTP_TERM_COUNT;
    random_seed();
    for (int i = 0; i < PLANS || (unseen > 0 && i < MOST_PLANS); i++) {
        struct random_job job;
        struct dtp_memory memory;
        assert_true(random_job(&job));
        if (i % 2)
            job.cluster.network = DTP_NETWORK_SOCKETS;
        bool ours = job.plan.runtime == &dtp_runtime_dtplan;
        job.plan.executor.symmetric_windows = ours && i % 3 == 0;
        job.plan.executor.gather_engine = ours && i % 4 < 2 ? DTP_ENGINE_COPY : DTP_ENGINE_SM;
        dtp_closed_form_memory_parts(&job.transformer, &job.cluster, &job.plan, &memory, &parts);
        for (size_t k = 1; k <= parts.count; k++) {
            const struct dtp_memory_part *part = &parts.parts[k];
            const struct dtp_memory_term_words *words = &dtp_memory_terms[part->term];
            for (int f = 0; f < DTP_MEMORY_FACTORS; f++)
                if (!*words->factors[f] && part->factors[f] != 1)
                    fail_msg("%s: factor %d is %llu but has no symbol", words->words, f,
                             (unsigned long long)part->factors[f]);
            assert_true(*words->factors[DTP_MEMORY_FACTORS - 1]);
            assert_true(part->factors[0] * part->factors[1] * part->factors[2] == part->bytes);
            unseen -= !seen[part->term];
            seen[part->term] = true;
        }
    }
    for (int term = 0; term < DTP_TERM_COUNT; term++)
        if (!seen[term])
            fail_msg("no plan has the term '%s' (%d): is it still used?", dtp_memory_terms[term].words, term);
}

/* Absurd numbers of tokens are bounded in the record as in the sum. */
static void test_bounded_tokens(void **state)
{
    (void)state;
    struct dtp_part_chain chain = {.record = &parts};
    parts.count = 0;
    assert_true(dtp_memory_tokens_part(&chain, DTP_TERM_LAYERS_SAVED, 96, UINT64_C(1) << 57, UINT64_C(1) << 30) ==
                DTP_BYTES_BOUND);
    assert_true(parts.parts[chain.newest].bytes == DTP_BYTES_BOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_parts_sum), cmocka_unit_test(test_symbols_fit_factors),
                                       cmocka_unit_test(test_bounded_tokens)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
