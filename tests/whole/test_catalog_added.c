/* What users add to the catalogues: files of their own, and every fault of them. */
#include "machine/catalog_rows.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "lib/shipped_catalog.h"

#define SCENARIOS TEST_SOURCE_DIR "/scenarios"
#define COUNT(array) (sizeof(array) / sizeof *(array))

static struct dtp_faults faults;

#define GPU_HEADER "gpu_key,quantity,value,unit,kind,source\n"
#define MACHINE_HEADER "machine_key,quantity,value,unit,kind,source\n"
#define PRICE_HEADER "gpu_key,low_usd_per_gpu_hour,typical_usd_per_gpu_hour,high_usd_per_gpu_hour,date,kind,source\n"
#define MODEL_HEADER "key,layers,hidden,heads,ffn,vocab,norm,activation,position,source\n"
#define WHOLE_GPU(key)                                                                                                 \
    key ",name,Mine 10GB,text,assumed,here\n" key ",architecture,ada,text,assumed,here\n" key                          \
        ",fp32_flops_per_s,1e13,flops_per_s,assumed,here\n" key                                                        \
        ",fp16_flops_per_s,2e13,flops_per_s,assumed,here\n" key ",matmul_fraction,0.8,fraction,assumed,here\n" key     \
        ",memory_bytes,10000000000,bytes,assumed,here\n" key ",memory_bytes_per_s,2e11,bytes_per_s,assumed,here\n" key \
        ",link,pcie,text,assumed,here\n" key ",link_bytes_per_s,3.2e10,bytes_per_s,assumed,here\n" key                 \
        ",pcie_bytes_per_s,3.2e10,bytes_per_s,assumed,here\n" key ",sm_count,20,count,assumed,here\n" key              \
        ",power_w,100,w,assumed,here\n"

/* Adds text as file u.csv to a copy of the shipped catalogue. */
static struct dtp_catalog mine;

static enum dtp_status add(const char *text)
{
    memset(&faults, 0, sizeof faults);
    dtp_catalog_destroy(&mine);
    assert_int_equal(dtp_catalog_load(SCENARIOS, &mine, NULL), DTP_OK);
    struct dtp_table *table = NULL;
    assert_int_equal(dtp_table_parse("u.csv", text, strlen(text), &table, &faults), DTP_OK);
    enum dtp_status status = dtp_catalog_add_table(table, true, &mine, &faults);
    dtp_table_destroy(table);
    assert_int_equal(status, faults.status);
    return status;
}

static void assert_refused(const char *text, size_t count, const char *const *expected)
{
    assert_int_equal(add(text), DTP_BAD_INPUT);
    for (size_t i = 0; i < faults.count || i < count; i++)
        assert_string_equal(i < faults.count ? faults.text[i] : "(nothing more)",
                            i < count ? expected[i] : "(nothing more)");
}

static void test_add_a_gpu(void **state)
{
    (void)state;
    assert_int_equal(add(GPU_HEADER WHOLE_GPU("mine-10")), DTP_OK);
    const struct dtp_gpu *gpu = dtp_catalog_gpu(&mine, "MINE 10", NULL, 0, NULL);
    assert_non_null(gpu);
    assert_string_equal(gpu->name, "Mine 10GB");
    assert_int_equal(gpu->architecture, DTP_GPU_ADA);
    assert_int_equal(gpu->memory_bytes, 10000000000);
    assert_int_equal(gpu->sm_count, 20);
    assert_string_equal(dtp_catalog_default_machine(&mine, gpu)->key, "pcie-box");
    assert_string_equal(dtp_catalog_provenance(&mine, "mine-10", "power_w")->source, "here");
}

static void test_override_one_figure(void **state)
{
    (void)state;
    assert_int_equal(
        add("kind,source,gpu_key,quantity,unit,value\nmeasured,my bench,H100_SXM,matmul_fraction,fraction,.71\n"),
        DTP_OK);
    const struct dtp_gpu *gpu = dtp_catalog_gpu(&mine, "h100", NULL, 0, NULL);
    assert_close(gpu->matmul_fraction, 0.71, 1e-12);
    assert_close(gpu->peak_flops_per_s[DTP_BF16], 989.4e12, 1e9);
    assert_int_equal(mine.gpu_count, catalog.gpu_count);
    assert_int_equal(mine.provenance_count, catalog.provenance_count);
    assert_string_equal(dtp_catalog_provenance(&mine, "h100-sxm", "matmul_fraction")->source, "my bench");
}

