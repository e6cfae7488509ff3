/* Runtime peft by hand: what Transformers' modeling files and loss keep of a token beside runtime torch's, of
 * LLaMA-7B (32 layers, 4096 wide, 32 heads, ffn 11008, 32000 words) with adapters of rank 16 on attention,
 * checkpointed. */
#include "closed/block_work.h"
#include "closed/closed_form.h"
#include "lower/lower.h"
#include "plan/norm_chain.h"
#include "runtime/runtimes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "lib/peft_fixture.h"

/* The peak is the loss. 32 layers' inputs 2 x 4096; logits 2, in fp32 4, without the last token 4 and log-softmax 4: 14
 * x 32000; of the final norm the copy in fp32 and what the head read, (4 + 2) x 4096. A fused loss and norms: 10 x
 * 32000, and the norm's input and result. fms-acceleration's runs of Mistral-7B, of the same widths, differ by 734,727
 * and 598,540 bytes a token (published_runs_3d_moe.csv, fa-025 and fa-027, fa-029 and fa-031). */
static void test_loss(void **state)
{
    (void)state;
    struct dtp_plan plan = trainer(16);
    assert_near(of_a_token(plan), 32 * 2 * 4096 + 14 * 32000 + 6 * 4096);
    plan.fast_kernels = true, plan.loss = DTP_LOSS_FUSED;
    assert_near(of_a_token(plan), 32 * 2 * 4096 + 10 * 32000 + 4 * 4096);
    plan = trainer(16),
    plan.shifted_logits = false; /* log-softmax and two gradients of 4, when the head's input went */
    assert_near(of_a_token(plan), 32 * 2 * 4096 + 12 * 32000 + 4 * 4096);
}

/* A wide model of few words has its peak in a layer's backward: 80 layers of Llama-2-70B (8192, 64 heads, 8 of keys,
 * ffn 28672), h = 8192 bytes: inputs 2 h each; of the layer the copies of both norms 4 + 4, what dropout made of the
 * inputs of q, k, v and o, with masks, 4 x 3, q and the core's result 2 + 2, k and v 1/4 each, gate, up and silu 3 x 7,
 * its result once more 2; gradients of that 2, of the product 7, of silu and up 7 each: 70.5. Besides, in bytes: x A of
 * four adapters 2 x 16 each, a number of each head, of both norms, a token's index: 4 x 64 + 2 x 4 + 8 + 128. Without
 * autocast fp32 adapters read casts: 4 x 5, and x A is 4 x 16. */
static void test_layer(void **state)
{
    (void)state;
    struct dtp_transformer t = llama_7b();
    t.layers = 80, t.hidden = 8192, t.heads = 64, t.kv_heads = 8, t.head_dim = 128, t.ffn = 28672, t.vocab = 32000;
    struct dtp_cluster cluster = one_gpu;
    cluster.gpu.memory_bytes = UINT64_C(400) << 30;
    for (int autocast = 0; autocast < 2; autocast++) {
        struct dtp_plan plan = trainer(16);
        dtp_precision_recipe(autocast ? "bf16-mixed" : "bf16-pure", &plan.precision);
        plan.micro_batch = 2;
        double few = (double)estimate(&t, &plan, &cluster).allocated_peak_bytes;
        plan.micro_batch = 4;
        double more = (double)estimate(&t, &plan, &cluster).allocated_peak_bytes;
        assert_near((more - few) / (2 * 2048), 8192 * (80 * 2 + 70.5 + (autocast ? 0 : 8)) + (autocast ? 400 : 528));
    }
}

/* A 16-bit norm of trained weights moves 8 c bytes for casts both ways... counted at c = 2: forward cast 6, square 8,
 * mean 4, product 8, cast 6, weight 4 = 36; backward weight 4, cast 6, products 8 and 12, sum 4, mean 4, power 8 + 8 +
 * 12, sum 12, cast 6 = 84, of the weight 8 more. Frozen it saves the copy alone. */
