/* Bytes on the wire, counted by hand. */
#include "closed/closed_form.h"
#include "runtime/runtimes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "lib/llama_7b.h"

static struct dtp_communication count(const struct dtp_plan *plan, uint32_t gpus, uint32_t gpus_per_node)
{
    struct dtp_transformer t = llama_7b();
    struct dtp_cluster cluster = {.gpus = gpus, .gpus_per_node = gpus_per_node, .nodes = gpus / gpus_per_node};
    struct dtp_communication communication;
    dtp_closed_form_communication(&t, &cluster, plan, &communication);
    uint64_t sum = 0;
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++)
        sum += communication.bytes[i];
    assert_int_equal(communication.total_bytes, sum);
    assert_int_equal(communication.link_bytes + communication.network_bytes, sum);
    return communication;
}

/* The tutorials': weights gathered twice, gradients scattered once, 2 bytes each, 7/8 of them sent: 36.75 GB at 7e9. */
static void test_full_shard_bf16(void **state)
{
    (void)state;
    struct dtp_plan plan = plan_of(&dtp_runtime_torch, DTP_FULL_SHARD, "bf16");
    struct dtp_communication c = count(&plan, 8, 8);
    assert_int_equal(c.total_bytes, 3 * 2 * (PARAMETERS / 8 * 7));
    assert_int_equal(c.bytes[DTP_ALL_GATHER], 2 * 2 * (PARAMETERS / 8 * 7));
    assert_int_equal(c.bytes[DTP_REDUCE_SCATTER], 2 * (PARAMETERS / 8 * 7));
    assert_int_equal(c.count[DTP_ALL_GATHER], 2 * (LAYERS + 1));
    assert_int_equal(c.count[DTP_REDUCE_SCATTER], LAYERS + 1);
    assert_int_equal(c.network_bytes, 0);
}

/* fp32 reduction doubles the reduce-scatter: 2 + 2 + 4 bytes a parameter, 2 + 4 when weights are kept. */
static void test_fp32_reduce(void **state)
{
    (void)state;
    struct dtp_plan plan = plan_of(&dtp_runtime_torch, DTP_FULL_SHARD, "bf16-mixed");
    assert_int_equal(count(&plan, 8, 8).total_bytes, 8 * (PARAMETERS / 8 * 7));
    plan = plan_of(&dtp_runtime_torch, DTP_SHARD_GRAD_OP, "bf16-mixed");
    assert_int_equal(count(&plan, 8, 8).total_bytes, 6 * (PARAMETERS / 8 * 7));
}

/* A kept root (embedding, head, final norm: 2*32000*4096 + 4096) is gathered once. */
static void test_kept_root(void **state)
{
    (void)state;
    struct dtp_plan plan = plan_of(&dtp_runtime_torch, DTP_FULL_SHARD, "bf16-mixed");
    plan.keep_root = true;
    struct dtp_communication c = count(&plan, 8, 8);
    assert_int_equal(c.total_bytes, 8 * (PARAMETERS / 8 * 7) - 2 * UINT64_C(262148096) / 8 * 7);
    assert_int_equal(c.count[DTP_ALL_GATHER], 2 * LAYERS + 1);
}

/* reshard_after_forward=4 of 16 GPUs in 2 nodes: backward gathers 2 bytes of all parameters over 4 ranks, inside the
 * node. */
static void test_resharded_to_fewer(void **state)
{
    (void)state;
    struct dtp_plan plan = plan_of(&dtp_runtime_torch, DTP_FULL_SHARD, "bf16-mixed");
    uint64_t before = count(&plan, 16, 8).network_bytes;
    plan.reshard_group = 4;
    struct dtp_communication c = count(&plan, 16, 8);
    assert_int_equal(c.bytes[DTP_ALL_GATHER], 2 * (PARAMETERS / 16 * 15) + 2 * (PARAMETERS / 4 * 3));
    assert_int_equal(c.narrow_gather_bytes, 2 * (PARAMETERS / 4 * 3));
    assert_int_equal(c.count[DTP_ALL_GATHER], 2 * (LAYERS + 1));
    assert_in_range(c.network_bytes, before - 2 * (PARAMETERS / 16 * 15) / 8 - 2,
                    before - 2 * (PARAMETERS / 16 * 15) / 8 + 2);
    plan.keep_root = true;
    assert_int_equal(count(&plan, 16, 8).narrow_gather_bytes, 2 * (PARAMETERS - UINT64_C(262148096)) / 4 * 3);
    plan.offload = DTP_OFFLOAD_PARAMS; /* what backward gathers has stayed on the GPU */
    assert_int_equal(count(&plan, 16, 8).host_to_device_bytes, 4 * (PARAMETERS / 16));
}

