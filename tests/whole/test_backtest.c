/* The backtest on small tables: what is read, what is refused, what the statistics are by hand, and that no measured
 * column reaches the predictor. */
#include "runs/backtest.h"
#include "record/backtest_report.h"
#include "sim/simulated.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "lib/shipped_catalog.h"

#define FIXTURE TEST_SOURCE_DIR "/tests/data/runs.csv"
#define WRITTEN TEST_BINARY_DIR "/test_backtest_runs.csv"

/* ---- the fixture, changed --------------------------------------------------------------------------------------- */

struct change {
    const char *drop;     /* a column left out */
    bool reversed, extra; /* columns in reverse order; one nobody knows */
    size_t row;           /* whose `column` is set to `value` */
    const char *column, *value;
    const char *(*replace)(const char *column, size_t row, const char *value);
    bool last_row_twice;
};

static const char *changed_field(const struct dtp_table *table, const struct change *change, size_t row, size_t column)
{
    const char *name = dtp_table_column_name(table, column), *value = dtp_table_text(table, row, (long)column);
    if (change->column && row == change->row && strcmp(name, change->column) == 0)
        return change->value;
    return change->replace ? change->replace(name, row, value) : value;
}

/* `row` SIZE_MAX: the header. */
static void write_line(FILE *file, const struct dtp_table *table, const struct change *change, size_t row)
{
    size_t columns = dtp_table_column_count(table);
    fputs(change->extra ? row == SIZE_MAX ? "weather," : "\"rain, then sun\"," : "", file);
    for (size_t i = 0, written = 0; i < columns; i++) {
        size_t column = change->reversed ? columns - 1 - i : i;
        const char *name = dtp_table_column_name(table, column);
        if (change->drop && strcmp(name, change->drop) == 0)
            continue;
        fputs(written++ ? "," : "", file);
        dtp_table_write_field(file, row == SIZE_MAX ? name : changed_field(table, change, row, column));
    }
    fputc('\n', file);
}

static const char *write_changed(const char *from, const struct change *change)
{
    struct dtp_table *table = NULL;
    assert_int_equal(dtp_table_read(from, &table, NULL), DTP_OK);
    FILE *file = fopen(WRITTEN, "w");
    assert_non_null(file);
    write_line(file, table, change, SIZE_MAX);
    for (size_t row = 0; row < dtp_table_row_count(table); row++)
        write_line(file, table, change, row);
    if (change->last_row_twice)
        write_line(file, table, change, dtp_table_row_count(table) - 1);
    fclose(file);
    dtp_table_destroy(table);
    return WRITTEN;
}

static struct dtp_backtest *run_file(const char *path)
{
    struct dtp_faults faults = {0};
    struct dtp_backtest *backtest = NULL;
    enum dtp_status status = dtp_backtest_run(path, &catalog, &backtest, &faults);
    if (status)
        print_error("%s\n", faults.text[0]);
    assert_int_equal(status, DTP_OK);
    return backtest;
}

static struct dtp_backtest *run_changed(const struct change *change)
{
    return run_file(write_changed(FIXTURE, change));
}

/* The forecasts of two backtests are the same to the last bit. */
static void assert_same_forecasts(const struct dtp_backtest *a, const struct dtp_backtest *b)
{
    assert_int_equal(a->row_count, b->row_count);
    for (size_t i = 0; i < a->row_count; i++) {
        const struct dtp_backtest_forecast *x = &a->rows[i].forecast, *y = &b->rows[i].forecast;
        const struct dtp_memory *m = &x->prediction.memory, *n = &y->prediction.memory;
        assert_int_equal(a->rows[i].predicted, b->rows[i].predicted);
        assert_memory_equal(&x->prediction.time, &y->prediction.time, sizeof x->prediction.time);
        assert_memory_equal(&x->prediction.throughput, &y->prediction.throughput, sizeof x->prediction.throughput);
        assert_memory_equal(&x->prediction.communication, &y->prediction.communication,
                            sizeof x->prediction.communication);
        assert_memory_equal(m->phase_bytes, n->phase_bytes, sizeof m->phase_bytes);
        assert_true(m->reserved_peak_bytes == n->reserved_peak_bytes && m->device_peak_bytes == n->device_peak_bytes);
        assert_true(m->after_init_bytes == n->after_init_bytes && m->allocated_peak_bytes == n->allocated_peak_bytes);
        assert_memory_equal(&x->full_attention_flops_per_token, &y->full_attention_flops_per_token,
                            sizeof x->full_attention_flops_per_token);
    }
}