static void test_norm_chain(void **state)
{
    (void)state;
    struct dtp_plan plan = trainer(0);
    struct dtp_transformer t = llama_7b();
    struct dtp_norm_chain chain = dtp_norm_chain_of(&t, &plan, true);
    assert_true(chain.forward == 36 && chain.backward == 92);
    assert_int_equal(chain.saved, 6);
    chain = dtp_norm_chain_of(&t, &plan, false);
    assert_true(chain.forward == 36 && chain.backward == 84);
    assert_int_equal(chain.saved, 4);
    assert_true(dtp_plan_chains_norms(&t, &plan));
    t.norm = DTP_LAYER_NORM; /* one kernel of PyTorch's */
    assert_false(dtp_plan_chains_norms(&t, &plan));
    t.norm = DTP_RMS_NORM, plan.runtime = &dtp_runtime_torch; /* PyTorch's own layers: where the plan says so */
    assert_false(dtp_plan_chains_norms(&t, &plan));
    plan.norm_chain = true;
    assert_true(dtp_plan_chains_norms(&t, &plan));
    plan.compile = true; /* which fuses it */
    assert_false(dtp_plan_chains_norms(&t, &plan));
}

/* Logits that stay as the head made them: 2, their copy 2, its cast under autocast 4, log-softmax 4: 12 x 32000 in
 * place of 14. DeepSpeed has the whole model in 16 bits: 2, 2, 2. What a layer keeps is the same, of the final norm
 * too. */
static void test_narrow_logits(void **state)
{
    (void)state;
    struct dtp_plan plan = trainer(16);
    plan.narrow_logits = true;
    assert_near(of_a_token(plan), 32 * 2 * 4096 + 12 * 32000 + 6 * 4096);
    assert_int_equal(dtp_plan_shifted_loss_bytes(&plan), 4);
    plan.runtime = &dtp_runtime_deepspeed, plan.strategy = DTP_ZERO2;
    plan.deepspeed.transformers_layers = true;
    assert_int_equal(dtp_plan_shifted_loss_bytes(&plan), 2);
    assert_int_equal(dtp_plan_shifted_copy_bytes(&plan), 2);
    plan.narrow_logits = false;
    assert_int_equal(dtp_plan_shifted_loss_bytes(&plan), 4);
}

/* DeepSpeed's ZeRO-2 on one GPU: all weights in fp16, adapters too; of these, 16,777,216, an fp32 master and two
 * moments: 12 bytes. */
static void test_deepspeed(void **state)
{
    (void)state;
    struct dtp_plan plan = trainer(16);
    dtp_precision_recipe("fp16-mixed", &plan.precision);
    plan.runtime = &dtp_runtime_deepspeed, plan.strategy = DTP_ZERO2, plan.adapters.dtype = DTP_FP16;
    plan.optimizer = DTP_ADAMW_FUSED;
    struct dtp_memory memory = predict(&plan, &one_gpu);
    assert_int_equal(memory.params_bytes, 2 * (UINT64_C(6738415616) + 16777216));
    assert_int_equal(memory.optimizer_bytes, 12 * 16777216);
    assert_int_equal(memory.grads_bytes, 2 * 16777216);
    memory = predict(&plan, &eight_gpus); /* an eighth of what is trained */
    assert_int_equal(memory.optimizer_bytes, 12 * 16777216 / 8);
    plan.adapters.dtype = DTP_FP32;
    assert_refused(plan, "lora_dtype");
    plan.adapters.dtype = DTP_FP16, plan.strategy = DTP_ZERO3, plan.deepspeed.zero_hpz_partition_size = 2;
    assert_refused(plan, "zero_hpz_partition_size");
}

/* DoRA on q, k, v and o of rank 16, all 4096 x 4096: a magnitude of each output is trained besides, 32 x 4 x 4096. Of a
 * token the linear's result and B's stay in each layer, 2 x 2 x 4096 bytes of four. B A of an identity multiplies 2 x
 * 16 x (4096^2 + 4096^2) in each micro-step, again where layers are replayed; W what dropout let through, 2 x 4096^2 a
 * token, as much backward. */
