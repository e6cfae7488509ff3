/* Rows of a measured machine file: which are whole, which are the same, and which one an operation's time stands in. */
#include "base/table.h"
#include "cost/cluster_cost.h"
#include "lower/lower.h"
#include "machine/measured.h"
#include "machine/measured_least.h"
#include "machine/measured_row.h"
#include "program/measured_op.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "job/scenario.h"
#include "plan/rules.h"
#include "lib/shipped_catalog.h"

static struct dtp_measured_row matmul(void)
{
    struct dtp_measured_row row = dtp_measured_row_of(DTP_MEASUREMENT_MATMUL, "forward");
    row.dtype = DTP_BF16;
    row.number[DTP_MEASURED_m] = 4096;
    row.number[DTP_MEASURED_n] = 1024;
    row.number[DTP_MEASURED_k] = 512;
    row.number[DTP_MEASURED_seconds] = 1e-4;
    return row;
}

static void refused(const struct dtp_measured_row *row, const char *words)
{
    struct dtp_faults faults = {0};
    assert_int_equal(dtp_measured_row_check(row, "m.csv", 7, &faults), DTP_BAD_INPUT);
    for (size_t i = 0; i < faults.count; i++)
        if (strncmp(faults.text[i], "m.csv:7: ", strlen("m.csv:7: ")) == 0 && strstr(faults.text[i], words))
            return;
    fail_msg("no fault says '%s': %s", words, faults.text[0]);
}

static void what_is_missing_or_odd_is_refused(void **state)
{
    (void)state;
    struct dtp_faults faults = {0};
    struct dtp_measured_row row = matmul();
    assert_int_equal(dtp_measured_row_check(&row, "m.csv", 7, &faults), DTP_OK);
    row.number[DTP_MEASURED_k] = (double)NAN, refused(&row, "k: is missing"), row = matmul();
    row.number[DTP_MEASURED_seconds] = 0, refused(&row, "seconds: 0 is no amount"), row = matmul();
    row.number[DTP_MEASURED_seconds] = INFINITY, refused(&row, "seconds: inf is no amount"), row = matmul();
    row.number[DTP_MEASURED_stride] = 2, refused(&row, "stride: a row of matmul has none"), row = matmul();
    row.number[DTP_MEASURED_ranks] = 2; /* who share the cores of a host */
    assert_int_equal(dtp_measured_row_check(&row, "m.csv", 7, &faults), DTP_OK);
    row = dtp_measured_row_of(DTP_MEASUREMENT_COPY, "upload"), row.dtype = DTP_BF16;
    refused(&row, "dtype: a row of copy has none"), row = matmul();
    row.dtype = DTP_DTYPE_COUNT, refused(&row, "dtype: a row of matmul has one"), row = matmul();
    strcpy(row.what, "sideways"), refused(&row, "what: 'sideways'"), row = matmul();
    row = dtp_measured_row_of(DTP_MEASUREMENT_ABOUT, "gpu_key"), refused(&row, "value: is missing");
    row = dtp_measured_row_of(DTP_MEASUREMENT_KERNEL, "matmul"), refused(&row, "what: 'matmul'");
    row = dtp_measured_row_of(DTP_MEASUREMENT_COLLECTIVE, "all_gather_slowdown"), refused(&row, "what: ");
}

static void contention_may_be_none(void **state)
{
    (void)state;
    struct dtp_faults faults = {0};
    struct dtp_measured_row row = dtp_measured_row_of(DTP_MEASUREMENT_CONTENTION, "reduce_scatter_slowdown");
    row.number[DTP_MEASURED_ranks] = 4;
    row.number[DTP_MEASURED_stride] = row.number[DTP_MEASURED_nodes] = 1;
    row.number[DTP_MEASURED_value] = 0;
    assert_int_equal(dtp_measured_row_check(&row, "m.csv", 7, &faults), DTP_OK);
    row.number[DTP_MEASURED_value] = -0.1, refused(&row, "value: -0.1 is no amount");
}