/* DDP reduces fp32 gradients under autocast (2 * 4 bytes), bf16 ones in pure bf16 (2 * 2), once a step with no_sync. */
static void test_ddp(void **state)
{
    (void)state;
    struct dtp_plan plan = plan_of(&dtp_runtime_torch, DTP_DDP, "bf16-mixed");
    plan.accumulate = 4;
    assert_int_equal(count(&plan, 8, 8).bytes[DTP_ALL_REDUCE], 2 * 4 * (PARAMETERS / 8 * 7));
    plan.accumulate_sync = true;
    assert_int_equal(count(&plan, 8, 8).bytes[DTP_ALL_REDUCE], 4 * 2 * 4 * (PARAMETERS / 8 * 7));
    plan = plan_of(&dtp_runtime_torch, DTP_DDP, "bf16-pure");
    assert_int_equal(count(&plan, 8, 8).total_bytes, 2 * 2 * (PARAMETERS / 8 * 7));
    assert_int_equal(count(&plan, 1, 1).total_bytes, 0);
    assert_int_equal(count(&plan, 1, 1).count[DTP_ALL_REDUCE], 0);
}

/* ZeroRedundancyOptimizer broadcasts every fp32 parameter once more. 2 + 9 * 32 + 1 tensors (separate q, k, v, gate,
 * up). */
static void test_torch_zero1(void **state)
{
    (void)state;
    struct dtp_plan plan = plan_of(&dtp_runtime_torch, DTP_ZERO1, "bf16-mixed");
    struct dtp_communication c = count(&plan, 8, 8);
    assert_int_equal(c.bytes[DTP_ALL_REDUCE], 8 * (PARAMETERS / 8 * 7));
    assert_int_equal(c.bytes[DTP_ALL_GATHER], 4 * (PARAMETERS / 8 * 7));
    assert_int_equal(c.count[DTP_ALL_GATHER], 9 * LAYERS + 3);
}

/* DeepSpeed all-reduces under ZeRO-2 too, and in every micro-step: 4 bytes instead of the paper's 2, times K; then one
 * all-gather of 2 bytes. ZeRO-1 reduces once. 14 buckets of at most 5e8 elements take 6.74e9. */
static void test_deepspeed(void **state)
{
    (void)state;
    struct dtp_plan plan = plan_of(&dtp_runtime_deepspeed, DTP_ZERO2, "bf16-mixed");
    plan.accumulate = 3;
    struct dtp_communication c = count(&plan, 8, 8);
    assert_int_equal(c.bytes[DTP_ALL_REDUCE], 3 * 4 * (PARAMETERS / 8 * 7));
    assert_int_equal(c.bytes[DTP_ALL_GATHER], 2 * (PARAMETERS / 8 * 7));
    assert_int_equal(c.bytes[DTP_REDUCE_SCATTER], 0);
    assert_int_equal(c.count[DTP_ALL_REDUCE], 3 * 14);
    plan.strategy = DTP_ZERO1;
    assert_int_equal(count(&plan, 8, 8).bytes[DTP_ALL_REDUCE], 4 * (PARAMETERS / 8 * 7));
    plan.deepspeed.reduce_bucket_size =
        1; /* every gradient alone: 7 matrices and the vectors of a layer, embedding, head and norm */
    assert_int_equal(count(&plan, 8, 8).count[DTP_ALL_REDUCE], 8 * LAYERS + 3);
}

/* ZeRO-3 scatters gradients in every micro-step, gathers its 2 + 7 * 32 matrices for forward and backward, and norms,
 * which persist, once a step, block by block. With nothing kept or prefetched each matrix is an operation of its own;
 * with room for all they are gathered once. The default, 1e9 elements, keeps about that much over the turn: the
 * prefetch that has come to the end of forward has passed over their next use. */
