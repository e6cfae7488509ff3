/* A measured machine in both models: what its rows say is what operations take. */
#include "closed/closed_form.h"
#include "cost/cluster_cost.h"
#include "machine/measured.h"
#include "program/measured_op.h"
#include "sim/op_time.h"
#include "sim/simulated.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>

#include "lib/hardware.h"

#define assert_in_ratio(value, of, low, high) assert_true((value) / (of) >= (low) && (value) / (of) <= (high))

static struct dtp_catalog catalog;
static const char *const machine = TEST_SOURCE_DIR "/tests/data/synthetic_machine.csv";

static int load(void **state)
{
    (void)state;
    struct dtp_faults faults = {.count = 0};
    enum dtp_status status = dtp_catalog_load(TEST_SOURCE_DIR "/scenarios", &catalog, &faults);
    if (status == DTP_OK)
        status = dtp_catalog_measure(&catalog, machine, &faults);
    if (status != DTP_OK)
        print_error("%s\n", faults.text[0]);
    return status == DTP_OK ? 0 : -1;
}

static int unload(void **state)
{
    (void)state;
    dtp_catalog_destroy(&catalog);
    return 0;
}

static enum dtp_status resolve(const char *const (*settings)[2], size_t count, struct dtp_job *job,
                               struct dtp_faults *faults)
{
    struct dtp_scenario *scenario = NULL;
    enum dtp_status status = dtp_scenario_create(&scenario, faults);
    for (size_t i = 0; i < count && status == DTP_OK; i++)
        status = dtp_scenario_set(scenario, settings[i][0], settings[i][1], "test", 0, faults);
    if (status == DTP_OK)
        status = dtp_scenario_resolve(scenario, &catalog, job, faults);
    dtp_scenario_destroy(scenario);
    return status;
}

