#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "lib/run_fixture.h"
#include "record/validation.h"

#include <unistd.h>

static struct dtp_faults faults;
static struct dtp_simulated simulated;
static struct dtp_run_outcome outcome;
static struct dtp_run_report report;

/* A GPU that did what was predicted, bytes to the last, but took 1.25 times as long: the prediction is 20 % short, 10
 * of them its costs, 5 contention, 5 the host. */
static int set_up(void **state)
{
    static struct dtp_job job;
    struct dtp_simulation_options options = dtp_simulation_options_default();
    (void)state;
    run_job("layers=2 hidden=256 heads=4 ffn=512 vocab=1000 seq=128 micro_batch=4 gpus=2 strategy=zero1", &job);
    if (dtp_simulated_create(&job, &options, &simulated, &faults) != DTP_OK)
        return -1;
    double measured_s = 1.25 * simulated.prediction.time.step_s;
    outcome = (struct dtp_run_outcome){.gpu = true,
                                       .device_arena_bytes = simulated.placement.arena_bytes,
                                       .used_bytes = simulated.prediction.memory.device_peak_bytes,
                                       .last_step = 12,
                                       .tokens_per_step = 1024,
                                       .timed_steps = 8,
                                       .entropy = (double)NAN,
                                       .first_loss = 7,
                                       .last_loss = 6.5,
                                       .step_s = measured_s};
    snprintf(outcome.device, sizeof outcome.device, "NVIDIA H200, the second");
    snprintf(outcome.program, sizeof outcome.program, "0123456789abcdef");
    outcome.host_to_device_bytes = 12 * simulated.totals.host_to_device_bytes;
    outcome.device_to_host_bytes = 12 * simulated.totals.device_to_host_bytes;
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++)
        outcome.sent_bytes[i] = 12 * simulated.totals.sent_bytes[i];
    report = (struct dtp_run_report){.simulated = &simulated, .measured = &outcome, .split_known = true};
    report.split = (struct dtp_error_split){0.8 * measured_s, 0.9 * measured_s, 0.95 * measured_s, measured_s};
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    dtp_simulated_release(&simulated);
    return 0;
}

static struct dtp_validation row_of_report(void)
{
    struct dtp_validation v = {0};
    dtp_validation_plan(&simulated, &v);
    dtp_validation_measure(&report, &v);
    return v;
}

static void test_judges(void **state)
{
    struct dtp_validation_bounds bounds = dtp_validation_bounds_default();
    struct dtp_validation v = row_of_report();
    (void)state;
    assert_true(fabs(dtp_validation_step_error(&v) + 0.2) < 1e-12);
    assert_false(dtp_validation_judge(&v, &bounds));
    assert_string_equal(v.outside, "step -20.0 %");
    bounds.step_fraction = 0.201;
    assert_true(dtp_validation_judge(&v, &bounds));
    v.arena_bytes[DTP_VALIDATION_MEASURED]++; /* one byte is one too many */
    v.sent_bytes[DTP_ALL_GATHER][DTP_VALIDATION_MEASURED] = 0;
    v.device_bytes[DTP_VALIDATION_MEASURED] = v.device_bytes[DTP_VALIDATION_PREDICTED] * 100 / 97;
    assert_false(dtp_validation_judge(&v, &bounds));
    assert_non_null(strstr(v.outside, "arena "));
    assert_non_null(strstr(v.outside, "all_gather 0 bytes, predicted "));
    assert_non_null(strstr(v.outside, "device memory -3.0 %"));
    v = row_of_report();
    v.status = DTP_ENVIRONMENT;
    assert_false(dtp_validation_judge(&v, &bounds));
    assert_string_equal(v.outside, "");
}

/* A host's memory and times are not those of the GPU that was predicted. */
static void test_a_host_is_judged_by_bytes(void **state)
{
    struct dtp_validation_bounds bounds = dtp_validation_bounds_default();
    (void)state;
    outcome.gpu = report.split_known = false;
    outcome.used_bytes = 0;
    struct dtp_validation v = row_of_report();
    outcome.gpu = report.split_known = true;
    outcome.used_bytes = simulated.prediction.memory.device_peak_bytes;
    assert_true(isnan(dtp_validation_step_error(&v)));
    assert_true(dtp_validation_judge(&v, &bounds));
}