/* ---- reading ---------------------------------------------------------------------------------------------------- */

static void test_fixture_is_scored(void **state)
{
    (void)state;
    struct dtp_backtest *backtest = run_file(FIXTURE);
    assert_int_equal(backtest->row_count, 5);
    assert_int_equal(backtest->scored, 4);
    assert_int_equal(backtest->refused, 1);
    assert_int_equal(backtest->rows[3].verdict, DTP_BACKTEST_REFUSED);
    assert_string_equal(backtest->rows[3].first_reason, "framework 'JAX/MaxText' is not modelled");
    assert_int_equal(backtest->refusal_count, 1);
    assert_int_equal(backtest->source_count, 3);
    assert_string_equal(backtest->sources[0].name, "github:alice/bench");
    assert_int_equal(backtest->sources[0].rows, 3);
    assert_int_equal(backtest->sources[0].scored, 2);
    assert_string_equal(backtest->sources[1].name, "Bob");
    assert_string_equal(backtest->sources[2].name, "arXiv:1234.56789");
    /* c-1 gives a step time only: 4 sequences x 2 micro-steps x 2048 tokens in 4.5 s. */
    assert_close(backtest->rows[4].measured_tokens_per_s_per_gpu, 4 * 2 * 2048 / 4.5, 1e-9);
    assert_int_equal(backtest->memory[DTP_RUN_RESERVED].count, 1);
    assert_int_equal(backtest->memory[DTP_RUN_ALLOCATED].count, 1);
    assert_int_equal(backtest->memory[DTP_RUN_NVIDIA_SMI].count, 1);
    assert_int_equal(backtest->memory[DTP_RUN_DEVICE].count, 0);
    dtp_backtest_destroy(backtest);
}

static void test_column_order_and_extra_columns_change_nothing(void **state)
{
    (void)state;
    struct dtp_backtest *plain = run_file(FIXTURE);
    struct dtp_backtest *other = run_changed(&(struct change){.reversed = true, .extra = true});
    assert_same_forecasts(plain, other);
    assert_memory_equal(&plain->throughput, &other->throughput, sizeof plain->throughput);
    dtp_backtest_destroy(plain);
    dtp_backtest_destroy(other);
}

static void assert_refused_whole(const char *path, const char *message)
{
    struct dtp_faults faults = {0};
    struct dtp_backtest *backtest = NULL;
    assert_int_equal(dtp_backtest_run(path, &catalog, &backtest, &faults), DTP_BAD_INPUT);
    assert_null(backtest);
    assert_true(faults.count > 0);
    if (!strstr(faults.text[0], message))
        fail_msg("'%s' does not say '%s'", faults.text[0], message);
}

static void test_tables_that_are_none(void **state)
{
    (void)state;
    assert_refused_whole(write_changed(FIXTURE, &(struct change){.drop = "gpu_key"}), "no column 'gpu_key'");
    FILE *file = fopen(WRITTEN, "w");
    fclose(file);
    assert_refused_whole(WRITTEN, WRITTEN);
    file = fopen(WRITTEN, "w");
    fputs("id,source\n1,2\n", file);
    fclose(file);
    assert_refused_whole(WRITTEN, "no column 'model_name'");
    assert_refused_whole(TEST_BINARY_DIR "/no_such_file.csv", "no_such_file.csv");
    /* What names rows and groups reaches terminals and JSON. */
    assert_refused_whole(write_changed(FIXTURE, &(struct change){.row = 0, .column = "id", .value = "a\033[31m"}),
                         ":2: byte 2 of id is a control character");
    assert_refused_whole(write_changed(FIXTURE, &(struct change){.row = 1, .column = "source", .value = "s\xff"}),
                         ":3: byte 2 of source is a control character or not UTF-8");
}

static void test_a_table_without_rows(void **state)
{
    (void)state;
    struct dtp_table *table = NULL;
    assert_int_equal(dtp_table_read(FIXTURE, &table, NULL), DTP_OK);
    FILE *file = fopen(WRITTEN, "w");
    write_line(file, table, &(struct change){0}, SIZE_MAX);
    fclose(file);
    dtp_table_destroy(table);
    assert_refused_whole(WRITTEN, "no rows");
}

