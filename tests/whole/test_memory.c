/* Memory of state and buffers, counted by hand for LLaMA-7B: each difference between runtimes that matters. */
#include "runtime/runtimes.h"
#include "closed/sharding.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "lib/memory_fixture.h"

#define TOKENS UINT64_C(2048)

/* ---- state at rest --------------------------------------------------------------------------------------------- */

/* Parameters that reach into the last eighth of them, 842,301,952: head, norm, three layers, the next one's norms and
 * three matrices of its MLP; into the first: embedding, three layers, q, k, v and output of the next, its gate. */
#define LAST_WHOLE (HEAD + 4096 + 3 * LAYER + 8192 + 3 * UINT64_C(45088768))
#define FIRST_WHOLE (HEAD + 3 * LAYER + 4 * UINT64_C(16777216) + UINT64_C(45088768))

/* The tutorials' table for fp32 Adam over 8 GPUs: 16, 9, 5.5 and 2 bytes a parameter (7e9: 112, 63, 38.5, 14 GB). */
static void test_fp32_states(void **state)
{
    (void)state;
    struct dtp_plan plan = plan_of(&dtp_runtime_torch, DTP_DDP, "fp32");
    plan.ddp_bucket_view = true;
    struct dtp_memory m = predict(&plan, &eight_gpus);
    assert_int_equal(states(&m), 16 * PARAMETERS);
    plan.strategy = DTP_ZERO1;
    m = predict(&plan, &eight_gpus);
    assert_int_equal(states(&m), 9 * PARAMETERS);
    plan = plan_of(&dtp_runtime_deepspeed, DTP_ZERO2, "fp32");
    m = predict(&plan, &eight_gpus);
    assert_int_equal(states(&m), 11 * (PARAMETERS / 2) + 4 * (LAST_WHOLE - PARAMETERS / 8));
    plan = plan_of(&dtp_runtime_torch, DTP_FULL_SHARD, "fp32");
    m = predict(&plan, &eight_gpus);
    assert_int_equal(states(&m), 2 * PARAMETERS);
}

/* Recipe bf16: 2 + 2 + 8 = 12 bytes a parameter (7B 84 GB, 13B 156 GB), sharded over 4 a quarter. */
static void test_bf16_states(void **state)
{
    (void)state;
    struct dtp_plan plan = plan_of(&dtp_runtime_torch, DTP_DDP, "bf16");
    plan.ddp_bucket_view = true;
    struct dtp_memory m = predict(&plan, &eight_gpus);
    assert_int_equal(states(&m), 12 * PARAMETERS);
    plan.strategy = DTP_FULL_SHARD;
    struct dtp_cluster four_gpus = eight_gpus;
    four_gpus.gpus = four_gpus.gpus_per_node = 4;
    m = predict(&plan, &four_gpus);
    assert_int_equal(states(&m), 3 * PARAMETERS);
}

/* DeepSpeed holds bf16 weights and gradients and 12 bytes of optimizer: 2 + 2 + 12/8, 2 + 14/8, 16/8. */
static void test_deepspeed_states(void **state)
{
    (void)state;
    struct dtp_plan plan = plan_of(&dtp_runtime_deepspeed, DTP_ZERO1, "bf16-mixed");
    struct dtp_memory m = predict(&plan, &eight_gpus);
    /* no hook reduces: behind backward all gradients but those of the first bucket, embedding, a layer, of the next all
     * but down, stand beside that and what is kept of them */
    uint64_t made = m.phase_bytes[DTP_PHASE_LATE_BACKWARD][DTP_OWNER_REDUCE];
    uint64_t moved = HEAD + LAYER + 4 * UINT64_C(16777216) + 2 * UINT64_C(45088768);
    assert_int_equal(states(&m) + made, 11 * (PARAMETERS / 2) + 1000000000 + 2 * FIRST_WHOLE - 2 * moved);
    plan.strategy = DTP_ZERO2;
    m = predict(&plan, &eight_gpus);
    assert_int_equal(states(&m), 15 * (PARAMETERS / 4) + 2 * (LAST_WHOLE - PARAMETERS / 8));
    plan.strategy = DTP_ZERO3;
    m = predict(&plan, &eight_gpus);
    assert_int_equal(states(&m), 2 * PARAMETERS);
    /* a bucket of 5e8 elements and its flattened copy, with overlap_comm a second one. Of the first, what is kept is
     * made when the copy has gone, so most stands at the second: behind head, norm, a layer and of the next down, gate,
     * up and output come q, k, v, norms and two layers; down of the third, which stands while they are flattened, does
     * not fit */
    plan.strategy = DTP_ZERO2;
    m = predict(&plan, &eight_gpus);
    uint64_t flat = 3 * 16777216 + 8192 + 2 * LAYER, down = 45088768;
    assert_true(flat <= 500000000 && flat + down > 500000000);
    assert_int_equal(m.phase_bytes[DTP_PHASE_EARLY_BACKWARD][DTP_OWNER_REDUCE], 1000000000 + 2 * (flat + down));
    plan.deepspeed.overlap_comm = true;
    m = predict(&plan, &eight_gpus);
    assert_int_equal(m.phase_bytes[DTP_PHASE_EARLY_BACKWARD][DTP_OWNER_REDUCE], 2000000000 + 2 * (flat + down));
    /* the step flattens its partition of the gradients and turns it into fp32 */
    assert_int_equal(m.phase_bytes[DTP_PHASE_STEP][DTP_OWNER_WORKSPACE] -
                         m.phase_bytes[DTP_PHASE_LOSS][DTP_OWNER_WORKSPACE],
                     (2 + 4) * (PARAMETERS / 8));
}