static void test_deepspeed_zero3(void **state)
{
    (void)state;
    struct dtp_plan plan = plan_of(&dtp_runtime_deepspeed, DTP_ZERO3, "bf16-mixed");
    uint64_t norms = 32 * 8192 + 4096, matrices = PARAMETERS - norms, others = 7;
    plan.accumulate = 3;
    plan.deepspeed.stage3_max_live_parameters = plan.deepspeed.stage3_max_reuse_distance = 0;
    struct dtp_communication c = count(&plan, 8, 8);
    assert_int_equal(c.bytes[DTP_ALL_GATHER], 2 * (3 * 2 * matrices + norms) / 8 * others);
    assert_int_equal(c.count[DTP_ALL_GATHER], 3 * 2 * (7 * LAYERS + 2) + LAYERS + 1);
    assert_int_equal(c.bytes[DTP_REDUCE_SCATTER], 3 * 2 * (PARAMETERS / 8 * others));
    assert_int_equal(c.count[DTP_REDUCE_SCATTER], 3 * 14);
    plan.deepspeed.stage3_max_live_parameters = plan.deepspeed.stage3_prefetch_bucket_size = 10000000000;
    c = count(&plan, 8, 8);
    assert_int_equal(c.bytes[DTP_ALL_GATHER], 2 * (3 * matrices + norms) / 8 * others);
    plan.deepspeed.stage3_max_live_parameters = plan.deepspeed.stage3_max_reuse_distance = 1000000000;
    plan.deepspeed.stage3_prefetch_bucket_size = 50000000;
    c = count(&plan, 8, 8);
    double kept = 2 * (double)matrices - ((double)c.bytes[DTP_ALL_GATHER] * 8 / 7 / 2 - (double)norms) / 3;
    assert_true(kept > 0.95e9 && kept < 1.05e9);
    plan.deepspeed.stage3_param_persistence_threshold = 200000000; /* everything */
    c = count(&plan, 8, 8);
    assert_int_equal(c.bytes[DTP_ALL_GATHER], 2 * (PARAMETERS / 8 * others));
    assert_int_equal(count(&plan, 1, 1).total_bytes, 0);
}

/* ZeRO++ on 2 nodes of 8. hpZ: each matrix is gathered from all 16 once a step, all later times from the node's 8. qwZ:
 * a byte a weight and 4 for each 8000 of a shard begun, in twice the operations. qgZ: int4 of all 7 * 32 + 2 matrices,
 * n/2 bytes, 7/8 of it inside the node, then a node's share n/16 bytes, half of it to the other; scales of 4 bytes for
 * max(rows, columns) groups (4096 of attention's, 11008 of the MLP's, 32000), an eighth of them in the second exchange.
 * Norms are scattered. */
static void test_zeropp(void **state)
{
    (void)state;
    struct dtp_plan plan = plan_of(&dtp_runtime_deepspeed, DTP_ZERO3, "bf16-mixed");
    uint64_t norms = 32 * 8192 + 4096, matrices = PARAMETERS - norms, number = 7 * LAYERS + 2;
    plan.accumulate = 3;
    plan.deepspeed.stage3_max_live_parameters = plan.deepspeed.stage3_max_reuse_distance = 0;
    plan.deepspeed.zero_hpz_partition_size = 8;
    struct dtp_communication c = count(&plan, 16, 8);
    assert_int_equal(c.narrow_gather_bytes, 5 * 2 * (matrices / 8 * 7));
    assert_int_equal(c.narrow_gather_count, 5 * number);
    assert_int_equal(c.bytes[DTP_ALL_GATHER], c.narrow_gather_bytes + 2 * (matrices + norms) / 16 * 15);
    plan.deepspeed.zero_hpz_partition_size = 1, plan.deepspeed.zero_quantized_weights = true;
    c = count(&plan, 16, 8);
    /* shards of 4096^2/16 = 1048576 take 132 scales, of 4096*11008/16 = 2818048 353, of 8192000 1024 */
    uint64_t scales = 4 * (32 * (4 * 132 + 3 * 353) + 2 * 1024);
    assert_int_equal(c.bytes[DTP_ALL_GATHER], 6 * 15 * (matrices / 16 + scales) + 2 * norms / 16 * 15);
    assert_int_equal(c.count[DTP_ALL_GATHER], 6 * 2 * number + LAYERS + 1);
    plan.deepspeed.zero_quantized_weights = false, plan.deepspeed.zero_quantized_gradients = true;
    c = count(&plan, 16, 8);
    uint64_t groups = 32 * (4 * 4096 + 3 * 11008) + 2 * 32000;
    uint64_t node = 7 * (matrices / 16 + 4 * groups / 8), between = matrices / 32 + 4 * groups / 16;
    assert_int_equal(c.narrow_exchange_bytes, 3 * node);
    assert_int_equal(c.bytes[DTP_ALL_TO_ALL], 3 * (node + between));
    assert_int_equal(c.count[DTP_ALL_TO_ALL], 3 * 4 * number);
    assert_int_equal(c.bytes[DTP_REDUCE_SCATTER], 3 * 2 * norms / 16 * 15);
    assert_int_equal(count(&plan, 8, 8).bytes[DTP_ALL_TO_ALL], 0); /* one node: as without */
}

