/* What tables of sweeps add to a backtest: runs that died, several tables as one, and whether predictions choose well,
 * counted by hand. */
#include "record/backtest_report.h"
#include "runs/backtest.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "lib/shipped_catalog.h"

#define WRITTEN TEST_BINARY_DIR "/test_decisions_runs.csv"
#define OTHER TEST_BINARY_DIR "/test_decisions_more_runs.csv"

/* ---- tables ----------------------------------------------------------------------------------------------------- */

/* A run of LLaMA-2 7B on eight GPUs. The predictor of these tests says that it makes `predicted` tokens/s, and that it
 * does not fit where it recomputes everything, and is tight where it recomputes attention. */
struct run {
    unsigned sequence, predicted;
    const char *recomputes, *measured, *status;
};
#define FITS "none"
#define DOES_NOT "full"
#define TIGHT "selective-attention"

static const char *write_runs(const char *path, const char *name, const struct run *runs, size_t count)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("id,source,model_name,gpu_key,strategy_key,gpus,seq_len,micro_batch_per_gpu,activation_checkpointing,"
          "tokens_per_s_per_gpu,status,notes\n",
          file);
    for (size_t i = 0; i < count; i++)
        fprintf(file, "%s-%zu,s,llama-2-7b,h100-sxm,full_shard,8,%u,%u,%s,%s,%s,q=%c\n", name, i, runs[i].sequence,
                runs[i].predicted, runs[i].recomputes, runs[i].measured, runs[i].status, i % 2 ? 'B' : 'A');
    fclose(file);
    return path;
}

static enum dtp_status predict_micro_batch(const void *context, const struct dtp_job *job, struct dtp_prediction *out,
                                           struct dtp_faults *faults)
{
    (void)context;
    (void)faults;
    *out = (struct dtp_prediction){.throughput.tokens_per_s_per_gpu = job->plan.micro_batch};
    out->memory.verdict = job->plan.checkpointing == DTP_CHECKPOINT_FULL   ? DTP_VERDICT_OOM
                          : job->plan.checkpointing == DTP_CHECKPOINT_NONE ? DTP_VERDICT_FITS
                                                                           : DTP_VERDICT_TIGHT;
    return DTP_OK;
}

static const struct dtp_predictor told = {.name = "told", .predict = predict_micro_batch};

