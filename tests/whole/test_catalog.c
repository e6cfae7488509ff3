#include "machine/catalog.h"
#include "machine/catalog_rows.h"
#include "cost/digest.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#define SCENARIOS TEST_SOURCE_DIR "/scenarios"
#define COUNT(array) (sizeof(array) / sizeof *(array))

static struct dtp_catalog catalog; /* the shipped one, read once and never changed */
static struct dtp_faults faults;

static int load(void **state)
{
    (void)state;
    enum dtp_status status = dtp_catalog_load(SCENARIOS, &catalog, &faults);
    for (size_t i = 0; i < faults.count && i < DTP_FAULTS_KEPT; i++)
        print_error("%s\n", faults.text[i]);
    return status == DTP_OK ? 0 : -1;
}

static int unload(void **state)
{
    (void)state;
    dtp_catalog_destroy(&catalog);
    return 0;
}

static void assert_near(double value, double expected, double tolerance)
{
    if (!(fabs(value - expected) <= tolerance))
        print_error("%.9g is not %.9g\n", value, expected);
    assert_true(fabs(value - expected) <= tolerance);
}

/* ---- what is shipped -------------------------------------------------------------------------------------------- */

/* What nvidia-smi -L and torch.cuda.get_device_name say is a name of the GPU it is. */
static void test_names_of_the_driver(void **state)
{
    static const char *const names[][2] = {{"NVIDIA H100 80GB HBM3", "h100-sxm"},
                                           {"NVIDIA H100 PCIe", "h100-pcie"},
                                           {"NVIDIA H100 NVL", "h100-nvl"},
                                           {"NVIDIA H200", "h200-sxm"},
                                           {"NVIDIA H20", "h20"},
                                           {"NVIDIA B200", "b200-sxm"},
                                           {"NVIDIA GB200", "gb200"},
                                           {"NVIDIA GH200 480GB", "gh200"},
                                           {"NVIDIA A100-SXM4-80GB", "a100-80-sxm"},
                                           {"NVIDIA A100-SXM4-40GB", "a100-40-sxm"},
                                           {"NVIDIA A100 80GB PCIe", "a100-80-pcie"},
                                           {"NVIDIA A100-PCIE-40GB", "a100-40-pcie"},
                                           {"NVIDIA A800-SXM4-80GB", "a800-80-sxm"},
                                           {"Tesla V100-SXM2-32GB", "v100-32-sxm"},
                                           {"Tesla V100-SXM2-16GB", "v100-16-sxm"},
                                           {"Tesla T4", "t4"},
                                           {"NVIDIA A10", "a10"},
                                           {"NVIDIA A40", "a40"},
                                           {"NVIDIA L4", "l4"},
                                           {"NVIDIA L40S", "l40s"},
                                           {"NVIDIA GeForce RTX 3090", "rtx-3090"},
                                           {"NVIDIA GeForce RTX 4090", "rtx-4090"},
                                           {"NVIDIA GeForce RTX 5090", "rtx-5090"},
                                           {"NVIDIA GeForce RTX 5060 Ti", "rtx-5060-ti"},
                                           {"NVIDIA RTX A6000", "rtx-a6000"},
                                           {"NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"},
                                           {"NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000"},
                                           {"AMD Instinct MI300X", "mi300x"},
                                           {"AMD Instinct MI325X", "mi325x"},
                                           {"AMD Instinct MI355X", "mi355x"}};
    (void)state;
    for (size_t i = 0; i < COUNT(names); i++) {
        const struct dtp_gpu *gpu = dtp_catalog_gpu(&catalog, names[i][0], NULL, 0, NULL);
        if (!gpu)
            fail_msg("%s is no name", names[i][0]);
        assert_string_equal(gpu->key, names[i][1]);
    }
}

static void test_every_figure_has_a_source(void **state)
{
    (void)state;
    assert_true(catalog.gpu_count >= 28);
    assert_true(catalog.machine_count >= 40);
    for (size_t i = 0; i < catalog.provenance_count; i++) {
        const struct dtp_provenance *p = &catalog.provenance[i];
        assert_true(strlen(p->source) > 5);
        assert_true(!strcmp(p->kind, "datasheet") || !strcmp(p->kind, "measured") || !strcmp(p->kind, "assumed"));
        assert_true(*p->unit && *p->quantity && *p->text);
        assert_true(isfinite(p->value) && (p->value > 0 || !strcmp(p->unit, "text")));
    }
    const struct dtp_provenance *figure = dtp_catalog_provenance(&catalog, "h100-sxm", "bf16_flops_per_s");
    assert_non_null(figure);
    assert_near(figure->value, 989.4e12, 1e9);
    assert_string_equal(figure->unit, "flops_per_s");
    assert_null(dtp_catalog_provenance(&catalog, "h100-sxm", "nvme_bytes"));
}

