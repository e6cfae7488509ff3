/* What ranks that shared one GPU did (reports/h200/shared_gpu, tests/gpu/check_layouts.py): losses step by step beside
 * one rank's, and arenas and bytes beside what is predicted of these jobs today. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/number.h"
#include "base/table.h"
#include "lib/run_fixture.h"
#include "sim/simulated.h"

#include <inttypes.h>

#define FOLDER TEST_SOURCE_DIR "/reports/h200/shared_gpu/"
#define STEPS 50
#define WITHIN 5e-4 /* of one rank's loss, at each step */

static struct dtp_faults faults;

static struct dtp_table *table_of(const char *name)
{
    struct dtp_table *table = NULL;
    char path[4096];
    snprintf(path, sizeof path, FOLDER "%s", name);
    if (dtp_table_read(path, &table, &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
    return table;
}

static const char *text(const struct dtp_table *table, size_t row, const char *column)
{
    long at = dtp_table_column(table, column);
    assert_true(at >= 0);
    return dtp_table_text(table, row, at);
}

static double number(const struct dtp_table *table, size_t row, const char *column)
{
    double value = (double)NAN;
    const char *words = text(table, row, column);
    if (!dtp_number_parse(words, &value))
        fail_msg("row %zu: %s '%s' is no number", row, column, words);
    return value;
}

/* Every case has all its steps, within the bound of those of one rank. */
static void test_losses(void **state)
{
    struct dtp_table *losses = table_of("losses.csv");
    size_t rows = dtp_table_row_count(losses);
    (void)state;
    assert_true(rows > 0 && rows % STEPS == 0);
    for (size_t row = 0; row < rows; row++) {
        double apart = fabs(number(losses, row, "loss") / number(losses, row, "loss_of_one_rank") - 1);
        assert_true(number(losses, row, "step") == (double)(row % STEPS + 1));
        if (!(apart <= WITHIN))
            fail_msg("%s %s %s, step %s: %g apart", text(losses, row, "case"), text(losses, row, "model"),
                     text(losses, row, "precision"), text(losses, row, "step"), apart);
    }
    dtp_table_destroy(losses);
}

/* "1;2;3": that of a rank, or of the first where all run one program. */
static uint64_t listed(const char *list, uint32_t rank)
{
    for (; rank > 0 && strchr(list, ';'); rank--)
        list = strchr(list, ';') + 1;
    return strtoull(list, NULL, 10);
}

static uint64_t sent(const struct dtp_program_totals *totals)
{
    uint64_t bytes = 0;
    for (int c = 0; c < DTP_COLLECTIVE_COUNT; c++)
        bytes += totals->sent_bytes[c];
    return bytes;
}

#define ROUTED_WITHIN                                                                                                  \
    0.02 /* of what is sent where the router says where rows go, and each expert is expected as many */

static void hold(const char *words, const char *arenas, const char *sends)
{
    static struct dtp_simulated simulated;
    static struct dtp_job job;
    struct dtp_simulation_options options = dtp_simulation_options_default();
    run_job(words, &job);
    if (dtp_simulated_create(&job, &options, &simulated, &faults) != DTP_OK)
        fail_msg("%s: %s", words, faults.text[0]);
    bool stages = simulated.set.role_count > 1;
    for (uint32_t rank = 0; rank < (stages ? job.cluster.gpus : 1); rank++) {
        uint32_t role = stages ? dtp_program_set_role_of(&simulated.set, rank) : 0;
        uint64_t arena = stages ? simulated.roles[role].memory.allocated_peak_bytes : simulated.placement.arena_bytes;
        uint64_t bytes = sent(stages ? &simulated.roles[role].totals : &simulated.totals);
        double measured = (double)listed(sends, rank), apart = fabs((double)bytes - measured);
        /* in 16 bits attention of these lengths ran without tensor cores then, which takes no sums of rows */
        if (job.plan.precision.compute == DTP_FP32 && arena != listed(arenas, rank))
            fail_msg("%s: rank %u: arena %" PRIu64 " predicted; measured %s", words, rank, arena, arenas);
        if (!(apart <= (job.plan.ep > 1 ? ROUTED_WITHIN * measured : 0)))
            fail_msg("%s: rank %u: sent %" PRIu64 " predicted; measured %s", words, rank, bytes, sends);
    }
    dtp_simulated_release(&simulated);
}

/* A case that ended did all its steps and held and sent what was predicted; one that did not was out of time, or hung
 * before kernels were rehearsed, and says so. */
static void test_cases(void **state)
{
    struct dtp_table *layouts = table_of("layouts.csv");
    size_t held = 0, ended = 0;
    (void)state;
    for (size_t row = 0; row < dtp_table_row_count(layouts); row++) {
        if (strcmp(text(layouts, row, "status"), "124") == 0)
            continue;
        ended++;
        assert_string_equal(text(layouts, row, "status"), "0");
        assert_string_not_equal(text(layouts, row, "bytes_equal"), "0");
        if (*text(layouts, row, "largest_apart"))
            assert_true(number(layouts, row, "largest_apart") <= WITHIN);
        if (!*text(layouts, row, "arena_bytes"))
            continue; /* checkpoints, and what was run before rows had bytes */
        hold(text(layouts, row, "keys"), text(layouts, row, "arena_bytes"), text(layouts, row, "sent_bytes_a_step"));
        held++;
    }
    assert_true(ended > 0);
    print_message("%zu cases, of %zu the bytes\n", ended, held);
    dtp_table_destroy(layouts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_losses), cmocka_unit_test(test_cases)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
