/* Loss and every gradient of a whole model on the GPU against PyTorch's: what test_goldens does on the host's cores.
 * test_gpu_goldens [FOLDER of the golden files [NAME of tests, with *]]; 77: no GPU here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "lib/golden_steps.h"

#define SKIPPED 77

static enum dtp_status golden_device(struct dtp_device **out, struct dtp_faults *faults)
{
    return dtp_device_cuda_create(&(struct dtp_device_options){.brief_search = true}, out, faults);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(golden_fp32),        cmocka_unit_test(golden_bf16),
                                       cmocka_unit_test(golden_blocks),      cmocka_unit_test(golden_experts),
                                       cmocka_unit_test(golden_latent),      cmocka_unit_test(golden_steps),
                                       cmocka_unit_test(golden_two_hundred), cmocka_unit_test(golden_adapters)};
    uint32_t gpus = 0;
    golden_folder = argc > 1 ? argv[1] : golden_folder;
    if (dtp_device_cuda_count(&gpus, NULL) != DTP_OK || gpus == 0) {
        printf("no GPU: nothing to compare\n");
        return SKIPPED;
    }
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