static void test_add_machines_prices_models_aliases(void **state)
{
    (void)state;
    assert_int_equal(add(MACHINE_HEADER "box,name,My box,text,assumed,x\nbox,gpu_key,H100,text,assumed,x\n"
                                        "box,gpus,4,count,assumed,x\nbox,host_memory_bytes,1e12,bytes,assumed,x\n"
                                        "box,host_memory_bytes_per_s,1e11,bytes_per_s,assumed,x\n"
                                        "box,host_cores,64,count,assumed,x\n"),
                     DTP_OK);
    const struct dtp_machine *box = dtp_catalog_machine(&mine, "box", NULL, 0, NULL);
    assert_string_equal(box->gpu_key, "h100-sxm");
    assert_int_equal(box->host_memory_bytes, 1000000000000);

    assert_int_equal(add(PRICE_HEADER "h100,1,2.5,3,2026-07,assumed,my contract\n"), DTP_OK);
    assert_close(dtp_catalog_price(&mine, "h100-sxm")->typical, 2.5, 1e-12);
    assert_int_equal(mine.price_count, catalog.price_count);

    assert_int_equal(add(MODEL_HEADER "tiny,2,64,2,128,1000,rms_norm,swiglu,rope,me\n"), DTP_OK);
    assert_int_equal(dtp_catalog_model(&mine, "tiny", NULL, 0, NULL)->layers, 2);
    assert_int_equal(mine.model_count, catalog.model_count + 1);

    assert_int_equal(add("alias,key\nmy-gpu,rtx-4090\nh100,h100-pcie\n"), DTP_OK);
    assert_string_equal(dtp_catalog_gpu(&mine, "my_gpu", NULL, 0, NULL)->key, "rtx-4090");
    assert_string_equal(dtp_catalog_gpu(&mine, "h100", NULL, 0, NULL)->key, "h100-pcie");
}

static void test_all_faults_of_a_gpu_file(void **state)
{
    (void)state;
    static const char *const expected[] = {
        "u.csv:2: unknown quantity 'memory_byte' of a GPU; did you mean 'memory_bytes' or 'memory_bytes_per_s'?",
        "u.csv:3: the unit of memory_bytes is 'GB'; 'bytes' is meant",
        "u.csv:4: sm_count of h100-sxm is '-1'; a whole number from 1 to 100000 is meant",
        "u.csv:5: memory_bytes_per_s of h100-sxm is 'nan'; a number from 1e+09 to 1e+15 is meant",
        "u.csv:6: power_w of h100-sxm is '7e99'; a number from 1 to 100000 is meant",
        "u.csv:7: kind is 'guess'; datasheet, measured or assumed is meant",
        "u.csv:7: source has 0 bytes; 1 to 199 are meant",
        "u.csv:8: link of h100-sxm is 'infiniband'; nvlink, xgmi, pcie or none is meant",
        ("u.csv:9: architecture of h100-sxm is 'vaporware'; volta, turing, ampere, ada, hopper, blackwell, cdna2, "
         "cdna3 or cdna4 is "
         "meant"),
        "u.csv:10: gpu_key is 'a b;c'; letters, digits, '.', '-', '_' and '+' are meant",
        "u.csv:11: byte 2 of value is a control character or not UTF-8",
        "u.csv:12: 'dgx-h100' is already the key of a machine",
        "u.csv:13: pcie_bytes_per_s of h100-sxm is '64k'; a number from 1e+08 to 1e+13 is meant",
        "u.csv:14: sm_count of h100-sxm is given twice in this file",
        "u.csv:15: memory_bytes of h200-sxm is '1e12.'; a whole number from 1e+08 to 1e+14 is meant",
    };
    assert_refused(GPU_HEADER "h100-sxm,memory_byte,1e10,bytes,assumed,x\n"
                              "h100-sxm,memory_bytes,80,GB,assumed,x\n"
                              "h100-sxm,sm_count,-1,count,assumed,x\n"
                              "h100-sxm,memory_bytes_per_s,nan,bytes_per_s,assumed,x\n"
                              "h100-sxm,power_w,7e99,w,assumed,x\n"
                              "h100-sxm,bf16_flops_per_s,1e14,flops_per_s,guess,\n"
                              "h100-sxm,link,infiniband,text,assumed,x\n"
                              "h100-sxm,architecture,vaporware,text,assumed,x\n"
                              "a b;c,sm_count,1,count,assumed,x\n"
                              "h100-sxm,name,a\033[2Jb,text,assumed,x\n"
                              "dgx-h100,sm_count,1,count,assumed,x\n"
                              "h100-sxm,pcie_bytes_per_s,64k,bytes_per_s,assumed,x\n"
                              "h100-sxm,sm_count,132,count,assumed,x\n"
                              "h200-sxm,memory_bytes,1e12.,bytes,assumed,x\n",
                   COUNT(expected), expected);
}

