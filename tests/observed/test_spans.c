/* Sums of spans by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "observed/kernel_kind.h"
#include "observed/spans.h"

#include <math.h>
#include <string.h>

static struct dtp_faults faults;

static void near(double is, double meant)
{
    if (!(fabs(is - meant) < 1e-9))
        fail_msg("%.9f, not %.9f", is, meant);
}

/* Two steps of 100 ms. In each: a matmul 10..30, an all-gather 20..50, of which 30..40 nothing computes beside, another
 * matmul 40..60, the optimizer 60..70; then nothing to 100, in which the host launches 70..75 and does nothing for 25.
 */
static void test_sums(void **state)
{
    struct dtp_spans spans = {0};
    struct dtp_observed_time time;
    (void)state;
    for (int i = 0; i < 2; i++) {
        double t = 0.1 * i;
        assert_true(dtp_spans_add(&spans, DTP_SPANS_STEP, t, t + 0.1));
        assert_true(dtp_spans_add_gpu(&spans, "ncclDevKernel_AllGather_RING_LL(ncclDevComm*)", t + 0.02, t + 0.05));
        assert_true(dtp_spans_add_gpu(&spans, "nvjet_sm90_tst_256x128", t + 0.01, t + 0.03));
        assert_true(dtp_spans_add_gpu(&spans, "cutlass_80_simt_sgemm_256x128_8x4_nn_align1", t + 0.04, t + 0.06));
        assert_true(dtp_spans_add_gpu(&spans, "multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>>",
                                      t + 0.06, t + 0.07));
        assert_true(dtp_spans_add(&spans, DTP_SPANS_HOST, t, t + 0.075));
    }
    assert_int_equal(dtp_spans_sum(&spans, "x", &time, &faults), DTP_OK);
    assert_int_equal(time.steps, 2);
    near(time.step_s, 0.1);
    near(time.kind_s[DTP_OBSERVED_MATMUL], 0.04);
    near(time.kind_s[DTP_OBSERVED_OPTIMIZER], 0.01);
    near(time.kind_s[DTP_OBSERVED_ALL_GATHER], 0.03);
    near(time.exposed_s[DTP_OBSERVED_ALL_GATHER], 0.01);
    near(time.wide_matmul_s, 0.02);
    near(time.wide_matmuls, 1);
    near(time.matmuls, 2);
    near(time.fused_optimizers, 1);
    near(time.idle_s, 0.04); /* 0..10 and 70..100 */
    near(time.host_gap_s, 0.025);
    dtp_spans_release(&spans);
}

/* Steps that nobody marked lie between bursts of the optimizer: three make two steps. */
static void test_steps_of_bursts(void **state)
{
    struct dtp_spans spans = {0};
    struct dtp_observed_time time;
    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_true(dtp_spans_add_gpu(&spans, "nvjet_sm90_tst_256x128", 0.05 * i, 0.05 * i + 0.03));
        assert_true(dtp_spans_add_gpu(&spans, "multi_tensor_apply_kernel<A>", 0.05 * i + 0.03, 0.05 * i + 0.04));
        assert_true(dtp_spans_add_gpu(&spans, "multi_tensor_apply_kernel<B>", 0.05 * i + 0.04, 0.05 * i + 0.05));
    }
    assert_int_equal(dtp_spans_sum(&spans, "x", &time, &faults), DTP_OK);
    assert_int_equal(time.steps, 2);
    near(time.step_s, 0.05);
    near(time.kind_s[DTP_OBSERVED_MATMUL], 0.03);
    assert_false(time.host_known);
    near(time.host_gap_s, 0);
    dtp_spans_release(&spans);
}

static void test_nothing(void **state)
{
    struct dtp_spans spans = {0};
    struct dtp_observed_time time;
    (void)state;
    memset(&faults, 0, sizeof faults);
    assert_int_equal(dtp_spans_sum(&spans, "x", &time, &faults), DTP_BAD_INPUT);
    assert_true(dtp_spans_add_gpu(&spans, "k", (double)NAN, 1) && dtp_spans_add_gpu(&spans, "k", 2, 1));
    assert_int_equal(spans.gpu_count, 0);
    assert_true(dtp_spans_add_gpu(&spans, "k", 1, 2));
    memset(&faults, 0, sizeof faults);
    assert_int_equal(dtp_spans_sum(&spans, "x", &time, &faults), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "says no steps"));
    dtp_spans_release(&spans);
}

/* As they stood in traces of an H200, PyTorch 2.11, and of NCCL. */
static void test_kernels(void **state)
{
    static const struct {
        const char *name;
        enum dtp_observed_kind kind;
        enum dtp_kernel_trait trait;
    } rows[] = {
        {"sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8", DTP_OBSERVED_MATMUL, DTP_TRAIT_WIDE},
        {"nvjet_sm90_tst_192x192_64x4_1x2_h_bz_coopB_TNN", DTP_OBSERVED_MATMUL, DTP_TRAIT_PLAIN},
        {"void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128", DTP_OBSERVED_ATTENTION,
         DTP_TRAIT_FORWARD_2},
        {"void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<", DTP_OBSERVED_ATTENTION,
         DTP_TRAIT_BACKWARD},
        {"void pytorch_flash::flash_bwd_dot_do_o_kernel<true", DTP_OBSERVED_ATTENTION, DTP_TRAIT_PLAIN},
        {"cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma", DTP_OBSERVED_ATTENTION, DTP_TRAIT_BACKWARD},
        {"void (anonymous namespace)::softmax_warp_forward<float, float", DTP_OBSERVED_ELEMENTWISE, DTP_TRAIT_SOFTMAX},
        {"cunn_SoftMaxForward<4, float, float, float, LogSoftMaxForwardEpilogue>", DTP_OBSERVED_ELEMENTWISE,
         DTP_TRAIT_PLAIN},
        {"ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", DTP_OBSERVED_REDUCE_SCATTER, DTP_TRAIT_PLAIN},
        {"triton_poi_fused_add_mul_3", DTP_OBSERVED_ELEMENTWISE, DTP_TRAIT_COMPILED},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct dtp_kernel_kind is = dtp_kernel_kind_of(rows[i].name);
        if (is.kind != rows[i].kind || is.trait != rows[i].trait)
            fail_msg("%s: %d %d", rows[i].name, (int)is.kind, (int)is.trait);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sums), cmocka_unit_test(test_steps_of_bursts),
                                       cmocka_unit_test(test_nothing), cmocka_unit_test(test_kernels)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