/* One changed field of row a-1 refuses that row with this reason and leaves the others alone. */
static const struct {
    const char *column, *value, *reason;
} bad_fields[] = {
    {"n_layers", "many", "n_layers 'many' is no whole number"},
    {"hidden", "-4096", "hidden '-4096' is no whole number"},
    {"gpus", "1.5", "gpus '1.5' is no whole number"},
    {"gpus", "", "gpus is empty"},
    {"micro_batch_per_gpu", "", "micro_batch_per_gpu is empty"},
    {"seq_len", "", "seq_len is empty"},
    {"params", "7e9", "params column says 7000000000 (3.7 % off, 2 % allowed)"},
    {"gpu_key", "h1000", "h1000"},
    {"strategy_key", "", "strategy_key is empty"},
    {"strategy_key", "magic", "magic"},
    {"strategy_key", "single", "single contradicts gpus 8"},
    {"pp", "4", "dp 8 is not gpus 8 / (tp x pp x cp)"},
    {"tp", "3", "tp x pp x cp is 3, which does not divide gpus 8"},
    {"tp", "18446744073709551615", "is no whole number"},
    {"cp", "2", "dp 8 is not gpus 8 / (tp x pp x cp)"},
    {"dp", "4", "dp 4 is not gpus 8"},
    {"global_batch", "17", "does not give global_batch 17"},
    {"offload_key", "activations", "offload of activations is not modelled"},
    {"offload_key", "spoons", "offload_key 'spoons' is no"},
    {"param_dtype", "int4", "param_dtype 'int4' is unknown"},
    {"fp8", "maybe", "fp8 'maybe' is neither 0 nor 1"},
    {"activation_checkpointing", "sometimes", "sometimes"},
    {"framework", "JAX/MaxText", "framework 'JAX/MaxText' is not modelled"},
    {"model_name", "Mixtral-8x7B", "no dense decoder"},
    {"tokens_per_s_per_gpu", "nan", "tokens_per_s_per_gpu 'nan' is no positive number"},
    {"tokens_per_s_per_gpu", "-5", "tokens_per_s_per_gpu '-5' is no positive number"},
    {"mem_kind", "guessed", "mem_kind 'guessed' is unknown"},
    {"id", "", "id is empty"},
};

static void test_a_bad_field_refuses_its_row(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad_fields / sizeof *bad_fields; i++) {
        struct dtp_backtest *backtest =
            run_changed(&(struct change){.row = 0, .column = bad_fields[i].column, .value = bad_fields[i].value});
        if (!strstr(backtest->rows[0].reason, bad_fields[i].reason))
            fail_msg("%s = '%s': '%s' does not say '%s'", bad_fields[i].column, bad_fields[i].value,
                     backtest->rows[0].reason, bad_fields[i].reason);
        assert_int_equal(backtest->scored, 3);
        assert_int_equal(backtest->refused, 2);
        assert_true(isnan(backtest->rows[0].error_pct));
        dtp_backtest_destroy(backtest);
    }
}

static const char *measure_nothing_of_first(const char *column, size_t row, const char *value)
{
    bool measured = strcmp(column, "tokens_per_s_per_gpu") == 0 || strcmp(column, "peak_mem_gib") == 0;
    return row == 0 && measured ? "" : value;
}

static void test_a_row_without_measurement_is_predicted_but_not_scored(void **state)
{
    (void)state;
    struct dtp_backtest *plain = run_file(FIXTURE);
    struct dtp_backtest *other = run_changed(&(struct change){.replace = measure_nothing_of_first});
    assert_same_forecasts(plain, other);
    assert_true(other->rows[0].predicted);
    assert_int_equal(other->rows[0].verdict, DTP_BACKTEST_REFUSED);
    assert_non_null(strstr(other->rows[0].reason, "nothing measured"));
    dtp_backtest_destroy(plain);
    dtp_backtest_destroy(other);
}

static const char *state_no_length(const char *column, size_t row, const char *value)
{
    return row != 3 && strcmp(column, "seq_len") == 0 ? "" : value;
}

/* Of five rows four state no sequence length, the fourth is of a program that is not modelled: that one is complete.
 * Rows that are refused alike are named, neighbours by the first and the last. */