static void results_are_no_part_of_the_key(void **state)
{
    (void)state;
    struct dtp_measured_row a = matmul(), b = matmul();
    b.number[DTP_MEASURED_seconds] = 2;
    assert_true(dtp_measured_row_same(&a, &b));
    b.number[DTP_MEASURED_m] = 1, assert_false(dtp_measured_row_same(&a, &b)), b = a;
    b.dtype = DTP_FP32, assert_false(dtp_measured_row_same(&a, &b)), b = a;
    strcpy(b.what, "weight_gradient"), assert_false(dtp_measured_row_same(&a, &b));
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

static void make_job(const char *const keys[][2], size_t count, struct dtp_job *out)
{
    static struct dtp_faults faults;
    struct dtp_scenario *scenario;
    assert_int_equal(dtp_scenario_create(&scenario, &faults), DTP_OK);
    for (size_t i = 0; i < count; i++)
        dtp_scenario_set(scenario, keys[i][0], keys[i][1], "test", 0, &faults);
    if (dtp_scenario_resolve(scenario, &catalog, out, &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
    dtp_scenario_destroy(scenario);
}

static size_t count_rows(const struct dtp_job *job, const char *what, enum dtp_measurement measurement, double m,
                         double n, double k)
{
    struct dtp_faults faults = {0};
    struct dtp_program *program;
    struct dtp_measured_row row;
    size_t found = 0;
    assert_int_equal(dtp_lower(&job->transformer, &job->cluster, &job->plan, 0, &program, &faults), DTP_OK);
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        if (!dtp_measured_row_of_op(program, op, &job->cluster, &row))
            continue;
        row.number[DTP_MEASURED_seconds] = 1;
        assert_int_equal(dtp_measured_row_check(&row, "op", i, &faults), DTP_OK);
        bool shaped = m == 0 || (row.number[DTP_MEASURED_m] == m && row.number[DTP_MEASURED_n] == n &&
                                 row.number[DTP_MEASURED_k] == k);
        found += row.measurement == measurement && strcmp(row.what, what) == 0 && shaped;
    }
    dtp_program_destroy(program);
    return found;
}

/* Two layers of width 256, 2 x 64 tokens: down is [128, 256] of 512; its weight gradient [256, 512] of 128 tokens is
 * written in the first micro-step and added to in the second. */
static void operations_find_their_rows(void **state)
{
    (void)state;
    static const char *const keys[][2] = {{"layers", "2"},      {"hidden", "256"},     {"heads", "4"},
                                          {"ffn", "512"},       {"vocab", "1000"},     {"seq", "128"},
                                          {"micro_batch", "1"}, {"accumulate", "2"},   {"strategy", "full_shard"},
                                          {"gpus", "8"},        {"runtime", "dtplan"}, {"gpu", "h200-sxm"}};
    static struct dtp_job job;
    make_job(keys, sizeof keys / sizeof *keys, &job);
    assert_int_equal(count_rows(&job, "forward", DTP_MEASUREMENT_MATMUL, 128, 256, 512), 4);
    assert_int_equal(count_rows(&job, "input_gradient", DTP_MEASUREMENT_MATMUL, 128, 512, 256), 4);
    size_t written = count_rows(&job, "weight_gradient", DTP_MEASUREMENT_MATMUL, 256, 512, 128);
    size_t added = count_rows(&job, "weight_gradient_sum", DTP_MEASUREMENT_MATMUL, 256, 512, 128);
    assert_int_equal(written, 2);
    assert_int_equal(added, 2);
    assert_int_equal(count_rows(&job, "backward", DTP_MEASUREMENT_ATTENTION, 0, 0, 0), 4);
    assert_true(count_rows(&job, "all_gather", DTP_MEASUREMENT_COLLECTIVE, 0, 0, 0) > 0);
    assert_true(count_rows(&job, "norm", DTP_MEASUREMENT_KERNEL, 0, 0, 0) > 0);
}

/* Attention with a window or a cap is another kernel's or does less: of layers 0 and 1 the second sees all. */
static void attention_of_other_kernels_has_no_row(void **state)
{
    (void)state;
    static const char *const keys[][2] = {{"layers", "2"},
                                          {"hidden", "256"},
                                          {"heads", "4"},
                                          {"ffn", "512"},
                                          {"vocab", "1000"},
                                          {"seq", "128"},
                                          {"gpus", "8"},
                                          {"runtime", "dtplan"},
                                          {"gpu", "h200-sxm"},
                                          {"sliding_window_pattern", "2"},
                                          {"sliding_window", "32"},
                                          {"attention_softcap", "50"}};
    static struct dtp_job job;
    const size_t count = sizeof keys / sizeof *keys;
    make_job(keys, count - 3, &job);
    assert_int_equal(count_rows(&job, "backward", DTP_MEASUREMENT_ATTENTION, 0, 0, 0), 2);
    make_job(keys, count - 1, &job);
    assert_int_equal(count_rows(&job, "backward", DTP_MEASUREMENT_ATTENTION, 0, 0, 0), 1);
    make_job(keys, count, &job);
    assert_int_equal(count_rows(&job, "backward", DTP_MEASUREMENT_ATTENTION, 0, 0, 0), 0);
    const struct dtp_attention_shape odd = {
        .heads = 4, .kv_heads = 4, .head_dim = 64, .queries = 96, .keys = 96, .causal = true};
    const struct dtp_execution own = dtp_plan_execution(&job.plan);
    struct dtp_execution theirs = own;
    theirs.own_kernels = false;
    struct dtp_measured_row row; /* a length that cuDNN does not take runs on our plain kernel, but for PyTorch */
    assert_false(dtp_attention_measured_row(&job.cluster, &odd, &own, 96, true, &row));
    assert_true(dtp_attention_measured_row(&job.cluster, &odd, &theirs, 96, true, &row));
}

/* 2 x 4096 x 1024 x 512 FLOPs at twice 989.4 TFLOP/s take 2.17 us; a kernel of 4 KiB no less than a launch, one of
 * 1 GiB at eight times 4.8 TB/s 28.0 us; a core is never through in 0.5 ns. */
static void least_is_by_the_peaks(void **state)
{
    (void)state;
    const struct dtp_gpu *gpu = dtp_catalog_gpu(&catalog, "h200-sxm", NULL, 0, NULL);
    struct dtp_gpu cores = *gpu;
    struct dtp_measured_row row = matmul(), kernel = dtp_measured_row_of(DTP_MEASUREMENT_KERNEL, "zero"),
                            value = dtp_measured_row_of(DTP_MEASUREMENT_CONTENTION, "all_gather");
    assert_true(fabs(dtp_measured_least_s(&row, gpu) - 2.1704e-6) < 1e-9);
    kernel.number[DTP_MEASURED_bytes] = 4096;
    assert_true(dtp_measured_least_s(&kernel, gpu) > 1e-7 && dtp_measured_least_s(&kernel, gpu) < 1e-6);
    kernel.number[DTP_MEASURED_bytes] = 0x1p30;
    assert_true(fabs(dtp_measured_least_s(&kernel, gpu) - 27.96e-6) < 1e-8);
    assert_true(dtp_measured_least_s(&value, gpu) == 0);
    cores.architecture = DTP_GPU_HOST;
    kernel.number[DTP_MEASURED_bytes] = 512;
    assert_true(dtp_measured_least_s(&kernel, &cores) > 0.5e-9);
    assert_true(dtp_measured_least_s(&row, &cores) > 0);
}

/* What GPUs did, none of it is refused. */
static void measured_machines_are_above_the_least(void **state)
{
    (void)state;
    static const char *const files[] = {"machine.csv", "machine_unseen.csv", "machine_layouts.csv", "machine_torch.csv",
                                        "machine_two_nodes.csv"};
    const struct dtp_gpu *gpu = dtp_catalog_gpu(&catalog, "h200-sxm", NULL, 0, NULL);
    size_t timed = 0;
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        struct dtp_table *table;
        struct dtp_measured_rows rows = {0};
        struct dtp_faults faults = {0};
        char path[512];
        snprintf(path, sizeof path, TEST_SOURCE_DIR "/reports/h200/%s", files[f]);
        assert_int_equal(dtp_table_read(path, &table, &faults), DTP_OK);
        assert_int_equal(dtp_measured_rows_of(table, &rows, &faults), DTP_OK);
        for (size_t i = 0; i < rows.count; i++) {
            double seconds = rows.row[i].number[DTP_MEASURED_seconds],
                   least_s = dtp_measured_least_s(&rows.row[i], gpu);
            timed += isfinite(seconds);
            if (seconds < least_s)
                fail_msg("%s:%zu: %g s, the least is %g", files[f], rows.line[i], seconds, least_s);
        }
        dtp_measured_rows_release(&rows);
        dtp_table_destroy(table);
    }
    assert_true(timed > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_missing_or_odd_is_refused),     cmocka_unit_test(contention_may_be_none),
        cmocka_unit_test(results_are_no_part_of_the_key),        cmocka_unit_test(operations_find_their_rows),
        cmocka_unit_test(attention_of_other_kernels_has_no_row), cmocka_unit_test(least_is_by_the_peaks),
        cmocka_unit_test(measured_machines_are_above_the_least)};
    return cmocka_run_group_tests(tests, load_catalog, drop_catalog);
}