static struct dtp_backtest *score(const struct dtp_backtest_request *request)
{
    struct dtp_faults faults = {0};
    struct dtp_backtest *backtest = NULL;
    if (dtp_backtest_score(request, &catalog, &backtest, &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
    return backtest;
}

static struct dtp_backtest *score_runs(const struct run *runs, size_t count)
{
    const char *path = write_runs(WRITTEN, "r", runs, count);
    return score(&(struct dtp_backtest_request){.paths = &path, .path_count = 1, .predictor = &told});
}

#define SCORE(runs) score_runs((runs), sizeof(runs) / sizeof *(runs))

/* ---- how runs end ------------------------------------------------------------------------------------------------ */

static void test_status_says_why_nothing_was_measured(void **state)
{
    (void)state;
    static const struct run runs[] = {{2048, 1, FITS, "9000", ""},
                                      {2048, 1, FITS, "9000", "Completed"},
                                      {2048, 1, FITS, "", "OOM"},
                                      {2048, 1, FITS, "", "timeout"},
                                      {2048, 1, FITS, "", ""},
                                      {2048, 1, FITS, "9000", "oom"},
                                      {2048, 1, FITS, "9000", "diverged"},
                                      {2048, 1, DOES_NOT, "9000", "ran"},
                                      {2048, 1, DOES_NOT, "", "out of memory"}};
    static const enum dtp_run_end ends[] = {DTP_RUN_RAN, DTP_RUN_RAN,    DTP_RUN_OOM, DTP_RUN_FAILED, DTP_RUN_RAN,
                                            DTP_RUN_OOM, DTP_RUN_FAILED, DTP_RUN_RAN, DTP_RUN_OOM};
    struct dtp_backtest *backtest = SCORE(runs);
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        assert_int_equal(backtest->rows[i].measured.end, ends[i]);
        assert_int_equal(backtest->rows[i].verdict, i == 4 || i == 5 ? DTP_BACKTEST_REFUSED : DTP_BACKTEST_OK);
        assert_true(backtest->rows[i].predicted);
    }
    assert_string_equal(backtest->rows[3].measured.status, "timeout");
    assert_non_null(strstr(backtest->rows[4].reason, "no status that says why"));
    assert_non_null(strstr(backtest->rows[5].reason, "status 'oom' says that it did not run"));
    assert_int_equal(backtest->scored, 7);
    assert_int_equal(backtest->throughput.count, 4);
    assert_int_equal(backtest->fit_count[DTP_RUN_RAN][DTP_VERDICT_FITS], 2);
    assert_int_equal(backtest->fit_count[DTP_RUN_RAN][DTP_VERDICT_OOM], 1);
    assert_int_equal(backtest->fit_count[DTP_RUN_OOM][DTP_VERDICT_FITS], 1);
    assert_int_equal(backtest->fit_count[DTP_RUN_OOM][DTP_VERDICT_OOM], 1);
    assert_int_equal(backtest->fit_count[DTP_RUN_FAILED][DTP_VERDICT_FITS], 2);
    dtp_backtest_destroy(backtest);
}

/* Ids that stand in both tables are refused in the second; notes choose rows. */
static void test_tables_together(void **state)
{
    (void)state;
    static const struct run runs[] = {{2048, 1, FITS, "10", ""}, {2048, 2, FITS, "20", ""}, {2048, 3, FITS, "30", ""}};
    const char *const paths[] = {write_runs(WRITTEN, "r", runs, 3), write_runs(OTHER, "more", runs, 3)};
    struct dtp_backtest_request request = {.paths = paths, .path_count = 2, .predictor = &told};
    struct dtp_backtest *backtest = score(&request);
    assert_int_equal(backtest->row_count, 6);
    assert_int_equal(backtest->scored, 6);
    dtp_backtest_destroy(backtest);
    request.noted = "q=A";
    backtest = score(&request);
    assert_int_equal(backtest->row_count, 4);
    assert_string_equal(backtest->rows[2].run.id, "more-0");
    dtp_backtest_destroy(backtest);
    write_runs(OTHER, "r", runs, 3);
    request.noted = NULL;
    backtest = score(&request);
    assert_int_equal(backtest->scored, 3);
    assert_non_null(strstr(backtest->rows[4].reason, "id is that of a row of " WRITTEN " (line 3)"));
    dtp_backtest_destroy(backtest);
    struct dtp_faults faults = {0};
    request.noted = "q=Z";
    assert_int_equal(dtp_backtest_score(&request, &catalog, &backtest, &faults), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "no row's notes hold 'q=Z'"));
    unlink(OTHER);
}

/* ---- decisions by hand ------------------------------------------------------------------------------------------- */

static void expect_decision(const struct dtp_backtest *backtest, double correlation, double of_best, const char *chosen,
                            const char *best)
{
    assert_int_equal(backtest->decision_count, 1);
    const struct dtp_backtest_decision *d = &backtest->decisions[0];
    if (isnan(correlation))
        assert_true(isnan(d->rank_correlation));
    else
        assert_close(d->rank_correlation, correlation, 1e-9);
    assert_close(d->of_best, of_best, 1e-9);
    if (chosen)
        assert_string_equal(backtest->rows[d->chosen].run.id, chosen);
    else
        assert_int_equal(d->chosen, SIZE_MAX);
    assert_string_equal(backtest->rows[d->best].run.id, best);
    assert_int_equal(d->nodes, 1);
    assert_string_equal(d->gpu_key, "h100-sxm");
    assert_string_equal(backtest->sources[d->source].name, "s");
}