static void test_dora(void **state)
{
    (void)state;
    const uint64_t all = 6738415616, adapters = 16777216, magnitudes = 32 * 4 * 4096;
    struct dtp_transformer t = llama_7b();
    struct dtp_plan lora = trainer(16);
    lora.checkpointing = DTP_CHECKPOINT_NONE, lora.adapters.dropout = 0, lora.micro_batch = 2;
    dtp_precision_recipe("bf16-mixed", &lora.precision);
    struct dtp_plan dora = lora;
    dora.adapters.dora = true;
    struct dtp_memory memory = predict(&dora, &one_gpu);
    assert_int_equal(memory.params_bytes, 2 * all + 4 * (adapters + magnitudes));
    assert_int_equal(memory.grads_bytes, 4 * (adapters + magnitudes));
    assert_int_equal(memory.optimizer_bytes, 8 * (adapters + magnitudes));
    assert_near(of_a_token(dora) - of_a_token(lora), 32 * 4 * 2 * 2 * 4096);
    const double square = 4096.0 * 4096, norms = 32 * 4 * 2 * 16 * 2 * square, tokens = 2 * 2048;
#define FLOPS(plan) dtp_closed_form_hardware_flops(&t, &one_gpu, &(plan))
    assert_near(FLOPS(dora) - FLOPS(lora), norms);
    lora.accumulate = dora.accumulate = 3;
    assert_near(FLOPS(dora) - FLOPS(lora), 3 * norms);
    lora.checkpointing = dora.checkpointing = DTP_CHECKPOINT_FULL;
    assert_near(FLOPS(dora) - FLOPS(lora), 3 * 2 * norms);
    lora.adapters.dropout = dora.adapters.dropout = 0.1; /* forward, replay, backward */
    assert_near(FLOPS(dora) - FLOPS(lora), 3 * (2 * norms + tokens * 32 * 4 * 3 * 2 * square));
#undef FLOPS
    struct dtp_plan packed = dora;
    packed.adapters.base = DTP_BASE_NF4;
    assert_refused(packed, "dora");
    dora.adapters.dtype = DTP_BF16, dora.adapters.dropout = 0, dora.shifted_logits = false; /* these refuse as well */
    dora.runtime = &dtp_runtime_deepspeed, dora.strategy = DTP_ZERO2, dora.optimizer = DTP_ADAMW_FUSED;
    assert_refused(dora, "dora");
    dora.runtime = &dtp_runtime_dtplan, dora.strategy = DTP_DDP;
    assert_refused(dora, "dora");
    dora.runtime = &dtp_runtime_torch, dora.compile = true;
    assert_refused(dora, "dora");
}

/* ZeRO-3 on 8 GPUs: an eighth of all weights, frozen or not, of gradients and state an eighth of what is trained; every
 * tensor divides by 8. Adapters of rank 16 have at most 16 x 4096 elements a matrix and persist, as norms do (65 x
 * 4096): they alone are gathered for the step's end, one operation a block, beside fetches of frozen weights, in
 * forward, again for the replay and for backward, and of the embedding. One of rank 64 has 262,144 and is fetched. Of
 * gradients adapters' alone are reduced: 7/8 of 2 bytes. */
static void test_deepspeed_shards(void **state)
{
    (void)state;
    const uint64_t all = 6738415616, adapters = 16777216;
    struct dtp_transformer t = llama_7b();
    struct dtp_communication few, many;
    struct dtp_plan plan = trainer(16);
    dtp_precision_recipe("fp16-mixed", &plan.precision);
    plan.runtime = &dtp_runtime_deepspeed, plan.strategy = DTP_ZERO3, plan.adapters.dtype = DTP_FP16;
    plan.optimizer = DTP_ADAMW_FUSED, plan.deepspeed.transformers_layers = true, plan.shard_group = 8;
    plan.reshard_after_forward = true;
    struct dtp_memory memory = predict(&plan, &eight_gpus);
    assert_int_equal(memory.params_bytes, 2 * (all + adapters) / 8);
    assert_int_equal(memory.optimizer_bytes, 12 * adapters / 8);
    assert_int_equal(memory.grads_bytes, 2 * adapters / 8);
    plan.deepspeed.stage3_max_reuse_distance = plan.deepspeed.stage3_prefetch_bucket_size = 0;
    dtp_closed_form_communication(&t, &eight_gpus, &plan, &few);
    const uint64_t fetched = (6738415616 - 2 * 131072000 - 65 * 4096) * 3 + 4 * UINT64_C(131072000);
    assert_int_equal(few.bytes[DTP_ALL_GATHER], 2 * (fetched + 65 * 4096 + adapters) * 7 / 8);
    assert_int_equal(few.bytes[DTP_REDUCE_SCATTER], 2 * adapters * 7 / 8);
    plan.adapters.rank = 64;
    dtp_closed_form_communication(&t, &eight_gpus, &plan, &many);
    assert_int_equal(many.bytes[DTP_ALL_GATHER], 2 * (fetched + 65 * 4096 + 3 * 4 * adapters) * 7 / 8);
    assert_int_equal(many.count[DTP_ALL_GATHER] - few.count[DTP_ALL_GATHER], 3 * 32 * 4);
    plan.adapters.base = DTP_BASE_NF4;
    assert_refused(plan, "base");
}