static struct dtp_job job_of(const char *machine_name, const char *runtime, const char *gpus)
{
    const char *const settings[][2] = {{"model", "llama-7b"}, {"machine", machine_name},  {"runtime", runtime},
                                       {"gpus", gpus},        {"strategy", "full_shard"}, {"micro_batch", "4"}};
    struct dtp_job job;
    struct dtp_faults faults = {.count = 0};
    if (resolve(settings, sizeof settings / sizeof settings[0], &job, &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
    return job;
}

static void simulate(const struct dtp_job *job, struct dtp_simulated *out)
{
    struct dtp_simulation_options options = dtp_simulation_options_default();
    struct dtp_faults faults = {.count = 0};
    if (dtp_simulated_create(job, &options, out, &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
}

static void test_the_file_names_gpu_and_gpus(void **state)
{
    (void)state;
    static const char *const alone[][2] = {{"model", "llama-7b"},
                                           {"machine", TEST_SOURCE_DIR "/tests/data/synthetic_machine.csv"}};
    static const char *const other[][2] = {{"model", "llama-7b"},
                                           {"machine", TEST_SOURCE_DIR "/tests/data/synthetic_machine.csv"},
                                           {"gpu", "a100-80-sxm"}};
    static const char *const unread[][2] = {{"model", "llama-7b"}, {"machine", "another.csv"}};
    struct dtp_job job;
    struct dtp_faults faults = {.count = 0};
    assert_int_equal(resolve(alone, 2, &job, &faults), DTP_OK);
    assert_string_equal(job.cluster.gpu.key, "h200-sxm");
    assert_int_equal(job.cluster.gpus, 4);
    assert_int_equal(job.cluster.nodes, 1);
    assert_non_null(job.cluster.measured);
    assert_int_equal(resolve(other, 3, &job, &faults), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "was measured on h200-sxm"));
    faults = (struct dtp_faults){.count = 0};
    assert_int_equal(resolve(unread, 2, &job, &faults), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "another.csv' was not read"));
}

/* Every operation that a row times takes that row's time, and its gaps. */
static void test_operations_take_what_was_measured(void **state)
{
    (void)state;
    struct dtp_job job = job_of(machine, "dtplan", "4");
    struct dtp_simulated simulated;
    simulate(&job, &simulated);
    const struct dtp_op *ops = dtp_program_ops(simulated.program);
    size_t matmuls = 0, attention = 0, kernels = 0, collectives = 0;
    for (size_t i = 0; i < simulated.timeline.op_count; i++) {
        struct dtp_measured_row row;
        if (!dtp_measured_row_of_op(simulated.program, &ops[i], &job.cluster, &row))
            continue;
        double seconds = dtp_measured_s(job.cluster.measured, &row);
        double gaps_s = row.measurement <= DTP_MEASUREMENT_KERNEL ? ops[i].demand->kernels * 1.1e-6 : 0;
        if (!isfinite(seconds)) /* kinds that the file has no rows of */
            continue;
        assert_near(simulated.alone_s[i], seconds + gaps_s, 1e-9);
        matmuls += row.measurement == DTP_MEASUREMENT_MATMUL;
        attention += row.measurement == DTP_MEASUREMENT_ATTENTION;
        kernels += row.measurement == DTP_MEASUREMENT_KERNEL;
        collectives += row.measurement == DTP_MEASUREMENT_COLLECTIVE;
    }
    assert_true(matmuls > 300 && attention == 64 && kernels > 100 && collectives > 60);
    assert_near(simulated.timeline.matmul_speedup, 1, 1e-12); /* the rows hold it */
    assert_near(simulated.timeline.compute_factor, 1, 1e-12); /* no GPU that was not measured */
    dtp_simulated_release(&simulated);
}

/* Another runtime has other memory-bound kernels, launches and gaps, but the same matmuls. */
static void test_other_runtimes_share_libraries_only(void **state)
{
    (void)state;
    struct dtp_job job = job_of(machine, "torch", "4"), plain = job_of("dgx-h200", "torch", "4");
    struct dtp_simulated with, without;
    simulate(&job, &with);
    simulate(&plain, &without);
    const struct dtp_op *ops = dtp_program_ops(with.program);
    size_t changed = 0;
    for (size_t i = 0; i < with.timeline.op_count; i++) {
        enum dtp_op_class class = dtp_op_kind_class(ops[i].kind);
        if (class == DTP_CLASS_MEMORY)
            assert_near(with.alone_s[i] / with.timeline.compute_factor,
                        without.alone_s[i] / without.timeline.compute_factor, 1e-12);
        else if (class == DTP_CLASS_MATMUL)
            changed += with.alone_s[i] != without.alone_s[i];
    }
    assert_true(changed > 200);
    dtp_simulated_release(&with);
    dtp_simulated_release(&without);
}

/* Attention of a layer takes the row of its own shape in both models: where windows alternate, whole layers are
 * measured and those with a window are not; under fp8 attention computes in bf16. Sums over the layers, without gaps.
 */
static void test_attention_is_measured_layer_by_layer(void **state)
{
    (void)state;
    static const char *const more[][2][2] = {{{"sliding_window", "256"}, {"sliding_window_pattern", "2"}},
                                             {{"precision", "fp8-tensorwise"}, {"compile", "true"}}};
    for (size_t i = 0; i < sizeof more / sizeof more[0]; i++) {
        const char *const settings[][2] = {
            {"model", "llama-7b"},         {"machine", machine}, {"runtime", "torch"},
            {"strategy", "full_shard"},    {"seq", "1024"},      {more[i][0][0], more[i][0][1]},
            {more[i][1][0], more[i][1][1]}};
        struct dtp_job job;
        struct dtp_faults faults = {.count = 0};
        struct dtp_simulated simulated;
        if (resolve(settings, sizeof settings / sizeof settings[0], &job, &faults) != DTP_OK)
            fail_msg("%s", faults.text[0]);
        simulate(&job, &simulated);
        const struct dtp_op *ops = dtp_program_ops(simulated.program);
        double seconds = 0, gaps_s = 0;
        size_t measured = 0, kernels = 0;
        for (size_t k = 0; k < simulated.timeline.op_count; k++) {
            struct dtp_measured_row row;
            if (dtp_op_kind_class(ops[k].kind) != DTP_CLASS_ATTENTION)
                continue;
            measured += dtp_measured_row_of_op(simulated.program, &ops[k], &job.cluster, &row);
            kernels++;
            gaps_s += ops[k].demand->kernels *
                      dtp_cluster_kernel_gap_s(&job.cluster, dtp_program_execution(simulated.program));
            seconds += simulated.alone_s[k];
        }
        struct dtp_attention_time time =
            dtp_cluster_attention_time(&job.cluster, &job.transformer, &job.plan, (double)job.plan.sequence);
        assert_int_equal(kernels, 2 * job.transformer.layers);
        assert_int_equal(measured, i == 0 ? job.transformer.layers : 2 * job.transformer.layers);
        assert_near((seconds - gaps_s) / (32 * (time.forward_s + time.backward_s)), 1, 1e-3);
        dtp_simulated_release(&simulated);
    }
}

/* The closed form knows the same rows: both within 6 % of each other, as without a file. */
static void test_both_models_agree(void **state)
{
    (void)state;
    struct dtp_job job = job_of(machine, "dtplan", "4");
    struct dtp_simulated simulated;
    struct dtp_prediction closed;
    simulate(&job, &simulated);
    dtp_closed_form(&job.transformer, &job.cluster, &job.plan, &closed);
    assert_near(closed.time.step_s, simulated.timeline.step_s, 0.06);
    dtp_simulated_release(&simulated);
}

/* Collectives of a full_shard step hide behind kernels: they take 1.1 to 1.12 times as long, and kernels lose 0.14 to
 * 0.17 seconds for each second of theirs. Alone, on links that cost nothing, neither happens. */
static void test_contention_is_what_was_measured(void **state)
{
    (void)state;
    struct dtp_job job = job_of(machine, "dtplan", "4");
    struct dtp_simulated simulated;
    simulate(&job, &simulated);
    const struct dtp_timeline *t = &simulated.timeline;
    const struct dtp_op *ops = dtp_program_ops(simulated.program);
    double collectives_alone_s = 0, kernels_alone_s = 0, kernels_s = 0;
    for (size_t i = 0; i < t->op_count; i++) {
        if (dtp_op_kind_class(ops[i].kind) == DTP_CLASS_COLLECTIVE)
            collectives_alone_s += simulated.alone_s[i];
        else if (dtp_op_is_kernel(&ops[i]) && ops[i].stream == DTP_STREAM_COMPUTE) {
            kernels_alone_s += simulated.alone_s[i];
            kernels_s += t->span[i].end_s - t->span[i].start_s;
        }
    }
    assert_in_ratio(t->communication_s, collectives_alone_s, 1.08, 1.12);
    assert_in_ratio(kernels_s - kernels_alone_s, t->communication_s, 0.12, 0.17);
    dtp_simulated_release(&simulated);
}

/* More GPUs than were measured: one may be slower than those were, and collectives compare as the model says. */
static void test_more_gpus_than_were_measured(void **state)
{
    (void)state;
    struct dtp_job four = job_of(machine, "dtplan", "4"), eight = job_of(machine, "dtplan", "8");
    struct dtp_simulated a, b;
    simulate(&four, &a);
    simulate(&eight, &b);
    assert_true(b.timeline.compute_factor > 1 && b.timeline.compute_factor < 1.05);
    struct dtp_simulation_options options = dtp_simulation_options_default();
    options.seed = 1;
    assert_int_equal(dtp_simulated_scatter(&a, &options, 0, 500, NULL), DTP_OK);
    assert_int_equal(a.samples, 0); /* all GPUs are known */
    assert_int_equal(dtp_simulated_scatter(&b, &options, 0, 500, NULL), DTP_OK);
    assert_true(b.quantiles.p50_s > 0.97 * b.timeline.step_s && b.quantiles.p50_s < 1.02 * b.timeline.step_s);
    assert_true(b.timeline.step_s > 0.95 * a.timeline.step_s && b.timeline.step_s < 1.1 * a.timeline.step_s);
    dtp_simulated_release(&a);
    dtp_simulated_release(&b);
}

static struct dtp_measured *with_grouped_rows(const struct dtp_gpu *gpu, const char *about)
{
    char text[1024];
    snprintf(text, sizeof text, "%s%s%s",
             "measurement,what,dtype,m,n,k,groups,seconds,value\n"
             "about,gpu_key,,,,,,,h200-sxm\n",
             about,
             "matmul,forward,bf16,2048,2048,2048,,0.00004,\n"
             "grouped_matmul,forward,bf16,256,2048,2048,64,0.0005,\n"
             "grouped_matmul,forward,bf16,512,2048,2048,64,0.0009,\n"
             "grouped_matmul,weight_gradient,bf16,2048,2048,256,64,0.0006,\n");
    struct dtp_faults faults = {.count = 0};
    struct dtp_table *table = NULL;
    struct dtp_measured_rows rows;
    struct dtp_measured *measured = NULL;
    if (dtp_table_parse("m.csv", text, strlen(text), &table, &faults) != DTP_OK ||
        dtp_measured_rows_of(table, &rows, &faults) != DTP_OK ||
        dtp_measured_create("m.csv", &rows, gpu, &measured, &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
    dtp_table_destroy(table);
    return measured;
}

/* Rows of experts take what grouped matmuls of their shape took, forward, backward and by formulas, where the kernels
 * are those that were measured: 2 x 1024 tokens of 8 of 64 experts each are 256 rows an expert. */
static void test_grouped_matmuls(void **state)
{
    const char *const settings[][2] = {
        {"layers", "2"},   {"hidden", "2048"},         {"heads", "16"},        {"ffn", "1024"},    {"vocab", "32000"},
        {"experts", "64"}, {"experts_per_token", "8"}, {"expert_ffn", "1024"}, {"gpu", "h200"},    {"gpus", "1"},
        {"seq", "1024"},   {"micro_batch", "2"},       {"runtime", "dtplan"},  {"strategy", "ddp"}};
    struct dtp_faults faults = {.count = 0};
    struct dtp_simulated simulated;
    struct dtp_job job;
    size_t forward = 0, grouped = 0;
    (void)state;
    if (resolve(settings, sizeof settings / sizeof settings[0], &job, &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
    struct dtp_measured *measured =
        with_grouped_rows(&job.cluster.gpu, "about,kernels_of,,,,,,,m.csv\n"); /* another probe's */
    job.cluster.measured = measured;
    simulate(&job, &simulated);
    const struct dtp_op *ops = dtp_program_ops(simulated.program);
    const struct dtp_execution *execution = dtp_program_execution(simulated.program);
    for (size_t i = 0; i < simulated.timeline.op_count; i++) {
        struct dtp_measured_row row;
        if (ops[i].kind != DTP_OP_GROUPED_MATMUL)
            continue;
        assert_true(dtp_measured_row_of_op(simulated.program, &ops[i], &job.cluster, &row));
        assert_int_equal(row.measurement, DTP_MEASUREMENT_GROUPED_MATMUL);
        const double asked = dtp_measured_s(measured, &row), *x = row.number;
        assert_true(isfinite(asked));
        forward += asked == 0.0005;
        grouped++;
        assert_true(dtp_cluster_grouped_matmul_s(&job.cluster, execution, dtp_measured_matmul_of(row.what), row.dtype,
                                                 x[DTP_MEASURED_groups], x[DTP_MEASURED_m], x[DTP_MEASURED_n],
                                                 x[DTP_MEASURED_k]) == asked);
        assert_true(simulated.alone_s[i] >= asked && simulated.alone_s[i] < asked + 1e-5);
    }
    assert_int_equal(forward, 2); /* gate and up of each layer, one matrix */
    assert_int_equal(grouped, 12);
    struct dtp_execution framework = *execution;
    framework.own_kernels = false;
    assert_true(dtp_cluster_grouped_matmul_s(&job.cluster, &framework, DTP_MEASURED_MATMUL_FORWARD, DTP_BF16, 64, 256,
                                             2048, 2048) < 0.0004); /* a library's, by the catalogue */
    dtp_simulated_release(&simulated);
    dtp_measured_destroy(measured);
    job.cluster.measured = measured = with_grouped_rows(&job.cluster.gpu, "about,runtime,,,,,,,torch\n");
    assert_true(dtp_cluster_grouped_matmul_s(&job.cluster, &framework, DTP_MEASURED_MATMUL_FORWARD, DTP_BF16, 64, 256,
                                             2048, 2048) == 0.0005);
    framework.own_kernels = true;
    assert_true(dtp_cluster_grouped_matmul_s(&job.cluster, &framework, DTP_MEASURED_MATMUL_FORWARD, DTP_BF16, 64, 256,
                                             2048, 2048) != 0.0005);
    dtp_measured_destroy(measured);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_the_file_names_gpu_and_gpus),
                                       cmocka_unit_test(test_operations_take_what_was_measured),
                                       cmocka_unit_test(test_other_runtimes_share_libraries_only),
                                       cmocka_unit_test(test_attention_is_measured_layer_by_layer),
                                       cmocka_unit_test(test_both_models_agree),
                                       cmocka_unit_test(test_contention_is_what_was_measured),
                                       cmocka_unit_test(test_grouped_matmuls),
                                       cmocka_unit_test(test_more_gpus_than_were_measured)};
    return cmocka_run_group_tests(tests, load, unload);
}