/* Megatron: fp32 gradients, all-reduced (8 bytes) or scattered (4) with bf16 weights gathered (2). */
static void test_megatron(void **state)
{
    (void)state;
    struct dtp_plan plan = plan_of(&dtp_runtime_megatron, DTP_DDP, "bf16-mixed");
    assert_int_equal(count(&plan, 8, 8).bytes[DTP_ALL_REDUCE], 8 * (PARAMETERS / 8 * 7));
    plan.strategy = DTP_ZERO1;
    struct dtp_communication c = count(&plan, 8, 8);
    assert_int_equal(c.bytes[DTP_REDUCE_SCATTER], 4 * (PARAMETERS / 8 * 7));
    assert_int_equal(c.bytes[DTP_ALL_GATHER], 2 * (PARAMETERS / 8 * 7));
}

/* no_sync gathers in every micro-step but scatters once; sync scatters every time. */
static void test_accumulation(void **state)
{
    (void)state;
    struct dtp_plan plan = plan_of(&dtp_runtime_torch, DTP_FULL_SHARD, "bf16-mixed");
    plan.accumulate = 4;
    struct dtp_communication c = count(&plan, 8, 8);
    assert_int_equal(c.bytes[DTP_ALL_GATHER], 4 * 4 * (PARAMETERS / 8 * 7));
    assert_int_equal(c.bytes[DTP_REDUCE_SCATTER], 4 * (PARAMETERS / 8 * 7));
    plan.accumulate_sync = true;
    assert_int_equal(count(&plan, 8, 8).bytes[DTP_REDUCE_SCATTER], 4 * 4 * (PARAMETERS / 8 * 7));
    plan.checkpointing = DTP_CHECKPOINT_FULL; /* recomputation finds the weights already there */
    assert_int_equal(count(&plan, 8, 8).bytes[DTP_ALL_GATHER], 4 * 4 * (PARAMETERS / 8 * 7));
}

/* 16 GPUs in 2 nodes. full_shard: a ring of 16, one eighth of it crosses. hybrid: gathers and scatters stay inside,
 * the shard's fp32 gradients [psi/8] are all-reduced between 2 replicas: 2 * 4 * psi/8 / 2 bytes, all of it outside. */
static void test_two_nodes(void **state)
{
    (void)state;
    struct dtp_plan plan = plan_of(&dtp_runtime_torch, DTP_FULL_SHARD, "bf16-mixed");
    struct dtp_communication c = count(&plan, 16, 8);
    assert_int_equal(c.total_bytes, 8 * (PARAMETERS / 16 * 15));
    assert_in_range(c.network_bytes, c.total_bytes / 8 - 2, c.total_bytes / 8);
    plan = plan_of(&dtp_runtime_torch, DTP_HYBRID_SHARD, "bf16-mixed");
    plan.shard_group = 8;
    c = count(&plan, 16, 8);
    assert_int_equal(c.link_bytes, 8 * (PARAMETERS / 8 * 7));
    assert_int_equal(c.bytes[DTP_ALL_REDUCE], 4 * (PARAMETERS / 8));
    assert_int_equal(c.network_bytes, c.bytes[DTP_ALL_REDUCE]);
    /* groups of 4 in a node of 8: the two replicas of a node talk over its links first */
    plan.shard_group = 4;
    c = count(&plan, 16, 8);
    assert_int_equal(c.bytes[DTP_ALL_REDUCE], 2 * 4 * (PARAMETERS / 4) / 4 * 3);
    assert_int_equal(c.network_bytes, c.bytes[DTP_ALL_REDUCE] / 2);
}