/* Ranks 1 2 3 4 measured are 3 2 1 4 predicted: 1 - 6 (4 + 0 + 4 + 0) / (4 x 15) = 0.2. */
static void test_a_sweep(void **state)
{
    (void)state;
    static const struct run runs[] = {
        {2048, 10, FITS, "100", ""}, {2048, 20, FITS, "90", ""}, {2048, 30, FITS, "80", ""}, {2048, 5, FITS, "70", ""}};
    static const double predicted[] = {3, 2, 1, 4};
    struct dtp_backtest *backtest = SCORE(runs);
    expect_decision(backtest, 0.2, 0.8, "r-2", "r-0");
    assert_int_equal(backtest->decisions[0].configurations, 4);
    for (size_t i = 0; i < 4; i++) {
        assert_true(backtest->rows[i].predicted_rank == predicted[i]);
        assert_true(backtest->rows[i].measured_rank == (double)i + 1);
    }
    assert_close(backtest->choices.mean_of_best, 0.8, 1e-9);
    assert_close(backtest->choices.median_rank_correlation, 0.2, 1e-9);
    /* all six pairs differ in micro_batch alone: those of the slowest run are in order, those of the others reversed */
    assert_int_equal(backtest->choices.pairs, 6);
    assert_int_equal(backtest->choices.pairs_right, 3);
    assert_int_equal(backtest->choices.pairs_alike, 0);
    dtp_backtest_destroy(backtest);
}

/* 100 and 99 are not told apart; rows that differ in micro_batch and checkpointing are no pair; one predicted alike is
 * not ordered right. */
static void test_pairs(void **state)
{
    (void)state;
    static const struct run runs[] = {{2048, 10, FITS, "100", ""},
                                      {2048, 20, FITS, "99", ""},
                                      {2048, 30, TIGHT, "50", ""},
                                      {2048, 10, TIGHT, "80", ""}};
    struct dtp_backtest *backtest = SCORE(runs);
    assert_int_equal(backtest->choices.pairs, 2); /* 100 and 80 by checkpointing, 50 and 80 by micro_batch */
    assert_int_equal(backtest->choices.pairs_alike, 1);
    assert_int_equal(backtest->choices.pairs_right, 0);
    dtp_backtest_destroy(backtest);
}

/* Ranks 1.5 1.5 3 predicted, 1 2 3 measured: 1.5 / sqrt(1.5 x 2). Either of the first two may be chosen. */
static void test_ties(void **state)
{
    (void)state;
    static const struct run runs[] = {{2048, 10, FITS, "100", ""},
                                      {2048, 10, FITS, "50", "ran"},
                                      {2048, 5, FITS, "20", ""},
                                      {2048, 4, FITS, "10", ""}};
    static const struct run equal[] = {{2048, 10, FITS, "100", ""}, {1024, 10, FITS, "50", ""}};
    struct dtp_backtest *backtest = score_runs(runs, 3);
    assert_int_equal(backtest->decision_count, 0); /* the first two are one configuration, measured twice */
    assert_int_equal(backtest->rows[0].decision, SIZE_MAX);
    assert_true(isnan(backtest->choices.mean_of_best) && isnan(backtest->rows[0].predicted_rank));
    dtp_backtest_destroy(backtest);
    backtest = score_runs(runs, 4);
    /* Ranks 1.5 1.5 3 4 and 1 2 3 4: deviations -1 -1 .5 1.5 and -1.5 -.5 .5 1.5. */
    expect_decision(backtest, 4.5 / sqrt(4.5 * 5), 0.75, "r-0", "r-0");
    assert_true(backtest->rows[1].predicted_rank == 1.5 && backtest->rows[1].measured_rank == 2);
    assert_int_equal(backtest->decisions[0].configurations, 3);
    dtp_backtest_destroy(backtest);
    backtest = SCORE(equal); /* a row each: no sweep */
    assert_int_equal(backtest->decision_count, 0);
    dtp_backtest_destroy(backtest);
}

static void test_memory_verdicts_decide(void **state)
{
    (void)state;
    static const struct run runs[] = {
        {2048, 30, DOES_NOT, "100", ""}, {2048, 20, FITS, "90", ""}, {2048, 10, FITS, "80", ""}};
    static const struct run none[] = {
        {2048, 30, DOES_NOT, "100", ""}, {2048, 20, DOES_NOT, "90", ""}, {2048, 10, DOES_NOT, "80", ""}};
    static const struct run tight[] = {
        {2048, 30, DOES_NOT, "100", ""}, {2048, 20, TIGHT, "90", ""}, {2048, 10, FITS, "80", ""}};
    struct dtp_backtest *backtest = SCORE(runs);
    expect_decision(backtest, 1, 0.9, "r-1", "r-0");
    dtp_backtest_destroy(backtest);
    backtest = SCORE(tight); /* as a search ranks */
    expect_decision(backtest, 1, 0.8, "r-2", "r-0");
    dtp_backtest_destroy(backtest);
    backtest = SCORE(none);
    expect_decision(backtest, 1, 0, NULL, "r-0");
    dtp_backtest_destroy(backtest);
}

