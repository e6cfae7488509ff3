/* What stands on the host and on NVMe where state is offloaded, and what of it stays on the GPU: by hand, LLaMA-7B. */
#include "runtime/runtimes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "lib/memory_fixture.h"

/* CPUOffloadPolicy pins each fp32 shard and gradient as a tensor of its own, rounded up to a power of two. Over 8 GPUs
 * a layer's four attention matrices are 8 MiB each; gate, up and down 21.5 MiB -> 32 MiB each; two norms 2 KiB. Root:
 * embedding and head 62.5 -> 64 MiB, norm 2 KiB. Moments are pageable and exact. */
static void test_torch_offload(void **state)
{
    (void)state;
    struct dtp_plan plan = plan_of(&dtp_runtime_torch, DTP_FULL_SHARD, "bf16-mixed");
    plan.offload = DTP_OFFLOAD_PARAMS;
    struct dtp_memory m = predict(&plan, &eight_gpus);
    assert_int_equal(states(&m), 0);
    uint64_t mib = 1u << 20, layer = 4 * 8 * mib + 3 * 32 * mib + 2 * 2048, root = 2 * 64 * mib + 2048;
    assert_int_equal(m.host_bytes, 8 * (2 * (32 * layer + root) + 8 * (PARAMETERS / 8)));
}

/* A node holds what is offloaded, or the job does not run: with 2 % to spare tightly, one byte short not at all.
 * Of a rack's memory a GPU has its share: 1/72 of what all trays hold together. */
static void test_host_memory_is_judged(void **state)
{
    (void)state;
    struct dtp_plan plan = plan_of(&dtp_runtime_torch, DTP_FULL_SHARD, "bf16-mixed");
    plan.offload = DTP_OFFLOAD_PARAMS;
    struct dtp_cluster cluster = eight_gpus;
    struct dtp_memory m = predict(&plan, &cluster);
    assert_int_equal(m.verdict, DTP_VERDICT_FITS);
    assert_true(m.host_capacity_bytes == cluster.machine.host_memory_bytes);
    cluster.machine.host_memory_bytes = m.host_bytes + m.host_bytes / 50;
    assert_int_equal(predict(&plan, &cluster).verdict, DTP_VERDICT_TIGHT);
    cluster.machine.host_memory_bytes = m.host_bytes - 1;
    assert_int_equal(predict(&plan, &cluster).verdict, DTP_VERDICT_OOM);
    plan.offload = DTP_OFFLOAD_NONE;
    assert_int_equal(predict(&plan, &cluster).verdict, DTP_VERDICT_FITS);
    cluster.machine.gpus = 72;
    assert_true(dtp_cluster_host_share(&cluster, 7200) == 800);
    plan = plan_of(&dtp_runtime_deepspeed, DTP_ZERO3, "bf16-mixed");
    plan.offload = DTP_OFFLOAD_NVME;
    cluster = eight_gpus;
    cluster.machine.nvme_bytes = 18 * PARAMETERS - 1;
    assert_int_equal(predict(&plan, &cluster).verdict, DTP_VERDICT_OOM);
}

/* ZeRO-Offload pins fp32 master and gradients (3.14 -> 4 GiB each) and bf16 staging (1.57 -> 2 GiB). Stage 3 pins bf16
 * gradients instead of the staging, and offloaded bf16 parameters beside them. On NVMe: master, two moments and
 * gradients in fp32, bf16 parameters: 18 bytes; in memory four fp32 buffers of the partition, which is smaller than a
 * sub-group, bf16 gradients, and 5e8 bf16 parameters (0.93 -> 1 GiB). */
static void test_deepspeed_offload(void **state)
{
    (void)state;
    struct dtp_plan plan = plan_of(&dtp_runtime_deepspeed, DTP_ZERO2, "bf16-mixed");
    plan.offload = DTP_OFFLOAD_OPTIMIZER;
    struct dtp_memory m = predict(&plan, &eight_gpus);
    uint64_t gib = 1u << 30;
    assert_int_equal(m.optimizer_bytes, 0);
    assert_int_equal(m.params_bytes, 2 * PARAMETERS);
    assert_int_equal(m.host_bytes, 8 * (2 * 4 * gib + 2 * gib + 8 * (PARAMETERS / 8)));
    assert_int_equal(m.nvme_bytes, 0);
    plan.strategy = DTP_ZERO3;
    assert_int_equal(predict(&plan, &eight_gpus).host_bytes, m.host_bytes);
    plan.offload = DTP_OFFLOAD_PARAMS;
    assert_int_equal(predict(&plan, &eight_gpus).host_bytes, m.host_bytes + 8 * 2 * gib);
    plan.offload = DTP_OFFLOAD_NVME;
    m = predict(&plan, &eight_gpus);
    assert_int_equal(m.params_bytes, 0);
    assert_int_equal(m.nvme_bytes, 18 * PARAMETERS);
    assert_int_equal(m.host_bytes, 8 * (4 * 4 * gib + 2 * gib + gib));
}

/* CPUOffloadPolicy at the first layer's copy-out: weights 2 and flat buffer 2 of the root, 2 V h + h parameters, and of
 * the layer, with its cast shard 2/N and the fp32 shard that came from, 4/N. */
static void test_offloaded_root(void **state)
{
    (void)state;
    struct dtp_plan plan = plan_of(&dtp_runtime_torch, DTP_FULL_SHARD, "bf16-mixed");
    plan.offload = DTP_OFFLOAD_PARAMS;
    plan.checkpointing = DTP_CHECKPOINT_FULL;
    plan.sequence = 16;
    struct dtp_memory m = predict(&plan, &eight_gpus);
    uint64_t root = 2 * (uint64_t)VOCAB * 4096 + 4096;
    assert_int_equal(m.phase_bytes[DTP_PHASE_FORWARD_END][DTP_OWNER_WEIGHTS] +
                         m.phase_bytes[DTP_PHASE_FORWARD_END][DTP_OWNER_GATHER],
                     4 * (root + LAYER) + (2 + 4) * LAYER / 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_torch_offload),
                                       cmocka_unit_test(test_host_memory_is_judged),
                                       cmocka_unit_test(test_deepspeed_offload), cmocka_unit_test(test_offloaded_root)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
