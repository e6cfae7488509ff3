#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "lib/run_fixture.h"
#include "cost/calibration.h"
#include "decide/elastic.h"
#include "record/run_report.h"

#include <math.h>

static struct dtp_faults faults;
static struct dtp_simulated simulated;
static struct dtp_run_outcome outcome;
static struct dtp_run_report report;

/* A GPU that did what was predicted, a tenth slower, all of it contention. */
static int set_up(void **state)
{
    static struct dtp_job job;
    struct dtp_simulation_options options = dtp_simulation_options_default();
    (void)state;
    run_job("layers=2 hidden=4096 heads=32 ffn=11008 vocab=32000 seq=2048 micro_batch=4 gpus=2 strategy=zero1", &job);
    if (dtp_simulated_create(&job, &options, &simulated, &faults) != DTP_OK)
        return -1;
    outcome = (struct dtp_run_outcome){.gpu = true,
                                       .device_arena_bytes = simulated.placement.arena_bytes,
                                       .used_bytes = simulated.prediction.memory.device_peak_bytes,
                                       .last_step = 50,
                                       .tokens_per_step = 16384,
                                       .timed_steps = 46,
                                       .entropy = 1.5,
                                       .first_loss = 10,
                                       .last_loss = 3,
                                       .step_s = 1.1 * simulated.timeline.step_s};
    snprintf(outcome.device, sizeof outcome.device, "NVIDIA H200");
    snprintf(outcome.data, sizeof outcome.data, "Markov chain");
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++)
        outcome.sent_bytes[i] = 50 * simulated.totals.sent_bytes[i];
    report = (struct dtp_run_report){.simulated = &simulated, .measured = &outcome, .split_known = true};
    report.split =
        (struct dtp_error_split){simulated.timeline.step_s, simulated.timeline.step_s, outcome.step_s, outcome.step_s};
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    dtp_simulated_release(&simulated);
    return 0;
}

static char *text;

static void contains(const char *words)
{
    if (!strstr(text, words))
        fail_msg("lacks \"%s\":\n%s", words, text);
}

static void test_text(void **state)
{
    size_t bytes;
    (void)state;
    struct dtp_page page = {.file = open_memstream(&text, &bytes)};
    assert_non_null(page.file);
    dtp_run_text(&report, &page);
    fclose(page.file);
    contains("device   NVIDIA H200");
    contains("all_gather");
    contains("reduce_scatter");
    contains("median of 46 steps");
    contains("0.909"); /* predicted over measured step */
    contains("cost model                    +0.00 %");
    contains("contention                    -9.09 %");
    contains("= step time                   -9.09 %");
    contains("entropy of the data 1.5000: the loss is 100.0 % above it");
    free(text);
}

static void test_json(void **state)
{
    size_t bytes;
    (void)state;
    FILE *file = open_memstream(&text, &bytes);
    assert_non_null(file);
    assert_int_equal(dtp_run_json(&report, file, &faults), DTP_OK);
    fclose(file);
    contains("\"schema\": \"dtplan.run/1\"");
    contains("\"error_split\": {");
    contains("\"timed_steps\": 46");
    assert_null(strstr(text, "nan"));
    free(text);
}

/* Ranks that share a GPU take turns: their times are said to mean nothing, and stand beside no prediction. */
static void test_shared_gpus_are_not_compared(void **state)
{
    size_t bytes;
    (void)state;
    outcome.ranks_a_gpu = 2;
    report.split_known = false;
    assert_false(dtp_run_report_comparable(&report));
    struct dtp_page page = {.file = open_memstream(&text, &bytes)};
    dtp_run_text(&report, &page);
    fclose(page.file);
    contains("GPUs are shared, by 2 ranks each");
    contains("tokens/s, which mean nothing: GPUs are shared");
    contains("arena");
    assert_null(strstr(text, "what the driver says"));
    assert_null(strstr(text, "0.909"));
    assert_null(strstr(text, "MFU"));
    free(text);
    FILE *file = open_memstream(&text, &bytes);
    assert_int_equal(dtp_run_json(&report, file, &faults), DTP_OK);
    fclose(file);
    contains("\"ranks_a_gpu\": 2");
    contains("\"predicted_step_s\": null");
    free(text);
    outcome.ranks_a_gpu = 1;
    report.split_known = true;
    assert_true(dtp_run_report_comparable(&report));
}

