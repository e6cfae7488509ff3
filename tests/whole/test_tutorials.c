/* The arithmetic of the tutorials that people bring along: what is right in it must come out, what is wrong in it must
 * not. LLaMA-7B has 6,738,415,616 parameters; figures of "7B" are those times 7e9 / 6,738,415,616. */
#include "closed/activations.h"
#include "job/estimate.h"
#include "runtime/runtimes.h"
#include "closed/closed_form.h"
#include "cost/collective_cost.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lib/hardware.h"
#include "lib/llama_7b.h"

static struct dtp_prediction predict(const struct dtp_runtime *runtime, enum dtp_strategy strategy,
                                     const char *precision, uint32_t gpus)
{
    struct dtp_transformer t = llama_7b();
    struct dtp_cluster cluster = test_cluster(test_a100(), gpus, 8);
    struct dtp_plan plan = dtp_plan_default();
    struct dtp_prediction prediction;
    plan.runtime = runtime, plan.strategy = strategy, plan.ddp_bucket_view = true;
    assert_true(dtp_precision_recipe(precision, &plan.precision));
    assert_int_equal(dtp_plan_resolve(&plan, &t, &cluster, NULL), DTP_OK);
    assert_int_equal(dtp_estimate(&t, &cluster, &plan, &prediction, NULL), DTP_OK);
    return prediction;
}

/* Model states in 10^9 bytes as if the model had 7e9 parameters. */
static double states_of_7b(const struct dtp_runtime *runtime, enum dtp_strategy strategy, const char *precision,
                           uint32_t gpus)
{
    struct dtp_memory m = predict(runtime, strategy, precision, gpus).memory;
    return (double)(m.params_bytes + m.grads_bytes + m.optimizer_bytes) * 7 / (double)PARAMETERS;
}

static void test_model_states(void **state)
{
    (void)state;
    assert_near(states_of_7b(&dtp_runtime_torch, DTP_DDP, "fp32", 8), 112, 1e-9);
    assert_near(states_of_7b(&dtp_runtime_torch, DTP_ZERO1, "fp32", 8), 63, 1e-9);
    /* an eighth of the gradients, but of whole parameters: two reach beyond the rank's part */
    assert_near(states_of_7b(&dtp_runtime_deepspeed, DTP_ZERO2, "fp32", 8), 38.5, 5e-3);
    assert_near(states_of_7b(&dtp_runtime_torch, DTP_ZERO3, "fp32", 8), 14, 1e-9);
    assert_near(states_of_7b(&dtp_runtime_torch, DTP_DDP, "bf16", 8), 84, 1e-9);
    assert_near(states_of_7b(&dtp_runtime_torch, DTP_FULL_SHARD, "bf16", 4) / 7 * 13, 39, 1e-9);
}

/* Of an all-gather in a cluster of 8 whose long rings gather `bytes_per_s`, latency aside. */
static double seconds_at(double bytes, double bytes_per_s)
{
    struct dtp_cluster cluster = test_cluster(test_a100(), 8, 8);
    struct dtp_group group = dtp_group_consecutive(&cluster, 8);
    struct dtp_collective_cost cost = dtp_collective_cost(&cluster, &group, DTP_ALL_GATHER);
    cluster.gpu.link_bytes_per_s *= bytes_per_s * cost.s_per_byte[DTP_PROTOCOL_SIMPLE];
    cost = dtp_collective_cost(&cluster, &group, DTP_ALL_GATHER);
    return dtp_collective_time(&cost, bytes) - cost.latency_s[DTP_PROTOCOL_SIMPLE];
}

/* 3 * 2 bytes * 7e9 * 7/8 = 36.75 GB a step: 61 ms at 600 GB/s and 368 ms at 100 GB/s, latency aside. NVLink's 600 GB/s
 * are both directions; one direction of an A100 takes twice as long. */
static void test_full_shard_step(void **state)
{
    (void)state;
    struct dtp_communication c = predict(&dtp_runtime_torch, DTP_FULL_SHARD, "bf16", 8).communication;
    double sent = (double)c.total_bytes * 7e9 / (double)PARAMETERS;
    assert_near(sent, 36.75e9, 1e-9);
    assert_near(seconds_at(sent, 600e9), 61.25e-3, 1e-9);
    assert_near(seconds_at(sent, 100e9), 367.5e-3, 1e-9);
    assert_near(seconds_at(sent, test_a100().link_bytes_per_s), 122.5e-3, 1e-9);
}

/* A ring all-reduce of B bytes sends 2 (n-1)/n B from each of n ranks: DDP's 4 bytes a gradient. */
static void test_ring_all_reduce(void **state)
{
    (void)state;
    for (uint64_t n = 1; n <= 64; n *= 2) {
        struct dtp_communication c = predict(&dtp_runtime_torch, DTP_DDP, "fp32", (uint32_t)n).communication;
        assert_int_equal(c.bytes[DTP_ALL_REDUCE], 2 * (n - 1) * (4 * PARAMETERS / n));
    }
}

/* "512 MB": [4, 2048, 4096] in fp32 are 134 MB. "H S^2": twice the sequence, or twice the width and heads, is twice the
 * bytes, but for the statistics of two norms, 4 bytes a token each. */
static void test_activations(void **state)
{
    (void)state;
    struct dtp_transformer t = llama_7b(), wide = t;
    struct dtp_cluster cluster = test_cluster(test_a100(), 8, 8);
    struct dtp_plan plan = dtp_plan_default();
    struct dtp_activations once, twice;
    assert_true(dtp_precision_recipe("fp32", &plan.precision));
    dtp_activations_count(&t, &cluster, &plan, &once);
    assert_int_equal(4 * 2048 * once.layer_input, 134217728);
    plan.sequence *= 2;
    dtp_activations_count(&t, &cluster, &plan, &twice);
    assert_int_equal(twice.layer_all, once.layer_all); /* a token, whatever the sequence */
    wide.hidden *= 2, wide.heads *= 2, wide.kv_heads *= 2, wide.ffn *= 2;
    dtp_activations_count(&wide, &cluster, &plan, &twice);
    assert_int_equal(twice.layer_all - 8, 2 * (once.layer_all - 8));
}

/* ZeRO-3 saves N times, not 16 times; shard_grad_op shards the parameters at rest, which ZeRO-2 does not. */
static void test_sharding(void **state)
{
    (void)state;
    for (uint32_t n = 2; n <= 64; n *= 2)
        assert_near(states_of_7b(&dtp_runtime_torch, DTP_ZERO3, "fp32", n), 112.0 / n, 1e-6);
    assert_int_equal(predict(&dtp_runtime_torch, DTP_SHARD_GRAD_OP, "fp32", 8).memory.params_bytes, 4 * PARAMETERS / 8);
    assert_int_equal(predict(&dtp_runtime_deepspeed, DTP_ZERO2, "fp32", 8).memory.params_bytes, 4 * PARAMETERS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_model_states), cmocka_unit_test(test_full_shard_step),
                                       cmocka_unit_test(test_ring_all_reduce), cmocka_unit_test(test_activations),
                                       cmocka_unit_test(test_sharding)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
