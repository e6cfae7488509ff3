/* Configuration files of trainings whose speed was published: tests/data/configs/published.txt. What dtplan says of the
 * file alone, with the cluster typed beside it, against what was measured, and against what it says of the row of the
 * run table, which people wrote from the publication's words. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "job/job_values.h"
#include "lib/import_fixture.h"
#include "runs/backtest.h"
#include "sim/simulated.h"

#include <math.h>

#define SCENARIOS TEST_SOURCE_DIR "/scenarios/"
#define MOST 64

static double file_error_pct[MOST], row_error_pct[MOST];
static size_t count;

static double predicted(const struct dtp_job *job)
{
    struct dtp_predictor simulated = dtp_predictor_simulated();
    struct dtp_prediction prediction;
    struct dtp_faults faults = {0};
    if (simulated.predict(simulated.context, job, &prediction, &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
    return prediction.throughput.tokens_per_s_per_gpu;
}

static bool same_value(const struct dtp_job_value *a, const struct dtp_job_value *b)
{
    if (a->missing != b->missing)
        return false;
    if (a->kind == DTP_VALUE_WORD)
        return !a->word || !b->word ? a->word == b->word : strcmp(a->word, b->word) == 0;
    return a->kind == DTP_VALUE_REAL ? a->real == b->real : a->whole == b->whole;
}

static void print_value(const struct dtp_job_value *value)
{
    if (value->kind == DTP_VALUE_WORD)
        print_message(" %s", value->word ? value->word : "none");
    else
        print_message(" %g", value->kind == DTP_VALUE_REAL ? value->real : (double)value->whole);
}

/* Keys in which the two jobs differ, for whoever looks why their predictions do. */
static void print_differences(const struct dtp_job *file, const struct dtp_job *row)
{
    static struct dtp_job_value a[DTP_JOB_VALUES_MAX], b[DTP_JOB_VALUES_MAX];
    size_t values = dtp_job_values(file, a);
    assert_int_equal(dtp_job_values(row, b), values);
    for (size_t i = 0; i < values; i++)
        if (!same_value(&a[i], &b[i])) {
            print_message("    %s: file", a[i].key->key);
            print_value(&a[i]);
            print_message(", row");
            print_value(&b[i]);
            print_message("\n");
        }
}

static void compare(const char *name, const char *table, const char *run, const char *typed)
{
    static struct imported_file file;
    static struct dtp_job by_row;
    char path[512];
    struct dtp_backtest *backtest = NULL;
    struct dtp_predictor simulated = dtp_predictor_simulated();
    begin_import(&file);
    snprintf(path, sizeof path, CONFIGS "%s", name);
    enum dtp_status status = dtp_import_read(file.import, path, &file.faults);
    if (status == DTP_OK)
        status = finish_import(&file, typed, NULL);
    if (status != DTP_OK)
        fail_msg("%s: %s", name, file.faults.text[0]);
    snprintf(path, sizeof path, SCENARIOS "%s", table);
    if (dtp_backtest_run_only(path, run, &simulated, &catalog, &backtest, &file.faults) != DTP_OK)
        fail_msg("%s: %s", run, file.faults.text[0]);
    assert_int_equal(backtest->row_count, 1);
    const struct dtp_backtest_row *row = &backtest->rows[0];
    double says = predicted(&file.job), measured = row->measured_tokens_per_s_per_gpu;
    assert_true(measured > 0 && count < MOST);
    assert_int_equal(dtp_run_job(&row->run, &catalog, &by_row, &file.faults), DTP_OK);
    file_error_pct[count] = fabs(says / measured - 1) * 100;
    row_error_pct[count++] = fabs(row->error_pct);
    print_message("%s: %.0f tokens/s a GPU, measured %.0f (%s): %+.1f %%, by the table's row %+.1f %%\n", name, says,
                  measured, run, (says / measured - 1) * 100, row->error_pct);
    if (fabs(file_error_pct[count - 1] - row_error_pct[count - 1]) > 1)
        print_differences(&file.job, &by_row);
    dtp_backtest_destroy(backtest);
    drop_imported(&file);
}

/* Half of the files are as near as half of their rows are, and the worst is no farther off than the worst row. */
static void files_are_predicted_as_rows_are(void **state)
{
    (void)state;
    char line[512], name[128], table[64], run[32];
    FILE *list = fopen(CONFIGS "published.txt", "r");
    assert_non_null(list);
    while (fgets(line, sizeof line, list)) {
        int typed = 0;
        if (line[0] == '#' || sscanf(line, "%127s %63s %31s %n", name, table, run, &typed) != 3)
            continue;
        line[strcspn(line, "\n")] = '\0';
        compare(name, table, run, line + typed);
    }
    fclose(list);
    assert_true(count >= 20);
    struct dtp_error_statistics files = dtp_error_statistics(file_error_pct, count),
                                rows = dtp_error_statistics(row_error_pct, count);
    print_message("%zu files: median %.1f %%, mean %.1f %%, at most %.1f %%; their rows: %.1f, %.1f, %.1f %%\n", count,
                  files.median_abs_pct, files.mean_abs_pct, files.max_abs_pct, rows.median_abs_pct, rows.mean_abs_pct,
                  rows.max_abs_pct);
    assert_true(files.median_abs_pct <= rows.median_abs_pct + 0.5 && files.mean_abs_pct <= rows.mean_abs_pct + 0.5);
    assert_true(files.max_abs_pct <= rows.max_abs_pct + 0.5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(files_are_predicted_as_rows_are)};
    return cmocka_run_group_tests(tests, load_catalog, drop_catalog);
}