/* FSDP1's hooks hold of each layer the replay's input and its gradient until backward ends: 2 + 2 bytes x 4096 a layer,
 * where a checkpoint alone has 2. Few words, so that the peak is in layers. */
static double of_a_layer(struct dtp_plan plan, const struct dtp_cluster *cluster)
{
    double token_bytes[2];
    struct dtp_transformer t = llama_7b();
    t.vocab = 512;
    for (int i = 0; i < 2; i++) {
        t.layers = i ? 32 : 16;
        plan.micro_batch = 2;
        double few = (double)estimate(&t, &plan, cluster).allocated_peak_bytes;
        plan.micro_batch = 4;
        token_bytes[i] = ((double)estimate(&t, &plan, cluster).allocated_peak_bytes - few) / (2 * 2048);
    }
    return (token_bytes[1] - token_bytes[0]) / 16;
}

static void test_held_by_hooks(void **state)
{
    (void)state;
    struct dtp_cluster two = eight_gpus;
    two.gpus = two.gpus_per_node = 2;
    struct dtp_plan plan = trainer(16);
    assert_near(of_a_layer(plan, &two), 2 * 4096);
    plan.strategy = DTP_FULL_SHARD, plan.fsdp1 = true;
    assert_near(of_a_layer(plan, &two), (2 + 2) * 4096);
    plan.checkpoint_within = true; /* inputs are no leaves, and go with their backward */
    assert_near(of_a_layer(plan, &two), 2 * 4096);
    plan.checkpoint_within = false, plan.fsdp1 = false; /* FSDP2 has a hook on its own post-backward function */
    assert_near(of_a_layer(plan, &two), 2 * 4096);
    plan.fsdp1 = true, plan.checkpointing = DTP_CHECKPOINT_NONE;
    assert_refused(plan, "fsdp1");
}

/* Of 2^24 weights in four bits auto-gptq's operators move 16.5 bytes each and hold 3 beside the result; a layer's seven
 * stay from its replay to its backward, 2 x 202,375,168, which a kernel that unpacks anew does not leave. */
static void test_gptq(void **state)
{
    (void)state;
    struct dtp_plan plan = trainer(16);
    plan.adapters.base = DTP_BASE_INT4;
    uint64_t anew = predict(&plan, &one_gpu).params_bytes;
    assert_false(dtp_base_stays_unpacked(&plan));
    plan.adapters.gptq_operators = true;
    struct dtp_unpacking work = dtp_base_unpacking(&plan, 4096, 4096);
    assert_true(work.bytes == 16.5 * (1 << 24));
    assert_int_equal(work.workspace_bytes, 3 << 24);
    assert_true(dtp_base_stays_unpacked(&plan));
    assert_int_equal(predict(&plan, &one_gpu).params_bytes, anew);
    plan.micro_batch = 1; /* little beside the weights: the peak is the layer's backward */
    plan.sequence = 256;
    uint64_t kept = predict(&plan, &one_gpu).allocated_peak_bytes;
    plan.adapters.gptq_operators = false;
    uint64_t fresh = predict(&plan, &one_gpu).allocated_peak_bytes;
    assert_true(kept > fresh + 2 * UINT64_C(202375168) / 2 && kept < fresh + 2 * UINT64_C(202375168) + (3 << 26));
    plan.adapters.base = DTP_BASE_NF4, plan.adapters.gptq_operators = true;
    assert_refused(plan, "gptq_operators");
}

