/* What torchtitan's checkpointing by operators keeps of a layer, by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lib/job_of_settings.h"
#include "plan/second_matmuls.h"

#define BIT(suffix) DTP_TENSOR_BIT(suffix)

static void kept_by(const char *settings, enum dtp_layer_mlp mlp, struct dtp_layer_tensors *tensors)
{
    static struct dtp_job job;
    struct dtp_faults faults;
    assert_int_equal(job_of_settings(settings, &job, &faults), DTP_OK);
    if (job.plan.ep > 1) /* a rank's net */
        job.transformer.expert_ranks = job.plan.ep;
    dtp_layer_tensors_of(&job.transformer, mlp, &job.cluster, &job.plan, tensors);
}

#define LLAMA "model=llama-3-8b gpu=h200-sxm gpus=8 seq=8192 checkpointing=selective strategy=full_shard "

/* q, v, gate and down are the first, third, fifth and seventh matmul; flash attention's result and state. */
static void test_dense(void **state)
{
    (void)state;
    struct dtp_layer_tensors t;
    const uint64_t eager = BIT(INPUT) | BIT(Q_RAW) | BIT(V) | BIT(GATE) | BIT(DOWN) | BIT(CORE) | BIT(CORE_STATE);
    kept_by(LLAMA, DTP_LAYER_DENSE, &t);
    assert_int_equal(t.kept, eager);
    assert_int_equal(t.terms_kept, 0);
    kept_by(LLAMA "compile=true", DTP_LAYER_DENSE, &t);
    assert_int_equal(t.kept, eager & ~BIT(DOWN));
}

/* 8,192 tokens over two ranks: 112 MiB of gate, 64 of down's terms, 32 each of q, attention, its sum, down's sum and
 * the input, 8 of v: what PyTorch's allocator had of each layer (reports/h200/torchtitan_runs.json, m04). */
static void test_tensor_parallel(void **state)
{
    (void)state;
    struct dtp_layer_tensors t;
    const uint64_t mib = 1 << 20, tokens = 8192, state_bytes = 8192 * 16 * 4;
    kept_by(LLAMA "tp=2", DTP_LAYER_DENSE, &t);
    assert_true(t.kept & BIT(MIDDLE));
    assert_int_equal(tokens * t.terms_kept, 64 * mib);
    uint64_t bytes = tokens * (dtp_layer_tensors_bytes(&t, t.kept) + t.terms_kept);
    /* of a slice's heads and columns a plan of all ranks has both halves */
    assert_int_equal(bytes, 2 * (112 + 32 + 32 + 8) * mib + 2 * state_bytes + (3 * 32 + 64) * mib);
    kept_by(LLAMA "tp=2 compile=true", DTP_LAYER_DENSE, &t);
    assert_int_equal(t.terms_kept, 0);
    assert_int_equal(t.kept, BIT(INPUT) | BIT(Q_RAW) | BIT(V) | BIT(GATE) | BIT(CORE) | BIT(CORE_STATE) | BIT(MIDDLE));
}

/* A router's matmul is not counted and experts' are none; latent attention's models keep what all-to-all brought. */
static void test_experts(void **state)
{
    (void)state;
    struct dtp_layer_tensors t;
    kept_by("model=qwen3-30b-a3b gpu=h200-sxm gpus=8 seq=4096 strategy=full_shard ep=8 checkpointing=selective",
            DTP_LAYER_EXPERTS, &t);
    assert_int_equal(t.kept, BIT(INPUT) | BIT(Q_RAW) | BIT(V) | BIT(CORE) | BIT(CORE_STATE));
    kept_by("model=deepseek-v2-lite gpu=h200-sxm gpus=8 seq=4096 strategy=full_shard ep=8 checkpointing=selective",
            DTP_LAYER_EXPERTS, &t);
    assert_int_equal(t.kept, BIT(INPUT) | BIT(Q_RAW) | BIT(KV_RAW) | BIT(SHARED_GATE) | BIT(SHARED_DOWN) | BIT(CORE) |
                                 BIT(CORE_STATE) | BIT(RECEIVED) | BIT(RETURNED));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_dense), cmocka_unit_test(test_tensor_parallel),
                                       cmocka_unit_test(test_experts)};
    return cmocka_run_group_tests(tests, load_catalog, drop_catalog);
}