/* A later micro-step reduces into what it keeps once more before that is added up. Of two ranks a bucket's gradients
 * are all of one's part, but for one bucket in the middle of the net, and no copy of them is made: beside the bucket
 * stand at most the gradients of a layer. */
static void test_deepspeed_buckets(void **state)
{
    (void)state;
    struct dtp_plan plan = plan_of(&dtp_runtime_deepspeed, DTP_ZERO2, "bf16-mixed");
    struct dtp_cluster two_gpus = eight_gpus;
    plan.accumulate = 2;
    assert_int_equal(predict(&plan, &eight_gpus).grads_bytes, 2 * 2 * LAST_WHOLE);
    plan.accumulate = 1;
    two_gpus.gpus = two_gpus.gpus_per_node = 2;
    struct dtp_memory m = predict(&plan, &two_gpus);
    assert_true(m.phase_bytes[DTP_PHASE_EARLY_BACKWARD][DTP_OWNER_REDUCE] <= 1000000000 + 2 * LAYER);
}

/* What deepspeed.initialize makes: an fp32 copy of the rank's part; under stage 3 also a bucket of 5e8 elements and a
 * flat buffer of gradients. Moments are the first step's. */
static void test_deepspeed_first_bytes(void **state)
{
    (void)state;
    struct dtp_plan plan = plan_of(&dtp_runtime_deepspeed, DTP_ZERO1, "bf16-mixed");
    uint64_t workspace = (64u << 20) + 4 * 128 * TOKENS + 8 * TOKENS, part = PARAMETERS / 8;
    assert_int_equal(predict(&plan, &eight_gpus).after_init_bytes, 2 * PARAMETERS + 4 * part + workspace);
    plan.strategy = DTP_ZERO3;
    assert_int_equal(predict(&plan, &eight_gpus).after_init_bytes, (2 + 4 + 2) * part + 1000000000 + workspace);
}

/* Megatron: bf16 weights, fp32 gradients and master: 18 bytes; with the distributed optimizer 6 + 12/8. */
static void test_megatron_states(void **state)
{
    (void)state;
    struct dtp_plan plan = plan_of(&dtp_runtime_megatron, DTP_DDP, "bf16-mixed");
    struct dtp_memory m = predict(&plan, &eight_gpus);
    assert_int_equal(states(&m), 18 * PARAMETERS);
    plan.strategy = DTP_ZERO1;
    m = predict(&plan, &eight_gpus);
    assert_int_equal(states(&m), 15 * (PARAMETERS / 2));
    assert_int_equal(m.grads_bytes, 4 * PARAMETERS);
}

