/* Names as drivers write them, with the memory they report, and the catalogue's row that each is. */
#include "machine/catalog.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "lib/shipped_catalog.h"

static const struct {
    const char *name, *key; /* NULL: none of the catalogue */
    double memory_gib;
} devices[] = {
    {"NVIDIA H200", "h200-sxm", 139.8},
    {"NVIDIA H100 80GB HBM3", "h100-sxm", 79.2},
    {"NVIDIA H100 PCIe", "h100-pcie", 79.2},
    {"NVIDIA H100 NVL", "h100-nvl", 93.1},
    {"NVIDIA A100-SXM4-80GB", "a100-80-sxm", 79.2},
    {"NVIDIA A100 80GB PCIe", "a100-80-pcie", 79.2},
    {"NVIDIA A100-SXM4-40GB", "a100-40-sxm", 39.4},
    {"NVIDIA A10", "a10", 22.1},
    {"NVIDIA A10G", NULL, 22.1}, /* half of an A10's tensor cores */
    {"Tesla V100-SXM2-32GB", "v100-32-sxm", 31.7},
    {"NVIDIA GeForce RTX 4090", "rtx-4090", 23.6},
    {"NVIDIA L4", "l4", 22.1},
    {"NVIDIA L40S", "l40s", 44.4},
    {"NVIDIA B200", "b200-sxm", 178.4},
    {"NVIDIA GB200", "gb200", 184.3},
    {"NVIDIA H100 80GB HBM3", NULL, 9.8}, /* a slice of one */
    {"NVIDIA GeForce GTX 1080", NULL, 8},
    {"", NULL, 80},
};

static void names_find_their_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        const struct dtp_gpu *gpu =
            dtp_catalog_gpu_named(&catalog, devices[i].name, (uint64_t)(devices[i].memory_gib * 0x1p30));
        const char *key = gpu ? gpu->key : "none", *wanted = devices[i].key ? devices[i].key : "none";
        if (strcmp(key, wanted) != 0)
            fail_msg("\"%s\" of %g GiB is taken for %s, not for %s", devices[i].name, devices[i].memory_gib, key,
                     wanted);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(names_find_their_rows)};
    return cmocka_run_group_tests(tests, load_catalog, drop_catalog);
}