static void test_missing_quantities(void **state)
{
    (void)state;
    static const char *const expected[] = {
        "u.csv:2: GPU 'new' has no architecture",
        "u.csv:2: GPU 'new' has no fp32_flops_per_s",
        "u.csv:2: GPU 'new' has no fp16_flops_per_s",
        "u.csv:2: GPU 'new' has no matmul_fraction",
        "u.csv:2: GPU 'new' has no memory_bytes",
        "u.csv:2: GPU 'new' has no memory_bytes_per_s",
        "u.csv:2: GPU 'new' has no link",
        "u.csv:2: GPU 'new' has no pcie_bytes_per_s",
        "u.csv:2: GPU 'new' has no sm_count",
        "u.csv:2: GPU 'new' has no power_w",
    };
    assert_refused(GPU_HEADER "new,name,New,text,assumed,x\n", COUNT(expected), expected);
    static const char *const link[] = {"u.csv:2: GPU 'h100-sxm': link is none, but link_bytes_per_s is 4.5e+11"};
    assert_refused(GPU_HEADER "h100-sxm,link,none,text,assumed,x\n", 1, link);
}

static void test_bad_machines(void **state)
{
    (void)state;
    static const char *const expected[] = {
        "u.csv:3: unknown quantity 'bf16_flops_per_s' of a machine",
        "u.csv:4: machine 'box' has no name",
        "u.csv:4: machine 'box' has no gpus",
        "u.csv:4: machine 'box' has no host_memory_bytes",
        "u.csv:4: machine 'box' has no host_memory_bytes_per_s",
        "u.csv:4: machine 'box' has no host_cores",
    };
    const char *text = MACHINE_HEADER "dgx-h100,gpu_key,h100-smx,text,assumed,x\n"
                                      "dgx-h100,bf16_flops_per_s,1,flops_per_s,assumed,x\n"
                                      "box,nics,2,count,assumed,x\n";
    assert_int_equal(add(text), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "u.csv:2: unknown GPU 'h100-smx'; did you mean 'h100-sxm'"));
    for (size_t i = 0; i < COUNT(expected); i++)
        assert_string_equal(faults.text[i + 1], expected[i]);
    assert_int_equal(faults.count, COUNT(expected) + 1);

    static const char *const together[] = {
        "u.csv:3: machine 'dgx-h100': gpu_peer_bytes_per_s needs a link",
        "u.csv:2: machine 'lumi-g': nvme_bytes, nvme_read_bytes_per_s and nvme_write_bytes_per_s belong together",
        "u.csv:4: machine 'mine': network_bytes_per_s and nics belong together",
    };
    assert_refused(MACHINE_HEADER "lumi-g,nvme_bytes,1e12,bytes,assumed,x\n"
                                  "dgx-h100,gpu_peer_bytes_per_s,1e11,bytes_per_s,assumed,x\n"
                                  "mine,nics,2,count,assumed,x\nmine,name,Mine,text,assumed,x\n"
                                  "mine,gpus,2,count,assumed,x\nmine,host_memory_bytes,1e12,bytes,assumed,x\n"
                                  "mine,host_memory_bytes_per_s,1e11,bytes_per_s,assumed,x\n"
                                  "mine,host_cores,8,count,assumed,x\n",
                   COUNT(together), together);
}

static void test_bad_prices_and_aliases(void **state)
{
    (void)state;
    static const char *const prices[] = {
        "u.csv:2: low_usd_per_gpu_hour is '-1'; US dollars from 0.001 to 10000 are meant",
        "u.csv:2: date is '2026-13'; year and month as in 2025-01 are meant",
        "u.csv:3: the prices of h200-sxm are not in order: low 3, typical 2, high 4",
        "u.csv:3: date is 'May 26'; year and month as in 2025-01 are meant",
    };
    assert_refused(PRICE_HEADER "h100-sxm,-1,2,3,2026-13,assumed,x\nh200-sxm,3,2,4,May 26,assumed,x\n", COUNT(prices),
                   prices);
    static const char *const aliases[] = {
        "u.csv:2: alias 'x' stands for 'nothing', which is no key of a GPU, machine or model",
        "u.csv:3: alias 'L40S' is already a key",
        "u.csv:4: alias has 0 bytes; 1 to 63 are meant",
    };
    assert_refused("alias,key\nx,nothing\nL40S,l4\n,l4\n", COUNT(aliases), aliases);
}