static void test_rows_that_do_not_state_all(void **state)
{
    (void)state;
    char ids[100];
    struct dtp_backtest *backtest = run_changed(&(struct change){.replace = state_no_length});
    const struct dtp_backtest_row *rows = backtest->rows;
    assert_int_equal(backtest->refused, 5);
    assert_int_equal(backtest->unstated, 4);
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(rows[i].unstated, i != 3);
    assert_string_equal(backtest->refusals[0].reason, "seq_len is empty");
    snprintf(ids, sizeof ids, "%s to %s, %s", rows[0].run.id, rows[2].run.id, rows[4].run.id);
    assert_string_equal(backtest->refusals[0].ids, ids);
    assert_string_equal(backtest->refusals[1].ids, rows[3].run.id);
    dtp_backtest_destroy(backtest);
}

static void test_an_id_used_twice(void **state)
{
    (void)state;
    struct dtp_backtest *backtest = run_changed(&(struct change){.last_row_twice = true});
    assert_int_equal(backtest->row_count, 6);
    assert_int_equal(backtest->scored, 4);
    assert_string_equal(backtest->rows[5].reason, "id is that of an earlier row (line 6)");
    dtp_backtest_destroy(backtest);
}

static void test_only(void **state)
{
    (void)state;
    struct dtp_faults faults = {0};
    struct dtp_backtest *backtest = NULL;
    struct dtp_predictor formulas = dtp_predictor_closed();
    assert_int_equal(dtp_backtest_run_only(FIXTURE, "a-", &formulas, &catalog, &backtest, &faults), DTP_OK);
    assert_int_equal(backtest->row_count, 3);
    dtp_backtest_destroy(backtest);
    assert_int_equal(dtp_backtest_run_only(FIXTURE, "arXiv:", &formulas, &catalog, &backtest, &faults), DTP_OK);
    assert_int_equal(backtest->row_count, 1);
    dtp_backtest_destroy(backtest);
    assert_int_equal(dtp_backtest_run_only(FIXTURE, "zebra", &formulas, &catalog, &backtest, &faults), DTP_BAD_INPUT);
    assert_null(backtest);
}

/* One tokens/s for every job but those of a strategy that it refuses. */
static enum dtp_status predict_a_thousand(const void *context, const struct dtp_job *job, struct dtp_prediction *out,
                                          struct dtp_faults *faults)
{
    *out = (struct dtp_prediction){.throughput.tokens_per_s_per_gpu = 1000};
    if (job->plan.strategy == *(const enum dtp_strategy *)context)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "no idea of it");
    return DTP_OK;
}

static void test_any_predictor_is_scored(void **state)
{
    (void)state;
    struct dtp_faults faults = {0};
    struct dtp_backtest *backtest = NULL;
    static const enum dtp_strategy refused = DTP_DDP;
    struct dtp_predictor constant = {.name = "constant", .context = &refused, .predict = predict_a_thousand};
    assert_int_equal(dtp_backtest_run_only(FIXTURE, NULL, &constant, &catalog, &backtest, &faults), DTP_OK);
    assert_string_equal(backtest->fidelity, "constant");
    assert_int_equal(backtest->scored, 3);
    assert_true(fabs(backtest->rows[0].error_pct - 100 * (1000.0 / 9000 - 1)) < 1e-9);
    assert_string_equal(backtest->rows[2].reason, "no idea of it"); /* b-1: ddp */
    assert_true(isnan(backtest->rows[2].error_pct));
    dtp_backtest_destroy(backtest);
}

static void test_simulation_is_scored(void **state)
{
    (void)state;
    struct dtp_faults faults = {0};
    struct dtp_backtest *simulated = NULL, *closed = run_file(FIXTURE);
    struct dtp_predictor predictor = dtp_predictor_simulated();
    assert_int_equal(dtp_backtest_run_only(FIXTURE, "a-1", &predictor, &catalog, &simulated, &faults), DTP_OK);
    const struct dtp_backtest_row *one = &simulated->rows[0], *other = &closed->rows[0];
    assert_string_equal(simulated->fidelity, "simulated");
    assert_string_equal(closed->fidelity, "closed");
    assert_true(one->error_pct != other->error_pct && fabs(one->error_pct - other->error_pct) < 10);
    dtp_backtest_destroy(simulated);
    dtp_backtest_destroy(closed);
}