static void assert_between(double value, double low, double high, const char *key)
{
    if (!(value >= low && value <= high))
        print_error("%s: %g is not in [%g, %g]\n", key, value, low, high);
    assert_true(value >= low && value <= high);
}

/* The capacity in a part's name, in bytes; 0 where it names none. */
static double named_bytes(const char *name)
{
    const char *unit = strstr(name, "GB ");
    size_t length = strlen(name);
    if (!unit && length > 2 && !strcmp(name + length - 2, "GB"))
        unit = name + length - 2;
    if (!unit || unit == name)
        return 0;
    const char *digits = unit;
    while (digits > name && digits[-1] >= '0' && digits[-1] <= '9')
        digits--;
    return digits == unit ? 0 : atof(digits) * 1e9;
}

/* Bounds that a slipped factor of two (sparsity, both directions of a link) or of 1000 breaks. */
static void test_ratios_are_plausible(void **state)
{
    (void)state;
    for (size_t i = 0; i < catalog.gpu_count; i++) {
        const struct dtp_gpu *gpu = &catalog.gpus[i];
        const double *peak = gpu->peak_flops_per_s;
        assert_between(peak[DTP_FP16] / gpu->memory_bytes_per_s, 35, 450, gpu->key); /* the H20, throttled by law: 37 */
        assert_between(peak[DTP_FP16] / gpu->sm_count / gpu->power_w, 1e9, 4e10, gpu->key);
        if (peak[DTP_BF16] > 0)
            assert_between(peak[DTP_BF16] / peak[DTP_FP16], 1, 1, gpu->key);
        if (peak[DTP_TF32] > 0)
            assert_between(peak[DTP_TF32] / peak[DTP_FP16], 0.49, 0.51, gpu->key);
        if (peak[DTP_FP8] > 0)
            assert_between(peak[DTP_FP8] / peak[DTP_FP16], 1.99, 2.03, gpu->key);
        assert_between(peak[DTP_FP32] / peak[DTP_FP16], 0.03, 0.51, gpu->key);
        assert_between(gpu->matmul_fraction, 0.4, 0.98, gpu->key);
        assert_between(gpu->link_bytes_per_s, 15e9, 900e9, gpu->key);
        assert_between(gpu->memory_bytes_per_s / gpu->link_bytes_per_s, 5, gpu->link == DTP_LINK_PCIE ? 70 : 20,
                       gpu->key);
        assert_true(gpu->link == DTP_LINK_PCIE ? gpu->link_bytes_per_s == gpu->pcie_bytes_per_s
                                               : gpu->link_bytes_per_s >= gpu->pcie_bytes_per_s);
        if (named_bytes(gpu->name) > 0)
            assert_between((double)gpu->memory_bytes / named_bytes(gpu->name), 0.96, 1.08, gpu->key);
    }
    for (size_t i = 0; i < catalog.machine_count; i++) {
        const struct dtp_machine *machine = &catalog.machines[i];
        assert_between(machine->host_memory_bytes_per_s / machine->host_cores, 2e9, 15e9, machine->key);
        if (machine->nics)
            assert_between(machine->network_bytes_per_s / machine->gpus, 3e8, 100e9, machine->key);
        if (machine->nvme_bytes)
            assert_between(machine->nvme_read_bytes_per_s / machine->nvme_write_bytes_per_s, 1, 3, machine->key);
    }
}

