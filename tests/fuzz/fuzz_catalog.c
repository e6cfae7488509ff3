/* libFuzzer target: any table added to the shipped catalogue is taken or refused, and what is taken is sound.
 *
 *   cmake --preset fuzz && cmake --build --preset fuzz --target fuzz_catalog
 *   build-fuzz/tests/fuzz_catalog -max_total_time=600 -max_len=4096 tests/corpus/catalog */
#include "machine/catalog.h"
#include "machine/catalog_rows.h"

#include "fuzz_fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A few rows instead of the files: the whole catalogue a run would leave no time for the rows that are fuzzed. */
static const char base_gpus[] =
    "gpu_key,quantity,value,unit,kind,source\n"
    "g,name,G,text,assumed,x\ng,architecture,ada,text,assumed,x\ng,fp32_flops_per_s,1e13,flops_per_s,assumed,x\n"
    "g,fp16_flops_per_s,2e13,flops_per_s,assumed,x\ng,matmul_fraction,0.8,fraction,assumed,x\n"
    "g,memory_bytes,10000000000,bytes,assumed,x\ng,memory_bytes_per_s,2e11,bytes_per_s,assumed,x\n"
    "g,link,pcie,text,assumed,x\ng,link_bytes_per_s,3.2e10,bytes_per_s,assumed,x\n"
    "g,pcie_bytes_per_s,3.2e10,bytes_per_s,assumed,x\ng,sm_count,20,count,assumed,x\ng,power_w,100,w,assumed,x\n";

static enum dtp_status add(const char *name, const char *text, size_t bytes, struct dtp_catalog *catalog,
                           struct dtp_faults *faults)
{
    struct dtp_table *table = NULL;
    enum dtp_status status = dtp_table_parse(name, text, bytes, &table, faults);
    if (status == DTP_OK)
        status = dtp_catalog_add_table(table, true, catalog, faults);
    dtp_table_destroy(table);
    return status;
}

static void expect_sound(const struct dtp_catalog *catalog)
{
    for (size_t i = 0; i < catalog->gpu_count; i++) {
        const struct dtp_gpu *gpu = &catalog->gpus[i];
        expect(*gpu->key && memchr(gpu->key, 0, sizeof gpu->key) && memchr(gpu->name, 0, sizeof gpu->name));
        for (int d = 0; d < DTP_DTYPE_COUNT; d++)
            expect(isfinite(gpu->peak_flops_per_s[d]) && gpu->peak_flops_per_s[d] >= 0);
        expect(gpu->memory_bytes > 0 && gpu->sm_count > 0 && gpu->matmul_fraction > 0 && gpu->matmul_fraction <= 1);
        expect(dtp_catalog_gpu(catalog, gpu->key, NULL, 0, NULL) == gpu);
    }
    for (size_t i = 0; i < catalog->machine_count; i++) {
        const struct dtp_machine *machine = &catalog->machines[i];
        expect(machine->gpus > 0 && machine->host_memory_bytes > 0 && isfinite(machine->network_bytes_per_s));
        expect(!*machine->gpu_key || dtp_catalog_gpu(catalog, machine->gpu_key, NULL, 0, NULL));
        expect(dtp_catalog_machine(catalog, machine->key, NULL, 0, NULL) == machine);
    }
    for (size_t i = 0; i < catalog->price_count; i++) {
        const struct dtp_price *price = &catalog->prices[i];
        expect(price->low > 0 && price->low <= price->typical && price->typical <= price->high);
        expect(dtp_catalog_price(catalog, price->gpu_key) == price);
    }
    for (size_t i = 0; i < catalog->provenance_count; i++)
        expect(*catalog->provenance[i].source && *catalog->provenance[i].kind &&
               isfinite(catalog->provenance[i].value));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct dtp_faults faults;
    forget_faults(&faults);
    struct dtp_catalog catalog = {0};
    expect(add("base.csv", base_gpus, sizeof base_gpus - 1, &catalog, &faults) == DTP_OK);
    enum dtp_status status = add("fuzz.csv", (const char *)data, bytes, &catalog, &faults);
    expect_faults(status, &faults);
    if (status == DTP_OK)
        expect_sound(&catalog);
    dtp_catalog_destroy(&catalog);
    return 0;
}