/* ---- blindness -------------------------------------------------------------------------------------------------- */

static const char *const measured_columns[] = {
    "tokens_per_s_per_gpu", "tflops_per_gpu",    "mfu_pct",
    "step_time_s",          "peak_mem_gib",      "peak_allocated_bytes",
    "peak_reserved_bytes",  "device_used_bytes", "after_init_allocated_bytes",
    "step_time_min_s",      "step_time_max_s"};

static const char *scramble(const char *column, size_t row, const char *value)
{
    static char text[32];
    (void)row;
    if (strcmp(column, "mem_kind") == 0)
        return rand() % 2 ? "allocated" : "nvidia-smi";
    for (size_t i = 0; i < sizeof measured_columns / sizeof *measured_columns; i++)
        if (strcmp(column, measured_columns[i]) == 0) {
            snprintf(text, sizeof text, "%.6g", exp(30.0 * rand() / RAND_MAX));
            return text;
        }
    return value;
}

static const char *erase(const char *column, size_t row, const char *value)
{
    (void)row;
    for (size_t i = 0; i < sizeof measured_columns / sizeof *measured_columns; i++)
        if (strcmp(column, measured_columns[i]) == 0)
            return "";
    return strcmp(column, "mem_kind") ? value : "";
}

static void test_no_measured_column_is_read_by_the_predictor(void **state)
{
    (void)state;
    static const char *const tables[] = {FIXTURE, TEST_SOURCE_DIR "/scenarios/published_runs.csv",
                                         TEST_SOURCE_DIR "/scenarios/published_runs_3d_moe.csv",
                                         TEST_SOURCE_DIR "/scenarios/holdout_published_runs.csv",
                                         TEST_SOURCE_DIR "/scenarios/h200_torch_runs.csv"};
    srand(20240601);
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        struct dtp_backtest *true_values = run_file(tables[i]);
        struct dtp_backtest *scrambled = run_file(write_changed(tables[i], &(struct change){.replace = scramble}));
        assert_same_forecasts(true_values, scrambled);
        assert_true(true_values->throughput.median_abs_pct != scrambled->throughput.median_abs_pct);
        struct dtp_backtest *erased = run_file(write_changed(tables[i], &(struct change){.replace = erase}));
        assert_same_forecasts(true_values, erased);
        for (size_t row = 0; row < erased->row_count; row++) /* what died is scored by its verdict alone */
            assert_true(erased->rows[row].verdict == DTP_BACKTEST_REFUSED ||
                        erased->rows[row].measured.end == DTP_RUN_OOM);
        dtp_backtest_destroy(true_values);
        dtp_backtest_destroy(scrambled);
        dtp_backtest_destroy(erased);
    }
}

/* ---- statistics by hand ------------------------------------------------------------------------------------------ */

static void test_error_statistics(void **state)
{
    (void)state;
    double errors[] = {-10, NAN, 20, 5, -1};
    struct dtp_error_statistics out = dtp_error_statistics(errors, 5);
    assert_int_equal(out.count, 4);
    assert_close(out.median_abs_pct, 7.5, 1e-12); /* 1 5 10 20 */
    assert_close(out.mean_abs_pct, 9, 1e-12);
    assert_close(out.max_abs_pct, 20, 1e-12);
    assert_close(out.median_pct, 2, 1e-12); /* -10 -1 5 20 */
    out = dtp_error_statistics(errors, 0);
    assert_int_equal(out.count, 0);
    assert_true(isnan(out.median_abs_pct));
}

/* Measurements that make the errors of a-1, a-2, b-1, c-1 +10, -20, +40 and 0 %. */
static double predicted_rates[5];
static const char *measure_known_errors(const char *column, size_t row, const char *value)
{
    static const double errors_pct[] = {10, -20, 40, 0, 0};
    static char text[32];
    if (strcmp(column, "tokens_per_s_per_gpu"))
        return value;
    snprintf(text, sizeof text, "%.17g", predicted_rates[row] / (1 + errors_pct[row] / 100));
    return row == 3 ? value : text;
}