static void test_dense_peaks(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        double bf16_tflops;
    } known[] = {{"a100-80-sxm", 312}, {"h100-sxm", 989.4}, {"h200-sxm", 989.4}, {"b200-sxm", 2250},
                 {"gb200", 2500},      {"rtx-4090", 165.2}, {"rtx-3090", 71.2},  {"l40s", 362},
                 {"mi300x", 1307.4},   {"h100-pcie", 756}};
    for (size_t i = 0; i < COUNT(known); i++) {
        const struct dtp_gpu *gpu = dtp_catalog_gpu(&catalog, known[i].key, NULL, 0, NULL);
        assert_non_null(gpu);
        assert_near(gpu->peak_flops_per_s[DTP_BF16] / 1e12, known[i].bf16_tflops, 0.05);
    }
    assert_near(dtp_catalog_gpu(&catalog, "v100", NULL, 0, NULL)->peak_flops_per_s[DTP_BF16], 0, 0);
    /* One direction; the parts for export have fewer links. */
    assert_near(dtp_catalog_gpu(&catalog, "a100", NULL, 0, NULL)->link_bytes_per_s, 300e9, 1);
    assert_near(dtp_catalog_gpu(&catalog, "a800", NULL, 0, NULL)->link_bytes_per_s, 200e9, 1);
    assert_near(dtp_catalog_gpu(&catalog, "h100", NULL, 0, NULL)->link_bytes_per_s, 450e9, 1);
    assert_near(dtp_catalog_gpu(&catalog, "h800", NULL, 0, NULL)->link_bytes_per_s, 200e9, 1);
    assert_near(dtp_catalog_gpu(&catalog, "b200", NULL, 0, NULL)->link_bytes_per_s, 900e9, 1);
}

static void test_names_people_type(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {
        {"h100", "h100-sxm"},
        {"A100", "a100-80-sxm"},
        {"a100-40", "a100-40-sxm"},
        {"a100_80gb", "a100-80-sxm"},
        {"H100 SXM", "h100-sxm"},
        {"h200", "h200-sxm"},
        {"b200", "b200-sxm"},
        {"B300", "b300-sxm"},
        {"4090", "rtx-4090"},
        {"RTX 4090", "rtx-4090"},
        {"rtx4090", "rtx-4090"},
        {"3090", "rtx-3090"},
        {"a6000", "rtx-a6000"},
        {"L40S", "l40s"},
        {"mi300x", "mi300x"},
        {"v100", "v100-32-sxm"},
        {"A100-SXM4-40GB", "a100-40-sxm"},
        {"h100-80gb-hbm3", "h100-sxm"},
        {"a100-pcie", "a100-80-pcie"},
        {"h800", "h800-sxm"},
        {"rtx pro 6000", "rtx-pro-6000"},
        {"h100-96-hbm2e-500w", "h100-96-hbm2e-500w"},
    };
    for (size_t i = 0; i < COUNT(pairs); i++) {
        const struct dtp_gpu *gpu = dtp_catalog_gpu(&catalog, pairs[i][0], NULL, 0, NULL);
        assert_non_null(gpu);
        assert_string_equal(gpu->key, pairs[i][1]);
    }
    assert_string_equal(dtp_catalog_machine(&catalog, "p5.48xlarge", NULL, 0, NULL)->key, "aws-p5");
    assert_string_equal(dtp_catalog_machine(&catalog, "BM.GPU.H100.8", NULL, 0, NULL)->key, "oci-bm-gpu-h100-8");
    for (size_t i = 0; i < catalog.alias_count; i++) {
        const char *alias = catalog.aliases[i].alias;
        assert_true(dtp_catalog_gpu(&catalog, alias, NULL, 0, NULL) ||
                    dtp_catalog_machine(&catalog, alias, NULL, 0, NULL) ||
                    dtp_catalog_model(&catalog, alias, NULL, 0, NULL));
    }
}

static void test_unknown_names(void **state)
{
    (void)state;
    memset(&faults, 0, sizeof faults);
    assert_null(dtp_catalog_gpu(&catalog, "h100-smx", "run.ini", 7, &faults));
    assert_null(dtp_catalog_gpu(&catalog, "abacus", NULL, 0, &faults));
    assert_null(dtp_catalog_machine(&catalog, "dgx-h10", NULL, 0, &faults));
    assert_null(dtp_catalog_gpu(&catalog, "", NULL, 0, &faults));
    assert_null(dtp_catalog_gpu(&catalog, "\033[2J", NULL, 0, &faults));
    assert_null(dtp_catalog_gpu(&catalog, "silent", NULL, 0, NULL));
    assert_int_equal(faults.count, 5);
    assert_int_equal(faults.status, DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "run.ini:7: unknown GPU 'h100-smx'; did you mean 'h100-sxm'"));
    assert_non_null(strstr(faults.text[0], "`dtplan catalog gpus` lists them"));
    assert_string_equal(faults.text[1], "unknown GPU 'abacus'; `dtplan catalog gpus` lists them");
    assert_non_null(strstr(faults.text[2], "'dgx-h100'"));
    assert_null(strchr(faults.text[4], '\033'));
}