/* One that died is no throughput to correlate, but may be chosen; where it is predicted not to fit it is not. */
static void test_what_died_may_be_chosen(void **state)
{
    (void)state;
    static const struct run chosen[] = {{2048, 40, FITS, "", "oom"},
                                        {2048, 30, FITS, "100", ""},
                                        {2048, 20, FITS, "90", ""},
                                        {2048, 10, FITS, "80", ""}};
    struct run known[4];
    struct dtp_backtest *backtest = SCORE(chosen);
    expect_decision(backtest, 1, 0, "r-0", "r-1");
    assert_int_equal(backtest->decisions[0].configurations, 3);
    assert_true(isnan(backtest->rows[0].measured_rank));
    dtp_backtest_destroy(backtest);
    memcpy(known, chosen, sizeof known);
    known[0].recomputes = DOES_NOT;
    backtest = SCORE(known);
    expect_decision(backtest, 1, 1, "r-1", "r-1");
    dtp_backtest_destroy(backtest);
    known[0] = (struct run){2048, 50, FITS, "", "timeout"}; /* which says nothing of the configuration */
    backtest = SCORE(known);
    expect_decision(backtest, 1, 1, "r-1", "r-1");
    dtp_backtest_destroy(backtest);
}

static void test_a_correlation_that_is_none(void **state)
{
    (void)state;
    static const struct run runs[] = {
        {2048, 10, FITS, "50", ""}, {2048, 20, FITS, "50", ""}, {2048, 30, FITS, "50", ""}};
    struct dtp_backtest *backtest = SCORE(runs);
    expect_decision(backtest, NAN, 1, "r-2", "r-0");
    assert_true(isnan(backtest->choices.median_rank_correlation) && backtest->choices.mean_of_best == 1);
    dtp_backtest_destroy(backtest);
}

/* Runs of another sequence length, or on another number of nodes, are another sweep. */
static void test_sweeps_apart(void **state)
{
    (void)state;
    static const struct run runs[] = {
        {2048, 10, FITS, "100", ""}, {2048, 20, FITS, "90", ""}, {2048, 5, FITS, "80", ""}, {1024, 1, FITS, "10", ""},
        {1024, 2, FITS, "20", ""},   {1024, 3, FITS, "30", ""},  {512, 7, FITS, "30", ""},  {512, 8, FITS, "30", ""}};
    struct dtp_backtest *backtest = SCORE(runs);
    assert_int_equal(backtest->decision_count, 2);
    assert_int_equal(backtest->decisions[0].sequence, 1024);
    assert_close(backtest->decisions[0].of_best, 1, 1e-9);
    assert_close(backtest->decisions[0].rank_correlation, 1, 1e-9);
    assert_close(backtest->decisions[1].of_best, 0.9, 1e-9);
    assert_close(backtest->choices.mean_of_best, 0.95, 1e-9);
    assert_close(backtest->choices.least_of_best, 0.9, 1e-9);
    assert_close(backtest->choices.least_rank_correlation, 0.5, 1e-9); /* 2 1 3 against 1 2 3 */
    assert_int_equal(backtest->rows[0].decision, 1);
    assert_int_equal(backtest->rows[6].decision, SIZE_MAX);
    dtp_backtest_destroy(backtest);
}