static void test_statistics_by_hand(void **state)
{
    (void)state;
    struct dtp_backtest *backtest = run_file(FIXTURE);
    for (size_t i = 0; i < 5; i++)
        predicted_rates[i] = backtest->rows[i].forecast.prediction.throughput.tokens_per_s_per_gpu;
    dtp_backtest_destroy(backtest);
    backtest = run_changed(&(struct change){.replace = measure_known_errors});
    assert_close(backtest->throughput.median_abs_pct, 15, 1e-6); /* 0 10 20 40 */
    assert_close(backtest->throughput.mean_abs_pct, 17.5, 1e-6);
    assert_close(backtest->throughput.max_abs_pct, 40, 1e-6);
    assert_close(backtest->throughput.median_pct, 5, 1e-6); /* -20 0 10 40 */
    assert_close(backtest->sources[0].throughput.median_abs_pct, 15, 1e-6);
    assert_close(backtest->macro_median_abs_pct, (15.0 + 40 + 0) / 3, 1e-6);
    dtp_backtest_destroy(backtest);
}

/* Llama-2-7B at 2048: 6 x 6607077376 matmul weights + 12 x 32 x 4096 x 2048 a token. Of two rows of one GPU type the
 * median MFU is the mean, and the errors follow. */
static void test_baseline_by_hand(void **state)
{
    (void)state;
    struct dtp_backtest *backtest = run_file(FIXTURE);
    double mfu[2];
    for (size_t i = 0; i < 2; i++) {
        const struct dtp_backtest_row *row = &backtest->rows[i];
        mfu[i] = row->measured_tokens_per_s_per_gpu * row->forecast.full_attention_flops_per_token /
                 row->forecast.peak_flops_per_s;
        assert_true(mfu[i] > 0.2 && mfu[i] < 0.7);
        double attention = 12.0 * 32 * 4096 * (double)row->run.sequence;
        assert_close(row->forecast.full_attention_flops_per_token, 6 * 6607077376.0 + attention, 1);
    }
    for (size_t i = 0; i < 2; i++)
        assert_close(backtest->rows[i].baseline_error_pct, 100 * ((mfu[0] + mfu[1]) / 2 / mfu[i] - 1), 1e-9);
    dtp_backtest_destroy(backtest);
}

/* Nobody else measured on H100; on A100 b-1 and c-1 are of two sources, each the other's only witness. */
static void test_unseen_baseline_by_hand(void **state)
{
    (void)state;
    struct dtp_backtest *backtest = run_file(FIXTURE);
    const struct dtp_backtest_row *b = &backtest->rows[2], *c = &backtest->rows[4];
    double b_mfu = b->measured_tokens_per_s_per_gpu * b->forecast.full_attention_flops_per_token,
           c_mfu = c->measured_tokens_per_s_per_gpu * c->forecast.full_attention_flops_per_token;
    assert_true(isnan(backtest->rows[0].unseen_baseline_error_pct));
    assert_close(b->unseen_baseline_error_pct, 100 * (c_mfu / b_mfu - 1), 1e-9);
    assert_close(c->unseen_baseline_error_pct, 100 * (b_mfu / c_mfu - 1), 1e-9);
    assert_int_equal(backtest->sources[0].unseen_baseline.count, 0);
    assert_int_equal(backtest->sources[0].beside_unseen.count, 0);
    assert_int_equal(backtest->unseen_baseline.count, 2);
    assert_int_equal(backtest->sources[1].beside_unseen.count, 1);
    assert_close(backtest->sources[1].beside_unseen.median_abs_pct, fabs(b->error_pct), 1e-9);
    assert_close(backtest->sources[1].unseen_baseline.median_abs_pct, fabs(b->unseen_baseline_error_pct), 1e-9);
    dtp_backtest_destroy(backtest);
}

/* ---- reports ----------------------------------------------------------------------------------------------------- */