/* Mixtral 8x7B (32 layers, 4096 wide, 8 of 32 heads for keys, 8 experts of 14336, 2 a token, 32000 words). */
static struct dtp_transformer mixtral(void)
{
    struct dtp_transformer t = llama_7b();
    t.kv_heads = 8, t.experts = 8, t.experts_per_token = 2, t.expert_ffn = 14336, t.router_norm = true;
    return t;
}

/* Rank 16 beside q, k, v and o of Mixtral: 32 x 16 x (8192 + 5120 + 5120 + 8192); beside each expert's three: 32 x 8 x
 * 3 x 16 x (4096 + 14336) more, of which a token meets 2 in 8. Qwen3-30B-A3B (48 layers, 2048, heads of 128, 32 and 4,
 * 128 experts of 768, 8 a token): 48 x 16 x (6144 + 2560 + 2560 + 6144) and 48 x 128 x 3 x 16 x (2048 + 768). All of it
 * frozen in 4 bits: nf4's 4.5 of 32 x (8 x 3 x 4096 x 14336 + 2 x 4096 x 4096 + 2 x 4096 x 1024 + 8 x 4096), 16 of the
 * rest. */
static void test_adapters_of_experts(void **state)
{
    (void)state;
    struct dtp_transformer t = mixtral();
    struct dtp_trained_count count;
    struct dtp_plan plan = trainer(16);
    plan.precision.params = DTP_BF16;
    dtp_plan_trained(&t, &plan, &count);
    assert_int_equal(count.adapters, 13631488);
    assert_int_equal(count.frozen, UINT64_C(46702792704));
    plan.adapters.targets = DTP_TARGETS_ALL;
    dtp_plan_trained(&t, &plan, &count);
    assert_int_equal(count.adapters, 13631488 + 226492416);
    assert_int_equal(count.active_adapters, 13631488 + 226492416 / 4);
    plan.adapters.base = DTP_BASE_NF4;
    dtp_plan_trained(&t, &plan, &count);
    const uint64_t packed = UINT64_C(32) * (1409286144 + 33554432 + 8388608 + 32768);
    assert_int_equal(count.frozen_bytes, packed / 16 * 9 + 2 * (count.frozen - packed));
    t.layers = 48, t.hidden = 2048, t.head_dim = 128, t.kv_heads = 4, t.experts = 128, t.experts_per_token = 8;
    t.expert_ffn = 768;
    dtp_plan_trained(&t, &plan, &count);
    assert_int_equal(count.adapters, 13369344 + UINT64_C(830472192));
    assert_int_equal(count.active_adapters, 13369344 + UINT64_C(830472192) / 16);
}

/* Few words, so that the peak is in a layer's backward. Of a token in units of h = 8192 bytes: inputs 2 of 32 layers
 * (64/2 = 32 x 1); of the layer the copies of both norms in fp32, 2 + 2, what dropout made of the inputs of q, k, v and
 * o with masks, in fp32 without autocast, 2.5 x 4, q and the core's result 1 + 1, k and v 1/4 each; of two experts
 * gate, silu and up, 3.5 x 3 x 2, and what they returned, 2; the block's result once more 1, its gradient 1; the first
 * expert's gradients of its product, of silu and of up, each an eighth of 7. Besides in bytes: x A of four 4 x 16 each,
 * a number of each of 32 heads, of both norms 4, a token's index 8, the router's weights 4 x 8, of each of two routes
 * 32 and the gradient of its weight 4. fms-acceleration's QLoRA of Mixtral differs by 734,711 bytes a token where the
 * loss is the peak (fa-069 and fa-071 of published_runs_3d_moe.csv). */
