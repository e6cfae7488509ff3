/* Cores of a machine in place of GPUs: what is known of them without a probe, what a machine file of them says, and a
 * step of which one operation follows the other. */
#include "machine/host_machine.h"
#include "sim/op_time.h"
#include "job/scenario.h"
#include "lib/shipped_catalog.h"
#include "sim/simulated.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define JOB                                                                                                            \
    "layers=2 hidden=64 heads=4 ffn=192 vocab=256 seq=32 micro_batch=2 strategy=full_shard runtime=dtplan "            \
    "precision=fp32 gradient_norm=true "

static struct dtp_faults faults;
static char path[] = "/tmp/dtplan-test-host-XXXXXX.csv";

/* Two ranks take three times as long as one, and bf16 twice as long as fp32. */
static double kernel_s(int ranks, bool narrow)
{
    return 1e-5 * (ranks == 2 ? 3 : 1) * (narrow ? 2 : 1);
}

static void write_kernels(FILE *file)
{
    static const char *const kinds[] = {"norm", "rotary"};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (int ranks = 1; ranks <= 2; ranks++)
            for (int narrow = 0; narrow < 2; narrow++)
                fprintf(file, "kernel,%s,%s,,,,,,,,1000000,%d,,,%g,,,,\n", kinds[k], narrow ? "bf16" : "fp32", ranks,
                        kernel_s(ranks, narrow));
}

static int write_machine(void **state)
{
    (void)state;
    char processor[200];
    FILE *file = fdopen(mkstemps(path, 4), "w");
    if (!file)
        return -1;
    dtp_host_processor(processor, sizeof processor);
    fputs("measurement,what,dtype,m,n,k,sequence,heads,kv_heads,head_dim,bytes,ranks,stride,nodes,seconds,low_s,high_s,"
          "samples,value\n",
          file);
    fputs("about,gpu_key,,,,,,,,,,,,,,,,,host\nabout,device,,,,,,,,,,,,,,,,,host\nabout,gpus,,,,,,,,,,,,,,,,,2\n",
          file);
    fprintf(file, "about,host_cpu,,,,,,,,,,,,,,,,,%s\nabout,host_cores,,,,,,,,,,,,,,,,,%u\n", processor,
            dtp_host_cores());
    write_kernels(file);
    for (int ranks = 1; ranks <= 2; ranks++)
        fprintf(file, "matmul,forward,fp32,256,64,64,,,,,,%d,,,%g,,,,\n", ranks, 1e-4 * ranks);
    fputs("collective,all_gather,,,,,,,,,65536,2,1,1,4e-5,,,,\n", file);
    fputs("collective,reduce_scatter,fp32,,,,,,,,65536,2,1,1,9e-5,,,,\n", file);
    fputs("collective,all_reduce,fp32,,,,,,,,65536,2,1,1,2e-4,,,,\n", file);
    fclose(file);
    return load_catalog(state) || dtp_catalog_measure(&catalog, path, &faults) != DTP_OK;
}

static int remove_machine(void **state)
{
    unlink(path);
    return drop_catalog(state);
}

/* "KEY=VALUE ..." */
static enum dtp_status resolve(const char *keys, const char *machine, bool without_times, struct dtp_job *out)
{
    struct dtp_scenario *scenario;
    char text[512], *rest = text;
    snprintf(text, sizeof text, "%s", keys);
    faults = (struct dtp_faults){0};
    assert_int_equal(dtp_scenario_create(&scenario, &faults), DTP_OK);
    for (char *word; (word = strsep(&rest, " "));) {
        char *value = strchr(word, '=');
        if (!value)
            continue;
        *value = '\0';
        assert_int_equal(dtp_scenario_set(scenario, word, value + 1, "test", 0, &faults), DTP_OK);
    }
    if (machine)
        assert_int_equal(dtp_scenario_set(scenario, "machine", machine, "test", 0, &faults), DTP_OK);
    if (without_times)
        dtp_scenario_without_times(scenario);
    enum dtp_status status = dtp_scenario_resolve(scenario, &catalog, out, &faults);
    dtp_scenario_destroy(scenario);
    return status;
}

static void test_this_machine(void **state)
{
    struct dtp_gpu gpu;
    struct dtp_machine machine;
    (void)state;
    dtp_host_describe(&gpu, &machine);
    assert_string_equal(gpu.name, "cores of this machine");
    assert_true(gpu.memory_bytes > UINT64_C(1) << 20 && machine.host_cores >= 1);
}

static void test_without_a_probe_there_are_no_times(void **state)
{
    struct dtp_job job;
    (void)state;
    assert_int_equal(resolve(JOB "gpu=host gpus=2", NULL, false, &job), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "dtplan probe --device host -o here.csv"));
    assert_int_equal(resolve(JOB "gpu=host gpus=2", NULL, true, &job), DTP_OK);
    assert_true(dtp_cluster_is_host(&job.cluster));
    assert_false(dtp_cluster_has_times(&job.cluster));
}

static double asked_s(const struct dtp_job *job, enum dtp_dtype dtype, uint32_t ranks)
{
    struct dtp_measured_row row = dtp_measured_row_of(DTP_MEASUREMENT_KERNEL, "norm");
    row.number[DTP_MEASURED_bytes] = 1000000;
    dtp_measured_row_of_host(&row, dtype, ranks);
    return dtp_measured_s(job->cluster.measured, &row);
}