/* DDP's buckets hold every gradient from construction; without gradient_as_bucket_view .grad is a second copy. */
static void test_bucket_view(void **state)
{
    (void)state;
    struct dtp_plan plan = plan_of(&dtp_runtime_torch, DTP_DDP, "bf16-mixed");
    struct dtp_memory m = predict(&plan, &eight_gpus);
    assert_int_equal(m.grads_bytes, 4 * PARAMETERS);
    assert_int_equal(m.phase_bytes[DTP_PHASE_STEP][DTP_OWNER_REDUCE], 4 * PARAMETERS);
    plan.ddp_bucket_view = true;
    m = predict(&plan, &eight_gpus);
    assert_int_equal(m.grads_bytes, 4 * PARAMETERS);
    assert_int_equal(m.phase_bytes[DTP_PHASE_FORWARD_END][DTP_OWNER_GRADS], 4 * PARAMETERS);
    assert_int_equal(m.phase_bytes[DTP_PHASE_STEP][DTP_OWNER_REDUCE], 0);
    /* no_sync accumulates into tensors beside the buckets (measured: 4 psi more at the last micro-step's loss) */
    plan.accumulate = 4;
    m = predict(&plan, &eight_gpus);
    assert_int_equal(m.phase_bytes[DTP_PHASE_FORWARD_END][DTP_OWNER_REDUCE], 4 * PARAMETERS);
    plan.accumulate = 1;
    /* on one GPU there are no buckets: gradients come and go */
    m = predict(&plan, &one_gpu);
    assert_int_equal(m.phase_bytes[DTP_PHASE_FORWARD_END][DTP_OWNER_GRADS], 0);
    assert_int_equal(m.phase_bytes[DTP_PHASE_STEP][DTP_OWNER_GRADS] + m.phase_bytes[DTP_PHASE_STEP][DTP_OWNER_REDUCE],
                     4 * PARAMETERS);
}

/* foreach AdamW's list of square roots: 4 more bytes for each parameter this GPU updates. */
static void test_foreach(void **state)
{
    (void)state;
    struct dtp_plan plan = plan_of(&dtp_runtime_torch, DTP_FULL_SHARD, "bf16-mixed");
    struct dtp_memory fused = predict(&plan, &eight_gpus);
    plan.optimizer = DTP_ADAMW_FOREACH;
    struct dtp_memory foreach = predict(&plan, &eight_gpus);
    assert_int_equal(foreach.phase_total_bytes[DTP_PHASE_STEP] - fused.phase_total_bytes[DTP_PHASE_STEP],
                     4 * (PARAMETERS / 8));
    plan.optimizer = DTP_SGD;
    assert_int_equal(predict(&plan, &eight_gpus).optimizer_bytes, 0);
    plan.optimizer = DTP_ADAM8BIT;
    /* and of each 256 elements of a state a scale in fp32, where no tensor's shard ends within a block: norms' 512 = 2
     * x 256 and all matrices */
    assert_int_equal(predict(&plan, &eight_gpus).optimizer_bytes, 2 * (PARAMETERS / 8) + 8 * (PARAMETERS / 8 / 256));
    plan.optimizer = DTP_LION;
    assert_int_equal(predict(&plan, &eight_gpus).optimizer_bytes, 4 * (PARAMETERS / 8));
    plan.optimizer = DTP_MOMENTUM;
    assert_int_equal(predict(&plan, &eight_gpus).optimizer_bytes, 4 * (PARAMETERS / 8));
    plan.optimizer = DTP_ADAM4BIT; /* two codes a byte, scales of 128 */
    assert_int_equal(predict(&plan, &eight_gpus).optimizer_bytes, PARAMETERS / 8 + 8 * (PARAMETERS / 8 / 128));
}

/* ---- FSDP2's buffers ------------------------------------------------------------------------------------------- */

/* The flat all-gather buffer stands beside the weights copied out of it, and in forward that of the layer before still
 * does. FSDP1 gathers into the flat parameter itself. */
static void test_copy_out(void **state)
{
    (void)state;
    struct dtp_plan plan = plan_of(&dtp_runtime_torch, DTP_FULL_SHARD, "bf16-mixed");
    struct dtp_memory m = predict(&plan, &eight_gpus);
    const uint64_t *end = m.phase_bytes[DTP_PHASE_FORWARD_END];
    assert_int_equal(end[DTP_OWNER_WEIGHTS], 2 * (ROOT + LAYER));
    assert_int_equal(end[DTP_OWNER_GATHER], 2 * 2 * LAYER);
    plan.fsdp1 = true;
    m = predict(&plan, &eight_gpus);
    assert_int_equal(m.phase_bytes[DTP_PHASE_FORWARD_END][DTP_OWNER_GATHER], 0);
    /* the whole model as one unit: twice 2 psi, as the cast shard has gone when the weights are copied out */
    plan.fsdp1 = false;
    plan.wrap_layers = 0;
    plan.micro_batch = 1;
    plan.sequence = 16;
    m = predict(&plan, &eight_gpus);
    assert_int_equal(m.phase_bytes[DTP_PHASE_FORWARD_END][DTP_OWNER_GATHER], 2 * PARAMETERS);
    assert_int_equal(m.phase_bytes[DTP_PHASE_FORWARD_END][DTP_OWNER_WEIGHTS], 2 * PARAMETERS);
}