/* What a host needs is no prediction of a GPU's time. */
static void test_a_host_is_not_compared(void **state)
{
    size_t bytes;
    (void)state;
    outcome.gpu = report.split_known = false;
    struct dtp_page page = {.file = open_memstream(&text, &bytes)};
    dtp_run_text(&report, &page);
    fclose(page.file);
    contains("of each rank");
    contains("the prediction is of"); /* of a GPU that was named */
    assert_null(strstr(text, "MFU"));
    assert_null(strstr(text, "ERROR SPLIT"));
    free(text);
}

/* Two failures of 100 steps of 0.4 s with 20 snapshots: each was to cost 100 / 20 / 2 = 2.5 steps, and as long as the
 * first start took. A rank that dies is noticed at once, half a step after the last one; one that is silent 10 s later,
 * and is ended after 2 more. */
static void test_each_failure(void **state)
{
    size_t bytes;
    (void)state;
    struct dtp_elastic_outcome e = {.known = true,
                                    .generations = 3,
                                    .ranks = 2,
                                    .failures = 2,
                                    .snapshots = 20,
                                    .steps = 100,
                                    .wall_s = 50,
                                    .useful_s = 40,
                                    .first_start_s = 3};
    e.failure[0] = (struct dtp_elastic_failure){"rank 1 was ended by signal 9", 4, DTP_LOSS_CLOSED, 0.25, 0.3, 3.5};
    e.failure[1] = (struct dtp_elastic_failure){"rank 0 was silent", 1, DTP_LOSS_SILENT, 9.9, 12.1, 4};
    struct dtp_page page = {.file = open_memstream(&text, &bytes), .columns = 160};
    dtp_elastic_text(&e, &page);
    fclose(page.file);
    contains("1                    4    0.2 s        0.3 s         3.5 s  rank 1 was ended by signal 9\n"
             "  predicted          2.5    0.2 s        0.2 s         3.0 s  noticed by connection");
    contains("2                    1    9.9 s       12.1 s         4.0 s  rank 0 was silent\n"
             "  predicted          2.5   10.2 s       12.2 s         3.0 s  noticed by silence");
    free(text);
}

/* A GPU's share of the state over its PCIe; a host's times are not compared, so nothing is predicted of them. */
static void test_stalls(void **state)
{
    size_t bytes;
    (void)state;
    struct dtp_run_outcome kept = outcome;
    kept.gpu = false;
    kept.checkpoints = (struct dtp_kept){1, 0.5, 0.5};
    kept.beside = (struct dtp_kept){4, 0.2, 0.08};
    const struct dtp_run_report at_host = {.simulated = report.simulated, .measured = &kept};
    struct dtp_page page = {.file = open_memstream(&text, &bytes), .columns = 100};
    dtp_run_stalls_text(&at_host, &page);
    fclose(page.file);
    contains("1 x checkpoint, written          -     500.0           500.0");
    contains("4 x checkpoint, copied           -      50.0            80.0");
    assert_null(strstr(text, "snapshot"));
    free(text);
    kept.gpu = true;
    assert_true(isnan(dtp_run_stall_s(&at_host, &kept.snapshots, true)));
    double copied_s = dtp_run_stall_s(&at_host, &kept.beside, true);
    const struct dtp_job *job = &report.simulated->job;
    double rate = job->cluster.gpu.pcie_bytes_per_s * dtp_calibration.pcie_fraction;
    assert_true(fabs(copied_s / (dtp_checkpoint_bytes(job) / job->cluster.gpus / rate) - 1) < 1e-9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_stalls),
                                       cmocka_unit_test(test_each_failure),
                                       cmocka_unit_test(test_text),
                                       cmocka_unit_test(test_json),
                                       cmocka_unit_test(test_shared_gpus_are_not_compared),
                                       cmocka_unit_test(test_a_host_is_not_compared)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