static void test_a_file_keeps_rows(void **state)
{
    char path[] = "/tmp/dtplan-test-validation-XXXXXX";
    struct dtp_validation v = row_of_report(), *read;
    struct dtp_row_file place = {.schema = DTP_VALIDATION_SCHEMA, .digest = 7};
    struct dtp_run_outcome again;
    size_t count;
    (void)state;
    snprintf(v.reason, sizeof v.reason, "two\nlines, \"quoted\"");
    FILE *file = fdopen(mkstemp(path), "w");
    char *header = dtp_validation_header();
    fputs(header, file);
    dtp_validation_write_row(&place, 0, &v, file);
    dtp_validation_write_row(&place, 1, &v, file);
    fclose(file);
    free(header);
    assert_int_equal(dtp_validation_read(path, &read, &count, &faults), DTP_OK);
    unlink(path);
    assert_int_equal(count, 2);
    assert_string_equal(read[1].name, "custom zero1 4x128 on 2 GPUs");
    assert_string_equal(read[1].device, "NVIDIA H200, the second");
    assert_string_equal(read[1].program, "0123456789abcdef");
    assert_string_equal(read[1].reason, "two lines, \"quoted\"");
    assert_memory_equal(read[1].sent_bytes, v.sent_bytes, sizeof v.sent_bytes);
    assert_memory_equal(read[1].owner_bytes, v.owner_bytes, sizeof v.owner_bytes);
    assert_true(fabs(read[1].in_place_step_s / (0.95 * outcome.step_s) - 1) < 1e-8);
    assert_true(isnan(read[1].class_s[DTP_CLASS_MATMUL][0]));
    dtp_validation_outcome(&read[1], &again);
    assert_true(again.gpu && again.last_step - again.first_step == 1);
    assert_int_equal(again.sent_bytes[DTP_ALL_GATHER], simulated.totals.sent_bytes[DTP_ALL_GATHER]);
    free(read);
}

/* What was published before rows said which program ran. */
static void test_rows_without_a_program_are_read(void **state)
{
    struct dtp_validation *read;
    size_t count;
    (void)state;
    assert_int_equal(dtp_validation_read(TEST_SOURCE_DIR "/reports/h200/validate/validate.csv", &read, &count, &faults),
                     DTP_OK);
    assert_true(count > 0);
    assert_string_equal(read[0].program, "");
    free(read);
}

static void test_a_broken_file_is_refused(void **state)
{
    char path[] = "/tmp/dtplan-test-validation-XXXXXX";
    struct dtp_validation v = row_of_report(), *read;
    struct dtp_row_file place = {.schema = DTP_VALIDATION_SCHEMA, .digest = 7};
    char *text = NULL, *header = dtp_validation_header(), *at;
    size_t bytes, count;
    (void)state;
    v.gpus = 987654321;
    FILE *memory = open_memstream(&text, &bytes);
    fputs(header, memory);
    dtp_validation_write_row(&place, 0, &v, memory);
    fclose(memory);
    assert_non_null(at = strstr(text, "987654321"));
    memcpy(at, "98765x321", 9);
    FILE *file = fdopen(mkstemp(path), "w");
    fputs(text, file);
    fclose(file);
    struct dtp_faults own = {0};
    assert_int_equal(dtp_validation_read(path, &read, &count, &own), DTP_BAD_INPUT);
    assert_non_null(strstr(own.text[0], ":2: gpus_count: '98765x321' is no number"));
    unlink(path);
    free(text);
    free(header);
}

static void test_reports(void **state)
{
    struct dtp_validation_bounds bounds = dtp_validation_bounds_default();
    struct dtp_validation rows[2] = {row_of_report(), {.status = DTP_NO, .reason = "too large", .run = "b.ini"}};
    char *text = NULL;
    size_t bytes;
    (void)state;
    dtp_validation_judge(&rows[0], &bounds);
    struct dtp_page page = {.file = open_memstream(&text, &bytes)};
    dtp_validation_text(rows, 2, &bounds, &page);
    fclose(page.file);
    assert_non_null(strstr(text, "-20.0     -10.0        -5.0  -5.0  equal    +0.0"));
    assert_non_null(strstr(text, "0 of 2 within all bounds, 1 outside, 1 failed"));
    assert_non_null(strstr(text, "b.ini: failed: too large"));
    free(text);
    FILE *file = open_memstream(&text, &bytes);
    assert_int_equal(dtp_validation_json(rows, 2, &bounds, NULL, file, &faults), DTP_OK);
    fclose(file);
    assert_non_null(strstr(text, "\"step_error_fraction\": -0.2"));
    assert_null(strstr(text, "nan"));
    free(text);
}

/* Where ranks divide experts it is the router that says how much is exchanged: what was predicted is an expectation. */
static void test_rows_to_experts_are_expected(void **state)
{
    struct dtp_validation_bounds bounds = {.step_fraction = 1, .device_fraction = 1};
    (void)state;
    struct dtp_validation v = row_of_report();
    v.sent_bytes[DTP_ALL_TO_ALL][DTP_VALIDATION_MEASURED]++;
    assert_false(dtp_validation_judge(&v, &bounds));
    assert_non_null(strstr(v.outside, "all_to_all"));
    v.ep = 2;
    assert_true(dtp_validation_judge(&v, &bounds));
    v.sent_bytes[DTP_ALL_REDUCE][DTP_VALIDATION_MEASURED]++; /* what gradients send is known to the byte all the same */
    assert_false(dtp_validation_judge(&v, &bounds));
}

/* Predicted step 1 ms, 1.5 with as many rows on each rank as the fullest got, measured 2: 25 % short. What a run has no
 * prediction of is "-"; one that heard no counts of experts is no line of the table. */