/* Refusals are counted by reason; where only figures or quoted names differ they are one. */
static void test_refusals_are_counted_by_kind(void **state)
{
    (void)state;
    FILE *file = fopen(WRITTEN, "w");
    fputs(
        "id,source,model_name,framework,gpu_key,strategy_key,gpus,dp,seq_len,micro_batch_per_gpu,tokens_per_s_per_gpu\n"
        "a,s,llama-2-7b,JAX one,h100-sxm,full_shard,8,,2048,1,9\n"
        "b,s,llama-2-7b,JAX one,h100-sxm,full_shard,8,,2048,1,9\n"
        "c,s,llama-2-7b,JAX two,h100-sxm,full_shard,8,,2048,1,9\n"
        "d,s,llama-2-7b,,h100-sxm,full_shard,8,4,2048,1,9\n"
        "e,s,llama-2-7b,,h100-sxm,full_shard,16,8,2048,1,9\n"
        "f,s,llama-2-7b,,h100-sxm,,16,,2048,1,9\n",
        file);
    fclose(file);
    struct dtp_backtest *backtest =
        score(&(struct dtp_backtest_request){.paths = (const char *[]){WRITTEN}, .path_count = 1, .predictor = &told});
    assert_int_equal(backtest->refusal_count, 3);
    assert_int_equal(backtest->refusals[0].rows, 3);
    assert_string_equal(backtest->refusals[0].reason, "framework '...' is not modelled");
    assert_string_equal(backtest->refusals[1].reason, "dp N is not gpus N / (tp x pp x cp)");
    assert_int_equal(backtest->refusals[2].rows, 1);
    assert_string_equal(backtest->refusals[2].reason, "strategy_key is empty");
    dtp_backtest_destroy(backtest);
}

static void test_text(void **state)
{
    (void)state;
    static const struct run runs[] = {{2048, 40, FITS, "", "oom"},
                                      {2048, 30, FITS, "100", ""},
                                      {2048, 20, FITS, "90", ""},
                                      {2048, 10, DOES_NOT, "80", ""},
                                      {2048, 10, FITS, "", "node lost"}};
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    struct dtp_backtest *backtest = SCORE(runs);
    dtp_backtest_write_text(backtest, 3, &(struct dtp_page){.file = file});
    fclose(file);
    assert_non_null(strstr(text, "DECISIONS"));
    assert_non_null(strstr(text, "of the best: 0.00 on average, 0.00 at worst; rank correlation: median 1.00"));
    assert_non_null(strstr(text, "  died out of memory     1      0              0    100.0"));
    assert_non_null(strstr(text, "  ran                    2      0              1     33.3"));
    assert_non_null(strstr(text, "1 ended otherwise"));
    free(text);
    dtp_backtest_destroy(backtest);
}

/* The shipped sweeps are read whole: each row is scored, or refused for a reason that says what is not modelled. */
static void test_shipped_sweeps(void **state)
{
    (void)state;
#define SHIPPED(name) TEST_SOURCE_DIR "/scenarios/" name ".csv"
    static const char *const paths[] = {SHIPPED("nanotron_h100_runs"), SHIPPED("nanotron_h100_oom"),
                                        SHIPPED("h200_parallel_runs")};
    const struct dtp_predictor formulas = dtp_predictor_closed();
    struct dtp_backtest *backtest =
        score(&(struct dtp_backtest_request){.paths = paths, .path_count = 3, .predictor = &formulas});
    size_t died = 0;
    assert_int_equal(backtest->row_count, 1027 + 372 + 29);
    assert_int_equal(backtest->scored + backtest->refused, backtest->row_count);
    for (size_t i = 0; i < backtest->row_count; i++) {
        const struct dtp_backtest_row *row = &backtest->rows[i];
        died += row->measured.end == DTP_RUN_OOM;
        assert_int_equal(*row->reason != '\0', row->verdict == DTP_BACKTEST_REFUSED);
        assert_null(strstr(row->reason, "nothing measured"));
        assert_null(strstr(row->reason, "is empty"));
    }
    assert_int_equal(died, 372);
    assert_int_equal(backtest->fit_count[DTP_RUN_FAILED][DTP_VERDICT_FITS], 0);
    assert_true(backtest->scored >= 40 && backtest->decision_count >= 5);
    dtp_backtest_destroy(backtest);
}

static int remove_tables(void **state)
{
    unlink(WRITTEN);
    return drop_catalog(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_status_says_why_nothing_was_measured),
        cmocka_unit_test(test_tables_together),
        cmocka_unit_test(test_a_sweep),
        cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_ties),
        cmocka_unit_test(test_memory_verdicts_decide),
        cmocka_unit_test(test_what_died_may_be_chosen),
        cmocka_unit_test(test_a_correlation_that_is_none),
        cmocka_unit_test(test_sweeps_apart),
        cmocka_unit_test(test_refusals_are_counted_by_kind),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_shipped_sweeps),
    };
    return cmocka_run_group_tests(tests, load_catalog, remove_tables);
}