static void test_bad_headers(void **state)
{
    (void)state;
    assert_int_equal(add("a,b\n1,2\n"), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "u.csv: the header is that of no catalogue; GPUs have gpu_key,quantity,"));
    static const char *const columns[] = {
        "u.csv: unknown column 'sourse' in a table of GPUs; did you mean 'source'?",
        "u.csv: a table of GPUs needs a column 'source'",
    };
    assert_refused("gpu_key,quantity,value,unit,kind,sourse\n", COUNT(columns), columns);
}

static void test_limits(void **state)
{
    (void)state;
    size_t bytes = 0;
    char *text = NULL;
    FILE *file = open_memstream(&text, &bytes);
    fputs(GPU_HEADER, file);
    for (int i = 0; i < 3000; i++)
        fprintf(file, "g%d,power_w,1,w,assumed,x\n", i);
    fclose(file);
    clock_t begin = clock();
    assert_int_equal(add(text), DTP_BAD_INPUT);
    assert_true((double)(clock() - begin) / CLOCKS_PER_SEC < 2);
    assert_true(mine.gpu_count <= DTP_CATALOG_MAX_ENTRIES);
    free(text);

    char name[400];
    memset(name, 'a', sizeof name - 1);
    name[sizeof name - 1] = 0;
    char row[2000];
    snprintf(row, sizeof row, GPU_HEADER "%s,power_w,1,w,assumed,x\nh100-sxm,name,%s,text,assumed,%s\n", name, name,
             name);
    static const char *const expected[] = {"u.csv:2: gpu_key has 399 bytes; 1 to 31 are meant",
                                           "u.csv:3: value has 399 bytes; 1 to 63 are meant",
                                           "u.csv:3: source has 399 bytes; 1 to 199 are meant"};
    assert_refused(row, COUNT(expected), expected);
}

/* A file that is refused changes nothing; one that is taken does. */
static void test_files(void **state)
{
    (void)state;
    char path[] = "/tmp/dtp_catalog_XXXXXX";
    FILE *file = fdopen(mkstemp(path), "w");
    fputs(GPU_HEADER "h100-sxm,power_w,500,w,assumed,x\nh100-sxm,sm_count,0,count,assumed,x\n", file);
    fclose(file);
    dtp_catalog_destroy(&mine);
    memset(&faults, 0, sizeof faults);
    assert_int_equal(dtp_catalog_load(SCENARIOS, &mine, &faults), DTP_OK);
    assert_int_equal(dtp_catalog_add(path, &mine, &faults), DTP_BAD_INPUT);
    assert_int_equal(faults.count, 1);
    assert_close(dtp_catalog_gpu(&mine, "h100", NULL, 0, NULL)->power_w, 700, 0);

    file = fopen(path, "w");
    fputs(GPU_HEADER "h100-sxm,power_w,500,w,assumed,x\n", file);
    fclose(file);
    assert_int_equal(dtp_catalog_add(path, &mine, &faults), DTP_OK);
    assert_close(dtp_catalog_gpu(&mine, "h100", NULL, 0, NULL)->power_w, 500, 0);
    unlink(path);

    assert_int_equal(dtp_catalog_add(path, &mine, &faults), DTP_BAD_INPUT);
    struct dtp_catalog none;
    assert_int_equal(dtp_catalog_load("/nonexistent", &none, &faults), DTP_BAD_INPUT);
    assert_int_equal(none.gpu_count, 0);
    dtp_catalog_destroy(&mine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_add_a_gpu),
        cmocka_unit_test(test_override_one_figure),
        cmocka_unit_test(test_add_machines_prices_models_aliases),
        cmocka_unit_test(test_all_faults_of_a_gpu_file),
        cmocka_unit_test(test_missing_quantities),
        cmocka_unit_test(test_bad_machines),
        cmocka_unit_test(test_bad_prices_and_aliases),
        cmocka_unit_test(test_bad_headers),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_files),
    };
    return cmocka_run_group_tests(tests, load_catalog, drop_catalog);
}