static void test_ranks_share_the_cores(void **state)
{
    struct dtp_job job;
    (void)state;
    assert_int_equal(resolve(JOB "gpus=2", path, false, &job), DTP_OK);
    assert_string_equal(job.cluster.gpu.name, "cores of this machine");
    assert_true(dtp_cluster_has_times(&job.cluster));
    for (uint32_t ranks = 1; ranks <= 2; ranks++) {
        assert_close(asked_s(&job, DTP_FP32, ranks), kernel_s((int)ranks, false), 1e-12);
        assert_close(asked_s(&job, DTP_BF16, ranks), kernel_s((int)ranks, true), 1e-12);
    }
    double of_two = dtp_cluster_matmul_s(&job.cluster, &(struct dtp_execution){0}, DTP_MEASURED_MATMUL_FORWARD,
                                         DTP_FP32, 256, 64, 64);
    assert_close(of_two, 2e-4, 1e-12);
    assert_int_equal(resolve(JOB "gpus=3", path, false, &job), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "measured 2; probe with --gpus 3"));
}

/* Of a GPU collectives hide behind kernels; cores do one thing at a time. */
static void test_one_operation_follows_the_other(void **state)
{
    struct dtp_simulation_options options = dtp_simulation_options_default();
    static struct dtp_simulated simulated;
    struct dtp_job job;
    double sum_s = 0;
    (void)state;
    assert_int_equal(resolve(JOB "gpus=2", path, false, &job), DTP_OK);
    assert_int_equal(dtp_simulated_create(&job, &options, &simulated, &faults), DTP_OK);
    for (size_t i = 0; i < simulated.timeline.op_count; i++)
        sum_s += simulated.alone_s[i];
    assert_close(simulated.prediction.time.step_s / sum_s, 1, 1e-9);
    for (size_t i = 1; i < simulated.timeline.op_count; i++)
        assert_true(simulated.timeline.span[i].start_s >= simulated.timeline.span[i - 1].end_s);
    dtp_simulated_release(&simulated);
}

/* Nodes of ranks on one machine are pretended: they meet in its memory at its speed. */
static void test_pretended_nodes_are_one_machine(void **state)
{
    struct dtp_simulation_options options = dtp_simulation_options_default();
    static struct dtp_simulated apart, together;
    struct dtp_job job;
    (void)state;
    assert_int_equal(resolve(JOB "gpus=2", path, false, &job), DTP_OK);
    assert_int_equal(dtp_simulated_create(&job, &options, &together, &faults), DTP_OK);
    assert_int_equal(resolve(JOB "gpus=2 gpus_per_node=1", path, false, &job), DTP_OK);
    assert_int_equal(job.cluster.nodes, 2);
    assert_int_equal(dtp_simulated_create(&job, &options, &apart, &faults), DTP_OK);
    assert_close(apart.prediction.time.step_s / together.prediction.time.step_s, 1, 1e-9);
    dtp_simulated_release(&together);
    dtp_simulated_release(&apart);
}

/* No plan of runtime dtplan fits where its run would be refused. */
static void test_the_wrong_width_is_named(void **state)
{
    struct dtp_job job;
    (void)state;
    const char *words = "model=stories-260k ffn=170 runtime=dtplan gpu=host gpus=1";
    assert_int_equal(resolve(words, NULL, true, &job), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "ffn: 170 is no multiple of 4"));
}

/* Each width is refused once: where tp divides it in no way that is said, where it leaves a rank too odd a part, what
 * fits. */
static void test_tensor_parallel_widths_are_named_once(void **state)
{
    struct dtp_job job;
    (void)state;
    const char *job_words = "layers=2 hidden=128 heads=4 vocab=512 seq=128 runtime=dtplan gpu=host gpus=2 tp=2 ";
    char words[200];
    snprintf(words, sizeof words, "%sffn=511", job_words);
    assert_int_equal(resolve(words, NULL, true, &job), DTP_BAD_INPUT);
    assert_int_equal(faults.count, 2);
    assert_non_null(strstr(faults.text[0], "tp: 2 does not divide ffn 511"));
    assert_non_null(strstr(faults.text[1], "ffn: 511 is no multiple of 4"));
    snprintf(words, sizeof words, "%sffn=508", job_words);
    assert_int_equal(resolve(words, NULL, true, &job), DTP_BAD_INPUT);
    assert_int_equal(faults.count, 1); /* 254 is no multiple of 8 */
    assert_non_null(strstr(faults.text[0], "the nearest that fits is 1, or set ffn to a multiple of 16"));
}

/* Twice as many would be whole nodes of the host, and refused by whatever starts them. */
static void test_too_many_ranks_are_not_made_more(void **state)
{
    struct dtp_job job;
    (void)state;
    assert_int_equal(resolve(JOB "gpu=host gpus=1025", NULL, true, &job), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "1025 ranks are asked for, the host device has at most 1024; take fewer"));
    assert_null(strstr(faults.text[0], "2048"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_this_machine),
                                       cmocka_unit_test(test_without_a_probe_there_are_no_times),
                                       cmocka_unit_test(test_ranks_share_the_cores),
                                       cmocka_unit_test(test_one_operation_follows_the_other),
                                       cmocka_unit_test(test_pretended_nodes_are_one_machine),
                                       cmocka_unit_test(test_the_wrong_width_is_named),
                                       cmocka_unit_test(test_tensor_parallel_widths_are_named_once),
                                       cmocka_unit_test(test_too_many_ranks_are_not_made_more)};
    return cmocka_run_group_tests(tests, write_machine, remove_machine);
}