static void test_default_machines(void **state)
{
    (void)state;
    static const struct {
        const char *gpu, *machine;
        double gbit_per_s;
    } known[] = {{"a100-80-sxm", "dgx-a100-80", 1600},
                 {"a100-40-sxm", "dgx-a100-40", 1600},
                 {"h100-sxm", "dgx-h100", 3200},
                 {"h200-sxm", "dgx-h200", 3200},
                 {"b200-sxm", "dgx-b200", 3200},
                 {"h100-96-hbm2e-500w", "meta-h100-96", 3200},
                 {"l40s", "pcie-box", 25},
                 {"rtx-5060-ti", "pcie-box", 25},
                 {"rtx-4090", "consumer-4090", 25}};
    for (size_t i = 0; i < COUNT(known); i++) {
        const struct dtp_gpu *gpu = dtp_catalog_gpu(&catalog, known[i].gpu, NULL, 0, NULL);
        const struct dtp_machine *machine = dtp_catalog_default_machine(&catalog, gpu);
        assert_string_equal(machine->key, known[i].machine);
        assert_near(machine->network_bytes_per_s * 8 / 1e9, known[i].gbit_per_s, 1e-6);
    }
    assert_int_equal(dtp_catalog_machine(&catalog, "gb200-nvl72", NULL, 0, NULL)->gpus, 72);
}

/* Every GPU can be planned with as shipped: a machine, a price and a cluster that passes its check. */
static void test_every_gpu_makes_a_cluster(void **state)
{
    (void)state;
    for (size_t i = 0; i < catalog.gpu_count; i++) {
        struct dtp_cluster cluster = {.gpu = catalog.gpus[i], .nodes = 1, .oversubscription = 1};
        const struct dtp_machine *machine = dtp_catalog_default_machine(&catalog, &cluster.gpu);
        assert_non_null(machine);
        cluster.machine = *machine;
        cluster.gpus = cluster.gpus_per_node = machine->gpus;
        memset(&faults, 0, sizeof faults);
        assert_int_equal(dtp_cluster_check(&cluster, &faults), DTP_OK);
        const struct dtp_price *price = dtp_catalog_price(&catalog, cluster.gpu.key);
        assert_non_null(price);
        assert_between(price->high / price->low, 1, 30, price->gpu_key);
        assert_true(strlen(price->source) > 5 && strlen(price->date) == 7);
    }
    assert_null(dtp_catalog_price(&catalog, "abacus"));
}

#ifdef __SANITIZE_ADDRESS__
#define MOST_DIGESTS 120 /* it takes some 47: checks cost parsing more than they cost sums */
#else
#define MOST_DIGESTS 60 /* it takes some 20 */
#endif

/* Seconds of this thread's processor: what else the machine does counts only by the caches that it fills. */
static double processor_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Every call of dtplan reads the catalogues first. How long that may take is measured in digests of their digest, which
 * is as fast as the machine, the compiler and the sanitizers let it be; best of many, taken in turn. */
static void test_loads_at_once(void **state)
{
    (void)state;
    double load_s = 1, digest_s = 1;
    uint64_t digest = DTP_DIGEST_START;
    for (int i = 0; i < 30; i++) {
        struct dtp_catalog other;
        double begin_s = processor_s();
        assert_int_equal(dtp_catalog_load(SCENARIOS, &other, NULL), DTP_OK);
        load_s = fmin(load_s, processor_s() - begin_s);
        begin_s = processor_s();
        digest = dtp_digest_catalog(digest, &other);
        digest_s = fmin(digest_s, processor_s() - begin_s);
        dtp_catalog_destroy(&other);
    }
    print_message("%.2f ms, a digest %.3f ms (%016llx)\n", 1e3 * load_s, 1e3 * digest_s, (unsigned long long)digest);
    assert_true(load_s < MOST_DIGESTS * digest_s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_of_the_driver),  cmocka_unit_test(test_every_figure_has_a_source),
        cmocka_unit_test(test_ratios_are_plausible), cmocka_unit_test(test_dense_peaks),
        cmocka_unit_test(test_names_people_type),    cmocka_unit_test(test_unknown_names),
        cmocka_unit_test(test_default_machines),     cmocka_unit_test(test_every_gpu_makes_a_cluster),
        cmocka_unit_test(test_loads_at_once),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