static void test_called_experts(void **state)
{
    (void)state;
    struct dtp_transformer t = mixtral();
    t.vocab = 512;
    double units = 32 + 2 + 2 + 10 + 2 + 0.5 + 21 + 2 + 1 + 1 + 3 * 7.0 / 8;
    assert_near(bytes_of_a_token(&t, trainer(16)), 8192 * units + 256 + 128 + 8 + 8 + 32 + 64 + 8);
    t.vocab = 32000;
    assert_near(bytes_of_a_token(&t, trainer(16)), 32 * 2 * 4096 + 14 * 32000 + 6 * 4096);
    struct dtp_plan plan = trainer(0);
    dtp_precision_recipe("bf16-mixed", &plan.precision); /* under autocast */
    assert_refused_of(&t, plan, "precision");
    t.dense_layers = 3;
    assert_refused_of(&t, trainer(16), "lora");
}

/* Norms of queries and keys as chains keep of each element the fp32 copy, 4, and, where the weight is trained, the
 * normed rows, 2, and a number of each head, 4, in place of nothing: RoPE keeps what they return. LLaMA 7B's layers
 * have 2 x 4096 such elements and 2 x 32 heads. So library-f11 held them: of 2,048 tokens 33.6 and 8.4 MB, 16.8
 * and 4.2, 0.26 and 0.07 (scenarios/library_runs.csv). Adapters beside a frozen weight leave the copy alone. */
static void test_chained_heads(void **state)
{
    (void)state;
    struct dtp_transformer plain = llama_7b(), normed = plain;
    normed.qk_norm = true;
    for (uint32_t rank = 0; rank <= 16; rank += 16) {
        struct dtp_plan plan = trainer(rank);
        plan.checkpointing = DTP_CHECKPOINT_NONE, plan.shifted_logits = false;
        const double kept = 32 * ((rank ? 4 : 6) * 2 * 4096.0 + 4 * 2 * 32);
        assert_near(bytes_of_a_token(&normed, plan) - bytes_of_a_token(&plain, plan), kept);
    }
}

/* FSDP1 around reentrant checkpoints gathers a layer three times, none ahead in backward: 2 x (32 layers of 2 x
 * 202,383,360 bytes) of 8 GPUs beside twice the root's once. */
static void test_gathers_of_replays(void **state)
{
    (void)state;
    struct dtp_plan plan = trainer(0);
    plan.strategy = DTP_FULL_SHARD, plan.fsdp1 = true;
    struct dtp_transformer t = llama_7b();
    struct dtp_cluster cluster = eight_gpus;
    static struct dtp_faults faults;
    assert_int_equal(resolved(&t, &plan, &cluster, &faults), DTP_OK);
    assert_true(dtp_plan_gathers_for_replays(&plan) && !dtp_plan_prefetches_backward(&plan));
    struct dtp_communication c;
    dtp_closed_form_communication(&t, &cluster, &plan, &c);
    uint64_t layer = 202383360, root = 2 * 32000 * 4096 + 4096;
    assert_int_equal(c.count[DTP_ALL_GATHER], 3 * 32 + 1);
    assert_int_equal(c.bytes[DTP_ALL_GATHER], (3 * 32 * 2 * layer + 2 * root) / 8 * 7);
    plan.checkpoint_within = true; /* replays run between pre- and post-backward of their unit */
    dtp_closed_form_communication(&t, &cluster, &plan, &c);
    assert_int_equal(c.count[DTP_ALL_GATHER], 2 * 32 + 1);
    plan.checkpointing = DTP_CHECKPOINT_NONE;
    assert_false(dtp_plan_gathers_for_replays(&plan));
}

/* fp32 adapters of q, k, v and o under autocast, layers not run again, no dropout. A layer keeps of a token, h = 4096,
 * f = 11008: copies of both norms 2 x 4 h, what autocast cast for each A 4 x 2 h, q, k, v and the core's result 4 x 2
 * h, gate, up and silu 3 x 2 f, x A 4 x 2 x 16, a number of each norm and head 2 x 4 + 4 x 32; nothing of its input,
 * which the chain's copy stands for. The head's end 12 x 32000, the final norm's copy and number and the token's index.
 * As peft 0.21 keeps it (reports/h200/library_runs.md). Besides kernels move 4 x 2 x 12 h more than with adapters in 16
 * bits, and of each factor twice 6 bytes an element. */
