/* What PyTorch's tensor parallel ranks call on DTensors: counted by hand. */
#include "closed/tensor_calls.h"
#include "cost/calibration.h"
#include "runtime/runtimes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>

#include "lib/hardware.h"

static const struct dtp_cluster cluster; /* nothing measured */

static struct dtp_transformer llama(void)
{
    struct dtp_transformer transformer = dtp_transformer_default();
    transformer.layers = 32, transformer.hidden = 4096, transformer.heads = transformer.kv_heads = 32;
    transformer.head_dim = 128, transformer.ffn = 11008, transformer.vocab = 32000;
    return transformer;
}

/* q, k, v, output, gate, up and down are matrices of their own. */
static struct dtp_plan tensor_parallel(bool compile)
{
    struct dtp_plan plan = dtp_plan_default();
    plan.runtime = &dtp_runtime_torch, plan.tp = 4, plan.sequence_parallel = true, plan.compile = compile;
    return plan;
}

/* What is counted of a slice besides, whose layers are no DTensors: of a compiled block two calls, and three hooks of a
 * unit that take longer here; eager ones take as long. */
static double of_slice(bool compile)
{
    const double longer_s = dtp_calibration.dtensor_unit_hooks_s - dtp_calibration.unit_hooks_s;
    return compile ? 2 * dtp_calibration.compiled_call_s - 3 * longer_s : 0;
}

/* Eager: 7 linears of three calls, 2 norms, 2 gathers and 2 sums; back 14 products, 2 norms of 3, the vectors' sum, 4
 * that move rows, 2 sums of norms' gradients: 54. Of these 7 + 14 + 2 + 6 are kernels, counted with all others. */
static void test_eager_layer(void **state)
{
    const double call_s = dtp_calibration.dtensor_launch_s, kernel_s = dtp_calibration.torch_launch_s;
    struct dtp_transformer transformer = llama();
    struct dtp_plan plan = tensor_parallel(false);
    (void)state;
    struct dtp_tensor_calls calls = dtp_tensor_calls_of(&transformer, &cluster, &plan);
    assert_near(calls.layer_s, 54 * call_s - 29 * kernel_s - of_slice(false), 1e-12);
    assert_near(calls.ends_s, 26 * call_s - 18 * kernel_s, 1e-12);
    assert_near(calls.step_s, 3 * call_s, 1e-12);
    assert_near(calls.table_s, 6 * call_s - 4 * kernel_s, 1e-12);
    plan.checkpointing = DTP_CHECKPOINT_FULL; /* again but for the last linear and its sum: 23, 8 of them kernels */
    calls = dtp_tensor_calls_of(&transformer, &cluster, &plan);
    assert_near(calls.layer_s, 77 * call_s - 37 * kernel_s - of_slice(false), 1e-12);
    plan.checkpointing = DTP_CHECKPOINT_SELECTIVE_MATMUL; /* of the linears k, output and up: 14, 5 of them kernels */
    calls = dtp_tensor_calls_of(&transformer, &cluster, &plan);
    assert_near(calls.layer_s, 68 * call_s - 34 * kernel_s - of_slice(false), 1e-12);
    plan.checkpointing = DTP_CHECKPOINT_EVERY_N, plan.checkpoint_every = 2; /* of every second layer as full */
    calls = dtp_tensor_calls_of(&transformer, &cluster, &plan);
    assert_near(calls.layer_s, 65.5 * call_s - 33 * kernel_s - of_slice(false), 1e-12);
    plan = tensor_parallel(false); /* two all-reduces each way instead of two pairs, and none of norms' gradients */
    plan.sequence_parallel = false;
    calls = dtp_tensor_calls_of(&transformer, &cluster, &plan);
    assert_near(calls.layer_s, 48 * call_s - 29 * kernel_s - of_slice(false), 1e-12);
}

/* Compiled, linears are one call and norms two back: 13 and 25. */
static void test_compiled_layer(void **state)
{
    const double call_s = dtp_calibration.dtensor_compiled_launch_s, kernel_s = dtp_calibration.torch_launch_s;
    struct dtp_transformer transformer = llama();
    struct dtp_plan plan = tensor_parallel(true);
    (void)state;
    struct dtp_tensor_calls calls = dtp_tensor_calls_of(&transformer, &cluster, &plan);
    assert_near(calls.layer_s, 38 * call_s - 27 * kernel_s - of_slice(true), 1e-12);
    assert_near(calls.ends_s, 21 * call_s - 13 * kernel_s, 1e-12);
}

static void test_others_have_none(void **state)
{
    struct dtp_transformer transformer = llama();
    struct dtp_plan plan = tensor_parallel(false);
    (void)state;
    plan.tp = 1;
    assert_near(dtp_tensor_calls_of(&transformer, &cluster, &plan).layer_s, 0, 0);
    plan.tp = 4, plan.runtime = &dtp_runtime_megatron;
    assert_near(dtp_tensor_calls_of(&transformer, &cluster, &plan).layer_s, 0, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_eager_layer), cmocka_unit_test(test_compiled_layer),
                                       cmocka_unit_test(test_others_have_none)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