/* In the second layer of backward: the root and this layer's weights, the next one's flat buffer, the head's gradient
 * and those of all its matrices but q, k and v in bf16, the finished layer's reduce-scatter input in fp32, its fp32
 * shard: with few tokens the attention core is the layer's worst instant, not the MLP, where only the down matrix's
 * stands. */
static void test_backward_buffers(void **state)
{
    (void)state;
    struct dtp_plan plan = plan_of(&dtp_runtime_torch, DTP_FULL_SHARD, "bf16-mixed");
    struct dtp_memory m = predict(&plan, &eight_gpus);
    const uint64_t *early = m.phase_bytes[DTP_PHASE_EARLY_BACKWARD];
    assert_int_equal(early[DTP_OWNER_WEIGHTS], 2 * (ROOT + LAYER));
    assert_int_equal(early[DTP_OWNER_GATHER], 2 * LAYER);
    const uint64_t others = UINT64_C(4096) * 4096 + 3 * DOWN;
    const uint64_t root = HEAD + 4096; /* the head's gradient and the final norm's */
    assert_int_equal(early[DTP_OWNER_REDUCE], 2 * (root + others) + 4 * LAYER);
    assert_int_equal(early[DTP_OWNER_GRADS], 4 * LAYER / 8);
    /* bf16 reduction halves the reduce-scatter input */
    plan.precision.reduce = DTP_BF16;
    m = predict(&plan, &eight_gpus);
    assert_int_equal(m.phase_bytes[DTP_PHASE_EARLY_BACKWARD][DTP_OWNER_REDUCE], 2 * (root + others) + 2 * LAYER);
    /* prefetch off: no second flat buffer; the layer's own, while its weights are copied out, is what counts then */
    plan.prefetch = false;
    m = predict(&plan, &eight_gpus);
    assert_int_equal(m.phase_bytes[DTP_PHASE_EARLY_BACKWARD][DTP_OWNER_GATHER], 2 * LAYER);
    assert_int_equal(m.phase_bytes[DTP_PHASE_EARLY_BACKWARD][DTP_OWNER_REDUCE], 2 * root + 2 * LAYER);
}

/* At the loss nothing is gathered, unless the root is kept (2 R) or the plan keeps all weights (2 psi). */
static void test_kept_weights(void **state)
{
    (void)state;
    struct dtp_plan plan = plan_of(&dtp_runtime_torch, DTP_FULL_SHARD, "bf16-mixed");
    assert_int_equal(predict(&plan, &eight_gpus).phase_bytes[DTP_PHASE_LOSS][DTP_OWNER_WEIGHTS], 0);
    plan.keep_root = true;
    assert_int_equal(predict(&plan, &eight_gpus).phase_bytes[DTP_PHASE_LOSS][DTP_OWNER_WEIGHTS], 2 * ROOT);
    plan = plan_of(&dtp_runtime_torch, DTP_FULL_SHARD, "bf16-mixed");
    plan.fsdp1 = true;
    assert_int_equal(predict(&plan, &eight_gpus).phase_bytes[DTP_PHASE_LOSS][DTP_OWNER_WEIGHTS], 2 * ROOT);
    plan = plan_of(&dtp_runtime_torch, DTP_SHARD_GRAD_OP, "bf16-mixed");
    assert_int_equal(predict(&plan, &eight_gpus).phase_bytes[DTP_PHASE_LOSS][DTP_OWNER_WEIGHTS], 2 * PARAMETERS);
}

/* Accumulation without reduction keeps whole fp32 gradients on every rank; with it, the fp32 shard. */
static void test_accumulation(void **state)
{
    (void)state;
    struct dtp_plan plan = plan_of(&dtp_runtime_torch, DTP_FULL_SHARD, "bf16-mixed");
    plan.accumulate = 2;
    assert_int_equal(predict(&plan, &eight_gpus).phase_bytes[DTP_PHASE_LOSS][DTP_OWNER_GRADS], 4 * PARAMETERS);
    plan.accumulate_sync = true;
    assert_int_equal(predict(&plan, &eight_gpus).phase_bytes[DTP_PHASE_LOSS][DTP_OWNER_GRADS], 4 * (PARAMETERS / 8));
}

