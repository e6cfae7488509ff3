/* Two rows of a sweep that differ differ in a column: over frozen jobs, one key of a job is given another value, drawn
 * among those that other jobs have. Where that makes another transformer, cluster or plan, what is written of it before
 * anything is predicted must be other text, as CSV and as JSON. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "lib/frozen_jobs.h"
#include "lib/written_job.h"

#define PAIRS 3000u

/* The longest sequence that a model's source states is no key's and changes nothing that is predicted; a shorter name
 * leaves the end of one before it in the array. */
static void as_told(const struct dtp_job *job, struct dtp_transformer *out)
{
    memcpy(out, &job->transformer, sizeof *out);
    memset(out->name, 0, sizeof out->name);
    memcpy(out->name, job->transformer.name, strnlen(job->transformer.name, sizeof out->name - 1));
    out->max_sequence = 0;
}

/* Both were made by the same steps from zeroed memory, so that equal jobs are equal bytes. */
static bool same_job(const struct dtp_job *one, const struct dtp_job *other)
{
    struct dtp_transformer left, right;
    as_told(one, &left);
    as_told(other, &right);
    return memcmp(&left, &right, sizeof left) == 0 &&
           memcmp(&one->cluster, &other->cluster, sizeof one->cluster) == 0 &&
           memcmp(&one->plan, &other->plan, sizeof one->plan) == 0 &&
           memcmp(&one->training, &other->training, sizeof one->training) == 0;
}

static bool resolves(const struct frozen_job *frozen, struct dtp_job *job)
{
    static struct dtp_faults faults;
    memset(&faults, 0, sizeof faults);
    return frozen_resolve(frozen, &catalog, job, &faults) == DTP_OK;
}

static void test_rows_differ(void **state)
{
    (void)state;
    uint32_t differ = 0, keys = 0;
    bool moved[DTP_KEY_COUNT] = {false};
    random_seed();
    for (uint32_t pair = 0; pair < PAIRS; pair++) {
        struct frozen_job one, other;
        struct dtp_job job, changed;
        char words[4096];
        uint32_t number = (uint32_t)random_below(FROZEN_JOBS), giver = (uint32_t)random_below(FROZEN_JOBS);
        int key = (int)random_below(DTP_KEY_COUNT);
        uint64_t kept = random_state;
        frozen_draw(number, &one);
        frozen_draw(giver, &other);
        random_state = kept;
        if (!other.value[key][0] || !resolves(&one, &job))
            continue;
        memcpy(one.value[key], other.value[key], sizeof one.value[key]);
        if (!resolves(&one, &changed) || same_job(&job, &changed))
            continue;
        differ++, keys += !moved[key], moved[key] = true;
        for (int json = 0; json < 2; json++)
            if (!written_differ(&job, &changed, json))
                fail_msg("job %u with %s from job %u is the same %s:%s", number, dtp_key_name((enum dtp_key)key), giver,
                         json ? "JSON" : "CSV row", frozen_words(&one, words, sizeof words));
    }
    print_message("%u pairs that differ in %u keys are told apart\n", differ, keys);
    assert_true(differ > PAIRS / 25 && keys > 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows_differ)};
    return cmocka_run_group_tests(tests, enter_frozen_jobs, drop_catalog);
}