static void test_recast(void **state)
{
    (void)state;
    const double h = 4096, f = 11008, tokens = 2048, factors = 32 * 4 * 16 * 2 * h;
    struct dtp_plan plan = trainer(16);
    dtp_precision_recipe("bf16-mixed", &plan.precision);
    plan.checkpointing = DTP_CHECKPOINT_NONE, plan.adapters.dropout = 0, plan.shifted_logits = false;
    assert_near(of_a_token(plan), 32 * (8 * h + 8 * h + 8 * h + 6 * f + 128 + 8 + 128) + 12 * 32000 + 4 * h + 4 + 8);
    struct dtp_plan narrow = plan;
    narrow.adapters.dtype = DTP_BF16, narrow.adapters.base = DTP_BASE_NONE;
    assert_near(moved_bytes(plan) - moved_bytes(narrow) - 32 * 4 * 12 * 2 * h * tokens, 2 * 6 * factors);
}

/* Norms in fp32, 65 of 4096, 2 bytes more each. What a token takes more at the loss: 31 layers' inputs and what the
 * head reads, 2 x 4096 each: 262,144 bytes, as measured of Mistral-7B, of the same widths (published_runs_3d_moe.csv,
 * fa-049 and fa-061: 4.001 GiB of 4 x 4096 tokens; fa-051 and fa-063). What a layer's kernels move more of a token, h =
 * q = k = 4096, f = 11008: forward 60 h (norms without casts -16, sums 4 + 6, casts of what q, k, v, gate and up read 5
 * x 6, of down's result 6, dropouts 3 x 4 and their casts 3 x 6), q, k and v 20 each (their cast 6, the adapter's sum
 * 8, the cast for attention 6), RoPE 20 (q + k), gate, up, silu and product 28 f; twice, for layers run again; backward
 * 104 h (casts of two sums 12, norms -4, of x 2 x 6 and 6 x 6, sums of these 6 + 18 + 12, dropouts 12), 18 each of q, k
 * and v (casts of three), RoPE 20 (q + k), 36 f (casts 6 + 12, product and silu 18). */
static void test_prepared(void **state)
{
    (void)state;
    const double h = 4096, f = 11008;
    struct dtp_transformer t = llama_7b();
    struct dtp_plan plain = trainer(16);
    dtp_precision_recipe("bf16-mixed", &plain.precision);
    plain.adapters.base = DTP_BASE_NF4_DOUBLE;
    struct dtp_plan plan = plain;
    plan.adapters.prepare_kbit = true;
    assert_int_equal(predict(&plan, &one_gpu).params_bytes - predict(&plain, &one_gpu).params_bytes, 2 * 65 * 4096);
    assert_true(of_a_token(plan) - of_a_token(plain) == 262144);
    const double forward = 60 * h + 20 * 3 * h + 20 * 2 * h + 28 * f,
                 backward = 104 * h + 18 * 3 * h + 20 * 2 * h + 36 * f;
    assert_near(moved_bytes(plan) - moved_bytes(plain), 32.0 * (double)plan.sequence * (2 * forward + backward));
    static struct dtp_faults faults;
    struct dtp_cluster cluster = one_gpu;
    assert_int_equal(resolved(&t, &plain, &cluster, &faults), DTP_OK);
    assert_int_equal(resolved(&t, &plan, &cluster, &faults), DTP_OK);
    struct dtp_block_work wide = dtp_block_work(&t, DTP_LAYER_DENSE, &cluster, &plan),
                          narrow = dtp_block_work(&t, DTP_LAYER_DENSE, &cluster, &plain);
    assert_near(wide.forward_bytes_per_token - narrow.forward_bytes_per_token, forward);
    assert_near(wide.backward_bytes_per_token - narrow.backward_bytes_per_token, backward);
#define FLOPS(plan) dtp_closed_form_hardware_flops(&t, &cluster, &(plan))
    assert_true(FLOPS(plan) == FLOPS(plain));
#undef FLOPS
}

/* Embedding and head, 32000 x 4096 each, are fp32 as well: 2 bytes more each; the first layer's input, too, 2 x 4096 a
 * token; the head's weight is cast in each micro-step, 4 + 2 bytes, and the cast stands to the head's backward. */