static void test_json(void **state)
{
    (void)state;
    struct dtp_backtest *backtest = run_file(FIXTURE);
    FILE *file = tmpfile();
    assert_int_equal(dtp_backtest_write_json(file, backtest, NULL), DTP_OK);
    rewind(file);
    json_t *root = json_loadf(file, 0, NULL);
    assert_non_null(root);
    assert_string_equal(json_string_value(json_object_get(root, "schema")), "dtplan.backtest/1");
    assert_int_equal(json_integer_value(json_object_get(root, "rows")), 5);
    assert_int_equal(json_integer_value(json_object_get(root, "scored")), 4);
    assert_int_equal(json_integer_value(json_object_get(root, "refused")), 1);
    json_t *throughput = json_object_get(root, "throughput");
    static const char *const keys[] = {"median_abs_error_pct", "mean_abs_error_pct", "macro_median_abs_error_pct",
                                       "baseline_median_abs_error_pct"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        assert_true(json_is_real(json_object_get(throughput, keys[i])));
    json_t *source = json_object_get(json_object_get(throughput, "by_source"), "github:alice/bench");
    assert_true(json_is_real(json_object_get(source, "median_abs_error_pct")));
    json_t *memory = json_object_get(root, "memory");
    assert_int_equal(json_integer_value(json_object_get(json_object_get(memory, "nvidia-smi"), "n")), 1);
    assert_true(json_is_null(json_object_get(json_object_get(memory, "device"), "median_abs_error_pct")));
    assert_true(json_is_real(json_object_get(json_object_get(memory, "allocated"), "max_abs_error_pct")));
    json_decref(root);
    fclose(file);
    dtp_backtest_destroy(backtest);
}

static void test_rows_file(void **state)
{
    (void)state;
    const char *path = TEST_BINARY_DIR "/test_backtest_rows.csv";
    struct dtp_faults faults = {0};
    struct dtp_backtest *backtest = run_file(FIXTURE);
    assert_int_equal(dtp_backtest_write_rows(path, backtest, &faults), DTP_OK);
    struct dtp_table *table = NULL;
    assert_int_equal(dtp_table_read(path, &table, &faults), DTP_OK);
    assert_int_equal(dtp_table_row_count(table), 5);
    assert_string_equal(dtp_table_text(table, 0, dtp_table_column(table, "id")), "a-1");
    assert_string_equal(dtp_table_text(table, 0, dtp_table_column(table, "verdict")), "ok");
    assert_string_equal(dtp_table_text(table, 3, dtp_table_column(table, "verdict")), "refused");
    assert_string_equal(dtp_table_text(table, 3, dtp_table_column(table, "predicted_tokens_per_s_per_gpu")), "");
    double error = strtod(dtp_table_text(table, 0, dtp_table_column(table, "error_pct")), NULL);
    assert_close(error, backtest->rows[0].error_pct, 1e-6);
    dtp_table_destroy(table);
    /* A folder that is not there: nothing is written, the reason is named. */
    assert_int_equal(dtp_backtest_write_rows(TEST_BINARY_DIR "/nowhere/rows.csv", backtest, &faults), DTP_ENVIRONMENT);
    assert_non_null(strstr(faults.text[0], "nowhere/rows.csv"));
    dtp_backtest_destroy(backtest);
    unlink(path);
}

static void test_text(void **state)
{
    (void)state;
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    struct dtp_backtest *backtest = run_file(FIXTURE);
    dtp_backtest_write_text(backtest, 3, &(struct dtp_page){.file = file});
    fclose(file);
    assert_non_null(strstr(text, "github:alice/bench"));
    assert_non_null(strstr(text, "framework 'JAX/MaxText' is not modelled"));
    assert_non_null(strstr(text, "all rows"));
    assert_null(strstr(text, "nan"));
    free(text);
    dtp_backtest_destroy(backtest);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fixture_is_scored),
        cmocka_unit_test(test_column_order_and_extra_columns_change_nothing),
        cmocka_unit_test(test_tables_that_are_none),
        cmocka_unit_test(test_a_table_without_rows),
        cmocka_unit_test(test_a_bad_field_refuses_its_row),
        cmocka_unit_test(test_a_row_without_measurement_is_predicted_but_not_scored),
        cmocka_unit_test(test_rows_that_do_not_state_all),
        cmocka_unit_test(test_an_id_used_twice),
        cmocka_unit_test(test_only),
        cmocka_unit_test(test_any_predictor_is_scored),
        cmocka_unit_test(test_simulation_is_scored),
        cmocka_unit_test(test_no_measured_column_is_read_by_the_predictor),
        cmocka_unit_test(test_error_statistics),
        cmocka_unit_test(test_statistics_by_hand),
        cmocka_unit_test(test_baseline_by_hand),
        cmocka_unit_test(test_unseen_baseline_by_hand),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_rows_file),
        cmocka_unit_test(test_text),
    };
    return cmocka_run_group_tests(tests, load_catalog, drop_catalog);
}