/* hybrid_shard over 2 nodes of 8 holds what full_shard over 8 holds, and two more communicators. */
static void test_hybrid(void **state)
{
    (void)state;
    struct dtp_plan plan = plan_of(&dtp_runtime_torch, DTP_FULL_SHARD, "bf16-mixed");
    struct dtp_memory full = predict(&plan, &eight_gpus);
    struct dtp_cluster two_nodes = eight_gpus;
    two_nodes.gpus = 16;
    two_nodes.nodes = 2;
    plan.strategy = DTP_HYBRID_SHARD;
    struct dtp_memory hybrid = predict(&plan, &two_nodes);
    assert_int_equal(hybrid.allocated_peak_bytes, full.allocated_peak_bytes);
    assert_true(hybrid.nccl_bytes > full.nccl_bytes);
}

/* ---- loss, casts, workspaces ----------------------------------------------------------------------------------- */

/* Eager cross entropy stands 12 T V high in backward, a compiled one 4 T V; a loop that holds logits has 4 T V more. */
static void test_cross_entropy(void **state)
{
    (void)state;
    struct dtp_plan plan = plan_of(&dtp_runtime_torch, DTP_FULL_SHARD, "bf16-mixed");
    struct dtp_memory m = predict(&plan, &eight_gpus);
    assert_int_equal(m.phase_bytes[DTP_PHASE_LOSS][DTP_OWNER_LOGITS], 12 * TOKENS * VOCAB);
    plan.hold_logits = true; /* those of the step before, too, and in every phase */
    m = predict(&plan, &eight_gpus);
    assert_int_equal(m.phase_bytes[DTP_PHASE_LOSS][DTP_OWNER_LOGITS], 16 * TOKENS * VOCAB);
    assert_int_equal(m.phase_bytes[DTP_PHASE_STEP][DTP_OWNER_LOGITS], 4 * TOKENS * VOCAB);
    plan.hold_logits = false;
    plan.loss = DTP_LOSS_FUSED;
    m = predict(&plan, &eight_gpus);
    assert_int_equal(m.phase_bytes[DTP_PHASE_LOSS][DTP_OWNER_LOGITS], 4 * TOKENS * VOCAB);
}

/* Autocast keeps a bf16 copy of every matmul weight from forward to backward: 32 * (P - 2*4096) + V h elements. With
 * checkpointing only the head's is left at the loss, and the eager cache holds all at the end of forward. */
static void test_autocast_casts(void **state)
{
    (void)state;
    struct dtp_plan plan = plan_of(&dtp_runtime_torch, DTP_DDP, "bf16-mixed");
    uint64_t casts = 2 * (32 * (LAYER - 8192) + HEAD);
    struct dtp_memory m = predict(&plan, &eight_gpus);
    assert_int_equal(m.phase_bytes[DTP_PHASE_LOSS][DTP_OWNER_WEIGHTS], casts);
    plan.checkpointing = DTP_CHECKPOINT_FULL;
    m = predict(&plan, &eight_gpus);
    assert_int_equal(m.phase_bytes[DTP_PHASE_LOSS][DTP_OWNER_WEIGHTS], 2 * HEAD);
    assert_int_equal(m.phase_bytes[DTP_PHASE_FORWARD_END][DTP_OWNER_WEIGHTS], casts);
}

/* Two cuBLAS workspaces of 32 MiB on Hopper, 8 MiB + 128 KiB elsewhere; RoPE's tables; 64-bit tokens. */
static void test_workspace(void **state)
{
    (void)state;
    struct dtp_plan plan = plan_of(&dtp_runtime_torch, DTP_FULL_SHARD, "bf16-mixed");
    uint64_t tables = 4 * 128 * TOKENS + 8 * TOKENS;
    struct dtp_memory m = predict(&plan, &eight_gpus);
    assert_int_equal(m.phase_bytes[DTP_PHASE_LOSS][DTP_OWNER_WORKSPACE], (64u << 20) + tables);
    struct dtp_cluster ampere = eight_gpus;
    ampere.gpu.architecture = DTP_GPU_AMPERE;
    m = predict(&plan, &ampere);
    assert_int_equal(m.phase_bytes[DTP_PHASE_LOSS][DTP_OWNER_WORKSPACE], (16u << 20) + (256u << 10) + tables);
    assert_int_equal(m.after_init_bytes, 4 * (PARAMETERS / 8) + (16u << 20) + (256u << 10) + tables);
}