static void test_prepared_ends(void **state)
{
    (void)state;
    const uint64_t end = 131072000;
    struct dtp_plan plan = trainer(16);
    dtp_precision_recipe("bf16-mixed", &plan.precision);
    plan.adapters.base = DTP_BASE_NF4_DOUBLE, plan.adapters.prepare_kbit = true;
    struct dtp_plan wide = plan;
    wide.adapters.fp32_ends = true;
    assert_int_equal(predict(&wide, &one_gpu).params_bytes - predict(&plan, &one_gpu).params_bytes, 2 * 2 * end);
    assert_true(of_a_token(wide) - of_a_token(plan) == 2 * 4096);
    assert_true(moved_bytes(wide) - moved_bytes(plan) == 6.0 * (double)end);
    plan.micro_batch = wide.micro_batch = 4; /* whose peak is the loss */
    uint64_t more = predict(&wide, &one_gpu).allocated_peak_bytes - predict(&plan, &one_gpu).allocated_peak_bytes;
    assert_int_equal(more, 2 * 2 * end + 2 * end + 4 * 2048 * 2 * 4096);
    plan.adapters.prepare_kbit = false, plan.adapters.fp32_ends = true;
    assert_refused(plan, "fp32_ends");
}

static void test_prepared_refused(void **state)
{
    (void)state;
    struct dtp_plan plan = trainer(16), other;
    struct dtp_transformer t = llama_7b();
    dtp_precision_recipe("bf16-mixed", &plan.precision);
    plan.adapters.base = DTP_BASE_NF4, plan.adapters.prepare_kbit = true;
    other = plan, other.strategy = DTP_FULL_SHARD;
    assert_refused(other, "prepare_kbit");
    other = plan, other.adapters.base = DTP_BASE_INT4;
    assert_refused(other, "prepare_kbit");
    other = plan, other.fast_kernels = true;
    assert_refused(other, "fast_kernels");
    other = plan, other.adapters.train_ends = true;
    assert_refused(other, "train_ends");
    other = plan, other.attention = DTP_ATTENTION_MATH;
    assert_refused(other, "attention");
    other = plan, dtp_precision_recipe("bf16-pure", &other.precision);
    assert_refused(other, "prepare_kbit");
    other = plan, other.adapters.dora = true;
    assert_refused(other, "dora");
    t.qk_norm = true;
    assert_refused_of(&t, plan, "prepare_kbit");
    t = llama_7b(), t.parallel_block = true;
    assert_refused_of(&t, plan, "prepare_kbit");
    t = llama_7b(), t.embedding_norm = true;
    assert_refused_of(&t, plan, "prepare_kbit");
}

static void test_refused(void **state)
{
    (void)state;
    struct dtp_plan plan = trainer(16);
    plan.compile = true;
    assert_refused(plan, "compile");
    plan = trainer(16);
    plan.loss = DTP_LOSS_CHUNKED;
    assert_refused(plan, "loss");
    plan = trainer(16);
    plan.checkpointing = DTP_CHECKPOINT_SELECTIVE_ATTENTION;
    assert_refused(plan, "checkpointing");
    plan = trainer(16);
    plan.adapters.train_ends = true, plan.strategy = DTP_FULL_SHARD;
    assert_refused(plan, "train_ends");
    plan = trainer(16);
    plan.runtime = &dtp_runtime_torch, plan.fast_kernels = true;
    assert_refused(plan, "fast_kernels");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_loss),
                                       cmocka_unit_test(test_layer),
                                       cmocka_unit_test(test_recast),
                                       cmocka_unit_test(test_norm_chain),
                                       cmocka_unit_test(test_narrow_logits),
                                       cmocka_unit_test(test_deepspeed),
                                       cmocka_unit_test(test_deepspeed_shards),
                                       cmocka_unit_test(test_dora),
                                       cmocka_unit_test(test_gptq),
                                       cmocka_unit_test(test_held_by_hooks),
                                       cmocka_unit_test(test_adapters_of_experts),
                                       cmocka_unit_test(test_called_experts),
                                       cmocka_unit_test(test_chained_heads),
                                       cmocka_unit_test(test_gathers_of_replays),
                                       cmocka_unit_test(test_prepared),
                                       cmocka_unit_test(test_prepared_ends),
                                       cmocka_unit_test(test_prepared_refused),
                                       cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