/* The fp8 all-gather sends one byte for each of the 32 * 202375168 matmul weights of the layers, gathered twice. */
static void test_fp8_all_gather(void **state)
{
    (void)state;
    struct dtp_plan plan = plan_of(&dtp_runtime_torch, DTP_FULL_SHARD, "fp8-tensorwise");
    uint64_t matmul = UINT64_C(32) * 202375168;
    assert_int_equal(count(&plan, 8, 8).bytes[DTP_ALL_GATHER], 2 * ((2 * PARAMETERS - matmul) / 8 * 7));
    assert_int_equal(count(&plan, 8, 8).bytes[DTP_REDUCE_SCATTER], 4 * (PARAMETERS / 8 * 7));
}

/* CPUOffloadPolicy: the fp32 shard up before each of two gathers, fp32 gradients down after each reduction.
 * ZeRO-Offload: fp32 gradients of the partition down, 2-byte weights up. */
static void test_offload(void **state)
{
    (void)state;
    struct dtp_plan plan = plan_of(&dtp_runtime_torch, DTP_FULL_SHARD, "bf16-mixed");
    plan.offload = DTP_OFFLOAD_PARAMS;
    struct dtp_communication c = count(&plan, 8, 8);
    assert_int_equal(c.host_to_device_bytes, 2 * 4 * (PARAMETERS / 8));
    assert_int_equal(c.device_to_host_bytes, 4 * (PARAMETERS / 8));
    plan = plan_of(&dtp_runtime_deepspeed, DTP_ZERO2, "bf16-mixed");
    plan.offload = DTP_OFFLOAD_OPTIMIZER;
    c = count(&plan, 8, 8);
    assert_int_equal(c.host_to_device_bytes, 2 * (PARAMETERS / 8));
    assert_int_equal(c.device_to_host_bytes, 4 * (PARAMETERS / 8));
    /* three micro-steps: bf16 sums go down after the first two and up into the last two */
    plan.accumulate = 3;
    c = count(&plan, 8, 8);
    assert_int_equal(c.host_to_device_bytes, (2 + 2 * 2) * (PARAMETERS / 8));
    assert_int_equal(c.device_to_host_bytes, (4 + 2 * 2) * (PARAMETERS / 8));
    /* stage 3: down and up in all three; offloaded parameters up for six gathers instead of once */
    plan.strategy = DTP_ZERO3;
    c = count(&plan, 8, 8);
    assert_int_equal(c.host_to_device_bytes, (2 + 3 * 2) * (PARAMETERS / 8));
    assert_int_equal(c.device_to_host_bytes, (4 + 3 * 2) * (PARAMETERS / 8));
    plan.offload = DTP_OFFLOAD_PARAMS;
    plan.deepspeed.stage3_max_live_parameters = plan.deepspeed.stage3_max_reuse_distance =
        0; /* norms persist: up once, not six times */
    assert_int_equal(count(&plan, 8, 8).host_to_device_bytes,
                     (6 * 2 + 3 * 2) * (PARAMETERS / 8) - 5 * 2 * (UINT64_C(32) * 8192 + 4096) / 8);
}

/* Our executor: an all-reduce taken apart under ZeRO-1 sends the same as one under DDP when the dtypes agree. */
static void test_executor(void **state)
{
    (void)state;
    struct dtp_plan ddp = plan_of(&dtp_runtime_dtplan, DTP_DDP, "bf16"), zero = ddp;
    zero.strategy = DTP_ZERO1;
    assert_int_equal(count(&ddp, 8, 8).total_bytes, count(&zero, 8, 8).total_bytes);
    zero.strategy = DTP_ZERO2;
    zero.accumulate = 2; /* only a shard of the gradients is kept, so each micro-step scatters */
    assert_int_equal(count(&zero, 8, 8).bytes[DTP_REDUCE_SCATTER], 2 * 2 * (PARAMETERS / 8 * 7));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_full_shard_bf16),
                                       cmocka_unit_test(test_fp32_reduce),
                                       cmocka_unit_test(test_kept_root),
                                       cmocka_unit_test(test_ddp),
                                       cmocka_unit_test(test_torch_zero1),
                                       cmocka_unit_test(test_deepspeed),
                                       cmocka_unit_test(test_deepspeed_zero3),
                                       cmocka_unit_test(test_zeropp),
                                       cmocka_unit_test(test_resharded_to_fewer),
                                       cmocka_unit_test(test_megatron),
                                       cmocka_unit_test(test_accumulation),
                                       cmocka_unit_test(test_two_nodes),
                                       cmocka_unit_test(test_fp8_all_gather),
                                       cmocka_unit_test(test_offload),
                                       cmocka_unit_test(test_executor)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