static void test_runs_without_counts_of_experts(void **state)
{
    struct dtp_validation_bounds bounds = {.step_fraction = 1, .device_fraction = 1};
    struct dtp_validation rows[4] = {row_of_report(), row_of_report(), row_of_report(), row_of_report()};
    static const char *const names[] = {"filled", "no-step", "no-times", "no-counts"};
    char *text;
    size_t bytes;
    (void)state;
    for (int i = 0; i < 4; i++) {
        snprintf(rows[i].name, sizeof rows[i].name, "%s", names[i]);
        rows[i].step_s[DTP_VALIDATION_PREDICTED] = 1e-3;
        rows[i].step_s[DTP_VALIDATION_MEASURED] = 2e-3;
        rows[i].expert_imbalance = i < 3 ? 1.5 : (double)NAN;
        rows[i].imbalanced_step_s = i == 1 ? (double)NAN : 1.5e-3;
    }
    rows[2].compared = 0;
    struct dtp_page page = {.file = open_memstream(&text, &bytes)};
    dtp_validation_text(rows, 4, &bounds, &page);
    fclose(page.file);
    const char *table = strstr(text, "EXPERTS"), *end = table ? strstr(table, "\n\n") : NULL;
    assert_true(table && end);
    const char *none = strstr(table, "no-counts");
    assert_true(!none || none > end);
    assert_non_null(strstr(table, "filled       1.50      1.000      1.500     2.000      -25.0\n"));
    assert_non_null(strstr(table, "no-step      1.50      1.000          -     2.000          -\n"));
    assert_non_null(strstr(table, "no-times     1.50          -          -     2.000          -\n"));
    free(text);
}

/* Of ranks that shared a GPU bytes are judged and no time is, which no column shows. */
static void test_shared_gpus_are_judged_by_bytes(void **state)
{
    struct dtp_validation_bounds bounds = dtp_validation_bounds_default();
    struct dtp_validation row;
    char *text;
    size_t bytes;
    (void)state;
    outcome.ranks_a_gpu = 4;
    row = row_of_report();
    outcome.ranks_a_gpu = 1;
    assert_int_equal(row.compared, 0);
    assert_int_equal(row.ranks_a_gpu, 4);
    assert_true(isnan(row.step_s[DTP_VALIDATION_MEASURED]) && isfinite(row.step_s[DTP_VALIDATION_PREDICTED]));
    assert_true(isnan(dtp_validation_step_error(&row)));
    assert_true(dtp_validation_judge(&row, &bounds));
    row.arena_bytes[DTP_VALIDATION_MEASURED]++;
    assert_false(dtp_validation_judge(&row, &bounds));
    row.arena_bytes[DTP_VALIDATION_MEASURED]--;
    dtp_validation_judge(&row, &bounds);
    struct dtp_page page = {.file = open_memstream(&text, &bytes)};
    dtp_validation_text(&row, 1, &bounds, &page);
    fclose(page.file);
    assert_non_null(strstr(text, "ranks shared GPUs, and times mean nothing"));
    assert_null(strstr(text, "-20.0"));
    free(text);
}

/* Runs whose names say the same are told apart by what was typed for one and not for the other. */
static void test_like_names_are_told_apart(void **state)
{
    (void)state;
    struct dtp_validation_bounds bounds = dtp_validation_bounds_default();
    struct dtp_validation rows[3] = {row_of_report(), row_of_report(), row_of_report()};
    char *text;
    size_t bytes;
    struct dtp_page page = {.file = open_memstream(&text, &bytes)};
    snprintf(rows[0].run, sizeof rows[0].run, "layers=2 sliding_window=8 seq=128");
    snprintf(rows[1].run, sizeof rows[1].run, "layers=2 sliding_window=16 seq=128");
    snprintf(rows[2].run, sizeof rows[2].run, "layers=2 seq=128");
    snprintf(rows[2].name, sizeof rows[2].name, "another");
    rows[1].status = DTP_ENVIRONMENT;
    dtp_validation_text(rows, 3, &bounds, &page);
    fclose(page.file);
    assert_non_null(strstr(text, "; sliding_window=8 "));
    assert_non_null(strstr(text, "; sliding_window=16 "));
    assert_non_null(strstr(text, "sliding_window=16: "));
    assert_null(strstr(text, "layers=2"));
    assert_null(strstr(text, "seq=128"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_judges),
                                       cmocka_unit_test(test_rows_to_experts_are_expected),
                                       cmocka_unit_test(test_a_host_is_judged_by_bytes),
                                       cmocka_unit_test(test_a_file_keeps_rows),
                                       cmocka_unit_test(test_rows_without_a_program_are_read),
                                       cmocka_unit_test(test_a_broken_file_is_refused),
                                       cmocka_unit_test(test_reports),
                                       cmocka_unit_test(test_shared_gpus_are_judged_by_bytes),
                                       cmocka_unit_test(test_like_names_are_told_apart),
                                       cmocka_unit_test(test_runs_without_counts_of_experts)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
