/* Loss and every gradient of a whole model on the host's cores against PyTorch's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "lib/golden_steps.h"

static enum dtp_status golden_device(struct dtp_device **out, struct dtp_faults *faults)
{
    return dtp_device_host_create(&(struct dtp_device_options){.threads = 1}, out, faults);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(golden_fp32),        cmocka_unit_test(golden_bf16),
                                       cmocka_unit_test(golden_blocks),      cmocka_unit_test(golden_experts),
                                       cmocka_unit_test(golden_latent),      cmocka_unit_test(golden_steps),
                                       cmocka_unit_test(golden_two_hundred), cmocka_unit_test(golden_adapters)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