/* The one place that says fits, tight or oom: by the device figure, except that segments which the allocator can give
 * back do not make a plan impossible; and why. Bytes around a GPU of 1000. */
static void test_verdicts(void **state)
{
    static const struct {
        uint64_t allocated, reserved, beside, host;
        enum dtp_verdict verdict;
        enum dtp_shortage shortage;
        const char *text;
    } cases[] = {{800, 900, 50, 0, DTP_VERDICT_FITS, DTP_SHORT_OF_NOTHING, ""},
                 {800, 901, 50, 0, DTP_VERDICT_TIGHT, DTP_SHORT_OF_MARGIN, "margin"},
                 {800, 950, 50, 0, DTP_VERDICT_TIGHT, DTP_SHORT_OF_MARGIN, "margin"},
                 {800, 1070, 50, 0, DTP_VERDICT_TIGHT, DTP_SHORT_OF_CACHE, "allocator_cache"},
                 {950, 951, 50, 0, DTP_VERDICT_TIGHT, DTP_SHORT_OF_CACHE, "allocator_cache"},
                 {951, 951, 50, 0, DTP_VERDICT_OOM, DTP_SHORT_OF_TENSORS, "tensors"},
                 {800, 900, 50, 96, DTP_VERDICT_TIGHT, DTP_SHORT_OF_HOST, "host_memory"},
                 {800, 1070, 50, 96, DTP_VERDICT_TIGHT, DTP_SHORT_OF_CACHE, "allocator_cache"},
                 {800, 1070, 50, 101, DTP_VERDICT_OOM, DTP_SHORT_OF_HOST, "host_memory"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dtp_memory m = {.allocated_peak_bytes = cases[i].allocated,
                               .reserved_peak_bytes = cases[i].reserved,
                               .context_bytes = cases[i].beside,
                               .device_peak_bytes = cases[i].reserved + cases[i].beside,
                               .capacity_bytes = 1000,
                               .host_bytes = cases[i].host,
                               .host_capacity_bytes = 100};
        dtp_memory_judge(&m);
        assert_int_equal(m.verdict, cases[i].verdict);
        assert_int_equal(m.shortage, cases[i].shortage);
        assert_string_equal(dtp_shortage_text(m.shortage), cases[i].text);
    }
}

/* ---- our executor, allocator, verdict -------------------------------------------------------------------------- */

/* One arena: reserved is allocated. bf16 weights, fp32 gradients, master and moments: 18 bytes, sharded 18/8. */
static void test_executor(void **state)
{
    (void)state;
    struct dtp_plan plan = plan_of(&dtp_runtime_dtplan, DTP_DDP, "bf16-mixed");
    struct dtp_memory m = predict(&plan, &eight_gpus);
    assert_int_equal(states(&m), 18 * PARAMETERS);
    assert_int_equal(m.reserved_peak_bytes, m.allocated_peak_bytes);
    plan.strategy = DTP_FULL_SHARD;
    m = predict(&plan, &eight_gpus);
    assert_int_equal(states(&m), 9 * (PARAMETERS / 4));
    /* the gathered buffer is the weights, of the block at work and of the next; gradients are written where they are
     * scattered from: of the last block, beside those of the block above it or of the head */
    const uint64_t *early = m.phase_bytes[DTP_PHASE_EARLY_BACKWARD];
    assert_int_equal(early[DTP_OWNER_WEIGHTS] + early[DTP_OWNER_GATHER], 2 * 2 * LAYER);
    uint64_t head = 32000 * UINT64_C(4096) + 4096, above = LAYER > head ? LAYER : head;
    assert_in_range(early[DTP_OWNER_REDUCE], 4 * (LAYER + head), 4 * (LAYER + above));
}

/* 80 GB: sharded it fits; 16 bytes a parameter do not. */
static void test_verdict(void **state)
{
    (void)state;
    struct dtp_plan plan = plan_of(&dtp_runtime_torch, DTP_FULL_SHARD, "bf16-mixed");
    assert_int_equal(predict(&plan, &eight_gpus).verdict, DTP_VERDICT_FITS);
    struct dtp_cluster small = eight_gpus;
    struct dtp_memory m = predict(&plan, &eight_gpus);
    small.gpu.memory_bytes = m.device_peak_bytes + m.device_peak_bytes / 100;
    assert_int_equal(predict(&plan, &small).verdict, DTP_VERDICT_TIGHT);
    plan.strategy = DTP_DDP;
    assert_int_equal(predict(&plan, &eight_gpus).verdict, DTP_VERDICT_OOM);
}

/* What FSDP2's padding of each parameter to equal shards can add to gathered weights and scattered gradients. */
static uint64_t padding_bytes(const struct dtp_plan *plan, const struct dtp_cluster *cluster)
{
    struct dtp_transformer t = llama_7b();
    struct dtp_units u;
    dtp_units_count(&t, cluster, plan, &u);
    return 12 * (u.ranks * u.total_shard - u.total);
}

/* Over 2, 4, 8, ... GPUs every figure but NCCL's shrinks or stays, padding apart. */
static void test_more_shards_never_cost(void **state)
{
    (void)state;
    static const enum dtp_strategy strategies[] = {DTP_ZERO1, DTP_FULL_SHARD, DTP_SHARD_GRAD_OP};
    for (size_t i = 0; i < sizeof strategies / sizeof *strategies; i++) {
        struct dtp_plan plan = plan_of(&dtp_runtime_torch, strategies[i], "bf16-mixed");
        uint64_t allocated = UINT64_MAX, reserved = UINT64_MAX;
        for (uint32_t gpus = 2; gpus <= 4096; gpus *= 2) {
            struct dtp_cluster cluster = eight_gpus;
            cluster.gpus = gpus;
            cluster.nodes = gpus < 8 ? 1 : gpus / 8;
            cluster.gpus_per_node = gpus / cluster.nodes;
            struct dtp_memory m = predict(&plan, &cluster);
            uint64_t padding = padding_bytes(&plan, &cluster);
            assert_true(m.allocated_peak_bytes <= allocated + padding && m.reserved_peak_bytes <= reserved + padding);
            allocated = m.allocated_peak_bytes;
            reserved = m.reserved_peak_bytes;
        }
    }
}

/* Llama-3-8B on 8 GPUs, one sequence of 8192, selective checkpointing: state 11.22 GiB, activations 15.5 GiB, eager
 * loss 11.7 GiB, gradients 3.74 GiB at the end, 39.5 GiB with the kept head (ours keeps the embedding with it: 0.98
 * more). TorchAO publishes 47.65 reserved for it with compiled layers and does not say what the loss was. */
static void test_llama_3_8b(void **state)
{
    (void)state;
    struct dtp_transformer t = dtp_transformer_default();
    t.layers = 32;
    t.hidden = 4096;
    t.heads = 32;
    t.kv_heads = 8;
    t.head_dim = 128;
    t.ffn = 14336;
    t.vocab = 128256;
    struct dtp_plan plan = plan_of(&dtp_runtime_torch, DTP_FULL_SHARD, "bf16-mixed");
    plan.sequence = 8192;
    plan.checkpointing = DTP_CHECKPOINT_SELECTIVE_MATMUL;
    plan.keep_root = true;
    struct dtp_memory m;
    m = estimate(&t, &plan, &eight_gpus);
    double gib = 1u << 30;
    assert_true(fabs((double)(m.params_bytes + m.optimizer_bytes) / gib - 11.22) < 0.01);
    assert_true(fabs((double)m.grads_bytes / gib - 3.74) < 0.01);
    assert_true(fabs((double)m.phase_bytes[DTP_PHASE_LOSS][DTP_OWNER_ACTIVATIONS] / gib - 15.65) < 0.1);
    assert_true(fabs((double)m.phase_bytes[DTP_PHASE_LOSS][DTP_OWNER_LOGITS] / gib - 11.74) < 0.01);
    assert_true(fabs((double)m.allocated_peak_bytes / gib - (39.5 + 0.98)) < 0.3);
    assert_int_equal(m.peak_phase, DTP_PHASE_LOSS);
    plan.compile = true;
    m = estimate(&t, &plan, &eight_gpus);
    double fused = (double)m.reserved_peak_bytes / gib;
    plan.compile_loss = false;
    m = estimate(&t, &plan, &eight_gpus);
    double eager = (double)m.reserved_peak_bytes / gib;
    print_message("reserved %.2f GiB with a compiled loss, %.2f with an eager one, published 47.65\n", fused, eager);
    assert_true(fused > 0.88 * 47.65 && eager < 1.10 * 47.65);
}

/* Plans nobody can run end at a bound, not at a wrapped number. */
static void test_no_overflow(void **state)
{
    (void)state;
    struct dtp_plan plan = plan_of(&dtp_runtime_torch, DTP_FULL_SHARD, "bf16-mixed");
    plan.micro_batch = 1000000; /* nearly as many tokens as are accepted */
    plan.sequence = 131072;
    plan.accumulate = 1000;
    struct dtp_memory m = predict(&plan, &eight_gpus);
    assert_int_equal(m.verdict, DTP_VERDICT_OOM);
    assert_true(m.allocated_peak_bytes > UINT64_C(1) << 56);
}

/* Transformer Engine: two fp8 copies of each matmul weight, kept over the step, and every matmul's input kept as its
 * 1-byte cast: per token and layer norms -2h, product -f, and the output matmul's own copy of the core's result +d_q.
 */
static void test_transformer_engine(void **state)
{
    (void)state;
    struct dtp_plan bf16 = plan_of(&dtp_runtime_megatron, DTP_ZERO1, "bf16-mixed");
    struct dtp_plan fp8 = plan_of(&dtp_runtime_megatron, DTP_ZERO1, "fp8-tensorwise");
    fp8.precision.fp8_all_gather = false;
    struct dtp_memory wide = predict(&bf16, &eight_gpus), narrow = predict(&fp8, &eight_gpus);
    assert_int_equal(states(&wide), states(&narrow));
    uint64_t matmul_weights = 32 * (4 * UINT64_C(4096) * 4096 + 3 * UINT64_C(4096) * 11008);
    assert_int_equal(narrow.phase_bytes[DTP_PHASE_STEP][DTP_OWNER_WEIGHTS], 2 * matmul_weights);
    assert_int_equal(wide.phase_bytes[DTP_PHASE_FORWARD_END][DTP_OWNER_ACTIVATIONS] -
                         narrow.phase_bytes[DTP_PHASE_FORWARD_END][DTP_OWNER_ACTIVATIONS],
                     fp8.micro_batch * fp8.sequence * 32 * (2 * 4096 + 11008 - 4096));
}

/* FSDP1 accumulates whole gradients as they are made (2 psi), on their way to a reduction, FSDP2 in the reduce dtype (4
 * psi). */
static void test_accumulated_gradients(void **state)
{
    (void)state;
    struct dtp_plan plan = plan_of(&dtp_runtime_torch, DTP_FULL_SHARD, "bf16-mixed");
    plan.accumulate = 4;
    struct dtp_memory fsdp2 = predict(&plan, &eight_gpus);
    assert_int_equal(fsdp2.phase_bytes[DTP_PHASE_LOSS][DTP_OWNER_GRADS], 4 * PARAMETERS);
    plan.fsdp1 = true;
    struct dtp_memory fsdp1 = predict(&plan, &eight_gpus);
    assert_int_equal(fsdp1.phase_bytes[DTP_PHASE_LOSS][DTP_OWNER_REDUCE], 2 * PARAMETERS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fp32_states),
                                       cmocka_unit_test(test_bf16_states),
                                       cmocka_unit_test(test_deepspeed_states),
                                       cmocka_unit_test(test_deepspeed_first_bytes),
                                       cmocka_unit_test(test_deepspeed_buckets),
                                       cmocka_unit_test(test_megatron_states),
                                       cmocka_unit_test(test_transformer_engine),
                                       cmocka_unit_test(test_accumulated_gradients),
                                       cmocka_unit_test(test_bucket_view),
                                       cmocka_unit_test(test_foreach),
                                       cmocka_unit_test(test_copy_out),
                                       cmocka_unit_test(test_backward_buffers),
                                       cmocka_unit_test(test_kept_weights),
                                       cmocka_unit_test(test_accumulation),
                                       cmocka_unit_test(test_hybrid),
                                       cmocka_unit_test(test_cross_entropy),
                                       cmocka_unit_test(test_autocast_casts),
                                       cmocka_unit_test(test_workspace),
                                       cmocka_unit_test(test_verdicts),
                                       cmocka_unit_test(test_executor),
                                       cmocka_unit_test(test_verdict),
                                       cmocka_unit_test(test_more_shards_never_cost),
                                       cmocka_unit_test(test_llama_3_8b),
                                       cmocka_unit_test(test_no_overflow)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
