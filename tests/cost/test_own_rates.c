/* Rates that the catalogue states of a GPU for itself, of the MI300X: what its sources measured comes out, and a part
 * without them has what the constants of the model say. */
#include "cost/calibration.h"
#include "cost/collective_cost.h"
#include "cost/op_cost.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "lib/hardware.h"
#include "lib/shipped_catalog.h"

static struct dtp_gpu mi300x(void)
{
    const struct dtp_gpu *gpu = dtp_catalog_gpu(&catalog, "mi300x", NULL, 0, NULL);
    assert_non_null(gpu);
    return *gpu;
}

/* Copies at 4.11 TB/s, Triton's RMSNorm at 3.0; fp8 at 1,064 TFLOP/s, bf16 at 668. */
static void test_memory_and_matmuls(void **state)
{
    (void)state;
    struct dtp_gpu gpu = mi300x(), plain = gpu;
    const struct dtp_execution compiled = {.compute = DTP_BF16};
    assert_near(dtp_copy_bytes_per_s(&gpu), 4.11e12, 1e-3);
    assert_near(dtp_memory_kernel_bytes_per_s(&gpu, &compiled, DTP_KERNEL_FUSED), 3.0e12, 5e-3);
    assert_near(dtp_matmul_flops_per_s(&gpu, DTP_FP8), 1064e12, 1e-3);
    assert_near(dtp_matmul_flops_per_s(&gpu, DTP_BF16), 668e12, 2e-3);
    plain.memory_fraction = plain.sm_memory_fraction = plain.fp8_matmul_fraction = 0;
    assert_near(dtp_copy_bytes_per_s(&plain), 5.3e12 * dtp_calibration.hbm_fraction, 1e-12);
    assert_near(dtp_matmul_flops_per_s(&plain, DTP_FP8), 0.51 * 2614.9e12, 1e-12);
    assert_true(dtp_memory_kernel_bytes_per_s(&plain, &compiled, DTP_KERNEL_FUSED) > 3.7e12);
}

/* 16,384 keys that each of 16,384 queries sees, 16 heads of 128: 4 x 16384 x 2048 FLOPs a token at 340 TFLOP/s, 2.5
 * times as many back at 202. FlashAttention-1 and our own kernels were not what was measured. */
static void test_attention(void **state)
{
    (void)state;
    struct dtp_gpu gpu = mi300x(), plain = gpu;
    struct dtp_attention_shape shape = {
        .heads = 16, .kv_heads = 16, .head_dim = 128, .queries = 16384, .keys = 16384, .kernel = DTP_ATTENTION_FLASH2};
    const struct dtp_execution execution = {.compute = DTP_BF16};
    const double flops = 4 * 16384.0 * 2048 * 16384;
    struct dtp_attention_time time = dtp_attention_time(&gpu, &shape, &execution, 16384);
    assert_near(flops / time.forward_s, 340e12, 5e-3);
    assert_near(2.5 * flops / time.backward_s, 202e12, 5e-3);
    plain.flash_backward_fraction = 0; /* one of the two may be stated alone */
    assert_near(dtp_attention_time(&plain, &shape, &execution, 16384).forward_s, time.forward_s, 1e-12);
    assert_near(dtp_attention_time(&plain, &shape, &execution, 16384).backward_s * dtp_calibration.flash2_backward,
                time.backward_s * 0.311, 1e-9);
    shape.kernel = DTP_ATTENTION_FLASH1;
    struct dtp_attention_time older = dtp_attention_time(&gpu, &shape, &execution, 16384);
    plain.flash_forward_fraction = 0;
    assert_near(dtp_attention_time(&plain, &shape, &execution, 16384).forward_s, older.forward_s, 1e-12);
}

/* RCCL's all-reduce of 8 GB on 8 GPUs: 317 of 448 GB/s, of 134 MB, its FIFOs filling, 291. */
static void test_ring(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(mi300x(), 8, 8);
    struct dtp_group group = dtp_group_consecutive(&cluster, 8);
    struct dtp_collective_cost cost = dtp_collective_cost(&cluster, &group, DTP_ALL_REDUCE);
    const double sent = 2.0 * 7 / 8 * 134217728;
    assert_near(dtp_group_bus_bytes_per_s(&cluster, &group), 317e9, 2e-3);
    assert_near(sent / dtp_collective_time(&cost, sent), 291e9, 0.05);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_memory_and_matmuls), cmocka_unit_test(test_attention),
                                       cmocka_unit_test(test_ring)};
    return cmocka_run_group_tests(tests, load_catalog, drop_catalog);
}
